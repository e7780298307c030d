//! Queues single commands (`exec`) and tracks the active ones. Commands have as many slots as runs, but separate
//! ones.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use proctor_core::api::{Problem, ProblemType};
use proctor_core::model::names::{ExecId, RunId};
use proctor_runner::CancellationToken;
use tokio::sync::{oneshot, watch};

use crate::caller::Caller;
use crate::queue::{FairQueue, QueueEntry, QueueFull, QueueLimits, RepoClaim};

/// Maximum number of request bytes held for all commands that have not ended.
const MAX_REQUEST_BYTES: usize = 64 << 20;

/// Handle of the commands of this daemon. Clones share the same commands.
#[derive(Debug, Clone)]
pub(crate) struct ExecQueue {
    state: Arc<Mutex<ExecQueueState>>,
    /// Number of waiting and active commands.
    count: watch::Sender<usize>,
}

#[derive(Debug)]
struct ExecQueueState {
    queue: FairQueue,
    commands: HashMap<RunId, QueuedExec>,
    request_bytes: usize,
    is_draining: bool,
}

#[derive(Debug)]
struct QueuedExec {
    caller: Caller,
    request_bytes: usize,
    cancel: CancellationToken,
    /// Signals that the command may start; `None` once it was sent.
    start_signal: Option<oneshot::Sender<()>>,
}

/// A waiting or active command. Dropping it ends the command.
#[derive(Debug)]
pub(crate) struct ExecTicket {
    queue: ExecQueue,
    /// Name of the command in the queue.
    entry: RunId,
    /// Cancels the command.
    pub(crate) cancel: CancellationToken,
    start_signal: oneshot::Receiver<()>,
}

/// A command that requests a place in the queue.
#[derive(Debug)]
pub(crate) struct ExecAdmission {
    pub(crate) id: ExecId,
    pub(crate) caller: Caller,
    pub(crate) claim: RepoClaim,
    /// Number of request bytes held for the command.
    pub(crate) request_bytes: usize,
}

impl ExecQueue {
    pub(crate) fn new(limits: QueueLimits) -> Self {
        let state = ExecQueueState {
            queue: FairQueue::new(limits),
            commands: HashMap::new(),
            request_bytes: 0,
            is_draining: false,
        };
        Self { state: Arc::new(Mutex::new(state)), count: watch::Sender::new(0) }
    }

    /// Queues a command.
    ///
    /// # Errors
    /// Too many commands wait, their requests are too large, or the daemon is shutting down.
    pub(crate) fn admit(&self, admission: ExecAdmission) -> Result<ExecTicket, Problem> {
        let ExecAdmission { id, caller, claim, request_bytes: held } = admission;
        let entry = RunId::new(id.as_str()).map_err(|bad| Problem::new(ProblemType::Internal, bad.to_string()))?;
        let (sender, turn) = oneshot::channel();
        let cancel = CancellationToken::new();
        {
            let mut state = self.state();
            if state.is_draining {
                return Err(shutting_down());
            }
            if state.request_bytes.saturating_add(held) > MAX_REQUEST_BYTES {
                return Err(too_many(&format!(
                    "the requests of waiting commands have more than {MAX_REQUEST_BYTES} bytes in total"
                )));
            }
            let pushed = state.queue.push(QueueEntry { id: entry.clone(), uid: caller.uid, claim });
            pushed.map_err(|full| too_many(&full_message(full)))?;
            state.request_bytes += held;
            let command =
                QueuedExec { caller, request_bytes: held, cancel: cancel.clone(), start_signal: Some(sender) };
            state.commands.insert(entry.clone(), command);
        }
        self.start_ready();
        Ok(ExecTicket { queue: self.clone(), entry, cancel, start_signal: turn })
    }

    /// Requests cancellation of a command. Returns whether a command with this id exists that the caller may cancel.
    pub(crate) fn cancel(&self, id: &ExecId, may_cancel: impl Fn(Caller) -> bool) -> bool {
        let state = self.state();
        let found = state.commands.get(id.as_str()).filter(|command| may_cancel(command.caller));
        found.map(|command| command.cancel.cancel()).is_some()
    }

    /// Applies new limits.
    pub(crate) fn set_limits(&self, limits: QueueLimits) {
        self.state().queue.set_limits(limits);
        self.start_ready();
    }

    /// Stops accepting commands. Waiting commands end.
    pub(crate) fn drain(&self) {
        let mut state = self.state();
        state.is_draining = true;
        state.commands.values_mut().for_each(|command| drop(command.start_signal.take()));
    }

    /// Requests cancellation of all commands.
    pub(crate) fn cancel_all(&self) {
        self.state().commands.values().for_each(|command| command.cancel.cancel());
    }

    /// Returns a receiver of the number of waiting and active commands.
    pub(crate) fn subscribe_count(&self) -> watch::Receiver<usize> {
        self.count.subscribe()
    }

    fn start_ready(&self) {
        let mut state = self.state();
        while let Some(next) = (!state.is_draining).then(|| state.queue.start_next()).flatten() {
            let turn = state.commands.get_mut(&next.id).and_then(|command| command.start_signal.take());
            // If the command no longer waits, dropping its `ExecTicket` frees the slot.
            if let Some(turn) = turn {
                let _ = turn.send(());
            }
        }
        let count = state.commands.len();
        self.count.send_if_modified(|known| std::mem::replace(known, count) != count);
    }

    fn state(&self) -> MutexGuard<'_, ExecQueueState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl ExecTicket {
    /// Waits until the command may start.
    ///
    /// # Errors
    /// The command is cancelled, or the daemon is shutting down.
    pub(crate) async fn wait_for_start(&mut self) -> Result<(), Problem> {
        tokio::select! {
            biased;
            () = self.cancel.cancelled() => Err(interrupted()),
            turn = &mut self.start_signal => turn.map_err(|_| shutting_down()),
        }
    }
}

impl Drop for ExecTicket {
    fn drop(&mut self) {
        {
            let mut state = self.queue.state();
            state.queue.remove(&self.entry);
            if let Some(command) = state.commands.remove(&self.entry) {
                state.request_bytes = state.request_bytes.saturating_sub(command.request_bytes);
            }
        }
        self.queue.start_ready();
    }
}

fn full_message(full: QueueFull) -> String {
    match full {
        QueueFull::Total(count) => format!("{count} commands wait already"),
        QueueFull::PerCaller(count) => format!("{count} of your commands are already waiting"),
    }
}

fn too_many(detail: &str) -> Problem {
    Problem::new(ProblemType::TooManyRequests, detail).with_hint("try again when some of them have ended")
}

fn shutting_down() -> Problem {
    Problem::new(ProblemType::Unavailable, "no new commands are accepted: the daemon is shutting down")
        .with_hint("try again after the daemon has restarted")
}

fn interrupted() -> Problem {
    Problem::new(ProblemType::Interrupted, "the command was interrupted while it waited for its turn")
        .with_hint("run it again")
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use futures_util::FutureExt as _;

    use super::*;
    use crate::queue::WorktreeUse;

    const LIMITS: QueueLimits = QueueLimits { active: 2, active_per_caller: 1, waiting: 3, waiting_per_caller: 2 };

    fn admission(number: u32, uid: u32, worktree: WorktreeUse) -> ExecAdmission {
        let id = ExecId::new(format!("{number:032x}")).expect("an id");
        let claim = RepoClaim { repo: Arc::from("/r"), changeset: None, worktree };
        ExecAdmission { id, caller: Caller { uid }, claim, request_bytes: 1 }
    }

    fn can_start(ticket: &mut ExecTicket) -> bool {
        ticket.wait_for_start().now_or_never().is_some_and(|turn| turn.is_ok())
    }

    #[test]
    fn starts_up_to_limit_and_next_when_one_ends() {
        let execs = ExecQueue::new(LIMITS);
        let mut tickets: Vec<ExecTicket> =
            (0..3).map(|n| execs.admit(admission(n, n % 2, WorktreeUse::Reads)).expect("room")).collect();
        assert_eq!(tickets.iter_mut().map(can_start).collect::<Vec<_>>(), [true, true, false]);
        assert_eq!(*execs.subscribe_count().borrow(), 3);
        drop(tickets.remove(0));
        assert!(can_start(&mut tickets[1]), "the first caller has a turn again");
        drop(tickets);
        assert_eq!((*execs.subscribe_count().borrow(), execs.state().request_bytes), (0, 0));
    }

    #[test]
    fn command_that_changes_worktree_runs_alone() {
        let execs = ExecQueue::new(LIMITS);
        let mut reads = execs.admit(admission(1, 1, WorktreeUse::Reads)).expect("room");
        let mut changes = execs.admit(admission(2, 2, WorktreeUse::Changes)).expect("room");
        assert!(can_start(&mut reads) && !can_start(&mut changes));
        drop(reads);
        assert!(can_start(&mut changes));
    }

    #[test]
    fn rejects_commands_above_limits() {
        let execs = ExecQueue::new(LIMITS);
        let admit = |n, uid| execs.admit(admission(n, uid, WorktreeUse::Reads));
        let _held: Vec<ExecTicket> = (0..3).map(|n| admit(n, 1).expect("one runs, two wait")).collect();
        let refused = admit(3, 1).expect_err("too many of one caller");
        assert_eq!((refused.kind, refused.detail.contains("of your")), (ProblemType::TooManyRequests, true));
        let too_large = ExecAdmission { request_bytes: MAX_REQUEST_BYTES, ..admission(4, 2, WorktreeUse::Reads) };
        assert_eq!(execs.admit(too_large).expect_err("too much").kind, ProblemType::TooManyRequests);
    }

    #[test]
    fn only_its_caller_may_cancel_a_command() {
        let execs = ExecQueue::new(LIMITS);
        let ticket = execs.admit(admission(1, 1, WorktreeUse::Reads)).expect("room");
        let id = ExecId::new(format!("{:032x}", 1)).expect("an id");
        assert!(!execs.cancel(&id, |caller| caller.uid == 2) && !ticket.cancel.is_cancelled());
        assert!(execs.cancel(&id, |caller| caller.uid == 1) && ticket.cancel.is_cancelled());
    }

    #[test]
    fn draining_daemon_starts_no_command() {
        let execs = ExecQueue::new(LIMITS);
        let _runs = execs.admit(admission(1, 1, WorktreeUse::Reads)).expect("room");
        let mut waits = execs.admit(admission(2, 1, WorktreeUse::Reads)).expect("room");
        execs.drain();
        let refused = waits.wait_for_start().now_or_never().expect("at once").expect_err("it never starts");
        assert_eq!(refused.kind, ProblemType::Unavailable);
        assert_eq!(
            execs.admit(admission(3, 2, WorktreeUse::Reads)).expect_err("draining").kind,
            ProblemType::Unavailable
        );
    }
}
