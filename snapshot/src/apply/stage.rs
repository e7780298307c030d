//! A directory of ours at the top of the tree, on the same file system: what is going to be put in
//! place, whole and on the disk, and what was taken from there, until all is done.

use std::fs::File;
use std::io::{self, Read as _, Write as _};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use proctor_core::digest::Sha256Hex;
use rustix::fs::{AtFlags, FileType, Gid, Mode, OFlags, RenameFlags, Stat, Uid};
use rustix::io::Errno;
use sha2::{Digest as _, Sha256};

use crate::beneath;
use crate::view::Standing;

/// The directory.
pub(super) struct Stage<'a> {
    repo: BorrowedFd<'a>,
    name: String,
    dir: OwnedFd,
    used: u64,
}

impl<'a> Stage<'a> {
    /// Makes it, under a name that nobody can foresee.
    pub(super) fn make(repo: BorrowedFd<'a>) -> io::Result<Self> {
        let mut random = [0; 12];
        rustix::rand::getrandom(&mut random, rustix::rand::GetRandomFlags::empty())?;
        let name = format!(".proctor-{}", random.map(|byte| format!("{byte:02x}")).concat());
        rustix::fs::mkdirat(repo, &name, Mode::RWXU)?;
        let dir = beneath::open(repo, name.as_bytes(), OFlags::RDONLY | OFlags::DIRECTORY)?;
        Ok(Self { repo, name, dir, used: 0 })
    }

    /// Its name at the top of the tree.
    pub(super) fn name(&self) -> &str {
        &self.name
    }

    /// A name in it that was not used yet.
    pub(super) fn fresh(&mut self) -> String {
        self.used += 1;
        self.used.to_string()
    }

    /// Copies a file into it, which must be as it was scanned; answers its name.
    pub(super) fn file(&mut self, source: OwnedFd, sha256: &Sha256Hex, look: &Look) -> io::Result<String> {
        let name = self.fresh();
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let fd = rustix::fs::openat(&self.dir, &name, flags, Mode::from_raw_mode(0o600))?;
        copy(source, fd, sha256, look)?;
        Ok(name)
    }

    /// Makes a link in it; answers its name.
    pub(super) fn link(&mut self, target: &[u8], look: &Look) -> io::Result<String> {
        let name = self.fresh();
        rustix::fs::symlinkat(target, &self.dir, &name)?;
        look.owner.give_at(self.dir.as_fd(), name.as_bytes())?;
        Ok(name)
    }

    /// What lies in it under a name.
    pub(super) fn holds(&self, name: &str) -> io::Result<Standing> {
        Ok(super::standing_in(beneath::read(self.dir.as_fd(), name.as_bytes(), u64::MAX)?))
    }

    /// Puts what lies in it where nothing stands: EEXIST where something does.
    pub(super) fn put(&self, name: &str, parent: BorrowedFd<'_>, at: &[u8]) -> io::Result<()> {
        match rustix::fs::renameat_with(&self.dir, name, parent, at, RenameFlags::NOREPLACE) {
            // A file system without that can link, which replaces nothing either.
            Err(error) if is_unknown(error) => {
                rustix::fs::linkat(&self.dir, name, parent, at, AtFlags::empty())?;
                Ok(rustix::fs::unlinkat(&self.dir, name, AtFlags::empty())?)
            }
            other => Ok(other?),
        }
    }

    /// Takes what stands somewhere; answers the name under which it lies here now.
    pub(super) fn take(&mut self, parent: BorrowedFd<'_>, at: &[u8]) -> io::Result<String> {
        let name = self.fresh();
        rustix::fs::renameat(parent, at, &self.dir, &name)?;
        Ok(name)
    }

    /// Exchanges what lies here for what stands somewhere, in one step; `false` where the file system
    /// cannot.
    pub(super) fn exchange(&self, name: &str, parent: BorrowedFd<'_>, at: &[u8]) -> io::Result<bool> {
        match rustix::fs::renameat_with(&self.dir, name, parent, at, RenameFlags::EXCHANGE) {
            Ok(()) => Ok(true),
            Err(error) if is_unknown(error) => Ok(false),
            Err(error) => Err(error.into()),
        }
    }

    /// The same in two steps: what stood there is linked, and then replaced. Answers the name under
    /// which it lies here now.
    pub(super) fn replace(&mut self, name: &str, parent: BorrowedFd<'_>, at: &[u8]) -> io::Result<String> {
        let kept = self.fresh();
        rustix::fs::linkat(parent, at, &self.dir, &kept, AtFlags::empty())?;
        rustix::fs::renameat(&self.dir, name, parent, at)?;
        Ok(kept)
    }

    /// Removes it with what is in it.
    pub(super) fn clear(&self) -> io::Result<()> {
        for name in beneath::names_of(self.dir.as_fd())? {
            rustix::fs::unlinkat(&self.dir, name.as_slice(), AtFlags::empty())?;
        }
        Ok(rustix::fs::unlinkat(self.repo, &self.name, AtFlags::REMOVEDIR)?)
    }
}

/// Whether a file system does not know a way to rename.
fn is_unknown(error: Errno) -> bool {
    matches!(error, Errno::INVAL | Errno::NOSYS | Errno::OPNOTSUPP)
}

/// Whose something is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Owner {
    uid: u32,
    gid: u32,
}

impl Owner {
    /// The owner of what was looked at.
    pub(super) fn of(stat: &Stat) -> Self {
        Self { uid: stat.st_uid, gid: stat.st_gid }
    }

    fn ids(self) -> (Option<Uid>, Option<Gid>) {
        (Some(Uid::from_raw(self.uid)), Some(Gid::from_raw(self.gid)))
    }

    fn give(self, fd: BorrowedFd<'_>) -> io::Result<()> {
        if Self::of(&rustix::fs::fstat(fd)?) == self {
            return Ok(());
        }
        let (uid, gid) = self.ids();
        Ok(rustix::fs::fchown(fd, uid, gid)?)
    }

    /// Gives a link or directory to this owner.
    pub(super) fn give_at(self, dir: BorrowedFd<'_>, name: &[u8]) -> io::Result<()> {
        if Self::of(&rustix::fs::statat(dir, name, AtFlags::SYMLINK_NOFOLLOW)?) == self {
            return Ok(());
        }
        let (uid, gid) = self.ids();
        Ok(rustix::fs::chownat(dir, name, uid, gid, AtFlags::SYMLINK_NOFOLLOW)?)
    }
}

/// How a new file looks from outside.
#[derive(Debug, Clone, Copy)]
pub(super) struct Look {
    pub(super) owner: Owner,
    pub(super) mode: Mode,
}

impl Look {
    /// That of the file that is replaced, with the layer's exec bit and nothing else of the layer's; a
    /// new one has the owner of its directory.
    pub(super) fn new(replaced: Option<&Stat>, directory: &Stat, executable: bool) -> Self {
        let is_file = |stat: &&Stat| FileType::from_raw_mode(stat.st_mode) == FileType::RegularFile;
        let mode = replaced.filter(is_file).map_or(0o644, |stat| stat.st_mode & 0o777);
        let mode = if executable { mode | 0o100 | (mode & 0o444) >> 2 } else { mode & !0o111 };
        Self { owner: Owner::of(replaced.unwrap_or(directory)), mode: Mode::from_raw_mode(mode) }
    }
}

/// Copies the layer's file, which must still be the one that was scanned, to the disk.
fn copy(source: OwnedFd, into: OwnedFd, sha256: &Sha256Hex, look: &Look) -> io::Result<()> {
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
    look.owner.give(into.as_fd())?;
    rustix::fs::fchmod(&into, look.mode)?;
    into.sync_all()
}
