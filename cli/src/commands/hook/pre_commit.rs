//! Implements git's `pre-commit` hook, which verifies the commit that the index would make. The worktree is not used,
//! and neither the worktree nor the index is changed.

use std::path::PathBuf;

use proctor_core::api::Reuse;
use proctor_core::code::{Coded as _, CommandCode};
use proctor_core::model::run_scope::ScopeRequest;
use proctor_runner::{RangeBase, StagedIndex};

use super::blocked::BlockedReason;
use super::git_environment::{self, check_same_repository};
use super::hook_run::{HookCommit, HookResult, verify_commit, verify_each_spec};
use super::hook_specs::{HookSpecs, worktree_top};
use super::pre_push::run_args;
use crate::args::{HookRunArgs, RunFormat};
use crate::caller::Caller;
use crate::commands::run::{CommandRuns, TreeSelection};
use crate::error::CliError;
use crate::installation;
use crate::report_outputs::ReportOutputs;
use crate::screen::Screen;
use crate::style;

/// The revision from which the changes of the staged commit count.
const BASE: &str = "HEAD";

/// Verifies the index in this process; a daemon is not used for an index.
///
/// # Errors
/// The index has conflicts, or nothing can be run.
pub(super) async fn verify_staged(args: &HookRunArgs, caller: &Caller, screen: &mut Screen) -> Result<u8, CliError> {
    if let Some(option) = args.options.push_options().first() {
        return Err(CliError::Usage {
            message: format!("`{option}` applies only to pushed commits"),
            hint: "omit it".to_owned(),
        });
    }
    // Git sets another index for `commit --all` and for a commit of single paths.
    let file = caller.var("GIT_INDEX_FILE").map(|named| caller.cwd.join(named));
    let git_caller = git_environment::without_git_changes(caller);
    let mut repo = installation::repository(&args.repo, &git_caller)?;
    if args.options.each_spec {
        repo = worktree_top(&repo)?;
    }
    let run_args = run_args(args);
    let reuse = if args.options.fresh { Reuse::Never } else { Reuse::Verified };
    let mut reports = ReportOutputs::new(RunFormat::Human, screen)?;
    let root = repo.clone();
    let mut runs = CommandRuns::in_process(&run_args, (repo, reuse), &mut reports, &git_caller, screen)?;
    let index = StagedIndex { file: file.map(|file: PathBuf| file.canonicalize().unwrap_or(file)) };
    let commit = runs.staged_commit(index).await?;
    check_same_repository(caller, &commit.git_dir, &root)?;
    if !args.options.all_files {
        runs.set_scope(ScopeRequest { changed_since: Some(BASE.to_owned()), ..ScopeRequest::default() });
    }
    let tree = TreeSelection::Staged((&commit).into());
    let shown = HookCommit { name: &commit.name, heading: "", is_one_of_many: false, is_staged: true, top: &root };
    let result = if args.options.each_spec {
        let search = HookSpecs { args, caller: &git_caller, top: &root };
        let base = RangeBase { since: BASE.to_owned(), replaced: None };
        let specs = search.of_commit((&commit).into(), Some(base), Vec::new())?;
        verify_each_spec(&mut runs, tree, (shown, &specs), screen).await?
    } else {
        verify_commit(&mut runs, tree, shown, screen).await?
    };
    runs.finish_exports(screen).await;
    let HookResult { exit_code, reason: BlockedReason { message, hint } } = result;
    if exit_code != 0 {
        let skip = "`git commit --no-verify` skips the check";
        let text = style::error(
            CommandCode::CommitStopped.code(),
            &format!("commit blocked: {message}"),
            &[hint.map_or_else(|| skip.to_owned(), |hint| format!("{hint}; {skip}"))],
        );
        screen.err(&screen.layout().fit_lines(&text));
    }
    Ok(exit_code)
}
