//! A confidence in percent, as callers set it.

use std::str::FromStr;

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Serialize};

/// A whole number of percent, from 1 to 100.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "u64", into = "u64")]
pub struct Percent(u8);

/// A number that is not from 1 to 100.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("expected a whole number of percent from 1 to 100")]
pub struct NotAPercent;

impl Percent {
    /// Returns the number.
    pub fn get(self) -> u8 {
        self.0
    }
}

impl TryFrom<u64> for Percent {
    type Error = NotAPercent;

    fn try_from(number: u64) -> Result<Self, NotAPercent> {
        u8::try_from(number).ok().filter(|number| (1..=100).contains(number)).map(Self).ok_or(NotAPercent)
    }
}

impl From<Percent> for u64 {
    fn from(percent: Percent) -> Self {
        percent.0.into()
    }
}

impl FromStr for Percent {
    type Err = NotAPercent;

    fn from_str(text: &str) -> Result<Self, NotAPercent> {
        text.parse::<u64>().map_err(|_| NotAPercent)?.try_into()
    }
}

impl JsonSchema for Percent {
    fn inline_schema() -> bool {
        true
    }

    fn schema_name() -> std::borrow::Cow<'static, str> {
        "Percent".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({ "type": "integer", "minimum": 1, "maximum": 100 })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn accepts_only_1_to_100() {
        for (text, number) in
            [("1", Some(1)), ("100", Some(100)), ("0", None), ("101", None), ("-1", None), ("7.5", None)]
        {
            assert_eq!(text.parse::<Percent>().ok().map(Percent::get), number, "{text}");
            assert_eq!(serde_json::from_str::<Percent>(text).ok().map(Percent::get), number, "{text}");
        }
    }
}
