//! Runs the main loop: starts skills when they are ready, receives their results, and decides which skills no
//! longer run.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use proctor_core::decision::verdict::{InconclusiveDetail, InconclusiveReason};
use proctor_core::model::drift::display_path;
use proctor_core::model::event::RunEvent;
use proctor_core::model::names::SkillName;
use proctor_core::model::outcome::{Outcome, StartFault, Termination};
use proctor_core::model::plan::{Network, Plan, PlannedSkill};
use proctor_core::model::tier::{self, Tier};
use proctor_core::record::evidence::combined_outcome;
use proctor_snapshot::{LayerScan, conflicts};
use tokio::task::{self, JoinSet};

use crate::error::one_line;
use crate::run::evidence_builder::{self, describe_outcome};
use crate::run::run_context::RunContext;
use crate::run::schedule::Schedule;
use crate::step::layer_stack::{LayerStack, LayerStackError, StackPart};
use crate::step::reused_files;
use crate::step::skill_runner::{self, SkillRun};

/// The settings that decide which skills start.
#[derive(Debug, Clone)]
pub(crate) struct DispatchOptions {
    pub(crate) fail_fast: bool,
    pub(crate) max_tier: Tier,
    /// The skills that do not start because a tool is missing, with the reason.
    pub(crate) blocked: BTreeMap<SkillName, String>,
}

/// Maximum number of paths of a conflict that a message names.
const MAX_NAMED_PATHS: usize = 5;

/// One run of a plan's skills.
struct Dispatcher<'a> {
    context: &'a Arc<RunContext>,
    plan: &'a Plan,
    schedule: Schedule,
    options: DispatchOptions,
    finished: Vec<Option<SkillRun>>,
    started: Vec<bool>,
    running: JoinSet<SkillRun>,
    /// The skill that each task runs.
    task_skills: HashMap<task::Id, usize>,
}

/// The reason why a skill does not run.
struct SkillRefusal {
    reason: String,
    inconclusive_reason: Option<InconclusiveReason>,
}

/// Runs every skill of `plan` that may run. Returns one [`SkillRun`] for each skill, in the plan's order.
pub(crate) async fn run(context: &Arc<RunContext>, plan: &Plan, demands: DispatchOptions) -> Vec<SkillRun> {
    let count = plan.skills.len();
    context.ignored_content.get_or_init(|| Schedule::ignored_content(plan));
    let mut dispatcher = Dispatcher {
        context,
        plan,
        schedule: Schedule::for_plan(plan),
        options: demands,
        finished: (0..count).map(|_| None).collect(),
        started: vec![false; count],
        running: JoinSet::new(),
        task_skills: HashMap::new(),
    };
    while let Some(waiting) = dispatcher.finished.iter().position(Option::is_none) {
        let any_started = dispatcher.start_ready().await;
        match dispatcher.running.join_next_with_id().await {
            Some(Ok((id, run))) => dispatcher.record_run(dispatcher.task_skills[&id], run).await,
            Some(Err(error)) => {
                dispatcher.record_internal_error(dispatcher.task_skills[&error.id()], &error.to_string()).await;
            }
            None if any_started => {}
            // `resolve` refuses a plan with a cycle. If one gets here anyway, this keeps the loop from spinning.
            None => dispatcher.record_internal_error(waiting, "it waits for itself").await,
        }
    }
    dispatcher.mark_bystanders_inconclusive().await;
    dispatcher.finished.into_iter().flatten().collect()
}

/// Ends every skill of `plan` without running it.
pub(crate) async fn skip_all(context: &Arc<RunContext>, plan: &Plan, reason: &str) -> Vec<SkillRun> {
    let stack = LayerStack::new(Arc::clone(&context.tree.snapshot));
    let mut runs = Vec::new();
    for planned in &plan.skills {
        let run = skill_runner::skip(context, &stack, planned, reason);
        emit_finished(context, planned, &run).await;
        runs.push(run);
    }
    runs
}

impl Dispatcher<'_> {
    /// Starts or refuses every skill that is ready; `false` if no skill was ready.
    async fn start_ready(&mut self) -> bool {
        let mut any = false;
        for index in 0..self.plan.skills.len() {
            let slot = &self.schedule.slots[index];
            let ready = !self.started[index] && slot.after.iter().all(|before| self.finished[*before].is_some());
            if !ready || self.running.len() >= self.schedule.parallel {
                continue;
            }
            self.started[index] = true;
            any = true;
            match self.refusal_for(index) {
                Some(refusal) => self.refuse(index, refusal).await,
                None => self.start(index).await,
            }
        }
        any
    }

    async fn start(&mut self, index: usize) {
        match self.visible_stack(index).await {
            Ok(stack) => {
                let (context, planned) = (Arc::clone(self.context), self.plan.skills[index].clone());
                let task = self.running.spawn(async move { skill_runner::run(&context, stack, &planned).await });
                self.task_skills.insert(task.id(), index);
            }
            Err(error) => {
                let reason = format!("the layers that it needs cannot be stacked: {}", one_line(&error));
                self.refuse(index, SkillRefusal { reason, inconclusive_reason: Some(InconclusiveReason::Internal) })
                    .await;
            }
        }
    }

    /// Returns the snapshot with the layers that the skill sees.
    async fn visible_stack(&self, index: usize) -> Result<LayerStack, LayerStackError> {
        let mut stack = LayerStack::new(Arc::clone(&self.context.tree.snapshot));
        for left in self.visible_runs(index).flat_map(|run| &run.files) {
            stack = match left {
                StackPart::Reused(files) => stack.with_reused(Arc::clone(files)),
                StackPart::Layer(layer, stored_as) => {
                    reused_files::push_layer(self.context, &stack, Arc::clone(layer), stored_as.clone()).await?
                }
            };
        }
        Ok(stack)
    }

    fn visible_runs(&self, index: usize) -> impl Iterator<Item = &SkillRun> {
        self.schedule.slots[index].sees.iter().filter_map(|seen| self.finished[*seen].as_ref())
    }

    fn refusal_for(&self, index: usize) -> Option<SkillRefusal> {
        let planned = &self.plan.skills[index];
        let refused = |reason: String| Some(SkillRefusal { reason, inconclusive_reason: None });
        if self.context.cancel.is_cancelled() {
            return refused("the run was cancelled".to_owned());
        }
        let wanted = needed_tier(planned);
        if wanted > self.options.max_tier {
            let reason = format!(
                "it is of tier {wanted}, but the maximum tier of this run is {}; use `--max-tier {wanted}` to run it",
                self.options.max_tier
            );
            return Some(SkillRefusal { reason, inconclusive_reason: Some(InconclusiveReason::TierAboveLimit) });
        }
        // The run has reported these reasons already.
        let unavailable = self.context.needed_paths.problem_of(planned);
        if let Some(reason) = unavailable.or(self.options.blocked.get(&planned.name).map(String::as_str)) {
            return refused(reason.to_owned());
        }
        if self.options.fail_fast
            && let Some((name, outcome)) = self.first_ended_with(|outcome| !outcome.holds())
        {
            return refused(format!("`{name}` {}, and `--fail-fast` was given", describe_outcome(outcome)));
        }
        if let Some((name, outcome)) = self.failed_need(index) {
            return refused(format!("it needs `{name}`, which {}", describe_outcome(outcome)));
        }
        self.conflict(index)
            .map(|reason| SkillRefusal { reason, inconclusive_reason: Some(InconclusiveReason::LayerConflict) })
    }

    fn first_ended_with(&self, wanted: impl Fn(Outcome) -> bool) -> Option<(String, Outcome)> {
        let ended = self.plan.skills.iter().zip(&self.finished).filter_map(|(planned, run)| {
            let outcome = run.as_ref()?.outcome();
            wanted(outcome).then(|| (planned.name.to_string(), outcome))
        });
        ended.into_iter().next()
    }

    fn failed_need(&self, index: usize) -> Option<(String, Outcome)> {
        let slot = &self.schedule.slots[index];
        slot.sees.iter().filter(|_| slot.requires_pass).find_map(|seen| {
            let outcome = self.finished[*seen].as_ref()?.outcome();
            (!outcome.holds()).then(|| (self.plan.skills[*seen].name.to_string(), outcome))
        })
    }

    /// Returns a message if two skills that this one sees, and that do not see each other, changed the same path:
    /// the later layer would win completely, and could restore what the other skill deleted.
    fn conflict(&self, index: usize) -> Option<String> {
        self.schedule.unrelated_pairs(index).into_iter().find_map(|(a, b)| {
            let scans = |of: usize| -> Vec<&LayerScan> {
                self.finished[of].iter().flat_map(|run| &run.layers).map(|layer| &layer.scan).collect()
            };
            let paths = conflicts(&scans(a), &scans(b));
            (!paths.is_empty()).then(|| self.conflict_message((a, b), &paths))
        })
    }

    fn conflict_message(&self, (a, b): (usize, usize), paths: &[Vec<u8>]) -> String {
        let named: Vec<String> =
            paths.iter().take(MAX_NAMED_PATHS).map(|path| format!("`{}`", display_path(path))).collect();
        let more = paths.len().saturating_sub(MAX_NAMED_PATHS);
        let rest = if more > 0 { format!(" and {more} more") } else { String::new() };
        let (first, second) = (&self.plan.skills[a].name, &self.plan.skills[b].name);
        format!(
            "it needs `{first}` and `{second}`, which both changed {}{rest}; make one of them need the other, or write \
                to different paths",
            named.join(", ")
        )
    }

    /// Makes skills inconclusive that may have seen the changes that another skill applied to the worktree, if neither
    /// sees the other's layers. The result of such a skill depends on timing, and belongs to a tree that is not
    /// recorded.
    async fn mark_bystanders_inconclusive(&mut self) {
        for (writer, bystander) in self.bystanders() {
            let (by, name) = (&self.plan.skills[writer].name, &self.plan.skills[bystander].name);
            let message = format!(
                "skill `{name}` may have seen the changes that `{by}` applied to the worktree; make one of them need the other"
            );
            let doubt = InconclusiveReason::TreeChanged;
            self.context.emit(RunEvent::Doubted { doubt, message: message.clone() }).await;
            if let Some(run) = &mut self.finished[bystander] {
                run.mark_inconclusive();
                run.inconclusive_reasons.push(doubt.with_message(message));
            }
        }
    }

    /// Returns each skill that applied changes, paired with each skill that ran and is not ordered relative to it.
    fn bystanders(&self) -> Vec<(usize, usize)> {
        let which = |wanted: fn(&SkillRun) -> bool| -> Vec<usize> {
            let ended = self.finished.iter().enumerate();
            ended.filter(|(_, run)| run.as_ref().is_some_and(wanted)).map(|(place, _)| place).collect()
        };
        let (writers, runners) = (which(|run| !run.applied.is_empty()), which(|run| run.has_run));
        let pairs = writers.into_iter().flat_map(|writer| runners.iter().map(move |runner| (writer, *runner)));
        pairs.filter(|(writer, runner)| writer != runner && !self.schedule.are_related(*writer, *runner)).collect()
    }

    async fn refuse(&mut self, index: usize, refusal: SkillRefusal) {
        let planned = &self.plan.skills[index];
        let stack = LayerStack::new(Arc::clone(&self.context.tree.snapshot));
        let mut run = skill_runner::skip(self.context, &stack, planned, &refusal.reason);
        if let Some(doubt) = refusal.inconclusive_reason {
            run.inconclusive_reasons
                .push(doubt.with_message(format!("skill `{}` did not run: {}", planned.name, refusal.reason)));
        }
        self.record_run(index, run).await;
    }

    async fn record_run(&mut self, index: usize, run: SkillRun) {
        emit_finished(self.context, &self.plan.skills[index], &run).await;
        self.finished[index] = Some(run);
    }

    /// Records an internal error for a skill whose task panicked or cannot start, so that it does not count as a
    /// result.
    async fn record_internal_error(&mut self, index: usize, error: &str) {
        self.started[index] = true;
        let planned = &self.plan.skills[index];
        let stack = LayerStack::new(Arc::clone(&self.context.tree.snapshot));
        let mut run = skill_runner::skip(self.context, &stack, planned, "proctor itself failed");
        let reason = || Termination::NotStarted { reason: error.to_owned(), fault: StartFault::Internal };
        let record = |step| evidence_builder::not_run_evidence(self.context.redactor(), step, reason());
        run.steps = planned.steps.iter().map(record).collect();
        run.inconclusive_reasons.push(
            InconclusiveReason::Internal.with_message(format!("skill `{}`: {error}; please report this", planned.name)),
        );
        self.record_run(index, run).await;
    }
}

/// Returns the tier that is needed to run the skill, regardless of its result.
pub(crate) fn needed_tier(skill: &PlannedSkill) -> Tier {
    let allows_network = skill.steps.iter().any(|step| step.network == Network::Allow) || skill.prepares_with_network();
    if allows_network { skill.declared_tier.max(Tier::TWO) } else { skill.declared_tier }
}

async fn emit_finished(context: &RunContext, planned: &PlannedSkill, run: &SkillRun) {
    for InconclusiveDetail { doubt, message } in &run.inconclusive_reasons {
        context.emit(RunEvent::Doubted { doubt: *doubt, message: message.clone() }).await;
    }
    let event = RunEvent::SkillFinished {
        skill: planned.name.clone(),
        outcome: run.outcome(),
        tier: tier::effective_tier(planned.declared_tier, &evidence_builder::skill_tier_reasons(planned, &run.steps)),
        reason: run.reason.clone(),
    };
    context.emit(event).await;
}

impl SkillRun {
    pub(crate) fn outcome(&self) -> Outcome {
        combined_outcome(self.steps.iter().map(|step| &step.outcome))
    }
}
