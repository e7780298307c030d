//! Holds what the remote steps of one run have in common.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};

use proctor_core::model::plan::{Plan, PlannedCheck, PlannedSkill, PlannedStep};
use proctor_core::record::evidence::{WorkerEvidence, WorkerProgram};
use proctor_core::reuse::ReuseObstacle;
use proctor_core::spec::{ExecutorMode, RemoteExecutorSettings};
use proctor_git::helper::GitHelper;
use proctor_remote::MerkleTree;
use tokio::sync::OnceCell;

use super::executor::RemoteExecutor;
use super::git_objects::GitObjectReader;
use super::input_root::GitTree;
use super::needed_paths::NeededPathTrees;

/// Maximum number of programs that a run keeps for workers with the same properties.
const MAX_KNOWN_PROGRAMS: usize = 1_000;

/// The cluster during one run, and what its steps have in common.
#[derive(Debug)]
pub(crate) struct RemoteRun {
    pub(crate) settings: RemoteExecutorSettings,
    /// The executor, or the reason why the config cannot be used.
    pub(crate) executor: Result<RemoteExecutor, String>,
    pub(crate) git: GitObjectSource,
    plan: RemotePlan,
    /// The programs that workers have reported in this run, by the requested properties.
    programs: Mutex<BTreeMap<BTreeMap<String, String>, Vec<WorkerProgram>>>,
    /// The trees, once a step needed them; an error if workers cannot get them.
    pub(crate) trees: OnceCell<Result<RemoteTrees, String>>,
    pub(crate) needed_paths: NeededPathTrees,
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
    pub(crate) git: Option<Arc<GitTree>>,
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
        let (programs, needed_paths) = (Mutex::default(), NeededPathTrees::default());
        Self { settings, executor, git, plan, programs, trees: OnceCell::new(), needed_paths }
    }

    /// Returns whether the cluster executes steps of this kind. Steps that judge SQL run Proctor's own programs on this
    /// machine.
    pub(crate) fn executes(&self, step: &PlannedStep) -> bool {
        self.settings.mode != ExecutorMode::Local && step.sql.is_none()
    }

    /// Returns whether a step runs on this machine if the cluster does not execute it.
    pub(crate) fn falls_back(&self) -> bool {
        self.settings.mode == ExecutorMode::Hybrid
    }

    /// Remembers the programs that a worker with these properties has reported.
    pub(crate) fn note_programs(&self, platform: &BTreeMap<String, String>, worker: &WorkerEvidence) {
        let mut programs = self.programs.lock().unwrap_or_else(PoisonError::into_inner);
        let known = programs.entry(platform.clone()).or_default();
        let new = worker.programs.iter().filter(|program| !known.contains(program)).cloned();
        let new: Vec<WorkerProgram> = new.take(MAX_KNOWN_PROGRAMS.saturating_sub(known.len())).collect();
        known.extend(new);
    }

    /// Returns the programs that workers with these properties have reported in this run.
    pub(crate) fn programs_of(&self, platform: &BTreeMap<String, String>) -> Vec<WorkerProgram> {
        let programs = self.programs.lock().unwrap_or_else(PoisonError::into_inner);
        programs.get(platform).cloned().unwrap_or_default()
    }

    /// Returns the maximum age of the results of workers for the steps of a skill.
    ///
    /// # Errors
    /// The reason why such results are neither stored nor used.
    pub(crate) fn max_result_age_ms(&self, skill: &PlannedSkill) -> Result<u64, ReuseObstacle> {
        if !self.settings.trust_workers {
            return Err(ReuseObstacle::UntrustedWorkers);
        }
        let platform = self.settings.platform_of(&skill.platform, &skill.container);
        let unpinned = || ReuseObstacle::UnpinnedWorker { property: self.settings.container_property.clone() };
        self.settings.max_result_age_ms(&platform).ok_or_else(unpinned)
    }

    /// Returns the toolchain checks that precede a step on the worker. A check runs as the step of a skill that is not
    /// in the plan. In hybrid mode, it is sent as its own check, so that this machine runs it if the worker does not
    /// satisfy it.
    pub(crate) fn checks(&self, skill: &PlannedSkill, step: &PlannedStep) -> Vec<PlannedCheck> {
        let is_planned = self.plan.skills.iter().any(|planned| planned == skill);
        let precedes = |check: &&PlannedCheck| match is_planned {
            true => skill.toolchains.includes(&check.toolchain),
            false => self.falls_back() && check.run == *step,
        };
        self.plan.checks.iter().filter(precedes).cloned().collect()
    }
}
