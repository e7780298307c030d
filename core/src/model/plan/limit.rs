//! A limit in a plan.

use std::fmt;

use schemars::JsonSchema;
use serde::de::{Error, MapAccess, Visitor};
use serde::{Deserialize, Deserializer, Serialize};

/// An upper limit, or explicitly none.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Limit {
    /// The maximum value.
    Max(u64),
    /// No limit set by Proctor.
    #[default]
    Unlimited,
}

impl Limit {
    /// Returns the limit as a number for an API; `u64::MAX` for unlimited.
    pub fn get_or_max(self) -> u64 {
        match self {
            Self::Max(bound) => bound,
            Self::Unlimited => u64::MAX,
        }
    }
}

impl<'de> Deserialize<'de> for Limit {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(LimitVisitor)
    }
}

/// Deserializes a limit. A derived implementation reports a misleading error for an array: that there is no value.
struct LimitVisitor;

impl<'de> Visitor<'de> for LimitVisitor {
    type Value = Limit;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object with `max`, or `unlimited`")
    }

    fn visit_str<E: Error>(self, word: &str) -> Result<Limit, E> {
        if word == "unlimited" { Ok(Limit::Unlimited) } else { Err(E::unknown_variant(word, &["max", "unlimited"])) }
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Limit, A::Error> {
        let limit = match map.next_key::<String>()?.as_deref() {
            Some("max") => Limit::Max(map.next_value()?),
            Some(other) => return Err(A::Error::unknown_variant(other, &["max", "unlimited"])),
            None => return Err(A::Error::missing_field("max")),
        };
        match map.next_key::<String>()? {
            None => Ok(limit),
            Some(second) => {
                Err(A::Error::custom(format_args!("a limit has only one bound, but `{second}` is another")))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn limit_round_trips_and_rejects_other_forms() {
        for limit in [Limit::Max(0), Limit::Max(u64::MAX), Limit::Unlimited] {
            let text = serde_json::to_string(&limit).expect("JSON");
            assert_eq!(serde_json::from_str::<Limit>(&text).expect("reads"), limit);
        }
        for wrong in ["[1]", "1", "{}", "\"max\"", "\"none\"", "{\"max\":-1}", "{\"max\":1,\"max\":2}", "{\"most\":1}"]
        {
            serde_json::from_str::<Limit>(wrong).expect_err(wrong);
        }
    }
}
