//! Whether this very tree is verified: the decision of `proctor gate`. Facts come in (bytes that
//! were read, what the tree and the plan are today), findings go out, each with a code of its
//! own; the gate passes where there is none. It reads nothing, and it trusts nothing that it was
//! not told: the bytes of each document are hashed here.

mod documents;
mod finding;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet};
use std::str::FromStr;
use std::time::{Duration, UNIX_EPOCH};

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

pub use finding::{GateCode, GateFinding, MAX_FINDINGS};

use crate::attestation::{Attestation, Subject};
use crate::cache::CacheTrust;
use crate::digest::{Sha256Hex, SnapshotId};
use crate::names::{ChangesetId, ProfileName, RunId};
use crate::plan::Plan;
use crate::spec::{self, Operator};
use crate::status::{self, LastRun, LastRunError};
use crate::tier::Tier;
use crate::verdict::Verdict;
use documents::Documents;
use finding::Findings;

/// The version of [`GateAnswer`]'s format.
pub const VERSION: u32 = 1;
/// How far in the future a run may have ended: the clocks of two machines are never quite one.
pub const CLOCK_SKEW: Duration = Duration::from_secs(5);

/// What the caller wants to know.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Demands {
    /// The profile that must have passed.
    pub profile: ProfileName,
    /// The changeset whose evidence counts; without one, that of runs without one.
    pub changeset: Option<ChangesetId>,
    /// The highest effective tier that is accepted; the operator's own stands above it.
    pub max_tier: Tier,
    /// How old the run may be.
    pub max_age: MaxAge,
    /// What is done where our own state does not know the run.
    pub unattested: Unattested,
    /// From how wide a scope content of caches may come.
    pub max_cache_trust: CacheTrust,
    /// Which inputs the run may have had.
    pub inputs: RequiredInputs,
}

/// Which inputs of a run are accepted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RequiredInputs {
    /// Any: ignored files too, which the identity of the tree does not cover.
    Any,
    /// Verified ones alone: a commit, or a private copy of the worktree without ignored files.
    Verified,
}

impl RequiredInputs {
    /// Returns what a caller with `strict_inputs` demands.
    pub fn from_strict(is_strict: bool) -> Self {
        if is_strict { Self::Verified } else { Self::Any }
    }
}

/// How old a run may be.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MaxAge {
    /// As old as it is.
    Unlimited,
    /// Up to this.
    Within(Duration),
}

/// Where the caller does not say: what a snapshot does not cover, such as the tools of the machine,
/// changes from one day to another.
impl Default for MaxAge {
    fn default() -> Self {
        Self::Within(Duration::from_secs(24 * 60 * 60))
    }
}

impl FromStr for MaxAge {
    type Err = String;

    /// Reads `unlimited`, or a duration such as `90s`, `30m`, `24h`, `7d`.
    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "unlimited" => Ok(Self::Unlimited),
            text => humantime::parse_duration(text)
                .map(Self::Within)
                .map_err(|_| "a duration such as `30m`, `24h` or `7d`, or `unlimited`, is expected".to_owned()),
        }
    }
}

/// What is done with a run that our own state does not know, such as one of another machine.
/// Its evidence proves no more than that whoever wrote it was consistent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Unattested {
    /// It does not pass.
    Refuse,
    /// The caller vouches for it.
    Accept,
}

/// What was found when the gate looked.
#[derive(Debug, Clone)]
pub struct Facts<'a> {
    /// The time, in milliseconds since 1970.
    pub now_ms: u64,
    /// The repository, as a [`Subject`] names it.
    pub repository: String,
    /// The tree as it is.
    pub snapshot: SnapshotId,
    /// The ignore rules outside of the tree that decide what belongs to it, by the names that a run records; `None`
    /// where no such rule has a say, as for a commit.
    pub ignores: Option<BTreeMap<String, IgnoreFile>>,
    /// What differs from the tree that was verified, where that can be told.
    pub changed: ChangedPaths,
    /// The plan as it resolves today, from the spec as it is.
    pub plan: &'a Plan,
    /// What the operator allows today.
    pub operator: &'a Operator,
    /// What lies where the run's documents are.
    pub found: Found,
    /// Our own record of the newest run on the tree that the status file names, as bytes.
    pub attestation: Option<Vec<u8>>,
}

/// A file with ignore rules outside of the tree.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct IgnoreFile {
    /// Where it is, for people.
    pub path: String,
    /// The sha256 of its rules.
    pub rules_sha256: Sha256Hex,
}

/// Paths that differ from the tree that was verified, for people; empty where they cannot be told.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ChangedPaths {
    /// The first ones.
    pub paths: Vec<String>,
    /// How many more there are.
    pub omitted: u64,
}

/// What lies where a run's documents are.
#[derive(Debug, Clone)]
pub struct Found {
    /// `05-status.json`.
    pub status: Piece,
    /// Every entry of `verify/`, by its path below the status file's directory.
    pub files: BTreeMap<String, Piece>,
    /// Whether a run holds the place at this moment.
    pub writer: bool,
}

/// One thing that was looked for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Piece {
    /// It is not there.
    Absent,
    /// A regular file, whole.
    Bytes(Vec<u8>),
    /// It is there, and was not read; why, as a phrase.
    Unreadable(String),
}

/// The answer of `proctor gate` and of `POST /v1/gate`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct GateAnswer {
    /// The version of this document's format: [`VERSION`].
    #[schemars(extend("const" = VERSION))]
    pub version: u32,
    /// Whether this very tree is verified.
    pub pass: bool,
    /// The exit code of `proctor gate`.
    pub exit_code: u8,
    /// The profile that was asked for.
    pub profile: ProfileName,
    /// The changeset that was asked for; `null` where there was none.
    pub changeset_id: Option<ChangesetId>,
    /// The tree as it is.
    pub snapshot: SnapshotId,
    /// The spec as it is.
    pub spec_sha256: Sha256Hex,
    /// The plan as it resolves today.
    pub plan_sha256: Sha256Hex,
    /// The run that was looked at; `null` where there is none that can be read.
    pub run: Option<GateRun>,
    /// What speaks against a pass; at most [`MAX_FINDINGS`].
    pub findings: Vec<GateFinding>,
    /// How many findings more there were.
    pub omitted: u64,
}

/// The run that a gate looked at, as its status file tells of it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct GateRun {
    /// The run.
    pub run_id: RunId,
    /// What it meant.
    pub outcome: Verdict,
    /// Its highest effective tier.
    pub tier: Tier,
    /// When it ended.
    pub timestamp: String,
    /// How long ago that is, in milliseconds; `null` where it is not in the past.
    pub age_ms: Option<u64>,
    /// Whether our own state knows it.
    pub attested: bool,
}

/// Decides.
pub fn answer(demands: &Demands, facts: &Facts<'_>) -> GateAnswer {
    let mut findings = Findings::new(demands);
    let run = match facts.found.writer {
        // What lies there is being replaced: it speaks neither for the tree nor against it.
        true => {
            findings.run_under_way();
            None
        }
        false => recorded(facts, &mut findings),
    };
    if let Some(run) = &run {
        judge_run(run, demands, facts, &mut findings);
        // One that cites nothing has nothing that could be held against anything.
        if !run.evidence.is_empty() {
            documents::judge(&Documents { run, demands, facts }, &mut findings);
            judge_attestation(run, demands, facts, &mut findings);
        }
    }
    let run = run.map(|run| outline(run, facts));
    let (exit_code, findings, omitted) = findings.conclude();
    GateAnswer {
        version: VERSION,
        pass: exit_code == 0,
        exit_code,
        profile: demands.profile.clone(),
        changeset_id: demands.changeset.clone(),
        snapshot: facts.snapshot.clone(),
        spec_sha256: facts.plan.spec_sha256.clone(),
        plan_sha256: facts.plan.digest(),
        run,
        findings,
        omitted,
    }
}

/// The run that the status file tells of; where it tells of none, that is found.
fn recorded(facts: &Facts<'_>, findings: &mut Findings) -> Option<LastRun> {
    let read = match &facts.found.status {
        Piece::Absent => Ok(None),
        Piece::Bytes(bytes) => status::last_run(bytes),
        Piece::Unreadable(why) => {
            findings.status_unreadable(why);
            return None;
        }
    };
    match read {
        Ok(Some(run)) => return Some(run),
        Ok(None) => unrecorded(facts, findings),
        Err(LastRunError::Version(version)) => findings.version_unknown("05-status.json", &version),
        Err(error) => findings.status_unreadable(&error.to_string()),
    }
    None
}

/// There is no status of ours. We may know of a run all the same.
fn unrecorded(facts: &Facts<'_>, findings: &mut Findings) {
    match facts.attestation.as_deref().map(Attestation::parse) {
        None => findings.nothing_recorded(),
        Some(None) => findings.record_unreadable(),
        Some(Some(ours)) if ours.last_run.evidence.is_empty() => findings.cites_nothing(ours.last_run.outcome),
        Some(Some(ours)) => findings.documents_gone(&ours.last_run.run_id),
    }
}

fn judge_run(run: &LastRun, demands: &Demands, facts: &Facts<'_>, findings: &mut Findings) {
    if run.profile != demands.profile {
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
    judge_age(run, demands, facts, findings);
}

/// What was verified must be what stands, and the run must have left it like that: what a
/// `read_only: off` step of it changed was another tree for the checks before that step.
fn judge_tree(run: &LastRun, facts: &Facts<'_>, findings: &mut Findings) {
    if run.left_another_tree()
        && (run.snapshot == facts.snapshot || run.snapshot_after.as_ref() == Some(&facts.snapshot))
    {
        findings.not_one_tree(facts.plan, &facts.changed);
    } else if run.snapshot != facts.snapshot {
        findings.tree_changed(&run.snapshot, &facts.snapshot, &facts.changed);
    }
}

/// The rules outside of the tree must be those of the run: others could hide a file that was not there.
fn judge_ignores(run: &LastRun, facts: &Facts<'_>, findings: &mut Findings) {
    let Some(now) = &facts.ignores else { return };
    let Some(then) = &run.external_ignores else {
        if !now.is_empty() {
            findings.ignores_unrecorded(now.values().map(|file| file.path.clone()).collect());
        }
        return;
    };
    let names: BTreeSet<&String> = then.keys().chain(now.keys()).collect();
    let differs = |name: &&&String| then.get(**name) != now.get(**name).map(|file| &file.rules_sha256);
    // Of a place without rules, nothing but the name is known.
    let path = |name: &String| now.get(name).map_or_else(|| name.clone(), |file| file.path.clone());
    let changed: Vec<String> = names.iter().filter(differs).map(|name| path(name)).collect();
    if !changed.is_empty() {
        findings.ignores_changed(changed);
    }
}

fn judge_age(run: &LastRun, demands: &Demands, facts: &Facts<'_>, findings: &mut Findings) {
    let Some(ended) = since_epoch(&run.timestamp) else {
        return findings.time_unreadable(&run.timestamp);
    };
    let now = Duration::from_millis(facts.now_ms);
    if ended > now + CLOCK_SKEW {
        return findings.future(&run.timestamp);
    }
    if let MaxAge::Within(most) = demands.max_age
        && now.saturating_sub(ended) > most
    {
        findings.stale(&run.timestamp, now.saturating_sub(ended), most);
    }
}

/// Our own record of the run, which nobody who edits the repository can edit with it.
fn judge_attestation(run: &LastRun, demands: &Demands, facts: &Facts<'_>, findings: &mut Findings) {
    let Some(bytes) = &facts.attestation else {
        return findings.unattested(&run.run_id);
    };
    let asked = Subject {
        repository: facts.repository.clone(),
        changeset_id: demands.changeset.clone(),
        profile: run.profile.clone(),
    };
    match Attestation::parse(bytes) {
        Some(ours) if ours.subject != asked => findings.record_unreadable(),
        Some(ours) if ours.last_run.run_id != run.run_id => findings.superseded(&run.run_id, &ours.last_run),
        Some(ours) if ours.last_run != *run => findings.record_differs(&run.run_id),
        Some(_) => {}
        None => findings.record_unreadable(),
    }
}

fn outline(run: LastRun, facts: &Facts<'_>) -> GateRun {
    let ended = since_epoch(&run.timestamp);
    let age = ended.and_then(|ended| Duration::from_millis(facts.now_ms).checked_sub(ended));
    let age_ms = age.map(|age| u64::try_from(age.as_millis()).unwrap_or(u64::MAX));
    let attested = facts.attestation.as_deref().and_then(Attestation::parse).is_some_and(|ours| ours.last_run == run);
    let LastRun { run_id, outcome, tier, timestamp, .. } = run;
    GateRun { run_id, outcome, tier, timestamp, age_ms, attested }
}

/// When something was, as it stands in a document: RFC 3339 in UTC.
fn since_epoch(timestamp: &str) -> Option<Duration> {
    humantime::parse_rfc3339(timestamp).ok()?.duration_since(UNIX_EPOCH).ok()
}
