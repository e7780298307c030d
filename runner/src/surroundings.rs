//! What of the host a step may see beyond the tree: toolchains below the hidden homes, the
//! variables and programs that come with them, and what of them is masked. Looked up for each
//! run. What holds credentials is known by `credentials`.

mod credentials;
mod secrets;

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io;
use std::path::{Component, Path, PathBuf};

use proctor_core::spec::Operator;
use proctor_sandbox::{Reader, Rights, ToolKind, ToolMount};

use credentials::Credentials;
pub(crate) use secrets::secrets_of;

/// What toolchains need of a home, all of it shown read-only. What is not named here stays
/// hidden: credentials, histories, keys.
const BELOW_HOME: [&str; 15] = [
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
];

/// What cargo needs of `CARGO_HOME`. Its lock files go to the directory itself, which is empty
/// and writable inside; `credentials.toml` is not named.
const OF_CARGO: [&str; 3] = ["bin", "registry", "git"];

/// What rustup needs of `RUSTUP_HOME`; it makes `tmp` and `update-hashes` beside these.
const OF_RUSTUP: [&str; 2] = ["toolchains", "settings.toml"];

/// Directories below a home whose entries are versions, and may be links to where those lie.
pub(crate) const VERSIONS: [&str; 3] = [".rustup/toolchains", ".pyenv/versions", ".nvm/versions/node"];

/// Directories that people install into by hand. Nothing hides them, but what lies in them may
/// be a link to what is hidden.
const INSTALLED: [&str; 2] = ["/opt", "/usr/local"];

/// Directories of programs below a home, in the order of `PATH`.
const PROGRAMS: [&str; 9] = [
    ".cargo/bin",
    ".pyenv/shims",
    ".pyenv/bin",
    ".volta/bin",
    ".npm-global/bin",
    "go/bin",
    ".local/go/bin",
    ".local/bin",
    ".nvm/current/bin",
];

const SYSTEM_PATH: [&str; 7] =
    ["/usr/local/go/bin", "/usr/local/sbin", "/usr/local/bin", "/usr/sbin", "/usr/bin", "/sbin", "/bin"];

/// Where toolchains are looked for.
pub(crate) struct Look<'a> {
    /// The caller's home.
    pub home: &'a Path,
    /// Who must be able to reach what is found there; `None` where that is us. What the operator
    /// names is reached by us, unless it lies in that home: there its owner says what a path leads to.
    pub reader: Option<Reader>,
    /// Whose mounts and masks count too; `~/` is the home.
    pub operator: &'a Operator,
    /// The caller's environment.
    pub caller: &'a BTreeMap<String, String>,
    /// What no toolchain may show: the repository, which a step sees by its layers alone, and
    /// our state.
    pub kept: [&'a Path; 2],
    /// An empty directory, which stands in for directories that are masked.
    pub empty: &'a Path,
    /// Whether a step does not see a path unless a tool shows it.
    pub is_hidden: &'a (dyn Fn(&Path) -> bool + Sync),
}

/// The toolchains that were found.
#[derive(Debug, Default)]
pub(crate) struct Toolchains {
    /// What is shown and what of it is masked, in the order in which it is put in place.
    pub mounts: Vec<ToolMount>,
    /// `PATH`, toolchains first.
    pub path: Vec<String>,
    /// Variables that the mounted toolchains need.
    pub env: BTreeMap<String, String>,
}

impl Toolchains {
    /// Finds what is there: the built-in list below the home and the operator's own paths.
    /// Wherever the caller's `CARGO_HOME` and `RUSTUP_HOME` lie, inside they appear at their
    /// default places in the home, which are writable around the mounts.
    ///
    /// # Errors
    /// It cannot be looked with the rights of the reader.
    pub(crate) fn find(look: &Look<'_>) -> io::Result<Self> {
        let place = |name: &str, default: &str| match look.caller.get(name).map(PathBuf::from) {
            Some(path) if path.is_absolute() => path,
            _ => look.home.join(default),
        };
        let (cargo, rustup) = (place("CARGO_HOME", ".cargo"), place("RUSTUP_HOME", ".rustup"));
        let mut shown = Shown::new(look);
        let by_operator = look.operator.tool_mounts.iter().map(|path| expand(path, look.home));
        let (in_the_home, elsewhere): (Vec<_>, Vec<_>) = by_operator.partition(|path| path.starts_with(look.home));
        elsewhere.iter().for_each(|path| shown.by_operator(path));
        let (places, env) = look.as_reader(|| {
            shown.rights = look.rights();
            in_the_home.iter().for_each(|path| shown.by_operator(path));
            shown.built_in(&cargo, &rustup);
            shown.versions();
            (shown.finish(), env(&cargo, &rustup))
        })?;
        let masks = Credentials { look, cargo: &cargo, places: &places }.masks()?;
        let path = path(look, &places);
        let mounts = places.into_iter().map(|(at, Place { source, rights })| {
            let kind = ToolKind::ReadOnly;
            ToolMount { source, at, kind, rights }
        });
        Ok(Self { mounts: mounts.chain(masks).collect(), path, env })
    }
}

impl Look<'_> {
    /// Does `work` with the rights of the reader.
    fn as_reader<T: Send>(&self, work: impl FnOnce() -> T + Send) -> io::Result<T> {
        match self.reader {
            Some(reader) => reader.look(work),
            None => Ok(work()),
        }
    }

    /// With whose rights that is reached again which was found so.
    fn rights(&self) -> Rights {
        self.reader.map_or(Rights::Ours, |_| Rights::Steps)
    }
}

/// Where something lies, all links followed, and with whose rights that was found.
#[derive(Debug, Clone)]
struct Place {
    source: PathBuf,
    rights: Rights,
}

/// Where something of the host appears → where it lies.
type Places = BTreeMap<PathBuf, Place>;

/// What is going to be shown.
struct Shown<'a> {
    look: &'a Look<'a>,
    /// The homes and scratch directories that are never shown as a whole, links followed.
    kept: Vec<PathBuf>,
    /// With whose rights is looked.
    rights: Rights,
    places: Places,
}

impl<'a> Shown<'a> {
    fn new(look: &'a Look<'a>) -> Self {
        let fixed = ["/root", "/home", "/run", "/tmp", "/var/tmp"].map(Path::new);
        let kept = fixed.into_iter().chain(look.kept).chain([look.home]);
        let kept = kept.map(|path| fs::canonicalize(path).unwrap_or_else(|_| path.to_owned())).collect();
        Self { look, kept, rights: Rights::Ours, places: Places::new() }
    }

    fn built_in(&mut self, cargo: &Path, rustup: &Path) {
        let home = self.look.home;
        OF_CARGO.iter().for_each(|name| self.add(home.join(".cargo").join(name), &cargo.join(name)));
        OF_RUSTUP.iter().for_each(|name| self.add(home.join(".rustup").join(name), &rustup.join(name)));
        BELOW_HOME.iter().for_each(|below| self.add(home.join(below), &home.join(below)));
        // Cargo's config tells where its registry is replaced, and may hold tokens. With a token
        // in it, it stays hidden.
        for name in ["config.toml", "config"] {
            let source = cargo.join(name);
            if source.exists() && !credentials::holds_secret(&source) {
                self.add(home.join(".cargo").join(name), &source);
            }
        }
    }

    /// What a link of the caller's own home leads to is shown only where it shows no more than
    /// a toolchain would.
    fn add(&mut self, at: PathBuf, source: &Path) {
        let Some(real) = self.reached(source) else { return };
        if !self.shows_a_home(&real) && !credentials::is_credential(&real, self.look.home) {
            self.show(at, real);
        }
    }

    /// Or what is ours, or everybody's scratch.
    fn shows_a_home(&self, real: &Path) -> bool {
        real.parent() == Some(Path::new("/home")) || self.kept.iter().any(|kept| kept.starts_with(real))
    }

    /// The operator is taken at their word: what shows too much is refused by the sandbox, with
    /// its reason.
    fn by_operator(&mut self, at: &Path) {
        if let Some(real) = self.reached(at) {
            self.show(at.to_owned(), real);
        }
    }

    /// Where a path leads; `None` where nothing is there, or only what is ours.
    fn reached(&self, source: &Path) -> Option<PathBuf> {
        let real = resolved(source)?;
        let [_, state] = self.look.kept;
        (!real.starts_with(state)).then_some(real)
    }

    /// Under its own name, and where links lead to it by their text: what was installed there
    /// knows itself by that name.
    fn show(&mut self, at: PathBuf, real: PathBuf) {
        let hidden = |path: &Path| (self.look.is_hidden)(path) && path.components().all(is_plain);
        let [repo, _] = self.look.kept;
        // The repository is seen anyway, by its layers.
        if real != at && hidden(&real) && !real.starts_with(repo) {
            self.places.insert(real.clone(), Place { source: real.clone(), rights: self.rights });
        }
        // A link in a place that is seen leads on by itself.
        if hidden(&at) {
            self.places.insert(at, Place { source: real, rights: self.rights });
        }
    }

    /// A version may be a link to where it was built.
    fn versions(&mut self) {
        let below_home = VERSIONS.map(|below| self.look.home.join(below));
        let shown = below_home.iter().filter_map(|dir| self.places.iter().find_map(|place| behind(dir, place)));
        let dirs: Vec<PathBuf> = shown.chain(INSTALLED.map(PathBuf::from)).collect();
        let entries = dirs.iter().filter_map(|dir| fs::read_dir(dir).ok()).flatten().flatten();
        let links: Vec<PathBuf> = entries.map(|entry| entry.path()).filter(|path| path.is_symlink()).collect();
        for link in links.iter().filter(|link| link.is_dir()) {
            if let Ok(text) = fs::read_link(link) {
                self.add(link.with_file_name(text), link);
            }
        }
    }

    /// What lies below another place is seen there.
    fn finish(self) -> Places {
        let mut last: Option<PathBuf> = None;
        let mut places = self.places;
        // The order of the map is that of the components: a parent stands before its children.
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

/// Returns the path of what stands at `path`, without links; `None` where nothing can be reached there. Most of the
/// paths that are looked for are not there, and one look says so; resolving a path takes one for each of its parts.
fn resolved(path: &Path) -> Option<PathBuf> {
    path.exists().then(|| fs::canonicalize(path).ok()).flatten()
}

/// Where `dir` lies on the host, if it is what `place` shows or lies in that.
fn behind(dir: &Path, (at, place): (&PathBuf, &Place)) -> Option<PathBuf> {
    dir.strip_prefix(at).ok().map(|below| place.source.join(below))
}

fn is_plain(part: Component<'_>) -> bool {
    matches!(part, Component::RootDir | Component::Normal(_))
}

fn env(cargo: &Path, rustup: &Path) -> BTreeMap<String, String> {
    let mut env = BTreeMap::new();
    if cargo.exists() {
        env.insert("CARGO_NET_OFFLINE".to_owned(), "true".to_owned());
    }
    if rustup.exists() {
        // A missing toolchain is an answer; trying to fetch one without a network is not.
        env.insert("RUSTUP_AUTO_INSTALL".to_owned(), "0".to_owned());
    }
    env
}

/// The caller's own choice among several versions (nvm, pyenv) is an entry of its `PATH` below
/// what is shown or installed by hand; no other entry is taken.
fn path(look: &Look<'_>, places: &Places) -> Vec<String> {
    let shown = |path: &Path| places.keys().any(|at| path.starts_with(at));
    let installed = |path: &Path| INSTALLED.iter().any(|dir| path.starts_with(dir)) && !(look.is_hidden)(path);
    let callers = look.caller.get("PATH").map(String::as_str).unwrap_or_default().split(':');
    let taken = |entry: &&str| {
        let path = Path::new(entry);
        path.components().all(is_plain) && path.is_absolute() && (shown(path) || installed(path))
    };
    let mut path: Vec<String> = callers.filter(taken).map(str::to_owned).collect();
    let programs = PROGRAMS.iter().map(|below| look.home.join(below));
    path.extend(programs.filter(|dir| shown(dir)).map(|dir| dir.display().to_string()));
    path.extend(SYSTEM_PATH.iter().map(|dir| (*dir).to_owned()));
    let mut seen = BTreeSet::new();
    path.retain(|entry| seen.insert(entry.clone()));
    path
}

fn expand(path: &str, home: &Path) -> PathBuf {
    path.strip_prefix("~/").map_or_else(|| PathBuf::from(path), |below| home.join(below))
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
mod tests;
