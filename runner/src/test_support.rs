//! Provides values for the tests of this crate.

use std::collections::BTreeMap;

use proctor_core::decision::verdict::Verdict;
use proctor_core::model::names::{ProfileName, RunId, SkillName, StepName};
use proctor_core::model::plan::{
    Argv, Determinism, Ignored, Inputs, Leaks, Limits, Network, Plan, PlannedSkill, PlannedStep, ReadOnly, RelPath,
    SkillOrder,
};
use proctor_core::model::tier::Tier;
use proctor_core::record::evidence::{EvidenceIndex, TreeSource};
use proctor_core::record::status::{self, LastRun};
use proctor_core::text::digest::{Sha256Hex, SnapshotId};

/// Returns a step with minimal settings.
pub(crate) fn step(name: &str, argv: &[&str]) -> PlannedStep {
    PlannedStep {
        name: StepName::new(name).expect("a name"),
        cmd: Argv::new(argv.iter().map(|word| (*word).to_owned()).collect()).expect("a command"),
        sql: None,
        workdir: RelPath::new(".").expect("a path"),
        timeout_ms: 1000,
        grace_ms: 100,
        network: Network::Deny,
        read_only: ReadOnly::Tracked,
        env_allowlist: vec![],
        env: BTreeMap::new(),
        limits: Limits::UNLIMITED,
        retries: 0,
        leaks: Leaks::Warn,
        expect_exit: vec![0],
        files: None,
        fix: None,
        fixes: None,
        inputs: Inputs::Tree,
        reports: vec![],
    }
}

/// Returns a plan of skills with one step each, by name and needs; it is a graph if any skill needs another.
pub(crate) fn plan(skills: &[(&str, &[&str])]) -> Plan {
    let name = |text: &str| SkillName::new(text).expect("a name");
    let planned = |(skill, needs): &(&str, &[&str])| PlannedSkill {
        name: name(skill),
        description: String::new(),
        determinism: Determinism::D0,
        declared_tier: Tier::ONE,
        needs: needs.iter().map(|need| name(need)).collect(),
        caches: vec![],
        transparent_caches: Vec::new(),
        needs_paths: vec![],
        toolchains: Default::default(),
        platform: BTreeMap::new(),
        container: String::new(),
        steps: vec![step("s", &["true"])],
    };
    let graph = skills.iter().any(|(_, needs)| !needs.is_empty());
    Plan {
        version: 1,
        profile: ProfileName::new("pr").expect("a name"),
        spec_sha256: Sha256Hex::digest(b"spec"),
        spec_dir: RelPath::repository(),
        order: if graph { SkillOrder::Graph { parallel: 2 } } else { SkillOrder::Sequence },
        ignored: Ignored::Worktree,
        toolchain: vec![],
        skills: skills.iter().map(planned).collect(),
        left_out: vec![],
        scope: None,
    }
}

/// Returns a run that passed and cites no evidence.
pub(crate) fn last_run() -> LastRun {
    LastRun {
        version: status::VERSION,
        profile: ProfileName::new("pr").expect("a name"),
        outcome: Verdict::Passed,
        timestamp: "2026-01-02T03:04:05.678Z".into(),
        run_id: RunId::new("r1").expect("an id"),
        tier: Tier::ONE,
        snapshot: SnapshotId::from_root(&Sha256Hex::digest(b"tree")),
        snapshot_after: None,
        source: TreeSource::default(),
        spec_sha256: Sha256Hex::digest(b"spec"),
        evidence: EvidenceIndex::new(),
        external_ignores: None,
        unverified_inputs: None,
        rerun: None,
        scope: None,
        reuse: None,
    }
}

/// Returns the evidence of a step that passed.
pub(crate) fn step_evidence(name: &str) -> proctor_core::record::evidence::StepEvidence {
    let redactor = proctor_core::text::redact::Redactor::default();
    let termination = proctor_core::model::outcome::Termination::Exited { code: 0 };
    crate::run::evidence_builder::not_run_evidence(&redactor, &step(name, &["true"]), termination)
}
