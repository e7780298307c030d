//! Computes the identity of a commit's tree and reads single files of it without a checkout. The blobs are read
//! directly; the index and the worktree are not used.

use proctor_core::model::drift::is_evidence_path;
use proctor_core::spec;
use proctor_core::text::digest::{Sha256Hex, SnapshotId};
use sha2::{Digest as _, Sha256};

use crate::error::GitError;
use crate::files::repo_path::RepoPath;
use crate::protocol::{CommitTreeContent, CommittedFile};
use crate::repository::commit_tree::checkout_plan::{CheckoutBudget, CheckoutPlan};
use crate::repository::commit_tree::open_commit::OpenCommit;
use crate::repository::commit_tree::planned_leaf::{PlannedLeaf, PlannedLeafKind};
use crate::repository::history::RepositoryHistory;

/// The largest file that is read on request, in bytes.
const MAX_FILE: u64 = 4 << 20;

/// A file or link of a commit's tree, with its content hashed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HashedLeaf {
    /// The path in the tree.
    pub path: Vec<u8>,
    /// The kind of entry.
    pub kind: HashedLeafKind,
    /// The sha256 of the content, or of the target of a link.
    pub sha256: [u8; 32],
}

/// The kind of a [`HashedLeaf`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum HashedLeafKind {
    /// A file that is not executable.
    File,
    /// An executable file.
    Executable,
    /// A symbolic link.
    Symlink,
}

/// Computes the identity of a tree from all its files and links.
pub type IdentifyTree = fn(Vec<HashedLeaf>) -> SnapshotId;

/// Returns the identity of the commit's tree as a snapshot, and the texts of the files at `paths`.
pub(crate) fn read_content(
    history: &RepositoryHistory<'_>,
    commit: &str,
    paths: &[RepoPath],
    identify: IdentifyTree,
) -> Result<CommitTreeContent, GitError> {
    let source = OpenCommit::open(history, commit)?;
    let plan = CheckoutPlan::for_commit(&source, &mut CheckoutBudget::default())?;
    let reader = CommitContentReader { source: &source };
    let texts = paths.iter().map(|path| reader.text(&plan, &path.0)).collect::<Result<_, _>>()?;
    Ok(CommitTreeContent { snapshot: reader.snapshot(&plan, identify)?, texts })
}

/// Returns single files of a commit's tree. An element is `None` if the path does not exist, is not a regular file,
/// or exceeds the size limit.
pub(crate) fn read_files(
    history: &RepositoryHistory<'_>,
    commit: &str,
    paths: &[RepoPath],
) -> Result<Vec<Option<CommittedFile>>, GitError> {
    let source = OpenCommit::open(history, commit)?;
    let plan = CheckoutPlan::for_commit(&source, &mut CheckoutBudget::default())?;
    let reader = CommitContentReader { source: &source };
    paths.iter().map(|path| reader.file(&plan, &path.0)).collect()
}

struct CommitContentReader<'a> {
    source: &'a OpenCommit<'a>,
}

impl CommitContentReader<'_> {
    /// Computes the identity. Returns `None` if the tree contains submodules, whose directories only a checkout
    /// determines.
    fn snapshot(&self, plan: &CheckoutPlan, identify: IdentifyTree) -> Result<Option<SnapshotId>, GitError> {
        let mut leaves = Vec::with_capacity(plan.leaves.len());
        for leaf in plan.leaves.iter().filter(|leaf| !is_evidence_path(&leaf.path)) {
            let kind = match leaf.kind {
                PlannedLeafKind::File { executable: false } => HashedLeafKind::File,
                PlannedLeafKind::File { executable: true } => HashedLeafKind::Executable,
                PlannedLeafKind::Symlink => HashedLeafKind::Symlink,
                PlannedLeafKind::Gitlink => return Ok(None),
            };
            let sha256 = Sha256::digest(self.source.blob(leaf)?).into();
            leaves.push(HashedLeaf { path: leaf.path.clone(), kind, sha256 });
        }
        Ok(Some(identify(leaves)))
    }

    fn text(&self, plan: &CheckoutPlan, path: &[u8]) -> Result<Option<String>, GitError> {
        match regular_file(plan, path) {
            Some((leaf, _)) if leaf.size <= spec::MAX_BYTES as u64 => {
                Ok(String::from_utf8(self.source.blob(leaf)?.into_owned()).ok())
            }
            _ => Ok(None),
        }
    }

    fn file(&self, plan: &CheckoutPlan, path: &[u8]) -> Result<Option<CommittedFile>, GitError> {
        match regular_file(plan, path) {
            Some((leaf, executable)) if leaf.size <= MAX_FILE => {
                let bytes = self.source.blob(leaf)?;
                let shebang = CommittedFile::parse_shebang(&bytes);
                Ok(Some(CommittedFile { executable, sha256: Sha256Hex::digest(&bytes), shebang }))
            }
            _ => Ok(None),
        }
    }
}

fn regular_file<'p>(plan: &'p CheckoutPlan, path: &[u8]) -> Option<(&'p PlannedLeaf, bool)> {
    let at = plan.leaves.binary_search_by(|leaf| leaf.path.as_slice().cmp(path)).ok()?;
    match plan.leaves[at].kind {
        PlannedLeafKind::File { executable } => Some((&plan.leaves[at], executable)),
        PlannedLeafKind::Symlink | PlannedLeafKind::Gitlink => None,
    }
}
