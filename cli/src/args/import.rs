//! The arguments of `proctor import`.

use std::path::PathBuf;

use clap::{Args, ValueEnum};
use proctor_core::adopt::import::Source;
use proctor_core::model::names::ProfileName;

use super::output_format::OutputFormat;
use super::shared_options::RepoArgs;

/// The arguments of `proctor import`.
#[derive(Debug, Args)]
pub(crate) struct ImportArgs {
    /// The configuration [default: the one in the repository: `.pre-commit-config.yaml` or `lefthook.yml`]
    #[arg(value_name = "FILE")]
    pub file: Option<PathBuf>,
    /// The tool that the configuration belongs to [default: detected from its name, or else from its
    /// content]
    #[arg(long, value_name = "TOOL")]
    pub from: Option<ImportTool>,
    /// Print the spec to standard output instead of writing a file
    #[arg(long)]
    pub dry_run: bool,
    /// Replace the existing spec of the repository
    #[arg(long, conflicts_with = "dry_run")]
    pub force: bool,
    /// Add the skills to the existing spec of the repository, whose text stays as it is
    #[arg(long, conflicts_with = "force")]
    pub into: bool,
    /// The name of the profile for the hooks
    #[arg(long, value_name = "NAME", default_value = "pr")]
    pub profile: ProfileName,
    /// The format of the list of converted hooks on standard output
    #[arg(long, value_name = "FORMAT", default_value = "human")]
    pub format: OutputFormat,
    #[command(flatten)]
    pub repo: RepoArgs,
}

/// A tool whose configuration can be read.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum ImportTool {
    /// `.pre-commit-config.yaml`.
    PreCommit,
    /// `lefthook.yml`.
    Lefthook,
}

impl ImportTool {
    /// Returns the core type of the same tool.
    pub(crate) fn source(self) -> Source {
        match self {
            Self::PreCommit => Source::PreCommit,
            Self::Lefthook => Source::Lefthook,
        }
    }
}
