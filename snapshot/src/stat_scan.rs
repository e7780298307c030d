//! Scans known paths, directory by directory. A file whose stat data are unchanged is not read again. This module
//! does not decide which names in a directory are covered.

use std::ops::Range;
use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};
use std::panic::resume_unwind;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use proctor_core::model::drift::display_path;
use proctor_git::files::file_stat::{FileStat, FileTime, RacyWindow};
use proctor_git::files::{paths, read_beneath};
use rustix::fs::{AtFlags, FileType, Mode, OFlags, fstat, openat, statat};
use rustix::io::Errno;

use crate::entries::{DirectoryScanState, EntryTree, IgnoreStatus, LEAVES_PER_PART, ScannedEntry, ScannedKind};
use crate::snapshot::snapshot_error::SnapshotError;
use entry_reader::EntryReader;

mod entry_reader;
mod fill_tree;

/// Number of threads that scan and hash.
const READER_THREADS: usize = 2;

/// A scan of the paths of a tree.
#[derive(Clone, Copy)]
pub(crate) struct StatScan<'a> {
    /// Top directory of the tree.
    pub(crate) top: BorrowedFd<'a>,
    /// Device whose timestamps reveal every change; with `None`, every file is read.
    pub(crate) device: Option<u64>,
    /// Start time of the scan.
    pub(crate) started_at: FileTime,
    /// Minimum age of a file's content before its stat data are trusted.
    pub(crate) racy_window: RacyWindow,
    /// The paths to scan.
    pub(crate) known: &'a EntryTree,
    /// Earlier results for these paths.
    pub(crate) earlier: EarlierEntries<'a>,
    /// Set by another thread to cancel the scan.
    pub(crate) stop: &'a AtomicBool,
}

/// Earlier results that a scan compares stat data with.
#[derive(Clone, Copy)]
pub(crate) enum EarlierEntries<'a> {
    /// The entries in `known` themselves. In directories that changed, the scan also lists the names.
    SameTree,
    /// The entries of another tree, for the paths that it contains.
    OtherTree(Option<&'a EntryTree>),
}

/// A part of a scan, done by one thread.
#[derive(Debug, Clone)]
pub(crate) struct ScanJob {
    directory: usize,
    leaves: Range<usize>,
    /// True if the job also covers the directory itself, and not only its leaves.
    includes_directory: bool,
}

/// The differences between the scanned tree and the known entries.
#[derive(Debug, Default)]
pub(crate) struct ScanFindings {
    /// Directory, leaf, and the entry that was found.
    pub(crate) leaves: Vec<(usize, usize, ScannedEntry)>,
    pub(crate) directories: Vec<(usize, DirectoryScanState)>,
    /// The names in directories that changed.
    pub(crate) names: Vec<(usize, NamesAndTypes)>,
    /// The reason why the known entries no longer determine which paths are covered.
    pub(crate) relisting_reason: Option<&'static str>,
    pub(crate) counts: ScanCounts,
}

/// The names in a directory, each with its file type.
pub(crate) type NamesAndTypes = Vec<(Vec<u8>, FileType)>;

/// The amount of work that a scan did.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct ScanCounts {
    pub(crate) examined: usize,
    pub(crate) hashed: usize,
    pub(crate) listed: usize,
}

impl ScanFindings {
    /// Merges the findings of all threads.
    fn merged(parts: Vec<Self>) -> Self {
        let mut parts = parts.into_iter();
        let mut all = parts.next().unwrap_or_default();
        parts.for_each(|part| all.add(part));
        all
    }

    fn add(&mut self, other: Self) {
        self.leaves.extend(other.leaves);
        self.directories.extend(other.directories);
        self.names.extend(other.names);
        self.relisting_reason = self.relisting_reason.or(other.relisting_reason);
        self.counts.add(other.counts);
    }
}

impl ScanCounts {
    pub(crate) fn add(&mut self, other: Self) {
        self.examined += other.examined;
        self.hashed += other.hashed;
        self.listed += other.listed;
    }
}

impl StatScan<'_> {
    /// Scans every known path of the tree.
    ///
    /// # Errors
    /// A file cannot be read, or keeps changing while it is read.
    pub(crate) fn scan_all(&self) -> Result<ScanFindings, SnapshotError> {
        let mut jobs = Vec::with_capacity(self.known.directory_count());
        for directory in 0..self.known.directory_count() {
            let leaves = self.known.leaf_range(directory);
            let first = leaves.start..leaves.end.min(leaves.start + LEAVES_PER_PART);
            jobs.push(ScanJob { directory, leaves: first.clone(), includes_directory: true });
            let rest =
                (first.end..leaves.end).step_by(LEAVES_PER_PART).map(|at| at..leaves.end.min(at + LEAVES_PER_PART));
            jobs.extend(rest.map(|leaves| ScanJob { directory, leaves, includes_directory: false }));
        }
        self.run_jobs(&jobs)
    }

    /// Scans some paths of which only the names are known.
    ///
    /// # Errors
    /// The errors of [`StatScan::scan_all`].
    pub(crate) fn scan_paths<'p>(&self, paths: impl Iterator<Item = &'p [u8]>) -> Result<ScanFindings, SnapshotError> {
        let job = |path: &[u8]| {
            let (directory, name) = paths::split(path);
            let directory = self.known.directory_index(directory)?;
            let leaf = self.known.leaf_index(directory, name)?;
            Some((directory, leaf))
        };
        let mut leaves: Vec<(usize, usize)> = paths.filter_map(job).collect();
        leaves.sort_unstable();
        let jobs: Vec<ScanJob> = leaves
            .chunk_by(|(left, at), (right, next)| left == right && at + 1 == *next)
            .map(|run| ScanJob {
                directory: run[0].0,
                leaves: run[0].1..run[0].1 + run.len(),
                includes_directory: false,
            })
            .collect();
        self.run_jobs(&jobs)
    }

    /// Distributes the jobs over several threads; each thread takes the next job when it is done with one.
    fn run_jobs(&self, jobs: &[ScanJob]) -> Result<ScanFindings, SnapshotError> {
        let next = AtomicUsize::new(0);
        let parts = run_on_threads(jobs.len(), || {
            let (mut found, mut eye) = (ScanFindings::default(), EntryReader::new(self));
            while let Some(job) = jobs.get(next.fetch_add(1, Ordering::Relaxed)) {
                if self.is_cancelled() {
                    break;
                }
                if let Err(error) = self.run_job(job, &mut eye, &mut found) {
                    next.store(jobs.len(), Ordering::Relaxed);
                    return Err(error);
                }
            }
            Ok(found)
        });
        parts.map(ScanFindings::merged)
    }

    pub(crate) fn is_cancelled(&self) -> bool {
        self.stop.load(Ordering::Relaxed)
    }

    /// Opens a directory and returns its stat data from before it is listed. Returns `None` if no directory exists
    /// at the path.
    fn open(&self, path: &[u8]) -> Result<Option<(OwnedFd, FileStat)>, SnapshotError> {
        let opened = match read_beneath::open(self.top, path, OFlags::PATH | OFlags::DIRECTORY) {
            Ok(opened) => opened,
            Err(error) if read_beneath::is_missing_error(&error) => return Ok(None),
            Err(error) => return Err(io_error(path, error)),
        };
        let stamp = FileStat::from_stat(&fstat(&opened).map_err(|errno| io_error(path, errno.into()))?);
        Ok(Some((opened, stamp)))
    }

    fn run_job(&self, job: &ScanJob, eye: &mut EntryReader<'_>, found: &mut ScanFindings) -> Result<(), SnapshotError> {
        let path = self.known.directory_path(job.directory);
        let Some((opened, stamp)) = self.open(path)? else {
            self.record_missing(job, found);
            return Ok(());
        };
        let known = &self.known.directory(job.directory).scan_state;
        let is_same = self.compares_same_tree() && stamp == known.stat && !known.racy && self.device == Some(stamp.dev);
        let vanished = self.scan_leaves(job, opened.as_fd(), is_same, eye, found)?;
        if job.includes_directory && (vanished || !is_same) {
            self.record_directory(job.directory, path, &opened, stamp, found)?;
        }
        Ok(())
    }

    fn compares_same_tree(&self) -> bool {
        matches!(self.earlier, EarlierEntries::SameTree)
    }

    /// Scans the leaves of a directory. Returns whether a leaf is missing although the directory's stat data are
    /// unchanged.
    fn scan_leaves(
        &self,
        job: &ScanJob,
        directory: BorrowedFd<'_>,
        is_same: bool,
        eye: &mut EntryReader<'_>,
        found: &mut ScanFindings,
    ) -> Result<bool, SnapshotError> {
        let other = match self.earlier {
            EarlierEntries::SameTree => None,
            EarlierEntries::OtherTree(other) => {
                other.and_then(|other| Some((other, other.directory_index(self.known.directory_path(job.directory))?)))
            }
        };
        let mut vanished = false;
        for leaf in job.leaves.clone() {
            let known = self.known.leaf_at(leaf).found;
            if is_same && known.kind == ScannedKind::Missing {
                continue;
            }
            let name = self.known.leaf_name(leaf);
            let before = match (self.earlier, other) {
                (EarlierEntries::SameTree, _) => Some(known),
                (_, Some((other, at))) => other.leaf_index(at, name).map(|leaf| other.leaf_at(leaf).found),
                _ => None,
            };
            let now = eye.examine(directory, name, known, before);
            let now = now.map_err(|failed| {
                failed.into_snapshot_error(&paths::join(self.known.directory_path(job.directory), name))
            })?;
            found.counts.examined += 1;
            found.counts.hashed += usize::from(eye.has_read());
            if self.compares_same_tree() {
                found.relisting_reason =
                    found.relisting_reason.or(self.relisting_reason(job.directory, name, &known, &now));
            }
            if now != known {
                vanished |= is_same && now.kind == ScannedKind::Missing;
                found.leaves.push((job.directory, leaf, now));
            }
        }
        Ok(vanished)
    }

    /// Returns the reason why a changed leaf may change which paths are covered.
    fn relisting_reason(
        &self,
        directory: usize,
        name: &[u8],
        before: &ScannedEntry,
        now: &ScannedEntry,
    ) -> Option<&'static str> {
        let differs = before != now;
        let walked = self.known.directory(directory).scan_state.ignore_status == IgnoreStatus::Searched;
        match (before.kind, name) {
            (ScannedKind::Gitlink, _) if differs => Some("a nested repository was added or removed"),
            (ScannedKind::IgnoreRules, _) if differs => Some("rules changed"),
            // Git does not follow a `.gitignore` that is a symbolic link, but libgit2 does, so the target is
            // checked in every scan.
            (_, b".gitignore") if walked && (differs || now.kind == ScannedKind::Symlink) => {
                Some("ignore rules changed")
            }
            _ => None,
        }
    }

    /// Records that a directory no longer exists.
    fn record_missing(&self, job: &ScanJob, found: &mut ScanFindings) {
        for leaf in job.leaves.clone() {
            let known = self.known.leaf_at(leaf).found;
            if known.kind == ScannedKind::Missing {
                continue;
            }
            if self.compares_same_tree() {
                let name = self.known.leaf_name(leaf);
                found.relisting_reason = found.relisting_reason.or(self.relisting_reason(
                    job.directory,
                    name,
                    &known,
                    &ScannedEntry::MISSING,
                ));
            }
            found.leaves.push((job.directory, leaf, ScannedEntry::MISSING));
        }
        let look = DirectoryScanState::default();
        if job.includes_directory && self.known.directory(job.directory).scan_state != look {
            found.directories.push((job.directory, look));
        }
    }

    /// Records the new stat data of a directory that changed, and its names if the directory is not ignored.
    fn record_directory(
        &self,
        at: usize,
        path: &[u8],
        opened: &OwnedFd,
        stamp: FileStat,
        found: &mut ScanFindings,
    ) -> Result<(), SnapshotError> {
        let known = self.known.directory(at).scan_state;
        if known.ignore_status == IgnoreStatus::NotEvaluated {
            found.relisting_reason = Some("a removed directory exists again");
            return Ok(());
        }
        let look = DirectoryScanState { stat: stamp, racy: self.is_racy(&stamp), ..known };
        if look != known {
            found.directories.push((at, look));
        }
        if known.ignore_status == IgnoreStatus::Searched {
            found.names.push((at, list_names(opened.as_fd()).map_err(|error| io_error(path, error))?));
            found.counts.listed += 1;
        }
        Ok(())
    }

    /// Checks whether the content of a file may change after this scan without a change of its stat data.
    pub(crate) fn is_content_racy(&self, stamp: &FileStat) -> bool {
        self.is_racy(stamp) || stamp.is_in_racy_window(self.started_at, self.racy_window)
    }

    /// Checks whether a file or directory may change after this scan without a change of its stat data.
    pub(crate) fn is_racy(&self, stamp: &FileStat) -> bool {
        self.device != Some(stamp.dev) || stamp.is_racy(self.started_at)
    }
}

/// Runs `work` on up to [`READER_THREADS`] threads, including the calling one, but on no more than `most` threads.
fn run_on_threads<T: Send>(
    max_threads: usize,
    work: impl Fn() -> Result<T, SnapshotError> + Sync,
) -> Result<Vec<T>, SnapshotError> {
    std::thread::scope(|scope| {
        let readers: Vec<_> = (1..READER_THREADS.min(max_threads)).map(|_| scope.spawn(&work)).collect();
        let own = work();
        let others = readers.into_iter().map(|reader| reader.join().unwrap_or_else(|panic| resume_unwind(panic)));
        std::iter::once(own).chain(others).collect()
    })
}

fn list_names(directory: BorrowedFd<'_>) -> std::io::Result<NamesAndTypes> {
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
