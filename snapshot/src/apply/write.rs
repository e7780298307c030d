//! Writes the checked changes. All new files are first written to a staging directory; then each is exchanged with
//! the existing entry, which must be the one that was checked. If another process has replaced it, all changes are
//! reverted.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};

use proctor_core::model::drift::display_path;
use proctor_git::files::{paths, read_beneath};
use rustix::fs::{AtFlags, FileType, Mode, OFlags, Stat};
use rustix::io::Errno;

use super::staging::{EntryOwner, NewEntryAttributes, StagingDir};
use super::{ApplyError, ApplyInput, CheckedEntries, PendingChanges, is_protected};
use crate::layer::layer_scan::{FileContent, LayerEntry};
use crate::tree_view::{PathState, path_state_from_layer};

/// Writes the changes in the order of their paths, so that a directory comes before its content.
pub(super) fn write_changes(
    input: &ApplyInput<'_>,
    changes: &PendingChanges<'_>,
    seen: &CheckedEntries,
) -> Result<Vec<Vec<u8>>, ApplyError> {
    if changes.is_empty() {
        return Ok(Vec::new());
    }
    let stage = StagingDir::create(input.repo).map_err(|source| crate::apply::unapplied_io_error(b".", source))?;
    let mut writer =
        ChangeWriter { input, changes, checked: seen, staging: stage, staged: BTreeMap::new(), done: Vec::new() };
    let carried = writer.stage_all().and_then(|()| writer.apply_all()).and_then(|()| writer.sync_parents());
    let Err(trouble) = carried else { return Ok(writer.finish()) };
    let stuck = writer.roll_back();
    Err(writer.apply_error(trouble, &stuck))
}

/// The reason why a change was not carried out.
enum WriteFailure {
    /// Another process changed the path after the check.
    Changed(Vec<u8>),
    /// A system call failed.
    Io(Vec<u8>, io::Error),
}

/// A completed change, with the data needed to revert it.
enum AppliedChange {
    /// A file or link replaced another one.
    Replaced { path: Vec<u8>, kept: String },
    /// A file or link was created where no entry existed.
    Created { path: Vec<u8> },
    /// An entry was removed.
    MovedOut { path: Vec<u8>, kept: String },
    /// A directory was created.
    DirectoryCreated { path: Vec<u8> },
    /// An empty directory was removed.
    DirectoryRemoved { path: Vec<u8>, mode: Mode, owner: EntryOwner },
}

struct ChangeWriter<'a> {
    input: &'a ApplyInput<'a>,
    changes: &'a PendingChanges<'a>,
    checked: &'a CheckedEntries,
    staging: StagingDir<'a>,
    /// Names in the staging directory, by path.
    staged: BTreeMap<Vec<u8>, String>,
    /// Changes in the order in which they were made.
    done: Vec<AppliedChange>,
}

impl ChangeWriter<'_> {
    /// Writes all files and links to the staging directory. A failure here leaves the tree unchanged.
    fn stage_all(&mut self) -> Result<(), WriteFailure> {
        for (path, entry) in self.changes {
            let staged = match entry {
                LayerEntry::File { executable, content: FileContent::Sha256(sha256), .. } => {
                    self.new_attributes(path, *executable).and_then(|look| {
                        let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOCTTY;
                        self.staging.copy_file(read_beneath::open(self.input.upper, path, flags)?, sha256, &look)
                    })
                }
                LayerEntry::Symlink { target } => {
                    self.new_attributes(path, false).and_then(|look| self.staging.create_link(target, &look))
                }
                _ => continue,
            };
            let name = staged.map_err(|error| WriteFailure::Io(path.to_vec(), error))?;
            self.staged.insert(path.to_vec(), name);
        }
        Ok(())
    }

    /// Determines the owner and mode of a new file: those of the file that it replaces, or else the defaults for
    /// its nearest existing parent directory.
    fn new_attributes(&self, path: &[u8], executable: bool) -> io::Result<NewEntryAttributes> {
        let replaced = read_beneath::open_entry(self.input.repo, path)?.map(|(_, stat)| stat);
        let is_there = |path: &[u8]| -> io::Result<Option<Stat>> {
            let found = read_beneath::open_entry(self.input.repo, path)?.map(|(_, stat)| stat);
            Ok(found.filter(|stat| FileType::from_raw_mode(stat.st_mode) == FileType::Directory))
        };
        let mut above = parent(path);
        let directory = loop {
            match is_there(above)? {
                Some(stat) => break stat,
                None if above.is_empty() => return Err(Errno::NOENT.into()),
                None => above = parent(above),
            }
        };
        Ok(NewEntryAttributes::new(replaced.as_ref(), &directory, executable))
    }

    fn apply_all(&mut self) -> Result<(), WriteFailure> {
        for (path, entry) in self.changes {
            match entry {
                LayerEntry::Whiteout => self.remove(path)?,
                LayerEntry::Directory { opaque } => {
                    self.make_directory(path)?;
                    if *opaque {
                        self.remove_inside(path)?;
                    }
                }
                LayerEntry::File { content: FileContent::Sha256(_), .. } | LayerEntry::Symlink { .. } => {
                    self.install(path)?;
                }
                LayerEntry::File { .. } | LayerEntry::Special => {}
            }
        }
        Ok(())
    }

    /// Moves the staged entry to `path`, replacing exactly the entry that was checked.
    fn install(&mut self, path: &[u8]) -> Result<(), WriteFailure> {
        if self.file_type_at(path)? == Some(FileType::Directory) {
            self.remove(path)?;
        }
        let Some(staged) = self.staged.get(path).cloned() else { return Ok(()) };
        let place = self.open_parent(path)?;
        match self.checked.get(path) {
            None | Some(PathState::Absent | PathState::Directory) => {
                self.staging
                    .move_out(&staged, place.parent.as_fd(), place.name)
                    .map_err(|error| classify_error(path, error))?;
                self.done.push(AppliedChange::Created { path: path.to_vec() });
                Ok(())
            }
            Some(seen) => self.replace(path, &place, staged, seen),
        }
    }

    fn replace(
        &mut self,
        path: &[u8],
        place: &OpenParent<'_>,
        staged: String,
        seen: &PathState,
    ) -> Result<(), WriteFailure> {
        let (parent, io) = (place.parent.as_fd(), |error| classify_error(path, error));
        if !self.staging.exchange(&staged, parent, place.name).map_err(io)? {
            // A change between this check and the replacement is not noticed.
            if read_path_state(self.input.repo, path).map_err(io)? != *seen {
                return Err(WriteFailure::Changed(path.to_vec()));
            }
            let kept = self.staging.replace(&staged, parent, place.name).map_err(io)?;
            self.done.push(AppliedChange::Replaced { path: path.to_vec(), kept });
            return Ok(());
        }
        if self.staging.read_entry(&staged).map_err(io)? != *seen {
            self.staging.exchange(&staged, parent, place.name).map_err(io)?;
            return Err(WriteFailure::Changed(path.to_vec()));
        }
        self.done.push(AppliedChange::Replaced { path: path.to_vec(), kept: staged });
        Ok(())
    }

    fn file_type_at(&self, path: &[u8]) -> Result<Option<FileType>, WriteFailure> {
        let found = read_beneath::open_entry(self.input.repo, path).map_err(|error| classify_error(path, error))?;
        Ok(found.map(|(_, stat)| FileType::from_raw_mode(stat.st_mode)))
    }

    fn open_parent<'p>(&self, path: &'p [u8]) -> Result<OpenParent<'p>, WriteFailure> {
        OpenParent::open(self.input.repo, path).map_err(|error| classify_error(path, error))
    }

    fn make_directory(&mut self, path: &[u8]) -> Result<(), WriteFailure> {
        // Nothing inside this directory is ever applied, so it would remain empty.
        if is_evidence_dir(path) {
            return Ok(());
        }
        match self.file_type_at(path)? {
            Some(FileType::Directory) => return Ok(()),
            Some(_) => self.remove(path)?,
            None => {}
        }
        if self.contains_only_reports(path) {
            return Ok(());
        }
        let place = self.open_parent(path)?;
        place.make_directory().map_err(|error| classify_error(path, error))?;
        self.done.push(AppliedChange::DirectoryCreated { path: path.to_vec() });
        Ok(())
    }

    /// Checks whether the layer has only reports and directories below `path`; such a directory would remain empty
    /// too.
    fn contains_only_reports(&self, path: &[u8]) -> bool {
        let scan = self.input.scan;
        let is_directory = |entry: &LayerEntry| matches!(entry, LayerEntry::Directory { .. });
        scan.reports.iter().any(|report| paths::is_below(report, path))
            && paths::below(&scan.entries, path)
                .all(|(inner, entry)| is_directory(entry) || scan.reports.contains(inner))
    }

    /// Removes the entry at `path` and everything below it, except entries that the layer also contains and entries
    /// that are never removed.
    fn remove(&mut self, path: &[u8]) -> Result<(), WriteFailure> {
        if is_protected(self.input, path) {
            return Ok(());
        }
        match self.file_type_at(path)? {
            None => Ok(()),
            Some(FileType::Directory) => {
                self.remove_inside(path)?;
                self.remove_directory(path)
            }
            Some(_) => self.move_out(path),
        }
    }

    fn remove_inside(&mut self, path: &[u8]) -> Result<(), WriteFailure> {
        let names = read_beneath::list_names(self.input.repo, path).map_err(|error| classify_error(path, error))?;
        for name in names {
            let inner = paths::join(path, &name);
            match self.input.scan.entries.get(&inner) {
                Some(LayerEntry::Directory { .. }) => self.remove_inside(&inner)?,
                Some(_) => {}
                None => self.remove(&inner)?,
            }
        }
        Ok(())
    }

    fn remove_directory(&mut self, path: &[u8]) -> Result<(), WriteFailure> {
        let place = self.open_parent(path)?;
        let Ok(stat) = read_beneath::stat_at(place.parent.as_fd(), place.name) else { return Ok(()) };
        match rustix::fs::unlinkat(&place.parent, place.name, AtFlags::REMOVEDIR) {
            Ok(()) => {
                let mode = Mode::from_raw_mode(stat.st_mode & 0o7777);
                self.done.push(AppliedChange::DirectoryRemoved {
                    path: path.to_vec(),
                    mode,
                    owner: EntryOwner::from_stat(&stat),
                });
                Ok(())
            }
            // A directory remains if it contains an entry that is never removed.
            Err(Errno::NOENT | Errno::NOTEMPTY | Errno::EXIST) => Ok(()),
            Err(error) => Err(classify_error(path, error.into())),
        }
    }

    /// Moves the entry at `path` out of the tree if it is the one that was checked.
    fn move_out(&mut self, path: &[u8]) -> Result<(), WriteFailure> {
        let (place, io) = (self.open_parent(path)?, |error| classify_error(path, error));
        let kept = match self.staging.move_in(place.parent.as_fd(), place.name) {
            // Another process already removed the entry.
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
            other => other.map_err(io)?,
        };
        if self.checked.get(path) != Some(&self.staging.read_entry(&kept).map_err(io)?) {
            self.staging.move_out(&kept, place.parent.as_fd(), place.name).map_err(io)?;
            return Err(WriteFailure::Changed(path.to_vec()));
        }
        self.done.push(AppliedChange::MovedOut { path: path.to_vec(), kept });
        Ok(())
    }

    /// Flushes the parent directories of all changes to the disk.
    fn sync_parents(&self) -> Result<(), WriteFailure> {
        let parents: BTreeSet<&[u8]> = self.done.iter().map(|done| parent(done.path())).collect();
        for path in parents {
            let synced = match read_beneath::open(self.input.repo, path, OFlags::RDONLY | OFlags::DIRECTORY) {
                Ok(fd) => rustix::fs::fsync(fd).map_err(io::Error::from),
                // The directory was removed after an entry in it.
                Err(error) if read_beneath::is_missing_error(&error) => Ok(()),
                Err(error) => Err(error),
            };
            synced.map_err(|error| WriteFailure::Io(path.to_vec(), error))?;
        }
        Ok(())
    }

    /// Deletes the original entries. Returns the paths of files and links that changed, sorted.
    fn finish(self) -> Vec<Vec<u8>> {
        // A leftover staging directory does no harm, and its name shows that it is ours.
        let _ = self.staging.remove();
        let changed = self.done.into_iter().filter_map(|done| match done {
            AppliedChange::Replaced { path, .. }
            | AppliedChange::Created { path }
            | AppliedChange::MovedOut { path, .. } => Some(path),
            AppliedChange::DirectoryCreated { .. } | AppliedChange::DirectoryRemoved { .. } => None,
        });
        let sorted: BTreeSet<Vec<u8>> = changed.collect();
        sorted.into_iter().collect()
    }

    /// Reverts the completed changes in reverse order. Returns the paths that another process changed again.
    fn roll_back(&mut self) -> Vec<Vec<u8>> {
        let mut stuck = Vec::new();
        while let Some(done) = self.done.pop() {
            if !self.undo(&done).unwrap_or(false) {
                stuck.push(done.path().to_vec());
            }
        }
        stuck.sort_unstable();
        stuck
    }

    /// Reverts one change. Returns `false` if another process has replaced our entry; its entry is kept.
    fn undo(&mut self, done: &AppliedChange) -> io::Result<bool> {
        let path = done.path();
        let place = OpenParent::open(self.input.repo, path)?;
        let parent = place.parent.as_fd();
        match done {
            AppliedChange::Replaced { kept, .. } => {
                if !self.staging.exchange(kept, parent, place.name)? {
                    let ours = self.is_step_result(path, &read_path_state(self.input.repo, path)?);
                    return if ours { self.staging.replace(kept, parent, place.name).map(|_| true) } else { Ok(false) };
                }
                let ours = self.is_step_result(path, &self.staging.read_entry(kept)?);
                if !ours {
                    self.staging.exchange(kept, parent, place.name)?;
                }
                Ok(ours)
            }
            AppliedChange::Created { .. } => {
                let kept = self.staging.move_in(parent, place.name)?;
                let ours = self.is_step_result(path, &self.staging.read_entry(&kept)?);
                if !ours {
                    self.staging.move_out(&kept, parent, place.name)?;
                }
                Ok(ours)
            }
            AppliedChange::MovedOut { kept, .. } => self.staging.move_out(kept, parent, place.name).map(|()| true),
            AppliedChange::DirectoryCreated { .. } => {
                Ok(rustix::fs::unlinkat(parent, place.name, AtFlags::REMOVEDIR).map(|()| true)?)
            }
            AppliedChange::DirectoryRemoved { mode, owner, .. } => {
                rustix::fs::mkdirat(parent, place.name, *mode)?;
                owner.apply_at(parent, place.name)?;
                let made = read_beneath::open(self.input.repo, path, OFlags::RDONLY | OFlags::DIRECTORY)?;
                Ok(rustix::fs::fchmod(made, *mode).map(|()| true)?)
            }
        }
    }

    /// Checks whether an entry is the step's result for a path.
    fn is_step_result(&self, path: &[u8], found: &PathState) -> bool {
        self.changes.get(path).is_some_and(|entry| path_state_from_layer(entry) == *found)
    }

    fn apply_error(&self, trouble: WriteFailure, stuck: &[Vec<u8>]) -> ApplyError {
        let shown = |path: &[u8]| display_path(path);
        if !stuck.is_empty() {
            let paths = stuck.iter().map(|path| shown(path)).collect();
            return ApplyError::PartlyRolledBack { paths, kept: self.staging.name().to_owned() };
        }
        // The staging directory contains no original entries any more.
        let _ = self.staging.remove();
        match trouble {
            WriteFailure::Changed(path) => ApplyError::Conflict { paths: vec![shown(&path)] },
            WriteFailure::Io(path, source) => crate::apply::unapplied_io_error(&path, source),
        }
    }
}

impl AppliedChange {
    fn path(&self) -> &[u8] {
        match self {
            Self::Replaced { path, .. }
            | Self::Created { path }
            | Self::MovedOut { path, .. }
            | Self::DirectoryCreated { path }
            | Self::DirectoryRemoved { path, .. } => path,
        }
    }
}

/// Classifies an error: the path is no longer the entry that was checked, or the system call failed.
fn classify_error(path: &[u8], error: io::Error) -> WriteFailure {
    let moved = read_beneath::is_missing_error(&error) || error.kind() == io::ErrorKind::AlreadyExists;
    if moved { WriteFailure::Changed(path.to_vec()) } else { WriteFailure::Io(path.to_vec(), error) }
}

fn read_path_state(repo: BorrowedFd<'_>, path: &[u8]) -> io::Result<PathState> {
    Ok(crate::tree_view::path_state_from_read(read_beneath::read(repo, path, u64::MAX)?))
}

/// A path to write: its open parent directory, and its name.
struct OpenParent<'a> {
    parent: OwnedFd,
    name: &'a [u8],
}

impl<'a> OpenParent<'a> {
    fn open(repo: BorrowedFd<'_>, path: &'a [u8]) -> io::Result<Self> {
        let parent = read_beneath::open(repo, parent(path), OFlags::RDONLY | OFlags::DIRECTORY)?;
        Ok(Self { parent, name: paths::file_name(path) })
    }

    /// Creates a directory with the owner of its parent.
    fn make_directory(&self) -> io::Result<()> {
        rustix::fs::mkdirat(&self.parent, self.name, Mode::from_raw_mode(0o755))?;
        EntryOwner::from_stat(&rustix::fs::fstat(&self.parent)?).apply_at(self.parent.as_fd(), self.name)
    }
}

fn parent(path: &[u8]) -> &[u8] {
    path.iter().rposition(|b| *b == b'/').map_or(b"", |at| &path[..at])
}

/// Checks whether `path` is the directory of a changeset's evidence.
fn is_evidence_dir(path: &[u8]) -> bool {
    path.ends_with(b"/verify") && proctor_core::model::drift::is_evidence_path(&paths::join(path, b"x"))
}
