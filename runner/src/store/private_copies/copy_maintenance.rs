//! Limits the number, the age and the size of the private copies, and verifies them, while runs use them.

use std::fs::File;
use std::io;
use std::time::SystemTime;

use proctor_core::api::{CopyReport, CopyState};
use proctor_sandbox::Host;
use rustix::fs::{RenameFlags, renameat_with};

use super::copy_directory::LOCK_FILE;
use super::*;
use crate::store::freed_bytes::{disk_usage, remove_dir_counted};
use crate::store::gc_extent::GcExtent;

/// Maximum number of directories of copies (one for a repository's worktree, one for its commits), and the time
/// after which unused ones are removed.
const MAX_DIRECTORIES: usize = 64;
const MAX_UNUSED: Duration = Duration::from_secs(14 * 24 * 60 * 60);
/// Name of the file with the measured size of a directory of copies.
const SIZE_FILE: &str = "size";
/// Maximum size of the file with the measured size, in bytes.
const MAX_SIZE_FILE: u64 = 4 << 10;
/// Time for which the measured size of copies in use counts: reading a large tree takes longer than a short run.
const SIZE_LIFETIME: Duration = Duration::from_secs(60 * 60);
/// Maximum number of copies of a repository that are verified.
const MAX_VERIFIED: usize = 1_000;
/// Describes a copy whose files are missing.
const INCOMPLETE_COPY: &str = "the copy is incomplete";

/// Prefix of the name of a copy that was renamed for its removal.
const DISCARDED_PREFIX: &str = "old-";

/// A copy with a name under which no run finds it, locked until it is removed.
pub(super) struct DiscardedCopy {
    path: PathBuf,
    _held: File,
}

impl DiscardedCopy {
    /// Removes the copy. A later clean-up repeats a removal that fails.
    pub(super) fn remove(self, freed: &mut FreedItems) {
        remove_dir_counted(freed, &self.path);
    }
}

impl CopyDirectory {
    /// Renames a copy so that no later run finds it; `None` if a run holds it. The caller holds the lock of the
    /// repository.
    ///
    /// The rename comes before the removal: a run must not find a half-removed copy, since the record still names
    /// all of its files.
    pub(super) fn discard(&self, number: u64) -> Result<Option<DiscardedCopy>, StoreError> {
        let name = number.to_string();
        let Some(held) = hold_to_remove(&self.path.join(&name)) else { return Ok(None) };
        let discarded_name = format!("{DISCARDED_PREFIX}{name}-{:016x}", random_u64()?);
        renameat_with(&self.root, &name, &self.root, &discarded_name, RenameFlags::NOREPLACE)
            .map_err(StoreError::io("put aside", self.path.join(&name).display().to_string()))?;
        Ok(Some(DiscardedCopy { path: self.path.join(discarded_name), _held: held }))
    }

    /// Removes discarded copies whose removal was interrupted.
    pub(super) fn remove_discarded(&self, freed: &mut FreedItems) {
        let names = self.root.names().unwrap_or_default();
        for name in names.iter().filter(|name| name.starts_with(DISCARDED_PREFIX)) {
            let path = self.path.join(name);
            if let Some(held) = hold_to_remove(&path) {
                DiscardedCopy { path, _held: held }.remove(freed);
            }
        }
    }

    /// Removes the copies that `keep` does not include and no run holds.
    fn remove_excess(&self, keep: CopiesToKeep, freed: &mut FreedItems) -> Result<(), StoreError> {
        self.remove_discarded(freed);
        if keep.excess(self.numbers()?).is_empty() {
            return Ok(());
        }
        let Some(lock) = self.try_lock()? else {
            freed.in_use += keep.excess(self.numbers()?).len() as u64;
            return Ok(());
        };
        let mut discarded = Vec::new();
        for number in keep.excess(self.numbers()?) {
            match self.discard(number)? {
                Some(copy) => discarded.push(copy),
                None => freed.in_use += 1,
            }
        }
        // Runs do not wait for the removal.
        drop(lock);
        discarded.into_iter().for_each(|copy| copy.remove(freed));
        Ok(())
    }

    /// Removes the copies that `keep` does not include and no run holds, and the directory if it is then empty.
    fn sweep(&self, keep: CopiesToKeep, freed: &mut FreedItems) -> Result<(), StoreError> {
        self.remove_excess(keep, freed)?;
        if keep == CopiesToKeep::Nothing { self.remove_if_empty() } else { Ok(()) }
    }

    /// Compares a copy with its record, and removes it if it is damaged; `None` if the copy no longer exists.
    fn verify(&self, number: u64, owner: Option<MirrorOwner>) -> Result<Option<CopyReport>, StoreError> {
        let (directory, opened) = match self.hold_to_verify(number, owner)? {
            VerificationHold::Verifying(directory, opened) => (directory, *opened),
            VerificationHold::HeldByRun => return Ok(Some(self.copy_report(number, CopyState::Held, None))),
            VerificationHold::Gone => return Ok(None),
        };
        let compared = opened.and_then(|mirror| mirror.verify_all());
        // A run may have joined the copy; it keeps the copy.
        let lock = self.lock_without_touching()?;
        let problem = match compared {
            Ok(()) => {
                // The git directory has no record; removing the state makes the next run write it again.
                directory.remove(STATE_FILE)?;
                return Ok(Some(self.copy_report(number, CopyState::Sound, None)));
            }
            Err(MirrorError::Damaged { path, problem }) if path.is_empty() => problem.to_owned(),
            Err(MirrorError::Damaged { path, problem }) => format!("`{path}` {problem}"),
            Err(error) => {
                return Ok(Some(self.copy_report(number, CopyState::Unverified, Some(first_line(&error.to_string())))));
            }
        };
        drop(directory);
        let discarded = self.discard(number)?;
        drop(lock);
        let removed = discarded.is_some();
        discarded.into_iter().for_each(|copy| copy.remove(&mut FreedItems::default()));
        Ok(Some(CopyReport { removed, ..self.copy_report(number, CopyState::Damaged, Some(problem)) }))
    }

    /// Verifies each copy.
    fn verify_each(&self, owner: Option<MirrorOwner>, reports: &mut Vec<CopyReport>) -> Result<(), StoreError> {
        let mut last = 0;
        // A run can add a copy while an earlier one is being verified.
        for _ in 0..MAX_VERIFIED {
            let Some(number) = self.numbers()?.into_iter().find(|number| *number > last) else { break };
            reports.extend(self.verify(number, owner)?);
            last = number;
        }
        Ok(())
    }

    /// Opens a copy and holds it as a run does, so that no run changes it. Other runs continue: a run of the same
    /// tree joins this copy, and a run of another tree makes a new one.
    fn hold_to_verify(&self, number: u64, owner: Option<MirrorOwner>) -> Result<VerificationHold, StoreError> {
        let _lock = self.lock_without_touching()?;
        if !self.numbers()?.contains(&number) {
            return Ok(VerificationHold::Gone);
        }
        let directory = self.root.descend(&number.to_string())?;
        if !is_free(&directory)? {
            return Ok(VerificationHold::HeldByRun);
        }
        // Opening can write to the record, so it needs the exclusive lock.
        let opened = open_mirror(&directory, owner);
        flock(&directory, FlockOperation::NonBlockingLockShared).map_err(StoreError::io("lock", directory.name()))?;
        Ok(VerificationHold::Verifying(directory, Box::new(opened)))
    }

    fn copy_report(&self, number: u64, state: CopyState, problem: Option<String>) -> CopyReport {
        let copy = format!("{MIRRORS_DIR}/{}/{number}", self.path.file_name().unwrap_or_default().display());
        CopyReport { copy, state, problem, removed: false }
    }

    /// Removes the directory of a repository without copies, unless a run is using it.
    fn remove_if_empty(&self) -> Result<(), StoreError> {
        let root = Directory::open(&self.path)?;
        let failed = StoreError::io("remove", self.path.display().to_string());
        match flock(&root, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => {}
            Err(Errno::WOULDBLOCK) => return Ok(()),
            Err(errno) => return Err(failed(errno)),
        }
        root.remove_temporaries()?;
        if root.names()?.iter().any(|name| name != LOCK_FILE && name != SIZE_FILE) {
            return Ok(());
        }
        root.remove(SIZE_FILE)?;
        root.remove(LOCK_FILE)?;
        match rustix::fs::rmdir(&self.path) {
            Ok(()) | Err(Errno::NOENT) => Ok(()),
            Err(errno) => Err(failed(errno)),
        }
    }
}

/// The measured size of a directory of copies.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
struct MeasuredSize {
    /// The size in bytes on disk.
    bytes: u64,
    /// The number of the newest copy in the directory.
    newest: u64,
    /// The time of the last use before the measurement, since 1970.
    used: Duration,
    /// The time of the measurement, since 1970.
    measured: Duration,
}

impl MeasuredSize {
    /// Returns whether the measured size is still valid: no copy was used since, or the measurement is recent.
    fn holds(&self, newest: u64, used: Duration, now: Duration) -> bool {
        let age = now.checked_sub(self.measured);
        self.newest == newest && (self.used == used || age.is_some_and(|age| age < SIZE_LIFETIME))
    }
}

impl CopyDirectory {
    /// Returns the size of the copies on disk; a file with several links counts once. Copies that were used, but are the
    /// same, are measured again only after [`SIZE_LIFETIME`].
    fn size(&self, used: SystemTime, now: SystemTime) -> Result<u64, StoreError> {
        let since_epoch = |time: SystemTime| time.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        let (used, now) = (since_epoch(used), since_epoch(now));
        let newest = self.numbers()?.pop().unwrap_or_default();
        let stored = self.root.read(SIZE_FILE, MAX_SIZE_FILE)?;
        let stored: Option<MeasuredSize> = stored.and_then(|bytes| serde_json::from_slice(&bytes).ok());
        if let Some(stored) = stored.filter(|stored| stored.holds(newest, used, now)) {
            return Ok(stored.bytes);
        }
        let bytes = disk_usage(&self.path).unwrap_or_default();
        let size = MeasuredSize { bytes, newest, used, measured: now };
        // A lost measurement is repeated, so the file need not be durable.
        if let Ok(text) = serde_json::to_vec(&size)
            && let Err(error) = self.write_size(&text)
        {
            tracing::debug!(%error, path = %self.path.display(), "the size of private copies is not stored");
        }
        Ok(bytes)
    }

    /// Writes the file with the size. Other users can reach the directory under root, so the file is private. A torn file
    /// counts as absent.
    fn write_size(&self, text: &[u8]) -> Result<(), StoreError> {
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::TRUNC | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let failed = |error: io::Error| StoreError::Io { action: "write", path: SIZE_FILE.to_owned(), source: error };
        let file = rustix::fs::openat(&self.root, SIZE_FILE, flags, Mode::from_raw_mode(0o600));
        io::Write::write_all(&mut File::from(file.map_err(|errno| failed(errno.into()))?), text).map_err(failed)
    }
}

/// The state of a copy to verify.
enum VerificationHold {
    /// The copy is locked until the directory is closed. Contains the mirror, or the error from opening it.
    Verifying(Directory, Box<Result<Mirror, MirrorError>>),
    /// A run uses the copy.
    HeldByRun,
    /// The copy no longer exists.
    Gone,
}

/// Opens the mirror of a copy that no run holds.
fn open_mirror(directory: &Directory, owner: Option<MirrorOwner>) -> Result<Mirror, MirrorError> {
    let incomplete = || MirrorError::Damaged { path: String::new(), problem: INCOMPLETE_COPY };
    let own = directory.descend(OWN_DIR).map_err(|_| incomplete())?;
    let own =
        own.as_fd().try_clone_to_owned().map_err(|source| MirrorError::Io { path: OWN_DIR.to_owned(), source })?;
    Mirror::open(own, owner)
}

/// Returns a message without its hint.
fn first_line(message: &str) -> String {
    message.lines().next().unwrap_or_default().to_owned()
}

/// The copies of a repository to keep.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum CopiesToKeep {
    /// The newest one.
    Newest,
    /// None.
    Nothing,
}

impl CopiesToKeep {
    /// Returns the numbers of the copies to remove; `numbers` is sorted.
    fn excess(self, mut numbers: Vec<u64>) -> Vec<u64> {
        match self {
            Self::Newest => numbers.truncate(numbers.len().saturating_sub(1)),
            Self::Nothing => {}
        }
        numbers
    }
}

/// Compares each copy of `repository` with its record and removes damaged copies. Skips a copy that a run holds.
///
/// # Errors
/// The state directory cannot be read, or a run holds the lock of the copies for too long.
pub(crate) fn verify(state_path: &Path, repository: &Repository, host: &Host) -> Result<Vec<CopyReport>, StoreError> {
    let mut reports = Vec::new();
    for line in CopyKind::ALL {
        let key = line.directory_name(repository);
        let path = state_path.join(MIRRORS_DIR).join(&key);
        if path.is_dir() {
            let owner = host.is_root().then(|| owner_for(&key));
            if let Some(copies) = CopyDirectory::open_locked(Directory::open(&path)?, path)? {
                copies.verify_each(owner, &mut reports)?;
            }
        }
    }
    Ok(reports)
}

/// Locks a copy for its removal; `None` if it is in use.
fn hold_to_remove(path: &Path) -> Option<File> {
    let directory = File::open(path).ok()?;
    flock(&directory, FlockOperation::NonBlockingLockExclusive).ok()?;
    Some(directory)
}

/// Removes the copies of repositories that are unused for too long, and of the least recently used ones beyond the
/// maximum number or beyond `max_bytes` together. Of other repositories, keeps only the newest copy. With
/// [`GcExtent::All`], removes all copies. A copy that a run holds is kept.
///
/// # Errors
/// A directory in the state directory cannot be listed.
pub(crate) fn evict(
    mirrors: &Path,
    now: SystemTime,
    (max_bytes, extent): (u64, GcExtent),
    freed: &mut FreedItems,
) -> io::Result<()> {
    let entries = match fs::read_dir(mirrors) {
        Ok(entries) => entries,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        Err(error) => return Err(error),
    };
    let mut kept = Vec::new();
    for entry in entries {
        let path = entry?.path();
        let used = fs::metadata(path.join(LOCK_FILE)).and_then(|found| found.modified());
        kept.push((used.unwrap_or(SystemTime::UNIX_EPOCH), path));
    }
    // The most recently used copies come first, so that the sum of the sizes decides about the others.
    kept.sort_by(|one, other| other.cmp(one));
    let mut all_bytes = 0_u64;
    for (number, (used, path)) in kept.into_iter().enumerate() {
        let is_old = number >= MAX_DIRECTORIES || now.duration_since(used).unwrap_or_default() > MAX_UNUSED;
        let keep = if is_old || extent == GcExtent::All { CopiesToKeep::Nothing } else { CopiesToKeep::Newest };
        let swept = Directory::open(&path).and_then(|root| {
            let copies = CopyDirectory { root, path: path.clone() };
            copies.sweep(keep, freed)?;
            if keep == CopiesToKeep::Nothing {
                return Ok(());
            }
            all_bytes = all_bytes.saturating_add(copies.size(used, now)?);
            if all_bytes > max_bytes { copies.sweep(CopiesToKeep::Nothing, freed) } else { Ok(()) }
        });
        if let Err(error) = swept {
            tracing::debug!(%error, path = %path.display(), "a private copy could not be removed");
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    struct CopiesFixture(tempfile::TempDir);

    impl CopiesFixture {
        fn new() -> Self {
            Self(tempfile::tempdir().expect("temp"))
        }

        /// Creates copies of one repository.
        fn copies(&self, repository: &str, numbers: &[u64]) -> CopyDirectory {
            let path = self.0.path().join(repository);
            for number in numbers {
                fs::create_dir_all(path.join(number.to_string()).join(OWN_DIR)).expect("makes");
            }
            let copies = CopyDirectory { root: Directory::open(&path).expect("opens"), path };
            drop(copies.lock().expect("locks"));
            copies
        }

        fn evict(&self, now: SystemTime, extent: GcExtent) -> FreedItems {
            self.evict_beyond(u64::MAX, now, extent)
        }

        fn evict_beyond(&self, max_bytes: u64, now: SystemTime, extent: GcExtent) -> FreedItems {
            let mut freed = FreedItems::default();
            evict(self.0.path(), now, (max_bytes, extent), &mut freed).expect("evicts");
            freed
        }

        /// Writes a file of this size to a copy.
        #[expect(clippy::disallowed_methods, reason = "a test's own files need not survive a crash")]
        fn fill(copies: &CopyDirectory, number: u64, size: usize) -> PathBuf {
            let path = copies.path.join(number.to_string()).join(OWN_DIR).join("file");
            fs::write(&path, vec![1; size]).expect("writes");
            path
        }
    }

    /// Sets the time of the last use of copies.
    fn set_used(copies: &CopyDirectory, used: SystemTime) {
        let lock = File::options().write(true).open(copies.path.join(LOCK_FILE)).expect("opens");
        lock.set_modified(used).expect("sets the time");
    }

    fn now() -> SystemTime {
        crate::clock::Clock::system().system_time()
    }

    #[test]
    fn removes_replaced_copies_and_keeps_the_newest() {
        let fixture = CopiesFixture::new();
        let copies = fixture.copies("a", &[1, 2, 10]);
        assert_eq!(fixture.evict(now(), GcExtent::Excess).number, 2);
        assert_eq!(copies.numbers().expect("lists"), [10]);
        assert_eq!(fixture.evict(now(), GcExtent::Excess), FreedItems::default());
        assert_eq!(fixture.evict(now() + MAX_UNUSED * 2, GcExtent::Excess).number, 1);
        assert!(!copies.path.exists(), "nothing is left of the repository");
    }

    #[test]
    fn removes_least_recently_used_copies_beyond_the_size() {
        const SIZE: usize = 1 << 20;
        let fixture = CopiesFixture::new();
        let start = now();
        let all: Vec<CopyDirectory> = (0..3)
            .map(|age: u64| {
                let copies = fixture.copies(&format!("age-{age}"), &[1]);
                CopiesFixture::fill(&copies, 1, SIZE);
                set_used(&copies, start - Duration::from_secs(age));
                copies
            })
            .collect();
        let left = || all.iter().map(|copies| copies.path.exists()).collect::<Vec<bool>>();
        fixture.evict_beyond(4 << 20, start, GcExtent::Excess);
        assert_eq!(left(), [true, true, true]);
        assert_eq!(fixture.evict_beyond(5 << 19, start, GcExtent::Excess).number, 1);
        assert_eq!(left(), [true, true, false]);
        // A run holds the older copy.
        let held = all[1].root.descend("1").expect("opens");
        flock(&held, FlockOperation::NonBlockingLockShared).expect("locks");
        let freed = fixture.evict_beyond(3 << 19, start, GcExtent::Excess);
        assert_eq!((freed.number, freed.in_use, left()), (0, 1, vec![true, true, false]));
        drop(held);
        fixture.evict_beyond(1, start, GcExtent::Excess);
        assert_eq!(left(), [false, false, false]);
    }

    #[test]
    fn measures_allocated_blocks_and_links_once() {
        const SIZE: u64 = 1 << 20;
        let fixture = CopiesFixture::new();
        let copies = fixture.copies("a", &[1, 2]);
        let file = CopiesFixture::fill(&copies, 1, 1 << 20);
        fs::hard_link(&file, copies.path.join("2").join(OWN_DIR).join("file")).expect("links");
        let sparse = File::options().create_new(true).write(true).open(file.with_file_name("sparse")).expect("makes");
        sparse.set_len(SIZE * 100).expect("extends");
        let start = now();
        let size = copies.size(start, start).expect("measures");
        assert!((SIZE..SIZE * 3 / 2).contains(&size), "{size}");
        // A later use counts only after a while.
        CopiesFixture::fill(&copies, 2, 4 << 20);
        let later = start + Duration::from_secs(60);
        assert_eq!(copies.size(later, later).expect("reads"), size);
        assert_eq!(copies.size(start, later + SIZE_LIFETIME * 2).expect("reads"), size, "unused since");
        assert!(copies.size(later, later + SIZE_LIFETIME * 2).expect("measures") > size);
        // A new copy is measured at once.
        let stored = copies.size(later, later).expect("reads");
        fs::create_dir(copies.path.join("3")).expect("makes");
        fs::remove_file(file).expect("removes");
        fs::remove_file(copies.path.join("2").join(OWN_DIR).join("file")).expect("removes");
        assert!(copies.size(later, later).expect("measures") < stored);
    }

    #[test]
    fn leaves_copies_that_are_held_or_being_prepared() {
        let fixture = CopiesFixture::new();
        let copies = fixture.copies("a", &[1, 2]);
        let held = copies.root.descend("1").expect("opens");
        flock(&held, FlockOperation::NonBlockingLockShared).expect("locks");
        let freed = fixture.evict(now(), GcExtent::All);
        assert_eq!((freed.number, freed.in_use), (1, 1));
        assert_eq!(copies.numbers().expect("lists"), [1]);
        drop(held);
        let lock = copies.lock().expect("locks");
        assert_eq!(fixture.evict(now(), GcExtent::All), FreedItems { in_use: 1, ..FreedItems::default() });
        drop(lock);
        assert_eq!(fixture.evict(now(), GcExtent::All).number, 1);
    }

    #[test]
    fn keeps_the_directory_of_a_repository_that_is_in_use() {
        let fixture = CopiesFixture::new();
        let copies = fixture.copies("a", &[1]);
        let open = || CopyDirectory::open_locked(Directory::open(&copies.path).expect("opens"), copies.path.clone());
        let run = open().expect("locks").expect("it is there");
        assert_eq!(fixture.evict(now(), GcExtent::All).number, 1);
        assert!(copies.path.join(LOCK_FILE).exists(), "a run is about to make a copy here");
        drop(run);
        let late = Directory::open(&copies.path).expect("opens");
        fixture.evict(now(), GcExtent::All);
        assert!(!copies.path.exists());
        assert!(CopyDirectory::open_locked(late, copies.path).expect("locks").is_none(), "it was removed meanwhile");
    }

    #[test]
    fn allows_runs_while_copy_is_verified() {
        let fixture = CopiesFixture::new();
        let copies = fixture.copies("a", &[1]);
        let VerificationHold::Verifying(verified, _) = copies.hold_to_verify(1, None).expect("holds") else {
            panic!("not free")
        };
        assert!(copies.try_lock().expect("asks").is_some(), "the lock of the repository is free");
        let of_run = copies.root.descend("1").expect("opens");
        assert!(!is_free(&of_run).expect("asks"), "no run changes the copy");
        flock(&of_run, FlockOperation::NonBlockingLockShared).expect("a run of the same tree joins");
        drop(verified);
        assert!(matches!(copies.hold_to_verify(1, None).expect("asks"), VerificationHold::HeldByRun));
    }

    #[test]
    fn finishes_interrupted_removal() {
        let fixture = CopiesFixture::new();
        let copies = fixture.copies("a", &[3]);
        let discarded = copies.discard(3).expect("renames").expect("not held");
        // The state is the same as after a process was killed here.
        let path = discarded.path.clone();
        assert_eq!((copies.numbers().expect("lists"), path.exists()), (Vec::<u64>::new(), true));
        fixture.evict(now(), GcExtent::Excess);
        assert!(path.exists(), "it is being removed by another process");
        drop(discarded);
        fixture.evict(now(), GcExtent::Excess);
        assert!(!path.exists());
    }

    #[test]
    fn reports_a_copy_without_files_as_damaged() {
        let fixture = CopiesFixture::new();
        let copies = fixture.copies("a", &[1]);
        fs::remove_dir(copies.path.join("1").join(OWN_DIR)).expect("removes");
        let report = copies.verify(1, None).expect("verifies").expect("a copy");
        assert_eq!(
            (report.state, report.problem.as_deref(), report.removed),
            (CopyState::Damaged, Some(INCOMPLETE_COPY), true)
        );
        assert_eq!(copies.verify(1, None).expect("verifies"), None);
    }
}
