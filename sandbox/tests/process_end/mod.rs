//! Tests of the end of a command: no process of it remains, however it ends.

use std::fs;
use std::io::{BufRead, BufReader, Read};
use std::os::fd::AsFd;

use libtest_mimic::Failed;
use proctor_core::model::plan::Limit;
use proctor_sandbox::{SandboxEvent, WaitStatus};

use crate::environment::{self, SandboxTestEnv, TestCommand, collect_events, read_line};

/// A grandchild in its own session that ignores every signal and holds the pipe open.
const STUBBORN_SCRIPT: &str = r"
import os, signal, sys, time
for _ in range(3):
    if os.fork() == 0:
        os.setsid()
        if os.fork() == 0:
            for s in (signal.SIGTERM, signal.SIGHUP, signal.SIGINT): signal.signal(s, signal.SIG_IGN)
            os.write(1, b'up ' + sys.argv[1].encode() + b'\n')
            while True: time.sleep(1000)
        os._exit(0)
while True: time.sleep(1000)
";

fn stubborn_step(marker: &str) -> TestCommand {
    TestCommand::new(&["/usr/bin/python3", "-c", STUBBORN_SCRIPT, marker])
}

fn marker(name: &str) -> String {
    format!("proctor-test-{name}-{}", std::process::id())
}

pub(crate) fn kill_ends_all_processes(bench: &SandboxTestEnv) -> Result<(), Failed> {
    let marker = marker("kill");
    let (running, _layer) = bench.start(&stubborn_step(&marker), &[])?;
    for _ in 0..3 {
        read_line(&running.stdout)?;
    }
    assert!(environment::process_statuses(&marker)?.len() >= 4);
    running.kill()?;
    let reports = collect_events(&running)?;
    assert_eq!(environment::process_statuses(&marker)?, [""; 0]);
    assert!(matches!(reports.last(), Some(SandboxEvent::Exited { status: WaitStatus::Signal(9), .. })), "{reports:?}");
    let mut rest = String::new();
    fs::File::from(running.stdout.try_clone()?).read_to_string(&mut rest)?;
    Ok(())
}

/// The kernel may kill the helper for lack of memory, for instance.
pub(crate) fn killed_helper_leaves_no_process(bench: &SandboxTestEnv) -> Result<(), Failed> {
    let marker = marker("helper");
    let (running, _layer) = bench.start(&stubborn_step(&marker), &[])?;
    for _ in 0..3 {
        read_line(&running.stdout)?;
    }
    for helper in environment::children()? {
        let pid = rustix::process::Pid::from_raw(helper.parse()?).ok_or("no process")?;
        rustix::process::kill_process(pid, rustix::process::Signal::KILL)?;
    }
    let reports = collect_events(&running)?;
    assert_eq!(environment::process_statuses(&marker)?, [""; 0]);
    assert!(matches!(reports.as_slice(), [SandboxEvent::Ready { .. }]), "no report of its end: {reports:?}");
    Ok(())
}

/// Another process of the same user may stop the helper; a step cannot reach it.
pub(crate) fn stopped_helper_does_not_block(bench: &SandboxTestEnv) -> Result<(), Failed> {
    let marker = marker("stopped");
    let (running, _layer) = bench.start(&stubborn_step(&marker), &[])?;
    for _ in 0..3 {
        read_line(&running.stdout)?;
    }
    for helper in environment::children()? {
        let pid = rustix::process::Pid::from_raw(helper.parse()?).ok_or("no process")?;
        rustix::process::kill_process(pid, rustix::process::Signal::STOP)?;
    }
    drop(running);
    assert_eq!(environment::process_statuses(&marker)?, [""; 0]);
    environment::wait_for_no_children()?;
    Ok(())
}

pub(crate) fn terminate_signals_all_processes(bench: &SandboxTestEnv) -> Result<(), Failed> {
    let script = "(trap 'echo child; exit' TERM; echo up; while :; do sleep 0.01; done) & trap 'wait; echo leader; exit 3' TERM; echo up; wait";
    let (running, _layer) = bench.start(&TestCommand::shell(script), &[])?;
    assert_eq!((read_line(&running.stdout)?.as_str(), read_line(&running.stdout)?.as_str()), ("up", "up"));
    running.terminate()?;
    let reports = collect_events(&running)?;
    assert!(matches!(reports.last(), Some(SandboxEvent::Exited { status: WaitStatus::Code(3), .. })), "{reports:?}");
    let mut text = String::new();
    fs::File::from(running.stdout.try_clone()?).read_to_string(&mut text)?;
    assert_eq!(text, "child\nleader\n");
    Ok(())
}

/// The attempt ends and leaves nothing behind, whatever stage the kill interrupts.
pub(crate) fn kill_during_setup_leaves_no_process(bench: &SandboxTestEnv) -> Result<(), Failed> {
    let marker = marker("early");
    // The first delays are closer together, around the time when the helper reports its PID 1.
    let delays = (0..40).map(|n| n * 400).chain((1..20).map(|n| n * 20_000));
    for (round, delay) in delays.enumerate() {
        let (running, _layer) = bench.start(&stubborn_step(&marker), &[])?;
        for _ in 0..delay {
            std::hint::spin_loop();
        }
        if round % 2 == 0 {
            running.kill()?;
        } else {
            running.terminate()?;
        }
        if round % 2 == 1 {
            running.kill()?;
        }
        collect_events(&running)?;
        assert_eq!(environment::process_statuses(&marker)?, [""; 0], "round {round}");
    }
    Ok(())
}

pub(crate) fn command_exit_ends_all_processes(bench: &SandboxTestEnv) -> Result<(), Failed> {
    let marker = marker("orphan");
    let ran = bench.run(&TestCommand::shell(&format!(
        "(trap '' TERM HUP; exec setsid sh -c 'while :; do sleep 100; done' {marker}) & exit 4"
    )))?;
    assert_eq!(ran.status(), Some(WaitStatus::Code(4)));
    assert_eq!(environment::process_statuses(&marker)?, [""; 0]);
    Ok(())
}

pub(crate) fn dead_parent_leaves_no_process(bench: &SandboxTestEnv) -> Result<(), Failed> {
    let marker = marker("parent");
    let mut parent = environment::spawn_parent(
        bench.role,
        &format!("echo up; (exec setsid sh -c 'while :; do sleep 100; done' {marker}) & wait"),
    )?;
    let mut first = String::new();
    BufReader::new(parent.stdout.take().ok_or("no output")?).read_line(&mut first)?;
    assert_eq!(first, "up\n");
    let processes = environment::process_pidfds(&marker)?;
    assert!(!processes.is_empty());
    parent.kill()?;
    parent.wait()?;
    for process in processes {
        environment::wait_readable(process.as_fd())?;
    }
    Ok(())
}

/// Each of 20 processes creates another one and exits, so that a list of processes is outdated at once.
const FORK_AND_EXIT_SCRIPT: &str = "\
import os, signal, sys, time
end = time.monotonic() + 30

def fork():
    while time.monotonic() < end:
        try: return os.fork()
        except OSError: time.sleep(0.001)
    os._exit(0)

for _ in range(20):
    if fork() == 0:
        os.setsid()
        signal.signal(signal.SIGCHLD, signal.SIG_IGN)
        while True:
            if fork() > 0: os._exit(0)
print('on', flush=True)
if sys.argv[2] == 'wait': time.sleep(60)
";

/// Such processes neither occupy the reaper of the step nor outlive the step.
pub(crate) fn ends_processes_that_fork_and_exit(bench: &SandboxTestEnv) -> Result<(), Failed> {
    for end in ["wait", "exit"] {
        let marker = format!("proctor-test-fork-{end}-{}", std::process::id());
        let mut step = TestCommand::new(&["/usr/bin/python3", "-c", FORK_AND_EXIT_SCRIPT, &marker, end]);
        step.limits.pids = Limit::Max(4096);
        let (running, _layer) = bench.start(&step, &[])?;
        assert_eq!(read_line(&running.stdout)?, "on");
        if end == "wait" {
            running.kill()?;
        }
        let reports = collect_events(&running)?;
        if end == "exit" {
            let last = reports.last();
            assert!(matches!(last, Some(SandboxEvent::Exited { status: WaitStatus::Code(0), .. })), "{last:?}");
        }
        assert_eq!(environment::process_statuses(&marker)?, [""; 0], "{end}");
    }
    Ok(())
}
