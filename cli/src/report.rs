//! Renders a run as human-readable text: the reasons first, then the skills, the evidence, where to see more, and the
//! verdict as the last line. The input is the run record, plus the outputs of failed steps if these are longer than
//! the excerpt in the record. Text from steps is escaped with [`shown`].

pub(crate) mod outputs;
mod step;

use std::collections::BTreeSet;

use proctor_core::code::Coded as _;
use proctor_core::evidence::{ReportEvidence, StepEvidence, TreeSource};
use proctor_core::exec::DoubtRecord;
use proctor_core::outcome::Outcome;
use proctor_core::verdict::{Doubt, EXIT_USAGE, Verdict};
use serde::Serialize;

use crate::screen::Room;
use crate::style::{self, DIM, UNSURE, paint};
use crate::text::{columns, count, duration, padded, shown, shown_line, wrapped};
use outputs::Outputs;
use proctor_core::record::{Finished, RunRecord, SkillRecord, Started};

pub(crate) use step::{
    check_reason, command_line, drift_block, leak_hint, limit_hint, limits_met, manner_of_end, stream_block, why,
};

/// Amount of detail in the report.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Detail {
    /// The steps that did not pass, and the verdict.
    Quiet,
    /// As `Quiet`, plus a line for each skill.
    Normal,
    /// As `Normal`, plus every step with its command, the start and end of its output, its resource use and the
    /// enforced controls.
    Verbose,
}

/// Options of the report.
pub(crate) struct View<'a> {
    /// Amount of detail.
    pub detail: Detail,
    /// Size of the output area.
    pub room: Room,
    /// Fetched outputs of failed steps.
    pub outputs: &'a Outputs,
    /// Options to append to the suggested `proctor logs RUN STEP`, such as the state directory.
    pub logs_options: &'a str,
}

/// Renders the report on a run.
pub(crate) fn report(record: &RunRecord, view: &View<'_>) -> String {
    let mut text = String::new();
    for block in reasons(record, view) {
        text.push_str(&block);
        text.push('\n');
    }
    if view.detail == Detail::Verbose {
        text.push_str(&the_others(record, view));
    }
    if view.detail != Detail::Quiet {
        text.push_str(&tree_line(record));
        text.push_str(&skill_table(&record.skills, view.room.columns));
        text.push_str(&notes(record));
    }
    if let Some(finished) = &record.finished {
        if view.detail != Detail::Quiet {
            text.push_str(&places(record, finished, view));
        }
        if finished.exit_code == EXIT_USAGE {
            text.push_str("nothing ran, and nothing is no pass\n");
        }
        text.push_str(&verdict_line(record, finished, view.room));
    }
    text
}

/// Renders the location of the evidence, and the command that shows more of a failed step's output.
fn places(record: &RunRecord, finished: &Finished, view: &View<'_>) -> String {
    let mut text = String::new();
    if let Some(directory) = &finished.evidence_dir {
        text.push_str(&format!("{} {}\n", paint(DIM, "evidence:"), shown_line(directory)));
    }
    let told = record.steps().find(|(_, step)| step.outcome.is_failure() && was_heard(step));
    if let (Some(started), Some((skill, step))) = (&record.started, told) {
        let stderr = if step.stdout.bytes == 0 || step.stderr.bytes > step.stdout.bytes { " --stderr" } else { "" };
        let command =
            format!("proctor logs {} {skill}/{}{stderr}{}", started.run_id, step.planned.name, view.logs_options);
        text.push_str(&format!("{} {}\n", paint(DIM, "more:"), shown_line(&command)));
    }
    text
}

fn was_heard(step: &StepEvidence) -> bool {
    step.stdout.bytes + step.stderr.bytes > 0
}

/// Renders the satisfied checks and the passed steps, in full.
fn the_others(record: &RunRecord, view: &View<'_>) -> String {
    let mut text = String::new();
    for check in record.checks.iter().filter(|check| check.satisfied) {
        let name = format!("toolchain {}", check.toolchain);
        text.push_str(&(step::block(&name, &check.step, view) + &step::measures(&check.step) + "\n"));
    }
    for (skill, step) in record.steps().filter(|(_, step)| step.outcome == Outcome::Passed) {
        let name = format!("{skill}/{}", step.planned.name);
        text.push_str(&(step::block(&name, step, view) + &step::measures(step) + "\n"));
    }
    text
}

/// Renders everything that kept the run from passing: tool checks, failed steps in plan order, steps without a
/// result, and reasons for an inconclusive verdict.
fn reasons(record: &RunRecord, view: &View<'_>) -> Vec<String> {
    let checks = record.checks.iter().filter(|check| !check.satisfied).map(|check| step::check_block(check, view));
    let failures = record.steps().filter(|(_, step)| step.outcome.is_failure());
    let unsure = record.steps().filter(|(_, step)| match step.outcome {
        // A step that was never started has nothing to show.
        Outcome::Cancelled => step.was_started(),
        outcome => outcome == Outcome::Inconclusive,
    });
    let steps =
        failures.chain(unsure).map(|(skill, step)| step::block(&format!("{skill}/{}", step.planned.name), step, view));
    let doubts = record.doubts.iter().map(|DoubtRecord { doubt, message }| doubt_block(*doubt, message));
    checks.chain(steps).chain(doubts).collect()
}

/// Renders a reason for an inconclusive verdict.
pub(crate) fn doubt_block(doubt: Doubt, message: &str) -> String {
    let word = word(&doubt).replace('_', " ");
    format!("{} {}\n", paint(UNSURE, format!("inconclusive[{}], {word}:", doubt.code())), shown(message).trim_end())
}

/// Renders the source of the verified tree, unless it is the worktree.
fn tree_line(record: &RunRecord) -> String {
    let Some(TreeSource::Rev { commit, lfs_pointers, .. }) = record.started.as_ref().map(|started| &started.source)
    else {
        return String::new();
    };
    let mut text = format!("{} commit {}, apart from the worktree\n", paint(DIM, "tree:"), shown_line(commit));
    if *lfs_pointers > 0 {
        let files = count(*lfs_pointers as usize, "file");
        text.push_str(&style::warning(&format!(
            "{files} of git-lfs were present as pointers only, without their content"
        )));
    }
    text
}

/// Renders a line for each skill. A name that is too long gets its own line.
fn skill_table(skills: &[SkillRecord], room: usize) -> String {
    if skills.is_empty() {
        return String::new();
    }
    let most = room.saturating_sub(CELLS).max(NAME);
    let names: Vec<String> = skills.iter().map(|record| shown_line(record.skill.as_str())).collect();
    let width = names.iter().map(|name| columns(name)).filter(|width| *width <= most).max().unwrap_or(0);
    let mut text = format!("{}\n", paint(DIM, "skills:"));
    for (record, name) in skills.iter().zip(names) {
        let is_short = columns(&name) <= width && width + CELLS <= room;
        let head = if is_short { format!("  {}  ", padded(&name, width)) } else { format!("  {name}\n    ") };
        let [cells, steps, reason] = skill_cells(record);
        let mut line = format!("{head}{cells}");
        let used = if is_short { width + 4 } else { 4 };
        let left = room.saturating_sub(used + CELLS - 4 - STEPS + 2);
        for part in [steps, reason].iter().filter(|part| !part.is_empty()) {
            let fits = columns(part) <= left && !line.contains("passed\n");
            line.push_str(&if fits { format!("  {part}") } else { format!("\n    {part}") });
        }
        text.push_str(&(line.trim_end().to_owned() + "\n"));
    }
    text
}

/// Width of the cells after a skill's name, in columns, including the blanks between them.
const CELLS: usize = 4 + 12 + 2 + 6 + 2 + 7 + STEPS;
/// Width of the cell that counts the passed steps, in columns.
const STEPS: usize = 2 + 22;
/// Minimum width of a name, in columns.
const NAME: usize = 16;

/// Returns the cells of a skill: outcome, tier and time; number of passed steps; reason for a deviation from the
/// plan.
fn skill_cells(record: &SkillRecord) -> [String; 3] {
    let Some((outcome, tier)) = record.outcome.zip(record.tier) else {
        return [paint(UNSURE, "did not end"), String::new(), String::new()];
    };
    let passed = record.steps.iter().filter(|step| step.outcome == Outcome::Passed).count();
    let spent = record.steps.iter().map(|step| step.duration_ms).sum();
    let word = paint(style::of_outcome(outcome), padded(outcome_words(outcome), 12));
    let steps = match record.planned.len() {
        1 => String::new(),
        all => format!("{passed} of {all} steps passed"),
    };
    [format!("{word}  tier {tier}  {:>7}", duration(spent)), steps, shown_line(&record.reason)]
}

/// Renders remarks that had no influence on the verdict.
fn notes(record: &RunRecord) -> String {
    let checks = record.checks.iter().map(|check| &check.step);
    let mut text = missing_controls(checks.chain(record.steps().map(|(_, step)| step)));
    if let Some(sentence) = record.rerun_sentence() {
        let line = shown_line(&sentence);
        let note = || format!("{} {line}\n", paint(DIM, "note:"));
        text.push_str(&if record.partial().is_some() { style::warning(&line) } else { note() });
    }
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
    text.push_str(&leak_warnings(record));
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

/// Renders a warning for each check or step that passed but left processes behind.
fn leak_warnings(record: &RunRecord) -> String {
    let checks = record.checks.iter().map(|check| (format!("toolchain {}", check.toolchain), &check.step));
    let steps = record.steps().map(|(skill, step)| (format!("{skill}/{}", step.planned.name), step));
    let warnings = checks.chain(steps).filter_map(|(name, step)| Some(format!("{name} {}", step.leak_warning()?)));
    warnings.map(|warning| style::warning(&shown_line(&warning))).collect()
}

/// Renders one line with the controls that were not enforced for some of these steps; empty if all were.
pub(crate) fn missing_controls<'a>(steps: impl IntoIterator<Item = &'a StepEvidence>) -> String {
    let missing: BTreeSet<_> =
        steps.into_iter().flat_map(|step| step.enforcement.missing()).map(|(control, _)| control.as_str()).collect();
    if missing.is_empty() {
        return String::new();
    }
    let names = missing.into_iter().collect::<Vec<_>>().join(", ");
    style::warning(&format!("not enforced here, which makes it tier 2: {names} (`proctor doctor` says why)"))
}

/// Renders the last line: the verdict, "partial" for a partial run, the count of each outcome, tier, tree and time.
fn verdict_line(record: &RunRecord, finished: &Finished, room: Room) -> String {
    let total: usize = record.skills.iter().map(|skill| skill.planned.len()).sum();
    let mut counts = tally(record, total);
    let (skills, left_out) = (record.skills.len(), record.partial().map_or(0, |rerun| rerun.left_out.len()));
    let of_all = format!("{skills} of {}", count(skills + left_out, "skill"));
    if finished.verdict == Verdict::Passed {
        let skills = if left_out == 0 { count(skills, "skill") } else { of_all.clone() };
        counts = vec![format!("{} in {skills}", count(total, "step"))];
    } else if let Some(last) = counts.last_mut() {
        last.push_str(&format!(" of {}", count(total, "step")));
    } else {
        counts.push("no step ran".to_owned());
    }
    let mut parts = counts;
    if left_out > 0 && finished.verdict != Verdict::Passed {
        parts.push(format!("only {of_all}"));
    }
    parts.push(format!("tier {}", finished.tier));
    parts.extend(record.started.as_ref().map(tree_word));
    parts.push(format!("in {}", duration(finished.duration_ms)));
    parts.extend(record.cancelled_by.as_ref().map(|by| format!("interrupted by {}", shown_line(by))));
    // A script that searches for the last line of a complete run must not match a partial run.
    let partial = if left_out == 0 { "" } else { "partial run " };
    let word = format!("{partial}{}", finished.verdict.as_str());
    let line = format!("{word}: {}", parts.join(", "));
    // In a log it stays one line, because other programs search for it.
    let text = if room.wraps { wrapped(&line, room.columns).join("\n  ") } else { line };
    format!("{}{}\n", paint(style::of_verdict(finished.verdict), &text[..=word.len()]), &text[word.len() + 1..])
}

/// Returns the shortened name of the verified tree: the first digits of its commit or of its snapshot.
fn tree_word(started: &Started) -> String {
    let short = |hex: &str| hex.chars().take(SHORT).collect::<String>();
    match &started.source {
        TreeSource::Rev { commit, .. } => format!("commit {}", shown_line(&short(commit))),
        TreeSource::Worktree { .. } => {
            format!("tree {}", short(started.snapshot.as_str().trim_start_matches("sha256:")))
        }
    }
}

/// Number of hash digits that are shown.
const SHORT: usize = 12;

/// Returns the number of steps with each outcome; steps that were never reached count as skipped.
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

/// Returns the human-readable name of an outcome.
pub(crate) fn outcome_words(outcome: Outcome) -> &'static str {
    match outcome {
        Outcome::TimedOut => "timed out",
        other => other.as_str(),
    }
}

/// Returns the name of an enum value in the documents.
pub(crate) fn word<T: Serialize>(value: &T) -> String {
    match serde_json::to_value(value) {
        Ok(serde_json::Value::String(word)) => word,
        Ok(other) => other.to_string(),
        Err(_) => String::new(),
    }
}

#[cfg(test)]
mod tests;
