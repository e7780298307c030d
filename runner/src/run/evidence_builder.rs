//! Builds the documents of a run from its observations, without I/O. It takes the `PlannedStep` that was executed,
//! so that the record describes the executed steps.

use std::collections::BTreeSet;
use std::time::Duration;

pub(crate) use proctor_core::record::evidence::tier_reasons;

use proctor_core::decision::rerun::Rerun;
use proctor_core::decision::verdict::{self, VerdictInputs};
use proctor_core::model::drift::StepDrift;
use proctor_core::model::enforcement::{Enforcement, SandboxMode};
use proctor_core::model::names::{ChangesetId, RunId};
use proctor_core::model::outcome::{Outcome, StartFault, Termination, Violations};
use proctor_core::model::plan::{Plan, PlannedSkill, PlannedStep, ReadOnly};
use proctor_core::model::tier::{self, TierReason};
use proctor_core::record::evidence::{
    CheckEvidence, DriftEvidence, GitIdentity, Measured, Resources, SkillEvidence, StepEvidence, StreamEvidence,
    Summary, ToolchainEvidence, TrackedDrift, TreeSource, VERSION, combined_outcome, seal,
};
use proctor_core::text::digest::{Sha256Hex, SnapshotId};
use proctor_core::text::redact::Redactor;

/// The facts that all documents of one run share.
#[derive(Debug, Clone)]
pub(crate) struct RunFacts {
    /// The run's id.
    pub run_id: RunId,
    /// The changeset, if there is one.
    pub changeset: Option<ChangesetId>,
    /// The plan's digest.
    pub plan_sha256: Sha256Hex,
    /// Handling of missing sandbox controls.
    pub sandbox: SandboxMode,
    /// The selection of skills that had not passed, if the request asked for it.
    pub rerun: Option<Rerun>,
}

/// The tree of a run, for the record.
#[derive(Debug, Clone)]
pub(crate) struct TreeFacts {
    /// The snapshot's identity.
    pub snapshot: SnapshotId,
    /// The state of git.
    pub git: GitIdentity,
    /// The source of the tree.
    pub source: TreeSource,
}

/// Start and end times, RFC 3339.
#[derive(Debug, Clone)]
pub(crate) struct TimeRange {
    /// Start.
    pub started_at: String,
    /// End.
    pub finished_at: String,
}

/// The tree before and after a skill.
#[derive(Debug, Clone)]
pub(crate) struct SkillSnapshots {
    /// The tree at the skill's start.
    pub before: SnapshotId,
    /// The tree with the layers of the skill's steps.
    pub after: SnapshotId,
}

/// Converts a duration to whole milliseconds, rounded down.
pub(crate) fn whole_millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

/// Returns the record of a step that did not run, without the caller's secrets.
pub(crate) fn not_run_evidence(redactor: &Redactor, step: &PlannedStep, termination: Termination) -> StepEvidence {
    let outcome = proctor_core::model::outcome::judge_attempt(&termination, &step.expect_exit, Violations::default());
    let mut evidence = StepEvidence {
        planned: step.clone(),
        outcome,
        exit_code: termination.exit_code(),
        termination,
        duration_ms: 0,
        stdout: StreamEvidence::empty(),
        stderr: StreamEvidence::empty(),
        enforcement: Enforcement::default(),
        drift: DriftEvidence {
            method: None,
            found: StepDrift::default(),
            applied: vec![],
            fixed: StepDrift::default(),
            changed_tree: false,
        },
        flaky: false,
        earlier_attempts: vec![],
        found_reports: vec![],
        checked_files: None,
        input_enforcement: None,
        reused: None,
        executor: None,
        env_names: BTreeSet::new(),
        resources: Resources::default(),
        leaked: None,
    };
    redactor.redact_step(&mut evidence);
    evidence
}

/// Returns the record of a step that did not start because the run was cancelled.
pub(crate) fn cancelled_evidence(redactor: &Redactor, step: &PlannedStep) -> StepEvidence {
    not_run_evidence(redactor, step, Termination::Cancelled)
}

/// Returns the record of a step that was not reached.
pub(crate) fn skipped_evidence(redactor: &Redactor, step: &PlannedStep, reason: &str) -> StepEvidence {
    let termination = Termination::NotStarted { reason: reason.to_owned(), fault: StartFault::NotReached };
    not_run_evidence(redactor, step, termination)
}

/// Returns the run that executed the steps, if all of them have reused results of this run.
fn common_source(steps: &[StepEvidence]) -> Option<RunId> {
    let run = &steps.first()?.reused.as_ref()?.run_id;
    let is_same = |step: &StepEvidence| step.reused.as_ref().is_some_and(|source| source.run_id == *run);
    steps.iter().all(is_same).then(|| run.clone())
}

/// Returns the sealed document of one skill.
pub(crate) fn skill_evidence(
    run: &RunFacts,
    tree: &TreeFacts,
    plan: &Plan,
    skill: &PlannedSkill,
    steps: Vec<StepEvidence>,
    snapshots: SkillSnapshots,
    span: TimeRange,
) -> SkillEvidence {
    let reasons = skill_tier_reasons(skill, &steps);
    seal(SkillEvidence {
        version: VERSION,
        changeset_id: run.changeset.clone(),
        profile: plan.profile.clone(),
        skill: skill.name.clone(),
        determinism: skill.determinism,
        declared_tier: skill.declared_tier,
        tier: tier::effective_tier(skill.declared_tier, &reasons),
        tier_reasons: reasons,
        sandbox: run.sandbox,
        repo_snapshot_before: snapshots.before,
        repo_snapshot_after: snapshots.after,
        repo_git: tree.git.clone(),
        source: tree.source.clone(),
        tracked_drift: tracked_drift(skill, &steps),
        spec_sha256: plan.spec_sha256.clone(),
        spec_dir: plan.spec_dir.clone(),
        plan_sha256: run.plan_sha256.clone(),
        left_out: plan.left_out.clone(),
        scope: plan.scope.clone(),
        flaky: steps.iter().any(|step| step.flaky),
        cached_from: common_source(&steps),
        summary: summary(&steps),
        steps,
        measured: measured(run, span),
        sha256: Sha256Hex::digest(b""),
    })
}

/// Returns the reasons for the effective tier of a skill: those of its steps, and the network of a command that prepared
/// a path for them.
pub(crate) fn skill_tier_reasons(skill: &PlannedSkill, steps: &[StepEvidence]) -> BTreeSet<TierReason> {
    let mut reasons = tier_reasons(steps);
    if skill.prepares_with_network() {
        reasons.insert(TierReason::NetworkAllowed);
    }
    reasons
}

/// Returns the sealed document of the toolchain checks.
pub(crate) fn toolchain_evidence(
    run: &RunFacts,
    tree: &TreeFacts,
    plan: &Plan,
    checks: Vec<CheckEvidence>,
    span: TimeRange,
) -> ToolchainEvidence {
    let mut folded = summary(checks.iter().map(|check| &check.step));
    // A check that ran well and found the wrong version is a problem of the host, not of the tree.
    if checks.iter().any(|check| !check.satisfied) && folded.outcome != Outcome::Cancelled {
        folded.outcome = Outcome::Inconclusive;
        folded.overall_exit_code = verdict::EXIT_INCONCLUSIVE;
    }
    if checks.is_empty() {
        folded.outcome = Outcome::Passed;
        folded.overall_exit_code = 0;
    }
    seal(ToolchainEvidence {
        version: VERSION,
        changeset_id: run.changeset.clone(),
        profile: plan.profile.clone(),
        sandbox: run.sandbox,
        spec_sha256: plan.spec_sha256.clone(),
        spec_dir: plan.spec_dir.clone(),
        plan_sha256: run.plan_sha256.clone(),
        left_out: plan.left_out.clone(),
        scope: plan.scope.clone(),
        repo_snapshot: tree.snapshot.clone(),
        repo_git: tree.git.clone(),
        source: tree.source.clone(),
        checks,
        summary: folded,
        measured: measured(run, span),
        sha256: Sha256Hex::digest(b""),
    })
}

fn measured(run: &RunFacts, span: TimeRange) -> Measured {
    let TimeRange { started_at, finished_at } = span;
    Measured { run_id: run.run_id.clone(), started_at, finished_at, caches: vec![] }
}

fn tracked_drift(skill: &PlannedSkill, steps: &[StepEvidence]) -> TrackedDrift {
    let strictness = |mode: &ReadOnly| match mode {
        ReadOnly::Off => 0,
        ReadOnly::Tracked => 1,
        ReadOnly::Strict => 2,
    };
    let mode = skill.steps.iter().map(|step| step.read_only).max_by_key(strictness).unwrap_or(ReadOnly::Tracked);
    let changed: BTreeSet<&String> =
        steps.iter().flat_map(|step| &step.drift.found.changes).map(|change| &change.path).collect();
    TrackedDrift { mode, changed_files: changed.into_iter().cloned().collect() }
}

fn summary<'a>(steps: impl IntoIterator<Item = &'a StepEvidence>) -> Summary {
    // A skill without a file to check needs no run; only the run as a whole must have checked something.
    let mut facts = VerdictInputs { is_restricted: true, ..VerdictInputs::default() };
    let mut duration_ms: u64 = 0;
    for step in steps {
        facts.outcomes.push(step.outcome);
        duration_ms = duration_ms.saturating_add(step.duration_ms);
    }
    Summary { outcome: combined_outcome(&facts.outcomes), overall_exit_code: verdict::exit_code(&facts), duration_ms }
}

/// Describes an outcome as the end of a sentence.
pub(crate) fn describe_outcome(outcome: Outcome) -> &'static str {
    match outcome {
        Outcome::Passed => "passed",
        Outcome::Failed => "failed",
        Outcome::TimedOut => "timed out",
        Outcome::Drifted => "drifted",
        Outcome::Skipped => "was skipped",
        Outcome::NoFiles => "has no files to check",
        Outcome::Cancelled => "was cancelled",
        Outcome::Inconclusive => "was inconclusive",
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::test_support::step;
    use proctor_core::model::drift::{Change, ChangeKind, Diff};
    use proctor_core::record::evidence::AttemptEvidence;

    fn passed(name: &str) -> StepEvidence {
        not_run_evidence(&Redactor::default(), &step(name, &["true"]), Termination::Exited { code: 0 })
    }

    #[test]
    fn drift_raises_tier() {
        let mut drifted = passed("a");
        drifted.drift.found.changes.push(Change {
            path: "README.md".into(),
            kind: ChangeKind::Modified,
            before: None,
            after: None,
            diff: Diff::Binary,
        });
        let reasons = tier_reasons(&[drifted]);
        assert_eq!(reasons, BTreeSet::from([TierReason::Drift]));
    }

    #[test]
    fn timeout_of_earlier_attempt_raises_tier() {
        let mut flaky = passed("a");
        flaky.earlier_attempts.push(AttemptEvidence {
            outcome: Outcome::TimedOut,
            termination: Termination::TimedOut { exit_code: 143 },
            duration_ms: 1,
            stdout_sha256: Sha256Hex::digest(b""),
            stderr_sha256: Sha256Hex::digest(b""),
            leaked: None,
        });
        assert_eq!(tier_reasons(&[flaky]), BTreeSet::from([TierReason::Timeout]));
    }

    #[test]
    fn unenforced_control_raises_tier() {
        let mut weak = passed("a");
        weak.enforcement.record_not_enforced(proctor_core::model::enforcement::Control::PidsLimit, "no");
        assert_eq!(tier_reasons(&[weak]), BTreeSet::from([TierReason::ControlNotEnforced]));
        assert_eq!(tier_reasons(&[passed("a")]), BTreeSet::new());
    }

    /// Messages quote the recorded command, and a quoted secret has a different form.
    #[test]
    fn recorded_command_has_no_secret_to_quote() {
        let redactor = Redactor::from_environment([("A_TOKEN", "it's$ecret")], |_| false);
        let planned = step("a", &["curl", "it's$ecret"]);
        assert_eq!(planned.cmd.to_string(), r#"curl "it's"'$ecret'"#);
        let record = not_run_evidence(&redactor, &planned, Termination::Cancelled);
        assert_eq!(record.planned.cmd.to_string(), "curl '[redacted]'");
    }

    #[test]
    fn skipped_step_has_no_exit_code() {
        let record = skipped_evidence(&Redactor::default(), &step("a", &["true"]), "an earlier step failed");
        assert_eq!((record.outcome, record.exit_code), (Outcome::Skipped, None));
    }
}
