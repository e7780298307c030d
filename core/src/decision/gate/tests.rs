//! A passed run without findings, and each change to it that causes one.

mod attestations;
mod bit_flips;
mod cache_trust;
mod changed_tree;
mod execution_age;
mod external_ignores;
mod other_machines;
mod partial_run;
mod restricted_run;
mod unverified_inputs;

use std::collections::{BTreeMap, BTreeSet};

use super::*;
use crate::model::cache::CacheTrust;
use crate::model::drift::{DriftMethod, StepDrift};
use crate::model::enforcement::{Control, Enforcement, SandboxMode};
use crate::model::outcome::{Outcome, Termination};
use crate::model::plan::{Determinism, Plan, PlannedStep, ReadOnly};
use crate::record::evidence::{self, *};
use crate::spec::OperatorConfig;

const SPEC: &str = "version: 1\ntoolchains: { sh: { required: [ { cmd: [sh, --version] } ] } }\n\
    profiles: { pr: { include: [a, b] } }\nskills:\n\
    \x20 a: { description: d, determinism: D0, tier: 1, steps: [ { name: x, cmd: [true] }, { name: y, cmd: [true] } ] }\n\
    \x20 b: { description: d, determinism: D1, tier: 2, steps: [ { name: z, cmd: [true] } ] }\n";
/// 2026-01-02T03:04:05.678Z
const ENDED_MS: u64 = 1_767_323_045_678;

/// The record of a run, and the current state of the repository.
#[derive(Clone)]
struct GateScenario {
    plan: Plan,
    operator: OperatorConfig,
    trusted_keys: TrustedKeyIds,
    requirements: GateRequirements,
    skills: Vec<SkillEvidence>,
    toolchain: ToolchainEvidence,
    /// The status of the run; [`GateScenario::write_documents`] fills in the evidence that it cites.
    run: LastRun,
    snapshot: SnapshotId,
    /// The ignore rules outside of the tree.
    ignores: Option<BTreeMap<String, IgnoreFile>>,
    now_ms: u64,
}

fn snapshot_id(text: &str) -> SnapshotId {
    SnapshotId::from_root(&Sha256Hex::digest(text.as_bytes()))
}

fn profile(name: &str) -> ProfileName {
    ProfileName::new(name).expect("a profile")
}

fn run_id(id: &str) -> RunId {
    RunId::new(id).expect("an id")
}

fn changeset() -> ChangesetId {
    ChangesetId::new("009_x").expect("an id")
}

fn resolve_plan(text: &str, operator: &OperatorConfig) -> Plan {
    let spec = spec::parse(text.as_bytes()).expect("a spec").spec;
    let sha256 = Sha256Hex::digest(text.as_bytes());
    spec::resolve(&spec, &profile("pr"), operator, sha256, 2).expect("resolves").plan
}

fn passed_step(planned: &PlannedStep) -> StepEvidence {
    let mut enforcement = Enforcement::default();
    enforcement.record_enforced(Control::Layer, "overlay");
    StepEvidence {
        planned: planned.clone(),
        outcome: Outcome::Passed,
        termination: Termination::Exited { code: 0 },
        exit_code: Some(0),
        duration_ms: 3,
        stdout: StreamEvidence::empty(),
        stderr: StreamEvidence::empty(),
        enforcement,
        drift: DriftEvidence {
            method: Some(DriftMethod::Layer),
            found: StepDrift::default(),
            applied: vec![],
            fixed: StepDrift::default(),
            changed_tree: false,
        },
        flaky: false,
        earlier_attempts: vec![],
        found_reports: Vec::new(),
        checked_files: None,
        input_enforcement: None,
        reused: None,
        executor: None,
        env_names: BTreeSet::new(),
        resources: Resources::default(),
        leaked: None,
    }
}

fn summary() -> Summary {
    Summary { outcome: Outcome::Passed, overall_exit_code: 0, duration_ms: 3 }
}

fn measured() -> Measured {
    let at = "2026-01-02T03:04:05.000Z".to_owned();
    Measured { run_id: run_id("r2"), started_at: at.clone(), finished_at: at, caches: vec![] }
}

fn git() -> GitIdentity {
    GitIdentity { head_commit: None, branch: None, tree: None, no_tree: None, dirty: None }
}

impl GateScenario {
    /// Returns a scenario in which the gate passes.
    fn new() -> Self {
        let operator = OperatorConfig::default();
        let plan = resolve_plan(SPEC, &operator);
        let skills = plan.skills.iter().map(|skill| SkillEvidence {
            version: evidence::VERSION,
            changeset_id: Some(changeset()),
            profile: plan.profile.clone(),
            skill: skill.name.clone(),
            determinism: Determinism::D0,
            declared_tier: skill.declared_tier,
            tier: skill.declared_tier,
            tier_reasons: BTreeSet::new(),
            sandbox: SandboxMode::Strict,
            repo_snapshot_before: snapshot_id("t"),
            repo_snapshot_after: snapshot_id("t"),
            repo_git: git(),
            source: Default::default(),
            tracked_drift: TrackedDrift { mode: ReadOnly::Tracked, changed_files: vec![] },
            spec_sha256: plan.spec_sha256.clone(),
            spec_dir: plan.spec_dir.clone(),
            plan_sha256: plan.digest(),
            left_out: Vec::new(),
            scope: None,
            flaky: false,
            cached_from: None,
            steps: skill.steps.iter().map(passed_step).collect(),
            summary: summary(),
            measured: measured(),
            sha256: Sha256Hex::digest(b""),
        });
        let skills = skills.collect();
        let checks = plan.toolchain.iter().map(|check| CheckEvidence {
            toolchain: check.toolchain.clone(),
            demand: check.version.clone(),
            version_read: None,
            satisfied: true,
            hidden_program: None,
            step: passed_step(&check.run),
        });
        let toolchain = ToolchainEvidence {
            version: evidence::VERSION,
            changeset_id: Some(changeset()),
            profile: plan.profile.clone(),
            sandbox: SandboxMode::Strict,
            spec_sha256: plan.spec_sha256.clone(),
            spec_dir: plan.spec_dir.clone(),
            plan_sha256: plan.digest(),
            left_out: Vec::new(),
            scope: None,
            repo_snapshot: snapshot_id("t"),
            repo_git: git(),
            source: Default::default(),
            checks: checks.collect(),
            summary: summary(),
            measured: measured(),
            sha256: Sha256Hex::digest(b""),
        };
        let run = LastRun {
            version: status::VERSION,
            profile: plan.profile.clone(),
            outcome: Verdict::Passed,
            timestamp: "2026-01-02T03:04:05.678Z".into(),
            run_id: run_id("r2"),
            tier: Tier::TWO,
            snapshot: snapshot_id("t"),
            snapshot_after: Some(snapshot_id("t")),
            source: Default::default(),
            spec_sha256: plan.spec_sha256.clone(),
            evidence: BTreeMap::new(),
            external_ignores: Some(BTreeMap::new()),
            unverified_inputs: None,
            rerun: None,
            scope: None,
            reuse: None,
        };
        let demands = GateRequirements {
            profile: profile("pr"),
            changeset: Some(changeset()),
            max_tier: Tier::TWO,
            max_age: AgeLimits::requested(Some(MaxAge::Within(Duration::from_secs(60)))),
            unattested: UnattestedPolicy::Refuse,
            max_cache_trust: CacheTrust::Default,
            inputs: InputRequirement::Any,
            machines: MachineRequirement::Any,
        };
        let now_ms = ENDED_MS + 10_000;
        Self {
            plan,
            operator,
            trusted_keys: TrustedKeyIds::default(),
            requirements: demands,
            skills,
            toolchain,
            run,
            snapshot: snapshot_id("t"),
            ignores: Some(BTreeMap::new()),
            now_ms,
        }
    }

    /// Applies a change to the record, with the hashes that a real run would have written.
    fn with(mut self, change: impl FnOnce(&mut Self)) -> Self {
        change(&mut self);
        self
    }

    /// Returns the documents as a real run writes them.
    fn write_documents(&self) -> WrittenDocuments<'_> {
        let skills = self.skills.iter().map(|skill| (skill.skill.artifact(), to_bytes(&seal(skill.clone()))));
        let toolchain = ("_toolchain.json".to_owned(), to_bytes(&seal(self.toolchain.clone())));
        let files: BTreeMap<String, Vec<u8>> =
            skills.chain([toolchain]).map(|(name, bytes)| (format!("verify/{name}"), bytes)).collect();
        let mut run = self.run.clone();
        run.evidence = files.iter().map(|(file, bytes)| (file.clone(), Sha256Hex::digest(bytes))).collect();
        let mut laid =
            WrittenDocuments { scenario: self, status: Vec::new(), files, attestation: None, run_in_progress: false };
        laid.write_run(&run);
        laid
    }

    fn subject(&self) -> Subject {
        let changeset_id = self.requirements.changeset.clone();
        Subject { repository: "/r".into(), changeset_id, profile: self.run.profile.clone() }
    }

    /// Returns the codes of the findings for an unmodified record of this scenario.
    fn finding_codes(&self) -> Vec<GateCode> {
        self.write_documents().finding_codes()
    }
}

/// The documents on disk.
#[derive(Clone)]
struct WrittenDocuments<'w> {
    scenario: &'w GateScenario,
    status: Vec<u8>,
    files: BTreeMap<String, Vec<u8>>,
    attestation: Option<Vec<u8>>,
    run_in_progress: bool,
}

impl WrittenDocuments<'_> {
    /// Writes the status file and Proctor's own record of `run`.
    fn write_run(&mut self, run: &LastRun) {
        self.write_status(run);
        self.attestation = Some(Attestation::new(self.scenario.subject(), run.clone()).to_bytes());
    }

    /// Writes only the status file, as a forger would.
    fn write_status(&mut self, run: &LastRun) {
        self.status = status::set_last_run(Some(b"{}"), run).expect("updates");
    }

    fn last_run(&self) -> LastRun {
        status::last_run(&self.status).expect("reads").expect("one")
    }

    fn evaluate(&self) -> GateAnswer {
        let GateScenario { plan, operator, requirements: demands, snapshot, ignores, now_ms, .. } = self.scenario;
        let files = self.files.iter().map(|(file, bytes)| (file.clone(), EvidenceFileContent::Bytes(bytes.clone())));
        let found = RecordedDocuments {
            status: EvidenceFileContent::Bytes(self.status.clone()),
            files: files.collect(),
            run_in_progress: self.run_in_progress,
        };
        self.evaluate_facts(
            demands,
            &GateFacts {
                now_ms: *now_ms,
                repository: "/r".into(),
                snapshot: snapshot.clone(),
                ignores: ignores.clone(),
                changed_paths: ChangedPaths::default(),
                plan,
                operator,
                trusted_keys: self.scenario.trusted_keys.clone(),
                documents: found,
                attestation: self.attestation.clone(),
            },
        )
    }

    fn evaluate_facts(&self, demands: &GateRequirements, facts: &GateFacts<'_>) -> GateAnswer {
        let answer = evaluate(demands, facts);
        assert_eq!(answer.pass, answer.exit_code == 0);
        assert_eq!(answer.pass, answer.findings.iter().all(|finding| finding.accepted));
        for finding in &answer.findings {
            assert!(!finding.message.is_empty() && !finding.hint.is_empty(), "{finding:?}");
        }
        answer
    }

    fn finding_codes(&self) -> Vec<GateCode> {
        self.evaluate().findings.iter().map(|finding| finding.name).collect()
    }
}

#[test]
fn accepts_matching_run() {
    let answer = GateScenario::new().write_documents().evaluate();
    assert!(answer.pass, "{answer:#?}");
    assert_eq!((answer.exit_code, answer.findings.len()), (0, 0));
    let run = answer.run.expect("a run");
    assert!(run.attested);
    assert_eq!((run.tier, run.age_ms), (Tier::TWO, Some(10_000)));
}

#[test]
fn rejects_changed_tree_spec_or_plan() {
    use GateCode::{OtherPlan, OtherSpec, TreeChanged};
    let scenario = GateScenario::new();
    assert_eq!(scenario.clone().with(|w| w.snapshot = snapshot_id("u")).finding_codes(), [TreeChanged]);
    assert_eq!(
        scenario.clone().with(|w| w.plan = resolve_plan(&SPEC.replace("D1", "D2"), &w.operator)).finding_codes(),
        [OtherSpec]
    );
    let stricter = OperatorConfig::parse("[ceiling]\npids = 10\n[defaults.limits]\npids = 10\n").expect("an operator");
    assert_eq!(scenario.with(|w| w.plan = resolve_plan(SPEC, &stricter)).finding_codes(), [OtherPlan]);
}

#[test]
fn rejects_tree_changed_during_the_run() {
    let off = |w: &mut GateScenario| w.plan.skills[0].steps[0].read_only = ReadOnly::Off;
    let changed = GateScenario::new().with(|w| w.run.snapshot_after = Some(snapshot_id("u")));
    for (expected, changed) in [(GateCode::TreeChanged, changed.clone()), (GateCode::ChangedByRun, changed.with(off))] {
        assert!(changed.finding_codes().contains(&expected), "put back");
        assert!(changed.clone().with(|w| w.snapshot = snapshot_id("u")).finding_codes().contains(&expected), "left");
        assert!(
            changed.with(|w| w.snapshot = snapshot_id("v")).finding_codes().contains(&GateCode::TreeChanged),
            "edited since"
        );
    }
    let seen = GateScenario::new().with(|w| w.skills[1].repo_snapshot_before = snapshot_id("u"));
    assert_eq!(seen.finding_codes(), [GateCode::TreeChanged], "by somebody else");
    assert!(seen.with(off).finding_codes().contains(&GateCode::ChangedByRun), "not applied");
    let checked = GateScenario::new().with(|w| w.toolchain.repo_snapshot = snapshot_id("u"));
    assert_eq!(checked.finding_codes(), [GateCode::EvidenceContradicts]);
}

#[test]
fn rejects_failed_inconclusive_and_contradictory_runs() {
    let with = |outcome| GateScenario::new().with(|w| w.run.outcome = outcome);
    let failed =
        with(Verdict::Failed).with(|w| w.skills[0].steps[1].outcome = Outcome::TimedOut).write_documents().evaluate();
    assert_eq!((failed.findings[0].name, failed.exit_code), (GateCode::RunFailed, 1));
    assert!(failed.findings[0].message.contains("`a/y` timed out"), "{failed:?}");
    let inconclusive = with(Verdict::Inconclusive).write_documents().evaluate();
    assert_eq!((inconclusive.findings[0].name, inconclusive.exit_code), (GateCode::RunInconclusive, 5));
    let contradicts: [fn(&mut GateScenario); 5] = [
        |w| w.skills[0].steps[0].outcome = Outcome::Skipped,
        |w| w.skills[1].summary.outcome = Outcome::Inconclusive,
        |w| w.skills[1].steps.clear(),
        |w| w.toolchain.checks[0].satisfied = false,
        |w| w.toolchain.checks.clear(),
    ];
    for change in contradicts {
        assert_eq!(GateScenario::new().with(change).finding_codes(), [GateCode::EvidenceContradicts]);
    }
}

#[test]
fn rejects_tier_above_limit_of_caller_or_operator() {
    let high = [GateCode::TierTooHigh];
    assert_eq!(GateScenario::new().with(|w| w.requirements.max_tier = Tier::ONE).finding_codes(), high);
    assert_eq!(GateScenario::new().with(|w| w.operator.max_tier = Tier::ONE).finding_codes(), high);
    assert_eq!(GateScenario::new().with(|w| w.run.tier = Tier::THREE).finding_codes(), high);
    assert_eq!(GateScenario::new().with(|w| w.skills[0].tier = Tier::THREE).finding_codes(), high);
    assert!(GateScenario::new().with(|w| w.requirements.max_tier = Tier::THREE).finding_codes().is_empty());
}

#[test]
fn rejects_run_without_control_that_operator_requires() {
    let lacks = |control| {
        GateScenario::new().with(move |w| w.skills[0].steps[0].enforcement.record_not_enforced(control, "no"))
    };
    assert!(lacks(Control::Cgroup).finding_codes().is_empty());
    assert_eq!(lacks(Control::Landlock).finding_codes(), [GateCode::ControlMissing]);
    let strict = |w: &mut GateScenario| w.operator.may_miss = [].into_iter().collect();
    assert_eq!(lacks(Control::Cgroup).with(strict).finding_codes(), [GateCode::ControlMissing]);
    let best_effort = lacks(Control::Landlock).with(|w| w.skills[0].sandbox = SandboxMode::BestEffort);
    assert!(best_effort.finding_codes().is_empty());
    assert_eq!(best_effort.with(|w| w.operator.allow_best_effort = false).finding_codes(), [GateCode::ControlMissing]);
}

#[test]
fn rejects_stale_and_future_runs() {
    let at = |now_ms| GateScenario::new().with(move |w| w.now_ms = now_ms);
    assert!(at(ENDED_MS + 60_000).finding_codes().is_empty());
    assert_eq!(at(ENDED_MS + 60_001).finding_codes(), [GateCode::Stale]);
    assert!(at(ENDED_MS + 60_001).with(|w| w.requirements.max_age.run = MaxAge::Unlimited).finding_codes().is_empty());
    assert!(at(ENDED_MS - 5_000).finding_codes().is_empty(), "two clocks");
    let future = at(ENDED_MS - 5_001);
    assert_eq!(
        (future.finding_codes(), future.write_documents().evaluate().exit_code),
        (vec![GateCode::FromTheFuture], 5)
    );
    assert_eq!(at(0).with(|w| w.run.timestamp = "today".into()).finding_codes(), [GateCode::TimeUnreadable]);
}

#[test]
fn rejects_missing_edited_and_extra_evidence() {
    let scenario = GateScenario::new();
    let honest = scenario.write_documents();
    let edited = |change: &dyn Fn(&mut WrittenDocuments<'_>)| {
        let mut laid = honest.clone();
        change(&mut laid);
        laid.finding_codes()
    };
    use GateCode::{EvidenceEdited, EvidenceExtra, EvidenceMissing, RunUnderWay};
    assert_eq!(edited(&|l| drop(l.files.remove("verify/a.json"))), [EvidenceMissing]);
    assert_eq!(edited(&|l| l.files.get_mut("verify/a.json").expect("there").push(b' ')), [EvidenceEdited]);
    assert_eq!(edited(&|l| drop(l.files.insert("verify/c.json".into(), b"{}".to_vec()))), [EvidenceExtra]);
    assert_eq!(edited(&|l| l.run_in_progress = true), [RunUnderWay]);
    let link = |piece: EvidenceFileContent| {
        let mut found = RecordedDocuments {
            status: EvidenceFileContent::Bytes(honest.status.clone()),
            files: BTreeMap::new(),
            run_in_progress: false,
        };
        found.files = honest
            .files
            .iter()
            .map(|(file, bytes)| (file.clone(), EvidenceFileContent::Bytes(bytes.clone())))
            .collect();
        found.files.insert("verify/a.json".into(), piece);
        found
    };
    let facts =
        gate_facts(&scenario, link(EvidenceFileContent::Unreadable("a link".into())), honest.attestation.clone());
    assert_eq!(evaluate(&scenario.requirements, &facts).findings[0].name, GateCode::EvidenceUnreadable);
}

fn gate_facts(scenario: &GateScenario, found: RecordedDocuments, attestation: Option<Vec<u8>>) -> GateFacts<'_> {
    GateFacts {
        now_ms: scenario.now_ms,
        repository: "/r".into(),
        snapshot: scenario.snapshot.clone(),
        ignores: None,
        changed_paths: ChangedPaths { paths: vec!["a".into()], omitted: 2 },
        plan: &scenario.plan,
        operator: &scenario.operator,
        trusted_keys: scenario.trusted_keys.clone(),
        documents: found,
        attestation,
    }
}

#[test]
fn reports_missing_and_unreadable_status() {
    let scenario = GateScenario::new();
    let with = |status| {
        let found = RecordedDocuments { status, files: BTreeMap::new(), run_in_progress: false };
        let answer = evaluate(&scenario.requirements, &gate_facts(&scenario, found, None));
        (answer.findings[0].name, answer.exit_code, answer.run)
    };
    assert_eq!(with(EvidenceFileContent::Absent), (GateCode::NothingRecorded, 2, None));
    assert_eq!(with(EvidenceFileContent::Bytes(b"{\"state\":\"x\"}".to_vec())), (GateCode::NothingRecorded, 2, None));
    assert_eq!(with(EvidenceFileContent::Bytes(b"{".to_vec())), (GateCode::StatusUnreadable, 1, None));
    assert_eq!(with(EvidenceFileContent::Unreadable("a fifo".into())), (GateCode::StatusUnreadable, 1, None));
    let known = |attestation: &[u8]| {
        let found =
            RecordedDocuments { status: EvidenceFileContent::Absent, files: BTreeMap::new(), run_in_progress: false };
        evaluate(&scenario.requirements, &gate_facts(&scenario, found, Some(attestation.to_vec()))).findings[0].name
    };
    let ours = scenario.write_documents().attestation.expect("one");
    assert_eq!([known(&ours), known(b"{}")], [GateCode::EvidenceMissing, GateCode::RecordUnreadable]);
    let newer = b"{\"verification\":{\"last_run\":{\"version\":7}}}";
    assert_eq!(with(EvidenceFileContent::Bytes(newer.to_vec())), (GateCode::VersionUnknown, 5, None));
}

#[test]
fn lists_changed_paths() {
    let scenario = GateScenario::new().with(|w| w.snapshot = snapshot_id("u"));
    let laid = scenario.write_documents();
    let files =
        laid.files.iter().map(|(file, bytes)| (file.clone(), EvidenceFileContent::Bytes(bytes.clone()))).collect();
    let found =
        RecordedDocuments { status: EvidenceFileContent::Bytes(laid.status.clone()), files, run_in_progress: false };
    let answer = evaluate(&scenario.requirements, &gate_facts(&scenario, found, laid.attestation.clone()));
    assert_eq!((answer.findings[0].paths.as_slice(), answer.findings[0].omitted), (&["a".to_owned()][..], 2));
    assert!(answer.findings[0].message.contains("3 paths"), "{answer:?}");
}

#[test]
fn rejects_evidence_of_other_run_changeset_or_profile() {
    use GateCode::{EvidenceForeign, OtherChangeset, OtherProfile};
    let other_run = GateScenario::new().with(|w| w.skills[0].measured.run_id = run_id("r1"));
    assert_eq!(other_run.finding_codes(), [EvidenceForeign]);
    let copied = GateScenario::new().with(|w| w.skills.iter_mut().for_each(|s| s.changeset_id = None));
    assert_eq!(copied.finding_codes(), [OtherChangeset, OtherChangeset]);
    let mut other = GateScenario::new();
    other.run.profile = profile("nightly");
    other.skills.iter_mut().for_each(|skill| skill.profile = profile("nightly"));
    other.toolchain.profile = profile("nightly");
    assert_eq!(other.finding_codes(), [OtherProfile]);
}

#[test]
fn rejects_run_without_planned_evidence() {
    let fewer = GateScenario::new().with(|w| drop(w.skills.pop()));
    assert_eq!(fewer.finding_codes(), [GateCode::EvidenceMissing]);
    let emptied = GateScenario::new();
    let mut laid = emptied.write_documents();
    laid.write_run(&LastRun { evidence: BTreeMap::new(), ..laid.last_run() });
    laid.files.clear();
    assert_eq!(laid.finding_codes(), [GateCode::CitesNothing]);
    let withdrawn = LastRun { outcome: Verdict::Inconclusive, evidence: BTreeMap::new(), ..laid.last_run() };
    laid.write_status(&withdrawn);
    assert_eq!((laid.finding_codes(), laid.evaluate().exit_code), (vec![GateCode::CitesNothing], 5));
}

#[test]
fn accepts_intact_older_evidence_of_another_profile() {
    let scenario = GateScenario::new();
    let mut laid = scenario.write_documents();
    let left = |id: &str, changeset_id: Option<ChangesetId>| {
        let mut skill = scenario.skills[0].clone();
        (skill.skill, skill.changeset_id) = (crate::model::names::SkillName::new("old").expect("a name"), changeset_id);
        skill.measured.run_id = run_id(id);
        to_bytes(&seal(skill))
    };
    for (bytes, expected) in [
        (left("r1", Some(changeset())), vec![]),
        (left("r2", Some(changeset())), vec![GateCode::EvidenceExtra]),
        (left("r3", Some(changeset())), vec![GateCode::EvidenceExtra]),
        (left("r1", None), vec![GateCode::EvidenceExtra]),
    ] {
        laid.files.insert("verify/old.json".into(), bytes);
        assert_eq!(laid.finding_codes(), expected);
    }
}

#[test]
fn rejects_wrong_document_version_or_seal() {
    let scenario = GateScenario::new();
    let forged = |from: &str, to: &str| {
        let mut laid = scenario.write_documents();
        let text = String::from_utf8(laid.files["verify/a.json"].clone()).expect("UTF-8");
        assert!(text.contains(from), "{text}");
        let text = text.replace(from, to);
        let mut run = laid.last_run();
        run.evidence.insert("verify/a.json".into(), Sha256Hex::digest(text.as_bytes()));
        laid.files.insert("verify/a.json".into(), text.into_bytes());
        laid.write_run(&run);
        laid.finding_codes()
    };
    assert_eq!(forged("\"version\":1", "\"version\":2"), [GateCode::VersionUnknown]);
    assert_eq!(forged("\"exit_code\":0,", "\"exit_code\":9,"), [GateCode::EvidenceSealBroken]);
    assert_eq!(forged("\"exit_code\":0,", ""), [GateCode::EvidenceUnreadable]);
    assert_eq!(forged("{\"cached_from\"", "{ \"cached_from\""), [GateCode::EvidenceUnreadable]);
    let mut swapped = scenario.write_documents();
    let (mut run, other) = (swapped.last_run(), swapped.files["verify/b.json"].clone());
    run.evidence.insert("verify/a.json".into(), Sha256Hex::digest(&other));
    swapped.files.insert("verify/a.json".into(), other);
    swapped.write_run(&run);
    assert_eq!(swapped.finding_codes(), [GateCode::EvidenceUnreadable]);
}

#[test]
fn limits_number_of_findings() {
    let scenario = GateScenario::new();
    let mut laid = scenario.write_documents();
    for number in 0..60 {
        laid.files.insert(format!("verify/x{number}.json"), Vec::new());
    }
    let answer = laid.evaluate();
    assert_eq!((answer.findings.len(), answer.omitted, answer.pass), (MAX_FINDINGS, 10, false));
}
