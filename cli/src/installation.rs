//! Locates the repository for this caller. Helpers, state directory and operator config are found by
//! `proctor_client::installation`, which the daemon uses too.

use std::path::PathBuf;

use proctor_client::installation::{self, InstallationError};
use proctor_client::repository::find_repository;
use proctor_core::spec::OperatorConfig;
use proctor_daemon::helpers::find_helpers;
use proctor_runner::HelperPrograms;

use crate::args::{OperatorArgs, RepoArgs, StateArgs};
use crate::caller::Caller;
use crate::error::CliError;

pub(crate) use proctor_client::installation::show;

/// Returns the repository: the directory named by `--repo`, or the nearest directory from the current one upwards
/// that has a spec or a `.git`.
///
/// # Errors
/// The named directory does not exist, or the current directory is not inside a repository.
pub(crate) fn repository(args: &RepoArgs, caller: &Caller) -> Result<PathBuf, CliError> {
    Ok(find_repository(args.repo.as_deref(), &caller.cwd)?)
}

/// Finds the helper programs next to the running executable, or in `../libexec/proctor`.
///
/// # Errors
/// A helper is in neither directory.
pub(crate) fn helpers(caller: &Caller) -> Result<HelperPrograms, CliError> {
    Ok(find_helpers(&caller.bin_dir)?)
}

/// Returns the state directory, which holds everything that outlives a run.
///
/// # Errors
/// No directory was named, and the caller has no home directory.
pub(crate) fn state_dir(args: &StateArgs, caller: &Caller) -> Result<PathBuf, CliError> {
    Ok(installation::state_dir(args.state_dir.as_deref(), caller)?)
}

/// Returns the caller's home directory.
///
/// # Errors
/// The caller has no home directory.
pub(crate) fn home(caller: &Caller) -> Result<PathBuf, CliError> {
    Ok(installation::home_dir(caller)?)
}

/// Reads the operator's config: the named file, else the system's, else the caller's own. If none exists, returns the
/// built-in config.
///
/// # Errors
/// The file cannot be read, or is wrong.
pub(crate) fn operator(args: &OperatorArgs, caller: &Caller) -> Result<OperatorConfig, CliError> {
    Ok(installation::load_operator_config(args.config.as_deref(), caller)?.operator)
}

impl From<InstallationError> for CliError {
    fn from(error: InstallationError) -> Self {
        match error {
            InstallationError::Usage { message, hint } => Self::Usage { message, hint },
            InstallationError::Environment { message, hint } => Self::Environment { message, hint },
            InstallationError::Invalid { file, text, diagnostics } => Self::Invalid { file, text, diagnostics },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn missing_helper_is_an_environment_error() {
        let mut caller = Caller::for_tests(&[]);
        caller.environment.bin_dir = PathBuf::from("/proc/bin");
        let error = helpers(&caller).expect_err("not there");
        assert_eq!((error.exit_code(), error.hints().len()), (5, 1));
        let args = OperatorArgs { config: Some("/proc/absent.toml".into()) };
        assert_eq!(operator(&args, &Caller::for_tests(&[])).expect_err("absent").exit_code(), 2);
    }
}
