//! Reads the tree of a commit and its blobs.
//!
//! The blobs are sent unchanged: no filter, line-ending conversion or hook takes part, so that the bytes are
//! exactly those of the commit's tree. An invalid or excessive tree (`..`, `.git`, a million levels) is refused
//! with the offending name before any blob is read.

use std::io::Write;

use crate::error::GitError;
use crate::files::paths;
use crate::files::repo_path::RepoPath;
use crate::protocol::{CommitRef, CommitSubmodule, CommitTree, CommittedLeaf, WantedLeaf};
use crate::repository::commit_tree::open_commit::OpenCommit;
use crate::repository::commit_tree::planned_leaf::{PlannedLeaf, PlannedLeafKind, is_gitlink};
use crate::repository::commit_tree::submodules::CommitRepository;
use crate::repository::history::RepositoryHistory;
use crate::repository::object_reader::ObjectReader;
use crate::wire::answer_frames::BlobWriter;
use checkout_plan::{CheckoutBudget, CheckoutPlan, check_blobs};

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

/// The leaves of a tree whose blobs are sent.
#[derive(Debug, Clone, Copy)]
pub(crate) struct WantedBlobs<'a> {
    /// If true, the trees of submodules are included.
    pub(crate) submodules: bool,
    /// The leaves, in the order of [`CommitTree::leaves`].
    pub(crate) leaves: &'a [WantedLeaf],
    /// Size of the files that the receiver has already, in bytes.
    pub(crate) held_bytes: u64,
}

/// Sends the blobs of some leaves of a tree, after it has checked all of them.
pub(crate) fn blobs(
    history: &RepositoryHistory<'_>,
    commit: &CommitRef,
    wanted: WantedBlobs<'_>,
    out: &mut dyn Write,
) -> Result<(), GitError> {
    let WantedBlobs { submodules, leaves: wanted, held_bytes } = wanted;
    let source = OpenCommit::open(history, &commit.id)?;
    let mut bounds = CheckoutBudget::beside(held_bytes);
    visit_wanted(history, &source, (submodules, wanted), &mut |part, leaves| {
        check_blobs(part, leaves.iter().map(|(_, leaf)| leaf), &mut bounds)
    })?;
    let mut blobs = BlobWriter::new(out);
    let sent = |result: std::io::Result<()>| result.map_err(|error| history.unreadable(error.to_string()));
    visit_wanted(history, &source, (submodules, wanted), &mut |part, leaves| {
        leaves.iter().try_for_each(|(number, leaf)| sent(blobs.write(*number, &part.content(leaf)?)))
    })?;
    sent(blobs.finish())
}

/// Takes the wanted files and links of one repository of a commit, with their numbers.
type WantedVisitor<'v> = dyn FnMut(&OpenCommit<'_>, &[(u32, PlannedLeaf)]) -> Result<(), GitError> + 'v;

/// Visits the wanted files and links of each repository of a commit, with their numbers.
fn visit_wanted(
    history: &RepositoryHistory<'_>,
    source: &OpenCommit<'_>,
    (submodules, wanted): (bool, &[WantedLeaf]),
    visitor: &mut WantedVisitor<'_>,
) -> Result<(), GitError> {
    if !submodules {
        // Without submodules, all leaves belong to the commit itself, so its trees need not be read.
        let leaves = wanted.iter().map(|leaf| {
            let kind = PlannedLeafKind::from_mode(leaf.mode)
                .ok_or_else(|| history.unreadable("a file with an unknown mode was requested"))?;
            Ok((leaf.number, PlannedLeaf { path: leaf.path.0.clone(), kind, mode: leaf.mode, id: leaf.id }))
        });
        return visitor(source, &leaves.collect::<Result<Vec<_>, GitError>>()?);
    }
    let (mut number, mut wanted) = (0, wanted.iter().map(|leaf| leaf.number).peekable());
    visit_repositories(history, source, submodules, &mut |part| {
        let mut leaves = Vec::new();
        for leaf in &part.plan.leaves {
            if wanted.next_if_eq(&number).is_some() && leaf.kind != PlannedLeafKind::Gitlink {
                leaves.push((number, leaf.clone()));
            }
            number += 1;
        }
        visitor(part.source, &leaves)
    })
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
    CommittedLeaf { path: paths::join(prefix, &leaf.path), mode: leaf.mode, id: leaf.id }
}
