//! Stores the durations of passed steps in `durations/<repository and profile>.json` of the state directory, so
//! that a progress display can show expected times. No decision depends on them: an unreadable file counts as
//! missing, and writes are not synced.
//!
//! Durations below one second are not stored: a run of short steps opens one file and writes nothing.

use std::collections::BTreeMap;
use std::os::unix::ffi::OsStrExt as _;
use std::path::Path;

use proctor_core::model::names::{ProfileName, SkillName, StepName};
use proctor_core::model::outcome::Outcome;
use proctor_core::record::evidence::{StepEvidence, step_path};
use proctor_core::text::digest::Sha256Hex;

use super::StoreError;
use super::directory::Directory;

/// Directory of all durations, in the state directory.
pub(crate) const DURATIONS_DIR: &str = "durations";
/// Maximum size of a file, in bytes; the steps of a plan need less.
const MAX_BYTES: u64 = 4 << 20;
/// Minimum duration that is stored, in milliseconds.
const MIN_DURATION_MS: u64 = 1_000;

/// Durations of the steps of one profile of a repository when they last passed, in milliseconds, by `skill/step`.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct StepDurations(BTreeMap<String, u64>);

impl StepDurations {
    /// Reads the durations of a profile of the repository at `repo`; returns none if they cannot be read.
    pub(crate) fn read(state: &Directory, repo: &Path, profile: &ProfileName) -> Self {
        let read = match state.descend(DURATIONS_DIR) {
            Ok(directory) => directory.read(&file_name(repo, profile), MAX_BYTES),
            Err(StoreError::Io { source, .. }) if source.kind() == std::io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(error),
        };
        match read {
            Ok(None) => Self::default(),
            Ok(Some(bytes)) => serde_json::from_slice(&bytes).map(Self).unwrap_or_default(),
            Err(error) => {
                tracing::debug!(%error, "the durations of the steps of the last run cannot be read");
                Self::default()
            }
        }
    }

    /// Returns the duration of a step in milliseconds, if it has passed and took a second or more.
    pub(crate) fn get(&self, skill: &SkillName, step: &StepName) -> Option<u64> {
        self.0.get(&step_path(skill, step)).copied()
    }

    /// Returns the durations after another run: steps that passed get their new duration, other steps of the run
    /// keep the old one, and steps that the run did not have are dropped.
    pub(crate) fn updated_with<'a>(&self, steps: impl Iterator<Item = (&'a SkillName, &'a StepEvidence)>) -> Self {
        let taken = steps.filter_map(|(skill, step)| {
            let path = step_path(skill, &step.planned.name);
            let ms = match step.outcome {
                Outcome::Passed if step.reused.is_none() => Some(step.duration_ms).filter(|ms| *ms >= MIN_DURATION_MS),
                _ => self.0.get(&path).copied(),
            };
            Some((path, ms?))
        });
        Self(taken.collect())
    }

    /// Stores the durations for the next run.
    ///
    /// # Errors
    /// A system call fails.
    pub(crate) fn write(&self, state: &Directory, repo: &Path, profile: &ProfileName) -> Result<(), StoreError> {
        let (directory, _) = state.ensure_unsynced(DURATIONS_DIR, 0o700)?;
        let bytes = serde_json::to_vec(&self.0).map_err(|error| StoreError::Io {
            action: "write",
            path: DURATIONS_DIR.to_owned(),
            source: error.into(),
        })?;
        directory.write_unsynced(&file_name(repo, profile), &bytes)
    }
}

fn file_name(repo: &Path, profile: &ProfileName) -> String {
    let subject = [repo.as_os_str().as_bytes(), profile.as_str().as_bytes()].join(&0);
    format!("{}.json", Sha256Hex::digest(&subject).prefix(32))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proctor_core::text::redact::Redactor;

    use crate::run::evidence_builder::not_run_evidence;
    use crate::test_support::step;
    use proctor_core::model::outcome::Termination;

    fn profile(name: &str) -> ProfileName {
        ProfileName::new(name).expect("a profile")
    }

    fn sample_durations(steps: &[(&str, u64)]) -> StepDurations {
        StepDurations(steps.iter().map(|(step, ms)| ((*step).to_owned(), *ms)).collect())
    }

    #[test]
    fn updates_durations_of_passed_steps_only() {
        let ended = |name: &str, outcome: Outcome, duration_ms: u64| StepEvidence {
            outcome,
            duration_ms,
            ..not_run_evidence(&Redactor::default(), &step(name, &["true"]), Termination::Exited { code: 0 })
        };
        let steps = [
            ended("slower", Outcome::Passed, 9_000),
            ended("failing", Outcome::Failed, 100),
            ended("broken", Outcome::TimedOut, 60_000),
            ended("quick", Outcome::Passed, 999),
            ended("new", Outcome::Passed, 1_000),
        ];
        let skill = SkillName::new("a").expect("a name");
        let before =
            sample_durations(&[("a/slower", 5_000), ("a/failing", 7_000), ("a/quick", 3_000), ("a/gone", 2_000)]);
        let after = before.updated_with(steps.iter().map(|step| (&skill, step)));
        assert_eq!(after, sample_durations(&[("a/slower", 9_000), ("a/failing", 7_000), ("a/new", 1_000)]));
    }

    #[test]
    fn stores_durations_by_repository_and_profile() {
        let temp = tempfile::tempdir().expect("temp");
        let state = Directory::open(temp.path()).expect("opens");
        let (repo, durations) = (Path::new("/r"), sample_durations(&[("a/b", 5_000)]));
        assert_eq!(StepDurations::read(&state, repo, &profile("pr")), StepDurations::default(), "before there is any");
        durations.write(&state, repo, &profile("pr")).expect("writes");
        assert_eq!(StepDurations::read(&state, repo, &profile("pr")), durations);
        assert_eq!(StepDurations::read(&state, repo, &profile("full")), StepDurations::default());
        assert_eq!(StepDurations::read(&state, Path::new("/s"), &profile("pr")), StepDurations::default());
        sample_durations(&[]).write(&state, repo, &profile("pr")).expect("writes again");
        assert_eq!(StepDurations::read(&state, repo, &profile("pr")), StepDurations::default());
    }

    #[test]
    fn ignores_invalid_and_linked_files() {
        let temp = tempfile::tempdir().expect("temp");
        let state = Directory::open(temp.path()).expect("opens");
        sample_durations(&[("a/b", 5_000)]).write(&state, Path::new("/r"), &profile("pr")).expect("writes");
        let path = temp.path().join(DURATIONS_DIR).join(file_name(Path::new("/r"), &profile("pr")));
        let own = state.descend(DURATIONS_DIR).expect("it is there");
        own.write_unsynced(&file_name(Path::new("/r"), &profile("pr")), b"[1, 2").expect("writes");
        assert_eq!(StepDurations::read(&state, Path::new("/r"), &profile("pr")), StepDurations::default());
        std::fs::remove_file(&path).expect("removes");
        std::os::unix::fs::symlink("/etc/passwd", &path).expect("links");
        assert_eq!(StepDurations::read(&state, Path::new("/r"), &profile("pr")), StepDurations::default());
    }
}
