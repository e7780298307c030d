//! Reads the tree of a commit and its blobs.
//!
//! The blobs are sent unchanged: no filter, line-ending conversion or hook takes part, so that the bytes are
//! exactly those of the commit's tree. An invalid or excessive tree (`..`, `.git`, a million levels) is refused
//! with the offending name before any blob is read.

use std::borrow::Cow;
use std::io::Write;
use std::path::Path;

use proctor_core::model::drift::display_path;

use crate::error::GitError;
use crate::files::paths;
use crate::files::repo_path::RepoPath;
use crate::object::object_id::{ObjectId, ObjectKind};
use crate::object::object_parser::ParsedCommit;
use crate::protocol::{CommitRef, CommitSubmodule, CommitTree, CommittedLeaf};
use crate::repository::history::RepositoryHistory;
use crate::repository::object_reader::ObjectReader;
use crate::wire::answer_frames::BlobWriter;
use checkout_plan::{CheckoutBudget, CheckoutPlan, PlannedLeaf, PlannedLeafKind};

mod checkout_plan;
pub mod commit_content;
mod submodules;

/// A repository whose commit is read: the top repository or a submodule.
struct CommitRepository<'a> {
    /// The path of the submodule; empty for the top.
    path: &'a [u8],
    source: &'a OpenCommit<'a>,
    /// The directory of its objects.
    objects: &'a Path,
    plan: &'a CheckoutPlan,
}

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

/// A commit of a repository, either the top or a submodule.
struct OpenCommit<'a> {
    objects: ObjectReader<'a>,
    commit: ParsedCommit,
}

impl<'a> OpenCommit<'a> {
    /// Returns the commit with this id in the repository itself.
    fn open(history: &'a RepositoryHistory<'_>, commit: &str) -> Result<Self, GitError> {
        let objects = history.objects()?;
        let commit = objects.commit(history.parse_id(commit)?).map_err(|problem| history.unreadable(problem))?;
        Ok(Self { objects, commit })
    }

    /// Returns the tree that the commit names; making the plan checks whether it exists.
    fn tree_id(&self) -> ObjectId {
        self.commit.tree
    }

    /// Returns the bytes of the commit.
    fn commit_bytes(&self) -> Result<Vec<u8>, GitError> {
        match self.objects.read(self.commit.id) {
            Ok(Some((ObjectKind::Commit, bytes))) => Ok(bytes.into_owned()),
            Ok(_) => Err(self.tree_error(b"", "is no commit any more")),
            Err(problem) => Err(self.tree_error(b"", format!("cannot be read: {problem}"))),
        }
    }

    /// Returns the content of a file, or the target of a link.
    fn content(&self, leaf: &PlannedLeaf) -> Result<Cow<'a, [u8]>, GitError> {
        let content = self.blob(leaf)?;
        if leaf.kind == PlannedLeafKind::Symlink && content.contains(&0) {
            return Err(self.tree_error(&leaf.path, "is a link whose target holds a NUL byte"));
        }
        Ok(content)
    }

    /// Returns the blob of a planned file or link.
    fn blob(&self, leaf: &PlannedLeaf) -> Result<Cow<'a, [u8]>, GitError> {
        let read = self.objects.read(leaf.id);
        match read.map_err(|problem| self.tree_error(&leaf.path, format!("cannot be read: {problem}")))? {
            Some((ObjectKind::Blob, bytes)) if bytes.len() as u64 == leaf.size => Ok(bytes),
            _ => Err(self.tree_error(&leaf.path, "is another object than its head says")),
        }
    }

    /// Makes the error for an invalid tree.
    fn tree_error(&self, path: &[u8], problem: impl Into<String>) -> GitError {
        GitError::Tree { commit: self.commit.id.to_string(), path: display_path(path), problem: problem.into() }
    }
}

/// Checks whether a leaf is a submodule.
fn is_gitlink(leaf: &PlannedLeaf) -> bool {
    leaf.kind == PlannedLeafKind::Gitlink
}
