//! SHA-256 digests in the two spellings that documents use.

use std::borrow::Cow;
use std::fmt;
use std::str::FromStr;

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::de::{self, Visitor};
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use sha2::{Digest as _, Sha256};

/// A sha256, written as 64 lower-case hex digits without a prefix (`*_sha256` fields of evidence).
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Sha256Hex([u8; 32]);

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

    /// Wraps a raw digest.
    pub const fn from_raw(raw: [u8; 32]) -> Self {
        Self(raw)
    }

    /// Returns the raw digest.
    pub const fn to_raw(&self) -> [u8; 32] {
        self.0
    }

    /// Returns the first `digits` hex digits, at most 64.
    pub fn prefix(&self, digits: usize) -> String {
        self.with_hex(|text| text.chars().take(digits).collect())
    }

    /// Calls `f` with the 64 hex digits.
    fn with_hex<T>(&self, f: impl FnOnce(&str) -> T) -> T {
        let mut digits = [0; 64];
        for (pair, byte) in digits.chunks_exact_mut(2).zip(self.0) {
            pair[0] = HEX[usize::from(byte >> 4)];
            pair[1] = HEX[usize::from(byte & 15)];
        }
        f(str::from_utf8(&digits).unwrap_or_default())
    }
}

const HEX: &[u8; 16] = b"0123456789abcdef";

fn nibble(digit: u8) -> Option<u8> {
    match digit {
        b'0'..=b'9' => Some(digit - b'0'),
        b'a'..=b'f' => Some(digit - b'a' + 10),
        _ => None,
    }
}

/// Decodes 64 lower-case hex digits; `None` for another text.
fn decode_hex(text: &str) -> Option<[u8; 32]> {
    let digits: &[u8; 64] = text.as_bytes().try_into().ok()?;
    let mut raw = [0; 32];
    for (byte, pair) in raw.iter_mut().zip(digits.chunks_exact(2)) {
        *byte = nibble(pair[0])? << 4 | nibble(pair[1])?;
    }
    Some(raw)
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
        decode_hex(&text).map(Self).ok_or(BadDigest(text))
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
        decode_hex(text).map(Self).ok_or_else(|| BadDigest(text.to_owned()))
    }
}

impl fmt::Display for Sha256Hex {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.with_hex(|digits| f.write_str(digits))
    }
}

impl fmt::Debug for Sha256Hex {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl Serialize for Sha256Hex {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        self.with_hex(|digits| serializer.serialize_str(digits))
    }
}

impl<'de> Deserialize<'de> for Sha256Hex {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Digits;
        impl Visitor<'_> for Digits {
            type Value = Sha256Hex;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a string")
            }
            fn visit_str<E: de::Error>(self, text: &str) -> Result<Sha256Hex, E> {
                text.parse().map_err(E::custom)
            }
        }
        deserializer.deserialize_str(Digits)
    }
}

impl JsonSchema for Sha256Hex {
    fn schema_name() -> Cow<'static, str> {
        "Sha256Hex".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({
            "description": "A sha256, written as 64 lower-case hex digits without a prefix (`*_sha256` fields of evidence).",
            "type": "string",
            "pattern": "^[0-9a-f]{64}$",
        })
    }
}

impl From<SnapshotId> for String {
    fn from(value: SnapshotId) -> String {
        value.0
    }
}

impl fmt::Display for SnapshotId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl fmt::Debug for SnapshotId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hashes_empty_input() {
        let known = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855";
        assert_eq!(Sha256Hex::digest(b"").to_string(), known);
        assert_eq!(known.parse::<Sha256Hex>().unwrap(), Sha256Hex::digest(b""));
    }

    #[test]
    fn rejects_upper_case_and_short_digests() {
        assert!("E3B0".parse::<Sha256Hex>().is_err());
        assert!("E".repeat(64).parse::<Sha256Hex>().is_err());
        assert!("\u{e9}".repeat(32).parse::<Sha256Hex>().is_err());
        assert!(SnapshotId::try_from("md5:00".to_owned()).is_err());
    }
}
