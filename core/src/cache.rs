//! Caches of skills as a record tells of them: what each began with, and what became of it.

use std::fmt;
use std::str::FromStr;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::digest::Sha256Hex;
use crate::plan::RelPath;

/// From how wide a scope content of a cache comes, narrowest first.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum CacheTrust {
    /// The cache began empty.
    None,
    /// Everything in it was written by passes of the same skill in the same trust scope: the same branch or commit.
    Branch,
    /// Something in it was written by passes of the same skill on the repository's default branch.
    #[default]
    Default,
}

impl CacheTrust {
    /// Returns the word for it.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::None => "none",
            Self::Branch => "branch",
            Self::Default => "default",
        }
    }
}

impl fmt::Display for CacheTrust {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl FromStr for CacheTrust {
    type Err = String;

    /// Reads `none`, `branch` or `default`.
    fn from_str(text: &str) -> Result<Self, String> {
        let all = [Self::None, Self::Branch, Self::Default];
        let found = all.into_iter().find(|trust| trust.as_str() == text);
        found.ok_or_else(|| "expected `none`, `branch` or `default`".to_owned())
    }
}

/// One cache of a skill in one run.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct CacheEvidence {
    /// Where it appears in the repository.
    pub path: RelPath,
    /// The trust scope of the run: `branch:NAME`, `detached` or `commit:ID`. What the skill leaves goes there alone.
    pub scope: String,
    /// From how wide a scope its content comes.
    pub trust: CacheTrust,
    /// What it began with; `null` where it began empty.
    pub base: Option<CacheBase>,
    /// How it was shown to the steps.
    pub form: CacheShown,
    /// What became of the writes of the skill.
    pub end: CacheEnd,
    /// Why the cache began empty although there was a base, or why its writes were not committed; absent where there
    /// is nothing to say.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
}

/// What a cache began with.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct CacheBase {
    /// The sha256 of its manifest, which names its layers with a digest of each.
    pub id: Sha256Hex,
    /// The trust scope that it was read from.
    pub scope: String,
}

/// How a cache was shown to the steps of a skill.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum CacheShown {
    /// As an overlay over the layers of its base.
    Layers,
    /// As a copy of its base, where the kernel makes no overlay.
    Copy,
    /// As an empty directory for each attempt, where the step's user cannot reach what is stored.
    Empty,
}

/// What became of the writes of a skill to a cache.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum CacheEnd {
    /// The skill passed, and they are part of the new base of the run's scope.
    Committed,
    /// The skill wrote nothing.
    Unchanged,
    /// The skill did not pass, or nothing was to be kept.
    Discarded,
    /// Another run of the same scope committed first.
    Stale,
    /// They are too large, or cannot be stored.
    Refused,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_trust_as_it_is_written() {
        for trust in [CacheTrust::None, CacheTrust::Branch, CacheTrust::Default] {
            assert_eq!(trust.as_str().parse(), Ok(trust));
        }
        assert!("all".parse::<CacheTrust>().is_err() && CacheTrust::None < CacheTrust::Branch);
    }
}
