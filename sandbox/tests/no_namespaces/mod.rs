//! Tests that are specific to sandboxes without namespaces: the step runs in a copy, its changes are found
//! afterwards, and supervisors end its processes.
#![expect(clippy::disallowed_methods, reason = "trials build their world with plain files")]

use std::fs;
use std::io::{BufRead, BufReader};
use std::os::fd::AsFd;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use libtest_mimic::Failed;
use proctor_core::model::enforcement::Tolerated;
use proctor_core::model::outcome::LimitKind;
use proctor_core::model::plan::Limit;
use proctor_sandbox::{
    AccessRights, GitDirs, RunSpace, RunSpaceConfig, SandboxReuse, Sealed, ToolKind, ToolMount, WaitStatus,
};
use rustix::fs::{AtFlags, FileType};

use crate::environment::{self, SandboxTestEnv, TestCommand, collect_events, read_line};

/// The host stays unchanged, whatever the step does to paths that it knows.
pub(crate) fn cannot_reach_real_tree_or_host(bench: &SandboxTestEnv) -> Result<(), Failed> {
    fs::write(bench.root.join("neighbour"), "secret")?;
    let (repo, root, own) = (bench.repo.display(), bench.root.display(), std::process::id());
    let script = format!(
        "echo x > {repo}/tracked.txt; rm -rf {repo}/src; touch {repo}/new; echo x > {repo}/.git/HEAD; mv {repo} {repo}2; \
         cat {repo}/tracked.txt {root}/neighbour {root}/home/secret; ls {root} {root}/state /root /home /tmp /var/tmp /run; \
         touch /tmp/proctor-x /dev/shm/proctor-x; ln {repo}/tracked.txt hard; kill -9 {own}; kill -STOP {own}; \
         cat /proc/{own}/environ; exec 3< /dev/ptmx; echo end"
    );
    let ran = bench.run(&TestCommand::shell(&format!(
        "({script}) 2>&1 | grep -v -i -E 'denied|not permitted|cannot|cross-device'"
    )))?;
    assert_eq!(ran.stdout.trim(), "", "{ran:?}");
    assert_eq!(fs::read_to_string(bench.repo.join("tracked.txt"))?, "as it was\n");
    assert_eq!(fs::read_to_string(bench.repo.join(".git/HEAD"))?, "ref: refs/heads/main\n");
    assert!(bench.repo.join("src/lib.rs").exists() && !bench.repo.join("new").exists());
    assert!(!Path::new("/tmp/proctor-x").exists() && !Path::new("/dev/shm/proctor-x").exists());
    assert_eq!(environment::names(ran.layer.upper())?, [""; 0]);
    Ok(())
}

/// Returns the file type and permission bits of `path` in a layer. A whiteout is a character device.
fn layer_entry(layer: &proctor_sandbox::Layer<Sealed>, path: &str) -> Result<(FileType, u32), Failed> {
    let stat = rustix::fs::statat(layer.upper(), path, AtFlags::SYMLINK_NOFOLLOW)?;
    Ok((FileType::from_raw_mode(stat.st_mode), stat.st_mode & 0o7777))
}

pub(crate) fn stores_all_changes_in_layer(bench: &SandboxTestEnv) -> Result<(), Failed> {
    for dir in ["gone/deep", "becomes-file", "emptied", "kept"] {
        fs::create_dir_all(bench.repo.join(dir))?;
        fs::write(bench.repo.join(dir).join("f"), dir)?;
        chown_to_repo_owner(bench, &bench.repo.join(dir))?;
    }
    chown_to_repo_owner(bench, &bench.repo.join("gone"))?;
    for file in ["mode", "becomes-dir", "same"] {
        fs::write(bench.repo.join(file), file)?;
        chown_to_repo_owner(bench, &bench.repo.join(file))?;
    }
    let script = "rm -r gone; rm -r becomes-file && echo x > becomes-file; rm -r emptied && mkdir emptied; \
        chmod 755 mode; rm becomes-dir && mkdir becomes-dir && echo x > becomes-dir/x; ln -sfn /usr link; mkfifo pipe; \
        mkdir -p new/deep && echo x > new/deep/x && chmod 500 new; echo y >> kept/f; cat same";
    let ran = bench.run(&TestCommand::shell(script))?;
    assert_eq!(ran.stdout_of_success(), "same");
    let expected = ["becomes-dir", "becomes-file", "emptied", "gone", "kept", "link", "mode", "new", "pipe"];
    assert_eq!(environment::names(ran.layer.upper())?, expected);
    for (path, kind) in [
        ("gone", FileType::CharacterDevice),
        ("becomes-file", FileType::RegularFile),
        ("emptied/f", FileType::CharacterDevice),
        ("becomes-dir", FileType::Directory),
        ("link", FileType::Symlink),
        ("pipe", FileType::Fifo),
        ("new/deep/x", FileType::RegularFile),
    ] {
        assert_eq!(layer_entry(&ran.layer, path)?.0, kind, "{path}");
    }
    assert_eq!((layer_entry(&ran.layer, "mode")?.1, layer_entry(&ran.layer, "new")?.1), (0o755, 0o500));
    let next = bench.run_over(
        &TestCommand::shell("ls; cat becomes-file becomes-dir/x new/deep/x kept/f; ls emptied; readlink link; rm -rf becomes-dir; echo z > gone"),
        &[&ran.layer],
    )?;
    let seen =
        "becomes-dir\nbecomes-file\nemptied\nkept\nlink\nmode\nnew\npipe\nsame\nsrc\ntracked.txt\nx\nx\nx\nkepty\n/usr";
    assert_eq!(next.stdout_of_success(), seen);
    let third = bench.run_over(&TestCommand::shell("ls; cat gone"), &[&next.layer, &ran.layer])?;
    assert_eq!(
        third.stdout_of_success(),
        "becomes-file\nemptied\ngone\nkept\nlink\nmode\nnew\npipe\nsame\nsrc\ntracked.txt\nz"
    );
    Ok(())
}

/// Makes the repository's owner the owner of a file or directory of the test.
fn chown_to_repo_owner(bench: &SandboxTestEnv, path: &Path) -> Result<(), Failed> {
    let meta = fs::symlink_metadata(path)?;
    if bench.role.is_foreign() && meta.uid() != bench.facts.uid {
        std::os::unix::fs::lchown(path, Some(bench.facts.uid), Some(bench.facts.gid))?;
    }
    if meta.is_dir() {
        for entry in fs::read_dir(path)? {
            chown_to_repo_owner(bench, &entry?.path())?;
        }
    }
    Ok(())
}

/// The change keeps the inode, the length and the modification time.
pub(crate) fn detects_change_with_restored_times(bench: &SandboxTestEnv) -> Result<(), Failed> {
    let script = "import os\ns = os.stat('tracked.txt')\nwith open('tracked.txt', 'r+') as f: f.write('A')\n\
        os.utime('tracked.txt', ns=(s.st_atime_ns, s.st_mtime_ns))\n\
        t = os.stat('tracked.txt')\nprint(s.st_ino == t.st_ino, s.st_size == t.st_size, s.st_mtime_ns == t.st_mtime_ns)";
    for _ in 0..5 {
        let ran = bench.run(&TestCommand::new(&["/usr/bin/python3", "-c", script]))?;
        assert_eq!(ran.stdout_of_success(), "True True True");
        assert_eq!(environment::content(ran.layer.upper(), "tracked.txt")?, "As it was\n");
    }
    let mapped = "import mmap\nwith open('tracked.txt', 'r+b') as f:\n  m = mmap.mmap(f.fileno(), 0)\n  m[0:1] = b'B'";
    let ran = bench.run(&TestCommand::new(&["/usr/bin/python3", "-c", mapped]))?;
    assert_eq!(environment::content(ran.layer.upper(), "tracked.txt")?, "Bs it was\n");
    Ok(())
}

pub(crate) fn copies_git_directory_outside_layers(bench: &SandboxTestEnv) -> Result<(), Failed> {
    let script = "cat .git/HEAD; echo x > .git/HEAD; echo x > .git/new; rm .git/HEAD; cat .git/HEAD; ls .git";
    let ran = bench.run(&TestCommand::shell(script))?;
    assert_eq!(ran.stdout_of_success(), "ref: refs/heads/main\nref: refs/heads/main\nHEAD", "{ran:?}");
    assert_eq!(environment::names(ran.layer.upper())?, [""; 0]);
    // The step can remove the link itself; the next step has one anyway.
    let without = bench.run(&TestCommand::shell("rm -r .git; mkdir .git; echo own > .git/HEAD"))?;
    assert_eq!(
        bench.run_over(&TestCommand::shell("cat .git/HEAD"), &[&without.layer])?.stdout_of_success(),
        "ref: refs/heads/main"
    );
    assert_eq!(fs::read_to_string(bench.repo.join(".git/HEAD"))?, "ref: refs/heads/main\n");
    Ok(())
}

pub(crate) fn linked_worktree_reads_common_directory(bench: &SandboxTestEnv) -> Result<(), Failed> {
    let common = bench.root.join("main/.git");
    fs::create_dir_all(&common)?;
    fs::write(common.join("config"), "common\n")?;
    fs::write(bench.root.join("main/neighbour"), "secret")?;
    chown_to_repo_owner(bench, &bench.root.join("main"))?;
    fs::remove_dir_all(bench.repo.join(".git"))?;
    fs::write(bench.repo.join(".git"), format!("gitdir: {}\n", common.display()))?;
    chown_to_repo_owner(bench, &bench.repo.join(".git"))?;
    let path = common.display();
    let script = format!("cat .git {path}/config; echo x >> {path}/config; cat {path}/../neighbour");
    let mut policy = bench.policy(&TestCommand::shell(&format!("{script}; true")))?;
    policy.git =
        GitDirs { worktree_git: Some(bench.repo.join(".git")), common: Some(common.clone()), nested: Vec::new() };
    let ran = bench.run_policy(&policy, &[])?;
    assert_eq!(ran.stdout_of_success(), format!("gitdir: {path}\ncommon"), "{ran:?}");
    assert_eq!(fs::read_to_string(common.join("config"))?, "common\n");
    Ok(())
}

pub(crate) fn refuses_internet_sockets(bench: &SandboxTestEnv) -> Result<(), Failed> {
    let script = "import errno, socket\n\
        for family in (socket.AF_INET, socket.AF_INET6, socket.AF_NETLINK, socket.AF_PACKET):\n\
        \x20 try: socket.socket(family, socket.SOCK_DGRAM)\n\
        \x20 except OSError as error: print(errno.errorcode[error.errno])\n\
        a, b = socket.socketpair(); a.send(b'x'); print(b.recv(1).decode())";
    let ran = bench.run(&TestCommand::new(&["/usr/bin/python3", "-c", script]))?;
    assert_eq!(ran.stdout_of_success(), "EAFNOSUPPORT\nEAFNOSUPPORT\nEAFNOSUPPORT\nEAFNOSUPPORT\nx");
    Ok(())
}

pub(crate) fn links_tools_and_hides_credentials(bench: &SandboxTestEnv) -> Result<(), Failed> {
    let tool = bench.home.join(".tool");
    fs::create_dir_all(tool.join("bin"))?;
    fs::write(tool.join("bin/t"), "tool\n")?;
    fs::write(tool.join("credentials"), "token")?;
    let rights = AccessRights::Steps;
    let mount = |at: &Path, kind| ToolMount { source: at.to_owned(), at: at.to_owned(), kind, rights };
    let mut step = TestCommand::shell(
        "cd ~ && ls; cat .tool/bin/t; cat .tool/credentials; touch .tool/bin/x; echo x > mine; echo x > $TMPDIR/y; ls -A; true",
    );
    step.env.insert("HOME".to_owned(), bench.home.display().to_string());
    step.env.insert("TMPDIR".to_owned(), "/tmp".to_owned());
    step.tools = vec![
        mount(&tool, ToolKind::ReadOnly),
        mount(&tool.join("credentials"), ToolKind::Masked),
        mount(&bench.home.join(".absent"), ToolKind::ReadOnly),
    ];
    let ran = bench.run(&step)?;
    assert_eq!(ran.stdout_of_success(), "tool\n.gitconfig\n.tool\nmine", "{ran:?}");
    assert_eq!(ran.stderr.matches("ermission denied").count(), 2, "{ran:?}");
    assert!(!tool.join("bin/x").exists() && !bench.home.join("mine").exists());
    Ok(())
}

/// No single process exceeds the limit.
pub(crate) fn limits_sum_of_all_processes(bench: &SandboxTestEnv) -> Result<(), Failed> {
    let mut step = TestCommand::new(&["/usr/bin/python3", "-c", "x = bytearray(512 << 20)"]);
    step.limits.memory = Limit::Max(256 << 20);
    let alone = bench.run(&step)?;
    assert_ne!(alone.status(), Some(WaitStatus::Code(0)), "{alone:?}");
    step.limits.memory = Limit::Unlimited;
    step.limits.cpu_seconds = Limit::Max(1);
    let children = "import os, time\nfor _ in range(40):\n  if os.fork() == 0:\n    end = time.process_time() + 0.2\n    while time.process_time() < end: pass\n    os._exit(0)\n  os.wait()\n";
    step.argv = TestCommand::new(&["/usr/bin/python3", "-c", children]).argv;
    let burnt = bench.run(&step)?;
    assert_eq!(burnt.limit(), Some(LimitKind::CpuSeconds), "{burnt:?}");
    Ok(())
}

/// Twenty grandchildren, each in its own session, that ignore every signal and hold the pipe open.
const STUBBORN_GRANDCHILDREN_SCRIPT: &str = r"
import os, signal, sys, time
for _ in range(20):
    if os.fork() == 0:
        os.setsid()
        if os.fork() == 0:
            for s in (signal.SIGTERM, signal.SIGHUP, signal.SIGINT): signal.signal(s, signal.SIG_IGN)
            os.write(1, b'up ' + sys.argv[1].encode() + b'\n')
            while True: time.sleep(1000)
        os._exit(0)
    os.wait()
while True: time.sleep(1000)
";

fn stubborn_step(name: &str) -> (TestCommand, String) {
    let marker = format!("proctor-test-{name}-{}", std::process::id());
    (TestCommand::new(&["/usr/bin/python3", "-c", STUBBORN_GRANDCHILDREN_SCRIPT, &marker]), marker)
}

pub(crate) fn kills_twenty_stubborn_grandchildren(bench: &SandboxTestEnv) -> Result<(), Failed> {
    let (step, marker) = stubborn_step("twenty");
    let (running, _layer) = bench.start(&step, &[])?;
    for _ in 0..20 {
        read_line(&running.stdout)?;
    }
    assert!(environment::process_statuses(&marker)?.len() >= 21);
    running.terminate()?;
    running.kill()?;
    collect_events(&running)?;
    assert_eq!(environment::process_statuses(&marker)?, [""; 0]);
    Ok(())
}

/// Without the helper, it is not known whether all processes have ended, and the attempt must not claim it.
pub(crate) fn killed_helper_is_reported_and_leaves_no_process(bench: &SandboxTestEnv) -> Result<(), Failed> {
    let (step, marker) = stubborn_step("doubted");
    let (running, _layer) = bench.start(&step, &[])?;
    for _ in 0..20 {
        read_line(&running.stdout)?;
    }
    let processes = environment::process_pidfds(&marker)?;
    for helper in environment::children()? {
        let pid = rustix::process::Pid::from_raw(helper.parse()?).ok_or("no process")?;
        rustix::process::kill_process(pid, rustix::process::Signal::KILL)?;
    }
    assert!(collect_events(&running).is_err(), "the helper reported that all are gone");
    for process in processes {
        environment::wait_readable(process.as_fd())?;
    }
    Ok(())
}

pub(crate) fn sweeps_directory_of_dead_owner(bench: &SandboxTestEnv) -> Result<(), Failed> {
    let mut parent = environment::spawn_parent(bench.role, "echo x > x; echo $PWD; exec sleep 1000")?;
    let mut first = String::new();
    BufReader::new(parent.stdout.take().ok_or("no output")?).read_line(&mut first)?;
    let tree = Path::new(first.trim());
    let space = tree.ancestors().nth(2).ok_or("no directory")?;
    assert!(tree.ends_with("tree") && space.exists(), "{first}");
    parent.kill()?;
    parent.wait()?;
    // Root's directories have one parent for all runs; an ordinary user's are in the respective state directory.
    let theirs =
        if bench.role.is_set_up_by_root() { &bench.root } else { space.ancestors().nth(3).ok_or("no directory")? };
    drop(SandboxTestEnv::with_existing_files(bench.role, theirs)?);
    assert!(!space.exists(), "{}", space.display());
    if !bench.role.is_set_up_by_root() {
        fs::remove_dir_all(theirs)?;
    }
    Ok(())
}

/// The caller must explicitly accept fewer controls.
pub(crate) fn refuses_missing_namespaces_unless_tolerated(bench: &SandboxTestEnv) -> Result<(), Failed> {
    let config = RunSpaceConfig {
        disk_bytes: 1 << 20,
        inodes: 100,
        tolerated: Tolerated::default(),
        reuse: SandboxReuse::Never,
        caches: None,
    };
    let refused = RunSpace::create(&bench.launcher, config).err().ok_or("a space without namespaces")?;
    assert!(refused.to_string().contains("namespace"), "{refused}");
    let mut policy = bench.policy(&TestCommand::shell("touch ran"))?;
    policy.tolerated = Tolerated::default();
    let (running, _layer) = bench.launcher.spawn(&bench.space, &[], &bench.facts, &policy)?;
    let reports = collect_events(&running)?;
    assert!(matches!(reports.as_slice(), [proctor_sandbox::SandboxEvent::Refused { .. }]), "{reports:?}");
    Ok(())
}
