//! The arguments of commands that only a daemon can carry out: about its runs, their output, and the daemon itself.

use clap::{Args, Subcommand};
use proctor_core::model::names::RunId;

use super::output_format::OutputFormat;
use super::report_options::ReportsArgs;
use super::runs::RunReference;
use super::shared_options::{RepoArgs, SocketArgs, StateArgs};

/// The arguments of `proctor status`.
#[derive(Debug, Args)]
pub(crate) struct StatusArgs {
    /// The run [default: the newest runs]
    #[arg(value_name = "RUN")]
    pub run: Option<RunId>,
    /// Show every stored run, not only the newest
    #[arg(long, conflicts_with = "run")]
    pub all: bool,
    /// The format on standard output
    #[arg(long, value_name = "FORMAT", default_value = "human")]
    pub format: OutputFormat,
    #[command(flatten)]
    pub daemon: SocketArgs,
}

/// The arguments of `proctor logs`.
#[derive(Debug, Args)]
pub(crate) struct LogsArgs {
    /// The run, or `last` for the newest one of this repository
    #[arg(value_name = "RUN")]
    pub run: RunReference,
    /// The step, or the toolchain check as `<toolchain>/<n>` [default: all of them, with both streams]
    #[arg(value_name = "SKILL/STEP")]
    pub step: Option<String>,
    /// Show standard error instead of standard output
    #[arg(long, requires = "step")]
    pub stderr: bool,
    /// Show output live until the step or the run ends; lines of several steps are prefixed with the
    /// step
    #[arg(long, short)]
    pub follow: bool,
    /// Do not escape control characters; only to a file or a pipe
    #[arg(long, requires = "step")]
    pub raw: bool,
    #[command(flatten)]
    pub repo: RepoArgs,
    #[command(flatten)]
    pub state: StateArgs,
    #[command(flatten)]
    pub daemon: SocketArgs,
}

/// The arguments of `proctor report`.
#[derive(Debug, Args)]
pub(crate) struct ReportArgs {
    /// The run, or `last` for the newest one of this repository
    #[arg(value_name = "RUN", default_value = "last")]
    pub run: RunReference,
    #[command(flatten)]
    pub reports: ReportsArgs,
    /// Open the page in a browser: `$BROWSER`, else `xdg-open`. Needs `--format html`. The page is
    /// the file of `--report html=FILE`, else a file in the cache directory, and is not printed
    #[arg(long)]
    pub open: bool,
    #[command(flatten)]
    pub repo: RepoArgs,
    #[command(flatten)]
    pub state: StateArgs,
    #[command(flatten)]
    pub daemon: SocketArgs,
}

/// The arguments of `proctor cancel`.
#[derive(Debug, Args)]
pub(crate) struct CancelArgs {
    /// The run
    #[arg(value_name = "RUN")]
    pub run: RunId,
    #[command(flatten)]
    pub daemon: SocketArgs,
}

/// The arguments of `proctor watch`.
#[derive(Debug, Args)]
pub(crate) struct WatchArgs {
    #[command(flatten)]
    pub daemon: SocketArgs,
}

/// The arguments of `proctor daemon`.
#[derive(Debug, Args)]
pub(crate) struct DaemonCommandArgs {
    /// The command to run.
    #[command(subcommand)]
    pub command: DaemonCommand,
}

/// The subcommands of `proctor daemon`.
#[derive(Debug, Subcommand)]
pub(crate) enum DaemonCommand {
    /// Start the daemon if it is not running, and wait until it answers
    Start(StartArgs),
    /// Stop the daemon like SIGTERM, and wait until it has exited
    Stop(StopArgs),
    /// Show whether the daemon runs, and its state
    Status(DaemonStatusArgs),
}

/// The arguments of `proctor daemon start`.
#[derive(Debug, Args)]
pub(crate) struct StartArgs {
    #[command(flatten)]
    pub state: StateArgs,
    #[command(flatten)]
    pub daemon: SocketArgs,
}

/// The arguments of `proctor daemon stop`.
#[derive(Debug, Args)]
pub(crate) struct StopArgs {
    #[command(flatten)]
    pub daemon: SocketArgs,
}

/// The arguments of `proctor daemon status`.
#[derive(Debug, Args)]
pub(crate) struct DaemonStatusArgs {
    /// The format on standard output
    #[arg(long, value_name = "FORMAT", default_value = "human")]
    pub format: OutputFormat,
    #[command(flatten)]
    pub daemon: SocketArgs,
}
