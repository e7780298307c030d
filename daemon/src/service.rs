//! Transport-independent operations of the daemon.
//!
//! Every operation returns a value of `proctor_core::api` or a [`Problem`]. The service also decides which caller may
//! see which run.

mod ask_service;
mod continue_on_drop;
mod engine_factory;
mod exec_service;
mod follow_run;
mod judgement_count;
mod queries;
mod question_observer;
mod sql_queue;
mod sql_service;
mod sql_workers;
mod state_probe;
mod step_output;
mod submit;

pub(crate) use exec_service::ExecSession;
pub use follow_run::RunUpdate;
pub(crate) use step_output::OutputFeed;
pub use step_output::OutputSource;
pub(crate) use step_output::read_live_output as read_live;

use std::path::{Path, PathBuf};
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use futures_util::Stream;
use proctor_core::api::{
    Health, HealthStatus, LoggedEvent, Problem, ProblemType, Readiness, ReadinessStatus, RunCounts, RunPage, RunState,
    RunView,
};
use proctor_core::decision::verdict::Verdict;
use proctor_core::model::names::RunId;
use proctor_core::model::plan::ReportFormat;
use proctor_core::spec::{OperatorConfig, Retention};
use proctor_core::telemetry::take_context;
use proctor_runner::{Clock, Engine, EngineConfig, EngineError};
use tokio::sync::watch;
use tokio::task::JoinError;
use tokio::time::Instant;

use self::ask_service::AskState;
use self::sql_workers::SqlWorkers;
use self::state_probe::StateProbe;
use crate::caller::{Account, Caller, CallerPolicy};
use crate::caller_limits::CallerLimit;
use crate::exec_queue::ExecQueue;
use crate::history::{History, HistoryError, OpenHistoryError, RecoverySummary, RunFilter};
use crate::metrics::Metrics;
use crate::queue::QueueLimits;
use crate::runs::{FoundRun, RunNotification, RunObserver, RunsHandle, SerializedRun};
use crate::telemetry::{EndedRun, ExportTarget, Telemetry};
use crate::throttle::Throttle;

/// Maximum time that a call waits for new events of a run.
pub const MAX_WAIT: Duration = Duration::from_secs(55);
/// Maximum number of events in one response.
pub const MAX_EVENTS: usize = 256;
/// Maximum number of bytes of an output in one response.
pub const MAX_PART: usize = 4 << 20;

/// Configuration of a service.
#[derive(Debug, Clone)]
pub struct ServiceConfig {
    /// Configuration of the engine, with the home and environment of the daemon's own user.
    pub engine: EngineConfig,
    /// Path of the operator's config, for messages; `None` without a config file.
    pub config: Option<PathBuf>,
    /// Metrics registry.
    pub metrics: Metrics,
    /// Receiver of the spans of runs; `None` disables the export.
    pub telemetry: Option<ExportTarget>,
}

/// Reason why a service cannot start.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// The engine cannot start.
    #[error(transparent)]
    Engine(#[from] EngineError),
    /// The history of runs cannot be opened.
    #[error(transparent)]
    History(#[from] OpenHistoryError),
}

/// Identifies one output of a run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct OutputId {
    /// Kind of unit that produced the output.
    pub unit: OutputUnit,
    /// Number of the unit, from 0.
    pub n: u32,
    /// Output stream.
    pub stream: StdStream,
}

/// Identifies one report of a run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ReportId {
    /// Number of the step, from 0.
    pub n: u32,
    /// Format of the report.
    pub format: ReportFormat,
}

/// Kind of unit that produces outputs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OutputUnit {
    /// A toolchain check.
    Check,
    /// A step.
    Step,
}

/// An output stream.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StdStream {
    /// Standard output.
    Stdout,
    /// Standard error.
    Stderr,
}

/// The events of a run from a given position, ending after the last event of the run. The run never waits for a slow
/// reader: such a reader gets the events that it missed from the log.
pub type RunEventStream = Pin<Box<dyn Stream<Item = Arc<LoggedEvent>> + Send>>;

/// Operations that callers can request from the daemon.
pub struct Service {
    engine: Arc<Engine>,
    history: History,
    runs: RunsHandle,
    exec_queue: ExecQueue,
    caller_policy: CallerPolicy,
    operator: watch::Sender<Arc<OperatorConfig>>,
    config: Option<PathBuf>,
    metrics: Metrics,
    telemetry: Arc<Telemetry>,
    /// Bounds the requests being prepared, per caller and in total. Preparing reads a spec and possibly a tree; the
    /// bound per caller keeps one with a slow disk or many requests from delaying the others.
    preparation_limit: CallerLimit,
    sql: SqlWorkers,
    ask: AskState,
    state_probe: StateProbe,
    /// Limits how often refused requests of one user and problem type are logged.
    refusal_throttle: Throttle<(u32, ProblemType)>,
    draining: AtomicBool,
    started_at: Instant,
}

/// Interval after which old runs are removed by age even if no run has ended.
const CLEANUP_INTERVAL: Duration = Duration::from_secs(60 * 60);
/// Pause between two bounded batches of removals, so that they do not keep the index busy.
const CLEANUP_PAUSE: Duration = Duration::from_millis(100);
/// Minimum interval between two log records about refused requests of one user and problem type.
const REFUSAL_LOG_INTERVAL: Duration = Duration::from_secs(60);
/// Number of requests of one caller that are prepared concurrently for each CPU. `MAX_PREPARING` caps the product.
const PREPARING_PER_CPU: usize = 4;
const MAX_PREPARING: usize = 32;
/// Number of callers that can use their full share concurrently. All callers together use at most a quarter of
/// tokio's blocking threads, because recording runs needs these threads too.
const PREPARING_CALLERS: usize = 4;
/// Time limit for cancelled runs. It is longer than their steps need to end. The next daemon marks runs that are left
/// after it as interrupted.
const CANCELLED_RUNS_TIMEOUT: Duration = Duration::from_secs(60);

impl Service {
    /// Opens the state directory, marks unfinished runs of the last daemon as interrupted, and starts to accept
    /// requests.
    ///
    /// # Errors
    /// The state directory cannot be used, or another daemon uses it.
    pub async fn open(config: ServiceConfig) -> Result<Arc<Self>, StartError> {
        let history = config.engine.state_dir.clone();
        Self::open_with_history(config, history).await
    }

    /// Like [`Service::open`], but keeps the history of runs below `history` instead of the state directory.
    ///
    /// A process that serves a single client uses this next to the daemon and other such processes.
    ///
    /// # Errors
    /// As [`Service::open`].
    pub async fn open_with_history(config: ServiceConfig, history: PathBuf) -> Result<Arc<Self>, StartError> {
        let opening = tokio::task::spawn_blocking(move || Self::open_blocking(config, &history)).await;
        let broke = |error: JoinError| EngineError::Internal(format!("the start failed unexpectedly: {error}"));
        let (service, recovered) = opening.map_err(broke)??;
        tracing::info!(runs = recovered.runs, "the stored runs are available");
        Ok(Arc::new(service))
    }

    /// Opens the service; blocks on the disk.
    fn open_blocking(config: ServiceConfig, history: &Path) -> Result<(Self, RecoverySummary), StartError> {
        let ServiceConfig { engine: config, config: file, metrics, telemetry } = config;
        let operator = Arc::new(config.operator.clone());
        let mut account = Account { home: config.home.clone(), env: config.caller_env.clone() };
        // The trace context in the daemon's environment does not apply to its runs.
        take_context(&mut account.env);
        let reserved_dirs: Vec<PathBuf> =
            config.hidden_dirs.iter().cloned().chain([config.state_dir.clone()]).collect();
        let judges = SqlWorkers::new(cpu_count());
        let env = config.caller_env.clone();
        let engine = Arc::new(Engine::open(config)?);
        let ask = AskState::new(Arc::clone(engine.launcher()), env, engine.state_dir());
        let state_probe = StateProbe::new(engine.state_dir().to_owned());
        let (history, recovered) = History::open(history, Clock::system())?;
        let limits = QueueLimits::from_settings(&operator.daemon, cpu_count());
        let ended = watch::Sender::new(0);
        let operator = watch::Sender::new(operator);
        tokio::spawn(remove_old_runs(history.clone(), operator.subscribe(), ended.subscribe()));
        let telemetry = Telemetry::start(history.clone(), telemetry, metrics.clone());
        let runs = RunsHandle::start(history.clone(), limits, observer(metrics.clone(), ended, Arc::clone(&telemetry)));
        let service = Self {
            engine,
            history,
            runs,
            exec_queue: ExecQueue::new(limits),
            caller_policy: CallerPolicy::new(account, reserved_dirs),
            operator,
            config: file,
            metrics,
            telemetry,
            sql: judges,
            ask,
            state_probe,
            refusal_throttle: Throttle::new(REFUSAL_LOG_INTERVAL),
            preparation_limit: CallerLimit::new(
                (cpu_count() * PREPARING_PER_CPU).min(MAX_PREPARING),
                PREPARING_CALLERS,
            ),
            draining: AtomicBool::new(false),
            started_at: Instant::now(),
        };
        Ok((service, recovered))
    }

    /// Returns the current state of a run.
    ///
    /// # Errors
    /// No run that the caller may see has this id.
    pub async fn run(&self, caller: Caller, id: &RunId) -> Result<Arc<SerializedRun>, Problem> {
        Ok(self.find_run(caller, id).await?.current())
    }

    /// Finds a run that the caller may see: an active run, or a finished one from the history.
    async fn find_run(&self, caller: Caller, id: &RunId) -> Result<FoundRun, Problem> {
        let found = match self.runs.find(id).await {
            Some(found) => Some(found),
            None => self.load_finished(id).await?.map(FoundRun::Ended),
        };
        let uid = |found: &FoundRun| match found {
            FoundRun::Live(live) => live.uid(),
            FoundRun::Ended(shown) => shown.view.uid,
        };
        found.filter(|found| self.caller_policy.sees_all(caller) || uid(found) == caller.uid).ok_or_else(|| no_run(id))
    }

    /// Reads a finished run from its log and caches it.
    async fn load_finished(&self, id: &RunId) -> Result<Option<Arc<SerializedRun>>, Problem> {
        let wanted = id.clone();
        let view = self.query_history(move |history| history.view(&wanted)).await?;
        let Some(shown) = view.map(|view| Arc::new(SerializedRun::new(view))) else { return Ok(None) };
        if shown.view.state == RunState::Finished {
            self.runs.cache(Arc::clone(&shown)).await;
        }
        Ok(Some(shown))
    }

    /// Queries the history on a blocking thread.
    async fn query_history<T: Send + 'static>(
        &self,
        query: impl FnOnce(&History) -> Result<T, HistoryError> + Send + 'static,
    ) -> Result<T, Problem> {
        let history = self.history.clone();
        let answer = run_blocking(move || query(&history)).await?;
        answer.map_err(|error| error.problem())
    }

    /// Lists runs, newest first.
    ///
    /// # Errors
    /// The cursor is invalid.
    pub async fn list(&self, caller: Caller, filter: RunFilter) -> Result<RunPage, Problem> {
        let uid = (!self.caller_policy.sees_all(caller)).then_some(caller.uid);
        self.query_history(move |history| history.list(&filter, uid)).await
    }

    /// Requests cancellation of a run; `by` is a human-readable name of the requester. A finished run does not
    /// change.
    ///
    /// Returns immediately; the end of the run is reported as an event.
    ///
    /// # Errors
    /// As [`Service::run`].
    pub async fn cancel(&self, caller: Caller, id: &RunId, by: &str) -> Result<Arc<SerializedRun>, Problem> {
        let found = self.find_run(caller, id).await?;
        if found.live().is_some() {
            self.runs.cancel(id, by.to_owned()).await;
        }
        Ok(found.current())
    }

    /// Withdraws one request from the run that serves it. The run is cancelled when no request is left. Each call
    /// counts as one request, whichever client sent it.
    ///
    /// # Errors
    /// As [`Service::run`].
    pub async fn abandon(&self, caller: Caller, id: &RunId, by: &str) -> Result<Arc<SerializedRun>, Problem> {
        let found = self.find_run(caller, id).await?;
        if found.live().is_some() {
            self.runs.abandon(id, by.to_owned()).await;
        }
        Ok(found.current())
    }

    /// Reports the health of the daemon. Takes no lock and does not access the disk.
    pub fn health(&self) -> Health {
        Health {
            status: if self.is_draining() { HealthStatus::Draining } else { HealthStatus::Ok },
            version: env!("CARGO_PKG_VERSION").to_owned(),
            pid: std::process::id(),
            uid: self.caller_policy.daemon_uid(),
            uptime_ms: u64::try_from(self.started_at.elapsed().as_millis()).unwrap_or(u64::MAX),
            runs: self.runs.counts(),
        }
    }

    /// Reports whether new runs are accepted.
    ///
    /// # Errors
    /// The daemon is shutting down, or its state directory is not writable.
    pub async fn readiness(&self) -> Result<Readiness, Problem> {
        let refused = |detail: String, hint: &str| Err(Problem::new(ProblemType::Unavailable, detail).with_hint(hint));
        if self.is_draining() {
            return refused("the daemon is shutting down".to_owned(), "try again after the daemon has restarted");
        }
        match self.state_probe.probe().await {
            Ok(state_free_bytes) => Ok(Readiness { status: ReadinessStatus::Ready, state_free_bytes }),
            Err(reason) => refused(
                format!("the daemon's state directory cannot be written: {reason}"),
                "free space in the daemon's state directory, and make sure that it is writable",
            ),
        }
    }

    fn is_draining(&self) -> bool {
        self.draining.load(Ordering::Relaxed)
    }

    /// Checks whether the owner task of all runs still processes messages. The systemd watchdog is notified only if
    /// it does.
    pub async fn is_responsive(&self) -> bool {
        self.runs.ping().await
    }

    /// Applies `operator` to new requests. Active runs keep their settings.
    pub fn reload(&self, operator: OperatorConfig) {
        let limits = QueueLimits::from_settings(&operator.daemon, cpu_count());
        self.runs.set_limits(limits);
        self.exec_queue.set_limits(limits);
        self.operator.send_replace(Arc::new(operator));
    }

    /// Exports the spans of runs to `target` from now on; `None` disables the export.
    pub fn export_to(&self, target: Option<ExportTarget>) {
        self.telemetry.set_target(target);
    }

    /// Exports the spans of the last runs, within a bounded time.
    pub async fn flush_spans(&self) {
        self.telemetry.shut_down().await;
    }

    /// Returns the current operator settings.
    pub fn operator(&self) -> Arc<OperatorConfig> {
        Arc::clone(&self.operator.borrow())
    }

    /// Returns the path of the operator's config as read at the start; `None` without a config file.
    pub fn config(&self) -> Option<&Path> {
        self.config.as_deref()
    }

    /// Stops accepting requests, gives active runs up to `grace` to finish, cancels the rest, and returns when none
    /// is left. Queued runs end as interrupted.
    pub async fn drain(&self, grace: Duration) {
        self.draining.store(true, Ordering::Relaxed);
        self.exec_queue.drain();
        self.runs.drain("the daemon is shutting down".to_owned()).await;
        if self.wait_until_empty(grace).await {
            return;
        }
        self.exec_queue.cancel_all();
        self.runs.cancel_all("the daemon is shutting down".to_owned()).await;
        if !self.wait_until_empty(CANCELLED_RUNS_TIMEOUT).await {
            tracing::error!(runs = ?self.runs.counts(), "runs did not end; the next daemon completes their records");
        }
    }

    /// Waits until no run and no single command is left. Returns `false` if `patience` elapses first.
    async fn wait_until_empty(&self, time_limit: Duration) -> bool {
        let (mut runs, mut execs) = (self.runs.subscribe_counts(), self.exec_queue.subscribe_count());
        // `wait_for` cannot fail: both senders live as long as the service.
        let none = async {
            let _ = runs.wait_for(|counts| *counts == RunCounts::default()).await;
            let _ = execs.wait_for(|count| *count == 0).await;
        };
        tokio::time::timeout(time_limit, none).await.is_ok()
    }

    /// Completes when a run or a single command exists.
    pub async fn wait_until_busy(&self) {
        let (mut runs, mut execs) = (self.runs.subscribe_counts(), self.exec_queue.subscribe_count());
        // `wait_for` cannot fail: both senders live as long as the service.
        tokio::select! {
            _ = runs.wait_for(|counts| *counts != RunCounts::default()) => {}
            _ = execs.wait_for(|count| *count != 0) => {}
        }
    }

    /// Completes when no run and no single command has existed for `idle`.
    pub async fn wait_until_idle(&self, idle: Duration) {
        let (mut runs, mut execs) = (self.runs.subscribe_counts(), self.exec_queue.subscribe_count());
        loop {
            let busy = *runs.borrow_and_update() != RunCounts::default() || *execs.borrow_and_update() != 0;
            let changed = async {
                tokio::select! {
                    _ = runs.changed() => {}
                    _ = execs.changed() => {}
                }
            };
            match busy {
                true => changed.await,
                false if tokio::time::timeout(idle, changed).await.is_err() => return,
                false => {}
            }
        }
    }
}

/// Runs blocking work on a blocking thread.
async fn run_blocking<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> Result<T, Problem> {
    tokio::task::spawn_blocking(work).await.map_err(|error| task_panicked(&error))
}

/// Logs that the task of a request panicked, and returns the problem for the caller.
fn task_panicked(error: &JoinError) -> Problem {
    tracing::error!(%error, "a request failed unexpectedly");
    Problem::new(ProblemType::Internal, "an internal error occurred while the daemon handled the request")
        .with_hint("please report it; the daemon's log has the details")
}

fn cpu_count() -> usize {
    std::thread::available_parallelism().map_or(1, std::num::NonZeroUsize::get)
}

fn no_run(id: &RunId) -> Problem {
    Problem::new(ProblemType::NotFound, format!("there is no run `{id}`"))
        .with_hint("`proctor status` (`GET /v1/runs`) lists the stored runs")
}

/// Removes old runs after each run, after a reload, and once an hour. Returns when the owner of runs has stopped.
async fn remove_old_runs(
    history: History,
    mut operator: watch::Receiver<Arc<OperatorConfig>>,
    mut ended: watch::Receiver<u64>,
) {
    loop {
        let keep = operator.borrow_and_update().daemon.retention.clone();
        ended.borrow_and_update();
        while remove_batch(&history, &keep).await {
            tokio::time::sleep(CLEANUP_PAUSE).await;
        }
        let change = async {
            tokio::select! {
                changed = ended.changed() => changed,
                changed = operator.changed() => changed,
            }
        };
        if let Ok(Err(_)) = tokio::time::timeout(CLEANUP_INTERVAL, change).await {
            return;
        }
    }
}

/// Removes a bounded number of old runs. Returns whether more may be left.
async fn remove_batch(history: &History, retention: &Retention) -> bool {
    let (history, keep) = (history.clone(), retention.clone());
    match tokio::task::spawn_blocking(move || history.remove_outdated(&keep)).await {
        Ok(Ok(retained)) if retained.removed > 0 => {
            tracing::info!(forgotten = retained.removed, left = retained.runs, "old runs were removed");
            return retained.has_more;
        }
        Ok(Ok(_)) => {}
        Ok(Err(error)) => tracing::warn!(%error, "old runs could not be deleted"),
        Err(error) => tracing::error!(%error, "deleting old runs failed unexpectedly"),
    }
    false
}

fn millis(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}

/// Returns an observer that updates the metrics and logs the end of each run.
fn observer(metrics: Metrics, ended: watch::Sender<u64>, telemetry: Arc<Telemetry>) -> RunObserver {
    Box::new(move |observed| match observed {
        RunNotification::Admitted(how) => metrics.count_submission(how),
        RunNotification::Started(waited) => metrics.observe_run_start(waited),
        RunNotification::Ended(view, took, executed) => {
            ended.send_modify(|count| *count += 1);
            if let Some(verdict) = view.verdict {
                telemetry.queue_run(EndedRun::new(view, took, executed));
                metrics.observe_run_end(view, verdict, took, executed);
                log_run_end(view, verdict, took, executed);
            }
        }
    })
}

/// Logs the end of a run. The record contains text from the repository and its steps.
fn log_run_end(view: &RunView, verdict: Verdict, took: Duration, executed: Option<Duration>) {
    tracing::info!(
        run = %view.id,
        uid = view.uid,
        repo = view.request.repo,
        profile = %view.request.profile,
        changeset = view.request.changeset_id.as_ref().map(tracing::field::display),
        verdict = verdict.as_str(),
        reason = view.reason,
        took_ms = millis(took),
        executed_ms = executed.map(millis),
        "a run has ended"
    );
}
