//! What git alone would say of a work tree as it stands: the tree of its tracked content, and
//! whether anything differs from HEAD. docs/snapshot.md says how to ask git the same.

use std::collections::BTreeMap;
use std::io;
use std::os::fd::BorrowedFd;

use proctor_core::drift::{display_path, is_our_artifact};

use super::index::Index;
use super::object::ObjectId;
use super::program::convert::converted;
use super::program::{GitProgram, Places, TreeEntries};
use super::protocol::Listing;
use super::tracked::{Commits, Tracked};
use super::tree_id::tree_id;
use crate::entries::Entries;

/// What stands in a work tree, as git would put it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct TreeState {
    /// The tree of the tracked content, or why git would not tell.
    pub(crate) tree: Result<ObjectId, String>,
    /// Whether something covered is not that of HEAD; none where that cannot be told.
    pub(crate) dirty: Option<bool>,
}

/// The state of the work tree `top` that `listing` is of, and at whose covered paths `entries` were found. Where git may convert a file, the `git`
/// program is asked.
///
/// # Errors
/// Something of the tree cannot be read.
pub(crate) fn tree_state(
    listing: &Listing,
    top: BorrowedFd<'_>,
    entries: &Entries,
    program: Option<&dyn GitProgram>,
) -> io::Result<TreeState> {
    let places = listing.places();
    let commits: Commits = listing.nested.iter().map(|nested| (nested.path.0.clone(), commit_of(nested))).collect();
    let mut trees = Vec::new();
    for index in &listing.indexes {
        let tracked = Tracked::look(index, top, entries, &commits)?;
        trees.push(tree_of(&tracked, index, &places, program));
    }
    let own = trees.first().cloned().unwrap_or_else(|| Err("there is no index".to_owned()));
    let clean: Vec<Option<bool>> = listing
        .indexes
        .iter()
        .zip(&trees)
        .map(|(index, tree)| Some(*tree.as_ref().ok()? == head_tree(index)))
        .collect();
    Ok(TreeState { tree: own, dirty: is_dirty(listing, &clean) })
}

fn commit_of(nested: &super::protocol::Nested) -> Option<ObjectId> {
    ObjectId::from_hex(nested.commit.as_ref()?.as_bytes())
}

fn tree_of(
    tracked: &Tracked<'_>,
    index: &Index,
    places: &Places,
    program: Option<&dyn GitProgram>,
) -> Result<ObjectId, String> {
    let Some(first) = tracked.unclear.first() else {
        return tracked.refused.clone().map_or_else(|| Ok(tracked.tree(&TreeEntries::new())), Err);
    };
    if let Some(why) = &tracked.refused {
        return Err(why.clone());
    }
    let path = display_path(first);
    let unclear = |why: &str| format!("git converts `{path}` when it is added, and {why}");
    let program = program.ok_or_else(|| unclear("no sandbox was at hand to ask it in"))?;
    let told = converted(program, places, index, &tracked.unclear).map_err(|why| unclear(&why))?;
    Ok(tracked.tree(&told))
}

/// The tree of HEAD; before the first commit, the empty one.
fn head_tree(index: &Index) -> ObjectId {
    index.head_tree.unwrap_or_else(|| tree_id(index.format, &BTreeMap::new()))
}

/// Whether some repository has changes, something is untracked, or a repository stands there that
/// the one around it does not know.
fn is_dirty(listing: &Listing, clean: &[Option<bool>]) -> Option<bool> {
    let known = |path: &[u8]| listing.indexes.iter().any(|index| index.holds_gitlink(path));
    let untracked = listing.untracked.iter().any(|path| !is_our_artifact(&path.0))
        || listing.nested.iter().any(|nested| !known(&nested.path.0));
    if untracked || clean.contains(&Some(false)) {
        return Some(true);
    }
    clean.iter().all(|clean| *clean == Some(true)).then_some(false)
}
