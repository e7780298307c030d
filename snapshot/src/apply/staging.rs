//! Manages the staging directory at the top of the tree, on the same file system. It holds complete, synced files
//! to be moved into the tree, and original entries that were moved out, until all changes are done.

use std::fs::File;
use std::io::{self, Read as _, Write as _};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use proctor_core::text::digest::Sha256Hex;
use proctor_git::files::read_beneath;
use rustix::fs::{AtFlags, FileType, Gid, Mode, OFlags, RenameFlags, Stat, Uid};
use rustix::io::Errno;
use sha2::{Digest as _, Sha256};

use crate::tree_view::PathState;

/// The beginning of the directory's name.
const NAME_PREFIX: &str = ".proctor-";
/// Number of random bytes in the name, which are written in hexadecimal.
const RANDOM_BYTES: usize = 12;

/// Checks whether a path, relative to the top of a tree, is a staging directory or in one.
pub fn is_staging_path(path: &[u8]) -> bool {
    let first = path.split(|byte| *byte == b'/').next().unwrap_or_default();
    let random = first.strip_prefix(NAME_PREFIX.as_bytes());
    random.is_some_and(|random| random.len() == 2 * RANDOM_BYTES && random.iter().all(u8::is_ascii_hexdigit))
}

/// The staging directory.
pub(super) struct StagingDir<'a> {
    repo: BorrowedFd<'a>,
    name: String,
    dir: OwnedFd,
    used: u64,
}

impl<'a> StagingDir<'a> {
    /// Creates the directory under an unpredictable name.
    pub(super) fn create(repo: BorrowedFd<'a>) -> io::Result<Self> {
        let mut random = [0; RANDOM_BYTES];
        rustix::rand::getrandom(&mut random, rustix::rand::GetRandomFlags::empty())?;
        let name = format!("{NAME_PREFIX}{}", random.map(|byte| format!("{byte:02x}")).concat());
        rustix::fs::mkdirat(repo, &name, Mode::RWXU)?;
        let dir = read_beneath::open(repo, name.as_bytes(), OFlags::RDONLY | OFlags::DIRECTORY)?;
        Ok(Self { repo, name, dir, used: 0 })
    }

    /// Returns the name of the directory at the top of the tree.
    pub(super) fn name(&self) -> &str {
        &self.name
    }

    /// Returns an unused name in the directory.
    pub(super) fn next_name(&mut self) -> String {
        self.used += 1;
        self.used.to_string()
    }

    /// Copies a file to the directory and returns its name. The content must be the one that was scanned.
    pub(super) fn copy_file(
        &mut self,
        source: OwnedFd,
        sha256: &Sha256Hex,
        attributes: &NewEntryAttributes,
    ) -> io::Result<String> {
        let name = self.next_name();
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let fd = rustix::fs::openat(&self.dir, &name, flags, Mode::from_raw_mode(0o600))?;
        copy_verified(source, fd, sha256, attributes)?;
        Ok(name)
    }

    /// Creates a link in the directory and returns its name.
    pub(super) fn create_link(&mut self, target: &[u8], attributes: &NewEntryAttributes) -> io::Result<String> {
        let name = self.next_name();
        rustix::fs::symlinkat(target, &self.dir, &name)?;
        attributes.owner.apply_at(self.dir.as_fd(), name.as_bytes())?;
        Ok(name)
    }

    /// Returns the entry with a name in the directory.
    pub(super) fn read_entry(&self, name: &str) -> io::Result<PathState> {
        Ok(crate::tree_view::path_state_from_read(read_beneath::read(self.dir.as_fd(), name.as_bytes(), u64::MAX)?))
    }

    /// Moves an entry of the directory to a path where no entry exists; fails with EEXIST otherwise.
    pub(super) fn move_out(&self, name: &str, parent: BorrowedFd<'_>, at: &[u8]) -> io::Result<()> {
        match rustix::fs::renameat_with(&self.dir, name, parent, at, RenameFlags::NOREPLACE) {
            // On a file system without NOREPLACE, link(2) does not replace an existing entry either.
            Err(error) if is_unsupported(error) => {
                rustix::fs::linkat(&self.dir, name, parent, at, AtFlags::empty())?;
                Ok(rustix::fs::unlinkat(&self.dir, name, AtFlags::empty())?)
            }
            other => Ok(other?),
        }
    }

    /// Moves an entry of the tree into the directory and returns its new name.
    pub(super) fn move_in(&mut self, parent: BorrowedFd<'_>, at: &[u8]) -> io::Result<String> {
        let name = self.next_name();
        rustix::fs::renameat(parent, at, &self.dir, &name)?;
        Ok(name)
    }

    /// Atomically exchanges an entry of the directory with one of the tree. Returns `false` if the file system does
    /// not support this.
    pub(super) fn exchange(&self, name: &str, parent: BorrowedFd<'_>, at: &[u8]) -> io::Result<bool> {
        match rustix::fs::renameat_with(&self.dir, name, parent, at, RenameFlags::EXCHANGE) {
            Ok(()) => Ok(true),
            Err(error) if is_unsupported(error) => Ok(false),
            Err(error) => Err(error.into()),
        }
    }

    /// Replaces an entry of the tree in two steps: it is linked into the directory, then replaced. Returns the name
    /// of the original in the directory.
    pub(super) fn replace(&mut self, name: &str, parent: BorrowedFd<'_>, at: &[u8]) -> io::Result<String> {
        let kept = self.next_name();
        rustix::fs::linkat(parent, at, &self.dir, &kept, AtFlags::empty())?;
        rustix::fs::renameat(&self.dir, name, parent, at)?;
        Ok(kept)
    }

    /// Removes the directory and its content.
    pub(super) fn remove(&self) -> io::Result<()> {
        for name in read_beneath::read_names(self.dir.as_fd())? {
            rustix::fs::unlinkat(&self.dir, name.as_slice(), AtFlags::empty())?;
        }
        Ok(rustix::fs::unlinkat(self.repo, &self.name, AtFlags::REMOVEDIR)?)
    }
}

/// Checks whether an error means that the file system does not support a rename flag.
fn is_unsupported(error: Errno) -> bool {
    matches!(error, Errno::INVAL | Errno::NOSYS | Errno::OPNOTSUPP)
}

/// The owner of a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct EntryOwner {
    uid: u32,
    gid: u32,
}

impl EntryOwner {
    /// Returns the owner in the stat data.
    pub(super) fn from_stat(stat: &Stat) -> Self {
        Self { uid: stat.st_uid, gid: stat.st_gid }
    }

    fn ids(self) -> (Option<Uid>, Option<Gid>) {
        (Some(Uid::from_raw(self.uid)), Some(Gid::from_raw(self.gid)))
    }

    fn apply_to_fd(self, fd: BorrowedFd<'_>) -> io::Result<()> {
        if Self::from_stat(&rustix::fs::fstat(fd)?) == self {
            return Ok(());
        }
        let (uid, gid) = self.ids();
        Ok(rustix::fs::fchown(fd, uid, gid)?)
    }

    /// Changes the owner of a link or directory.
    pub(super) fn apply_at(self, dir: BorrowedFd<'_>, name: &[u8]) -> io::Result<()> {
        if Self::from_stat(&rustix::fs::statat(dir, name, AtFlags::SYMLINK_NOFOLLOW)?) == self {
            return Ok(());
        }
        let (uid, gid) = self.ids();
        Ok(rustix::fs::chownat(dir, name, uid, gid, AtFlags::SYMLINK_NOFOLLOW)?)
    }
}

/// The owner and mode of a new file.
#[derive(Debug, Clone, Copy)]
pub(super) struct NewEntryAttributes {
    pub(super) owner: EntryOwner,
    pub(super) mode: Mode,
}

impl NewEntryAttributes {
    /// Determines the owner and mode. A replacement takes both from the file that it replaces, a new file takes its
    /// owner from its directory. Only the exec bit comes from the layer.
    pub(super) fn new(replaced: Option<&Stat>, directory: &Stat, executable: bool) -> Self {
        let is_file = |stat: &&Stat| FileType::from_raw_mode(stat.st_mode) == FileType::RegularFile;
        let mode = replaced.filter(is_file).map_or(0o644, |stat| stat.st_mode & 0o777);
        let mode = if executable { mode | 0o100 | (mode & 0o444) >> 2 } else { mode & !0o111 };
        Self { owner: EntryOwner::from_stat(replaced.unwrap_or(directory)), mode: Mode::from_raw_mode(mode) }
    }
}

/// Copies a file of the layer, checks that its content is the one that was scanned, and syncs the copy.
fn copy_verified(
    source: OwnedFd,
    into: OwnedFd,
    sha256: &Sha256Hex,
    attributes: &NewEntryAttributes,
) -> io::Result<()> {
    let (mut source, mut into) = (File::from(source), File::from(into));
    let mut hasher = Sha256::new();
    let mut buffer = vec![0; 128 << 10];
    loop {
        let count = source.read(&mut buffer)?;
        if count == 0 {
            break;
        }
        hasher.update(&buffer[..count]);
        into.write_all(&buffer[..count])?;
    }
    if Sha256Hex::from_raw(hasher.finalize().into()) != *sha256 {
        return Err(io::Error::new(io::ErrorKind::InvalidData, "the layer changed after it was scanned"));
    }
    attributes.owner.apply_to_fd(into.as_fd())?;
    rustix::fs::fchmod(&into, attributes.mode)?;
    into.sync_all()
}
