//! Divides a shared resource among callers. Each caller has a fixed share that other callers cannot use; `CallerLimit`
//! also limits the total and queues callers fairly.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use crate::caller::Caller;

/// The share of each caller. Entries are never removed; there is at most one for each user that the operator lists.
#[derive(Debug)]
pub(crate) struct CallerShares {
    permits_per_caller: usize,
    semaphores: Mutex<HashMap<Caller, Arc<Semaphore>>>,
}

/// A part of a share; dropping it returns the permits.
pub(crate) type SharePermit = OwnedSemaphorePermit;

impl CallerShares {
    /// Creates shares of `most` permits for each caller.
    pub(crate) fn new(most: usize) -> Self {
        Self { permits_per_caller: most, semaphores: Mutex::default() }
    }

    /// Takes `count` permits of the caller's share. Returns `None` if fewer are left; never waits.
    pub(crate) fn try_acquire(&self, caller: Caller, count: usize) -> Option<SharePermit> {
        self.semaphore_for(caller).try_acquire_many_owned(u32::try_from(count).ok()?).ok()
    }

    fn semaphore_for(&self, caller: Caller) -> Arc<Semaphore> {
        let mut semaphores = self.semaphores.lock().unwrap_or_else(PoisonError::into_inner);
        Arc::clone(semaphores.entry(caller).or_insert_with(|| Arc::new(Semaphore::new(self.permits_per_caller))))
    }
}

/// Limits concurrent work, both per caller and in total.
#[derive(Debug)]
pub(crate) struct CallerLimit {
    per_caller: CallerShares,
    total: Arc<Semaphore>,
}

/// Permission to work; dropping it releases the slot.
#[derive(Debug)]
pub(crate) struct WorkPermit {
    _own: SharePermit,
    _total: SharePermit,
}

impl CallerLimit {
    /// Allows `each` concurrent turns of one caller, and in total as many as `callers` callers with a full share use.
    pub(crate) fn new(each: usize, callers: usize) -> Self {
        Self { per_caller: CallerShares::new(each), total: Arc::new(Semaphore::new(each.saturating_mul(callers))) }
    }

    /// Waits for a turn of the caller. Turns are granted in order of arrival, first within the caller's share, then
    /// among all.
    ///
    /// A caller never has more entries in the common queue than its share, so a caller with many requests delays the
    /// others by at most that number.
    pub(crate) async fn acquire(&self, caller: Caller) -> Option<WorkPermit> {
        let own = self.per_caller.semaphore_for(caller).acquire_owned().await.ok()?;
        let total = Arc::clone(&self.total).acquire_owned().await.ok()?;
        Some(WorkPermit { _own: own, _total: total })
    }
}

#[cfg(test)]
mod tests {
    use std::collections::VecDeque;

    use futures_util::FutureExt as _;

    use super::*;

    #[test]
    fn callers_have_separate_shares() {
        let shares = CallerShares::new(3);
        let [one, two] = [1, 2].map(|uid| Caller { uid });
        let held = shares.try_acquire(one, 2).expect("there is room");
        assert!(shares.try_acquire(one, 2).is_none());
        assert!(shares.try_acquire(two, 3).is_some());
        let last = shares.try_acquire(one, 1).expect("the rest");
        assert!(shares.try_acquire(one, 1).is_none() && shares.try_acquire(one, 0).is_some());
        drop((held, last));
        assert!(shares.try_acquire(one, 3).is_some());
    }

    #[tokio::test]
    async fn waiting_for_own_share_does_not_delay_others() {
        let turns = CallerLimit::new(1, 2);
        let [one, two] = [1, 2].map(|uid| Caller { uid });
        let held = turns.acquire(one).await.expect("there is one");
        let mut queued: Vec<_> = (0..100).map(|_| Box::pin(turns.acquire(one))).collect();
        queued.iter_mut().for_each(|waiting| assert!(waiting.now_or_never().is_none(), "its share is held"));
        assert!(turns.acquire(two).now_or_never().flatten().is_some(), "another's is not");
        drop(held);
        assert!(queued.swap_remove(0).await.is_some());
    }

    #[tokio::test]
    async fn limits_total_and_serves_callers_fairly() {
        let turns = CallerLimit::new(2, 3);
        // Each caller requests four turns, in order of the callers.
        let uids = (0..16).flat_map(|uid| [uid; 4]);
        let mut waiting: Vec<_> = uids.map(|uid| (uid, Box::pin(turns.acquire(Caller { uid })))).collect();
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
