//! Implements git's `pre-commit` hook, which verifies the commit that the index would make. The worktree is not used,
//! and neither the worktree nor the index is changed.

use std::path::PathBuf;

use proctor_core::api::Reuse;
use proctor_core::code::{Coded as _, CommandCode};
use proctor_core::model::run_scope::ScopeRequest;
use proctor_runner::StagedIndex;

use super::blocked::BlockedReason;
use super::git_environment::{self, check_same_repository};
use super::pre_push::{reused_run_line, run_args};
use crate::args::{HookRunArgs, RunFormat};
use crate::caller::Caller;
use crate::commands::run::{CommandRuns, TreeSelection, print_result};
use crate::error::CliError;
use crate::installation;
use crate::report_outputs::ReportOutputs;
use crate::screen::Screen;
use crate::style;

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
    let repo = installation::repository(&args.repo, &git_caller)?;
    let run_args = run_args(args);
    let reuse = if args.options.fresh { Reuse::Never } else { Reuse::Verified };
    let mut reports = ReportOutputs::new(RunFormat::Human, screen)?;
    let root = repo.clone();
    let mut runs = CommandRuns::in_process(&run_args, (repo, reuse), &mut reports, &git_caller, screen)?;
    let index = StagedIndex { file: file.map(|file: PathBuf| file.canonicalize().unwrap_or(file)) };
    let commit = runs.staged_commit(index).await?;
    check_same_repository(caller, &commit.git_dir, &root)?;
    if !args.options.all_files {
        runs.set_scope(ScopeRequest { changed_since: Some("HEAD".to_owned()), ..ScopeRequest::default() });
    }
    let (record, ended) = runs.run_with_progress(TreeSelection::Staged((&commit).into()), screen).await?;
    if let Some(known) = &ended.reused {
        screen.out(&reused_run_line(&commit.name, known));
        return Ok(0);
    }
    let text = runs.report_text(&record, screen.layout()).await;
    let code = print_result(RunFormat::Human, &record, &ended, &text, screen)?;
    runs.finish_exports(screen).await;
    if code != 0 {
        let BlockedReason { message, hint } = BlockedReason::for_run(&record, code, &root);
        let skip = "`git commit --no-verify` skips the check";
        let text = style::error(
            CommandCode::CommitStopped.code(),
            &format!("commit blocked: {message}"),
            &[hint.map_or_else(|| skip.to_owned(), |hint| format!("{hint}; {skip}"))],
        );
        screen.err(&screen.layout().fit_lines(&text));
    }
    Ok(code)
}
