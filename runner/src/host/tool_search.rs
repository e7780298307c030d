//! Identifies the tools that a run finds, without executing them: the mounts from the host, the program files that
//! a plan names, the interpreters of scripts, and the files with which version managers select a version. Programs
//! and libraries that these programs start or load are not included.

mod shebang;
mod version_selectors;

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, File};
use std::io::{self, Read as _};
use std::os::unix::fs::MetadataExt as _;
use std::path::{Component, Path, PathBuf};

use proctor_core::model::drift::display_path;
use proctor_core::model::plan::{NeededPath, Plan, PlannedStep};
use proctor_core::sql::Dialect;
use proctor_core::text::canonical;
use proctor_core::text::digest::Sha256Hex;
use proctor_git::protocol::{CommittedFile, SHEBANG_BYTES};
use proctor_sandbox::{AccessRights, FsCredentials, Host, ToolKind, is_hidden};
use proctor_snapshot::Snapshot;
use rustix::fs::{Mode, OFlags, open};
use serde::Serialize;

use crate::host::environment;
use crate::host::host_toolchains::VERSION_DIRS;
use crate::host::image_mount::image_mount;
use crate::run::run_context::HostView;
use crate::store::directory::random_u64;

/// Maximum depth of interpreters of interpreters, the same as the kernel's.
const MAX_INTERPRETERS: usize = 4;

/// Maximum number of versions of one tool.
const MAX_VERSIONS: usize = 256;

/// Maximum size of a file of the tree whose content is read, in bytes. Version files written by a person are
/// smaller.
const MAX_TREE_FILE: u64 = 4 << 20;

/// The variables that locate toolchains and select their versions.
pub const TOOL_VARIABLES: [&str; 4] = ["HOME", "CARGO_HOME", "RUSTUP_HOME", "PATH"];

/// Returns a digest of the variables that locate toolchains, and of the `tools` that a run finds. It can be
/// recorded without a salt, since it covers only paths and the identities of files.
pub fn toolchain_env(home: &Path, env: &BTreeMap<String, String>, tools: Option<&Sha256Hex>) -> Sha256Hex {
    let variables = env.iter().filter(|(name, _)| TOOL_VARIABLES.contains(&name.as_str()));
    let mut variables: BTreeMap<&str, &str> = variables.map(|(name, value)| (name.as_str(), value.as_str())).collect();
    let home = path_text(home);
    variables.insert("HOME", &home);
    let tools = tools.map(Sha256Hex::to_string);
    variables.extend(tools.as_deref().map(|tools| ("tools", tools)));
    Sha256Hex::digest(&canonical::to_vec(&variables))
}

/// The executable bit and content of each file in a tree that is not on disk.
pub(crate) type CommittedFiles = BTreeMap<PathBuf, Option<CommittedFile>>;

/// The inputs of the search for tools.
pub(crate) struct ToolSearch<'a> {
    /// The parts of the host that a step sees.
    pub(crate) host_view: &'a HostView,
    /// Path of the tree as a step sees it.
    pub(crate) repo: &'a Path,
    /// Path of the tree on the host. It differs from `repo` for the checked-out copy of a commit.
    pub(crate) tree: &'a Path,
    /// The files of the tree if it is not on disk.
    pub(crate) committed: Option<&'a CommittedFiles>,
    /// The snapshot whose files are identified separately from the tools; without it, all files of the tree are
    /// considered.
    pub(crate) covered: Option<&'a Snapshot>,
    /// The host.
    pub(crate) host: &'a Host,
    /// User whose rights apply to paths that neither we nor the operator configured.
    pub(crate) reader: Option<FsCredentials>,
}

/// The result of a search for tools.
pub(crate) struct FoundTools {
    /// The digest of the tools.
    pub(crate) digest: Sha256Hex,
    /// True if a tool, or a file that selects its version, is in the tree.
    pub(crate) is_any_in_tree: bool,
}

/// The tools that were found. Each key is a path as a step sees it, and its value identifies the file there.
#[derive(Serialize)]
struct ToolInventory {
    shown: Vec<MountIdentity>,
    given: BTreeMap<String, String>,
    programs: BTreeMap<String, String>,
}

/// A mount or mask from the host.
#[derive(Serialize)]
struct MountIdentity {
    at: String,
    source: String,
    is_masked: bool,
    identity: Option<String>,
}

/// A file of the host, and the rights with which it is opened.
struct HostToolFile {
    path: PathBuf,
    rights: AccessRights,
}

impl ToolSearch<'_> {
    /// Finds the tools of the commands of `plan`. Their digest changes if a tool is replaced, even at the same path and in
    /// the same version, or if other directories are mounted.
    ///
    /// # Errors
    /// The search cannot run with the reader's rights.
    pub(crate) fn find(&self, plan: &Plan) -> io::Result<FoundTools> {
        let programs = self.program_identities(&all_commands(plan))?;
        let is_any_in_tree = programs.keys().any(|path| self.relative_to_tree(path).is_some());
        let tools = ToolInventory {
            shown: self.mount_identities()?,
            given: self.host_view.environment_inputs.toolchain_variables.clone(),
            programs: programs.into_iter().map(|(path, identity)| (path_text(&path), identity)).collect(),
        };
        Ok(FoundTools { digest: Sha256Hex::digest(&canonical::to_vec(&tools)), is_any_in_tree })
    }

    /// Returns the mounts from the host. A directory is identified by its inode only, because its content changes
    /// during use.
    fn mount_identities(&self) -> io::Result<Vec<MountIdentity>> {
        let files =
            self.host_view.tools.iter().map(|tool| HostToolFile { path: tool.source.clone(), rights: tool.rights });
        let identities = self.identities(&files.collect::<Vec<_>>(), IdentityScope::InodeOnly)?;
        let shown = self.host_view.tools.iter().zip(identities).map(|(tool, identity)| {
            let is_masked = tool.kind == ToolKind::Masked;
            // Steps do not see the content of a masked file, so its identity does not matter.
            MountIdentity {
                at: path_text(&tool.at),
                source: path_text(&tool.source),
                is_masked,
                identity: identity.filter(|_| !is_masked),
            }
        });
        Ok(shown.collect())
    }

    /// Identifies the programs of `commands` in each directory of their `PATH` and in every version that a version
    /// manager has: a `PATH` entry may only be a shim that selects a version. Includes the interpreters of scripts
    /// and the files that select a version.
    fn program_identities(&self, commands: &[&PlannedStep]) -> io::Result<BTreeMap<PathBuf, String>> {
        let (mut wanted, versions) = self.candidates(commands)?;
        let (mut scripts, paths) = (wanted.clone(), self.command_paths(commands));
        for _ in 0..MAX_INTERPRETERS {
            let named = self.interpreters(&scripts)?;
            let at = |program: &String| self.program_candidates(program, &paths, &versions);
            scripts = named.iter().flat_map(at).filter(|path| !wanted.contains(path)).collect();
            if scripts.is_empty() {
                break;
            }
            wanted.extend(scripts.iter().cloned());
        }
        wanted.extend(self.version_selectors(commands));
        let in_tree = |path: &PathBuf| self.committed.is_some() && self.relative_to_tree(path).is_some();
        let committed = wanted.iter().filter(|path| in_tree(path)).filter_map(|path| {
            let file = self.committed?.get(path)?.as_ref()?;
            Some((path.clone(), content_identity(file.executable, &file.sha256)))
        });
        let mut programs: BTreeMap<PathBuf, String> = committed.collect();
        let elsewhere = wanted.iter().chain(&versions).filter(|path| !in_tree(path));
        let seen = elsewhere.filter_map(|path| Some((path.clone(), self.host_file(path)?)));
        let (names, files): (Vec<PathBuf>, Vec<HostToolFile>) = seen.unzip();
        let identities = self.identities(&files, IdentityScope::Content)?;
        programs.extend(names.into_iter().zip(identities).filter_map(|(name, identity)| Some((name, identity?))));
        Ok(programs)
    }

    /// Returns the interpreters of the scripts among `files`: absolute paths, and names that `env` looks up.
    fn interpreters(&self, files: &BTreeSet<PathBuf>) -> io::Result<BTreeSet<String>> {
        let committed = |path: &PathBuf| self.committed.filter(|_| self.relative_to_tree(path).is_some());
        let known = files.iter().filter_map(|path| committed(path)?.get(path)?.as_ref()?.shebang.clone());
        let mut lines: Vec<String> = known.collect();
        let elsewhere = files.iter().filter(|path| committed(path).is_none());
        let elsewhere: Vec<HostToolFile> = elsewhere.filter_map(|path| self.host_file(path)).collect();
        for rights in [AccessRights::Ours, AccessRights::Steps] {
            let of = elsewhere.iter().filter(|file| file.rights == rights);
            lines.extend(
                self.with_rights(rights, || of.filter_map(|file| shebang_line(&file.path)).collect::<Vec<_>>())?,
            );
        }
        Ok(lines.iter().flat_map(|line| shebang::parse_programs(line)).collect())
    }

    /// Returns the start directory and `PATH` of each command.
    fn command_paths(&self, commands: &[&PlannedStep]) -> BTreeSet<(PathBuf, String)> {
        let path_of_command = |command: &&PlannedStep| {
            let environment = environment::build(command, &self.host_view.environment_inputs);
            let path = environment.get("PATH").map(|(value, _)| value.clone()).unwrap_or_default();
            (self.repo.join(command.workdir.as_str()), path)
        };
        commands.iter().map(path_of_command).collect()
    }

    /// Returns the candidate paths of a program, which is given as a path or as a name to look up.
    fn program_candidates(
        &self,
        program: &str,
        paths: &BTreeSet<(PathBuf, String)>,
        versions: &BTreeSet<PathBuf>,
    ) -> Vec<PathBuf> {
        if program.contains('/') {
            return paths.iter().map(|(workdir, _)| workdir.join(program)).collect();
        }
        let by_path = paths.iter().flat_map(|(workdir, path)| path.split(':').map(|dir| workdir.join(dir)));
        by_path.chain(versions.iter().cloned()).map(|dir| dir.join(program)).collect()
    }

    /// Returns the files with which version managers select a version: those in the home, and those in the start
    /// directories of `commands` and their ancestors. Leaves out files of the tree that are part of its identity.
    fn version_selectors(&self, commands: &[&PlannedStep]) -> Vec<PathBuf> {
        let workdirs: BTreeSet<PathBuf> =
            commands.iter().map(|command| self.repo.join(command.workdir.as_str())).collect();
        let of_home = version_selectors::HOME_SELECTORS.iter().map(|below| self.host_view.home.join(below));
        let above: BTreeSet<&Path> = workdirs.iter().flat_map(|workdir| workdir.ancestors()).collect();
        let of_directories =
            above.iter().flat_map(|dir| version_selectors::DIRECTORY_SELECTORS.iter().map(|name| dir.join(name)));
        let is_identified_separately =
            |path: &PathBuf| match (self.relative_to_tree(path), self.committed, self.covered) {
                (None, ..) => true,
                (Some(_), Some(_), _) => false,
                (Some(below), None, Some(covered)) => {
                    covered.entries.get(below.as_os_str().as_encoded_bytes()).is_none()
                }
                (Some(_), None, None) => true,
            };
        of_home.chain(of_directories).filter(is_identified_separately).collect()
    }

    /// Returns the files of the tree that may be programs of `plan`.
    ///
    /// # Errors
    /// Same as [`ToolSearch::find`].
    pub(crate) fn tree_candidates(&self, plan: &Plan) -> io::Result<Vec<PathBuf>> {
        let (wanted, _) = self.candidates(&all_commands(plan))?;
        Ok(wanted.into_iter().filter(|path| self.relative_to_tree(path).is_some()).collect())
    }

    /// Returns the candidate paths of the programs of `commands`, and the program directories of every version that
    /// a version manager has.
    fn candidates(&self, commands: &[&PlannedStep]) -> io::Result<(BTreeSet<PathBuf>, BTreeSet<PathBuf>)> {
        let mut wanted: BTreeSet<PathBuf> = BTreeSet::new();
        let versions = self.installed_versions()?;
        for command in commands {
            let program = command.cmd.program();
            let workdir = self.repo.join(command.workdir.as_str());
            if let Some(dialect) = command.sql {
                wanted.extend(self.host_view.sql_program.files(dialect).cloned());
                continue;
            }
            if program.contains('/') {
                wanted.insert(workdir.join(program));
                continue;
            }
            let environment = environment::build(command, &self.host_view.environment_inputs);
            let path = environment.get("PATH").map(|(value, _)| value.as_str()).unwrap_or_default();
            wanted.extend(path.split(':').map(|dir| workdir.join(dir).join(program)));
            wanted.extend(versions.iter().map(|version| version.join("bin").join(program)));
        }
        // An update in place changes files in a version's directory even if no plan names that version.
        Ok((wanted, versions.iter().map(|version| version.join("bin")).collect()))
    }

    /// Returns the versions that version managers in the home have, as a step sees them.
    fn installed_versions(&self) -> io::Result<Vec<PathBuf>> {
        let mut versions = Vec::new();
        for dir in VERSION_DIRS.map(|below| self.host_view.home.join(below)) {
            let Some(HostToolFile { path, rights }) = self.host_file(&dir) else { continue };
            let listed = || fs::read_dir(path).into_iter().flatten().flatten().map(|entry| entry.file_name());
            let names = self.with_rights(rights, || listed().take(MAX_VERSIONS).collect::<Vec<_>>())?;
            versions.extend(names.into_iter().map(|name| dir.join(name)));
        }
        Ok(versions)
    }

    /// Returns the host path of the file that a step sees at `path`; `None` if the step cannot see that path.
    fn host_file(&self, path: &Path) -> Option<HostToolFile> {
        let own = Dialect::ALL.into_iter().flat_map(|dialect| self.host_view.sql_program.mounts(dialect));
        let shown = self.host_view.tools.iter().chain(own).filter(|tool| tool.kind != ToolKind::Masked);
        let behind = shown.filter_map(|tool| Some((tool, path.strip_prefix(&tool.at).ok()?))).next();
        if let Some((tool, below)) = behind {
            // Joining an empty path would append a slash, which is wrong after a file name.
            let is_itself = below.as_os_str().is_empty();
            let path = if is_itself { tool.source.clone() } else { tool.source.join(below) };
            return Some(HostToolFile { path, rights: tool.rights });
        }
        if let Some(below) = self.relative_to_tree(path) {
            return Some(HostToolFile { path: self.tree.join(below), rights: AccessRights::Steps });
        }
        let is_seen = path.starts_with(self.repo) || !is_hidden(path, self.host, &self.host_view.hidden);
        is_seen.then(|| HostToolFile { path: path.to_owned(), rights: AccessRights::Steps })
    }

    /// Returns a path relative to the tree; `None` for a path outside. A path with `..` may lead out and counts as
    /// outside.
    fn relative_to_tree<'p>(&self, path: &'p Path) -> Option<&'p Path> {
        let below = path.strip_prefix(self.repo).ok()?;
        (!below.components().any(|part| part == Component::ParentDir)).then_some(below)
    }

    /// Returns the identity of each file; `None` if it does not exist.
    fn identities(&self, files: &[HostToolFile], extent: IdentityScope) -> io::Result<Vec<Option<String>>> {
        let identities_with = |rights: AccessRights| {
            let selected =
                files.iter().map(move |file| (file.rights == rights).then(|| self.identity(&file.path, extent)));
            self.with_rights(rights, || selected.map(Option::flatten).collect::<Vec<_>>())
        };
        // Two passes, one for each kind of rights, so that each set of rights is taken on only once.
        let (ours, steps) = (identities_with(AccessRights::Ours)?, identities_with(AccessRights::Steps)?);
        Ok(ours.into_iter().zip(steps).map(|(ours, steps)| ours.or(steps)).collect())
    }

    fn identity(&self, path: &Path, extent: IdentityScope) -> Option<String> {
        // Most candidate paths do not exist.
        fs::symlink_metadata(path).ok()?;
        let of_the_tree = if extent == IdentityScope::Content { tree_file_identity(self.tree, path) } else { None };
        of_the_tree.or_else(|| stat_identity(path, extent))
    }

    fn with_rights<T: Send>(&self, rights: AccessRights, look: impl FnOnce() -> T + Send) -> io::Result<T> {
        match self.reader.filter(|_| rights == AccessRights::Steps) {
            Some(reader) => reader.run(look),
            None => Ok(look()),
        }
    }
}

fn all_commands(plan: &Plan) -> Vec<&PlannedStep> {
    let commands = plan.skills.iter().flat_map(|skill| &skill.steps);
    let preparing = plan.skills.iter().flat_map(|skill| &skill.needs_paths).filter_map(NeededPath::prepare);
    commands.chain(plan.toolchain.iter().map(|check| &check.run)).chain(preparing).collect()
}

/// How much of a directory its identity covers.
#[derive(Clone, Copy, PartialEq, Eq)]
enum IdentityScope {
    /// The device and inode.
    InodeOnly,
    /// Also the mode, size and times, which change with the entries.
    Content,
}

/// Returns the first line of a script after its `#!`; `None` if the file is not a script.
fn shebang_line(path: &Path) -> Option<String> {
    let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
    let file = fs::metadata(path).ok().filter(fs::Metadata::is_file).and_then(|_| {
        let file = File::from(open(path, flags, Mode::empty()).ok()?);
        file.metadata().ok()?.is_file().then_some(file)
    })?;
    let mut head = Vec::with_capacity(SHEBANG_BYTES);
    file.take(SHEBANG_BYTES as u64).read_to_end(&mut head).ok()?;
    CommittedFile::parse_shebang(&head)
}

/// Identifies a file of the tree by mode and content, like a snapshot, so that an edit followed by its reversal
/// leaves the identity unchanged. `None` if the file is outside the tree or too large, or cannot be read.
fn tree_file_identity(tree: &Path, path: &Path) -> Option<String> {
    let real = fs::canonicalize(path).ok().filter(|real| real.starts_with(tree))?;
    // The path may now refer to another file. `O_NONBLOCK` keeps the open from waiting for a FIFO's writer.
    let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let file = File::from(open(&real, flags, Mode::empty()).ok()?);
    let found = file.metadata().ok().filter(|found| found.is_file() && found.len() <= MAX_TREE_FILE)?;
    let mut bytes = Vec::new();
    file.take(MAX_TREE_FILE).read_to_end(&mut bytes).ok()?;
    let is_executable = found.mode() & 0o100 != 0;
    Some(content_identity(is_executable, &Sha256Hex::digest(&bytes)))
}

fn content_identity(is_executable: bool, sha256: &Sha256Hex) -> String {
    format!("{is_executable}:{sha256}")
}

/// Identifies a file by its stat data, which changes if the file is replaced or written: only root can set
/// `st_ctime`. The identity of a file in a file system image contains the mount, because another image can have the same
/// times. `None` if it does not exist.
fn stat_identity(path: &Path, extent: IdentityScope) -> Option<String> {
    let found = fs::metadata(path).ok()?;
    let which = format!("{}:{}", found.dev(), found.ino());
    if found.is_dir() && extent == IdentityScope::InodeOnly {
        return Some(which);
    }
    let (mode, size) = (found.mode(), found.size());
    let written = format!("{}.{:09}", found.mtime(), found.mtime_nsec());
    let changed = format!("{}.{:09}", found.ctime(), found.ctime_nsec());
    // If the image is unknown, two searches never find the same tools.
    let image = image_mount(path).unwrap_or_else(|_| random_u64().ok().map(|number| number.to_string()));
    let image = image.unwrap_or_default();
    Some(format!("{which}:{mode:o}:{size}:{written}:{changed}:{image}"))
}

fn path_text(path: &Path) -> String {
    display_path(path.as_os_str().as_encoded_bytes())
}
