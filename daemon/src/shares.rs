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
        let count = u32::try_from(count).ok()?;
        let mut of = self.of.lock().unwrap_or_else(PoisonError::into_inner);
        let share = of.entry(caller).or_insert_with(|| Arc::new(Semaphore::new(self.most)));
        Arc::clone(share).try_acquire_many_owned(count).ok()
    }
}

#[cfg(test)]
mod tests {
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
}
