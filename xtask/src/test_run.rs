//! `cargo xtask test` builds every program and runs every test; `cargo xtask test-long` runs all variants and the full
//! campaigns. The last line has the counts of passed, failed and skipped tests. This file calls cargo; `test_counts`
//! counts the results.

mod machine_needs;
mod test_counts;

use std::io::{BufRead as _, BufReader, Write as _};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, ExitStatus, Stdio};

use anyhow::{Context as _, Result, ensure};
use test_counts::TestCounts;

/// Arguments that select all programs and tests. The tests start the programs. One selection for both means that cargo
/// compiles each dependency with one set of features, and thus once.
const BUILD_ALL: [&str; 4] = ["build", "--workspace", "--bins", "--tests"];
const TEST_ALL: [&str; 3] = ["test", "--workspace", "--no-fail-fast"];
/// Selects the variants and full campaigns that `cargo xtask test` leaves out.
const LONG_LEVEL: (&str, &str) = ("PROCTOR_TEST_LONG", "1");

/// A part of `cargo xtask test-long`: some tests with other settings.
struct Campaign {
    variables: &'static [(&'static str, &'static str)],
    arguments: &'static [&'static str],
}

const CAMPAIGNS: [Campaign; 6] = [
    Campaign {
        variables: &[("PROCTOR_IGNORE_ROUNDS", "2000"), ("PROCTOR_IGNORE_SEED", "100000")],
        arguments: &["--test", "trees", "--", "ignore: generated"],
    },
    Campaign { variables: &[("PROCTOR_LISTS_CORPUS", "6000"), ("PROCTOR_LISTS_SEED", "18")], arguments: SQL_CORPUS },
    Campaign { variables: &[("PROCTOR_LISTS_CORPUS", "6000"), ("PROCTOR_LISTS_SEED", "101")], arguments: SQL_CORPUS },
    Campaign { variables: &[("PROCTOR_LISTS_CORPUS", "6000"), ("PROCTOR_LISTS_SEED", "202")], arguments: SQL_CORPUS },
    Campaign { variables: &[("PROCTOR_CRASH_POINTS", "all")], arguments: &["--test", "whole", "--", "crash::"] },
    Campaign { variables: &[("PROCTOR_HOSTILE_RUNS", "500")], arguments: &["--test", "whole", "--", "stress::"] },
];
const SQL_CORPUS: &[&str] =
    &["--test", "lists", "--test", "duckdb", "--test", "server_lists", "--", "corpus", "--nocapture"];

/// Builds all programs and tests, runs the tests, and prints the counts as the last line. The exit code is a failure
/// if cargo fails, if a test fails, or if no test ran. Unit tests that need what this machine lacks are skipped.
///
/// # Errors
/// Cargo cannot be started, or its output cannot be read or written.
pub(crate) fn run(root: &Path, arguments: &[String]) -> Result<ExitCode> {
    build_then(root, |counts| {
        let mut tests = cargo(root, &TEST_ALL);
        tests.args(arguments);
        // A selection of tests is the caller's own.
        if arguments.is_empty() {
            tests.arg("--");
            for (name, reason) in machine_needs::unavailable_tests() {
                tests.args(["--skip", name]);
                counts.skip(name, reason);
            }
        }
        run_and_count(&mut tests, counts)
    })
}

/// Runs all tests at the long level, the sandbox tests with the release helper, and the campaigns. Continues after a
/// failure.
///
/// # Errors
/// The errors of [`run`], or the release helper cannot be built.
pub(crate) fn run_long(root: &Path) -> Result<ExitCode> {
    build_then(root, |counts| {
        let mut status = run_and_count(cargo(root, &TEST_ALL).env(LONG_LEVEL.0, LONG_LEVEL.1), counts)?;
        let mut sandbox = cargo(root, &[&TEST_ALL[..], &["--test", "sandbox"]].concat());
        sandbox.env("PROCTOR_TEST_HELPER", build_release_helper(root)?);
        let campaigns = CAMPAIGNS.iter().map(|campaign| {
            let mut command = cargo(root, &[&TEST_ALL[..], campaign.arguments].concat());
            command.env(LONG_LEVEL.0, LONG_LEVEL.1).envs(campaign.variables.iter().copied());
            command
        });
        for mut command in [sandbox].into_iter().chain(campaigns) {
            let finished = run_and_count(&mut command, counts)?;
            status = if status.success() { finished } else { status };
        }
        Ok(status)
    })
}

fn build_then(root: &Path, test: impl FnOnce(&mut TestCounts) -> Result<ExitStatus>) -> Result<ExitCode> {
    let mut counts = TestCounts::default();
    let built = cargo(root, &BUILD_ALL).status().context("cargo cannot be started")?;
    let finished = if built.success() { test(&mut counts)? } else { built };
    counts.end();
    Ok(print_counts(&counts, finished))
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
