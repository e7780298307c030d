//! The words for judging SQL: what is asked (a statement, against which schema, under which policy and limits) and what
//! is answered. Plain data; the engines that know are in `proctor-sql`.

mod check;
mod diagnostic;
mod judgement;
mod percent;
mod texts;

use std::time::Duration;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::plan::Limit;

pub use check::{Check, DUCKDB, PROGRAM};
pub use diagnostic::{Applicability, Diagnostic, Fix, Lines, Severity, Span, SqlCode};
pub use judgement::{
    Audit, Column, Execution, FEEDBACK, Ground, Judgement, Retry, StageName, StageRecord, StageState, StatementView,
    Timing, Touched, Verdict, feedback,
};

pub use percent::{NotAPercent, Percent};
pub use texts::{OneOrMany, one_or_many};

/// The longest time that may be asked for, in milliseconds.
pub const MAX_TIME_MS: u64 = 600_000;

/// The version of the documents here.
pub const VERSION: u32 = 1;

/// Whose SQL it is: the engine that would run it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Dialect {
    /// SQLite, which is linked into Proctor.
    Sqlite,
    /// DuckDB, whose shared library is loaded where there is one.
    Duckdb,
}

impl Dialect {
    /// Every dialect that can be judged.
    pub const ALL: [Self; 2] = [Self::Sqlite, Self::Duckdb];

    /// The word of the documents and of the command line.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Sqlite => "sqlite",
            Self::Duckdb => "duckdb",
        }
    }

    /// Its name as people write it.
    pub fn title(self) -> &'static str {
        match self {
            Self::Sqlite => "SQLite",
            Self::Duckdb => "DuckDB",
        }
    }
}

/// What a statement may do at most.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
#[schemars(rename = "SqlPolicy")]
pub enum Policy {
    /// Look at rows.
    #[default]
    Read,
    /// Change rows too; an `UPDATE` or `DELETE` needs a filter that is not always true.
    Write,
    /// Change tables too; several statements are one migration.
    Migrate,
}

impl Policy {
    /// Every policy, the narrowest first.
    pub const ALL: [Self; 3] = [Self::Read, Self::Write, Self::Migrate];

    /// The word of the documents and of the command line.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Read => "read",
            Self::Write => "write",
            Self::Migrate => "migrate",
        }
    }
}

/// How much a statement may take.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
#[schemars(rename = "SqlLimits")]
pub struct Limits {
    /// How long all stages of one request may take, in milliseconds of wall time.
    #[schemars(range(min = 1, max = 600_000))]
    pub time_ms: u64,
    /// How many instructions of SQLite's machine a statement may take: the same statement on the same rows meets it at
    /// the same place everywhere.
    pub steps: u64,
    /// How many rows are read from a result.
    pub rows: u64,
    /// How much memory the engine may hold, in bytes.
    pub memory: u64,
    /// How large a result may be, in bytes of values.
    pub result: u64,
    /// How deep expressions, views and triggers may nest.
    pub depth: u32,
    /// How long the text may be, in bytes.
    pub input: u64,
}

impl Default for Limits {
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

impl Limits {
    /// How long all stages of one request may take.
    pub fn time(&self) -> Duration {
        Duration::from_millis(self.time_ms.min(MAX_TIME_MS))
    }

    /// Sets one of them from text: `time=10s`, `steps=1000000`, `memory=1GiB`.
    ///
    /// # Errors
    /// What is wrong with it, as a phrase.
    pub fn set(&mut self, text: &str) -> Result<(), String> {
        let (name, value) = text.split_once('=').ok_or("write it as NAME=VALUE")?;
        let size = |least: u64| match value.parse::<Limit>() {
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
            "steps" => self.steps = size(1)?,
            "rows" => self.rows = size(1)?,
            "memory" => self.memory = size(16 << 20)?,
            "result" => self.result = size(1)?,
            "depth" => self.depth = u32::try_from(size(1)?.min(1_000)).unwrap_or(1_000),
            "input" => self.input = size(1)?,
            other => {
                let known = "`time`, `steps`, `rows`, `memory`, `result`, `depth`, `input`";
                return Err(format!("there is no limit `{other}`; the limits are {known}"));
            }
        }
        Ok(())
    }
}

/// What may be named, beyond what the policy says. An empty list allows everything that the policy allows.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
#[schemars(rename = "SqlAllow")]
pub struct Allow {
    /// Tables and views, as `table` or `schema.table`, in any case. A view needs the tables behind it on the list too.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub tables: Vec<String>,
    /// Columns, as `table.column`; a table without an entry here is free.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub columns: Vec<String>,
    /// Functions beside those that a dialect's own list holds for harmless.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub functions: Vec<String>,
}

/// How many statements a text may hold.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
#[schemars(rename = "SqlBatch")]
pub enum Batch {
    /// One: what a model or a program hands over as one query.
    One,
    /// Any number, each judged by itself, in order: a file.
    Many,
}

/// One text to be judged.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(rename = "SqlRequest")]
pub struct Request {
    /// The text.
    pub sql: String,
    /// Whose it is.
    pub dialect: Dialect,
    /// The schema: statements of the same dialect that make it, in order, as one text or as a list of texts. They may
    /// insert rows.
    #[serde(default, deserialize_with = "one_or_many")]
    #[schemars(with = "OneOrMany")]
    pub schema: Vec<String>,
    /// A database file to judge against, in place of or behind `schema`; it is never changed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub database: Option<String>,
    /// What it may do.
    #[serde(default)]
    pub policy: Policy,
    /// What it may name.
    #[serde(default)]
    pub allow: Allow,
    /// How much it may take.
    #[serde(default)]
    pub limits: Limits,
    /// How many statements it may be; by the policy where this is left out: `migrate` takes many.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub batch: Option<Batch>,
    /// What somebody wanted to know, for the semantic stage.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub question: Option<String>,
    /// The stages, in order; all of them where this is left out.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stages: Option<Vec<StageName>>,
    /// The confidence in percent from which on a warning is an error; warnings never reject where this is left out.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reject_at: Option<Percent>,
}

impl Request {
    /// A text of a dialect, with everything else as it is where nothing is said.
    pub fn new(dialect: Dialect, sql: impl Into<String>) -> Self {
        Self {
            sql: sql.into(),
            dialect,
            schema: Vec::new(),
            database: None,
            policy: Policy::default(),
            allow: Allow::default(),
            limits: Limits::default(),
            batch: None,
            question: None,
            stages: None,
            reject_at: None,
        }
    }

    /// How many statements it may be.
    pub fn batch(&self) -> Batch {
        self.batch.unwrap_or(match self.policy {
            Policy::Read | Policy::Write => Batch::One,
            Policy::Migrate => Batch::Many,
        })
    }

    /// The stages that it goes through.
    pub fn stages(&self) -> &[StageName] {
        self.stages.as_deref().unwrap_or(&StageName::ALL)
    }
}
