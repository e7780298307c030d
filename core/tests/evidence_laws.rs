//! Properties of evidence documents: they survive a round trip and match their schema. The stable part excludes
//! measured values, includes everything else, and contains outputs only if the determinism class guarantees them.

use std::collections::{BTreeMap, BTreeSet};

use proctor_core::model::drift::{Change, ChangeKind, Diff, DriftMethod, StepDrift};
use proctor_core::model::enforcement::{Control, Enforcement, SandboxMode};
use proctor_core::model::leak::{LeakedProcess, LeakedProcesses};
use proctor_core::model::names::StepName;
use proctor_core::model::outcome::{Outcome, Termination};
use proctor_core::model::plan::{
    Argv, Determinism, LimitSettings, PlannedStep, ReadOnly, RelPath, ReportFormat, VersionDemand,
};
use proctor_core::model::tier::{Tier, TierReason};
use proctor_core::record::evidence::{
    self, AttemptEvidence, CheckEvidence, DriftEvidence, GitIdentity, Measured, ReportEvidence, ReportState, Resources,
    SkillEvidence, StepEvidence, StreamEvidence, Summary, ToolchainEvidence, TrackedDrift,
};
use proctor_core::spec::{self, AdhocCommand, OperatorConfig};
use proctor_core::text::canonical::Json;
use proctor_core::text::digest::{Sha256Hex, SnapshotId};

fn hash_of(text: &str) -> Sha256Hex {
    Sha256Hex::digest(text.as_bytes())
}

fn planned_step() -> PlannedStep {
    let adhoc = AdhocCommand {
        cmd: Argv::new(vec!["cargo".into(), "test".into()]).expect("a command"),
        workdir: None,
        timeout_ms: None,
        grace_ms: None,
        network: None,
        read_only: None,
        leaks: None,
        env_allowlist: Some(vec!["CI".parse().expect("a name")]),
        env: BTreeMap::from([("A".parse().expect("a name"), "b".to_owned())]),
        limits: LimitSettings::default(),
    };
    let name = StepName::new("unit").expect("a name");
    spec::adhoc_step(&adhoc, name, None, &OperatorConfig::default()).expect("a step")
}

fn stream(text: &str) -> StreamEvidence {
    let bytes = text.len() as u64;
    StreamEvidence {
        sha256: hash_of(text),
        bytes,
        kept_bytes: bytes,
        preview: text.to_owned(),
        ..StreamEvidence::empty()
    }
}

fn report(text: &str) -> ReportEvidence {
    let state = ReportState::Read { sha256: hash_of(text), bytes: text.len() as u64, redacted: 0 };
    ReportEvidence { format: ReportFormat::Junit, path: RelPath::new("junit.xml").expect("a path"), state }
}

fn leaked() -> LeakedProcesses {
    LeakedProcesses::new(1, vec![LeakedProcess::new(7, b"sleep")])
}

fn step() -> StepEvidence {
    let mut enforcement = Enforcement::default();
    enforcement.record_enforced(Control::Layer, "overlayfs");
    enforcement.record_not_enforced(Control::MemoryLimit, "no cgroup");
    let change = Change {
        path: "README.md".to_owned(),
        kind: ChangeKind::Modified,
        before: None,
        after: None,
        diff: Diff::Whole { text: "-a\n+b\n".to_owned() },
    };
    StepEvidence {
        planned: planned_step(),
        outcome: Outcome::Drifted,
        termination: Termination::Exited { code: 0 },
        exit_code: Some(0),
        duration_ms: 5,
        stdout: stream("out"),
        stderr: stream("err"),
        enforcement,
        drift: DriftEvidence {
            method: Some(DriftMethod::Layer),
            found: StepDrift { changes: vec![change], omitted: 0 },
            applied: vec![],
            fixed: StepDrift::default(),
            changed_tree: false,
        },
        flaky: false,
        earlier_attempts: vec![AttemptEvidence {
            outcome: Outcome::Failed,
            termination: Termination::Signaled { signal: 9 },
            duration_ms: 1,
            stdout_sha256: hash_of("first"),
            stderr_sha256: hash_of(""),
            leaked: Some(leaked()),
        }],
        found_reports: vec![],
        checked_files: None,
        input_enforcement: None,
        reused: None,
        executor: None,
        env_names: BTreeSet::from(["PATH".to_owned()]),
        resources: Resources::default(),
        leaked: Some(leaked()),
    }
}

fn git() -> GitIdentity {
    GitIdentity { head_commit: None, branch: Some("main".to_owned()), tree: None, no_tree: None, dirty: None }
}

fn measured() -> Measured {
    Measured {
        run_id: "r1".parse().expect("a run id"),
        started_at: "2026-01-02T03:04:05.678Z".to_owned(),
        finished_at: "2026-01-02T03:04:06.678Z".to_owned(),
        caches: vec![],
    }
}

fn summary() -> Summary {
    Summary { outcome: Outcome::Drifted, overall_exit_code: 3, duration_ms: 5 }
}

fn skill(determinism: Determinism) -> SkillEvidence {
    let snapshot = SnapshotId::from_root(&hash_of("tree"));
    evidence::seal(SkillEvidence {
        version: evidence::VERSION,
        changeset_id: Some("009_x".parse().expect("an id")),
        profile: "pr".parse().expect("a name"),
        skill: "verify.test".parse().expect("a name"),
        determinism,
        declared_tier: Tier::ONE,
        tier: Tier::THREE,
        tier_reasons: BTreeSet::from([TierReason::Drift]),
        sandbox: SandboxMode::Strict,
        repo_snapshot_before: snapshot.clone(),
        repo_snapshot_after: snapshot,
        repo_git: git(),
        source: Default::default(),
        tracked_drift: TrackedDrift { mode: ReadOnly::Tracked, changed_files: vec!["README.md".to_owned()] },
        spec_sha256: hash_of("spec"),
        spec_dir: RelPath::repository(),
        plan_sha256: hash_of("plan"),
        left_out: Vec::new(),
        scope: None,
        flaky: false,
        cached_from: None,
        steps: vec![step()],
        summary: summary(),
        measured: measured(),
        sha256: hash_of(""),
    })
}

fn toolchain() -> ToolchainEvidence {
    evidence::seal(ToolchainEvidence {
        version: evidence::VERSION,
        changeset_id: None,
        sandbox: SandboxMode::Strict,
        profile: "pr".parse().expect("a name"),
        spec_sha256: hash_of("spec"),
        spec_dir: RelPath::repository(),
        plan_sha256: hash_of("plan"),
        left_out: Vec::new(),
        scope: None,
        repo_snapshot: SnapshotId::from_root(&hash_of("tree")),
        repo_git: git(),
        source: Default::default(),
        checks: vec![CheckEvidence {
            toolchain: "rust".parse().expect("a name"),
            demand: VersionDemand::Range { range: ">=1.80".to_owned() },
            version_read: Some("1.95.0".to_owned()),
            satisfied: true,
            hidden_program: None,
            step: step(),
        }],
        summary: summary(),
        measured: measured(),
        sha256: hash_of(""),
    })
}

/// Returns the seal after a change.
fn seal_after(determinism: Determinism, change: impl FnOnce(&mut SkillEvidence)) -> Sha256Hex {
    let mut document = skill(determinism);
    change(&mut document);
    evidence::seal(document).sha256
}

#[test]
fn documents_survive_round_trip() {
    let (skill, toolchain) = (skill(Determinism::D0), toolchain());
    let bytes = evidence::to_bytes(&skill);
    assert_eq!(serde_json::from_slice::<SkillEvidence>(&bytes).expect("ours"), skill);
    assert_eq!(Json::parse(&bytes).expect("ours").to_vec(), bytes, "it is canonical");
    let bytes = evidence::to_bytes(&toolchain);
    assert_eq!(serde_json::from_slice::<ToolchainEvidence>(&bytes).expect("ours"), toolchain);
}

#[test]
fn documents_match_schema() {
    let cases = [
        (schemars::schema_for!(SkillEvidence), serde_json::to_value(skill(Determinism::D2)).expect("json")),
        (schemars::schema_for!(ToolchainEvidence), serde_json::to_value(toolchain()).expect("json")),
    ];
    for (schema, document) in cases {
        let validator = jsonschema::draft202012::new(schema.as_value()).expect("a schema");
        let problems: Vec<String> = validator.iter_errors(&document).map(|error| error.to_string()).collect();
        assert!(problems.is_empty(), "{problems:#?}");
        let mut broken = document;
        broken.as_object_mut().expect("an object").remove("sha256");
        assert!(!validator.is_valid(&broken));
    }
}

#[test]
fn measured_values_do_not_change_seal() {
    let plain = skill(Determinism::D0).sha256;
    let changed = seal_after(Determinism::D0, |document| {
        document.measured.run_id = "r2".parse().expect("a run id");
        document.measured.started_at = "2027-01-01T00:00:00.000Z".to_owned();
        document.summary.duration_ms = 99;
        document.cached_from = Some("r0".parse().expect("a run id"));
        document.steps[0].duration_ms = 99;
        document.steps[0].earlier_attempts[0].duration_ms = 99;
        document.steps[0].resources = Resources { user_ms: 9, system_ms: 9, max_rss_kib: 9, ..Resources::default() };
    });
    assert_eq!(plain, changed);
}

#[test]
fn output_changes_seal_only_for_d0() {
    let other_output = |document: &mut SkillEvidence| {
        document.steps[0].stdout = stream("something else");
        document.steps[0].stderr = stream("");
        document.steps[0].earlier_attempts[0].stdout_sha256 = hash_of("second");
        document.steps[0].found_reports = vec![report("<a/>")];
    };
    assert_ne!(skill(Determinism::D0).sha256, seal_after(Determinism::D0, other_output));
    for class in [Determinism::D1, Determinism::D2] {
        assert_eq!(skill(class).sha256, seal_after(class, other_output), "{class:?}");
    }
    let other_report = |document: &mut SkillEvidence| document.steps[0].found_reports = vec![report("<a/>")];
    assert_ne!(skill(Determinism::D0).sha256, seal_after(Determinism::D0, other_report));
    let first_attempt =
        |document: &mut SkillEvidence| document.steps[0].earlier_attempts[0].stderr_sha256 = hash_of("x");
    assert_ne!(skill(Determinism::D0).sha256, seal_after(Determinism::D0, first_attempt));
}

#[test]
fn other_values_change_seal_for_every_class() {
    type EvidenceEdit = (&'static str, fn(&mut SkillEvidence));
    let edits: [EvidenceEdit; 10] = [
        ("outcome", |d| d.steps[0].outcome = Outcome::Passed),
        ("termination", |d| d.steps[0].termination = Termination::Exited { code: 1 }),
        ("timeout", |d| d.steps[0].planned.timeout_ms += 1),
        ("drift", |d| d.steps[0].drift.found.changes.clear()),
        ("enforcement", |d| d.steps[0].enforcement = Enforcement::default()),
        ("tier", |d| d.tier = Tier::ONE),
        ("snapshot", |d| d.repo_snapshot_before = SnapshotId::from_root(&hash_of("other"))),
        ("spec", |d| d.spec_sha256 = hash_of("other")),
        ("attempts", |d| d.steps[0].earlier_attempts.clear()),
        ("summary", |d| d.summary.overall_exit_code = 0),
    ];
    for class in [Determinism::D0, Determinism::D1, Determinism::D2] {
        for (what, edit) in edits {
            assert_ne!(skill(class).sha256, seal_after(class, edit), "{what} {class:?}");
        }
    }
}

#[test]
fn enforcement_mechanism_does_not_change_seal() {
    use proctor_core::model::enforcement::Control;
    let enforced = |mechanism: &'static str| {
        move |d: &mut SkillEvidence| d.steps[0].enforcement.record_enforced(Control::Layer, mechanism)
    };
    let mut one = skill(Determinism::D0);
    enforced("by this")(&mut one);
    let mut other = one.clone();
    enforced("by that")(&mut other);
    assert_eq!(evidence::seal(one.clone()).sha256, evidence::seal(other).sha256);
    let mut weaker = one.clone();
    weaker.steps[0].enforcement.record_not_enforced(Control::Layer, "no");
    assert_ne!(evidence::seal(one).sha256, evidence::seal(weaker).sha256);
}

#[test]
fn seal_is_hash_of_stable_part() {
    let document = skill(Determinism::D0);
    assert_eq!(document.sha256, Sha256Hex::digest(&evidence::stable_part(&document).to_vec()));
    assert_eq!(evidence::seal(document.clone()), document);
    let toolchain = toolchain();
    let mut other = toolchain.clone();
    other.checks[0].step.stdout = stream("rustc 1.96.0");
    assert_ne!(evidence::seal(other).sha256, toolchain.sha256, "the output of a tool about itself is stable");
}
