//! Stores the durations of passed steps in `durations/<repository and profile>.json` of the state directory, so
//! that a progress display can show expected times. No decision depends on them: an unreadable file counts as
//! missing, and writes are not synced.
//!
//! Durations below one second are not stored: a run of short steps opens one file and writes nothing.

use std::collections::BTreeMap;
use std::os::unix::ffi::OsStrExt as _;
use std::path::Path;

use proctor_core::digest::Sha256Hex;
use proctor_core::evidence::{StepEvidence, step_path};
use proctor_core::names::{ProfileName, SkillName, StepName};
use proctor_core::outcome::Outcome;

use super::StoreError;
use super::directory::Directory;

/// Directory of all durations, in the state directory.
pub(crate) const DURATIONS: &str = "durations";
/// Maximum size of a file, in bytes; the steps of a plan need less.
const MAX_BYTES: u64 = 4 << 20;
/// Minimum duration that is stored, in milliseconds.
const SHORTEST_MS: u64 = 1_000;

/// Durations of the steps of one profile of a repository when they last passed, in milliseconds, by `skill/step`.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Durations(BTreeMap<String, u64>);

impl Durations {
    /// Reads the durations of a profile of the repository at `repo`; returns none if they cannot be read.
    pub(crate) fn read(state: &Directory, repo: &Path, profile: &ProfileName) -> Self {
        let read = match state.descend(DURATIONS) {
            Ok(directory) => directory.read(&file_of(repo, profile), MAX_BYTES),
            Err(StoreError::Io { source, .. }) if source.kind() == std::io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(error),
        };
        match read {
            Ok(None) => Self::default(),
            Ok(Some(bytes)) => serde_json::from_slice(&bytes).map(Self).unwrap_or_default(),
            Err(error) => {
                tracing::debug!(%error, "how long the steps took last cannot be read");
                Self::default()
            }
        }
    }

    /// Returns the duration of a step in milliseconds, if it has passed and took a second or more.
    pub(crate) fn of(&self, skill: &SkillName, step: &StepName) -> Option<u64> {
        self.0.get(&step_path(skill, step)).copied()
    }

    /// Returns the durations after another run: steps that passed get their new duration, other steps of the run
    /// keep the old one, and steps that the run did not have are dropped.
    pub(crate) fn after<'a>(&self, steps: impl Iterator<Item = (&'a SkillName, &'a StepEvidence)>) -> Self {
        let taken = steps.filter_map(|(skill, step)| {
            let path = step_path(skill, &step.planned.name);
            let ms = match step.outcome {
                Outcome::Passed => Some(step.duration_ms).filter(|ms| *ms >= SHORTEST_MS),
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
        let (directory, _) = state.ensure_unsynced(DURATIONS, 0o700)?;
        let bytes = serde_json::to_vec(&self.0).map_err(|error| StoreError::Io {
            action: "write",
            path: DURATIONS.to_owned(),
            source: error.into(),
        })?;
        directory.write_unsynced(&file_of(repo, profile), &bytes)
    }
}

fn file_of(repo: &Path, profile: &ProfileName) -> String {
    let subject = [repo.as_os_str().as_bytes(), profile.as_str().as_bytes()].join(&0);
    format!("{}.json", &Sha256Hex::of(&subject).as_str()[..32])
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::record::not_run;
    use crate::test_support::step;
    use proctor_core::outcome::Termination;

    fn profile(name: &str) -> ProfileName {
        ProfileName::new(name).expect("a profile")
    }

    fn known(steps: &[(&str, u64)]) -> Durations {
        Durations(steps.iter().map(|(step, ms)| ((*step).to_owned(), *ms)).collect())
    }

    #[test]
    fn what_passed_counts_as_it_was_last_and_what_did_not_as_before() {
        let ended = |name: &str, outcome: Outcome, duration_ms: u64| StepEvidence {
            outcome,
            duration_ms,
            ..not_run(&step(name, &["true"]), Termination::Exited { code: 0 })
        };
        let steps = [
            ended("slower", Outcome::Passed, 9_000),
            ended("failing", Outcome::Failed, 100),
            ended("broken", Outcome::TimedOut, 60_000),
            ended("quick", Outcome::Passed, 999),
            ended("new", Outcome::Passed, 1_000),
        ];
        let skill = SkillName::new("a").expect("a name");
        let before = known(&[("a/slower", 5_000), ("a/failing", 7_000), ("a/quick", 3_000), ("a/gone", 2_000)]);
        let after = before.after(steps.iter().map(|step| (&skill, step)));
        assert_eq!(after, known(&[("a/slower", 9_000), ("a/failing", 7_000), ("a/new", 1_000)]));
    }

    #[test]
    fn a_profile_of_a_repository_has_its_own() {
        let temp = tempfile::tempdir().expect("temp");
        let state = Directory::open(temp.path()).expect("opens");
        let (repo, durations) = (Path::new("/r"), known(&[("a/b", 5_000)]));
        assert_eq!(Durations::read(&state, repo, &profile("pr")), Durations::default(), "before there is any");
        durations.write(&state, repo, &profile("pr")).expect("writes");
        assert_eq!(Durations::read(&state, repo, &profile("pr")), durations);
        assert_eq!(Durations::read(&state, repo, &profile("full")), Durations::default());
        assert_eq!(Durations::read(&state, Path::new("/s"), &profile("pr")), Durations::default());
        known(&[]).write(&state, repo, &profile("pr")).expect("writes again");
        assert_eq!(Durations::read(&state, repo, &profile("pr")), Durations::default());
    }

    #[test]
    fn what_is_none_of_ours_is_nothing() {
        let temp = tempfile::tempdir().expect("temp");
        let state = Directory::open(temp.path()).expect("opens");
        known(&[("a/b", 5_000)]).write(&state, Path::new("/r"), &profile("pr")).expect("writes");
        let path = temp.path().join(DURATIONS).join(file_of(Path::new("/r"), &profile("pr")));
        let own = state.descend(DURATIONS).expect("it is there");
        own.write_unsynced(&file_of(Path::new("/r"), &profile("pr")), b"[1, 2").expect("writes");
        assert_eq!(Durations::read(&state, Path::new("/r"), &profile("pr")), Durations::default());
        std::fs::remove_file(&path).expect("removes");
        std::os::unix::fs::symlink("/etc/passwd", &path).expect("links");
        assert_eq!(Durations::read(&state, Path::new("/r"), &profile("pr")), Durations::default());
    }
}
