//! What of the host a step may see beyond the tree: toolchains below the hidden homes, and the
//! variables and programs that come with them. Read once, when the engine opens.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

/// What toolchains need of a home, all of it mounted read-only. What is not named here stays
/// hidden: credentials, histories, keys.
const BELOW_HOME: [&str; 7] = [".pyenv", ".nvm", ".volta", "go/bin", "go/pkg/mod", ".local/bin", ".local/lib"];

/// What cargo needs of `CARGO_HOME`. Its lock files go to the directory itself, which is empty
/// and writable inside; `credentials.toml` is not named.
const OF_CARGO: [&str; 3] = ["bin", "registry", "git"];

/// What rustup needs of `RUSTUP_HOME`; it makes `tmp` and `update-hashes` beside these.
const OF_RUSTUP: [&str; 2] = ["toolchains", "settings.toml"];

/// Directories of programs below a home, in the order of `PATH`.
const PROGRAMS: [&str; 7] =
    [".cargo/bin", ".pyenv/shims", ".pyenv/bin", ".volta/bin", "go/bin", ".local/bin", ".nvm/current/bin"];

const SYSTEM_PATH: [&str; 6] = ["/usr/local/sbin", "/usr/local/bin", "/usr/sbin", "/usr/bin", "/sbin", "/bin"];

/// The operator's list, made concrete for one home.
#[derive(Debug, Clone, Default)]
pub(crate) struct Toolchains {
    /// What is mounted read-only: where it appears → where it lies.
    pub mounts: BTreeMap<PathBuf, PathBuf>,
    /// `PATH`, toolchains first.
    pub path: Vec<String>,
    /// Variables that the mounted toolchains need.
    pub env: BTreeMap<String, String>,
}

impl Toolchains {
    /// Finds what is there: the built-in list below `home` and the operator's own paths (`~/`
    /// is the home). Wherever the caller's `CARGO_HOME` and `RUSTUP_HOME` lie, inside they
    /// appear at their default places in the home, which are writable around the mounts.
    pub(crate) fn find(home: &Path, operator: &[String], caller: &BTreeMap<String, String>) -> Self {
        let place = |name: &str, default: &str| match caller.get(name).map(PathBuf::from) {
            Some(path) if path.is_absolute() => path,
            _ => home.join(default),
        };
        let (cargo, rustup) = (place("CARGO_HOME", ".cargo"), place("RUSTUP_HOME", ".rustup"));
        let mut found = Self::default();
        found.mount(OF_CARGO.iter().map(|name| (home.join(".cargo").join(name), cargo.join(name))));
        found.mount(OF_RUSTUP.iter().map(|name| (home.join(".rustup").join(name), rustup.join(name))));
        found.mount(BELOW_HOME.iter().map(|below| (home.join(below), home.join(below))));
        found.mount(operator.iter().map(|path| (expand(path, home), expand(path, home))));
        found.mount_cargo_config(home, &cargo);
        found.set_env(&cargo, &rustup);
        found.set_path(home, caller);
        found
    }

    fn mount(&mut self, wanted: impl Iterator<Item = (PathBuf, PathBuf)>) {
        self.mounts.extend(wanted.filter(|(_, source)| source.exists()));
    }

    /// Cargo's config tells where its registry is replaced, and may hold tokens. With a token
    /// in it it stays hidden.
    fn mount_cargo_config(&mut self, home: &Path, cargo: &Path) {
        for name in ["config.toml", "config"] {
            let source = cargo.join(name);
            if std::fs::read_to_string(&source).is_ok_and(|text| !holds_secret(&text)) {
                self.mounts.insert(home.join(".cargo").join(name), source);
            }
        }
    }

    fn set_env(&mut self, cargo: &Path, rustup: &Path) {
        if cargo.exists() {
            self.env.insert("CARGO_NET_OFFLINE".to_owned(), "true".to_owned());
        }
        if rustup.exists() {
            // A missing toolchain is an answer; trying to fetch one without a network is not.
            self.env.insert("RUSTUP_AUTO_INSTALL".to_owned(), "0".to_owned());
        }
    }

    /// The caller's own choice among several versions (nvm, pyenv) is an entry of its `PATH`
    /// below a mount; no other entry is taken.
    fn set_path(&mut self, home: &Path, caller: &BTreeMap<String, String>) {
        let callers = caller.get("PATH").map(String::as_str).unwrap_or_default().split(':');
        let below_mount = |entry: &&str| {
            let path = Path::new(entry);
            path.is_absolute() && self.mounts.keys().any(|mount| path.starts_with(mount))
        };
        let mut path: Vec<String> = callers.filter(below_mount).map(str::to_owned).collect();
        let programs = PROGRAMS.iter().map(|below| home.join(below));
        let mounted = |dir: &PathBuf| self.mounts.keys().any(|mount| dir.starts_with(mount));
        path.extend(programs.filter(mounted).map(|dir| dir.display().to_string()));
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
pub(crate) fn neighbourhood(repo: &Path) -> Option<PathBuf> {
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
        let bin = home.path().join(".cargo/bin");
        assert_eq!(found.mounts, BTreeMap::from([(bin.clone(), bin)]));
        assert_eq!(found.env["CARGO_NET_OFFLINE"], "true");
    }

    #[test]
    fn a_config_without_secrets_and_the_operators_paths_are_mounted() {
        let home = home_with(&[(".cargo/config.toml", "[net]\nretry = 1"), ("tools/x", "")]);
        let operator = ["~/tools".to_owned(), "~/absent".to_owned()];
        let found = Toolchains::find(home.path(), &operator, &BTreeMap::new());
        let expected = [home.path().join(".cargo/config.toml"), home.path().join("tools")];
        assert_eq!(found.mounts.into_keys().collect::<Vec<_>>(), expected);
    }

    #[test]
    fn a_cargo_home_elsewhere_appears_in_the_home() {
        let (home, elsewhere) = (home_with(&[]), home_with(&[("cargo/bin/cargo", ""), ("rustup/toolchains/x", "")]));
        let at = |name: &str| elsewhere.path().join(name).display().to_string();
        let caller = BTreeMap::from([("CARGO_HOME".to_owned(), at("cargo")), ("RUSTUP_HOME".to_owned(), at("rustup"))]);
        let found = Toolchains::find(home.path(), &[], &caller);
        assert_eq!(found.mounts[&home.path().join(".cargo/bin")], elsewhere.path().join("cargo/bin"));
        assert_eq!(found.mounts[&home.path().join(".rustup/toolchains")], elsewhere.path().join("rustup/toolchains"));
        assert_eq!(found.path[0], home.path().join(".cargo/bin").display().to_string());
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
