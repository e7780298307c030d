//! Writes Markdown for a comment on a pull request and for the summary of a job: a table of steps, then folded
//! details of the steps that did not pass.
//!
//! Untrusted text appears only in `<code>`, in `<pre>` or in a fence, escaped for each. There it can neither
//! mention users nor create links or images.

use super::failure_hints::failure_hints;
use super::output_excerpt::output_excerpts;
use super::report_text::{
    leak_warning, neutralize_lines, outcome_reason, outcome_text, short_id, single_line, truncate_chars,
};
use super::tool;
use crate::decision::verdict::Verdict;
use crate::model::drift::{Diff, StepDrift};
use crate::model::outcome::Outcome;
use crate::model::plan::ReportFormat;
use crate::record::evidence::{CheckEvidence, StepEvidence, TreeKind, TreeSource};
use crate::record::run_record::{RunRecord, SkillRecord};
use crate::report::report_input::{
    ReportInput, ReportedRefusal, ReportedRun, RunResult, ToolReportContent, is_problem,
};
use crate::text::escape::escape_output;
use crate::text::excerpt::ExcerptLimits;
use crate::text::humanize::{count, duration};

/// Maximum size of a comment, in bytes: GitHub accepts fewer than 65,536 characters.
pub(super) const MAX_COMMENT_BYTES: usize = 65_000;
/// The part that is shown of an output.
const EXCERPT: ExcerptLimits = ExcerptLimits { lines: 80, bytes: 4 << 10 };
/// Maximum number of bytes that are shown of the changes of a step.
const MAX_DIFF_BYTES: usize = 8 << 10;
/// Maximum number of characters that are shown of an untrusted sentence.
const MAX_SENTENCE_CHARS: usize = 600;
/// Maximum number of failed cases of a tool's report that are named.
const MAX_LISTED_CASES: usize = 20;

/// Returns the text, at most `most` bytes.
pub(super) fn render(input: &ReportInput<'_>, max_bytes: usize) -> String {
    render_with_annotations(input, &[], max_bytes)
}

/// Returns the text with annotations that are not shown elsewhere.
pub(super) fn render_with_annotations(input: &ReportInput<'_>, annotations: &[String], max_bytes: usize) -> String {
    let mut page = BoundedMarkdown { text: String::new(), max_bytes: max_bytes.saturating_sub(200), left_out: 0 };
    page.add(&heading(input));
    page.add(&left_out_annotations(annotations, max_bytes / 4));
    for run in input.runs {
        add_run(&mut page, input, run);
    }
    if input.left_out > 0 {
        page.add(&format!(
            "{} of the range were left out after one that did not pass.\n\n",
            count(input.left_out, "more commit")
        ));
    }
    page.finish()
}

/// A text that grows by whole parts until the space is used up.
struct BoundedMarkdown {
    text: String,
    max_bytes: usize,
    left_out: usize,
}

impl BoundedMarkdown {
    fn add(&mut self, part: &str) {
        let part = escape_output(part.as_bytes());
        match self.text.len() + part.len() <= self.max_bytes {
            true => self.text.push_str(&part),
            false => self.left_out += 1,
        }
    }

    fn finish(mut self) -> String {
        if self.left_out > 0 {
            let parts = count(self.left_out, "more part");
            self.text.push_str(&format!("\n_{parts} did not fit; `proctor report` shows everything._\n"));
        }
        self.text
    }
}

fn heading(input: &ReportInput<'_>) -> String {
    let (mark, word) = verdict_sign(input.verdict());
    let partial = if input.is_partial() { "partial run " } else { "" };
    let commits = match input.runs {
        [_] => String::new(),
        runs => format!(", {}", count(runs.len(), "commit")),
    };
    format!("### {mark} Proctor: {partial}{word}{commits}\n\n")
}

fn verdict_sign(verdict: Verdict) -> (&'static str, &'static str) {
    match verdict {
        Verdict::Passed => ("✅", "passed"),
        Verdict::Failed => ("❌", "failed"),
        Verdict::Inconclusive => ("⚠️", "inconclusive"),
    }
}

fn add_run(page: &mut BoundedMarkdown, input: &ReportInput<'_>, run: &ReportedRun) {
    if let Some(commit) = &run.commit {
        let (mark, word) = verdict_sign(run.verdict());
        page.add(&format!(
            "#### {mark} {} {}: {word}\n\n",
            inline_code(short_id(&commit.id)),
            inline_code(&truncate_chars(&commit.subject, MAX_SENTENCE_CHARS))
        ));
    }
    match &run.result {
        RunResult::Recorded(record) => add_record(page, input, run, record),
        RunResult::Refused(refusal) => page.add(&refusal_text(refusal)),
    }
}

fn refusal_text(refusal: &ReportedRefusal) -> String {
    let mut text = format!(
        "**Nothing was verified** (exit code {}).\n\n{}\n",
        refusal.exit_code,
        preformatted_block(&refusal.message)
    );
    for hint in &refusal.hints {
        text.push_str(&format!("Hint: {}\n\n", inline_code(&truncate_chars(hint, MAX_SENTENCE_CHARS))));
    }
    text
}

fn add_record(page: &mut BoundedMarkdown, input: &ReportInput<'_>, run: &ReportedRun, record: &RunRecord) {
    page.add(&run_facts(record));
    if let Some(sentence) = record.selection_sentence() {
        let opening = if record.is_partial() { "**Partial run**" } else { "Whole run" };
        page.add(&format!(
            "{opening}: {}\n\n",
            inline_code(&truncate_chars(&sentence.replace('`', ""), MAX_SENTENCE_CHARS))
        ));
    }
    if let Some(sentence) = record.cached_sentence() {
        page.add(&format!("{}\n\n", inline_code(&sentence)));
    }
    for doubt in &record.doubts {
        let message = truncate_chars(&doubt.message, MAX_SENTENCE_CHARS);
        page.add(&format!(
            "**Inconclusive** ({}): {}\n\n",
            doubt.doubt.as_str().replace('_', " "),
            inline_code(&message)
        ));
    }
    add_step_table(page, record);
    for check in record.checks.iter().filter(|check| !check.satisfied) {
        page.add(&check_details(run, check));
    }
    for (skill, step) in record.steps().filter(|(_, step)| is_problem(step)) {
        page.add(&step_details(run, &format!("{skill}/{}", step.planned.name), step, &drift_text(&step.drift.found)));
    }
    run.tool_reports.iter().for_each(|file| page.add(&tool_report_summary(file)));
    if input.runs.len() == 1 && !record.evidence.is_empty() {
        page.add(&evidence_list(record));
    }
}

/// Returns what was verified, on one line.
fn run_facts(record: &RunRecord) -> String {
    let mut facts = Vec::new();
    if let Some(started) = &record.started {
        facts.push(format!("profile {}", inline_code(started.profile.as_str())));
        if let Some(changeset) = &started.changeset_id {
            facts.push(format!("changeset {}", inline_code(changeset.as_str())));
        }
        facts.push(match &started.source {
            TreeSource::Worktree { tree: TreeKind::Shared } => "the worktree itself".to_owned(),
            TreeSource::Worktree { tree: TreeKind::Private } => "a private copy of the worktree".to_owned(),
            TreeSource::Rev { commit, .. } => format!("commit {}", inline_code(short_id(commit))),
        });
        let digest = started.snapshot.as_str();
        facts.push(format!("tree {}", inline_code(short_id(digest.rsplit(':').next().unwrap_or(digest)))));
        facts.push(format!("run {}", inline_code(started.run_id.as_str())));
    }
    if let Some(finished) = &record.finished {
        facts.push(format!("tier {}", finished.tier));
        facts.push(duration(finished.duration_ms));
    }
    if let Some(by) = &record.cancelled_by {
        facts.push(format!("interrupted by {}", inline_code(by)));
    }
    if facts.is_empty() { String::new() } else { facts.join(" · ") + "\n\n" }
}

fn add_step_table(page: &mut BoundedMarkdown, record: &RunRecord) {
    if record.skills.is_empty() {
        return;
    }
    let mut text = "| step | outcome | time | why |\n|---|---|--:|---|\n".to_owned();
    let rows: Vec<String> = record.skills.iter().flat_map(skill_rows).collect();
    // A truncated table would be broken, so add whole rows, in at most half of the space.
    let max_table_bytes = page.max_bytes / 2;
    let fitting = rows.iter().scan(text.len(), |length, row| {
        *length += row.len();
        (*length <= max_table_bytes).then_some(row)
    });
    let mut shown = 0;
    for row in fitting {
        text.push_str(row);
        shown += 1;
    }
    if shown < rows.len() {
        text.push_str(&format!("| and {} more | | | |\n", rows.len() - shown));
    }
    page.add(&(text + "\n"));
}

fn skill_rows(skill: &SkillRecord) -> impl Iterator<Item = String> {
    let unseen = skill.planned.iter().filter(|name| !skill.steps.iter().any(|step| step.planned.name == **name));
    let unseen = unseen.map(|name| {
        let why = if skill.reason.is_empty() {
            String::new()
        } else {
            inline_code(&truncate_chars(&skill.reason, MAX_SENTENCE_CHARS))
        };
        format!("| {} | ➖ skipped | | {why} |\n", inline_code(&format!("{}/{name}", skill.skill)))
    });
    skill.steps.iter().map(|step| step_row(skill, step)).chain(unseen)
}

fn step_row(skill: &SkillRecord, step: &StepEvidence) -> String {
    let mark = match step.outcome {
        Outcome::Passed if step.flaky => "🔁",
        Outcome::Passed => "✅",
        Outcome::Failed | Outcome::Drifted | Outcome::TimedOut => "❌",
        Outcome::Skipped | Outcome::NoFiles => "➖",
        Outcome::Cancelled | Outcome::Inconclusive => "⚠️",
    };
    let has_note = step.notes().next().is_some();
    let reason = (is_problem(step) || step.flaky || step.is_cached() || has_note).then(|| outcome_reason(step));
    let reasons: Vec<String> = reason.into_iter().chain(leak_warning(step)).collect();
    let why = if reasons.is_empty() {
        String::new()
    } else {
        inline_code(&truncate_chars(&reasons.join("; "), MAX_SENTENCE_CHARS))
    };
    let name = inline_code(&format!("{}/{}", skill.skill, step.planned.name));
    let flaky = if step.flaky { ", flaky" } else { "" };
    let time = if step.duration_ms == 0 && step.outcome.is_left_out() { String::new() } else { step.time_text() };
    format!("| {name} | {mark} {}{flaky} | {time} | {why} |\n", outcome_text(step.outcome))
}

fn check_details(run: &ReportedRun, check: &CheckEvidence) -> String {
    step_details(run, &format!("toolchain {}", check.toolchain), &check.step, "")
}

/// Returns the details of a step, folded.
fn step_details(run: &ReportedRun, name: &str, step: &StepEvidence, drift: &str) -> String {
    let sentence = inline_code(&truncate_chars(&outcome_reason(step), MAX_SENTENCE_CHARS));
    let mut text =
        format!("<details><summary>{} {}: {sentence}</summary>\n\n", inline_code(name), outcome_text(step.outcome));
    text.push_str(&preformatted_block(&format!(
        "$ {}",
        truncate_chars(&single_line(&step.planned.cmd.to_string()), MAX_SENTENCE_CHARS)
    )));
    text.push_str(drift);
    for excerpt in output_excerpts(run, name, step, EXCERPT) {
        let block = preformatted_block(&excerpt.text);
        text.push_str(&format!("{}, {} bytes:\n\n{block}", excerpt.stream, excerpt.bytes));
    }
    for hint in failure_hints(step, &run.outputs) {
        text.push_str(&format!("Hint: {}\n\n", inline_code(&hint)));
    }
    text.push_str("</details>\n\n");
    text
}

fn drift_text(found: &StepDrift) -> String {
    let mut text = String::new();
    for change in found.changes_for_display() {
        let part = match &change.diff {
            Diff::Whole { text } => fenced_block("diff", text),
            Diff::Truncated { text, omitted_lines } => {
                fenced_block("diff", &format!("{text}… {omitted_lines} more lines\n"))
            }
            Diff::Binary => format!("{} (binary)\n\n", inline_code(&change.path)),
            Diff::None | Diff::Omitted { .. } => format!("{}\n\n", inline_code(&change.path)),
        };
        if text.len() + part.len() > MAX_DIFF_BYTES {
            return text + "… and more changed paths\n\n";
        }
        text.push_str(&part);
    }
    if found.omitted > 0 {
        text.push_str(&format!("… and {} more changed paths\n\n", found.omitted));
    }
    text
}

/// Returns a summary of a tool's report.
fn tool_report_summary(file: &crate::report::report_input::ToolReport) -> String {
    let name = format!("{}/{} report {}", file.skill, file.step, single_line(&file.path));
    let problem = match (&file.content, file.format) {
        (ToolReportContent::Missing, _) => return String::new(),
        (ToolReportContent::Unavailable(problem), _) => problem.clone(),
        (ToolReportContent::Read(bytes), ReportFormat::Junit) => match tool::junit_reader::parse(bytes) {
            Ok(suites) => return case_list(&name, &suites),
            Err(error) => error.to_string(),
        },
        (ToolReportContent::Read(bytes), ReportFormat::Sarif) => match tool::sarif_reader::parse(bytes) {
            Ok(runs) => return finding_list(&name, &runs),
            Err(error) => error.to_string(),
        },
    };
    format!(
        "⚠️ {}\n\n",
        inline_code(&truncate_chars(
            &format!("{name}: {}", tool::unreadable_report_message(&file.path, &problem)),
            MAX_SENTENCE_CHARS
        ))
    )
}

fn case_list(name: &str, suites: &[tool::junit_reader::JunitSuite]) -> String {
    let all: Vec<_> = suites.iter().flat_map(|suite| &suite.cases).collect();
    let failed: Vec<_> = all.iter().filter_map(|case| Some((case, case.failure()?))).collect();
    let items = failed.iter().map(|(case, end)| {
        let text =
            end.message.as_deref().filter(|text| !text.is_empty()).or(end.text.lines().next()).unwrap_or_default();
        format!("{}: {text}", case.name)
    });
    folded_list(
        &format!("{}: {} of {} failed", inline_code(name), failed.len(), count(all.len(), "case")),
        failed.len(),
        items,
    )
}

fn finding_list(name: &str, runs: &[tool::sarif_reader::SarifRun]) -> String {
    let found: Vec<_> =
        runs.iter().flat_map(|run| run.results.iter().filter_map(|result| run.to_finding(result))).collect();
    let items = found.iter().map(|finding| {
        let place = finding.location.as_ref().map(|place| match place.line {
            Some(line) => format!("{}:{line}: ", place.path),
            None => format!("{}: ", place.path),
        });
        let rule = finding.rule.as_ref().map(|rule| format!("{rule}: "));
        format!("{}{}{}", place.unwrap_or_default(), rule.unwrap_or_default(), finding.message)
    });
    folded_list(&format!("{}: {}", inline_code(name), count(found.len(), "finding")), found.len(), items)
}

/// Returns a folded list under a heading; only the heading if the list is empty.
fn folded_list(heading: &str, length: usize, items: impl Iterator<Item = String>) -> String {
    if length == 0 {
        return format!("{heading}\n\n");
    }
    let shown: String = items
        .take(MAX_LISTED_CASES)
        .map(|item| format!("- {}\n", inline_code(&truncate_chars(&item, MAX_SENTENCE_CHARS))))
        .collect();
    let more =
        if length > MAX_LISTED_CASES { format!("- and {} more\n", length - MAX_LISTED_CASES) } else { String::new() };
    format!("<details><summary>{heading}</summary>\n\n{shown}{more}\n</details>\n\n")
}

/// Returns the annotations that GitHub does not show in the code, in at most `room` bytes.
fn left_out_annotations(annotations: &[String], max_bytes: usize) -> String {
    if annotations.is_empty() {
        return String::new();
    }
    let (mut items, mut shown) = (String::new(), 0);
    for annotation in annotations {
        let item = format!("- {}\n", inline_code(&truncate_chars(annotation, MAX_SENTENCE_CHARS)));
        if items.len() + item.len() > max_bytes {
            break;
        }
        items.push_str(&item);
        shown += 1;
    }
    if shown < annotations.len() {
        items.push_str(&format!("- and {} more, which do not fit here either\n", annotations.len() - shown));
    }
    let heading = format!("{} are not shown in the code", count(annotations.len(), "more annotation"));
    format!("<details><summary>{heading}</summary>\n\n{items}\n</details>\n\n")
}

fn evidence_list(record: &RunRecord) -> String {
    let rows = record
        .evidence
        .iter()
        .map(|(file, sha256)| format!("- {} {}\n", inline_code(file), inline_code(&sha256.to_string())));
    format!("<details><summary>evidence (sha256)</summary>\n\n{}\n</details>\n\n", rows.collect::<String>())
}

/// The ASCII punctuation that has no meaning in Markdown or HTML inside a line.
const LITERAL_PUNCTUATION: &str = ",-+=%()/;?";

/// Formats untrusted text inside a line. Every character that Markdown or HTML could interpret becomes a character
/// reference, which cannot form structure (CommonMark 0.31, 2.5).
pub(super) fn inline_code(text: &str) -> String {
    let one = |c: char| match c {
        c if c.is_ascii_punctuation() && !LITERAL_PUNCTUATION.contains(c) => format!("&#{};", u32::from(c)),
        c => c.to_string(),
    };
    format!("<code>{}</code>", single_line(text).chars().map(one).collect::<String>())
}

/// Formats untrusted text as a block. Markdown is not interpreted inside `<pre>`.
fn preformatted_block(text: &str) -> String {
    let text = neutralize_lines(text).replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;");
    format!("<pre>{}</pre>\n\n", text.trim_end_matches('\n'))
}

/// Formats untrusted text as a fenced block; the fence is longer than any in the text.
fn fenced_block(language: &str, text: &str) -> String {
    let text = neutralize_lines(text);
    let longest = text.split(|c| c != '`').map(str::len).max().unwrap_or(0);
    let fence = "`".repeat(longest.max(2) + 1);
    format!("{fence}{language}\n{}\n{fence}\n\n", text.trim_end_matches('\n'))
}
