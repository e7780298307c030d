//! Converts runs to formats that other programs read: one pure function per format, from the results of the runs of
//! one command to text.
//!
//! To add a format, write its file and add it to [`RunReportFormat`].

mod github;
pub mod html;
mod junit;
mod markdown;
mod report_text;
mod sarif;
pub mod terminal_text;
mod tool;

use crate::decision::verdict::Verdict;
use crate::model::names::{SkillName, StepName};
use crate::model::outcome::Outcome;
use crate::model::plan::ReportFormat;
use crate::record::evidence::{StepEvidence, escape_output};
use crate::record::run_record::RunRecord;

pub use github::{Annotations, WorkflowOutput, render_summary, select_annotations, workflow_outputs};

/// An output format for a finished command.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum RunReportFormat {
    /// JUnit XML as Jenkins reads it: a suite for each skill, a case for each step, and the suites of the tools.
    Junit,
    /// SARIF 2.1.0: one run for Proctor, and one for each run of a tool.
    Sarif,
    /// Workflow commands of GitHub Actions.
    Github,
    /// A comment on a pull request.
    Markdown,
    /// A self-contained HTML page.
    Html,
}

impl RunReportFormat {
    /// Every format.
    pub const ALL: [Self; 5] = [Self::Junit, Self::Sarif, Self::Github, Self::Markdown, Self::Html];

    /// Returns the name of the format on the command line.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Junit => "junit",
            Self::Sarif => "sarif",
            Self::Github => "github",
            Self::Markdown => "markdown",
            Self::Html => "html",
        }
    }

    /// Returns the report, which ends with a newline and holds no character that a terminal or a viewer interprets.
    pub fn render(self, input: &ReportInput<'_>) -> String {
        let text = match self {
            Self::Sarif => sarif::render(input),
            Self::Junit => junit::render(input),
            Self::Github => github::render(input),
            Self::Markdown => markdown::render(input, markdown::MAX_COMMENT_BYTES),
            Self::Html => html_page(input),
        };
        // Each format escapes untrusted text where it inserts it; this catches omissions.
        escape_output(text.as_bytes())
    }
}

/// The results of one command.
#[derive(Debug, Clone, Copy)]
pub struct ReportInput<'a> {
    /// The runs of the command: one, or one for each commit of a range, oldest first.
    pub runs: &'a [ReportedRun],
    /// The number of commits of the range that were left out.
    pub left_out: usize,
    /// The exit code of the process.
    pub exit_code: u8,
    /// A random word that steps cannot know. It ends a section that contains text of steps.
    pub token: &'a str,
    /// The path of the repository relative to the directory from which the reader resolves file names; empty if
    /// they are equal.
    pub repository_prefix: &'a str,
}

/// One run of a command.
#[derive(Debug, Clone)]
pub struct ReportedRun {
    /// The commit whose tree it verified, if the command verified several.
    pub commit: Option<ReportedCommit>,
    /// The result of the run.
    pub result: RunResult,
    /// The reports that its steps declare, in the order of the plan.
    pub tool_reports: Vec<ToolReport>,
}

/// A commit of a range.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ReportedCommit {
    /// The full id of the commit.
    pub id: String,
    /// The first line of its message.
    pub subject: String,
}

/// The result of a run.
#[derive(Debug, Clone)]
pub enum RunResult {
    /// The run started and was recorded.
    Recorded(Box<RunRecord>),
    /// The run was not possible.
    Refused(ReportedRefusal),
}

/// The reason why there is no run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ReportedRefusal {
    /// The error message.
    pub message: String,
    /// Instructions for the user, one line each.
    pub hints: Vec<String>,
    /// The exit code for this error.
    pub exit_code: u8,
}

/// A report that a step declares, in the format of its tool.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ToolReport {
    /// The skill of the step.
    pub skill: SkillName,
    /// The step.
    pub step: StepName,
    /// The format that the spec declares.
    pub format: ReportFormat,
    /// The path of the report in the repository, as written in the spec.
    pub path: String,
    /// The content of the report, if available.
    pub content: ToolReportContent,
}

/// The content of a tool's report.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ToolReportContent {
    /// The bytes of the file, without secrets of the caller.
    Read(Vec<u8>),
    /// The step wrote no such file.
    Missing,
    /// The file is not available; the phrase says why.
    Unavailable(String),
}

impl ReportedRun {
    /// Returns the record of the run, if there is one.
    pub fn record(&self) -> Option<&RunRecord> {
        match &self.result {
            RunResult::Recorded(record) => Some(record),
            RunResult::Refused(_) => None,
        }
    }

    /// Returns the exit code for this run alone.
    pub fn exit_code(&self) -> Option<u8> {
        match &self.result {
            RunResult::Recorded(record) => record.finished.as_ref().map(|finished| finished.exit_code),
            RunResult::Refused(refusal) => Some(refusal.exit_code),
        }
    }

    /// Returns the verdict of the run; a run without a last event is inconclusive.
    pub fn verdict(&self) -> Verdict {
        let finished = self.record().and_then(|record| record.finished.as_ref());
        finished.map_or(Verdict::Inconclusive, |finished| finished.verdict)
    }

    /// Returns the reports that a step declares.
    fn tool_reports_of<'a>(&'a self, skill: &'a SkillName, step: &'a StepName) -> impl Iterator<Item = &'a ToolReport> {
        self.tool_reports.iter().filter(move |file| file.skill == *skill && file.step == *step)
    }

    /// Returns the display name of the run.
    fn display_name(&self) -> String {
        match &self.commit {
            Some(commit) => format!("{} {}", report_text::short_id(&commit.id), commit.subject),
            None => "nothing was verified".to_owned(),
        }
    }

    /// Returns the commit as a prefix for names of this run; empty if the command has only one run.
    fn commit_prefix(&self) -> String {
        self.commit.as_ref().map_or_else(String::new, |commit| format!("{}: ", report_text::short_id(&commit.id)))
    }
}

impl ReportInput<'_> {
    /// Returns whether a run left out skills of its profile; the verdict then covers only the other skills.
    pub fn is_partial(&self) -> bool {
        self.runs.iter().filter_map(ReportedRun::record).any(|record| record.partial_rerun().is_some())
    }

    /// Returns the combined verdict of all runs: passed if every run passed and no commit was left out.
    pub fn verdict(&self) -> Verdict {
        let any = |verdict| self.runs.iter().any(|run| run.verdict() == verdict);
        if any(Verdict::Failed) {
            Verdict::Failed
        } else if self.exit_code != 0 || self.left_out > 0 || self.runs.is_empty() || any(Verdict::Inconclusive) {
            Verdict::Inconclusive
        } else {
            Verdict::Passed
        }
    }
}

/// Returns the HTML page for one run or several.
fn html_page(input: &ReportInput<'_>) -> String {
    if let [ReportedRun { commit: None, result: RunResult::Recorded(record), tool_reports: files }] = input.runs {
        return html::render_page(record, files);
    }
    let names: Vec<String> = input.runs.iter().map(ReportedRun::display_name).collect();
    let parts = input.runs.iter().zip(&names).map(|(run, name)| html::PageRun {
        name,
        result: match &run.result {
            RunResult::Recorded(record) => Ok(record),
            RunResult::Refused(refusal) => Err(&refusal.message),
        },
        tool_reports: &run.tool_reports,
    });
    html::render_multi_run_page(input.verdict(), &parts.collect::<Vec<_>>())
}

/// Returns whether a step has a problem to report: it neither passed nor was skipped.
fn is_problem(step: &StepEvidence) -> bool {
    !matches!(step.outcome, Outcome::Passed | Outcome::Skipped)
}

#[cfg(test)]
mod fixture;
#[cfg(test)]
mod tests;
