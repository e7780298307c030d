//! Computes the fingerprint of a step with everything that it reads, from the inputs of a machine.

use sha2::{Digest as _, Sha256};

use super::path_set::{PathSet, SharedPath};
use crate::model::trace::{AccessedPath, PathState};
use crate::reuse::observed_inputs::{ContentPin, InputArea, ObservedInputs};
use crate::text::digest::Sha256Hex;
use crate::text::escape::escape_output;

const VERSION: &[u8] = b"proctor-strong-2\n";

/// Returns the content of files, by which machines compare them.
pub trait FileContents {
    /// Returns the digest of the content of a regular file whose content is not among the inputs; `None` if it cannot be
    /// read, is too large, or has changed since it was observed.
    fn content(&self, area: InputArea, file: &AccessedPath) -> Option<[u8; 32]>;
}

/// Returns the strong fingerprint of a step. `set` contains the paths of `inputs`.
///
/// # Errors
/// The path, escaped, whose state cannot be determined.
pub fn strong_fingerprint(
    set: &PathSet,
    inputs: &ObservedInputs,
    contents: &impl FileContents,
) -> Result<Sha256Hex, String> {
    let mut hash = Sha256::new();
    hash.update(VERSION);
    hash.update(set.weak.to_raw());
    let tree = inputs.tree().map(|(entry, pin)| (InputArea::Tree, entry, pin));
    let host = inputs.host().iter().map(|entry| (InputArea::Host, entry, ContentPin::None));
    let mut observed = tree.chain(host);
    for path in set.paths() {
        let found = observed.next().filter(|(area, entry, _)| path.names(*area, &entry.path));
        let state = found.and_then(|(_, entry, pin)| describe(path, entry, pin, contents));
        let state = state.ok_or_else(|| escape_output(&path.path))?;
        let flags = [u8::from(path.area == InputArea::Host), u8::from(path.read), u8::from(path.listed)];
        for part in [flags.as_slice(), &path.path, &state] {
            hash.update((part.len() as u64).to_le_bytes());
            hash.update(part);
        }
    }
    match observed.next() {
        None => Ok(Sha256Hex::from_raw(hash.finalize().into())),
        Some((_, entry, _)) => Err(escape_output(&entry.path)),
    }
}

/// Returns the state of a path without what differs between machines: device, inode and times.
fn describe(path: &SharedPath, entry: &AccessedPath, pin: ContentPin, contents: &impl FileContents) -> Option<Vec<u8>> {
    let is_file = matches!(entry.state, PathState::File { .. });
    if let ContentPin::Covered { sha256, executable } = pin {
        let kind = if is_file { "file" } else { "link" };
        return Some(format!("covered {kind} {executable} {}", Sha256Hex::from_raw(sha256)).into_bytes());
    }
    let mut described = format!("{:?}", entry.state).into_bytes();
    match pin {
        ContentPin::Git { sha256 } => described.extend_from_slice(&sha256),
        _ if is_file => described.extend_from_slice(&contents.content(path.area, entry)?),
        _ => {}
    }
    if path.listed {
        described.extend_from_slice(&entry.listing?.0);
    }
    Some(described)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;
    use crate::model::trace::{AccessTrace, FileStamp, ListingDigest};

    /// The files of a machine: host files by content, and a tree of covered files.
    #[derive(Clone)]
    struct Machine {
        host: BTreeMap<&'static [u8], (u32, &'static [u8])>,
        covered: BTreeMap<&'static [u8], (bool, &'static [u8])>,
        inode: u64,
        listing: u8,
    }

    impl Machine {
        fn entry(&self, path: &[u8], state: PathState) -> AccessedPath {
            let stamp = FileStamp { dev: 1, ino: self.inode, size: 0, mtime_ns: 0, ctime_ns: 0 };
            let stamp = (state != PathState::Absent).then_some(stamp);
            AccessedPath { path: path.to_vec(), state, stamp, read: false, listing: None }
        }

        fn file(&self, path: &[u8], mode: u32, content: &[u8]) -> AccessedPath {
            self.entry(path, PathState::File { mode, size: content.len() as u64, uid: 0, gid: 0 })
        }

        fn inputs(&self) -> ObservedInputs {
            let (covered, pin) = match self.covered.get(&b"a.py"[..]) {
                Some((executable, content)) => {
                    let sha256 = Sha256Hex::digest(content).to_raw();
                    (self.file(b"/a.py", 0o644, content), ContentPin::Covered { sha256, executable: *executable })
                }
                None => (self.entry(b"/a.py", PathState::Absent), ContentPin::None),
            };
            let mut directory = self.entry(b"/dir", PathState::Directory { mode: 0o755, uid: 0, gid: 0 });
            directory.listing = Some(ListingDigest([self.listing; 32]));
            let host = [&b"/etc/tool"[..], b"/etc/tool.conf"].map(|path| match self.host.get(path) {
                Some((mode, content)) => self.file(path, *mode, content),
                None => self.entry(path, PathState::Absent),
            });
            let trace = |entries| AccessTrace::new(entries).expect("a trace");
            let host = trace([directory].into_iter().chain(host).collect());
            ObservedInputs::new(trace(vec![covered]), vec![pin], host).expect("inputs")
        }
    }

    impl FileContents for Machine {
        fn content(&self, _: InputArea, file: &AccessedPath) -> Option<[u8; 32]> {
            Some(Sha256Hex::digest(self.host.get(file.path.as_slice())?.1).to_raw())
        }
    }

    fn set(weak: &[u8]) -> PathSet {
        let mut bytes = b"proctor-paths-1\n".to_vec();
        bytes.extend_from_slice(&Sha256Hex::digest(weak).to_raw());
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
            covered: BTreeMap::from([(&b"a.py"[..], (false, &b"x = 1"[..]))]),
            inode: 0,
            listing: 0,
        }
    }

    fn fingerprint(set: &PathSet, machine: &Machine) -> Result<Sha256Hex, String> {
        strong_fingerprint(set, &machine.inputs(), machine)
    }

    #[test]
    fn only_portable_differences_matter() {
        let fingerprint = |machine: &Machine| fingerprint(&set(b"weak"), machine).expect("a fingerprint");
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
        for covered in [Some((false, &b"x = 2"[..])), Some((true, b"x = 1")), None] {
            let covered = covered.map(|file| (&b"a.py"[..], file)).into_iter().collect();
            others.push(Machine { covered, ..machine() });
        }
        for other in &others {
            assert_ne!(fingerprint(other), usual, "{:?} {:?}", other.host, other.covered);
        }
    }

    #[test]
    fn weak_fingerprint_is_a_part() {
        assert_ne!(fingerprint(&set(b"weak"), &machine()), fingerprint(&set(b"other"), &machine()));
    }

    #[test]
    fn every_path_must_be_known() {
        let (set, machine) = (set(b"weak"), machine());
        let unreadable = Machine { host: BTreeMap::new(), ..machine.clone() };
        let refused = strong_fingerprint(&set, &machine.inputs(), &unreadable);
        assert_eq!(refused, Err("/etc/tool".to_owned()), "its content cannot be read");
        let host = AccessTrace::new(machine.inputs().host().to_vec()).expect("a trace");
        let fewer = ObservedInputs::new(AccessTrace::default(), Vec::new(), host).expect("inputs");
        assert_eq!(strong_fingerprint(&set, &fewer, &machine), Err("a.py".to_owned()));
        let none = PathSet::from_inputs(set.weak.clone(), &ObservedInputs::default());
        assert_eq!(strong_fingerprint(&none, &machine.inputs(), &machine), Err("/a.py".to_owned()));
        let mut unlisted = machine.inputs().host().to_vec();
        unlisted[0].listing = None;
        let tree: Vec<_> = machine.inputs().tree().map(|(entry, pin)| (entry.clone(), pin)).collect();
        let (entries, pins) = tree.into_iter().unzip();
        let trace = |entries| AccessTrace::new(entries).expect("a trace");
        let unlisted = ObservedInputs::new(trace(entries), pins, trace(unlisted)).expect("inputs");
        assert_eq!(strong_fingerprint(&set, &unlisted, &machine), Err("/dir".to_owned()));
    }
}
