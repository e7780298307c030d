//! Runs toolchain checks. Each check runs like a step on the unchanged tree, in a layer that no step sees. If a
//! check fails, the skills that use the toolchain do not start.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

use proctor_core::decision::verdict::{InconclusiveDetail, InconclusiveReason};
use proctor_core::model::event::RunEvent;
use proctor_core::model::leak::LeakedProcesses;
use proctor_core::model::names::SkillName;
use proctor_core::model::outcome::{Outcome, StartFault, Termination};
use proctor_core::model::plan::{Argv, Determinism, NeededPath, Plan, PlannedCheck, PlannedSkill, VersionDemand};
use proctor_core::model::tier::Tier;
use proctor_core::record::evidence::{CheckEvidence, HiddenProgram};
use proctor_sandbox::{ToolKind, is_hidden};

use crate::host::hidden_programs::HiddenProgramSearch;
use crate::run::evidence_builder;
use crate::run::run_context::RunContext;
use crate::step::layer_stack::LayerStack;
use crate::step::reusable_step;
use crate::step::toolchain_version;

/// The skills that may not start.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum BlockedSkills {
    /// No skill may start.
    All,
    /// These skills may not start, for these reasons.
    Some(BTreeMap<SkillName, String>),
}

/// Runs the checks of `plan` in order, up to the first that is cancelled. Returns their evidence, the skills that may
/// not start, and the reasons why the run is inconclusive.
pub(crate) async fn run_checks(
    context: &Arc<RunContext>,
    plan: &Plan,
) -> (Vec<CheckEvidence>, BlockedSkills, Vec<InconclusiveDetail>) {
    let stack = LayerStack::new(Arc::clone(&context.tree.snapshot));
    let mut checks = Vec::new();
    let mut doubts = Vec::new();
    let needed = all_needed_paths(plan);
    for planned in &plan.toolchain {
        let evidence = if context.cancel.is_cancelled() {
            unsatisfied_check(planned, evidence_builder::cancelled_evidence(context.redactor(), &planned.run))
        } else if context.needed_paths.lacks_program(&planned.run.cmd) {
            let reason = "its program is in a path that is not available";
            unsatisfied_check(planned, evidence_builder::skipped_evidence(context.redactor(), &planned.run, reason))
        } else {
            run_check(context, &stack, planned, (plan, &needed), &mut doubts).await
        };
        // A check that was not reached has a reason that is reported elsewhere.
        if !evidence.satisfied && !matches!(evidence.step.outcome, Outcome::Cancelled | Outcome::Skipped) {
            doubts.push(InconclusiveReason::Toolchain.with_message(failure_message(&evidence, plan)));
        }
        context.emit(RunEvent::CheckFinished { check: evidence.clone() }).await;
        checks.push(evidence);
    }
    // Skills may have the names of toolchains, and get separate layers above the needed paths.
    context.needed_paths.release_mounts(&context.space);
    let blocked = blocked_skills(plan, &checks, &doubts);
    (checks, blocked, doubts)
}

/// Returns the paths that any skill needs, each once.
fn all_needed_paths(plan: &Plan) -> Vec<NeededPath> {
    let mut all: Vec<NeededPath> = Vec::new();
    for needed in plan.skills.iter().flat_map(|skill| &skill.needs_paths) {
        if all.iter().all(|known| known.path != needed.path) {
            all.push(needed.clone());
        }
    }
    all
}

/// Returns the skills that may not start: those that use a toolchain with a failed check; all of them, if a check could
/// not be judged.
fn blocked_skills(plan: &Plan, checks: &[CheckEvidence], doubts: &[InconclusiveDetail]) -> BlockedSkills {
    let failed: Vec<&CheckEvidence> = checks.iter().filter(|check| !check.satisfied).collect();
    let is_judged = doubts.iter().all(|detail| detail.doubt == InconclusiveReason::Toolchain);
    let is_cancelled = failed.iter().any(|check| check.step.outcome == Outcome::Cancelled);
    if !is_judged || is_cancelled {
        return BlockedSkills::All;
    }
    let reason = |skill: &PlannedSkill| {
        let check = failed.iter().find(|check| skill.toolchains.includes(&check.toolchain))?;
        Some((skill.name.clone(), refusal_reason(check)))
    };
    let blocked: BTreeMap<SkillName, String> = plan.skills.iter().filter_map(reason).collect();
    if blocked.len() == plan.skills.len() && !blocked.is_empty() {
        return BlockedSkills::All;
    }
    BlockedSkills::Some(blocked)
}

fn refusal_reason(check: &CheckEvidence) -> String {
    match &check.step.termination {
        Termination::NotStarted { fault: StartFault::ProgramMissing, .. } => {
            format!("missing tool: {}", check.toolchain)
        }
        _ => format!("the check of the toolchain `{}` failed", check.toolchain),
    }
}

async fn run_check(
    context: &Arc<RunContext>,
    stack: &LayerStack,
    planned: &PlannedCheck,
    (plan, needed): (&Plan, &[NeededPath]),
    doubts: &mut Vec<InconclusiveDetail>,
) -> CheckEvidence {
    let skill = match SkillName::new(planned.toolchain.as_str()) {
        Ok(name) => skill_for_check(name, planned, (plan, needed)),
        Err(error) => {
            doubts.push(InconclusiveReason::Internal.with_message(error.to_string()));
            return unsatisfied_check(
                planned,
                evidence_builder::skipped_evidence(
                    context.redactor(),
                    &planned.run,
                    "its toolchain has no usable name",
                ),
            );
        }
    };
    let run = reusable_step::run(context, stack, &skill, &planned.run).await;
    doubts.extend(run.inconclusive_reasons);
    let reading =
        toolchain_version::check_version(&planned.version, &run.evidence.stdout.preview, &run.evidence.stderr.preview);
    let satisfied = reading.satisfied && run.evidence.outcome == Outcome::Passed;
    // The tools of a worker are not those of this machine.
    let is_own = run.evidence.executor.is_none();
    let hidden_program = if is_own { shadowed_program(context, &planned.run.cmd) } else { None };
    CheckEvidence {
        toolchain: planned.toolchain.clone(),
        demand: planned.version.clone(),
        version_read: reading.version,
        satisfied,
        hidden_program,
        step: run.evidence,
    }
}

/// Returns the program that the caller finds under the name of a command's program, if steps run another one.
fn shadowed_program(context: &RunContext, cmd: &Argv) -> Option<HiddenProgram> {
    let (view, host, repo) = (&context.host_view, context.launcher.host(), context.tree.seen_at.as_path());
    let is_seen = |path: &Path| {
        let mut shown = view.tools.iter().filter(|tool| tool.kind != ToolKind::Masked);
        path.starts_with(repo) || shown.any(|tool| path.starts_with(&tool.at)) || !is_hidden(path, host, &view.hidden)
    };
    HiddenProgramSearch { inputs: &view.environment_inputs, reader: view.reader }.shadowed(cmd, repo, &is_seen)
}

fn unsatisfied_check(planned: &PlannedCheck, step: proctor_core::record::evidence::StepEvidence) -> CheckEvidence {
    let (toolchain, demand) = (planned.toolchain.clone(), planned.version.clone());
    CheckEvidence { toolchain, demand, version_read: None, satisfied: false, hidden_program: None, step }
}

/// Returns an undeclared skill whose only step is the check. On a cluster, it runs on a worker like those of the first skill
/// that uses the toolchain.
fn skill_for_check(name: SkillName, planned: &PlannedCheck, (plan, needed): (&Plan, &[NeededPath])) -> PlannedSkill {
    let user = plan.skills.iter().find(|skill| skill.toolchains.includes(&planned.toolchain));
    PlannedSkill {
        name,
        description: String::new(),
        // The spec does not declare that the check depends on its files alone, so its result is not reused.
        determinism: Determinism::D2,
        declared_tier: Tier::ONE,
        needs: vec![],
        caches: vec![],
        transparent_caches: Vec::new(),
        needs_paths: needed.to_vec(),
        toolchains: Default::default(),
        platform: user.map(|skill| skill.platform.clone()).unwrap_or_default(),
        container: user.map(|skill| skill.container.clone()).unwrap_or_default(),
        steps: vec![planned.run.clone()],
    }
}

fn failure_message(check: &CheckEvidence, plan: &Plan) -> String {
    let command = &check.step.planned.cmd;
    let problem = match (&check.step.outcome, &check.demand, &check.version_read) {
        (Outcome::Passed, VersionDemand::Range { range }, Some(version)) => {
            let pre = if version.contains('-') { " (a pre-release satisfies only a range that names one)" } else { "" };
            format!("`{command}` reports version {version}, but `{range}` is required{pre}")
        }
        (Outcome::Passed, VersionDemand::Range { range }, None) => {
            format!("`{command}` reports no version, but `{range}` is required")
        }
        (Outcome::Failed, ..) if check.step.forbidden_leak().is_some() => {
            let leaked = check.step.forbidden_leak().map(LeakedProcesses::phrase).unwrap_or_default();
            format!("`{command}` {leaked} (leaks: fail)")
        }
        (Outcome::Drifted, ..) => {
            format!("`{command}` changed {}, which it must not change", changed_paths(check))
        }
        _ => match &check.step.termination {
            Termination::NotStarted { reason, .. } => format!("`{command}` did not start: {reason}"),
            Termination::Exited { code } => format!("`{command}` ended with exit code {code}"),
            Termination::TimedOut { .. } => format!("`{command}` ran out of time"),
            _ => format!("`{command}` did not pass"),
        },
    };
    let is_used_by_all = plan.skills.iter().all(|skill| skill.toolchains.includes(&check.toolchain));
    let effect = if is_used_by_all { "no skill was started" } else { "the skills that use it were not started" };
    format!("toolchain `{}`: {problem}; {effect}", check.toolchain)
}

fn changed_paths(check: &CheckEvidence) -> String {
    let found = &check.step.drift.found;
    let first = found.changes.first().map_or("something", |change| change.path.as_str());
    match (found.changes.len() as u64).saturating_add(found.omitted) {
        0 | 1 => format!("`{first}`"),
        count => format!("`{first}` and {} more", count - 1),
    }
}
