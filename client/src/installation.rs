//! Locates files on this machine: programs, state directory, operator's config and socket. The locations depend on the
//! environment of the process, which is read once. The command line and the daemon use the same locations, so that they
//! find each other.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::io::{self, ErrorKind};
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use proctor_core::decision::verdict::{EXIT_INCONCLUSIVE, EXIT_USAGE};
use proctor_core::model::drift::display_path;
use proctor_core::spec::{Diagnostic, OperatorConfig};
use rustix::fs::{Mode, OFlags};

/// The program that contains the daemon and the full command line.
pub const MAIN_PROGRAM: &str = "proctord";
const SYSTEM_CONFIG: &str = "/etc/proctor/proctord.toml";
const SYSTEM_STATE: &str = "/var/lib/proctor";
/// Socket of the system daemon.
pub const SYSTEM_SOCKET: &str = "/run/proctor/proctord.sock";
const SOCKET_NAME: &str = "proctor/proctord.sock";
/// Parent of the runtime directories of users.
const USER_DIRS: &str = "/run/user";
/// Mode bits that let users other than the owner write.
const OTHERS_WRITE: u32 = 0o022;
/// Mode bit of a shared directory such as `/tmp`.
const STICKY: u32 = 0o1000;
/// Maximum size of the operator's config in bytes.
const MAX_CONFIG: u64 = 1 << 20;

/// Environment of the process, read once at the start.
#[derive(Debug, Clone)]
pub struct ProcessEnvironment {
    /// Environment variables that are valid UTF-8.
    pub env: BTreeMap<String, String>,
    /// Printable names of variables whose name or value is not UTF-8.
    pub unreadable: Vec<String>,
    /// Home directory.
    pub home: Option<PathBuf>,
    /// Current directory.
    pub cwd: PathBuf,
    /// Directory of the executable.
    pub bin_dir: PathBuf,
    /// User of the process.
    pub uid: u32,
    /// Parent of the runtime directories of users, which are named by user ID.
    pub user_dirs: PathBuf,
}

impl ProcessEnvironment {
    /// Reads the environment of the process.
    ///
    /// # Errors
    /// The current directory or the path of the executable cannot be determined.
    #[expect(clippy::disallowed_methods, reason = "the environment of the process is read here, once")]
    pub fn read() -> io::Result<Self> {
        let (env, unreadable) = utf8_variables(std::env::vars_os());
        let executable = std::env::current_exe()?;
        Ok(Self {
            env,
            unreadable,
            home: std::env::home_dir().filter(|home| home.is_absolute()),
            cwd: std::env::current_dir()?,
            bin_dir: executable.parent().map(Path::to_owned).unwrap_or_default(),
            uid: rustix::process::geteuid().as_raw(),
            user_dirs: PathBuf::from(USER_DIRS),
        })
    }

    /// Returns whether the process runs as root.
    pub fn is_root(&self) -> bool {
        self.uid == 0
    }

    /// Returns a variable if it is not empty.
    pub fn var(&self, name: &str) -> Option<&str> {
        self.env.get(name).map(String::as_str).filter(|value| !value.is_empty())
    }

    /// Returns a directory of the XDG base directory specification: `variable` if it is an absolute path, else
    /// `fallback` below the home directory.
    pub fn xdg_dir(&self, variable: &str, fallback: &str) -> Option<PathBuf> {
        let set = self.var(variable).map(PathBuf::from).filter(|path| path.is_absolute());
        set.or_else(|| self.home.as_ref().map(|home| home.join(fallback)))
    }
}

fn utf8_variables(vars: impl Iterator<Item = (OsString, OsString)>) -> (BTreeMap<String, String>, Vec<String>) {
    let mut env = BTreeMap::new();
    let mut unreadable = Vec::new();
    for (name, value) in vars {
        match (name.into_string(), value.into_string()) {
            (Ok(name), Ok(value)) => {
                env.insert(name, value);
            }
            (Ok(name), Err(_)) => unreadable.push(display_path(name.as_bytes())),
            (Err(name), _) => unreadable.push(display_path(name.as_encoded_bytes())),
        }
    }
    (env, unreadable)
}

/// Reason why a file is missing or unusable.
#[derive(Debug, thiserror::Error)]
pub enum InstallationError {
    /// The user or operator named something that is missing or unusable.
    #[error("{message}")]
    Usage {
        /// Description and location.
        message: String,
        /// Suggested remedy.
        hint: String,
    },
    /// The machine or the installation lacks something.
    #[error("{message}")]
    Environment {
        /// Description and location.
        message: String,
        /// Suggested remedy.
        hint: String,
    },
    /// The operator's config is invalid.
    #[error("`{}` is not valid", show(file))]
    Invalid {
        /// Path of the file.
        file: PathBuf,
        /// Text of the file.
        text: String,
        /// Errors in the file.
        diagnostics: Vec<Diagnostic>,
    },
}

impl InstallationError {
    /// Returns the exit code for a process that this error ends.
    pub fn exit_code(&self) -> u8 {
        match self {
            Self::Usage { .. } | Self::Invalid { .. } => EXIT_USAGE,
            Self::Environment { .. } => EXIT_INCONCLUSIVE,
        }
    }

    /// Returns a suggested remedy.
    pub fn hint(&self) -> Option<&str> {
        match self {
            Self::Usage { hint, .. } | Self::Environment { hint, .. } => Some(hint),
            Self::Invalid { .. } => None,
        }
    }

    /// Returns one line per problem, with its position in the file.
    pub fn lines(&self) -> Vec<String> {
        match self {
            Self::Usage { message, .. } | Self::Environment { message, .. } => vec![message.clone()],
            Self::Invalid { file, diagnostics, .. } => {
                diagnostics.iter().map(|found| diagnostic_line(file, found)).collect()
            }
        }
    }
}

fn diagnostic_line(file: &Path, found: &Diagnostic) -> String {
    let place = found.span.map(|span| format!(":{span}")).unwrap_or_default();
    format!("{}{place}: {}", show(file), found.message)
}

/// Formats a path for messages.
pub fn show(path: &Path) -> String {
    display_path(path.as_os_str().as_encoded_bytes())
}

/// Finds a program next to the executable or in `../libexec/proctor`.
///
/// # Errors
/// The program is in neither directory.
pub fn find_program(name: &str, bin_dir: &Path) -> Result<PathBuf, InstallationError> {
    let places = [bin_dir.to_owned(), bin_dir.join("../libexec/proctor")];
    let found = places.iter().map(|place| place.join(name)).find(|path| path.is_file());
    found.ok_or_else(|| InstallationError::Environment {
        message: format!("the program `{name}` is in neither `{}` nor `{}`", show(&places[0]), show(&places[1])),
        hint: "install proctor's programs into one directory (`make build` puts them side by side)".to_owned(),
    })
}

/// Returns the state directory: the named one, else that of the system daemon for root, else the user's own.
///
/// # Errors
/// No directory was named, and there is no home directory.
pub fn state_dir(named: Option<&Path>, environment: &ProcessEnvironment) -> Result<PathBuf, InstallationError> {
    match named {
        Some(named) => Ok(environment.cwd.join(named)),
        None if environment.is_root() => Ok(PathBuf::from(SYSTEM_STATE)),
        None => environment
            .xdg_dir("XDG_STATE_HOME", ".local/state")
            .map(|dir| dir.join("proctor"))
            .ok_or_else(no_home_error),
    }
}

/// Ensures that no other user can write to an existing state directory. If the directory belongs to this user and
/// others can write to it, its mode is changed to 0700.
///
/// # Errors
/// The directory belongs to another user, is shared, or its mode cannot be changed.
pub fn secure_state_dir(dir: &Path) -> Result<(), InstallationError> {
    let refused = |reason: String, hint: &str| {
        let message = format!("the state directory `{}` cannot be used: {reason}", show(dir));
        Err(InstallationError::Usage { message, hint: hint.to_owned() })
    };
    let flags = OFlags::DIRECTORY | OFlags::RDONLY | OFlags::CLOEXEC;
    // Other errors are reported by the first call that needs the directory.
    let Ok(fd) = rustix::fs::open(dir, flags, Mode::empty()) else { return Ok(()) };
    let Ok(stat) = rustix::fs::fstat(&fd) else { return Ok(()) };
    let own = rustix::process::geteuid().as_raw();
    if stat.st_uid != own {
        let reason = format!("it belongs to user {}, and this is user {own}", stat.st_uid);
        return refused(reason, "choose a directory that you own with `--state-dir`, or change the owner of this one");
    }
    let mode = stat.st_mode & 0o7777;
    if mode & OTHERS_WRITE == 0 {
        return Ok(());
    }
    if mode & STICKY != 0 {
        return refused("it is shared with other users".to_owned(), "choose a private directory with `--state-dir`");
    }
    match rustix::fs::fchmod(&fd, Mode::from_raw_mode(0o700)) {
        Ok(()) => {
            tracing::warn!(dir = show(dir), "other users could write to the state directory; its mode is 0700 now");
            Ok(())
        }
        Err(errno) => {
            let reason = format!("other users can write to it, and its mode cannot be changed: {errno}");
            refused(reason, "set its mode to 0700")
        }
    }
}

/// Returns the home directory.
///
/// # Errors
/// There is no home directory.
pub fn home_dir(environment: &ProcessEnvironment) -> Result<PathBuf, InstallationError> {
    environment.home.clone().ok_or_else(no_home_error)
}

fn no_home_error() -> InstallationError {
    InstallationError::Environment {
        message: "the caller has no home directory".to_owned(),
        hint: "set HOME to an absolute path".to_owned(),
    }
}

/// Returns the default socket of this user's daemon: in the user's runtime directory, for root [`SYSTEM_SOCKET`], and
/// without a runtime directory in `state_dir`.
pub fn default_socket(environment: &ProcessEnvironment, state_dir: &Path) -> PathBuf {
    candidate_sockets(environment, state_dir).swap_remove(0)
}

/// Returns the sockets at which a daemon of this user may listen, in the order in which a client tries them. A daemon
/// that was started without a runtime directory listens in the state directory. The list is not empty.
pub fn candidate_sockets(environment: &ProcessEnvironment, state_dir: &Path) -> Vec<PathBuf> {
    if environment.is_root() {
        return vec![PathBuf::from(SYSTEM_SOCKET)];
    }
    let session = runtime_dir(environment).map(|dir| dir.join(SOCKET_NAME));
    session.into_iter().chain([state_dir.join("run/proctord.sock")]).collect()
}

/// Returns the runtime directory of the user: `XDG_RUNTIME_DIR`, or without it the directory that the system creates
/// for the user, if the user owns it. MCP clients start servers without the variable.
fn runtime_dir(environment: &ProcessEnvironment) -> Option<PathBuf> {
    let set = environment.var("XDG_RUNTIME_DIR").map(PathBuf::from).filter(|path| path.is_absolute());
    set.or_else(|| {
        let dir = environment.user_dirs.join(environment.uid.to_string());
        let meta = std::fs::symlink_metadata(&dir).ok()?;
        let is_own = meta.is_dir() && meta.uid() == environment.uid && meta.mode() & 0o022 == 0;
        is_own.then_some(dir)
    })
}

/// The operator's config and its location.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LoadedOperatorConfig {
    /// Parsed settings.
    pub operator: OperatorConfig,
    /// The file; `None` if there is none and the built-in config applies.
    pub file: Option<OperatorConfigFile>,
}

/// A config file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OperatorConfigFile {
    /// Path of the file.
    pub path: PathBuf,
    /// Text of the file.
    pub text: String,
}

/// Reads the operator's config: the named file, else the system's, else the caller's own, else the built-in one.
///
/// The system's file takes precedence over the caller's, so that a caller cannot silently widen what the system's
/// operator restricts.
///
/// # Errors
/// The file cannot be read or is invalid.
pub fn load_operator_config(
    named: Option<&Path>,
    environment: &ProcessEnvironment,
) -> Result<LoadedOperatorConfig, InstallationError> {
    if let Some(named) = named {
        let path = environment.cwd.join(named);
        return match read_config(&path)? {
            Some(text) => parse_config(path, text),
            None => Err(unreadable_config(&path, &ErrorKind::NotFound.into())),
        };
    }
    let own = environment.xdg_dir("XDG_CONFIG_HOME", ".config").map(|dir| dir.join("proctor/proctord.toml"));
    for path in [Some(PathBuf::from(SYSTEM_CONFIG)), own].into_iter().flatten() {
        if let Some(text) = read_config(&path)? {
            return parse_config(path, text);
        }
    }
    Ok(LoadedOperatorConfig { operator: OperatorConfig::default(), file: None })
}

fn parse_config(path: PathBuf, text: String) -> Result<LoadedOperatorConfig, InstallationError> {
    match OperatorConfig::parse(&text) {
        Ok(operator) => Ok(LoadedOperatorConfig { operator, file: Some(OperatorConfigFile { path, text }) }),
        Err(diagnostics) => Err(InstallationError::Invalid { file: path, text, diagnostics }),
    }
}

/// Reads a config file, or returns `None` if it does not exist.
fn read_config(path: &Path) -> Result<Option<String>, InstallationError> {
    match std::fs::metadata(path) {
        Ok(metadata) if metadata.len() > MAX_CONFIG || !metadata.is_file() => {
            Err(unreadable_config(path, &io::Error::other("it is not a file of a reasonable size")))
        }
        Ok(_) => std::fs::read_to_string(path).map(Some).map_err(|error| unreadable_config(path, &error)),
        Err(error) if matches!(error.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory) => Ok(None),
        Err(error) => Err(unreadable_config(path, &error)),
    }
}

fn unreadable_config(path: &Path, error: &io::Error) -> InstallationError {
    InstallationError::Usage {
        message: format!("the operator's config `{}` cannot be read: {error}", show(path)),
        hint: "make it readable, or name another one with `--config FILE`".to_owned(),
    }
}

#[cfg(test)]
impl ProcessEnvironment {
    /// Returns an environment for tests with only the given variables.
    pub(crate) fn for_tests(env: &[(&str, &str)]) -> Self {
        Self {
            env: env.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect(),
            unreadable: Vec::new(),
            home: Some(PathBuf::from("/home/a")),
            cwd: PathBuf::from("/"),
            bin_dir: PathBuf::from("/usr/bin"),
            uid: 1000,
            user_dirs: PathBuf::from("/nonexistent"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::ffi::OsStringExt as _;

    #[test]
    fn skips_and_names_variables_that_are_not_utf8() {
        let os = |bytes: &[u8]| OsString::from_vec(bytes.to_vec());
        let vars = [(os(b"A"), os(b"1")), (os(b"B"), os(b"\xff")), (os(b"\xfe\x1b"), os(b"x"))];
        let (env, unreadable) = utf8_variables(vars.into_iter());
        assert_eq!(env, BTreeMap::from([("A".to_owned(), "1".to_owned())]));
        assert_eq!(unreadable, ["B", "\\xfe\\x1b"]);
    }

    #[test]
    fn names_searched_directories_of_missing_helper() {
        let error = find_program("proctor-sandbox", Path::new("/proc/bin")).expect_err("no helper");
        assert_eq!(error.exit_code(), 5);
        for word in ["`proctor-sandbox`", "/bin`", "libexec/proctor`"] {
            assert!(error.to_string().contains(word), "{error}");
        }
    }

    #[test]
    fn makes_writable_state_directory_private() {
        use std::os::unix::fs::PermissionsExt;
        let dir = tempfile::tempdir().expect("a directory");
        let set = |mode| std::fs::set_permissions(dir.path(), PermissionsExt::from_mode(mode)).expect("a mode");
        let secured = || {
            let secured = secure_state_dir(dir.path()).map_err(|error| error.to_string());
            (secured, dir.path().metadata().expect("there").permissions().mode() & 0o7777)
        };
        for (mode, after) in [(0o777, 0o700), (0o720, 0o700), (0o755, 0o755), (0o700, 0o700)] {
            set(mode);
            assert_eq!(secured(), (Ok(()), after), "{mode:o}");
        }
        set(0o1777);
        let (shared, mode) = secured();
        assert!(shared.expect_err("shared").contains("shared with other users"));
        assert_eq!(mode, 0o1777, "a shared directory is left alone");
        secure_state_dir(&dir.path().join("absent")).expect("made later");
        if rustix::process::geteuid().is_root() {
            set(0o700);
            std::os::unix::fs::chown(dir.path(), Some(12_345), None).expect("given away");
            assert!(secured().0.expect_err("another's").contains("belongs to user 12345"));
        }
    }

    #[test]
    fn locates_state_directory_and_socket() {
        let mut environment = ProcessEnvironment::for_tests(&[]);
        let state = state_dir(None, &environment).expect("there");
        assert_eq!(state, Path::new("/home/a/.local/state/proctor"));
        assert_eq!(default_socket(&environment, &state), Path::new("/home/a/.local/state/proctor/run/proctord.sock"));
        environment.env.insert("XDG_RUNTIME_DIR".into(), "/run/user/7".into());
        assert_eq!(default_socket(&environment, &state), Path::new("/run/user/7/proctor/proctord.sock"));
        environment.uid = 0;
        assert_eq!(default_socket(&environment, &state), Path::new(SYSTEM_SOCKET));
        assert_eq!(state_dir(None, &environment).expect("there"), Path::new("/var/lib/proctor"));
        assert_eq!(state_dir(Some(Path::new("x")), &environment).expect("there"), Path::new("/x"));
        let homeless = ProcessEnvironment { home: None, uid: 1, ..ProcessEnvironment::for_tests(&[]) };
        assert_eq!(state_dir(None, &homeless).expect_err("nowhere").exit_code(), 5);
    }

    #[test]
    fn finds_the_runtime_directory_without_its_variable() {
        let dir = tempfile::tempdir().expect("a directory");
        let uid = rustix::process::geteuid().as_raw();
        let mut environment = ProcessEnvironment {
            uid: uid.max(1),
            user_dirs: dir.path().to_owned(),
            ..ProcessEnvironment::for_tests(&[])
        };
        let fallback = PathBuf::from("/s/run/proctord.sock");
        let state = Path::new("/s");
        assert_eq!(
            candidate_sockets(&environment, state),
            std::slice::from_ref(&fallback),
            "there is no such directory"
        );
        let own = dir.path().join(environment.uid.to_string());
        std::os::unix::fs::symlink(dir.path(), &own).expect("a link");
        assert_eq!(candidate_sockets(&environment, state), std::slice::from_ref(&fallback), "a link may lead anywhere");
        std::fs::remove_file(&own).expect("removed");
        std::fs::create_dir(&own).expect("a directory");
        let is_own = uid == environment.uid;
        let expected: Vec<PathBuf> =
            is_own.then(|| own.join(SOCKET_NAME)).into_iter().chain([fallback.clone()]).collect();
        assert_eq!(candidate_sockets(&environment, state), expected, "the directory of another user does not count");
        environment.env.insert("XDG_RUNTIME_DIR".into(), "/x".into());
        assert_eq!(candidate_sockets(&environment, state), [PathBuf::from("/x/proctor/proctord.sock"), fallback]);
    }

    #[test]
    fn named_config_must_exist_and_be_valid() {
        let environment = ProcessEnvironment::for_tests(&[]);
        assert_eq!(
            load_operator_config(Some(Path::new("/proc/absent.toml")), &environment).expect_err("absent").exit_code(),
            2
        );
        let invalid = load_operator_config(Some(Path::new("/proc/self/status")), &environment).expect_err("no TOML");
        assert!(invalid.lines()[0].starts_with("/proc/self/status:1:"), "{:?}", invalid.lines());
    }
}
