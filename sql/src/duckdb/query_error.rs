//! Defines the errors of statements that run in DuckDB, before they are parsed as errors about a text.

use proctor_duckdb::DuckDbError;

/// The reason why a statement or an internal query failed. Limits of Proctor have messages in DuckDB's format, so that
/// they are parsed like its own.
#[derive(Debug, thiserror::Error)]
pub(super) enum QueryError {
    /// DuckDB reports an error.
    #[error(transparent)]
    DuckDb(#[from] DuckDbError),
    /// An internal query returns no row.
    #[error("the engine returned no answer")]
    NoAnswer,
    /// The plan of a statement is too large.
    #[error("Out of Memory Error: the plan of the statement is too large to be read")]
    PlanTooLarge,
    /// The plan of a statement nests too deeply.
    #[error("Parser Error: the statement is nested too deeply")]
    PlanTooDeep,
    /// The plan of a statement is not JSON.
    #[error(transparent)]
    Plan(#[from] serde_json::Error),
    /// The result is larger than this number of bytes.
    #[error("Result Limit Error: the result is larger than {0} bytes")]
    ResultTooLarge(u64),
}
