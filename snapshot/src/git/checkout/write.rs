//! Writes a plan: every file is new, and nothing is reached by more than one name.

use std::borrow::Cow;
use std::fs::File;
use std::io::{self, Write as _};
use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};

use rustix::fs::{AtFlags, Mode, OFlags, Stat};
use rustix::io::Errno;

use super::Source;
use super::plan::{Leaf, LeafKind, Plan};
use crate::git::GitError;
use crate::git::index::{EXECUTABLE, FILE, GITLINK, SYMLINK, to_file};
use crate::paths;
use crate::stamp::Stamp;

/// How a pointer of git-lfs begins, which stands in place of a content that lies elsewhere.
const LFS_POINTER: &[u8] = b"version https://git-lfs.github.com/spec/v1\n";
/// The largest file that git-lfs takes for a pointer, in bytes.
const MAX_LFS_POINTER: usize = 1024;

/// What was written.
pub(super) struct Written {
    /// The index that fits to it, with the stat data of the files.
    pub(super) index: Vec<to_file::Entry>,
    /// How many files are pointers of git-lfs.
    pub(super) lfs_pointers: u64,
}

/// Writes below one directory.
pub(super) struct Writer<'a> {
    source: &'a Source<'a>,
    /// For messages.
    place: PathBuf,
    root: OwnedFd,
    /// The directories that lead to where we are.
    here: Vec<(Vec<u8>, OwnedFd)>,
    written: Written,
}

impl<'a> Writer<'a> {
    /// Makes the directory `name` in `parent`.
    pub(super) fn new(
        parent: BorrowedFd<'_>,
        name: &[u8],
        source: &'a Source<'a>,
        place: &Path,
    ) -> Result<Self, GitError> {
        let root = enter(parent, name, Existing::Taken).map_err(|error| failed(place, &error))?;
        let written = Written { index: Vec::new(), lfs_pointers: 0 };
        Ok(Self { source, place: place.to_owned(), root, here: Vec::new(), written })
    }

    /// Writes everything that is planned.
    pub(super) fn write(mut self, plan: &Plan) -> Result<Written, GitError> {
        for leaf in &plan.leaves {
            self.leaf(leaf)?;
        }
        Ok(self.written)
    }

    fn leaf(&mut self, leaf: &Leaf) -> Result<(), GitError> {
        let content = match leaf.kind {
            LeafKind::Gitlink => Cow::Borrowed(&[][..]),
            LeafKind::File { .. } | LeafKind::Symlink => self.content(leaf)?,
        };
        let put = self.put(leaf, &content);
        let stat = put.map_err(|error| match error.kind() {
            io::ErrorKind::AlreadyExists => self.source.refused(&leaf.path, "stands there already under another name"),
            _ => failed(&self.place.join(std::ffi::OsStr::from_bytes(&leaf.path)), &error),
        })?;
        if content.len() < MAX_LFS_POINTER && content.starts_with(LFS_POINTER) {
            self.written.lfs_pointers += 1;
        }
        self.written.index.push(index_entry(leaf, stat));
        Ok(())
    }

    fn content(&self, leaf: &Leaf) -> Result<Cow<'a, [u8]>, GitError> {
        let content = self.source.blob(leaf)?;
        if leaf.kind == LeafKind::Symlink && content.contains(&0) {
            return Err(self.source.refused(&leaf.path, "is a link whose target holds a NUL byte"));
        }
        Ok(content)
    }

    fn put(&mut self, leaf: &Leaf, content: &[u8]) -> io::Result<Stat> {
        let name = paths::name(&leaf.path).to_vec();
        let dir = self.directory_of(&leaf.path)?;
        match leaf.kind {
            LeafKind::File { executable } => return put_file(dir, &name, content, executable),
            LeafKind::Symlink => rustix::fs::symlinkat(content, dir, name.as_slice())?,
            LeafKind::Gitlink => drop(enter(dir, &name, Existing::Refused)?),
        }
        Ok(rustix::fs::statat(dir, name.as_slice(), AtFlags::SYMLINK_NOFOLLOW)?)
    }

    /// The directory of a path. Paths come sorted, so that each directory is entered once.
    fn directory_of(&mut self, path: &[u8]) -> io::Result<BorrowedFd<'_>> {
        let wanted: Vec<&[u8]> = paths::ancestors(path).map(paths::name).collect();
        let same = self.here.iter().zip(&wanted).take_while(|((name, _), wanted)| name == *wanted).count();
        self.here.truncate(same);
        for name in &wanted[same..] {
            let next = enter(self.last(), name, Existing::Refused)?;
            self.here.push((name.to_vec(), next));
        }
        Ok(self.last())
    }

    fn last(&self) -> BorrowedFd<'_> {
        self.here.last().map_or(self.root.as_fd(), |(_, fd)| fd.as_fd())
    }
}

/// What becomes of a directory that is there already.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Existing {
    /// The empty one of a submodule.
    Taken,
    /// Some name leads to it that is another one to git.
    Refused,
}

fn enter(dir: BorrowedFd<'_>, name: &[u8], existing: Existing) -> io::Result<OwnedFd> {
    match rustix::fs::mkdirat(dir, name, Mode::from_raw_mode(0o755)) {
        Err(Errno::EXIST) if existing == Existing::Taken => {}
        other => other?,
    }
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let made = rustix::fs::openat(dir, name, flags, Mode::empty())?;
    // Whatever our caller's umask is.
    rustix::fs::fchmod(&made, Mode::from_raw_mode(0o755))?;
    Ok(made)
}

fn put_file(dir: BorrowedFd<'_>, name: &[u8], content: &[u8], executable: bool) -> io::Result<Stat> {
    let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let mut file = File::from(rustix::fs::openat(dir, name, flags, Mode::from_raw_mode(0o600))?);
    file.write_all(content)?;
    rustix::fs::fchmod(&file, Mode::from_raw_mode(if executable { 0o755 } else { 0o644 }))?;
    Ok(rustix::fs::fstat(&file)?)
}

fn failed(place: &Path, error: &io::Error) -> GitError {
    GitError::CheckOut { path: place.to_owned(), problem: error.to_string() }
}

fn index_entry(leaf: &Leaf, stat: Stat) -> to_file::Entry {
    let mode = match leaf.kind {
        LeafKind::File { executable: false } => FILE,
        LeafKind::File { executable: true } => EXECUTABLE,
        LeafKind::Symlink => SYMLINK,
        LeafKind::Gitlink => GITLINK,
    };
    let stamp = Stamp { size: leaf.size, ..Stamp::of(&stat) };
    let stat = Some(to_file::FileStat { stamp, uid: stat.st_uid, gid: stat.st_gid });
    let (intent_to_add, skip_worktree) = (false, false);
    to_file::Entry { path: leaf.path.clone(), mode, id: leaf.id, stage: 0, intent_to_add, skip_worktree, stat }
}
