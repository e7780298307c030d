//! A passed run without findings, and each change to it that causes one.

mod bits;
mod caches;
mod ignores;
mod inputs;
mod partial;

use std::collections::{BTreeMap, BTreeSet};

use super::*;
use crate::drift::{DriftMethod, StepDrift};
use crate::enforcement::{Control, Enforcement, SandboxMode};
use crate::evidence::{self, *};
use crate::outcome::{Outcome, Termination};
use crate::plan::{Determinism, PlannedStep, ReadOnly};

const SPEC: &str = "version: 1\ntoolchains: { sh: { required: [ { cmd: [sh, --version] } ] } }\n\
    profiles: { pr: { include: [a, b] } }\nskills:\n\
    \x20 a: { description: d, determinism: D0, tier: 1, steps: [ { name: x, cmd: [true] }, { name: y, cmd: [true] } ] }\n\
    \x20 b: { description: d, determinism: D1, tier: 2, steps: [ { name: z, cmd: [true] } ] }\n";
/// 2026-01-02T03:04:05.678Z
const ENDED_MS: u64 = 1_767_323_045_678;

/// The record of a run, and the current state of the repository.
#[derive(Clone)]
struct World {
    plan: Plan,
    operator: Operator,
    demands: Demands,
    skills: Vec<SkillEvidence>,
    toolchain: ToolchainEvidence,
    /// The status of the run; [`World::laid_out`] fills in the evidence that it cites.
    run: LastRun,
    snapshot: SnapshotId,
    /// The ignore rules outside of the tree.
    ignores: Option<BTreeMap<String, IgnoreFile>>,
    now_ms: u64,
}

fn tree(text: &str) -> SnapshotId {
    SnapshotId::from_root(&Sha256Hex::of(text.as_bytes()))
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

fn plan_of(text: &str, operator: &Operator) -> Plan {
    let spec = spec::read(text.as_bytes()).expect("a spec").spec;
    let sha256 = Sha256Hex::of(text.as_bytes());
    spec::resolve(&spec, &profile("pr"), operator, sha256, 2).expect("resolves").plan
}

fn step(planned: &PlannedStep) -> StepEvidence {
    let mut enforcement = Enforcement::default();
    enforcement.enforced(Control::Layer, "overlay");
    StepEvidence {
        planned: planned.clone(),
        outcome: Outcome::Passed,
        termination: Termination::Exited { code: 0 },
        exit_code: Some(0),
        duration_ms: 3,
        stdout: StreamEvidence::empty(),
        stderr: StreamEvidence::empty(),
        enforcement,
        drift: DriftEvidence { method: Some(DriftMethod::Layer), found: StepDrift::default(), applied: vec![] },
        flaky: false,
        earlier_attempts: vec![],
        found_reports: Vec::new(),
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

impl World {
    /// Returns a world in which the gate passes.
    fn new() -> Self {
        let operator = Operator::default();
        let plan = plan_of(SPEC, &operator);
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
            repo_snapshot_before: tree("t"),
            repo_snapshot_after: tree("t"),
            repo_git: git(),
            source: Default::default(),
            tracked_drift: TrackedDrift { mode: ReadOnly::Tracked, changed_files: vec![] },
            spec_sha256: plan.spec_sha256.clone(),
            plan_sha256: plan.digest(),
            left_out: Vec::new(),
            flaky: false,
            cached_from: None,
            steps: skill.steps.iter().map(step).collect(),
            summary: summary(),
            measured: measured(),
            sha256: Sha256Hex::of(b""),
        });
        let skills = skills.collect();
        let checks = plan.toolchain.iter().map(|check| CheckEvidence {
            toolchain: check.toolchain.clone(),
            demand: check.version.clone(),
            version_read: None,
            satisfied: true,
            step: step(&check.run),
        });
        let toolchain = ToolchainEvidence {
            version: evidence::VERSION,
            changeset_id: Some(changeset()),
            profile: plan.profile.clone(),
            sandbox: SandboxMode::Strict,
            spec_sha256: plan.spec_sha256.clone(),
            plan_sha256: plan.digest(),
            left_out: Vec::new(),
            repo_snapshot: tree("t"),
            repo_git: git(),
            source: Default::default(),
            checks: checks.collect(),
            summary: summary(),
            measured: measured(),
            sha256: Sha256Hex::of(b""),
        };
        let run = LastRun {
            version: status::VERSION,
            profile: plan.profile.clone(),
            outcome: Verdict::Passed,
            timestamp: "2026-01-02T03:04:05.678Z".into(),
            run_id: run_id("r2"),
            tier: Tier::TWO,
            snapshot: tree("t"),
            snapshot_after: Some(tree("t")),
            source: Default::default(),
            spec_sha256: plan.spec_sha256.clone(),
            evidence: BTreeMap::new(),
            external_ignores: Some(BTreeMap::new()),
            unverified_inputs: None,
            rerun: None,
        };
        let demands = Demands {
            profile: profile("pr"),
            changeset: Some(changeset()),
            max_tier: Tier::TWO,
            max_age: MaxAge::Within(Duration::from_secs(60)),
            unattested: Unattested::Refuse,
            max_cache_trust: CacheTrust::Default,
            inputs: RequiredInputs::Any,
        };
        let now_ms = ENDED_MS + 10_000;
        Self {
            plan,
            operator,
            demands,
            skills,
            toolchain,
            run,
            snapshot: tree("t"),
            ignores: Some(BTreeMap::new()),
            now_ms,
        }
    }

    /// Applies a change to the record, as an honest run would have written it.
    fn with(mut self, change: impl FnOnce(&mut Self)) -> Self {
        change(&mut self);
        self
    }

    /// Returns the documents as an honest run writes them.
    fn laid_out(&self) -> Laid<'_> {
        let skills = self.skills.iter().map(|skill| (skill.skill.artifact(), to_bytes(&seal(skill.clone()))));
        let toolchain = ("_toolchain.json".to_owned(), to_bytes(&seal(self.toolchain.clone())));
        let files: BTreeMap<String, Vec<u8>> =
            skills.chain([toolchain]).map(|(name, bytes)| (format!("verify/{name}"), bytes)).collect();
        let mut run = self.run.clone();
        run.evidence = files.iter().map(|(file, bytes)| (file.clone(), Sha256Hex::of(bytes))).collect();
        let mut laid = Laid { world: self, status: Vec::new(), files, attestation: None, writer: false };
        laid.record(&run);
        laid
    }

    fn subject(&self) -> Subject {
        let changeset_id = self.demands.changeset.clone();
        Subject { repository: "/r".into(), changeset_id, profile: self.run.profile.clone() }
    }

    /// Returns the codes of the findings for an honest record of this world.
    fn codes(&self) -> Vec<GateCode> {
        self.laid_out().codes()
    }
}

/// The documents on disk.
#[derive(Clone)]
struct Laid<'w> {
    world: &'w World,
    status: Vec<u8>,
    files: BTreeMap<String, Vec<u8>>,
    attestation: Option<Vec<u8>>,
    writer: bool,
}

impl Laid<'_> {
    /// Writes the status file and our own record of `run`.
    fn record(&mut self, run: &LastRun) {
        self.state(run);
        self.attestation = Some(Attestation::new(self.world.subject(), run.clone()).to_bytes());
    }

    /// Writes only the status file, as a forger would.
    fn state(&mut self, run: &LastRun) {
        self.status = status::update(Some(b"{}"), run).expect("updates");
    }

    fn run(&self) -> LastRun {
        status::last_run(&self.status).expect("reads").expect("one")
    }

    fn answer(&self) -> GateAnswer {
        let World { plan, operator, demands, snapshot, ignores, now_ms, .. } = self.world;
        let files = self.files.iter().map(|(file, bytes)| (file.clone(), Piece::Bytes(bytes.clone())));
        let found = Found { status: Piece::Bytes(self.status.clone()), files: files.collect(), writer: self.writer };
        self.decide(
            demands,
            &Facts {
                now_ms: *now_ms,
                repository: "/r".into(),
                snapshot: snapshot.clone(),
                ignores: ignores.clone(),
                changed: ChangedPaths::default(),
                plan,
                operator,
                found,
                attestation: self.attestation.clone(),
            },
        )
    }

    fn decide(&self, demands: &Demands, facts: &Facts<'_>) -> GateAnswer {
        let answer = answer(demands, facts);
        assert_eq!(answer.pass, answer.exit_code == 0);
        assert_eq!(answer.pass, answer.findings.iter().all(|finding| finding.accepted));
        for finding in &answer.findings {
            assert!(!finding.message.is_empty() && !finding.hint.is_empty(), "{finding:?}");
        }
        answer
    }

    fn codes(&self) -> Vec<GateCode> {
        self.answer().findings.iter().map(|finding| finding.name).collect()
    }
}

#[test]
fn a_run_that_fits_in_every_respect_passes() {
    let answer = World::new().laid_out().answer();
    assert!(answer.pass, "{answer:#?}");
    assert_eq!((answer.exit_code, answer.findings.len()), (0, 0));
    let run = answer.run.expect("a run");
    assert!(run.attested);
    assert_eq!((run.tier, run.age_ms), (Tier::TWO, Some(10_000)));
}

#[test]
fn what_stands_today_must_be_what_was_verified() {
    use GateCode::{OtherPlan, OtherSpec, TreeChanged};
    let world = World::new();
    assert_eq!(world.clone().with(|w| w.snapshot = tree("u")).codes(), [TreeChanged]);
    assert_eq!(world.clone().with(|w| w.plan = plan_of(&SPEC.replace("D1", "D2"), &w.operator)).codes(), [OtherSpec]);
    let stricter = Operator::parse("[ceiling]\npids = 10\n[defaults.limits]\npids = 10\n").expect("an operator");
    assert_eq!(world.with(|w| w.plan = plan_of(SPEC, &stricter)).codes(), [OtherPlan]);
}

#[test]
fn a_tree_that_the_run_itself_changed_is_not_verified() {
    let off = |w: &mut World| w.plan.skills[0].steps[0].read_only = ReadOnly::Off;
    let changed = World::new().with(|w| w.run.snapshot_after = Some(tree("u")));
    for (expected, changed) in [(GateCode::TreeChanged, changed.clone()), (GateCode::ChangedByRun, changed.with(off))] {
        assert!(changed.codes().contains(&expected), "put back");
        assert!(changed.clone().with(|w| w.snapshot = tree("u")).codes().contains(&expected), "left");
        assert!(changed.with(|w| w.snapshot = tree("v")).codes().contains(&GateCode::TreeChanged), "edited since");
    }
    let seen = World::new().with(|w| w.skills[1].repo_snapshot_before = tree("u"));
    assert_eq!(seen.codes(), [GateCode::TreeChanged], "by somebody else");
    assert!(seen.with(off).codes().contains(&GateCode::ChangedByRun), "not applied");
    let checked = World::new().with(|w| w.toolchain.repo_snapshot = tree("u"));
    assert_eq!(checked.codes(), [GateCode::EvidenceContradicts]);
}

#[test]
fn only_a_pass_passes() {
    let with = |outcome| World::new().with(|w| w.run.outcome = outcome);
    let failed = with(Verdict::Failed).with(|w| w.skills[0].steps[1].outcome = Outcome::TimedOut).laid_out().answer();
    assert_eq!((failed.findings[0].name, failed.exit_code), (GateCode::RunFailed, 1));
    assert!(failed.findings[0].message.contains("`a/y` timed out"), "{failed:?}");
    let inconclusive = with(Verdict::Inconclusive).laid_out().answer();
    assert_eq!((inconclusive.findings[0].name, inconclusive.exit_code), (GateCode::RunInconclusive, 5));
    let contradicts: [fn(&mut World); 5] = [
        |w| w.skills[0].steps[0].outcome = Outcome::Skipped,
        |w| w.skills[1].summary.outcome = Outcome::Inconclusive,
        |w| w.skills[1].steps.clear(),
        |w| w.toolchain.checks[0].satisfied = false,
        |w| w.toolchain.checks.clear(),
    ];
    for change in contradicts {
        assert_eq!(World::new().with(change).codes(), [GateCode::EvidenceContradicts]);
    }
}

#[test]
fn the_highest_tier_counts_and_the_operator_stands_above_the_caller() {
    let high = [GateCode::TierTooHigh];
    assert_eq!(World::new().with(|w| w.demands.max_tier = Tier::ONE).codes(), high);
    assert_eq!(World::new().with(|w| w.operator.max_tier = Tier::ONE).codes(), high);
    assert_eq!(World::new().with(|w| w.run.tier = Tier::THREE).codes(), high);
    assert_eq!(World::new().with(|w| w.skills[0].tier = Tier::THREE).codes(), high);
    assert!(World::new().with(|w| w.demands.max_tier = Tier::THREE).codes().is_empty());
}

#[test]
fn what_the_operator_demands_today_must_have_held_then() {
    let lacks = |control| World::new().with(move |w| w.skills[0].steps[0].enforcement.not_enforced(control, "no"));
    assert!(lacks(Control::Cgroup).codes().is_empty());
    assert_eq!(lacks(Control::Landlock).codes(), [GateCode::ControlMissing]);
    let strict = |w: &mut World| w.operator.may_miss = [].into_iter().collect();
    assert_eq!(lacks(Control::Cgroup).with(strict).codes(), [GateCode::ControlMissing]);
    let best_effort = lacks(Control::Landlock).with(|w| w.skills[0].sandbox = SandboxMode::BestEffort);
    assert!(best_effort.codes().is_empty());
    assert_eq!(best_effort.with(|w| w.operator.allow_best_effort = false).codes(), [GateCode::ControlMissing]);
}

#[test]
fn a_run_has_its_time() {
    let at = |now_ms| World::new().with(move |w| w.now_ms = now_ms);
    assert!(at(ENDED_MS + 60_000).codes().is_empty());
    assert_eq!(at(ENDED_MS + 60_001).codes(), [GateCode::Stale]);
    assert!(at(ENDED_MS + 60_001).with(|w| w.demands.max_age = MaxAge::Unlimited).codes().is_empty());
    assert!(at(ENDED_MS - 5_000).codes().is_empty(), "two clocks");
    let future = at(ENDED_MS - 5_001);
    assert_eq!((future.codes(), future.laid_out().answer().exit_code), (vec![GateCode::FromTheFuture], 5));
    assert_eq!(at(0).with(|w| w.run.timestamp = "today".into()).codes(), [GateCode::TimeUnreadable]);
}

#[test]
fn the_evidence_must_be_there_whole_and_of_this_run() {
    let world = World::new();
    let honest = world.laid_out();
    let edited = |change: &dyn Fn(&mut Laid<'_>)| {
        let mut laid = honest.clone();
        change(&mut laid);
        laid.codes()
    };
    use GateCode::{EvidenceEdited, EvidenceExtra, EvidenceMissing, RunUnderWay};
    assert_eq!(edited(&|l| drop(l.files.remove("verify/a.json"))), [EvidenceMissing]);
    assert_eq!(edited(&|l| l.files.get_mut("verify/a.json").expect("there").push(b' ')), [EvidenceEdited]);
    assert_eq!(edited(&|l| drop(l.files.insert("verify/c.json".into(), b"{}".to_vec()))), [EvidenceExtra]);
    assert_eq!(edited(&|l| l.writer = true), [RunUnderWay]);
    let link = |piece: Piece| {
        let mut found = Found { status: Piece::Bytes(honest.status.clone()), files: BTreeMap::new(), writer: false };
        found.files = honest.files.iter().map(|(file, bytes)| (file.clone(), Piece::Bytes(bytes.clone()))).collect();
        found.files.insert("verify/a.json".into(), piece);
        found
    };
    let facts = facts_with(&world, link(Piece::Unreadable("a link".into())), honest.attestation.clone());
    assert_eq!(answer(&world.demands, &facts).findings[0].name, GateCode::EvidenceUnreadable);
}

fn facts_with(world: &World, found: Found, attestation: Option<Vec<u8>>) -> Facts<'_> {
    Facts {
        now_ms: world.now_ms,
        repository: "/r".into(),
        snapshot: world.snapshot.clone(),
        ignores: None,
        changed: ChangedPaths { paths: vec!["a".into()], omitted: 2 },
        plan: &world.plan,
        operator: &world.operator,
        found,
        attestation,
    }
}

#[test]
fn nothing_on_record_is_said_and_no_pass() {
    let world = World::new();
    let with = |status| {
        let found = Found { status, files: BTreeMap::new(), writer: false };
        let answer = answer(&world.demands, &facts_with(&world, found, None));
        (answer.findings[0].name, answer.exit_code, answer.run)
    };
    assert_eq!(with(Piece::Absent), (GateCode::NothingRecorded, 2, None));
    assert_eq!(with(Piece::Bytes(b"{\"state\":\"x\"}".to_vec())), (GateCode::NothingRecorded, 2, None));
    assert_eq!(with(Piece::Bytes(b"{".to_vec())), (GateCode::StatusUnreadable, 1, None));
    assert_eq!(with(Piece::Unreadable("a fifo".into())), (GateCode::StatusUnreadable, 1, None));
    let known = |attestation: &[u8]| {
        let found = Found { status: Piece::Absent, files: BTreeMap::new(), writer: false };
        answer(&world.demands, &facts_with(&world, found, Some(attestation.to_vec()))).findings[0].name
    };
    let ours = world.laid_out().attestation.expect("one");
    assert_eq!([known(&ours), known(b"{}")], [GateCode::EvidenceMissing, GateCode::RecordUnreadable]);
    let newer = b"{\"verification\":{\"last_run\":{\"version\":7}}}";
    assert_eq!(with(Piece::Bytes(newer.to_vec())), (GateCode::VersionUnknown, 5, None));
}

#[test]
fn changed_paths_are_named() {
    let world = World::new().with(|w| w.snapshot = tree("u"));
    let laid = world.laid_out();
    let files = laid.files.iter().map(|(file, bytes)| (file.clone(), Piece::Bytes(bytes.clone()))).collect();
    let found = Found { status: Piece::Bytes(laid.status.clone()), files, writer: false };
    let answer = answer(&world.demands, &facts_with(&world, found, laid.attestation.clone()));
    assert_eq!((answer.findings[0].paths.as_slice(), answer.findings[0].omitted), (&["a".to_owned()][..], 2));
    assert!(answer.findings[0].message.contains("3 paths"), "{answer:?}");
}

#[test]
fn evidence_of_others_is_none() {
    use GateCode::{EvidenceForeign, OtherChangeset, OtherProfile};
    let other_run = World::new().with(|w| w.skills[0].measured.run_id = run_id("r1"));
    assert_eq!(other_run.codes(), [EvidenceForeign]);
    let copied = World::new().with(|w| w.skills.iter_mut().for_each(|s| s.changeset_id = None));
    assert_eq!(copied.codes(), [OtherChangeset, OtherChangeset]);
    let mut other = World::new();
    other.run.profile = profile("nightly");
    other.skills.iter_mut().for_each(|skill| skill.profile = profile("nightly"));
    other.toolchain.profile = profile("nightly");
    assert_eq!(other.codes(), [OtherProfile]);
}

#[test]
fn what_the_plan_wants_must_be_cited() {
    let fewer = World::new().with(|w| drop(w.skills.pop()));
    assert_eq!(fewer.codes(), [GateCode::EvidenceMissing]);
    let emptied = World::new();
    let mut laid = emptied.laid_out();
    laid.record(&LastRun { evidence: BTreeMap::new(), ..laid.run() });
    laid.files.clear();
    assert_eq!(laid.codes(), [GateCode::CitesNothing]);
    let withdrawn = LastRun { outcome: Verdict::Inconclusive, evidence: BTreeMap::new(), ..laid.run() };
    laid.state(&withdrawn);
    assert_eq!((laid.codes(), laid.answer().exit_code), (vec![GateCode::CitesNothing], 5));
}

#[test]
fn what_another_profile_left_is_no_finding_while_it_is_intact_and_older() {
    let world = World::new();
    let mut laid = world.laid_out();
    let left = |id: &str, changeset_id: Option<ChangesetId>| {
        let mut skill = world.skills[0].clone();
        (skill.skill, skill.changeset_id) = (crate::names::SkillName::new("old").expect("a name"), changeset_id);
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
        assert_eq!(laid.codes(), expected);
    }
}

#[test]
fn a_document_says_its_own_version_and_hash() {
    let world = World::new();
    let forged = |from: &str, to: &str| {
        let mut laid = world.laid_out();
        let text = String::from_utf8(laid.files["verify/a.json"].clone()).expect("UTF-8");
        assert!(text.contains(from), "{text}");
        let text = text.replace(from, to);
        let mut run = laid.run();
        run.evidence.insert("verify/a.json".into(), Sha256Hex::of(text.as_bytes()));
        laid.files.insert("verify/a.json".into(), text.into_bytes());
        laid.record(&run);
        laid.codes()
    };
    assert_eq!(forged("\"version\":1", "\"version\":2"), [GateCode::VersionUnknown]);
    assert_eq!(forged("\"exit_code\":0,", "\"exit_code\":9,"), [GateCode::EvidenceSealBroken]);
    assert_eq!(forged("\"exit_code\":0,", ""), [GateCode::EvidenceUnreadable]);
    assert_eq!(forged("{\"cached_from\"", "{ \"cached_from\""), [GateCode::EvidenceUnreadable]);
    let mut swapped = world.laid_out();
    let (mut run, other) = (swapped.run(), swapped.files["verify/b.json"].clone());
    run.evidence.insert("verify/a.json".into(), Sha256Hex::of(&other));
    swapped.files.insert("verify/a.json".into(), other);
    swapped.record(&run);
    assert_eq!(swapped.codes(), [GateCode::EvidenceUnreadable]);
}

#[test]
fn a_forger_who_fixes_every_hash_is_found_by_our_own_record() {
    let failed = World::new().with(|w| w.run.outcome = Verdict::Failed);
    let truth = failed.laid_out();
    let passed = World::new();
    let mut forged = passed.laid_out();
    forged.attestation.clone_from(&truth.attestation);
    assert_eq!(forged.codes(), [GateCode::RecordDiffers]);
    let older = LastRun { run_id: run_id("r3"), ..truth.run() };
    forged.attestation = Some(Attestation::new(failed.subject(), older).to_bytes());
    assert_eq!(forged.codes(), [GateCode::Superseded]);
    let elsewhere = Subject { repository: "/s".into(), ..failed.subject() };
    forged.attestation = Some(Attestation::new(elsewhere, forged.run()).to_bytes());
    assert_eq!(forged.codes(), [GateCode::RecordUnreadable]);
    forged.attestation = Some(b"{}".to_vec());
    assert_eq!(forged.codes(), [GateCode::RecordUnreadable]);
}

#[test]
fn a_run_that_we_do_not_know_passes_only_where_the_caller_vouches_for_it() {
    let mut world = World::new();
    let unknown = |world: &World| {
        let mut laid = world.laid_out();
        laid.attestation = None;
        laid.answer()
    };
    let refused = unknown(&world);
    assert_eq!((refused.findings[0].name, refused.exit_code), (GateCode::Unattested, 1));
    world.demands.unattested = Unattested::Accept;
    let accepted = unknown(&world);
    assert!(accepted.pass && accepted.findings[0].accepted && !accepted.run.expect("one").attested);
    world.demands.max_tier = Tier::ONE;
    assert_eq!(unknown(&world).exit_code, 1, "nothing else is accepted with it");
}

#[test]
fn findings_are_bounded() {
    let world = World::new();
    let mut laid = world.laid_out();
    for number in 0..60 {
        laid.files.insert(format!("verify/x{number}.json"), Vec::new());
    }
    let answer = laid.answer();
    assert_eq!((answer.findings.len(), answer.omitted, answer.pass), (MAX_FINDINGS, 10, false));
}
