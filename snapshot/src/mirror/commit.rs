//! Updates a mirror to the tree of a commit. Only the blobs that the mirror lacks are read from the repository, and
//! each is hashed while it is written.

use std::collections::{HashMap, HashSet};
use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};
use std::path::Path;

use proctor_core::digest::Sha256Hex;
use proctor_core::drift::{display_path, is_our_artifact};
use rustix::fs::{Mode, OFlags, fchmod, fstat, futimens, openat, symlinkat};
use sha2::{Digest as _, Sha256};

use super::blobs::{BlobFact, BlobTable};
use super::copy::{self, CREATE};
use super::{Mirror, MirrorError, Owner};
use crate::beneath;
use crate::entries::{Entries, Found, Kind};
use crate::git::GitError;
use crate::git::helper::GitHelper;
use crate::git::index::{EXECUTABLE, GITLINK, SYMLINK};
use crate::git::object::{ObjectHasher, ObjectId, ObjectKind};
use crate::git::protocol::{BlobPieces, CommitRef, CommitTree, CommittedLeaf, GitHistory};
use crate::git::tree_check;
use crate::paths;
use crate::snapshot::{GitFacts, Snapshot, SnapshotError};
use crate::stamp::{Moment, Stamp};

/// The first line of a git-lfs pointer, a file that represents content stored elsewhere.
const LFS_POINTER: &[u8] = b"version https://git-lfs.github.com/spec/v1\n";
/// Git-lfs pointers are smaller than this size, in bytes.
const MAX_LFS_POINTER: u64 = 1024;

/// A commit for the mirror.
#[derive(Debug, Clone, Copy)]
pub struct CommitSource<'a> {
    /// The top of the repository's work tree.
    pub repo: &'a Path,
    /// The helper that reads the repository.
    pub helper: &'a GitHelper,
    /// The commit.
    pub commit: &'a CommitRef,
    /// The entries of its tree.
    pub tree: &'a CommitTree,
    /// If true, the trees of submodules are included.
    pub submodules: bool,
}

/// The result of an update to a commit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CommitUpdate {
    /// Number of files and links that were written.
    pub written: usize,
    /// Total size of these files, in bytes.
    pub bytes: u64,
    /// Number of files that are git-lfs pointers instead of the content.
    pub lfs_pointers: u64,
}

impl CommitSource<'_> {
    /// Returns the line in HEAD for steps: the commit. A staged commit does not exist yet, so steps see the
    /// repository's own HEAD.
    pub fn head(&self, history: &GitHistory) -> String {
        if self.commit.staged.is_none() {
            return self.commit.id.clone();
        }
        let parent = tree_check::parent_of(self.tree).map(|id| id.to_string());
        let branch = history.head.as_ref().and_then(|line| line.strip_prefix("ref: "));
        let target = branch.and_then(|branch| history.target(branch));
        match (parent, branch) {
            (parent, Some(branch)) if parent == target => format!("ref: {branch}"),
            (Some(parent), _) => parent,
            (None, branch) => format!("ref: {}", branch.unwrap_or("refs/heads/main")),
        }
    }
}

impl Mirror {
    /// Updates the mirror to the tree of a commit. Files whose content changes get new modification times, as
    /// described for [`Mirror::update`].
    ///
    /// # Errors
    /// The commit or its tree does not match its id, the repository cannot be read, or a file cannot be written.
    /// The update can be retried.
    pub fn update_to_commit(&mut self, source: &CommitSource<'_>) -> Result<CommitUpdate, MirrorError> {
        tree_check::verify(source.tree, &source.commit.id).map_err(|problem| unreadable(source.repo, problem))?;
        self.examine_unfinished()?;
        let mut table = BlobTable::load(self.directory.as_fd());
        let plan = Plan::new(source, self.record.held(), &table)?;
        let (mut written, mut bytes) = (0, 0);
        if !plan.changed.is_empty() {
            self.record.begin(&plan.changed)?;
            self.remove_outdated(&plan.changed)?;
            let mtime = self.record.next_mtime(crate::stamp::now());
            let mut receiver = Receiver::new(self.tree.as_fd(), self.owner, mtime, &plan, &source.tree.leaves);
            receiver.make_directories(&plan)?;
            receiver.receive(source, &plan)?;
            let Receiver { mut found, facts, .. } = receiver;
            (written, bytes) = (found.len(), found.iter().map(|(_, found)| found.stamp.size).sum());
            table.extend(facts);
            found.extend(plan.repositories(self.tree.as_fd(), self.owner)?);
            let there: HashSet<&[u8]> = found.iter().map(|(path, _)| path.as_slice()).collect();
            let gone: Vec<_> = plan.changed.iter().filter(|path| !there.contains(path.as_slice())).cloned().collect();
            found.extend(gone.into_iter().map(|path| (path, Found::MISSING)));
            self.record.finish(mtime, found)?;
            table.retain(source.tree.leaves.iter().map(|leaf| leaf.id));
            table.store(self.directory.as_fd())?;
        }
        let lfs_pointers = table.lfs_pointers(&source.tree.leaves);
        Ok(CommitUpdate { written, bytes, lfs_pointers })
    }

    /// Returns the number of git-lfs pointers in the tree of a commit, if the mirror contains this tree. Does not
    /// change anything.
    ///
    /// # Errors
    /// The commit's tree is invalid.
    pub fn lfs_pointers_of(&self, source: &CommitSource<'_>) -> Result<Option<u64>, MirrorError> {
        let table = BlobTable::load(self.directory.as_fd());
        let is_held = Plan::new(source, self.record.held(), &table)?.changed.is_empty();
        Ok(is_held.then(|| table.lfs_pointers(&source.tree.leaves)))
    }

    /// Returns the snapshot of a commit's tree, which the mirror must contain. Its files are at `worktree`.
    pub fn snapshot_of_commit(&self, worktree: &Path, source: &CommitSource<'_>) -> Snapshot {
        let held = self.record.held();
        let leaves = held.paths().map(|path| {
            let found = held.leaf(&path).map_or(Found::MISSING, |leaf| leaf.found);
            (path, true, found)
        });
        let git = worktree.join(".git");
        let facts = GitFacts {
            worktree: worktree.to_owned(),
            git_dir: git.clone(),
            common_dir: git,
            head_commit: Some(source.commit.id.clone()),
            branch: None,
            tree: Ok(tree_check::tree_of(source.tree).map(|id| id.to_string()).unwrap_or_default()),
            dirty: Some(false),
            object_format: source.tree.format,
            external_rules: Vec::new(),
        };
        Snapshot::of_commit(Entries::of_leaves(leaves), facts)
    }
}

fn unreadable(repo: &Path, problem: String) -> MirrorError {
    MirrorError::Snapshot(SnapshotError::Git(GitError::Unreadable { path: repo.to_owned(), problem }))
}

/// The differences between a mirror and the tree of a commit.
struct Plan<'a> {
    /// The paths that change; sorted.
    changed: Vec<Vec<u8>>,
    /// The numbers of the leaves to write; sorted.
    wanted: Vec<u32>,
    /// The repositories whose directories are created, with their digests for the identity.
    repositories: Vec<(&'a CommittedLeaf, [u8; 32])>,
}

impl<'a> Plan<'a> {
    fn new(source: &CommitSource<'a>, held: &Entries, table: &BlobTable) -> Result<Self, MirrorError> {
        let commits: HashSet<&[u8]> = source.tree.submodules.iter().map(|module| module.path.0.as_slice()).collect();
        let mut plan = Self { changed: Vec::new(), wanted: Vec::new(), repositories: Vec::new() };
        let mut covered = HashSet::new();
        for (number, leaf) in (0..).zip(&source.tree.leaves) {
            if is_our_artifact(&leaf.path) {
                continue;
            }
            covered.insert(leaf.path.as_slice());
            let found = held.leaf(&leaf.path).map_or(Found::MISSING, |leaf| leaf.found);
            if leaf.mode == GITLINK {
                let digest = digest_of_repository(leaf, commits.contains(leaf.path.as_slice()));
                if (found.kind, found.sha256) != (Kind::Gitlink, digest) {
                    plan.changed.push(leaf.path.clone());
                    plan.repositories.push((leaf, digest));
                }
            } else if found.kind != kind_of(leaf) || table.get(leaf.id).map(|fact| fact.sha256) != Some(found.sha256) {
                plan.changed.push(leaf.path.clone());
                plan.wanted.push(number);
            }
        }
        plan.changed.extend(held.paths().filter(|path| !covered.contains(path.as_slice())));
        plan.changed.sort_unstable();
        if plan.changed.windows(2).any(|two| two[0] == two[1]) {
            return Err(unreadable(source.repo, "two entries of the commit's tree have the same path".to_owned()));
        }
        Ok(plan)
    }

    /// Creates the directories of nested repositories, and returns their entries.
    fn repositories(
        &self,
        tree: BorrowedFd<'_>,
        owner: Option<Owner>,
    ) -> Result<impl Iterator<Item = (Vec<u8>, Found)>, MirrorError> {
        self.repositories.iter().try_for_each(|(leaf, _)| copy::make_directory(tree, &leaf.path, owner))?;
        Ok(self.repositories.iter().map(|(leaf, sha256)| {
            let found = Found { kind: Kind::Gitlink, sha256: *sha256, ..Found::MISSING };
            (leaf.path.clone(), found)
        }))
    }
}

/// Returns the digest of a nested repository for the identity: that of its commit, or of the empty string if its
/// tree is not included.
fn digest_of_repository(leaf: &CommittedLeaf, is_there: bool) -> [u8; 32] {
    let commit = if is_there { leaf.id.to_string() } else { String::new() };
    Sha256Hex::of(commit.as_bytes()).to_raw()
}

fn kind_of(leaf: &CommittedLeaf) -> Kind {
    match leaf.mode {
        EXECUTABLE => Kind::Executable,
        SYMLINK => Kind::Symlink,
        GITLINK => Kind::Gitlink,
        // Early versions of git wrote other modes for files.
        _ => Kind::File,
    }
}

/// Writes blobs to a mirror as they arrive.
struct Receiver<'a> {
    tree: BorrowedFd<'a>,
    owner: Option<Owner>,
    /// The modification time of all files.
    mtime: Moment,
    leaves: &'a [CommittedLeaf],
    /// The numbers of the leaves that have not arrived yet.
    to_come: std::slice::Iter<'a, u32>,
    /// The directory of the last leaf.
    here: Option<(&'a [u8], OwnedFd)>,
    open: Option<OpenBlob<'a>>,
    found: Vec<(Vec<u8>, Found)>,
    facts: HashMap<ObjectId, BlobFact>,
}

/// A blob that has arrived partially.
struct OpenBlob<'a> {
    number: u32,
    leaf: &'a CommittedLeaf,
    target: Target,
    sha256: Sha256,
    id: ObjectHasher,
    /// Number of bytes that have not arrived yet.
    left: u64,
    /// The first bytes, as many as are needed to recognize a git-lfs pointer.
    head: Vec<u8>,
}

enum Target {
    File(OwnedFd),
    /// The received part of a link's target.
    Link(Vec<u8>),
}

impl<'a> Receiver<'a> {
    fn new(
        tree: BorrowedFd<'a>,
        owner: Option<Owner>,
        mtime: Moment,
        plan: &'a Plan<'_>,
        leaves: &'a [CommittedLeaf],
    ) -> Self {
        let (found, facts) = (Vec::with_capacity(plan.wanted.len()), HashMap::new());
        Self { tree, owner, mtime, leaves, to_come: plan.wanted.iter(), here: None, open: None, found, facts }
    }

    fn make_directories(&self, plan: &Plan<'_>) -> Result<(), MirrorError> {
        let numbers = plan.wanted.iter().filter_map(|number| self.leaves.get(usize::try_from(*number).ok()?));
        let mut made: Vec<&[u8]> =
            numbers.chain(plan.repositories.iter().map(|(leaf, _)| *leaf)).map(|leaf| leaf.path.as_slice()).collect();
        made.sort_unstable();
        copy::make_directories_above(self.tree, self.owner, made)
    }

    fn receive(&mut self, source: &CommitSource<'_>, plan: &Plan<'_>) -> Result<(), MirrorError> {
        if plan.wanted.is_empty() {
            return Ok(());
        }
        let mut failure = None;
        let asked = (source.commit, source.submodules);
        let sent = source.helper.blobs(source.repo, asked, plan.wanted.clone(), &mut |pieces| {
            self.take(pieces).map_err(|error| {
                let message = error.to_string();
                failure = Some(error);
                message
            })
        });
        if let Some(failure) = failure {
            return Err(failure);
        }
        sent.map_err(SnapshotError::from)?;
        match self.open.is_none() && self.to_come.as_slice().is_empty() {
            true => Ok(()),
            false => Err(unreadable(source.repo, "not all files of the commit were sent".to_owned())),
        }
    }

    fn take(&mut self, pieces: &BlobPieces) -> Result<(), MirrorError> {
        for piece in pieces.iter() {
            let (number, bytes) = piece.ok_or_else(|| garbled(b""))?;
            let mut blob = match self.open.take() {
                Some(blob) if blob.number == number => blob,
                Some(blob) => return Err(garbled(&blob.leaf.path)),
                None => self.begin(number)?,
            };
            blob.take(bytes)?;
            match blob.left {
                0 => self.finish(blob)?,
                _ => self.open = Some(blob),
            }
        }
        Ok(())
    }

    fn begin(&mut self, number: u32) -> Result<OpenBlob<'a>, MirrorError> {
        let leaf = usize::try_from(number).ok().and_then(|at| self.leaves.get(at));
        let leaf = leaf.filter(|_| self.to_come.next() == Some(&number)).ok_or_else(|| garbled(b""))?;
        let target = match leaf.mode {
            SYMLINK => Target::Link(Vec::new()),
            _ => {
                let made =
                    openat(self.directory_of(leaf)?, paths::name(&leaf.path), CREATE, Mode::from_raw_mode(0o600));
                Target::File(made.map_err(|errno| MirrorError::io(&leaf.path, errno))?)
            }
        };
        let id = ObjectHasher::new(leaf.id.format(), ObjectKind::Blob, leaf.size);
        Ok(OpenBlob { number, leaf, target, sha256: Sha256::new(), id, left: leaf.size, head: Vec::new() })
    }

    fn finish(&mut self, blob: OpenBlob<'a>) -> Result<(), MirrorError> {
        let OpenBlob { leaf, target, sha256, id, head, .. } = blob;
        if id.finish() != leaf.id {
            return Err(MirrorError::OtherBlob { path: display_path(&leaf.path), id: leaf.id.to_string() });
        }
        let failed = |errno: rustix::io::Errno| MirrorError::io(&leaf.path, errno);
        let (sha256, kind) = (sha256.finalize().into(), kind_of(leaf));
        let stat = match target {
            Target::File(file) => {
                let mode = Mode::from_raw_mode(if kind == Kind::Executable { 0o755 } else { 0o644 });
                copy::give(file.as_fd(), self.owner)
                    .and_then(|()| fchmod(&file, mode))
                    .and_then(|()| futimens(&file, &copy::times(self.mtime)))
                    .and_then(|()| fstat(&file))
                    .map_err(failed)?
            }
            Target::Link(link) => {
                let (owner, mtime, name) = (self.owner, self.mtime, paths::name(&leaf.path));
                let directory = self.directory_of(leaf)?;
                symlinkat(link.as_slice(), directory, name)
                    .and_then(|()| copy::date_entry(directory, name, owner, mtime))
                    .map_err(failed)?
            }
        };
        self.found.push((leaf.path.clone(), Found { kind, racy: false, sha256, stamp: Stamp::of(&stat) }));
        let is_lfs_pointer = leaf.mode != SYMLINK && leaf.size < MAX_LFS_POINTER && head.starts_with(LFS_POINTER);
        self.facts.insert(leaf.id, BlobFact { sha256, is_lfs_pointer });
        Ok(())
    }

    /// Opens the directory of a leaf, or reuses that of the last leaf.
    fn directory_of(&mut self, leaf: &'a CommittedLeaf) -> Result<BorrowedFd<'_>, MirrorError> {
        let (directory, _) = paths::split(&leaf.path);
        let here = match self.here.take().filter(|(path, _)| *path == directory) {
            Some(here) => here,
            None => {
                let opened = beneath::open(self.tree, directory, OFlags::PATH | OFlags::DIRECTORY);
                (directory, opened.map_err(|error| MirrorError::io(&leaf.path, error))?)
            }
        };
        Ok(self.here.insert(here).1.as_fd())
    }
}

impl OpenBlob<'_> {
    fn take(&mut self, bytes: &[u8]) -> Result<(), MirrorError> {
        self.left = self.left.checked_sub(bytes.len() as u64).ok_or_else(|| garbled(&self.leaf.path))?;
        self.sha256.update(bytes);
        self.id.update(bytes);
        let missing = LFS_POINTER.len().saturating_sub(self.head.len());
        self.head.extend_from_slice(&bytes[..bytes.len().min(missing)]);
        match &mut self.target {
            Target::Link(link) => link.extend_from_slice(bytes),
            Target::File(file) => {
                copy::write_all(file.as_fd(), bytes).map_err(|errno| MirrorError::io(&self.leaf.path, errno))?;
            }
        }
        Ok(())
    }
}

/// Makes the error for pieces that were not requested.
fn garbled(path: &[u8]) -> MirrorError {
    MirrorError::io(path, std::io::Error::other("proctor-git sent other files than it was asked for"))
}
