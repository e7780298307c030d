//! Locates the repository for this caller. Helpers, state directory and operator config are found by
//! `proctor_daemon::installation`, which the daemon uses too.

use std::path::{Path, PathBuf};

use proctor_core::spec::{self, OperatorConfig};
use proctor_daemon::installation::{self, InstallationError};
use proctor_runner::HelperPrograms;

use crate::args::{OperatorArgs, RepoArgs, StateArgs};
use crate::caller::Caller;
use crate::error::CliError;

pub(crate) use proctor_daemon::installation::show;

/// Returns the repository: the directory named by `--repo`, or the nearest directory from the current one upwards
/// that has a spec or a `.git`.
///
/// # Errors
/// The named directory does not exist, or the current directory is not inside a repository.
pub(crate) fn repository(args: &RepoArgs, caller: &Caller) -> Result<PathBuf, CliError> {
    match &args.repo {
        Some(named) => named_repository(&caller.cwd.join(named)),
        None => nearest_repository(&caller.cwd),
    }
}

fn named_repository(path: &Path) -> Result<PathBuf, CliError> {
    let found = path.canonicalize().and_then(|path| Ok((path.metadata()?.is_dir(), path)));
    let (is_dir, canonical) = found.map_err(|error| CliError::Usage {
        message: format!("the repository `{}` cannot be opened: {error}", show(path)),
        hint: "name an existing directory with `--repo`".to_owned(),
    })?;
    if is_dir {
        return Ok(canonical);
    }
    Err(CliError::Usage {
        message: format!("the repository `{}` is not a directory", show(path)),
        hint: "name the directory that contains `spec/verification.yaml` with `--repo`".to_owned(),
    })
}

fn nearest_repository(cwd: &Path) -> Result<PathBuf, CliError> {
    let is_repository = |dir: &&Path| dir.join(spec::PATH).is_file() || dir.join(".git").exists();
    let found = cwd.ancestors().find(is_repository).map(Path::to_owned);
    found.ok_or_else(|| CliError::Usage {
        message: format!("found no `{}` and no `.git` in `{}` or its parent directories", spec::PATH, show(cwd)),
        hint: "go to a repository, or name one with `--repo DIR`".to_owned(),
    })
}

/// Finds the helper programs next to the running executable, or in `../libexec/proctor`.
///
/// # Errors
/// A helper is in neither directory.
pub(crate) fn helpers(caller: &Caller) -> Result<HelperPrograms, CliError> {
    Ok(installation::find_helpers(&caller.bin_dir)?)
}

/// Returns the state directory, which holds everything that outlives a run.
///
/// # Errors
/// No directory was named, and the caller has no home directory.
pub(crate) fn state_dir(args: &StateArgs, caller: &Caller) -> Result<PathBuf, CliError> {
    Ok(installation::state_dir(args.state_dir.as_deref(), caller)?)
}

/// Returns the caller's home directory.
///
/// # Errors
/// The caller has none.
pub(crate) fn home(caller: &Caller) -> Result<PathBuf, CliError> {
    Ok(installation::home_dir(caller)?)
}

/// Reads the operator's config: the named file, else the system's, else the caller's own. If none exists, returns the
/// built-in config.
///
/// # Errors
/// The file cannot be read, or is wrong.
pub(crate) fn operator(args: &OperatorArgs, caller: &Caller) -> Result<OperatorConfig, CliError> {
    Ok(installation::load_operator_config(args.config.as_deref(), caller)?.operator)
}

impl From<InstallationError> for CliError {
    fn from(error: InstallationError) -> Self {
        match error {
            InstallationError::Usage { message, hint } => Self::Usage { message, hint },
            InstallationError::Environment { message, hint } => Self::Environment { message, hint },
            InstallationError::Invalid { file, text, diagnostics } => Self::Invalid { file, text, diagnostics },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn touch(path: &Path) {
        std::fs::create_dir_all(path.parent().expect("a parent")).expect("made");
        std::fs::hard_link("/dev/null", path)
            .or_else(|_| std::os::unix::fs::symlink("/proc/self/exe", path))
            .expect("made");
    }

    #[test]
    fn finds_nearest_directory_with_spec_or_git() {
        let dir = tempfile::tempdir().expect("a directory");
        let root = dir.path().canonicalize().expect("canonical");
        let mut caller = Caller::for_tests(&[]);
        let nearest = RepoArgs { repo: None };
        std::fs::create_dir_all(root.join("outer/.git")).expect("made");
        std::fs::create_dir_all(root.join("outer/inner/deep")).expect("made");
        caller.environment.cwd = root.join("outer/inner/deep");
        assert_eq!(repository(&nearest, &caller).expect("found"), root.join("outer"));
        touch(&root.join("outer/inner").join(spec::PATH));
        assert_eq!(repository(&nearest, &caller).expect("found"), root.join("outer/inner"));
        caller.environment.cwd = root.join("outer");
        let named = RepoArgs { repo: Some("inner/deep/..".into()) };
        assert_eq!(repository(&named, &caller).expect("found"), root.join("outer/inner"));
    }

    #[test]
    fn missing_repository_is_a_usage_error() {
        let mut caller = Caller::for_tests(&[]);
        caller.environment.cwd = PathBuf::from("/proc");
        let error = repository(&RepoArgs { repo: None }, &caller).expect_err("none there");
        assert_eq!(error.exit_code(), 2);
        assert!(error.render().contains("--repo"));
        let absent = RepoArgs { repo: Some("/proc/absent".into()) };
        assert_eq!(repository(&absent, &caller).expect_err("absent").exit_code(), 2);
    }

    #[test]
    fn missing_helper_is_an_environment_error() {
        let mut caller = Caller::for_tests(&[]);
        caller.environment.bin_dir = PathBuf::from("/proc/bin");
        let error = helpers(&caller).expect_err("not there");
        assert_eq!((error.exit_code(), error.hints().len()), (5, 1));
        let args = OperatorArgs { config: Some("/proc/absent.toml".into()) };
        assert_eq!(operator(&args, &Caller::for_tests(&[])).expect_err("absent").exit_code(), 2);
    }
}
