//! Exports runs as spans of distributed traces, with OTLP over HTTP.
//!
//! Runs never wait for the export: the owner of runs puts the id of a finished run into a bounded queue, and a task
//! reads the run from its log, converts it and sends it. Spans that cannot be queued or sent are counted and dropped.

mod export_target;
mod exporter;
mod otlp;
mod otlp_sender;
mod traced_run;

pub use export_target::{ExportTarget, ExportTargetError};
pub use exporter::Telemetry;
pub(crate) use exporter::{EndedRun, FINAL_EXPORT_TIMEOUT};

use proctor_core::record::run_record::RunRecord;
use proctor_core::telemetry::{RunTimes, RunTrace, build_spans};

/// Exports a run of this process once, without retries.
///
/// # Errors
/// The spans could not be sent, or the receiver rejected some of them.
pub async fn export(
    target: ExportTarget,
    record: &RunRecord,
    times: &RunTimes,
    trace: &RunTrace,
) -> Result<(), String> {
    let sender = otlp_sender::OtlpSender::new(&target).map_err(|error| error.to_string())?;
    let sender = std::sync::Arc::new(sender);
    let spans = build_spans(record, times, trace).into_iter().map(|span| otlp::encode_span(span, trace)).collect();
    for request in otlp::encode_requests(&target, spans) {
        match sender.send(request.bytes).await {
            otlp_sender::SendResult::Accepted { rejected: 0 } => {}
            otlp_sender::SendResult::Accepted { rejected } => {
                return Err(format!("the receiver refused {rejected} of the spans"));
            }
            otlp_sender::SendResult::Retry { why, .. } | otlp_sender::SendResult::Refused { why } => return Err(why),
        }
    }
    Ok(())
}
