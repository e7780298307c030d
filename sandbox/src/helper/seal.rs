//! What a step changed in its copy of the tree, moved into the upper directory of its layer in the
//! form of overlayfs: everybody downstream reads layers of one form.
//!
//! A file counts as untouched where the kernel's own marks are as they were when the copy was made:
//! inode number, size, mode, the time of its last change of content, and the time of its last change
//! of anything, which no program can set.

use std::cell::OnceCell;
use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::{Duration, Instant};

use rustix::fs::{AtFlags, FileType, Gid, Mode, OFlags, RawMode, Stat, Uid, XattrFlags};
use rustix::io::Errno;
use rustix::time::ClockId;

use super::copy::{self, OPAQUE};
use super::mounts::Owner;

/// How long the kernel's clock may need to go on.
const PATIENCE: Duration = Duration::from_secs(3);
/// Of a file system that remembers whole seconds alone.
const LAST_OF_THE_SECOND: u64 = 999_999_999;

/// The copy as it was before the step.
#[derive(Debug)]
pub(super) struct Baseline(Entries);

type Entries = BTreeMap<Vec<u8>, Was>;

#[derive(Debug)]
struct Was {
    marks: Marks,
    below: Entries,
}

/// By what a change is seen.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Marks {
    inode: u64,
    size: i64,
    mode: RawMode,
    modified: (i64, u64),
    changed: (i64, u64),
}

impl Marks {
    fn of(stat: &Stat) -> Self {
        Self {
            inode: stat.st_ino,
            size: stat.st_size,
            mode: stat.st_mode,
            modified: (stat.st_mtime, stat.st_mtime_nsec),
            changed: (stat.st_ctime, stat.st_ctime_nsec),
        }
    }

    fn is_dir(&self) -> bool {
        FileType::from_raw_mode(self.mode).is_dir()
    }
}

impl Baseline {
    /// Looks at the copy, and waits until whatever happens to it afterwards has a later time.
    ///
    /// # Errors
    /// It cannot be read, or the clock stands still.
    pub(super) fn take(tree: BorrowedFd<'_>) -> io::Result<Self> {
        let mut latest = (0, 0);
        let entries = look(&copy::readable(tree)?, &mut latest)?;
        wait_until_after(latest)?;
        Ok(Self(entries))
    }

    /// Moves what has changed since into `upper`, an empty directory on the same file system. For a
    /// tree that nobody uses any more. New directories of ours become `owner`'s.
    ///
    /// # Errors
    /// Something cannot be moved, or the file system takes no whiteout.
    pub(super) fn seal(&self, tree: BorrowedFd<'_>, upper: BorrowedFd<'_>, owner: Option<Owner>) -> io::Result<()> {
        let top = rustix::fs::fstat(tree)?.st_mode;
        rustix::fs::fchmod(tree, copy::permissions(top) | Mode::RWXU)?;
        rustix::fs::fchmod(upper, copy::permissions(top) | Mode::RWXU)?;
        let there = There { at: Place::Top(upper), owner, mode: top };
        compare(&copy::readable(tree)?, &self.0, &there)?;
        Ok(rustix::fs::fchmod(upper, copy::permissions(top))?)
    }
}

fn look(dir: &OwnedFd, latest: &mut (i64, u64)) -> io::Result<Entries> {
    let mut entries = Entries::new();
    for name in copy::names(dir)? {
        let stat = rustix::fs::statat(dir, &name[..], AtFlags::SYMLINK_NOFOLLOW)?;
        let marks = Marks::of(&stat);
        *latest = (*latest).max(marks.changed);
        let below = if marks.is_dir() { look_below(dir, &name, latest)? } else { Entries::new() };
        entries.insert(name, Was { marks, below });
    }
    Ok(entries)
}

/// A directory that its owner may not read is empty: the copy was made without what is in it.
fn look_below(dir: &OwnedFd, name: &[u8], latest: &mut (i64, u64)) -> io::Result<Entries> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    match rustix::fs::openat(dir, name, flags, Mode::empty()) {
        Ok(inner) => look(&inner, latest),
        Err(Errno::ACCESS) => Ok(Entries::new()),
        Err(errno) => Err(errno.into()),
    }
}

/// The kernel stamps changes with a clock that goes on every few milliseconds: two changes within
/// one tick look the same.
fn wait_until_after(latest: (i64, u64)) -> io::Result<()> {
    let latest = if latest.1 == 0 { (latest.0, LAST_OF_THE_SECOND) } else { latest };
    let began = Instant::now();
    loop {
        let now = rustix::time::clock_gettime(ClockId::RealtimeCoarse);
        if (now.tv_sec, now.tv_nsec.cast_unsigned()) > latest {
            return Ok(());
        }
        if began.elapsed() > PATIENCE {
            return Err(io::Error::other("the clock of the machine stands still, or went back"));
        }
        std::thread::yield_now();
    }
}

/// A directory of the upper directory, made when something is put in it.
struct There<'a> {
    at: Place<'a>,
    owner: Option<Owner>,
    mode: RawMode,
}

enum Place<'a> {
    Top(BorrowedFd<'a>),
    Below { parent: &'a There<'a>, name: &'a [u8], made: OnceCell<OwnedFd> },
}

impl There<'_> {
    fn open(&self) -> io::Result<BorrowedFd<'_>> {
        let (parent, name, made) = match &self.at {
            Place::Top(upper) => return Ok(*upper),
            Place::Below { parent, name, made } => (parent, *name, made),
        };
        if let Some(made) = made.get() {
            return Ok(made.as_fd());
        }
        let dir = parent.open()?;
        rustix::fs::mkdirat(dir, name, Mode::RWXU)?;
        let opened = copy::open_writable(dir, name)?;
        Ok(made.get_or_init(|| opened).as_fd())
    }

    /// Gives it owner and mode, where it was made.
    fn finish(&self) -> io::Result<()> {
        let Place::Below { made, .. } = &self.at else { return Ok(()) };
        let Some(made) = made.get() else { return Ok(()) };
        if let Some(Owner { uid, gid }) = self.owner {
            rustix::fs::fchown(made, Some(Uid::from_raw(uid)), Some(Gid::from_raw(gid)))?;
        }
        Ok(rustix::fs::fchmod(made, copy::permissions(self.mode))?)
    }

    /// Moves an entry of the copy here, with all that is in it.
    fn take(&self, from: &OwnedFd, name: &[u8]) -> io::Result<()> {
        let to = self.open()?;
        match rustix::fs::renameat(from, name, to, name) {
            // A directory without write permission: its `..` changes.
            Err(Errno::ACCESS) => {
                let mode = rustix::fs::statat(from, name, AtFlags::SYMLINK_NOFOLLOW)?.st_mode;
                drop(copy::open_writable(from.as_fd(), name)?);
                rustix::fs::renameat(from, name, to, name)?;
                Ok(rustix::fs::chmodat(to, name, copy::permissions(mode), AtFlags::empty())?)
            }
            other => Ok(other?),
        }
    }

    /// Marks that what stood below is gone. The one device that everybody may make.
    fn whiteout(&self, name: &[u8]) -> io::Result<()> {
        Ok(rustix::fs::mknodat(self.open()?, name, FileType::CharacterDevice, Mode::empty(), 0)?)
    }

    /// Marks that a directory replaces something else. Where the file system has no such marks, what
    /// it replaces was no directory, and hides nothing of it.
    fn mark_opaque(&self, name: &[u8]) -> io::Result<()> {
        let dir = copy::open_writable(self.open()?, name)?;
        match rustix::fs::fsetxattr(&dir, OPAQUE, b"y", XattrFlags::empty()) {
            Ok(()) | Err(Errno::NOTSUP | Errno::PERM) => Ok(()),
            Err(errno) => Err(errno.into()),
        }
    }
}

fn compare(here: &OwnedFd, was: &Entries, there: &There<'_>) -> io::Result<()> {
    let names: BTreeSet<Vec<u8>> = copy::names(here)?.into_iter().collect();
    for name in &names {
        let now = Marks::of(&rustix::fs::statat(here, &name[..], AtFlags::SYMLINK_NOFOLLOW)?);
        match was.get(name) {
            None => there.take(here, name)?,
            Some(was) if was.marks.is_dir() && now.is_dir() => compare_directory(here, name, (was, &now), there)?,
            Some(was) if was.marks == now => {}
            Some(_) => {
                there.take(here, name)?;
                if now.is_dir() {
                    there.mark_opaque(name)?;
                    restore(there, name, now.mode)?;
                }
            }
        }
    }
    was.keys().filter(|name| !names.contains(*name)).try_for_each(|name| there.whiteout(name))
}

fn restore(there: &There<'_>, name: &[u8], mode: RawMode) -> io::Result<()> {
    Ok(rustix::fs::chmodat(there.open()?, name, copy::permissions(mode), AtFlags::empty())?)
}

fn compare_directory(here: &OwnedFd, name: &[u8], (was, now): (&Was, &Marks), there: &There<'_>) -> io::Result<()> {
    let inner = copy::open_writable(here.as_fd(), name)?;
    let below =
        There { at: Place::Below { parent: there, name, made: OnceCell::new() }, owner: there.owner, mode: now.mode };
    if was.marks.mode != now.mode {
        below.open()?;
    }
    compare(&inner, &was.below, &below)?;
    below.finish()
}
