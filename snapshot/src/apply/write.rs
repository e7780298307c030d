//! Writes the checked changes. All new files are first written to a staging directory; then each is exchanged with
//! the existing entry, which must be the one that was checked. If another process has replaced it, all changes are
//! reverted.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};

use proctor_core::drift::display_path;
use rustix::fs::{AtFlags, FileType, Mode, OFlags, Stat};
use rustix::io::Errno;

use super::stage::{Look, Owner, Stage};
use super::{ApplyError, ApplyInput, Changes, Seen, stays};
use crate::beneath;
use crate::layer::{FileContent, LayerEntry};
use crate::paths;
use crate::view::{Standing, standing_of};

/// Writes the changes in the order of their paths, so that a directory comes before its content.
pub(super) fn write(input: &ApplyInput<'_>, changes: &Changes<'_>, seen: &Seen) -> Result<Vec<Vec<u8>>, ApplyError> {
    if changes.is_empty() {
        return Ok(Vec::new());
    }
    let stage = Stage::make(input.repo).map_err(|source| super::untouched(b".", source))?;
    let mut writer = Writer { input, changes, seen, stage, staged: BTreeMap::new(), done: Vec::new() };
    let carried = writer.stage_all().and_then(|()| writer.carry_out()).and_then(|()| writer.sync());
    let Err(trouble) = carried else { return Ok(writer.finish()) };
    let stuck = writer.take_back();
    Err(writer.failed(trouble, &stuck))
}

/// Why a change was not carried out.
enum Trouble {
    /// Another process changed the path after the check.
    Changed(Vec<u8>),
    /// A system call failed.
    Io(Vec<u8>, io::Error),
}

/// A completed change, with the data needed to revert it.
enum Done {
    /// A file or link replaced another one.
    Replaced { path: Vec<u8>, kept: String },
    /// A file or link was created where no entry existed.
    Put { path: Vec<u8> },
    /// An entry was removed.
    Taken { path: Vec<u8>, kept: String },
    /// A directory was created.
    Made { path: Vec<u8> },
    /// An empty directory was removed.
    Removed { path: Vec<u8>, mode: Mode, owner: Owner },
}

struct Writer<'a> {
    input: &'a ApplyInput<'a>,
    changes: &'a Changes<'a>,
    seen: &'a Seen,
    stage: Stage<'a>,
    /// Names in the staging directory, by path.
    staged: BTreeMap<Vec<u8>, String>,
    /// In the order in which they were made.
    done: Vec<Done>,
}

impl Writer<'_> {
    /// Writes all files and links to the staging directory. A failure here leaves the tree unchanged.
    fn stage_all(&mut self) -> Result<(), Trouble> {
        for (path, entry) in self.changes {
            let staged = match entry {
                LayerEntry::File { executable, content: FileContent::Sha256(sha256), .. } => {
                    self.look(path, *executable).and_then(|look| {
                        let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOCTTY;
                        self.stage.file(beneath::open(self.input.upper, path, flags)?, sha256, &look)
                    })
                }
                LayerEntry::Symlink { target } => {
                    self.look(path, false).and_then(|look| self.stage.link(target, &look))
                }
                _ => continue,
            };
            let name = staged.map_err(|error| Trouble::Io(path.to_vec(), error))?;
            self.staged.insert(path.to_vec(), name);
        }
        Ok(())
    }

    /// Determines the owner and mode of a new file: those of the file that it replaces, or else the defaults for
    /// its nearest existing parent directory.
    fn look(&self, path: &[u8], executable: bool) -> io::Result<Look> {
        let replaced = beneath::look(self.input.repo, path)?.map(|(_, stat)| stat);
        let is_there = |path: &[u8]| -> io::Result<Option<Stat>> {
            let found = beneath::look(self.input.repo, path)?.map(|(_, stat)| stat);
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
        Ok(Look::new(replaced.as_ref(), &directory, executable))
    }

    fn carry_out(&mut self) -> Result<(), Trouble> {
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
                    self.put(path)?;
                }
                LayerEntry::File { .. } | LayerEntry::Special => {}
            }
        }
        Ok(())
    }

    /// Moves the staged entry to `path`, replacing exactly the entry that was checked.
    fn put(&mut self, path: &[u8]) -> Result<(), Trouble> {
        if self.kind(path)? == Some(FileType::Directory) {
            self.remove(path)?;
        }
        let Some(staged) = self.staged.get(path).cloned() else { return Ok(()) };
        let place = self.place(path)?;
        match self.seen.get(path) {
            None | Some(Standing::Absent | Standing::Directory) => {
                self.stage.put(&staged, place.parent.as_fd(), place.name).map_err(|error| troubled(path, error))?;
                self.done.push(Done::Put { path: path.to_vec() });
                Ok(())
            }
            Some(seen) => self.replace(path, &place, staged, seen),
        }
    }

    fn replace(&mut self, path: &[u8], place: &Place<'_>, staged: String, seen: &Standing) -> Result<(), Trouble> {
        let (parent, io) = (place.parent.as_fd(), |error| troubled(path, error));
        if !self.stage.exchange(&staged, parent, place.name).map_err(io)? {
            // A change between this check and the replacement is not noticed.
            if standing(self.input.repo, path).map_err(io)? != *seen {
                return Err(Trouble::Changed(path.to_vec()));
            }
            let kept = self.stage.replace(&staged, parent, place.name).map_err(io)?;
            self.done.push(Done::Replaced { path: path.to_vec(), kept });
            return Ok(());
        }
        if self.stage.holds(&staged).map_err(io)? != *seen {
            self.stage.exchange(&staged, parent, place.name).map_err(io)?;
            return Err(Trouble::Changed(path.to_vec()));
        }
        self.done.push(Done::Replaced { path: path.to_vec(), kept: staged });
        Ok(())
    }

    fn kind(&self, path: &[u8]) -> Result<Option<FileType>, Trouble> {
        let found = beneath::look(self.input.repo, path).map_err(|error| troubled(path, error))?;
        Ok(found.map(|(_, stat)| FileType::from_raw_mode(stat.st_mode)))
    }

    fn place<'p>(&self, path: &'p [u8]) -> Result<Place<'p>, Trouble> {
        Place::of(self.input.repo, path).map_err(|error| troubled(path, error))
    }

    fn make_directory(&mut self, path: &[u8]) -> Result<(), Trouble> {
        // Nothing inside this directory is ever applied, so it would remain empty.
        if holds_our_artifacts(path) {
            return Ok(());
        }
        match self.kind(path)? {
            Some(FileType::Directory) => return Ok(()),
            Some(_) => self.remove(path)?,
            None => {}
        }
        if self.holds_reports_alone(path) {
            return Ok(());
        }
        let place = self.place(path)?;
        place.make_directory().map_err(|error| troubled(path, error))?;
        self.done.push(Done::Made { path: path.to_vec() });
        Ok(())
    }

    /// Checks whether the layer has only reports and directories below `path`; such a directory would remain empty
    /// too.
    fn holds_reports_alone(&self, path: &[u8]) -> bool {
        let scan = self.input.scan;
        let is_directory = |entry: &LayerEntry| matches!(entry, LayerEntry::Directory { .. });
        scan.reports.iter().any(|report| paths::is_below(report, path))
            && paths::below(&scan.entries, path)
                .all(|(inner, entry)| is_directory(entry) || scan.reports.contains(inner))
    }

    /// Removes the entry at `path` and everything below it, except entries that the layer also contains and entries
    /// that are never removed.
    fn remove(&mut self, path: &[u8]) -> Result<(), Trouble> {
        if stays(self.input, path) {
            return Ok(());
        }
        match self.kind(path)? {
            None => Ok(()),
            Some(FileType::Directory) => {
                self.remove_inside(path)?;
                self.remove_directory(path)
            }
            Some(_) => self.take(path),
        }
    }

    fn remove_inside(&mut self, path: &[u8]) -> Result<(), Trouble> {
        let names = beneath::names(self.input.repo, path).map_err(|error| troubled(path, error))?;
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

    fn remove_directory(&mut self, path: &[u8]) -> Result<(), Trouble> {
        let place = self.place(path)?;
        let Ok(stat) = beneath::stat_at(place.parent.as_fd(), place.name) else { return Ok(()) };
        match rustix::fs::unlinkat(&place.parent, place.name, AtFlags::REMOVEDIR) {
            Ok(()) => {
                let mode = Mode::from_raw_mode(stat.st_mode & 0o7777);
                self.done.push(Done::Removed { path: path.to_vec(), mode, owner: Owner::of(&stat) });
                Ok(())
            }
            // A directory stays if it contains an entry that is never removed.
            Err(Errno::NOENT | Errno::NOTEMPTY | Errno::EXIST) => Ok(()),
            Err(error) => Err(troubled(path, error.into())),
        }
    }

    /// Moves the entry at `path` out of the tree if it is the one that was checked.
    fn take(&mut self, path: &[u8]) -> Result<(), Trouble> {
        let (place, io) = (self.place(path)?, |error| troubled(path, error));
        let kept = match self.stage.take(place.parent.as_fd(), place.name) {
            // Another process already removed the entry.
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
            other => other.map_err(io)?,
        };
        if self.seen.get(path) != Some(&self.stage.holds(&kept).map_err(io)?) {
            self.stage.put(&kept, place.parent.as_fd(), place.name).map_err(io)?;
            return Err(Trouble::Changed(path.to_vec()));
        }
        self.done.push(Done::Taken { path: path.to_vec(), kept });
        Ok(())
    }

    /// Flushes the parent directories of all changes to the disk.
    fn sync(&self) -> Result<(), Trouble> {
        let parents: BTreeSet<&[u8]> = self.done.iter().map(|done| parent(done.path())).collect();
        for path in parents {
            let synced = match beneath::open(self.input.repo, path, OFlags::RDONLY | OFlags::DIRECTORY) {
                Ok(fd) => rustix::fs::fsync(fd).map_err(io::Error::from),
                // The directory was removed after an entry in it.
                Err(error) if beneath::is_nothing(&error) => Ok(()),
                Err(error) => Err(error),
            };
            synced.map_err(|error| Trouble::Io(path.to_vec(), error))?;
        }
        Ok(())
    }

    /// Deletes the original entries. Returns the paths of files and links that changed, sorted.
    fn finish(self) -> Vec<Vec<u8>> {
        // A leftover staging directory does no harm, and its name shows that it is ours.
        let _ = self.stage.clear();
        let changed = self.done.into_iter().filter_map(|done| match done {
            Done::Replaced { path, .. } | Done::Put { path } | Done::Taken { path, .. } => Some(path),
            Done::Made { .. } | Done::Removed { .. } => None,
        });
        let sorted: BTreeSet<Vec<u8>> = changed.collect();
        sorted.into_iter().collect()
    }

    /// Reverts the completed changes in reverse order. Returns the paths that another process changed again.
    fn take_back(&mut self) -> Vec<Vec<u8>> {
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
    fn undo(&mut self, done: &Done) -> io::Result<bool> {
        let path = done.path();
        let place = Place::of(self.input.repo, path)?;
        let parent = place.parent.as_fd();
        match done {
            Done::Replaced { kept, .. } => {
                if !self.stage.exchange(kept, parent, place.name)? {
                    let ours = self.is_ours(path, &standing(self.input.repo, path)?);
                    return if ours { self.stage.replace(kept, parent, place.name).map(|_| true) } else { Ok(false) };
                }
                let ours = self.is_ours(path, &self.stage.holds(kept)?);
                if !ours {
                    self.stage.exchange(kept, parent, place.name)?;
                }
                Ok(ours)
            }
            Done::Put { .. } => {
                let kept = self.stage.take(parent, place.name)?;
                let ours = self.is_ours(path, &self.stage.holds(&kept)?);
                if !ours {
                    self.stage.put(&kept, parent, place.name)?;
                }
                Ok(ours)
            }
            Done::Taken { kept, .. } => self.stage.put(kept, parent, place.name).map(|()| true),
            Done::Made { .. } => Ok(rustix::fs::unlinkat(parent, place.name, AtFlags::REMOVEDIR).map(|()| true)?),
            Done::Removed { mode, owner, .. } => {
                rustix::fs::mkdirat(parent, place.name, *mode)?;
                owner.give_at(parent, place.name)?;
                let made = beneath::open(self.input.repo, path, OFlags::RDONLY | OFlags::DIRECTORY)?;
                Ok(rustix::fs::fchmod(made, *mode).map(|()| true)?)
            }
        }
    }

    /// Checks whether an entry is the step's result for a path.
    fn is_ours(&self, path: &[u8], found: &Standing) -> bool {
        self.changes.get(path).is_some_and(|entry| standing_of(entry) == *found)
    }

    fn failed(&self, trouble: Trouble, stuck: &[Vec<u8>]) -> ApplyError {
        let shown = |path: &[u8]| display_path(path);
        if !stuck.is_empty() {
            let paths = stuck.iter().map(|path| shown(path)).collect();
            return ApplyError::Torn { paths, kept: self.stage.name().to_owned() };
        }
        // The staging directory contains no original entries any more.
        let _ = self.stage.clear();
        match trouble {
            Trouble::Changed(path) => ApplyError::Conflict { paths: vec![shown(&path)] },
            Trouble::Io(path, source) => super::untouched(&path, source),
        }
    }
}

impl Done {
    fn path(&self) -> &[u8] {
        match self {
            Self::Replaced { path, .. }
            | Self::Put { path }
            | Self::Taken { path, .. }
            | Self::Made { path }
            | Self::Removed { path, .. } => path,
        }
    }
}

/// Classifies an error: the path is no longer the entry that was checked, or the system call failed.
fn troubled(path: &[u8], error: io::Error) -> Trouble {
    let moved = beneath::is_nothing(&error) || error.kind() == io::ErrorKind::AlreadyExists;
    if moved { Trouble::Changed(path.to_vec()) } else { Trouble::Io(path.to_vec(), error) }
}

fn standing(repo: BorrowedFd<'_>, path: &[u8]) -> io::Result<Standing> {
    Ok(super::standing_in(beneath::read(repo, path, u64::MAX)?))
}

/// A path to write: its open parent directory, and its name.
struct Place<'a> {
    parent: OwnedFd,
    name: &'a [u8],
}

impl<'a> Place<'a> {
    fn of(repo: BorrowedFd<'_>, path: &'a [u8]) -> io::Result<Self> {
        let parent = beneath::open(repo, parent(path), OFlags::RDONLY | OFlags::DIRECTORY)?;
        Ok(Self { parent, name: paths::name(path) })
    }

    /// Creates a directory with the owner of its parent.
    fn make_directory(&self) -> io::Result<()> {
        rustix::fs::mkdirat(&self.parent, self.name, Mode::from_raw_mode(0o755))?;
        Owner::of(&rustix::fs::fstat(&self.parent)?).give_at(self.parent.as_fd(), self.name)
    }
}

fn parent(path: &[u8]) -> &[u8] {
    path.iter().rposition(|b| *b == b'/').map_or(b"", |at| &path[..at])
}

/// Checks whether `path` is the directory of a changeset's evidence.
fn holds_our_artifacts(path: &[u8]) -> bool {
    path.ends_with(b"/verify") && proctor_core::drift::is_our_artifact(&paths::join(path, b"x"))
}
