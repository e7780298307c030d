//! Explains the verdict of a run, or what a run would do. Does no I/O.

use proctor_core::api::{PlanAnswer, RunState, RunView};
use proctor_core::decision::gate::{GateAnswer, GateCode};
use proctor_core::decision::verdict::Verdict;
use proctor_core::model::event::RunEvent;
use proctor_core::model::leak;
use proctor_core::model::outcome::Outcome;
use proctor_core::model::plan::{Network, Plan, PlannedSkill, PlannedStep, SkillOrder};
use proctor_core::record::evidence::StepEvidence;
use rmcp::model::{CallToolResult, Resource};

use super::resource_uri::ResourceUri;
use super::run_answer::UNTRUSTED_NOTE;
use super::tool_answer::{AnswerDraft, Explanation, MAX_UNTRUSTED_TEXT, fit_to_limit};
use super::untrusted::{KeptEnd, UntrustedText, one_line, safe_name, safe_path};
use super::{descriptions, hints};

/// An explanation in parts: facts in Proctor's own words, and details from the repository.
struct ExplanationParts {
    facts: Vec<String>,
    details: Vec<String>,
    explanation: Explanation,
    links: Vec<Resource>,
}

/// Facts and details from the events of a run. The events themselves are not kept.
#[derive(Debug, Default)]
pub(super) struct EventFacts {
    facts: Vec<String>,
    details: Vec<String>,
    /// `true` if there are further events that were not read.
    pub(super) is_truncated: bool,
}

impl EventFacts {
    /// Adds an event.
    pub(super) fn add_event(&mut self, event: &RunEvent) {
        add_event_facts(event, &mut self.facts, &mut self.details);
    }
}

/// Explains the verdict of a run.
pub(super) fn explain_run(run: &RunView, log: EventFacts, links: bool) -> CallToolResult {
    let mut facts = run_facts(run);
    if log.is_truncated {
        facts.push("there are more events than this tool reads".to_owned());
    }
    facts.extend(log.facts);
    let mut details: Vec<String> = run.doubts.iter().map(|record| record.message.clone()).collect();
    details.extend(run.problem.iter().flat_map(super::run_answer::problem_lines));
    details.extend(log.details);
    let summary = descriptions::headline(run);
    let link = Resource::new(ResourceUri::Run(run.id.clone()).to_string(), "run").with_mime_type("text/plain");
    let explanation = Explanation {
        run_id: Some(run.id.clone()),
        verdict: run.verdict,
        ..empty_explanation(summary, &run.request.repo)
    };
    ExplanationParts { facts, details, explanation, links: if links { vec![link] } else { Vec::new() } }.into_result()
}

/// Explains what a run of a plan would do, and whether the tree has already been verified.
pub(super) fn explain_plan(repo: &str, answer: &PlanAnswer, gate: &GateAnswer) -> CallToolResult {
    let mut facts: Vec<String> = gate.findings.iter().map(|finding| gate_fact(finding.name).to_owned()).collect();
    facts.dedup();
    let cached = gate.run.as_ref().and_then(|run| Some(format!("run {}: {}", run.run_id, run.cached_phrase()?)));
    facts.extend(cached);
    let mut details: Vec<String> = Vec::new();
    for finding in &gate.findings {
        details.push(finding.message.clone());
        details.extend(finding.paths.iter().map(|path| format!("  {path}")));
    }
    details.extend(answer.warnings.iter().map(|warning| format!("warning: {}", warning.message)));
    if let Some(plan) = &answer.plan {
        facts.extend(plan_facts(plan));
        details.extend(commands(plan));
    }
    let summary = match gate.pass {
        true => {
            "VERIFIED: this exact tree has passed, and its evidence is still valid; a run would be answered immediately"
        }
        false => "NOT VERIFIED: no valid run verifies this tree",
    };
    let explanation = Explanation {
        run_id: gate.run.as_ref().map(|run| run.run_id.clone()),
        verdict: gate.run.as_ref().map(|run| run.outcome),
        verified: Some(gate.pass),
        ..empty_explanation(summary.to_owned(), repo)
    };
    ExplanationParts { facts, details, explanation, links: Vec::new() }.into_result()
}

fn empty_explanation(summary: String, repo: &str) -> Explanation {
    let repo_root = safe_path(repo);
    Explanation {
        summary,
        repo_root,
        run_id: None,
        verdict: None,
        verified: None,
        facts: vec![],
        facts_more: 0,
        details: None,
    }
}

impl ExplanationParts {
    fn into_result(self) -> CallToolResult {
        let details = UntrustedText::from_text(&self.details.join("\n")).truncate(MAX_UNTRUSTED_TEXT, KeptEnd::Start);
        fit_to_limit(|budget| {
            let (facts, facts_more) = first_fitting(&self.facts, budget / 2);
            let details = details.truncate(budget - budget / 2, KeptEnd::Start);
            let details = (!details.is_empty()).then(|| details.with_marks("details"));
            let value = Explanation { facts, facts_more, details, ..self.explanation.clone() };
            AnswerDraft { text: render_text(&value), value, links: self.links.clone() }
        })
    }
}

/// Returns the facts that fit in `room` bytes, and the number of the remaining ones.
fn first_fitting(facts: &[String], mut budget: usize) -> (Vec<String>, usize) {
    let fits = |fact: &&String| {
        let left = budget.checked_sub(fact.len() + 4);
        budget = left.unwrap_or(0);
        left.is_some()
    };
    let kept: Vec<String> = facts.iter().take_while(fits).cloned().collect();
    let more = facts.len() - kept.len();
    (kept, more)
}

fn render_text(answer: &Explanation) -> String {
    let mut lines = vec![answer.summary.clone()];
    lines.push(format!("repository {}", answer.repo_root));
    lines.extend(answer.run_id.iter().map(|run| format!("run {run}")));
    lines.extend(answer.facts.iter().map(|fact| format!("- {fact}")));
    if answer.facts_more > 0 {
        lines.push(format!("- and {} facts more", answer.facts_more));
    }
    if let Some(details) = &answer.details {
        lines.push(UNTRUSTED_NOTE.to_owned());
        lines.push(details.clone());
    }
    lines.join("\n")
}

fn run_facts(run: &RunView) -> Vec<String> {
    let mut facts: Vec<String> =
        run.doubts.iter().map(|record| descriptions::describe_doubt(record.doubt).to_owned()).collect();
    facts.dedup();
    facts.extend(run.cancelled_by.iter().map(|_| "a caller requested its cancellation".to_owned()));
    facts
        .extend(run.problem.iter().map(|problem| format!("{}: {}", problem.kind.title(), hints::for_problem(problem))));
    let unpassed =
        descriptions::units(run).filter(|(_, step)| step.outcome.is_some_and(|outcome| outcome != Outcome::Passed));
    facts.extend(unpassed.map(|(unit, step)| {
        format!("{} {}, {} {}", unit.as_str(), step.n, descriptions::step_name(step), descriptions::describe_end(step))
    }));
    if run.state == RunState::Finished {
        facts.push(verdict_rule(run.verdict).to_owned());
    }
    facts.extend(run.snapshot.iter().map(|snapshot| format!("the tree that was verified is {}", snapshot.as_str())));
    facts
}

fn verdict_rule(verdict: Option<Verdict>) -> &'static str {
    match verdict {
        Some(Verdict::Passed) => "passed: every step passed, and nothing makes the run inconclusive",
        Some(Verdict::Failed) => "failed: a step ran, and its result shows a problem in the tree",
        _ => "inconclusive: no step failed, but not everything ran to completion as required; this verifies nothing",
    }
}

fn add_event_facts(event: &RunEvent, facts: &mut Vec<String>, details: &mut Vec<String>) {
    match event {
        RunEvent::CheckFinished { check } => add_step_facts(check.toolchain.as_str(), &check.step, facts, details),
        RunEvent::StepFinished { skill, step } => add_step_facts(skill.as_str(), step, facts, details),
        RunEvent::SkillFinished { skill, outcome, tier, reason } => {
            facts.push(format!("skill {}: {}, tier {tier}", safe_name(skill.as_str()), outcome.as_str()));
            if !reason.is_empty() {
                details.push(format!("skill {}: {reason}", safe_name(skill.as_str())));
            }
        }
        _ => {}
    }
}

fn add_step_facts(skill: &str, step: &StepEvidence, facts: &mut Vec<String>, details: &mut Vec<String>) {
    let named = format!("{}/{}", safe_name(skill), safe_name(step.planned.name.as_str()));
    if step.flaky {
        facts.push(format!("{named} passed only on a later attempt: it is flaky"));
    }
    facts.extend(step.reused.as_ref().map(|source| format!("{named} is {}", source.phrase())));
    details.extend(step.inputs_note().map(|note| format!("{named} {note}")));
    if let Some(leaked) = &step.leaked {
        facts.push(format!("{named} left {} running, which the sandbox killed", leaked.count_phrase()));
        facts.extend(
            step.forbidden_leak().map(|_| format!("{named} failed because of these processes: {}", leak::LEAK_HINT)),
        );
        details.push(format!("{named} {}", leaked.phrase()));
    }
    for (control, reason) in step.enforcement.missing() {
        facts.push(format!("{named} ran without the control `{}`", control.as_str()));
        details.push(format!("{}: {reason}", control.as_str()));
        facts.extend(step.enforcement.hint(control).map(|hint| format!("to enforce it: {}", one_line(hint))));
    }
    if step.outcome == Outcome::Drifted {
        details.push(format!("{named} changed:"));
        details.extend(step.drift.found.changes.iter().map(|change| format!("  {}", change.path)));
        if step.drift.found.omitted > 0 {
            details.push(format!("  and {} more", step.drift.found.omitted));
        }
    }
    if step.outcome != Outcome::Passed {
        details.push(format!("{named} is: {}", step.planned.cmd));
    }
}

fn plan_facts(plan: &Plan) -> Vec<String> {
    let order = match plan.order {
        SkillOrder::Sequence => "skills run one after the other, each on the results of the previous ones".to_owned(),
        SkillOrder::Graph { parallel } => {
            format!("skills that do not need each other run in parallel, at most {parallel} at once")
        }
    };
    let checks = plan.toolchain.iter().map(|check| {
        format!(
            "toolchain check {}: makes the run inconclusive if it does not pass",
            safe_name(check.toolchain.as_str())
        )
    });
    let mut facts: Vec<String> = checks.collect();
    facts.push(order);
    facts.extend(plan.skills.iter().flat_map(|skill| skill.steps.iter().map(move |step| step_fact(skill, step))));
    facts
}

fn step_fact(skill: &PlannedSkill, step: &PlannedStep) -> String {
    let network = if step.network == Network::Allow { ", with the host's network" } else { "" };
    format!(
        "{}/{}: tier {}, {:?}, read_only {}, at most {}{network}",
        safe_name(skill.name.as_str()),
        safe_name(step.name.as_str()),
        skill.declared_tier,
        skill.determinism,
        step.read_only.as_str(),
        descriptions::format_duration(step.timeout_ms),
    )
}

fn commands(plan: &Plan) -> Vec<String> {
    let checks = plan.toolchain.iter().map(|check| (check.toolchain.as_str(), &check.run));
    let steps = plan.skills.iter().flat_map(|skill| skill.steps.iter().map(|step| (skill.name.as_str(), step)));
    let line = |(skill, step): (&str, &PlannedStep)| format!("{}/{}: {}", safe_name(skill), step.name, step.cmd);
    checks.chain(steps).map(line).collect()
}

/// Returns the description of a gate finding.
fn gate_fact(code: GateCode) -> &'static str {
    match code {
        GateCode::NothingRecorded => "no run of this profile is recorded",
        GateCode::RunUnderWay => "a run is in progress",
        GateCode::StatusUnreadable => "the status file cannot be read, or was not written by Proctor",
        GateCode::VersionUnknown => "a document has a format version that this program does not support",
        GateCode::CitesNothing => "the last run cites no evidence",
        GateCode::OtherProfile => "the last run used a different profile",
        GateCode::OtherChangeset => "the evidence belongs to another changeset",
        GateCode::OtherSpec => "the spec differs from the spec that was verified",
        GateCode::OtherPlan => "the same spec now resolves to a different plan",
        GateCode::TreeChanged => "the tree differs from the tree that was verified",
        GateCode::ChangedByRun => "a step of the last run changed the tree while it was verified",
        GateCode::IgnoresChanged => "ignore rules outside the tree were changed since it was verified",
        GateCode::IgnoresUnrecorded => "the last run does not record the ignore rules outside the tree",
        GateCode::RunFailed => "the last run failed",
        GateCode::RunInconclusive => "the last run was inconclusive",
        GateCode::RunPartial => "the last run did not run all skills of the profile",
        GateCode::TierTooHigh => "the last run's tier is higher than the accepted maximum",
        GateCode::CacheTooWide => "a cache started with content of a wider scope than the accepted one",
        GateCode::OtherMachine => "other machines executed steps of the last run",
        GateCode::InputsUnverified => "steps of the last run could see files that its snapshot does not cover",
        GateCode::ControlMissing => "a sandbox control that is required now was not enforced",
        GateCode::Stale => "the last run is older than the accepted age",
        GateCode::FromTheFuture => "the last run ended in the future",
        GateCode::TimeUnreadable => "the time of the last run cannot be read",
        GateCode::EvidenceMissing => "required evidence is missing",
        GateCode::EvidenceEdited => "the evidence differs from the evidence that the status file cites",
        GateCode::EvidenceUnreadable => "evidence cannot be read, or was not written by Proctor",
        GateCode::EvidenceSealBroken => "the hash in a document does not match its content",
        GateCode::EvidenceForeign => "the evidence belongs to a different run from the one that cites it",
        GateCode::EvidenceExtra => "the changeset contains evidence that the last run does not cite",
        GateCode::EvidenceContradicts => "the evidence contradicts the status file",
        GateCode::Unattested => "Proctor's state has no record of the last run",
        GateCode::RecordDiffers => "Proctor's record of the last run differs",
        GateCode::Superseded => "Proctor's state has a record of a newer run of the same tree",
        GateCode::RecordUnreadable => "Proctor's record of the last run cannot be read",
    }
}
