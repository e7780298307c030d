//! The arguments of `proctor exec`.

use clap::{Arg, ArgMatches, Args, Command, FromArgMatches, value_parser};
use proctor_core::model::names::VarName;
use proctor_core::model::plan::{
    LIMIT_DEFINITIONS, Leaks, Limit, LimitSettings, LimitUnit, Network, ReadOnly, RelPath,
};

use proctor_client::exec_handover::HandedOverDescriptors;

use super::output_format::OutputFormat;
use super::shared_options::{BackendArgs, RepoArgs, SandboxArgs};
use super::value_parsers::{assignment, count, leaks, network, read_only, rel_path};

/// The arguments of `proctor exec`. The `defaults` of the spec apply to omitted options, as for a step.
#[derive(Debug, Args)]
pub(crate) struct ExecArgs {
    /// The changes by the command that count as drift: `off`, `tracked` or `strict`
    #[arg(long, value_name = "MODE", value_parser = read_only)]
    pub read_only: Option<ReadOnly>,
    /// How to treat processes that the command leaves behind: `ignore`, `warn` or `fail`
    #[arg(long, value_name = "MODE", value_parser = leaks)]
    pub leaks: Option<Leaks>,
    /// The network policy: `deny` or `allow`
    #[arg(long, value_name = "POLICY", value_parser = network)]
    pub network: Option<Network>,
    /// The timeout, in milliseconds
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    pub timeout_ms: Option<u64>,
    /// The time between SIGTERM and SIGKILL, in milliseconds
    #[arg(long, value_name = "N")]
    pub grace_ms: Option<u64>,
    /// The work directory, relative to the repository
    #[arg(long, value_name = "DIR", value_parser = rel_path)]
    pub workdir: Option<RelPath>,
    /// An environment variable for the command; can be repeated
    #[arg(long, value_name = "NAME=VALUE", value_parser = assignment)]
    pub env: Vec<(VarName, String)>,
    #[command(flatten)]
    pub limits: LimitArgs,
    /// Ignore the spec of the repository, which may then be invalid
    #[arg(long)]
    pub no_spec: bool,
    /// The format of the result on standard output; `human` is the command's own output
    #[arg(long, value_name = "FORMAT", default_value = "human")]
    pub format: OutputFormat,
    /// Do not escape control characters in the output
    #[arg(long, conflicts_with = "format")]
    pub raw: bool,
    #[command(flatten)]
    pub sandbox: SandboxArgs,
    #[command(flatten)]
    pub repo: RepoArgs,
    #[command(flatten)]
    pub backend: BackendArgs,
    /// The descriptors of a command that `proctor` has already sent to a daemon
    #[arg(long, hide = true, value_name = "CONNECTION,FILE", conflicts_with = "no_daemon")]
    pub handed_over: Option<HandedOverDescriptors>,
    /// The program and its arguments
    #[arg(value_name = "CMD", required = true, trailing_var_arg = true)]
    pub cmd: Vec<String>,
}

/// The resource limits of a command: each is a number, a size such as `512MiB`, or `unlimited`.
#[derive(Debug, Default)]
pub(crate) struct LimitArgs(pub LimitSettings);

impl Args for LimitArgs {
    fn augment_args(command: Command) -> Command {
        command.args(LIMIT_DEFINITIONS.entries().map(|(limit, _)| {
            let arg = Arg::new(limit.key).long(limit.key.replace('_', "-"));
            let arg = arg.help(format!("{}, or `unlimited`", limit.description));
            match limit.unit {
                LimitUnit::Bytes => arg.value_name("SIZE").value_parser(value_parser!(Limit)),
                LimitUnit::Count | LimitUnit::Seconds => arg.value_name("N").value_parser(count),
            }
        }))
    }

    fn augment_args_for_update(command: Command) -> Command {
        Self::augment_args(command)
    }
}

impl FromArgMatches for LimitArgs {
    fn from_arg_matches(matches: &ArgMatches) -> Result<Self, clap::Error> {
        Ok(Self(LIMIT_DEFINITIONS.map_all(|limit, _| matches.get_one(limit.key).copied())))
    }

    fn update_from_arg_matches(&mut self, matches: &ArgMatches) -> Result<(), clap::Error> {
        self.0 = self.0.zip(Self::from_arg_matches(matches)?.0).map_all(|_, (before, given)| given.or(before));
        Ok(())
    }
}
