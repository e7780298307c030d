//! Defines the SQL check of a step: the files of a repository to judge, and the settings. The program that runs a
//! check gets it as JSON in an argument, so the command in the plan contains all settings.

use serde::{Deserialize, Serialize};

use super::Percent;
use crate::model::plan::{Argv, RelPath};
use crate::sql::sql_policy::{Dialect, SqlAllow, SqlPolicy, SqlResourceLimits};
use crate::text::canonical;

/// The program that runs a check. A plan contains only its name. If
/// [`PlannedStep::sql`](crate::model::plan::PlannedStep::sql) marks the step as an SQL check, the runner starts our own
/// program, which is installed next to the other helpers.
pub const SQL_PROGRAM: &str = "proctor-sql";

/// The environment variable with the path of DuckDB's shared library. The operator sets it for a daemon, the caller
/// for the command line. It has no effect in the environment of a step.
pub const DUCKDB_VARIABLE: &str = "PROCTOR_DUCKDB";

/// The SQL check of a step.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SqlCheck {
    /// Globs of the files; empty if there is a query.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub files: Vec<String>,
    /// The query.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub query: Option<String>,
    /// The SQL dialect.
    pub dialect: Dialect,
    /// The files that create the schema, in order.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub schema: Vec<RelPath>,
    /// The database to judge against.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub database: Option<RelPath>,
    /// The kinds of statements that are allowed.
    pub policy: SqlPolicy,
    /// The question that the statement should answer.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub question: Option<String>,
    /// The names that the statements may use.
    #[serde(default)]
    pub allow: SqlAllow,
    /// The resource limits of each file.
    pub limits: SqlResourceLimits,
    /// The confidence, in percent, from which a warning counts as an error.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reject_at: Option<Percent>,
}

impl SqlCheck {
    /// Returns the command that runs the check.
    ///
    /// # Panics
    /// Never: neither argument is empty, and JSON contains no NUL byte.
    pub fn to_argv(&self) -> Argv {
        let json = String::from_utf8_lossy(&canonical::to_vec(self)).into_owned();
        #[expect(clippy::expect_used, reason = "a program and JSON are an argument vector")]
        Argv::new(vec![SQL_PROGRAM.to_owned(), "check".to_owned(), json]).expect("two words and JSON")
    }
}
