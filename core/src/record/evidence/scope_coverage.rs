//! Determines which part of a profile a run covers that was restricted to some files.

use crate::model::outcome::Outcome;
use crate::model::run_scope::RunScope;
use crate::record::evidence::{CheckedFiles, StepEvidence};

/// Returns the part of the profile that a run with this scope and these steps covers; `None` if it covers the whole profile
/// over all files. That is also the case if a run was restricted to some files, each of its steps with `files` covers all
/// of its files, and at least one step passed.
pub fn covered_scope<'a, 's>(
    scope: Option<&'a RunScope>,
    steps: impl IntoIterator<Item = &'s StepEvidence>,
) -> Option<&'a RunScope> {
    let scope = scope?;
    let (mut covers_all, mut has_passed) = (scope.is_of_files(), false);
    for step in steps {
        covers_all &= step.covers_all_files();
        has_passed |= step.outcome == Outcome::Passed;
    }
    (!covers_all || !has_passed).then_some(scope)
}

impl StepEvidence {
    /// Returns whether the result of a step in a run that was restricted to some files counts for all of its files.
    pub fn covers_all_files(&self) -> bool {
        let covers_all = |files: &CheckedFiles| files.covers_all;
        self.planned.files.is_none() || self.checked_files.as_ref().is_some_and(covers_all)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::plan::FileRules;
    use crate::model::run_scope::{FileScope, FileScopeOrigin};
    use crate::report::fixture::{partly_checked_step, passed_step};
    use crate::text::digest::Sha256Hex;

    fn scope_of_files() -> RunScope {
        let files = FileScope { origin: FileScopeOrigin::Named, count: 1, sha256: Sha256Hex::digest(b"a") };
        RunScope { files: Some(files), ..RunScope::default() }
    }

    fn step_with_files(covers_all: bool) -> StepEvidence {
        let mut step = partly_checked_step("files");
        step.planned.files = Some(FileRules::default());
        if let Some(files) = &mut step.checked_files {
            files.covers_all = covers_all;
        }
        step
    }

    #[test]
    fn run_covers_everything_if_each_step_with_files_does() {
        let scope = scope_of_files();
        let covered = |steps: &[StepEvidence]| covered_scope(Some(&scope), steps).is_none();
        assert!(covered(&[step_with_files(true), passed_step("other")]));
        assert!(!covered(&[step_with_files(true), step_with_files(false)]));
        let skipped = StepEvidence { outcome: Outcome::Skipped, checked_files: None, ..step_with_files(true) };
        assert!(!covered(&[step_with_files(true), skipped]));
    }

    #[test]
    fn run_without_a_pass_does_not_cover_everything() {
        let scope = scope_of_files();
        let idle = StepEvidence { outcome: Outcome::NoFiles, ..step_with_files(true) };
        assert_eq!(covered_scope(Some(&scope), [&idle]), Some(&scope));
        assert_eq!(covered_scope(Some(&scope), []), Some(&scope));
    }

    #[test]
    fn run_of_selected_steps_or_with_fixes_never_covers_everything() {
        let selected = RunScope { selected: vec!["s".to_owned()], ..scope_of_files() };
        let fixing = RunScope { fix: true, ..scope_of_files() };
        for scope in [selected, fixing] {
            assert_eq!(covered_scope(Some(&scope), [&step_with_files(true)]), Some(&scope));
        }
        assert_eq!(covered_scope(None, [&step_with_files(false)]), None);
    }
}
