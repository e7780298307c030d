//! Exports runs as spans of distributed traces, with OTLP over HTTP.
//!
//! Runs never wait for the export: the owner of runs puts the id of a finished run into a bounded queue, and a task
//! reads the run from its log, converts it and sends it. Spans that cannot be queued or sent are counted and dropped.

mod exporter;
mod otlp;
mod run_log;
mod sender;
mod target;

pub use exporter::Telemetry;
pub(crate) use exporter::{EndedRun, LAST_SPANS};
pub use target::{BadTarget, Target};

use proctor_core::record::RunRecord;
use proctor_core::telemetry::{RunTimes, RunTrace, spans};

/// Exports a run of this process once, without retries.
///
/// # Errors
/// The spans could not be sent, or the receiver rejected some of them.
pub async fn export(target: Target, record: &RunRecord, times: &RunTimes, trace: &RunTrace) -> Result<(), String> {
    let sender = sender::Sender::new(&target).map_err(|error| error.to_string())?;
    let sender = std::sync::Arc::new(sender);
    let spans = spans(record, times, trace).into_iter().map(|span| otlp::span(span, trace)).collect();
    for request in otlp::requests(&target, spans) {
        match sender.send(request.bytes).await {
            sender::Sent::Taken { rejected: 0 } => {}
            sender::Sent::Taken { rejected } => return Err(format!("the receiver refused {rejected} of the spans")),
            sender::Sent::Again { why, .. } | sender::Sent::Refused { why } => return Err(why),
        }
    }
    Ok(())
}
