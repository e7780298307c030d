//! The arguments of `proctor sql`.

use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, Subcommand, ValueEnum};
use proctor_core::sql::{Dialect, MAX_SAMPLES, Percent, SqlBatch, SqlPolicy, StageName};

use super::ask::{SqlAskArgs, SqlAuditArgs};
use super::output_format::OutputFormat;
use super::shared_options::{BackendArgs, OperatorArgs, StateArgs};
use super::sql_source::SqlSourceArgs;
use super::value_parsers::{OptionValueError, dialect, one_of, policy};

/// The arguments of `proctor sql`.
#[derive(Debug, Args)]
pub(crate) struct SqlArgs {
    /// The command to run.
    #[command(subcommand)]
    pub command: SqlCommand,
}

impl SqlArgs {
    /// Checks whether the caller expects one JSON document on standard output.
    pub(crate) fn wants_json(&self) -> bool {
        match &self.command {
            SqlCommand::Verify(args) => args.format != SqlFormat::Human,
            SqlCommand::Run(args) => args.format == SqlResultFormat::Json,
            SqlCommand::Schema(args) => args.format == SqlSchemaFormat::Json,
            SqlCommand::Advice(args) => args.format == OutputFormat::Json,
            SqlCommand::Ask(args) => args.format == OutputFormat::Json,
            SqlCommand::Engines(_) | SqlCommand::Audit(_) => false,
        }
    }
}

/// The subcommands of `proctor sql`.
#[derive(Debug, Subcommand)]
pub(crate) enum SqlCommand {
    /// Check statements: whether they bind, are allowed, run, and answer the question
    Verify(Box<SqlVerifyArgs>),
    /// Check a statement, run it if the verdict is `ok`, and show its rows
    Run(Box<SqlRunArgs>),
    /// Describe a schema: tables, columns, keys, comments and sample values
    Schema(Box<SqlSchemaArgs>),
    /// Answer a question with a statement of a language model that was judged and run
    Ask(Box<SqlAskArgs>),
    /// Show and check the audit trail of questions
    Audit(SqlAuditArgs),
    /// Explain an engine's error and how to fix it
    Advice(SqlAdviceArgs),
    /// Show the available engines
    Engines(SqlEnginesArgs),
}

/// The arguments of `proctor sql verify`.
#[derive(Debug, Args)]
pub(crate) struct SqlVerifyArgs {
    /// Files with SQL; `-` or no file is standard input
    #[arg(value_name = "FILE")]
    pub files: Vec<PathBuf>,
    #[command(flatten)]
    pub request: SqlRequestArgs,
    /// An additional check: run the statements on a temporary database of TiDB Cloud Zero
    #[arg(long, value_name = "NAME", conflicts_with_all = ["dsn", "dsn_file", "db"])]
    pub provisioner: Option<SqlProvisioner>,
    /// Keep the temporary database with the schema, and print its URL; a server of this machine ends
    /// after this time, such as `10m`
    #[arg(long, value_name = "TIME", conflicts_with_all = ["dsn", "dsn_file", "db"], value_parser = humantime::parse_duration)]
    pub keep_alive: Option<Duration>,
    /// The format of the judgement on standard output
    #[arg(long, value_name = "FORMAT", default_value = "human")]
    pub format: SqlFormat,
    #[command(flatten)]
    pub backend: SqlBackendArgs,
}

/// The arguments of `proctor sql run`.
#[derive(Debug, Args)]
pub(crate) struct SqlRunArgs {
    /// A file with SQL; `-` or no file is standard input
    #[arg(value_name = "FILE")]
    pub file: Option<PathBuf>,
    #[command(flatten)]
    pub request: SqlRequestArgs,
    /// Keep the effects of a write on the database [default: they are undone]
    #[arg(long)]
    pub commit: bool,
    /// The format of the result on standard output
    #[arg(long, value_name = "FORMAT", default_value = "table")]
    pub format: SqlResultFormat,
    #[command(flatten)]
    pub backend: SqlBackendArgs,
}

/// The arguments of `proctor sql schema`.
#[derive(Debug, Args)]
pub(crate) struct SqlSchemaArgs {
    #[command(flatten)]
    pub source: SqlSourceArgs,
    /// The only tables to describe
    #[arg(long, value_name = "NAME", value_delimiter = ',')]
    pub tables: Vec<String>,
    /// The only columns of their tables to describe, as `table.column`
    #[arg(long, value_name = "NAME", value_delimiter = ',')]
    pub columns: Vec<String>,
    /// The number of sample values of each column, at most 10; personal data is masked
    #[arg(long, value_name = "N", default_value_t = 0, value_parser = clap::value_parser!(u32).range(..=i64::from(MAX_SAMPLES)))]
    pub samples: u32,
    /// A limit as NAME=VALUE: `time`, `steps`, `rows`, `memory`, `result`, `depth`, `input`
    #[arg(long, value_name = "LIMIT", value_delimiter = ',')]
    pub limit: Vec<String>,
    /// The format of the schema on standard output
    #[arg(long, value_name = "FORMAT", default_value = "text")]
    pub format: SqlSchemaFormat,
    #[command(flatten)]
    pub backend: SqlBackendArgs,
}

/// The options of a statement that is judged.
#[derive(Debug, Args)]
pub(crate) struct SqlRequestArgs {
    #[command(flatten)]
    pub source: SqlSourceArgs,
    /// The permitted effects of a statement: `read`, `write` rows, or `migrate` the schema
    #[arg(long, value_name = "POLICY", default_value = "read", value_parser = policy)]
    pub policy: SqlPolicy,
    /// The question that the SQL has to answer
    #[arg(long, value_name = "TEXT")]
    pub question: Option<String>,
    /// The only tables that a statement may use
    #[arg(long, value_name = "NAME", value_delimiter = ',')]
    pub tables: Vec<String>,
    /// The only columns of their tables that a statement may use, as `table.column`
    #[arg(long, value_name = "NAME", value_delimiter = ',')]
    pub columns: Vec<String>,
    /// Functions that a statement may call in addition to the harmless ones
    #[arg(long, value_name = "NAME", value_delimiter = ',')]
    pub functions: Vec<String>,
    /// The stages, in order [default: all of them]
    #[arg(long, value_name = "STAGE", value_delimiter = ',', value_parser = stage)]
    pub stages: Vec<StageName>,
    /// The number of statements in a text [default: one; `migrate` allows many]
    #[arg(long, value_name = "BATCH", value_parser = batch)]
    pub batch: Option<SqlBatch>,
    /// A limit as NAME=VALUE: `time`, `steps`, `rows`, `memory`, `result`, `depth`, `input`
    #[arg(long, value_name = "LIMIT", value_delimiter = ',')]
    pub limit: Vec<String>,
    /// Reject if a warning has at least this confidence, in percent [default: warnings never reject]
    #[arg(long, value_name = "PERCENT")]
    pub reject_at: Option<Percent>,
}

/// The options that select the engine and the side that uses it.
#[derive(Debug, Args)]
pub(crate) struct SqlBackendArgs {
    /// DuckDB's shared library [default: $PROCTOR_DUCKDB, else the usual system directories]
    #[arg(long, value_name = "FILE")]
    pub duckdb: Option<PathBuf>,
    #[command(flatten)]
    pub backend: BackendArgs,
}

/// The arguments of `proctor sql engines`.
#[derive(Debug, Clone, Args)]
pub(crate) struct SqlEnginesArgs {
    /// DuckDB's shared library [default: $PROCTOR_DUCKDB, else the usual system directories]
    #[arg(long, value_name = "FILE")]
    pub duckdb: Option<PathBuf>,
    #[command(flatten)]
    pub state: StateArgs,
    #[command(flatten)]
    pub operator: OperatorArgs,
}

/// The arguments of `proctor sql advice`.
#[derive(Debug, Args)]
pub(crate) struct SqlAdviceArgs {
    /// The engine's error: its message, its code, or both
    #[arg(value_name = "ERROR", required = true)]
    pub error: Vec<String>,
    /// The engine that reports the error [default: detected from the wording]
    #[arg(long, value_name = "DIALECT", value_parser = dialect)]
    pub dialect: Option<Dialect>,
    /// The format on standard output
    #[arg(long, value_name = "FORMAT", default_value = "human")]
    pub format: OutputFormat,
}

/// The services that provide temporary databases.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum SqlProvisioner {
    /// TiDB Cloud Zero, or the service with the same API in the operator's config.
    TidbZero,
}

/// The output formats of a judgement.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum SqlFormat {
    /// Human-readable text.
    Human,
    /// The judgement as JSON; for several files, one document with all judgements.
    Json,
    /// SARIF 2.1.0.
    Sarif,
}

/// The output formats of a result.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum SqlResultFormat {
    /// A table for people.
    Table,
    /// The judgement and the rows as one JSON document.
    Json,
    /// CSV with a line of column names.
    Csv,
}

/// The output formats of a schema.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum SqlSchemaFormat {
    /// Compact text, for people and prompts.
    Text,
    /// One JSON document.
    Json,
    /// `CREATE` statements, for reading.
    Ddl,
}

fn stage(text: &str) -> Result<StageName, OptionValueError> {
    one_of(text, StageName::ALL.map(|stage| (stage.as_str(), stage)))
}

fn batch(text: &str) -> Result<SqlBatch, OptionValueError> {
    one_of(text, [("one", SqlBatch::One), ("many", SqlBatch::Many)])
}
