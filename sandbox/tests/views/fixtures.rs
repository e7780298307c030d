//! Compares the trace of each tool of `fixtures/tools` with what strace sees of it.

use std::fs;
use std::path::Path;
use std::process::Command;

use libtest_mimic::Failed;

use super::completeness::compare_with_strace;
use crate::environment::{self, SandboxTestEnv};

/// The programs that the check of a fixture needs, besides strace.
const PROGRAMS: [(&str, &[&str]); 9] = [
    ("cargo", &["cargo"]),
    ("chromium", &["chromium"]),
    ("everyday", &["cc", "make", "python3"]),
    ("go", &["go"]),
    ("npm", &["node", "npm"]),
    ("pip", &["python3"]),
    ("pytest", &["pytest"]),
    ("servers", &["python3"]),
    ("sqlite", &["sqlite3", "python3"]),
];

/// Returns a program that the check with this name needs, and that steps of these tests cannot find.
pub(crate) fn missing_program(check: &str) -> Option<&'static str> {
    let (_, programs) = PROGRAMS.iter().find(|(fixture, _)| check.ends_with(&format!("::{fixture}")))?;
    programs.iter().copied().find(|program| !super::is_installed(program))
}

/// Runs the commands in a copy of the fixture, and compares their traces.
fn compare(bench: &SandboxTestEnv, fixture: &str, commands: &[&[&str]]) -> Result<(), Failed> {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("../fixtures/tools").join(fixture);
    let copied = Command::new("cp").arg("-R").arg(source.join(".")).arg(&bench.repo).status()?;
    assert!(copied.success());
    // Some tools search every directory.
    fs::remove_file(bench.repo.join("link"))?;
    if bench.role.is_foreign() {
        environment::chown_to_user(&bench.repo)?;
    }
    for command in commands {
        let (compared, read) = compare_with_strace(bench, command)?;
        assert!(compared > 20 && read > 3, "{command:?}: {compared} paths, {read} of them read");
    }
    Ok(())
}

pub(crate) fn cargo(bench: &SandboxTestEnv) -> Result<(), Failed> {
    compare(bench, "cargo", &[&["cargo", "metadata", "--offline", "--format-version=1"]])
}

pub(crate) fn chromium(bench: &SandboxTestEnv) -> Result<(), Failed> {
    compare(bench, "chromium", &[&["chromium", "--version"]])
}

pub(crate) fn everyday(bench: &SandboxTestEnv) -> Result<(), Failed> {
    compare(bench, "everyday", &[&["./compile.sh"], &["make", "--silent", "-j4"], &["python3", "memory.py"]])
}

pub(crate) fn go(bench: &SandboxTestEnv) -> Result<(), Failed> {
    compare(bench, "go", &[&["go", "list", "-deps", "./..."]])
}

pub(crate) fn npm(bench: &SandboxTestEnv) -> Result<(), Failed> {
    compare(bench, "npm", &[&["node", "-p", "process.execPath"], &["npm", "ls", "--package-lock-only"]])
}

pub(crate) fn pip(bench: &SandboxTestEnv) -> Result<(), Failed> {
    compare(bench, "pip", &[&["/usr/bin/python3", "-m", "venv", "--without-pip", ".venv"]])
}

pub(crate) fn pytest(bench: &SandboxTestEnv) -> Result<(), Failed> {
    compare(bench, "pytest", &[&["/usr/bin/python3", "-m", "pytest", "-q"]])
}

pub(crate) fn servers(bench: &SandboxTestEnv) -> Result<(), Failed> {
    compare(bench, "servers", &[&["python3", "localhost.py"]])
}

pub(crate) fn sqlite(bench: &SandboxTestEnv) -> Result<(), Failed> {
    compare(bench, "sqlite", &[&["python3", "write.py"], &["./write.sh"]])
}
