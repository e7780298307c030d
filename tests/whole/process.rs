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
const PROCESS_TIMEOUT: Duration = Duration::from_secs(120);
/// Polling interval for conditions without a file descriptor.
const POLL_INTERVAL: Duration = Duration::from_millis(10);

/// A running process.
pub(crate) struct RunningProcess {
    child: Child,
    pidfd: OwnedFd,
    stdout: DrainedPipe<ChildStdout>,
    stderr: DrainedPipe<ChildStderr>,
    started: Instant,
    timeout: Duration,
    peak_kib: u64,
}

/// The result of a process.
#[derive(Debug)]
pub(crate) struct FinishedProcess {
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
struct DrainedPipe<R> {
    pipe: Option<R>,
    bytes: Vec<u8>,
}

impl<R: Read + AsFd> DrainedPipe<R> {
    fn fd(&self) -> Option<BorrowedFd<'_>> {
        self.pipe.as_ref().map(AsFd::as_fd)
    }

    /// Reads available bytes. The pipe must be readable; otherwise this blocks.
    fn read_available(&mut self) {
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

impl RunningProcess {
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
        let stdout = DrainedPipe { pipe: child.stdout.take(), bytes: Vec::new() };
        let stderr = DrainedPipe { pipe: child.stderr.take(), bytes: Vec::new() };
        Self { child, pidfd, stdout, stderr, started, timeout: PROCESS_TIMEOUT, peak_kib: 0 }
    }

    /// Starts a command whose input is a file.
    pub(crate) fn start_with_input_file(command: Command, input: &Path) -> Self {
        Self::start_with(command, File::open(input).expect("a file of the test").into())
    }

    /// Starts a command whose standard output is closed on the reading side.
    pub(crate) fn start_with_closed_stdout(command: Command) -> Self {
        let mut running = Self::start(command);
        running.stdout.pipe = None;
        running
    }

    /// Extends the time limit.
    pub(crate) fn with_extended_timeout(mut self, more: Duration) -> Self {
        self.timeout += more;
        self
    }

    /// Sends a signal to the process.
    pub(crate) fn signal(&self, signal: Signal) {
        pidfd_send_signal(&self.pidfd, signal).expect("a signal to our own child");
    }

    /// Drains the output until a process of a step has `word` in its command line, and returns its process id.
    pub(crate) fn wait_for_process(&mut self, word: &str) -> u32 {
        self.wait_for_other_process(word, 0)
    }

    /// Waits for such a process other than `seen`.
    pub(crate) fn wait_for_other_process(&mut self, word: &str, excluded_pid: u32) -> u32 {
        let mut found = None;
        self.drain_until(|_| {
            found = machine::process_with_argument(word, excluded_pid);
            found.is_some()
        });
        found.unwrap_or_else(|| panic!("it ended before {word} ran\n{}\n{}", self.stdout.text(), self.stderr.text()))
    }

    /// Returns the process id.
    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Drains available output, and returns whether the process has exited and its pipes are closed.
    pub(crate) fn poll_finished(&mut self) -> bool {
        self.poll_once()
    }

    /// Drains the output until a condition holds or the process has exited.
    pub(crate) fn wait_until(&mut self, mut holds: impl FnMut() -> bool) {
        self.drain_until(|_| holds());
    }

    /// Sends a signal; if the process has exited it is a zombie, and the signal has no effect.
    pub(crate) fn signal_if_alive(&self, signal: Signal) {
        let _ = pidfd_send_signal(&self.pidfd, signal);
    }

    /// Drains the output until standard error contains `text`.
    pub(crate) fn wait_for_stderr(&mut self, text: &str) {
        self.drain_until(|running| running.stderr.text().contains(text));
        assert!(self.stderr.text().contains(text), "it ended without {text:?}:\n{}", self.stderr.text());
    }

    /// Drains the output until standard output contains `text`.
    pub(crate) fn wait_for_stdout(&mut self, text: &str) {
        self.drain_until(|running| running.stdout.text().contains(text));
        let (output, errors) = (self.stdout.text(), self.stderr.text());
        assert!(output.contains(text), "it ended without {text:?}:\n{output}\n{errors}");
    }

    /// Drains the output until standard output contains `text` this many times.
    pub(crate) fn wait_for_stdout_times(&mut self, text: &str, times: usize) {
        let is_there = |output: String| output.matches(text).count() >= times;
        self.drain_until(|running| is_there(running.stdout.text()));
        let output = self.stdout.text();
        assert!(is_there(output.clone()), "it ended without {times} times {text:?}:\n{output}");
    }

    /// Returns the standard error read so far.
    pub(crate) fn stderr_so_far(&self) -> String {
        self.stderr.text()
    }

    /// Returns the standard output read so far.
    pub(crate) fn stdout_so_far(&self) -> String {
        self.stdout.text()
    }

    /// Drains the output until the process has exited and its pipes are closed.
    pub(crate) fn wait(mut self) -> FinishedProcess {
        self.drain_until(|_| false);
        let status = self.child.wait().expect("our own child");
        FinishedProcess {
            code: status.code(),
            stdout: self.stdout.text(),
            stderr: self.stderr.text(),
            elapsed: self.started.elapsed(),
            peak_kib: self.peak_kib,
        }
    }

    /// Drains the output until `done`, or until the process has exited and both pipes are closed.
    fn drain_until(&mut self, mut done: impl FnMut(&Self) -> bool) {
        while !done(self) && !self.poll_once() {
            if self.started.elapsed() > self.timeout {
                self.child.kill().expect("our own child");
                panic!("still running after {:?}:\n{}\n{}", self.timeout, self.stdout.text(), self.stderr.text());
            }
        }
    }

    /// Waits briefly for output or the exit, and returns whether both are over.
    fn poll_once(&mut self) -> bool {
        self.peak_kib = self.peak_kib.max(peak_memory_kib(self.child.id()));
        let [out, err] = self.poll_pipes();
        if out {
            self.stdout.read_available();
        }
        if err {
            self.stderr.read_available();
        }
        self.stdout.pipe.is_none() && self.stderr.pipe.is_none() && self.has_exited()
    }

    fn poll_pipes(&self) -> [bool; 2] {
        let timeout = Timespec::try_from(POLL_INTERVAL).expect("a short time");
        let (out, err) = (self.stdout.fd(), self.stderr.fd());
        let pidfd = self.pidfd.as_fd();
        // The pidfd fills the place of a closed pipe, and its result is ignored.
        let fds = [out.unwrap_or(pidfd), err.unwrap_or(pidfd)];
        let mut polled = fds.map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::IN));
        poll(&mut polled, Some(&timeout)).expect("poll");
        [out.is_some() && !polled[0].revents().is_empty(), err.is_some() && !polled[1].revents().is_empty()]
    }

    fn has_exited(&self) -> bool {
        let mut polled = [PollFd::new(&self.pidfd, PollFlags::IN)];
        let timeout = Timespec::try_from(POLL_INTERVAL).expect("a short time");
        poll(&mut polled, Some(&timeout)).expect("poll") > 0
    }
}

/// Ends the process if a case fails early.
impl Drop for RunningProcess {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Returns the peak resident set of a process in KiB, or 0 if it has exited.
fn peak_memory_kib(pid: u32) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
    line.and_then(|line| line.split_whitespace().next()?.parse().ok()).unwrap_or(0)
}

impl FinishedProcess {
    /// Asserts the exit code, and shows all output if it differs.
    #[track_caller]
    pub(crate) fn exits(self, code: i32) -> Self {
        assert_eq!(self.code, Some(code), "exit code\n{self}");
        self
    }

    /// Asserts that standard output contains each of `words`.
    #[track_caller]
    pub(crate) fn prints(self, words: &[&str]) -> Self {
        let missing: Vec<_> = words.iter().filter(|word| !self.stdout.contains(**word)).collect();
        assert!(missing.is_empty(), "stdout lacks {missing:?}\n{self}");
        self
    }

    /// Asserts that standard error contains each of `words`.
    #[track_caller]
    pub(crate) fn prints_to_stderr(self, words: &[&str]) -> Self {
        let missing: Vec<_> = words.iter().filter(|word| !self.stderr.contains(**word)).collect();
        assert!(missing.is_empty(), "stderr lacks {missing:?}\n{self}");
        self
    }

    /// Returns the whole output.
    pub(crate) fn all_output(&self) -> String {
        format!("{}\n{}", self.stdout, self.stderr)
    }
}

impl std::fmt::Display for FinishedProcess {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { code, stdout, stderr, elapsed, .. } = self;
        let clip = |text: &str| text.chars().take(6_000).collect::<String>();
        write!(f, "code {code:?} after {elapsed:?}\n--- stdout\n{}\n--- stderr\n{}", clip(stdout), clip(stderr))
    }
}
