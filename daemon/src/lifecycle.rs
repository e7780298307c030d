//! Starts and stops the daemon in order: config, log, socket, service, transport, and back.

mod args;
mod check;
mod error;
mod idle;
mod panics;
mod reload;
mod resource_limits;
mod service_manager;
mod signals;
mod socket;
mod socket_lock;
mod socket_watch;
mod startup_refusal;
mod transport;

use std::cell::RefCell;
use std::ops::Range;
use std::os::unix::net::UnixListener as StdListener;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use clap::Parser as _;
use listenfd::ListenFd;
use proctor_core::api::RunCounts;
use proctor_core::decision::verdict::EXIT_INTERRUPTED;
use proctor_core::sql::DUCKDB_VARIABLE;
use proctor_runner::{Clock, EngineConfig};
use tokio::sync::watch;
use tokio::time::{Instant, sleep_until, timeout};
use tokio_util::sync::CancellationToken;
use tracing::{error, info, warn};

use crate::helpers::find_helpers;
use crate::log::{self, Log, LogEnvironment};
use crate::metrics::Metrics;
use crate::service::{Service, ServiceConfig};
use crate::settings::{self, ResolvedSettings};
use crate::telemetry::{ExportTarget, FINAL_EXPORT_TIMEOUT};
use proctor_client::installation::{self, ProcessEnvironment, show};

use args::Args;
use error::{LifecycleError, redactor};
use reload::Reloader;
use signals::{SignalRequest, Signals};
use socket::{ListeningSocket, ReservedSocket, SocketError};
pub use socket_lock::lock_holder;
use socket_watch::SocketWatch;
use transport::{TransportParts, TransportTask};

/// Time limit for active responses after the last run. It is longer than the transport's own limit, after which the
/// transport ends by itself.
const LAST_RESPONSES_TIMEOUT: Duration = Duration::from_secs(5);
/// Time limit for cancelled runs. Steps get seconds to end; only a hanging disk or a bug takes longer.
const CANCELLED_RUNS_TIMEOUT: Duration = Duration::from_secs(60);
/// Time limit for threads that still read or write at the very end; their results are not needed.
const THREADS_TIMEOUT: Duration = Duration::from_secs(2);

/// Reason for the shutdown.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum ShutdownReason {
    /// The named signal.
    Signal(&'static str),
    /// There was no activity during the configured idle time.
    Idle,
    /// Another daemon uses the path of the socket.
    Displaced,
}

/// Result of the shutdown.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum ShutdownResult {
    /// All runs have ended.
    Drained,
    /// The user insisted, or runs did not end in time; the next daemon reports those runs.
    Abandoned,
}

/// Reachability of the daemon at the path of its socket.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum SocketReachability {
    /// Callers reach this daemon.
    Yes,
    /// Callers do not reach it; the daemon tries again.
    No,
    /// Callers reach another daemon.
    Displaced,
}

/// Result of waiting for the last run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum DrainWait {
    /// All runs have ended.
    Completed,
    /// Another signal requested the shutdown.
    SignalReceived,
    /// The time is over.
    TimedOut,
}

/// Returns the command line of the daemon, for documentation.
pub fn command() -> clap::Command {
    use clap::CommandFactory as _;
    Args::command()
}

/// Runs the program.
pub fn main() -> ExitCode {
    let args = Args::parse();
    if args.check_config {
        return check::check_config(&args);
    }
    let mut inherited = None;
    let code = match DaemonStart::prepare(&args, &mut inherited).and_then(DaemonStart::run) {
        Ok(ShutdownResult::Drained) => ExitCode::SUCCESS,
        Ok(ShutdownResult::Abandoned) => ExitCode::from(EXIT_INTERRUPTED),
        Err(error) => {
            error.report();
            if let Some(listener) = inherited {
                startup_refusal::refuse_connections(&listener, &error);
            }
            ExitCode::from(error.exit_code())
        }
    };
    log::flush();
    code
}

/// State of the start before the first thread.
struct DaemonStart {
    environment: ProcessEnvironment,
    settings: ResolvedSettings,
    reloader: Reloader,
    state_dir: PathBuf,
    socket: ReservedSocket,
    metrics: Metrics,
}

impl DaemonStart {
    /// Reads everything that the start needs. Stores a handle of the service manager's socket in `listener`, so that
    /// the caller can answer connections if the start fails.
    fn prepare(args: &Args, listener: &mut Option<StdListener>) -> Result<Self, LifecycleError> {
        let signals = proctor_runner::restore_signal_handling();
        // Both read the environment, which must not be modified once there are threads.
        let inherited = ListenFd::from_env();
        let around = ProcessEnvironment::read().map_err(LifecycleError::Environment)?;
        let closed = proctor_runner::close_inherited(inherited_descriptors(&inherited, &around));
        let inherited = ReservedSocket::inherited(inherited);
        *listener = inherited.as_ref().ok().and_then(|place| place.as_ref()?.try_clone_listener());
        let found = installation::load_operator_config(args.config.as_deref(), &around)?;
        let settings = ResolvedSettings::resolve(found, around.uid, settings::uid_of)?;
        let log = start_log(&settings, &around);
        if let Err(error) = signals {
            warn!("the inherited signal settings cannot be reset: {error}");
        }
        if let Err(error) = closed {
            warn!(
                "inherited descriptors cannot be closed, so a program that waits for their end waits for the daemon: \
                {error}"
            );
        }
        if !around.unreadable.is_empty() {
            warn!(variables = around.unreadable.join(", "), "variables that are not UTF-8 cannot be passed to steps");
        }
        resource_limits::raise_open_files();
        let metrics = Metrics::new(Clock::system().now_ms());
        panics::log_all(metrics.clone());
        let state_dir = installation::state_dir(args.state_dir.as_deref(), &around)?;
        installation::secure_state_dir(&state_dir)?;
        let place = select_socket(args, inherited, &settings, &around, &state_dir)?;
        let reloader = Reloader::new(args.config.clone(), around.clone(), log);
        Ok(Self { environment: around, settings, reloader, state_dir, socket: place, metrics })
    }

    fn run(self) -> Result<ShutdownResult, LifecycleError> {
        let runtime =
            tokio::runtime::Builder::new_multi_thread().enable_all().build().map_err(LifecycleError::Threads)?;
        let ended = runtime.block_on(self.serve());
        runtime.shutdown_timeout(THREADS_TIMEOUT);
        ended
    }

    async fn serve(self) -> Result<ShutdownResult, LifecycleError> {
        // Signals are received from this point on; a signal that arrives during the start is handled afterwards.
        let mut signals = Signals::listen().map_err(LifecycleError::Signals)?;
        let service = Service::open(self.service_config()?).await?;
        // The state directory belongs to this process now.
        log::limit_log_file(&self.state_dir);
        let Self { environment: around, settings, reloader, socket: place, metrics, .. } = self;
        let listening = place.listen(&settings.allowed_users)?;
        let listener = watch::Sender::new(Arc::new(listening.listener().map_err(LifecycleError::Listener)?));
        let settings = watch::Sender::new(Arc::new(settings));
        let life = RunningDaemon {
            service,
            settings,
            reloader,
            listening: RefCell::new(listening),
            listener,
            environment: around,
            metrics,
        };
        life.run(&mut signals).await
    }

    fn service_config(&self) -> Result<ServiceConfig, LifecycleError> {
        let Self { environment: around, settings, state_dir, socket: place, .. } = self;
        Ok(ServiceConfig {
            engine: EngineConfig {
                state_dir: state_dir.clone(),
                helpers: find_helpers(&around.bin_dir)?,
                duckdb: around.var(DUCKDB_VARIABLE).map(|file| around.cwd.join(file)),
                home: installation::home_dir(around)?,
                caller_env: around.env.clone(),
                operator: settings.operator.clone(),
                is_long_running: true,
                hidden_dirs: place.directory().map(Path::to_owned).into_iter().collect(),
            },
            config: settings.config.clone(),
            metrics: self.metrics.clone(),
            telemetry: span_target(settings, around),
        })
    }
}

/// Returns the receiver of spans. Invalid settings do not prevent the start.
fn span_target(settings: &ResolvedSettings, environment: &ProcessEnvironment) -> Option<ExportTarget> {
    match ExportTarget::resolve(&settings.operator.telemetry, &environment.env, "proctord") {
        Ok(target) => target.inspect(|target| info!(receiver = target.receiver(), "spans are exported")),
        Err(error) => {
            warn!("spans are not exported: {error}");
            None
        }
    }
}

/// Returns the descriptors that the service manager passed (sd_listen_fds(3)).
fn inherited_descriptors(inherited: &ListenFd, environment: &ProcessEnvironment) -> Range<u32> {
    // The variable is defined by the `listenfd` crate.
    let first = environment.var("LISTEN_FDS_FIRST_FD").and_then(|first| first.parse().ok()).unwrap_or(3);
    let count = u32::try_from(inherited.len()).unwrap_or(u32::MAX);
    first..first.saturating_add(count)
}

fn start_log(settings: &ResolvedSettings, environment: &ProcessEnvironment) -> Log {
    let variable = |name| environment.var(name).map(str::to_owned);
    let log_environment = LogEnvironment { journal_stream: variable("JOURNAL_STREAM"), level: variable("PROCTOR_LOG") };
    Log::start(&settings.operator.daemon.log, log_environment, redactor(environment), Clock::system())
}

/// Returns the service manager's socket, or the path at which the daemon creates its own.
fn select_socket(
    args: &Args,
    inherited: Result<Option<ReservedSocket>, SocketError>,
    settings: &ResolvedSettings,
    environment: &ProcessEnvironment,
    state_dir: &Path,
) -> Result<ReservedSocket, LifecycleError> {
    if let Some(place) = inherited? {
        return Ok(place);
    }
    let configured = settings.operator.daemon.socket.as_deref().map(Path::new);
    let named = args.socket.as_deref().or(configured).map(|path| environment.cwd.join(path));
    let path = named.unwrap_or_else(|| installation::default_socket(environment, state_dir));
    Ok(ReservedSocket::reserve(&path, environment)?)
}

/// The running daemon.
struct RunningDaemon {
    service: Arc<Service>,
    settings: watch::Sender<Arc<ResolvedSettings>>,
    reloader: Reloader,
    listening: RefCell<ListeningSocket>,
    /// Current listener of the transport; replaced when the socket file is recreated.
    listener: watch::Sender<Arc<StdListener>>,
    environment: ProcessEnvironment,
    metrics: Metrics,
}

impl RunningDaemon {
    async fn run(self, signals: &mut Signals) -> Result<ShutdownResult, LifecycleError> {
        let stop = CancellationToken::new();
        let transport = TransportTask::start(TransportParts {
            listener: self.listener.subscribe(),
            service: Arc::clone(&self.service),
            settings: self.settings.subscribe(),
            stop: stop.clone(),
            metrics: self.metrics.clone(),
        });
        let path = show(self.listening.borrow().path());
        let watchdog = service_manager::Watchdog::start(Arc::clone(&self.service));
        info!(socket = path, pid = std::process::id(), version = env!("CARGO_PKG_VERSION"), "the daemon listens");
        service_manager::ready(&format!("listening on {path}"));
        let reason = self.serve_until_shutdown(signals).await;
        let ended = self.drain(reason, signals).await;
        stop.cancel();
        let ((), answered) =
            tokio::join!(self.service.flush_spans(), timeout(LAST_RESPONSES_TIMEOUT, transport.wait()));
        if answered.is_err() {
            warn!("connections were closed before their responses were complete");
        }
        self.listening.into_inner().remove();
        watchdog.stop();
        info!("the daemon has ended");
        Ok(ended)
    }

    /// Serves until there is a reason to shut down.
    async fn serve_until_shutdown(&self, signals: &mut Signals) -> ShutdownReason {
        let mut give_back =
            std::pin::pin!(idle::release_memory_when_idle(&self.service, self.metrics.subscribe_connections()));
        let mut socket = SocketWatch::new(&self.listening.borrow());
        // Created once, so that checks of the socket do not restart the idle time.
        let idle =
            idle::wait_until_idle(&self.service, self.metrics.subscribe_connections(), self.settings.subscribe());
        let mut idle = std::pin::pin!(idle);
        loop {
            tokio::select! {
                () = &mut give_back => {}
                signal = signals.next() => match signal {
                    SignalRequest::Reload => self.reload(),
                    SignalRequest::Shutdown(name) => return ShutdownReason::Signal(name),
                },
                () = &mut idle => return ShutdownReason::Idle,
                () = socket.wait_until_due() => if self.keep_reachable(&mut socket) == SocketReachability::Displaced {
                    return ShutdownReason::Displaced;
                },
            }
        }
    }

    /// Reloads the config. A valid one applies to new requests; after an error, the old one stays in effect.
    fn reload(&self) {
        service_manager::reloading();
        let old = Arc::clone(&self.settings.borrow());
        let (is_valid, status) = match self.reloader.read_config(&old) {
            Ok(new) => {
                self.apply(&old, new);
                (true, "the new config is in effect")
            }
            Err(error) => {
                reload::report_invalid_config(&error);
                (false, "the new config is not valid; the old one remains in effect")
            }
        };
        self.metrics.count_reload(is_valid, Clock::system().now_ms());
        service_manager::ready(status);
    }

    fn apply(&self, old: &ResolvedSettings, new: ResolvedSettings) {
        if new.operator.daemon.socket != old.operator.daemon.socket {
            warn!("`daemon.socket` has changed; the daemon uses the new path after a restart");
        }
        self.reloader.reload_log(&new);
        self.listening.borrow().set_permissions(&new.allowed_users);
        self.service.reload(new.operator.clone());
        self.service.export_to(span_target(&new, &self.environment));
        let config = new.config.as_deref().map_or_else(|| "none".to_owned(), show);
        self.settings.send_replace(Arc::new(new));
        info!(config, "the config was reloaded and is now in effect");
    }

    /// Recreates the socket if the file at its path is no longer the daemon's.
    fn keep_reachable(&self, watch: &mut SocketWatch) -> SocketReachability {
        let mut listening = self.listening.borrow_mut();
        if listening.is_in_place() {
            return SocketReachability::Yes;
        }
        let restored = listening.restore(&self.environment, &self.settings.borrow().allowed_users);
        match restored {
            Ok(listener) => {
                warn!(
                    socket = show(listening.path()),
                    "the socket file had been removed; the daemon listens at its path again"
                );
                self.listener.send_replace(Arc::new(listener));
                watch.clear_error();
                SocketReachability::Yes
            }
            Err(error @ SocketError::InUse { .. }) => {
                error!("the daemon exits, because its socket cannot be restored: {error}");
                SocketReachability::Displaced
            }
            Err(error) => {
                watch.log_error_once(&error);
                SocketReachability::No
            }
        }
    }

    /// Waits for active runs. The first request grants the grace period, the second cancels the runs, and the third
    /// abandons them.
    async fn drain(&self, reason: ShutdownReason, signals: &mut Signals) -> ShutdownResult {
        let grace = self.settings.borrow().operator.daemon.drain;
        match reason {
            ShutdownReason::Signal(name) => {
                info!(signal = name, grace_ms = grace.as_millis(), "the daemon stops and accepts no new runs");
            }
            ShutdownReason::Idle => info!("the daemon stops because it was idle"),
            ShutdownReason::Displaced => {
                info!(grace_ms = grace.as_millis(), "the daemon stops and accepts no new runs");
            }
        }
        service_manager::stopping(
            grace + CANCELLED_RUNS_TIMEOUT + LAST_RESPONSES_TIMEOUT.max(FINAL_EXPORT_TIMEOUT) + THREADS_TIMEOUT,
        );
        let cancelled = Instant::now() + grace;
        let mut waited =
            self.wait_for_drain(grace, cancelled + CANCELLED_RUNS_TIMEOUT, SignalCount::First, signals).await;
        if waited == DrainWait::SignalReceived {
            info!("a second signal arrived: active runs are cancelled");
            let cancelled = cancelled.min(Instant::now());
            waited = self
                .wait_for_drain(Duration::ZERO, cancelled + CANCELLED_RUNS_TIMEOUT, SignalCount::Repeated, signals)
                .await;
        }
        match waited {
            DrainWait::Completed if self.service.health().runs == RunCounts::default() => {
                return ShutdownResult::Drained;
            }
            DrainWait::SignalReceived => {
                error!("another signal arrived: the daemon exits without waiting for active runs");
            }
            DrainWait::Completed | DrainWait::TimedOut => {
                error!("runs did not end after their cancellation; the daemon exits without waiting for them");
            }
        }
        ShutdownResult::Abandoned
    }

    async fn wait_for_drain(
        &self,
        grace: Duration,
        latest: Instant,
        signal_count: SignalCount,
        signals: &mut Signals,
    ) -> DrainWait {
        wait_for_drain_or_signal(self.service.drain(grace), latest, signal_count, async || signals.next().await).await
    }
}

/// Waits until `drain` completes, until `latest`, or until a signal that `signal_count` heeds.
async fn wait_for_drain_or_signal(
    drain: impl Future<Output = ()>,
    latest: Instant,
    signal_count: SignalCount,
    mut next: impl AsyncFnMut() -> SignalRequest,
) -> DrainWait {
    let mut drain = std::pin::pin!(drain);
    loop {
        tokio::select! {
            () = &mut drain => return DrainWait::Completed,
            () = sleep_until(latest) => return DrainWait::TimedOut,
            signal = next() => if signal_count.reacts_to(signal) { return DrainWait::SignalReceived },
        }
    }
}

/// Number of shutdown requests so far.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum SignalCount {
    First,
    Repeated,
}

impl SignalCount {
    /// Returns whether a signal has an effect. After two requests, only Ctrl-C abandons runs, because a service
    /// manager may repeat its signal without that intention.
    fn reacts_to(self, request: SignalRequest) -> bool {
        match (self, request) {
            (_, SignalRequest::Reload) => false,
            (Self::First, SignalRequest::Shutdown(_)) => true,
            (Self::Repeated, SignalRequest::Shutdown(name)) => name == "SIGINT",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn second_signal_cancels_and_third_ctrl_c_abandons() {
        assert!(SignalCount::First.reacts_to(SignalRequest::Shutdown("SIGTERM")));
        assert!(!SignalCount::First.reacts_to(SignalRequest::Reload));
        assert!(!SignalCount::Repeated.reacts_to(SignalRequest::Shutdown("SIGTERM")));
        assert!(SignalCount::Repeated.reacts_to(SignalRequest::Shutdown("SIGINT")));
    }

    #[tokio::test(start_paused = true)]
    async fn distinguishes_timeout_from_second_signal() {
        async fn no_signal() -> SignalRequest {
            std::future::pending().await
        }
        let latest = Instant::now() + CANCELLED_RUNS_TIMEOUT;
        assert_eq!(
            wait_for_drain_or_signal(async {}, latest, SignalCount::First, no_signal).await,
            DrainWait::Completed
        );
        let mut signals = [SignalRequest::Reload, SignalRequest::Shutdown("SIGTERM")].into_iter();
        let again = async || signals.next().expect("no further signal");
        assert_eq!(
            wait_for_drain_or_signal(std::future::pending(), latest, SignalCount::First, again).await,
            DrainWait::SignalReceived
        );
        assert_eq!(
            wait_for_drain_or_signal(std::future::pending(), latest, SignalCount::Repeated, no_signal).await,
            DrainWait::TimedOut
        );
        assert_eq!(Instant::now(), latest);
    }
}
