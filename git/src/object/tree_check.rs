//! Verifies data read from a commit against the commit's id.

use std::collections::HashMap;

use crate::files::paths;
use crate::object::name_rules;
use crate::object::object_id::{InvalidObjectId, ObjectId, ObjectKind, object_id};
use crate::object::object_parser;
use crate::object::tree_identity::{TreeFile, tree_id_with};
use crate::protocol::{CommitTree, CommittedLeaf};

/// How the data of a commit differ from the commit's id.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum CommitMismatch {
    /// The commit has no valid id.
    #[error(transparent)]
    InvalidId(#[from] InvalidObjectId),
    /// The tree does not name the commit of a submodule.
    #[error("its tree does not contain the commit {0} of a submodule")]
    UnnamedSubmodule(ObjectId),
    /// Files belong to no repository of the commit.
    #[error("it has files that do not belong to any of its repositories")]
    StrayFiles,
    /// The bytes of a commit have another id.
    #[error("the object that was read as the commit {0} has a different id")]
    OtherCommit(ObjectId),
    /// The bytes of a commit do not have the form of a commit.
    #[error("the commit {0} is malformed")]
    MalformedCommit(ObjectId),
    /// A name is not allowed in a tree.
    #[error("a path in the tree of the commit {commit} {problem}")]
    BadName {
        /// The commit.
        commit: ObjectId,
        /// The problem with the name.
        problem: &'static str,
    },
    /// The files of a commit result in a different tree.
    #[error("the object that was read as the tree of the commit {0} has a different id")]
    OtherTree(ObjectId),
}

/// Verifies the ids of a commit, of its tree, and of the commits and trees of its submodules. Does not verify the
/// contents of blobs.
///
/// # Errors
/// The difference.
pub fn verify(tree: &CommitTree, commit: &str) -> Result<(), CommitMismatch> {
    let id = ObjectId::from_hex(commit.as_bytes()).ok_or_else(|| InvalidObjectId(commit.to_owned()))?;
    let modules = tree.submodules.iter().map(|module| (module.path.0.as_slice(), module.commit, &module.object.0));
    let mut rest = tree.leaves.as_slice();
    for (path, id, object) in std::iter::once((&b""[..], id, &tree.object.0)).chain(modules) {
        if !path.is_empty() && !tree.leaves.iter().any(|leaf| leaf.path == path && leaf.id == id) {
            return Err(CommitMismatch::UnnamedSubmodule(id));
        }
        let count = rest.iter().take_while(|leaf| belongs_to_repository(tree, path, leaf)).count();
        let (own, others) = rest.split_at(count);
        rest = others;
        verify_repository(tree, path, (id, object), own)?;
    }
    if rest.is_empty() { Ok(()) } else { Err(CommitMismatch::StrayFiles) }
}

/// Returns the id of the tree that the commit names.
pub fn tree_id_of_commit(tree: &CommitTree) -> Option<ObjectId> {
    let id = object_id(tree.format, ObjectKind::Commit, &tree.object.0);
    Some(object_parser::parse_commit(id, &tree.object.0)?.tree)
}

/// Returns the first parent of the commit.
pub fn first_parent(tree: &CommitTree) -> Option<ObjectId> {
    let mut lines = tree.object.0.split(|byte| *byte == b'\n').take_while(|line| !line.is_empty());
    lines.find_map(|line| ObjectId::from_hex(line.strip_prefix(b"parent ")?))
}

/// Returns whether a leaf belongs directly to the repository at `path`, and not to a submodule inside it.
fn belongs_to_repository(tree: &CommitTree, path: &[u8], leaf: &CommittedLeaf) -> bool {
    let is_inside = |outer: &[u8], inner: &[u8]| outer.is_empty() || paths::is_below(inner, outer);
    is_inside(path, &leaf.path)
        && !tree.submodules.iter().any(|other| {
            other.path.0 != path && is_inside(path, &other.path.0) && paths::is_below(&leaf.path, &other.path.0)
        })
}

fn verify_repository(
    tree: &CommitTree,
    path: &[u8],
    (id, object): (ObjectId, &Vec<u8>),
    leaves: &[CommittedLeaf],
) -> Result<(), CommitMismatch> {
    if object_id(id.format(), ObjectKind::Commit, object) != id {
        return Err(CommitMismatch::OtherCommit(id));
    }
    let commit = object_parser::parse_commit(id, object).ok_or(CommitMismatch::MalformedCommit(id))?;
    let names = leaves.iter().flat_map(|leaf| leaf.path.split(|byte| *byte == b'/'));
    if let Some(problem) = names.filter_map(name_rules::name_problem).next() {
        return Err(CommitMismatch::BadName { commit: id, problem });
    }
    let depth = if path.is_empty() { 0 } else { path.len() + 1 };
    let files: Vec<_> =
        leaves.iter().map(|leaf| TreeFile { path: &leaf.path[depth..], mode: leaf.mode, id: leaf.id }).collect();
    let inside = |odd: &[u8]| {
        odd.len() >= path.len()
            && odd.starts_with(path)
            && (depth == 0 || odd.len() == path.len() || odd[path.len()] == b'/')
    };
    let odd = tree.odd.iter().filter(|(at, _)| inside(&at.0));
    let odd: HashMap<&[u8], &[u8]> =
        odd.map(|(at, object)| (at.0.get(depth..).unwrap_or_default(), object.0.as_slice())).collect();
    match tree_id_with(id.format(), &files, &odd) {
        Some(found) if found == commit.tree => Ok(()),
        _ => Err(CommitMismatch::OtherTree(id)),
    }
}
