//! Checks the operator's config without starting a daemon (`proctord --check-config`).

use std::io::Write as _;
use std::process::ExitCode;

use super::args::Args;
use super::error::LifeError;
use crate::installation::{self, Surroundings, show};
use crate::settings::{self, Settings};

/// Reports whether the config that these arguments name is valid, as the exit code and in words.
pub(super) fn check_config(args: &Args) -> ExitCode {
    match checked(args) {
        Ok(message) => {
            // The exit code is the answer; standard output may be closed.
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
