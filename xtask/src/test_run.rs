//! `cargo xtask test`: builds every program and runs every test; the last line has the counts of passed, failed and
//! skipped tests. This file calls cargo; `count` does the counting. The sandbox tests run twice: with the helper
//! that cargo built, and with the release helper.

mod count;

use std::io::{BufRead as _, BufReader, Write as _};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, ExitStatus, Stdio};

use anyhow::{Context as _, Result, ensure};
use count::Counts;

/// Builds all programs (the tests start them), runs all tests, and prints the counts as the last line. The exit
/// code is a failure if cargo fails, if a test fails, or if no test ran.
///
/// # Errors
/// Cargo cannot be started, or its output cannot be read or written.
pub(crate) fn run(root: &Path, arguments: &[String]) -> Result<ExitCode> {
    let built = cargo(root, &["build", "--workspace", "--bins"]).status().context("cargo cannot be started")?;
    let (counts, tested) = if built.success() { test(root, arguments)? } else { (Counts::default(), built) };
    Ok(conclude(&counts, tested))
}

fn test(root: &Path, arguments: &[String]) -> Result<(Counts, ExitStatus)> {
    let mut counts = Counts::default();
    let mut all = cargo(root, &["test", "--workspace", "--no-fail-fast"]);
    let mut tested = watch(all.args(arguments), &mut counts)?;
    if arguments.is_empty() {
        let released = released_helper(root)?;
        let mut again = cargo(root, &["test", "--package", "proctor-sandbox", "--test", "sandbox"]);
        let again = watch(again.env("PROCTOR_TEST_HELPER", released), &mut counts)?;
        tested = if tested.success() { again } else { tested };
    }
    counts.end();
    Ok((counts, tested))
}

/// Builds the sandbox helper as for a release, which uses another C library than cargo's default build.
#[expect(clippy::disallowed_methods, reason = "a chore starts a script of this repository, on a developer's word")]
fn released_helper(root: &Path) -> Result<PathBuf> {
    let target = root.join("target");
    std::fs::create_dir_all(&target).with_context(|| format!("{} cannot be made", target.display()))?;
    let file = target.join("proctor-sandbox.released");
    let built =
        Command::new(root.join("scripts/helper")).arg(&file).status().context("scripts/helper cannot be started")?;
    ensure!(built.success(), "scripts/helper cannot build the released helper: {built}");
    Ok(file)
}

/// Runs tests, prints their output, and counts the results.
fn watch(tests: &mut Command, counts: &mut Counts) -> Result<ExitStatus> {
    let mut child = tests.stdout(Stdio::piped()).spawn().context("cargo cannot be started")?;
    if let Some(output) = child.stdout.take() {
        let mut output = BufReader::new(output);
        let mut line = Vec::new();
        while output.read_until(b'\n', &mut line).context("the tests' output cannot be read")? > 0 {
            std::io::stdout().write_all(&line).context("the tests' output cannot be shown")?;
            counts.see(&String::from_utf8_lossy(&line));
            line.clear();
        }
    }
    child.wait().context("cargo cannot be waited for")
}

fn conclude(counts: &Counts, cargo: ExitStatus) -> ExitCode {
    let counts = counts.with_verdict_of_cargo(cargo.success());
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

#[expect(clippy::disallowed_methods, reason = "a chore starts cargo on this repository, on a developer's word")]
fn cargo(root: &Path, arguments: &[&str]) -> Command {
    let mut command = Command::new("cargo");
    command.args(arguments).current_dir(root).stdin(Stdio::null());
    command
}
