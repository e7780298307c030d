//! Stores one snapshot file per repository. A file that is torn, damaged, foreign or of another version is ignored,
//! with a warning in the log.

use std::collections::HashMap;
use std::ffi::CString;
use std::fs::File;
use std::io::{self, Write as _};
use std::os::fd::{AsFd as _, OwnedFd};
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::FileExt as _;
use std::path::Path;
use std::sync::Arc;

use proctor_core::text::digest::Sha256Hex;
use rustix::fs::{AtFlags, Dir, Mode, OFlags, openat, renameat, statat, unlinkat};
use rustix::io::Errno;

use super::listing_file::{check_file, read_file};
use super::snapshot_encoding::{self, JournalEnd};
use crate::entries::TreeChanges;
use crate::snapshot::taken_snapshot::Snapshot;
use crate::snapshot::{EncodedListing, ReuseBasis};
use crate::snapshot_store::listing_file::{FILE_BYTES, ListingFile, UnusableFile};

/// Maximum number of files; the oldest are removed first.
const MAX_FILES: usize = 64;

/// The directory of the files.
#[derive(Debug)]
pub(super) struct SnapshotFiles {
    directory: Arc<OwnedFd>,
}

/// The content of a file, as far as another snapshot must equal it to be appended to the file's journal.
#[derive(Debug, Clone)]
pub(super) struct StoredFile {
    end: JournalEnd,
    basis: Option<Arc<ReuseBasis>>,
    ignored: Arc<Vec<Vec<u8>>>,
}

impl StoredFile {
    fn new(end: JournalEnd, snapshot: &Snapshot) -> Self {
        Self { end, basis: snapshot.basis.clone(), ignored: Arc::clone(&snapshot.ignored) }
    }

    /// Checks that a journal can contain the snapshot. It contains neither git's listing nor the ignored paths.
    fn can_continue_with(&self, snapshot: &Snapshot) -> bool {
        let is_same_basis = match (&self.basis, &snapshot.basis) {
            (Some(stored), Some(basis)) => Arc::ptr_eq(stored, basis),
            _ => false,
        };
        is_same_basis && (Arc::ptr_eq(&self.ignored, &snapshot.ignored) || self.ignored == snapshot.ignored)
    }
}

impl SnapshotFiles {
    pub(super) fn new(directory: OwnedFd) -> Self {
        Self { directory: Arc::new(directory) }
    }

    /// Loads the last snapshot of a work tree, if there is a valid file. Also returns the content of the file if its
    /// journal can be continued.
    pub(super) fn load(&self, place: &Path) -> Option<(Snapshot, Option<StoredFile>)> {
        let read = read_file(&self.directory, &snapshot_file_name(place)).and_then(|bytes| {
            let Some(bytes) = bytes else { return Ok(None) };
            let sidecar = |seal| ListingFile {
                directory: Arc::clone(&self.directory),
                name: listing_file_name(place),
                checksum: seal,
            };
            let (snapshot, end) = snapshot_encoding::decode(&bytes, sidecar)?;
            let is_its = snapshot.basis.as_ref().is_some_and(|basis| basis.worktree == place);
            let stored = end.map(|end| StoredFile::new(end, &snapshot));
            if is_its { Ok(Some((snapshot, stored))) } else { Err(UnusableFile::OtherRepository) }
        });
        read.unwrap_or_else(|why| {
            tracing::warn!(repo = %place.display(), %why, "the snapshot cache of a repository is discarded");
            None
        })
    }

    /// Stores the snapshot of a work tree, which differs by `changes` from the one in the file `stored`, if there is
    /// such a file. Returns the new content of the file. If writing fails, the next process reads the whole tree, or
    /// uses an earlier snapshot.
    pub(super) fn save(
        &self,
        place: &Path,
        snapshot: &Snapshot,
        continued: Option<(&StoredFile, &TreeChanges)>,
    ) -> Option<StoredFile> {
        let saved = match continued.map(|(stored, changes)| self.append(place, snapshot, stored, changes)) {
            Some(Ok(Some(stored))) => Ok(Some(stored)),
            // The whole snapshot is also written if the old file cannot be read.
            None | Some(Ok(None) | Err(_)) => self.write_all(place, snapshot),
        };
        saved.unwrap_or_else(|error| {
            tracing::warn!(repo = %place.display(), %error, "the snapshot cache of a repository cannot be written");
            None
        })
    }

    /// Appends a snapshot to the journal of a file. Returns `None` if that is not possible.
    ///
    /// If another process writes to the file after the check, the journal ends before one of the two frames: each
    /// frame names the checksum before it.
    fn append(
        &self,
        place: &Path,
        snapshot: &Snapshot,
        stored: &StoredFile,
        changes: &TreeChanges,
    ) -> Result<Option<StoredFile>, UnusableFile> {
        let StoredFile { end, .. } = stored;
        if !stored.can_continue_with(snapshot) {
            return Ok(None);
        }
        let Some((frame, new_end)) = snapshot_encoding::encode_changes(snapshot, changes, *end) else {
            return Ok(None);
        };
        let flags = OFlags::RDWR | OFlags::APPEND | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
        let mut file = File::from(openat(self.directory.as_fd(), snapshot_file_name(place), flags, Mode::empty())?);
        let mut sum = [0; 4];
        if check_file(&file)? != end.length || new_end.length > FILE_BYTES {
            return Ok(None);
        }
        file.read_exact_at(&mut sum, end.sum_offset).map_err(UnusableFile::Io)?;
        if sum != end.sum.to_le_bytes() {
            return Ok(None);
        }
        file.write_all(&frame).map_err(UnusableFile::Io)?;
        Ok(Some(StoredFile::new(new_end, snapshot)))
    }

    /// Replaces the file of a work tree. Returns `None` if the snapshot cannot be stored.
    fn write_all(&self, place: &Path, snapshot: &Snapshot) -> io::Result<Option<StoredFile>> {
        let Some((bytes, end)) = snapshot_encoding::encode(snapshot) else { return Ok(None) };
        if bytes.len() as u64 > FILE_BYTES {
            tracing::debug!(repo = %place.display(), bytes = bytes.len(), "the snapshot is too large to be stored in a \
                file");
            return Ok(None);
        }
        if let Some(EncodedListing::InMemory(listing)) = snapshot.basis.as_ref().map(|basis| &basis.listing) {
            self.write(&listing_file_name(place), listing)?;
        }
        self.write(&snapshot_file_name(place), &bytes)?;
        self.prune()?;
        Ok(Some(StoredFile::new(end, snapshot)))
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

    /// Removes the oldest files beyond the bound, including temporary files of killed processes. The files of a
    /// repository are removed together, and are as old as the newest of them.
    fn prune(&self) -> io::Result<()> {
        let mut groups: HashMap<Vec<u8>, FileGroup> = HashMap::new();
        for entry in Dir::read_from(self.directory.as_fd())? {
            let name = entry?.file_name().to_owned();
            if name.to_bytes() == b"." || name.to_bytes() == b".." {
                continue;
            }
            // Another process may remove files at the same time.
            if let Ok(stat) = statat(self.directory.as_fd(), &name, AtFlags::SYMLINK_NOFOLLOW) {
                let repository = name.to_bytes().strip_suffix(LISTING_SUFFIX.as_bytes()).unwrap_or(name.to_bytes());
                let group = groups.entry(repository.to_vec()).or_default();
                group.newest = group.newest.max((stat.st_mtime, stat.st_mtime_nsec));
                group.names.push(name);
            }
        }
        let mut count: usize = groups.values().map(|group| group.names.len()).sum();
        let mut groups: Vec<FileGroup> = groups.into_values().collect();
        groups.sort();
        for FileGroup { names, .. } in groups {
            if count <= MAX_FILES {
                break;
            }
            count -= names.len();
            for name in names {
                match unlinkat(self.directory.as_fd(), &name, AtFlags::empty()) {
                    Ok(()) | Err(Errno::NOENT) => {}
                    Err(errno) => return Err(errno.into()),
                }
            }
        }
        Ok(())
    }
}

/// The files of a repository, or a single other file.
#[derive(Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
struct FileGroup {
    newest: (i64, u64),
    names: Vec<CString>,
}

/// The suffix of a file with git's listing.
const LISTING_SUFFIX: &str = ".git";

/// Returns the file name for a work tree.
fn snapshot_file_name(place: &Path) -> String {
    Sha256Hex::digest(place.as_os_str().as_bytes()).prefix(32)
}

/// Returns the name of the file with git's listing.
fn listing_file_name(place: &Path) -> String {
    format!("{}{LISTING_SUFFIX}", snapshot_file_name(place))
}
