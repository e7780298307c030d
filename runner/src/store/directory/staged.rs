//! Stages files before they are renamed to their final names, so that several of them can be synced concurrently.

use std::io::Write as _;
use std::thread::{Builder, ScopedJoinHandle, scope};

use rustix::fs;

use super::{Directory, TemporaryEntry, TemporaryFile};
use crate::store::StoreError;

impl Directory {
    /// Writes a file for the name `name` without syncing it. [`sync_all`] syncs several files concurrently.
    ///
    /// # Errors
    /// `name` is a symlink, or a system call fails.
    pub(crate) fn stage(&self, name: &str, bytes: &[u8]) -> Result<StagedFile, StoreError> {
        let old_mode = self.replaced_mode(name)?;
        let mut temp = self.create_temporary(name)?;
        if let Some(mode) = old_mode {
            fs::fchmod(&temp.file, mode).map_err(StoreError::io("set the mode of", self.path_of(name)))?;
        }
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
    /// The directory to publish it in.
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

impl StagedFile {
    /// Makes the content durable, but not the name.
    ///
    /// # Errors
    /// A system call fails; the file is removed.
    pub(crate) fn into_durable(self) -> Result<DurableFile, StoreError> {
        self.sync().map(|()| self.into_unsynced())
    }

    fn sync(&self) -> Result<(), StoreError> {
        let path = || self.temp.entry.directory.path_of(&self.name);
        self.temp.file.sync_all().map_err(|source| StoreError::Io { action: "write", path: path(), source })
    }

    fn into_unsynced(self) -> DurableFile {
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
const MAX_CONCURRENT_SYNCS: usize = 8;

/// Makes the content of `files` and `apart` and the names in `directories` durable. The syncs run concurrently,
/// which takes little more time than a few of them.
///
/// # Errors
/// A sync fails; returns the first of the errors. All files are removed then.
pub(crate) fn sync_all<const N: usize>(
    files: Vec<StagedFile>,
    extra: [StagedFile; N],
    directories: &[&Directory],
) -> Result<(Vec<DurableFile>, [DurableFile; N]), StoreError> {
    let (many, jobs) = (files.len(), files.len() + N + directories.len());
    let job = |number: usize| match files.get(number).or_else(|| extra.get(number - many)) {
        Some(file) => file.sync(),
        None => directories[number - many - N].sync(),
    };
    let workers = jobs.min(MAX_CONCURRENT_SYNCS);
    let run_jobs = |worker: usize| (worker..jobs).step_by(workers).try_for_each(job);
    scope(|scope| {
        // This thread does the work of threads that could not be started.
        let others: Vec<_> = (1..workers)
            .map(|worker| (worker, Builder::new().spawn_scoped(scope, move || run_jobs(worker)).ok()))
            .collect();
        let own = if jobs > 0 { run_jobs(0) } else { Ok(()) };
        others.into_iter().fold(own, |sofar, (worker, other)| {
            let ended = other.map_or_else(|| run_jobs(worker), join_sync);
            sofar.and(ended)
        })
    })?;
    Ok((files.into_iter().map(StagedFile::into_unsynced).collect(), extra.map(StagedFile::into_unsynced)))
}

fn join_sync(thread: ScopedJoinHandle<'_, Result<(), StoreError>>) -> Result<(), StoreError> {
    thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::fs::{Mode, OFlags};

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
        let (durable, [last]) = sync_all(staged, [last], &[&directory]).expect("syncs");
        assert_eq!(durable.len(), names.len());
        assert!(directory.names().expect("lists").iter().all(|name| name.ends_with(".tmp")));
        let mut durable = durable.into_iter();
        durable.next().expect("one").publish().expect("publishes");
        drop((durable, last));
        assert_eq!(directory.names().expect("lists"), names[..1]);
        assert_eq!(directory.read(&names[0], 9).expect("reads").as_deref(), Some(names[0].as_bytes()));
        assert!(sync_all(vec![], [], &[]).expect("nothing to do").0.is_empty());
    }

    #[test]
    fn reports_failed_sync_of_any_thread() {
        let (temp, directory) = directory();
        // A descriptor opened with `O_PATH` cannot be synced.
        let fd = fs::open(temp.path(), OFlags::PATH, Mode::empty()).expect("opens");
        let closed = Directory::from_fd(fd, "closed".to_owned());
        for (at, many) in [(0, 1), (0, 3), (2, 3), (MAX_CONCURRENT_SYNCS, MAX_CONCURRENT_SYNCS + 2), (1, 40)] {
            let directories: Vec<&Directory> = (0..many).map(|n| if n == at { &closed } else { &directory }).collect();
            let staged = ["a", "b"].map(|name| directory.stage(name, b"x").expect("stages"));
            let error = sync_all(vec![], staged, &directories).expect_err("one cannot be synced");
            assert!(error.to_string().contains("closed"), "{at} of {many}: {error}");
            assert!(directory.names().expect("lists").is_empty());
        }
    }
}
