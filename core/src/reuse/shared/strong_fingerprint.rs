//! Computes the fingerprint of a step with everything that it reads, from a path set and the files of a machine.

use sha2::{Digest as _, Sha256};

use super::path_set::{PathSet, SharedPath};
use crate::model::drift::EntryKind;
use crate::model::trace::PathState;
use crate::reuse::observed_inputs::{CurrentInputs, InputArea};
use crate::text::digest::Sha256Hex;
use crate::text::escape::escape_output;

const VERSION: &[u8] = b"proctor-strong-1\n";

/// Looks up current inputs so that they can be compared between machines: files by their content.
pub trait PortableInputs: CurrentInputs {
    /// Returns the digest of a regular file's content that is not covered by the snapshot; `None` if it cannot be read, or
    /// is too large.
    fn content(&self, path: &SharedPath) -> Option<[u8; 32]>;
}

/// Returns the strong fingerprint of a step.
///
/// # Errors
/// The path, escaped, whose state cannot be determined.
pub fn strong_fingerprint(set: &PathSet, now: &impl PortableInputs) -> Result<Sha256Hex, String> {
    let mut hash = Sha256::new();
    hash.update(VERSION);
    hash.update(set.weak.to_raw());
    for path in set.paths() {
        let state = describe(path, now).ok_or_else(|| escape_output(&path.path))?;
        let flags = [u8::from(path.area == InputArea::Host), u8::from(path.read), u8::from(path.listed)];
        for part in [flags.as_slice(), &path.path, &state] {
            hash.update((part.len() as u64).to_le_bytes());
            hash.update(part);
        }
    }
    Ok(Sha256Hex::from_raw(hash.finalize().into()))
}

/// Returns the state of a path without what differs between machines: device, inode and times.
fn describe(path: &SharedPath, now: &impl PortableInputs) -> Option<Vec<u8>> {
    if path.area == InputArea::Tree
        && let Some(entry) = now.covered(&path.path)
        && entry.kind != EntryKind::Gitlink
    {
        return Some(format!("covered {:?} {} {}", entry.kind, entry.executable, entry.sha256).into_bytes());
    }
    let (state, _) = now.state(path.area, &path.path)?;
    let mut described = format!("{state:?}").into_bytes();
    if matches!(state, PathState::File { .. }) {
        described.extend_from_slice(&now.content(path)?);
    }
    if path.listed {
        described.extend_from_slice(&now.listing(path.area, &path.path)?.0);
    }
    Some(described)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;
    use crate::model::drift::Entry;
    use crate::model::trace::{FileStamp, ListingDigest};
    use crate::reuse::observed_inputs::PathNow;

    /// The files of a machine: host files by content, and a tree of covered files.
    #[derive(Default)]
    struct Machine {
        host: BTreeMap<&'static [u8], (u32, &'static [u8])>,
        covered: BTreeMap<&'static [u8], &'static [u8]>,
        inode: u64,
        listing: u8,
    }

    impl CurrentInputs for Machine {
        fn covered(&self, path: &[u8]) -> Option<Entry> {
            let content = self.covered.get(path)?;
            Some(Entry { kind: EntryKind::File, executable: false, sha256: Sha256Hex::digest(content) })
        }

        fn state(&self, area: InputArea, path: &[u8]) -> Option<PathNow> {
            if path == b"/refused" {
                return None;
            }
            if path == b"/dir" {
                let stamp = FileStamp { dev: 1, ino: self.inode, size: 0, mtime_ns: 0, ctime_ns: 0 };
                return Some((PathState::Directory { mode: 0o755, uid: 0, gid: 0 }, Some(stamp)));
            }
            let Some((mode, content)) = self.host.get(path).filter(|_| area == InputArea::Host) else {
                return Some((PathState::Absent, None));
            };
            let stamp = FileStamp { dev: 1, ino: self.inode, size: 0, mtime_ns: 0, ctime_ns: 0 };
            Some((PathState::File { mode: *mode, size: content.len() as u64, uid: 0, gid: 0 }, Some(stamp)))
        }

        fn listing(&self, _: InputArea, _: &[u8]) -> Option<ListingDigest> {
            Some(ListingDigest([self.listing; 32]))
        }

        fn git_content(&self, _: &[u8]) -> Option<[u8; 32]> {
            None
        }
    }

    impl PortableInputs for Machine {
        fn content(&self, path: &SharedPath) -> Option<[u8; 32]> {
            Some(Sha256Hex::digest(self.host.get(path.path.as_slice())?.1).to_raw())
        }
    }

    fn set() -> PathSet {
        let mut bytes = b"proctor-paths-1\n".to_vec();
        bytes.extend_from_slice(&Sha256Hex::digest(b"weak").to_raw());
        for (flags, path) in [(2, &b"a.py"[..]), (5, b"/dir"), (3, b"/etc/tool"), (1, b"/etc/tool.conf")] {
            bytes.push(flags);
            bytes.extend_from_slice(&u16::try_from(path.len()).expect("short").to_le_bytes());
            bytes.extend_from_slice(path);
        }
        PathSet::decode(&bytes).expect("a set")
    }

    fn machine() -> Machine {
        Machine {
            host: BTreeMap::from([(&b"/etc/tool"[..], (0o755, &b"program"[..]))]),
            covered: BTreeMap::from([(&b"a.py"[..], &b"x = 1"[..])]),
            ..Machine::default()
        }
    }

    #[test]
    fn only_portable_differences_matter() {
        let set = set();
        let fingerprint = |machine: &Machine| strong_fingerprint(&set, machine).expect("a fingerprint");
        let usual = fingerprint(&machine());
        assert_eq!(fingerprint(&Machine { inode: 7, ..machine() }), usual);
        let mut others = vec![Machine { listing: 1, ..machine() }];
        for (path, file) in [
            (&b"/etc/tool"[..], (0o700, &b"program"[..])),
            (b"/etc/tool", (0o755, b"other!!")),
            (b"/etc/tool.conf", (0o644, b"")),
        ] {
            let mut other = machine();
            other.host.insert(path, file);
            others.push(other);
        }
        let mut edited = machine();
        edited.covered.insert(b"a.py", b"x = 2");
        others.push(edited);
        let mut removed = machine();
        removed.covered.clear();
        others.push(removed);
        for other in &others {
            assert_ne!(fingerprint(other), usual, "{:?} {:?}", other.host, other.covered);
        }
    }

    #[test]
    fn weak_fingerprint_is_a_part_and_unreadable_paths_have_none() {
        let mut other = set();
        other.weak = Sha256Hex::digest(b"other");
        assert_ne!(strong_fingerprint(&set(), &machine()), strong_fingerprint(&other, &machine()));
        let mut bytes = b"proctor-paths-1\n".to_vec();
        bytes.extend_from_slice(&[0; 32]);
        bytes.extend_from_slice(&[1, 8, 0]);
        bytes.extend_from_slice(b"/refused");
        let refused = PathSet::decode(&bytes).expect("a set");
        assert_eq!(strong_fingerprint(&refused, &machine()), Err("/refused".to_owned()));
    }
}
