//! Writes annotations as workflow commands of GitHub Actions, the summary of the workflow step, and its outputs
//! (<https://docs.github.com/actions/reference/workflow-commands-for-github-actions>).
//!
//! GitHub shows ten errors, ten warnings and ten notices of one step, and fifty of a job. It drops further ones
//! silently, so the tenth annotation reports how many more there are. Output of steps is printed only between
//! `::stop-commands::` and a token that steps cannot know.

use std::collections::VecDeque;

use super::failure_hints::failure_hints;
use super::output_excerpt::output_excerpts;
use super::output_findings::{OutputFinding, output_findings};
use super::report_text::{
    change_kind_text as change_word, first_changed_line, leak_warning, neutralize_lines, outcome_reason, single_line,
    truncate_chars,
};
use super::tool::sarif_reader::FindingLevel;
use super::{markdown, tool};
use crate::model::names::SkillName;
use crate::model::outcome::Outcome;
use crate::model::plan::ReportFormat;
use crate::record::evidence::StepEvidence;
use crate::record::run_record::RunRecord;
use crate::report::report_input::{ReportInput, ReportedRun, RunResult, ToolReport, ToolReportContent, is_problem};
use crate::text::escape::escape_output;
use crate::text::excerpt::ExcerptLimits;
use crate::text::humanize::count;

/// Maximum number of annotations of one level that GitHub shows for a step.
const MAX_PER_LEVEL: usize = 10;
/// The part that is printed of each output stream.
const EXCERPT: ExcerptLimits = ExcerptLimits { lines: 100, bytes: 8 << 10 };
/// Maximum number of steps whose number of checked files is printed.
const MAX_PARTLY_CHECKED: usize = 100;
/// Maximum number of characters in an annotation's message.
const MAX_MESSAGE_CHARS: usize = 2_000;
/// Maximum size of a step's summary, in bytes. GitHub accepts 1 MiB.
const MAX_SUMMARY_BYTES: usize = 1_000_000;
/// GitHub's limit for a step's summary, in bytes, for all programs that write to it together. GitHub rejects a
/// larger summary as a whole.
pub(super) const GITHUB_SUMMARY_LIMIT: usize = 1 << 20;
/// Minimum free space for a summary, in bytes: enough for one sentence and the note that the rest was left out.
const MIN_SUMMARY_BYTES: usize = 512;

/// The annotations of one command: those within GitHub's limits, and the others.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Annotations {
    /// The workflow commands, one line each.
    pub commands: Vec<String>,
    /// The other annotations, one line each: location and message.
    pub left_out: Vec<String>,
}

/// An output of the workflow step.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WorkflowOutput {
    /// The name of the output.
    pub name: &'static str,
    /// The value of the output.
    pub value: String,
}

/// Returns the text for the log: the output of steps that did not pass, then the annotations, then the verdict.
pub(super) fn render(input: &ReportInput<'_>) -> String {
    let mut text = String::new();
    for run in input.runs {
        if let RunResult::Recorded(record) = &run.result {
            let checks = record.checks.iter().filter(|check| !check.satisfied);
            let checks = checks.map(|check| (format!("toolchain {}", check.toolchain), &check.step));
            let steps = record.steps().filter(|(_, step)| is_problem(step));
            let steps = steps.map(|(skill, step)| (format!("{skill}/{}", step.planned.name), step));
            checks.chain(steps).for_each(|(name, step)| {
                text.push_str(&output_group(input, run, &name, step));
            });
        }
    }
    let Annotations { commands, left_out } = select_annotations(input);
    commands.iter().for_each(|command| text.push_str(&format!("{command}\n")));
    if !left_out.is_empty() {
        let more = count(left_out.len(), "more annotation");
        text.push_str(&format!("{more}, which GitHub does not show here; the summary lists them\n"));
    }
    for sentence in input.runs.iter().filter_map(|run| run.record()?.cached_sentence()) {
        text.push_str(&format!("{sentence}\n"));
    }
    let records = input.runs.iter().filter_map(|run| run.record());
    for sentence in records.flat_map(|record| record.files_sentences()).take(MAX_PARTLY_CHECKED) {
        text.push_str(&format!("{}\n", neutralize_lines(&single_line(&sentence))));
    }
    let partial = if input.is_partial() { "partial run " } else { "" };
    text.push_str(&format!("proctor: {partial}{}\n", input.verdict().as_str()));
    text
}

/// Returns the output of one step as a folded group of the log.
fn output_group(input: &ReportInput<'_>, run: &ReportedRun, name: &str, step: &StepEvidence) -> String {
    let heading = format!("{}{name} {}", run.commit_prefix(), outcome_reason(step));
    let mut text = format!("::group::{}\n", escape_message(&heading));
    text.push_str(&format!("::stop-commands::{}\n", input.token));
    text.push_str(&format!("$ {}\n", neutralize_lines(&single_line(&step.planned.cmd.to_string()))));
    for excerpt in output_excerpts(run, name, step, EXCERPT) {
        let shown = neutralize_lines(&excerpt.text);
        text.push_str(&format!("[{}, {} bytes]\n{}\n", excerpt.stream, excerpt.bytes, shown.trim_end_matches('\n')));
    }
    for hint in failure_hints(step, &run.outputs) {
        text.push_str(&format!("hint: {}\n", neutralize_lines(&hint)));
    }
    text.push_str(&format!("::{}::\n::endgroup::\n", input.token));
    text
}

/// An annotation.
struct Annotation {
    level: FindingLevel,
    path: Option<String>,
    line: Option<u64>,
    column: Option<u64>,
    title: String,
    message: String,
}

impl Annotation {
    /// Returns `path:line: title: message` on one line.
    fn to_text(&self) -> String {
        let place = self.path.as_ref().map(|path| match self.line {
            Some(line) => format!("{path}:{line}: "),
            None => format!("{path}: "),
        });
        // Most messages begin with the title.
        let title = Some(format!("{}: ", self.title)).filter(|_| !self.message.starts_with(&self.title));
        format!("{}{}{}", place.unwrap_or_default(), title.unwrap_or_default(), self.message)
    }

    fn to_command(&self, below: &str) -> String {
        let word = match self.level {
            FindingLevel::Error => "error",
            FindingLevel::Warning => "warning",
            FindingLevel::Note => "notice",
        };
        let mut properties = Vec::new();
        if let Some(path) = &self.path {
            let path = if below.is_empty() { path.clone() } else { format!("{below}/{path}") };
            properties.push(format!("file={}", escape_property(&path)));
            properties.extend(self.line.map(|line| format!("line={line}")));
            properties.extend(self.line.and(self.column).map(|column| format!("col={column}")));
        }
        properties.push(format!(
            "title={}",
            escape_property(&truncate_chars(&neutralize_lines(&single_line(&self.title)), 200))
        ));
        format!(
            "::{word} {}::{}",
            properties.join(","),
            escape_message(&truncate_chars(&neutralize_lines(&self.message), MAX_MESSAGE_CHARS))
        )
    }
}

/// Returns the annotations in order of priority, as many of each level as GitHub shows: first drift, then one of
/// each step that did not pass, then the rest.
pub fn select_annotations(input: &ReportInput<'_>) -> Annotations {
    let mut drift = Vec::new();
    let mut queues: Vec<VecDeque<Annotation>> = Vec::new();
    for run in input.runs {
        drift.extend(drift_annotations(run));
        queues.extend(run_annotations(run));
    }
    let mut notes = drift;
    // Takes findings round-robin, so that a step with a thousand findings leaves room for the other steps.
    while queues.iter().any(|queue| !queue.is_empty()) {
        notes.extend(queues.iter_mut().filter_map(VecDeque::pop_front));
    }
    let mut selected = Annotations::default();
    for level in [FindingLevel::Error, FindingLevel::Warning, FindingLevel::Note] {
        let of_level: Vec<&Annotation> = notes.iter().filter(|note| note.level == level).collect();
        let is_all = of_level.len() <= MAX_PER_LEVEL;
        let shown = if is_all { of_level.len() } else { MAX_PER_LEVEL - 1 };
        selected.commands.extend(of_level.iter().take(shown).map(|note| note.to_command(input.repository_prefix)));
        if !is_all {
            let more = of_level.len() - shown;
            selected.left_out.extend(of_level.iter().skip(shown).map(|note| note.to_text()));
            let title = format!("{more} more");
            let message =
                format!("GitHub shows {MAX_PER_LEVEL} of a kind; the summary of this step lists the other {more}");
            let note = Annotation { level, path: None, line: None, column: None, title, message };
            selected.commands.push(note.to_command(input.repository_prefix));
        }
    }
    selected
}

/// Returns an annotation for each path that a step changed.
fn drift_annotations(run: &ReportedRun) -> Vec<Annotation> {
    let Some(record) = run.record() else { return Vec::new() };
    let notes = record.steps().filter(|(_, step)| step.outcome == Outcome::Drifted).flat_map(|(skill, step)| {
        let title = format!("{}drift by {skill}/{}", run.commit_prefix(), step.planned.name);
        step.drift.found.changes_for_display().map(move |change| Annotation {
            level: FindingLevel::Error,
            path: Some(change.path.clone()),
            line: Some(first_changed_line(change)),
            column: None,
            title: title.clone(),
            message: format!("{title}: {} {}", change_word(change.kind), change.path),
        })
    });
    notes.collect()
}

/// Returns the other annotations of a run, one queue for each step.
fn run_annotations(run: &ReportedRun) -> Vec<VecDeque<Annotation>> {
    match &run.result {
        RunResult::Refused(refusal) => {
            let message = [&refusal.message].into_iter().chain(&refusal.hints).cloned().collect::<Vec<_>>().join("\n");
            vec![[error_annotation(format!("{}nothing was verified", run.commit_prefix()), message)].into()]
        }
        RunResult::Recorded(record) => {
            let mut queues = vec![general_annotations(run, record)];
            for (skill, step) in record.steps() {
                let found = run
                    .tool_reports_of(skill, &step.planned.name)
                    .flat_map(|file| tool_report_annotations(run, file, step));
                let mut queue: VecDeque<Annotation> = found.collect();
                queue.extend(leak_annotation(run, &format!("{skill}/{}", step.planned.name), step));
                if !queue.iter().any(|note| note.level == FindingLevel::Error) {
                    queue.extend(finding_annotations(run, skill, step));
                }
                let has_error = queue.iter().any(|note| note.level == FindingLevel::Error);
                if is_problem(step) && step.outcome != Outcome::Drifted && !has_error {
                    let title = format!("{}{skill}/{}", run.commit_prefix(), step.planned.name);
                    queue.push_front(error_annotation(title.clone(), format!("{title} {}", outcome_reason(step))));
                }
                queues.push(queue);
            }
            queues
        }
    }
}

/// Returns the annotations for errors in the output of a step.
fn finding_annotations(
    run: &ReportedRun,
    skill: &SkillName,
    step: &StepEvidence,
) -> impl Iterator<Item = Annotation> + use<> {
    let title = format!("{}{skill}/{}", run.commit_prefix(), step.planned.name);
    output_findings(run, step).into_iter().map(move |OutputFinding { path, line, column, message }| Annotation {
        level: FindingLevel::Error,
        path: Some(path),
        line: Some(line),
        column,
        title: title.clone(),
        message,
    })
}

/// Returns the annotations that belong to no step of a skill: toolchain checks, reasons for an inconclusive
/// verdict, and left-out skills.
fn general_annotations(run: &ReportedRun, record: &RunRecord) -> VecDeque<Annotation> {
    let checks = record.checks.iter().filter(|check| !check.satisfied).map(|check| {
        let title = format!("{}toolchain {}", run.commit_prefix(), check.toolchain);
        error_annotation(
            title.clone(),
            format!(
                "{title}: the check of {} failed: {}",
                single_line(&check.step.planned.cmd.to_string()),
                outcome_reason(&check.step)
            ),
        )
    });
    let doubts = record.doubts.iter().map(|doubt| {
        error_annotation(
            format!("{}inconclusive: {}", run.commit_prefix(), doubt.doubt.as_str().replace('_', " ")),
            doubt.message.clone(),
        )
    });
    let partial = record.selection_sentence().filter(|_| record.is_partial());
    let partial = partial.map(|sentence| Annotation {
        level: FindingLevel::Warning,
        ..error_annotation(format!("{}partial run", run.commit_prefix()), sentence)
    });
    let leaks = record
        .checks
        .iter()
        .filter_map(|check| leak_annotation(run, &format!("toolchain {}", check.toolchain), &check.step));
    checks.chain(doubts).chain(partial).chain(leaks).collect()
}

/// Returns a warning about processes that a passed step left behind.
fn leak_annotation(run: &ReportedRun, name: &str, step: &StepEvidence) -> Option<Annotation> {
    let title = format!("{}{name}", run.commit_prefix());
    let message = format!("{title} {}", leak_warning(step)?);
    Some(Annotation { level: FindingLevel::Warning, ..error_annotation(title, message) })
}

fn error_annotation(title: String, message: String) -> Annotation {
    Annotation { level: FindingLevel::Error, path: None, line: None, column: None, title, message }
}

/// Returns the annotations from the report of a step's tool. If the step passed, its errors become warnings.
fn tool_report_annotations(run: &ReportedRun, file: &ToolReport, step: &StepEvidence) -> Vec<Annotation> {
    let own = format!("{}{}/{}", run.commit_prefix(), file.skill, file.step);
    let warning =
        |message: String| Annotation { level: FindingLevel::Warning, ..error_annotation(own.clone(), message) };
    let mut notes = match (&file.content, file.format) {
        (ToolReportContent::Missing, _) if is_problem(step) || step.outcome.is_left_out() => Vec::new(),
        (ToolReportContent::Missing, _) => vec![warning(format!("{own} wrote no report `{}`", file.path))],
        (ToolReportContent::Unavailable(problem), _) => {
            vec![warning(tool::unreadable_report_message(&file.path, problem))]
        }
        (ToolReportContent::Read(bytes), ReportFormat::Junit) => match tool::junit_reader::parse(bytes) {
            Ok(suites) => {
                suites.iter().flat_map(|suite| &suite.cases).filter_map(|case| case_annotation(&own, case)).collect()
            }
            Err(problem) => vec![warning(tool::unreadable_report_message(&file.path, &problem))],
        },
        (ToolReportContent::Read(bytes), ReportFormat::Sarif) => match tool::sarif_reader::parse(bytes) {
            Ok(runs) => runs.iter().flat_map(|run| sarif_annotations(&own, run)).collect(),
            Err(problem) => vec![warning(tool::unreadable_report_message(&file.path, &problem))],
        },
    };
    if step.outcome == Outcome::Passed {
        notes
            .iter_mut()
            .filter(|note| note.level == FindingLevel::Error)
            .for_each(|note| note.level = FindingLevel::Warning);
    }
    notes
}

fn case_annotation(own: &str, case: &tool::junit_reader::JunitCase) -> Option<Annotation> {
    let end = case.failure()?;
    let message = end.message.clone().filter(|text| !text.is_empty()).unwrap_or_else(|| end.text.clone());
    let place = case.location.clone();
    Some(Annotation {
        level: FindingLevel::Error,
        line: place.as_ref().and_then(|place| place.line),
        column: None,
        path: place.map(|place| place.path),
        title: format!("{own}: {}", case.name),
        message: if message.is_empty() { format!("{} failed", case.name) } else { message },
    })
}

fn sarif_annotations(own: &str, run: &tool::sarif_reader::SarifRun) -> Vec<Annotation> {
    let note = |finding: tool::sarif_reader::SarifFinding| Annotation {
        level: finding.level,
        line: finding.location.as_ref().and_then(|place| place.line),
        column: finding.location.as_ref().and_then(|place| place.column),
        path: finding.location.map(|place| place.path),
        title: format!("{own}: {}", finding.rule.as_deref().unwrap_or(run.tool_name())),
        message: finding.message,
    };
    run.results.iter().filter_map(|result| run.to_finding(result)).map(note).collect()
}

/// Encodes a command's message, so that it neither ends the command nor starts another one.
fn escape_message(text: &str) -> String {
    escape_output(text.as_bytes()).replace('%', "%25").replace('\r', "%0D").replace('\n', "%0A")
}

/// Encodes the value of a command's property.
fn escape_property(text: &str) -> String {
    escape_message(text).replace(':', "%3A").replace(',', "%2C")
}

/// Returns the summary of the workflow step, for a file that already contains `taken` bytes. Returns an empty text
/// if there is no space for a summary.
pub fn render_summary(input: &ReportInput<'_>, taken: u64) -> String {
    let free = GITHUB_SUMMARY_LIMIT.saturating_sub(usize::try_from(taken).unwrap_or(usize::MAX));
    match free < MIN_SUMMARY_BYTES {
        true => String::new(),
        false => {
            markdown::render_with_annotations(input, &select_annotations(input).left_out, MAX_SUMMARY_BYTES.min(free))
        }
    }
}

/// Returns the outputs of the workflow step.
pub fn workflow_outputs(input: &ReportInput<'_>) -> Vec<WorkflowOutput> {
    let records = || input.runs.iter().filter_map(ReportedRun::record);
    let started = records().filter_map(|record| record.started.as_ref()).next_back();
    let tier = records().filter_map(|record| Some(record.finished.as_ref()?.tier)).max();
    vec![
        WorkflowOutput { name: "verdict", value: input.verdict().as_str().to_owned() },
        WorkflowOutput { name: "exit_code", value: input.exit_code.to_string() },
        WorkflowOutput { name: "run_id", value: started.map(|started| started.run_id.to_string()).unwrap_or_default() },
        WorkflowOutput { name: "tier", value: tier.map(|tier| tier.to_string()).unwrap_or_default() },
        WorkflowOutput {
            name: "snapshot",
            value: started.map(|started| started.snapshot.to_string()).unwrap_or_default(),
        },
        WorkflowOutput { name: "partial", value: input.is_partial().to_string() },
    ]
}

impl WorkflowOutput {
    /// Returns the line for the file in `GITHUB_OUTPUT`. A value with several lines becomes a heredoc that ends
    /// with `token`.
    pub fn to_line(&self, token: &str) -> String {
        match self.value.contains(['\n', '\r']) {
            true => format!("{}<<{token}\n{}\n{token}\n", self.name, self.value),
            false => format!("{}={}\n", self.name, self.value),
        }
    }
}
