//! SHA-256 digests in the two spellings that documents use.

use std::fmt;
use std::str::FromStr;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};

/// A sha256 as 64 lower-case hex digits, without a prefix (`*_sha256` fields of evidence).
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(try_from = "String", into = "String")]
#[schemars(extend("pattern" = "^[0-9a-f]{64}$"))]
pub struct Sha256Hex(String);

/// The identity of a tree: the root of the snapshot's Merkle tree, written as `sha256:<64 hex>`.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(try_from = "String", into = "String")]
#[schemars(extend("pattern" = "^sha256:[0-9a-f]{64}$"))]
pub struct SnapshotId(String);

/// The error for a text that is not a digest.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("`{0}` is not a sha256: 64 lower-case hex digits are expected")]
pub struct BadDigest(String);

impl Sha256Hex {
    /// Hashes `bytes`.
    pub fn digest(bytes: &[u8]) -> Self {
        Self::from_raw(Sha256::digest(bytes).into())
    }

    /// Formats a raw digest of 32 bytes.
    pub fn from_raw(raw: [u8; 32]) -> Self {
        const HEX: &[u8; 16] = b"0123456789abcdef";
        let mut text = String::with_capacity(64);
        for byte in raw {
            text.push(char::from(HEX[usize::from(byte >> 4)]));
            text.push(char::from(HEX[usize::from(byte & 15)]));
        }
        Self(text)
    }

    /// Returns the raw digest of 32 bytes.
    pub fn to_raw(&self) -> [u8; 32] {
        let mut raw = [0; 32];
        for (byte, pair) in raw.iter_mut().zip(self.0.as_bytes().chunks_exact(2)) {
            *byte = nibble(pair[0]) << 4 | nibble(pair[1]);
        }
        raw
    }

    /// Returns the 64 hex digits.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

fn nibble(digit: u8) -> u8 {
    match digit {
        b'a'..=b'f' => digit - b'a' + 10,
        _ => digit - b'0',
    }
}

impl SnapshotId {
    /// Creates the identity from the Merkle root.
    pub fn from_root(root: &Sha256Hex) -> Self {
        Self(format!("sha256:{root}"))
    }

    /// Returns the text with its algorithm prefix.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl TryFrom<String> for Sha256Hex {
    type Error = BadDigest;
    fn try_from(text: String) -> Result<Self, BadDigest> {
        let digit = |b: u8| b.is_ascii_digit() || (b'a'..=b'f').contains(&b);
        if text.len() == 64 && text.bytes().all(digit) { Ok(Self(text)) } else { Err(BadDigest(text)) }
    }
}

impl TryFrom<String> for SnapshotId {
    type Error = BadDigest;
    fn try_from(text: String) -> Result<Self, BadDigest> {
        match text.strip_prefix("sha256:") {
            Some(hex) => Ok(Self::from_root(&Sha256Hex::try_from(hex.to_owned())?)),
            None => Err(BadDigest(text)),
        }
    }
}

impl FromStr for Sha256Hex {
    type Err = BadDigest;
    fn from_str(text: &str) -> Result<Self, BadDigest> {
        Self::try_from(text.to_owned())
    }
}

macro_rules! text_traits {
    ($name:ident) => {
        impl From<$name> for String {
            fn from(value: $name) -> String {
                value.0
            }
        }
        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(&self.0)
            }
        }
        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(&self.0)
            }
        }
    };
}
text_traits!(Sha256Hex);
text_traits!(SnapshotId);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hashes_empty_input() {
        let known = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855";
        assert_eq!(Sha256Hex::digest(b"").as_str(), known);
        assert_eq!(Sha256Hex::from_raw(Sha256Hex::digest(b"").to_raw()).as_str(), known);
    }

    #[test]
    fn rejects_upper_case_and_short_digests() {
        assert!("E3B0".parse::<Sha256Hex>().is_err());
        assert!(SnapshotId::try_from("md5:00".to_owned()).is_err());
    }
}
