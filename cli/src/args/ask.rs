//! The arguments of `proctor sql ask` and `proctor sql audit`.

use std::path::PathBuf;

use clap::{Args, Subcommand};
use proctor_core::sql::{Percent, SqlPolicy};

use super::output_format::OutputFormat;
use super::shared_options::{OperatorArgs, StateArgs};
use super::sql_source::SqlSourceArgs;
use super::value_parsers::policy;

/// The arguments of `proctor sql ask`.
#[derive(Debug, Args)]
pub(crate) struct SqlAskArgs {
    /// The question
    #[arg(value_name = "QUESTION", required = true)]
    pub question: String,
    #[command(flatten)]
    pub source: SqlSourceArgs,
    /// The permitted effects of the statement: `read`, `write` rows, or `migrate` the schema; writes
    /// are rolled back
    #[arg(long, value_name = "POLICY", default_value = "read", value_parser = policy)]
    pub policy: SqlPolicy,
    /// The only tables that the model sees and the statement may use
    #[arg(long, value_name = "NAME", value_delimiter = ',')]
    pub tables: Vec<String>,
    /// The only columns of their tables that the model sees and the statement may use, as
    /// `table.column`
    #[arg(long, value_name = "NAME", value_delimiter = ',')]
    pub columns: Vec<String>,
    /// Functions that the statement may call in addition to the harmless ones
    #[arg(long, value_name = "NAME", value_delimiter = ',')]
    pub functions: Vec<String>,
    /// The number of sample values of each column that the model sees, at most 10
    #[arg(long, value_name = "N", default_value_t = 0, value_parser = clap::value_parser!(u32).range(0..=10))]
    pub samples: u32,
    /// The provider of the language model: a key of `ask.providers` in the operator's config
    /// [default: `ask.provider`, or the only one]
    #[arg(long, value_name = "NAME")]
    pub provider: Option<String>,
    /// The model [default: the provider's `model`]
    #[arg(long, value_name = "NAME")]
    pub model: Option<String>,
    /// Use the recorded answers of this file instead of a provider
    #[arg(long, value_name = "FILE", conflicts_with_all = ["provider", "model"])]
    pub answers: Option<PathBuf>,
    /// Print the first prompt and exit, without calling a model
    #[arg(long)]
    pub explain: bool,
    /// Maximum number of answers of the model [default: `ask.max_attempts`, which is also the maximum]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=20))]
    pub max_attempts: Option<u32>,
    /// Maximum number of tokens of all prompts and answers [default: `ask.max_tokens`, which is also
    /// the maximum]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    pub max_tokens: Option<u64>,
    /// Maximum time in seconds [default: `ask.max_seconds`, which is also the maximum]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    pub max_seconds: Option<u64>,
    /// A limit of each statement as NAME=VALUE: `time`, `steps`, `rows`, `memory`, `result`, `depth`,
    /// `input`
    #[arg(long, value_name = "LIMIT", value_delimiter = ',')]
    pub limit: Vec<String>,
    /// Reject a statement if a warning has at least this confidence, in percent [default: warnings
    /// never reject]
    #[arg(long, value_name = "PERCENT")]
    pub reject_at: Option<Percent>,
    /// The format of the answer on standard output
    #[arg(long, value_name = "FORMAT", default_value = "human")]
    pub format: OutputFormat,
    /// DuckDB's shared library [default: $PROCTOR_DUCKDB, else the usual system directories]
    #[arg(long, value_name = "FILE")]
    pub duckdb: Option<PathBuf>,
    #[command(flatten)]
    pub state: StateArgs,
    #[command(flatten)]
    pub operator: OperatorArgs,
}

/// The arguments of `proctor sql audit`.
#[derive(Debug, Args)]
pub(crate) struct SqlAuditArgs {
    /// The command to run.
    #[command(subcommand)]
    pub command: SqlAuditCommand,
}

/// The subcommands of `proctor sql audit`.
#[derive(Debug, Subcommand)]
pub(crate) enum SqlAuditCommand {
    /// List the latest questions, or show all records of one question
    Show(SqlAuditShowArgs),
    /// Check that no record was changed, removed or inserted
    Verify(SqlAuditReadArgs),
    /// Print all records as JSON lines
    Export(SqlAuditReadArgs),
}

/// The arguments of `proctor sql audit show`.
#[derive(Debug, Args)]
pub(crate) struct SqlAuditShowArgs {
    /// The id of a question [default: list the latest questions]
    #[arg(value_name = "ID")]
    pub id: Option<String>,
    /// The number of questions in the list
    #[arg(long, value_name = "N", default_value_t = 20)]
    pub last: usize,
    #[command(flatten)]
    pub state: StateArgs,
}

/// The arguments of the other subcommands of `proctor sql audit`.
#[derive(Debug, Args)]
pub(crate) struct SqlAuditReadArgs {
    #[command(flatten)]
    pub state: StateArgs,
}
