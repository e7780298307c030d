//! Opens the engine for this caller on this machine.

use proctor_core::code::Coded as _;
use proctor_core::spec::OperatorConfig;
use proctor_core::sql::DUCKDB_VARIABLE;
use proctor_runner::{Engine, EngineConfig, EngineError};

use crate::args::StateArgs;
use crate::caller::Caller;
use crate::error::CliError;
use crate::installation;
use crate::screen::Screen;
use crate::style;

/// Opens the engine.
///
/// # Errors
/// A requirement is missing, such as a helper program or a usable state directory.
pub(crate) fn open(
    state: &StateArgs,
    operator: OperatorConfig,
    caller: &Caller,
    screen: &mut Screen,
) -> Result<Engine, CliError> {
    warn_about_unreadable_env(caller, screen);
    Engine::open(config(state, operator, caller)?).map_err(engine_error)
}

/// Warns about environment variables of the caller that no step can receive, because they are not UTF-8.
pub(crate) fn warn_about_unreadable_env(caller: &Caller, screen: &mut Screen) {
    if !caller.unreadable.is_empty() {
        let names = caller.unreadable.join(", ");
        screen.err(&style::warning(&format!(
            "these variables cannot be passed to steps because they are not UTF-8: {names}"
        )));
    }
}

/// Builds the configuration of an engine or of a gate for this caller and machine.
///
/// # Errors
/// Same as [`open`].
pub(crate) fn config(state: &StateArgs, operator: OperatorConfig, caller: &Caller) -> Result<EngineConfig, CliError> {
    let state_dir = installation::state_dir(state, caller)?;
    proctor_client::installation::secure_state_dir(&state_dir)?;
    Ok(EngineConfig {
        state_dir,
        helpers: installation::helpers(caller)?,
        duckdb: caller.var(DUCKDB_VARIABLE).map(|file| caller.cwd.join(file)),
        home: installation::home(caller)?,
        caller_env: caller.env.clone(),
        operator,
        hidden_dirs: Vec::new(),
        is_long_running: false,
    })
}

/// Converts an error of the engine.
pub(crate) fn engine_error(error: EngineError) -> CliError {
    match error {
        EngineError::Spec(problems) => {
            CliError::Invalid { file: problems.file, text: problems.source, diagnostics: problems.diagnostics }
        }
        error => CliError::Engine {
            hint: error.hint(),
            exit_code: error.exit_code(),
            code: error.code(),
            message: error.message(),
        },
    }
}
