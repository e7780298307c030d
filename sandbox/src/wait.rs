//! Waits with a deadline: no process of ours may hold the daemon for ever, stopped or stuck in
//! the kernel.

use std::io;
use std::os::fd::{AsFd, BorrowedFd};
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

/// Waits for a helper that has to end now by itself, and kills it where it does not.
pub(crate) fn end(helper: &mut Child) -> io::Result<()> {
    if reap(helper).is_err() {
        helper.kill()?;
        reap(helper)?;
    }
    Ok(())
}

fn reap(helper: &mut Child) -> io::Result<()> {
    // Once it is reaped, its id may be somebody else's.
    if helper.try_wait()?.is_some() {
        return Ok(());
    }
    let pid = i32::try_from(helper.id()).ok().and_then(Pid::from_raw);
    let pid = pid.ok_or_else(|| io::Error::other("a child without a process id"))?;
    let pidfd = rustix::process::pidfd_open(pid, PidfdFlags::empty())?;
    readable(pidfd.as_fd(), LAST_BREATH)?;
    helper.wait().map(drop)
}
