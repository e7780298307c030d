//! Compares the trees of two commits. A directory that is the same in both is not read.

use std::collections::BTreeMap;

use git2::{FileMode, Oid, Repository};

use crate::files::paths;
use crate::files::repo_path::RepoPath;

/// Maximum number of entries that are compared. A small tree can name a directory any number of times.
pub(super) const MAX_ENTRIES: usize = 4_000_000;

/// The files in which two trees differ, sorted. Submodules are not included.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct TreeDifference {
    /// The files of the new tree that the old one lacks or has in another form.
    pub(super) changed: Vec<RepoPath>,
    /// The files of the old tree that the new one lacks.
    pub(super) deleted: Vec<RepoPath>,
}

/// The reason why trees cannot be compared.
#[derive(Debug, thiserror::Error)]
pub(super) enum TreeComparisonError {
    /// A tree cannot be read.
    #[error(transparent)]
    Unreadable(#[from] git2::Error),
    /// A file of the worktree cannot be read.
    #[error(transparent)]
    UnreadableFile(#[from] std::io::Error),
    /// The trees differ in too many entries.
    #[error("they differ in more than {MAX_ENTRIES} entries")]
    TooManyEntries,
}

/// Compares two trees; `None` is an empty one.
pub(super) fn compare_trees(
    repository: &Repository,
    old: Option<Oid>,
    new: Option<Oid>,
) -> Result<TreeDifference, TreeComparisonError> {
    let (mut found, mut count) = (TreeDifference::default(), 0);
    let mut pending = vec![(Vec::new(), old, new)];
    while let Some((directory, old, new)) = pending.pop() {
        let (old, new) = (entries(repository, old)?, entries(repository, new)?);
        count += old.len() + new.len();
        if count > MAX_ENTRIES {
            return Err(TreeComparisonError::TooManyEntries);
        }
        let gone = old.keys().filter(|name| !new.contains_key(*name));
        for name in new.keys().chain(gone) {
            let (before, after) = (old.get(name), new.get(name));
            if before == after {
                continue;
            }
            let path = if directory.is_empty() { name.clone() } else { paths::join(&directory, name) };
            let subtree = |entry: Option<&TreeItem>| entry.filter(|entry| entry.mode == FileMode::Tree).map(|it| it.id);
            let (inner_before, inner_after) = (subtree(before), subtree(after));
            if inner_before.is_some() || inner_after.is_some() {
                pending.push((path.clone(), inner_before, inner_after));
            }
            match (before.is_some_and(TreeItem::is_file), after.is_some_and(TreeItem::is_file)) {
                (_, true) => found.changed.push(RepoPath(path)),
                (true, false) => found.deleted.push(RepoPath(path)),
                (false, false) => {}
            }
        }
    }
    found.changed.sort_unstable();
    found.deleted.sort_unstable();
    Ok(found)
}

/// An entry of a tree.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct TreeItem {
    pub(super) mode: FileMode,
    pub(super) id: Oid,
}

impl TreeItem {
    /// Returns whether it is a file or a link.
    pub(super) fn is_file(&self) -> bool {
        !matches!(self.mode, FileMode::Tree | FileMode::Commit)
    }
}

/// Returns the entries of a tree by name; `None` is an empty tree.
pub(super) fn entries(repository: &Repository, tree: Option<Oid>) -> Result<BTreeMap<Vec<u8>, TreeItem>, git2::Error> {
    let Some(tree) = tree.map(|id| repository.find_tree(id)).transpose()? else { return Ok(BTreeMap::new()) };
    let item = |entry: git2::TreeEntry<'_>| {
        // The mode as git understands it: old versions have written others, such as 100664.
        let mode = match entry.filemode() {
            0o040_000 => FileMode::Tree,
            0o160_000 => FileMode::Commit,
            0o120_000 => FileMode::Link,
            mode if mode & 0o100 != 0 => FileMode::BlobExecutable,
            _ => FileMode::Blob,
        };
        (entry.name_bytes().to_vec(), TreeItem { mode, id: entry.id() })
    };
    Ok(tree.iter().map(item).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A tree with the given files: path, mode, content. Writes subtrees recursively.
    fn tree(repository: &Repository, files: &[(&str, i32, &str)]) -> Oid {
        let mut builder = repository.treebuilder(None).expect("a builder");
        let mut inner: BTreeMap<&str, Vec<(&str, i32, &str)>> = BTreeMap::new();
        for (path, mode, content) in files {
            match path.split_once('/') {
                Some((directory, rest)) => inner.entry(directory).or_default().push((rest, *mode, content)),
                None => {
                    let id = match *mode {
                        0o160_000 => Oid::from_str(content).expect("an id"),
                        _ => repository.blob(content.as_bytes()).expect("a blob"),
                    };
                    builder.insert(path, id, *mode).expect("inserts");
                }
            }
        }
        for (name, files) in inner {
            builder.insert(name, tree(repository, &files), 0o040_000).expect("inserts");
        }
        builder.write().expect("writes")
    }

    fn difference(old: &[(&str, i32, &str)], new: &[(&str, i32, &str)]) -> (Vec<String>, Vec<String>) {
        let temp = tempfile::tempdir().expect("temp");
        let repository = Repository::init_bare(temp.path()).expect("a repository");
        let (old, new) = (tree(&repository, old), tree(&repository, new));
        let found = compare_trees(&repository, Some(old), Some(new)).expect("compares");
        let text =
            |paths: Vec<RepoPath>| paths.into_iter().map(|path| String::from_utf8(path.0).expect("text")).collect();
        (text(found.changed), text(found.deleted))
    }

    fn lists(changed: &[&str], deleted: &[&str]) -> (Vec<String>, Vec<String>) {
        let text = |paths: &[&str]| paths.iter().map(|path| (*path).to_owned()).collect();
        (text(changed), text(deleted))
    }

    const FILE: i32 = 0o100_644;
    const PROGRAM: i32 = 0o100_755;
    const LINK: i32 = 0o120_000;
    const SUBMODULE: i32 = 0o160_000;
    const COMMIT: &str = "1111111111111111111111111111111111111111";

    #[test]
    fn names_added_changed_and_deleted_files_at_every_depth() {
        let old = [("same/a", FILE, "1"), ("d/e/f", FILE, "1"), ("d/gone", FILE, "1"), ("top", FILE, "1")];
        let new = [("same/a", FILE, "1"), ("d/e/f", FILE, "2"), ("d/e/new", FILE, "1"), ("top", PROGRAM, "1")];
        assert_eq!(difference(&old, &new), lists(&["d/e/f", "d/e/new", "top"], &["d/gone"]));
        assert_eq!(difference(&new, &new), lists(&[], &[]));
    }

    #[test]
    fn a_file_can_become_a_directory_a_link_or_a_submodule() {
        let old = [
            ("dir", FILE, "1"),
            ("file/in", FILE, "1"),
            ("link", FILE, "1"),
            ("sub", FILE, "1"),
            ("was", SUBMODULE, COMMIT),
        ];
        let new = [
            ("dir/in", FILE, "1"),
            ("file", FILE, "1"),
            ("link", LINK, "1"),
            ("sub", SUBMODULE, COMMIT),
            ("was", FILE, "1"),
        ];
        assert_eq!(difference(&old, &new), lists(&["dir/in", "file", "link", "was"], &["dir", "file/in", "sub"]));
    }

    #[test]
    fn a_missing_tree_is_empty() {
        let temp = tempfile::tempdir().expect("temp");
        let repository = Repository::init_bare(temp.path()).expect("a repository");
        let new = tree(&repository, &[("a", FILE, "1"), ("d/b", FILE, "1")]);
        let added = compare_trees(&repository, None, Some(new)).expect("compares");
        assert_eq!((added.changed.len(), added.deleted.len()), (2, 0));
        let removed = compare_trees(&repository, Some(new), None).expect("compares");
        assert_eq!((removed.changed.len(), removed.deleted.len()), (0, 2));
    }
}
