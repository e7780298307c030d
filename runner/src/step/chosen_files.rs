//! Chooses files of a tree by rules, and keeps the choices for the next run.

use std::collections::{BTreeSet, VecDeque};
use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};

use proctor_core::decision::file_matcher::{CONTENT_BYTES, FileCandidate, FileMatch, FileMatcher, FileRuleError};
use proctor_core::model::drift::EntryKind;
use proctor_core::model::plan::{FileRules, RelPath};
use proctor_core::text::digest::SnapshotId;
use proctor_git::files::read_beneath;
use proctor_snapshot::TreeView;
use rustix::fs::OFlags;

/// The paths to which a run is restricted.
#[derive(Debug, Default)]
pub(crate) struct ScopePaths {
    /// The files of the tree.
    pub(crate) files: BTreeSet<Vec<u8>>,
    /// The files that the tree no longer has. They trigger a step that gets no files as arguments.
    pub(crate) deleted: BTreeSet<Vec<u8>>,
}

/// The reason why the files of a step cannot be chosen.
#[derive(Debug, thiserror::Error)]
pub(crate) enum FileSelectionError {
    /// A rule is invalid.
    #[error(transparent)]
    Rule(#[from] FileRuleError),
    /// The tree cannot be opened.
    #[error("the tree cannot be read: {0}")]
    Tree(#[from] std::io::Error),
}

/// The files that rules chose lately, so that the next run of an unchanged tree need not match every path again.
#[derive(Debug, Default)]
pub(crate) struct FileSelections(Mutex<VecDeque<FileSelection>>);

/// The files that rules chose, sorted.
type FileSelection = (SelectionKey, Arc<Vec<Vec<u8>>>);

/// The inputs that determine which files the rules choose in a whole tree.
#[derive(Debug, PartialEq, Eq)]
struct SelectionKey {
    tree: SnapshotId,
    rules: FileRules,
    workdir: RelPath,
}

impl SelectionKey {
    /// Returns the key of a tree that no step has changed; otherwise `None`.
    fn new(rules: &FileRules, workdir: &RelPath, view: &TreeView) -> Option<Self> {
        let tree = view.unchanged_id()?.clone();
        Some(Self { tree, rules: rules.clone(), workdir: workdir.clone() })
    }
}

/// Maximum number of selections that are kept.
const MAX_SELECTIONS: usize = 256;
/// Maximum number of files of all selections that are kept.
const MAX_SELECTED_FILES: usize = 500_000;

impl FileSelections {
    /// Returns the files that [`choose_files`] returns for the same arguments.
    ///
    /// # Errors
    /// A rule is invalid, or the tree cannot be opened.
    pub(crate) fn choose(
        &self,
        rules: &FileRules,
        workdir: &RelPath,
        view: &TreeView,
        scope: Option<&ScopePaths>,
        tree: &Path,
    ) -> Result<Arc<Vec<Vec<u8>>>, FileSelectionError> {
        let key = SelectionKey::new(rules, workdir, view).filter(|_| scope.is_none());
        if let Some(known) = key.as_ref().and_then(|key| self.find(key)) {
            return Ok(known);
        }
        let files = Arc::new(choose_files(rules, workdir, view, scope, tree)?);
        if let Some(key) = key.filter(|_| files.len() <= MAX_SELECTED_FILES) {
            self.keep(key, Arc::clone(&files));
        }
        Ok(files)
    }

    /// Returns the files that the rules choose in a whole tree, if that is known without reading the tree.
    pub(crate) fn known(&self, rules: &FileRules, workdir: &RelPath, view: &TreeView) -> Option<Arc<Vec<Vec<u8>>>> {
        self.find(&SelectionKey::new(rules, workdir, view)?)
    }

    fn find(&self, key: &SelectionKey) -> Option<Arc<Vec<Vec<u8>>>> {
        let mut kept = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let at = kept.iter().position(|(known, _)| known == key)?;
        let found = kept.remove(at)?;
        let files = Arc::clone(&found.1);
        kept.push_back(found);
        Some(files)
    }

    /// Keeps a selection, and removes the least recently used ones beyond the bounds.
    fn keep(&self, key: SelectionKey, files: Arc<Vec<Vec<u8>>>) {
        let mut kept = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        kept.push_back((key, files));
        let mut total: usize = kept.iter().map(|(_, files)| files.len()).sum();
        while kept.len() > MAX_SELECTIONS || total > MAX_SELECTED_FILES {
            let Some((_, oldest)) = kept.pop_front() else { return };
            total -= oldest.len();
        }
    }
}

/// Returns the files that `rules` choose for a step in `workdir`, relative to that directory and sorted. `scope`
/// contains the only paths that may be chosen. `tree` is the directory of the tree, whose files are read only where
/// their names do not decide their types.
///
/// # Errors
/// A rule is invalid, or the tree cannot be opened.
pub(crate) fn choose_files(
    rules: &FileRules,
    workdir: &RelPath,
    view: &TreeView,
    scope: Option<&ScopePaths>,
    tree: &Path,
) -> Result<Vec<Vec<u8>>, FileSelectionError> {
    let matcher = FileMatcher::new(rules)?;
    let tree = TreeContent(read_beneath::open_canonical(tree)?);
    let below = directory_prefix(workdir);
    let candidates: Box<dyn Iterator<Item = (Vec<u8>, EntryKind, bool)>> = match scope {
        Some(paths) => Box::new(paths.files.iter().filter_map(|path| {
            let (kind, executable) = view.path_state(path).kind()?;
            Some((path.clone(), kind, executable))
        })),
        None => Box::new(view.covered_kinds()),
    };
    let mut files: Vec<Vec<u8>> = candidates
        .filter(|(path, kind, executable)| {
            let file = FileCandidate { path, kind: *kind, executable: *executable };
            path.starts_with(&below) && is_chosen(&matcher, file, &tree)
        })
        .map(|(path, ..)| path.get(below.len()..).unwrap_or_default().to_vec())
        .collect();
    files.sort_unstable();
    Ok(files)
}

/// Returns whether a path of the scope may have been a file of the step and is none now: it was deleted, or it became a
/// link or a file with another mode or content.
///
/// # Errors
/// A rule is invalid, or the tree cannot be opened.
pub(super) fn may_have_lost_file(
    rules: &FileRules,
    workdir: &RelPath,
    view: &TreeView,
    (scope, tree): (&ScopePaths, &Path),
) -> Result<bool, FileSelectionError> {
    let (matcher, below) = (FileMatcher::new(rules)?, directory_prefix(workdir));
    let tree = TreeContent(read_beneath::open_canonical(tree)?);
    let may_be_lost = |path: &Vec<u8>| {
        let form = view.path_state(path).kind();
        path.starts_with(&below) && was_possibly_chosen(&matcher, path, form, &|| tree.head(path))
    };
    Ok(scope.deleted.iter().chain(&scope.files).any(may_be_lost))
}

/// Returns whether the rules may have chosen an earlier file at a path. `form` is the present kind of the file, and whether
/// it is executable; `None` if it was deleted. `head` reads the beginning of its present content.
fn was_possibly_chosen(
    matcher: &FileMatcher,
    path: &[u8],
    form: Option<(EntryKind, bool)>,
    head: &dyn Fn() -> Option<Vec<u8>>,
) -> bool {
    let earlier_forms = [(EntryKind::File, false), (EntryKind::File, true), (EntryKind::Symlink, false)];
    earlier_forms.into_iter().any(|earlier| {
        match matcher.match_file(FileCandidate { path, kind: earlier.0, executable: earlier.1 }) {
            FileMatch::Chosen => true,
            FileMatch::NotChosen => false,
            // The content is another one, or it is unknown.
            FileMatch::NeedsContent(_) if form.is_none_or(|form| form == earlier) => true,
            FileMatch::NeedsContent(pending) => head().is_none_or(|head| matcher.accepts_content(pending, &head)),
        }
    })
}

/// Returns the beginning of the paths below a directory of the repository.
pub(super) fn directory_prefix(directory: &RelPath) -> Vec<u8> {
    match directory.as_str() {
        "." => Vec::new(),
        directory => [directory.as_bytes(), b"/"].concat(),
    }
}

fn is_chosen(matcher: &FileMatcher, file: FileCandidate<'_>, tree: &TreeContent) -> bool {
    match matcher.match_file(file) {
        FileMatch::Chosen => true,
        FileMatch::NotChosen => false,
        // A file whose content cannot be read is checked rather than left out.
        FileMatch::NeedsContent(pending) => {
            tree.head(file.path).is_none_or(|head| matcher.accepts_content(pending, &head))
        }
    }
}

/// The directory of a tree.
struct TreeContent(OwnedFd);

impl TreeContent {
    /// Returns the beginning of a regular file; `None` if it cannot be read.
    fn head(&self, path: &[u8]) -> Option<Vec<u8>> {
        let file = read_beneath::open(self.0.as_fd(), path, OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOCTTY).ok()?;
        read_head(file.as_fd())
    }
}

fn read_head(file: BorrowedFd<'_>) -> Option<Vec<u8>> {
    let mut head = vec![0; CONTENT_BYTES];
    let mut length = 0;
    while length < head.len() {
        match rustix::io::pread(file, &mut head[length..], u64::try_from(length).ok()?) {
            Ok(0) => break,
            Ok(read) => length += read,
            Err(rustix::io::Errno::INTR) => {}
            Err(_) => return None,
        }
    }
    head.truncate(length);
    Some(head)
}

#[cfg(test)]
mod tests {
    use proctor_core::text::digest::Sha256Hex;

    use super::*;

    fn key(tree: &str, workdir: &str) -> SelectionKey {
        SelectionKey {
            tree: SnapshotId::from_root(&Sha256Hex::digest(tree.as_bytes())),
            rules: FileRules::default(),
            workdir: RelPath::new(workdir).expect("a path"),
        }
    }

    fn files(count: usize) -> Arc<Vec<Vec<u8>>> {
        Arc::new(vec![b"f".to_vec(); count])
    }

    #[test]
    fn lost_files_of_a_step_are_found() {
        let (plain, executable) = (Some((EntryKind::File, false)), Some((EntryKind::File, true)));
        let was_chosen = |types: &[&str], path: &str, form, head: &str| {
            let types = types.iter().map(|name| (*name).to_owned()).collect();
            let rules = FileRules { types, include: vec!["src/**".to_owned()], ..FileRules::default() };
            let matcher = FileMatcher::new(&rules).expect("valid rules");
            was_possibly_chosen(&matcher, path.as_bytes(), form, &|| Some(head.as_bytes().to_vec()))
        };
        assert!(was_chosen(&["file"], "src/a.py", None, "") && !was_chosen(&["file"], "a.py", None, ""));
        assert!(was_chosen(&["symlink"], "src/a", None, ""), "a link was deleted");
        assert!(was_chosen(&["executable"], "src/a.sh", None, ""), "an executable file was deleted");
        assert!(was_chosen(&["python"], "src/script", None, ""), "a script was deleted");
        assert!(was_chosen(&["python"], "src/a.py", Some((EntryKind::Symlink, false)), ""), "a link replaced a file");
        assert!(was_chosen(&["executable"], "src/a.sh", plain, ""), "a file is no longer executable");
        assert!(
            was_chosen(&["python"], "src/script", plain, "#!/usr/bin/python3\n"),
            "a script is no longer executable"
        );
        assert!(was_chosen(&["python"], "src/script", executable, "#!/bin/sh\n"), "a script has another interpreter");
        assert!(!was_chosen(&["python"], "src/a.c", plain, ""));
        assert!(!was_chosen(&["python"], "src/README", plain, "text"));
    }

    #[test]
    fn a_selection_is_found_by_tree_rules_and_directory() {
        let kept = FileSelections::default();
        kept.keep(key("a", "."), files(1));
        assert_eq!(kept.find(&key("a", ".")), Some(files(1)));
        assert_eq!(kept.find(&key("b", ".")), None);
        assert_eq!(kept.find(&key("a", "d")), None);
        let other_rules = FileRules { include: vec!["*.py".to_owned()], ..FileRules::default() };
        assert_eq!(kept.find(&SelectionKey { rules: other_rules, ..key("a", ".") }), None);
    }

    #[test]
    fn the_least_recently_used_selections_are_removed() {
        let kept = FileSelections::default();
        for number in 0..MAX_SELECTIONS {
            kept.keep(key(&number.to_string(), "."), files(1));
        }
        assert!(kept.find(&key("0", ".")).is_some(), "now the most recently used one");
        kept.keep(key("next", "."), files(1));
        assert_eq!((kept.find(&key("1", ".")), kept.find(&key("0", ".")).is_some()), (None, true));
        kept.keep(key("large", "."), files(MAX_SELECTED_FILES));
        assert_eq!(kept.find(&key("0", ".")), None);
        assert!(kept.find(&key("large", ".")).is_some());
    }
}
