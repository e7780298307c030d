//! Runs one sandbox without namespaces in the helper, on a kernel that refuses them: a copy of the tree replaces the
//! overlay, Landlock replaces mounts, and two supervisors replace the PID namespace.
//!
//! The helper and the first process of the step both adopt orphaned processes, and watch each other: when one ends,
//! the other kills every process of the step. So neither of them may die with its parent as PID 1 of a namespace
//! does. The control socket shows whether the daemon has ended.

mod attempt_dirs;
mod command_process;
mod first_process;
mod landlock_rules;
mod resource_limits;

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::rc::Rc;

use proctor_core::model::enforcement::{Control, Enforcement};
use proctor_core::model::plan::Network;
use rustix::event::{PollFd, PollFlags};
use rustix::process::{DumpableBehavior, Pid, PidfdFlags};

use self::attempt_dirs::AttemptDirs;
use super::descendants::SignalReach;
use super::setup_failure::{SetupFailure, internal};
use super::supervisor::{self, MessageRelay};
use super::{command_process as shared, descendants, init as pid_one};
use crate::helper::init_state::{GO_MESSAGE, InitState};
use crate::sys::ForkResult;
use crate::wire::{self, HelperMessage, HostDirSandboxRequest, InitInstructions, MountedTree};

pub(super) fn run_sandbox(
    control: &mut OwnedFd,
    request: &HostDirSandboxRequest,
    fds: &[OwnedFd],
) -> Result<(), SetupFailure> {
    let reach = become_supervisor().map_err(internal("set up the process that ends the step"))?;
    let user = request.sandbox.user;
    if user.is_set_up_by_root() {
        shared::chown_streams(user).map_err(internal("connect the step's streams"))?;
        rustix::thread::set_thread_groups(&[]).map_err(internal("leave the groups of root"))?;
    }
    pid_one::block_signals().map_err(internal("block signals"))?;
    let (ours, channel) = wire::socket_pair().map_err(internal("create a socket pair"))?;
    let (forked, unborn) =
        supervisor::fork_init(&request.sandbox.entry, fds).map_err(internal("start the first process"))?;
    match forked {
        ForkResult::Child => {
            drop(ours);
            let tasks = fds.iter().map(OwnedFd::try_clone).collect::<io::Result<_>>();
            let tasks = tasks.map_err(internal("read the control group"))?;
            let (sandbox, enforcement) = (&request.sandbox, Enforcement::default());
            let null = supervisor::open_null().map_err(internal("open /dev/null"))?;
            // Without namespaces, the first process itself receives the command.
            let orders = channel.try_clone().map_err(internal("double a descriptor"))?;
            let prepared = InitState {
                request: sandbox,
                enforcement,
                tasks,
                memory: Rc::default(),
                cgroup_fork_error: unborn,
                null,
                ruleset: None,
                command_socket: orders,
                helper_socket: channel,
                daemon_socket: None,
            };
            first_process::run(prepared, request, reach, control)
        }
        ForkResult::Parent(pid) => {
            drop(channel);
            supervise(control.as_fd(), ours, pid, request, reach).map_err(internal("monitor the step"))
        }
    }
}

/// Prepares this process as a supervisor. The step runs as the same user: it must not read the supervisor's memory,
/// and none of its processes may escape adoption.
fn become_supervisor() -> io::Result<SignalReach> {
    rustix::process::set_parent_process_death_signal(None)?;
    rustix::process::set_dumpable_behavior(DumpableBehavior::NotDumpable)?;
    descendants::become_supervisor()
}

fn supervise(
    control: BorrowedFd<'_>,
    channel: OwnedFd,
    pid: i32,
    request: &HostDirSandboxRequest,
    reach: SignalReach,
) -> io::Result<()> {
    let pid = Pid::from_raw(pid).ok_or_else(|| io::Error::other("fork returned no process"))?;
    let first = rustix::process::pidfd_open(pid, PidfdFlags::empty())?;
    let null = rustix::fs::open("/dev/null", rustix::fs::OFlags::RDWR, rustix::fs::Mode::empty())?;
    rustix::stdio::dup2_stdout(&null)?;
    rustix::stdio::dup2_stderr(&null)?;
    // The order matters to `RunningSandbox::kill`.
    wire::send(control, &HelperMessage::Init, &[first.as_fd()])?;
    let mut relay = MessageRelay {
        socket: Some(channel),
        exited: None,
        lone_exit: None,
        has_sent_final: false,
        must_finalize: true,
    };
    if supervisor::is_daemon_gone(control)? {
        supervisor::kill_init(&first);
    } else if let Some(channel) = &relay.socket {
        // The process may have died already, which is noticed below.
        drop(wire::forward(channel.as_fd(), GO_MESSAGE));
    }
    let waited = wait_for_first_process(control, &first, &mut relay, request);
    let status = supervisor::reap_init(pid);
    if descendants::kill_all(reach).is_err() {
        // Exits without a final report, which would claim that all processes have ended.
        std::process::exit(1);
    }
    let (place, status) = (waited?, status?);
    relay.relay_all(control)?;
    if let Some(message) = relay.final_message(status)? {
        // If the daemon has ended, the answer is not needed.
        let message = match place {
            Some(place) => place.finalize(message),
            None => message,
        };
        drop(wire::send(control, &message, &[]));
    }
    Ok(())
}

/// Waits until the first process has ended, and serves the command when it arrives.
fn wait_for_first_process(
    control: BorrowedFd<'_>,
    first: &OwnedFd,
    relay: &mut MessageRelay,
    request: &HostDirSandboxRequest,
) -> io::Result<Option<AttemptDirs>> {
    let (mut daemon_gone, mut claimed, mut place) = (false, false, None);
    loop {
        let mut fds = vec![PollFd::new(first, PollFlags::IN)];
        fds.extend(relay.socket.as_ref().map(|channel| PollFd::new(channel, PollFlags::IN)));
        if !daemon_gone {
            let wanted = if claimed { PollFlags::RDHUP } else { PollFlags::IN | PollFlags::RDHUP };
            fds.push(PollFd::from_borrowed_fd(control, wanted));
        }
        rustix::io::retry_on_intr(|| rustix::event::poll(&mut fds, None))?;
        let has_ended = !fds[0].revents().is_empty();
        let has_message = relay.socket.is_some() && !fds[1].revents().is_empty();
        let has_claim = !daemon_gone && fds.last().is_some_and(|fd| fd.revents().contains(PollFlags::IN));
        if has_message {
            relay.relay_next(control)?;
        }
        if has_ended {
            return Ok(place);
        }
        if !daemon_gone && supervisor::is_daemon_gone(control)? {
            daemon_gone = true;
            supervisor::kill_init(first);
        } else if has_claim && !claimed {
            claimed = true;
            place = prepare_tree(control, first, relay, request)?;
        }
    }
}

/// Makes the copy of the tree, and passes the command to the first process.
fn prepare_tree(
    control: BorrowedFd<'_>,
    first: &OwnedFd,
    relay: &mut MessageRelay,
    request: &HostDirSandboxRequest,
) -> io::Result<Option<AttemptDirs>> {
    // `None` means that the daemon has closed its side, which the next check notices.
    let Some(mut claim) = wire::receive_claim(control)? else { return Ok(None) };
    match AttemptDirs::create(request, &claim) {
        Ok((place, enforcement)) => {
            place.redirect_env(&mut claim.command.env, &request.sandbox.frame);
            let tree = MountedTree { layers: claim.layers.clone(), enforcement, layers_bytes: 0 };
            let go = InitInstructions { claim, tree, reports_exit: false, traces: None };
            if let Some(channel) = &relay.socket {
                // The process may have died after a refusal, which is received next.
                drop(wire::send_document(channel.as_fd(), &go, &[]));
            }
            return Ok(Some(place));
        }
        // If the first process has already refused the step, its report counts.
        Err(_) if relay.has_sent_final => {}
        Err(failure) => {
            relay.has_sent_final = true;
            wire::send(control, &failure.into_message(), &[])?;
        }
    }
    supervisor::kill_init(first);
    Ok(None)
}

/// Records the controls that such a sandbox lacks, and what replaces them.
fn record_missing_controls(enforcement: &mut Enforcement, request: &HostDirSandboxRequest) {
    let why = request.refusal.as_str();
    let user = match request.sandbox.user.uid() {
        // Root becomes another user, so this is a caller without capabilities.
        0 => "it runs as user 0 like its caller, who has no capabilities either".to_owned(),
        user => format!("it runs as user {user} of the host, without capabilities"),
    };
    let lacks = [
        (Control::UserNamespace, user),
        (Control::MountNamespace, "it sees the host's mounts".to_owned()),
        (
            Control::PidNamespace,
            "it sees the host's processes; Proctor's reaper finds its descendants and kills them".to_owned(),
        ),
        (Control::IpcNamespace, "it shares System V IPC and message queues with the host".to_owned()),
        (Control::UtsNamespace, "it sees the host's hostname".to_owned()),
        (Control::CgroupNamespace, "it sees the host's control groups".to_owned()),
        (Control::PrivateProc, "it sees the host's /proc, limited by file modes and Landlock".to_owned()),
        (Control::KernelFiles, "it sees the host's /proc and /sys, limited by their file modes".to_owned()),
        (
            Control::PrivateTmp,
            "`TMPDIR` and `HOME` are private directories on the host's disk, without a size limit".to_owned(),
        ),
    ];
    for (control, instead) in lacks {
        enforcement.record_not_enforced_with_hint(control, format!("{instead} ({why})"), &request.hint);
    }
}

/// Records to what extent a filter denies the network.
fn record_network_control(enforcement: &mut Enforcement, request: &HostDirSandboxRequest) {
    let control = Control::NetworkNamespace;
    let is_filtered = enforcement.missing().all(|(missing, _)| missing != Control::SyscallFilter);
    let instead = match (request.sandbox.frame.network, is_filtered) {
        (Network::Allow, _) => return enforcement.record_not_requested(control, "the plan allows the network"),
        (Network::Deny, true) => {
            "seccomp refuses internet sockets, including the loopback device; Unix sockets of the host can be reached \
             if their file modes permit it"
        }
        (Network::Deny, false) => "no mechanism restricts the network",
    };
    enforcement.record_not_enforced_with_hint(control, format!("{instead} ({})", request.refusal), &request.hint);
}
