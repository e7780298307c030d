//! The arguments of `proctor gc`.

use clap::Args;

use super::{Format, OperatorArgs, StateArgs};

/// `proctor gc`.
#[derive(Debug, Args)]
pub(crate) struct GcArgs {
    /// Remove every private copy, checkout and cache that no run holds; the next runs make them anew
    #[arg(long)]
    pub all: bool,
    /// How the result is written to standard output
    #[arg(long, value_name = "FORMAT", default_value = "human")]
    pub format: Format,
    #[command(flatten)]
    pub state: StateArgs,
    #[command(flatten)]
    pub operator: OperatorArgs,
}
