//! Commands that run by themselves, one after the other or side by side, on one snapshot of a
//! tree. Each is a step as any other (layer, attempts, seal, drift) and sees the bare tree; what
//! it wrote is judged and then thrown away. Nothing is recorded but its output.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use proctor_core::evidence::StreamEvidence;
use proctor_core::names::SkillName;
use proctor_core::plan::{Determinism, PlannedSkill, PlannedStep};
use proctor_core::tier::{self, Tier};
use proctor_core::verdict::{self, Doubt};
use proctor_sandbox::RunSpace;
use tokio::sync::Mutex;
use tokio::task::JoinSet;

use crate::context::Context;
use crate::error::{EngineError, one_line};
use crate::request::StepReport;
use crate::stack::{Stack, Stacked};
use crate::{record, step};

/// One tree with a place for layers, in which any number of commands can run.
///
/// The snapshot is taken when the session is made: whoever edits the tree afterwards makes a new
/// session. The place for layers, and the namespaces with it, goes when the session is dropped.
pub struct Session {
    context: Arc<Context>,
    stack: Stack,
    /// A command wrote to the worktree, so that the snapshot is of the past.
    spent: AtomicBool,
    /// Layers that are being freed.
    freeing: Mutex<JoinSet<()>>,
}

/// How many layers are freed at a time.
const MOST_FREED: usize = 8;

impl Session {
    pub(crate) fn new(context: Arc<Context>) -> Self {
        let stack = Stack::new(Arc::clone(&context.tree.snapshot));
        Self { context, stack, spent: AtomicBool::new(false), freeing: Mutex::default() }
    }

    /// Runs one command exactly as a step would be run, on the tree as it is. Its layer is freed
    /// meanwhile or soon after; no more than a few wait for that.
    ///
    /// # Errors
    /// An earlier command (`read_only: off`) changed the tree.
    pub async fn run(&self, step: &PlannedStep) -> Result<StepReport, EngineError> {
        let (report, layer) = self.run_keeping(step).await?;
        self.free(layer).await;
        Ok(report)
    }

    /// The same, whose layer is the caller's to free by [`discard`](step::discard): that takes processor time which an
    /// answer may need.
    pub(crate) async fn run_keeping(
        &self,
        step: &PlannedStep,
    ) -> Result<(StepReport, Option<Arc<Stacked>>), EngineError> {
        if self.spent.load(Ordering::Acquire) {
            return Err(EngineError::SessionSpent(self.context.tree.repository.path().to_path_buf()));
        }
        let skill = skill_of(step)?;
        let run = step::run(&self.context, &self.stack, &skill, step).await;
        if !run.applied.is_empty() {
            self.spent.store(true, Ordering::Release);
        }
        let mut doubts = run.doubts;
        if self.context.cancel.is_cancelled() {
            doubts.push((Doubt::Interrupted, "the command was interrupted".to_owned()));
        }
        let facts = verdict::Facts {
            outcomes: vec![run.evidence.outcome],
            doubts: doubts.iter().map(|(doubt, _)| *doubt).collect(),
        };
        let (verdict, exit_code) = (verdict::fold(&facts), verdict::exit_code(&facts));
        let mut evidence = run.evidence;
        self.context.redactor().clean_step(&mut evidence);
        doubts.iter_mut().for_each(|(_, message)| self.context.redactor().clean(message));
        let tier_reasons = record::tier_reasons([&evidence]);
        let tier = tier::effective(skill.declared_tier, &tier_reasons);
        Ok((StepReport { evidence, verdict, exit_code, tier, tier_reasons, doubts }, run.layer))
    }

    /// Frees a layer without waiting for it, unless too many wait already.
    async fn free(&self, layer: Option<Arc<Stacked>>) {
        let mut freeing = self.freeing.lock().await;
        while freeing.try_join_next().is_some() {}
        if freeing.len() >= MOST_FREED {
            freeing.join_next().await;
        }
        freeing.spawn(step::discard(layer));
    }

    /// Has up to `wanted` sandboxes wait for commands like `step`, eight at most: such a command
    /// then skips the set-up. Each serves one; nothing refills them but another call. Returns when
    /// they are started, and [`ready`](Self::ready) tells when they are there.
    ///
    /// # Errors
    /// No sandbox can be had.
    pub async fn warm(&self, step: &PlannedStep, wanted: usize) -> Result<(), EngineError> {
        let (policy, _) =
            self.context.policy(&skill_of(step)?, step).map_err(|fault| EngineError::Internal(one_line(&fault)))?;
        let (context, stack) = (Arc::clone(&self.context), self.stack.clone());
        let work = tokio::task::spawn_blocking(move || {
            let facts = &context.tree.repository.facts;
            context.launcher.warm(&context.space, &stack.lowers(), facts, &policy, wanted)
        });
        let warmed = work.await.map_err(|error| EngineError::Internal(format!("warming ended badly: {error}")))?;
        Ok(warmed?)
    }

    /// Has a new sandbox wait in the place of this session for one command like `step`, and answers the place; `None`
    /// where something of a command is left there. Blocks.
    ///
    /// # Errors
    /// No sandbox can be had.
    pub(crate) fn prepare_ahead(&self, step: &PlannedStep) -> Result<Option<RunSpace>, EngineError> {
        let context = &self.context;
        if !context.space.is_in_memory() || !context.space.is_unused() {
            return Ok(None);
        }
        let policy = context.policy(&skill_of(step)?, step);
        let (policy, _) = policy.map_err(|fault| EngineError::Internal(fault.to_string()))?;
        context.launcher.prepare_ahead(&context.space, &context.tree.repository.facts, &policy)?;
        Ok(Some(context.space.clone()))
    }

    /// How many sandboxes wait for a command and are ready for it.
    pub fn ready(&self) -> usize {
        self.context.space.ready()
    }

    /// What is kept of an output of this session.
    ///
    /// # Errors
    /// It cannot be read.
    pub fn kept(&self, stream: &StreamEvidence) -> Result<Vec<u8>, EngineError> {
        Ok(self.context.outputs.read(stream)?)
    }
}

/// A command runs as the only step of a skill that nobody declared.
fn skill_of(step: &PlannedStep) -> Result<PlannedSkill, EngineError> {
    let name = SkillName::new("exec").map_err(|error| EngineError::Internal(error.to_string()))?;
    Ok(PlannedSkill {
        name,
        description: String::new(),
        determinism: Determinism::D2,
        declared_tier: Tier::ONE,
        needs: vec![],
        caches: vec![],
        platform: BTreeMap::new(),
        container: String::new(),
        steps: vec![step.clone()],
    })
}
