//! Tiers: who may run a skill, and who may rely on its result.

use std::collections::BTreeSet;
use std::fmt;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// The tier of a skill or result. 1: anyone may run it, including agents. 2: needs trust. 3: people only; never
/// declared, always the result of a violation.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(try_from = "u8", into = "u8")]
#[schemars(extend("minimum" = 1, "maximum" = 3))]
pub struct Tier(u8);

impl Tier {
    /// Anyone may run the skill.
    pub const ONE: Self = Self(1);
    /// Needs trust.
    pub const TWO: Self = Self(2);
    /// People only.
    pub const THREE: Self = Self(3);
}

/// The error for a number that is not a tier.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0} is not a tier: 1, 2 or 3 is expected")]
pub struct BadTier(u8);

impl TryFrom<u8> for Tier {
    type Error = BadTier;
    fn try_from(number: u8) -> Result<Self, BadTier> {
        if (1..=3).contains(&number) { Ok(Self(number)) } else { Err(BadTier(number)) }
    }
}

impl From<Tier> for u8 {
    fn from(tier: Tier) -> u8 {
        tier.0
    }
}

impl fmt::Display for Tier {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// The reason why an effective tier is higher than the declared one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum TierReason {
    /// A step made forbidden changes.
    Drift,
    /// A step may use the host's network.
    NetworkAllowed,
    /// A step timed out.
    Timeout,
    /// A requested control was not fully enforced.
    ControlNotEnforced,
}

impl TierReason {
    /// Returns the lowest tier that is possible with this reason.
    pub fn minimum_tier(self) -> Tier {
        match self {
            Self::Drift => Tier::THREE,
            Self::NetworkAllowed | Self::Timeout | Self::ControlNotEnforced => Tier::TWO,
        }
    }
}

/// Returns the effective tier: the highest of the declared tier and the minimum tiers of all reasons.
pub fn effective_tier(declared: Tier, reasons: &BTreeSet<TierReason>) -> Tier {
    reasons.iter().map(|reason| reason.minimum_tier()).fold(declared, Tier::max)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn highest_reason_determines_effective_tier() {
        let reasons = BTreeSet::from([TierReason::Timeout, TierReason::Drift]);
        assert_eq!(effective_tier(Tier::ONE, &reasons), Tier::THREE);
        assert_eq!(effective_tier(Tier::TWO, &BTreeSet::new()), Tier::TWO);
        assert_eq!(effective_tier(Tier::ONE, &BTreeSet::from([TierReason::NetworkAllowed])), Tier::TWO);
    }
}
