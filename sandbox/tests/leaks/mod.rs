//! Tests of processes that a command leaves behind: which ones are reported, under which names, and whether hostile
//! ones can evade the report.

use libtest_mimic::Failed;
use proctor_core::leak::{LeakedProcesses, MAX_COUNTED, MAX_NAMED};
use proctor_core::plan::{Leaks, Limit};
use proctor_sandbox::{Report, WaitStatus};

use crate::bench::{Bench, Ran, Step};

/// Returns the processes that a command left behind, which must have exited with 0.
fn leaked(ran: &Ran) -> Option<&LeakedProcesses> {
    match ran.reports.last() {
        Some(Report::Exited { status: WaitStatus::Code(0), leaked, .. }) => leaked.as_ref(),
        other => panic!("{other:?}, {}{}", ran.stdout, ran.stderr),
    }
}

fn names(leaked: &LeakedProcesses) -> Vec<&str> {
    leaked.first.iter().map(|process| process.name.as_str()).collect()
}

/// Returns a Python program that ends after its child has closed a pipe in `left()`. That function does not return.
fn leaving(left: &str) -> Step {
    let script = format!(
        "import ctypes, os, signal, sys, threading, time\nlibc = ctypes.CDLL(None)\nbegin, end = os.pipe()\n\
         def ready(): [os.close(fd) for fd in (0, 1, 2, end)]\ndef left():\n{left}\n\
         if os.fork() == 0:\n    left()\n    os._exit(1)\nos.close(end)\nos.read(begin, 1)\nos._exit(0)"
    );
    Step::new(&["/usr/bin/python3", "-c", &script])
}

pub(crate) fn reports_processes_that_a_command_leaves_behind(bench: &Bench) -> Result<(), Failed> {
    let script = "sleep 1000 </dev/null >/dev/null 2>&1 & setsid sleep 1001 </dev/null >/dev/null 2>&1 & exit 0";
    let ran = bench.run(&Step::sh(script))?;
    let found = leaked(&ran).ok_or("nothing was reported")?;
    assert_eq!((found.processes, found.at_least, names(found)), (2, false, vec!["sleep", "sleep"]), "{found:?}");
    let failing = bench.run(&Step::sh("sleep 1000 </dev/null >/dev/null 2>&1 & exit 3"))?;
    let last = failing.reports.last();
    assert!(matches!(last, Some(Report::Exited { status: WaitStatus::Code(3), leaked: Some(_), .. })), "{last:?}");
    Ok(())
}

pub(crate) fn reports_a_daemon_and_not_its_zombies(bench: &Bench) -> Result<(), Failed> {
    let daemon = "    os.setsid()\n    if os.fork() != 0: os._exit(0)\n    if os.fork() == 0: os._exit(0)\n    \
        ready()\n    time.sleep(1000)";
    let ran = bench.run(&leaving(daemon))?;
    let found = leaked(&ran).ok_or("nothing was reported")?;
    assert_eq!((found.processes, names(found)), (1, vec!["python3"]), "{found:?}");
    Ok(())
}

pub(crate) fn does_not_report_processes_that_are_ending(bench: &Bench) -> Result<(), Failed> {
    for script in ["true", "yes | head -n 1 >/dev/null", "(sleep 0.02) & exit 0", "setsid true & exit 0"] {
        let ran = bench.run(&Step::sh(script))?;
        assert_eq!(leaked(&ran), None, "{script}");
    }
    Ok(())
}

pub(crate) fn does_not_look_for_processes_that_the_plan_ignores(bench: &Bench) -> Result<(), Failed> {
    let step = Step { leaks: Leaks::Ignore, ..Step::sh("sleep 1000 </dev/null >/dev/null 2>&1 & exit 0") };
    for _ in 0..3 {
        assert_eq!(leaked(&bench.run(&step)?), None);
    }
    Ok(())
}

pub(crate) fn escapes_the_names_of_processes_that_are_left(bench: &Bench) -> Result<(), Failed> {
    let renamed = |name: &str| leaving(&format!("    libc.prctl(15, b'{name}')\n    ready()\n    time.sleep(1000)"));
    let ran = bench.run(&renamed("a) Z\\x1b[2J\\xff"))?;
    assert_eq!(leaked(&ran).map(names), Some(vec!["a) Z\\x1b[2J\\xff"]));
    let ran = bench.run(&renamed("a\\n::error::b"))?;
    // Some kernels escape the newline themselves.
    let escaped = ["a\\x0a::error::b", "a\\n::error::b"];
    assert!(leaked(&ran).is_some_and(|found| escaped.contains(&names(found)[0])), "{:?}", ran.reports.last());
    Ok(())
}

pub(crate) fn bounds_the_count_of_processes_that_are_left(bench: &Bench) -> Result<(), Failed> {
    let many = "    for _ in range(1100):\n        if os.fork() == 0:\n            os.close(end)\n            time.sleep(1000)\n    \
        ready()\n    time.sleep(1000)";
    let mut step = leaving(many);
    step.limits.pids = Limit::Max(2_000);
    let ran = bench.run(&step)?;
    let found = leaked(&ran).ok_or("nothing was reported")?;
    assert_eq!((found.processes, found.at_least, found.first.len()), (MAX_COUNTED, true, MAX_NAMED), "{found:?}");
    Ok(())
}

pub(crate) fn reports_hostile_processes_that_are_left(bench: &Bench) -> Result<(), Failed> {
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
        let ran = bench.run(&leaving(left))?;
        assert!(leaked(&ran).is_some_and(|found| found.processes >= 1), "{what}: {:?}", ran.reports.last());
    }
    Ok(())
}

/// The step's processes cannot signal or trace PID 1. A SIGTERM that reached it would shorten its wait and hide
/// nothing.
pub(crate) fn processes_that_are_left_cannot_hide_from_pid_1(bench: &Bench) -> Result<(), Failed> {
    let attack = "    signal.signal(signal.SIGTERM, signal.SIG_IGN)\n    ready()\n    while True:\n        \
        libc.ptrace(16, 1, 0, 0)\n        for n in (9, 15, 19, 17, 18):\n            try: os.kill(1, n)\n            \
        except OSError: pass";
    let ran = bench.run(&leaving(attack))?;
    assert_eq!(leaked(&ran).map(names), Some(vec!["python3"]), "{:?}", ran.reports.last());
    Ok(())
}
