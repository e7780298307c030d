//! Reads a tree independently of the crates under test: a map from path to entry, without directories.

use std::collections::BTreeMap;
use std::os::fd::{AsFd, BorrowedFd};

use proctor_core::model::drift::{Entry, EntryKind};
use proctor_core::text::digest::Sha256Hex;
use rustix::fs::{AtFlags, Dir, FileType, Mode, OFlags, openat, readlinkat, statat};
use sha2::{Digest as _, Sha256};

/// The tag and the 32 bytes of an entry, as specified in docs/snapshot.md.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct ListedLeaf {
    tag: char,
    sha256: String,
}

impl From<&Entry> for ListedLeaf {
    fn from(entry: &Entry) -> Self {
        let tag = match (entry.kind, entry.executable) {
            (EntryKind::File, false) => 'f',
            (EntryKind::File, true) => 'x',
            (EntryKind::Symlink, _) => 'l',
            (EntryKind::Special, _) => 's',
            (EntryKind::Gitlink, _) => 'g',
            (EntryKind::Directory, _) => 'd',
        };
        Self { tag, sha256: entry.sha256.to_string() }
    }
}

/// Leaves by path.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) struct TreeListing(BTreeMap<String, ListedLeaf>);

impl TreeListing {
    /// Reads all entries below an open directory, except the top-level `.git`.
    pub(crate) fn read(top: BorrowedFd<'_>) -> Self {
        let mut tree = Self::default();
        tree.walk(top, "");
        tree
    }

    fn walk(&mut self, dir: BorrowedFd<'_>, prefix: &str) {
        for entry in Dir::read_from(dir).expect("a directory") {
            let name = entry.expect("an entry").file_name().to_str().expect("names of ours").to_owned();
            if matches!(name.as_str(), "." | ".." | ".git") {
                continue;
            }
            let path = format!("{prefix}{name}");
            let stat = statat(dir, &name, AtFlags::SYMLINK_NOFOLLOW).expect("it stands there");
            let leaf = |tag, content: &[u8]| ListedLeaf { tag, sha256: to_hex(Sha256::digest(content).into()) };
            let leaf = match FileType::from_raw_mode(stat.st_mode) {
                FileType::Directory => {
                    let inner = openat(dir, &name, OFlags::RDONLY | OFlags::DIRECTORY, Mode::empty()).expect("opens");
                    self.walk(inner.as_fd(), &format!("{path}/"));
                    continue;
                }
                FileType::RegularFile => {
                    let file = openat(dir, &name, OFlags::RDONLY, Mode::empty()).expect("opens");
                    let mut bytes = Vec::new();
                    std::io::Read::read_to_end(&mut std::fs::File::from(file), &mut bytes).expect("reads");
                    leaf(if stat.st_mode & 0o100 == 0 { 'f' } else { 'x' }, &bytes)
                }
                FileType::Symlink => leaf('l', readlinkat(dir, &name, Vec::new()).expect("a link").as_bytes()),
                _ => leaf('s', b""),
            };
            self.0.insert(path, leaf);
        }
    }

    /// Returns the part of the tree at the wanted paths.
    pub(crate) fn filter_paths(&self, wanted: impl Fn(&str) -> bool) -> Self {
        Self(self.0.iter().filter(|(path, _)| wanted(path)).map(|(path, leaf)| (path.clone(), leaf.clone())).collect())
    }

    pub(crate) fn leaf(&self, path: &[u8]) -> Option<&ListedLeaf> {
        self.0.get(std::str::from_utf8(path).expect("names of ours"))
    }

    pub(crate) fn insert(&mut self, path: &[u8], leaf: ListedLeaf) {
        self.0.insert(String::from_utf8(path.to_vec()).expect("names of ours"), leaf);
    }

    pub(crate) fn remove(&mut self, path: &[u8]) {
        self.0.remove(std::str::from_utf8(path).expect("names of ours"));
    }

    /// Computes the identity of the tree.
    pub(crate) fn identity(&self) -> String {
        let leaves: Vec<(&str, &ListedLeaf)> = self.0.iter().map(|(path, leaf)| (path.as_str(), leaf)).collect();
        format!("sha256:{}", to_hex(identity_digest(&leaves)))
    }
}

fn identity_digest(leaves: &[(&str, &ListedLeaf)]) -> [u8; 32] {
    let mut lines = Vec::new();
    let mut inner: BTreeMap<&str, Vec<(&str, &ListedLeaf)>> = BTreeMap::new();
    for (path, leaf) in leaves {
        match path.split_once('/') {
            Some((directory, rest)) => inner.entry(directory).or_default().push((rest, leaf)),
            None => {
                let raw = Sha256Hex::try_from(leaf.sha256.clone()).expect("hex").to_raw();
                lines.push((*path, leaf.tag, raw));
            }
        }
    }
    lines.extend(inner.iter().map(|(directory, leaves)| (*directory, 'd', identity_digest(leaves))));
    lines.sort_unstable();
    let mut hasher = Sha256::new_with_prefix(b"proctor-tree-v1\0");
    for (name, tag, raw) in lines {
        hasher.update([tag as u8]);
        hasher.update(name);
        hasher.update([0]);
        hasher.update(raw);
    }
    hasher.finalize().into()
}

fn to_hex(raw: [u8; 32]) -> String {
    raw.iter().map(|byte| format!("{byte:02x}")).collect()
}
