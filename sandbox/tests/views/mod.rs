//! Tests of views: the trace of a command is complete, and the command behaves as without a view.

pub(crate) mod completeness;
pub(crate) mod fixtures;
pub(crate) mod inputs;
pub(crate) mod traps;

use std::collections::BTreeSet;
use std::fs;
use std::os::fd::AsFd;
use std::os::unix::fs::MetadataExt;
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::process::Command;

use libtest_mimic::Failed;
use proctor_core::model::outcome::StartFault;
use proctor_core::model::trace::{AccessTrace, AccessedPath, NoTrace, PathState};
use proctor_sandbox::{
    AccessRights, Layer, RunningSandbox, SandboxEvent, Sealed, ToolKind, ToolMount, WaitStatus, observe_listing,
    observe_path,
};
use rustix::process::{Pid, Signal};

use crate::caches::cache;
use crate::environment::{self, SandboxTestEnv, TestCommand, UserRole, children, collect_events, read_line};

/// Runs a command on a view, and returns its output and its trace.
fn run_traced(bench: &SandboxTestEnv, step: &TestCommand) -> Result<(String, AccessTrace), Failed> {
    let ran = bench.run(step)?;
    let output = ran.stdout_of_success().to_owned();
    match ran.trace {
        Some(Ok(trace)) => Ok((output, trace)),
        other => Err(format!("{other:?}").into()),
    }
}

fn trace_of(bench: &SandboxTestEnv, script: &str) -> Result<AccessTrace, Failed> {
    Ok(run_traced(bench, &TestCommand::shell(script))?.1)
}

/// Returns the reason why a command that succeeds has no trace.
fn reason_of(bench: &SandboxTestEnv, step: &TestCommand) -> Result<NoTrace, Failed> {
    let ran = bench.run(step)?;
    ran.stdout_of_success();
    ran.trace.and_then(Result::err).ok_or_else(|| "there is a trace".into())
}

/// Returns whether the steps of these tests find a program.
pub(crate) fn is_installed(program: &str) -> bool {
    ["/usr/local/bin", "/usr/bin"].iter().any(|dir| Path::new(dir).join(program).exists())
}

fn find<'t>(trace: &'t AccessTrace, path: &Path) -> Option<&'t AccessedPath> {
    trace.get(path.as_os_str().as_encoded_bytes())
}

/// Returns the entries of a trace in the repository, relative to it: a letter for the kind, `r` if it was read, `l` if it
/// was listed.
fn entries_in_repo(bench: &SandboxTestEnv, trace: &AccessTrace) -> Vec<String> {
    let describe = |entry: &AccessedPath| {
        let path = Path::new(std::str::from_utf8(&entry.path).expect("text"));
        let below = path.strip_prefix(&bench.repo).ok()?.to_str()?;
        let kind = match &entry.state {
            PathState::Absent => "absent",
            PathState::File { .. } => "file",
            PathState::Directory { .. } => "dir",
            PathState::Link { .. } => "link",
            PathState::Other { .. } => "other",
        };
        let read = if entry.read { " read" } else { "" };
        let listed = if entry.listing.is_some() { " listed" } else { "" };
        Some(format!("{kind} {below}{read}{listed}"))
    };
    trace.entries().iter().filter_map(describe).collect()
}

pub(crate) fn records_each_kind_of_access(bench: &SandboxTestEnv) -> Result<(), Failed> {
    // The set-up looks up the repository and its git directory.
    let set_up = ["dir ", "dir .git"];
    for (script, expected) in [
        ("true", &[][..]),
        ("test ! -e missing", &["absent missing"][..]),
        ("test ! -e missing/below", &["absent missing"]),
        ("test -f tracked.txt", &["file tracked.txt"]),
        ("read line < tracked.txt", &["file tracked.txt read"]),
        ("test -f src/lib.rs", &["dir src", "file src/lib.rs"]),
        ("echo src/*", &["dir src listed"]),
        ("test -L link", &["link link"]),
        ("echo new > new.txt; read line < new.txt; rm new.txt", &["absent new.txt"]),
        ("read line < .git/HEAD", &["file .git/HEAD read"]),
        ("echo line >> tracked.txt", &["file tracked.txt read"]),
    ] {
        let mut expected: Vec<&str> = set_up.iter().chain(expected).copied().collect();
        expected.sort_unstable_by_key(|entry| entry.split(' ').nth(1));
        assert_eq!(entries_in_repo(bench, &trace_of(bench, script)?), expected, "{script}");
    }
    let link = trace_of(bench, "test -L link")?;
    let state = find(&link, &bench.repo.join("link")).map(|entry| &entry.state);
    assert!(matches!(state, Some(PathState::Link { target, .. }) if target == b"/etc"), "{state:?}");
    Ok(())
}

pub(crate) fn records_program_with_its_libraries(bench: &SandboxTestEnv) -> Result<(), Failed> {
    let (output, trace) = run_traced(bench, &TestCommand::new(&["cat", "/proc/self/maps"]))?;
    let mapped: BTreeSet<&Path> =
        output.lines().filter_map(|line| line.split_whitespace().nth(5)).map(Path::new).collect();
    let mapped: Vec<&Path> = mapped.into_iter().filter(|path| path.is_absolute()).collect();
    assert!(mapped.len() >= 3, "the program, its loader and libc: {mapped:?}");
    for path in mapped {
        let entry = find(&trace, &fs::canonicalize(path)?).ok_or_else(|| format!("{}", path.display()))?;
        let meta = fs::metadata(path)?;
        assert!(entry.read && entry.stamp.is_some_and(|stamp| stamp.ino == meta.ino()), "{entry:?}");
    }
    Ok(())
}

/// Root's repository appears with mapped owners, which differ from run to run.
pub(crate) fn records_owners_on_disk(bench: &SandboxTestEnv) -> Result<(), Failed> {
    let (seen, trace) = run_traced(bench, &TestCommand::shell("stat -c %u tracked.txt"))?;
    let meta = fs::metadata(bench.repo.join("tracked.txt"))?;
    let entry = find(&trace, &bench.repo.join("tracked.txt")).ok_or("tracked.txt")?;
    let recorded = match entry.state {
        PathState::File { uid, gid, mode, size } => (uid, gid, mode, size),
        _ => return Err(format!("{entry:?}").into()),
    };
    assert_eq!(recorded, (meta.uid(), meta.gid(), meta.mode() & 0o7777, meta.len()));
    assert_eq!(seen != meta.uid().to_string(), bench.role == UserRole::RootOwn);
    Ok(())
}

/// A caller observes the host as the server of the view does, although the server runs as another user.
pub(crate) fn trace_agrees_with_observation(bench: &SandboxTestEnv) -> Result<(), Failed> {
    let trace = trace_of(bench, "ls -lR . /etc/ssl > /dev/null 2>&1; cat .git/HEAD; test ! -e absent")?;
    for entry in trace.entries() {
        let path = Path::new(std::str::from_utf8(&entry.path)?);
        let (state, stamp) = observe_path(path)?;
        assert_eq!(state, entry.state, "{}", path.display());
        let is_directory = matches!(state, PathState::Directory { .. });
        assert!(is_directory || stamp == entry.stamp, "{}: {stamp:?}, {entry:?}", path.display());
        if let Some(listing) = entry.listing {
            assert_eq!(observe_listing(path)?, listing, "{}", path.display());
        }
    }
    assert!(trace.entries().iter().filter(|entry| entry.listing.is_some()).count() >= 2);
    Ok(())
}

const CHANGES_SCRIPT: &str = "
    echo new > new.txt; echo more >> tracked.txt; rm src/lib.rs; mv two.txt renamed.txt; chmod 600 three.txt
    ln -s three.txt to_three; ln four.txt hard; mkdir -p dir/sub; echo x > dir/sub/x; mv deep deeper; rm -r gone
    : > five.txt; touch -d 2001-01-01 six.txt; mkfifo pipe; rm link; ln -s /usr link
    stat -c '%n %s %f %h' * src deeper/* | sort; cat tracked.txt deeper/file; ls -A";

/// Describes the files of a layer: paths, types, modes, sizes and targets.
fn describe_layer(layer: &Layer<Sealed>) -> Result<String, Failed> {
    let number = std::os::fd::AsRawFd::as_raw_fd(&layer.upper().as_fd());
    let at = format!("/proc/{}/fd/{number}", std::process::id());
    let list = "find . -printf '%P %y %m %l %U %D\\n' -name '*.txt' -type f -exec sha256sum {} \\; | sort";
    let found = Command::new("sh").args(["-c", &format!("cd {at}/ && {list}")]).output()?;
    assert!(found.status.success(), "{found:?}");
    Ok(String::from_utf8(found.stdout)?)
}

pub(crate) fn step_changes_the_tree_as_without_a_view(bench: &SandboxTestEnv) -> Result<(), Failed> {
    for name in ["two", "three", "four", "five", "six"] {
        fs::write(bench.repo.join(format!("{name}.txt")), name)?;
    }
    for dir in ["deep", "gone"] {
        fs::create_dir(bench.repo.join(dir))?;
        fs::write(bench.repo.join(dir).join("file"), dir)?;
    }
    fs::hard_link(bench.repo.join("four.txt"), bench.repo.join("four-too.txt"))?;
    if bench.role.is_foreign() {
        environment::chown_to_user(&bench.repo)?;
    }
    let ran = |view| bench.run(&TestCommand { view, ..TestCommand::shell(CHANGES_SCRIPT) });
    let (plain, viewed) = (ran(false)?, ran(true)?);
    assert_eq!(plain.stdout_of_success(), viewed.stdout_of_success());
    assert_eq!(plain.stderr, viewed.stderr);
    assert_eq!(describe_layer(&plain.layer)?, describe_layer(&viewed.layer)?);
    // A later step sees the layer of an earlier one, whichever of them had a view.
    let script = "cat renamed.txt new.txt deeper/file; test ! -e gone && ls -A . src";
    let over = |view, layer| bench.run_over(&TestCommand { view, ..TestCommand::shell(script) }, &[layer]);
    let expected = over(false, &plain.layer)?.stdout_of_success().to_owned();
    assert_eq!(over(true, &viewed.layer)?.stdout_of_success(), expected);
    assert_eq!(over(false, &viewed.layer)?.stdout_of_success(), expected);
    Ok(())
}

/// Starts a command, waits for its first line, and returns the process that serves its view.
fn start_with_server(bench: &SandboxTestEnv, step: &TestCommand) -> Result<(RunningSandbox, Pid), Failed> {
    let (running, _layer) = bench.start(step, &[])?;
    assert_eq!(read_line(&running.stdout)?, "up");
    let [helper] = children()?.try_into().map_err(|other| format!("{other:?}"))?;
    let listed = fs::read_to_string(format!("/proc/{helper}/task/{helper}/children"))?;
    let server = listed.split_whitespace().next().ok_or("the helper has no child")?;
    Ok((running, Pid::from_raw(server.parse()?).ok_or("no process")?))
}

/// Returns whether a process is gone, or waits for its parent to reap it.
fn has_ended(process: Pid) -> bool {
    let stat = fs::read_to_string(format!("/proc/{}/stat", process.as_raw_nonzero()));
    stat.map_or(true, |stat| stat.rsplit(')').next().is_some_and(|rest| rest.trim_start().starts_with('Z')))
}

pub(crate) fn server_has_only_the_rights_of_the_step(bench: &SandboxTestEnv) -> Result<(), Failed> {
    let (running, server) = start_with_server(bench, &TestCommand::shell("echo up; exec sleep 1000"))?;
    let proc = PathBuf::from(format!("/proc/{}", server.as_raw_nonzero()));
    let status = fs::read_to_string(proc.join("status"))?;
    let field =
        |name: &str| status.lines().find_map(|line| line.strip_prefix(name)).unwrap_or_default().trim().to_owned();
    let user = bench.space.step_user(bench.launcher.host(), &bench.facts)?;
    assert_eq!(field("Uid:"), vec![user.uid().to_string(); 4].join("\t"));
    assert_eq!(field("Gid:"), vec![user.gid().to_string(); 4].join("\t"));
    assert_eq!(
        (field("CapEff:"), field("CapPrm:"), field("NoNewPrivs:")),
        ("0".repeat(16), "0".repeat(16), "1".into())
    );
    // The step's processes are in another PID namespace, so it has no id for the server.
    assert_eq!(field("NSpid:").split_whitespace().count(), 1);
    // The kernel assigns the files of an undumpable process to root, and no other user may trace it.
    assert_eq!(fs::metadata(proc.join("environ"))?.uid(), 0);
    if bench.role.is_set_up_by_root() {
        let open = fs::read_dir(proc.join("fd"))?.map(|entry| fs::read_link(entry?.path()));
        let open = open.collect::<std::io::Result<Vec<_>>>()?;
        let is_expected = |path: &PathBuf| {
            ["/dev/null", "/dev/fuse", "/fuse"].iter().any(|known| path == Path::new(known))
                || path.is_absolute() && path.exists()
        };
        let sockets = open.iter().filter(|path| path.to_string_lossy().starts_with("socket:")).count();
        assert_eq!(sockets, 1, "only the socket to the helper: {open:?}");
        assert!(open.iter().all(|path| is_expected(path) || path.to_string_lossy().starts_with("socket:")), "{open:?}");
    }
    running.kill()?;
    collect_events(&running)?;
    Ok(())
}

pub(crate) fn killed_server_invalidates_the_result(bench: &SandboxTestEnv) -> Result<(), Failed> {
    // The command exits with 0, so that only the trace decides.
    let (running, server) = start_with_server(bench, &TestCommand::shell("echo up; sleep 1000; exit 0"))?;
    rustix::process::kill_process(server, Signal::KILL)?;
    let reports = collect_events(&running)?;
    let last = reports.last();
    assert!(
        matches!(last, Some(SandboxEvent::NotStarted { fault: StartFault::Internal, message }) if message.contains("view")),
        "{reports:?}"
    );
    let trace = running.take_view_trace();
    assert!(matches!(trace, Some(Err(NoTrace::Failed { .. }))), "{trace:?}");
    drop(running);
    environment::wait_for_no_children()
}

/// The owner of a file can permit itself to read the file in the sandbox, but the server of the view cannot read it then.
pub(crate) fn wrong_answer_invalidates_the_result(bench: &SandboxTestEnv) -> Result<(), Failed> {
    rustix::fs::chmod(bench.repo.join("tracked.txt"), rustix::fs::Mode::empty())?;
    let step = TestCommand::shell("chmod 600 tracked.txt; cat tracked.txt; exit 0");
    let plain = bench.run(&TestCommand { view: false, ..step.clone() })?;
    assert_eq!(plain.stdout_of_success(), "as it was");
    let (running, _layer) = bench.start(&step, &[])?;
    let reports = collect_events(&running)?;
    assert!(
        matches!(reports.last(), Some(SandboxEvent::NotStarted { fault: StartFault::Internal, .. })),
        "{reports:?}"
    );
    let trace = running.take_view_trace();
    assert!(matches!(&trace, Some(Err(NoTrace::Failed { message })) if message.contains("tracked.txt")), "{trace:?}");
    Ok(())
}

pub(crate) fn stopped_server_does_not_delay_a_kill(bench: &SandboxTestEnv) -> Result<(), Failed> {
    let script = "echo up; i=0; while :; do test -e absent$i; i=$((i + 1)); done";
    let (running, server) = start_with_server(bench, &TestCommand::shell(script))?;
    rustix::process::kill_process(server, Signal::STOP)?;
    running.kill()?;
    let reports = collect_events(&running)?;
    assert!(matches!(reports.last(), Some(SandboxEvent::Exited { status: WaitStatus::Signal(9), .. })), "{reports:?}");
    assert!(matches!(running.take_view_trace(), Some(Err(NoTrace::NotDescribable { .. }))));
    drop(running);
    environment::wait_for_no_children()?;
    assert!(has_ended(server));
    Ok(())
}

pub(crate) fn leaves_nothing_behind(bench: &SandboxTestEnv) -> Result<(), Failed> {
    let mounts = || fs::read_to_string("/proc/self/mountinfo");
    let before = mounts()?;
    for signal in [None, Some(Signal::TERM), Some(Signal::KILL)] {
        let script = if signal.is_some() { "echo up; exec sleep 1000" } else { "echo up" };
        let step = TestCommand::shell(script);
        let server = match signal {
            None => {
                bench.run(&step)?.stdout_of_success();
                None
            }
            Some(signal) => {
                let (running, server) = start_with_server(bench, &step)?;
                if signal == Signal::TERM {
                    running.terminate()?;
                } else {
                    running.kill()?;
                }
                collect_events(&running)?;
                Some(server)
            }
        };
        environment::wait_for_no_children()?;
        assert!(server.is_none_or(has_ended), "{signal:?}");
    }
    // A helper that is killed takes the server with it.
    let (running, server) = start_with_server(bench, &TestCommand::shell("echo up; exec sleep 1000"))?;
    let [helper] = children()?.try_into().map_err(|other| format!("{other:?}"))?;
    rustix::process::kill_process(Pid::from_raw(helper.parse()?).ok_or("no process")?, Signal::KILL)?;
    collect_events(&running)?;
    assert!(has_ended(server), "the end of the attempt includes it");
    drop(running);
    assert_eq!(mounts()?, before);
    Ok(())
}

/// A path may have 4,095 bytes, so far fewer lookups than the bound on entries exceed the bound on bytes.
pub(crate) fn too_many_paths_give_no_trace(bench: &SandboxTestEnv) -> Result<(), Failed> {
    let deep = vec!["d".repeat(200); 18].join("/");
    fs::create_dir_all(bench.repo.join(&deep))?;
    let script = format!("import os; os.chdir('{deep}'); [os.path.exists('m%d' % i) for i in range(10000)]");
    let step = TestCommand::new(&["/usr/bin/python3", "-c", &script]);
    assert_eq!(reason_of(bench, &step)?, NoTrace::TooManyPaths);
    Ok(())
}

/// Runs a command that reads `tracked.txt`, calls `change` after that, and returns the reason for having no trace.
fn reason_after(
    bench: &SandboxTestEnv,
    look: &str,
    change: impl FnOnce() -> Result<(), Failed>,
) -> Result<NoTrace, Failed> {
    let mut step = TestCommand::shell(&format!("{look}; echo up; while test ! -e c/go; do sleep 0.01; done"));
    step.caches = vec![cache(bench, "c")?];
    let (running, _layer) = bench.start(&step, &[])?;
    assert_eq!(read_line(&running.stdout)?, "up");
    change()?;
    fs::write(bench.root.join("cache/go"), "")?;
    let reports = collect_events(&running)?;
    assert!(matches!(reports.last(), Some(SandboxEvent::Exited { status: WaitStatus::Code(0), .. })), "{reports:?}");
    running.take_view_trace().and_then(Result::err).ok_or_else(|| "there is a trace".into())
}

pub(crate) fn changed_file_gives_no_trace(bench: &SandboxTestEnv) -> Result<(), Failed> {
    let at = bench.repo.join("tracked.txt");
    let reason = reason_after(bench, "read line < tracked.txt", || {
        fs::write(bench.root.join("other"), "as it was\n")?;
        Ok(fs::rename(bench.root.join("other"), &at)?)
    })?;
    assert_eq!(reason, NoTrace::changed(at.as_os_str().as_encoded_bytes()));
    Ok(())
}

pub(crate) fn new_file_gives_no_trace(bench: &SandboxTestEnv) -> Result<(), Failed> {
    let new = bench.repo.join("src/new");
    let absent = reason_after(bench, "test ! -e src/new", || Ok(fs::write(&new, "")?))?;
    assert_eq!(absent, NoTrace::changed(new.as_os_str().as_encoded_bytes()));
    fs::remove_file(bench.root.join("cache/go"))?;
    let listed = reason_after(bench, "echo src/* > /dev/null", || Ok(fs::remove_file(&new)?))?;
    assert_eq!(listed, NoTrace::changed(bench.repo.join("src").as_os_str().as_encoded_bytes()));
    Ok(())
}

pub(crate) fn sockets_of_the_host_are_unreachable(bench: &SandboxTestEnv) -> Result<(), Failed> {
    let tool = bench.root.join("tool");
    fs::create_dir(&tool)?;
    let sockets = [tool.join("s"), bench.repo.join("s")];
    let _listeners = sockets.each_ref().map(|at| UnixListener::bind(at).expect("bound"));
    for at in &sockets {
        rustix::fs::chmod(at, rustix::fs::Mode::from_raw_mode(0o777))?;
    }
    let script = "import socket, sys\nfor path in sys.argv[1:]:\n    try:\n        \
        socket.socket(socket.AF_UNIX).connect(path)\n        print('connected')\n    except OSError as error:\n        \
        print(error.strerror)";
    let paths = sockets.each_ref().map(|at| at.to_str().expect("text"));
    let mut step = TestCommand::new(&["/usr/bin/python3", "-c", script, paths[0], paths[1]]);
    step.tools =
        vec![ToolMount { source: tool.clone(), at: tool, kind: ToolKind::ReadOnly, rights: AccessRights::Steps }];
    let ran = bench.run(&step)?;
    assert_eq!(ran.stdout_of_success(), "Connection refused\nConnection refused");
    Ok(())
}

/// A file has no name in a mount of its own, so the server opens it in another way.
pub(crate) fn shows_tool_that_is_a_file(bench: &SandboxTestEnv) -> Result<(), Failed> {
    let tool = bench.root.join("tool.txt");
    fs::write(&tool, "a tool\n")?;
    let mut step = TestCommand::new(&["cat", tool.to_str().ok_or("text")?]);
    step.tools = vec![ToolMount {
        source: tool.clone(),
        at: tool.clone(),
        kind: ToolKind::ReadOnly,
        rights: AccessRights::Steps,
    }];
    let (output, trace) = run_traced(bench, &step)?;
    assert_eq!(output, "a tool");
    assert!(find(&trace, &tool).is_some_and(|entry| entry.read));
    Ok(())
}

/// A private copy is in the state directory, which the server of the view cannot enter by its path.
pub(crate) fn shows_private_copy(bench: &SandboxTestEnv) -> Result<(), Failed> {
    const COPY_OWNER: &str = "1900000000";
    let (private, tree) = (bench.root.join("private"), bench.root.join("private/tree"));
    fs::create_dir(&private)?;
    assert!(Command::new("cp").arg("-a").args([&bench.repo, &tree]).status()?.success());
    if bench.role.is_set_up_by_root() {
        let chown =
            Command::new("chown").args(["-R", "-h", &format!("{COPY_OWNER}:{COPY_OWNER}")]).arg(&tree).status()?;
        assert!(chown.success());
    }
    rustix::fs::chmod(&private, rustix::fs::Mode::from_raw_mode(0o700))?;
    let host = bench.launcher.host();
    let facts = proctor_sandbox::RepoFacts::read(&tree)?.as_copy_of(&bench.facts, host)?;
    let mut policy =
        bench.policy(&TestCommand::shell("cat .git/HEAD tracked.txt; echo x > new; id -u; stat -c %u ."))?;
    policy.checkout = Some(tree.clone());
    let (running, layer) = bench.launcher.spawn(&bench.space, &[], &facts, &policy)?;
    let reports = collect_events(&running)?;
    let (seen, _) = proctor_sandbox::StepUser::choose(host, &facts)?.ids_in_sandbox();
    let expected = format!("ref: refs/heads/main\nas it was\n{seen}\n{seen}\n");
    assert_eq!(environment::read_to_end(&running.stdout)?, expected, "{reports:?}");
    let trace = running.take_view_trace().ok_or("no trace")?.map_err(|reason| reason.to_string())?;
    for below in ["tracked.txt", ".git/HEAD"] {
        let entry = find(&trace, &tree.join(below)).ok_or(below)?;
        assert!(entry.read, "{entry:?}");
    }
    assert!(!trace.entries().iter().any(|entry| entry.path.starts_with(bench.repo.as_os_str().as_encoded_bytes())));
    assert_eq!(environment::names(layer.seal().upper())?, ["new"]);
    Ok(())
}

/// Everything that the step can read of the host must come through the view.
pub(crate) fn namespace_contains_no_mount_of_the_host(bench: &SandboxTestEnv) -> Result<(), Failed> {
    let (output, _) = run_traced(bench, &TestCommand::new(&["cat", "/proc/self/mountinfo"]))?;
    let kind = |line: &str| line.split_once(" - ")?.1.split(' ').next().map(str::to_owned);
    let at = |line: &str| line.split(' ').nth(4).map(str::to_owned);
    let of_sandbox = ["fuse", "overlay", "tmpfs", "proc", "sysfs", "devpts"];
    for line in output.lines() {
        let (kind, at) = kind(line).zip(at(line)).ok_or(line)?;
        // Devices are single files of the host.
        let is_device = at.starts_with("/dev/") && at.matches('/').count() == 2;
        assert!(is_device || of_sandbox.contains(&kind.as_str()), "{line}");
    }
    let root = output.lines().find(|line| at(line).as_deref() == Some("/")).ok_or("no root")?;
    assert_eq!(kind(root).as_deref(), Some("fuse"), "{root}");
    Ok(())
}

pub(crate) fn prepared_sandbox_records_from_the_start(bench: &SandboxTestEnv) -> Result<(), Failed> {
    let step = TestCommand::shell("read line < tracked.txt; echo $line");
    bench.launcher.warm(&bench.space, &[], &bench.facts, &bench.policy(&step)?, 1)?;
    let (output, prepared) = run_traced(bench, &step)?;
    assert_eq!(output, "as it was");
    let (_, fresh) = run_traced(bench, &step)?;
    assert_eq!(entries_in_repo(bench, &prepared), entries_in_repo(bench, &fresh));
    assert!(entries_in_repo(bench, &fresh).contains(&"file tracked.txt read".to_owned()));
    Ok(())
}

pub(crate) fn runs_without_a_view_if_none_is_available(bench: &SandboxTestEnv) -> Result<(), Failed> {
    if !bench.role.is_set_up_by_root() {
        // Another user cannot hide the device from itself.
        return Ok(());
    }
    environment::enter_mount_namespace()?;
    nix::mount::mount(Some("/dev/null"), "/dev/fuse", None::<&str>, nix::mount::MsFlags::MS_BIND, None::<&str>)?;
    let bench = SandboxTestEnv::with_existing_files(bench.role, &bench.root)?;
    let (running, _layer) = bench.start(&TestCommand::shell("cat tracked.txt"), &[])?;
    let reports = collect_events(&running)?;
    assert!(matches!(reports.last(), Some(SandboxEvent::Exited { status: WaitStatus::Code(0), .. })), "{reports:?}");
    assert_eq!(environment::read_to_end(&running.stdout)?, "as it was\n");
    let trace = running.take_view_trace();
    assert!(matches!(trace, Some(Err(NoTrace::Unavailable { .. }))), "{trace:?}");
    Ok(())
}
