//! Takes a full snapshot, for which git lists the tree. Stat data and hashes of an earlier snapshot are reused.

use std::collections::HashMap;
use std::os::fd::{AsFd as _, OwnedFd};
use std::os::unix::ffi::OsStrExt as _;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use proctor_core::digest::Sha256Hex;
use proctor_core::drift::is_our_artifact;
use rustix::fs::{FileType, fstat};

use super::{Basis, Snapshot, SnapshotError, SnapshotMethod, SnapshotStats, Told, facts};
use crate::beneath;
use crate::entries::{DirectoryLook, Entries, Found, Kind, State};
use crate::git::helper::GitHelper;
use crate::git::protocol::{Index, Listing, RepoPath};
use crate::git::state::tree_state;
use crate::look::{Before, Counts, Look, io_error};
use crate::stamp::{Moment, Settling};

/// Takes the snapshot. Tracked files are read while git lists the untracked ones.
pub(super) fn take(
    repo: &Path,
    helper: &GitHelper,
    before: Option<&Snapshot>,
    (at, settling): (Moment, Settling),
) -> Result<Snapshot, SnapshotError> {
    let stop = AtomicBool::new(false);
    let reading = Reading { before, at, settling, stop: &stop };
    let (mut tree, listing, (told, basis)) = std::thread::scope(|scope| {
        let mut under_way = None;
        let listing = helper.list(repo, &mut |ahead| {
            under_way.get_or_insert_with(|| scope.spawn(move || reading.tracked(&ahead.worktree, Some(&ahead.index))));
        });
        stop.store(listing.is_err(), Ordering::Relaxed);
        // The other thread still reads files at this point.
        let basis = listing.as_ref().ok().map(|listing| {
            let told = Told::of(listing);
            let basis = Basis::new(listing, &told, at);
            (told, basis)
        });
        let read = under_way.map(|work| work.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)));
        // An error of git is reported first, since it may also be the cause of an error while reading files.
        let listing = listing?;
        let tree = read.filter(|_| listing.told_ahead).unwrap_or_else(|| reading.tracked(&listing.worktree, None))?;
        let (told, basis) = basis.unwrap_or_else(|| (Told::of(&listing), None));
        Ok::<_, SnapshotError>((tree, listing, (told, basis)))
    })?;
    tree.add(&reading, &listing)?;
    tree.finish(&reading, listing, (told, basis), helper)
}

/// The settings with which a tree is read.
#[derive(Clone, Copy)]
struct Reading<'a> {
    before: Option<&'a Snapshot>,
    at: Moment,
    settling: Settling,
    stop: &'a AtomicBool,
}

/// A partly read tree.
struct Tree {
    top: OwnedFd,
    identity: (u64, u64),
    device: Option<u64>,
    entries: Entries,
    counts: Counts,
}

impl<'a> Reading<'a> {
    /// Reads the files that an index tracks.
    fn tracked(self, worktree: &Path, index: Option<&Index>) -> Result<Tree, SnapshotError> {
        let failed = |error| io_error(worktree.as_os_str().as_bytes(), error);
        let top = beneath::open_real(worktree).map_err(failed)?;
        let stat = fstat(&top).map_err(|errno| failed(errno.into()))?;
        let device = beneath::trusted_device(top.as_fd()).map_err(failed)?;
        let files = index.iter().flat_map(|index| index.files()).filter(|path| !is_our_artifact(path));
        let mut entries = Entries::of_tracked(files);
        let mut counts = Counts::default();
        entries.fill(|names, blanks| {
            let filled;
            (filled, counts) = self.look(&top, device, names).fill(blanks)?;
            Ok::<_, SnapshotError>(filled)
        })?;
        Ok(Tree { top, identity: (stat.st_dev, stat.st_ino), device, entries, counts })
    }

    fn look<'b>(self, top: &'b OwnedFd, device: Option<u64>, known: &'b Entries) -> Look<'b>
    where
        'a: 'b,
    {
        let before = self.before.filter(|before| before.basis.is_some()).map(|before| &*before.entries);
        Look {
            top: top.as_fd(),
            device,
            at: self.at,
            settling: self.settling,
            known,
            before: Before::Other(before),
            stop: self.stop,
        }
    }
}

impl Tree {
    /// Adds the paths that only the complete listing contains, and reads them.
    fn add(&mut self, reading: &Reading<'_>, listing: &Listing) -> Result<(), SnapshotError> {
        let rules = Found { kind: Kind::Rules, ..Found::MISSING };
        let of = |paths: &[RepoPath], tracked: bool, found: Found| -> Vec<_> {
            let counted = paths.iter().filter(|path| !is_our_artifact(&path.0));
            counted.map(|path| (path.0.clone(), tracked, found)).collect()
        };
        let mut added = of(&listing.tracked, true, Found::MISSING);
        added.extend(of(&listing.untracked, false, Found::MISSING));
        added.extend(of(&listing.rules, false, rules));
        let new: Vec<Vec<u8>> = added.iter().map(|(path, ..)| path.clone()).collect();
        added.extend(self.repositories(listing)?);
        let looks = listing.directories.iter().map(|directory| {
            let racy = self.device != Some(directory.stamp.dev) || directory.stamp.is_racy(reading.at);
            let look = DirectoryLook { stamp: directory.stamp, racy, state: State::Walked };
            (directory.path.0.as_slice(), look)
        });
        let looks: Vec<_> = looks.collect();
        // Most trees have no such paths, so that rebuilding the entries is unnecessary.
        if added.is_empty() && self.entries.take_looks(&looks) {
            return Ok(());
        }
        let looks: HashMap<_, _> = looks.into_iter().map(|(path, look)| (path.to_vec(), look)).collect();
        self.entries = self.entries.with(added, looks);
        let look = reading.look(&self.top, self.device, &self.entries);
        let looked = look.at_paths(new.iter().map(Vec::as_slice))?;
        self.entries.take_over(&looked.leaves, &looked.directories);
        self.counts.add(looked.counts);
        Ok(())
    }

    /// Returns the repositories inside the tree, each identified by its commit.
    fn repositories(&self, listing: &Listing) -> Result<Vec<(Vec<u8>, bool, Found)>, SnapshotError> {
        let mut found = Vec::new();
        for nested in &listing.nested {
            let path = &nested.path.0;
            let looked = beneath::look(self.top.as_fd(), path).map_err(|source| io_error(path, source))?;
            let is_directory =
                looked.is_some_and(|(_, stat)| FileType::from_raw_mode(stat.st_mode) == FileType::Directory);
            if is_directory {
                let sha256 = Sha256Hex::of(nested.commit.as_deref().unwrap_or_default().as_bytes()).to_raw();
                let tracked = listing.indexes.iter().any(|index| index.holds_gitlink(path));
                found.push((path.clone(), tracked, Found { kind: Kind::Gitlink, sha256, ..Found::MISSING }));
            }
        }
        Ok(found)
    }

    fn finish(
        self,
        reading: &Reading<'_>,
        listing: Listing,
        (told, basis): (Told, Option<Basis>),
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
        let ignored = listing.ignored.iter().map(|path| path.0.clone()).filter(|path| !is_our_artifact(path)).collect();
        Ok(Snapshot {
            id: self.entries.id(),
            entries: Arc::new(self.entries),
            git: facts(listing, state),
            ignored: Arc::new(ignored),
            listing: told,
            stats: SnapshotStats::of(method, self.counts, true),
            at: reading.at,
            basis: basis.map(Arc::new),
        })
    }
}
