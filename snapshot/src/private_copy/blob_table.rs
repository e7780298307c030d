//! Stores the sha256 of each blob that a mirror of commits has seen. The table stays valid regardless of the
//! mirror's content.

use std::collections::{HashMap, HashSet};
use std::io::Write as _;
use std::os::fd::BorrowedFd;

use proctor_git::object::object_id::ObjectId;
use proctor_git::protocol::CommittedLeaf;
use proctor_git::wire::codec::{BinaryDecoder, BinaryEncoder};
use proctor_git::wire::listing_encoding::{read_id, write_id};
use rustix::fs::renameat;

use super::copy_record;
use crate::private_copy::mirror_files::{MirrorError, open_file};

const FILE: &str = "blobs";
const TEMPORARY_FILE: &str = "blobs.new";
/// Magic bytes of the file, including the version number.
const MAGIC: &[u8; 16] = b"proctor-blobs-1\n";
/// Number of blobs that may be kept without being needed.
const MAX_UNUSED: usize = 10_000;
/// Minimum encoded size of a fact, in bytes.
const MIN_FACT_BYTES: usize = 1 + 20 + 32 + 1;

/// The known facts about a blob.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct BlobFact {
    pub(super) sha256: [u8; 32],
    /// True if the blob is a git-lfs pointer.
    pub(super) is_lfs_pointer: bool,
}

/// Facts about blobs, by id.
#[derive(Debug, Default)]
pub(super) struct BlobTable(HashMap<ObjectId, BlobFact>);

impl BlobTable {
    /// Reads the table in `directory`. Returns an empty table if it does not exist or is not valid.
    pub(super) fn load(directory: BorrowedFd<'_>) -> Self {
        let bytes = open_file(directory, FILE).and_then(|file| copy_record::read_file(&file));
        Self(bytes.and_then(|bytes| parse_table(copy_record::verify_checksum(&bytes)?)).unwrap_or_default())
    }

    /// Writes the table to `directory`.
    pub(super) fn store(&self, directory: BorrowedFd<'_>) -> Result<(), MirrorError> {
        let mut writer = BinaryEncoder::default();
        writer.raw(MAGIC);
        writer.count(self.0.len());
        for (id, fact) in &self.0 {
            write_id(&mut writer, *id);
            writer.raw(&fact.sha256);
            writer.u8(fact.is_lfs_pointer.into());
        }
        let bytes = copy_record::with_checksum(&writer.into_bytes());
        let written = || -> std::io::Result<()> {
            copy_record::create_file(directory, TEMPORARY_FILE)?.write_all(&bytes)?;
            Ok(renameat(directory, TEMPORARY_FILE, directory, FILE)?)
        };
        written().map_err(|error| MirrorError::io(FILE.as_bytes(), error))
    }

    pub(super) fn get(&self, id: ObjectId) -> Option<BlobFact> {
        self.0.get(&id).copied()
    }

    /// Returns the number of git-lfs pointers among some files.
    pub(super) fn lfs_pointers(&self, leaves: &[CommittedLeaf]) -> u64 {
        leaves.iter().filter(|leaf| self.get(leaf.id).is_some_and(|fact| fact.is_lfs_pointer)).count() as u64
    }

    pub(super) fn extend(&mut self, facts: impl IntoIterator<Item = (ObjectId, BlobFact)>) {
        self.0.extend(facts);
    }

    /// Removes the blobs that no leaf has, if they are many.
    pub(super) fn retain(&mut self, leaves: &[CommittedLeaf]) {
        if self.0.len() > MAX_UNUSED.saturating_add(leaves.len()) {
            let ids: HashSet<ObjectId> = leaves.iter().map(|leaf| leaf.id).collect();
            self.0.retain(|id, _| ids.contains(id));
        }
    }
}

fn parse_table(bytes: &[u8]) -> Option<HashMap<ObjectId, BlobFact>> {
    let mut reader = BinaryDecoder::new(bytes);
    if reader.array() != Some(*MAGIC) {
        return None;
    }
    let count = reader.count(MIN_FACT_BYTES)?;
    let fact = |reader: &mut BinaryDecoder<'_>| {
        let (id, sha256) = (read_id(reader)?, reader.array()?);
        Some((id, BlobFact { sha256, is_lfs_pointer: reader.u8()? == 1 }))
    };
    let facts = (0..count).map(|_| fact(&mut reader)).collect::<Option<_>>()?;
    reader.is_at_end().then_some(facts)
}
