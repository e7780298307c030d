//! Reports changes of a worktree as they happen, for the files that git tracks or does not ignore, and changes of the ignore
//! rules outside of the tree.

use std::collections::{BTreeSet, HashMap, HashSet};
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
use proctor_git::protocol::{SearchedDirectory, WorktreeListing};
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
/// The events that mean that a directory is no longer at its path.
const REMOVAL_EVENTS: WatchFlags = WatchFlags::DELETE_SELF.union(WatchFlags::MOVE_SELF).union(WatchFlags::ONLYDIR);
/// The entries of the common git directory that affect the ignore rules.
const COMMON_DIR_ENTRIES: [&str; 3] = ["config", "info", "info/exclude"];
/// The entries of a git directory that affect the ignore rules or the tracked files.
const GIT_DIR_ENTRIES: [&str; 3] = ["config.worktree", "index", "HEAD"];
/// The name of the files with ignore rules in the tree.
const IGNORE_FILE: &[u8] = b".gitignore";
/// Maximum number of listings in a row to find the directories that appear while others are being watched.
const MAX_LISTINGS: usize = 8;

/// A worktree whose changes are reported.
pub struct WorktreeWatch {
    helper: GitHelper,
    repo: PathBuf,
    events: AsyncFd<OwnedFd>,
    /// The watched directories by watch descriptor, relative to the worktree.
    directories: HashMap<i32, Vec<u8>>,
    /// The names of the git files and of the ignore rules outside of the tree that determine which files the tree
    /// contains, by the watch descriptors of their directories.
    listing_names: HashMap<i32, BTreeSet<Vec<u8>>>,
    /// The watch descriptors of the top and of the directories above it.
    ancestors: HashSet<i32>,
    /// Device and inode of the top.
    top: (u64, u64),
    /// The ignore rules outside of the tree.
    external_rules: Vec<ExternalRules>,
    /// The files that git tracks; sorted. They belong to the tree even if a rule ignores them.
    tracked: Vec<Vec<u8>>,
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
    /// True if a directory was moved away. No event names the files in it.
    pub has_moved_directory: bool,
    /// The names of the ignore rules outside of the tree that have changed, such as `info/exclude`.
    pub external_rules: BTreeSet<String>,
}

impl WorktreeChanges {
    /// Returns whether nothing has changed.
    pub fn is_empty(&self) -> bool {
        self.paths.is_empty() && !self.is_incomplete && !self.has_moved_directory && self.external_rules.is_empty()
    }
}

/// Events that happened together.
#[derive(Debug, Default)]
struct EventGroup {
    changes: WorktreeChanges,
    /// True if a directory was created or moved, or if a file changed that determines which files the tree contains.
    may_change_listing: bool,
    /// The directories that were moved away.
    moved_directories: Vec<Vec<u8>>,
    /// True if the top or a directory above it was moved or removed.
    may_be_gone: bool,
}

impl EventGroup {
    fn is_empty(&self) -> bool {
        self.changes.is_empty() && !self.may_change_listing && !self.may_be_gone
    }
}

impl WorktreeWatch {
    /// Starts to watch the directories of a worktree with files that git tracks or does not ignore.
    ///
    /// # Errors
    /// The worktree cannot be listed, or the kernel allows no more watches.
    pub(crate) fn start(helper: GitHelper, repo: &Path) -> Result<Self, EngineError> {
        let mut watch = Self::without_watches(helper, repo)?;
        for directory in repo.ancestors() {
            let descriptor = watch.add_watch(directory, REMOVAL_EVENTS)?;
            watch.ancestors.extend(descriptor);
        }
        watch.update_listing()?;
        Ok(watch)
    }

    fn without_watches(helper: GitHelper, repo: &Path) -> Result<Self, EngineError> {
        let events = inotify::init(CreateFlags::CLOEXEC | CreateFlags::NONBLOCK).map_err(watch_error)?;
        Ok(Self {
            helper,
            repo: repo.to_path_buf(),
            events: register(events).map_err(EngineError::Watch)?,
            directories: HashMap::new(),
            listing_names: HashMap::new(),
            ancestors: HashSet::new(),
            top: identity(repo).map_err(watch_error)?,
            external_rules: Vec::new(),
            tracked: Vec::new(),
            group: EventGroup::default(),
        })
    }

    /// Waits for the next changes of files that git tracks or does not ignore, or of ignore rules outside of the tree.
    /// Changes in quick succession are reported together. It is cancel-safe: dropping the future loses no change.
    ///
    /// # Errors
    /// The worktree was moved or removed, the events cannot be read, or git cannot determine which files are ignored.
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
            let group = std::mem::take(&mut self.group);
            let may_be_gone = group.may_be_gone;
            let found = self.complete_changes(group);
            if (may_be_gone || found.is_err()) && identity(&self.repo).ok() != Some(self.top) {
                return Err(EngineError::WatchedTreeGone(self.repo.clone()));
            }
            let changes = found?;
            if !changes.is_empty() {
                return Ok(changes);
            }
        }
    }

    /// Returns the changes of a group of events, after it has updated the listing if the events require that.
    fn complete_changes(&mut self, group: EventGroup) -> Result<WorktreeChanges, EngineError> {
        let EventGroup { mut changes, may_change_listing, moved_directories, may_be_gone: _ } = group;
        let mut unignored: Vec<Vec<u8>> =
            moved_directories.into_iter().filter(|directory| self.remove_watches(directory)).collect();
        changes.has_moved_directory = !unignored.is_empty();
        if may_change_listing || changes.has_moved_directory || changes.is_incomplete {
            let found = self.update_listing()?;
            changes.external_rules = found.external_rules;
            unignored.extend(found.paths);
        }
        self.remove_ignored(&mut changes)?;
        changes.paths.extend(unignored);
        Ok(changes)
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
                let (kind, name) = (event.events(), event.file_name().map(|name| name.to_bytes()));
                let of_itself = ReadFlags::DELETE_SELF | ReadFlags::MOVE_SELF | ReadFlags::UNMOUNT | ReadFlags::IGNORED;
                group.may_be_gone |= kind.intersects(of_itself) && self.ancestors.contains(&event.wd());
                group.changes.is_incomplete |= kind.contains(ReadFlags::QUEUE_OVERFLOW);
                let names = self.listing_names.get(&event.wd());
                group.may_change_listing |= (kind.contains(ReadFlags::ISDIR)
                    && kind.intersects(ReadFlags::CREATE | ReadFlags::MOVED_TO))
                    || names.is_some_and(|names| name.is_none_or(|name| names.contains(name)));
                if let (Some(directory), Some(name)) = (self.directories.get(&event.wd()), name) {
                    let path = paths::join(directory, name);
                    group.may_change_listing |= name == IGNORE_FILE;
                    if kind.contains(ReadFlags::ISDIR | ReadFlags::MOVED_FROM) {
                        group.moved_directories.push(path.clone());
                    }
                    group.changes.paths.insert(path);
                }
            }
            ready.clear_ready();
            if any {
                return Ok(());
            }
        }
    }

    /// Lists the worktree, and watches its directories and the files that determine the listing. Returns the changes since
    /// the previous listing.
    fn update_listing(&mut self) -> Result<ListingChanges, EngineError> {
        let mut listing = self.helper.list(&self.repo, &mut |_| {})?;
        let mut tracked = tracked_files(&listing);
        // A directory can appear after the listing, and before its parent is watched.
        let mut listings = 1;
        while self.watch_listed(&listing, &tracked)? {
            if listings == MAX_LISTINGS {
                self.group.may_change_listing = true;
                break;
            }
            listing = self.helper.list(&self.repo, &mut |_| {})?;
            tracked = tracked_files(&listing);
            listings += 1;
        }
        let external_rules = changed_rules(&self.external_rules, &listing.external_rules);
        self.external_rules = listing.external_rules;
        let paths = self.ignored_among(difference(&self.tracked, &tracked))?;
        self.tracked = tracked;
        Ok(ListingChanges { external_rules, paths })
    }

    /// Watches the directories of a listing, and those of the files that determine it. Returns whether a directory of the
    /// worktree was not watched before.
    fn watch_listed(&mut self, listing: &WorktreeListing, tracked: &[Vec<u8>]) -> Result<bool, EngineError> {
        let mut has_new = false;
        for directory in directories_of(&listing.directories, tracked) {
            let path = self.repo.join(OsStr::from_bytes(directory));
            if let Some(descriptor) = self.add_watch(&path, EVENTS.union(WatchFlags::DONT_FOLLOW))? {
                has_new |= self.directories.insert(descriptor, directory.to_vec()).as_deref() != Some(directory);
            }
        }
        for file in listing_files(listing) {
            let (Some(directory), Some(name)) = (file.parent(), file.file_name()) else { continue };
            if let Some(descriptor) = self.add_watch(directory, EVENTS)? {
                self.listing_names.entry(descriptor).or_default().insert(name.as_bytes().to_vec());
            }
        }
        Ok(has_new)
    }

    /// Watches a directory; returns `None` if it was removed or replaced in the meantime.
    fn add_watch(&self, path: &Path, events: WatchFlags) -> Result<Option<i32>, EngineError> {
        // One directory can be watched for several reasons.
        match inotify::add_watch(self.events.get_ref(), path, events.union(WatchFlags::MASK_ADD)) {
            Ok(descriptor) => Ok(Some(descriptor)),
            Err(Errno::NOENT | Errno::NOTDIR | Errno::ACCESS) => Ok(None),
            Err(error) => Err(watch_error(error)),
        }
    }

    /// Ends the watches of a directory that was moved away, and of those in it. Returns whether there were any.
    fn remove_watches(&mut self, moved: &[u8]) -> bool {
        let is_moved = |path: &[u8]| path == moved || paths::is_below(path, moved);
        let watched = self.directories.iter().filter(|(_, path)| is_moved(path));
        let removed: Vec<i32> = watched.map(|(descriptor, _)| *descriptor).collect();
        for descriptor in &removed {
            self.directories.remove(descriptor);
            let is_shared = self.listing_names.contains_key(descriptor) || self.ancestors.contains(descriptor);
            if !is_shared {
                // The kernel ends the watch of a removed directory itself.
                let _ = inotify::remove_watch(self.events.get_ref(), *descriptor);
            }
        }
        !removed.is_empty()
    }

    /// Removes ignored files, git's own files, and the documents and temporary files that Proctor writes. Keeps files that
    /// git tracks, and files with ignore rules, which can ignore themselves.
    fn remove_ignored(&self, changes: &mut WorktreeChanges) -> Result<(), EngineError> {
        let is_own = |path: &[u8]| paths::is_in_git_dir(path) || is_evidence_path(path) || is_staging_path(path);
        changes.paths.retain(|path| !is_own(path));
        let is_kept =
            |path: &Vec<u8>| self.tracked.binary_search(path).is_ok() || paths::file_name(path) == IGNORE_FILE;
        let queried: BTreeSet<Vec<u8>> = changes.paths.iter().filter(|path| !is_kept(path)).cloned().collect();
        let ignored = self.ignored_among(queried)?;
        changes.paths.retain(|path| !ignored.contains(path));
        Ok(())
    }

    /// Returns the paths that the rules ignore.
    fn ignored_among(&self, mut queried: BTreeSet<Vec<u8>>) -> Result<BTreeSet<Vec<u8>>, EngineError> {
        let paths: Vec<&[u8]> = queried.iter().map(Vec::as_slice).collect();
        let mut ignored = self.helper.are_ignored(&self.repo, &paths)?.into_iter();
        queried.retain(|_| ignored.next().unwrap_or(false));
        Ok(queried)
    }
}

/// The differences between two listings that no event of the worktree shows.
struct ListingChanges {
    /// The names of the ignore rules outside of the tree that have changed.
    external_rules: BTreeSet<String>,
    /// The ignored files that git tracks now, or does not track any more.
    paths: BTreeSet<Vec<u8>>,
}

/// Returns the files of a listing that git tracks, sorted.
fn tracked_files(listing: &WorktreeListing) -> Vec<Vec<u8>> {
    let indexed = listing.indexes.iter().filter(|index| index.at.0.is_empty()).flat_map(|index| &index.entries);
    let paths = listing.tracked.iter().chain(indexed.map(|entry| &entry.path));
    let mut tracked: Vec<Vec<u8>> = paths.map(|path| path.0.clone()).collect();
    tracked.sort_unstable();
    tracked.dedup();
    tracked
}

/// Returns the directories with files of the tree: those that git does not ignore, and those of tracked files.
fn directories_of<'a>(searched: &'a [SearchedDirectory], tracked: &'a [Vec<u8>]) -> BTreeSet<&'a [u8]> {
    let mut directories: BTreeSet<&[u8]> = searched.iter().map(|directory| directory.path.0.as_slice()).collect();
    directories.insert(b"");
    for path in tracked {
        let mut directory = paths::split(path).0;
        while directories.insert(directory) {
            directory = paths::split(directory).0;
        }
    }
    directories
}

/// Returns the elements that only one of two sorted lists contains.
fn difference(before: &[Vec<u8>], now: &[Vec<u8>]) -> BTreeSet<Vec<u8>> {
    let only = |these: &[Vec<u8>], others: &[Vec<u8>]| {
        let differing = these.iter().filter(|path| others.binary_search(path).is_err());
        differing.cloned().collect::<Vec<_>>()
    };
    only(before, now).into_iter().chain(only(now, before)).collect()
}

/// Returns device and inode of a directory.
fn identity(directory: &Path) -> Result<(u64, u64), Errno> {
    rustix::fs::stat(directory).map(|stat| (stat.st_dev, stat.st_ino))
}

/// Returns the files outside of the tree whose changes can change the listing. A link and its target both count.
fn listing_files(listing: &WorktreeListing) -> BTreeSet<PathBuf> {
    let common = COMMON_DIR_ENTRIES.iter().map(|name| listing.common_dir.join(name));
    let own = GIT_DIR_ENTRIES.iter().map(|name| listing.git_dir.join(name));
    let rules = listing.external_rules.iter().map(|rules| rules.file.clone());
    let sources = listing.sources.iter().flatten();
    let sources = sources.map(|source| source.place.join(OsStr::from_bytes(&source.path.0)));
    let files: BTreeSet<PathBuf> = common.chain(own).chain(rules).chain(sources).collect();
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
        let mut watch = WorktreeWatch::without_watches(GitHelper::new("/nowhere"), temp.path()).expect("a queue");
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
        assert!(watch.group.may_change_listing);
    }

    #[test]
    fn finds_directories_of_tracked_files_and_differences() {
        let tracked = ["a/b/c.py", "a/d.py", "top.py"].map(|path| path.as_bytes().to_vec());
        let expected: BTreeSet<&[u8]> = [b"".as_slice(), b"a", b"a/b"].into();
        assert_eq!(directories_of(&[], &tracked), expected);
        assert_eq!(difference(&tracked[..2], &tracked[1..]), BTreeSet::from([tracked[0].clone(), tracked[2].clone()]));
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
