//! Computes what git alone would report about the current work tree: the tree of its tracked content, and whether
//! anything differs from HEAD. docs/development/snapshot.md has the equivalent git commands.

mod tracked_content;

use std::io;
use std::os::fd::BorrowedFd;

use proctor_core::model::drift::{display_path, is_evidence_path};

use crate::entries::EntryTree;
use crate::tree_state::tracked_content::{NestedCommits, TrackedContent};
use proctor_git::index::GitIndex;
use proctor_git::object::object_id::ObjectId;
use proctor_git::object::tree_identity::tree_id;
use proctor_git::program::conversion_task::convert_files;
use proctor_git::program::{GitProgram, TreeEntries};
use proctor_git::protocol::{NestedRepository, WorktreeListing};
use proctor_git::repository_paths::RepositoryPaths;

/// Git's view of a work tree.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct TreeState {
    /// The tree of the tracked content, or the reason why git would fail.
    pub(crate) tree: Result<ObjectId, String>,
    /// True if covered content differs from HEAD; `None` if that cannot be determined.
    pub(crate) dirty: Option<bool>,
}

/// Computes the state of the work tree `top` from its `listing` and the `entries` found at its covered paths. If
/// git may convert a file, the `git` program is asked.
///
/// # Errors
/// A file of the tree cannot be read.
pub(crate) fn tree_state(
    listing: &WorktreeListing,
    top: BorrowedFd<'_>,
    entries: &EntryTree,
    program: Option<&dyn GitProgram>,
) -> io::Result<TreeState> {
    let places = listing.paths();
    let commits: NestedCommits =
        listing.nested.iter().map(|nested| (nested.path.0.clone(), commit_of(nested))).collect();
    let tree_of = |index| -> io::Result<(Result<ObjectId, String>, Option<bool>)> {
        let mut tracked = TrackedContent::examine(index, top, entries, &commits)?;
        // Content that cannot be added certainly differs from HEAD.
        Ok(match tracked.refused.take() {
            Some(why) => (Err(why), Some(false)),
            None => {
                let tree = tree_with_conversions(tracked, index, &places, program);
                let is_head = tree.as_ref().ok().map(|tree| *tree == head_tree(index));
                (tree, is_head)
            }
        })
    };
    let Some((own, inside)) = listing.indexes.split_first() else {
        return Ok(TreeState { tree: Err("there is no index".to_owned()), dirty: None });
    };
    let (tree, is_head) = tree_of(own)?;
    let mut clean = if has_untracked(listing) { Some(false) } else { is_head };
    for index in inside {
        if clean == Some(false) {
            break;
        }
        clean = match (clean, tree_of(index)?.1) {
            (_, Some(false)) => Some(false),
            (Some(true), Some(true)) => Some(true),
            _ => None,
        };
    }
    Ok(TreeState { tree, dirty: clean.map(|clean| !clean) })
}

fn commit_of(nested: &NestedRepository) -> Option<ObjectId> {
    ObjectId::from_hex(nested.commit.as_ref()?.as_bytes())
}

fn tree_with_conversions(
    tracked: TrackedContent<'_>,
    index: &GitIndex,
    places: &RepositoryPaths,
    program: Option<&dyn GitProgram>,
) -> Result<ObjectId, String> {
    let Some(first) = tracked.unclear.first() else { return Ok(tracked.tree(&TreeEntries::new())) };
    let path = display_path(first);
    let conversion_error = |why: &str| format!("git converts `{path}` when it is added, and {why}");
    let program = program.ok_or_else(|| conversion_error("no sandbox was available to run git in"))?;
    let converted = convert_files(program, places, index, &tracked.unclear).map_err(|why| conversion_error(&why))?;
    Ok(tracked.tree(&converted))
}

/// Returns the tree of HEAD, or the empty tree before the first commit.
fn head_tree(index: &GitIndex) -> ObjectId {
    index.head_tree.unwrap_or_else(|| tree_id(index.format, &[]))
}

/// Checks whether there is an untracked file, or a repository that the outer repository does not track.
fn has_untracked(listing: &WorktreeListing) -> bool {
    let known = |path: &[u8]| listing.indexes.iter().any(|index| index.has_gitlink(path));
    listing.untracked.iter().any(|path| !is_evidence_path(&path.0))
        || listing.nested.iter().any(|nested| !known(&nested.path.0))
}
