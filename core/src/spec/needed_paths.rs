//! Types for `needs_paths` as written.

use std::fmt;

use schemars::JsonSchema;
use serde::de::value::MapAccessDeserializer;
use serde::de::{Error, MapAccess, Visitor};
use serde::{Deserialize, Deserializer, Serialize};

use super::command::SpecCommand;
use super::span::Spanned;
use super::spanned_map::SpannedMap;
use super::spec_text::SpecText;
use crate::model::names::{EnvName, VarName};
use crate::model::plan::{Network, RelPath};

/// A needed path as written: the path alone, or a map.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(untagged)]
pub enum WrittenPath {
    /// The path alone.
    Path(RelPath),
    /// A path with its key or its command.
    Map(Box<NeededPathMap>),
}

/// A directory that git ignores and that steps need.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct NeededPathMap {
    /// The directory, relative to the repository.
    pub path: Spanned<RelPath>,
    /// The files that must be identical in the worktree and in the verified tree. Default: the lock files in the
    /// directory that contains the path.
    #[schemars(length(min = 1))]
    pub key: Option<Spanned<Vec<Spanned<RelPath>>>>,
    /// The command that writes the path. Without it, the path comes from the worktree.
    pub prepare: Option<Prepare>,
}

/// A command that writes a needed path. Proctor stores the result and runs the command again only if its key changes.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Prepare {
    /// The command.
    pub cmd: Spanned<SpecCommand>,
    /// The files that determine the result. Default: the lock files in the directory that contains the path.
    #[schemars(length(min = 1))]
    pub key: Option<Spanned<Vec<Spanned<RelPath>>>>,
    /// The directory in which the command runs, relative to the repository.
    pub workdir: Option<Spanned<RelPath>>,
    /// Timeout, in milliseconds.
    #[schemars(range(min = 1))]
    pub timeout_ms: Option<Spanned<u64>>,
    /// Network access: `deny` or `allow`. `allow` makes the tier of the skill 2.
    pub network: Option<Spanned<Network>>,
    /// Environment variables that the command inherits from the caller; replaces the list of `defaults`.
    pub env_allowlist: Option<Spanned<Vec<Spanned<EnvName>>>>,
    /// Environment variables that are set, in addition to those of `defaults`.
    pub env: Option<SpannedMap<VarName, SpecText>>,
}

impl WrittenPath {
    /// Returns the path.
    pub fn path(&self) -> &RelPath {
        match self {
            Self::Path(path) => path,
            Self::Map(map) => &map.path.value,
        }
    }

    /// Returns the map, if the path has one.
    pub fn map(&self) -> Option<&NeededPathMap> {
        match self {
            Self::Path(_) => None,
            Self::Map(map) => Some(map),
        }
    }
}

impl<'de> Deserialize<'de> for WrittenPath {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct WrittenPathVisitor;
        impl<'de> Visitor<'de> for WrittenPathVisitor {
            type Value = WrittenPath;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a path or a map")
            }
            fn visit_str<E: Error>(self, text: &str) -> Result<WrittenPath, E> {
                RelPath::new(text).map(WrittenPath::Path).map_err(E::custom)
            }
            fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<WrittenPath, A::Error> {
                NeededPathMap::deserialize(MapAccessDeserializer::new(map)).map(|map| WrittenPath::Map(Box::new(map)))
            }
        }
        deserializer.deserialize_any(WrittenPathVisitor)
    }
}
