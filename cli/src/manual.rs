//! Compares `docs/cli.md` and the other pages `docs/cli-*.md` with the command line: each row of their tables must exist
//! in clap, and each clap option must have a row.

use std::collections::BTreeSet;

use clap::builder::StyledStr;
use clap::{Arg, Command, CommandFactory as _};

use crate::args::Cli;

/// The pages of the command line, one after the other.
const MANUAL: &str = concat!(
    include_str!("../../docs/cli.md"),
    "\n",
    include_str!("../../docs/cli-runs.md"),
    "\n",
    include_str!("../../docs/cli-setup.md"),
    include_str!("../../docs/cli-sql.md"),
);

/// Returns the table rows that the manual must have for a command.
fn rows(command: &Command) -> BTreeSet<String> {
    let shown = |arg: &&Arg| !arg.is_hide_set() && !["help", "version"].contains(&arg.get_id().as_str());
    command.get_arguments().filter(shown).filter(|arg| !arg.is_global_set()).map(row).collect()
}

fn row(arg: &Arg) -> String {
    let values: Vec<&str> = arg.get_value_names().unwrap_or_default().iter().map(|name| name.as_str()).collect();
    let value = if arg.get_action().takes_values() { values.join(" ") } else { String::new() };
    let short = arg.get_short().map(|short| format!("-{short}, ")).unwrap_or_default();
    let name = match arg.get_long() {
        Some(long) => format!("{short}--{long} {value}").trim_end().to_owned(),
        None => format!("<{value}>"),
    };
    let possible: Vec<String> = match arg.get_action().takes_values() {
        true => arg.get_possible_values().iter().map(|value| format!("`{}`", value.get_name())).collect(),
        false => Vec::new(),
    };
    let default: Vec<String> =
        arg.get_default_values().iter().map(|value| format!("`{}`", value.to_string_lossy())).collect();
    let help = arg.get_help().map(StyledStr::to_string).unwrap_or_default().replace('\n', " ");
    let mut text = help;
    // The manual need not repeat clap's own list of shells.
    if !possible.is_empty() && arg.get_id() != "shell" {
        text.push_str(&format!(": {}", possible.join(", ")));
    }
    if !default.is_empty() && arg.get_action().takes_values() {
        text.push_str(&format!(" (default {})", default.join(" ")));
    }
    format!("| `{name}` | {} |", text.replace('|', "\\|"))
}

/// Returns the manual's section `heading`, which ends at the next section or the next page.
fn section(heading: &str) -> &'static str {
    let start =
        MANUAL.find(&format!("\n## {heading}\n")).unwrap_or_else(|| panic!("docs/cli*.md have no `## {heading}`"));
    let section = &MANUAL[start + 1..];
    let end = ["\n## ", "\n# "].iter().filter_map(|next| section.find(next)).min();
    &section[..end.unwrap_or(section.len())]
}

/// Returns the table rows in the manual's section `heading`.
fn manual_rows(heading: &str) -> BTreeSet<String> {
    section(heading).lines().filter(|line| line.starts_with("| `")).map(str::to_owned).collect()
}

/// Returns the commands without subcommands, each with its full name.
fn commands(cli: &Command) -> Vec<(String, &Command)> {
    let own = |command: &&Command| command.get_name() != "help";
    let named = |command| -> Vec<(String, &Command)> {
        let name = Command::get_name(command);
        match command.has_subcommands() {
            true => commands(command).into_iter().map(|(below, leaf)| (format!("{name} {below}"), leaf)).collect(),
            false => vec![(name.to_owned(), command)],
        }
    };
    cli.get_subcommands().filter(own).flat_map(named).collect()
}

#[test]
fn manual_describes_every_option() {
    let mut cli = Cli::command();
    cli.build();
    let mut report = String::new();
    for (name, command) in commands(&cli) {
        let heading = format!("`proctor {name}`");
        let (expected, found) = (rows(command), manual_rows(&heading));
        expected.difference(&found).for_each(|row| report.push_str(&format!("{heading} lacks {row}\n")));
        found.difference(&expected).for_each(|row| report.push_str(&format!("{heading} has {row}\n")));
    }
    assert!(report.is_empty(), "docs/cli*.md and `--help` differ:\n{report}");
}

#[test]
fn manual_has_each_command_once() {
    let cli = Cli::command();
    let mut known: Vec<String> = commands(&cli).into_iter().map(|(name, _)| name).collect();
    let headings = MANUAL.lines().filter_map(|line| line.strip_prefix("## `proctor ")?.strip_suffix('`'));
    let mut described: Vec<String> = headings.map(str::to_owned).collect();
    known.sort();
    described.sort();
    assert_eq!(described, known);
}

/// The overview in `docs/cli.md` links to the section of each command.
#[test]
fn overview_links_to_each_command() {
    let cli = Cli::command();
    let overview = MANUAL.split("\n## ").next().unwrap_or_default();
    for (name, _) in commands(&cli) {
        let anchor = format!("#proctor-{})", name.replace(' ', "-"));
        assert!(overview.contains(&anchor), "{name}");
    }
}

#[test]
fn section_ends_with_its_page() {
    assert!(MANUAL.contains("\n# Commands for recorded runs\n"));
    assert!(!section("Configuration and files").contains("\n# "));
}

#[test]
fn help_and_manual_have_the_same_exit_codes() {
    let help = Cli::command().render_long_help().to_string();
    let codes = |text: &str| -> BTreeSet<String> {
        let words = text.lines().filter_map(|line| line.trim_start_matches(['|', ' ', '`']).split([' ', '`']).next());
        words
            .filter(|word| !word.is_empty() && word.bytes().all(|byte| byte.is_ascii_digit()))
            .map(str::to_owned)
            .collect()
    };
    let listed = &help[help.find("Exit codes:").expect("a list of exit codes")..];
    assert_eq!(codes(listed), codes(section("Exit codes")));
}
