//! Limits the memory for request bodies of one caller. The bytes of a body count from reading them until the request
//! is answered.

use std::sync::{Arc, Mutex, PoisonError};

use proctor_core::api::{Problem, ProblemType};

use crate::caller::Caller;
use crate::shares::{Part, Shares};

/// Maximum number of body bytes in memory for one caller. Without this limit, thousands of connections with maximum
/// bodies could use all memory.
pub(super) const MAX_BODIES: usize = 64 << 20;
/// Overhead of a chunk of a body, in bytes; a chunk may have a single byte.
const PART: usize = 64;

/// Memory budgets of all callers.
#[derive(Debug, Clone)]
pub(super) struct Rooms(Arc<Shares>);

/// Memory reserved for one request; released when it is dropped.
#[derive(Debug)]
pub(super) struct Room {
    rooms: Rooms,
    caller: Caller,
    held: Mutex<Option<Part>>,
}

/// The caller's memory budget is used up.
#[derive(Debug, thiserror::Error)]
#[error("the bodies of your unanswered requests already have {MAX_BODIES} bytes")]
pub(super) struct NoRoom;

impl Default for Rooms {
    fn default() -> Self {
        Self(Arc::new(Shares::of(MAX_BODIES)))
    }
}

impl Rooms {
    /// Creates the reservation of a request, initially empty.
    pub(super) fn room(&self, caller: Caller) -> Arc<Room> {
        Arc::new(Room { rooms: self.clone(), caller, held: Mutex::default() })
    }
}

impl Room {
    /// Reserves memory for a chunk of this size.
    ///
    /// # Errors
    /// The caller's budget is used up.
    pub(super) fn grow(&self, bytes: usize) -> Result<(), NoRoom> {
        let more = self.rooms.0.take(self.caller, bytes.saturating_add(PART)).ok_or(NoRoom)?;
        let mut held = self.held.lock().unwrap_or_else(PoisonError::into_inner);
        match held.as_mut() {
            Some(held) => held.merge(more),
            None => *held = Some(more),
        }
        Ok(())
    }
}

impl From<&NoRoom> for Problem {
    fn from(error: &NoRoom) -> Self {
        Self::new(ProblemType::TooManyRequests, error.to_string())
            .with_hint("try again when some of them have been answered")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_of_one_caller_share_and_give_back() {
        let rooms = Rooms::default();
        let [one, another] = [rooms.room(Caller { uid: 7 }), rooms.room(Caller { uid: 7 })];
        one.grow(MAX_BODIES / 2).expect("half");
        one.grow(MAX_BODIES / 4).expect("a quarter");
        another.grow(MAX_BODIES / 2).expect_err("more than there is");
        rooms.room(Caller { uid: 8 }).grow(MAX_BODIES / 2).expect("another's");
        drop(one);
        another.grow(MAX_BODIES / 2).expect("given back");
    }

    #[test]
    fn parts_without_bytes_take_room_too() {
        let room = Rooms::default().room(Caller { uid: 7 });
        assert_eq!((0..).take_while(|_| room.grow(0).is_ok()).count(), MAX_BODIES / PART);
    }
}
