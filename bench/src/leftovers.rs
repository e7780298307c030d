//! Checks that many timed-out attempts leave nothing behind on the machine.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, Result};
use proctor_core::model::outcome::Outcome;
use proctor_core::model::plan::PlannedStep;
use proctor_runner::{CancellationToken, Session};
use tokio::task::JoinSet;
use tokio::time::Instant;

use crate::engine_fixture::{EngineFixture, ScratchRepository, plan_step, run_step};
use crate::samples::LimitChecks;
use crate::{host_state, program};

/// Number of attempts in one session.
const SESSION_ATTEMPTS: usize = 100;
/// Time for unrelated processes to end, so that they do not count as left behind.
const EXIT_TIMEOUT: Duration = Duration::from_secs(30);
/// Polling interval.
const POLL_INTERVAL: Duration = Duration::from_millis(200);
/// Maximum number of leftovers that are named.
const MAX_NAMED: usize = 10;

/// Runs the attempts, and compares the machine before and after. RUNS is the number of attempts.
///
/// # Errors
/// A program cannot be run.
pub(crate) fn measure(bars: &mut LimitChecks) -> Result<()> {
    let runs: usize = program::setting("RUNS", 1000)?;
    if !program::is_installed("setsid") {
        println!("skipped: bench/leftovers needs setsid");
        return Ok(());
    }
    let scratch = ScratchRepository::create()?;
    // An argument of `sleep` that is unique on the machine.
    let marker = format!("0.{}000007", rustix::process::getpid());
    // These attempts create everything that is created only once: directories of the state, threads, and
    // descriptors of the runtime.
    run_attempts(&scratch, &marker, 10)?;
    let before = host_state::leftover_candidates(&scratch.state(), &marker)?;
    let began = Instant::now();
    run_attempts(&scratch, &marker, runs)?;
    println!("{runs} attempts timed out in {:.1} s", began.elapsed().as_secs_f64());
    let left = find_leftovers(&scratch, &marker, &before)?;
    for thing in left.iter().take(MAX_NAMED) {
        println!("     left: {thing}");
    }
    for kind in ["process", "child", "namespace", "mount", "cgroup", "descriptor", "file"] {
        let count = left.iter().filter(|thing| thing.split(' ').next() == Some(kind)).count();
        bars.record(&format!("no {kind} stays"), count == 0, &format!("{count} of {runs} attempts"));
    }
    Ok(())
}

/// Runs attempts in parallel, as many as there are processors, in new sessions.
fn run_attempts(scratch: &ScratchRepository, marker: &str, count: usize) -> Result<()> {
    let arena = EngineFixture::open(scratch)?;
    let parallel = std::thread::available_parallelism()?.get();
    let mut started = 0;
    while started < count {
        let session = arena.session(CancellationToken::new())?;
        let until = (started + SESSION_ATTEMPTS).min(count);
        let numbers: Vec<usize> = (started..until).collect();
        let shares = (0..parallel).map(|share| numbers.iter().copied().skip(share).step_by(parallel).collect());
        arena.runtime().block_on(run_shares(session, shares, marker))?;
        started = until;
    }
    Ok(())
}

async fn run_shares(session: Arc<Session>, shares: impl Iterator<Item = Vec<usize>>, marker: &str) -> Result<()> {
    let mut workers: JoinSet<Result<()>> = JoinSet::new();
    for share in shares {
        let (session, marker) = (Arc::clone(&session), marker.to_owned());
        workers.spawn(async move {
            for number in share {
                run_step(&session, &stubborn_step(&marker, number)?, Outcome::TimedOut).await?;
            }
            Ok(())
        });
    }
    while let Some(worker) = workers.join_next().await {
        worker.context("the task of an attempt failed")??;
    }
    Ok(())
}

/// Returns a step that starts a daemon and ignores SIGTERM. Its timeout differs with `number`, so that it hits
/// different points of the step's life.
fn stubborn_step(marker: &str, number: usize) -> Result<PlannedStep> {
    let script = format!(
        "trap '' TERM HUP INT; (setsid -f sleep 300 {marker} &); mkdir -p build/d; : >build/f; sleep 300 {marker}"
    );
    let mut planned = plan_step(&["sh", "-c", &script])?;
    planned.timeout_ms = 1 + (number as u64 * 7) % 40;
    planned.grace_ms = (number as u64 % 3) * 5;
    Ok(planned)
}

/// Returns the new objects that still exist after the wait.
fn find_leftovers(scratch: &ScratchRepository, marker: &str, before: &BTreeSet<String>) -> Result<BTreeSet<String>> {
    let until = Instant::now() + EXIT_TIMEOUT;
    let now = host_state::leftover_candidates(&scratch.state(), marker)?;
    let mut left: BTreeSet<String> = now.difference(before).cloned().collect();
    while !left.is_empty() && Instant::now() < until {
        host_state::pause(POLL_INTERVAL)?;
        let now = host_state::leftover_candidates(&scratch.state(), marker)?;
        left.retain(|thing| now.contains(thing));
    }
    Ok(left)
}
