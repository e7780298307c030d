//! Represents the dialect, the policy and the limits of SQL.

use std::time::Duration;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::model::plan::Limit;
use crate::spec::LimitParseError;

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
    /// PostgreSQL, whose server programs are started in the sandbox if they are installed.
    Postgres,
    /// MySQL, judged by a MariaDB server, whose programs are started in the sandbox if they are installed.
    Mysql,
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

/// The names that a statement may use, as a restriction of the policy. An empty list allows every name.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
#[schemars(rename = "SqlAllow")]
pub struct SqlAllow {
    /// Tables and views, as `table` or `schema.table`, in any case. A name that contains a dot is in double quotes. A
    /// view also needs its underlying tables on the list.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub tables: Vec<String>,
    /// Columns, as `table.column` or `schema.table.column`. A table without an entry has no restriction.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub columns: Vec<String>,
    /// Functions in addition to the dialect's own list of harmless functions.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub functions: Vec<String>,
}

impl Dialect {
    /// Every supported dialect.
    pub const ALL: [Self; 4] = [Self::Sqlite, Self::Duckdb, Self::Postgres, Self::Mysql];

    /// Returns the name in documents and on the command line.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Sqlite => "sqlite",
            Self::Duckdb => "duckdb",
            Self::Postgres => "postgres",
            Self::Mysql => "mysql",
        }
    }

    /// Returns the name for display.
    pub fn display_name(self) -> &'static str {
        match self {
            Self::Sqlite => "SQLite",
            Self::Duckdb => "DuckDB",
            Self::Postgres => "PostgreSQL",
            Self::Mysql => "MySQL",
        }
    }
}

/// The reason why a limit cannot be set.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum SqlLimitError {
    /// The text is not an assignment.
    #[error("write it as NAME=VALUE")]
    NotAnAssignment,
    /// There is no limit of this name.
    #[error("there is no limit `{name}`; the limits are `time`, `steps`, `rows`, `memory`, `result`, `depth`, `input`")]
    Unknown {
        /// The name.
        name: String,
    },
    /// The value is not a size or a number.
    #[error(transparent)]
    Size(#[from] LimitParseError),
    /// The value is below the minimum.
    #[error("it is {least} at least")]
    TooSmall {
        /// The minimum.
        least: u64,
    },
    /// The value is `unlimited`.
    #[error("it has to be bounded")]
    Unlimited,
    /// The time is not a duration.
    #[error(transparent)]
    Duration(#[from] humantime::DurationError),
    /// The time is out of range.
    #[error("it is 1 ms to 10 minutes")]
    TimeOutOfRange,
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

impl SqlResourceLimits {
    /// Returns the maximum wall time of all stages of one request.
    pub fn wall_time(&self) -> Duration {
        Duration::from_millis(self.time_ms.min(MAX_TIME_MS))
    }

    /// Sets one limit from text such as `time=10s`, `steps=1000000`, `memory=1GiB`.
    ///
    /// # Errors
    /// The name is unknown or the value is invalid.
    pub fn set(&mut self, text: &str) -> Result<(), SqlLimitError> {
        let (name, value) = text.split_once('=').ok_or(SqlLimitError::NotAnAssignment)?;
        let parse_size = |least: u64| match value.parse()? {
            Limit::Max(size) if size >= least => Ok(size),
            Limit::Max(_) => Err(SqlLimitError::TooSmall { least }),
            Limit::Unlimited => Err(SqlLimitError::Unlimited),
        };
        match name.trim() {
            "time" => {
                let time = humantime::parse_duration(value)?;
                let ms = u64::try_from(time.as_millis()).unwrap_or(u64::MAX);
                if !(1..=MAX_TIME_MS).contains(&ms) {
                    return Err(SqlLimitError::TimeOutOfRange);
                }
                self.time_ms = ms;
            }
            "steps" => self.steps = parse_size(1)?,
            "rows" => self.rows = parse_size(1)?,
            "memory" => self.memory = parse_size(16 << 20)?,
            "result" => self.result = parse_size(1)?,
            "depth" => self.depth = u32::try_from(parse_size(1)?.min(1_000)).unwrap_or(1_000),
            "input" => self.input = parse_size(1)?,
            other => return Err(SqlLimitError::Unknown { name: other.to_owned() }),
        }
        Ok(())
    }
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
