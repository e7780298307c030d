//! Writes what was checked. Everything new is written beside the tree first; then each file is
//! exchanged for what stands at its place, and what came out of there must be what was checked. Where it
//! is something else, somebody was faster: all that was done is taken back.

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

/// Writes the changes, in the order of their paths: a directory before what is in it.
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
    /// Somebody changed the path after it was checked.
    Changed(Vec<u8>),
    /// The system refused.
    Io(Vec<u8>, io::Error),
}

/// A change of the tree, and what takes it back.
enum Done {
    /// A file or link stands where another one stood.
    Replaced { path: Vec<u8>, kept: String },
    /// A file or link stands where nothing stood.
    Put { path: Vec<u8> },
    /// Nothing stands there any more.
    Taken { path: Vec<u8>, kept: String },
    /// A directory was made.
    Made { path: Vec<u8> },
    /// An empty directory was removed.
    Removed { path: Vec<u8>, mode: Mode, owner: Owner },
}

struct Writer<'a> {
    input: &'a ApplyInput<'a>,
    changes: &'a Changes<'a>,
    seen: &'a Seen,
    stage: Stage<'a>,
    /// Under which name what is to stand at a path lies beside the tree.
    staged: BTreeMap<Vec<u8>, String>,
    /// In order.
    done: Vec<Done>,
}

impl Writer<'_> {
    /// Writes every file and link beside the tree: what fails there has changed nothing.
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

    /// How a new file is going to look: like the one that it replaces, or else as its directory says,
    /// or the nearest one above it that is there.
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

    /// Puts what was staged for `path` there, in place of exactly what was seen there.
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
            // What happens between these two is not noticed.
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
        // Nothing in it is ever applied, so that it would stand empty.
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

    /// Whether the layer has nothing but reports and directories below `path`: it would stand empty too.
    fn holds_reports_alone(&self, path: &[u8]) -> bool {
        let scan = self.input.scan;
        let is_directory = |entry: &LayerEntry| matches!(entry, LayerEntry::Directory { .. });
        scan.reports.iter().any(|report| paths::is_below(report, path))
            && paths::below(&scan.entries, path)
                .all(|(inner, entry)| is_directory(entry) || scan.reports.contains(inner))
    }

    /// Removes what stands at `path` and below it, but what the layer has there too, and what
    /// is never removed.
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
            // A directory stays that holds something which is never removed.
            Err(Errno::NOENT | Errno::NOTEMPTY | Errno::EXIST) => Ok(()),
            Err(error) => Err(troubled(path, error.into())),
        }
    }

    /// Takes exactly what was seen at `path` out of the tree.
    fn take(&mut self, path: &[u8]) -> Result<(), Trouble> {
        let (place, io) = (self.place(path)?, |error| troubled(path, error));
        let kept = match self.stage.take(place.parent.as_fd(), place.name) {
            // Somebody else has removed it too.
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

    /// Brings the directories of everything that was done to the disk.
    fn sync(&self) -> Result<(), Trouble> {
        let parents: BTreeSet<&[u8]> = self.done.iter().map(|done| parent(done.path())).collect();
        for path in parents {
            let synced = match beneath::open(self.input.repo, path, OFlags::RDONLY | OFlags::DIRECTORY) {
                Ok(fd) => rustix::fs::fsync(fd).map_err(io::Error::from),
                // It was removed after something in it was.
                Err(error) if beneath::is_nothing(&error) => Ok(()),
                Err(error) => Err(error),
            };
            synced.map_err(|error| Trouble::Io(path.to_vec(), error))?;
        }
        Ok(())
    }

    /// Throws away what stood in the tree; the paths of files and links that changed, sorted.
    fn finish(self) -> Vec<Vec<u8>> {
        // What stays there is in nobody's way, and has a name that says whose it is.
        let _ = self.stage.clear();
        let changed = self.done.into_iter().filter_map(|done| match done {
            Done::Replaced { path, .. } | Done::Put { path } | Done::Taken { path, .. } => Some(path),
            Done::Made { .. } | Done::Removed { .. } => None,
        });
        let sorted: BTreeSet<Vec<u8>> = changed.collect();
        sorted.into_iter().collect()
    }

    /// Takes back what was done, the last first; the paths at which somebody was faster again.
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

    /// `false` where what stands there is not ours any more, and stays.
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

    /// Whether something is what the step made of a path.
    fn is_ours(&self, path: &[u8], found: &Standing) -> bool {
        self.changes.get(path).is_some_and(|entry| standing_of(entry) == *found)
    }

    fn failed(&self, trouble: Trouble, stuck: &[Vec<u8>]) -> ApplyError {
        let shown = |path: &[u8]| display_path(path);
        if !stuck.is_empty() {
            let paths = stuck.iter().map(|path| shown(path)).collect();
            return ApplyError::Torn { paths, kept: self.stage.name().to_owned() };
        }
        // Nothing of the tree's is in it any more.
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

/// What a refusal says of a path: that it is not what was checked any more, or that the system
/// refuses.
fn troubled(path: &[u8], error: io::Error) -> Trouble {
    let moved = beneath::is_nothing(&error) || error.kind() == io::ErrorKind::AlreadyExists;
    if moved { Trouble::Changed(path.to_vec()) } else { Trouble::Io(path.to_vec(), error) }
}

fn standing(repo: BorrowedFd<'_>, path: &[u8]) -> io::Result<Standing> {
    Ok(super::standing_in(beneath::read(repo, path, u64::MAX)?))
}

/// Where a path is made: the open directory above it, and its name there.
struct Place<'a> {
    parent: OwnedFd,
    name: &'a [u8],
}

impl<'a> Place<'a> {
    fn of(repo: BorrowedFd<'_>, path: &'a [u8]) -> io::Result<Self> {
        let parent = beneath::open(repo, parent(path), OFlags::RDONLY | OFlags::DIRECTORY)?;
        Ok(Self { parent, name: paths::name(path) })
    }

    /// Makes a directory that has the owner of the one above it.
    fn make_directory(&self) -> io::Result<()> {
        rustix::fs::mkdirat(&self.parent, self.name, Mode::from_raw_mode(0o755))?;
        Owner::of(&rustix::fs::fstat(&self.parent)?).give_at(self.parent.as_fd(), self.name)
    }
}

fn parent(path: &[u8]) -> &[u8] {
    path.iter().rposition(|b| *b == b'/').map_or(b"", |at| &path[..at])
}

/// Whether `path` is the directory of a changeset's evidence.
fn holds_our_artifacts(path: &[u8]) -> bool {
    path.ends_with(b"/verify") && proctor_core::drift::is_our_artifact(&paths::join(path, b"x"))
}
