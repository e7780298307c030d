//! Implements `proctor cancel`, which asks the daemon to cancel a run.

use proctor_core::api::RunState;

use crate::args::CancelArgs;
use crate::caller::Caller;
use crate::daemon::{self, Purpose, client_error};
use crate::error::CliError;
use crate::run_display;
use crate::screen::Screen;

/// Requests the cancellation and returns without waiting for the end of the run. A run that has already ended is left
/// unchanged, which is not an error.
///
/// # Errors
/// No daemon responds, or the daemon does not know the run.
pub(crate) async fn cancel(args: &CancelArgs, caller: &Caller, screen: &mut Screen) -> Result<u8, CliError> {
    let daemon = daemon::find_daemon(&args.daemon, Purpose::ReadRuns, caller).await?;
    let run = daemon.client.cancel(&args.run).await.map_err(client_error)?;
    screen.out(&match run.state {
        RunState::Finished => {
            format!("run {} has ended: {}\n", run.id, run_display::state_label(run.state, run.verdict, 0))
        }
        RunState::Queued | RunState::Running => format!("requested the end of run {}\n", run.id),
    });
    Ok(0)
}
