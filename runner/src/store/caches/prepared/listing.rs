//! Lists the entries of a stored path with the digests of its files, for the workers of a cluster. The list is stored next to
//! the content, so that the files of an unchanged path are hashed once.
//!
//! A list is valid for one digest of the content, which is verified before each use of the path. A damaged list is
//! replaced.

use std::os::fd::AsFd as _;

use proctor_core::text::digest::Sha256Hex;
use rustix::fs::{self, FileType};
use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};

use super::content::{self, EntryDigests};
use super::{CONTENT_DIR, ContentDigest, HeldPath};
use crate::store::caches::SkillCacheError;
use crate::store::caches::cache_layer::{WalkedEntry, is_whiteout};
use crate::store::directory::Directory;

/// The file with the list.
const LISTING_FILE: &str = "listing";
const MAGIC: &[u8; 16] = b"proctor-listing\n";
const DIGEST_BYTES: usize = 32;
/// Maximum size of the file with the list, in bytes.
const MAX_LISTING_FILE: u64 = 256 << 20;
/// The permission that makes a file executable for workers.
const EXECUTABLE: u32 = 0o100;

/// Maximum number of entries of a path for workers.
const MAX_ENTRIES: usize = 200_000;
/// Maximum size of a file for workers, in bytes. A file is read into memory when it is sent.
const MAX_FILE_BYTES: u64 = 1 << 30;
/// Maximum size of all files of a path for workers, in bytes.
const MAX_BYTES: u64 = 4 << 30;

/// The entries of a stored path, or the reason why workers cannot get it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub(crate) enum PathListing {
    /// All entries, directories before their content.
    Entries(Vec<ListedEntry>),
    /// The reason, as a phrase that follows the path.
    Refused(String),
}

/// An entry of a stored path.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct ListedEntry {
    /// The path, relative to the stored path.
    pub(crate) path: String,
    pub(crate) kind: ListedKind,
}

/// The kind and content of an entry.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub(crate) enum ListedKind {
    Directory,
    File {
        sha256: Sha256Hex,
        bytes: u64,
        executable: bool,
    },
    Symlink {
        /// The bytes of the target.
        target: Vec<u8>,
    },
}

/// The reason why the entries of a stored path are not known.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ListingError {
    /// The content cannot be read.
    #[error(transparent)]
    Unreadable(#[from] SkillCacheError),
    /// Another program has changed the content since it was verified.
    #[error("its stored content has changed")]
    Changed,
}

impl HeldPath {
    /// Returns the entries of the path. Hashes the files unless their digests are stored. Blocks the thread.
    ///
    /// # Errors
    /// The content cannot be read, or has changed since it was verified.
    pub(crate) fn listing(&self) -> Result<PathListing, ListingError> {
        let ContentDigest { sha256, files, bytes, .. } = &self.record.content;
        if let Some(reason) = bound_exceeded(*files, *bytes) {
            return Ok(PathListing::Refused(reason));
        }
        let parent = self.content.parent().unwrap_or(&self.content);
        let entry = Directory::open(parent).map_err(SkillCacheError::from)?;
        let stored = entry.read(LISTING_FILE, MAX_LISTING_FILE).inspect_err(|error| {
            tracing::debug!(%error, "the list of a stored path cannot be read");
        });
        if let Some(known) = stored.ok().flatten().and_then(|bytes| decode(&bytes, sha256)) {
            return Ok(known);
        }
        let content = entry.descend(CONTENT_DIR).map_err(SkillCacheError::from)?;
        let mut lister = Lister::default();
        let found = content::digest_with(content.as_fd(), &mut |entry, digests| lister.add(entry, digests))?;
        if found.sha256 != *sha256 {
            return Err(ListingError::Changed);
        }
        let listing = lister.finish();
        if let Err(error) = entry.write_unsynced(LISTING_FILE, &encode(&listing, sha256)) {
            tracing::debug!(%error, "the list of a stored path cannot be stored");
        }
        Ok(listing)
    }
}

fn bound_exceeded(files: u64, bytes: u64) -> Option<String> {
    if files > MAX_ENTRIES as u64 {
        return Some(format!("has {files} files; the maximum for workers is {MAX_ENTRIES}"));
    }
    (bytes > MAX_BYTES).then(|| format!("has {bytes} bytes; the maximum for workers is {MAX_BYTES}"))
}

/// A list under construction.
#[derive(Default)]
struct Lister {
    entries: Vec<ListedEntry>,
    refused: Option<String>,
}

impl Lister {
    fn add(&mut self, entry: &WalkedEntry<'_>, digests: &EntryDigests) -> Result<(), SkillCacheError> {
        // The stored content is not on top of another layer, so a whiteout in it has no meaning.
        if self.refused.is_some() || is_whiteout(&entry.stat) {
            return Ok(());
        }
        let shown = || proctor_core::model::drift::display_path(entry.path);
        if self.entries.len() >= MAX_ENTRIES {
            self.refused = Some(format!("has more than {MAX_ENTRIES} entries, the maximum for workers"));
            return Ok(());
        }
        match problem(entry, digests) {
            None => self.entries.push(listed(entry, digests)?),
            Some(problem) => self.refused = Some(format!("contains `{}`, which {problem}", shown())),
        }
        Ok(())
    }

    fn finish(self) -> PathListing {
        self.refused.map_or(PathListing::Entries(self.entries), PathListing::Refused)
    }
}

/// Returns why workers cannot get an entry, as a phrase that follows its path.
fn problem(entry: &WalkedEntry<'_>, digests: &EntryDigests) -> Option<String> {
    let kind = entry.kind();
    if std::str::from_utf8(entry.path).is_err() {
        return Some("has a name that is not UTF-8".to_owned());
    }
    if !kind.is_dir() && !kind.is_file() && !kind.is_symlink() {
        return Some("is neither a file, a directory nor a link".to_owned());
    }
    if kind.is_file() && entry.stat.st_nlink > 1 {
        return Some("has more than one hard link".to_owned());
    }
    if digests.attributes != <[u8; DIGEST_BYTES]>::from(Sha256::digest([])) {
        return Some("has extended attributes".to_owned());
    }
    let is_large = kind.is_file() && digests.bytes > MAX_FILE_BYTES;
    is_large.then(|| format!("has {} bytes; the maximum for workers is {MAX_FILE_BYTES}", digests.bytes))
}

fn listed(entry: &WalkedEntry<'_>, digests: &EntryDigests) -> Result<ListedEntry, SkillCacheError> {
    let kind = match entry.kind() {
        FileType::Directory => ListedKind::Directory,
        FileType::Symlink => {
            let target = fs::readlinkat(entry.parent, entry.name, Vec::new()).map_err(entry.error_for("read"))?;
            ListedKind::Symlink { target: target.into_bytes() }
        }
        _ => ListedKind::File {
            sha256: Sha256Hex::from_raw(digests.content),
            bytes: digests.bytes,
            executable: entry.stat.st_mode & EXECUTABLE != 0,
        },
    };
    Ok(ListedEntry { path: String::from_utf8_lossy(entry.path).into_owned(), kind })
}

/// The stored form of the list.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct StoredListing<L> {
    /// The digest of the content.
    content: Sha256Hex,
    listing: L,
}

fn encode(listing: &PathListing, content: &Sha256Hex) -> Vec<u8> {
    // Serializing these types cannot fail.
    let text = serde_json::to_vec(&StoredListing { content: content.clone(), listing }).unwrap_or_default();
    [MAGIC.as_slice(), Sha256::digest(&text).as_slice(), &text].concat()
}

/// Decodes the list of this content; `None` if the bytes are damaged or belong to other content.
fn decode(bytes: &[u8], content: &Sha256Hex) -> Option<PathListing> {
    let (sum, text) = bytes.strip_prefix(MAGIC)?.split_first_chunk::<DIGEST_BYTES>()?;
    if <[u8; DIGEST_BYTES]>::from(Sha256::digest(text)) != *sum {
        return None;
    }
    let stored: StoredListing<PathListing> = serde_json::from_slice(text).ok()?;
    (stored.content == *content).then_some(stored.listing)
}

#[cfg(test)]
#[expect(clippy::disallowed_methods, reason = "files of a test")]
mod tests {
    use std::os::unix::fs::{PermissionsExt as _, symlink};
    use std::path::Path;

    use proctor_core::text::canonical;

    use super::*;
    use crate::store::caches::prepared::{PathOrigin, PathRecord, PathScope, VERSION};

    /// Returns a path with what is in `top`/content, as a run holds it after its verification.
    fn held(top: &Path) -> HeldPath {
        let content = Directory::open(&top.join(CONTENT_DIR)).expect("opens");
        let scope = PathScope {
            caller: 0,
            owner: 0,
            repository: "/r".to_owned(),
            path: "deps".to_owned(),
            origin: PathOrigin::Worktree,
        };
        let record = PathRecord {
            version: VERSION,
            scope,
            source: None,
            command: None,
            content: content::digest(content.as_fd()).expect("digests"),
            seal: content::seal(content.as_fd()).expect("sealed"),
            disk_bytes: 0,
        };
        assert!(PathRecord::parse(&canonical::to_vec(&record)).is_some());
        HeldPath { record, content: top.join(CONTENT_DIR), _lock: None }
    }

    fn temporary() -> tempfile::TempDir {
        let top = tempfile::tempdir().expect("a directory");
        std::fs::create_dir_all(top.path().join("content/bin")).expect("made");
        std::fs::write(top.path().join("content/bin/tool"), "tool").expect("written");
        top
    }

    fn refusal(change: impl FnOnce(&Path)) -> String {
        let top = temporary();
        change(&top.path().join(CONTENT_DIR));
        match held(top.path()).listing().expect("listed") {
            PathListing::Refused(reason) => reason,
            listing => panic!("{listing:?}"),
        }
    }

    #[test]
    fn lists_what_workers_get() {
        let top = temporary();
        let at = |name: &str| top.path().join(CONTENT_DIR).join(name);
        std::fs::set_permissions(at("bin/tool"), std::fs::Permissions::from_mode(0o755)).expect("set");
        std::fs::create_dir(at("empty")).expect("made");
        std::fs::write(at("file"), "").expect("written");
        symlink("/usr/bin/python3", at("bin/python")).expect("a link");
        let file = |content: &[u8], executable| ListedKind::File {
            sha256: Sha256Hex::digest(content),
            bytes: content.len() as u64,
            executable,
        };
        let link = ListedKind::Symlink { target: b"/usr/bin/python3".to_vec() };
        let expected = [
            ("bin", ListedKind::Directory),
            ("bin/python", link),
            ("bin/tool", file(b"tool", true)),
            ("empty", ListedKind::Directory),
            ("file", file(b"", false)),
        ];
        let expected = expected.map(|(path, kind)| ListedEntry { path: path.to_owned(), kind });
        assert_eq!(held(top.path()).listing().expect("listed"), PathListing::Entries(expected.to_vec()));
    }

    #[test]
    fn stored_list_replaces_hashing_while_the_content_is_the_same() {
        let top = temporary();
        let first = held(top.path());
        let listing = first.listing().expect("listed");
        let tool = top.path().join("content/bin/tool");
        std::fs::write(&tool, "loot").expect("written");
        assert_eq!(first.listing().expect("listed"), listing, "the caller has verified the content");
        let file = top.path().join(LISTING_FILE);
        let stored = std::fs::read(&file).expect("read");
        for at in 0..stored.len() {
            let mut damaged = stored.clone();
            damaged[at] ^= 1;
            assert_eq!(decode(&damaged, &first.record.content.sha256), None, "{at}");
        }
        std::fs::write(&file, &stored[1..]).expect("written");
        let error = first.listing().expect_err("the content is not the verified one");
        assert!(matches!(error, ListingError::Changed), "{error}");
        let second = held(top.path());
        assert_ne!(second.listing().expect("listed"), listing);
    }

    #[test]
    fn refuses_what_workers_cannot_get_by_its_name() {
        use std::ffi::OsStr;
        use std::os::unix::ffi::OsStrExt as _;
        let name = refusal(|top| std::fs::write(top.join(OsStr::from_bytes(b"a\xff")), "").expect("written"));
        assert!(name.contains("not UTF-8"), "{name}");
        let link = refusal(|top| std::fs::hard_link(top.join("bin/tool"), top.join("bin/same")).expect("linked"));
        assert_eq!(link, "contains `bin/same`, which has more than one hard link");
        let fifo = refusal(|top| {
            fs::mknodat(fs::CWD, top.join("fifo"), FileType::Fifo, fs::Mode::RUSR, 0).expect("made");
        });
        assert_eq!(fifo, "contains `fifo`, which is neither a file, a directory nor a link");
        let large = bound_exceeded(1, MAX_BYTES + 1).expect("exceeded");
        assert_eq!(large, "has 4294967297 bytes; the maximum for workers is 4294967296");
        assert!(bound_exceeded(MAX_ENTRIES as u64 + 1, 0).is_some() && bound_exceeded(1, 1).is_none());
    }
}
