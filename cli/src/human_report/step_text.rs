//! Renders one step as human-readable text: its outcome with the reason, parts of its output, and its changes.

use proctor_core::model::drift::{Change, Diff, StepDrift};
use proctor_core::model::enforcement::ControlState;
use proctor_core::model::leak;
use proctor_core::model::outcome::{LimitKind, Outcome, Termination};
use proctor_core::model::outcome_reason::{self, check_headline, is_plain_end, missing_program};
use proctor_core::model::plan::{PlannedStep, VersionDemand};
use proctor_core::record::evidence::{CheckEvidence, PREVIEW_BYTES, Resources, StepEvidence, StreamEvidence};
use proctor_core::report::failure_hints::failure_hints;
use proctor_core::text::excerpt::{Excerpt, ExcerptLimits, ExcerptPart};
use proctor_core::text::safe_text::strip_colours;

use crate::human_report::serialized_name;
use crate::human_report::{Detail, ReportOptions};
use crate::screen::TextLayout;
use crate::style::{self, ADDED, BAD, DIM, REMOVED, STRONG, paint};
use crate::text::{count, duration, escape_line, size, split_rows};

/// Number of lines shown from the start of a stream.
const HEAD_LINES: usize = 20;
/// Number of lines shown from the end of a stream.
const TAIL_LINES: usize = 10;
/// Number of characters shown of a line.
const MAX_LINE_CHARS: usize = 300;
/// Columns before a line of untrusted text.
const GUTTER_WIDTH: usize = 4;
/// Number of lines shown of one file's diff.
const MAX_DIFF_LINES: usize = 40;
/// Number of changed paths shown.
const MAX_CHANGES: usize = 10;

/// Number of lines of a stream without errors that are shown below a stream with errors.
const MAX_SECONDARY_LINES: usize = 12;

/// Renders the block of a step. `command` shows its whole output.
pub(crate) fn render_step(name: &str, step: &StepEvidence, command: &str, view: &ReportOptions<'_>) -> String {
    let mut text = step_heading(name, step, view.layout);
    let hints = limit_hints(step).into_iter().chain(leak_hint(step)).chain(failure_hints(step, view.outputs));
    hints.for_each(|hint| text.push_str(&hint_line(&hint, view.layout)));
    text.push_str(&format!("  {}\n", paint(DIM, command_line(&step.planned))));
    if let Some(source) = &step.reused {
        let lines = view.layout.fit_line(&escape_line(&format!("  {}", source.phrase())));
        text.push_str(&format!("{}\n", paint(DIM, lines)));
    }
    for note in step.notes() {
        text.push_str(&format!("{}\n", paint(DIM, view.layout.fit_line(&escape_line(&format!("  {note}"))))));
    }
    text.push_str(&drift_block(step, view.layout));
    text.push_str(&streams(step, command, view));
    text
}

/// Renders the first line of the block of a step: `FAIL skill/step (exit 1, 16 ms)`.
pub(crate) fn step_heading(name: &str, step: &StepEvidence, layout: TextLayout) -> String {
    let attempt = match step.earlier_attempts.len() {
        0 => String::new(),
        earlier => format!(", attempt {}", earlier + 1),
    };
    let reason = outcome_reason(step);
    let reason = match is_plain_end(step) {
        true => format!(" ({reason}{attempt})"),
        false => format!(": {reason}{attempt}"),
    };
    let heading =
        Heading { style: style::outcome_style(step.outcome), word: outcome_word(step.outcome), name, reason: &reason };
    heading.render(layout)
}

/// Formats a `hint:` line; on a terminal, in as many lines as it needs.
fn hint_line(hint: &str, layout: TextLayout) -> String {
    let lines = layout.fit_line(&format!("hint: {hint}"));
    format!("{} {}\n", paint(style::HINT, "hint:"), lines.strip_prefix("hint: ").unwrap_or(&lines))
}

/// The first line of a block.
struct Heading<'a> {
    style: anstyle::Style,
    word: &'a str,
    name: &'a str,
    reason: &'a str,
}

impl Heading<'_> {
    /// Renders the line; on a terminal, in as many lines as it needs.
    fn render(&self, layout: TextLayout) -> String {
        let name = escape_line(self.name);
        let lines = layout.fit_line(&format!("{} {name}{}", self.word, self.reason));
        let rest = lines.strip_prefix(self.word).unwrap_or(&lines);
        match rest.strip_prefix(' ').and_then(|rest| rest.strip_prefix(name.as_str())) {
            Some(rest) => format!("{} {}{rest}\n", paint(self.style, self.word), paint(STRONG, name)),
            None => format!("{}{rest}\n", paint(self.style, self.word)),
        }
    }
}

/// Returns the word for an outcome at the start of a line.
pub(crate) fn outcome_word(outcome: Outcome) -> &'static str {
    match outcome {
        Outcome::Passed => "PASS",
        Outcome::Failed => "FAIL",
        Outcome::TimedOut => "TIMEOUT",
        Outcome::Drifted => "DRIFT",
        Outcome::Skipped => "SKIP",
        Outcome::Cancelled => "CANCELLED",
        Outcome::Inconclusive => "INCONCLUSIVE",
        Outcome::NoFiles => "NO FILES",
    }
}

/// Renders the block of a toolchain check that is not satisfied.
pub(crate) fn render_check(check: &CheckEvidence, view: &ReportOptions<'_>) -> String {
    let headline = view.layout.fit_line(&escape_line(&check_headline(check)));
    let (word, rest) = headline.split_once(':').unwrap_or((&headline, ""));
    let mut text = format!("{}{rest}\n", paint(style::BAD, format!("{word}:")));
    if let Some(hint) = check_hint(check) {
        text.push_str(&hint_line(&escape_line(&hint), view.layout));
    }
    let step = &check.step;
    if missing_program(check).is_none() || view.detail == Detail::Verbose {
        text.push_str(&format!("  {}\n", paint(DIM, command_line(&step.planned))));
        text.push_str(&drift_block(step, view.layout));
        text.push_str(&streams(step, "", view));
    }
    text
}

/// Returns what to do about a missing tool, or a tool of a wrong version.
fn check_hint(check: &CheckEvidence) -> Option<String> {
    let Some(program) = missing_program(check) else {
        let is_wrong = check.step.outcome == Outcome::Passed && matches!(check.demand, VersionDemand::Range { .. });
        return is_wrong
            .then(|| "install a version in the range, or change `version` of the check in the spec".to_owned());
    };
    let reason = match &check.step.termination {
        Termination::NotStarted { reason, .. } => reason.as_str(),
        _ => "",
    };
    Some(match reason.split_once(HIDDEN_PROGRAM) {
        Some((_, rest)) => format!("it is {}", rest.trim_start()),
        None if program.contains('/') => "create it in the repository, or remove its check from the spec".to_owned(),
        None => "install it, or remove its check from the spec".to_owned(),
    })
}

/// Renders the two streams, the one with errors first. For a failed step, each shows its errors and its end. If only
/// one stream has an error, the other is reduced to its size if it is long. A line such as `make: *** …` does not count
/// as such an error: the reason can be in the other stream.
fn streams(step: &StepEvidence, command: &str, view: &ReportOptions<'_>) -> String {
    if step.outcome != Outcome::Failed {
        return stream_block("stderr", &step.stderr, view.layout) + &stream_block("stdout", &step.stdout, view.layout);
    }
    let found = view.outputs.streams_by_errors(step).map(|(label, stream)| StreamExcerpt::new(label, stream, view));
    let has_detail = found.iter().any(|found| found.excerpt.has_error_detail());
    let blocks = found.iter().map(|found| match has_detail && found.is_long() && !found.has_error() {
        true => found.size_line(),
        false => found.render(command, view.layout),
    });
    blocks.collect()
}

/// A stream and the lines of it to show.
struct StreamExcerpt<'a> {
    label: &'a str,
    stream: &'a StreamEvidence,
    /// The searched text: the whole stream if it is available, else its beginning and its end.
    text: String,
    is_whole: bool,
    excerpt: Excerpt,
}

impl<'a> StreamExcerpt<'a> {
    fn new(label: &'a str, stream: &'a StreamEvidence, view: &ReportOptions<'_>) -> Self {
        let text = view.outputs.text(stream);
        let excerpt = Excerpt::select(&text.lines().collect::<Vec<_>>(), ExcerptLimits::SCREEN);
        Self { label, stream, text, is_whole: view.outputs.is_whole(stream), excerpt }
    }

    fn has_error(&self) -> bool {
        self.excerpt.has_error_format()
    }

    fn is_long(&self) -> bool {
        !self.is_whole || self.excerpt.total_lines > MAX_SECONDARY_LINES
    }

    fn size_line(&self) -> String {
        format!("  {}\n", paint(DIM, format!("{}: {}, without an error", self.label, size(self.stream.bytes))))
    }

    /// Renders the selected lines and notes about the others.
    fn render(&self, command: &str, layout: TextLayout) -> String {
        if self.stream.bytes == 0 {
            return String::new();
        }
        let lines: Vec<&str> = self.text.lines().collect();
        let mut text = format!("  {}\n", paint(DIM, format!("{}:", self.label)));
        for part in self.excerpt.parts(&lines) {
            text.push_str(&match part {
                ExcerptPart::ErrorLine(line) => gutter(BAD, &strip_colours(line), layout),
                ExcerptPart::Line(line) => gutter(anstyle::Style::new(), &strip_colours(line), layout),
                ExcerptPart::Omitted(number) => gutter(DIM, &format!("(… {})", count(number, "line")), layout),
            });
        }
        text + &self.notes(command, layout)
    }

    /// Renders notes about hidden errors and about a stream that was not stored as a whole.
    fn notes(&self, command: &str, layout: TextLayout) -> String {
        let mut text = String::new();
        if self.excerpt.hidden_errors > 0 {
            let errors = count(self.excerpt.hidden_errors, "more error");
            let stderr = if self.label == "stderr" && !command.is_empty() { " --stderr" } else { "" };
            text.push_str(&format!("  {}\n", layout.fit_line(&format!("{errors}: {command}{stderr}"))));
        }
        let partly_stored = (!self.is_whole && self.stream.kept_bytes < self.stream.bytes)
            .then(|| format!("(… {})", stored_size(self.stream)));
        let notes = partly_stored.into_iter().chain((!self.stream.complete).then(|| CUT_NOTE.to_owned()));
        notes.for_each(|note| text.push_str(&gutter(DIM, &note, layout)));
        text
    }
}

/// The text before the directory of a program that steps do not see, in the reason why it did not start.
const HIDDEN_PROGRAM: &str = "not found. It is ";

/// Note for a stream whose end was not seen.
const CUT_NOTE: &str = "(cut: a process still held it open at the deadline)";

/// Renders resource use and enforced controls of a step, on two lines.
pub(crate) fn usage_lines(step: &StepEvidence) -> String {
    let Resources { user_ms, system_ms, max_rss_kib, memory_peak_kib, .. } = &step.resources;
    let memory = size(memory_peak_kib.unwrap_or(*max_rss_kib).saturating_mul(1024));
    let enforced = step.enforcement.0.values().filter(|state| matches!(state, ControlState::Enforced { .. })).count();
    let missing: Vec<&str> = step.enforcement.missing().map(|(control, _)| control.as_str()).collect();
    let missing = if missing.is_empty() { String::new() } else { format!("; not enforced: {}", missing.join(", ")) };
    let cpu = format!("cpu {} user, {} system; memory {memory}", duration(*user_ms), duration(*system_ms));
    format!("  {}\n  {}\n", paint(DIM, cpu), paint(DIM, format!("{} enforced{missing}", count(enforced, "control"))))
}

/// Formats a command in shell syntax, with its working directory.
pub(crate) fn command_line(step: &PlannedStep) -> String {
    let workdir_note = match step.workdir.as_str() {
        "." => String::new(),
        workdir => format!("  (in {})", escape_line(workdir)),
    };
    format!("$ {}{workdir_note}", escape_line(&step.cmd.to_string()))
}

/// Returns why the step has its outcome.
pub(crate) fn outcome_reason(step: &StepEvidence) -> String {
    escape_line(&outcome_reason::step_reason(step))
}

/// Returns hints for a step that was ended by a limit; empty for others.
pub(crate) fn limit_hints(step: &StepEvidence) -> Vec<String> {
    let Termination::LimitHit { limit, .. } = &step.termination else { return Vec::new() };
    let setting = limit_setting(*limit);
    let flag = setting.replace('_', "-");
    let mut hints = vec![format!("reduce its usage, or raise `limits.{setting}` (`--{flag}` of `proctor exec`)")];
    if *limit == LimitKind::Inodes {
        hints.push(
            "the maximum number of files depends on `limits.disk`: one for each 16 KiB, at least 4096".to_owned(),
        );
    }
    if matches!(limit, LimitKind::Disk | LimitKind::Inodes) {
        let what = "all layers of a run share one limit, and all scratch directories of a step share another";
        hints.push(format!("{what}; put large files that need no verification into `caches`"));
    }
    hints
}

/// Returns a hint for a step that failed because it left processes behind.
pub(crate) fn leak_hint(step: &StepEvidence) -> Option<String> {
    step.forbidden_leak().map(|_| leak::LEAK_HINT.to_owned())
}

/// Returns a phrase with the limits that a passed step hit, or `None` if there were none.
pub(crate) fn limits_hit_phrase(step: &StepEvidence) -> Option<String> {
    let met: Vec<String> =
        step.resources.limits_hit.iter().map(|limit| step.planned.limits.hit_phrase(*limit)).collect();
    (step.outcome == Outcome::Passed && !met.is_empty())
        .then(|| format!("passed although it reached its limit of {}", met.join(" and of ")))
}

/// Returns the name of the setting for a limit.
fn limit_setting(limit: LimitKind) -> &'static str {
    match limit {
        LimitKind::Memory => "memory",
        LimitKind::Pids => "pids",
        LimitKind::Disk | LimitKind::Inodes => "disk",
        LimitKind::CpuSeconds => "cpu_seconds",
    }
}

/// Renders the forbidden changes of a step: paths, kinds and diffs, each bounded.
pub(crate) fn drift_block(step: &StepEvidence, layout: TextLayout) -> String {
    changes_block(&step.drift.found, layout)
}

/// Renders the changes that a `fix` command made to the worktree.
pub(crate) fn fixed_block(name: &str, step: &StepEvidence, layout: TextLayout) -> String {
    let exit = step.failed_fix_code().map(|code| format!(", and the command exited with {code}")).unwrap_or_default();
    let head = format!("{} {}{exit}\n", paint(style::GOOD, "fixed"), paint(STRONG, escape_line(name)));
    head + &changes_block(&step.drift.fixed, layout)
}

fn changes_block(found: &StepDrift, layout: TextLayout) -> String {
    let shown = found.changes_for_display().take(MAX_CHANGES);
    let mut text: String = shown.map(|change| change_block(change, layout)).collect();
    let hidden = found.changes.len().saturating_sub(MAX_CHANGES) + usize::try_from(found.omitted).unwrap_or(usize::MAX);
    if hidden > 0 {
        let paths = count(hidden, "more path");
        let more = match found.omitted {
            0 => format!("{paths} in the evidence"),
            _ => format!("{paths}, of which the evidence has {}", found.changes.len().saturating_sub(MAX_CHANGES)),
        };
        text.push_str(&format!("  {}\n", paint(DIM, more)));
    }
    text
}

fn change_block(change: &Change, layout: TextLayout) -> String {
    let kind = serialized_name(&change.kind).replace('_', " ");
    let mut text = format!("  {kind} {}\n", paint(STRONG, escape_line(&change.path)));
    match &change.diff {
        Diff::Whole { text: diff } => text.push_str(&diff_lines(diff, 0, layout)),
        Diff::Truncated { text: diff, omitted_lines } => text.push_str(&diff_lines(diff, *omitted_lines, layout)),
        Diff::Binary => text.push_str(&gutter(DIM, "(not text)", layout)),
        Diff::Omitted { reason } => text.push_str(&gutter(DIM, &format!("(no diff: {})", escape_line(reason)), layout)),
        Diff::None => {}
    }
    text
}

fn diff_lines(diff: &str, omitted: u64, layout: TextLayout) -> String {
    let lines: Vec<&str> = diff.lines().collect();
    let mut text: String =
        lines.iter().take(MAX_DIFF_LINES).map(|line| gutter(diff_style(line), line, layout)).collect();
    let hidden = u64::try_from(lines.len().saturating_sub(MAX_DIFF_LINES)).unwrap_or(u64::MAX).saturating_add(omitted);
    if hidden > 0 {
        text.push_str(&gutter(DIM, &format!("(… {hidden} more lines)"), layout));
    }
    text
}

fn diff_style(line: &str) -> anstyle::Style {
    match line.as_bytes().first() {
        _ if line.starts_with("+++") || line.starts_with("---") => STRONG,
        Some(b'+') => ADDED,
        Some(b'-') => REMOVED,
        Some(b'@') => DIM,
        _ => anstyle::Style::new(),
    }
}

/// Renders the first and last lines of a stream under its name; empty if the stream is empty.
pub(crate) fn stream_block(label: &str, stream: &StreamEvidence, layout: TextLayout) -> String {
    if stream.bytes == 0 {
        return String::new();
    }
    let mut text = format!("  {}\n", paint(DIM, format!("{label}:")));
    for line in excerpt(stream) {
        match line {
            ExcerptLine::Text(line) => text.push_str(&gutter(anstyle::Style::new(), &strip_colours(&line), layout)),
            ExcerptLine::Omitted(note) => text.push_str(&gutter(DIM, &note, layout)),
        }
    }
    if !stream.complete {
        text.push_str(&gutter(DIM, CUT_NOTE, layout));
    }
    text
}

enum ExcerptLine {
    Text(String),
    Omitted(String),
}

/// Returns the lines to show: all of a short stream, the first and last ones of a long stream.
fn excerpt(stream: &StreamEvidence) -> Vec<ExcerptLine> {
    let is_whole = stream.bytes <= 2 * PREVIEW_BYTES as u64;
    if !is_whole {
        let middle = ExcerptLine::Omitted(format!("(… {})", stored_size(stream)));
        let tail: Vec<&str> = stream.tail.lines().collect();
        let head = stream.preview.lines().take(HEAD_LINES).map(text_line);
        return head.chain([middle]).chain(tail_lines(&tail).iter().map(|line| text_line(line))).collect();
    }
    let whole = format!("{}{}", stream.preview, stream.tail);
    let lines: Vec<&str> = whole.lines().collect();
    if lines.len() <= HEAD_LINES + TAIL_LINES + 1 {
        return lines.into_iter().map(text_line).collect();
    }
    let middle = ExcerptLine::Omitted(format!("(… {} more lines)", lines.len() - HEAD_LINES - TAIL_LINES));
    let head = lines.iter().take(HEAD_LINES).map(|line| text_line(line));
    head.chain([middle]).chain(tail_lines(&lines).iter().map(|line| text_line(line))).collect()
}

/// Returns the size of a stream, and how much of it is stored.
fn stored_size(stream: &StreamEvidence) -> String {
    let all = size(stream.bytes);
    match stream.kept_bytes {
        kept if kept >= stream.bytes => format!("{all} in total, stored in the state directory"),
        kept => format!("{all} in total, {} of them stored in the state directory", size(kept)),
    }
}

fn tail_lines<'a>(lines: &'a [&'a str]) -> &'a [&'a str] {
    &lines[lines.len().saturating_sub(TAIL_LINES)..]
}

fn text_line(line: &str) -> ExcerptLine {
    ExcerptLine::Text(line.to_owned())
}

/// Formats a line of untrusted text with a mark at its left, in as many rows as the terminal needs.
fn gutter(style: anstyle::Style, line: &str, layout: TextLayout) -> String {
    let line = escape_line(&line.replace('\t', "    "));
    let line = match line.char_indices().nth(MAX_LINE_CHARS) {
        Some((at, _)) => format!("{}…", &line[..at]),
        None => line,
    };
    if line.is_empty() {
        return format!("  {}\n", paint(DIM, "|"));
    }
    let width = if layout.wraps { layout.columns.saturating_sub(GUTTER_WIDTH) } else { usize::MAX };
    let rows = split_rows(&line, width);
    rows.iter().map(|row| format!("  {} {}\n", paint(DIM, "|"), paint(style, row))).collect()
}
