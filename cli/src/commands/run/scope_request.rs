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
        replaced_commit: None,
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
pub(super) fn worktree_top(repo: &Path) -> PathBuf {
    WorktreePlace::find(repo).map_or_else(|_| repo.to_path_buf(), |place| place.top)
}

/// Returns the path of a file relative to the top of the worktree. The file need not exist.
fn path_in_repo(file: &Path, repo: &Path, cwd: &Path) -> Result<String, CliError> {
    let written = cwd.join(file);
    let outside = |problem: &str| CliError::Usage {
        message: format!("`{}` {problem}", show(file)),
        hint: format!("name files in `{}`", show(repo)),
    };
    // A parent directory may be a link: git knows the file only by its path without links. The file itself may be a
    // link, which counts as a file.
    let resolved = match written.parent().zip(written.file_name()) {
        Some((parent, name)) => parent.canonicalize().map(|parent| parent.join(name)),
        None => written.canonicalize(),
    };
    let below = match resolved {
        Ok(path) => path.strip_prefix(repo.canonicalize().as_deref().unwrap_or(repo)).map(Path::to_path_buf),
        Err(_) => without_dots(&written).strip_prefix(repo).map(Path::to_path_buf),
    };
    let below = below.map_err(|_| outside("is not in the repository"))?;
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

    #[test]
    fn resolves_links_to_directories() {
        let temp = tempfile::tempdir().expect("a directory");
        let repo = temp.path().join("repo");
        std::fs::create_dir_all(repo.join("a/b")).expect("made");
        let link = |target: &str, at: &str| std::os::unix::fs::symlink(target, temp.path().join(at)).expect("linked");
        link("a/b", "repo/inner");
        link("b", "repo/a/file");
        link("/", "repo/outer");
        link("repo", "other");
        let below = |file: &str| path_in_repo(&temp.path().join(file), &repo, temp.path());
        assert_eq!(below("repo/inner/x.py").expect("inside"), "a/b/x.py");
        assert_eq!(below("repo/inner/../x.py").expect("inside"), "a/x.py");
        assert_eq!(below("repo/a/file").expect("inside"), "a/file");
        assert_eq!(below("other/a/x.py").expect("inside"), "a/x.py");
        assert_eq!(below("other/..//repo").expect("inside"), ".");
        assert!(below("repo/outer/etc").is_err() && below("repo/inner/../../..").is_err());
    }
}
