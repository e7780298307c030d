//! Reports changes of a worktree as they happen, for the files that git does not ignore.

use std::collections::{BTreeSet, HashMap};
use std::ffi::OsStr;
use std::io;
use std::mem::MaybeUninit;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

use proctor_core::model::drift::is_evidence_path;
use proctor_git::files::paths;
use proctor_git::helper::GitHelper;
use proctor_snapshot::is_staging_path;
use rustix::fs::inotify::{self, CreateFlags, ReadFlags, Reader, WatchFlags};
use rustix::io::Errno;
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;
use tokio::time::{Instant, timeout_at};

use crate::error::EngineError;

/// Time without a further change after which a group of changes is complete.
const QUIET_TIME: Duration = Duration::from_millis(60);
/// Maximum time between the first and the last change of a group.
const MAX_GROUP_TIME: Duration = Duration::from_secs(2);
/// Size of the buffer for events.
const BUFFER_BYTES: usize = 64 << 10;
/// The events that may change the tree.
const EVENTS: WatchFlags = WatchFlags::MODIFY
    .union(WatchFlags::ATTRIB)
    .union(WatchFlags::CLOSE_WRITE)
    .union(WatchFlags::CREATE)
    .union(WatchFlags::DELETE)
    .union(WatchFlags::MOVE)
    .union(WatchFlags::ONLYDIR)
    .union(WatchFlags::DONT_FOLLOW);

/// A worktree whose changes are reported.
pub struct WorktreeWatch {
    helper: GitHelper,
    repo: PathBuf,
    events: AsyncFd<OwnedFd>,
    /// The watched directories by watch descriptor, relative to the worktree.
    directories: HashMap<i32, Vec<u8>>,
}

/// Changes of a worktree that happened together.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct WorktreeChanges {
    /// The changed paths, relative to the worktree.
    pub paths: BTreeSet<Vec<u8>>,
    /// True if the kernel dropped events, so that any path may have changed.
    pub is_incomplete: bool,
}

impl WorktreeWatch {
    /// Starts to watch the directories of a worktree that git does not ignore.
    ///
    /// # Errors
    /// The worktree cannot be listed, or the kernel allows no more watches.
    pub(crate) fn start(helper: GitHelper, repo: &Path) -> Result<Self, EngineError> {
        let events = inotify::init(CreateFlags::CLOEXEC | CreateFlags::NONBLOCK).map_err(watch_error)?;
        let events = register(events).map_err(EngineError::Watch)?;
        let mut watch = Self { helper, repo: repo.to_path_buf(), events, directories: HashMap::new() };
        watch.add_directories()?;
        Ok(watch)
    }

    /// Waits for the next changes of files that git does not ignore. Changes in quick succession are reported together.
    ///
    /// # Errors
    /// The events cannot be read, or git cannot determine which files are ignored.
    pub async fn next_changes(&mut self) -> Result<WorktreeChanges, EngineError> {
        loop {
            let mut changes = WorktreeChanges::default();
            let mut has_new_directory = self.read_events(&mut changes).await?;
            let end = Instant::now() + MAX_GROUP_TIME;
            loop {
                let quiet = (Instant::now() + QUIET_TIME).min(end);
                match timeout_at(quiet, self.read_events(&mut changes)).await {
                    Ok(read) => has_new_directory |= read?,
                    Err(_) => break,
                }
            }
            if has_new_directory || changes.is_incomplete {
                self.add_directories()?;
            }
            self.remove_ignored(&mut changes)?;
            if changes.is_incomplete || !changes.paths.is_empty() {
                return Ok(changes);
            }
        }
    }

    /// Waits for events and adds them. Returns whether a directory was created or moved.
    async fn read_events(&self, changes: &mut WorktreeChanges) -> Result<bool, EngineError> {
        loop {
            let mut ready = self.events.readable().await.map_err(EngineError::Watch)?;
            let mut space = vec![MaybeUninit::uninit(); BUFFER_BYTES];
            let mut reader = Reader::new(self.events.get_ref(), &mut space);
            let (mut any, mut has_new_directory) = (false, false);
            loop {
                let event = match reader.next() {
                    Ok(event) => event,
                    Err(Errno::AGAIN) => break,
                    Err(Errno::INTR) => continue,
                    Err(error) => return Err(watch_error(error)),
                };
                any = true;
                changes.is_incomplete |= event.events().contains(ReadFlags::QUEUE_OVERFLOW);
                has_new_directory |= event.events().contains(ReadFlags::ISDIR)
                    && event.events().intersects(ReadFlags::CREATE | ReadFlags::MOVED_TO);
                let name = event.file_name().map(|name| name.to_bytes());
                if let (Some(directory), Some(name)) = (self.directories.get(&event.wd()), name) {
                    changes.paths.insert(paths::join(directory, name));
                }
            }
            ready.clear_ready();
            if any {
                return Ok(has_new_directory);
            }
        }
    }

    /// Watches the directories that git does not ignore now.
    fn add_directories(&mut self) -> Result<(), EngineError> {
        let listing = self.helper.list(&self.repo, &mut |_| {})?;
        let top = std::iter::once(Vec::new());
        for directory in top.chain(listing.directories.into_iter().map(|directory| directory.path.0)) {
            let path = self.repo.join(OsStr::from_bytes(&directory));
            match inotify::add_watch(self.events.get_ref(), &path, EVENTS) {
                Ok(descriptor) => drop(self.directories.insert(descriptor, directory)),
                // The directory was removed or replaced in the meantime.
                Err(Errno::NOENT | Errno::NOTDIR | Errno::ACCESS) => {}
                Err(error) => return Err(watch_error(error)),
            }
        }
        Ok(())
    }

    /// Removes ignored files, git's own files, and the documents and temporary files that Proctor writes.
    fn remove_ignored(&self, changes: &mut WorktreeChanges) -> Result<(), EngineError> {
        let is_own = |path: &[u8]| paths::is_in_git_dir(path) || is_evidence_path(path) || is_staging_path(path);
        changes.paths.retain(|path| !is_own(path));
        let asked: Vec<&[u8]> = changes.paths.iter().map(Vec::as_slice).collect();
        let ignored = self.helper.are_ignored(&self.repo, &asked)?;
        let mut ignored = ignored.into_iter();
        changes.paths.retain(|_| !ignored.next().unwrap_or(false));
        Ok(())
    }
}

/// Registers the queue of events with the runtime.
#[expect(deprecated, reason = "deprecated for types that may change their descriptor; an owned one does not")]
fn register(events: OwnedFd) -> io::Result<AsyncFd<OwnedFd>> {
    AsyncFd::with_interest(events, Interest::READABLE)
}

fn watch_error(error: Errno) -> EngineError {
    EngineError::Watch(io::Error::from(error))
}
