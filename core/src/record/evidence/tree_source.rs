//! The tree that a run verifies.

use schemars::JsonSchema;
use serde::{Deserialize, Deserializer, Serialize};

/// The tree that a run verifies.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum TreeSource {
    /// The worktree, including uncommitted changes.
    Worktree {
        /// The directory that the steps see; `shared` if absent.
        #[serde(default)]
        tree: TreeKind,
    },
    /// The tree of a commit, checked out separately from the worktree. Blobs are written unchanged, without filters and
    /// conversions.
    Rev {
        /// The full commit ID.
        commit: String,
        /// True if submodules were checked out; otherwise their directories are empty.
        submodules: bool,
        /// Number of files that are git-lfs pointers. The contents of these files were not available.
        lfs_pointers: u64,
    },
}

/// The directory that steps see in a run of a worktree.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum TreeKind {
    /// The worktree itself; edits during the run can affect steps.
    #[default]
    Shared,
    /// A private copy of the worktree at one point in time; edits during the run do not affect steps.
    Private,
}

impl TreeKind {
    /// Returns the word for documents and the operator's config.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Shared => "shared",
            Self::Private => "private",
        }
    }
}

impl TreeSource {
    /// The worktree itself.
    pub const SHARED: Self = Self::Worktree { tree: TreeKind::Shared };
    /// A private copy of the worktree.
    pub const PRIVATE: Self = Self::Worktree { tree: TreeKind::Private };

    /// Returns whether the run verifies the worktree or a private copy of it, not a commit.
    pub fn is_worktree(&self) -> bool {
        matches!(self, Self::Worktree { .. })
    }
}

/// Records of the first version have no source; their steps saw the worktree itself.
impl Default for TreeSource {
    fn default() -> Self {
        Self::SHARED
    }
}

/// A source as stored in records of all versions.
#[derive(Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case", deny_unknown_fields)]
enum RecordedTreeSource {
    Worktree {
        #[serde(default)]
        tree: TreeKind,
    },
    /// A private copy of the worktree, as written by an earlier version.
    Private {},
    Rev {
        commit: String,
        submodules: bool,
        lfs_pointers: u64,
    },
}

impl<'de> Deserialize<'de> for TreeSource {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        Ok(match RecordedTreeSource::deserialize(deserializer)? {
            RecordedTreeSource::Worktree { tree } => Self::Worktree { tree },
            RecordedTreeSource::Private {} => Self::PRIVATE,
            RecordedTreeSource::Rev { commit, submodules, lfs_pointers } => {
                Self::Rev { commit, submodules, lfs_pointers }
            }
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn serializes_tree_kind_of_worktree() {
        let written = |source: &TreeSource| serde_json::to_value(source).expect("writes");
        assert_eq!(written(&TreeSource::SHARED), json!({ "kind": "worktree", "tree": "shared" }));
        assert_eq!(written(&TreeSource::PRIVATE), json!({ "kind": "worktree", "tree": "private" }));
        for source in [
            TreeSource::SHARED,
            TreeSource::PRIVATE,
            TreeSource::Rev { commit: "c".into(), submodules: true, lfs_pointers: 3 },
        ] {
            assert_eq!(serde_json::from_value::<TreeSource>(written(&source)).expect("reads"), source);
        }
    }

    #[test]
    fn parses_records_of_earlier_versions() {
        let read = |text: &str| serde_json::from_str::<TreeSource>(text).ok();
        assert_eq!(read(r#"{"kind":"worktree"}"#), Some(TreeSource::SHARED));
        assert_eq!(read(r#"{"kind":"private"}"#), Some(TreeSource::PRIVATE));
        assert_eq!(TreeSource::default(), TreeSource::SHARED);
    }

    #[test]
    fn rejects_malformed_sources() {
        for text in [
            r#"{"kind":"worktree","tree":"copy"}"#,
            r#"{"kind":"worktree","tree":null}"#,
            r#"{"kind":"copy"}"#,
            r#"{"kind":"rev","commit":"c"}"#,
            r#"{"tree":"private"}"#,
            r#"{"kind":"worktree","uree":"private"}"#,
            r#"{"kind":"private","tree":"private"}"#,
            r#"{"kind":"rev","commit":"c","submodules":false,"lfs_pointers":0,"more":1}"#,
        ] {
            assert!(serde_json::from_str::<TreeSource>(text).is_err(), "{text}");
        }
    }
}
