//! The caller: the one place that reads the environment of this process, its directory and
//! its executable. Everything else gets these as values.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::io::IsTerminal as _;
use std::path::{Path, PathBuf};

use proctor_core::drift::display_path;

/// Who called us, from where, with what.
#[derive(Debug, Clone)]
pub(crate) struct Caller {
    /// The environment, as far as it is UTF-8.
    pub env: BTreeMap<String, String>,
    /// The names, made printable, of variables whose name or value is not UTF-8. No step can
    /// be given them.
    pub unreadable: Vec<String>,
    /// The caller's home directory.
    pub home: Option<PathBuf>,
    /// The current directory.
    pub cwd: PathBuf,
    /// The directory of the running executable.
    pub bin_dir: PathBuf,
    /// Whether we are root.
    pub is_root: bool,
    /// Whether standard output is a terminal.
    pub stdout_is_terminal: bool,
    /// Whether standard error is a terminal.
    pub stderr_is_terminal: bool,
}

impl Caller {
    /// Reads what the process was started with.
    ///
    /// # Errors
    /// The current directory or our own executable cannot be named.
    #[expect(clippy::disallowed_methods, reason = "this is the one place that reads the caller's environment")]
    pub(crate) fn read() -> std::io::Result<Self> {
        let (env, unreadable) = readable(std::env::vars_os());
        let executable = std::env::current_exe()?;
        Ok(Self {
            env,
            unreadable,
            home: std::env::home_dir().filter(|home| home.is_absolute()),
            cwd: std::env::current_dir()?,
            bin_dir: executable.parent().map(Path::to_owned).unwrap_or_default(),
            is_root: rustix::process::geteuid().is_root(),
            stdout_is_terminal: std::io::stdout().is_terminal(),
            stderr_is_terminal: std::io::stderr().is_terminal(),
        })
    }

    /// A variable that is set and not empty.
    pub(crate) fn var(&self, name: &str) -> Option<&str> {
        self.env.get(name).map(String::as_str).filter(|value| !value.is_empty())
    }

    /// A directory of the XDG base directory specification: `variable` where it holds an
    /// absolute path, else `fallback` below the home directory.
    pub(crate) fn xdg_dir(&self, variable: &str, fallback: &str) -> Option<PathBuf> {
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

#[cfg(test)]
impl Caller {
    /// A caller for tests: nothing but what is said here.
    pub(crate) fn for_tests(env: &[(&str, &str)]) -> Self {
        Self {
            env: env.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect(),
            unreadable: Vec::new(),
            home: Some(PathBuf::from("/home/a")),
            cwd: PathBuf::from("/"),
            bin_dir: PathBuf::from("/usr/bin"),
            is_root: false,
            stdout_is_terminal: false,
            stderr_is_terminal: false,
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
    fn relative_xdg_directories_are_ignored() {
        let caller = Caller::for_tests(&[("XDG_STATE_HOME", "x"), ("XDG_CONFIG_HOME", "/c")]);
        assert_eq!(caller.xdg_dir("XDG_STATE_HOME", ".local/state"), Some("/home/a/.local/state".into()));
        assert_eq!(caller.xdg_dir("XDG_CONFIG_HOME", ".config"), Some("/c".into()));
    }
}
