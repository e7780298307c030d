//! Executes single commands for callers, with the same engine that a process of the caller would use.

use std::sync::Arc;
use std::task::{Context, Waker};
use std::time::Duration;

use futures_util::FutureExt as _;
use proctor_core::api::{
    ExecEvent, ExecSubmission, MAX_EXEC_OUTPUT_CHUNK, OutputStream, Problem, ProblemType, StreamView,
};
use proctor_core::model::exec::ExecRecord;
use proctor_core::model::names::ExecId;
use proctor_core::model::plan::{PlannedStep, ReadOnly};
use proctor_runner::{CommandTree, Engine, ExecRequest};
use tokio::sync::oneshot;
use tokio::time::{Instant, Interval, MissedTickBehavior};
use tokio_util::sync::DropGuard;

use super::Service;
use super::engine_factory::EngineFactory;
use crate::caller::{Caller, env_size};
use crate::caller_limits::WorkPermit;
use crate::exec_queue::{ExecAdmission, ExecQueue, ExecTicket};
use crate::queue::{RepoClaim, WorktreeUse};

/// Maximum silence in a response. It lets a client distinguish a long command from a dead daemon.
const HEARTBEAT: Duration = Duration::from_secs(15);
/// Time that the response waits for a short command to end: a response in one piece wakes the client only once.
const SHORT_COMMAND_WAIT: Duration = Duration::from_millis(20);
/// Maximum time that the preparation of the next sandbox waits for the response to be sent. The preparation takes
/// processor time that the client needs.
const RESPONSE_TIMEOUT: Duration = Duration::from_secs(1);

/// An accepted command. Dropping it cancels the command.
pub(crate) struct ExecSession {
    engine: Arc<Engine>,
    progress: ExecProgress,
    heartbeat: Interval,
    _cancel: DropGuard,
    _answered: oneshot::Sender<()>,
}

/// State of the response to a command.
enum ExecProgress {
    Started {
        id: ExecId,
        ended: ExecResultReceiver,
        /// End of the command, if it came before the first event was sent.
        early_end: Option<ReceivedExecResult>,
    },
    Running(ExecResultReceiver),
    Ended(ReceivedExecResult),
    /// The command has ended; `left` is the output to send, from `offset` on.
    Printing {
        record: Box<ExecRecord>,
        left: Vec<(OutputStream, StreamView)>,
        offset: u64,
    },
    Finished,
}

type ExecResultReceiver = oneshot::Receiver<Result<ExecRecord, Problem>>;
type ReceivedExecResult = Result<Result<ExecRecord, Problem>, oneshot::error::RecvError>;

impl Service {
    /// Accepts a command.
    ///
    /// # Errors
    /// The repository does not belong to the caller, the spec is invalid, the operator forbids the command, too many
    /// commands wait, or the daemon is shutting down.
    pub(crate) async fn exec(&self, caller: Caller, submission: ExecSubmission) -> Result<ExecSession, Problem> {
        let started = self.start_exec(caller, submission).await;
        started.inspect_err(|problem| self.report_refusal(caller, problem))
    }

    async fn start_exec(&self, caller: Caller, submission: ExecSubmission) -> Result<ExecSession, Problem> {
        let turn = self.preparation_limit.acquire(caller).await;
        let preparing = ExecPreparation {
            engines: self.engine_factory(),
            exec_queue: self.exec_queue.clone(),
            caller,
            permit: turn,
        };
        let (reply, admitted) = oneshot::channel();
        tokio::task::spawn_blocking(move || preparing.admit(submission, reply));
        // The panic is in the log.
        admitted.await.unwrap_or_else(|_| Err(internal_error()))
    }

    /// Requests cancellation of a command. The response to the command reports its end.
    ///
    /// # Errors
    /// No command with this id exists that the caller may cancel.
    pub(crate) fn cancel_exec(&self, caller: Caller, id: &ExecId) -> Result<(), Problem> {
        let may_cancel = |owner: Caller| owner == caller || self.caller_policy.sees_all(caller);
        if self.exec_queue.cancel(id, may_cancel) {
            return Ok(());
        }
        let detail = format!("no command `{id}` is running");
        Err(Problem::new(ProblemType::NotFound, detail)
            .with_hint("if it has ended, the answer to its request has the result"))
    }
}

/// A request for a command that is being prepared.
struct ExecPreparation {
    engines: EngineFactory,
    exec_queue: ExecQueue,
    caller: Caller,
    /// Limits the number of requests that are prepared concurrently.
    permit: Option<WorkPermit>,
}

/// An accepted command.
struct AdmittedExec {
    engine: Arc<Engine>,
    id: ExecId,
    ticket: ExecTicket,
    request: ExecRequest,
}

impl ExecPreparation {
    /// Accepts a command, sends the reply, and inspects the tree if the command may start immediately.
    ///
    /// All of this blocks on the disk and runs on one thread, because a switch to another thread takes longer than
    /// most of these operations. If the caller disconnects before the reply, the command is cancelled.
    fn admit(mut self, submission: ExecSubmission, reply: oneshot::Sender<Result<ExecSession, Problem>>) {
        let admitted = self.prepare(submission);
        drop(self.permit.take());
        let AdmittedExec { engine, id, ticket: mut place, request } = match admitted {
            Ok(admitted) => admitted,
            Err(problem) => return drop(reply.send(Err(problem))),
        };
        let (execution, ending) = ExecSession::new(Arc::clone(&engine), id, &place);
        let _ = reply.send(Ok(execution));
        let turn = place.wait_for_start().now_or_never();
        let looked = matches!(turn, Some(Ok(()))).then(|| engine.snapshot_for_command(&request)).transpose();
        let mut run = Box::pin(async move {
            let looked = match (turn, looked) {
                (Some(Err(problem)), _) => Err(problem),
                (Some(Ok(())), looked) => looked.map_err(|error| engine.problem(&error)),
                (None, _) => place.wait_for_start().await.map(|()| None),
            };
            match looked {
                Ok(looked) => execute(engine, place, request, looked, ending).await,
                Err(problem) => drop(ending.send(Err(problem))),
            }
        });
        // Polls once on this thread to get as far as possible. If the future is pending, the runtime polls it again
        // and registers its own waker.
        if run.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_pending() {
            tokio::spawn(run);
        }
    }

    fn prepare(&self, mut submission: ExecSubmission) -> Result<AdmittedExec, Problem> {
        let env = submission.env.take();
        let held = env.as_ref().map_or(0, env_size) + request_size(&submission);
        let (engine, _, repo) = self.engines.engine_for(self.caller, &submission.repo, env)?;
        let engine = Arc::new(engine);
        let step = engine.adhoc_step(&repo, &submission.to_adhoc(), submission.no_spec);
        let step = step.map_err(|error| engine.problem(&error))?;
        let id = new_exec_id()?;
        let claim = worktree_claim(&step, &repo);
        let place =
            self.exec_queue.admit(ExecAdmission { id: id.clone(), caller: self.caller, claim, request_bytes: held })?;
        let request = ExecRequest { repo, step, sandbox: submission.sandbox };
        Ok(AdmittedExec { engine, id, ticket: place, request })
    }
}

/// Returns the size of a request in bytes, without the environment of the caller.
fn request_size(submission: &ExecSubmission) -> usize {
    let words: usize = submission.cmd.words().iter().map(String::len).sum();
    let set: usize = submission.set_env.iter().map(|(name, value)| name.as_str().len() + value.len()).sum();
    words + set
}

fn worktree_claim(step: &PlannedStep, repo: &std::path::Path) -> RepoClaim {
    let worktree = if step.read_only == ReadOnly::Off { WorktreeUse::Changes } else { WorktreeUse::Reads };
    RepoClaim { repo: Arc::from(repo.to_string_lossy()), changeset: None, worktree }
}

fn new_exec_id() -> Result<ExecId, Problem> {
    let internal =
        |error: String| Problem::new(ProblemType::Internal, format!("no id can be assigned to a command: {error}"));
    let mut random = [0; 16];
    let filled = rustix::rand::getrandom(&mut random, rustix::rand::GetRandomFlags::empty());
    filled.map_err(|errno| internal(errno.to_string()))?;
    ExecId::new(random.map(|byte| format!("{byte:02x}")).concat()).map_err(|bad| internal(bad.to_string()))
}

impl ExecSession {
    /// Returns the execution that the caller follows, and the sender of its result.
    fn new(engine: Arc<Engine>, id: ExecId, ticket: &ExecTicket) -> (Self, ExecReply) {
        let cancel = ticket.cancel.clone().drop_guard();
        let (reply, ended) = oneshot::channel();
        let (answered, is_answered) = oneshot::channel();
        let mut heartbeat = tokio::time::interval_at(Instant::now() + HEARTBEAT, HEARTBEAT);
        heartbeat.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let progress = ExecProgress::Started { id, ended, early_end: None };
        (
            Self { engine, progress, heartbeat, _cancel: cancel, _answered: answered },
            ExecReply { reply, response_sent: is_answered },
        )
    }

    /// Returns the next event, or `None` after the last one.
    pub(crate) async fn next(&mut self) -> Option<ExecEvent> {
        match std::mem::replace(&mut self.progress, ExecProgress::Finished) {
            ExecProgress::Started { id, ended, early_end: came } => {
                self.progress = came.map_or(ExecProgress::Running(ended), ExecProgress::Ended);
                Some(ExecEvent::Started { id })
            }
            ExecProgress::Running(mut ended) => {
                let result = tokio::select! {
                    biased;
                    result = &mut ended => result,
                    _ = self.heartbeat.tick() => {
                        self.progress = ExecProgress::Running(ended);
                        return Some(ExecEvent::Alive);
                    }
                };
                self.finish(result).await
            }
            ExecProgress::Ended(end) => self.finish(end).await,
            ExecProgress::Printing { record, left, offset } => {
                self.next_output(PendingOutput { record, left, offset }).await
            }
            ExecProgress::Finished => None,
        }
    }

    /// Waits briefly for the end of the command, so that the whole response can be sent at once.
    pub(crate) async fn wait_briefly(&mut self) {
        if let ExecProgress::Started { ended, early_end: came, .. } = &mut self.progress {
            *came = tokio::time::timeout(SHORT_COMMAND_WAIT, ended).await.ok();
        }
    }

    async fn finish(&mut self, end: ReceivedExecResult) -> Option<ExecEvent> {
        match end {
            Ok(Ok(record)) => self.next_output(PendingOutput::from_record(record)).await,
            Ok(Err(problem)) => Some(failed_event(problem)),
            Err(_) => Some(failed_event(internal_error())),
        }
    }

    /// Returns the next piece of output, or the record after the last piece.
    async fn next_output(&mut self, prints: PendingOutput) -> Option<ExecEvent> {
        let PendingOutput { record, mut left, mut offset } = prints;
        while let Some((stream, view)) = left.first().cloned() {
            let part = if view.kept_bytes == 0 { None } else { Some(self.read_part(view, offset).await) };
            match part {
                Some(Err(problem)) => return Some(failed_event(problem)),
                Some(Ok((bytes, more))) if !bytes.is_empty() => {
                    offset += bytes.len() as u64;
                    if !more {
                        left.remove(0);
                        offset = 0;
                    }
                    self.progress = ExecProgress::Printing { record, left, offset };
                    return Some(ExecEvent::from_output(stream, bytes));
                }
                Some(Ok(_)) | None => {
                    left.remove(0);
                    offset = 0;
                }
            }
        }
        Some(ExecEvent::Finished { record })
    }

    async fn read_part(&self, view: StreamView, offset: u64) -> Result<(Vec<u8>, bool), Problem> {
        let part =
            self.engine.read_output(view, offset, MAX_EXEC_OUTPUT_CHUNK).await.map_err(|error| error.problem())?;
        let (part, _) =
            part.ok_or_else(|| Problem::new(ProblemType::Gone, "the output of the command is no longer stored"))?;
        Ok((part.bytes, part.has_more))
    }
}

/// Remaining output of a command that has ended.
struct PendingOutput {
    record: Box<ExecRecord>,
    left: Vec<(OutputStream, StreamView)>,
    offset: u64,
}

impl PendingOutput {
    fn from_record(record: ExecRecord) -> Self {
        let (stdout, stderr) = (StreamView::from(&record.step.stdout), StreamView::from(&record.step.stderr));
        let left = vec![(OutputStream::Stdout, stdout), (OutputStream::Stderr, stderr)];
        Self { record: Box::new(record), left, offset: 0 }
    }
}

fn failed_event(problem: Problem) -> ExecEvent {
    ExecEvent::Failed { problem: Box::new(problem) }
}

fn internal_error() -> Problem {
    Problem::new(ProblemType::Internal, "an internal part of proctor failed while the command ran")
        .with_hint("please report it; the daemon's log has the details")
}

/// Sends the result of a command to the caller.
struct ExecReply {
    reply: oneshot::Sender<Result<ExecRecord, Problem>>,
    response_sent: oneshot::Receiver<()>,
}

impl ExecReply {
    /// Sends the result; the receiver may no longer exist.
    fn send(self, result: Result<ExecRecord, Problem>) -> oneshot::Receiver<()> {
        let _ = self.reply.send(result);
        self.response_sent
    }
}

/// Runs a command whose turn has come, and prepares a sandbox for the next one after the response is sent.
async fn execute(
    engine: Arc<Engine>,
    ticket: ExecTicket,
    request: ExecRequest,
    looked: Option<CommandTree>,
    reply: ExecReply,
) {
    let sandbox = request.sandbox;
    let executed = match engine.execute(request, looked, ticket.cancel.clone()).await {
        Ok(executed) => executed,
        Err(error) => return drop(reply.send(Err(engine.problem(&error)))),
    };
    let answered = reply.send(Ok(executed.result.clone().into_record(sandbox)));
    let _ = tokio::time::timeout(RESPONSE_TIMEOUT, answered).await;
    // A daemon that shuts down waits for commands that hold a place, so the place is held until the response is sent.
    drop(ticket);
    executed.keep_for_next().await;
}
