//! Decides whether the current tree is verified: the decision of `proctor gate`.
//!
//! The caller passes facts: the bytes of the documents, the current tree and the current plan. The result is a list
//! of findings, each with its own code; the gate passes if the list contains only accepted findings. This module
//! reads no files, and it hashes the bytes of each document itself instead of trusting a recorded hash.

mod evidence_check;
mod findings;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet};
use std::str::FromStr;
use std::time::{Duration, UNIX_EPOCH};

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

pub use findings::{GateCode, GateFinding, MAX_FINDINGS};

use crate::decision::verdict::Verdict;
use crate::model::cache::CacheTrust;
use crate::model::names::{ChangesetId, ProfileName, RunId};
use crate::model::plan::Plan;
use crate::model::tier::Tier;
use crate::record::attestation::{Attestation, Subject};
use crate::record::status::{self, LastRun, LastRunError};
use crate::spec::{self, OperatorConfig};
use crate::text::digest::{Sha256Hex, SnapshotId};
use evidence_check::EvidenceChecker;
use findings::GateFindings;

/// Version of the format of [`GateAnswer`].
pub const VERSION: u32 = 1;
/// Largest accepted lead of a run's end time over the gate's clock, because the clocks of two machines are never
/// exactly equal.
pub const CLOCK_SKEW: Duration = Duration::from_secs(5);

/// Requirements that a recorded run must meet.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GateRequirements {
    /// The profile that must have passed.
    pub profile: ProfileName,
    /// The changeset whose evidence counts; `None` selects the runs without a changeset.
    pub changeset: Option<ChangesetId>,
    /// The highest accepted effective tier. The operator's limit applies as well; the lower of the two wins.
    pub max_tier: Tier,
    /// The maximum age of the run.
    pub max_age: MaxAge,
    /// The treatment of a run that is not recorded in Proctor's state directory.
    pub unattested: UnattestedPolicy,
    /// The widest scope that is accepted as a source of cache contents.
    pub max_cache_trust: CacheTrust,
    /// The inputs that the steps of the run may have seen.
    pub inputs: InputRequirement,
}

/// Accepted kinds of inputs of a run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum InputRequirement {
    /// Any inputs, including ignored files, which the snapshot does not cover.
    Any,
    /// Only verified inputs: a commit, or a private copy of the worktree without ignored files.
    Verified,
}

impl InputRequirement {
    /// Returns the requirement for the value of `strict_inputs`.
    pub fn from_strict(is_strict: bool) -> Self {
        if is_strict { Self::Verified } else { Self::Any }
    }
}

/// The maximum age of a run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MaxAge {
    /// No limit.
    Unlimited,
    /// At most this long ago.
    Within(Duration),
}

/// 24 hours: a snapshot does not cover everything that a result depends on, such as the tools of the machine, and
/// these change from day to day.
impl Default for MaxAge {
    fn default() -> Self {
        Self::Within(Duration::from_secs(24 * 60 * 60))
    }
}

impl FromStr for MaxAge {
    type Err = String;

    /// Parses `unlimited`, or a duration such as `90s`, `30m`, `24h`, `7d`.
    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "unlimited" => Ok(Self::Unlimited),
            text => humantime::parse_duration(text)
                .map(Self::Within)
                .map_err(|_| "a duration such as `30m`, `24h` or `7d`, or `unlimited`, is expected".to_owned()),
        }
    }
}

/// The treatment of a run that is not recorded in Proctor's state directory, such as a run of another machine. The
/// evidence of such a run proves only that its author was consistent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum UnattestedPolicy {
    /// The gate does not pass.
    Refuse,
    /// The gate may pass: the caller vouches for the run.
    Accept,
}

/// The facts that the gate decides on.
#[derive(Debug, Clone)]
pub struct GateFacts<'a> {
    /// The current time, in milliseconds since 1970.
    pub now_ms: u64,
    /// The repository, as a [`Subject`] names it.
    pub repository: String,
    /// The current tree.
    pub snapshot: SnapshotId,
    /// The ignore rules outside of the tree that decide which files belong to it, under the names that a run
    /// records. `None` if no such rule applies, as for a commit.
    pub ignores: Option<BTreeMap<String, IgnoreFile>>,
    /// The paths that differ from the verified tree, as far as they are known.
    pub changed_paths: ChangedPaths,
    /// The plan as the current spec resolves today.
    pub plan: &'a Plan,
    /// The operator's current settings.
    pub operator: &'a OperatorConfig,
    /// The documents of the run, as found on disk.
    pub documents: RecordedDocuments,
    /// The bytes of Proctor's own record of the newest run of the tree that the status file names.
    pub attestation: Option<Vec<u8>>,
}

/// A file with ignore rules outside of the tree.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct IgnoreFile {
    /// Human-readable path of the file.
    pub path: String,
    /// The sha256 of the rules in the file.
    pub rules_sha256: Sha256Hex,
}

/// Paths that differ from the verified tree, human-readable; empty if they are not known.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ChangedPaths {
    /// The first paths.
    pub paths: Vec<String>,
    /// The number of further paths.
    pub omitted: u64,
}

/// The documents of a run, as found on disk.
#[derive(Debug, Clone)]
pub struct RecordedDocuments {
    /// `05-status.json`.
    pub status: EvidenceFileContent,
    /// Every entry of `verify/`, by its path relative to the status file's directory.
    pub files: BTreeMap<String, EvidenceFileContent>,
    /// True if a run currently holds the directory.
    pub run_in_progress: bool,
}

/// The contents of one path that the caller tried to read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum EvidenceFileContent {
    /// The path does not exist.
    Absent,
    /// The complete contents of a regular file.
    Bytes(Vec<u8>),
    /// The path exists but was not read; holds the reason as a phrase.
    Unreadable(String),
}

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
    if let Some(run) = &run {
        judge_run(run, requirements, facts, &mut findings);
        // A run without evidence has nothing to compare.
        if !run.evidence.is_empty() {
            evidence_check::judge_evidence(&EvidenceChecker { run, requirements, facts }, &mut findings);
            judge_attestation(run, requirements, facts, &mut findings);
        }
    }
    let run = run.map(|run| summarize_run(run, facts));
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
    if let MaxAge::Within(most) = requirements.max_age
        && now.saturating_sub(ended) > most
    {
        findings.stale(&run.timestamp, now.saturating_sub(ended), most);
    }
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

fn summarize_run(run: LastRun, facts: &GateFacts<'_>) -> GateRun {
    let ended = parse_timestamp(&run.timestamp);
    let age = ended.and_then(|ended| Duration::from_millis(facts.now_ms).checked_sub(ended));
    let age_ms = age.map(|age| u64::try_from(age.as_millis()).unwrap_or(u64::MAX));
    let attested = facts.attestation.as_deref().and_then(Attestation::parse).is_some_and(|ours| ours.last_run == run);
    let LastRun { run_id, outcome, tier, timestamp, .. } = run;
    GateRun { run_id, outcome, tier, timestamp, age_ms, attested }
}

/// Parses the RFC 3339 timestamp (UTC) of a document.
fn parse_timestamp(timestamp: &str) -> Option<Duration> {
    humantime::parse_rfc3339(timestamp).ok()?.duration_since(UNIX_EPOCH).ok()
}
