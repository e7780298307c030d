//! Implements the first process of a step without namespaces: drops privileges, starts the command, adopts orphaned
//! processes, and ends with the command.

use std::io;
use std::os::fd::{AsFd, OwnedFd};

use nix::sys::signalfd::{SfdFlags, SignalFd};
use proctor_core::model::enforcement::Control;
use proctor_core::model::leak::LeakedProcesses;
use proctor_core::model::outcome::LimitKind;
use proctor_core::model::plan::{Leaks, Network};
use rustix::event::{PollFd, PollFlags};
use rustix::process::Pid;
use rustix::thread::{CapabilitySet, Gid, Uid};

use super::command_process;
use crate::capabilities;
use crate::helper::descendants::SignalReach;
use crate::helper::init::{NO_WAIT, ReapResult};
use crate::helper::init_state::InitState;
use crate::helper::leftover_processes::{self, ProcessScope};
use crate::helper::limit_monitor::LimitMonitor;
use crate::helper::setup_failure::{SetupFailure, internal, refuse, refused};
use crate::helper::{descendants, init as pid_one};
use crate::host::StepUser;
use crate::resource_report::{ExhaustedSpace, WaitStatus};
use crate::seccomp;
use crate::setup::SetupOp;
use crate::sys::{self, ForkResult};
use crate::wire::{self, HelperMessage, HostDirSandboxRequest};

type FirstProcessOpResult = Result<(), SetupFailure>;

/// The result of the command.
struct SupervisedResult {
    status: WaitStatus,
    limit: Option<LimitKind>,
    leaked: Option<LeakedProcesses>,
}

/// Runs until the command has ended.
pub(super) fn run(
    mut prepared: InitState<'_>,
    request: &HostDirSandboxRequest,
    reach: SignalReach,
    control: &mut OwnedFd,
) -> ! {
    let ready = set_up_first_process(&mut prepared, request, control);
    match ready.and_then(|()| serve_command(&mut prepared, request, reach)) {
        Ok(SupervisedResult { status, limit, leaked }) => {
            let exited = HelperMessage::Exited {
                status,
                limit,
                alone: false,
                serves_on: false,
                leaked,
                view: None,
                scratch: ExhaustedSpace::default(),
                user_ms: 0,
                system_ms: 0,
                max_rss_kib: 0,
            };
            // If the helper has ended, there is no recipient.
            drop(wire::send(prepared.helper_socket.as_fd(), &exited, &[]));
            std::process::exit(0)
        }
        Err(failure) => prepared.report_failure(failure),
    }
}

fn set_up_first_process(
    prepared: &mut InitState<'_>,
    request: &HostDirSandboxRequest,
    control: &mut OwnedFd,
) -> FirstProcessOpResult {
    descendants::become_subreaper().map_err(internal("adopt the step's processes"))?;
    pid_one::wait_for_go(prepared)?;
    pid_one::close_control(&prepared.null, control).map_err(internal("close the control socket"))?;
    super::record_missing_controls(&mut prepared.enforcement, request);
    apply_shared_op(prepared, &SetupOp::JoinCgroup)?;
    // Must come before the change of user, which removes the permission to do so.
    let bounded = empty_bounding_set()?;
    become_step_user(request.sandbox.user)?;
    apply_shared_op(prepared, &SetupOp::NewKeyring)?;
    drop_capabilities(prepared, bounded)?;
    // Must come after the last change of credentials, because each change resets the flag.
    apply_shared_op(prepared, &SetupOp::NoNewPrivs)?;
    apply_shared_op(prepared, &SetupOp::Undumpable)?;
    let filtered = install_syscall_filter(prepared, request);
    prepared.tolerate(&SetupOp::SyscallFilter, filtered)?;
    super::record_network_control(&mut prepared.enforcement, request);
    Ok(())
}

/// Executes an operation that is the same as in a sandbox with namespaces.
fn apply_shared_op(prepared: &mut InitState<'_>, op: &SetupOp) -> FirstProcessOpResult {
    let done = pid_one::apply(prepared, op);
    prepared.tolerate(op, done)
}

/// Becomes the step's user. A failure is never tolerated: a step under root would otherwise run as root.
fn become_step_user(user: StepUser) -> FirstProcessOpResult {
    if !user.is_set_up_by_root() {
        return Ok(());
    }
    let (uid, gid) = (Uid::from_raw(user.uid()), Gid::from_raw(user.gid()));
    let become_step = || {
        rustix::thread::set_thread_groups(&[])?;
        rustix::thread::set_thread_res_gid(gid, gid, gid)?;
        rustix::thread::set_thread_res_uid(uid, uid, uid)
    };
    let what = format_args!("become user {} and group {}", user.uid(), user.gid());
    become_step().map_err(refuse(Control::UserNamespace, what))?;
    let is_step = rustix::process::getuid() == uid && rustix::process::geteuid() == uid;
    if is_step && rustix::process::getgid() == gid && rustix::process::getegid() == gid {
        return Ok(());
    }
    let message = format!("the step is not user {} after the change of user", user.uid());
    Err(refused(Control::UserNamespace, message, "report this with the kernel's version"))
}

/// Returns whether the bounding set is empty. Emptying it needs `CAP_SETPCAP`.
fn empty_bounding_set() -> Result<bool, SetupFailure> {
    for bit in 0..u64::BITS {
        match rustix::thread::remove_capability_from_bounding_set(CapabilitySet::from_bits_retain(1 << bit)) {
            Ok(()) => {}
            Err(rustix::io::Errno::INVAL) => break,
            Err(rustix::io::Errno::PERM) => return Ok(capabilities::is_bounding_set_empty()),
            Err(errno) => return Err(refuse(Control::NoCapabilities, "empty the bounding set")(errno)),
        }
    }
    Ok(true)
}

fn drop_capabilities(prepared: &mut InitState<'_>, bounded: bool) -> FirstProcessOpResult {
    let control = Control::NoCapabilities;
    pid_one::empty_capability_sets()?;
    let bounding = if bounded { "bounding, " } else { "no_new_privs keeps it from using its bounding set; " };
    let how = format!("{bounding}ambient, permitted, effective and inheritable sets are empty");
    prepared.enforcement.record_enforced(control, how);
    Ok(())
}

fn install_syscall_filter(prepared: &mut InitState<'_>, request: &HostDirSandboxRequest) -> FirstProcessOpResult {
    let control = Control::SyscallFilter;
    let filter = match request.sandbox.frame.network {
        Network::Allow => seccomp::filter(),
        Network::Deny => seccomp::filter_without_internet(),
    };
    if let Err(error) = filter.install() {
        pid_one::check_controls_without_filter(prepared);
        return Err(refuse(control, "install the filter of system calls")(error));
    }
    prepared.enforcement.record_enforced(control, format!("seccomp, {} instructions", filter.len()));
    Ok(())
}

/// Waits for the command, runs it, and returns how it ended.
fn serve_command(
    prepared: &mut InitState<'_>,
    request: &HostDirSandboxRequest,
    reach: SignalReach,
) -> Result<SupervisedResult, SetupFailure> {
    let go = pid_one::receive_first_instructions(prepared)?;
    prepared.enforcement.0.extend(go.tree.enforcement.0.clone());
    let pid = match sys::fork().map_err(internal("start the command's process"))? {
        ForkResult::Child => command_process::run(prepared, request, &go),
        ForkResult::Parent(pid) => {
            Pid::from_raw(pid).ok_or_else(|| SetupFailure::internal("fork returned no process"))?
        }
    };
    watch_command(prepared, pid, LimitMonitor::for_descendants(&go.claim), (go.claim.command.leaks, reach))
        .map_err(internal("monitor the command"))
}

/// Waits until the command has ended, and reaps other processes that end in the meantime.
fn watch_command(
    prepared: &InitState<'_>,
    command: Pid,
    mut limit_monitor: LimitMonitor,
    (leaks, reach): (Leaks, SignalReach),
) -> io::Result<SupervisedResult> {
    // The streams belong to the step: this process's copies would keep them open.
    let null = rustix::fs::open("/dev/null", rustix::fs::OFlags::RDWR, rustix::fs::Mode::empty())?;
    rustix::stdio::dup2_stdout(&null)?;
    rustix::stdio::dup2_stderr(&null)?;
    // The result is not used: the helper sums up the usage of all processes.
    let mut used = crate::helper::usage_totals::UsageTotals::default();
    let (mut terminated, mut has_more) = (false, false);
    let signals = SignalFd::with_flags(&pid_one::handled_signals(), SfdFlags::SFD_CLOEXEC | SfdFlags::SFD_NONBLOCK)?;
    loop {
        let mut fds = [PollFd::new(&signals, PollFlags::IN), PollFd::new(&prepared.helper_socket, PollFlags::IN)];
        let patience = if has_more { Some(&NO_WAIT) } else { limit_monitor.max_wait() };
        rustix::io::retry_on_intr(|| rustix::event::poll(&mut fds, patience))?;
        // The helper sends nothing after the command, so this means that the helper has ended, and cannot end the
        // step any more.
        if !fds[1].revents().is_empty() {
            drop(descendants::kill_all(reach));
            std::process::exit(1);
        }
        if descendants::read_signals(&signals)? {
            terminated = true;
            descendants::terminate();
        }
        let reaped = pid_one::reap_some(command, &mut used)?;
        has_more = matches!(reaped, ReapResult::More);
        if let ReapResult::Command(status) = reaped {
            let is_looked_for = leaks != Leaks::Ignore && !leftover_processes::has_no_descendants(&mut used);
            let watch = leftover_processes::CommandWatch {
                signals: &signals,
                limit_monitor: Some(&mut limit_monitor),
                used: &mut used,
                terminated,
            };
            let leaked = is_looked_for
                .then(|| leftover_processes::describe_leftovers(ProcessScope::Descendants, watch))
                .flatten();
            return Ok(SupervisedResult { status, limit: None, leaked });
        }
        if let Some(limit) = limit_monitor.check() {
            // The helper kills all processes after this one has ended.
            return Ok(SupervisedResult {
                status: WaitStatus::Signal(pid_one::SIGKILL),
                limit: Some(limit),
                leaked: None,
            });
        }
    }
}
