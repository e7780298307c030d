//! Ends a run: makes its record durable, and builds its last events and its report.

use std::path::PathBuf;
use std::sync::Arc;

use proctor_core::decision::verdict::{self, InconclusiveDetail};
use proctor_core::model::event::RunEvent;
use proctor_core::model::plan::Plan;
use tokio::sync::oneshot;

use crate::error::EngineError;
use crate::run::earlier_pass::EarlierPass;
use crate::run::evidence_builder::RunFacts;
use crate::run::finish::{self, RevocablePass, RunObservations};
use crate::run::request::{FinishedRun, PatchResult};
use crate::run::run_context::RunContext;
use crate::store::documents::RunDocumentDir;

/// Writes the run's documents on a blocking thread.
pub(super) async fn write_run_documents(
    context: &Arc<RunContext>,
    documents: Arc<RunDocumentDir>,
    observed: RunObservations,
    facts: RunFacts,
    plan: Plan,
    passed: oneshot::Sender<RevocablePass>,
) -> Result<(RunObservations, RunFacts, Option<InconclusiveDetail>), EngineError> {
    let context = Arc::clone(context);
    let writing = tokio::task::spawn_blocking(move || {
        let write = finish::write_documents(&context, documents, &observed, &facts, &plan, passed);
        let doubt = tokio::runtime::Handle::current().block_on(write);
        (observed, facts, doubt)
    });
    writing.await.map_err(|error| EngineError::Internal(format!("writing the evidence failed unexpectedly: {error}")))
}

/// Withdraws the earlier pass that this run may refute, on a blocking thread. If the run may start no command, that happens
/// before its first command.
pub(super) async fn withdraw_earlier_pass(
    context: &Arc<RunContext>,
    documents: &Arc<RunDocumentDir>,
    facts: &RunFacts,
    plan: &Plan,
) -> Result<(), EngineError> {
    let pending = finish::pending_run(context, facts, plan);
    if context.may_start_no_command(plan) {
        context.earlier_pass.get_or_init(|| EarlierPass::new(Arc::downgrade(documents), pending));
        return Ok(());
    }
    let documents = Arc::clone(documents);
    let work = tokio::task::spawn_blocking(move || documents.withdraw_earlier_pass(&pending));
    work.await.map_err(|error| {
        EngineError::Internal(format!("withdrawing an earlier pass failed unexpectedly: {error}"))
    })??;
    Ok(())
}

/// Emits an event for the reason of an inconclusive run, and returns the reason.
pub(super) async fn emit_inconclusive(
    context: &RunContext,
    doubt: Option<InconclusiveDetail>,
) -> Option<InconclusiveDetail> {
    if let Some(InconclusiveDetail { doubt, message }) = &doubt {
        context.emit(RunEvent::Doubted { doubt: *doubt, message: message.clone() }).await;
    }
    doubt
}

/// Builds the report of a run, without the caller's secrets.
pub(super) fn build_report(
    context: &RunContext,
    observed: RunObservations,
    facts: &RunFacts,
    evidence_dir: PathBuf,
) -> FinishedRun {
    let (folded, tier) = (observed.verdict_facts(), observed.tier());
    let RunObservations { mut inconclusive_reasons, mut patch, .. } = observed;
    context.redactor().redact_reasons(&mut inconclusive_reasons);
    if let Some(PatchResult::Refused(reason)) = &mut patch {
        context.redactor().redact_in_place(reason);
    }
    FinishedRun {
        verdict: verdict::derive_verdict(&folded),
        exit_code: verdict::exit_code(&folded),
        tier,
        run_id: facts.run_id.clone(),
        evidence_dir,
        inconclusive_reasons,
        patch,
    }
}
