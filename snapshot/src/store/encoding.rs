//! Encodes a snapshot for its file: a header with magic, version, length and checksum, then git's description, then
//! the entries. docs/snapshot.md describes the order.

use std::sync::Arc;

use serde::{Deserialize, Serialize};

use super::file::{Seal, Sidecar};
use crate::codec::{Reader, Writer};
use crate::entries::Entries;
use crate::git::bulk::{read_paths, write_paths};
use crate::git::protocol::{RepoPath, Source};
use crate::look::Counts;
use crate::snapshot::{Basis, GitFacts, Snapshot, SnapshotMethod, SnapshotStats, Told};

/// Magic bytes of a file. They include the version number; each version is a different format.
const MAGIC: &[u8; 16] = b"proctor-snap-v3\n";
/// Size of the header: magic, length of the rest, CRC-32 of the rest.
const HEAD: usize = 16 + 8 + 4;

/// The data that are small enough for JSON.
#[derive(Serialize, Deserialize)]
struct Small {
    facts: GitFacts,
    worktree: std::path::PathBuf,
    top: (u64, u64),
    at: (i64, u32),
    sources: Option<Vec<Source>>,
    owners: Vec<u32>,
    skips_rules: bool,
    /// Seal of git's listing, which is stored in a separate file.
    listing: Seal,
}

/// Encodes a snapshot. Returns `None` if a later process could not reuse it.
pub(super) fn encode(snapshot: &Snapshot) -> Option<Vec<u8>> {
    let basis = snapshot.basis.as_ref()?;
    let small = Small {
        facts: snapshot.git.clone(),
        worktree: basis.worktree.clone(),
        top: basis.top,
        at: basis.at,
        sources: basis.sources.clone(),
        owners: basis.owners.clone(),
        skips_rules: basis.skips_rules,
        listing: match &basis.listing {
            Told::Here(bytes) => Seal::of(bytes),
            Told::There(sidecar) => sidecar.seal,
        },
    };
    let mut writer = Writer::default();
    writer.raw(&[0; HEAD]);
    writer.bytes(&serde_json::to_vec(&small).ok()?);
    for paths in [&basis.repositories, &basis.submodules] {
        write_paths(&mut writer, paths.iter().map(|path| path.0.as_slice()));
    }
    write_paths(&mut writer, snapshot.ignored.iter().map(Vec::as_slice));
    snapshot.entries.write(&mut writer);
    let mut bytes = writer.into_bytes();
    let (length, sum) = ((bytes.len() - HEAD) as u64, crc32fast::hash(&bytes[HEAD..]));
    bytes[..16].copy_from_slice(MAGIC);
    bytes[16..24].copy_from_slice(&length.to_le_bytes());
    bytes[24..HEAD].copy_from_slice(&sum.to_le_bytes());
    Some(bytes)
}

/// Decodes a snapshot; `sidecar` locates the file with git's listing.
///
/// # Errors
/// The problem with the bytes, for the log.
pub(super) fn decode(bytes: &[u8], sidecar: impl FnOnce(Seal) -> Sidecar) -> Result<Snapshot, &'static str> {
    let mut reader = Reader::new(bytes);
    if reader.array() != Some(*MAGIC) {
        return Err("it is of another version, or no snapshot");
    }
    let (Some(length), Some(sum)) = (reader.u64(), reader.u32()) else { return Err("it is torn") };
    if length != (bytes.len() - HEAD) as u64 {
        return Err("it is torn");
    }
    if crc32fast::hash(&bytes[HEAD..]) != sum {
        return Err("it is damaged");
    }
    read(&mut reader, sidecar).filter(|_| reader.is_at_end()).ok_or("it is not understood")
}

fn read(reader: &mut Reader<'_>, sidecar: impl FnOnce(Seal) -> Sidecar) -> Option<Snapshot> {
    let small: Small = serde_json::from_slice(reader.bytes()?).ok()?;
    let (repositories, submodules): (Vec<RepoPath>, Vec<RepoPath>) = (read_paths(reader)?, read_paths(reader)?);
    let ignored = read_paths(reader)?.into_iter().map(|path| path.0).collect();
    let entries = Entries::read(reader)?;
    let Small { facts, worktree, top, at, sources, owners, skips_rules, listing } = small;
    let listing = Told::There(sidecar(listing));
    let basis = Basis { worktree, top, at, sources, owners, repositories, submodules, skips_rules, listing };
    Some(Snapshot {
        id: entries.id(),
        entries: Arc::new(entries),
        git: facts,
        stats: SnapshotStats::of(SnapshotMethod::Stat, Counts::default(), false),
        ignored: Arc::new(ignored),
        listing: basis.listing.clone(),
        at,
        basis: Some(Arc::new(basis)),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::entries::Found;
    use crate::git::object::ObjectFormat;

    fn snapshot() -> Snapshot {
        let found = |byte| Found { kind: crate::entries::Kind::File, sha256: [byte; 32], ..Found::MISSING };
        let paths = [&b"a"[..], b"a-/b", b"a/b", b"a/c/d", b"\xff\n"];
        let leaves = paths.iter().zip(1..).map(|(path, byte)| (path.to_vec(), byte % 2 == 0, found(byte)));
        let entries = Entries::of_leaves(leaves);
        let facts = GitFacts {
            worktree: "/w".into(),
            git_dir: "/w/.git".into(),
            common_dir: "/w/.git".into(),
            head_commit: None,
            branch: Some("main".into()),
            tree: Err("why".into()),
            dirty: Some(true),
            object_format: ObjectFormat::Sha1,
            external_rules: Vec::new(),
        };
        let basis = Basis {
            worktree: "/w".into(),
            top: (1, 2),
            at: (3, 4),
            sources: Some(Vec::new()),
            owners: vec![0, 7],
            repositories: vec![RepoPath(b"a/c".to_vec())],
            submodules: Vec::new(),
            skips_rules: true,
            listing: Told::Here(Arc::new(b"any".to_vec())),
        };
        Snapshot {
            id: entries.id(),
            entries: Arc::new(entries),
            git: facts,
            stats: SnapshotStats::of(SnapshotMethod::Stat, Counts::default(), false),
            ignored: Arc::new(vec![b"target".to_vec()]),
            listing: basis.listing.clone(),
            at: basis.at,
            basis: Some(Arc::new(basis)),
        }
    }

    fn decoded(bytes: &[u8]) -> Result<Snapshot, &'static str> {
        let directory = std::sync::Arc::new(std::fs::File::open("/").expect("opens").into());
        decode(bytes, |seal| Sidecar { directory, name: "none".into(), seal })
    }

    #[test]
    fn what_is_written_is_read() {
        let (before, after) = (snapshot(), decoded(&encode(&snapshot()).expect("encodes")).expect("decodes"));
        assert_eq!((&before.git, before.basis.as_ref().map(|basis| &basis.owners)), (&after.git, Some(&vec![0, 7])));
        assert!(before.entries.iter().eq(after.entries.iter()) && before.id == after.id);
        assert_eq!(before.ignored, after.ignored);
    }

    #[test]
    fn every_cut_and_every_flip_is_noticed() {
        let whole = encode(&snapshot()).expect("encodes");
        for length in 0..whole.len() {
            assert!(decoded(&whole[..length]).is_err(), "{length}");
        }
        for at in 0..whole.len() {
            let mut damaged = whole.clone();
            damaged[at] ^= 1 << (at % 8);
            assert!(decoded(&damaged).is_err(), "{at}");
        }
    }
}
