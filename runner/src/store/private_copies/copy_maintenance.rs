//! Limits and verifies the private copies while runs use them.

use std::fs::File;
use std::io;
use std::time::SystemTime;

use proctor_core::api::{CopyReport, CopyState};
use proctor_sandbox::Host;
use rustix::fs::{RenameFlags, renameat_with};

use super::copy_directory::LOCK_FILE;
use super::*;
use crate::store::freed_bytes::remove_dir_counted;
use crate::store::gc_extent::GcExtent;

/// Maximum number of directories of copies (one for a repository's worktree, one for its commits), and the time
/// after which unused ones are removed.
const MAX_DIRECTORIES: usize = 64;
const MAX_UNUSED: Duration = Duration::from_secs(14 * 24 * 60 * 60);
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
    pub(super) fn remove(self, freed: &mut Freed) {
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
    pub(super) fn remove_discarded(&self, freed: &mut Freed) {
        let names = self.root.names().unwrap_or_default();
        for name in names.iter().filter(|name| name.starts_with(DISCARDED_PREFIX)) {
            let path = self.path.join(name);
            if let Some(held) = hold_to_remove(&path) {
                DiscardedCopy { path, _held: held }.remove(freed);
            }
        }
    }

    /// Removes the copies that `keep` does not include and no run holds.
    fn remove_excess(&self, keep: CopiesToKeep, freed: &mut Freed) -> Result<(), StoreError> {
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
        discarded.into_iter().for_each(|copy| copy.remove(&mut Freed::default()));
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
        if root.names()?.iter().any(|name| name != LOCK_FILE) {
            return Ok(());
        }
        root.remove(LOCK_FILE)?;
        match rustix::fs::rmdir(&self.path) {
            Ok(()) | Err(Errno::NOENT) => Ok(()),
            Err(errno) => Err(failed(errno)),
        }
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
/// maximum number. Of other repositories, keeps only the newest copy. With [`GcExtent::All`], removes all copies. A
/// copy that a run holds is kept.
///
/// # Errors
/// A directory in the state directory cannot be listed.
pub(crate) fn evict(mirrors: &Path, now: SystemTime, extent: GcExtent, freed: &mut Freed) -> io::Result<()> {
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
    kept.sort();
    let excess = kept.len().saturating_sub(MAX_DIRECTORIES);
    for (number, (used, path)) in kept.into_iter().enumerate() {
        let is_old = number < excess || now.duration_since(used).unwrap_or_default() > MAX_UNUSED;
        let keep = if is_old || extent == GcExtent::All { CopiesToKeep::Nothing } else { CopiesToKeep::Newest };
        let swept = Directory::open(&path).and_then(|root| {
            let copies = CopyDirectory { root, path: path.clone() };
            copies.remove_excess(keep, freed)?;
            if keep == CopiesToKeep::Nothing { copies.remove_if_empty() } else { Ok(()) }
        });
        if let Err(error) = swept {
            tracing::debug!(%error, path = %path.display(), "a private copy stays");
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

        fn evict(&self, now: SystemTime, extent: GcExtent) -> Freed {
            let mut freed = Freed::default();
            evict(self.0.path(), now, extent, &mut freed).expect("evicts");
            freed
        }
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
        assert_eq!(fixture.evict(now(), GcExtent::Excess), Freed::default());
        assert_eq!(fixture.evict(now() + MAX_UNUSED * 2, GcExtent::Excess).number, 1);
        assert!(!copies.path.exists(), "nothing is left of the repository");
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
        assert_eq!(fixture.evict(now(), GcExtent::All), Freed { in_use: 1, ..Freed::default() });
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
