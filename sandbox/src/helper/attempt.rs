//! Runs one sandbox in the helper: sets it up, starts PID 1, prepares the tree for the command, and then waits for
//! PID 1 to end or for the daemon to close its side. The helper is the last process to end.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::rc::Rc;

use nix::sys::resource::{UsageWho, getrusage};
use nix::sys::time::TimeValLike;
use proctor_core::enforcement::Enforcement;
use proctor_core::leak::LeakedProcesses;
use proctor_core::outcome::LimitKind;
use rustix::event::{PollFd, PollFlags};
use rustix::process::{Pid, PidfdFlags, Signal, WaitOptions};

use super::command;
use super::copied::Copied;
use super::failure::{Failure, internal, refused};
use super::init;
use super::landlock::Wall;
use super::memory_sources::{MemoryGroup, MemorySources};
use super::outer::{Beside, Claimed, Joined, Outer, Worked};
use super::traces::Traces;
use crate::error::or_with_less;
use crate::running::WaitStatus;
use crate::setup::{SetupOp, Stage};
use crate::space::Spent;
use crate::sys::{self, Fork};
use crate::wire::{self, Entry, Go, Message, Order, SandboxRequest, Tree};

/// The state that the later stages, PID 1 and the command's process, need.
pub(super) struct Prepared<'a> {
    pub(super) request: &'a SandboxRequest,
    /// The controls enforced so far.
    pub(super) enforcement: Enforcement,
    /// The files through which PID 1 enters its control groups.
    pub(super) tasks: Vec<OwnedFd>,
    /// Sources for memory that the limits of processes do not count.
    pub(super) memory: Rc<MemorySources>,
    /// The error that kept PID 1 from being created inside its control group, if it should have been.
    pub(super) unborn: Option<io::Error>,
    /// `/dev/null`, opened early because it is not available while `/dev` is made.
    pub(super) null: OwnedFd,
    /// The Landlock ruleset to enforce.
    pub(super) wall: Option<Wall>,
    /// The socket from which the command is received. Closed on exec.
    pub(super) orders: OwnedFd,
    /// The socket to the helper. Closed on exec.
    pub(super) channel: OwnedFd,
    /// The socket to the daemon, for messages that the helper need not forward. Closed on exec.
    pub(super) daemon: Option<BorrowedFd<'a>>,
}

impl Prepared<'_> {
    /// Continues after a failed operation if it may be left out and its control may be missing.
    pub(super) fn tolerate(&mut self, op: &SetupOp, done: Result<(), Failure>) -> Result<(), Failure> {
        tolerate(&mut self.enforcement, self.request, op, done)
    }

    /// Sends a message to the daemon, directly if possible.
    pub(super) fn send(&self, message: &Message) -> io::Result<()> {
        wire::send(self.daemon.unwrap_or(self.channel.as_fd()), message, &[])
    }

    /// Sends the final report of this attempt, while the helper still works for it, and exits.
    pub(super) fn fail(&self, failure: Failure) -> ! {
        // If the helper has ended, the daemon cannot be reached either.
        drop(wire::send(self.channel.as_fd(), &failure.into_message(), &[]));
        std::process::exit(1)
    }
}

/// Records a control as missing if the step can continue without the operation and the policy tolerates that.
pub(super) fn tolerate(
    enforcement: &mut Enforcement,
    request: &SandboxRequest,
    op: &SetupOp,
    done: Result<(), Failure>,
) -> Result<(), Failure> {
    match done {
        Err(Failure::Refused { control, message, hint }) if op.may_be_left_out() => {
            if !request.frame.tolerated.contains(control) {
                return Err(refused(control, message, or_with_less(&hint)));
            }
            enforcement.not_enforced_unless(control, message, hint);
            Ok(())
        }
        other => other,
    }
}

/// Refuses the step if a requested control is not enforced and may not be missing. A failed operation can disable
/// another operation's control without stopping the set-up; this check stops it before anything runs.
pub(super) fn demand(enforcement: &Enforcement, request: &SandboxRequest) -> Result<(), Failure> {
    match enforcement.missing().find(|(control, _)| !request.frame.tolerated.contains(*control)) {
        None => Ok(()),
        Some((control, reason)) => {
            Err(refused(control, reason, or_with_less(enforcement.hint(control).unwrap_or(ASK_THE_DOCTOR))))
        }
    }
}

const ASK_THE_DOCTOR: &str = "run `proctor doctor`";

/// Lets PID 1 continue: with its operations, and later with its mounts.
pub(super) const GO: &[u8] = b"go";

/// Notifies the helper that `/proc` and `/sys` are mounted.
pub(super) const MOUNTED: &[u8] = b"mounted";

pub(super) fn serve(control: &mut OwnedFd, request: &SandboxRequest, mut fds: Vec<OwnedFd>) -> Result<(), Failure> {
    if fds.len() < 4 {
        return Err(Failure::internal(format_args!("{} descriptors instead of 4 came along", fds.len())));
    }
    let cache_owners = request.maps_caches.then(|| fds.remove(2));
    if fds.len() < 4 {
        return Err(Failure::internal("the descriptor of the owners of caches did not come along"));
    }
    let (our_orders, orders) = (fds.remove(3), fds.remove(2));
    let (users, mount_ns) = (fds.remove(1), fds.remove(0));
    // While devices can be opened.
    let null = open_null().map_err(internal("open /dev/null"))?;
    // Descriptor 0 is the control socket, of which only one descriptor may remain.
    rustix::stdio::dup2_stdin(&null).map_err(internal("make /dev/null the standard input"))?;
    let mut outer = Outer::new(request, Joined { mount_ns, users, cache_owners });
    for op in request.ops.iter().filter(|op| op.stage() == Stage::Outer) {
        let done = outer.apply(op);
        outer.tolerate(op, done)?;
    }
    let enforcement = outer.enforcement();

    if request.user.steps_down() {
        command::own_streams(request.user).map_err(internal("give the step its streams"))?;
        // Otherwise lookups with the rights of another user would also have root's groups.
        rustix::thread::set_thread_groups(&[]).map_err(internal("leave the groups of root"))?;
    }
    init::block_signals().map_err(internal("block signals"))?;
    let (ours, channel) = wire::pair().map_err(internal("make a socket pair"))?;
    let (forked, unborn) = fork(&request.entry, &fds).map_err(internal("start PID 1"))?;
    match forked {
        Fork::Child => {
            drop((ours, our_orders));
            drop(outer);
            let daemon = Some(control.as_fd());
            let group = MemoryGroup::taken(&request.entry, &mut fds);
            let memory = Rc::new(MemorySources { group, sockets: None });
            init::run(Prepared {
                request,
                enforcement,
                tasks: fds,
                memory,
                unborn,
                null,
                wall: None,
                orders,
                channel,
                daemon,
            })
        }
        Fork::Parent(pid) => {
            drop((channel, orders, fds));
            supervise(control.as_fd(), Lines { words: ours, orders: our_orders }, pid, outer, &null)
                .map_err(internal("watch over PID 1"))
        }
    }
}

/// Forks PID 1 inside its control group if possible; also returns the reason if not, such as a filter that refuses
/// clone3.
pub(super) fn fork(entry: &Entry, fds: &[OwnedFd]) -> io::Result<(Fork, Option<io::Error>)> {
    match (entry, fds) {
        (Entry::Group { born: true, .. }, [group, ..]) => match sys::fork_into(group.as_fd()) {
            Ok(forked) => Ok((forked, None)),
            Err(error) => Ok((sys::fork()?, Some(error))),
        },
        _ => Ok((sys::fork()?, None)),
    }
}

pub(super) fn open_null() -> io::Result<OwnedFd> {
    let flags = rustix::fs::OFlags::RDWR | rustix::fs::OFlags::CLOEXEC;
    Ok(rustix::fs::open("/dev/null", flags, rustix::fs::Mode::empty())?)
}

/// The helper's ends of the sockets that it shares with PID 1 and the command's process.
struct Lines {
    /// The messages of both.
    words: OwnedFd,
    /// The socket to the command's process.
    orders: OwnedFd,
}

fn supervise(control: BorrowedFd<'_>, lines: Lines, pid: i32, mut outer: Outer<'_>, null: &OwnedFd) -> io::Result<()> {
    // Joining the namespaces may have cleared the parent death signal.
    rustix::process::set_parent_process_death_signal(Some(Signal::KILL))?;
    let pid = Pid::from_raw(pid).ok_or_else(|| io::Error::other("fork returned no process"))?;
    let pidfd = rustix::process::pidfd_open(pid, PidfdFlags::empty())?;
    // The streams belong to the step and the daemon: the helper's copies would keep them open.
    rustix::stdio::dup2_stdout(null)?;
    rustix::stdio::dup2_stderr(null)?;
    // Send the pidfd first, then check whether the daemon's side is still open, and only then let PID 1 continue:
    // `Running::kill` relies on this order.
    wire::send(control, &Message::Init, &[pidfd.as_fd()])?;
    let mut words = Words { channel: Some(lines.words), exited: None, spoken: false, sealing: false };
    if is_alone(control)? {
        end(&pidfd);
    } else {
        words.tell(GO);
        let mut others = Others { control, words: &mut words, orders: lines.orders.as_fd() };
        match outer.work_beside(&mut others) {
            Ok(Worked::ToTheEnd) => {
                if let Some(tree) = outer.tell_of_tree() {
                    // The command's process may never be created, in which case PID 1 reports why.
                    drop(wire::send_document(others.orders, &Order::Tree(Box::new(tree)), &[]));
                }
            }
            Ok(Worked::UntilInitEnded) => {}
            // If PID 1 has already refused the step, its report was first, and the first one counts.
            Err(_) if words.spoken => end(&pidfd),
            Err(failure) => words.refuse(control, &pidfd, failure)?,
        }
    }
    let copied = wait(control, &pidfd, &mut words, outer, lines.orders)?;
    let status = reap(pid)?;
    words.hear_all(control)?;
    if let Some(message) = words.last(status)? {
        let message = match copied {
            Some(copied) => copied.concluded(message),
            None => message,
        };
        // If the daemon has ended, the answer is not needed.
        drop(wire::send(control, &message, &[]));
    }
    Ok(())
}

/// PID 1 and the command's process, for [`Outer`].
struct Others<'a> {
    control: BorrowedFd<'a>,
    words: &'a mut Words,
    /// The socket to the command's process.
    orders: BorrowedFd<'a>,
}

impl Beside for Others<'_> {
    fn root_is_read_only(&self) {
        self.words.tell(GO);
    }

    fn directories_are_there(&self) {
        // The command's process may never be created, in which case PID 1 reports why.
        drop(wire::send_document(self.orders, &Order::Go, &[]));
    }

    fn wait_until_mounted(&mut self) -> io::Result<Worked> {
        loop {
            match self.words.next()? {
                Some(bytes) if bytes == MOUNTED => return Ok(Worked::ToTheEnd),
                Some(bytes) => self.words.pass_on(self.control, &bytes)?,
                None => return Ok(Worked::UntilInitEnded),
            }
            if self.words.spoken {
                return Ok(Worked::UntilInitEnded);
            }
        }
    }
}

/// PID 1's report that the command has ended.
#[derive(Debug, Clone)]
pub(super) struct Ended {
    status: WaitStatus,
    limit: Option<LimitKind>,
    leaked: Option<LeakedProcesses>,
    scratch: Spent,
}

/// The messages received from PID 1 and the command's process.
pub(super) struct Words {
    pub(super) channel: Option<OwnedFd>,
    pub(super) exited: Option<Ended>,
    /// `true` if a final report was sent to the daemon.
    pub(super) spoken: bool,
    /// `true` if the helper has work to do after all processes have ended, before the final report.
    pub(super) sealing: bool,
}

impl Words {
    /// Sends the final report, and kills PID 1.
    fn refuse(&mut self, control: BorrowedFd<'_>, init: &OwnedFd, failure: Failure) -> io::Result<()> {
        self.spoken = true;
        end(init);
        wire::send(control, &failure.into_message(), &[])
    }

    /// Sends a packet to PID 1. PID 1 may have died already, which is noticed later.
    fn tell(&self, word: &[u8]) {
        if let Some(channel) = &self.channel {
            drop(wire::forward(channel.as_fd(), word));
        }
    }

    /// Sends the command to PID 1, which may have died already.
    fn hand_over(&self, go: &Go) {
        if let Some(channel) = &self.channel {
            drop(wire::send_document(channel.as_fd(), go, &[]));
        }
    }

    /// Receives the next packet of PID 1 or the command's process; `None` when both have closed the socket.
    fn next(&mut self) -> io::Result<Option<Vec<u8>>> {
        let Some(channel) = &self.channel else { return Ok(None) };
        let packet = match wire::recv_packet(channel.as_fd()) {
            // The peer ended with unread messages in its queue. The error is reported once, before its remaining
            // messages.
            Err(error) if error.kind() == io::ErrorKind::ConnectionReset => wire::recv_packet(channel.as_fd())?,
            other => other?,
        };
        if packet.is_none() {
            self.channel = None;
        }
        Ok(packet.map(|(bytes, _)| bytes))
    }

    /// Forwards one message. `Exited` is held back until all processes except PID 1, which is proctor's own, have
    /// ended.
    pub(super) fn hear(&mut self, control: BorrowedFd<'_>) -> io::Result<()> {
        match self.next()? {
            None => Ok(()),
            Some(bytes) if bytes == MOUNTED => Ok(()),
            Some(bytes) => self.pass_on(control, &bytes),
        }
    }

    fn pass_on(&mut self, control: BorrowedFd<'_>, bytes: &[u8]) -> io::Result<()> {
        match serde_json::from_slice(bytes)? {
            Message::Exited { alone: true, .. } if !self.spoken && !self.sealing => self.spoken = true,
            Message::Exited { status, limit, leaked, scratch, .. } => {
                self.exited = Some(Ended { status, limit, leaked, scratch });
                return Ok(());
            }
            Message::Told => {
                self.spoken = true;
                return Ok(());
            }
            Message::ServesOn => return Ok(()),
            Message::Refused { .. } | Message::NotStarted { .. } => self.spoken = true,
            Message::Prepared | Message::Ready(_) | Message::Init | Message::Space { .. } => {}
        }
        // The daemon may have ended, which the poll notices.
        drop(wire::forward(control, bytes));
        Ok(())
    }

    pub(super) fn hear_all(&mut self, control: BorrowedFd<'_>) -> io::Result<()> {
        while self.channel.is_some() {
            self.hear(control)?;
        }
        Ok(())
    }

    /// Returns the final report to send after PID 1 has ended with this status, if it was not sent yet.
    pub(super) fn last(&self, init: WaitStatus) -> io::Result<Option<Message>> {
        let Ended { status, limit, leaked, scratch } = match (self.exited.clone(), self.spoken, init) {
            // PID 1 reports the exit of a process that never became the command.
            (_, true, _) => return Ok(None),
            (Some(exited), ..) => exited,
            // PID 1 was killed, by the daemon or by the kernel for lack of memory, and the command with it.
            (None, false, WaitStatus::Signal(_)) => {
                Ended { status: init, limit: None, leaked: None, scratch: Spent::default() }
            }
            (None, false, WaitStatus::Code(code)) => {
                let failure = Failure::internal(format_args!("PID 1 of the step ended with {code} and without a word"));
                return Ok(Some(failure.into_message()));
            }
        };
        let usage = getrusage(UsageWho::RUSAGE_CHILDREN)?;
        Ok(Some(Message::Exited {
            status,
            limit,
            alone: true,
            serves_on: false,
            leaked,
            scratch,
            user_ms: usage.user_time().num_milliseconds().unsigned_abs(),
            system_ms: usage.system_time().num_milliseconds().unsigned_abs(),
            max_rss_kib: usage.max_rss().unsigned_abs(),
        }))
    }
}

/// Waits until PID 1 has ended, and serves commands when they arrive. The daemon's end of the control socket closes
/// when the daemon dies or cancels the attempt; then PID 1 is killed.
fn wait(
    control: BorrowedFd<'_>,
    init: &OwnedFd,
    words: &mut Words,
    outer: Outer<'_>,
    orders: OwnedFd,
) -> io::Result<Option<Copied>> {
    let (mut alone, mut serving, mut copied) = (false, Serving::First(Box::new(outer), orders), None);
    loop {
        let mut fds = vec![PollFd::new(init, PollFlags::IN)];
        fds.extend(words.channel.as_ref().map(|channel| PollFd::new(channel, PollFlags::IN)));
        if !alone {
            let is_asked = !matches!(serving, Serving::Nobody);
            let wanted = if is_asked { PollFlags::IN | PollFlags::RDHUP } else { PollFlags::RDHUP };
            fds.push(PollFd::from_borrowed_fd(control, wanted));
        }
        rustix::io::retry_on_intr(|| rustix::event::poll(&mut fds, None))?;
        let init_ended = !fds[0].revents().is_empty();
        let said = words.channel.is_some() && !fds[1].revents().is_empty();
        let asked = !alone && fds.last().is_some_and(|fd| fd.revents().contains(PollFlags::IN));
        if said {
            words.hear(control)?;
        }
        if init_ended {
            return Ok(copied);
        }
        if !alone && is_alone(control)? {
            alone = true;
            end(init);
        } else if asked {
            (serving, copied) = match serving {
                Serving::First(outer, orders) => serve_claim(control, init, words, *outer, orders)?,
                Serving::Again(again) => (again.serve(control, words)?, None),
                Serving::Nobody => (Serving::Nobody, copied),
            };
            words.sealing = copied.is_some();
        }
    }
}

/// The command that the helper waits for.
enum Serving<'a> {
    /// The first command.
    First(Box<Outer<'a>>, OwnedFd),
    /// Another command, if PID 1 continues.
    Again(Again),
    /// No further command.
    Nobody,
}

/// The state for a later command: everything is mounted already.
struct Again {
    orders: OwnedFd,
    tree: Tree,
    traces: Option<Traces>,
}

impl Again {
    fn serve(self, control: BorrowedFd<'_>, words: &Words) -> io::Result<Serving<'static>> {
        let Some(claim) = wire::recv_claim(control)? else { return Ok(Serving::Again(self)) };
        if claim.layers != self.tree.layers {
            return Err(io::Error::other("another command came with other layers than the tree is made of"));
        }
        drop(wire::send_document(self.orders.as_fd(), &Order::Tree(Box::new(self.tree.clone())), &[]));
        words.hand_over(&Go { claim, tree: self.tree.clone(), tells_the_end: true, traces: self.traces.clone() });
        Ok(Serving::Again(self))
    }
}

/// Prepares the tree for the command, and passes the command to PID 1. A failure ends the attempt.
fn serve_claim<'a>(
    control: BorrowedFd<'_>,
    init: &OwnedFd,
    words: &mut Words,
    mut outer: Outer<'a>,
    orders: OwnedFd,
) -> io::Result<(Serving<'a>, Option<Copied>)> {
    // The command's process has received the command too, and prepares itself while its tree is mounted. `None` means
    // that the daemon has closed its side, which the next check notices.
    let Some(claim) = wire::recv_claim(control)? else { return Ok((Serving::Nobody, None)) };
    match outer.claim(&claim) {
        Ok(Claimed { tree, news, copied }) => {
            // Either process may have died after a refusal, which is received next. The command's process comes
            // first: PID 1 needs the command only for its limits.
            if news {
                drop(wire::send_document(orders.as_fd(), &Order::Tree(Box::new(tree.clone())), &[]));
            }
            let traces = if claim.serves_on && !news { outer.traces() } else { None };
            let serving = match &traces {
                Some(_) => Serving::Again(Again { orders, tree: tree.clone(), traces: traces.clone() }),
                None => Serving::Nobody,
            };
            words.hand_over(&Go { claim, tree, tells_the_end: copied.is_none(), traces });
            return Ok((serving, copied));
        }
        // If PID 1 has already refused the step, its report was first, and the first one counts.
        Err(_) if words.spoken => end(init),
        Err(failure) => words.refuse(control, init, failure)?,
    }
    Ok((Serving::Nobody, None))
}

/// Returns whether the daemon has closed its side.
pub(crate) fn is_alone(control: BorrowedFd<'_>) -> io::Result<bool> {
    let mut fds = [PollFd::from_borrowed_fd(control, PollFlags::RDHUP)];
    let now = rustix::time::Timespec { tv_sec: 0, tv_nsec: 0 };
    Ok(rustix::io::retry_on_intr(|| rustix::event::poll(&mut fds, Some(&now)))? > 0)
}

pub(super) fn end(init: &OwnedFd) {
    // It may already have ended.
    let _ = rustix::process::pidfd_send_signal(init, Signal::KILL);
}

pub(super) fn reap(pid: Pid) -> io::Result<WaitStatus> {
    let waited = rustix::io::retry_on_intr(|| rustix::process::waitpid(Some(pid), WaitOptions::empty()))?;
    let (_, status) = waited.ok_or_else(|| io::Error::other("PID 1 cannot be waited for"))?;
    Ok(init::wait_status(status))
}
