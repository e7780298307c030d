//! Compares the evidence that a run cites with its status file, with the current plan, and with the other files in
//! `verify/`.

use std::cmp::Ordering;

use serde::de::DeserializeOwned;

use super::finding::Findings;
use super::{ChangedPaths, Demands, Facts, Piece, RequiredInputs};
use crate::digest::{Sha256Hex, SnapshotId};
use crate::enforcement::SandboxMode;
use crate::evidence::{self, Document, SkillEvidence, StepEvidence, ToolchainEvidence, TreeSource, VERSION, step_path};
use crate::names::{ChangesetId, ProfileName, RunId, SkillName, TOOLCHAIN_ARTIFACT};
use crate::outcome::Outcome;
use crate::plan::{Plan, PlannedSkill};
use crate::status::LastRun;
use crate::strict;
use crate::tier::Tier;
use crate::verdict::Verdict;

/// The directory of the evidence, relative to the status file's directory.
const VERIFY: &str = "verify/";

/// The inputs of the comparison.
pub(super) struct Documents<'a> {
    pub(super) run: &'a LastRun,
    pub(super) demands: &'a Demands,
    pub(super) facts: &'a Facts<'a>,
}

/// A parsed evidence document.
enum Evidence {
    Skill(Box<SkillEvidence>),
    Toolchain(Box<ToolchainEvidence>),
}

/// The fields that both kinds of documents have.
struct Common<'a> {
    run_id: &'a RunId,
    changeset_id: &'a Option<ChangesetId>,
    profile: &'a ProfileName,
    spec_sha256: &'a Sha256Hex,
    plan_sha256: &'a Sha256Hex,
    sandbox: SandboxMode,
    source: &'a TreeSource,
    outcome: Outcome,
    steps: Vec<&'a StepEvidence>,
}

/// The reason why a document is not usable.
enum Unusable {
    Malformed(String),
    Version(String),
    SealBroken,
}

/// Checks every cited document, every document that the plan requires, and every other file.
pub(super) fn judge(documents: &Documents<'_>, findings: &mut Findings) {
    let cited = documents.cited(findings);
    documents.judge_outcome(&cited, findings);
    documents.judge_tier(&cited, findings);
    documents.judge_caches(&cited, findings);
    documents.judge_inputs(&cited, findings);
    for (file, evidence) in &cited {
        documents.judge_origin(file, &evidence.common(), findings);
    }
    documents.judge_trees(&cited, findings);
    documents.judge_plan(&cited, findings);
    documents.judge_leftovers(findings);
}

impl Documents<'_> {
    /// Returns the intact documents among those that the status file cites, and adds a finding for each of the
    /// others.
    fn cited(&self, findings: &mut Findings) -> Vec<(String, Evidence)> {
        let mut cited = Vec::new();
        for (file, sha256) in &self.run.evidence {
            match self.facts.found.files.get(file).unwrap_or(&Piece::Absent) {
                Piece::Absent => findings.evidence_missing(file, ""),
                Piece::Unreadable(why) => findings.evidence_unreadable(file, why),
                Piece::Bytes(bytes) if Sha256Hex::of(bytes) != *sha256 => findings.evidence_edited(file),
                Piece::Bytes(bytes) => match Evidence::read(file, bytes) {
                    Ok(evidence) => cited.push((file.clone(), evidence)),
                    Err(Unusable::Malformed(why)) => findings.evidence_unreadable(file, &why),
                    Err(Unusable::Version(version)) => findings.version_unknown(file, &version),
                    Err(Unusable::SealBroken) => findings.seal_broken(file),
                },
            }
        }
        cited
    }

    /// Checks the outcome of the run: a pass in the status file must be a pass in each document. For a failure, the
    /// finding names the steps that did not pass.
    fn judge_outcome(&self, cited: &[(String, Evidence)], findings: &mut Findings) {
        if self.run.outcome == Verdict::Failed {
            let failed: Vec<String> = cited.iter().flat_map(|(_, evidence)| evidence.unpassed()).collect();
            return findings.run_failed(&self.run.run_id, &failed);
        }
        if self.run.outcome != Verdict::Passed {
            return;
        }
        for (file, evidence) in cited {
            let common = evidence.common();
            let steps_passed = common.steps.iter().all(|step| step.outcome == Outcome::Passed);
            if common.outcome != Outcome::Passed || !steps_passed {
                findings.contradicts(file, "not all of it passed");
            }
        }
    }

    /// Checks the highest tier in the status file and the documents against the accepted tier.
    fn judge_tier(&self, cited: &[(String, Evidence)], findings: &mut Findings) {
        let most = self.demands.max_tier.min(self.facts.operator.max_tier);
        let tier = cited.iter().map(|(_, evidence)| evidence.tier()).fold(self.run.tier, Tier::max);
        if tier > most {
            findings.tier_too_high(tier, most);
        }
    }

    /// Checks the trust of the caches: a step can use cache contents as if they were its own results.
    fn judge_caches(&self, cited: &[(String, Evidence)], findings: &mut Findings) {
        let most = self.demands.max_cache_trust;
        for (file, evidence) in cited {
            let Evidence::Skill(skill) = evidence else { continue };
            for cache in skill.measured.caches.iter().filter(|cache| cache.trust > most) {
                findings.cache_too_wide(file, cache, most);
            }
        }
    }

    /// Checks the inputs: a step can use every file that it sees, whether or not the snapshot covers it.
    fn judge_inputs(&self, cited: &[(String, Evidence)], findings: &mut Findings) {
        if self.demands.inputs == RequiredInputs::Any {
            return;
        }
        let sources = cited.iter().map(|(_, evidence)| evidence.common().source).chain([&self.run.source]);
        if sources.into_iter().any(|source| *source == TreeSource::SHARED) {
            return findings.worktree_shared(&self.run.run_id);
        }
        if let Some(inputs) = &self.run.unverified_inputs {
            findings.inputs_unverified(&self.run.run_id, inputs);
        }
    }

    fn judge_origin(&self, file: &str, common: &Common<'_>, findings: &mut Findings) {
        let run = self.run;
        if *common.run_id != run.run_id {
            return findings.foreign(file, common.run_id);
        }
        if *common.changeset_id != self.demands.changeset {
            findings.other_changeset(file);
        }
        if *common.profile != run.profile {
            findings.contradicts(file, "it is of another profile");
        }
        if *common.spec_sha256 != run.spec_sha256 {
            findings.contradicts(file, "it is of another spec");
        }
        self.judge_controls(file, common, findings);
    }

    /// Checks that every skill saw the tree that the run records. If the status file itself says that the run left
    /// another tree, that finding exists already.
    fn judge_trees(&self, cited: &[(String, Evidence)], findings: &mut Findings) {
        if self.run.outcome != Verdict::Passed || self.run.left_another_tree() {
            return;
        }
        let other = |snapshot: &SnapshotId| *snapshot != self.run.snapshot;
        let mut changed = false;
        for (file, evidence) in cited {
            match evidence {
                Evidence::Toolchain(checks) if other(&checks.repo_snapshot) => {
                    findings.contradicts(file, "it is of another tree");
                }
                Evidence::Toolchain(_) => {}
                Evidence::Skill(skill) => {
                    changed |= other(&skill.repo_snapshot_before) || other(&skill.repo_snapshot_after);
                }
            }
        }
        if changed {
            findings.not_one_tree(self.facts.plan, &ChangedPaths::default());
        }
    }

    /// Checks that the controls that the operator requires today were enforced in the run.
    fn judge_controls(&self, file: &str, common: &Common<'_>, findings: &mut Findings) {
        let tolerated = self.facts.operator.tolerated(common.sandbox);
        for step in &common.steps {
            let missing = step.enforcement.missing();
            let demanded = missing.map(|(control, _)| control);
            let gap = demanded.filter(|control| !tolerated.as_ref().is_some_and(|some| some.contains(*control))).min();
            if let Some(control) = gap {
                findings.control_missing(file, step.planned.name.as_str(), control.as_str());
            }
        }
    }

    /// Checks that the documents are exactly those of the current plan. Skips this if the run as a whole already
    /// has a finding: it is partial, or of another profile or spec.
    fn judge_plan(&self, cited: &[(String, Evidence)], findings: &mut Findings) {
        let (plan, run) = (self.facts.plan, self.run);
        let is_told = run.rerun.is_some();
        if is_told || run.profile != plan.profile || run.spec_sha256 != plan.spec_sha256 {
            return;
        }
        let digest = plan.digest();
        if cited.iter().any(|(_, evidence)| *evidence.common().plan_sha256 != digest) {
            return findings.other_plan();
        }
        let is_cited = |artifact: &str| run.evidence.contains_key(&format!("{VERIFY}{artifact}"));
        let wanted = plan.skills.iter().map(|skill| skill.name.artifact()).chain([TOOLCHAIN_ARTIFACT.to_owned()]);
        for artifact in wanted.filter(|artifact| !is_cited(artifact)) {
            findings.evidence_missing(&format!("{VERIFY}{artifact}"), ", and the plan has it");
        }
        for (file, evidence) in cited {
            if let Some(how) = evidence.differs_from(plan) {
                findings.contradicts(file, how);
            }
        }
    }

    /// Reports files that the run does not cite. An earlier run of another profile leaves documents that are intact
    /// and older; any other file was added, or is no longer cited.
    fn judge_leftovers(&self, findings: &mut Findings) {
        let uncited = self.facts.found.files.iter().filter(|(file, _)| !self.run.evidence.contains_key(*file));
        for (file, piece) in uncited {
            if let Some(why) = self.suspicion(file, piece) {
                findings.extra(file, why);
            }
        }
    }

    fn suspicion(&self, file: &str, piece: &Piece) -> Option<&'static str> {
        let Piece::Bytes(bytes) = piece else { return Some("Proctor does not write such a file") };
        let Ok(evidence) = Evidence::read(file, bytes) else { return Some("it is not intact Proctor evidence") };
        let common = evidence.common();
        if *common.changeset_id != self.demands.changeset {
            return Some("it belongs to another changeset");
        }
        match common.run_id.cmp(&self.run.run_id) {
            Ordering::Less => None,
            Ordering::Equal => Some("it belongs to the same run"),
            Ordering::Greater => Some("it belongs to a newer run"),
        }
    }
}

impl Evidence {
    /// Parses the bytes of `file`.
    fn read(file: &str, bytes: &[u8]) -> Result<Self, Unusable> {
        if file.strip_prefix(VERIFY) == Some(TOOLCHAIN_ARTIFACT) {
            return Ok(Self::Toolchain(Box::new(read_document(bytes)?)));
        }
        let skill: SkillEvidence = read_document(bytes)?;
        match file.strip_prefix(VERIFY) == Some(&skill.skill.artifact()) {
            true => Ok(Self::Skill(Box::new(skill))),
            false => Err(Unusable::Malformed(format!("it is that of the skill `{}`", skill.skill))),
        }
    }

    fn common(&self) -> Common<'_> {
        match self {
            Self::Skill(skill) => Common {
                run_id: &skill.measured.run_id,
                changeset_id: &skill.changeset_id,
                profile: &skill.profile,
                spec_sha256: &skill.spec_sha256,
                plan_sha256: &skill.plan_sha256,
                sandbox: skill.sandbox,
                source: &skill.source,
                outcome: skill.summary.outcome,
                steps: skill.steps.iter().collect(),
            },
            Self::Toolchain(checks) => Common {
                run_id: &checks.measured.run_id,
                changeset_id: &checks.changeset_id,
                profile: &checks.profile,
                spec_sha256: &checks.spec_sha256,
                plan_sha256: &checks.plan_sha256,
                sandbox: checks.sandbox,
                source: &checks.source,
                outcome: checks.summary.outcome,
                steps: checks.checks.iter().map(|check| &check.step).collect(),
            },
        }
    }

    fn tier(&self) -> Tier {
        match self {
            Self::Skill(skill) => skill.tier.max(skill.declared_tier),
            Self::Toolchain(_) => Tier::ONE,
        }
    }

    /// Returns the steps that did not pass, human-readable.
    fn unpassed(&self) -> Vec<String> {
        let Self::Skill(skill) = self else { return Vec::new() };
        let unpassed = skill.steps.iter().filter(|step| step.outcome.is_failure());
        let told =
            |step: &StepEvidence| format!("`{}` {}", step_path(&skill.skill, &step.planned.name), word(step.outcome));
        unpassed.map(told).collect()
    }

    /// Returns how the document differs from its part of the plan. Arguments and variables are not compared,
    /// because the record omits the caller's secrets.
    fn differs_from(&self, plan: &Plan) -> Option<&'static str> {
        match self {
            Self::Skill(skill) => match planned(plan, &skill.skill) {
                None => Some("the plan has no such skill"),
                Some(planned) if !same_steps(planned, skill) => Some("its steps are not those of the plan"),
                Some(planned) if planned.declared_tier != skill.declared_tier => {
                    Some("its tier is not that of the plan")
                }
                Some(_) => None,
            },
            Self::Toolchain(recorded) => {
                let names =
                    recorded.checks.iter().map(|check| (&check.toolchain, &check.step.planned.name, &check.demand));
                let wanted = plan.toolchain.iter().map(|check| (&check.toolchain, &check.run.name, &check.version));
                let unsatisfied = recorded.checks.iter().any(|check| !check.satisfied);
                match (names.eq(wanted), unsatisfied) {
                    (false, _) => Some("its checks are not those of the plan"),
                    (true, true) => Some("a check does not hold"),
                    (true, false) => None,
                }
            }
        }
    }
}

fn planned<'a>(plan: &'a Plan, name: &SkillName) -> Option<&'a PlannedSkill> {
    plan.skills.iter().find(|skill| skill.name == *name)
}

fn same_steps(planned: &PlannedSkill, recorded: &SkillEvidence) -> bool {
    let wanted = planned.steps.iter().map(|step| &step.name);
    recorded.steps.iter().map(|step| &step.planned.name).eq(wanted) && !recorded.steps.is_empty()
}

fn word(outcome: Outcome) -> String {
    outcome.as_str().replace('_', " ")
}

/// The field that documents of every version have.
#[derive(serde::Deserialize)]
struct Versioned {
    version: u64,
}

/// Parses a document. It must be spelled byte for byte as we write it, and its seal must be valid.
fn read_document<D: Document + DeserializeOwned + Clone>(bytes: &[u8]) -> Result<D, Unusable> {
    let malformed = |error: serde_json::Error| Unusable::Malformed(error.to_string());
    let Versioned { version } = serde_json::from_slice(bytes).map_err(malformed)?;
    if version != u64::from(VERSION) {
        return Err(Unusable::Version(version.to_string()));
    }
    let document: D = strict::from_json(bytes).map_err(malformed)?;
    if evidence::to_bytes(&document) != bytes {
        return Err(Unusable::Malformed("it is not in our spelling".to_owned()));
    }
    match evidence::to_bytes(&evidence::seal(document.clone())) == bytes {
        true => Ok(document),
        false => Err(Unusable::SealBroken),
    }
}
