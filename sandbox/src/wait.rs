//! Waits with a deadline, so that no helper process that is stopped or stuck in the kernel can block the daemon
//! forever.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::process::Child;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags};
use rustix::process::{Pid, PidfdFlags};

/// Timeout for the end of a process that has nothing more to do, or was killed.
pub(crate) const EXIT_TIMEOUT: Duration = Duration::from_secs(5);

/// Waits until there is something to read, or the other side has closed.
pub(crate) fn wait_readable(fd: BorrowedFd<'_>, max_wait: Duration) -> io::Result<()> {
    let timeout = rustix::time::Timespec::try_from(max_wait).map_err(io::Error::other)?;
    let mut waited = [PollFd::from_borrowed_fd(fd, PollFlags::IN)];
    match rustix::io::retry_on_intr(|| rustix::event::poll(&mut waited, Some(&timeout)))? {
        0 => Err(io::Error::new(io::ErrorKind::TimedOut, format!("no data arrived within {} s", max_wait.as_secs()))),
        _ => Ok(()),
    }
}

/// A running helper, and the pidfd that becomes readable when it ends.
#[derive(Debug)]
pub(crate) struct HelperProcess {
    child: Child,
    pidfd: OwnedFd,
}

impl HelperProcess {
    /// Opens the pidfd immediately: later there may be no descriptor left, and the end could not be awaited with a
    /// deadline.
    pub(crate) fn new(mut child: Child) -> io::Result<Self> {
        let pid = i32::try_from(child.id()).ok().and_then(Pid::from_raw);
        let pidfd = pid
            .ok_or_else(|| io::Error::other("a child without a process id"))
            .and_then(|pid| Ok(rustix::process::pidfd_open(pid, PidfdFlags::empty())?));
        match pidfd {
            Ok(pidfd) => Ok(Self { child, pidfd }),
            Err(error) => {
                // The helper has received no request yet, so nothing delays its death.
                child.kill()?;
                child.wait()?;
                Err(error)
            }
        }
    }

    /// Returns whether the helper has ended.
    pub(crate) fn has_exited(&self) -> bool {
        wait_readable(self.pidfd.as_fd(), Duration::ZERO).is_ok()
    }

    /// Returns another descriptor that becomes readable when the helper ends.
    pub(crate) fn exit_fd(&self) -> io::Result<OwnedFd> {
        self.pidfd.try_clone()
    }

    /// Sends SIGKILL; a helper that has already ended is not an error.
    pub(crate) fn kill(&mut self) -> io::Result<()> {
        self.child.kill()
    }

    /// Waits for a helper that is about to end, and kills it after a timeout.
    pub(crate) fn wait_or_kill(&mut self) -> io::Result<()> {
        if wait_readable(self.pidfd.as_fd(), EXIT_TIMEOUT).is_err() {
            self.kill()?;
            wait_readable(self.pidfd.as_fd(), EXIT_TIMEOUT)?;
        }
        self.child.wait().map(drop)
    }
}
