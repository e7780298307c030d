//! Checks the operator's config against this machine, at the start and on reload: for example, whether an account
//! exists. `proctor-core` checks everything that does not depend on the machine.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use proctor_core::spec::{Code, Diagnostic, OperatorConfig, UserRef};
use tracing_subscriber::EnvFilter;

use crate::telemetry::ExportTarget;
use proctor_client::installation::{InstallationError, LoadedOperatorConfig};

/// Maximum length of a socket path in bytes: `sun_path` of unix(7) without the final NUL.
pub const MAX_SOCKET_PATH: usize = 107;

/// Settings of the daemon until the next reload.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ResolvedSettings {
    /// The operator's settings.
    pub operator: OperatorConfig,
    /// Path of the config; `None` without a config file.
    pub config: Option<PathBuf>,
    /// Users that may connect.
    pub allowed_users: AllowedUsers,
}

/// The users that may connect: the daemon's own user and those that the operator lists.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AllowedUsers {
    own_uid: u32,
    listed: BTreeSet<u32>,
}

impl AllowedUsers {
    /// Admits the daemon's own user and the `listed` users.
    pub fn new(own: u32, listed: impl IntoIterator<Item = u32>) -> Self {
        Self { own_uid: own, listed: listed.into_iter().collect() }
    }

    /// Returns whether a user may connect.
    pub fn allows(&self, uid: u32) -> bool {
        uid == self.own_uid || self.listed.contains(&uid)
    }

    /// Returns whether any user besides the daemon's own may connect.
    pub fn has_others(&self) -> bool {
        self.listed.iter().any(|uid| *uid != self.own_uid)
    }
}

impl ResolvedSettings {
    /// Resolves a config on this machine. `own` is the daemon's user, and `uid_of` looks up accounts.
    ///
    /// # Errors
    /// An account does not exist, the log level is invalid, or the socket path is too long.
    pub fn resolve(
        found: LoadedOperatorConfig,
        own: u32,
        uid_of: impl Fn(&str) -> Option<u32>,
    ) -> Result<Self, InstallationError> {
        let LoadedOperatorConfig { operator, file } = found;
        let diagnostics = find_problems(&operator, &uid_of);
        match file {
            Some(file) if !diagnostics.is_empty() => {
                Err(InstallationError::Invalid { file: file.path, text: file.text, diagnostics })
            }
            file => {
                let listed = operator.daemon.allow_users.iter().filter_map(|user| resolve_user(user, &uid_of));
                let admitted = AllowedUsers::new(own, listed);
                Ok(Self { operator, config: file.map(|file| file.path), allowed_users: admitted })
            }
        }
    }
}

fn find_problems(operator: &OperatorConfig, uid_of: &impl Fn(&str) -> Option<u32>) -> Vec<Diagnostic> {
    let daemon = &operator.daemon;
    let unknown = daemon.allow_users.iter().filter(|user| resolve_user(user, uid_of).is_none());
    let unknown = unknown.map(|user| match user {
        UserRef::Name(name) => format!("`daemon.allow_users`: there is no account {name:?} on this machine"),
        UserRef::Uid(uid) => format!("`daemon.allow_users`: {uid} is not a user id"),
    });
    let socket = daemon.socket.as_deref().and_then(|socket| socket_problem(Path::new(socket)));
    let level = level_problem(&daemon.log.level);
    // The environment is not part of the config, so it is left out here.
    let telemetry = ExportTarget::resolve(&operator.telemetry, &BTreeMap::new(), "proctord").err();
    let telemetry = telemetry.map(|error| format!("`telemetry`: {error}"));
    let socket = socket.map(|problem| format!("`daemon.socket` {problem}"));
    let all = unknown.chain(socket).chain(level).chain(telemetry);
    all.map(|message| Diagnostic::without_span(Code::BadConfig, message)).collect()
}

/// Returns the ID of a user. Returns `None` if there is no such account, or if the kernel uses the number for "no
/// user".
fn resolve_user(user: &UserRef, uid_of: &impl Fn(&str) -> Option<u32>) -> Option<u32> {
    match user {
        UserRef::Uid(uid) => Some(*uid).filter(|uid| *uid != u32::MAX),
        UserRef::Name(name) => uid_of(name),
    }
}

/// Returns why a socket cannot have this path, or `None` if it can.
pub fn socket_problem(path: &Path) -> Option<String> {
    let bytes = path.as_os_str().as_encoded_bytes();
    if bytes.len() > MAX_SOCKET_PATH {
        return Some(format!("has {} bytes; a socket's path has at most {MAX_SOCKET_PATH}", bytes.len()));
    }
    if bytes.contains(&0) {
        return Some("holds a NUL".to_owned());
    }
    path.file_name().is_none().then(|| "names no file".to_owned())
}

fn level_problem(level: &str) -> Option<String> {
    let error = EnvFilter::builder().parse(level).err()?;
    Some(format!("`daemon.log.level` {level:?} is not a valid filter: {error}"))
}

/// Looks up the ID of an account in the system's databases.
pub fn uid_of(name: &str) -> Option<u32> {
    nix::unistd::User::from_name(name).ok().flatten().map(|user| user.uid.as_raw())
}

#[cfg(test)]
mod tests {
    use super::*;
    use proctor_client::installation::OperatorConfigFile;

    fn settings(text: &str) -> Result<ResolvedSettings, InstallationError> {
        let operator = OperatorConfig::parse(text).expect("the core takes it");
        let file = OperatorConfigFile { path: "/etc/p.toml".into(), text: text.into() };
        ResolvedSettings::resolve(LoadedOperatorConfig { operator, file: Some(file) }, 7, |name| {
            (name == "ci").then_some(8)
        })
    }

    #[test]
    fn own_and_listed_users_may_connect() {
        let admitted = settings("[daemon]\nallow_users = ['ci', 9]\n").expect("valid").allowed_users;
        assert_eq!([7, 8, 9, 0, 10].map(|uid| admitted.allows(uid)), [true, true, true, false, false]);
        assert!(admitted.has_others());
        assert!(!settings("[daemon]\nallow_users = [7]\n").expect("valid").allowed_users.has_others());
    }

    #[test]
    fn names_everything_unknown_to_this_machine() {
        let long = "x".repeat(MAX_SOCKET_PATH);
        let text = format!(
            "[telemetry]\nendpoint = 'http://user:word@c'\n[daemon]\nallow_users = ['nobody-here', 4294967295]\nsocket = '/{long}'\n[daemon.log]\nlevel = 'loud=very'\n"
        );
        let lines = settings(&text).expect_err("five problems").lines();
        assert_eq!(lines.len(), 5, "{lines:?}");
        for (line, word) in lines.iter().zip(["nobody-here", "4294967295", "107", "loud=very", "a password"]) {
            assert!(line.starts_with("/etc/p.toml: ") && line.contains(word), "{line}");
        }
    }

    #[test]
    fn finds_account_of_root() {
        assert_eq!(uid_of("root"), Some(0));
        assert_eq!(uid_of("no such account"), None);
    }
}
