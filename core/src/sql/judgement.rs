//! What is said about a text: the verdict, what each stage did, and what a model needs to do better. Equal requests to
//! equal engines give equal bytes; what took how long stands outside the part that is hashed.

use std::fmt::Write as _;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{Diagnostic, Dialect, Policy, Severity, Span, VERSION};
use crate::canonical;
use crate::digest::Sha256Hex;
use crate::verdict::{EXIT_FAILED, EXIT_INCONCLUSIVE};

/// How many bytes the text for a model has at most.
pub const FEEDBACK: usize = 2_000;

/// The answer in a word.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
#[schemars(rename = "SqlVerdict")]
pub enum Verdict {
    /// Nothing speaks against it.
    Ok,
    /// Something does.
    Reject,
    /// It could not be judged. Never a yes.
    Error,
}

impl Verdict {
    /// The word of the documents.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Ok => "ok",
            Self::Reject => "reject",
            Self::Error => "error",
        }
    }

    /// The exit code of a program that says so: 0, 1 and 5, as of a run.
    pub fn exit_code(self) -> u8 {
        match self {
            Self::Ok => 0,
            Self::Reject => EXIT_FAILED,
            Self::Error => EXIT_INCONCLUSIVE,
        }
    }
}

/// A stage of the chain.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum StageName {
    /// Whether the text is SQL and nothing else.
    Extract,
    /// Whether it falls into tokens.
    Tokenize,
    /// Whether it has the form of statements.
    Parse,
    /// Whether what it names is there.
    Bind,
    /// Whether it may do what it does.
    Safety,
    /// Whether it runs to its end.
    Run,
    /// Whether it answers the question.
    Semantic,
}

impl StageName {
    /// Every stage, in the order in which they run where nobody says otherwise.
    pub const ALL: [Self; 7] =
        [Self::Extract, Self::Tokenize, Self::Parse, Self::Bind, Self::Safety, Self::Run, Self::Semantic];

    /// The word of the documents and of the command line.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Extract => "extract",
            Self::Tokenize => "tokenize",
            Self::Parse => "parse",
            Self::Bind => "bind",
            Self::Safety => "safety",
            Self::Run => "run",
            Self::Semantic => "semantic",
        }
    }
}

/// What became of a stage.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum StageState {
    /// It found no error.
    Passed,
    /// It found one.
    Rejected,
    /// It could not do its work.
    Failed,
    /// It was not begun; the record says why.
    Skipped,
}

/// One stage, as it went.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct StageRecord {
    /// Which.
    pub stage: StageName,
    /// What became of it.
    pub state: StageState,
    /// Why it was skipped or could not do its work.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
}

/// One statement of the text, as the engine understood it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct StatementView {
    /// Where it stands.
    pub span: Span,
    /// What it does: `read`, `write`, `schema`, `transaction`, `setting`, `attach`, `other`; `unknown` where it did not bind.
    pub kind: String,
    /// The tables and views that it reads or writes, sorted.
    pub tables: Vec<String>,
    /// The functions that it calls, sorted.
    pub functions: Vec<String>,
}

/// On what a statement was run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Ground {
    /// Rows made from the schema.
    Scratch,
    /// The database that was given.
    Database,
}

/// A column of a result.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[schemars(rename = "SqlColumn")]
pub struct Column {
    /// Its name.
    pub name: String,
    /// Its declared type, where the engine knows one.
    #[serde(default, skip_serializing_if = "Option::is_none", rename = "type")]
    pub kind: Option<String>,
}

/// The rows of a table that a write would touch.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Touched {
    /// The table.
    pub table: String,
    /// How many of its rows.
    pub rows: u64,
    /// How many rows it has.
    pub of: u64,
}

/// What running came to, for the last statement that was run.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[schemars(rename = "SqlExecution")]
pub struct Execution {
    /// On what.
    pub ground: Ground,
    /// The columns of the result.
    pub columns: Vec<Column>,
    /// How many rows were read of it.
    pub rows: u64,
    /// Whether there were more.
    pub truncated: bool,
    /// What a write would touch. It was rolled back.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub touched: Vec<Touched>,
}

/// Whether it makes sense to try again with the feedback.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[schemars(rename = "SqlRetry")]
pub struct Retry {
    /// Whether it does.
    pub worth: bool,
    /// Why.
    pub why: String,
}

/// What was judged, by what.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[schemars(rename = "SqlAudit")]
pub struct Audit {
    /// The hash of the text.
    pub sql: Sha256Hex,
    /// The hash of the request: text, schema, policy, limits, question, stages.
    pub request: Sha256Hex,
    /// The engine and its version.
    pub engine: String,
    /// The version of Proctor, whose rules these are.
    pub proctor: String,
}

/// What took how long. Not a part of what is hashed.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[schemars(rename = "SqlTiming")]
pub struct Timing {
    /// All of it, in microseconds.
    pub total_us: u64,
    /// Each stage that ran, in microseconds.
    pub stages_us: Vec<(StageName, u64)>,
}

/// What is said about a text.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Judgement {
    /// The version of this document.
    pub version: u32,
    /// The answer.
    pub verdict: Verdict,
    /// Whose SQL it was judged as.
    pub dialect: Dialect,
    /// Under which policy.
    pub policy: Policy,
    /// Its statements.
    pub statements: Vec<StatementView>,
    /// The stages, in the order in which they ran.
    pub stages: Vec<StageRecord>,
    /// Everything that was found, by stage and place.
    pub diagnostics: Vec<Diagnostic>,
    /// What running it came to.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub execution: Option<Execution>,
    /// What to tell a model that is to do better, [`FEEDBACK`] bytes at most; empty where nothing is to be said.
    pub feedback: String,
    /// Whether that makes sense.
    pub retry: Retry,
    /// What was judged, by what.
    pub audit: Audit,
    /// The hash of the canonical JSON of all fields above.
    pub digest: Sha256Hex,
    /// What took how long.
    pub timing: Timing,
}

impl Judgement {
    /// The verdict that stages and findings come to: an error of ours is never hidden by a finding's absence.
    pub fn fold(stages: &[StageRecord], diagnostics: &[Diagnostic]) -> Verdict {
        if diagnostics.iter().any(|found| found.severity == Severity::Error && !found.code.is_ours()) {
            return Verdict::Reject;
        }
        let is_whole = stages.iter().all(|record| record.state == StageState::Passed);
        let is_failed = diagnostics.iter().any(|found| found.severity == Severity::Error);
        if is_whole && !is_failed && !stages.is_empty() { Verdict::Ok } else { Verdict::Error }
    }

    /// Puts the hash of the rest where it belongs.
    #[must_use]
    pub fn sealed(mut self) -> Self {
        self.digest = self.hash();
        self
    }

    /// Whether nothing of it was changed since it was made.
    pub fn is_intact(&self) -> bool {
        self.version == VERSION && self.digest == self.hash()
    }

    fn hash(&self) -> Sha256Hex {
        Sha256Hex::of(&canonical::to_vec_without(self, &["digest", "timing"]))
    }
}

/// Returns the text for a model: errors first, warnings apart, each with its confidence where it is not certain. It has
/// [`FEEDBACK`] bytes at most.
pub fn feedback(verdict: Verdict, diagnostics: &[Diagnostic]) -> String {
    let of = |severity: Severity| {
        let mut found: Vec<&Diagnostic> =
            diagnostics.iter().filter(|found| found.severity == severity && !found.code.is_ours()).collect();
        found.sort_by_key(|found| (found.stage, std::cmp::Reverse(found.confidence)));
        found
    };
    let (errors, warnings) = (of(Severity::Error), of(Severity::Warning));
    let of_errors = match verdict {
        Verdict::Reject => {
            "This SQL was rejected before it ran. Correct every error and answer with the whole statement.\nErrors:\n"
        }
        Verdict::Ok | Verdict::Error => "This SQL has errors, and not all of it was judged.\nErrors:\n",
    };
    let of_warnings = match (errors.is_empty(), verdict) {
        (false, _) => "Warnings, which may be wrong; change the statement only where one is right:\n",
        (true, Verdict::Ok) => {
            "This SQL can run, but it may not be what was asked for. Change it only where a warning is right.\nWarnings:\n"
        }
        (true, _) => "This SQL was not judged completely.\nWarnings, which may be wrong:\n",
    };
    let mut text = String::new();
    let mut number = 0;
    let all = errors.len() + warnings.len();
    for (head, found) in [(of_errors, errors), (of_warnings, warnings)] {
        let mut head = Some(head);
        for found in found {
            let line = head.take().unwrap_or_default().to_owned() + &one(number + 1, found);
            let tail = format!("{} more.\n", all - number);
            if text.len() + line.len() + tail.len() > FEEDBACK {
                return text + &tail;
            }
            text += &line;
            number += 1;
        }
    }
    text
}

fn one(number: usize, found: &Diagnostic) -> String {
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

    fn error(message: &str) -> Diagnostic {
        Diagnostic::error(StageName::Bind, SqlCode::UnknownColumn, message)
    }

    fn warning(message: &str, confidence: u8) -> Diagnostic {
        Diagnostic::warning(StageName::Semantic, SqlCode::LimitExpected, message, confidence)
    }

    #[test]
    fn feedback_keeps_warnings_apart_from_errors() {
        let found = [warning("no limit", 72), error("no column `a`")];
        let text = feedback(Verdict::Reject, &found);
        let at = |part: &str| text.find(part).unwrap_or_else(|| panic!("`{part}` in {text}"));
        assert!(at("Correct every error") < at("1. no column `a`."), "{text}");
        assert!(at("1. no column") < at("Warnings, which may be wrong"), "{text}");
        assert!(at("Warnings") < at("2. (72 % sure) no limit."), "{text}");
        let text = feedback(Verdict::Ok, &found[..1]);
        assert!(text.contains("only where a warning is right") && !text.contains("error"), "{text}");
        assert_eq!(feedback(Verdict::Ok, &[]), "");
    }

    #[test]
    fn feedback_is_bounded_and_drops_warnings_first() {
        let mut found: Vec<Diagnostic> = (0..12).map(|_| warning(&"w".repeat(200), 80)).collect();
        found.push(error("no column `a`"));
        let text = feedback(Verdict::Reject, &found);
        assert!(text.len() <= FEEDBACK && text.contains("no column `a`") && text.ends_with(" more.\n"), "{text}");
    }

    #[test]
    fn a_confidence_turns_warnings_into_errors() {
        let at = |least: u64| Some(Percent::try_from(least).expect("a percent"));
        for (found, least, expected) in [
            (warning("w", 72), None, Severity::Warning),
            (warning("w", 72), at(73), Severity::Warning),
            (warning("w", 72), at(72), Severity::Error),
            (Diagnostic::note(StageName::Run, SqlCode::RowsLeftOut, "n"), at(1), Severity::Note),
            (Diagnostic::warning(StageName::Safety, SqlCode::SafetyUnchecked, "s", 100), at(1), Severity::Warning),
        ] {
            assert_eq!(found.rejecting_at(least).severity, expected);
        }
    }
}
