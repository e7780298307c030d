//! What of the host a step may see beyond the tree: toolchains below the hidden homes, and the
//! variables and programs that come with them. Read once, when the engine opens.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

/// Paths below a home that toolchains need, all of them mounted read-only. What is not named
/// here stays hidden: credentials, histories, keys.
const BELOW_HOME: [&str; 12] = [
    ".cargo/bin",
    ".cargo/registry",
    ".cargo/git",
    ".rustup/toolchains",
    ".rustup/settings.toml",
    ".pyenv",
    ".nvm",
    ".volta",
    "go/bin",
    "go/pkg/mod",
    ".local/bin",
    ".local/lib",
];

/// Directories of programs below a home, in the order of `PATH`.
const PROGRAMS: [&str; 7] =
    [".cargo/bin", ".pyenv/shims", ".pyenv/bin", ".volta/bin", "go/bin", ".local/bin", ".nvm/current/bin"];

const SYSTEM_PATH: [&str; 6] = ["/usr/local/sbin", "/usr/local/bin", "/usr/sbin", "/usr/bin", "/sbin", "/bin"];

/// The operator's list, made concrete for one home.
#[derive(Debug, Clone, Default)]
pub struct Toolchains {
    /// What is mounted read-only, at its own path.
    pub mounts: BTreeSet<PathBuf>,
    /// `PATH`, toolchains first.
    pub path: Vec<String>,
    /// Variables that the mounted toolchains need.
    pub env: BTreeMap<String, String>,
}

impl Toolchains {
    /// Finds what is there: the built-in list below `home` and the operator's own paths (`~/`
    /// is the home). `caller` tells where cargo, rustup and nvm live when not in the home.
    pub fn find(home: &Path, operator: &[String], caller: &BTreeMap<String, String>) -> Self {
        let mut found = Self::default();
        found.mounts.extend(BELOW_HOME.iter().map(|below| home.join(below)));
        found.mounts.extend(operator.iter().map(|path| expand(path, home)));
        found.add_cargo_config(home);
        found.mounts.retain(|path| path.exists());
        found.add_env(home, caller);
        found.add_path(home, caller);
        found
    }

    /// Cargo's config tells where its registry is replaced, and may hold tokens. With a token
    /// in it it stays hidden.
    fn add_cargo_config(&mut self, home: &Path) {
        for name in [".cargo/config.toml", ".cargo/config"] {
            let path = home.join(name);
            if std::fs::read_to_string(&path).is_ok_and(|text| !holds_secret(&text)) {
                self.mounts.insert(path);
            }
        }
    }

    fn add_env(&mut self, home: &Path, caller: &BTreeMap<String, String>) {
        let has = |below: &str| home.join(below).exists();
        if has(".cargo") || caller.contains_key("CARGO_HOME") {
            self.env.insert("CARGO_NET_OFFLINE".to_owned(), "true".to_owned());
        }
        if has(".rustup") || caller.contains_key("RUSTUP_HOME") {
            // A missing toolchain is an answer; trying to fetch one without a network is not.
            self.env.insert("RUSTUP_AUTO_INSTALL".to_owned(), "0".to_owned());
        }
        for name in ["CARGO_HOME", "RUSTUP_HOME", "RUSTUP_TOOLCHAIN"] {
            let outside = |value: &&String| name == "RUSTUP_TOOLCHAIN" || Path::new(value.as_str()).is_absolute();
            if let Some(value) = caller.get(name).filter(outside) {
                self.env.insert(name.to_owned(), value.clone());
            }
        }
    }

    /// The caller's own choice among several versions (nvm, pyenv) is an entry of its `PATH`
    /// below a mount; no other entry is taken.
    fn add_path(&mut self, home: &Path, caller: &BTreeMap<String, String>) {
        let callers = caller.get("PATH").map(String::as_str).unwrap_or_default().split(':');
        let below_mount = |entry: &&str| {
            let path = Path::new(entry);
            path.is_absolute() && self.mounts.iter().any(|mount| path.starts_with(mount))
        };
        let mut path: Vec<String> = callers.filter(below_mount).map(str::to_owned).collect();
        path.extend(
            PROGRAMS
                .iter()
                .map(|below| home.join(below))
                .filter(|dir| dir.exists())
                .map(|dir| dir.display().to_string()),
        );
        for variable in ["CARGO_HOME"] {
            path.extend(self.env.get(variable).map(|dir| format!("{dir}/bin")));
        }
        path.extend(SYSTEM_PATH.iter().map(|dir| (*dir).to_owned()));
        let mut seen = BTreeSet::new();
        path.retain(|entry| seen.insert(entry.clone()));
        self.path = path;
    }
}

fn expand(path: &str, home: &Path) -> PathBuf {
    path.strip_prefix("~/").map_or_else(|| PathBuf::from(path), |below| home.join(below))
}

fn holds_secret(text: &str) -> bool {
    let lower = text.to_ascii_lowercase();
    ["token", "secret", "password", "credential"].iter().any(|word| lower.contains(word))
}

/// Directories that programs need; a repository directly below one of them does not hide it.
const NEVER_HIDDEN: [&str; 12] =
    ["/", "/usr", "/usr/local", "/usr/src", "/opt", "/etc", "/var", "/var/lib", "/lib", "/bin", "/sbin", "/nix"];

/// The directory whose other content a step must not see: the one that the repository lies in,
/// since that is where other repositories lie.
pub fn neighbourhood(repo: &Path) -> Option<PathBuf> {
    let parent = repo.parent()?;
    (!NEVER_HIDDEN.iter().any(|never| parent == Path::new(never))).then(|| parent.to_path_buf())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn home_with(files: &[(&str, &str)]) -> tempfile::TempDir {
        let home = tempfile::tempdir().expect("temp");
        for (path, text) in files {
            let path = home.path().join(path);
            std::fs::create_dir_all(path.parent().expect("a parent")).expect("makes");
            #[expect(clippy::disallowed_methods, reason = "a fixture, not a document of ours")]
            std::fs::write(path, text).expect("writes");
        }
        home
    }

    #[test]
    fn credentials_are_never_mounted() {
        let home = home_with(&[
            (".cargo/bin/cargo", ""),
            (".cargo/credentials.toml", "token"),
            (".cargo/config.toml", "[registry]\ntoken = 'x'"),
            (".ssh/id", ""),
        ]);
        let found = Toolchains::find(home.path(), &[], &BTreeMap::new());
        assert_eq!(found.mounts, BTreeSet::from([home.path().join(".cargo/bin")]));
        assert_eq!(found.env["CARGO_NET_OFFLINE"], "true");
    }

    #[test]
    fn a_config_without_secrets_and_the_operators_paths_are_mounted() {
        let home = home_with(&[(".cargo/config.toml", "[net]\nretry = 1"), ("tools/x", "")]);
        let operator = ["~/tools".to_owned(), "~/absent".to_owned()];
        let found = Toolchains::find(home.path(), &operator, &BTreeMap::new());
        let expected = [home.path().join(".cargo/config.toml"), home.path().join("tools")];
        assert_eq!(found.mounts, BTreeSet::from(expected));
    }

    #[test]
    fn of_the_callers_path_only_what_is_mounted_counts() {
        let home = home_with(&[(".nvm/versions/node/v20/bin/node", ""), (".cargo/bin/cargo", "")]);
        let node = home.path().join(".nvm/versions/node/v20/bin").display().to_string();
        let caller = BTreeMap::from([("PATH".to_owned(), format!("/evil:{node}:relative:/usr/bin"))]);
        let path = Toolchains::find(home.path(), &[], &caller).path;
        assert_eq!(path[..2], [node, home.path().join(".cargo/bin").display().to_string()]);
        assert!(!path.contains(&"/evil".to_owned()));
        assert_eq!(path.last().map(String::as_str), Some("/bin"));
    }

    #[test]
    fn the_neighbours_of_a_repository_are_hidden_but_the_system_is_not() {
        assert_eq!(neighbourhood(Path::new("/srv/git/a")), Some("/srv/git".into()));
        assert_eq!(neighbourhood(Path::new("/opt/a")), None);
        assert_eq!(neighbourhood(Path::new("/a")), None);
    }
}
