//! Lists, reads and writes the files of the repository.

use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result};

/// Names of directories that are skipped everywhere.
const SKIPPED_DIRECTORIES: [&str; 3] = [".git", "target", ".proctor"];

/// Returns every regular file below `root`, relative to it and sorted; does not follow links.
///
/// # Errors
/// A directory cannot be read.
pub(crate) fn list_files(root: &Path) -> Result<Vec<PathBuf>> {
    let mut found = Vec::new();
    let mut waiting = vec![root.to_owned()];
    while let Some(directory) = waiting.pop() {
        let entries = directory.read_dir().with_context(|| format!("`{}` cannot be listed", directory.display()))?;
        for entry in entries {
            let entry = entry.with_context(|| format!("`{}` cannot be listed", directory.display()))?;
            let kind = entry
                .file_type()
                .with_context(|| format!("the type of `{}` cannot be read", entry.path().display()))?;
            if kind.is_dir() && !SKIPPED_DIRECTORIES.iter().any(|name| entry.file_name() == *name) {
                waiting.push(entry.path());
            } else if kind.is_file() {
                found.push(entry.path().strip_prefix(root).unwrap_or(&entry.path()).to_owned());
            }
        }
    }
    found.sort();
    Ok(found)
}

/// Reads a file.
///
/// # Errors
/// The file does not exist or cannot be read.
pub(crate) fn read(path: &Path) -> Result<Vec<u8>> {
    std::fs::read(path).with_context(|| format!("`{}` cannot be read", path.display()))
}

/// Writes a file of the repository.
///
/// # Errors
/// The file cannot be written.
#[expect(
    clippy::disallowed_methods,
    reason = "a developer requested a file that git tracks; the diff shows a partial write"
)]
pub(crate) fn write(path: &Path, text: &str) -> Result<()> {
    std::fs::write(path, text).with_context(|| format!("`{}` cannot be written", path.display()))
}
