//! Types for judging SQL: the request (a statement, the schema, the policy and the limits) and the answer. Plain
//! data; the SQL engines are in `proctor-sql`.

mod ask;
mod described_schema;
mod judgement;
mod percent;
mod result_rows;
mod schema_text;
mod sql_check;
mod sql_diagnostic;
pub(crate) mod sql_policy;
pub(crate) mod stage;
mod text_list;

pub use crate::sql::sql_policy::{
    Dialect, MAX_TIME_MS, SqlAllow, SqlLimitError, SqlPolicy, SqlResourceLimits, VERSION,
};
pub use crate::sql::stage::StageName;
pub use ask::{
    AskAnswer, AskAttempt, AskBounds, AskEnd, AskRequest, AskVerdict, AttemptOutcome, MAX_ASK_ATTEMPTS, MAX_ASK_TIME,
    ModelCallOutcome, TokenCounts,
};
pub use described_schema::{
    DescribedColumn, DescribedForeignKey, DescribedSchema, DescribedTable, MAX_SAMPLES, SchemaAnswer, SchemaRequest,
};
pub use judgement::{
    AffectedRows, ExecutionData, Judgement, MAX_FEEDBACK_BYTES, SqlAudit, SqlColumn, SqlExecution, SqlRetry, SqlTiming,
    SqlVerdict, StageRecord, StageState, StatementView, render_feedback,
};
pub use percent::{NotAPercent, Percent};
pub use result_rows::{ResultRows, SqlRunAnswer, SqlRunRequest};
pub use sql_check::{DUCKDB_VARIABLE, SQL_PROGRAM, SqlCheck};
pub use sql_diagnostic::{Applicability, SqlCode, SqlDiagnostic, SqlFix, SqlLineIndex, SqlSeverity, SqlSpan};
pub use text_list::{OneOrMany, one_or_many};

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// The number of statements that a text may contain.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
#[schemars(rename = "SqlBatch")]
pub enum SqlBatch {
    /// Exactly one, as a model or a program writes for one query.
    One,
    /// Any number of statements; each is judged separately and in order, as in a file.
    Many,
}

/// A request to judge SQL.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(rename = "SqlRequest")]
pub struct SqlRequest {
    /// The SQL text.
    pub sql: String,
    /// The SQL dialect.
    pub dialect: Dialect,
    /// The schema: statements of the same dialect that create it, in order, as one text or as a list of texts. They
    /// may insert rows.
    #[serde(default, deserialize_with = "one_or_many")]
    #[schemars(with = "OneOrMany")]
    pub schema: Vec<String>,
    /// A database file to judge against, instead of or in addition to `schema`. It is never changed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub database: Option<String>,
    /// The kinds of statements that are allowed.
    #[serde(default)]
    pub policy: SqlPolicy,
    /// The names that the statements may use.
    #[serde(default)]
    pub allow: SqlAllow,
    /// The resource limits.
    #[serde(default)]
    pub limits: SqlResourceLimits,
    /// The number of statements that are allowed. The default depends on the policy: many for `migrate`, otherwise
    /// one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub batch: Option<SqlBatch>,
    /// The question that the statement should answer, for the semantic stage.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub question: Option<String>,
    /// The stages to run, in order; all stages by default.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stages: Option<Vec<StageName>>,
    /// The confidence, in percent, from which a warning counts as an error. By default, warnings never reject.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reject_at: Option<Percent>,
}

impl SqlRequest {
    /// Creates a request with default values for all other fields.
    pub fn new(dialect: Dialect, sql: impl Into<String>) -> Self {
        Self {
            sql: sql.into(),
            dialect,
            schema: Vec::new(),
            database: None,
            policy: SqlPolicy::default(),
            allow: SqlAllow::default(),
            limits: SqlResourceLimits::default(),
            batch: None,
            question: None,
            stages: None,
            reject_at: None,
        }
    }

    /// Returns the number of statements that are allowed.
    pub fn batch(&self) -> SqlBatch {
        self.batch.unwrap_or(match self.policy {
            SqlPolicy::Read | SqlPolicy::Write => SqlBatch::One,
            SqlPolicy::Migrate => SqlBatch::Many,
        })
    }

    /// Returns the stages to run.
    pub fn stages(&self) -> &[StageName] {
        self.stages.as_deref().unwrap_or(&StageName::ALL)
    }
}
