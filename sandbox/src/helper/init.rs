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
use proctor_core::model::enforcement::Control;
use proctor_core::model::leak::LeakedProcesses;
use proctor_core::model::outcome::LimitKind;
use proctor_core::model::plan::{Leaks, Network};
use rustix::event::{PollFd, PollFlags};
use rustix::mount::MountAttrFlags;
use rustix::process::{DumpableBehavior, Pid};
use rustix::time::Timespec;

use self::namespace_mounts::{mount_proc, mount_sys, set_up_loopback};
pub(super) use self::privilege_drop::empty_capability_sets;
use self::privilege_drop::{become_step_user, drop_capabilities, no_new_privs};
use super::descendants::{self, MAX_REAPED_AT_ONCE};
use super::leftover_processes::{self, ProcessScope};
use super::limit_monitor::LimitMonitor;
use super::memory_sources::{MemorySources, SocketMemory};
use super::reuse_check::{self, NamespaceBaseline};
use super::scratch_fingerprint::ScratchFingerprint;
use super::setup_failure::{FILTER, SetupFailure, internal, refuse, refused};
use super::{command_process, mounts};
use crate::helper::init::privilege_drop::bind_to_helper;
use crate::helper::init_state::{
    CommandTurn, GO_MESSAGE, InitOpResult, InitState, MOUNTED_MESSAGE, drop_unenforced_limits,
};
use crate::helper::usage_totals::UsageTotals;
use crate::resource_report::{ExhaustedSpace, WaitStatus};
use crate::seccomp;
use crate::setup::{HOSTNAME, SetupOp, SetupStage};
use crate::sys::{self, ForkResult};
use crate::wire::{self, CgroupEntry, ClaimRequest, HelperMessage, InitInstructions};

mod namespace_mounts;
mod privilege_drop;

/// The result of the command.
struct CommandResult {
    status: WaitStatus,
    limit: Option<LimitKind>,
    /// `true` if PID 1 reports the exit to the daemon.
    reports_exit: bool,
    /// The fingerprint to compare before another command is served; `None` if no further command is served.
    fingerprint: Option<ScratchFingerprint>,
    /// Limits the resources of the remaining processes.
    limit_monitor: Option<LimitMonitor>,
    /// `true` if the daemon has asked the step to end.
    terminated: bool,
    /// How to treat remaining processes.
    leaks: Leaks,
}

/// Blocks the signals that PID 1 reads from a descriptor, with all dispositions at their defaults, which the command
/// inherits. Called before the fork: a PID 1 that neither blocks nor handles a signal loses it.
pub(super) fn block_signals() -> io::Result<()> {
    sys::reset_signals();
    Ok(handled_signals().thread_block()?)
}

pub(super) fn handled_signals() -> SigSet {
    SigSet::from_iter([NixSignal::SIGCHLD, NixSignal::SIGTERM])
}

/// Runs as PID 1 until a command has ended after which the sandbox serves no other.
pub(super) fn run(mut prepared: InitState<'_>) -> ! {
    let failure = match set_up_init(&mut prepared).and_then(|fresh| serve_commands(&mut prepared, fresh)) {
        Ok(never) => match never {},
        Err(failure) => failure,
    };
    prepared.report_failure(failure)
}

/// Serves one command after another, as long as none leaves anything behind.
fn serve_commands(
    prepared: &mut InitState<'_>,
    mut fresh: Option<NamespaceBaseline>,
) -> Result<Infallible, SetupFailure> {
    let signals = SignalFd::with_flags(&handled_signals(), SfdFlags::SFD_CLOEXEC | SfdFlags::SFD_NONBLOCK)
        .map_err(internal("monitor the command"))?;
    let mut turn = CommandTurn::First;
    loop {
        let mut used = UsageTotals::default();
        let mut ended = serve_command(prepared, &signals, turn, &mut used)?;
        let (alone, leaked) = find_leftovers(prepared, &signals, &mut ended, &mut used);
        let tells = ended.reports_exit && alone;
        // PID 1 is alone, so no process remains that could send a signal.
        let unsignalled = || matches!(signals.read_signal(), Ok(None));
        let looked = fresh.as_mut().zip(ended.fingerprint.as_ref()).filter(|_| tells && ended.limit.is_none());
        let serves_on = looked.is_some_and(|(fresh, traces)| fresh.is_unchanged(traces) && unsignalled());
        // All scratch directories are on one file system.
        let exited = used.exit_message(
            &ended,
            Leftovers { is_alone: alone, is_reusable: serves_on, leaked },
            exhausted_space("/tmp"),
        );
        // A daemon that has ended needs no message.
        match prepared.daemon_socket.filter(|_| tells) {
            // The order matters: if PID 1 is killed between the two, the daemon ignores the helper's later report.
            Some(daemon) => {
                drop(wire::send(daemon, &exited, &[]));
                let word = if serves_on { HelperMessage::ReadyForReuse } else { HelperMessage::ExitReported };
                drop(wire::send(prepared.helper_socket.as_fd(), &word, &[]));
            }
            None => drop(wire::send(prepared.helper_socket.as_fd(), &exited, &[])),
        }
        if !serves_on {
            std::process::exit(0);
        }
        if turn == CommandTurn::First {
            command_process::open_ruleset_for_reuse(prepared);
        }
        turn = CommandTurn::Later;
    }
}

/// The remains of an attempt after its command has ended.
#[derive(Debug)]
struct Leftovers {
    /// `true` if PID 1 is the only process.
    is_alone: bool,
    /// `true` if nothing remains, so PID 1 waits for another command.
    is_reusable: bool,
    /// Processes that the command left behind.
    leaked: Option<LeakedProcesses>,
}

/// Returns whether PID 1 is the only process of its namespace, and the remaining processes if it is not.
fn find_leftovers(
    prepared: &InitState<'_>,
    signals: &SignalFd,
    ended: &mut CommandResult,
    used: &mut UsageTotals,
) -> (bool, Option<LeakedProcesses>) {
    if leftover_processes::has_no_descendants(used) {
        return (true, None);
    }
    if ended.limit.is_some() || ended.leaks == Leaks::Ignore {
        return (false, None);
    }
    let scope = ProcessScope::for_init(prepared.enforcement.is_enforced(Control::PrivateProc));
    let watch = leftover_processes::CommandWatch {
        signals,
        limit_monitor: ended.limit_monitor.as_mut(),
        used,
        terminated: ended.terminated,
    };
    let leaked = leftover_processes::describe_leftovers(scope, watch);
    (leaked.is_none(), leaked)
}

impl UsageTotals {
    /// Returns the message about the exit of a command.
    fn exit_message(&self, ended: &CommandResult, left: Leftovers, scratch: ExhaustedSpace) -> HelperMessage {
        let milliseconds = |time: Duration| u64::try_from(time.as_millis()).unwrap_or(u64::MAX);
        HelperMessage::Exited {
            status: ended.status,
            limit: ended.limit,
            alone: left.is_alone,
            serves_on: left.is_reusable,
            leaked: left.leaked,
            scratch,
            view: None,
            user_ms: milliseconds(self.user),
            system_ms: milliseconds(self.system),
            max_rss_kib: self.max_rss_kib,
        }
    }
}

/// Returns the exhausted resources of the file system at `path`.
fn exhausted_space(path: &str) -> ExhaustedSpace {
    rustix::fs::statvfs(path).map_or_else(|_| ExhaustedSpace::default(), |room| ExhaustedSpace::from_statvfs(&room))
}

/// Executes PID 1's operations. Returns the state to compare with later if the sandbox may serve more than one
/// command.
fn set_up_init(prepared: &mut InitState<'_>) -> Result<Option<NamespaceBaseline>, SetupFailure> {
    bind_to_helper()?;
    if rustix::process::getpid() != Pid::INIT {
        let hint = "report this with the kernel's version";
        return Err(refused(Control::PidNamespace, "the first process of the step is not PID 1", hint));
    }
    let how = "unshare; PID 1 belongs to Proctor, and all processes end with it";
    prepared.enforcement.record_enforced(Control::PidNamespace, how);
    let request = prepared.request;
    for op in request.ops.iter().filter(|op| op.stage() == SetupStage::Init) {
        let done = apply(prepared, op);
        prepared.tolerate(op, done)?;
    }
    // If the kernel does not provide the state, the sandbox serves one command only.
    Ok(request.serves_on.then(NamespaceBaseline::capture).and_then(Result::ok))
}

/// Starts the process that waits for the command, and returns how the command ended.
fn serve_command(
    prepared: &mut InitState<'_>,
    signals: &SignalFd,
    turn: CommandTurn,
    used: &mut UsageTotals,
) -> Result<CommandResult, SetupFailure> {
    let pid = start_command_process(prepared, turn)?;
    if turn == CommandTurn::First {
        // If the helper has ended, there is no recipient.
        drop(wire::send(prepared.helper_socket.as_fd(), &HelperMessage::Prepared, &[]));
        // The streams belong to the step: PID 1's copies would keep them open.
        rustix::stdio::dup2_stdout(&prepared.null).map_err(internal("release the step's output"))?;
        rustix::stdio::dup2_stderr(&prepared.null).map_err(internal("release the step's output"))?;
    }
    wait_for_command(prepared, signals, pid, used).map_err(internal("monitor the command"))
}

/// Adds the controls that the helper enforced, and discards limits that are not enforced.
pub(super) fn merge_instructions(prepared: &mut InitState<'_>, go: &mut InitInstructions) {
    prepared.enforcement.merge(go.tree.enforcement.clone());
    drop_unenforced_limits(&prepared.enforcement, &mut go.claim);
}

/// Waits for the command and the helper's work for it. Exits if the helper or the daemon has closed its side.
pub(super) fn receive_first_instructions(prepared: &InitState<'_>) -> Result<InitInstructions, SetupFailure> {
    let cannot = internal("wait for the command");
    drop(wire::send(prepared.helper_socket.as_fd(), &HelperMessage::Prepared, &[]));
    match wire::recv_document(prepared.helper_socket.as_fd()) {
        Ok(Some((go, _))) => Ok(go),
        Ok(None) => std::process::exit(1),
        Err(error) => Err(cannot(error)),
    }
}

pub(super) fn apply(prepared: &mut InitState<'_>, op: &SetupOp) -> InitOpResult {
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
        SetupOp::SayMounted => notify_mounted(prepared),
        SetupOp::NewKeyring => new_keyring(prepared),
        SetupOp::SyscallFilter => install_syscall_filter(prepared),
        SetupOp::Loopback => set_up_loopback(prepared),
        SetupOp::StepDown { uid, gid } => become_step_user(prepared, *uid, *gid),
        SetupOp::DropCapabilities => drop_capabilities(prepared),
        SetupOp::NoNewPrivs => no_new_privs(prepared),
        SetupOp::Undumpable => make_undumpable(),
        // Marks a position in the list; the wait follows the last operation of this stage.
        SetupOp::AwaitCommand => Ok(()),
        other => Err(SetupFailure::internal(format_args!("`{other}` is not an operation of PID 1"))),
    }
}

/// Makes PID 1's memory unreadable for the step, and keeps the host from dumping the step's memory.
fn make_undumpable() -> InitOpResult {
    command_process::disable_core_dumps().map_err(internal("switch core dumps off"))?;
    rustix::process::set_dumpable_behavior(DumpableBehavior::NotDumpable).map_err(internal("make PID 1 unreadable"))
}

/// Waits for permission of the helper to continue: first after the helper has reported PID 1 to the daemon, and again
/// when PID 1 may make its mounts. Exits if the helper has ended.
pub(super) fn wait_for_go(prepared: &InitState<'_>) -> InitOpResult {
    wait_for_go_on(&prepared.helper_socket)
}

pub(super) fn wait_for_go_on(from: &OwnedFd) -> InitOpResult {
    match wire::recv_packet(from.as_fd()) {
        Ok(Some((bytes, _))) if bytes == GO_MESSAGE => Ok(()),
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
fn join_cgroup(prepared: &mut InitState<'_>) -> InitOpResult {
    let control = Control::Cgroup;
    if let Some(error) = prepared.cgroup_fork_error.take() {
        return Err(refuse(control, "start PID 1 in the control group (clone3)")(error));
    }
    match &prepared.request.entry {
        CgroupEntry::None { reason, hint } => return Err(refused(control, reason, hint)),
        CgroupEntry::Group { group, born, .. } => {
            for tasks in prepared.tasks.iter().skip(usize::from(*born)) {
                rustix::io::write(tasks, b"0").map_err(refuse(control, "enter the control group"))?;
            }
            prepared.enforcement.record_enforced(control, group);
        }
    }
    prepared.tasks.clear();
    Ok(())
}

fn leave_cgroup_namespace(prepared: &mut InitState<'_>) -> InitOpResult {
    let control = Control::CgroupNamespace;
    nix::sched::unshare(CloneFlags::CLONE_NEWCGROUP).map_err(refuse(control, "leave the host's cgroup namespace"))?;
    prepared.enforcement.record_enforced(control, "unshare");
    Ok(())
}

fn leave_namespaces(prepared: &mut InitState<'_>, network: bool) -> InitOpResult {
    let mut flags = CloneFlags::CLONE_NEWIPC | CloneFlags::CLONE_NEWUTS;
    flags.set(CloneFlags::CLONE_NEWNET, network);
    let control = if network { Control::NetworkNamespace } else { Control::IpcNamespace };
    nix::sched::unshare(flags).map_err(refuse(control, "leave the host's namespaces"))?;
    for control in [Control::IpcNamespace, Control::UtsNamespace] {
        prepared.enforcement.record_enforced(control, "unshare");
    }
    // Must come after the namespace is created, and before the system call filter is installed, which refuses such a
    // socket.
    if network && matches!(prepared.request.entry, CgroupEntry::None { .. }) {
        let sockets = SocketMemory::open().ok();
        prepared.memory = Rc::new(MemorySources { sockets, ..MemorySources::default() });
    }
    if !network {
        prepared.enforcement.record_not_requested(Control::NetworkNamespace, "the plan allows the network");
    }
    Ok(())
}

/// Leaves the caller's session keyring, so that its keys stay protected even if a call gets past the filter.
fn new_keyring(prepared: &mut InitState<'_>) -> InitOpResult {
    let control = Control::Keyring;
    match sys::new_session_keyring() {
        Ok(()) => prepared.enforcement.record_enforced(control, "a private session keyring; keyctl is refused"),
        // On a kernel without keyrings, or in a container that refuses them, the step cannot access any.
        Err(error) if matches!(error.raw_os_error(), Some(libc::ENOSYS | libc::EPERM | libc::EDQUOT)) => {
            prepared.enforcement.record_enforced(control, format!("keyctl is refused ({error} for a private keyring)"));
        }
        Err(error) => return Err(refuse(control, "leave the caller's keyrings")(error)),
    }
    Ok(())
}

fn install_syscall_filter(prepared: &mut InitState<'_>) -> InitOpResult {
    let control = Control::SyscallFilter;
    let filter = seccomp::filter();
    if let Err(error) = filter.install() {
        check_controls_without_filter(prepared);
        return Err(refuse(control, "install the filter of system calls")(error));
    }
    prepared.enforcement.record_enforced(control, format!("seccomp, {} instructions", filter.len()));
    Ok(())
}

/// Determines by trial which other controls are lost without the system call filter.
pub(super) fn check_controls_without_filter(prepared: &mut InitState<'_>) {
    let refused = |error: &io::Error| matches!(error.raw_os_error(), Some(libc::ENOSYS | libc::EPERM));
    if !sys::new_session_keyring().is_err_and(|error| refused(&error)) {
        let reason = "keys of the same user can be named by their numbers: keyctl is not refused without the filter";
        prepared.enforcement.record_not_enforced_with_hint(Control::Keyring, reason, FILTER);
    }
    let vsock = rustix::net::AddressFamily::from_raw(libc::AF_VSOCK.unsigned_abs() as u16);
    let isolated = prepared.request.frame.network == Network::Deny;
    if isolated && rustix::net::socket(vsock, rustix::net::SocketType::STREAM, None).is_ok() {
        let reason = "sockets of AF_VSOCK, which no network namespace holds, are not refused without the filter";
        prepared.enforcement.record_not_enforced_with_hint(Control::NetworkNamespace, reason, FILTER);
    }
}

fn notify_mounted(prepared: &InitState<'_>) -> InitOpResult {
    wire::forward(prepared.helper_socket.as_fd(), MOUNTED_MESSAGE)
        .map_err(internal("report the mounts of /proc and /sys"))
}

fn start_command_process(prepared: &mut InitState<'_>, turn: CommandTurn) -> Result<Pid, SetupFailure> {
    match sys::fork().map_err(internal("start the command's process"))? {
        ForkResult::Child => command_process::run(prepared, turn),
        ForkResult::Parent(pid) => Pid::from_raw(pid).ok_or_else(|| SetupFailure::internal("fork returned no process")),
    }
}

/// Waits until the command has ended, and reaps other processes that end in the meantime.
fn wait_for_command(
    prepared: &mut InitState<'_>,
    signals: &SignalFd,
    command: Pid,
    used: &mut UsageTotals,
) -> io::Result<CommandResult> {
    let (mut limit_monitor, mut reports_exit, mut traces, mut status) = (None, false, None, None);
    let (mut terminated, mut leaks, mut has_more) = (false, Leaks::default(), false);
    loop {
        let mut fds = [PollFd::new(signals, PollFlags::IN), PollFd::new(&prepared.helper_socket, PollFlags::IN)];
        let patience = match &status {
            Some(_) => Some(&LATE_MESSAGE_TIMEOUT),
            None if has_more => Some(&NO_WAIT),
            None => limit_monitor.as_ref().and_then(LimitMonitor::max_wait),
        };
        let ready = rustix::io::retry_on_intr(|| rustix::event::poll(&mut fds, patience))?;
        if !fds[1].revents().is_empty() {
            let go = receive_instructions(prepared)?;
            reports_exit = go.reports_exit;
            traces = go.traces.filter(|_| reuse_check::has_needed_controls(&prepared.enforcement));
            limit_monitor = Some(new_limit_monitor(prepared, &go.claim));
            leaks = go.claim.command.leaks;
        }
        if let Some(status) = status.take_if(|_| limit_monitor.is_some() || ready == 0) {
            return Ok(CommandResult {
                status,
                limit: None,
                reports_exit,
                fingerprint: traces,
                limit_monitor,
                terminated,
                leaks,
            });
        }
        if descendants::read_signals(signals)? {
            terminated = true;
            terminate_all();
        }
        if status.is_none() {
            (status, has_more) = match reap_some(command, used)? {
                ReapResult::Command(ended) => (Some(ended), false),
                ReapResult::Drained => (None, false),
                ReapResult::More => (None, true),
            };
        }
        // A short command may end before the message about it arrives, which says whether the sandbox is reused.
        if let Some(status) = status.take_if(|_| limit_monitor.is_some() || !prepared.request.serves_on) {
            return Ok(CommandResult {
                status,
                limit: None,
                reports_exit,
                fingerprint: traces,
                limit_monitor,
                terminated,
                leaks,
            });
        }
        if let Some(limit) = limit_monitor.as_mut().and_then(LimitMonitor::check) {
            // PID 1's exit ends all processes.
            let (status, limit) = (WaitStatus::Signal(SIGKILL), Some(limit));
            return Ok(CommandResult {
                status,
                limit,
                reports_exit,
                fingerprint: None,
                limit_monitor: None,
                terminated,
                leaks,
            });
        }
    }
}

/// The timeout of a poll that only looks.
pub(super) const NO_WAIT: Timespec = Timespec { tv_sec: 0, tv_nsec: 0 };

/// How long PID 1 waits for the message about a command that has ended. A process that failed before it became the
/// command has no such message.
const LATE_MESSAGE_TIMEOUT: Timespec = Timespec { tv_sec: 0, tv_nsec: 500_000_000 };

/// Receives the command from the helper, which sends nothing else. Exits if the helper has ended.
fn receive_instructions(prepared: &mut InitState<'_>) -> io::Result<InitInstructions> {
    let Some((mut go, _)) = wire::recv_document::<InitInstructions>(prepared.helper_socket.as_fd())? else {
        std::process::exit(1)
    };
    merge_instructions(prepared, &mut go);
    Ok(go)
}

fn new_limit_monitor(prepared: &InitState<'_>, claim: &ClaimRequest) -> LimitMonitor {
    let is_own = prepared.enforcement.is_enforced(Control::PrivateProc);
    let sources = Rc::clone(&prepared.memory);
    if is_own { LimitMonitor::new(claim, sources) } else { LimitMonitor::for_shared_proc(claim, sources) }
}

/// The signal with which the kernel ends the processes of the namespace.
pub(super) const SIGKILL: u8 = 9;

/// Sends SIGTERM to all processes except PID 1. A missing process is not an error.
fn terminate_all() {
    let _ = nix::sys::signal::kill(nix::unistd::Pid::from_raw(-1), NixSignal::SIGTERM);
}

/// The result of [`reap_some`].
#[derive(Debug)]
pub(super) enum ReapResult {
    /// The command has ended in this way.
    Command(WaitStatus),
    /// No other process has ended.
    Drained,
    /// More processes may have ended. The caller must not wait for a signal before it reaps them.
    More,
}

/// Reaps processes that have ended, at most [`MAX_REAPED_AT_ONCE`], until `command` is among them.
pub(super) fn reap_some(command: Pid, used: &mut UsageTotals) -> io::Result<ReapResult> {
    for _ in 0..MAX_REAPED_AT_ONCE {
        match sys::reap_any(libc::WNOHANG) {
            Ok(Some(waited)) => {
                used.add(&waited.usage);
                if waited.pid == command.as_raw_nonzero().get() {
                    return Ok(ReapResult::Command(wait_status_from_raw(waited.status)));
                }
            }
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Ok(None) => return Ok(ReapResult::Drained),
            Err(error) => return Err(error),
        }
    }
    Ok(ReapResult::More)
}

/// Converts the kernel's wait status.
fn wait_status_from_raw(status: i32) -> WaitStatus {
    let byte = |number: i32| u8::try_from(number).unwrap_or(u8::MAX);
    if libc::WIFEXITED(status) {
        WaitStatus::Code(byte(libc::WEXITSTATUS(status)))
    } else {
        WaitStatus::Signal(if libc::WIFSIGNALED(status) { byte(libc::WTERMSIG(status)) } else { u8::MAX })
    }
}

/// Converts a wait status that was returned by rustix.
pub(super) fn wait_status_from_rustix(status: rustix::process::WaitStatus) -> WaitStatus {
    let byte = |number: i32| u8::try_from(number).unwrap_or(u8::MAX);
    match (status.exit_status(), status.terminating_signal()) {
        (Some(code), _) => WaitStatus::Code(byte(code)),
        (None, signal) => WaitStatus::Signal(signal.map_or(u8::MAX, byte)),
    }
}
