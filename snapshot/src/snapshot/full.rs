//! Takes a full snapshot, for which git lists the tree. Stat data and hashes of an earlier snapshot are reused.

use std::collections::HashMap;
use std::os::fd::{AsFd as _, OwnedFd};
use std::os::unix::ffi::OsStrExt as _;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use proctor_core::model::drift::is_evidence_path;
use proctor_core::text::digest::Sha256Hex;
use proctor_git::files::file_stat::{FileTime, RacyWindow};
use proctor_git::files::read_beneath;
use proctor_git::files::repo_path::RepoPath;
use proctor_git::helper::GitHelper;
use proctor_git::index::GitIndex;
use proctor_git::protocol::WorktreeListing;
use rustix::fs::{FileType, fstat};

use super::{EncodedListing, ReuseBasis};
use crate::entries::{DirectoryScanState, EntryTree, IgnoreStatus, ScannedEntry, ScannedKind};
use crate::snapshot::git_facts::git_facts;
use crate::snapshot::snapshot_error::SnapshotError;
use crate::snapshot::taken_snapshot::{Snapshot, SnapshotMethod, SnapshotStats};
use crate::stat_scan::{EarlierEntries, ScanCounts, StatScan, io_error};
use crate::tree_state::tree_state;

/// Takes the snapshot. Tracked files are read while git lists the untracked ones.
pub(super) fn take_full(
    repo: &Path,
    helper: &GitHelper,
    before: Option<&Snapshot>,
    (at, settling): (FileTime, RacyWindow),
) -> Result<Snapshot, SnapshotError> {
    let stop = AtomicBool::new(false);
    let reading = FullSnapshotInput { before, started_at: at, racy_window: settling, stop: &stop };
    let (mut tree, listing, (encoded, basis)) = std::thread::scope(|scope| {
        let mut under_way = None;
        let listing = helper.list(repo, &mut |ahead| {
            under_way
                .get_or_insert_with(|| scope.spawn(move || reading.read_tracked(&ahead.worktree, Some(&ahead.index))));
        });
        stop.store(listing.is_err(), Ordering::Relaxed);
        // The other thread still reads files at this point.
        let basis = listing.as_ref().ok().map(|listing| {
            let encoded = EncodedListing::encode(listing);
            let basis = ReuseBasis::new(listing, &encoded, at);
            (encoded, basis)
        });
        let read = under_way.map(|work| work.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)));
        // An error of git is reported first, since it may also be the cause of an error while reading files.
        let listing = listing?;
        let tree =
            read.filter(|_| listing.sent_early).unwrap_or_else(|| reading.read_tracked(&listing.worktree, None))?;
        let (encoded, basis) = basis.unwrap_or_else(|| (EncodedListing::encode(&listing), None));
        Ok::<_, SnapshotError>((tree, listing, (encoded, basis)))
    })?;
    tree.add_remaining(&reading, &listing)?;
    tree.finish(&reading, listing, (encoded, basis), helper)
}

/// The settings with which a tree is read.
#[derive(Clone, Copy)]
struct FullSnapshotInput<'a> {
    before: Option<&'a Snapshot>,
    started_at: FileTime,
    racy_window: RacyWindow,
    stop: &'a AtomicBool,
}

/// A partly read tree.
struct PartialTree {
    top: OwnedFd,
    identity: (u64, u64),
    device: Option<u64>,
    entries: EntryTree,
    counts: ScanCounts,
}

impl<'a> FullSnapshotInput<'a> {
    /// Reads the files that an index tracks.
    fn read_tracked(self, worktree: &Path, index: Option<&GitIndex>) -> Result<PartialTree, SnapshotError> {
        let failed = |error| io_error(worktree.as_os_str().as_bytes(), error);
        let top = read_beneath::open_canonical(worktree).map_err(failed)?;
        let stat = fstat(&top).map_err(|errno| failed(errno.into()))?;
        let device = read_beneath::trusted_device(top.as_fd()).map_err(failed)?;
        let files = index.iter().flat_map(|index| index.files()).filter(|path| !is_evidence_path(path));
        let mut entries = EntryTree::from_tracked_paths(files);
        let mut counts = ScanCounts::default();
        entries.fill(|names, blanks| {
            let filled;
            (filled, counts) = self.stat_scan(&top, device, names).fill(blanks)?;
            Ok::<_, SnapshotError>(filled)
        })?;
        Ok(PartialTree { top, identity: (stat.st_dev, stat.st_ino), device, entries, counts })
    }

    fn stat_scan<'b>(self, top: &'b OwnedFd, device: Option<u64>, known: &'b EntryTree) -> StatScan<'b>
    where
        'a: 'b,
    {
        let before = self.before.filter(|before| before.basis.is_some()).map(|before| &*before.entries);
        StatScan {
            top: top.as_fd(),
            device,
            started_at: self.started_at,
            racy_window: self.racy_window,
            known,
            earlier: EarlierEntries::OtherTree(before),
            stop: self.stop,
        }
    }
}

impl PartialTree {
    /// Adds the paths that only the complete listing contains, and reads them.
    fn add_remaining(
        &mut self,
        reading: &FullSnapshotInput<'_>,
        listing: &WorktreeListing,
    ) -> Result<(), SnapshotError> {
        let rules = ScannedEntry { kind: ScannedKind::IgnoreRules, ..ScannedEntry::MISSING };
        let of = |paths: &[RepoPath], tracked: bool, found: ScannedEntry| -> Vec<_> {
            let counted = paths.iter().filter(|path| !is_evidence_path(&path.0));
            counted.map(|path| (path.0.clone(), tracked, found)).collect()
        };
        let mut added = of(&listing.tracked, true, ScannedEntry::MISSING);
        added.extend(of(&listing.untracked, false, ScannedEntry::MISSING));
        added.extend(of(&listing.rules, false, rules));
        let new: Vec<Vec<u8>> = added.iter().map(|(path, ..)| path.clone()).collect();
        added.extend(self.repositories(listing)?);
        let looks = listing.directories.iter().map(|directory| {
            let racy = self.device != Some(directory.stat.dev) || directory.stat.is_racy(reading.started_at);
            let look = DirectoryScanState { stat: directory.stat, racy, ignore_status: IgnoreStatus::Searched };
            (directory.path.0.as_slice(), look)
        });
        let looks: Vec<_> = looks.collect();
        // Most trees have no such paths, so that rebuilding the entries is unnecessary.
        if added.is_empty() && self.entries.update_scan_states(&looks) {
            return Ok(());
        }
        let looks: HashMap<_, _> = looks.into_iter().map(|(path, look)| (path.to_vec(), look)).collect();
        self.entries = self.entries.with_leaves(added, looks);
        let look = reading.stat_scan(&self.top, self.device, &self.entries);
        let looked = look.scan_paths(new.iter().map(Vec::as_slice))?;
        self.entries.apply_scan(&looked.leaves, &looked.directories);
        self.counts.add(looked.counts);
        Ok(())
    }

    /// Returns the repositories inside the tree, each identified by its commit.
    fn repositories(&self, listing: &WorktreeListing) -> Result<Vec<(Vec<u8>, bool, ScannedEntry)>, SnapshotError> {
        let mut found = Vec::new();
        for nested in &listing.nested {
            let path = &nested.path.0;
            let looked = read_beneath::open_entry(self.top.as_fd(), path).map_err(|source| io_error(path, source))?;
            let is_directory =
                looked.is_some_and(|(_, stat)| FileType::from_raw_mode(stat.st_mode) == FileType::Directory);
            if is_directory {
                let sha256 = Sha256Hex::digest(nested.commit.as_deref().unwrap_or_default().as_bytes()).to_raw();
                let tracked = listing.indexes.iter().any(|index| index.has_gitlink(path));
                found.push((
                    path.clone(),
                    tracked,
                    ScannedEntry { kind: ScannedKind::Gitlink, sha256, ..ScannedEntry::MISSING },
                ));
            }
        }
        Ok(found)
    }

    fn finish(
        self,
        reading: &FullSnapshotInput<'_>,
        listing: WorktreeListing,
        (encoded, basis): (EncodedListing, Option<ReuseBasis>),
        helper: &GitHelper,
    ) -> Result<Snapshot, SnapshotError> {
        let state = tree_state(&listing, self.top.as_fd(), &self.entries, helper.program())
            .map_err(|error| io_error(listing.worktree.as_os_str().as_bytes(), error))?;
        let basis = basis.filter(|basis| self.device.is_some() && basis.top == self.identity);
        let method = match (self.device, reading.before.is_some_and(|before| before.basis.is_some())) {
            (None, _) => SnapshotMethod::Rehash,
            (Some(_), true) => SnapshotMethod::Stat,
            (Some(_), false) => SnapshotMethod::First,
        };
        let ignored =
            listing.ignored.iter().map(|path| path.0.clone()).filter(|path| !is_evidence_path(path)).collect();
        Ok(Snapshot {
            id: self.entries.id(),
            entries: Arc::new(self.entries),
            git: git_facts(listing, state),
            ignored: Arc::new(ignored),
            listing: encoded,
            stats: SnapshotStats::new(method, self.counts, true),
            started_at: reading.started_at,
            basis: basis.map(Arc::new),
        })
    }
}
