//! Finds the new directories of a layer that git ignores as a whole. A build may create a million files in such a
//! directory, and none of them belongs to the tree. Sparing the directory avoids a query for each file and, in most
//! runs, reading it.
//!
//! A directory in which the tree before the step has a covered path is never spared. The ignore rules are queried
//! only if there is much to spare, since a query starts a program.

use std::collections::BTreeSet;
use std::io;
use std::os::fd::{AsFd as _, BorrowedFd};

use rustix::fs::{Dir, FileType, OFlags};

use super::{ScanError, SparingRules, io_error, open_for_owner, reopen_directory};
use proctor_git::files::paths;
use proctor_git::files::read_beneath;

/// Minimum number of entries that makes a query of the rules worthwhile.
const MIN_ENTRIES_TO_QUERY: usize = 256;
/// Number of levels of new directories that are queried. Deeper directories inside directories that are not ignored
/// are read like everything else.
const MAX_ROUNDS: usize = 4;
/// Maximum number of directories in one query; if there are more, all of them are read.
const MAX_QUERIED: usize = 10_000;

/// Returns the new directories of the layer that are ignored.
pub(super) fn spared_directories(
    upper: BorrowedFd<'_>,
    spare: SparingRules<'_>,
) -> Result<BTreeSet<Vec<u8>>, ScanError> {
    let top = reopen_directory(upper).map_err(|source| io_error(b".", source))?;
    let mut candidates = Vec::new();
    find_new_directories(top.as_fd(), b"", spare, &mut candidates)?;
    let mut found = BTreeSet::new();
    for _ in 0..MAX_ROUNDS {
        if candidates.is_empty() || candidates.len() > MAX_QUERIED || !have_enough_entries(top.as_fd(), &candidates) {
            break;
        }
        let queried: Vec<Vec<u8>> = candidates.iter().map(|path| [path, &b"/"[..]].concat()).collect();
        let queried: Vec<&[u8]> = queried.iter().map(Vec::as_slice).collect();
        let ignored = spare.ignored.are_ignored(&queried)?;
        let (spared, read): (Vec<_>, Vec<_>) = candidates.into_iter().zip(ignored).partition(|(_, ignored)| *ignored);
        found.extend(spared.into_iter().map(|(path, _)| path));
        candidates = read.iter().flat_map(|(path, _)| subdirectories(top.as_fd(), path)).collect();
    }
    Ok(found)
}

/// Adds the outermost directories of the layer in which the tree has no covered path.
fn find_new_directories(
    dir: BorrowedFd<'_>,
    path: &[u8],
    spare: SparingRules<'_>,
    found: &mut Vec<Vec<u8>>,
) -> Result<(), ScanError> {
    for name in directory_names(dir).map_err(|source| io_error(path, source))? {
        let path = paths::join(path, &name);
        if paths::is_in_git_dir(&path) {
            continue;
        }
        if !spare.view.has_covered_at_or_below(&path) {
            found.push(path);
            continue;
        }
        let failed = |source| io_error(&path, source);
        let stat = read_beneath::stat_at(dir, &name).map_err(failed)?;
        let opened = open_for_owner(dir, &name, &stat, OFlags::DIRECTORY).map_err(failed)?;
        find_new_directories(opened.as_fd(), &path, spare, found)?;
    }
    Ok(())
}

/// Returns the subdirectories of a directory in the layer. Returns none if the directory cannot be listed; it is
/// then read like everything else.
fn subdirectories(top: BorrowedFd<'_>, path: &[u8]) -> Vec<Vec<u8>> {
    let opened = read_beneath::open(top, path, OFlags::RDONLY | OFlags::DIRECTORY);
    let names = opened.and_then(|dir| directory_names(dir.as_fd())).unwrap_or_default();
    let inner = names.into_iter().filter(|name| name != b".git");
    inner.map(|name| paths::join(path, &name)).collect()
}

/// Returns the names of the subdirectories of an open directory.
fn directory_names(dir: BorrowedFd<'_>) -> io::Result<Vec<Vec<u8>>> {
    let mut names = Vec::new();
    for entry in Dir::read_from(dir)? {
        let entry = entry?;
        let name = entry.file_name().to_bytes();
        let is_directory = match entry.file_type() {
            FileType::Directory => true,
            FileType::Unknown => FileType::from_raw_mode(read_beneath::stat_at(dir, name)?.st_mode).is_dir(),
            _ => false,
        };
        if is_directory && name != b"." && name != b".." {
            names.push(name.to_vec());
        }
    }
    Ok(names)
}

/// Checks whether the directories contain enough entries to make a query worthwhile.
fn have_enough_entries(top: BorrowedFd<'_>, directories: &[Vec<u8>]) -> bool {
    let mut pending = directories.to_vec();
    let mut count = pending.len();
    while let Some(path) = pending.pop() {
        if count >= MIN_ENTRIES_TO_QUERY {
            return true;
        }
        let Ok(dir) = read_beneath::open(top, &path, OFlags::RDONLY | OFlags::DIRECTORY) else { continue };
        let Ok(entries) = Dir::read_from(&dir) else { continue };
        for entry in entries.flatten().take(MIN_ENTRIES_TO_QUERY) {
            let name = entry.file_name().to_bytes();
            if name != b"." && name != b".." {
                count += 1;
                if entry.file_type() == FileType::Directory {
                    pending.push(paths::join(&path, name));
                }
            }
        }
    }
    count >= MIN_ENTRIES_TO_QUERY
}
