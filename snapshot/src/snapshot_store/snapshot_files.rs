//! Stores one snapshot file per repository. A file that is torn, damaged, foreign or of another version is ignored,
//! with a warning in the log.

use std::fs::File;
use std::io::{self, Write as _};
use std::os::fd::{AsFd as _, OwnedFd};
use std::os::unix::ffi::OsStrExt as _;
use std::path::Path;
use std::sync::Arc;

use proctor_core::text::digest::Sha256Hex;
use rustix::fs::{AtFlags, Dir, Mode, OFlags, openat, renameat, statat, unlinkat};
use rustix::io::Errno;

use super::listing_file::read_file;
use super::snapshot_encoding;
use crate::snapshot::EncodedListing;
use crate::snapshot::taken_snapshot::Snapshot;
use crate::snapshot_store::listing_file::{FILE_BYTES, ListingFile, UnusableFile};

/// Maximum number of files; the oldest are removed first.
const MAX_FILES: usize = 64;

/// The directory of the files.
#[derive(Debug)]
pub(super) struct SnapshotFiles {
    directory: Arc<OwnedFd>,
}

impl SnapshotFiles {
    pub(super) fn new(directory: OwnedFd) -> Self {
        Self { directory: Arc::new(directory) }
    }

    /// Loads the last snapshot of a work tree, if there is a valid file.
    pub(super) fn load(&self, place: &Path) -> Option<Snapshot> {
        let read = read_file(&self.directory, &snapshot_file_name(place)).and_then(|bytes| {
            let Some(bytes) = bytes else { return Ok(None) };
            let sidecar = |seal| ListingFile {
                directory: Arc::clone(&self.directory),
                name: listing_file_name(place),
                checksum: seal,
            };
            let snapshot = snapshot_encoding::decode(&bytes, sidecar)?;
            let is_its = snapshot.basis.as_ref().is_some_and(|basis| basis.worktree == place);
            if is_its { Ok(Some(snapshot)) } else { Err(UnusableFile::OtherRepository) }
        });
        read.unwrap_or_else(|why| {
            tracing::warn!(repo = %place.display(), %why, "the snapshot cache of a repository is discarded");
            None
        })
    }

    /// Writes the snapshot of a work tree. If writing fails, the next process reads the whole tree.
    pub(super) fn save(&self, place: &Path, snapshot: &Snapshot) {
        let Some(bytes) = snapshot_encoding::encode(snapshot) else { return };
        if bytes.len() as u64 > FILE_BYTES {
            tracing::debug!(repo = %place.display(), bytes = bytes.len(), "the snapshot is too large to be stored in a \
                file");
            return;
        }
        let listing = match snapshot.basis.as_ref().map(|basis| &basis.listing) {
            Some(EncodedListing::InMemory(listing)) => self.write(&listing_file_name(place), listing),
            _ => Ok(()),
        };
        if let Err(error) =
            listing.and_then(|()| self.write(&snapshot_file_name(place), &bytes)).and_then(|()| self.prune())
        {
            tracing::warn!(repo = %place.display(), %error, "the snapshot cache of a repository cannot be written");
        }
    }

    /// Replaces a file without waiting for the disk. The checksum detects a file that a crash left incomplete.
    fn write(&self, name: &str, bytes: &[u8]) -> io::Result<()> {
        let mut random = [0; 8];
        rustix::rand::getrandom(&mut random, rustix::rand::GetRandomFlags::empty())?;
        let temporary = format!(".{name}.{:016x}", u64::from_le_bytes(random));
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let fd = openat(self.directory.as_fd(), &temporary, flags, Mode::RUSR | Mode::WUSR)?;
        let written = File::from(fd)
            .write_all(bytes)
            .and_then(|()| Ok(renameat(self.directory.as_fd(), &temporary, self.directory.as_fd(), name)?));
        if written.is_err() {
            // The first error already describes the problem with the directory.
            let _ = unlinkat(self.directory.as_fd(), &temporary, AtFlags::empty());
        }
        written
    }

    /// Removes the oldest files beyond the bound, including temporary files of killed processes.
    fn prune(&self) -> io::Result<()> {
        let mut files = Vec::new();
        for entry in Dir::read_from(self.directory.as_fd())? {
            let name = entry?.file_name().to_owned();
            if name.to_bytes() == b"." || name.to_bytes() == b".." {
                continue;
            }
            // Another process may remove files at the same time.
            if let Ok(stat) = statat(self.directory.as_fd(), &name, AtFlags::SYMLINK_NOFOLLOW) {
                files.push((stat.st_mtime, stat.st_mtime_nsec, name));
            }
        }
        files.sort();
        for (.., name) in files.iter().take(files.len().saturating_sub(MAX_FILES)) {
            match unlinkat(self.directory.as_fd(), name, AtFlags::empty()) {
                Ok(()) | Err(Errno::NOENT) => {}
                Err(errno) => return Err(errno.into()),
            }
        }
        Ok(())
    }
}

/// Returns the file name for a work tree.
fn snapshot_file_name(place: &Path) -> String {
    Sha256Hex::digest(place.as_os_str().as_bytes()).as_str()[..32].to_owned()
}

/// Returns the name of the file with git's listing.
fn listing_file_name(place: &Path) -> String {
    format!("{}.git", snapshot_file_name(place))
}
