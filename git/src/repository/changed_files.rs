//! Lists the files in which a tree differs from a commit.

use std::os::fd::AsFd as _;

use git2::{Delta, Diff, DiffOptions, ErrorCode, Oid, Repository};

use proctor_core::record::evidence::escape_output;

use crate::config::bounded_read::io_error;
use crate::error::GitError;
use crate::files::repo_path::RepoPath;
use crate::protocol::{ChangedFiles, CommitRef};
use crate::repository::history::{HistoryBackend, RepositoryHistory};
use crate::repository::open_repository::{OpenRepository, libgit2_error};
use crate::repository::tree_comparison::{TreeComparisonError, TreeDifference, compare_trees};
use crate::repository::worktree_comparison::compare_bytes;
use crate::repository::{revision, staged_commit};

/// The revision from which changes count if the caller names none.
pub(crate) const DEFAULT_BASE: &str = "HEAD";

/// Length of the id that stands for no commit, as git writes it.
const NO_COMMIT_DIGITS: usize = 40;

/// Returns the files in which the tree of `target`, or the worktree, differs from the merge base of `base` and the
/// verified commit. Submodules are not included.
pub(crate) fn changed_files(
    top: OpenRepository,
    base: Option<&str>,
    target: Option<&CommitRef>,
) -> Result<ChangedFiles, GitError> {
    if let Some(commit) = target {
        staged_commit::add_staged_commit(&top, commit)?;
    }
    let worktree = top.worktree.clone();
    let failed = |error: git2::Error| libgit2_error(&worktree, &error);
    let history = RepositoryHistory::from_opened(top);
    let base = base.unwrap_or(DEFAULT_BASE);
    if revision::parse_range(base).is_some() {
        return Err(GitError::Revision {
            path: worktree,
            revision: escape_output(base.as_bytes()),
            problem: "it is a range".to_owned(),
            mend: "name one commit, such as `main`".to_owned(),
        });
    }
    let HistoryBackend::Libgit2(opened) = &history.backend else {
        return Err(history.unreadable("its commits cannot be compared"));
    };
    let repository = &opened.repository;
    let base = match base == DEFAULT_BASE && is_unborn(repository) {
        true => None,
        false => revision::resolve(&history, base, 1)?.pop().map(|commit| commit.id),
    };
    let base = base.map(|id| Oid::from_str(&id)).transpose().map_err(failed)?;
    let verified = match target {
        Some(commit) => Some(Oid::from_str(&commit.id).map_err(failed)?),
        None => repository.head().and_then(|head| head.peel_to_commit()).ok().map(|commit| commit.id()),
    };
    // Without a common ancestor, everything that differs from the base has changed.
    let merged =
        base.map(|base| verified.and_then(|verified| repository.merge_base(base, verified).ok()).unwrap_or(base));
    let tree = |id| repository.find_commit(id).and_then(|commit| commit.tree()).map_err(failed);
    let from = merged.map(tree).transpose()?;
    let compared = match target {
        Some(commit) => {
            let to = tree(Oid::from_str(&commit.id).map_err(failed)?)?;
            compare_trees(repository, from.map(|tree| tree.id()), Some(to.id()))
        }
        None => {
            let mut options = DiffOptions::new();
            options.ignore_submodules(true).include_untracked(true).recurse_untracked_dirs(true);
            let diff = repository.diff_tree_to_workdir_with_index(from.as_ref(), Some(&mut options)).map_err(failed)?;
            let remains = |status| !matches!(status, Delta::Deleted | Delta::Unmodified | Delta::Ignored);
            let found = TreeDifference {
                changed: changed_paths(&diff, remains),
                deleted: changed_paths(&diff, |status| status == Delta::Deleted),
            };
            match &from {
                Some(from) => compare_bytes(repository, opened.top.as_fd(), from, found),
                None => Ok(found),
            }
        }
    };
    let TreeDifference { changed: paths, deleted } = compared.map_err(|error| match error {
        TreeComparisonError::Unreadable(error) => failed(error),
        TreeComparisonError::UnreadableFile(error) => io_error(&worktree, &error),
        error @ TreeComparisonError::TooManyEntries => {
            history.unreadable(format!("its commits cannot be compared: {error}"))
        }
    })?;
    Ok(ChangedFiles { base: merged.map_or_else(|| "0".repeat(NO_COMMIT_DIGITS), |id| id.to_string()), paths, deleted })
}

/// Checks whether HEAD names a branch that has no commit yet.
fn is_unborn(repository: &Repository) -> bool {
    repository.head().is_err_and(|error| error.code() == ErrorCode::UnbornBranch)
}

fn changed_paths(diff: &Diff<'_>, is_wanted: impl Fn(Delta) -> bool) -> Vec<RepoPath> {
    let deltas = diff.deltas().filter(|delta| is_wanted(delta.status()));
    // For a deleted file, libgit2 repeats the old path as the new one.
    deltas.filter_map(|delta| delta.new_file().path_bytes().map(|path| RepoPath(path.to_vec()))).collect()
}
