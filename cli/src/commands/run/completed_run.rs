//! The result of a run.

use std::pin::Pin;

use proctor_core::decision::verdict::{InconclusiveDetail, Verdict};
use proctor_core::model::names::RunId;
use proctor_runner::{FinishedRun, PatchResult};

use crate::error::CliError;

/// The result of a run, from a daemon or from this process.
#[derive(Debug)]
pub(in crate::commands) struct CompletedRun {
    pub(super) verdict: Verdict,
    pub(super) exit_code: u8,
    /// Reasons for an inconclusive verdict that no event reported.
    pub(super) doubts: Vec<InconclusiveDetail>,
    /// Changes of the steps, if a patch was requested.
    pub(super) patch: Option<PatchResult>,
    /// The earlier run whose result was reused. In that case nothing ran and there are no events.
    pub(in crate::commands) reused: Option<ReusedRun>,
}

/// An earlier run.
#[derive(Debug, Clone)]
pub(in crate::commands) struct ReusedRun {
    /// Id of the run.
    pub run: RunId,
    /// Time of the end, if known.
    pub ended: Option<String>,
}

impl CompletedRun {
    /// Returns the result of an earlier run that passed.
    pub(super) fn from_reused_run(earlier: ReusedRun) -> Self {
        Self { verdict: Verdict::Passed, exit_code: 0, doubts: Vec::new(), patch: None, reused: Some(earlier) }
    }
}

impl From<FinishedRun> for CompletedRun {
    fn from(report: FinishedRun) -> Self {
        let FinishedRun { verdict, exit_code, inconclusive_reasons: doubts, patch, .. } = report;
        Self { verdict, exit_code, doubts, patch, reused: None }
    }
}

/// The future that carries out a run.
pub(super) type RunFuture = Pin<Box<dyn Future<Output = Result<CompletedRun, CliError>> + Send>>;
