//! What callers hand to the engine, and what they get back.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;

use proctor_core::digest::Sha256Hex;
use proctor_core::enforcement::SandboxMode;
use proctor_core::evidence::{StepEvidence, VERSION};
use proctor_core::exec::{DoubtRecord, ExecRecord};
use proctor_core::names::{ChangesetId, ProfileName, RunId};
use proctor_core::plan::PlannedStep;
use proctor_core::spec::Operator;
use proctor_core::telemetry::TraceContext;
use proctor_core::tier::{Tier, TierReason};
use proctor_core::verdict::{Doubt, Verdict};
use proctor_sandbox::{Policy, SetupOp};
use proctor_snapshot::protocol::StagedIndex;

use crate::environment::Environment;
use crate::error::EngineError;
use crate::live_output::LiveOutputs;
use crate::rerun;

/// What the engine needs to know of its surroundings.
#[derive(Debug, Clone)]
pub struct EngineConfig {
    /// Where we may keep files; made where it is absent.
    pub state_dir: PathBuf,
    /// Our helper programs.
    pub helpers: Helpers,
    /// Where the operator says that DuckDB's shared library is, as an absolute path; else it is looked for where systems
    /// and the user who runs us keep it.
    pub duckdb: Option<PathBuf>,
    /// The caller's home directory.
    pub home: PathBuf,
    /// The caller's environment; nothing of it reaches a step but by an allow-list.
    pub caller_env: BTreeMap<String, String>,
    /// What the operator allows.
    pub operator: Operator,
    /// Directories of ours that no step may see, beside the state directory: that of the daemon's
    /// socket. Each is absolute.
    pub hide: Vec<PathBuf>,
    /// Whether this process outlives its runs: then what a run leaves is put away after its answer, and what the next
    /// one needs is made meanwhile.
    pub stays: bool,
}

/// One caller of many, and what holds for what it asks for.
#[derive(Debug, Clone)]
pub struct Serving {
    /// The caller's home directory.
    pub home: PathBuf,
    /// The caller's environment.
    pub env: BTreeMap<String, String>,
    /// What the operator allows.
    pub operator: Operator,
    /// Whose a repository must be; `None` where it may be anybody's.
    pub owner: Option<u32>,
}

/// Our helper programs, as absolute paths.
#[derive(Debug, Clone)]
pub struct Helpers {
    /// `proctor-sandbox`.
    pub sandbox: PathBuf,
    /// `proctor-git`.
    pub git: PathBuf,
    /// `proctor-sql`.
    pub sql: PathBuf,
}

/// What a caller asks for.
#[derive(Debug, Clone)]
pub struct RunRequest {
    /// The run's id, where it has one already; else it is given one.
    pub run_id: Option<RunId>,
    /// The top of the repository's work tree.
    pub repo: PathBuf,
    /// Which tree is verified.
    pub source: RunSource,
    /// The profile.
    pub profile: ProfileName,
    /// The plan of the whole profile that the caller knows, where only that one, or a part of it, is to run.
    pub plan_sha256: Option<Sha256Hex>,
    /// The changeset that gets the evidence; without one it goes to the state directory.
    pub changeset: Option<ChangesetId>,
    /// The highest tier that the caller may run.
    pub max_tier: Tier,
    /// What is done where controls of the sandbox are missing.
    pub sandbox: SandboxMode,
    /// Whether no further skill starts after the first that does not pass.
    pub fail_fast: bool,
    /// What becomes of the changes that steps make.
    pub changes: ChangesWanted,
    /// Which skills of the profile run.
    pub skills: SkillsWanted,
    /// What the caches of skills begin with.
    pub caches: CachesWanted,
    /// Where readers see what steps print while they run; `None` where there are no readers.
    pub live: Option<LiveOutputs>,
    /// Whether the run is traced.
    pub trace: Tracing,
}

/// Whether and where a run is a part of a distributed trace.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Tracing {
    /// The span of the caller, if there is any.
    pub parent: Option<TraceContext>,
    /// Whether spans of the run are exported.
    pub exported: bool,
}

impl Tracing {
    /// Returns whether a run is traced, where spans `can_be_exported`: a trace that the caller does not record is not
    /// continued.
    pub fn new(parent: Option<TraceContext>, can_be_exported: bool) -> Self {
        let is_wanted = parent.as_ref().is_none_or(TraceContext::is_sampled);
        Self { parent, exported: can_be_exported && is_wanted }
    }
}

impl RunRequest {
    /// Refuses a request for a part of the profile where the whole is wanted.
    pub(crate) fn demand_whole(&self) -> Result<(), EngineError> {
        let commit = match &self.source {
            RunSource::Worktree => None,
            RunSource::Commit { id, .. } | RunSource::Staged { id, .. } => Some(id.as_str()),
        };
        rerun::demand_whole(self.skills, self.changeset.as_ref(), commit)
    }
}

/// Which skills of the profile run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SkillsWanted {
    /// All of them.
    All,
    /// Those that did not pass when they last ran without a changeset, and what they need; all of them where that is
    /// none.
    NotPassed,
}

/// What the caches of the skills of a run begin with.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CachesWanted {
    /// What earlier passes have left; what a skill leaves is kept where it passes.
    Kept,
    /// Nothing; and what a skill leaves is thrown away.
    Empty,
}

/// Which tree a run verifies.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum RunSource {
    /// The worktree as it is.
    Worktree,
    /// The tree of a commit, apart from the worktree.
    Commit {
        /// Its id, in full, as [`Engine::resolve_revision`](crate::Engine::resolve_revision) gives it.
        id: String,
        /// Whether submodules are checked out too.
        submodules: bool,
    },
    /// What is staged in an index, as the commit that it would make.
    Staged {
        /// The commit's id, as [`Engine::staged`](crate::Engine::staged) gives it.
        id: String,
        /// The index.
        index: StagedIndex,
    },
}

/// What becomes of the changes that steps make.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ChangesWanted {
    /// Those of `read_only: off` steps are applied to the worktree, where that is what is verified.
    Applied,
    /// All of them are answered as one patch, and nothing is applied.
    AsPatch,
}

/// What a run came to; its evidence is durable by now.
#[derive(Debug, Clone)]
pub struct RunReport {
    /// What it means.
    pub verdict: Verdict,
    /// The exit code of `proctor run`.
    pub exit_code: u8,
    /// The highest effective tier of its skills.
    pub tier: Tier,
    /// The run.
    pub run_id: RunId,
    /// The directory that holds the evidence.
    pub evidence_dir: PathBuf,
    /// Why there is no honest answer, or none in part.
    pub doubts: Vec<(Doubt, String)>,
    /// What its steps changed, where that was wanted as a patch.
    pub patch: Option<Patch>,
}

/// What the steps of a run changed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Patch {
    /// As `git apply` takes it; empty where they changed nothing.
    Made(Vec<u8>),
    /// Why it cannot be written.
    Refused(String),
}

/// One command that is run by itself.
#[derive(Debug, Clone)]
pub struct ExecRequest {
    /// The top of the repository's work tree.
    pub repo: PathBuf,
    /// The command, resolved like a step.
    pub step: PlannedStep,
    /// What is done where controls of the sandbox are missing.
    pub sandbox: SandboxMode,
}

/// What one command came to.
#[derive(Debug, Clone)]
pub struct ExecReport {
    /// What it did, and what that means.
    pub step: StepReport,
    /// What is kept of its standard output.
    pub stdout: Vec<u8>,
    /// What is kept of its standard error.
    pub stderr: Vec<u8>,
}

/// What one command of a session came to.
#[derive(Debug, Clone)]
pub struct StepReport {
    /// What it did, as a step's record.
    pub evidence: StepEvidence,
    /// What it means.
    pub verdict: Verdict,
    /// The exit code of a run with this one step.
    pub exit_code: u8,
    /// The effective tier.
    pub tier: Tier,
    /// Why it is higher than the lowest.
    pub tier_reasons: BTreeSet<TierReason>,
    /// Why there is no honest answer.
    pub doubts: Vec<(Doubt, String)>,
}

impl StepReport {
    /// The same as the document that `proctor exec` prints.
    pub fn into_record(self, sandbox: SandboxMode) -> ExecRecord {
        let doubts = self.doubts.into_iter().map(|(doubt, message)| DoubtRecord { doubt, message });
        ExecRecord {
            version: VERSION,
            sandbox,
            step: self.evidence,
            verdict: self.verdict,
            exit_code: self.exit_code,
            tier: self.tier,
            tier_reasons: self.tier_reasons,
            doubts: doubts.collect(),
        }
    }
}

/// What a step would be given: for `explain`.
#[derive(Debug, Clone)]
pub struct Preview {
    /// Its environment, and who gave each variable.
    pub environment: Environment,
    /// What must hold for it.
    pub policy: Policy,
    /// How the sandbox is set up.
    pub ops: Vec<SetupOp>,
}
