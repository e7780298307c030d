//! Hashes an ignored file whose stat data are known.

use std::os::fd::BorrowedFd;

use proctor_git::files::read_beneath;

use crate::entries::{ScannedEntry, ScannedKind};
use crate::private_copy::mirror_files::MirrorError;

/// Returns the digest of the entry at a path, or `None` if the entry has changed.
pub(super) fn hash_entry(
    source: BorrowedFd<'_>,
    path: &[u8],
    expected: &ScannedEntry,
) -> Result<Option<[u8; 32]>, MirrorError> {
    if expected.kind == ScannedKind::EmptyDirectory {
        return Ok(Some(expected.sha256));
    }
    let (found, stamp) = match read_beneath::read_with_stat(source, path, expected.stat.size) {
        Ok(read) => read,
        Err(error) if error.kind() == std::io::ErrorKind::PermissionDenied => return Ok(None),
        Err(error) => return Err(MirrorError::io(path, error)),
    };
    let read_beneath::PathEntry::Entry(entry) = found else { return Ok(None) };
    Ok((stamp == expected.stat).then(|| entry.sha256.to_raw()))
}
