//! Fetches the reports that the steps of a run wrote: from this process's engine or from a daemon.

use proctor_core::model::names::RunId;
use proctor_core::record::evidence::{ReportEvidence, ReportState};
use proctor_core::record::run_record::{RunRecord, SkillRecord};
use proctor_core::report::{ToolReport, ToolReportContent};
use proctor_daemon::client::Client;
use proctor_daemon::service::ReportId;
use proctor_runner::Engine;

/// Total size of the reports of a run that are fetched, in bytes.
const MAX_TOTAL_BYTES: u64 = 64 << 20;

/// The owner of the stored reports.
pub(crate) enum ToolReportSource<'a> {
    /// The engine of this process.
    Engine(&'a Engine),
    /// A daemon.
    Daemon(&'a Client),
}

/// Fetches the reports of a run, in plan order. A report that is not available has the reason instead of content.
pub(crate) async fn fetch_tool_reports(source: ToolReportSource<'_>, record: &RunRecord) -> Vec<ToolReport> {
    let Some(started) = &record.started else { return Vec::new() };
    let mut files = Vec::new();
    let mut bytes_left = MAX_TOTAL_BYTES;
    let mut first = 0;
    for skill in &record.skills {
        for step in &skill.steps {
            let n = first + step_index(skill, step.planned.name.as_str());
            for report in &step.found_reports {
                let content = fetch_content(&source, &started.run_id, n, report, &mut bytes_left).await;
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
