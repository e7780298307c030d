//! Starts all processes from one thread. The kernel kills a helper when the *thread* that started it ends
//! (`PR_SET_PDEATHSIG`), so that thread must live as long as the daemon, and cannot be one of an asynchronous
//! runtime. It also ends prepared sandboxes that stay unused.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, SyncSender, channel, sync_channel};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::thread;
use std::time::Duration;

use proctor_core::plan::{Limit, Limits};
use rustix::pipe::PipeFlags;

use crate::cgroup::{Entrance, Group, NoSeat, Seat};
use crate::error::SandboxError;
use crate::host::{Host, RepoFacts, StepUser, memory_share};
use crate::host_view::HostView;
use crate::policy::{Frame, Policy};
use crate::pool::{self, MadeAhead, Pool, Prepared};
use crate::reaper::Reaper;
use crate::running::{EndedBy, NotClaimed, Running, Watched, is_gone};
use crate::setup::{self, SetupOp, claim_ops, prepare_ops};
use crate::space::{Layer, Open, RunSpace, Sealed};
use crate::wait::Helper;
use crate::wire::{self, Claim, Entry, HeldLimits, Layers, Request, SandboxRequest};

/// Starts helpers. Dropping it ends everything that it started.
#[derive(Debug)]
pub struct Launcher {
    host: Host,
    jobs: Sender<Job>,
    /// The location where control groups can be created, or the reason for having none.
    seat: Result<Seat, NoSeat>,
    reaper: Arc<Reaper>,
    pools: Pools,
}

/// The pools of all runs.
type Pools = Arc<Mutex<Vec<Weak<Pool>>>>;

/// The three descriptors that a helper starts with, and the channel for its handle.
struct Job {
    stdin: OwnedFd,
    stdout: Stdio,
    stderr: Stdio,
    reply: SyncSender<io::Result<Child>>,
}

/// A helper that is being started.
struct Starting {
    child: Receiver<io::Result<Child>>,
    control: OwnedFd,
}

impl Starting {
    /// Closes the control socket, whereupon the helper ends, and hands the helper to the reaper.
    fn abandon(self, reaper: &Reaper) {
        drop(self.control);
        if let Ok(Ok(child)) = self.child.recv() {
            reaper.take(Helper::new(child).ok(), None);
        }
    }
}

/// The requirements of a sandbox to prepare.
struct Wanted<'a> {
    facts: &'a RepoFacts,
    user: StepUser,
    /// Newest first.
    lowers: Vec<u32>,
    speech: Speech,
}

/// The type of a command's standard output.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Speech {
    /// A pipe, to which the command writes.
    OneWay,
    /// A stream socket, over which the command receives requests and sends answers.
    BothWays,
}

impl Launcher {
    /// Starts the threads, and determines once where control groups can be created.
    ///
    /// # Errors
    /// The system has no thread left.
    pub fn start(host: Host) -> Result<Self, SandboxError> {
        let system = |what| move |source| SandboxError::System { what, source };
        let (jobs, inbox) = channel::<Job>();
        let (helper, pools) = (host.helper.clone(), Pools::default());
        let pools_to_tidy = Arc::clone(&pools);
        // Before the first helper, since it may move this process to another group.
        let seat = Seat::find();
        thread::Builder::new()
            .name("launcher".to_owned())
            .spawn(move || launch(&helper, &inbox, &pools_to_tidy))
            .map_err(system("cannot start the launcher's thread"))?;
        let reaper = Arc::new(Reaper::start().map_err(system("cannot start the reaper's thread"))?);
        Ok(Self { host, jobs, seat, reaper, pools })
    }

    /// Returns the machine on which it starts helpers.
    pub fn host(&self) -> &Host {
        &self.host
    }

    /// Starts one attempt over a repository, with a new layer that receives its writes. The `lowers` (newest first)
    /// are between that layer and the repository. Uses a prepared sandbox if one waits. Returns as soon as the helper
    /// has its request; the helper continues the set-up.
    ///
    /// # Errors
    /// The helper cannot be started, another user owns the repository, there is no space for a layer, or the policy
    /// cannot be enforced with this arrangement of paths.
    pub fn spawn(
        &self,
        space: &RunSpace,
        lowers: &[&Layer<Sealed>],
        facts: &RepoFacts,
        policy: &Policy,
    ) -> Result<(Running, Layer<Open>), SandboxError> {
        setup::check(policy, &self.host)?;
        let user = space.user(&self.host, facts)?;
        let (frame, lowers) = (policy.frame(), numbers(space, lowers)?);
        while let Some(mut prepared) = space.pool().take(&frame, user, &lowers) {
            if !prepared.is_like_new(&frame) {
                prepared.let_go();
                continue;
            }
            match claimed(space, &mut prepared, policy, &lowers) {
                Ok(()) => return Ok((prepared.sandbox, space.open(prepared.slot))),
                // A sandbox that has just died is replaced.
                Err(NotClaimed::NothingRuns(_)) => prepared.let_go(),
                Err(NotClaimed::MayRun(source)) => {
                    prepared.let_go();
                    return Err(not_sent(source));
                }
            }
        }
        let wanted = Wanted { facts, user, lowers: lowers.clone(), speech: Speech::OneWay };
        let ops = prepare_ops(&frame, &self.host, user);
        let prepared = self.prepare(space, frame, wanted, ops)?;
        self.command(space, prepared, policy, &lowers)
    }

    /// Starts a program that receives requests and sends answers over a stream socket. That socket is its standard
    /// output, and `stdout` of the [`Running`]. No prepared sandbox is used for it.
    ///
    /// # Errors
    /// The same as those of [`spawn`](Self::spawn).
    pub fn talk(
        &self,
        space: &RunSpace,
        facts: &RepoFacts,
        policy: &Policy,
    ) -> Result<(Running, Layer<Open>), SandboxError> {
        setup::check(policy, &self.host)?;
        let user = space.user(&self.host, facts)?;
        let wanted = Wanted { facts, user, lowers: Vec::new(), speech: Speech::BothWays };
        let ops = prepare_ops(&policy.frame(), &self.host, user);
        let prepared = self.prepare(space, policy.frame(), wanted, ops)?;
        self.command(space, prepared, policy, &[])
    }

    /// Sends its command to a sandbox that was just started.
    fn command(
        &self,
        space: &RunSpace,
        mut prepared: Prepared,
        policy: &Policy,
        lowers: &[u32],
    ) -> Result<(Running, Layer<Open>), SandboxError> {
        match claimed(space, &mut prepared, policy, lowers) {
            // A helper that has refused the set-up has already ended. The caller reads its refusal like that of any
            // other helper.
            Err(NotClaimed::NothingRuns(error)) if is_gone(&error) => {}
            Err(NotClaimed::NothingRuns(source) | NotClaimed::MayRun(source)) => return Err(not_sent(source)),
            Ok(()) => {}
        }
        Ok((prepared.sandbox, space.open(prepared.slot)))
    }

    /// Puts a sandbox back into the pool for another command under the same policy if its last command left nothing
    /// behind: PID 1 has reported that ([`Running::serves_on`]), and `layer` is empty. `lowers` are the layers below
    /// it. A sandbox that cannot be reused ends.
    pub fn put_back(
        &self,
        space: &RunSpace,
        lowers: &[&Layer<Sealed>],
        facts: &RepoFacts,
        policy: &Policy,
        sandbox: Running,
        layer: Layer<Sealed>,
    ) {
        let (Ok(user), Ok(lowers)) = (space.user(&self.host, facts), numbers(space, lowers)) else { return };
        if !layer.space().is_same(space) || !layer.is_empty() {
            return;
        }
        if let Some(sandbox) = sandbox.for_another(user) {
            let slot = layer.into_slot();
            let prepared = Prepared { sandbox, slot, lowers, has_served: true, made_ahead: None };
            space.pool().put(policy.frame(), user, prepared);
        }
    }

    /// Prepares sandboxes for commands under policies like this one, over these layers, until `wanted` of them wait
    /// (eight at most). They can serve over other layers too, which takes a little longer. Returns when they are
    /// started, without waiting until they are ready.
    ///
    /// # Errors
    /// The same as those of [`spawn`](Self::spawn).
    pub fn warm(
        &self,
        space: &RunSpace,
        lowers: &[&Layer<Sealed>],
        facts: &RepoFacts,
        policy: &Policy,
        wanted: usize,
    ) -> Result<(), SandboxError> {
        setup::check(policy, &self.host)?;
        let (frame, user) = (policy.frame(), space.user(&self.host, facts)?);
        let lowers = numbers(space, lowers)?;
        for _ in space.pool().count(&frame, user)..wanted.min(pool::MOST) {
            let prepared = self.prepare(
                space,
                frame.clone(),
                Wanted { facts, user, lowers: lowers.clone(), speech: Speech::OneWay },
                prepare_ops(&frame, &self.host, user),
            )?;
            space.pool().put(frame.clone(), user, prepared);
        }
        Ok(())
    }

    /// Prepares a sandbox that waits for a command under a policy like this one, outside of a run. The tree is
    /// mounted when the command arrives. The sandbox is used only if a new one would show and hide the same parts of
    /// the host. Returns when it is started, without waiting until it is ready.
    ///
    /// # Errors
    /// Those of [`spawn`](Self::spawn); the host cannot be examined, or the layers are on the host's disk.
    pub fn prepare_ahead(&self, space: &RunSpace, facts: &RepoFacts, policy: &Policy) -> Result<(), SandboxError> {
        setup::check(policy, &self.host)?;
        if space.as_plain().is_some() {
            return Err(SandboxError::Protocol("without namespaces no sandbox waits".to_owned()));
        }
        let (frame, user) = (policy.frame(), space.user(&self.host, facts)?);
        let ops = setup::prepare_ahead_ops(&frame, &self.host, user);
        let view = HostView::before(&ops, &frame).map_err(|source| SandboxError::System {
            what: "cannot look at what a sandbox shows of the host",
            source,
        })?;
        let wanted = Wanted { facts, user, lowers: Vec::new(), speech: Speech::OneWay };
        let prepared = self.prepare(space, frame.clone(), wanted, ops.clone())?;
        space.pool().put(frame, user, Prepared { made_ahead: Some(MadeAhead { ops, view }), ..prepared });
        Ok(())
    }

    /// Ends the prepared sandboxes of all runs that have been unused for at least `patience`, and waits until they
    /// have ended. The launcher also does this by itself when no process has been started for a while.
    pub fn release(&self, patience: Duration) {
        release(&self.pools, patience);
    }

    pub(crate) fn add_pool(&self) -> Arc<Pool> {
        let pool = Arc::new(Pool::default());
        let mut pools = self.pools.lock().unwrap_or_else(PoisonError::into_inner);
        pools.retain(|known| known.strong_count() > 0);
        pools.push(Arc::downgrade(&pool));
        pool
    }

    /// Returns the location where control groups are created, or the reason for having none.
    pub fn control_groups(&self) -> Result<String, String> {
        match &self.seat {
            Ok(seat) => Ok(seat.describe()),
            Err(none) => Err(none.reason.clone()),
        }
    }

    fn prepare(
        &self,
        space: &RunSpace,
        frame: Frame,
        wanted: Wanted<'_>,
        ops: Vec<SetupOp>,
    ) -> Result<Prepared, SandboxError> {
        let pair = || wire::pair().map_err(|source| SandboxError::System { what: "cannot make a socket pair", source });
        let orders = space.as_plain().is_none().then(pair).transpose()?;
        let Wanted { facts, user, lowers, speech } = wanted;
        let (stdout, their_stdout) = match speech {
            Speech::OneWay => pipe()?,
            Speech::BothWays => stream()?,
        };
        let (stderr, their_stderr) = pipe()?;
        let starting = self.begin(their_stdout.into(), their_stderr.into())?;
        // While the helper process starts.
        let slot = match space.slot(facts, user) {
            Ok(slot) => slot,
            Err(error) => {
                starting.abandon(&self.reaper);
                return Err(error);
            }
        };
        let (group, mut entry) = self.group();
        let limits = frame.limits;
        let bounded = limits.memory != Limit::Unlimited && space.as_plain().is_none();
        let apart = group.as_ref().filter(|_| bounded).and_then(Group::apart);
        if let Entry::Group { takes_off_sockets, .. } = &mut entry {
            *takes_off_sockets = apart.is_some();
        }
        let layers = Layers { lowers: lowers.clone(), upper: slot.id() };
        let (request, ended_by) = match space.as_plain() {
            Some(plain) => {
                (Request::Plain(Box::new(plain.request(frame, &self.host, user, entry, layers))), EndedBy::Helper)
            }
            None => {
                let (serves_on, maps_caches) = (space.serves_on(), space.own_id().is_some());
                let space = self.host.space_dir();
                let request = SandboxRequest { frame, user, maps_caches, space, entry, layers, ops, serves_on };
                (Request::Sandbox(Box::new(request)), EndedBy::Kernel)
            }
        };
        let mut fds = space.fds();
        fds.extend(orders.iter().flat_map(|(theirs, ours)| [theirs.as_fd(), ours.as_fd()]));
        if let Some(Entrance { unified, tasks }) = group.as_ref().map(Group::entrance) {
            fds.extend(unified.into_iter().chain(tasks));
        }
        fds.extend(apart.iter().flatten().map(AsFd::as_fd));
        let (helper, control) = self.hand_over(starting, &request, &fds)?;
        let reaper = Arc::clone(&self.reaper);
        drop(fds);
        let orders = orders.map(|(_theirs, ours)| ours);
        // While the helper executes its first operations.
        let held = match group.as_ref().map(|group| hold(group, &limits)).transpose() {
            Ok(held) => held.unwrap_or_default(),
            Err(error) => {
                drop(control);
                self.reaper.take(Some(helper), group);
                return Err(error);
            }
        };
        let sandbox = Running::new(Watched { helper, control, orders, stdout, stderr, ended_by, group, held, reaper })?;
        let holder =
            sandbox.end_fd().map_err(|source| SandboxError::System { what: "cannot watch the helper", source })?;
        holder.into_iter().for_each(|holder| slot.is_held_by(holder));
        Ok(Prepared { sandbox, slot, lowers, has_served: false, made_ahead: None })
    }

    fn group(&self) -> (Option<Group>, Entry) {
        let seat = match &self.seat {
            Ok(seat) => seat,
            Err(none) => return (None, Entry::None { reason: none.reason.clone(), hint: none.hint.clone() }),
        };
        match seat.group() {
            Ok(group) => {
                let born = group.entrance().unified.is_some();
                (Some(group), Entry::Group { group: seat.describe(), born, takes_off_sockets: false })
            }
            Err(error) => {
                let reason = format!("no control group could be made: {error}");
                (None, Entry::None { reason, hint: "remove unused groups".to_owned() })
            }
        }
    }

    /// Starts a helper and sends it its request. The returned socket is blocking.
    pub(crate) fn start_helper(
        &self,
        request: &Request,
        fds: &[BorrowedFd<'_>],
        stdout: Stdio,
        stderr: Stdio,
    ) -> Result<(Helper, OwnedFd), SandboxError> {
        let starting = self.begin(stdout, stderr)?;
        self.hand_over(starting, request, fds)
    }

    /// Requests the start of a helper without waiting for it.
    fn begin(&self, stdout: Stdio, stderr: Stdio) -> Result<Starting, SandboxError> {
        let cannot = |source| SandboxError::System { what: "cannot make the control socket", source };
        let (control, stdin) = wire::pair().map_err(cannot)?;
        let (reply, child) = sync_channel(1);
        self.jobs.send(Job { stdin, stdout, stderr, reply }).map_err(|_| SandboxError::LauncherGone)?;
        Ok(Starting { child, control })
    }

    fn hand_over(
        &self,
        starting: Starting,
        request: &Request,
        fds: &[BorrowedFd<'_>],
    ) -> Result<(Helper, OwnedFd), SandboxError> {
        let system = |what| move |source| SandboxError::System { what, source };
        let Starting { child, control } = starting;
        let child = child
            .recv()
            .map_err(|_| SandboxError::LauncherGone)?
            .map_err(|source| SandboxError::Helper { helper: self.host.helper.clone(), source })?;
        let mut helper = Helper::new(child).map_err(system("cannot watch the sandbox helper"))?;
        if let Err(source) = wire::send_document(control.as_fd(), request, fds) {
            // The helper waits for nothing else, and an answer from it would be useless.
            drop(helper.kill());
            drop(helper.end());
            return Err(SandboxError::System { what: "cannot send the helper its request", source });
        }
        Ok((helper, control))
    }
}

fn hold(group: &Group, limits: &Limits) -> Result<HeldLimits, SandboxError> {
    let system = |source| SandboxError::System { what: "cannot set the limits of a control group", source };
    let held = group.limit(limits).map_err(system)?;
    let bounds_memory = match limits.memory {
        Limit::Max(_) => held.memory.is_some(),
        Limit::Unlimited => group.limit_to_share(memory_share()).map_err(system)?,
    };
    Ok(HeldLimits { memory: held.memory, pids: held.pids, bounds_memory })
}

/// Returns the numbers of the layers, all of which must belong to `space`.
fn numbers(space: &RunSpace, layers: &[&Layer<Sealed>]) -> Result<Vec<u32>, SandboxError> {
    if layers.iter().any(|layer| !layer.space().is_same(space)) {
        return Err(SandboxError::Protocol("a layer of another run was given".to_owned()));
    }
    Ok(layers.iter().map(|layer| layer.id()).collect())
}

fn not_sent(source: io::Error) -> SandboxError {
    SandboxError::System { what: "cannot send the helper its command", source }
}

/// Sends its command to a prepared sandbox, over these layers.
fn claimed(space: &RunSpace, prepared: &mut Prepared, policy: &Policy, lowers: &[u32]) -> Result<(), NotClaimed> {
    let Prepared { sandbox, slot, .. } = prepared;
    sandbox.claim(Claim {
        command: policy.command(),
        layers: Layers { lowers: lowers.to_vec(), upper: slot.id() },
        held: sandbox.held().clone(),
        ops: claim_ops(policy),
        serves_on: space.serves_on(),
    })
}

/// Starts the requested helpers until all senders are gone.
fn launch(helper: &std::path::Path, inbox: &Receiver<Job>, pools: &Pools) {
    loop {
        match inbox.recv_timeout(pool::PATIENCE) {
            Ok(job) => {
                let spawned =
                    helper_command(helper).stdin(Stdio::from(job.stdin)).stdout(job.stdout).stderr(job.stderr).spawn();
                // A caller that no longer waits has dropped its end of the control socket. The helper notices that
                // and ends by itself.
                drop(job.reply.send(spawned));
            }
            Err(RecvTimeoutError::Timeout) => release(pools, pool::PATIENCE),
            Err(RecvTimeoutError::Disconnected) => return,
        }
    }
}

fn release(pools: &Pools, patience: Duration) {
    // Releases the lock before it waits for sandboxes to end.
    let known = pools.lock().unwrap_or_else(PoisonError::into_inner).clone();
    for pool in known.iter().filter_map(Weak::upgrade) {
        pool.release(patience);
    }
}

/// Returns the command that starts the helper, without the daemon's environment: the initial environment of a process
/// stays readable in the step's `/proc/1/environ`.
#[expect(clippy::disallowed_methods, reason = "this is the sandbox launcher")]
fn helper_command(helper: &std::path::Path) -> Command {
    let mut command = Command::new(helper);
    command.env_clear();
    command
}

fn stream() -> Result<(OwnedFd, OwnedFd), SandboxError> {
    let made = rustix::net::socketpair(
        rustix::net::AddressFamily::UNIX,
        rustix::net::SocketType::STREAM,
        rustix::net::SocketFlags::CLOEXEC,
        None,
    );
    made.map_err(SandboxError::system("cannot make a socket pair"))
}

pub(crate) fn pipe() -> Result<(OwnedFd, OwnedFd), SandboxError> {
    rustix::pipe::pipe_with(PipeFlags::CLOEXEC).map_err(SandboxError::system("cannot make a pipe"))
}
