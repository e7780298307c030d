//! Finds the processes that a command has left behind. The process that watches the command calls this after the
//! command has ended while a child remains; a command that leaves nothing behind costs no additional system call.
//!
//! All leftover processes are stopped before they are counted, so that none creates another process in the meantime.
//! They are never continued: the end of the sandbox kills them.

use std::io;
use std::time::{Duration, Instant};

use nix::sys::signal::Signal as NixSignal;
use nix::sys::signalfd::SignalFd;
use proctor_core::model::leak::{LeakedProcess, LeakedProcesses, MAX_COUNTED, MAX_NAMED};
use rustix::event::{PollFd, PollFlags};
use rustix::time::Timespec;

use super::descendants::{self, MAX_REAPED_AT_ONCE};
use super::limit_monitor::LimitMonitor;
use crate::helper::usage_totals::UsageTotals;
use crate::sys;

/// Grace period for processes that are ending when the command has ended.
const GRACE_PERIOD: Duration = Duration::from_millis(100);

/// The processes that belong to the step.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum ProcessScope {
    /// All processes of the PID namespace except PID 1, which is the caller.
    Namespace,
    /// The same, if the mounted `/proc` belongs to another PID namespace.
    NamespaceWithoutProc,
    /// All descendants of the calling process.
    Descendants,
}

impl ProcessScope {
    /// Returns the scope of a PID 1, by whether `/proc` is that of its namespace.
    pub(super) fn for_init(has_proc: bool) -> Self {
        if has_proc { Self::Namespace } else { Self::NamespaceWithoutProc }
    }
}

/// The state of the loop that watched a command.
pub(super) struct CommandWatch<'a> {
    /// Reads SIGCHLD and SIGTERM.
    pub(super) signals: &'a SignalFd,
    /// Limits the resources of the remaining processes during the wait.
    pub(super) limit_monitor: Option<&'a mut LimitMonitor>,
    /// Sums up the resource usage of ended processes.
    pub(super) used: &'a mut UsageTotals,
    /// `true` if the daemon has asked the step to end. Then there is no wait.
    pub(super) terminated: bool,
}

/// Returns whether the calling process has no descendant left; reaps those that have ended. PID 1 adopts every orphan
/// of its namespace, so without a child there is no other process, and none can start (pid_namespaces(7)). The
/// same is true of a subreaper and its descendants.
///
/// Reaps at most [`MAX_REAPED_AT_ONCE`] processes; if there may be more, it returns `false`.
pub(super) fn has_no_descendants(used: &mut UsageTotals) -> bool {
    for _ in 0..MAX_REAPED_AT_ONCE {
        // `__WALL` includes children whose exit sends no signal.
        match sys::reap_any(libc::WNOHANG | libc::__WALL) {
            Ok(None) => return false,
            Ok(Some(waited)) => used.add(&waited.usage),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return error.raw_os_error() == Some(libc::ECHILD),
        }
    }
    false
}

/// Waits for at most [`GRACE_PERIOD`] until no process is left; then stops and describes the remaining ones. Returns
/// `None` if no process is left.
pub(super) fn describe_leftovers(scope: ProcessScope, mut watch: CommandWatch<'_>) -> Option<LeakedProcesses> {
    if !watch.terminated && watch.all_exit_in_time() {
        return None;
    }
    let (processes, named) = stop_and_list(scope).unwrap_or_default();
    match processes == 0 && has_no_descendants(watch.used) {
        true => None,
        false => Some(LeakedProcesses::new(processes, named)),
    }
}

impl CommandWatch<'_> {
    /// Returns whether the last process ends within [`GRACE_PERIOD`]. Every relevant exit sends SIGCHLD: when the last
    /// process ends, it is a child of the caller.
    fn all_exit_in_time(&mut self) -> bool {
        let deadline = Instant::now() + GRACE_PERIOD;
        loop {
            let left = deadline.saturating_duration_since(Instant::now());
            let wakes = !left.is_zero() && self.wait(left).is_ok();
            if has_no_descendants(self.used) {
                return true;
            }
            let above_limit = self.limit_monitor.as_mut().is_some_and(|monitor| monitor.check().is_some());
            if !wakes || self.terminated || above_limit {
                return false;
            }
        }
    }

    /// Waits for a signal, for the next check of the limits, or for `most`.
    fn wait(&mut self, max_wait: Duration) -> io::Result<()> {
        let most = Timespec::try_from(max_wait).map_err(io::Error::other)?;
        let look = self.limit_monitor.as_ref().and_then(|monitor| monitor.max_wait().copied());
        let timeout = look.map_or(most, |look| look.min(most));
        let mut fds = [PollFd::new(self.signals, PollFlags::IN)];
        rustix::io::retry_on_intr(|| rustix::event::poll(&mut fds, Some(&timeout)))?;
        self.terminated |= descendants::read_signals(self.signals)?;
        Ok(())
    }
}

/// Stops the processes. Returns the number of living ones, up to [`MAX_COUNTED`], and the first ones among them.
fn stop_and_list(scope: ProcessScope) -> io::Result<(u64, Vec<LeakedProcess>)> {
    let pids = match scope {
        ProcessScope::Namespace => {
            stop_namespace();
            list_all_but_init()?
        }
        ProcessScope::NamespaceWithoutProc => {
            stop_namespace();
            descendants::list_pids()?.into_iter().collect()
        }
        ProcessScope::Descendants => descendants::stop_all()?.into_iter().collect::<Vec<_>>(),
    };
    let (mut processes, mut named) = (0, Vec::new());
    for pid in pids {
        let Some(process) = describe_living(pid) else { continue };
        processes += 1;
        if named.len() < MAX_NAMED {
            named.push(process);
        }
        if processes >= MAX_COUNTED {
            break;
        }
    }
    Ok((processes, named))
}

/// Stops every process of the namespace except PID 1. The kernel signals all of them at once, and a concurrent fork
/// sees the signal before it completes.
fn stop_namespace() {
    let _ = nix::sys::signal::kill(nix::unistd::Pid::from_raw(-1), NixSignal::SIGSTOP);
}

fn list_all_but_init() -> io::Result<Vec<i32>> {
    let mut pids = Vec::new();
    for entry in std::fs::read_dir("/proc")? {
        let pid = entry?.file_name().to_str().and_then(|name| name.parse::<i32>().ok());
        pids.extend(pid.filter(|pid| *pid != 1));
    }
    Ok(pids)
}

/// Describes a process; `None` if it is a zombie or has ended.
fn describe_living(pid: i32) -> Option<LeakedProcess> {
    let stat = std::fs::read(format!("/proc/{pid}/stat")).ok()?;
    let comm = parse_living_comm(&stat)?;
    Some(LeakedProcess::new(pid.unsigned_abs(), comm))
}

/// Returns the name from the stat line (proc_pid_stat(5)) of a living process. A process whose first thread has ended
/// is shown as a zombie while its other threads run, but its thread count is above one.
fn parse_living_comm(stat: &[u8]) -> Option<&[u8]> {
    let open = stat.iter().position(|byte| *byte == b'(')?;
    let close = stat.iter().rposition(|byte| *byte == b')')?;
    let mut fields = stat.get(close + 1..)?.split(u8::is_ascii_whitespace).filter(|field| !field.is_empty());
    let state = fields.next()?;
    let has_ended = matches!(state, b"Z" | b"X" | b"x");
    // Field 20; the state is field 3.
    let threads = std::str::from_utf8(fields.nth(16)?).ok()?.parse::<u64>().ok()?;
    if has_ended && threads <= 1 { None } else { stat.get(open + 1..close) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn stat(comm: &str, state: &str, threads: u32) -> Vec<u8> {
        format!("7 ({comm}) {state} 1 7 7 0 -1 4194560 100 0 0 0 11 22 33 44 20 0 {threads} 0 5 1000 10\n").into_bytes()
    }

    #[test]
    fn reads_any_process_name() {
        for comm in ["sleep", "a) Z 1 (", "", "\u{1b}[2J"] {
            for state in ["R", "S", "D", "T", "t", "I"] {
                assert_eq!(parse_living_comm(&stat(comm, state, 1)), Some(comm.as_bytes()), "{comm} {state}");
            }
        }
    }

    #[test]
    fn counts_process_without_first_thread_but_no_zombie() {
        assert_eq!(parse_living_comm(&stat("sh", "Z", 1)), None);
        assert_eq!(parse_living_comm(&stat("sh", "X", 0)), None);
        assert_eq!(parse_living_comm(&stat("sh", "Z", 2)), Some(&b"sh"[..]));
        assert_eq!(parse_living_comm(b"7 (x"), None);
    }
}
