//! Compares the files of a worktree with the tree of a commit by their bytes, as far as libgit2 does not.
//!
//! libgit2 does not read a file if its index entry says so (`skip-worktree`, `assume-unchanged`), counts a file that the
//! index lacks as deleted, ignores the mode if `core.fileMode` is off, ignores the time of the last status change if
//! `core.trustctime` is off, and compares content after the conversion of line endings and `$Id$`. Steps see the bytes and
//! the modes.

use std::collections::{BTreeSet, HashMap};
use std::io;
use std::os::fd::{AsFd as _, BorrowedFd};

use git2::{FileMode, IndexEntry, IndexEntryExtendedFlag, IndexEntryFlag, IndexTime, Oid, Repository, Tree};
use rustix::fs::{FileType, Stat, stat};

use crate::files::file_stat::{FileStat, FileTime};
use crate::files::repo_path::RepoPath;
use crate::files::{paths, read_beneath};
use crate::index::IndexStat;
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
        stats: index.iter().map(|entry| (entry.path.clone(), trusted_stat(&entry))).collect(),
        index_time: index.path().and_then(|path| stat(path).ok()).map(|stat| FileStat::from_stat(&stat).mtime),
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
    /// The paths of the index with their stat data; `None` if an entry asks git not to look at the file.
    stats: HashMap<Vec<u8>, Option<IndexStat>>,
    /// The time at which the index was written.
    index_time: Option<FileTime>,
}

impl BytesComparison<'_> {
    /// Returns whether the attributes file of a directory exists, in the worktree or in the index.
    fn has_attributes(&self, directory: &[u8]) -> io::Result<bool> {
        let path = paths::join(directory, ATTRIBUTES_FILE);
        Ok(self.stats.contains_key(&path) || read_beneath::open_entry(self.top, &path)?.is_some())
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
        if !self.is_unchanged_since_index(path, stat) {
            let blob = blob_at(self.top, path, ObjectFormat::Sha1)?;
            return Ok(blob.is_some_and(|blob| blob.id.as_bytes() == id.as_bytes()));
        }
        // Each conversion that libgit2 knows makes a file smaller.
        Ok(!converts || self.repository.odb()?.read_header(id)?.0 as u64 == read_beneath::size_of(stat))
    }
}

impl BytesComparison<'_> {
    /// Returns whether the stat data of a file, which libgit2 has compared less strictly, prove that it has not changed
    /// since the index was written.
    fn is_unchanged_since_index(&self, path: &[u8], stat: &Stat) -> bool {
        let now = FileStat::from_stat(stat);
        let is_settled = self.index_time.is_some_and(|written| !now.is_racy(written));
        is_settled && self.stats.get(path).is_some_and(|stat| *stat == Some(IndexStat::from_file_stat(&now)))
    }
}

fn mode_of(stat: &Stat) -> FileMode {
    if read_beneath::is_executable(stat) { FileMode::BlobExecutable } else { FileMode::Blob }
}

/// Returns the stat data of an index entry; `None` if it asks git not to look at its file.
fn trusted_stat(entry: &IndexEntry) -> Option<IndexStat> {
    let is_flagged = entry.flags & IndexEntryFlag::VALID.bits() != 0
        || entry.flags_extended & IndexEntryExtendedFlag::SKIP_WORKTREE.bits() != 0;
    #[expect(clippy::cast_sign_loss, reason = "an index keeps the low 32 bits")]
    let time = |time: IndexTime| (time.seconds() as u32, time.nanoseconds());
    (!is_flagged).then(|| IndexStat {
        mtime: time(entry.mtime),
        ctime: time(entry.ctime),
        ino: entry.ino,
        size: entry.file_size,
    })
}

/// Returns whether rules outside of the tree can convert files.
fn has_global_rules(repository: &Repository) -> bool {
    let has_key = |key: &str| repository.config().and_then(|config| config.get_entry(key).map(drop)).is_ok();
    has_key("core.autocrlf")
        || has_key("core.attributesFile")
        || repository.commondir().join("info/attributes").symlink_metadata().is_ok()
}

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::io::Write as _;
    use std::path::Path;
    use std::time::{Duration, SystemTime};

    use git2::Signature;

    use super::*;

    /// libgit2 overlooks such an edit if `core.trustctime` is off.
    #[test]
    fn finds_edit_with_same_size_and_time() {
        let dir = tempfile::tempdir().expect("a directory");
        let repository = Repository::init(dir.path()).expect("a repository");
        let long_ago = SystemTime::UNIX_EPOCH + Duration::from_secs(1_000_000_000);
        let write = |name: &str, text: &str| {
            let opened = File::options().write(true).create(true).truncate(true).open(dir.path().join(name));
            let mut file = opened.expect("a file");
            file.write_all(text.as_bytes()).expect("writes");
            file.set_modified(long_ago).expect("sets the time");
        };
        let mut index = repository.index().expect("an index");
        for name in ["edited", "same"] {
            write(name, "one\n");
            index.add_path(Path::new(name)).expect("adds");
        }
        index.write().expect("writes the index");
        let tree = index.write_tree().and_then(|id| repository.find_tree(id)).expect("a tree");
        let author = Signature::now("a", "a@example.org").expect("a signature");
        repository.commit(Some("HEAD"), &author, &author, "c", &tree, &[]).expect("commits");
        write("edited", "eno\n");
        let top = File::open(dir.path()).expect("opens");
        let unchanged = TreeDifference { changed: Vec::new(), deleted: Vec::new() };
        let found = compare_bytes(&repository, top.as_fd(), &tree, unchanged).expect("compares");
        assert_eq!(found.changed, [RepoPath(b"edited".to_vec())]);
        assert!(found.deleted.is_empty());
    }
}
