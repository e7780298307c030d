//! What makes two requests for a run the same: then one run answers both.

use proctor_core::api::ChangesAsked;
use proctor_core::digest::Sha256Hex;
use proctor_core::enforcement::SandboxMode;
use proctor_core::names::{ChangesetId, ProfileName};
use proctor_core::tier::Tier;

/// What makes two requests for a run the same. A run reads the worktree when it starts, so two that
/// wait verify the same tree.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct RunKey {
    /// The user who asks.
    pub uid: u32,
    /// The canonical path of the repository.
    pub repo: String,
    /// The tree.
    pub tree: KeyTree,
    /// The profile.
    pub profile: ProfileName,
    /// The changeset.
    pub changeset: Option<ChangesetId>,
    /// The highest tier that may run.
    pub max_tier: Tier,
    /// What is done where controls are missing.
    pub sandbox: SandboxMode,
    /// Whether no further skill starts after the first that does not pass.
    pub fail_fast: bool,
    /// What becomes of changes.
    pub changes: ChangesAsked,
    /// The sha256 of the variables that the run can take from the caller, and of the places that it
    /// finds toolchains by.
    pub env: Sha256Hex,
}

/// Which tree, as far as it is known when it is asked for.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum KeyTree {
    /// The worktree, with the plan of its spec.
    Worktree {
        /// The plan.
        plan_sha256: Sha256Hex,
    },
    /// A commit: it has its spec in itself.
    Commit {
        /// Its id.
        id: String,
        /// Whether submodules are checked out too.
        submodules: bool,
    },
}
