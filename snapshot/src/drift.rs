//! Finds the changes of a step that the plan does not allow.

use std::collections::BTreeMap;
use std::os::fd::BorrowedFd;

use proctor_core::model::drift::{
    Change, ChangeKind, Diff, Entry, EntryKind, MAX_CHANGES, MAX_STEP_DIFF, StepDrift, display_path, is_evidence_path,
};
use proctor_core::model::plan::{ReadOnly, RelPath};
use proctor_core::text::digest::Sha256Hex;
use proctor_git::error::GitError;
use proctor_git::files::paths;
use proctor_git::files::read_beneath::{self, PathEntry};
use proctor_git::helper::IgnoreQuery;

use crate::diff;
use crate::layer::layer_scan::{LayerEntry, LayerScan};
use crate::tree_view::{PathState, TreeView, path_state_from_layer};

/// Everything that the drift of one step is computed from.
#[derive(Debug, Clone, Copy)]
pub struct DriftInput<'a> {
    /// The tree before the step.
    pub view: &'a TreeView,
    /// The step's layer.
    pub scan: &'a LayerScan,
    /// The protection mode of the step.
    pub mode: ReadOnly,
    /// The ignore rules of the real tree; queried only if the result depends on them.
    pub ignored: &'a IgnoreQuery,
    /// The top of the real tree.
    pub repo: BorrowedFd<'a>,
    /// The upper directory that `scan` was read from.
    pub upper: BorrowedFd<'a>,
    /// The upper directories of the layers in `view`, newest first.
    pub lower_uppers: &'a [BorrowedFd<'a>],
    /// The skill's caches, which are not part of the tree.
    pub caches: &'a [RelPath],
}

/// The reason why the drift of a step could not be determined. The step is then inconclusive.
#[derive(Debug, thiserror::Error)]
pub enum DriftError {
    /// The git helper could not report which paths are ignored.
    #[error(transparent)]
    Git(#[from] GitError),
    /// The real tree could not be read.
    #[error("cannot read `{path}`: {source}\nhint: fix its permissions; `read_only: strict` reads ignored files too")]
    Io {
        /// The path, in human-readable form.
        path: String,
        /// The system error.
        source: std::io::Error,
    },
    /// A deleted directory has more entries than the bound.
    #[error(
        "the step deleted directories with more than {limit} entries\nhint: name them in the skill's `caches`, or use `read_only: tracked`"
    )]
    TooMany {
        /// The bound.
        limit: usize,
    },
}

/// Returns the changes of a step that its mode forbids, sorted by path. If there are more than [`MAX_CHANGES`], changes
/// of files that existed before the step precede new files.
///
/// # Errors
/// The ignore rules or the real tree could not be read.
pub fn find_drift(input: DriftInput<'_>) -> Result<StepDrift, DriftError> {
    let mut changes = LayerComparison { input, changes: BTreeMap::new() };
    for (path, entry) in &input.scan.entries {
        // Only `strict` protects ignored paths, and an ignored directory contains no covered path.
        if input.mode == ReadOnly::Strict || !input.scan.is_ignored(path) {
            changes.compare(path, entry)?;
        }
    }
    if input.mode == ReadOnly::Strict && input.scan.is_sparing() {
        changes.record_spared();
    }
    let protected = retain_protected(&input, changes.changes)?;
    let omitted = protected.len().saturating_sub(MAX_CHANGES) as u64;
    let mut recorder = ChangeRecorder { input, budget: Some(MAX_STEP_DIFF) };
    let (created, existing): (Vec<_>, Vec<_>) =
        protected.into_iter().partition(|(_, pair)| matches!(pair.before, PathState::Absent));
    let chosen = existing.into_iter().chain(created).take(MAX_CHANGES);
    let changes = chosen.map(|(path, pair)| Ok((recorder.record(&path, pair)?, path)));
    let mut changes = changes.collect::<Result<Vec<_>, DriftError>>()?;
    changes.sort_by(|(_, one), (_, other)| one.cmp(other));
    Ok(StepDrift { changes: changes.into_iter().map(|(change, _)| change).collect(), omitted })
}

/// Maximum number of entries of deleted directories that are listed.
const MAX_DELETED: usize = 1_000_000;
/// The largest file of the real tree that is hashed for a comparison, in bytes.
const MAX_HASHED: u64 = 4 << 30;
/// The directory that the sandbox mounts read-only.
const GIT_DIR: &[u8] = b".git";

/// The entries at a path before and after the step. If `before` stays [`PathState::Uncovered`], an entry existed
/// that only the real tree records.
#[derive(Debug, Clone)]
struct BeforeAndAfter {
    before: PathState,
    after: PathState,
}

/// Compares the layer with the view, entry by entry.
struct LayerComparison<'a> {
    input: DriftInput<'a>,
    changes: BTreeMap<Vec<u8>, BeforeAndAfter>,
}

impl LayerComparison<'_> {
    fn compare(&mut self, path: &[u8], entry: &LayerEntry) -> Result<(), DriftError> {
        if self.is_excluded(path) {
            return self.compare_excluded(path, entry);
        }
        let before = self.state_before(path)?;
        match entry {
            LayerEntry::Directory { opaque } => {
                self.compare_directory(path, before, *opaque);
                if *opaque { self.record_deleted_below(path) } else { Ok(()) }
            }
            LayerEntry::Whiteout => {
                self.compare_whiteout(path, before);
                self.record_deleted_below(path)
            }
            leaf => {
                let was_directory = !self.input.view.known_below(path).is_empty();
                let before = if was_directory && before == PathState::Absent { PathState::Directory } else { before };
                let after = path_state_from_layer(leaf);
                if differs(&before, &after) {
                    self.changes.insert(path.to_vec(), BeforeAndAfter { before, after });
                }
                self.record_deleted_below(path)
            }
        }
    }

    fn is_excluded(&self, path: &[u8]) -> bool {
        self.input.scan.reports.contains(path) || is_excluded(path, self.input.caches)
    }

    /// Records each spared directory as changed, since its content cannot be compared.
    fn record_spared(&mut self) {
        let scan = self.input.scan;
        for path in &scan.ignored {
            if self.is_excluded(path) {
                continue;
            }
            self.changes
                .insert(path.clone(), BeforeAndAfter { before: PathState::Uncovered, after: PathState::Unhashed(0) });
        }
    }

    /// If a directory exists at the path of our status file or of a report, its content still belongs to the tree.
    fn compare_excluded(&mut self, path: &[u8], entry: &LayerEntry) -> Result<(), DriftError> {
        let hides = *entry != (LayerEntry::Directory { opaque: false });
        let is_file = is_evidence_path(path) || self.input.scan.reports.contains(path);
        if hides && is_file { self.record_deleted_below(path) } else { Ok(()) }
    }

    /// Returns the entry at `path` before the step. The real tree is read only if the result matters: under
    /// `strict`, and inside a `.git`, which no snapshot covers.
    fn state_before(&self, path: &[u8]) -> Result<PathState, DriftError> {
        match self.input.view.path_state(path) {
            PathState::Uncovered if self.input.mode == ReadOnly::Strict || paths::is_in_git_dir(path) => {
                read_tree_entry(self.input.repo, path, MAX_HASHED)
            }
            PathState::Uncovered => Ok(PathState::Absent),
            known => Ok(known),
        }
    }

    /// Records a directory only if it replaces something else. A repository still exists if its `.git` exists,
    /// which is compared separately.
    fn compare_directory(&mut self, path: &[u8], before: PathState, opaque: bool) {
        let keeps_git = self.input.scan.entries.contains_key(&paths::join(path, GIT_DIR));
        let replaces = match &before {
            PathState::Entry(entry) if entry.kind == EntryKind::Gitlink => opaque && !keeps_git,
            PathState::Entry(_) | PathState::Unhashed(_) => true,
            PathState::Directory | PathState::Absent | PathState::Uncovered => false,
        };
        if replaces {
            self.changes.insert(path.to_vec(), BeforeAndAfter { before, after: PathState::Directory });
        }
    }

    /// Records a whiteout. A deleted directory is recorded by the entries that it contained, except a `.git`, which
    /// is recorded itself.
    fn compare_whiteout(&mut self, path: &[u8], before: PathState) {
        let counts = match before {
            PathState::Entry(_) | PathState::Unhashed(_) => true,
            PathState::Directory => paths::file_name(path) == GIT_DIR,
            PathState::Absent | PathState::Uncovered => false,
        };
        if counts {
            self.changes.insert(path.to_vec(), BeforeAndAfter { before, after: PathState::Absent });
        }
    }

    /// Records everything that existed below `path` and is not in the layer as deleted.
    fn record_deleted_below(&mut self, path: &[u8]) -> Result<(), DriftError> {
        let mut gone = self.input.view.known_below(path);
        if self.input.mode == ReadOnly::Strict {
            let uncovered = self.uncovered_below(path)?;
            gone.extend(uncovered.into_iter().map(|path| (path, PathState::Uncovered)));
        }
        for (path, before) in gone {
            if !self.input.scan.entries.contains_key(&path) && !self.is_excluded(&path) {
                self.changes.insert(path, BeforeAndAfter { before, after: PathState::Absent });
            }
        }
        Ok(())
    }

    fn uncovered_below(&self, path: &[u8]) -> Result<Vec<Vec<u8>>, DriftError> {
        let listed =
            read_beneath::list_leaves(self.input.repo, path, MAX_DELETED).map_err(|source| io_error(path, source))?;
        let mut leaves = listed.ok_or(DriftError::TooMany { limit: MAX_DELETED })?;
        leaves.retain(|leaf| self.input.view.path_state(leaf) == PathState::Uncovered);
        Ok(leaves)
    }
}

/// Checks whether changes at a path are ignored: it contains our own evidence, or is in a cache. A cache never
/// includes the repository's own `.git`, and a cache of the whole tree is ignored.
pub(crate) fn is_excluded(path: &[u8], caches: &[RelPath]) -> bool {
    let in_cache = |cache: &RelPath| {
        let cache = cache.as_str().as_bytes();
        cache != b"." && (path == cache || paths::is_below(path, cache))
    };
    is_evidence_path(path) || !is_in_own_git_dir(path) && caches.iter().any(in_cache)
}

/// Checks whether a path is the repository's own `.git`, or in it.
fn is_in_own_git_dir(path: &[u8]) -> bool {
    path == GIT_DIR || paths::is_below(path, GIT_DIR)
}

pub(crate) fn differs(before: &PathState, after: &PathState) -> bool {
    // A file that was not hashed is never equal to another file.
    before != after || matches!(before, PathState::Unhashed(_))
}

/// Returns the entry of the real tree at `path`.
pub(crate) fn read_tree_entry(repo: BorrowedFd<'_>, path: &[u8], limit: u64) -> Result<PathState, DriftError> {
    Ok(match read_beneath::read(repo, path, limit).map_err(|source| io_error(path, source))? {
        PathEntry::Entry(entry) => PathState::Entry(entry),
        PathEntry::Unread(_) => PathState::Unhashed(0),
        PathEntry::Directory => PathState::Directory,
        PathEntry::Missing => PathState::Absent,
    })
}

/// Keeps the changes that the mode forbids. Changes of the repository's own `.git` are always kept.
fn retain_protected(
    input: &DriftInput<'_>,
    found: BTreeMap<Vec<u8>, BeforeAndAfter>,
) -> Result<BTreeMap<Vec<u8>, BeforeAndAfter>, DriftError> {
    let queried: Vec<&[u8]> = match input.mode {
        ReadOnly::Tracked => found.keys().map(Vec::as_slice).filter(|path| !is_in_own_git_dir(path)).collect(),
        ReadOnly::Off | ReadOnly::Strict => Vec::new(),
    };
    let (in_nested, others): (Vec<&[u8]>, Vec<&[u8]>) =
        queried.into_iter().partition(|path| paths::is_in_git_dir(path));
    let covered = input.view.are_covered(&others, input.ignored)?;
    let nested = input.ignored.are_ignored(&in_nested)?.into_iter().map(|ignored| !ignored);
    let answers: BTreeMap<Vec<u8>, bool> = others
        .into_iter()
        .zip(covered)
        .chain(in_nested.iter().copied().zip(nested))
        .map(|(path, protected)| (path.to_vec(), protected))
        .collect();
    let is_protected = |path: &[u8]| match input.mode {
        _ if is_in_own_git_dir(path) => true,
        ReadOnly::Off => false,
        ReadOnly::Strict => true,
        // A path without an answer is protected.
        ReadOnly::Tracked => answers.get(path).copied().unwrap_or(true),
    };
    Ok(found.into_iter().filter(|(path, _)| is_protected(path)).collect())
}

/// Converts pairs to recorded changes, within the bound on a step's diffs.
struct ChangeRecorder<'a> {
    input: DriftInput<'a>,
    /// Number of bytes of diff that may still be recorded; `None` once the bound was exceeded.
    budget: Option<usize>,
}

impl ChangeRecorder<'_> {
    fn record(&mut self, path: &[u8], pair: BeforeAndAfter) -> Result<Change, DriftError> {
        let before = match pair.before {
            PathState::Uncovered => read_tree_entry(self.input.repo, path, diff::MAX_INPUT)?,
            known => known,
        };
        let pair = BeforeAndAfter { before, after: pair.after };
        let kind = change_kind(&pair);
        let diff = self.within_budget(self.diff(path, &pair, kind));
        let (before, after) = (recorded_entry(&pair.before), recorded_entry(&pair.after));
        Ok(Change { path: display_path(path), kind, before, after, diff })
    }

    fn diff(&self, path: &[u8], pair: &BeforeAndAfter, kind: ChangeKind) -> Diff {
        if matches!(kind, ChangeKind::ModeChanged | ChangeKind::TypeChanged) {
            return Diff::None;
        }
        if [&pair.before, &pair.after].into_iter().any(|side| matches!(side, PathState::Unhashed(_))) {
            return omitted_diff("one of the two contents is too large to be hashed");
        }
        let sides = [&pair.before, &pair.after].map(content_entry);
        if sides == [None, None] {
            return Diff::None;
        }
        let below = self.input.lower_uppers.iter().copied().chain([self.input.repo]);
        let Some(old) = read_side(below, path, sides[0]) else {
            return omitted_diff("the old content is larger than 1 MiB or could not be read any more");
        };
        let Some(new) = read_side([self.input.upper].into_iter(), path, sides[1]) else {
            return omitted_diff("the new content is larger than 1 MiB or could not be read");
        };
        diff::unified(path, old.as_deref(), new.as_deref())
    }

    fn within_budget(&mut self, diff: Diff) -> Diff {
        let (Diff::Whole { text } | Diff::Truncated { text, .. }) = &diff else { return diff };
        self.budget = self.budget.and_then(|budget| budget.checked_sub(text.len()));
        if self.budget.is_some() { diff } else { omitted_diff("the diffs of the step exceed 128 KiB") }
    }
}

fn omitted_diff(reason: &str) -> Diff {
    Diff::Omitted { reason: reason.to_owned() }
}

/// Returns the entry of a side that has content to show.
fn content_entry(side: &PathState) -> Option<&Entry> {
    match side {
        PathState::Entry(entry) if matches!(entry.kind, EntryKind::File | EntryKind::Symlink) => Some(entry),
        _ => None,
    }
}

/// Returns the content of a side, from the first directory that still has exactly these bytes. Returns `Some(None)`
/// if the side has no content, and `None` if no directory has the bytes.
fn read_side<'a>(
    mut places: impl Iterator<Item = BorrowedFd<'a>>,
    path: &[u8],
    side: Option<&Entry>,
) -> Option<Option<Vec<u8>>> {
    let Some(entry) = side else { return Some(None) };
    let read = |place| read_beneath::read_content(place, path, diff::MAX_INPUT).ok().flatten();
    places.find_map(|place| read(place).filter(|bytes| Sha256Hex::digest(bytes) == entry.sha256)).map(Some)
}

fn change_kind(pair: &BeforeAndAfter) -> ChangeKind {
    let kind = |side: &PathState| match side {
        PathState::Entry(entry) => Some(entry.kind),
        PathState::Unhashed(_) => Some(EntryKind::File),
        PathState::Directory => Some(EntryKind::Directory),
        PathState::Absent | PathState::Uncovered => None,
    };
    match (kind(&pair.before), kind(&pair.after)) {
        (None, _) => ChangeKind::Created,
        (_, None) => ChangeKind::Deleted,
        (before, after) if before != after => ChangeKind::TypeChanged,
        _ => match (&pair.before, &pair.after) {
            (PathState::Entry(before), PathState::Entry(after)) if before.sha256 == after.sha256 => {
                ChangeKind::ModeChanged
            }
            _ => ChangeKind::Modified,
        },
    }
}

fn recorded_entry(side: &PathState) -> Option<Entry> {
    match side {
        PathState::Entry(entry) => Some(entry.clone()),
        PathState::Directory => {
            Some(Entry { kind: EntryKind::Directory, executable: false, sha256: Sha256Hex::digest(b"") })
        }
        PathState::Unhashed(_) | PathState::Absent | PathState::Uncovered => None,
    }
}

fn io_error(path: &[u8], source: std::io::Error) -> DriftError {
    DriftError::Io { path: display_path(path), source }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cache_excludes_neither_git_dir_nor_whole_tree() {
        let caches = [".", ".git", "target"].map(|path| RelPath::new(path).expect("a path"));
        for aside in ["target", "target/x", "changes/a/verify/x"] {
            assert!(is_excluded(aside.as_bytes(), &caches), "{aside}");
        }
        for counts in [".git", ".git/config", "src", "target2"] {
            assert!(!is_excluded(counts.as_bytes(), &caches), "{counts}");
        }
    }
}
