//! Parses `[tree]` of `proctord.toml`: the directory that steps see in a run of a worktree.

use schemars::JsonSchema;
use serde::Deserialize;

use super::LimitValue;
use crate::model::plan::Limit;
use crate::record::evidence::TreeKind;

/// The default mode. `docs/operator-config.md`, `docs/snapshot.md` and the description of `mode` below name it.
const DEFAULT_MODE: TreeKind = TreeKind::Private;
/// The default maximum number of entries.
const MAX_ENTRIES: Limit = Limit::Max(400_000);
/// The default maximum number of bytes.
const MAX_BYTES: Limit = Limit::Max(4 << 30);

/// The directory that steps see in a run of a worktree.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TreeSettings {
    /// The worktree itself, or a private copy that no process outside the run can change.
    pub mode: TreeKind,
    /// Maximum number of entries that are copied from a worktree, covered and ignored ones together.
    pub max_entries: Limit,
    /// Maximum number of bytes that are copied from a worktree, of covered and ignored files together.
    pub max_bytes: Limit,
}

impl Default for TreeSettings {
    fn default() -> Self {
        Self { mode: DEFAULT_MODE, max_entries: MAX_ENTRIES, max_bytes: MAX_BYTES }
    }
}

#[derive(Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct TreeFile {
    /// `private`: steps see a private copy of the worktree, and edits during a run do not affect them. `shared`: steps
    /// see the worktree itself. Default: `private`.
    mode: Option<TreeKind>,
    /// Maximum number of entries that are copied from a worktree, covered and ignored ones together. Ignored entries
    /// beyond it are not copied. If the covered entries alone exceed it, the run uses the worktree itself. Default:
    /// 400000.
    max_entries: Option<LimitValue>,
    /// Maximum number of bytes that are copied from a worktree, of covered and ignored files together. Ignored files
    /// beyond it are not copied. If the covered files alone exceed it, the run uses the worktree itself. Default: 4GiB.
    max_bytes: Option<LimitValue>,
}

impl TreeSettings {
    pub(super) fn from_file(file: &TreeFile) -> Self {
        let or = |bound: Option<LimitValue>, default: Limit| bound.map_or(default, |bound| bound.0);
        Self {
            mode: file.mode.unwrap_or(DEFAULT_MODE),
            max_entries: or(file.max_entries, MAX_ENTRIES),
            max_bytes: or(file.max_bytes, MAX_BYTES),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::OperatorConfig;
    use super::*;

    #[test]
    fn parses_tree_table_with_defaults() {
        let tree = |text: &str| OperatorConfig::parse(text).expect(text).tree;
        assert_eq!(tree("[tree]\n"), TreeSettings::default());
        assert_eq!(tree("[tree]\nmode = 'private'\n").mode, TreeKind::Private);
        assert_eq!(tree("[tree]\nmode = 'shared'\n").mode, TreeKind::Shared);
        let bounded = tree("[tree]\nmax_entries = 7\nmax_bytes = '2GiB'\n");
        assert_eq!((bounded.max_entries, bounded.max_bytes), (Limit::Max(7), Limit::Max(2 << 30)));
        assert_eq!(tree("[tree]\nmax_bytes = 'unlimited'\n").max_bytes, Limit::Unlimited);
    }

    #[test]
    fn rejects_invalid_tree_settings() {
        for text in ["private_tree = true", "tree = 'private'", "[tree]\nmode = 'copy'", "[tree]\nmax_entries = 0"] {
            let problems = OperatorConfig::parse(text).expect_err(text);
            assert!(problems[0].span.is_some(), "{problems:?}");
        }
        let unknown = OperatorConfig::parse("[tree]\nmode = 'copy'").expect_err("no such mode");
        assert!(unknown[0].message.contains("`shared`") && unknown[0].message.contains("`private`"), "{unknown:?}");
    }
}
