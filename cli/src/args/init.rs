//! The arguments of `proctor init`.

use clap::Args;

use super::RepoArgs;

/// `proctor init`.
#[derive(Debug, Args)]
pub(crate) struct InitArgs {
    /// Print the spec, and write nothing
    #[arg(long)]
    pub dry_run: bool,
    /// Replace the spec that is there
    #[arg(long, conflicts_with = "dry_run")]
    pub force: bool,
    #[command(flatten)]
    pub repo: RepoArgs,
}
