//! Encodes objects as packs with their indexes (gitformat-pack(5)), without deltas. Equal objects result in equal bytes on
//! every machine.
//!
//! A tree on a worker costs time for each file, so one file for each object would be slow. One pack, on the other hand,
//! would be another file after each commit. The objects are therefore divided among packs by the first bits of their
//! ids, trees separately from blobs: a commit changes few of the packs.

use std::io::{self, Write as _};

use flate2::Compression;
use flate2::write::ZlibEncoder;
use sha1::Sha1;
use sha2::{Digest as _, Sha256};

use crate::object::object_id::{ObjectFormat, ObjectId, ObjectKind};

/// Level of the compression: most of the gain for little time.
const LEVEL: u32 = 1;
/// Minimum number of objects for each pack, on average, if there is more than one.
const OBJECTS_PER_PACK: usize = 64;
/// Maximum number of leading bits of an id that select a pack. Git searches the packs one after the other.
const MAX_SHARD_BITS: u32 = 7;
/// The version of the pack format, and of the index format with its signature.
const PACK_VERSION: u32 = 2;
const INDEX_HEADER: [u8; 8] = [0xff, b't', b'O', b'c', 0, 0, 0, 2];

/// A pack with its index.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ObjectPack {
    /// The checksum of the pack, which names it.
    pub checksum: ObjectId,
    /// The content of the pack.
    pub pack: Vec<u8>,
    /// The content of the index.
    pub index: Vec<u8>,
}

impl ObjectPack {
    /// Returns the files with their paths below `objects/`.
    pub fn into_files(self) -> [(String, Vec<u8>); 2] {
        let path = |extension| format!("pack/pack-{}.{extension}", self.checksum);
        [(path("pack"), self.pack), (path("idx"), self.index)]
    }
}

/// An object as it is stored in a pack.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct PackedObject {
    id: ObjectId,
    kind: ObjectKind,
    entry: Vec<u8>,
}

impl PackedObject {
    /// Encodes an object.
    ///
    /// # Errors
    /// The compression failed.
    pub(crate) fn encode(id: ObjectId, kind: ObjectKind, content: &[u8]) -> io::Result<Self> {
        let mut encoder = ZlibEncoder::new(entry_header(kind, content.len()), Compression::new(LEVEL));
        encoder.write_all(content)?;
        Ok(Self { id, kind, entry: encoder.finish()? })
    }
}

/// Returns the kind and the size of an object as a pack stores them: the size in groups of 4 and then 7 bits, the lowest
/// first, with a mark on all bytes but the last.
fn entry_header(kind: ObjectKind, size: usize) -> Vec<u8> {
    let number = match kind {
        ObjectKind::Commit => 1,
        ObjectKind::Tree => 2,
        ObjectKind::Blob => 3,
        ObjectKind::Tag => 4,
    };
    let low = |size: usize, mask: u8| size.to_le_bytes()[0] & mask;
    let (mut header, mut rest) = (vec![number << 4 | low(size, 0x0f)], size >> 4);
    while rest > 0 {
        if let Some(last) = header.last_mut() {
            *last |= 0x80;
        }
        header.push(low(rest, 0x7f));
        rest >>= 7;
    }
    header
}

/// Divides objects among packs. The objects are of one format, and each occurs once.
pub(crate) fn encode_packs(format: ObjectFormat, mut objects: Vec<PackedObject>) -> Vec<ObjectPack> {
    objects.sort_unstable_by_key(|object| (object.kind == ObjectKind::Blob, object.id));
    let blobs = objects.partition_point(|object| object.kind != ObjectKind::Blob);
    let (trees, blobs) = objects.split_at(blobs);
    let of_group = |group: &[PackedObject]| -> Vec<ObjectPack> {
        let bits = (group.len() / OBJECTS_PER_PACK).checked_ilog2().unwrap_or(0).min(MAX_SHARD_BITS);
        let shard = |object: &PackedObject| u16::from(object.id.as_bytes()[0]) >> (8 - bits);
        group.chunk_by(|one, other| shard(one) == shard(other)).map(|part| encode_pack(format, part)).collect()
    };
    [of_group(trees), of_group(blobs)].concat()
}

/// Encodes a pack of objects that are sorted by id.
fn encode_pack(format: ObjectFormat, objects: &[PackedObject]) -> ObjectPack {
    let count = number(objects.len());
    let mut pack = [&b"PACK"[..], &PACK_VERSION.to_be_bytes(), &count].concat();
    let (mut checksums, mut offsets) = (Vec::new(), Vec::new());
    for object in objects {
        offsets.extend(number(pack.len()));
        checksums.extend(crc32fast::hash(&object.entry).to_be_bytes());
        pack.extend_from_slice(&object.entry);
    }
    let checksum = append_checksum(format, &mut pack);
    let mut index = INDEX_HEADER.to_vec();
    for first in 0..=u8::MAX {
        index.extend(number(objects.partition_point(|object| object.id.as_bytes()[0] <= first)));
    }
    objects.iter().for_each(|object| index.extend_from_slice(object.id.as_bytes()));
    index.extend(checksums);
    index.extend(offsets);
    index.extend_from_slice(checksum.as_bytes());
    append_checksum(format, &mut index);
    ObjectPack { checksum, pack, index }
}

/// Returns a number as packs store it. The bounds on the objects keep it small.
fn number(number: usize) -> [u8; 4] {
    u32::try_from(number).unwrap_or(u32::MAX).to_be_bytes()
}

fn append_checksum(format: ObjectFormat, file: &mut Vec<u8>) -> ObjectId {
    let checksum = match format {
        ObjectFormat::Sha1 => ObjectId::from_sha1(Sha1::digest(&file).into()),
        ObjectFormat::Sha256 => ObjectId::from_sha256(Sha256::digest(&file).into()),
    };
    file.extend_from_slice(checksum.as_bytes());
    checksum
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;
    use crate::object::object_id::object_id;

    fn object(kind: ObjectKind, content: &[u8]) -> PackedObject {
        PackedObject::encode(object_id(ObjectFormat::Sha1, kind, content), kind, content).expect("encodes")
    }

    fn blobs(count: usize) -> Vec<PackedObject> {
        (0..count).map(|number| object(ObjectKind::Blob, number.to_string().as_bytes())).collect()
    }

    #[test]
    fn sizes_are_in_groups_of_bits() {
        assert_eq!(entry_header(ObjectKind::Blob, 5), [0x35]);
        assert_eq!(entry_header(ObjectKind::Commit, 0x0f), [0x1f]);
        assert_eq!(entry_header(ObjectKind::Tree, 0x10), [0xa0, 0x01]);
        assert_eq!(entry_header(ObjectKind::Tag, 0x1234), [0xc4, 0xa3, 0x02]);
    }

    #[test]
    fn another_object_changes_one_pack() {
        let checksums = |objects| -> BTreeSet<ObjectId> {
            encode_packs(ObjectFormat::Sha1, objects).iter().map(|pack| pack.checksum).collect()
        };
        let before = checksums(blobs(1000));
        assert_eq!(before.len(), 8);
        let after = checksums([blobs(1000), vec![object(ObjectKind::Blob, b"new")]].concat());
        assert_eq!(after.difference(&before).count(), 1);
        let with_tree = checksums([blobs(1000), vec![object(ObjectKind::Tree, b"")]].concat());
        assert_eq!(with_tree.difference(&before).count(), 1);
        assert!(with_tree.is_superset(&before));
        assert_eq!(checksums(blobs(20_000)).len(), 1 << MAX_SHARD_BITS);
        assert!(checksums(Vec::new()).is_empty());
    }

    #[test]
    fn order_of_objects_does_not_matter() {
        let reversed = blobs(300).into_iter().rev().collect();
        assert_eq!(encode_packs(ObjectFormat::Sha1, blobs(300)), encode_packs(ObjectFormat::Sha1, reversed));
    }
}
