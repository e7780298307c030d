//! The arguments of `proctor doctor`.

use clap::Args;

use super::{Format, RepoArgs, SandboxArgs, WayArgs};

const DOCTOR_EXIT_CODES: &str = "\
Exit codes:
  0  a step can run
  1  a step can run; `--deep` has found a damaged private copy
  2  usage error
  5  no step can run, or `--deep` could not verify a private copy
  6  a daemon was demanded, and none answers";

/// `proctor doctor`.
#[derive(Debug, Args)]
#[command(after_help = DOCTOR_EXIT_CODES)]
pub(crate) struct DoctorArgs {
    /// Print the AppArmor profile that lets our helper make user namespaces, and try nothing
    #[arg(long, conflicts_with = "format")]
    pub apparmor_profile: bool,
    /// Print the commands that mend what is missing, as a script to be read and copied; nothing of it
    /// is executed
    #[arg(long, conflicts_with = "apparmor_profile")]
    pub fix: bool,
    /// Hash every private copy of the repository that no run holds, and remove damaged ones; the next run makes them
    /// anew
    #[arg(long, conflicts_with_all = ["apparmor_profile", "fix"])]
    pub deep: bool,
    /// How the findings are written to standard output
    #[arg(long, value_name = "FORMAT", default_value = "human")]
    pub format: Format,
    #[command(flatten)]
    pub sandbox: SandboxArgs,
    #[command(flatten)]
    pub repo: RepoArgs,
    #[command(flatten)]
    pub way: WayArgs,
}
