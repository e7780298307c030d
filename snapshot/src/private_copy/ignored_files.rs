//! Copies the ignored files of a work tree into the mirror.
//!
//! Steps may need `node_modules`, `.venv` or `.env`, which no snapshot covers. The digest of such a copy is that of
//! the bytes that steps see; there is no record of the correct content. Unlike covered files, ignored files keep
//! their modification times. A build output is therefore older than the copies of its sources, and build tools that
//! compare times build it again.

pub(super) use crate::private_copy::ignored_selection::IgnoredSelection;

use std::collections::HashSet;
use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};

use proctor_core::model::drift::is_evidence_path;
use proctor_core::model::plan::RelPath;
use proctor_core::text::digest::Sha256Hex;
use proctor_git::files::file_stat::{self, FileStat, FileTime, RacyWindow};
use proctor_git::files::{paths, read_beneath};
use rustix::fs::{AtFlags, FileType, Mode, OFlags, Stat, openat, statat};
use rustix::io::Errno;
use sha2::{Digest as _, Sha256};

use super::entry_hash::hash_entry;
use super::file_copier::MirrorCopier;
use super::removal;
use crate::entries::{EntryTree, LookupCursor, ScannedEntry, ScannedKind};
use crate::private_copy::file_copier::byte_copy::SpareBytes;
use crate::private_copy::ignored_selection::{OmissionReason, OmittedFiles};
use crate::private_copy::mirror::Mirror;
use crate::private_copy::mirror_files::{DIRECTORY_FLAGS, MirrorError};

/// Maximum depth of directories that are copied.
const MAX_DEPTH: usize = 256;

/// An ignored file or directory in a mirror.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct IgnoredInput {
    /// The path.
    pub path: Vec<u8>,
    /// The kind of entry.
    pub kind: IgnoredInputKind,
    /// Number of files, links and empty directories in it.
    pub files: u64,
    /// Total size of the files, in bytes.
    pub bytes: u64,
    /// The digest of the copied content; `None` if nothing was copied.
    pub sha256: Option<Sha256Hex>,
    /// The digest of the permissions of the copied files; `None` if all of them are 0644.
    pub permissions: Option<Sha256Hex>,
    /// The files in the directory that were not copied.
    pub left_out: Option<OmittedFiles>,
}

/// The kind of entry at the path of an ignored input.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum IgnoredInputKind {
    /// A regular file.
    File,
    /// A symbolic link.
    Symlink,
    /// A directory.
    Directory,
    /// A socket, FIFO or device, which is not copied.
    Special,
}

impl IgnoredInput {
    /// Creates an input of which nothing is copied yet.
    fn uncopied(path: Vec<u8>, kind: IgnoredInputKind, left_out: Option<OmittedFiles>) -> Self {
        Self { path, kind, files: 0, bytes: 0, sha256: None, permissions: None, left_out }
    }
}

/// The covered entries and the ignored paths of a snapshot.
pub(super) type CoveredAndIgnored<'a> = (&'a EntryTree, &'a [Vec<u8>]);

/// The current ignored files of the work tree.
pub(super) struct IgnoredSurvey {
    /// All files, links and empty directories. Files that have to be copied have no digest yet.
    current: EntryTree,
    /// The files that the mirror lacks, or contains in another state.
    changed: Vec<Vec<u8>>,
    /// The files that have to be removed from the mirror.
    removed: Vec<Vec<u8>>,
    /// The files that are identical to their copies, and whose stat data can be trusted from now on.
    settled: Vec<(Vec<u8>, ScannedEntry)>,
    /// The inputs, without their digests.
    inputs: Vec<IgnoredInput>,
    /// Total size of all files, in bytes.
    bytes: u64,
}

/// How a survey treats a file that may have changed since it was copied although its stat data are the same.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum RacyFiles {
    /// The file is hashed, and counts as changed if its content differs from the copy.
    Hash,
    /// The file counts as changed.
    CountAsChanged,
}

impl IgnoredSurvey {
    /// Examines the ignored files of the work tree at `source`.
    pub(super) fn examine(
        source: BorrowedFd<'_>,
        (covered, ignored): CoveredAndIgnored<'_>,
        wanted: &IgnoredSelection<'_>,
        (held, racy_files): (&EntryTree, RacyFiles),
    ) -> Result<Self, MirrorError> {
        let device = read_beneath::trusted_device(source).map_err(|error| MirrorError::io(b"", error))?;
        let mut walk = IgnoredWalk {
            covered,
            selection: wanted,
            copied: held,
            device,
            started_at: file_stat::now(),
            cursor: LookupCursor::default(),
            leaves: Vec::new(),
            changed: Vec::new(),
            racy: Vec::new(),
            entries: 0,
            bytes: 0,
            left_out: None,
        };
        let mut inputs: Vec<IgnoredInput> = Vec::new();
        let mut walked: HashSet<&[u8]> = HashSet::new();
        // The directories above a copied input.
        let mut implied: HashSet<&[u8]> = HashSet::new();
        for path in ignored {
            // Git may list both a directory and a path inside it.
            if walk.is_excluded(path) || paths::ancestors(path).any(|above| walked.contains(above)) {
                continue;
            }
            let leaves = walk.leaves.len();
            inputs.extend(walk.examine_input(source, path)?);
            walked.insert(path);
            if walk.leaves.len() > leaves {
                implied.extend(paths::ancestors(path));
            }
        }
        let bare = (1..covered.directory_count()).filter(|at| covered.is_searched_but_uncovered(*at));
        for path in bare.map(|at| covered.directory_path(at)).filter(|path| !is_evidence_dir(path)) {
            walk.record_empty_directory(path.to_vec());
            // The steps see the directory, and no commit contains it. A run of a commit contains that of a submodule.
            let is_known = implied.contains(path) || covered.would_cover(path) || can_hold_evidence(path);
            if !is_known && !paths::ancestors(path).any(|above| walked.contains(above)) {
                inputs.push(IgnoredInput::uncopied(path.to_vec(), IgnoredInputKind::Directory, None));
                walked.insert(path);
            }
        }
        let settled = match racy_files {
            RacyFiles::Hash => walk.compare_racy_files(source),
            RacyFiles::CountAsChanged => Vec::new(),
        };
        let IgnoredWalk { leaves, changed, bytes, .. } = walk;
        let gone = if changed.is_empty() && leaves.len() == held.leaf_count() {
            Vec::new()
        } else {
            let here: HashSet<&[u8]> = leaves.iter().map(|(path, _)| path.as_slice()).collect();
            held.paths().filter(|path| !here.contains(path.as_slice())).collect()
        };
        let now = if changed.is_empty() && gone.is_empty() {
            held.clone()
        } else {
            EntryTree::from_leaves(leaves.into_iter().map(|(path, found)| (path, false, found)))
        };
        Ok(Self { current: now, changed, removed: gone, settled, inputs, bytes })
    }

    /// Returns whether the mirror and its record need no update.
    pub(super) fn is_up_to_date(&self) -> bool {
        self.has_current_files() && self.settled.is_empty()
    }

    /// Returns the number of files that have to be copied.
    pub(super) fn changed_count(&self) -> usize {
        self.changed.len()
    }

    /// Returns whether the mirror contains the current ignored files.
    fn has_current_files(&self) -> bool {
        self.changed.is_empty() && self.removed.is_empty()
    }

    /// Returns all ignored files. Files that have to be copied have no digest yet.
    pub(super) fn current(&self) -> &EntryTree {
        &self.current
    }

    /// Returns the files that the mirror lacks, or contains in another state.
    pub(super) fn changed(&self) -> &[Vec<u8>] {
        &self.changed
    }

    /// Returns the inputs with their digests from `held`, which must contain all of them.
    pub(super) fn inputs(self, held: &EntryTree) -> Vec<IgnoredInput> {
        with_digests(held, self.inputs)
    }

    /// Returns the survey for a mirror without ignored files.
    pub(super) fn for_no_files(held: &EntryTree) -> Self {
        let now = EntryTree::from_leaves([]);
        Self {
            current: now,
            changed: Vec::new(),
            removed: held.paths().collect(),
            settled: Vec::new(),
            inputs: Vec::new(),
            bytes: 0,
        }
    }
}

impl Mirror {
    /// Removes ignored files that differ from the current ones in the work tree.
    pub(super) fn remove_ignored(&mut self, survey: &IgnoredSurvey) -> Result<(), MirrorError> {
        if survey.has_current_files() {
            return Ok(());
        }
        let mut paths: Vec<Vec<u8>> = survey.changed.iter().chain(&survey.removed).cloned().collect();
        paths.sort_unstable();
        self.ignored.begin(&paths)?;
        removal::remove_paths(self.tree.as_fd(), self.record.entries(), &paths)
    }

    /// Copies the ignored files that [`Mirror::remove_ignored`] has removed, and returns all inputs.
    pub(super) fn copy_ignored(
        &mut self,
        source: BorrowedFd<'_>,
        survey: IgnoredSurvey,
        wanted: &IgnoredSelection<'_>,
    ) -> Result<Vec<IgnoredInput>, MirrorError> {
        let IgnoredSurvey { current: now, changed, removed: gone, settled, mut inputs, bytes } = survey;
        if !changed.is_empty() || !gone.is_empty() {
            let spare = SpareBytes::new(wanted.max_bytes.saturating_sub(bytes));
            let copier =
                MirrorCopier { source, tree: self.tree.as_fd(), owner: self.owner, mtime: self.ignored.newest_mtime };
            let copied = copier.copy_ignored(&now, &changed, (wanted, &spare))?;
            count_left_out(&mut inputs, copied.left_out);
            let gone = gone.into_iter().map(|path| (path, ScannedEntry::MISSING));
            let found = copied.found.into_iter().chain(gone).chain(settled).collect();
            self.ignored.finish(self.ignored.newest_mtime, found)?;
        } else if !settled.is_empty() {
            self.ignored.finish(self.ignored.newest_mtime, settled)?;
        }
        Ok(with_digests(self.ignored.entries(), inputs))
    }

    /// Records that no ignored file was copied after [`Mirror::remove_ignored`].
    pub(super) fn record_no_ignored(&mut self, survey: IgnoredSurvey) -> Result<(), MirrorError> {
        let paths = survey.changed.into_iter().chain(survey.removed);
        let found: Vec<_> = paths.map(|path| (path, ScannedEntry::MISSING)).collect();
        if found.is_empty() { Ok(()) } else { self.ignored.finish(self.ignored.newest_mtime, found) }
    }

    /// Removes the ignored files of an interrupted update.
    pub(super) fn remove_unfinished_ignored(&mut self) -> Result<(), MirrorError> {
        let Some(mut paths) = self.ignored.unfinished().cloned() else { return Ok(()) };
        paths.sort_unstable();
        // The interrupted update may already have copied a file that is covered now.
        let is_copied = |path: &Vec<u8>| {
            let is_unfinished = self.record.unfinished().is_some_and(|unfinished| unfinished.contains(path));
            self.record.entries().contains(path) && !is_unfinished
        };
        let left: Vec<Vec<u8>> = paths.iter().filter(|path| !is_copied(path)).cloned().collect();
        removal::remove_paths(self.tree.as_fd(), self.record.entries(), &left)?;
        self.ignored
            .finish(self.ignored.newest_mtime, paths.into_iter().map(|path| (path, ScannedEntry::MISSING)).collect())
    }
}

/// Counts files that could not be copied in the inputs that contain them.
fn count_left_out(inputs: &mut [IgnoredInput], mut left_out: Vec<(Vec<u8>, OmissionReason)>) {
    // Sorting makes the result independent of the order in which the threads copied.
    left_out.sort_unstable();
    for (path, reason) in left_out {
        let is_its = |input: &&mut IgnoredInput| path == input.path || paths::is_below(&path, &input.path);
        if let Some(input) = inputs.iter_mut().find(is_its) {
            let count = u64::from(input.path != path);
            input.left_out.get_or_insert(OmittedFiles { count: 0, reason }).count += count;
        }
    }
}

/// Adds the size and digest of the copies to the inputs.
fn with_digests(held: &EntryTree, inputs: Vec<IgnoredInput>) -> Vec<IgnoredInput> {
    inputs.into_iter().map(|input| with_digest(held, input)).collect()
}

fn with_digest(held: &EntryTree, input: IgnoredInput) -> IgnoredInput {
    let directory = held.directory_index(&input.path);
    let (files, bytes, sha256) = match directory {
        Some(directory) => held.directory_totals(directory),
        None => match held
            .leaf_at_path(&input.path)
            .map(|leaf| leaf.found)
            .filter(|found| found.kind != ScannedKind::Missing)
        {
            Some(found) => (1, found.stat.size, Some(Sha256Hex::from_raw(found.sha256))),
            None => (0, 0, None),
        },
    };
    let permissions = match directory {
        Some(directory) => permissions_digest(held.leaves_below(directory)),
        None => permissions_digest(held.leaf_at_path(&input.path).map(|leaf| (input.path.clone(), &leaf.found))),
    };
    IgnoredInput { files, bytes, sha256, permissions, ..input }
}

/// Returns the sha256 of the permissions and paths of all files whose permissions are not the usual ones.
fn permissions_digest<'a>(leaves: impl IntoIterator<Item = (Vec<u8>, &'a ScannedEntry)>) -> Option<Sha256Hex> {
    const USUAL: u32 = 0o644;
    let mut listed = Vec::new();
    for (path, found) in leaves {
        let permissions = found.stat.mode & 0o7777;
        if matches!(found.kind, ScannedKind::File | ScannedKind::Executable) && permissions != USUAL {
            listed.extend_from_slice(format!("{permissions:o} ").as_bytes());
            listed.extend_from_slice(&path);
            listed.push(0);
        }
    }
    (!listed.is_empty()).then(|| Sha256Hex::digest(&listed))
}

/// Returns whether a directory can only contain our own evidence.
fn is_evidence_dir(directory: &[u8]) -> bool {
    is_evidence_path(&paths::join(directory, b"x"))
}

/// Returns whether a directory can exist for our own evidence: the directory of a changeset, or the one above it.
fn can_hold_evidence(directory: &[u8]) -> bool {
    [&b"verify/x"[..], b"0/verify/x"].iter().any(|below| is_evidence_path(&paths::join(directory, below)))
}

enum SurveyFailure {
    /// The input would exceed a bound; the reason for leaving it out.
    TooLarge(OmissionReason),
    Failed(MirrorError),
}

/// Traverses the ignored files.
struct IgnoredWalk<'a> {
    covered: &'a EntryTree,
    selection: &'a IgnoredSelection<'a>,
    copied: &'a EntryTree,
    device: Option<u64>,
    started_at: FileTime,
    cursor: LookupCursor,
    leaves: Vec<(Vec<u8>, ScannedEntry)>,
    changed: Vec<Vec<u8>>,
    /// The positions of changed files in `leaves` whose stat data are those of their copies, with the recorded entries.
    racy: Vec<(usize, ScannedEntry)>,
    entries: usize,
    bytes: u64,
    /// The files left out of the current input.
    left_out: Option<OmittedFiles>,
}

impl IgnoredWalk<'_> {
    fn is_excluded(&self, path: &[u8]) -> bool {
        let is_at_or_below = |except: &RelPath| {
            let except = except.as_str().as_bytes();
            path == except || paths::is_below(path, except)
        };
        is_evidence_path(path) || self.selection.except.iter().any(is_at_or_below)
    }

    /// Examines one ignored path; returns `None` if it does not exist any more.
    fn examine_input(&mut self, source: BorrowedFd<'_>, path: &[u8]) -> Result<Option<IgnoredInput>, MirrorError> {
        let (directory, name) = paths::split(path);
        let failed = |error| MirrorError::io(path, error);
        let parent = match read_beneath::open(source, directory, OFlags::PATH | OFlags::DIRECTORY) {
            Ok(parent) => parent,
            Err(error) if read_beneath::is_missing_error(&error) => return Ok(None),
            Err(error) => return Err(failed(error)),
        };
        let stat = match statat(&parent, name, AtFlags::SYMLINK_NOFOLLOW) {
            Ok(stat) => stat,
            Err(Errno::NOENT | Errno::NOTDIR) => return Ok(None),
            Err(errno) => return Err(failed(errno.into())),
        };
        self.left_out = None;
        let kind = match FileType::from_raw_mode(stat.st_mode) {
            FileType::Directory => IgnoredInputKind::Directory,
            FileType::RegularFile => IgnoredInputKind::File,
            FileType::Symlink => IgnoredInputKind::Symlink,
            _ => IgnoredInputKind::Special,
        };
        let before = (self.leaves.len(), self.changed.len(), self.entries, self.bytes);
        let left_out = match self.examine_entry(parent.as_fd(), name, path.to_vec(), &stat, 0) {
            Ok(()) => self.left_out.take(),
            Err(SurveyFailure::TooLarge(reason)) => {
                self.leaves.truncate(before.0);
                self.racy.retain(|(at, _)| *at < before.0);
                self.changed.truncate(before.1);
                (self.entries, self.bytes) = (before.2, before.3);
                Some(OmittedFiles { count: 0, reason })
            }
            Err(SurveyFailure::Failed(error)) => return Err(error),
        };
        Ok(Some(IgnoredInput::uncopied(path.to_vec(), kind, left_out)))
    }

    fn examine_entry(
        &mut self,
        parent: BorrowedFd<'_>,
        name: &[u8],
        path: Vec<u8>,
        stat: &Stat,
        depth: usize,
    ) -> Result<(), SurveyFailure> {
        match FileType::from_raw_mode(stat.st_mode) {
            FileType::Directory => self.examine_directory(parent, name, &path, stat, depth),
            FileType::RegularFile | FileType::Symlink => self.examine_leaf(path, stat),
            _ => {
                self.leave_out(OmissionReason::SpecialFile);
                Ok(())
            }
        }
    }

    fn examine_directory(
        &mut self,
        parent: BorrowedFd<'_>,
        name: &[u8],
        path: &[u8],
        stat: &Stat,
        depth: usize,
    ) -> Result<(), SurveyFailure> {
        if self.covered.leaf_at_path(path).is_some_and(|leaf| leaf.found.kind == ScannedKind::Gitlink) {
            // The rules of a nested repository decide which of its files are ignored.
            return Ok(());
        }
        if depth >= MAX_DEPTH {
            self.leave_out(OmissionReason::TooDeep);
            return Ok(());
        }
        if self.selection.rights.is_some_and(|rights| !rights.can_list(stat)) {
            self.leave_out(OmissionReason::NotReadable);
            return Ok(());
        }
        let opened = match openat(parent, name, DIRECTORY_FLAGS, Mode::empty()) {
            Ok(opened) => opened,
            Err(Errno::ACCESS) => {
                self.leave_out(OmissionReason::NotReadable);
                return Ok(());
            }
            Err(Errno::NOENT | Errno::NOTDIR | Errno::LOOP) => return Ok(()),
            Err(errno) => return Err(SurveyFailure::Failed(MirrorError::io(path, errno))),
        };
        self.count_entry(0)?;
        let is_empty = self.examine_children(&opened, path, depth)?;
        let is_covered = || self.covered.directory_index(path).is_some();
        if is_empty && !is_covered() {
            self.record_empty_directory(path.to_vec());
        }
        Ok(())
    }

    /// Examines the content of a directory. Returns whether the directory is empty.
    fn examine_children(&mut self, opened: &OwnedFd, path: &[u8], depth: usize) -> Result<bool, SurveyFailure> {
        let failed = |error| SurveyFailure::Failed(MirrorError::io(path, error));
        let names = read_beneath::read_names(opened.as_fd()).map_err(failed)?;
        for name in &names {
            let inner = paths::join(path, name);
            if self.is_excluded(&inner) || self.covered.would_cover(&inner) && !self.is_directory(opened, name) {
                continue;
            }
            match statat(opened, name.as_slice(), AtFlags::SYMLINK_NOFOLLOW) {
                Ok(stat) => self.examine_entry(opened.as_fd(), name, inner, &stat, depth + 1)?,
                Err(Errno::NOENT) => {}
                Err(errno) => return Err(failed(errno.into())),
            }
        }
        Ok(names.is_empty())
    }

    fn is_directory(&self, parent: &OwnedFd, name: &[u8]) -> bool {
        statat(parent, name, AtFlags::SYMLINK_NOFOLLOW)
            .is_ok_and(|stat| FileType::from_raw_mode(stat.st_mode) == FileType::Directory)
    }

    fn examine_leaf(&mut self, path: Vec<u8>, stat: &Stat) -> Result<(), SurveyFailure> {
        let is_link = FileType::from_raw_mode(stat.st_mode) == FileType::Symlink;
        if !is_link && self.selection.rights.is_some_and(|rights| !rights.can_read(stat)) {
            self.leave_out(OmissionReason::NotReadable);
            return Ok(());
        }
        let stamp = FileStat::from_stat(stat);
        self.count_entry(if is_link { 0 } else { stamp.size })?;
        let kind = match is_link {
            true => ScannedKind::Symlink,
            false if read_beneath::is_executable(stat) => ScannedKind::Executable,
            false => ScannedKind::File,
        };
        self.record_leaf(path, ScannedEntry { kind, racy: false, sha256: [0; 32], stat: stamp });
        Ok(())
    }

    fn record_empty_directory(&mut self, path: Vec<u8>) {
        self.record_leaf(
            path,
            ScannedEntry { kind: ScannedKind::EmptyDirectory, sha256: *EMPTY_SHA256, ..ScannedEntry::MISSING },
        );
    }

    /// Records a file, and marks it for copying unless the mirror has an identical copy.
    fn record_leaf(&mut self, path: Vec<u8>, found: ScannedEntry) {
        let held = self.copied.leaf_at_cursor(&mut self.cursor, &path).map(|leaf| leaf.found);
        let is_same = |held: &ScannedEntry| {
            held.kind == found.kind
                && held.stat == found.stat
                && (found.kind == ScannedKind::EmptyDirectory || self.device == Some(found.stat.dev))
        };
        match held.filter(is_same) {
            Some(held) if !held.racy => self.leaves.push((path, held)),
            same => {
                self.racy.extend(same.map(|held| (self.leaves.len(), held)));
                self.changed.push(path.clone());
                let racy = self.device != Some(found.stat.dev) || is_racy(&found, self.started_at);
                self.leaves.push((path, ScannedEntry { racy, ..found }));
            }
        }
    }

    /// Compares the content of files with their copies if only their stat data are known to be the same. Identical files
    /// no longer count as changed. Returns those whose stat data can be trusted from now on.
    fn compare_racy_files(&mut self, source: BorrowedFd<'_>) -> Vec<(Vec<u8>, ScannedEntry)> {
        let (mut settled, mut identical) = (Vec::new(), HashSet::new());
        for (at, held) in std::mem::take(&mut self.racy) {
            let (path, found) = &mut self.leaves[at];
            // A file that cannot be read is copied again, and the copying handles the error.
            if hash_entry(source, path, found).ok().flatten() != Some(held.sha256) {
                continue;
            }
            found.sha256 = held.sha256;
            identical.insert(path.clone());
            if !found.racy {
                settled.push((path.clone(), *found));
            }
        }
        self.changed.retain(|path| !identical.contains(path));
        settled
    }

    fn leave_out(&mut self, reason: OmissionReason) {
        self.left_out.get_or_insert(OmittedFiles { count: 0, reason }).count += 1;
    }

    fn count_entry(&mut self, bytes: u64) -> Result<(), SurveyFailure> {
        self.entries += 1;
        self.bytes = self.bytes.saturating_add(bytes);
        if self.entries > self.selection.max_entries {
            return Err(SurveyFailure::TooLarge(OmissionReason::TooManyEntries));
        }
        if self.bytes > self.selection.max_bytes {
            return Err(SurveyFailure::TooLarge(OmissionReason::TooManyBytes));
        }
        Ok(())
    }
}

/// Returns whether a file can still change after `time`, when it is copied, without a change of its stat data. A write
/// through a shared mapping does that for a while; no mapping can change a link.
fn is_racy(found: &ScannedEntry, time: FileTime) -> bool {
    let is_file = matches!(found.kind, ScannedKind::File | ScannedKind::Executable);
    found.stat.is_racy(time) || (is_file && found.stat.is_in_racy_window(time, RacyWindow::default()))
}

/// The sha256 of the empty string.
static EMPTY_SHA256: std::sync::LazyLock<[u8; 32]> = std::sync::LazyLock::new(|| Sha256::digest(b"").into());

#[cfg(test)]
#[expect(clippy::disallowed_methods, reason = "tests write worktree files without atomic replacement")]
mod tests;
