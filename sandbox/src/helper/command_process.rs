//! Implements the process that becomes the command: session, limits, descriptors, work directory, exec.

use std::ffi::OsStr;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use nix::sys::signal::SigSet;
use proctor_core::model::enforcement::{Control, Enforcement};
use proctor_core::model::outcome::StartFault;
use proctor_core::model::plan::{Limit, Limits, Network};
use rustix::fs::{Gid, Mode, OFlags, Uid};
use rustix::process::{Pid, Resource, Rlimit, WaitOptions};

use super::abstract_socket_probe::AbstractSocketProbe;
use super::batch_runner;
use super::exec_command::ExecCommand;
use super::landlock::{LandlockResult, LandlockRuleset};
use super::setup_failure::{LANDLOCK, SetupFailure, internal, refuse, refused};
use crate::cgroup::SEPARATE_SOCKET_BUFFERS;
use crate::helper::init_state::{CommandTurn, InitState, check_enforcement, tolerate};
use crate::host::StepUser;
use crate::policy;
use crate::setup::{SetupOp, SetupStage};
use crate::sys::{self, CloseTime, ForkResult};
use crate::wire::{self, ClaimRequest, CommandMessage, HelperMessage, MountedTree};

/// Waits for the command and executes it, or reports why that failed and exits.
pub(super) fn run(prepared: &mut InitState<'_>, turn: CommandTurn) -> ! {
    // For a later command, everything is mounted already.
    let mut inbox = CommandInbox { may_continue: turn == CommandTurn::Later, ..CommandInbox::default() };
    let failure = match wait_for_claim(prepared, &mut inbox) {
        Ok(claim) => {
            let (enforcement, wall) = (prepared.enforcement.clone(), prepared.ruleset.take());
            CommandSetup { prepared, claim: &claim, orders: inbox, enforcement, ruleset: wall }.run()
        }
        Err(failure) => failure,
    };
    // Sent over the socket that PID 1 uses for the exit, since that report could otherwise arrive first. If the
    // daemon has ended, there is no recipient.
    drop(prepared.send(&failure.into_message()));
    std::process::exit(1)
}

/// The messages received so far.
#[derive(Default)]
struct CommandInbox {
    may_continue: bool,
    claim: Option<ClaimRequest>,
    tree: Option<MountedTree>,
    /// The command's output streams, if its sandbox has served a command before.
    streams: Vec<OwnedFd>,
}

impl CommandInbox {
    fn receive(&mut self, from: &OwnedFd) -> Result<(), SetupFailure> {
        match wire::recv_document(from.as_fd()) {
            Ok(Some((CommandMessage::Go, _))) => self.may_continue = true,
            Ok(Some((CommandMessage::Claim(claim), streams))) => (self.claim, self.streams) = (Some(*claim), streams),
            Ok(Some((CommandMessage::Tree(tree), _))) => self.tree = Some(*tree),
            // Both the helper and the daemon have ended.
            Ok(None) => std::process::exit(1),
            Err(error) => return Err(internal("wait for the command")(error)),
        }
        Ok(())
    }
}

/// Executes the operations that do not need the command, once the helper has made the mounts that do not need it
/// either.
fn wait_for_claim(prepared: &mut InitState<'_>, inbox: &mut CommandInbox) -> Result<ClaimRequest, SetupFailure> {
    while !inbox.may_continue {
        inbox.receive(&prepared.command_socket)?;
    }
    let request = prepared.request;
    for op in request.ops.iter().filter(|op| op.stage() == SetupStage::Waiting) {
        let done = match op {
            SetupOp::NewSession => new_session(&mut prepared.enforcement),
            SetupOp::CloseFds => close_fds(&mut prepared.enforcement),
            // PID 1 has opened the ruleset for all commands after the first.
            SetupOp::DrawWall { .. } if prepared.ruleset.is_some() => Ok(()),
            SetupOp::DrawWall { writable } => open_ruleset(prepared, writable),
            other => Err(SetupFailure::internal(format_args!("`{other}` needs the command"))),
        };
        prepared.tolerate(op, done)?;
    }
    let mut claim = loop {
        match inbox.claim.take() {
            Some(claim) => break claim,
            None => inbox.receive(&prepared.command_socket)?,
        }
    };
    install_streams(std::mem::take(&mut inbox.streams)).map_err(internal("connect the streams of the command"))?;
    crate::helper::init_state::drop_unenforced_limits(&prepared.enforcement, &mut claim);
    Ok(claim)
}

/// Installs the command's streams. The first command of a sandbox already has them.
fn install_streams(streams: Vec<OwnedFd>) -> io::Result<()> {
    let mut streams = streams.into_iter();
    if let (Some(stdout), Some(stderr)) = (streams.next(), streams.next()) {
        rustix::stdio::dup2_stdout(&stdout)?;
        rustix::stdio::dup2_stderr(&stderr)?;
    }
    Ok(())
}

/// Opens the Landlock ruleset once for all later commands, after everything is mounted. Each command enforces it on
/// itself. If opening fails, each command tries again and reports the failure.
pub(super) fn open_ruleset_for_reuse(prepared: &mut InitState<'_>) {
    let request = prepared.request;
    for op in &request.ops {
        if let SetupOp::DrawWall { writable } = op {
            let _ = open_ruleset(prepared, writable);
        }
    }
}

fn open_ruleset(prepared: &mut InitState<'_>, writable: &[PathBuf]) -> Result<(), SetupFailure> {
    let writable: Vec<&Path> = writable.iter().map(PathBuf::as_path).collect();
    let (scratch, others) = writable.split_first().ok_or_else(|| SetupFailure::internal("no path may be writable"))?;
    prepared.ruleset = Some(
        LandlockRuleset::new(scratch, others)
            .map_err(refuse(Control::Landlock, "create the second Landlock ruleset"))?,
    );
    Ok(())
}

/// A process that is about to execute the command.
struct CommandSetup<'a> {
    prepared: &'a InitState<'a>,
    claim: &'a ClaimRequest,
    orders: CommandInbox,
    enforcement: Enforcement,
    ruleset: Option<LandlockRuleset>,
}

impl CommandSetup<'_> {
    /// Executes the remaining operations. Returns only on failure.
    fn run(mut self) -> SetupFailure {
        for op in self.claim.ops.iter().filter(|op| op.stage() == SetupStage::Command) {
            let done = self.apply(op);
            if let Err(failure) = tolerate(&mut self.enforcement, self.prepared.request, op, done) {
                return failure;
            }
        }
        SetupFailure::internal("the list of operations ends without `exec`")
    }

    fn apply(&mut self, op: &SetupOp) -> Result<(), SetupFailure> {
        match op {
            SetupOp::ResourceLimits => set_limits(self.prepared, self.claim, &mut self.enforcement),
            SetupOp::AwaitTree => self.await_tree(),
            SetupOp::Workdir { path } => enter_workdir(path, &self.prepared.request.frame.repo),
            SetupOp::Landlock { repo } => {
                enforce_landlock(self.prepared, repo, self.ruleset.take(), &mut self.enforcement)
            }
            SetupOp::Exec => {
                check_enforcement(&self.enforcement, self.prepared.request)?;
                Err(execute(self.prepared, &self.claim.command, &mut self.enforcement))
            }
            other => {
                Err(SetupFailure::internal(format_args!("`{other}` is not an operation of the command's process")))
            }
        }
    }

    fn await_tree(&mut self) -> Result<(), SetupFailure> {
        let tree = loop {
            // A tree for other layers may have been mounted before the command was known; another message follows.
            match self.orders.tree.take_if(|tree| tree.layers == self.claim.layers) {
                Some(tree) => break tree,
                None => self.orders.receive(&self.prepared.command_socket)?,
            }
        };
        self.enforcement.merge(tree.enforcement);
        if let Limit::Max(bytes) = self.claim.command.limits.disk {
            let room = tree.layers_bytes;
            let how = format!(
                "tmpfs of {room} bytes for the run's layers, {bytes} for all scratch directories, and for each file"
            );
            self.enforcement.record_enforced(Control::DiskLimit, how);
        }
        Ok(())
    }
}

pub(super) fn new_session(enforcement: &mut Enforcement) -> Result<(), SetupFailure> {
    rustix::process::setsid().map_err(refuse(Control::NewSession, "start a new session"))?;
    enforcement.record_enforced(Control::NewSession, "setsid");
    Ok(())
}

/// Returns the number of proctor's own processes that count towards the step's limit: PID 1, and the helper if it is
/// in the step's user namespace.
fn own_process_count(prepared: &InitState<'_>) -> u64 {
    if prepared.request.user.is_set_up_by_root() { 1 } else { 2 }
}

/// Text for the record if the plan sets no memory limit.
pub(super) const DEFAULT_MEMORY_NOTE: &str =
    "the plan sets no limit, so the limit is three quarters of the machine's memory";

fn set_limits(
    prepared: &InitState<'_>,
    claim: &ClaimRequest,
    enforcement: &mut Enforcement,
) -> Result<(), SetupFailure> {
    let Limits { memory, pids, disk, cpu_seconds, open_files, output: _ } = claim.command.limits;
    let unbounded = "the plan sets no limit";
    match disk {
        // Recorded once the size of the layers is known.
        Limit::Max(bytes) => {
            set_rlimit(Resource::Fsize, bytes).map_err(refuse(Control::DiskLimit, "limit the size of files"))?;
        }
        Limit::Unlimited => enforcement.record_not_requested(Control::DiskLimit, unbounded),
    }
    let mut bound = |control, limit, resource, spare: u64, held: Option<&str>, mechanism: &str| match (limit, held) {
        (Limit::Max(_), Some(held)) => {
            enforcement.record_enforced(control, held);
            Ok::<_, SetupFailure>(())
        }
        (Limit::Max(most), None) => {
            let set = set_rlimit(resource, most.saturating_add(spare));
            let in_force = set.map_err(refuse(control, format_args!("set {mechanism}")))?;
            enforcement.record_enforced(control, describe_limit(mechanism, most, in_force.saturating_sub(spare)));
            Ok(())
        }
        (Limit::Unlimited, _) => {
            enforcement.record_not_requested(
                control,
                if control == Control::MemoryLimit { DEFAULT_MEMORY_NOTE } else { unbounded },
            );
            Ok(())
        }
    };
    let own = own_process_count(prepared);
    let held = &claim.held;
    let memory_held = held.memory.as_deref().map(|how| match prepared.memory.group {
        Some(_) => how.replace(SEPARATE_SOCKET_BUFFERS, "buffers of network sockets are subtracted by PID 1"),
        None => how.to_owned(),
    });
    let (memory_held, pids_held) = (memory_held.as_deref(), held.pids.as_deref());
    let nproc = "RLIMIT_NPROC in the step's user namespace,";
    let unseen = if prepared.memory.sockets.is_some() { "" } else { "buffers of sockets, " };
    let data = format!(
        "RLIMIT_DATA of each process, and PID 1 ends the step when the sum is above ({unseen}data in pipes, locks and \
         files in transit are not counted), bytes:"
    );
    let cpu = "RLIMIT_CPU of each process, and PID 1 ends the step when the sum is above, seconds:";
    bound(Control::PidsLimit, pids, Resource::Nproc, own, pids_held, nproc)?;
    bound(Control::MemoryLimit, memory, Resource::Data, 0, memory_held, &data)?;
    bound(Control::CpuLimit, cpu_seconds, Resource::Cpu, 0, None, cpu)?;
    bound(Control::OpenFilesLimit, open_files, Resource::Nofile, 0, None, "RLIMIT_NOFILE of each process,")?;
    if pids != Limit::Unlimited && pids_held.is_none() && !is_nproc_enforced().map_err(internal("try RLIMIT_NPROC"))? {
        enforcement.record_not_enforced(Control::PidsLimit, NPROC_EXEMPTION);
    }
    Ok(())
}

/// The reason why RLIMIT_NPROC has no effect.
pub(super) const NPROC_EXEMPTION: &str =
    "the kernel exempts this user from RLIMIT_NPROC: it is root outside of the user namespaces of a container";

/// Returns whether the kernel enforces RLIMIT_NPROC for this process: with a limit of 0, a fork must fail.
pub(super) fn is_nproc_enforced() -> io::Result<bool> {
    let own = rustix::process::getrlimit(Resource::Nproc);
    rustix::process::setrlimit(Resource::Nproc, Rlimit { current: Some(0), maximum: own.maximum })?;
    let forked = sys::fork();
    if matches!(forked, Ok(ForkResult::Child)) {
        std::process::exit(0)
    }
    rustix::process::setrlimit(Resource::Nproc, own)?;
    match forked {
        Ok(ForkResult::Parent(pid)) => {
            rustix::process::waitpid(Pid::from_raw(pid), WaitOptions::empty())?;
            Ok(false)
        }
        Ok(ForkResult::Child) => Ok(false),
        Err(error) if error.raw_os_error() == Some(libc::EAGAIN) => Ok(true),
        Err(error) => Err(error),
    }
}

fn enforce_landlock(
    prepared: &InitState<'_>,
    repo: &Path,
    wall: Option<LandlockRuleset>,
    enforcement: &mut Enforcement,
) -> Result<(), SetupFailure> {
    let control = Control::Landlock;
    let outside = match prepared.request.frame.network {
        Network::Allow => Some(AbstractSocketProbe::create()?),
        Network::Deny => None,
    };
    // A failure to open the ruleset is already recorded.
    let wall = wall.map(|wall| wall.allow_changes_below(repo).and_then(LandlockRuleset::enforce)).transpose();
    if let Some(outside) = outside {
        outside.check(enforcement)?;
    }
    let Some(wall) = wall.map_err(refuse(control, "apply the second Landlock ruleset"))? else { return Ok(()) };
    match wall {
        LandlockResult::Enforced { mechanism } => enforcement.record_enforced(control, mechanism),
        LandlockResult::Unavailable { reason } => {
            return Err(refused(control, reason, LANDLOCK));
        }
    }
    Ok(())
}

/// Disables core dumps for this process and its children. The system call filter keeps them from changing that.
///
/// The limit is 1 and not 0: with 0 the kernel would still start the host's core dump handler, if there is one, and
/// pass it the step's memory (core(5)). A limit of 1 is too small for a file and disables the handler.
pub(super) fn disable_core_dumps() -> io::Result<()> {
    set_rlimit(Resource::Core, 1).map(drop)
}

/// Formats a limit of `most`, of which the host allows `in_force`.
pub(super) fn describe_limit(mechanism: &str, most: u64, in_force: u64) -> String {
    if in_force < most {
        format!("{mechanism} {in_force}: the hard limit of the host, below the {most} of the plan")
    } else {
        format!("{mechanism} {most}")
    }
}

/// Sets the soft and hard limits, capped at this process's own hard limit, and returns the soft one. For CPU time the
/// hard limit is one second higher, so that SIGXCPU, which identifies the limit, arrives before SIGKILL, which does
/// not.
pub(super) fn set_rlimit(resource: Resource, most: u64) -> io::Result<u64> {
    let own = rustix::process::getrlimit(resource).maximum;
    let within = |wanted: u64| Some(own.map_or(wanted, |own| own.min(wanted)));
    let hard = if resource == Resource::Cpu { most.saturating_add(1) } else { most };
    rustix::process::setrlimit(resource, Rlimit { current: within(most), maximum: within(hard) })?;
    Ok(own.map_or(most, |own| own.min(most)))
}

pub(super) fn close_fds(enforcement: &mut Enforcement) -> Result<(), SetupFailure> {
    let control = Control::CloseFds;
    let null = rustix::fs::open("/dev/null", OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty())
        .map_err(refuse(Control::PrivateDev, "open /dev/null"))?;
    rustix::stdio::dup2_stdin(&null).map_err(internal("make /dev/null the standard input"))?;
    sys::close_others(CloseTime::OnExec).map_err(refuse(control, "mark the other descriptors to be closed"))?;
    enforcement.record_enforced(control, "close_range from 3, on exec");
    Ok(())
}

/// Changes to the work directory. A symbolic link may lead elsewhere in the repository, but not out of it. Otherwise
/// the command would work on files that the evidence does not cover.
pub(super) fn enter_workdir(path: &Path, repo: &Path) -> Result<(), SetupFailure> {
    let not_started = |message| SetupFailure::NotStarted {
        fault: StartFault::Workdir,
        message: format!("the work directory {message}"),
    };
    let cannot = |errno| not_started(format!("`{}` cannot be entered: {errno}", path.display()));
    rustix::process::chdir(path).map_err(cannot)?;
    let here = rustix::process::getcwd(Vec::new()).map_err(cannot)?;
    let here = Path::new(OsStr::from_bytes(here.to_bytes()));
    if here.starts_with(repo) {
        return Ok(());
    }
    let message = format!("`{}` is `{}`, which is outside the repository", path.display(), here.display());
    Err(not_started(message))
}

/// Reports that all controls are enforced, and executes the command, once for each batch of files. Returns only on
/// failure.
pub(super) fn execute(
    prepared: &InitState<'_>,
    wanted: &policy::CommandPolicy,
    enforcement: &mut Enforcement,
) -> SetupFailure {
    let commands = match ExecCommand::for_policy(wanted) {
        Ok(commands) => commands,
        Err(nul) => return SetupFailure::internal(format_args!("the command contains a NUL byte: {nul}")),
    };
    enforcement.record_enforced(Control::CleanEnvironment, "execve with only the variables of the policy");
    if let Err(error) = prepared.send(&HelperMessage::Ready(std::mem::take(enforcement))) {
        return internal("report that the sandbox is ready")(error);
    }
    if let Err(errno) = SigSet::empty().thread_set_mask() {
        return internal("unblock signals")(errno);
    }
    match commands.as_slice() {
        [command] => command.execute(),
        commands => batch_runner::run(commands, &wanted.files),
    }
}

/// Makes the step's user the owner of its output pipes, so that the step may reopen them through `/dev/stdout` and
/// `/dev/stderr`.
pub(super) fn chown_streams(user: StepUser) -> io::Result<()> {
    let (uid, gid) = (Some(Uid::from_raw(user.uid())), Some(Gid::from_raw(user.gid())));
    rustix::fs::fchown(rustix::stdio::stdout(), uid, gid)?;
    Ok(rustix::fs::fchown(rustix::stdio::stderr(), uid, gid)?)
}
