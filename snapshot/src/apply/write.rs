//! Writes what was checked: files and links by rename, directories and removals in place.

use std::collections::BTreeSet;
use std::fs::File;
use std::io::{self, Read as _, Write as _};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use proctor_core::digest::Sha256Hex;
use proctor_core::drift::display_path;
use rustix::fs::{AtFlags, FileType, Gid, Mode, OFlags, Stat, Uid};
use rustix::io::Errno;
use sha2::{Digest as _, Sha256};

use super::{ApplyError, ApplyInput, Changes, stays};
use crate::beneath;
use crate::layer::{FileContent, LayerEntry};
use crate::paths;

/// Writes the changes, in the order of their paths: a directory before what is in it.
pub(super) fn write(input: &ApplyInput<'_>, changes: &Changes<'_>) -> Result<Vec<Vec<u8>>, ApplyError> {
    let mut writer = Writer { input, applied: BTreeSet::new(), parents: BTreeSet::new() };
    for (path, entry) in changes {
        if let Err(source) = writer.apply(path, entry) {
            return Err(writer.failed(path, source));
        }
    }
    if let Err((path, source)) = writer.sync() {
        return Err(writer.failed(&path, source));
    }
    Ok(writer.applied.into_iter().collect())
}

struct Writer<'a> {
    input: &'a ApplyInput<'a>,
    applied: BTreeSet<Vec<u8>>,
    /// The directories that have to reach the disk.
    parents: BTreeSet<Vec<u8>>,
}

impl Writer<'_> {
    fn failed(&self, path: &[u8], source: io::Error) -> ApplyError {
        ApplyError::Io { path: display_path(path), source, applied: self.applied.iter().cloned().collect() }
    }

    fn apply(&mut self, path: &[u8], entry: &LayerEntry) -> io::Result<()> {
        match entry {
            LayerEntry::Whiteout => self.remove(path),
            LayerEntry::Directory { opaque } => {
                self.make_directory(path)?;
                if *opaque { self.remove_inside(path) } else { Ok(()) }
            }
            LayerEntry::File { executable, content: FileContent::Sha256(sha256), .. } => {
                self.make_room(path)?;
                self.put_file(path, *executable, sha256)
            }
            LayerEntry::Symlink { target } => {
                self.make_room(path)?;
                self.put_link(path, target)
            }
            LayerEntry::File { content: FileContent::BeyondBound | FileContent::Spared, .. } | LayerEntry::Special => Ok(()),
        }
    }

    /// Removes a directory where a file is to stand.
    fn make_room(&mut self, path: &[u8]) -> io::Result<()> {
        if self.kind(path)? == Some(FileType::Directory) { self.remove(path) } else { Ok(()) }
    }

    fn kind(&self, path: &[u8]) -> io::Result<Option<FileType>> {
        Ok(beneath::look(self.input.repo, path)?.map(|(_, stat)| FileType::from_raw_mode(stat.st_mode)))
    }

    fn make_directory(&mut self, path: &[u8]) -> io::Result<()> {
        // Nothing in it is ever applied, so that it would stand empty.
        if holds_our_artifacts(path) {
            return Ok(());
        }
        match self.kind(path)? {
            Some(FileType::Directory) => return Ok(()),
            Some(_) => self.remove(path)?,
            None => {}
        }
        let place = Place::of(self.input.repo, path)?;
        rustix::fs::mkdirat(&place.parent, place.name, Mode::from_raw_mode(0o755))?;
        place.give_as_link(place.name, &rustix::fs::fstat(&place.parent)?)?;
        self.parents.insert(parent(path).to_vec());
        Ok(())
    }

    /// Removes what stands at `path` and below it, but what the layer has there too, and what
    /// is never removed.
    fn remove(&mut self, path: &[u8]) -> io::Result<()> {
        if stays(path, self.input.caches) {
            return Ok(());
        }
        match self.kind(path)? {
            None => Ok(()),
            Some(FileType::Directory) => {
                self.remove_inside(path)?;
                self.unlink(path, AtFlags::REMOVEDIR)
            }
            Some(_) => {
                self.unlink(path, AtFlags::empty())?;
                self.applied.insert(path.to_vec());
                Ok(())
            }
        }
    }

    fn remove_inside(&mut self, path: &[u8]) -> io::Result<()> {
        for name in beneath::names(self.input.repo, path)? {
            let inner = paths::join(path, &name);
            match self.input.scan.entries.get(&inner) {
                Some(LayerEntry::Directory { .. }) => self.remove_inside(&inner)?,
                Some(_) => {}
                None => self.remove(&inner)?,
            }
        }
        Ok(())
    }

    fn unlink(&mut self, path: &[u8], flags: AtFlags) -> io::Result<()> {
        let place = Place::of(self.input.repo, path)?;
        self.parents.insert(parent(path).to_vec());
        match rustix::fs::unlinkat(&place.parent, place.name, flags) {
            // A directory stays that holds something which is never removed.
            Ok(()) | Err(Errno::NOENT | Errno::NOTEMPTY | Errno::EXIST) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }

    fn put_file(&mut self, path: &[u8], executable: bool, sha256: &Sha256Hex) -> io::Result<()> {
        let place = Place::of(self.input.repo, path)?;
        let source = beneath::open(self.input.upper, path, OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOCTTY)?;
        let replaced = beneath::look(self.input.repo, path)?.map(|(_, stat)| stat);
        let owner = match &replaced {
            Some(stat) => *stat,
            None => rustix::fs::fstat(&place.parent)?,
        };
        let mode = mode_of(replaced.as_ref(), executable);
        let temporary = temporary_name()?;
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let fd = rustix::fs::openat(&place.parent, &temporary, flags, Mode::from_raw_mode(0o600))?;
        let written = copy(source, fd, sha256, |fd| {
            give(fd, &owner)?;
            Ok(rustix::fs::fchmod(fd, mode)?)
        });
        self.commit(path, &place, &temporary, written)
    }

    fn put_link(&mut self, path: &[u8], target: &[u8]) -> io::Result<()> {
        let place = Place::of(self.input.repo, path)?;
        let temporary = temporary_name()?;
        rustix::fs::symlinkat(target, &place.parent, &temporary)?;
        let given = rustix::fs::fstat(&place.parent)
            .map_err(io::Error::from)
            .and_then(|owner| place.give_as_link(temporary.as_bytes(), &owner));
        self.commit(path, &place, &temporary, given)
    }

    /// Renames the temporary file over `path`, or removes it where it could not be written.
    fn commit(&mut self, path: &[u8], place: &Place<'_>, temporary: &str, written: io::Result<()>) -> io::Result<()> {
        let renamed =
            written.and_then(|()| Ok(rustix::fs::renameat(&place.parent, temporary, &place.parent, place.name)?));
        if renamed.is_err() {
            // The first error is the one to report.
            let _ = rustix::fs::unlinkat(&place.parent, temporary, AtFlags::empty());
        } else {
            self.applied.insert(path.to_vec());
            self.parents.insert(parent(path).to_vec());
        }
        renamed
    }

    fn sync(&self) -> Result<(), (Vec<u8>, io::Error)> {
        for path in &self.parents {
            let synced = match beneath::open(self.input.repo, path, OFlags::RDONLY | OFlags::DIRECTORY) {
                Ok(fd) => rustix::fs::fsync(fd).map_err(io::Error::from),
                // It was removed after something in it was.
                Err(error) if beneath::is_nothing(&error) => Ok(()),
                Err(error) => Err(error),
            };
            synced.map_err(|source| (path.clone(), source))?;
        }
        Ok(())
    }
}

/// Where a path is made: the open directory above it, and its name there.
struct Place<'a> {
    parent: OwnedFd,
    name: &'a [u8],
}

impl<'a> Place<'a> {
    fn of(repo: BorrowedFd<'_>, path: &'a [u8]) -> io::Result<Self> {
        let parent = beneath::open(repo, parent(path), OFlags::RDONLY | OFlags::DIRECTORY)?;
        Ok(Self { parent, name: paths::name(path) })
    }

    /// Gives a link or directory to the owner in `stat`.
    fn give_as_link(&self, name: &[u8], stat: &Stat) -> io::Result<()> {
        let own = rustix::fs::statat(&self.parent, name, AtFlags::SYMLINK_NOFOLLOW)?;
        if (own.st_uid, own.st_gid) == (stat.st_uid, stat.st_gid) {
            return Ok(());
        }
        let (uid, gid) = (Uid::from_raw(stat.st_uid), Gid::from_raw(stat.st_gid));
        Ok(rustix::fs::chownat(&self.parent, name, Some(uid), Some(gid), AtFlags::SYMLINK_NOFOLLOW)?)
    }
}

fn parent(path: &[u8]) -> &[u8] {
    path.iter().rposition(|b| *b == b'/').map_or(b"", |at| &path[..at])
}

/// The mode of a written file: that of the file that it replaces, with the layer's exec bit and
/// nothing else of the layer's.
fn mode_of(replaced: Option<&Stat>, executable: bool) -> Mode {
    let is_file = |stat: &&Stat| FileType::from_raw_mode(stat.st_mode) == FileType::RegularFile;
    let mode = replaced.filter(is_file).map_or(0o644, |stat| stat.st_mode & 0o777);
    let mode = if executable { mode | 0o100 | (mode & 0o444) >> 2 } else { mode & !0o111 };
    Mode::from_raw_mode(mode)
}

fn give(fd: BorrowedFd<'_>, stat: &Stat) -> io::Result<()> {
    let own = rustix::fs::fstat(fd)?;
    if (own.st_uid, own.st_gid) == (stat.st_uid, stat.st_gid) {
        return Ok(());
    }
    Ok(rustix::fs::fchown(fd, Some(Uid::from_raw(stat.st_uid)), Some(Gid::from_raw(stat.st_gid)))?)
}

/// Copies the layer's file, which must still be the one that was scanned, to the disk.
fn copy(
    source: OwnedFd,
    into: OwnedFd,
    sha256: &Sha256Hex,
    finish: impl Fn(BorrowedFd<'_>) -> io::Result<()>,
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
    finish(into.as_fd())?;
    into.sync_all()
}

/// A name that nobody can foresee, for a file that lives until it is renamed.
fn temporary_name() -> io::Result<String> {
    let mut random = [0; 12];
    rustix::rand::getrandom(&mut random, rustix::rand::GetRandomFlags::empty())?;
    Ok(format!(".proctor-{}", random.map(|b| format!("{b:02x}")).concat()))
}

/// Whether `path` is the directory of a changeset's evidence.
fn holds_our_artifacts(path: &[u8]) -> bool {
    path.ends_with(b"/verify") && proctor_core::drift::is_our_artifact(&paths::join(path, b"x"))
}
