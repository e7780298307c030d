//! Converts runs to formats that other programs read: one pure function per format, from the results of the runs of
//! one command to text.
//!
//! To add a format, write its file and add it to [`Format`].

mod github;
pub mod html;
mod junit;
mod markdown;
mod sarif;
mod text;
mod tool;

use crate::evidence::{StepEvidence, escape_output};
use crate::names::{SkillName, StepName};
use crate::outcome::Outcome;
use crate::plan::ReportFormat;
use crate::record::RunRecord;
use crate::verdict::Verdict;

pub use github::{Annotations, Output, annotations, outputs, summary};

/// An output format for a finished command.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Format {
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

impl Format {
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
    pub fn write(self, input: &ReportInput<'_>) -> String {
        let text = match self {
            Self::Sarif => sarif::write(input),
            Self::Junit => junit::write(input),
            Self::Github => github::write(input),
            Self::Markdown => markdown::write(input, markdown::COMMENT),
            Self::Html => page(input),
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
    pub below: &'a str,
}

/// One run of a command.
#[derive(Debug, Clone)]
pub struct ReportedRun {
    /// The commit whose tree it verified, if the command verified several.
    pub commit: Option<ReportedCommit>,
    /// The result of the run.
    pub came_to: CameTo,
    /// The reports that its steps declare, in the order of the plan.
    pub files: Vec<ToolFile>,
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
pub enum CameTo {
    /// The run started and was recorded.
    Run(Box<RunRecord>),
    /// The run was not possible.
    Nothing(Refusal),
}

/// The reason why there is no run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Refusal {
    /// The error message.
    pub message: String,
    /// Instructions for the user, one line each.
    pub hints: Vec<String>,
    /// The exit code for this error.
    pub exit_code: u8,
}

/// A report that a step declares, in the format of its tool.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ToolFile {
    /// The skill of the step.
    pub skill: SkillName,
    /// The step.
    pub step: StepName,
    /// The format that the spec declares.
    pub format: ReportFormat,
    /// The path of the report in the repository, as written in the spec.
    pub path: String,
    /// The content of the report, if available.
    pub content: Content,
}

/// The content of a tool's report.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Content {
    /// The bytes of the file, without secrets of the caller.
    Read(Vec<u8>),
    /// The step wrote no such file.
    Missing,
    /// The file is not available; the phrase says why.
    Unread(String),
}

impl ReportedRun {
    /// Returns the record of the run, if there is one.
    pub fn record(&self) -> Option<&RunRecord> {
        match &self.came_to {
            CameTo::Run(record) => Some(record),
            CameTo::Nothing(_) => None,
        }
    }

    /// Returns the exit code for this run alone.
    pub fn exit_code(&self) -> Option<u8> {
        match &self.came_to {
            CameTo::Run(record) => record.finished.as_ref().map(|finished| finished.exit_code),
            CameTo::Nothing(refusal) => Some(refusal.exit_code),
        }
    }

    /// Returns the verdict of the run; a run without a last event is inconclusive.
    pub fn verdict(&self) -> Verdict {
        let finished = self.record().and_then(|record| record.finished.as_ref());
        finished.map_or(Verdict::Inconclusive, |finished| finished.verdict)
    }

    /// Returns the reports that a step declares.
    fn files_of<'a>(&'a self, skill: &'a SkillName, step: &'a StepName) -> impl Iterator<Item = &'a ToolFile> {
        self.files.iter().filter(move |file| file.skill == *skill && file.step == *step)
    }

    /// Returns the display name of the run.
    fn name(&self) -> String {
        match &self.commit {
            Some(commit) => format!("{} {}", text::short(&commit.id), commit.subject),
            None => "nothing was verified".to_owned(),
        }
    }

    /// Returns the commit as a prefix for names of this run; empty if the command has only one run.
    fn prefix(&self) -> String {
        self.commit.as_ref().map_or_else(String::new, |commit| format!("{}: ", text::short(&commit.id)))
    }
}

impl ReportInput<'_> {
    /// Returns whether a run left out skills of its profile; the verdict then covers only the other skills.
    pub fn is_partial(&self) -> bool {
        self.runs.iter().filter_map(ReportedRun::record).any(|record| record.partial().is_some())
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
fn page(input: &ReportInput<'_>) -> String {
    if let [ReportedRun { commit: None, came_to: CameTo::Run(record), files }] = input.runs {
        return html::page(record, files);
    }
    let names: Vec<String> = input.runs.iter().map(ReportedRun::name).collect();
    let parts = input.runs.iter().zip(&names).map(|(run, name)| html::Part {
        name,
        came_to: match &run.came_to {
            CameTo::Run(record) => Ok(record),
            CameTo::Nothing(refusal) => Err(&refusal.message),
        },
        files: &run.files,
    });
    html::pages(input.verdict(), &parts.collect::<Vec<_>>())
}

/// Returns whether a step has a problem to report: it neither passed nor was skipped.
fn is_problem(step: &StepEvidence) -> bool {
    !matches!(step.outcome, Outcome::Passed | Outcome::Skipped)
}

#[cfg(test)]
mod fixture;
#[cfg(test)]
mod tests;
