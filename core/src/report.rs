//! Runs as other programs read them: one pure function a format, from what the runs of one command came to
//! to a text. To add a format, write its file, and its line in [`Format`].

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

/// A format that a finished command can be written in.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Format {
    /// JUnit XML as Jenkins reads it: a suite a skill, a case a step, and the suites of the tools.
    Junit,
    /// SARIF 2.1.0: a run of ours, and one for each run of a tool.
    Sarif,
    /// Workflow commands of GitHub Actions.
    Github,
    /// A comment on a pull request.
    Markdown,
    /// A page that needs nothing else.
    Html,
}

impl Format {
    /// Every format.
    pub const ALL: [Self; 5] = [Self::Junit, Self::Sarif, Self::Github, Self::Markdown, Self::Html];

    /// The word of the command line.
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
        // Each format escapes the text of others where it inserts it; this catches what one of them forgets.
        escape_output(text.as_bytes())
    }
}

/// What one command came to.
#[derive(Debug, Clone, Copy)]
pub struct ReportInput<'a> {
    /// Its runs: one, or one for each commit of a range, oldest first.
    pub runs: &'a [ReportedRun],
    /// How many commits of the range were left out.
    pub left_out: usize,
    /// The exit code of the process.
    pub exit_code: u8,
    /// A word that no step can know, for what must not be ended by a step's text.
    pub token: &'a str,
    /// Where the repository lies below the directory from which the reader names files; empty where that is it.
    pub below: &'a str,
}

/// One run of a command.
#[derive(Debug, Clone)]
pub struct ReportedRun {
    /// The commit whose tree it verified, where the command names several.
    pub commit: Option<ReportedCommit>,
    /// What became of it.
    pub came_to: CameTo,
    /// The reports that its steps declare, in the order of the plan.
    pub files: Vec<ToolFile>,
}

/// A commit of a range.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ReportedCommit {
    /// Its id, in full.
    pub id: String,
    /// The first line of its message.
    pub subject: String,
}

/// What became of a run.
#[derive(Debug, Clone)]
pub enum CameTo {
    /// It is on record.
    Run(Box<RunRecord>),
    /// It could not be had.
    Nothing(Refusal),
}

/// Why there is no run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Refusal {
    /// What and where.
    pub message: String,
    /// What to do, a line each.
    pub hints: Vec<String>,
    /// The exit code that it calls for.
    pub exit_code: u8,
}

/// A report that a step declares, in a format of its tool.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ToolFile {
    /// The skill of the step.
    pub skill: SkillName,
    /// The step.
    pub step: StepName,
    /// The format that the spec says it has.
    pub format: ReportFormat,
    /// Its path in the repository, as the spec has it.
    pub path: String,
    /// What is known of its content.
    pub content: Content,
}

/// What is known of a tool's report.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Content {
    /// Its bytes, without secrets of the caller.
    Read(Vec<u8>),
    /// The step wrote none.
    Missing,
    /// It is not here; the phrase says why.
    Unread(String),
}

impl ReportedRun {
    /// The run, where there is one.
    pub fn record(&self) -> Option<&RunRecord> {
        match &self.came_to {
            CameTo::Run(record) => Some(record),
            CameTo::Nothing(_) => None,
        }
    }

    /// The exit code that it alone would have.
    pub fn exit_code(&self) -> Option<u8> {
        match &self.came_to {
            CameTo::Run(record) => record.finished.as_ref().map(|finished| finished.exit_code),
            CameTo::Nothing(refusal) => Some(refusal.exit_code),
        }
    }

    /// What it means. What has no last event has no honest answer.
    pub fn verdict(&self) -> Verdict {
        let finished = self.record().and_then(|record| record.finished.as_ref());
        finished.map_or(Verdict::Inconclusive, |finished| finished.verdict)
    }

    /// The reports that a step declares.
    fn files_of<'a>(&'a self, skill: &'a SkillName, step: &'a StepName) -> impl Iterator<Item = &'a ToolFile> {
        self.files.iter().filter(move |file| file.skill == *skill && file.step == *step)
    }

    /// What a reader knows it by.
    fn name(&self) -> String {
        match &self.commit {
            Some(commit) => format!("{} {}", text::short(&commit.id), commit.subject),
            None => "nothing was verified".to_owned(),
        }
    }

    /// What opens the name of anything of this run, where there are others beside it: the commit.
    fn prefix(&self) -> String {
        self.commit.as_ref().map_or_else(String::new, |commit| format!("{}: ", text::short(&commit.id)))
    }
}

impl ReportInput<'_> {
    /// Whether a run left skills of its profile out: then what all of them mean is said of the rest alone.
    pub fn is_partial(&self) -> bool {
        self.runs.iter().filter_map(ReportedRun::record).any(|record| record.partial().is_some())
    }

    /// What all runs mean together: passed where each did and none was left out.
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

/// A page on one run, or on several.
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

/// Whether a step has something to tell beside that it passed or was not its turn.
fn is_problem(step: &StepEvidence) -> bool {
    !matches!(step.outcome, Outcome::Passed | Outcome::Skipped)
}

#[cfg(test)]
mod fixture;
#[cfg(test)]
mod tests;
