//! Commands by themselves, for callers. The same engine does them as in a process of the caller's own.

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

/// How long nothing is said at most: by this a client tells a long command from a daemon that is gone.
const HEARTBEAT: Duration = Duration::from_secs(15);
/// How long the answer to a command waits for its end: one that comes in one piece wakes the client once.
const SHORT: Duration = Duration::from_millis(20);
/// How long the next sandbox waits for the answer to be sent: it takes processor time that the client needs.
const ANSWERED: Duration = Duration::from_secs(1);

/// A command that was taken on. Dropping it ends the command.
pub(crate) struct Execution {
    engine: Arc<Engine>,
    progress: Progress,
    heartbeat: Interval,
    _cancel: DropGuard,
    _answered: oneshot::Sender<()>,
}

/// What of it is told next.
enum Progress {
    Started {
        id: ExecId,
        ended: Ended,
        /// Its end, where that came first.
        came: Option<End>,
    },
    Runs(Ended),
    Ends(End),
    /// It has ended, and its output goes out first: what is left of it, and from where on.
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
    /// Takes a command on.
    ///
    /// # Errors
    /// The repository is not the caller's, the spec is not valid, the operator forbids it, too many commands wait, or
    /// the daemon is ending.
    pub(crate) async fn exec(&self, caller: Caller, submission: ExecSubmission) -> Result<Execution, Problem> {
        let started = self.started(caller, submission).await;
        started.inspect_err(|problem| self.report_refusal(caller, problem))
    }

    async fn started(&self, caller: Caller, submission: ExecSubmission) -> Result<Execution, Problem> {
        let turn = self.preparing.wait(caller).await;
        let preparing = Preparing { engines: self.engines(), execs: self.execs.clone(), caller, turn };
        let (reply, admitted) = oneshot::channel();
        tokio::task::spawn_blocking(move || preparing.admit(submission, reply));
        // Whatever panics is in the log.
        admitted.await.unwrap_or_else(|_| Err(broken()))
    }

    /// Asks a command to end. Its own answer tells the end.
    ///
    /// # Errors
    /// There is none of this name that the caller may end.
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

/// A request for a command that is looked at.
struct Preparing {
    engines: EngineFactory,
    execs: Execs,
    caller: Caller,
    /// Bounds how many requests are looked at.
    turn: Option<Turn>,
}

/// A command that was taken on.
struct Admitted {
    engine: Arc<Engine>,
    id: ExecId,
    place: Place,
    request: ExecRequest,
}

impl Preparing {
    /// Takes a command on, says so, and looks at its tree where its turn has come. Each of these blocks on the disk, and
    /// the way to another thread takes longer than most of them. Who waits for the reply may be gone; that ends the
    /// command.
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
        // It gets as far as it does without waiting on this thread. The runtime polls it anew, which wakes it from then on.
        if run.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_pending() {
            tokio::spawn(run);
        }
    }

    fn admitted(&self, mut submission: ExecSubmission) -> Result<Admitted, Problem> {
        let env = submission.env.take();
        let held = env.as_ref().map_or(0, held_bytes) + asked_bytes(&submission);
        let (engine, _, repo) = self.engines.serve(self.caller, &submission.repo, env)?;
        // What is given to the command by name may be as secret as what the caller has.
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

/// How many bytes a request holds beside the environment of its caller.
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
    /// Returns what a caller follows, and how the end is told to it.
    fn new(engine: Arc<Engine>, id: ExecId, place: &Place) -> (Self, Ending) {
        let cancel = place.cancel.clone().drop_guard();
        let (reply, ended) = oneshot::channel();
        let (answered, is_answered) = oneshot::channel();
        let mut heartbeat = tokio::time::interval_at(Instant::now() + HEARTBEAT, HEARTBEAT);
        heartbeat.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let progress = Progress::Started { id, ended, came: None };
        (Self { engine, progress, heartbeat, _cancel: cancel, _answered: answered }, Ending { reply, is_answered })
    }

    /// What is told next; `None` behind the last of it.
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

    /// Waits for the end of a short command, so that all of its answer can be sent at once.
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

    /// The next piece of its output, or its record behind the last.
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

/// What of a command that has ended is still to be told.
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

/// How the end of a command is told to the caller.
struct Ending {
    reply: oneshot::Sender<Result<ExecRecord, Problem>>,
    is_answered: oneshot::Receiver<()>,
}

impl Ending {
    /// Tells the end. Nobody may listen any more.
    fn reply(self, result: Result<ExecRecord, Problem>) -> oneshot::Receiver<()> {
        let _ = self.reply.send(result);
        self.is_answered
    }
}

/// Runs a command whose turn has come, and has a sandbox wait for the next one when the answer is sent.
async fn execute(engine: Arc<Engine>, place: Place, request: ExecRequest, looked: Option<Looked>, ending: Ending) {
    let sandbox = request.sandbox;
    let executed = match engine.execute(request, looked, place.cancel.clone()).await {
        Ok(executed) => executed,
        Err(error) => return drop(ending.reply(Err(error.problem()))),
    };
    let answered = ending.reply(Ok(executed.report.clone().into_record(sandbox)));
    let _ = tokio::time::timeout(ANSWERED, answered).await;
    // Not before: a daemon that ends waits for the commands that have a place, and this one has no answer until then.
    drop(place);
    executed.settle().await;
}
