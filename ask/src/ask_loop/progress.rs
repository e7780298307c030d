//! The steps of a loop, for a display.

use std::fmt;

use proctor_core::sql::{Judgement, ModelCallOutcome, SqlSeverity, SqlVerdict, TokenCounts};
use proctor_core::text::humanize::count;

use crate::answer_reader::UnreadableAnswer;

/// A step of a loop. Its text contains no text of a model or a database.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AskProgress {
    /// The schema is being read.
    Describing,
    /// The schema was read.
    Described {
        /// The number of tables in the prompt.
        shown: usize,
        /// The number of tables of the schema.
        tables: usize,
    },
    /// The model has received a prompt.
    Prompting {
        /// The attempt.
        number: u32,
        /// The maximum number of attempts.
        attempts: u32,
    },
    /// The model has answered.
    Answered {
        /// The attempt.
        number: u32,
        /// The tokens of the attempt.
        tokens: TokenCounts,
    },
    /// The model gave no answer.
    Unanswered {
        /// The attempt.
        number: u32,
        /// The result of the call.
        outcome: ModelCallOutcome,
    },
    /// The answer contains no clear statement.
    Unreadable {
        /// The attempt.
        number: u32,
        /// The reason.
        why: UnreadableAnswer,
    },
    /// The statement is being judged.
    Judging {
        /// The attempt.
        number: u32,
    },
    /// The statement was judged.
    Judged {
        /// The attempt.
        number: u32,
        /// The verdict.
        verdict: SqlVerdict,
        /// The number of errors.
        errors: usize,
        /// The number of warnings.
        warnings: usize,
    },
    /// The statement runs.
    Running {
        /// The attempt.
        number: u32,
    },
    /// The statement failed.
    RunFailed {
        /// The attempt.
        number: u32,
    },
}

impl AskProgress {
    pub(super) fn judged(number: u32, judgement: &Judgement) -> Self {
        let number_of = |severity| judgement.diagnostics.iter().filter(|found| found.severity == severity).count();
        let (errors, warnings) = (number_of(SqlSeverity::Error), number_of(SqlSeverity::Warning));
        Self::Judged { number, verdict: judgement.verdict, errors, warnings }
    }
}

impl fmt::Display for AskProgress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Describing => write!(f, "reading the schema"),
            Self::Described { shown, tables } if shown == tables => {
                write!(f, "the schema has {}", count(*tables, "table"))
            }
            Self::Described { shown, tables } => {
                write!(f, "the schema has {}; the prompt shows {shown} of them", count(*tables, "table"))
            }
            Self::Prompting { number, attempts } => write!(f, "attempt {number} of {attempts}: waiting for the model"),
            Self::Answered { number, tokens } => {
                let about = if tokens.estimated { "about " } else { "" };
                write!(f, "attempt {number}: answered, {about}{} tokens", tokens.total())
            }
            Self::Unanswered { number, outcome: ModelCallOutcome::TimedOut } => {
                write!(f, "attempt {number}: no complete answer in time")
            }
            Self::Unanswered { number, .. } => write!(f, "attempt {number}: the call of the model failed"),
            Self::Unreadable { number, why } => write!(f, "attempt {number}: {why}"),
            Self::Judging { number } => write!(f, "attempt {number}: judging the statement"),
            Self::Judged { number, verdict: SqlVerdict::Ok, warnings: 0, .. } => write!(f, "attempt {number}: ok"),
            Self::Judged { number, verdict: SqlVerdict::Ok, warnings, .. } => {
                write!(f, "attempt {number}: ok, warnings: {warnings}")
            }
            Self::Judged { number, verdict: SqlVerdict::Reject, errors, warnings } => {
                write!(f, "attempt {number}: rejected, errors: {errors}, warnings: {warnings}")
            }
            Self::Judged { number, verdict: SqlVerdict::Error, .. } => write!(f, "attempt {number}: not judged"),
            Self::Running { number } => write!(f, "attempt {number}: running the statement"),
            Self::RunFailed { number } => write!(f, "attempt {number}: the statement failed"),
        }
    }
}
