//! Describes the caches of skills in the record of a run: their initial contents, and what happened to their
//! changes.

use std::fmt;
use std::str::FromStr;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::model::plan::RelPath;
use crate::text::digest::Sha256Hex;

/// The scope from which the contents of a cache come, the narrowest first.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum CacheTrust {
    /// The cache was empty at the start.
    None,
    /// All contents were written by passed runs of the same skill in the same trust scope: the same branch or
    /// commit.
    Branch,
    /// Some contents were written by passed runs of the same skill on the repository's default branch.
    #[default]
    Default,
}

impl CacheTrust {
    /// Returns the name in documents.
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

/// Error for text that is not a cache trust.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("expected `none`, `branch` or `default`")]
pub struct CacheTrustParseError;

impl FromStr for CacheTrust {
    type Err = CacheTrustParseError;

    /// Parses `none`, `branch` or `default`.
    fn from_str(text: &str) -> Result<Self, CacheTrustParseError> {
        let all = [Self::None, Self::Branch, Self::Default];
        let found = all.into_iter().find(|trust| trust.as_str() == text);
        found.ok_or(CacheTrustParseError)
    }
}

/// A cache of a skill in one run.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct CacheEvidence {
    /// The path of the cache in the repository.
    pub path: RelPath,
    /// The trust scope of the run: `branch:NAME`, `detached` or `commit:ID`. The skill's changes are stored only in
    /// this scope.
    pub scope: String,
    /// The scope from which its contents come.
    pub trust: CacheTrust,
    /// The initial contents; `null` if the cache was empty.
    pub base: Option<CacheBase>,
    /// How the steps saw the cache.
    pub form: CacheShown,
    /// The outcome of the skill's changes.
    pub end: CacheEnd,
    /// The reason why the cache was empty although there was a base, or why the changes were not committed. Absent
    /// if neither applies.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
}

/// A cache that an execution used, and whose content does not change its result, as the spec declares.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct TransparentCache {
    /// The path of the cache in the repository.
    pub path: RelPath,
    /// The scope from which its contents came. For several executions, the widest one.
    pub trust: CacheTrust,
}

/// Adds the caches of another execution, each with the wider trust of both.
pub fn merge_transparent_caches(caches: &mut Vec<TransparentCache>, others: &[TransparentCache]) {
    for other in others {
        match caches.iter_mut().find(|cache| cache.path == other.path) {
            Some(cache) => cache.trust = cache.trust.max(other.trust),
            None => caches.push(other.clone()),
        }
    }
}

/// The initial contents of a cache.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct CacheBase {
    /// The sha256 of the manifest, which lists its layers with their digests.
    pub id: Sha256Hex,
    /// The trust scope from which the base was read.
    pub scope: String,
}

/// How the steps of a skill saw a cache.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum CacheShown {
    /// As an overlay over the layers of its base.
    Layers,
    /// As a copy of its base, because the kernel cannot create an overlay.
    Copy,
    /// As an empty directory for each attempt, because the step's user cannot access the stored cache.
    Empty,
}

/// The outcome of a skill's changes to a cache.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum CacheEnd {
    /// The skill passed, and its changes are part of the new base of the run's scope.
    Committed,
    /// The skill changed nothing.
    Unchanged,
    /// The skill did not pass, or the cache was not to be kept.
    Discarded,
    /// Another run of the same scope committed first.
    Stale,
    /// The changes are too large or cannot be stored.
    Refused,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cache_trust_round_trips_through_text() {
        for trust in [CacheTrust::None, CacheTrust::Branch, CacheTrust::Default] {
            assert_eq!(trust.as_str().parse(), Ok(trust));
        }
        assert!("all".parse::<CacheTrust>().is_err() && CacheTrust::None < CacheTrust::Branch);
    }

    #[test]
    fn merged_caches_have_the_widest_trust() {
        let cache = |path: &str, trust| TransparentCache { path: RelPath::new(path).expect("a path"), trust };
        let mut caches = vec![cache("a", CacheTrust::Branch), cache("b", CacheTrust::Default)];
        let others = [cache("b", CacheTrust::None), cache("a", CacheTrust::Default), cache("c", CacheTrust::None)];
        merge_transparent_caches(&mut caches, &others);
        let widest = [cache("a", CacheTrust::Default), cache("b", CacheTrust::Default), cache("c", CacheTrust::None)];
        assert_eq!(caches, widest);
    }
}
