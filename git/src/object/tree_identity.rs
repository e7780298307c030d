//! Computes the id of a git tree from a list of files, without writing an object.

use std::collections::HashMap;

use crate::object::object_id::{ObjectFormat, ObjectId, ObjectKind, object_id};
use crate::object::object_parser::{self, TreeEntry};

const TREE_MODE: u32 = 0o40000;

/// A file, link or submodule of a tree.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TreeFile<'a> {
    /// The path relative to the top of the tree.
    pub path: &'a [u8],
    /// The mode in the tree object.
    pub mode: u32,
    /// The blob, or the commit of a submodule.
    pub id: ObjectId,
}

/// Returns the id of the tree of `files`, which must be sorted by the bytes of their paths. This is also git's
/// order within each tree, where a directory sorts as if its name ended in `/`.
pub fn tree_id(format: ObjectFormat, files: &[TreeFile<'_>]) -> ObjectId {
    tree_id_with(format, files, &HashMap::new()).unwrap_or_else(|| object_id(format, ObjectKind::Tree, b""))
}

/// Returns the id of the tree of `files` if some directories, given by path, have objects that are not in git's
/// canonical form. Returns `None` if such an object has other entries than those of the files.
pub(crate) fn tree_id_with(
    format: ObjectFormat,
    files: &[TreeFile<'_>],
    noncanonical: &HashMap<&[u8], &[u8]>,
) -> Option<ObjectId> {
    directory_tree_id(format, files, b"", noncanonical)
}

/// Returns whether the bytes of a tree are exactly the canonical encoding of its entries.
pub(crate) fn is_canonical(entries: &[TreeEntry<'_>], bytes: &[u8]) -> bool {
    let mut written = Vec::with_capacity(bytes.len());
    entries.iter().for_each(|entry| write_entry(entry, &mut written));
    // A directory sorts as if its name ended in `/`.
    let key = |entry: &TreeEntry<'_>| [entry.name, if entry.mode == TREE_MODE { b"/" } else { b"" }].concat();
    written == bytes && entries.is_sorted_by_key(key)
}

fn directory_tree_id(
    format: ObjectFormat,
    files: &[TreeFile<'_>],
    prefix: &[u8],
    noncanonical: &HashMap<&[u8], &[u8]>,
) -> Option<ObjectId> {
    let depth = if prefix.is_empty() { 0 } else { prefix.len() + 1 };
    let mut entries = Vec::new();
    let mut rest = files;
    while let Some(file) = rest.first() {
        let tail = &file.path[depth..];
        let (mode, name, id, count) = match tail.iter().position(|b| *b == b'/') {
            None => (file.mode, tail, file.id, 1),
            Some(end) => {
                let prefix = &file.path[..=depth + end];
                let count = rest.iter().take_while(|file| file.path.starts_with(prefix)).count();
                let id = directory_tree_id(format, &rest[..count], &file.path[..depth + end], noncanonical)?;
                (TREE_MODE, &tail[..end], id, count)
            }
        };
        entries.push(TreeEntry { mode, name, id });
        rest = &rest[count..];
    }
    if let Some(object) = noncanonical.get(prefix) {
        let mut found = object_parser::parse_tree(format, object)?;
        let by_name = |a: &TreeEntry<'_>, b: &TreeEntry<'_>| a.name.cmp(b.name);
        found.sort_by(by_name);
        entries.sort_by(by_name);
        return (found == entries).then(|| object_id(format, ObjectKind::Tree, object));
    }
    let mut object = Vec::new();
    entries.iter().for_each(|entry| write_entry(entry, &mut object));
    Some(object_id(format, ObjectKind::Tree, &object))
}

fn write_entry(entry: &TreeEntry<'_>, object: &mut Vec<u8>) {
    write_mode(entry.mode, object);
    object.push(b' ');
    object.extend_from_slice(entry.name);
    object.push(0);
    object.extend_from_slice(entry.id.as_bytes());
}

/// Writes a mode in octal, without leading zeros.
fn write_mode(mode: u32, object: &mut Vec<u8>) {
    const DIGITS: u32 = 6;
    let digits = (0..DIGITS).rev().map(|at| mode >> (3 * at) & 7).skip_while(|digit| *digit == 0);
    object.extend(digits.filter_map(|digit| char::from_digit(digit, 8)).map(|digit| digit as u8));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn formats_modes_as_git_does() {
        for mode in [TREE_MODE, 0o100_644, 0o100_755, 0o120_000, 0o160_000] {
            let mut written = Vec::new();
            write_mode(mode, &mut written);
            assert_eq!(String::from_utf8(written).expect("digits"), format!("{mode:o}"));
        }
    }

    #[test]
    fn noncanonical_trees_keep_their_id() {
        let format = ObjectFormat::Sha1;
        let id = object_id(format, ObjectKind::Blob, b"x");
        let files = [(&b"a/b"[..], 0o100_664), (b"a/c", 0o100_755), (b"d", 0o120_000)];
        let files = files.map(|(path, mode)| TreeFile { path, mode, id });
        let entry = |mode: &str, name: &str| [mode.as_bytes(), b" ", name.as_bytes(), b"\0", id.as_bytes()].concat();
        // The objects are not sorted, and a mode has a leading zero.
        let odd = [entry("0100755", "c"), entry("100664", "b")].concat();
        assert!(!is_canonical(&object_parser::parse_tree(format, &odd).expect("a tree"), &odd));
        let canonical = [entry("100664", "b"), entry("100755", "c")].concat();
        assert!(is_canonical(&object_parser::parse_tree(format, &canonical).expect("a tree"), &canonical));
        let with = |object: &[u8]| tree_id_with(format, &files, &HashMap::from([(&b"a"[..], object)]));
        assert_eq!(with(&canonical), Some(tree_id(format, &files)));
        let top = |below: &[u8]| {
            let below = object_id(format, ObjectKind::Tree, below);
            let directory = [b"40000 a\0", below.as_bytes()].concat();
            object_id(format, ObjectKind::Tree, &[directory, entry("120000", "d")].concat())
        };
        assert_eq!(with(&odd), Some(top(&odd)));
        assert_eq!(with(&entry("100664", "b")), None, "tree lacks a file");
        assert_eq!(with(b"no tree"), None);
    }

    #[test]
    fn empty_tree_has_git_id() {
        let of = |format| tree_id(format, &[]).to_string();
        assert_eq!(of(ObjectFormat::Sha1), "4b825dc642cb6eb9a060e54bf8d69288fbee4904");
        assert_eq!(of(ObjectFormat::Sha256), "6ef19b41225c5369f1c104d45d8d85efa9b057b53b14b4b9b939dd74decc5321");
    }
}
