//! Waits with a deadline: no process of ours may hold the daemon for ever, stopped or stuck in
//! the kernel.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::process::Child;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags};
use rustix::process::{Pid, PidfdFlags};

/// How long the end of a process may take that has nothing more to do, or was killed.
pub(crate) const LAST_BREATH: Duration = Duration::from_secs(5);

/// Waits until there is something to read, or the other side has closed.
pub(crate) fn readable(fd: BorrowedFd<'_>, most: Duration) -> io::Result<()> {
    let timeout = rustix::time::Timespec::try_from(most).map_err(io::Error::other)?;
    let mut waited = [PollFd::from_borrowed_fd(fd, PollFlags::IN)];
    match rustix::io::retry_on_intr(|| rustix::event::poll(&mut waited, Some(&timeout)))? {
        0 => Err(io::Error::new(io::ErrorKind::TimedOut, format!("nothing came within {} s", most.as_secs()))),
        _ => Ok(()),
    }
}

/// A helper that was started, and the descriptor that tells its end.
#[derive(Debug)]
pub(crate) struct Helper {
    child: Child,
    pidfd: OwnedFd,
}

impl Helper {
    /// Takes the descriptor at once: later there may be none left, and the end could not be
    /// waited for with a deadline.
    pub(crate) fn new(mut child: Child) -> io::Result<Self> {
        let pid = i32::try_from(child.id()).ok().and_then(Pid::from_raw);
        let pidfd = pid
            .ok_or_else(|| io::Error::other("a child without a process id"))
            .and_then(|pid| Ok(rustix::process::pidfd_open(pid, PidfdFlags::empty())?));
        match pidfd {
            Ok(pidfd) => Ok(Self { child, pidfd }),
            Err(error) => {
                // It has got no request yet: nothing in it can keep it from dying.
                child.kill()?;
                child.wait()?;
                Err(error)
            }
        }
    }

    /// Whether it has ended by now.
    pub(crate) fn has_ended(&self) -> bool {
        readable(self.pidfd.as_fd(), Duration::ZERO).is_ok()
    }

    /// Another descriptor that tells its end.
    pub(crate) fn end_fd(&self) -> io::Result<OwnedFd> {
        self.pidfd.try_clone()
    }

    /// Sends SIGKILL; one that is gone already is no error.
    pub(crate) fn kill(&mut self) -> io::Result<()> {
        self.child.kill()
    }

    /// Waits for one that has to end now by itself, and kills it where it does not.
    pub(crate) fn end(&mut self) -> io::Result<()> {
        if readable(self.pidfd.as_fd(), LAST_BREATH).is_err() {
            self.kill()?;
            readable(self.pidfd.as_fd(), LAST_BREATH)?;
        }
        self.child.wait().map(drop)
    }
}
