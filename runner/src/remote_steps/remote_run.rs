//! Holds what the remote steps of one run have in common.

use std::sync::Arc;

use proctor_core::model::plan::{Plan, PlannedCheck, PlannedSkill, PlannedStep};
use proctor_core::spec::{ExecutorMode, RemoteExecutorSettings};
use proctor_git::helper::GitHelper;
use proctor_remote::MerkleTree;
use tokio::sync::OnceCell;

use super::executor::RemoteExecutor;
use super::git_objects::GitObjectReader;

/// The cluster during one run, and what its steps have in common.
#[derive(Debug)]
pub(crate) struct RemoteRun {
    pub(crate) settings: RemoteExecutorSettings,
    /// The executor, or the reason why the config cannot be used.
    pub(crate) executor: Result<RemoteExecutor, String>,
    pub(crate) git: GitObjectSource,
    plan: RemotePlan,
    /// The trees, once a step needed them; an error if workers cannot get them.
    pub(crate) trees: OnceCell<Result<RemoteTrees, String>>,
}

/// Reads git objects for workers.
#[derive(Debug, Clone)]
pub(crate) struct GitObjectSource {
    pub(crate) helper: GitHelper,
    /// Remembers the objects of the last tree. The runs of a process share it.
    pub(crate) reader: Arc<GitObjectReader>,
}

/// The parts of a plan that remote steps need.
#[derive(Debug)]
struct RemotePlan {
    checks: Vec<PlannedCheck>,
    skills: Vec<PlannedSkill>,
}

/// The trees that most steps of a run have in common.
#[derive(Debug, Clone)]
pub(crate) struct RemoteTrees {
    pub(crate) tree: Arc<MerkleTree>,
    pub(crate) git: Option<Arc<MerkleTree>>,
    /// The reason why `git` has no objects, unless there is no commit.
    pub(crate) no_git_objects: Option<String>,
}

impl RemoteRun {
    pub(crate) fn new(
        settings: RemoteExecutorSettings,
        executor: Result<RemoteExecutor, String>,
        git: GitObjectSource,
        plan: &Plan,
    ) -> Self {
        let plan = RemotePlan { checks: plan.toolchain.clone(), skills: plan.skills.clone() };
        Self { settings, executor, git, plan, trees: OnceCell::new() }
    }

    /// Returns whether the cluster executes steps of this kind. Steps that judge SQL run our own programs, here.
    pub(crate) fn executes(&self, step: &PlannedStep) -> bool {
        self.settings.mode != ExecutorMode::Local && step.sql.is_none()
    }

    /// Returns whether a step runs on this machine if the cluster does not execute it.
    pub(crate) fn falls_back(&self) -> bool {
        self.settings.mode == ExecutorMode::Hybrid
    }

    /// Returns the toolchain checks that precede a step on the worker. The checks themselves run as steps of skills that the
    /// plan does not have. If this machine is to replace a worker that does not satisfy a check, the check precedes itself.
    pub(crate) fn checks(&self, skill: &PlannedSkill, step: &PlannedStep) -> Vec<PlannedCheck> {
        let is_planned = self.plan.skills.iter().any(|planned| planned == skill);
        let precedes = |check: &&PlannedCheck| match is_planned {
            true => skill.toolchains.includes(&check.toolchain),
            false => self.falls_back() && check.run == *step,
        };
        self.plan.checks.iter().filter(precedes).cloned().collect()
    }
}
