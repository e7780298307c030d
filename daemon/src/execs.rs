//! Queues single commands (`exec`) and tracks the active ones. Commands have as many slots as runs, but separate
//! ones.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use proctor_core::api::{Problem, ProblemType};
use proctor_core::names::{ExecId, RunId};
use proctor_runner::CancellationToken;
use tokio::sync::{oneshot, watch};

use crate::caller::Caller;
use crate::queue::{Claim, Entry, Full, Limits, Queue};

/// Maximum number of request bytes held for all commands that have not ended.
const MAX_HELD: usize = 64 << 20;

/// Handle of the commands of this daemon. Clones share the same commands.
#[derive(Debug, Clone)]
pub(crate) struct Execs {
    state: Arc<Mutex<State>>,
    /// Number of waiting and active commands.
    counted: watch::Sender<usize>,
}

#[derive(Debug)]
struct State {
    queue: Queue,
    commands: HashMap<RunId, Command>,
    held: usize,
    is_draining: bool,
}

#[derive(Debug)]
struct Command {
    caller: Caller,
    held: usize,
    cancel: CancellationToken,
    /// Signals that the command may start; `None` once it was sent.
    turn: Option<oneshot::Sender<()>>,
}

/// A waiting or active command. Dropping it ends the command.
#[derive(Debug)]
pub(crate) struct Place {
    execs: Execs,
    /// Name of the command in the queue.
    entry: RunId,
    /// Cancels the command.
    pub(crate) cancel: CancellationToken,
    turn: oneshot::Receiver<()>,
}

/// A command that asks for a place in the queue.
#[derive(Debug)]
pub(crate) struct Admission {
    pub(crate) id: ExecId,
    pub(crate) caller: Caller,
    pub(crate) claim: Claim,
    /// Number of request bytes held for the command.
    pub(crate) held: usize,
}

impl Execs {
    pub(crate) fn new(limits: Limits) -> Self {
        let state = State { queue: Queue::new(limits), commands: HashMap::new(), held: 0, is_draining: false };
        Self { state: Arc::new(Mutex::new(state)), counted: watch::Sender::new(0) }
    }

    /// Queues a command.
    ///
    /// # Errors
    /// Too many commands wait, their requests are too large, or the daemon is shutting down.
    pub(crate) fn admit(&self, admission: Admission) -> Result<Place, Problem> {
        let Admission { id, caller, claim, held } = admission;
        let entry = RunId::new(id.as_str()).map_err(|bad| Problem::new(ProblemType::Internal, bad.to_string()))?;
        let (sender, turn) = oneshot::channel();
        let cancel = CancellationToken::new();
        {
            let mut state = self.state();
            if state.is_draining {
                return Err(ending());
            }
            if state.held.saturating_add(held) > MAX_HELD {
                return Err(too_many(&format!(
                    "the requests of the commands that wait hold more than {MAX_HELD} bytes"
                )));
            }
            let pushed = state.queue.push(Entry { id: entry.clone(), uid: caller.uid, claim });
            pushed.map_err(|full| too_many(&full_of(full)))?;
            state.held += held;
            let command = Command { caller, held, cancel: cancel.clone(), turn: Some(sender) };
            state.commands.insert(entry.clone(), command);
        }
        self.start_what_may();
        Ok(Place { execs: self.clone(), entry, cancel, turn })
    }

    /// Requests cancellation of a command. Returns whether a command with this id exists that the caller may cancel.
    pub(crate) fn cancel(&self, id: &ExecId, may_end: impl Fn(Caller) -> bool) -> bool {
        let state = self.state();
        let found = state.commands.get(id.as_str()).filter(|command| may_end(command.caller));
        found.map(|command| command.cancel.cancel()).is_some()
    }

    /// Applies new limits.
    pub(crate) fn limit(&self, limits: Limits) {
        self.state().queue.limit(limits);
        self.start_what_may();
    }

    /// Stops accepting commands. Waiting commands end.
    pub(crate) fn drain(&self) {
        let mut state = self.state();
        state.is_draining = true;
        state.commands.values_mut().for_each(|command| drop(command.turn.take()));
    }

    /// Requests cancellation of all commands.
    pub(crate) fn cancel_all(&self) {
        self.state().commands.values().for_each(|command| command.cancel.cancel());
    }

    /// Returns a receiver of the number of waiting and active commands.
    pub(crate) fn counted(&self) -> watch::Receiver<usize> {
        self.counted.subscribe()
    }

    fn start_what_may(&self) {
        let mut state = self.state();
        while let Some(next) = (!state.is_draining).then(|| state.queue.start_next()).flatten() {
            let turn = state.commands.get_mut(&next.id).and_then(|command| command.turn.take());
            // If the command no longer waits, dropping its `Place` frees the slot.
            if let Some(turn) = turn {
                let _ = turn.send(());
            }
        }
        let count = state.commands.len();
        self.counted.send_if_modified(|known| std::mem::replace(known, count) != count);
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Place {
    /// Waits until the command may start.
    ///
    /// # Errors
    /// The command is cancelled, or the daemon is shutting down.
    pub(crate) async fn turn(&mut self) -> Result<(), Problem> {
        tokio::select! {
            biased;
            () = self.cancel.cancelled() => Err(interrupted()),
            turn = &mut self.turn => turn.map_err(|_| ending()),
        }
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        {
            let mut state = self.execs.state();
            state.queue.remove(&self.entry);
            if let Some(command) = state.commands.remove(&self.entry) {
                state.held = state.held.saturating_sub(command.held);
            }
        }
        self.execs.start_what_may();
    }
}

fn full_of(full: Full) -> String {
    match full {
        Full::Everywhere(count) => format!("{count} commands wait already"),
        Full::Caller(count) => format!("{count} of your commands wait already"),
    }
}

fn too_many(detail: &str) -> Problem {
    Problem::new(ProblemType::TooManyRequests, detail).with_hint("try again when some of them have ended")
}

fn ending() -> Problem {
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
    use crate::queue::Worktree;

    const LIMITS: Limits = Limits { active: 2, active_per_caller: 1, waiting: 3, waiting_per_caller: 2 };

    fn admission(number: u32, uid: u32, worktree: Worktree) -> Admission {
        let id = ExecId::new(format!("{number:032x}")).expect("an id");
        let claim = Claim { repo: Arc::from("/r"), changeset: None, worktree };
        Admission { id, caller: Caller { uid }, claim, held: 1 }
    }

    fn starts(place: &mut Place) -> bool {
        place.turn().now_or_never().is_some_and(|turn| turn.is_ok())
    }

    #[test]
    fn starts_as_many_as_may_and_the_next_when_one_ends() {
        let execs = Execs::new(LIMITS);
        let mut places: Vec<Place> =
            (0..3).map(|n| execs.admit(admission(n, n % 2, Worktree::Reads)).expect("room")).collect();
        assert_eq!(places.iter_mut().map(starts).collect::<Vec<_>>(), [true, true, false]);
        assert_eq!(*execs.counted().borrow(), 3);
        drop(places.remove(0));
        assert!(starts(&mut places[1]), "the first caller has a turn again");
        drop(places);
        assert_eq!((*execs.counted().borrow(), execs.state().held), (0, 0));
    }

    #[test]
    fn one_that_changes_the_worktree_is_alone_in_it() {
        let execs = Execs::new(LIMITS);
        let mut reads = execs.admit(admission(1, 1, Worktree::Reads)).expect("room");
        let mut changes = execs.admit(admission(2, 2, Worktree::Changes)).expect("room");
        assert!(starts(&mut reads) && !starts(&mut changes));
        drop(reads);
        assert!(starts(&mut changes));
    }

    #[test]
    fn refuses_what_exceeds_a_bound() {
        let execs = Execs::new(LIMITS);
        let admit = |n, uid| execs.admit(admission(n, uid, Worktree::Reads));
        let _held: Vec<Place> = (0..3).map(|n| admit(n, 1).expect("one runs, two wait")).collect();
        let refused = admit(3, 1).expect_err("too many of one caller");
        assert_eq!((refused.kind, refused.detail.contains("of your")), (ProblemType::TooManyRequests, true));
        let too_large = Admission { held: MAX_HELD, ..admission(4, 2, Worktree::Reads) };
        assert_eq!(execs.admit(too_large).expect_err("too much").kind, ProblemType::TooManyRequests);
    }

    #[test]
    fn only_its_caller_ends_a_command() {
        let execs = Execs::new(LIMITS);
        let place = execs.admit(admission(1, 1, Worktree::Reads)).expect("room");
        let id = ExecId::new(format!("{:032x}", 1)).expect("an id");
        assert!(!execs.cancel(&id, |caller| caller.uid == 2) && !place.cancel.is_cancelled());
        assert!(execs.cancel(&id, |caller| caller.uid == 1) && place.cancel.is_cancelled());
    }

    #[test]
    fn a_daemon_that_drains_starts_nothing() {
        let execs = Execs::new(LIMITS);
        let _runs = execs.admit(admission(1, 1, Worktree::Reads)).expect("room");
        let mut waits = execs.admit(admission(2, 1, Worktree::Reads)).expect("room");
        execs.drain();
        let refused = waits.turn().now_or_never().expect("at once").expect_err("it never starts");
        assert_eq!(refused.kind, ProblemType::Unavailable);
        assert_eq!(execs.admit(admission(3, 2, Worktree::Reads)).expect_err("draining").kind, ProblemType::Unavailable);
    }
}
