//! The arguments of `proctor hook`.

use clap::{Args, Subcommand, ValueEnum};
use proctor_core::model::names::ProfileName;

use super::shared_options::{BackendArgs, RepoArgs, SandboxArgs};

/// The arguments of `proctor hook`.
#[derive(Debug, Args)]
pub(crate) struct HookCommandArgs {
    /// The command to run.
    #[command(subcommand)]
    pub command: HookCommand,
}

/// The subcommands of `proctor hook`.
#[derive(Debug, Subcommand)]
pub(crate) enum HookCommand {
    /// Make git verify before it pushes or commits
    Install(HookInstallArgs),
    /// Remove Proctor's hooks, and restore the previous ones
    Uninstall(HookUninstallArgs),
    /// Show the installed hooks, their owners, and whether Proctor's hooks would work now
    Status(HookStatusArgs),
    /// Do the work of a hook; the hooks of git and of agents call this
    Run(HookRunArgs),
}

/// A hook of git.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum HookName {
    /// Before `git push` sends anything: the pushed commits.
    PrePush,
    /// Before `git commit` creates a commit: the staged tree.
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

/// The settings of a hook, which `proctor hook install` writes into the hook script.
#[derive(Debug, Clone, PartialEq, Eq, Args)]
pub(crate) struct HookOptions {
    /// The profile of the spec to run
    #[arg(long, value_name = "NAME", default_value = "pr")]
    pub profile: ProfileName,
    /// With `pre-push`: verify every commit that no remote has yet, not only the last one of each ref
    #[arg(long)]
    pub each_commit: bool,
    /// With `pre-push`: also check out submodules from their repositories in this clone; otherwise
    /// their directories stay empty
    #[arg(long)]
    pub submodules: bool,
    /// Run even if evidence of an earlier run is valid
    #[arg(long)]
    pub fresh: bool,
    /// Check all files in steps with `files`, not only the files that are staged or that the push
    /// changes
    #[arg(long)]
    pub all_files: bool,
    /// Verify each spec of a commit, at the top and in subdirectories
    #[arg(long)]
    pub each_spec: bool,
    /// With `--each-spec`: skip a spec if all changes are in the directories of other specs
    #[arg(long, requires = "each_spec")]
    pub affected_specs: bool,
}

impl HookOptions {
    /// Returns the given options that apply only to pushed commits.
    pub(crate) fn push_options(&self) -> Vec<&'static str> {
        let given = [(self.each_commit, "--each-commit"), (self.submodules, "--submodules")];
        given.into_iter().filter(|(is_given, _)| *is_given).map(|(_, option)| option).collect()
    }
}

/// The arguments of `proctor hook install`.
#[derive(Debug, Args)]
pub(crate) struct HookInstallArgs {
    /// The hooks [default: pre-push]
    #[arg(value_name = "HOOK")]
    pub hooks: Vec<HookName>,
    #[command(flatten)]
    pub options: HookOptions,
    /// Allow writing to a hooks directory that other repositories also use, if `core.hooksPath` names
    /// one
    #[arg(long)]
    pub shared: bool,
    /// Replace a Proctor hook that was edited
    #[arg(long)]
    pub force: bool,
    #[command(flatten)]
    pub repo: RepoArgs,
}

/// The arguments of `proctor hook uninstall`.
#[derive(Debug, Args)]
pub(crate) struct HookUninstallArgs {
    /// The hooks [default: all Proctor hooks]
    #[arg(value_name = "HOOK")]
    pub hooks: Vec<HookName>,
    #[command(flatten)]
    pub repo: RepoArgs,
}

/// The arguments of `proctor hook status`.
#[derive(Debug, Args)]
pub(crate) struct HookStatusArgs {
    #[command(flatten)]
    pub repo: RepoArgs,
}

/// The arguments of `proctor hook run`.
#[derive(Debug, Args)]
pub(crate) struct HookRunArgs {
    /// The git hook to run
    #[arg(value_name = "HOOK", required_unless_present = "agent_hook", conflicts_with = "agent_hook")]
    pub hook: Option<HookName>,
    /// The arguments that git gives the hook, after `--`: for `pre-push` the name and the URL of the
    /// remote
    #[arg(value_name = "ARG", last = true, conflicts_with = "agent_hook")]
    pub given: Vec<String>,
    /// Act as a stop hook for agents: verify the worktree; exit with code 2 and the reason on standard
    /// error if the agent has to continue
    #[arg(long, conflicts_with_all = ["each_commit", "submodules"])]
    pub agent_hook: bool,
    #[command(flatten)]
    pub options: HookOptions,
    #[command(flatten)]
    pub sandbox: SandboxArgs,
    #[command(flatten)]
    pub repo: RepoArgs,
    #[command(flatten)]
    pub backend: BackendArgs,
}
