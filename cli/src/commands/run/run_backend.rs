//! Chooses the engine of a run: this process, or a daemon.

use std::path::Path;
use std::sync::Arc;

use proctor_core::spec::OperatorConfig;
use proctor_runner::Engine;

use crate::args::RunArgs;
use crate::caller::Caller;
use crate::daemon::{self, BackendCriteria, ReachableDaemon};
use crate::engine::{self, engine_error};
use crate::error::CliError;
use crate::report_outputs::ToolReportSource;
use crate::screen::Screen;

/// The executor of the runs.
pub(super) enum RunBackend {
    /// This process.
    InProcess(Arc<Engine>),
    /// A daemon.
    Daemon(ReachableDaemon),
}

/// Returns the daemon that does the runs; `None` if this process does them.
///
/// # Errors
/// A daemon is required and none responds.
pub(super) async fn find_daemon(
    args: &RunArgs,
    operator: &OperatorConfig,
    repo: &Path,
    caller: &Caller,
    screen: &mut Screen,
) -> Result<Option<ReachableDaemon>, CliError> {
    let wanted = BackendCriteria { options: &args.backend, operator, repo };
    daemon::select_backend_with_env(wanted, caller, screen).await
}

impl RunBackend {
    /// Returns the backend: `daemon` if there is one, otherwise this process.
    ///
    /// # Errors
    /// Something that a run in this process needs is missing.
    pub(super) fn new(
        daemon: Option<ReachableDaemon>,
        args: &RunArgs,
        operator: &OperatorConfig,
        caller: &Caller,
        screen: &mut Screen,
    ) -> Result<Self, CliError> {
        Ok(match daemon {
            Some(daemon) => Self::Daemon(daemon),
            None => Self::InProcess(Arc::new(engine::open(&args.backend.state, operator.clone(), caller, screen)?)),
        })
    }

    /// Returns the owner of the steps' reports.
    pub(super) fn report_source(&self) -> ToolReportSource<'_> {
        match self {
            Self::InProcess(engine) => ToolReportSource::Engine(engine),
            Self::Daemon(daemon) => ToolReportSource::Daemon(&daemon.client),
        }
    }

    /// Returns an engine in this process, to resolve commits.
    pub(super) fn engine(
        &self,
        args: &RunArgs,
        operator: OperatorConfig,
        caller: &Caller,
    ) -> Result<Arc<Engine>, CliError> {
        match self {
            Self::InProcess(engine) => Ok(Arc::clone(engine)),
            Self::Daemon(_) => {
                let config = engine::config(&args.backend.state, operator, caller)?;
                Ok(Arc::new(Engine::open(config).map_err(engine_error)?))
            }
        }
    }
}
