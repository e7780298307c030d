//! The check of a step: which files of a repository are judged, and how. It is the one argument of the program that
//! does it, so that a plan says the whole of what runs.

use serde::{Deserialize, Serialize};

use super::{Allow, Dialect, Limits, Percent, Policy};
use crate::canonical;
use crate::plan::{Argv, RelPath};

/// The program that carries out a check. In a plan it stands by its name alone; what runs is our own, beside the other
/// helpers, where the step says by [`PlannedStep::sql`](crate::plan::PlannedStep::sql) that it judges SQL.
pub const PROGRAM: &str = "proctor-sql";

/// The variable by which the operator tells a daemon, or a caller the command line, where DuckDB's shared library lies. In
/// a step's environment it says nothing.
pub const DUCKDB: &str = "PROCTOR_DUCKDB";

/// What a step has judged.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Check {
    /// Globs of the files; empty where there is a query.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub files: Vec<String>,
    /// The query.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub query: Option<String>,
    /// Whose SQL it is.
    pub dialect: Dialect,
    /// The files that make the schema, in order.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub schema: Vec<RelPath>,
    /// The database that is judged against.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub database: Option<RelPath>,
    /// What a statement may do.
    pub policy: Policy,
    /// What somebody wanted to know.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub question: Option<String>,
    /// What may be named.
    #[serde(default)]
    pub allow: Allow,
    /// How much each file may take.
    pub limits: Limits,
    /// The confidence in percent from which on a warning is an error.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reject_at: Option<Percent>,
}

impl Check {
    /// The command that carries it out.
    ///
    /// # Panics
    /// Never: neither word is empty, and JSON holds no NUL byte.
    pub fn argv(&self) -> Argv {
        let json = String::from_utf8_lossy(&canonical::to_vec(self)).into_owned();
        #[expect(clippy::expect_used, reason = "a program and JSON are an argument vector")]
        Argv::new(vec![PROGRAM.to_owned(), "check".to_owned(), json]).expect("two words and JSON")
    }
}
