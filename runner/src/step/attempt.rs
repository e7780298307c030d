//! Executes one attempt of a step: spawned → running → terminating → gone → drained.
//!
//! Every wait covers the event itself, the deadline and the cancellation at once. The sandbox's control channel
//! reports the end of all processes. The pipes cannot, because another process may hold them open.

use std::collections::BTreeSet;
use std::os::fd::AsFd as _;
use std::time::Duration;

use proctor_core::model::enforcement::{Control, Enforcement};
use proctor_core::model::event::EndReason;
use proctor_core::model::leak::LeakedProcesses;
use proctor_core::model::outcome::{LimitKind, StartFault, Termination};
use proctor_core::model::plan::{Leaks, PlannedStep};
use proctor_core::model::withheld::WithheldPaths;
use proctor_core::record::evidence::{Resources, StepExecutor, StreamEvidence};
use proctor_core::reuse::WorkerInputs;
use proctor_sandbox::agent::AgentAttempt;
use proctor_sandbox::{EventPoll, RunningSandbox, SandboxEvent, ViewTrace, WaitStatus};
use tokio::io::Interest;
use tokio::net::UnixStream;
use tokio::time::{Instant, sleep_until};
use tokio_util::sync::CancellationToken;

use crate::host::environment::{Environment, VariableOrigin};
use crate::step::live_output::LiveWriter;
use crate::step::output::{self, Outputs};
use crate::step::timing::StageTimer;

/// Timeout for the set-up of a sandbox.
const SETUP_TIMEOUT: Duration = Duration::from_secs(30);
/// Timeout for the kernel to end killed processes.
const KILL_TIMEOUT: Duration = Duration::from_secs(5);
/// Time to read the pipes after all processes of the attempt have ended.
const DRAIN_TIMEOUT: Duration = Duration::from_millis(50);

/// The result of an attempt.
#[derive(Debug)]
pub(crate) struct AttemptResult {
    /// How the attempt ended.
    pub termination: Termination,
    /// Time from the start of the command to the end of its process tree.
    pub duration: Duration,
    /// The standard output.
    pub stdout: StreamEvidence,
    /// The standard error.
    pub stderr: StreamEvidence,
    /// The controls that the kernel enforced.
    pub enforcement: Enforcement,
    /// The resource usage.
    pub resources: Resources,
    /// The processes that the command left behind, if it ended by itself.
    pub leaked: Option<LeakedProcesses>,
    /// True if all processes of the attempt are known to have ended. Otherwise, its layer cannot be trusted.
    pub processes_ended: bool,
    /// The sandbox, if the command left nothing in it and it can be reused.
    pub sandbox: Option<RunningSandbox>,
    /// The accesses of the command to the host; `None` if it did not run on a view.
    pub view: Option<ViewTrace>,
    /// The inputs that a worker got for the command; `None` if the command did not run on a worker.
    pub sent: Option<Box<WorkerInputs>>,
    /// The paths that the view withheld from the command; `None` if it reported none.
    pub withheld: Option<WithheldPaths>,
    /// Where the attempt ran; `None` if it was this machine, as planned.
    pub executor: Option<StepExecutor>,
}

impl AttemptResult {
    /// Returns the report of an attempt that never started.
    pub(crate) fn not_started(fault: StartFault, reason: String) -> Self {
        Self {
            termination: Termination::NotStarted { reason, fault },
            duration: Duration::ZERO,
            stdout: StreamEvidence::empty(),
            stderr: StreamEvidence::empty(),
            enforcement: Enforcement::default(),
            resources: Resources::default(),
            leaked: None,
            processes_ended: true,
            sandbox: None,
            view: None,
            sent: None,
            withheld: None,
            executor: None,
        }
    }

    /// Returns whether the attempt ran on a worker.
    pub(crate) fn is_remote(&self) -> bool {
        matches!(self.executor, Some(StepExecutor::Remote(_)))
    }
}

/// The known inputs that determine the result of an attempt.
#[derive(Debug)]
pub(crate) enum AttemptInputs {
    /// The accesses of the command to the host.
    Read(ViewTrace),
    /// The inputs that a worker got for the command.
    Sent(Box<WorkerInputs>),
}

impl AttemptResult {
    /// Takes the inputs out of the result; `None` if nothing is known about them.
    pub(crate) fn take_inputs(&mut self) -> Option<AttemptInputs> {
        let sent = self.sent.take().map(AttemptInputs::Sent);
        sent.or_else(|| self.view.take().map(AttemptInputs::Read))
    }

    /// Records a limit that turned out to be reached after the attempt ended. A command that did not succeed counts
    /// as failed because of this limit.
    pub(crate) fn record_limit_hit(&mut self, limit: LimitKind, step: &PlannedStep) {
        self.resources.limits_hit.insert(limit);
        let exit_code = match self.termination {
            Termination::Exited { code } if !step.expect_exit.contains(&code) => code,
            Termination::Signaled { signal } => signal.saturating_add(128),
            _ => return,
        };
        self.termination = Termination::LimitHit { limit, exit_code };
    }
}

/// The phase of an attempt.
enum AttemptPhase {
    /// The sandbox is being set up.
    SettingUp { until: Instant },
    /// The command runs.
    Running { deadline: Instant },
    /// All processes were sent SIGTERM; SIGKILL follows.
    Terminating { kill_at: Instant },
    /// SIGKILL was sent, or the command has ended by itself: the kernel ends the other processes.
    Ending { give_up_at: Instant },
}

impl AttemptPhase {
    fn next_deadline(&self) -> Instant {
        match self {
            Self::SettingUp { until } => *until,
            Self::Running { deadline } => *deadline,
            Self::Terminating { kill_at } => *kill_at,
            Self::Ending { give_up_at: give_up } => *give_up,
        }
    }
}

/// The reports from an attempt so far.
struct AttemptObservations {
    started: Option<Instant>,
    enforcement: Enforcement,
    not_started: Option<(StartFault, String)>,
    status: Option<WaitStatus>,
    /// The limit for which the sandbox ended the command.
    limit: Option<LimitKind>,
    resources: Resources,
    leaked: Option<LeakedProcesses>,
    reason: Option<EndReason>,
    processes_ended: bool,
}

/// Follows `running` until it ends. Calls `notify` with the reason when it asks the attempt to end.
pub(crate) async fn supervise(
    running: RunningSandbox,
    step: &PlannedStep,
    outputs: &Outputs,
    live: Option<[LiveWriter; 2]>,
    cancel: &CancellationToken,
    notify: impl Fn(EndReason) + Send,
    timer: &mut StageTimer,
) -> AttemptResult {
    let stop = CancellationToken::new();
    let keep = step.limits.output.get_or_max();
    let (out, err) = match (running.stdout.try_clone(), running.stderr.try_clone()) {
        (Ok(out), Ok(err)) => (out, err),
        (Err(error), _) | (_, Err(error)) => {
            return AttemptResult::not_started(
                StartFault::Internal,
                format!("no file descriptors are available: {error}"),
            );
        }
    };
    let [live_out, live_err] = live.map_or([None, None], |writers| writers.map(Some));
    let stdout = tokio::spawn(output::drain(out, keep, outputs.clone(), live_out, stop.clone()));
    let stderr = tokio::spawn(output::drain(err, keep, outputs.clone(), live_err, stop.clone()));
    let (observed, duration, sandbox, (view, withheld)) = match AttemptChannel::new(running) {
        Ok(control) => {
            let observed = observe_until_end(&control, step, cancel, notify, timer).await;
            // The time is taken before `control` is dropped, because releasing an attempt that does not end takes a
            // while.
            let duration = observed.started.map_or(Duration::ZERO, |started| started.elapsed());
            let view = (control.running.take_view_trace(), control.running.take_withheld_paths());
            let sandbox = observed.ended_by_itself().then_some(control.running).filter(RunningSandbox::is_reusable);
            (observed, duration, sandbox, view)
        }
        Err(error) => {
            let reason = format!("the sandbox's control channel cannot be monitored: {error}");
            (AttemptObservations::internal_failure(reason), Duration::ZERO, None, (None, None))
        }
    };
    timer.finish_stage("let_go");
    let (stdout, stderr) = join_drains(stdout, stderr, &stop).await;
    timer.finish_stage("drain");
    AttemptResult {
        termination: observed.termination(step),
        leaked: observed.leaked(step),
        duration,
        stdout,
        stderr,
        enforcement: observed.enforcement,
        resources: observed.resources,
        processes_ended: observed.processes_ended,
        sandbox,
        view,
        sent: None,
        withheld,
        executor: None,
    }
}

/// Returns the result of an attempt that ran on a worker, without its executor.
pub(crate) fn worker_result(
    attempt: AgentAttempt,
    step: &PlannedStep,
    [stdout, stderr]: [StreamEvidence; 2],
) -> AttemptResult {
    let AgentAttempt { started, not_started, status, limit, timed_out, duration_ms, enforcement, .. } = attempt;
    let observed = AttemptObservations {
        started: started.then(Instant::now),
        enforcement,
        not_started,
        status,
        limit,
        resources: attempt.resources,
        leaked: attempt.leaked,
        reason: timed_out.then_some(EndReason::Timeout),
        processes_ended: attempt.processes_ended,
    };
    let mut result = AttemptResult {
        termination: observed.termination(step),
        leaked: observed.leaked(step),
        duration: Duration::from_millis(duration_ms),
        stdout,
        stderr,
        enforcement: observed.enforcement,
        resources: observed.resources,
        processes_ended: observed.processes_ended,
        sandbox: None,
        view: None,
        sent: None,
        withheld: None,
        executor: None,
    };
    if result.enforcement.is_enforced(Control::DiskLimit) {
        attempt.exhausted.into_iter().for_each(|limit| result.record_limit_hit(limit, step));
    }
    result
}

/// Waits for the end of both streams. All processes of the attempt have ended, so the pipes normally close at once. If
/// a process outside has a copy of a descriptor, this waits for [`DRAIN_TIMEOUT`] and keeps the bytes so far.
async fn join_drains(
    stdout: tokio::task::JoinHandle<StreamEvidence>,
    stderr: tokio::task::JoinHandle<StreamEvidence>,
    stop: &CancellationToken,
) -> (StreamEvidence, StreamEvidence) {
    let both = async { tokio::join!(stdout, stderr) };
    tokio::pin!(both);
    let (stdout, stderr) = tokio::select! {
        ends = &mut both => ends,
        () = tokio::time::sleep(DRAIN_TIMEOUT) => {
            stop.cancel();
            both.await
        }
    };
    let or_incomplete = |joined: Result<StreamEvidence, tokio::task::JoinError>| {
        joined.unwrap_or_else(|error| {
            tracing::error!(%error, "reading an output pipe failed unexpectedly");
            StreamEvidence { complete: false, ..StreamEvidence::empty() }
        })
    };
    (or_incomplete(stdout), or_incomplete(stderr))
}

async fn observe_until_end(
    control: &AttemptChannel,
    step: &PlannedStep,
    cancel: &CancellationToken,
    notify: impl Fn(EndReason),
    timer: &mut StageTimer,
) -> AttemptObservations {
    let mut observed = AttemptObservations::new();
    let mut phase = AttemptPhase::SettingUp { until: Instant::now() + SETUP_TIMEOUT };
    loop {
        let may_cancel = observed.reason.is_none() && !matches!(phase, AttemptPhase::Ending { .. });
        tokio::select! {
            received = control.receive() => match received {
                Ok(Some(report)) => {
                    timer.finish_stage(if matches!(report, SandboxEvent::Exited { .. }) { "command" } else { "set_up" });
                    phase = observed.handle_report(report, phase, step);
                }
                Ok(None) => {
                    timer.finish_stage("end");
                    observed.processes_ended = true;
                    return observed;
                }
                Err(error) => {
                    // Without the channel, the end of the processes cannot be detected, so the attempt does not count
                    // as ended.
                    tracing::error!(%error, "the sandbox's control channel failed");
                    send_kill(&control.running);
                    return observed;
                }
            },
            () = cancel.cancelled(), if may_cancel => {
                phase = observed.request_end(&control.running, &phase, EndReason::Cancelled, step, &notify);
            }
            () = sleep_until(phase.next_deadline()) => match phase {
                AttemptPhase::Ending { .. } => return observed,
                AttemptPhase::Running { .. } => {
                    phase = observed.request_end(&control.running, &phase, EndReason::Timeout, step, &notify);
                }
                AttemptPhase::SettingUp { .. } => {
                    observed.not_started = Some((StartFault::Sandbox, format!("the sandbox was not ready after {SETUP_TIMEOUT:?}")));
                    phase = send_kill(&control.running);
                }
                AttemptPhase::Terminating { .. } => phase = send_kill(&control.running),
            },
        }
    }
}

/// An attempt whose control channel is registered with the runtime.
struct AttemptChannel {
    running: RunningSandbox,
    /// A duplicate of the channel for readiness only; reads go through `running`.
    readiness: UnixStream,
}

impl AttemptChannel {
    fn new(running: RunningSandbox) -> std::io::Result<Self> {
        let duplicate = running.as_fd().try_clone_to_owned()?;
        let readiness = UnixStream::from_std(duplicate.into())?;
        Ok(Self { running, readiness })
    }

    /// Waits for the next report; `None` if the channel is closed, which means that all processes of the attempt have
    /// ended.
    ///
    /// # Errors
    /// The channel cannot be read; the state of the processes is then unknown.
    async fn receive(&self) -> std::io::Result<Option<SandboxEvent>> {
        // Sending a signal may have buffered reports, which cause no wake-up, so read before waiting.
        let mut next = self.running.recv()?;
        loop {
            match next {
                EventPoll::Event(report) => return Ok(Some(report)),
                EventPoll::Closed => return Ok(None),
                EventPoll::WouldBlock => self.readiness.readable().await?,
            }
            let read = self.readiness.try_io(Interest::READABLE, || match self.running.recv()? {
                EventPoll::WouldBlock => Err(std::io::ErrorKind::WouldBlock.into()),
                other => Ok(other),
            });
            next = match read {
                Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => EventPoll::WouldBlock,
                other => other?,
            };
        }
    }
}

fn send_kill(running: &RunningSandbox) -> AttemptPhase {
    if let Err(error) = running.kill() {
        tracing::error!(%error, "SIGKILL could not be sent");
    }
    AttemptPhase::Ending { give_up_at: Instant::now() + KILL_TIMEOUT }
}

impl AttemptObservations {
    fn new() -> Self {
        Self {
            started: None,
            enforcement: Enforcement::default(),
            not_started: None,
            status: None,
            limit: None,
            resources: Resources::default(),
            leaked: None,
            reason: None,
            processes_ended: false,
        }
    }

    fn internal_failure(reason: String) -> Self {
        Self { not_started: Some((StartFault::Internal, reason)), ..Self::new() }
    }

    fn handle_report(&mut self, report: SandboxEvent, phase: AttemptPhase, step: &PlannedStep) -> AttemptPhase {
        match report {
            SandboxEvent::Ready { enforcement } => {
                let now = Instant::now();
                self.enforcement = enforcement;
                self.started = Some(now);
                match phase {
                    AttemptPhase::SettingUp { .. } => {
                        AttemptPhase::Running { deadline: now + Duration::from_millis(step.timeout_ms) }
                    }
                    other => other,
                }
            }
            SandboxEvent::Refused { control, message, hint } => {
                let reason =
                    format!("the sandbox control `{}` cannot be enforced: {message}; {hint}", control.as_str());
                self.not_started.get_or_insert((StartFault::Sandbox, reason));
                AttemptPhase::Ending { give_up_at: Instant::now() + KILL_TIMEOUT }
            }
            SandboxEvent::NotStarted { fault, message } => {
                self.not_started.get_or_insert((fault, message));
                AttemptPhase::Ending { give_up_at: Instant::now() + KILL_TIMEOUT }
            }
            SandboxEvent::Exited { status, limit, resources, leaked } => {
                self.status = Some(status);
                self.limit = limit;
                self.resources = resources;
                self.leaked = leaked;
                AttemptPhase::Ending { give_up_at: Instant::now() + KILL_TIMEOUT }
            }
        }
    }

    /// Asks the attempt to end and notifies the caller.
    fn request_end(
        &mut self,
        running: &RunningSandbox,
        phase: &AttemptPhase,
        reason: EndReason,
        step: &PlannedStep,
        notify: &impl Fn(EndReason),
    ) -> AttemptPhase {
        self.reason = Some(reason);
        notify(reason);
        if matches!(phase, AttemptPhase::SettingUp { .. }) {
            return send_kill(running);
        }
        if let Err(error) = running.terminate() {
            tracing::error!(%error, "SIGTERM could not be sent");
            return send_kill(running);
        }
        AttemptPhase::Terminating { kill_at: Instant::now() + Duration::from_millis(step.grace_ms) }
    }

    /// Returns whether the command ran and ended by itself, without reaching a limit.
    fn ended_by_itself(&self) -> bool {
        let by_itself = self.reason.is_none() && self.limit.is_none() && self.not_started.is_none();
        self.processes_ended && self.started.is_some() && by_itself && self.resources.limits_hit.is_empty()
    }

    /// Returns the processes that the command left behind when it ended by itself.
    fn leaked(&self, step: &PlannedStep) -> Option<LeakedProcesses> {
        let by_itself = self.reason.is_none() && self.limit.is_none() && self.not_started.is_none();
        self.leaked.clone().filter(|_| by_itself && step.leaks != Leaks::Ignore)
    }

    fn termination(&self, step: &PlannedStep) -> Termination {
        const SIGKILL: u8 = 9;
        let exit_code = match self.status {
            Some(WaitStatus::Code(code)) => code,
            Some(WaitStatus::Signal(signal)) => signal.saturating_add(128),
            // The init process was killed before its report, and all other processes with it.
            None => 128 + SIGKILL,
        };
        match (self.reason, &self.not_started, self.status) {
            (Some(EndReason::Cancelled), ..) => Termination::Cancelled,
            (Some(EndReason::Timeout), ..) => Termination::TimedOut { exit_code },
            (None, Some((fault, reason)), _) => Termination::NotStarted { reason: reason.clone(), fault: *fault },
            // One of our processes ended, so its status is not the command's.
            (None, None, Some(status)) if self.started.is_none() && self.limit.is_none() => Termination::NotStarted {
                reason: format!("the sandbox ended before the command began: {status:?}"),
                fault: StartFault::Internal,
            },
            (None, None, Some(status)) => self.command_termination(status, exit_code, step),
            (None, None, None) => Termination::NotStarted {
                reason: "the sandbox ended without a result of the command; a process outside the sandbox killed it"
                    .to_owned(),
                fault: StartFault::Internal,
            },
        }
    }

    /// Returns the termination of a command that ran: by a limit, if the sandbox ended it for a limit, or if it
    /// failed after reaching one.
    fn command_termination(&self, status: WaitStatus, exit_code: u8, step: &PlannedStep) -> Termination {
        let succeeded = matches!(status, WaitStatus::Code(code) if step.expect_exit.contains(&code));
        let limit_hit = || self.resources.limits_hit.first().copied().filter(|_| !succeeded);
        match (self.limit.or_else(limit_hit), status) {
            (Some(limit), _) => Termination::LimitHit { limit, exit_code },
            (None, WaitStatus::Code(code)) => Termination::Exited { code },
            (None, WaitStatus::Signal(signal)) => signal_termination(signal, exit_code, step),
        }
    }
}

/// Maps the signals that the kernel sends for a reached limit.
fn signal_termination(signal: u8, exit_code: u8, step: &PlannedStep) -> Termination {
    use proctor_core::model::plan::Limit;
    const SIGXCPU: u8 = 24;
    const SIGXFSZ: u8 = 25;
    let bounded = |limit: Limit| limit != Limit::Unlimited;
    match signal {
        SIGXCPU if bounded(step.limits.cpu_seconds) => {
            Termination::LimitHit { limit: LimitKind::CpuSeconds, exit_code }
        }
        SIGXFSZ if bounded(step.limits.disk) => Termination::LimitHit { limit: LimitKind::Disk, exit_code },
        _ => Termination::Signaled { signal },
    }
}

/// Returns the names of the variables of an attempt, for the record. The run's trace variables are left out, so
/// that a record does not depend on whether its run is traced.
pub(crate) fn recorded_variable_names(environment: &Environment) -> BTreeSet<String> {
    let recorded = environment.iter().filter(|(_, (_, origin))| *origin != VariableOrigin::Trace);
    recorded.map(|(name, _)| name.clone()).collect()
}

/// Waits for `first` while `other` proceeds; drops `other` when `first` is done.
pub(crate) async fn run_alongside<T>(first: impl Future<Output = T>, other: impl Future<Output = ()>) -> T {
    tokio::pin!(first, other);
    tokio::select! {
        biased;
        done = &mut first => return done,
        () = &mut other => {}
    }
    first.await
}
