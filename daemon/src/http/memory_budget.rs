//! Limits the memory for request bodies of one caller. The bytes of a body count from reading them until the request
//! is answered.

use std::sync::{Arc, Mutex, PoisonError};

use proctor_core::api::{Problem, ProblemType};

use crate::caller::Caller;
use crate::caller_limits::{CallerShares, SharePermit};

/// Maximum number of body bytes in memory for one caller. Without this limit, thousands of connections with maximum
/// bodies could use all memory.
pub(super) const MAX_BODIES: usize = 64 << 20;
/// Memory overhead of each chunk of a body, in bytes. It counts because a client can send chunks of a single byte.
const CHUNK_OVERHEAD: usize = 64;

/// Memory budgets of all callers.
#[derive(Debug, Clone)]
pub(super) struct MemoryBudgets(Arc<CallerShares>);

/// Memory reserved for one request; released when it is dropped.
#[derive(Debug)]
pub(super) struct MemoryReservation {
    budgets: MemoryBudgets,
    caller: Caller,
    reserved: Mutex<Option<SharePermit>>,
}

/// The caller's memory budget is used up.
#[derive(Debug, thiserror::Error)]
#[error("the bodies of your unanswered requests already have {MAX_BODIES} bytes")]
pub(super) struct MemoryBudgetExceeded;

impl Default for MemoryBudgets {
    fn default() -> Self {
        Self(Arc::new(CallerShares::new(MAX_BODIES)))
    }
}

impl MemoryBudgets {
    /// Creates the reservation of a request, initially empty.
    pub(super) fn reservation(&self, caller: Caller) -> Arc<MemoryReservation> {
        Arc::new(MemoryReservation { budgets: self.clone(), caller, reserved: Mutex::default() })
    }
}

impl MemoryReservation {
    /// Reserves memory for a chunk of this size.
    ///
    /// # Errors
    /// The caller's budget is used up.
    pub(super) fn grow(&self, bytes: usize) -> Result<(), MemoryBudgetExceeded> {
        let more = self
            .budgets
            .0
            .try_acquire(self.caller, bytes.saturating_add(CHUNK_OVERHEAD))
            .ok_or(MemoryBudgetExceeded)?;
        let mut held = self.reserved.lock().unwrap_or_else(PoisonError::into_inner);
        match held.as_mut() {
            Some(held) => held.merge(more),
            None => *held = Some(more),
        }
        Ok(())
    }
}

impl From<&MemoryBudgetExceeded> for Problem {
    fn from(error: &MemoryBudgetExceeded) -> Self {
        Self::new(ProblemType::TooManyRequests, error.to_string())
            .with_hint("try again when some of them have been answered")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_of_caller_share_budget_and_release_it() {
        let budgets = MemoryBudgets::default();
        let [one, another] = [budgets.reservation(Caller { uid: 7 }), budgets.reservation(Caller { uid: 7 })];
        one.grow(MAX_BODIES / 2).expect("half");
        one.grow(MAX_BODIES / 4).expect("a quarter");
        another.grow(MAX_BODIES / 2).expect_err("more than there is");
        budgets.reservation(Caller { uid: 8 }).grow(MAX_BODIES / 2).expect("another's");
        drop(one);
        another.grow(MAX_BODIES / 2).expect("given back");
    }

    #[test]
    fn empty_chunks_count_too() {
        let reservation = MemoryBudgets::default().reservation(Caller { uid: 7 });
        assert_eq!((0..).take_while(|_| reservation.grow(0).is_ok()).count(), MAX_BODIES / CHUNK_OVERHEAD);
    }
}
