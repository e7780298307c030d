//! Parses and formats sizes in bytes.

use std::fmt;

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::de::{self, Visitor};
use serde::{Deserialize, Deserializer, Serialize};

use crate::model::plan::Limit;

/// A number of bytes, written plain or with a unit: `1048576`, `512MiB`, `10MB`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(transparent)]
pub struct ByteSize(pub u64);

impl From<ByteSize> for u64 {
    fn from(size: ByteSize) -> u64 {
        size.0
    }
}

/// Error for text that is not a valid size.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum SizeParseError {
    /// The text is not a whole number with a known unit.
    #[error("a size is a whole number of bytes, or one with a unit such as `512MiB` or `10MB`")]
    Malformed,
    /// The size does not fit into 64 bits.
    #[error("the size is larger than 16 EiB")]
    TooLarge,
}

const UNITS: [(&str, u64); 14] = [
    ("", 1),
    ("B", 1),
    ("kB", 1_000),
    ("KB", 1_000),
    ("MB", 1_000_000),
    ("GB", 1_000_000_000),
    ("TB", 1_000_000_000_000),
    ("KiB", 1 << 10),
    ("MiB", 1 << 20),
    ("GiB", 1 << 30),
    ("TiB", 1 << 40),
    ("k", 1_000),
    ("M", 1_000_000),
    ("G", 1_000_000_000),
];

impl std::str::FromStr for ByteSize {
    type Err = SizeParseError;
    fn from_str(text: &str) -> Result<Self, SizeParseError> {
        let digits = text.bytes().take_while(u8::is_ascii_digit).count();
        let (number, unit) = text.split_at(digits);
        let factor = UNITS.iter().find(|(name, _)| *name == unit.trim_start_matches(' '));
        let (Some((_, factor)), false) = (factor, number.is_empty()) else {
            return Err(SizeParseError::Malformed);
        };
        let number: u64 = number.parse().map_err(|_| SizeParseError::TooLarge)?;
        number.checked_mul(*factor).map(Self).ok_or(SizeParseError::TooLarge)
    }
}

/// Error for text that is not a valid limit.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum LimitParseError {
    /// The text is not a valid size.
    #[error(transparent)]
    Size(#[from] SizeParseError),
    /// The limit is zero; a step could not run with it.
    #[error("a limit is at least 1, or `unlimited`")]
    Zero,
}

/// Parses a size or `unlimited`.
impl std::str::FromStr for Limit {
    type Err = LimitParseError;
    fn from_str(text: &str) -> Result<Self, LimitParseError> {
        if text == "unlimited" {
            return Ok(Self::Unlimited);
        }
        match text.parse()? {
            ByteSize(0) => Err(LimitParseError::Zero),
            ByteSize(bytes) => Ok(Self::Max(bytes)),
        }
    }
}

/// Formats the size in the largest power-of-1024 unit that divides it.
impl fmt::Display for ByteSize {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let units = [("TiB", 1 << 40), ("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)];
        match units.iter().find(|(_, factor)| self.0 >= *factor && self.0.is_multiple_of(*factor)) {
            Some((name, factor)) => write!(f, "{}{name}", self.0 / factor),
            None => write!(f, "{}B", self.0),
        }
    }
}

impl<'de> Deserialize<'de> for ByteSize {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct ByteSizeVisitor;
        impl Visitor<'_> for ByteSizeVisitor {
            type Value = ByteSize;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a size such as 512MiB")
            }
            fn visit_u64<E: de::Error>(self, bytes: u64) -> Result<ByteSize, E> {
                Ok(ByteSize(bytes))
            }
            fn visit_i64<E: de::Error>(self, bytes: i64) -> Result<ByteSize, E> {
                u64::try_from(bytes).map(ByteSize).map_err(E::custom)
            }
            fn visit_str<E: de::Error>(self, text: &str) -> Result<ByteSize, E> {
                text.parse().map_err(E::custom)
            }
        }
        deserializer.deserialize_any(ByteSizeVisitor)
    }
}

impl JsonSchema for ByteSize {
    fn schema_name() -> std::borrow::Cow<'static, str> {
        "Size".into()
    }
    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({
            "description": "A number of bytes, or one with a unit, such as 512MiB or 10MB.",
            "anyOf": [
                { "type": "integer", "minimum": 1 },
                { "type": "string", "pattern": "^[0-9]+ *(B|kB|KB|MB|GB|TB|KiB|MiB|GiB|TiB|k|M|G)?$" },
            ],
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parses_units() {
        let cases = [
            ("512MiB", 512 << 20),
            ("2 GiB", 2 << 30),
            ("10MB", 10_000_000),
            ("10k", 10_000),
            ("7", 7),
            ("7B", 7),
            ("1TiB", 1 << 40),
        ];
        for (text, bytes) in cases {
            assert_eq!(text.parse(), Ok(ByteSize(bytes)), "{text}");
        }
    }

    #[test]
    fn rejects_malformed_sizes() {
        for text in ["", "MiB", "1.5GiB", "-1", "+1", "1 MiB ", "1mib", "1_000", "0x10", "1\tB"] {
            assert_eq!(text.parse::<ByteSize>(), Err(SizeParseError::Malformed), "{text:?}");
        }
        for text in ["18446744073709551616", "16777216TiB"] {
            assert_eq!(text.parse::<ByteSize>(), Err(SizeParseError::TooLarge), "{text}");
        }
    }

    #[test]
    fn parses_limits_and_unlimited() {
        assert_eq!("unlimited".parse(), Ok(Limit::Unlimited));
        assert_eq!("1KiB".parse(), Ok(Limit::Max(1024)));
        assert_eq!("0".parse::<Limit>(), Err(LimitParseError::Zero));
        assert_eq!("-1".parse::<Limit>(), Err(LimitParseError::Size(SizeParseError::Malformed)));
    }

    #[test]
    fn displays_largest_exact_unit() {
        assert_eq!(ByteSize(2 << 30).to_string(), "2GiB");
        assert_eq!(ByteSize(1000).to_string(), "1000B");
        assert_eq!(ByteSize(0).to_string(), "0B");
    }
}
