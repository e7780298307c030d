//! Hashes files of the host, and remembers the digests together with the stamps of the files.
//!
//! A digest is remembered only if the stamp shows every later change of the content. The file in the state directory need
//! not survive a crash: a damaged one is not used, and files are hashed again.

use std::collections::HashMap;
use std::fs;
use std::io::{self, Read as _};
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;
use std::sync::{Mutex, PoisonError};

use proctor_core::model::trace::{AccessedPath, FileStamp, PathState};
use rustix::fs::{Mode, OFlags};
use sha2::{Digest as _, Sha256};

use crate::step::host_stamps::{HostDevices, require_settled};
use crate::store::StoreError;
use crate::store::directory::Directory;

/// The file of the digests, in the directory of the results.
const FILE: &str = "content-hashes";
const MAGIC: &[u8; 16] = b"proctor-hashes1\n";
const DIGEST_BYTES: usize = 32;
/// Maximum number of remembered files. If there are more, all are forgotten.
const MAX_FILES: usize = 100_000;
/// Maximum size of the file of the digests, in bytes.
const MAX_BYTES: u64 = 64 << 20;
/// The largest file that is hashed, in bytes.
const MAX_CONTENT: u64 = 1 << 30;
const BUFFER: usize = 256 << 10;

type KnownDigests = HashMap<Vec<u8>, (FileStamp, [u8; DIGEST_BYTES])>;

/// The digests of files of the host.
#[derive(Debug, Default)]
pub(crate) struct ContentHashes {
    state: Mutex<HashState>,
}

#[derive(Debug, Default)]
struct HashState {
    known: KnownDigests,
    has_changed: bool,
    devices: HostDevices,
}

impl ContentHashes {
    /// Reads the remembered digests.
    pub(crate) fn read(results: &Directory) -> Self {
        let read = results.read(FILE, MAX_BYTES).inspect_err(|error| {
            tracing::debug!(%error, "the digests of files cannot be read");
        });
        let known = read.ok().flatten().and_then(|bytes| decode(&bytes)).unwrap_or_default();
        Self { state: Mutex::new(HashState { known, ..HashState::default() }) }
    }

    /// Stores the digests if there are new ones.
    ///
    /// # Errors
    /// A system call fails.
    pub(crate) fn store(&self, results: &Directory) -> Result<(), StoreError> {
        let mut state = self.lock();
        if !std::mem::take(&mut state.has_changed) {
            return Ok(());
        }
        let bytes = encode(&state.known);
        drop(state);
        results.write_unsynced(FILE, &bytes)
    }

    /// Returns the sha256 of a regular file with this stamp; `None` if the file cannot be read, is too large, or changes.
    /// Follows no link.
    pub(crate) fn hash(&self, path: &Path, stamp: &FileStamp, now_ns: i64) -> Option<[u8; DIGEST_BYTES]> {
        let name = path.as_os_str().as_bytes();
        if let Some((known, digest)) = self.lock().known.get(name)
            && known == stamp
        {
            return Some(*digest);
        }
        let digest = hash_unchanged(path, stamp).inspect_err(|error| {
            tracing::debug!(path = %path.display(), %error, "a file cannot be hashed");
        });
        let digest = digest.ok()?;
        self.remember(name, *stamp, digest, now_ns);
        Some(digest)
    }

    fn remember(&self, path: &[u8], stamp: FileStamp, digest: [u8; DIGEST_BYTES], now_ns: i64) {
        let entry = AccessedPath {
            path: path.to_vec(),
            state: PathState::File { mode: 0, size: stamp.size, uid: 0, gid: 0 },
            stamp: Some(stamp),
            read: true,
            listing: None,
        };
        let mut state = self.lock();
        let is_reliable = require_settled(&entry, now_ns).and_then(|()| state.devices.require_lasting_stamp(&entry));
        if is_reliable.is_err() {
            return;
        }
        if state.known.len() >= MAX_FILES {
            state.known.clear();
        }
        state.known.insert(entry.path, (stamp, digest));
        state.has_changed = true;
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, HashState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Returns the stamp of an open file.
pub(crate) fn stamp_of(meta: &fs::Metadata) -> FileStamp {
    let time = |seconds: i64, nanos: i64| seconds.saturating_mul(1_000_000_000).saturating_add(nanos);
    FileStamp {
        dev: meta.dev(),
        ino: meta.ino(),
        size: meta.size(),
        mtime_ns: time(meta.mtime(), meta.mtime_nsec()),
        ctime_ns: time(meta.ctime(), meta.ctime_nsec()),
    }
}

fn hash_unchanged(path: &Path, stamp: &FileStamp) -> io::Result<[u8; DIGEST_BYTES]> {
    let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
    let mut file = fs::File::from(rustix::fs::open(path, flags, Mode::empty())?);
    let is_same = |meta: &fs::Metadata| meta.is_file() && stamp_of(meta) == *stamp;
    if !is_same(&file.metadata()?) {
        return Err(io::Error::other("it has changed"));
    }
    if stamp.size > MAX_CONTENT {
        return Err(io::Error::other("it is too large"));
    }
    let (mut hash, mut buffer) = (Sha256::new(), vec![0; BUFFER]);
    loop {
        match file.read(&mut buffer)? {
            0 => break,
            count => hash.update(&buffer[..count]),
        }
    }
    if !is_same(&file.metadata()?) {
        return Err(io::Error::other("it changed while it was read"));
    }
    Ok(hash.finalize().into())
}

fn encode(known: &KnownDigests) -> Vec<u8> {
    let mut bytes = MAGIC.to_vec();
    for (path, (stamp, digest)) in known {
        // No path of a trace is longer than this.
        bytes.extend_from_slice(&u16::try_from(path.len()).unwrap_or(u16::MAX).to_le_bytes());
        bytes.extend_from_slice(path);
        for number in [stamp.dev, stamp.ino, stamp.size] {
            bytes.extend_from_slice(&number.to_le_bytes());
        }
        for time in [stamp.mtime_ns, stamp.ctime_ns] {
            bytes.extend_from_slice(&time.to_le_bytes());
        }
        bytes.extend_from_slice(digest);
    }
    let sum: [u8; DIGEST_BYTES] = Sha256::digest(&bytes).into();
    bytes.extend_from_slice(&sum);
    bytes
}

fn decode(bytes: &[u8]) -> Option<KnownDigests> {
    let (content, sum) = bytes.split_last_chunk::<DIGEST_BYTES>()?;
    if <[u8; DIGEST_BYTES]>::from(Sha256::digest(content)) != *sum {
        return None;
    }
    let mut rest = content.strip_prefix(MAGIC)?;
    let mut known = KnownDigests::new();
    while !rest.is_empty() {
        let (length, after) = rest.split_first_chunk::<2>()?;
        let (path, after) = after.split_at_checked(usize::from(u16::from_le_bytes(*length)))?;
        let (numbers, after) = after.split_first_chunk::<40>()?;
        let (digest, after) = after.split_first_chunk::<DIGEST_BYTES>()?;
        let number = |at: usize| numbers[8 * at..8 * (at + 1)].try_into().map(u64::from_le_bytes).unwrap_or_default();
        let stamp = FileStamp {
            dev: number(0),
            ino: number(1),
            size: number(2),
            mtime_ns: number(3).cast_signed(),
            ctime_ns: number(4).cast_signed(),
        };
        known.insert(path.to_vec(), (stamp, *digest));
        rest = after;
    }
    Some(known)
}

#[cfg(test)]
mod tests {
    use proctor_core::text::digest::Sha256Hex;

    use super::*;

    #[expect(clippy::disallowed_methods, reason = "a file of the test")]
    fn write(path: &Path, content: &str) -> FileStamp {
        fs::write(path, content).expect("written");
        stamp_of(&fs::metadata(path).expect("a file"))
    }

    #[test]
    fn only_settled_files_are_remembered_and_damage_is_detected() {
        let directory = tempfile::tempdir_in(env!("CARGO_MANIFEST_DIR")).expect("a directory");
        let (file, results) = (directory.path().join("f"), Directory::open(directory.path()).expect("opens"));
        let stamp = write(&file, "content");
        let (hashes, digest) = (ContentHashes::default(), Sha256Hex::digest(b"content").to_raw());
        let (at_once, later) = (stamp.ctime_ns, stamp.ctime_ns + 3_600_000_000_000);
        assert_eq!(hashes.hash(&file, &stamp, at_once), Some(digest));
        assert_eq!(hashes.lock().known.len(), 0, "a write through a mapping could change it");
        assert_eq!(hashes.hash(&file, &stamp, later), Some(digest));
        assert_eq!(hashes.lock().known.len(), 1);
        hashes.store(&results).expect("stores");
        assert_eq!(ContentHashes::read(&results).lock().known, hashes.lock().known);
        let stored = fs::read(directory.path().join(FILE)).expect("reads");
        for at in 0..stored.len() {
            let mut damaged = stored.clone();
            damaged[at] ^= 1;
            assert_eq!(decode(&damaged), None, "{at}");
        }
    }

    #[test]
    fn changed_files_and_links_are_not_hashed() {
        let directory = tempfile::tempdir().expect("a directory");
        let (file, link) = (directory.path().join("f"), directory.path().join("l"));
        let earlier = write(&file, "content");
        let stamp = write(&file, "other content");
        std::os::unix::fs::symlink(&file, &link).expect("a link");
        let hashes = ContentHashes::default();
        assert_eq!(hashes.hash(&file, &earlier, i64::MAX), None);
        assert_eq!(hashes.hash(&link, &stamp, i64::MAX), None);
        assert!(hashes.hash(&file, &stamp, i64::MAX).is_some());
    }
}
