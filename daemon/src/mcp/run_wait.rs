//! Waits for the end of a run, within the limit of a call, and sends progress to the client.

use std::time::Duration;

use proctor_core::api::{Problem, RunState, RunView};
use rmcp::RoleServer;
use rmcp::service::RequestContext;
use tokio::time::Instant;

use super::backend::Backend;
use super::last_line::LastLineTracker;
use super::progress::{ProgressCounter, ProgressSender};

/// Interval at which the last output line of a running step is sent, if the client asked for progress.
const LAST_LINE_INTERVAL: Duration = Duration::from_secs(2);

/// Result of a wait.
#[derive(Debug)]
pub(super) enum RunWaitResult {
    /// The run has ended, or the time limit was reached.
    Returned(Box<RunView>),
    /// The client cancelled the call.
    Cancelled,
}

/// Waits for the end of `run`, at most `wait`.
pub(super) async fn wait_for_end<B: Backend>(
    backend: &B,
    run: RunView,
    wait: Duration,
    context: &RequestContext<RoleServer>,
) -> Result<RunWaitResult, Problem> {
    let mut progress = ProgressSender::new(context, initial_progress(&run));
    let waiting = watch_until(backend, run, Instant::now() + wait, &mut progress);
    tokio::select! {
        biased;
        () = context.ct.cancelled() => Ok(RunWaitResult::Cancelled),
        run = waiting => run.map(|run| RunWaitResult::Returned(Box::new(run))),
    }
}

fn initial_progress(run: &RunView) -> ProgressCounter {
    let ended = run.steps.iter().filter(|step| step.outcome.is_some()).count() + run.checks.len();
    // Before a run starts, its steps are unknown; the number of pending checks is never known.
    let total = if run.steps.is_empty() { 0 } else { run.steps.len() + run.checks.len() };
    ProgressCounter::new(ended, total)
}

async fn watch_until<B: Backend>(
    backend: &B,
    mut run: RunView,
    deadline: Instant,
    progress: &mut ProgressSender,
) -> Result<RunView, Problem> {
    let (mut seen, mut last_line) = (run.seq, LastLineTracker::default());
    while run.state != RunState::Finished {
        let left = deadline.saturating_duration_since(Instant::now());
        if left.is_zero() {
            break;
        }
        let wait = if progress.is_active() { left.min(LAST_LINE_INTERVAL) } else { left };
        let started = Instant::now();
        let watched = backend.watch(&run.id, Some(seen), wait).await?;
        let events = watched.events.unwrap_or_default();
        run = watched.run;
        for logged in &events {
            seen = logged.seq;
            progress.send_event(logged).await;
        }
        if events.is_empty() {
            // Stop if the time limit was reached, or if the daemon returned early because it is shutting down.
            if wait == left || started.elapsed() < wait {
                break;
            }
            if let Some(line) = last_line.new_line_message(backend, &run).await {
                progress.send_line(&line).await;
            }
        }
    }
    Ok(run)
}
