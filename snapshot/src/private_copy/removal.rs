//! Removes entries from a mirror that the wanted tree does not contain.

use std::collections::BTreeSet;
use std::os::fd::{AsFd as _, AsRawFd as _, BorrowedFd};

use proctor_git::files::{paths, read_beneath};
use rustix::fs::{AtFlags, OFlags, unlinkat};
use rustix::io::Errno;

use crate::entries::{EntryTree, ScannedKind};
use crate::private_copy::mirror_files::{GIT_DIR_NAME, MAX_FILES, MirrorError};

/// Removes the entries of the mirror at `paths`, and all directories that become empty. `paths` must be sorted. The
/// directory of a repository is kept unless it is one of the paths.
pub(super) fn remove_outdated(tree: BorrowedFd<'_>, held: &EntryTree, paths: &[Vec<u8>]) -> Result<(), MirrorError> {
    let is_repository =
        |path: &[u8]| held.leaf_at_path(path).is_some_and(|leaf| leaf.found.kind == ScannedKind::Gitlink);
    let stays = |path: &[u8]| is_repository(path) && paths.binary_search_by(|one| one.as_slice().cmp(path)).is_err();
    // Deeper paths come first, so that directories are empty when they are removed.
    for path in paths.iter().rev() {
        let Some(leaf) = held.leaf_at_path(path) else { continue };
        match leaf.found.kind {
            ScannedKind::Missing | ScannedKind::IgnoreRules => {}
            ScannedKind::Gitlink | ScannedKind::EmptyDirectory => remove_empty(tree, path, stays)?,
            ScannedKind::File | ScannedKind::Executable | ScannedKind::Symlink | ScannedKind::Special => {
                remove_file(tree, path, stays)?;
            }
        }
    }
    Ok(())
}

/// Removes the file or empty directory at each of `paths`, and all directories that become empty. `paths` must be
/// sorted. The directory of a repository in `covered` is kept.
pub(super) fn remove_paths(tree: BorrowedFd<'_>, covered: &EntryTree, paths: &[Vec<u8>]) -> Result<(), MirrorError> {
    let stays = |path: &[u8]| covered.leaf_at_path(path).is_some_and(|leaf| leaf.found.kind == ScannedKind::Gitlink);
    for path in paths.iter().rev() {
        match read_beneath::is_directory(tree, path) {
            true => remove_empty(tree, path, stays)?,
            false => remove_file(tree, path, stays)?,
        }
    }
    Ok(())
}

fn remove_file(tree: BorrowedFd<'_>, path: &[u8], stays: impl Fn(&[u8]) -> bool) -> Result<(), MirrorError> {
    let (directory, name) = paths::split(path);
    let parent = match read_beneath::open(tree, directory, OFlags::PATH | OFlags::DIRECTORY) {
        Ok(parent) => parent,
        Err(error) if read_beneath::is_missing_error(&error) => return Ok(()),
        Err(error) => return Err(MirrorError::io(directory, error)),
    };
    match unlinkat(parent.as_fd(), name, AtFlags::empty()) {
        Ok(()) | Err(Errno::NOENT | Errno::ISDIR) => {}
        Err(errno) => return Err(MirrorError::io(path, errno)),
    }
    if directory.is_empty() { Ok(()) } else { remove_empty(tree, directory, stays) }
}

/// Removes an empty directory, and then its parents while they are empty, up to a directory that `stays`.
fn remove_empty(tree: BorrowedFd<'_>, path: &[u8], stays: impl Fn(&[u8]) -> bool) -> Result<(), MirrorError> {
    let mut path = path;
    while !path.is_empty() && !stays(path) {
        let (directory, name) = paths::split(path);
        let parent = match read_beneath::open(tree, directory, OFlags::PATH | OFlags::DIRECTORY) {
            Ok(parent) => parent,
            Err(error) if read_beneath::is_missing_error(&error) => return Ok(()),
            Err(error) => return Err(MirrorError::io(directory, error)),
        };
        match unlinkat(parent.as_fd(), name, AtFlags::REMOVEDIR) {
            Ok(()) => path = directory,
            Err(Errno::NOENT) => path = directory,
            Err(Errno::NOTEMPTY | Errno::EXIST | Errno::NOTDIR) => return Ok(()),
            Err(errno) => return Err(MirrorError::io(path, errno)),
        }
    }
    Ok(())
}

/// Removes the git directory that we have written for the repository at `path`, if it exists.
pub(super) fn remove_git_dir(tree: BorrowedFd<'_>, path: &[u8]) -> Result<(), MirrorError> {
    let directory = match read_beneath::open(tree, path, OFlags::PATH | OFlags::DIRECTORY) {
        Ok(directory) => directory,
        Err(error) if read_beneath::is_missing_error(&error) => return Ok(()),
        Err(error) => return Err(MirrorError::io(path, error)),
    };
    let git = format!("/proc/self/fd/{}/.git", directory.as_raw_fd());
    match std::fs::remove_dir_all(git) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => Err(MirrorError::io(path, error)),
        _ => Ok(()),
    }
}

/// Removes all git directories except the one at the top, regardless of their origin.
pub(super) fn remove_nested_git_dirs(tree: BorrowedFd<'_>) -> Result<(), MirrorError> {
    let leaves = read_beneath::list_leaves(tree, b"", MAX_FILES).map_err(|error| MirrorError::io(b"", error))?;
    let leaves = leaves.unwrap_or_default();
    let repositories: BTreeSet<&[u8]> = leaves
        .iter()
        .flat_map(|path| paths::ancestors(path).map(paths::split))
        .filter(|(repository, name)| *name == GIT_DIR_NAME && !repository.is_empty())
        .map(|(repository, _)| repository)
        .collect();
    repositories.into_iter().try_for_each(|repository| remove_git_dir(tree, repository))
}
