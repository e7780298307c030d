//! Runs one sandbox in the helper: sets it up, starts PID 1, prepares the tree for the command, and then waits for
//! PID 1 to end or for the daemon to close its side. The helper is the last process to end.

use std::fs;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::rc::Rc;

use nix::sys::resource::{UsageWho, getrusage};
use nix::sys::time::TimeValLike;
use proctor_core::model::leak::LeakedProcesses;
use proctor_core::model::outcome::LimitKind;
use proctor_core::model::trace::NoTrace;
use rustix::event::{PollFd, PollFlags};
use rustix::process::{Pid, PidfdFlags, Signal, WaitOptions};

use super::group_cpu_time::GroupCpuTime;
use super::memory_sources::{MemoryGroup, MemorySources};
use super::namespace_setup::{ClaimResult, NamespaceSetup, RunNamespaces, SandboxView, SetupPeers, SetupProgress};
use super::scratch_fingerprint::ScratchFingerprint;
use super::setup_failure::{SetupFailure, internal};
use super::tree_copy::TrackedCopy;
use super::view_process::ViewProcess;
use super::{command_process, init};
use crate::helper::init_state::{GO_MESSAGE, InitState, MOUNTED_MESSAGE};
use crate::resource_report::{ExhaustedSpace, WaitStatus};
use crate::setup::{SetupOp, SetupStage};
use crate::sys::{self, ForkResult};
use crate::wire::{
    self, CgroupEntry, CommandMessage, HelperMessage, InitInstructions, MountedTree, SandboxRequest, ViewMessageReport,
};

pub(super) fn run_sandbox(
    control: &mut OwnedFd,
    request: &SandboxRequest,
    mut fds: Vec<OwnedFd>,
) -> Result<(), SetupFailure> {
    if fds.len() < 4 {
        return Err(SetupFailure::internal(format_args!("{} descriptors were received instead of 4", fds.len())));
    }
    // Must run while devices can still be opened.
    let null = open_null().map_err(internal("open /dev/null"))?;
    let view = start_view(request, &null, control, &mut fds);
    let cache_owners = request.maps_caches.then(|| fds.remove(2));
    if fds.len() < 4 {
        return Err(SetupFailure::internal("the descriptor of the owners of caches was not received"));
    }
    let (our_orders, orders) = (fds.remove(3), fds.remove(2));
    let (users, mount_ns) = (fds.remove(1), fds.remove(0));
    // Descriptor 0 is the control socket, of which only one descriptor may remain.
    rustix::stdio::dup2_stdin(&null).map_err(internal("make /dev/null the standard input"))?;
    let mut outer = NamespaceSetup::new(request, RunNamespaces { mount_ns, users, cache_owners }, view);
    for op in request.ops.iter().filter(|op| op.stage() == SetupStage::Helper) {
        let done = outer.apply(op);
        outer.tolerate(op, done)?;
    }
    let enforcement = outer.enforcement();

    if request.user.is_set_up_by_root() {
        command_process::chown_streams(request.user).map_err(internal("connect the step's streams"))?;
        // Otherwise lookups with the rights of another user would also have root's groups.
        rustix::thread::set_thread_groups(&[]).map_err(internal("leave the groups of root"))?;
    }
    init::block_signals().map_err(internal("block signals"))?;
    let (ours, channel) = wire::socket_pair().map_err(internal("create a socket pair"))?;
    let (forked, unborn) = fork_init(&request.entry, &fds).map_err(internal("start PID 1"))?;
    match forked {
        ForkResult::Child => {
            drop((ours, our_orders));
            drop(outer);
            let daemon = Some(control.as_fd());
            let cpu_time = GroupCpuTime::from_fds(&request.entry, &mut fds);
            let group = MemoryGroup::from_fds(&request.entry, &mut fds);
            let memory = Rc::new(MemorySources { group, sockets: None, cpu_time });
            init::run(InitState {
                request,
                enforcement,
                tasks: fds,
                memory,
                cgroup_fork_error: unborn,
                null,
                ruleset: None,
                command_socket: orders,
                helper_socket: channel,
                daemon_socket: daemon,
            })
        }
        ForkResult::Parent(pid) => {
            drop((channel, orders, fds));
            supervise(control.as_fd(), HelperSockets { messages: ours, command_socket: our_orders }, pid, outer, &null)
                .map_err(internal("monitor PID 1"))
        }
    }
}

/// Starts the server of the view if the step is to run on one. Without it, the step runs without a view.
fn start_view(request: &SandboxRequest, null: &OwnedFd, control: &mut OwnedFd, fds: &mut [OwnedFd]) -> SandboxView {
    if !request.ops.contains(&SetupOp::StartView) {
        return SandboxView::None;
    }
    let inherited = fds.iter_mut().chain([control]).collect();
    // The helper will join another namespace, whose table of mounts can be older.
    let host_mounts = match request.frame.inputs {
        Some(_) => fs::read("/proc/self/mountinfo"),
        None => Ok(Vec::new()),
    };
    match host_mounts.and_then(|table| ViewProcess::start(request.user, null, inherited, table)) {
        Ok(process) => SandboxView::Starting(process),
        Err(error) => {
            SandboxView::Unavailable(NoTrace::Unavailable { message: format!("cannot start its server: {error}") })
        }
    }
}

/// Forks PID 1 inside its control group if possible; also returns the reason if not, such as a filter that refuses
/// clone3.
pub(super) fn fork_init(entry: &CgroupEntry, fds: &[OwnedFd]) -> io::Result<(ForkResult, Option<io::Error>)> {
    match (entry, fds) {
        (CgroupEntry::Group { born: true, .. }, [group, ..]) => match sys::fork_into(group.as_fd()) {
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
struct HelperSockets {
    /// The messages of both processes.
    messages: OwnedFd,
    /// The socket to the command's process.
    command_socket: OwnedFd,
}

fn supervise(
    control: BorrowedFd<'_>,
    sockets: HelperSockets,
    pid: i32,
    mut outer: NamespaceSetup<'_>,
    null: &OwnedFd,
) -> io::Result<()> {
    // Joining the namespaces may have cleared the parent death signal.
    rustix::process::set_parent_process_death_signal(Some(Signal::KILL))?;
    let pid = Pid::from_raw(pid).ok_or_else(|| io::Error::other("fork returned no process"))?;
    let pidfd = rustix::process::pidfd_open(pid, PidfdFlags::empty())?;
    // The streams belong to the step and the daemon: the helper's copies would keep them open.
    rustix::stdio::dup2_stdout(null)?;
    rustix::stdio::dup2_stderr(null)?;
    // Send the pidfd first, then check whether the daemon's side is still open, and only then let PID 1 continue:
    // `RunningSandbox::kill` relies on this order.
    if let Some(server) = outer.view_exit_fd() {
        wire::send(control, &HelperMessage::View, &[server])?;
    }
    wire::send(control, &HelperMessage::Init, &[pidfd.as_fd()])?;
    let mut relay = MessageRelay {
        socket: Some(sockets.messages),
        exited: None,
        lone_exit: None,
        has_sent_final: false,
        // The command may end before the helper has received it.
        must_finalize: outer.wants_view(),
    };
    if is_daemon_gone(control)? {
        kill_init(&pidfd);
    } else {
        relay.send_to_init(GO_MESSAGE);
        let mut others = PeerSockets { control, relay: &mut relay, command_socket: sockets.command_socket.as_fd() };
        match outer.run_concurrent_ops(&mut others) {
            Ok(SetupProgress::Complete) => {
                if let Some(tree) = outer.tree_message() {
                    // The command's process may never be created, in which case PID 1 reports why.
                    drop(wire::send_document(others.command_socket, &CommandMessage::Tree(Box::new(tree)), &[]));
                }
            }
            Ok(SetupProgress::InitEnded) => {}
            // If PID 1 has already refused the step, its report was first, and the first one counts.
            Err(_) if relay.has_sent_final => kill_init(&pidfd),
            Err(failure) => relay.refuse(control, &pidfd, failure)?,
        }
    }
    let mut view = outer.take_view();
    let copied = wait_for_init(control, &pidfd, &mut relay, outer, sockets.command_socket, &mut view)?;
    let status = reap_init(pid)?;
    relay.relay_all(control)?;
    if let Some(message) = relay.final_message(status)? {
        let message = match copied {
            Some(copied) => copied.finalize(message),
            None => message,
        };
        send_with_view_report(control, message, view);
    }
    Ok(())
}

/// Sends the final report with the report of the view.
fn send_with_view_report(control: BorrowedFd<'_>, message: HelperMessage, view: SandboxView) {
    let (message, trace) = with_view_report(message, view);
    let trace: Vec<_> = trace.iter().map(AsFd::as_fd).collect();
    // If the daemon has ended, the answer is not needed.
    drop(wire::send(control, &message, &trace));
}

/// Adds the report of the view to the report of the command. Returns a file with the trace, if there is one.
fn with_view_report(mut message: HelperMessage, ended: SandboxView) -> (HelperMessage, Option<OwnedFd>) {
    let HelperMessage::Exited { view, .. } = &mut message else { return (message, None) };
    let (report, trace) = match ended {
        SandboxView::None => return (message, None),
        SandboxView::Unavailable(reason) => (ViewMessageReport::missing(reason), None),
        // The server is the last process that uses the view, and nothing can change what it has recorded.
        SandboxView::Starting(process) | SandboxView::Mounted(process, _) | SandboxView::Serving(process) => {
            process.finish()
        }
    };
    *view = Some(report);
    (message, trace)
}

/// PID 1 and the command's process, for [`NamespaceSetup`].
struct PeerSockets<'a> {
    control: BorrowedFd<'a>,
    relay: &'a mut MessageRelay,
    /// The socket to the command's process.
    command_socket: BorrowedFd<'a>,
}

impl SetupPeers for PeerSockets<'_> {
    fn notify_root_read_only(&self) {
        self.relay.send_to_init(GO_MESSAGE);
    }

    fn notify_directories_ready(&self) {
        // The command's process may never be created, in which case PID 1 reports why.
        drop(wire::send_document(self.command_socket, &CommandMessage::Go, &[]));
    }

    fn wait_until_mounted(&mut self) -> io::Result<SetupProgress> {
        loop {
            match self.relay.recv_packet()? {
                Some(bytes) if bytes == MOUNTED_MESSAGE => return Ok(SetupProgress::Complete),
                Some(bytes) => self.relay.forward_packet(self.control, &bytes)?,
                None => return Ok(SetupProgress::InitEnded),
            }
            if self.relay.has_sent_final {
                return Ok(SetupProgress::InitEnded);
            }
        }
    }
}

/// PID 1's report that the command has ended.
#[derive(Debug, Clone)]
pub(super) struct ReportedExit {
    status: WaitStatus,
    limit: Option<LimitKind>,
    leaked: Option<LeakedProcesses>,
    scratch: ExhaustedSpace,
}

/// The messages received from PID 1 and the command's process.
pub(super) struct MessageRelay {
    pub(super) socket: Option<OwnedFd>,
    pub(super) exited: Option<ReportedExit>,
    /// PID 1's report that the command has ended and left no other process, if the helper has work to do.
    pub(super) lone_exit: Option<HelperMessage>,
    /// `true` if a final report was sent to the daemon.
    pub(super) has_sent_final: bool,
    /// `true` if the helper has work to do after all processes have ended, before the final report.
    pub(super) must_finalize: bool,
}

impl MessageRelay {
    /// Sends the final report, and kills PID 1.
    fn refuse(&mut self, control: BorrowedFd<'_>, init: &OwnedFd, failure: SetupFailure) -> io::Result<()> {
        self.has_sent_final = true;
        kill_init(init);
        wire::send(control, &failure.into_message(), &[])
    }

    /// Sends a packet to PID 1. PID 1 may have died already, which is noticed later.
    fn send_to_init(&self, word: &[u8]) {
        if let Some(channel) = &self.socket {
            drop(wire::forward(channel.as_fd(), word));
        }
    }

    /// Sends the command to PID 1, which may have died already.
    fn send_instructions(&self, go: &InitInstructions) {
        if let Some(channel) = &self.socket {
            drop(wire::send_document(channel.as_fd(), go, &[]));
        }
    }

    /// Receives the next packet of PID 1 or the command's process; `None` when both have closed the socket.
    fn recv_packet(&mut self) -> io::Result<Option<Vec<u8>>> {
        let Some(channel) = &self.socket else { return Ok(None) };
        let packet = match wire::recv_packet(channel.as_fd()) {
            // The peer ended with unread messages in its queue. The error is reported once, before its remaining
            // messages.
            Err(error) if error.kind() == io::ErrorKind::ConnectionReset => wire::recv_packet(channel.as_fd())?,
            other => other?,
        };
        if packet.is_none() {
            self.socket = None;
        }
        Ok(packet.map(|(bytes, _)| bytes))
    }

    /// Forwards one message. `Exited` is held back until all processes except PID 1, which is proctor's own, have
    /// ended.
    pub(super) fn relay_next(&mut self, control: BorrowedFd<'_>) -> io::Result<()> {
        match self.recv_packet()? {
            None => Ok(()),
            Some(bytes) if bytes == MOUNTED_MESSAGE => Ok(()),
            Some(bytes) => self.forward_packet(control, &bytes),
        }
    }

    fn forward_packet(&mut self, control: BorrowedFd<'_>, bytes: &[u8]) -> io::Result<()> {
        let message = serde_json::from_slice(bytes)?;
        match message {
            HelperMessage::Exited { alone: true, .. } if !self.has_sent_final && !self.must_finalize => {
                self.has_sent_final = true;
            }
            HelperMessage::Exited { status, limit, alone, ref leaked, scratch, .. } => {
                self.exited = Some(ReportedExit { status, limit, leaked: leaked.clone(), scratch });
                self.lone_exit = Some(message).filter(|_| alone && !self.has_sent_final);
                return Ok(());
            }
            HelperMessage::ExitReported => {
                self.has_sent_final = true;
                return Ok(());
            }
            HelperMessage::ReadyForReuse => return Ok(()),
            HelperMessage::Refused { .. } | HelperMessage::NotStarted { .. } => self.has_sent_final = true,
            HelperMessage::Prepared
            | HelperMessage::Ready(_)
            | HelperMessage::View
            | HelperMessage::Init
            | HelperMessage::Space { .. } => {}
        }
        // The daemon may have ended, which the poll notices.
        drop(wire::forward(control, bytes));
        Ok(())
    }

    pub(super) fn relay_all(&mut self, control: BorrowedFd<'_>) -> io::Result<()> {
        while self.socket.is_some() {
            self.relay_next(control)?;
        }
        Ok(())
    }

    /// Returns the final report to send after PID 1 has ended with this status, if it was not sent yet.
    pub(super) fn final_message(&self, init: WaitStatus) -> io::Result<Option<HelperMessage>> {
        let ReportedExit { status, limit, leaked, scratch } = match (self.exited.clone(), self.has_sent_final, init) {
            // PID 1 reports the exit of a process that never became the command.
            (_, true, _) => return Ok(None),
            (Some(exited), ..) => exited,
            // PID 1 was killed, by the daemon or by the kernel for lack of memory, and the command with it.
            (None, false, WaitStatus::Signal(_)) => {
                ReportedExit { status: init, limit: None, leaked: None, scratch: ExhaustedSpace::default() }
            }
            (None, false, WaitStatus::Code(code)) => {
                let failure =
                    SetupFailure::internal(format_args!("PID 1 of the step ended with {code} and without a report"));
                return Ok(Some(failure.into_message()));
            }
        };
        let usage = getrusage(UsageWho::RUSAGE_CHILDREN)?;
        Ok(Some(HelperMessage::Exited {
            status,
            limit,
            alone: true,
            serves_on: false,
            leaked,
            scratch,
            view: None,
            user_ms: usage.user_time().num_milliseconds().unsigned_abs(),
            system_ms: usage.system_time().num_milliseconds().unsigned_abs(),
            max_rss_kib: usage.max_rss().unsigned_abs(),
        }))
    }
}

/// Waits until PID 1 has ended, and serves commands when they arrive. The daemon's end of the control socket closes
/// when the daemon dies or cancels the attempt; then PID 1 is killed.
fn wait_for_init(
    control: BorrowedFd<'_>,
    init: &OwnedFd,
    relay: &mut MessageRelay,
    outer: NamespaceSetup<'_>,
    orders: OwnedFd,
    view: &mut SandboxView,
) -> io::Result<Option<TrackedCopy>> {
    let (mut daemon_gone, mut serving, mut copied) = (false, AwaitedCommand::First(Box::new(outer), orders), None);
    let mut has_server_ended = false;
    loop {
        let mut fds = vec![PollFd::new(init, PollFlags::IN)];
        fds.extend(relay.socket.as_ref().map(|channel| PollFd::new(channel, PollFlags::IN)));
        let server_at = fds.len();
        let server = view.exit_fd().filter(|_| !has_server_ended);
        fds.extend(server.map(|server| PollFd::from_borrowed_fd(server, PollFlags::IN)));
        if !daemon_gone {
            let expects_claim = !matches!(serving, AwaitedCommand::NoMore);
            let wanted = if expects_claim { PollFlags::IN | PollFlags::RDHUP } else { PollFlags::RDHUP };
            fds.push(PollFd::from_borrowed_fd(control, wanted));
        }
        rustix::io::retry_on_intr(|| rustix::event::poll(&mut fds, None))?;
        let init_ended = !fds[0].revents().is_empty();
        let has_message = relay.socket.is_some() && !fds[1].revents().is_empty();
        let is_server_ending = server.is_some() && !fds[server_at].revents().is_empty();
        let has_claim = !daemon_gone && fds.last().is_some_and(|fd| fd.revents().contains(PollFlags::IN));
        if has_message {
            relay.relay_next(control)?;
        }
        if copied.is_none()
            && let Some(message) = relay.lone_exit.take()
        {
            // No process can use the view any more, so the report need not wait until the kernel has ended PID 1.
            relay.has_sent_final = true;
            send_with_view_report(control, message, std::mem::replace(view, SandboxView::None));
            has_server_ended = true;
        }
        if init_ended {
            return Ok(copied);
        }
        if is_server_ending && !has_server_ended {
            // The step sees errors that the host has not given, so its result does not count.
            has_server_ended = true;
            kill_init(init);
        }
        if !daemon_gone && is_daemon_gone(control)? {
            daemon_gone = true;
            kill_init(init);
        } else if has_claim {
            (serving, copied) = match serving {
                AwaitedCommand::First(outer, orders) => prepare_tree(control, init, relay, *outer, orders)?,
                AwaitedCommand::Later(again) => (again.serve_next(control, relay)?, None),
                AwaitedCommand::NoMore => (AwaitedCommand::NoMore, copied),
            };
            relay.must_finalize |= copied.is_some();
        }
    }
}

/// The command that the helper waits for.
enum AwaitedCommand<'a> {
    /// The first command.
    First(Box<NamespaceSetup<'a>>, OwnedFd),
    /// Another command, if PID 1 continues.
    Later(ReusedSandbox),
    /// No further command.
    NoMore,
}

/// The state for a later command: everything is mounted already.
struct ReusedSandbox {
    command_socket: OwnedFd,
    tree: MountedTree,
    fingerprint: Option<ScratchFingerprint>,
}

impl ReusedSandbox {
    fn serve_next(self, control: BorrowedFd<'_>, relay: &MessageRelay) -> io::Result<AwaitedCommand<'static>> {
        let Some(claim) = wire::receive_claim(control)? else { return Ok(AwaitedCommand::Later(self)) };
        if claim.layers != self.tree.layers {
            return Err(io::Error::other("a command was received whose layers differ from those of the tree"));
        }
        drop(wire::send_document(self.command_socket.as_fd(), &CommandMessage::Tree(Box::new(self.tree.clone())), &[]));
        relay.send_instructions(&InitInstructions {
            claim,
            tree: self.tree.clone(),
            reports_exit: true,
            traces: self.fingerprint.clone(),
        });
        Ok(AwaitedCommand::Later(self))
    }
}

/// Prepares the tree for the command, and passes the command to PID 1. A failure ends the attempt.
fn prepare_tree<'a>(
    control: BorrowedFd<'_>,
    init: &OwnedFd,
    relay: &mut MessageRelay,
    mut outer: NamespaceSetup<'a>,
    orders: OwnedFd,
) -> io::Result<(AwaitedCommand<'a>, Option<TrackedCopy>)> {
    // The command's process has received the command too, and prepares itself while its tree is mounted. `None` means
    // that the daemon has closed its side, which the next check notices.
    let Some(claim) = wire::receive_claim(control)? else { return Ok((AwaitedCommand::NoMore, None)) };
    match outer.run_claim_ops(&claim) {
        Ok(ClaimResult { tree, is_unsent: news, copied }) => {
            // Either process may have died after a refusal, which is received next. The command's process comes
            // first: PID 1 needs the command only for its limits.
            if news {
                drop(wire::send_document(orders.as_fd(), &CommandMessage::Tree(Box::new(tree.clone())), &[]));
            }
            let traces = if claim.serves_on && !news { outer.take_fingerprint() } else { None };
            let serving = match &traces {
                Some(_) => AwaitedCommand::Later(ReusedSandbox {
                    command_socket: orders,
                    tree: tree.clone(),
                    fingerprint: traces.clone(),
                }),
                None => AwaitedCommand::NoMore,
            };
            relay.send_instructions(&InitInstructions {
                claim,
                tree,
                reports_exit: !relay.must_finalize && copied.is_none(),
                traces,
            });
            return Ok((serving, copied));
        }
        // If PID 1 has already refused the step, its report was first, and the first one counts.
        Err(_) if relay.has_sent_final => kill_init(init),
        Err(failure) => relay.refuse(control, init, failure)?,
    }
    Ok((AwaitedCommand::NoMore, None))
}

/// Returns whether the daemon has closed its side.
pub(crate) fn is_daemon_gone(control: BorrowedFd<'_>) -> io::Result<bool> {
    let mut fds = [PollFd::from_borrowed_fd(control, PollFlags::RDHUP)];
    let now = rustix::time::Timespec { tv_sec: 0, tv_nsec: 0 };
    Ok(rustix::io::retry_on_intr(|| rustix::event::poll(&mut fds, Some(&now)))? > 0)
}

pub(super) fn kill_init(init: &OwnedFd) {
    // PID 1 may already have ended.
    let _ = rustix::process::pidfd_send_signal(init, Signal::KILL);
}

pub(super) fn reap_init(pid: Pid) -> io::Result<WaitStatus> {
    let waited = rustix::io::retry_on_intr(|| rustix::process::waitpid(Some(pid), WaitOptions::empty()))?;
    let (_, status) = waited.ok_or_else(|| io::Error::other("PID 1 cannot be waited for"))?;
    Ok(init::wait_status_from_rustix(status))
}
