//! What can be said of `proctor exec`.

use clap::{Args, Parser, Subcommand};
use proctor_core::names::VarName;
use proctor_core::plan::{Leaks, Limit, Network, ReadOnly, RelPath};

use super::{
    Cli, ColorWhen, Command, Format, RepoArgs, SandboxArgs, WayArgs, assignment, count, leaks, network, read_only,
    rel_path,
};

/// The same command line with one command: [`Cli`] takes longer to build than such a command to be asked for.
#[derive(Debug, Parser)]
#[command(name = "proctor", disable_help_flag = true, disable_help_subcommand = true)]
struct CliOfExec {
    #[arg(long, global = true, value_name = "WHEN", default_value = "auto")]
    color: ColorWhen,
    #[command(subcommand)]
    command: CommandOfExec,
}

#[derive(Debug, Subcommand)]
enum CommandOfExec {
    Exec(ExecArgs),
}

impl Cli {
    /// Reads the words of `proctor exec …`; `None` where they are others, or have to be refused or explained: that is
    /// the whole command line's.
    pub(crate) fn of_exec() -> Option<Self> {
        let words: Vec<std::ffi::OsString> = std::env::args_os().collect();
        Self::of_exec_in(words)
    }

    fn of_exec_in(words: Vec<std::ffi::OsString>) -> Option<Self> {
        let is_exec = words.get(1).is_some_and(|word| word == "exec");
        let CliOfExec { color, command: CommandOfExec::Exec(args) } =
            is_exec.then(|| CliOfExec::try_parse_from(words).ok()).flatten()?;
        Some(Self { color, command: Command::Exec(args) })
    }
}

/// `proctor exec`. What is not said here comes from the `defaults` of the spec, as for a step.
#[derive(Debug, Args)]
pub(crate) struct ExecArgs {
    /// What the command must not change: `off`, `tracked` or `strict`
    #[arg(long, value_name = "MODE", value_parser = read_only)]
    pub read_only: Option<ReadOnly>,
    /// What processes mean that are left when it has ended: `ignore`, `warn` or `fail`
    #[arg(long, value_name = "MODE", value_parser = leaks)]
    pub leaks: Option<Leaks>,
    /// What network it sees: `deny` or `allow`
    #[arg(long, value_name = "POLICY", value_parser = network)]
    pub network: Option<Network>,
    /// When it must have ended, in milliseconds
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    pub timeout_ms: Option<u64>,
    /// How long it has between SIGTERM and SIGKILL, in milliseconds
    #[arg(long, value_name = "N")]
    pub grace_ms: Option<u64>,
    /// Where it starts, relative to the repository
    #[arg(long, value_name = "DIR", value_parser = rel_path)]
    pub workdir: Option<RelPath>,
    /// A variable that it is given; may be repeated
    #[arg(long, value_name = "NAME=VALUE", value_parser = assignment)]
    pub env: Vec<(VarName, String)>,
    #[command(flatten)]
    pub limits: LimitArgs,
    /// Take nothing from the spec of the repository, which may be broken then
    #[arg(long)]
    pub no_spec: bool,
    /// How the result is written to standard output; `human` is the command's own output
    #[arg(long, value_name = "FORMAT", default_value = "human")]
    pub format: Format,
    /// Write its output with control characters as they are
    #[arg(long, conflicts_with = "format")]
    pub raw: bool,
    #[command(flatten)]
    pub sandbox: SandboxArgs,
    #[command(flatten)]
    pub repo: RepoArgs,
    #[command(flatten)]
    pub way: WayArgs,
    /// The program and its arguments
    #[arg(value_name = "CMD", required = true, trailing_var_arg = true)]
    pub cmd: Vec<String>,
}

/// What a command may use: a number, a size such as `512MiB`, or `unlimited`.
#[derive(Debug, Args)]
pub(crate) struct LimitArgs {
    /// Memory, or `unlimited`
    #[arg(long, value_name = "SIZE")]
    pub memory: Option<Limit>,
    /// Processes and threads, or `unlimited`
    #[arg(long, value_name = "N", value_parser = count)]
    pub pids: Option<Limit>,
    /// What it may write, or `unlimited`
    #[arg(long, value_name = "SIZE")]
    pub disk: Option<Limit>,
    /// How much of each output stream is kept, or `unlimited`
    #[arg(long, value_name = "SIZE")]
    pub output: Option<Limit>,
    /// CPU time, in seconds, or `unlimited`
    #[arg(long, value_name = "N", value_parser = count)]
    pub cpu_seconds: Option<Limit>,
    /// Open files, or `unlimited`
    #[arg(long, value_name = "N", value_parser = count)]
    pub open_files: Option<Limit>,
}
