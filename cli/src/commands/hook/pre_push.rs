//! Implements git's `pre-push` hook, which verifies the pushed commits. Each one needs its own run or evidence of an
//! earlier run. The worktree is not used.

use std::io::Read as _;
use std::path::Path;

use proctor_core::api::Reuse;
use proctor_core::code::{Coded as _, CommandCode};
use proctor_core::decision::verdict::{EXIT_INCONCLUSIVE, EXIT_INTERRUPTED};
use proctor_core::model::run_scope::ScopeRequest;
use proctor_runner::{MAX_RANGE, NamedCommit, Push, PushedTip, RangeBase, ResolvedPush};

use super::blocked::BlockedReason;
use super::git_environment::{self, check_same_repository};
use super::pushed_refs::{self, RefUpdate};
use crate::args::{HookRunArgs, RunArgs, RunFormat};
use crate::caller::Caller;
use crate::commands::run::commit_range::{commit_heading, exit_code_label, short_id, worst_exit_code};
use crate::commands::run::{CommandRuns, ReusedRun, TreeSelection, print_result};
use crate::engine::{self, engine_error};
use crate::error::CliError;
use crate::installation;
use crate::report_outputs::ReportOutputs;
use crate::screen::Screen;
use crate::style::{self, DIM, GOOD, STRONG, paint};
use crate::text::{count, escape_line};

/// Verifies the pushed commits. The exit code is that of the worst commit.
///
/// # Errors
/// Git's input cannot be parsed, or the commits cannot be determined.
pub(super) async fn verify_push(args: &HookRunArgs, caller: &Caller, screen: &mut Screen) -> Result<u8, CliError> {
    let updates = pushed_refs::parse_updates(&read_input()?).map_err(|bad| bad_line_error(&bad))?;
    if updates.is_empty() {
        // The installed hook does not call `proctor` then. Another caller may not have passed git's input.
        screen.err(&style::warning("standard input names no pushed ref, so nothing is verified"));
        return Ok(0);
    }
    if updates.iter().all(|update| update.local.is_none()) {
        // The push only deletes refs.
        return Ok(0);
    }
    let git_caller = git_environment::without_git_changes(caller);
    let repo = installation::repository(&args.repo, &git_caller)?;
    let pushed = pushed_commits(args, &updates, &repo, &git_caller)?;
    check_same_repository(caller, &pushed.git_dir, &repo)?;
    report_skipped(&updates, &pushed, screen);
    let commits = pushed.commits;
    if commits.is_empty() {
        return Ok(0);
    }
    let run_args = run_args(args);
    let reuse = if args.options.fresh { Reuse::Never } else { Reuse::Verified };
    let mut reports = ReportOutputs::new(RunFormat::Human, screen)?;
    let root = repo.clone();
    let mut runs = CommandRuns::open(&run_args, (repo, reuse), &mut reports, &git_caller, screen).await?;
    let bases = if args.options.all_files { Vec::new() } else { pushed.bases };
    let verified = verify(&mut runs, &commits, (&bases, &root), screen).await?;
    runs.finish_exports(screen).await;
    Ok(report_result(&verified, commits.len(), screen))
}

/// Reads the lines that git writes.
fn read_input() -> Result<Vec<u8>, CliError> {
    let stdin = std::io::stdin();
    let failed = |message: String, hint: &str| CliError::Usage { message, hint: hint.to_owned() };
    if std::io::IsTerminal::is_terminal(&stdin) {
        return Err(failed(
            "standard input is a terminal, but git writes the list of pushed refs to it".to_owned(),
            "`proctor hook install pre-push` makes git run this command; `proctor run --rev <commit>` verifies one \
                commit",
        ));
    }
    let mut bytes = Vec::new();
    let read = stdin.lock().take(pushed_refs::MAX_INPUT_BYTES + 1).read_to_end(&mut bytes);
    let unread = |problem: &str| failed(format!("standard input cannot be read: {problem}"), "push fewer refs at once");
    read.map_err(|error| unread(&error.to_string()))?;
    if bytes.len() as u64 > pushed_refs::MAX_INPUT_BYTES {
        return Err(unread("it is longer than any push"));
    }
    Ok(bytes)
}

fn bad_line_error(bad: &pushed_refs::PushLineError) -> CliError {
    CliError::Usage {
        message: bad.to_string(),
        hint: "git writes `<local ref> <local id> <remote ref> <remote id>`, see githooks(5)".to_owned(),
    }
}

/// Determines the commits that the push sends.
fn pushed_commits(
    args: &HookRunArgs,
    updates: &[RefUpdate],
    repo: &Path,
    caller: &Caller,
) -> Result<ResolvedPush, CliError> {
    let mut known: Vec<String> = updates.iter().filter_map(|update| update.remote.clone()).collect();
    known.sort();
    known.dedup();
    let sent = || updates.iter().filter_map(|update| Some((update.local.clone()?, update.remote.clone())));
    let (tips, former) = sent().unzip();
    // Git names the remote, or gives its URL if it has no name.
    let remote = args.given.first().cloned();
    let push = Push { tips, former, known, remote, each: args.options.each_commit, limit: MAX_RANGE };
    let operator = installation::operator(&args.backend.operator, caller)?;
    let config = engine::config(&args.backend.state, operator, caller)?;
    proctor_runner::pushed_commits(config, repo, &push).map_err(engine_error)
}

/// Reports pushed objects that have no tree to verify, such as tags of blobs; they are not verified.
fn report_skipped(updates: &[RefUpdate], pushed: &ResolvedPush, screen: &mut Screen) {
    let sent = updates.iter().filter(|update| update.local.is_some());
    for (update, tip) in sent.zip(&pushed.tips) {
        if let PushedTip::Other { kind } = tip {
            let name = escape_line(&update.local_ref);
            screen.err(&format!(
                "{} `{name}` is a {}, so nothing in it is verified\n",
                paint(DIM, "skipped:"),
                escape_line(kind)
            ));
        }
    }
}

/// Returns the arguments of an equivalent `proctor run --rev` for a single commit.
pub(super) fn run_args(args: &HookRunArgs) -> RunArgs {
    RunArgs {
        scope: crate::args::ScopeArgs::default(),
        profile: args.options.profile.clone(),
        changeset: None,
        max_tier: proctor_core::model::tier::Tier::TWO,
        rev: None,
        submodules: args.options.submodules,
        patch: None,
        last_failed: false,
        no_caches: false,
        no_cache: args.options.fresh,
        fail_fast: false,
        is_hook: true,
        quiet: false,
        verbose: false,
        reports: crate::args::ReportsArgs { format: RunFormat::Human, report: Vec::new() },
        sandbox: crate::args::SandboxArgs { sandbox: args.sandbox.sandbox },
        repo: crate::args::RepoArgs { repo: args.repo.repo.clone() },
        backend: args.backend.clone(),
    }
}

/// A commit with its exit code.
struct VerifiedCommit<'a> {
    commit: &'a NamedCommit,
    exit_code: u8,
    /// The reason why the commit is not verified, if it is not.
    reason: BlockedReason,
}

/// Verifies each commit in order. `bases` has, for each commit, the commit from which its changes count. A commit that
/// cannot be run at all does not stop the others.
async fn verify<'c>(
    runs: &mut CommandRuns<'_>,
    commits: &'c [NamedCommit],
    (bases, repo): (&[Option<RangeBase>], &Path),
    screen: &mut Screen,
) -> Result<Vec<VerifiedCommit<'c>>, CliError> {
    let mut verified = Vec::new();
    for (index, commit) in commits.iter().enumerate() {
        if runs.is_interrupted() {
            break;
        }
        let base = bases.get(index).cloned().flatten();
        runs.set_scope(base.map_or_else(ScopeRequest::default, changed_files));
        let ended = runs.run_with_progress(TreeSelection::Commit(commit.id.clone()), screen).await;
        let mut reason = BlockedReason::not_run();
        let exit_code = match ended {
            Ok((_, ended)) if ended.reused.is_some() => {
                if let Some(known) = ended.reused {
                    screen.out(&reused_run_line(commit, &known));
                }
                0
            }
            Ok((record, ended)) => {
                let shown = record.finished.as_ref().map_or(EXIT_INCONCLUSIVE, |finished| finished.exit_code);
                if commits.len() > 1 || shown != 0 {
                    screen.out(&commit_heading(commit, index + 1, commits.len()));
                }
                reason = BlockedReason::for_run(&record, shown, repo);
                let text = runs.report_text(&record, screen.layout()).await;
                print_result(RunFormat::Human, &record, &ended, &text, screen)?
            }
            Err(error) => {
                screen.out(&commit_heading(commit, index + 1, commits.len()));
                screen.err(&error.render());
                error.exit_code()
            }
        };
        verified.push(VerifiedCommit { commit, exit_code, reason });
    }
    Ok(verified)
}

/// Returns the scope that restricts steps with `files` to the files that a push changes.
fn changed_files(base: RangeBase) -> ScopeRequest {
    ScopeRequest { changed_since: Some(base.since), replaced_commit: base.replaced, ..ScopeRequest::default() }
}

/// Formats the line for a commit that needs no run.
pub(super) fn reused_run_line(commit: &NamedCommit, known: &ReusedRun) -> String {
    let when = known.ended.as_deref().map_or_else(String::new, |ended| format!(" of {}", escape_line(ended)));
    let (id, subject) = (paint(STRONG, short_id(&commit.id)), escape_line(&commit.subject));
    format!("{} {id} {subject} (run {}{when})\n", paint(GOOD, "verified already:"), known.run)
}

/// Reports the combined result, with a hint if it is not a pass, and returns the exit code.
fn report_result(verified: &[VerifiedCommit<'_>], total: usize, screen: &mut Screen) -> u8 {
    let codes: Vec<u8> = verified.iter().map(|verified| verified.exit_code).collect();
    let code = if verified.len() < total { EXIT_INTERRUPTED } else { worst_exit_code(&codes) };
    if total > 1 && code != 0 {
        screen.out(&format!("{}\n", paint(DIM, "pushed commits:")));
        for VerifiedCommit { commit, exit_code, .. } in verified {
            let word = paint(style::exit_code_style(*exit_code), format!("{:<12}", exit_code_label(*exit_code)));
            screen.out(&format!("  {} {word} {}\n", short_id(&commit.id), escape_line(&commit.subject)));
        }
    }
    if let Some(first) = verified.iter().find(|verified| verified.exit_code != 0) {
        let bad = verified.iter().filter(|verified| verified.exit_code != 0).count();
        let message = match total {
            1 => first.reason.message.clone(),
            _ => format!("{bad} of {} did not pass", count(total, "commit")),
        };
        let again = format!("`proctor run --rev {}` runs it again", short_id(&first.commit.id));
        let hint = first.reason.hint.clone().unwrap_or(again);
        let text = style::error(
            CommandCode::PushStopped.code(),
            &format!("push blocked: {message}"),
            &[format!("{hint}; `git push --no-verify` skips the check")],
        );
        screen.err(&screen.layout().fit_lines(&text));
    } else if code != 0 {
        let text = style::error(CommandCode::PushStopped.code(), "push blocked: interrupted", &[]);
        screen.err(&screen.layout().fit_lines(&text));
    }
    code
}
