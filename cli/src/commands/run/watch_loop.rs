//! Implements `proctor run --watch`: runs again whenever files of the worktree change.

use std::collections::BTreeSet;
use std::time::Duration;

use proctor_core::decision::verdict::{EXIT_INTERRUPTED, Verdict};
use proctor_core::model::drift::display_path;
use proctor_core::model::run_scope::ScopeRequest;
use proctor_core::text::digest::Sha256Hex;
use proctor_runner::{WorktreeChanges, WorktreeWatch};
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;

use super::run_watcher::AppliedPaths;
use super::scope_request::worktree_top;
use super::{CommandRuns, RunFormat, TreeSelection, print_result};
use crate::engine::engine_error;
use crate::error::CliError;
use crate::screen::Screen;
use crate::style::{DIM, paint};
use crate::text::escape_line;

/// Time in which the changes that a run has applied are reported.
const SETTLE_TIME: Duration = Duration::from_millis(500);
/// Maximum number of changed paths that a line names.
const MAX_NAMED_PATHS: usize = 3;
/// The name of files with ignore rules.
const IGNORE_FILE: &[u8] = b".gitignore";

/// The files that the next run has to check.
#[derive(Debug, Clone, PartialEq, Eq)]
enum PendingFiles {
    /// All files of the request.
    All,
    /// The files that have changed since the last pass.
    Only(BTreeSet<String>),
}

impl PendingFiles {
    /// Adds changes. The next run checks everything if a path is not text, if events were lost, if a directory was moved
    /// away, because no event names its files, or if ignore rules changed, because the tree may then have more files.
    fn add(&mut self, changes: &WorktreeChanges) {
        let has_other_rules =
            changes.paths.iter().any(|path| path.rsplit(|byte| *byte == b'/').next() == Some(IGNORE_FILE))
                || !changes.external_rules.is_empty();
        let has_unnamed = changes.is_incomplete || changes.has_moved_directory;
        let texts: Option<Vec<String>> =
            changes.paths.iter().map(|path| std::str::from_utf8(path).ok().map(str::to_owned)).collect();
        match (self, texts) {
            (Self::Only(files), Some(texts)) if !has_unnamed && !has_other_rules => files.extend(texts),
            (pending, _) => *pending = Self::All,
        }
    }

    /// Returns the request for the next run.
    fn scope(&self, requested: &ScopeRequest) -> ScopeRequest {
        match self {
            Self::Only(files) if requested.files.is_none() && requested.changed_since.is_none() => {
                ScopeRequest { files: Some(files.iter().cloned().collect()), ..requested.clone() }
            }
            _ => requested.clone(),
        }
    }
}

impl CommandRuns<'_> {
    /// Runs the worktree, and again after each change, until a signal arrives.
    pub(super) async fn watch(&mut self, mut watch: WorktreeWatch, screen: &mut Screen) -> Result<u8, CliError> {
        let (requested, interrupted) = (self.scope.clone(), self.cancel.clone());
        let mut pending = PendingFiles::All;
        // The spec of the last pass of all files.
        let mut passed_spec = None;
        loop {
            self.scope = pending.scope(&requested);
            let (passed, mut changes) = self.run_until_change(&mut watch, &interrupted, screen).await?;
            let mut is_other_spec = false;
            if let Some(spec) = passed {
                // Files that passed with a different spec have not passed with this one.
                is_other_spec = pending != PendingFiles::All && passed_spec.as_ref() != Some(&spec);
                pending = if is_other_spec { PendingFiles::All } else { PendingFiles::Only(BTreeSet::new()) };
                passed_spec = Some(spec);
            }
            if self.interrupts.first_signal().is_some() {
                return Ok(EXIT_INTERRUPTED);
            }
            if is_other_spec && changes.is_empty() {
                screen.out(&format!("{}\n", paint(DIM, "the spec has changed: all files are checked")));
                continue;
            }
            if changes.is_empty() {
                screen.out(&format!("{}\n", paint(DIM, "waiting for changes; Ctrl-C ends")));
                changes = tokio::select! {
                    changes = watch.next_changes() => changes.map_err(engine_error)?,
                    _ = self.interrupts.next() => return Ok(EXIT_INTERRUPTED),
                };
            }
            screen.out(&format!("{}\n", paint(DIM, change_line(&changes))));
            pending.add(&changes);
        }
    }

    /// Verifies the worktree and shows the result. A change cancels the run, because its result would be outdated. A
    /// signal cancels the run and `interrupted`. Returns the spec of the run if it passed, and the changes during the
    /// run that it did not make itself. An edit of a path that a step changed is noticed at the end of the run.
    async fn run_until_change(
        &mut self,
        watch: &mut WorktreeWatch,
        interrupted: &CancellationToken,
        screen: &mut Screen,
    ) -> Result<(Option<Sha256Hex>, WorktreeChanges), CliError> {
        // All runs have the same listener, so that no signal is lost between two of them.
        let cancel = interrupted.child_token();
        self.cancel = cancel.clone();
        let applied = AppliedPaths::in_worktree(worktree_top(&self.repo));
        self.applied = applied.clone();
        let (mut changes, mut own) = (WorktreeChanges::default(), BTreeSet::new());
        let outcome = {
            let run = self.run_with_progress(TreeSelection::Worktree, screen);
            tokio::pin!(run);
            loop {
                tokio::select! {
                    outcome = &mut run => break outcome,
                    found = watch.next_changes(), if !cancel.is_cancelled() => {
                        own.extend(add_foreign(&mut changes, found.map_err(engine_error)?, &applied));
                        if !changes.is_empty() {
                            cancel.cancel();
                        }
                    }
                }
            }
        };
        // The latest changes by steps must not count as edits by the user.
        if !applied.is_empty()
            && let Ok(found) = timeout(SETTLE_TIME, watch.next_changes()).await
        {
            own.extend(add_foreign(&mut changes, found.map_err(engine_error)?, &applied));
        }
        // The user may have edited a file after the step changed it.
        changes.paths.extend(own.into_iter().filter(|path| !applied.is_unchanged(&display_path(path))));
        let is_superseded = !changes.is_empty() && self.interrupts.first_signal().is_none();
        match outcome {
            Ok(_) if is_superseded => Ok((None, changes)),
            Ok((record, report)) => {
                let text = self.report_text(&record, screen.layout()).await;
                print_result(RunFormat::Human, &record, &report, &text, screen)?;
                let spec = record.started.map(|started| started.spec_sha256);
                Ok((spec.filter(|_| report.verdict == Verdict::Passed), changes))
            }
            Err(_) if is_superseded => Ok((None, changes)),
            // The next change may repair the reason, such as an invalid spec.
            Err(error) => {
                screen.err(&error.render());
                Ok((None, changes))
            }
        }
    }
}

/// Adds the changes of paths that no step of the run changed. Returns the other paths.
fn add_foreign(changes: &mut WorktreeChanges, found: WorktreeChanges, applied: &AppliedPaths) -> BTreeSet<Vec<u8>> {
    let (own, foreign) = found.paths.into_iter().partition(|path| applied.contains(&display_path(path)));
    changes.paths.extend::<BTreeSet<_>>(foreign);
    changes.is_incomplete |= found.is_incomplete;
    changes.has_moved_directory |= found.has_moved_directory;
    changes.external_rules.extend(found.external_rules);
    own
}

fn change_line(changes: &WorktreeChanges) -> String {
    let paths = changes.paths.iter().map(|path| display_path(path));
    let all: Vec<String> = changes.external_rules.iter().cloned().chain(paths).collect();
    let named: Vec<String> = all.iter().take(MAX_NAMED_PATHS).map(|name| escape_line(name)).collect();
    match all.len().saturating_sub(MAX_NAMED_PATHS) {
        _ if changes.is_incomplete => "many files have changed".to_owned(),
        0 => format!("changed: {}", named.join(", ")),
        more => format!("changed: {} and {more} more", named.join(", ")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn changes(paths: &[&[u8]]) -> WorktreeChanges {
        let paths = paths.iter().map(|path| path.to_vec()).collect();
        WorktreeChanges { paths, ..WorktreeChanges::default() }
    }

    #[test]
    fn checks_only_changed_files_after_pass() {
        let requested = ScopeRequest { selected: vec!["s".to_owned()], ..ScopeRequest::default() };
        let mut pending = PendingFiles::All;
        pending.add(&changes(&[b"a"]));
        assert_eq!(pending.scope(&requested), requested, "nothing has passed yet");
        let mut pending = PendingFiles::Only(BTreeSet::new());
        pending.add(&changes(&[b"b", b"a"]));
        pending.add(&changes(&[b"c"]));
        let files = Some(["a", "b", "c"].map(str::to_owned).to_vec());
        assert_eq!(pending.scope(&requested), ScopeRequest { files, ..requested.clone() });
        let own = ScopeRequest { changed_since: Some("main".to_owned()), ..ScopeRequest::default() };
        assert_eq!(pending.scope(&own), own, "the request restricts the files itself");
    }

    #[test]
    fn lost_events_and_odd_names_check_everything() {
        let mut pending = PendingFiles::Only(BTreeSet::new());
        pending.add(&changes(&[b"\xff"]));
        assert_eq!(pending, PendingFiles::All);
        let mut pending = PendingFiles::Only(BTreeSet::new());
        pending.add(&WorktreeChanges { is_incomplete: true, ..changes(&[]) });
        assert_eq!(pending, PendingFiles::All);
        let mut pending = PendingFiles::Only(BTreeSet::new());
        pending.add(&WorktreeChanges { has_moved_directory: true, ..changes(&[b"directory"]) });
        assert_eq!(pending, PendingFiles::All);
    }

    #[test]
    fn other_ignore_rules_check_everything() {
        let mut pending = PendingFiles::Only(BTreeSet::new());
        pending.add(&changes(&[b"a", b"b/gitignore"]));
        assert_ne!(pending, PendingFiles::All);
        pending.add(&changes(&[b"b/.gitignore"]));
        assert_eq!(pending, PendingFiles::All);
        let mut pending = PendingFiles::Only(BTreeSet::new());
        pending.add(&WorktreeChanges { external_rules: ["info/exclude".to_owned()].into(), ..changes(&[]) });
        assert_eq!(pending, PendingFiles::All);
    }

    #[test]
    fn names_few_paths() {
        assert_eq!(change_line(&changes(&[b"a", b"b"])), "changed: a, b");
        let rules = WorktreeChanges { external_rules: ["info/exclude".to_owned()].into(), ..changes(&[b"a"]) };
        assert_eq!(change_line(&rules), "changed: info/exclude, a");
        assert_eq!(change_line(&changes(&[b"a", b"b", b"c", b"d", b"e"])), "changed: a, b, c and 2 more");
    }
}
