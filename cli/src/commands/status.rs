//! Implements `proctor status`, which shows the runs that the daemon knows, or one of them.

use proctor_core::api::{MAX_PAGE, RunPage};
use proctor_daemon::history::RunFilter;

use crate::args::{OutputFormat, StatusArgs};
use crate::caller::Caller;
use crate::daemon::{self, Purpose, ReachableDaemon, client_error};
use crate::error::CliError;
use crate::run_display;
use crate::screen::Screen;

/// Number of runs shown without `--all`.
const DEFAULT_RUNS: u32 = 20;
/// Maximum number of pages that are read; they hold more runs than any daemon keeps.
const MAX_PAGES: usize = 10_000;

/// Shows the runs. The code is 0 if they could be shown, whatever their results.
///
/// # Errors
/// No daemon responds, or it does not know the run.
pub(crate) async fn status(args: &StatusArgs, caller: &Caller, screen: &mut Screen) -> Result<u8, CliError> {
    let daemon = daemon::find_daemon(&args.daemon, Purpose::ReadRuns, caller).await?;
    match &args.run {
        Some(run) => {
            let view = daemon.client.run(run).await.map_err(client_error)?;
            match args.format {
                OutputFormat::Human => screen.out(&run_display::render_run(&view)),
                OutputFormat::Json => screen.out_json(&view)?,
            }
        }
        None => {
            let page = if args.all {
                fetch_all_pages(&daemon).await?
            } else {
                fetch_page(&daemon, DEFAULT_RUNS, None).await?
            };
            match args.format {
                OutputFormat::Human => screen.out(&render_list(&page)),
                OutputFormat::Json => screen.out_json(&page)?,
            }
        }
    }
    Ok(0)
}

async fn fetch_page(daemon: &ReachableDaemon, limit: u32, cursor: Option<String>) -> Result<RunPage, CliError> {
    let filter = RunFilter { limit: Some(limit), cursor, ..RunFilter::default() };
    daemon.client.list(&filter).await.map_err(client_error)
}

async fn fetch_all_pages(daemon: &ReachableDaemon) -> Result<RunPage, CliError> {
    let mut all = fetch_page(daemon, MAX_PAGE, None).await?;
    for _ in 1..MAX_PAGES {
        let Some(cursor) = all.next_cursor.take() else { break };
        let page = fetch_page(daemon, MAX_PAGE, Some(cursor)).await?;
        all.runs.extend(page.runs);
        all.next_cursor = page.next_cursor;
    }
    Ok(all)
}

fn render_list(page: &RunPage) -> String {
    if page.runs.is_empty() {
        return "the daemon has no runs\n".to_owned();
    }
    let mut text = format!("{}\n", run_display::list_heading());
    text.extend(page.runs.iter().map(|run| run_display::run_line(run).trim_end().to_owned() + "\n"));
    if page.next_cursor.is_some() {
        text.push_str("there are more: `proctor status --all`\n");
    }
    text
}
