//! Divides a shared resource among callers. Each caller has a fixed share that other callers cannot use; `Turns` also
//! limits the total and queues callers fairly.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use crate::caller::Caller;

/// The share of each caller. Entries are never removed; there is at most one for each user that the operator lists.
#[derive(Debug)]
pub(crate) struct Shares {
    most: usize,
    of: Mutex<HashMap<Caller, Arc<Semaphore>>>,
}

/// A part of a share; dropping it returns the permits.
pub(crate) type Part = OwnedSemaphorePermit;

impl Shares {
    /// Creates shares of `most` permits for each caller.
    pub(crate) fn of(most: usize) -> Self {
        Self { most, of: Mutex::default() }
    }

    /// Takes `count` permits of the caller's share. Returns `None` if fewer are left; never waits.
    pub(crate) fn take(&self, caller: Caller, count: usize) -> Option<Part> {
        self.share(caller).try_acquire_many_owned(u32::try_from(count).ok()?).ok()
    }

    fn share(&self, caller: Caller) -> Arc<Semaphore> {
        let mut of = self.of.lock().unwrap_or_else(PoisonError::into_inner);
        Arc::clone(of.entry(caller).or_insert_with(|| Arc::new(Semaphore::new(self.most))))
    }
}

/// Limits concurrent work, both per caller and in total.
#[derive(Debug)]
pub(crate) struct Turns {
    of_each: Shares,
    of_all: Arc<Semaphore>,
}

/// Permission to work; dropping it releases the slot.
#[derive(Debug)]
pub(crate) struct Turn {
    _own: Part,
    _of_all: Part,
}

impl Turns {
    /// Allows `each` concurrent turns of one caller, and in total as many as `callers` callers with a full share use.
    pub(crate) fn of(each: usize, callers: usize) -> Self {
        Self { of_each: Shares::of(each), of_all: Arc::new(Semaphore::new(each.saturating_mul(callers))) }
    }

    /// Waits for a turn of the caller. Turns are granted in order of arrival, first within the caller's share, then
    /// among all.
    ///
    /// A caller never has more entries in the common queue than its share, so a caller with many requests delays the
    /// others by at most that number.
    pub(crate) async fn wait(&self, caller: Caller) -> Option<Turn> {
        let own = self.of_each.share(caller).acquire_owned().await.ok()?;
        let of_all = Arc::clone(&self.of_all).acquire_owned().await.ok()?;
        Some(Turn { _own: own, _of_all: of_all })
    }
}

#[cfg(test)]
mod tests {
    use std::collections::VecDeque;

    use futures_util::FutureExt as _;

    use super::*;

    #[test]
    fn what_one_holds_is_nothing_to_another() {
        let shares = Shares::of(3);
        let [one, two] = [1, 2].map(|uid| Caller { uid });
        let held = shares.take(one, 2).expect("there is room");
        assert!(shares.take(one, 2).is_none());
        assert!(shares.take(two, 3).is_some());
        let last = shares.take(one, 1).expect("the rest");
        assert!(shares.take(one, 1).is_none() && shares.take(one, 0).is_some());
        drop((held, last));
        assert!(shares.take(one, 3).is_some());
    }

    #[tokio::test]
    async fn who_waits_for_its_own_keeps_nobody_else_waiting() {
        let turns = Turns::of(1, 2);
        let [one, two] = [1, 2].map(|uid| Caller { uid });
        let held = turns.wait(one).await.expect("there is one");
        let mut queued: Vec<_> = (0..100).map(|_| Box::pin(turns.wait(one))).collect();
        queued.iter_mut().for_each(|waiting| assert!(waiting.now_or_never().is_none(), "its share is held"));
        assert!(turns.wait(two).now_or_never().flatten().is_some(), "another's is not");
        drop(held);
        assert!(queued.swap_remove(0).await.is_some());
    }

    #[tokio::test]
    async fn all_callers_together_have_a_bound_and_each_its_turn() {
        let turns = Turns::of(2, 3);
        // Each caller asks for four turns, in order of the callers.
        let asked = (0..16).flat_map(|uid| [uid; 4]);
        let mut waiting: Vec<_> = asked.map(|uid| (uid, Box::pin(turns.wait(Caller { uid })))).collect();
        let (mut begun, mut held) = (Vec::new(), VecDeque::new());
        while !waiting.is_empty() {
            waiting.retain_mut(|(uid, turn)| match turn.now_or_never() {
                None => true,
                Some(turn) => {
                    begun.push(*uid);
                    held.push_back(turn.expect("it is not closed"));
                    false
                }
            });
            assert_eq!(held.len(), 6.min(held.len() + waiting.len()), "as many as there may be, and no more");
            held.pop_front();
        }
        let last_to_begin = (0..16).map(|uid| begun.iter().position(|begun| *begun == uid)).max().flatten();
        assert!(last_to_begin < Some(2 * 16), "every user has a first share before any user has a second: {begun:?}");
    }
}
