//! Selects the skills for `--last-failed`: those that have not passed, according to the records of earlier runs. A
//! skill whose record cannot be read counts as not passed, so that it runs again.

use std::path::Path;

use proctor_core::decision::rerun::{self, LastOutcomes, Rerun};
use proctor_core::model::names::{RunId, SkillName, TOOLCHAIN_ARTIFACT};
use proctor_core::model::outcome::Outcome;
use proctor_core::model::plan::Plan;
use proctor_core::record::attestation::Subject;
use proctor_core::record::evidence::TreeSource;
use proctor_core::record::status::{self, LastRun};
use proctor_core::text::digest::Sha256Hex;
use serde::Deserialize;

use crate::error::EngineError;
use crate::store::attestations::Attestations;
use crate::store::directory::Directory;
use crate::store::documents::{RUNS_DIR, STATUS_FILE, VERIFY_DIR, recorded_document};

/// Maximum number of runs to read: partial runs, each with its predecessor.
const MAX_RUNS: usize = 64;
/// Maximum size of an evidence document, in bytes.
const MAX_DOCUMENT: u64 = 64 << 20;

/// Removes from a whole plan the skills that passed when they last ran.
///
/// # Errors
/// No run of the profile is recorded, or the records cannot be read.
pub(crate) fn select_not_passed(
    plan: Plan,
    repository: String,
    (state, state_path): (&Directory, &Path),
) -> Result<(Plan, Rerun), EngineError> {
    let subject = Subject { repository, changeset_id: None, profile: plan.profile.clone() };
    let records = Attestations::in_state(state);
    let newest = records.newest_run(&subject)?;
    let newest = newest.ok_or_else(|| EngineError::NoEarlierRun(plan.profile.clone()))?;
    let of_worktree = match newest.source {
        TreeSource::Worktree { .. } => None,
        // In between, a hook may have verified a commit, for example of another branch. Its passes do not replace
        // failures of the worktree.
        TreeSource::Rev { .. } => records.newest_worktree_run(&subject)?,
    };
    let mut passed = collect_outcomes(newest, &plan, state_path);
    if let Some(run) = of_worktree {
        passed = passed.intersect(&collect_outcomes(run, &plan, state_path));
    }
    Ok(rerun::select_skills(plan, &passed))
}

/// Returns the last outcomes of a plan's skills: from the newest run and, if that was partial, from its
/// predecessors.
fn collect_outcomes(newest: LastRun, plan: &Plan, state_path: &Path) -> LastOutcomes {
    let mut known = LastOutcomes::new(newest.run_id.clone());
    let mut run = newest;
    for _ in 0..MAX_RUNS {
        let directory = state_path.join(RUNS_DIR).join(run.run_id.as_str());
        for (skill, passed) in skill_outcomes(&run, &directory) {
            known.add_older(skill, passed);
        }
        let before = run.rerun.as_ref().filter(|_| !known.has_outcomes_for(plan)).map(|rerun| rerun.after.clone());
        let Some(before) = before.and_then(|id| stored_status(&id, state_path)) else { break };
        run = before;
    }
    known
}

/// Returns whether each skill passed, from the evidence of a run.
fn skill_outcomes(run: &LastRun, directory: &Path) -> Vec<(SkillName, bool)> {
    let toolchain = format!("{VERIFY_DIR}/{TOOLCHAIN_ARTIFACT}");
    let outcome_of = |(file, sha256): (&String, &Sha256Hex)| {
        let read = recorded_document(directory, file, sha256, MAX_DOCUMENT);
        let read = read.inspect_err(|error| tracing::debug!(%error, file, "evidence of an earlier run cannot be read"));
        let EvidenceOutline { skill, summary } = serde_json::from_slice(&read.ok()??).ok()?;
        Some((skill, summary.outcome == Outcome::Passed))
    };
    run.evidence.iter().filter(|(file, _)| **file != toolchain).filter_map(outcome_of).collect()
}

/// Returns the status of a run without a changeset, if it is still stored.
fn stored_status(run: &RunId, state_path: &Path) -> Option<LastRun> {
    let directory = Directory::open(&state_path.join(RUNS_DIR).join(run.as_str())).ok()?;
    let bytes = directory.read(STATUS_FILE, status::MAX_STATUS_BYTES).ok()??;
    status::last_run(&bytes).ok()?.filter(|last_run| last_run.run_id == *run)
}

/// The fields that are read from the evidence of a skill.
#[derive(Deserialize)]
struct EvidenceOutline {
    skill: SkillName,
    summary: EvidenceOutlineSummary,
}

#[derive(Deserialize)]
struct EvidenceOutlineSummary {
    outcome: Outcome,
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::test_support::{last_run, plan};
    use proctor_core::record::attestation::Attestation;
    use proctor_core::record::evidence::EvidenceIndex;
    use proctor_core::text::canonical;
    use serde_json::json;

    const REPOSITORY: &str = "/r";

    struct RecordedRuns {
        temp: tempfile::TempDir,
        state: Directory,
    }

    impl RecordedRuns {
        fn new() -> Self {
            let temp = tempfile::tempdir().expect("temp");
            let state = Directory::open(temp.path()).expect("opens");
            Self { temp, state }
        }

        /// Records a run of these skills on one tree; for a partial run, after `after`.
        fn record_run(&self, id: &str, skills: &[(&str, &str)], after: Option<&str>) {
            let directory = self.state.ensure(RUNS_DIR, 0o700).and_then(|runs| runs.ensure(id, 0o700)).expect("makes");
            let verify = directory.ensure(VERIFY_DIR, 0o755).expect("makes");
            let mut evidence = EvidenceIndex::new();
            for (skill, outcome) in skills {
                let text = canonical::to_vec(&json!({ "skill": skill, "summary": { "outcome": outcome } }));
                verify.write(&format!("{skill}.json"), &text).expect("writes");
                evidence.insert(format!("{VERIFY_DIR}/{skill}.json"), Sha256Hex::digest(&text));
            }
            let rerun = after.map(|after| Rerun {
                after: run_id(after),
                not_passed: Vec::new(),
                left_out: vec![SkillName::new("x").expect("a name")],
                gone: Vec::new(),
            });
            let run = LastRun { run_id: run_id(id), evidence, rerun, ..last_run() };
            directory.write(STATUS_FILE, &status::set_last_run(None, &run).expect("updates")).expect("writes");
            let subject = Subject { repository: REPOSITORY.into(), changeset_id: None, profile: last_run().profile };
            Attestations::in_state(&self.state).write(&Attestation::new(subject, run)).expect("writes");
        }

        /// Returns the skills that would run of a profile `a b c`, and the run that they refer to.
        fn selection(&self) -> (String, String) {
            let all = plan(&[("a", &[]), ("b", &[]), ("c", &[])]);
            let (plan, rerun) =
                select_not_passed(all, REPOSITORY.into(), (&self.state, self.temp.path())).expect("one");
            let names: Vec<&str> = plan.skills.iter().map(|skill| skill.name.as_str()).collect();
            (names.join(" "), rerun.after.to_string())
        }
    }

    fn run_id(id: &str) -> RunId {
        RunId::new(id).expect("an id")
    }

    fn expected(chosen: &str, after: &str) -> (String, String) {
        (chosen.to_owned(), after.to_owned())
    }

    #[test]
    fn selects_skills_that_newest_run_did_not_pass() {
        let records = RecordedRuns::new();
        records.record_run("r1", &[("a", "passed"), ("b", "failed"), ("c", "skipped")], None);
        assert_eq!(records.selection(), expected("b c", "r1"));
        records.record_run("r2", &[("a", "cancelled"), ("b", "passed"), ("c", "inconclusive")], None);
        assert_eq!(records.selection(), expected("a c", "r2"));
        records.record_run("r3", &[("a", "passed"), ("b", "passed")], None);
        assert_eq!(
            records.selection(),
            expected("c", "r3"),
            "a whole run before it says nothing of what this one had not"
        );
    }

    #[test]
    fn partial_run_keeps_outcomes_of_earlier_runs() {
        let records = RecordedRuns::new();
        records.record_run("r1", &[("a", "passed"), ("b", "failed"), ("c", "failed")], None);
        records.record_run("r2", &[("b", "failed"), ("c", "passed")], Some("r1"));
        assert_eq!(records.selection(), expected("b", "r2"));
        records.record_run("r3", &[("b", "passed")], Some("r2"));
        assert_eq!(records.selection(), expected("a b c", "r3"), "nothing failed, so everything runs");
        // `r4` ended in the meantime, and has a different outcome for a skill that the partial run left out.
        records.record_run("r4", &[("a", "passed"), ("b", "passed"), ("c", "failed")], None);
        records.record_run("r5", &[("a", "failed")], Some("r4"));
        assert_eq!(records.selection(), expected("a c", "r5"));
    }

    #[test]
    fn treats_unreadable_evidence_as_not_passed() {
        let records = RecordedRuns::new();
        records.record_run("r1", &[("a", "passed"), ("b", "passed"), ("c", "failed")], None);
        records.record_run("r2", &[("c", "passed")], Some("r1"));
        let runs = records.temp.path().join(RUNS_DIR);
        let verify = records.state.descend("runs/r1/verify").expect("there");
        verify.write("a.json", b"{}").expect("writes");
        assert_eq!(records.selection(), expected("a", "r2"), "edited");
        std::fs::remove_dir_all(runs.join("r1")).expect("ours");
        assert_eq!(records.selection(), expected("a b", "r2"), "gone");
        std::fs::remove_dir_all(runs.join("r2")).expect("ours");
        assert_eq!(records.selection(), expected("a b c", "r2"));
    }

    #[test]
    fn fails_without_recorded_run() {
        let records = RecordedRuns::new();
        let none = select_not_passed(plan(&[("a", &[])]), REPOSITORY.into(), (&records.state, records.temp.path()));
        assert!(matches!(none, Err(EngineError::NoEarlierRun(_))));
        records.record_run("r1", &[("a", "passed")], None);
        let other = select_not_passed(plan(&[("a", &[])]), "/s".into(), (&records.state, records.temp.path()));
        assert!(matches!(other, Err(EngineError::NoEarlierRun(_))));
    }
}
