//! One name in an open directory: its stat data, and its content where these do not tell.

use std::io;
use std::os::fd::{AsFd as _, BorrowedFd};

use proctor_core::drift::display_path;
use rustix::fs::{AtFlags, FileType, Mode, OFlags, Stat, fstat, openat, readlinkat, statat};
use rustix::io::{Errno, pread};
use sha2::{Digest as _, Sha256};

use super::{Look, io_error};
use crate::beneath;
use crate::entries::{Found, Kind};
use crate::git::config::RULES_BYTES;
use crate::snapshot::SnapshotError;
use crate::stamp::Stamp;

/// How often a file that changes under our eyes is read before we give up.
const ATTEMPTS: u32 = 5;
/// How many bytes of a file are read at a time.
const BUFFER: usize = 128 << 10;

/// Looks at one name after the other.
pub(super) struct Eye<'a> {
    look: &'a Look<'a>,
    buffer: Vec<u8>,
    has_read: bool,
}

/// Why a name could not be looked at.
pub(super) enum Failed {
    Io(io::Error),
    Unstable,
}

impl Failed {
    pub(super) fn at(self, path: &[u8]) -> SnapshotError {
        match self {
            Self::Io(error) => io_error(path, error),
            Self::Unstable => SnapshotError::Unstable { path: display_path(path) },
        }
    }
}

impl From<Errno> for Failed {
    fn from(errno: Errno) -> Self {
        Self::Io(errno.into())
    }
}

impl<'a> Eye<'a> {
    pub(super) fn new(look: &'a Look<'a>) -> Self {
        Self { look, buffer: vec![0; BUFFER], has_read: false }
    }

    /// Whether the last look had to read a content.
    pub(super) fn has_read(&self) -> bool {
        self.has_read
    }

    /// What stands at `name`; `known` is what the tree says of it, `before` what stood there.
    pub(super) fn look(
        &mut self,
        directory: BorrowedFd<'_>,
        name: &[u8],
        known: Found,
        before: Option<Found>,
    ) -> Result<Found, Failed> {
        self.has_read = false;
        for _ in 0..ATTEMPTS {
            let stat = match statat(directory, name, AtFlags::SYMLINK_NOFOLLOW) {
                Ok(stat) => stat,
                Err(Errno::NOENT) => return Ok(Found::MISSING),
                Err(errno) => return Err(errno.into()),
            };
            if let Some(found) = self.told(&stat, known, before) {
                return Ok(found);
            }
            self.has_read = true;
            if let Some(found) = self.read(directory, name, &stat)? {
                return Ok(found);
            }
        }
        Err(Failed::Unstable)
    }

    /// What can be told without reading.
    fn told(&self, stat: &Stat, known: Found, before: Option<Found>) -> Option<Found> {
        if FileType::from_raw_mode(stat.st_mode) == FileType::Directory {
            // A repository is named by its commit, which git knows.
            return Some(if known.kind == Kind::Gitlink { known } else { Found::MISSING });
        }
        let stamp = Stamp::of(stat);
        if known.kind == Kind::Rules {
            return Some(Found { kind: Kind::Rules, racy: self.look.is_racy(&stamp), stamp, ..Found::MISSING });
        }
        let is_content = |found: &Found| !matches!(found.kind, Kind::Gitlink | Kind::Missing | Kind::Rules);
        before.filter(|before| {
            is_content(before) && !before.racy && before.stamp == stamp && self.look.device == Some(stamp.dev)
        })
    }

    /// Reads what stands at `name`; nothing where it changed meanwhile.
    fn read(&mut self, directory: BorrowedFd<'_>, name: &[u8], stat: &Stat) -> Result<Option<Found>, Failed> {
        let stamp = Stamp::of(stat);
        let found = |kind, sha256| Found { kind, racy: self.look.is_racy(&stamp), sha256, stamp };
        match FileType::from_raw_mode(stat.st_mode) {
            FileType::RegularFile if name == b".gitignore" && stamp.size > RULES_BYTES => {
                // Git would be asked what it says.
                Err(Failed::Io(io::Error::other(format!("it is larger than {RULES_BYTES} bytes"))))
            }
            FileType::RegularFile => {
                let kind = if beneath::is_executable(stat) { Kind::Executable } else { Kind::File };
                Ok(self.hash(directory, name, &stamp)?.map(|sha256| Found {
                    kind,
                    racy: self.look.is_content_racy(&stamp),
                    sha256,
                    stamp,
                }))
            }
            FileType::Symlink => match readlinkat(directory, name, Vec::new()) {
                Ok(target) => {
                    let is_same = statat(directory, name, AtFlags::SYMLINK_NOFOLLOW).map(|stat| Stamp::of(&stat));
                    let sha256 = Sha256::digest(target.as_bytes()).into();
                    Ok((is_same == Ok(stamp)).then(|| found(Kind::Symlink, sha256)))
                }
                // It is a link no more.
                Err(Errno::INVAL | Errno::NOENT) => Ok(None),
                Err(errno) => Err(errno.into()),
            },
            _ => Ok(Some(found(Kind::Special, Sha256::digest(b"").into()))),
        }
    }

    /// The sha256 of the file that has this stamp before it was read. Where a write could leave the stamp as it is, it has it
    /// afterwards too; any other write that comes meanwhile changes it, and is seen by the next look.
    fn hash(&mut self, directory: BorrowedFd<'_>, name: &[u8], stamp: &Stamp) -> Result<Option<[u8; 32]>, Failed> {
        let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
        let fd = match openat(directory, name, flags, Mode::empty()) {
            Ok(fd) => fd,
            Err(Errno::NOENT | Errno::LOOP | Errno::NXIO) => return Ok(None),
            Err(errno) => return Err(errno.into()),
        };
        let mut hasher = Sha256::new();
        let mut at = 0;
        // One byte past the size is asked for too, so that a file that grows is noticed and a
        // writer that never ends is not followed.
        while at <= stamp.size {
            if self.look.is_stopped() {
                return Ok(None);
            }
            match pread(fd.as_fd(), &mut self.buffer, at) {
                Ok(0) => break,
                Ok(count) => {
                    hasher.update(&self.buffer[..count]);
                    at += count as u64;
                    if at == stamp.size && count < self.buffer.len() {
                        break;
                    }
                }
                Err(Errno::INTR) => {}
                // A directory took its place.
                Err(Errno::ISDIR) => return Ok(None),
                Err(errno) => return Err(errno.into()),
            }
        }
        let is_young = self.look.is_content_racy(stamp);
        let is_same = at == stamp.size && (!is_young || Stamp::of(&fstat(&fd)?) == *stamp);
        Ok(is_same.then(|| hasher.finalize().into()))
    }
}
