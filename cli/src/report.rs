//! A run for people: the reason first, then the skills, the evidence, and the verdict as the
//! last line. Written from the record alone; text of steps goes through [`shown`].

mod step;

use std::collections::BTreeSet;

use proctor_core::evidence::{ReportEvidence, StepEvidence, TreeSource};
use proctor_core::exec::DoubtRecord;
use proctor_core::outcome::Outcome;
use proctor_core::verdict::{Doubt, EXIT_USAGE, Verdict};
use serde::Serialize;

use crate::style::{self, DIM, STRONG, UNSURE, paint};
use crate::text::{count, duration, shown, shown_line};
use proctor_core::record::{Finished, RunRecord, SkillRecord};

pub(crate) use step::{
    check_reason, command_line, drift_block, limit_hint, limits_met, manner_of_end, stream_block, why,
};

/// The report on a run.
pub(crate) fn report(record: &RunRecord) -> String {
    let mut text = String::new();
    let blocks = reasons(record);
    for block in &blocks {
        text.push_str(block);
        text.push('\n');
    }
    text.push_str(&tree_line(record));
    text.push_str(&skill_table(&record.skills));
    text.push_str(&notes(record));
    if let Some(finished) = &record.finished {
        if let Some(directory) = &finished.evidence_dir {
            text.push_str(&format!("{} {}\n", paint(DIM, "evidence:"), shown_line(directory)));
        }
        if finished.exit_code == EXIT_USAGE {
            text.push_str("nothing ran, and nothing is no pass\n");
        }
        text.push_str(&verdict_line(record, finished));
    }
    text
}

/// Everything that kept the run from passing: checks of tools, steps that failed in the order of
/// the plan, steps without an answer, doubts.
fn reasons(record: &RunRecord) -> Vec<String> {
    let checks = record.checks.iter().filter(|check| !check.satisfied).map(step::check_block);
    let failures = record.steps().filter(|(_, step)| step.outcome.is_failure());
    let unsure = record.steps().filter(|(_, step)| match step.outcome {
        // What was never started has nothing to show.
        Outcome::Cancelled => step::was_started(step),
        outcome => outcome == Outcome::Inconclusive,
    });
    let steps =
        failures.chain(unsure).map(|(skill, step)| step::block(&format!("{skill}/{}", step.planned.name), step));
    let doubts = record.doubts.iter().map(|DoubtRecord { doubt, message }| doubt_block(*doubt, message));
    checks.chain(steps).chain(doubts).collect()
}

/// A reason why there is no honest answer.
pub(crate) fn doubt_block(doubt: Doubt, message: &str) -> String {
    let word = word(&doubt).replace('_', " ");
    format!("{} {}\n", paint(UNSURE, format!("inconclusive, {word}:")), shown(message).trim_end())
}

/// Which tree it was, where that is not the worktree.
fn tree_line(record: &RunRecord) -> String {
    let Some(TreeSource::Rev { commit, lfs_pointers, .. }) = record.started.as_ref().map(|started| &started.source)
    else {
        return String::new();
    };
    let mut text = format!("{} commit {}, apart from the worktree\n", paint(DIM, "tree:"), shown_line(commit));
    if *lfs_pointers > 0 {
        let files = count(*lfs_pointers as usize, "file");
        text.push_str(&style::warning(&format!("{files} of git-lfs stood there as pointers, not with their content")));
    }
    text
}

fn skill_table(skills: &[SkillRecord]) -> String {
    if skills.is_empty() {
        return String::new();
    }
    let names: Vec<String> = skills.iter().map(|record| shown_line(record.skill.as_str())).collect();
    let width = names.iter().map(|name| name.chars().count()).max().unwrap_or(0);
    let mut text = format!("{}\n", paint(DIM, "skills:"));
    for (record, name) in skills.iter().zip(names) {
        let padding = " ".repeat(width - name.chars().count());
        text.push_str(&format!("  {name}{padding}  {}\n", skill_cells(record)));
    }
    text
}

fn skill_cells(record: &SkillRecord) -> String {
    let Some((outcome, tier)) = record.outcome.zip(record.tier) else {
        return paint(UNSURE, "did not end");
    };
    let passed = record.steps.iter().filter(|step| step.outcome == Outcome::Passed).count();
    let spent = record.steps.iter().map(|step| step.duration_ms).sum();
    let word = paint(style::of_outcome(outcome), format!("{:<12}", outcome_words(outcome)));
    let steps = match record.planned.len() {
        1 => String::new(),
        all => format!("{passed} of {all} steps passed"),
    };
    let mut cells = format!("{word}  tier {tier}  {:>7}  {steps}", duration(spent));
    if !record.reason.is_empty() {
        cells.push_str(&format!("  {}", shown_line(&record.reason)));
    }
    cells.trim_end().to_owned()
}

/// What a reader should know although it did not decide anything.
fn notes(record: &RunRecord) -> String {
    let checks = record.checks.iter().map(|check| &check.step);
    let mut text = missing_controls(checks.chain(record.steps().map(|(_, step)| step)));
    for (skill, step) in record.steps().filter(|(_, step)| step.flaky) {
        let attempts = step.earlier_attempts.len() + 1;
        let message =
            format!("{skill}/{} passed only on attempt {attempts}; it is recorded as flaky", step.planned.name);
        text.push_str(&style::warning(&shown_line(&message)));
    }
    for (skill, step) in record.steps() {
        if let Some(met) = limits_met(step) {
            text.push_str(&style::warning(&shown_line(&format!("{skill}/{} {met}", step.planned.name))));
        }
    }
    for (skill, step) in record.steps().filter(|(_, step)| step.outcome == Outcome::Passed) {
        for problem in step.found_reports.iter().filter_map(ReportEvidence::problem) {
            text.push_str(&style::warning(&shown_line(&format!("{skill}/{}: {problem}", step.planned.name))));
        }
    }
    for (skill, step) in record.steps().filter(|(_, step)| !step.drift.applied.is_empty()) {
        let paths = count(step.drift.applied.len(), "changed path");
        let message = format!("{skill}/{} is `read_only: off`: {paths} applied to the worktree", step.planned.name);
        text.push_str(&format!("{} {}\n", paint(DIM, "note:"), shown_line(&message)));
    }
    text
}

/// What did not hold for some of these steps, in one line; nothing where everything did.
pub(crate) fn missing_controls<'a>(steps: impl IntoIterator<Item = &'a StepEvidence>) -> String {
    let missing: BTreeSet<_> =
        steps.into_iter().flat_map(|step| step.enforcement.missing()).map(|(control, _)| control.as_str()).collect();
    if missing.is_empty() {
        return String::new();
    }
    let names = missing.into_iter().collect::<Vec<_>>().join(", ");
    style::warning(&format!("not enforced here, which makes it tier 2: {names} (`proctor doctor` says why)"))
}

/// The last line: the verdict, the count of each outcome, the time.
fn verdict_line(record: &RunRecord, finished: &Finished) -> String {
    let verdict = paint(style::of_verdict(finished.verdict), format!("{}:", finished.verdict.as_str()));
    let total: usize = record.skills.iter().map(|skill| skill.planned.len()).sum();
    let mut counts = tally(record, total);
    if finished.verdict == Verdict::Passed {
        counts = vec![format!("{} in {}", count(total, "step"), count(record.skills.len(), "skill"))];
    } else if let Some(last) = counts.last_mut() {
        last.push_str(&format!(" of {}", count(total, "step")));
    } else {
        counts.push("no step ran".to_owned());
    }
    let interrupted = record.cancelled_by.as_ref().map(|by| format!(", interrupted by {}", shown_line(by)));
    format!(
        "{verdict} {}, tier {}, in {}{}\n",
        counts.join(", "),
        paint(STRONG, finished.tier),
        duration(finished.duration_ms),
        interrupted.unwrap_or_default()
    )
}

/// How many steps have each outcome, those that were never reached as skipped.
fn tally(record: &RunRecord, total: usize) -> Vec<String> {
    const ORDER: [Outcome; 7] = [
        Outcome::Drifted,
        Outcome::TimedOut,
        Outcome::Failed,
        Outcome::Inconclusive,
        Outcome::Cancelled,
        Outcome::Passed,
        Outcome::Skipped,
    ];
    let seen = record.steps().count();
    let unseen = |outcome| if outcome == Outcome::Skipped { total.saturating_sub(seen) } else { 0 };
    let number = |outcome| record.steps().filter(|(_, step)| step.outcome == outcome).count() + unseen(outcome);
    let counted = ORDER.iter().map(|outcome| (*outcome, number(*outcome))).filter(|(_, number)| *number > 0);
    counted.map(|(outcome, number)| format!("{number} {}", outcome_words(outcome))).collect()
}

/// An outcome as people say it.
pub(crate) fn outcome_words(outcome: Outcome) -> &'static str {
    match outcome {
        Outcome::TimedOut => "timed out",
        other => other.as_str(),
    }
}

/// The word that a value of ours has in the documents.
pub(crate) fn word<T: Serialize>(value: &T) -> String {
    match serde_json::to_value(value) {
        Ok(serde_json::Value::String(word)) => word,
        Ok(other) => other.to_string(),
        Err(_) => String::new(),
    }
}

#[cfg(test)]
mod tests;
