//! Limits the large responses that are in memory as a whole: documents and patches. Each caller has a fixed number of
//! them, however many connections it uses and however slowly it reads.

use bytes::Bytes;
use proctor_core::api::{Problem, ProblemType};

use crate::caller::Caller;
use crate::shares::{Part, Shares};

/// Maximum number of concurrent documents for one caller. Each has up to 64 MiB.
const MAX_DOCUMENTS: usize = 8;

/// Number of documents being sent to each caller.
#[derive(Debug)]
pub(super) struct Documents(Shares);

/// Permission to hold one document in memory.
#[derive(Debug)]
pub(super) struct Place {
    _part: Part,
}

impl Default for Documents {
    fn default() -> Self {
        Self(Shares::of(MAX_DOCUMENTS))
    }
}

impl Documents {
    /// Reserves a place before the document is read.
    ///
    /// # Errors
    /// The caller's limit is reached.
    pub(super) fn place(&self, caller: Caller) -> Result<Place, Problem> {
        self.0.take(caller, 1).map(|part| Place { _part: part }).ok_or_else(|| {
            let detail = format!("{MAX_DOCUMENTS} documents and patches are on their way to you already");
            Problem::new(ProblemType::TooManyRequests, detail).with_hint("try again when they have been read")
        })
    }
}

impl Place {
    /// Attaches the place to `bytes`: it is released when the last clone is dropped.
    pub(super) fn holds(self, bytes: Bytes) -> Bytes {
        Bytes::from_owner(Placed { bytes, _place: self })
    }
}

struct Placed {
    bytes: Bytes,
    _place: Place,
}

impl AsRef<[u8]> for Placed {
    fn as_ref(&self) -> &[u8] {
        &self.bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_place_is_free_again_when_the_last_byte_is_gone() {
        let (documents, caller) = (Documents::default(), Caller { uid: 7 });
        let sent: Vec<Bytes> = (0..MAX_DOCUMENTS)
            .map(|_| documents.place(caller).expect("a place").holds(Bytes::from_static(b"abc")))
            .collect();
        assert_eq!(documents.place(caller).expect_err("too many").kind, ProblemType::TooManyRequests);
        documents.place(Caller { uid: 8 }).expect("another's");
        let rest = sent[0].slice(1..);
        drop(sent);
        assert_eq!(rest, "bc");
        let places: Vec<Place> = (1..MAX_DOCUMENTS).map(|_| documents.place(caller).expect("a place")).collect();
        assert!(documents.place(caller).is_err(), "a part of the first is there");
        drop(rest);
        assert!(documents.place(caller).is_ok());
        drop(places);
    }
}
