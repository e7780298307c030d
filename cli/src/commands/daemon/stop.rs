//! Asks the daemon to end, as SIGTERM does, and waits until it has.

use std::io;
use std::os::fd::OwnedFd;
use std::time::Duration;

use proctor_core::code::{Coded as _, CommandCode};
use proctor_core::verdict::EXIT_INCONCLUSIVE;
use proctor_daemon::client::ClientError;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};

use crate::args::StopArgs;
use crate::caller::Caller;
use crate::daemon::{self, Daemon, client_error};
use crate::error::CliError;
use crate::installation;
use crate::screen::Screen;

/// How long it may take beside the time that its runs are given.
const BESIDE: Duration = Duration::from_secs(60);
/// What its process is called, by proc_pid_comm(5).
const NAME: &str = "proctord";

/// Stops it. Where none runs there is nothing to do.
///
/// # Errors
/// It is somebody else's, does not answer, or does not end in time.
pub(super) async fn stop(args: &StopArgs, caller: &Caller, screen: &mut Screen) -> Result<u8, CliError> {
    let operator = installation::operator(&args.daemon.operator, caller)?;
    let drain = operator.daemon.drain;
    let places = daemon::places(args.daemon.socket.as_deref(), &operator, caller);
    let Some(daemon) = daemon::running(&places).await? else {
        screen.out("no daemon runs\n");
        return Ok(0);
    };
    let Some(process) = process(&daemon).await? else {
        screen.out("the daemon has ended\n");
        return Ok(0);
    };
    let pid = daemon.health.pid;
    match pidfd_send_signal(&process, Signal::TERM) {
        Ok(()) | Err(Errno::SRCH) => {}
        Err(errno) => return Err(not_ours(&daemon, errno)),
    }
    screen.err(&format!("asked process {pid} to end; it waits for what is under way\n"));
    match ended(process, drain + BESIDE).await {
        Ok(true) => {
            screen.out(&format!("the daemon has ended, process {pid}\n"));
            Ok(0)
        }
        Err(error) => Err(CliError::Internal(format!("process {pid} cannot be waited for: {error}"))),
        Ok(false) => Err(CliError::Engine {
            message: format!("the daemon has not ended within {} s, process {pid}", (drain + BESIDE).as_secs()),
            hint: Some("ask again: a second SIGTERM cancels its runs".to_owned()),
            exit_code: EXIT_INCONCLUSIVE,
            code: CommandCode::NotEnded.code(),
        }),
    }
}

/// The daemon's process, held so that its number cannot become another's; `None` where it has ended.
async fn process(daemon: &Daemon) -> Result<Option<OwnedFd>, CliError> {
    let pid = daemon.health.pid;
    let number = i32::try_from(pid).ok().and_then(Pid::from_raw);
    let number = number.ok_or_else(|| CliError::Internal(format!("{pid} is no process")))?;
    let process = match pidfd_open(number, PidfdFlags::empty()) {
        Ok(process) => process,
        Err(Errno::SRCH) => return Ok(None),
        Err(errno) => return Err(not_ours(daemon, errno)),
    };
    let is_named_so = is_named_so(pid);
    match daemon.client.health().await {
        // It still answers, under the same number: what we hold is it.
        Ok(health) if health.pid == pid && is_named_so => Ok(Some(process)),
        Ok(health) if health.pid == pid => Err(elsewhere(daemon)),
        Ok(_) | Err(ClientError::NotThere { .. }) => Ok(None),
        Err(error) => Err(client_error(error)),
    }
}

/// Whether a process has a daemon's name. A daemon in a container tells the number that it has in there,
/// which is another process's here.
fn is_named_so(pid: u32) -> bool {
    std::fs::read_to_string(format!("/proc/{pid}/comm")).is_ok_and(|name| name.trim_end() == NAME)
}

/// Whether the process has ended within that time: pidfd_open(2) says that it is readable then.
async fn ended(process: OwnedFd, within: Duration) -> io::Result<bool> {
    let bound = Timespec::try_from(within).map_err(io::Error::other)?;
    let wait = move || poll(&mut [PollFd::new(&process, PollFlags::IN)], Some(&bound));
    let ready = tokio::task::spawn_blocking(wait).await.map_err(io::Error::other)?;
    Ok(ready? > 0)
}

fn not_ours(daemon: &Daemon, errno: Errno) -> CliError {
    CliError::Usage {
        message: format!("process {} of user {} cannot be asked to end: {errno}", daemon.health.pid, daemon.health.uid),
        hint: "ask as that user, or by `systemctl stop proctord` where systemd looks after it".to_owned(),
    }
}

fn elsewhere(daemon: &Daemon) -> CliError {
    let (pid, socket) = (daemon.health.pid, installation::show(daemon.socket()));
    CliError::Usage {
        message: format!("the daemon at `{socket}` says that it is process {pid}, and that is no `{NAME}` here"),
        hint: "end it where it runs, such as in its container".to_owned(),
    }
}
