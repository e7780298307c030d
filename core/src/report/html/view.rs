//! A record as the page goes through it: each step with its place and its times, found once.

use crate::evidence::StepEvidence;
use crate::names::{RunId, SkillName};
use crate::outcome::Outcome;
use crate::record::{AttemptSpan, RunRecord, SkillRecord};
use crate::report::ToolFile;
use crate::report::html::words;
use crate::verdict::Verdict;

/// How many steps a page shows; how many more there are is said.
pub(super) const MAX_STEPS: usize = 2_000;

/// A record, ready to be written.
pub(super) struct View<'a> {
    /// The record.
    pub(super) record: &'a RunRecord,
    /// What opens the names of its places, so that several can stand in one page.
    prefix: String,
    /// The steps that are shown, in the order of the plan.
    pub(super) steps: Vec<Shown<'a>>,
    /// How many more there are.
    pub(super) left_out: usize,
}

/// A step that has an outcome.
pub(super) struct Shown<'a> {
    /// Where it stands in the page.
    pub(super) id: String,
    /// Its skill.
    pub(super) skill: &'a SkillRecord,
    /// Its run, where that began.
    run_id: Option<&'a RunId>,
    /// What it did.
    pub(super) step: &'a StepEvidence,
    /// When its attempts ran.
    pub(super) attempts: Vec<&'a AttemptSpan>,
    /// What its own tools reported.
    pub(super) files: Vec<&'a ToolFile>,
}

impl<'a> View<'a> {
    /// The view of a record that has the page for itself.
    pub(super) fn of(record: &'a RunRecord, files: &'a [ToolFile]) -> Self {
        Self::beside(record, files, String::new(), MAX_STEPS)
    }

    /// The view of a record whose places are named after `prefix` and of which at most `steps` steps are shown.
    pub(super) fn beside(record: &'a RunRecord, files: &'a [ToolFile], prefix: String, steps: usize) -> Self {
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

    /// Whether it has the page for itself.
    pub(super) fn is_alone(&self) -> bool {
        self.prefix.is_empty()
    }

    /// The name of a place of this record in the page.
    pub(super) fn id(&self, place: &str) -> String {
        format!("{}{place}", self.prefix)
    }

    /// Where a skill stands in the page.
    pub(super) fn skill_id(&self, index: usize) -> String {
        self.id(&format!("skill-{}", index + 1))
    }

    /// What the run means, where it came to its end.
    pub(super) fn verdict(&self) -> Option<Verdict> {
        self.record.finished.as_ref().map(|finished| finished.verdict)
    }

    /// The word for what it means.
    pub(super) fn verdict_word(&self) -> &'static str {
        self.verdict().map_or("unfinished", Verdict::as_str)
    }

    /// What stands in the title of the window.
    pub(super) fn title(&self) -> String {
        let profile = self.record.started.as_ref().map(|started| words::name(started.profile.as_str()));
        let partial = if self.record.partial().is_some() { "partial run " } else { "" };
        let parts = [Some(format!("{partial}{}", self.verdict_word())), profile, Some("Proctor".to_owned())];
        parts.into_iter().flatten().collect::<Vec<_>>().join(" · ")
    }

    /// The steps that kept the run from passing: failures first.
    pub(super) fn reasons(&self) -> Vec<&Shown<'a>> {
        let failed = self.steps.iter().filter(|shown| shown.step.outcome.is_failure());
        let unsure = self.steps.iter().filter(|shown| is_unsure(shown.step));
        failed.chain(unsure).collect()
    }

    /// What a step is called where its skill is not at hand.
    pub(super) fn path(skill: &SkillName, step: &str) -> String {
        words::name(&format!("{skill}/{step}"))
    }
}

impl Shown<'_> {
    /// `skill/step`.
    pub(super) fn path(&self) -> String {
        View::path(&self.skill.skill, self.step.planned.name.as_str())
    }

    /// The command that shows all that is kept of its output.
    pub(super) fn logs_command(&self) -> Option<String> {
        let run_id = self.run_id?.as_str();
        Some(words::sentence(&format!("proctor logs {run_id} {}/{}", self.skill.skill, self.step.planned.name)))
    }

    /// Whether the page shows it among the reasons.
    pub(super) fn is_reason(&self) -> bool {
        self.step.outcome.is_failure() || is_unsure(self.step)
    }

    /// What the attempt with this number meant: those before the last are told apart.
    pub(super) fn outcome_of(&self, attempt: u32) -> Outcome {
        let index = usize::try_from(attempt).unwrap_or(usize::MAX).saturating_sub(1);
        self.step.earlier_attempts.get(index).map_or(self.step.outcome, |earlier| earlier.outcome)
    }
}

fn shown_steps<'a>(
    prefix: &str,
    run_id: Option<&'a RunId>,
    index: usize,
    skill: &'a SkillRecord,
    files: &'a [ToolFile],
) -> impl Iterator<Item = Shown<'a>> {
    skill.steps.iter().enumerate().map(move |(at, step)| Shown {
        id: format!("{prefix}step-{}-{}", index + 1, at + 1),
        skill,
        run_id,
        step,
        attempts: skill.attempts.iter().filter(|attempt| attempt.step == step.planned.name).collect(),
        files: files.iter().filter(|file| file.skill == skill.skill && file.step == step.planned.name).collect(),
    })
}

/// A step without an honest answer. What was never started has nothing to show.
fn is_unsure(step: &StepEvidence) -> bool {
    match step.outcome {
        Outcome::Cancelled => step.was_started(),
        outcome => outcome == Outcome::Inconclusive,
    }
}
