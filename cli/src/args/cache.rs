//! The arguments of `proctor cache`.

use clap::{Args, Subcommand};

use super::output_format::OutputFormat;
use super::shared_options::{OperatorArgs, StateArgs};

/// The arguments of `proctor cache`.
#[derive(Debug, Args)]
pub(crate) struct CacheCommandArgs {
    /// The command to run.
    #[command(subcommand)]
    pub command: CacheCommand,
}

/// The subcommands of `proctor cache`.
#[derive(Debug, Subcommand)]
pub(crate) enum CacheCommand {
    /// Count the stored results of steps, and list the steps that are excluded from reuse
    Stats(CacheArgs),
    /// Read every stored result, and remove the damaged ones
    Verify(CacheArgs),
    /// Remove the results that are too old or beyond the bounds, or all of them
    Prune(CachePruneArgs),
}

impl CacheCommand {
    /// Returns the arguments that every command has.
    pub(crate) fn shared(&self) -> &CacheArgs {
        match self {
            Self::Stats(args) | Self::Verify(args) | Self::Prune(CachePruneArgs { shared: args, .. }) => args,
        }
    }
}

/// The arguments that every command of `proctor cache` has.
#[derive(Debug, Args)]
pub(crate) struct CacheArgs {
    /// The format on standard output
    #[arg(long, value_name = "FORMAT", default_value = "human")]
    pub format: OutputFormat,
    #[command(flatten)]
    pub state: StateArgs,
}

/// The arguments of `proctor cache prune`.
#[derive(Debug, Args)]
pub(crate) struct CachePruneArgs {
    /// Remove every result, and also the marks of steps that are excluded from reuse
    #[arg(long)]
    pub all: bool,
    #[command(flatten)]
    pub shared: CacheArgs,
    #[command(flatten)]
    pub operator: OperatorArgs,
}
