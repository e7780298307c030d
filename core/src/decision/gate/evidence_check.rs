//! Compares the evidence that a run cites with its status file, with the current plan, and with the other files in
//! `verify/`.

use std::cmp::Ordering;
use std::collections::BTreeSet;

use serde::de::DeserializeOwned;

use super::findings::{EarlierExecution, GateFindings};
use crate::decision::gate::gate_facts::{
    ChangedPaths, EvidenceFileContent, GateFacts, GateRequirements, InputRequirement, MachineRequirement,
};
use crate::decision::verdict::Verdict;
use crate::model::enforcement::SandboxMode;
use crate::model::names::{ChangesetId, ProfileName, RunId, SkillName, TOOLCHAIN_ARTIFACT};
use crate::model::outcome::Outcome;
use crate::model::plan::{Plan, PlannedSkill};
use crate::model::run_scope::RunScope;
use crate::model::tier::Tier;
use crate::record::evidence::{
    self, Document, RemoteExecution, ResultOrigin, SkillEvidence, StepEvidence, ToolchainEvidence, TreeSource, VERSION,
    step_path,
};
use crate::record::status::LastRun;
use crate::spec::RemoteExecutorSettings;
use crate::text::digest::{Sha256Hex, SnapshotId};
use crate::text::strict_deserialize;

/// The directory of the evidence, relative to the status file's directory.
const VERIFY_DIR: &str = "verify/";

/// The inputs of the comparison.
pub(super) struct EvidenceChecker<'a> {
    pub(super) run: &'a LastRun,
    pub(super) requirements: &'a GateRequirements,
    pub(super) facts: &'a GateFacts<'a>,
}

/// A parsed evidence document.
enum EvidenceDocument {
    Skill(Box<SkillEvidence>),
    Toolchain(Box<ToolchainEvidence>),
}

/// The fields that both kinds of documents have.
struct CommonEvidenceFields<'a> {
    run_id: &'a RunId,
    changeset_id: &'a Option<ChangesetId>,
    profile: &'a ProfileName,
    spec_sha256: &'a Sha256Hex,
    plan_sha256: &'a Sha256Hex,
    sandbox: SandboxMode,
    source: &'a TreeSource,
    scope: Option<&'a RunScope>,
    outcome: Outcome,
    steps: Vec<&'a StepEvidence>,
}

/// The reason why a document is not usable.
enum EvidenceReadError {
    Malformed(String),
    Version(String),
    SealBroken,
}

/// Number of steps in the evidence of a run.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct StepCounts {
    /// All steps.
    pub(super) steps: u64,
    /// Steps that have the result of an earlier execution.
    pub(super) cached_steps: u64,
}

/// The steps in the evidence of a run.
#[derive(Debug, Default)]
pub(super) struct RecordedSteps {
    pub(super) counts: StepCounts,
    /// The earlier executions that the results depend on.
    pub(super) earlier: Vec<EarlierExecution>,
    /// The other machines that executed steps whose results the run uses.
    pub(super) origins: BTreeSet<ResultOrigin>,
    /// The clusters whose workers executed steps of the run.
    pub(super) clusters: BTreeSet<String>,
}

impl RecordedSteps {
    fn from_documents(cited: &[(String, EvidenceDocument)]) -> Self {
        let skills = cited.iter().filter_map(|(_, evidence)| match evidence {
            EvidenceDocument::Skill(skill) => Some(skill),
            EvidenceDocument::Toolchain(_) => None,
        });
        let mut recorded = Self::default();
        for (skill, step) in skills.flat_map(|skill| skill.steps.iter().map(|step| (&skill.skill, step))) {
            recorded.counts.steps += 1;
            recorded.counts.cached_steps += u64::from(step.is_cached());
            recorded.origins.extend(step.origins().into_iter().cloned());
            recorded.clusters.extend(step.cluster().map(str::to_owned));
            recorded.earlier.extend(step.oldest_execution().map(|executed_at| EarlierExecution {
                step: step_path(skill, &step.planned.name),
                executed_at: executed_at.to_owned(),
            }));
        }
        recorded
    }
}

/// Checks every cited document, every document that the plan requires, and every other file. Returns the steps in the
/// intact documents.
pub(super) fn judge_evidence(documents: &EvidenceChecker<'_>, findings: &mut GateFindings) -> RecordedSteps {
    let cited = documents.read_cited_documents(findings);
    documents.judge_outcome(&cited, findings);
    documents.judge_tier(&cited, findings);
    documents.judge_caches(&cited, findings);
    documents.judge_inputs(&cited, findings);
    documents.judge_machines(&cited, findings);
    for (file, evidence) in &cited {
        documents.judge_origin(file, &evidence.common_fields(), findings);
    }
    documents.judge_seen_trees(&cited, findings);
    documents.judge_plan(&cited, findings);
    documents.judge_uncited_files(findings);
    RecordedSteps::from_documents(&cited)
}

impl EvidenceChecker<'_> {
    /// Returns the intact documents among those that the status file cites, and adds a finding for each of the
    /// others.
    fn read_cited_documents(&self, findings: &mut GateFindings) -> Vec<(String, EvidenceDocument)> {
        let mut cited = Vec::new();
        for (file, sha256) in &self.run.evidence {
            match self.facts.documents.files.get(file).unwrap_or(&EvidenceFileContent::Absent) {
                EvidenceFileContent::Absent => findings.evidence_missing(file, ""),
                EvidenceFileContent::Unreadable(why) => findings.evidence_unreadable(file, why),
                EvidenceFileContent::Bytes(bytes) if Sha256Hex::digest(bytes) != *sha256 => {
                    findings.evidence_edited(file);
                }
                EvidenceFileContent::Bytes(bytes) => match EvidenceDocument::parse(file, bytes) {
                    Ok(evidence) => cited.push((file.clone(), evidence)),
                    Err(EvidenceReadError::Malformed(why)) => findings.evidence_unreadable(file, &why),
                    Err(EvidenceReadError::Version(version)) => findings.version_unknown(file, &version),
                    Err(EvidenceReadError::SealBroken) => findings.seal_broken(file),
                },
            }
        }
        cited
    }

    /// Checks the outcome of the run: a pass in the status file must be a pass in each document. For a failure, the
    /// finding names the steps that did not pass.
    fn judge_outcome(&self, cited: &[(String, EvidenceDocument)], findings: &mut GateFindings) {
        if self.run.outcome == Verdict::Failed {
            let failed: Vec<String> = cited.iter().flat_map(|(_, evidence)| evidence.failed_steps()).collect();
            return findings.run_failed(&self.run.run_id, &failed);
        }
        if self.run.outcome != Verdict::Passed {
            return;
        }
        for (file, evidence) in cited {
            let common = evidence.common_fields();
            let steps_passed = common.steps.iter().all(|step| step.outcome.holds());
            if !common.outcome.holds() || !steps_passed {
                findings.evidence_contradicts(file, "not all of its checks passed");
            }
        }
    }

    /// Checks the highest tier in the status file and the documents against the accepted tier.
    fn judge_tier(&self, cited: &[(String, EvidenceDocument)], findings: &mut GateFindings) {
        let max_tier = self.requirements.max_tier.min(self.facts.operator.max_tier);
        let tier = cited.iter().map(|(_, evidence)| evidence.tier()).fold(self.run.tier, Tier::max);
        if tier > max_tier {
            findings.tier_too_high(tier, max_tier);
        }
    }

    /// Checks the trust of the caches: a step can use cache contents as if they were its own results.
    fn judge_caches(&self, cited: &[(String, EvidenceDocument)], findings: &mut GateFindings) {
        let max_trust = self.requirements.max_cache_trust;
        for (file, evidence) in cited {
            let EvidenceDocument::Skill(skill) = evidence else { continue };
            for cache in skill.measured.caches.iter().filter(|cache| cache.trust > max_trust) {
                let scope = cache.base.as_ref().map(|base| base.scope.as_str());
                findings.cache_too_wide(file, (&cache.path, cache.trust, scope), max_trust);
            }
            // The earlier execution of a cached step used caches too.
            let reused = skill.steps.iter().flat_map(StepEvidence::reused_caches);
            let mut reused: Vec<_> = reused.filter(|cache| cache.trust > max_trust).collect();
            reused.sort();
            reused.dedup();
            for cache in reused {
                findings.cache_too_wide(file, (&cache.path, cache.trust, None), max_trust);
            }
        }
    }

    /// Checks the inputs: a step can use every file that it sees, whether or not the snapshot covers it.
    fn judge_inputs(&self, cited: &[(String, EvidenceDocument)], findings: &mut GateFindings) {
        if self.requirements.inputs == InputRequirement::Any {
            return;
        }
        let sources = cited.iter().map(|(_, evidence)| evidence.common_fields().source).chain([&self.run.source]);
        if sources.into_iter().any(|source| *source == TreeSource::SHARED) {
            return findings.worktree_shared(&self.run.run_id);
        }
        if let Some(inputs) = &self.run.unverified_inputs {
            findings.inputs_unverified(&self.run.run_id, inputs);
        }
    }

    /// Checks which machines executed the steps. Toolchain checks count, too: they can run on workers.
    fn judge_machines(&self, cited: &[(String, EvidenceDocument)], findings: &mut GateFindings) {
        let steps: Vec<&StepEvidence> = cited.iter().flat_map(|(_, evidence)| evidence.common_fields().steps).collect();
        let trusted = self.facts.operator.remote_executor.as_ref().filter(|settings| settings.trust_workers);
        let is_trusted = |remote: &RemoteExecution| {
            trusted.is_some_and(|RemoteExecutorSettings { server, .. }| {
                server.endpoint == remote.endpoint && server.instance == remote.instance
            })
        };
        let untrusted = steps.iter().filter_map(|step| step.remote_execution()).filter(|remote| !is_trusted(remote));
        let untrusted: BTreeSet<String> = untrusted.map(RemoteExecution::cluster_name).collect();
        if !untrusted.is_empty() {
            return findings.workers_untrusted(&self.run.run_id, &untrusted);
        }
        let keys = &self.facts.trusted_keys;
        let origins = steps.iter().flat_map(|step| step.origins());
        let untrusted = origins.filter(|origin| !keys.ids.contains(&origin.key_id)).map(ResultOrigin::phrase);
        let untrusted: BTreeSet<String> = untrusted.collect();
        if !untrusted.is_empty() {
            return findings.keys_untrusted(&self.run.run_id, &untrusted, keys.problem.as_deref());
        }
        let others: BTreeSet<String> = steps.iter().filter_map(|step| step.other_machine()).collect();
        if self.requirements.machines == MachineRequirement::ThisMachine && !others.is_empty() {
            findings.other_machines(&self.run.run_id, &others);
        }
    }

    fn judge_origin(&self, file: &str, common: &CommonEvidenceFields<'_>, findings: &mut GateFindings) {
        let run = self.run;
        if *common.run_id != run.run_id {
            return findings.evidence_foreign(file, common.run_id);
        }
        if *common.changeset_id != self.requirements.changeset {
            findings.other_changeset(file);
        }
        if *common.profile != run.profile {
            findings.evidence_contradicts(file, "it belongs to another profile");
        }
        if *common.spec_sha256 != run.spec_sha256 {
            findings.evidence_contradicts(file, "it belongs to another spec");
        }
        self.judge_controls(file, common, findings);
    }

    /// Checks that every skill saw the tree that the run records. If the status file itself says that the run left
    /// another tree, that finding exists already.
    fn judge_seen_trees(&self, cited: &[(String, EvidenceDocument)], findings: &mut GateFindings) {
        if self.run.outcome != Verdict::Passed || self.run.changed_tree() {
            return;
        }
        let other = |snapshot: &SnapshotId| *snapshot != self.run.snapshot;
        let mut changed = false;
        for (file, evidence) in cited {
            match evidence {
                EvidenceDocument::Toolchain(checks) if other(&checks.repo_snapshot) => {
                    findings.evidence_contradicts(file, "it belongs to another tree");
                }
                EvidenceDocument::Toolchain(_) => {}
                EvidenceDocument::Skill(skill) => {
                    changed |= other(&skill.repo_snapshot_before) || other(&skill.repo_snapshot_after);
                    // A later step can undo the change.
                    changed |= skill.steps.iter().any(|step| step.drift.changed_tree);
                }
            }
        }
        if changed {
            findings.tree_not_constant(self.facts.plan, &ChangedPaths::default());
        }
    }

    /// Checks that the controls that the operator requires today were enforced in the run.
    fn judge_controls(&self, file: &str, common: &CommonEvidenceFields<'_>, findings: &mut GateFindings) {
        let operator = self.facts.operator;
        let here = operator.tolerated(common.sandbox);
        let on_workers = operator.remote_executor.as_ref().map(|settings| settings.tolerated(here.as_ref()));
        for step in &common.steps {
            // Without the config of a cluster, its workers count as this machine.
            let tolerated = on_workers.as_ref().filter(|_| step.cluster().is_some()).or(here.as_ref());
            let missing = step.enforcement.missing();
            let demanded = missing.map(|(control, _)| control);
            let gap = demanded.filter(|control| !tolerated.is_some_and(|some| some.contains(*control))).min();
            if let Some(control) = gap {
                findings.control_missing(file, step.planned.name.as_str(), control.as_str());
            }
        }
    }

    /// Checks that the documents are exactly those of the current plan. Skips this if the run as a whole already
    /// has a finding: it is partial, or of another profile or spec.
    fn judge_plan(&self, cited: &[(String, EvidenceDocument)], findings: &mut GateFindings) {
        let (plan, run) = (self.facts.plan, self.run);
        let is_partial = run.rerun.is_some() || run.scope.is_some();
        if is_partial || run.profile != plan.profile || run.spec_sha256 != plan.spec_sha256 {
            return;
        }
        let digest = plan.digest();
        for (_, evidence) in cited {
            let common = evidence.common_fields();
            let is_same = match common.scope {
                None => *common.plan_sha256 == digest,
                // Such a run counts as a run of the whole profile only if its steps cover the files that it left out.
                Some(scope) if scope.is_of_files() && common.steps.iter().all(|step| step.covers_all_files()) => {
                    *common.plan_sha256 == Plan { scope: Some(scope.clone()), ..plan.clone() }.digest()
                }
                Some(scope) => return findings.run_restricted(&run.run_id, scope),
            };
            if !is_same {
                return findings.other_plan();
            }
        }
        let is_cited = |artifact: &str| run.evidence.contains_key(&format!("{VERIFY_DIR}{artifact}"));
        let wanted = plan.skills.iter().map(|skill| skill.name.artifact()).chain([TOOLCHAIN_ARTIFACT.to_owned()]);
        for artifact in wanted.filter(|artifact| !is_cited(artifact)) {
            findings.evidence_missing(&format!("{VERIFY_DIR}{artifact}"), ", but the plan contains it");
        }
        for (file, evidence) in cited {
            if let Some(how) = evidence.plan_difference(plan) {
                findings.evidence_contradicts(file, how);
            }
        }
    }

    /// Reports files that the run does not cite. An earlier run of another profile leaves documents that are intact
    /// and older; any other file was added, or is no longer cited.
    fn judge_uncited_files(&self, findings: &mut GateFindings) {
        let uncited = self.facts.documents.files.iter().filter(|(file, _)| !self.run.evidence.contains_key(*file));
        for (file, piece) in uncited {
            if let Some(why) = self.uncited_file_problem(file, piece) {
                findings.evidence_extra(file, why);
            }
        }
    }

    fn uncited_file_problem(&self, file: &str, piece: &EvidenceFileContent) -> Option<&'static str> {
        let EvidenceFileContent::Bytes(bytes) = piece else { return Some("Proctor does not write such a file") };
        let Ok(evidence) = EvidenceDocument::parse(file, bytes) else {
            return Some("it is not intact Proctor evidence");
        };
        let common = evidence.common_fields();
        if *common.changeset_id != self.requirements.changeset {
            return Some("it belongs to another changeset");
        }
        match common.run_id.cmp(&self.run.run_id) {
            Ordering::Less => None,
            Ordering::Equal => Some("it belongs to the same run"),
            Ordering::Greater => Some("it belongs to a newer run"),
        }
    }
}

impl EvidenceDocument {
    /// Parses the bytes of `file`.
    fn parse(file: &str, bytes: &[u8]) -> Result<Self, EvidenceReadError> {
        if file.strip_prefix(VERIFY_DIR) == Some(TOOLCHAIN_ARTIFACT) {
            return Ok(Self::Toolchain(Box::new(parse_document(bytes)?)));
        }
        let skill: SkillEvidence = parse_document(bytes)?;
        match file.strip_prefix(VERIFY_DIR) == Some(&skill.skill.artifact()) {
            true => Ok(Self::Skill(Box::new(skill))),
            false => Err(EvidenceReadError::Malformed(format!("it is evidence of the skill `{}`", skill.skill))),
        }
    }

    fn common_fields(&self) -> CommonEvidenceFields<'_> {
        match self {
            Self::Skill(skill) => CommonEvidenceFields {
                run_id: &skill.measured.run_id,
                changeset_id: &skill.changeset_id,
                profile: &skill.profile,
                spec_sha256: &skill.spec_sha256,
                plan_sha256: &skill.plan_sha256,
                sandbox: skill.sandbox,
                source: &skill.source,
                scope: skill.scope.as_ref(),
                outcome: skill.summary.outcome,
                steps: skill.steps.iter().collect(),
            },
            Self::Toolchain(checks) => CommonEvidenceFields {
                run_id: &checks.measured.run_id,
                changeset_id: &checks.changeset_id,
                profile: &checks.profile,
                spec_sha256: &checks.spec_sha256,
                plan_sha256: &checks.plan_sha256,
                sandbox: checks.sandbox,
                source: &checks.source,
                scope: checks.scope.as_ref(),
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
    fn failed_steps(&self) -> Vec<String> {
        let Self::Skill(skill) = self else { return Vec::new() };
        let unpassed = skill.steps.iter().filter(|step| step.outcome.is_failure());
        let describe = |step: &StepEvidence| {
            format!("`{}` {}", step_path(&skill.skill, &step.planned.name), outcome_text(step.outcome))
        };
        unpassed.map(describe).collect()
    }

    /// Returns how the document differs from its part of the plan. Arguments and variables are not compared,
    /// because the record omits the caller's secrets.
    fn plan_difference(&self, plan: &Plan) -> Option<&'static str> {
        match self {
            Self::Skill(skill) => match find_planned_skill(plan, &skill.skill) {
                None => Some("the plan has no such skill"),
                Some(planned) if !has_planned_steps(planned, skill) => Some("its steps differ from the plan"),
                Some(planned) if planned.declared_tier != skill.declared_tier => Some("its tier differs from the plan"),
                Some(_) => None,
            },
            Self::Toolchain(recorded) => {
                let names =
                    recorded.checks.iter().map(|check| (&check.toolchain, &check.step.planned.name, &check.demand));
                let wanted = plan.toolchain.iter().map(|check| (&check.toolchain, &check.run.name, &check.version));
                let unsatisfied = recorded.checks.iter().any(|check| !check.satisfied);
                match (names.eq(wanted), unsatisfied) {
                    (false, _) => Some("its checks differ from the plan"),
                    (true, true) => Some("a check failed"),
                    (true, false) => None,
                }
            }
        }
    }
}

fn find_planned_skill<'a>(plan: &'a Plan, name: &SkillName) -> Option<&'a PlannedSkill> {
    plan.skills.iter().find(|skill| skill.name == *name)
}

fn has_planned_steps(planned: &PlannedSkill, recorded: &SkillEvidence) -> bool {
    let wanted = planned.steps.iter().map(|step| &step.name);
    recorded.steps.iter().map(|step| &step.planned.name).eq(wanted) && !recorded.steps.is_empty()
}

fn outcome_text(outcome: Outcome) -> String {
    outcome.as_str().replace('_', " ")
}

/// The field that documents of every version have.
#[derive(serde::Deserialize)]
struct EvidenceVersion {
    version: u64,
}

/// Parses a document. Its bytes must be exactly those that Proctor would write, and its seal must be valid.
fn parse_document<D: Document + DeserializeOwned + Clone>(bytes: &[u8]) -> Result<D, EvidenceReadError> {
    let malformed = |error: serde_json::Error| EvidenceReadError::Malformed(error.to_string());
    let EvidenceVersion { version } = serde_json::from_slice(bytes).map_err(malformed)?;
    if version != u64::from(VERSION) {
        return Err(EvidenceReadError::Version(version.to_string()));
    }
    let document: D = strict_deserialize::from_json(bytes).map_err(malformed)?;
    if evidence::to_bytes(&document) != bytes {
        return Err(EvidenceReadError::Malformed("it is not in Proctor's canonical form".to_owned()));
    }
    match evidence::to_bytes(&evidence::seal(document.clone())) == bytes {
        true => Ok(document),
        false => Err(EvidenceReadError::SealBroken),
    }
}
