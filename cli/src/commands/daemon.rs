//! Implements `proctor daemon`, which starts, stops and inspects the daemon. If systemd manages the daemon, it should
//! be controlled with systemd instead.

mod start;
mod stop;

use proctor_client::socket_candidates::all_candidates;
use proctor_core::api::{Health, HealthStatus};
use schemars::JsonSchema;
use serde::Serialize;

use crate::args::{DaemonCommand, DaemonStatusArgs, OutputFormat};
use crate::caller::Caller;
use crate::daemon::{self, Purpose, ReachableDaemon};
use crate::error::CliError;
use crate::installation::{self, show};
use crate::screen::Screen;
use crate::style::{DIM, GOOD, UNSURE, paint};
use crate::text::{duration, escape_line};

/// The output of `proctor daemon status --format json`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, JsonSchema)]
pub(crate) struct DaemonRecord {
    /// The socket of the daemon.
    pub socket: String,
    /// The health of the daemon.
    #[serde(flatten)]
    pub health: Health,
}

/// Runs the subcommand.
///
/// # Errors
/// The daemon does not start, does not exit, or is not running.
pub(crate) async fn daemon(command: &DaemonCommand, caller: &Caller, screen: &mut Screen) -> Result<u8, CliError> {
    match command {
        DaemonCommand::Start(args) => start::start(args, caller, screen).await,
        DaemonCommand::Stop(args) => stop::stop(args, caller, screen).await,
        DaemonCommand::Status(args) => show_status(args, caller, screen).await,
    }
}

async fn show_status(args: &DaemonStatusArgs, caller: &Caller, screen: &mut Screen) -> Result<u8, CliError> {
    let operator = installation::operator(&args.daemon.operator, caller)?;
    let candidates = all_candidates(args.daemon.socket.as_deref(), &operator, caller);
    let daemon = match daemon::require_daemon(&candidates, Purpose::Manage).await {
        Ok(daemon) => daemon,
        Err(error) => {
            let holder = daemon::lock_holder(&candidates);
            return Err(holder.map_or(error, |(socket, pid)| daemon::locked_socket_error(&socket, pid)));
        }
    };
    match args.format {
        OutputFormat::Human => screen.out(&render_status(&daemon)),
        OutputFormat::Json => {
            screen.out_json(&DaemonRecord { socket: show(daemon.socket()), health: daemon.health })?;
        }
    }
    Ok(0)
}

fn render_status(daemon: &ReachableDaemon) -> String {
    let health = &daemon.health;
    let word = match health.status {
        HealthStatus::Ok => paint(GOOD, "running"),
        HealthStatus::Draining => paint(UNSURE, "shutting down: it accepts no new requests"),
    };
    let rows = [
        ("daemon", word),
        ("socket", show(daemon.socket())),
        ("version", escape_line(&health.version)),
        ("process", format!("{} of user {}", health.pid, health.uid)),
        ("for", duration(health.uptime_ms)),
        ("runs", format!("{} active, {} waiting", health.runs.running, health.runs.queued)),
    ];
    rows.iter().map(|(label, value)| format!("{} {value}\n", paint(DIM, format!("{label:<8}")))).collect()
}
