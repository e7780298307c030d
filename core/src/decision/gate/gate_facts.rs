//! Represents the requirements of the gate and the facts about a run.

use std::collections::{BTreeMap, BTreeSet};
use std::str::FromStr;
use std::time::Duration;

use crate::model::cache::CacheTrust;
use crate::model::names::{ChangesetId, ProfileName};
use crate::model::plan::Plan;
use crate::model::tier::Tier;
use crate::spec::OperatorConfig;
use crate::text::digest::{Sha256Hex, SnapshotId};

/// Requirements that a recorded run must meet.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GateRequirements {
    /// The profile that must have passed.
    pub profile: ProfileName,
    /// The changeset whose evidence counts; `None` selects the runs without a changeset.
    pub changeset: Option<ChangesetId>,
    /// The highest accepted effective tier. The operator's limit applies as well; the lower of the two wins.
    pub max_tier: Tier,
    /// The maximum ages of the run, and of the earlier executions whose results it uses.
    pub max_age: AgeLimits,
    /// The treatment of a run that is not recorded in Proctor's state directory.
    pub unattested: UnattestedPolicy,
    /// The widest scope that is accepted as a source of cache contents.
    pub max_cache_trust: CacheTrust,
    /// The inputs that the steps of the run may have seen.
    pub inputs: InputRequirement,
    /// The machines that may have executed the steps of the run.
    pub machines: MachineRequirement,
}

/// The machines that may have executed the steps of a run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MachineRequirement {
    /// Any machine: also those whose shared results the run uses, and workers of a cluster.
    Any,
    /// The machine of the run.
    ThisMachine,
}

impl MachineRequirement {
    /// Returns the requirement for the value of `this_machine`.
    pub fn from_flag(is_this_machine: bool) -> Self {
        if is_this_machine { Self::ThisMachine } else { Self::Any }
    }
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
    /// The repository, as a [`Subject`](crate::record::attestation::Subject) names it.
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
    /// The ids of the keys whose shared results count now.
    pub trusted_keys: TrustedKeyIds,
    /// The documents of the run, as found on disk.
    pub documents: RecordedDocuments,
    /// The bytes of Proctor's own record of the newest run of the tree that the status file names.
    pub attestation: Option<Vec<u8>>,
}

/// The ids of the keys whose shared results count.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct TrustedKeyIds {
    /// The ids.
    pub ids: BTreeSet<Sha256Hex>,
    /// The reason why the operator's keys cannot be read, in which case no key counts.
    pub problem: Option<String>,
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

/// The maximum ages of a run, and of the earlier executions whose results it uses.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct AgeLimits {
    /// The maximum age of the run.
    pub run: MaxAge,
    /// The maximum age of the executions.
    pub executions: MaxAge,
}

impl AgeLimits {
    /// Returns the limits for a request that names one, which applies to both, or none.
    pub fn requested(max_age: Option<MaxAge>) -> Self {
        max_age.map_or_else(Self::default, |most| Self { run: most, executions: most })
    }
}

/// By default, only the run has a limit: it has compared everything that the executions read with the current state, and
/// has used no result that is too old for it.
impl Default for AgeLimits {
    fn default() -> Self {
        Self { run: MaxAge::default(), executions: MaxAge::Unlimited }
    }
}

/// The maximum age of a run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MaxAge {
    /// No limit.
    Unlimited,
    /// The run must have ended at most this long ago.
    Within(Duration),
}

/// Error for text that is not a maximum age.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
#[error("a duration such as `30m`, `24h` or `7d`, or `unlimited`, is expected")]
pub struct MaxAgeParseError(#[from] humantime::DurationError);

impl FromStr for MaxAge {
    type Err = MaxAgeParseError;

    /// Parses `unlimited`, or a duration such as `90s`, `30m`, `24h`, `7d`.
    fn from_str(text: &str) -> Result<Self, MaxAgeParseError> {
        match text {
            "unlimited" => Ok(Self::Unlimited),
            text => Ok(Self::Within(humantime::parse_duration(text)?)),
        }
    }
}

/// 24 hours: a snapshot does not cover everything that a result depends on, such as the tools of the machine, and
/// these change from day to day.
impl Default for MaxAge {
    fn default() -> Self {
        Self::Within(Duration::from_secs(24 * 60 * 60))
    }
}
