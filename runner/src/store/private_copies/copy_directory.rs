//! Opens, creates and locks the directory of one repository's copies.

use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use rustix::fs::{FlockOperation, Mode, OFlags, Timespec, Timestamps, UTIME_NOW, flock, futimens};
use rustix::io::Errno;

use crate::store::StoreError;
use crate::store::directory::Directory;

/// Name of the file with the lock of the repository.
pub(super) const LOCK_FILE: &str = "lock";
/// Maximum wait for another run that prepares a copy of the same repository.
const LOCK_TIMEOUT: Duration = Duration::from_secs(120);
/// Pause between two attempts to take a lock.
const RETRY_PAUSE: Duration = Duration::from_millis(5);
/// Maximum number of attempts to enter a directory that is being removed.
const MAX_OPEN_ATTEMPTS: usize = 5;

/// The directory of one repository's copies.
#[derive(Debug, Clone)]
pub(super) struct CopyDirectory {
    pub(super) root: Directory,
    pub(super) path: PathBuf,
}

impl CopyDirectory {
    /// Uses the copies in `root`, whose path is `path`, and locks the directory against removal; `None` if it was
    /// just removed.
    pub(super) fn open_locked(root: Directory, path: PathBuf) -> Result<Option<Self>, StoreError> {
        match flock(&root, FlockOperation::NonBlockingLockShared) {
            Ok(()) => {}
            Err(Errno::WOULDBLOCK) => return Ok(None),
            Err(errno) => return Err(StoreError::io("lock", path.display().to_string())(errno)),
        }
        let is_there = rustix::fs::fstat(&root).is_ok_and(|found| found.st_nlink > 0);
        Ok(is_there.then_some(Self { root, path }))
    }

    /// Creates the directory at `path`, whose name in `mirrors` is `key`, and uses it.
    #[expect(clippy::disallowed_methods, reason = "no event reports that a clean-up has removed a directory")]
    pub(super) fn create_locked(mirrors: &Directory, key: &str, path: &Path, mode: u32) -> Result<Self, StoreError> {
        for _ in 0..MAX_OPEN_ATTEMPTS {
            match mirrors.ensure_with_mode(key, mode) {
                Ok(root) => {
                    if let Some(copies) = Self::open_locked(root, path.to_owned())? {
                        return Ok(copies);
                    }
                }
                // The directory was removed between creation and opening.
                Err(StoreError::Io { source, .. }) if source.kind() == std::io::ErrorKind::NotFound => {}
                Err(error) => return Err(error),
            }
            std::thread::sleep(RETRY_PAUSE);
        }
        Err(StoreError::Busy { path: path.display().to_string() })
    }

    /// Takes the repository's lock, which the returned descriptor holds, and updates the time of the last use.
    pub(super) fn lock(&self) -> Result<OwnedFd, StoreError> {
        let lock = self.lock_without_touching()?;
        touch_lock(&lock).map_err(|errno| self.lock_error(errno))?;
        Ok(lock)
    }

    /// Takes the repository's lock without updating the time of the last use.
    pub(super) fn lock_without_touching(&self) -> Result<OwnedFd, StoreError> {
        self.lock_with_timeout(LOCK_TIMEOUT)?.ok_or_else(|| StoreError::Busy { path: self.path.display().to_string() })
    }

    /// Takes the repository's lock; `None` on timeout.
    #[expect(clippy::disallowed_methods, reason = "flock(2) has no deadline, and no event reports a released lock")]
    pub(super) fn lock_with_timeout(&self, timeout: Duration) -> Result<Option<OwnedFd>, StoreError> {
        let deadline = Instant::now() + timeout;
        loop {
            match self.try_lock()? {
                Some(lock) => return Ok(Some(lock)),
                None if Instant::now() < deadline => std::thread::sleep(RETRY_PAUSE),
                None => return Ok(None),
            }
        }
    }

    /// Takes the repository's lock; `None` if a run or another process holds it.
    pub(super) fn try_lock(&self) -> Result<Option<OwnedFd>, StoreError> {
        let flags = OFlags::RDWR | OFlags::CREATE | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let file = rustix::fs::openat(&self.root, LOCK_FILE, flags, Mode::from_raw_mode(0o600));
        let file = file.map_err(|errno| self.lock_error(errno))?;
        match rustix::io::retry_on_intr(|| flock(&file, FlockOperation::NonBlockingLockExclusive)) {
            Ok(()) => Ok(Some(file)),
            Err(Errno::WOULDBLOCK) => Ok(None),
            Err(errno) => Err(self.lock_error(errno)),
        }
    }

    fn lock_error(&self, errno: Errno) -> StoreError {
        StoreError::io("lock", self.path.join(LOCK_FILE).display().to_string())(errno)
    }

    /// Returns the numbers of the copies in ascending order.
    pub(super) fn numbers(&self) -> Result<Vec<u64>, StoreError> {
        let mut numbers: Vec<u64> = self.root.names()?.iter().filter_map(|name| name.parse().ok()).collect();
        numbers.sort_unstable();
        Ok(numbers)
    }
}

/// Updates the time of the last use of a repository's copies.
fn touch_lock(lock: &OwnedFd) -> Result<(), Errno> {
    let now = Timespec { tv_sec: 0, tv_nsec: UTIME_NOW };
    futimens(lock, &Timestamps { last_access: now, last_modification: now })
}
