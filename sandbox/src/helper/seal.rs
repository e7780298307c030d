//! What a step changed in its copy of the tree, moved into the upper directory of its layer in the
//! form of overlayfs: everybody downstream reads layers of one form.
//!
//! A file counts as untouched where the kernel's own marks are as they were when the copy was made:
//! inode number, size, mode, the time of its last change of content, and the time of its last change
//! of anything, which no program can set. Where the file system is none whose times tell of every
//! change, its content must be the same as well.

use std::cell::OnceCell;
use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::{Duration, Instant};

use proctor_core::drift::{DriftMethod, times_tell_of_changes};
use rustix::fs::{AtFlags, FileType, Gid, Mode, OFlags, RawMode, Stat, Uid, XattrFlags};
use rustix::io::Errno;
use rustix::time::{ClockId, Timespec};
use sha2::{Digest as _, Sha256};

use super::copy::{self, OPAQUE};
use super::mounts::Owner;

/// How long the kernel's clock may need to go on.
const PATIENCE: Duration = Duration::from_secs(3);
/// Of a file system that remembers whole seconds alone.
const LAST_OF_THE_SECOND: u64 = 999_999_999;

/// How much of a file is hashed at a time.
const CHUNK: usize = 128 << 10;
/// By how many nanoseconds two looks at the clocks may differ without their having been set.
const JITTER: i128 = 10_000_000;
/// How often the clocks are read until both are read at once.
const MOST_READINGS: usize = 64;

/// How the changes of a copy that lies on the file system of `dir` are found.
///
/// # Errors
/// The file system does not say what it is.
pub fn method_on(dir: BorrowedFd<'_>) -> io::Result<DriftMethod> {
    let kind = u64::try_from(rustix::fs::fstatfs(dir)?.f_type).unwrap_or_default();
    Ok(if times_tell_of_changes(kind) { DriftMethod::Stat } else { DriftMethod::Rehash })
}

/// The copy as it was before the step.
#[derive(Debug)]
pub struct Baseline {
    entries: Entries,
    method: DriftMethod,
    offset: i128,
}

type Entries = BTreeMap<Vec<u8>, Was>;

#[derive(Debug)]
struct Was {
    marks: Marks,
    content: Content,
    below: Entries,
}

/// What is known of the bytes of an entry.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Content {
    /// The marks say it all.
    ByMarks,
    /// The sha256 of a file.
    Hashed([u8; 32]),
    /// A file that its owner may not read. It counts as changed.
    Unread,
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

    fn is_file(&self) -> bool {
        FileType::from_raw_mode(self.mode).is_file()
    }
}

impl Baseline {
    /// Looks at the copy, and waits until whatever happens to it afterwards has a later time.
    ///
    /// # Errors
    /// It cannot be read, or the clock stands still.
    pub fn take(tree: BorrowedFd<'_>) -> io::Result<Self> {
        Self::by(method_on(tree)?, tree)
    }

    /// The same by a method that the caller chooses: by stat data, or by hashing all.
    ///
    /// # Errors
    /// As [`Baseline::take`].
    pub fn by(method: DriftMethod, tree: BorrowedFd<'_>) -> io::Result<Self> {
        let (mut latest, offset) = ((0, 0), clock_offset());
        let entries = look(&copy::readable(tree)?, method, &mut latest)?;
        wait_until_after(latest)?;
        Ok(Self { entries, method, offset })
    }

    /// Moves what has changed since into `upper`, an empty directory on the same file system. For a
    /// tree that nobody uses any more.
    ///
    /// # Errors
    /// Something cannot be moved, the file system takes no whiteout, or the clock was set back
    /// meanwhile: then a change may have the time that the file had before.
    pub fn seal(&self, tree: BorrowedFd<'_>, upper: BorrowedFd<'_>) -> io::Result<()> {
        self.seal_for(None, tree, upper)
    }

    /// The same; new directories of ours become `owner`'s.
    pub(super) fn seal_for(&self, owner: Option<Owner>, tree: BorrowedFd<'_>, upper: BorrowedFd<'_>) -> io::Result<()> {
        if self.method == DriftMethod::Stat && was_set_back(self.offset, clock_offset()) {
            return Err(io::Error::other("the clock of the machine was set back during the step; run again"));
        }
        let top = rustix::fs::fstat(tree)?.st_mode;
        rustix::fs::fchmod(tree, copy::permissions(top) | Mode::RWXU)?;
        rustix::fs::fchmod(upper, copy::permissions(top) | Mode::RWXU)?;
        let there = There { at: Place::Top(upper), owner, mode: top };
        compare(&copy::readable(tree)?, &self.entries, &there)?;
        Ok(rustix::fs::fchmod(upper, copy::permissions(top))?)
    }
}

fn look(dir: &OwnedFd, method: DriftMethod, latest: &mut (i64, u64)) -> io::Result<Entries> {
    let mut entries = Entries::new();
    for name in copy::names(dir)? {
        let stat = rustix::fs::statat(dir, &name[..], AtFlags::SYMLINK_NOFOLLOW)?;
        let marks = Marks::of(&stat);
        *latest = (*latest).max(marks.changed);
        let below = if marks.is_dir() { look_below(dir, &name, method, latest)? } else { Entries::new() };
        let hashes = method != DriftMethod::Stat && marks.is_file();
        let content = if hashes { content_of(dir, &name)? } else { Content::ByMarks };
        entries.insert(name, Was { marks, content, below });
    }
    Ok(entries)
}

/// A directory that its owner may not read is empty: the copy was made without what is in it.
fn look_below(dir: &OwnedFd, name: &[u8], method: DriftMethod, latest: &mut (i64, u64)) -> io::Result<Entries> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    match rustix::fs::openat(dir, name, flags, Mode::empty()) {
        Ok(inner) => look(&inner, method, latest),
        Err(Errno::ACCESS) => Ok(Entries::new()),
        Err(errno) => Err(errno.into()),
    }
}

/// Hashes a regular file, to its end: nobody writes it now.
fn content_of(dir: &OwnedFd, name: &[u8]) -> io::Result<Content> {
    let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
    let file = match rustix::fs::openat(dir, name, flags, Mode::empty()) {
        Ok(file) => file,
        Err(Errno::ACCESS) => return Ok(Content::Unread),
        Err(errno) => return Err(errno.into()),
    };
    let (mut hasher, mut buffer) = (Sha256::new(), vec![0; CHUNK]);
    loop {
        match rustix::io::read(&file, &mut buffer) {
            Ok(0) => return Ok(Content::Hashed(hasher.finalize().into())),
            Ok(count) => hasher.update(&buffer[..count]),
            Err(Errno::INTR) => {}
            Err(errno) => return Err(errno.into()),
        }
    }
}

/// Whether an entry is what it was.
fn is_untouched(here: &OwnedFd, name: &[u8], was: &Was, now: &Marks) -> io::Result<bool> {
    Ok(was.marks == *now
        && match was.content {
            Content::ByMarks => true,
            Content::Unread => false,
            known @ Content::Hashed(_) => content_of(here, name)? == known,
        })
}

/// By how many nanoseconds the clock that can be set is ahead of the one that cannot. Whoever is
/// interrupted between reading the two reads them again.
fn clock_offset() -> i128 {
    let now = |clock| {
        let Timespec { tv_sec, tv_nsec } = rustix::time::clock_gettime(clock);
        i128::from(tv_sec) * 1_000_000_000 + i128::from(tv_nsec)
    };
    let mut offset = 0;
    for _ in 0..MOST_READINGS {
        let (before, set, after) = (now(ClockId::Boottime), now(ClockId::Realtime), now(ClockId::Boottime));
        offset = set - before;
        if after - before <= JITTER / 2 {
            break;
        }
    }
    offset
}

/// Whether the clock was set back between two looks.
fn was_set_back(before: i128, after: i128) -> bool {
    after < before - JITTER
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
            return Err(io::Error::other("the clock of the machine stopped or went back"));
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
            Some(was) if is_untouched(here, name, was, &now)? => {}
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_clock_that_was_set_back_is_noticed_and_one_that_was_set_forward_does_no_harm() {
        let second = 1_000_000_000;
        assert!(was_set_back(5 * second, 4 * second));
        assert!(!was_set_back(5 * second, 6 * second) && !was_set_back(5 * second, 5 * second - JITTER / 2));
        assert!(!was_set_back(clock_offset(), clock_offset()));
    }
}
