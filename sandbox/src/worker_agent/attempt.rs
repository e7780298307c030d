//! Follows one command until all of its processes have ended: set-up, running, terminating, ending.

use std::os::fd::{AsFd as _, BorrowedFd};
use std::time::{Duration, Instant};

use proctor_core::model::enforcement::Enforcement;
use proctor_core::model::outcome::StartFault;
use proctor_core::model::plan::Leaks;
use proctor_core::record::evidence::Resources;
use rustix::event::{PollFd, PollFlags};

use super::stream_capture::StreamCapture;
use super::termination_signals::TerminationSignals;
use crate::agent::{AgentAttempt, AgentCommand};
use crate::running_sandbox::{EventPoll, RunningSandbox, SandboxEvent};

/// Timeout for the set-up of a sandbox.
const SETUP_TIMEOUT: Duration = Duration::from_secs(30);
/// Timeout for the kernel to end killed processes.
const KILL_TIMEOUT: Duration = Duration::from_secs(5);
/// Time to read the pipes after all processes of the command have ended.
const DRAIN_TIMEOUT: Duration = Duration::from_millis(50);

/// The output streams of a command.
#[derive(Debug)]
pub(super) struct Streams {
    pub(super) stdout: StreamCapture,
    pub(super) stderr: StreamCapture,
}

/// The phase of an attempt.
#[derive(Debug, Clone, Copy)]
enum Phase {
    /// The sandbox is being set up.
    SettingUp { until: Instant },
    /// The command runs.
    Running { until: Instant },
    /// All processes were sent SIGTERM; SIGKILL follows.
    Terminating { until: Instant },
    /// SIGKILL was sent, or the command has ended by itself: the kernel ends the other processes.
    Ending { until: Instant },
}

impl Phase {
    fn deadline(self) -> Instant {
        match self {
            Self::SettingUp { until }
            | Self::Running { until }
            | Self::Terminating { until }
            | Self::Ending { until } => until,
        }
    }

    fn ending() -> Self {
        Self::Ending { until: Instant::now() + KILL_TIMEOUT }
    }
}

/// An attempt of a command and its reports so far.
struct Supervision<'a> {
    running: &'a RunningSandbox,
    command: &'a AgentCommand,
    phase: Phase,
    started: Option<Instant>,
    attempt: AgentAttempt,
}

/// Returns the report of a command that did not start.
pub(super) fn not_started(fault: StartFault, reason: String) -> AgentAttempt {
    AgentAttempt {
        started: false,
        not_started: Some((fault, reason)),
        status: None,
        limit: None,
        timed_out: false,
        cancelled: false,
        duration_ms: 0,
        enforcement: Enforcement::default(),
        resources: Resources::default(),
        leaked: None,
        processes_ended: true,
        exhausted: Vec::new(),
    }
}

/// Follows `running` until it ends, and reads its output into `streams`.
pub(super) fn supervise(
    running: &RunningSandbox,
    command: &AgentCommand,
    streams: &mut Streams,
    signals: &TerminationSignals,
) -> AgentAttempt {
    let attempt =
        AgentAttempt { processes_ended: false, not_started: None, ..not_started(StartFault::Internal, String::new()) };
    let phase = Phase::SettingUp { until: Instant::now() + SETUP_TIMEOUT };
    let mut supervision = Supervision { running, command, phase, started: None, attempt };
    supervision.follow(streams, signals);
    let duration = supervision.started.map_or(Duration::ZERO, |started| started.elapsed());
    drain(running, streams);
    let mut attempt = supervision.attempt;
    attempt.duration_ms = u64::try_from(duration.as_millis()).unwrap_or(u64::MAX);
    let ended_by_itself =
        !attempt.timed_out && !attempt.cancelled && attempt.limit.is_none() && attempt.not_started.is_none();
    attempt.leaked = attempt.leaked.filter(|_| ended_by_itself && command.leaks != Leaks::Ignore);
    if ended_by_itself && !attempt.started {
        let reason = format!("the sandbox ended before the command began: {:?}", attempt.status);
        attempt.not_started = Some((StartFault::Internal, reason));
    }
    attempt
}

impl Supervision<'_> {
    fn follow(&mut self, streams: &mut Streams, signals: &TerminationSignals) {
        loop {
            match self.running.recv() {
                Ok(EventPoll::Event(event)) => {
                    self.handle_event(event);
                    continue;
                }
                Ok(EventPoll::Closed) => {
                    self.attempt.processes_ended = true;
                    return;
                }
                Ok(EventPoll::WouldBlock) => {}
                Err(error) => {
                    // Without the channel, the end of the processes cannot be detected.
                    let reason = format!("the sandbox's control channel failed: {error}");
                    self.attempt.not_started.get_or_insert((StartFault::Internal, reason));
                    let _ = self.running.kill();
                    return;
                }
            }
            let may_cancel =
                !self.attempt.timed_out && !self.attempt.cancelled && !matches!(self.phase, Phase::Ending { .. });
            if may_cancel && signals.is_pending() {
                self.attempt.cancelled = true;
                self.request_end();
            } else if Instant::now() >= self.phase.deadline() {
                if matches!(self.phase, Phase::Ending { .. }) {
                    return;
                }
                self.handle_deadline();
            } else {
                let signals = may_cancel.then_some(signals);
                wait(self.running, streams, signals, self.phase.deadline());
            }
        }
    }

    fn handle_event(&mut self, event: SandboxEvent) {
        match event {
            SandboxEvent::Ready { enforcement } => {
                let now = Instant::now();
                self.attempt.enforcement = enforcement;
                self.attempt.started = true;
                self.started = Some(now);
                if matches!(self.phase, Phase::SettingUp { .. }) {
                    self.phase = Phase::Running { until: now + Duration::from_millis(self.command.timeout_ms) };
                }
                return;
            }
            SandboxEvent::Refused { control, message, hint } => {
                let reason =
                    format!("the sandbox control `{}` cannot be enforced: {message}; {hint}", control.as_str());
                self.attempt.not_started.get_or_insert((StartFault::Sandbox, reason));
            }
            SandboxEvent::NotStarted { fault, message } => {
                // The sandbox was ready, but its program cannot be executed.
                self.attempt.started = false;
                self.attempt.not_started.get_or_insert((fault, message));
            }
            SandboxEvent::Exited { status, limit, resources, leaked } => {
                self.attempt.status = Some(status);
                self.attempt.limit = limit;
                self.attempt.resources = resources;
                self.attempt.leaked = leaked;
            }
        }
        self.phase = Phase::ending();
    }

    fn handle_deadline(&mut self) {
        match self.phase {
            Phase::SettingUp { .. } => {
                let reason = format!("the sandbox was not ready after {SETUP_TIMEOUT:?}");
                self.attempt.not_started = Some((StartFault::Sandbox, reason));
                self.kill();
            }
            Phase::Running { .. } => {
                self.attempt.timed_out = true;
                self.request_end();
            }
            Phase::Terminating { .. } | Phase::Ending { .. } => self.kill(),
        }
    }

    /// Asks the processes to end. A set-up ends at once.
    fn request_end(&mut self) {
        if matches!(self.phase, Phase::SettingUp { .. }) || self.running.terminate().is_err() {
            return self.kill();
        }
        self.phase = Phase::Terminating { until: Instant::now() + Duration::from_millis(self.command.grace_ms) };
    }

    fn kill(&mut self) {
        // If the signal cannot be sent, the processes do not end, which the report says.
        let _ = self.running.kill();
        self.phase = Phase::ending();
    }
}

/// Waits for a report, for output or for a signal until the deadline, and reads the output.
fn wait(running: &RunningSandbox, streams: &mut Streams, signals: Option<&TerminationSignals>, deadline: Instant) {
    let mut fds = vec![PollFd::from_borrowed_fd(running.as_fd(), PollFlags::IN)];
    fds.extend(signals.map(|signals| PollFd::from_borrowed_fd(signals.as_fd(), PollFlags::IN)));
    read_ready(running, streams, fds, deadline);
}

/// Reads the rest of the output. All processes of the command have ended, so the pipes normally close at once. If a
/// process outside has a copy of a descriptor, this ends after [`DRAIN_TIMEOUT`] with the bytes so far.
fn drain(running: &RunningSandbox, streams: &mut Streams) {
    let deadline = Instant::now() + DRAIN_TIMEOUT;
    while !(streams.stdout.is_closed() && streams.stderr.is_closed()) && Instant::now() < deadline {
        read_ready(running, streams, Vec::new(), deadline);
    }
}

/// Waits until one of `fds` or an output is ready, and reads each output that is ready once.
fn read_ready<'a>(running: &'a RunningSandbox, streams: &mut Streams, mut fds: Vec<PollFd<'a>>, deadline: Instant) {
    let others = fds.len();
    let Streams { stdout, stderr } = streams;
    let mut open: Vec<(BorrowedFd<'a>, &mut StreamCapture)> =
        vec![(running.stdout.as_fd(), stdout), (running.stderr.as_fd(), stderr)];
    open.retain(|(_, capture)| !capture.is_closed());
    fds.extend(open.iter().map(|(stream, _)| PollFd::from_borrowed_fd(*stream, PollFlags::IN)));
    let left = deadline.saturating_duration_since(Instant::now());
    // Rounded up, so that the deadline has passed afterwards.
    let timeout = rustix::time::Timespec::try_from(left + Duration::from_millis(1)).ok();
    if rustix::event::poll(&mut fds, timeout.as_ref()).is_err() {
        return;
    }
    for (fd, (stream, capture)) in fds[others..].iter().zip(open) {
        if !fd.revents().is_empty() {
            capture.read_from(stream);
        }
    }
}
