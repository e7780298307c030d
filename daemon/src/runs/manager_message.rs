//! Messages to the owner of all runs, with their answers.

use std::sync::Arc;

use proctor_core::api::SubmissionOutcome;
use proctor_core::model::names::RunId;
use tokio::sync::oneshot;

use super::admission_refusal::AdmissionRefusal;
use super::live_run::LiveRun;
use super::run_key::RunKey;
use super::run_task::RunJob;
use super::serialized_run::SerializedRun;

/// A message to the owner of runs.
pub(super) enum ManagerMessage {
    Admit(Box<RunAdmission>, oneshot::Sender<Result<(SubmissionOutcome, Arc<LiveRun>), AdmissionRefusal>>),
    Find(RunId, oneshot::Sender<Option<FoundRun>>),
    FindActive(RunKey, oneshot::Sender<Option<Arc<LiveRun>>>),
    FindLast(RunKey, oneshot::Sender<Option<LastRunOfKey>>),
    Cache(Arc<SerializedRun>),
    Cancel(RunId, String),
    Abandon(RunId, String),
    Drain(String),
    CancelAll(String),
    Ping(oneshot::Sender<()>),
}

/// A request to start or join a run.
pub struct RunAdmission {
    /// Identity of the request: equal keys mean the same run.
    pub key: RunKey,
    /// An active run of the same key that verifies the requested tree.
    pub same_tree: Option<RunId>,
    /// The job to start if no run can be joined.
    pub job: RunJob,
}

/// A run that the owner tracks.
pub enum FoundRun {
    /// The run is active or has just ended.
    Live(Arc<LiveRun>),
    /// The run has ended.
    Ended(Arc<SerializedRun>),
}

impl FoundRun {
    /// Returns the current state of the run.
    pub fn current(&self) -> Arc<SerializedRun> {
        match self {
            Self::Live(live) => live.current(),
            Self::Ended(shown) => Arc::clone(shown),
        }
    }

    /// Returns the run if it is still tracked live.
    pub fn live(&self) -> Option<&Arc<LiveRun>> {
        match self {
            Self::Live(live) => Some(live),
            Self::Ended(_) => None,
        }
    }
}

/// Result of the last run with a key, as far as this daemon knows. It is only an optimization.
#[derive(Debug, Clone)]
pub struct LastRunOfKey {
    /// Key of the request.
    pub key: RunKey,
    /// The run.
    pub run: RunId,
    /// `true` if the run passed.
    pub passed: bool,
}

/// Cached finished runs.
pub(super) type RecentRuns = Arc<[Arc<SerializedRun>]>;
