//! Files of the history. Each is opened relative to the descriptor of its directory, without following links:
//!
//! ```text
//! history/lock                  held by the process that has the history open
//! history/events/<run>.jsonl    log of a run; the authoritative record
//! history/patches/<run>.patch   changes of its steps, if requested
//! history/damaged/<name>        files moved aside because they were invalid
//! history/index.sqlite          index that `super::index` builds from the logs
//! ```

use std::fs::{DirBuilder, File};
use std::io::{self, Read, Write as _};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::DirBuilderExt as _;
use std::path::{Path, PathBuf};

use proctor_core::model::names::RunId;
use proctor_runner::{Directory, StoreError};
use rustix::fs::{self, AtFlags, FlockOperation, Mode, OFlags};
use rustix::io::Errno;

/// Maximum size of one event in bytes, equal to the limit of evidence documents that the gate reads.
pub(super) const MAX_EVENT: u64 = 64 << 20;
/// Maximum size of a patch in bytes, equal to the limit of patches that are created.
const MAX_PATCH: u64 = 64 << 20;
/// Maximum number of files kept in `damaged`; the newest are kept.
const MAX_DAMAGED_FILES: usize = 64;
const OWNER_MODE: Mode = Mode::RUSR.union(Mode::WUSR);
const LOG_SUFFIX: &str = ".jsonl";
const PATCH_SUFFIX: &str = ".patch";

/// The directories of the history, locked against other processes.
pub(super) struct HistoryFiles {
    pub(super) root: Directory,
    logs: Directory,
    patches: Directory,
    damaged: Directory,
    _lock: OwnedFd,
}

/// Device and inode of a file.
pub(super) type LogFileIdentity = (u64, u64);

impl HistoryFiles {
    /// Opens the directories below `state` for this process alone, creating missing ones. Returns `None` if another
    /// process has locked them.
    pub(super) fn open(state: &Path) -> Result<Option<Self>, StoreError> {
        let made = DirBuilder::new().recursive(true).mode(0o700).create(state);
        made.map_err(|source| StoreError::Io { action: "create", path: state.display().to_string(), source })?;
        let root = private_directory(&Directory::open(state)?, "history")?;
        let Some(lock) = lock_history(&root)? else { return Ok(None) };
        let (events, patches) = (private_directory(&root, "events")?, private_directory(&root, "patches")?);
        patches.remove_temporaries()?;
        let damaged = private_directory(&root, "damaged")?;
        damaged.remove_temporaries()?;
        Ok(Some(Self { logs: events, patches, damaged, root, _lock: lock }))
    }

    /// Returns the runs that have a log. Other files are ignored.
    pub(super) fn runs(&self) -> Result<Vec<RunId>, StoreError> {
        let names = self.logs.names()?;
        Ok(names.iter().filter_map(|name| RunId::new(name.strip_suffix(LOG_SUFFIX)?).ok()).collect())
    }

    /// Returns the size of a run's log in bytes, or `None` if it is not a regular file with a single name.
    pub(super) fn log_size(&self, run: &RunId) -> Option<u64> {
        let stat = fs::statat(&self.logs, log_name(run), AtFlags::SYMLINK_NOFOLLOW).ok()?;
        let regular = fs::FileType::from_raw_mode(stat.st_mode).is_file() && stat.st_nlink == 1;
        regular.then(|| u64::try_from(stat.st_size).unwrap_or(0))
    }

    /// Creates a log; fails if it exists.
    pub(super) fn create_log(&self, run: &RunId) -> Result<File, StoreError> {
        let name = log_name(run);
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let fd = fs::openat(&self.logs, &name, flags, OWNER_MODE).map_err(io_error(&self.logs, "create", &name))?;
        Ok(File::from(fd))
    }

    /// Opens a log for reading, or returns `None` if it does not exist.
    pub(super) fn open_log(&self, run: &RunId) -> Result<Option<File>, StoreError> {
        let name = log_name(run);
        let Some(file) = self.logs.open_file(&name)? else { return Ok(None) };
        check_single_link(&self.logs, &file, &name)?;
        Ok(Some(file))
    }

    /// Opens an existing log for writing.
    pub(super) fn open_log_for_writing(&self, run: &RunId) -> Result<File, StoreError> {
        let name = log_name(run);
        let flags = OFlags::WRONLY | OFlags::NOFOLLOW | OFlags::CLOEXEC | OFlags::NONBLOCK | OFlags::NOCTTY;
        let file = fs::openat(&self.logs, &name, flags, Mode::empty()).map_err(io_error(&self.logs, "open", &name))?;
        let file = File::from(file);
        check_single_link(&self.logs, &file, &name)?;
        Ok(file)
    }

    /// Makes the entries of the log directory durable.
    pub(super) fn sync_logs(&self) -> Result<(), StoreError> {
        self.logs.sync()
    }

    /// Removes the log and the patch of a run.
    pub(super) fn remove_run(&self, run: &RunId) -> Result<(), StoreError> {
        self.patches.remove(&patch_name(run))?;
        self.logs.remove(&log_name(run))
    }

    /// Moves the file at the path of a log aside, whatever its type. Returns the new path.
    pub(super) fn quarantine_log(&self, run: &RunId) -> Result<String, StoreError> {
        self.quarantine(&self.logs, &log_name(run))
    }

    /// Like [`Self::quarantine_log`], for a file in the root of the history.
    pub(super) fn quarantine_root_file(&self, name: &str) -> Result<String, StoreError> {
        self.quarantine(&self.root, name)
    }

    fn quarantine(&self, from: &Directory, name: &str) -> Result<String, StoreError> {
        let moved = |to: &str| fs::renameat(from, name, &self.damaged, to);
        let to = match moved(name) {
            Ok(()) => name.to_owned(),
            // A non-empty directory of this name was moved aside earlier.
            Err(Errno::EXIST | Errno::NOTEMPTY | Errno::ISDIR | Errno::NOTDIR) => {
                let other = format!("{name}.{}", from.identity()?.1);
                moved(&other).map_err(io_error(from, "move aside", name))?;
                other
            }
            Err(errno) => return Err(io_error(from, "move aside", name)(errno)),
        };
        Ok(format!("{}/{to}", self.damaged.name()))
    }

    /// Copies a log that is about to be truncated. Returns the path of the copy.
    pub(super) fn quarantine_copy(&self, run: &RunId) -> Result<String, StoreError> {
        let name = log_name(run);
        let Some(mut from) = self.open_log(run)? else { return Ok(name) };
        let mut copy = self.damaged.create_temporary("log")?;
        fs::fchmod(&copy.file, OWNER_MODE).map_err(io_error(&self.damaged, "set the mode of", &name))?;
        let copied = io::copy(&mut from, &mut copy.file).and_then(|_| copy.file.sync_all());
        copied.map_err(|source| StoreError::Io { action: "copy", path: full_path(&self.logs, &name), source })?;
        copy.publish(&name)?;
        Ok(format!("{}/{name}", self.damaged.name()))
    }

    /// Removes the oldest files in `damaged` beyond [`MAX_DAMAGED_FILES`].
    pub(super) fn prune_damaged(&self) -> Result<(), StoreError> {
        let mut aside = Vec::new();
        for name in self.damaged.names()? {
            aside.push((self.damaged.modified_at(&name)?, name));
        }
        aside.sort();
        for (_, name) in &aside[..aside.len().saturating_sub(MAX_DAMAGED_FILES)] {
            if let Err(error) = self.damaged.remove(name) {
                tracing::debug!(%error, "a file that was moved aside cannot be removed");
            }
        }
        Ok(())
    }

    /// Stores a patch.
    pub(super) fn write_patch(&self, run: &RunId, patch: &[u8]) -> Result<(), StoreError> {
        let name = patch_name(run);
        let mut temporary = self.patches.create_temporary("patch")?;
        fs::fchmod(&temporary.file, OWNER_MODE).map_err(io_error(&self.patches, "set the mode of", &name))?;
        let written = temporary.file.write_all(patch).and_then(|()| temporary.file.sync_all());
        written.map_err(|source| StoreError::Io { action: "write", path: full_path(&self.patches, &name), source })?;
        temporary.publish(&name)
    }

    /// Reads a patch, or returns `None` if it does not exist.
    pub(super) fn read_patch(&self, run: &RunId) -> Result<Option<Vec<u8>>, StoreError> {
        let name = patch_name(run);
        let Some(file) = self.patches.open_file(&name)? else { return Ok(None) };
        check_single_link(&self.patches, &file, &name)?;
        let mut patch = Vec::new();
        let read = file.take(MAX_PATCH + 1).read_to_end(&mut patch);
        read.map_err(|source| StoreError::Io { action: "read", path: full_path(&self.patches, &name), source })?;
        match patch.len() as u64 > MAX_PATCH {
            true => Err(StoreError::TooLarge { path: full_path(&self.patches, &name), limit: MAX_PATCH }),
            false => Ok(Some(patch)),
        }
    }

    /// Removes the patches of runs for which `is_kept` returns `false`.
    pub(super) fn remove_orphan_patches(&self, is_kept: impl Fn(&RunId) -> bool) -> Result<(), StoreError> {
        for name in self.patches.names()? {
            let run = name.strip_suffix(PATCH_SUFFIX).and_then(|run| RunId::new(run).ok());
            if run.is_some_and(|run| !is_kept(&run)) {
                self.patches.remove(&name)?;
            }
        }
        Ok(())
    }

    /// Returns the current path of the history directory without links, because SQLite opens databases only by path.
    pub(super) fn root_path(&self) -> io::Result<PathBuf> {
        use std::os::fd::AsRawFd as _;
        std::fs::read_link(format!("/proc/self/fd/{}", self.root.as_fd().as_raw_fd()))
    }
}

/// Checks that a file is regular and has a single name. A file with several hard links may belong to another user, so
/// it is neither written nor trusted.
fn check_single_link(directory: &Directory, file: &File, name: &str) -> Result<(), StoreError> {
    let stat = fs::fstat(file).map_err(io_error(directory, "stat", name))?;
    if fs::FileType::from_raw_mode(stat.st_mode).is_file() && stat.st_nlink == 1 {
        return Ok(());
    }
    let source = io::Error::other("it is not a regular file, or has several hard links");
    Err(StoreError::Io { action: "use", path: full_path(directory, name), source })
}

fn full_path(directory: &Directory, name: &str) -> String {
    format!("{}/{name}", directory.name())
}

fn io_error(directory: &Directory, action: &'static str, name: &str) -> impl FnOnce(Errno) -> StoreError {
    let path = full_path(directory, name);
    move |errno| match errno {
        Errno::LOOP => StoreError::Symlink { path },
        other => StoreError::Io { action, path, source: other.into() },
    }
}

/// Returns the device and inode of an open file.
pub(super) fn file_identity(file: &File) -> Result<LogFileIdentity, Errno> {
    let stat = fs::fstat(file)?;
    Ok((stat.st_dev, stat.st_ino))
}

/// Creates or opens a directory with access for its owner only.
fn private_directory(parent: &Directory, name: &str) -> Result<Directory, StoreError> {
    let directory = parent.ensure(name, 0o700)?;
    let failed = |errno: Errno| StoreError::Io {
        action: "set the mode of",
        path: directory.name().to_owned(),
        source: errno.into(),
    };
    fs::fchmod(&directory, Mode::RWXU).map_err(failed)?;
    Ok(directory)
}

/// Locks the history, or returns `None` if another process has locked it. The lock is held until the descriptor is
/// closed, at the latest when the process exits.
fn lock_history(root: &Directory) -> Result<Option<OwnedFd>, StoreError> {
    let failed = |action| {
        let path = format!("{}/lock", root.name());
        move |errno: Errno| match errno {
            Errno::LOOP => StoreError::Symlink { path },
            errno => StoreError::Io { action, path, source: errno.into() },
        }
    };
    let flags = OFlags::RDWR | OFlags::CREATE | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC | OFlags::NOCTTY;
    let lock = fs::openat(root, "lock", flags, OWNER_MODE).map_err(failed("open"))?;
    match fs::flock(&lock, FlockOperation::NonBlockingLockExclusive) {
        Ok(()) => Ok(Some(lock)),
        Err(Errno::WOULDBLOCK) => Ok(None),
        Err(errno) => Err(failed("lock")(errno)),
    }
}

fn log_name(run: &RunId) -> String {
    format!("{run}{LOG_SUFFIX}")
}

fn patch_name(run: &RunId) -> String {
    format!("{run}{PATCH_SUFFIX}")
}
