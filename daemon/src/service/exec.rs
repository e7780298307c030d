//! Executes single commands for callers, with the same engine that a process of the caller would use.

use std::sync::Arc;
use std::task::{Context, Waker};
use std::time::Duration;

use futures_util::FutureExt as _;
use proctor_core::api::{EXEC_PIECE, ExecEvent, ExecSubmission, OutputStream, Problem, ProblemType, StreamView};
use proctor_core::exec::ExecRecord;
use proctor_core::names::ExecId;
use proctor_core::plan::{PlannedStep, ReadOnly};
use proctor_runner::{Engine, ExecRequest, Looked};
use tokio::sync::oneshot;
use tokio::time::{Instant, Interval, MissedTickBehavior};
use tokio_util::sync::DropGuard;

use super::Service;
use super::engines::EngineFactory;
use crate::caller::{Caller, held_bytes};
use crate::execs::{Admission, Execs, Place};
use crate::queue::{Claim, Worktree};
use crate::shares::Turn;

/// Maximum silence in a response. It lets a client distinguish a long command from a dead daemon.
const HEARTBEAT: Duration = Duration::from_secs(15);
/// Time that the response waits for a short command to end: a response in one piece wakes the client only once.
const SHORT: Duration = Duration::from_millis(20);
/// Maximum time that the preparation of the next sandbox waits for the response to be sent. The preparation takes
/// processor time that the client needs.
const ANSWERED: Duration = Duration::from_secs(1);

/// An accepted command. Dropping it cancels the command.
pub(crate) struct Execution {
    engine: Arc<Engine>,
    progress: Progress,
    heartbeat: Interval,
    _cancel: DropGuard,
    _answered: oneshot::Sender<()>,
}

/// State of the response to a command.
enum Progress {
    Started {
        id: ExecId,
        ended: Ended,
        /// End of the command, if it came before the first event was sent.
        came: Option<End>,
    },
    Runs(Ended),
    Ends(End),
    /// The command has ended; `left` is the output to send, from `offset` on.
    Prints {
        record: Box<ExecRecord>,
        left: Vec<(OutputStream, StreamView)>,
        offset: u64,
    },
    Over,
}

type Ended = oneshot::Receiver<Result<ExecRecord, Problem>>;
type End = Result<Result<ExecRecord, Problem>, oneshot::error::RecvError>;

impl Service {
    /// Accepts a command.
    ///
    /// # Errors
    /// The repository does not belong to the caller, the spec is invalid, the operator forbids the command, too many
    /// commands wait, or the daemon is shutting down.
    pub(crate) async fn exec(&self, caller: Caller, submission: ExecSubmission) -> Result<Execution, Problem> {
        let started = self.started(caller, submission).await;
        started.inspect_err(|problem| self.report_refusal(caller, problem))
    }

    async fn started(&self, caller: Caller, submission: ExecSubmission) -> Result<Execution, Problem> {
        let turn = self.preparing.wait(caller).await;
        let preparing = Preparing { engines: self.engines(), execs: self.execs.clone(), caller, turn };
        let (reply, admitted) = oneshot::channel();
        tokio::task::spawn_blocking(move || preparing.admit(submission, reply));
        // The panic is in the log.
        admitted.await.unwrap_or_else(|_| Err(broken()))
    }

    /// Requests cancellation of a command. The response to the command reports its end.
    ///
    /// # Errors
    /// No command with this id exists that the caller may cancel.
    pub(crate) fn cancel_exec(&self, caller: Caller, id: &ExecId) -> Result<(), Problem> {
        let may_end = |of: Caller| of == caller || self.household.sees_all(caller);
        if self.execs.cancel(id, may_end) {
            return Ok(());
        }
        let detail = format!("no command `{id}` is under way");
        Err(Problem::new(ProblemType::NotFound, detail)
            .with_hint("if it has ended, the answer to its request has the result"))
    }
}

/// A request for a command that is being prepared.
struct Preparing {
    engines: EngineFactory,
    execs: Execs,
    caller: Caller,
    /// Limits the number of requests that are prepared concurrently.
    turn: Option<Turn>,
}

/// An accepted command.
struct Admitted {
    engine: Arc<Engine>,
    id: ExecId,
    place: Place,
    request: ExecRequest,
}

impl Preparing {
    /// Accepts a command, sends the reply, and inspects the tree if the command may start immediately.
    ///
    /// All of this blocks on the disk and runs on one thread, because a switch to another thread takes longer than
    /// most of these operations. If the caller disconnects before the reply, the command is cancelled.
    fn admit(mut self, submission: ExecSubmission, reply: oneshot::Sender<Result<Execution, Problem>>) {
        let admitted = self.admitted(submission);
        drop(self.turn.take());
        let Admitted { engine, id, mut place, request } = match admitted {
            Ok(admitted) => admitted,
            Err(problem) => return drop(reply.send(Err(problem))),
        };
        let (execution, ending) = Execution::new(Arc::clone(&engine), id, &place);
        let _ = reply.send(Ok(execution));
        let turn = place.turn().now_or_never();
        let looked = matches!(turn, Some(Ok(()))).then(|| engine.look(&request)).transpose();
        let mut run = Box::pin(async move {
            let looked = match (turn, looked) {
                (Some(Err(problem)), _) => Err(problem),
                (Some(Ok(())), looked) => looked.map_err(|error| error.problem()),
                (None, _) => place.turn().await.map(|()| None),
            };
            match looked {
                Ok(looked) => execute(engine, place, request, looked, ending).await,
                Err(problem) => drop(ending.reply(Err(problem))),
            }
        });
        // Polls once on this thread to get as far as possible. If the future is pending, the runtime polls it again
        // and registers its own waker.
        if run.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_pending() {
            tokio::spawn(run);
        }
    }

    fn admitted(&self, mut submission: ExecSubmission) -> Result<Admitted, Problem> {
        let env = submission.env.take();
        let held = env.as_ref().map_or(0, held_bytes) + asked_bytes(&submission);
        let (engine, _, repo) = self.engines.serve(self.caller, &submission.repo, env)?;
        // Values set for the command may be as secret as the caller's environment.
        let given = submission.set_env.iter().map(|(name, value)| (name.as_str().to_owned(), value.clone()));
        let engine = Arc::new(engine.hiding(&given.collect()));
        let step = engine.adhoc_step(&repo, &submission.adhoc(), submission.no_spec);
        let step = step.map_err(|error| error.problem())?;
        let id = exec_id()?;
        let claim = claim_of(&step, &repo);
        let place = self.execs.admit(Admission { id: id.clone(), caller: self.caller, claim, held })?;
        let request = ExecRequest { repo, step, sandbox: submission.sandbox };
        Ok(Admitted { engine, id, place, request })
    }
}

/// Returns the size of a request in bytes, without the environment of the caller.
fn asked_bytes(submission: &ExecSubmission) -> usize {
    let words: usize = submission.cmd.words().iter().map(String::len).sum();
    let set: usize = submission.set_env.iter().map(|(name, value)| name.as_str().len() + value.len()).sum();
    words + set
}

fn claim_of(step: &PlannedStep, repo: &std::path::Path) -> Claim {
    let worktree = if step.read_only == ReadOnly::Off { Worktree::Changes } else { Worktree::Reads };
    Claim { repo: Arc::from(repo.to_string_lossy()), changeset: None, worktree }
}

fn exec_id() -> Result<ExecId, Problem> {
    let internal = |error: String| Problem::new(ProblemType::Internal, format!("a command gets no name: {error}"));
    let mut random = [0; 16];
    let filled = rustix::rand::getrandom(&mut random, rustix::rand::GetRandomFlags::empty());
    filled.map_err(|errno| internal(errno.to_string()))?;
    ExecId::new(random.map(|byte| format!("{byte:02x}")).concat()).map_err(|bad| internal(bad.to_string()))
}

impl Execution {
    /// Returns the execution that the caller follows, and the sender of its result.
    fn new(engine: Arc<Engine>, id: ExecId, place: &Place) -> (Self, Ending) {
        let cancel = place.cancel.clone().drop_guard();
        let (reply, ended) = oneshot::channel();
        let (answered, is_answered) = oneshot::channel();
        let mut heartbeat = tokio::time::interval_at(Instant::now() + HEARTBEAT, HEARTBEAT);
        heartbeat.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let progress = Progress::Started { id, ended, came: None };
        (Self { engine, progress, heartbeat, _cancel: cancel, _answered: answered }, Ending { reply, is_answered })
    }

    /// Returns the next event, or `None` after the last one.
    pub(crate) async fn next(&mut self) -> Option<ExecEvent> {
        match std::mem::replace(&mut self.progress, Progress::Over) {
            Progress::Started { id, ended, came } => {
                self.progress = came.map_or(Progress::Runs(ended), Progress::Ends);
                Some(ExecEvent::Started { id })
            }
            Progress::Runs(mut ended) => {
                let result = tokio::select! {
                    biased;
                    result = &mut ended => result,
                    _ = self.heartbeat.tick() => {
                        self.progress = Progress::Runs(ended);
                        return Some(ExecEvent::Alive);
                    }
                };
                self.end(result).await
            }
            Progress::Ends(end) => self.end(end).await,
            Progress::Prints { record, left, offset } => self.print(Prints { record, left, offset }).await,
            Progress::Over => None,
        }
    }

    /// Waits briefly for the end of the command, so that the whole response can be sent at once.
    pub(crate) async fn wait_briefly(&mut self) {
        if let Progress::Started { ended, came, .. } = &mut self.progress {
            *came = tokio::time::timeout(SHORT, ended).await.ok();
        }
    }

    async fn end(&mut self, end: End) -> Option<ExecEvent> {
        match end {
            Ok(Ok(record)) => self.print(Prints::of(record)).await,
            Ok(Err(problem)) => Some(failed(problem)),
            Err(_) => Some(failed(broken())),
        }
    }

    /// Returns the next piece of output, or the record after the last piece.
    async fn print(&mut self, prints: Prints) -> Option<ExecEvent> {
        let Prints { record, mut left, mut offset } = prints;
        while let Some((stream, view)) = left.first().cloned() {
            let part = if view.kept_bytes == 0 { None } else { Some(self.part(view, offset).await) };
            match part {
                Some(Err(problem)) => return Some(failed(problem)),
                Some(Ok((bytes, more))) if !bytes.is_empty() => {
                    offset += bytes.len() as u64;
                    if !more {
                        left.remove(0);
                        offset = 0;
                    }
                    self.progress = Progress::Prints { record, left, offset };
                    return Some(ExecEvent::output(stream, bytes));
                }
                Some(Ok(_)) | None => {
                    left.remove(0);
                    offset = 0;
                }
            }
        }
        Some(ExecEvent::Finished { record })
    }

    async fn part(&self, view: StreamView, offset: u64) -> Result<(Vec<u8>, bool), Problem> {
        let part = self.engine.output(view, offset, EXEC_PIECE).await.map_err(|error| error.problem())?;
        let (part, _) =
            part.ok_or_else(|| Problem::new(ProblemType::Gone, "the output of the command is no longer stored"))?;
        Ok((part.bytes, part.more))
    }
}

/// Remaining output of a command that has ended.
struct Prints {
    record: Box<ExecRecord>,
    left: Vec<(OutputStream, StreamView)>,
    offset: u64,
}

impl Prints {
    fn of(record: ExecRecord) -> Self {
        let (stdout, stderr) = (StreamView::from(&record.step.stdout), StreamView::from(&record.step.stderr));
        let left = vec![(OutputStream::Stdout, stdout), (OutputStream::Stderr, stderr)];
        Self { record: Box::new(record), left, offset: 0 }
    }
}

fn failed(problem: Problem) -> ExecEvent {
    ExecEvent::Failed { problem: Box::new(problem) }
}

fn broken() -> Problem {
    Problem::new(ProblemType::Internal, "a part of proctor broke while the command ran")
        .with_hint("please report it; the daemon's log has the details")
}

/// Sends the result of a command to the caller.
struct Ending {
    reply: oneshot::Sender<Result<ExecRecord, Problem>>,
    is_answered: oneshot::Receiver<()>,
}

impl Ending {
    /// Sends the result; the receiver may be gone.
    fn reply(self, result: Result<ExecRecord, Problem>) -> oneshot::Receiver<()> {
        let _ = self.reply.send(result);
        self.is_answered
    }
}

/// Runs a command whose turn has come, and prepares a sandbox for the next one after the response is sent.
async fn execute(engine: Arc<Engine>, place: Place, request: ExecRequest, looked: Option<Looked>, ending: Ending) {
    let sandbox = request.sandbox;
    let executed = match engine.execute(request, looked, place.cancel.clone()).await {
        Ok(executed) => executed,
        Err(error) => return drop(ending.reply(Err(error.problem()))),
    };
    let answered = ending.reply(Ok(executed.report.clone().into_record(sandbox)));
    let _ = tokio::time::timeout(ANSWERED, answered).await;
    // A daemon that shuts down waits for commands that hold a place, so the place is held until the response is sent.
    drop(place);
    executed.settle().await;
}
