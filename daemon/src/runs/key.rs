//! What makes two requests for a run the same: then one run answers both.

use proctor_core::api::{ChangesAsked, RunView, SkillsAsked};
use proctor_core::digest::Sha256Hex;
use proctor_core::enforcement::SandboxMode;
use proctor_core::names::{ChangesetId, ProfileName};
use proctor_core::tier::Tier;
use proctor_core::verdict::Verdict;

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
    /// Which skills of the profile run.
    pub skills: SkillsAsked,
    /// Whether each skill begins with empty caches.
    pub no_caches: bool,
    /// The sha256 of the variables that the run can take from the caller, secrets among them: it
    /// goes on no record.
    pub env: Sha256Hex,
    /// The sha256 of which toolchains the run finds, and what decides that. It goes on record.
    pub toolchain_env: Sha256Hex,
}

impl RunKey {
    /// Whether a run that is on record was asked for in this way, passed, and found the toolchains that are
    /// found now: `toolchain_env`, where its log has that.
    pub fn is_met_by(&self, earlier: &RunView, toolchain_env: Option<&Sha256Hex>) -> bool {
        let of_worktree = earlier.asked.rev.is_none();
        of_worktree && self.is_met_by_tree(earlier) && toolchain_env == Some(&self.toolchain_env)
    }

    /// Whether a run that is on record was asked for in this way, was whole, and passed, whatever its tree was called.
    pub fn is_met_by_tree(&self, earlier: &RunView) -> bool {
        let asked = &earlier.asked;
        let alike = asked.max_tier == self.max_tier && asked.sandbox == self.sandbox && asked.changes == self.changes;
        alike && !earlier.is_partial() && earlier.uid == self.uid && earlier.verdict == Some(Verdict::Passed)
    }
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
