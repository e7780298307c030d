//! Defines the SQL check of a step: the files of a repository to judge, and the settings. The program that runs a
//! check gets it as JSON in an argument, so the command in the plan contains all settings.

use serde::{Deserialize, Serialize};

use super::{Allow, Dialect, Limits, Percent, Policy};
use crate::canonical;
use crate::plan::{Argv, RelPath};

/// The program that runs a check. A plan contains only its name. If
/// [`PlannedStep::sql`](crate::plan::PlannedStep::sql) marks the step as an SQL check, the runner starts our own
/// program, which is installed next to the other helpers.
pub const PROGRAM: &str = "proctor-sql";

/// The environment variable with the path of DuckDB's shared library. The operator sets it for a daemon, the caller
/// for the command line. It has no effect in the environment of a step.
pub const DUCKDB: &str = "PROCTOR_DUCKDB";

/// The SQL check of a step.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Check {
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
    pub policy: Policy,
    /// The question that the statement should answer.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub question: Option<String>,
    /// The names that the statements may use.
    #[serde(default)]
    pub allow: Allow,
    /// The resource limits of each file.
    pub limits: Limits,
    /// The confidence, in percent, from which a warning counts as an error.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reject_at: Option<Percent>,
}

impl Check {
    /// Returns the command that runs the check.
    ///
    /// # Panics
    /// Never: neither argument is empty, and JSON contains no NUL byte.
    pub fn argv(&self) -> Argv {
        let json = String::from_utf8_lossy(&canonical::to_vec(self)).into_owned();
        #[expect(clippy::expect_used, reason = "a program and JSON are an argument vector")]
        Argv::new(vec![PROGRAM.to_owned(), "check".to_owned(), json]).expect("two words and JSON")
    }
}
