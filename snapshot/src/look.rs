//! Looking at known paths, directory by directory: what stat data tell to be as before is not read
//! again. What the names in a directory mean is decided elsewhere.

use std::ops::Range;
use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};
use std::panic::resume_unwind;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use proctor_core::drift::display_path;
use rustix::fs::{AtFlags, FileType, Mode, OFlags, fstat, openat, statat};
use rustix::io::Errno;

use crate::beneath;
use crate::entries::{DirectoryLook, Entries, Found, Kind, PIECE, State};
use crate::paths;
use crate::snapshot::SnapshotError;
use crate::stamp::{Moment, Settling, Stamp};

mod fill;
mod read;

use read::Eye;

/// How many threads look and hash.
const READERS: usize = 2;

/// A look at the paths of a tree.
#[derive(Clone, Copy)]
pub(crate) struct Look<'a> {
    /// The top of the tree.
    pub(crate) top: BorrowedFd<'a>,
    /// The device whose times tell of changes; where there is none, everything is read.
    pub(crate) device: Option<u64>,
    /// When it began.
    pub(crate) at: Moment,
    /// How old a content must be to be believed.
    pub(crate) settling: Settling,
    /// The paths.
    pub(crate) known: &'a Entries,
    /// What stood at them.
    pub(crate) before: Before<'a>,
    /// Set where somebody has no use for the look any more.
    pub(crate) stop: &'a AtomicBool,
}

/// What stood at the paths when they were looked at before.
#[derive(Clone, Copy)]
pub(crate) enum Before<'a> {
    /// What the tree itself says. Directories that changed are looked into for new names.
    Known,
    /// What another tree says of the same paths, where it has them.
    Other(Option<&'a Entries>),
}

/// A part of a look.
#[derive(Debug, Clone)]
pub(crate) struct Job {
    directory: usize,
    leaves: Range<usize>,
    /// Whether the directory itself is looked at too.
    whole: bool,
}

/// What differs from what was known.
#[derive(Debug, Default)]
pub(crate) struct Findings {
    /// Directory, leaf, and what stands there.
    pub(crate) leaves: Vec<(usize, usize, Found)>,
    pub(crate) directories: Vec<(usize, DirectoryLook)>,
    /// The names in directories that changed.
    pub(crate) names: Vec<(usize, Names)>,
    /// Why what is covered cannot be told from what is known.
    pub(crate) upset: Option<&'static str>,
    pub(crate) counts: Counts,
}

/// The names in a directory, each with its type.
pub(crate) type Names = Vec<(Vec<u8>, FileType)>;

/// What a look cost.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Counts {
    pub(crate) looked: usize,
    pub(crate) hashed: usize,
    pub(crate) listed: usize,
}

impl Findings {
    /// Those of all readers.
    fn joined(parts: Vec<Self>) -> Self {
        let mut parts = parts.into_iter();
        let mut all = parts.next().unwrap_or_default();
        parts.for_each(|part| all.add(part));
        all
    }

    fn add(&mut self, other: Self) {
        self.leaves.extend(other.leaves);
        self.directories.extend(other.directories);
        self.names.extend(other.names);
        self.upset = self.upset.or(other.upset);
        self.counts.add(other.counts);
    }
}

impl Counts {
    pub(crate) fn add(&mut self, other: Self) {
        self.looked += other.looked;
        self.hashed += other.hashed;
        self.listed += other.listed;
    }
}

impl Look<'_> {
    /// Looks at everything in a tree that is known.
    ///
    /// # Errors
    /// Something cannot be read, or does not stand still.
    pub(crate) fn everywhere(&self) -> Result<Findings, SnapshotError> {
        let mut jobs = Vec::with_capacity(self.known.directories());
        for directory in 0..self.known.directories() {
            let leaves = self.known.leaves_of(directory);
            let first = leaves.start..leaves.end.min(leaves.start + PIECE);
            jobs.push(Job { directory, leaves: first.clone(), whole: true });
            let rest = (first.end..leaves.end).step_by(PIECE).map(|at| at..leaves.end.min(at + PIECE));
            jobs.extend(rest.map(|leaves| Job { directory, leaves, whole: false }));
        }
        self.carry_out(&jobs)
    }

    /// Looks at some paths, of which the tree knows nothing but the names.
    ///
    /// # Errors
    /// As [`Look::everywhere`].
    pub(crate) fn at_paths<'p>(&self, paths: impl Iterator<Item = &'p [u8]>) -> Result<Findings, SnapshotError> {
        let job = |path: &[u8]| {
            let (directory, name) = paths::split(path);
            let directory = self.known.find(directory)?;
            let leaf = self.known.leaf_in(directory, name)?;
            Some((directory, leaf))
        };
        let mut leaves: Vec<(usize, usize)> = paths.filter_map(job).collect();
        leaves.sort_unstable();
        let jobs: Vec<Job> = leaves
            .chunk_by(|(left, at), (right, next)| left == right && at + 1 == *next)
            .map(|run| Job { directory: run[0].0, leaves: run[0].1..run[0].1 + run.len(), whole: false })
            .collect();
        self.carry_out(&jobs)
    }

    /// Does the jobs by several threads that take the next one in turn.
    fn carry_out(&self, jobs: &[Job]) -> Result<Findings, SnapshotError> {
        let next = AtomicUsize::new(0);
        let parts = by_readers(jobs.len(), || {
            let (mut found, mut eye) = (Findings::default(), Eye::new(self));
            while let Some(job) = jobs.get(next.fetch_add(1, Ordering::Relaxed)) {
                if self.is_stopped() {
                    break;
                }
                if let Err(error) = self.job(job, &mut eye, &mut found) {
                    next.store(jobs.len(), Ordering::Relaxed);
                    return Err(error);
                }
            }
            Ok(found)
        });
        parts.map(Findings::joined)
    }

    pub(crate) fn is_stopped(&self) -> bool {
        self.stop.load(Ordering::Relaxed)
    }

    /// Opens a directory, with what it is like before it is looked into; nothing where none stands there.
    fn open(&self, path: &[u8]) -> Result<Option<(OwnedFd, Stamp)>, SnapshotError> {
        let opened = match beneath::open(self.top, path, OFlags::PATH | OFlags::DIRECTORY) {
            Ok(opened) => opened,
            Err(error) if beneath::is_nothing(&error) => return Ok(None),
            Err(error) => return Err(io_error(path, error)),
        };
        let stamp = Stamp::of(&fstat(&opened).map_err(|errno| io_error(path, errno.into()))?);
        Ok(Some((opened, stamp)))
    }

    fn job(&self, job: &Job, eye: &mut Eye<'_>, found: &mut Findings) -> Result<(), SnapshotError> {
        let path = self.known.directory_path(job.directory);
        let Some((opened, stamp)) = self.open(path)? else {
            self.gone(job, found);
            return Ok(());
        };
        let known = &self.known.directory(job.directory).look;
        let is_same = self.knows() && stamp == known.stamp && !known.racy && self.device == Some(stamp.dev);
        let vanished = self.leaves(job, opened.as_fd(), is_same, eye, found)?;
        if job.whole && (vanished || !is_same) {
            self.directory(job.directory, path, &opened, stamp, found)?;
        }
        Ok(())
    }

    fn knows(&self) -> bool {
        matches!(self.before, Before::Known)
    }

    /// Looks at the leaves of a directory. Answers whether one was gone that could not be.
    fn leaves(
        &self,
        job: &Job,
        directory: BorrowedFd<'_>,
        is_same: bool,
        eye: &mut Eye<'_>,
        found: &mut Findings,
    ) -> Result<bool, SnapshotError> {
        let other = match self.before {
            Before::Known => None,
            Before::Other(other) => {
                other.and_then(|other| Some((other, other.find(self.known.directory_path(job.directory))?)))
            }
        };
        let mut vanished = false;
        for leaf in job.leaves.clone() {
            let known = self.known.leaf_at(leaf).found;
            if is_same && known.kind == Kind::Missing {
                continue;
            }
            let name = self.known.name_of(leaf);
            let before = match (self.before, other) {
                (Before::Known, _) => Some(known),
                (_, Some((other, at))) => other.leaf_in(at, name).map(|leaf| other.leaf_at(leaf).found),
                _ => None,
            };
            let now = eye.look(directory, name, known, before);
            let now = now.map_err(|failed| failed.at(&paths::join(self.known.directory_path(job.directory), name)))?;
            found.counts.looked += 1;
            found.counts.hashed += usize::from(eye.has_read());
            if self.knows() {
                found.upset = found.upset.or(self.upset(job.directory, name, &known, &now));
            }
            if now != known {
                vanished |= is_same && now.kind == Kind::Missing;
                found.leaves.push((job.directory, leaf, now));
            }
        }
        Ok(vanished)
    }

    /// Why a changed leaf puts in doubt what is covered.
    fn upset(&self, directory: usize, name: &[u8], before: &Found, now: &Found) -> Option<&'static str> {
        let differs = before != now;
        let walked = self.known.directory(directory).look.state == State::Walked;
        match (before.kind, name) {
            (Kind::Gitlink, _) if differs => Some("a repository inside came or went"),
            (Kind::Rules, _) if differs => Some("rules changed"),
            // Git does not follow it, libgit2 does: whether it leads somewhere is asked each time.
            (_, b".gitignore") if walked && (differs || now.kind == Kind::Symlink) => Some("ignore rules changed"),
            _ => None,
        }
    }

    /// Nothing stands at a directory any more.
    fn gone(&self, job: &Job, found: &mut Findings) {
        for leaf in job.leaves.clone() {
            let known = self.known.leaf_at(leaf).found;
            if known.kind == Kind::Missing {
                continue;
            }
            if self.knows() {
                let name = self.known.name_of(leaf);
                found.upset = found.upset.or(self.upset(job.directory, name, &known, &Found::MISSING));
            }
            found.leaves.push((job.directory, leaf, Found::MISSING));
        }
        let look = DirectoryLook::default();
        if job.whole && self.known.directory(job.directory).look != look {
            found.directories.push((job.directory, look));
        }
    }

    /// Notes what a directory is like that is not as it was, and its names where they count.
    fn directory(
        &self,
        at: usize,
        path: &[u8],
        opened: &OwnedFd,
        stamp: Stamp,
        found: &mut Findings,
    ) -> Result<(), SnapshotError> {
        let known = self.known.directory(at).look;
        if known.state == State::Unasked {
            found.upset = Some("a directory is there again");
            return Ok(());
        }
        let look = DirectoryLook { stamp, racy: self.is_racy(&stamp), ..known };
        if look != known {
            found.directories.push((at, look));
        }
        if known.state == State::Walked {
            found.names.push((at, names(opened.as_fd()).map_err(|error| io_error(path, error))?));
            found.counts.listed += 1;
        }
        Ok(())
    }

    /// The same of the content of a file.
    pub(crate) fn is_content_racy(&self, stamp: &Stamp) -> bool {
        self.is_racy(stamp) || stamp.is_settling(self.at, self.settling)
    }

    /// Whether something may change after this look without its stamp changing.
    pub(crate) fn is_racy(&self, stamp: &Stamp) -> bool {
        self.device != Some(stamp.dev) || stamp.is_racy(self.at)
    }
}

/// Has up to [`READERS`] threads do some work, this one among them; there is work for `most`.
fn by_readers<T: Send>(
    most: usize,
    work: impl Fn() -> Result<T, SnapshotError> + Sync,
) -> Result<Vec<T>, SnapshotError> {
    std::thread::scope(|scope| {
        let readers: Vec<_> = (1..READERS.min(most)).map(|_| scope.spawn(&work)).collect();
        let own = work();
        let others = readers.into_iter().map(|reader| reader.join().unwrap_or_else(|panic| resume_unwind(panic)));
        std::iter::once(own).chain(others).collect()
    })
}

fn names(directory: BorrowedFd<'_>) -> std::io::Result<Names> {
    let mut names = Vec::new();
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    for entry in rustix::fs::Dir::new(openat(directory, ".", flags, Mode::empty())?)? {
        let entry = entry?;
        let name = entry.file_name().to_bytes();
        if name == b"." || name == b".." {
            continue;
        }
        let kind = match entry.file_type() {
            FileType::Unknown => match statat(directory, name, AtFlags::SYMLINK_NOFOLLOW) {
                Ok(stat) => FileType::from_raw_mode(stat.st_mode),
                Err(Errno::NOENT) => continue,
                Err(error) => return Err(error.into()),
            },
            known => known,
        };
        names.push((name.to_vec(), kind));
    }
    Ok(names)
}

pub(crate) fn io_error(path: &[u8], source: std::io::Error) -> SnapshotError {
    let path = if path.is_empty() { b"." } else { path };
    SnapshotError::Io { path: display_path(path), source }
}
