//! A question to a database in words, and the answer: a statement that was judged `ok` with its rows, or the attempts
//! that failed.

use std::time::Duration;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{
    Dialect, Judgement, Percent, ResultRows, SqlAllow, SqlDiagnostic, SqlPolicy, SqlResourceLimits, SqlVerdict,
};
use crate::decision::verdict::{EXIT_FAILED, EXIT_INCONCLUSIVE};
use crate::sql::text_list::{OneOrMany, one_or_many};

/// The largest number of attempts that a caller or an operator can set.
pub const MAX_ASK_ATTEMPTS: u32 = 20;
/// The longest time of a question that an operator can set.
pub const MAX_ASK_TIME: Duration = Duration::from_secs(3_600);

/// A question to a database.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(rename = "SqlAskRequest")]
pub struct AskRequest {
    /// The question, in English for the stage `semantic`.
    pub question: String,
    /// The SQL dialect.
    pub dialect: Dialect,
    /// Statements of the same dialect that create the schema, in order, as one text or as a list of texts.
    #[serde(default, deserialize_with = "one_or_many")]
    #[schemars(with = "OneOrMany")]
    pub schema: Vec<String>,
    /// A database file to query, instead of or in addition to `schema`. It is never changed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub database: Option<String>,
    /// The kinds of statements that are allowed. A write is rolled back.
    #[serde(default)]
    pub policy: SqlPolicy,
    /// The names that the model sees and the statement may use.
    #[serde(default)]
    pub allow: SqlAllow,
    /// The resource limits of each judgement and of the run.
    #[serde(default)]
    pub limits: SqlResourceLimits,
    /// The confidence, in percent, from which a warning rejects a statement. By default, warnings never reject.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reject_at: Option<Percent>,
    /// The number of sample values of each column that the model sees; a larger number counts as 10.
    #[serde(default)]
    pub samples: u32,
    /// The name of a provider in the operator's config; the default provider without it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub provider: Option<String>,
    /// The bounds of the loop.
    #[serde(default)]
    pub bounds: AskBounds,
}

/// The bounds of a loop that a caller requests; each is the operator's bound by default, and at most that.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
#[schemars(rename = "SqlAskBounds")]
pub struct AskBounds {
    /// Maximum number of answers of the model.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub attempts: Option<u32>,
    /// Maximum number of tokens of all prompts and answers.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tokens: Option<u64>,
    /// Maximum time from the question to the answer, in seconds.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub seconds: Option<u64>,
}

impl AskRequest {
    /// Creates a request with default values for all other fields.
    pub fn new(dialect: Dialect, question: impl Into<String>) -> Self {
        Self {
            question: question.into(),
            dialect,
            schema: Vec::new(),
            database: None,
            policy: SqlPolicy::default(),
            allow: SqlAllow::default(),
            limits: SqlResourceLimits::default(),
            reject_at: None,
            samples: 0,
            provider: None,
            bounds: AskBounds::default(),
        }
    }
}

/// The result of a question.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
#[schemars(rename = "SqlAskVerdict")]
pub enum AskVerdict {
    /// A statement was judged `ok` and ran.
    Answered,
    /// The loop ended without an accepted statement.
    GaveUp,
    /// The loop could not continue: the database, an engine, the provider or the audit trail failed.
    Error,
}

impl AskVerdict {
    /// Returns the exit code of a program for this verdict: 0, 1 or 5, as for a judgement.
    pub fn exit_code(self) -> u8 {
        match self {
            Self::Answered => 0,
            Self::GaveUp => EXIT_FAILED,
            Self::Error => EXIT_INCONCLUSIVE,
        }
    }

    /// Returns the name in documents.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Answered => "answered",
            Self::GaveUp => "gave_up",
            Self::Error => "error",
        }
    }
}

/// The reason why a loop ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
#[schemars(rename = "SqlAskEnd")]
pub enum AskEnd {
    /// The statement ran.
    Answered,
    /// The maximum number of attempts was reached.
    Attempts,
    /// The maximum number of tokens was reached.
    Tokens,
    /// The maximum time was reached.
    Time,
    /// The model repeated a statement that had been rejected.
    Repeated,
    /// A second statement that was judged `ok` failed when it ran.
    RunFailed,
    /// The schema could not be described.
    Schema,
    /// The provider failed.
    Provider,
    /// A statement could not be judged.
    Engine,
    /// The audit trail could not be written.
    Audit,
}

impl AskEnd {
    /// Returns the verdict of a loop that ended for this reason.
    pub fn verdict(self) -> AskVerdict {
        match self {
            Self::Answered => AskVerdict::Answered,
            Self::Attempts | Self::Tokens | Self::Time | Self::Repeated | Self::RunFailed => AskVerdict::GaveUp,
            Self::Schema | Self::Provider | Self::Engine | Self::Audit => AskVerdict::Error,
        }
    }

    /// Returns the name in documents.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Answered => "answered",
            Self::Attempts => "attempts",
            Self::Tokens => "tokens",
            Self::Time => "time",
            Self::Repeated => "repeated",
            Self::RunFailed => "run_failed",
            Self::Schema => "schema",
            Self::Provider => "provider",
            Self::Engine => "engine",
            Self::Audit => "audit",
        }
    }
}

/// The result of one answer of the model.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
#[schemars(rename = "SqlAttemptOutcome")]
pub enum AttemptOutcome {
    /// The answer contained no statement, or several.
    Unreadable,
    /// The statement was rejected.
    Rejected,
    /// The statement had been rejected before; it was not judged again.
    Repeated,
    /// The statement was judged `ok`, but it failed when it ran.
    RunFailed,
    /// The statement could not be judged.
    NotJudged,
    /// The statement was judged `ok` and ran.
    Answered,
}

impl AttemptOutcome {
    /// Returns the name in documents.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Unreadable => "unreadable",
            Self::Rejected => "rejected",
            Self::Repeated => "repeated",
            Self::RunFailed => "run_failed",
            Self::NotJudged => "not_judged",
            Self::Answered => "answered",
        }
    }
}

/// The result of one call of a model.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum ModelCallOutcome {
    /// The model returned a text. Its statement may still be wrong.
    Answered,
    /// The answer is empty, or not in the format of the provider.
    Malformed,
    /// There was no complete answer in time.
    TimedOut,
    /// The provider refused the call, or could not be reached.
    Failed,
    /// The question was abandoned during the call.
    Cancelled,
}

impl ModelCallOutcome {
    /// Returns the name in metrics and traces.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Answered => "answered",
            Self::Malformed => "malformed",
            Self::TimedOut => "timed_out",
            Self::Failed => "failed",
            Self::Cancelled => "cancelled",
        }
    }
}

/// Numbers of tokens.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[schemars(rename = "SqlAskTokens")]
pub struct TokenCounts {
    /// Tokens of prompts.
    pub input: u64,
    /// Tokens of answers.
    pub output: u64,
    /// True if Proctor estimated a number from the length of a text, because the provider did not report it.
    #[serde(default)]
    pub estimated: bool,
}

impl TokenCounts {
    /// Returns the total.
    pub fn total(self) -> u64 {
        self.input.saturating_add(self.output)
    }

    /// Returns the sum of two counts.
    #[must_use]
    pub fn plus(self, more: Self) -> Self {
        Self {
            input: self.input.saturating_add(more.input),
            output: self.output.saturating_add(more.output),
            estimated: self.estimated || more.estimated,
        }
    }
}

/// One answer of the model, and its outcome.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[schemars(rename = "SqlAskAttempt")]
pub struct AskAttempt {
    /// The number of the attempt, starting at 1.
    pub number: u32,
    /// The result.
    pub outcome: AttemptOutcome,
    /// The statement in the answer. Unless the outcome is `answered`, it was not judged `ok` or failed: do not run it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub statement: Option<String>,
    /// The verdict on the statement; missing if there is no statement.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub verdict: Option<SqlVerdict>,
    /// The findings about the statement.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub diagnostics: Vec<SqlDiagnostic>,
    /// The reason why there is no statement, or why it could not run.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
    /// The tokens of this attempt.
    pub tokens: TokenCounts,
    /// The duration of the attempt in milliseconds.
    pub ms: u64,
}

/// The answer to a question.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[schemars(rename = "SqlAskAnswer")]
pub struct AskAnswer {
    /// The version of this document's format.
    pub version: u32,
    /// The id of the question in the audit trail.
    pub id: String,
    /// The result.
    pub verdict: AskVerdict,
    /// The reason why the loop ended.
    pub end: AskEnd,
    /// The reason in words.
    pub reason: String,
    /// The SQL dialect.
    pub dialect: Dialect,
    /// The provider by its name in the config.
    pub provider: String,
    /// The model.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub model: Option<String>,
    /// The statement; only if it was judged `ok` and ran.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub statement: Option<String>,
    /// The judgement of the statement or, if there is none, of the best attempt.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub judgement: Option<Judgement>,
    /// The rows; only if there is a statement.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub result: Option<ResultRows>,
    /// The attempts, in order.
    pub attempts: Vec<AskAttempt>,
    /// The number of the best attempt: the one that ran or, without one, the last one with the fewest errors.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub best: Option<u32>,
    /// The tokens of all attempts.
    pub tokens: TokenCounts,
    /// The duration in milliseconds.
    pub ms: u64,
}
