//! Converts runs to formats that other programs read: one pure function per format, from the results of the runs of
//! one command to text.
//!
//! To add a format, write its file and add it to [`RunReportFormat`].

pub mod failure_hints;
mod github;
pub mod html;
mod junit;
mod markdown;
mod output_excerpt;
mod output_findings;
pub(crate) mod report_input;
mod report_text;
mod sarif;
pub mod stream_texts;
pub mod terminal_text;
mod tool;

use crate::decision::verdict::Verdict;
use crate::text::escape::escape_output;

pub use crate::report::output_findings::named_paths;
pub use crate::report::report_input::{
    ReportInput, ReportedCommit, ReportedRefusal, ReportedRun, RepositoryFiles, RunResult, ToolReport,
    ToolReportContent,
};
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

impl ReportInput<'_> {
    /// Returns whether a run left out skills of its profile; the verdict then covers only the other skills.
    pub fn is_partial(&self) -> bool {
        self.runs.iter().filter_map(ReportedRun::record).any(|record| record.is_partial())
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
    if let [ReportedRun { commit: None, result: RunResult::Recorded(record), tool_reports: files, .. }] = input.runs {
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

#[cfg(test)]
pub(crate) mod fixture;
#[cfg(test)]
mod tests;
