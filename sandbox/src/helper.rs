//! Implements the helper program, which has one thread, an empty environment, and a control socket as standard input.
//! It makes a run space, or prepares one sandbox and runs commands in it, one after another.

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

/// Runs the helper. The daemon ignores its exit code and reads its messages.
pub fn main() -> ExitCode {
    // The standard streams belong to the step, so not even a panic is printed there. The daemon sees an end
    // without a report, and treats it as an internal error.
    std::panic::set_hook(Box::new(|_| {}));
    match prepare() {
        Ok(mut control) => serve(&mut control),
        Err(error) => {
            // Without a control socket, the helper was started by a user, who reads this message.
            eprintln!("error: proctor-sandbox is started by proctor only: {error}");
            ExitCode::from(2)
        }
    }
}

/// Ensures that this process has nothing of the daemon's except the three descriptors.
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

/// Detaches from the terminal of the daemon's user: its Ctrl-C is meant for the daemon, and no process of the sandbox
/// refers to the terminal. A new session would do the same, but the scheduler moves the leader of a new session to a
/// separate autogroup and runs other processes first. The command gets a new session while it waits.
fn leave_terminal() {
    if without_session().is_err() {
        // A group leader cannot start a new session, and the failure does no harm.
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
            // If the daemon has ended, there is no recipient.
            drop(wire::send(control.as_fd(), &failure.into_message(), &[]));
            ExitCode::FAILURE
        }
    }
}
