//! Implements `proctor report`, which writes the result of a daemon's run in any format of `run`, and to files. The
//! input is the log of the run, with the times at which its events were logged.

use std::time::Duration;

use proctor_core::api::{LoggedEvent, RunState};
use proctor_core::code::{Coded as _, CommandCode};
use proctor_core::event::RunEvent;
use proctor_core::record::RunRecord;
use proctor_core::report::ReportedRun;
use proctor_core::verdict::EXIT_INCONCLUSIVE;
use proctor_daemon::client::Client;

use crate::args::{ReportArgs, RunFormat};
use crate::caller::Caller;
use crate::daemon::{self, Purpose, client_error, lost, problem_error};
use crate::error::CliError;
use crate::report::outputs::Outputs;
use crate::report::{self as screen_report, Detail, View};
use crate::reports::{Keeper, Reports, Told, refusal};
use crate::screen::{self, Screen};

/// Writes the report. The code is 0 if the report was written, whatever the result of the run.
///
/// # Errors
/// No daemon responds, the run does not exist, or it has not ended.
pub(crate) async fn report(args: &ReportArgs, caller: &Caller, screen: &mut Screen) -> Result<u8, CliError> {
    let mut reports = Reports::new(args.reports.format, screen)?;
    let done = tell(args, caller, &mut reports, screen).await;
    if let Err(error) = &done {
        reports.refused(error, screen);
    }
    done
}

async fn tell(args: &ReportArgs, caller: &Caller, reports: &mut Reports, screen: &mut Screen) -> Result<u8, CliError> {
    reports.find(&args.reports.report, caller)?;
    let daemon = daemon::of(&args.daemon, Purpose::Look, caller).await?;
    let view = daemon.client.run(&args.run).await.map_err(client_error)?;
    if view.state != RunState::Finished {
        return Err(CliError::Usage {
            message: format!("run {} has not ended", args.run),
            hint: "wait for it with `proctor logs --follow`".to_owned(),
        });
    }
    reports.of_repository(std::path::Path::new(&view.asked.repo), caller);
    let log = log_of(&daemon.client, args).await?;
    let (run, json) = match began(&log) {
        Ok(()) => {
            let record = fold(&log);
            log.iter()
                .filter(|logged| is_the_runs(&logged.event))
                .try_for_each(|logged| reports.event(&logged.event, screen))?;
            show(args.reports.format, &record, screen)?;
            let json = screen::json(&record)?;
            (reports.run(None, record, Keeper::Daemon(&daemon.client)).await, json)
        }
        Err(error) => {
            screen.err(&error.render());
            reports.no_run(&error, screen)?;
            if args.reports.format == RunFormat::Json {
                screen.out_json(&error.record())?;
            }
            let run = ReportedRun { commit: None, came_to: refusal(&error), files: Vec::new() };
            (run, screen::json(&error.record())?)
        }
    };
    let runs = [run];
    let exit_code = view.exit_code.unwrap_or(EXIT_INCONCLUSIVE);
    let is_written = reports.write(Told { runs: &runs, left_out: 0, exit_code, json: &json }, screen);
    Ok(if is_written { 0 } else { EXIT_INCONCLUSIVE })
}

fn show(format: RunFormat, record: &RunRecord, screen: &mut Screen) -> Result<(), CliError> {
    match format {
        RunFormat::Human => {
            let outputs = Outputs::default();
            let view = View { detail: Detail::Normal, room: screen.room(), outputs: &outputs, logs_options: "" };
            screen.out(&screen_report::report(record, &view));
        }
        RunFormat::Json => screen.out_json(record)?,
        _ => {}
    }
    Ok(())
}

async fn log_of(client: &Client, args: &ReportArgs) -> Result<Vec<LoggedEvent>, CliError> {
    let mut events = client.events(&args.run, 0);
    let mut log = Vec::new();
    while let Some(logged) = events.next().await.map_err(|error| lost(error, &args.run))? {
        let is_last = matches!(logged.event, RunEvent::RunFinished { .. });
        log.push(logged);
        if is_last {
            break;
        }
    }
    Ok(log)
}

/// Checks whether a run in this process would have the event too; events about the daemon's queue are excluded.
fn is_the_runs(event: &RunEvent) -> bool {
    !matches!(event, RunEvent::RunQueued { .. } | RunEvent::RunRefused { .. })
}

/// Checks that the run actually started.
fn began(log: &[LoggedEvent]) -> Result<(), CliError> {
    if log.iter().any(|logged| matches!(logged.event, RunEvent::RunStarted { .. })) {
        return Ok(());
    }
    let refused = log.iter().find_map(|logged| match &logged.event {
        RunEvent::RunRefused { problem } => Some(problem_error(problem.clone())),
        _ => None,
    });
    Err(refused.unwrap_or_else(|| CliError::Engine {
        message: "the run ended before it began; nothing was verified".to_owned(),
        hint: Some("run again".to_owned()),
        exit_code: EXIT_INCONCLUSIVE,
        code: CommandCode::NeverBegan.code(),
    }))
}

/// Folds the log to a record, with times counted from the start of the run.
fn fold(log: &[LoggedEvent]) -> RunRecord {
    let time = |logged: &LoggedEvent| humantime::parse_rfc3339(&logged.logged_at).ok();
    let start = log.iter().find_map(|logged| match &logged.event {
        RunEvent::RunStarted { at, .. } => humantime::parse_rfc3339(at).ok(),
        _ => None,
    });
    let mut record = RunRecord::default();
    for logged in log {
        let since = time(logged).zip(start).and_then(|(at, start)| at.duration_since(start).ok());
        record.apply(logged.event.clone(), since.unwrap_or(Duration::ZERO));
    }
    record
}
