//! The answer to an SQL request: the verdict, the result of each stage, and feedback for a model. The same request
//! and the same engine give the same bytes, except for the timing, which is not part of the hash.

use std::fmt::Write as _;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{SqlDiagnostic, SqlRequest, SqlSeverity, SqlSpan};
use crate::decision::verdict::{EXIT_FAILED, EXIT_INCONCLUSIVE};
use crate::sql::sql_policy::{Dialect, SqlPolicy, VERSION};
use crate::sql::stage::StageName;
use crate::text::canonical;
use crate::text::digest::Sha256Hex;

/// Maximum size of the feedback for a model, in bytes.
pub const MAX_FEEDBACK_BYTES: usize = 2_000;

/// The verdict on a text.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
#[schemars(rename = "SqlVerdict")]
pub enum SqlVerdict {
    /// No stage found an error.
    Ok,
    /// A stage found an error in the text.
    Reject,
    /// The text could not be judged. This never counts as `ok`.
    Error,
}

impl SqlVerdict {
    /// Returns the name in documents.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Ok => "ok",
            Self::Reject => "reject",
            Self::Error => "error",
        }
    }

    /// Returns the exit code of a program for this verdict: 0, 1 or 5, as for a run.
    pub fn exit_code(self) -> u8 {
        match self {
            Self::Ok => 0,
            Self::Reject => EXIT_FAILED,
            Self::Error => EXIT_INCONCLUSIVE,
        }
    }
}

/// The result of a stage.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum StageState {
    /// The stage found no error.
    Passed,
    /// The stage found an error.
    Rejected,
    /// The stage could not run to completion.
    Failed,
    /// The stage did not run; the record gives the reason.
    Skipped,
}

/// The record of a stage.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct StageRecord {
    /// The stage.
    pub stage: StageName,
    /// The name of the operator's verifier, if the stage is `custom`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub verifier: Option<String>,
    /// The result of the stage.
    pub state: StageState,
    /// The reason why it was skipped or failed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
}

/// A statement of the text, as the engine parsed it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct StatementView {
    /// The location of the statement in the text.
    pub span: SqlSpan,
    /// What it does: `read`, `write`, `schema`, `transaction`, `setting`, `attach`, `other`; `unknown` if binding
    /// failed.
    pub kind: String,
    /// The tables and views that the statement reads or writes, sorted.
    pub tables: Vec<String>,
    /// The functions that the statement calls, sorted.
    pub functions: Vec<String>,
}

/// The data on which a statement was run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum ExecutionData {
    /// Rows generated from the schema.
    Scratch,
    /// The given database.
    Database,
}

/// A column of a result.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[schemars(rename = "SqlColumn")]
pub struct SqlColumn {
    /// The name of the column.
    pub name: String,
    /// The declared type of the column, if the engine reports one.
    #[serde(default, skip_serializing_if = "Option::is_none", rename = "type")]
    pub kind: Option<String>,
}

/// The rows of a table that a write would change.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct AffectedRows {
    /// The table.
    pub table: String,
    /// The number of rows that would change.
    pub rows: u64,
    /// The number of rows in the table.
    pub of: u64,
}

/// The result of running the last statement that was run.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[schemars(rename = "SqlExecution")]
pub struct SqlExecution {
    /// The data on which the statement was run.
    pub data: ExecutionData,
    /// The columns of the result.
    pub columns: Vec<SqlColumn>,
    /// The number of rows that were read from the result.
    pub rows: u64,
    /// True if the result had more rows.
    pub truncated: bool,
    /// The rows that a write would change. The write was rolled back.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub affected: Vec<AffectedRows>,
}

/// Advice to retry with the feedback or not.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[schemars(rename = "SqlRetry")]
pub struct SqlRetry {
    /// True if another attempt is worthwhile.
    pub worth: bool,
    /// The reason.
    pub why: String,
}

/// Identifies the request and the versions that judged it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[schemars(rename = "SqlAudit")]
pub struct SqlAudit {
    /// The sha256 of the text.
    pub sql: Sha256Hex,
    /// The sha256 of the request: text, schema, policy, limits, question, stages.
    pub request: Sha256Hex,
    /// The engine and its version.
    pub engine: String,
    /// The version of Proctor, which defines the rules.
    pub proctor: String,
}

/// The durations. They are not part of the hash.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[schemars(rename = "SqlTiming")]
pub struct SqlTiming {
    /// The total duration, in microseconds.
    pub total_us: u64,
    /// The duration of each stage that ran, in microseconds.
    pub stages_us: Vec<(StageName, u64)>,
}

/// The answer to an SQL request.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Judgement {
    /// The version of this document's format.
    pub version: u32,
    /// The verdict.
    pub verdict: SqlVerdict,
    /// The SQL dialect.
    pub dialect: Dialect,
    /// The policy.
    pub policy: SqlPolicy,
    /// The statements of the text.
    pub statements: Vec<StatementView>,
    /// The stages, in the order in which they ran.
    pub stages: Vec<StageRecord>,
    /// All findings, by stage and location.
    pub diagnostics: Vec<SqlDiagnostic>,
    /// The result of running the text.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub execution: Option<SqlExecution>,
    /// The feedback for a model to correct the statement, at most [`MAX_FEEDBACK_BYTES`] bytes; can be empty.
    pub feedback: String,
    /// Advice to retry with the feedback or not.
    pub retry: SqlRetry,
    /// Identifies the request and the versions that judged it.
    pub audit: SqlAudit,
    /// The sha256 of the canonical JSON of all fields above.
    pub digest: Sha256Hex,
    /// The durations.
    pub timing: SqlTiming,
}

impl StageRecord {
    /// Creates the record of a built-in stage.
    pub fn new(stage: StageName, state: StageState, reason: Option<String>) -> Self {
        Self { stage, verifier: None, state, reason }
    }
}

impl Judgement {
    /// Derives the verdict from stages and findings. A stage that failed or was skipped never results in `ok`.
    pub fn derive_verdict(stages: &[StageRecord], diagnostics: &[SqlDiagnostic]) -> SqlVerdict {
        if diagnostics.iter().any(|found| found.severity == SqlSeverity::Error && !found.code.is_engine_problem()) {
            return SqlVerdict::Reject;
        }
        let is_whole = stages.iter().all(|record| record.state == StageState::Passed);
        let is_failed = diagnostics.iter().any(|found| found.severity == SqlSeverity::Error);
        if is_whole && !is_failed && !stages.is_empty() { SqlVerdict::Ok } else { SqlVerdict::Error }
    }

    /// Sets the digest of the document.
    #[must_use]
    pub fn with_digest(mut self) -> Self {
        self.digest = self.compute_digest();
        self
    }

    /// Returns whether the document is unchanged since it was sealed.
    pub fn is_intact(&self) -> bool {
        self.version == VERSION && self.digest == self.compute_digest()
    }

    /// Returns whether this is the judgement of a request.
    pub fn covers(&self, request: &SqlRequest) -> bool {
        self.audit.request == Sha256Hex::digest(&canonical::to_vec(request))
    }

    fn compute_digest(&self) -> Sha256Hex {
        Sha256Hex::digest(&canonical::to_vec_without(self, &["digest", "timing"]))
    }
}

/// Returns the feedback for a model: errors first, then warnings, each with its confidence if that is below 100 %.
/// The text has at most [`MAX_FEEDBACK_BYTES`] bytes.
pub fn render_feedback(verdict: SqlVerdict, diagnostics: &[SqlDiagnostic]) -> String {
    let of = |severity: SqlSeverity| {
        let mut found: Vec<&SqlDiagnostic> =
            diagnostics.iter().filter(|found| found.severity == severity && !found.code.is_engine_problem()).collect();
        found.sort_by_key(|found| (found.stage, std::cmp::Reverse(found.confidence)));
        found
    };
    let (errors, warnings) = (of(SqlSeverity::Error), of(SqlSeverity::Warning));
    let of_errors = match verdict {
        SqlVerdict::Reject => {
            "This SQL was rejected before it ran. Correct every error and answer with the whole statement.\nErrors:\n"
        }
        SqlVerdict::Ok | SqlVerdict::Error => "This SQL has errors, and only part of it was judged.\nErrors:\n",
    };
    let of_warnings = match (errors.is_empty(), verdict) {
        (false, _) => "Warnings, which may be wrong; change the statement only if a warning is right:\n",
        (true, SqlVerdict::Ok) => {
            "This SQL can run, but it may not answer the question. Change it only if a warning is right.\nWarnings:\n"
        }
        (true, _) => "This SQL was not judged completely.\nWarnings, which may be wrong:\n",
    };
    let mut text = String::new();
    let mut number = 0;
    let all = errors.len() + warnings.len();
    for (head, found) in [(of_errors, errors), (of_warnings, warnings)] {
        let mut head = Some(head);
        for found in found {
            let line = head.take().unwrap_or_default().to_owned() + &feedback_line(number + 1, found);
            let tail = format!("{} more.\n", all - number);
            if text.len() + line.len() + tail.len() > MAX_FEEDBACK_BYTES {
                return text + &tail;
            }
            text += &line;
            number += 1;
        }
    }
    text
}

fn feedback_line(number: usize, found: &SqlDiagnostic) -> String {
    let mut line = format!("{number}. ");
    if found.confidence < 100 {
        let _ = write!(line, "({} % sure) ", found.confidence);
    }
    if let Some(span) = found.span {
        let _ = write!(line, "line {}, column {}: ", span.line, span.column);
    }
    line += &found.message;
    if !line.ends_with(['.', '?', '!']) {
        line.push('.');
    }
    if !found.candidates.is_empty() {
        let _ = write!(line, " Nearest: {}.", found.candidates.join(", "));
    }
    if let Some(advice) = &found.advice {
        let _ = write!(line, " {advice}");
    }
    line.push('\n');
    line
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sql::{Percent, SqlCode};

    fn error(message: &str) -> SqlDiagnostic {
        SqlDiagnostic::error(StageName::Bind, SqlCode::UnknownColumn, message)
    }

    fn warning(message: &str, confidence: u8) -> SqlDiagnostic {
        SqlDiagnostic::warning(StageName::Semantic, SqlCode::LimitExpected, message, confidence)
    }

    #[test]
    fn feedback_separates_warnings_from_errors() {
        let found = [warning("no limit", 72), error("no column `a`")];
        let text = render_feedback(SqlVerdict::Reject, &found);
        let at = |part: &str| text.find(part).unwrap_or_else(|| panic!("`{part}` in {text}"));
        assert!(at("Correct every error") < at("1. no column `a`."), "{text}");
        assert!(at("1. no column") < at("Warnings, which may be wrong"), "{text}");
        assert!(at("Warnings") < at("2. (72 % sure) no limit."), "{text}");
        let text = render_feedback(SqlVerdict::Ok, &found[..1]);
        assert!(text.contains("only if a warning is right") && !text.contains("error"), "{text}");
        assert_eq!(render_feedback(SqlVerdict::Ok, &[]), "");
    }

    #[test]
    fn feedback_is_bounded_and_drops_warnings_first() {
        let mut found: Vec<SqlDiagnostic> = (0..12).map(|_| warning(&"w".repeat(200), 80)).collect();
        found.push(error("no column `a`"));
        let text = render_feedback(SqlVerdict::Reject, &found);
        assert!(
            text.len() <= MAX_FEEDBACK_BYTES && text.contains("no column `a`") && text.ends_with(" more.\n"),
            "{text}"
        );
    }

    #[test]
    fn reject_threshold_turns_warnings_into_errors() {
        let at = |least: u64| Some(Percent::try_from(least).expect("a percent"));
        for (found, least, expected) in [
            (warning("w", 72), None, SqlSeverity::Warning),
            (warning("w", 72), at(73), SqlSeverity::Warning),
            (warning("w", 72), at(72), SqlSeverity::Error),
            (SqlDiagnostic::note(StageName::Run, SqlCode::RowsLeftOut, "n"), at(1), SqlSeverity::Note),
            (
                SqlDiagnostic::warning(StageName::Safety, SqlCode::SafetyUnchecked, "s", 100),
                at(1),
                SqlSeverity::Warning,
            ),
        ] {
            assert_eq!(found.with_reject_threshold(least).severity, expected);
        }
    }
}
