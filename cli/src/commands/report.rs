//! Implements `proctor report`, which writes the result of a run in any format of `run`, and to files. The input is the
//! daemon's log of the run, with the times at which its events were logged. If no daemon knows the run, the input is its
//! documents.

mod browser;
mod page_file;

use std::path::{Path, PathBuf};

use proctor_core::api::{LoggedEvent, LoggedRun, RunState};
use proctor_core::code::{Coded as _, CommandCode};
use proctor_core::decision::verdict::EXIT_INCONCLUSIVE;
use proctor_core::model::event::RunEvent;
use proctor_core::model::names::RunId;
use proctor_core::record::run_record::RunRecord;
use proctor_core::report::ReportedRun;
use proctor_core::report::stream_texts::StreamTexts;
use proctor_daemon::client::Client;

use crate::args::{ReportArgs, RunFormat};
use crate::caller::Caller;
use crate::daemon::{client_error, lost_run_error, problem_error};
use crate::documents_record;
use crate::engine;
use crate::error::CliError;
use crate::human_report::{self as screen_report, Detail, ReportOptions};
use crate::installation;
use crate::named_run::{NamedRun, RunSource, find_named_run};
use crate::report_outputs::{ReportOutputs, ReportedResult, ToolReportSource, refusal};
use crate::run_documents;
use crate::screen::{self, Screen};

/// Writes the report. The code is 0 if the report was written, whatever the result of the run.
///
/// # Errors
/// No daemon responds, the run does not exist, or it has not ended.
pub(crate) async fn report(args: &ReportArgs, caller: &Caller, screen: &mut Screen) -> Result<u8, CliError> {
    if args.open && args.reports.format != RunFormat::Html {
        return Err(CliError::Usage {
            message: "only a page can be opened in a browser".to_owned(),
            hint: "add `--format html`, or omit `--open`".to_owned(),
        });
    }
    let mut reports = ReportOutputs::new(args.reports.format, screen)?;
    if args.open {
        reports.keep_stdout_text();
    }
    match write_report(args, caller, &mut reports, screen).await {
        Ok((run, 0)) if args.open => show_page(args, &run, reports.kept_text(), (caller, screen)),
        Ok((_, code)) => Ok(code),
        Err(error) => {
            reports.write_refusal(&error, screen);
            Err(error)
        }
    }
}

/// Opens the page of a run in a browser. The page is in the file that the caller named, or is written to the cache
/// directory.
fn show_page(
    args: &ReportArgs,
    run: &RunId,
    page: &str,
    (caller, screen): (&Caller, &mut Screen),
) -> Result<u8, CliError> {
    let named = args.reports.report.iter().find(|report| report.format == RunFormat::Html);
    let path: PathBuf = match named {
        Some(report) => caller.cwd.join(&report.file),
        None => page_file::write_page(caller, run, page)?,
    };
    browser::open_page(caller, &path)?;
    screen.out(&format!("opened {}\n", installation::show(&path)));
    Ok(0)
}

/// Returns the run and the exit code.
async fn write_report(
    args: &ReportArgs,
    caller: &Caller,
    reports: &mut ReportOutputs,
    screen: &mut Screen,
) -> Result<(RunId, u8), CliError> {
    reports.add_files(&args.reports.report, caller)?;
    let NamedRun { run, source } = find_named_run(&args.run, &args.repo, (&args.state, &args.daemon), caller).await?;
    let daemon = match source {
        RunSource::Daemon(daemon) => daemon,
        RunSource::Documents(dir) => {
            return Ok((run, report_documents(args, &dir, reports, (caller, screen)).await?));
        }
    };
    let view = daemon.client.run(&run).await.map_err(client_error)?;
    if view.state != RunState::Finished {
        return Err(CliError::Usage {
            message: format!("run {run} has not ended"),
            hint: "wait for it with `proctor logs --follow`".to_owned(),
        });
    }
    reports.set_repository(std::path::Path::new(&view.request.repo), caller);
    let log = fetch_log(&daemon.client, &run).await?;
    let (reported, json) = match started_run(&log) {
        Ok(record) => {
            log.iter()
                .filter(|logged| is_run_event(&logged.event))
                .try_for_each(|logged| reports.write_event(&logged.event, screen))?;
            print_record(args.reports.format, &record, screen)?;
            let json = screen::to_json_line(&record)?;
            (reports.build_reported_run(None, record, ToolReportSource::Daemon(&daemon.client)).await, json)
        }
        Err(error) => {
            screen.err(&error.render());
            reports.write_failed_start(&error, screen)?;
            if args.reports.format == RunFormat::Json {
                screen.out_json(&error.to_record())?;
            }
            let run = ReportedRun::new(None, refusal(&error));
            (run, screen::to_json_line(&error.to_record())?)
        }
    };
    let runs = [reported];
    let exit_code = view.exit_code.unwrap_or(EXIT_INCONCLUSIVE);
    let is_written = reports.write_all(ReportedResult { runs: &runs, left_out: 0, exit_code, json: &json }, screen);
    Ok((run, if is_written { 0 } else { EXIT_INCONCLUSIVE }))
}

/// Writes the report of a run that no daemon knows, from its documents.
async fn report_documents(
    args: &ReportArgs,
    dir: &Path,
    reports: &mut ReportOutputs,
    (caller, screen): (&Caller, &mut Screen),
) -> Result<u8, CliError> {
    let documents = run_documents::load(dir)?;
    let events = documents_record::events(&documents, dir);
    let mut record = RunRecord::default();
    for (event, at) in events {
        reports.write_event(&event, screen)?;
        record.apply(event, at);
    }
    if let Ok(repo) = installation::repository(&args.repo, caller) {
        reports.set_repository(&repo, caller);
    }
    print_record(args.reports.format, &record, screen)?;
    let (json, exit_code) = (screen::to_json_line(&record)?, documents_record::exit_code(&documents));
    let operator = installation::operator(&args.daemon.operator, caller)?;
    let engine = engine::open(&args.state, operator, caller, screen)?;
    let runs = [reports.build_reported_run(None, record, ToolReportSource::Engine(&engine)).await];
    let is_written = reports.write_all(ReportedResult { runs: &runs, left_out: 0, exit_code, json: &json }, screen);
    Ok(if is_written { 0 } else { EXIT_INCONCLUSIVE })
}

fn print_record(format: RunFormat, record: &RunRecord, screen: &mut Screen) -> Result<(), CliError> {
    match format {
        RunFormat::Human => {
            let outputs = StreamTexts::default();
            let view =
                ReportOptions { detail: Detail::Normal, layout: screen.layout(), outputs: &outputs, logs_options: "" };
            screen.out(&screen_report::render_report(record, &view));
        }
        RunFormat::Json => screen.out_json(record)?,
        _ => {}
    }
    Ok(())
}

async fn fetch_log(client: &Client, run: &RunId) -> Result<Vec<LoggedEvent>, CliError> {
    let mut events = client.events(run, 0);
    let mut log = Vec::new();
    while let Some(logged) = events.next().await.map_err(|error| lost_run_error(error, run))? {
        let is_last = matches!(logged.event, RunEvent::RunFinished { .. });
        log.push(logged);
        if is_last {
            break;
        }
    }
    Ok(log)
}

/// Checks whether a run in this process would have the event too; events about the daemon's queue are excluded.
fn is_run_event(event: &RunEvent) -> bool {
    !matches!(event, RunEvent::RunQueued { .. } | RunEvent::RunRefused { .. })
}

/// Returns the record of the run; an error if it never started.
fn started_run(log: &[LoggedEvent]) -> Result<RunRecord, CliError> {
    let record = LoggedRun::from_log(log).map(LoggedRun::into_record).unwrap_or_default();
    match record.problem {
        _ if record.started.is_some() => Ok(record),
        Some(problem) => Err(problem_error(problem)),
        None => Err(CliError::Engine {
            message: "the run ended before it began; nothing was verified".to_owned(),
            hint: Some("run again".to_owned()),
            exit_code: EXIT_INCONCLUSIVE,
            code: CommandCode::NeverBegan.code(),
        }),
    }
}
