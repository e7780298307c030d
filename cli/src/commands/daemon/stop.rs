//! Sends SIGTERM to the daemon and waits until it has exited.

use std::io;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::time::Duration;

use proctor_client::error::ClientError;
use proctor_client::socket_candidates::all_candidates;
use proctor_core::code::{Coded as _, CommandCode};
use proctor_core::decision::verdict::EXIT_INCONCLUSIVE;
use proctor_daemon::lifecycle::lock_holder;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};

use crate::args::StopArgs;
use crate::caller::Caller;
use crate::daemon::{self, ReachableDaemon, client_error};
use crate::error::CliError;
use crate::installation;
use crate::screen::Screen;

/// Time to wait in addition to the time that the daemon gives its runs.
const STOP_MARGIN: Duration = Duration::from_secs(60);
/// Name of the daemon's process in proc_pid_comm(5).
const NAME: &str = "proctord";

/// Stops the daemon. If none is running, there is nothing to do.
///
/// # Errors
/// The daemon belongs to another user, does not respond, or does not exit in time.
pub(super) async fn stop(args: &StopArgs, caller: &Caller, screen: &mut Screen) -> Result<u8, CliError> {
    let operator = installation::operator(&args.daemon.operator, caller)?;
    let drain = operator.daemon.drain;
    let candidates = all_candidates(args.daemon.socket.as_deref(), &operator, caller);
    let found = match daemon::find_running_daemon(&candidates).await? {
        Some(daemon) => daemon_pidfd(&daemon).await?.map(|process| (daemon.health.pid, process)),
        None => match daemon::lock_holder(&candidates) {
            Some((socket, pid)) => lock_holder_pidfd(&socket, pid)?.map(|process| (pid, process)),
            None => {
                screen.out("no daemon runs\n");
                return Ok(0);
            }
        },
    };
    let Some((pid, process)) = found else {
        screen.out("the daemon has stopped\n");
        return Ok(0);
    };
    match pidfd_send_signal(&process, Signal::TERM) {
        Ok(()) | Err(Errno::SRCH) => {}
        Err(errno) => return Err(signal_error(pid, errno)),
    }
    screen.err(&format!("process {pid} was asked to stop; it first completes the work in progress\n"));
    match wait_for_exit(process, drain + STOP_MARGIN).await {
        Ok(true) => {
            screen.out(&format!("the daemon, process {pid}, has stopped\n"));
            Ok(0)
        }
        Err(error) => Err(CliError::Internal(format!("process {pid} cannot be waited for: {error}"))),
        Ok(false) => Err(CliError::Engine {
            message: format!("the daemon, process {pid}, has not stopped within {} s", (drain + STOP_MARGIN).as_secs()),
            hint: Some("repeat the command: a second SIGTERM cancels the runs".to_owned()),
            exit_code: EXIT_INCONCLUSIVE,
            code: CommandCode::NotEnded.code(),
        }),
    }
}

/// Returns a pidfd of the daemon's process, which protects against reuse of the process id, or `None` if it has
/// exited.
async fn daemon_pidfd(daemon: &ReachableDaemon) -> Result<Option<OwnedFd>, CliError> {
    let pid = daemon.health.pid;
    let Some(process) = open_pidfd(pid)? else { return Ok(None) };
    let has_daemon_name = has_daemon_name(pid);
    match daemon.client.health().await {
        // The daemon still responds with the same process id, so the pidfd refers to it.
        Ok(health) if health.pid == pid && has_daemon_name => Ok(Some(process)),
        Ok(health) if health.pid == pid => Err(foreign_process_error(daemon.socket(), pid)),
        Ok(_) | Err(ClientError::NotListening { .. }) => Ok(None),
        Err(error) => Err(client_error(error)),
    }
}

/// Returns the process that holds the lock of a socket at which nothing listens, or `None` if it has exited.
fn lock_holder_pidfd(socket: &Path, pid: u32) -> Result<Option<OwnedFd>, CliError> {
    let Some(process) = open_pidfd(pid)? else { return Ok(None) };
    // The process behind the pidfd holds the lock only if its id was not reused in the meantime.
    if lock_holder(socket) != Some(pid) {
        return Ok(None);
    }
    if has_daemon_name(pid) { Ok(Some(process)) } else { Err(foreign_process_error(socket, pid)) }
}

fn open_pidfd(pid: u32) -> Result<Option<OwnedFd>, CliError> {
    let number = i32::try_from(pid).ok().and_then(Pid::from_raw);
    let number = number.ok_or_else(|| CliError::Internal(format!("{pid} is not a process")))?;
    match pidfd_open(number, PidfdFlags::empty()) {
        Ok(process) => Ok(Some(process)),
        Err(Errno::SRCH) => Ok(None),
        Err(errno) => Err(signal_error(pid, errno)),
    }
}

/// Checks whether a process has the daemon's name. A daemon in a container reports its process id inside the
/// container, which on this host belongs to another process.
fn has_daemon_name(pid: u32) -> bool {
    std::fs::read_to_string(format!("/proc/{pid}/comm")).is_ok_and(|name| name.trim_end() == NAME)
}

/// Waits at most `within` for the process to exit. The pidfd becomes readable on exit, see pidfd_open(2).
async fn wait_for_exit(process: OwnedFd, within: Duration) -> io::Result<bool> {
    let bound = Timespec::try_from(within).map_err(io::Error::other)?;
    let wait = move || poll(&mut [PollFd::new(&process, PollFlags::IN)], Some(&bound));
    let ready = tokio::task::spawn_blocking(wait).await.map_err(io::Error::other)?;
    Ok(ready? > 0)
}

fn signal_error(pid: u32, errno: Errno) -> CliError {
    CliError::Usage {
        message: format!("the daemon, process {pid}, cannot be sent a signal: {errno}"),
        hint: "run this as the daemon's user, or use `systemctl stop proctord` if systemd runs it".to_owned(),
    }
}

fn foreign_process_error(socket: &Path, pid: u32) -> CliError {
    let socket = installation::show(socket);
    CliError::Usage {
        message: format!("the daemon at `{socket}` reports process {pid}, but that process is not a `{NAME}` here"),
        hint: "stop it where it runs, such as in its container".to_owned(),
    }
}
