//! Implements the first process of a step without namespaces: drops privileges, starts the command, adopts orphaned
//! processes, and ends with the command.

use std::io;
use std::os::fd::{AsFd, OwnedFd};

use nix::sys::signalfd::{SfdFlags, SignalFd};
use proctor_core::enforcement::Control;
use proctor_core::leak::LeakedProcesses;
use proctor_core::outcome::LimitKind;
use proctor_core::plan::{Leaks, Network};
use rustix::event::{PollFd, PollFlags};
use rustix::process::Pid;
use rustix::thread::{CapabilitySet, CapabilitySets, Gid, Uid};

use super::command;
use crate::helper::attempt::Prepared;
use crate::helper::failure::{Failure, internal, refuse, refused};
use crate::helper::leaks::{self, Scope};
use crate::helper::warden::Warden;
use crate::helper::{init as pid_one, kin};
use crate::host::StepUser;
use crate::running::WaitStatus;
use crate::seccomp;
use crate::setup::SetupOp;
use crate::space::Spent;
use crate::sys::{self, Fork};
use crate::wire::{self, Message, PlainRequest};

type Done = Result<(), Failure>;

/// The result of the command.
struct Ended {
    status: WaitStatus,
    limit: Option<LimitKind>,
    leaked: Option<LeakedProcesses>,
}

/// Runs until the command has ended.
pub(super) fn run(mut prepared: Prepared<'_>, request: &PlainRequest, control: &mut OwnedFd) -> ! {
    match set_up(&mut prepared, request, control).and_then(|()| serve(&mut prepared, request)) {
        Ok(Ended { status, limit, leaked }) => {
            let exited = Message::Exited {
                status,
                limit,
                alone: false,
                serves_on: false,
                leaked,
                scratch: Spent::default(),
                user_ms: 0,
                system_ms: 0,
                max_rss_kib: 0,
            };
            // If the helper has ended, there is no recipient.
            drop(wire::send(prepared.channel.as_fd(), &exited, &[]));
            std::process::exit(0)
        }
        Err(failure) => prepared.fail(failure),
    }
}

fn set_up(prepared: &mut Prepared<'_>, request: &PlainRequest, control: &mut OwnedFd) -> Done {
    kin::adopt().map_err(internal("adopt the step's processes"))?;
    pid_one::wait_for_go(prepared)?;
    pid_one::close_control(&prepared.null, control).map_err(internal("close the control socket"))?;
    super::confess(&mut prepared.enforcement, request);
    shared(prepared, &SetupOp::JoinCgroup)?;
    // Before the change of user, which removes the permission to do so.
    let bounded = empty_bounding_set()?;
    step_down(request.sandbox.user)?;
    shared(prepared, &SetupOp::NewKeyring)?;
    drop_capabilities(prepared, bounded)?;
    // After the last change of credentials, each of which resets the flag.
    shared(prepared, &SetupOp::NoNewPrivs)?;
    shared(prepared, &SetupOp::Undumpable)?;
    let filtered = filter(prepared, request);
    prepared.tolerate(&SetupOp::SyscallFilter, filtered)?;
    super::confess_network(&mut prepared.enforcement, request);
    Ok(())
}

/// Executes an operation that is the same as in a sandbox with namespaces.
fn shared(prepared: &mut Prepared<'_>, op: &SetupOp) -> Done {
    let done = pid_one::apply(prepared, op);
    prepared.tolerate(op, done)
}

/// Becomes the step's user. A failure is never tolerated: a step under root would otherwise run as root.
fn step_down(user: StepUser) -> Done {
    if !user.steps_down() {
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

/// Returns whether the bounding set could be emptied, which needs `CAP_SETPCAP`.
fn empty_bounding_set() -> Result<bool, Failure> {
    for bit in 0..u64::BITS {
        match rustix::thread::remove_capability_from_bounding_set(CapabilitySet::from_bits_retain(1 << bit)) {
            Ok(()) => {}
            Err(rustix::io::Errno::INVAL) => break,
            Err(rustix::io::Errno::PERM) => return Ok(false),
            Err(errno) => return Err(refuse(Control::NoCapabilities, "empty the bounding set")(errno)),
        }
    }
    Ok(true)
}

fn drop_capabilities(prepared: &mut Prepared<'_>, bounded: bool) -> Done {
    let control = Control::NoCapabilities;
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
    let bounding = if bounded { "bounding, " } else { "no_new_privs keeps it from using its bounding set; " };
    let how = format!("{bounding}ambient, permitted, effective and inheritable sets are empty");
    prepared.enforcement.enforced(control, how);
    Ok(())
}

fn filter(prepared: &mut Prepared<'_>, request: &PlainRequest) -> Done {
    let control = Control::SyscallFilter;
    let filter = match request.sandbox.frame.network {
        Network::Allow => seccomp::filter(),
        Network::Deny => seccomp::filter_without_internet(),
    };
    if let Err(error) = filter.install() {
        pid_one::look_without_filter(prepared);
        return Err(refuse(control, "install the filter of system calls")(error));
    }
    prepared.enforcement.enforced(control, format!("seccomp, {} instructions", filter.len()));
    Ok(())
}

/// Waits for the command, runs it, and returns how it ended.
fn serve(prepared: &mut Prepared<'_>, request: &PlainRequest) -> Result<Ended, Failure> {
    let go = pid_one::wait_for_command_to_run(prepared)?;
    prepared.enforcement.0.extend(go.tree.enforcement.0.clone());
    let pid = match sys::fork().map_err(internal("start the command's process"))? {
        Fork::Child => command::run(prepared, request, &go),
        Fork::Parent(pid) => Pid::from_raw(pid).ok_or_else(|| Failure::internal("fork returned no process"))?,
    };
    watch(prepared, pid, Warden::of_kin(&go.claim), go.claim.command.leaks).map_err(internal("watch over the command"))
}

/// Waits until the command has ended, and reaps other processes that end in the meantime.
fn watch(prepared: &Prepared<'_>, command: Pid, mut warden: Warden, leaks: Leaks) -> io::Result<Ended> {
    // The streams belong to the step: this process's copies would keep them open.
    let null = rustix::fs::open("/dev/null", rustix::fs::OFlags::RDWR, rustix::fs::Mode::empty())?;
    rustix::stdio::dup2_stdout(&null)?;
    rustix::stdio::dup2_stderr(&null)?;
    // The result is not used: the helper sums up the usage of all processes.
    let mut used = pid_one::Used::default();
    let mut terminated = false;
    let signals = SignalFd::with_flags(&pid_one::handled(), SfdFlags::SFD_CLOEXEC | SfdFlags::SFD_NONBLOCK)?;
    loop {
        let mut fds = [PollFd::new(&signals, PollFlags::IN), PollFd::new(&prepared.channel, PollFlags::IN)];
        rustix::io::retry_on_intr(|| rustix::event::poll(&mut fds, warden.patience()))?;
        // The helper sends nothing after the command, so this means that the helper has ended, and cannot end the
        // step any more.
        if !fds[1].revents().is_empty() {
            drop(kin::end_all());
            std::process::exit(1);
        }
        while let Some(signal) = signals.read_signal()? {
            if signal.ssi_signo == libc::SIGTERM.cast_unsigned() {
                terminated = true;
                kin::terminate();
            }
        }
        if let Some(status) = pid_one::reap_all(command, &mut used)? {
            let is_looked_for = leaks != Leaks::Ignore && !leaks::none_is_left(&mut used);
            let watch = leaks::Watch { signals: &signals, warden: Some(&mut warden), used: &mut used, terminated };
            let leaked = is_looked_for.then(|| leaks::find(Scope::Descendants, watch)).flatten();
            return Ok(Ended { status, limit: None, leaked });
        }
        if let Some(limit) = warden.look() {
            // The helper kills all processes after this one has ended.
            return Ok(Ended { status: WaitStatus::Signal(pid_one::SIGKILL), limit: Some(limit), leaked: None });
        }
    }
}
