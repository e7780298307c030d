//! Implements the helper program, which has one thread, an empty environment, and a control socket as standard input.
//! It makes a run space, or prepares one sandbox and runs commands in it, one after another.

mod abstract_socket_probe;
mod batch_runner;
mod command_process;
#[doc(hidden)]
pub mod copy_changes;
mod descendants;
mod exec_command;
mod group_cpu_time;
mod init;
pub(crate) mod init_state;
mod landlock;
mod leftover_processes;
mod limit_monitor;
pub(crate) mod masks;
mod memory_sources;
mod mount_table;
mod mounts;
mod namespace_setup;
mod no_namespaces;
mod overlay;
mod process_clocks;
mod reuse_check;
mod run_space_setup;
pub(crate) mod scratch_fingerprint;
mod setup_failure;
mod supervisor;
pub(crate) mod tree_copier;
mod tree_copy;
pub(crate) mod usage_totals;
mod view_process;

use std::os::fd::{AsFd, OwnedFd};
use std::process::ExitCode;

use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use rustix::process::Signal;

use crate::sys::{self, CloseTime};
use crate::wire::{self, HelperRequest};

#[cfg(test)]
pub(crate) use self::supervisor::is_daemon_gone;

/// Runs the helper. The daemon ignores its exit code and reads its messages.
pub fn main() -> ExitCode {
    // The standard streams belong to the step, so not even a panic is printed there. The daemon sees an end
    // without a report, and treats it as an internal error.
    std::panic::set_hook(Box::new(|_| {}));
    match isolate_process() {
        Ok(mut control) => handle_request(&mut control),
        Err(error) => {
            // Without a control socket, the helper was started by a user, who reads this message.
            eprintln!("error: proctor-sandbox can only be started by proctor: {error}");
            ExitCode::from(2)
        }
    }
}

/// Ensures that this process inherits nothing from the daemon except the three descriptors.
fn isolate_process() -> std::io::Result<OwnedFd> {
    rustix::process::set_parent_process_death_signal(Some(Signal::KILL))?;
    sys::close_others(CloseTime::Now)?;
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
    if detach_from_terminal().is_err() {
        // A group leader cannot start a new session, and the failure does no harm.
        let _ = rustix::process::setsid();
    }
}

fn detach_from_terminal() -> std::io::Result<()> {
    rustix::process::setpgid(None, None)?;
    match rustix::fs::open("/dev/tty", OFlags::RDWR | OFlags::CLOEXEC | OFlags::NOCTTY, Mode::empty()) {
        Ok(terminal) => sys::detach_terminal(terminal.as_fd()),
        Err(Errno::NXIO) => Ok(()),
        Err(errno) => Err(errno.into()),
    }
}

fn handle_request(control: &mut OwnedFd) -> ExitCode {
    let Ok(Some((request, fds))) = wire::recv_document(control.as_fd()) else { return ExitCode::FAILURE };
    let served = match request {
        HelperRequest::Space(request) => run_space_setup::create_run_space(control.as_fd(), &request),
        HelperRequest::Sandbox(request) => supervisor::run_sandbox(control, &request, fds),
        HelperRequest::Plain(request) => no_namespaces::run_sandbox(control, &request, &fds),
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
