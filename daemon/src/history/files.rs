//! The files of the history, each reached from the fd of its directory, never through a link:
//!
//! ```text
//! history/lock              held by the one process that has the history open
//! history/events/<run>.jsonl    the log of a run: the truth about it
//! history/patches/<run>.patch   what its steps changed, where that was asked for
//! history/damaged/<name>        what stood in their place and is none of them
//! history/index.sqlite      what `super::index` makes of the logs
//! ```

use std::fs::{DirBuilder, File};
use std::io::{self, Read, Write as _};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::DirBuilderExt as _;
use std::path::{Path, PathBuf};

use proctor_core::names::RunId;
use proctor_runner::{Directory, StoreError};
use rustix::fs::{self, AtFlags, FlockOperation, Mode, OFlags};
use rustix::io::Errno;

/// How many bytes one event may have: as many as a document of evidence that the gate reads.
pub(super) const MAX_EVENT: u64 = 64 << 20;
/// How many bytes a patch may have: as many as one that is made.
const MAX_PATCH: u64 = 64 << 20;
/// How many things that stood in the way are kept, the newest.
const MAX_ASIDE: usize = 64;
const OURS: Mode = Mode::RUSR.union(Mode::WUSR);
const EVENTS: &str = ".jsonl";
const PATCH: &str = ".patch";

/// The directories of the history; held against every other process.
pub(super) struct Files {
    pub(super) root: Directory,
    events: Directory,
    patches: Directory,
    damaged: Directory,
    _lock: OwnedFd,
}

/// Why they cannot be had.
pub(super) enum Refused {
    /// Another process has them.
    InUse,
    /// The file system refuses.
    Store(StoreError),
}

impl From<StoreError> for Refused {
    fn from(error: StoreError) -> Self {
        Self::Store(error)
    }
}

/// What tells a file from every other: device and inode.
pub(super) type Identity = (u64, u64);

impl Files {
    /// Opens them below `state`, for this process alone; what is not there is made.
    pub(super) fn open(state: &Path) -> Result<Self, Refused> {
        let made = DirBuilder::new().recursive(true).mode(0o700).create(state);
        made.map_err(|source| StoreError::Io { action: "create", path: state.display().to_string(), source })?;
        let root = private(&Directory::open(state)?, "history")?;
        let lock = locked(&root)?;
        let (events, patches) = (private(&root, "events")?, private(&root, "patches")?);
        patches.sweep()?;
        let damaged = private(&root, "damaged")?;
        damaged.sweep()?;
        Ok(Self { events, patches, damaged, root, _lock: lock })
    }

    /// The runs that have a log, and the names that are none of a run's, sorted.
    pub(super) fn runs(&self) -> Result<Vec<RunId>, StoreError> {
        let names = self.events.names()?;
        Ok(names.iter().filter_map(|name| RunId::new(name.strip_suffix(EVENTS)?).ok()).collect())
    }

    /// How many bytes the log of a run has; `None` where there is no regular file.
    pub(super) fn size(&self, run: &RunId) -> Option<u64> {
        let stat = fs::statat(&self.events, log_name(run), AtFlags::SYMLINK_NOFOLLOW).ok()?;
        let regular = fs::FileType::from_raw_mode(stat.st_mode).is_file() && stat.st_nlink == 1;
        regular.then(|| u64::try_from(stat.st_size).unwrap_or(0))
    }

    /// A log that was not there before.
    pub(super) fn create(&self, run: &RunId) -> Result<File, StoreError> {
        let name = log_name(run);
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let fd = fs::openat(&self.events, &name, flags, OURS).map_err(failed(&self.events, "create", &name))?;
        Ok(File::from(fd))
    }

    /// A log, to be read; `None` where there is none.
    pub(super) fn read(&self, run: &RunId) -> Result<Option<File>, StoreError> {
        let name = log_name(run);
        let Some(file) = self.events.open_file(&name)? else { return Ok(None) };
        only_name(&self.events, &file, &name)?;
        Ok(Some(file))
    }

    /// A log that is there, to be written on.
    pub(super) fn reopen(&self, run: &RunId) -> Result<File, StoreError> {
        let name = log_name(run);
        let flags = OFlags::WRONLY | OFlags::NOFOLLOW | OFlags::CLOEXEC | OFlags::NONBLOCK | OFlags::NOCTTY;
        let file =
            fs::openat(&self.events, &name, flags, Mode::empty()).map_err(failed(&self.events, "open", &name))?;
        let file = File::from(file);
        only_name(&self.events, &file, &name)?;
        Ok(file)
    }

    /// Makes durable which logs there are.
    pub(super) fn sync(&self) -> Result<(), StoreError> {
        self.events.sync()
    }

    /// Removes what is kept of a run.
    pub(super) fn forget(&self, run: &RunId) -> Result<(), StoreError> {
        self.patches.remove(&patch_name(run))?;
        self.events.remove(&log_name(run))
    }

    /// Moves what stands in the place of a log out of the way, whatever it is; answers where to.
    pub(super) fn set_aside(&self, run: &RunId) -> Result<String, StoreError> {
        self.move_aside(&self.events, &log_name(run))
    }

    /// The same for a file of the history itself.
    pub(super) fn set_root_aside(&self, name: &str) -> Result<String, StoreError> {
        self.move_aside(&self.root, name)
    }

    fn move_aside(&self, from: &Directory, name: &str) -> Result<String, StoreError> {
        let moved = |to: &str| fs::renameat(from, name, &self.damaged, to);
        let to = match moved(name) {
            Ok(()) => name.to_owned(),
            // A directory that is not empty stands there from before.
            Err(Errno::EXIST | Errno::NOTEMPTY | Errno::ISDIR | Errno::NOTDIR) => {
                let other = format!("{name}.{}", from.identity()?.1);
                moved(&other).map_err(failed(from, "move aside", name))?;
                other
            }
            Err(errno) => return Err(failed(from, "move aside", name)(errno)),
        };
        Ok(format!("{}/{to}", self.damaged.name()))
    }

    /// Keeps a copy of a log that is about to be cut; answers where.
    pub(super) fn copy_aside(&self, run: &RunId) -> Result<String, StoreError> {
        let name = log_name(run);
        let Some(mut from) = self.read(run)? else { return Ok(name) };
        let mut copy = self.damaged.temporary("log")?;
        fs::fchmod(&copy.file, OURS).map_err(failed(&self.damaged, "set the mode of", &name))?;
        let copied = io::copy(&mut from, &mut copy.file).and_then(|_| copy.file.sync_all());
        copied.map_err(|source| StoreError::Io { action: "copy", path: path_of(&self.events, &name), source })?;
        copy.publish(&name)?;
        Ok(format!("{}/{name}", self.damaged.name()))
    }

    /// Removes the oldest of what was moved aside, beyond a bound.
    pub(super) fn tidy(&self) -> Result<(), StoreError> {
        let mut aside = Vec::new();
        for name in self.damaged.names()? {
            aside.push((self.damaged.written(&name)?, name));
        }
        aside.sort();
        for (_, name) in &aside[..aside.len().saturating_sub(MAX_ASIDE)] {
            if let Err(error) = self.damaged.remove(name) {
                tracing::debug!(%error, "what was moved aside stays");
            }
        }
        Ok(())
    }

    /// Keeps a patch.
    pub(super) fn write_patch(&self, run: &RunId, patch: &[u8]) -> Result<(), StoreError> {
        let name = patch_name(run);
        let mut temporary = self.patches.temporary("patch")?;
        fs::fchmod(&temporary.file, OURS).map_err(failed(&self.patches, "set the mode of", &name))?;
        let written = temporary.file.write_all(patch).and_then(|()| temporary.file.sync_all());
        written.map_err(|source| StoreError::Io { action: "write", path: path_of(&self.patches, &name), source })?;
        temporary.publish(&name)
    }

    /// A patch; `None` where there is none.
    pub(super) fn read_patch(&self, run: &RunId) -> Result<Option<Vec<u8>>, StoreError> {
        let name = patch_name(run);
        let Some(file) = self.patches.open_file(&name)? else { return Ok(None) };
        only_name(&self.patches, &file, &name)?;
        let mut patch = Vec::new();
        let read = file.take(MAX_PATCH + 1).read_to_end(&mut patch);
        read.map_err(|source| StoreError::Io { action: "read", path: path_of(&self.patches, &name), source })?;
        match patch.len() as u64 > MAX_PATCH {
            true => Err(StoreError::TooLarge { path: path_of(&self.patches, &name), limit: MAX_PATCH }),
            false => Ok(Some(patch)),
        }
    }

    /// Removes the patches of runs that `is_kept` does not know.
    pub(super) fn forget_patches(&self, is_kept: impl Fn(&RunId) -> bool) -> Result<(), StoreError> {
        for name in self.patches.names()? {
            let run = name.strip_suffix(PATCH).and_then(|run| RunId::new(run).ok());
            if run.is_some_and(|run| !is_kept(&run)) {
                self.patches.remove(&name)?;
            }
        }
        Ok(())
    }

    /// Where the directory of the history is at this moment, as a path without links: SQLite takes
    /// nothing else.
    pub(super) fn path(&self) -> io::Result<PathBuf> {
        use std::os::fd::AsRawFd as _;
        std::fs::read_link(format!("/proc/self/fd/{}", self.root.as_fd().as_raw_fd()))
    }
}

/// What has a second name is somebody else's file too: nothing of ours is written to it, and
/// nothing is read from it as ours.
fn only_name(directory: &Directory, file: &File, name: &str) -> Result<(), StoreError> {
    let stat = fs::fstat(file).map_err(failed(directory, "stat", name))?;
    if fs::FileType::from_raw_mode(stat.st_mode).is_file() && stat.st_nlink == 1 {
        return Ok(());
    }
    let source = io::Error::other("it is not a regular file, or has several names");
    Err(StoreError::Io { action: "use", path: path_of(directory, name), source })
}

fn path_of(directory: &Directory, name: &str) -> String {
    format!("{}/{name}", directory.name())
}

fn failed(directory: &Directory, action: &'static str, name: &str) -> impl FnOnce(Errno) -> StoreError {
    let path = path_of(directory, name);
    move |errno| match errno {
        Errno::LOOP => StoreError::Symlink { path },
        other => StoreError::Io { action, path, source: other.into() },
    }
}

/// The identity of an open file.
pub(super) fn identity(file: &File) -> Result<Identity, Errno> {
    let stat = fs::fstat(file)?;
    Ok((stat.st_dev, stat.st_ino))
}

/// A directory that nobody else enters.
fn private(parent: &Directory, name: &str) -> Result<Directory, StoreError> {
    let directory = parent.ensure(name, 0o700)?;
    let failed = |errno: Errno| StoreError::Io {
        action: "set the mode of",
        path: directory.name().to_owned(),
        source: errno.into(),
    };
    fs::fchmod(&directory, Mode::RWXU).map_err(failed)?;
    Ok(directory)
}

/// The lock, held until the fd is closed: by us, or by the end of the process.
fn locked(root: &Directory) -> Result<OwnedFd, Refused> {
    let failed = |action| {
        let path = format!("{}/lock", root.name());
        move |errno: Errno| match errno {
            Errno::LOOP => StoreError::Symlink { path },
            errno => StoreError::Io { action, path, source: errno.into() },
        }
    };
    let flags = OFlags::RDWR | OFlags::CREATE | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC | OFlags::NOCTTY;
    let lock = fs::openat(root, "lock", flags, OURS).map_err(failed("open"))?;
    match fs::flock(&lock, FlockOperation::NonBlockingLockExclusive) {
        Ok(()) => Ok(lock),
        Err(Errno::WOULDBLOCK) => Err(Refused::InUse),
        Err(errno) => Err(failed("lock")(errno).into()),
    }
}

fn log_name(run: &RunId) -> String {
    format!("{run}{EVENTS}")
}

fn patch_name(run: &RunId) -> String {
    format!("{run}{PATCH}")
}
