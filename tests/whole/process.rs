//! One `proctor` process: its output drained while it runs, its end waited for with a bound.

use std::fs::File;
use std::io::Read;
use std::path::Path;
use std::process::{Child, ChildStderr, ChildStdout, Command, Stdio};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};

use crate::machine;

/// No run of a case takes longer on a machine that is merely busy.
const WATCHDOG: Duration = Duration::from_secs(120);
/// How often a condition that no descriptor announces is looked at again.
const LOOK_AGAIN: Duration = Duration::from_millis(10);

/// A process under way.
pub(crate) struct Running {
    child: Child,
    pidfd: OwnedFd,
    stdout: Drain<ChildStdout>,
    stderr: Drain<ChildStderr>,
    started: Instant,
    watchdog: Duration,
    peak_kib: u64,
}

/// What a process did.
#[derive(Debug)]
pub(crate) struct Finished {
    /// Its exit code; `None` where a signal ended it.
    pub(crate) code: Option<i32>,
    pub(crate) stdout: String,
    pub(crate) stderr: String,
    /// From spawn until it had ended and both its pipes were closed.
    pub(crate) elapsed: Duration,
    /// The largest resident set that was seen, in KiB.
    pub(crate) peak_kib: u64,
}

/// One pipe and what came out of it.
struct Drain<R> {
    pipe: Option<R>,
    bytes: Vec<u8>,
}

impl<R: Read + AsFd> Drain<R> {
    fn fd(&self) -> Option<BorrowedFd<'_>> {
        self.pipe.as_ref().map(AsFd::as_fd)
    }

    /// Takes what is there. The pipe must be readable, so that this does not block.
    fn take(&mut self) {
        let Some(pipe) = &mut self.pipe else { return };
        let mut chunk = [0; 64 << 10];
        match pipe.read(&mut chunk) {
            Ok(0) | Err(_) => self.pipe = None,
            Ok(count) => self.bytes.extend_from_slice(&chunk[..count]),
        }
    }

    fn text(&self) -> String {
        String::from_utf8_lossy(&self.bytes).into_owned()
    }
}

impl Running {
    /// Starts a command with its output on pipes and nothing on its input.
    pub(crate) fn start(command: Command) -> Self {
        Self::start_with(command, Stdio::null())
    }

    fn start_with(mut command: Command, input: Stdio) -> Self {
        let started = Instant::now();
        command.stdin(input).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().unwrap_or_else(|error| panic!("start {command:?}: {error}"));
        let pid = i32::try_from(child.id()).ok().and_then(Pid::from_raw).expect("a pid");
        let pidfd = pidfd_open(pid, PidfdFlags::empty()).expect("a pidfd of our own child");
        let stdout = Drain { pipe: child.stdout.take(), bytes: Vec::new() };
        let stderr = Drain { pipe: child.stderr.take(), bytes: Vec::new() };
        Self { child, pidfd, stdout, stderr, started, watchdog: WATCHDOG, peak_kib: 0 }
    }

    /// Starts a command that reads a file.
    pub(crate) fn start_reading(command: Command, input: &Path) -> Self {
        Self::start_with(command, File::open(input).expect("a file of the test").into())
    }

    /// Starts a command whose standard output nobody reads: its reader is gone from the start.
    pub(crate) fn start_unread(command: Command) -> Self {
        let mut running = Self::start(command);
        running.stdout.pipe = None;
        running
    }

    /// The same, given more time than what merely runs.
    pub(crate) fn patient(mut self, more: Duration) -> Self {
        self.watchdog += more;
        self
    }

    /// Sends it a signal.
    pub(crate) fn signal(&self, signal: Signal) {
        pidfd_send_signal(&self.pidfd, signal).expect("a signal to our own child");
    }

    /// Drains its output until a process of its steps has `word` in its command line; that
    /// process's id.
    pub(crate) fn wait_for_process(&mut self, word: &str) -> u32 {
        self.wait_for_process_but(word, 0)
    }

    /// The same for a process that is another than one that was seen before.
    pub(crate) fn wait_for_process_but(&mut self, word: &str, seen: u32) -> u32 {
        let mut found = None;
        self.pump(|_| {
            found = machine::process_called(word, seen);
            found.is_some()
        });
        found.unwrap_or_else(|| panic!("it ended before {word} ran\n{}\n{}", self.stdout.text(), self.stderr.text()))
    }

    /// Its process.
    pub(crate) fn id(&self) -> u32 {
        self.child.id()
    }

    /// Drains what is there of its output; whether it has ended and nothing holds its pipes.
    pub(crate) fn is_over(&mut self) -> bool {
        self.step()
    }

    /// Drains its output until something holds, or until it has ended.
    pub(crate) fn wait_until(&mut self, mut holds: impl FnMut() -> bool) {
        self.pump(|_| holds());
    }

    /// Sends it a signal; it may have ended by now, and then waits for us as a zombie.
    pub(crate) fn signal_if_there(&self, signal: Signal) {
        let _ = pidfd_send_signal(&self.pidfd, signal);
    }

    /// Drains its output until it has said `text` on standard error.
    pub(crate) fn wait_for_message(&mut self, text: &str) {
        self.pump(|running| running.stderr.text().contains(text));
        assert!(self.stderr.text().contains(text), "it ended without {text:?}:\n{}", self.stderr.text());
    }

    /// Drains its output until it has said `text` on standard output.
    pub(crate) fn wait_for_output(&mut self, text: &str) {
        self.pump(|running| running.stdout.text().contains(text));
        let (said, errors) = (self.stdout.text(), self.stderr.text());
        assert!(said.contains(text), "it ended without {text:?}:\n{said}\n{errors}");
    }

    /// Its standard output as far as it was drained.
    pub(crate) fn output(&self) -> String {
        self.stdout.text()
    }

    /// Drains its output until it has ended and nothing holds its pipes.
    pub(crate) fn wait(mut self) -> Finished {
        self.pump(|_| false);
        let status = self.child.wait().expect("our own child");
        Finished {
            code: status.code(),
            stdout: self.stdout.text(),
            stderr: self.stderr.text(),
            elapsed: self.started.elapsed(),
            peak_kib: self.peak_kib,
        }
    }

    /// Drains until `done`, or until the process has ended and both pipes are closed.
    fn pump(&mut self, mut done: impl FnMut(&Self) -> bool) {
        while !done(self) && !self.step() {
            if self.started.elapsed() > self.watchdog {
                self.child.kill().expect("our own child");
                panic!("still running after {:?}:\n{}\n{}", self.watchdog, self.stdout.text(), self.stderr.text());
            }
        }
    }

    /// Waits a moment for output or the end; whether all is over.
    fn step(&mut self) -> bool {
        self.peak_kib = self.peak_kib.max(peak_of(self.child.id()));
        let [out, err] = self.readable();
        if out {
            self.stdout.take();
        }
        if err {
            self.stderr.take();
        }
        self.stdout.pipe.is_none() && self.stderr.pipe.is_none() && self.has_ended()
    }

    fn readable(&self) -> [bool; 2] {
        let timeout = Timespec::try_from(LOOK_AGAIN).expect("a short time");
        let (out, err) = (self.stdout.fd(), self.stderr.fd());
        let pidfd = self.pidfd.as_fd();
        // A closed pipe is stood in for by the pidfd, and what poll says of it is not looked at.
        let fds = [out.unwrap_or(pidfd), err.unwrap_or(pidfd)];
        let mut polled = fds.map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::IN));
        poll(&mut polled, Some(&timeout)).expect("poll");
        [out.is_some() && !polled[0].revents().is_empty(), err.is_some() && !polled[1].revents().is_empty()]
    }

    fn has_ended(&self) -> bool {
        let mut polled = [PollFd::new(&self.pidfd, PollFlags::IN)];
        let timeout = Timespec::try_from(LOOK_AGAIN).expect("a short time");
        poll(&mut polled, Some(&timeout)).expect("poll") > 0
    }
}

/// A case that gives up must not leave its process behind.
impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The largest resident set of a process so far, in KiB; 0 where it has ended.
fn peak_of(pid: u32) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
    line.and_then(|line| line.split_whitespace().next()?.parse().ok()).unwrap_or(0)
}

impl Finished {
    /// Demands an exit code, and shows everything where it is another.
    #[track_caller]
    pub(crate) fn exits(self, code: i32) -> Self {
        assert_eq!(self.code, Some(code), "exit code\n{self}");
        self
    }

    /// Demands that standard output holds each of `words`.
    #[track_caller]
    pub(crate) fn says(self, words: &[&str]) -> Self {
        let missing: Vec<_> = words.iter().filter(|word| !self.stdout.contains(**word)).collect();
        assert!(missing.is_empty(), "stdout lacks {missing:?}\n{self}");
        self
    }

    /// Demands that standard error holds each of `words`.
    #[track_caller]
    pub(crate) fn complains(self, words: &[&str]) -> Self {
        let missing: Vec<_> = words.iter().filter(|word| !self.stderr.contains(**word)).collect();
        assert!(missing.is_empty(), "stderr lacks {missing:?}\n{self}");
        self
    }

    /// Everything that it printed.
    pub(crate) fn everything(&self) -> String {
        format!("{}\n{}", self.stdout, self.stderr)
    }
}

impl std::fmt::Display for Finished {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { code, stdout, stderr, elapsed, .. } = self;
        let clip = |text: &str| text.chars().take(6_000).collect::<String>();
        write!(f, "code {code:?} after {elapsed:?}\n--- stdout\n{}\n--- stderr\n{}", clip(stdout), clip(stderr))
    }
}
