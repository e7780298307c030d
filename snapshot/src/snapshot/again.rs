//! Takes an incremental snapshot, for which git's listing is not needed: git's files and the ignore rules are
//! unchanged. The git helper is only asked about new paths in the tree.

use std::collections::{BTreeSet, HashMap, HashSet};
use std::os::fd::{AsFd as _, OwnedFd};
use std::os::unix::ffi::OsStrExt as _;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use proctor_core::drift::is_our_artifact;
use rustix::fs::{FileType, fstat};

use super::{Basis, Snapshot, SnapshotError, SnapshotMethod, SnapshotStats, facts};
use crate::beneath;
use crate::entries::{DirectoryLook, Entries, Found, Kind, State};
use crate::git::helper::GitHelper;
use crate::git::protocol::RepoPath;
use crate::git::state::tree_state;
use crate::look::{Before, Counts, Findings, Look, Names, io_error};
use crate::paths;
use crate::stamp::{Moment, Settling};

/// Takes the snapshot. Returns `None` if git has to list the tree.
pub(super) fn take(
    before: &Snapshot,
    helper: &GitHelper,
    (at, settling): (Moment, Settling),
) -> Result<Option<Snapshot>, SnapshotError> {
    let Some(basis) = &before.basis else { return Ok(None) };
    let Some(top) = basis.open() else { return Ok(None) };
    if !basis.git_is_unchanged() {
        tracing::debug!(repo = %basis.worktree.display(), "git's files changed, or may have changed");
        return Ok(None);
    }
    let again = Again { before, basis, top, at, settling, helper, stop: AtomicBool::new(false) };
    let findings = again.look(&before.entries, Before::Known).everywhere()?;
    match again.entries(&findings) {
        Ok(now) => again.finish(&findings, now),
        Err(Stopped::Failed(error)) => Err(error),
        Err(Stopped::Upset(why)) => {
            tracing::debug!(repo = %basis.worktree.display(), why, "git has to be asked what the tree covers");
            Ok(None)
        }
    }
}

impl Basis {
    /// Opens the top of the work tree. Returns `None` if it is another directory, or if timestamps on its device do
    /// not reveal every change.
    fn open(&self) -> Option<OwnedFd> {
        let top = beneath::open_real(&self.worktree).ok()?;
        let stat = fstat(&top).ok()?;
        let is_same =
            (stat.st_dev, stat.st_ino) == self.top && beneath::trusted_device(top.as_fd()).ok()? == Some(stat.st_dev);
        is_same.then_some(top)
    }
}

/// Why no incremental snapshot can be taken.
enum Stopped {
    /// The known entries do not determine which paths are covered.
    Upset(&'static str),
    Failed(SnapshotError),
}

impl<E: Into<SnapshotError>> From<E> for Stopped {
    fn from(error: E) -> Self {
        Self::Failed(error.into())
    }
}

struct Again<'a> {
    before: &'a Snapshot,
    basis: &'a Arc<Basis>,
    top: OwnedFd,
    at: Moment,
    settling: Settling,
    helper: &'a GitHelper,
    stop: AtomicBool,
}

impl Again<'_> {
    fn look<'b>(&'b self, known: &'b Entries, before: Before<'b>) -> Look<'b> {
        let device = Some(self.basis.top.0);
        Look { top: self.top.as_fd(), device, at: self.at, settling: self.settling, known, before, stop: &self.stop }
    }

    /// Returns the current entries of the tree.
    fn entries(&self, found: &Findings) -> Result<Now, Stopped> {
        let known = &self.before.entries;
        if let Some(why) = found.upset {
            return Err(Stopped::Upset(why));
        }
        let (new, ignored) = self.new_paths(found)?;
        if found.leaves.is_empty() && found.directories.is_empty() {
            return Ok(Now { entries: Arc::clone(known), ignored, counts: found.counts });
        }
        let (mut entries, mut counts) = (Entries::clone(known), found.counts);
        entries.take_over(&found.leaves, &found.directories);
        if !new.is_empty() {
            let added = new.iter().map(|path| (path.clone(), false, Found::MISSING)).collect();
            entries = entries.with(added, HashMap::new());
            let looked = self.look(&entries, Before::Other(None)).at_paths(new.iter().map(Vec::as_slice))?;
            entries.take_over(&looked.leaves, &[]);
            counts.add(looked.counts);
        }
        Ok(Now { entries: Arc::new(entries), ignored, counts })
    }

    /// Returns the newly covered paths, and all ignored ones.
    fn new_paths(&self, found: &Findings) -> Result<(Paths, Arc<Paths>), Stopped> {
        let mut new = Unknown::default();
        for (directory, names) in &found.names {
            self.sort_out(*directory, names, &mut new)?;
        }
        let directories: Vec<&[u8]> = new.directories.iter().map(Vec::as_slice).collect();
        let leaves: Vec<&[u8]> = new.leaves.iter().map(Vec::as_slice).collect();
        let (worktree, submodules) = (&self.basis.worktree, self.basis.known_submodules());
        let ignored = self.helper.ignored_among(worktree, submodules, &directories, &leaves);
        let ignored = ignored.map_err(SnapshotError::from)?;
        let (of_directories, of_leaves) = ignored.split_at(directories.len());
        if of_directories.contains(&false) {
            return Err(Stopped::Upset("a new directory is not ignored"));
        }
        let covered = leaves.iter().zip(of_leaves).filter(|(_, ignored)| !**ignored);
        let covered = covered.map(|(path, _)| path.to_vec()).collect();
        let ignored = leaves.iter().zip(of_leaves).filter(|(_, ignored)| **ignored).map(|(path, _)| path.to_vec());
        Ok((covered, self.ignored(found, new.directories.iter().cloned().chain(ignored))))
    }

    /// Returns the ignored paths: for directories that changed, those among the current names, and for all others
    /// the known ones.
    fn ignored(&self, found: &Findings, new: impl Iterator<Item = Vec<u8>>) -> Arc<Paths> {
        let before = &self.before.ignored;
        if found.names.is_empty() && found.directories.is_empty() {
            return Arc::clone(before);
        }
        let known = &self.before.entries;
        let path_of = |at: usize| known.directory_path(at);
        let gone = found.directories.iter().filter(|(_, look)| *look == DirectoryLook::default());
        let changed: HashSet<&[u8]> =
            found.names.iter().map(|(at, _)| *at).chain(gone.map(|(at, _)| *at)).map(path_of).collect();
        let is_elsewhere = |path: &&Vec<u8>| !changed.contains(paths::split(path).0);
        let mut ignored: Vec<Vec<u8>> = before.iter().filter(is_elsewhere).cloned().chain(new).collect();
        for (directory, names) in &found.names {
            let is_known = |name: &[u8], kind: FileType| match kind {
                FileType::Directory => known
                    .find(&paths::join(path_of(*directory), name))
                    .is_some_and(|at| known.directory(at).look.state == State::Ignored),
                _ => known.leaf_in(*directory, name).is_some_and(|leaf| known.leaf_at(leaf).found.kind == Kind::Rules),
            };
            let known = names.iter().filter(|(name, kind)| is_known(name, *kind));
            ignored.extend(known.map(|(name, _)| paths::join(path_of(*directory), name)));
        }
        ignored.sort_unstable();
        ignored.dedup();
        Arc::new(ignored)
    }

    /// Collects the unknown names in a directory.
    fn sort_out(&self, directory: usize, names: &Names, new: &mut Unknown) -> Result<(), Stopped> {
        let known = &self.before.entries;
        let path = known.directory_path(directory);
        self.check_repository(path, names)?;
        for (name, kind) in names.iter().filter(|(name, _)| name != b".git") {
            let path = paths::join(path, name);
            if *kind == FileType::Directory {
                let at = known.find(&path);
                if at.is_none_or(|at| known.directory(at).look.state == State::Unasked) {
                    new.directories.insert(path);
                }
            } else if known.leaf_in(directory, name).is_none() && !is_our_artifact(&path) {
                if matches!(name.as_slice(), b".gitignore" | b".gitattributes") {
                    return Err(Stopped::Upset("rules came to it"));
                }
                new.leaves.insert(path);
            }
        }
        Ok(())
    }

    /// Checks that a directory is a repository exactly if it was one before, and that it cannot become a repository
    /// without a change that a later scan notices.
    fn check_repository(&self, path: &[u8], names: &Names) -> Result<(), Stopped> {
        let was_one = path.is_empty() || self.basis.repositories.iter().any(|place| place.0 == path);
        let dot_git = names.iter().find(|(name, _)| name == b".git").map(|(_, kind)| *kind);
        if was_one != dot_git.is_some_and(|kind| self.makes_repository(path, kind)) {
            return Err(Stopped::Upset("a repository came or went"));
        }
        if !was_one && dot_git == Some(FileType::Directory) && !self.awaits_head(path) {
            return Err(Stopped::Upset("a directory may become a repository"));
        }
        Ok(())
    }

    fn makes_repository(&self, path: &[u8], dot_git: FileType) -> bool {
        match dot_git {
            FileType::RegularFile => true,
            FileType::Directory => {
                let head = [&paths::join(path, b".git")[..], b"/HEAD"].concat();
                beneath::look(self.top.as_fd(), &head).is_ok_and(|found| found.is_some())
            }
            _ => false,
        }
    }

    /// Checks whether the HEAD that would turn a directory into a repository is among the watched git files.
    fn awaits_head(&self, path: &[u8]) -> bool {
        let head = [path, b"/.git/HEAD"].concat();
        let place = |source: &crate::git::protocol::Source| {
            source.place.as_os_str().as_bytes().strip_prefix(self.basis.worktree.as_os_str().as_bytes()).map(|inner| {
                let inner = inner.strip_prefix(b"/").unwrap_or(inner);
                paths::join(inner, &source.path.0)
            })
        };
        self.basis.sources.iter().flatten().any(|source| place(source).is_some_and(|path| path == head))
    }

    /// Checks whether stat data that an index stores have changed. Git reads such a file again, and may convert it
    /// differently.
    fn is_touched(&self, found: &Findings) -> bool {
        let before = |leaf: usize| self.before.entries.leaf_at(leaf).found.stamp;
        found.leaves.iter().any(|(_, leaf, now)| now.stamp != before(*leaf))
    }

    /// Builds the snapshot. Returns `None` if git's listing is needed but lost.
    fn finish(self, found: &Findings, now: Now) -> Result<Option<Snapshot>, SnapshotError> {
        let Now { entries, ignored, counts } = now;
        let id = entries.id();
        let git = if id == self.before.id && !self.is_touched(found) {
            self.before.git.clone()
        } else {
            let Some(mut listing) = self.basis.listing.read() else { return Ok(None) };
            listing.untracked = entries.untracked().map(RepoPath).collect();
            let state = tree_state(&listing, self.top.as_fd(), &entries, self.helper.program());
            let failed = |error| io_error(self.basis.worktree.as_os_str().as_bytes(), error);
            facts(listing, state.map_err(failed)?)
        };
        let (stats, basis) = (SnapshotStats::of(SnapshotMethod::Stat, counts, false), Some(Arc::clone(self.basis)));
        let listing = self.basis.listing.clone();
        Ok(Some(Snapshot { id, entries, git, stats, ignored, listing, at: self.at, basis }))
    }
}

type Paths = Vec<Vec<u8>>;

/// The current state of the tree.
struct Now {
    entries: Arc<Entries>,
    ignored: Arc<Vec<Vec<u8>>>,
    counts: Counts,
}

/// Paths that the earlier snapshot does not contain.
#[derive(Default)]
struct Unknown {
    directories: BTreeSet<Vec<u8>>,
    leaves: BTreeSet<Vec<u8>>,
}
