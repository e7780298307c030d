//! Represents the index of one repository as it was read.

use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};

use crate::files::file_stat::{FileStat, FileTime};
use crate::files::repo_path::RepoPath;
use crate::object::object_id::{ObjectFormat, ObjectId};
use crate::object::tree_identity::{TreeFile, tree_id};

pub(crate) mod index_parser;
pub mod index_writer;

/// The index of one repository, and the config that determines how files are converted to blobs.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct GitIndex {
    /// The path of the repository's work tree in the outermost one; empty for the outermost one itself.
    pub at: RepoPath,
    /// The format of the object ids.
    pub format: ObjectFormat,
    /// The tree of HEAD's commit; `null` before the first commit.
    pub head_tree: Option<ObjectId>,
    /// Time at which the index was written. A file that changed at this time or later may differ although its stat data
    /// match.
    pub written: IndexTimestamp,
    /// The entries, sorted by path, then by stage.
    #[serde(skip)]
    pub entries: Vec<IndexEntry>,
    /// The config that applies to files.
    pub rules: ConversionConfig,
}

/// One entry of an index.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct IndexEntry {
    /// The path, relative to the top of the repository that contains it.
    pub path: RepoPath,
    /// The mode of a tree entry: a file, a link or a submodule.
    pub mode: u32,
    /// The blob, or the commit of a submodule.
    pub id: ObjectId,
    /// 0, or the side of a conflict.
    pub stage: u8,
    /// True if the entry only announces a file (`git add -N`).
    pub intent_to_add: bool,
    /// True if the file may be missing in the work tree.
    pub skip_worktree: bool,
    /// The stat data of the file when the entry was made; `null` if they are not known.
    pub stat: Option<IndexStat>,
}

/// Returns the sha256 of an index file's entries without their stat data; `None` if the file is not a complete index of
/// the common kind. Git updates stat data whenever it looks at files.
pub fn entries_digest(file: &[u8]) -> Option<[u8; 32]> {
    let mut hash = Sha256::new();
    for entry in index_parser::parse(file)? {
        let flags = [entry.stage, entry.intent_to_add.into(), entry.skip_worktree.into()];
        hash.update(entry.mode.to_le_bytes());
        hash.update(entry.id.as_bytes());
        hash.update(flags);
        hash.update((entry.path.0.len() as u64).to_le_bytes());
        hash.update(&entry.path.0);
    }
    Some(hash.finalize().into())
}

/// A time of a file system's clock: seconds and nanoseconds.
pub type IndexTimestamp = (u32, u32);

/// The stat data that an index stores, truncated to 32 bits.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct IndexStat {
    /// Time of the last content change.
    pub mtime: IndexTimestamp,
    /// Time of the last status change.
    pub ctime: IndexTimestamp,
    /// The inode number.
    pub ino: u32,
    /// The length; also 0 if git does not trust the other stat data.
    pub size: u32,
}

impl IndexStat {
    /// Returns stat data in the form that a git index stores.
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "an index keeps the low 32 bits")]
    pub fn from_file_stat(stat: &FileStat) -> Self {
        let moment = |(seconds, nanoseconds): FileTime| (seconds as u32, nanoseconds);
        Self { mtime: moment(stat.mtime), ctime: moment(stat.ctime), ino: stat.ino as u32, size: stat.size as u32 }
    }
}

/// The part of a repository's config that determines how files are converted to blobs.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ConversionConfig {
    /// `core.fileMode`: whether exec bits on disk count.
    pub file_mode: bool,
    /// `core.symlinks`: if false, a plain file may represent a link.
    pub symlinks: bool,
    /// True unless `core.autocrlf` is off.
    pub autocrlf: bool,
    /// True if attributes come from a file that this module does not read (`core.attributesFile`, `attr.tree`).
    pub foreign_attributes: bool,
    /// The content of `info/attributes`, in hex; `null` if it cannot be read.
    pub own_attributes: Option<RepoPath>,
}

/// The mode of a regular file.
pub const FILE_MODE: u32 = 0o100_644;
/// The mode of an executable file.
pub const EXECUTABLE_MODE: u32 = 0o100_755;
/// The mode of a symbolic link.
pub const SYMLINK_MODE: u32 = 0o120_000;
/// The mode of a submodule.
pub const GITLINK_MODE: u32 = 0o160_000;

/// Checks whether a mode is that of a file.
pub fn is_file_mode(mode: u32) -> bool {
    matches!(mode, FILE_MODE | EXECUTABLE_MODE)
}

impl GitIndex {
    /// Returns the entries of each path, in the order of the paths.
    pub(crate) fn entries_by_path(&self) -> impl Iterator<Item = &[IndexEntry]> {
        group_by_path(&self.entries)
    }

    /// Returns the index without its entries, which are sent separately. The entries are leaked, since freeing each
    /// of them takes time and the process exits soon.
    pub(crate) fn without_entries(mut self) -> Self {
        std::mem::forget(std::mem::take(&mut self.entries));
        self
    }

    /// Returns the paths of the files, sorted and without duplicates.
    pub fn files(&self) -> impl Iterator<Item = &[u8]> {
        let files =
            self.entries_by_path().filter_map(|entries| entries.iter().find(|entry| entry.mode != GITLINK_MODE));
        files.map(|entry| entry.path.0.as_slice())
    }

    /// Checks whether the index has a submodule at `path`, which is relative to the outermost work tree.
    pub fn has_gitlink(&self, path: &[u8]) -> bool {
        let inside = match self.at.0.as_slice() {
            b"" => Some(path),
            at => path.strip_prefix(at).and_then(|rest| rest.strip_prefix(b"/")),
        };
        let entries = inside.map_or(&[][..], |inside| self.entries_at(inside));
        entries.iter().any(|entry| entry.mode == GITLINK_MODE)
    }

    /// Returns the entries of one path.
    pub(crate) fn entries_at(&self, path: &[u8]) -> &[IndexEntry] {
        let from = self.entries.partition_point(|entry| entry.path.0.as_slice() < path);
        let count = self.entries[from..].iter().take_while(|entry| entry.path.0 == path).count();
        &self.entries[from..from + count]
    }

    /// Returns the id of the index's tree, or `None` if a path is in conflict.
    pub(crate) fn tree(&self) -> Option<ObjectId> {
        if self.entries.iter().any(|entry| entry.stage != 0) {
            return None;
        }
        let files = self.entries.iter().filter(|entry| !entry.intent_to_add);
        let files = files.map(|entry| TreeFile { path: &entry.path.0, mode: entry.mode, id: entry.id });
        Some(tree_id(self.format, &files.collect::<Vec<_>>()))
    }
}

/// Groups sorted entries by path.
pub fn group_by_path(entries: &[IndexEntry]) -> impl Iterator<Item = &[IndexEntry]> {
    entries.chunk_by(|one, next| one.path == next.path)
}

/// Returns the entry from which git takes the mode of a path: for a conflict, our side, then the base.
pub fn primary_entry(entries: &[IndexEntry]) -> Option<&IndexEntry> {
    let of = |stage| entries.iter().find(|entry| entry.stage == stage);
    of(0).or_else(|| of(2)).or_else(|| of(1)).or_else(|| of(3))
}

impl IndexEntry {
    /// Checks whether a file with the stat data `now` is the file that the entry was made from, as far as stat data
    /// can show: all of them are equal, and the file was written before the index.
    pub fn is_unchanged(&self, current: &IndexStat, written: IndexTimestamp) -> bool {
        let Some(then) = self.stat else { return false };
        self.stage == 0 && !self.intent_to_add && then == *current && then.mtime < written && then.ctime < written
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn distrusts_files_as_new_as_index() {
        let stat = IndexStat { mtime: (5, 1), ctime: (5, 2), ino: 7, size: 3 };
        let id = ObjectId::from_raw(&[1; 20]).expect("an id");
        let path = RepoPath(b"a".to_vec());
        let stat_of = Some(stat);
        let entry = IndexEntry {
            path,
            mode: FILE_MODE,
            id,
            stage: 0,
            intent_to_add: false,
            skip_worktree: false,
            stat: stat_of,
        };
        assert!(entry.is_unchanged(&stat, (5, 3)) && entry.is_unchanged(&stat, (6, 0)));
        for written in [(5, 2), (5, 1), (4, 9)] {
            assert!(!entry.is_unchanged(&stat, written), "{written:?}");
        }
        for other in [
            IndexStat { mtime: (5, 0), ..stat },
            IndexStat { ctime: (4, 2), ..stat },
            IndexStat { ino: 8, ..stat },
            IndexStat { size: 0, ..stat },
        ] {
            assert!(!entry.is_unchanged(&other, (9, 0)), "{other:?}");
        }
        assert!(!IndexEntry { stage: 2, ..entry.clone() }.is_unchanged(&stat, (9, 0)));
        assert!(!IndexEntry { intent_to_add: true, ..entry.clone() }.is_unchanged(&stat, (9, 0)));
        assert!(!IndexEntry { stat: None, ..entry }.is_unchanged(&stat, (9, 0)));
    }

    #[test]
    fn conflict_uses_our_side_first() {
        let id = ObjectId::from_raw(&[1; 20]).expect("an id");
        let of = |stages: &[u8]| {
            let entry = |stage: &u8| IndexEntry {
                path: RepoPath(b"a".to_vec()),
                mode: FILE_MODE,
                id,
                stage: *stage,
                intent_to_add: false,
                skip_worktree: false,
                stat: None,
            };
            primary_entry(&stages.iter().map(entry).collect::<Vec<_>>()).map(|entry| entry.stage)
        };
        assert_eq!(
            (of(&[0]), of(&[1, 2, 3]), of(&[1, 3]), of(&[3]), of(&[])),
            (Some(0), Some(2), Some(1), Some(3), None)
        );
    }
}
