//! The arguments of `proctor init`.

use clap::Args;

use super::shared_options::RepoArgs;

/// The arguments of `proctor init`.
#[derive(Debug, Args)]
pub(crate) struct InitArgs {
    /// Print the spec instead of writing a file
    #[arg(long)]
    pub dry_run: bool,
    /// Replace the existing spec
    #[arg(long, conflicts_with = "dry_run")]
    pub force: bool,
    #[command(flatten)]
    pub repo: RepoArgs,
}
