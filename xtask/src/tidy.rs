//! The rules of the house that no lint knows.
use std::{path::Path, process::ExitCode};
pub(crate) fn check(_root: &Path) -> anyhow::Result<ExitCode> {
    Ok(ExitCode::SUCCESS)
}
