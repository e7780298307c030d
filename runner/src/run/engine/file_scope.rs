//! Restricts a run to the steps and files that its request names.

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::sync::Arc;

use proctor_core::decision::step_selection;
use proctor_core::model::names::ChangesetId;
use proctor_core::model::plan::{Plan, PlannedStep, RelPath};
use proctor_core::model::run_scope::{FileScope, FileScopeOrigin, RunScope, ScopeRequest};
use proctor_git::error::GitError;
use proctor_git::files::repo_path::RepoPath;
use proctor_git::helper::GitHelper;
use proctor_git::protocol::{ChangedFiles, CommitRef};
use proctor_snapshot::Snapshot;
use tokio::task::JoinHandle;

use super::Engine;
use crate::error::EngineError;
use crate::host::repository::Repository;
use crate::run::prepared_tree::PreparedTree;
use crate::run::request::{RunRequest, RunSource};
use crate::step::chosen_files::ScopePaths;
use crate::step::file_selection::paths_digest;

/// A plan that is restricted to a part of the profile.
pub(super) struct ScopedPlan {
    pub(super) plan: Plan,
    /// The only paths that steps with `files` check; `None` if they check all.
    pub(super) files: Option<Arc<ScopePaths>>,
}

/// The files that a commit changed, which are read while its tree is prepared.
pub(super) type EarlyChanges = JoinHandle<Result<ChangedFiles, GitError>>;

/// Refuses a scope that contradicts itself, or that cannot be evidence for a changeset.
///
/// # Errors
/// The scope is refused.
pub fn require_valid_scope(scope: &ScopeRequest, changeset: Option<&ChangesetId>) -> Result<(), EngineError> {
    match (scope.is_whole(), changeset) {
        (false, Some(id)) => return Err(EngineError::RestrictedChangeset(id.clone())),
        _ if scope.changed_since.is_some() && scope.files.is_some() => return Err(EngineError::TwoFileScopes),
        _ if scope.replaced_commit.is_some() && scope.changed_since.is_none() => {
            return Err(EngineError::ReplacedCommitAlone);
        }
        _ => {}
    }
    match scope.files.iter().flatten().find(|path| RelPath::new(path.as_str()).is_err()) {
        Some(path) => Err(EngineError::ScopePath(path.clone())),
        None => Ok(()),
    }
}

impl Engine {
    /// Restricts a plan to the selected steps, and adds fixes, if the request asks for them.
    pub(super) fn apply_step_scope(&self, plan: Plan, request: &RunRequest) -> Result<Plan, EngineError> {
        require_valid_scope(&request.scope, request.changeset.as_ref())?;
        if request.scope.fix && request.source != RunSource::Worktree {
            return Err(EngineError::FixOfCommit);
        }
        if request.scope.replaced_commit.is_some() && request.source == RunSource::Worktree {
            return Err(EngineError::ReplacedCommitAlone);
        }
        let plan = step_selection::select_steps(plan, &request.scope.selected)?;
        Ok(if request.scope.fix { step_selection::add_fixes(plan)? } else { plan })
    }

    /// Starts to read the files that a commit changed, if the request restricts the run to them. They do not depend on the
    /// private copy of the commit.
    pub(super) fn read_changes_early(&self, repository: &Repository, request: &RunRequest) -> Option<EarlyChanges> {
        let base = request.scope.changed_since.clone()?;
        let target = target_commit(&request.source)?;
        let replaced = request.scope.replaced_commit.clone();
        let (helper, worktree) = (self.helper.clone(), repository.path().to_path_buf());
        Some(tokio::task::spawn_blocking(move || {
            let mut changes = helper.changed_files(&worktree, Some(&base), Some(&target))?;
            if let Some(replaced) = replaced {
                let dropped = helper.changed_files(&worktree, Some(&target.id), Some(&CommitRef::from(&replaced)))?;
                add_dropped_changes(&mut changes, dropped);
            }
            Ok(changes)
        }))
    }

    /// Restricts a run to the files that the request names.
    pub(super) async fn apply_file_scope(
        &self,
        plan: Plan,
        source: &mut PreparedTree,
        request: &RunRequest,
        early: Option<EarlyChanges>,
    ) -> Result<ScopedPlan, EngineError> {
        let has_file_steps = steps(&plan).any(|step| step.files.is_some());
        if !has_file_steps || (request.scope.changed_since.is_none() && request.scope.files.is_none()) {
            return Ok(ScopedPlan { plan, files: None });
        }
        let snapshot =
            match source.private_copy.as_ref().map(|(_, snapshot)| snapshot).or(source.worktree_snapshot.as_ref()) {
                Some(snapshot) => Arc::clone(snapshot),
                None => {
                    let snapshot = self.take_snapshot(source.repository.path()).await?;
                    source.worktree_snapshot = Some(Arc::clone(&snapshot));
                    snapshot
                }
            };
        let failed = |error| EngineError::Internal(format!("choosing files failed unexpectedly: {error}"));
        let changes = match early {
            Some(early) => Some(early.await.map_err(failed)??),
            None => None,
        };
        let query = ScopeQuery {
            helper: self.helper.clone(),
            copy_helper: source.private_copy.as_ref().map(|(copy, _)| copy.helper.clone()),
            worktree: source.worktree.clone(),
            tree: source.repository.path().to_path_buf(),
            snapshot,
            request: request.scope.clone(),
            changes,
        };
        tokio::task::spawn_blocking(move || query.restrict(plan)).await.map_err(failed)?
    }
}

/// Adds the files that a replaced commit had changed. The verified tree can contain an older version of such a file.
pub(crate) fn add_dropped_changes(changes: &mut ChangedFiles, dropped: ChangedFiles) {
    // A path that the verified tree lacks has no effect on the files; the step may still depend on its absence.
    changes.deleted.extend(dropped.paths.iter().chain(&dropped.deleted).cloned());
    changes.paths.extend(dropped.paths.into_iter().chain(dropped.deleted));
}

fn target_commit(source: &RunSource) -> Option<CommitRef> {
    match source {
        RunSource::Worktree => None,
        RunSource::Commit { id, .. } => Some(CommitRef::from(id)),
        RunSource::Staged(commit) => Some(commit.clone()),
    }
}

fn steps(plan: &Plan) -> impl Iterator<Item = &PlannedStep> {
    plan.skills.iter().flat_map(|skill| &skill.steps)
}

/// The question which files of a tree a request names.
struct ScopeQuery {
    helper: GitHelper,
    /// Reads the private copy, if the run has one.
    copy_helper: Option<GitHelper>,
    worktree: Repository,
    tree: PathBuf,
    snapshot: Arc<Snapshot>,
    request: ScopeRequest,
    /// The changes, if they are known.
    changes: Option<ChangedFiles>,
}

impl ScopeQuery {
    fn restrict(mut self, plan: Plan) -> Result<ScopedPlan, EngineError> {
        let (origin, paths) = match &self.request.files {
            Some(named) => (FileScopeOrigin::Named, self.named_paths(named)),
            None => self.changed_paths()?,
        };
        let files = FileScope { origin, count: paths.files.len() as u64, sha256: paths_digest(&paths.files) };
        let scope = RunScope { files: Some(files), ..plan.scope.clone().unwrap_or_default() };
        Ok(ScopedPlan { plan: Plan { scope: Some(scope), ..plan }, files: Some(Arc::new(paths)) })
    }

    fn changed_paths(&mut self) -> Result<(FileScopeOrigin, ScopePaths), EngineError> {
        let changed = match self.changes.take() {
            Some(changes) => changes,
            None => {
                let mut changes = self.changes_since(self.request.changed_since.as_deref())?;
                // The snapshot decides which files are ignored: libgit2 and git differ on some rules.
                changes.paths.extend(self.snapshot.entries.untracked().into_iter().map(RepoPath));
                changes
            }
        };
        let files = changed.paths.into_iter().map(|path| path.0).filter(|path| self.snapshot.entries.contains(path));
        let deleted = changed.deleted.into_iter().map(|path| path.0);
        let deleted = deleted.filter(|path| !self.snapshot.entries.contains(path));
        let paths = ScopePaths { files: files.collect(), deleted: deleted.collect() };
        let replaced = self.request.replaced_commit.clone();
        Ok((FileScopeOrigin::Changed { base: changed.base, replaced }, paths))
    }

    /// Returns the files in which the worktree differs from `base`. The worktree may be edited at the same time, so the
    /// private copy is compared, if there is one; only the worktree's repository knows the names of all revisions.
    fn changes_since(&self, base: Option<&str>) -> Result<ChangedFiles, EngineError> {
        let worktree = self.worktree.path();
        let Some(copy) = &self.copy_helper else { return Ok(self.helper.changed_files(worktree, base, None)?) };
        // The files of the worktree do not matter here, only the commit from which changes count.
        let base = self.helper.changed_files(worktree, base, None)?.base;
        // Before the first commit, the id consists of zeros, and HEAD of the copy names no commit either.
        let commit = Some(base.as_str()).filter(|id| id.bytes().any(|digit| digit != b'0'));
        Ok(copy.changed_files(&self.tree, commit, None)?)
    }

    /// Returns the files of the tree that these paths name. A directory or a repository stands for the files in it, and
    /// for the files that git tracks there and that were deleted. Any other path that does not exist stands for a deleted file.
    fn named_paths(&self, named: &[String]) -> ScopePaths {
        let entries = &self.snapshot.entries;
        let (mut paths, mut deleted) = (BTreeSet::new(), BTreeSet::new());
        for path in named.iter().filter_map(|path| RelPath::new(path.as_str()).ok()) {
            let bytes = path.as_str().as_bytes();
            match path.as_str() {
                "." => {
                    paths.extend(entries.paths());
                    deleted.extend(entries.missing_below(b""));
                }
                _ if entries.contains(bytes) => {
                    paths.insert(bytes.to_vec());
                    // A repository in the tree is an entry itself.
                    paths.extend(entries.below(bytes).map(|(path, _)| path));
                }
                _ => {
                    let missing = entries.missing_below(bytes);
                    let mut found = entries.below(bytes).map(|(path, _)| path).peekable();
                    if missing.is_empty() && found.peek().is_none() {
                        deleted.insert(bytes.to_vec());
                    }
                    paths.extend(found);
                    deleted.extend(missing);
                }
            }
        }
        ScopePaths { files: paths, deleted }
    }
}
