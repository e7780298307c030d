//! Moves a step's changes from its copy of the tree to the upper directory of its layer, in the format of overlayfs,
//! so that all layers have one format.
//!
//! A file counts as unchanged if its metadata is the same as when the copy was made: inode number, size, mode,
//! modification time, and change time, which no program can set. If the file system's times do not reflect every
//! change, the content must be the same too.

use std::cell::OnceCell;
use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::{Duration, Instant};

use proctor_core::model::drift::{DriftMethod, ctime_detects_all_changes};
use rustix::fs::{AtFlags, FileType, Gid, Mode, OFlags, RawMode, Stat, Uid, XattrFlags};
use rustix::io::Errno;
use rustix::time::{ClockId, Timespec};
use sha2::{Digest as _, Sha256};

use super::mounts::FileOwner;
use super::tree_copier::{self, OPAQUE};

/// Timeout for the kernel's clock to advance.
const CLOCK_TIMEOUT: Duration = Duration::from_secs(3);
/// The last nanosecond of a second, for file systems that store whole seconds only.
const LAST_NANOSECOND: u64 = 999_999_999;

/// The block size for hashing a file, in bytes.
const CHUNK: usize = 128 << 10;
/// The difference of two clock readings, in nanoseconds, that does not count as a change of the clock.
const CLOCK_JITTER: i128 = 10_000_000;
/// The largest number of attempts to read both clocks without an interruption in between.
const MAX_CLOCK_READINGS: usize = 64;

/// Returns the method to find the changes of a copy on the file system of `dir`.
///
/// # Errors
/// The type of the file system cannot be read.
pub fn drift_method_for(dir: BorrowedFd<'_>) -> io::Result<DriftMethod> {
    let kind = u64::try_from(rustix::fs::fstatfs(dir)?.f_type).unwrap_or_default();
    Ok(if ctime_detects_all_changes(kind) { DriftMethod::Stat } else { DriftMethod::Rehash })
}

/// The state of the copy before the step.
#[derive(Debug)]
pub struct CopyBaseline {
    entries: BaselineEntries,
    method: DriftMethod,
    offset: i128,
}

type BaselineEntries = BTreeMap<Vec<u8>, BaselineEntry>;

#[derive(Debug)]
struct BaselineEntry {
    stat: ChangeStat,
    content: KnownContent,
    below: BaselineEntries,
}

/// The known content of an entry.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum KnownContent {
    /// The metadata suffices.
    StatOnly,
    /// The sha256 of a file.
    Hashed([u8; 32]),
    /// A file that its owner may not read. It counts as changed.
    Unreadable,
}

/// The metadata in which a change is visible.
#[derive(Debug, Clone, PartialEq, Eq)]
struct ChangeStat {
    inode: u64,
    size: i64,
    mode: RawMode,
    modified: (i64, u64),
    changed: (i64, u64),
}

impl ChangeStat {
    fn from_stat(stat: &Stat) -> Self {
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

impl CopyBaseline {
    /// Records the state of the copy, and waits until any later change has a later timestamp.
    ///
    /// # Errors
    /// The copy cannot be read, or the clock does not advance.
    pub fn record(tree: BorrowedFd<'_>) -> io::Result<Self> {
        Self::record_with(drift_method_for(tree)?, tree)
    }

    /// Records the state by a method of the caller's choice: by stat data, or by hashing all files.
    ///
    /// # Errors
    /// The errors of [`CopyBaseline::take`].
    pub fn record_with(method: DriftMethod, tree: BorrowedFd<'_>) -> io::Result<Self> {
        let (mut latest, offset) = ((0, 0), clock_offset());
        let entries = scan(&tree_copier::reopen_readable(tree)?, method, &mut latest)?;
        wait_for_clock_after(latest)?;
        Ok(Self { entries, method, offset })
    }

    /// Moves the changes since the baseline was taken into `upper`, an empty directory on the same file system. No
    /// process may still use the tree.
    ///
    /// # Errors
    /// An entry cannot be moved, the file system supports no whiteouts, or the clock was set back in the meantime, in
    /// which case a changed file may have its former timestamp.
    pub fn seal(&self, tree: BorrowedFd<'_>, upper: BorrowedFd<'_>) -> io::Result<()> {
        self.seal_for(None, tree, upper)
    }

    /// Does the same, and makes `owner` the owner of new directories in `upper`.
    pub(super) fn seal_for(
        &self,
        owner: Option<FileOwner>,
        tree: BorrowedFd<'_>,
        upper: BorrowedFd<'_>,
    ) -> io::Result<()> {
        if self.method == DriftMethod::Stat && was_set_back(self.offset, clock_offset()) {
            return Err(io::Error::other("the clock of the machine was set back during the step; run again"));
        }
        let top = rustix::fs::fstat(tree)?.st_mode;
        rustix::fs::fchmod(tree, tree_copier::permission_bits(top) | Mode::RWXU)?;
        rustix::fs::fchmod(upper, tree_copier::permission_bits(top) | Mode::RWXU)?;
        let there = TargetDir { position: TargetPosition::Top(upper), owner, mode: top };
        compare(&tree_copier::reopen_readable(tree)?, &self.entries, &there)?;
        Ok(rustix::fs::fchmod(upper, tree_copier::permission_bits(top))?)
    }
}

fn scan(dir: &OwnedFd, method: DriftMethod, latest: &mut (i64, u64)) -> io::Result<BaselineEntries> {
    let mut entries = BaselineEntries::new();
    for name in tree_copier::entry_names(dir)? {
        let stat = rustix::fs::statat(dir, &name[..], AtFlags::SYMLINK_NOFOLLOW)?;
        let marks = ChangeStat::from_stat(&stat);
        *latest = (*latest).max(marks.changed);
        let below = if marks.is_dir() { scan_directory(dir, &name, method, latest)? } else { BaselineEntries::new() };
        let hashes = method != DriftMethod::Stat && marks.is_file();
        let content = if hashes { hash_content(dir, &name)? } else { KnownContent::StatOnly };
        entries.insert(name, BaselineEntry { stat: marks, content, below });
    }
    Ok(entries)
}

/// Records the content of a directory. One that its owner may not read counts as empty, since the copy was made
/// without its content.
fn scan_directory(
    dir: &OwnedFd,
    name: &[u8],
    method: DriftMethod,
    latest: &mut (i64, u64),
) -> io::Result<BaselineEntries> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    match rustix::fs::openat(dir, name, flags, Mode::empty()) {
        Ok(inner) => scan(&inner, method, latest),
        Err(Errno::ACCESS) => Ok(BaselineEntries::new()),
        Err(errno) => Err(errno.into()),
    }
}

/// Hashes a regular file completely. No process writes it at this time.
fn hash_content(dir: &OwnedFd, name: &[u8]) -> io::Result<KnownContent> {
    let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
    let file = match rustix::fs::openat(dir, name, flags, Mode::empty()) {
        Ok(file) => file,
        Err(Errno::ACCESS) => return Ok(KnownContent::Unreadable),
        Err(errno) => return Err(errno.into()),
    };
    let (mut hasher, mut buffer) = (Sha256::new(), vec![0; CHUNK]);
    loop {
        match rustix::io::read(&file, &mut buffer) {
            Ok(0) => return Ok(KnownContent::Hashed(hasher.finalize().into())),
            Ok(count) => hasher.update(&buffer[..count]),
            Err(Errno::INTR) => {}
            Err(errno) => return Err(errno.into()),
        }
    }
}

/// Returns whether an entry is unchanged.
fn is_unchanged(here: &OwnedFd, name: &[u8], was: &BaselineEntry, now: &ChangeStat) -> io::Result<bool> {
    Ok(was.stat == *now
        && match was.content {
            KnownContent::StatOnly => true,
            KnownContent::Unreadable => false,
            known @ KnownContent::Hashed(_) => hash_content(here, name)? == known,
        })
}

/// Returns the difference between the settable clock and the clock that cannot be set, in nanoseconds. Repeats the
/// readings if they took too long, which means that this thread was interrupted.
fn clock_offset() -> i128 {
    let now = |clock| {
        let Timespec { tv_sec, tv_nsec } = rustix::time::clock_gettime(clock);
        i128::from(tv_sec) * 1_000_000_000 + i128::from(tv_nsec)
    };
    let mut offset = 0;
    for _ in 0..MAX_CLOCK_READINGS {
        let (before, set, after) = (now(ClockId::Boottime), now(ClockId::Realtime), now(ClockId::Boottime));
        offset = set - before;
        if after - before <= CLOCK_JITTER / 2 {
            break;
        }
    }
    offset
}

/// Returns whether the clock was set back between two readings.
fn was_set_back(before: i128, after: i128) -> bool {
    after < before - CLOCK_JITTER
}

/// Waits until the clock for timestamps is later than `latest`. That clock advances every few milliseconds, and two
/// changes within one tick look the same.
fn wait_for_clock_after(latest: (i64, u64)) -> io::Result<()> {
    let latest = if latest.1 == 0 { (latest.0, LAST_NANOSECOND) } else { latest };
    let began = Instant::now();
    loop {
        let now = rustix::time::clock_gettime(ClockId::RealtimeCoarse);
        if (now.tv_sec, now.tv_nsec.cast_unsigned()) > latest {
            return Ok(());
        }
        if began.elapsed() > CLOCK_TIMEOUT {
            return Err(io::Error::other("the clock of the machine stopped or went back"));
        }
        std::thread::yield_now();
    }
}

/// A directory in the upper directory. It is created when the first entry is added to it.
struct TargetDir<'a> {
    position: TargetPosition<'a>,
    owner: Option<FileOwner>,
    mode: RawMode,
}

enum TargetPosition<'a> {
    Top(BorrowedFd<'a>),
    Below { parent: &'a TargetDir<'a>, name: &'a [u8], made: OnceCell<OwnedFd> },
}

impl TargetDir<'_> {
    fn open(&self) -> io::Result<BorrowedFd<'_>> {
        let (parent, name, made) = match &self.position {
            TargetPosition::Top(upper) => return Ok(*upper),
            TargetPosition::Below { parent, name, made } => (parent, *name, made),
        };
        if let Some(made) = made.get() {
            return Ok(made.as_fd());
        }
        let dir = parent.open()?;
        rustix::fs::mkdirat(dir, name, Mode::RWXU)?;
        let opened = tree_copier::open_writable(dir, name)?;
        Ok(made.get_or_init(|| opened).as_fd())
    }

    /// Sets owner and mode of the directory, if it was created.
    fn finish(&self) -> io::Result<()> {
        let TargetPosition::Below { made, .. } = &self.position else { return Ok(()) };
        let Some(made) = made.get() else { return Ok(()) };
        if let Some(FileOwner { uid, gid }) = self.owner {
            rustix::fs::fchown(made, Some(Uid::from_raw(uid)), Some(Gid::from_raw(gid)))?;
        }
        Ok(rustix::fs::fchmod(made, tree_copier::permission_bits(self.mode))?)
    }

    /// Moves an entry of the copy with all its contents into this directory.
    fn move_in(&self, from: &OwnedFd, name: &[u8]) -> io::Result<()> {
        let to = self.open()?;
        match rustix::fs::renameat(from, name, to, name) {
            // A directory without write permission cannot be moved, since its `..` entry changes.
            Err(Errno::ACCESS) => {
                let mode = rustix::fs::statat(from, name, AtFlags::SYMLINK_NOFOLLOW)?.st_mode;
                drop(tree_copier::open_writable(from.as_fd(), name)?);
                rustix::fs::renameat(from, name, to, name)?;
                Ok(rustix::fs::chmodat(to, name, tree_copier::permission_bits(mode), AtFlags::empty())?)
            }
            other => Ok(other?),
        }
    }

    /// Marks the entry of the lower layer as removed, by the only device that any user may create.
    fn add_whiteout(&self, name: &[u8]) -> io::Result<()> {
        Ok(rustix::fs::mknodat(self.open()?, name, FileType::CharacterDevice, Mode::empty(), 0)?)
    }

    /// Marks a directory that replaces another entry. On a file system without such attributes the mark is left out:
    /// the replaced entry was not a directory, so no content needs hiding.
    fn mark_opaque(&self, name: &[u8]) -> io::Result<()> {
        let dir = tree_copier::open_writable(self.open()?, name)?;
        match rustix::fs::fsetxattr(&dir, OPAQUE, b"y", XattrFlags::empty()) {
            Ok(()) | Err(Errno::NOTSUP | Errno::PERM) => Ok(()),
            Err(errno) => Err(errno.into()),
        }
    }
}

fn compare(here: &OwnedFd, was: &BaselineEntries, there: &TargetDir<'_>) -> io::Result<()> {
    let names: BTreeSet<Vec<u8>> = tree_copier::entry_names(here)?.into_iter().collect();
    for name in &names {
        let now = ChangeStat::from_stat(&rustix::fs::statat(here, &name[..], AtFlags::SYMLINK_NOFOLLOW)?);
        match was.get(name) {
            None => there.move_in(here, name)?,
            Some(was) if was.stat.is_dir() && now.is_dir() => compare_directory(here, name, (was, &now), there)?,
            Some(was) if is_unchanged(here, name, was, &now)? => {}
            Some(_) => {
                there.move_in(here, name)?;
                if now.is_dir() {
                    there.mark_opaque(name)?;
                    restore_mode(there, name, now.mode)?;
                }
            }
        }
    }
    was.keys().filter(|name| !names.contains(*name)).try_for_each(|name| there.add_whiteout(name))
}

fn restore_mode(there: &TargetDir<'_>, name: &[u8], mode: RawMode) -> io::Result<()> {
    Ok(rustix::fs::chmodat(there.open()?, name, tree_copier::permission_bits(mode), AtFlags::empty())?)
}

fn compare_directory(
    here: &OwnedFd,
    name: &[u8],
    (was, now): (&BaselineEntry, &ChangeStat),
    there: &TargetDir<'_>,
) -> io::Result<()> {
    let inner = tree_copier::open_writable(here.as_fd(), name)?;
    let below = TargetDir {
        position: TargetPosition::Below { parent: there, name, made: OnceCell::new() },
        owner: there.owner,
        mode: now.mode,
    };
    if was.stat.mode != now.mode {
        below.open()?;
    }
    compare(&inner, &was.below, &below)?;
    below.finish()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn detects_only_clocks_set_back() {
        let second = 1_000_000_000;
        assert!(was_set_back(5 * second, 4 * second));
        assert!(!was_set_back(5 * second, 6 * second) && !was_set_back(5 * second, 5 * second - CLOCK_JITTER / 2));
        assert!(!was_set_back(clock_offset(), clock_offset()));
    }
}
