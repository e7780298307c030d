//! Stages files before they are renamed to their final names, so that several of them can be synced concurrently.

use std::io::Write as _;
use std::thread::{Builder, ScopedJoinHandle, scope};

use rustix::fs;

use super::{Directory, Temporary, TemporaryEntry};
use crate::store::StoreError;

impl Directory {
    /// Writes a file for the name `name` without syncing it. [`sync_all`] syncs several files concurrently.
    ///
    /// # Errors
    /// `name` is a symlink, or a system call fails.
    pub(crate) fn stage(&self, name: &str, bytes: &[u8]) -> Result<Staged, StoreError> {
        let old_mode = self.replaceable(name)?;
        let mut temp = self.temporary(name)?;
        if let Some(mode) = old_mode {
            fs::fchmod(&temp.file, mode).map_err(StoreError::io("set the mode of", self.path_of(name)))?;
        }
        let written = temp.file.write_all(bytes);
        written.map_err(|source| StoreError::Io { action: "write", path: self.path_of(name), source })?;
        Ok(Staged { temp, name: name.to_owned(), place: self.clone() })
    }

    /// Stages a file like [`Directory::stage`], but keeps it in `aside`, a directory of the same file system, until
    /// it is published. A kill leaves the temporary file there; the caller picks a directory in which it does no
    /// harm.
    ///
    /// # Errors
    /// Same as [`Directory::stage`].
    pub(crate) fn stage_by(&self, aside: &Self, name: &str, bytes: &[u8]) -> Result<Staged, StoreError> {
        let old_mode = self.replaceable(name)?;
        let staged = aside.stage(name, bytes)?;
        if let Some(mode) = old_mode {
            fs::fchmod(&staged.temp.file, mode).map_err(StoreError::io("set the mode of", self.path_of(name)))?;
        }
        Ok(Staged { place: self.clone(), ..staged })
    }

    /// Writes `bytes` to the file `name` atomically, but not durably: after a crash of the machine, it may be empty
    /// or the old one.
    ///
    /// # Errors
    /// `name` is a symlink, or a system call fails.
    pub(crate) fn write_unsynced(&self, name: &str, bytes: &[u8]) -> Result<(), StoreError> {
        self.stage(name, bytes)?.settled().publish()
    }
}

/// A written file that is not published yet. It is removed on drop.
#[derive(Debug)]
pub(crate) struct Staged {
    temp: Temporary,
    name: String,
    /// The directory to publish it in.
    place: Directory,
}

/// A staged file whose content is durable; it holds no open descriptor. It is removed on drop unless it is
/// published.
#[derive(Debug)]
pub(crate) struct Durable {
    entry: TemporaryEntry,
    name: String,
    place: Directory,
}

impl Staged {
    /// Makes the content durable, but not the name.
    ///
    /// # Errors
    /// A system call fails; the file is removed.
    pub(crate) fn settle(self) -> Result<Durable, StoreError> {
        self.sync().map(|()| self.settled())
    }

    fn sync(&self) -> Result<(), StoreError> {
        let path = || self.temp.entry.directory.path_of(&self.name);
        self.temp.file.sync_all().map_err(|source| StoreError::Io { action: "write", path: path(), source })
    }

    fn settled(self) -> Durable {
        Durable { entry: self.temp.entry, name: self.name, place: self.place }
    }
}

impl Durable {
    /// Renames the file to its final name. The name is durable once its directory is synced.
    ///
    /// # Errors
    /// A system call fails; the file is removed.
    pub(crate) fn publish(self) -> Result<(), StoreError> {
        self.entry.move_to(&self.place, &self.name)
    }
}

/// Maximum number of staged files: each holds a descriptor until it is synced.
pub(crate) const STAGED_AT_ONCE: usize = 32;
/// Maximum number of concurrent syncs.
const SYNCED_AT_ONCE: usize = 8;

/// Makes the content of `files` and `apart` and the names in `directories` durable. The syncs run concurrently,
/// which takes little more time than a few of them.
///
/// # Errors
/// A sync fails; returns the first of the errors. All files are removed then.
pub(crate) fn sync_all<const N: usize>(
    files: Vec<Staged>,
    apart: [Staged; N],
    directories: &[&Directory],
) -> Result<(Vec<Durable>, [Durable; N]), StoreError> {
    let (many, jobs) = (files.len(), files.len() + N + directories.len());
    let job = |number: usize| match files.get(number).or_else(|| apart.get(number - many)) {
        Some(file) => file.sync(),
        None => directories[number - many - N].sync(),
    };
    let workers = jobs.min(SYNCED_AT_ONCE);
    let turns = |worker: usize| (worker..jobs).step_by(workers).try_for_each(job);
    scope(|scope| {
        // This thread does the work of threads that could not be started.
        let others: Vec<_> = (1..workers)
            .map(|worker| (worker, Builder::new().spawn_scoped(scope, move || turns(worker)).ok()))
            .collect();
        let own = if jobs > 0 { turns(0) } else { Ok(()) };
        others.into_iter().fold(own, |sofar, (worker, other)| {
            let ended = other.map_or_else(|| turns(worker), joined);
            sofar.and(ended)
        })
    })?;
    Ok((files.into_iter().map(Staged::settled).collect(), apart.map(Staged::settled)))
}

fn joined(thread: ScopedJoinHandle<'_, Result<(), StoreError>>) -> Result<(), StoreError> {
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
    fn what_is_staged_appears_when_it_is_published_or_not_at_all() {
        let (_temp, directory) = directory();
        let names: Vec<String> = (0..3 * SYNCED_AT_ONCE).map(|number| format!("{number:02}.json")).collect();
        let stage = |name: &String| directory.stage(name, name.as_bytes()).expect("stages");
        let staged: Vec<Staged> = names.iter().map(stage).collect();
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
    fn a_sync_that_fails_is_told_whoever_does_it() {
        let (temp, directory) = directory();
        // A descriptor opened with `O_PATH` cannot be synced.
        let fd = fs::open(temp.path(), OFlags::PATH, Mode::empty()).expect("opens");
        let closed = Directory::from_fd(fd, "closed".to_owned());
        for (at, many) in [(0, 1), (0, 3), (2, 3), (SYNCED_AT_ONCE, SYNCED_AT_ONCE + 2), (1, 40)] {
            let directories: Vec<&Directory> = (0..many).map(|n| if n == at { &closed } else { &directory }).collect();
            let staged = ["a", "b"].map(|name| directory.stage(name, b"x").expect("stages"));
            let error = sync_all(vec![], staged, &directories).expect_err("one cannot be synced");
            assert!(error.to_string().contains("closed"), "{at} of {many}: {error}");
            assert!(directory.names().expect("lists").is_empty());
        }
    }
}
