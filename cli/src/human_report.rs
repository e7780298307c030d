//! Renders a run as human-readable text: the reasons first, then the skills, the evidence, where to see more, and the
//! verdict as the last line. The input is the run record, plus the outputs of failed steps if these are longer than
//! the excerpt in the record. Text from steps is escaped with [`escape_text`].

pub(crate) mod failed_outputs;
mod step_text;

use std::collections::BTreeSet;

use proctor_core::code::Coded as _;
use proctor_core::decision::verdict::{EXIT_USAGE, InconclusiveDetail, InconclusiveReason, Verdict};
use proctor_core::model::outcome::Outcome;
use proctor_core::model::tier::Tier;
use proctor_core::record::evidence::{CACHED, ReportEvidence, StepEvidence, TreeSource};
use proctor_core::report::stream_texts::StreamTexts;
use serde::Serialize;

use crate::screen::TextLayout;
use crate::style::{self, DIM, UNSURE, paint};
use crate::text::{count, display_width, duration, escape_line, escape_text, pad, wrap};
use proctor_core::record::run_record::{Finished, RunRecord, SkillRecord, Started};
use proctor_core::record::run_reuse::RemoteReuse;

pub(crate) use step_text::{
    command_line, drift_block, leak_hint, limit_hints, limits_hit_phrase, outcome_reason, outcome_word, stream_block,
};

/// Amount of detail in the report.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Detail {
    /// The steps that did not pass, and the verdict.
    Quiet,
    /// As `Quiet`, with live progress on a terminal: a hook.
    Hook,
    /// As `Quiet`, plus a line for each skill.
    Normal,
    /// As `Normal`, plus every step with its command, the start and end of its output, its resource use and the
    /// enforced controls.
    Verbose,
}

impl Detail {
    /// Returns whether the report contains only what did not pass, and the verdict.
    fn is_brief(self) -> bool {
        matches!(self, Self::Quiet | Self::Hook)
    }
}

/// Options of the report.
pub(crate) struct ReportOptions<'a> {
    /// Amount of detail.
    pub detail: Detail,
    /// Size of the output area.
    pub layout: TextLayout,
    /// Fetched outputs of failed steps.
    pub outputs: &'a StreamTexts,
    /// Options to append to the suggested `proctor logs RUN STEP`, such as the state directory.
    pub logs_options: &'a str,
}

/// Renders the report on a run.
pub(crate) fn render_report(record: &RunRecord, view: &ReportOptions<'_>) -> String {
    let mut text = String::new();
    for block in failure_blocks(record, view) {
        text.push_str(&block);
        text.push('\n');
    }
    if view.detail == Detail::Verbose {
        text.push_str(&passed_blocks(record, view));
    }
    if !view.detail.is_brief() {
        text.push_str(&tree_line(record));
        text.push_str(&skill_table(&record.skills, view.layout.columns));
        text.push_str(&view.layout.fit_lines(&notes(record)));
    }
    if let Some(finished) = &record.finished {
        text.push_str(&remote_notice(finished));
        if !view.detail.is_brief() {
            text.push_str(&reuse_line(finished, view));
            text.push_str(&evidence_lines(record, finished, view));
        }
        if finished.exit_code == EXIT_USAGE {
            text.push_str("nothing ran, so the run is not a pass\n");
        }
        text.push_str(&verdict_line(record, finished, view.layout));
    }
    text
}

/// Renders how results are reused, if the caller wants all details.
fn reuse_line(finished: &Finished, view: &ReportOptions<'_>) -> String {
    let Some(reuse) = finished.reuse.as_ref().filter(|_| view.detail == Detail::Verbose) else { return String::new() };
    let remote = reuse.remote.as_ref();
    let remote = remote.map(|remote| format!("{} {}\n", paint(DIM, "remote cache:"), escape_line(&remote.phrase())));
    format!("{} {}\n{}", paint(DIM, "reuse:"), escape_line(&reuse.phrase()), remote.unwrap_or_default())
}

/// Renders the notice about a remote cache that did not work.
fn remote_notice(finished: &Finished) -> String {
    let remote = finished.reuse.as_ref().and_then(|reuse| reuse.remote.as_ref());
    let notice = remote.and_then(RemoteReuse::notice);
    notice.map(|notice| style::warning(&escape_line(&notice))).unwrap_or_default()
}

/// Renders the location of the evidence, and the command that shows more of a failed step's output.
fn evidence_lines(record: &RunRecord, finished: &Finished, view: &ReportOptions<'_>) -> String {
    let mut text = String::new();
    if let Some(directory) = &finished.evidence_dir {
        text.push_str(&format!("{} {}\n", paint(DIM, "evidence:"), escape_line(directory)));
    }
    let step_with_output = record.steps().find(|(_, step)| step.outcome.is_failure() && has_output(step));
    if let (Some(_), Some((skill, step))) = (&record.started, step_with_output) {
        let stderr = if step.stdout.bytes == 0 || step.stderr.bytes > step.stdout.bytes { " --stderr" } else { "" };
        let command = format!("{}{stderr}", logs_command(record, &format!("{skill}/{}", step.planned.name), view));
        text.push_str(&format!("{} {}\n", paint(DIM, "more:"), escape_line(&command)));
    }
    text
}

/// Returns the command that shows the whole output of a step.
fn logs_command(record: &RunRecord, name: &str, view: &ReportOptions<'_>) -> String {
    let run = record.started.as_ref().map_or_else(String::new, |started| format!(" {}", started.run_id));
    escape_line(&format!("proctor logs{run} {name}{}", view.logs_options))
}

fn has_output(step: &StepEvidence) -> bool {
    step.stdout.bytes + step.stderr.bytes > 0
}

/// Renders the satisfied checks and the passed steps, in full.
fn passed_blocks(record: &RunRecord, view: &ReportOptions<'_>) -> String {
    let mut text = String::new();
    for check in record.checks.iter().filter(|check| check.satisfied) {
        let name = format!("toolchain {}", check.toolchain);
        text.push_str(
            &(step_text::render_step(&name, &check.step, "", view) + &step_text::usage_lines(&check.step) + "\n"),
        );
    }
    for (skill, step) in record.steps().filter(|(_, step)| step.outcome == Outcome::Passed) {
        let name = format!("{skill}/{}", step.planned.name);
        text.push_str(&(step_text::render_step(&name, step, "", view) + &step_text::usage_lines(step) + "\n"));
    }
    text
}

/// Renders the changes of fixes, and everything that kept the run from passing: tool checks, failed steps in plan
/// order, steps without a result, and reasons for an inconclusive verdict.
fn failure_blocks(record: &RunRecord, view: &ReportOptions<'_>) -> Vec<String> {
    let checks =
        record.checks.iter().filter(|check| !check.satisfied).map(|check| step_text::render_check(check, view));
    let failures = record.steps().filter(|(_, step)| step.outcome.is_failure());
    let unsure = record.steps().filter(|(_, step)| match step.outcome {
        // A step that was never started has no output.
        Outcome::Cancelled => step.was_started() && view.detail == Detail::Verbose,
        outcome => outcome == Outcome::Inconclusive,
    });
    let steps = failures.chain(unsure).map(|(skill, step)| {
        let name = format!("{skill}/{}", step.planned.name);
        step_text::render_step(&name, step, &logs_command(record, &name, view), view)
    });
    // A failed check has its own block.
    let is_new = |detail: &&InconclusiveDetail| {
        detail.doubt != InconclusiveReason::Toolchain || record.checks.iter().all(|check| check.satisfied)
    };
    let doubts = record
        .doubts
        .iter()
        .filter(is_new)
        .map(|InconclusiveDetail { doubt, message }| view.layout.fit_lines(&inconclusive_block(*doubt, message)));
    let fixed = record.steps().filter(|(_, step)| !step.drift.fixed.is_empty());
    let fixed = fixed.map(|(skill, step)| {
        let name = step.planned.fixes.as_ref().unwrap_or(&step.planned.name);
        step_text::fixed_block(&format!("{skill}/{name}"), step, view.layout)
    });
    fixed.chain(checks).chain(steps).chain(cancelled_block(record, view)).chain(doubts).collect()
}

/// Renders a line for each step that was cancelled while it ran. Its incomplete output explains nothing.
fn cancelled_block(record: &RunRecord, view: &ReportOptions<'_>) -> Option<String> {
    let is_cancelled = |step: &StepEvidence| step.outcome == Outcome::Cancelled && step.was_started();
    let cancelled = record.steps().filter(|(_, step)| is_cancelled(step) && view.detail != Detail::Verbose);
    let lines: String = cancelled
        .map(|(skill, step)| step_text::step_heading(&format!("{skill}/{}", step.planned.name), step, view.layout))
        .collect();
    (!lines.is_empty()).then_some(lines)
}

/// Renders a reason for an inconclusive verdict.
pub(crate) fn inconclusive_block(reason: InconclusiveReason, message: &str) -> String {
    let word = serialized_name(&reason).replace('_', " ");
    format!(
        "{} {}\n",
        paint(UNSURE, format!("inconclusive[{}], {word}:", reason.code())),
        escape_text(message).trim_end()
    )
}

/// Renders the source of the verified tree, unless it is the worktree.
fn tree_line(record: &RunRecord) -> String {
    let Some(TreeSource::Rev { commit, lfs_pointers, .. }) = record.started.as_ref().map(|started| &started.source)
    else {
        return String::new();
    };
    let mut text = format!("{} commit {}, independent of the worktree\n", paint(DIM, "tree:"), escape_line(commit));
    if *lfs_pointers > 0 {
        let files = count(*lfs_pointers as usize, "file");
        text.push_str(&style::warning(&format!(
            "only the pointers of git-lfs for {files} were present, without the content"
        )));
    }
    text
}

/// Renders a line for each skill. A name that is too long gets its own line.
fn skill_table(skills: &[SkillRecord], total_width: usize) -> String {
    if skills.is_empty() {
        return String::new();
    }
    let max_name_width = total_width.saturating_sub(CELLS_WIDTH).max(MIN_NAME_WIDTH);
    let names: Vec<String> = skills.iter().map(|record| escape_line(record.skill.as_str())).collect();
    let width =
        names.iter().map(|name| display_width(name)).filter(|width| *width <= max_name_width).max().unwrap_or(0);
    let mut text = format!("{}\n", paint(DIM, "skills:"));
    let mut last_reason = String::new();
    for (record, name) in skills.iter().zip(names) {
        let is_short = display_width(&name) <= width && width + CELLS_WIDTH <= total_width;
        let head = if is_short { format!("  {}  ", pad(&name, width)) } else { format!("  {name}\n    ") };
        let [cells, steps, reason] = skill_cells(record);
        let reason = if reason == last_reason { String::new() } else { reason };
        last_reason = if reason.is_empty() { last_reason } else { reason.clone() };
        let mut line = format!("{head}{cells}");
        let used = if is_short { width + 4 } else { 4 };
        let left = total_width.saturating_sub(used + CELLS_WIDTH - 4 - STEPS_WIDTH + 2);
        for part in [steps, reason].iter().filter(|part| !part.is_empty()) {
            let fits = display_width(part) <= left && !line.contains("passed\n");
            line.push_str(&if fits { format!("  {part}") } else { format!("\n    {part}") });
        }
        text.push_str(&(line.trim_end().to_owned() + "\n"));
    }
    text
}

/// Width of the cells after a skill's name, in columns, including the blanks between them.
const CELLS_WIDTH: usize = 4 + 12 + 2 + 6 + 2 + 7 + STEPS_WIDTH;
/// Width of the cell that counts the passed steps, in columns.
const STEPS_WIDTH: usize = 2 + 22;
/// Minimum width of a name, in columns.
const MIN_NAME_WIDTH: usize = 16;

/// Returns the cells of a skill: outcome, tier and time; number of passed steps; reason for a deviation from the
/// plan.
fn skill_cells(record: &SkillRecord) -> [String; 3] {
    let Some((outcome, tier)) = record.outcome.zip(record.tier) else {
        return [paint(UNSURE, "did not end"), String::new(), String::new()];
    };
    let passed = record.steps.iter().filter(|step| step.outcome == Outcome::Passed).count();
    let word = paint(style::outcome_style(outcome), pad(outcome_label(outcome), 12));
    let cached = record.cached_steps();
    let steps = match record.planned.len() {
        1 => String::new(),
        // For a skill whose steps are all cached, the column for the time contains a note instead.
        all if cached == 0 || record.is_cached() => format!("{passed} of {all} steps passed"),
        all => format!("{passed} of {all} steps passed, {cached} {CACHED}"),
    };
    [format!("{word}  tier {tier}  {:>7}", record.time_text()), steps, escape_line(&record.reason)]
}

/// Renders remarks that had no influence on the verdict.
fn notes(record: &RunRecord) -> String {
    let mut text = missing_controls_warning(record);
    // The last line names the scope.
    if let Some(sentence) = record.selection_sentence().filter(|_| record.scope().is_none()) {
        let line = escape_line(&sentence);
        let note = || format!("{} {line}\n", paint(DIM, "note:"));
        text.push_str(&if record.is_partial() { style::warning(&line) } else { note() });
    }
    if record.scope().is_none() {
        for (skill, step) in record.steps().filter(|(_, step)| step.outcome == Outcome::NoFiles) {
            let message = format!("{skill}/{} found no file to check in the whole tree", step.planned.name);
            text.push_str(&style::warning(&escape_line(&message)));
        }
    }
    for check in &record.checks {
        if let Some(hidden) = check.hidden_program.as_ref().filter(|_| check.satisfied) {
            let program = check.step.planned.cmd.program();
            let message =
                format!("steps run another `{program}` than your shell, which finds it in `{}`", hidden.directory);
            text.push_str(&style::warning_with_hints(
                &escape_line(&message),
                &[escape_line(&format!("to run that one, {}", hidden.advice))],
            ));
        }
    }
    for (skill, step) in record.steps().filter(|(_, step)| step.flaky) {
        let attempts = step.earlier_attempts.len() + 1;
        let message =
            format!("{skill}/{} passed only on attempt {attempts}; it is recorded as flaky", step.planned.name);
        text.push_str(&style::warning(&escape_line(&message)));
    }
    for (skill, step) in record.steps() {
        if let Some(met) = limits_hit_phrase(step) {
            text.push_str(&style::warning(&escape_line(&format!("{skill}/{} {met}", step.planned.name))));
        }
    }
    text.push_str(&leak_warnings(record));
    text.push_str(&dependence_warnings(record));
    for (skill, step) in record.steps().filter(|(_, step)| step.outcome == Outcome::Passed) {
        for problem in step.found_reports.iter().filter_map(ReportEvidence::problem) {
            text.push_str(&style::warning(&escape_line(&format!("{skill}/{}: {problem}", step.planned.name))));
        }
    }
    for (skill, step) in record.steps().filter(|(_, step)| step.drift.fixed.is_empty()) {
        if let Some(code) = step.failed_fix_code() {
            let message = format!("{skill}/{} fixed nothing, and exited with {code}", step.planned.name);
            text.push_str(&format!("{} {}\n", paint(DIM, "note:"), escape_line(&message)));
        }
    }
    text.push_str(&inputs_notes(record));
    let is_unshown = |step: &StepEvidence| !step.drift.applied.is_empty() && step.drift.fixed.is_empty();
    for (skill, step) in record.steps().filter(|(_, step)| is_unshown(step)) {
        let paths = count(step.drift.applied.len(), "changed path");
        let message = format!("{skill}/{} is `read_only: off`: {paths} applied to the worktree", step.planned.name);
        text.push_str(&format!("{} {}\n", paint(DIM, "note:"), escape_line(&message)));
    }
    text
}

/// Renders a warning for each step whose `per_file` is wrong.
fn dependence_warnings(record: &RunRecord) -> String {
    let warnings = record.steps().filter_map(|(skill, step)| {
        let dependence = step.checked_files.as_ref()?.dependence.as_ref()?;
        Some(format!("{skill}/{}: {}", step.planned.name, dependence.phrase()))
    });
    warnings.map(|warning| style::warning(&escape_line(&warning))).collect()
}

/// Renders a note for each step that passed and looked for files that are not its inputs, or whose `inputs` were not
/// enforced. The block of a step that did not pass contains it.
fn inputs_notes(record: &RunRecord) -> String {
    let executed = record.steps().filter(|(_, step)| step.outcome == Outcome::Passed && !step.is_cached());
    let notes =
        executed.filter_map(|(skill, step)| Some(format!("{skill}/{} {}", step.planned.name, step.inputs_note()?)));
    notes.map(|note| format!("{} {}\n", paint(DIM, "note:"), escape_line(&note))).collect()
}

/// Renders a warning for each check or step that passed but left processes behind.
fn leak_warnings(record: &RunRecord) -> String {
    let checks = record.checks.iter().map(|check| (format!("toolchain {}", check.toolchain), &check.step));
    let steps = record.steps().map(|(skill, step)| (format!("{skill}/{}", step.planned.name), step));
    let warnings = checks.chain(steps).filter_map(|(name, step)| Some(format!("{name} {}", step.leak_warning()?)));
    warnings.map(|warning| style::warning(&escape_line(&warning))).collect()
}

/// Returns the names of the controls that were not enforced for some of these steps.
pub(crate) fn missing_controls<'a>(steps: impl IntoIterator<Item = &'a StepEvidence>) -> Vec<&'static str> {
    let missing: BTreeSet<_> =
        steps.into_iter().flat_map(|step| step.enforcement.missing()).map(|(control, _)| control.as_str()).collect();
    missing.into_iter().collect()
}

/// Maximum number of missing controls that the last line names.
const MAX_NAMED_CONTROLS: usize = 2;

/// Returns the names of the controls that were not enforced in a run.
fn missing_controls_of(record: &RunRecord) -> Vec<&'static str> {
    let checks = record.checks.iter().map(|check| &check.step);
    missing_controls(checks.chain(record.steps().map(|(_, step)| step)))
}

/// Returns the tier, with the controls whose absence makes it tier 2: `tier 2 (no cgroup)`.
fn tier_phrase(record: &RunRecord, tier: Tier) -> String {
    let missing = missing_controls_of(record);
    match missing.len() {
        _ if tier != Tier::TWO => format!("tier {tier}"),
        0 => format!("tier {tier}"),
        1..=MAX_NAMED_CONTROLS => format!("tier {tier} (no {})", missing.join(", no ")),
        number => format!("tier {tier} ({number} controls missing)"),
    }
}

/// Renders a warning with the missing controls, if the last line does not name them.
fn missing_controls_warning(record: &RunRecord) -> String {
    let missing = missing_controls_of(record);
    if missing.len() <= MAX_NAMED_CONTROLS {
        return String::new();
    }
    // `proctor doctor` examines this machine.
    let is_here =
        record.steps().any(|(_, step)| step.cluster().is_none() && step.enforcement.missing().next().is_some());
    let missing = missing.join(", ");
    style::warning(&match is_here {
        true => format!("not enforced: {missing} (see `proctor doctor`)"),
        false => format!("not enforced on the workers: {missing}"),
    })
}

/// Renders the last line: the verdict, "partial" for a partial run, the count of each outcome, tier, tree and time.
fn verdict_line(record: &RunRecord, finished: &Finished, layout: TextLayout) -> String {
    let total: usize = record.skills.iter().map(|skill| skill.planned.len()).sum();
    let mut counts = outcome_counts(record, total);
    let (skills, left_out) = (record.skills.len(), record.partial_rerun().map_or(0, |rerun| rerun.left_out.len()));
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
    let idle = record.steps().filter(|(_, step)| step.outcome == Outcome::NoFiles).count();
    if idle > 0 && finished.verdict == Verdict::Passed {
        parts.push(format!("{idle} without files"));
    }
    parts.extend(record.cached_phrase());
    parts.extend(record.scope().map(|scope| escape_line(&scope.phrase())));
    if left_out > 0 && finished.verdict != Verdict::Passed {
        parts.push(format!("only {of_all}"));
    }
    parts.push(tier_phrase(record, finished.tier));
    parts.extend(record.started.as_ref().map(tree_name));
    parts.push(format!("in {}", duration(finished.duration_ms)));
    parts.extend(record.cancelled_by.as_ref().map(|by| format!("interrupted by {}", escape_line(by))));
    // A script that searches for the last line of a complete run must not match a partial run.
    let partial = if left_out == 0 && record.scope().is_none() { "" } else { "partial run " };
    let word = format!("{partial}{}", finished.verdict.as_str());
    let line = format!("{word}: {}", parts.join(", "));
    // The text stays on one line in a log, because other programs search for it.
    let text = if layout.wraps { wrap(&line, layout.columns).join("\n  ") } else { line };
    format!("{}{}\n", paint(style::verdict_style(finished.verdict), &text[..=word.len()]), &text[word.len() + 1..])
}

/// Returns the shortened name of the verified tree: the first digits of its commit or of its snapshot.
fn tree_name(started: &Started) -> String {
    let short = |hex: &str| hex.chars().take(HASH_DIGITS).collect::<String>();
    match &started.source {
        TreeSource::Rev { commit, .. } => format!("commit {}", escape_line(&short(commit))),
        TreeSource::Worktree { .. } => {
            format!("tree {}", short(started.snapshot.as_str().trim_start_matches("sha256:")))
        }
    }
}

/// Number of hash digits that are shown.
const HASH_DIGITS: usize = 12;

/// Returns the number of steps with each outcome; steps that were never reached count as skipped.
fn outcome_counts(record: &RunRecord, total: usize) -> Vec<String> {
    const ORDER: [Outcome; 8] = [
        Outcome::Drifted,
        Outcome::TimedOut,
        Outcome::Failed,
        Outcome::Inconclusive,
        Outcome::Cancelled,
        Outcome::Passed,
        Outcome::NoFiles,
        Outcome::Skipped,
    ];
    let seen = record.steps().count();
    let unseen = |outcome| if outcome == Outcome::Skipped { total.saturating_sub(seen) } else { 0 };
    let number = |outcome| record.steps().filter(|(_, step)| step.outcome == outcome).count() + unseen(outcome);
    let counted = ORDER.iter().map(|outcome| (*outcome, number(*outcome))).filter(|(_, number)| *number > 0);
    counted.map(|(outcome, number)| format!("{number} {}", outcome_label(outcome))).collect()
}

/// Returns the human-readable name of an outcome.
pub(crate) fn outcome_label(outcome: Outcome) -> &'static str {
    match outcome {
        Outcome::TimedOut => "timed out",
        Outcome::NoFiles => "no files",
        other => other.as_str(),
    }
}

/// Returns the name of an enum value in the documents.
pub(crate) fn serialized_name<T: Serialize>(value: &T) -> String {
    match serde_json::to_value(value) {
        Ok(serde_json::Value::String(word)) => word,
        Ok(other) => other.to_string(),
        Err(_) => String::new(),
    }
}

#[cfg(test)]
mod tests;
