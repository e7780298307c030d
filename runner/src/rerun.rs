//! Selects the skills for `--last-failed`: those that have not passed, according to the records of earlier runs. A
//! skill whose record cannot be read counts as not passed, so that it runs again.

use std::path::Path;

use proctor_core::attestation::{Attestation, Subject};
use proctor_core::digest::Sha256Hex;
use proctor_core::evidence::TreeSource;
use proctor_core::names::{ChangesetId, RunId, SkillName, TOOLCHAIN_ARTIFACT};
use proctor_core::outcome::Outcome;
use proctor_core::plan::Plan;
use proctor_core::rerun::{self, LastOutcomes, Rerun};
use proctor_core::status::{self, LastRun};
use serde::Deserialize;

use crate::error::EngineError;
use crate::request::SkillsWanted;
use crate::store::StoreError;
use crate::store::attestations::Attestations;
use crate::store::directory::Directory;
use crate::store::documents::{RUNS, STATUS, VERIFY, recorded_document};

/// Maximum number of runs to read: partial runs, each with its predecessor.
const MAX_RUNS: usize = 64;
/// Maximum size of an evidence document, in bytes.
const MAX_DOCUMENT: u64 = 64 << 20;

/// Refuses a partial run that must cover the whole profile: for a changeset, or of a commit.
///
/// # Errors
/// The run is partial, and is for a changeset or of the tree of `commit`.
pub fn demand_whole(
    skills: SkillsWanted,
    changeset: Option<&ChangesetId>,
    commit: Option<&str>,
) -> Result<(), EngineError> {
    match (skills, changeset, commit) {
        (SkillsWanted::All, _, _) | (SkillsWanted::NotPassed, None, None) => Ok(()),
        (SkillsWanted::NotPassed, Some(id), _) => Err(EngineError::PartialChangeset(id.clone())),
        (SkillsWanted::NotPassed, None, Some(_)) => Err(EngineError::PartialCommit),
    }
}

/// Removes from a whole plan the skills that passed when they last ran.
///
/// # Errors
/// No run of the profile is recorded, or the records cannot be read.
pub(crate) fn part_of(
    plan: Plan,
    repository: String,
    (state, state_path): (&Directory, &Path),
) -> Result<(Plan, Rerun), EngineError> {
    let subject = Subject { repository, changeset_id: None, profile: plan.profile.clone() };
    let records = Attestations::of(state);
    let newest = newest(&records, &subject)?;
    let newest = newest.ok_or_else(|| EngineError::NoEarlierRun(plan.profile.clone()))?;
    let of_worktree = match newest.source {
        TreeSource::Worktree { .. } => None,
        // In between, a hook may have verified a commit, for example of another branch. Its passes do not replace
        // failures of the worktree.
        TreeSource::Rev { .. } => newest_of_worktree(&records, &subject)?,
    };
    let mut passed = known(newest, &plan, state_path);
    if let Some(run) = of_worktree {
        passed = passed.and(&known(run, &plan, state_path));
    }
    Ok(rerun::select(plan, &passed))
}

/// Returns the newest recorded run of a subject; `None` if its record is not valid.
///
/// # Errors
/// The records cannot be read.
pub(crate) fn newest(records: &Attestations, subject: &Subject) -> Result<Option<LastRun>, StoreError> {
    Ok(records.newest(subject)?.and_then(|bytes| parsed(&bytes, subject)))
}

/// Returns the newest recorded run of the worktree.
fn newest_of_worktree(records: &Attestations, subject: &Subject) -> Result<Option<LastRun>, StoreError> {
    let is_wanted = |bytes: &[u8]| parsed(bytes, subject).is_some_and(|run| run.source.is_worktree());
    Ok(records.newest_which(subject, is_wanted)?.and_then(|bytes| parsed(&bytes, subject)))
}

fn parsed(bytes: &[u8], subject: &Subject) -> Option<LastRun> {
    Attestation::parse(bytes).filter(|known| known.subject == *subject).map(|known| known.last_run)
}

/// Returns the last outcomes of a plan's skills: from the newest run and, if that was partial, from its
/// predecessors.
fn known(newest: LastRun, plan: &Plan, state_path: &Path) -> LastOutcomes {
    let mut known = LastOutcomes::new(newest.run_id.clone());
    let mut run = newest;
    for _ in 0..MAX_RUNS {
        let directory = state_path.join(RUNS).join(run.run_id.as_str());
        for (skill, passed) in outcomes(&run, &directory) {
            known.older(skill, passed);
        }
        let before = run.rerun.as_ref().filter(|_| !known.cover(plan)).map(|rerun| rerun.after.clone());
        let Some(before) = before.and_then(|id| status_of(&id, state_path)) else { break };
        run = before;
    }
    known
}

/// Returns whether each skill passed, from the evidence of a run.
fn outcomes(run: &LastRun, directory: &Path) -> Vec<(SkillName, bool)> {
    let toolchain = format!("{VERIFY}/{TOOLCHAIN_ARTIFACT}");
    let of = |(file, sha256): (&String, &Sha256Hex)| {
        let read = recorded_document(directory, file, sha256, MAX_DOCUMENT);
        let read = read.inspect_err(|error| tracing::debug!(%error, file, "evidence of an earlier run cannot be read"));
        let Outline { skill, summary } = serde_json::from_slice(&read.ok()??).ok()?;
        Some((skill, summary.outcome == Outcome::Passed))
    };
    run.evidence.iter().filter(|(file, _)| **file != toolchain).filter_map(of).collect()
}

/// Returns the status of a run without a changeset, if it is still stored.
fn status_of(run: &RunId, state_path: &Path) -> Option<LastRun> {
    let directory = Directory::open(&state_path.join(RUNS).join(run.as_str())).ok()?;
    let bytes = directory.read(STATUS, status::MAX_BYTES).ok()??;
    status::last_run(&bytes).ok()?.filter(|told| told.run_id == *run)
}

/// The fields that are read from the evidence of a skill.
#[derive(Deserialize)]
struct Outline {
    skill: SkillName,
    summary: OutlineSummary,
}

#[derive(Deserialize)]
struct OutlineSummary {
    outcome: Outcome,
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::test_support::{last_run, plan};
    use proctor_core::canonical;
    use proctor_core::evidence::EvidenceIndex;
    use serde_json::json;

    const REPOSITORY: &str = "/r";

    struct Place {
        temp: tempfile::TempDir,
        state: Directory,
    }

    impl Place {
        fn new() -> Self {
            let temp = tempfile::tempdir().expect("temp");
            let state = Directory::open(temp.path()).expect("opens");
            Self { temp, state }
        }

        /// Records a run of these skills on one tree; for a partial run, after `after`.
        fn ran(&self, id: &str, skills: &[(&str, &str)], after: Option<&str>) {
            let directory = self.state.ensure(RUNS, 0o700).and_then(|runs| runs.ensure(id, 0o700)).expect("makes");
            let verify = directory.ensure(VERIFY, 0o755).expect("makes");
            let mut evidence = EvidenceIndex::new();
            for (skill, outcome) in skills {
                let text = canonical::to_vec(&json!({ "skill": skill, "summary": { "outcome": outcome } }));
                verify.write(&format!("{skill}.json"), &text).expect("writes");
                evidence.insert(format!("{VERIFY}/{skill}.json"), Sha256Hex::of(&text));
            }
            let rerun = after.map(|after| Rerun {
                after: run_id(after),
                not_passed: Vec::new(),
                left_out: vec![SkillName::new("x").expect("a name")],
                gone: Vec::new(),
            });
            let run = LastRun { run_id: run_id(id), evidence, rerun, ..last_run() };
            directory.write(STATUS, &status::update(None, &run).expect("updates")).expect("writes");
            let subject = Subject { repository: REPOSITORY.into(), changeset_id: None, profile: last_run().profile };
            Attestations::of(&self.state).write(&Attestation::new(subject, run)).expect("writes");
        }

        /// Returns the skills that would run of a profile `a b c`, and the run that they refer to.
        fn chosen(&self) -> (String, String) {
            let all = plan(&[("a", &[]), ("b", &[]), ("c", &[])]);
            let (plan, rerun) = part_of(all, REPOSITORY.into(), (&self.state, self.temp.path())).expect("one");
            let names: Vec<&str> = plan.skills.iter().map(|skill| skill.name.as_str()).collect();
            (names.join(" "), rerun.after.to_string())
        }
    }

    fn run_id(id: &str) -> RunId {
        RunId::new(id).expect("an id")
    }

    fn is(chosen: &str, after: &str) -> (String, String) {
        (chosen.to_owned(), after.to_owned())
    }

    #[test]
    fn what_the_newest_run_says_is_not_passed_runs() {
        let place = Place::new();
        place.ran("r1", &[("a", "passed"), ("b", "failed"), ("c", "skipped")], None);
        assert_eq!(place.chosen(), is("b c", "r1"));
        place.ran("r2", &[("a", "cancelled"), ("b", "passed"), ("c", "inconclusive")], None);
        assert_eq!(place.chosen(), is("a c", "r2"));
        place.ran("r3", &[("a", "passed"), ("b", "passed")], None);
        assert_eq!(place.chosen(), is("c", "r3"), "a whole run before it says nothing of what this one had not");
    }

    #[test]
    fn a_partial_run_leaves_what_stood_before_it() {
        let place = Place::new();
        place.ran("r1", &[("a", "passed"), ("b", "failed"), ("c", "failed")], None);
        place.ran("r2", &[("b", "failed"), ("c", "passed")], Some("r1"));
        assert_eq!(place.chosen(), is("b", "r2"));
        place.ran("r3", &[("b", "passed")], Some("r2"));
        assert_eq!(place.chosen(), is("a b c", "r3"), "nothing failed, so everything runs");
        // `r4` ended in the meantime, and has another outcome for a skill that the partial run left out.
        place.ran("r4", &[("a", "passed"), ("b", "passed"), ("c", "failed")], None);
        place.ran("r5", &[("a", "failed")], Some("r4"));
        assert_eq!(place.chosen(), is("a c", "r5"));
    }

    #[test]
    fn what_cannot_be_read_any_more_has_not_passed() {
        let place = Place::new();
        place.ran("r1", &[("a", "passed"), ("b", "passed"), ("c", "failed")], None);
        place.ran("r2", &[("c", "passed")], Some("r1"));
        let runs = place.temp.path().join(RUNS);
        let verify = place.state.descend("runs/r1/verify").expect("there");
        verify.write("a.json", b"{}").expect("writes");
        assert_eq!(place.chosen(), is("a", "r2"), "edited");
        std::fs::remove_dir_all(runs.join("r1")).expect("ours");
        assert_eq!(place.chosen(), is("a b", "r2"), "gone");
        std::fs::remove_dir_all(runs.join("r2")).expect("ours");
        assert_eq!(place.chosen(), is("a b c", "r2"));
    }

    #[test]
    fn without_a_run_on_record_there_is_none() {
        let place = Place::new();
        let none = part_of(plan(&[("a", &[])]), REPOSITORY.into(), (&place.state, place.temp.path()));
        assert!(matches!(none, Err(EngineError::NoEarlierRun(_))));
        place.ran("r1", &[("a", "passed")], None);
        let other = part_of(plan(&[("a", &[])]), "/s".into(), (&place.state, place.temp.path()));
        assert!(matches!(other, Err(EngineError::NoEarlierRun(_))));
    }

    #[test]
    fn a_part_is_no_evidence_of_a_changeset_or_a_commit() {
        let id = ChangesetId::new("009_x").expect("an id");
        let part = SkillsWanted::NotPassed;
        assert!(
            demand_whole(part, None, None).is_ok() && demand_whole(SkillsWanted::All, Some(&id), Some("HEAD")).is_ok()
        );
        assert!(matches!(demand_whole(part, Some(&id), None), Err(EngineError::PartialChangeset(_))));
        assert!(matches!(demand_whole(part, None, Some("HEAD")), Err(EngineError::PartialCommit)));
    }
}
