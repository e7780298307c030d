//! Conducts one run from the first to the last event of its record. The run waits for its turn, the engine executes
//! it, and each event is logged before readers see it. The last event is always [`RunEvent::RunFinished`], exactly
//! once.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::Duration;

use proctor_core::api::{LoggedEvent, Problem, ProblemType};
use proctor_core::decision::verdict::{EXIT_INCONCLUSIVE, EXIT_INTERRUPTED, InconclusiveReason, Verdict};
use proctor_core::model::event::RunEvent;
use proctor_runner::{CancellationToken, Clock, Engine, FinishedRun, PatchResult, RevocablePass, RunRequest};
use tokio::runtime::Handle;
use tokio::sync::{mpsc, oneshot};
use tokio::task::JoinError;
use tokio::time::Instant;

use super::admission_refusal::{AdmissionRefusal, manager_gone};
use super::live_run::LiveRun;
use crate::history::{History, HistoryError, NewRun, RunLogWriter};
use crate::queue::RepoClaim;

/// Capacity of the channel for engine events that are not logged yet; the engine waits while it is full.
const EVENT_CAPACITY: usize = 64;
/// Who cancels a run whose events cannot be logged.
const UNRECORDABLE: &str = "proctor: the run cannot be recorded";

/// One run to execute.
pub struct RunJob {
    /// First record of the run, written when the run is accepted.
    pub new: NewRun,
    /// Part of the repository that the run reserves.
    pub claim: RepoClaim,
    /// Engine configured for the caller.
    pub engine: Arc<Engine>,
    /// Request to the engine.
    pub request: RunRequest,
    /// Number of request bytes held for the run.
    pub request_bytes: usize,
}

/// State of one run while it is active.
pub(super) struct RunTask {
    pub(super) history: History,
    pub(super) live: Arc<LiveRun>,
    pub(super) new: NewRun,
    pub(super) engine: Arc<Engine>,
    pub(super) request: RunRequest,
}

impl RunTask {
    /// Executes the run. `turn` resolves when the run may start.
    pub(super) async fn run(self, turn: oneshot::Receiver<()>) {
        let Self { history, live, new, engine, mut request } = self;
        request.live = Some(live.outputs().clone());
        let record = match RunRecorder::begin(&history, &live, new).await {
            Ok(record) => record,
            Err(refused) => return live.mark_refused(refused),
        };
        let cancelled = tokio::select! {
            biased;
            () = live.token().cancelled() => true,
            // Without an owner, no run starts.
            turn = turn => turn.is_err(),
        };
        let run = |events, cancel, passed| async move {
            let ended = engine.run_revocably(request, events, cancel, passed).await;
            ended.map_err(|error| engine.problem(&error))
        };
        // One thread writes the whole log. Handing over each event to another thread would take longer than the writes.
        let (recorder, readers) = (Handle::current(), Arc::clone(&live));
        let recording = tokio::task::spawn_blocking(move || {
            let (record, course) = match cancelled {
                true => (record, RunExecution::NotStarted),
                false => recorder.block_on(execute(record, &readers, run)),
            };
            record.conclude(course, &history, &readers);
        });
        if let Err(error) = recording.await {
            tracing::error!(run = %live.id(), %error, "recording a run failed unexpectedly");
            live.cancel(UNRECORDABLE.to_owned());
            end_unrecorded(&live, "the end of the run could not be recorded: an internal error occurred");
        }
        live.mark_ended();
    }
}

/// Result of the engine, with its error as the caller sees it, or its panic.
type EngineOutcome = Result<Result<FinishedRun, Problem>, JoinError>;

/// How the execution of a run ended.
#[expect(clippy::large_enum_variant, reason = "only one value exists for each run, for a short time")]
enum RunExecution {
    /// The run was cancelled before it started.
    NotStarted,
    /// The engine finished.
    Ran {
        /// Result of the engine.
        how: Box<EngineOutcome>,
        /// Last event of the run. It is logged after all documents of the run are published.
        end: Option<RunEvent>,
        /// Duration of the execution.
        took: Duration,
        /// Pass that the engine may have recorded, whatever its result.
        pass: Option<RevocablePass>,
    },
}

/// Executes the run in the engine by `run`, and logs its events. The writes block, so the caller provides a thread of its
/// own.
async fn execute<R>(
    mut record: RunRecorder,
    live: &Arc<LiveRun>,
    run: impl FnOnce(mpsc::Sender<RunEvent>, CancellationToken, oneshot::Sender<RevocablePass>) -> R,
) -> (RunRecorder, RunExecution)
where
    R: Future<Output = Result<FinishedRun, Problem>> + Send + 'static,
{
    let began = Instant::now();
    let (sender, mut events) = mpsc::channel(EVENT_CAPACITY);
    let (passed, mut pass) = oneshot::channel();
    // A separate task turns a panic into a result.
    let mut running = tokio::spawn(run(sender, live.token().clone(), passed));
    let (mut batch, mut end) = (Vec::new(), None);
    let how = loop {
        tokio::select! {
            biased;
            count = events.recv_many(&mut batch, EVENT_CAPACITY), if !events.is_closed() || !events.is_empty() => {
                if count > 0 {
                    record.log_batch(&mut batch, &mut end, live);
                }
            }
            how = &mut running => break how,
        }
    };
    // All events that the engine sent before it ended are in the channel now.
    while let Ok(event) = events.try_recv() {
        batch.push(event);
    }
    record.log_batch(&mut batch, &mut end, live);
    (record, RunExecution::Ran { how: Box::new(how), end, took: began.elapsed(), pass: pass.try_recv().ok() })
}

/// Writer of the log of a run.
struct RunRecorder {
    /// `None` if the writer panicked. After a failed write, the log itself does not let the run end as passed.
    log: Option<RunLogWriter>,
    has_logged_cancelling: bool,
}

impl RunRecorder {
    async fn begin(history: &History, live: &Arc<LiveRun>, new: NewRun) -> Result<Self, AdmissionRefusal> {
        let (history, live) = (history.clone(), Arc::clone(live));
        let work = tokio::task::spawn_blocking(move || {
            let log = history.begin(new.clone())?;
            live.mark_recorded(log.run().clone(), first_event(&log, new));
            Ok(Self { log: Some(log), has_logged_cancelling: false })
        });
        match work.await {
            Ok(Ok(record)) => Ok(record),
            Ok(Err(HistoryError::KeyUsed(id))) => Err(AdmissionRefusal::KeyUsed(id)),
            Ok(Err(error)) => Err(AdmissionRefusal::from(error.problem())),
            Err(error) => {
                tracing::error!(%error, "recording a run failed unexpectedly");
                Err(AdmissionRefusal::from(manager_gone()))
            }
        }
    }

    /// Logs `events` and publishes them in order. The last event of a run is kept in `end`.
    fn log_batch(&mut self, events: &mut Vec<RunEvent>, end: &mut Option<RunEvent>, live: &LiveRun) {
        for event in events.drain(..) {
            if matches!(event, RunEvent::RunFinished { .. }) {
                *end = Some(event);
                continue;
            }
            if catch_unwind(AssertUnwindSafe(|| self.log_event(event, live))).is_err() {
                tracing::error!(run = %live.id(), "logging an event failed unexpectedly");
                (self.log, self.has_logged_cancelling) = (None, true);
                live.cancel(UNRECORDABLE.to_owned());
            }
        }
    }

    /// Logs and publishes one event. If the event cannot be logged, the run is cancelled, because its record would be
    /// incomplete.
    fn log_event(&mut self, mut event: RunEvent, live: &LiveRun) {
        if let RunEvent::Cancelling { by } = &mut event {
            if std::mem::replace(&mut self.has_logged_cancelling, true) {
                return;
            }
            if let Some(known) = live.cancelled_by() {
                by.replace_range(.., known);
            }
        }
        let Some(log) = self.log.as_mut() else { return };
        let appended = catch_unwind(AssertUnwindSafe(|| log.append(event)));
        let why = match appended {
            Ok(Ok(logged)) => return live.publish([logged]),
            Ok(Err(error)) => error.to_string(),
            Err(_) => {
                // Dropping the log records the end of the run.
                self.log = None;
                "an internal task failed".to_owned()
            }
        };
        tracing::error!(run = %live.id(), why, "an event of a run cannot be logged; the run is cancelled");
        live.cancel(UNRECORDABLE.to_owned());
    }

    /// Logs and publishes the last events.
    fn conclude(mut self, course: RunExecution, history: &History, live: &LiveRun) {
        let waited = "the run was interrupted while it waited in the queue";
        let (end, pass) = match course {
            RunExecution::NotStarted => (self.log_interrupted(live, waited, None), None),
            RunExecution::Ran { how, end, took, pass } => (self.final_event(*how, end, took, history, live), pass),
        };
        self.finish(end, pass, live);
    }

    fn final_event(
        &mut self,
        how: EngineOutcome,
        end: Option<RunEvent>,
        took: Duration,
        history: &History,
        live: &LiveRun,
    ) -> RunEvent {
        match (how, end) {
            (Ok(Ok(report)), Some(end)) => {
                self.store_patch(report, history, live);
                end
            }
            (Ok(Err(problem)), _) if problem.kind == ProblemType::Interrupted => {
                self.log_interrupted(live, &problem.detail, Some(took))
            }
            (Ok(Err(problem)), _) => self.log_refusal(problem, took, live),
            (how, _) => {
                if let Err(error) = how {
                    tracing::error!(run = %live.id(), %error, "a run failed unexpectedly");
                }
                self.log_inconclusive_reason(
                    InconclusiveReason::Internal,
                    "an internal part of proctor failed, so there is no result; please report it",
                    live,
                );
                live.inconclusive_end(EXIT_INCONCLUSIVE, Some(took))
            }
        }
    }

    fn log_interrupted(&mut self, live: &LiveRun, message: &str, took: Option<Duration>) -> RunEvent {
        if let Some(by) = live.cancelled_by() {
            self.log_event(RunEvent::Cancelling { by: by.to_owned() }, live);
        }
        self.log_inconclusive_reason(InconclusiveReason::Interrupted, message, live);
        live.inconclusive_end(EXIT_INTERRUPTED, took)
    }

    fn log_refusal(&mut self, problem: Problem, took: Duration, live: &LiveRun) -> RunEvent {
        let exit_code = problem.exit_code;
        self.log_event(RunEvent::RunRefused { problem }, live);
        live.inconclusive_end(exit_code, Some(took))
    }

    fn log_inconclusive_reason(&mut self, doubt: InconclusiveReason, message: &str, live: &LiveRun) {
        self.log_event(RunEvent::Doubted { doubt, message: message.to_owned() }, live);
    }

    fn store_patch(&mut self, report: FinishedRun, history: &History, live: &LiveRun) {
        let kept = match report.patch {
            Some(PatchResult::Written(patch)) => history.store_patch(live.id(), &patch),
            Some(PatchResult::Refused(_)) | None => return,
        };
        if let Err(error) = kept {
            tracing::error!(run = %live.id(), %error, "the patch of a run cannot be stored");
        }
    }

    /// Logs and publishes the last event. If the pass cannot be recorded in the log, it is withdrawn from the status
    /// file too, so that the two never disagree.
    fn finish(self, end: RunEvent, pass: Option<RevocablePass>, live: &LiveRun) {
        let ended = self.log.map(|log| log.finish(end));
        let passed = ended.as_ref().is_some_and(|ended| ended.view.verdict == Some(Verdict::Passed));
        if let Some(Err(error)) = pass.filter(|_| !passed).map(|pass| pass.withdraw()) {
            tracing::error!(run = %live.id(), %error, "the status file of a run that did not pass still reports a pass");
        }
        match ended {
            Some(ended) => live.publish(ended.events),
            None => end_unrecorded(live, "the run could not be recorded: an internal error occurred"),
        }
    }
}

/// Returns the first event of the log of a run.
fn first_event(log: &RunLogWriter, new: NewRun) -> Arc<LoggedEvent> {
    let at = log.run().queued_at().to_owned();
    Arc::new(LoggedEvent { seq: 1, logged_at: at.clone(), event: new.into_queued_event(at) })
}

/// Publishes the end of a run whose record could not be completed. The next daemon completes the record.
pub(super) fn end_unrecorded(live: &LiveRun, message: &str) {
    let current = live.current();
    if current.view.verdict.is_some() {
        return;
    }
    let at = Clock::system().now_text();
    let doubt = RunEvent::Doubted { doubt: InconclusiveReason::Internal, message: message.to_owned() };
    let events = [doubt, live.inconclusive_end(EXIT_INCONCLUSIVE, None)].into_iter().zip(current.view.seq + 1..);
    live.publish(events.map(|(event, seq)| Arc::new(LoggedEvent { seq, logged_at: at.clone(), event })));
}

/// Returns the problem for too many held request bytes.
pub(super) fn request_bytes_exceeded(limit: usize) -> Problem {
    let detail = format!("the environments of the waiting runs have more than {limit} bytes");
    Problem::new(ProblemType::TooManyRequests, detail).with_hint("try again when some of them have ended")
}

#[cfg(test)]
mod tests;
