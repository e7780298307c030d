//! Checks whether the state directory is writable.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use rustix::fs::{AtFlags, CWD, FallocateFlags, Mode, OFlags, fallocate, openat, statvfs, unlinkat};
use rustix::io::Errno;
use tokio::sync::Mutex;
use tokio::time::{Instant, timeout};
use tracing::{error, info};

/// Time during which the result of a write test is reused.
const PROBE_CACHE_TIME: Duration = Duration::from_secs(1);
/// Time limit of a write test.
const PROBE_TIMEOUT: Duration = Duration::from_secs(5);
/// Number of bytes that a write test allocates and frees again: more than the start of a run log needs.
const PROBE_BYTES: u64 = 64 << 10;
/// Name of the test file on file systems without unnamed files (`O_TMPFILE`).
const PROBE_FILE: &str = ".readiness";

/// Tests whether the state directory is writable, at most once a second.
#[derive(Debug)]
pub(super) struct StateProbe {
    dir: PathBuf,
    last: Mutex<Option<(Instant, ProbeResult)>>,
    /// `true` if a write test is still blocked, so no second thread waits for the same disk.
    pending: Arc<AtomicBool>,
}

/// Number of free bytes if the system reports it, or the reason why the directory is not writable.
pub(super) type ProbeResult = Result<Option<u64>, ProbeError>;

/// Reason why the state directory is not writable.
#[derive(Debug, Clone, thiserror::Error)]
pub(super) enum ProbeError {
    /// The disk does not answer.
    #[error("its disk does not answer within {} s", PROBE_TIMEOUT.as_secs())]
    Timeout,
    /// A system call failed.
    #[error("{}", std::io::Error::from(*.0))]
    System(#[from] Errno),
    /// The thread of the write test panicked.
    #[error("the test failed unexpectedly: {0}")]
    Broken(Arc<tokio::task::JoinError>),
}

impl StateProbe {
    /// Creates a probe without a result.
    pub(super) fn new(dir: PathBuf) -> Self {
        Self { dir, last: Mutex::default(), pending: Arc::default() }
    }

    /// Returns the number of free bytes if the directory is writable.
    pub(super) async fn probe(&self) -> ProbeResult {
        let mut last = self.last.lock().await;
        if let Some((at, found)) = &*last
            && at.elapsed() < PROBE_CACHE_TIME
        {
            return found.clone();
        }
        let found = self.run_write_test().await;
        let was_writable = last.as_ref().is_none_or(|(_, found)| found.is_ok());
        match &found {
            Err(reason) if was_writable => error!("the state directory cannot be written: {reason}"),
            Ok(_) if !was_writable => info!("the state directory can be written again"),
            _ => {}
        }
        *last = Some((Instant::now(), found.clone()));
        found
    }

    async fn run_write_test(&self) -> ProbeResult {
        if self.pending.swap(true, Ordering::AcqRel) {
            return Err(ProbeError::Timeout);
        }
        let (dir, pending) = (self.dir.clone(), Arc::clone(&self.pending));
        let trying = tokio::task::spawn_blocking(move || {
            let found = write_test(&dir).map_err(ProbeError::from);
            let free = statvfs(&dir).ok().map(|disk| disk.f_bavail.saturating_mul(disk.f_frsize));
            pending.store(false, Ordering::Release);
            found.map(|()| free)
        });
        match timeout(PROBE_TIMEOUT, trying).await {
            Ok(Ok(found)) => found,
            Ok(Err(error)) => Err(ProbeError::Broken(Arc::new(error))),
            Err(_) => Err(ProbeError::Timeout),
        }
    }
}

fn write_test(dir: &Path) -> Result<(), Errno> {
    let mode = Mode::from_raw_mode(0o600);
    let file = match openat(CWD, dir, OFlags::RDWR | OFlags::TMPFILE | OFlags::CLOEXEC, mode) {
        Err(Errno::OPNOTSUPP | Errno::ISDIR) => {
            let path = dir.join(PROBE_FILE);
            let flags = OFlags::RDWR | OFlags::CREATE | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
            let file = openat(CWD, &path, flags, mode)?;
            unlinkat(CWD, &path, AtFlags::empty())?;
            file
        }
        opened => opened?,
    };
    match fallocate(&file, FallocateFlags::empty(), 0, PROBE_BYTES) {
        Err(Errno::OPNOTSUPP) => rustix::io::pwrite(&file, &[0; 4096], 0).map(drop),
        tried => tried,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn notices_a_directory_that_cannot_be_written() {
        let dir = tempfile::tempdir().expect("a directory");
        let state = dir.path().join("state");
        std::fs::create_dir(&state).expect("made");
        let probe = StateProbe::new(state.clone());
        assert!(probe.probe().await.expect("writable").is_some());
        assert_eq!(std::fs::read_dir(&state).expect("reads").count(), 0, "nothing is left");
        std::fs::remove_dir(&state).expect("removed");
        probe.probe().await.expect("still fresh");
        tokio::time::advance(PROBE_CACHE_TIME).await;
        assert!(probe.probe().await.expect_err("gone").to_string().contains("No such file"));
    }

    #[tokio::test]
    async fn does_not_wait_twice_for_a_disk_that_hangs() {
        let probe = StateProbe::new("/tmp".into());
        probe.pending.store(true, Ordering::Release);
        assert!(probe.probe().await.expect_err("hangs").to_string().contains("does not answer"));
    }
}
