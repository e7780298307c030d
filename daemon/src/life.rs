//! Starts and stops the daemon in order: config, log, socket, service, transport, and back.

mod accept;
mod args;
mod check;
mod error;
mod idle;
mod limits;
mod lock;
mod notify;
mod panics;
mod refusal;
mod reload;
mod signals;
mod socket;
mod socket_watch;

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
use proctor_core::redact::Redactor;
use proctor_core::sql::DUCKDB;
use proctor_core::verdict::EXIT_INTERRUPTED;
use proctor_runner::{Clock, EngineConfig};
use tokio::sync::watch;
use tokio::time::{Instant, sleep_until, timeout};
use tokio_util::sync::CancellationToken;
use tracing::{error, info, warn};

use crate::installation::{self, Surroundings, show};
use crate::log::{self, Log, LogSurroundings};
use crate::metrics::Metrics;
use crate::service::{Service, ServiceConfig};
use crate::settings::{self, Settings};
use crate::telemetry::{LAST_SPANS, Target};

use accept::Transport;
use args::Args;
use error::LifeError;
pub use lock::lock_holder;
use reload::Reloader;
use signals::{Asked, Signals};
use socket::{Listening, Place, SocketError};
use socket_watch::SocketWatch;

/// Time limit for active responses after the last run. It is longer than the transport's own limit, after which the
/// transport ends by itself.
const LAST_ANSWERS: Duration = Duration::from_secs(5);
/// Time limit for cancelled runs. Steps get seconds to end; only a hanging disk or a bug takes longer.
const LAST_RUNS: Duration = Duration::from_secs(60);
/// Time limit for threads that still read or write at the very end; their results are not needed.
const LAST_THREADS: Duration = Duration::from_secs(2);

/// Reason for the shutdown.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Reason {
    /// The named signal.
    Signal(&'static str),
    /// There was no activity during the configured idle time.
    Idle,
    /// Another daemon uses the path of the socket.
    Displaced,
}

/// Result of the shutdown.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Ended {
    /// No run is left.
    Drained,
    /// The user insisted, or runs did not end in time; the next daemon reports those runs.
    Abandoned,
}

/// Reachability of the daemon at the path of its socket.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Reachable {
    /// Callers reach this daemon.
    Yes,
    /// Callers do not reach it; the daemon tries again.
    No,
    /// Callers reach another daemon.
    Displaced,
}

/// Result of waiting for the last run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Waited {
    /// All runs have ended.
    Through,
    /// Another signal requested the shutdown.
    Asked,
    /// The time is over.
    Late,
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
    let code = match Beginning::prepare(&args, &mut inherited).and_then(Beginning::run) {
        Ok(Ended::Drained) => ExitCode::SUCCESS,
        Ok(Ended::Abandoned) => ExitCode::from(EXIT_INTERRUPTED),
        Err(error) => {
            error.report();
            if let Some(listener) = inherited {
                refusal::refuse_connections(&listener, &error);
            }
            ExitCode::from(error.exit_code())
        }
    };
    log::flush();
    code
}

/// State of the start before the first thread.
struct Beginning {
    around: Surroundings,
    settings: Settings,
    reloader: Reloader,
    state_dir: PathBuf,
    place: Place,
    metrics: Metrics,
}

impl Beginning {
    /// Reads everything that the start needs. Stores a handle of the service manager's socket in `listener`, so that
    /// the caller can answer connections if the start fails.
    fn prepare(args: &Args, listener: &mut Option<StdListener>) -> Result<Self, LifeError> {
        let signals = proctor_runner::claim_signals();
        // Both read the environment, which must not be modified once there are threads.
        let inherited = ListenFd::from_env();
        let around = Surroundings::read().map_err(LifeError::Surroundings)?;
        let closed = proctor_runner::close_inherited(handed_over(&inherited, &around));
        let inherited = Place::inherited(inherited);
        *listener = inherited.as_ref().ok().and_then(|place| place.as_ref()?.handle());
        let found = installation::operator(args.config.as_deref(), &around)?;
        let settings = Settings::of(found, around.uid, settings::uid_of)?;
        let log = start_log(&settings, &around);
        if let Err(error) = signals {
            warn!("what our caller left of its signals stays: {error}");
        }
        if let Err(error) = closed {
            warn!("what our caller left open stays open, and who waits for the end of it waits for us: {error}");
        }
        if !around.unreadable.is_empty() {
            warn!(variables = around.unreadable.join(", "), "no step can be given variables that are not UTF-8");
        }
        limits::raise_open_files();
        let metrics = Metrics::new(Clock::system().now_ms());
        panics::log_all(metrics.clone());
        let state_dir = installation::state_dir(args.state_dir.as_deref(), &around)?;
        installation::secure_state_dir(&state_dir)?;
        let place = place_of(args, inherited, &settings, &around, &state_dir)?;
        let reloader = Reloader::new(args.config.clone(), around.clone(), log);
        Ok(Self { around, settings, reloader, state_dir, place, metrics })
    }

    fn run(self) -> Result<Ended, LifeError> {
        let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().map_err(LifeError::Threads)?;
        let ended = runtime.block_on(self.serve());
        runtime.shutdown_timeout(LAST_THREADS);
        ended
    }

    async fn serve(self) -> Result<Ended, LifeError> {
        // Signals are received from here on; one that arrives during the start is handled afterwards.
        let mut signals = Signals::listen().map_err(LifeError::Signals)?;
        let service = Service::open(self.service_config()?).await?;
        // The state directory belongs to this process now.
        log::bound(&self.state_dir);
        let Self { around, settings, reloader, place, metrics, .. } = self;
        let listening = place.listen(&settings.admitted)?;
        let listener = watch::Sender::new(Arc::new(listening.listener().map_err(LifeError::Listener)?));
        let settings = watch::Sender::new(Arc::new(settings));
        let life = Life { service, settings, reloader, listening: RefCell::new(listening), listener, around, metrics };
        life.live(&mut signals).await
    }

    fn service_config(&self) -> Result<ServiceConfig, LifeError> {
        let Self { around, settings, state_dir, place, .. } = self;
        Ok(ServiceConfig {
            engine: EngineConfig {
                state_dir: state_dir.clone(),
                helpers: installation::helpers(&around.bin_dir)?,
                duckdb: around.var(DUCKDB).map(|file| around.cwd.join(file)),
                home: installation::home(around)?,
                caller_env: around.env.clone(),
                operator: settings.operator.clone(),
                stays: true,
                hide: place.directory().map(Path::to_owned).into_iter().collect(),
            },
            config: settings.config.clone(),
            metrics: self.metrics.clone(),
            telemetry: exported_to(settings, around),
        })
    }
}

/// Returns the receiver of spans. Invalid settings do not prevent the start.
fn exported_to(settings: &Settings, around: &Surroundings) -> Option<Target> {
    match Target::resolve(&settings.operator.telemetry, &around.env, "proctord") {
        Ok(target) => target.inspect(|target| info!(receiver = target.receiver(), "spans of runs are exported")),
        Err(error) => {
            warn!("spans of runs are not exported: {error}");
            None
        }
    }
}

/// Returns the descriptors that the service manager passed (sd_listen_fds(3)).
fn handed_over(inherited: &ListenFd, around: &Surroundings) -> Range<u32> {
    // The variable is defined by the `listenfd` crate.
    let first = around.var("LISTEN_FDS_FIRST_FD").and_then(|first| first.parse().ok()).unwrap_or(3);
    let count = u32::try_from(inherited.len()).unwrap_or(u32::MAX);
    first..first.saturating_add(count)
}

fn start_log(settings: &Settings, around: &Surroundings) -> Log {
    let variable = |name| around.var(name).map(str::to_owned);
    let of_log = LogSurroundings { journal_stream: variable("JOURNAL_STREAM"), level: variable("PROCTOR_LOG") };
    Log::start(&settings.operator.daemon.log, of_log, redactor(around), Clock::system())
}

/// Returns a redactor of the secrets in this process's environment.
fn redactor(around: &Surroundings) -> Redactor {
    let variables = around.env.iter().map(|(name, value)| (name.as_str(), value.as_str()));
    Redactor::of(variables, |path| Path::new(path).exists())
}

/// Returns the service manager's socket, or the path at which the daemon creates its own.
fn place_of(
    args: &Args,
    inherited: Result<Option<Place>, SocketError>,
    settings: &Settings,
    around: &Surroundings,
    state_dir: &Path,
) -> Result<Place, LifeError> {
    if let Some(place) = inherited? {
        return Ok(place);
    }
    let configured = settings.operator.daemon.socket.as_deref().map(Path::new);
    let named = args.socket.as_deref().or(configured).map(|path| around.cwd.join(path));
    let path = named.unwrap_or_else(|| installation::socket(around, state_dir));
    Ok(Place::own(&path, around)?)
}

/// The running daemon.
struct Life {
    service: Arc<Service>,
    settings: watch::Sender<Arc<Settings>>,
    reloader: Reloader,
    listening: RefCell<Listening>,
    /// Current listener of the transport; replaced when the socket file is recreated.
    listener: watch::Sender<Arc<StdListener>>,
    around: Surroundings,
    metrics: Metrics,
}

impl Life {
    async fn live(self, signals: &mut Signals) -> Result<Ended, LifeError> {
        let stop = CancellationToken::new();
        let transport = Transport::start(&self, stop.clone());
        let path = show(self.listening.borrow().path());
        let watchdog = notify::Watchdog::start(Arc::clone(&self.service));
        info!(socket = path, pid = std::process::id(), version = env!("CARGO_PKG_VERSION"), "the daemon listens");
        notify::ready(&format!("listening on {path}"));
        let reason = self.until_asked(signals).await;
        let ended = self.drain(reason, signals).await;
        stop.cancel();
        let ((), answered) = tokio::join!(self.service.flush_spans(), timeout(LAST_ANSWERS, transport.ended()));
        if answered.is_err() {
            warn!("connections were cut off while they were answered");
        }
        self.listening.into_inner().remove();
        watchdog.stop();
        info!("the daemon has ended");
        Ok(ended)
    }

    /// Serves until there is a reason to shut down.
    async fn until_asked(&self, signals: &mut Signals) -> Reason {
        let mut give_back = std::pin::pin!(idle::give_back(&self.service, self.metrics.connections()));
        let mut socket = SocketWatch::new(&self.listening.borrow());
        // Created once, so that checks of the socket do not restart the idle time.
        let idle = idle::idle(&self.service, self.metrics.connections(), self.settings.subscribe());
        let mut idle = std::pin::pin!(idle);
        loop {
            tokio::select! {
                () = &mut give_back => {}
                asked = signals.next() => match asked {
                    Asked::ToReload => self.reloader.reload(self),
                    Asked::ToEnd(name) => return Reason::Signal(name),
                },
                () = &mut idle => return Reason::Idle,
                () = socket.due() => if self.keep_reachable(&mut socket) == Reachable::Displaced {
                    return Reason::Displaced;
                },
            }
        }
    }

    /// Recreates the socket if the file at its path is no longer the daemon's.
    fn keep_reachable(&self, watch: &mut SocketWatch) -> Reachable {
        let mut listening = self.listening.borrow_mut();
        if listening.is_in_place() {
            return Reachable::Yes;
        }
        let restored = listening.restore(&self.around, &self.settings.borrow().admitted);
        match restored {
            Ok(listener) => {
                warn!(
                    socket = show(listening.path()),
                    "the socket file was gone; the daemon listens at its path again"
                );
                self.listener.send_replace(Arc::new(listener));
                watch.restored();
                Reachable::Yes
            }
            Err(error @ SocketError::InUse { .. }) => {
                error!("the daemon ends, because its socket is lost: {error}");
                Reachable::Displaced
            }
            Err(error) => {
                watch.complain(&error);
                Reachable::No
            }
        }
    }

    /// Waits for active runs. The first request grants the grace period, the second cancels the runs, and the third
    /// abandons them.
    async fn drain(&self, reason: Reason, signals: &mut Signals) -> Ended {
        let grace = self.settings.borrow().operator.daemon.drain;
        match reason {
            Reason::Signal(name) => {
                info!(signal = name, grace_ms = grace.as_millis(), "the daemon stops and accepts no new runs");
            }
            Reason::Idle => info!("the daemon stops because it was idle"),
            Reason::Displaced => info!(grace_ms = grace.as_millis(), "the daemon stops and accepts no new runs"),
        }
        notify::stopping(grace + LAST_RUNS + LAST_ANSWERS.max(LAST_SPANS) + LAST_THREADS);
        let cancelled = Instant::now() + grace;
        let mut waited = self.drained(grace, cancelled + LAST_RUNS, Insistence::First, signals).await;
        if waited == Waited::Asked {
            info!("the daemon was asked again: runs that are under way are cancelled");
            let cancelled = cancelled.min(Instant::now());
            waited = self.drained(Duration::ZERO, cancelled + LAST_RUNS, Insistence::Again, signals).await;
        }
        match waited {
            Waited::Through if self.service.health().runs == RunCounts::default() => return Ended::Drained,
            Waited::Asked => error!("somebody insists: the daemon leaves what is under way"),
            Waited::Through | Waited::Late => error!("runs did not end though they were cancelled; they are left"),
        }
        Ended::Abandoned
    }

    async fn drained(&self, grace: Duration, latest: Instant, insistence: Insistence, signals: &mut Signals) -> Waited {
        wait(self.service.drain(grace), latest, insistence, async || signals.next().await).await
    }
}

/// Waits until `drain` completes, until `latest`, or until a signal that `insistence` heeds.
async fn wait(
    drain: impl Future<Output = ()>,
    latest: Instant,
    insistence: Insistence,
    mut next: impl AsyncFnMut() -> Asked,
) -> Waited {
    let mut drain = std::pin::pin!(drain);
    loop {
        tokio::select! {
            () = &mut drain => return Waited::Through,
            () = sleep_until(latest) => return Waited::Late,
            asked = next() => if insistence.heeds(asked) { return Waited::Asked },
        }
    }
}

/// Number of shutdown requests so far.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Insistence {
    First,
    Again,
}

impl Insistence {
    /// Returns whether a signal has an effect. After two requests, only Ctrl-C abandons runs, because a service
    /// manager may repeat its signal without that intention.
    fn heeds(self, asked: Asked) -> bool {
        match (self, asked) {
            (_, Asked::ToReload) => false,
            (Self::First, Asked::ToEnd(_)) => true,
            (Self::Again, Asked::ToEnd(name)) => name == "SIGINT",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_second_request_hurries_and_a_third_ctrl_c_leaves() {
        assert!(Insistence::First.heeds(Asked::ToEnd("SIGTERM")));
        assert!(!Insistence::First.heeds(Asked::ToReload));
        assert!(!Insistence::Again.heeds(Asked::ToEnd("SIGTERM")));
        assert!(Insistence::Again.heeds(Asked::ToEnd("SIGINT")));
    }

    #[tokio::test(start_paused = true)]
    async fn who_did_not_end_in_time_is_told_from_who_was_hurried() {
        async fn nobody() -> Asked {
            std::future::pending().await
        }
        let latest = Instant::now() + LAST_RUNS;
        assert_eq!(wait(async {}, latest, Insistence::First, nobody).await, Waited::Through);
        let mut said = [Asked::ToReload, Asked::ToEnd("SIGTERM")].into_iter();
        let again = async || said.next().expect("not asked once more");
        assert_eq!(wait(std::future::pending(), latest, Insistence::First, again).await, Waited::Asked);
        assert_eq!(wait(std::future::pending(), latest, Insistence::Again, nobody).await, Waited::Late);
        assert_eq!(Instant::now(), latest);
    }
}
