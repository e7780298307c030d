//! Implements PID 1 of the step. It executes the operations that only PID 1 can execute, and waits for the command.
//! Then it runs a loop that reaps processes and forwards SIGTERM, until the command ends. If the command left nothing
//! behind and the sandbox may be reused, PID 1 waits for another command; otherwise it exits. Its exit ends every
//! process of the step.

use std::convert::Infallible;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;
use std::rc::Rc;
use std::time::Duration;

use nix::sched::CloneFlags;
use nix::sys::signal::{SigSet, Signal as NixSignal};
use nix::sys::signalfd::{SfdFlags, SignalFd};
use proctor_core::enforcement::{Control, Enforcement};
use proctor_core::leak::LeakedProcesses;
use proctor_core::outcome::LimitKind;
use proctor_core::plan::{Leaks, Network};
use rustix::event::{PollFd, PollFlags};
use rustix::mount::MountAttrFlags;
use rustix::process::{DumpableBehavior, Pid, Signal};
use rustix::thread::{CapabilitySet, CapabilitySets};
use rustix::time::Timespec;

mod namespace;

use self::namespace::{loopback, mount_proc, mount_sys};
use super::attempt::{GO, MOUNTED, Prepared};
use super::command;
use super::failure::{FILTER, Failure, internal, refuse, refused};
use super::leaks::{self, Scope};
use super::memory_sources::{MemorySources, SocketMemory};
use super::mounts;
use super::renewal::{self, Fresh};
use super::space::map_self_as;
use super::traces::Traces;
use super::warden::Warden;
use crate::running::WaitStatus;
use crate::seccomp;
use crate::setup::{HOSTNAME, SetupOp, Stage};
use crate::space::Spent;
use crate::sys::{self, Fork};
use crate::wire::{self, Claim, Entry, Go, HeldLimits, Message};

type Done = Result<(), Failure>;

/// The result of the command.
struct Ended {
    status: WaitStatus,
    limit: Option<LimitKind>,
    /// `true` if PID 1 reports the exit to the daemon.
    is_told: bool,
    /// The fingerprint to compare before another command is served; `None` if none is.
    traces: Option<Traces>,
    /// Limits the resources of the remaining processes.
    warden: Option<Warden>,
    /// `true` if the daemon has asked the step to end.
    terminated: bool,
    /// How to treat remaining processes.
    leaks: Leaks,
}

/// The position of a command in its sandbox.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Turn {
    /// The first command.
    First,
    /// A later command.
    Later,
}

/// Blocks the signals that PID 1 reads from a descriptor, with all dispositions at their defaults, which the command
/// inherits. Called before the fork: a PID 1 that neither blocks nor handles a signal loses it.
pub(super) fn block_signals() -> io::Result<()> {
    sys::reset_signals();
    Ok(handled().thread_block()?)
}

pub(super) fn handled() -> SigSet {
    SigSet::from_iter([NixSignal::SIGCHLD, NixSignal::SIGTERM])
}

/// Runs as PID 1 until a command has ended after which the sandbox serves no other.
pub(super) fn run(mut prepared: Prepared<'_>) -> ! {
    let failure = match set_up(&mut prepared).and_then(|fresh| serve_all(&mut prepared, fresh)) {
        Ok(never) => match never {},
        Err(failure) => failure,
    };
    prepared.fail(failure)
}

/// Serves one command after another, as long as none leaves anything behind.
fn serve_all(prepared: &mut Prepared<'_>, mut fresh: Option<Fresh>) -> Result<Infallible, Failure> {
    let signals = SignalFd::with_flags(&handled(), SfdFlags::SFD_CLOEXEC | SfdFlags::SFD_NONBLOCK)
        .map_err(internal("watch over the command"))?;
    let mut turn = Turn::First;
    loop {
        let mut used = Used::default();
        let mut ended = serve(prepared, &signals, turn, &mut used)?;
        let (alone, leaked) = left_behind(prepared, &signals, &mut ended, &mut used);
        let tells = ended.is_told && alone;
        // PID 1 is alone, so no process remains that could send a signal.
        let unsignalled = || matches!(signals.read_signal(), Ok(None));
        let looked = fresh.as_mut().zip(ended.traces.as_ref()).filter(|_| tells && ended.limit.is_none());
        let serves_on = looked.is_some_and(|(fresh, traces)| fresh.is_so_still(traces) && unsignalled());
        // All scratch directories are on one file system.
        let exited = used.exited(&ended, Left { alone, serves_on, leaked }, spent("/tmp"));
        // A daemon that has ended needs no message.
        match prepared.daemon.filter(|_| tells) {
            // The order matters: if PID 1 is killed between the two, the daemon ignores the helper's later report.
            Some(daemon) => {
                drop(wire::send(daemon, &exited, &[]));
                let word = if serves_on { Message::ServesOn } else { Message::Told };
                drop(wire::send(prepared.channel.as_fd(), &word, &[]));
            }
            None => drop(wire::send(prepared.channel.as_fd(), &exited, &[])),
        }
        if !serves_on {
            std::process::exit(0);
        }
        if turn == Turn::First {
            command::draw_for_all(prepared);
        }
        turn = Turn::Later;
    }
}

/// The remains of an attempt after its command has ended.
#[derive(Debug)]
struct Left {
    /// `true` if PID 1 is the only process.
    alone: bool,
    /// `true` if nothing remains, so PID 1 waits for another command.
    serves_on: bool,
    /// Processes that the command left behind.
    leaked: Option<LeakedProcesses>,
}

/// Returns whether PID 1 is the only process of its namespace, and the remaining processes if it is not.
fn left_behind(
    prepared: &Prepared<'_>,
    signals: &SignalFd,
    ended: &mut Ended,
    used: &mut Used,
) -> (bool, Option<LeakedProcesses>) {
    if leaks::none_is_left(used) {
        return (true, None);
    }
    if ended.limit.is_some() || ended.leaks == Leaks::Ignore {
        return (false, None);
    }
    let scope = Scope::of_pid_1(prepared.enforcement.holds(Control::PrivateProc));
    let watch = leaks::Watch { signals, warden: ended.warden.as_mut(), used, terminated: ended.terminated };
    let leaked = leaks::find(scope, watch);
    (leaked.is_none(), leaked)
}

/// The resource usage of reaped processes, including the processes that they have reaped.
#[derive(Debug, Default)]
pub(super) struct Used {
    user: Duration,
    system: Duration,
    max_rss_kib: u64,
}

impl Used {
    pub(super) fn add(&mut self, usage: &sys::Usage) {
        self.user += usage.user;
        self.system += usage.system;
        self.max_rss_kib = self.max_rss_kib.max(usage.max_rss_kib);
    }

    /// Returns the message about the exit of a command.
    fn exited(&self, ended: &Ended, left: Left, scratch: Spent) -> Message {
        let milliseconds = |time: Duration| u64::try_from(time.as_millis()).unwrap_or(u64::MAX);
        Message::Exited {
            status: ended.status,
            limit: ended.limit,
            alone: left.alone,
            serves_on: left.serves_on,
            leaked: left.leaked,
            scratch,
            user_ms: milliseconds(self.user),
            system_ms: milliseconds(self.system),
            max_rss_kib: self.max_rss_kib,
        }
    }
}

/// Returns the exhausted resources of the file system at `path`.
fn spent(path: &str) -> Spent {
    rustix::fs::statvfs(path).map_or_else(|_| Spent::default(), |room| Spent::of(&room))
}

/// Executes PID 1's operations. Returns the state to compare with later if the sandbox may serve more than one
/// command.
fn set_up(prepared: &mut Prepared<'_>) -> Result<Option<Fresh>, Failure> {
    die_with_the_helper()?;
    if rustix::process::getpid() != Pid::INIT {
        let hint = "report this with the kernel's version";
        return Err(refused(Control::PidNamespace, "the first process of the step is not PID 1", hint));
    }
    let how = "unshare; PID 1 is ours, and all others end with it";
    prepared.enforcement.enforced(Control::PidNamespace, how);
    let request = prepared.request;
    for op in request.ops.iter().filter(|op| op.stage() == Stage::Init) {
        let done = apply(prepared, op);
        prepared.tolerate(op, done)?;
    }
    // If the kernel does not provide the state, the sandbox serves one command only.
    Ok(request.serves_on.then(Fresh::look).and_then(Result::ok))
}

/// Starts the process that waits for the command, and returns how the command ended.
fn serve(prepared: &mut Prepared<'_>, signals: &SignalFd, turn: Turn, used: &mut Used) -> Result<Ended, Failure> {
    let pid = start(prepared, turn)?;
    if turn == Turn::First {
        // If the helper has ended, there is no recipient.
        drop(wire::send(prepared.channel.as_fd(), &Message::Prepared, &[]));
        // The streams belong to the step: PID 1's copies would keep them open.
        rustix::stdio::dup2_stdout(&prepared.null).map_err(internal("release the step's output"))?;
        rustix::stdio::dup2_stderr(&prepared.null).map_err(internal("release the step's output"))?;
    }
    wait_for_command(prepared, signals, pid, used).map_err(internal("watch over the command"))
}

/// Adds the controls that the helper enforced, and discards limits that are not enforced.
pub(super) fn take_over(prepared: &mut Prepared<'_>, go: &mut Go) {
    prepared.enforcement.add(go.tree.enforcement.clone());
    forget_what_is_not_held(&prepared.enforcement, &mut go.claim);
}

/// Discards the limits that the daemon set on a group if PID 1 did not enter that group.
pub(super) fn forget_what_is_not_held(enforcement: &Enforcement, claim: &mut Claim) {
    if !enforcement.holds(Control::Cgroup) {
        claim.held = HeldLimits::default();
    }
}

/// Waits for the command and the helper's work for it. Exits if the helper or the daemon has closed its side.
pub(super) fn wait_for_command_to_run(prepared: &Prepared<'_>) -> Result<Go, Failure> {
    let cannot = internal("wait for the command");
    drop(wire::send(prepared.channel.as_fd(), &Message::Prepared, &[]));
    match wire::recv_document(prepared.channel.as_fd()) {
        Ok(Some((go, _))) => Ok(go),
        Ok(None) => std::process::exit(1),
        Err(error) => Err(cannot(error)),
    }
}

pub(super) fn apply(prepared: &mut Prepared<'_>, op: &SetupOp) -> Done {
    match op {
        SetupOp::JoinCgroup => join_cgroup(prepared),
        SetupOp::CgroupNamespace => leave_cgroup_namespace(prepared),
        SetupOp::OwnNamespaces { network } => leave_namespaces(prepared, *network),
        SetupOp::Hostname => {
            rustix::system::sethostname(HOSTNAME.as_bytes()).map_err(refuse(Control::UtsNamespace, "set the host name"))
        }
        SetupOp::AwaitKnown | SetupOp::AwaitReadOnlyRoot => wait_for_go(prepared),
        SetupOp::Proc => mount_proc(prepared),
        SetupOp::Sys => mount_sys(),
        SetupOp::SayMounted => say_mounted(prepared),
        SetupOp::NewKeyring => new_keyring(prepared),
        SetupOp::SyscallFilter => filter_syscalls(prepared),
        SetupOp::Loopback => loopback(prepared),
        SetupOp::StepDown { uid, gid } => step_down(prepared, *uid, *gid),
        SetupOp::DropCapabilities => drop_capabilities(prepared),
        SetupOp::NoNewPrivs => no_new_privs(prepared),
        SetupOp::Undumpable => undumpable(),
        // Marks a position in the list; the wait follows the last operation of this stage.
        SetupOp::AwaitCommand => Ok(()),
        other => Err(Failure::internal(format_args!("`{other}` does not belong into PID 1"))),
    }
}

/// Makes PID 1's memory unreadable for the step, and keeps the host from dumping the step's memory.
fn undumpable() -> Done {
    command::switch_core_dumps_off().map_err(internal("switch core dumps off"))?;
    rustix::process::set_dumpable_behavior(DumpableBehavior::NotDumpable).map_err(internal("make PID 1 unreadable"))
}

fn die_with_the_helper() -> Done {
    rustix::process::set_parent_process_death_signal(Some(Signal::KILL)).map_err(internal("bind PID 1 to its helper"))
}

/// Waits for permission of the helper to continue: first after the helper has reported PID 1 to the daemon, and again
/// when PID 1 may make its mounts. Exits if the helper has ended.
pub(super) fn wait_for_go(prepared: &Prepared<'_>) -> Done {
    wait_for_word(&prepared.channel)
}

pub(super) fn wait_for_word(from: &OwnedFd) -> Done {
    match wire::recv_packet(from.as_fd()) {
        Ok(Some((bytes, _))) if bytes == GO => Ok(()),
        Ok(_) => std::process::exit(1),
        Err(error) => Err(internal("wait for the helper")(error)),
    }
}

/// Closes the helper's control socket. Without namespaces only the helper may hold it, since it has to close when the
/// helper ends.
pub(super) fn close_control(null: &OwnedFd, control: &mut OwnedFd) -> io::Result<()> {
    Ok(rustix::io::dup3(null, control, rustix::io::DupFlags::CLOEXEC)?)
}

/// Enters the control group of version 1. Writing 0 moves only the writing thread; moving a process makes the kernel
/// wait for all processors.
fn join_cgroup(prepared: &mut Prepared<'_>) -> Done {
    let control = Control::Cgroup;
    if let Some(error) = prepared.unborn.take() {
        return Err(refuse(control, "start PID 1 in the control group (clone3)")(error));
    }
    match &prepared.request.entry {
        Entry::None { reason, hint } => return Err(refused(control, reason, hint)),
        Entry::Group { group, born, .. } => {
            for tasks in prepared.tasks.iter().skip(usize::from(*born)) {
                rustix::io::write(tasks, b"0").map_err(refuse(control, "enter the control group"))?;
            }
            prepared.enforcement.enforced(control, group);
        }
    }
    prepared.tasks.clear();
    Ok(())
}

fn leave_cgroup_namespace(prepared: &mut Prepared<'_>) -> Done {
    let control = Control::CgroupNamespace;
    nix::sched::unshare(CloneFlags::CLONE_NEWCGROUP).map_err(refuse(control, "leave the host's cgroup namespace"))?;
    prepared.enforcement.enforced(control, "unshare");
    Ok(())
}

fn leave_namespaces(prepared: &mut Prepared<'_>, network: bool) -> Done {
    let mut flags = CloneFlags::CLONE_NEWIPC | CloneFlags::CLONE_NEWUTS;
    flags.set(CloneFlags::CLONE_NEWNET, network);
    let control = if network { Control::NetworkNamespace } else { Control::IpcNamespace };
    nix::sched::unshare(flags).map_err(refuse(control, "leave the host's namespaces"))?;
    for control in [Control::IpcNamespace, Control::UtsNamespace] {
        prepared.enforcement.enforced(control, "unshare");
    }
    // In the new namespace, and before the system call filter is installed, which refuses such a socket.
    if network && matches!(prepared.request.entry, Entry::None { .. }) {
        let sockets = SocketMemory::open().ok();
        prepared.memory = Rc::new(MemorySources { group: None, sockets });
    }
    if !network {
        prepared.enforcement.not_requested(Control::NetworkNamespace, "the plan allows the network");
    }
    Ok(())
}

/// Leaves the caller's session keyring, so that its keys stay protected even if a call gets past the filter.
fn new_keyring(prepared: &mut Prepared<'_>) -> Done {
    let control = Control::Keyring;
    match sys::new_session_keyring() {
        Ok(()) => prepared.enforcement.enforced(control, "a private session keyring; keyctl is refused"),
        // On a kernel without keyrings, or in a container that refuses them, the step cannot access any.
        Err(error) if matches!(error.raw_os_error(), Some(libc::ENOSYS | libc::EPERM | libc::EDQUOT)) => {
            prepared.enforcement.enforced(control, format!("keyctl is refused ({error} for a private keyring)"));
        }
        Err(error) => return Err(refuse(control, "leave the caller's keyrings")(error)),
    }
    Ok(())
}

fn filter_syscalls(prepared: &mut Prepared<'_>) -> Done {
    let control = Control::SyscallFilter;
    let filter = seccomp::filter();
    if let Err(error) = filter.install() {
        look_without_filter(prepared);
        return Err(refuse(control, "install the filter of system calls")(error));
    }
    prepared.enforcement.enforced(control, format!("seccomp, {} instructions", filter.len()));
    Ok(())
}

/// Determines by trial which other controls are lost without the system call filter.
pub(super) fn look_without_filter(prepared: &mut Prepared<'_>) {
    let refused = |error: &io::Error| matches!(error.raw_os_error(), Some(libc::ENOSYS | libc::EPERM));
    if !sys::new_session_keyring().is_err_and(|error| refused(&error)) {
        let reason = "keys of the same user can be named by their numbers: keyctl is not refused without the filter";
        prepared.enforcement.not_enforced_unless(Control::Keyring, reason, FILTER);
    }
    let vsock = rustix::net::AddressFamily::from_raw(libc::AF_VSOCK.unsigned_abs() as u16);
    let isolated = prepared.request.frame.network == Network::Deny;
    if isolated && rustix::net::socket(vsock, rustix::net::SocketType::STREAM, None).is_ok() {
        let reason = "sockets of AF_VSOCK, which no network namespace holds, are not refused without the filter";
        prepared.enforcement.not_enforced_unless(Control::NetworkNamespace, reason, FILTER);
    }
}

fn say_mounted(prepared: &Prepared<'_>) -> Done {
    wire::forward(prepared.channel.as_fd(), MOUNTED).map_err(internal("report the mounts of /proc and /sys"))
}

/// Becomes the step's user in a new user namespace. The mounts and the network remain owned by the previous user
/// namespace: even a step that gained a capability in its own namespace would have none over them.
fn step_down(prepared: &mut Prepared<'_>, uid: u32, gid: u32) -> Done {
    let control = Control::UserNamespace;
    let (user, group) = (rustix::thread::Uid::from_raw(uid), rustix::thread::Gid::from_raw(gid));
    let become_step = || {
        rustix::thread::set_thread_groups(&[])?;
        rustix::thread::set_thread_res_gid(group, group, group)?;
        rustix::thread::set_thread_res_uid(user, user, user)
    };
    become_step().map_err(refuse(control, format_args!("become user {uid} and group {gid}")))?;
    // Otherwise this process's files in /proc belong to root, and the id maps cannot be written.
    rustix::process::set_dumpable_behavior(DumpableBehavior::Dumpable).map_err(internal("open our files in /proc"))?;
    nix::sched::unshare(CloneFlags::CLONE_NEWUSER).map_err(refuse(control, "make the step's user namespace"))?;
    let seen = prepared.request.user.seen_as();
    map_self_as((uid, gid), seen).map_err(refuse(control, "map the step's user and group"))?;
    // The change of user has cleared the parent death signal.
    die_with_the_helper()?;
    if (rustix::process::getuid().as_raw(), rustix::process::getgid().as_raw()) != seen {
        let hint = "report this with the kernel's version";
        return Err(refused(control, format!("PID 1 is not user {} after the change of user", seen.0), hint));
    }
    // The record must not differ between runs, while the ids of a run do.
    let how = if seen == (uid, gid) {
        format!("user {uid} and group {gid} of the host, who alone are mapped")
    } else {
        format!("a dedicated user of the host, mapped alone, as user {} and group {}", seen.0, seen.1)
    };
    prepared.enforcement.enforced(control, how);
    Ok(())
}

fn drop_capabilities(prepared: &mut Prepared<'_>) -> Done {
    let control = Control::NoCapabilities;
    // Tries every bit: the kernel answers EINVAL for the first one that it does not know.
    for bit in 0..u64::BITS {
        match rustix::thread::remove_capability_from_bounding_set(CapabilitySet::from_bits_retain(1 << bit)) {
            Ok(()) => {}
            Err(rustix::io::Errno::INVAL) => break,
            Err(errno) => return Err(refuse(control, "empty the bounding set")(errno)),
        }
    }
    let none = CapabilitySets {
        effective: CapabilitySet::empty(),
        permitted: CapabilitySet::empty(),
        inheritable: CapabilitySet::empty(),
    };
    rustix::thread::clear_ambient_capability_set().map_err(refuse(control, "empty the ambient set"))?;
    rustix::thread::set_capabilities(None, none).map_err(refuse(control, "drop all capabilities"))?;
    let left = rustix::thread::capabilities(None).map_err(refuse(control, "look at the capabilities"))?;
    if left != none {
        return Err(refused(control, "capabilities are left", "report this with the kernel's version"));
    }
    prepared.enforcement.enforced(control, "bounding, ambient, permitted, effective and inheritable sets are empty");
    Ok(())
}

fn no_new_privs(prepared: &mut Prepared<'_>) -> Done {
    let control = Control::NoNewPrivs;
    rustix::thread::set_no_new_privs(true).map_err(refuse(control, "set no_new_privs"))?;
    if !rustix::thread::no_new_privs().map_err(refuse(control, "look at no_new_privs"))? {
        return Err(refused(control, "no_new_privs stays off", "report this with the kernel's version"));
    }
    prepared.enforcement.enforced(control, "prctl");
    Ok(())
}

fn start(prepared: &mut Prepared<'_>, turn: Turn) -> Result<Pid, Failure> {
    match sys::fork().map_err(internal("start the command's process"))? {
        Fork::Child => command::run(prepared, turn),
        Fork::Parent(pid) => Pid::from_raw(pid).ok_or_else(|| Failure::internal("fork returned no process")),
    }
}

/// Waits until the command has ended, and reaps other processes that end in the meantime.
fn wait_for_command(
    prepared: &mut Prepared<'_>,
    signals: &SignalFd,
    command: Pid,
    used: &mut Used,
) -> io::Result<Ended> {
    let (mut warden, mut is_told, mut traces, mut status) = (None, false, None, None);
    let (mut terminated, mut leaks) = (false, Leaks::default());
    loop {
        let mut fds = [PollFd::new(signals, PollFlags::IN), PollFd::new(&prepared.channel, PollFlags::IN)];
        let patience = status.as_ref().map(|_| &LATE).or(warden.as_ref().and_then(Warden::patience));
        let ready = rustix::io::retry_on_intr(|| rustix::event::poll(&mut fds, patience))?;
        if !fds[1].revents().is_empty() {
            let go = instructed(prepared)?;
            is_told = go.tells_the_end;
            traces = go.traces.filter(|_| renewal::is_sound(&prepared.enforcement));
            warden = Some(warden_of(prepared, &go.claim));
            leaks = go.claim.command.leaks;
        }
        if let Some(status) = status.take_if(|_| warden.is_some() || ready == 0) {
            return Ok(Ended { status, limit: None, is_told, traces, warden, terminated, leaks });
        }
        while let Some(signal) = signals.read_signal()? {
            if signal.ssi_signo == libc::SIGTERM.cast_unsigned() {
                terminated = true;
                terminate_all();
            }
        }
        if status.is_none() {
            status = reap_all(command, used)?;
        }
        // A short command may end before the message about it arrives, which says whether the sandbox is reused.
        if let Some(status) = status.take_if(|_| warden.is_some() || !prepared.request.serves_on) {
            return Ok(Ended { status, limit: None, is_told, traces, warden, terminated, leaks });
        }
        if let Some(limit) = warden.as_mut().and_then(Warden::look) {
            // PID 1's exit ends all processes.
            let (status, limit) = (WaitStatus::Signal(SIGKILL), Some(limit));
            return Ok(Ended { status, limit, is_told, traces: None, warden: None, terminated, leaks });
        }
    }
}

/// How long PID 1 waits for the message about a command that has ended. A process that failed before it became the
/// command has no such message.
const LATE: Timespec = Timespec { tv_sec: 0, tv_nsec: 500_000_000 };

/// Receives the command from the helper, which sends nothing else. Exits if the helper has ended.
fn instructed(prepared: &mut Prepared<'_>) -> io::Result<Go> {
    let Some((mut go, _)) = wire::recv_document::<Go>(prepared.channel.as_fd())? else { std::process::exit(1) };
    take_over(prepared, &mut go);
    Ok(go)
}

fn warden_of(prepared: &Prepared<'_>, claim: &Claim) -> Warden {
    let is_own = prepared.enforcement.holds(Control::PrivateProc);
    let sources = Rc::clone(&prepared.memory);
    if is_own { Warden::new(claim, sources) } else { Warden::among_others(claim, sources) }
}

/// The signal with which the kernel ends the processes of the namespace.
pub(super) const SIGKILL: u8 = 9;

/// Sends SIGTERM to all processes except PID 1. A missing process is no error.
fn terminate_all() {
    let _ = nix::sys::signal::kill(nix::unistd::Pid::from_raw(-1), NixSignal::SIGTERM);
}

/// Reaps processes that have ended; returns how `command` ended if it is among them.
pub(super) fn reap_all(command: Pid, used: &mut Used) -> io::Result<Option<WaitStatus>> {
    loop {
        match sys::wait_any(libc::WNOHANG) {
            Ok(Some(waited)) => {
                used.add(&waited.usage);
                if waited.pid == command.as_raw_nonzero().get() {
                    return Ok(Some(ended_as(waited.status)));
                }
            }
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Ok(None) => return Ok(None),
            Err(error) => return Err(error),
        }
    }
}

/// Converts the kernel's wait status.
fn ended_as(status: i32) -> WaitStatus {
    let byte = |number: i32| u8::try_from(number).unwrap_or(u8::MAX);
    if libc::WIFEXITED(status) {
        WaitStatus::Code(byte(libc::WEXITSTATUS(status)))
    } else {
        WaitStatus::Signal(if libc::WIFSIGNALED(status) { byte(libc::WTERMSIG(status)) } else { u8::MAX })
    }
}

/// Converts a wait status that was returned by rustix.
pub(super) fn wait_status(status: rustix::process::WaitStatus) -> WaitStatus {
    let byte = |number: i32| u8::try_from(number).unwrap_or(u8::MAX);
    match (status.exit_status(), status.terminating_signal()) {
        (Some(code), _) => WaitStatus::Code(byte(code)),
        (None, signal) => WaitStatus::Signal(signal.map_or(u8::MAX, byte)),
    }
}
