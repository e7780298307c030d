//! Takes an incremental snapshot, for which git's listing is not needed: git's files and the ignore rules are
//! unchanged. The git helper is only asked about new paths in the tree.

use std::collections::{BTreeSet, HashMap, HashSet};
use std::os::fd::{AsFd as _, OwnedFd};
use std::os::unix::ffi::OsStrExt as _;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use proctor_core::model::drift::is_evidence_path;
use proctor_git::files::file_stat::{FileTime, RacyWindow};
use proctor_git::files::repo_path::RepoPath;
use proctor_git::files::{paths, read_beneath};
use proctor_git::helper::GitHelper;
use rustix::fs::{FileType, fstat};

use super::ReuseBasis;
use crate::entries::{DirectoryScanState, EntryTree, IgnoreStatus, ScannedEntry, ScannedKind, TreeChanges};
use crate::snapshot::git_facts::{GitFacts, git_facts};
use crate::snapshot::snapshot_error::SnapshotError;
use crate::snapshot::taken_snapshot::{ChangesSince, LaterSnapshot, Snapshot, SnapshotMethod, SnapshotStats};
use crate::stat_scan::{EarlierEntries, NamesAndTypes, ScanCounts, ScanFindings, StatScan, io_error};
use crate::tree_state::tree_state;

/// Takes the snapshot. Returns `None` if git has to list the tree. Changes the entries of `before` instead of a copy if
/// there is no other reference to them; they are then those of the new snapshot.
pub(super) fn take_incremental(
    before: &mut Snapshot,
    helper: &GitHelper,
    (at, settling): (FileTime, RacyWindow),
) -> Result<Option<LaterSnapshot>, SnapshotError> {
    let Some(basis) = before.basis.clone() else { return Ok(None) };
    let Some(top) = basis.open_top() else { return Ok(None) };
    if !basis.is_git_unchanged() {
        tracing::debug!(repo = %basis.worktree.display(), "git's files changed, or may have changed");
        return Ok(None);
    }
    let stop = AtomicBool::new(false);
    let again = IncrementalSnapshot { basis, top, started_at: at, racy_window: settling, helper, stop };
    let findings = again.stat_scan(&before.entries, EarlierEntries::SameTree).scan_all()?;
    match again.take(before, findings) {
        Ok(taken) => Ok(taken),
        Err(IncrementalFailure::Failed(error)) => Err(error),
        Err(IncrementalFailure::ListingNeeded(why)) => {
            tracing::debug!(repo = %again.basis.worktree.display(), why, "the set of covered paths must be read from \
                git again");
            Ok(None)
        }
    }
}

impl ReuseBasis {
    /// Opens the top of the work tree. Returns `None` if it is another directory, or if timestamps on its device do
    /// not reveal every change.
    fn open_top(&self) -> Option<OwnedFd> {
        let top = read_beneath::open_canonical(&self.worktree).ok()?;
        let stat = fstat(&top).ok()?;
        let is_same = (stat.st_dev, stat.st_ino) == self.top
            && read_beneath::trusted_device(top.as_fd()).ok()? == Some(stat.st_dev);
        is_same.then_some(top)
    }
}

/// The reason why no incremental snapshot can be taken.
enum IncrementalFailure {
    /// The known entries do not determine which paths are covered.
    ListingNeeded(&'static str),
    Failed(SnapshotError),
}

impl<E: Into<SnapshotError>> From<E> for IncrementalFailure {
    fn from(error: E) -> Self {
        Self::Failed(error.into())
    }
}

struct IncrementalSnapshot<'a> {
    basis: Arc<ReuseBasis>,
    top: OwnedFd,
    started_at: FileTime,
    racy_window: RacyWindow,
    helper: &'a GitHelper,
    stop: AtomicBool,
}

impl IncrementalSnapshot<'_> {
    fn stat_scan<'b>(&'b self, known: &'b EntryTree, before: EarlierEntries<'b>) -> StatScan<'b> {
        let device = Some(self.basis.top.0);
        StatScan {
            top: self.top.as_fd(),
            device,
            started_at: self.started_at,
            racy_window: self.racy_window,
            known,
            earlier: before,
            stop: &self.stop,
        }
    }

    /// Builds the snapshot from the findings of a scan. Returns `None` if git's listing is needed but lost.
    fn take(&self, before: &mut Snapshot, found: ScanFindings) -> Result<Option<LaterSnapshot>, IncrementalFailure> {
        if let Some(why) = found.relisting_reason {
            return Err(IncrementalFailure::ListingNeeded(why));
        }
        let (new, ignored) = self.find_new_paths(before, &found)?;
        let has_stat_changes = has_stat_changes(before, &found);
        let ScanFindings { leaves, directories, mut counts, .. } = found;
        let changes = TreeChanges { leaves, directories };
        let since = match () {
            () if !new.is_empty() => {
                counts.add(self.add_new_paths(before, &changes, &new)?);
                ChangesSince::Anything
            }
            () if changes == TreeChanges::default() => ChangesSince::Nothing,
            () => {
                Arc::make_mut(&mut before.entries).apply_scan(&changes.leaves, &changes.directories);
                ChangesSince::Entries(changes)
            }
        };
        let entries = Arc::clone(&before.entries);
        let id = entries.id();
        let git = if id == before.id && !has_stat_changes {
            before.git.clone()
        } else {
            let Some(git) = self.current_git_facts(&entries)? else { return Ok(None) };
            git
        };
        let stats = SnapshotStats::new(SnapshotMethod::Stat, counts, false);
        let (listing, basis) = (self.basis.listing.clone(), Some(Arc::clone(&self.basis)));
        let started_at = self.started_at;
        Ok(Some(LaterSnapshot {
            snapshot: Snapshot { id, entries, git, stats, ignored, listing, started_at, basis },
            since,
        }))
    }

    /// Adds new paths to the entries, and reads them.
    fn add_new_paths(
        &self,
        before: &mut Snapshot,
        changes: &TreeChanges,
        new: &PathList,
    ) -> Result<ScanCounts, SnapshotError> {
        let mut entries = EntryTree::clone(&before.entries);
        entries.apply_scan(&changes.leaves, &changes.directories);
        let added = new.iter().map(|path| (path.clone(), false, ScannedEntry::MISSING)).collect();
        entries = entries.with_leaves(added, HashMap::new());
        let scan = self.stat_scan(&entries, EarlierEntries::OtherTree(None));
        let looked = scan.scan_paths(new.iter().map(Vec::as_slice))?;
        entries.apply_scan(&looked.leaves, &[]);
        before.entries = Arc::new(entries);
        Ok(looked.counts)
    }

    /// Returns git's description of the tree, or `None` if git's listing is lost.
    fn current_git_facts(&self, entries: &EntryTree) -> Result<Option<GitFacts>, SnapshotError> {
        let Some(mut listing) = self.basis.listing.decode() else { return Ok(None) };
        listing.untracked = entries.untracked().into_iter().map(RepoPath).collect();
        let state = tree_state(&listing, self.top.as_fd(), entries, self.helper.program());
        let state = state.map_err(|error| io_error(self.basis.worktree.as_os_str().as_bytes(), error))?;
        Ok(Some(git_facts(listing, state)))
    }

    /// Returns the newly covered paths, and all ignored ones.
    fn find_new_paths(
        &self,
        before: &Snapshot,
        found: &ScanFindings,
    ) -> Result<(PathList, Arc<PathList>), IncrementalFailure> {
        let mut new = NewPaths::default();
        for (directory, names) in &found.names {
            self.collect_new_names(&before.entries, *directory, names, &mut new)?;
        }
        let directories: Vec<&[u8]> = new.directories.iter().map(Vec::as_slice).collect();
        let leaves: Vec<&[u8]> = new.leaves.iter().map(Vec::as_slice).collect();
        let (worktree, submodules) = (&self.basis.worktree, self.basis.known_submodules());
        let ignored = self.helper.query_ignored(worktree, submodules, &directories, &leaves);
        let ignored = ignored.map_err(SnapshotError::from)?;
        let (of_directories, of_leaves) = ignored.split_at(directories.len());
        if of_directories.contains(&false) {
            return Err(IncrementalFailure::ListingNeeded("a new directory is not ignored"));
        }
        let covered = leaves.iter().zip(of_leaves).filter(|(_, ignored)| !**ignored);
        let covered = covered.map(|(path, _)| path.to_vec()).collect();
        let ignored = leaves.iter().zip(of_leaves).filter(|(_, ignored)| **ignored).map(|(path, _)| path.to_vec());
        Ok((covered, current_ignored(before, found, new.directories.iter().cloned().chain(ignored))))
    }

    /// Collects the unknown names in a directory.
    fn collect_new_names(
        &self,
        known: &EntryTree,
        directory: usize,
        names: &NamesAndTypes,
        new: &mut NewPaths,
    ) -> Result<(), IncrementalFailure> {
        let path = known.directory_path(directory);
        self.check_repository(path, names)?;
        for (name, kind) in names.iter().filter(|(name, _)| name != b".git") {
            let path = paths::join(path, name);
            if *kind == FileType::Directory {
                let at = known.directory_index(&path);
                if at.is_none_or(|at| known.directory(at).scan_state.ignore_status == IgnoreStatus::NotEvaluated) {
                    new.directories.insert(path);
                }
            } else if known.leaf_index(directory, name).is_none() && !is_evidence_path(&path) {
                if matches!(name.as_slice(), b".gitignore" | b".gitattributes") {
                    return Err(IncrementalFailure::ListingNeeded("ignore rules were added to it"));
                }
                new.leaves.insert(path);
            }
        }
        Ok(())
    }

    /// Checks that a directory is a repository exactly if it was one before, and that it cannot become a repository
    /// without a change that a later scan notices.
    fn check_repository(&self, path: &[u8], names: &NamesAndTypes) -> Result<(), IncrementalFailure> {
        let was_one = path.is_empty() || self.basis.repositories.iter().any(|place| place.0 == path);
        let dot_git = names.iter().find(|(name, _)| name == b".git").map(|(_, kind)| *kind);
        if was_one != dot_git.is_some_and(|kind| self.is_repository_marker(path, kind)) {
            return Err(IncrementalFailure::ListingNeeded("a nested repository was added or removed"));
        }
        if !was_one && dot_git == Some(FileType::Directory) && !self.is_head_watched(path) {
            return Err(IncrementalFailure::ListingNeeded("a directory may become a repository"));
        }
        Ok(())
    }

    fn is_repository_marker(&self, path: &[u8], dot_git: FileType) -> bool {
        match dot_git {
            FileType::RegularFile => true,
            FileType::Directory => {
                let head = [&paths::join(path, b".git")[..], b"/HEAD"].concat();
                read_beneath::open_entry(self.top.as_fd(), &head).is_ok_and(|found| found.is_some())
            }
            _ => false,
        }
    }

    /// Checks whether the HEAD that would turn a directory into a repository is among the watched git files.
    fn is_head_watched(&self, path: &[u8]) -> bool {
        let head = [path, b"/.git/HEAD"].concat();
        let place = |source: &proctor_git::protocol::GitSourceFile| {
            source.place.as_os_str().as_bytes().strip_prefix(self.basis.worktree.as_os_str().as_bytes()).map(|inner| {
                let inner = inner.strip_prefix(b"/").unwrap_or(inner);
                paths::join(inner, &source.path.0)
            })
        };
        self.basis.sources.iter().flatten().any(|source| place(source).is_some_and(|path| path == head))
    }
}

/// Checks whether stat data that an index stores have changed. Git reads such a file again, and may convert it
/// differently.
fn has_stat_changes(before: &Snapshot, found: &ScanFindings) -> bool {
    let stat_before = |leaf: usize| before.entries.leaf_at(leaf).found.stat;
    found.leaves.iter().any(|(_, leaf, now)| now.stat != stat_before(*leaf))
}

/// Returns the ignored paths: for directories that changed, those among the current names, and for all others
/// the known ones.
fn current_ignored(earlier: &Snapshot, found: &ScanFindings, new: impl Iterator<Item = Vec<u8>>) -> Arc<PathList> {
    let (known, before) = (&earlier.entries, &earlier.ignored);
    if found.names.is_empty() && found.directories.is_empty() {
        return Arc::clone(before);
    }
    let path_of = |at: usize| known.directory_path(at);
    let gone = found.directories.iter().filter(|(_, look)| *look == DirectoryScanState::default());
    let changed: HashSet<&[u8]> =
        found.names.iter().map(|(at, _)| *at).chain(gone.map(|(at, _)| *at)).map(path_of).collect();
    let is_elsewhere = |path: &&Vec<u8>| !changed.contains(paths::split(path).0);
    let mut ignored: Vec<Vec<u8>> = before.iter().filter(is_elsewhere).cloned().chain(new).collect();
    for (directory, names) in &found.names {
        let is_known = |name: &[u8], kind: FileType| match kind {
            FileType::Directory => known
                .directory_index(&paths::join(path_of(*directory), name))
                .is_some_and(|at| known.directory(at).scan_state.ignore_status == IgnoreStatus::Ignored),
            _ => known
                .leaf_index(*directory, name)
                .is_some_and(|leaf| known.leaf_at(leaf).found.kind == ScannedKind::IgnoreRules),
        };
        let known = names.iter().filter(|(name, kind)| is_known(name, *kind));
        ignored.extend(known.map(|(name, _)| paths::join(path_of(*directory), name)));
    }
    ignored.sort_unstable();
    ignored.dedup();
    Arc::new(ignored)
}

type PathList = Vec<Vec<u8>>;

/// Paths that the earlier snapshot does not contain.
#[derive(Default)]
struct NewPaths {
    directories: BTreeSet<Vec<u8>>,
    leaves: BTreeSet<Vec<u8>>,
}
