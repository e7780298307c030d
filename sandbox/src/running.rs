//! An attempt under way, as the daemon holds it: its output, its reports, and how to end it.

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

/// An attempt. Dropping it kills it and waits until it is gone, for ten seconds at most.
#[derive(Debug)]
pub struct Running {
    /// What the command writes to its standard output; blocking, closed on exec.
    pub stdout: OwnedFd,
    /// What it writes to its standard error.
    pub stderr: OwnedFd,
    control: OwnedFd,
    /// To the command's process, where that has a socket of its own.
    orders: Option<OwnedFd>,
    /// The other ends of its streams, for a command behind another.
    streams: Option<[OwnedFd; 2]>,
    state: Mutex<State>,
    group: Option<Group>,
    held: HeldLimits,
    reaper: Arc<Reaper>,
}

/// Who ends what is left of an attempt when its first process has ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum EndedBy {
    /// The kernel: that process was PID 1.
    Kernel,
    /// The helper. Where it ends without a last word, nobody knows what is left.
    Helper,
}

#[derive(Debug)]
struct State {
    ended_by: EndedBy,
    helper: Option<Helper>,
    /// Whether the sandbox has said that it waits for its command.
    prepared: bool,
    /// Whether the last report has come.
    told: bool,
    /// Whether every process of the attempt is known to be gone.
    gone: bool,
    /// Whether PID 1 is there all the same, and waits for another command.
    serves_on: bool,
    /// Whether the command ran under Landlock: else it may have left what PID 1 cannot see.
    walled: bool,
    /// Whether we closed our side before we knew of PID 1: it never goes on then.
    cut_short: bool,
    /// PID 1 of the step, once the helper has made it.
    init: Option<OwnedFd>,
    /// Received while we looked for `init`.
    early: std::collections::VecDeque<Report>,
}

/// What an attempt reports. `Refused`, `NotStarted` and `Exited` are the last report: no other one
/// follows, and soon the control socket closes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Report {
    /// The set-up is done; the command starts now.
    Ready {
        /// What the kernel was made to enforce.
        enforcement: Enforcement,
    },
    /// A control that the policy demands cannot be had. Nothing ran.
    Refused {
        /// Which one.
        control: Control,
        /// What was tried and what the kernel says.
        message: String,
        /// How to mend it.
        hint: String,
    },
    /// The command could not be started.
    NotStarted {
        /// Whose fault that is.
        fault: StartFault,
        /// What happened.
        message: String,
    },
    /// The command has ended, and every other process of the attempt with it.
    Exited {
        /// How.
        status: WaitStatus,
        /// The limit for which we ended it.
        limit: Option<LimitKind>,
        /// What it used.
        resources: Resources,
        /// The processes that it left behind. They are gone too.
        leaked: Option<LeakedProcesses>,
    },
}

/// How a process ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum WaitStatus {
    /// By itself, with this status.
    Code(u8),
    /// By this signal.
    Signal(u8),
}

/// What [`Running::recv`] has for us.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Received {
    /// A report.
    Report(Report),
    /// Nothing yet: wait until the control descriptor is readable.
    WouldBlock,
    /// The helper has ended, and every process of the attempt is gone.
    Closed,
}

/// What a sandbox is watched by.
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

    /// Whether its command has ended and left nothing, so that PID 1 waits for another one.
    pub fn serves_on(&self) -> bool {
        let state = self.state();
        state.serves_on && state.walled
    }

    /// The same sandbox for another command, with new streams; `None` where it cannot be: then it ends.
    pub(crate) fn for_another(mut self, user: StepUser) -> Option<Self> {
        if !self.serves_on() || !self.group.as_mut().is_none_or(Group::counts_anew) {
            return None;
        }
        let ((stdout, their_stdout), (stderr, their_stderr)) = pipe().ok().zip(pipe().ok())?;
        if user.steps_down() {
            // So that it may open them again through `/dev/stdout` and `/dev/stderr`.
            let (uid, gid) = (Some(Uid::from_raw(user.uid())), Some(Gid::from_raw(user.gid())));
            rustix::fs::fchown(&their_stdout, uid, gid).ok()?;
            rustix::fs::fchown(&their_stderr, uid, gid).ok()?;
        }
        (self.stdout, self.stderr, self.streams) = (stdout, stderr, Some([their_stdout, their_stderr]));
        let state = self.state.get_mut().unwrap_or_else(PoisonError::into_inner);
        (state.serves_on, state.walled, state.gone, state.told) = (false, false, false, false);
        Some(self)
    }

    /// Gives the sandbox its command.
    pub(crate) fn claim(&mut self, claim: Claim) -> Result<(), NotClaimed> {
        // Ours close with the end of this: the command alone is to hold them.
        let streams = self.streams.take();
        let streams: Vec<_> = streams.iter().flatten().map(AsFd::as_fd).collect();
        let order = wire::Packed::new(&Order::Claim(Box::new(claim))).map_err(NotClaimed::NothingRuns)?;
        if let Some(orders) = &self.orders {
            // First to who needs it soonest.
            order.send(orders.as_fd(), &streams).map_err(NotClaimed::NothingRuns)?;
        }
        match (order.send(self.control.as_fd(), &[]), &self.orders) {
            (Ok(()), _) => Ok(()),
            (Err(error), None) => Err(NotClaimed::NothingRuns(error)),
            // Everybody is gone, or is going: that is read as of any other.
            (Err(error), Some(_)) if is_gone(&error) => Ok(()),
            (Err(error), Some(_)) => Err(NotClaimed::MayRun(error)),
        }
    }

    /// What its control group holds of the limits.
    pub(crate) fn held(&self) -> &HeldLimits {
        &self.held
    }

    /// A descriptor that tells the end of the helper; `None` where it has ended.
    pub(crate) fn end_fd(&self) -> io::Result<Option<OwnedFd>> {
        self.state().helper.as_ref().map(Helper::end_fd).transpose()
    }

    /// Whether it waits for its command; `None` where it is of no use any more.
    pub(crate) fn is_prepared(&self) -> Option<bool> {
        let mut state = self.state();
        match state.recv(self.control.as_fd()) {
            // Its PID 1 ends with it, a moment later, and has the socket too.
            Ok(Received::WouldBlock) if state.helper.as_ref().is_none_or(Helper::has_ended) => None,
            Ok(Received::WouldBlock) => Some(state.prepared),
            // Nothing is to be reported before there is a command.
            Ok(Received::Report(_) | Received::Closed) | Err(_) => None,
        }
    }

    /// Takes the next report, without waiting. Behind the end of the command it says
    /// [`Received::Closed`] at once, though the helper may still be there: so ask before you wait.
    ///
    /// # Errors
    /// The helper does not speak our protocol, or the system fails.
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

    /// Sends SIGTERM to every process of the attempt; before there is one, ends the set-up.
    ///
    /// # Errors
    /// The system refuses; a process that is gone already is no error.
    pub fn terminate(&self) -> io::Result<()> {
        let mut state = self.state();
        state.look_for_init(self.control.as_fd())?;
        match &state.init {
            Some(init) => signal(init, Signal::TERM),
            None => state.end_set_up(self.control.as_fd()),
        }
    }

    /// Sends SIGKILL to every process of the attempt. They are gone when
    /// [`recv`](Self::recv) says [`Received::Closed`].
    ///
    /// # Errors
    /// The system refuses; a process that is gone already is no error.
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
                    // It is said when PID 1 was waited for, or when it alone is left, which is ours: no
                    // process of the step can come any more.
                    self.gone = matches!(message, Message::Exited { .. });
                    self.serves_on = !self.told && matches!(message, Message::Exited { serves_on: true, .. });
                    // The first of the last words counts: PID 1 also tells of the end of a process that
                    // never became the command.
                    if !self.told {
                        self.told = !matches!(message, Message::Ready(_));
                        return report(message).map(Received::Report);
                    }
                }
                Ok(None) => return self.wait_for_the_end().and_then(|()| self.closed()),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(Received::WouldBlock),
                // The helper died with something of ours unread.
                Err(error) if error.kind() == io::ErrorKind::ConnectionReset => {}
                Err(error) => return Err(error),
            }
        }
    }

    /// What the end of the control socket means.
    fn closed(&self) -> io::Result<Received> {
        // The helper may have told of PID 1 between our look and our kill: nothing of the step ever ran.
        let has_run = self.init.is_some() && !self.cut_short;
        if self.ended_by == EndedBy::Helper && has_run && !self.told {
            return Err(io::Error::other("the sandbox helper was killed; processes of the step may be left"));
        }
        Ok(Received::Closed)
    }

    /// Reads on until the pidfd of PID 1 has come or nothing is left to read.
    fn look_for_init(&mut self, control: BorrowedFd<'_>) -> io::Result<()> {
        while self.init.is_none() {
            match self.recv(control)? {
                Received::Report(report) => self.early.push_back(report),
                Received::WouldBlock | Received::Closed => break,
            }
        }
        Ok(())
    }

    /// Ends the attempt in whatever stage it is. The order matters: the helper first sends the
    /// pidfd of PID 1 and then looks whether we are still there before it lets PID 1 go on. So
    /// after we have closed our side, either the pidfd is there to read, or PID 1 never goes on
    /// and the helper alone is to be killed. The pidfd may still come then: the helper had time to
    /// send it before our signal reached it.
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

    /// The helper ends after it has waited for PID 1. Where somebody killed the helper, PID 1
    /// is dying of that, and we wait for it ourselves.
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

/// With what its control group counted. A process that the kernel killed for memory makes it the
/// limit that ended the attempt: its result is no longer that of its program alone.
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

/// Why a sandbox has not got its command.
#[derive(Debug)]
pub(crate) enum NotClaimed {
    /// It cannot have got it, and another one can have it.
    NothingRuns(io::Error),
    /// A part of it has: it may have begun.
    MayRun(io::Error),
}

/// Whether the other side of a socket is gone.
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
            // Nothing is left to tell a caller: the helper is ours to reap, whatever happened. One
            // that cannot be killed is left to the kernel: it must not hold us too.
            drop(state.end_set_up(control));
            drop(state.wait_for_the_end());
        }
        self.reaper.take(state.helper.take(), self.group.take());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// An attempt without namespaces whose helper does nothing by itself: what it says is said by the test,
    /// on the other end of the control socket. It plays PID 1 too.
    fn attempt() -> (State, OwnedFd, OwnedFd) {
        let (ours, theirs) = wire::pair().expect("a pair");
        rustix::io::ioctl_fionbio(&ours, true).expect("set");
        (State::of(Helper::new(sleeper()).expect("watched"), EndedBy::Helper), ours, theirs)
    }

    #[expect(clippy::disallowed_methods, reason = "a process to be killed")]
    fn sleeper() -> std::process::Child {
        // One that a failing test leaves behind holds nobody's pipe open.
        let null = std::process::Stdio::null;
        std::process::Command::new("sleep").arg("1000").stdout(null()).stderr(null()).spawn().expect("started")
    }

    fn tell_of_init(state: &State, theirs: &OwnedFd) {
        let pidfd = state.helper.as_ref().expect("there").end_fd().expect("a descriptor");
        wire::send(theirs.as_fd(), &Message::Init, &[pidfd.as_fd()]).expect("sent");
    }

    fn is_doubted(mut state: State, ours: &OwnedFd, theirs: &OwnedFd) -> bool {
        // A process that another test has forked meanwhile may hold that end open too.
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

    /// PID 1 tells of the end of a process that never became the command, and the helper may tell of PID 1's.
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

    /// The helper was between its start and that word when we looked, and said it before it died.
    #[test]
    fn a_helper_that_tells_of_pid_1_while_we_kill_it_leaves_no_doubt() {
        let (mut state, ours, theirs) = attempt();
        state.end_set_up(ours.as_fd()).expect("killed");
        tell_of_init(&state, &theirs);
        // What keeps PID 1 from going on.
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
