//! Prepares a record for the page: finds each step with its element id and its times once.

use crate::decision::verdict::Verdict;
use crate::model::names::{RunId, SkillName};
use crate::model::outcome::Outcome;
use crate::record::evidence::StepEvidence;
use crate::record::run_record::{AttemptSpan, RunRecord, SkillRecord};
use crate::report::html::page_text;
use crate::report::report_input::ToolReport;

/// Maximum number of steps on a page; the page reports the number of further steps.
pub(super) const MAX_STEPS: usize = 2_000;

/// A record prepared for the page.
pub(super) struct RunPageView<'a> {
    /// The record.
    pub(super) record: &'a RunRecord,
    /// Prefix of the element ids, which keeps several runs on one page apart.
    prefix: String,
    /// The steps that are shown, in the order of the plan.
    pub(super) steps: Vec<ShownStep<'a>>,
    /// The number of further steps.
    pub(super) left_out: usize,
}

/// A step that has an outcome.
pub(super) struct ShownStep<'a> {
    /// The element id of the step on the page.
    pub(super) id: String,
    /// The skill of the step.
    pub(super) skill: &'a SkillRecord,
    /// The id of the run, if the run began.
    run_id: Option<&'a RunId>,
    /// The evidence of the step.
    pub(super) step: &'a StepEvidence,
    /// The times of the attempts.
    pub(super) attempts: Vec<&'a AttemptSpan>,
    /// The reports of the tools.
    pub(super) tool_reports: Vec<&'a ToolReport>,
}

impl<'a> RunPageView<'a> {
    /// Creates the view of a record that is alone on the page.
    pub(super) fn new(record: &'a RunRecord, files: &'a [ToolReport]) -> Self {
        Self::with_prefix(record, files, String::new(), MAX_STEPS)
    }

    /// Creates the view of a record whose element ids start with `prefix` and of which at most `steps` steps are
    /// shown.
    pub(super) fn with_prefix(record: &'a RunRecord, files: &'a [ToolReport], prefix: String, steps: usize) -> Self {
        let left_out = record.steps().count().saturating_sub(steps);
        let run_id = record.started.as_ref().map(|started| &started.run_id);
        let all = record
            .skills
            .iter()
            .enumerate()
            .flat_map(|(index, skill)| shown_steps(&prefix, run_id, index, skill, files));
        let steps = all.take(steps).collect();
        Self { record, prefix, steps, left_out }
    }

    /// Returns whether the run is alone on the page.
    pub(super) fn is_only_run(&self) -> bool {
        self.prefix.is_empty()
    }

    /// Returns the id of an element of this record.
    pub(super) fn element_id(&self, name: &str) -> String {
        format!("{}{name}", self.prefix)
    }

    /// Returns the element id of a skill.
    pub(super) fn skill_id(&self, index: usize) -> String {
        self.element_id(&format!("skill-{}", index + 1))
    }

    /// Returns the verdict of the run, if it finished.
    pub(super) fn verdict(&self) -> Option<Verdict> {
        self.record.finished.as_ref().map(|finished| finished.verdict)
    }

    /// Returns the word for the verdict, or `unfinished`.
    pub(super) fn verdict_word(&self) -> &'static str {
        self.verdict().map_or("unfinished", Verdict::as_str)
    }

    /// Returns the title of the page.
    pub(super) fn title(&self) -> String {
        let profile = self.record.started.as_ref().map(|started| page_text::truncated_name(started.profile.as_str()));
        let partial = if self.record.is_partial() { "partial run " } else { "" };
        let parts = [Some(format!("{partial}{}", self.verdict_word())), profile, Some("Proctor".to_owned())];
        parts.into_iter().flatten().collect::<Vec<_>>().join(" · ")
    }

    /// Returns the steps that kept the run from passing, failures first.
    pub(super) fn reason_steps(&self) -> Vec<&ShownStep<'a>> {
        let failed = self.steps.iter().filter(|shown| shown.step.outcome.is_failure());
        let unsure = self.steps.iter().filter(|shown| is_unsure(shown.step));
        failed.chain(unsure).collect()
    }

    /// Returns the display name of a step of any skill.
    pub(super) fn step_display_name(skill: &SkillName, step: &str) -> String {
        page_text::truncated_name(&format!("{skill}/{step}"))
    }
}

impl ShownStep<'_> {
    /// Returns `skill/step`.
    pub(super) fn display_name(&self) -> String {
        RunPageView::step_display_name(&self.skill.skill, self.step.planned.name.as_str())
    }

    /// Returns the command that prints the kept output of the step.
    pub(super) fn logs_command(&self) -> Option<String> {
        let run_id = self.run_id?.as_str();
        Some(page_text::truncated_sentence(&format!(
            "proctor logs {run_id} {}/{}",
            self.skill.skill, self.step.planned.name
        )))
    }

    /// Returns whether the page shows the step among the reasons.
    pub(super) fn is_reason(&self) -> bool {
        self.step.outcome.is_failure() || is_unsure(self.step)
    }

    /// Returns the outcome of the attempt with this number; the last attempt has the outcome of the step.
    pub(super) fn attempt_outcome(&self, attempt: u32) -> Outcome {
        let index = usize::try_from(attempt).unwrap_or(usize::MAX).saturating_sub(1);
        self.step.earlier_attempts.get(index).map_or(self.step.outcome, |earlier| earlier.outcome)
    }
}

fn shown_steps<'a>(
    prefix: &str,
    run_id: Option<&'a RunId>,
    index: usize,
    skill: &'a SkillRecord,
    files: &'a [ToolReport],
) -> impl Iterator<Item = ShownStep<'a>> {
    skill.steps.iter().enumerate().map(move |(at, step)| ShownStep {
        id: format!("{prefix}step-{}-{}", index + 1, at + 1),
        skill,
        run_id,
        step,
        attempts: skill.attempts.iter().filter(|attempt| attempt.step == step.planned.name).collect(),
        tool_reports: files.iter().filter(|file| file.skill == skill.skill && file.step == step.planned.name).collect(),
    })
}

/// Returns whether a step is inconclusive, or was cancelled after it started.
fn is_unsure(step: &StepEvidence) -> bool {
    match step.outcome {
        Outcome::Cancelled => step.was_started(),
        outcome => outcome == Outcome::Inconclusive,
    }
}
