//! Measures the time from a kill until the last process of an attempt has exited. The processes are daemonized
//! grandchildren in separate sessions that ignore SIGTERM, SIGHUP and SIGINT.

use std::os::fd::OwnedFd;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use proctor_core::model::outcome::Outcome;
use proctor_runner::CancellationToken;
use rustix::event::{PollFd, PollFlags};
use tokio::time::Instant;

use crate::engine_fixture::{EngineFixture, ScratchRepository, plan_step, run_step};
use crate::samples::{LimitChecks, Sample, heading, millis, row};
use crate::{host_state, program};

/// Numbers of grandchildren, with the maximum time until all have exited, in milliseconds.
const PROCESS_COUNTS: [(usize, f64); 2] = [(20, 10.0), (400, 100.0)];
/// Maximum wait until all grandchildren have started, and until they have exited after the kill.
const EXIT_TIMEOUT: Duration = Duration::from_secs(60);
/// Polling interval while the processes start.
const POLL_INTERVAL: Duration = Duration::from_millis(5);

/// Measures, prints, and compares the 90th percentiles with the limits. RUNS is the number of kills of each kind.
///
/// # Errors
/// A program cannot be run, or a process survives its kill.
pub(crate) fn measure(bars: &mut LimitChecks) -> Result<()> {
    let runs: usize = program::setting("RUNS", 10)?;
    if !program::is_installed("setsid") {
        println!("skipped: bench/kill needs setsid");
        return Ok(());
    }
    let scratch = ScratchRepository::create()?;
    let arena = EngineFixture::open(&scratch)?;
    println!("{}", heading(&format!("{runs} kills, milliseconds")));
    for (crowd, max_ms) in PROCESS_COUNTS {
        let (mut exited, mut reported) = (Sample::default(), Sample::default());
        measure_kill(&arena, crowd, usize::MAX)?;
        for round in 0..runs {
            let end = measure_kill(&arena, crowd, round)?;
            exited.push(end.exited);
            reported.push(end.reported);
        }
        println!("{}", row(&format!("{crowd} processes gone"), &exited));
        println!("{}", row("  … and the step's record", &reported));
        let description = format!("milliseconds until {crowd} are gone");
        bars.at_most(&format!("{description}, median"), millis(exited.median()), max_ms);
        bars.at_most(&format!("{description}, nine kills of ten"), millis(exited.percentile_90()), max_ms);
        // The maximum has no limit, because other load on the machine can affect a single kill.
        println!("     the worst of {runs}: {:.2}", millis(exited.max()));
    }
    Ok(())
}

/// The durations of one kill, from the request to cancel.
struct KillDurations {
    /// Time until the last process had exited, as seen from the host.
    exited: Duration,
    /// Time until the runner reported the end.
    reported: Duration,
}

/// Starts the grandchildren, kills them, and waits until they have exited.
fn measure_kill(arena: &EngineFixture, crowd: usize, round: usize) -> Result<KillDurations> {
    // An argument of `sleep` that is unique on the machine.
    let marker = format!("0.{}{round:020}", rustix::process::getpid());
    let script = format!(
        "trap '' TERM HUP INT; i=0; while [ $i -lt {crowd} ]; do (setsid -f sleep 300 {marker} &); i=$((i + 1)); done; \
         while :; do sleep 300; done"
    );
    let mut planned = plan_step(&["sh", "-c", &script])?;
    // The grace period for a voluntary exit is not part of the measurement.
    planned.grace_ms = 0;
    let cancel = CancellationToken::new();
    let session = arena.session(cancel.clone())?;
    arena.runtime().block_on(async {
        let running = tokio::spawn(async move {
            run_step(&session, &planned, Outcome::Cancelled).await?;
            Ok::<_, anyhow::Error>(Instant::now())
        });
        let attempt = async { running.await.context("the task of an attempt failed")? };
        let watch = async {
            let crowd = wait_for_start(&marker, crowd).await?;
            let began = Instant::now();
            // A separate thread watches the processes, because the runtime is what is measured.
            let watch = tokio::task::spawn_blocking(move || wait_for_exit(&crowd));
            cancel.cancel();
            let gone = watch.await.context("the watching task failed")??;
            Ok::<_, anyhow::Error>((began, gone))
        };
        let (reported, (began, gone)) = tokio::try_join!(attempt, watch)?;
        let left = host_state::processes_with_argument(&marker)?;
        ensure!(left.is_empty(), "{} processes survived the kill", left.len());
        Ok(KillDurations { exited: gone - began, reported: reported - began })
    })
}

/// Waits until all grandchildren have started.
async fn wait_for_start(marker: &str, crowd: usize) -> Result<Vec<OwnedFd>> {
    let until = Instant::now() + EXIT_TIMEOUT;
    loop {
        let there = host_state::processes_with_argument(marker)?;
        // `setsid` has the marker among its arguments until it executes `sleep`.
        if there.len() == crowd && there.iter().all(|pid| host_state::is_named(*pid, "sleep")) {
            return host_state::open_pidfds(&there);
        }
        ensure!(Instant::now() < until, "only {} of {crowd} processes started within {EXIT_TIMEOUT:?}", there.len());
        // Polling is needed, because there is no event for an exec in a process of another parent.
        tokio::time::sleep(POLL_INTERVAL).await;
    }
}

/// Waits until every process has exited; returns the time of the last exit.
fn wait_for_exit(crowd: &[OwnedFd]) -> Result<Instant> {
    let timeout = rustix::time::Timespec::try_from(EXIT_TIMEOUT)?;
    for member in crowd {
        let mut waited = [PollFd::new(member, PollFlags::IN)];
        let ready = rustix::io::retry_on_intr(|| rustix::event::poll(&mut waited, Some(&timeout)))?;
        ensure!(ready == 1, "a process still exists {EXIT_TIMEOUT:?} after the kill");
    }
    Ok(Instant::now())
}
