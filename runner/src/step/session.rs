//! Runs single commands, one after the other or concurrently, on one snapshot of a tree. Each command is a step
//! (layer, attempts, seal, drift) on the unchanged tree; its writes are judged and then discarded. Only its output
//! is recorded.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use proctor_core::decision::verdict::{self, InconclusiveReason};
use proctor_core::model::names::SkillName;
use proctor_core::model::plan::{Determinism, PlannedSkill, PlannedStep};
use proctor_core::model::tier::{self, Tier};
use proctor_core::record::evidence::StreamEvidence;
use proctor_sandbox::RunSpace;
use tokio::sync::Mutex;
use tokio::task::JoinSet;

use crate::error::{EngineError, one_line};
use crate::run::evidence_builder;
use crate::run::request::JudgedCommand;
use crate::run::run_context::{RunContext, TreeMounts};
use crate::step::layer_stack::{LayerStack, StackedLayer};
use crate::step::{reusable_step, step_runner};

/// A tree and a run space in which any number of commands can run.
///
/// The snapshot is taken when the session is created; after an edit of the tree, the caller must create a new
/// session. Dropping the session removes the run space and its namespaces.
pub struct Session {
    context: Arc<RunContext>,
    stack: LayerStack,
    /// True if a command wrote to the worktree, so the snapshot is out of date.
    tree_changed: AtomicBool,
    /// Layers that are being removed.
    pending_removals: Mutex<JoinSet<()>>,
}

/// Maximum number of layers that are removed at the same time.
const MAX_PENDING_REMOVALS: usize = 8;

impl Session {
    pub(crate) fn new(context: Arc<RunContext>) -> Self {
        let stack = LayerStack::new(Arc::clone(&context.tree.snapshot));
        Self { context, stack, tree_changed: AtomicBool::new(false), pending_removals: Mutex::default() }
    }

    /// Runs one command like a step, on the session's snapshot. Its layer is removed in the background, unless too
    /// many removals are pending.
    ///
    /// # Errors
    /// An earlier command (`read_only: off`) changed the tree.
    pub async fn run(&self, step: &PlannedStep) -> Result<JudgedCommand, EngineError> {
        let (report, layer) = self.run_with_layer(step).await?;
        self.remove_layer(layer).await;
        Ok(report)
    }

    /// Runs one command like [`Session::run`], and leaves the layer to the caller, who removes it with
    /// [`discard_layer`](step_runner::discard_layer). The removal takes processor time that would delay the result.
    pub(crate) async fn run_with_layer(
        &self,
        step: &PlannedStep,
    ) -> Result<(JudgedCommand, Option<Arc<StackedLayer>>), EngineError> {
        if self.tree_changed.load(Ordering::Acquire) {
            return Err(EngineError::SessionSpent(self.context.tree.repository.path().to_path_buf()));
        }
        let skill = skill_for_command(step)?;
        let run = reusable_step::run(&self.context, &self.stack, &skill, step).await;
        if !run.applied.is_empty() {
            self.tree_changed.store(true, Ordering::Release);
        }
        let mut doubts = run.inconclusive_reasons;
        if self.context.cancel.is_cancelled() {
            doubts.push(InconclusiveReason::Interrupted.with_message("the command was interrupted"));
        }
        let facts = verdict::VerdictInputs {
            outcomes: vec![run.evidence.outcome],
            inconclusive_reasons: doubts.iter().map(|detail| detail.doubt).collect(),
            is_restricted: false,
        };
        let (verdict, exit_code) = (verdict::derive_verdict(&facts), verdict::exit_code(&facts));
        let evidence = run.evidence;
        let tier_reasons = evidence_builder::tier_reasons([&evidence]);
        let tier = tier::effective_tier(skill.declared_tier, &tier_reasons);
        Ok((
            JudgedCommand { evidence, verdict, exit_code, tier, tier_reasons, inconclusive_reasons: doubts },
            run.layer,
        ))
    }

    /// Removes a layer in the background; waits only if too many removals are pending.
    async fn remove_layer(&self, layer: Option<Arc<StackedLayer>>) {
        let mut freeing = self.pending_removals.lock().await;
        while freeing.try_join_next().is_some() {}
        if freeing.len() >= MAX_PENDING_REMOVALS {
            freeing.join_next().await;
        }
        freeing.spawn(step_runner::discard_layer(layer));
    }

    /// Prepares up to `wanted` sandboxes, at most eight, for commands like `step`, which then skip the set-up. Each
    /// sandbox serves one command, and is not replaced afterwards. Returns when the sandboxes are started;
    /// [`ready_sandboxes`](Self::ready_sandboxes) counts the ones that are ready.
    ///
    /// # Errors
    /// No sandbox can be created.
    pub async fn prepare_sandboxes(&self, step: &PlannedStep, wanted: usize) -> Result<(), EngineError> {
        let (policy, _) = self
            .context
            .policy(&skill_for_command(step)?, step, TreeMounts::All)
            .map_err(|fault| EngineError::Internal(one_line(&fault)))?;
        let (context, stack) = (Arc::clone(&self.context), self.stack.clone());
        let work = tokio::task::spawn_blocking(move || {
            let facts = &context.tree.repository.facts;
            context.launcher.warm(&context.space, &stack.lowers(), facts, &policy, wanted)
        });
        let warmed = work
            .await
            .map_err(|error| EngineError::Internal(format!("preparing the sandbox failed unexpectedly: {error}")))?;
        Ok(warmed?)
    }

    /// Prepares a new sandbox in this session's run space for one command like `step`, and returns the run space;
    /// `None` if a command left something in it. Blocks.
    ///
    /// # Errors
    /// No sandbox can be created.
    pub(crate) fn prepare_ahead(&self, step: &PlannedStep) -> Result<Option<RunSpace>, EngineError> {
        let context = &self.context;
        if !context.space.is_in_memory() || !context.space.is_unused() {
            return Ok(None);
        }
        let policy = context.policy(&skill_for_command(step)?, step, TreeMounts::All);
        let (policy, _) = policy.map_err(|fault| EngineError::Internal(fault.to_string()))?;
        context.launcher.prepare_ahead(&context.space, &context.tree.repository.facts, &policy)?;
        Ok(Some(context.space.clone()))
    }

    /// Returns the number of sandboxes that are ready for a command.
    pub fn ready_sandboxes(&self) -> usize {
        self.context.space.ready_count()
    }

    /// Returns the stored bytes of an output of this session.
    ///
    /// # Errors
    /// The output cannot be read.
    pub fn read_output(&self, stream: &StreamEvidence) -> Result<Vec<u8>, EngineError> {
        Ok(self.context.outputs.read(stream)?)
    }
}

/// Returns an undeclared skill whose only step is the command.
fn skill_for_command(step: &PlannedStep) -> Result<PlannedSkill, EngineError> {
    let name = SkillName::new("exec").map_err(|error| EngineError::Internal(error.to_string()))?;
    Ok(PlannedSkill {
        name,
        description: String::new(),
        determinism: Determinism::D2,
        declared_tier: Tier::ONE,
        needs: vec![],
        caches: vec![],
        transparent_caches: Vec::new(),
        needs_paths: vec![],
        toolchains: Default::default(),
        platform: BTreeMap::new(),
        container: String::new(),
        steps: vec![step.clone()],
    })
}
