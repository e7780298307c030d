//! PID 1 of the step: the operations that only it can do, the wait for the command, then a loop
//! that reaps, forwards SIGTERM, and ends with the command, unless that has left nothing and another is to
//! come. Its end is the end of every process of the step.

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

/// How the command ended.
struct Ended {
    status: WaitStatus,
    limit: Option<LimitKind>,
    /// Whether the daemon is told by us.
    is_told: bool,
    /// What there is to look at before another command is served; `None` where none is.
    traces: Option<Traces>,
    /// Bounds what the processes use that are left.
    warden: Option<Warden>,
    /// Whether the daemon has asked the step to end.
    terminated: bool,
    /// What processes mean that are left.
    leaks: Leaks,
}

/// Which command of a sandbox it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Turn {
    /// Its first.
    First,
    /// One behind another.
    Later,
}

/// Blocks the signals that PID 1 reads from a descriptor, all of them at their defaults, which the
/// command inherits. Before the fork: a PID 1 that neither blocks nor handles a signal loses it.
pub(super) fn block_signals() -> io::Result<()> {
    sys::reset_signals();
    Ok(handled().thread_block()?)
}

pub(super) fn handled() -> SigSet {
    SigSet::from_iter([NixSignal::SIGCHLD, NixSignal::SIGTERM])
}

/// Runs as PID 1 until a command has ended behind which no other is served.
pub(super) fn run(mut prepared: Prepared<'_>) -> ! {
    let failure = match set_up(&mut prepared).and_then(|fresh| serve_all(&mut prepared, fresh)) {
        Ok(never) => match never {},
        Err(failure) => failure,
    };
    prepared.fail(failure)
}

/// One command after another, for as long as none leaves anything.
fn serve_all(prepared: &mut Prepared<'_>, mut fresh: Option<Fresh>) -> Result<Infallible, Failure> {
    let signals = SignalFd::with_flags(&handled(), SfdFlags::SFD_CLOEXEC | SfdFlags::SFD_NONBLOCK)
        .map_err(internal("watch over the command"))?;
    let mut turn = Turn::First;
    loop {
        let mut used = Used::default();
        let mut ended = serve(prepared, &signals, turn, &mut used)?;
        let (alone, leaked) = left_behind(prepared, &signals, &mut ended, &mut used);
        let tells = ended.is_told && alone;
        // Nobody is left who could send one.
        let unsignalled = || matches!(signals.read_signal(), Ok(None));
        let looked = fresh.as_mut().zip(ended.traces.as_ref()).filter(|_| tells && ended.limit.is_none());
        let serves_on = looked.is_some_and(|(fresh, traces)| fresh.is_so_still(traces) && unsignalled());
        // One file system for all scratch directories.
        let exited = used.exited(&ended, Left { alone, serves_on, leaked }, spent("/tmp"));
        // Who is gone needs no word.
        match prepared.daemon.filter(|_| tells) {
            // In this order: should we be killed between, what the helper says is not heard any more.
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

/// What of an attempt is left when its command has ended.
#[derive(Debug)]
struct Left {
    /// PID 1 alone.
    alone: bool,
    /// Nothing at all, so that PID 1 waits for another command.
    serves_on: bool,
    /// Processes that the command left behind.
    leaked: Option<LeakedProcesses>,
}

/// Returns whether PID 1 is the only process of its namespace, and the processes that are left where it is not.
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

/// What processes that were waited for have used, with those that they have waited for.
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

    /// The end of a command.
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

/// What the file system at `path` has no more of.
fn spent(path: &str) -> Spent {
    rustix::fs::statvfs(path).map_or_else(|_| Spent::default(), |room| Spent::of(&room))
}

/// Answers what there is to compare with where the sandbox may serve more than one command.
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
    // Where the kernel does not tell, one command is all.
    Ok(request.serves_on.then(Fresh::look).and_then(Result::ok))
}

/// Starts the process that waits for the command, and tells how it ended.
fn serve(prepared: &mut Prepared<'_>, signals: &SignalFd, turn: Turn, used: &mut Used) -> Result<Ended, Failure> {
    let pid = start(prepared, turn)?;
    if turn == Turn::First {
        // If the helper is gone there is nobody to tell.
        drop(wire::send(prepared.channel.as_fd(), &Message::Prepared, &[]));
        // The step's streams belong to it: our copies would keep them open.
        rustix::stdio::dup2_stdout(&prepared.null).map_err(internal("release the step's output"))?;
        rustix::stdio::dup2_stderr(&prepared.null).map_err(internal("release the step's output"))?;
    }
    wait_for_command(prepared, signals, pid, used).map_err(internal("watch over the command"))
}

/// Takes into account what the helper did, and what of it does not hold.
pub(super) fn take_over(prepared: &mut Prepared<'_>, go: &mut Go) {
    prepared.enforcement.add(go.tree.enforcement.clone());
    forget_what_is_not_held(&prepared.enforcement, &mut go.claim);
}

/// The daemon has set limits on a group that PID 1 may not have got into.
pub(super) fn forget_what_is_not_held(enforcement: &Enforcement, claim: &mut Claim) {
    if !enforcement.holds(Control::Cgroup) {
        claim.held = HeldLimits::default();
    }
}

/// The helper's end, or the daemon's, reads as no word at all.
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
        // Marks the place in the list; the wait follows the last operation of this stage.
        SetupOp::AwaitCommand => Ok(()),
        other => Err(Failure::internal(format_args!("`{other}` does not belong into PID 1"))),
    }
}

/// What PID 1 holds in memory is not for the step, and what the step holds not for the host.
fn undumpable() -> Done {
    command::switch_core_dumps_off().map_err(internal("switch core dumps off"))?;
    rustix::process::set_dumpable_behavior(DumpableBehavior::NotDumpable).map_err(internal("make PID 1 unreadable"))
}

fn die_with_the_helper() -> Done {
    rustix::process::set_parent_process_death_signal(Some(Signal::KILL)).map_err(internal("bind PID 1 to its helper"))
}

/// The helper tells the daemon of us before it lets us go on, and later that it is time for our
/// mounts; its end reads as no word at all.
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

/// Without namespaces the socket is the helper's alone: it has to close when the helper ends.
pub(super) fn close_control(null: &OwnedFd, control: &mut OwnedFd) -> io::Result<()> {
    Ok(rustix::io::dup3(null, control, rustix::io::DupFlags::CLOEXEC)?)
}

/// Version 1: writing 0 moves the writing thread alone, which spares the kernel the wait for all
/// processors that moving a process costs.
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
    // In the new namespace, and before the filter of system calls, which refuses such a socket.
    if network && matches!(prepared.request.entry, Entry::None { .. }) {
        let sockets = SocketMemory::open().ok();
        prepared.memory = Rc::new(MemorySources { group: None, sockets });
    }
    if !network {
        prepared.enforcement.not_requested(Control::NetworkNamespace, "the plan allows the network");
    }
    Ok(())
}

/// What the caller's session keyring holds stays the caller's, should a call get past the filter.
fn new_keyring(prepared: &mut Prepared<'_>) -> Done {
    let control = Control::Keyring;
    match sys::new_session_keyring() {
        Ok(()) => prepared.enforcement.enforced(control, "a private session keyring; keyctl is refused"),
        // A kernel without keyrings, or a container that refuses them, has none to reach.
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

/// What else does not hold without the filter of system calls, found by trying.
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

fn mount_proc(prepared: &mut Prepared<'_>) -> Done {
    let control = Control::PrivateProc;
    let attributes = safe_attributes() | MountAttrFlags::MOUNT_ATTR_NOEXEC;
    mounts::new_fs("proc", &[], attributes)
        .and_then(|proc| mounts::attach_at(proc.as_fd(), Path::new("/proc")))
        .map_err(refuse(control, "mount a fresh /proc"))?;
    prepared.enforcement.enforced(control, "proc of the new PID namespace");
    Ok(())
}

/// The host's `/sys` names the host's network devices. Where a fresh one cannot be had, because
/// a container masks parts of it, nothing is shown.
fn mount_sys() -> Done {
    let attributes = safe_attributes() | MountAttrFlags::MOUNT_ATTR_NOEXEC | MountAttrFlags::MOUNT_ATTR_RDONLY;
    let nothing = || mounts::new_fs("tmpfs", &[], safe_attributes() | MountAttrFlags::MOUNT_ATTR_RDONLY);
    mounts::new_fs("sysfs", &[], attributes)
        .or_else(|_| nothing())
        .and_then(|sys| mounts::attach_at(sys.as_fd(), Path::new("/sys")))
        .map_err(refuse(Control::NetworkNamespace, "mount a fresh /sys"))
}

fn safe_attributes() -> MountAttrFlags {
    MountAttrFlags::MOUNT_ATTR_NOSUID | MountAttrFlags::MOUNT_ATTR_NODEV
}

fn loopback(prepared: &mut Prepared<'_>) -> Done {
    let control = Control::NetworkNamespace;
    sys::loopback_up().map_err(refuse(control, "set the loopback device up"))?;
    prepared.enforcement.enforced(control, "unshare; loopback is up, and nothing else is there");
    prepared.enforcement.enforced(Control::AbstractSockets, "each network namespace has its own");
    Ok(())
}

/// The mounts and the network stay the property of the host's user namespace: even a step that
/// gained a capability in its own would have none over them.
fn step_down(prepared: &mut Prepared<'_>, uid: u32, gid: u32) -> Done {
    let control = Control::UserNamespace;
    let (user, group) = (rustix::thread::Uid::from_raw(uid), rustix::thread::Gid::from_raw(gid));
    let become_step = || {
        rustix::thread::set_thread_groups(&[])?;
        rustix::thread::set_thread_res_gid(group, group, group)?;
        rustix::thread::set_thread_res_uid(user, user, user)
    };
    become_step().map_err(refuse(control, format_args!("become user {uid} and group {gid}")))?;
    // Or else our files in /proc belong to root, and the maps cannot be written.
    rustix::process::set_dumpable_behavior(DumpableBehavior::Dumpable).map_err(internal("open our files in /proc"))?;
    nix::sched::unshare(CloneFlags::CLONE_NEWUSER).map_err(refuse(control, "make the step's user namespace"))?;
    let seen = prepared.request.user.seen_as();
    map_self_as((uid, gid), seen).map_err(refuse(control, "map the step's user and group"))?;
    // The change of user has cleared it.
    die_with_the_helper()?;
    if (rustix::process::getuid().as_raw(), rustix::process::getgid().as_raw()) != seen {
        let hint = "report this with the kernel's version";
        return Err(refused(control, format!("PID 1 is not user {} after the change of user", seen.0), hint));
    }
    // The ids that a run has for itself differ from run to run, and the record does not.
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
    // Every bit: the kernel says EINVAL to those that it does not know.
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

/// Waits until the command has ended, and reaps whatever else ends meanwhile.
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
        // A short command may be faster than the word of it, which says what becomes of the sandbox.
        if let Some(status) = status.take_if(|_| warden.is_some() || !prepared.request.serves_on) {
            return Ok(Ended { status, limit: None, is_told, traces, warden, terminated, leaks });
        }
        if let Some(limit) = warden.as_mut().and_then(Warden::look) {
            // Our end is everybody's.
            let (status, limit) = (WaitStatus::Signal(SIGKILL), Some(limit));
            return Ok(Ended { status, limit, is_told, traces: None, warden: None, terminated, leaks });
        }
    }
}

/// How long PID 1 waits for the word of a command that has ended: a process that never became one has none.
const LATE: Timespec = Timespec { tv_sec: 0, tv_nsec: 500_000_000 };

/// The helper sends the command and nothing after it: its end is ours.
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

/// What a process that the kernel ends for us dies of.
pub(super) const SIGKILL: u8 = 9;

/// Everybody but PID 1 itself; that there is nobody left is no error.
fn terminate_all() {
    let _ = nix::sys::signal::kill(nix::unistd::Pid::from_raw(-1), NixSignal::SIGTERM);
}

/// Of processes that have ended; answers how `command` did where it is among them.
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

/// The kernel's status word as ours.
fn ended_as(status: i32) -> WaitStatus {
    let byte = |number: i32| u8::try_from(number).unwrap_or(u8::MAX);
    if libc::WIFEXITED(status) {
        WaitStatus::Code(byte(libc::WEXITSTATUS(status)))
    } else {
        WaitStatus::Signal(if libc::WIFSIGNALED(status) { byte(libc::WTERMSIG(status)) } else { u8::MAX })
    }
}

/// The same, where it was waited for otherwise.
pub(super) fn wait_status(status: rustix::process::WaitStatus) -> WaitStatus {
    let byte = |number: i32| u8::try_from(number).unwrap_or(u8::MAX);
    match (status.exit_status(), status.terminating_signal()) {
        (Some(code), _) => WaitStatus::Code(byte(code)),
        (None, signal) => WaitStatus::Signal(signal.map_or(u8::MAX, byte)),
    }
}
