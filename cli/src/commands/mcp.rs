//! `proctor mcp`: the Model Context Protocol on standard input and output, over the daemon where one
//! answers, else over a service of this process.

use proctor_core::verdict::EXIT_INTERRUPTED;
use proctor_daemon::mcp::{Local, Remote, StdioError, serve_stdio};
use proctor_daemon::service::StartError;
use tokio_util::sync::CancellationToken;

use crate::args::WayArgs;
use crate::caller::Caller;
use crate::daemon::{Wanted, who_does_it_with_env};
use crate::engine;
use crate::error::CliError;
use crate::installation;
use crate::interrupt::{Asked, Interrupts, leave};
use crate::screen::Screen;

/// Serves one client until it closes its side, or until Ctrl-C, which is code 130.
///
/// # Errors
/// A daemon is demanded and none answers, the state directory cannot be used, or the client does not
/// speak the protocol.
pub(crate) async fn mcp(args: &WayArgs, caller: &Caller, screen: &mut Screen) -> Result<u8, CliError> {
    let operator = installation::operator(&args.operator, caller)?;
    let wanted = Wanted { way: args, operator: &operator, repo: &caller.cwd };
    let stop = CancellationToken::new();
    if let Some(daemon) = who_does_it_with_env(wanted, caller, screen).await? {
        let remote = Remote::new(daemon.client, caller.env.clone());
        return serve(serve_stdio(remote, stop.clone()), stop).await;
    }
    engine::warn_of_unreadable(caller, screen);
    let config = engine::config(&args.state, operator, caller)?;
    let local = Local::open(config, caller.uid).await.map_err(start_error)?;
    let served = serve(serve_stdio(local.backend(), stop.clone()), stop).await;
    local.close().await;
    served
}

fn start_error(error: StartError) -> CliError {
    let text = error.to_string();
    match error {
        StartError::Engine(error) => engine::engine_error(error),
        StartError::StateInUse(_) | StartError::History { .. } => {
            let (message, hint) =
                text.split_once("\nhint: ").unwrap_or((&text, "name another directory with `--state-dir`"));
            CliError::Environment { message: message.to_owned(), hint: hint.to_owned() }
        }
    }
}

/// Serves until the client is gone; a signal asks what is under way to end, a second Ctrl-C ends us.
async fn serve(serving: impl Future<Output = Result<(), StdioError>>, stop: CancellationToken) -> Result<u8, CliError> {
    let mut interrupts = Interrupts::listen(stop).map_err(|error| CliError::Environment {
        message: format!("signals cannot be listened to: {error}"),
        hint: "raise the limit of open files (`ulimit -n`)".to_owned(),
    })?;
    tokio::pin!(serving);
    let served = loop {
        tokio::select! {
            served = &mut serving => break served,
            asked = interrupts.next() => if asked == Asked::ToLeave {
                leave();
            },
        }
    };
    match (served, interrupts.first()) {
        (_, Some(_)) => Ok(EXIT_INTERRUPTED),
        (Ok(()), None) => Ok(0),
        (Err(error @ StdioError::NoHandshake(_)), None) => Err(CliError::Usage {
            message: error.to_string(),
            hint: "a client starts `proctor mcp` and speaks to it; docs/mcp.md shows how clients are told of it"
                .to_owned(),
        }),
        (Err(StdioError::Internal(message)), None) => Err(CliError::Internal(message)),
    }
}
