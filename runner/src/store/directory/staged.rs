//! Stages files before they are renamed to their final names, so that several of them can be synced concurrently.

use std::fs::File;
use std::io::Write as _;
use std::thread::{Builder, ScopedJoinHandle, scope};

use rustix::fs::{self, Advice, OFlags};

use super::Directory;
use super::temporary_file::{TemporaryEntry, TemporaryFile};
use crate::store::StoreError;

impl Directory {
    /// Writes a file for the name `name` without syncing it. [`sync_all`] syncs several files concurrently.
    ///
    /// # Errors
    /// `name` is a symlink, or a system call fails.
    pub(crate) fn stage(&self, name: &str, bytes: &[u8]) -> Result<StagedFile, StoreError> {
        let old_mode = self.replaced_mode(name)?;
        let temp = self.create_temporary(name)?;
        if let Some(mode) = old_mode {
            fs::fchmod(&temp.file, mode).map_err(StoreError::io("set the mode of", self.path_of(name)))?;
        }
        self.write_staged(temp, name, bytes)
    }

    /// Writes a new file like [`Directory::stage`], but with its final name. The caller writes to a directory in which
    /// nobody looks for files yet.
    ///
    /// # Errors
    /// `name` exists, or a system call fails.
    pub(crate) fn stage_with_final_name(&self, name: &str, bytes: &[u8]) -> Result<StagedFile, StoreError> {
        self.write_staged(self.create_new(name.to_owned(), OFlags::WRONLY)?, name, bytes)
    }

    fn write_staged(&self, mut temp: TemporaryFile, name: &str, bytes: &[u8]) -> Result<StagedFile, StoreError> {
        let written = temp.file.write_all(bytes);
        written.map_err(|source| StoreError::Io { action: "write", path: self.path_of(name), source })?;
        Ok(StagedFile { temp, name: name.to_owned(), target_dir: self.clone() })
    }

    /// Stages a file like [`Directory::stage`], but keeps it in `aside`, a directory of the same file system, until
    /// it is published. A kill leaves the temporary file there; the caller picks a directory in which it does no
    /// harm.
    ///
    /// # Errors
    /// Same as [`Directory::stage`].
    pub(crate) fn stage_in(&self, aside: &Self, name: &str, bytes: &[u8]) -> Result<StagedFile, StoreError> {
        let old_mode = self.replaced_mode(name)?;
        let staged = aside.stage(name, bytes)?;
        if let Some(mode) = old_mode {
            fs::fchmod(&staged.temp.file, mode).map_err(StoreError::io("set the mode of", self.path_of(name)))?;
        }
        Ok(StagedFile { target_dir: self.clone(), ..staged })
    }

    /// Writes `bytes` to the file `name` atomically, but not durably: after a crash of the machine, it may be empty
    /// or the old one.
    ///
    /// # Errors
    /// `name` is a symlink, or a system call fails.
    pub(crate) fn write_unsynced(&self, name: &str, bytes: &[u8]) -> Result<(), StoreError> {
        self.stage(name, bytes)?.into_unsynced().publish()
    }
}

/// A written file that is not published yet. It is removed on drop.
#[derive(Debug)]
pub(crate) struct StagedFile {
    temp: TemporaryFile,
    name: String,
    /// The directory in which the file is published.
    target_dir: Directory,
}

/// A staged file whose content is durable; it holds no open descriptor. It is removed on drop unless it is
/// published.
#[derive(Debug)]
pub(crate) struct DurableFile {
    entry: TemporaryEntry,
    name: String,
    target_dir: Directory,
}

/// A file with its final name, whose content is not durable yet.
#[derive(Debug)]
pub(crate) struct RenamedFile {
    file: File,
    path: String,
}

impl StagedFile {
    /// Returns whether the file was created with its final name.
    pub(crate) fn has_final_name(&self) -> bool {
        self.temp.entry.is_at(&self.target_dir, &self.name)
    }

    /// Makes the content durable, but not the name.
    ///
    /// # Errors
    /// A system call fails; the file is removed.
    pub(crate) fn into_durable(self) -> Result<DurableFile, StoreError> {
        SyncTarget::Staged(&self).sync().map(|()| self.into_unsynced())
    }

    /// Renames the file to its final name before its content is durable. After a crash of the machine, the file may have
    /// any content, so nothing may refer to it until it is synced.
    ///
    /// # Errors
    /// A system call fails; the file is removed.
    pub(crate) fn rename_unsynced(self) -> Result<RenamedFile, StoreError> {
        let path = self.target_dir.path_of(&self.name);
        self.temp.entry.move_to(&self.target_dir, &self.name)?;
        Ok(RenamedFile { file: self.temp.file, path })
    }

    /// Returns the file without its descriptor. The caller has synced it, or does not need it to be durable.
    pub(crate) fn into_unsynced(self) -> DurableFile {
        DurableFile { entry: self.temp.entry, name: self.name, target_dir: self.target_dir }
    }
}

impl DurableFile {
    /// Renames the file to its final name. The name is durable once its directory is synced.
    ///
    /// # Errors
    /// A system call fails; the file is removed.
    pub(crate) fn publish(self) -> Result<(), StoreError> {
        self.entry.move_to(&self.target_dir, &self.name)
    }
}

/// Maximum number of staged files: each holds a descriptor until it is synced.
pub(crate) const MAX_STAGED: usize = 32;
/// Maximum number of concurrent syncs.
const MAX_CONCURRENT_SYNCS: usize = 4;

/// A file or directory to sync.
#[derive(Debug, Clone, Copy)]
pub(crate) enum SyncTarget<'a> {
    /// The content of a staged file.
    Staged(&'a StagedFile),
    /// The content of a file that was renamed already.
    Renamed(&'a RenamedFile),
    /// The names in a directory.
    Names(&'a Directory),
}

impl SyncTarget<'_> {
    /// Lets the kernel start to write the content of a file, without waiting for it: Linux does so on this advice.
    fn start_writing(self) {
        let file = match self {
            Self::Staged(file) => &file.temp.file,
            Self::Renamed(file) => &file.file,
            Self::Names(_) => return,
        };
        // Without the advice, the sync writes the content.
        let _ = fs::fadvise(file, 0, None, Advice::DontNeed);
    }

    fn sync(self) -> Result<(), StoreError> {
        match self {
            Self::Staged(file) => sync_file(&file.temp.file, || file.temp.entry.directory.path_of(&file.name)),
            Self::Renamed(file) => sync_file(&file.file, || file.path.clone()),
            Self::Names(directory) => directory.sync(),
        }
    }
}

fn sync_file(file: &File, path: impl FnOnce() -> String) -> Result<(), StoreError> {
    file.sync_all().map_err(|source| StoreError::Io { action: "write", path: path(), source })
}

/// Syncs all targets. The disk writes all of them at once, and the syncs run concurrently, which takes little more time
/// than a few of them.
///
/// # Errors
/// A sync fails; returns the first of the errors.
pub(crate) fn sync_all(targets: &[SyncTarget<'_>]) -> Result<(), StoreError> {
    if targets.len() > 1 {
        targets.iter().for_each(|target| target.start_writing());
    }
    let workers = targets.len().min(MAX_CONCURRENT_SYNCS);
    let run_jobs = |worker: usize| targets.iter().skip(worker).step_by(workers).try_for_each(|target| target.sync());
    scope(|scope| {
        // This thread does the work of threads that could not be started.
        let others: Vec<_> = (1..workers)
            .map(|worker| (worker, Builder::new().spawn_scoped(scope, move || run_jobs(worker)).ok()))
            .collect();
        let own = if targets.is_empty() { Ok(()) } else { run_jobs(0) };
        others.into_iter().fold(own, |sofar, (worker, other)| {
            let ended = other.map_or_else(|| run_jobs(worker), join_sync);
            sofar.and(ended)
        })
    })
}

fn join_sync(thread: ScopedJoinHandle<'_, Result<(), StoreError>>) -> Result<(), StoreError> {
    thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::fs::Mode;

    fn directory() -> (tempfile::TempDir, Directory) {
        let temp = tempfile::tempdir().expect("temp");
        let directory = Directory::open(temp.path()).expect("opens");
        (temp, directory)
    }

    #[test]
    fn staged_file_appears_only_when_published() {
        let (_temp, directory) = directory();
        let names: Vec<String> = (0..3 * MAX_CONCURRENT_SYNCS).map(|number| format!("{number:02}.json")).collect();
        let stage = |name: &String| directory.stage(name, name.as_bytes()).expect("stages");
        let staged: Vec<StagedFile> = names.iter().map(stage).collect();
        let last = directory.stage("last", b"last").expect("stages");
        let targets = staged.iter().chain([&last]).map(SyncTarget::Staged);
        sync_all(&targets.chain([SyncTarget::Names(&directory)]).collect::<Vec<_>>()).expect("syncs");
        let durable: Vec<DurableFile> = staged.into_iter().map(StagedFile::into_unsynced).collect();
        assert!(directory.names().expect("lists").iter().all(|name| name.ends_with(".tmp")));
        let mut durable = durable.into_iter();
        durable.next().expect("one").publish().expect("publishes");
        drop((durable, last));
        assert_eq!(directory.names().expect("lists"), names[..1]);
        assert_eq!(directory.read(&names[0], 9).expect("reads").as_deref(), Some(names[0].as_bytes()));
        sync_all(&[]).expect("nothing to do");
    }

    #[test]
    fn reports_failed_sync_of_any_thread() {
        let (temp, directory) = directory();
        // A descriptor opened with `O_PATH` cannot be synced.
        let fd = fs::open(temp.path(), OFlags::PATH, Mode::empty()).expect("opens");
        let closed = Directory::from_fd(fd, "closed".to_owned());
        for (at, many) in [(0, 1), (0, 3), (2, 3), (MAX_CONCURRENT_SYNCS, MAX_CONCURRENT_SYNCS + 2), (1, 40)] {
            let targets: Vec<SyncTarget<'_>> =
                (0..many).map(|n| SyncTarget::Names(if n == at { &closed } else { &directory })).collect();
            let error = sync_all(&targets).expect_err("one cannot be synced");
            assert!(error.to_string().contains("closed"), "{at} of {many}: {error}");
        }
    }
}
