//! Encodes a snapshot for its file: a header with magic, version, length and checksum, then git's description, then
//! the entries. docs/development/snapshot.md describes the order.

use std::sync::Arc;

use proctor_git::files::repo_path::RepoPath;
use proctor_git::protocol::GitSourceFile;
use proctor_git::wire::codec::{BinaryDecoder, BinaryEncoder};
use proctor_git::wire::listing_encoding::{read_paths, write_paths};
use serde::{Deserialize, Serialize};

use crate::entries::EntryTree;
use crate::snapshot::git_facts::GitFacts;
use crate::snapshot::taken_snapshot::{Snapshot, SnapshotMethod, SnapshotStats};
use crate::snapshot::{EncodedListing, ReuseBasis};
use crate::snapshot_store::listing_file::{FileChecksum, ListingFile, UnusableFile};
use crate::stat_scan::ScanCounts;

/// Magic bytes of a file. They include the version number; each version is a different format.
const MAGIC: &[u8; 16] = b"proctor-snap-v4\n";
/// Size of the header: magic, length of the rest, CRC-32 of the rest.
const HEADER_BYTES: usize = 16 + 8 + 4;

/// The data that are small enough for JSON.
#[derive(Serialize, Deserialize)]
struct JsonSection {
    facts: GitFacts,
    worktree: std::path::PathBuf,
    top: (u64, u64),
    at: (i64, u32),
    sources: Option<Vec<GitSourceFile>>,
    owners: Vec<u32>,
    skips_rules: bool,
    /// Seal of git's listing, which is stored in a separate file.
    listing: FileChecksum,
}

/// Encodes a snapshot. Returns `None` if a later process could not reuse it.
pub(super) fn encode(snapshot: &Snapshot) -> Option<Vec<u8>> {
    let basis = snapshot.basis.as_ref()?;
    let small = JsonSection {
        facts: snapshot.git.clone(),
        worktree: basis.worktree.clone(),
        top: basis.top,
        at: basis.read_at,
        sources: basis.sources.clone(),
        owners: basis.owners.clone(),
        skips_rules: basis.skips_rules,
        listing: match &basis.listing {
            EncodedListing::InMemory(bytes) => FileChecksum::compute(bytes),
            EncodedListing::InFile(sidecar) => sidecar.checksum,
        },
    };
    let mut writer = BinaryEncoder::default();
    writer.raw(&[0; HEADER_BYTES]);
    writer.bytes(&serde_json::to_vec(&small).ok()?);
    for paths in [&basis.repositories, &basis.submodules] {
        write_paths(&mut writer, paths.iter().map(|path| path.0.as_slice()));
    }
    write_paths(&mut writer, snapshot.ignored.iter().map(Vec::as_slice));
    snapshot.entries.encode(&mut writer);
    let mut bytes = writer.into_bytes();
    let (length, sum) = ((bytes.len() - HEADER_BYTES) as u64, crc32fast::hash(&bytes[HEADER_BYTES..]));
    bytes[..16].copy_from_slice(MAGIC);
    bytes[16..24].copy_from_slice(&length.to_le_bytes());
    bytes[24..HEADER_BYTES].copy_from_slice(&sum.to_le_bytes());
    Some(bytes)
}

/// Decodes a snapshot; `sidecar` locates the file with git's listing.
///
/// # Errors
/// The bytes are not a complete snapshot of this version.
pub(super) fn decode(
    bytes: &[u8],
    sidecar: impl FnOnce(FileChecksum) -> ListingFile,
) -> Result<Snapshot, UnusableFile> {
    let mut reader = BinaryDecoder::new(bytes);
    if reader.array() != Some(*MAGIC) {
        return Err(UnusableFile::OtherVersion);
    }
    let (Some(length), Some(sum)) = (reader.u64(), reader.u32()) else { return Err(UnusableFile::Torn) };
    if length != (bytes.len() - HEADER_BYTES) as u64 {
        return Err(UnusableFile::Torn);
    }
    if crc32fast::hash(&bytes[HEADER_BYTES..]) != sum {
        return Err(UnusableFile::Damaged);
    }
    decode_content(&mut reader, sidecar).filter(|_| reader.is_at_end()).ok_or(UnusableFile::Malformed)
}

fn decode_content(
    reader: &mut BinaryDecoder<'_>,
    sidecar: impl FnOnce(FileChecksum) -> ListingFile,
) -> Option<Snapshot> {
    let small: JsonSection = serde_json::from_slice(reader.bytes()?).ok()?;
    let (repositories, submodules): (Vec<RepoPath>, Vec<RepoPath>) = (read_paths(reader)?, read_paths(reader)?);
    let ignored = read_paths(reader)?.into_iter().map(|path| path.0).collect();
    let entries = EntryTree::decode(reader)?;
    let JsonSection { facts, worktree, top, at, sources, owners, skips_rules, listing } = small;
    let listing = EncodedListing::InFile(sidecar(listing));
    let basis =
        ReuseBasis { worktree, top, read_at: at, sources, owners, repositories, submodules, skips_rules, listing };
    Some(Snapshot {
        id: entries.id(),
        entries: Arc::new(entries),
        git: facts,
        stats: SnapshotStats::new(SnapshotMethod::Stat, ScanCounts::default(), false),
        ignored: Arc::new(ignored),
        listing: basis.listing.clone(),
        started_at: at,
        basis: Some(Arc::new(basis)),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::entries::ScannedEntry;
    use crate::snapshot::unknown_tree::UnknownTree;
    use proctor_git::object::object_id::ObjectFormat;

    fn snapshot() -> Snapshot {
        let found = |byte| ScannedEntry {
            kind: crate::entries::ScannedKind::File,
            sha256: [byte; 32],
            ..ScannedEntry::MISSING
        };
        let paths = [&b"a"[..], b"a-/b", b"a/b", b"a/c/d", b"\xff\n"];
        let leaves = paths.iter().zip(1..).map(|(path, byte)| (path.to_vec(), byte % 2 == 0, found(byte)));
        let entries = EntryTree::from_leaves(leaves);
        let facts = GitFacts {
            worktree: "/w".into(),
            git_dir: "/w/.git".into(),
            common_dir: "/w/.git".into(),
            head_commit: None,
            branch: Some("main".into()),
            tree: Err(UnknownTree::SpecialFile { path: "fifo".into() }),
            dirty: Some(true),
            object_format: ObjectFormat::Sha1,
            external_rules: Vec::new(),
        };
        let basis = ReuseBasis {
            worktree: "/w".into(),
            top: (1, 2),
            read_at: (3, 4),
            sources: Some(Vec::new()),
            owners: vec![0, 7],
            repositories: vec![RepoPath(b"a/c".to_vec())],
            submodules: Vec::new(),
            skips_rules: true,
            listing: EncodedListing::InMemory(Arc::new(b"any".to_vec())),
        };
        Snapshot {
            id: entries.id(),
            entries: Arc::new(entries),
            git: facts,
            stats: SnapshotStats::new(SnapshotMethod::Stat, ScanCounts::default(), false),
            ignored: Arc::new(vec![b"target".to_vec()]),
            listing: basis.listing.clone(),
            started_at: basis.read_at,
            basis: Some(Arc::new(basis)),
        }
    }

    fn decode_without_listing(bytes: &[u8]) -> Result<Snapshot, UnusableFile> {
        let directory = std::sync::Arc::new(std::fs::File::open("/").expect("opens").into());
        decode(bytes, |seal| ListingFile { directory, name: "none".into(), checksum: seal })
    }

    #[test]
    fn round_trips_snapshot() {
        let (before, after) =
            (snapshot(), decode_without_listing(&encode(&snapshot()).expect("encodes")).expect("decodes"));
        assert_eq!((&before.git, before.basis.as_ref().map(|basis| &basis.owners)), (&after.git, Some(&vec![0, 7])));
        assert!(before.entries.iter().eq(after.entries.iter()) && before.id == after.id);
        assert_eq!(before.ignored, after.ignored);
    }

    #[test]
    fn rejects_every_truncation_and_bit_flip() {
        let whole = encode(&snapshot()).expect("encodes");
        for length in 0..whole.len() {
            assert!(decode_without_listing(&whole[..length]).is_err(), "{length}");
        }
        for at in 0..whole.len() {
            let mut damaged = whole.clone();
            damaged[at] ^= 1 << (at % 8);
            assert!(decode_without_listing(&damaged).is_err(), "{at}");
        }
    }
}
