//! Implements `proctor watch`, which shows the runs of the daemon as they progress: on a terminal as a redrawn list,
//! elsewhere as a line for each change of a run's state.

use std::collections::BTreeMap;
use std::time::Duration;

use indicatif::{MultiProgress, ProgressBar, ProgressDrawTarget, ProgressStyle};
use proctor_core::api::{RunState, RunSummary};
use proctor_core::decision::verdict::EXIT_INTERRUPTED;
use proctor_core::model::names::RunId;
use proctor_daemon::history::RunFilter;
use tokio::time::{Interval, MissedTickBehavior};

use crate::args::WatchArgs;
use crate::caller::Caller;
use crate::daemon::{self, Purpose, ReachableDaemon, client_error};
use crate::error::CliError;
use crate::interrupt;
use crate::run_display;
use crate::screen::Screen;

/// Interval between requests to the daemon.
const POLL_INTERVAL: Duration = Duration::from_millis(500);
/// Number of runs that are fetched, newest first.
const MAX_FETCHED_RUNS: u32 = 100;
/// Maximum number of runs that a terminal shows.
const MAX_SHOWN_RUNS: usize = 30;
/// Number of terminal lines that are kept free.
const FREE_LINES: usize = 2;

/// Shows the runs until Ctrl-C (exit code 130).
///
/// # Errors
/// No daemon responds, or the daemon exits.
pub(crate) async fn watch(args: &WatchArgs, caller: &Caller, screen: &mut Screen) -> Result<u8, CliError> {
    let daemon = daemon::find_daemon(&args.daemon, Purpose::ReadRuns, caller).await?;
    let mut view: Box<dyn RunListView> = match caller.stdout_is_terminal && caller.var("TERM") != Some("dumb") {
        true => Box::new(LiveRunTable::new(screen.is_colored())),
        false => Box::new(StateChangeLines::default()),
    };
    let watched = interrupt::unless_interrupted(poll_runs(&daemon, view.as_mut(), screen)).await;
    view.finish(screen);
    match watched {
        Some(Err(error)) => Err(error),
        Some(Ok(())) => Ok(0),
        None => Ok(EXIT_INTERRUPTED),
    }
}

async fn poll_runs(daemon: &ReachableDaemon, view: &mut dyn RunListView, screen: &mut Screen) -> Result<(), CliError> {
    let filter = RunFilter { limit: Some(MAX_FETCHED_RUNS), ..RunFilter::default() };
    let mut due: Interval = tokio::time::interval(POLL_INTERVAL);
    due.set_missed_tick_behavior(MissedTickBehavior::Delay);
    while !screen.is_output_closed() {
        due.tick().await;
        let page = daemon.client.list(&filter).await.map_err(client_error)?;
        view.update(&page.runs, screen);
    }
    Ok(())
}

/// A display of runs that is updated in place or line by line.
trait RunListView {
    /// Shows the current state of the runs, which are sorted newest first.
    fn update(&mut self, runs: &[RunSummary], screen: &mut Screen);

    /// Restores the screen at the end.
    fn finish(&mut self, _: &mut Screen) {}
}

/// Prints a line for each change of a run's state: queued, running, and the verdict.
#[derive(Default)]
struct StateChangeLines {
    last_states: BTreeMap<RunId, RunState>,
}

impl RunListView for StateChangeLines {
    fn update(&mut self, runs: &[RunSummary], screen: &mut Screen) {
        for run in runs.iter().rev().filter(|run| self.last_states.get(&run.id) != Some(&run.state)) {
            screen.out(&(run_display::run_line(run).trim_end().to_owned() + "\n"));
        }
        self.last_states = runs.iter().map(|run| (run.id.clone(), run.state)).collect();
    }
}

/// A list on a terminal that is redrawn when it changes.
struct LiveRunTable {
    bars: MultiProgress,
    rows: Vec<ProgressBar>,
    lines: Vec<String>,
    is_colored: bool,
}

impl LiveRunTable {
    fn new(is_colored: bool) -> Self {
        let all = MultiProgress::with_draw_target(ProgressDrawTarget::stdout());
        Self { bars: all, rows: Vec::new(), lines: Vec::new(), is_colored }
    }

    /// Adjusts the number of rows to the number of lines.
    fn resize(&mut self, lines: usize) {
        while self.rows.len() < lines {
            self.rows.push(self.bars.add(ProgressBar::new_spinner().with_style(style())));
        }
        for row in self.rows.drain(lines..) {
            row.finish_and_clear();
            self.bars.remove(&row);
        }
    }
}

impl RunListView for LiveRunTable {
    fn update(&mut self, runs: &[RunSummary], _: &mut Screen) {
        let lines = std::iter::once(run_display::list_heading())
            .chain(runs.iter().take(visible_runs()).map(run_display::run_line));
        self.lines = match runs.is_empty() {
            true => vec!["no run yet".to_owned()],
            false => lines.collect(),
        };
        self.resize(self.lines.len());
        for (row, line) in self.rows.iter().zip(&self.lines) {
            let plain = || anstream::adapter::strip_str(line).to_string();
            row.set_message(if self.is_colored { line.clone() } else { plain() });
            row.tick();
        }
    }

    fn finish(&mut self, screen: &mut Screen) {
        self.rows.drain(..).for_each(|row| row.finish_and_clear());
        // Ignore the error: the terminal may be closed.
        let _ = self.bars.clear();
        // Leave the final state on the screen.
        screen.out(&self.lines.iter().map(|line| line.trim_end().to_owned() + "\n").collect::<String>());
    }
}

/// Returns the number of runs that fit the terminal.
fn visible_runs() -> usize {
    let rows = rustix::termios::tcgetwinsize(std::io::stdout()).map_or(0, |size| usize::from(size.ws_row));
    if rows == 0 { MAX_SHOWN_RUNS } else { rows.saturating_sub(FREE_LINES + 1).clamp(1, MAX_SHOWN_RUNS) }
}

fn style() -> ProgressStyle {
    ProgressStyle::with_template("{wide_msg}").unwrap_or_else(|_| ProgressStyle::default_spinner())
}
