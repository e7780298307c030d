//! The identity of a step: everything besides its observed inputs that determines its result.

use std::collections::BTreeMap;

use serde::Serialize;

use crate::model::plan::{Determinism, PlannedStep};
use crate::text::canonical;
use crate::text::digest::Sha256Hex;

/// Version of the identity. A change of its meaning must change this number.
const VERSION: u32 = 1;

/// The parts of the identity, in words.
pub const IDENTITY_PARTS: [&str; 7] = [
    "the version of Proctor and its program that sets up sandboxes",
    "the name and the determinism class of the skill",
    "every setting of the step, and the files that it gets as arguments",
    "the complete environment of the step, including the values of variables on its `env_allowlist`",
    "the path of the repository, the user, and the directories that are hidden or shown",
    "the kernel, the architecture and the number of processors",
    "the results of the earlier steps whose files the step sees",
];

/// Everything besides the observed inputs that determines the result of a step.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct StepIdentity<'a> {
    /// The programs of Proctor that execute steps.
    pub proctor: String,
    /// The skill and its determinism class.
    pub skill: (&'a str, Determinism),
    /// The step with every setting.
    pub step: &'a PlannedStep,
    /// The command, and the files that it gets as arguments.
    pub command: (&'a [String], Sha256Hex),
    /// The complete environment, without the trace context of the run.
    pub env: BTreeMap<String, String>,
    /// The path at which the step sees the tree.
    pub repository: String,
    /// The user and group of the step inside the sandbox, and its home.
    pub user: (u32, u32, String),
    /// Directories that are hidden.
    pub hidden: Vec<String>,
    /// Directories that are shown although their parent is hidden.
    pub tools: Vec<ShownTool>,
    /// The machine.
    pub machine: MachineFacts,
    /// The stored results of the earlier steps whose files this step sees, oldest first: digests of their keys and
    /// inputs.
    pub below: &'a [Sha256Hex],
}

/// A file or directory that is shown although its parent is hidden.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct ShownTool {
    /// The path on the host.
    pub source: String,
    /// The path in the sandbox.
    pub at: String,
    /// How it is shown.
    pub kind: String,
}

/// Facts of the machine that programs read without a file system.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct MachineFacts {
    /// The release and version of the kernel.
    pub kernel: String,
    /// The architecture.
    pub architecture: String,
    /// Number of processors that steps can use.
    pub processors: usize,
}

impl StepIdentity<'_> {
    /// Returns the key under which results of the step are stored. `secret` belongs to this state directory, so that a
    /// key does not reveal values of variables.
    pub fn key(&self, secret: &[u8; 32]) -> Sha256Hex {
        let identity = canonical::to_vec(&(VERSION, self));
        Sha256Hex::digest(&[secret, identity.as_slice()].concat())
    }
}
