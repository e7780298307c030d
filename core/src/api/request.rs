//! Requests to the daemon.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::model::cache::CacheTrust;
use crate::model::enforcement::SandboxMode;
use crate::model::names::{ChangesetId, ProfileName};
use crate::model::run_scope::ScopeRequest;
use crate::model::tier::Tier;

/// The body of `POST /v1/runs`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct RunSubmission {
    /// Absolute path of the root of the repository's worktree.
    #[schemars(extend("pattern" = "^/"))]
    pub repo: String,
    /// The profile.
    pub profile: ProfileName,
    /// The changeset that receives the evidence. Without one, the evidence is written to the daemon's store.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub changeset_id: Option<ChangesetId>,
    /// A revision that names a commit. Its tree is verified, separately from the worktree.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rev: Option<String>,
    /// If true, the commit's submodules are checked out too.
    #[serde(default)]
    pub submodules: bool,
    /// The highest tier that may run. Default: 2.
    #[serde(default = "two")]
    pub max_tier: Tier,
    /// How to handle missing sandbox controls.
    #[serde(default)]
    pub sandbox: SandboxMode,
    /// If true, no further skill starts after the first skill that does not pass.
    #[serde(default)]
    pub fail_fast: bool,
    /// How to handle the changes that steps make.
    #[serde(default)]
    pub changes: ChangeDelivery,
    /// Reuse of earlier results.
    #[serde(default)]
    pub reuse: Reuse,
    /// The skills of the profile to run.
    #[serde(default, skip_serializing_if = "SkillFilter::is_all")]
    pub skills: SkillFilter,
    /// The steps and files to which the run is restricted. A restricted run does not count for the whole profile.
    #[serde(default, skip_serializing_if = "ScopeRequest::is_whole")]
    pub scope: ScopeRequest,
    /// If true, each skill starts with empty caches, and what it leaves in them is discarded. An earlier result does
    /// not answer such a request.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub no_caches: bool,
    /// If true, each step is executed, even if a stored result holds because every input that it read is the same. An
    /// earlier run does not answer such a request.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub no_cache: bool,
    /// The environment from which `env_allowlist` of the spec takes variables. If it is absent, the daemon uses its own
    /// environment, or no variables if it serves several users.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub env: Option<BTreeMap<String, String>>,
}

fn two() -> Tier {
    Tier::TWO
}

/// How to handle the changes that steps make.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum ChangeDelivery {
    /// Changes of `read_only: off` steps are applied to the worktree, if the run verifies the worktree.
    #[default]
    Applied,
    /// All changes are stored as one patch, and none are applied.
    Patch,
}

/// Reuse of earlier results.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Reuse {
    /// A passed run of the same tree, spec and plan answers the request if its evidence is still valid.
    #[default]
    Verified,
    /// A new run starts, unless the same run is already queued or running.
    Never,
}

/// The skills of the profile to run.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum SkillFilter {
    /// All skills.
    #[default]
    All,
    /// The skills that did not pass when they last ran, and the skills that they need; all skills if that selects none.
    /// The result does not count for the whole profile: the gate does not accept it, and the request cannot have a
    /// changeset or a `rev`.
    NotPassed,
}

impl SkillFilter {
    /// Returns whether all skills run.
    pub fn is_all(&self) -> bool {
        *self == Self::All
    }
}

/// A recorded request: the submission without the caller's environment.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct RecordedRequest {
    /// Canonical path of the root of the repository's worktree; bytes that are not text are written as `\xNN`.
    pub repo: String,
    /// The profile.
    pub profile: ProfileName,
    /// The changeset, if there is one.
    pub changeset_id: Option<ChangesetId>,
    /// The revision as given.
    pub rev: Option<String>,
    /// If true, the commit's submodules are checked out too.
    pub submodules: bool,
    /// The highest tier that may run.
    pub max_tier: Tier,
    /// How to handle missing sandbox controls.
    pub sandbox: SandboxMode,
    /// If true, no further skill starts after the first skill that does not pass.
    pub fail_fast: bool,
    /// How to handle the changes that steps make.
    pub changes: ChangeDelivery,
    /// The skills of the profile to run; all skills if absent.
    #[serde(default, skip_serializing_if = "SkillFilter::is_all")]
    pub skills: SkillFilter,
    /// The steps and files to which the run is restricted; absent for a whole run.
    #[serde(default, skip_serializing_if = "ScopeRequest::is_whole")]
    pub scope: ScopeRequest,
    /// If true, each skill starts with empty caches; `false` if absent.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub no_caches: bool,
}

/// The body of `POST /v1/plans`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct PlanRequest {
    /// Absolute path of the root of the repository's worktree.
    #[schemars(extend("pattern" = "^/"))]
    pub repo: String,
    /// The profile to resolve; if absent, the spec is only validated.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub profile: Option<ProfileName>,
}

/// The body of `POST /v1/gate`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct GateQuery {
    /// Absolute path of the root of the repository's worktree.
    #[schemars(extend("pattern" = "^/"))]
    pub repo: String,
    /// The profile that must have passed.
    pub profile: ProfileName,
    /// The changeset whose evidence is checked; if absent, the evidence of runs without a changeset.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub changeset_id: Option<ChangesetId>,
    /// The highest accepted effective tier. Default: 2.
    #[serde(default = "two")]
    pub max_tier: Tier,
    /// Maximum age of the run and of the earlier executions whose results it uses: a duration such as `30m`, `24h`,
    /// `7d`, or `unlimited`. Default: `24h` for the run, and no limit for the executions besides that of the run itself.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_age: Option<String>,
    /// If true, a run that is not recorded in Proctor's state directory is accepted.
    #[serde(default)]
    pub accept_unattested: bool,
    /// The widest accepted trust scope of cache contents. Default: `default`, which accepts all.
    #[serde(default)]
    pub max_cache_trust: CacheTrust,
    /// If true, a run is refused if its steps could see files that its snapshot does not cover: ignored files, or the
    /// worktree itself.
    #[serde(default)]
    pub strict_inputs: bool,
    /// If true, a run is refused if other machines executed its steps: workers of a cluster, or machines whose shared
    /// results it uses.
    #[serde(default)]
    pub this_machine: bool,
}

impl RunSubmission {
    /// Creates a request with the default for all other fields.
    pub fn new(repo: String, profile: ProfileName) -> Self {
        Self {
            repo,
            profile,
            changeset_id: None,
            rev: None,
            submodules: false,
            max_tier: two(),
            sandbox: SandboxMode::default(),
            fail_fast: false,
            changes: ChangeDelivery::default(),
            reuse: Reuse::default(),
            skills: SkillFilter::default(),
            scope: ScopeRequest::default(),
            no_caches: false,
            no_cache: false,
            env: None,
        }
    }

    /// Returns the recorded form of the request; `repo` is the canonical path.
    pub fn to_recorded(&self, repo: String) -> RecordedRequest {
        RecordedRequest {
            repo,
            profile: self.profile.clone(),
            changeset_id: self.changeset_id.clone(),
            rev: self.rev.clone(),
            submodules: self.submodules,
            max_tier: self.max_tier,
            sandbox: self.sandbox,
            fail_fast: self.fail_fast,
            changes: self.changes,
            skills: self.skills,
            scope: self.scope.clone(),
            no_caches: self.no_caches,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requires_repo_and_profile_and_rejects_unknown_fields() {
        let submission: RunSubmission = serde_json::from_str(r#"{"repo":"/r","profile":"pr"}"#).expect("reads");
        assert_eq!(submission, RunSubmission::new("/r".into(), ProfileName::new("pr").expect("a name")));
        assert_eq!((submission.max_tier, submission.reuse, submission.env), (Tier::TWO, Reuse::Verified, None));
        serde_json::from_str::<RunSubmission>(r#"{"repo":"/r","profile":"pr","profil":"x"}"#).expect_err("unknown");
        serde_json::from_str::<RunSubmission>(r#"{"repo":"/r","profile":"pr","changeset_id":"../x"}"#)
            .expect_err("bad");
        serde_json::from_str::<RunSubmission>(r#"{"repo":"/r","repo":"/s","profile":"pr"}"#).expect_err("twice");
    }
}
