//! Tests of processes that a command leaves behind: which ones are reported, under which names, and whether hostile
//! ones can evade the report.

use libtest_mimic::Failed;
use proctor_core::model::leak::{LeakedProcesses, MAX_COUNTED, MAX_NAMED};
use proctor_core::model::plan::{Leaks, Limit};
use proctor_sandbox::{SandboxEvent, WaitStatus};

use crate::environment::{SandboxTestEnv, TestCommand, TestOutcome};

/// Returns the processes that a command left behind, which must have exited with 0.
fn leaked_processes(ran: &TestOutcome) -> Option<&LeakedProcesses> {
    match ran.reports.last() {
        Some(SandboxEvent::Exited { status: WaitStatus::Code(0), leaked, .. }) => leaked.as_ref(),
        other => panic!("{other:?}, {}{}", ran.stdout, ran.stderr),
    }
}

fn names(leaked: &LeakedProcesses) -> Vec<&str> {
    leaked.first.iter().map(|process| process.name.as_str()).collect()
}

/// Returns a Python program that ends after its child has closed a pipe in `left()`. That function does not return.
fn leaving_process(left: &str) -> TestCommand {
    let script = format!(
        "import ctypes, os, signal, sys, threading, time\nlibc = ctypes.CDLL(None)\nbegin, end = os.pipe()\n\
         def ready(): [os.close(fd) for fd in (0, 1, 2, end)]\ndef left():\n{left}\n\
         if os.fork() == 0:\n    left()\n    os._exit(1)\nos.close(end)\nos.read(begin, 1)\nos._exit(0)"
    );
    TestCommand::new(&["/usr/bin/python3", "-c", &script])
}

pub(crate) fn reports_leftover_processes(bench: &SandboxTestEnv) -> Result<(), Failed> {
    let script = "sleep 1000 </dev/null >/dev/null 2>&1 & setsid sleep 1001 </dev/null >/dev/null 2>&1 & exit 0";
    let ran = bench.run(&TestCommand::shell(script))?;
    let found = leaked_processes(&ran).ok_or("nothing was reported")?;
    assert_eq!((found.processes, found.at_least, names(found)), (2, false, vec!["sleep", "sleep"]), "{found:?}");
    let failing = bench.run(&TestCommand::shell("sleep 1000 </dev/null >/dev/null 2>&1 & exit 3"))?;
    let last = failing.reports.last();
    assert!(
        matches!(last, Some(SandboxEvent::Exited { status: WaitStatus::Code(3), leaked: Some(_), .. })),
        "{last:?}"
    );
    Ok(())
}

pub(crate) fn reports_daemon_without_zombies(bench: &SandboxTestEnv) -> Result<(), Failed> {
    let daemon = "    os.setsid()\n    if os.fork() != 0: os._exit(0)\n    if os.fork() == 0: os._exit(0)\n    \
        ready()\n    time.sleep(1000)";
    let ran = bench.run(&leaving_process(daemon))?;
    let found = leaked_processes(&ran).ok_or("nothing was reported")?;
    assert_eq!((found.processes, names(found)), (1, vec!["python3"]), "{found:?}");
    Ok(())
}

pub(crate) fn ignores_exiting_processes(bench: &SandboxTestEnv) -> Result<(), Failed> {
    for script in ["true", "yes | head -n 1 >/dev/null", "(sleep 0.02) & exit 0", "setsid true & exit 0"] {
        let ran = bench.run(&TestCommand::shell(script))?;
        assert_eq!(leaked_processes(&ran), None, "{script}");
    }
    Ok(())
}

pub(crate) fn ignores_leftovers_if_plan_allows(bench: &SandboxTestEnv) -> Result<(), Failed> {
    let step =
        TestCommand { leaks: Leaks::Ignore, ..TestCommand::shell("sleep 1000 </dev/null >/dev/null 2>&1 & exit 0") };
    for _ in 0..3 {
        assert_eq!(leaked_processes(&bench.run(&step)?), None);
    }
    Ok(())
}

pub(crate) fn escapes_names_of_leftover_processes(bench: &SandboxTestEnv) -> Result<(), Failed> {
    let renamed =
        |name: &str| leaving_process(&format!("    libc.prctl(15, b'{name}')\n    ready()\n    time.sleep(1000)"));
    let ran = bench.run(&renamed("a) Z\\x1b[2J\\xff"))?;
    assert_eq!(leaked_processes(&ran).map(names), Some(vec!["a) Z\\x1b[2J\\xff"]));
    let ran = bench.run(&renamed("a\\n::error::b"))?;
    // Some kernels escape the newline themselves.
    let escaped = ["a\\x0a::error::b", "a\\n::error::b"];
    assert!(leaked_processes(&ran).is_some_and(|found| escaped.contains(&names(found)[0])), "{:?}", ran.reports.last());
    Ok(())
}

pub(crate) fn limits_count_of_leftover_processes(bench: &SandboxTestEnv) -> Result<(), Failed> {
    // A shell forks faster than Python.
    let many = "mkfifo /tmp/never; exec 3<>/tmp/never; i=0; \
        while [ $i -lt 1100 ]; do (read x <&3) >/dev/null 2>&1 & i=$((i + 1)); done";
    let mut step = TestCommand::shell(many);
    step.limits.pids = Limit::Max(2_000);
    let ran = bench.run(&step)?;
    let found = leaked_processes(&ran).ok_or("nothing was reported")?;
    assert_eq!((found.processes, found.at_least, found.first.len()), (MAX_COUNTED, true, MAX_NAMED), "{found:?}");
    Ok(())
}

pub(crate) fn reports_hostile_leftover_processes(bench: &SandboxTestEnv) -> Result<(), Failed> {
    let hostile = [
        ("stopped", "    ready()\n    os.kill(os.getpid(), signal.SIGSTOP)"),
        (
            "forks and ends all the time",
            // If ended processes are not reaped in time, a fork reaches the limit of processes and is retried.
            "    ready()\n    while True:\n        try: child = os.fork()\n        except OSError: continue\n        \
                if child != 0: os._exit(0)",
        ),
        (
            "its first thread has ended",
            "    threading.Thread(target=time.sleep, args=(1000,)).start()\n    ready()\n    libc.pthread_exit(None)",
        ),
        (
            "ignores signals",
            "    [signal.signal(n, signal.SIG_IGN) for n in (1, 2, 15, 17, 18)]\n    ready()\n    time.sleep(1000)",
        ),
    ];
    for (what, left) in hostile {
        let ran = bench.run(&leaving_process(left))?;
        assert!(leaked_processes(&ran).is_some_and(|found| found.processes >= 1), "{what}: {:?}", ran.reports.last());
    }
    Ok(())
}

/// The step's processes cannot signal or trace PID 1. A SIGTERM that reached it would shorten its wait and hide
/// nothing.
pub(crate) fn leftover_process_cannot_evade_pid_1(bench: &SandboxTestEnv) -> Result<(), Failed> {
    let attack = "    signal.signal(signal.SIGTERM, signal.SIG_IGN)\n    ready()\n    while True:\n        \
        libc.ptrace(16, 1, 0, 0)\n        for n in (9, 15, 19, 17, 18):\n            try: os.kill(1, n)\n            \
        except OSError: pass";
    let ran = bench.run(&leaving_process(attack))?;
    assert_eq!(leaked_processes(&ran).map(names), Some(vec!["python3"]), "{:?}", ran.reports.last());
    Ok(())
}
