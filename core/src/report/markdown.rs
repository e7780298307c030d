//! Writes Markdown for a comment on a pull request and for the summary of a job: a table of steps, then folded
//! details of the steps that did not pass.
//!
//! Untrusted text appears only in `<code>`, in `<pre>` or in a fence, escaped for each. There it can neither
//! mention users nor create links or images.

use super::text::{cut, last_part, leak_warning, line, lines, outcome, short, stream, why};
use super::{CameTo, Content, Refusal, ReportInput, ReportedRun, is_problem, tool};
use crate::drift::{Change, Diff};
use crate::evidence::{CheckEvidence, StepEvidence, TreeKind, TreeSource, escape_output};
use crate::outcome::Outcome;
use crate::plan::ReportFormat;
use crate::record::{RunRecord, SkillRecord};
use crate::verdict::Verdict;
use crate::words::{count, duration};

/// Maximum size of a comment, in bytes: GitHub accepts fewer than 65,536 characters.
pub(super) const COMMENT: usize = 65_000;
/// Maximum number of bytes that are shown of the end of an output.
const EXCERPT: usize = 4 << 10;
/// Maximum number of characters that are shown of an untrusted sentence.
const SENTENCE: usize = 600;
/// Maximum number of failed cases of a tool's report that are named.
const CASES: usize = 20;

/// Returns the text, at most `most` bytes.
pub(super) fn write(input: &ReportInput<'_>, most: usize) -> String {
    write_with(input, &[], most)
}

/// Returns the text with annotations that are not shown elsewhere.
pub(super) fn write_with(input: &ReportInput<'_>, annotations: &[String], most: usize) -> String {
    let mut page = Page { text: String::new(), most: most.saturating_sub(200), left_out: 0 };
    page.add(&heading(input));
    page.add(&left_out(annotations, most / 4));
    for run in input.runs {
        of_run(&mut page, input, run);
    }
    if input.left_out > 0 {
        page.add(&format!(
            "{} of the range were left out after one that did not pass.\n\n",
            count(input.left_out, "more commit")
        ));
    }
    page.end()
}

/// A text that grows by whole parts until the space is used up.
struct Page {
    text: String,
    most: usize,
    left_out: usize,
}

impl Page {
    fn add(&mut self, part: &str) {
        let part = escape_output(part.as_bytes());
        match self.text.len() + part.len() <= self.most {
            true => self.text.push_str(&part),
            false => self.left_out += 1,
        }
    }

    fn end(mut self) -> String {
        if self.left_out > 0 {
            let parts = count(self.left_out, "more part");
            self.text.push_str(&format!("\n_There was no room for {parts}; `proctor report` shows all of it._\n"));
        }
        self.text
    }
}

fn heading(input: &ReportInput<'_>) -> String {
    let (mark, word) = sign(input.verdict());
    let partial = if input.is_partial() { "partial run " } else { "" };
    let commits = match input.runs {
        [_] => String::new(),
        runs => format!(", {}", count(runs.len(), "commit")),
    };
    format!("### {mark} Proctor: {partial}{word}{commits}\n\n")
}

fn sign(verdict: Verdict) -> (&'static str, &'static str) {
    match verdict {
        Verdict::Passed => ("✅", "passed"),
        Verdict::Failed => ("❌", "failed"),
        Verdict::Inconclusive => ("⚠️", "inconclusive"),
    }
}

fn of_run(page: &mut Page, input: &ReportInput<'_>, run: &ReportedRun) {
    if let Some(commit) = &run.commit {
        let (mark, word) = sign(run.verdict());
        page.add(&format!(
            "#### {mark} {} {}: {word}\n\n",
            code(short(&commit.id)),
            code(&cut(&commit.subject, SENTENCE))
        ));
    }
    match &run.came_to {
        CameTo::Run(record) => of_record(page, input, run, record),
        CameTo::Nothing(refusal) => page.add(&of_refusal(refusal)),
    }
}

fn of_refusal(refusal: &Refusal) -> String {
    let mut text =
        format!("**Nothing was verified** (exit code {}).\n\n{}\n", refusal.exit_code, block(&refusal.message));
    for hint in &refusal.hints {
        text.push_str(&format!("Hint: {}\n\n", code(&cut(hint, SENTENCE))));
    }
    text
}

fn of_record(page: &mut Page, input: &ReportInput<'_>, run: &ReportedRun, record: &RunRecord) {
    page.add(&facts(record));
    if let Some(sentence) = record.rerun_sentence() {
        let opening = if record.partial().is_some() { "**Partial run**" } else { "Whole run" };
        page.add(&format!("{opening}: {}\n\n", code(&cut(&sentence.replace('`', ""), SENTENCE))));
    }
    for doubt in &record.doubts {
        let message = cut(&doubt.message, SENTENCE);
        page.add(&format!("**Inconclusive** ({}): {}\n\n", doubt.doubt.as_str().replace('_', " "), code(&message)));
    }
    table(page, record);
    for check in record.checks.iter().filter(|check| !check.satisfied) {
        page.add(&of_check(check));
    }
    for (skill, step) in record.steps().filter(|(_, step)| is_problem(step)) {
        page.add(&details(
            &format!("{skill}/{}", step.planned.name),
            step,
            &drift(&step.drift.found.changes, step.drift.found.omitted),
        ));
    }
    run.files.iter().for_each(|file| page.add(&of_file(file)));
    if input.runs.len() == 1 && !record.evidence.is_empty() {
        page.add(&evidence(record));
    }
}

/// Returns what was verified, on one line.
fn facts(record: &RunRecord) -> String {
    let mut facts = Vec::new();
    if let Some(started) = &record.started {
        facts.push(format!("profile {}", code(started.profile.as_str())));
        if let Some(changeset) = &started.changeset_id {
            facts.push(format!("changeset {}", code(changeset.as_str())));
        }
        facts.push(match &started.source {
            TreeSource::Worktree { tree: TreeKind::Shared } => "the worktree as it was".to_owned(),
            TreeSource::Worktree { tree: TreeKind::Private } => "a private copy of the worktree".to_owned(),
            TreeSource::Rev { commit, .. } => format!("commit {}", code(short(commit))),
        });
        let digest = started.snapshot.as_str();
        facts.push(format!("tree {}", code(short(digest.rsplit(':').next().unwrap_or(digest)))));
        facts.push(format!("run {}", code(started.run_id.as_str())));
    }
    if let Some(finished) = &record.finished {
        facts.push(format!("tier {}", finished.tier));
        facts.push(duration(finished.duration_ms));
    }
    if let Some(by) = &record.cancelled_by {
        facts.push(format!("interrupted by {}", code(by)));
    }
    if facts.is_empty() { String::new() } else { facts.join(" · ") + "\n\n" }
}

fn table(page: &mut Page, record: &RunRecord) {
    if record.skills.is_empty() {
        return;
    }
    let mut text = "| step | outcome | time | why |\n|---|---|--:|---|\n".to_owned();
    let rows: Vec<String> = record.skills.iter().flat_map(rows).collect();
    // A truncated table would be broken, so add whole rows, in at most half of the space.
    let room = page.most / 2;
    let fitting = rows.iter().scan(text.len(), |length, row| {
        *length += row.len();
        (*length <= room).then_some(row)
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

fn rows(skill: &SkillRecord) -> impl Iterator<Item = String> {
    let unseen = skill.planned.iter().filter(|name| !skill.steps.iter().any(|step| step.planned.name == **name));
    let unseen = unseen.map(|name| {
        let why = if skill.reason.is_empty() { String::new() } else { code(&cut(&skill.reason, SENTENCE)) };
        format!("| {} | ➖ skipped | | {why} |\n", code(&format!("{}/{name}", skill.skill)))
    });
    skill.steps.iter().map(|step| row(skill, step)).chain(unseen)
}

fn row(skill: &SkillRecord, step: &StepEvidence) -> String {
    let mark = match step.outcome {
        Outcome::Passed if step.flaky => "🔁",
        Outcome::Passed => "✅",
        Outcome::Failed | Outcome::Drifted | Outcome::TimedOut => "❌",
        Outcome::Skipped => "➖",
        Outcome::Cancelled | Outcome::Inconclusive => "⚠️",
    };
    let reason = (is_problem(step) || step.flaky).then(|| why(step));
    let told: Vec<String> = reason.into_iter().chain(leak_warning(step)).collect();
    let why = if told.is_empty() { String::new() } else { code(&cut(&told.join("; "), SENTENCE)) };
    let name = code(&format!("{}/{}", skill.skill, step.planned.name));
    let flaky = if step.flaky { ", flaky" } else { "" };
    let time = if step.duration_ms == 0 && step.outcome == Outcome::Skipped {
        String::new()
    } else {
        duration(step.duration_ms)
    };
    format!("| {name} | {mark} {}{flaky} | {time} | {why} |\n", outcome(step.outcome))
}

fn of_check(check: &CheckEvidence) -> String {
    details(&format!("toolchain {}", check.toolchain), &check.step, "")
}

/// Returns the details of a step, folded.
fn details(name: &str, step: &StepEvidence, drift: &str) -> String {
    let sentence = code(&cut(&why(step), SENTENCE));
    let mut text = format!("<details><summary>{} {}: {sentence}</summary>\n\n", code(name), outcome(step.outcome));
    text.push_str(&block(&format!("$ {}", cut(&line(&step.planned.cmd.to_string()), SENTENCE))));
    text.push_str(drift);
    for (word, output) in [("stderr", &step.stderr), ("stdout", &step.stdout)] {
        if output.bytes > 0 {
            text.push_str(&format!(
                "{word}, {} bytes:\n\n{}",
                output.bytes,
                block(last_part(&stream(output), EXCERPT))
            ));
        }
    }
    text.push_str("</details>\n\n");
    text
}

fn drift(changes: &[Change], omitted: u64) -> String {
    let mut text = String::new();
    for change in changes {
        let part = match &change.diff {
            Diff::Whole { text } => fence("diff", text),
            Diff::Truncated { text, omitted_lines } => fence("diff", &format!("{text}… {omitted_lines} more lines\n")),
            Diff::Binary => format!("{} (binary)\n\n", code(&change.path)),
            Diff::None | Diff::Omitted { .. } => format!("{}\n\n", code(&change.path)),
        };
        if text.len() + part.len() > 2 * EXCERPT {
            return text + "… and more changed paths\n\n";
        }
        text.push_str(&part);
    }
    if omitted > 0 {
        text.push_str(&format!("… and {omitted} more changed paths\n\n"));
    }
    text
}

/// Returns a summary of a tool's report.
fn of_file(file: &super::ToolFile) -> String {
    let name = format!("{}/{} report {}", file.skill, file.step, line(&file.path));
    let problem = match (&file.content, file.format) {
        (Content::Missing, _) => return String::new(),
        (Content::Unread(problem), _) => problem.clone(),
        (Content::Read(bytes), ReportFormat::Junit) => match tool::junit::read(bytes) {
            Ok(suites) => return cases(&name, &suites),
            Err(problem) => problem,
        },
        (Content::Read(bytes), ReportFormat::Sarif) => match tool::sarif::read(bytes) {
            Ok(runs) => return findings(&name, &runs),
            Err(problem) => problem,
        },
    };
    format!("⚠️ {}\n\n", code(&cut(&format!("{name}: {}", tool::unreadable(&file.path, &problem)), SENTENCE)))
}

fn cases(name: &str, suites: &[tool::junit::Suite]) -> String {
    let all: Vec<_> = suites.iter().flat_map(|suite| &suite.cases).collect();
    let failed: Vec<_> = all.iter().filter_map(|case| Some((case, case.failure()?))).collect();
    let items = failed.iter().map(|(case, end)| {
        let text =
            end.message.as_deref().filter(|text| !text.is_empty()).or(end.text.lines().next()).unwrap_or_default();
        format!("{}: {text}", case.name)
    });
    list(&format!("{}: {} of {} failed", code(name), failed.len(), count(all.len(), "case")), failed.len(), items)
}

fn findings(name: &str, runs: &[tool::sarif::ToolRun]) -> String {
    let found: Vec<_> =
        runs.iter().flat_map(|run| run.results.iter().filter_map(|result| run.finding(result))).collect();
    let items = found.iter().map(|finding| {
        let place = finding.place.as_ref().map(|place| match place.line {
            Some(line) => format!("{}:{line}: ", place.path),
            None => format!("{}: ", place.path),
        });
        let rule = finding.rule.as_ref().map(|rule| format!("{rule}: "));
        format!("{}{}{}", place.unwrap_or_default(), rule.unwrap_or_default(), finding.message)
    });
    list(&format!("{}: {}", code(name), count(found.len(), "finding")), found.len(), items)
}

/// Returns a folded list under a heading; only the heading if the list is empty.
fn list(heading: &str, length: usize, items: impl Iterator<Item = String>) -> String {
    if length == 0 {
        return format!("{heading}\n\n");
    }
    let shown: String = items.take(CASES).map(|item| format!("- {}\n", code(&cut(&item, SENTENCE)))).collect();
    let more = if length > CASES { format!("- and {} more\n", length - CASES) } else { String::new() };
    format!("<details><summary>{heading}</summary>\n\n{shown}{more}\n</details>\n\n")
}

/// Returns the annotations that GitHub does not show in the code, in at most `room` bytes.
fn left_out(annotations: &[String], room: usize) -> String {
    if annotations.is_empty() {
        return String::new();
    }
    let (mut items, mut shown) = (String::new(), 0);
    for annotation in annotations {
        let item = format!("- {}\n", code(&cut(annotation, SENTENCE)));
        if items.len() + item.len() > room {
            break;
        }
        items.push_str(&item);
        shown += 1;
    }
    if shown < annotations.len() {
        items.push_str(&format!("- and {} more, for which there is no room here either\n", annotations.len() - shown));
    }
    let heading = format!("{} are not shown in the code", count(annotations.len(), "more annotation"));
    format!("<details><summary>{heading}</summary>\n\n{items}\n</details>\n\n")
}

fn evidence(record: &RunRecord) -> String {
    let rows = record.evidence.iter().map(|(file, sha256)| format!("- {} {}\n", code(file), code(sha256.as_str())));
    format!("<details><summary>evidence (sha256)</summary>\n\n{}\n</details>\n\n", rows.collect::<String>())
}

/// The ASCII punctuation that has no meaning in Markdown or HTML inside a line.
const PLAIN: &str = ",-+=%()/;?";

/// Formats untrusted text inside a line. Every character that Markdown or HTML could interpret becomes a character
/// reference, which cannot form structure (CommonMark 0.31, 2.5).
pub(super) fn code(text: &str) -> String {
    let one = |c: char| match c {
        c if c.is_ascii_punctuation() && !PLAIN.contains(c) => format!("&#{};", u32::from(c)),
        c => c.to_string(),
    };
    format!("<code>{}</code>", line(text).chars().map(one).collect::<String>())
}

/// Formats untrusted text as a block. Markdown is not interpreted inside `<pre>`.
fn block(text: &str) -> String {
    let text = lines(text).replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;");
    format!("<pre>{}</pre>\n\n", text.trim_end_matches('\n'))
}

/// Formats untrusted text as a fenced block; the fence is longer than any in the text.
fn fence(language: &str, text: &str) -> String {
    let text = lines(text);
    let longest = text.split(|c| c != '`').map(str::len).max().unwrap_or(0);
    let fence = "`".repeat(longest.max(2) + 1);
    format!("{fence}{language}\n{}\n{fence}\n\n", text.trim_end_matches('\n'))
}
