//! Measures the time from a kill until the last process of an attempt has exited. The processes are daemonized
//! grandchildren in separate sessions that ignore SIGTERM, SIGHUP and SIGINT.

use std::os::fd::OwnedFd;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use proctor_core::outcome::Outcome;
use proctor_runner::CancellationToken;
use rustix::event::{PollFd, PollFlags};
use tokio::time::Instant;

use crate::arena::{Arena, Place, run, step};
use crate::figures::{Bars, Sample, heading, millis, row};
use crate::{machine, program};

/// Numbers of grandchildren, with the maximum time until all have exited, in milliseconds.
const CROWDS: [(usize, f64); 2] = [(20, 10.0), (400, 100.0)];
/// Maximum wait until all grandchildren have started, and until they have exited after the kill.
const PATIENCE: Duration = Duration::from_secs(60);
/// Polling interval while they start.
const LOOK: Duration = Duration::from_millis(5);

/// Measures, prints, and compares the 90th percentiles with the limits. RUNS is the number of kills of each kind.
///
/// # Errors
/// A program cannot be run, or a process survives its kill.
pub(crate) fn measure(bars: &mut Bars) -> Result<()> {
    let runs: usize = program::setting("RUNS", 10)?;
    if !program::is_there("setsid") {
        println!("skipped: bench/kill needs setsid");
        return Ok(());
    }
    let place = Place::make()?;
    let arena = Arena::open(&place)?;
    println!("{}", heading(&format!("{runs} kills, milliseconds")));
    for (crowd, most) in CROWDS {
        let (mut gone, mut told) = (Sample::default(), Sample::default());
        kill(&arena, crowd, usize::MAX)?;
        for round in 0..runs {
            let end = kill(&arena, crowd, round)?;
            gone.push(end.gone);
            told.push(end.told);
        }
        println!("{}", row(&format!("{crowd} processes gone"), &gone));
        println!("{}", row("  … and the step's record", &told));
        let what = format!("milliseconds until {crowd} are gone");
        bars.at_most(&format!("{what}, median"), millis(gone.median()), most);
        bars.at_most(&format!("{what}, nine kills of ten"), millis(gone.nine_of_ten()), most);
        // The maximum has no limit, because other load on the machine can affect a single kill.
        println!("     the worst of {runs}: {:.2}", millis(gone.greatest()));
    }
    Ok(())
}

/// The durations of one kill, from the request to cancel.
struct End {
    /// Until the last process had exited, as seen from the host.
    gone: Duration,
    /// Until the runner reported the end.
    told: Duration,
}

/// Starts the grandchildren, kills them, and waits until they have exited.
fn kill(arena: &Arena, crowd: usize, round: usize) -> Result<End> {
    // An argument of `sleep` that is unique on the machine.
    let marker = format!("0.{}{round:020}", rustix::process::getpid());
    let script = format!(
        "trap '' TERM HUP INT; i=0; while [ $i -lt {crowd} ]; do (setsid -f sleep 300 {marker} &); i=$((i + 1)); done; \
         while :; do sleep 300; done"
    );
    let mut planned = step(&["sh", "-c", &script])?;
    // The grace period for a voluntary exit is not part of the measurement.
    planned.grace_ms = 0;
    let cancel = CancellationToken::new();
    let session = arena.session(cancel.clone())?;
    arena.runtime().block_on(async {
        let running = tokio::spawn(async move {
            run(&session, &planned, Outcome::Cancelled).await?;
            Ok::<_, anyhow::Error>(Instant::now())
        });
        let attempt = async { running.await.context("an attempt ended badly")? };
        let watch = async {
            let crowd = complete(&marker, crowd).await?;
            let began = Instant::now();
            // A separate thread watches the processes, because the runtime is what is measured.
            let watch = tokio::task::spawn_blocking(move || all_gone(&crowd));
            cancel.cancel();
            let gone = watch.await.context("the watch ended badly")??;
            Ok::<_, anyhow::Error>((began, gone))
        };
        let (told, (began, gone)) = tokio::try_join!(attempt, watch)?;
        let left = machine::marked(&marker)?;
        ensure!(left.is_empty(), "{} processes outlived the kill", left.len());
        Ok(End { gone: gone - began, told: told - began })
    })
}

/// Waits until all grandchildren have started.
async fn complete(marker: &str, crowd: usize) -> Result<Vec<OwnedFd>> {
    let until = Instant::now() + PATIENCE;
    loop {
        let there = machine::marked(marker)?;
        // `setsid` has the marker among its arguments until it executes `sleep`.
        if there.len() == crowd && there.iter().all(|pid| machine::is_named(*pid, "sleep")) {
            return machine::watched(&there);
        }
        ensure!(Instant::now() < until, "{} of {crowd} processes came within {PATIENCE:?}", there.len());
        // Polling is needed, because there is no event for an exec in a process of another parent.
        tokio::time::sleep(LOOK).await;
    }
}

/// Waits until every process has exited; returns the time of the last exit.
fn all_gone(crowd: &[OwnedFd]) -> Result<Instant> {
    let timeout = rustix::time::Timespec::try_from(PATIENCE)?;
    for member in crowd {
        let mut waited = [PollFd::new(member, PollFlags::IN)];
        let ready = rustix::io::retry_on_intr(|| rustix::event::poll(&mut waited, Some(&timeout)))?;
        ensure!(ready == 1, "a process is still there {PATIENCE:?} after the kill");
    }
    Ok(Instant::now())
}
