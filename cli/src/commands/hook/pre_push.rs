//! Implements git's `pre-push` hook, which verifies the pushed commits. Each one needs its own run or evidence of an
//! earlier run. The worktree is not used.

use std::io::Read as _;
use std::path::Path;

use proctor_core::api::Reuse;
use proctor_core::code::{Coded as _, CommandCode};
use proctor_core::decision::verdict::EXIT_INTERRUPTED;
use proctor_core::model::plan::RelPath;
use proctor_core::model::run_scope::ScopeRequest;
use proctor_runner::{CommitRef, CommitSpecs, MAX_RANGE, NamedCommit, Push, PushedTip, RangeBase, ResolvedPush};

use super::git_environment::{self, check_same_repository};
use super::hook_run::{HookCommit, HookResult, verify_commit, verify_each_spec};
use super::hook_specs::{HookSpecs, worktree_top};
use super::pushed_refs::{self, RefUpdate};
use crate::args::{HookRunArgs, RunArgs, RunFormat};
use crate::caller::Caller;
use crate::commands::run::commit_range::{commit_heading, exit_code_label, short_id, worst_exit_code};
use crate::commands::run::{CommandRuns, TreeSelection};
use crate::engine::{self, engine_error};
use crate::error::CliError;
use crate::installation;
use crate::report_outputs::ReportOutputs;
use crate::screen::Screen;
use crate::style::{self, DIM, paint};
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
    let mut repo = installation::repository(&args.repo, &git_caller)?;
    if args.options.each_spec {
        repo = worktree_top(&repo)?;
    }
    let pushed = pushed_commits(args, &updates, &repo, &git_caller)?;
    check_same_repository(caller, &pushed.git_dir, &repo)?;
    report_skipped(&updates, &pushed, screen);
    let commits = pushed.commits;
    if commits.is_empty() {
        return Ok(0);
    }
    let specs = match args.options.each_spec {
        true => specs_of_push(args, &updates, (&pushed.tips, &commits, &pushed.bases), (&repo, &git_caller))?,
        false => Vec::new(),
    };
    let search = HookSpecs { args, caller: &git_caller, top: &repo };
    let run_args = run_args(args);
    let reuse = if args.options.fresh { Reuse::Never } else { Reuse::Verified };
    let mut reports = ReportOutputs::new(RunFormat::Human, screen)?;
    let root = repo.clone();
    let mut runs = match search.first_without_path(&specs) {
        None => CommandRuns::open(&run_args, (repo, reuse), &mut reports, &git_caller, screen).await?,
        Some(directory) if args.backend.daemon.daemon => return Err(no_path_for_daemon(directory)),
        Some(_) => CommandRuns::in_process(&run_args, (repo, reuse), &mut reports, &git_caller, screen)?,
    };
    let bases = if args.options.all_files { Vec::new() } else { pushed.bases };
    let push = PushedCommits { commits: &commits, bases: &bases, specs: &specs, repo: &root };
    let verified = verify(&mut runs, push, screen).await?;
    runs.finish_exports(screen).await;
    Ok(report_result(&verified, commits.len(), screen))
}

/// Returns the specs of each pushed commit.
fn specs_of_push(
    args: &HookRunArgs,
    updates: &[RefUpdate],
    (tips, commits, bases): (&[PushedTip], &[NamedCommit], &[Option<RangeBase>]),
    (top, caller): (&Path, &Caller),
) -> Result<Vec<CommitSpecs>, CliError> {
    let search = HookSpecs { args, caller, top };
    let sent: Vec<_> = updates.iter().filter(|update| update.local.is_some()).zip(tips).collect();
    let former_of = |commit: &NamedCommit| {
        let own = sent.iter().filter(|(_, tip)| matches!(tip, PushedTip::Commit { id } if *id == commit.id));
        own.filter_map(|(update, _)| update.remote.clone()).collect()
    };
    let specs = commits.iter().enumerate().map(|(index, commit)| {
        search.of_commit(CommitRef::from(&commit.id), bases.get(index).cloned().flatten(), former_of(commit))
    });
    specs.collect()
}

fn no_path_for_daemon(directory: &RelPath) -> CliError {
    let directory = escape_line(directory.as_str());
    CliError::Usage {
        message: format!("a daemon cannot verify the spec of `{directory}`, which is no directory of the worktree"),
        hint: "omit `--daemon`, or check out the commit".to_owned(),
    }
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

/// A commit with its result.
struct VerifiedCommit<'a> {
    commit: &'a NamedCommit,
    result: HookResult,
}

/// The commits of a push.
#[derive(Clone, Copy)]
struct PushedCommits<'a> {
    commits: &'a [NamedCommit],
    /// For each commit, the commit from which its changes count.
    bases: &'a [Option<RangeBase>],
    /// For each commit, its specs; empty if the hook uses only the spec of the repository.
    specs: &'a [CommitSpecs],
    /// The repository with its worktree.
    repo: &'a Path,
}

/// Verifies each commit in order. A commit that cannot be run at all does not stop the others.
async fn verify<'c>(
    runs: &mut CommandRuns<'_>,
    push: PushedCommits<'c>,
    screen: &mut Screen,
) -> Result<Vec<VerifiedCommit<'c>>, CliError> {
    let mut verified = Vec::new();
    let total = push.commits.len();
    for (index, commit) in push.commits.iter().enumerate() {
        if runs.is_interrupted() {
            break;
        }
        let base = push.bases.get(index).cloned().flatten();
        runs.set_scope(base.map_or_else(ScopeRequest::default, changed_files));
        let heading = commit_heading(commit, index + 1, total);
        let is_one_of_many = total > 1;
        let shown = HookCommit { name: commit, heading: &heading, is_one_of_many, is_staged: false, top: push.repo };
        let tree = TreeSelection::Commit(commit.id.clone());
        let result = match push.specs.get(index) {
            Some(specs) => verify_each_spec(runs, tree, (shown, specs), screen).await?,
            None => verify_commit(runs, tree, shown, screen).await?,
        };
        verified.push(VerifiedCommit { commit, result });
    }
    Ok(verified)
}

/// Returns the scope that restricts steps with `files` to the files that a push changes.
fn changed_files(base: RangeBase) -> ScopeRequest {
    ScopeRequest { changed_since: Some(base.since), replaced_commit: base.replaced, ..ScopeRequest::default() }
}

/// Reports the combined result, with a hint if it is not a pass, and returns the exit code.
fn report_result(verified: &[VerifiedCommit<'_>], total: usize, screen: &mut Screen) -> u8 {
    let codes: Vec<u8> = verified.iter().map(|verified| verified.result.exit_code).collect();
    let code = if verified.len() < total { EXIT_INTERRUPTED } else { worst_exit_code(&codes) };
    if total > 1 && code != 0 {
        screen.out(&format!("{}\n", paint(DIM, "pushed commits:")));
        for VerifiedCommit { commit, result: HookResult { exit_code, .. } } in verified {
            let word = paint(style::exit_code_style(*exit_code), format!("{:<12}", exit_code_label(*exit_code)));
            screen.out(&format!("  {} {word} {}\n", short_id(&commit.id), escape_line(&commit.subject)));
        }
    }
    if let Some(first) = verified.iter().find(|verified| verified.result.exit_code != 0) {
        let bad = verified.iter().filter(|verified| verified.result.exit_code != 0).count();
        let message = match total {
            1 => first.result.reason.message.clone(),
            _ => format!("{bad} of {} did not pass", count(total, "commit")),
        };
        let again = format!("`proctor run --rev {}` runs it again", short_id(&first.commit.id));
        let hint = first.result.reason.hint.clone().unwrap_or(again);
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
