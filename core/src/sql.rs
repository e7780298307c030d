//! Types for judging SQL: the request (a statement, the schema, the policy and the limits) and the answer. Plain
//! data; the SQL engines are in `proctor-sql`.

mod judgement;
mod percent;
mod sql_check;
mod sql_diagnostic;
mod text_list;

use std::time::Duration;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::model::plan::Limit;

pub use judgement::{
    Ground, Judgement, MAX_FEEDBACK_BYTES, SqlAudit, SqlColumn, SqlExecution, SqlRetry, SqlTiming, SqlVerdict,
    StageName, StageRecord, StageState, StatementView, Touched, render_feedback,
};
pub use sql_check::{DUCKDB_VARIABLE, SQL_PROGRAM, SqlCheck};
pub use sql_diagnostic::{Applicability, SqlCode, SqlDiagnostic, SqlFix, SqlLineIndex, SqlSeverity, SqlSpan};

pub use percent::{NotAPercent, Percent};
pub use text_list::{OneOrMany, one_or_many};

/// The largest accepted time limit, in milliseconds.
pub const MAX_TIME_MS: u64 = 600_000;

/// Version of the formats in this module.
pub const VERSION: u32 = 1;

/// The SQL dialect: the engine that would run the statement.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Dialect {
    /// SQLite, which is linked into Proctor.
    Sqlite,
    /// DuckDB, whose shared library is loaded at run time if it is installed.
    Duckdb,
}

impl Dialect {
    /// Every supported dialect.
    pub const ALL: [Self; 2] = [Self::Sqlite, Self::Duckdb];

    /// Returns the name in documents and on the command line.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Sqlite => "sqlite",
            Self::Duckdb => "duckdb",
        }
    }

    /// Returns the name for display.
    pub fn display_name(self) -> &'static str {
        match self {
            Self::Sqlite => "SQLite",
            Self::Duckdb => "DuckDB",
        }
    }
}

/// The kinds of statements that are allowed.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
#[schemars(rename = "SqlPolicy")]
pub enum SqlPolicy {
    /// Only reading rows.
    #[default]
    Read,
    /// Also changing rows. An `UPDATE` or `DELETE` needs a filter that is not always true.
    Write,
    /// Also changing tables. Several statements form one migration.
    Migrate,
}

impl SqlPolicy {
    /// Every policy, the most restrictive first.
    pub const ALL: [Self; 3] = [Self::Read, Self::Write, Self::Migrate];

    /// Returns the name in documents and on the command line.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Read => "read",
            Self::Write => "write",
            Self::Migrate => "migrate",
        }
    }
}

/// Limits on the resources of a statement.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
#[schemars(rename = "SqlLimits")]
pub struct SqlResourceLimits {
    /// Maximum wall time of all stages of one request, in milliseconds.
    #[schemars(range(min = 1, max = 600_000))]
    pub time_ms: u64,
    /// Maximum number of instructions of SQLite's virtual machine for one statement. This limit is deterministic:
    /// the same statement reaches it at the same point on every machine, given the same rows.
    pub steps: u64,
    /// Maximum number of rows that are read from a result.
    pub rows: u64,
    /// Maximum memory of the engine, in bytes.
    pub memory: u64,
    /// Maximum size of a result, in bytes of values.
    pub result: u64,
    /// Maximum nesting of expressions, views and triggers.
    pub depth: u32,
    /// Maximum size of the text, in bytes.
    pub input: u64,
}

impl Default for SqlResourceLimits {
    fn default() -> Self {
        Self {
            time_ms: 5_000,
            steps: 200_000_000,
            rows: 10_000,
            memory: 512 << 20,
            result: 16 << 20,
            depth: 200,
            input: 1 << 20,
        }
    }
}

impl SqlResourceLimits {
    /// Returns the maximum wall time of all stages of one request.
    pub fn wall_time(&self) -> Duration {
        Duration::from_millis(self.time_ms.min(MAX_TIME_MS))
    }

    /// Sets one limit from text such as `time=10s`, `steps=1000000`, `memory=1GiB`.
    ///
    /// # Errors
    /// The name is unknown or the value is invalid; a phrase gives the reason.
    pub fn set(&mut self, text: &str) -> Result<(), String> {
        let (name, value) = text.split_once('=').ok_or("write it as NAME=VALUE")?;
        let parse_size = |least: u64| match value.parse::<Limit>() {
            Ok(Limit::Max(size)) if size >= least => Ok(size),
            Ok(Limit::Max(_)) => Err(format!("it is {least} at least")),
            Ok(Limit::Unlimited) => Err("it has to be bounded".to_owned()),
            Err(expected) => Err(expected.to_string()),
        };
        match name.trim() {
            "time" => {
                let time = humantime::parse_duration(value).map_err(|error| error.to_string())?;
                let ms = u64::try_from(time.as_millis()).unwrap_or(u64::MAX);
                if !(1..=MAX_TIME_MS).contains(&ms) {
                    return Err("it is 1 ms to 10 minutes".to_owned());
                }
                self.time_ms = ms;
            }
            "steps" => self.steps = parse_size(1)?,
            "rows" => self.rows = parse_size(1)?,
            "memory" => self.memory = parse_size(16 << 20)?,
            "result" => self.result = parse_size(1)?,
            "depth" => self.depth = u32::try_from(parse_size(1)?.min(1_000)).unwrap_or(1_000),
            "input" => self.input = parse_size(1)?,
            other => {
                let known = "`time`, `steps`, `rows`, `memory`, `result`, `depth`, `input`";
                return Err(format!("there is no limit `{other}`; the limits are {known}"));
            }
        }
        Ok(())
    }
}

/// The names that a statement may use, as a restriction of the policy. An empty list allows every name.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
#[schemars(rename = "SqlAllow")]
pub struct SqlAllow {
    /// Tables and views, as `table` or `schema.table`, in any case. A view also needs its underlying tables on the
    /// list.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub tables: Vec<String>,
    /// Columns, as `table.column`. A table without an entry has no restriction.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub columns: Vec<String>,
    /// Functions in addition to the dialect's own list of harmless functions.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub functions: Vec<String>,
}

/// The number of statements that a text may contain.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
#[schemars(rename = "SqlBatch")]
pub enum SqlBatch {
    /// Exactly one, as a model or a program writes for one query.
    One,
    /// Any number; each is judged separately and in order, as in a file.
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
