//! `cargo xtask test`: builds every program and runs every test; the last line has the counts of passed, failed and
//! skipped tests. This file calls cargo; `test_counts` counts the results. The sandbox tests run twice: with the helper
//! that cargo built, and with the release helper.

mod test_counts;

use std::io::{BufRead as _, BufReader, Write as _};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, ExitStatus, Stdio};

use anyhow::{Context as _, Result, ensure};
use test_counts::TestCounts;

/// Builds all programs (the tests start them), runs all tests, and prints the counts as the last line. The exit
/// code is a failure if cargo fails, if a test fails, or if no test ran.
///
/// # Errors
/// Cargo cannot be started, or its output cannot be read or written.
pub(crate) fn run(root: &Path, arguments: &[String]) -> Result<ExitCode> {
    let built = cargo(root, &["build", "--workspace", "--bins"]).status().context("cargo cannot be started")?;
    let (counts, tested) = if built.success() { test(root, arguments)? } else { (TestCounts::default(), built) };
    Ok(print_counts(&counts, tested))
}

fn test(root: &Path, arguments: &[String]) -> Result<(TestCounts, ExitStatus)> {
    let mut counts = TestCounts::default();
    let mut all = cargo(root, &["test", "--workspace", "--no-fail-fast"]);
    let mut tested = run_and_count(all.args(arguments), &mut counts)?;
    if arguments.is_empty() {
        let released = build_release_helper(root)?;
        let mut again = cargo(root, &["test", "--package", "proctor-sandbox", "--test", "sandbox"]);
        let again = run_and_count(again.env("PROCTOR_TEST_HELPER", released), &mut counts)?;
        tested = if tested.success() { again } else { tested };
    }
    counts.end();
    Ok((counts, tested))
}

/// Builds the sandbox helper as for a release, which uses another C library than cargo's default build.
#[expect(clippy::disallowed_methods, reason = "a task starts a script of this repository for a developer")]
fn build_release_helper(root: &Path) -> Result<PathBuf> {
    let directory = root.join("target/released");
    let built = Command::new(root.join("scripts/static"))
        .arg(&directory)
        .status()
        .context("scripts/static cannot be started")?;
    ensure!(built.success(), "scripts/static cannot build the release helper: {built}");
    Ok(directory.join("proctor-sandbox"))
}

/// Runs tests, prints their output, and counts the results.
fn run_and_count(tests: &mut Command, counts: &mut TestCounts) -> Result<ExitStatus> {
    let mut child = tests.stdout(Stdio::piped()).spawn().context("cargo cannot be started")?;
    if let Some(output) = child.stdout.take() {
        let mut output = BufReader::new(output);
        let mut line = Vec::new();
        while output.read_until(b'\n', &mut line).context("the output of the tests cannot be read")? > 0 {
            std::io::stdout().write_all(&line).context("the output of the tests cannot be printed")?;
            counts.process_line(&String::from_utf8_lossy(&line));
            line.clear();
        }
    }
    child.wait().context("the exit status of cargo cannot be read")
}

fn print_counts(counts: &TestCounts, cargo: ExitStatus) -> ExitCode {
    let counts = counts.with_cargo_status(cargo.success());
    if !counts.ignored.is_empty() {
        println!("\nskipped:");
        counts.ignored.iter().for_each(|name| println!("  {name}"));
    }
    if counts.passed + counts.failed == 0 {
        eprintln!("error: no test ran");
    }
    println!("\n{counts}");
    if counts.is_success() && cargo.success() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

#[expect(clippy::disallowed_methods, reason = "a task starts cargo in this repository for a developer")]
fn cargo(root: &Path, arguments: &[&str]) -> Command {
    let mut command = Command::new("cargo");
    command.args(arguments).current_dir(root).stdin(Stdio::null());
    command
}
