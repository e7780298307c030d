//! Starts the workers of this process, and the launcher of their sandboxes.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use proctor_core::model::enforcement::SandboxMode;
use proctor_core::spec::OperatorConfig;
use proctor_core::sql::DUCKDB_VARIABLE;
use proctor_sandbox::{Host, HostConfig, Launcher, SandboxError};
use proctor_sql::worker_pool::{WorkerPool, WorkerPoolConfig};

use crate::args::StateArgs;
use crate::caller::Caller;
use crate::error::CliError;
use crate::installation;

pub(super) fn start_workers(
    duckdb: Option<&Path>,
    state: &StateArgs,
    operator: &OperatorConfig,
    caller: &Caller,
) -> Result<Arc<WorkerPool>, CliError> {
    start_workers_with(start_launcher(state, caller)?, duckdb, operator, caller)
}

pub(super) fn start_launcher(state: &StateArgs, caller: &Caller) -> Result<Arc<Launcher>, CliError> {
    let config = HostConfig {
        helper: installation::helpers(caller)?.sandbox,
        state_dir: installation::state_dir(state, caller)?,
        home: installation::home(caller)?,
    };
    Host::new(config).and_then(Launcher::start).map(Arc::new).map_err(|error| no_sandbox(&error))
}

fn no_sandbox(error: &SandboxError) -> CliError {
    CliError::Environment {
        message: format!("no sandbox for SQL engines: {error}"),
        hint: "`proctor doctor` shows what this machine can enforce".to_owned(),
    }
}

pub(super) fn start_workers_with(
    launcher: Arc<Launcher>,
    duckdb: Option<&Path>,
    operator: &OperatorConfig,
    caller: &Caller,
) -> Result<Arc<WorkerPool>, CliError> {
    let helpers = installation::helpers(caller)?;
    let config = WorkerPoolConfig {
        program: helpers.sql,
        duckdb: duckdb.map(|file| caller.cwd.join(file)).or_else(|| caller.var(DUCKDB_VARIABLE).map(PathBuf::from)),
        max_idle: 1,
        tolerated: operator.tolerated(SandboxMode::Strict).unwrap_or_default(),
    };
    WorkerPool::new(launcher, config).map(Arc::new).map_err(|error| no_sandbox(&error))
}
