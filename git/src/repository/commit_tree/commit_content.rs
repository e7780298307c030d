//! Computes the identity of a commit's tree and reads single files of it without a checkout. The blobs are read
//! directly; the index and the worktree are not used.

use proctor_core::model::drift::is_evidence_path;
use proctor_core::spec;
use proctor_core::text::digest::{Sha256Hex, SnapshotId};
use sha2::{Digest as _, Sha256};

use crate::error::GitError;
use crate::files::repo_path::RepoPath;
use crate::protocol::{CommitTreeContent, CommittedFile};
use crate::repository::commit_tree::checkout_plan::{CheckoutBudget, CheckoutPlan, check_blobs};
use crate::repository::commit_tree::open_commit::OpenCommit;
use crate::repository::commit_tree::planned_leaf::PlannedLeafKind;
use crate::repository::history::RepositoryHistory;

/// The directory of changesets, at the top of a tree.
const CHANGESETS: &[u8] = b"changes";
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

/// Returns the texts of the files at `paths` and, with `identify`, the identity of the commit's tree as a snapshot, for
/// which all files are read.
pub(crate) fn read_content(
    history: &RepositoryHistory<'_>,
    commit: &str,
    paths: &[RepoPath],
    identify: Option<IdentifyTree>,
) -> Result<CommitTreeContent, GitError> {
    let source = OpenCommit::open(history, commit)?;
    let reader = CommitContentReader { source: &source };
    let texts = paths.iter().map(|path| reader.text(&path.0)).collect::<Result<_, _>>()?;
    let snapshot = identify.map(|identify| reader.snapshot(identify)).transpose()?.flatten();
    let tree = (!source.has_directory(CHANGESETS)?).then(|| source.tree_id().to_string());
    Ok(CommitTreeContent { tree, snapshot, texts })
}

/// Returns single files of a commit's tree. An element is `None` if the path does not exist, is not a regular file,
/// or exceeds the size limit.
pub(crate) fn read_files(
    history: &RepositoryHistory<'_>,
    commit: &str,
    paths: &[RepoPath],
) -> Result<Vec<Option<CommittedFile>>, GitError> {
    let source = OpenCommit::open(history, commit)?;
    let reader = CommitContentReader { source: &source };
    paths.iter().map(|path| reader.file(&path.0)).collect()
}

struct CommitContentReader<'a> {
    source: &'a OpenCommit<'a>,
}

impl CommitContentReader<'_> {
    /// Computes the identity. Returns `None` if the tree contains submodules, whose directories only a checkout
    /// determines.
    fn snapshot(&self, identify: IdentifyTree) -> Result<Option<SnapshotId>, GitError> {
        let mut bounds = CheckoutBudget::default();
        let plan = CheckoutPlan::for_commit(self.source, &mut bounds)?;
        check_blobs(self.source, plan.leaves.iter(), &mut bounds)?;
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

    fn text(&self, path: &[u8]) -> Result<Option<String>, GitError> {
        let Some((leaf, _)) = self.source.file_at(path)? else { return Ok(None) };
        let bytes = self.source.small_blob(&leaf, spec::MAX_BYTES as u64)?;
        Ok(bytes.and_then(|bytes| String::from_utf8(bytes.into_owned()).ok()))
    }

    fn file(&self, path: &[u8]) -> Result<Option<CommittedFile>, GitError> {
        let Some((leaf, executable)) = self.source.file_at(path)? else { return Ok(None) };
        let bytes = self.source.small_blob(&leaf, MAX_FILE)?;
        Ok(bytes.map(|bytes| {
            let shebang = CommittedFile::parse_shebang(&bytes);
            CommittedFile { executable, sha256: Sha256Hex::digest(&bytes), shebang }
        }))
    }
}
