//! Predicts which steps a run would not execute, because a stored result holds. Prepares the tree as a run does, and
//! executes no step.

use std::path::Path;
use std::sync::Arc;

use proctor_core::model::enforcement::SandboxMode;
use proctor_core::model::names::ProfileName;
use proctor_core::model::plan::{PlannedSkill, PlannedStep};
use proctor_core::record::evidence::{ReuseSource, step_path};
use proctor_core::record::run_reuse::ReuseMode;
use proctor_core::reuse::{IDENTITY_PARTS, ObservedInputs, StoredResult};
use proctor_core::spec::ReuseSettings;
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

use super::resource_needs::{RunSpaceNeeds, disk_limit};
use super::stored_results::DISABLED_BY_OPERATOR;
use super::{ContextSettings, Engine};
use crate::error::EngineError;
use crate::run::request::{CacheMode, ChangeHandling, RunRequest, RunSource, SkillSelection, TraceSettings};
use crate::run::run_context::{ChangeMode, RunContext};
use crate::run::schedule::Schedule;
use crate::step::layer_stack::LayerStack;
use crate::step::layer_stack::ReusedFiles;
use crate::step::needed_paths::Preparation;
use crate::step::reuse::{NoResult, ReuseRequest, ReuseSearch};
use crate::step::reuse_prediction::{ReusePrediction, predict_reuse};

/// The prediction for a profile.
#[derive(Debug, Clone)]
pub struct ProfilePreview {
    /// How a run would reuse results.
    pub mode: ReuseMode,
    /// The reason if it would not reuse the results of steps.
    pub reason: Option<String>,
    /// The predictions for the steps.
    pub steps: Vec<StepPreview>,
}

/// The prediction for one step of a profile.
#[derive(Debug, Clone)]
pub struct StepPreview {
    /// The path of the step: `skill/step`.
    pub path: String,
    /// The prediction.
    pub reuse: ReusePreview,
    /// The observation that contradicts `per_file` of the step, as a phrase.
    pub note: Option<String>,
    /// The paths of earlier steps that would be executed. The prediction assumes that they leave no files in the tree.
    pub executed_before: Vec<String>,
}

/// The prediction whether a stored result would be used for a step.
#[derive(Debug, Clone)]
pub enum ReusePreview {
    /// The step would not be executed.
    Reused(StoredPreview),
    /// The step would be executed.
    Executed {
        /// The reason.
        reason: String,
        /// The parts of the step's identity, if no result is stored for it.
        identity: &'static [&'static str],
        /// The newest stored result, if there is one.
        newest: Option<StoredPreview>,
        /// The reason why the result of the last execution was not stored.
        not_stored: Option<String>,
    },
    /// The step would not be executed, because it has no file to check, or because a path that it needs is missing.
    NothingToCheck {
        /// The reason.
        reason: String,
    },
}

/// A stored result, for display.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StoredPreview {
    /// The source of the result.
    pub source: ReuseSource,
    /// Everything that the step read. If the result is usable, all of it is the same now.
    pub inputs: ObservedInputs,
    /// The paths that the step looked for although they are not inputs, as a phrase; `None` if there are none.
    pub inputs_note: Option<String>,
}

impl StoredPreview {
    fn new(result: &StoredResult) -> Self {
        Self { source: result.source(), inputs_note: result.evidence.inputs_note(), inputs: result.inputs.clone() }
    }
}

/// The state of the walk through the plan, for one skill.
struct SkillPreview {
    /// The files that reused steps would have left, oldest first.
    files: Vec<Arc<ReusedFiles>>,
    /// The steps that would be executed.
    executed: Vec<String>,
}

impl Engine {
    /// Predicts for each step of a profile whether a run of the worktree would use a stored result. Executes no step, but
    /// `/bin/true` on a view.
    ///
    /// # Errors
    /// Same as [`Engine::run`].
    pub async fn preview_reuse(&self, repo: &Path, profile: &ProfileName) -> Result<ProfilePreview, EngineError> {
        let (request, cancel) = (preview_request(repo, profile), CancellationToken::new());
        let tolerated = self.tolerated_controls(request.sandbox)?;
        let repository = self.open_repository(repo)?;
        let (source, _, plan) = self.prepare_tree_and_plan(&repository, &request, &tolerated, &cancel).await?;
        let needs = RunSpaceNeeds {
            disk: disk_limit(&plan),
            sandboxes: proctor_sandbox::SandboxReuse::Never,
            caches: self.ensure_cache_dir(&plan)?,
            space: None,
        };
        let parts = ContextSettings {
            changes: ChangeMode::AsPatch,
            caches: request.caches,
            redactor: self.redactor(None),
            files: None,
            reuse: Some(ReuseRequest { is_preview: true, ..ReuseRequest::new(&self.run_id()?, true) }),
        };
        // There are no events, because nothing runs.
        let (events, _) = mpsc::channel(1);
        let context = self.create_context(source, parts, needs, tolerated, events, cancel).await?;
        self.set_remote_executor(&context, &plan);
        self.provide_needed_paths(&context, &plan, request.max_tier, Preparation::Stored).await;
        let schedule = Schedule::for_plan(&plan);
        let mut previews = Vec::new();
        let mut done: Vec<Option<SkillPreview>> = plan.skills.iter().map(|_| None).collect();
        while let Some(index) = (0..done.len()).find(|index| {
            done[*index].is_none() && schedule.slots[*index].after.iter().all(|before| done[*before].is_some())
        }) {
            let seen = schedule.slots[index].sees.iter().filter_map(|seen| done[*seen].as_ref());
            let mut stack = LayerStack::new(Arc::clone(&context.tree.snapshot));
            let mut executed_before = Vec::new();
            for skill in seen {
                stack = skill.files.iter().fold(stack, |stack, files| stack.with_reused(Arc::clone(files)));
                executed_before.extend(skill.executed.iter().cloned());
            }
            let preview =
                preview_skill(&context, self.config.operator.reuse, &plan.skills[index], stack, executed_before);
            let (skill, steps) = preview.await;
            previews.extend(steps);
            done[index] = Some(skill);
        }
        let mut conditions = context.reuse_conditions(&plan);
        if conditions.off.is_none() {
            let (launcher, repo) = (Arc::clone(&self.launcher), repository.path().to_path_buf());
            let trial = tokio::task::spawn_blocking(move || proctor_sandbox::view_obstacle(&launcher, &repo));
            conditions.no_view =
                trial.await.map_err(|error| EngineError::Internal(format!("the trial of a view: {error}")))?;
        }
        let (mode, reason) = conditions.decide();
        Ok(ProfilePreview { mode, reason, steps: previews })
    }
}

async fn preview_skill(
    context: &Arc<RunContext>,
    settings: ReuseSettings,
    skill: &PlannedSkill,
    mut stack: LayerStack,
    mut executed_before: Vec<String>,
) -> (SkillPreview, Vec<StepPreview>) {
    let mut left = SkillPreview { files: Vec::new(), executed: Vec::new() };
    let mut previews = Vec::new();
    for step in &skill.steps {
        let path = step_path(&skill.name, &step.name);
        let prediction = predict_reuse(context, &stack, skill, step).await;
        if let Some(files) = files_of(&prediction, skill, step) {
            stack = stack.with_reused(Arc::clone(&files));
            left.files.push(files);
        }
        let note = prediction.note.clone();
        let reuse = describe(context, settings, prediction);
        let is_executed = matches!(reuse, ReusePreview::Executed { .. });
        previews.push(StepPreview { path: path.clone(), reuse, note, executed_before: executed_before.clone() });
        if is_executed {
            executed_before.push(path.clone());
            left.executed.push(path);
        }
    }
    (left, previews)
}

/// Returns the files that a reused step would have left.
fn files_of(prediction: &ReusePrediction, skill: &PlannedSkill, step: &PlannedStep) -> Option<Arc<ReusedFiles>> {
    let Ok(ReuseSearch::Found(result)) = &prediction.search else { return None };
    result.has_files.then(|| Arc::new(ReusedFiles::new(skill, step, result, false)))
}

fn describe(context: &RunContext, settings: ReuseSettings, prediction: ReusePrediction) -> ReusePreview {
    let reason = match prediction.search {
        Err(not_chosen) => return ReusePreview::NothingToCheck { reason: not_chosen.reason },
        Ok(ReuseSearch::Found(result)) => {
            return ReusePreview::Reused(StoredPreview::new(&result));
        }
        Ok(ReuseSearch::Nothing(_)) if !settings.enabled => {
            let reason = DISABLED_BY_OPERATOR.to_owned();
            return ReusePreview::Executed { reason, identity: &[], newest: None, not_stored: None };
        }
        Ok(ReuseSearch::Files(_)) => {
            let (checked, all) = prediction.checked_files;
            let reason = format!(
                "{checked} of its {all} files must be checked; the others have passed, and everything else that the step \
                 read is the same (`per_file`)"
            );
            return ReusePreview::Executed { reason, identity: &[], newest: None, not_stored: None };
        }
        Ok(ReuseSearch::Nothing(reason)) => reason,
    };
    let identity: &[&str] = if matches!(reason, NoResult::NotStored) { &IDENTITY_PARTS } else { &[] };
    let last = prediction.key.as_ref().zip(context.reuse.as_ref()).and_then(|(key, reuse)| {
        let last = reuse.last_results(key);
        last.inspect_err(|error| tracing::warn!(%error, "the stored results cannot be read")).ok()
    });
    let (newest, not_stored) = last.map_or((None, None), |last| (last.newest, last.not_stored));
    let newest = newest.map(|newest| StoredPreview::new(&newest));
    ReusePreview::Executed { reason: reason.to_string(), identity, newest, not_stored }
}

fn preview_request(repo: &Path, profile: &ProfileName) -> RunRequest {
    RunRequest {
        run_id: None,
        repo: repo.to_path_buf(),
        spec_dir: None,
        source: RunSource::Worktree,
        profile: profile.clone(),
        plan_sha256: None,
        changeset: None,
        max_tier: proctor_core::model::tier::Tier::TWO,
        sandbox: SandboxMode::Strict,
        fail_fast: false,
        changes: ChangeHandling::AsPatch,
        skills: SkillSelection::All,
        scope: Default::default(),
        // No cache is opened. A run with `--no-caches` would use no result of a skill with caches.
        caches: CacheMode::Persistent,
        reuses_steps: true,
        live: None,
        trace: TraceSettings::default(),
    }
}
