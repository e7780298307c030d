//! Reads a repository with libgit2 in `proctor-git`, a process that does nothing else.
//!
//! The caller must run as the repository's owner, with an empty environment and under a deadline; this module does
//! not bound the time that a hostile repository can take.

use std::ffi::OsStr;
use std::fs::symlink_metadata;
use std::io::{self as std_io, ErrorKind, Write};
use std::os::fd::{AsFd as _, OwnedFd};
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use git2::{Config, ConfigLevel, ErrorCode, Index, Repository, RepositoryOpenFlags};
use rustix::fs::{FileType, Mode, OFlags};

use super::GitError;
use super::commit;
use super::config::{
    ConfigFile, Foreign, back_link, check_files, check_regular, check_worktree, common_dir, foreign_format,
    gitfile_target, io,
};
use super::frames;
use super::history::{self, History};
use super::ignore::Rules;
use super::includes::Conditions;
use super::listing;
use super::object::ObjectFormat;
use super::program::Places;
use super::protocol::{Answer, CommitRef, Request};
use super::pushed;
use super::revision;
use super::staged;
use crate::beneath;

pub use super::watchdog::watch;

/// Answers one request in frames, the last of which is the answer. `told` is output of the `git` program, sent
/// after an earlier answer that libgit2 cannot read the format.
///
/// # Errors
/// The frames cannot be written.
pub fn serve(request: &Request, told: Option<&[u8]>, out: &mut dyn Write) -> std_io::Result<()> {
    let answered = answer(request, told, out);
    let answer = answered.unwrap_or_else(|why| Answer::Refused { why });
    let written = frames::write_answer(out, &answer);
    // The process exits right after this, so freeing the memory would waste time.
    std::mem::forget(answer);
    written
}

fn answer(request: &Request, told: Option<&[u8]>, out: &mut dyn Write) -> Result<Answer, GitError> {
    match request {
        Request::List { repo } => {
            let top = Opened::open(repo)?;
            let mut ahead = Ok(());
            let listing = listing::list(&top, &mut |worktree, index, file| {
                ahead = frames::write_ahead(out, worktree, index, file);
            });
            ahead.map_err(|error| io(repo, &error))?;
            of_top(top.places(), listing).map(Answer::List)
        }
        Request::Ignored { repo, submodules, directories, paths } => {
            let top = Opened::open(repo)?;
            let places = top.places();
            let mut rules = Rules::new(top, submodules.as_deref())?;
            let of_directories = directories.iter().map(|path| (path, true));
            let asked = of_directories.chain(paths.iter().map(|path| (path, false)));
            let ignored = asked.map(|(path, is_directory)| rules.ignores(&path.0, is_directory));
            Ok(Answer::Ignored { ignored: of_top(places, ignored.collect())? })
        }
        Request::Resolve { repo, revision, limit } => {
            let commits = revision::resolve(&History::open(repo, told)?, revision, *limit)?;
            Ok(Answer::Resolved { commits })
        }
        Request::Pushed { repo, push } => pushed::pushed(&History::open(repo, told)?, push).map(Answer::Pushed),
        Request::Staged { repo, index } => staged::staged(&Opened::open(repo)?, index).map(Answer::Staged),
        Request::Content { repo, commit } => {
            commit::content::content(&admitted(repo, commit, told)?, &commit.id).map(Answer::Content)
        }
        Request::Files { repo, commit, paths } => {
            let files = commit::content::files(&admitted(repo, commit, told)?, &commit.id, paths)?;
            Ok(Answer::Files { files })
        }
        Request::Tree { repo, commit, submodules } => {
            commit::tree(&admitted(repo, commit, told)?, commit, *submodules).map(Answer::Tree)
        }
        Request::Blobs { repo, commit, submodules, wanted } => {
            let history = admitted(repo, commit, told)?;
            commit::blobs(&history, commit, *submodules, wanted, out).map(|()| Answer::Blobs)
        }
        Request::History { repo, nested } => history::state(&History::open(repo, told)?, nested).map(Answer::History),
    }
}

/// Opens the repository that has `commit`, which may exist only as staged content.
fn admitted<'t>(repo: &Path, commit: &CommitRef, told: Option<&'t [u8]>) -> Result<History<'t>, GitError> {
    if commit.staged.is_none() {
        return History::open(repo, told);
    }
    let top = Opened::open(repo)?;
    staged::admit(&top, commit)?;
    Ok(History::of(top))
}

/// Adjusts the error for a format that only the `git` program reads: even if only a repository inside the tree has
/// this format, the error names the whole work tree.
fn of_top<T>(places: Places, answered: Result<T, GitError>) -> Result<T, GitError> {
    answered.map_err(|error| match error {
        GitError::Format { what, mend, objects, .. } => GitError::Format { places, what, mend, objects },
        other => other,
    })
}

/// A repository that passed all checks: its git directory belongs to the work tree, and its config refers to no
/// other work tree.
pub(super) struct Checked {
    pub(super) places: Places,
    config: OwnConfig,
}

/// The repository's own config, including the files that it includes.
struct OwnConfig {
    whole: Config,
    /// The flattened texts of config files with includes. libgit2 reads them again through these descriptors.
    flattened: Vec<OwnedFd>,
}

impl Checked {
    /// Checks the repository whose work tree is `path`.
    pub(super) fn at(path: &Path) -> Result<Self, GitError> {
        let worktree = path.canonicalize().map_err(|error| io(path, &error))?;
        let git_dir = find_git_dir(&worktree)?;
        let common_dir = real(&common_dir(&git_dir)?)?;
        for owned in [&worktree, &worktree.join(".git"), &git_dir, &common_dir] {
            check_owner(owned, &worktree)?;
        }
        check_files(&worktree, &git_dir, &common_dir)?;
        let config = checked_config(&worktree, &git_dir, &common_dir)?;
        check_belongs(&config.whole, &worktree, &git_dir, &common_dir)?;
        Ok(Self { places: Places { worktree, git_dir, common_dir, checkout_of: None }, config })
    }

    /// Returns the format that libgit2 cannot read, if the repository uses one.
    pub(super) fn foreign(&self) -> Option<Foreign> {
        foreign_format(&self.config.whole)
    }
}

/// A repository that was checked and opened.
pub(super) struct Opened {
    pub(super) repository: Repository,
    pub(super) worktree: PathBuf,
    pub(super) git_dir: PathBuf,
    pub(super) common_dir: PathBuf,
    pub(super) top: OwnedFd,
    /// The flattened texts of config files with includes, which `repository` reads.
    flattened: Vec<OwnedFd>,
}

impl Opened {
    /// Opens the repository whose work tree is `path`.
    pub(super) fn open(path: &Path) -> Result<Self, GitError> {
        Self::of(Checked::at(path)?)
    }

    /// Opens a checked repository.
    pub(super) fn of(checked: Checked) -> Result<Self, GitError> {
        if let Some(foreign) = checked.foreign() {
            return Err(foreign.refused(checked.places));
        }
        let Checked { places: Places { worktree, git_dir, common_dir, .. }, config } = checked;
        let none: [&OsStr; 0] = [];
        let repository = Repository::open_ext(&worktree, RepositoryOpenFlags::NO_SEARCH, none)
            .map_err(|error| cannot_open(&worktree, &error))?;
        check_places(&repository, &worktree, &git_dir, &common_dir)?;
        // From here on, neither the system's config nor the user's affects which paths are ignored.
        let OwnConfig { whole, flattened } = config;
        repository.set_config(&whole).map_err(|error| unreadable(&worktree, &error))?;
        let excludes = whole.get_path("core.excludesfile").ok();
        let rules = [worktree.join(".gitignore"), common_dir.join("info/exclude")];
        rules.iter().chain(&excludes).try_for_each(|file| check_regular(file))?;
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let top = rustix::fs::open(&worktree, flags, Mode::empty()).map_err(|errno| io(&worktree, &errno.into()))?;
        Ok(Self { repository, worktree, git_dir, common_dir, top, flattened })
    }

    /// Returns the paths of the repository.
    pub(super) fn places(&self) -> Places {
        Places {
            worktree: self.worktree.clone(),
            git_dir: self.git_dir.clone(),
            common_dir: self.common_dir.clone(),
            checkout_of: None,
        }
    }

    /// Returns whether its config includes other files.
    pub(super) fn has_includes(&self) -> bool {
        !self.flattened.is_empty()
    }

    /// Reads the index from disk.
    pub(super) fn index(&self) -> Result<Index, GitError> {
        self.repository.index().map_err(|error| cannot_read_index(self, &error))
    }

    /// Checks whether the index contains a submodule at `path`.
    pub(super) fn has_gitlink(&self, path: &[u8]) -> Result<bool, GitError> {
        let entry = self.index()?.get_path(Path::new(OsStr::from_bytes(path)), 0);
        Ok(entry.is_some_and(|entry| entry.mode == super::index::GITLINK))
    }
}

/// Checks that the git directory belongs to the work tree.
///
/// Any user may have written a `.git` file, and steps see the git directory that it names. The git directory itself
/// must therefore confirm the connection: it is inside the work tree, or it links back (a linked worktree), or its
/// config names the work tree (a submodule).
fn check_belongs(config: &Config, worktree: &Path, git_dir: &Path, common_dir: &Path) -> Result<(), GitError> {
    let inside = git_dir.starts_with(worktree) && common_dir.starts_with(worktree);
    // `checked_config` has already refused a config that names another work tree.
    let named = git_dir == common_dir && config.get_entry("core.worktree").is_ok();
    if inside || named || links_back(worktree, git_dir, common_dir)? {
        return Ok(());
    }
    Err(GitError::Unsupported {
        path: worktree.to_owned(),
        what: format!("a `.git` that leads to `{}`, which does not say that it belongs here", git_dir.display()),
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
        Err(error) => return Err(io(&dot_git, &error)),
    };
    if found.is_symlink() {
        return Err(GitError::Unsupported {
            path: worktree.to_owned(),
            what: "a symbolic link as `.git`".into(),
            mend: "replace it by a file that says `gitdir: <path>`".into(),
        });
    }
    real(&if found.is_dir() { dot_git } else { gitfile_target(&dot_git)? })
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

fn real(path: &Path) -> Result<PathBuf, GitError> {
    path.canonicalize().map_err(|error| io(path, &error))
}

fn check_owner(path: &Path, worktree: &Path) -> Result<(), GitError> {
    let owner = symlink_metadata(path).map_err(|error| io(path, &error))?.uid();
    if owner == rustix::process::geteuid().as_raw() {
        Ok(())
    } else {
        Err(GitError::ForeignOwner { path: worktree.to_owned() })
    }
}

/// Returns the repository's own config, after checking that it refers to no other work tree.
fn checked_config(worktree: &Path, git_dir: &Path, common_dir: &Path) -> Result<OwnConfig, GitError> {
    let files =
        [(common_dir.join("config"), ConfigLevel::Local), (git_dir.join("config.worktree"), ConfigLevel::Worktree)];
    let failed = |error: git2::Error| unreadable(worktree, &error);
    let (mut whole, mut flattened) = (Config::new().map_err(failed)?, Vec::new());
    let conditions = Conditions::of(git_dir)?;
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
    Ok(OwnConfig { whole, flattened })
}

/// Returns the config of a git directory without a work tree, such as that of a submodule, and the format that
/// libgit2 cannot read, if it has one. Checks the path and the owner of the directory first.
pub(super) fn check_git_dir(git_dir: &Path) -> Result<(Config, Option<Foreign>), GitError> {
    let (real, failed) = (real(git_dir)?, |error: git2::Error| unreadable(git_dir, &error));
    if real != git_dir {
        let problem = format!("it lies at `{}`", real.display());
        return Err(GitError::Unreadable { path: git_dir.to_owned(), problem });
    }
    check_owner(git_dir, git_dir)?;
    let (file, mut config) = (git_dir.join("config"), Config::new().map_err(failed)?);
    let mut foreign = None;
    if let Some(read) = ConfigFile::read(&file, &Conditions::of(git_dir)?)? {
        foreign = foreign_format(&Config::open(&read.path).map_err(failed)?);
        config.add_file(&read.path, ConfigLevel::Local, false).map_err(failed)?;
        // The descriptor stays open, since libgit2 reads the text through it again; this process exits soon.
        read.flattened.map(std::os::fd::IntoRawFd::into_raw_fd);
    }
    Ok((config, foreign))
}

/// Checks that libgit2 found the same directories as we did.
fn check_places(repo: &Repository, worktree: &Path, git_dir: &Path, common_dir: &Path) -> Result<(), GitError> {
    let Some(workdir) = repo.workdir() else { return Err(GitError::Bare { path: worktree.to_owned() }) };
    for (theirs, ours) in [(workdir, worktree), (repo.path(), git_dir), (repo.commondir(), common_dir)] {
        if real(theirs)? != ours {
            let problem = format!("libgit2 reads `{}` instead of `{}`", theirs.display(), ours.display());
            return Err(GitError::Unreadable { path: worktree.to_owned(), problem });
        }
    }
    Ok(())
}

fn cannot_open(worktree: &Path, error: &git2::Error) -> GitError {
    if error.code() == ErrorCode::Owner {
        GitError::ForeignOwner { path: worktree.to_owned() }
    } else {
        unreadable(worktree, error)
    }
}

pub(super) fn cannot_read_index(opened: &Opened, error: &git2::Error) -> GitError {
    let (what, mend) = if error.message().contains("'link'") {
        ("a split index", "run `git update-index --no-split-index`, and `git config --unset core.splitIndex`")
    } else if error.message().contains("'sdir'") {
        ("a sparse index", "run `git sparse-checkout reapply --no-sparse-index`")
    } else {
        return unreadable(&opened.worktree, error);
    };
    Foreign { what, mend, objects: ObjectFormat::Sha1 }.refused(opened.places())
}

/// Makes the error for a failure of libgit2.
pub(super) fn unreadable(worktree: &Path, error: &git2::Error) -> GitError {
    GitError::Unreadable { path: worktree.to_owned(), problem: error.message().to_owned() }
}

/// Checks whether `path`, relative to the top, is a directory that is reached without symbolic links.
pub(super) fn is_real_directory(top: &Opened, path: &[u8]) -> Result<bool, GitError> {
    match beneath::look(top.top.as_fd(), path) {
        Ok(Some((_, stat))) => Ok(FileType::from_raw_mode(stat.st_mode) == FileType::Directory),
        Ok(None) => Ok(false),
        Err(error) => Err(io(&top.worktree.join(OsStr::from_bytes(path)), &error)),
    }
}

/// Checks whether the directory `place` is the work tree of a repository: its `.git` is a file, or a directory that
/// contains a HEAD.
pub(super) fn holds_repository(place: &Path) -> Result<bool, GitError> {
    let dot_git = place.join(".git");
    match symlink_metadata(&dot_git) {
        Ok(found) if found.is_dir() => Ok(symlink_metadata(dot_git.join("HEAD")).is_ok()),
        Ok(found) => Ok(found.is_file()),
        Err(error) if matches!(error.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory) => Ok(false),
        Err(error) => Err(io(&dot_git, &error)),
    }
}

/// Sorted paths without duplicates.
pub(super) type PathSet = std::collections::BTreeSet<Vec<u8>>;
