//! Encodes a snapshot for its file: a header with magic, version, length and checksum, then git's description, then
//! the entries, then a journal of later snapshots. docs/development/snapshot.md describes the order.

use std::sync::Arc;

use proctor_core::text::digest::SnapshotId;
use proctor_git::files::repo_path::RepoPath;
use proctor_git::protocol::GitSourceFile;
use proctor_git::wire::codec::{BinaryDecoder, BinaryEncoder};
use proctor_git::wire::listing_encoding::{read_paths, write_paths};
use serde::{Deserialize, Serialize};

use crate::cache_file::{self, JournalFrame, JournalReader, NextFrame};
use crate::entries::{EntryTree, TreeChanges};
use crate::snapshot::git_facts::GitFacts;
use crate::snapshot::taken_snapshot::{Snapshot, SnapshotMethod, SnapshotStats};
use crate::snapshot::{EncodedListing, ReuseBasis};
use crate::snapshot_store::listing_file::{FileChecksum, ListingFile, UnusableFile};
use crate::stat_scan::ScanCounts;

/// Magic bytes of a file. They include the version number; each version is a different format.
const MAGIC: &[u8; 16] = b"proctor-snap-v5\n";
/// Size of the header: magic, length of the base, CRC-32 of the base.
const HEADER_BYTES: usize = SUM_OFFSET + 4;
/// Position of the checksum in the header.
const SUM_OFFSET: usize = 16 + 8;
/// Size of a base relative to the largest journal that continues it.
const BASE_TO_JOURNAL: u64 = 16;
/// The largest journal, in bytes.
const MAX_JOURNAL_BYTES: u64 = 1 << 20;

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

/// The description of a later snapshot in a journal; the changes of the entries follow it.
#[derive(Serialize, Deserialize)]
struct JournalJson {
    id: SnapshotId,
    facts: GitFacts,
}

/// The end of a file's journal, where the next frame can be appended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct JournalEnd {
    /// Length of the header and the base.
    base: u64,
    /// Length of the file.
    pub(super) length: u64,
    /// The last checksum in the file, and its position. The next frame continues it.
    pub(super) sum: u32,
    pub(super) sum_offset: u64,
}

impl JournalEnd {
    fn of_base(length: u64, sum: u32) -> Self {
        Self { base: length, length, sum, sum_offset: SUM_OFFSET as u64 }
    }

    /// Returns the end after another frame.
    fn after(self, frame_bytes: u64, payload_bytes: u64, sum: u32) -> Self {
        let length = self.length.saturating_add(frame_bytes);
        Self { length, sum, sum_offset: length - payload_bytes - 4, ..self }
    }

    /// Returns the maximum length of a journal; a longer one is replaced by a new base.
    fn max_journal(&self) -> u64 {
        MAX_JOURNAL_BYTES.min(self.base / BASE_TO_JOURNAL)
    }
}

/// Encodes a snapshot, without a journal. Returns `None` if a later process could not reuse it.
pub(super) fn encode(snapshot: &Snapshot) -> Option<(Vec<u8>, JournalEnd)> {
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
    let (length, sum) = ((bytes.len() - HEADER_BYTES) as u64, cache_file::checksum(&bytes[HEADER_BYTES..]));
    bytes[..16].copy_from_slice(MAGIC);
    bytes[16..SUM_OFFSET].copy_from_slice(&length.to_le_bytes());
    bytes[SUM_OFFSET..HEADER_BYTES].copy_from_slice(&sum.to_le_bytes());
    let end = JournalEnd::of_base(bytes.len() as u64, sum);
    Some((bytes, end))
}

/// Encodes a snapshot that differs from the one at the end of a journal by `changes` and its description only. Returns
/// the frame and the new end of the journal; `None` if the journal would be too long.
pub(super) fn encode_changes(
    snapshot: &Snapshot,
    changes: &TreeChanges,
    end: JournalEnd,
) -> Option<(Vec<u8>, JournalEnd)> {
    let json = JournalJson { id: snapshot.id.clone(), facts: snapshot.git.clone() };
    let mut writer = BinaryEncoder::default();
    writer.bytes(&serde_json::to_vec(&json).ok()?);
    changes.encode(&mut writer);
    let payload = writer.into_bytes();
    let frame = JournalFrame::new(end.sum, &payload);
    let end = end.after(frame.bytes.len() as u64, payload.len() as u64, frame.sum);
    (end.length - end.base <= end.max_journal()).then_some((frame.bytes, end))
}

/// Decodes the last snapshot in a file; `sidecar` locates the file with git's listing. The journal ends at the first
/// frame that was not written after the frames before it; then `None` is returned instead of its end, and nothing can
/// be appended.
///
/// # Errors
/// The bytes are not a complete snapshot of this version.
pub(super) fn decode(
    bytes: &[u8],
    sidecar: impl FnOnce(FileChecksum) -> ListingFile,
) -> Result<(Snapshot, Option<JournalEnd>), UnusableFile> {
    let mut header = BinaryDecoder::new(bytes);
    if header.array() != Some(*MAGIC) {
        return Err(UnusableFile::OtherVersion);
    }
    let (Some(length), Some(sum)) = (header.u64(), header.u32()) else { return Err(UnusableFile::Torn) };
    let base = usize::try_from(length).ok().and_then(|length| header.raw(length)).ok_or(UnusableFile::Torn)?;
    if cache_file::checksum(base) != sum {
        return Err(UnusableFile::Damaged);
    }
    let mut reader = BinaryDecoder::new(base);
    let snapshot = decode_content(&mut reader, sidecar).filter(|_| reader.is_at_end());
    let mut snapshot = snapshot.ok_or(UnusableFile::Malformed)?;
    let base_end = HEADER_BYTES + base.len();
    let end = replay(&bytes[base_end..], JournalEnd::of_base(base_end as u64, sum), &mut snapshot)?;
    Ok((snapshot, end))
}

/// Applies a journal to the snapshot before it.
fn replay(journal: &[u8], mut end: JournalEnd, snapshot: &mut Snapshot) -> Result<Option<JournalEnd>, UnusableFile> {
    let mut reader = JournalReader::new(journal, end.sum);
    let (mut all, mut last) = (TreeChanges::default(), None);
    let is_whole = loop {
        let before = reader.remaining();
        match reader.next_frame() {
            NextFrame::Payload(payload) => {
                let (json, changes) = decode_changes(payload, &snapshot.entries).ok_or(UnusableFile::Malformed)?;
                all.leaves.extend(changes.leaves);
                all.directories.extend(changes.directories);
                last = Some(json);
                end = end.after((before - reader.remaining()) as u64, payload.len() as u64, reader.sum());
            }
            NextFrame::End => break true,
            NextFrame::Torn | NextFrame::Foreign => break false,
        }
    };
    if let Some(JournalJson { id, facts }) = last {
        // The tree has no other owner yet, so that this copies nothing.
        let entries = Arc::make_mut(&mut snapshot.entries);
        entries.apply_scan(&all.leaves, &all.directories);
        if entries.id() != id {
            return Err(UnusableFile::Damaged);
        }
        (snapshot.id, snapshot.git) = (id, facts);
    }
    Ok(is_whole.then_some(end))
}

fn decode_changes(payload: &[u8], entries: &EntryTree) -> Option<(JournalJson, TreeChanges)> {
    let mut reader = BinaryDecoder::new(payload);
    let json = serde_json::from_slice(reader.bytes()?).ok()?;
    let changes = TreeChanges::decode(&mut reader, entries)?;
    reader.is_at_end().then_some((json, changes))
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
    use crate::entries::{DirectoryScanState, IgnoreStatus, ScannedEntry};
    use crate::snapshot::unknown_tree::UnknownTree;
    use proctor_git::files::file_stat::FileStat;
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

    fn decode_without_listing(bytes: &[u8]) -> Result<(Snapshot, Option<JournalEnd>), UnusableFile> {
        let directory = std::sync::Arc::new(std::fs::File::open("/").expect("opens").into());
        decode(bytes, |seal| ListingFile { directory, name: "none".into(), checksum: seal })
    }

    /// Returns a snapshot of the same tree in which a leaf and a directory differ, with the changes.
    fn changed(before: &Snapshot, byte: u8) -> (Snapshot, TreeChanges) {
        let leaf = usize::from(byte) % before.entries.leaf_count();
        let directory = before.entries.parent_of_leaf(leaf);
        let found = ScannedEntry { sha256: [byte; 32], racy: true, ..before.entries.leaf_at(leaf).found };
        let stat = FileStat { ino: u64::from(byte), ..FileStat::default() };
        let state = DirectoryScanState { stat, racy: true, ignore_status: IgnoreStatus::Searched };
        let changes = TreeChanges { leaves: vec![(directory, leaf, found)], directories: vec![(directory, state)] };
        let mut entries = EntryTree::clone(&before.entries);
        entries.apply_scan(&changes.leaves, &changes.directories);
        let git = GitFacts { branch: Some(format!("branch {byte}")), ..before.git.clone() };
        (Snapshot { id: entries.id(), entries: Arc::new(entries), git, ..before.clone() }, changes)
    }

    /// Checks that two snapshots are equal, including the stat data of their entries.
    #[track_caller]
    fn assert_same(left: &Snapshot, right: &Snapshot, what: &str) {
        let entries = |snapshot: &Snapshot| {
            let mut writer = BinaryEncoder::default();
            snapshot.entries.encode(&mut writer);
            writer.into_bytes()
        };
        assert_eq!((&left.id, &left.git, &left.ignored), (&right.id, &right.git, &right.ignored), "{what}");
        assert!(entries(left) == entries(right) && left.entries.len() == right.entries.len(), "{what}");
    }

    /// Returns a file with a base and some frames, the snapshot at each end, and these ends.
    fn file_with_journal(frames: u8) -> (Vec<u8>, Vec<(Snapshot, JournalEnd)>) {
        let first = snapshot();
        let (mut file, end) = encode(&first).expect("encodes");
        // The base is too small for a journal.
        let mut end = JournalEnd { base: 1 << 20, length: 1 << 20, ..end };
        let mut states = vec![(first, JournalEnd::of_base(file.len() as u64, end.sum))];
        for byte in 1..=frames {
            let (next, changes) = changed(&states[states.len() - 1].0, byte);
            let (frame, after) = encode_changes(&next, &changes, end).expect("encodes");
            file.extend(frame);
            end = after;
            let moved = (1 << 20) - states[0].1.base;
            states.push((
                next,
                JournalEnd {
                    base: states[0].1.base,
                    length: end.length - moved,
                    sum: end.sum,
                    sum_offset: end.sum_offset - moved,
                },
            ));
        }
        (file, states)
    }

    #[test]
    fn round_trips_snapshot() {
        let (before, (after, end)) =
            (snapshot(), decode_without_listing(&encode(&snapshot()).expect("encodes").0).expect("decodes"));
        assert_eq!((&before.git, before.basis.as_ref().map(|basis| &basis.owners)), (&after.git, Some(&vec![0, 7])));
        assert!(before.entries.iter().eq(after.entries.iter()) && before.id == after.id);
        assert_same(&before, &after, "");
        assert_eq!(end, Some(encode(&before).expect("encodes").1));
    }

    #[test]
    fn replays_journal() {
        for frames in 0..4 {
            let (file, states) = file_with_journal(frames);
            let (found, end) = decode_without_listing(&file).expect("decodes");
            let (expected, expected_end) = &states[usize::from(frames)];
            assert_same(&found, expected, &frames.to_string());
            assert_eq!((end, expected_end.length), (Some(*expected_end), file.len() as u64));
            let at = usize::try_from(expected_end.sum_offset).expect("an offset");
            assert_eq!(file[at..at + 4], expected_end.sum.to_le_bytes());
        }
    }

    #[test]
    fn bounds_journal() {
        let (before, end) = (snapshot(), encode(&snapshot()).expect("encodes").1);
        let (next, changes) = changed(&before, 1);
        assert!(encode_changes(&next, &changes, end).is_none(), "base of {} bytes has a journal", end.base);
        let mut end = JournalEnd { base: 1 << 30, length: 1 << 30, ..end };
        let mut frames = 0;
        while let Some((_, after)) = encode_changes(&next, &changes, end) {
            (end, frames) = (after, frames + 1);
        }
        let journal = end.length - end.base;
        assert!(journal <= MAX_JOURNAL_BYTES && journal + journal / frames > MAX_JOURNAL_BYTES, "{journal}");
    }

    #[test]
    fn rejects_every_truncation_and_bit_flip() {
        let whole = encode(&snapshot()).expect("encodes").0;
        for length in 0..whole.len() {
            assert!(decode_without_listing(&whole[..length]).is_err(), "{length}");
        }
        for at in 0..whole.len() * 8 {
            let mut damaged = whole.clone();
            damaged[at / 8] ^= 1 << (at % 8);
            assert!(decode_without_listing(&damaged).is_err(), "{at}");
        }
    }

    /// The file then contains the snapshot before the damaged frame, and nothing can be appended.
    #[test]
    fn damaged_journal_ends_with_an_earlier_snapshot() {
        let (file, states) = file_with_journal(3);
        let state_before = |at: usize| {
            let (snapshot, end) = states.iter().rev().find(|(_, end)| end.length <= at as u64)?;
            Some((snapshot, *end))
        };
        let base = usize::try_from(states[0].1.length).expect("a length");
        for length in base..file.len() {
            let (found, end) = decode_without_listing(&file[..length]).expect("decodes");
            let (expected, expected_end) = state_before(length).expect("a snapshot");
            assert_same(&found, expected, &length.to_string());
            assert_eq!(end, Some(expected_end).filter(|end| end.length == length as u64), "{length}");
        }
        for at in base * 8..file.len() * 8 {
            let mut damaged = file.clone();
            damaged[at / 8] ^= 1 << (at % 8);
            let (found, end) = decode_without_listing(&damaged).expect("decodes");
            assert_same(&found, state_before(at / 8).expect("a snapshot").0, &at.to_string());
            assert_eq!(end, None, "{at}");
        }
    }

    /// Two processes that load the same file append their snapshots one after the other.
    #[test]
    fn concurrent_writers_are_never_combined() {
        let (file, states) = file_with_journal(1);
        let (before, end) = &states[1];
        let end = JournalEnd { base: 1 << 20, length: end.length + (1 << 20), ..*end };
        let frames = [7, 9].map(|byte| {
            let (next, changes) = changed(before, byte);
            let (frame, after) = encode_changes(&next, &changes, end).expect("encodes");
            let (last, changes) = changed(&next, byte + 1);
            let more = encode_changes(&last, &changes, after).expect("encodes").0;
            (next, frame, last, more)
        });
        let [(first, a, last, a_more), (_, b, _, b_more)] = &frames;
        for (journal, expected) in [
            ([&a[..], b].concat(), first),
            ([&a[..], b, a_more].concat(), first),
            ([&a[..], b_more].concat(), first),
            ([&a[..], a_more, b].concat(), last),
            (b_more.clone(), before),
        ] {
            let (found, end) = decode_without_listing(&[&file[..], &journal].concat()).expect("decodes");
            assert_same(&found, expected, "");
            assert_eq!(end, None);
        }
        let other = encode(first).expect("encodes").0;
        let (found, end) = decode_without_listing(&[&other[..], a].concat()).expect("decodes");
        assert_same(&found, first, "journal of another base");
        assert_eq!(end, None);
    }

    #[test]
    fn discards_journal_whose_result_has_another_identity() {
        let (before, end) = (snapshot(), encode(&snapshot()).expect("encodes").1);
        let (next, changes) = changed(&before, 1);
        let wrong = Snapshot { id: before.id.clone(), ..next };
        let end = JournalEnd { base: 1 << 20, length: 1 << 20, ..end };
        let frame = encode_changes(&wrong, &changes, end).expect("encodes").0;
        let file = [encode(&before).expect("encodes").0, frame].concat();
        assert!(matches!(decode_without_listing(&file), Err(UnusableFile::Damaged)));
        for (leaf, directory) in [(before.entries.leaf_count(), 0), (0, before.entries.directory_count())] {
            let beyond = TreeChanges {
                leaves: vec![(0, leaf, ScannedEntry::MISSING)],
                directories: vec![(directory, DirectoryScanState::default())],
            };
            let frame = encode_changes(&before, &beyond, end).expect("encodes").0;
            let file = [encode(&before).expect("encodes").0, frame].concat();
            assert!(matches!(decode_without_listing(&file), Err(UnusableFile::Malformed)));
        }
    }
}
