//! Runs the main loop: starts skills when they are ready, receives their results, and decides which skills no
//! longer run.

use std::collections::HashMap;
use std::sync::Arc;

use proctor_core::drift::display_path;
use proctor_core::event::RunEvent;
use proctor_core::evidence::fold_steps;
use proctor_core::outcome::{Outcome, StartFault, Termination};
use proctor_core::plan::{Network, Plan, PlannedSkill};
use proctor_core::tier::{self, Tier};
use proctor_core::verdict::Doubt;
use proctor_snapshot::{LayerScan, conflicts};
use tokio::task::{self, JoinSet};

use crate::context::Context;
use crate::record;
use crate::schedule::Schedule;
use crate::skill::{self, SkillRun, phrase};
use crate::stack::Stack;

/// The caller's settings that decide which skills start.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Demands {
    pub(crate) fail_fast: bool,
    pub(crate) max_tier: Tier,
}

/// Maximum number of paths of a conflict that a message names.
const NAMED_PATHS: usize = 5;

/// One run of a plan's skills.
struct Dispatcher<'a> {
    context: &'a Arc<Context>,
    plan: &'a Plan,
    schedule: Schedule,
    demands: Demands,
    done: Vec<Option<SkillRun>>,
    started: Vec<bool>,
    running: JoinSet<SkillRun>,
    /// The skill that each task runs.
    places: HashMap<task::Id, usize>,
}

/// Why a skill does not run.
struct Refusal {
    reason: String,
    doubt: Option<Doubt>,
}

/// Runs every skill of `plan` that may run. Returns one [`SkillRun`] for each skill, in the plan's order.
pub(crate) async fn run(context: &Arc<Context>, plan: &Plan, demands: Demands) -> Vec<SkillRun> {
    let count = plan.skills.len();
    context.ignored_content.get_or_init(|| Schedule::ignored_content(plan));
    let mut dispatcher = Dispatcher {
        context,
        plan,
        schedule: Schedule::of(plan),
        demands,
        done: (0..count).map(|_| None).collect(),
        started: vec![false; count],
        running: JoinSet::new(),
        places: HashMap::new(),
    };
    while let Some(waiting) = dispatcher.done.iter().position(Option::is_none) {
        let any_started = dispatcher.start_ready().await;
        match dispatcher.running.join_next_with_id().await {
            Some(Ok((id, run))) => dispatcher.finish(dispatcher.places[&id], run).await,
            Some(Err(error)) => dispatcher.finish_broken(dispatcher.places[&error.id()], &error.to_string()).await,
            None if any_started => {}
            // `resolve` refuses a plan with a cycle. If one gets here anyway, this keeps the loop from spinning.
            None => dispatcher.finish_broken(waiting, "it waits for itself").await,
        }
    }
    dispatcher.doubt_bystanders().await;
    dispatcher.done.into_iter().flatten().collect()
}

/// Ends every skill of `plan` without running it.
pub(crate) async fn run_none(context: &Arc<Context>, plan: &Plan, reason: &str) -> Vec<SkillRun> {
    let stack = Stack::new(Arc::clone(&context.tree.snapshot));
    let mut runs = Vec::new();
    for planned in &plan.skills {
        let run = skill::not_run(context, &stack, planned, reason);
        announce(context, planned, &run).await;
        runs.push(run);
    }
    runs
}

impl Dispatcher<'_> {
    /// Starts or refuses every skill that is ready; `false` if no skill was ready.
    async fn start_ready(&mut self) -> bool {
        let mut any = false;
        for place in 0..self.plan.skills.len() {
            let slot = &self.schedule.slots[place];
            let ready = !self.started[place] && slot.after.iter().all(|before| self.done[*before].is_some());
            if !ready || self.running.len() >= self.schedule.parallel {
                continue;
            }
            self.started[place] = true;
            any = true;
            match self.refusal(place) {
                Some(refusal) => self.refuse(place, refusal).await,
                None => self.start(place).await,
            }
        }
        any
    }

    async fn start(&mut self, place: usize) {
        match self.stack(place).await {
            Ok(stack) => {
                let (context, planned) = (Arc::clone(self.context), self.plan.skills[place].clone());
                let task = self.running.spawn(async move { skill::run(&context, stack, &planned).await });
                self.places.insert(task.id(), place);
            }
            Err(message) => {
                let reason = format!("the layers that it needs cannot be stacked: {message}");
                self.refuse(place, Refusal { reason, doubt: Some(Doubt::Internal) }).await;
            }
        }
    }

    /// Returns the snapshot with the layers that the skill sees.
    async fn stack(&self, place: usize) -> Result<Stack, String> {
        let mut stack = Stack::new(Arc::clone(&self.context.tree.snapshot));
        for layer in self.seen(place).flat_map(|run| &run.layers) {
            stack = skill::stacked(self.context, &stack, Arc::clone(layer)).await?;
        }
        Ok(stack)
    }

    fn seen(&self, place: usize) -> impl Iterator<Item = &SkillRun> {
        self.schedule.slots[place].sees.iter().filter_map(|seen| self.done[*seen].as_ref())
    }

    fn refusal(&self, place: usize) -> Option<Refusal> {
        let planned = &self.plan.skills[place];
        let because = |reason: String| Some(Refusal { reason, doubt: None });
        if self.context.cancel.is_cancelled() {
            return because("the run was cancelled".to_owned());
        }
        let wanted = needed_tier(planned);
        if wanted > self.demands.max_tier {
            let reason = format!(
                "it is of tier {wanted}, and this run may use up to tier {}; say `--max-tier {wanted}` to run it",
                self.demands.max_tier
            );
            return Some(Refusal { reason, doubt: Some(Doubt::TierAboveLimit) });
        }
        if self.demands.fail_fast
            && let Some((name, outcome)) = self.first_that(|outcome| outcome != Outcome::Passed)
        {
            return because(format!("`{name}` {}, and `--fail-fast` was asked for", phrase(outcome)));
        }
        if let Some((name, outcome)) = self.failed_need(place) {
            return because(format!("it needs `{name}`, which {}", phrase(outcome)));
        }
        self.conflict(place).map(|reason| Refusal { reason, doubt: Some(Doubt::LayerConflict) })
    }

    fn first_that(&self, wanted: impl Fn(Outcome) -> bool) -> Option<(String, Outcome)> {
        let ended = self.plan.skills.iter().zip(&self.done).filter_map(|(planned, run)| {
            let outcome = run.as_ref()?.outcome();
            wanted(outcome).then(|| (planned.name.to_string(), outcome))
        });
        ended.into_iter().next()
    }

    fn failed_need(&self, place: usize) -> Option<(String, Outcome)> {
        let slot = &self.schedule.slots[place];
        slot.sees.iter().filter(|_| slot.demands_pass).find_map(|seen| {
            let outcome = self.done[*seen].as_ref()?.outcome();
            (outcome != Outcome::Passed).then(|| (self.plan.skills[*seen].name.to_string(), outcome))
        })
    }

    /// Returns a message if two skills that this one sees, and that do not see each other, changed the same path:
    /// the later layer would win completely, and could restore what the other skill deleted.
    fn conflict(&self, place: usize) -> Option<String> {
        self.schedule.unrelated(place).into_iter().find_map(|(a, b)| {
            let scans = |of: usize| -> Vec<&LayerScan> {
                self.done[of].iter().flat_map(|run| &run.layers).map(|layer| &layer.scan).collect()
            };
            let paths = conflicts(&scans(a), &scans(b));
            (!paths.is_empty()).then(|| self.conflict_message((a, b), &paths))
        })
    }

    fn conflict_message(&self, (a, b): (usize, usize), paths: &[Vec<u8>]) -> String {
        let named: Vec<String> =
            paths.iter().take(NAMED_PATHS).map(|path| format!("`{}`", display_path(path))).collect();
        let more = paths.len().saturating_sub(NAMED_PATHS);
        let rest = if more > 0 { format!(" and {more} more") } else { String::new() };
        let (first, second) = (&self.plan.skills[a].name, &self.plan.skills[b].name);
        format!(
            "it needs `{first}` and `{second}`, which both touched {}{rest}; let one of them need the other, or write elsewhere",
            named.join(", ")
        )
    }

    /// Adds a doubt to skills that may have seen the changes that another skill applied to the worktree, if neither
    /// sees the other's layers. Such a skill's result applies to a tree that is not recorded, and depends on
    /// timing.
    async fn doubt_bystanders(&mut self) {
        for (writer, bystander) in self.bystanders() {
            let (by, name) = (&self.plan.skills[writer].name, &self.plan.skills[bystander].name);
            let message = format!(
                "skill `{name}` may have seen what `{by}` applied to the worktree; let one of them need the other"
            );
            let doubt = Doubt::TreeChanged;
            self.context.emit(RunEvent::Doubted { doubt, message: message.clone() }).await;
            if let Some(run) = &mut self.done[bystander] {
                run.take_back();
                run.doubts.push((doubt, message));
            }
        }
    }

    /// Returns each skill that applied changes, paired with each skill that ran and is not ordered relative to it.
    fn bystanders(&self) -> Vec<(usize, usize)> {
        let which = |wanted: fn(&SkillRun) -> bool| -> Vec<usize> {
            let ended = self.done.iter().enumerate();
            ended.filter(|(_, run)| run.as_ref().is_some_and(wanted)).map(|(place, _)| place).collect()
        };
        let (writers, runners) = (which(|run| !run.applied.is_empty()), which(|run| run.has_run));
        let pairs = writers.into_iter().flat_map(|writer| runners.iter().map(move |runner| (writer, *runner)));
        pairs.filter(|(writer, runner)| writer != runner && !self.schedule.related(*writer, *runner)).collect()
    }

    async fn refuse(&mut self, place: usize, refusal: Refusal) {
        let planned = &self.plan.skills[place];
        let stack = Stack::new(Arc::clone(&self.context.tree.snapshot));
        let mut run = skill::not_run(self.context, &stack, planned, &refusal.reason);
        if let Some(doubt) = refusal.doubt {
            run.doubts.push((doubt, format!("skill `{}` did not run: {}", planned.name, refusal.reason)));
        }
        self.finish(place, run).await;
    }

    async fn finish(&mut self, place: usize, run: SkillRun) {
        announce(self.context, &self.plan.skills[place], &run).await;
        self.done[place] = Some(run);
    }

    /// Records an internal error for a skill whose task panicked or cannot start, so that it does not count as a
    /// result.
    async fn finish_broken(&mut self, place: usize, error: &str) {
        self.started[place] = true;
        let planned = &self.plan.skills[place];
        let stack = Stack::new(Arc::clone(&self.context.tree.snapshot));
        let mut run = skill::not_run(self.context, &stack, planned, "proctor itself failed");
        let reason = || Termination::NotStarted { reason: error.to_owned(), fault: StartFault::Internal };
        run.steps = planned.steps.iter().map(|step| record::not_run(step, reason())).collect();
        run.doubts.push((Doubt::Internal, format!("skill `{}`: {error}; please report this", planned.name)));
        self.finish(place, run).await;
    }
}

/// Returns the tier that is needed to run the skill, regardless of its result.
fn needed_tier(skill: &PlannedSkill) -> Tier {
    let allows_network = skill.steps.iter().any(|step| step.network == Network::Allow);
    if allows_network { skill.declared_tier.max(Tier::TWO) } else { skill.declared_tier }
}

async fn announce(context: &Context, planned: &PlannedSkill, run: &SkillRun) {
    for (doubt, message) in &run.doubts {
        context.emit(RunEvent::Doubted { doubt: *doubt, message: message.clone() }).await;
    }
    let event = RunEvent::SkillFinished {
        skill: planned.name.clone(),
        outcome: run.outcome(),
        tier: tier::effective(planned.declared_tier, &record::tier_reasons(&run.steps)),
        reason: run.reason.clone(),
    };
    context.emit(event).await;
}

impl SkillRun {
    pub(crate) fn outcome(&self) -> Outcome {
        fold_steps(self.steps.iter().map(|step| &step.outcome))
    }
}
