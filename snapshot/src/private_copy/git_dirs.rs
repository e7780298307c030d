//! Writes separate git directories for a mirror. They contain HEAD, refs and index as of the snapshot, and borrow
//! the objects of the repositories. Later changes of the original git directories do not affect git in a step.

use std::ffi::OsStr;
use std::fs::DirBuilder;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::DirBuilderExt as _;
use std::path::{Component, Path, PathBuf};

use proctor_core::model::drift::is_evidence_path;
use proctor_git::files::{paths, read_beneath};
use proctor_git::index::index_writer::{self, NewIndexEntry, NewIndexStat};
use proctor_git::index::{EXECUTABLE_MODE, FILE_MODE, GITLINK_MODE, GitIndex, IndexEntry, IndexStat, SYMLINK_MODE};
use proctor_git::protocol::{CommittedLeaf, GitHistory, WorktreeListing};
use proctor_git::repository::git_dir::GitDir;

use super::CommitSource;
use crate::private_copy::mirror::Mirror;
use crate::private_copy::mirror_files::{GIT_DIR_NAME, MirrorError};
use crate::snapshot::taken_snapshot::Snapshot;

/// The location of a mirror's files on the host and in steps.
#[derive(Debug, Clone, Copy)]
pub struct TreeLocation<'a> {
    /// The directory of the files.
    pub tree: &'a Path,
    /// The path at which steps see the files.
    pub seen_at: &'a Path,
    /// The user and group that steps see as the owner of the files; `None` if these are our own ids.
    pub seen_as: Option<(u32, u32)>,
}

/// The object directory that the git directory of a nested repository borrows.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BorrowedObjects {
    /// The directory of the repository, relative to the top of the tree.
    pub repository: Vec<u8>,
    /// The directory of the objects.
    pub objects: PathBuf,
}

/// The git directory of one repository in a tree.
struct GitDirContent<'a> {
    /// The path of the repository; empty for the top.
    path: &'a [u8],
    /// The line in `HEAD`.
    head: String,
    history: &'a GitHistory,
    exclude: Option<Vec<u8>>,
    index: Vec<NewIndexEntry>,
}

impl Mirror {
    /// Writes the git directories of the tree of `snapshot`: the one at the top, and those of the nested
    /// repositories in `history`. Returns the object directories that the nested ones borrow.
    ///
    /// # Errors
    /// A directory cannot be written, or the listing of the snapshot is lost.
    pub fn write_git_dirs(
        &self,
        location: TreeLocation<'_>,
        snapshot: &Snapshot,
        history: &GitHistory,
    ) -> Result<Vec<BorrowedObjects>, MirrorError> {
        let listing = snapshot.listing.decode();
        let listing = listing.ok_or_else(|| git_dir_error(b"", "the index is no longer known"))?;
        let on_branch = snapshot.git.branch.as_ref().map(|branch| format!("ref: refs/heads/{branch}"));
        let head = on_branch.or_else(|| snapshot.git.head_commit.clone());
        let head = head.ok_or_else(|| git_dir_error(b"", "HEAD names neither a branch nor a commit"))?;
        let index = self.index_entries(&listing, b"", location, snapshot);
        self.write_git_dir(
            location,
            GitDirContent { path: b"", head, history, exclude: Some(history.exclude.0.clone()), index },
        )?;
        let mut borrowed = Vec::new();
        for (at, inside) in &history.nested {
            let commit =
                listing.nested.iter().find(|nested| nested.path == *at).and_then(|nested| nested.commit.clone());
            let is_shown = read_beneath::is_directory(self.tree(), &at.0)
                && is_visible_to_steps(history, location, &inside.objects);
            let Some(head) = commit.filter(|_| is_shown) else { continue };
            let index = self.index_entries(&listing, &at.0, location, snapshot);
            let exclude = Some(inside.exclude.0.clone());
            self.write_git_dir(location, GitDirContent { path: &at.0, head, history: inside, exclude, index })?;
            borrowed.push(self.borrow_objects(location, &at.0, &inside.objects)?);
        }
        Ok(borrowed)
    }

    /// Writes the git directories of a commit's tree, which the mirror must contain, with `head` as the line in
    /// HEAD. Returns the object directories that its submodules borrow.
    ///
    /// # Errors
    /// A directory cannot be written.
    pub fn write_git_dirs_of_commit(
        &self,
        location: TreeLocation<'_>,
        source: &CommitSource<'_>,
        head: &str,
        history: &GitHistory,
    ) -> Result<Vec<BorrowedObjects>, MirrorError> {
        let head = head.to_owned();
        let index = self.index_entries_of_commit(source, b"", location);
        // The ignore rules of a work tree do not apply to a commit.
        self.write_git_dir(location, GitDirContent { path: b"", head, history, exclude: None, index })?;
        let mut borrowed = Vec::new();
        let modules = source.tree.submodules.iter();
        for module in modules.filter(|module| is_visible_to_steps(history, location, &module.objects)) {
            let (format, objects) = (module.commit.format(), module.objects.clone());
            let refs = Default::default();
            let inside = GitHistory { format, objects, refs, shallow: None, ..history.clone() };
            let (at, head) = (&module.path.0, module.commit.to_string());
            let index = self.index_entries_of_commit(source, at, location);
            self.write_git_dir(location, GitDirContent { path: at, head, history: &inside, exclude: None, index })?;
            borrowed.push(self.borrow_objects(location, at, &module.objects)?);
        }
        Ok(borrowed)
    }

    fn write_git_dir(&self, location: TreeLocation<'_>, repository: GitDirContent<'_>) -> Result<(), MirrorError> {
        let GitDirContent { path: at, head, history, exclude, index } = repository;
        let git_dir = GitDir {
            format: history.format,
            head,
            objects: history.objects.clone(),
            refs: history.refs.0.clone(),
            shallow: history.shallow.as_ref().map(|edges| edges.0.clone()),
            exclude,
            ignore_case: history.ignore_case,
            owner: self.owner.map(|owner| (owner.uid, owner.gid)),
        };
        let git = location.tree.join(OsStr::from_bytes(at)).join(OsStr::from_bytes(GIT_DIR_NAME));
        let index = index_writer::encode_index(history.format, &index);
        // The index is newer than all files, so git trusts its stat data and does not rewrite it.
        let written = self.record.next_mtime((0, 0));
        git_dir.write(&git, &index, written).map_err(|error| MirrorError::io(&paths::join(at, GIT_DIR_NAME), error))
    }

    /// If the objects of a nested repository are inside the top's git directory, creates the directory at which
    /// steps see them.
    fn borrow_objects(
        &self,
        location: TreeLocation<'_>,
        at: &[u8],
        objects: &Path,
    ) -> Result<BorrowedObjects, MirrorError> {
        let below = objects
            .strip_prefix(location.seen_at)
            .ok()
            .filter(|below| below.starts_with(OsStr::from_bytes(GIT_DIR_NAME)));
        let is_plain = |below: &&Path| below.components().all(|part| matches!(part, Component::Normal(_)));
        if let Some(below) = below.filter(is_plain) {
            let made = DirBuilder::new().recursive(true).mode(0o755).create(location.tree.join(below));
            made.map_err(|error| MirrorError::io(GIT_DIR_NAME, error))?;
        }
        Ok(BorrowedObjects { repository: at.to_vec(), objects: objects.to_owned() })
    }

    fn index_entries(
        &self,
        listing: &WorktreeListing,
        at: &[u8],
        location: TreeLocation<'_>,
        snapshot: &Snapshot,
    ) -> Vec<NewIndexEntry> {
        let Some(index) = listing.indexes.iter().find(|index| index.at.0 == at) else { return Vec::new() };
        let entry = |entry: &IndexEntry| {
            let path = paths::join(at, &entry.path.0);
            let is_clean = is_clean(index, entry, &path, snapshot);
            NewIndexEntry {
                path: entry.path.0.clone(),
                mode: entry.mode,
                id: entry.id,
                stage: entry.stage,
                intent_to_add: entry.intent_to_add,
                skip_worktree: entry.skip_worktree,
                stat: is_clean.then(|| self.index_stat(&path, location)).flatten(),
            }
        };
        index.entries.iter().map(entry).collect()
    }

    /// Returns the index entries of the repository at `at`: the leaves inside it that do not belong to a repository
    /// nested in it.
    fn index_entries_of_commit(
        &self,
        source: &CommitSource<'_>,
        at: &[u8],
        location: TreeLocation<'_>,
    ) -> Vec<NewIndexEntry> {
        let is_inside = |inner: &[u8], outer: &[u8]| outer.is_empty() || paths::is_below(inner, outer);
        let modules = || source.tree.submodules.iter().map(|module| module.path.0.as_slice());
        let inner: Vec<&[u8]> = modules().filter(|module| *module != at && is_inside(module, at)).collect();
        let is_own = |leaf: &&CommittedLeaf| {
            is_inside(&leaf.path, at) && !inner.iter().any(|module| paths::is_below(&leaf.path, module))
        };
        let depth = if at.is_empty() { 0 } else { at.len() + 1 };
        let entry = |leaf: &CommittedLeaf| NewIndexEntry {
            path: leaf.path[depth..].to_vec(),
            mode: match leaf.mode {
                EXECUTABLE_MODE | SYMLINK_MODE | GITLINK_MODE => leaf.mode,
                _ => FILE_MODE,
            },
            id: leaf.id,
            stage: 0,
            intent_to_add: false,
            // Steps do not see evidence, and git must not report it as deleted.
            skip_worktree: is_evidence_path(&leaf.path),
            stat: self.index_stat(&leaf.path, location).filter(|_| leaf.mode != GITLINK_MODE),
        };
        source.tree.leaves.iter().filter(is_own).map(entry).collect()
    }

    fn index_stat(&self, path: &[u8], location: TreeLocation<'_>) -> Option<NewIndexStat> {
        let own = || (rustix::process::geteuid().as_raw(), rustix::process::getegid().as_raw());
        let (uid, gid) = location.seen_as.unwrap_or_else(own);
        Some(NewIndexStat { stat: self.recorded_entry(path)?.stat, uid, gid })
    }
}

/// Returns whether the objects of a nested repository are in the work tree or in the top's git directory. Steps see
/// no other directories, since a `.git` file can name any directory.
fn is_visible_to_steps(history: &GitHistory, location: TreeLocation<'_>, objects: &Path) -> bool {
    objects.starts_with(location.seen_at) || history.objects.parent().is_some_and(|git| objects.starts_with(git))
}

fn git_dir_error(path: &[u8], problem: &str) -> MirrorError {
    MirrorError::io(&paths::join(path, GIT_DIR_NAME), std::io::Error::other(problem.to_owned()))
}

/// Returns whether git would treat the file of an entry as unchanged because of its stat data alone.
fn is_clean(index: &GitIndex, entry: &IndexEntry, path: &[u8], snapshot: &Snapshot) -> bool {
    let Some(leaf) = snapshot.entries.leaf_at_path(path) else { return false };
    entry.stage == 0
        && !entry.intent_to_add
        && entry
            .stat
            .is_some_and(|stat| stat == IndexStat::from_file_stat(&leaf.found.stat) && stat.mtime < index.written)
}
