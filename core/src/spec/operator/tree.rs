//! Which directory the steps of a run of a worktree see: `[tree]`.

use schemars::JsonSchema;
use serde::Deserialize;

use super::Bound;
use crate::evidence::TreeKind;
use crate::plan::Limit;

/// The mode where the operator sets none. `docs/spec.md`, `docs/snapshot.md` and the description of `mode` below name it.
const DEFAULT_MODE: TreeKind = TreeKind::Private;
/// The bound on entries where the operator sets none.
const MAX_ENTRIES: Limit = Limit::Max(400_000);
/// The bound on bytes where the operator sets none.
const MAX_BYTES: Limit = Limit::Max(4 << 30);

/// Which directory the steps of a run of a worktree see.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TreeSettings {
    /// Whether they see a private copy, which no process outside of the run can change.
    pub mode: TreeKind,
    /// The most entries of a worktree, covered and ignored ones together, that are copied.
    pub max_entries: Limit,
    /// The most bytes of a worktree, of covered and ignored files together, that are copied.
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
    /// `private`: steps see a private copy of the worktree, and edits during a run reach none of them. `shared`: they see
    /// the worktree itself. Default: `private`.
    mode: Option<TreeKind>,
    /// The most entries of a worktree that are copied, covered and ignored ones together. Ignored ones beyond it are left
    /// out; a run of a worktree with more covered ones is over the worktree itself. Default: 400000.
    max_entries: Option<Bound>,
    /// The most bytes of a worktree that are copied, of covered and ignored files together. Ignored files beyond it are
    /// left out; a run of a worktree with more in covered ones is over the worktree itself. Default: 4GiB.
    max_bytes: Option<Bound>,
}

impl TreeSettings {
    pub(super) fn from_file(file: &TreeFile) -> Self {
        let or = |bound: Option<Bound>, default: Limit| bound.map_or(default, |bound| bound.0);
        Self {
            mode: file.mode.unwrap_or(DEFAULT_MODE),
            max_entries: or(file.max_entries, MAX_ENTRIES),
            max_bytes: or(file.max_bytes, MAX_BYTES),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::Operator;
    use super::*;

    #[test]
    fn reads_what_is_set_and_keeps_the_rest() {
        let tree = |text: &str| Operator::parse(text).expect(text).tree;
        assert_eq!(tree("[tree]\n"), TreeSettings::default());
        assert_eq!(tree("[tree]\nmode = 'private'\n").mode, TreeKind::Private);
        assert_eq!(tree("[tree]\nmode = 'shared'\n").mode, TreeKind::Shared);
        let bounded = tree("[tree]\nmax_entries = 7\nmax_bytes = '2GiB'\n");
        assert_eq!((bounded.max_entries, bounded.max_bytes), (Limit::Max(7), Limit::Max(2 << 30)));
        assert_eq!(tree("[tree]\nmax_bytes = 'unlimited'\n").max_bytes, Limit::Unlimited);
    }

    #[test]
    fn refuses_what_means_nothing() {
        for text in ["private_tree = true", "tree = 'private'", "[tree]\nmode = 'copy'", "[tree]\nmax_entries = 0"] {
            let problems = Operator::parse(text).expect_err(text);
            assert!(problems[0].span.is_some(), "{problems:?}");
        }
        let unknown = Operator::parse("[tree]\nmode = 'copy'").expect_err("no such mode");
        assert!(unknown[0].message.contains("`shared`") && unknown[0].message.contains("`private`"), "{unknown:?}");
    }
}
