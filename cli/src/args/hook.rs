//! The arguments of `proctor hook`.

use clap::{Args, Subcommand, ValueEnum};
use proctor_core::names::ProfileName;

use super::{RepoArgs, SandboxArgs, WayArgs};

/// `proctor hook`.
#[derive(Debug, Args)]
pub(crate) struct HookCommandArgs {
    /// What to do.
    #[command(subcommand)]
    pub command: HookCommand,
}

/// What to do with hooks.
#[derive(Debug, Subcommand)]
pub(crate) enum HookCommand {
    /// Have git verify before it pushes, or commits
    Install(HookInstallArgs),
    /// Take our hooks away again, and put back what stood there
    Uninstall(HookUninstallArgs),
    /// Show which hooks are there, whose they are, and whether ours would work now
    Status(HookStatusArgs),
    /// Do what a hook does: git's hooks call this, and those of agents
    Run(HookRunArgs),
}

/// A hook of git.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum HookName {
    /// Before `git push` sends anything: the commits that are pushed.
    PrePush,
    /// Before `git commit` makes a commit: what is staged.
    PreCommit,
}

impl HookName {
    /// All supported hooks.
    pub(crate) const ALL: [Self; 2] = [Self::PrePush, Self::PreCommit];

    /// Returns git's name of the hook.
    pub(crate) fn as_str(self) -> &'static str {
        match self {
            Self::PrePush => "pre-push",
            Self::PreCommit => "pre-commit",
        }
    }
}

/// What a hook verifies, and how: said when it is installed, and written into it.
#[derive(Debug, Clone, PartialEq, Eq, Args)]
pub(crate) struct HookOptions {
    /// The profile of the spec that is run
    #[arg(long, value_name = "NAME", default_value = "pr")]
    pub profile: ProfileName,
    /// With `pre-push`: every commit that no remote has yet, and not only the last one of each ref
    #[arg(long)]
    pub each_commit: bool,
    /// Run anew, also where evidence of an earlier run answers
    #[arg(long)]
    pub fresh: bool,
}

/// `proctor hook install`.
#[derive(Debug, Args)]
pub(crate) struct HookInstallArgs {
    /// The hooks [default: pre-push]
    #[arg(value_name = "HOOK")]
    pub hooks: Vec<HookName>,
    #[command(flatten)]
    pub options: HookOptions,
    /// Write to a directory of hooks that other repositories use too, where `core.hooksPath` names one
    #[arg(long)]
    pub shared: bool,
    /// Replace a hook of ours that was edited
    #[arg(long)]
    pub force: bool,
    #[command(flatten)]
    pub repo: RepoArgs,
}

/// `proctor hook uninstall`.
#[derive(Debug, Args)]
pub(crate) struct HookUninstallArgs {
    /// The hooks [default: all of ours]
    #[arg(value_name = "HOOK")]
    pub hooks: Vec<HookName>,
    #[command(flatten)]
    pub repo: RepoArgs,
}

/// `proctor hook status`.
#[derive(Debug, Args)]
pub(crate) struct HookStatusArgs {
    #[command(flatten)]
    pub repo: RepoArgs,
}

/// `proctor hook run`.
#[derive(Debug, Args)]
pub(crate) struct HookRunArgs {
    /// The hook of git whose work is done
    #[arg(value_name = "HOOK", required_unless_present = "agent_hook", conflicts_with = "agent_hook")]
    pub hook: Option<HookName>,
    /// What git gives the hook, behind `--`: for `pre-push` the name and the URL of the remote
    #[arg(value_name = "ARG", last = true, conflicts_with = "agent_hook")]
    pub given: Vec<String>,
    /// Speak as agents want their stop hooks to: verify the worktree; code 2 and the reason on standard
    /// error where the agent is to go on
    #[arg(long, conflicts_with = "each_commit")]
    pub agent_hook: bool,
    #[command(flatten)]
    pub options: HookOptions,
    #[command(flatten)]
    pub sandbox: SandboxArgs,
    #[command(flatten)]
    pub repo: RepoArgs,
    #[command(flatten)]
    pub way: WayArgs,
}
