//! The arguments of `proctor du`.

use clap::Args;

use super::output_format::OutputFormat;
use super::shared_options::{OperatorArgs, StateArgs};

/// The arguments of `proctor du`.
#[derive(Debug, Args)]
pub(crate) struct DuArgs {
    /// The format on standard output
    #[arg(long, value_name = "FORMAT", default_value = "human")]
    pub format: OutputFormat,
    #[command(flatten)]
    pub state: StateArgs,
    #[command(flatten)]
    pub operator: OperatorArgs,
}
