//! Represents the input of a report: the run, its documents and their source.

use std::collections::BTreeSet;

use super::report_text;
use crate::decision::verdict::Verdict;
use crate::model::names::{SkillName, StepName};
use crate::model::outcome::Outcome;
use crate::model::plan::ReportFormat;
use crate::record::evidence::StepEvidence;
use crate::record::run_record::RunRecord;
use crate::report::stream_texts::StreamTexts;

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
    /// The reports that the steps declare, in the order of the plan.
    pub tool_reports: Vec<ToolReport>,
    /// Outputs of failed steps that are longer than the excerpts in the record.
    pub outputs: StreamTexts,
    /// The repository.
    pub repository: RepositoryFiles,
}

/// The repository of a run, as far as locations in outputs need it.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct RepositoryFiles {
    /// The absolute path of the repository in the steps.
    pub root: String,
    /// The existing files among those that outputs name, relative to the repository.
    pub existing: BTreeSet<String>,
}

/// A commit of a range.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ReportedCommit {
    /// The full id of the commit.
    pub id: String,
    /// The first line of the message.
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
    /// The step did not write the report.
    Missing,
    /// The file is not available; the phrase gives the reason.
    Unavailable(String),
}

impl ReportedRun {
    /// Creates a run without reports, outputs and repository.
    pub fn new(commit: Option<ReportedCommit>, result: RunResult) -> Self {
        let (outputs, repository) = (StreamTexts::default(), RepositoryFiles::default());
        Self { commit, result, tool_reports: Vec::new(), outputs, repository }
    }

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
    pub(crate) fn tool_reports_of<'a>(
        &'a self,
        skill: &'a SkillName,
        step: &'a StepName,
    ) -> impl Iterator<Item = &'a ToolReport> {
        self.tool_reports.iter().filter(move |file| file.skill == *skill && file.step == *step)
    }

    /// Returns the display name of the run.
    pub(crate) fn display_name(&self) -> String {
        match &self.commit {
            Some(commit) => format!("{} {}", report_text::short_id(&commit.id), commit.subject),
            None => "nothing was verified".to_owned(),
        }
    }

    /// Returns the commit as a prefix for names of this run; empty if the command has only one run.
    pub(crate) fn commit_prefix(&self) -> String {
        self.commit.as_ref().map_or_else(String::new, |commit| format!("{}: ", report_text::short_id(&commit.id)))
    }
}

/// Returns whether a step has a problem to report: it neither passed nor was left out.
pub(crate) fn is_problem(step: &StepEvidence) -> bool {
    step.outcome != Outcome::Passed && !step.outcome.is_left_out()
}
