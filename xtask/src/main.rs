//! The maintenance tasks of this repository: `cargo xtask <task>`. This file parses the arguments and sets the exit
//! code; each task has its own file.

mod book;
mod files;
mod run_page;
mod schemas;
mod test_run;
mod tidy;

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Result, bail};

const USAGE: &str = "usage: cargo xtask <task>

  book [supports X]   preprocess the manual for mdBook: replace links to files outside of
                      docs/ by links to the published repository
  page                write the HTML page of a run to standard output; reads the record
                      that `proctor run --format json` prints from standard input
  schemas [--check]   write schemas/*.json from the types of `proctor-core`;
                      with --check, list the files that differ and write nothing
  tidy [--check]      check the rules of this repository that no lint covers; writes
                      nothing, with or without --check
  test [-- ARGS]      build all programs, run all tests, and print their counts;
                      passes ARGS to `cargo test`
  test-long           the same with all variants and full campaigns, and with the
                      release build of the sandbox helper; takes an hour or more";

/// The requested task.
#[derive(Debug, PartialEq, Eq)]
enum XtaskCommand {
    Book,
    /// The question whether the preprocessor supports a renderer, which mdBook asks first. It supports all of them.
    BookSupports,
    Page,
    WriteSchemas,
    CheckSchemas,
    Tidy,
    Test(Vec<String>),
    TestLong,
    Help,
}

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    match parse_arguments(&arguments).and_then(|task| run_task(task, &root())) {
        Ok(code) => code,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::from(2)
        }
    }
}

fn parse_arguments(arguments: &[String]) -> Result<XtaskCommand> {
    let words: Vec<&str> = arguments.iter().map(String::as_str).collect();
    Ok(match words.as_slice() {
        ["book"] => XtaskCommand::Book,
        ["book", "supports", _] => XtaskCommand::BookSupports,
        ["page"] => XtaskCommand::Page,
        ["schemas"] => XtaskCommand::WriteSchemas,
        ["schemas", "--check"] => XtaskCommand::CheckSchemas,
        ["tidy"] | ["tidy", "--check"] => XtaskCommand::Tidy,
        ["test"] => XtaskCommand::Test(Vec::new()),
        ["test", "--", rest @ ..] => XtaskCommand::Test(rest.iter().map(|&word| word.to_owned()).collect()),
        ["test-long"] => XtaskCommand::TestLong,
        ["help" | "--help" | "-h"] => XtaskCommand::Help,
        [] => bail!("no task was given\n{USAGE}"),
        _ => bail!("unknown task `{}`\n{USAGE}", words.join(" ")),
    })
}

fn run_task(task: XtaskCommand, root: &Path) -> Result<ExitCode> {
    match task {
        XtaskCommand::Book => {
            book::rewrite_links(std::io::stdin().lock(), std::io::stdout().lock())?;
            Ok(ExitCode::SUCCESS)
        }
        XtaskCommand::BookSupports => Ok(ExitCode::SUCCESS),
        XtaskCommand::Page => {
            run_page::write(std::io::stdin().lock(), std::io::stdout().lock())?;
            Ok(ExitCode::SUCCESS)
        }
        XtaskCommand::WriteSchemas => schemas::write(root),
        XtaskCommand::CheckSchemas => schemas::check(root),
        XtaskCommand::Tidy => tidy::check(root),
        XtaskCommand::Test(arguments) => test_run::run(root, &arguments),
        XtaskCommand::TestLong => test_run::run_long(root),
        XtaskCommand::Help => {
            println!("{USAGE}");
            Ok(ExitCode::SUCCESS)
        }
    }
}

/// Returns the root of the repository: the parent of this crate's directory.
fn root() -> PathBuf {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    here.parent().unwrap_or(here).to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse_line(line: &str) -> Result<XtaskCommand> {
        parse_arguments(&line.split_whitespace().map(str::to_owned).collect::<Vec<_>>())
    }

    #[test]
    fn parses_known_tasks_only() {
        assert_eq!(parse_line("schemas --check").expect("a task"), XtaskCommand::CheckSchemas);
        assert_eq!(parse_line("tidy --check").expect("a task"), XtaskCommand::Tidy);
        assert_eq!(
            parse_line("test -- --test system x").expect("a task"),
            XtaskCommand::Test(vec!["--test".into(), "system".into(), "x".into()])
        );
        assert_eq!(parse_line("test-long").expect("a task"), XtaskCommand::TestLong);
        for bad in ["", "schema", "test-long now", "schemas --chek", "test --lib", "tidy now"] {
            assert!(parse_line(bad).is_err(), "{bad}");
        }
    }
}
