//! What a checkout of a commit would be, without one: the identity of its tree, and single files of it. Read from
//! the blobs themselves; what an index or a worktree says of them plays no part.

use git2::{ObjectType, Odb};
use proctor_core::digest::{Sha256Hex, SnapshotId};
use proctor_core::drift::is_our_artifact;
use proctor_core::spec;
use sha2::{Digest as _, Sha256};

use super::plan::{Bounds, Leaf, LeafKind, Plan};
use super::{Source, find};
use crate::entries::{Entries, Found, Kind};
use crate::git::GitError;
use crate::git::protocol::{CommitContent, CommittedFile, RepoPath};
use crate::git::reader::{Opened, unreadable};

/// The largest file of which single questions are answered, in bytes.
const MAX_FILE: u64 = 4 << 20;

/// The identity that the commit's tree has as a snapshot, and its spec.
pub(in crate::git) fn content(top: &Opened, commit: &str) -> Result<CommitContent, GitError> {
    let commit = find(top, commit)?;
    let source = Source { repository: &top.repository, worktree: &top.worktree, commit: &commit };
    let plan = Plan::of(&source, &mut Bounds::default())?;
    let reader = Reader { source: &source, objects: objects(top)? };
    Ok(CommitContent { snapshot: reader.snapshot(&plan)?, spec: reader.spec(&plan)? })
}

/// What single files of a commit's tree are; nothing where none of them stands, or a link, or more than is read.
pub(in crate::git) fn files(
    top: &Opened,
    commit: &str,
    paths: &[RepoPath],
) -> Result<Vec<Option<CommittedFile>>, GitError> {
    let commit = find(top, commit)?;
    let source = Source { repository: &top.repository, worktree: &top.worktree, commit: &commit };
    let plan = Plan::of(&source, &mut Bounds::default())?;
    let reader = Reader { source: &source, objects: objects(top)? };
    paths.iter().map(|path| reader.file(&plan, &path.0)).collect()
}

fn objects(top: &Opened) -> Result<Odb<'_>, GitError> {
    top.repository.odb().map_err(|error| unreadable(&top.worktree, &error))
}

struct Reader<'a> {
    source: &'a Source<'a>,
    objects: Odb<'a>,
}

impl Reader<'_> {
    /// Nothing where the tree holds submodules, whose place is for a checkout to say.
    fn snapshot(&self, plan: &Plan) -> Result<Option<SnapshotId>, GitError> {
        let mut leaves = Vec::with_capacity(plan.leaves.len());
        for leaf in plan.leaves.iter().filter(|leaf| !is_our_artifact(&leaf.path)) {
            let kind = match leaf.kind {
                LeafKind::File { executable: false } => Kind::File,
                LeafKind::File { executable: true } => Kind::Executable,
                LeafKind::Symlink => Kind::Symlink,
                LeafKind::Gitlink => return Ok(None),
            };
            let sha256 = Sha256::digest(self.bytes(leaf)?).into();
            leaves.push((leaf.path.clone(), true, Found { kind, sha256, ..Found::MISSING }));
        }
        Ok(Some(Entries::of_leaves(leaves).id()))
    }

    fn spec(&self, plan: &Plan) -> Result<Option<String>, GitError> {
        match regular(plan, spec::PATH.as_bytes()) {
            Some((leaf, _)) if leaf.size <= spec::MAX_BYTES as u64 => Ok(String::from_utf8(self.bytes(leaf)?).ok()),
            _ => Ok(None),
        }
    }

    fn file(&self, plan: &Plan, path: &[u8]) -> Result<Option<CommittedFile>, GitError> {
        match regular(plan, path) {
            Some((leaf, executable)) if leaf.size <= MAX_FILE => {
                Ok(Some(CommittedFile { executable, sha256: Sha256Hex::of(&self.bytes(leaf)?) }))
            }
            _ => Ok(None),
        }
    }

    fn bytes(&self, leaf: &Leaf) -> Result<Vec<u8>, GitError> {
        let read = self.objects.read(leaf.id);
        let object =
            read.map_err(|error| self.source.refused(&leaf.path, format!("cannot be read: {}", error.message())))?;
        if object.kind() != ObjectType::Blob || object.data().len() as u64 != leaf.size {
            return Err(self.source.refused(&leaf.path, "is another object than its head says"));
        }
        Ok(object.data().to_vec())
    }
}

fn regular<'p>(plan: &'p Plan, path: &[u8]) -> Option<(&'p Leaf, bool)> {
    let at = plan.leaves.binary_search_by(|leaf| leaf.path.as_slice().cmp(path)).ok()?;
    match plan.leaves[at].kind {
        LeafKind::File { executable } => Some((&plan.leaves[at], executable)),
        LeafKind::Symlink | LeafKind::Gitlink => None,
    }
}
