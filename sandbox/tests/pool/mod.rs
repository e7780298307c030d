//! Tests of sandboxes that wait for a command: their number, which of them is evicted, how long they wait, and how
//! one that dies is replaced. Each has one helper, which is a child of this process, and the helper has one PID 1 as
//! its child.

use std::fs;
use std::os::fd::{AsFd, OwnedFd};
use std::time::{Duration, Instant};

use libtest_mimic::Failed;
use proctor_core::model::plan::Limit;
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};

use crate::caches::cache;
use crate::environment::{
    self, SandboxTestEnv, TestCommand, children, collect_events, read_line, runs_on_views, wait_readable,
};

/// The largest number of waiting sandboxes.
const MAX_WAITING: usize = 8;
/// Timeout for every wait.
const DEADLINE: Duration = Duration::from_secs(30);

/// Requests `wanted` sandboxes, and waits until exactly `then` of them are ready and no other helper exists.
fn warm_and_wait(
    bench: &SandboxTestEnv,
    step: &TestCommand,
    wanted: usize,
    then: usize,
) -> Result<Vec<String>, Failed> {
    bench.launcher.warm(&bench.space, &[], &bench.facts, &bench.policy(step)?, wanted)?;
    let began = Instant::now();
    loop {
        let (ready, helpers) = (bench.space.ready_count(), children()?);
        if (ready, helpers.len()) == (then, then) {
            return Ok(helpers);
        }
        if began.elapsed() > DEADLINE {
            return Err(format!("{ready} are ready and there are {helpers:?}, instead of {then}").into());
        }
        std::thread::yield_now();
    }
}

/// Returns the child of a helper that is its PID 1. On a view, the helper has one other child, the server, which it starts
/// first.
fn init_of(helper: &str) -> Result<String, Failed> {
    let listed = fs::read_to_string(format!("/proc/{helper}/task/{helper}/children"))?;
    match listed.split_whitespace().collect::<Vec<_>>().as_slice() {
        [init] if !runs_on_views() => Ok((*init).to_owned()),
        [_server, init] if runs_on_views() => Ok((*init).to_owned()),
        other => Err(format!("the helper {helper} has the children {other:?}").into()),
    }
}

fn pidfd_of(process: &str) -> Result<OwnedFd, Failed> {
    let pid = Pid::from_raw(process.parse()?).ok_or("no process")?;
    Ok(pidfd_open(pid, PidfdFlags::empty())?)
}

pub(crate) fn evicts_oldest_of_eight_waiting_sandboxes(bench: &SandboxTestEnv) -> Result<(), Failed> {
    let (step, mut other) = (TestCommand::shell("true"), TestCommand::shell("ulimit -n"));
    other.limits.open_files = Limit::Max(99);
    let oldest = warm_and_wait(bench, &step, 1, 1)?;
    let before = warm_and_wait(bench, &step, MAX_WAITING + 4, MAX_WAITING)?;
    assert!(before.contains(&oldest[0]), "the first one waits among the eight: {oldest:?}, {before:?}");
    // Requesting existing sandboxes again creates no more.
    assert_eq!(warm_and_wait(bench, &step, MAX_WAITING + 4, MAX_WAITING)?, before);
    let after = warm_and_wait(bench, &other, 1, MAX_WAITING)?;
    let gone: Vec<_> = before.iter().filter(|helper| !after.contains(helper)).collect();
    assert_eq!(gone, [&oldest[0]], "the oldest makes room for what is asked for now");
    assert_eq!(bench.run(&other)?.stdout_of_success(), "99");
    assert_eq!(bench.space.ready_count(), MAX_WAITING - 1, "the one that was made for it was taken");
    Ok(())
}

pub(crate) fn releases_unused_sandboxes(bench: &SandboxTestEnv) -> Result<(), Failed> {
    let step = TestCommand::shell("echo here");
    let helpers = warm_and_wait(bench, &step, 3, 3)?;
    let inits = helpers.iter().map(|helper| init_of(helper)).collect::<Result<Vec<_>, _>>()?;
    let watched = inits.iter().map(|init| pidfd_of(init)).collect::<Result<Vec<_>, _>>()?;
    bench.launcher.release_idle(DEADLINE * 1000);
    assert_eq!((bench.space.ready_count(), children()?), (3, helpers), "they have not waited for so long");
    bench.launcher.release_idle(Duration::ZERO);
    assert_eq!(bench.space.ready_count(), 0);
    watched.iter().try_for_each(|init| wait_readable(init.as_fd()))?;
    environment::wait_for_no_children()?;
    // A sandbox that is requested afterwards is created at that time.
    assert_eq!(bench.run(&step)?.stdout_of_success(), "here");
    Ok(())
}

/// A sandbox is replaced after any of its processes has died. The command runs once, in the replacement.
pub(crate) fn replaces_dead_sandbox(bench: &SandboxTestEnv) -> Result<(), Failed> {
    for (runs, is_helper) in [(1, true), (2, false)] {
        let mut step = TestCommand::shell("echo ran >> cache/runs && wc -l < cache/runs; exec sleep 1000");
        step.caches = vec![cache(bench, "cache")?];
        let helpers = warm_and_wait(bench, &step, 1, 1)?;
        let helper = pidfd_of(&helpers[0])?;
        let init = pidfd_of(&init_of(&helpers[0])?)?;
        pidfd_send_signal(if is_helper { &helper } else { &init }, Signal::KILL)?;
        // The helper ends when its PID 1 ends.
        wait_readable(helper.as_fd())?;
        let (running, _layer) = bench.start(&step, &[])?;
        assert_eq!(read_line(&running.stdout)?, runs.to_string(), "it ran once");
        let now = children()?;
        assert!(now.iter().any(|helper| !helpers.contains(helper)), "in another one: {now:?}");
        assert_eq!(bench.space.ready_count(), 0);
        running.kill()?;
        collect_events(&running)?;
        drop(running);
        environment::wait_for_no_children()?;
        assert_eq!(fs::read_to_string(bench.root.join("cache/runs"))?.lines().count(), runs, "and not once more");
    }
    Ok(())
}
