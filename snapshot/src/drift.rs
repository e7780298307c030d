//! Finds the changes of a step that the plan does not allow.

use std::collections::BTreeMap;
use std::os::fd::BorrowedFd;

use proctor_core::digest::Sha256Hex;
use proctor_core::drift::{
    Change, ChangeKind, Diff, Entry, EntryKind, MAX_CHANGES, MAX_STEP_DIFF, StepDrift, display_path, is_our_artifact,
};
use proctor_core::plan::{ReadOnly, RelPath};

use crate::beneath::{self, Found};
use crate::diff;
use crate::git::GitError;
use crate::git::helper::IgnoreQuery;
use crate::layer::{LayerEntry, LayerScan};
use crate::paths;
use crate::view::{Standing, View, standing_of};

/// Everything that the drift of one step is computed from.
#[derive(Debug, Clone, Copy)]
pub struct DriftInput<'a> {
    /// The tree before the step.
    pub view: &'a View,
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

/// Why the drift of a step could not be determined. The step is then inconclusive.
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

/// Returns the changes of a step that its mode forbids, sorted by path.
///
/// # Errors
/// The ignore rules or the real tree could not be read.
pub fn find_drift(input: DriftInput<'_>) -> Result<StepDrift, DriftError> {
    let mut changes = Comparison { input, found: BTreeMap::new() };
    for (path, entry) in &input.scan.entries {
        // Only `strict` protects ignored paths, and an ignored directory contains no covered path.
        if input.mode == ReadOnly::Strict || !input.scan.ignores(path) {
            changes.compare(path, entry)?;
        }
    }
    if input.mode == ReadOnly::Strict && input.scan.spares() {
        changes.count_spared();
    }
    let protected = keep_protected(&input, changes.found)?;
    let omitted = protected.len().saturating_sub(MAX_CHANGES) as u64;
    let mut recorder = Recorder { input, budget: Some(MAX_STEP_DIFF) };
    let changes = protected.into_iter().take(MAX_CHANGES).map(|(path, pair)| recorder.record(&path, pair));
    Ok(StepDrift { changes: changes.collect::<Result<_, _>>()?, omitted })
}

/// Maximum number of entries of deleted directories that are listed.
const MAX_DELETED: usize = 1_000_000;
/// The largest file of the real tree that is hashed for a comparison, in bytes.
const MAX_HASHED: u64 = 4 << 30;
/// The directory that the sandbox mounts read-only.
const GIT_DIR: &[u8] = b".git";

/// The entries at a path before and after the step. If `before` stays [`Standing::Uncovered`], an entry existed
/// that only the real tree records.
#[derive(Debug, Clone)]
struct Pair {
    before: Standing,
    after: Standing,
}

/// Compares the layer with the view, entry by entry.
struct Comparison<'a> {
    input: DriftInput<'a>,
    found: BTreeMap<Vec<u8>, Pair>,
}

impl Comparison<'_> {
    fn compare(&mut self, path: &[u8], entry: &LayerEntry) -> Result<(), DriftError> {
        if self.is_aside(path) {
            return self.compare_aside(path, entry);
        }
        let before = self.before(path)?;
        match entry {
            LayerEntry::Directory { opaque } => {
                self.compare_directory(path, before, *opaque);
                if *opaque { self.delete_below(path) } else { Ok(()) }
            }
            LayerEntry::Whiteout => {
                self.compare_whiteout(path, before);
                self.delete_below(path)
            }
            leaf => {
                let was_directory = !self.input.view.known_below(path).is_empty();
                let before = if was_directory && before == Standing::Absent { Standing::Directory } else { before };
                let after = standing_of(leaf);
                if differs(&before, &after) {
                    self.found.insert(path.to_vec(), Pair { before, after });
                }
                self.delete_below(path)
            }
        }
    }

    fn is_aside(&self, path: &[u8]) -> bool {
        self.input.scan.reports.contains(path) || is_aside(path, self.input.caches)
    }

    /// Records each spared directory as changed, since its content cannot be compared.
    fn count_spared(&mut self) {
        let scan = self.input.scan;
        for path in &scan.ignored {
            if self.is_aside(path) {
                continue;
            }
            self.found.insert(path.clone(), Pair { before: Standing::Uncovered, after: Standing::Unhashed(0) });
        }
    }

    /// If a directory exists at the path of our status file or of a report, its content still belongs to the tree.
    fn compare_aside(&mut self, path: &[u8], entry: &LayerEntry) -> Result<(), DriftError> {
        let hides = *entry != (LayerEntry::Directory { opaque: false });
        let is_file = is_our_artifact(path) || self.input.scan.reports.contains(path);
        if hides && is_file { self.delete_below(path) } else { Ok(()) }
    }

    /// Returns the entry at `path` before the step. The real tree is read only if the result matters: under
    /// `strict`, and inside a `.git`, which no snapshot covers.
    fn before(&self, path: &[u8]) -> Result<Standing, DriftError> {
        match self.input.view.standing(path) {
            Standing::Uncovered if self.input.mode == ReadOnly::Strict || paths::in_git_dir(path) => {
                read_real(self.input.repo, path, MAX_HASHED)
            }
            Standing::Uncovered => Ok(Standing::Absent),
            known => Ok(known),
        }
    }

    /// Records a directory only if it replaces something else. A repository still exists if its `.git` exists,
    /// which is compared separately.
    fn compare_directory(&mut self, path: &[u8], before: Standing, opaque: bool) {
        let keeps_git = self.input.scan.entries.contains_key(&paths::join(path, GIT_DIR));
        let replaces = match &before {
            Standing::Entry(entry) if entry.kind == EntryKind::Gitlink => opaque && !keeps_git,
            Standing::Entry(_) | Standing::Unhashed(_) => true,
            Standing::Directory | Standing::Absent | Standing::Uncovered => false,
        };
        if replaces {
            self.found.insert(path.to_vec(), Pair { before, after: Standing::Directory });
        }
    }

    /// Records a whiteout. A deleted directory is recorded by the entries that it contained, except a `.git`, which
    /// is recorded itself.
    fn compare_whiteout(&mut self, path: &[u8], before: Standing) {
        let counts = match before {
            Standing::Entry(_) | Standing::Unhashed(_) => true,
            Standing::Directory => paths::name(path) == GIT_DIR,
            Standing::Absent | Standing::Uncovered => false,
        };
        if counts {
            self.found.insert(path.to_vec(), Pair { before, after: Standing::Absent });
        }
    }

    /// Records everything that existed below `path` and is not in the layer as deleted.
    fn delete_below(&mut self, path: &[u8]) -> Result<(), DriftError> {
        let mut gone = self.input.view.known_below(path);
        if self.input.mode == ReadOnly::Strict {
            let uncovered = self.uncovered_below(path)?;
            gone.extend(uncovered.into_iter().map(|path| (path, Standing::Uncovered)));
        }
        for (path, before) in gone {
            if !self.input.scan.entries.contains_key(&path) && !self.is_aside(&path) {
                self.found.insert(path, Pair { before, after: Standing::Absent });
            }
        }
        Ok(())
    }

    fn uncovered_below(&self, path: &[u8]) -> Result<Vec<Vec<u8>>, DriftError> {
        let listed = beneath::leaves(self.input.repo, path, MAX_DELETED).map_err(|source| io_error(path, source))?;
        let mut leaves = listed.ok_or(DriftError::TooMany { limit: MAX_DELETED })?;
        leaves.retain(|leaf| self.input.view.standing(leaf) == Standing::Uncovered);
        Ok(leaves)
    }
}

/// Checks whether changes at a path are ignored: it contains our own evidence, or is in a cache. A cache never
/// includes the repository's own `.git`, and a cache of the whole tree is ignored.
pub(crate) fn is_aside(path: &[u8], caches: &[RelPath]) -> bool {
    let in_cache = |cache: &RelPath| {
        let cache = cache.as_str().as_bytes();
        cache != b"." && (path == cache || paths::is_below(path, cache))
    };
    is_our_artifact(path) || !in_own_git(path) && caches.iter().any(in_cache)
}

/// Checks whether a path is the repository's own `.git`, or in it.
fn in_own_git(path: &[u8]) -> bool {
    path == GIT_DIR || paths::is_below(path, GIT_DIR)
}

pub(crate) fn differs(before: &Standing, after: &Standing) -> bool {
    // A file that was not hashed never equals anything.
    before != after || matches!(before, Standing::Unhashed(_))
}

/// Returns the entry of the real tree at `path`.
pub(crate) fn read_real(repo: BorrowedFd<'_>, path: &[u8], limit: u64) -> Result<Standing, DriftError> {
    Ok(match beneath::read(repo, path, limit).map_err(|source| io_error(path, source))? {
        Found::Entry(entry) => Standing::Entry(entry),
        Found::Unread(_) => Standing::Unhashed(0),
        Found::Directory => Standing::Directory,
        Found::Nothing => Standing::Absent,
    })
}

/// Keeps the changes that the mode forbids. Changes of the repository's own `.git` are always kept.
fn keep_protected(
    input: &DriftInput<'_>,
    found: BTreeMap<Vec<u8>, Pair>,
) -> Result<BTreeMap<Vec<u8>, Pair>, DriftError> {
    let asked: Vec<&[u8]> = match input.mode {
        ReadOnly::Tracked => found.keys().map(Vec::as_slice).filter(|path| !in_own_git(path)).collect(),
        ReadOnly::Off | ReadOnly::Strict => Vec::new(),
    };
    let (in_nested, others): (Vec<&[u8]>, Vec<&[u8]>) = asked.into_iter().partition(|path| paths::in_git_dir(path));
    let covered = input.view.covers(&others, input.ignored)?;
    let nested = input.ignored.ignored(&in_nested)?.into_iter().map(|ignored| !ignored);
    let answers: BTreeMap<Vec<u8>, bool> = others
        .into_iter()
        .zip(covered)
        .chain(in_nested.iter().copied().zip(nested))
        .map(|(path, protected)| (path.to_vec(), protected))
        .collect();
    let is_protected = |path: &[u8]| match input.mode {
        _ if in_own_git(path) => true,
        ReadOnly::Off => false,
        ReadOnly::Strict => true,
        // A path without an answer is protected.
        ReadOnly::Tracked => answers.get(path).copied().unwrap_or(true),
    };
    Ok(found.into_iter().filter(|(path, _)| is_protected(path)).collect())
}

/// Converts pairs to recorded changes, within the bound on a step's diffs.
struct Recorder<'a> {
    input: DriftInput<'a>,
    /// Number of bytes of diff that may still be recorded; `None` once the bound was exceeded.
    budget: Option<usize>,
}

impl Recorder<'_> {
    fn record(&mut self, path: &[u8], pair: Pair) -> Result<Change, DriftError> {
        let before = match pair.before {
            Standing::Uncovered => read_real(self.input.repo, path, diff::MAX_INPUT)?,
            known => known,
        };
        let pair = Pair { before, after: pair.after };
        let kind = kind_of(&pair);
        let diff = self.bounded(self.diff(path, &pair, kind));
        let (before, after) = (entry_of(&pair.before), entry_of(&pair.after));
        Ok(Change { path: display_path(path), kind, before, after, diff })
    }

    fn diff(&self, path: &[u8], pair: &Pair, kind: ChangeKind) -> Diff {
        if matches!(kind, ChangeKind::ModeChanged | ChangeKind::TypeChanged) {
            return Diff::None;
        }
        if [&pair.before, &pair.after].into_iter().any(|side| matches!(side, Standing::Unhashed(_))) {
            return omitted("a side is too large to be hashed");
        }
        let sides = [&pair.before, &pair.after].map(content_entry);
        if sides == [None, None] {
            return Diff::None;
        }
        let below = self.input.lower_uppers.iter().copied().chain([self.input.repo]);
        let Some(old) = read_side(below, path, sides[0]) else {
            return omitted("the old content is larger than 1 MiB or could not be read any more");
        };
        let Some(new) = read_side([self.input.upper].into_iter(), path, sides[1]) else {
            return omitted("the new content is larger than 1 MiB or could not be read");
        };
        diff::unified(path, old.as_deref(), new.as_deref())
    }

    fn bounded(&mut self, diff: Diff) -> Diff {
        let (Diff::Whole { text } | Diff::Truncated { text, .. }) = &diff else { return diff };
        self.budget = self.budget.and_then(|budget| budget.checked_sub(text.len()));
        if self.budget.is_some() { diff } else { omitted("the diffs of the step exceed 128 KiB") }
    }
}

fn omitted(reason: &str) -> Diff {
    Diff::Omitted { reason: reason.to_owned() }
}

/// Returns the entry of a side that has content to show.
fn content_entry(side: &Standing) -> Option<&Entry> {
    match side {
        Standing::Entry(entry) if matches!(entry.kind, EntryKind::File | EntryKind::Symlink) => Some(entry),
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
    let read = |place| beneath::content(place, path, diff::MAX_INPUT).ok().flatten();
    places.find_map(|place| read(place).filter(|bytes| Sha256Hex::of(bytes) == entry.sha256)).map(Some)
}

fn kind_of(pair: &Pair) -> ChangeKind {
    let kind = |side: &Standing| match side {
        Standing::Entry(entry) => Some(entry.kind),
        Standing::Unhashed(_) => Some(EntryKind::File),
        Standing::Directory => Some(EntryKind::Directory),
        Standing::Absent | Standing::Uncovered => None,
    };
    match (kind(&pair.before), kind(&pair.after)) {
        (None, _) => ChangeKind::Created,
        (_, None) => ChangeKind::Deleted,
        (before, after) if before != after => ChangeKind::TypeChanged,
        _ => match (&pair.before, &pair.after) {
            (Standing::Entry(before), Standing::Entry(after)) if before.sha256 == after.sha256 => {
                ChangeKind::ModeChanged
            }
            _ => ChangeKind::Modified,
        },
    }
}

fn entry_of(side: &Standing) -> Option<Entry> {
    match side {
        Standing::Entry(entry) => Some(entry.clone()),
        Standing::Directory => {
            Some(Entry { kind: EntryKind::Directory, executable: false, sha256: Sha256Hex::of(b"") })
        }
        Standing::Unhashed(_) | Standing::Absent | Standing::Uncovered => None,
    }
}

fn io_error(path: &[u8], source: std::io::Error) -> DriftError {
    DriftError::Io { path: display_path(path), source }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cache_takes_neither_git_nor_the_whole_tree() {
        let caches = [".", ".git", "target"].map(|path| RelPath::new(path).expect("a path"));
        for aside in ["target", "target/x", "changes/a/verify/x"] {
            assert!(is_aside(aside.as_bytes(), &caches), "{aside}");
        }
        for counts in [".git", ".git/config", "src", "target2"] {
            assert!(!is_aside(counts.as_bytes(), &caches), "{counts}");
        }
    }
}
