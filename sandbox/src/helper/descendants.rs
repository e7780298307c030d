//! Tracks the descendants of this process if no PID namespace contains them. This process is their subreaper
//! (`PR_SET_CHILD_SUBREAPER`): an orphaned descendant becomes its child. So no descendant can escape, and none
//! remains when this process has no child left.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::time::{Duration, Instant};

use nix::sys::signal::{SigSet, Signal as NixSignal};
use nix::sys::signalfd::{SfdFlags, SignalFd};
use rustix::event::{PollFd, PollFlags};
use rustix::process::{Pid, Signal, WaitOptions};
use rustix::time::Timespec;

use super::landlock;

/// Maximum number of processes that are reaped before limits and messages are checked again. Processes that fork and exit
/// constantly would otherwise occupy the reaper forever. The default limit of processes is as high.
pub(super) const MAX_REAPED_AT_ONCE: usize = 4096;

/// Timeout for the kernel to end killed processes.
const KILL_TIMEOUT: Duration = Duration::from_secs(10);
/// How long to wait for a process to end before searching for new ones.
const SEARCH_INTERVAL: Timespec = Timespec { tv_sec: 0, tv_nsec: 5_000_000 };
/// How many times to search for new processes before killing the stopped ones.
const MAX_SEARCHES: usize = 20;

/// Makes this process the subreaper of its descendants.
pub(super) fn become_subreaper() -> io::Result<()> {
    // Any process id switches it on; the kernel does not use the value otherwise.
    Ok(rustix::process::set_child_subreaper(Some(Pid::INIT))?)
}

/// Returns all descendants of this process, by the parent ids in /proc. The result is a snapshot: a process that was
/// created in the meantime may be missing.
pub(super) fn list_pids() -> io::Result<BTreeSet<i32>> {
    let mut children: BTreeMap<i32, Vec<i32>> = BTreeMap::new();
    for entry in std::fs::read_dir("/proc")? {
        let Some(pid) = entry?.file_name().to_str().and_then(|name| name.parse().ok()) else { continue };
        // A process that has ended since has no stat file. The file is not necessarily UTF-8, since it contains the
        // process's name.
        let Ok(stat) = std::fs::read(format!("/proc/{pid}/stat")) else { continue };
        if let Some(parent) = parse_parent(&String::from_utf8_lossy(&stat)) {
            children.entry(parent).or_default().push(pid);
        }
    }
    let mut found = BTreeSet::new();
    let mut waiting = vec![own_pid_in_proc()?];
    while let Some(next) = waiting.pop() {
        for child in children.get(&next).into_iter().flatten() {
            if found.insert(*child) {
                waiting.push(*child);
            }
        }
    }
    Ok(found)
}

/// Returns the id of this process in the mounted /proc. It differs from `getpid()` if that /proc belongs to an outer
/// PID namespace.
fn own_pid_in_proc() -> io::Result<i32> {
    let link = std::fs::read_link("/proc/self")?;
    link.to_str().and_then(|number| number.parse().ok()).ok_or_else(|| io::Error::other("/proc/self is not a number"))
}

/// Parses the fourth field of a stat line. The second field, the name in parentheses, may contain any characters.
fn parse_parent(stat: &str) -> Option<i32> {
    stat.rsplit_once(')')?.1.split_whitespace().nth(1)?.parse().ok()
}

/// Sends SIGTERM to all descendants.
pub(super) fn terminate() {
    // Without /proc no process can be found; a later SIGKILL ends them.
    for pid in list_pids().unwrap_or_default() {
        send_signal(pid, Signal::TERM);
    }
}

/// The processes that a signal of this process to all processes reaches.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum SignalReach {
    /// Only its descendants.
    Descendants,
    /// Other processes of its user too.
    Others,
}

/// Makes this process the subreaper of its descendants, and confines its signals to them if the kernel can.
pub(super) fn become_supervisor() -> io::Result<SignalReach> {
    become_subreaper()?;
    Ok(if landlock::confine_signals() { SignalReach::Descendants } else { SignalReach::Others })
}

/// Kills all descendants and waits until none remains. SIGCHLD is blocked in this process.
///
/// If signals reach the descendants only, one signal kills all of them, also those that are just being created.
/// Otherwise they are searched for in /proc; processes that fork and exit constantly can evade the search.
///
/// # Errors
/// Some remain after ten seconds, or processes cannot be listed.
pub(super) fn kill_all(reach: SignalReach) -> io::Result<()> {
    let began = Instant::now();
    let ends =
        SignalFd::with_flags(&SigSet::from_iter([NixSignal::SIGCHLD]), SfdFlags::SFD_CLOEXEC | SfdFlags::SFD_NONBLOCK)?;
    loop {
        // The kernel decides whether any child remains, not the list from /proc.
        if reap_some()? == ReapOutcome::NoChildren {
            return Ok(());
        }
        if began.elapsed() > KILL_TIMEOUT {
            return Err(io::Error::new(io::ErrorKind::TimedOut, "processes of the step cannot be ended"));
        }
        match reach {
            SignalReach::Descendants => {
                // An error means that none is left to receive the signal.
                let _ = nix::sys::signal::kill(nix::unistd::Pid::from_raw(-1), NixSignal::SIGKILL);
            }
            SignalReach::Others => stop_all()?.into_iter().for_each(|pid| send_signal(pid, Signal::KILL)),
        }
        rustix::io::retry_on_intr(|| {
            rustix::event::poll(&mut [PollFd::new(&ends, PollFlags::IN)], Some(&SEARCH_INTERVAL))
        })?;
        read_signals(&ends)?;
    }
}

/// Stops all descendants, so that none creates another process while they are counted or killed one by one.
pub(super) fn stop_all() -> io::Result<BTreeSet<i32>> {
    let mut stopped = BTreeSet::new();
    for _ in 0..MAX_SEARCHES {
        let found = list_pids()?;
        let new: Vec<i32> = found.difference(&stopped).copied().collect();
        for pid in &new {
            send_signal(*pid, Signal::STOP);
        }
        let is_all = new.is_empty();
        // These processes ended before the signal arrived, and their ids may have been reused since.
        for strange in stopped.difference(&found) {
            send_signal(*strange, Signal::CONT);
        }
        stopped = found;
        if is_all {
            break;
        }
    }
    Ok(stopped)
}

/// The result of [`reap_some`].
#[derive(Debug, PartialEq, Eq)]
enum ReapOutcome {
    ChildrenRemain,
    NoChildren,
}

fn reap_some() -> io::Result<ReapOutcome> {
    for _ in 0..MAX_REAPED_AT_ONCE {
        match rustix::process::wait(WaitOptions::NOHANG) {
            Ok(Some(_)) | Err(rustix::io::Errno::INTR) => {}
            Ok(None) => return Ok(ReapOutcome::ChildrenRemain),
            Err(rustix::io::Errno::CHILD) => return Ok(ReapOutcome::NoChildren),
            Err(errno) => return Err(errno.into()),
        }
    }
    Ok(ReapOutcome::ChildrenRemain)
}

/// Reads the pending signals SIGCHLD and SIGTERM, and returns whether SIGTERM was among them. The kernel queues one of each;
/// a signal that arrives in the meantime is left for the next call, since there may always be another one.
pub(super) fn read_signals(signals: &SignalFd) -> io::Result<bool> {
    let mut is_terminated = false;
    for _ in 0..2 {
        let Some(signal) = signals.read_signal()? else { break };
        is_terminated |= signal.ssi_signo == libc::SIGTERM.cast_unsigned();
    }
    Ok(is_terminated)
}

/// Sends a signal. A process that has ended in the meantime is not an error.
fn send_signal(pid: i32, signal: Signal) {
    if let Some(pid) = Pid::from_raw(pid) {
        let _ = rustix::process::kill_process(pid, signal);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parses_parent_for_any_process_name() {
        assert_eq!(parse_parent("7 (a) b) S 5 7 7 0 -1"), Some(5));
        assert_eq!(parse_parent("7 (x"), None);
    }

    #[test]
    fn lists_descendants_only() {
        let mut child = sleeper();
        let found = list_pids().expect("/proc is there");
        assert!(found.contains(&child.id().cast_signed()) && !found.contains(&1));
        child.kill().expect("killed");
        child.wait().expect("waited for");
    }

    #[expect(clippy::disallowed_methods, reason = "a process to be found")]
    fn sleeper() -> std::process::Child {
        let null = std::process::Stdio::null;
        std::process::Command::new("sleep").arg("1000").stdout(null()).stderr(null()).spawn().expect("started")
    }
}
