//! Implements `proctor status`, which shows the runs that the daemon knows, or one of them.

use proctor_core::api::RunPage;
use proctor_daemon::service::{MAX_PAGE, RunFilter};

use crate::args::{Format, StatusArgs};
use crate::caller::Caller;
use crate::daemon::{self, Daemon, Purpose, client_error};
use crate::error::CliError;
use crate::runs;
use crate::screen::Screen;

/// Number of runs shown without `--all`.
const NEWEST: u32 = 20;
/// Maximum number of pages that are read; they hold more runs than any daemon keeps.
const MAX_PAGES: usize = 10_000;

/// Shows the runs. The code is 0 if they could be shown, whatever their results.
///
/// # Errors
/// No daemon responds, or it does not know the run.
pub(crate) async fn status(args: &StatusArgs, caller: &Caller, screen: &mut Screen) -> Result<u8, CliError> {
    let daemon = daemon::of(&args.daemon, Purpose::Look, caller).await?;
    match &args.run {
        Some(run) => {
            let view = daemon.client.run(run).await.map_err(client_error)?;
            match args.format {
                Format::Human => screen.out(&runs::block(&view)),
                Format::Json => screen.out_json(&view)?,
            }
        }
        None => {
            let page = if args.all { every(&daemon).await? } else { newest(&daemon, NEWEST, None).await? };
            match args.format {
                Format::Human => screen.out(&list(&page)),
                Format::Json => screen.out_json(&page)?,
            }
        }
    }
    Ok(0)
}

async fn newest(daemon: &Daemon, limit: u32, cursor: Option<String>) -> Result<RunPage, CliError> {
    let filter = RunFilter { limit: Some(limit), cursor, ..RunFilter::default() };
    daemon.client.list(&filter).await.map_err(client_error)
}

async fn every(daemon: &Daemon) -> Result<RunPage, CliError> {
    let mut all = newest(daemon, MAX_PAGE, None).await?;
    for _ in 1..MAX_PAGES {
        let Some(cursor) = all.next_cursor.take() else { break };
        let page = newest(daemon, MAX_PAGE, Some(cursor)).await?;
        all.runs.extend(page.runs);
        all.next_cursor = page.next_cursor;
    }
    Ok(all)
}

fn list(page: &RunPage) -> String {
    if page.runs.is_empty() {
        return "the daemon knows of no run\n".to_owned();
    }
    let mut text = format!("{}\n", runs::heading());
    text.extend(page.runs.iter().map(|run| runs::line(run).trim_end().to_owned() + "\n"));
    if page.next_cursor.is_some() {
        text.push_str("there are more: `proctor status --all`\n");
    }
    text
}
