//! Exports runs, and requests about SQL, as spans of distributed traces, with OTLP over HTTP.
//!
//! Nothing waits for the export. The owner of runs puts the id of a finished run into a bounded queue, and an answered
//! request about SQL puts its spans there. A task reads the runs from their logs, converts the spans and sends them.
//! Spans that cannot be queued or sent are counted and dropped.

mod active_span;
mod export_target;
mod exporter;
mod otlp;
mod otlp_sender;
#[cfg(test)]
pub(crate) mod tests;
mod traced_run;

pub use active_span::RequestSpan;
pub use export_target::{ExportTarget, ExportTargetError};
pub use exporter::Telemetry;
pub(crate) use exporter::{EndedRun, FINAL_EXPORT_TIMEOUT};

pub use otlp_sender::SenderError;
use proctor_core::record::run_record::RunRecord;
use proctor_core::telemetry::{RunTimes, RunTrace, build_spans};

/// Reason why the spans of a run were not exported completely.
#[derive(Debug, thiserror::Error)]
pub enum ExportError {
    /// The connection cannot be configured.
    #[error(transparent)]
    Sender(#[from] SenderError),
    /// The receiver accepted the request but rejected this many spans.
    #[error("the receiver rejected {0} of the spans")]
    RejectedSpans(u64),
    /// The receiver did not accept the request, or was not reached; the message says why.
    #[error("{0}")]
    NotAccepted(String),
}

/// Exports a run of this process once, without retries.
///
/// # Errors
/// The spans could not be sent, or the receiver rejected some of them.
pub async fn export(
    target: ExportTarget,
    record: &RunRecord,
    times: &RunTimes,
    trace: &RunTrace,
) -> Result<(), ExportError> {
    let sender = otlp_sender::OtlpSender::new(&target)?;
    let sender = std::sync::Arc::new(sender);
    let spans = build_spans(record, times, trace)
        .into_iter()
        .map(|span| otlp::encode_span(span, trace.trace(), trace.parent()))
        .collect();
    for request in otlp::encode_requests(&target, spans) {
        match sender.send(request.bytes).await {
            otlp_sender::SendResult::Accepted { rejected: 0 } => {}
            otlp_sender::SendResult::Accepted { rejected } => {
                return Err(ExportError::RejectedSpans(rejected));
            }
            otlp_sender::SendResult::Retry { why, .. } | otlp_sender::SendResult::Refused { why } => {
                return Err(ExportError::NotAccepted(why));
            }
        }
    }
    Ok(())
}
