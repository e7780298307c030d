//! Represents a running attempt in the daemon: its output, its reports, and the operations that end it.

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use proctor_core::enforcement::{Control, Enforcement};
use proctor_core::evidence::Resources;
use proctor_core::leak::LeakedProcesses;
use proctor_core::outcome::{LimitKind, StartFault};
use rustix::fs::{Gid, Uid};
use rustix::net::Shutdown;
use rustix::process::Signal;
use serde::{Deserialize, Serialize};

use crate::cgroup::Group;
use crate::error::SandboxError;
use crate::host::StepUser;
use crate::launcher::pipe;
use crate::reaper::Reaper;
use crate::wait::{self, Helper};
use crate::wire::{self, Claim, HeldLimits, Message, Order};

/// An attempt. Dropping it kills it and waits for its end, for 15 seconds at most.
#[derive(Debug)]
pub struct Running {
    /// The read end of the command's standard output; blocking, closed on exec.
    pub stdout: OwnedFd,
    /// The read end of its standard error.
    pub stderr: OwnedFd,
    control: OwnedFd,
    /// The socket to the command's process, if that process has its own socket.
    orders: Option<OwnedFd>,
    /// The write ends of the streams, if the sandbox is to serve another command.
    streams: Option<[OwnedFd; 2]>,
    state: Mutex<State>,
    group: Option<Group>,
    held: HeldLimits,
    reaper: Arc<Reaper>,
}

/// The party that ends the remaining processes of an attempt after its first process has ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum EndedBy {
    /// The kernel: the first process was PID 1.
    Kernel,
    /// The helper. If it ends without a final report, processes may remain.
    Helper,
}

#[derive(Debug)]
struct State {
    ended_by: EndedBy,
    helper: Option<Helper>,
    /// `true` if the sandbox has reported that it waits for its command.
    prepared: bool,
    /// `true` if the final report has arrived.
    told: bool,
    /// `true` if every process of the attempt is known to have ended.
    gone: bool,
    /// `true` if PID 1 nevertheless remains and waits for another command.
    serves_on: bool,
    /// `true` if the command ran under Landlock. Without it, the command may have left objects that PID 1 cannot see.
    walled: bool,
    /// `true` if the daemon closed its side before it received PID 1's pidfd. PID 1 then never continues.
    cut_short: bool,
    /// The pidfd of the step's PID 1, once the helper has created that process.
    init: Option<OwnedFd>,
    /// Reports received while waiting for `init`.
    early: std::collections::VecDeque<Report>,
}

/// A report of an attempt. `Refused`, `NotStarted` and `Exited` are final: no other report follows, and the control
/// socket closes soon after.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Report {
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
        /// How to fix it.
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
        /// How it ended.
        status: WaitStatus,
        /// The limit for which proctor ended it.
        limit: Option<LimitKind>,
        /// The resources it used.
        resources: Resources,
        /// The processes that it left behind. They have ended too.
        leaked: Option<LeakedProcesses>,
    },
}

/// How a process ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum WaitStatus {
    /// Exited with this status.
    Code(u8),
    /// Killed by this signal.
    Signal(u8),
}

/// The result of [`Running::recv`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Received {
    /// A report.
    Report(Report),
    /// No report yet: wait until the control descriptor is readable.
    WouldBlock,
    /// The attempt is over, and none of its processes remain.
    Closed,
}

/// The parts from which a [`Running`] is made.
#[derive(Debug)]
pub(crate) struct Watched {
    pub(crate) helper: Helper,
    pub(crate) control: OwnedFd,
    pub(crate) orders: Option<OwnedFd>,
    pub(crate) stdout: OwnedFd,
    pub(crate) stderr: OwnedFd,
    pub(crate) ended_by: EndedBy,
    pub(crate) group: Option<Group>,
    pub(crate) held: HeldLimits,
    pub(crate) reaper: Arc<Reaper>,
}

impl Running {
    pub(crate) fn new(watched: Watched) -> Result<Self, SandboxError> {
        let Watched { helper, control, orders, stdout, stderr, ended_by, group, held, reaper } = watched;
        rustix::io::ioctl_fionbio(&control, true).map_err(SandboxError::system("cannot set up the control socket"))?;
        let state = Mutex::new(State::of(helper, ended_by));
        Ok(Self { stdout, stderr, control, orders, streams: None, state, group, held, reaper })
    }

    /// Returns whether the command has ended and left nothing behind, so PID 1 waits for another one.
    pub fn serves_on(&self) -> bool {
        let state = self.state();
        state.serves_on && state.walled
    }

    /// Returns the same sandbox with new streams for another command; `None`, which ends it, if it cannot be reused.
    pub(crate) fn for_another(mut self, user: StepUser) -> Option<Self> {
        if !self.serves_on() || !self.group.as_mut().is_none_or(Group::counts_anew) {
            return None;
        }
        let ((stdout, their_stdout), (stderr, their_stderr)) = pipe().ok().zip(pipe().ok())?;
        if user.steps_down() {
            // So that the command may reopen them through `/dev/stdout` and `/dev/stderr`.
            let (uid, gid) = (Some(Uid::from_raw(user.uid())), Some(Gid::from_raw(user.gid())));
            rustix::fs::fchown(&their_stdout, uid, gid).ok()?;
            rustix::fs::fchown(&their_stderr, uid, gid).ok()?;
        }
        (self.stdout, self.stderr, self.streams) = (stdout, stderr, Some([their_stdout, their_stderr]));
        let state = self.state.get_mut().unwrap_or_else(PoisonError::into_inner);
        (state.serves_on, state.walled, state.gone, state.told) = (false, false, false, false);
        Some(self)
    }

    /// Sends the sandbox its command.
    pub(crate) fn claim(&mut self, claim: Claim) -> Result<(), NotClaimed> {
        // These copies close when this function returns, so that only the command holds the streams.
        let streams = self.streams.take();
        let streams: Vec<_> = streams.iter().flatten().map(AsFd::as_fd).collect();
        let order = wire::Packed::new(&Order::Claim(Box::new(claim))).map_err(NotClaimed::NothingRuns)?;
        if let Some(orders) = &self.orders {
            // The command's process first, since it needs the command soonest.
            order.send(orders.as_fd(), &streams).map_err(NotClaimed::NothingRuns)?;
        }
        match (order.send(self.control.as_fd(), &[]), &self.orders) {
            (Ok(()), _) => Ok(()),
            (Err(error), None) => Err(NotClaimed::NothingRuns(error)),
            // All processes have ended or are ending. The caller reads that from the control socket, as for any other
            // attempt.
            (Err(error), Some(_)) if is_gone(&error) => Ok(()),
            (Err(error), Some(_)) => Err(NotClaimed::MayRun(error)),
        }
    }

    /// Returns the limits that its control group enforces.
    pub(crate) fn held(&self) -> &HeldLimits {
        &self.held
    }

    /// Returns a descriptor that becomes readable when the helper ends; `None` if the helper has been reaped.
    pub(crate) fn end_fd(&self) -> io::Result<Option<OwnedFd>> {
        self.state().helper.as_ref().map(Helper::end_fd).transpose()
    }

    /// Returns whether the sandbox is ready for its command; `None` if it is no longer usable.
    pub(crate) fn is_prepared(&self) -> Option<bool> {
        let mut state = self.state();
        match state.recv(self.control.as_fd()) {
            // PID 1 ends a moment after the helper, and still holds the socket open.
            Ok(Received::WouldBlock) if state.helper.as_ref().is_none_or(Helper::has_ended) => None,
            Ok(Received::WouldBlock) => Some(state.prepared),
            // A sandbox without a command reports nothing.
            Ok(Received::Report(_) | Received::Closed) | Err(_) => None,
        }
    }

    /// Takes the next report, without waiting. After the exit of the command it returns [`Received::Closed`] at once,
    /// although the helper may still be running; so call it before waiting on the descriptor.
    ///
    /// # Errors
    /// The helper violates the protocol, or a system call fails.
    pub fn recv(&self) -> io::Result<Received> {
        let mut state = self.state();
        let received = match state.early.pop_front() {
            Some(report) => Received::Report(report),
            None => state.recv(self.control.as_fd())?,
        };
        Ok(match (received, &self.group) {
            (Received::Report(report), Some(group)) => Received::Report(counted(report, group)),
            (other, _) => other,
        })
    }

    /// Sends SIGTERM to every process of the attempt; aborts the set-up if there is no process yet.
    ///
    /// # Errors
    /// A system call fails; a process that has already ended is no error.
    pub fn terminate(&self) -> io::Result<()> {
        let mut state = self.state();
        state.look_for_init(self.control.as_fd())?;
        match &state.init {
            Some(init) => signal(init, Signal::TERM),
            None => state.end_set_up(self.control.as_fd()),
        }
    }

    /// Sends SIGKILL to every process of the attempt. They have ended when [`recv`](Self::recv) returns
    /// [`Received::Closed`].
    ///
    /// # Errors
    /// A system call fails; a process that has already ended is no error.
    pub fn kill(&self) -> io::Result<()> {
        self.state().end_set_up(self.control.as_fd())
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    fn of(helper: Helper, ended_by: EndedBy) -> Self {
        Self {
            ended_by,
            helper: Some(helper),
            prepared: false,
            told: false,
            gone: false,
            serves_on: false,
            walled: false,
            cut_short: false,
            init: None,
            early: std::collections::VecDeque::new(),
        }
    }

    fn recv(&mut self, control: BorrowedFd<'_>) -> io::Result<Received> {
        loop {
            if self.gone {
                return Ok(Received::Closed);
            }
            match wire::recv(control) {
                Ok(Some((Message::Init, fds))) => self.init = fds.into_iter().next(),
                Ok(Some((Message::Prepared, _))) => self.prepared = true,
                Ok(Some((message, _))) => {
                    if let Message::Ready(enforcement) = &message {
                        self.walled = enforcement.holds(Control::Landlock);
                    }
                    // `Exited` is sent after PID 1 was reaped, or when PID 1, which is proctor's own code, is the
                    // only process left. No process of the step can appear afterwards.
                    self.gone = matches!(message, Message::Exited { .. });
                    self.serves_on = !self.told && matches!(message, Message::Exited { serves_on: true, .. });
                    // Only the first final report counts: PID 1 also reports the exit of a process that never became
                    // the command.
                    if !self.told {
                        self.told = !matches!(message, Message::Ready(_));
                        return report(message).map(Received::Report);
                    }
                }
                Ok(None) => return self.wait_for_the_end().and_then(|()| self.closed()),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(Received::WouldBlock),
                // The helper died before it read a message of the daemon's.
                Err(error) if error.kind() == io::ErrorKind::ConnectionReset => {}
                Err(error) => return Err(error),
            }
        }
    }

    /// Interprets the end of the control socket.
    fn closed(&self) -> io::Result<Received> {
        // The helper may have sent PID 1's pidfd between the daemon's read and its kill. PID 1 then never continued,
        // so no process of the step ran.
        let has_run = self.init.is_some() && !self.cut_short;
        if self.ended_by == EndedBy::Helper && has_run && !self.told {
            return Err(io::Error::other("the sandbox helper was killed; processes of the step may be left"));
        }
        Ok(Received::Closed)
    }

    /// Reads messages until the pidfd of PID 1 has arrived or nothing is left to read.
    fn look_for_init(&mut self, control: BorrowedFd<'_>) -> io::Result<()> {
        while self.init.is_none() {
            match self.recv(control)? {
                Received::Report(report) => self.early.push_back(report),
                Received::WouldBlock | Received::Closed => break,
            }
        }
        Ok(())
    }

    /// Ends the attempt in any stage. The order matters: the helper first sends the pidfd of PID 1, then checks
    /// whether the daemon's side is still open, and only then lets PID 1 continue. So after the daemon has closed its
    /// side, either the pidfd can be read, or PID 1 never continues and only the helper must be killed. The pidfd may
    /// still arrive in the second case, if the helper sent it before the signal reached it.
    fn end_set_up(&mut self, control: BorrowedFd<'_>) -> io::Result<()> {
        match rustix::net::shutdown(control, Shutdown::Write) {
            Ok(()) | Err(rustix::io::Errno::NOTCONN) => {}
            Err(errno) => return Err(errno.into()),
        }
        self.look_for_init(control)?;
        match &self.init {
            Some(init) => signal(init, Signal::KILL),
            None => {
                self.cut_short = true;
                self.helper.as_mut().map_or(Ok(()), Helper::kill)
            }
        }
    }

    /// Waits for the helper, which ends after it has reaped PID 1. If the helper was killed, PID 1 dies as a
    /// consequence, and this waits for PID 1 as well.
    fn wait_for_the_end(&mut self) -> io::Result<()> {
        if let Some(init) = &self.init {
            wait::readable(init.as_fd(), wait::LAST_BREATH)?;
        }
        self.helper.as_mut().map_or(Ok(()), Helper::end)?;
        self.gone = true;
        Ok(())
    }
}

fn report(message: Message) -> io::Result<Report> {
    Ok(match message {
        Message::Ready(enforcement) => Report::Ready { enforcement },
        Message::Refused { control, message, hint } => Report::Refused { control, message, hint },
        Message::NotStarted { fault, message } => Report::NotStarted { fault, message },
        Message::Exited { status, limit, alone: _, serves_on: _, leaked, scratch, user_ms, system_ms, max_rss_kib } => {
            let limits_hit = limit.into_iter().chain(scratch.limits()).collect();
            let resources = Resources { user_ms, system_ms, max_rss_kib, memory_peak_kib: None, limits_hit };
            Report::Exited { status, limit, resources, leaked }
        }
        Message::Init | Message::Prepared | Message::Space { .. } | Message::Told | Message::ServesOn => {
            return Err(io::Error::other("the sandbox helper sent an unexpected answer"));
        }
    })
}

/// Adds the counters of the control group to the report. If the kernel killed a process for lack of memory, memory
/// becomes the limit that ended the attempt: the result then does not depend on the program alone.
fn counted(report: Report, group: &Group) -> Report {
    let Report::Exited { status, mut limit, mut resources, leaked } = report else { return report };
    let usage = group.bounded_usage();
    resources.memory_peak_kib = usage.memory_peak.map(|bytes| bytes >> 10);
    if usage.oom_kills.is_some_and(|kills| kills > 0) {
        limit.get_or_insert(LimitKind::Memory);
    }
    if usage.pids_denied.is_some_and(|denied| denied > 0) {
        resources.limits_hit.insert(LimitKind::Pids);
    }
    resources.limits_hit.extend(limit);
    Report::Exited { status, limit, resources, leaked }
}

/// Why a sandbox did not receive its command.
#[derive(Debug)]
pub(crate) enum NotClaimed {
    /// No process received the command, so another sandbox can run it.
    NothingRuns(io::Error),
    /// One of the processes received the command, which may have started.
    MayRun(io::Error),
}

/// Returns whether the error means that the other side of a socket has closed.
pub(crate) fn is_gone(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::BrokenPipe | io::ErrorKind::ConnectionReset)
}

fn signal(process: &OwnedFd, signal: Signal) -> io::Result<()> {
    match rustix::process::pidfd_send_signal(process, signal) {
        Ok(()) | Err(rustix::io::Errno::SRCH) => Ok(()),
        Err(errno) => Err(errno.into()),
    }
}

impl AsFd for Running {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.control.as_fd()
    }
}

impl AsRawFd for Running {
    fn as_raw_fd(&self) -> std::os::fd::RawFd {
        self.control.as_raw_fd()
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let control = self.control.as_fd();
        let state = self.state.get_mut().unwrap_or_else(PoisonError::into_inner);
        if !state.gone {
            // There is no caller to report an error to, and the helper must be reaped in any case. A process that
            // cannot be killed is left to the kernel, so that it does not block the daemon.
            drop(state.end_set_up(control));
            drop(state.wait_for_the_end());
        }
        self.reaper.take(state.helper.take(), self.group.take());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns an attempt without namespaces whose helper does nothing by itself: the test sends the messages on the
    /// other end of the control socket. The helper process also plays PID 1.
    fn attempt() -> (State, OwnedFd, OwnedFd) {
        let (ours, theirs) = wire::pair().expect("a pair");
        rustix::io::ioctl_fionbio(&ours, true).expect("set");
        (State::of(Helper::new(sleeper()).expect("watched"), EndedBy::Helper), ours, theirs)
    }

    #[expect(clippy::disallowed_methods, reason = "a process to be killed")]
    fn sleeper() -> std::process::Child {
        // A process left behind by a failing test must not hold an inherited pipe open.
        let null = std::process::Stdio::null;
        std::process::Command::new("sleep").arg("1000").stdout(null()).stderr(null()).spawn().expect("started")
    }

    fn tell_of_init(state: &State, theirs: &OwnedFd) {
        let pidfd = state.helper.as_ref().expect("there").end_fd().expect("a descriptor");
        wire::send(theirs.as_fd(), &Message::Init, &[pidfd.as_fd()]).expect("sent");
    }

    fn is_doubted(mut state: State, ours: &OwnedFd, theirs: &OwnedFd) -> bool {
        // A process forked by a concurrent test may hold that end open too.
        rustix::net::shutdown(theirs, Shutdown::Write).expect("shut down");
        let doubted = match state.recv(ours.as_fd()) {
            Ok(Received::Closed) => false,
            Err(error) if error.to_string().contains("may be left") => true,
            other => panic!("{other:?}"),
        };
        assert!(doubted || state.gone);
        doubted
    }

    fn exited(code: u8) -> Message {
        Message::Exited {
            status: WaitStatus::Code(code),
            limit: None,
            alone: true,
            serves_on: false,
            leaked: None,
            scratch: crate::space::Spent::default(),
            user_ms: 0,
            system_ms: 0,
            max_rss_kib: 0,
        }
    }

    /// PID 1 reports the exit of a process that never became the command, and the helper may report the exit of PID
    /// 1.
    #[test]
    fn the_first_of_the_last_words_counts() {
        let fault = StartFault::ProgramMissing;
        let missing = || Message::NotStarted { fault, message: "no such program".to_owned() };
        for (words, first) in [
            ([missing(), exited(1)], Report::NotStarted { fault, message: "no such program".to_owned() }),
            ([exited(0), missing()], report(exited(0)).expect("a report")),
            ([exited(0), exited(9)], report(exited(0)).expect("a report")),
        ] {
            let (mut state, ours, theirs) = attempt();
            words.iter().for_each(|word| wire::send(theirs.as_fd(), word, &[]).expect("sent"));
            assert_eq!(state.recv(ours.as_fd()).expect("heard"), Received::Report(first));
            assert_eq!(state.recv(ours.as_fd()).expect("heard"), Received::Closed, "the end, and no second word");
            state.end_set_up(ours.as_fd()).expect("killed");
        }
    }

    /// The helper had not yet sent PID 1's pidfd when the daemon looked, and sent it before it died.
    #[test]
    fn a_helper_that_tells_of_pid_1_while_we_kill_it_leaves_no_doubt() {
        let (mut state, ours, theirs) = attempt();
        state.end_set_up(ours.as_fd()).expect("killed");
        tell_of_init(&state, &theirs);
        // This check keeps PID 1 from continuing.
        assert!(crate::helper::is_alone(theirs.as_fd()).expect("a look"));
        assert!(!is_doubted(state, &ours, &theirs));
    }

    #[test]
    fn killing_again_raises_no_doubt() {
        let (mut state, ours, theirs) = attempt();
        state.end_set_up(ours.as_fd()).expect("killed");
        tell_of_init(&state, &theirs);
        state.end_set_up(ours.as_fd()).expect("killed");
        assert!(!is_doubted(state, &ours, &theirs));
    }

    #[test]
    fn a_helper_that_dies_after_it_told_of_pid_1_is_doubted() {
        let (mut state, ours, theirs) = attempt();
        tell_of_init(&state, &theirs);
        state.end_set_up(ours.as_fd()).expect("killed");
        assert!(is_doubted(state, &ours, &theirs));
    }
}
