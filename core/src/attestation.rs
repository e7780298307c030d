//! What we remember of a run apart from its documents, in the state directory, where no step and
//! nobody but the user can write: whoever edits a status file and the evidence that it cites
//! edits what this was made of, and not this.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::canonical;
use crate::digest::Sha256Hex;
use crate::names::{ChangesetId, ProfileName};
use crate::status::LastRun;

/// The version of the format.
pub const VERSION: u32 = 1;

/// What a run was about. Among runs about the same thing and the same tree the newest one counts.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Subject {
    /// The canonical path of the repository, bytes that are no text as `\xNN`.
    pub repository: String,
    /// The changeset; `null` where the run had none.
    pub changeset_id: Option<ChangesetId>,
    /// The profile.
    pub profile: ProfileName,
}

/// The record of one run: the very object that was written into its status file.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Attestation {
    /// The version of this document's format: [`VERSION`].
    #[schemars(extend("const" = VERSION))]
    pub version: u32,
    /// What the run was about.
    pub subject: Subject,
    /// What its status file says; with it, the sha256 of each evidence document.
    pub last_run: LastRun,
    /// The sha256 of which tools the run found, as far as that can be told; absent where it could not be.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub toolchain_env_sha256: Option<Sha256Hex>,
}

impl Subject {
    /// A name for this subject that is safe for files and tells it from every other.
    pub fn key(&self) -> Sha256Hex {
        Sha256Hex::of(&canonical::to_vec(self))
    }
}

impl Attestation {
    /// The record of a run.
    pub fn new(subject: Subject, last_run: LastRun) -> Self {
        Self { version: VERSION, subject, last_run, toolchain_env_sha256: None }
    }

    /// The same record of a run that found these tools.
    #[must_use]
    pub fn finding(self, toolchain_env_sha256: Option<Sha256Hex>) -> Self {
        Self { toolchain_env_sha256, ..self }
    }

    /// The record's bytes.
    pub fn to_bytes(&self) -> Vec<u8> {
        canonical::to_vec(self)
    }

    /// Reads a record; `None` where it is none that this program writes.
    pub fn parse(bytes: &[u8]) -> Option<Self> {
        let read: Self = serde_json::from_slice(bytes).ok()?;
        (read.version == VERSION && read.to_bytes() == bytes).then_some(read)
    }
}
