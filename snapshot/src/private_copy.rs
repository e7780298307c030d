//! Keeps a private copy of a tree equal to its snapshot.
//!
//! A mirror is a directory that only this program can access. [`Mirror::update`] copies the files whose content the
//! mirror lacks, and hashes the bytes that it writes. The mirror therefore never contains content other than that of
//! the snapshot: a concurrent write to the source can only cause a mismatch, after which the caller takes a new
//! snapshot.
//!
//! ```text
//! tree/     the files
//! record    the content of `tree`, as of the last time that the journal was folded into it
//! journal   the updates since then: the paths that an update is about to change, then their new entries
//! ```
//!
//! A mirror can also contain copies of ignored files, which have a separate record and journal.

pub use crate::private_copy::ignored_selection::{IgnoredSelection, OmissionReason, OmittedFiles};
pub(crate) use crate::private_copy::mirror::Mirror;
pub(crate) use crate::private_copy::mirror_files::{MirrorError, MirrorOwner};
pub use commit_update::{CommitSource, CommitUpdate};
pub use git_dirs::{BorrowedObjects, TreeLocation};
pub use ignored_files::{IgnoredInput, IgnoredInputKind};

use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};
use std::path::Path;
use std::sync::atomic::AtomicBool;

use proctor_core::model::drift::display_path;
use proctor_core::text::digest::SnapshotId;
use proctor_git::files::file_stat::{self, FileTime, RacyWindow};
use proctor_git::files::read_beneath;
use proctor_git::repository::git_dir::GIT_FILES;
use rustix::fs::{Mode, mkdirat, openat};
use rustix::io::Errno;

use crate::entries::{EntryTree, ScannedEntry, ScannedKind, TreeDifferenceKind};
use crate::private_copy::mirror_files::{DIRECTORY_FLAGS, GIT_DIR_NAME, MAX_FILES};
use crate::snapshot::taken_snapshot::Snapshot;
use crate::stat_scan::{EarlierEntries, StatScan};
use copy_record::{COVERED_FILES, CopyRecord, IGNORED_FILES};
use file_copier::MirrorCopier;
use ignored_files::{CoveredAndIgnored, IgnoredSurvey, RacyFiles};

mod blob_table;
mod commit_update;
mod copy_record;
mod entry_hash;
mod file_copier;
mod git_dirs;
mod ignored_files;
mod ignored_inputs;
pub(crate) mod ignored_selection;
mod known_records;
pub(crate) mod mirror;
pub(crate) mod mirror_files;
mod removal;

/// The directory of the files, in the directory of a mirror.
pub const TREE: &str = "tree";
/// The paths whose content differs from the snapshot.
type ChangedPaths = Vec<Vec<u8>>;

/// The result of an update.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum MirrorUpdate {
    /// The mirror contains the tree of the snapshot.
    Equal {
        /// Number of covered files and links that were copied.
        copied: usize,
        /// Total size of the copied files, in bytes.
        bytes: u64,
        /// Number of ignored files and links that were copied.
        copied_ignored: usize,
        /// The ignored files in the mirror.
        ignored: Vec<IgnoredInput>,
    },
    /// The tree was edited during the update: the content of these paths differs from the snapshot. The mirror lacks
    /// them.
    Changed(ChangedPaths),
}

impl MirrorError {
    fn io(path: &[u8], source: impl Into<std::io::Error>) -> Self {
        let path = display_path(if path.is_empty() { b"." } else { path });
        Self::Io { path, source: source.into() }
    }
}

impl Mirror {
    /// Opens the mirror in `directory`, which only this program can access, and creates it if it does not exist.
    /// Its files get `owner`, or our own ids without one. After an unclean exit, all files of the mirror are hashed
    /// again.
    ///
    /// # Errors
    /// The directory cannot be read or written.
    pub fn open(directory: OwnedFd, owner: Option<MirrorOwner>) -> Result<Self, MirrorError> {
        let tree = open_tree(directory.as_fd(), owner).map_err(|errno| MirrorError::io(TREE.as_bytes(), errno))?;
        let records =
            CopyRecord::load(directory.as_fd(), COVERED_FILES).zip(CopyRecord::load(directory.as_fd(), IGNORED_FILES));
        let (record, ignored) = match records {
            Some(records) => records,
            None => {
                removal::remove_nested_git_dirs(tree.as_fd())?;
                // Ignored files are treated as covered here; the next update removes them.
                let held = hash_tree(tree.as_fd())?;
                let ignored = CopyRecord::create(directory.as_fd(), IGNORED_FILES, EntryTree::from_leaves([]))?;
                (CopyRecord::create(directory.as_fd(), COVERED_FILES, held)?, ignored)
            }
        };
        let mut mirror = Self { directory, tree, owner, record, ignored };
        mirror.examine_unfinished()?;
        Ok(mirror)
    }

    /// Returns the identity of the tree in the mirror.
    pub fn id(&self) -> SnapshotId {
        self.record.entries().id()
    }

    /// Returns the directory of the files.
    pub fn tree(&self) -> BorrowedFd<'_> {
        self.tree.as_fd()
    }

    /// Updates the mirror to the tree of `snapshot`, which was taken of the work tree at `worktree`, and to the
    /// `wanted` ignored files.
    ///
    /// A file whose content changes gets a modification time that is at least a whole second newer than all times
    /// that the mirror has used before. Other files keep their times.
    ///
    /// # Errors
    /// A file cannot be read or written. The update can be retried.
    pub fn update(
        &mut self,
        worktree: &Path,
        snapshot: &Snapshot,
        wanted: Option<&IgnoredSelection<'_>>,
    ) -> Result<MirrorUpdate, MirrorError> {
        let source = read_beneath::open_canonical(worktree).map_err(|error| MirrorError::io(b"", error))?;
        self.update_from(source.as_fd(), (&snapshot.entries, &snapshot.ignored), wanted)
    }

    /// Returns the ignored files in the mirror if they equal the `wanted` files in the work tree. Does not change
    /// anything.
    ///
    /// # Errors
    /// The work tree cannot be read.
    pub fn matching_inputs(
        &self,
        worktree: &Path,
        snapshot: &Snapshot,
        wanted: Option<&IgnoredSelection<'_>>,
    ) -> Result<Option<Vec<IgnoredInput>>, MirrorError> {
        let Some(wanted) = wanted else { return Ok(self.ignored.entries().is_empty().then(Vec::new)) };
        let source = read_beneath::open_canonical(worktree).map_err(|error| MirrorError::io(b"", error))?;
        let tree = (&*snapshot.entries, snapshot.ignored.as_slice());
        let survey = IgnoredSurvey::examine(source.as_fd(), tree, wanted, (self.ignored.entries(), RacyFiles::Hash))?;
        Ok(survey.is_up_to_date().then(|| survey.inputs(self.ignored.entries())))
    }

    fn update_from(
        &mut self,
        source: BorrowedFd<'_>,
        tree: CoveredAndIgnored<'_>,
        wanted: Option<&IgnoredSelection<'_>>,
    ) -> Result<MirrorUpdate, MirrorError> {
        self.examine_unfinished()?;
        let survey = match wanted {
            Some(wanted) => IgnoredSurvey::examine(source, tree, wanted, (self.ignored.entries(), RacyFiles::Hash))?,
            None => IgnoredSurvey::for_no_files(self.ignored.entries()),
        };
        // Covered entries of the new tree may be at the paths of these files.
        self.remove_ignored(&survey)?;
        let (copied, bytes) = match self.update_covered(source, tree.0) {
            Ok(Ok(copied)) => copied,
            Ok(Err(changed)) => {
                self.record_no_ignored(survey)?;
                return Ok(MirrorUpdate::Changed(changed));
            }
            Err(error) => return Err(error),
        };
        let copied_ignored = survey.changed_count();
        let ignored = match wanted {
            Some(wanted) => self.copy_ignored(source, survey, wanted)?,
            None => {
                self.record_no_ignored(survey)?;
                Vec::new()
            }
        };
        Ok(MirrorUpdate::Equal { copied, bytes, copied_ignored, ignored })
    }

    /// Returns the number of copied files and of their bytes, or the paths that were edited during the update.
    fn update_covered(
        &mut self,
        source: BorrowedFd<'_>,
        wanted: &EntryTree,
    ) -> Result<Result<(usize, u64), ChangedPaths>, MirrorError> {
        let paths = self.record.entries().difference(wanted, TreeDifferenceKind::Identity);
        if paths.is_empty() {
            return Ok(Ok((0, 0)));
        }
        self.record.begin(&paths)?;
        self.remove_outdated(&paths)?;
        let mtime = self.record.next_mtime(file_stat::now());
        let copier = MirrorCopier { source, tree: self.tree.as_fd(), owner: self.owner, mtime };
        let copied = copier.copy(wanted, &paths)?;
        self.record.finish(mtime, copied.found)?;
        Ok(match copied.changed.is_empty() {
            true => Ok((copied.files, copied.bytes)),
            false => Err(copied.changed),
        })
    }

    /// Removes the entries of the mirror at `paths`, including the git directories of repositories. `paths` must be
    /// sorted.
    fn remove_outdated(&self, paths: &[Vec<u8>]) -> Result<(), MirrorError> {
        let (tree, held) = (self.tree.as_fd(), self.record.entries());
        let is_repository =
            |path: &&Vec<u8>| held.leaf_at_path(path).is_some_and(|leaf| leaf.found.kind == ScannedKind::Gitlink);
        paths.iter().filter(is_repository).try_for_each(|path| removal::remove_git_dir(tree, path))?;
        removal::remove_outdated(tree, held, paths)
    }

    /// Hashes `count` files of the mirror, selected by `seed`, and compares them with the record.
    ///
    /// # Errors
    /// [`MirrorError::Damaged`] if a file differs; the mirror must then be created anew.
    pub fn verify_sample(&self, count: usize, seed: u64) -> Result<(), MirrorError> {
        let held = self.record.entries();
        let leaves = held.leaf_count();
        let mut state = seed;
        for _ in 0..count.min(leaves) {
            // A Weyl sequence with the odd constant of SplitMix64 covers all leaves evenly.
            state = state.wrapping_add(0x9E37_79B9_7F4A_7C15);
            let at = usize::try_from(state % leaves as u64).unwrap_or_default();
            self.verify_leaf(held, at)?;
        }
        Ok(())
    }

    fn verify_leaf(&self, held: &EntryTree, leaf: usize) -> Result<(), MirrorError> {
        let path = held.leaf_path(held.parent_of_leaf(leaf), leaf);
        let Some(expected) = held.get(&path) else { return Ok(()) };
        let is_same = match read_beneath::read(self.tree.as_fd(), &path, u64::MAX) {
            Ok(read_beneath::PathEntry::Entry(entry)) => entry == expected,
            Ok(read_beneath::PathEntry::Directory) => expected.kind == proctor_core::model::drift::EntryKind::Gitlink,
            Ok(_) | Err(_) => false,
        };
        if is_same { Ok(()) } else { Err(MirrorError::Damaged { path: display_path(&path), problem: "has changed" }) }
    }

    /// Hashes all files of the mirror, including the ignored ones, and compares them with the records. In the git
    /// directory only the names are compared; to be certain of its content, a caller must write it again.
    ///
    /// # Errors
    /// [`MirrorError::Damaged`] if an entry differs; the mirror must then be created anew.
    pub fn verify_all(&self) -> Result<(), MirrorError> {
        let found = hash_tree(self.tree.as_fd())?;
        let (held, ignored) = (self.record.entries(), self.ignored.entries());
        let differs = |path: &Vec<u8>| {
            let is_link =
                held.get(path).is_some_and(|entry| entry.kind == proctor_core::model::drift::EntryKind::Gitlink);
            // A survey finds the directory of a repository, but not its commit.
            !(is_link && read_beneath::is_directory(self.tree.as_fd(), path)
                || !held.contains(path) && ignored.contains(path)
                || is_in_nested_git_dir(held, path))
        };
        let covered = held.difference(&found, TreeDifferenceKind::Identity).into_iter().find(differs);
        let damaged = covered.or_else(|| self.damaged_ignored(&found));
        let stray = || find_stray_git_file(self.tree.as_fd());
        match damaged.map_or_else(stray, |path| Ok(Some(path)))? {
            Some(path) => {
                Err(MirrorError::Damaged { path: display_path(&path), problem: "differs from the copied content" })
            }
            None => Ok(()),
        }
    }

    /// Returns the first ignored file that differs from its copy in the record.
    fn damaged_ignored(&self, found: &EntryTree) -> Option<Vec<u8>> {
        let ignored = self.ignored.entries();
        let is_as_copied = |path: &Vec<u8>| {
            let Some(copied) = ignored.leaf_at_path(path).map(|leaf| leaf.found) else { return true };
            match copied.kind {
                ScannedKind::Missing => true,
                ScannedKind::EmptyDirectory => read_beneath::is_directory(self.tree.as_fd(), path),
                kind => found
                    .leaf_at_path(path)
                    .is_some_and(|now| now.found.kind == kind && now.found.sha256 == copied.sha256),
            }
        };
        ignored.paths().find(|path| !is_as_copied(path))
    }

    /// Creates another mirror of the same tree in the empty directory `into`, with hard links.
    ///
    /// # Errors
    /// The directory cannot be written.
    pub fn link_into(&self, into: OwnedFd) -> Result<Self, MirrorError> {
        let tree = open_tree(into.as_fd(), self.owner).map_err(|errno| MirrorError::io(TREE.as_bytes(), errno))?;
        let held = self.record.entries();
        file_copier::link_all(self.tree.as_fd(), tree.as_fd(), held, self.owner)?;
        let mut record = CopyRecord::create(into.as_fd(), COVERED_FILES, EntryTree::clone(held))?;
        record.newest_mtime = self.record.newest_mtime;
        let ignored = self.ignored.entries();
        file_copier::link_all(self.tree.as_fd(), tree.as_fd(), ignored, self.owner)?;
        let ignored = CopyRecord::create(into.as_fd(), IGNORED_FILES, EntryTree::clone(ignored))?;
        Ok(Self { directory: into, tree, owner: self.owner, record, ignored })
    }

    /// Returns the recorded entry at a path of the mirror, with its stat data.
    pub(crate) fn recorded_entry(&self, path: &[u8]) -> Option<ScannedEntry> {
        Some(self.record.entries().leaf_at_path(path)?.found)
    }

    /// Returns the directory of the mirror.
    pub fn directory(&self) -> BorrowedFd<'_> {
        self.directory.as_fd()
    }

    /// Examines the paths that an interrupted update was changing.
    fn examine_unfinished(&mut self) -> Result<(), MirrorError> {
        self.remove_unfinished_ignored()?;
        let Some(paths) = self.record.unfinished().cloned() else { return Ok(()) };
        let names = EntryTree::from_leaves(paths.iter().map(|path| (path.clone(), false, ScannedEntry::MISSING)));
        let found = scan_tree(self.tree.as_fd(), names)?;
        // Records do not contain the git directories of repositories.
        paths.iter().try_for_each(|path| removal::remove_git_dir(self.tree.as_fd(), path))?;
        let found = paths.into_iter().map(|path| {
            let found = found.leaf_at_path(&path).map_or(ScannedEntry::MISSING, |leaf| leaf.found);
            (path, found)
        });
        let newest = self.record.newest_mtime;
        self.record.finish(newest, found.collect())
    }
}

/// Opens the directory of the files, and creates it if it does not exist.
fn open_tree(directory: BorrowedFd<'_>, owner: Option<MirrorOwner>) -> Result<OwnedFd, Errno> {
    match mkdirat(directory, TREE, Mode::from_raw_mode(0o700)) {
        Ok(()) => {
            let made = openat(directory, TREE, DIRECTORY_FLAGS, Mode::empty())?;
            file_copier::set_directory_owner(made.as_fd(), owner)?;
            Ok(made)
        }
        Err(Errno::EXIST) => openat(directory, TREE, DIRECTORY_FLAGS, Mode::empty()),
        Err(errno) => Err(errno),
    }
}

/// Hashes everything in a tree except the git directory at its top.
fn hash_tree(tree: BorrowedFd<'_>) -> Result<EntryTree, MirrorError> {
    let leaves = read_beneath::list_leaves(tree, b"", MAX_FILES).map_err(|error| MirrorError::io(b"", error))?;
    let leaves = leaves.ok_or(MirrorError::Damaged { path: ".".to_owned(), problem: "holds too many files" })?;
    let covered = leaves.into_iter().filter(|path| path.split(|byte| *byte == b'/').next() != Some(GIT_DIR_NAME));
    scan_tree(tree, EntryTree::from_leaves(covered.map(|path| (path, false, ScannedEntry::MISSING))))
}

/// Returns whether a path is inside the git directory of a nested repository.
fn is_in_nested_git_dir(held: &EntryTree, path: &[u8]) -> bool {
    proctor_git::files::paths::ancestors(path).any(|git| {
        let (repository, name) = proctor_git::files::paths::split(git);
        name == GIT_DIR_NAME
            && held.leaf_at_path(repository).is_some_and(|leaf| leaf.found.kind == ScannedKind::Gitlink)
    })
}

/// Returns the first path in the top's git directory that [`Mirror::write_git_dirs`] does not write.
fn find_stray_git_file(tree: BorrowedFd<'_>) -> Result<Option<Vec<u8>>, MirrorError> {
    if !read_beneath::is_directory(tree, GIT_DIR_NAME) {
        let names = read_beneath::read_names(tree).map_err(|error| MirrorError::io(b"", error))?;
        return Ok(names.into_iter().find(|name| name == GIT_DIR_NAME));
    }
    let leaves = read_beneath::list_leaves(tree, GIT_DIR_NAME, MAX_FILES)
        .map_err(|error| MirrorError::io(GIT_DIR_NAME, error))?;
    let is_stray = |path: &Vec<u8>| {
        let below = path.strip_prefix(GIT_DIR_NAME).and_then(|rest| rest.strip_prefix(b"/")).unwrap_or(path);
        !GIT_FILES.iter().any(|name| name.as_bytes() == below)
    };
    Ok(leaves.unwrap_or_default().into_iter().find(is_stray))
}

/// Scans the entry at each path of `names`.
fn scan_tree(tree: BorrowedFd<'_>, mut names: EntryTree) -> Result<EntryTree, MirrorError> {
    let stop = AtomicBool::new(false);
    let device = read_beneath::trusted_device(tree).map_err(|error| MirrorError::io(b"", error))?;
    let at: FileTime = file_stat::now();
    names.fill(|known, blanks| {
        let settling = RacyWindow(std::time::Duration::ZERO);
        let look = StatScan {
            top: tree,
            device,
            started_at: at,
            racy_window: settling,
            known,
            earlier: EarlierEntries::OtherTree(None),
            stop: &stop,
        };
        Ok::<_, MirrorError>(look.fill(blanks)?.0)
    })?;
    Ok(names)
}

#[cfg(test)]
#[expect(clippy::disallowed_methods, reason = "tests write worktree files without atomic replacement")]
mod tests;
