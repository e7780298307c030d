//! Combines and shows the results of `proctor run --rev A..B`, which runs each commit of a range, oldest first.

use proctor_core::decision::verdict::{
    EXIT_DRIFT, EXIT_FAILED, EXIT_INCONCLUSIVE, EXIT_INTERRUPTED, EXIT_TIMEOUT, EXIT_USAGE,
};
use proctor_runner::NamedCommit;
use schemars::JsonSchema;
use serde::Serialize;

use crate::args::RunFormat;
use crate::error::{CliError, ErrorBody};
use crate::screen::Screen;
use crate::style::{self, DIM, STRONG, paint};
use crate::text::escape_line;
use proctor_core::record::run_record::RunRecord;

/// Number of digits of a commit id that are shown.
const SHORT_ID_LEN: usize = 12;

/// The runs of a range, which is the output of `proctor run --rev A..B --format json`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, JsonSchema)]
pub(crate) struct RangeRecord {
    /// The commits, oldest first.
    pub commits: Vec<CommitRecord>,
    /// Number of commits that were left out after a commit that did not pass.
    pub left_out: usize,
    /// The exit code of the process, which is that of the worst commit.
    pub exit_code: u8,
}

/// A commit of a range.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, JsonSchema)]
pub(crate) struct CommitRecord {
    /// The full commit id.
    pub commit: String,
    /// The first line of the message, escaped and cut.
    pub subject: String,
    /// The exit code of this commit's run.
    pub exit_code: u8,
    /// The run; `null` if the commit could not be run.
    pub run: Option<RunRecord>,
    /// The reason why the commit could not be run.
    pub error: Option<ErrorBody>,
}

/// Exit codes from worst to best. An interruption is worst because the rest is unknown; the others are ordered like
/// the outcomes in a run. A commit that could not be run at all ranks after those that ran and failed.
const WORST_FIRST: [u8; 7] =
    [EXIT_INTERRUPTED, EXIT_DRIFT, EXIT_TIMEOUT, EXIT_FAILED, EXIT_INCONCLUSIVE, EXIT_USAGE, 0];

/// Returns the worst exit code; inconclusive if the list is empty or has only unknown codes.
pub(in crate::commands) fn worst_exit_code(codes: &[u8]) -> u8 {
    WORST_FIRST.into_iter().find(|code| codes.contains(code)).unwrap_or(EXIT_INCONCLUSIVE)
}

/// Formats the heading of the report on one commit.
pub(in crate::commands) fn commit_heading(commit: &NamedCommit, number: usize, total: usize) -> String {
    let id = short_id(&commit.id);
    format!(
        "{} {} {}\n",
        paint(DIM, format!("commit {number} of {total}:")),
        paint(STRONG, id),
        escape_line(&commit.subject)
    )
}

/// Renders the summary of a range: a line for each commit, and the verdict.
pub(super) fn range_summary(range: &RangeRecord) -> String {
    let mut text = format!("{}\n", paint(DIM, "commits:"));
    for record in &range.commits {
        let word =
            paint(style::exit_code_style(record.exit_code), format!("{:<12}", exit_code_label(record.exit_code)));
        text.push_str(&format!("  {} {word} {}\n", short_id(&record.commit), escape_line(&record.subject)));
    }
    if range.left_out > 0 {
        text.push_str(&format!("{} more were left out (--fail-fast)\n", range.left_out));
    }
    text.push_str(&format!("{}\n", paint(style::exit_code_style(range.exit_code), exit_code_label(range.exit_code))));
    text
}

/// Shows the summary.
pub(super) fn print_range(format: RunFormat, range: &RangeRecord, screen: &mut Screen) -> Result<u8, CliError> {
    match format {
        RunFormat::Human => screen.out(&range_summary(range)),
        RunFormat::Json => screen.out_json(range)?,
        _ => {}
    }
    Ok(range.exit_code)
}

/// Shortens a commit id for display.
pub(in crate::commands) fn short_id(id: &str) -> &str {
    id.get(..SHORT_ID_LEN).unwrap_or(id)
}

/// Returns the word for a commit's exit code.
pub(in crate::commands) fn exit_code_label(exit_code: u8) -> &'static str {
    match exit_code {
        0 => "passed",
        EXIT_FAILED => "failed",
        EXIT_DRIFT => "drifted",
        EXIT_TIMEOUT => "timed out",
        EXIT_USAGE => "nothing ran",
        EXIT_INTERRUPTED => "interrupted",
        _ => "inconclusive",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn worst_commit_decides_the_exit_code() {
        let cases: [(&[u8], u8); 8] = [
            (&[0, 0], 0),
            (&[0, 2], 2),
            (&[5, 2, 0], 5),
            (&[5, 1, 0], 1),
            (&[1, 4], 4),
            (&[3, 4, 1], 3),
            (&[3, 130], 130),
            (&[], 5),
        ];
        for (codes, expected) in cases {
            assert_eq!(worst_exit_code(codes), expected, "{codes:?}");
        }
    }

    #[test]
    fn summary_has_a_line_per_commit() {
        let record = |commit: &str, exit_code| CommitRecord {
            commit: commit.repeat(40),
            subject: "say\x1b[2J".into(),
            exit_code,
            run: None,
            error: None,
        };
        let range = RangeRecord { commits: vec![record("a", 0), record("b", 3)], left_out: 2, exit_code: 3 };
        let text = anstream::adapter::strip_str(&range_summary(&range)).to_string();
        let expected = "commits:\n  aaaaaaaaaaaa passed       say\\x1b[2J\n  bbbbbbbbbbbb drifted      say\\x1b[2J\n\
            2 more were left out (--fail-fast)\ndrifted\n";
        assert_eq!(text, expected);
    }
}
