//! Runs one process: drains its output while it runs, and waits for its end with a time limit.

use std::fs::File;
use std::io::Read;
use std::path::Path;
use std::process::{Child, ChildStderr, ChildStdout, Command, Stdio};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};

use crate::machine;

/// Time limit for a process; even on a busy machine no case takes longer.
const WATCHDOG: Duration = Duration::from_secs(120);
/// Polling interval for conditions without a file descriptor.
const LOOK_AGAIN: Duration = Duration::from_millis(10);

/// A running process.
pub(crate) struct Running {
    child: Child,
    pidfd: OwnedFd,
    stdout: Drain<ChildStdout>,
    stderr: Drain<ChildStderr>,
    started: Instant,
    watchdog: Duration,
    peak_kib: u64,
}

/// The result of a process.
#[derive(Debug)]
pub(crate) struct Finished {
    /// The exit code; `None` if a signal ended the process.
    pub(crate) code: Option<i32>,
    pub(crate) stdout: String,
    pub(crate) stderr: String,
    /// Time from spawn until the process had exited and both pipes were closed.
    pub(crate) elapsed: Duration,
    /// Largest observed resident set, in KiB.
    pub(crate) peak_kib: u64,
}

/// A pipe with the bytes read from it so far.
struct Drain<R> {
    pipe: Option<R>,
    bytes: Vec<u8>,
}

impl<R: Read + AsFd> Drain<R> {
    fn fd(&self) -> Option<BorrowedFd<'_>> {
        self.pipe.as_ref().map(AsFd::as_fd)
    }

    /// Reads available bytes. The pipe must be readable; otherwise this blocks.
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
    /// Starts a command with piped output and empty input.
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

    /// Starts a command whose input is a file.
    pub(crate) fn start_reading(command: Command, input: &Path) -> Self {
        Self::start_with(command, File::open(input).expect("a file of the test").into())
    }

    /// Starts a command whose standard output is closed on the reading side.
    pub(crate) fn start_unread(command: Command) -> Self {
        let mut running = Self::start(command);
        running.stdout.pipe = None;
        running
    }

    /// Extends the time limit.
    pub(crate) fn patient(mut self, more: Duration) -> Self {
        self.watchdog += more;
        self
    }

    /// Sends a signal to the process.
    pub(crate) fn signal(&self, signal: Signal) {
        pidfd_send_signal(&self.pidfd, signal).expect("a signal to our own child");
    }

    /// Drains the output until a process of a step has `word` in its command line, and returns its process id.
    pub(crate) fn wait_for_process(&mut self, word: &str) -> u32 {
        self.wait_for_process_but(word, 0)
    }

    /// Waits for such a process other than `seen`.
    pub(crate) fn wait_for_process_but(&mut self, word: &str, seen: u32) -> u32 {
        let mut found = None;
        self.pump(|_| {
            found = machine::process_called(word, seen);
            found.is_some()
        });
        found.unwrap_or_else(|| panic!("it ended before {word} ran\n{}\n{}", self.stdout.text(), self.stderr.text()))
    }

    /// Returns the process id.
    pub(crate) fn id(&self) -> u32 {
        self.child.id()
    }

    /// Drains available output, and returns whether the process has exited and its pipes are closed.
    pub(crate) fn is_over(&mut self) -> bool {
        self.step()
    }

    /// Drains the output until a condition holds or the process has exited.
    pub(crate) fn wait_until(&mut self, mut holds: impl FnMut() -> bool) {
        self.pump(|_| holds());
    }

    /// Sends a signal; if the process has exited it is a zombie, and the signal has no effect.
    pub(crate) fn signal_if_there(&self, signal: Signal) {
        let _ = pidfd_send_signal(&self.pidfd, signal);
    }

    /// Drains the output until standard error contains `text`.
    pub(crate) fn wait_for_message(&mut self, text: &str) {
        self.pump(|running| running.stderr.text().contains(text));
        assert!(self.stderr.text().contains(text), "it ended without {text:?}:\n{}", self.stderr.text());
    }

    /// Drains the output until standard output contains `text`.
    pub(crate) fn wait_for_output(&mut self, text: &str) {
        self.pump(|running| running.stdout.text().contains(text));
        let (said, errors) = (self.stdout.text(), self.stderr.text());
        assert!(said.contains(text), "it ended without {text:?}:\n{said}\n{errors}");
    }

    /// Returns the standard output read so far.
    pub(crate) fn output(&self) -> String {
        self.stdout.text()
    }

    /// Drains the output until the process has exited and its pipes are closed.
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

    /// Drains the output until `done`, or until the process has exited and both pipes are closed.
    fn pump(&mut self, mut done: impl FnMut(&Self) -> bool) {
        while !done(self) && !self.step() {
            if self.started.elapsed() > self.watchdog {
                self.child.kill().expect("our own child");
                panic!("still running after {:?}:\n{}\n{}", self.watchdog, self.stdout.text(), self.stderr.text());
            }
        }
    }

    /// Waits briefly for output or the exit, and returns whether both are over.
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
        // The pidfd fills the place of a closed pipe, and its result is ignored.
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

/// Ends the process if a case fails early.
impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Returns the peak resident set of a process in KiB, or 0 if it has exited.
fn peak_of(pid: u32) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
    line.and_then(|line| line.split_whitespace().next()?.parse().ok()).unwrap_or(0)
}

impl Finished {
    /// Asserts the exit code, and shows all output if it differs.
    #[track_caller]
    pub(crate) fn exits(self, code: i32) -> Self {
        assert_eq!(self.code, Some(code), "exit code\n{self}");
        self
    }

    /// Asserts that standard output contains each of `words`.
    #[track_caller]
    pub(crate) fn says(self, words: &[&str]) -> Self {
        let missing: Vec<_> = words.iter().filter(|word| !self.stdout.contains(**word)).collect();
        assert!(missing.is_empty(), "stdout lacks {missing:?}\n{self}");
        self
    }

    /// Asserts that standard error contains each of `words`.
    #[track_caller]
    pub(crate) fn complains(self, words: &[&str]) -> Self {
        let missing: Vec<_> = words.iter().filter(|word| !self.stderr.contains(**word)).collect();
        assert!(missing.is_empty(), "stderr lacks {missing:?}\n{self}");
        self
    }

    /// Returns the whole output.
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
