//! Runs a case through a daemon: `run`, `gate`, `doctor` and `exec` of the case use a daemon that starts with the
//! first of them. If the case starts `proctor` through a wrapper, the daemon is restarted through that wrapper
//! instead.

use std::fs::File;
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fd::OwnedFd;
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};

use crate::environment::TestEnvironment;

/// Time limit for the start and for the exit of a daemon.
const START_STOP_TIMEOUT: Duration = Duration::from_secs(60);
/// Polling interval during the start.
const POLL_INTERVAL: Duration = Duration::from_millis(5);

/// A daemon that serves a case.
pub(crate) struct CaseDaemon {
    wrapper: Vec<String>,
    child: Child,
    pidfd: OwnedFd,
}

impl TestEnvironment {
    /// Returns the arguments that select where the work happens: the state directory of the case, or the socket of
    /// its daemon, which is started through `wrapper`.
    pub(crate) fn state_or_socket_args(&self, wrapper: &[&str]) -> [PathBuf; 2] {
        let Some(served) = &self.case_daemon else { return ["--state-dir".into(), self.state_dir()] };
        let mut served = served.borrow_mut();
        if served.as_ref().is_none_or(|served| served.wrapper != wrapper) {
            // The previous daemon must exit first, because both use the same directory.
            *served = None;
            *served = Some(CaseDaemon::start_and_wait(self, wrapper));
        }
        ["--socket".into(), self.socket_path()]
    }
}

impl CaseDaemon {
    fn start_and_wait(env: &TestEnvironment, wrapper: &[&str]) -> Self {
        let mut command = env.daemon_command_through(wrapper, &env.socket_path(), &env.state_dir());
        let log = env.root().join("proctord.log");
        let file = File::options().create(true).append(true).open(&log).expect("a log of a test");
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(file);
        let mut served = Self::spawn(command, wrapper);
        let began = Instant::now();
        while UnixStream::connect(env.socket_path()).is_err() {
            let log_text = || std::fs::read_to_string(&log).unwrap_or_default();
            assert!(!served.exits_within(POLL_INTERVAL), "the daemon of the case ended at once\n{}", log_text());
            assert!(began.elapsed() < START_STOP_TIMEOUT, "the daemon of the case does not begin\n{}", log_text());
        }
        served
    }

    fn spawn(mut command: Command, wrapper: &[&str]) -> Self {
        let child = command.spawn().unwrap_or_else(|error| panic!("start {command:?}: {error}"));
        let pid = i32::try_from(child.id()).ok().and_then(Pid::from_raw).expect("a pid");
        let pidfd = pidfd_open(pid, PidfdFlags::empty()).expect("a pidfd of our own child");
        Self { wrapper: wrapper.iter().map(|word| (*word).to_owned()).collect(), child, pidfd }
    }

    fn exits_within(&mut self, time: Duration) -> bool {
        let time = Timespec::try_from(time).expect("a time");
        poll(&mut [PollFd::new(&self.pidfd, PollFlags::IN)], Some(&time)).is_ok_and(|ready| ready > 0)
    }
}

impl Drop for CaseDaemon {
    fn drop(&mut self) {
        // Ignore the error: the daemon may have exited already and be a zombie.
        let _ = pidfd_send_signal(&self.pidfd, Signal::TERM);
        if !self.exits_within(START_STOP_TIMEOUT) {
            let _ = self.child.kill();
        }
        let _ = self.child.wait();
    }
}
