//! Reports changes of a worktree as they happen, for the files that git does not ignore, and changes of the ignore rules
//! outside of the tree.

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
use proctor_git::ignore::external_rules::ExternalRules;
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
    .union(WatchFlags::ONLYDIR);
/// The entries of a git directory that affect its ignore rules.
const GIT_DIR_ENTRIES: [&str; 3] = ["config", "info", "info/exclude"];

/// A worktree whose changes are reported.
pub struct WorktreeWatch {
    helper: GitHelper,
    repo: PathBuf,
    events: AsyncFd<OwnedFd>,
    /// The watched directories by watch descriptor, relative to the worktree.
    directories: HashMap<i32, Vec<u8>>,
    /// The names that affect the ignore rules outside of the tree, by the watch descriptors of their directories.
    rule_names: HashMap<i32, BTreeSet<Vec<u8>>>,
    /// The ignore rules outside of the tree.
    external_rules: Vec<ExternalRules>,
    /// The group of events that is not complete.
    group: EventGroup,
}

/// Changes of a worktree that happened together.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct WorktreeChanges {
    /// The changed paths, relative to the worktree.
    pub paths: BTreeSet<Vec<u8>>,
    /// True if the kernel dropped events, so any path may have changed.
    pub is_incomplete: bool,
    /// The names of the ignore rules outside of the tree that have changed, such as `info/exclude`.
    pub external_rules: BTreeSet<String>,
}

impl WorktreeChanges {
    /// Returns whether nothing has changed.
    pub fn is_empty(&self) -> bool {
        self.paths.is_empty() && !self.is_incomplete && self.external_rules.is_empty()
    }
}

/// Events that happened together.
#[derive(Debug, Default)]
struct EventGroup {
    changes: WorktreeChanges,
    /// True if a directory was created or moved.
    has_new_directory: bool,
    /// True if a file that affects the ignore rules outside of the tree was changed.
    may_change_rules: bool,
}

impl EventGroup {
    fn is_empty(&self) -> bool {
        self.changes.is_empty() && !self.has_new_directory && !self.may_change_rules
    }
}

impl WorktreeWatch {
    /// Starts to watch the directories of a worktree that git does not ignore.
    ///
    /// # Errors
    /// The worktree cannot be listed, or the kernel allows no more watches.
    pub(crate) fn start(helper: GitHelper, repo: &Path) -> Result<Self, EngineError> {
        let events = inotify::init(CreateFlags::CLOEXEC | CreateFlags::NONBLOCK).map_err(watch_error)?;
        let events = register(events).map_err(EngineError::Watch)?;
        let mut watch = Self {
            helper,
            repo: repo.to_path_buf(),
            events,
            directories: HashMap::new(),
            rule_names: HashMap::new(),
            external_rules: Vec::new(),
            group: EventGroup::default(),
        };
        watch.add_directories()?;
        Ok(watch)
    }

    /// Waits for the next changes of files that git does not ignore, or of ignore rules outside of the tree. Changes in
    /// quick succession are reported together. It is cancel-safe: dropping the future loses no change.
    ///
    /// # Errors
    /// The events cannot be read, or git cannot determine which files are ignored.
    pub async fn next_changes(&mut self) -> Result<WorktreeChanges, EngineError> {
        loop {
            // A future that was dropped may have read the first events.
            if self.group.is_empty() {
                self.read_events().await?;
            }
            let end = Instant::now() + MAX_GROUP_TIME;
            loop {
                let quiet = (Instant::now() + QUIET_TIME).min(end);
                match timeout_at(quiet, self.read_events()).await {
                    Ok(read) => read?,
                    Err(_) => break,
                }
            }
            let EventGroup { mut changes, has_new_directory, may_change_rules } = std::mem::take(&mut self.group);
            if has_new_directory || may_change_rules || changes.is_incomplete {
                changes.external_rules = self.add_directories()?;
            }
            self.remove_ignored(&mut changes)?;
            if !changes.is_empty() {
                return Ok(changes);
            }
        }
    }

    /// Waits for events and adds them to the group.
    async fn read_events(&mut self) -> Result<(), EngineError> {
        loop {
            let mut ready = self.events.readable().await.map_err(EngineError::Watch)?;
            let mut space = vec![MaybeUninit::uninit(); BUFFER_BYTES];
            let mut reader = Reader::new(self.events.get_ref(), &mut space);
            let (mut any, group) = (false, &mut self.group);
            loop {
                let event = match reader.next() {
                    Ok(event) => event,
                    Err(Errno::AGAIN) => break,
                    Err(Errno::INTR) => continue,
                    Err(error) => return Err(watch_error(error)),
                };
                any = true;
                group.changes.is_incomplete |= event.events().contains(ReadFlags::QUEUE_OVERFLOW);
                group.has_new_directory |= event.events().contains(ReadFlags::ISDIR)
                    && event.events().intersects(ReadFlags::CREATE | ReadFlags::MOVED_TO);
                let name = event.file_name().map(|name| name.to_bytes());
                let rules = self.rule_names.get(&event.wd());
                group.may_change_rules |=
                    rules.is_some_and(|rules| name.is_none_or(|name| rules.iter().any(|rule| rule == name)));
                if let (Some(directory), Some(name)) = (self.directories.get(&event.wd()), name) {
                    group.changes.paths.insert(paths::join(directory, name));
                }
            }
            ready.clear_ready();
            if any {
                return Ok(());
            }
        }
    }

    /// Watches the directories that git does not ignore now, and those of the ignore rules outside of the tree. Returns
    /// the names of these rules that have changed.
    fn add_directories(&mut self) -> Result<BTreeSet<String>, EngineError> {
        let listing = self.helper.list(&self.repo, &mut |_| {})?;
        let top = std::iter::once(Vec::new());
        let directories = listing.directories.iter().map(|directory| directory.path.0.clone());
        for directory in top.chain(directories) {
            let path = self.repo.join(OsStr::from_bytes(&directory));
            if let Some(descriptor) = self.add_watch(&path, EVENTS.union(WatchFlags::DONT_FOLLOW))? {
                self.directories.insert(descriptor, directory);
            }
        }
        for file in rule_files(&listing.git_dir, &listing.common_dir, &listing.external_rules) {
            let (Some(directory), Some(name)) = (file.parent(), file.file_name()) else { continue };
            if let Some(descriptor) = self.add_watch(directory, EVENTS)? {
                self.rule_names.entry(descriptor).or_default().insert(name.as_bytes().to_vec());
            }
        }
        let changed = changed_rules(&self.external_rules, &listing.external_rules);
        self.external_rules = listing.external_rules;
        Ok(changed)
    }

    /// Watches a directory; returns `None` if it was removed or replaced in the meantime.
    fn add_watch(&self, path: &Path, events: WatchFlags) -> Result<Option<i32>, EngineError> {
        match inotify::add_watch(self.events.get_ref(), path, events) {
            Ok(descriptor) => Ok(Some(descriptor)),
            Err(Errno::NOENT | Errno::NOTDIR | Errno::ACCESS) => Ok(None),
            Err(error) => Err(watch_error(error)),
        }
    }

    /// Removes ignored files, git's own files, and the documents and temporary files that Proctor writes.
    fn remove_ignored(&self, changes: &mut WorktreeChanges) -> Result<(), EngineError> {
        let is_own = |path: &[u8]| paths::is_in_git_dir(path) || is_evidence_path(path) || is_staging_path(path);
        changes.paths.retain(|path| !is_own(path));
        let paths: Vec<&[u8]> = changes.paths.iter().map(Vec::as_slice).collect();
        let ignored = self.helper.are_ignored(&self.repo, &paths)?;
        let mut ignored = ignored.into_iter();
        changes.paths.retain(|_| !ignored.next().unwrap_or(false));
        Ok(())
    }
}

/// Returns the files whose changes can change the ignore rules outside of the tree. A link and its target both count.
fn rule_files(git_dir: &Path, common_dir: &Path, rules: &[ExternalRules]) -> BTreeSet<PathBuf> {
    let own = GIT_DIR_ENTRIES.iter().map(|name| common_dir.join(name)).chain([git_dir.join("config.worktree")]);
    let files: BTreeSet<PathBuf> = own.chain(rules.iter().map(|rules| rules.file.clone())).collect();
    let targets: Vec<PathBuf> = files.iter().filter_map(|file| file.canonicalize().ok()).collect();
    files.into_iter().chain(targets).collect()
}

/// Returns the names of the rules that were added, changed or removed.
fn changed_rules(before: &[ExternalRules], now: &[ExternalRules]) -> BTreeSet<String> {
    let only = |these: &[ExternalRules], others: &[ExternalRules]| {
        let differing = these.iter().filter(|rules| !others.contains(rules));
        differing.map(|rules| rules.name.clone()).collect::<Vec<_>>()
    };
    only(before, now).into_iter().chain(only(now, before)).collect()
}

/// Registers the queue of events with the runtime.
#[expect(deprecated, reason = "deprecated for types that may change their descriptor; an owned one does not")]
fn register(events: OwnedFd) -> io::Result<AsyncFd<OwnedFd>> {
    AsyncFd::with_interest(events, Interest::READABLE)
}

fn watch_error(error: Errno) -> EngineError {
    EngineError::Watch(io::Error::from(error))
}

#[cfg(test)]
mod tests {
    use proctor_core::text::digest::Sha256Hex;

    use super::*;

    #[tokio::test]
    async fn dropped_wait_loses_no_change() {
        let temp = tempfile::tempdir().expect("a directory");
        let events = inotify::init(CreateFlags::CLOEXEC | CreateFlags::NONBLOCK).expect("a queue");
        let mut watch = WorktreeWatch {
            helper: GitHelper::new("/nowhere"),
            repo: temp.path().to_path_buf(),
            events: register(events).expect("registers"),
            directories: HashMap::new(),
            rule_names: HashMap::new(),
            external_rules: Vec::new(),
            group: EventGroup::default(),
        };
        let descriptor = watch.add_watch(temp.path(), EVENTS).expect("watches").expect("a directory");
        watch.directories.insert(descriptor, Vec::new());
        std::fs::create_dir(temp.path().join("new")).expect("makes");
        while watch.group.is_empty() {
            tokio::select! {
                biased;
                _ = watch.next_changes() => panic!("the group is complete only after a time without changes"),
                () = tokio::task::yield_now() => {}
            }
        }
        assert_eq!(watch.group.changes.paths, BTreeSet::from([b"new".to_vec()]));
        assert!(watch.group.has_new_directory);
    }

    #[test]
    fn names_changed_rules() {
        let rules = |name: &str, text: &str| ExternalRules {
            name: name.to_owned(),
            file: PathBuf::from(name),
            rules_sha256: Sha256Hex::digest(text.as_bytes()),
        };
        let before = [rules("info/exclude", "a"), rules("core.excludesFile", "a"), rules("same", "a")];
        let now = [rules("info/exclude", "b"), rules("same", "a"), rules("core.ignoreCase", "a")];
        let expected = ["core.excludesFile", "core.ignoreCase", "info/exclude"].map(str::to_owned);
        assert_eq!(changed_rules(&before, &now), BTreeSet::from(expected));
        assert!(changed_rules(&now, &now).is_empty());
    }
}
