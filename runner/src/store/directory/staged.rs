//! Files that are written and not yet at their names, so that several can be made durable beside each
//! other: each sync waits for the disk, and the disk for nobody.

use std::io::Write as _;
use std::thread::{Builder, ScopedJoinHandle, scope};

use rustix::fs;

use super::{Directory, Temporary, TemporaryEntry};
use crate::store::StoreError;

impl Directory {
    /// Writes a file that is to appear at `name`, and does not make it durable yet: several are
    /// synced beside each other by [`sync_all`].
    ///
    /// # Errors
    /// `name` is a symlink, or the system refuses.
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

    /// As [`Directory::stage`], with the bytes in another directory of the same file system until the file appears.
    /// A kill leaves the temporary file there, where the caller knows that it does no harm.
    ///
    /// # Errors
    /// As [`Directory::stage`].
    pub(crate) fn stage_by(&self, aside: &Self, name: &str, bytes: &[u8]) -> Result<Staged, StoreError> {
        let old_mode = self.replaceable(name)?;
        let staged = aside.stage(name, bytes)?;
        if let Some(mode) = old_mode {
            fs::fchmod(&staged.temp.file, mode).map_err(StoreError::io("set the mode of", self.path_of(name)))?;
        }
        Ok(Staged { place: self.clone(), ..staged })
    }

    /// Puts a file with `bytes` at `name`, whole for every reader. It is not durable: where the machine stops, it
    /// may be empty, or the old one.
    ///
    /// # Errors
    /// `name` is a symlink, or the system refuses.
    pub(crate) fn write_unsynced(&self, name: &str, bytes: &[u8]) -> Result<(), StoreError> {
        self.stage(name, bytes)?.settled().publish()
    }
}

/// A file that is written and is to appear at a name. Dropped, it goes away.
#[derive(Debug)]
pub(crate) struct Staged {
    temp: Temporary,
    name: String,
    /// Where it is to appear.
    place: Directory,
}

/// The same, whose bytes are durable: it holds no file open. Dropped unpublished, it goes away.
#[derive(Debug)]
pub(crate) struct Durable {
    entry: TemporaryEntry,
    name: String,
    place: Directory,
}

impl Staged {
    /// Makes its bytes durable, and not yet its name.
    ///
    /// # Errors
    /// The system refuses; the file goes away.
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
    /// Makes it appear at its name, which is durable when its directory is synced.
    ///
    /// # Errors
    /// The system refuses; the file goes away.
    pub(crate) fn publish(self) -> Result<(), StoreError> {
        self.entry.move_to(&self.place, &self.name)
    }
}

/// How many files may be staged at once: each holds a descriptor until it is synced.
pub(crate) const STAGED_AT_ONCE: usize = 32;
/// How many syncs go on at once.
const SYNCED_AT_ONCE: usize = 8;

/// Makes the bytes of `files`, of those `apart` from them, and the names in `directories` durable, beside
/// each other: the disk serves all of them in the time of a few.
///
/// # Errors
/// One of them cannot be; the first of these. All files go away then.
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
        // What no thread can be had for is done here.
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
        // What was opened by its path alone cannot be synced.
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
