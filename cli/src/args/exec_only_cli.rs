//! Parses a command line with `exec` only.

use std::ffi::OsString;

use clap::{Parser, Subcommand};

use super::exec::ExecArgs;
use super::output_format::ColorWhen;
use super::{Cli, CliCommand};

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

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::path::Path;

    use proctor_client::exec_options::CommonExecOptions;
    use proctor_core::api::ExecSubmission;
    use proctor_core::model::enforcement::SandboxMode;

    use super::*;
    use crate::args::exec::LimitArgs;
    use crate::args::output_format::OutputFormat;
    use crate::args::shared_options::{BackendArgs, DaemonArgs, OperatorArgs, RepoArgs, SandboxArgs, StateArgs};

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
