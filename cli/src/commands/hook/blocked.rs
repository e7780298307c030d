//! Explains why a hook blocks a push or a commit: a headline and one hint.

use std::path::Path;

use proctor_core::decision::verdict::{EXIT_INTERRUPTED, InconclusiveReason};
use proctor_core::model::outcome_reason::{check_headline, missing_program};
use proctor_core::record::evidence::{TreeSource, step_path};
use proctor_core::record::run_record::RunRecord;

use crate::text::{count, escape_line};

/// Maximum number of causes that a headline names.
const MAX_CAUSES: usize = 3;

/// The hint for a failure that empty submodules may have caused.
const SUBMODULES_HINT: &str = "if a step needs a submodule: the submodules of a commit are empty directories, unless the hook is \
                               installed by `proctor hook install --submodules`";

/// The reason why a tree is not verified.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct BlockedReason {
    /// The reason in one line, without a period.
    pub message: String,
    /// The hint for the cause, if one is known.
    pub hint: Option<String>,
}

/// The worktree of a repository.
#[derive(Debug, Clone, Copy)]
pub(super) struct BlockedTree<'a> {
    /// Its top.
    pub top: &'a Path,
    /// The directory that contains `spec/`.
    pub spec_root: &'a Path,
}

impl BlockedReason {
    /// Returns the reason for a tree that could not be run.
    pub(super) fn not_run() -> Self {
        Self { message: "nothing verified".to_owned(), hint: None }
    }

    /// Returns the reason for a run with this exit code.
    pub(super) fn for_run(record: &RunRecord, code: u8, tree: BlockedTree<'_>) -> Self {
        let failed = record.steps().filter(|(_, step)| step.outcome.is_failure()).count();
        let total: usize = record.skills.iter().map(|skill| skill.planned.len()).sum();
        let plain = |message: String| Self { message, hint: None };
        if code == EXIT_INTERRUPTED {
            return plain("interrupted".to_owned());
        }
        if failed > 0 {
            let message = format!("{failed} of {} failed", count(total, "step"));
            return Self { message, hint: lacks_submodules(record, tree.top).then(|| SUBMODULES_HINT.to_owned()) };
        }
        if let Some(step) = step_that_changed_commit(record) {
            return Self {
                message: format!("{step} changed files of the commit"),
                hint: Some("run `proctor run`, and commit the changes".to_owned()),
            };
        }
        if let Some(ignored) = worktree_only_directory(record, tree.spec_root) {
            let directory = escape_line(&ignored);
            return Self {
                message: format!("nothing verified; {directory} is not part of a commit"),
                hint: Some(format!(
                    "a commit is checked out without ignored files: put the tools in PATH, or create {directory} in a step"
                )),
            };
        }
        let mut causes: Vec<String> = record
            .checks
            .iter()
            .filter(|check| !check.satisfied)
            .map(|check| escape_line(&check_headline(check)))
            .collect();
        causes.dedup();
        let more = causes.len().saturating_sub(MAX_CAUSES);
        causes.truncate(MAX_CAUSES);
        causes.extend((more > 0).then(|| format!("{more} more")));
        match causes.is_empty() {
            true => plain("no reliable result".to_owned()),
            false => plain(format!("nothing verified; {}", causes.join("; "))),
        }
    }
}

/// Returns whether the steps of a commit saw empty directories instead of submodules that the worktree has.
fn lacks_submodules(record: &RunRecord, repo: &Path) -> bool {
    let source = record.started.as_ref().map(|started| &started.source);
    matches!(source, Some(TreeSource::Rev { submodules: false, .. })) && repo.join(".gitmodules").is_file()
}

/// Returns the first step whose changes of the commit make the run inconclusive.
fn step_that_changed_commit(record: &RunRecord) -> Option<String> {
    let is_cause = |doubt: InconclusiveReason| doubt == InconclusiveReason::ChangedCommit;
    record.doubts.iter().find(|detail| is_cause(detail.doubt))?;
    let (skill, step) = record.steps().find(|(_, step)| step.drift.changed_tree)?;
    Some(escape_line(&step_path(skill, &step.planned.name)))
}

/// Returns the top directory of a missing tool that the worktree has, such as `.venv`.
fn worktree_only_directory(record: &RunRecord, repo: &Path) -> Option<String> {
    let programs = record.checks.iter().filter_map(missing_program);
    let relative = programs.filter(|program| !program.starts_with('/') && program.contains('/'));
    let mut present = relative.filter(|program| repo.join(program).symlink_metadata().is_ok());
    let first = present.next()?.trim_start_matches("./").split('/').next()?;
    (!first.is_empty() && first != "..").then(|| first.to_owned())
}
