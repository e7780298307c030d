//! Implements git's `pre-commit` hook, which verifies the commit that the index would make. The worktree is not used,
//! and neither the worktree nor the index is changed.

use std::path::PathBuf;

use proctor_core::api::Reuse;
use proctor_core::code::{Coded as _, CommandCode};
use proctor_runner::StagedIndex;

use super::push::{known_line, run_args};
use super::surroundings;
use crate::args::{HookRunArgs, RunFormat};
use crate::caller::Caller;
use crate::commands::run::range::word;
use crate::commands::run::{Runs, Tree, finish};
use crate::error::CliError;
use crate::installation;
use crate::reports::Reports;
use crate::screen::Screen;
use crate::style;

/// Verifies the index in this process; a daemon is not used for an index.
///
/// # Errors
/// The index has conflicts, or nothing can be run.
pub(super) async fn staged(args: &HookRunArgs, caller: &Caller, screen: &mut Screen) -> Result<u8, CliError> {
    if args.options.each_commit {
        return Err(CliError::Usage {
            message: "`--each-commit` is about commits that are pushed".to_owned(),
            hint: "omit it".to_owned(),
        });
    }
    // Git sets another index for `commit --all` and for a commit of single paths.
    let file = caller.var("GIT_INDEX_FILE").map(|named| caller.cwd.join(named));
    let before = surroundings::of_git(caller);
    let repo = installation::repository(&args.repo, &before)?;
    let asked = run_args(args);
    let reuse = if args.options.fresh { Reuse::Never } else { Reuse::Verified };
    let mut reports = Reports::new(RunFormat::Human, screen)?;
    let mut runs = Runs::here(&asked, (repo, reuse), &mut reports, &before, screen)?;
    let index = StagedIndex { file: file.map(|file: PathBuf| file.canonicalize().unwrap_or(file)) };
    let commit = runs.staged(index.clone()).await?;
    let (record, ended) = runs.follow(Tree::Staged { id: commit.id.clone(), index }, screen).await?;
    if let Some(known) = &ended.known {
        screen.out(&known_line(&commit, known));
        return Ok(0);
    }
    let text = runs.text(&record, screen.room()).await;
    let code = finish(RunFormat::Human, &record, &ended, &text, screen)?;
    runs.exported(screen).await;
    if code != 0 {
        let message = format!("the commit is rejected: {}", word(code));
        screen.err(&style::error(
            CommandCode::CommitStopped.code(),
            &message,
            &["`git commit --no-verify` leaves this check out".to_owned()],
        ));
    }
    Ok(code)
}
