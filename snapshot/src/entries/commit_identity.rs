//! Computes the identity of a commit's tree that is not checked out.

use proctor_core::text::digest::SnapshotId;
use proctor_git::repository::commit_tree::commit_content::{HashedLeaf, HashedLeafKind};

use super::{EntryTree, ScannedEntry, ScannedKind};

/// Returns the identity of a tree that consists of these files and links.
pub fn identify_commit_tree(leaves: Vec<HashedLeaf>) -> SnapshotId {
    let leaves = leaves.into_iter().map(|leaf| {
        let kind = match leaf.kind {
            HashedLeafKind::File => ScannedKind::File,
            HashedLeafKind::Executable => ScannedKind::Executable,
            HashedLeafKind::Symlink => ScannedKind::Symlink,
        };
        (leaf.path, true, ScannedEntry { kind, sha256: leaf.sha256, ..ScannedEntry::MISSING })
    });
    EntryTree::from_leaves(leaves).id()
}
