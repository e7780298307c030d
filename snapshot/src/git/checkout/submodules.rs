//! Checks out the submodules of a commit from where their repositories lie on this machine.
//!
//! A submodule gets a git directory that is complete with the one commit: the objects of its own
//! repository are not shown to steps.

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Component, Path, PathBuf};

use git2::{Config, Repository, RepositoryOpenFlags};
use proctor_core::drift::display_path;

use super::super::GitError;
use super::super::config::Foreign;
use super::super::config::check_config;
use super::super::history::without_refs;
use super::super::object::{ObjectFormat, ObjectId};
use super::super::objects::{Objects, oid};
use super::super::program::Places;
use super::super::protocol::CheckedOut;
use super::super::reader::{Checked, Opened, check_git_dir, holds_repository, unreadable};
use super::git_dir::{self, GitDir};
use super::plan::{Bounds, Leaf, Plan};
use super::{Source, is_gitlink};
use crate::beneath;

/// How deep submodules may lie in each other.
const MAX_LEVELS: usize = 16;

/// Where submodules come from and go to.
pub(super) struct Modules<'a> {
    /// The repository that has them.
    pub(super) top: &'a Places,
    /// Where its tree was written.
    pub(super) place: &'a Path,
}

/// A repository of a submodule, and where the submodules in it have theirs.
struct Module {
    repository: Repository,
    git_dir: PathBuf,
}

impl Modules<'_> {
    /// Checks out all of a plan's submodules, and theirs.
    pub(super) fn check_out(
        &self,
        plan: &Plan,
        bounds: &mut Bounds,
        checked_out: &mut CheckedOut,
    ) -> Result<(), GitError> {
        let whole = Whole { common_dir: &self.top.common_dir, worktree: Some(&self.top.worktree), place: self.place };
        whole.level(plan, 0, bounds, checked_out)
    }
}

/// One repository whose submodules are checked out.
struct Whole<'a> {
    common_dir: &'a Path,
    /// Its real work tree, where it has one.
    worktree: Option<&'a Path>,
    place: &'a Path,
}

impl Whole<'_> {
    fn level(
        &self,
        plan: &Plan,
        depth: usize,
        bounds: &mut Bounds,
        checked_out: &mut CheckedOut,
    ) -> Result<(), GitError> {
        let links: Vec<&Leaf> = plan.leaves.iter().filter(|leaf| is_gitlink(leaf)).collect();
        if links.is_empty() {
            return Ok(());
        }
        if depth >= MAX_LEVELS {
            let what = "levels of submodules".into();
            return Err(GitError::TooMany { path: self.place.to_owned(), limit: MAX_LEVELS, what });
        }
        let names = self.names()?;
        for link in links {
            self.one(link, &names, depth, bounds, checked_out)?;
        }
        Ok(())
    }

    fn one(
        &self,
        link: &Leaf,
        names: &BTreeMap<Vec<u8>, String>,
        depth: usize,
        bounds: &mut Bounds,
        checked_out: &mut CheckedOut,
    ) -> Result<(), GitError> {
        let module = self.find(link, names)?;
        let place = self.place.join(OsStr::from_bytes(&link.path));
        let worktree = self.worktree.map(|top| top.join(OsStr::from_bytes(&link.path)));
        let failed = |error: git2::Error| unreadable(&module.git_dir, &error);
        let objects = Objects::of(&module.repository).map_err(failed)?;
        let commit = objects.commit(link.id).map_err(|_| self.lacks(link))?;
        let source = Source { objects, commit };
        let parent = place.parent().unwrap_or(self.place);
        let above = beneath::open_real(parent)
            .map_err(|error| GitError::CheckOut { path: parent.to_owned(), problem: error.to_string() })?;
        let name = crate::paths::name(&link.path);
        let (plan, written) = source.write(std::os::fd::AsFd::as_fd(&above), name, &place, bounds)?;
        let shallow = source.commit.has_parents.then(|| format!("{}\n", link.id).into_bytes());
        let (format, head) = (link.id.format(), link.id.to_string());
        let (objects, refs) = (git_dir::Objects::Own, Vec::new());
        let git = GitDir { format, head, objects, refs, shallow, exclude: None, ignore_case: false, owner: None };
        git.make(&place, Some(&written.index))?;
        pack(&module.repository, link.id, &place.join(".git/objects/pack")).map_err(failed)?;
        checked_out.files += plan.leaves.len() as u64;
        checked_out.bytes += plan.bytes;
        checked_out.lfs_pointers += written.lfs_pointers;
        let inner = Whole { common_dir: &module.git_dir, worktree: worktree.as_deref(), place: &place };
        inner.level(&plan, depth + 1, bounds, checked_out)
    }

    /// What `.gitmodules` of the commit calls the submodule at each path. It is content that
    /// anyone may have written.
    fn names(&self) -> Result<BTreeMap<Vec<u8>, String>, GitError> {
        let file = self.place.join(".gitmodules");
        if !file.symlink_metadata().is_ok_and(|found| found.is_file()) || !check_config(&file)? {
            return Ok(BTreeMap::new());
        }
        let read = || {
            let config = Config::open(&file)?;
            let mut names = BTreeMap::new();
            config.entries(Some("^submodule\\..*\\.path$"))?.for_each(|entry| {
                let name = entry.name().ok().and_then(|name| name.strip_prefix("submodule.")?.strip_suffix(".path"));
                if let Some(name) = name.filter(|name| is_plain(Path::new(name))) {
                    names.insert(entry.value_bytes().to_vec(), name.to_owned());
                }
            })?;
            Ok(names)
        };
        read().map_err(|error: git2::Error| unreadable(&file, &error))
    }

    /// Opens the repository of a submodule: where git keeps it, or else in the real work tree.
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

/// A module of a format of which libgit2 reads the objects alone.
fn objects_of(foreign: &Foreign, git_dir: &Path) -> Result<Repository, GitError> {
    if foreign.objects == ObjectFormat::Sha1 {
        return without_refs(git_dir).map_err(|error| unreadable(git_dir, &error));
    }
    Err(unsupported(git_dir))
}

/// The refusal of submodules that are named by sha256.
pub(super) fn unsupported(path: &Path) -> GitError {
    GitError::Unsupported {
        path: path.to_owned(),
        what: "submodules in the sha256 object format".to_owned(),
        mend: "without `--submodules` their directories stay empty".to_owned(),
    }
}

/// Whether a path stays where it is put.
fn is_plain(path: &Path) -> bool {
    path.components().next().is_some() && path.components().all(|part| matches!(part, Component::Normal(_)))
}

/// Writes one commit with all that its tree names as a pack.
fn pack(repository: &Repository, commit: ObjectId, into: &Path) -> Result<(), git2::Error> {
    let mut builder = repository.packbuilder()?;
    builder.insert_commit(oid(commit).map_err(|problem| git2::Error::from_str(&problem))?)?;
    builder.write(into, 0o444)
}
