//! The arguments of `proctor doctor`.

use clap::Args;

use super::output_format::OutputFormat;
use super::shared_options::{BackendArgs, RepoArgs, SandboxArgs};

const DOCTOR_EXIT_CODES: &str = "\
Exit codes:
  0  a step can run
  1  a step can run; `--deep` found a damaged private copy
  2  usage error
  5  no step can run, or `--deep` could not verify a private copy
  6  a daemon is required, and none answers";

/// The arguments of `proctor doctor`.
#[derive(Debug, Args)]
#[command(after_help = DOCTOR_EXIT_CODES)]
pub(crate) struct DoctorArgs {
    /// Print the AppArmor profile that allows Proctor's helper to create user namespaces, and test
    /// nothing
    #[arg(long, conflicts_with = "format")]
    pub apparmor_profile: bool,
    /// Print the commands that fix missing controls, as a script to read and copy; nothing is executed
    #[arg(long, conflicts_with = "apparmor_profile")]
    pub fix: bool,
    /// Hash every unused private copy of the repository, and remove damaged copies; the next run
    /// creates them again
    #[arg(long, conflicts_with_all = ["apparmor_profile", "fix"])]
    pub deep: bool,
    /// The format of the findings on standard output
    #[arg(long, value_name = "FORMAT", default_value = "human")]
    pub format: OutputFormat,
    #[command(flatten)]
    pub sandbox: SandboxArgs,
    #[command(flatten)]
    pub repo: RepoArgs,
    #[command(flatten)]
    pub backend: BackendArgs,
}
