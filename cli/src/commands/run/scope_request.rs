//! Builds the request to restrict a run from the command line.

use std::path::{Component, Path, PathBuf};

use proctor_core::model::run_scope::ScopeRequest;
use proctor_runner::WorktreePlace;

use crate::args::ScopeArgs;
use crate::error::CliError;
use crate::installation::show;

/// Builds the request. Files are relative to the caller's working directory.
///
/// # Errors
/// A file is outside the repository, or its path is not valid text.
pub(super) fn from_args(args: &ScopeArgs, repo: &Path, cwd: &Path) -> Result<ScopeRequest, CliError> {
    let top = worktree_top(repo);
    let files = args.files.as_ref().map(|files| files.iter().map(|file| path_in_repo(file, &top, cwd)).collect());
    Ok(ScopeRequest {
        selected: args.selected.clone(),
        changed_since: args.changed.clone(),
        files: files.transpose()?,
        fix: args.fix,
    })
}

/// A file of `--files` that the worktree does not have.
pub(super) struct MissingFile {
    /// The path relative to the top of the worktree.
    pub(super) path: String,
    /// The path as the caller wrote it.
    written: PathBuf,
}

impl MissingFile {
    /// Returns the error for a file that git does not know either.
    pub(super) fn to_error(&self) -> CliError {
        CliError::Usage {
            message: format!("`{}` does not exist, and git does not track it either", show(&self.written)),
            hint: "correct the path; a deleted file can be named while HEAD or the index has it".to_owned(),
        }
    }
}

/// Returns the files of a request that do not exist in the worktree.
pub(super) fn missing_files(args: &ScopeArgs, scope: &ScopeRequest, repo: &Path) -> Vec<MissingFile> {
    let (written, paths) = (args.files.iter().flatten(), scope.files.iter().flatten());
    let top = worktree_top(repo);
    let missing = written.zip(paths).filter(|(_, path)| top.join(path).symlink_metadata().is_err());
    missing.map(|(written, path)| MissingFile { path: path.clone(), written: written.clone() }).collect()
}

/// Returns the top of the worktree; the spec may be in a subdirectory.
fn worktree_top(repo: &Path) -> PathBuf {
    WorktreePlace::find(repo).map_or_else(|_| repo.to_path_buf(), |place| place.top)
}

/// Returns the path of a file relative to the top of the worktree. The file need not exist.
fn path_in_repo(file: &Path, repo: &Path, cwd: &Path) -> Result<String, CliError> {
    let absolute = without_dots(&cwd.join(file));
    let outside = |problem: &str| CliError::Usage {
        message: format!("`{}` {problem}", show(file)),
        hint: format!("name files in `{}`", show(repo)),
    };
    // A parent directory may be a link, but a link inside the repository is a file of its own.
    let resolved = absolute.parent().and_then(|parent| parent.canonicalize().ok()).zip(absolute.file_name());
    let resolved = resolved.map(|(parent, name)| parent.join(name));
    let candidates = std::iter::once(absolute.clone()).chain(resolved);
    let below = candidates.into_iter().find_map(|path| path.strip_prefix(repo).map(Path::to_path_buf).ok());
    let below = below.ok_or_else(|| outside("is not in the repository"))?;
    match below.to_str() {
        Some("") => Ok(".".to_owned()),
        Some(text) => Ok(text.to_owned()),
        None => Err(outside("is not valid text")),
    }
}

/// Removes `.` and `..` from an absolute path without reading the disk.
fn without_dots(path: &Path) -> PathBuf {
    let mut clean = PathBuf::new();
    for part in path.components() {
        match part {
            Component::ParentDir => drop(clean.pop()),
            Component::CurDir => {}
            other => clean.push(other),
        }
    }
    clean
}

#[cfg(test)]
mod tests {
    use super::*;

    fn below(file: &str, cwd: &str) -> Result<String, CliError> {
        path_in_repo(Path::new(file), Path::new("/r"), Path::new(cwd))
    }

    #[test]
    fn makes_paths_relative_to_repository() {
        assert_eq!(below("a/b.py", "/r").expect("inside"), "a/b.py");
        assert_eq!(below("../c.py", "/r/a/b").expect("inside"), "a/c.py");
        assert_eq!(below(".", "/r").expect("inside"), ".");
        assert_eq!(below("/r/x", "/tmp").expect("inside"), "x");
        assert!(below("../x", "/r").is_err() && below("/etc/passwd", "/r").is_err());
    }
}
