//! What callers can ask for, whatever they speak. Every answer is a value of `proctor_core::api`,
//! every refusal a [`Problem`]; who may ask for what is decided here.

mod ask;
mod engines;
mod exec;
mod follow;
mod output;
mod readiness;
mod sql;
mod submit;

pub(crate) use exec::Execution;
pub use follow::Seen;
pub(crate) use output::OutputFeed;
pub use output::OutputSource;
pub(crate) use output::read as read_live;

use std::path::{Path, PathBuf};
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use bytes::Bytes;
use futures_util::Stream;
use proctor_core::api::{
    Health, HealthStatus, LoggedEvent, Problem, ProblemType, RunCounts, RunPage, RunState, RunView,
};
use proctor_core::names::{ChangesetId, ProfileName, RunId};
use proctor_core::plan::ReportFormat;
use proctor_core::spec::{Operator, Retention};
use proctor_core::telemetry::take_context;
use proctor_core::verdict::Verdict;
use proctor_runner::{Clock, Engine, EngineConfig, EngineError};
use tokio::sync::watch;
use tokio::task::JoinError;
use tokio::time::Instant;

use self::readiness::StateProbe;
use self::sql::Judges;
use crate::caller::{Account, Caller, Household};
use crate::execs::Execs;
use crate::history::{History, HistoryError, Recovered};
use crate::metrics::Metrics;
use crate::queue::Limits;
use crate::runs::{Found, Observed, Observer, Runs};
use crate::shares::Turns;
use crate::telemetry::{EndedRun, Target, Telemetry};
use crate::throttle::Throttle;

/// The longest that a call waits for news of a run.
pub const MAX_WAIT: Duration = Duration::from_secs(55);
/// How many events one answer holds.
pub const MAX_EVENTS: usize = 256;
/// How many runs a page holds at most, and how many where the caller does not say.
pub const MAX_PAGE: u32 = 200;
/// How many bytes of an output one answer holds at most.
pub const MAX_PART: usize = 4 << 20;

/// What a service needs.
#[derive(Debug, Clone)]
pub struct ServiceConfig {
    /// The engine's: its home and environment are those of the daemon's own user.
    pub engine: EngineConfig,
    /// Where the operator's config was read, for messages; `None` where there is none.
    pub config: Option<PathBuf>,
    /// What counts.
    pub metrics: Metrics,
    /// Where the spans of runs are sent; `None` where they are not.
    pub telemetry: Option<Target>,
}

/// Why a service cannot begin.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// The engine cannot.
    #[error(transparent)]
    Engine(#[from] EngineError),
    /// Another daemon uses the state directory.
    #[error("another daemon uses the state directory `{}`\nhint: `proctor daemon status` shows it; or choose another directory with `--state-dir`", .0.display())]
    StateInUse(PathBuf),
    /// What is remembered of runs cannot be opened.
    #[error("the history of runs in `{}` cannot be opened: {reason}", path.display())]
    History {
        /// The file or directory.
        path: PathBuf,
        /// What was found.
        reason: String,
    },
}

/// A run as callers get it, and its JSON, made once.
#[derive(Debug)]
pub struct Shown {
    /// The run.
    pub view: RunView,
    json: OnceLock<Bytes>,
}

impl Shown {
    /// The same run, to be shown.
    pub fn new(view: RunView) -> Self {
        Self { view, json: OnceLock::new() }
    }

    /// Its JSON.
    pub fn json(&self) -> Bytes {
        self.json.get_or_init(|| serde_json::to_vec(&self.view).map(Bytes::from).unwrap_or_default()).clone()
    }
}

/// Which runs are listed: newest first, those of the caller; the daemon's own user sees all.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct RunFilter {
    /// Of this repository, by its canonical path.
    pub repo: Option<String>,
    /// Of this changeset.
    pub changeset: Option<ChangesetId>,
    /// Of this profile.
    pub profile: Option<ProfileName>,
    /// In this state.
    pub state: Option<RunState>,
    /// With this verdict.
    pub verdict: Option<Verdict>,
    /// After this one of an earlier page.
    pub cursor: Option<String>,
    /// At most so many, up to [`MAX_PAGE`].
    pub limit: Option<u32>,
}

/// Which output of a run is meant.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct OutputOf {
    /// Whether of a toolchain check or of a step.
    pub unit: Unit,
    /// Its number, from 0.
    pub n: u32,
    /// Which stream.
    pub stream: Stdio,
}

/// Which report of a run is meant.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ReportOf {
    /// The number of its step, from 0.
    pub n: u32,
    /// Which of its reports.
    pub format: ReportFormat,
}

/// What has outputs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Unit {
    /// A toolchain check.
    Check,
    /// A step.
    Step,
}

/// An output stream.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stdio {
    /// Standard output.
    Stdout,
    /// Standard error.
    Stderr,
}

/// The events of a run from some point on, and the end after its last one. It never waits for a
/// reader: one that is too slow is given what it missed from the log.
pub type EventStream = Pin<Box<dyn Stream<Item = Arc<LoggedEvent>> + Send>>;

/// What callers can ask for.
pub struct Service {
    engine: Arc<Engine>,
    history: History,
    runs: Runs,
    execs: Execs,
    household: Household,
    operator: watch::Sender<Arc<Operator>>,
    config: Option<PathBuf>,
    metrics: Metrics,
    telemetry: Arc<Telemetry>,
    /// Whose requests are prepared: each reads a spec, and maybe a tree. Those of one who has a slow disk, or asks
    /// for much, keep nobody else's waiting.
    preparing: Turns,
    judges: Judges,
    state_probe: StateProbe,
    /// Bounds the log of requests that the daemon could not take on, by user and kind.
    refusals: Throttle<(u32, ProblemType)>,
    draining: AtomicBool,
    began: Instant,
}

/// How long no run may have ended before runs are removed for their age alone.
const TIDY_TIME: Duration = Duration::from_secs(60 * 60);
/// How long the removal of old runs pauses after each bounded part, so that it does not keep the index busy.
const TIDY_PAUSE: Duration = Duration::from_millis(100);
/// How often refused requests of one user and kind are logged.
const REFUSALS_LOGGED: Duration = Duration::from_secs(60);
/// How many requests of one caller each CPU prepares at once, and how many all of them do.
const PREPARING_PER_CPU: usize = 4;
const MAX_PREPARING: usize = 32;
/// How many callers have their whole share of that at once. All of them together take a quarter of the threads that
/// tokio has for what blocks, on which runs are put on record too.
const PREPARING_CALLERS: usize = 4;
/// How long runs may take to end once they are cancelled, beyond the time that their steps have for
/// it; what is left then is ended by the next daemon.
const LAST_RUNS: Duration = Duration::from_secs(60);

impl Service {
    /// Opens the state directory, says of every run that the last daemon left that it was
    /// interrupted, and takes requests on.
    ///
    /// # Errors
    /// The state directory cannot be used, or another daemon uses it.
    pub async fn open(config: ServiceConfig) -> Result<Arc<Self>, StartError> {
        let history = config.engine.state_dir.clone();
        Self::open_apart(config, history).await
    }

    /// The same with the history of runs below another directory than the state's: for a process that
    /// serves one client for a while, beside the daemon and others like it.
    ///
    /// # Errors
    /// As [`Service::open`].
    pub async fn open_apart(config: ServiceConfig, history: PathBuf) -> Result<Arc<Self>, StartError> {
        let opening = tokio::task::spawn_blocking(move || Self::opened(config, &history)).await;
        let broke = |error: JoinError| EngineError::Internal(format!("the start ended badly: {error}"));
        let (service, recovered) = opening.map_err(broke)??;
        tracing::info!(runs = recovered.runs, "runs are remembered");
        Ok(Arc::new(service))
    }

    /// Blocks on the disk.
    fn opened(config: ServiceConfig, history: &Path) -> Result<(Self, Recovered), StartError> {
        let ServiceConfig { engine: config, config: file, metrics, telemetry } = config;
        let operator = Arc::new(config.operator.clone());
        let mut account = Account { home: config.home.clone(), env: config.caller_env.clone() };
        // The trace in which the daemon was started is not that of its runs.
        take_context(&mut account.env);
        let ours: Vec<PathBuf> = config.hide.iter().cloned().chain([config.state_dir.clone()]).collect();
        let judges = Judges::new();
        let engine = Arc::new(Engine::open(config)?);
        let state_probe = StateProbe::new(engine.state_dir().to_owned());
        let (history, recovered) = History::open(history, Clock::system())?;
        let limits = Limits::of(&operator.daemon, cpus());
        let ended = watch::Sender::new(0);
        let operator = watch::Sender::new(operator);
        tokio::spawn(tidy(history.clone(), operator.subscribe(), ended.subscribe()));
        let telemetry = Telemetry::start(history.clone(), telemetry, metrics.clone());
        let runs = Runs::start(history.clone(), limits, observer(metrics.clone(), ended, Arc::clone(&telemetry)));
        let service = Self {
            engine,
            history,
            runs,
            execs: Execs::new(limits),
            household: Household::new(account, ours),
            operator,
            config: file,
            metrics,
            telemetry,
            judges,
            state_probe,
            refusals: Throttle::new(REFUSALS_LOGGED),
            preparing: Turns::of((cpus() * PREPARING_PER_CPU).min(MAX_PREPARING), PREPARING_CALLERS),
            draining: AtomicBool::new(false),
            began: Instant::now(),
        };
        Ok((service, recovered))
    }

    /// A run as it is now.
    ///
    /// # Errors
    /// There is none of this id that the caller may see.
    pub async fn run(&self, caller: Caller, id: &RunId) -> Result<Arc<Shown>, Problem> {
        Ok(self.found(caller, id).await?.shown())
    }

    /// A run that the caller may see: the one under way, or what is remembered of it.
    async fn found(&self, caller: Caller, id: &RunId) -> Result<Found, Problem> {
        let found = match self.runs.find(id).await {
            Some(found) => Some(found),
            None => self.recalled(id).await?.map(Found::Ended),
        };
        let uid = |found: &Found| match found {
            Found::Live(live) => live.uid(),
            Found::Ended(shown) => shown.view.uid,
        };
        found.filter(|found| self.household.sees_all(caller) || uid(found) == caller.uid).ok_or_else(|| no_run(id))
    }

    /// A run that has ended, from its log; held at hand from now on.
    async fn recalled(&self, id: &RunId) -> Result<Option<Arc<Shown>>, Problem> {
        let wanted = id.clone();
        let view = self.remembered(move |history| history.view(&wanted)).await?;
        let Some(shown) = view.map(|view| Arc::new(Shown::new(view))) else { return Ok(None) };
        if shown.view.state == RunState::Finished {
            self.runs.remember(Arc::clone(&shown)).await;
        }
        Ok(Some(shown))
    }

    /// Asks the history, apart from what must not block.
    async fn remembered<T: Send + 'static>(
        &self,
        ask: impl FnOnce(&History) -> Result<T, HistoryError> + Send + 'static,
    ) -> Result<T, Problem> {
        let history = self.history.clone();
        let asked = apart(move || ask(&history)).await?;
        asked.map_err(|error| error.problem())
    }

    /// Runs, newest first.
    ///
    /// # Errors
    /// The cursor is none.
    pub async fn list(&self, caller: Caller, filter: RunFilter) -> Result<RunPage, Problem> {
        let uid = (!self.household.sees_all(caller)).then_some(caller.uid);
        self.remembered(move |history| history.list(&filter, uid)).await
    }

    /// Asks a run to end; `by` says for people what asked. One that has ended stays as it is.
    /// Answers at once; the end is an event.
    ///
    /// # Errors
    /// As [`Service::run`].
    pub async fn cancel(&self, caller: Caller, id: &RunId, by: &str) -> Result<Arc<Shown>, Problem> {
        let found = self.found(caller, id).await?;
        if found.live().is_some() {
            self.runs.cancel(id, by.to_owned()).await;
        }
        Ok(found.shown())
    }

    /// Says that one of those whose requests a run meets wants it no longer. It is asked to end where
    /// nobody else does; one request counts once, who sent it is not looked at.
    ///
    /// # Errors
    /// As [`Service::run`].
    pub async fn abandon(&self, caller: Caller, id: &RunId, by: &str) -> Result<Arc<Shown>, Problem> {
        let found = self.found(caller, id).await?;
        if found.live().is_some() {
            self.runs.abandon(id, by.to_owned()).await;
        }
        Ok(found.shown())
    }

    /// How the daemon is. Needs no lock and no disk.
    pub fn health(&self) -> Health {
        Health {
            status: if self.is_draining() { HealthStatus::Draining } else { HealthStatus::Ok },
            version: env!("CARGO_PKG_VERSION").to_owned(),
            pid: std::process::id(),
            uid: self.household.own(),
            uptime_ms: u64::try_from(self.began.elapsed().as_millis()).unwrap_or(u64::MAX),
            runs: self.runs.counts(),
        }
    }

    fn is_draining(&self) -> bool {
        self.draining.load(Ordering::Relaxed)
    }

    /// Whether the owner of all runs still takes messages; asked before the service manager is told
    /// that the daemon lives.
    pub async fn answers(&self) -> bool {
        self.runs.ping().await
    }

    /// From now on `operator` holds for new requests. Runs that are under way keep theirs.
    pub fn reload(&self, operator: Operator) {
        let limits = Limits::of(&operator.daemon, cpus());
        self.runs.limit(limits);
        self.execs.limit(limits);
        self.operator.send_replace(Arc::new(operator));
    }

    /// Sends the spans of runs to `target` from now on, or nowhere.
    pub fn export_to(&self, target: Option<Target>) {
        self.telemetry.aim(target);
    }

    /// Sends the spans of the last runs, within a bounded time.
    pub async fn flush_spans(&self) {
        self.telemetry.shut_down().await;
    }

    /// What the operator allows by now.
    pub fn operator(&self) -> Arc<Operator> {
        Arc::clone(&self.operator.borrow())
    }

    /// Where the operator's config was read when the daemon began; `None` where there was none.
    pub fn config(&self) -> Option<&Path> {
        self.config.as_deref()
    }

    /// Takes nothing on any more, gives what is under way up to `grace` to end, cancels the rest
    /// and returns when nothing is left. Runs that wait end as interrupted.
    pub async fn drain(&self, grace: Duration) {
        self.draining.store(true, Ordering::Relaxed);
        self.execs.drain();
        self.runs.drain("the daemon is shutting down".to_owned()).await;
        if self.nothing_is_left(grace).await {
            return;
        }
        self.execs.cancel_all();
        self.runs.cancel_all("the daemon is shutting down".to_owned()).await;
        if !self.nothing_is_left(LAST_RUNS).await {
            tracing::error!(runs = ?self.runs.counts(), "runs did not end; the next daemon ends their records");
        }
    }

    /// Whether there is neither a run nor a command by itself before `patience` is over.
    async fn nothing_is_left(&self, patience: Duration) -> bool {
        let (mut runs, mut execs) = (self.runs.counts_watched(), self.execs.counted());
        // Whoever counts lives as long as the service.
        let none = async {
            let _ = runs.wait_for(|counts| *counts == RunCounts::default()).await;
            let _ = execs.wait_for(|count| *count == 0).await;
        };
        tokio::time::timeout(patience, none).await.is_ok()
    }

    /// Completes when there is a run, or a command by itself.
    pub async fn busy(&self) {
        let (mut runs, mut execs) = (self.runs.counts_watched(), self.execs.counted());
        // Whoever counts lives as long as the service.
        tokio::select! {
            _ = runs.wait_for(|counts| *counts != RunCounts::default()) => {}
            _ = execs.wait_for(|count| *count != 0) => {}
        }
    }

    /// Completes when there has been neither a run nor a command by itself for `idle`.
    pub async fn idle(&self, idle: Duration) {
        let (mut runs, mut execs) = (self.runs.counts_watched(), self.execs.counted());
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

/// Does what blocks where it keeps nothing waiting.
async fn apart<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> Result<T, Problem> {
    tokio::task::spawn_blocking(work).await.map_err(|error| broken(&error))
}

/// Logs that the task of a request panicked, and returns the answer.
fn broken(error: &JoinError) -> Problem {
    tracing::error!(%error, "a request failed unexpectedly");
    Problem::new(ProblemType::Internal, "an internal error occurred while the daemon handled the request")
        .with_hint("please report it; the daemon's log has the details")
}

fn cpus() -> usize {
    std::thread::available_parallelism().map_or(1, std::num::NonZeroUsize::get)
}

fn no_run(id: &RunId) -> Problem {
    Problem::new(ProblemType::NotFound, format!("there is no run `{id}`"))
        .with_hint("`proctor status` (`GET /v1/runs`) lists the stored runs")
}

/// Removes old runs after each run, after a reload, and once an hour, for as long as there is an owner of runs.
async fn tidy(history: History, mut operator: watch::Receiver<Arc<Operator>>, mut ended: watch::Receiver<u64>) {
    loop {
        let keep = operator.borrow_and_update().daemon.retention.clone();
        ended.borrow_and_update();
        while tidied(&history, &keep).await {
            tokio::time::sleep(TIDY_PAUSE).await;
        }
        let news = async {
            tokio::select! {
                changed = ended.changed() => changed,
                changed = operator.changed() => changed,
            }
        };
        if let Ok(Err(_)) = tokio::time::timeout(TIDY_TIME, news).await {
            return;
        }
    }
}

/// Removes a bounded number of old runs; whether there may be more.
async fn tidied(history: &History, keep: &Retention) -> bool {
    let (history, keep) = (history.clone(), keep.clone());
    match tokio::task::spawn_blocking(move || history.retain(&keep)).await {
        Ok(Ok(retained)) if retained.forgotten > 0 => {
            tracing::info!(forgotten = retained.forgotten, left = retained.runs, "old runs are forgotten");
            return retained.more;
        }
        Ok(Ok(_)) => {}
        Ok(Err(error)) => tracing::warn!(%error, "old runs could not be forgotten"),
        Err(error) => tracing::error!(%error, "forgetting old runs ended badly"),
    }
    false
}

fn millis(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}

/// Counts what happens to runs, and says of each how it ended.
fn observer(metrics: Metrics, ended: watch::Sender<u64>, telemetry: Arc<Telemetry>) -> Observer {
    Box::new(move |observed| match observed {
        Observed::Admitted(how) => metrics.submitted(how),
        Observed::Started(waited) => metrics.started(waited),
        Observed::Ended(view, took, executed) => {
            ended.send_modify(|count| *count += 1);
            if let Some(verdict) = view.verdict {
                telemetry.ended(EndedRun::new(view, took, executed));
                metrics.finished(view, verdict, took, executed);
                tell(view, verdict, took, executed);
            }
        }
    })
}

/// One record of the log for every run. Words of a repository and its steps stand in it.
fn tell(view: &RunView, verdict: Verdict, took: Duration, executed: Option<Duration>) {
    tracing::info!(
        run = %view.id,
        uid = view.uid,
        repo = view.asked.repo,
        profile = %view.asked.profile,
        changeset = view.asked.changeset_id.as_ref().map(tracing::field::display),
        verdict = verdict.as_str(),
        reason = view.reason,
        took_ms = millis(took),
        executed_ms = executed.map(millis),
        "a run has ended"
    );
}
