//! The Merkle tree over the directories of a tree; docs/snapshot.md has the byte format.

use std::collections::BTreeMap;

use proctor_core::digest::Sha256Hex;
use proctor_core::drift::{Entry, EntryKind};
use sha2::{Digest as _, Sha256};

/// What each directory's digest begins with, so that it can be no file's.
const DIRECTORY_DOMAIN: &[u8] = b"proctor-tree-v1\0";

/// What stands at a leaf: its tag and 32 bytes.
pub(crate) type Leaf = (u8, [u8; 32]);

/// The tag of something that was too large to be hashed; never part of a snapshot.
pub(crate) const UNHASHED: u8 = b'u';

/// The root over `entries`: paths relative to the top, `/` between their parts.
pub fn merkle_root(entries: &BTreeMap<Vec<u8>, Entry>) -> Sha256Hex {
    root_of(entries.iter().map(|(path, entry)| (path.as_slice(), leaf(entry))))
}

/// The leaf of an entry.
pub(crate) fn leaf(entry: &Entry) -> Leaf {
    let tag = match (entry.kind, entry.executable) {
        (EntryKind::File, false) => b'f',
        (EntryKind::File, true) => b'x',
        (EntryKind::Symlink, _) => b'l',
        (EntryKind::Gitlink, _) => b'g',
        (EntryKind::Special, _) => b's',
        (EntryKind::Directory, _) => b'd',
    };
    (tag, entry.sha256.to_raw())
}

/// The root over leaves; the order in which they come does not matter.
pub(crate) fn root_of<'a>(leaves: impl Iterator<Item = (&'a [u8], Leaf)>) -> Sha256Hex {
    let mut top = Directory::default();
    for (path, leaf) in leaves {
        top.insert(path, leaf);
    }
    Sha256Hex::from_raw(top.digest())
}

#[derive(Default)]
struct Directory<'a> {
    leaves: BTreeMap<&'a [u8], Leaf>,
    directories: BTreeMap<&'a [u8], Directory<'a>>,
}

impl<'a> Directory<'a> {
    fn insert(&mut self, path: &'a [u8], leaf: Leaf) {
        let mut here = self;
        let mut rest = path;
        while let Some(slash) = rest.iter().position(|b| *b == b'/') {
            here = here.directories.entry(&rest[..slash]).or_default();
            rest = &rest[slash + 1..];
        }
        here.leaves.insert(rest, leaf);
    }

    fn digest(&self) -> [u8; 32] {
        let mut lines: Vec<(&[u8], u8, [u8; 32])> =
            self.leaves.iter().map(|(name, (tag, sha))| (*name, *tag, *sha)).collect();
        lines.extend(self.directories.iter().map(|(name, dir)| (*name, b'd', dir.digest())));
        lines.sort_unstable();
        let mut hasher = Sha256::new_with_prefix(DIRECTORY_DOMAIN);
        for (name, tag, sha) in lines {
            hasher.update([tag]);
            hasher.update(name);
            hasher.update([0]);
            hasher.update(sha);
        }
        hasher.finalize().into()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(kind: EntryKind, executable: bool, content: &[u8]) -> Entry {
        Entry { kind, executable, sha256: Sha256Hex::of(content) }
    }

    fn tree(entries: &[(&str, Entry)]) -> BTreeMap<Vec<u8>, Entry> {
        entries.iter().map(|(path, entry)| (path.as_bytes().to_vec(), entry.clone())).collect()
    }

    #[test]
    fn the_empty_tree_is_the_hash_of_the_domain() {
        assert_eq!(merkle_root(&BTreeMap::new()), Sha256Hex::of(b"proctor-tree-v1\0"));
    }

    #[test]
    fn the_example_of_the_manual_holds() {
        let root = merkle_root(&tree(&[("a", entry(EntryKind::File, false, b"hi"))]));
        assert_eq!(root.as_str(), "a1b923be3f9978a9f43af45ddab7718d0100fbc4c5d327fe72062045b6f23d7c");
    }

    #[test]
    fn the_bytes_are_as_documented() {
        let entries = tree(&[
            ("a/b", entry(EntryKind::File, true, b"run\n")),
            ("c", entry(EntryKind::Symlink, false, b"a/b")),
            ("README", entry(EntryKind::File, false, b"hello\n")),
        ]);
        let line = |tag: &[u8], name: &[u8], sha: [u8; 32]| [tag, name, b"\0", &sha].concat();
        let domain = DIRECTORY_DOMAIN.to_vec();
        let a = [domain.clone(), line(b"x", b"b", Sha256Hex::of(b"run\n").to_raw())].concat();
        let top = [
            domain,
            line(b"f", b"README", Sha256Hex::of(b"hello\n").to_raw()),
            line(b"d", b"a", Sha256Hex::of(&a).to_raw()),
            line(b"l", b"c", Sha256Hex::of(b"a/b").to_raw()),
        ];
        assert_eq!(merkle_root(&entries), Sha256Hex::of(&top.concat()));
    }

    #[test]
    fn kind_mode_name_and_content_each_count() {
        let file = entry(EntryKind::File, false, b"x");
        let trees = [
            tree(&[("a", file.clone())]),
            tree(&[("b", file.clone())]),
            tree(&[("a/b", file.clone())]),
            tree(&[("a", entry(EntryKind::File, true, b"x"))]),
            tree(&[("a", entry(EntryKind::Symlink, false, b"x"))]),
            tree(&[("a", entry(EntryKind::File, false, b"y"))]),
            tree(&[("a", entry(EntryKind::Gitlink, false, b"x")), ("a/b", file)]),
        ];
        let roots: std::collections::BTreeSet<_> = trees.iter().map(merkle_root).collect();
        assert_eq!(roots.len(), trees.len());
    }
}
