//! One sandbox as the helper sees it: set-up, PID 1, the command's claim, and then waiting: for
//! PID 1 to end, or for the daemon to be gone. The helper ends last.

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

/// What the stages after the helper's own need to know.
pub(super) struct Prepared<'a> {
    pub(super) request: &'a SandboxRequest,
    /// What holds so far.
    pub(super) enforcement: Enforcement,
    /// Where PID 1 writes itself into its control group.
    pub(super) tasks: Vec<OwnedFd>,
    /// What is looked at for memory that the limits of processes do not count.
    pub(super) memory: Rc<MemorySources>,
    /// Why PID 1 was not born in its control group, where it was to be.
    pub(super) unborn: Option<io::Error>,
    /// `/dev/null`, which is not to be had while `/dev` is made.
    pub(super) null: OwnedFd,
    /// What Landlock is going to enforce.
    pub(super) wall: Option<Wall>,
    /// Where the command comes from. Closed on exec.
    pub(super) orders: OwnedFd,
    /// To the helper. Closed on exec.
    pub(super) channel: OwnedFd,
    /// To the daemon, for what need not wait until the helper passes it on. Closed on exec.
    pub(super) daemon: Option<BorrowedFd<'a>>,
}

impl Prepared<'_> {
    /// Goes on without what may be left out and is tolerated to be missing.
    pub(super) fn tolerate(&mut self, op: &SetupOp, done: Result<(), Failure>) -> Result<(), Failure> {
        tolerate(&mut self.enforcement, self.request, op, done)
    }

    /// To the daemon, the shortest way.
    pub(super) fn send(&self, message: &Message) -> io::Result<()> {
        wire::send(self.daemon.unwrap_or(self.channel.as_fd()), message, &[])
    }

    /// Says the last word of this attempt while the helper is still at work for it.
    pub(super) fn fail(&self, failure: Failure) -> ! {
        // If the helper is gone, so is everybody who could be told.
        drop(wire::send(self.channel.as_fd(), &failure.into_message(), &[]));
        std::process::exit(1)
    }
}

/// Records what cannot be had, where the step can go on without it and the policy tolerates that.
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

/// Refuses what was asked for, does not hold and may not be missing. What is found missing at the
/// side of another operation stops nothing at that time: it does here, before anything runs.
pub(super) fn demand(enforcement: &Enforcement, request: &SandboxRequest) -> Result<(), Failure> {
    match enforcement.missing().find(|(control, _)| !request.frame.tolerated.contains(*control)) {
        None => Ok(()),
        Some((control, reason)) => {
            Err(refused(control, reason, or_with_less(enforcement.hint(control).unwrap_or(ASK_THE_DOCTOR))))
        }
    }
}

const ASK_THE_DOCTOR: &str = "run `proctor doctor`";

/// Lets PID 1 go on: first at all, then to its mounts.
pub(super) const GO: &[u8] = b"go";

/// Tells the helper that `/proc` and `/sys` are mounted.
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
    // It is the control socket, which is to be known by one descriptor.
    rustix::stdio::dup2_stdin(&null).map_err(internal("make /dev/null the standard input"))?;
    let mut outer = Outer::new(request, Joined { mount_ns, users, cache_owners });
    for op in request.ops.iter().filter(|op| op.stage() == Stage::Outer) {
        let done = outer.apply(op);
        outer.tolerate(op, done)?;
    }
    let enforcement = outer.enforcement();

    if request.user.steps_down() {
        command::own_streams(request.user).map_err(internal("give the step its streams"))?;
        // Or else what is looked up with the rights of another would be found with root's groups too.
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

/// In the control group where that can be; with the reason where it cannot, as under a filter that
/// refuses clone3.
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

/// The helper's ends of what it shares with PID 1 and the command's process.
struct Lines {
    /// What both of them say.
    words: OwnedFd,
    /// What the command's process is told.
    orders: OwnedFd,
}

fn supervise(control: BorrowedFd<'_>, lines: Lines, pid: i32, mut outer: Outer<'_>, null: &OwnedFd) -> io::Result<()> {
    // The namespaces that we joined may have cleared it.
    rustix::process::set_parent_process_death_signal(Some(Signal::KILL))?;
    let pid = Pid::from_raw(pid).ok_or_else(|| io::Error::other("fork returned no process"))?;
    let pidfd = rustix::process::pidfd_open(pid, PidfdFlags::empty())?;
    // The step's streams belong to it and to the daemon: our copies would keep them open.
    rustix::stdio::dup2_stdout(null)?;
    rustix::stdio::dup2_stderr(null)?;
    // First the pidfd, then a look whether the daemon is still there, then the word to go on:
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
                    // It may never come to be: then PID 1 says why.
                    drop(wire::send_document(others.orders, &Order::Tree(Box::new(tree)), &[]));
                }
            }
            Ok(Worked::UntilInitEnded) => {}
            // Where PID 1 has refused already, that was the first word, and the first one counts.
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
        // The daemon may be gone; then nobody needs the answer.
        drop(wire::send(control, &message, &[]));
    }
    Ok(())
}

/// PID 1 and the command's process, as [`Outer`] sees them.
struct Others<'a> {
    control: BorrowedFd<'a>,
    words: &'a mut Words,
    /// What the command's process is told.
    orders: BorrowedFd<'a>,
}

impl Beside for Others<'_> {
    fn root_is_read_only(&self) {
        self.words.tell(GO);
    }

    fn directories_are_there(&self) {
        // It may never come to be: then PID 1 says why.
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

/// How PID 1 says that the command has ended.
#[derive(Debug, Clone)]
pub(super) struct Ended {
    status: WaitStatus,
    limit: Option<LimitKind>,
    leaked: Option<LeakedProcesses>,
    scratch: Spent,
}

/// What PID 1 and the command's process have said.
pub(super) struct Words {
    pub(super) channel: Option<OwnedFd>,
    pub(super) exited: Option<Ended>,
    /// Whether a last word was passed on already.
    pub(super) spoken: bool,
    /// Whether something is to be done when all has ended, before the last word.
    pub(super) sealing: bool,
}

impl Words {
    /// Says the last word, and ends PID 1.
    fn refuse(&mut self, control: BorrowedFd<'_>, init: &OwnedFd, failure: Failure) -> io::Result<()> {
        self.spoken = true;
        end(init);
        wire::send(control, &failure.into_message(), &[])
    }

    /// PID 1 may have died already; its end is seen later.
    fn tell(&self, word: &[u8]) {
        if let Some(channel) = &self.channel {
            drop(wire::forward(channel.as_fd(), word));
        }
    }

    /// The command, to PID 1, which may have died already.
    fn hand_over(&self, go: &Go) {
        if let Some(channel) = &self.channel {
            drop(wire::send_document(channel.as_fd(), go, &[]));
        }
    }

    /// What comes next of PID 1 and the command's process; `None` when both have ended.
    fn next(&mut self) -> io::Result<Option<Vec<u8>>> {
        let Some(channel) = &self.channel else { return Ok(None) };
        let packet = match wire::recv_packet(channel.as_fd()) {
            // It ended with something of ours unread. That is told once, and before its last word.
            Err(error) if error.kind() == io::ErrorKind::ConnectionReset => wire::recv_packet(channel.as_fd())?,
            other => other?,
        };
        if packet.is_none() {
            self.channel = None;
        }
        Ok(packet.map(|(bytes, _)| bytes))
    }

    /// Passes one message on; `Exited` is kept back until everything is gone but PID 1, which is
    /// ours.
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
        // The daemon may be gone: the poll sees it.
        drop(wire::forward(control, bytes));
        Ok(())
    }

    pub(super) fn hear_all(&mut self, control: BorrowedFd<'_>) -> io::Result<()> {
        while self.channel.is_some() {
            self.hear(control)?;
        }
        Ok(())
    }

    /// What is left to be said once PID 1 has ended so.
    pub(super) fn last(&self, init: WaitStatus) -> io::Result<Option<Message>> {
        let Ended { status, limit, leaked, scratch } = match (self.exited.clone(), self.spoken, init) {
            // PID 1 reports the end of a process that never became the command.
            (_, true, _) => return Ok(None),
            (Some(exited), ..) => exited,
            // Killed, by the daemon or by the kernel for want of memory: the command with it.
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

/// Waits until PID 1 has ended, and serves the claim when it comes. The daemon's end of the
/// control socket closes when the daemon dies, or when it wants the end: then PID 1 is killed.
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

/// Which command the helper waits for.
enum Serving<'a> {
    /// The first one.
    First(Box<Outer<'a>>, OwnedFd),
    /// Another one, as far as PID 1 goes on.
    Again(Again),
    /// None any more.
    Nobody,
}

/// What is there for a command behind another: all of it is in its place.
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

/// Does what the command needs, and hands it over. What cannot be done is the attempt's end.
fn serve_claim<'a>(
    control: BorrowedFd<'_>,
    init: &OwnedFd,
    words: &mut Words,
    mut outer: Outer<'a>,
    orders: OwnedFd,
) -> io::Result<(Serving<'a>, Option<Copied>)> {
    // The command's process has it too, and gets ready while its tree is put in place. The other side
    // has closed: the next look sees that.
    let Some(claim) = wire::recv_claim(control)? else { return Ok((Serving::Nobody, None)) };
    match outer.claim(&claim) {
        Ok(Claimed { tree, news, copied }) => {
            // Either may have died of a refusal, which is heard next. The command's process waits
            // longer than PID 1, which only looks after its limits.
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
        // Where PID 1 has refused already, that was the first word, and the first one counts.
        Err(_) if words.spoken => end(init),
        Err(failure) => words.refuse(control, init, failure)?,
    }
    Ok((Serving::Nobody, None))
}

/// Whether the daemon has closed its side.
pub(crate) fn is_alone(control: BorrowedFd<'_>) -> io::Result<bool> {
    let mut fds = [PollFd::from_borrowed_fd(control, PollFlags::RDHUP)];
    let now = rustix::time::Timespec { tv_sec: 0, tv_nsec: 0 };
    Ok(rustix::io::retry_on_intr(|| rustix::event::poll(&mut fds, Some(&now)))? > 0)
}

pub(super) fn end(init: &OwnedFd) {
    // It may have ended by itself.
    let _ = rustix::process::pidfd_send_signal(init, Signal::KILL);
}

pub(super) fn reap(pid: Pid) -> io::Result<WaitStatus> {
    let waited = rustix::io::retry_on_intr(|| rustix::process::waitpid(Some(pid), WaitOptions::empty()))?;
    let (_, status) = waited.ok_or_else(|| io::Error::other("PID 1 cannot be waited for"))?;
    Ok(init::wait_status(status))
}
