//! Groups of options that several commands share.

use std::path::PathBuf;

use clap::Args;
use proctor_core::model::enforcement::SandboxMode;

use super::value_parsers::sandbox_mode;

/// The option that selects the repository.
#[derive(Debug, Args)]
pub(crate) struct RepoArgs {
    /// The repository [default: the nearest directory above that has a spec or a `.git`]
    #[arg(long, value_name = "DIR")]
    pub repo: Option<PathBuf>,
}

/// The option that selects the operator's config.
#[derive(Debug, Clone, Args)]
pub(crate) struct OperatorArgs {
    /// The operator's config [default: /etc/proctor/proctord.toml, else
    /// $XDG_CONFIG_HOME/proctor/proctord.toml]
    #[arg(long, value_name = "FILE")]
    pub config: Option<PathBuf>,
}

/// The option that selects the state directory.
#[derive(Debug, Clone, Args)]
pub(crate) struct StateArgs {
    /// The directory for outputs and for evidence without a changeset [default:
    /// $XDG_STATE_HOME/proctor, or /var/lib/proctor for root]
    #[arg(long, value_name = "DIR")]
    pub state_dir: Option<PathBuf>,
}

/// The options that select a daemon or this process.
#[derive(Debug, Clone, Args)]
pub(crate) struct DaemonArgs {
    /// Run in this process, without a daemon
    #[arg(long, conflicts_with_all = ["daemon", "socket"])]
    pub no_daemon: bool,
    /// Require a daemon; exit code 6 if none answers
    #[arg(long, conflicts_with = "state_dir")]
    pub daemon: bool,
    /// The daemon's socket [default: `daemon.socket` of the operator's config, else
    /// $XDG_RUNTIME_DIR/proctor/proctord.sock, else /run/proctor/proctord.sock]
    #[arg(long, value_name = "PATH", conflicts_with_all = ["state_dir", "config"])]
    pub socket: Option<PathBuf>,
}

/// The options of a command that runs through a daemon or in this process.
#[derive(Debug, Clone, Args)]
pub(crate) struct BackendArgs {
    #[command(flatten)]
    pub state: StateArgs,
    #[command(flatten)]
    pub operator: OperatorArgs,
    #[command(flatten)]
    pub daemon: DaemonArgs,
}

/// The option that selects the daemon by its socket.
#[derive(Debug, Args)]
pub(crate) struct SocketArgs {
    /// The daemon's socket [default: `daemon.socket` of the operator's config, else
    /// $XDG_RUNTIME_DIR/proctor/proctord.sock, else /run/proctor/proctord.sock]
    #[arg(long, value_name = "PATH")]
    pub socket: Option<PathBuf>,
    #[command(flatten)]
    pub operator: OperatorArgs,
}

/// The options for machines that cannot enforce every sandbox control.
#[derive(Debug, Args)]
pub(crate) struct SandboxArgs {
    /// If sandbox controls are missing: `strict` refuses to run; `best-effort` continues with the
    /// available ones, records that, and raises the tier to 2
    #[arg(long, value_name = "MODE", default_value = "strict", value_parser = sandbox_mode)]
    pub sandbox: SandboxMode,
}
