//! Finds the submodules of a commit whose repositories are on this machine.

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::io::Write as _;
use std::os::fd::AsRawFd as _;
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Component, Path, PathBuf};

use git2::{Config, Repository, RepositoryOpenFlags};
use proctor_core::model::drift::display_path;
use rustix::fs::MemfdFlags;

use crate::config::bounded_read::CONFIG_BYTES;
use crate::config::config_files::{UnsupportedFormat, include_line};
use crate::error::GitError;
use crate::files::paths;
use crate::object::object_id::ObjectFormat;
use crate::repository::commit_tree::checkout_plan::{CheckoutBudget, CheckoutPlan};
use crate::repository::commit_tree::open_commit::OpenCommit;
use crate::repository::commit_tree::planned_leaf::{PlannedLeaf, PlannedLeafKind, is_gitlink};
use crate::repository::history::open_objects_only;
use crate::repository::object_reader::ObjectReader;
use crate::repository::open_repository::{
    CheckedRepository, OpenRepository, check_git_dir, is_repository, libgit2_error,
};
use crate::repository_paths::RepositoryPaths;

/// Maximum depth of nested submodules.
const MAX_LEVELS: usize = 16;
/// The file in which a tree maps the names of submodules to paths.
const GITMODULES: &[u8] = b".gitmodules";

/// The repository of a submodule, and the git directory that contains the repositories of its own submodules.
struct SubmoduleRepository {
    repository: Repository,
    git_dir: PathBuf,
}

/// Visits all submodules in the plan of the top, recursively, each before its own submodules.
pub(crate) fn visit_submodules(
    top: &RepositoryPaths,
    part: &CommitRepository<'_>,
    bounds: &mut CheckoutBudget,
    each: &mut dyn FnMut(&CommitRepository<'_>) -> Result<(), GitError>,
) -> Result<(), GitError> {
    SubmoduleParent { common_dir: &top.common_dir, worktree: Some(&top.worktree), repository: part }
        .visit(0, bounds, each)
}

/// One repository whose submodules are visited.
struct SubmoduleParent<'a> {
    common_dir: &'a Path,
    /// The real work tree, if there is one.
    worktree: Option<&'a Path>,
    repository: &'a CommitRepository<'a>,
}

impl SubmoduleParent<'_> {
    fn visit(
        &self,
        depth: usize,
        bounds: &mut CheckoutBudget,
        each: &mut dyn FnMut(&CommitRepository<'_>) -> Result<(), GitError>,
    ) -> Result<(), GitError> {
        let links: Vec<&PlannedLeaf> = self.repository.plan.leaves.iter().filter(|leaf| is_gitlink(leaf)).collect();
        if links.is_empty() {
            return Ok(());
        }
        if depth >= MAX_LEVELS {
            let what = "levels of submodules".into();
            return Err(GitError::TooMany { path: self.common_dir.to_owned(), limit: MAX_LEVELS, what });
        }
        let names = self.names_by_path()?;
        for link in links {
            self.visit_submodule(link, &names, depth, bounds, each)?;
        }
        Ok(())
    }

    fn visit_submodule(
        &self,
        link: &PlannedLeaf,
        names: &BTreeMap<Vec<u8>, String>,
        depth: usize,
        bounds: &mut CheckoutBudget,
        each: &mut dyn FnMut(&CommitRepository<'_>) -> Result<(), GitError>,
    ) -> Result<(), GitError> {
        let module = self.open_repository(link, names)?;
        let worktree = self.worktree.map(|top| top.join(OsStr::from_bytes(&link.path)));
        let failed = |error: git2::Error| libgit2_error(&module.git_dir, &error);
        let objects = ObjectReader::from_repository(&module.repository).map_err(failed)?;
        let commit = objects.commit(link.id).map_err(|_| self.missing_error(link))?;
        let source = OpenCommit { objects, commit };
        let plan = CheckoutPlan::for_commit(&source, bounds)?;
        let path = paths::join(self.repository.path, &link.path);
        let objects = module.git_dir.join("objects");
        let part = CommitRepository { path: &path, source: &source, objects: &objects, plan: &plan };
        each(&part)?;
        SubmoduleParent { common_dir: &module.git_dir, worktree: worktree.as_deref(), repository: &part }.visit(
            depth + 1,
            bounds,
            each,
        )
    }

    /// Returns the name of the submodule at each path, from the commit's `.gitmodules`. Any user may have written
    /// this file.
    fn names_by_path(&self) -> Result<BTreeMap<Vec<u8>, String>, GitError> {
        let CommitRepository { source, plan, .. } = self.repository;
        let is_file =
            |leaf: &&PlannedLeaf| leaf.path == GITMODULES && matches!(leaf.kind, PlannedLeafKind::File { .. });
        let Some(leaf) = plan.leaves.iter().find(is_file) else { return Ok(BTreeMap::new()) };
        let Some(bytes) = source.small_blob(leaf, CONFIG_BYTES)? else { return Ok(BTreeMap::new()) };
        parse_names(&bytes).map_err(|error| source.tree_error(GITMODULES, error.to_string()))
    }

    /// Opens the repository of a submodule: in the directory where git stores it, or else in the real work tree.
    fn open_repository(
        &self,
        link: &PlannedLeaf,
        names: &BTreeMap<Vec<u8>, String>,
    ) -> Result<SubmoduleRepository, GitError> {
        let kept = names.get(&link.path).map(|name| self.common_dir.join("modules").join(name));
        if let Some(git_dir) = kept.filter(|path| path.join("HEAD").is_file()) {
            let (config, foreign) = check_git_dir(&git_dir)?;
            if let Some(foreign) = foreign {
                let repository = open_objects(&foreign, &git_dir)?;
                return Ok(SubmoduleRepository { repository, git_dir });
            }
            let flags = RepositoryOpenFlags::NO_SEARCH | RepositoryOpenFlags::BARE;
            let none: [&OsStr; 0] = [];
            let repository =
                Repository::open_ext(&git_dir, flags, none).map_err(|error| libgit2_error(&git_dir, &error))?;
            repository.set_config(&config).map_err(|error| libgit2_error(&git_dir, &error))?;
            return Ok(SubmoduleRepository { repository, git_dir });
        }
        match self.worktree.map(|top| top.join(OsStr::from_bytes(&link.path))) {
            Some(place) if is_repository(&place)? => {
                let checked = CheckedRepository::check(&place)?;
                let git_dir = checked.paths.common_dir.clone();
                let repository = match checked.unsupported_format() {
                    Some(foreign) => open_objects(&foreign, &git_dir)?,
                    None => OpenRepository::from_checked(checked)?.repository,
                };
                Ok(SubmoduleRepository { repository, git_dir })
            }
            _ => Err(self.missing_error(link)),
        }
    }

    fn missing_error(&self, link: &PlannedLeaf) -> GitError {
        GitError::Submodule { path: display_path(&link.path), commit: link.id.to_string() }
    }
}

/// Opens a submodule in a format of which libgit2 can read only the objects.
fn open_objects(foreign: &UnsupportedFormat, git_dir: &Path) -> Result<Repository, GitError> {
    if foreign.objects == ObjectFormat::Sha1 {
        return open_objects_only(git_dir).map_err(|error| libgit2_error(git_dir, &error));
    }
    Err(unsupported_error(git_dir))
}

/// Makes the error for submodules with sha256 objects.
pub(crate) fn unsupported_error(path: &Path) -> GitError {
    GitError::Unsupported {
        path: path.to_owned(),
        what: "submodules in the sha256 object format".to_owned(),
        mend: "without `--submodules` their directories remain empty".to_owned(),
    }
}

/// Checks that a relative path cannot leave its directory.
fn has_only_normal_components(path: &Path) -> bool {
    path.components().next().is_some() && path.components().all(|part| matches!(part, Component::Normal(_)))
}

/// The reason why a `.gitmodules` cannot be read.
#[derive(Debug, thiserror::Error)]
enum GitmodulesError {
    #[error("holds a NUL byte")]
    NulByte,
    /// libgit2 would read the included file from the host.
    #[error("includes another file in line {line}")]
    Include { line: usize },
    #[error(transparent)]
    Io(#[from] std::io::Error),
    #[error("cannot be read: {}", .0.message())]
    Syntax(#[from] git2::Error),
}

/// Returns the names of submodules by path, from the bytes of a `.gitmodules`.
fn parse_names(bytes: &[u8]) -> Result<BTreeMap<Vec<u8>, String>, GitmodulesError> {
    if bytes.contains(&0) {
        return Err(GitmodulesError::NulByte);
    }
    if let Some(line) = include_line(bytes) {
        return Err(GitmodulesError::Include { line });
    }
    // libgit2 can only read a config from a file.
    let file = rustix::fs::memfd_create("gitmodules", MemfdFlags::CLOEXEC).map_err(std::io::Error::from)?;
    let mut file = std::fs::File::from(file);
    file.write_all(bytes)?;
    let path = format!("/proc/self/fd/{}", file.as_raw_fd());
    let config = Config::open(Path::new(&path))?;
    let mut names = BTreeMap::new();
    config.entries(Some("^submodule\\..*\\.path$"))?.for_each(|entry| {
        let name = entry.name().ok().and_then(|name| name.strip_prefix("submodule.")?.strip_suffix(".path"));
        if let Some(name) = name.filter(|name| has_only_normal_components(Path::new(name))) {
            names.insert(entry.value_bytes().to_vec(), name.to_owned());
        }
    })?;
    Ok(names)
}

/// A repository whose commit is read: the top repository or a submodule.
pub(crate) struct CommitRepository<'a> {
    /// The path of the submodule; empty for the top.
    pub(crate) path: &'a [u8],
    pub(crate) source: &'a OpenCommit<'a>,
    /// The directory of the objects.
    pub(crate) objects: &'a Path,
    pub(crate) plan: &'a CheckoutPlan,
}
