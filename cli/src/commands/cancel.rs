//! `proctor cancel`: asks a run of the daemon to end.

use proctor_core::api::RunState;

use crate::args::CancelArgs;
use crate::caller::Caller;
use crate::daemon::{self, Purpose, client_error};
use crate::error::CliError;
use crate::runs;
use crate::screen::Screen;

/// Asks, and does not wait for the end. A run that has ended stays as it is, which is no error.
///
/// # Errors
/// No daemon answers, or it knows no such run.
pub(crate) async fn cancel(args: &CancelArgs, caller: &Caller, screen: &mut Screen) -> Result<u8, CliError> {
    let daemon = daemon::of(&args.daemon, Purpose::Look, caller).await?;
    let run = daemon.client.cancel(&args.run).await.map_err(client_error)?;
    screen.out(&match run.state {
        RunState::Finished => format!("run {} has ended: {}\n", run.id, runs::word(run.state, run.verdict, 0)),
        RunState::Queued | RunState::Running => format!("run {} is asked to end\n", run.id),
    });
    Ok(0)
}
