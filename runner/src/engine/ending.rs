//! Ends a run: makes its record durable, and builds its last events and its report.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use proctor_core::event::RunEvent;
use proctor_core::plan::Plan;
use proctor_core::verdict::{self, Doubt};
use tokio::sync::oneshot;

use crate::context::Context;
use crate::error::EngineError;
use crate::finish::{self, Observed, Pass};
use crate::record::{self, RunFacts};
use crate::request::RunReport;
use crate::store::documents::Documents;

/// Writes the run's documents on a blocking thread.
pub(super) async fn written(
    context: &Arc<Context>,
    documents: Documents,
    observed: Observed,
    facts: RunFacts,
    plan: Plan,
    passed: oneshot::Sender<Pass>,
) -> Result<(Observed, RunFacts, Option<(Doubt, String)>), EngineError> {
    let context = Arc::clone(context);
    let writing = tokio::task::spawn_blocking(move || {
        let write = finish::write(&context, documents, &observed, &facts, &plan, passed);
        let doubt = tokio::runtime::Handle::current().block_on(write);
        (observed, facts, doubt)
    });
    writing.await.map_err(|error| EngineError::Internal(format!("writing the evidence ended badly: {error}")))
}

/// Withdraws the earlier pass that this run may refute, on a blocking thread.
pub(super) async fn superseding(
    context: &Arc<Context>,
    documents: Documents,
    facts: &RunFacts,
    plan: &Plan,
) -> Result<Documents, EngineError> {
    let (context, facts, plan) = (Arc::clone(context), facts.clone(), plan.clone());
    let work = tokio::task::spawn_blocking(move || {
        finish::withdraw_earlier_pass(&context, &documents, &facts, &plan)?;
        Ok::<_, EngineError>(documents)
    });
    work.await.map_err(|error| EngineError::Internal(format!("withdrawing an earlier pass ended badly: {error}")))?
}

/// Emits an event for a doubt, and returns the doubt.
pub(super) async fn emitted(context: &Context, doubt: Option<(Doubt, String)>) -> Option<(Doubt, String)> {
    if let Some((doubt, message)) = &doubt {
        context.emit(RunEvent::Doubted { doubt: *doubt, message: message.clone() }).await;
    }
    doubt
}

pub(super) fn report(observed: &Observed, facts: &RunFacts, evidence_dir: PathBuf) -> RunReport {
    let folded = observed.facts();
    RunReport {
        verdict: verdict::fold(&folded),
        exit_code: verdict::exit_code(&folded),
        tier: observed.tier(),
        run_id: facts.run_id.clone(),
        evidence_dir,
        doubts: observed.doubts.clone(),
        patch: observed.patch.clone(),
    }
}

pub(super) fn finished(report: &RunReport, duration: Duration) -> RunEvent {
    RunEvent::RunFinished {
        verdict: report.verdict,
        tier: report.tier,
        exit_code: report.exit_code,
        duration_ms: record::millis(duration),
        evidence_dir: Some(report.evidence_dir.display().to_string()),
    }
}
