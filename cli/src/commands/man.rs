//! Implements `proctor man`, which prints manual pages. The pages of the commands and of the daemon are generated
//! from the `--help` text; the page of the spec is generated from its schema. Packages install the pages one by one.

use clap::{Command, CommandFactory as _};
use clap_mangen::Man;
use clap_mangen::roff::{Roff, bold, roman};

use crate::args::{Cli, ManArgs};
use crate::error::CliError;
use crate::screen::Screen;

/// Name of the manual in the page headers.
const MANUAL: &str = "Proctor";

/// File name and text of the page about `spec/verification.yaml`.
const SPEC_PAGE: (&str, &str) = ("verification.yaml.5", include_str!("../../../docs/man/verification.yaml.5"));

/// A manual page.
struct ManPage {
    /// Title without the section, such as `proctor-run`.
    name: String,
    section: &'static str,
    command: Command,
}

impl ManPage {
    /// Returns the file name, such as `proctor-run.1`.
    fn file_name(&self) -> String {
        format!("{}.{}", self.name, self.section)
    }
}

/// Prints a page, or the names of all of them.
///
/// # Errors
/// The page does not exist, or cannot be rendered.
pub(crate) fn man(args: &ManArgs, screen: &mut Screen) -> Result<u8, CliError> {
    let pages = pages();
    let Some(wanted) = &args.page else {
        screen.out(&pages.iter().map(|page| format!("{}\n", page.file_name())).collect::<String>());
        screen.out(&format!("{}\n", SPEC_PAGE.0));
        return Ok(0);
    };
    if SPEC_PAGE.0 == wanted || SPEC_PAGE.0.strip_suffix(".5") == Some(wanted.as_str()) {
        screen.out(SPEC_PAGE.1);
        return Ok(0);
    }
    let is_wanted = |page: &&ManPage| page.file_name() == *wanted || page.name == *wanted;
    let page = pages.iter().find(is_wanted).ok_or_else(|| CliError::Usage {
        message: format!("there is no page `{}`", crate::text::escape_line(wanted)),
        hint: "`proctor man` lists the pages".to_owned(),
    })?;
    screen.out_bytes(&render_page(page).map_err(|error| CliError::Internal(error.to_string()))?);
    Ok(0)
}

/// Returns all pages, in the order of `--help`.
fn pages() -> Vec<ManPage> {
    let mut cli = Cli::command().disable_help_subcommand(true);
    cli.build();
    let daemon = proctor_daemon::lifecycle::command();
    let daemon = ManPage { name: "proctord".to_owned(), section: "8", command: daemon };
    pages_of("", &cli).into_iter().chain([daemon]).collect()
}

/// Returns the page of a command, followed by the pages of its subcommands.
fn pages_of(parents: &str, command: &Command) -> Vec<ManPage> {
    let name = match parents {
        "" => command.get_name().to_owned(),
        parents => format!("{parents}-{}", command.get_name()),
    };
    let own = command.clone().display_name(name.clone()).bin_name(name.replace('-', " "));
    let page = ManPage { name: name.clone(), section: "1", command: own };
    let rest = command.get_subcommands().flat_map(|sub| pages_of(&name, sub));
    [page].into_iter().chain(rest).collect()
}

fn render_page(page: &ManPage) -> std::io::Result<Vec<u8>> {
    let command = &page.command;
    let version = format!("proctor {}", env!("CARGO_PKG_VERSION"));
    let man = Man::new(command.clone()).title(page.name.to_uppercase()).section(page.section);
    let man = man.source(version).manual(MANUAL);
    let mut text = Vec::new();
    man.render_title(&mut text)?;
    man.render_name_section(&mut text)?;
    man.render_synopsis_section(&mut text)?;
    man.render_description_section(&mut text)?;
    if command.get_arguments().any(|arg| !arg.is_hide_set()) {
        man.render_options_section(&mut text)?;
    }
    if command.has_subcommands() {
        commands(page).to_writer(&mut text)?;
    }
    exit_codes(command).to_writer(&mut text)?;
    see_also(page).to_writer(&mut text)?;
    Ok(text)
}

fn commands(page: &ManPage) -> Roff {
    let mut roff = Roff::new();
    roff.control("SH", ["COMMANDS"]);
    for command in page.command.get_subcommands() {
        let about = command.get_about().map(ToString::to_string).unwrap_or_default();
        roff.control("TP", []);
        roff.text([bold(format!("{}-{}", page.name, command.get_name())), roman("(1)")]);
        roff.text([roman(about)]);
    }
    roff
}

/// Renders the exit codes from the text below the command's help.
fn exit_codes(command: &Command) -> Roff {
    let mut roff = Roff::new();
    let help = command.get_after_help().map(ToString::to_string).unwrap_or_default();
    let codes = help.lines().filter_map(|line| line.trim_start().split_once("  "));
    for (index, (code, meaning)) in codes.enumerate() {
        if index == 0 {
            roff.control("SH", ["EXIT STATUS"]);
        }
        roff.control("TP", []);
        roff.text([bold(code)]);
        roff.text([roman(meaning.trim_start())]);
    }
    roff
}

fn see_also(page: &ManPage) -> Roff {
    let others = ["proctor.1", SPEC_PAGE.0, "proctord.8"].into_iter().filter(|other| *other != page.file_name());
    let mut roff = Roff::new();
    roff.control("SH", ["SEE ALSO"]);
    let mut line = Vec::new();
    for other in others {
        let (name, section) = other.split_at(other.len() - 2);
        line.extend([bold(name), roman(format!("({}), ", section.trim_start_matches('.')))]);
    }
    line.push(roman(format!("the manual at {}", env!("CARGO_PKG_REPOSITORY"))));
    roff.text(line);
    roff
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn each_command_has_a_page() {
        let files: Vec<String> = pages().into_iter().map(|page| page.file_name()).collect();
        assert_eq!(files.iter().collect::<BTreeSet<_>>().len(), files.len());
        for file in ["proctor.1", "proctor-run.1", "proctor-daemon-start.1", "proctord.8"] {
            assert!(files.iter().any(|name| name == file), "{file} of {files:?}");
        }
    }

    #[test]
    fn page_has_sections_and_exit_codes() {
        let page = |name: &str| {
            let found = pages().into_iter().find(|page| page.file_name() == name).expect("a page");
            String::from_utf8(render_page(&found).expect("it is written")).expect("UTF-8")
        };
        let all = page("proctor.1");
        for part in [".TH PROCTOR 1", ".SH SYNOPSIS", "\\fBproctor\\-run\\fR(1)", ".SH \"EXIT STATUS\"", "interrupted"]
        {
            assert!(all.contains(part), "{part}:\n{all}");
        }
        let start = page("proctor-daemon-start.1");
        assert!(start.contains("\\fBproctor daemon start\\fR") && start.contains("state\\-dir"), "{start}");
        assert!(page("proctord.8").contains(".TH PROCTORD 8"));
    }
}
