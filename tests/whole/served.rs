//! The same case by way of a daemon: `run`, `gate`, `doctor` and `exec` of a case that is served ask one of
//! its own, which starts when the first of them does. Where `proctor` would be started by another
//! program, such as one that takes something from it, the daemon is, and starts anew for that.

use std::fs::File;
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fd::OwnedFd;
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};

use crate::environment::TestEnvironment;

/// How long a daemon of a case has to begin, and to end.
const PATIENCE: Duration = Duration::from_secs(60);
/// How often it is looked whether it has begun.
const LOOK_AGAIN: Duration = Duration::from_millis(5);

/// A daemon that serves a case.
pub(crate) struct Served {
    wrapper: Vec<String>,
    child: Child,
    pidfd: OwnedFd,
}

impl TestEnvironment {
    /// The words by which a command of `proctor` does its work: an engine of its own over our place,
    /// or the daemon of the case, which was started through `wrapper`.
    pub(crate) fn way(&self, wrapper: &[&str]) -> [PathBuf; 2] {
        let Some(served) = &self.served else { return ["--state-dir".into(), self.state()] };
        let mut served = served.borrow_mut();
        if served.as_ref().is_none_or(|served| served.wrapper != wrapper) {
            // One ends before the next begins: they have one place.
            *served = None;
            *served = Some(Served::start(self, wrapper));
        }
        ["--socket".into(), self.socket()]
    }
}

impl Served {
    fn start(env: &TestEnvironment, wrapper: &[&str]) -> Self {
        let mut command = env.daemon_through(wrapper, &env.socket(), &env.state());
        let log = env.root().join("proctord.log");
        let file = File::options().create(true).append(true).open(&log).expect("a log of a test");
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(file);
        let mut served = Self::spawn(command, wrapper);
        let began = Instant::now();
        while UnixStream::connect(env.socket()).is_err() {
            let said = || std::fs::read_to_string(&log).unwrap_or_default();
            assert!(!served.has_ended_within(LOOK_AGAIN), "the daemon of the case ended at once\n{}", said());
            assert!(began.elapsed() < PATIENCE, "the daemon of the case does not begin\n{}", said());
        }
        served
    }

    fn spawn(mut command: Command, wrapper: &[&str]) -> Self {
        let child = command.spawn().unwrap_or_else(|error| panic!("start {command:?}: {error}"));
        let pid = i32::try_from(child.id()).ok().and_then(Pid::from_raw).expect("a pid");
        let pidfd = pidfd_open(pid, PidfdFlags::empty()).expect("a pidfd of our own child");
        Self { wrapper: wrapper.iter().map(|word| (*word).to_owned()).collect(), child, pidfd }
    }

    fn has_ended_within(&mut self, time: Duration) -> bool {
        let time = Timespec::try_from(time).expect("a time");
        poll(&mut [PollFd::new(&self.pidfd, PollFlags::IN)], Some(&time)).is_ok_and(|ready| ready > 0)
    }
}

impl Drop for Served {
    fn drop(&mut self) {
        // It may have ended by now, and then waits for us as a zombie.
        let _ = pidfd_send_signal(&self.pidfd, Signal::TERM);
        if !self.has_ended_within(PATIENCE) {
            let _ = self.child.kill();
        }
        let _ = self.child.wait();
    }
}
