//! Tests that a trace contains everything that a command accesses, compared with other observers.

use std::collections::BTreeSet;
use std::ffi::OsString;
use std::fs;
use std::os::fd::OwnedFd;
use std::path::{Component, Path, PathBuf};
use std::process::Command;

use libtest_mimic::Failed;
use proctor_core::model::plan::{Limit, Limits};
use proctor_core::model::trace::PathState;
use rustix::fs::{Mode, OFlags, ResolveFlags, openat2};
use rustix::io::Errno;

use super::{find, run_traced};
use crate::caches::cache;
use crate::environment::{self, SandboxTestEnv, TestCommand, collect_events, read_line};

/// Commands of real tools, with files that they need.
fn real_tools(bench: &SandboxTestEnv) -> Result<Vec<&'static [&'static str]>, Failed> {
    let repo = &bench.repo;
    fs::remove_dir_all(repo.join(".git"))?;
    fs::create_dir(repo.join("pkg"))?;
    for (path, text) in [
        ("main.c", "#include <stdio.h>\n#include \"part.h\"\nint main(void) { return puts(TEXT) < 0; }\n"),
        ("part.h", "#define TEXT \"hello\"\n"),
        ("Makefile", "-include absent.mk\nmain: main.c part.h\n\tcc -o $@ main.c\n"),
        ("pkg/__init__.py", "import json, decimal\n"),
        ("script.py", "import pkg\ntry:\n    import not_there\nexcept ImportError:\n    print('ok')\n"),
        (".gitignore", "*.o\n"),
    ] {
        fs::write(repo.join(path), text)?;
    }
    let git = |arguments: &[&str]| {
        let identity = ["-c", "user.name=a", "-c", "user.email=b@c", "-c", "safe.directory=*", "-C"];
        let status = Command::new("git").args(identity).arg(repo).args(arguments).env("HOME", &bench.home).status()?;
        if status.success() { Ok(()) } else { Err(Failed::from(format!("git {arguments:?}: {status}"))) }
    };
    git(&["init", "-q"])?;
    git(&["add", "."])?;
    git(&["commit", "-q", "-m", "first"])?;
    if bench.role.is_foreign() {
        environment::chown_to_user(repo)?;
    }
    Ok(vec![
        &["git", "status", "--short"],
        &["git", "grep", "hello"],
        &["/usr/bin/python3", "script.py"],
        &["make"],
        &["cc", "-c", "main.c"],
    ])
}

/// An access to a path that strace has logged.
struct LoggedAccess<'l> {
    path: PathBuf,
    /// `true` if the content of the file was read.
    is_read: bool,
    line: &'l str,
}

/// Returns the accesses in a log of strace. A relative path counts if the log names its directory.
fn parse_strace_log(log: &str) -> Vec<LoggedAccess<'_>> {
    let mut accesses = Vec::new();
    for line in log.lines().filter(|line| !line.contains("exited with")) {
        let Some((call, rest)) = line.split_once('(') else { continue };
        // With `-y`, a descriptor is followed by its path.
        let descriptor = rest.split(['"', ',']).next().and_then(|before| before.split_once('<')?.1.split_once('>'));
        let descriptor = descriptor.map(|(path, _)| Path::new(path)).filter(|path| path.is_absolute());
        let call = call.rsplit(' ').next().unwrap_or_default();
        if ["read", "pread64", "readv", "sendfile"].contains(&call) {
            let got = line.rsplit_once(" = ").and_then(|(_, result)| result.trim().parse::<u64>().ok());
            // A memory file looks like a deleted file.
            let is_file = got.is_some_and(|bytes| bytes > 0) && !rest.contains("(deleted)");
            if let Some(path) = descriptor.filter(|_| is_file) {
                accesses.push(LoggedAccess { path: path.to_owned(), is_read: true, line });
            }
            continue;
        }
        let Some(text) = rest.split('"').nth(1).filter(|text| !text.is_empty() && !text.contains('\\')) else {
            continue;
        };
        let path = match (Path::new(text).is_absolute(), descriptor) {
            (true, _) => PathBuf::from(text),
            (false, Some(dir)) => dir.join(text),
            (false, None) => continue,
        };
        let is_read = call.starts_with("execve") && line.ends_with("= 0");
        accesses.push(LoggedAccess { path, is_read, line });
    }
    accesses
}

/// Resolves `.` and `..` of a path without its last component, as the kernel does; `None` if a directory is absent, or
/// is not a directory.
fn resolve_parent(path: &Path) -> Option<PathBuf> {
    match path.components().next_back()? {
        Component::Normal(name) => {
            Some(fs::canonicalize(path.parent()?).ok().filter(|parent| parent.is_dir())?.join(name))
        }
        _ => fs::canonicalize(path).ok(),
    }
}

/// Paths whose content in a sandbox is not the host's.
const OTHER_IN_SANDBOX: [&str; 11] =
    ["/proc", "/sys", "/dev", "/tmp", "/home", "/root", "/run", "/var/tmp", "/var/run", "/etc/passwd", "/etc/group"];

/// Runs a command below strace, and asserts that its trace contains each access that strace has logged. Returns the number
/// of compared paths, and of those that were read.
pub(super) fn compare_with_strace(bench: &SandboxTestEnv, command: &[&str]) -> Result<(usize, usize), Failed> {
    let words = command.join(" ");
    let calls = "%file,read,pread64,readv,sendfile";
    let script = format!(
        "strace -f -y -s 0 -e trace={calls} -o strace.log {words} > /tmp/out 2>&1 || {{ cat /tmp/out; exit 1; }}"
    );
    let mut step = TestCommand::shell(&script);
    step.env.insert("HOME".to_owned(), bench.home.display().to_string());
    // strace needs more than the limits of other tests allow, and starts a tracer for each process.
    step.limits =
        Limits { disk: Limit::Max(64 << 20), cpu_seconds: Limit::Max(60), pids: Limit::Max(256), ..step.limits };
    let ran = bench.run(&step)?;
    ran.stdout_of_success();
    let log = environment::content(ran.layer.upper(), "strace.log")?;
    let trace = ran.trace.ok_or("no trace")?.map_err(|reason| format!("{words}: {reason}"))?;
    let is_shown =
        |path: &Path| path.starts_with(&bench.repo) || !OTHER_IN_SANDBOX.iter().any(|at| path.starts_with(at));
    let (mut compared, mut read) = (0, 0);
    for LoggedAccess { path, is_read, line } in parse_strace_log(&log) {
        // An absent directory above it has an entry of its own.
        let Some(path) = resolve_parent(&path).filter(|path| is_shown(path)) else { continue };
        compared += 1;
        let entry = find(&trace, &path).ok_or_else(|| format!("{words}: {} ({line})", path.display()))?;
        let target = fs::canonicalize(&path).ok().filter(|target| is_read && is_shown(target));
        if let Some(target) = target {
            read += 1;
            let target_entry = find(&trace, &target).ok_or_else(|| format!("{words}: {target:?} ({line})"))?;
            assert!(target_entry.read, "{words}: {target_entry:?} ({line})");
        } else if fs::symlink_metadata(&path).is_err() && entry.state != PathState::Absent {
            return Err(format!("{words}: {entry:?} ({line})").into());
        }
    }
    Ok((compared, read))
}

pub(crate) fn contains_everything_that_strace_sees(bench: &SandboxTestEnv) -> Result<(), Failed> {
    for command in real_tools(bench)? {
        let (compared, read) = compare_with_strace(bench, command)?;
        assert!(compared > 20 && read > 3, "{command:?}: {compared} paths, {read} of them read");
    }
    Ok(())
}

/// Returns the names that the kernel has in its cache for a directory of a running command, of those that `is_candidate`
/// names: a path lookup that may not ask the server of the view finds the name, or finds that it is absent.
fn cached_names(dir: &OwnedFd, names: &BTreeSet<OsString>) -> Vec<(OsString, Option<OwnedFd>)> {
    let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let probe = |name: &OsString| match openat2(dir, name.as_os_str(), flags, Mode::empty(), ResolveFlags::CACHED) {
        Ok(found) => Some((name.clone(), Some(found))),
        Err(Errno::NOENT) => Some((name.clone(), None)),
        Err(_) => None,
    };
    names.iter().filter_map(probe).collect()
}

/// Collects the paths below a directory that the kernel has cached. Returns the number of absent ones among them.
fn harvest(dir: &OwnedFd, at: &Path, found: &mut BTreeSet<PathBuf>) -> Result<usize, Failed> {
    // The host's own names, and names that programs have looked for in another directory.
    let mut names: BTreeSet<OsString> =
        ["absent", "not_there.py", "part.h", "pkg", "main.c"].map(OsString::from).into();
    for entry in fs::read_dir(at)? {
        names.insert(entry?.file_name());
    }
    let mut absent = 0;
    for (name, file) in cached_names(dir, &names) {
        let path = at.join(name);
        let Some(file) = file else {
            absent += 1;
            found.insert(path);
            continue;
        };
        let is_mount_of_sandbox = OTHER_IN_SANDBOX.iter().any(|other| path == Path::new(other));
        if fs::symlink_metadata(&path)?.is_dir() && !is_mount_of_sandbox {
            absent += harvest(&file, &path, found)?;
        }
        found.insert(path);
    }
    Ok(absent)
}

/// The kernel caches each name that it has looked up, so its cache is a second observer: everything in it must be in
/// the trace. The cache is read from outside of the sandbox, by `openat2` with `RESOLVE_CACHED`.
pub(crate) fn contains_everything_that_the_kernel_has_cached(bench: &SandboxTestEnv) -> Result<(), Failed> {
    if !bench.role.is_set_up_by_root() {
        // Another user cannot enter the mount namespace of a step.
        return Ok(());
    }
    for (number, command) in real_tools(bench)?.into_iter().enumerate() {
        let words = command.join(" ");
        let marker = format!("proctor-test-harvest-{}-{number}", std::process::id());
        let script = format!(
            "{words} > /tmp/out 2>&1; test ! -e absent; echo up; while test ! -e c/go; do sleep 0.01; done; : {marker}"
        );
        let mut step = TestCommand::shell(&script);
        step.env.insert("HOME".to_owned(), bench.home.display().to_string());
        step.limits.disk = Limit::Max(64 << 20);
        step.caches = vec![cache(bench, "c")?];
        let (running, _layer) = bench.start(&step, &[])?;
        assert_eq!(read_line(&running.stdout)?, "up");
        let mut cached = BTreeSet::new();
        let root = root_of_step(&marker)?;
        let absent = harvest(&root, Path::new("/"), &mut cached)?;
        // The set-up covers the directory above the repository, so that the walk from the root does not find it.
        let repo = bench.repo.strip_prefix("/")?;
        let flags = OFlags::PATH | OFlags::CLOEXEC;
        let repo = rustix::fs::openat(&root, repo, flags, Mode::empty())?;
        let absent = absent + harvest(&repo, &bench.repo, &mut cached)?;
        fs::write(bench.root.join("cache/go"), "")?;
        collect_events(&running)?;
        let trace = running.take_view_trace().ok_or("no trace")?.map_err(|reason| format!("{words}: {reason}"))?;
        let missing: Vec<_> = cached.iter().filter(|path| find(&trace, path).is_none()).collect();
        assert!(missing.is_empty(), "{words}: {missing:?}");
        assert!(cached.len() > 30 && absent > 0, "{words}: {} paths, {absent} of them absent", cached.len());
        fs::remove_file(bench.root.join("cache/go"))?;
    }
    Ok(())
}

/// Opens the root directory of the running step whose command line contains `marker`.
fn root_of_step(marker: &str) -> Result<OwnedFd, Failed> {
    for entry in fs::read_dir("/proc")? {
        let process = entry?.path();
        // The process may have ended in the meantime.
        let Ok(words) = fs::read(process.join("cmdline")) else { continue };
        if String::from_utf8_lossy(&words).contains(marker) {
            let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
            return Ok(rustix::fs::open(process.join("root"), flags, Mode::empty())?);
        }
    }
    Err(format!("no process has `{marker}` in its command line").into())
}

/// A program of which one thread changes a path while the kernel reads it. It prints the content of each file that it has
/// read, until it has read 20 different files.
const RACE_PROGRAM: &str = r#"
#include <fcntl.h>
#include <pthread.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
static volatile char path[64];
static volatile int stop;
static void *flip(void *unused) {
    for (unsigned i = 0; !stop; i++) { path[5] = '0' + i % 10; path[6] = '0' + i / 10 % 10; }
    return unused;
}
int main(void) {
    strcpy((char *)path, "data/00");
    pthread_t thread;
    pthread_create(&thread, 0, flip, 0);
    int distinct = 0, seen[100] = {0};
    for (int i = 0; i < 3000 || distinct < 20; i++) {
        char text[16] = {0};
        int fd = open((char *)path, O_RDONLY);
        if (fd >= 0 && read(fd, text, 15) > 0 && !seen[atoi(text) % 100]++) { distinct++; puts(text); }
        close(fd);
        if (i % 16 == 0) sched_yield();
    }
    stop = 1;
    return pthread_join(thread, 0);
}
"#;

pub(crate) fn path_that_changes_during_a_call_is_recorded(bench: &SandboxTestEnv) -> Result<(), Failed> {
    fs::create_dir(bench.repo.join("data"))?;
    for number in 0..100 {
        fs::write(bench.repo.join(format!("data/{number:02}")), format!("{number:02}"))?;
    }
    fs::write(bench.root.join("race.c"), RACE_PROGRAM)?;
    let program = bench.repo.join("race");
    let compiled =
        Command::new("cc").arg("-pthread").arg("-o").arg(&program).arg(bench.root.join("race.c")).status()?;
    assert!(compiled.success());
    let (output, trace) = run_traced(bench, &TestCommand::new(&["./race"]))?;
    let seen: BTreeSet<&str> = output.lines().collect();
    assert!(seen.len() >= 20, "{seen:?}");
    for name in seen {
        let entry = find(&trace, &bench.repo.join("data").join(name));
        assert!(entry.is_some_and(|entry| entry.read), "{name}: {entry:?}");
    }
    Ok(())
}
