//! Where things are on this machine: our helpers, our state, the operator's config, the socket.
//! Looked up once, from what the process was started with; the command line looks in the same
//! places, so that it finds the daemon.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::io::{self, ErrorKind};
use std::path::{Path, PathBuf};

use proctor_core::drift::display_path;
use proctor_core::spec::{Diagnostic, Operator};
use proctor_core::verdict::{EXIT_INCONCLUSIVE, EXIT_USAGE};
use proctor_runner::Helpers;

const SANDBOX_HELPER: &str = "proctor-sandbox";
const GIT_HELPER: &str = "proctor-git";
const SQL_HELPER: &str = "proctor-sql";
const DAEMON: &str = "proctord";
const SYSTEM_CONFIG: &str = "/etc/proctor/proctord.toml";
const SYSTEM_STATE: &str = "/var/lib/proctor";
/// Where the system's daemon listens.
pub const SYSTEM_SOCKET: &str = "/run/proctor/proctord.sock";
const SOCKET_NAME: &str = "proctor/proctord.sock";
/// The largest operator's config that is read, in bytes.
const MAX_CONFIG: u64 = 1 << 20;

/// What a process was started with, read once.
#[derive(Debug, Clone)]
pub struct Surroundings {
    /// The environment, as far as it is UTF-8.
    pub env: BTreeMap<String, String>,
    /// The names, made printable, of variables whose name or value is not UTF-8.
    pub unreadable: Vec<String>,
    /// The home directory.
    pub home: Option<PathBuf>,
    /// The current directory.
    pub cwd: PathBuf,
    /// The directory of the running executable.
    pub bin_dir: PathBuf,
    /// Our user.
    pub uid: u32,
}

impl Surroundings {
    /// Reads what the process was started with.
    ///
    /// # Errors
    /// The current directory or our own executable cannot be named.
    #[expect(clippy::disallowed_methods, reason = "the daemon's own environment is read here, once")]
    pub fn read() -> io::Result<Self> {
        let (env, unreadable) = readable(std::env::vars_os());
        let executable = std::env::current_exe()?;
        Ok(Self {
            env,
            unreadable,
            home: std::env::home_dir().filter(|home| home.is_absolute()),
            cwd: std::env::current_dir()?,
            bin_dir: executable.parent().map(Path::to_owned).unwrap_or_default(),
            uid: rustix::process::geteuid().as_raw(),
        })
    }

    /// Whether we are root.
    pub fn is_root(&self) -> bool {
        self.uid == 0
    }

    /// A variable that is set and not empty.
    pub fn var(&self, name: &str) -> Option<&str> {
        self.env.get(name).map(String::as_str).filter(|value| !value.is_empty())
    }

    /// A directory of the XDG base directory specification: `variable` where it holds an absolute
    /// path, else `fallback` below the home directory.
    pub fn xdg_dir(&self, variable: &str, fallback: &str) -> Option<PathBuf> {
        let set = self.var(variable).map(PathBuf::from).filter(|path| path.is_absolute());
        set.or_else(|| self.home.as_ref().map(|home| home.join(fallback)))
    }
}

fn readable(vars: impl Iterator<Item = (OsString, OsString)>) -> (BTreeMap<String, String>, Vec<String>) {
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

/// Why something is not where it belongs, or not as it must be.
#[derive(Debug, thiserror::Error)]
pub enum InstallationError {
    /// The caller or operator named something that is not there, or not like that.
    #[error("{message}")]
    Usage {
        /// What and where.
        message: String,
        /// What to do.
        hint: String,
    },
    /// This machine or installation lacks something.
    #[error("{message}")]
    Environment {
        /// What and where.
        message: String,
        /// What to do.
        hint: String,
    },
    /// The operator's config is wrong.
    #[error("`{}` is not valid", show(file))]
    Invalid {
        /// The file.
        file: PathBuf,
        /// Its text.
        text: String,
        /// What is wrong with it.
        diagnostics: Vec<Diagnostic>,
    },
}

impl InstallationError {
    /// What a process that cannot go on for it exits with.
    pub fn exit_code(&self) -> u8 {
        match self {
            Self::Usage { .. } | Self::Invalid { .. } => EXIT_USAGE,
            Self::Environment { .. } => EXIT_INCONCLUSIVE,
        }
    }

    /// What to do about it.
    pub fn hint(&self) -> Option<&str> {
        match self {
            Self::Usage { hint, .. } | Self::Environment { hint, .. } => Some(hint),
            Self::Invalid { .. } => None,
        }
    }

    /// What happened, a line for each thing that is wrong, with its place in the file.
    pub fn lines(&self) -> Vec<String> {
        match self {
            Self::Usage { message, .. } | Self::Environment { message, .. } => vec![message.clone()],
            Self::Invalid { file, diagnostics, .. } => diagnostics.iter().map(|found| line(file, found)).collect(),
        }
    }
}

fn line(file: &Path, found: &Diagnostic) -> String {
    let place = found.span.map(|span| format!(":{span}")).unwrap_or_default();
    format!("{}{place}: {}", show(file), found.message)
}

/// A path for messages.
pub fn show(path: &Path) -> String {
    display_path(path.as_os_str().as_encoded_bytes())
}

/// Finds the helpers beside the running executable, or in `../libexec/proctor`.
///
/// # Errors
/// One of them is in neither place.
pub fn helpers(bin_dir: &Path) -> Result<Helpers, InstallationError> {
    Ok(Helpers {
        sandbox: find_helper(SANDBOX_HELPER, bin_dir)?,
        git: find_helper(GIT_HELPER, bin_dir)?,
        sql: find_helper(SQL_HELPER, bin_dir)?,
    })
}

/// Finds `proctord`, as the helpers.
///
/// # Errors
/// It is in neither place.
pub fn daemon(bin_dir: &Path) -> Result<PathBuf, InstallationError> {
    find_helper(DAEMON, bin_dir)
}

fn find_helper(name: &str, bin_dir: &Path) -> Result<PathBuf, InstallationError> {
    let places = [bin_dir.to_owned(), bin_dir.join("../libexec/proctor")];
    let found = places.iter().map(|place| place.join(name)).find(|path| path.is_file());
    found.ok_or_else(|| InstallationError::Environment {
        message: format!("the program `{name}` is in neither `{}` nor `{}`", show(&places[0]), show(&places[1])),
        hint: "install proctor's programs into one directory (`make build` puts them side by side)".to_owned(),
    })
}

/// Where what outlives a run is kept: the directory that was named, else that of the system's
/// daemon for root, else the user's own.
///
/// # Errors
/// No directory was named, and there is no home directory.
pub fn state_dir(named: Option<&Path>, around: &Surroundings) -> Result<PathBuf, InstallationError> {
    match named {
        Some(named) => Ok(around.cwd.join(named)),
        None if around.is_root() => Ok(PathBuf::from(SYSTEM_STATE)),
        None => around.xdg_dir("XDG_STATE_HOME", ".local/state").map(|dir| dir.join("proctor")).ok_or_else(homeless),
    }
}

/// The home directory.
///
/// # Errors
/// There is none.
pub fn home(around: &Surroundings) -> Result<PathBuf, InstallationError> {
    around.home.clone().ok_or_else(homeless)
}

fn homeless() -> InstallationError {
    InstallationError::Environment {
        message: "the caller has no home directory".to_owned(),
        hint: "set HOME to an absolute path".to_owned(),
    }
}

/// Where the daemon of this user listens, where nothing else was said: below `XDG_RUNTIME_DIR`,
/// for root at [`SYSTEM_SOCKET`], and without a directory for the session in the state directory
/// of the user (`state_dir`).
pub fn socket(around: &Surroundings, state_dir: &Path) -> PathBuf {
    if around.is_root() {
        return PathBuf::from(SYSTEM_SOCKET);
    }
    let session = around.var("XDG_RUNTIME_DIR").map(PathBuf::from).filter(|path| path.is_absolute());
    session.map_or_else(|| state_dir.join("run/proctord.sock"), |dir| dir.join(SOCKET_NAME))
}

/// The operator's config, and where it was found.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FoundConfig {
    /// What it says.
    pub operator: Operator,
    /// The file and its text; `None` where there is none, and the built-in one holds.
    pub file: Option<ConfigFile>,
}

/// A config as it is written.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ConfigFile {
    /// The file.
    pub path: PathBuf,
    /// Its text.
    pub text: String,
}

/// The operator's config: the file that was named, else the system's, else the caller's own;
/// where there is none, the built-in one. The system's stands before the caller's, so that a
/// caller does not widen what the system's operator has narrowed without saying so.
///
/// # Errors
/// The file cannot be read, or is wrong.
pub fn operator(named: Option<&Path>, around: &Surroundings) -> Result<FoundConfig, InstallationError> {
    if let Some(named) = named {
        let path = around.cwd.join(named);
        return match read_config(&path)? {
            Some(text) => parse_config(path, text),
            None => Err(unreadable_config(&path, &ErrorKind::NotFound.into())),
        };
    }
    let own = around.xdg_dir("XDG_CONFIG_HOME", ".config").map(|dir| dir.join("proctor/proctord.toml"));
    for path in [Some(PathBuf::from(SYSTEM_CONFIG)), own].into_iter().flatten() {
        if let Some(text) = read_config(&path)? {
            return parse_config(path, text);
        }
    }
    Ok(FoundConfig { operator: Operator::default(), file: None })
}

fn parse_config(path: PathBuf, text: String) -> Result<FoundConfig, InstallationError> {
    match Operator::parse(&text) {
        Ok(operator) => Ok(FoundConfig { operator, file: Some(ConfigFile { path, text }) }),
        Err(diagnostics) => Err(InstallationError::Invalid { file: path, text, diagnostics }),
    }
}

/// The text of a config; `None` where there is no such file.
fn read_config(path: &Path) -> Result<Option<String>, InstallationError> {
    match std::fs::metadata(path) {
        Ok(metadata) if metadata.len() > MAX_CONFIG || !metadata.is_file() => {
            Err(unreadable_config(path, &io::Error::other("it is no file of a reasonable size")))
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
impl Surroundings {
    /// Surroundings for tests: nothing but what is said here.
    pub(crate) fn for_tests(env: &[(&str, &str)]) -> Self {
        Self {
            env: env.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect(),
            unreadable: Vec::new(),
            home: Some(PathBuf::from("/home/a")),
            cwd: PathBuf::from("/"),
            bin_dir: PathBuf::from("/usr/bin"),
            uid: 1000,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::ffi::OsStringExt as _;

    #[test]
    fn a_variable_that_is_not_utf8_is_left_out_and_named() {
        let os = |bytes: &[u8]| OsString::from_vec(bytes.to_vec());
        let vars = [(os(b"A"), os(b"1")), (os(b"B"), os(b"\xff")), (os(b"\xfe\x1b"), os(b"x"))];
        let (env, unreadable) = readable(vars.into_iter());
        assert_eq!(env, BTreeMap::from([("A".to_owned(), "1".to_owned())]));
        assert_eq!(unreadable, ["B", "\\xfe\\x1b"]);
    }

    #[test]
    fn a_missing_helper_is_named_with_where_it_was_looked_for() {
        let error = helpers(Path::new("/proc/bin")).expect_err("no helper");
        assert_eq!(error.exit_code(), 5);
        for word in ["`proctor-sandbox`", "/bin`", "libexec/proctor`"] {
            assert!(error.to_string().contains(word), "{error}");
        }
    }

    #[test]
    fn state_and_socket_have_their_places() {
        let mut around = Surroundings::for_tests(&[]);
        let state = state_dir(None, &around).expect("there");
        assert_eq!(state, Path::new("/home/a/.local/state/proctor"));
        assert_eq!(socket(&around, &state), Path::new("/home/a/.local/state/proctor/run/proctord.sock"));
        around.env.insert("XDG_RUNTIME_DIR".into(), "/run/user/7".into());
        assert_eq!(socket(&around, &state), Path::new("/run/user/7/proctor/proctord.sock"));
        around.uid = 0;
        assert_eq!(socket(&around, &state), Path::new(SYSTEM_SOCKET));
        assert_eq!(state_dir(None, &around).expect("there"), Path::new("/var/lib/proctor"));
        assert_eq!(state_dir(Some(Path::new("x")), &around).expect("there"), Path::new("/x"));
        let homeless = Surroundings { home: None, uid: 1, ..Surroundings::for_tests(&[]) };
        assert_eq!(state_dir(None, &homeless).expect_err("nowhere").exit_code(), 5);
    }

    #[test]
    fn a_config_that_was_named_must_be_there_and_valid() {
        let around = Surroundings::for_tests(&[]);
        assert_eq!(operator(Some(Path::new("/proc/absent.toml")), &around).expect_err("absent").exit_code(), 2);
        let invalid = operator(Some(Path::new("/proc/self/status")), &around).expect_err("no TOML");
        assert!(invalid.lines()[0].starts_with("/proc/self/status:1:"), "{:?}", invalid.lines());
    }
}
