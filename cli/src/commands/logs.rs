//! Implements `proctor logs`, which prints the stored output of a run's steps. One step or the whole run can be
//! followed while it runs. Output of steps is escaped for the screen.

mod cached_note;
mod escaping;
mod log_printer;
mod run_follower;
mod run_units;
mod stored_logs;

use crate::args::LogsArgs;
use crate::caller::Caller;
use crate::error::CliError;
use crate::named_run::{NamedRun, RunSource, find_named_run};
use crate::screen::Screen;
use log_printer::LogPrinter;

/// Prints the output. The code is 0 if there was any output to print.
///
/// # Errors
/// No daemon responds, the run or step does not exist, or its output does not exist yet or was removed.
pub(crate) async fn logs(args: &LogsArgs, caller: &Caller, screen: &mut Screen) -> Result<u8, CliError> {
    if args.raw && caller.stdout_is_terminal {
        return Err(CliError::Usage {
            message: "the unescaped output of a step is not written to a terminal".to_owned(),
            hint: "omit `--raw`, or redirect the output to a file or a pipe".to_owned(),
        });
    }
    let NamedRun { run, source } = find_named_run(&args.run, &args.repo, (&args.state, &args.daemon), caller).await?;
    let daemon = match source {
        RunSource::Daemon(daemon) => daemon,
        RunSource::Documents(dir) => {
            return stored_logs::print_stored_logs(args, (&run, &dir), caller, screen).await;
        }
    };
    let mut printer = LogPrinter { client: daemon.client, run, raw: args.raw, screen };
    match &args.step {
        Some(step) => printer.print_one(step, args).await,
        // Raw bytes cannot be split into lines that are labelled with their step.
        None if args.follow && !args.raw => run_follower::follow_run(&mut printer).await,
        None => printer.print_all(args.follow).await,
    }
}
