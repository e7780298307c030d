//! The one thread that starts processes. The kernel ends a helper when the *thread* that
//! started it ends (`PR_SET_PDEATHSIG`), so that thread must live as long as the daemon: it is
//! never one of an asynchronous runtime's. It also lets prepared sandboxes go that nobody asks for.

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

/// Starts helpers. When it is dropped, everything that it started ends.
#[derive(Debug)]
pub struct Launcher {
    host: Host,
    jobs: Sender<Job>,
    /// Where control groups can be made.
    seat: Result<Seat, NoSeat>,
    reaper: Arc<Reaper>,
    pools: Pools,
}

/// The pools of all runs.
type Pools = Arc<Mutex<Vec<Weak<Pool>>>>;

/// The three descriptors that a helper starts with, and where its handle goes.
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
    /// It finds its control socket closed, and ends.
    fn abandon(self, reaper: &Reaper) {
        drop(self.control);
        if let Ok(Ok(child)) = self.child.recv() {
            reaper.take(Helper::new(child).ok(), None);
        }
    }
}

/// What a sandbox is prepared for.
struct Wanted<'a> {
    facts: &'a RepoFacts,
    user: StepUser,
    /// Newest first.
    lowers: Vec<u32>,
    speech: Speech,
}

/// What the standard output of a command is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Speech {
    /// A pipe, which it writes.
    OneWay,
    /// A stream socket, over which it is asked and answers.
    BothWays,
}

impl Launcher {
    /// Starts the threads, and looks once where control groups can be made.
    ///
    /// # Errors
    /// The system has no thread left.
    pub fn start(host: Host) -> Result<Self, SandboxError> {
        let system = |what| move |source| SandboxError::System { what, source };
        let (jobs, inbox) = channel::<Job>();
        let (helper, pools) = (host.helper.clone(), Pools::default());
        let pools_to_tidy = Arc::clone(&pools);
        // Before the first helper: it may move this process.
        let seat = Seat::find();
        thread::Builder::new()
            .name("launcher".to_owned())
            .spawn(move || launch(&helper, &inbox, &pools_to_tidy))
            .map_err(system("cannot start the launcher's thread"))?;
        let reaper = Arc::new(Reaper::start().map_err(system("cannot start the reaper's thread"))?);
        Ok(Self { host, jobs, seat, reaper, pools })
    }

    /// The machine that it starts them on.
    pub fn host(&self) -> &Host {
        &self.host
    }

    /// Starts one attempt over a repository, with a layer of its own that takes its writes; `lowers`
    /// (newest first) lie between that and the repository. A prepared sandbox is taken where one waits.
    /// Returns as soon as the helper has its request; the set-up goes on there.
    ///
    /// # Errors
    /// The helper cannot be started, the repository is somebody else's, there is no room for a layer, or
    /// the policy cannot hold in this arrangement of paths.
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
                // One that died a moment ago is replaced.
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

    /// Starts a program that is asked and answers over the stream socket that is its standard output; of the
    /// [`Running`] that is `stdout` too. No prepared sandbox is taken for it.
    ///
    /// # Errors
    /// As [`spawn`](Self::spawn).
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

    /// Gives a sandbox that was just started its command.
    fn command(
        &self,
        space: &RunSpace,
        mut prepared: Prepared,
        policy: &Policy,
        lowers: &[u32],
    ) -> Result<(Running, Layer<Open>), SandboxError> {
        match claimed(space, &mut prepared, policy, lowers) {
            // A helper that has refused by now is gone; why, it has said, and that is read as of any other.
            Err(NotClaimed::NothingRuns(error)) if is_gone(&error) => {}
            Err(NotClaimed::NothingRuns(source) | NotClaimed::MayRun(source)) => return Err(not_sent(source)),
            Ok(()) => {}
        }
        Ok((prepared.sandbox, space.open(prepared.slot)))
    }

    /// Has a sandbox wait for another command under the policy of its last one, where that has left nothing: PID 1
    /// has said so ([`Running::serves_on`]), and `layer` is empty. `lowers` are the layers that it stood on. A sandbox
    /// that cannot serve on ends.
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

    /// Has up to `wanted` sandboxes wait for commands under policies like this one, over these layers,
    /// eight at most; they serve over other layers too, a little later. Returns when they are started;
    /// they get ready by themselves.
    ///
    /// # Errors
    /// As [`spawn`](Self::spawn).
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

    /// Has a new sandbox wait for a command by itself under a policy like this one. The tree is mounted when the command
    /// comes. The sandbox is used only where a new one would show and hide the same of the host. Returns when it is
    /// started; it gets ready by itself.
    ///
    /// # Errors
    /// As [`spawn`](Self::spawn); the host cannot be looked at, or layers lie on the host's disk.
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

    /// Lets those prepared sandboxes go, of any run, that nobody has asked for during `patience`, and
    /// returns when they have ended. By itself that happens once in a while when nothing is started.
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

    /// Where control groups are made, or why there are none.
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
        // While the helper is at its start.
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
        // While the helper is at its first operations.
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

    /// Starts a helper and hands it its request. The socket that is returned blocks.
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

    /// Has a helper started, and does not wait for that.
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
            // It waits for nothing else; what it says to that helps nobody.
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

/// The numbers of layers, all of which must lie in `space`.
fn numbers(space: &RunSpace, layers: &[&Layer<Sealed>]) -> Result<Vec<u32>, SandboxError> {
    if layers.iter().any(|layer| !layer.space().is_same(space)) {
        return Err(SandboxError::Protocol("a layer of another run was given".to_owned()));
    }
    Ok(layers.iter().map(|layer| layer.id()).collect())
}

fn not_sent(source: io::Error) -> SandboxError {
    SandboxError::System { what: "cannot send the helper its command", source }
}

/// Gives a prepared sandbox its command, over these layers.
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

/// Starts what it is asked to, until nobody is left who could ask.
fn launch(helper: &std::path::Path, inbox: &Receiver<Job>, pools: &Pools) {
    loop {
        match inbox.recv_timeout(pool::PATIENCE) {
            Ok(job) => {
                let spawned =
                    helper_command(helper).stdin(Stdio::from(job.stdin)).stdout(job.stdout).stderr(job.stderr).spawn();
                // A caller that no longer waits has dropped its end of the control socket: the
                // helper sees that and ends by itself.
                drop(job.reply.send(spawned));
            }
            Err(RecvTimeoutError::Timeout) => release(pools, pool::PATIENCE),
            Err(RecvTimeoutError::Disconnected) => return,
        }
    }
}

fn release(pools: &Pools, patience: Duration) {
    // The lock is not held while sandboxes end.
    let known = pools.lock().unwrap_or_else(PoisonError::into_inner).clone();
    for pool in known.iter().filter_map(Weak::upgrade) {
        pool.release(patience);
    }
}

/// The helper, with nothing of our environment: what stands there at its start stays readable
/// in `/proc/1/environ` of the step.
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
