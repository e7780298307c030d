//! The arguments of `proctor exec`.

use std::ffi::OsString;

use clap::{Arg, ArgMatches, Args, Command, FromArgMatches, Parser, Subcommand, value_parser};
use proctor_core::model::names::VarName;
use proctor_core::model::plan::{
    LIMIT_DEFINITIONS, Leaks, Limit, LimitSettings, LimitUnit, Network, ReadOnly, RelPath,
};

use proctor_client::exec_handover::HandedOverDescriptors;

use super::{
    BackendArgs, Cli, CliCommand, ColorWhen, OutputFormat, RepoArgs, SandboxArgs, assignment, count, leaks, network,
    read_only, rel_path,
};

/// A command line with `exec` only. Building the full [`Cli`] would take longer than the request to the daemon.
#[derive(Debug, Parser)]
#[command(name = "proctor", disable_help_flag = true, disable_help_subcommand = true)]
struct ExecOnlyCli {
    #[arg(long, global = true, value_name = "WHEN", default_value = "auto")]
    color: ColorWhen,
    #[command(subcommand)]
    command: ExecOnlyCommand,
}

#[derive(Debug, Subcommand)]
enum ExecOnlyCommand {
    Exec(ExecArgs),
}

impl Cli {
    /// Parses `proctor exec …` without building the whole [`Cli`]. Returns `None` for other commands, and for a
    /// command line that needs an error or help message: the full parser produces those.
    pub(crate) fn parse_exec() -> Option<Self> {
        let words: Vec<OsString> = std::env::args_os().collect();
        Self::parse_exec_from(words)
    }

    fn parse_exec_from(words: Vec<OsString>) -> Option<Self> {
        if words.get(1).is_none_or(|word| word != "exec") {
            return None;
        }
        let ExecOnlyCli { color, command: ExecOnlyCommand::Exec(args) } = ExecOnlyCli::try_parse_from(words).ok()?;
        Some(Self { color, command: CliCommand::Exec(args) })
    }
}

/// The arguments of `proctor exec`. The `defaults` of the spec apply to omitted options, as for a step.
#[derive(Debug, Args)]
pub(crate) struct ExecArgs {
    /// Which changes by the command count as drift: `off`, `tracked` or `strict`
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

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::path::Path;

    use proctor_client::exec_options::CommonExecOptions;
    use proctor_core::api::ExecSubmission;
    use proctor_core::model::enforcement::SandboxMode;

    use super::*;
    use crate::args::{DaemonArgs, OperatorArgs, StateArgs};

    /// Returns the arguments with these options, and the defaults of all others.
    fn into_args(options: CommonExecOptions) -> ExecArgs {
        let CommonExecOptions { repo, socket, state_dir, daemon, no_daemon, no_spec, cmd } = options;
        ExecArgs {
            read_only: None,
            leaks: None,
            network: None,
            timeout_ms: None,
            grace_ms: None,
            workdir: None,
            env: Vec::new(),
            limits: LimitArgs::default(),
            no_spec,
            format: OutputFormat::Human,
            raw: false,
            sandbox: SandboxArgs { sandbox: SandboxMode::Strict },
            repo: RepoArgs { repo },
            backend: BackendArgs {
                state: StateArgs { state_dir },
                operator: OperatorArgs { config: None },
                daemon: DaemonArgs { no_daemon, daemon, socket },
            },
            handed_over: None,
            cmd,
        }
    }

    /// Returns every combination of up to four of these parts after `exec`, with and without a command.
    fn option_combinations() -> Vec<Vec<OsString>> {
        let parts: [&[&str]; 14] = [
            &["--repo", "/r"],
            &["--repo=/r"],
            &["--socket", "s"],
            &["--socket", "-s"],
            &["--state-dir", ""],
            &["--state-dir", "/s"],
            &["--daemon"],
            &["--no-daemon"],
            &["--no-spec"],
            &["--format", "json"],
            &["--color", "never"],
            &["ls"],
            &["--", "ls", "-l"],
            &["--", "-x", "--", "--repo"],
        ];
        let mut all: Vec<Vec<OsString>> = vec![["proctor", "exec"].map(Into::into).into()];
        let mut last = all.clone();
        for _ in 0..4 {
            last = last.iter().flat_map(|words| parts.iter().map(|part| append_words(words, part))).collect();
            all.extend(last.clone());
        }
        all
    }

    fn append_words(words: &[OsString], more: &[&str]) -> Vec<OsString> {
        words.iter().cloned().chain(more.iter().map(Into::into)).collect()
    }

    #[test]
    fn fast_parser_agrees_with_full_parser() {
        let mut compared = 0;
        for words in option_combinations() {
            let Some(read) = CommonExecOptions::parse(&words) else { continue };
            let all = ExecOnlyCli::try_parse_from(&words).unwrap_or_else(|error| panic!("{words:?}: {error}"));
            let ExecOnlyCli { color: ColorWhen::Auto, command: ExecOnlyCommand::Exec(args) } = all else {
                panic!("{words:?}: coloured")
            };
            let request = read.clone().into_submission("/r".to_owned(), BTreeMap::new());
            let expected = crate::commands::exec::submission(&args, Path::new("/r")).expect("a command");
            assert_eq!(request, Some(ExecSubmission { env: Some(BTreeMap::new()), ..expected }), "{words:?}");
            assert_eq!(format!("{:?}", into_args(read)), format!("{args:?}"), "{words:?}");
            compared += 1;
        }
        assert!(compared > 50, "{compared} sentences are plain");
    }
}
