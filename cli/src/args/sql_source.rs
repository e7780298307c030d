//! The options that name a schema or a database.

use std::path::PathBuf;

use clap::Args;
use proctor_core::sql::Dialect;

use super::value_parsers::dialect;

/// The schema or database of a request.
#[derive(Debug, Args)]
pub(crate) struct SqlSourceArgs {
    /// The SQL dialect [default: that of the database with `--dsn`, else `sqlite`]
    #[arg(long, value_name = "DIALECT", value_parser = dialect)]
    pub dialect: Option<Dialect>,
    /// A file with the statements that create the schema; several files are executed in order
    #[arg(long, value_name = "FILE")]
    pub schema: Vec<PathBuf>,
    /// A database file; it is never changed, except by `run --commit`
    #[arg(long, visible_alias = "database", value_name = "FILE")]
    pub db: Option<PathBuf>,
    /// A database on a PostgreSQL or MySQL server, such as `postgres://USER@HOST/DATABASE`; statements
    /// are checked on a local copy of its schema
    #[arg(long, value_name = "URL", conflicts_with_all = ["schema", "db", "dsn_file"])]
    pub dsn: Option<String>,
    /// A file with the URL of `--dsn`, which only its owner may read
    #[arg(long, value_name = "FILE", conflicts_with_all = ["schema", "db"])]
    pub dsn_file: Option<PathBuf>,
}
