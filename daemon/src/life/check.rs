//! Checks the operator's config without starting a daemon (`proctord --check-config`).

use std::io::Write as _;
use std::process::ExitCode;

use super::args::Args;
use super::error::LifeError;
use crate::installation::{self, Surroundings, show};
use crate::settings::{self, Settings};

/// Reports whether the config given by the arguments is valid, as text and as the exit code.
pub(super) fn check_config(args: &Args) -> ExitCode {
    match checked(args) {
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

fn checked(args: &Args) -> Result<String, LifeError> {
    let around = Surroundings::read().map_err(LifeError::Surroundings)?;
    let found = installation::operator(args.config.as_deref(), &around)?;
    let settings = Settings::of(found, around.uid, settings::uid_of)?;
    Ok(match &settings.config {
        Some(path) => format!("the config `{}` is valid", show(path)),
        None => "there is no config; the defaults apply".to_owned(),
    })
}
