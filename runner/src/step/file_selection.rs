//! Chooses the files of a step among those that it sees before it starts.

use std::collections::VecDeque;
use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};

use proctor_core::decision::file_matcher::{CONTENT_BYTES, FileCandidate, FileMatch, FileMatcher, FileRuleError};
use proctor_core::model::cache::{TransparentCache, merge_transparent_caches};
use proctor_core::model::drift::EntryKind;
use proctor_core::model::outcome::StartFault;
use proctor_core::model::plan::{FILES_PLACEHOLDER, FileRules, PlannedStep, RelPath};
use proctor_core::record::evidence::{CheckedFiles, FileDependence};
use proctor_core::reuse::StoredResult;
use proctor_core::text::digest::{Sha256Hex, SnapshotId};
use proctor_git::files::read_beneath;
use proctor_sandbox::{FileBatches, Policy};
use proctor_snapshot::TreeView;
use rustix::fs::OFlags;

use crate::run::run_context::{RunContext, ScopePaths};

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

/// The files of a step that has `files`.
pub(crate) struct StepFiles {
    files: Option<Arc<Vec<Vec<u8>>>>,
    /// True if the command contains `{files}`.
    are_arguments: bool,
    parallel: u32,
    /// The files that need not be checked again; sorted.
    reused: Vec<Vec<u8>>,
    /// The end of the oldest execution that the passes of these files can come from.
    reused_executed_at: Option<String>,
    /// The observation that contradicts `per_file`.
    dependence: Option<FileDependence>,
    /// The caches of the executions that passed the reused files.
    earlier_caches: Vec<TransparentCache>,
}

impl StepFiles {
    fn new(files: Option<Arc<Vec<Vec<u8>>>>, are_arguments: bool, parallel: u32) -> Self {
        Self {
            files,
            are_arguments,
            parallel,
            reused: Vec::new(),
            reused_executed_at: None,
            dependence: None,
            earlier_caches: Vec::new(),
        }
    }

    /// Chooses the files on a blocking thread. Returns the result of the step if it has no files to check, or if they
    /// cannot be chosen.
    pub(crate) async fn choose(
        context: &Arc<RunContext>,
        view: &TreeView,
        step: &PlannedStep,
    ) -> Result<Self, FilesNotChosen> {
        let Some(rules) = step.files.clone() else {
            return Ok(Self::new(None, false, 1));
        };
        let not_chosen = |fault, reason| FilesNotChosen { fault, reason };
        let are_arguments = step.cmd.words().iter().any(|word| word == FILES_PLACEHOLDER);
        let (parallel, context, view) = (rules.parallel, Arc::clone(context), view.clone());
        let workdir = step.workdir.clone();
        let chosen = tokio::task::spawn_blocking(move || {
            let (tree, scope) = (context.tree.repository.path(), context.files.as_deref());
            let files = context.file_selections.choose(&rules, &workdir, &view, scope, tree)?;
            let is_needed = !files.is_empty() || (!are_arguments && lacks_chosen_file(&rules, &workdir, scope)?);
            Ok::<_, FileSelectionError>(is_needed.then_some(files))
        });
        match chosen.await {
            Ok(Ok(None)) => Err(not_chosen(StartFault::NoFiles, "there is no file that it checks".to_owned())),
            Ok(Ok(Some(files))) => Ok(Self::new(Some(files), are_arguments, parallel)),
            Ok(Err(error)) => Err(not_chosen(StartFault::Internal, error.to_string())),
            Err(error) => Err(not_chosen(StartFault::Internal, format!("its files cannot be chosen: {error}"))),
        }
    }

    /// Returns the chosen files, relative to the work directory of the step.
    pub(crate) fn chosen(&self) -> &[Vec<u8>] {
        self.files.as_deref().map(Vec::as_slice).unwrap_or_default()
    }

    /// Sets the files that need not be checked again, and the end of the oldest execution that their passes can come from.
    pub(crate) fn set_reused(&mut self, reused: Vec<Vec<u8>>, executed_at: Option<String>) {
        self.reused_executed_at = executed_at.filter(|_| !reused.is_empty());
        self.reused = reused;
    }

    /// Sets the observation that contradicts `per_file`.
    pub(crate) fn set_dependence(&mut self, dependence: FileDependence) {
        self.dependence = Some(dependence);
    }

    /// Returns the observation that contradicts `per_file`.
    pub(crate) fn dependence(&self) -> Option<&FileDependence> {
        self.dependence.as_ref()
    }

    /// Sets the earlier results that the passes of the reused files come from.
    pub(crate) fn set_earlier_caches(&mut self, earlier: &[StoredResult]) {
        for result in earlier {
            merge_transparent_caches(&mut self.earlier_caches, &result.transparent_caches);
        }
    }

    /// Returns the files that are to be checked, relative to the work directory of the step.
    pub(crate) fn to_check(&self) -> impl Iterator<Item = &Vec<u8>> {
        self.chosen().iter().filter(|file| self.reused.binary_search(file).is_err())
    }

    /// Returns the batches of files for the command of `policy`; none if the command does not contain `{files}`.
    pub(crate) fn batches(&self, policy: &Policy) -> FileBatches {
        if self.files.is_none() || !self.are_arguments {
            return FileBatches::default();
        }
        let files: Vec<Vec<u8>> = self.to_check().cloned().collect();
        const POINTER_BYTES: usize = 8;
        let words = policy.argv.words().iter().map(|word| word.len() + 1 + POINTER_BYTES);
        let env = policy.env.iter().map(|(name, value)| name.len() + value.len() + 2 + POINTER_BYTES);
        let stack = rustix::process::getrlimit(rustix::process::Resource::Stack).current;
        FileBatches::new(&files, self.parallel, words.chain(env).sum(), stack)
    }

    pub(crate) fn evidence(&self, policy: Option<&Policy>) -> Option<CheckedFiles> {
        let files = self.files.as_ref()?;
        Some(CheckedFiles {
            count: files.len() as u64,
            sha256: paths_digest(files.iter()),
            batches: policy.map_or(0, |policy| u32::try_from(policy.files.len()).unwrap_or(u32::MAX)),
            reused: self.reused.len() as u64,
            reused_executed_at: self.reused_executed_at.clone(),
            dependence: self.dependence.clone(),
            transparent_caches: if self.reused.is_empty() { Vec::new() } else { self.earlier_caches.clone() },
        })
    }
}

/// The files that rules chose lately, so that the next run of an unchanged tree need not match every path again.
#[derive(Debug, Default)]
pub(crate) struct FileSelections(Mutex<VecDeque<FileSelection>>);

/// The files that rules chose, sorted.
type FileSelection = (SelectionKey, Arc<Vec<Vec<u8>>>);

/// What determines the files that rules choose in a whole tree.
#[derive(Debug, PartialEq, Eq)]
struct SelectionKey {
    tree: SnapshotId,
    rules: FileRules,
    workdir: RelPath,
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
    fn choose(
        &self,
        rules: &FileRules,
        workdir: &RelPath,
        view: &TreeView,
        scope: Option<&ScopePaths>,
        tree: &Path,
    ) -> Result<Arc<Vec<Vec<u8>>>, FileSelectionError> {
        let key = view.unchanged_id().filter(|_| scope.is_none()).map(|id| SelectionKey {
            tree: id.clone(),
            rules: rules.clone(),
            workdir: workdir.clone(),
        });
        if let Some(known) = key.as_ref().and_then(|key| self.find(key)) {
            return Ok(known);
        }
        let files = Arc::new(choose_files(rules, workdir, view, scope, tree)?);
        if let Some(key) = key.filter(|_| files.len() <= MAX_SELECTED_FILES) {
            self.keep(key, Arc::clone(&files));
        }
        Ok(files)
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

/// The reason why a step does not start.
pub(crate) struct FilesNotChosen {
    pub(crate) fault: StartFault,
    pub(crate) reason: String,
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

/// Returns whether the rules would choose a file that was deleted. Its content is not known, so a rule that depends on it
/// counts as met.
fn lacks_chosen_file(
    rules: &FileRules,
    workdir: &RelPath,
    scope: Option<&ScopePaths>,
) -> Result<bool, FileSelectionError> {
    let (matcher, below) = (FileMatcher::new(rules)?, directory_prefix(workdir));
    let is_chosen = |path: &Vec<u8>| {
        let file = FileCandidate { path, kind: EntryKind::File, executable: false };
        path.starts_with(&below) && matcher.match_file(file) != FileMatch::NotChosen
    };
    Ok(scope.is_some_and(|scope| scope.deleted.iter().any(is_chosen)))
}

/// Returns the path in the tree of a file that is named relative to a work directory.
pub(crate) fn path_in_tree(workdir: &RelPath, file: &[u8]) -> Vec<u8> {
    [&directory_prefix(workdir), file].concat()
}

/// Returns the beginning of the paths below a directory of the repository.
fn directory_prefix(directory: &RelPath) -> Vec<u8> {
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

/// Returns the sha256 of sorted paths, each followed by a NUL byte.
pub(crate) fn paths_digest<'a>(paths: impl IntoIterator<Item = &'a Vec<u8>>) -> Sha256Hex {
    let mut listed = Vec::new();
    for path in paths {
        listed.extend_from_slice(path);
        listed.push(0);
    }
    Sha256Hex::digest(&listed)
}

#[cfg(test)]
mod tests {
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
