//! `cargo xtask test`: every program is built, every test runs, and the last line says how many
//! passed, failed and were skipped. Here: cargo's two calls and what their ends mean; counting
//! is in `count`.

mod count;

use std::io::{BufRead as _, BufReader, Write as _};
use std::path::Path;
use std::process::{Command, ExitCode, ExitStatus, Stdio};

use anyhow::{Context as _, Result};
use count::Counts;

/// Builds all programs (the tests start them), runs all tests, prints the counts as the last
/// line. The exit code says failure where cargo does, where a test failed, and where none ran.
///
/// # Errors
/// Cargo cannot be started, or its output cannot be read or shown.
pub(crate) fn run(root: &Path, arguments: &[String]) -> Result<ExitCode> {
    let built = cargo(root, &["build", "--workspace", "--bins"]).status().context("cargo cannot be started")?;
    let (counts, tested) = if built.success() { test(root, arguments)? } else { (Counts::default(), built) };
    Ok(conclude(&counts, tested))
}

fn test(root: &Path, arguments: &[String]) -> Result<(Counts, ExitStatus)> {
    let mut child = cargo(root, &["test", "--workspace", "--no-fail-fast"])
        .args(arguments)
        .stdout(Stdio::piped())
        .spawn()
        .context("cargo cannot be started")?;
    let mut counts = Counts::default();
    if let Some(output) = child.stdout.take() {
        let mut output = BufReader::new(output);
        let mut line = Vec::new();
        while output.read_until(b'\n', &mut line).context("the tests' output cannot be read")? > 0 {
            std::io::stdout().write_all(&line).context("the tests' output cannot be shown")?;
            counts.see(&String::from_utf8_lossy(&line));
            line.clear();
        }
    }
    counts.end();
    Ok((counts, child.wait().context("cargo cannot be waited for")?))
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
