//! Builds event logs for tests from the types of the core crate.

use std::collections::{BTreeMap, BTreeSet};

use proctor_core::decision::verdict::Verdict;
use proctor_core::model::drift::{Change, ChangeKind, Diff, DriftMethod, StepDrift};
use proctor_core::model::enforcement::{Control, Enforcement, SandboxMode};
use proctor_core::model::event::{PlannedOutline, RunEvent};
use proctor_core::model::names::{ChangesetId, ProfileName, RunId, SkillName, StepName, ToolchainName};
use proctor_core::model::outcome::{Outcome, Termination, Violations, judge_attempt};
use proctor_core::model::plan::{
    Argv, Inputs, Leaks, Limit, Limits, Network, PlannedStep, ReadOnly, RelPath, VersionDemand,
};
use proctor_core::model::tier::Tier;
use proctor_core::record::evidence::{
    CheckEvidence, CheckedFiles, DriftEvidence, Resources, ReuseSource, StepEvidence, StreamEvidence,
};
use proctor_core::record::run_reuse::{ReuseMode, RunReuse};
use proctor_core::text::digest::{Sha256Hex, SnapshotId};

pub(crate) fn skill(name: &str) -> SkillName {
    SkillName::new(name).expect("a skill name")
}

pub(crate) fn planned(name: &str, cmd: &[&str]) -> PlannedStep {
    PlannedStep {
        name: StepName::new(name).expect("a step name"),
        cmd: Argv::new(cmd.iter().map(|word| (*word).to_owned()).collect()).expect("a command"),
        sql: None,
        workdir: RelPath::new(".").expect("a path"),
        timeout_ms: 180_000,
        grace_ms: 500,
        network: Network::Deny,
        read_only: ReadOnly::Tracked,
        env_allowlist: Vec::new(),
        env: BTreeMap::new(),
        limits: Limits {
            memory: Limit::Max(512 << 20),
            pids: Limit::Max(256),
            disk: Limit::Max(1 << 30),
            output: Limit::Max(1 << 20),
            open_files: Limit::Max(1024),
            ..Limits::UNLIMITED
        },
        retries: 0,
        leaks: Leaks::Warn,
        expect_exit: vec![0],
        files: None,
        fix: None,
        fixes: None,
        inputs: Inputs::Tree,
        reports: Vec::new(),
    }
}

pub(crate) fn step(planned: PlannedStep, termination: Termination) -> StepEvidence {
    let mut enforcement = Enforcement::default();
    enforcement.record_enforced(Control::PidNamespace, "clone");
    StepEvidence {
        outcome: judge_attempt(&termination, &planned.expect_exit, Violations::default()),
        exit_code: termination.exit_code(),
        termination,
        duration_ms: 420,
        stdout: StreamEvidence::empty(),
        stderr: StreamEvidence::empty(),
        enforcement,
        drift: DriftEvidence {
            method: Some(DriftMethod::Layer),
            found: StepDrift::default(),
            applied: Vec::new(),
            fixed: StepDrift::default(),
            changed_tree: false,
        },
        flaky: false,
        earlier_attempts: Vec::new(),
        found_reports: Vec::new(),
        checked_files: None,
        input_enforcement: None,
        reused: None,
        executor: None,
        env_names: BTreeSet::from(["PATH".to_owned()]),
        resources: Resources::default(),
        leaked: None,
        planned,
    }
}

pub(crate) fn exited(name: &str, cmd: &[&str], code: u8) -> StepEvidence {
    step(planned(name, cmd), Termination::Exited { code })
}

/// Returns a passed step with the result of an earlier execution.
pub(crate) fn cached(name: &str, cmd: &[&str]) -> StepEvidence {
    let source = ReuseSource {
        run_id: RunId::new("20260101T030405Z-1").expect("a run id"),
        executed_at: "2026-01-01T03:04:05.678Z".to_owned(),
        inputs_sha256: Sha256Hex::digest(b"inputs"),
        inputs: 312,
        whole_tree: false,
        transparent_caches: Vec::new(),
        origin: None,
    };
    StepEvidence { duration_ms: 0, reused: Some(source), ..exited(name, cmd, 0) }
}

/// Returns the reuse of results in a run of two steps.
pub(crate) fn observed_reuse() -> RunReuse {
    RunReuse { mode: ReuseMode::Observed, reason: None, steps: 2, cached_steps: 1, remote: None }
}

/// Returns a passed step that checked only some of its files again.
pub(crate) fn partly_checked(name: &str, cmd: &[&str]) -> StepEvidence {
    let files = CheckedFiles {
        count: 800,
        sha256: Sha256Hex::digest(b"files"),
        batches: 1,
        reused: 797,
        reused_executed_at: Some("2026-01-01T03:04:05.678Z".to_owned()),
        dependence: None,
        transparent_caches: Vec::new(),
        origins: Vec::new(),
        covers_all: false,
    };
    StepEvidence { checked_files: Some(files), ..exited(name, cmd, 0) }
}

pub(crate) fn stream(text: &str) -> StreamEvidence {
    let bytes = u64::try_from(text.len()).expect("small");
    StreamEvidence {
        sha256: Sha256Hex::digest(text.as_bytes()),
        bytes,
        kept_bytes: bytes,
        complete: true,
        redacted: 0,
        preview: proctor_core::record::evidence::escape_output(text.as_bytes()),
        tail: String::new(),
    }
}

pub(crate) fn drifted(name: &str, cmd: &[&str]) -> StepEvidence {
    let mut step = exited(name, cmd, 0);
    let text = "--- a/README.md\n+++ b/README.md\n@@ -1 +1,2 @@\n # Title\n+x\n".to_owned();
    let change = Change {
        path: "README.md".into(),
        kind: ChangeKind::Modified,
        before: None,
        after: None,
        diff: Diff::Whole { text },
    };
    step.drift.found = StepDrift { changes: vec![change], omitted: 0 };
    step.outcome = judge_attempt(&step.termination, &[0], Violations { drifted: true, leaked: false });
    step
}

pub(crate) fn check(toolchain: &str, demand: Option<&str>, read: Option<&str>, step: StepEvidence) -> CheckEvidence {
    CheckEvidence {
        toolchain: ToolchainName::new(toolchain).expect("a toolchain name"),
        demand: demand.map_or(VersionDemand::Any, |range| VersionDemand::Range { range: range.to_owned() }),
        version_read: read.map(str::to_owned),
        satisfied: demand.is_none() && step.outcome == Outcome::Passed,
        hidden_program: None,
        step,
    }
}

pub(crate) fn started(skills: &[(&str, &[&str])]) -> RunEvent {
    let name = |text: &&str| StepName::new(*text).expect("a step name");
    RunEvent::RunStarted {
        run_id: RunId::new("20260102T030405Z-1").expect("a run id"),
        at: "2026-01-02T03:04:05.678Z".into(),
        profile: ProfileName::new("pr").expect("a profile name"),
        changeset_id: Some(ChangesetId::new("009_x").expect("an id")),
        spec_sha256: Sha256Hex::digest(b"spec"),
        plan_sha256: Sha256Hex::digest(b"plan"),
        snapshot: SnapshotId::from_root(&Sha256Hex::digest(b"tree")),
        source: proctor_core::record::evidence::TreeSource::SHARED,
        git: None,
        unverified_inputs_sha256: None,
        sandbox: SandboxMode::Strict,
        checks: 1,
        skills: skills
            .iter()
            .map(|(name_, steps)| PlannedOutline { skill: skill(name_), steps: steps.iter().map(name).collect() })
            .collect(),
        rerun: None,
        scope: None,
    }
}

pub(crate) fn step_finished(name: &str, step: StepEvidence) -> RunEvent {
    RunEvent::StepFinished { skill: skill(name), step }
}

pub(crate) fn skill_finished(name: &str, outcome: Outcome, tier: Tier, reason: &str) -> RunEvent {
    RunEvent::SkillFinished { skill: skill(name), outcome, tier, reason: reason.to_owned() }
}

pub(crate) fn finished(verdict: Verdict, tier: Tier, exit_code: u8) -> RunEvent {
    let evidence_dir = Some("/repo/changes/009_x/verify".into());
    RunEvent::RunFinished { verdict, tier, exit_code, duration_ms: 2_340, evidence_dir, reuse: Some(observed_reuse()) }
}
