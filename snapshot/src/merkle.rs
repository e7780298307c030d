//! Computes the digest of a directory; docs/development/snapshot.md describes the byte format.

use proctor_core::model::drift::{Entry, EntryKind};
use sha2::{Digest as _, Sha256};

/// Prefix of the hashed bytes of each directory, which keeps directory digests distinct from file hashes.
const DIRECTORY_DOMAIN: &[u8] = b"proctor-tree-v1\0";

/// The tag and the 32 bytes of a leaf.
pub(crate) type MerkleLeaf = (u8, [u8; 32]);

/// The tag of a file that was too large to be hashed; never part of a snapshot.
pub(crate) const UNHASHED_TAG: u8 = b'u';
/// The tag of a directory.
pub(crate) const DIRECTORY_TAG: u8 = b'd';

/// Returns the leaf of an entry.
pub(crate) fn leaf(entry: &Entry) -> MerkleLeaf {
    let tag = match (entry.kind, entry.executable) {
        (EntryKind::File, false) => b'f',
        (EntryKind::File, true) => b'x',
        (EntryKind::Symlink, _) => b'l',
        (EntryKind::Gitlink, _) => b'g',
        (EntryKind::Special, _) => b's',
        (EntryKind::Directory, _) => DIRECTORY_TAG,
    };
    (tag, entry.sha256.to_raw())
}

/// Returns the digest of a directory with these entries, which may be in any order.
pub(crate) fn directory_digest(entries: &mut [(&[u8], MerkleLeaf)]) -> [u8; 32] {
    entries.sort_unstable();
    let mut hasher = Sha256::new_with_prefix(DIRECTORY_DOMAIN);
    for (name, (tag, sha)) in entries {
        hasher.update([*tag]);
        hasher.update(name);
        hasher.update([0]);
        hasher.update(sha);
    }
    hasher.finalize().into()
}

#[cfg(test)]
mod tests {
    use proctor_core::text::digest::Sha256Hex;

    use super::*;

    #[test]
    fn empty_tree_digest_is_hash_of_domain() {
        assert_eq!(directory_digest(&mut []), Sha256Hex::digest(b"proctor-tree-v1\0").to_raw());
    }

    #[test]
    fn matches_example_in_manual() {
        let digest = directory_digest(&mut [(b"a", (b'f', Sha256Hex::digest(b"hi").to_raw()))]);
        let known = "a1b923be3f9978a9f43af45ddab7718d0100fbc4c5d327fe72062045b6f23d7c";
        assert_eq!(Sha256Hex::from_raw(digest).to_string(), known);
    }
}
