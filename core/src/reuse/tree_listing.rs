//! A bounded list of the entries of a tree with parts of their digests. Two lists show the first path in which two trees
//! differ.

use std::collections::BTreeMap;
use std::fmt;

use crate::text::digest::Sha256Hex;

/// Maximum number of entries of a list.
const MAX_ENTRIES: usize = 30_000;
/// Maximum size of an encoded list, in bytes.
pub const MAX_LISTING_BYTES: usize = 4 << 20;
const MAGIC: &[u8; 16] = b"proctor-tree-1\n\n";
/// Bytes of an entry besides its path.
const ENTRY_OVERHEAD: usize = 12;
/// The bit of a digest that is set for a directory.
const DIRECTORY: u64 = 1;

/// The entries of a tree: all of them, or only directories near the top.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct TreeListing {
    /// A part of the digest of each entry, with [`DIRECTORY`].
    entries: BTreeMap<String, u64>,
}

/// An entry of a tree.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TreeEntry {
    /// The path in the tree.
    pub path: String,
    /// A digest of the content and the attributes, for a directory of everything below it.
    pub sha256: Sha256Hex,
    /// True for a directory.
    pub is_directory: bool,
}

/// The first path in which two trees differ.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum TreeDifference {
    /// Only the second tree has the path.
    Added(String),
    /// Only the first tree has the path.
    Removed(String),
    /// Both trees have the path, with different content.
    Changed(String),
    /// An entry of this directory differs, but the lists do not contain it.
    Below(String),
}

impl fmt::Display for TreeDifference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Added(path) => write!(f, "`{path}` is new"),
            Self::Removed(path) => write!(f, "`{path}` no longer exists"),
            Self::Changed(path) => write!(f, "`{path}` differs"),
            Self::Below(path) => write!(f, "an entry of `{path}` differs"),
        }
    }
}

impl TreeListing {
    /// Creates the list of these entries. If there are too many, the list contains only directories, without the
    /// deepest levels.
    pub fn new(entries: impl IntoIterator<Item = TreeEntry>) -> Self {
        let listed = |entry: TreeEntry| {
            let digest = short_digest(&entry);
            (entry.path, digest)
        };
        let mut list: BTreeMap<String, u64> = entries.into_iter().map(listed).collect();
        if !fits(&list) {
            list.retain(|_, digest| *digest & DIRECTORY != 0);
        }
        while !fits(&list) {
            let deepest = list.keys().map(|path| depth(path)).max().unwrap_or_default();
            list.retain(|path, _| depth(path) < deepest);
        }
        Self { entries: list }
    }

    /// Returns the first difference from the tree `now`, in a path that does not start with `except`. `None` if the lists do
    /// not show one.
    pub fn first_difference(&self, now: &Self, except: Option<&str>) -> Option<TreeDifference> {
        let mut found: Option<&String> = None;
        let both = self.entries.keys().chain(now.entries.keys());
        let mut paths: Vec<&String> = both.filter(|path| self.entries.get(*path) != now.entries.get(*path)).collect();
        paths.retain(|path| except.is_none_or(|except| !path.starts_with(except)));
        paths.sort();
        for path in paths {
            let is_deeper =
                |above: &String| path.strip_prefix(above.as_str()).is_some_and(|rest| rest.starts_with('/'));
            if found.is_none_or(is_deeper) {
                found = Some(path);
            }
        }
        let path = found?.clone();
        Some(match (self.entries.get(&path), now.entries.get(&path)) {
            (Some(before), Some(after)) if before & after & DIRECTORY != 0 => TreeDifference::Below(path),
            (Some(_), Some(_)) => TreeDifference::Changed(path),
            (Some(_), None) => TreeDifference::Removed(path),
            (None, _) => TreeDifference::Added(path),
        })
    }

    /// Encodes the list.
    pub fn encode(&self) -> Vec<u8> {
        let mut bytes = MAGIC.to_vec();
        for (path, digest) in &self.entries {
            // No path is longer.
            bytes.extend_from_slice(&u32::try_from(path.len()).unwrap_or(u32::MAX).to_le_bytes());
            bytes.extend_from_slice(&digest.to_le_bytes());
            bytes.extend_from_slice(path.as_bytes());
        }
        let sum = crc32fast::hash(&bytes);
        bytes.extend_from_slice(&sum.to_le_bytes());
        bytes
    }

    /// Decodes a list; `None` if the bytes are damaged.
    pub fn decode(bytes: &[u8]) -> Option<Self> {
        let (content, sum) = bytes.split_last_chunk::<4>()?;
        if crc32fast::hash(content) != u32::from_le_bytes(*sum) {
            return None;
        }
        let (mut rest, mut entries) = (content.strip_prefix(MAGIC)?, BTreeMap::new());
        while !rest.is_empty() {
            let (length, after) = rest.split_first_chunk::<4>()?;
            let (digest, after) = after.split_first_chunk::<8>()?;
            let (path, after) = after.split_at_checked(usize::try_from(u32::from_le_bytes(*length)).ok()?)?;
            entries.insert(std::str::from_utf8(path).ok()?.to_owned(), u64::from_le_bytes(*digest));
            rest = after;
        }
        Some(Self { entries })
    }
}

fn short_digest(entry: &TreeEntry) -> u64 {
    let raw = entry.sha256.to_raw();
    let digest = raw.first_chunk::<8>().map_or(0, |part| u64::from_le_bytes(*part));
    digest & !DIRECTORY | if entry.is_directory { DIRECTORY } else { 0 }
}

fn fits(list: &BTreeMap<String, u64>) -> bool {
    let bytes: usize = list.keys().map(|path| path.len() + ENTRY_OVERHEAD).sum();
    list.len() <= MAX_ENTRIES && bytes + MAGIC.len() + size_of::<u32>() <= MAX_LISTING_BYTES
}

fn depth(path: &str) -> usize {
    path.matches('/').count()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn listing(entries: &[(&str, &str)]) -> TreeListing {
        TreeListing::new(entries.iter().map(|(path, content)| TreeEntry {
            path: path.trim_end_matches('/').to_owned(),
            sha256: Sha256Hex::digest(content.as_bytes()),
            is_directory: path.ends_with('/'),
        }))
    }

    #[test]
    fn names_the_first_path_that_differs() {
        let before = [("a", "1"), ("src/", "1"), ("src/b", "1"), ("src-c", "1"), ("z", "1")];
        let now = |changes: &[(usize, (&'static str, &'static str))]| {
            let mut entries = before;
            changes.iter().for_each(|(at, entry)| entries[*at] = *entry);
            listing(&before).first_difference(&listing(&entries), None)
        };
        let changed = |path: &str| Some(TreeDifference::Changed(path.to_owned()));
        assert_eq!(now(&[]), None);
        assert_eq!(now(&[(4, ("z", "2"))]), changed("z"));
        assert_eq!(now(&[(1, ("src/", "2")), (2, ("src/b", "2")), (4, ("z", "2"))]), changed("src/b"));
        assert_eq!(now(&[(1, ("src/", "2")), (3, ("src-c", "2"))]), Some(TreeDifference::Below("src".to_owned())));
        assert_eq!(now(&[(1, ("src/", "2")), (2, ("src/d", "1"))]), Some(TreeDifference::Removed("src/b".to_owned())));
        let new = [&before[..], &[("a/", "2"), ("new/", "1"), ("new/e", "1")]].concat();
        let difference = listing(&before).first_difference(&listing(&new[..]), None);
        assert_eq!(difference, changed("a"), "a file became a directory");
        let difference = listing(&before).first_difference(&listing(&new[..]), Some("a"));
        assert_eq!(difference, Some(TreeDifference::Added("new/e".to_owned())));
    }

    #[test]
    fn large_lists_have_directories_only() {
        let entries = |content: &str| {
            let files = (0..MAX_ENTRIES).map(|n| (format!("d{}/sub/f{n}", n % 7), "1".to_owned(), false));
            let directories = (0..7).flat_map(|n| [format!("d{n}"), format!("d{n}/sub")]);
            let directories = directories.map(|path| {
                let of = if path.starts_with("d3") { content } else { "1" };
                (path, of.to_owned(), true)
            });
            let all = files.chain(directories).map(|(path, content, is_directory)| TreeEntry {
                path,
                sha256: Sha256Hex::digest(content.as_bytes()),
                is_directory,
            });
            TreeListing::new(all)
        };
        let (before, now) = (entries("1"), entries("2"));
        assert_eq!(before.entries.len(), 14);
        assert_eq!(before.first_difference(&now, None), Some(TreeDifference::Below("d3/sub".to_owned())));
        let deep = |n: usize| format!("{}/{n}", "x".repeat(MAX_LISTING_BYTES / 2));
        let directory = |path: String| TreeEntry { path, sha256: Sha256Hex::digest(b""), is_directory: true };
        let huge = TreeListing::new((0..3).map(|n| directory(deep(n))).chain([directory("top".to_owned())]));
        assert_eq!(huge.entries.keys().collect::<Vec<_>>(), ["top"]);
    }

    #[test]
    fn round_trips_and_rejects_damage() {
        let list = listing(&[("a", "1"), ("src/", "1"), ("src/ü", "1")]);
        let encoded = list.encode();
        assert_eq!(TreeListing::decode(&encoded), Some(list));
        for at in 0..encoded.len() {
            let mut damaged = encoded.clone();
            damaged[at] ^= 1;
            assert_eq!(TreeListing::decode(&damaged), None, "{at}");
        }
        assert_eq!(TreeListing::decode(b""), None);
    }
}
