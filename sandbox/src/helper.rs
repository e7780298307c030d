//! The helper program: one thread, an empty environment, a control socket as standard input.
//! It makes the place for a run's layers, or prepares one sandbox and runs commands in it, one after another.

mod attempt;
mod command;
mod copied;
mod copy;
mod failure;
mod init;
mod kin;
mod landlock;
mod leaks;
pub(crate) mod masks;
mod memory_sources;
mod mounts;
mod outer;
mod outside;
mod overlay;
mod plain;
mod renewal;
#[doc(hidden)]
pub mod seal;
mod space;
pub(crate) mod traces;
mod warden;

use std::os::fd::{AsFd, OwnedFd};
use std::process::ExitCode;

use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use rustix::process::Signal;

#[cfg(test)]
pub(crate) use self::attempt::is_alone;
use crate::sys::{self, Close};
use crate::wire::{self, Request};

/// Runs the helper. Its exit code says nothing to the daemon, its messages do.
pub fn main() -> ExitCode {
    // The standard streams belong to the step: not even a panic of ours is printed there. The
    // daemon sees the end without a report, which it takes for our mistake.
    std::panic::set_hook(Box::new(|_| {}));
    match prepare() {
        Ok(mut control) => serve(&mut control),
        Err(error) => {
            // Started by a person: then there is no control socket, and somebody reads this.
            eprintln!("error: proctor-sandbox is started by proctor only: {error}");
            ExitCode::from(2)
        }
    }
}

/// Makes sure that nothing of the daemon's is left in this process but the three descriptors.
fn prepare() -> std::io::Result<OwnedFd> {
    rustix::process::set_parent_process_death_signal(Some(Signal::KILL))?;
    sys::close_others(Close::Now)?;
    let control = sys::take_stdin()?;
    rustix::net::sockopt::socket_type(&control)?;
    leave_terminal();
    rustix::process::chdir("/")?;
    rustix::process::umask(Mode::from_raw_mode(0o022));
    Ok(control)
}

/// Away from the terminal of whoever runs the daemon: its Ctrl-C is the daemon's to handle, and no
/// process of ours names it. A session of our own would do the same, but the scheduler moves who has
/// a new one to a group of its own, and lets others run first; the command gets one while it waits.
fn leave_terminal() {
    if without_session().is_err() {
        // A group leader cannot leave, and is in nobody's way.
        let _ = rustix::process::setsid();
    }
}

fn without_session() -> std::io::Result<()> {
    rustix::process::setpgid(None, None)?;
    match rustix::fs::open("/dev/tty", OFlags::RDWR | OFlags::CLOEXEC | OFlags::NOCTTY, Mode::empty()) {
        Ok(terminal) => sys::forget_terminal(terminal.as_fd()),
        Err(Errno::NXIO) => Ok(()),
        Err(errno) => Err(errno.into()),
    }
}

fn serve(control: &mut OwnedFd) -> ExitCode {
    let Ok(Some((request, fds))) = wire::recv_document(control.as_fd()) else { return ExitCode::FAILURE };
    let served = match request {
        Request::Space(request) => space::serve(control.as_fd(), &request),
        Request::Sandbox(request) => attempt::serve(control, &request, fds),
        Request::Plain(request) => plain::serve(control, &request, &fds),
    };
    match served {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            // If the daemon is gone there is nobody to tell.
            drop(wire::send(control.as_fd(), &failure.into_message(), &[]));
            ExitCode::FAILURE
        }
    }
}
