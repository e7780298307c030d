//! Scans known paths, directory by directory. A file whose stat data are unchanged is not read again. This module
//! does not decide which names in a directory are covered.

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

/// Number of threads that scan and hash.
const READERS: usize = 2;

/// A scan of the paths of a tree.
#[derive(Clone, Copy)]
pub(crate) struct Look<'a> {
    /// Top directory of the tree.
    pub(crate) top: BorrowedFd<'a>,
    /// Device whose timestamps reveal every change; with `None`, every file is read.
    pub(crate) device: Option<u64>,
    /// Start time of the scan.
    pub(crate) at: Moment,
    /// Minimum age of a file's content before its stat data are trusted.
    pub(crate) settling: Settling,
    /// The paths to scan.
    pub(crate) known: &'a Entries,
    /// Earlier results for these paths.
    pub(crate) before: Before<'a>,
    /// Set by another thread to cancel the scan.
    pub(crate) stop: &'a AtomicBool,
}

/// Earlier results that a scan compares stat data with.
#[derive(Clone, Copy)]
pub(crate) enum Before<'a> {
    /// The entries in `known` themselves. In directories that changed, the scan also lists the names.
    Known,
    /// The entries of another tree, for the paths that it contains.
    Other(Option<&'a Entries>),
}

/// A part of a scan, done by one thread.
#[derive(Debug, Clone)]
pub(crate) struct Job {
    directory: usize,
    leaves: Range<usize>,
    /// True if the job also covers the directory itself, and not only its leaves.
    whole: bool,
}

/// The differences between the scanned tree and the known entries.
#[derive(Debug, Default)]
pub(crate) struct Findings {
    /// Directory, leaf, and the entry that was found.
    pub(crate) leaves: Vec<(usize, usize, Found)>,
    pub(crate) directories: Vec<(usize, DirectoryLook)>,
    /// The names in directories that changed.
    pub(crate) names: Vec<(usize, Names)>,
    /// Why the known entries no longer determine which paths are covered.
    pub(crate) upset: Option<&'static str>,
    pub(crate) counts: Counts,
}

/// The names in a directory, each with its file type.
pub(crate) type Names = Vec<(Vec<u8>, FileType)>;

/// The amount of work that a scan did.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Counts {
    pub(crate) looked: usize,
    pub(crate) hashed: usize,
    pub(crate) listed: usize,
}

impl Findings {
    /// Merges the findings of all threads.
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
    /// Scans every known path of the tree.
    ///
    /// # Errors
    /// A file cannot be read, or keeps changing while it is read.
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

    /// Scans some paths of which only the names are known.
    ///
    /// # Errors
    /// The same as those of [`Look::everywhere`].
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

    /// Distributes the jobs over several threads; each thread takes the next job when it is done with one.
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

    /// Opens a directory and returns its stat data from before it is listed. Returns `None` if no directory exists
    /// at the path.
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

    /// Scans the leaves of a directory. Returns whether a leaf is missing although the directory's stat data are
    /// unchanged.
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

    /// Returns the reason why a changed leaf may change which paths are covered.
    fn upset(&self, directory: usize, name: &[u8], before: &Found, now: &Found) -> Option<&'static str> {
        let differs = before != now;
        let walked = self.known.directory(directory).look.state == State::Walked;
        match (before.kind, name) {
            (Kind::Gitlink, _) if differs => Some("a repository inside came or went"),
            (Kind::Rules, _) if differs => Some("rules changed"),
            // Git does not follow a `.gitignore` that is a symbolic link, but libgit2 does, so the target is
            // checked in every scan.
            (_, b".gitignore") if walked && (differs || now.kind == Kind::Symlink) => Some("ignore rules changed"),
            _ => None,
        }
    }

    /// Records that a directory no longer exists.
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

    /// Records the new stat data of a directory that changed, and its names if the directory is not ignored.
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

    /// Checks whether the content of a file may change after this scan without a change of its stat data.
    pub(crate) fn is_content_racy(&self, stamp: &Stamp) -> bool {
        self.is_racy(stamp) || stamp.is_settling(self.at, self.settling)
    }

    /// Checks whether a file or directory may change after this scan without a change of its stat data.
    pub(crate) fn is_racy(&self, stamp: &Stamp) -> bool {
        self.device != Some(stamp.dev) || stamp.is_racy(self.at)
    }
}

/// Runs `work` on up to [`READERS`] threads, including the calling one, but on no more than `most` threads.
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
