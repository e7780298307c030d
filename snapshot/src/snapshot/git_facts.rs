//! Describes a work tree in git's terms.

use std::path::PathBuf;

use proctor_git::ignore::external_rules::ExternalRules;
use proctor_git::object::object_id::ObjectFormat;
use proctor_git::protocol::WorktreeListing;
use serde::{Deserialize, Serialize};

use crate::snapshot::unknown_tree::UnknownTree;
use crate::tree_state::TreeState;

/// Git's description of a work tree, with which a reader of the evidence can find the same tree without Proctor.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct GitFacts {
    /// The top of the work tree, absolute, without symbolic links.
    pub worktree: PathBuf,
    /// The directory that contains HEAD and the index.
    pub git_dir: PathBuf,
    /// The directory that contains objects, refs and config.
    pub common_dir: PathBuf,
    /// The commit of HEAD; `None` before the first commit.
    pub head_commit: Option<String>,
    /// The branch that HEAD names; `None` if HEAD is detached.
    pub branch: Option<String>,
    /// The tree that `git add -u` and `git write-tree` would make of the tracked content, or the reason why it is
    /// not known.
    pub tree: Result<String, UnknownTree>,
    /// True if covered content differs from HEAD; `None` if that cannot be determined.
    pub dirty: Option<bool>,
    /// The hash algorithm of the object ids above.
    pub object_format: ObjectFormat,
    /// The ignore rules outside the tree that affect what is covered, sorted by name.
    pub external_rules: Vec<ExternalRules>,
}

pub(crate) fn git_facts(listing: WorktreeListing, state: TreeState) -> GitFacts {
    GitFacts {
        object_format: listing.indexes.first().map_or(ObjectFormat::Sha1, |index| index.format),
        worktree: listing.worktree,
        git_dir: listing.git_dir,
        common_dir: listing.common_dir,
        head_commit: listing.head_commit,
        branch: listing.branch,
        tree: state.tree.map(|id| id.to_string()),
        dirty: state.dirty,
        external_rules: listing.external_rules,
    }
}
