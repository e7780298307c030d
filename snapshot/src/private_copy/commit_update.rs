//! Updates a mirror to the tree of a commit. Only the blobs that the mirror lacks are read from the repository, and
//! each is hashed while it is written.

use std::collections::{HashMap, HashSet};
use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};
use std::path::Path;

use proctor_core::model::drift::{display_path, is_evidence_path};
use proctor_core::text::digest::Sha256Hex;
use proctor_git::error::GitError;
use proctor_git::files::file_stat::{FileStat, FileTime};
use proctor_git::files::repo_path::RepoPath;
use proctor_git::files::{paths, read_beneath};
use proctor_git::helper::GitHelper;
use proctor_git::index::{EXECUTABLE_MODE, GITLINK_MODE, SYMLINK_MODE};
use proctor_git::object::object_id::{ObjectHasher, ObjectId, ObjectKind};
use proctor_git::object::tree_check;
use proctor_git::protocol::{CommitRef, CommitTree, CommittedLeaf, GitHistory, WantedLeaf};
use proctor_git::wire::answer_frames::{AnswerError, BlobPiece, BlobPieces};
use rustix::fs::{Mode, OFlags, fchmod, fstat, futimens, openat, symlinkat};
use sha2::{Digest as _, Sha256};

use super::blob_table::{BlobFact, BlobTable};
use super::file_copier::{self, CREATE_FLAGS};
use crate::entries::{EntryTree, LookupCursor, ScannedEntry, ScannedKind};
use crate::private_copy::mirror::Mirror;
use crate::private_copy::mirror_files::{MirrorError, MirrorOwner};
use crate::snapshot::git_facts::GitFacts;
use crate::snapshot::snapshot_error::SnapshotError;
use crate::snapshot::taken_snapshot::Snapshot;

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
    /// The entries of the tree.
    pub tree: &'a CommitTree,
    /// If true, the trees of submodules are included.
    pub submodules: bool,
}

/// The result of an update to a commit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CommitUpdate {
    /// Number of files and links that were written.
    pub written: usize,
    /// Total size of the copied files, in bytes.
    pub bytes: u64,
    /// Number of files that are git-lfs pointers instead of the content.
    pub lfs_pointers: u64,
}

impl CommitSource<'_> {
    /// Returns the line in HEAD for steps: the commit. A staged commit does not exist yet, so steps see the
    /// repository's own HEAD.
    pub fn head_line(&self, history: &GitHistory) -> String {
        if self.commit.staged.is_none() {
            return self.commit.id.clone();
        }
        let parent = tree_check::first_parent(self.tree).map(|id| id.to_string());
        let branch = history.head.as_ref().and_then(|line| line.strip_prefix("ref: "));
        let target = branch.and_then(|branch| history.ref_target(branch));
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
        tree_check::verify(source.tree, &source.commit.id)
            .map_err(|error| unreadable(source.repo, error.to_string()))?;
        self.examine_unfinished()?;
        let mut table = BlobTable::load(self.directory.as_fd());
        let plan = CommitUpdatePlan::new(source, self.record.entries(), &table)?;
        let (mut written, mut bytes) = (0, 0);
        if !plan.changed.is_empty() {
            self.record.begin(&plan.changed)?;
            self.remove_outdated(&plan.changed)?;
            let mtime = self.record.next_mtime(proctor_git::files::file_stat::now());
            let mut receiver = BlobReceiver::new(self.tree.as_fd(), self.owner, mtime, &plan, &source.tree.leaves);
            receiver.make_directories(&plan)?;
            receiver.receive(source, &plan)?;
            let BlobReceiver { mut found, facts, .. } = receiver;
            (written, bytes) = (found.len(), found.iter().map(|(_, found)| found.stat.size).sum());
            table.extend(facts);
            found.extend(plan.repositories(self.tree.as_fd(), self.owner)?);
            let there: HashSet<&[u8]> = found.iter().map(|(path, _)| path.as_slice()).collect();
            let gone: Vec<_> = plan.changed.iter().filter(|path| !there.contains(path.as_slice())).cloned().collect();
            found.extend(gone.into_iter().map(|path| (path, ScannedEntry::MISSING)));
            self.record.finish(mtime, found)?;
            table.retain(&source.tree.leaves);
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
        let is_held = CommitUpdatePlan::new(source, self.record.entries(), &table)?.changed.is_empty();
        Ok(is_held.then(|| table.lfs_pointers(&source.tree.leaves)))
    }

    /// Returns the snapshot of a commit's tree, which the mirror must contain. Its files are at `worktree`.
    pub fn snapshot_of_commit(&self, worktree: &Path, source: &CommitSource<'_>) -> Snapshot {
        let git = worktree.join(".git");
        let facts = GitFacts {
            worktree: worktree.to_owned(),
            git_dir: git.clone(),
            common_dir: git,
            head_commit: Some(source.commit.id.clone()),
            branch: None,
            tree: Ok(tree_check::tree_id_of_commit(source.tree).map(|id| id.to_string()).unwrap_or_default()),
            dirty: Some(false),
            object_format: source.tree.format,
            external_rules: Vec::new(),
        };
        Snapshot::from_commit(self.record.entries().all_tracked(), facts)
    }
}

fn unreadable(repo: &Path, problem: String) -> MirrorError {
    MirrorError::Snapshot(SnapshotError::Git(GitError::Unreadable { path: repo.to_owned(), problem }))
}

/// The differences between a mirror and the tree of a commit.
struct CommitUpdatePlan<'a> {
    /// The paths that change; sorted.
    changed: Vec<Vec<u8>>,
    /// The numbers of the leaves to write; sorted.
    wanted: Vec<u32>,
    /// Size of the files that stay, in bytes.
    held_bytes: u64,
    /// The repositories whose directories are created, with their digests for the identity.
    repositories: Vec<(&'a CommittedLeaf, [u8; 32])>,
}

impl<'a> CommitUpdatePlan<'a> {
    fn new(source: &CommitSource<'a>, held: &EntryTree, table: &BlobTable) -> Result<Self, MirrorError> {
        let commits: HashSet<&[u8]> = source.tree.submodules.iter().map(|module| module.path.0.as_slice()).collect();
        let mut plan = Self { changed: Vec::new(), wanted: Vec::new(), held_bytes: 0, repositories: Vec::new() };
        let (mut cursor, mut found_count) = (LookupCursor::default(), 0);
        for (number, leaf) in (0..).zip(&source.tree.leaves) {
            if is_evidence_path(&leaf.path) {
                continue;
            }
            let found = held.leaf_at_cursor(&mut cursor, &leaf.path).map(|leaf| leaf.found);
            found_count += usize::from(found.is_some());
            let found = found.unwrap_or(ScannedEntry::MISSING);
            if leaf.mode == GITLINK_MODE {
                let digest = repository_digest(leaf, commits.contains(leaf.path.as_slice()));
                if (found.kind, found.sha256) != (ScannedKind::Gitlink, digest) {
                    plan.changed.push(leaf.path.clone());
                    plan.repositories.push((leaf, digest));
                }
            } else if found.kind != scanned_kind(leaf)
                || table.get(leaf.id).map(|fact| fact.sha256) != Some(found.sha256)
            {
                plan.changed.push(leaf.path.clone());
                plan.wanted.push(number);
            } else {
                plan.held_bytes = plan.held_bytes.saturating_add(found.stat.size);
            }
        }
        // Usually, the tree has every path of the mirror, and no set of paths is needed. Leaves that are not strictly
        // sorted could contain a path twice.
        let is_sorted = source.tree.leaves.is_sorted_by(|one, next| one.path < next.path);
        if found_count != held.leaf_count() || !is_sorted {
            let leaves = source.tree.leaves.iter().map(|leaf| leaf.path.as_slice());
            let covered: HashSet<&[u8]> = leaves.filter(|path| !is_evidence_path(path)).collect();
            plan.changed.extend(held.paths().filter(|path| !covered.contains(path.as_slice())));
        }
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
        owner: Option<MirrorOwner>,
    ) -> Result<impl Iterator<Item = (Vec<u8>, ScannedEntry)>, MirrorError> {
        self.repositories.iter().try_for_each(|(leaf, _)| file_copier::make_directory(tree, &leaf.path, owner))?;
        Ok(self.repositories.iter().map(|(leaf, sha256)| {
            let found = ScannedEntry { kind: ScannedKind::Gitlink, sha256: *sha256, ..ScannedEntry::MISSING };
            (leaf.path.clone(), found)
        }))
    }
}

/// Returns the digest of a nested repository for the identity: that of its commit, or of the empty string if its
/// tree is not included.
fn repository_digest(leaf: &CommittedLeaf, is_there: bool) -> [u8; 32] {
    let commit = if is_there { leaf.id.to_string() } else { String::new() };
    Sha256Hex::digest(commit.as_bytes()).to_raw()
}

fn scanned_kind(leaf: &CommittedLeaf) -> ScannedKind {
    match leaf.mode {
        EXECUTABLE_MODE => ScannedKind::Executable,
        SYMLINK_MODE => ScannedKind::Symlink,
        GITLINK_MODE => ScannedKind::Gitlink,
        // Early versions of git wrote other modes for files.
        _ => ScannedKind::File,
    }
}

/// Writes blobs to a mirror as they arrive.
struct BlobReceiver<'a> {
    tree: BorrowedFd<'a>,
    owner: Option<MirrorOwner>,
    /// The modification time of all files.
    mtime: FileTime,
    leaves: &'a [CommittedLeaf],
    /// The numbers of the leaves that have not arrived yet.
    pending: std::slice::Iter<'a, u32>,
    /// The directory of the last leaf.
    current_directory: Option<(&'a [u8], OwnedFd)>,
    current_blob: Option<OpenBlob<'a>>,
    found: Vec<(Vec<u8>, ScannedEntry)>,
    facts: HashMap<ObjectId, BlobFact>,
}

/// A blob that has arrived partially.
struct OpenBlob<'a> {
    number: u32,
    leaf: &'a CommittedLeaf,
    /// Size of the blob, in bytes.
    size: u64,
    target: BlobTarget,
    sha256: Sha256,
    id: ObjectHasher,
    /// Number of bytes that have not arrived yet.
    remaining_bytes: u64,
    /// The first bytes, as many as are needed to recognize a git-lfs pointer.
    first_bytes: Vec<u8>,
}

enum BlobTarget {
    File(OwnedFd),
    /// The received part of a link's target.
    Link(Vec<u8>),
}

impl<'a> BlobReceiver<'a> {
    fn new(
        tree: BorrowedFd<'a>,
        owner: Option<MirrorOwner>,
        mtime: FileTime,
        plan: &'a CommitUpdatePlan<'_>,
        leaves: &'a [CommittedLeaf],
    ) -> Self {
        let (found, facts) = (Vec::with_capacity(plan.wanted.len()), HashMap::new());
        Self {
            tree,
            owner,
            mtime,
            leaves,
            pending: plan.wanted.iter(),
            current_directory: None,
            current_blob: None,
            found,
            facts,
        }
    }

    fn make_directories(&self, plan: &CommitUpdatePlan<'_>) -> Result<(), MirrorError> {
        let numbers = plan.wanted.iter().filter_map(|number| self.leaves.get(usize::try_from(*number).ok()?));
        let mut made: Vec<&[u8]> =
            numbers.chain(plan.repositories.iter().map(|(leaf, _)| *leaf)).map(|leaf| leaf.path.as_slice()).collect();
        made.sort_unstable();
        file_copier::make_parent_directories(self.tree, self.owner, made)
    }

    fn receive(&mut self, source: &CommitSource<'_>, plan: &CommitUpdatePlan<'_>) -> Result<(), MirrorError> {
        if plan.wanted.is_empty() {
            return Ok(());
        }
        let mut failure = None;
        let requested = (source.commit, source.submodules);
        let wanted = plan.wanted.iter().filter_map(|number| {
            let leaf = self.leaves.get(usize::try_from(*number).ok()?)?;
            Some(WantedLeaf { number: *number, path: RepoPath(leaf.path.clone()), mode: leaf.mode, id: leaf.id })
        });
        let wanted = (wanted.collect(), plan.held_bytes);
        let sent = source.helper.blobs(source.repo, requested, wanted, &mut |pieces| {
            self.receive_pieces(pieces).map_err(|error| {
                failure = Some(error);
                AnswerError::Stopped
            })
        });
        if let Some(failure) = failure {
            return Err(failure);
        }
        sent.map_err(SnapshotError::from)?;
        match self.current_blob.is_none() && self.pending.as_slice().is_empty() {
            true => Ok(()),
            false => Err(unreadable(source.repo, "not all files of the commit were sent".to_owned())),
        }
    }

    fn receive_pieces(&mut self, pieces: &BlobPieces) -> Result<(), MirrorError> {
        for piece in pieces.iter() {
            let BlobPiece { number, size, bytes } = piece.ok_or_else(|| unexpected_pieces(b""))?;
            let mut blob = match self.current_blob.take() {
                Some(blob) if (blob.number, blob.size) == (number, size) => blob,
                Some(blob) => return Err(unexpected_pieces(&blob.leaf.path)),
                None => self.begin_blob(number, size)?,
            };
            blob.append(bytes)?;
            match blob.remaining_bytes {
                0 => self.finish_blob(blob)?,
                _ => self.current_blob = Some(blob),
            }
        }
        Ok(())
    }

    fn begin_blob(&mut self, number: u32, size: u64) -> Result<OpenBlob<'a>, MirrorError> {
        let leaf = usize::try_from(number).ok().and_then(|at| self.leaves.get(at));
        let leaf = leaf.filter(|_| self.pending.next() == Some(&number)).ok_or_else(|| unexpected_pieces(b""))?;
        let target = match leaf.mode {
            SYMLINK_MODE => BlobTarget::Link(Vec::new()),
            _ => {
                let made = openat(
                    self.open_directory_of(leaf)?,
                    paths::file_name(&leaf.path),
                    CREATE_FLAGS,
                    Mode::from_raw_mode(0o600),
                );
                BlobTarget::File(made.map_err(|errno| MirrorError::io(&leaf.path, errno))?)
            }
        };
        let id = ObjectHasher::new(leaf.id.format(), ObjectKind::Blob, size);
        Ok(OpenBlob {
            number,
            leaf,
            target,
            sha256: Sha256::new(),
            id,
            size,
            remaining_bytes: size,
            first_bytes: Vec::new(),
        })
    }

    fn finish_blob(&mut self, blob: OpenBlob<'a>) -> Result<(), MirrorError> {
        let OpenBlob { leaf, size, target, sha256, id, first_bytes: head, .. } = blob;
        if id.finish() != leaf.id {
            return Err(MirrorError::OtherBlob { path: display_path(&leaf.path), id: leaf.id.to_string() });
        }
        let failed = |errno: rustix::io::Errno| MirrorError::io(&leaf.path, errno);
        let (sha256, kind) = (sha256.finalize().into(), scanned_kind(leaf));
        let stat = match target {
            BlobTarget::File(file) => {
                let mode = Mode::from_raw_mode(if kind == ScannedKind::Executable { 0o755 } else { 0o644 });
                file_copier::set_owner(file.as_fd(), self.owner)
                    .and_then(|()| fchmod(&file, mode))
                    .and_then(|()| futimens(&file, &file_copier::timestamps(self.mtime)))
                    .and_then(|()| fstat(&file))
                    .map_err(failed)?
            }
            BlobTarget::Link(link) => {
                let (owner, mtime, name) = (self.owner, self.mtime, paths::file_name(&leaf.path));
                let directory = self.open_directory_of(leaf)?;
                symlinkat(link.as_slice(), directory, name)
                    .and_then(|()| file_copier::set_owner_and_mtime(directory, name, owner, mtime))
                    .map_err(failed)?
            }
        };
        self.found
            .push((leaf.path.clone(), ScannedEntry { kind, racy: false, sha256, stat: FileStat::from_stat(&stat) }));
        let is_lfs_pointer = leaf.mode != SYMLINK_MODE && size < MAX_LFS_POINTER && head.starts_with(LFS_POINTER);
        self.facts.insert(leaf.id, BlobFact { sha256, is_lfs_pointer });
        Ok(())
    }

    /// Opens the directory of a leaf, or reuses that of the last leaf.
    fn open_directory_of(&mut self, leaf: &'a CommittedLeaf) -> Result<BorrowedFd<'_>, MirrorError> {
        let (directory, _) = paths::split(&leaf.path);
        let here = match self.current_directory.take().filter(|(path, _)| *path == directory) {
            Some(here) => here,
            None => {
                let opened = read_beneath::open(self.tree, directory, OFlags::PATH | OFlags::DIRECTORY);
                (directory, opened.map_err(|error| MirrorError::io(&leaf.path, error))?)
            }
        };
        Ok(self.current_directory.insert(here).1.as_fd())
    }
}

impl OpenBlob<'_> {
    fn append(&mut self, bytes: &[u8]) -> Result<(), MirrorError> {
        self.remaining_bytes =
            self.remaining_bytes.checked_sub(bytes.len() as u64).ok_or_else(|| unexpected_pieces(&self.leaf.path))?;
        self.sha256.update(bytes);
        self.id.update(bytes);
        let missing = LFS_POINTER.len().saturating_sub(self.first_bytes.len());
        self.first_bytes.extend_from_slice(&bytes[..bytes.len().min(missing)]);
        match &mut self.target {
            BlobTarget::Link(link) => link.extend_from_slice(bytes),
            BlobTarget::File(file) => {
                file_copier::write_all(file.as_fd(), bytes).map_err(|errno| MirrorError::io(&self.leaf.path, errno))?;
            }
        }
        Ok(())
    }
}

/// Makes the error for pieces that were not requested.
fn unexpected_pieces(path: &[u8]) -> MirrorError {
    MirrorError::io(path, std::io::Error::other("proctor-git sent files that were not requested"))
}
