//! Decides whether the current tree is verified: the decision of `proctor gate`.
//!
//! The caller passes facts: the bytes of the documents, the current tree and the current plan. The result is a list
//! of findings, each with its own code; the gate passes if the list contains only accepted findings. This module
//! reads no files, and it hashes the bytes of each document itself instead of trusting a recorded hash.

mod evidence_check;
mod findings;
pub(crate) mod gate_facts;
#[cfg(test)]
mod tests;

pub use crate::decision::gate::gate_facts::{
    AgeLimits, ChangedPaths, EvidenceFileContent, GateFacts, GateRequirements, IgnoreFile, InputRequirement,
    MachineRequirement, MaxAge, MaxAgeParseError, RecordedDocuments, TrustedKeyIds, UnattestedPolicy,
};
pub use findings::{GateCode, GateFinding, MAX_FINDINGS};

use std::collections::BTreeSet;
use std::time::{Duration, UNIX_EPOCH};

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::decision::verdict::Verdict;
use crate::model::names::{ChangesetId, ProfileName, RunId};
use crate::model::tier::Tier;
use crate::record::attestation::{Attestation, Subject};
use crate::record::evidence::{ResultOrigin, cached_of_steps};
use crate::record::status::{self, LastRun, LastRunError};
use crate::spec;
use crate::text::digest::{Sha256Hex, SnapshotId};
use evidence_check::{EvidenceChecker, RecordedSteps};
use findings::{EarlierExecution, GateFindings};

/// Version of the format of [`GateAnswer`].
pub const VERSION: u32 = 1;
/// Largest accepted lead of a run's end time over the gate's clock, because the clocks of two machines are never
/// exactly equal.
pub const CLOCK_SKEW: Duration = Duration::from_secs(5);

/// The answer of `proctor gate` and of `POST /v1/gate`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct GateAnswer {
    /// Version of this document's format: [`VERSION`].
    #[schemars(extend("const" = VERSION))]
    pub version: u32,
    /// True if the current tree is verified.
    pub pass: bool,
    /// The exit code of `proctor gate`.
    pub exit_code: u8,
    /// The requested profile.
    pub profile: ProfileName,
    /// The requested changeset; `null` if none was requested.
    pub changeset_id: Option<ChangesetId>,
    /// The current tree.
    pub snapshot: SnapshotId,
    /// The sha256 of the current spec.
    pub spec_sha256: Sha256Hex,
    /// The sha256 of the plan as the spec resolves today.
    pub plan_sha256: Sha256Hex,
    /// The run that the gate checked; `null` if there is no readable run.
    pub run: Option<GateRun>,
    /// The reasons against a pass; at most [`MAX_FINDINGS`].
    pub findings: Vec<GateFinding>,
    /// The number of further findings.
    pub omitted: u64,
}

/// The run that the gate checked, as described by its status file.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct GateRun {
    /// The run's id.
    pub run_id: RunId,
    /// The verdict of the run.
    pub outcome: Verdict,
    /// The run's highest effective tier.
    pub tier: Tier,
    /// The time at which the run ended.
    pub timestamp: String,
    /// The time since the run ended, in milliseconds; `null` if that time is not in the past.
    pub age_ms: Option<u64>,
    /// True if the run is recorded in Proctor's state directory.
    pub attested: bool,
    /// Number of steps in the evidence of the run.
    #[serde(default)]
    pub steps: u64,
    /// Number of these steps that were not executed, because every input that an earlier execution read is unchanged.
    #[serde(default)]
    pub cached_steps: u64,
    /// The end of the oldest earlier execution that a result of the run depends on; `null` if the run executed every
    /// step. A maximum age that the request names applies to this time, too.
    #[serde(default)]
    pub oldest_execution: Option<String>,
    /// The time since then, in milliseconds; `null` if that time is not in the past.
    #[serde(default)]
    pub oldest_execution_age_ms: Option<u64>,
    /// The other machines whose results the run uses; absent if there are none.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub origins: Vec<ResultOrigin>,
    /// The clusters whose workers executed steps of the run; absent if there are none.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub clusters: Vec<String>,
}

/// Decides whether the gate passes.
pub fn evaluate(requirements: &GateRequirements, facts: &GateFacts<'_>) -> GateAnswer {
    let mut findings = GateFindings::new(requirements);
    let run = match facts.documents.run_in_progress {
        // The run is replacing these documents, so they prove nothing about the tree.
        true => {
            findings.run_under_way();
            None
        }
        false => read_recorded_run(facts, &mut findings),
    };
    let mut steps = RecordedSteps::default();
    if let Some(run) = &run {
        judge_run(run, requirements, facts, &mut findings);
        // A run without evidence has no documents to compare.
        if !run.evidence.is_empty() {
            steps = evidence_check::judge_evidence(&EvidenceChecker { run, requirements, facts }, &mut findings);
            judge_execution_age(run, &steps, requirements, facts, &mut findings);
            judge_attestation(run, requirements, facts, &mut findings);
        }
    }
    let run = run.map(|run| summarize_run(run, &steps, facts));
    let (exit_code, findings, omitted) = findings.into_result();
    GateAnswer {
        version: VERSION,
        pass: exit_code == 0,
        exit_code,
        profile: requirements.profile.clone(),
        changeset_id: requirements.changeset.clone(),
        snapshot: facts.snapshot.clone(),
        spec_sha256: facts.plan.spec_sha256.clone(),
        plan_sha256: facts.plan.digest(),
        run,
        findings,
        omitted,
    }
}

/// Returns the run that the status file describes, or adds a finding if it describes no run.
fn read_recorded_run(facts: &GateFacts<'_>, findings: &mut GateFindings) -> Option<LastRun> {
    let read = match &facts.documents.status {
        EvidenceFileContent::Absent => Ok(None),
        EvidenceFileContent::Bytes(bytes) => status::last_run(bytes),
        EvidenceFileContent::Unreadable(why) => {
            findings.status_unreadable(why);
            return None;
        }
    };
    match read {
        Ok(Some(run)) => return Some(run),
        Ok(None) => report_missing_status(facts, findings),
        Err(LastRunError::Version(version)) => findings.version_unknown("05-status.json", &version),
        Err(error) => findings.status_unreadable(&error.to_string()),
    }
    None
}

/// Adds the finding for a missing status file. Proctor's state directory can have a record of the run all the same.
fn report_missing_status(facts: &GateFacts<'_>, findings: &mut GateFindings) {
    match facts.attestation.as_deref().map(Attestation::parse) {
        None => findings.nothing_recorded(),
        Some(None) => findings.record_unreadable(),
        Some(Some(ours)) if ours.last_run.evidence.is_empty() => findings.cites_nothing(ours.last_run.outcome),
        Some(Some(ours)) => findings.documents_missing(&ours.last_run.run_id),
    }
}

fn judge_run(run: &LastRun, requirements: &GateRequirements, facts: &GateFacts<'_>, findings: &mut GateFindings) {
    if run.profile != requirements.profile {
        findings.other_profile(&run.profile);
    }
    if run.spec_sha256 != facts.plan.spec_sha256 {
        findings.other_spec(spec::PATH);
    }
    judge_tree(run, facts, findings);
    judge_ignores(run, facts, findings);
    if let Some(rerun) = &run.rerun {
        findings.run_partial(&run.run_id, &rerun.left_out);
    }
    if let Some(scope) = &run.scope {
        findings.run_restricted(&run.run_id, scope);
    }
    if run.evidence.is_empty() {
        findings.cites_nothing(run.outcome);
    } else if run.outcome == Verdict::Inconclusive {
        findings.run_inconclusive(&run.run_id);
    }
    judge_age(run, requirements, facts, findings);
}

/// Checks that the verified tree is the current tree, and that the run left it unchanged. If a `read_only: off`
/// step changed the tree, the checks before that step saw a different one.
fn judge_tree(run: &LastRun, facts: &GateFacts<'_>, findings: &mut GateFindings) {
    if run.changed_tree() && (run.snapshot == facts.snapshot || run.snapshot_after.as_ref() == Some(&facts.snapshot)) {
        findings.tree_not_constant(facts.plan, &facts.changed_paths);
    } else if run.snapshot != facts.snapshot {
        findings.tree_changed(&run.snapshot, &facts.snapshot, &facts.changed_paths);
    }
}

/// Checks that the ignore rules outside of the tree are those of the run: other rules could hide a file that the
/// run did not see.
fn judge_ignores(run: &LastRun, facts: &GateFacts<'_>, findings: &mut GateFindings) {
    let Some(now) = &facts.ignores else { return };
    let Some(then) = &run.external_ignores else {
        if !now.is_empty() {
            findings.ignores_unrecorded(now.values().map(|file| file.path.clone()).collect());
        }
        return;
    };
    let names: BTreeSet<&String> = then.keys().chain(now.keys()).collect();
    let differs = |name: &&&String| then.get(**name) != now.get(**name).map(|file| &file.rules_sha256);
    // A file that no longer has rules is known only by its name.
    let path = |name: &String| now.get(name).map_or_else(|| name.clone(), |file| file.path.clone());
    let changed: Vec<String> = names.iter().filter(differs).map(|name| path(name)).collect();
    if !changed.is_empty() {
        findings.ignores_changed(changed);
    }
}

fn judge_age(run: &LastRun, requirements: &GateRequirements, facts: &GateFacts<'_>, findings: &mut GateFindings) {
    let Some(ended) = parse_timestamp(&run.timestamp) else {
        return findings.time_unreadable(&run.timestamp);
    };
    let now = Duration::from_millis(facts.now_ms);
    if ended > now + CLOCK_SKEW {
        return findings.future_timestamp(&run.timestamp);
    }
    if let MaxAge::Within(most) = requirements.max_age.run
        && now.saturating_sub(ended) > most
    {
        findings.stale(&run.timestamp, now.saturating_sub(ended), most);
    }
}

/// Checks the age of the earlier executions that the results of the run depend on.
fn judge_execution_age(
    run: &LastRun,
    steps: &RecordedSteps,
    requirements: &GateRequirements,
    facts: &GateFacts<'_>,
    findings: &mut GateFindings,
) {
    if let Some(unreadable) = steps.earlier.iter().find(|one| parse_timestamp(&one.executed_at).is_none()) {
        return findings.execution_time_unreadable(unreadable);
    }
    let now = Duration::from_millis(facts.now_ms);
    let (Some((executed, oldest)), MaxAge::Within(most)) = (oldest_execution(steps), requirements.max_age.executions)
    else {
        return;
    };
    // A run that is itself too old already has a finding.
    let is_run_stale = parse_timestamp(&run.timestamp).is_some_and(|ended| now.saturating_sub(ended) > most);
    if !is_run_stale && now.saturating_sub(executed) > most {
        findings.stale_execution(oldest, now.saturating_sub(executed), most);
    }
}

/// Returns the oldest earlier execution with its time since 1970.
fn oldest_execution(steps: &RecordedSteps) -> Option<(Duration, &EarlierExecution)> {
    let dated = steps.earlier.iter().filter_map(|one| Some((parse_timestamp(&one.executed_at)?, one)));
    dated.min_by_key(|(executed, _)| *executed)
}

/// Compares the run with Proctor's own record of it, which a user who edits the repository cannot edit along with it.
fn judge_attestation(
    run: &LastRun,
    requirements: &GateRequirements,
    facts: &GateFacts<'_>,
    findings: &mut GateFindings,
) {
    let Some(bytes) = &facts.attestation else {
        return findings.unattested(&run.run_id);
    };
    let expected_subject = Subject {
        repository: facts.repository.clone(),
        changeset_id: requirements.changeset.clone(),
        profile: run.profile.clone(),
    };
    match Attestation::parse(bytes) {
        Some(ours) if ours.subject != expected_subject => findings.record_unreadable(),
        Some(ours) if ours.last_run.run_id != run.run_id => findings.superseded(&run.run_id, &ours.last_run),
        Some(ours) if ours.last_run != *run => findings.record_differs(&run.run_id),
        Some(_) => {}
        None => findings.record_unreadable(),
    }
}

impl GateRun {
    /// Returns the number of cached steps, and the other machines that executed them, as a phrase; `None` if every step was
    /// executed.
    pub fn cached_phrase(&self) -> Option<String> {
        let number = |count: u64| usize::try_from(count).unwrap_or(usize::MAX);
        let mut phrase = cached_of_steps(number(self.cached_steps), number(self.steps))?;
        let origins = self.origins.iter().map(|origin| format!("`{}` (key {})", origin.host, origin.short_key()));
        let origins = origins.collect::<Vec<_>>().join(", ");
        if !origins.is_empty() {
            phrase.push_str(&format!(" (some from {origins})"));
        }
        Some(phrase)
    }
}

impl GateRun {
    /// Returns the clusters whose workers executed steps, as a phrase; `None` if there are none.
    pub fn cluster_phrase(&self) -> Option<String> {
        let clusters = self.clusters.iter().map(|cluster| format!("`{cluster}`")).collect::<Vec<_>>().join(", ");
        (!clusters.is_empty()).then(|| format!("steps ran on workers of {clusters}"))
    }
}

fn summarize_run(run: LastRun, recorded: &RecordedSteps, facts: &GateFacts<'_>) -> GateRun {
    let milliseconds = |age: Duration| u64::try_from(age.as_millis()).unwrap_or(u64::MAX);
    let age_of = |time| Duration::from_millis(facts.now_ms).checked_sub(time).map(milliseconds);
    let age_ms = parse_timestamp(&run.timestamp).and_then(age_of);
    let oldest = oldest_execution(recorded);
    let attested = facts.attestation.as_deref().and_then(Attestation::parse).is_some_and(|ours| ours.last_run == run);
    let LastRun { run_id, outcome, tier, timestamp, .. } = run;
    GateRun {
        run_id,
        outcome,
        tier,
        timestamp,
        age_ms,
        attested,
        steps: recorded.counts.steps,
        cached_steps: recorded.counts.cached_steps,
        oldest_execution: oldest.map(|(_, execution)| execution.executed_at.clone()),
        oldest_execution_age_ms: oldest.and_then(|(executed, _)| age_of(executed)),
        origins: recorded.origins.iter().cloned().collect(),
        clusters: recorded.clusters.iter().cloned().collect(),
    }
}

/// Parses the RFC 3339 timestamp (UTC) of a document.
fn parse_timestamp(timestamp: &str) -> Option<Duration> {
    humantime::parse_rfc3339(timestamp).ok()?.duration_since(UNIX_EPOCH).ok()
}
