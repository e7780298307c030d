//! Computes what git alone would report about the current work tree: the tree of its tracked content, and whether
//! anything differs from HEAD. docs/snapshot.md has the equivalent git commands.

use std::io;
use std::os::fd::BorrowedFd;

use proctor_core::drift::{display_path, is_our_artifact};

use super::index::Index;
use super::object::ObjectId;
use super::program::convert::converted;
use super::program::{GitProgram, Places, TreeEntries};
use super::protocol::{Listing, Nested};
use super::tracked::{Commits, Tracked};
use super::tree_id::tree_id;
use crate::entries::Entries;

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
    listing: &Listing,
    top: BorrowedFd<'_>,
    entries: &Entries,
    program: Option<&dyn GitProgram>,
) -> io::Result<TreeState> {
    let places = listing.places();
    let commits: Commits = listing.nested.iter().map(|nested| (nested.path.0.clone(), commit_of(nested))).collect();
    let tree_of = |index| -> io::Result<(Result<ObjectId, String>, Option<bool>)> {
        let mut tracked = Tracked::look(index, top, entries, &commits)?;
        // Content that cannot be added certainly differs from HEAD.
        Ok(match tracked.refused.take() {
            Some(why) => (Err(why), Some(false)),
            None => {
                let tree = tree_by_git(tracked, index, &places, program);
                let is_head = tree.as_ref().ok().map(|tree| *tree == head_tree(index));
                (tree, is_head)
            }
        })
    };
    let Some((own, inside)) = listing.indexes.split_first() else {
        return Ok(TreeState { tree: Err("there is no index".to_owned()), dirty: None });
    };
    let (tree, is_head) = tree_of(own)?;
    let mut clean = if holds_unknown(listing) { Some(false) } else { is_head };
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

fn commit_of(nested: &Nested) -> Option<ObjectId> {
    ObjectId::from_hex(nested.commit.as_ref()?.as_bytes())
}

fn tree_by_git(
    tracked: Tracked<'_>,
    index: &Index,
    places: &Places,
    program: Option<&dyn GitProgram>,
) -> Result<ObjectId, String> {
    let Some(first) = tracked.unclear.first() else { return Ok(tracked.tree(&TreeEntries::new())) };
    let path = display_path(first);
    let unclear = |why: &str| format!("git converts `{path}` when it is added, and {why}");
    let program = program.ok_or_else(|| unclear("no sandbox was at hand to ask it in"))?;
    let told = converted(program, places, index, &tracked.unclear).map_err(|why| unclear(&why))?;
    Ok(tracked.tree(&told))
}

/// Returns the tree of HEAD, or the empty tree before the first commit.
fn head_tree(index: &Index) -> ObjectId {
    index.head_tree.unwrap_or_else(|| tree_id(index.format, &[]))
}

/// Checks whether there is an untracked file, or a repository that the outer repository does not track.
fn holds_unknown(listing: &Listing) -> bool {
    let known = |path: &[u8]| listing.indexes.iter().any(|index| index.holds_gitlink(path));
    listing.untracked.iter().any(|path| !is_our_artifact(&path.0))
        || listing.nested.iter().any(|nested| !known(&nested.path.0))
}
