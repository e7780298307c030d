//! Carries the changes of a `read_only: off` step into the worktree after the step has passed.
//!
//! All preconditions are checked before anything is written. Each file is then replaced atomically, and only if the
//! replaced entry is the one that was checked. If another process changed an entry after the check, all changes are
//! reverted. Anything below a `.git`, special files and Proctor's own evidence are never written or removed.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::os::fd::BorrowedFd;

use proctor_core::model::drift::{EntryKind, display_path};
use proctor_core::model::plan::RelPath;
use proctor_git::error::GitError;
use proctor_git::files::file_stat::FileStat;
use proctor_git::files::paths;
use proctor_git::files::read_beneath;
use proctor_git::helper::IgnoreQuery;
use rustix::fs::OFlags;

use crate::drift::is_excluded;
use crate::layer::layer_scan::{FileContent, LayerEntry, LayerScan};
use crate::tree_view::{PathState, TreeView, path_state_from_layer, path_state_from_read};

mod staging;

pub use staging::is_staging_path;
mod write;

/// The inputs of [`apply_back`].
#[derive(Debug, Clone, Copy)]
pub struct ApplyInput<'a> {
    /// The top of the real tree.
    pub repo: BorrowedFd<'a>,
    /// The tree before the step.
    pub view: &'a TreeView,
    /// The step's layer.
    pub scan: &'a LayerScan,
    /// The upper directory that `scan` was read from.
    pub upper: BorrowedFd<'a>,
    /// The ignore rules of the real tree.
    pub ignored: &'a IgnoreQuery,
    /// The skill's caches, which are not part of the tree.
    pub caches: &'a [RelPath],
}

/// The reason why the changes were not applied, or not completely.
#[derive(Debug, thiserror::Error)]
pub enum ApplyError {
    /// Another process changed the same paths during the run. The tree is unchanged, since changes made before were
    /// reverted.
    #[error("the tree changed while the step ran, at {}\nhint: nothing was applied; run again", .paths.join(", "))]
    Conflict {
        /// The paths in human-readable form, sorted.
        paths: Vec<String>,
    },
    /// The step wrote an entry that cannot be applied. Nothing was written.
    #[error("`{path}` cannot be applied to the tree: {problem}\nhint: nothing was applied; change the step")]
    Refused {
        /// The path, in human-readable form.
        path: String,
        /// The reason.
        problem: &'static str,
    },
    /// The git helper could not report which paths are ignored. Nothing was written.
    #[error(transparent)]
    Git(#[from] GitError),
    /// A path could not be read or written. The changes made before were reverted.
    #[error(
        "cannot apply the step's change of `{path}`: {source}\nhint: nothing was applied; fix the cause, and run again"
    )]
    Io {
        /// The path, in human-readable form.
        path: String,
        /// The system error.
        source: io::Error,
    },
    /// Another process changed the same paths while they were written, and again while the changes were reverted.
    #[error(
        "the step's changes were rolled back, except at {}, where another program wrote first\nhint: the earlier content may be in `{kept}`; compare both, then remove it",
        .paths.join(", ")
    )]
    PartlyRolledBack {
        /// The paths in human-readable form, sorted.
        paths: Vec<String>,
        /// The directory at the top of the tree that contains the original entries.
        kept: String,
    },
}

/// Maximum number of entries of a deleted directory that are examined.
const MAX_DELETED: usize = 1_000_000;

/// Applies the step's changes. Returns the paths that were written or removed, sorted.
///
/// # Errors
/// The tree changed during the run, or a path could not be written. The tree is unchanged then, except in the case
/// of [`ApplyError::PartlyRolledBack`].
pub fn apply_back(input: ApplyInput<'_>) -> Result<Vec<Vec<u8>>, ApplyError> {
    let changes = collect_changes(&input)?;
    let checked = check_preconditions(&input, &changes)?;
    write::write_changes(&input, &changes, &checked)
}

/// The actual entries, at the time of the check, of all paths that are overwritten or removed.
type CheckedEntries = BTreeMap<Vec<u8>, PathState>;

/// The entries of the layer that are applied, by path: those that differ from the tree.
type PendingChanges<'a> = BTreeMap<&'a [u8], &'a LayerEntry>;

fn collect_changes<'a>(input: &ApplyInput<'a>) -> Result<PendingChanges<'a>, ApplyError> {
    let mut changes = PendingChanges::new();
    for (path, entry) in &input.scan.entries {
        if is_protected(input, path) || *entry == LayerEntry::Special {
            continue;
        }
        if matches!(entry, LayerEntry::File { content: FileContent::BeyondBound | FileContent::Spared, .. }) {
            return Err(ApplyError::Refused { path: display_path(path), problem: "it is too large to be compared" });
        }
        if differs_from_tree(input, path, entry)? {
            changes.insert(path, entry);
        }
    }
    Ok(changes)
}

/// Checks whether a path must never be written or removed.
fn is_protected(input: &ApplyInput<'_>, path: &[u8]) -> bool {
    paths::is_in_git_dir(path) || is_excluded(path, input.caches) || input.scan.reports.contains(path)
}

/// Checks whether an entry differs from the tree. The real tree is read for paths that the view does not cover.
fn differs_from_tree(input: &ApplyInput<'_>, path: &[u8], entry: &LayerEntry) -> Result<bool, ApplyError> {
    let after = path_state_from_layer(entry);
    if !matches!(after, PathState::Entry(_)) {
        return Ok(true);
    }
    match input.view.path_state(path) {
        PathState::Uncovered => Ok(tree_entry(input, path)? != after),
        known => Ok(known != after),
    }
}

fn tree_entry(input: &ApplyInput<'_>, path: &[u8]) -> Result<PathState, ApplyError> {
    let found = read_beneath::read(input.repo, path, u64::MAX);
    found.map(path_state_from_read).map_err(|source| unapplied_io_error(path, source))
}

/// Makes the error for a path that could not be read before anything was written.
fn unapplied_io_error(path: &[u8], source: io::Error) -> ApplyError {
    ApplyError::Io { path: display_path(path), source }
}

/// Checks that the layer's files are readable, and that covered paths which are overwritten or removed are still as
/// the step saw them. There is no record of ignored files, so an ignored file that was changed since the run began
/// is refused too.
fn check_preconditions(input: &ApplyInput<'_>, changes: &PendingChanges<'_>) -> Result<CheckedEntries, ApplyError> {
    let mut seen = CheckedEntries::new();
    let mut doubtful: BTreeSet<Vec<u8>> = BTreeSet::new();
    for (path, entry) in changes {
        if is_repository_replaced(input, path, entry) {
            let problem = "it would replace a repository";
            return Err(ApplyError::Refused { path: display_path(path), problem });
        }
        if matches!(entry, LayerEntry::File { .. }) {
            let readable = read_beneath::open(input.upper, path, OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOCTTY);
            readable.map_err(|source| unapplied_io_error(path, source))?;
        }
        let real = tree_entry(input, path)?;
        if !is_expected(input, path, entry, &real) {
            doubtful.insert(path.to_vec());
        }
        seen.insert(path.to_vec(), real);
        if **entry != (LayerEntry::Directory { opaque: false }) {
            doubtful.extend(unexpected_below(input, path, &mut seen)?);
        }
    }
    let queried: Vec<&[u8]> = doubtful.iter().map(Vec::as_slice).collect();
    let covered = input.view.are_covered(&queried, input.ignored)?;
    let (covered, others): (Vec<_>, Vec<_>) = queried.iter().zip(covered).partition(|(_, covered)| *covered);
    if !covered.is_empty() {
        return Err(ApplyError::Conflict { paths: covered.iter().map(|(path, _)| display_path(path)).collect() });
    }
    for (path, _) in others {
        if let Some(problem) = ignored_file_problem(input, path)? {
            return Err(ApplyError::Refused { path: display_path(path), problem });
        }
    }
    Ok(seen)
}

/// Returns why an entry that no snapshot covers would be lost although the step never saw it.
fn ignored_file_problem(input: &ApplyInput<'_>, path: &[u8]) -> Result<Option<&'static str>, ApplyError> {
    // An earlier step removed the file in a layer that is never applied, so the current step did not see it.
    if input.view.path_state(path) == PathState::Absent {
        return Ok(Some("the tree has an ignored file there that the step never saw, and the file would be lost"));
    }
    let found = read_beneath::open_entry(input.repo, path).map_err(|source| unapplied_io_error(path, source))?;
    let is_newer = found.is_some_and(|(_, stat)| FileStat::from_stat(&stat).is_after(input.view.base().started_at));
    Ok(is_newer.then_some("an ignored file there was changed during the run, and the change would be lost"))
}

fn is_repository_replaced(input: &ApplyInput<'_>, path: &[u8], entry: &LayerEntry) -> bool {
    let is_leaf = matches!(entry, LayerEntry::File { .. } | LayerEntry::Symlink { .. });
    let is_repository = |standing: &PathState| matches!(standing, PathState::Entry(e) if e.kind == EntryKind::Gitlink);
    is_leaf && (is_repository(&input.view.path_state(path)) || input.view.known_below(path).values().any(is_repository))
}

/// Checks whether the real entry at `path` is the one in the view, or already the step's result.
fn is_expected(input: &ApplyInput<'_>, path: &[u8], entry: &LayerEntry, real: &PathState) -> bool {
    if *real == path_state_from_layer(entry) {
        return true;
    }
    match input.view.path_state(path) {
        PathState::Entry(before) if before.kind == EntryKind::Gitlink => *real == PathState::Directory,
        PathState::Entry(before) => *real == PathState::Entry(before),
        // The content of a directory is compared separately.
        PathState::Absent | PathState::Uncovered | PathState::Directory => {
            matches!(real, PathState::Absent | PathState::Directory)
        }
        PathState::Unhashed(_) => false,
    }
}

/// Returns the entries below a directory that the step removed or replaced, if they differ from the view. All
/// entries below the directory are added to `seen`.
fn unexpected_below(
    input: &ApplyInput<'_>,
    path: &[u8],
    seen: &mut CheckedEntries,
) -> Result<Vec<Vec<u8>>, ApplyError> {
    let listed =
        read_beneath::list_leaves(input.repo, path, MAX_DELETED).map_err(|source| unapplied_io_error(path, source))?;
    let problem = "the directory that it replaces has too many entries to be checked";
    let leaves = listed.ok_or_else(|| ApplyError::Refused { path: display_path(path), problem })?;
    let mut found = Vec::new();
    for leaf in leaves {
        // Entries that are also in the layer are compared by their own paths.
        let is_own = input.scan.entries.contains_key(&leaf);
        if is_own || is_protected(input, &leaf) {
            continue;
        }
        let real = tree_entry(input, &leaf)?;
        if real != input.view.path_state(&leaf) {
            found.push(leaf.clone());
        }
        seen.insert(leaf, real);
    }
    Ok(found)
}
