//! Finds the toolchains of the host that a step may see: directories below the hidden homes, their variables and
//! programs, and the credentials in them to mask. Each run looks them up again. The module `credentials` recognizes
//! credentials.

mod credentials;
mod secret_variables;

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io;
use std::path::{Component, Path, PathBuf};

use proctor_core::spec::OperatorConfig;
use proctor_sandbox::{AccessRights, FsCredentials, ToolKind, ToolMount};

use credentials::CredentialSearch;
pub(crate) use secret_variables::caller_redactor;

/// Paths below a home that toolchains need; all are mounted read-only. Everything else is hidden: credentials,
/// histories, keys.
const HOME_TOOL_PATHS: [&str; 46] = [
    ".pyenv",
    ".nvm",
    ".volta",
    ".npm-global",
    ".npm/_cacache",
    "go/bin",
    "go/pkg/mod",
    "sdk",
    ".local/bin",
    ".local/lib",
    ".local/go",
    ".local/pipx/venvs",
    ".local/share/pipx/venvs",
    ".local/share/uv/python",
    ".local/share/uv/tools",
    // Version managers: installed versions, and the programs that select one.
    ".local/share/mise/installs",
    ".local/share/mise/shims",
    ".local/share/mise/plugins",
    ".asdf",
    ".local/share/fnm",
    ".fnm",
    ".rbenv",
    ".sdkman/candidates",
    ".proto/bin",
    ".proto/shims",
    ".proto/tools",
    // JavaScript runtimes and package managers.
    ".bun/bin",
    ".bun/install/global",
    ".deno/bin",
    ".local/share/pnpm",
    // Poetry, and the virtual environments that it creates outside of repositories.
    ".local/share/pypoetry/venv",
    ".cache/pypoetry/virtualenvs",
    // Conda and its relatives.
    "miniconda3",
    "anaconda3",
    "miniforge3",
    "mambaforge",
    "micromamba",
    ".local/share/mamba",
    // Homebrew in the home.
    ".linuxbrew/bin",
    ".linuxbrew/sbin",
    ".linuxbrew/Cellar",
    ".linuxbrew/opt",
    ".linuxbrew/lib",
    ".linuxbrew/include",
    ".linuxbrew/share",
    ".linuxbrew/etc/ca-certificates",
];

/// The stores of package managers below a home. Their programs write to them even to read: they lock the store, or
/// update its index.
const PACKAGE_STORES: [&str; 17] = [
    ".npm/_cacache",
    ".cargo/registry",
    ".cargo/git",
    "go/pkg/mod",
    ".cache/uv",
    ".local/share/uv/tools",
    ".local/share/uv/python",
    ".cache/pip",
    ".cache/pypoetry/cache",
    ".cache/pypoetry/artifacts",
    ".local/share/pnpm",
    ".cache/pnpm",
    ".cache/yarn",
    ".yarn/berry",
    ".cache/node/corepack",
    ".bun/install/cache",
    ".cache/deno",
];

/// The usual place of Homebrew, in the home of a separate user.
const LINUXBREW: &str = "/home/linuxbrew/.linuxbrew";
/// The directories of Homebrew that hold installed software.
const LINUXBREW_DIRS: [&str; 8] = ["bin", "sbin", "Cellar", "opt", "lib", "include", "share", "etc/ca-certificates"];

/// Settings of version managers below a home. They are shown if they contain no secret.
const HOME_SELECTION_FILES: [&str; 4] = [".config/mise/config.toml", ".config/mise.toml", ".tool-versions", ".asdfrc"];

/// Entries of `CARGO_HOME` that cargo needs. Its lock files go to the directory itself, which is empty and writable
/// in the sandbox. `credentials.toml` is deliberately not listed.
const CARGO_ENTRIES: [&str; 3] = ["bin", "registry", "git"];

/// Entries of `RUSTUP_HOME` that rustup needs; it creates `tmp` and `update-hashes` next to them.
const RUSTUP_ENTRIES: [&str; 2] = ["toolchains", "settings.toml"];

/// Directories below a home whose entries are versions, or links to them.
pub(crate) const VERSION_DIRS: [&str; 3] = [".rustup/toolchains", ".pyenv/versions", ".nvm/versions/node"];

/// Directories for manually installed software. They are not hidden, but their entries may be links to hidden
/// paths.
const INSTALL_DIRS: [&str; 2] = ["/opt", "/usr/local"];

/// Program directories below a home, in the order of `PATH`.
const HOME_PROGRAM_DIRS: [&str; 21] = [
    ".cargo/bin",
    ".pyenv/shims",
    ".pyenv/bin",
    ".volta/bin",
    ".npm-global/bin",
    "go/bin",
    ".local/go/bin",
    ".local/bin",
    ".nvm/current/bin",
    ".local/share/mise/shims",
    ".asdf/shims",
    ".asdf/bin",
    ".rbenv/shims",
    ".rbenv/bin",
    ".proto/shims",
    ".proto/bin",
    ".bun/bin",
    ".deno/bin",
    ".local/share/pnpm",
    ".local/share/fnm/aliases/default/bin",
    ".linuxbrew/bin",
];

const SYSTEM_PATH: [&str; 7] =
    ["/usr/local/go/bin", "/usr/local/sbin", "/usr/local/bin", "/usr/sbin", "/usr/bin", "/sbin", "/bin"];

/// The inputs of the search for toolchains.
pub(crate) struct ToolchainSearch<'a> {
    /// The caller's home.
    pub home: &'a Path,
    /// User whose rights apply to the search; `None` uses the rights of this process. Paths that the operator
    /// configured are looked up with this process's rights. An exception are paths below the caller's home, whose owner
    /// controls their targets.
    pub reader: Option<FsCredentials>,
    /// The operator's configuration, for its mounts and masks; `~/` is the caller's home.
    pub operator: &'a OperatorConfig,
    /// The caller's environment.
    pub caller_env: &'a BTreeMap<String, String>,
    /// Paths that no toolchain may expose: the repository, which a step sees through its layers only, and the state
    /// directory.
    pub unexposed: [&'a Path; 2],
    /// An empty directory, which is mounted over masked directories.
    pub empty_dir: &'a Path,
    /// Predicate for paths that a step cannot see unless a tool mount shows them.
    pub is_hidden: &'a (dyn Fn(&Path) -> bool + Sync),
}

/// The toolchains that were found.
#[derive(Debug, Default)]
pub(crate) struct HostToolchains {
    /// The mounts and masks, in the order in which they are set up.
    pub mounts: Vec<ToolMount>,
    /// `PATH`, toolchains first.
    pub path: Vec<String>,
    /// Variables that the mounted toolchains need.
    pub env: BTreeMap<String, String>,
}

impl HostToolchains {
    /// Finds the toolchains: the built-in list below the home and the operator's paths. The caller's `CARGO_HOME`
    /// and `RUSTUP_HOME` appear in the sandbox at their default places in the home, which are writable around the
    /// mounts.
    ///
    /// # Errors
    /// The search cannot run with the reader's rights.
    pub(crate) fn find(look: &ToolchainSearch<'_>) -> io::Result<Self> {
        let tool_home = |name: &str, default: &str| match look.caller_env.get(name).map(PathBuf::from) {
            Some(path) if path.is_absolute() => path,
            _ => look.home.join(default),
        };
        let (cargo, rustup) = (tool_home("CARGO_HOME", ".cargo"), tool_home("RUSTUP_HOME", ".rustup"));
        let mut shown = ToolMountCollector::new(look);
        let by_operator = look.operator.tool_mounts.iter().map(|path| expand_home(path, look.home));
        let (in_the_home, elsewhere): (Vec<_>, Vec<_>) = by_operator.partition(|path| path.starts_with(look.home));
        elsewhere.iter().for_each(|path| shown.add_from_operator(path));
        let (places, env) = look.with_reader_rights(|| {
            shown.rights = look.reopen_rights();
            in_the_home.iter().for_each(|path| shown.add_from_operator(path));
            shown.add_built_in(&cargo, &rustup);
            shown.add_linked_versions();
            (shown.without_nested(), toolchain_variables(&cargo, &rustup))
        })?;
        let masks = CredentialSearch { search: look, cargo: &cargo, sources: &places }.masks()?;
        let path = build_path(look, &places);
        let mounts = places.into_iter().map(|(at, MountSource { source, rights })| {
            let kind = if is_store(look.home, &at, &source) { ToolKind::Store } else { ToolKind::ReadOnly };
            ToolMount { source, at, kind, rights }
        });
        Ok(Self { mounts: mounts.chain(masks).collect(), path, env })
    }
}

impl ToolchainSearch<'_> {
    /// Runs `work` with the reader's rights.
    fn with_reader_rights<T: Send>(&self, work: impl FnOnce() -> T + Send) -> io::Result<T> {
        match self.reader {
            Some(reader) => reader.run(work),
            None => Ok(work()),
        }
    }

    /// Returns the rights with which to open a path again that was found with the reader's rights.
    fn reopen_rights(&self) -> AccessRights {
        self.reader.map_or(AccessRights::Ours, |_| AccessRights::Steps)
    }
}

/// The path of an entry with all links resolved, and the rights with which it was found.
#[derive(Debug, Clone)]
struct MountSource {
    source: PathBuf,
    rights: AccessRights,
}

/// Paths in the sandbox, with their sources on the host.
type MountSources = BTreeMap<PathBuf, MountSource>;

/// The collected mounts.
struct ToolMountCollector<'a> {
    search: &'a ToolchainSearch<'a>,
    /// The homes and scratch directories that are never mounted as a whole, with links resolved.
    never_mounted: Vec<PathBuf>,
    /// The rights of the current search.
    rights: AccessRights,
    sources: MountSources,
}

impl<'a> ToolMountCollector<'a> {
    fn new(look: &'a ToolchainSearch<'a>) -> Self {
        let fixed = ["/root", "/home", "/run", "/tmp", "/var/tmp"].map(Path::new);
        let kept = fixed.into_iter().chain(look.unexposed).chain([look.home]);
        let kept = kept.map(|path| fs::canonicalize(path).unwrap_or_else(|_| path.to_owned())).collect();
        Self { search: look, never_mounted: kept, rights: AccessRights::Ours, sources: MountSources::new() }
    }

    fn add_built_in(&mut self, cargo: &Path, rustup: &Path) {
        let home = self.search.home;
        CARGO_ENTRIES.iter().for_each(|name| self.add_from_home(home.join(".cargo").join(name), &cargo.join(name)));
        RUSTUP_ENTRIES.iter().for_each(|name| self.add_from_home(home.join(".rustup").join(name), &rustup.join(name)));
        let below_home = HOME_TOOL_PATHS.iter().chain(&PACKAGE_STORES);
        below_home.for_each(|below| self.add_from_home(home.join(below), &home.join(below)));
        for name in HOME_SELECTION_FILES.map(|below| home.join(below)) {
            if name.exists() && !credentials::contains_secret(&name) {
                self.add_from_home(name.clone(), &name);
            }
        }
        LINUXBREW_DIRS
            .map(|name| Path::new(LINUXBREW).join(name))
            .iter()
            .for_each(|dir| self.add_from_home(dir.clone(), dir));
        // Cargo's config names registry replacements and may hold tokens. A config with a token is not mounted.
        for name in ["config.toml", "config"] {
            let source = cargo.join(name);
            if source.exists() && !credentials::contains_secret(&source) {
                self.add_from_home(home.join(".cargo").join(name), &source);
            }
        }
    }

    /// Adds a path from the caller's home. A link there is followed only if its target exposes no more than a
    /// toolchain would.
    fn add_from_home(&mut self, at: PathBuf, source: &Path) {
        let Some(real) = self.resolve_outside_state(source) else { return };
        if !self.exposes_home(&real) && !credentials::is_credential(&real, self.search.home) {
            self.mount(at, real);
        }
    }

    /// Returns whether a mount of `real` would expose a home, the repository, the state directory, or shared
    /// scratch space.
    fn exposes_home(&self, real: &Path) -> bool {
        real.parent() == Some(Path::new("/home")) || self.never_mounted.iter().any(|kept| kept.starts_with(real))
    }

    /// Adds a path that the operator configured, without these restrictions. The sandbox refuses a mount that
    /// exposes too much, and reports the reason.
    fn add_from_operator(&mut self, at: &Path) {
        if let Some(real) = self.resolve_outside_state(at) {
            self.mount(at.to_owned(), real);
        }
    }

    /// Returns the resolved path; `None` if it does not exist or is inside the state directory.
    fn resolve_outside_state(&self, source: &Path) -> Option<PathBuf> {
        let real = resolve_links(source)?;
        let [_, state] = self.search.unexposed;
        (!real.starts_with(state)).then_some(real)
    }

    /// Mounts `real` at its own path, because installed software refers to itself by that path, and at `at`, where
    /// a link leads to it.
    fn mount(&mut self, at: PathBuf, real: PathBuf) {
        let hidden = |path: &Path| (self.search.is_hidden)(path) && path.components().all(is_plain_component);
        let [repo, _] = self.search.unexposed;
        // The repository needs no mount: steps see it through its layers.
        if real != at && hidden(&real) && !real.starts_with(repo) {
            self.sources.insert(real.clone(), MountSource { source: real.clone(), rights: self.rights });
        }
        // In a visible directory, the link itself already leads to the target.
        if hidden(&at) {
            self.sources.insert(at, MountSource { source: real, rights: self.rights });
        }
    }

    /// Adds the targets of links in version directories and in [`INSTALL_DIRS`]: a version may be a link to where it
    /// was built.
    fn add_linked_versions(&mut self) {
        let below_home = VERSION_DIRS.map(|below| self.search.home.join(below));
        let shown = below_home.iter().filter_map(|dir| self.sources.iter().find_map(|place| host_dir(dir, place)));
        let dirs: Vec<PathBuf> = shown.chain(INSTALL_DIRS.map(PathBuf::from)).collect();
        let entries = dirs.iter().filter_map(|dir| fs::read_dir(dir).ok()).flatten().flatten();
        let links: Vec<PathBuf> = entries.map(|entry| entry.path()).filter(|path| path.is_symlink()).collect();
        for link in links.iter().filter(|link| link.is_dir()) {
            if let Ok(text) = fs::read_link(link) {
                self.add_from_home(link.with_file_name(text), link);
            }
        }
    }

    /// Drops every mount that is below another one.
    fn without_nested(self) -> MountSources {
        let mut last: Option<PathBuf> = None;
        let mut places = self.sources;
        // The map sorts by path components, so a parent precedes its children.
        places.retain(|at, _| {
            let nested = last.as_ref().is_some_and(|parent| at.starts_with(parent));
            if !nested {
                last = Some(at.clone());
            }
            !nested
        });
        places
    }
}

/// Returns `path` with all links resolved; `None` if it cannot be reached. Most of the paths do not exist, and a
/// single system call detects that, while resolving takes one call for each component.
fn resolve_links(path: &Path) -> Option<PathBuf> {
    path.exists().then(|| fs::canonicalize(path).ok()).flatten()
}

/// Returns the path of `dir` on the host, if `dir` is the mount `place` or below it.
fn host_dir(dir: &Path, (at, place): (&PathBuf, &MountSource)) -> Option<PathBuf> {
    dir.strip_prefix(at).ok().map(|below| place.source.join(below))
}

fn is_plain_component(part: Component<'_>) -> bool {
    matches!(part, Component::RootDir | Component::Normal(_))
}

fn toolchain_variables(cargo: &Path, rustup: &Path) -> BTreeMap<String, String> {
    let mut env = BTreeMap::new();
    if cargo.exists() {
        env.insert("CARGO_NET_OFFLINE".to_owned(), "true".to_owned());
    }
    if rustup.exists() {
        // A missing toolchain must fail at once instead of attempting a download without network.
        env.insert("RUSTUP_AUTO_INSTALL".to_owned(), "0".to_owned());
    }
    env
}

/// Builds `PATH`. Of the caller's `PATH`, only entries below mounted toolchains or manually installed software are
/// used: they express the caller's choice among several versions (nvm, pyenv).
fn build_path(search: &ToolchainSearch<'_>, places: &MountSources) -> Vec<String> {
    let shown = |path: &Path| places.keys().any(|at| path.starts_with(at));
    let installed = |path: &Path| INSTALL_DIRS.iter().any(|dir| path.starts_with(dir)) && !(search.is_hidden)(path);
    let caller_entries = search.caller_env.get("PATH").map(String::as_str).unwrap_or_default().split(':');
    let is_accepted = |entry: &&str| {
        let path = Path::new(*entry);
        path.components().all(is_plain_component) && path.is_absolute() && (shown(path) || installed(path))
    };
    // Some version managers put a hidden link to the selected version into `PATH`.
    let behind_link = |entry: &str| {
        let real = fs::canonicalize(entry).ok()?.into_os_string().into_string().ok()?;
        is_accepted(&real.as_str()).then_some(real)
    };
    let accept = |entry: &str| if is_accepted(&entry) { Some(entry.to_owned()) } else { behind_link(entry) };
    let mut path: Vec<String> = caller_entries.filter(|entry| entry.starts_with('/')).filter_map(accept).collect();
    let programs = HOME_PROGRAM_DIRS.iter().map(|below| search.home.join(below));
    let programs = programs.chain(["bin", "sbin"].map(|name| Path::new(LINUXBREW).join(name)));
    path.extend(programs.filter(|dir| shown(dir)).map(|dir| dir.display().to_string()));
    path.extend(SYSTEM_PATH.iter().map(|dir| (*dir).to_owned()));
    let mut seen = BTreeSet::new();
    path.retain(|entry| seen.insert(entry.clone()));
    path
}

/// Returns whether a mount is a package store, which must be writable for the programs that use it.
fn is_store(home: &Path, at: &Path, source: &Path) -> bool {
    PACKAGE_STORES.iter().any(|below| at == home.join(below)) && source.is_dir()
}

fn expand_home(path: &str, home: &Path) -> PathBuf {
    path.strip_prefix("~/").map_or_else(|| PathBuf::from(path), |below| home.join(below))
}

/// Directories that programs need. They stay visible even if a repository is directly below one of them.
const NEVER_HIDDEN_DIRS: [&str; 12] =
    ["/", "/usr", "/usr/local", "/usr/src", "/opt", "/etc", "/var", "/var/lib", "/lib", "/bin", "/sbin", "/nix"];

/// Returns the directory whose other content a step must not see: the repository's parent, which often contains
/// other repositories.
pub(crate) fn hidden_parent(repo: &Path) -> Option<PathBuf> {
    let parent = repo.parent()?;
    (!NEVER_HIDDEN_DIRS.iter().any(|never| parent == Path::new(never))).then(|| parent.to_path_buf())
}

#[cfg(test)]
mod tests;
