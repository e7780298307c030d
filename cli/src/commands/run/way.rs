//! Chooses the engine of a run: this process, or a daemon.

use std::path::Path;
use std::sync::Arc;

use proctor_core::spec::Operator;
use proctor_runner::Engine;

use crate::args::RunArgs;
use crate::caller::Caller;
use crate::daemon::{self, Daemon, Wanted};
use crate::engine::{self, engine_error};
use crate::error::CliError;
use crate::reports::Keeper;
use crate::screen::Screen;

/// The executor of the runs.
pub(super) enum Way {
    /// This process.
    Here(Arc<Engine>),
    /// A daemon.
    Daemon(Daemon),
}

impl Way {
    /// Chooses a daemon if one is available, otherwise this process.
    pub(super) async fn choose(
        args: &RunArgs,
        operator: Operator,
        repo: &Path,
        caller: &Caller,
        screen: &mut Screen,
    ) -> Result<Self, CliError> {
        let wanted = Wanted { way: &args.way, operator: &operator, repo };
        match daemon::who_does_it_with_env(wanted, caller, screen).await? {
            Some(daemon) => Ok(Self::Daemon(daemon)),
            None => Ok(Self::Here(Arc::new(engine::open(&args.way.state, operator, caller, screen)?))),
        }
    }

    /// Returns the owner of the steps' reports.
    pub(super) fn keeper(&self) -> Keeper<'_> {
        match self {
            Self::Here(engine) => Keeper::Engine(engine),
            Self::Daemon(daemon) => Keeper::Daemon(&daemon.client),
        }
    }

    /// Returns an engine in this process, to resolve commits.
    pub(super) fn engine(&self, args: &RunArgs, operator: Operator, caller: &Caller) -> Result<Arc<Engine>, CliError> {
        match self {
            Self::Here(engine) => Ok(Arc::clone(engine)),
            Self::Daemon(_) => {
                let config = engine::config(&args.way.state, operator, caller)?;
                Ok(Arc::new(Engine::open(config).map_err(engine_error)?))
            }
        }
    }
}
