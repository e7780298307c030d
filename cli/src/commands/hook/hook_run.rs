//! Verifies one commit for a hook: with the spec of the repository, or with each of its specs.

use std::path::Path;

use proctor_core::code::{Coded as _, CommandCode};
use proctor_core::decision::verdict::{EXIT_INCONCLUSIVE, EXIT_INTERRUPTED, EXIT_USAGE};
use proctor_core::model::plan::RelPath;
use proctor_runner::{CommitSpecs, NamedCommit, RemovedSpec};

use super::blocked::{BlockedReason, BlockedTree};
use crate::args::RunFormat;
use crate::commands::run::commit_range::{short_id, worst_exit_code};
use crate::commands::run::{CommandRuns, ReusedRun, TreeSelection, print_result};
use crate::error::CliError;
use crate::screen::Screen;
use crate::style::{self, DIM, GOOD, STRONG, paint};
use crate::text::{count, escape_line};

/// Number of directories of skipped specs that a line names.
const MAX_NAMED_SPECS: usize = 8;

/// A commit that a hook verifies.
#[derive(Debug, Clone, Copy)]
pub(super) struct HookCommit<'a> {
    pub name: &'a NamedCommit,
    /// A heading for the report; it is not shown above the only commit if that passes.
    pub heading: &'a str,
    /// True if the commit is one of several.
    pub is_one_of_many: bool,
    /// True if the commit exists only in the index, so that no revision names it.
    pub is_staged: bool,
    /// The top of the worktree.
    pub top: &'a Path,
}

impl HookCommit<'_> {
    /// Returns the commit as the subject of a message.
    fn description(self) -> String {
        match self.is_staged {
            true => "the staged commit".to_owned(),
            false => format!("commit {}", short_id(&self.name.id)),
        }
    }
}

/// The result of a commit.
#[derive(Debug)]
pub(super) struct HookResult {
    pub exit_code: u8,
    /// The reason why the commit is not verified, if it is not.
    pub reason: BlockedReason,
}

/// Verifies a commit with the current spec of `runs`. An error becomes the result, so that other commits and specs are
/// verified all the same.
pub(super) async fn verify_commit(
    runs: &mut CommandRuns<'_>,
    tree: TreeSelection,
    commit: HookCommit<'_>,
    screen: &mut Screen,
) -> Result<HookResult, CliError> {
    let mut reason = BlockedReason::not_run();
    let exit_code = match runs.run_with_progress(tree, screen).await {
        Ok((_, ended)) if ended.reused.is_some() => {
            if let Some(known) = ended.reused {
                screen.out(&reused_run_line(commit.name, runs.spec_dir(), &known));
            }
            0
        }
        Ok((record, ended)) => {
            let shown = record.finished.as_ref().map_or(EXIT_INCONCLUSIVE, |finished| finished.exit_code);
            if commit.is_one_of_many || shown != 0 {
                screen.out(commit.heading);
            }
            let tree = BlockedTree { top: commit.top, spec_root: &runs.spec_root() };
            reason = BlockedReason::for_run(&record, shown, tree);
            let text = runs.report_text(&record, screen.layout()).await;
            print_result(RunFormat::Human, &record, &ended, &with_spec(runs.spec_dir(), text), screen)?
        }
        Err(error) => {
            screen.out(commit.heading);
            screen.err(&error.render());
            error.exit_code()
        }
    };
    Ok(HookResult { exit_code, reason })
}

/// Adds the directory of the spec to a report.
fn with_spec(spec_dir: Option<&RelPath>, text: String) -> String {
    let Some(directory) = spec_dir.map(|directory| paint(STRONG, escape_line(directory.as_str()))) else { return text };
    match text.trim_end().contains('\n') {
        true => format!("{} {directory}\n{text}", paint(DIM, "spec of")),
        false => format!("{directory}: {text}"),
    }
}

/// Verifies a commit with each of its specs. The exit code is that of the worst spec.
pub(super) async fn verify_each_spec(
    runs: &mut CommandRuns<'_>,
    tree: TreeSelection,
    (commit, specs): (HookCommit<'_>, &CommitSpecs),
    screen: &mut Screen,
) -> Result<HookResult, CliError> {
    if commit.is_one_of_many {
        screen.out(commit.heading);
    }
    let below = HookCommit { heading: "", is_one_of_many: true, ..commit };
    report_skipped(specs, screen);
    for id in &specs.unreadable {
        let message = format!("commit {} cannot be read, so its specs are not known", short_id(id));
        screen.err(&style::warning(&message));
    }
    let mut results = Vec::new();
    let expected = specs.verified.len() + specs.removed.len();
    for directory in &specs.verified {
        if runs.is_interrupted() {
            break;
        }
        runs.set_spec_dir(Some(directory.clone()));
        let result = verify_commit(runs, tree.clone(), below, screen).await?;
        results.push((directory.to_string(), with_spec_hint(result, commit, directory)));
    }
    runs.set_spec_dir(None);
    let is_only_problem = specs.removed.len() == 1 && results.iter().all(|(_, result)| result.exit_code == 0);
    for removed in &specs.removed {
        if !is_only_problem || commit.is_one_of_many {
            screen.err(&screen.layout().fit_lines(&removed_spec_error(&commit.description(), removed)));
        }
        results.push((removed.path.clone(), removed_result(&commit.description(), removed)));
    }
    if specs.verified.is_empty() && specs.skipped.is_empty() && specs.removed.is_empty() {
        screen.err(&no_spec_error(&commit.description()).render());
        results.push((".".to_owned(), HookResult { exit_code: EXIT_USAGE, reason: BlockedReason::not_run() }));
    }
    Ok(combined(results, expected))
}

/// Reports the specs that are not verified.
fn report_skipped(specs: &CommitSpecs, screen: &mut Screen) {
    if specs.skipped.is_empty() {
        return;
    }
    let mut names: Vec<String> =
        specs.skipped.iter().take(MAX_NAMED_SPECS).map(|directory| escape_line(directory.as_str())).collect();
    let more = specs.skipped.len() - names.len();
    names.extend((more > 0).then(|| format!("{more} more")));
    let base = specs.base.as_deref().map_or("the base", short_id);
    let text = format!("{} {}: no change since {base}\n", paint(DIM, "skipped:"), names.join(", "));
    screen.out(&screen.layout().fit_lines(&text));
}

/// Adds the command that runs a spec again, unless the reason has a better hint.
fn with_spec_hint(result: HookResult, commit: HookCommit<'_>, directory: &RelPath) -> HookResult {
    let HookResult { exit_code, reason } = result;
    let again = || {
        let directory = escape_line(directory.as_str());
        format!("`proctor run --repo {directory} --rev {}` runs it again", short_id(&commit.name.id))
    };
    let hint = reason.hint.or_else(|| (!commit.is_staged).then(again));
    HookResult { exit_code, reason: BlockedReason { hint, ..reason } }
}

/// Hint for a spec that a commit lacks.
const REMOVED_HINT: &str = "keep the spec, or move the checks of its directory to another spec";

fn removed_spec_message(name: &str, removed: &RemovedSpec) -> String {
    format!("{name} has no `{}`, which commit {} has", escape_line(&removed.path), short_id(&removed.commit))
}

fn removed_spec_error(name: &str, removed: &RemovedSpec) -> String {
    let message = removed_spec_message(name, removed);
    style::error(CommandCode::Usage.code(), &message, &[REMOVED_HINT.to_owned()])
}

fn removed_result(name: &str, removed: &RemovedSpec) -> HookResult {
    let reason = BlockedReason { message: removed_spec_message(name, removed), hint: Some(REMOVED_HINT.to_owned()) };
    HookResult { exit_code: EXIT_USAGE, reason }
}

/// Returns the error for a tree without any spec.
pub(super) fn no_spec_error(name: &str) -> CliError {
    CliError::Usage {
        message: format!("{name} has no `{}`, at its top or in a subdirectory", proctor_core::spec::PATH),
        hint: "`proctor init` writes a spec".to_owned(),
    }
}

/// Returns the result of all specs of a commit. If there are fewer results than `expected`, an interrupt prevented the
/// other runs, and the commit is not verified.
fn combined(results: Vec<(String, HookResult)>, expected: usize) -> HookResult {
    if results.len() < expected {
        let reason = BlockedReason { message: "interrupted".to_owned(), hint: None };
        return HookResult { exit_code: EXIT_INTERRUPTED, reason };
    }
    let total = results.len();
    let codes: Vec<u8> = results.iter().map(|(_, result)| result.exit_code).collect();
    let mut bad: Vec<(String, HookResult)> = results.into_iter().filter(|(_, result)| result.exit_code != 0).collect();
    let exit_code = if total == 0 { 0 } else { worst_exit_code(&codes) };
    if bad.len() > 1 {
        let names: Vec<String> = bad.iter().take(MAX_NAMED_SPECS).map(|(name, _)| escape_line(name)).collect();
        let message = format!("{} of {} did not pass: {}", bad.len(), count(total, "spec"), names.join(", "));
        return HookResult { exit_code, reason: BlockedReason { message, hint: bad.swap_remove(0).1.reason.hint } };
    }
    match bad.pop() {
        Some((name, HookResult { reason: BlockedReason { message, hint }, .. })) => {
            let message = if message.contains(&name) { message } else { format!("{}: {message}", escape_line(&name)) };
            HookResult { exit_code, reason: BlockedReason { message, hint } }
        }
        None => HookResult { exit_code, reason: BlockedReason::not_run() },
    }
}

/// Formats the line for a commit that needs no run.
fn reused_run_line(commit: &NamedCommit, spec_dir: Option<&RelPath>, known: &ReusedRun) -> String {
    let when = known.ended.as_deref().map_or_else(String::new, |ended| format!(" of {}", escape_line(ended)));
    let spec = spec_dir.map_or_else(String::new, |directory| format!("{}: ", escape_line(directory.as_str())));
    let (id, subject) = (paint(STRONG, short_id(&commit.id)), escape_line(&commit.subject));
    format!("{spec}{} {id} {subject} (run {}{when})\n", paint(GOOD, "verified already:"), known.run)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn result(exit_code: u8, message: &str) -> HookResult {
        HookResult { exit_code, reason: BlockedReason { message: message.to_owned(), hint: None } }
    }

    #[test]
    fn worst_spec_decides_and_failed_specs_are_named() {
        let of_expected = |results: Vec<(&str, HookResult)>, expected| {
            let results = results.into_iter().map(|(name, result)| (name.to_owned(), result)).collect();
            let combined = combined(results, expected);
            (combined.exit_code, combined.reason.message)
        };
        let of = |results: Vec<(&str, HookResult)>| {
            let expected = results.len();
            of_expected(results, expected)
        };
        assert_eq!(of(Vec::new()).0, 0);
        assert_eq!(of(vec![("a", result(0, "")), ("b", result(0, ""))]).0, 0);
        let one = of(vec![("a", result(0, "")), ("svc/b", result(1, "1 of 2 steps failed"))]);
        assert_eq!(one, (1, "svc/b: 1 of 2 steps failed".to_owned()));
        let two = of(vec![("a", result(2, "x")), ("b", result(3, "y")), ("c", result(0, ""))]);
        assert_eq!(two, (3, "2 of 3 specs did not pass: a, b".to_owned()));
        // An interrupt between two runs.
        assert_eq!(of_expected(vec![("a", result(0, ""))], 2), (130, "interrupted".to_owned()));
        assert_eq!(of_expected(Vec::new(), 1).0, 130);
    }
}
