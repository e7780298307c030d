//! Command-line arguments of `proctord`.

use std::path::PathBuf;

use clap::Parser;

/// Accepts verification requests on a Unix socket, queues and runs them, and stores their results.
#[derive(Debug, Parser)]
#[command(name = "proctord", version)]
pub(super) struct Args {
    /// The socket to listen on. Default: `daemon.socket` of the config, else
    /// `$XDG_RUNTIME_DIR/proctor/proctord.sock`, for root `/run/proctor/proctord.sock`. A socket
    /// that the service manager passes takes precedence over all of them.
    #[arg(long, value_name = "PATH")]
    pub(super) socket: Option<PathBuf>,
    /// The directory for runs, evidence without a changeset, snapshots and caches. Default:
    /// `$XDG_STATE_HOME/proctor`, for root `/var/lib/proctor`.
    #[arg(long, value_name = "DIR")]
    pub(super) state_dir: Option<PathBuf>,
    /// The operator's config. Default: `/etc/proctor/proctord.toml`, else
    /// `$XDG_CONFIG_HOME/proctor/proctord.toml`. SIGHUP reloads it.
    #[arg(long, value_name = "FILE")]
    pub(super) config: Option<PathBuf>,
    /// Check the config and exit: with 0 if it is valid, otherwise with 2 and its errors. No daemon starts.
    #[arg(long, conflicts_with_all = ["socket", "state_dir"])]
    pub(super) check_config: bool,
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory as _;

    #[test]
    fn arguments_are_consistent() {
        Args::command().debug_assert();
    }
}
