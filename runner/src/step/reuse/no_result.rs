//! The reasons why no stored result of a step is used.

use std::fmt;

use proctor_core::reuse::{ChangedInput, ReuseObstacle, WorkerChange};

use super::SECONDS_PER_DAY;
use crate::store::StoreError;
use crate::store::results::MAX_AGE;

/// The reason why no stored result is used.
#[derive(Debug)]
pub(crate) enum NoResult {
    /// The step is never reused.
    Obstacle(ReuseObstacle),
    /// No result is stored for the current key of the step.
    NotStored,
    /// The request disables stored results.
    NotWanted,
    /// The request starts with empty caches, and the skill has caches.
    EmptyCaches,
    /// A command would prepare a path of `needs_paths` first, as this text describes.
    Unprepared(String),
    /// This input differs from that of the newest result.
    Changed(ChangedInput),
    /// All results are too old.
    TooOld,
    /// All results of workers are too old.
    TooOldOfWorkers,
    /// The inputs that a worker would get differ from the inputs of the newest result.
    ChangedForWorkers(WorkerChange),
    /// In this run, a worker has reported different content of this program.
    ChangedProgram(String),
    /// This report of the execution has been removed.
    ReportRemoved(String),
    /// A check found a wrong result.
    Distrusted(String),
    /// A result is valid, and the step is executed to check it.
    Recheck,
    /// A result of a worker is valid, and the step is executed on a worker to check it.
    RecheckOnWorker,
    /// The results cannot be read.
    Unreadable(StoreError),
}

impl From<StoreError> for NoResult {
    fn from(error: StoreError) -> Self {
        Self::Unreadable(error)
    }
}

impl fmt::Display for NoResult {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Obstacle(obstacle) => write!(f, "its results are not reused: {obstacle}"),
            Self::NotStored => f.write_str(
                "no result is stored for this command with these settings, variables and programs of Proctor",
            ),
            Self::NotWanted => f.write_str("the request does not use stored results (`--no-cache`)"),
            Self::EmptyCaches => f.write_str("the request starts with empty caches (`--no-caches`)"),
            Self::Unprepared(text) => f.write_str(text),
            Self::Changed(change) => change.fmt(f),
            Self::TooOld => write!(f, "every stored result is older than {} days", MAX_AGE.as_secs() / SECONDS_PER_DAY),
            Self::TooOldOfWorkers => write!(
                f,
                "every stored result of a worker is older than {} days, or than `unpinned_max_age_ms` of \
                 `[remote_executor]`",
                MAX_AGE.as_secs() / SECONDS_PER_DAY
            ),
            Self::ChangedForWorkers(change) => change.fmt(f),
            Self::ChangedProgram(name) => write!(f, "the workers have a different program `{name}`"),
            Self::ReportRemoved(path) => write!(f, "its report `{path}` is no longer stored"),
            Self::Distrusted(reason) => write!(f, "it is excluded from reuse: {reason}"),
            Self::Recheck | Self::RecheckOnWorker => {
                f.write_str("a stored result is valid, and this execution checks it")
            }
            Self::Unreadable(error) => write!(f, "the stored results cannot be read: {error}"),
        }
    }
}
