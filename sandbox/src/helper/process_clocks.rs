//! Reports whether any process has run since an earlier moment, at the cost of one system call for each process.

use nix::sys::time::TimeSpec;
use nix::time::{ClockId, clock_getcpuclockid, clock_gettime};
use nix::unistd::Pid;

/// The CPU clocks of processes at one moment. The kernel advances the clock of a process by nanoseconds whenever one of
/// its threads runs.
#[derive(Debug)]
pub(super) struct ProcessClocks(Vec<(ClockId, TimeSpec)>);

impl ProcessClocks {
    /// Reads the clocks of all processes that `list` returns, by their ids in this PID namespace. Returns `None` if a
    /// process has ended or started in the meantime.
    pub(super) fn read(list: impl Fn() -> Option<Vec<String>>) -> Option<Self> {
        let pids = list()?;
        let clock = |pid: &String| {
            let clock = clock_getcpuclockid(Pid::from_raw(pid.parse().ok()?)).ok()?;
            Some((clock, clock_gettime(clock).ok()?))
        };
        let clocks = pids.iter().map(clock).collect::<Option<_>>()?;
        // A process that started after the first list and before the clock of its parent was read would never be
        // noticed, because the parent need not run again.
        (list()? == pids).then_some(Self(clocks))
    }

    /// Reports whether none of the processes has run or ended since. In that case there is also no new process, because
    /// one of these processes would have created it.
    pub(super) fn are_unchanged(&self) -> bool {
        !self.0.is_empty() && self.0.iter().all(|(clock, then)| clock_gettime(*clock).is_ok_and(|now| now == *then))
    }
}

#[cfg(test)]
mod tests {
    use std::io::{Read as _, Write as _};
    use std::process::{Command, Stdio};

    use super::*;

    #[test]
    #[expect(clippy::disallowed_methods, reason = "the test starts a process outside of a sandbox")]
    fn clocks_change_when_a_process_runs_or_ends() {
        let mut command = Command::new("cat");
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("cat starts");
        let (mut stdin, mut stdout) = (child.stdin.take().expect("piped"), child.stdout.take().expect("piped"));
        let pid = child.id().to_string();
        let list = || Some(vec![pid.clone()]);
        let mut echo = || {
            stdin.write_all(b"x").expect("written");
            stdout.read_exact(&mut [0]).expect("read");
        };
        echo();
        // The process returns to its read at some moment after it has answered.
        let clocks = loop {
            let clocks = ProcessClocks::read(list).expect("it runs");
            std::thread::yield_now();
            if clocks.are_unchanged() && clocks.are_unchanged() {
                break clocks;
            }
        };
        // The clock of a virtual processor can stand still for a moment.
        let has_run = (0..1_000).any(|_| {
            echo();
            !clocks.are_unchanged()
        });
        assert!(has_run, "it has run");
        let clocks = ProcessClocks::read(list).expect("it runs");
        child.kill().and_then(|()| child.wait()).expect("it ends");
        assert!(!clocks.are_unchanged(), "it has ended");
        assert!(ProcessClocks::read(list).is_none());
    }

    #[test]
    fn process_that_starts_while_clocks_are_read_is_noticed() {
        let own = std::process::id().to_string();
        let calls = std::cell::Cell::new(0);
        let list = || {
            calls.set(calls.get() + 1);
            Some(vec![own.clone(); calls.get()])
        };
        assert!(ProcessClocks::read(list).is_none());
    }

    #[test]
    fn empty_process_list_is_not_idle() {
        assert!(!ProcessClocks::read(|| Some(Vec::new())).expect("none has ended").are_unchanged());
    }
}
