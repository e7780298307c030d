//! Tests that a trace contains everything that a command accesses, compared with other observers.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Component, Path, PathBuf};
use std::process::Command;

use libtest_mimic::Failed;
use proctor_core::model::trace::PathState;

use super::{find, run_traced};
use crate::environment::{self, SandboxTestEnv, TestCommand};

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

/// Returns the paths that a log of strace names, with whether the file was opened for its content.
fn paths_in_strace_log<'l>(log: &'l str, repo: &Path) -> Vec<(PathBuf, bool, &'l str)> {
    let mut paths = Vec::new();
    for line in log.lines().filter(|line| !line.contains("exited with") && line.contains('"')) {
        let Some((call, rest)) = line.split_once('(') else { continue };
        let Some(text) = rest.split('"').nth(1) else { continue };
        // With `-y`, a descriptor is followed by its path.
        let dir = rest.split('"').next().and_then(|before| before.split_once('<')?.1.split_once('>'));
        let dir = dir.map_or(repo, |(dir, _)| Path::new(dir));
        let is_opened = call.ends_with("openat") && !line.contains("= -1") && !line.contains("O_DIRECTORY");
        let is_content = (is_opened && !line.contains("O_PATH")) || (call.ends_with("execve") && line.contains("= 0"));
        if !text.is_empty() && !text.contains('\\') {
            paths.push((dir.join(text), is_content, line));
        }
    }
    paths
}

/// Resolves `.` and `..` of a path without its last component, as the kernel does; `None` if a directory is absent.
fn resolve_parent(path: &Path) -> Option<PathBuf> {
    match path.components().next_back()? {
        Component::Normal(name) => Some(fs::canonicalize(path.parent()?).ok()?.join(name)),
        _ => fs::canonicalize(path).ok(),
    }
}

pub(crate) fn contains_everything_that_strace_sees(bench: &SandboxTestEnv) -> Result<(), Failed> {
    let hidden = ["/proc", "/sys", "/dev", "/tmp", "/home", "/root", "/run", "/var/tmp", "/var/run"].map(Path::new);
    for command in real_tools(bench)? {
        let words = command.join(" ");
        let script = format!("strace -f -y -e trace=%file -o strace.log {words} > /tmp/out 2>&1");
        let mut step = TestCommand::shell(&script);
        step.env.insert("HOME".to_owned(), bench.home.display().to_string());
        // strace needs more than the disk limit of other tests allows, and starts a tracer for each process.
        step.limits.disk = proctor_core::model::plan::Limit::Max(64 << 20);
        let ran = bench.run(&step)?;
        ran.stdout_of_success();
        let log = environment::content(ran.layer.upper(), "strace.log")?;
        let trace = ran.trace.ok_or("no trace")?.map_err(|reason| format!("{words}: {reason}"))?;
        let (mut compared, mut read) = (0, 0);
        for (path, is_content, line) in paths_in_strace_log(&log, &bench.repo) {
            let is_shown = |path: &Path| path.starts_with(&bench.repo) || !hidden.iter().any(|at| path.starts_with(at));
            // An absent directory above it has an entry of its own.
            let Some(path) = resolve_parent(&path).filter(|path| is_shown(path)) else { continue };
            compared += 1;
            let entry = find(&trace, &path).ok_or_else(|| format!("{words}: {} ({line})", path.display()))?;
            let target = fs::canonicalize(&path).ok().filter(|target| is_content && is_shown(target));
            if let Some(target) = target {
                read += 1;
                let target_entry = find(&trace, &target).ok_or_else(|| format!("{words}: {target:?} ({line})"))?;
                assert!(target_entry.read, "{words}: {target_entry:?} ({line})");
            } else if !path.exists() && entry.state != PathState::Absent {
                return Err(format!("{words}: {entry:?} ({line})").into());
            }
        }
        assert!(compared > 20 && read > 3, "{words}: {compared} paths, {read} of them read");
    }
    Ok(())
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
