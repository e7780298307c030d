//! Represents a running attempt in the daemon: its output, its reports, and the operations that end it.

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::FileExt as _;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use proctor_core::model::enforcement::{Control, Enforcement};
use proctor_core::model::leak::LeakedProcesses;
use proctor_core::model::outcome::{LimitKind, StartFault};
use proctor_core::model::trace::{AccessTrace, MAX_ENCODED_BYTES, NoTrace};
use proctor_core::model::withheld::WithheldPaths;
use proctor_core::record::evidence::Resources;
use rustix::fs::{Gid, Uid};
use rustix::net::Shutdown;
use rustix::pipe::PipeFlags;
use rustix::process::Signal;

use crate::cgroup::AttemptCgroup;
use crate::error::SandboxError;
use crate::host::StepUser;
use crate::reaper::Reaper;
use crate::resource_report::WaitStatus;
use crate::wait::{self, HelperProcess};
use crate::wire::{self, ClaimRequest, CommandMessage, EnforcedLimits, HelperMessage, ViewMessageReport};

/// An attempt. Dropping it kills it and waits for its end, for 15 seconds at most.
#[derive(Debug)]
pub struct RunningSandbox {
    /// The read end of the command's standard output; blocking, closed on exec.
    pub stdout: OwnedFd,
    /// The read end of the standard error.
    pub stderr: OwnedFd,
    control: OwnedFd,
    /// The socket to the command's process, if that process has its own socket.
    command_socket: Option<OwnedFd>,
    /// The write ends of the streams, if the sandbox is to serve another command.
    streams: Option<[OwnedFd; 2]>,
    attempt: Mutex<AttemptState>,
    group: Option<AttemptCgroup>,
    enforced_limits: EnforcedLimits,
    reaper: Arc<Reaper>,
}

/// The party that ends the remaining processes of an attempt after its first process has ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum CleanupOwner {
    /// The kernel: the first process was PID 1.
    Kernel,
    /// The helper. If it ends without a final report, processes may remain.
    Helper,
}

#[derive(Debug)]
struct AttemptState {
    cleanup_owner: CleanupOwner,
    helper: Option<HelperProcess>,
    /// `true` if the sandbox has reported that it waits for its command.
    prepared: bool,
    /// `true` if the final report has arrived.
    has_final_event: bool,
    /// `true` if every process of the attempt is known to have ended.
    has_no_processes: bool,
    /// `true` if PID 1 nevertheless remains and waits for another command.
    is_reusable: bool,
    /// `true` if the command ran under Landlock. Without it, the command may have left objects that PID 1 cannot see.
    has_landlock: bool,
    /// `true` if the daemon closed its side before it received PID 1's pidfd. PID 1 then never continues.
    closed_before_init: bool,
    /// The pidfd of the step's PID 1, once the helper has created that process.
    init: Option<OwnedFd>,
    /// `true` if the daemon has killed the attempt.
    is_killed: bool,
    /// The pidfd of the view's server, if there is one.
    view_server: Option<OwnedFd>,
    /// `true` if the command is to run on a view.
    wants_view: bool,
    /// The accesses of the command to the host, once the command has ended.
    view_trace: Option<ViewTrace>,
    /// The paths that the view withheld.
    withheld: Option<WithheldPaths>,
    /// Reports received while waiting for `init`.
    pending_events: std::collections::VecDeque<SandboxEvent>,
}

/// A report of an attempt. `Refused`, `NotStarted` and `Exited` are final: no other report follows, and the control
/// socket closes soon after.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum SandboxEvent {
    /// The set-up is done; the command starts now.
    Ready {
        /// The controls that the kernel enforces.
        enforcement: Enforcement,
    },
    /// A control that the policy demands is not available. The command did not run.
    Refused {
        /// The missing control.
        control: Control,
        /// The attempted action and the kernel's answer.
        message: String,
        /// How to fix the problem.
        hint: String,
    },
    /// The command could not be started.
    NotStarted {
        /// The cause: the step, the host or proctor itself.
        fault: StartFault,
        /// Description of what happened.
        message: String,
    },
    /// The command has ended, and so has every other process of the attempt.
    Exited {
        /// How the command ended.
        status: WaitStatus,
        /// The limit for which proctor ended the command.
        limit: Option<LimitKind>,
        /// The resources that the command used.
        resources: Resources,
        /// The processes that the command left behind. They have ended too.
        leaked: Option<LeakedProcesses>,
    },
}

/// The result of [`RunningSandbox::recv`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum EventPoll {
    /// A report.
    Event(SandboxEvent),
    /// No report yet: wait until the control descriptor is readable.
    WouldBlock,
    /// The attempt is over, and none of its processes remain.
    Closed,
}

/// The accesses of a command to the host, or the reason why they are not known.
pub type ViewTrace = Result<AccessTrace, NoTrace>;

/// The parts from which a [`RunningSandbox`] is made.
#[derive(Debug)]
pub(crate) struct RunningSandboxParts {
    pub(crate) helper: HelperProcess,
    pub(crate) control: OwnedFd,
    pub(crate) command_socket: Option<OwnedFd>,
    pub(crate) stdout: OwnedFd,
    pub(crate) stderr: OwnedFd,
    pub(crate) cleanup_owner: CleanupOwner,
    pub(crate) group: Option<AttemptCgroup>,
    pub(crate) enforced_limits: EnforcedLimits,
    /// `true` if the command is to run on a view.
    pub(crate) wants_view: bool,
    pub(crate) reaper: Arc<Reaper>,
}

impl RunningSandbox {
    pub(crate) fn new(watched: RunningSandboxParts) -> Result<Self, SandboxError> {
        let RunningSandboxParts {
            helper,
            control,
            command_socket: orders,
            stdout,
            stderr,
            cleanup_owner: ended_by,
            group,
            enforced_limits: held,
            wants_view,
            reaper,
        } = watched;
        rustix::io::ioctl_fionbio(&control, true).map_err(SandboxError::system("cannot set up the control socket"))?;
        let mut state = AttemptState::new(helper, ended_by);
        state.wants_view = wants_view;
        let state = Mutex::new(state);
        Ok(Self {
            stdout,
            stderr,
            control,
            command_socket: orders,
            streams: None,
            attempt: state,
            group,
            enforced_limits: held,
            reaper,
        })
    }

    /// Returns whether the command has ended and left nothing behind, so PID 1 waits for another one.
    pub fn is_reusable(&self) -> bool {
        let state = self.lock_attempt();
        state.is_reusable && state.has_landlock
    }

    /// Returns the same sandbox with new streams for another command; `None`, which ends it, if it cannot be reused.
    pub(crate) fn with_new_streams(mut self, user: StepUser) -> Option<Self> {
        if !self.is_reusable() || !self.group.as_mut().is_none_or(AttemptCgroup::reset_counters) {
            return None;
        }
        let ((stdout, their_stdout), (stderr, their_stderr)) = pipe().ok().zip(pipe().ok())?;
        if user.is_set_up_by_root() {
            // Allows the command to reopen the streams through `/dev/stdout` and `/dev/stderr`.
            let (uid, gid) = (Some(Uid::from_raw(user.uid())), Some(Gid::from_raw(user.gid())));
            rustix::fs::fchown(&their_stdout, uid, gid).ok()?;
            rustix::fs::fchown(&their_stderr, uid, gid).ok()?;
        }
        (self.stdout, self.stderr, self.streams) = (stdout, stderr, Some([their_stdout, their_stderr]));
        let state = self.attempt.get_mut().unwrap_or_else(PoisonError::into_inner);
        (state.is_reusable, state.has_landlock, state.has_no_processes, state.has_final_event) =
            (false, false, false, false);
        Some(self)
    }

    /// Sends the sandbox its command.
    pub(crate) fn send_claim(&mut self, claim: ClaimRequest) -> Result<(), ClaimError> {
        // These copies close when this function returns, so that only the command holds the streams.
        let streams = self.streams.take();
        let streams: Vec<_> = streams.iter().flatten().map(AsFd::as_fd).collect();
        let order =
            wire::EncodedDocument::new(&CommandMessage::Claim(Box::new(claim))).map_err(ClaimError::NotDelivered)?;
        if let Some(orders) = &self.command_socket {
            // The command's process gets the command first, since it needs the command soonest.
            order.send(orders.as_fd(), &streams).map_err(ClaimError::NotDelivered)?;
        }
        match (order.send(self.control.as_fd(), &[]), &self.command_socket) {
            (Ok(()), _) => Ok(()),
            (Err(error), None) => Err(ClaimError::NotDelivered(error)),
            // All processes have ended or are ending. The caller reads that from the control socket, as for any other
            // attempt.
            (Err(error), Some(_)) if is_peer_closed(&error) => Ok(()),
            (Err(error), Some(_)) => Err(ClaimError::PartlyDelivered(error)),
        }
    }

    /// Returns the limits that the control group enforces.
    pub(crate) fn enforced_limits(&self) -> &EnforcedLimits {
        &self.enforced_limits
    }

    /// Returns a descriptor that becomes readable when the helper ends; `None` if the helper has been reaped.
    pub(crate) fn exit_fd(&self) -> io::Result<Option<OwnedFd>> {
        self.lock_attempt().helper.as_ref().map(HelperProcess::exit_fd).transpose()
    }

    /// Returns whether the sandbox is ready for its command; `None` if it is no longer usable.
    pub(crate) fn is_prepared(&self) -> Option<bool> {
        let mut state = self.lock_attempt();
        match state.recv(self.control.as_fd()) {
            // PID 1 ends a moment after the helper, and still holds the socket open.
            Ok(EventPoll::WouldBlock) if state.helper.as_ref().is_none_or(HelperProcess::has_exited) => None,
            Ok(EventPoll::WouldBlock) => Some(state.prepared),
            // A sandbox without a command reports nothing.
            Ok(EventPoll::Event(_) | EventPoll::Closed) | Err(_) => None,
        }
    }

    /// Takes the next report, without waiting. After the exit of the command it returns [`EventPoll::Closed`] at once,
    /// although the helper may still be running; so call it before waiting on the descriptor.
    ///
    /// # Errors
    /// The helper violates the protocol, or a system call fails.
    pub fn recv(&self) -> io::Result<EventPoll> {
        let mut state = self.lock_attempt();
        let received = match state.pending_events.pop_front() {
            Some(report) => EventPoll::Event(report),
            None => state.recv(self.control.as_fd())?,
        };
        Ok(match (received, &self.group) {
            (EventPoll::Event(report), Some(group)) => EventPoll::Event(with_group_counters(report, group)),
            (other, _) => other,
        })
    }

    /// Takes the paths that the view withheld from the command and that it looked for; `None` if the view did not report
    /// them. Available after the final event.
    pub fn take_withheld_paths(&self) -> Option<WithheldPaths> {
        self.lock_attempt().withheld.take()
    }

    /// Takes the trace of what the command read of the host, or the reason for having none. Available after the final
    /// event, if the policy requested a view. If the view failed, the final event is
    /// [`NotStarted`](SandboxEvent::NotStarted), although the command ran: its own result does not count.
    pub fn take_view_trace(&self) -> Option<ViewTrace> {
        self.lock_attempt().view_trace.take()
    }

    /// Sends SIGTERM to every process of the attempt; aborts the set-up if there is no process yet.
    ///
    /// # Errors
    /// A system call fails; a process that has already ended is not an error.
    pub fn terminate(&self) -> io::Result<()> {
        let mut state = self.lock_attempt();
        state.receive_init_pidfd(self.control.as_fd())?;
        match &state.init {
            Some(init) => send_signal(init, Signal::TERM),
            None => state.abort_attempt(self.control.as_fd()),
        }
    }

    /// Sends SIGKILL to every process of the attempt. They have ended when [`recv`](Self::recv) returns
    /// [`EventPoll::Closed`].
    ///
    /// # Errors
    /// A system call fails; a process that has already ended is not an error.
    pub fn kill(&self) -> io::Result<()> {
        self.lock_attempt().abort_attempt(self.control.as_fd())
    }

    fn lock_attempt(&self) -> MutexGuard<'_, AttemptState> {
        self.attempt.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl AttemptState {
    fn new(helper: HelperProcess, ended_by: CleanupOwner) -> Self {
        Self {
            cleanup_owner: ended_by,
            helper: Some(helper),
            prepared: false,
            has_final_event: false,
            has_no_processes: false,
            is_reusable: false,
            has_landlock: false,
            closed_before_init: false,
            init: None,
            is_killed: false,
            view_server: None,
            wants_view: false,
            view_trace: None,
            withheld: None,
            pending_events: std::collections::VecDeque::new(),
        }
    }

    fn recv(&mut self, control: BorrowedFd<'_>) -> io::Result<EventPoll> {
        loop {
            if self.has_no_processes {
                return Ok(EventPoll::Closed);
            }
            match wire::recv(control) {
                Ok(Some((HelperMessage::Init, fds))) => self.init = fds.into_iter().next(),
                Ok(Some((HelperMessage::View, fds))) => self.view_server = fds.into_iter().next(),
                Ok(Some((HelperMessage::Prepared, _))) => self.prepared = true,
                Ok(Some((mut message, fds))) => {
                    if let HelperMessage::Ready(enforcement) = &message {
                        self.has_landlock = enforcement.is_enforced(Control::Landlock);
                    }
                    // `Exited` is sent after PID 1 was reaped, or when PID 1, which is proctor's own code, is the
                    // only process left. No process of the step can appear afterwards.
                    self.has_no_processes = matches!(message, HelperMessage::Exited { .. });
                    self.is_reusable =
                        !self.has_final_event && matches!(message, HelperMessage::Exited { serves_on: true, .. });
                    if !self.has_final_event
                        && let HelperMessage::Exited { view, .. } = &mut message
                    {
                        let report = view.take();
                        self.withheld = report.as_ref().and_then(|report| report.withheld.clone());
                        self.view_trace = self.wants_view.then(|| self.receive_trace(report, fds));
                        if let Some(Err(reason @ NoTrace::Failed { .. })) = &self.view_trace {
                            self.has_final_event = true;
                            let (fault, message) = (StartFault::Internal, reason.to_string());
                            return Ok(EventPoll::Event(SandboxEvent::NotStarted { fault, message }));
                        }
                    }
                    // Only the first final report counts: PID 1 also reports the exit of a process that never became
                    // the command.
                    if !self.has_final_event {
                        self.has_final_event = !matches!(message, HelperMessage::Ready(_));
                        return event_from_message(message).map(EventPoll::Event);
                    }
                }
                Ok(None) => return self.wait_for_exit().and_then(|()| self.closed_result()),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(EventPoll::WouldBlock),
                // The helper died before it read a message of the daemon's.
                Err(error) if error.kind() == io::ErrorKind::ConnectionReset => {}
                Err(error) => return Err(error),
            }
        }
    }

    /// Returns the trace that a message of the helper contains.
    fn receive_trace(&self, report: Option<ViewMessageReport>, fds: Vec<OwnedFd>) -> ViewTrace {
        match view_trace(report, fds) {
            // The server was killed together with the command.
            Err(NoTrace::Failed { .. }) if self.is_killed => {
                Err(NoTrace::NotDescribable { message: "the command was killed".to_owned() })
            }
            other => other,
        }
    }

    /// Interprets the end of the control socket.
    fn closed_result(&self) -> io::Result<EventPoll> {
        // The helper may have sent PID 1's pidfd between the daemon's read and its kill. PID 1 then never continued,
        // so no process of the step ran.
        let has_run = self.init.is_some() && !self.closed_before_init;
        if self.cleanup_owner == CleanupOwner::Helper && has_run && !self.has_final_event {
            return Err(io::Error::other("the sandbox helper was killed; processes of the step may still be running"));
        }
        Ok(EventPoll::Closed)
    }

    /// Reads messages until the pidfd of PID 1 has arrived or nothing is left to read.
    fn receive_init_pidfd(&mut self, control: BorrowedFd<'_>) -> io::Result<()> {
        while self.init.is_none() {
            match self.recv(control)? {
                EventPoll::Event(report) => self.pending_events.push_back(report),
                EventPoll::WouldBlock | EventPoll::Closed => break,
            }
        }
        Ok(())
    }

    /// Ends the attempt in any stage. The order matters: the helper first sends the pidfd of PID 1, then checks
    /// whether the daemon's side is still open, and only then lets PID 1 continue. So after the daemon has closed its
    /// side, either the pidfd can be read, or PID 1 never continues and only the helper must be killed. The pidfd may
    /// still arrive in the second case, if the helper sent it before the signal reached it.
    fn abort_attempt(&mut self, control: BorrowedFd<'_>) -> io::Result<()> {
        match rustix::net::shutdown(control, Shutdown::Write) {
            Ok(()) | Err(rustix::io::Errno::NOTCONN) => {}
            Err(errno) => return Err(errno.into()),
        }
        self.receive_init_pidfd(control)?;
        self.is_killed = true;
        match &self.init {
            Some(init) => send_signal(init, Signal::KILL)?,
            None => {
                self.closed_before_init = true;
                self.helper.as_mut().map_or(Ok(()), HelperProcess::kill)?;
            }
        }
        // A process that waits for an answer of the view dies only when the server has ended. The server comes last: the
        // command must not see its end.
        self.view_server.as_ref().map_or(Ok(()), |server| send_signal(server, Signal::KILL))
    }

    /// Waits for the helper, which ends after it has reaped PID 1. If the helper was killed, PID 1 dies as a
    /// consequence, and this waits for PID 1 as well.
    fn wait_for_exit(&mut self) -> io::Result<()> {
        if let Some(init) = &self.init {
            wait::wait_readable(init.as_fd(), wait::EXIT_TIMEOUT)?;
        }
        self.helper.as_mut().map_or(Ok(()), HelperProcess::wait_or_kill)?;
        // This process ends with the helper.
        if let Some(server) = &self.view_server {
            wait::wait_readable(server.as_fd(), wait::EXIT_TIMEOUT)?;
        }
        self.has_no_processes = true;
        Ok(())
    }
}

/// Decodes the report of a view. `fds` are the descriptors of the message.
fn view_trace(report: Option<ViewMessageReport>, fds: Vec<OwnedFd>) -> ViewTrace {
    match report {
        Some(ViewMessageReport { no_trace: Some(reason), .. }) => Err(reason),
        Some(ViewMessageReport { no_trace: None, .. }) => {
            let damaged = |message| NoTrace::NotDescribable { message };
            let file = fds.into_iter().next().ok_or_else(|| damaged("the trace did not arrive".to_owned()))?;
            let bytes = read_trace(&file.into()).map_err(|error| damaged(error.to_string()))?;
            AccessTrace::decode(&bytes).map_err(|error| damaged(error.to_string()))
        }
        None => Err(NoTrace::Unavailable { message: "this machine refuses namespaces".to_owned() }),
    }
}

/// Reads a file with a trace from its start, wherever the writer left its position.
fn read_trace(file: &File) -> io::Result<Vec<u8>> {
    let length = usize::try_from(file.metadata()?.len()).unwrap_or(usize::MAX);
    let mut bytes = vec![0; length.min(MAX_ENCODED_BYTES + 1)];
    file.read_exact_at(&mut bytes, 0)?;
    Ok(bytes)
}

fn event_from_message(message: HelperMessage) -> io::Result<SandboxEvent> {
    Ok(match message {
        HelperMessage::Ready(enforcement) => SandboxEvent::Ready { enforcement },
        HelperMessage::Refused { control, message, hint } => SandboxEvent::Refused { control, message, hint },
        HelperMessage::NotStarted { fault, message } => SandboxEvent::NotStarted { fault, message },
        HelperMessage::Exited {
            status,
            limit,
            alone: _,
            serves_on: _,
            leaked,
            scratch,
            view: _,
            user_ms,
            system_ms,
            max_rss_kib,
        } => {
            let limits_hit = limit.into_iter().chain(scratch.limits()).collect();
            let resources = Resources { user_ms, system_ms, max_rss_kib, memory_peak_kib: None, limits_hit };
            SandboxEvent::Exited { status, limit, resources, leaked }
        }
        HelperMessage::View
        | HelperMessage::Init
        | HelperMessage::Prepared
        | HelperMessage::Space { .. }
        | HelperMessage::ExitReported
        | HelperMessage::ReadyForReuse => {
            return Err(io::Error::other("the sandbox helper sent an unexpected answer"));
        }
    })
}

/// Adds the counters of the control group to the report. If the kernel killed a process for lack of memory, memory
/// becomes the limit that ended the attempt: the result then does not depend on the program alone.
fn with_group_counters(report: SandboxEvent, group: &AttemptCgroup) -> SandboxEvent {
    let SandboxEvent::Exited { status, mut limit, mut resources, leaked } = report else { return report };
    let usage = group.usage_without_cpu();
    resources.memory_peak_kib = usage.memory_peak.map(|bytes| bytes >> 10);
    if usage.oom_kills.is_some_and(|kills| kills > 0) {
        limit.get_or_insert(LimitKind::Memory);
    }
    if usage.pids_denied.is_some_and(|denied| denied > 0) {
        resources.limits_hit.insert(LimitKind::Pids);
    }
    resources.limits_hit.extend(limit);
    SandboxEvent::Exited { status, limit, resources, leaked }
}

/// The reason why a sandbox did not receive its command.
#[derive(Debug)]
pub(crate) enum ClaimError {
    /// No process received the command, so another sandbox can run it.
    NotDelivered(io::Error),
    /// One of the processes received the command, which may have started.
    PartlyDelivered(io::Error),
}

/// Returns whether the error means that the other side of a socket has closed.
pub(crate) fn is_peer_closed(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::BrokenPipe | io::ErrorKind::ConnectionReset)
}

fn send_signal(process: &OwnedFd, signal: Signal) -> io::Result<()> {
    match rustix::process::pidfd_send_signal(process, signal) {
        Ok(()) | Err(rustix::io::Errno::SRCH) => Ok(()),
        Err(errno) => Err(errno.into()),
    }
}

impl AsFd for RunningSandbox {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.control.as_fd()
    }
}

impl AsRawFd for RunningSandbox {
    fn as_raw_fd(&self) -> std::os::fd::RawFd {
        self.control.as_raw_fd()
    }
}

impl Drop for RunningSandbox {
    fn drop(&mut self) {
        let control = self.control.as_fd();
        let state = self.attempt.get_mut().unwrap_or_else(PoisonError::into_inner);
        if !state.has_no_processes {
            // There is no caller to report an error to, and the helper must be reaped in any case. A process that
            // cannot be killed is left to the kernel, so that it does not block the daemon.
            drop(state.abort_attempt(control));
            drop(state.wait_for_exit());
        }
        self.reaper.reap_later(state.helper.take(), self.group.take());
    }
}

pub(crate) fn pipe() -> Result<(OwnedFd, OwnedFd), SandboxError> {
    rustix::pipe::pipe_with(PipeFlags::CLOEXEC).map_err(SandboxError::system("cannot create a pipe"))
}

#[cfg(test)]
mod tests;
