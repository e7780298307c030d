//! Implements git's `pre-push` hook, which verifies the pushed commits. Each one needs its own run or evidence of an
//! earlier run. The worktree is not used.

use std::io::Read as _;
use std::path::{Path, PathBuf};

use proctor_core::api::Reuse;
use proctor_core::code::{Coded as _, CommandCode};
use proctor_core::verdict::EXIT_INTERRUPTED;
use proctor_runner::{MAX_RANGE, NamedCommit, Push, Pushed, PushedTip};

use super::refs::{self, RefUpdate};
use super::surroundings;
use crate::args::{HookRunArgs, RunArgs, RunFormat};
use crate::caller::Caller;
use crate::commands::run::range::{heading, short, word, worst};
use crate::commands::run::{Known, Runs, Tree, finish};
use crate::engine::{self, engine_error};
use crate::error::CliError;
use crate::installation::{self, show};
use crate::reports::Reports;
use crate::screen::Screen;
use crate::style::{self, DIM, GOOD, STRONG, paint};
use crate::text::{count, shown_line};

/// Verifies the pushed commits. The exit code is that of the worst commit.
///
/// # Errors
/// Git's input cannot be parsed, or the commits cannot be determined.
pub(super) async fn push(args: &HookRunArgs, caller: &Caller, screen: &mut Screen) -> Result<u8, CliError> {
    let updates = refs::read(&input()?).map_err(|bad| misunderstood(&bad))?;
    if updates.iter().all(|update| update.local.is_none()) {
        // The push sends no objects: it only deletes refs, or has no refs at all.
        return Ok(0);
    }
    let before = surroundings::of_git(caller);
    let repo = installation::repository(&args.repo, &before)?;
    let pushed = sent(args, &updates, &repo, &before)?;
    check_same(caller, &pushed, &repo)?;
    tell_skipped(&updates, &pushed, screen);
    let commits = pushed.commits;
    if commits.is_empty() {
        return Ok(0);
    }
    let asked = run_args(args);
    let reuse = if args.options.fresh { Reuse::Never } else { Reuse::Verified };
    let mut reports = Reports::new(RunFormat::Human, screen)?;
    let mut runs = Runs::open(&asked, (repo, reuse), &mut reports, &before, screen).await?;
    let verified = verify(&mut runs, &commits, screen).await?;
    runs.exported(screen).await;
    Ok(told(&verified, commits.len(), screen))
}

/// Reads the lines that git writes.
fn input() -> Result<Vec<u8>, CliError> {
    let stdin = std::io::stdin();
    let failed = |message: String, hint: &str| CliError::Usage { message, hint: hint.to_owned() };
    if std::io::IsTerminal::is_terminal(&stdin) {
        return Err(failed(
            "standard input is a terminal, and git says there what is pushed".to_owned(),
            "`proctor hook install pre-push` has git call this; `proctor run --rev <commit>` verifies one commit",
        ));
    }
    let mut bytes = Vec::new();
    let read = stdin.lock().take(refs::MAX_BYTES + 1).read_to_end(&mut bytes);
    let unread = |problem: &str| failed(format!("standard input cannot be read: {problem}"), "push fewer refs at once");
    read.map_err(|error| unread(&error.to_string()))?;
    if bytes.len() as u64 > refs::MAX_BYTES {
        return Err(unread("it is longer than any push"));
    }
    Ok(bytes)
}

fn misunderstood(bad: &refs::BadLine) -> CliError {
    CliError::Usage {
        message: format!("line {} of standard input does not describe a push: {}", bad.number, bad.problem),
        hint: "git writes `<local ref> <local id> <remote ref> <remote id>`, see githooks(5)".to_owned(),
    }
}

/// Determines the commits that the push sends.
fn sent(args: &HookRunArgs, updates: &[RefUpdate], repo: &Path, caller: &Caller) -> Result<Pushed, CliError> {
    let mut known: Vec<String> = updates.iter().filter_map(|update| update.remote.clone()).collect();
    known.sort();
    known.dedup();
    let tips = updates.iter().filter_map(|update| update.local.clone()).collect();
    let push = Push { tips, known, each: args.options.each_commit, limit: MAX_RANGE };
    let operator = installation::operator(&args.way.operator, caller)?;
    let config = engine::config(&args.way.state, operator, caller)?;
    proctor_runner::pushed(config, repo, &push).map_err(engine_error)
}

/// Checks that `GIT_DIR`, which git sets in some cases, belongs to the repository that would be verified.
fn check_same(caller: &Caller, pushed: &Pushed, repo: &Path) -> Result<(), CliError> {
    let Some(named) = caller.var("GIT_DIR") else { return Ok(()) };
    let named: PathBuf = caller.cwd.join(named);
    if named.canonicalize().is_ok_and(|named| named == pushed.git_dir) {
        return Ok(());
    }
    Err(CliError::Usage {
        message: format!("git works in `{}`, and that is not the git directory of `{}`", show(&named), show(repo)),
        hint: "push from the worktree itself, without `GIT_DIR` and `--git-dir`".to_owned(),
    })
}

/// Reports pushed objects that have no tree to verify, such as tags of blobs; they are not verified.
fn tell_skipped(updates: &[RefUpdate], pushed: &Pushed, screen: &mut Screen) {
    let sent = updates.iter().filter(|update| update.local.is_some());
    for (update, tip) in sent.zip(&pushed.tips) {
        if let PushedTip::Other { kind } = tip {
            let name = shown_line(&update.local_ref);
            screen.err(&format!(
                "{} `{name}` is a {}, and nothing of it is verified\n",
                paint(DIM, "skipped:"),
                shown_line(kind)
            ));
        }
    }
}

/// Returns the arguments of an equivalent `proctor run --rev` for a single commit.
pub(super) fn run_args(args: &HookRunArgs) -> RunArgs {
    RunArgs {
        profile: args.options.profile.clone(),
        changeset: None,
        max_tier: proctor_core::tier::Tier::TWO,
        rev: None,
        submodules: false,
        patch: None,
        last_failed: false,
        no_caches: false,
        fail_fast: false,
        quiet: false,
        verbose: false,
        reports: crate::args::ReportsArgs { format: RunFormat::Human, report: Vec::new() },
        sandbox: crate::args::SandboxArgs { sandbox: args.sandbox.sandbox },
        repo: crate::args::RepoArgs { repo: args.repo.repo.clone() },
        way: args.way.clone(),
    }
}

/// A commit with its exit code.
struct Verified<'a> {
    commit: &'a NamedCommit,
    exit_code: u8,
}

/// Verifies each commit in order. A commit that cannot be run at all does not stop the others.
async fn verify<'c>(
    runs: &mut Runs<'_>,
    commits: &'c [NamedCommit],
    screen: &mut Screen,
) -> Result<Vec<Verified<'c>>, CliError> {
    let mut verified = Vec::new();
    for (index, commit) in commits.iter().enumerate() {
        if runs.are_interrupted() {
            break;
        }
        let ended = runs.follow(Tree::Commit(commit.id.clone()), screen).await;
        let exit_code = match ended {
            Ok((_, ended)) if ended.known.is_some() => {
                if let Some(known) = ended.known {
                    screen.out(&known_line(commit, &known));
                }
                0
            }
            Ok((record, ended)) => {
                screen.out(&heading(commit, index + 1, commits.len()));
                let text = runs.text(&record, screen.room()).await;
                finish(RunFormat::Human, &record, &ended, &text, screen)?
            }
            Err(error) => {
                screen.out(&heading(commit, index + 1, commits.len()));
                screen.err(&error.render());
                error.exit_code()
            }
        };
        verified.push(Verified { commit, exit_code });
    }
    Ok(verified)
}

/// Formats the line for a commit that needs no run.
pub(super) fn known_line(commit: &NamedCommit, known: &Known) -> String {
    let when = known.ended.as_deref().map_or_else(String::new, |ended| format!(" of {}", shown_line(ended)));
    let (id, subject) = (paint(STRONG, short(&commit.id)), shown_line(&commit.subject));
    format!("{} {id} {subject} (run {}{when})\n", paint(GOOD, "verified already:"), known.run)
}

/// Reports the combined result, with a hint if it is no pass, and returns the exit code.
fn told(verified: &[Verified<'_>], of: usize, screen: &mut Screen) -> u8 {
    let codes: Vec<u8> = verified.iter().map(|verified| verified.exit_code).collect();
    let code = if verified.len() < of { EXIT_INTERRUPTED } else { worst(&codes) };
    if of > 1 && code != 0 {
        screen.out(&format!("{}\n", paint(DIM, "pushed commits:")));
        for Verified { commit, exit_code } in verified {
            let word = paint(style::of_exit_code(*exit_code), format!("{:<12}", word(*exit_code)));
            screen.out(&format!("  {} {word} {}\n", short(&commit.id), shown_line(&commit.subject)));
        }
    }
    if code != 0 {
        let bad = verified.iter().filter(|verified| verified.exit_code != 0).count();
        let what = if of == 1 { String::new() } else { format!(", for {} of {of}", count(bad, "commit")) };
        let again = verified.iter().find(|verified| verified.exit_code != 0);
        let again = again.map(|bad| format!("`proctor run --rev {}` runs it again", short(&bad.commit.id)));
        let hints: Vec<String> =
            again.into_iter().chain(["`git push --no-verify` leaves this check out".to_owned()]).collect();
        screen.err(&style::error(
            CommandCode::PushStopped.code(),
            &format!("the push is rejected: {}{what}", word(code)),
            &hints,
        ));
    }
    code
}
