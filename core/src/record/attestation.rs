//! Records runs in the state directory, separately from their documents. Only the user can write there, and steps
//! cannot. Editing a status file and its evidence therefore does not change this record.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::decision::verdict::Verdict;
use crate::model::names::{ChangesetId, ProfileName};
use crate::record::status::LastRun;
use crate::text::canonical;
use crate::text::digest::Sha256Hex;

/// Version of the format.
pub const VERSION: u32 = 1;

/// Identifies what a run verified. Among runs with the same subject and the same tree, the newest one counts.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Subject {
    /// The canonical path of the repository, with bytes that are not UTF-8 as `\xNN`.
    pub repository: String,
    /// The changeset; `null` if the run had none.
    pub changeset_id: Option<ChangesetId>,
    /// The profile.
    pub profile: ProfileName,
}

/// The record of one run: the same object that was written to its status file.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Attestation {
    /// Version of this document's format: [`VERSION`].
    #[schemars(extend("const" = VERSION))]
    pub version: u32,
    /// The subject of the run.
    pub subject: Subject,
    /// The contents of the status file, which include the sha256 of each evidence document.
    pub last_run: LastRun,
    /// The sha256 of the identities of the tools that the run found, as far as they are known; absent if they are
    /// unknown, if they changed during the run, or if a step looked at the commits, the branches or the index; the run
    /// then answers no later request.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub toolchain_env_sha256: Option<Sha256Hex>,
    /// The verified tree in git's terms; absent if it is unknown.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub git_tree: Option<String>,
    /// A digest of the values of all variables that the steps take from the caller, with a secret of the state directory;
    /// absent if they take none, or if the digest is unknown.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub step_env_sha256: Option<Sha256Hex>,
    /// The stored results of the observed steps, whose inputs outside of the tree must be the same if the run answers a later
    /// request; sorted, each once.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub observed_results: Vec<ObservedResult>,
}

/// A stored result of a step.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ObservedResult {
    /// The key of the step.
    pub key: Sha256Hex,
    /// The digest of the inputs.
    pub inputs_sha256: Sha256Hex,
}

impl Subject {
    /// Returns a unique key for this subject that is safe in file names.
    pub fn key(&self) -> Sha256Hex {
        Sha256Hex::digest(&canonical::to_vec(self))
    }
}

impl Attestation {
    /// Creates the record of a run.
    pub fn new(subject: Subject, last_run: LastRun) -> Self {
        Self {
            version: VERSION,
            subject,
            last_run,
            toolchain_env_sha256: None,
            git_tree: None,
            step_env_sha256: None,
            observed_results: Vec::new(),
        }
    }

    /// Sets the digest of the tools that the run found.
    #[must_use]
    pub fn with_toolchain_env(self, toolchain_env_sha256: Option<Sha256Hex>) -> Self {
        Self { toolchain_env_sha256, ..self }
    }

    /// Sets the digest of the variables that the steps take from the caller.
    #[must_use]
    pub fn with_step_env(self, step_env_sha256: Option<Sha256Hex>) -> Self {
        Self { step_env_sha256, ..self }
    }

    /// Sets the stored results of the observed steps.
    #[must_use]
    pub fn with_observed_results(self, observed_results: Vec<ObservedResult>) -> Self {
        Self { observed_results, ..self }
    }

    /// Sets the verified tree in git's terms.
    #[must_use]
    pub fn with_git_tree(self, git_tree: Option<String>) -> Self {
        Self { git_tree, ..self }
    }

    /// Returns whether the run can answer for the tree `git_tree` of a commit: it passed, was not restricted, and its
    /// tree in git's terms is the same or unknown. Only the identity of the tree determines whether the run answers the
    /// request.
    pub fn may_answer_for(&self, git_tree: &str) -> bool {
        let run = &self.last_run;
        let is_same = self.git_tree.as_ref().is_none_or(|tree| tree == git_tree);
        is_same && run.outcome == Verdict::Passed && run.scope.is_none()
    }

    /// Returns the record's bytes.
    pub fn to_bytes(&self) -> Vec<u8> {
        canonical::to_vec(self)
    }

    /// Parses a record; `None` if the bytes are not exactly as this program writes them.
    pub fn parse(bytes: &[u8]) -> Option<Self> {
        let read: Self = serde_json::from_slice(bytes).ok()?;
        (read.version == VERSION && read.to_bytes() == bytes).then_some(read)
    }
}
