//! Computes how git would add the tracked content of a work tree: for each path of an index, the tree entry that
//! `git add -u` and `git write-tree` would make.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::io;
use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};

use rustix::fs::{FileType, Stat};

use super::attributes::{Attributes, Conversion};
use super::blob::blob_at;
use super::index::{EXECUTABLE, FILE, FileRules, GITLINK, Index, IndexEntry, SYMLINK, by_path, is_file, leading};
use super::object::{ObjectId, ObjectKind, object_id};
use super::program::TreeEntries;
use super::tree_id::{TreeFile, tree_id};
use crate::entries::{Entries, Kind, Place};
use crate::stamp::Stamp;
use crate::{beneath, paths};
use proctor_core::drift::display_path;

/// The commits of the repositories inside a work tree, by path.
pub(crate) type Commits = BTreeMap<Vec<u8>, Option<ObjectId>>;

/// The tracked content of one repository.
#[derive(Debug)]
pub(crate) struct Tracked<'a> {
    index: &'a Index,
    /// The tree entries of all paths for which they are known; sorted.
    files: Vec<TreeFile<'a>>,
    /// The paths that only git can convert.
    pub(crate) unclear: Vec<&'a [u8]>,
    /// Why git would refuse to add a file.
    pub(crate) refused: Option<String>,
}

/// The result for one path.
enum Fate {
    /// The path has this tree entry.
    Stands(u32, ObjectId),
    /// The path is removed.
    Gone,
    /// Git may convert the file.
    Unclear,
    /// Git cannot add the file.
    Refused(String),
}

impl<'a> Tracked<'a> {
    /// Examines every path of `index`, below the outermost work tree `top`.
    ///
    /// # Errors
    /// A file cannot be read.
    pub(crate) fn look(
        index: &'a Index,
        top: BorrowedFd<'a>,
        entries: &'a Entries,
        commits: &'a Commits,
    ) -> io::Result<Self> {
        let (first, second) = halves(&index.entries);
        let part = |part| Self::look_at(part, index, top, entries, commits);
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
    fn look_at(
        part: &'a [IndexEntry],
        index: &'a Index,
        top: BorrowedFd<'a>,
        entries: &'a Entries,
        commits: &'a Commits,
    ) -> io::Result<Self> {
        let files = Vec::with_capacity(part.len());
        let mut tracked = Self { index, files, unclear: Vec::new(), refused: None };
        let mut eye =
            Eye { index, top, entries, place: Place::default(), commits, attributes: Attributes::new(index, top) };
        for entries in by_path(part) {
            let Some(entry) = leading(entries) else { continue };
            let path = entry.path.0.as_slice();
            match eye.fate(entry)? {
                Fate::Stands(mode, id) => tracked.files.push(TreeFile { path, mode, id }),
                Fate::Gone => {}
                Fate::Unclear => tracked.unclear.push(path),
                Fate::Refused(why) => tracked.refused = Some(why),
            }
        }
        Ok(tracked)
    }

    /// Returns the id of the tree. `told` contains git's tree entries for the unclear paths; a path without an
    /// entry was deleted.
    pub(crate) fn tree(mut self, told: &TreeEntries) -> ObjectId {
        let entry = |path: &&'a [u8]| told.get(*path).map(|(mode, id)| TreeFile { path, mode: *mode, id: *id });
        self.files.extend(self.unclear.iter().filter_map(entry));
        if !self.unclear.is_empty() {
            self.files.sort_unstable_by_key(|file| file.path);
        }
        tree_id(self.index.format, &self.files)
    }
}

/// Splits the entries of an index into halves for two threads; a small index is not split.
fn halves(entries: &[IndexEntry]) -> (&[IndexEntry], &[IndexEntry]) {
    if entries.len() < FEW {
        return (entries, &[]);
    }
    let middle = entries.len() / 2;
    // The entries of one path must stay together.
    let same = entries[middle..].iter().take_while(|entry| entry.path == entries[middle - 1].path).count();
    entries.split_at(middle + same)
}

/// Number of entries below which one thread is faster, because of the cost of starting another one.
const FEW: usize = 4096;

/// Examines the paths of an index one after the other.
struct Eye<'a> {
    index: &'a Index,
    top: BorrowedFd<'a>,
    /// The entries found at the covered paths by the current snapshot.
    entries: &'a Entries,
    /// The position of the last lookup in `entries`.
    place: Place,
    commits: &'a Commits,
    attributes: Attributes<'a>,
}

impl Eye<'_> {
    fn fate(&mut self, entry: &IndexEntry) -> io::Result<Fate> {
        // Most paths belong to the outermost repository and are unchanged.
        let whole = match self.index.at.0.as_slice() {
            b"" => Cow::Borrowed(entry.path.0.as_slice()),
            at => Cow::Owned(paths::join(at, &entry.path.0)),
        };
        if self.is_as_in_the_index(entry, &whole) {
            return Ok(Fate::Stands(entry.mode, entry.id));
        }
        let Some((fd, stat)) = beneath::look(self.top, &whole)? else {
            return Ok(if entry.skip_worktree { Fate::Stands(entry.mode, entry.id) } else { Fate::Gone });
        };
        match FileType::from_raw_mode(stat.st_mode) {
            FileType::Directory => Ok(self.directory(entry, &whole)),
            FileType::RegularFile => self.file(entry, &whole, &stat),
            FileType::Symlink => self.link(entry, &fd, &stat),
            _ => Ok(Fate::Refused(format!("`{}` is no file that git can add", display_path(&whole)))),
        }
    }

    /// Checks whether the entry found at a path is the one that the index entry was made from.
    fn is_as_in_the_index(&mut self, entry: &IndexEntry, whole: &[u8]) -> bool {
        let Some(found) = self.entries.leaf_behind(&mut self.place, whole).map(|leaf| leaf.found) else { return false };
        let mode = match found.kind {
            Kind::File => mode_of(&self.index.rules, entry, false),
            Kind::Executable => mode_of(&self.index.rules, entry, true),
            Kind::Symlink => SYMLINK,
            Kind::Gitlink | Kind::Special | Kind::EmptyDirectory | Kind::Missing | Kind::Rules => return false,
        };
        entry.mode == mode && entry.is_of(&found.stamp.in_index(), self.index.written)
    }

    /// Returns the result for a path that is a directory. A submodule has the commit of its HEAD. A file that was
    /// replaced by a directory is removed, unless the directory is a repository.
    fn directory(&self, entry: &IndexEntry, whole: &[u8]) -> Fate {
        match (entry.mode, self.commits.get(whole)) {
            (_, Some(Some(commit))) if commit.format() != self.index.format => {
                Fate::Refused(format!("`{}` is a repository of another object format", display_path(whole)))
            }
            (_, Some(Some(commit))) => Fate::Stands(GITLINK, *commit),
            (GITLINK, _) if entry.stage == 0 => Fate::Stands(GITLINK, entry.id),
            (GITLINK, _) => Fate::Refused(format!("the submodule `{}` has no commit", display_path(whole))),
            _ => Fate::Gone,
        }
    }

    fn link(&self, entry: &IndexEntry, fd: &OwnedFd, stat: &Stat) -> io::Result<Fate> {
        if entry.mode == SYMLINK && entry.is_of(&Stamp::of(stat).in_index(), self.index.written) {
            return Ok(Fate::Stands(SYMLINK, entry.id));
        }
        let target = beneath::link_target(fd.as_fd())?;
        Ok(Fate::Stands(SYMLINK, object_id(self.index.format, ObjectKind::Blob, &target)))
    }

    fn file(&mut self, entry: &IndexEntry, whole: &[u8], stat: &Stat) -> io::Result<Fate> {
        let mode = mode_of(&self.index.rules, entry, beneath::is_executable(stat));
        if entry.mode == mode && entry.is_of(&Stamp::of(stat).in_index(), self.index.written) {
            return Ok(Fate::Stands(mode, entry.id));
        }
        let conversion = match self.attributes.conversion(&entry.path.0) {
            Err(error) if error.kind() == io::ErrorKind::Other => return Ok(Fate::Refused(error.to_string())),
            conversion => conversion?,
        };
        if conversion == Conversion::Anything {
            return Ok(Fate::Unclear);
        }
        let Some(blob) = blob_at(self.top, whole, self.index.format)? else {
            return Ok(Fate::Refused(format!("`{}` kept changing while it was read", display_path(whole))));
        };
        if conversion == Conversion::Text && blob.convertible {
            return Ok(Fate::Unclear);
        }
        Ok(Fate::Stands(mode, blob.id))
    }
}

/// Returns the mode that git gives a regular file. Bits that the config disables come from the index.
fn mode_of(rules: &FileRules, entry: &IndexEntry, is_executable: bool) -> u32 {
    match (is_executable, entry.mode) {
        (_, SYMLINK) if !rules.symlinks => SYMLINK,
        (_, mode) if !rules.file_mode && is_file(mode) => mode,
        (true, _) if rules.file_mode => EXECUTABLE,
        _ => FILE,
    }
}

#[cfg(test)]
mod tests {
    use super::super::protocol::RepoPath;
    use super::*;

    #[test]
    fn what_is_in_conflict_is_in_one_half() {
        let id = ObjectId::from_raw(&[1; 20]).expect("an id");
        let entry = |number: usize, stage| IndexEntry {
            path: RepoPath(format!("{number:05}").into_bytes()),
            mode: FILE,
            id,
            stage,
            intent_to_add: false,
            skip_worktree: false,
            stat: None,
        };
        for before in FEW / 2 - 4..FEW / 2 + 2 {
            let plain = |range: std::ops::Range<usize>| range.map(|number| entry(number, 0));
            let conflict = [1, 2, 3].map(|stage| entry(before, stage));
            let all: Vec<_> = plain(0..before).chain(conflict).chain(plain(before + 1..FEW)).collect();
            let (first, second) = halves(&all);
            assert_eq!([first, second].concat(), all);
            assert!(!second.is_empty() && by_path(first).chain(by_path(second)).eq(by_path(&all)), "{before}");
        }
        let few: Vec<_> = (1..FEW).map(|number| entry(number, 0)).collect();
        assert!(halves(&few).1.is_empty() && halves(&[]).0.is_empty());
    }
}
