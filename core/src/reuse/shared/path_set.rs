//! The paths that an execution accessed, without their content.

use crate::model::trace::{AccessedPath, MAX_TRACE_ENTRIES, MAX_TRACE_PATH_BYTES};
use crate::reuse::observed_inputs::{InputArea, ObservedInputs};
use crate::text::digest::Sha256Hex;

/// Maximum size of an encoded path set, in bytes. A larger one is neither stored nor used.
pub const MAX_PATH_SET_BYTES: usize = 4 << 20;
const MAGIC: &[u8; 16] = b"proctor-paths-1\n";
const DIGEST_BYTES: usize = 32;
const HOST: u8 = 1;
const READ: u8 = 2;
const LISTED: u8 = 4;

/// The paths that an execution of a step accessed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PathSet {
    /// The weak fingerprint of the step.
    pub weak: Sha256Hex,
    /// The paths: first those of the tree, then those of the host, each part sorted.
    paths: Vec<SharedPath>,
}

/// A path that an execution accessed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SharedPath {
    /// The part of the host that contains the path.
    pub area: InputArea,
    /// The path: relative to the tree, or absolute.
    pub path: Vec<u8>,
    /// True if the content was read.
    pub read: bool,
    /// True if the directory was listed.
    pub listed: bool,
}

impl SharedPath {
    fn order(&self) -> (u8, &[u8]) {
        (u8::from(self.area == InputArea::Host), &self.path)
    }

    /// Returns whether this is the path of an entry of a trace.
    pub(super) fn names(&self, area: InputArea, path: &[u8]) -> bool {
        let path = if area == InputArea::Tree { path.strip_prefix(b"/").unwrap_or(path) } else { path };
        self.area == area && self.path == path
    }

    fn is_valid(&self) -> bool {
        let below = match self.area {
            InputArea::Tree => self.path.as_slice(),
            InputArea::Host => match self.path.strip_prefix(b"/") {
                Some(below) => below,
                None => return false,
            },
        };
        let is_name = |part: &[u8]| !matches!(part, b"" | b"." | b"..") && !part.contains(&0);
        self.path.len() <= MAX_TRACE_PATH_BYTES && (below.is_empty() || below.split(|byte| *byte == b'/').all(is_name))
    }
}

impl PathSet {
    /// Returns the paths of observed inputs.
    pub fn from_inputs(weak: Sha256Hex, inputs: &ObservedInputs) -> Self {
        let shared = |area, entry: &AccessedPath, path: &[u8]| SharedPath {
            area,
            path: path.to_vec(),
            read: entry.read,
            listed: entry.listing.is_some(),
        };
        let tree = inputs
            .tree()
            .map(|(entry, _)| shared(InputArea::Tree, entry, entry.path.strip_prefix(b"/").unwrap_or(&entry.path)));
        let host = inputs.host().iter().map(|entry| shared(InputArea::Host, entry, &entry.path));
        Self { weak, paths: tree.chain(host).collect() }
    }

    /// Returns the paths.
    pub fn paths(&self) -> &[SharedPath] {
        &self.paths
    }

    /// Encodes the set. Equal sets have equal bytes.
    pub fn encode(&self) -> Vec<u8> {
        let mut bytes = MAGIC.to_vec();
        bytes.extend_from_slice(&self.weak.to_raw());
        for path in &self.paths {
            let area = if path.area == InputArea::Host { HOST } else { 0 };
            bytes.push(area | if path.read { READ } else { 0 } | if path.listed { LISTED } else { 0 });
            // No path of a trace is longer than this.
            bytes.extend_from_slice(&u16::try_from(path.path.len()).unwrap_or(u16::MAX).to_le_bytes());
            bytes.extend_from_slice(&path.path);
        }
        bytes
    }

    /// Decodes a set; `None` if the bytes are not its encoding, or exceed a bound.
    pub fn decode(bytes: &[u8]) -> Option<Self> {
        if bytes.len() > MAX_PATH_SET_BYTES {
            return None;
        }
        let (weak, mut rest) = bytes.strip_prefix(MAGIC)?.split_first_chunk::<DIGEST_BYTES>()?;
        let mut paths: Vec<SharedPath> = Vec::new();
        while let Some((flags, after)) = rest.split_first() {
            let (length, after) = after.split_first_chunk::<2>()?;
            let (path, after) = after.split_at_checked(usize::from(u16::from_le_bytes(*length)))?;
            if flags & !(HOST | READ | LISTED) != 0 || paths.len() == MAX_TRACE_ENTRIES {
                return None;
            }
            let area = if flags & HOST != 0 { InputArea::Host } else { InputArea::Tree };
            let path = SharedPath { area, path: path.to_vec(), read: flags & READ != 0, listed: flags & LISTED != 0 };
            if !path.is_valid() || paths.last().is_some_and(|last| last.order() >= path.order()) {
                return None;
            }
            paths.push(path);
            rest = after;
        }
        Some(Self { weak: Sha256Hex::from_raw(*weak), paths })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn path(area: InputArea, path: &[u8]) -> SharedPath {
        SharedPath { area, path: path.to_vec(), read: true, listed: false }
    }

    fn set(paths: &[SharedPath]) -> PathSet {
        PathSet { weak: Sha256Hex::digest(b"weak"), paths: paths.to_vec() }
    }

    #[test]
    fn encoding_is_exact() {
        use InputArea::{Host, Tree};
        let listed = SharedPath { read: false, listed: true, ..path(Host, b"/etc") };
        let paths = [path(Tree, b""), path(Tree, b"a/b"), path(Host, b"/"), listed, path(Host, b"/etc/passwd")];
        let known = set(&paths);
        let encoded = known.encode();
        assert_eq!(PathSet::decode(&encoded), Some(known));
        for length in 0..encoded.len() {
            let cut = PathSet::decode(&encoded[..length]);
            assert!(cut.is_none_or(|cut| cut.paths.len() < paths.len()), "{length}");
        }
    }

    #[test]
    fn refuses_paths_that_no_trace_contains() {
        use InputArea::{Host, Tree};
        for wrong in [
            vec![path(Tree, b"../secret")],
            vec![path(Tree, b"/etc")],
            vec![path(Host, b"etc")],
            vec![path(Host, b"/a//b")],
            vec![path(Host, b"/a/./b")],
            vec![path(Host, b"/a\0")],
            vec![path(Host, b"/b"), path(Host, b"/a")],
            vec![path(Host, b"/a"), path(Host, b"/a")],
            vec![path(Host, b"/a"), path(Tree, b"b")],
        ] {
            assert_eq!(PathSet::decode(&set(&wrong).encode()), None, "{wrong:?}");
        }
        assert_eq!(PathSet::decode(&[0; MAX_PATH_SET_BYTES + 1]), None);
    }
}
