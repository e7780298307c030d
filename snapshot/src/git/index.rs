//! The index of one repository as it was read: what git would add its changes to.

use serde::{Deserialize, Serialize};

use super::object::{ObjectFormat, ObjectId};
use super::protocol::RepoPath;
use super::tree_id::{TreeFile, tree_id};

pub(super) mod from_file;
pub(super) mod from_libgit2;
pub(crate) mod to_file;

/// The index of one repository, and what of its config decides how files become blobs.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Index {
    /// Where the repository's work tree stands in the outermost one; empty for that itself.
    pub at: RepoPath,
    /// How it names objects.
    pub format: ObjectFormat,
    /// The tree of the commit of HEAD; `null` before the first.
    pub head_tree: Option<ObjectId>,
    /// When the index was written: what changed no earlier than that may differ unseen.
    pub written: Moment,
    /// The entries, sorted by path, then by stage.
    #[serde(skip)]
    pub entries: Vec<IndexEntry>,
    /// What the config says of files.
    pub rules: FileRules,
}

/// One entry of an index.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct IndexEntry {
    /// The path, relative to the top of its own repository.
    pub path: RepoPath,
    /// The mode of a tree entry: a file, a link or a submodule.
    pub mode: u32,
    /// The blob, or the commit of a submodule.
    pub id: ObjectId,
    /// 0, or the side of a conflict that it is.
    pub stage: u8,
    /// Whether it says no more than that a file is going to be added (`git add -N`).
    pub intent_to_add: bool,
    /// Whether it need not be in the work tree.
    pub skip_worktree: bool,
    /// What the file was like when the entry was made; `null` where that is not known.
    pub stat: Option<IndexStat>,
}

/// A moment of a file system's clock: seconds and nanoseconds.
pub type Moment = (u32, u32);

/// What an index remembers of a file, cut to 32 bits as there.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct IndexStat {
    /// When its content changed.
    pub mtime: Moment,
    /// When anything of it changed.
    pub ctime: Moment,
    /// Its inode.
    pub ino: u32,
    /// Its length; 0 too where git does not trust the rest.
    pub size: u32,
}

/// What of a repository's config decides how a file becomes a blob.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct FileRules {
    /// `core.fileMode`: whether exec bits on disk count.
    pub file_mode: bool,
    /// `core.symlinks`: whether a plain file may stand for a link.
    pub symlinks: bool,
    /// `core.autocrlf` is not off.
    pub autocrlf: bool,
    /// Attributes come from a place that is not looked at here (`core.attributesFile`, `attr.tree`).
    pub foreign_attributes: bool,
    /// What `info/attributes` says, in hex; `null` where it cannot be read as such a file.
    pub own_attributes: Option<RepoPath>,
}

/// The mode of a regular file.
pub(crate) const FILE: u32 = 0o100_644;
/// The mode of a file that may be executed.
pub(crate) const EXECUTABLE: u32 = 0o100_755;
/// The mode of a symbolic link.
pub(crate) const SYMLINK: u32 = 0o120_000;
/// The mode of a submodule.
pub(crate) const GITLINK: u32 = 0o160_000;

/// Whether a mode is that of a file.
pub(crate) fn is_file(mode: u32) -> bool {
    matches!(mode, FILE | EXECUTABLE)
}

impl Index {
    /// The entries of each path, in the order of the paths.
    pub(crate) fn paths(&self) -> impl Iterator<Item = &[IndexEntry]> {
        by_path(&self.entries)
    }

    /// The same index, of which the entries are told elsewhere. They stay in the memory of this process, which is about
    /// to end: to free each by itself takes longer.
    pub(super) fn without_entries(mut self) -> Self {
        std::mem::forget(std::mem::take(&mut self.entries));
        self
    }

    /// The paths of the files in it, sorted and each once.
    pub(crate) fn files(&self) -> impl Iterator<Item = &[u8]> {
        let files = self.paths().filter_map(|entries| entries.iter().find(|entry| entry.mode != GITLINK));
        files.map(|entry| entry.path.0.as_slice())
    }

    /// Whether it has a submodule at `path`, which is relative to the outermost work tree.
    pub(crate) fn holds_gitlink(&self, path: &[u8]) -> bool {
        let inside = match self.at.0.as_slice() {
            b"" => Some(path),
            at => path.strip_prefix(at).and_then(|rest| rest.strip_prefix(b"/")),
        };
        let entries = inside.map_or(&[][..], |inside| self.at_path(inside));
        entries.iter().any(|entry| entry.mode == GITLINK)
    }

    /// The entries of one path.
    pub(crate) fn at_path(&self, path: &[u8]) -> &[IndexEntry] {
        let from = self.entries.partition_point(|entry| entry.path.0.as_slice() < path);
        let count = self.entries[from..].iter().take_while(|entry| entry.path.0 == path).count();
        &self.entries[from..from + count]
    }

    /// The id of the tree that the index holds; none where a path of it is in conflict.
    pub(crate) fn tree(&self) -> Option<ObjectId> {
        if self.entries.iter().any(|entry| entry.stage != 0) {
            return None;
        }
        let files = self.entries.iter().filter(|entry| !entry.intent_to_add);
        let files = files.map(|entry| TreeFile { path: &entry.path.0, mode: entry.mode, id: entry.id });
        Some(tree_id(self.format, &files.collect::<Vec<_>>()))
    }
}

/// The entries of each path; they are sorted.
pub(crate) fn by_path(entries: &[IndexEntry]) -> impl Iterator<Item = &[IndexEntry]> {
    entries.chunk_by(|one, next| one.path == next.path)
}

/// The entry of a path that git takes its mode from: of a conflict, our side, then the base.
pub(crate) fn leading(entries: &[IndexEntry]) -> Option<&IndexEntry> {
    let of = |stage| entries.iter().find(|entry| entry.stage == stage);
    of(0).or_else(|| of(2)).or_else(|| of(1)).or_else(|| of(3))
}

impl IndexEntry {
    /// Whether a file that looks like `now` is the one that the entry was made of, as far as can be
    /// told without reading it: nothing about it differs, and it was written before the index was.
    pub(crate) fn is_of(&self, now: &IndexStat, written: Moment) -> bool {
        let Some(then) = self.stat else { return false };
        self.stage == 0 && !self.intent_to_add && then == *now && then.mtime < written && then.ctime < written
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_that_is_as_young_as_the_index_is_not_trusted() {
        let stat = IndexStat { mtime: (5, 1), ctime: (5, 2), ino: 7, size: 3 };
        let id = ObjectId::from_raw(&[1; 20]).expect("an id");
        let path = RepoPath(b"a".to_vec());
        let stat_of = Some(stat);
        let entry =
            IndexEntry { path, mode: FILE, id, stage: 0, intent_to_add: false, skip_worktree: false, stat: stat_of };
        assert!(entry.is_of(&stat, (5, 3)) && entry.is_of(&stat, (6, 0)));
        for written in [(5, 2), (5, 1), (4, 9)] {
            assert!(!entry.is_of(&stat, written), "{written:?}");
        }
        for other in [
            IndexStat { mtime: (5, 0), ..stat },
            IndexStat { ctime: (4, 2), ..stat },
            IndexStat { ino: 8, ..stat },
            IndexStat { size: 0, ..stat },
        ] {
            assert!(!entry.is_of(&other, (9, 0)), "{other:?}");
        }
        assert!(!IndexEntry { stage: 2, ..entry.clone() }.is_of(&stat, (9, 0)));
        assert!(!IndexEntry { intent_to_add: true, ..entry.clone() }.is_of(&stat, (9, 0)));
        assert!(!IndexEntry { stat: None, ..entry }.is_of(&stat, (9, 0)));
    }

    #[test]
    fn of_a_conflict_our_side_leads() {
        let id = ObjectId::from_raw(&[1; 20]).expect("an id");
        let of = |stages: &[u8]| {
            let entry = |stage: &u8| IndexEntry {
                path: RepoPath(b"a".to_vec()),
                mode: FILE,
                id,
                stage: *stage,
                intent_to_add: false,
                skip_worktree: false,
                stat: None,
            };
            leading(&stages.iter().map(entry).collect::<Vec<_>>()).map(|entry| entry.stage)
        };
        assert_eq!(
            (of(&[0]), of(&[1, 2, 3]), of(&[1, 3]), of(&[3]), of(&[])),
            (Some(0), Some(2), Some(1), Some(3), None)
        );
    }
}
