//! Computes the ids of git objects in both formats, without git.

use std::fmt;

use serde::{Deserialize, Serialize};
use sha1::Sha1;
use sha2::{Digest as _, Sha256};

/// The hash algorithm of object ids.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ObjectFormat {
    /// 40 hex digits; the only format that libgit2 reads.
    #[default]
    Sha1,
    /// 64 hex digits (`git init --object-format=sha256`).
    Sha256,
}

impl ObjectFormat {
    /// Returns the name in `extensions.objectFormat`.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Sha1 => "sha1",
            Self::Sha256 => "sha256",
        }
    }

    /// Returns the length of an id in bytes.
    pub(crate) fn width(self) -> usize {
        match self {
            Self::Sha1 => 20,
            Self::Sha256 => 32,
        }
    }
}

/// The id of a git object.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct ObjectId {
    format: ObjectFormat,
    raw: [u8; 32],
}

impl ObjectId {
    /// Makes an id from 20 or 32 bytes. Returns `None` for any other number.
    pub fn from_raw(bytes: &[u8]) -> Option<Self> {
        let format = [ObjectFormat::Sha1, ObjectFormat::Sha256].into_iter().find(|f| f.width() == bytes.len())?;
        let mut raw = [0; 32];
        raw[..bytes.len()].copy_from_slice(bytes);
        Some(Self { format, raw })
    }

    /// Makes an id of 20 bytes.
    pub(crate) fn from_sha1(bytes: [u8; 20]) -> Self {
        let mut raw = [0; 32];
        raw[..20].copy_from_slice(&bytes);
        Self { format: ObjectFormat::Sha1, raw }
    }

    /// Makes an id of 32 bytes.
    pub(crate) fn from_sha256(raw: [u8; 32]) -> Self {
        Self { format: ObjectFormat::Sha256, raw }
    }

    /// Parses an id in lower-case hex. Returns `None` if the text is not an id.
    pub fn from_hex(text: &[u8]) -> Option<Self> {
        let nibble = |digit: u8| match digit {
            b'0'..=b'9' => Some(digit - b'0'),
            b'a'..=b'f' => Some(digit - b'a' + 10),
            _ => None,
        };
        let (pairs, rest) = text.as_chunks::<2>();
        let bytes: Option<Vec<u8>> =
            pairs.iter().map(|[high, low]| Some(nibble(*high)? << 4 | nibble(*low)?)).collect();
        if rest.is_empty() { Self::from_raw(&bytes?) } else { None }
    }

    /// Returns the bytes of the id.
    pub fn as_bytes(&self) -> &[u8] {
        &self.raw[..self.format.width()]
    }

    /// Returns the hash algorithm.
    pub fn format(self) -> ObjectFormat {
        self.format
    }
}

impl fmt::Display for ObjectId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.as_bytes().iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl fmt::Debug for ObjectId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl From<ObjectId> for String {
    fn from(id: ObjectId) -> Self {
        id.to_string()
    }
}

/// The text is not an object id.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("`{0}` is not an object id")]
pub struct InvalidObjectId(pub String);

impl TryFrom<String> for ObjectId {
    type Error = InvalidObjectId;
    fn try_from(text: String) -> Result<Self, InvalidObjectId> {
        Self::from_hex(text.as_bytes()).ok_or(InvalidObjectId(text))
    }
}

/// The kind of an object.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ObjectKind {
    /// The content of a file, or the target of a link.
    Blob,
    /// A directory.
    Tree,
    /// A tree in a history.
    Commit,
    /// A name for another object, with a message.
    Tag,
}

impl ObjectKind {
    const ALL: [Self; 4] = [Self::Blob, Self::Tree, Self::Commit, Self::Tag];

    /// Returns git's word for the kind.
    pub(crate) fn as_str(self) -> &'static str {
        match self {
            Self::Blob => "blob",
            Self::Tree => "tree",
            Self::Commit => "commit",
            Self::Tag => "tag",
        }
    }

    /// Returns the kind of object with this name in git.
    pub(crate) fn from_name(word: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|kind| kind.as_str() == word)
    }
}

/// Computes the id of an object whose bytes arrive in pieces.
pub enum ObjectHasher {
    /// Computes ids of 20 bytes.
    Sha1(Sha1),
    /// Computes ids of 32 bytes.
    Sha256(Sha256),
}

impl ObjectHasher {
    /// Starts with the header of an object of `length` bytes, which precedes the content in the hash.
    pub fn new(format: ObjectFormat, kind: ObjectKind, length: u64) -> Self {
        let mut hasher = match format {
            ObjectFormat::Sha1 => Self::Sha1(Sha1::new()),
            ObjectFormat::Sha256 => Self::Sha256(Sha256::new()),
        };
        hasher.update(format!("{} {length}\0", kind.as_str()).as_bytes());
        hasher
    }

    /// Hashes more bytes of the content.
    pub fn update(&mut self, bytes: &[u8]) {
        match self {
            Self::Sha1(hasher) => hasher.update(bytes),
            Self::Sha256(hasher) => hasher.update(bytes),
        }
    }

    /// Returns the id of the object.
    pub fn finish(self) -> ObjectId {
        match self {
            Self::Sha1(hasher) => ObjectId::from_sha1(hasher.finalize().into()),
            Self::Sha256(hasher) => ObjectId::from_sha256(hasher.finalize().into()),
        }
    }
}

/// Returns the id of an object with these bytes.
pub fn object_id(format: ObjectFormat, kind: ObjectKind, bytes: &[u8]) -> ObjectId {
    let mut hasher = ObjectHasher::new(format, kind, bytes.len() as u64);
    hasher.update(bytes);
    hasher.finish()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_match_git_hash_object() {
        let of = |format| object_id(format, ObjectKind::Blob, b"hi\n").to_string();
        assert_eq!(of(ObjectFormat::Sha1), "45b983be36b73c0788dc9cbcb76cbb80fc7bb057");
        assert_eq!(of(ObjectFormat::Sha256), "96c18f0297e38d01f4b2dacddea4259aea6b2961eb0822bd2c0c3f6029030045");
    }

    #[test]
    fn round_trips_hex_and_rejects_invalid_ids() {
        for text in ["0".repeat(40), "af".repeat(32)] {
            let id = ObjectId::from_hex(text.as_bytes()).expect("an id");
            assert_eq!((id.to_string(), id.as_bytes().len() * 2), (text.clone(), text.len()));
        }
        for bad in ["", "0", "AF", &"0".repeat(39), &"0".repeat(63), &"g".repeat(40)] {
            assert_eq!(ObjectId::from_hex(bad.as_bytes()), None, "{bad}");
        }
    }
}
