//! Implements the process that becomes the command: session, limits, descriptors, work directory, exec.

use std::ffi::{CString, OsStr};
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use nix::errno::Errno;
use nix::sys::signal::SigSet;
use proctor_core::enforcement::{Control, Enforcement};
use proctor_core::outcome::StartFault;
use proctor_core::plan::{Limit, Limits, Network};
use rustix::fs::{Gid, Mode, OFlags, Uid};
use rustix::process::{Resource, Rlimit};

use super::attempt::{Prepared, demand, tolerate};
use super::failure::{Failure, LANDLOCK, internal, refuse, refused};
use super::init::{self, Turn};
use super::landlock::{Wall, Walled};
use super::outside::Outside;
use crate::cgroup::APART;
use crate::host::StepUser;
use crate::policy;
use crate::setup::{SetupOp, Stage};
use crate::sys::{self, Close};
use crate::wire::{self, Claim, Message, Order, Tree};

/// Waits for the command and executes it, or reports why that failed and exits.
pub(super) fn run(prepared: &mut Prepared<'_>, turn: Turn) -> ! {
    // For a later command, everything is mounted already.
    let mut orders = Orders { goes_on: turn == Turn::Later, ..Orders::default() };
    let failure = match wait(prepared, &mut orders) {
        Ok(claim) => {
            let (enforcement, wall) = (prepared.enforcement.clone(), prepared.wall.take());
            Becoming { prepared, claim: &claim, orders, enforcement, wall }.the_command()
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
struct Orders {
    goes_on: bool,
    claim: Option<Claim>,
    tree: Option<Tree>,
    /// The command's output streams, if its sandbox has served a command before.
    streams: Vec<OwnedFd>,
}

impl Orders {
    fn hear(&mut self, from: &OwnedFd) -> Result<(), Failure> {
        match wire::recv_document(from.as_fd()) {
            Ok(Some((Order::Go, _))) => self.goes_on = true,
            Ok(Some((Order::Claim(claim), streams))) => (self.claim, self.streams) = (Some(*claim), streams),
            Ok(Some((Order::Tree(tree), _))) => self.tree = Some(*tree),
            // Both the helper and the daemon have ended.
            Ok(None) => std::process::exit(1),
            Err(error) => return Err(internal("wait for the command")(error)),
        }
        Ok(())
    }
}

/// Executes the operations that do not need the command, once the helper has made the mounts that do not need it
/// either.
fn wait(prepared: &mut Prepared<'_>, orders: &mut Orders) -> Result<Claim, Failure> {
    while !orders.goes_on {
        orders.hear(&prepared.orders)?;
    }
    let request = prepared.request;
    for op in request.ops.iter().filter(|op| op.stage() == Stage::Waiting) {
        let done = match op {
            SetupOp::NewSession => new_session(&mut prepared.enforcement),
            SetupOp::CloseFds => close_fds(&mut prepared.enforcement),
            // PID 1 has opened the ruleset for all commands after the first.
            SetupOp::DrawWall { .. } if prepared.wall.is_some() => Ok(()),
            SetupOp::DrawWall { writable } => draw(prepared, writable),
            other => Err(Failure::internal(format_args!("`{other}` needs the command"))),
        };
        prepared.tolerate(op, done)?;
    }
    let mut claim = loop {
        match orders.claim.take() {
            Some(claim) => break claim,
            None => orders.hear(&prepared.orders)?,
        }
    };
    take_streams(std::mem::take(&mut orders.streams)).map_err(internal("take the streams of the command"))?;
    init::forget_what_is_not_held(&prepared.enforcement, &mut claim);
    Ok(claim)
}

/// Installs the command's streams. The first command of a sandbox already has them.
fn take_streams(streams: Vec<OwnedFd>) -> io::Result<()> {
    let mut streams = streams.into_iter();
    if let (Some(stdout), Some(stderr)) = (streams.next(), streams.next()) {
        rustix::stdio::dup2_stdout(&stdout)?;
        rustix::stdio::dup2_stderr(&stderr)?;
    }
    Ok(())
}

/// Opens the Landlock ruleset once for all later commands, after everything is mounted. Each command enforces it on
/// itself. If opening fails, each command tries again and reports the failure.
pub(super) fn draw_for_all(prepared: &mut Prepared<'_>) {
    let request = prepared.request;
    for op in &request.ops {
        if let SetupOp::DrawWall { writable } = op {
            let _ = draw(prepared, writable);
        }
    }
}

fn draw(prepared: &mut Prepared<'_>, writable: &[PathBuf]) -> Result<(), Failure> {
    let writable: Vec<&Path> = writable.iter().map(PathBuf::as_path).collect();
    let (scratch, others) = writable.split_first().ok_or_else(|| Failure::internal("nothing is to be writable"))?;
    prepared.wall = Some(Wall::new(scratch, others).map_err(refuse(Control::Landlock, "draw the second wall"))?);
    Ok(())
}

/// A process that is about to execute the command.
struct Becoming<'a> {
    prepared: &'a Prepared<'a>,
    claim: &'a Claim,
    orders: Orders,
    enforcement: Enforcement,
    wall: Option<Wall>,
}

impl Becoming<'_> {
    /// Executes the remaining operations. Returns only on failure.
    fn the_command(mut self) -> Failure {
        for op in self.claim.ops.iter().filter(|op| op.stage() == Stage::Command) {
            let done = self.apply(op);
            if let Err(failure) = tolerate(&mut self.enforcement, self.prepared.request, op, done) {
                return failure;
            }
        }
        Failure::internal("the list of operations ends without `exec`")
    }

    fn apply(&mut self, op: &SetupOp) -> Result<(), Failure> {
        match op {
            SetupOp::ResourceLimits => limit(self.prepared, self.claim, &mut self.enforcement),
            SetupOp::AwaitTree => self.await_tree(),
            SetupOp::Workdir { path } => change_to(path, &self.prepared.request.frame.repo),
            SetupOp::Landlock { repo } => restrict(self.prepared, repo, self.wall.take(), &mut self.enforcement),
            SetupOp::Exec => {
                demand(&self.enforcement, self.prepared.request)?;
                Err(execute(self.prepared, &self.claim.command, &mut self.enforcement))
            }
            other => Err(Failure::internal(format_args!("`{other}` does not belong into the command's process"))),
        }
    }

    fn await_tree(&mut self) -> Result<(), Failure> {
        let tree = loop {
            // A tree for other layers may have been mounted before the command was known; another message follows.
            match self.orders.tree.take_if(|tree| tree.layers == self.claim.layers) {
                Some(tree) => break tree,
                None => self.orders.hear(&self.prepared.orders)?,
            }
        };
        self.enforcement.add(tree.enforcement);
        if let Limit::Max(bytes) = self.claim.command.limits.disk {
            let room = tree.layers_bytes;
            let how = format!(
                "tmpfs of {room} bytes for the run's layers, {bytes} for all scratch directories, and for each file"
            );
            self.enforcement.enforced(Control::DiskLimit, how);
        }
        Ok(())
    }
}

pub(super) fn new_session(enforcement: &mut Enforcement) -> Result<(), Failure> {
    rustix::process::setsid().map_err(refuse(Control::NewSession, "start a new session"))?;
    enforcement.enforced(Control::NewSession, "setsid");
    Ok(())
}

/// Returns the number of proctor's own processes that count towards the step's limit: PID 1, and the helper if it is
/// in the step's user namespace.
fn own_processes(prepared: &Prepared<'_>) -> u64 {
    if prepared.request.user.steps_down() { 1 } else { 2 }
}

/// Text for the record if the plan sets no memory limit.
pub(super) const MEMORY_SHARE: &str = "the plan sets no bound; three quarters of the machine's memory are the most";

fn limit(prepared: &Prepared<'_>, claim: &Claim, enforcement: &mut Enforcement) -> Result<(), Failure> {
    let Limits { memory, pids, disk, cpu_seconds, open_files, output: _ } = claim.command.limits;
    let unbounded = "the plan sets no bound";
    match disk {
        // Recorded once the size of the layers is known.
        Limit::Max(bytes) => {
            set(Resource::Fsize, bytes).map_err(refuse(Control::DiskLimit, "bound the size of files"))?;
        }
        Limit::Unlimited => enforcement.not_requested(Control::DiskLimit, unbounded),
    }
    let mut bound = |control, limit, resource, spare: u64, held: Option<&str>, mechanism: &str| match (limit, held) {
        (Limit::Max(_), Some(held)) => {
            enforcement.enforced(control, held);
            Ok::<_, Failure>(())
        }
        (Limit::Max(most), None) => {
            let set = set(resource, most.saturating_add(spare));
            let in_force = set.map_err(refuse(control, format_args!("set {mechanism}")))?;
            enforcement.enforced(control, in_words(mechanism, most, in_force.saturating_sub(spare)));
            Ok(())
        }
        (Limit::Unlimited, _) => {
            enforcement.not_requested(control, if control == Control::MemoryLimit { MEMORY_SHARE } else { unbounded });
            Ok(())
        }
    };
    let own = own_processes(prepared);
    let held = &claim.held;
    let memory_held = held.memory.as_deref().map(|how| match prepared.memory.group {
        Some(_) => how.replace(APART, "buffers of network sockets taken off by PID 1"),
        None => how.to_owned(),
    });
    let (memory_held, pids_held) = (memory_held.as_deref(), held.pids.as_deref());
    let nproc = "RLIMIT_NPROC in the step's user namespace,";
    let unseen = if prepared.memory.sockets.is_some() { "" } else { "buffers of sockets, " };
    let data = format!(
        "RLIMIT_DATA of each process, and PID 1 ends the step when the sum is above ({unseen}contents of pipes, locks and \
         files on their way are not seen), bytes:"
    );
    let cpu = "RLIMIT_CPU of each process, and PID 1 ends the step when the sum is above, seconds:";
    bound(Control::PidsLimit, pids, Resource::Nproc, own, pids_held, nproc)?;
    bound(Control::MemoryLimit, memory, Resource::Data, 0, memory_held, &data)?;
    bound(Control::CpuLimit, cpu_seconds, Resource::Cpu, 0, None, cpu)?;
    bound(Control::OpenFilesLimit, open_files, Resource::Nofile, 0, None, "RLIMIT_NOFILE of each process,")
}

fn restrict(
    prepared: &Prepared<'_>,
    repo: &Path,
    wall: Option<Wall>,
    enforcement: &mut Enforcement,
) -> Result<(), Failure> {
    let control = Control::Landlock;
    let outside = match prepared.request.frame.network {
        Network::Allow => Some(Outside::make()?),
        Network::Deny => None,
    };
    // A failure to open the ruleset is already recorded.
    let wall = wall.map(|wall| wall.with(repo).and_then(Wall::build)).transpose();
    if let Some(outside) = outside {
        outside.look(enforcement)?;
    }
    let Some(wall) = wall.map_err(refuse(control, "build the second wall"))? else { return Ok(()) };
    match wall {
        Walled::By { mechanism } => enforcement.enforced(control, mechanism),
        Walled::Absent { reason } => {
            return Err(refused(control, reason, LANDLOCK));
        }
    }
    Ok(())
}

/// Disables core dumps for this process and its children. The system call filter keeps them from changing that.
///
/// The limit is 1 and not 0: with 0 the kernel would still start the host's core dump handler, if there is one, and
/// pass it the step's memory (core(5)). A limit of 1 is too small for a file and disables the handler.
pub(super) fn switch_core_dumps_off() -> io::Result<()> {
    set(Resource::Core, 1).map(drop)
}

/// Formats a limit of `most`, of which the host allows `in_force`.
pub(super) fn in_words(mechanism: &str, most: u64, in_force: u64) -> String {
    if in_force < most {
        format!("{mechanism} {in_force}: the hard limit of the host, below the {most} of the plan")
    } else {
        format!("{mechanism} {most}")
    }
}

/// Sets the soft and hard limits, capped at this process's own hard limit, and returns the soft one. For CPU time the
/// hard limit is one second higher, so that SIGXCPU, which identifies the limit, arrives before SIGKILL, which does
/// not.
pub(super) fn set(resource: Resource, most: u64) -> io::Result<u64> {
    let own = rustix::process::getrlimit(resource).maximum;
    let within = |wanted: u64| Some(own.map_or(wanted, |own| own.min(wanted)));
    let hard = if resource == Resource::Cpu { most.saturating_add(1) } else { most };
    rustix::process::setrlimit(resource, Rlimit { current: within(most), maximum: within(hard) })?;
    Ok(own.map_or(most, |own| own.min(most)))
}

pub(super) fn close_fds(enforcement: &mut Enforcement) -> Result<(), Failure> {
    let control = Control::CloseFds;
    let null = rustix::fs::open("/dev/null", OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty())
        .map_err(refuse(Control::PrivateDev, "open /dev/null"))?;
    rustix::stdio::dup2_stdin(&null).map_err(internal("make /dev/null the standard input"))?;
    sys::close_others(Close::OnExec).map_err(refuse(control, "mark the other descriptors to be closed"))?;
    enforcement.enforced(control, "close_range from 3, on exec");
    Ok(())
}

/// Changes to the work directory. A symbolic link may lead elsewhere in the repository, but not out of it: the
/// command would work on files that the evidence does not cover.
pub(super) fn change_to(path: &Path, repo: &Path) -> Result<(), Failure> {
    let not_started =
        |message| Failure::NotStarted { fault: StartFault::Workdir, message: format!("the work directory {message}") };
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

/// Reports that all controls are enforced, and executes the command. Returns only on failure.
pub(super) fn execute(prepared: &Prepared<'_>, wanted: &policy::Command, enforcement: &mut Enforcement) -> Failure {
    let command = match Command::new(wanted) {
        Ok(command) => command,
        Err(nul) => return Failure::internal(format_args!("the command contains a NUL byte: {nul}")),
    };
    enforcement.enforced(Control::CleanEnvironment, "execve with the policy's variables alone");
    if let Err(error) = prepared.send(&Message::Ready(std::mem::take(enforcement))) {
        return internal("report that the sandbox is ready")(error);
    }
    if let Err(errno) = SigSet::empty().thread_set_mask() {
        return internal("unblock signals")(errno);
    }
    command.execute()
}

/// The command as C strings for the kernel.
struct Command {
    program: CString,
    argv: Vec<CString>,
    env: Vec<CString>,
    path: Vec<u8>,
}

impl Command {
    fn new(policy: &policy::Command) -> Result<Self, std::ffi::NulError> {
        let argv = policy.argv.words().iter().map(|word| CString::new(word.as_str())).collect::<Result<_, _>>()?;
        let pairs = policy.env.iter().map(|(name, value)| CString::new(format!("{name}={value}")));
        let path = policy.env.get("PATH").map_or(DEFAULT_PATH, String::as_str).as_bytes().to_vec();
        Ok(Self { program: CString::new(policy.argv.program())?, argv, env: pairs.collect::<Result<_, _>>()?, path })
    }

    /// Tries the same paths as `execvp(3)`, in the same order.
    fn execute(&self) -> Failure {
        let name = self.program.to_bytes();
        if name.contains(&b'/') {
            let errno = self.replace(&self.program);
            return self.missing(errno, "");
        }
        let mut answer = Errno::ENOENT;
        for dir in self.path.split(|byte| *byte == b':') {
            let dir = if dir.is_empty() { Path::new(".") } else { Path::new(OsStr::from_bytes(dir)) };
            let Ok(file) = CString::new(dir.join(OsStr::from_bytes(name)).as_os_str().as_bytes()) else { continue };
            match self.replace(&file) {
                Errno::ENOENT | Errno::ENOTDIR => {}
                // Another directory may have an executable one.
                Errno::EACCES => answer = Errno::EACCES,
                errno => return self.missing(errno, ""),
            }
        }
        self.missing(answer, &format!(" in PATH ({})", String::from_utf8_lossy(&self.path)))
    }

    fn replace(&self, file: &CString) -> Errno {
        match nix::unistd::execve(file, &self.argv, &self.env) {
            Err(errno) => errno,
            Ok(never) => match never {},
        }
    }

    fn missing(&self, errno: Errno, whereabouts: &str) -> Failure {
        let program = self.program.to_string_lossy();
        let message = match errno {
            Errno::ENOENT if whereabouts.is_empty() => {
                format!("the program `{program}`, or the interpreter that it names, is not there")
            }
            Errno::ENOENT => format!("the program `{program}` is not{whereabouts}"),
            Errno::EACCES => format!("the program `{program}` may not be executed{whereabouts}"),
            Errno::ENOEXEC => format!("`{program}` is no program: it has neither a known format nor a `#!` line"),
            errno => format!("the program `{program}` cannot be executed: {errno:?} ({})", errno.desc()),
        };
        let fault = match errno {
            Errno::ENOENT | Errno::EACCES | Errno::ENOEXEC | Errno::ENOTDIR | Errno::EISDIR | Errno::ELOOP => {
                StartFault::ProgramMissing
            }
            _ => StartFault::Internal,
        };
        Failure::NotStarted { fault, message }
    }
}

/// The search path for programs if the policy's environment has no `PATH`.
const DEFAULT_PATH: &str = "/usr/local/bin:/usr/bin:/bin";

/// Makes the step's user the owner of its output pipes, so that the step may reopen them through `/dev/stdout` and
/// `/dev/stderr`.
pub(super) fn own_streams(user: StepUser) -> io::Result<()> {
    let (uid, gid) = (Some(Uid::from_raw(user.uid())), Some(Gid::from_raw(user.gid())));
    rustix::fs::fchown(rustix::stdio::stdout(), uid, gid)?;
    Ok(rustix::fs::fchown(rustix::stdio::stderr(), uid, gid)?)
}
