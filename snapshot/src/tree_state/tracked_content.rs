//! Computes how git would add the tracked content of a work tree: for each path of an index, the tree entry that
//! `git add -u` and `git write-tree` would make.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::io;
use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};

use rustix::fs::{FileType, Stat};

use crate::entries::{EntryTree, LookupCursor, ScannedKind};
use crate::snapshot::unknown_tree::UnknownTree;
use proctor_core::model::drift::display_path;
use proctor_git::files::file_stat::FileStat;
use proctor_git::files::{paths, read_beneath};
use proctor_git::index::{
    ConversionConfig, EXECUTABLE_MODE, FILE_MODE, GITLINK_MODE, GitIndex, IndexEntry, IndexStat, SYMLINK_MODE,
    group_by_path, is_file_mode, primary_entry,
};
use proctor_git::object::attributes::{AttributesError, Conversion, GitAttributes};
use proctor_git::object::blob_id::blob_at;
use proctor_git::object::object_id::{ObjectId, ObjectKind, object_id};
use proctor_git::object::tree_identity::{TreeFile, tree_id};
use proctor_git::program::TreeEntries;

/// The commits of the repositories inside a work tree, by path.
pub(crate) type NestedCommits = BTreeMap<Vec<u8>, Option<ObjectId>>;

/// The tracked content of one repository.
#[derive(Debug)]
pub(crate) struct TrackedContent<'a> {
    index: &'a GitIndex,
    /// The tree entries of all paths for which they are known; sorted.
    files: Vec<TreeFile<'a>>,
    /// The paths that only git can convert.
    pub(crate) unclear: Vec<&'a [u8]>,
    /// Why git would refuse to add a file.
    pub(crate) refused: Option<UnknownTree>,
}

/// The result for one path.
enum TreeEntryOutcome {
    /// The path has this tree entry.
    Entry(u32, ObjectId),
    /// The path is removed.
    Removed,
    /// Git may convert the file.
    Unclear,
    /// Git cannot add the file.
    Refused(UnknownTree),
}

impl<'a> TrackedContent<'a> {
    /// Examines every path of `index`, below the outermost work tree `top`.
    ///
    /// # Errors
    /// A file cannot be read.
    pub(crate) fn examine(
        index: &'a GitIndex,
        top: BorrowedFd<'a>,
        entries: &'a EntryTree,
        commits: &'a NestedCommits,
    ) -> io::Result<Self> {
        let (first, second) = split_for_threads(&index.entries);
        let part = |part| Self::examine_entries(part, index, top, entries, commits);
        if second.is_empty() {
            return part(first);
        }
        let (tracked, others) = std::thread::scope(|scope| {
            let others = scope.spawn(|| part(second));
            (part(first), others.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)))
        });
        let (mut tracked, others) = (tracked?, others?);
        tracked.files.extend(others.files);
        tracked.unclear.extend(others.unclear);
        tracked.refused = others.refused.or(tracked.refused);
        Ok(tracked)
    }

    /// Examines the paths of some entries of `index`.
    fn examine_entries(
        part: &'a [IndexEntry],
        index: &'a GitIndex,
        top: BorrowedFd<'a>,
        entries: &'a EntryTree,
        commits: &'a NestedCommits,
    ) -> io::Result<Self> {
        let files = Vec::with_capacity(part.len());
        let mut tracked = Self { index, files, unclear: Vec::new(), refused: None };
        let mut eye = TrackedPathReader {
            index,
            top,
            entries,
            cursor: LookupCursor::default(),
            commits,
            attributes: GitAttributes::new(index, top),
        };
        for entries in group_by_path(part) {
            let Some(entry) = primary_entry(entries) else { continue };
            let path = entry.path.0.as_slice();
            match eye.outcome(entry)? {
                TreeEntryOutcome::Entry(mode, id) => tracked.files.push(TreeFile { path, mode, id }),
                TreeEntryOutcome::Removed => {}
                TreeEntryOutcome::Unclear => tracked.unclear.push(path),
                TreeEntryOutcome::Refused(why) => tracked.refused = Some(why),
            }
        }
        Ok(tracked)
    }

    /// Returns the id of the tree. `known_by_git` contains git's tree entries for the unclear paths; a path without an
    /// entry was deleted.
    pub(crate) fn tree(mut self, converted: &TreeEntries) -> ObjectId {
        let entry = |path: &&'a [u8]| converted.get(*path).map(|(mode, id)| TreeFile { path, mode: *mode, id: *id });
        self.files.extend(self.unclear.iter().filter_map(entry));
        if !self.unclear.is_empty() {
            self.files.sort_unstable_by_key(|file| file.path);
        }
        tree_id(self.index.format, &self.files)
    }
}

/// Splits the entries of an index into halves for two threads; a small index is not split.
fn split_for_threads(entries: &[IndexEntry]) -> (&[IndexEntry], &[IndexEntry]) {
    if entries.len() < MIN_PARALLEL_ENTRIES {
        return (entries, &[]);
    }
    let middle = entries.len() / 2;
    // The entries of one path must stay together.
    let same = entries[middle..].iter().take_while(|entry| entry.path == entries[middle - 1].path).count();
    entries.split_at(middle + same)
}

/// Number of entries below which one thread is faster, because of the cost of starting another one.
const MIN_PARALLEL_ENTRIES: usize = 4096;

/// Examines the paths of an index one after the other.
struct TrackedPathReader<'a> {
    index: &'a GitIndex,
    top: BorrowedFd<'a>,
    /// The entries found at the covered paths by the current snapshot.
    entries: &'a EntryTree,
    /// The position in `entries` at which the last lookup ended.
    cursor: LookupCursor,
    commits: &'a NestedCommits,
    attributes: GitAttributes<'a>,
}

impl TrackedPathReader<'_> {
    fn outcome(&mut self, entry: &IndexEntry) -> io::Result<TreeEntryOutcome> {
        // Most paths belong to the outermost repository and are unchanged.
        let whole = match self.index.at.0.as_slice() {
            b"" => Cow::Borrowed(entry.path.0.as_slice()),
            at => Cow::Owned(paths::join(at, &entry.path.0)),
        };
        if self.is_unchanged_since_index(entry, &whole) {
            return Ok(TreeEntryOutcome::Entry(entry.mode, entry.id));
        }
        let Some((fd, stat)) = read_beneath::open_entry(self.top, &whole)? else {
            return Ok(if entry.skip_worktree {
                TreeEntryOutcome::Entry(entry.mode, entry.id)
            } else {
                TreeEntryOutcome::Removed
            });
        };
        match FileType::from_raw_mode(stat.st_mode) {
            FileType::Directory => Ok(self.directory(entry, &whole)),
            FileType::RegularFile => self.file(entry, &whole, &stat),
            FileType::Symlink => self.link(entry, &fd, &stat),
            _ => Ok(TreeEntryOutcome::Refused(UnknownTree::SpecialFile { path: display_path(&whole) })),
        }
    }

    /// Checks whether the entry found at a path is the one that the index entry was made from.
    fn is_unchanged_since_index(&mut self, entry: &IndexEntry, whole: &[u8]) -> bool {
        let Some(found) = self.entries.leaf_at_cursor(&mut self.cursor, whole).map(|leaf| leaf.found) else {
            return false;
        };
        let mode = match found.kind {
            ScannedKind::File => git_mode(&self.index.rules, entry, false),
            ScannedKind::Executable => git_mode(&self.index.rules, entry, true),
            ScannedKind::Symlink => SYMLINK_MODE,
            ScannedKind::Gitlink
            | ScannedKind::Special
            | ScannedKind::EmptyDirectory
            | ScannedKind::Missing
            | ScannedKind::IgnoreRules => return false,
        };
        entry.mode == mode && entry.is_unchanged(&IndexStat::from_file_stat(&found.stat), self.index.written)
    }

    /// Returns the result for a path that is a directory. A submodule has the commit of its HEAD. A file that was
    /// replaced by a directory is removed, unless the directory is a repository.
    fn directory(&self, entry: &IndexEntry, whole: &[u8]) -> TreeEntryOutcome {
        match (entry.mode, self.commits.get(whole)) {
            (_, Some(Some(commit))) if commit.format() != self.index.format => {
                TreeEntryOutcome::Refused(UnknownTree::ObjectFormat { path: display_path(whole) })
            }
            (_, Some(Some(commit))) => TreeEntryOutcome::Entry(GITLINK_MODE, *commit),
            (GITLINK_MODE, _) if entry.stage == 0 => TreeEntryOutcome::Entry(GITLINK_MODE, entry.id),
            (GITLINK_MODE, _) => TreeEntryOutcome::Refused(UnknownTree::UnbornSubmodule { path: display_path(whole) }),
            _ => TreeEntryOutcome::Removed,
        }
    }

    fn link(&self, entry: &IndexEntry, fd: &OwnedFd, stat: &Stat) -> io::Result<TreeEntryOutcome> {
        if entry.mode == SYMLINK_MODE
            && entry.is_unchanged(&IndexStat::from_file_stat(&FileStat::from_stat(stat)), self.index.written)
        {
            return Ok(TreeEntryOutcome::Entry(SYMLINK_MODE, entry.id));
        }
        let target = read_beneath::link_target(fd.as_fd())?;
        Ok(TreeEntryOutcome::Entry(SYMLINK_MODE, object_id(self.index.format, ObjectKind::Blob, &target)))
    }

    fn file(&mut self, entry: &IndexEntry, whole: &[u8], stat: &Stat) -> io::Result<TreeEntryOutcome> {
        let mode = git_mode(&self.index.rules, entry, read_beneath::is_executable(stat));
        if entry.mode == mode
            && entry.is_unchanged(&IndexStat::from_file_stat(&FileStat::from_stat(stat)), self.index.written)
        {
            return Ok(TreeEntryOutcome::Entry(mode, entry.id));
        }
        let conversion = match self.attributes.conversion(&entry.path.0) {
            Ok(conversion) => conversion,
            Err(AttributesError::SpecialFile { path }) => {
                return Ok(TreeEntryOutcome::Refused(UnknownTree::SpecialAttributesFile { path }));
            }
            Err(AttributesError::Io(error)) => return Err(error),
        };
        if conversion == Conversion::Anything {
            return Ok(TreeEntryOutcome::Unclear);
        }
        let Some(blob) = blob_at(self.top, whole, self.index.format)? else {
            return Ok(TreeEntryOutcome::Refused(UnknownTree::Unstable { path: display_path(whole) }));
        };
        if conversion == Conversion::Text && blob.convertible {
            return Ok(TreeEntryOutcome::Unclear);
        }
        Ok(TreeEntryOutcome::Entry(mode, blob.id))
    }
}

/// Returns the mode that git gives a regular file. Bits that the config disables come from the index.
fn git_mode(rules: &ConversionConfig, entry: &IndexEntry, is_executable: bool) -> u32 {
    match (is_executable, entry.mode) {
        (_, SYMLINK_MODE) if !rules.symlinks => SYMLINK_MODE,
        (_, mode) if !rules.file_mode && is_file_mode(mode) => mode,
        (true, _) if rules.file_mode => EXECUTABLE_MODE,
        _ => FILE_MODE,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proctor_git::files::repo_path::RepoPath;

    #[test]
    fn keeps_conflicts_together_when_splitting() {
        let id = ObjectId::from_raw(&[1; 20]).expect("an id");
        let entry = |number: usize, stage| IndexEntry {
            path: RepoPath(format!("{number:05}").into_bytes()),
            mode: FILE_MODE,
            id,
            stage,
            intent_to_add: false,
            skip_worktree: false,
            stat: None,
        };
        for before in MIN_PARALLEL_ENTRIES / 2 - 4..MIN_PARALLEL_ENTRIES / 2 + 2 {
            let plain = |range: std::ops::Range<usize>| range.map(|number| entry(number, 0));
            let conflict = [1, 2, 3].map(|stage| entry(before, stage));
            let all: Vec<_> = plain(0..before).chain(conflict).chain(plain(before + 1..MIN_PARALLEL_ENTRIES)).collect();
            let (first, second) = split_for_threads(&all);
            assert_eq!([first, second].concat(), all);
            assert!(
                !second.is_empty() && group_by_path(first).chain(group_by_path(second)).eq(group_by_path(&all)),
                "{before}"
            );
        }
        let few: Vec<_> = (1..MIN_PARALLEL_ENTRIES).map(|number| entry(number, 0)).collect();
        assert!(split_for_threads(&few).1.is_empty() && split_for_threads(&[]).0.is_empty());
    }
}
