//! Finds the repository that a command is about.

use std::path::{Path, PathBuf};

use proctor_core::spec;

use crate::installation::{InstallationError, show};

/// Returns the repository: the named directory, or the nearest directory from `cwd` upwards that has a spec or a
/// `.git`.
///
/// # Errors
/// The named directory does not exist, or `cwd` is not inside a repository.
pub fn find_repository(named: Option<&Path>, cwd: &Path) -> Result<PathBuf, InstallationError> {
    match named {
        Some(named) => named_repository(&cwd.join(named)),
        None => nearest_repository(cwd),
    }
}

fn named_repository(path: &Path) -> Result<PathBuf, InstallationError> {
    let found = path.canonicalize().and_then(|path| Ok((path.metadata()?.is_dir(), path)));
    let (is_dir, canonical) = found.map_err(|error| InstallationError::Usage {
        message: format!("the repository `{}` cannot be opened: {error}", show(path)),
        hint: "name an existing directory with `--repo`".to_owned(),
    })?;
    if is_dir {
        return Ok(canonical);
    }
    Err(InstallationError::Usage {
        message: format!("the repository `{}` is not a directory", show(path)),
        hint: "name the directory that contains `spec/verification.yaml` with `--repo`".to_owned(),
    })
}

fn nearest_repository(cwd: &Path) -> Result<PathBuf, InstallationError> {
    let is_repository = |dir: &&Path| dir.join(spec::PATH).is_file() || dir.join(".git").exists();
    let found = cwd.ancestors().find(is_repository).map(Path::to_owned);
    found.ok_or_else(|| InstallationError::Usage {
        message: format!("found no `{}` and no `.git` in `{}` or its parent directories", spec::PATH, show(cwd)),
        hint: "go to a repository, or name one with `--repo DIR`".to_owned(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn finds_nearest_directory_with_spec_or_git() {
        let dir = tempfile::tempdir().expect("a directory");
        let root = dir.path().canonicalize().expect("canonical");
        let deep = root.join("outer/inner/deep");
        std::fs::create_dir_all(root.join("outer/.git")).expect("made");
        std::fs::create_dir_all(&deep).expect("made");
        assert_eq!(find_repository(None, &deep).expect("found"), root.join("outer"));
        let spec = root.join("outer/inner").join(spec::PATH);
        std::fs::create_dir_all(spec.parent().expect("a parent")).expect("made");
        std::os::unix::fs::symlink("/proc/self/exe", &spec).expect("made");
        assert_eq!(find_repository(None, &deep).expect("found"), root.join("outer/inner"));
        let named = find_repository(Some(Path::new("inner/deep/..")), &root.join("outer"));
        assert_eq!(named.expect("found"), root.join("outer/inner"));
    }

    #[test]
    fn missing_repository_is_a_usage_error() {
        let error = find_repository(None, Path::new("/proc")).expect_err("none there");
        assert_eq!(error.exit_code(), 2);
        assert!(error.hint().is_some_and(|hint| hint.contains("--repo")));
        let absent = find_repository(Some(Path::new("/proc/absent")), Path::new("/"));
        assert_eq!(absent.expect_err("absent").exit_code(), 2);
    }
}
