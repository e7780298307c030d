//! Starts all processes from one thread. The kernel kills a helper when the *thread* that started it ends
//! (`PR_SET_PDEATHSIG`), so that thread must live as long as the daemon, and cannot be one of an asynchronous
//! runtime. It also ends prepared sandboxes that stay unused.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, SyncSender, channel, sync_channel};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::{Duration, Instant};
use std::{io, thread};

use proctor_core::model::plan::{Limit, Limits};

use crate::cgroup::{AttemptCgroup, CgroupJoinFds, CgroupLocation, NoCgroupError};
use crate::error::SandboxError;
use crate::host::{Host, RepoFacts, StepUser, default_memory_limit};
use crate::host_view::HostView;
use crate::policy::{Frame, Policy};
use crate::reaper::Reaper;
use crate::run_space::{Layer, RunSpace, Sealed, Unsealed};
use crate::running_sandbox::{ClaimError, CleanupOwner, RunningSandbox, RunningSandboxParts, is_peer_closed, pipe};
use crate::sandbox_pool::{self, ExpirySchedule, HostBaseline, PreparedSandbox, SandboxPool};
use crate::setup::{self, SetupOp, claim_ops, prepare_ops};
use crate::wait::HelperProcess;
use crate::wire::{self, CgroupEntry, ClaimRequest, EnforcedLimits, HelperRequest, LayerIds, SandboxRequest};

/// Starts helpers. Dropping it ends everything that it started.
#[derive(Debug)]
pub struct Launcher {
    host: Host,
    jobs: Sender<SpawnJob>,
    /// The location where control groups can be created, or the reason for having none.
    cgroup_location: Result<CgroupLocation, NoCgroupError>,
    reaper: Arc<Reaper>,
    pools: RunPools,
}

/// The pools of all runs.
type RunPools = Arc<Mutex<Vec<Weak<SandboxPool>>>>;

/// The three descriptors that a helper starts with, and the channel for its handle.
struct SpawnJob {
    stdin: OwnedFd,
    stdout: Stdio,
    stderr: Stdio,
    reply: SyncSender<io::Result<Child>>,
}

/// A helper that is being started.
struct StartingHelper {
    child: Receiver<io::Result<Child>>,
    control: OwnedFd,
}

impl StartingHelper {
    /// Closes the control socket, whereupon the helper ends, and hands the helper to the reaper.
    fn abandon(self, reaper: &Reaper) {
        drop(self.control);
        if let Ok(Ok(child)) = self.child.recv() {
            reaper.reap_later(HelperProcess::new(child).ok(), None);
        }
    }
}

/// The requirements of a sandbox to prepare.
struct SandboxRequirements<'a> {
    facts: &'a RepoFacts,
    user: StepUser,
    /// Newest first.
    lowers: Vec<u32>,
    stdout_mode: StdoutMode,
}

/// The type of a command's standard output.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum StdoutMode {
    /// A pipe, to which the command writes.
    Pipe,
    /// A stream socket, over which the command receives requests and sends answers.
    StreamSocket,
}

impl Launcher {
    /// Starts the threads, and determines once where control groups can be created.
    ///
    /// # Errors
    /// The system cannot start another thread.
    pub fn start(host: Host) -> Result<Self, SandboxError> {
        let system = |what| move |source| SandboxError::System { what, source };
        let (jobs, inbox) = channel::<SpawnJob>();
        let (helper, pools) = (host.helper.clone(), RunPools::default());
        let pools_to_tidy = Arc::clone(&pools);
        // Must come before the first helper starts, since it may move this process to another group.
        let location = CgroupLocation::find();
        thread::Builder::new()
            .name("launcher".to_owned())
            .spawn(move || run_launcher(&helper, &inbox, &pools_to_tidy))
            .map_err(system("cannot start the launcher's thread"))?;
        let reaper = Arc::new(Reaper::start().map_err(system("cannot start the reaper's thread"))?);
        Ok(Self { host, jobs, cgroup_location: location, reaper, pools })
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
    ) -> Result<(RunningSandbox, Layer<Unsealed>), SandboxError> {
        setup::check_policy(policy, &self.host)?;
        let user = space.step_user(&self.host, facts)?;
        let (frame, lowers) = (policy.frame(), layer_ids(space, lowers)?);
        while let Some(mut prepared) = space.pool().take_matching(&frame, user, &lowers) {
            if !prepared.has_current_host_view(&frame) {
                prepared.release();
                continue;
            }
            match send_claim(space, &mut prepared, policy, &lowers) {
                Ok(()) => return Ok((prepared.sandbox, space.open_layer(prepared.slot))),
                // Replaces a sandbox that has just died.
                Err(ClaimError::NotDelivered(_)) => prepared.release(),
                Err(ClaimError::PartlyDelivered(source)) => {
                    prepared.release();
                    return Err(command_not_sent(source));
                }
            }
        }
        let wanted = SandboxRequirements { facts, user, lowers: lowers.clone(), stdout_mode: StdoutMode::Pipe };
        let ops = prepare_ops(&frame, &self.host, user);
        let prepared = self.prepare(space, frame, wanted, ops)?;
        self.send_command(space, prepared, policy, &lowers)
    }

    /// Starts a program that receives requests and sends answers over a stream socket. That socket is its standard
    /// output, and `stdout` of the [`RunningSandbox`]. No prepared sandbox is used for it.
    ///
    /// # Errors
    /// The errors of [`spawn`](Self::spawn).
    pub fn spawn_with_socket(
        &self,
        space: &RunSpace,
        facts: &RepoFacts,
        policy: &Policy,
    ) -> Result<(RunningSandbox, Layer<Unsealed>), SandboxError> {
        setup::check_policy(policy, &self.host)?;
        let user = space.step_user(&self.host, facts)?;
        let wanted = SandboxRequirements { facts, user, lowers: Vec::new(), stdout_mode: StdoutMode::StreamSocket };
        let ops = prepare_ops(&policy.frame(), &self.host, user);
        let prepared = self.prepare(space, policy.frame(), wanted, ops)?;
        self.send_command(space, prepared, policy, &[])
    }

    /// Sends its command to a sandbox that was just started.
    fn send_command(
        &self,
        space: &RunSpace,
        mut prepared: PreparedSandbox,
        policy: &Policy,
        lowers: &[u32],
    ) -> Result<(RunningSandbox, Layer<Unsealed>), SandboxError> {
        match send_claim(space, &mut prepared, policy, lowers) {
            // A helper that has refused the set-up has already ended. The caller reads its refusal like that of any
            // other helper.
            Err(ClaimError::NotDelivered(error)) if is_peer_closed(&error) => {}
            Err(ClaimError::NotDelivered(source) | ClaimError::PartlyDelivered(source)) => {
                return Err(command_not_sent(source));
            }
            Ok(()) => {}
        }
        Ok((prepared.sandbox, space.open_layer(prepared.slot)))
    }

    /// Puts a sandbox back into the pool for another command under the same policy if its last command left nothing
    /// behind: PID 1 has reported that ([`RunningSandbox::is_reusable`]), and `layer` is empty. `lowers` are the layers
    /// below it. A sandbox that cannot be reused ends.
    pub fn return_to_pool(
        &self,
        space: &RunSpace,
        lowers: &[&Layer<Sealed>],
        facts: &RepoFacts,
        policy: &Policy,
        sandbox: RunningSandbox,
        layer: Layer<Sealed>,
    ) {
        let (Ok(user), Ok(lowers)) = (space.step_user(&self.host, facts), layer_ids(space, lowers)) else { return };
        if !layer.space().is_same(space) || !layer.is_empty() {
            return;
        }
        if let Some(sandbox) = sandbox.with_new_streams(user) {
            let slot = layer.into_slot();
            let prepared = PreparedSandbox { sandbox, slot, lowers, has_served: true, host_baseline: None };
            space.pool().put(policy.frame(), user, prepared);
        }
    }

    /// Prepares sandboxes for commands under policies like this one, over these layers, until `wanted` of them wait
    /// (eight at most). They can serve over other layers too, which takes a little longer. Returns when they are
    /// started, without waiting until they are ready.
    ///
    /// # Errors
    /// The errors of [`spawn`](Self::spawn).
    pub fn warm(
        &self,
        space: &RunSpace,
        lowers: &[&Layer<Sealed>],
        facts: &RepoFacts,
        policy: &Policy,
        wanted: usize,
    ) -> Result<(), SandboxError> {
        setup::check_policy(policy, &self.host)?;
        let (frame, user) = (policy.frame(), space.step_user(&self.host, facts)?);
        let lowers = layer_ids(space, lowers)?;
        for _ in space.pool().count(&frame, user)..wanted.min(sandbox_pool::MAX_WAITING) {
            let prepared = self.prepare(
                space,
                frame.clone(),
                SandboxRequirements { facts, user, lowers: lowers.clone(), stdout_mode: StdoutMode::Pipe },
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
        setup::check_policy(policy, &self.host)?;
        if space.as_host_dir().is_some() {
            return Err(SandboxError::Protocol("without namespaces no sandbox is prepared in advance".to_owned()));
        }
        let (frame, user) = (policy.frame(), space.step_user(&self.host, facts)?);
        let ops = setup::prepare_ahead_ops(&frame, &self.host, user);
        let view = HostView::capture(&ops, &frame).map_err(|source| SandboxError::System {
            what: "cannot determine which details of the host a sandbox shows",
            source,
        })?;
        let wanted = SandboxRequirements { facts, user, lowers: Vec::new(), stdout_mode: StdoutMode::Pipe };
        let prepared = self.prepare(space, frame.clone(), wanted, ops.clone())?;
        space.pool().put(frame, user, PreparedSandbox { host_baseline: Some(HostBaseline { ops, view }), ..prepared });
        Ok(())
    }

    /// Ends the prepared sandboxes of all runs that have been unused for at least `min_idle`, and waits until they
    /// have ended. The launcher also ends each prepared sandbox by itself after a minute.
    pub fn release_idle(&self, min_idle: Duration) {
        live_pools(&self.pools).for_each(|pool| pool.release_idle(min_idle));
    }

    pub(crate) fn add_pool(&self) -> Arc<SandboxPool> {
        let pool = Arc::new(SandboxPool::default());
        let mut pools = self.pools.lock().unwrap_or_else(PoisonError::into_inner);
        pools.retain(|known| known.strong_count() > 0);
        pools.push(Arc::downgrade(&pool));
        pool
    }

    /// Returns the location where control groups are created, or the reason for having none.
    ///
    /// # Errors
    /// There is no location.
    pub fn control_groups(&self) -> Result<String, &NoCgroupError> {
        self.cgroup_location.as_ref().map(CgroupLocation::describe)
    }

    fn prepare(
        &self,
        space: &RunSpace,
        frame: Frame,
        wanted: SandboxRequirements<'_>,
        ops: Vec<SetupOp>,
    ) -> Result<PreparedSandbox, SandboxError> {
        let pair = || {
            wire::socket_pair().map_err(|source| SandboxError::System { what: "cannot create a socket pair", source })
        };
        let orders = space.as_host_dir().is_none().then(pair).transpose()?;
        let SandboxRequirements { facts, user, lowers, stdout_mode: speech } = wanted;
        let (stdout, their_stdout) = match speech {
            StdoutMode::Pipe => pipe()?,
            StdoutMode::StreamSocket => stream_socket_pair()?,
        };
        let (stderr, their_stderr) = pipe()?;
        let starting = self.request_start(their_stdout.into(), their_stderr.into())?;
        // Runs while the helper process starts.
        let slot = match space.new_slot(facts, user) {
            Ok(slot) => slot,
            Err(error) => {
                starting.abandon(&self.reaper);
                return Err(error);
            }
        };
        let (group, mut entry) = self.create_group();
        let (limits, wants_view) = (frame.limits, frame.view);
        let bounded = limits.memory != Limit::Unlimited && space.as_host_dir().is_none();
        let apart = group.as_ref().filter(|_| bounded).and_then(AttemptCgroup::open_socket_buffer_files);
        let counted = limits.cpu_seconds != Limit::Unlimited && space.as_host_dir().is_none();
        let cpu_time = group.as_ref().filter(|_| counted).and_then(AttemptCgroup::open_cpu_file);
        if let CgroupEntry::Group { takes_off_sockets, counts_cpu, .. } = &mut entry {
            *takes_off_sockets = apart.is_some();
            *counts_cpu = cpu_time.is_some();
        }
        let layers = LayerIds { lowers: lowers.clone(), upper: slot.id() };
        let (request, ended_by) = match space.as_host_dir() {
            Some(plain) => (
                HelperRequest::Plain(Box::new(plain.build_request(frame, &self.host, user, entry, layers))),
                CleanupOwner::Helper,
            ),
            None => {
                let (serves_on, maps_caches) = (space.allows_reuse() && !frame.view, space.run_uid().is_some());
                let space = self.host.space_dir();
                let request = SandboxRequest { frame, user, maps_caches, space, entry, layers, ops, serves_on };
                (HelperRequest::Sandbox(Box::new(request)), CleanupOwner::Kernel)
            }
        };
        let mut fds = space.namespace_fds();
        fds.extend(orders.iter().flat_map(|(theirs, ours)| [theirs.as_fd(), ours.as_fd()]));
        if let Some(CgroupJoinFds { unified, tasks }) = group.as_ref().map(AttemptCgroup::join_fds) {
            fds.extend(unified.into_iter().chain(tasks));
        }
        fds.extend(apart.iter().flatten().chain(&cpu_time).map(AsFd::as_fd));
        let (helper, control) = self.send_request(starting, &request, &fds)?;
        let reaper = Arc::clone(&self.reaper);
        drop(fds);
        let orders = orders.map(|(_theirs, ours)| ours);
        // This runs while the helper executes its first operations.
        let held = match group.as_ref().map(|group| set_group_limits(group, &limits)).transpose() {
            Ok(held) => held.unwrap_or_default(),
            Err(error) => {
                drop(control);
                self.reaper.reap_later(Some(helper), group);
                return Err(error);
            }
        };
        let sandbox = RunningSandbox::new(RunningSandboxParts {
            helper,
            control,
            command_socket: orders,
            stdout,
            stderr,
            cleanup_owner: ended_by,
            group,
            enforced_limits: held,
            wants_view,
            reaper,
        })?;
        let holder =
            sandbox.exit_fd().map_err(|source| SandboxError::System { what: "cannot watch the helper", source })?;
        holder.into_iter().for_each(|holder| slot.set_helper_pidfd(holder));
        Ok(PreparedSandbox { sandbox, slot, lowers, has_served: false, host_baseline: None })
    }

    fn create_group(&self) -> (Option<AttemptCgroup>, CgroupEntry) {
        let location = match &self.cgroup_location {
            Ok(location) => location,
            Err(none) => return (None, CgroupEntry::None { reason: none.reason.clone(), hint: none.hint.clone() }),
        };
        match location.create_group() {
            Ok(group) => {
                let born = group.join_fds().unified.is_some();
                let description = location.describe();
                let entry =
                    CgroupEntry::Group { group: description, born, takes_off_sockets: false, counts_cpu: false };
                (Some(group), entry)
            }
            Err(error) => {
                let reason = format!("no control group could be created: {error}");
                (None, CgroupEntry::None { reason, hint: "remove unused groups".to_owned() })
            }
        }
    }

    /// Starts a helper and sends it its request. The returned socket is blocking.
    pub(crate) fn start_helper(
        &self,
        request: &HelperRequest,
        fds: &[BorrowedFd<'_>],
        stdout: Stdio,
        stderr: Stdio,
    ) -> Result<(HelperProcess, OwnedFd), SandboxError> {
        let starting = self.request_start(stdout, stderr)?;
        self.send_request(starting, request, fds)
    }

    /// Requests the start of a helper without waiting for it.
    fn request_start(&self, stdout: Stdio, stderr: Stdio) -> Result<StartingHelper, SandboxError> {
        let cannot = |source| SandboxError::System { what: "cannot create the control socket", source };
        let (control, stdin) = wire::socket_pair().map_err(cannot)?;
        let (reply, child) = sync_channel(1);
        self.jobs.send(SpawnJob { stdin, stdout, stderr, reply }).map_err(|_| SandboxError::LauncherGone)?;
        Ok(StartingHelper { child, control })
    }

    fn send_request(
        &self,
        starting: StartingHelper,
        request: &HelperRequest,
        fds: &[BorrowedFd<'_>],
    ) -> Result<(HelperProcess, OwnedFd), SandboxError> {
        let system = |what| move |source| SandboxError::System { what, source };
        let StartingHelper { child, control } = starting;
        let child = child
            .recv()
            .map_err(|_| SandboxError::LauncherGone)?
            .map_err(|source| SandboxError::Helper { helper: self.host.helper.clone(), source })?;
        let mut helper = HelperProcess::new(child).map_err(system("cannot monitor the sandbox helper"))?;
        if let Err(source) = wire::send_document(control.as_fd(), request, fds) {
            // The helper waits for nothing else, and an answer from it would be useless.
            drop(helper.kill());
            drop(helper.wait_or_kill());
            return Err(SandboxError::System { what: "cannot send the request to the helper", source });
        }
        Ok((helper, control))
    }
}

fn set_group_limits(group: &AttemptCgroup, limits: &Limits) -> Result<EnforcedLimits, SandboxError> {
    let system = |source| SandboxError::System { what: "cannot set the limits of a control group", source };
    let held = group.set_limits(limits).map_err(system)?;
    let bounds_memory = match limits.memory {
        Limit::Max(_) => held.memory.is_some(),
        Limit::Unlimited => group.apply_default_memory_limit(default_memory_limit()).map_err(system)?,
    };
    Ok(EnforcedLimits { memory: held.memory, pids: held.pids, bounds_memory })
}

/// Returns the numbers of the layers, all of which must belong to `space`.
fn layer_ids(space: &RunSpace, layers: &[&Layer<Sealed>]) -> Result<Vec<u32>, SandboxError> {
    if layers.iter().any(|layer| !layer.space().is_same(space)) {
        return Err(SandboxError::Protocol("the given layer belongs to another run".to_owned()));
    }
    Ok(layers.iter().map(|layer| layer.id()).collect())
}

fn command_not_sent(source: io::Error) -> SandboxError {
    SandboxError::System { what: "cannot send the command to the helper", source }
}

/// Sends its command to a prepared sandbox, over these layers.
fn send_claim(
    space: &RunSpace,
    prepared: &mut PreparedSandbox,
    policy: &Policy,
    lowers: &[u32],
) -> Result<(), ClaimError> {
    let PreparedSandbox { sandbox, slot, .. } = prepared;
    sandbox.send_claim(ClaimRequest {
        command: policy.command(),
        layers: LayerIds { lowers: lowers.to_vec(), upper: slot.id() },
        held: sandbox.enforced_limits().clone(),
        ops: claim_ops(policy),
        // The kernel caches the accesses of a command, and a view does not record cached accesses of the next command.
        serves_on: space.allows_reuse() && !policy.view,
    })
}

/// Starts the requested helpers until all senders are gone, and ends the prepared sandboxes that expire.
fn run_launcher(helper: &std::path::Path, inbox: &Receiver<SpawnJob>, pools: &RunPools) {
    let mut schedule = ExpirySchedule::new(Instant::now());
    loop {
        let now = Instant::now();
        if schedule.time_left(now).is_zero() {
            schedule.set_next_check(release_expired_sandboxes(pools, now), now);
        }
        match inbox.recv_timeout(schedule.time_left(now)) {
            Ok(job) => {
                let spawned =
                    helper_command(helper).stdin(Stdio::from(job.stdin)).stdout(job.stdout).stderr(job.stderr).spawn();
                // A caller that no longer waits has dropped its end of the control socket. The helper notices that
                // and ends by itself.
                drop(job.reply.send(spawned));
            }
            Err(RecvTimeoutError::Timeout) => {}
            Err(RecvTimeoutError::Disconnected) => return,
        }
    }
}

/// Ends the sandboxes that have expired at the time `now`. Returns when the oldest of the others began to wait.
fn release_expired_sandboxes(pools: &RunPools, now: Instant) -> Option<Instant> {
    let release = |pool: Arc<SandboxPool>| {
        pool.release_expired(now);
        pool.first_waiting_since()
    };
    live_pools(pools).filter_map(release).min()
}

/// Returns the pools whose runs have not ended. The lock is released before a caller waits for sandboxes to end.
fn live_pools(pools: &RunPools) -> impl Iterator<Item = Arc<SandboxPool>> {
    let known = pools.lock().unwrap_or_else(PoisonError::into_inner).clone();
    known.into_iter().filter_map(|pool| pool.upgrade())
}

/// Returns the command that starts the helper, without the daemon's environment: the initial environment of a process
/// stays readable in the step's `/proc/1/environ`.
#[expect(clippy::disallowed_methods, reason = "this is the sandbox launcher")]
fn helper_command(helper: &std::path::Path) -> Command {
    let mut command = Command::new(helper);
    command.env_clear();
    command
}

fn stream_socket_pair() -> Result<(OwnedFd, OwnedFd), SandboxError> {
    let made = rustix::net::socketpair(
        rustix::net::AddressFamily::UNIX,
        rustix::net::SocketType::STREAM,
        rustix::net::SocketFlags::CLOEXEC,
        None,
    );
    made.map_err(SandboxError::system("cannot create a socket pair"))
}
