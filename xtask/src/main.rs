//! The maintenance tasks of this repository: `cargo xtask <task>`. This file parses the arguments and sets the exit
//! code; each task has its own file.

mod book;
mod files;
mod page;
mod schemas;
mod test_run;
mod tidy;

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Result, bail};

const USAGE: &str = "usage: cargo xtask <task>

  book [supports X]   what mdBook has the manual go through: links that lead out of docs/
                      lead to where the repository is published
  page                the page on a run, from the record that `proctor run --format json`
                      prints: one to standard output, the other from standard input
  schemas [--check]   write schemas/*.json from the types of `proctor-core`;
                      with --check, say which files differ and write nothing
  tidy                the rules of the house that no lint knows; it writes nothing, so
                      --check is accepted and changes nothing
  test [-- ARGS]      build all programs, run all tests, end with their counts;
                      ARGS go to `cargo test`";

/// The requested task.
#[derive(Debug, PartialEq, Eq)]
enum Task {
    Book,
    /// The question whether the preprocessor supports a renderer, which mdBook asks first. It supports all of them.
    BookSupports,
    Page,
    WriteSchemas,
    CheckSchemas,
    Tidy,
    Test(Vec<String>),
    Help,
}

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    match parse(&arguments).and_then(|task| perform(task, &root())) {
        Ok(code) => code,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::from(2)
        }
    }
}

fn parse(arguments: &[String]) -> Result<Task> {
    let words: Vec<&str> = arguments.iter().map(String::as_str).collect();
    Ok(match words.as_slice() {
        ["book"] => Task::Book,
        ["book", "supports", _] => Task::BookSupports,
        ["page"] => Task::Page,
        ["schemas"] => Task::WriteSchemas,
        ["schemas", "--check"] => Task::CheckSchemas,
        ["tidy"] | ["tidy", "--check"] => Task::Tidy,
        ["test"] => Task::Test(Vec::new()),
        ["test", "--", rest @ ..] => Task::Test(rest.iter().map(|&word| word.to_owned()).collect()),
        ["help" | "--help" | "-h"] => Task::Help,
        [] => bail!("no task was named\n{USAGE}"),
        _ => bail!("`{}` is no task\n{USAGE}", words.join(" ")),
    })
}

fn perform(task: Task, root: &Path) -> Result<ExitCode> {
    match task {
        Task::Book => {
            book::links(std::io::stdin().lock(), std::io::stdout().lock())?;
            Ok(ExitCode::SUCCESS)
        }
        Task::BookSupports => Ok(ExitCode::SUCCESS),
        Task::Page => {
            page::write(std::io::stdin().lock(), std::io::stdout().lock())?;
            Ok(ExitCode::SUCCESS)
        }
        Task::WriteSchemas => schemas::write(root),
        Task::CheckSchemas => schemas::check(root),
        Task::Tidy => tidy::check(root),
        Task::Test(arguments) => test_run::run(root, &arguments),
        Task::Help => {
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

    fn parsed(line: &str) -> Result<Task> {
        parse(&line.split_whitespace().map(str::to_owned).collect::<Vec<_>>())
    }

    #[test]
    fn tasks_are_told_apart_and_nothing_else_is_taken() {
        assert_eq!(parsed("schemas --check").expect("a task"), Task::CheckSchemas);
        assert_eq!(parsed("tidy --check").expect("a task"), Task::Tidy);
        assert_eq!(
            parsed("test -- --test system x").expect("a task"),
            Task::Test(vec!["--test".into(), "system".into(), "x".into()])
        );
        for bad in ["", "schema", "schemas --chek", "test --lib", "tidy now"] {
            assert!(parsed(bad).is_err(), "{bad}");
        }
    }
}
