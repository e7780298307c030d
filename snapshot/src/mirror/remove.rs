//! Removes from a mirror what the wanted tree does not hold there.

use std::collections::BTreeSet;
use std::os::fd::{AsFd as _, AsRawFd as _, BorrowedFd};

use rustix::fs::{AtFlags, OFlags, unlinkat};
use rustix::io::Errno;

use super::{GIT, MAX_FILES, MirrorError};
use crate::beneath;
use crate::entries::{Entries, Kind};
use crate::paths;

/// Removes what the mirror holds at `paths`, and the directories that this leaves empty. `paths` are sorted. The directory
/// of a repository that is not among them stays.
pub(super) fn outdated(tree: BorrowedFd<'_>, held: &Entries, paths: &[Vec<u8>]) -> Result<(), MirrorError> {
    let is_repository = |path: &[u8]| held.leaf(path).is_some_and(|leaf| leaf.found.kind == Kind::Gitlink);
    let stays = |path: &[u8]| is_repository(path) && paths.binary_search_by(|one| one.as_slice().cmp(path)).is_err();
    // Deeper paths first, so that a directory is empty when its turn comes.
    for path in paths.iter().rev() {
        let Some(leaf) = held.leaf(path) else { continue };
        match leaf.found.kind {
            Kind::Missing | Kind::Rules => {}
            Kind::Gitlink | Kind::EmptyDirectory => remove_empty(tree, path, stays)?,
            Kind::File | Kind::Executable | Kind::Symlink | Kind::Special => remove_file(tree, path, stays)?,
        }
    }
    Ok(())
}

/// Removes the file or the empty directory at each of `paths`, and the directories that this leaves empty. `paths` are
/// sorted. The directory of a repository that `covered` names stays.
pub(super) fn anything(tree: BorrowedFd<'_>, covered: &Entries, paths: &[Vec<u8>]) -> Result<(), MirrorError> {
    let stays = |path: &[u8]| covered.leaf(path).is_some_and(|leaf| leaf.found.kind == Kind::Gitlink);
    for path in paths.iter().rev() {
        match beneath::is_directory(tree, path) {
            true => remove_empty(tree, path, stays)?,
            false => remove_file(tree, path, stays)?,
        }
    }
    Ok(())
}

fn remove_file(tree: BorrowedFd<'_>, path: &[u8], stays: impl Fn(&[u8]) -> bool) -> Result<(), MirrorError> {
    let (directory, name) = paths::split(path);
    let parent = match beneath::open(tree, directory, OFlags::PATH | OFlags::DIRECTORY) {
        Ok(parent) => parent,
        Err(error) if beneath::is_nothing(&error) => return Ok(()),
        Err(error) => return Err(MirrorError::io(directory, error)),
    };
    match unlinkat(parent.as_fd(), name, AtFlags::empty()) {
        Ok(()) | Err(Errno::NOENT | Errno::ISDIR) => {}
        Err(errno) => return Err(MirrorError::io(path, errno)),
    }
    if directory.is_empty() { Ok(()) } else { remove_empty(tree, directory, stays) }
}

/// Removes a directory that is empty, and those above it that this leaves empty, up to one that `stays`.
fn remove_empty(tree: BorrowedFd<'_>, path: &[u8], stays: impl Fn(&[u8]) -> bool) -> Result<(), MirrorError> {
    let mut path = path;
    while !path.is_empty() && !stays(path) {
        let (directory, name) = paths::split(path);
        let parent = match beneath::open(tree, directory, OFlags::PATH | OFlags::DIRECTORY) {
            Ok(parent) => parent,
            Err(error) if beneath::is_nothing(&error) => return Ok(()),
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

/// Removes the git directory of the repository at `path`, which we have written there, if there is one.
pub(super) fn git_dir(tree: BorrowedFd<'_>, path: &[u8]) -> Result<(), MirrorError> {
    let directory = match beneath::open(tree, path, OFlags::PATH | OFlags::DIRECTORY) {
        Ok(directory) => directory,
        Err(error) if beneath::is_nothing(&error) => return Ok(()),
        Err(error) => return Err(MirrorError::io(path, error)),
    };
    let git = format!("/proc/self/fd/{}/.git", directory.as_raw_fd());
    match std::fs::remove_dir_all(git) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => Err(MirrorError::io(path, error)),
        _ => Ok(()),
    }
}

/// Removes all git directories but that of the top, wherever they come from.
pub(super) fn nested_git_dirs(tree: BorrowedFd<'_>) -> Result<(), MirrorError> {
    let leaves = beneath::leaves(tree, b"", MAX_FILES).map_err(|error| MirrorError::io(b"", error))?;
    let leaves = leaves.unwrap_or_default();
    let repositories: BTreeSet<&[u8]> = leaves
        .iter()
        .flat_map(|path| paths::ancestors(path).map(paths::split))
        .filter(|(repository, name)| *name == GIT && !repository.is_empty())
        .map(|(repository, _)| repository)
        .collect();
    repositories.into_iter().try_for_each(|repository| git_dir(tree, repository))
}
