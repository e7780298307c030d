//! Defines the command line as types. This module only parses: it reads no files and no environment. On a usage error
//! clap itself exits with code 2.

mod ask;
mod cache;
mod compare;
mod daemon;
mod doctor;
mod du;
mod exec;
mod exec_only_cli;
mod gc;
mod hook;
mod import;
mod init;
mod output_format;
mod report_options;
mod runs;
mod schema_name;
mod scope;
mod shared_options;
mod sql;
mod sql_source;
mod value_parsers;

use std::path::PathBuf;

use clap::{Args, Parser, Subcommand};
use proctor_core::decision::gate::MaxAge;
use proctor_core::model::cache::CacheTrust;
use proctor_core::model::names::{ChangesetId, ProfileName};
use proctor_core::model::tier::Tier;

use crate::human_report::Detail;

use value_parsers::{tier, variable};

pub(crate) use ask::{SqlAskArgs, SqlAuditCommand, SqlAuditShowArgs};
pub(crate) use cache::{CacheCommand, CacheCommandArgs};
pub(crate) use compare::CompareArgs;
pub(crate) use daemon::{
    CancelArgs, DaemonCommand, DaemonCommandArgs, DaemonStatusArgs, LogsArgs, ReportArgs, StartArgs, StatusArgs,
    StopArgs, WatchArgs,
};
pub(crate) use doctor::DoctorArgs;
pub(crate) use du::DuArgs;
pub(crate) use exec::ExecArgs;
pub(crate) use gc::GcArgs;
pub(crate) use hook::{
    HookCommand, HookCommandArgs, HookInstallArgs, HookName, HookOptions, HookRunArgs, HookUninstallArgs,
};
pub(crate) use import::ImportArgs;
pub(crate) use init::InitArgs;
pub(crate) use output_format::{ColorWhen, OutputFormat, RunFormat};
pub(crate) use report_options::{ReportFileOption, ReportsArgs};
pub(crate) use runs::{RunReference, RunsArgs};
pub(crate) use schema_name::SchemaName;
pub(crate) use scope::ScopeArgs;
pub(crate) use shared_options::{BackendArgs, OperatorArgs, RepoArgs, SandboxArgs, SocketArgs, StateArgs};
pub(crate) use sql::{
    SqlAdviceArgs, SqlArgs, SqlBackendArgs, SqlCommand, SqlEnginesArgs, SqlFormat, SqlProvisioner, SqlRequestArgs,
    SqlResultFormat, SqlRunArgs, SqlSchemaArgs, SqlSchemaFormat, SqlVerifyArgs,
};
pub(crate) use sql_source::SqlSourceArgs;

/// Verifies a repository: runs its checks in a sandbox, detects changes to the tree, and records hashed
/// evidence.
#[derive(Debug, Parser)]
#[command(name = "proctor", version, max_term_width = 100, after_help = EXIT_CODES)]
pub(crate) struct Cli {
    /// When to use colour; `NO_COLOR` is honoured under `auto`
    #[arg(long, global = true, value_name = "WHEN", default_value = "auto", display_order = 1000)]
    pub color: ColorWhen,
    /// The command to run.
    #[command(subcommand)]
    pub command: CliCommand,
}

const EXIT_CODES: &str = "\
Exit codes:
  0  passed
  1  a check failed
  2  usage or spec error, or nothing ran
  3  drift: a step changed files that it must not change
  4  a step timed out
  5  inconclusive: the result is uncertain
  6  a daemon is required, and none answers
  130  interrupted";

/// The subcommands of `proctor`.
#[derive(Debug, Subcommand)]
pub(crate) enum CliCommand {
    /// Run a profile's checks in the sandbox and record the evidence
    Run(RunArgs),
    /// Write a spec for this repository, based on its files
    Init(InitArgs),
    /// Check the spec and show all of its problems
    Validate(ValidateArgs),
    /// Show the commands and settings of a run without running anything
    Plan(PlanArgs),
    /// Show the source of each value of a step, its sandbox and its environment
    Explain(ExplainArgs),
    /// Convert the hooks of pre-commit or lefthook to a spec
    Import(ImportArgs),
    /// Run one command in the same way as a step
    Exec(ExecArgs),
    /// Check whether this exact tree is already verified, without running anything
    Gate(GateArgs),
    /// Make git or an agent verify before it continues
    Hook(HookCommandArgs),
    /// Check SQL with the engine that would run it
    Sql(SqlArgs),
    /// Test which sandbox controls this machine can enforce
    Doctor(DoctorArgs),
    /// Remove data beyond the limits from the state directory, or all data that can be recreated
    Gc(GcArgs),
    /// List what uses the space of the state directory, by kind and by repository
    Du(DuArgs),
    /// Count, check or remove the stored results of steps
    Cache(CacheCommandArgs),
    /// Show the daemon's runs, or one of them
    Status(StatusArgs),
    /// List the runs that are recorded in the state directory, without a daemon
    Runs(RunsArgs),
    /// Show the output of the steps of a run
    Logs(LogsArgs),
    /// Print the result of a run in another format, or write it to files
    Report(ReportArgs),
    /// Show what changed between two runs
    Compare(CompareArgs),
    /// Cancel a run of the daemon
    Cancel(CancelArgs),
    /// Show the daemon's runs live, until Ctrl-C
    Watch(WatchArgs),
    /// Start, stop or inspect the daemon
    Daemon(DaemonCommandArgs),
    /// Serve tools for agents on standard input and output with the Model Context Protocol
    Mcp(BackendArgs),
    /// Print the JSON Schema of a document, or the names of the documents
    Schema(SchemaArgs),
    /// Print a completion script
    Completions(CompletionsArgs),
    /// Print a manual page, or the names of the pages
    Man(ManArgs),
}

impl CliCommand {
    /// Checks whether this is a command that `proctor` has already sent to a daemon.
    pub(crate) fn is_handed_over(&self) -> bool {
        matches!(self, Self::Exec(args) if args.handed_over.is_some())
    }
}

/// The arguments of `proctor run`.
#[derive(Debug, Args)]
pub(crate) struct RunArgs {
    #[command(flatten)]
    pub scope: ScopeArgs,
    /// The profile of the spec to run
    #[arg(long, value_name = "NAME", default_value = "pr")]
    pub profile: ProfileName,
    /// The changeset below `changes/` for the evidence
    #[arg(long, value_name = "ID")]
    pub changeset: Option<ChangesetId>,
    /// The highest tier that may run; skills above it are skipped, and the verdict is inconclusive
    #[arg(long, value_name = "N", default_value = "2", value_parser = tier)]
    pub max_tier: Tier,
    /// The commit to verify instead of the worktree; or a range such as `main..HEAD`, whose commits are
    /// verified oldest first
    #[arg(long, value_name = "REV")]
    pub rev: Option<String>,
    /// With `--rev`: also check out submodules from their repositories in this clone; otherwise their
    /// directories stay empty
    #[arg(long, requires = "rev")]
    pub submodules: bool,
    /// Write the changes of the steps to FILE as a patch for `git apply`, instead of applying them to
    /// the worktree; `-` is standard output, and the report then goes to standard error
    #[arg(long, value_name = "FILE")]
    pub patch: Option<PathBuf>,
    /// Stop after the first skill, or the first commit of a range, that does not pass
    #[arg(long)]
    pub fail_fast: bool,
    /// Run only the skills that did not pass in their last run, and the skills that they need; or all
    /// skills if every one passed. A gate does not accept such a run
    #[arg(long)]
    pub last_failed: bool,
    /// Start each skill with empty caches, and discard their content afterwards
    #[arg(long)]
    pub no_caches: bool,
    /// Execute each step, even if the result of an earlier execution holds because everything that the
    /// step read is the same
    #[arg(long)]
    pub no_cache: bool,
    #[command(flatten)]
    pub reports: ReportsArgs,
    /// Print only the verdict and what did not pass, and nothing during the run
    #[arg(long, short, conflicts_with = "verbose")]
    pub quiet: bool,
    /// True for a run that a hook of git requests
    #[arg(skip)]
    pub is_hook: bool,
    /// Print every step with its command, the end of its output, its resource usage and its sandbox
    /// controls
    #[arg(long, short)]
    pub verbose: bool,
    #[command(flatten)]
    pub sandbox: SandboxArgs,
    #[command(flatten)]
    pub repo: RepoArgs,
    #[command(flatten)]
    pub backend: BackendArgs,
}

impl RunArgs {
    /// Returns how detailed the report is.
    pub(crate) fn detail(&self) -> Detail {
        match (self.quiet, self.verbose) {
            _ if self.is_hook => Detail::Hook,
            (true, _) => Detail::Quiet,
            (_, true) => Detail::Verbose,
            _ => Detail::Normal,
        }
    }
}

/// The arguments of `proctor validate`.
#[derive(Debug, Args)]
pub(crate) struct ValidateArgs {
    /// The spec file to check, instead of the repository's spec
    #[arg(value_name = "FILE", conflicts_with = "repo")]
    pub file: Option<PathBuf>,
    /// The format of the diagnostics on standard output
    #[arg(long, value_name = "FORMAT", default_value = "human")]
    pub format: OutputFormat,
    #[command(flatten)]
    pub repo: RepoArgs,
    #[command(flatten)]
    pub operator: OperatorArgs,
}

/// The arguments of `proctor plan`.
#[derive(Debug, Args)]
pub(crate) struct PlanArgs {
    /// The profile to resolve
    #[arg(long, value_name = "NAME", default_value = "pr")]
    pub profile: ProfileName,
    /// Show only the part that `run --last-failed` would run now
    #[arg(long)]
    pub last_failed: bool,
    /// The format of the plan on standard output
    #[arg(long, value_name = "FORMAT", default_value = "human")]
    pub format: OutputFormat,
    #[command(flatten)]
    pub repo: RepoArgs,
    #[command(flatten)]
    pub state: StateArgs,
    #[command(flatten)]
    pub operator: OperatorArgs,
}

/// The arguments of `proctor explain`.
#[derive(Debug, Args)]
pub(crate) struct ExplainArgs {
    /// `<skill>/<step>`, `env` for the environment only, `sandbox` for the sandbox set-up only, `cache`
    /// for the reuse of results only, or a message code such as `P0116`
    #[arg(value_name = "TARGET", required_unless_present = "codes")]
    pub target: Option<String>,
    /// List the codes of all messages
    #[arg(long, conflicts_with_all = ["target", "step"])]
    pub codes: bool,
    /// With `env`, `sandbox` or `cache`: the step to explain [default: every step of the profile]
    #[arg(value_name = "SKILL/STEP")]
    pub step: Option<String>,
    /// With `env`: explain why this variable is set or not set
    #[arg(long, value_name = "NAME", value_parser = variable)]
    pub var: Option<String>,
    /// With `cache`: list the inputs of the stored result
    #[arg(long, short)]
    pub verbose: bool,
    /// The profile to resolve
    #[arg(long, value_name = "NAME", default_value = "pr")]
    pub profile: ProfileName,
    #[command(flatten)]
    pub repo: RepoArgs,
    #[command(flatten)]
    pub state: StateArgs,
    #[command(flatten)]
    pub operator: OperatorArgs,
}

const GATE_EXIT_CODES: &str = "\
Exit codes:
  0  verified
  1  not verified: the recorded run failed, or does not match this tree, plan or evidence
  2  usage or spec error, or no run is recorded
  5  no answer: inconclusive, a run in progress, a wrong clock or an unknown format";

/// The arguments of `proctor gate`.
#[derive(Debug, Args)]
#[command(after_help = GATE_EXIT_CODES)]
pub(crate) struct GateArgs {
    /// The profile that must have passed
    #[arg(long, value_name = "NAME", default_value = "pr")]
    pub profile: ProfileName,
    /// The changeset below `changes/` whose evidence counts [default: the evidence of runs without a
    /// changeset]
    #[arg(long, value_name = "ID")]
    pub changeset: Option<ChangesetId>,
    /// The highest accepted effective tier; the operator can set a lower one
    #[arg(long, value_name = "N", default_value = "2", value_parser = tier)]
    pub max_tier: Tier,
    /// The maximum age of the run and of the executions whose results it uses, such as `30m` or `7d`, or
    /// `unlimited` [default: `24h` for the run]
    #[arg(long, value_name = "DURATION")]
    pub max_age: Option<MaxAge>,
    /// Accept a run that the state directory has no record of, such as a run of another machine
    #[arg(long)]
    pub accept_unattested: bool,
    /// The widest accepted scope of cache content: `none`, `branch` (the run's own branch or commit),
    /// or `default` (also the default branch)
    #[arg(long, value_name = "SCOPE", default_value = "default")]
    pub max_cache_trust: CacheTrust,
    /// Reject a run whose steps could see files outside its snapshot: ignored files, or the worktree
    /// itself
    #[arg(long)]
    pub strict_inputs: bool,
    /// Reject a run with steps that other machines executed: workers of a cluster, or machines whose
    /// shared results it uses
    #[arg(long)]
    pub this_machine: bool,
    /// The format of the answer on standard output
    #[arg(long, value_name = "FORMAT", default_value = "human")]
    pub format: OutputFormat,
    #[command(flatten)]
    pub repo: RepoArgs,
    #[command(flatten)]
    pub backend: BackendArgs,
}

/// The arguments of `proctor schema`.
#[derive(Debug, Args)]
pub(crate) struct SchemaArgs {
    /// The document [default: list all names]
    #[arg(value_name = "NAME")]
    pub name: Option<SchemaName>,
}

/// The arguments of `proctor completions`.
#[derive(Debug, Args)]
pub(crate) struct CompletionsArgs {
    /// The shell
    #[arg(value_name = "SHELL")]
    pub shell: clap_complete::Shell,
}

/// The arguments of `proctor man`.
#[derive(Debug, Args)]
pub(crate) struct ManArgs {
    /// The page, such as `proctor-run.1` [default: list all names]
    #[arg(value_name = "PAGE")]
    pub page: Option<String>,
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory as _;

    fn parse(words: &[&str]) -> Result<Cli, clap::Error> {
        Cli::try_parse_from([&["proctor"], words].concat())
    }

    #[test]
    fn command_line_passes_clap_assertions() {
        Cli::command().debug_assert();
    }

    #[test]
    fn rejects_bad_changeset_id_and_names_the_rule() {
        for bad in ["../x", "a/b", "-", "a..b", ""] {
            let error = parse(&["run", &format!("--changeset={bad}")]).expect_err(bad);
            assert_eq!(error.exit_code(), 2, "{bad}");
            assert!(error.to_string().contains(ChangesetId::RULE), "{error}");
        }
    }

    #[test]
    fn usage_errors_exit_with_code_2() {
        let cases: &[&[&str]] = &[
            &["run", "--max-tier", "4"],
            &["run", "--format", "xml"],
            &["run", "--sandbox", "none"],
            &["exec", "--sandbox", "best_effort", "true"],
            &["exec"],
            &["exec", "--env", "1st=1", "true"],
            &["exec", "--env", "NAME", "true"],
            &["exec", "--timeout-ms", "0", "true"],
            &["exec", "--read-only", "maybe", "true"],
            &["exec", "--memory", "0", "true"],
            &["exec", "--memory", "much", "true"],
            &["exec", "--pids", "1KiB", "true"],
            &["exec", "--format", "json", "--raw", "true"],
            &["validate", "a.yaml", "--repo", "."],
            &["gate", "--max-age", "soon"],
            &["gate", "--max-age", "-1s"],
            &["gate", "--max-tier", "0"],
            &["run", "--daemon", "--no-daemon"],
            &["run", "--socket", "/s", "--no-daemon"],
            &["run", "--daemon", "--state-dir", "/s"],
            &["run", "--socket", "/s", "--state-dir", "/s"],
            &["gate", "--socket", "/s", "--config", "/c"],
            &["status", "../x"],
            &["status", "r1", "--all"],
            &["logs"],
            &["logs", "r1", "--stderr"],
            &["logs", "r1", "--raw"],
            &["daemon"],
            &["nothing"],
            &[],
        ];
        for words in cases {
            assert_eq!(parse(words).expect_err("refused").exit_code(), 2, "{words:?}");
        }
    }

    #[test]
    fn gate_has_default_age_and_tier() {
        let CliCommand::Gate(gate) = parse(&["gate"]).expect("parses").command else { panic!("gate") };
        assert_eq!((gate.max_age, gate.max_tier), (None, Tier::TWO));
        assert_eq!("unlimited".parse(), Ok(MaxAge::Unlimited));
    }

    #[test]
    fn exec_passes_options_to_the_command() {
        for words in [&["exec", "--", "ls", "-l", "--raw"][..], &["exec", "ls", "-l", "--raw"]] {
            let CliCommand::Exec(exec) = parse(words).expect("parses").command else { panic!("exec") };
            assert_eq!(exec.cmd, ["ls", "-l", "--raw"]);
            assert!(!exec.raw);
        }
    }
}
