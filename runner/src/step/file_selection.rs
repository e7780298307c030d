//! Chooses the files of a step among those that it sees before it starts.

use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};
use std::path::Path;
use std::sync::Arc;

use proctor_core::decision::file_matcher::{CONTENT_BYTES, FileCandidate, FileMatch, FileMatcher, FileRuleError};
use proctor_core::model::cache::{TransparentCache, merge_transparent_caches};
use proctor_core::model::drift::EntryKind;
use proctor_core::model::outcome::StartFault;
use proctor_core::model::plan::{FILES_PLACEHOLDER, FileRules, PlannedStep, RelPath};
use proctor_core::record::evidence::CheckedFiles;
use proctor_core::reuse::StoredResult;
use proctor_core::text::digest::Sha256Hex;
use proctor_git::files::read_beneath;
use proctor_sandbox::{FileBatches, Policy};
use proctor_snapshot::{PathState, TreeView};
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
    files: Option<Vec<Vec<u8>>>,
    /// True if the command contains `{files}`.
    are_arguments: bool,
    parallel: u32,
    /// The files that need not be checked again; sorted.
    reused: Vec<Vec<u8>>,
    /// The caches of the executions that passed the reused files.
    earlier_caches: Vec<TransparentCache>,
}

impl StepFiles {
    /// Chooses the files on a blocking thread. Returns the result of the step if it has no files to check, or if they
    /// cannot be chosen.
    pub(crate) async fn choose(
        context: &Arc<RunContext>,
        view: &TreeView,
        step: &PlannedStep,
    ) -> Result<Self, FilesNotChosen> {
        let Some(rules) = step.files.clone() else {
            let (reused, earlier_caches) = (Vec::new(), Vec::new());
            return Ok(Self { files: None, are_arguments: false, parallel: 1, reused, earlier_caches });
        };
        let not_chosen = |fault, reason| FilesNotChosen { fault, reason };
        let are_arguments = step.cmd.words().iter().any(|word| word == FILES_PLACEHOLDER);
        let (parallel, context, view) = (rules.parallel, Arc::clone(context), view.clone());
        let workdir = step.workdir.clone();
        let chosen = tokio::task::spawn_blocking(move || {
            let (tree, scope) = (context.tree.repository.path(), context.files.as_deref());
            let files = choose_files(&rules, &workdir, &view, scope, tree)?;
            let is_needed = !files.is_empty() || (!are_arguments && lacks_chosen_file(&rules, &workdir, scope)?);
            Ok::<_, FileSelectionError>(is_needed.then_some(files))
        });
        match chosen.await {
            Ok(Ok(None)) => Err(not_chosen(StartFault::NoFiles, "there is no file that it checks".to_owned())),
            Ok(Ok(Some(files))) => {
                Ok(Self { files: Some(files), are_arguments, parallel, reused: Vec::new(), earlier_caches: Vec::new() })
            }
            Ok(Err(error)) => Err(not_chosen(StartFault::Internal, error.to_string())),
            Err(error) => Err(not_chosen(StartFault::Internal, format!("its files cannot be chosen: {error}"))),
        }
    }

    /// Returns the chosen files, relative to the work directory of the step.
    pub(crate) fn chosen(&self) -> &[Vec<u8>] {
        self.files.as_deref().unwrap_or_default()
    }

    /// Sets the files that need not be checked again.
    pub(crate) fn set_reused(&mut self, reused: Vec<Vec<u8>>) {
        self.reused = reused;
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
            sha256: paths_digest(files),
            batches: policy.map_or(0, |policy| u32::try_from(policy.files.len()).unwrap_or(u32::MAX)),
            reused: self.reused.len() as u64,
            transparent_caches: if self.reused.is_empty() { Vec::new() } else { self.earlier_caches.clone() },
        })
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
    let candidates: Box<dyn Iterator<Item = (Vec<u8>, PathState)>> = match scope {
        Some(paths) => Box::new(paths.files.iter().map(|path| (path.clone(), view.path_state(path)))),
        None => Box::new(view.covered()),
    };
    let mut files: Vec<Vec<u8>> = candidates
        .filter(|(path, state)| path.starts_with(&below) && is_chosen(&matcher, path, state, &tree))
        .map(|(path, _)| path.get(below.len()..).unwrap_or_default().to_vec())
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

fn is_chosen(matcher: &FileMatcher, path: &[u8], state: &PathState, tree: &TreeContent) -> bool {
    let (kind, executable) = match state {
        PathState::Entry(entry) => (entry.kind, entry.executable),
        PathState::Unhashed(_) => (EntryKind::File, false),
        PathState::Directory | PathState::Absent | PathState::Uncovered => return false,
    };
    match matcher.match_file(FileCandidate { path, kind, executable }) {
        FileMatch::Chosen => true,
        FileMatch::NotChosen => false,
        // A file whose content cannot be read is checked rather than left out.
        FileMatch::NeedsContent(pending) => tree.head(path).is_none_or(|head| matcher.accepts_content(pending, &head)),
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
