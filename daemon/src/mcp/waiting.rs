//! Waits for the end of a run, within the limit of a call, and sends progress to the client.

use std::time::Duration;

use proctor_core::api::{Problem, RunState, RunView};
use rmcp::RoleServer;
use rmcp::service::RequestContext;
use tokio::time::Instant;

use super::backend::Backend;
use super::last_line::LastLine;
use super::progress::{Tally, Teller};

/// Interval at which the last output line of a running step is sent, if the client asked for progress.
const LINES: Duration = Duration::from_secs(2);

/// Result of a wait.
#[derive(Debug)]
pub(super) enum Waited {
    /// The run has ended, or the time is over.
    Shown(Box<RunView>),
    /// The client cancelled the call.
    CalledOff,
}

/// Waits for the end of `run`, at most `wait`.
pub(super) async fn for_end<B: Backend>(
    backend: &B,
    run: RunView,
    wait: Duration,
    context: &RequestContext<RoleServer>,
) -> Result<Waited, Problem> {
    let mut teller = Teller::new(context, tally(&run));
    let waiting = watch_until(backend, run, Instant::now() + wait, &mut teller);
    tokio::select! {
        biased;
        () = context.ct.cancelled() => Ok(Waited::CalledOff),
        run = waiting => run.map(|run| Waited::Shown(Box::new(run))),
    }
}

fn tally(run: &RunView) -> Tally {
    let ended = run.steps.iter().filter(|step| step.outcome.is_some()).count() + run.checks.len();
    // Before a run starts, its steps are unknown; the number of pending checks is never known.
    let total = if run.steps.is_empty() { 0 } else { run.steps.len() + run.checks.len() };
    Tally::new(ended, total)
}

async fn watch_until<B: Backend>(
    backend: &B,
    mut run: RunView,
    deadline: Instant,
    teller: &mut Teller,
) -> Result<RunView, Problem> {
    let (mut seen, mut last_line) = (run.seq, LastLine::default());
    while run.state != RunState::Finished {
        let left = deadline.saturating_duration_since(Instant::now());
        if left.is_zero() {
            break;
        }
        let wait = if teller.is_heard() { left.min(LINES) } else { left };
        let asked = Instant::now();
        let watched = backend.watch(&run.id, Some(seen), wait).await?;
        let news = watched.events.unwrap_or_default();
        run = watched.run;
        for logged in &news {
            seen = logged.seq;
            teller.tell(logged).await;
        }
        if news.is_empty() {
            // Stop if the time is over, or if the daemon returned early because it is shutting down.
            if wait == left || asked.elapsed() < wait {
                break;
            }
            if let Some(line) = last_line.news(backend, &run).await {
                teller.tell_line(&line).await;
            }
        }
    }
    Ok(run)
}
