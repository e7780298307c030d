//! What callers ask of the daemon.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::cache::CacheTrust;
use crate::enforcement::SandboxMode;
use crate::names::{ChangesetId, ProfileName};
use crate::tier::Tier;

/// The body of `POST /v1/runs`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct RunSubmission {
    /// The top of the repository's work tree, as an absolute path.
    #[schemars(extend("pattern" = "^/"))]
    pub repo: String,
    /// The profile.
    pub profile: ProfileName,
    /// The changeset that gets the evidence; without one it goes to the daemon's store.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub changeset_id: Option<ChangesetId>,
    /// A revision that names one commit: its tree is verified, apart from the worktree.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rev: Option<String>,
    /// Whether the commit's submodules are checked out too.
    #[serde(default)]
    pub submodules: bool,
    /// The highest tier that may run. Default: 2.
    #[serde(default = "two")]
    pub max_tier: Tier,
    /// What is done where controls of the sandbox are missing.
    #[serde(default)]
    pub sandbox: SandboxMode,
    /// Whether no further skill starts after the first that does not pass.
    #[serde(default)]
    pub fail_fast: bool,
    /// What becomes of the changes that steps make.
    #[serde(default)]
    pub changes: ChangesAsked,
    /// Whether an earlier result may be the answer.
    #[serde(default)]
    pub reuse: Reuse,
    /// Which skills of the profile run.
    #[serde(default, skip_serializing_if = "SkillsAsked::is_all")]
    pub skills: SkillsAsked,
    /// Whether each skill begins with empty caches and what it leaves in them is thrown away. No earlier result is
    /// the answer then.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub no_caches: bool,
    /// What `env_allowlist` of the spec takes variables from. Where it is absent, the daemon's own
    /// environment stands in for it, or, where the daemon serves several users, nothing.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub env: Option<BTreeMap<String, String>>,
}

fn two() -> Tier {
    Tier::TWO
}

/// What becomes of the changes that steps make.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum ChangesAsked {
    /// Those of `read_only: off` steps are applied to the worktree, where that is what is verified.
    #[default]
    Applied,
    /// All of them are kept as one patch, and nothing is applied.
    Patch,
}

/// Whether an earlier result may be the answer.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Reuse {
    /// A passed run of this very tree, spec and plan, whose evidence still stands, is the answer.
    #[default]
    Verified,
    /// Everything runs, unless the same is running already.
    Never,
}

/// Which skills of the profile run.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum SkillsAsked {
    /// All of them.
    #[default]
    All,
    /// Those that did not pass when they last ran, and what they need; all of them where that is none. Such a run never
    /// stands for the whole profile: no gate takes it, and it has neither a changeset nor a `rev`.
    NotPassed,
}

impl SkillsAsked {
    /// Whether all of them run.
    pub fn is_all(&self) -> bool {
        *self == Self::All
    }
}

/// What was asked for, as it is on record: a [`RunSubmission`] without the caller's environment.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Asked {
    /// The top of the repository's work tree, canonical; bytes that are no text as `\xNN`.
    pub repo: String,
    /// The profile.
    pub profile: ProfileName,
    /// The changeset, where there is one.
    pub changeset_id: Option<ChangesetId>,
    /// The revision, as it was written.
    pub rev: Option<String>,
    /// Whether the commit's submodules are checked out too.
    pub submodules: bool,
    /// The highest tier that may run.
    pub max_tier: Tier,
    /// What is done where controls of the sandbox are missing.
    pub sandbox: SandboxMode,
    /// Whether no further skill starts after the first that does not pass.
    pub fail_fast: bool,
    /// What becomes of the changes that steps make.
    pub changes: ChangesAsked,
    /// Which skills of the profile run; where it is absent, all of them.
    #[serde(default, skip_serializing_if = "SkillsAsked::is_all")]
    pub skills: SkillsAsked,
    /// Whether each skill begins with empty caches; where it is absent, it does not.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub no_caches: bool,
}

/// The body of `POST /v1/plans`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct PlanAsked {
    /// The top of the repository's work tree, as an absolute path.
    #[schemars(extend("pattern" = "^/"))]
    pub repo: String,
    /// The profile whose plan is wanted; without one, the spec is validated.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub profile: Option<ProfileName>,
}

/// The body of `POST /v1/gate`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct GateAsked {
    /// The top of the repository's work tree, as an absolute path.
    #[schemars(extend("pattern" = "^/"))]
    pub repo: String,
    /// The profile that must have passed.
    pub profile: ProfileName,
    /// The changeset whose evidence counts; without one, that of runs without one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub changeset_id: Option<ChangesetId>,
    /// The highest effective tier that is accepted. Default: 2.
    #[serde(default = "two")]
    pub max_tier: Tier,
    /// How old the run may be: a duration such as `30m`, `24h`, `7d`, or `unlimited`. Default: `24h`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_age: Option<String>,
    /// Whether a run that our own state does not know is accepted.
    #[serde(default)]
    pub accept_unattested: bool,
    /// From how wide a scope content of caches may come. Default: `default`, which is any.
    #[serde(default)]
    pub max_cache_trust: CacheTrust,
    /// Whether a run is refused whose steps could see files that its snapshot does not cover: ignored files, or the
    /// worktree itself.
    #[serde(default)]
    pub strict_inputs: bool,
}

impl RunSubmission {
    /// A request that says no more than it must: what its body leaves out is as it is there.
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
            changes: ChangesAsked::default(),
            reuse: Reuse::default(),
            skills: SkillsAsked::default(),
            no_caches: false,
            env: None,
        }
    }

    /// What of it goes on record; `repo` is the canonical path.
    pub fn asked(&self, repo: String) -> Asked {
        Asked {
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
            no_caches: self.no_caches,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn two_fields_are_enough_and_a_third_must_be_known() {
        let asked: RunSubmission = serde_json::from_str(r#"{"repo":"/r","profile":"pr"}"#).expect("reads");
        assert_eq!(asked, RunSubmission::new("/r".into(), ProfileName::new("pr").expect("a name")));
        assert_eq!((asked.max_tier, asked.reuse, asked.env), (Tier::TWO, Reuse::Verified, None));
        serde_json::from_str::<RunSubmission>(r#"{"repo":"/r","profile":"pr","profil":"x"}"#).expect_err("unknown");
        serde_json::from_str::<RunSubmission>(r#"{"repo":"/r","profile":"pr","changeset_id":"../x"}"#)
            .expect_err("bad");
        serde_json::from_str::<RunSubmission>(r#"{"repo":"/r","repo":"/s","profile":"pr"}"#).expect_err("twice");
    }
}
