//! Defines when two requests for a run are equal, so that they share one run.

use std::sync::Arc;

use proctor_core::api::{ChangeDelivery, RunView, SkillFilter};
use proctor_core::decision::verdict::Verdict;
use proctor_core::model::enforcement::SandboxMode;
use proctor_core::model::names::{ChangesetId, ProfileName};
use proctor_core::model::run_scope::ScopeRequest;
use proctor_core::model::tier::Tier;
use proctor_core::spec::OperatorConfig;
use proctor_core::text::digest::Sha256Hex;

/// Identity of a request for a run. A run reads the worktree when it starts, so two waiting requests with the same
/// key verify the same tree.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RunKey {
    /// User that sends the request.
    pub uid: u32,
    /// Canonical path of the repository.
    pub repo: String,
    /// Requested tree.
    pub tree: RequestedTree,
    /// Requested profile.
    pub profile: ProfileName,
    /// Requested changeset.
    pub changeset: Option<ChangesetId>,
    /// Highest tier that may run.
    pub max_tier: Tier,
    /// Behavior when sandbox controls are missing.
    pub sandbox: SandboxMode,
    /// `true` if no further skill starts after the first one that does not pass.
    pub fail_fast: bool,
    /// Requested treatment of changes that steps make.
    pub changes: ChangeDelivery,
    /// Skills of the profile that run.
    pub skills: SkillFilter,
    /// Steps and files to which the run is restricted.
    pub scope: ScopeRequest,
    /// `true` if each skill starts with empty caches.
    pub no_caches: bool,
    /// `true` if each step is executed.
    pub no_cache: bool,
    /// SHA-256 of the variables that the run can take from the caller. These may be secrets, so the digest is never
    /// stored.
    pub env: Sha256Hex,
    /// SHA-256 of the toolchains that the run finds, and of the inputs that select them. It is stored in the record.
    pub toolchain_env: Sha256Hex,
    /// Operator settings at the time of the request. A run keeps its settings until it ends.
    pub operator: Arc<OperatorConfig>,
}

impl RunKey {
    /// Returns whether a recorded run of the worktree was requested in the same way, passed, and used the same
    /// toolchains. `toolchain_env` is the digest from the log of that run, if present.
    pub fn is_satisfied_by(&self, earlier: &RunView, toolchain_env: Option<&Sha256Hex>) -> bool {
        let of_worktree = earlier.request.rev.is_none();
        of_worktree && self.is_satisfied_by_tree(earlier) && toolchain_env == Some(&self.toolchain_env)
    }

    /// Returns whether a recorded run was requested in the same way, was not partial, and passed. The source of its
    /// tree may differ.
    pub fn is_satisfied_by_tree(&self, earlier: &RunView) -> bool {
        let request = &earlier.request;
        let alike =
            request.max_tier == self.max_tier && request.sandbox == self.sandbox && request.changes == self.changes;
        alike && !earlier.is_partial() && earlier.uid == self.uid && earlier.verdict == Some(Verdict::Passed)
    }
}

/// Requested tree, as far as it is known at the time of the request.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum RequestedTree {
    /// The worktree.
    Worktree {
        /// Digest of the plan that the spec of the worktree gives.
        plan_sha256: Sha256Hex,
    },
    /// A commit; its own spec applies.
    Commit {
        /// Object ID of the commit.
        id: String,
        /// `true` if submodules are checked out as well.
        submodules: bool,
    },
}

#[cfg(test)]
mod tests {
    use proctor_core::api::LoggedRun;
    use proctor_core::api::RunSubmission;
    use proctor_core::decision::rerun::Rerun;
    use proctor_core::model::names::{RunId, SkillName};

    use super::*;

    fn key(submission: &RunSubmission, toolchain_env: &Sha256Hex) -> RunKey {
        RunKey {
            uid: 7,
            repo: submission.repo.clone(),
            tree: RequestedTree::Worktree { plan_sha256: Sha256Hex::digest(b"plan") },
            profile: submission.profile.clone(),
            changeset: None,
            max_tier: submission.max_tier,
            sandbox: submission.sandbox,
            fail_fast: submission.fail_fast,
            changes: submission.changes,
            skills: submission.skills,
            scope: submission.scope.clone(),
            no_caches: submission.no_caches,
            no_cache: submission.no_cache,
            env: Sha256Hex::digest(b"all"),
            toolchain_env: toolchain_env.clone(),
            operator: Arc::default(),
        }
    }

    #[test]
    fn run_with_other_toolchains_does_not_satisfy_key() {
        let submission = RunSubmission::new("/r".into(), ProfileName::new("pr").expect("a name"));
        let [now, other] = [b"now".as_slice(), b"other"].map(Sha256Hex::digest);
        let mut earlier = LoggedRun::new_queued(
            RunId::new("r1").expect("an id"),
            "t".into(),
            submission.clone().to_recorded("/r".into()),
            7,
        )
        .view();
        earlier.verdict = Some(Verdict::Passed);
        let key = key(&submission, &now);
        assert!(key.is_satisfied_by(&earlier, Some(&now)));
        assert!(!key.is_satisfied_by(&earlier, Some(&other)));
        assert!(!key.is_satisfied_by(&earlier, None), "an unrecorded run is unknown");
        let others = RunView { uid: 8, ..earlier.clone() };
        let failed = RunView { verdict: Some(Verdict::Failed), ..earlier.clone() };
        let after = RunId::new("r0").expect("an id");
        let rerun =
            Rerun { after, not_passed: vec![], left_out: vec![SkillName::new("a").expect("a name")], gone: vec![] };
        let partial = RunView { rerun: Some(rerun), ..earlier };
        assert!(![others, failed, partial].iter().any(|view| key.is_satisfied_by(view, Some(&now))));
    }
}
