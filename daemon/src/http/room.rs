//! The memory that the bodies of one caller's requests take together. What came of a body counts from when it
//! is read until its request is answered.

use std::sync::{Arc, Mutex, PoisonError};

use proctor_core::api::{Problem, ProblemType};

use crate::caller::Caller;
use crate::shares::{Part, Shares};

/// How many bytes the bodies of one caller have together. Each of thousands of connections may send the largest
/// that there is, which must not be all memory.
pub(super) const MAX_BODIES: usize = 64 << 20;
/// What a part of a body takes beside its bytes; it may have a single one.
const PART: usize = 64;

/// The room of all callers.
#[derive(Debug, Clone)]
pub(super) struct Rooms(Arc<Shares>);

/// The room of one request; what it has is given back when it is dropped.
#[derive(Debug)]
pub(super) struct Room {
    rooms: Rooms,
    caller: Caller,
    held: Mutex<Option<Part>>,
}

/// There is no room for more.
#[derive(Debug, thiserror::Error)]
#[error("the bodies of your unanswered requests already have {MAX_BODIES} bytes")]
pub(super) struct NoRoom;

impl Default for Rooms {
    fn default() -> Self {
        Self(Arc::new(Shares::of(MAX_BODIES)))
    }
}

impl Rooms {
    /// Room for a request of a caller, of which nothing has come yet.
    pub(super) fn room(&self, caller: Caller) -> Arc<Room> {
        Arc::new(Room { rooms: self.clone(), caller, held: Mutex::default() })
    }
}

impl Room {
    /// Takes room for a part of so many bytes.
    ///
    /// # Errors
    /// There is none.
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
