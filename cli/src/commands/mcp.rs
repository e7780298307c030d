//! Implements `proctor mcp`, which serves the Model Context Protocol on standard input and output. It uses the daemon
//! if one responds, otherwise a service in this process.

use proctor_core::decision::verdict::EXIT_INTERRUPTED;
use proctor_daemon::mcp::{LocalBackend, McpSession, RemoteBackend, StdioError, serve_stdio};
use proctor_daemon::service::StartError;
use tokio_util::sync::CancellationToken;

use crate::args::{BackendArgs, RepoArgs};
use crate::caller::Caller;
use crate::daemon::{BackendCriteria, ReachableDaemon, select_backend_with_env};
use crate::engine;
use crate::error::CliError;
use crate::installation::{self, show};
use crate::interrupt::{Interrupts, SignalEffect, exit_interrupted};
use crate::screen::Screen;
use crate::text::escape_line;

/// Serves one client until it closes its side, or until Ctrl-C (exit code 130).
///
/// # Errors
/// A daemon is required and none responds, the state directory cannot be used, or the client violates the protocol.
pub(crate) async fn mcp(args: &BackendArgs, caller: &Caller, screen: &mut Screen) -> Result<u8, CliError> {
    let operator = installation::operator(&args.operator, caller)?;
    let wanted = BackendCriteria { options: args, operator: &operator, repo: &caller.cwd };
    let stop = CancellationToken::new();
    let daemon = select_backend_with_env(wanted, caller, screen).await?;
    let session = session(args, daemon.as_ref(), caller);
    screen.err(&format!("proctor mcp: {}\n", session.runs_by.as_deref().unwrap_or_default()));
    if let Some(daemon) = daemon {
        let remote = RemoteBackend::new(daemon.client, caller.env.clone());
        return serve(serve_stdio(remote, session, stop.clone()), stop).await;
    }
    engine::warn_about_unreadable_env(caller, screen);
    let config = engine::config(&args.state, operator, caller)?;
    let local = LocalBackend::open(config, caller.uid).await.map_err(start_error)?;
    let served = serve(serve_stdio(local.backend(), session, stop.clone()), stop).await;
    local.close().await;
    served
}

/// Builds the session information for the client: who runs the checks, and the default repository.
fn session(args: &BackendArgs, daemon: Option<&ReachableDaemon>, caller: &Caller) -> McpSession {
    let runs_by = match daemon {
        Some(daemon) => {
            let (socket, health) = (show(daemon.socket()), &daemon.health);
            format!(
                "The daemon at {socket} (proctor {}, process {}) runs the checks.",
                escape_line(&health.version),
                health.pid
            )
        }
        None if args.daemon.no_daemon => {
            "No daemon is used: this process runs the checks, and they end with it.".to_owned()
        }
        None => "No daemon: this process runs the checks, and they end with it.".to_owned(),
    };
    let work_tree = installation::repository(&RepoArgs { repo: None }, caller).ok();
    let work_tree = work_tree.and_then(|path| path.to_str().map(str::to_owned));
    McpSession { work_tree, runs_by: Some(runs_by), can_send_requests: true }
}

fn start_error(error: StartError) -> CliError {
    let text = error.to_string();
    match error {
        StartError::Engine(error) => engine::engine_error(error),
        StartError::History(_) => {
            let (message, hint) =
                text.split_once("\nhint: ").unwrap_or((&text, "choose another directory with `--state-dir`"));
            CliError::Environment { message: message.to_owned(), hint: hint.to_owned() }
        }
    }
}

/// Serves until the client disconnects. The first signal cancels the pending calls; a second Ctrl-C exits at once.
async fn serve(serving: impl Future<Output = Result<(), StdioError>>, stop: CancellationToken) -> Result<u8, CliError> {
    let mut interrupts = Interrupts::listen(stop).map_err(|error| CliError::Environment {
        message: format!("signal handlers cannot be installed: {error}"),
        hint: "raise the limit of open files (`ulimit -n`)".to_owned(),
    })?;
    tokio::pin!(serving);
    let served = loop {
        tokio::select! {
            served = &mut serving => break served,
            effect = interrupts.next() => if effect == SignalEffect::ExitNow {
                exit_interrupted();
            },
        }
    };
    match (served, interrupts.first_signal()) {
        (_, Some(_)) => Ok(EXIT_INTERRUPTED),
        (Ok(()), None) => Ok(0),
        (Err(error @ StdioError::NoHandshake(_)), None) => Err(CliError::Usage {
            message: error.to_string(),
            hint: "an MCP client starts `proctor mcp`; docs/mcp.md shows how to configure clients".to_owned(),
        }),
        (Err(StdioError::Internal(message)), None) => Err(CliError::Internal(message)),
    }
}
