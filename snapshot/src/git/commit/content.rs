//! Computes the identity of a commit's tree and reads single files of it without a checkout. The blobs are read
//! directly; the index and the worktree are not used.

use proctor_core::digest::{Sha256Hex, SnapshotId};
use proctor_core::drift::is_our_artifact;
use proctor_core::spec;
use sha2::{Digest as _, Sha256};

use super::Source;
use super::plan::{Bounds, Leaf, LeafKind, Plan};
use crate::entries::{Entries, Found, Kind};
use crate::git::GitError;
use crate::git::history::History;
use crate::git::protocol::{CommitContent, CommittedFile, RepoPath};

/// The largest file that is read on request, in bytes.
const MAX_FILE: u64 = 4 << 20;

/// Returns the identity of the commit's tree as a snapshot, and its spec.
pub(in crate::git) fn content(history: &History<'_>, commit: &str) -> Result<CommitContent, GitError> {
    let source = Source::of(history, commit)?;
    let plan = Plan::of(&source, &mut Bounds::default())?;
    let reader = Reader { source: &source };
    Ok(CommitContent { snapshot: reader.snapshot(&plan)?, spec: reader.spec(&plan)? })
}

/// Returns single files of a commit's tree. An element is `None` if the path does not exist, is not a regular file,
/// or exceeds the size limit.
pub(in crate::git) fn files(
    history: &History<'_>,
    commit: &str,
    paths: &[RepoPath],
) -> Result<Vec<Option<CommittedFile>>, GitError> {
    let source = Source::of(history, commit)?;
    let plan = Plan::of(&source, &mut Bounds::default())?;
    let reader = Reader { source: &source };
    paths.iter().map(|path| reader.file(&plan, &path.0)).collect()
}

struct Reader<'a> {
    source: &'a Source<'a>,
}

impl Reader<'_> {
    /// Computes the identity. Returns `None` if the tree contains submodules, whose directories only a checkout
    /// determines.
    fn snapshot(&self, plan: &Plan) -> Result<Option<SnapshotId>, GitError> {
        let mut leaves = Vec::with_capacity(plan.leaves.len());
        for leaf in plan.leaves.iter().filter(|leaf| !is_our_artifact(&leaf.path)) {
            let kind = match leaf.kind {
                LeafKind::File { executable: false } => Kind::File,
                LeafKind::File { executable: true } => Kind::Executable,
                LeafKind::Symlink => Kind::Symlink,
                LeafKind::Gitlink => return Ok(None),
            };
            let sha256 = Sha256::digest(self.source.blob(leaf)?).into();
            leaves.push((leaf.path.clone(), true, Found { kind, sha256, ..Found::MISSING }));
        }
        Ok(Some(Entries::of_leaves(leaves).id()))
    }

    fn spec(&self, plan: &Plan) -> Result<Option<String>, GitError> {
        match regular(plan, spec::PATH.as_bytes()) {
            Some((leaf, _)) if leaf.size <= spec::MAX_BYTES as u64 => {
                Ok(String::from_utf8(self.source.blob(leaf)?.into_owned()).ok())
            }
            _ => Ok(None),
        }
    }

    fn file(&self, plan: &Plan, path: &[u8]) -> Result<Option<CommittedFile>, GitError> {
        match regular(plan, path) {
            Some((leaf, executable)) if leaf.size <= MAX_FILE => {
                let bytes = self.source.blob(leaf)?;
                let shebang = CommittedFile::shebang_of(&bytes);
                Ok(Some(CommittedFile { executable, sha256: Sha256Hex::of(&bytes), shebang }))
            }
            _ => Ok(None),
        }
    }
}

fn regular<'p>(plan: &'p Plan, path: &[u8]) -> Option<(&'p Leaf, bool)> {
    let at = plan.leaves.binary_search_by(|leaf| leaf.path.as_slice().cmp(path)).ok()?;
    match plan.leaves[at].kind {
        LeafKind::File { executable } => Some((&plan.leaves[at], executable)),
        LeafKind::Symlink | LeafKind::Gitlink => None,
    }
}
