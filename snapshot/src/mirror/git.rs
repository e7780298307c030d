//! Gives a mirror a git directory of its own: HEAD, refs and index as the snapshot found them, over the repository's
//! objects. Whatever happens to the repository's git directory afterwards, git in a step reads this one.

use std::path::Path;

use super::{GIT, Mirror, MirrorError};
use crate::git::checkout::git_dir::{GitDir, Objects};
use crate::git::index::to_file::{self, Entry, FileStat};
use crate::git::index::{Index, IndexEntry};
use crate::git::protocol::GitHistory;
use crate::snapshot::Snapshot;

impl Mirror {
    /// Writes the git directory of the tree, which lies at `tree`. The mirror holds the tree of `snapshot`. Its index
    /// names `seen_as` as the owner of the files, else our own user and group.
    ///
    /// # Errors
    /// The directory cannot be written, or the snapshot does not know the index.
    pub fn write_git(
        &self,
        tree: &Path,
        seen_as: Option<(u32, u32)>,
        snapshot: &Snapshot,
        history: &GitHistory,
    ) -> Result<(), MirrorError> {
        let failed = |error: std::io::Error| MirrorError::io(GIT, error);
        let listing = snapshot.listing.read();
        let listing = listing.ok_or_else(|| failed(std::io::Error::other("the index is not known any more")))?;
        let index = listing.indexes.iter().find(|index| index.at.0.is_empty());
        let entries = index.map(|index| self.index_entries(index, seen_as, snapshot)).unwrap_or_default();
        let git = &snapshot.git;
        let on_branch = git.branch.as_ref().map(|branch| format!("ref: refs/heads/{branch}"));
        let head = on_branch.or_else(|| git.head_commit.clone());
        let git_dir = GitDir {
            format: history.format,
            head: head.ok_or_else(|| failed(std::io::Error::other("HEAD names neither a branch nor a commit")))?,
            objects: Objects::Borrowed(history.objects.clone()),
            refs: history.refs.0.clone(),
            shallow: history.shallow.as_ref().map(|edges| edges.0.clone()),
            exclude: Some(history.exclude.0.clone()),
            ignore_case: history.ignore_case,
            owner: self.owner.map(|owner| (owner.uid, owner.gid)),
        };
        git_dir.write(&tree.join(".git"), Some(&to_file::bytes(history.format, &entries))).map_err(failed)
    }

    fn index_entries(&self, index: &Index, seen_as: Option<(u32, u32)>, snapshot: &Snapshot) -> Vec<Entry> {
        let entry = |entry: &IndexEntry| Entry {
            path: entry.path.0.clone(),
            mode: entry.mode,
            id: entry.id,
            stage: entry.stage,
            intent_to_add: entry.intent_to_add,
            skip_worktree: entry.skip_worktree,
            stat: is_clean(index, entry, snapshot).then(|| self.file_stat(&entry.path.0, seen_as)).flatten(),
        };
        index.entries.iter().map(entry).collect()
    }

    fn file_stat(&self, path: &[u8], seen_as: Option<(u32, u32)>) -> Option<FileStat> {
        let own = || (rustix::process::geteuid().as_raw(), rustix::process::getegid().as_raw());
        let (uid, gid) = seen_as.unwrap_or_else(own);
        Some(FileStat { stamp: self.found(path)?.stamp, uid, gid })
    }
}

/// Returns whether git would take the file of an entry for unchanged by its stat data alone.
fn is_clean(index: &Index, entry: &IndexEntry, snapshot: &Snapshot) -> bool {
    let Some(leaf) = snapshot.entries.leaf(&entry.path.0) else { return false };
    entry.stage == 0
        && !entry.intent_to_add
        && entry.stat.is_some_and(|stat| stat == leaf.found.stamp.in_index() && stat.mtime < index.written)
}
