//! Runs commands outside a plan: in sessions, or as single commands whose run space is kept for the next one.

use std::path::Path;
use std::sync::Arc;

use proctor_core::model::enforcement::{SandboxMode, Tolerated};
use proctor_core::model::names::StepName;
use proctor_core::model::plan::{Limit, Network, PlannedStep};
use proctor_core::spec::{self, AdhocCommand};
use proctor_sandbox::SandboxReuse;
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

use super::resource_needs::{RunSpaceNeeds, run_space_config};
use super::warm_run_spaces::{WarmRunSpaces, WarmSpaceKey};
use super::{ChangeMode, ContextSettings, Engine, PreparedTree};
use crate::error::EngineError;
use crate::host::repository::Repository;
use crate::run::request::{CacheMode, ExecOutput, ExecRequest, JudgedCommand};
use crate::run::run_context::StepTrace;
use crate::step::layer_stack::StackedLayer;
use crate::step::session::Session;
use crate::step::step_runner;

/// Name of the step that runs the command.
const EXEC_STEP: &str = "exec";

/// The tree of a command, with a snapshot taken before the command runs.
pub struct CommandTree(PreparedTree);

/// A command that has ended, with its session.
pub struct ExecutedCommand {
    /// The result of the command.
    pub result: JudgedCommand,
    session: Session,
    /// The command's layer.
    layer: Option<Arc<StackedLayer>>,
    step: PlannedStep,
    /// The pool that keeps the run space; `None` discards it.
    warm_pool: Option<(WarmRunSpaces, WarmSpaceKey)>,
}

impl Engine {
    /// Takes a snapshot of `repo` for any number of commands. `disk` limits the total writes of commands that run
    /// at the same time; `cancel` ends all commands.
    ///
    /// # Errors
    /// Same as [`Engine::run`].
    pub async fn open_session(
        &self,
        repo: &Path,
        disk: Limit,
        sandbox: SandboxMode,
        cancel: CancellationToken,
    ) -> Result<Session, EngineError> {
        let tolerated = self.tolerated_controls(sandbox)?;
        let source = PreparedTree::from_worktree(self.open_repository(repo)?);
        self.session_over(
            source,
            RunSpaceNeeds { disk, sandboxes: SandboxReuse::Never, caches: None, space: None },
            tolerated,
            cancel,
            None,
        )
        .await
    }

    async fn session_over(
        &self,
        source: PreparedTree,
        needs: RunSpaceNeeds,
        tolerated: Tolerated,
        cancel: CancellationToken,
        command: Option<&PlannedStep>,
    ) -> Result<Session, EngineError> {
        // The events have no receiver: the command's report contains the same information.
        let (events, _) = mpsc::channel(1);
        let redactor = self.redactor(command);
        let parts = ContextSettings {
            changes: ChangeMode::Apply,
            caches: CacheMode::Empty,
            redactor,
            files: None,
            reuse: None,
        };
        let context = self.create_context(source, parts, needs, tolerated, events, cancel).await?;
        context.set_trace(StepTrace::from_env(&self.config.caller_env));
        Ok(Session::new(context))
    }

    /// Plans one command like a step of the repository's spec with the same settings. With `no_spec`, the spec is
    /// ignored, as if it did not exist. Blocks on the disk.
    ///
    /// # Errors
    /// The spec is invalid, or the command asks for more than the operator allows.
    pub fn adhoc_step(&self, repo: &Path, adhoc: &AdhocCommand, no_spec: bool) -> Result<PlannedStep, EngineError> {
        let is_there = || repo.join(spec::PATH).symlink_metadata().is_ok();
        let spec =
            if no_spec || !is_there() { None } else { Some(self.spec_cache.get_or_parse(&self.load_spec(repo)?)?) };
        let name = StepName::new(EXEC_STEP).map_err(|bad| EngineError::Internal(bad.to_string()))?;
        let planned = spec::adhoc_step(adhoc, name, spec.as_ref().map(|read| &read.spec), &self.config.operator);
        let mut step = planned.map_err(|diagnostics| {
            let refused: Vec<String> = diagnostics.into_iter().map(|diagnostic| diagnostic.message).collect();
            EngineError::AboveCeiling(refused.join("; "))
        })?;
        step.relocate_below(&Repository::find(repo)?.spec_dir);
        Ok(step)
    }

    /// Runs one command like a step, in a new session.
    ///
    /// # Errors
    /// Same as [`Engine::run`].
    pub async fn exec(&self, request: ExecRequest, cancel: CancellationToken) -> Result<ExecOutput, EngineError> {
        let ExecutedCommand { result: step, session, .. } = self.execute(request, None, cancel).await?;
        let (stdout, stderr) =
            (session.read_output(&step.evidence.stdout)?, session.read_output(&step.evidence.stderr)?);
        Ok(ExecOutput { step, stdout, stderr })
    }

    /// Takes the snapshot for a command that runs next. Blocks on the disk. A caller on a blocking thread can
    /// call this first, so that [`execute`](Self::execute) need not switch to one.
    ///
    /// # Errors
    /// Same as [`Engine::run`].
    pub fn snapshot_for_command(&self, request: &ExecRequest) -> Result<CommandTree, EngineError> {
        let repository = self.open_repository(&request.repo)?;
        self.step_user(&repository, repository.path())?;
        let snapshot = self.snapshots.take(repository.path())?;
        Ok(CommandTree(PreparedTree { worktree_snapshot: Some(snapshot), ..PreparedTree::from_worktree(repository) }))
    }

    /// Runs one command like [`exec`](Self::exec), but leaves its output in the store. It takes the snapshot itself
    /// unless the caller passes one in `tree`, which must have been taken after the command's turn came. In a
    /// long-running process, a command uses a prepared run space and sandbox if available. A command that may lack
    /// controls, or uses the host's network, gets a new sandbox.
    ///
    /// # Errors
    /// Same as [`Engine::run`].
    pub async fn execute(
        &self,
        request: ExecRequest,
        tree: Option<CommandTree>,
        cancel: CancellationToken,
    ) -> Result<ExecutedCommand, EngineError> {
        let ExecRequest { repo, step, sandbox } = request;
        let tolerated = self.tolerated_controls(sandbox)?;
        let source = match tree {
            Some(CommandTree(source)) => source,
            None => PreparedTree::from_worktree(self.open_repository(&repo)?),
        };
        let disk = step.limits.disk;
        let config = run_space_config(
            &RunSpaceNeeds { disk, sandboxes: SandboxReuse::Never, caches: None, space: None },
            tolerated.clone(),
        );
        let is_usual = sandbox == SandboxMode::Strict && step.network == Network::Deny;
        let kept = (self.config.is_long_running && is_usual).then(|| {
            let owner = WarmSpaceKey { caller: self.owner, repo: source.repository.path().to_path_buf(), config };
            (self.warm_spaces.clone(), owner)
        });
        let space = kept.as_ref().and_then(|(places, owner)| places.take(owner));
        let needs = RunSpaceNeeds { disk, sandboxes: SandboxReuse::Never, caches: None, space };
        let session = self.session_over(source, needs, tolerated, cancel, Some(&step)).await?;
        let (report, layer) = session.run_with_layer(&step).await?;
        Ok(ExecutedCommand { result: report, session, layer, step, warm_pool: kept })
    }
}

impl ExecutedCommand {
    /// Keeps the command's run space, with a new sandbox, for the next command like it, if the command left nothing
    /// behind. Takes as long as setting up a sandbox, so call it after the result was sent.
    pub async fn keep_for_next(self) {
        let Self { result: report, session, layer, step, warm_pool: kept } = self;
        let kept = kept.filter(|_| report.inconclusive_reasons.is_empty());
        step_runner::discard_layer(layer).await;
        let watched = kept.as_ref().map(|(places, _)| places.clone());
        let work = tokio::task::spawn_blocking(move || {
            let Some((places, owner)) = kept else { return };
            match session.prepare_ahead(&step) {
                Ok(Some(space)) => places.keep(owner, space),
                Ok(None) => tracing::debug!("a command changed its sandbox, which is not reused"),
                Err(error) => tracing::debug!(%error, "no sandbox could be prepared for the next command"),
            }
        });
        match work.await {
            Ok(()) => watched.iter().for_each(WarmRunSpaces::start_release_task),
            Err(error) => tracing::error!(%error, "preparing a sandbox failed unexpectedly"),
        }
    }
}
