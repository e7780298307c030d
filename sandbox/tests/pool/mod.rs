//! Tests of sandboxes that wait for a command: their number, which of them is evicted, how long they wait, and how
//! one that dies is replaced. Each has one helper, which is a child of this process, and the helper has one PID 1 as
//! its child.

use std::fs;
use std::os::fd::{AsFd, OwnedFd};
use std::time::{Duration, Instant};

use libtest_mimic::Failed;
use proctor_core::plan::Limit;
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};

use crate::bench::{self, Bench, Step, children, line, readable, until_closed};
use crate::caches::cache;

/// The largest number of waiting sandboxes.
const MOST: usize = 8;
/// Timeout for every wait.
const DEADLINE: Duration = Duration::from_secs(30);

/// Requests `wanted` sandboxes, and waits until exactly `then` of them are ready and no other helper exists.
fn warm(bench: &Bench, step: &Step, wanted: usize, then: usize) -> Result<Vec<String>, Failed> {
    bench.launcher.warm(&bench.space, &[], &bench.facts, &bench.policy(step)?, wanted)?;
    let began = Instant::now();
    loop {
        let (ready, helpers) = (bench.space.ready(), children()?);
        if (ready, helpers.len()) == (then, then) {
            return Ok(helpers);
        }
        if began.elapsed() > DEADLINE {
            return Err(format!("{ready} are ready and there are {helpers:?}, instead of {then}").into());
        }
        std::thread::yield_now();
    }
}

/// Returns the only child of a helper, its PID 1.
fn init_of(helper: &str) -> Result<String, Failed> {
    let listed = fs::read_to_string(format!("/proc/{helper}/task/{helper}/children"))?;
    match listed.split_whitespace().collect::<Vec<_>>().as_slice() {
        [init] => Ok((*init).to_owned()),
        other => Err(format!("the helper {helper} has the children {other:?}").into()),
    }
}

fn watched(process: &str) -> Result<OwnedFd, Failed> {
    let pid = Pid::from_raw(process.parse()?).ok_or("no process")?;
    Ok(pidfd_open(pid, PidfdFlags::empty())?)
}

pub(crate) fn eight_wait_at_most_and_the_oldest_makes_room(bench: &Bench) -> Result<(), Failed> {
    let (step, mut other) = (Step::sh("true"), Step::sh("ulimit -n"));
    other.limits.open_files = Limit::Max(99);
    let oldest = warm(bench, &step, 1, 1)?;
    let before = warm(bench, &step, MOST + 4, MOST)?;
    assert!(before.contains(&oldest[0]), "the first one waits among the eight: {oldest:?}, {before:?}");
    // Requesting existing sandboxes again creates no more.
    assert_eq!(warm(bench, &step, MOST + 4, MOST)?, before);
    let after = warm(bench, &other, 1, MOST)?;
    let gone: Vec<_> = before.iter().filter(|helper| !after.contains(helper)).collect();
    assert_eq!(gone, [&oldest[0]], "the oldest makes room for what is asked for now");
    assert_eq!(bench.run(&other)?.printed(), "99");
    assert_eq!(bench.space.ready(), MOST - 1, "the one that was made for it was taken");
    Ok(())
}

pub(crate) fn those_that_nobody_asks_for_go(bench: &Bench) -> Result<(), Failed> {
    let step = Step::sh("echo here");
    let helpers = warm(bench, &step, 3, 3)?;
    let inits = helpers.iter().map(|helper| init_of(helper)).collect::<Result<Vec<_>, _>>()?;
    let watched = inits.iter().map(|init| watched(init)).collect::<Result<Vec<_>, _>>()?;
    bench.launcher.release(DEADLINE * 1000);
    assert_eq!((bench.space.ready(), children()?), (3, helpers), "they have not waited for so long");
    bench.launcher.release(Duration::ZERO);
    assert_eq!(bench.space.ready(), 0);
    watched.iter().try_for_each(|init| readable(init.as_fd()))?;
    bench::no_children()?;
    // A sandbox that is requested afterwards is created at that time.
    assert_eq!(bench.run(&step)?.printed(), "here");
    Ok(())
}

/// A sandbox is replaced after any of its processes has died. The command runs once, in the replacement.
pub(crate) fn one_that_has_died_is_replaced(bench: &Bench) -> Result<(), Failed> {
    for (runs, is_helper) in [(1, true), (2, false)] {
        let mut step = Step::sh("echo ran >> cache/runs && wc -l < cache/runs; exec sleep 1000");
        step.caches = vec![cache(bench, "cache")?];
        let helpers = warm(bench, &step, 1, 1)?;
        let helper = watched(&helpers[0])?;
        let init = watched(&init_of(&helpers[0])?)?;
        pidfd_send_signal(if is_helper { &helper } else { &init }, Signal::KILL)?;
        // The helper ends when its PID 1 ends.
        readable(helper.as_fd())?;
        let (running, _layer) = bench.start(&step, &[])?;
        assert_eq!(line(&running.stdout)?, runs.to_string(), "it ran once");
        let now = children()?;
        assert!(now.iter().any(|helper| !helpers.contains(helper)), "in another one: {now:?}");
        assert_eq!(bench.space.ready(), 0);
        running.kill()?;
        until_closed(&running)?;
        drop(running);
        bench::no_children()?;
        assert_eq!(fs::read_to_string(bench.root.join("cache/runs"))?.lines().count(), runs, "and not once more");
    }
    Ok(())
}
