//! Limits the large responses that are in memory as a whole: documents and patches. Each caller has a fixed number of
//! them, however many connections it uses and however slowly it reads.

use bytes::Bytes;
use proctor_core::api::{Problem, ProblemType};

use crate::caller::Caller;
use crate::caller_limits::{CallerShares, SharePermit};

/// Maximum number of concurrent documents for one caller. Each has up to 64 MiB.
const MAX_DOCUMENTS: usize = 8;

/// Number of documents being sent to each caller.
#[derive(Debug)]
pub(super) struct DocumentLimit(CallerShares);

/// Permission to hold one document in memory.
#[derive(Debug)]
pub(super) struct DocumentPermit {
    _part: SharePermit,
}

impl Default for DocumentLimit {
    fn default() -> Self {
        Self(CallerShares::new(MAX_DOCUMENTS))
    }
}

impl DocumentLimit {
    /// Reserves capacity for a document before it is read.
    ///
    /// # Errors
    /// The caller's limit is reached.
    pub(super) fn reserve(&self, caller: Caller) -> Result<DocumentPermit, Problem> {
        self.0.try_acquire(caller, 1).map(|part| DocumentPermit { _part: part }).ok_or_else(|| {
            let detail = format!("{MAX_DOCUMENTS} documents and patches are already being sent to you");
            Problem::new(ProblemType::TooManyRequests, detail).with_hint("try again after they have been received")
        })
    }
}

impl DocumentPermit {
    /// Attaches the reservation to `bytes`: it is released when the last clone is dropped.
    pub(super) fn attach(self, bytes: Bytes) -> Bytes {
        Bytes::from_owner(PermittedBytes { bytes, _permit: self })
    }
}

struct PermittedBytes {
    bytes: Bytes,
    _permit: DocumentPermit,
}

impl AsRef<[u8]> for PermittedBytes {
    fn as_ref(&self) -> &[u8] {
        &self.bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn permit_is_released_with_last_bytes() {
        let (documents, caller) = (DocumentLimit::default(), Caller { uid: 7 });
        let sent: Vec<Bytes> = (0..MAX_DOCUMENTS)
            .map(|_| documents.reserve(caller).expect("a place").attach(Bytes::from_static(b"abc")))
            .collect();
        assert_eq!(documents.reserve(caller).expect_err("too many").kind, ProblemType::TooManyRequests);
        documents.reserve(Caller { uid: 8 }).expect("another's");
        let rest = sent[0].slice(1..);
        drop(sent);
        assert_eq!(rest, "bc");
        let permits: Vec<DocumentPermit> =
            (1..MAX_DOCUMENTS).map(|_| documents.reserve(caller).expect("a place")).collect();
        assert!(documents.reserve(caller).is_err(), "a part of the first is there");
        drop(rest);
        assert!(documents.reserve(caller).is_ok());
        drop(permits);
    }
}
