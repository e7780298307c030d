//! Identifies the content of a directory: by stat data, which change with each write, and by a digest of all bytes.

use std::fs::File;
use std::io::Read as _;
use std::os::fd::BorrowedFd;

use proctor_core::text::digest::Sha256Hex;
use proctor_snapshot::StepRights;
use rustix::fs::{self, FileType, Mode, OFlags};
use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};

use crate::store::caches::SkillCacheError;
use crate::store::caches::cache_layer::{self, WalkedEntry};

/// Size of the buffer for the content of files, in bytes.
const BUFFER: usize = 256 << 10;

/// The content of a directory.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct ContentDigest {
    /// The digest of the paths, kinds, modes and contents of all entries, without owners and times.
    pub(crate) sha256: Sha256Hex,
    /// Number of files and symbolic links.
    pub(crate) files: u64,
    /// The sum of the sizes of the files, in bytes.
    pub(crate) bytes: u64,
}

/// Returns a digest of the names and stat data of all entries below `root`, including the times of their last status
/// change, which no program can set.
pub(super) fn seal(root: BorrowedFd<'_>, rights: Option<StepRights>) -> Result<Sha256Hex, SkillCacheError> {
    let mut hash = Sha256::new();
    hash.update(cache_layer::summarize(root)?.seal.as_str());
    cache_layer::walk_entries(root, &mut |entry| {
        let is_readable = |rights: StepRights| match entry.kind() {
            FileType::Symlink => true,
            FileType::Directory => rights.can_list(&entry.stat),
            _ => rights.can_read(&entry.stat),
        };
        if rights.is_some_and(|rights| !is_readable(rights)) {
            return Err(entry.error_for("read")(rustix::io::Errno::ACCESS));
        }
        hash.update(entry.stat.st_ctime.to_le_bytes());
        hash.update(entry.stat.st_ctime_nsec.to_le_bytes());
        hash.update(entry.stat.st_dev.to_le_bytes());
        Ok(())
    })?;
    Ok(Sha256Hex::from_raw(hash.finalize().into()))
}

/// Returns the digest of the content of all entries below `root`.
pub(super) fn digest(root: BorrowedFd<'_>) -> Result<ContentDigest, SkillCacheError> {
    let (mut hash, mut files, mut bytes) = (Sha256::new(), 0u64, 0u64);
    let mut buffer = vec![0; BUFFER];
    cache_layer::walk_entries(root, &mut |entry| {
        let (content, size) = entry_content(entry, &mut buffer)?;
        hash.update(u64::try_from(entry.path.len()).unwrap_or(u64::MAX).to_le_bytes());
        hash.update(entry.path);
        hash.update(entry.stat.st_mode.to_le_bytes());
        hash.update(content);
        if !entry.kind().is_dir() {
            files += 1;
            bytes = bytes.saturating_add(size);
        }
        Ok(())
    })?;
    Ok(ContentDigest { sha256: Sha256Hex::from_raw(hash.finalize().into()), files, bytes })
}

/// Returns the digest of the content of one entry, and its size.
fn entry_content(entry: &WalkedEntry<'_>, buffer: &mut [u8]) -> Result<([u8; 32], u64), SkillCacheError> {
    let kind = entry.kind();
    if kind.is_symlink() {
        let target = fs::readlinkat(entry.parent, entry.name, Vec::new()).map_err(entry.error_for("read"))?;
        return Ok((Sha256::digest(target.to_bytes()).into(), 0));
    }
    if !kind.is_file() {
        return Ok(([0; 32], 0));
    }
    let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
    let file = fs::openat(entry.parent, entry.name, flags, Mode::empty()).map_err(entry.error_for("open"))?;
    let (mut file, mut hash, mut size) = (File::from(file), Sha256::new(), 0u64);
    loop {
        let count = match file.read(buffer) {
            Ok(0) => break,
            Ok(count) => count,
            Err(error) if error.kind() == std::io::ErrorKind::Interrupted => continue,
            Err(source) => {
                let path = proctor_core::model::drift::display_path(entry.path);
                return Err(SkillCacheError::Entry { action: "read", path, source });
            }
        };
        hash.update(&buffer[..count]);
        size += count as u64;
    }
    Ok((hash.finalize().into(), size))
}
