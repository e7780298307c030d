//! Digests of blobs, and the sources of their bytes.

use std::fmt;
use std::path::PathBuf;

use bytes::Bytes;
use proctor_core::text::digest::Sha256Hex;

use crate::messages;

/// The digest of a blob: its sha256 and its size.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct BlobDigest {
    /// The sha256 of the content.
    pub sha256: Sha256Hex,
    /// The size in bytes.
    pub bytes: u64,
}

/// The error for a malformed digest in a message.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("a digest of the server is not a sha256 with a size")]
pub struct BadDigest;

impl BlobDigest {
    /// Hashes `content`.
    pub fn for_bytes(content: &[u8]) -> Self {
        Self { sha256: Sha256Hex::digest(content), bytes: content.len() as u64 }
    }

    /// Returns the digest as a message.
    pub fn to_message(&self) -> messages::Digest {
        messages::Digest {
            hash: self.sha256.to_string(),
            // No blob in memory or on a disk is larger.
            size_bytes: i64::try_from(self.bytes).unwrap_or(i64::MAX),
        }
    }

    /// Reads the digest of a message.
    ///
    /// # Errors
    /// It is absent, or is not a sha256 with a size.
    pub fn from_message(message: Option<&messages::Digest>) -> Result<Self, BadDigest> {
        let message = message.ok_or(BadDigest)?;
        let sha256 = Sha256Hex::try_from(message.hash.clone()).map_err(|_| BadDigest)?;
        Ok(Self { sha256, bytes: u64::try_from(message.size_bytes).map_err(|_| BadDigest)? })
    }

    /// Returns whether `content` has this digest.
    pub fn matches(&self, content: &[u8]) -> bool {
        content.len() as u64 == self.bytes && Sha256Hex::digest(content) == self.sha256
    }
}

impl fmt::Display for BlobDigest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.sha256, self.bytes)
    }
}

/// The source of the bytes of a blob.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum BlobSource {
    /// Memory.
    Bytes(Bytes),
    /// A file, which is read when the blob is uploaded, and must still have its digest then.
    File(PathBuf),
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn refuses_malformed_digests() {
        let digest = BlobDigest::for_bytes(b"abc");
        assert_eq!(BlobDigest::from_message(Some(&digest.to_message())), Ok(digest.clone()));
        let message = digest.to_message();
        for wrong in [
            messages::Digest { hash: "ABC".to_owned(), ..message.clone() },
            messages::Digest { size_bytes: -1, ..message.clone() },
            messages::Digest { hash: message.hash.to_uppercase(), ..message },
        ] {
            assert_eq!(BlobDigest::from_message(Some(&wrong)), Err(BadDigest), "{wrong:?}");
        }
        assert_eq!(BlobDigest::from_message(None), Err(BadDigest));
        assert!(digest.matches(b"abc") && !digest.matches(b"abd"));
    }
}
