//! Tracks the git files from which a listing or the refs are read, with their stat data. What was read is valid while these
//! files are unchanged.

use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};
use std::path::{Component, Path, PathBuf};

use rustix::fs::{Dir, FileType, OFlags, fstat};
use rustix::io::Errno;

use crate::config::config_files::{common_dir, gitfile_target};
use crate::error::GitError;
use crate::files::file_stat::{FileStat, FileTime};
use crate::files::repo_path::RepoPath;
use crate::files::{paths, read_beneath};
use crate::protocol::GitSourceFile;
use crate::repository::open_repository::{OpenRepository, libgit2_error};

/// Adds the files from which `opened` was read. Returns `false` if they cannot be determined: its ignore rules are
/// in other files, a path leads through a link, or HEAD leads through several refs.
pub(crate) fn add_source_files(opened: &OpenRepository, found: &mut Vec<GitSourceFile>) -> Result<bool, GitError> {
    let failed = |error: git2::Error| libgit2_error(&opened.worktree, &error);
    let config = opened.repository.config().and_then(|mut config| config.snapshot()).map_err(failed)?;
    let elsewhere = ["core.excludesfile", "core.attributesfile", "attr.tree"];
    let is_elsewhere = opened.has_includes() || elsewhere.iter().any(|key| config.get_entry(key).is_ok());
    if is_elsewhere || !has_no_links(opened)? {
        return Ok(false);
    }
    let mut own: Vec<Vec<u8>> =
        ["HEAD", "index", "commondir", "gitdir", "config", "config.worktree"].map(Into::into).to_vec();
    let mut common: Vec<Vec<u8>> =
        ["config", "packed-refs", "info/exclude", "info/attributes"].map(Into::into).to_vec();
    let head = opened.repository.find_reference("HEAD").map_err(failed)?;
    if let Some(branch) = head.symbolic_target_bytes() {
        if !branch.starts_with(b"refs/") {
            return Ok(false);
        }
        let is_symbolic = std::str::from_utf8(branch)
            .ok()
            .and_then(|name| opened.repository.find_reference(name).ok())
            .is_some_and(|branch| branch.kind() == Some(git2::ReferenceType::Symbolic));
        if is_symbolic {
            return Ok(false);
        }
        common.push(branch.to_vec());
        // Some refs of a linked worktree are in its own git directory.
        own.push(branch.to_vec());
    }
    let is_gitfile = opened.git_dir != opened.worktree.join(".git");
    let dot_git: Vec<Vec<u8>> = is_gitfile.then(|| b".git".to_vec()).into_iter().collect();
    for (place, paths) in [(&opened.worktree, dot_git), (&opened.git_dir, own), (&opened.common_dir, common)] {
        if !add_files(place, paths, found)? {
            return Ok(false);
        }
    }
    Ok(true)
}

/// Maximum number of files and directories of refs. More of them are read again each time.
const MAX_REF_SOURCES: usize = 512;

/// Adds the files and directories from which the refs of `opened` are read, besides those of [`add_source_files`]. Returns
/// `false` if there are too many, or if one of them is of another kind.
pub(crate) fn add_ref_sources(opened: &OpenRepository, found: &mut Vec<GitSourceFile>) -> Result<bool, GitError> {
    let is_linked = opened.git_dir != opened.common_dir;
    let own = is_linked.then_some(&opened.git_dir);
    for place in [&opened.common_dir].into_iter().chain(own) {
        let directory = open_place(place)?;
        let mut pending = vec![b"refs".to_vec()];
        while let Some(path) = pending.pop() {
            if found.len() > MAX_REF_SOURCES {
                return Ok(false);
            }
            // The stamp is older than the names, so that a concurrent change is noticed later.
            let stamp = match stat_source(directory.as_fd(), &path) {
                Some(Some(stamp)) => stamp,
                // A linked worktree may have no refs of its own.
                Some(None) => {
                    found.push(GitSourceFile { place: place.clone(), path: RepoPath(path), stamp: None });
                    continue;
                }
                None => return Ok(false),
            };
            if is_directory(&stamp) {
                let Some(names) = names_below(directory.as_fd(), &path) else { return Ok(false) };
                pending.extend(names.into_iter().map(|name| paths::join(&path, &name)));
            }
            found.push(GitSourceFile { place: place.clone(), path: RepoPath(path), stamp: Some(stamp) });
        }
    }
    add_files(&opened.common_dir, vec![b"shallow".to_vec()], found)
}

/// Returns the names in a directory; `None` if it cannot be read.
fn names_below(place: BorrowedFd<'_>, path: &[u8]) -> Option<Vec<Vec<u8>>> {
    let directory = read_beneath::open(place, path, OFlags::RDONLY | OFlags::DIRECTORY).ok()?;
    let entries = Dir::read_from(&directory).ok()?;
    let names = entries.map(|entry| entry.map(|entry| entry.file_name().to_bytes().to_vec()));
    let names = names.collect::<Result<Vec<_>, Errno>>().ok()?;
    Some(names.into_iter().filter(|name| name != b"." && name != b"..").collect())
}

/// Adds the file that makes the directory `path` of the work tree a repository once it exists.
pub(crate) fn add_missing_head(opened: &OpenRepository, path: &[u8], found: &mut Vec<GitSourceFile>) {
    let path = [path, b"/.git/HEAD"].concat();
    found.push(GitSourceFile { place: opened.worktree.clone(), path: RepoPath(path), stamp: None });
}

fn add_files(place: &Path, paths: Vec<Vec<u8>>, found: &mut Vec<GitSourceFile>) -> Result<bool, GitError> {
    let directory = open_place(place)?;
    for path in paths {
        let Some(stamp) = stat_regular_file(directory.as_fd(), &path) else { return Ok(false) };
        found.push(GitSourceFile { place: place.to_owned(), path: RepoPath(path), stamp });
    }
    Ok(true)
}

fn open_place(place: &Path) -> Result<OwnedFd, GitError> {
    read_beneath::open_canonical(place).map_err(|error| crate::config::bounded_read::io_error(place, &error))
}

/// Returns the stat data of a regular file, or `Some(None)` if the path does not exist. Returns `None` if the path
/// is something else or leads through a link.
#[expect(clippy::option_option, reason = "unknown is not the same as absent")]
fn stat_regular_file(place: BorrowedFd<'_>, path: &[u8]) -> Option<Option<FileStat>> {
    stat_source(place, path).filter(|stamp| !stamp.as_ref().is_some_and(is_directory))
}

/// Like [`stat_regular_file`], but also for directories.
#[expect(clippy::option_option, reason = "unknown is not the same as absent")]
fn stat_source(place: BorrowedFd<'_>, path: &[u8]) -> Option<Option<FileStat>> {
    match read_beneath::open(place, path, OFlags::PATH) {
        Ok(fd) => {
            let stat = fstat(fd).ok()?;
            let kind = FileType::from_raw_mode(stat.st_mode);
            matches!(kind, FileType::RegularFile | FileType::Directory).then(|| Some(FileStat::from_stat(&stat)))
        }
        Err(error) if error.raw_os_error() == Some(Errno::NOENT.raw_os_error()) => Some(None),
        Err(_) => None,
    }
}

fn is_directory(stamp: &FileStat) -> bool {
    FileType::from_raw_mode(stamp.mode) == FileType::Directory
}

/// Checks that no link is on the path from `.git` to the git directory and from there to the common one. A link
/// could later lead to another directory without a change of the file that names the path.
fn has_no_links(opened: &OpenRepository) -> Result<bool, GitError> {
    let dot_git = opened.worktree.join(".git");
    let named = if dot_git.is_dir() { dot_git } else { gitfile_target(&dot_git)? };
    Ok(normalize(&named).as_deref() == Some(&*opened.git_dir)
        && normalize(&common_dir(&opened.git_dir)?).as_deref() == Some(&*opened.common_dir))
}

/// Returns the path without `.` and `..`, which is correct if no part of it is a link.
fn normalize(path: &Path) -> Option<PathBuf> {
    let mut straight = PathBuf::new();
    for part in path.components() {
        match part {
            Component::ParentDir if !straight.pop() => return None,
            Component::ParentDir | Component::CurDir => {}
            other => straight.push(other),
        }
    }
    straight.is_absolute().then_some(straight)
}

/// Checks whether all sources are unchanged since they were read at `look`. This requires file systems whose
/// timestamps reveal every change, and that no source changed so shortly before `look` that another change could
/// keep its timestamp.
pub fn are_unchanged(sources: &[GitSourceFile], read_at: FileTime) -> bool {
    let mut open: Option<(&Path, SourceDirectory)> = None;
    sources.iter().all(|source| {
        if open.as_ref().is_none_or(|(place, _)| *place != source.place) {
            open = SourceDirectory::open(&source.place).map(|place| (source.place.as_path(), place));
        }
        open.as_ref().is_some_and(|(_, place)| place.has_unchanged(source, read_at))
    })
}

/// A directory that contains git files.
struct SourceDirectory {
    directory: OwnedFd,
    device: u64,
}

impl SourceDirectory {
    fn open(path: &Path) -> Option<Self> {
        let directory = read_beneath::open_canonical(path).ok()?;
        let device = read_beneath::trusted_device(directory.as_fd()).ok()??;
        Some(Self { directory, device })
    }

    fn has_unchanged(&self, source: &GitSourceFile, read_at: FileTime) -> bool {
        let settled = |stamp: &FileStat| stamp.dev == self.device && !stamp.is_racy(read_at);
        stat_source(self.directory.as_fd(), &source.path.0) == Some(source.stamp) && source.stamp.iter().all(settled)
    }
}

/// Returns the owners of a work tree's top, of its `.git`, and of the directories that contain its git files.
pub fn directory_owners(worktree: &Path, sources: &[GitSourceFile]) -> Option<Vec<u32>> {
    let top = read_beneath::open_canonical(worktree).ok()?;
    let (_, dot_git) = read_beneath::open_entry(top.as_fd(), b".git").ok()??;
    let mut owners = vec![fstat(top).ok()?.st_uid, dot_git.st_uid];
    let mut last: Option<&Path> = None;
    for source in sources.iter().filter(|source| last.replace(&source.place) != Some(&source.place)) {
        owners.push(fstat(read_beneath::open_canonical(&source.place).ok()?).ok()?.st_uid);
    }
    Some(owners)
}
