//! Checks a repository before libgit2 opens it, and opens it.

use std::ffi::OsStr;
use std::fs::symlink_metadata;
use std::io::ErrorKind;
use std::os::fd::{AsFd as _, OwnedFd};
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use git2::{Config, ConfigLevel, ErrorCode, Index, Repository, RepositoryOpenFlags};
use rustix::fs::{FileType, Mode, OFlags};

use crate::config::bounded_read::{check_regular, io_error};
use crate::config::config_files::{
    ConfigFile, UnsupportedFormat, back_link, check_files, check_worktree, common_dir, find_unsupported_format,
    gitfile_target,
};
use crate::config::config_includes::IncludeConditions;
use crate::error::GitError;
use crate::files::read_beneath;
use crate::object::object_id::ObjectFormat;
use crate::repository_paths::RepositoryPaths;

/// A repository that passed all checks: its git directory belongs to the work tree, and its config refers to no
/// other work tree.
pub(crate) struct CheckedRepository {
    pub(crate) paths: RepositoryPaths,
    config: RepositoryConfig,
}

/// The repository's own config, including the files that it includes.
struct RepositoryConfig {
    combined: Config,
    /// The flattened texts of config files with includes. libgit2 reads them again through these descriptors.
    flattened: Vec<OwnedFd>,
}

impl CheckedRepository {
    /// Checks the repository whose work tree is `path`.
    pub(crate) fn check(path: &Path) -> Result<Self, GitError> {
        let worktree = path.canonicalize().map_err(|error| io_error(path, &error))?;
        let git_dir = find_git_dir(&worktree)?;
        let common_dir = canonical(&common_dir(&git_dir)?)?;
        for owned in [&worktree, &worktree.join(".git"), &git_dir, &common_dir] {
            check_owner(owned, &worktree)?;
        }
        check_files(&worktree, &git_dir, &common_dir)?;
        let config = checked_config(&worktree, &git_dir, &common_dir)?;
        check_git_dir_belongs(&config.combined, &worktree, &git_dir, &common_dir)?;
        Ok(Self { paths: RepositoryPaths { worktree, git_dir, common_dir, checkout_of: None }, config })
    }

    /// Returns the format that libgit2 cannot read, if the repository uses one.
    pub(crate) fn unsupported_format(&self) -> Option<UnsupportedFormat> {
        find_unsupported_format(&self.config.combined)
    }
}

/// A repository that was checked and opened.
pub(crate) struct OpenRepository {
    pub(crate) repository: Repository,
    pub(crate) worktree: PathBuf,
    pub(crate) git_dir: PathBuf,
    pub(crate) common_dir: PathBuf,
    pub(crate) top: OwnedFd,
    /// The flattened texts of config files with includes, which `repository` reads.
    flattened: Vec<OwnedFd>,
}

impl OpenRepository {
    /// Opens the repository whose work tree is `path`.
    pub(crate) fn open(path: &Path) -> Result<Self, GitError> {
        Self::from_checked(CheckedRepository::check(path)?)
    }

    /// Opens a checked repository.
    pub(crate) fn from_checked(checked: CheckedRepository) -> Result<Self, GitError> {
        if let Some(foreign) = checked.unsupported_format() {
            return Err(foreign.into_error(checked.paths));
        }
        let CheckedRepository { paths: RepositoryPaths { worktree, git_dir, common_dir, .. }, config } = checked;
        let none: [&OsStr; 0] = [];
        let repository = Repository::open_ext(&worktree, RepositoryOpenFlags::NO_SEARCH, none)
            .map_err(|error| open_error(&worktree, &error))?;
        check_libgit2_paths(&repository, &worktree, &git_dir, &common_dir)?;
        // From this point on, neither the system's config nor the user's config affects which paths are ignored.
        let RepositoryConfig { combined: whole, flattened } = config;
        repository.set_config(&whole).map_err(|error| libgit2_error(&worktree, &error))?;
        let excludes = whole.get_path("core.excludesfile").ok();
        let rules = [worktree.join(".gitignore"), common_dir.join("info/exclude")];
        rules.iter().chain(&excludes).try_for_each(|file| check_regular(file))?;
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let top =
            rustix::fs::open(&worktree, flags, Mode::empty()).map_err(|errno| io_error(&worktree, &errno.into()))?;
        Ok(Self { repository, worktree, git_dir, common_dir, top, flattened })
    }

    /// Returns the paths of the repository.
    pub(crate) fn paths(&self) -> RepositoryPaths {
        RepositoryPaths {
            worktree: self.worktree.clone(),
            git_dir: self.git_dir.clone(),
            common_dir: self.common_dir.clone(),
            checkout_of: None,
        }
    }

    /// Returns whether its config includes other files.
    pub(crate) fn has_includes(&self) -> bool {
        !self.flattened.is_empty()
    }

    /// Reads the index from disk.
    pub(crate) fn index(&self) -> Result<Index, GitError> {
        self.repository.index().map_err(|error| index_error(self, &error))
    }

    /// Checks whether the index contains a submodule at `path`.
    pub(crate) fn has_gitlink(&self, path: &[u8]) -> Result<bool, GitError> {
        let entry = self.index()?.get_path(Path::new(OsStr::from_bytes(path)), 0);
        Ok(entry.is_some_and(|entry| entry.mode == crate::index::GITLINK_MODE))
    }
}

/// Checks that the git directory belongs to the work tree.
///
/// Any user may have written a `.git` file, and steps see the git directory that it names. The git directory itself
/// must therefore confirm the connection: it is inside the work tree, or it links back (a linked worktree), or its
/// config names the work tree (a submodule).
fn check_git_dir_belongs(config: &Config, worktree: &Path, git_dir: &Path, common_dir: &Path) -> Result<(), GitError> {
    let inside = git_dir.starts_with(worktree) && common_dir.starts_with(worktree);
    // `checked_config` has already refused a config that names another work tree.
    let named = git_dir == common_dir && config.get_entry("core.worktree").is_ok();
    if inside || named || links_back(worktree, git_dir, common_dir)? {
        return Ok(());
    }
    Err(GitError::Unsupported {
        path: worktree.to_owned(),
        what: format!("a `.git` that points to `{}`, which does not refer back to this directory", git_dir.display()),
        mend: format!(
            "run `git worktree repair` for a linked worktree, `git config core.worktree {}` for a separate git directory",
            worktree.display()
        ),
    })
}

fn links_back(worktree: &Path, git_dir: &Path, common_dir: &Path) -> Result<bool, GitError> {
    if git_dir.parent() != Some(common_dir.join("worktrees").as_path()) {
        return Ok(false);
    }
    let link = back_link(git_dir)?.and_then(|link| Some(link.parent()?.canonicalize().ok()?.join(link.file_name()?)));
    Ok(link == Some(worktree.join(".git")))
}

fn find_git_dir(worktree: &Path) -> Result<PathBuf, GitError> {
    let dot_git = worktree.join(".git");
    let found = match symlink_metadata(&dot_git) {
        Ok(found) => found,
        Err(error) if error.kind() == ErrorKind::NotFound => return Err(no_git_dir(worktree)),
        Err(error) => return Err(io_error(&dot_git, &error)),
    };
    if found.is_symlink() {
        return Err(GitError::Unsupported {
            path: worktree.to_owned(),
            what: "a symbolic link as `.git`".into(),
            mend: "replace it by a file that contains `gitdir: <path>`".into(),
        });
    }
    canonical(&if found.is_dir() { dot_git } else { gitfile_target(&dot_git)? })
}

fn no_git_dir(worktree: &Path) -> GitError {
    let is_bare =
        worktree.join("HEAD").is_file() && worktree.join("objects").is_dir() && worktree.join("refs").is_dir();
    let path = worktree.to_owned();
    let top = worktree.ancestors().skip(1).find(|dir| symlink_metadata(dir.join(".git")).is_ok());
    match top {
        _ if is_bare => GitError::Bare { path },
        Some(top) => GitError::BelowTop { path, top: top.to_owned() },
        None => GitError::NotARepository { path },
    }
}

fn canonical(path: &Path) -> Result<PathBuf, GitError> {
    path.canonicalize().map_err(|error| io_error(path, &error))
}

fn check_owner(path: &Path, worktree: &Path) -> Result<(), GitError> {
    let owner = symlink_metadata(path).map_err(|error| io_error(path, &error))?.uid();
    if owner == rustix::process::geteuid().as_raw() {
        Ok(())
    } else {
        Err(GitError::ForeignOwner { path: worktree.to_owned() })
    }
}

/// Returns the repository's own config, after checking that it refers to no other work tree.
fn checked_config(worktree: &Path, git_dir: &Path, common_dir: &Path) -> Result<RepositoryConfig, GitError> {
    let files =
        [(common_dir.join("config"), ConfigLevel::Local), (git_dir.join("config.worktree"), ConfigLevel::Worktree)];
    let failed = |error: git2::Error| libgit2_error(worktree, &error);
    let (mut whole, mut flattened) = (Config::new().map_err(failed)?, Vec::new());
    let conditions = IncludeConditions::read(git_dir)?;
    for (file, level) in files {
        let Some(read) = ConfigFile::read(&file, &conditions)? else { continue };
        let alone = Config::open(&read.path).map_err(failed)?;
        check_worktree(&alone, &file, git_dir, worktree)?;
        let counts = level == ConfigLevel::Local || whole.get_bool("extensions.worktreeconfig").unwrap_or(false);
        if counts {
            whole.add_file(&read.path, level, false).map_err(failed)?;
        }
        flattened.extend(read.flattened);
    }
    // A bare repository may have linked worktrees, to which its `core.bare` does not apply.
    if git_dir == common_dir && whole.get_bool("core.bare").unwrap_or(false) {
        return Err(GitError::Bare { path: worktree.to_owned() });
    }
    Ok(RepositoryConfig { combined: whole, flattened })
}

/// Returns the config of a git directory without a work tree, such as that of a submodule, and the format that
/// libgit2 cannot read, if it has one. Checks the path and the owner of the directory first.
pub(crate) fn check_git_dir(git_dir: &Path) -> Result<(Config, Option<UnsupportedFormat>), GitError> {
    let (real, failed) = (canonical(git_dir)?, |error: git2::Error| libgit2_error(git_dir, &error));
    if real != git_dir {
        let problem = format!("it is at `{}`", real.display());
        return Err(GitError::Unreadable { path: git_dir.to_owned(), problem });
    }
    check_owner(git_dir, git_dir)?;
    let (file, mut config) = (git_dir.join("config"), Config::new().map_err(failed)?);
    let mut foreign = None;
    if let Some(read) = ConfigFile::read(&file, &IncludeConditions::read(git_dir)?)? {
        foreign = find_unsupported_format(&Config::open(&read.path).map_err(failed)?);
        config.add_file(&read.path, ConfigLevel::Local, false).map_err(failed)?;
        // The descriptor stays open, since libgit2 reads the text through it again; this process exits soon.
        read.flattened.map(std::os::fd::IntoRawFd::into_raw_fd);
    }
    Ok((config, foreign))
}

/// Checks that libgit2 found the same directories as we did.
fn check_libgit2_paths(repo: &Repository, worktree: &Path, git_dir: &Path, common_dir: &Path) -> Result<(), GitError> {
    let Some(workdir) = repo.workdir() else { return Err(GitError::Bare { path: worktree.to_owned() }) };
    for (theirs, ours) in [(workdir, worktree), (repo.path(), git_dir), (repo.commondir(), common_dir)] {
        if canonical(theirs)? != ours {
            let problem = format!("libgit2 reads `{}` instead of `{}`", theirs.display(), ours.display());
            return Err(GitError::Unreadable { path: worktree.to_owned(), problem });
        }
    }
    Ok(())
}

fn open_error(worktree: &Path, error: &git2::Error) -> GitError {
    if error.code() == ErrorCode::Owner {
        GitError::ForeignOwner { path: worktree.to_owned() }
    } else {
        libgit2_error(worktree, error)
    }
}

pub(crate) fn index_error(opened: &OpenRepository, error: &git2::Error) -> GitError {
    let (what, mend) = if error.message().contains("'link'") {
        ("a split index", "run `git update-index --no-split-index`, and `git config --unset core.splitIndex`")
    } else if error.message().contains("'sdir'") {
        ("a sparse index", "run `git sparse-checkout reapply --no-sparse-index`")
    } else {
        return libgit2_error(&opened.worktree, error);
    };
    UnsupportedFormat { what, mend, objects: ObjectFormat::Sha1 }.into_error(opened.paths())
}

/// Makes the error for a failure of libgit2.
pub(crate) fn libgit2_error(worktree: &Path, error: &git2::Error) -> GitError {
    GitError::Unreadable { path: worktree.to_owned(), problem: error.message().to_owned() }
}

/// Checks whether `path`, relative to the top, is a directory that is reached without symbolic links.
pub(crate) fn is_directory_without_links(top: &OpenRepository, path: &[u8]) -> Result<bool, GitError> {
    match read_beneath::open_entry(top.top.as_fd(), path) {
        Ok(Some((_, stat))) => Ok(FileType::from_raw_mode(stat.st_mode) == FileType::Directory),
        Ok(None) => Ok(false),
        Err(error) => Err(io_error(&top.worktree.join(OsStr::from_bytes(path)), &error)),
    }
}

/// Checks whether the directory `place` is the work tree of a repository: its `.git` is a file, or a directory that
/// contains a HEAD.
pub(crate) fn is_repository(place: &Path) -> Result<bool, GitError> {
    let dot_git = place.join(".git");
    match symlink_metadata(&dot_git) {
        Ok(found) if found.is_dir() => Ok(symlink_metadata(dot_git.join("HEAD")).is_ok()),
        Ok(found) => Ok(found.is_file()),
        Err(error) if matches!(error.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory) => Ok(false),
        Err(error) => Err(io_error(&dot_git, &error)),
    }
}
