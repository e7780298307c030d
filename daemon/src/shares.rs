//! What one caller may hold of something that all callers share: each has the same, and nobody's is taken
//! by another.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use crate::caller::Caller;

/// The shares of all callers. One is remembered for each user who has asked: no more than the operator lists.
#[derive(Debug)]
pub(crate) struct Shares {
    most: usize,
    of: Mutex<HashMap<Caller, Arc<Semaphore>>>,
}

/// A part of a share, given back when it is dropped.
pub(crate) type Part = OwnedSemaphorePermit;

impl Shares {
    /// Shares of `most` each.
    pub(crate) fn of(most: usize) -> Self {
        Self { most, of: Mutex::default() }
    }

    /// So much of a caller's share; `None` where less is left. Never waits.
    pub(crate) fn take(&self, caller: Caller, count: usize) -> Option<Part> {
        self.share(caller).try_acquire_many_owned(u32::try_from(count).ok()?).ok()
    }

    /// One of a caller's share, as soon as one is left: who waited first is first, among that caller's.
    pub(crate) async fn wait(&self, caller: Caller) -> Option<Part> {
        self.share(caller).acquire_owned().await.ok()
    }

    fn share(&self, caller: Caller) -> Arc<Semaphore> {
        let mut of = self.of.lock().unwrap_or_else(PoisonError::into_inner);
        Arc::clone(of.entry(caller).or_insert_with(|| Arc::new(Semaphore::new(self.most))))
    }
}

#[cfg(test)]
mod tests {
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
        let shares = Shares::of(1);
        let [one, two] = [1, 2].map(|uid| Caller { uid });
        let held = shares.wait(one).await.expect("there is one");
        let mut queued: Vec<_> = (0..100).map(|_| Box::pin(shares.wait(one))).collect();
        queued.iter_mut().for_each(|waiting| assert!(waiting.now_or_never().is_none(), "its share is held"));
        assert!(shares.wait(two).now_or_never().flatten().is_some(), "another's is not");
        drop(held);
        assert!(queued.swap_remove(0).await.is_some());
    }
}
