//! Finds the submodules of a commit whose repositories are on this machine.

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::io::Write as _;
use std::os::fd::AsRawFd as _;
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Component, Path, PathBuf};

use git2::{Config, Repository, RepositoryOpenFlags};
use proctor_core::drift::display_path;
use rustix::fs::MemfdFlags;

use super::super::GitError;
use super::super::config::{CONFIG_BYTES, Foreign, include_line};
use super::super::history::without_refs;
use super::super::object::ObjectFormat;
use super::super::objects::Objects;
use super::super::program::Places;
use super::super::reader::{Checked, Opened, check_git_dir, holds_repository, unreadable};
use super::plan::{Bounds, Leaf, LeafKind, Plan};
use super::{Part, Source, is_gitlink};
use crate::paths;

/// Maximum depth of nested submodules.
const MAX_LEVELS: usize = 16;
/// The file in which a tree maps the names of submodules to paths.
const GITMODULES: &[u8] = b".gitmodules";

/// The repository of a submodule, and the git directory that contains the repositories of its own submodules.
struct Module {
    repository: Repository,
    git_dir: PathBuf,
}

/// Visits all submodules in the plan of the top, recursively, each before its own submodules.
pub(super) fn visit(
    top: &Places,
    part: &Part<'_>,
    bounds: &mut Bounds,
    each: &mut dyn FnMut(&Part<'_>) -> Result<(), GitError>,
) -> Result<(), GitError> {
    Level { common_dir: &top.common_dir, worktree: Some(&top.worktree), part }.visit(0, bounds, each)
}

/// One repository whose submodules are visited.
struct Level<'a> {
    common_dir: &'a Path,
    /// The real work tree, if there is one.
    worktree: Option<&'a Path>,
    part: &'a Part<'a>,
}

impl Level<'_> {
    fn visit(
        &self,
        depth: usize,
        bounds: &mut Bounds,
        each: &mut dyn FnMut(&Part<'_>) -> Result<(), GitError>,
    ) -> Result<(), GitError> {
        let links: Vec<&Leaf> = self.part.plan.leaves.iter().filter(|leaf| is_gitlink(leaf)).collect();
        if links.is_empty() {
            return Ok(());
        }
        if depth >= MAX_LEVELS {
            let what = "levels of submodules".into();
            return Err(GitError::TooMany { path: self.common_dir.to_owned(), limit: MAX_LEVELS, what });
        }
        let names = self.names()?;
        for link in links {
            self.one(link, &names, depth, bounds, each)?;
        }
        Ok(())
    }

    fn one(
        &self,
        link: &Leaf,
        names: &BTreeMap<Vec<u8>, String>,
        depth: usize,
        bounds: &mut Bounds,
        each: &mut dyn FnMut(&Part<'_>) -> Result<(), GitError>,
    ) -> Result<(), GitError> {
        let module = self.find(link, names)?;
        let worktree = self.worktree.map(|top| top.join(OsStr::from_bytes(&link.path)));
        let failed = |error: git2::Error| unreadable(&module.git_dir, &error);
        let objects = Objects::of(&module.repository).map_err(failed)?;
        let commit = objects.commit(link.id).map_err(|_| self.lacks(link))?;
        let source = Source { objects, commit };
        let plan = Plan::of(&source, bounds)?;
        let path = paths::join(self.part.path, &link.path);
        let objects = module.git_dir.join("objects");
        let part = Part { path: &path, source: &source, objects: &objects, plan: &plan };
        each(&part)?;
        Level { common_dir: &module.git_dir, worktree: worktree.as_deref(), part: &part }.visit(depth + 1, bounds, each)
    }

    /// Returns the name of the submodule at each path, from the commit's `.gitmodules`. Any user may have written
    /// this file.
    fn names(&self) -> Result<BTreeMap<Vec<u8>, String>, GitError> {
        let Part { source, plan, .. } = self.part;
        let is_file = |leaf: &&Leaf| {
            leaf.path == GITMODULES && matches!(leaf.kind, LeafKind::File { .. }) && leaf.size <= CONFIG_BYTES
        };
        let Some(leaf) = plan.leaves.iter().find(is_file) else { return Ok(BTreeMap::new()) };
        let bytes = source.blob(leaf)?;
        let refused = |problem: String| source.refused(GITMODULES, problem);
        if bytes.contains(&0) {
            return Err(refused("holds a NUL byte".into()));
        }
        if let Some(line) = include_line(&bytes) {
            return Err(refused(format!("includes another file in line {line}")));
        }
        parsed(&bytes).map_err(refused)
    }

    /// Opens the repository of a submodule: in the directory where git stores it, or else in the real work tree.
    fn find(&self, link: &Leaf, names: &BTreeMap<Vec<u8>, String>) -> Result<Module, GitError> {
        let kept = names.get(&link.path).map(|name| self.common_dir.join("modules").join(name));
        if let Some(git_dir) = kept.filter(|path| path.join("HEAD").is_file()) {
            let (config, foreign) = check_git_dir(&git_dir)?;
            if let Some(foreign) = foreign {
                let repository = objects_of(&foreign, &git_dir)?;
                return Ok(Module { repository, git_dir });
            }
            let flags = RepositoryOpenFlags::NO_SEARCH | RepositoryOpenFlags::BARE;
            let none: [&OsStr; 0] = [];
            let repository =
                Repository::open_ext(&git_dir, flags, none).map_err(|error| unreadable(&git_dir, &error))?;
            repository.set_config(&config).map_err(|error| unreadable(&git_dir, &error))?;
            return Ok(Module { repository, git_dir });
        }
        match self.worktree.map(|top| top.join(OsStr::from_bytes(&link.path))) {
            Some(place) if holds_repository(&place)? => {
                let checked = Checked::at(&place)?;
                let git_dir = checked.places.common_dir.clone();
                let repository = match checked.foreign() {
                    Some(foreign) => objects_of(&foreign, &git_dir)?,
                    None => Opened::of(checked)?.repository,
                };
                Ok(Module { repository, git_dir })
            }
            _ => Err(self.lacks(link)),
        }
    }

    fn lacks(&self, link: &Leaf) -> GitError {
        GitError::Submodule { path: display_path(&link.path), commit: link.id.to_string() }
    }
}

/// Opens a submodule in a format of which libgit2 can read only the objects.
fn objects_of(foreign: &Foreign, git_dir: &Path) -> Result<Repository, GitError> {
    if foreign.objects == ObjectFormat::Sha1 {
        return without_refs(git_dir).map_err(|error| unreadable(git_dir, &error));
    }
    Err(unsupported(git_dir))
}

/// Makes the error for submodules with sha256 objects.
pub(super) fn unsupported(path: &Path) -> GitError {
    GitError::Unsupported {
        path: path.to_owned(),
        what: "submodules in the sha256 object format".to_owned(),
        mend: "without `--submodules` their directories stay empty".to_owned(),
    }
}

/// Checks that a relative path cannot leave its directory.
fn is_plain(path: &Path) -> bool {
    path.components().next().is_some() && path.components().all(|part| matches!(part, Component::Normal(_)))
}

/// Returns the names of submodules by path, from the bytes of a `.gitmodules`.
fn parsed(bytes: &[u8]) -> Result<BTreeMap<Vec<u8>, String>, String> {
    // libgit2 can only read a config from a file.
    let file = rustix::fs::memfd_create("gitmodules", MemfdFlags::CLOEXEC).map_err(|errno| errno.to_string())?;
    let mut file = std::fs::File::from(file);
    file.write_all(bytes).map_err(|error| error.to_string())?;
    let path = format!("/proc/self/fd/{}", file.as_raw_fd());
    let read = || {
        let config = Config::open(Path::new(&path))?;
        let mut names = BTreeMap::new();
        config.entries(Some("^submodule\\..*\\.path$"))?.for_each(|entry| {
            let name = entry.name().ok().and_then(|name| name.strip_prefix("submodule.")?.strip_suffix(".path"));
            if let Some(name) = name.filter(|name| is_plain(Path::new(name))) {
                names.insert(entry.value_bytes().to_vec(), name.to_owned());
            }
        })?;
        Ok(names)
    };
    read().map_err(|error: git2::Error| format!("cannot be read: {}", error.message()))
}
