//! Defines when two requests for a run are equal, so that they share one run.

use proctor_core::api::{ChangesAsked, RunView, SkillsAsked};
use proctor_core::digest::Sha256Hex;
use proctor_core::enforcement::SandboxMode;
use proctor_core::names::{ChangesetId, ProfileName};
use proctor_core::tier::Tier;
use proctor_core::verdict::Verdict;

/// Identity of a request for a run. A run reads the worktree when it starts, so two waiting requests with the same
/// key verify the same tree.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct RunKey {
    /// User that sends the request.
    pub uid: u32,
    /// Canonical path of the repository.
    pub repo: String,
    /// Requested tree.
    pub tree: KeyTree,
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
    pub changes: ChangesAsked,
    /// Skills of the profile that run.
    pub skills: SkillsAsked,
    /// `true` if each skill starts with empty caches.
    pub no_caches: bool,
    /// SHA-256 of the variables that the run can take from the caller. These may be secrets, so the digest is never
    /// stored.
    pub env: Sha256Hex,
    /// SHA-256 of the toolchains that the run finds, and of the inputs that select them. It is stored in the record.
    pub toolchain_env: Sha256Hex,
}

impl RunKey {
    /// Returns whether a recorded run of the worktree was requested in the same way, passed, and used the same
    /// toolchains. `toolchain_env` is the digest from the log of that run, if present.
    pub fn is_met_by(&self, earlier: &RunView, toolchain_env: Option<&Sha256Hex>) -> bool {
        let of_worktree = earlier.asked.rev.is_none();
        of_worktree && self.is_met_by_tree(earlier) && toolchain_env == Some(&self.toolchain_env)
    }

    /// Returns whether a recorded run was requested in the same way, was not partial, and passed. The source of its
    /// tree may differ.
    pub fn is_met_by_tree(&self, earlier: &RunView) -> bool {
        let asked = &earlier.asked;
        let alike = asked.max_tier == self.max_tier && asked.sandbox == self.sandbox && asked.changes == self.changes;
        alike && !earlier.is_partial() && earlier.uid == self.uid && earlier.verdict == Some(Verdict::Passed)
    }
}

/// Requested tree, as far as it is known at the time of the request.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum KeyTree {
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
    use proctor_core::api::RunSubmission;
    use proctor_core::names::{RunId, SkillName};
    use proctor_core::rerun::Rerun;

    use super::*;

    fn key(asked: &RunSubmission, toolchain_env: &Sha256Hex) -> RunKey {
        RunKey {
            uid: 7,
            repo: asked.repo.clone(),
            tree: KeyTree::Worktree { plan_sha256: Sha256Hex::of(b"plan") },
            profile: asked.profile.clone(),
            changeset: None,
            max_tier: asked.max_tier,
            sandbox: asked.sandbox,
            fail_fast: asked.fail_fast,
            changes: asked.changes,
            skills: asked.skills,
            no_caches: asked.no_caches,
            env: Sha256Hex::of(b"all"),
            toolchain_env: toolchain_env.clone(),
        }
    }

    #[test]
    fn a_run_that_found_other_toolchains_is_no_answer() {
        let asked = RunSubmission::new("/r".into(), ProfileName::new("pr").expect("a name"));
        let [now, other] = [b"now".as_slice(), b"other"].map(Sha256Hex::of);
        let mut earlier =
            RunView::queued(RunId::new("r1").expect("an id"), "t".into(), asked.clone().asked("/r".into()), 7);
        earlier.verdict = Some(Verdict::Passed);
        let key = key(&asked, &now);
        assert!(key.is_met_by(&earlier, Some(&now)));
        assert!(!key.is_met_by(&earlier, Some(&other)));
        assert!(!key.is_met_by(&earlier, None), "an unrecorded run is unknown");
        let others = RunView { uid: 8, ..earlier.clone() };
        let failed = RunView { verdict: Some(Verdict::Failed), ..earlier.clone() };
        let after = RunId::new("r0").expect("an id");
        let rerun =
            Rerun { after, not_passed: vec![], left_out: vec![SkillName::new("a").expect("a name")], gone: vec![] };
        let partial = RunView { rerun: Some(rerun), ..earlier };
        assert!(![others, failed, partial].iter().any(|view| key.is_met_by(view, Some(&now))));
    }
}
