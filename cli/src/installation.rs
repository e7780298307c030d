//! Where things are on this machine: the repository, our helpers, our state, the operator's
//! config. Looked up once, from what the caller said.

use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use proctor_core::drift::display_path;
use proctor_core::spec::{self, Operator};

use crate::args::{OperatorArgs, RepoArgs, StateArgs};
use crate::caller::Caller;
use crate::error::CliError;

const SANDBOX_HELPER: &str = "proctor-sandbox";
const GIT_HELPER: &str = "proctor-git";
const SYSTEM_CONFIG: &str = "/etc/proctor/proctord.toml";
const SYSTEM_STATE: &str = "/var/lib/proctor";
/// The largest operator's config that is read, in bytes.
const MAX_CONFIG: u64 = 1 << 20;

/// A path for messages.
pub(crate) fn show(path: &Path) -> String {
    display_path(path.as_os_str().as_encoded_bytes())
}

/// The repository that the caller means: the one that was named, or the nearest directory from
/// the current one upwards that has a spec or a `.git`.
///
/// # Errors
/// The named directory is not there, or there is no repository around the current one.
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
        hint: "name the directory that holds `spec/verification.yaml` with `--repo`".to_owned(),
    })
}

fn nearest_repository(cwd: &Path) -> Result<PathBuf, CliError> {
    let is_repository = |dir: &&Path| dir.join(spec::PATH).is_file() || dir.join(".git").exists();
    let found = cwd.ancestors().find(is_repository).map(Path::to_owned);
    found.ok_or_else(|| CliError::Usage {
        message: format!("there is no `{}` and no `.git` in `{}` or above it", spec::PATH, show(cwd)),
        hint: "go to a repository, or name one with `--repo DIR`".to_owned(),
    })
}

/// The two small programs that belong to us.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct HelperPaths {
    /// `proctor-sandbox`.
    pub sandbox: PathBuf,
    /// `proctor-git`.
    pub git: PathBuf,
}

/// Finds the helpers beside the running executable, or in `../libexec/proctor`.
///
/// # Errors
/// One of them is in neither place.
pub(crate) fn helpers(caller: &Caller) -> Result<HelperPaths, CliError> {
    Ok(HelperPaths { sandbox: find_helper(SANDBOX_HELPER, caller)?, git: find_helper(GIT_HELPER, caller)? })
}

fn find_helper(name: &str, caller: &Caller) -> Result<PathBuf, CliError> {
    let places = [caller.bin_dir.clone(), caller.bin_dir.join("../libexec/proctor")];
    let found = places.iter().map(|place| place.join(name)).find(|path| path.is_file());
    found.ok_or_else(|| CliError::Environment {
        message: format!("the helper `{name}` is in neither `{}` nor `{}`", show(&places[0]), show(&places[1])),
        hint: "install proctor's programs into one directory (`make build` puts them side by side)".to_owned(),
    })
}

/// Where what outlives a run is kept.
///
/// # Errors
/// No directory was named, and the caller has no home directory.
pub(crate) fn state_dir(args: &StateArgs, caller: &Caller) -> Result<PathBuf, CliError> {
    match &args.state_dir {
        Some(named) => Ok(caller.cwd.join(named)),
        None if caller.is_root => Ok(PathBuf::from(SYSTEM_STATE)),
        None => caller.xdg_dir("XDG_STATE_HOME", ".local/state").map(|dir| dir.join("proctor")).ok_or_else(homeless),
    }
}

/// The caller's home directory.
///
/// # Errors
/// The caller has none.
pub(crate) fn home(caller: &Caller) -> Result<PathBuf, CliError> {
    caller.home.clone().ok_or_else(homeless)
}

fn homeless() -> CliError {
    CliError::Environment {
        message: "the caller has no home directory".to_owned(),
        hint: "set HOME to an absolute path".to_owned(),
    }
}

/// The operator's config: the file that was named, else the system's, else the caller's own;
/// where there is none, the built-in one. The system's stands before the caller's, so that a
/// caller does not widen what the system's operator has narrowed without saying so.
///
/// # Errors
/// The file cannot be read, or is wrong.
pub(crate) fn operator(args: &OperatorArgs, caller: &Caller) -> Result<Operator, CliError> {
    if let Some(named) = &args.config {
        let path = caller.cwd.join(named);
        return match read_config(&path)? {
            Some(text) => parse_config(&path, text),
            None => Err(unreadable_config(&path, &ErrorKind::NotFound.into())),
        };
    }
    let own = caller.xdg_dir("XDG_CONFIG_HOME", ".config").map(|dir| dir.join("proctor/proctord.toml"));
    for path in [Some(PathBuf::from(SYSTEM_CONFIG)), own].into_iter().flatten() {
        if let Some(text) = read_config(&path)? {
            return parse_config(&path, text);
        }
    }
    Ok(Operator::default())
}

fn parse_config(path: &Path, text: String) -> Result<Operator, CliError> {
    Operator::parse(&text).map_err(|diagnostics| CliError::Invalid { file: path.to_owned(), text, diagnostics })
}

/// The text of a config; `None` where there is no such file.
fn read_config(path: &Path) -> Result<Option<String>, CliError> {
    match std::fs::metadata(path) {
        Ok(metadata) if metadata.len() > MAX_CONFIG || !metadata.is_file() => {
            Err(unreadable_config(path, &std::io::Error::other("it is no file of a reasonable size")))
        }
        Ok(_) => std::fs::read_to_string(path).map(Some).map_err(|error| unreadable_config(path, &error)),
        Err(error) if matches!(error.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory) => Ok(None),
        Err(error) => Err(unreadable_config(path, &error)),
    }
}

fn unreadable_config(path: &Path, error: &std::io::Error) -> CliError {
    CliError::Usage {
        message: format!("the operator's config `{}` cannot be read: {error}", show(path)),
        hint: "make it readable, or name another one with `--config FILE`".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn none() -> (RepoArgs, StateArgs, OperatorArgs) {
        (RepoArgs { repo: None }, StateArgs { state_dir: None }, OperatorArgs { config: None })
    }

    fn touch(path: &Path) {
        std::fs::create_dir_all(path.parent().expect("a parent")).expect("made");
        std::fs::hard_link("/dev/null", path)
            .or_else(|_| std::os::unix::fs::symlink("/proc/self/exe", path))
            .expect("made");
    }

    #[test]
    fn the_nearest_directory_with_a_spec_or_git_is_the_repository() {
        let dir = tempfile::tempdir().expect("a directory");
        let root = dir.path().canonicalize().expect("canonical");
        let mut caller = Caller::for_tests(&[]);
        std::fs::create_dir_all(root.join("outer/.git")).expect("made");
        std::fs::create_dir_all(root.join("outer/inner/deep")).expect("made");
        caller.cwd = root.join("outer/inner/deep");
        assert_eq!(repository(&none().0, &caller).expect("found"), root.join("outer"));
        touch(&root.join("outer/inner").join(spec::PATH));
        assert_eq!(repository(&none().0, &caller).expect("found"), root.join("outer/inner"));
        caller.cwd = root.join("outer");
        let named = RepoArgs { repo: Some("inner/deep/..".into()) };
        assert_eq!(repository(&named, &caller).expect("found"), root.join("outer/inner"));
    }

    #[test]
    fn no_repository_is_a_usage_error_with_a_hint() {
        let mut caller = Caller::for_tests(&[]);
        caller.cwd = PathBuf::from("/proc");
        let error = repository(&none().0, &caller).expect_err("none there");
        assert_eq!(error.exit_code(), 2);
        assert!(error.render().contains("--repo"));
        let absent = RepoArgs { repo: Some("/proc/absent".into()) };
        assert_eq!(repository(&absent, &caller).expect_err("absent").exit_code(), 2);
    }

    #[test]
    fn a_missing_helper_is_named_with_where_it_was_looked_for() {
        let dir = tempfile::tempdir().expect("a directory");
        let mut caller = Caller::for_tests(&[]);
        caller.bin_dir = dir.path().join("bin");
        touch(&caller.bin_dir.join(SANDBOX_HELPER));
        let error = helpers(&caller).expect_err("no git helper");
        assert_eq!(error.exit_code(), 5);
        for word in ["`proctor-git`", "/bin`", "libexec/proctor`"] {
            assert!(error.to_string().contains(word), "{error}");
        }
        touch(&dir.path().join("libexec/proctor").join(GIT_HELPER));
        assert_eq!(helpers(&caller).expect("both").sandbox, caller.bin_dir.join(SANDBOX_HELPER));
    }

    #[test]
    fn state_has_its_place() {
        let mut caller = Caller::for_tests(&[]);
        assert_eq!(state_dir(&none().1, &caller).expect("there"), Path::new("/home/a/.local/state/proctor"));
        caller.env.insert("XDG_STATE_HOME".into(), "/s".into());
        assert_eq!(state_dir(&none().1, &caller).expect("there"), Path::new("/s/proctor"));
        caller.is_root = true;
        assert_eq!(state_dir(&none().1, &caller).expect("there"), Path::new("/var/lib/proctor"));
        let named = StateArgs { state_dir: Some("x".into()) };
        assert_eq!(state_dir(&named, &caller).expect("there"), Path::new("/x"));
        let homeless = Caller { home: None, ..Caller::for_tests(&[]) };
        assert_eq!(state_dir(&none().1, &homeless).expect_err("nowhere").exit_code(), 5);
    }

    #[test]
    fn a_config_that_was_named_must_be_there() {
        let args = OperatorArgs { config: Some("/proc/absent.toml".into()) };
        assert_eq!(operator(&args, &Caller::for_tests(&[])).expect_err("absent").exit_code(), 2);
    }
}
