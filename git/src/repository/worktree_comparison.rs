//! Compares the files of a worktree with the tree of a commit by their bytes, as far as libgit2 does not.
//!
//! libgit2 does not read a file if its index entry says so (`skip-worktree`, `assume-unchanged`), counts a file that the
//! index lacks as deleted, ignores the mode if `core.fileMode` is off, and compares content after the conversion of line
//! endings and `$Id$`. Steps see the bytes and the modes.

use std::collections::{BTreeSet, HashMap};
use std::io;
use std::os::fd::{AsFd as _, BorrowedFd};

use git2::{FileMode, IndexEntry, IndexEntryExtendedFlag, IndexEntryFlag, Oid, Repository, Tree};
use rustix::fs::{FileType, Stat};

use crate::files::repo_path::RepoPath;
use crate::files::{paths, read_beneath};
use crate::object::blob_id::blob_at;
use crate::object::object_id::{ObjectFormat, ObjectKind, object_id};
use crate::repository::tree_comparison::{MAX_ENTRIES, TreeComparisonError, TreeDifference, TreeItem, entries};

const ATTRIBUTES_FILE: &[u8] = b".gitattributes";

/// Corrects a comparison by libgit2 of the tree `from` with the worktree at `top`.
///
/// # Errors
/// The tree, the index or a file cannot be read.
pub(super) fn compare_bytes(
    repository: &Repository,
    top: BorrowedFd<'_>,
    from: &Tree<'_>,
    found: TreeDifference,
) -> Result<TreeDifference, TreeComparisonError> {
    let index = repository.index()?;
    let comparison = BytesComparison {
        repository,
        top,
        flags: index.iter().map(|entry| (entry.path.clone(), is_flagged(&entry))).collect(),
    };
    let mut changed: BTreeSet<RepoPath> = found.changed.into_iter().collect();
    let mut deleted: BTreeSet<RepoPath> = found.deleted.into_iter().collect();
    let (mut pending, mut count) = (vec![(Vec::new(), from.id(), has_global_rules(repository))], 0);
    while let Some((directory, tree, converts_above)) = pending.pop() {
        let converts = converts_above || comparison.has_attributes(&directory)?;
        let items = entries(repository, Some(tree))?;
        count += items.len();
        if count > MAX_ENTRIES {
            return Err(TreeComparisonError::TooManyEntries);
        }
        for (name, item) in items {
            let path = RepoPath(paths::join(&directory, &name));
            if item.mode == FileMode::Tree {
                pending.push((path.0, item.id, converts));
            } else if item.is_file() && !changed.contains(&path) {
                match comparison.compare(&path.0, &item, converts)? {
                    None => {}
                    Some(true) => drop(deleted.remove(&path)),
                    Some(false) => {
                        deleted.remove(&path);
                        changed.insert(path);
                    }
                }
            }
        }
    }
    Ok(TreeDifference { changed: changed.into_iter().collect(), deleted: deleted.into_iter().collect() })
}

struct BytesComparison<'a> {
    repository: &'a Repository,
    top: BorrowedFd<'a>,
    /// The paths of the index; true if an entry asks git not to look at the file.
    flags: HashMap<Vec<u8>, bool>,
}

impl BytesComparison<'_> {
    /// Returns whether the attributes file of a directory exists, in the worktree or in the index.
    fn has_attributes(&self, directory: &[u8]) -> io::Result<bool> {
        let path = paths::join(directory, ATTRIBUTES_FILE);
        Ok(self.flags.contains_key(&path) || read_beneath::open_entry(self.top, &path)?.is_some())
    }

    /// Returns whether the worktree has the file of a commit; `None` if no file is at its path. `converts` is true if the
    /// content of a file can differ from its blob although git sees no difference.
    fn compare(&self, path: &[u8], item: &TreeItem, converts: bool) -> Result<Option<bool>, TreeComparisonError> {
        let Some((fd, stat)) = read_beneath::open_entry(self.top, path)? else { return Ok(None) };
        Ok(Some(match FileType::from_raw_mode(stat.st_mode) {
            FileType::Directory => return Ok(None),
            FileType::Symlink => {
                let target = read_beneath::link_target(fd.as_fd())?;
                let id = object_id(ObjectFormat::Sha1, ObjectKind::Blob, &target);
                item.mode == FileMode::Link && id.as_bytes() == item.id.as_bytes()
            }
            FileType::RegularFile => {
                item.mode == mode_of(&stat) && self.has_same_content(path, item.id, &stat, converts)?
            }
            _ => false,
        }))
    }

    fn has_same_content(&self, path: &[u8], id: Oid, stat: &Stat, converts: bool) -> Result<bool, TreeComparisonError> {
        if self.flags.get(path).is_none_or(|is_flagged| *is_flagged) {
            let blob = blob_at(self.top, path, ObjectFormat::Sha1)?;
            return Ok(blob.is_some_and(|blob| blob.id.as_bytes() == id.as_bytes()));
        }
        // Each conversion that libgit2 knows makes a file smaller.
        Ok(!converts || self.repository.odb()?.read_header(id)?.0 as u64 == read_beneath::size_of(stat))
    }
}

fn mode_of(stat: &Stat) -> FileMode {
    if read_beneath::is_executable(stat) { FileMode::BlobExecutable } else { FileMode::Blob }
}

/// Returns whether an index entry asks git not to look at its file.
fn is_flagged(entry: &IndexEntry) -> bool {
    entry.flags & IndexEntryFlag::VALID.bits() != 0
        || entry.flags_extended & IndexEntryExtendedFlag::SKIP_WORKTREE.bits() != 0
}

/// Returns whether rules outside of the tree can convert files.
fn has_global_rules(repository: &Repository) -> bool {
    let has_key = |key: &str| repository.config().and_then(|config| config.get_entry(key).map(drop)).is_ok();
    has_key("core.autocrlf")
        || has_key("core.attributesFile")
        || repository.commondir().join("info/attributes").symlink_metadata().is_ok()
}
