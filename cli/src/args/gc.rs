//! The arguments of `proctor gc`.

use clap::Args;

use super::output_format::OutputFormat;
use super::shared_options::{OperatorArgs, StateArgs};

/// The arguments of `proctor gc`.
#[derive(Debug, Args)]
pub(crate) struct GcArgs {
    /// Remove every unused private copy, checkout and cache; the next runs create them again
    #[arg(long)]
    pub all: bool,
    /// The format of the result on standard output
    #[arg(long, value_name = "FORMAT", default_value = "human")]
    pub format: OutputFormat,
    #[command(flatten)]
    pub state: StateArgs,
    #[command(flatten)]
    pub operator: OperatorArgs,
}
