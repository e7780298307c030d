//! The arguments of `proctor runs`, and the names of recorded runs.

use std::str::FromStr;

use clap::Args;
use proctor_core::model::names::{BadName, RunId};

use super::output_format::OutputFormat;
use super::shared_options::{RepoArgs, StateArgs};

/// The arguments of `proctor runs`.
#[derive(Debug, Args)]
pub(crate) struct RunsArgs {
    /// List the runs of all repositories
    #[arg(long)]
    pub all: bool,
    /// The format on standard output
    #[arg(long, value_name = "FORMAT", default_value = "human")]
    pub format: OutputFormat,
    #[command(flatten)]
    pub repo: RepoArgs,
    #[command(flatten)]
    pub state: StateArgs,
}

/// A recorded run as named on the command line.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum RunReference {
    /// The newest run of the repository.
    Last,
    /// The run with this id.
    Id(RunId),
}

impl FromStr for RunReference {
    type Err = BadName;
    fn from_str(text: &str) -> Result<Self, BadName> {
        if text == "last" { Ok(Self::Last) } else { RunId::new(text).map(Self::Id) }
    }
}
