//! The arguments of `proctor compare`.

use clap::Args;

use super::output_format::OutputFormat;
use super::shared_options::{RepoArgs, SocketArgs, StateArgs};

const EXIT_CODES: &str = "\
Exit codes:
  0  the same, except for measurements
  1  different
  2  one of them cannot be found or read";

/// The arguments of `proctor compare`.
#[derive(Debug, Args)]
#[command(after_help = EXIT_CODES)]
pub(crate) struct CompareArgs {
    /// The first run: its ID, or the directory of its documents, written with a `/`
    #[arg(value_name = "BEFORE")]
    pub before: String,
    /// The second run
    #[arg(value_name = "AFTER")]
    pub after: String,
    /// The format of the differences on standard output
    #[arg(long, value_name = "FORMAT", default_value = "human")]
    pub format: OutputFormat,
    #[command(flatten)]
    pub repo: RepoArgs,
    #[command(flatten)]
    pub state: StateArgs,
    #[command(flatten)]
    pub daemon: SocketArgs,
}
