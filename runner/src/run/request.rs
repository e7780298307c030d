//! Defines the requests that callers send to the engine, and its reports.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;

use proctor_core::decision::verdict::{InconclusiveDetail, Verdict};
use proctor_core::model::enforcement::SandboxMode;
use proctor_core::model::exec::ExecRecord;
use proctor_core::model::names::{ChangesetId, ProfileName, RunId};
use proctor_core::model::plan::{PlannedStep, RelPath};
use proctor_core::model::run_scope::ScopeRequest;
use proctor_core::model::tier::{Tier, TierReason};
use proctor_core::record::evidence::{StepEvidence, VERSION};
use proctor_core::spec::OperatorConfig;
use proctor_core::telemetry::TraceContext;
use proctor_core::text::digest::Sha256Hex;
use proctor_git::protocol::CommitRef;
use proctor_sandbox::{Policy, SetupOp};

use crate::error::EngineError;
use crate::host::environment::Environment;
use crate::step::live_output::LiveOutputs;

/// Configuration of the engine.
#[derive(Debug, Clone)]
pub struct EngineConfig {
    /// Directory for our files; created if it does not exist.
    pub state_dir: PathBuf,
    /// Our helper programs.
    pub helpers: HelperPrograms,
    /// Absolute path of DuckDB's shared library, as the operator configured it. If it is `None`, the engine
    /// searches the directories in which systems and the user who runs us keep libraries.
    pub duckdb: Option<PathBuf>,
    /// The caller's home directory.
    pub home: PathBuf,
    /// The caller's environment. A step gets only the variables on its allow-list.
    pub caller_env: BTreeMap<String, String>,
    /// The operator's configuration.
    pub operator: OperatorConfig,
    /// Absolute paths of further directories that no step may see, besides the state directory: that of the
    /// daemon's socket.
    pub hidden_dirs: Vec<PathBuf>,
    /// True if this process outlives its runs. It then cleans up a run after reporting the result, and prepares
    /// resources for the next run in the background.
    pub is_long_running: bool,
}

/// One caller of many, and the settings for its requests.
#[derive(Debug, Clone)]
pub struct EngineCaller {
    /// The caller's home directory.
    pub home: PathBuf,
    /// The caller's environment.
    pub env: BTreeMap<String, String>,
    /// The operator's configuration.
    pub operator: OperatorConfig,
    /// Required owner of the repository; `None` accepts any.
    pub owner: Option<u32>,
}

/// Absolute paths of our helper programs.
#[derive(Debug, Clone)]
pub struct HelperPrograms {
    /// `proctor-sandbox`.
    pub sandbox: PathBuf,
    /// `proctor-git`.
    pub git: PathBuf,
    /// `proctor-sql`.
    pub sql: PathBuf,
}

/// A request for a run.
#[derive(Debug, Clone)]
pub struct RunRequest {
    /// The run's id; `None` generates one.
    pub run_id: Option<RunId>,
    /// The directory of the spec, which is the top of the worktree or in it.
    pub repo: PathBuf,
    /// The directory that contains `spec/` in the verified tree, which the worktree may lack; `None` for `repo` itself.
    pub spec_dir: Option<RelPath>,
    /// The tree to verify.
    pub source: RunSource,
    /// The profile.
    pub profile: ProfileName,
    /// Expected digest of the whole profile's plan; the run is refused if the spec now results in another plan.
    pub plan_sha256: Option<Sha256Hex>,
    /// The changeset that gets the evidence; `None` writes it to the state directory.
    pub changeset: Option<ChangesetId>,
    /// The highest tier that the caller may run.
    pub max_tier: Tier,
    /// Handling of missing sandbox controls.
    pub sandbox: SandboxMode,
    /// True if no further skill starts after the first one that does not pass.
    pub fail_fast: bool,
    /// How to handle the changes that steps make.
    pub changes: ChangeHandling,
    /// The skills of the profile to run.
    pub skills: SkillSelection,
    /// The steps and files to which the run is restricted.
    pub scope: ScopeRequest,
    /// The initial content of the skills' caches.
    pub caches: CacheMode,
    /// True if stored results of steps are used when every input that they read is the same.
    pub reuses_steps: bool,
    /// Gives readers the output of steps while they run; `None` if there are no readers.
    pub live: Option<LiveOutputs>,
    /// The tracing settings of the run.
    pub trace: TraceSettings,
}

/// The distributed trace that a run belongs to, and whether its spans are exported.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct TraceSettings {
    /// The caller's span, if there is one.
    pub parent: Option<TraceContext>,
    /// True if the run's spans are exported.
    pub exported: bool,
}

impl TraceSettings {
    /// Returns the tracing settings of a run. Spans are exported if `can_be_exported` is set, unless the caller's
    /// trace is not sampled.
    pub fn new(parent: Option<TraceContext>, can_be_exported: bool) -> Self {
        let is_wanted = parent.as_ref().is_none_or(TraceContext::is_sampled);
        Self { parent, exported: can_be_exported && is_wanted }
    }
}

impl RunRequest {
    /// Refuses a request that runs a part of the profile but needs the whole profile.
    pub(crate) fn require_whole_profile(&self) -> Result<(), EngineError> {
        let commit = match &self.source {
            RunSource::Worktree => None,
            RunSource::Commit { id, .. } | RunSource::Staged(CommitRef { id, .. }) => Some(id.as_str()),
        };
        require_whole_profile(self.skills, self.changeset.as_ref(), commit)
    }
}

/// Refuses a partial run that must cover the whole profile: for a changeset, or of a commit.
///
/// # Errors
/// The run is partial, and is for a changeset or of the tree of `commit`.
pub fn require_whole_profile(
    skills: SkillSelection,
    changeset: Option<&ChangesetId>,
    commit: Option<&str>,
) -> Result<(), EngineError> {
    match (skills, changeset, commit) {
        (SkillSelection::All, _, _) | (SkillSelection::NotPassed, None, None) => Ok(()),
        (SkillSelection::NotPassed, Some(id), _) => Err(EngineError::PartialChangeset(id.clone())),
        (SkillSelection::NotPassed, None, Some(_)) => Err(EngineError::PartialCommit),
    }
}

/// The skills of the profile to run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SkillSelection {
    /// All skills of the profile.
    All,
    /// The skills that did not pass in the last run without a changeset, and the skills that they need; all skills
    /// if every one passed.
    NotPassed,
}

/// The initial content of the caches of a run's skills.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CacheMode {
    /// Caches start with the content from earlier passes. A skill that passes commits its cache.
    Persistent,
    /// Caches start empty and are discarded after the run.
    Empty,
}

/// The tree that a run verifies.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum RunSource {
    /// The worktree in its current state.
    Worktree,
    /// The tree of a commit, independent of the worktree.
    Commit {
        /// The commit's full id, from [`Engine::resolve_revision`](crate::Engine::resolve_revision).
        id: String,
        /// True if submodules are checked out too.
        submodules: bool,
    },
    /// The staged content of an index, as the commit that it would create, from
    /// [`Engine::staged_commit`](crate::Engine::staged_commit).
    Staged(CommitRef),
}

/// The handling of changes that steps make.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ChangeHandling {
    /// Changes of `read_only: off` steps are applied to the worktree, if the run verifies the worktree.
    Apply,
    /// All changes are returned as one patch; nothing is applied.
    AsPatch,
}

/// The result of a run, returned once its evidence is durable.
#[derive(Debug, Clone)]
pub struct FinishedRun {
    /// The verdict.
    pub verdict: Verdict,
    /// The exit code of `proctor run`.
    pub exit_code: u8,
    /// The highest effective tier of the run's skills.
    pub tier: Tier,
    /// The run's id.
    pub run_id: RunId,
    /// The directory that holds the evidence.
    pub evidence_dir: PathBuf,
    /// The reasons why the run, or a part of it, is inconclusive.
    pub inconclusive_reasons: Vec<InconclusiveDetail>,
    /// The changes of the steps, if the request has `changes: patch`.
    pub patch: Option<PatchResult>,
}

/// The changes of a run's steps.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum PatchResult {
    /// The patch as `git apply` accepts it; empty if there were no changes.
    Written(Vec<u8>),
    /// The reason why the changes cannot be written as a patch.
    Refused(String),
}

/// A request for a single command.
#[derive(Debug, Clone)]
pub struct ExecRequest {
    /// Top directory of the repository's worktree.
    pub repo: PathBuf,
    /// The command, resolved like a step.
    pub step: PlannedStep,
    /// Handling of missing sandbox controls.
    pub sandbox: SandboxMode,
}

/// The result of a single command.
#[derive(Debug, Clone)]
pub struct ExecOutput {
    /// The record of the command and its verdict.
    pub step: JudgedCommand,
    /// The stored part of the standard output.
    pub stdout: Vec<u8>,
    /// The stored part of the standard error.
    pub stderr: Vec<u8>,
}

/// The result of one command of a session.
#[derive(Debug, Clone)]
pub struct JudgedCommand {
    /// The command's record, in the form of a step's.
    pub evidence: StepEvidence,
    /// The verdict.
    pub verdict: Verdict,
    /// The exit code of a run with this one step.
    pub exit_code: u8,
    /// The effective tier.
    pub tier: Tier,
    /// The reasons why the tier is above the lowest one.
    pub tier_reasons: BTreeSet<TierReason>,
    /// The reasons why the result is inconclusive.
    pub inconclusive_reasons: Vec<InconclusiveDetail>,
}

impl JudgedCommand {
    /// Converts the report to the document that `proctor exec` prints.
    pub fn into_record(self, sandbox: SandboxMode) -> ExecRecord {
        ExecRecord {
            version: VERSION,
            sandbox,
            step: self.evidence,
            verdict: self.verdict,
            exit_code: self.exit_code,
            tier: self.tier,
            tier_reasons: self.tier_reasons,
            doubts: self.inconclusive_reasons,
        }
    }
}

/// The environment and sandbox that a step would get, for `explain`.
#[derive(Debug, Clone)]
pub struct SandboxPreview {
    /// The environment, with the source of each variable.
    pub environment: Environment,
    /// The sandbox policy.
    pub policy: Policy,
    /// The operations that set up the sandbox.
    pub ops: Vec<SetupOp>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn refuses_partial_run_for_changeset_or_commit() {
        let id = ChangesetId::new("009_x").expect("an id");
        let part = SkillSelection::NotPassed;
        assert!(
            require_whole_profile(part, None, None).is_ok()
                && require_whole_profile(SkillSelection::All, Some(&id), Some("HEAD")).is_ok()
        );
        assert!(matches!(require_whole_profile(part, Some(&id), None), Err(EngineError::PartialChangeset(_))));
        assert!(matches!(require_whole_profile(part, None, Some("HEAD")), Err(EngineError::PartialCommit)));
    }
}
