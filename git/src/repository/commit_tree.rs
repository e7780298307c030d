//! Reads the tree of a commit and its blobs.
//!
//! The blobs are sent unchanged: no filter, line-ending conversion or hook takes part, so that the bytes are
//! exactly those of the commit's tree. An invalid or excessive tree (`..`, `.git`, a million levels) is refused
//! with the offending name before any blob is read.

use std::io::Write;

use crate::error::GitError;
use crate::files::paths;
use crate::files::repo_path::RepoPath;
use crate::protocol::{CommitRef, CommitSubmodule, CommitTree, CommittedLeaf};
use crate::repository::commit_tree::open_commit::OpenCommit;
use crate::repository::commit_tree::planned_leaf::{PlannedLeaf, PlannedLeafKind, is_gitlink};
use crate::repository::commit_tree::submodules::CommitRepository;
use crate::repository::history::RepositoryHistory;
use crate::repository::object_reader::ObjectReader;
use crate::wire::answer_frames::BlobWriter;
use checkout_plan::{CheckoutBudget, CheckoutPlan};

mod checkout_plan;
pub mod commit_content;
pub(crate) mod open_commit;
pub(crate) mod planned_leaf;
mod submodules;

/// Returns the entries of a commit's tree, and those of its submodules if requested.
pub(crate) fn tree(
    history: &RepositoryHistory<'_>,
    commit: &CommitRef,
    submodules: bool,
) -> Result<CommitTree, GitError> {
    let source = OpenCommit::open(history, &commit.id)?;
    let object = source.commit_bytes()?;
    let mut tree = CommitTree {
        object: RepoPath(object),
        format: source.commit.id.format(),
        odd: Vec::new(),
        submodules: Vec::new(),
        leaves: Vec::new(),
    };
    visit_repositories(history, &source, submodules, &mut |part| {
        if !part.path.is_empty() {
            tree.submodules.push(CommitSubmodule {
                path: RepoPath(part.path.to_vec()),
                commit: part.source.commit.id,
                object: RepoPath(part.source.commit_bytes()?),
                objects: part.objects.to_owned(),
            });
        }
        let odd = part.plan.noncanonical_trees.iter();
        tree.odd.extend(odd.map(|(path, object)| (RepoPath(paths::join(part.path, path)), RepoPath(object.clone()))));
        tree.leaves.extend(part.plan.leaves.iter().map(|leaf| committed_leaf(part.path, leaf)));
        Ok(())
    })?;
    Ok(tree)
}

/// Sends the blobs of the `wanted` leaves of a tree. The numbers are sorted and refer to the order of
/// [`crate::object::tree_identity`].
pub(crate) fn blobs(
    history: &RepositoryHistory<'_>,
    commit: &CommitRef,
    submodules: bool,
    wanted: &[u32],
    out: &mut dyn Write,
) -> Result<(), GitError> {
    let source = OpenCommit::open(history, &commit.id)?;
    let (mut number, mut wanted) = (0, wanted.iter().copied().peekable());
    let mut blobs = BlobWriter::new(out);
    let sent = |result: std::io::Result<()>| result.map_err(|error| history.unreadable(error.to_string()));
    visit_repositories(history, &source, submodules, &mut |part| {
        for leaf in &part.plan.leaves {
            if wanted.next_if_eq(&number).is_some() && leaf.kind != PlannedLeafKind::Gitlink {
                sent(blobs.write(number, &part.source.content(leaf)?))?;
            }
            number += 1;
        }
        Ok(())
    })?;
    sent(blobs.finish())
}

fn visit_repositories(
    history: &RepositoryHistory<'_>,
    source: &OpenCommit<'_>,
    submodules: bool,
    visitor: &mut dyn FnMut(&CommitRepository<'_>) -> Result<(), GitError>,
) -> Result<(), GitError> {
    let mut bounds = CheckoutBudget::default();
    let plan = CheckoutPlan::for_commit(source, &mut bounds)?;
    let objects = history.paths.common_dir.join("objects");
    let top = CommitRepository { path: b"", source, objects: &objects, plan: &plan };
    visitor(&top)?;
    if submodules && plan.leaves.iter().any(is_gitlink) {
        if matches!(source.objects, ObjectReader::Program(_)) {
            return Err(submodules::unsupported_error(history.worktree()));
        }
        submodules::visit_submodules(&history.paths, &top, &mut bounds, visitor)?;
    }
    Ok(())
}

fn committed_leaf(prefix: &[u8], leaf: &PlannedLeaf) -> CommittedLeaf {
    CommittedLeaf { path: paths::join(prefix, &leaf.path), mode: leaf.mode, id: leaf.id, size: leaf.size }
}
