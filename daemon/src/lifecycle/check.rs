//! Checks the operator's config without starting a daemon (`proctord --check-config`).

use std::io::Write as _;
use std::process::ExitCode;

use super::args::Args;
use super::error::LifecycleError;
use crate::settings::{self, ResolvedSettings};
use proctor_client::installation::{self, ProcessEnvironment, show};

/// Reports whether the config given by the arguments is valid, as text and as the exit code.
pub(super) fn check_config(args: &Args) -> ExitCode {
    match check(args) {
        Ok(message) => {
            // The exit code carries the result, so a closed standard output is not an error.
            let _ = writeln!(std::io::stdout(), "{message}");
            ExitCode::SUCCESS
        }
        Err(error) => {
            error.report();
            ExitCode::from(error.exit_code())
        }
    }
}

fn check(args: &Args) -> Result<String, LifecycleError> {
    let environment = ProcessEnvironment::read().map_err(LifecycleError::Environment)?;
    let found = installation::load_operator_config(args.config.as_deref(), &environment)?;
    let settings = ResolvedSettings::resolve(found, environment.uid, settings::uid_of)?;
    Ok(match &settings.config {
        Some(path) => format!("the config `{}` is valid", show(path)),
        None => "there is no config; the defaults apply".to_owned(),
    })
}
