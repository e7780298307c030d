//! Runs commands outside a plan: in sessions, or as single commands whose run space is kept for the next one.

use std::path::Path;
use std::sync::Arc;

use proctor_core::enforcement::{SandboxMode, Tolerated};
use proctor_core::names::StepName;
use proctor_core::plan::{Limit, Network, PlannedStep};
use proctor_core::spec::{self, Adhoc};
use proctor_sandbox::Sandboxes;
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

use super::room::{Room, space_config};
use super::warm::{Owner, WarmPlaces};
use super::{Changes, Engine, Parts, Source};
use crate::context::StepTrace;
use crate::error::EngineError;
use crate::request::{CachesWanted, ExecReport, ExecRequest, StepReport};
use crate::session::Session;
use crate::stack::Stacked;
use crate::step;

/// Name of the step that runs the command.
const NAME: &str = "exec";

/// The tree of a command, with a snapshot taken before the command runs.
pub struct Looked(Source);

/// A command that has ended, with its session.
pub struct Executed {
    /// The result of the command.
    pub report: StepReport,
    session: Session,
    /// The command's layer.
    layer: Option<Arc<Stacked>>,
    step: PlannedStep,
    /// The pool that keeps the run space; `None` discards it.
    kept: Option<(WarmPlaces, Owner)>,
}

impl Engine {
    /// Takes a snapshot of `repo` for any number of commands. `disk` limits the total writes of commands that run
    /// at the same time; `cancel` ends all commands.
    ///
    /// # Errors
    /// Same as [`Engine::run`].
    pub async fn session(
        &self,
        repo: &Path,
        disk: Limit,
        sandbox: SandboxMode,
        cancel: CancellationToken,
    ) -> Result<Session, EngineError> {
        let tolerated = self.tolerated(sandbox)?;
        let source = Source::worktree(self.repository(repo)?);
        self.session_in(
            source,
            Room { disk, sandboxes: Sandboxes::ForOne, caches: None, space: None },
            tolerated,
            cancel,
        )
        .await
    }

    async fn session_in(
        &self,
        source: Source,
        room: Room,
        tolerated: Tolerated,
        cancel: CancellationToken,
    ) -> Result<Session, EngineError> {
        // The events have no receiver: the command's report contains the same information.
        let (events, _) = mpsc::channel(1);
        let parts = Parts { changes: Changes::Applied, caches: CachesWanted::Empty };
        let context = self.context(source, parts, room, tolerated, events, cancel).await?;
        context.continue_trace(StepTrace::from_env(&self.config.caller_env));
        Ok(Session::new(context))
    }

    /// Plans one command like a step of the repository's spec with the same settings. With `no_spec`, the spec is
    /// ignored, as if it did not exist. Blocks on the disk.
    ///
    /// # Errors
    /// The spec is invalid, or the command asks for more than the operator allows.
    pub fn adhoc_step(&self, repo: &Path, adhoc: &Adhoc, no_spec: bool) -> Result<PlannedStep, EngineError> {
        let is_there = || repo.join(spec::PATH).symlink_metadata().is_ok();
        let spec = if no_spec || !is_there() { None } else { Some(self.readings.of(&self.spec(repo)?)?) };
        let name = StepName::new(NAME).map_err(|bad| EngineError::Internal(bad.to_string()))?;
        let planned = spec::adhoc_step(adhoc, name, spec.as_ref().map(|read| &read.spec), &self.config.operator);
        planned.map_err(|diagnostics| {
            let refused: Vec<String> = diagnostics.into_iter().map(|diagnostic| diagnostic.message).collect();
            EngineError::AboveCeiling(refused.join("; "))
        })
    }

    /// Runs one command like a step, in a new session.
    ///
    /// # Errors
    /// Same as [`Engine::run`].
    pub async fn exec(&self, request: ExecRequest, cancel: CancellationToken) -> Result<ExecReport, EngineError> {
        let Executed { report: step, session, .. } = self.execute(request, None, cancel).await?;
        let (stdout, stderr) = (session.kept(&step.evidence.stdout)?, session.kept(&step.evidence.stderr)?);
        Ok(ExecReport { step, stdout, stderr })
    }

    /// Takes the snapshot for a command that runs next. Blocks on the disk; a caller that already is on a blocking
    /// thread spares [`execute`](Self::execute) the switch to one.
    ///
    /// # Errors
    /// Same as [`Engine::run`].
    pub fn look(&self, request: &ExecRequest) -> Result<Looked, EngineError> {
        let repository = self.repository(&request.repo)?;
        self.step_user(&repository, repository.path())?;
        let snapshot = self.snapshots.take(repository.path())?;
        Ok(Looked(Source { taken: Some(snapshot), ..Source::worktree(repository) }))
    }

    /// Runs one command like [`exec`](Self::exec), but leaves its output in the store. It takes the snapshot itself
    /// unless the caller passes one in `looked`, which must have been taken after the command's turn came. In a
    /// long-running process, a command uses a prepared run space and sandbox if available. A command that may lack
    /// controls, or uses the host's network, gets a new sandbox.
    ///
    /// # Errors
    /// Same as [`Engine::run`].
    pub async fn execute(
        &self,
        request: ExecRequest,
        looked: Option<Looked>,
        cancel: CancellationToken,
    ) -> Result<Executed, EngineError> {
        let ExecRequest { repo, step, sandbox } = request;
        let tolerated = self.tolerated(sandbox)?;
        let source = match looked {
            Some(Looked(source)) => source,
            None => Source::worktree(self.repository(&repo)?),
        };
        let disk = step.limits.disk;
        let config =
            space_config(&Room { disk, sandboxes: Sandboxes::ForOne, caches: None, space: None }, tolerated.clone());
        let is_usual = sandbox == SandboxMode::Strict && step.network == Network::Deny;
        let kept = (self.config.stays && is_usual).then(|| {
            let owner = Owner { caller: self.owner, repo: source.repository.path().to_path_buf(), config };
            (self.warm.clone(), owner)
        });
        let space = kept.as_ref().and_then(|(places, owner)| places.take(owner));
        let room = Room { disk, sandboxes: Sandboxes::ForOne, caches: None, space };
        let session = self.session_in(source, room, tolerated, cancel).await?;
        let (report, layer) = session.run_keeping(&step).await?;
        Ok(Executed { report, session, layer, step, kept })
    }
}

impl Executed {
    /// Keeps the command's run space, with a new sandbox, for the next command like it, if the command left nothing
    /// behind. Takes as long as setting up a sandbox, so call it after the result was sent.
    pub async fn settle(self) {
        let Self { report, session, layer, step, kept } = self;
        let kept = kept.filter(|_| report.doubts.is_empty());
        step::discard(layer).await;
        let watched = kept.as_ref().map(|(places, _)| places.clone());
        let work = tokio::task::spawn_blocking(move || {
            let Some((places, owner)) = kept else { return };
            match session.prepare_ahead(&step) {
                Ok(Some(space)) => places.keep(owner, space),
                Ok(None) => tracing::debug!("a command left something in its place, which is not used again"),
                Err(error) => tracing::debug!(%error, "no sandbox waits for the next command"),
            }
        });
        match work.await {
            Ok(()) => watched.iter().for_each(WarmPlaces::watch),
            Err(error) => tracing::error!(%error, "preparing a sandbox ended badly"),
        }
    }
}
