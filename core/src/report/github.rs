//! Writes annotations as workflow commands of GitHub Actions, the summary of the workflow step, and its outputs
//! (<https://docs.github.com/actions/reference/workflow-commands-for-github-actions>).
//!
//! GitHub shows ten errors, ten warnings and ten notices of one step, and fifty of a job. It drops further ones
//! silently, so the tenth annotation reports how many more there are. Output of steps is printed only between
//! `::stop-commands::` and a token that steps cannot know.

use std::collections::VecDeque;

use super::text::{change as change_word, cut, first_line, last_part, leak_warning, line, lines, stream, why};
use super::tool::sarif::Level;
use super::{CameTo, Content, ReportInput, ReportedRun, ToolFile, is_problem, markdown, tool};
use crate::evidence::{StepEvidence, escape_output};
use crate::outcome::Outcome;
use crate::plan::ReportFormat;
use crate::record::RunRecord;
use crate::words::count;

/// Maximum number of annotations of one level that GitHub shows for a step.
const MAX_OF_LEVEL: usize = 10;
/// Maximum number of bytes that are printed of each output stream.
const EXCERPT: usize = 8 << 10;
/// Maximum number of characters in an annotation's message.
const MESSAGE: usize = 2_000;
/// Maximum size of a step's summary, in bytes. GitHub accepts 1 MiB.
const SUMMARY: usize = 1_000_000;
/// GitHub's limit for a step's summary, in bytes, for all programs that write to it together. GitHub rejects a
/// larger summary as a whole.
pub(super) const SUMMARY_LIMIT: usize = 1 << 20;
/// Minimum free space for a summary, in bytes: enough for one sentence and the note that the rest was left out.
const SUMMARY_LEAST: usize = 512;

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
pub struct Output {
    /// The name of the output.
    pub name: &'static str,
    /// The value of the output.
    pub value: String,
}

/// Returns the text for the log: the output of steps that did not pass, then the annotations, then the verdict.
pub(super) fn write(input: &ReportInput<'_>) -> String {
    let mut text = String::new();
    for run in input.runs {
        if let CameTo::Run(record) = &run.came_to {
            let checks = record.checks.iter().filter(|check| !check.satisfied);
            let checks = checks.map(|check| (format!("toolchain {}", check.toolchain), &check.step));
            let steps = record.steps().filter(|(_, step)| is_problem(step));
            let steps = steps.map(|(skill, step)| (format!("{skill}/{}", step.planned.name), step));
            checks
                .chain(steps)
                .for_each(|(name, step)| text.push_str(&group(input, &format!("{}{name}", run.prefix()), step)));
        }
    }
    let Annotations { commands, left_out } = annotations(input);
    commands.iter().for_each(|command| text.push_str(&format!("{command}\n")));
    if !left_out.is_empty() {
        let more = count(left_out.len(), "more annotation");
        text.push_str(&format!("{more}, of which GitHub shows no more here; the summary names them\n"));
    }
    let partial = if input.is_partial() { "partial run " } else { "" };
    text.push_str(&format!("proctor: {partial}{}\n", input.verdict().as_str()));
    text
}

/// Returns the output of one step as a folded group of the log.
fn group(input: &ReportInput<'_>, name: &str, step: &StepEvidence) -> String {
    let mut text = format!("::group::{}\n", data(&format!("{name} {}", why(step))));
    text.push_str(&format!("::stop-commands::{}\n", input.token));
    text.push_str(&format!("$ {}\n", lines(&line(&step.planned.cmd.to_string()))));
    for (word, output) in [("stderr", &step.stderr), ("stdout", &step.stdout)] {
        if output.bytes > 0 {
            let shown = lines(last_part(&stream(output), EXCERPT));
            text.push_str(&format!("[{word}, {} bytes]\n{}\n", output.bytes, shown.trim_end_matches('\n')));
        }
    }
    text.push_str(&format!("::{}::\n::endgroup::\n", input.token));
    text
}

/// An annotation.
struct Note {
    level: Level,
    path: Option<String>,
    line: Option<u64>,
    column: Option<u64>,
    title: String,
    message: String,
}

impl Note {
    /// Returns `path:line: title: message` on one line.
    fn words(&self) -> String {
        let place = self.path.as_ref().map(|path| match self.line {
            Some(line) => format!("{path}:{line}: "),
            None => format!("{path}: "),
        });
        // Most messages begin with the title.
        let title = Some(format!("{}: ", self.title)).filter(|_| !self.message.starts_with(&self.title));
        format!("{}{}{}", place.unwrap_or_default(), title.unwrap_or_default(), self.message)
    }

    fn command(&self, below: &str) -> String {
        let word = match self.level {
            Level::Error => "error",
            Level::Warning => "warning",
            Level::Note => "notice",
        };
        let mut properties = Vec::new();
        if let Some(path) = &self.path {
            let path = if below.is_empty() { path.clone() } else { format!("{below}/{path}") };
            properties.push(format!("file={}", property(&path)));
            properties.extend(self.line.map(|line| format!("line={line}")));
            properties.extend(self.line.and(self.column).map(|column| format!("col={column}")));
        }
        properties.push(format!("title={}", property(&cut(&lines(&line(&self.title)), 200))));
        format!("::{word} {}::{}", properties.join(","), data(&cut(&lines(&self.message), MESSAGE)))
    }
}

/// Returns the annotations in order of priority, as many of each level as GitHub shows: first drift, then one of
/// each step that did not pass, then the rest.
pub fn annotations(input: &ReportInput<'_>) -> Annotations {
    let mut drift = Vec::new();
    let mut queues: Vec<VecDeque<Note>> = Vec::new();
    for run in input.runs {
        drift.extend(drifted(run));
        queues.extend(of_run(run));
    }
    let mut notes = drift;
    // Round-robin: a step with a thousand findings leaves room for the others.
    while queues.iter().any(|queue| !queue.is_empty()) {
        notes.extend(queues.iter_mut().filter_map(VecDeque::pop_front));
    }
    let mut told = Annotations::default();
    for level in [Level::Error, Level::Warning, Level::Note] {
        let of_level: Vec<&Note> = notes.iter().filter(|note| note.level == level).collect();
        let is_all = of_level.len() <= MAX_OF_LEVEL;
        let shown = if is_all { of_level.len() } else { MAX_OF_LEVEL - 1 };
        told.commands.extend(of_level.iter().take(shown).map(|note| note.command(input.below)));
        if !is_all {
            let more = of_level.len() - shown;
            told.left_out.extend(of_level.iter().skip(shown).map(|note| note.words()));
            let title = format!("{more} more");
            let message =
                format!("GitHub shows {MAX_OF_LEVEL} of a kind; the summary of this step names the other {more}");
            let note = Note { level, path: None, line: None, column: None, title, message };
            told.commands.push(note.command(input.below));
        }
    }
    told
}

/// Returns an annotation for each path that a step changed.
fn drifted(run: &ReportedRun) -> Vec<Note> {
    let Some(record) = run.record() else { return Vec::new() };
    let notes = record.steps().filter(|(_, step)| step.outcome == Outcome::Drifted).flat_map(|(skill, step)| {
        let title = format!("{}drift by {skill}/{}", run.prefix(), step.planned.name);
        step.drift.found.changes.iter().map(move |change| Note {
            level: Level::Error,
            path: Some(change.path.clone()),
            line: Some(first_line(change)),
            column: None,
            title: title.clone(),
            message: format!("{title}: {} {}", change_word(change.kind), change.path),
        })
    });
    notes.collect()
}

/// Returns the other annotations of a run, one queue for each step.
fn of_run(run: &ReportedRun) -> Vec<VecDeque<Note>> {
    match &run.came_to {
        CameTo::Nothing(refusal) => {
            let message = [&refusal.message].into_iter().chain(&refusal.hints).cloned().collect::<Vec<_>>().join("\n");
            vec![[plain(format!("{}nothing was verified", run.prefix()), message)].into()]
        }
        CameTo::Run(record) => {
            let mut queues = vec![of_nobody(run, record)];
            for (skill, step) in record.steps() {
                let found = run.files_of(skill, &step.planned.name).flat_map(|file| of_file(run, file, step));
                let mut queue: VecDeque<Note> = found.collect();
                queue.extend(leak_note(run, &format!("{skill}/{}", step.planned.name), step));
                let has_error = queue.iter().any(|note| note.level == Level::Error);
                if is_problem(step) && step.outcome != Outcome::Drifted && !has_error {
                    let title = format!("{}{skill}/{}", run.prefix(), step.planned.name);
                    queue.push_front(plain(title.clone(), format!("{title} {}", why(step))));
                }
                queues.push(queue);
            }
            queues
        }
    }
}

/// Returns the annotations that belong to no step of a skill: toolchain checks, reasons for an inconclusive
/// verdict, and left-out skills.
fn of_nobody(run: &ReportedRun, record: &RunRecord) -> VecDeque<Note> {
    let checks = record.checks.iter().filter(|check| !check.satisfied).map(|check| {
        let title = format!("{}toolchain {}", run.prefix(), check.toolchain);
        plain(
            title.clone(),
            format!("{title}: {} does not hold: {}", line(&check.step.planned.cmd.to_string()), why(&check.step)),
        )
    });
    let doubts = record.doubts.iter().map(|doubt| {
        plain(
            format!("{}inconclusive: {}", run.prefix(), doubt.doubt.as_str().replace('_', " ")),
            doubt.message.clone(),
        )
    });
    let partial = record.rerun_sentence().filter(|_| record.partial().is_some());
    let partial = partial
        .map(|sentence| Note { level: Level::Warning, ..plain(format!("{}partial run", run.prefix()), sentence) });
    let leaks =
        record.checks.iter().filter_map(|check| leak_note(run, &format!("toolchain {}", check.toolchain), &check.step));
    checks.chain(doubts).chain(partial).chain(leaks).collect()
}

/// Returns a warning about processes that a passed step left behind.
fn leak_note(run: &ReportedRun, name: &str, step: &StepEvidence) -> Option<Note> {
    let title = format!("{}{name}", run.prefix());
    let message = format!("{title} {}", leak_warning(step)?);
    Some(Note { level: Level::Warning, ..plain(title, message) })
}

fn plain(title: String, message: String) -> Note {
    Note { level: Level::Error, path: None, line: None, column: None, title, message }
}

/// Returns the annotations from the report of a step's tool. If the step passed, its errors become warnings.
fn of_file(run: &ReportedRun, file: &ToolFile, step: &StepEvidence) -> Vec<Note> {
    let own = format!("{}{}/{}", run.prefix(), file.skill, file.step);
    let warning = |message: String| Note { level: Level::Warning, ..plain(own.clone(), message) };
    let mut notes = match (&file.content, file.format) {
        (Content::Missing, _) if is_problem(step) || step.outcome == Outcome::Skipped => Vec::new(),
        (Content::Missing, _) => vec![warning(format!("{own} wrote no report `{}`", file.path))],
        (Content::Unread(problem), _) => vec![warning(tool::unreadable(&file.path, problem))],
        (Content::Read(bytes), ReportFormat::Junit) => match tool::junit::read(bytes) {
            Ok(suites) => suites.iter().flat_map(|suite| &suite.cases).filter_map(|case| of_case(&own, case)).collect(),
            Err(problem) => vec![warning(tool::unreadable(&file.path, &problem))],
        },
        (Content::Read(bytes), ReportFormat::Sarif) => match tool::sarif::read(bytes) {
            Ok(runs) => runs.iter().flat_map(|run| of_tools_run(&own, run)).collect(),
            Err(problem) => vec![warning(tool::unreadable(&file.path, &problem))],
        },
    };
    if step.outcome == Outcome::Passed {
        notes.iter_mut().filter(|note| note.level == Level::Error).for_each(|note| note.level = Level::Warning);
    }
    notes
}

fn of_case(own: &str, case: &tool::junit::Case) -> Option<Note> {
    let end = case.failure()?;
    let message = end.message.clone().filter(|text| !text.is_empty()).unwrap_or_else(|| end.text.clone());
    let place = case.place.clone();
    Some(Note {
        level: Level::Error,
        line: place.as_ref().and_then(|place| place.line),
        column: None,
        path: place.map(|place| place.path),
        title: format!("{own}: {}", case.name),
        message: if message.is_empty() { format!("{} failed", case.name) } else { message },
    })
}

fn of_tools_run(own: &str, run: &tool::sarif::ToolRun) -> Vec<Note> {
    let note = |finding: tool::sarif::Finding| Note {
        level: finding.level,
        line: finding.place.as_ref().and_then(|place| place.line),
        column: finding.place.as_ref().and_then(|place| place.column),
        path: finding.place.map(|place| place.path),
        title: format!("{own}: {}", finding.rule.as_deref().unwrap_or(run.tool())),
        message: finding.message,
    };
    run.results.iter().filter_map(|result| run.finding(result)).map(note).collect()
}

/// Encodes a command's message, so that it neither ends the command nor starts another one.
fn data(text: &str) -> String {
    escape_output(text.as_bytes()).replace('%', "%25").replace('\r', "%0D").replace('\n', "%0A")
}

/// Encodes the value of a command's property.
fn property(text: &str) -> String {
    data(text).replace(':', "%3A").replace(',', "%2C")
}

/// Returns the summary of the workflow step, for a file that already contains `taken` bytes. Returns an empty text
/// if there is no space for a summary.
pub fn summary(input: &ReportInput<'_>, taken: u64) -> String {
    let free = SUMMARY_LIMIT.saturating_sub(usize::try_from(taken).unwrap_or(usize::MAX));
    match free < SUMMARY_LEAST {
        true => String::new(),
        false => markdown::write_with(input, &annotations(input).left_out, SUMMARY.min(free)),
    }
}

/// Returns the outputs of the workflow step.
pub fn outputs(input: &ReportInput<'_>) -> Vec<Output> {
    let records = || input.runs.iter().filter_map(ReportedRun::record);
    let started = records().filter_map(|record| record.started.as_ref()).next_back();
    let tier = records().filter_map(|record| Some(record.finished.as_ref()?.tier)).max();
    vec![
        Output { name: "verdict", value: input.verdict().as_str().to_owned() },
        Output { name: "exit_code", value: input.exit_code.to_string() },
        Output { name: "run_id", value: started.map(|started| started.run_id.to_string()).unwrap_or_default() },
        Output { name: "tier", value: tier.map(|tier| tier.to_string()).unwrap_or_default() },
        Output { name: "snapshot", value: started.map(|started| started.snapshot.to_string()).unwrap_or_default() },
        Output { name: "partial", value: input.is_partial().to_string() },
    ]
}

impl Output {
    /// Returns the line for the file in `GITHUB_OUTPUT`. A value with several lines becomes a heredoc that ends
    /// with `token`.
    pub fn line(&self, token: &str) -> String {
        match self.value.contains(['\n', '\r']) {
            true => format!("{}<<{token}\n{}\n{token}\n", self.name, self.value),
            false => format!("{}={}\n", self.name, self.value),
        }
    }
}
