//! Defines the small files of a cache: its scope, and the layers of its base.

use proctor_core::model::cache::CacheTrust;
use proctor_core::text::digest::Sha256Hex;
use serde::{Deserialize, Serialize};

use super::cache_layer::LayerSummary;

/// Version of both file formats.
const VERSION: u32 = 1;

/// The identity of a cache. Different scopes share nothing.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct CacheScope {
    /// The user who requested the runs.
    pub(crate) caller: u32,
    /// The user that owns the files: the repository's owner, or the user that stands for root.
    pub(crate) owner: u32,
    /// Path of the repository; bytes that are not valid text are written as `\xNN`.
    pub(crate) repository: String,
    pub(crate) skill: String,
    /// Path of the cache in the repository.
    pub(crate) path: String,
    /// `branch:NAME`, `commits-of-branch:NAME`, `detached` or `commit:ID`; those of commits may end in
    /// `+submodules`.
    pub(crate) trust_scope: String,
}

impl CacheScope {
    /// Returns the name of the scope's directory.
    pub(super) fn directory_name(&self) -> String {
        Sha256Hex::digest(&serde_json::to_vec(self).unwrap_or_default()).prefix(32)
    }

    /// Returns the scope of the same cache in another trust scope.
    pub(super) fn with_trust_scope(&self, trust_scope: &str) -> Self {
        Self { trust_scope: trust_scope.to_owned(), ..self.clone() }
    }
}

/// The base of a cache: layers that are never written again.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct CacheManifest {
    version: u32,
    /// The layers, newest first.
    pub(super) layers: Vec<LayerRef>,
    /// The widest scope that a layer comes from.
    pub(super) trust: CacheTrust,
}

/// A layer as a manifest names it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct LayerRef {
    /// Name of the layer's directory.
    pub(super) id: String,
    /// Digest that changes if the layer is changed.
    pub(super) seal: Sha256Hex,
    pub(super) bytes: u64,
    pub(super) entries: u64,
}

impl LayerRef {
    pub(super) fn new(id: String, survey: LayerSummary) -> Self {
        Self { id, seal: survey.seal, bytes: survey.bytes, entries: survey.entries }
    }
}

impl CacheManifest {
    pub(super) fn new(layers: Vec<LayerRef>, trust: CacheTrust) -> Self {
        Self { version: VERSION, layers, trust }
    }

    /// Parses a manifest; `None` if the bytes are not in this format.
    pub(super) fn parse(bytes: &[u8]) -> Option<Self> {
        let read: Self = serde_json::from_slice(bytes).ok()?;
        let is_name = |id: &str| id.len() == 32 && id.bytes().all(|byte| byte.is_ascii_hexdigit());
        let is_ours = read.version == VERSION && !read.layers.is_empty();
        (is_ours && read.layers.iter().all(|layer| is_name(&layer.id))).then_some(read)
    }

    pub(super) fn to_bytes(&self) -> Vec<u8> {
        serde_json::to_vec(self).unwrap_or_default()
    }

    /// Returns the id of the base with this manifest.
    pub(super) fn id_of(bytes: &[u8]) -> Sha256Hex {
        Sha256Hex::digest(bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn manifest(id: &str) -> CacheManifest {
        let survey = LayerSummary { seal: Sha256Hex::digest(b"x"), bytes: 1, entries: 2 };
        CacheManifest::new(vec![LayerRef::new(id.to_owned(), survey)], CacheTrust::Branch)
    }

    #[test]
    fn parses_only_own_format() {
        let whole = manifest(&"0a".repeat(16));
        assert_eq!(CacheManifest::parse(&whole.to_bytes()), Some(whole.clone()));
        for bad in ["../../etc", "", "0a"] {
            assert_eq!(CacheManifest::parse(&manifest(bad).to_bytes()), None, "{bad}");
        }
        assert_eq!(CacheManifest::parse(&CacheManifest { layers: vec![], ..whole.clone() }.to_bytes()), None);
        assert_eq!(CacheManifest::parse(&CacheManifest { version: 2, ..whole.clone() }.to_bytes()), None);
        assert_eq!(CacheManifest::parse(&whole.to_bytes()[1..]), None);
    }

    #[test]
    fn directory_name_depends_on_each_part_of_scope() {
        let scope = CacheScope {
            caller: 1,
            owner: 1,
            repository: "/r".into(),
            skill: "s".into(),
            path: "target".into(),
            trust_scope: "branch:main".into(),
        };
        let others = [
            CacheScope { caller: 2, ..scope.clone() },
            CacheScope { owner: 2, ..scope.clone() },
            CacheScope { repository: "/s".into(), ..scope.clone() },
            CacheScope { skill: "t".into(), ..scope.clone() },
            CacheScope { path: "t".into(), ..scope.clone() },
            scope.with_trust_scope("detached"),
        ];
        let mut keys: Vec<String> = others.iter().chain([&scope]).map(CacheScope::directory_name).collect();
        keys.sort();
        keys.dedup();
        assert_eq!(keys.len(), others.len() + 1);
    }
}
