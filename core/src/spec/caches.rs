//! Types for `caches` as written.

use std::fmt;

use schemars::JsonSchema;
use serde::de::value::MapAccessDeserializer;
use serde::de::{Error, MapAccess, Visitor};
use serde::{Deserialize, Deserializer, Serialize};

use super::span::Spanned;
use crate::model::plan::RelPath;

/// A cache as written: the path alone, or a map.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(untagged)]
pub enum WrittenCache {
    /// The path alone.
    Path(RelPath),
    /// A path with its properties.
    Map(CacheMap),
}

/// A directory that a skill keeps between runs.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct CacheMap {
    /// The directory, relative to the repository.
    pub path: Spanned<RelPath>,
    /// If true, the content of the cache never changes the result of a step, only its duration. Results of the skill's
    /// steps can then be reused. Default: false.
    pub transparent: Option<Spanned<bool>>,
}

impl WrittenCache {
    /// Returns the path.
    pub fn path(&self) -> &RelPath {
        match self {
            Self::Path(path) => path,
            Self::Map(map) => &map.path.value,
        }
    }

    /// Returns whether the content of the cache never changes the result of a step.
    pub fn is_transparent(&self) -> bool {
        match self {
            Self::Path(_) => false,
            Self::Map(map) => map.transparent.is_some_and(|transparent| transparent.value),
        }
    }
}

impl<'de> Deserialize<'de> for WrittenCache {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct WrittenCacheVisitor;
        impl<'de> Visitor<'de> for WrittenCacheVisitor {
            type Value = WrittenCache;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a path or a map")
            }
            fn visit_str<E: Error>(self, text: &str) -> Result<WrittenCache, E> {
                RelPath::new(text).map(WrittenCache::Path).map_err(E::custom)
            }
            fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<WrittenCache, A::Error> {
                CacheMap::deserialize(MapAccessDeserializer::new(map)).map(WrittenCache::Map)
            }
        }
        deserializer.deserialize_any(WrittenCacheVisitor)
    }
}
