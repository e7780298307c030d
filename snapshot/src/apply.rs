//! Carries the changes of a `read_only: off` step into the worktree, after it has passed.
//!
//! Everything is checked before anything is written. What was checked is written file by file, each
//! atomically, in place of exactly what was checked; where somebody was faster, all of it is taken back.
//! Nothing below a `.git` is ever written or removed, nor are special files or evidence of ours.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::os::fd::BorrowedFd;

use proctor_core::drift::{EntryKind, display_path};
use proctor_core::plan::RelPath;
use rustix::fs::OFlags;

use crate::beneath::{self, Found};
use crate::drift::is_aside;
use crate::git::GitError;
use crate::git::helper::IgnoreQuery;
use crate::layer::{FileContent, LayerEntry, LayerScan};
use crate::paths;
use crate::stamp::Stamp;
use crate::view::{Standing, View, standing_of};

mod stage;
mod write;

/// What is carried where.
#[derive(Debug, Clone, Copy)]
pub struct ApplyInput<'a> {
    /// The top of the real tree.
    pub repo: BorrowedFd<'a>,
    /// The tree before the step.
    pub view: &'a View,
    /// The step's layer.
    pub scan: &'a LayerScan,
    /// The upper directory that `scan` was read from.
    pub upper: BorrowedFd<'a>,
    /// The ignore rules of the real tree.
    pub ignored: &'a IgnoreQuery,
    /// The skill's caches, which are no part of the tree.
    pub caches: &'a [RelPath],
}

/// Why the changes were not applied, or not all of them.
#[derive(Debug, thiserror::Error)]
pub enum ApplyError {
    /// Someone changed the same paths meanwhile. Nothing was written.
    #[error("the tree changed while the step ran, at {}\nhint: nothing was applied; run again", .paths.join(", "))]
    Conflict {
        /// The paths, for people; sorted.
        paths: Vec<String>,
    },
    /// The step wrote something that is not carried over. Nothing was written.
    #[error("`{path}` cannot be applied to the tree: {problem}\nhint: nothing was applied; change the step")]
    Refused {
        /// The path, for people.
        path: String,
        /// Why.
        problem: &'static str,
    },
    /// The git helper could not say which paths are ignored. Nothing was written.
    #[error(transparent)]
    Git(#[from] GitError),
    /// A path could not be read or written. What was written by then was taken back.
    #[error(
        "cannot apply the step's change of `{path}`: {source}\nhint: nothing was applied; fix the cause, and run again"
    )]
    Io {
        /// The path, for people.
        path: String,
        /// The system's own words.
        source: io::Error,
    },
    /// Somebody changed the same paths while they were written, and again while that was taken back.
    #[error(
        "the step's changes were rolled back, except at {}, where another program wrote first\nhint: the earlier content may be in `{kept}`; compare both, then remove it",
        .paths.join(", ")
    )]
    Torn {
        /// The paths, for people; sorted.
        paths: Vec<String>,
        /// The directory at the top of the tree that holds what stood there.
        kept: String,
    },
}

/// How many entries of a deleted directory are looked at.
const MAX_DELETED: usize = 1_000_000;

/// Applies the step's changes; the paths that were written or removed, sorted.
///
/// # Errors
/// The tree changed meanwhile, or a path could not be written; nothing was, then.
pub fn apply_back(input: ApplyInput<'_>) -> Result<Vec<Vec<u8>>, ApplyError> {
    let changes = changes(&input)?;
    let seen = check(&input, &changes)?;
    write::write(&input, &changes, &seen)
}

/// What really stood at each path that is overwritten or removed, when it was checked.
type Seen = BTreeMap<Vec<u8>, Standing>;

/// The entries of the layer that are carried over, by path: those that differ from the tree.
type Changes<'a> = BTreeMap<&'a [u8], &'a LayerEntry>;

fn changes<'a>(input: &ApplyInput<'a>) -> Result<Changes<'a>, ApplyError> {
    let mut changes = Changes::new();
    for (path, entry) in &input.scan.entries {
        if stays(input, path) || *entry == LayerEntry::Special {
            continue;
        }
        if matches!(entry, LayerEntry::File { content: FileContent::BeyondBound | FileContent::Spared, .. }) {
            return Err(ApplyError::Refused { path: display_path(path), problem: "it is too large to be checked" });
        }
        if must_write(input, path, entry)? {
            changes.insert(path, entry);
        }
    }
    Ok(changes)
}

/// Whether a path is never written or removed.
fn stays(input: &ApplyInput<'_>, path: &[u8]) -> bool {
    paths::in_git_dir(path) || is_aside(path, input.caches) || input.scan.reports.contains(path)
}

/// Whether an entry is anything new; of what the view does not know, the real tree is asked.
fn must_write(input: &ApplyInput<'_>, path: &[u8], entry: &LayerEntry) -> Result<bool, ApplyError> {
    let after = standing_of(entry);
    if !matches!(after, Standing::Entry(_)) {
        return Ok(true);
    }
    match input.view.standing(path) {
        Standing::Uncovered => Ok(real(input, path)? != after),
        known => Ok(known != after),
    }
}

fn real(input: &ApplyInput<'_>, path: &[u8]) -> Result<Standing, ApplyError> {
    let found = beneath::read(input.repo, path, u64::MAX);
    found.map(standing_in).map_err(|source| untouched(path, source))
}

fn standing_in(found: Found) -> Standing {
    match found {
        Found::Entry(entry) => Standing::Entry(entry),
        Found::Unread(_) => Standing::Unhashed(0),
        Found::Directory => Standing::Directory,
        Found::Nothing => Standing::Absent,
    }
}

/// The error for a path that could not be read before anything was written.
fn untouched(path: &[u8], source: io::Error) -> ApplyError {
    ApplyError::Io { path: display_path(path), source }
}

/// Checks that the layer's files can be read, and that the real tree still is what the step saw,
/// wherever something is overwritten or removed that a snapshot would cover. Ignored files have
/// no record to be compared with: those count that were changed since the run began.
fn check(input: &ApplyInput<'_>, changes: &Changes<'_>) -> Result<Seen, ApplyError> {
    let mut seen = Seen::new();
    let mut doubtful: BTreeSet<Vec<u8>> = BTreeSet::new();
    for (path, entry) in changes {
        if replaces_repository(input, path, entry) {
            let problem = "it would take the place of a repository";
            return Err(ApplyError::Refused { path: display_path(path), problem });
        }
        if matches!(entry, LayerEntry::File { .. }) {
            let readable = beneath::open(input.upper, path, OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOCTTY);
            readable.map_err(|source| untouched(path, source))?;
        }
        let real = real(input, path)?;
        if !agrees(input, path, entry, &real) {
            doubtful.insert(path.to_vec());
        }
        seen.insert(path.to_vec(), real);
        if **entry != (LayerEntry::Directory { opaque: false }) {
            doubtful.extend(disagreeing_below(input, path, &mut seen)?);
        }
    }
    let asked: Vec<&[u8]> = doubtful.iter().map(Vec::as_slice).collect();
    let covered = input.view.covers(&asked, input.ignored)?;
    let (covered, others): (Vec<_>, Vec<_>) = asked.iter().zip(covered).partition(|(_, covered)| *covered);
    if !covered.is_empty() {
        return Err(ApplyError::Conflict { paths: covered.iter().map(|(path, _)| display_path(path)).collect() });
    }
    for (path, _) in others {
        if let Some(problem) = unseen(input, path)? {
            return Err(ApplyError::Refused { path: display_path(path), problem });
        }
    }
    Ok(seen)
}

/// Why what stands at a path that no snapshot covers would be lost, although the step never saw it.
fn unseen(input: &ApplyInput<'_>, path: &[u8]) -> Result<Option<&'static str>, ApplyError> {
    // An earlier step removed it in a layer that is never applied, so this one began without it.
    if input.view.standing(path) == Standing::Absent {
        return Ok(Some("the tree has an ignored file there that the step never saw, and that would be lost"));
    }
    let found = beneath::look(input.repo, path).map_err(|source| untouched(path, source))?;
    let is_newer = found.is_some_and(|(_, stat)| Stamp::of(&stat).is_after(input.view.base().at));
    Ok(is_newer.then_some("an ignored file there was changed during the run, and the change would be lost"))
}

fn replaces_repository(input: &ApplyInput<'_>, path: &[u8], entry: &LayerEntry) -> bool {
    let is_leaf = matches!(entry, LayerEntry::File { .. } | LayerEntry::Symlink { .. });
    let is_repository = |standing: &Standing| matches!(standing, Standing::Entry(e) if e.kind == EntryKind::Gitlink);
    is_leaf && (is_repository(&input.view.standing(path)) || input.view.known_below(path).values().any(is_repository))
}

/// Whether what really stands at `path` is what the view has there, or what the step made of it.
fn agrees(input: &ApplyInput<'_>, path: &[u8], entry: &LayerEntry, real: &Standing) -> bool {
    if *real == standing_of(entry) {
        return true;
    }
    match input.view.standing(path) {
        Standing::Entry(before) if before.kind == EntryKind::Gitlink => *real == Standing::Directory,
        Standing::Entry(before) => *real == Standing::Entry(before),
        // A directory is judged by what is in it.
        Standing::Absent | Standing::Uncovered | Standing::Directory => {
            matches!(real, Standing::Absent | Standing::Directory)
        }
        Standing::Unhashed(_) => false,
    }
}

/// What really stands below a directory that the step removed or replaced, and differs from
/// what the view has there. All that stands there is noted.
fn disagreeing_below(input: &ApplyInput<'_>, path: &[u8], seen: &mut Seen) -> Result<Vec<Vec<u8>>, ApplyError> {
    let listed = beneath::leaves(input.repo, path, MAX_DELETED).map_err(|source| untouched(path, source))?;
    let problem = "the directory that it replaces has too many entries to be checked";
    let leaves = listed.ok_or_else(|| ApplyError::Refused { path: display_path(path), problem })?;
    let mut found = Vec::new();
    for leaf in leaves {
        // What is in the layer too is compared by its own entry.
        let is_own = input.scan.entries.contains_key(&leaf);
        if is_own || stays(input, &leaf) {
            continue;
        }
        let real = real(input, &leaf)?;
        if real != input.view.standing(&leaf) {
            found.push(leaf.clone());
        }
        seen.insert(leaf, real);
    }
    Ok(found)
}
