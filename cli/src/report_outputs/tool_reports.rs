//! Fetches the reports and outputs of the steps of a run: from this process's engine or from a daemon.

use proctor_core::api::StreamView;
use proctor_core::model::names::RunId;
use proctor_core::record::evidence::{ReportEvidence, ReportState};
use proctor_core::record::run_record::{RunRecord, SkillRecord};
use proctor_core::report::stream_texts::StreamTexts;
use proctor_core::report::{ToolReport, ToolReportContent};
use proctor_daemon::client::Client;
use proctor_daemon::service::{MAX_PART, OutputId, OutputUnit, ReportId};
use proctor_runner::Engine;

use crate::human_report::failed_outputs::{self, FailedStream, FetchFuture, MAX_STREAM_BYTES};

/// Total size of the reports of a run that are fetched, in bytes.
const MAX_TOTAL_BYTES: u64 = 64 << 20;

/// The owner of the stored reports and outputs.
#[derive(Clone, Copy)]
pub(crate) enum ToolReportSource<'a> {
    /// The engine of this process.
    Engine(&'a Engine),
    /// A daemon.
    Daemon(&'a Client),
}

impl<'a> ToolReportSource<'a> {
    /// Fetches the long outputs of failed steps.
    pub(crate) async fn fetch_outputs(self, record: &RunRecord) -> StreamTexts {
        failed_outputs::fetch_outputs(record, |wanted| self.fetch_output(record, wanted)).await
    }

    /// Fetches the beginning of an output.
    fn fetch_output(self, record: &RunRecord, wanted: FailedStream) -> FetchFuture<'a> {
        let id = record.started.as_ref().map(|started| started.run_id.clone());
        Box::pin(async move {
            match self {
                Self::Engine(engine) => {
                    let part =
                        engine.read_output(StreamView::from(&wanted.stream), 0, MAX_STREAM_BYTES).await.ok()??;
                    Some(part.0.bytes)
                }
                Self::Daemon(client) => {
                    let selector = OutputId { unit: OutputUnit::Step, n: wanted.n, stream: wanted.stdio };
                    fetch_beginning(client, &id?, selector, MAX_STREAM_BYTES).await
                }
            }
        })
    }
}

/// Fetches the reports of a run, in plan order. A report that is not available has the reason instead of content.
pub(crate) async fn fetch_tool_reports(source: &ToolReportSource<'_>, record: &RunRecord) -> Vec<ToolReport> {
    let Some(started) = &record.started else { return Vec::new() };
    let mut files = Vec::new();
    let mut bytes_left = MAX_TOTAL_BYTES;
    let mut first = 0;
    for skill in &record.skills {
        for step in &skill.steps {
            let n = first + step_index(skill, step.planned.name.as_str());
            for report in &step.found_reports {
                let content = fetch_content(source, &started.run_id, n, report, &mut bytes_left).await;
                let (skill, step) = (skill.skill.clone(), step.planned.name.clone());
                files.push(ToolReport { skill, step, format: report.format, path: report.path.to_string(), content });
            }
        }
        first += skill.planned.len();
    }
    files
}

/// Returns the index of a step in its skill.
fn step_index(skill: &SkillRecord, name: &str) -> usize {
    skill.planned.iter().position(|planned| planned.as_str() == name).unwrap_or(0)
}

async fn fetch_content(
    source: &ToolReportSource<'_>,
    run: &RunId,
    n: usize,
    report: &ReportEvidence,
    bytes_left: &mut u64,
) -> ToolReportContent {
    let bytes = match &report.state {
        ReportState::Missing => return ToolReportContent::Missing,
        ReportState::Refused { reason } => return ToolReportContent::Unavailable(format!("it {}", reason.phrase())),
        ReportState::Read { bytes, .. } => *bytes,
    };
    let Some(left) = bytes_left.checked_sub(bytes) else {
        return ToolReportContent::Unavailable("the reports of the run have more than 64 MiB in total".to_owned());
    };
    *bytes_left = left;
    let fetched = match source {
        ToolReportSource::Engine(engine) => engine.read_report(report).await.map_err(|error| error.to_string()),
        ToolReportSource::Daemon(client) => {
            let selector = ReportId { n: u32::try_from(n).unwrap_or(u32::MAX), format: report.format };
            client.report(run, selector).await.map(|bytes| Some(bytes.to_vec())).map_err(|error| error.to_string())
        }
    };
    match fetched {
        Ok(Some(bytes)) => ToolReportContent::Read(bytes),
        Ok(None) => ToolReportContent::Unavailable("it is no longer stored".to_owned()),
        Err(problem) => ToolReportContent::Unavailable(problem),
    }
}

/// Fetches at most `max_bytes` from the beginning of an output from a daemon; returns `None` if it is not available.
async fn fetch_beginning(client: &Client, run: &RunId, selector: OutputId, max_bytes: usize) -> Option<Vec<u8>> {
    let mut bytes = Vec::new();
    loop {
        let part = client.output(run, selector, bytes.len() as u64, MAX_PART).await.ok()?;
        bytes.extend_from_slice(&part.bytes);
        let is_last = part.bytes.is_empty() || bytes.len() as u64 >= part.length;
        if is_last || bytes.len() >= max_bytes {
            bytes.truncate(max_bytes);
            return Some(bytes);
        }
    }
}
