//! Fetches the reports that the steps of a run wrote: from this process's engine or from a daemon.

use proctor_core::evidence::{ReportEvidence, ReportState};
use proctor_core::names::RunId;
use proctor_core::record::{RunRecord, SkillRecord};
use proctor_core::report::{Content, ToolFile};
use proctor_daemon::client::Client;
use proctor_daemon::service::ReportOf;
use proctor_runner::Engine;

/// Total size of the reports of a run that are fetched, in bytes.
const MAX_BYTES: u64 = 64 << 20;

/// The owner of the stored reports.
pub(crate) enum Keeper<'a> {
    /// The engine of this process.
    Engine(&'a Engine),
    /// A daemon.
    Daemon(&'a Client),
}

/// Fetches the reports of a run, in plan order. A report that is not available has the reason instead of content.
pub(crate) async fn fetched(keeper: Keeper<'_>, record: &RunRecord) -> Vec<ToolFile> {
    let Some(started) = &record.started else { return Vec::new() };
    let mut files = Vec::new();
    let mut room = MAX_BYTES;
    let mut first = 0;
    for skill in &record.skills {
        for step in &skill.steps {
            let n = first + place(skill, step.planned.name.as_str());
            for report in &step.found_reports {
                let content = content(&keeper, &started.run_id, n, report, &mut room).await;
                let (skill, step) = (skill.skill.clone(), step.planned.name.clone());
                files.push(ToolFile { skill, step, format: report.format, path: report.path.to_string(), content });
            }
        }
        first += skill.planned.len();
    }
    files
}

/// Returns the index of a step in its skill.
fn place(skill: &SkillRecord, name: &str) -> usize {
    skill.planned.iter().position(|planned| planned.as_str() == name).unwrap_or(0)
}

async fn content(keeper: &Keeper<'_>, run: &RunId, n: usize, report: &ReportEvidence, room: &mut u64) -> Content {
    let bytes = match &report.state {
        ReportState::Missing => return Content::Missing,
        ReportState::Refused { reason } => return Content::Unread(format!("it {}", reason.phrase())),
        ReportState::Read { bytes, .. } => *bytes,
    };
    let Some(left) = room.checked_sub(bytes) else {
        return Content::Unread("the reports of the run have more than 64 MiB together".to_owned());
    };
    *room = left;
    let fetched = match keeper {
        Keeper::Engine(engine) => engine.report(report).await.map_err(|error| error.to_string()),
        Keeper::Daemon(client) => {
            let of = ReportOf { n: u32::try_from(n).unwrap_or(u32::MAX), format: report.format };
            client.report(run, of).await.map(|bytes| Some(bytes.to_vec())).map_err(|error| error.to_string())
        }
    };
    match fetched {
        Ok(Some(bytes)) => Content::Read(bytes),
        Ok(None) => Content::Unread("it is no longer stored".to_owned()),
        Err(problem) => Content::Unread(problem),
    }
}
