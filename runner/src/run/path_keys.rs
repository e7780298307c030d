//! Compares the files that determine the content of a needed path between the verified tree and the worktree.

use std::collections::{BTreeMap, BTreeSet};

use proctor_core::model::drift::{Entry, EntryKind, display_path};
use proctor_core::model::plan::{NeededPath, PathKey, RelPath, is_lock_file};
use proctor_core::text::digest::Sha256Hex;
use proctor_snapshot::Snapshot;

use crate::host::repository::Repository;
use crate::store::StoreError;
use crate::store::directory::Directory;

/// Maximum size of a key file, in bytes.
const MAX_KEY_FILE: u64 = 256 << 20;
/// Maximum number of names in a directory that may have lock files.
const MAX_NAMES: usize = 100_000;

/// The key files of a path in one tree, by path relative to the repository; `None` for a file that does not exist.
pub(super) type KeyFiles = BTreeMap<String, Option<Sha256Hex>>;

/// The reason why the key of a needed path has no value.
#[derive(Debug, thiserror::Error)]
pub(super) enum PathKeyError {
    /// Nothing determines the content.
    #[error("there is no lock file next to it; name the files that determine its content in `key`")]
    NoKeyFile,
    /// A key file is not part of the verified tree.
    #[error("the key file `{0}` is not part of the tree")]
    NotInTree(String),
    /// A key file is not a regular file.
    #[error("the key file `{0}` is not a regular file")]
    NotAFile(String),
    /// A key file of the worktree is, or is below, a symbolic link.
    #[error("`{0}` in the worktree is, or is below, a symbolic link")]
    Link(String),
    /// A file of the worktree cannot be read.
    #[error("the key files of the worktree cannot be read: {0}")]
    Worktree(#[from] StoreError),
}

/// Returns the key files of `needed` in the verified tree.
pub(super) fn of_tree(snapshot: &Snapshot, needed: &NeededPath) -> Result<KeyFiles, PathKeyError> {
    let names: BTreeSet<String> = match &needed.key {
        PathKey::Files(files) => files.iter().map(RelPath::to_string).collect(),
        PathKey::LockFiles => lock_files_of_tree(snapshot, parent_of(&needed.path)),
    };
    let digest = |name: String| match snapshot.entries.get(name.as_bytes()) {
        Some(Entry { kind: EntryKind::File, sha256, .. }) => Ok((name, Some(sha256))),
        Some(_) => Err(PathKeyError::NotAFile(name)),
        None => Ok((name, None)),
    };
    names.into_iter().map(digest).collect()
}

/// Requires that the key names at least one file of the tree, and that all explicitly named files are part of it.
pub(super) fn require_key(needed: &NeededPath, files: &KeyFiles) -> Result<(), PathKeyError> {
    if let Some((missing, _)) = files.iter().find(|(_, sha256)| sha256.is_none()) {
        return Err(PathKeyError::NotInTree(missing.clone()));
    }
    match (&needed.key, files.is_empty()) {
        (_, false) => Ok(()),
        (PathKey::LockFiles | PathKey::Files(_), true) => Err(PathKeyError::NoKeyFile),
    }
}

/// Returns the key files of `needed` in the worktree.
pub(super) fn of_worktree(worktree: &Repository, needed: &NeededPath) -> Result<KeyFiles, PathKeyError> {
    let top = Directory::open(worktree.path())?;
    let names: BTreeSet<String> = match &needed.key {
        PathKey::Files(files) => files.iter().map(RelPath::to_string).collect(),
        PathKey::LockFiles => lock_files_of_directory(&top, parent_of(&needed.path))?,
    };
    let digest = |name: String| match digest_below(&top, &name) {
        Ok(sha256) => Ok((name, sha256)),
        Err(StoreError::Symlink { .. }) => Err(PathKeyError::Link(name)),
        Err(error) => Err(error.into()),
    };
    names.into_iter().map(digest).collect()
}

/// Returns the names of the files that differ between the verified tree and the worktree.
pub(super) fn differences(tree: &KeyFiles, worktree: &KeyFiles) -> Vec<String> {
    let names: BTreeSet<&String> = tree.keys().chain(worktree.keys()).collect();
    let digest = |files: &KeyFiles, name: &str| files.get(name).cloned().flatten();
    names.into_iter().filter(|name| digest(tree, name) != digest(worktree, name)).cloned().collect()
}

/// Returns the directory that contains a path; empty for the repository itself.
fn parent_of(path: &RelPath) -> &str {
    path.as_str().rsplit_once('/').map_or("", |(parent, _)| parent)
}

fn join(directory: &str, name: &str) -> String {
    if directory.is_empty() { name.to_owned() } else { format!("{directory}/{name}") }
}

fn lock_files_of_tree(snapshot: &Snapshot, directory: &str) -> BTreeSet<String> {
    let found = |path: Vec<u8>| {
        let below = match directory.is_empty() {
            true => path.as_slice(),
            false => path.strip_prefix(directory.as_bytes())?.strip_prefix(b"/")?,
        };
        let name = std::str::from_utf8(below).ok().filter(|name| is_lock_file(name.as_bytes()))?;
        (!name.contains('/')).then(|| join(directory, name))
    };
    snapshot.entries.paths().filter_map(found).collect()
}

fn lock_files_of_directory(top: &Directory, directory: &str) -> Result<BTreeSet<String>, StoreError> {
    let opened = if directory.is_empty() { top.clone() } else { top.descend(directory)? };
    let names = opened.entries(MAX_NAMES)?.into_iter().filter(|name| is_lock_file(name));
    Ok(names.map(|name| join(directory, &display_path(&name))).collect())
}

/// Returns the digest of a regular file; `None` if it does not exist or is not a regular file.
fn digest_below(top: &Directory, path: &str) -> Result<Option<Sha256Hex>, StoreError> {
    let (parent, name) = path.rsplit_once('/').unwrap_or(("", path));
    let directory = match parent {
        "" => top.clone(),
        parent => match top.descend(parent) {
            Err(StoreError::Io { source, .. }) if source.kind() == std::io::ErrorKind::NotFound => return Ok(None),
            other => other?,
        },
    };
    Ok(directory.read(name, MAX_KEY_FILE)?.map(|bytes| Sha256Hex::digest(&bytes)))
}

#[cfg(test)]
#[expect(clippy::disallowed_methods, reason = "fixtures, not Proctor documents")]
mod tests {
    use super::*;

    fn key(files: &[(&str, Option<&[u8]>)]) -> KeyFiles {
        let entry = |(name, text): &(&str, Option<&[u8]>)| ((*name).to_owned(), text.map(Sha256Hex::digest));
        files.iter().map(entry).collect()
    }

    #[test]
    fn finds_files_that_differ() {
        let tree = key(&[("uv.lock", Some(b"1")), ("a", Some(b"a"))]);
        assert_eq!(differences(&tree, &tree), Vec::<String>::new());
        assert_eq!(differences(&tree, &key(&[("uv.lock", Some(b"2")), ("a", Some(b"a"))])), ["uv.lock"]);
        assert_eq!(differences(&tree, &key(&[("a", Some(b"a")), ("b", Some(b"b"))])), ["b", "uv.lock"]);
        assert_eq!(differences(&key(&[("a", None)]), &key(&[])), Vec::<String>::new());
    }

    #[test]
    fn reads_lock_files_of_the_worktree() {
        let temp = tempfile::tempdir().expect("temp");
        std::fs::create_dir(temp.path().join("web")).expect("makes");
        for (name, text) in [("uv.lock", "top"), ("web/yarn.lock", "yarn"), ("web/other.lock", ""), ("web/a", "a")] {
            std::fs::write(temp.path().join(name), text).expect("writes");
        }
        std::os::unix::fs::symlink("/etc/passwd", temp.path().join("web/bun.lock")).expect("links");
        let worktree = Repository::open(temp.path()).expect("opens");
        let needed = |path: &str, key: PathKey| NeededPath {
            path: RelPath::new(path).expect("a path"),
            key,
            source: proctor_core::model::plan::PathSource::Worktree,
        };
        let link = of_worktree(&worktree, &needed("web/node_modules", PathKey::LockFiles)).expect_err("a link");
        assert_eq!(link.to_string(), "`web/bun.lock` in the worktree is, or is below, a symbolic link");
        std::fs::remove_file(temp.path().join("web/bun.lock")).expect("removes");
        let found = of_worktree(&worktree, &needed("web/node_modules", PathKey::LockFiles)).expect("reads");
        assert_eq!(found, key(&[("web/yarn.lock", Some(b"yarn"))]));
        let files = ["uv.lock", "web/none", "no/such"].map(|name| RelPath::new(name).expect("a path")).to_vec();
        let found = of_worktree(&worktree, &needed(".venv", PathKey::Files(files))).expect("reads");
        assert_eq!(found, key(&[("uv.lock", Some(b"top")), ("web/none", None), ("no/such", None)]));
    }

    #[test]
    fn requires_a_key_in_the_tree() {
        let path = RelPath::new(".venv").expect("a path");
        let source = proctor_core::model::plan::PathSource::Worktree;
        let needed = NeededPath { path, key: PathKey::LockFiles, source };
        assert!(require_key(&needed, &key(&[("uv.lock", Some(b"1"))])).is_ok());
        assert!(matches!(require_key(&needed, &key(&[])), Err(PathKeyError::NoKeyFile)));
        assert!(matches!(require_key(&needed, &key(&[("a", None)])), Err(PathKeyError::NotInTree(_))));
    }
}
