//! The arguments that restrict a run to some steps or files.

use std::path::PathBuf;

use clap::Args;

/// The arguments of `proctor run` that restrict it to some steps or files.
#[derive(Debug, Clone, Default, Args)]
pub(crate) struct ScopeArgs {
    /// The skills (`SKILL`) and steps (`SKILL/STEP`) to run, and the skills that they need [default:
    /// all of the profile]. A gate does not accept a run of a part of the profile
    #[arg(value_name = "SKILL[/STEP]", conflicts_with = "last_failed")]
    pub selected: Vec<String>,
    /// Restrict steps with `files` to the files that differ from REV: from its merge base with the
    /// verified commit [default: HEAD]. A gate does not accept such a run
    #[arg(long, value_name = "REV", num_args = 0..=1, default_missing_value = "HEAD", conflicts_with = "last_failed")]
    pub changed: Option<String>,
    /// Restrict steps with `files` to these files, and to the files in these directories. A gate does
    /// not accept such a run
    #[arg(long, value_name = "FILE", num_args = 1.., conflicts_with_all = ["changed", "last_failed"])]
    pub files: Option<Vec<PathBuf>>,
    /// Run the `fix` command of each step before the step, apply its changes to the worktree, and show
    /// them
    #[arg(long, conflicts_with_all = ["last_failed", "rev", "changeset", "patch"])]
    pub fix: bool,
    /// Run again whenever files of the worktree change, until Ctrl-C. After a pass, steps with `files`
    /// check only what has changed since
    #[arg(long, conflicts_with_all = ["last_failed", "rev", "changeset", "patch", "report"])]
    pub watch: bool,
}
