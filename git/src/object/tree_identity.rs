//! Computes the id of a git tree from a list of files, without writing an object.

use std::collections::HashMap;

use crate::object::object_id::{ObjectFormat, ObjectId, ObjectKind, object_id};
use crate::object::object_parser::{self, TreeEntry};

/// The mode of a directory in a tree object.
pub(crate) const TREE_MODE: u32 = 0o40000;
/// Number of files in a directory and below it from which two threads are faster than one.
const MIN_PARALLEL_FILES: usize = 16_384;
/// Typical size of an entry in a tree object, in bytes, for the initial allocation.
const TYPICAL_ENTRY_BYTES: usize = 48;

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
/// canonical form. Returns `None` if the entries of such an object differ from those of the files.
pub(crate) fn tree_id_with(
    format: ObjectFormat,
    files: &[TreeFile<'_>],
    noncanonical: &HashMap<&[u8], &[u8]>,
) -> Option<ObjectId> {
    TreeHasher { format, noncanonical, may_split: true }.directory_id(files, b"")
}

/// Returns whether the bytes of a tree are exactly the canonical encoding of its entries.
pub(crate) fn is_canonical(entries: &[TreeEntry<'_>], bytes: &[u8]) -> bool {
    let mut written = Vec::with_capacity(bytes.len());
    entries.iter().for_each(|entry| write_entry(entry, &mut written));
    // A directory sorts as if its name ended in `/`.
    let end = |entry: &TreeEntry<'_>| if entry.mode == TREE_MODE { &b"/"[..] } else { b"" };
    let in_order = |a: &TreeEntry<'_>, b: &TreeEntry<'_>| a.name.iter().chain(end(a)).le(b.name.iter().chain(end(b)));
    written == bytes && entries.is_sorted_by(in_order)
}

/// Computes the ids of the directories of a tree.
#[derive(Clone, Copy)]
struct TreeHasher<'h> {
    format: ObjectFormat,
    /// The objects of directories that are not in git's canonical form, by path.
    noncanonical: &'h HashMap<&'h [u8], &'h [u8]>,
    /// True if a large directory may be split between two threads.
    may_split: bool,
}

impl TreeHasher<'_> {
    /// Returns the id of the directory `prefix`, which contains `files`.
    fn directory_id(self, files: &[TreeFile<'_>], prefix: &[u8]) -> Option<ObjectId> {
        let depth = if prefix.is_empty() { 0 } else { prefix.len() + 1 };
        let groups = group_by_name(files, depth);
        let mut entries = self.entries(&groups, files.len(), depth)?;
        if let Some(object) = self.noncanonical.get(prefix) {
            let mut found = object_parser::parse_tree(self.format, object)?;
            let by_name = |a: &TreeEntry<'_>, b: &TreeEntry<'_>| a.name.cmp(b.name);
            found.sort_by(by_name);
            entries.sort_by(by_name);
            return (found == entries).then(|| object_id(self.format, ObjectKind::Tree, object));
        }
        let mut object = Vec::with_capacity(entries.len() * TYPICAL_ENTRY_BYTES);
        entries.iter().for_each(|entry| write_entry(entry, &mut object));
        Some(object_id(self.format, ObjectKind::Tree, &object))
    }

    /// Returns the entries of a directory, computed on two threads if it is large.
    fn entries<'a>(self, groups: &[&[TreeFile<'a>]], files: usize, depth: usize) -> Option<Vec<TreeEntry<'a>>> {
        let Some(half) = half_of_files(groups, files).filter(|_| self.may_split) else {
            return groups.iter().map(|group| self.entry(group, depth)).collect();
        };
        let (first, second) = groups.split_at(half);
        let part = |part: &[&[TreeFile<'a>]]| -> Option<Vec<TreeEntry<'a>>> {
            let hasher = Self { may_split: false, ..self };
            part.iter().map(|group| hasher.entry(group, depth)).collect()
        };
        std::thread::scope(|scope| {
            let second = scope.spawn(|| part(second));
            let first = part(first);
            let second = second.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
            Some([first?, second?].concat())
        })
    }

    /// Returns the entry of one name, at which or below which are the files of a group.
    fn entry<'a>(self, group: &[TreeFile<'a>], depth: usize) -> Option<TreeEntry<'a>> {
        let file = group.first()?;
        match file.path[depth..].iter().position(|byte| *byte == b'/') {
            None => Some(TreeEntry { mode: file.mode, name: &file.path[depth..], id: file.id }),
            Some(end) => {
                let path = &file.path[..depth + end];
                Some(TreeEntry { mode: TREE_MODE, name: &path[depth..], id: self.directory_id(group, path)? })
            }
        }
    }
}

/// Returns the files at or below each name in a directory whose path with its slash has `depth` bytes.
fn group_by_name<'f, 'a>(mut files: &'f [TreeFile<'a>], depth: usize) -> Vec<&'f [TreeFile<'a>]> {
    let mut groups = Vec::new();
    while let Some(file) = files.first() {
        let count = match file.path[depth..].iter().position(|byte| *byte == b'/') {
            None => 1,
            Some(end) => count_below(files, &file.path[..=depth + end]),
        };
        let (group, rest) = files.split_at(count);
        groups.push(group);
        files = rest;
    }
    groups
}

/// Returns the number of files at the start of a sorted list whose paths start with `prefix`. The cost grows with the
/// logarithm of that number, not with the length of the list.
fn count_below(files: &[TreeFile<'_>], prefix: &[u8]) -> usize {
    let is_below = |file: &TreeFile<'_>| file.path.starts_with(prefix);
    let mut bound = 1;
    while files.get(bound).is_some_and(is_below) {
        bound *= 2;
    }
    files[..bound.min(files.len())].partition_point(is_below)
}

/// Returns the number of groups at the start that have about half of the files. Returns `None` if two threads are not
/// faster: there are too few files, or most of them are in one group.
fn half_of_files(groups: &[&[TreeFile<'_>]], files: usize) -> Option<usize> {
    if files < MIN_PARALLEL_FILES {
        return None;
    }
    let mut taken = 0;
    let half = groups.iter().position(|group| {
        taken += group.len();
        taken >= files / 2
    })?;
    (taken <= files / 4 * 3).then_some(half + 1)
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

    /// The expected id is computed from the same files, one directory at a time.
    #[test]
    fn large_trees_have_the_same_id() {
        let format = ObjectFormat::Sha1;
        let count = MIN_PARALLEL_FILES + 500;
        let path = |number: usize| match number % 7 {
            0 => format!("{number:06}"),
            1 => format!("a/{number:06}"),
            2 => format!("a-/{number:06}"),
            3 => format!("a0/b/{number:06}"),
            _ => format!("c/d{}/e/{number:06}", number % 13),
        };
        for prefix in ["", "one/"] {
            let mut paths: Vec<Vec<u8>> = (0..count).map(|number| (prefix.to_owned() + &path(number)).into()).collect();
            paths.sort();
            let id = |path: &[u8]| object_id(format, ObjectKind::Blob, path);
            let files: Vec<TreeFile<'_>> =
                paths.iter().map(|path| TreeFile { path, mode: 0o100_644, id: id(path) }).collect();
            assert_eq!(tree_id(format, &files), plain_tree_id(format, &files));
        }
    }

    fn plain_tree_id(format: ObjectFormat, files: &[TreeFile<'_>]) -> ObjectId {
        let mut below: std::collections::BTreeMap<Vec<u8>, Vec<TreeFile<'_>>> = std::collections::BTreeMap::new();
        for file in files {
            let end = file.path.iter().position(|byte| *byte == b'/').map_or(file.path.len(), |slash| slash + 1);
            let inner = TreeFile { path: &file.path[end..], ..*file };
            // The key of a directory ends in `/`, as in git's order.
            below.entry(file.path[..end].to_vec()).or_default().push(inner);
        }
        let mut object = Vec::new();
        for (name, inner) in &below {
            let (name, mode, id) = match name.strip_suffix(b"/") {
                Some(name) => (name, TREE_MODE, plain_tree_id(format, inner)),
                None => (&name[..], inner[0].mode, inner[0].id),
            };
            write_entry(&TreeEntry { mode, name, id }, &mut object);
        }
        object_id(format, ObjectKind::Tree, &object)
    }

    #[test]
    fn empty_tree_has_git_id() {
        let of = |format| tree_id(format, &[]).to_string();
        assert_eq!(of(ObjectFormat::Sha1), "4b825dc642cb6eb9a060e54bf8d69288fbee4904");
        assert_eq!(of(ObjectFormat::Sha256), "6ef19b41225c5369f1c104d45d8d85efa9b057b53b14b4b9b939dd74decc5321");
    }
}
