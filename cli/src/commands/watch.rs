//! Implements `proctor watch`, which shows the runs of the daemon as they progress: on a terminal as a redrawn list,
//! elsewhere as a line for each change of a run's state.

use std::collections::BTreeMap;
use std::time::Duration;

use indicatif::{MultiProgress, ProgressBar, ProgressDrawTarget, ProgressStyle};
use proctor_core::api::{RunState, RunSummary};
use proctor_core::names::RunId;
use proctor_core::verdict::EXIT_INTERRUPTED;
use proctor_daemon::service::RunFilter;
use tokio::time::{Interval, MissedTickBehavior};

use crate::args::WatchArgs;
use crate::caller::Caller;
use crate::daemon::{self, Daemon, Purpose, client_error};
use crate::error::CliError;
use crate::interrupt;
use crate::runs;
use crate::screen::Screen;

/// Interval between requests to the daemon.
const ASK: Duration = Duration::from_millis(500);
/// Number of runs that are fetched, newest first.
const LOOKED_AT: u32 = 100;
/// Maximum number of runs that a terminal shows.
const SHOWN: usize = 30;
/// Lines of a terminal that stay free.
const FREE: usize = 2;

/// Shows the runs until Ctrl-C (exit code 130).
///
/// # Errors
/// No daemon responds, or the daemon exits.
pub(crate) async fn watch(args: &WatchArgs, caller: &Caller, screen: &mut Screen) -> Result<u8, CliError> {
    let daemon = daemon::of(&args.daemon, Purpose::Look, caller).await?;
    let mut shown: Box<dyn Show> = match caller.stdout_is_terminal && caller.var("TERM") != Some("dumb") {
        true => Box::new(Table::new(screen.is_colored())),
        false => Box::new(Lines::default()),
    };
    let watched = interrupt::unless_interrupted(follow(&daemon, shown.as_mut(), screen)).await;
    shown.end(screen);
    match watched {
        Some(Err(error)) => Err(error),
        Some(Ok(())) => Ok(0),
        None => Ok(EXIT_INTERRUPTED),
    }
}

async fn follow(daemon: &Daemon, shown: &mut dyn Show, screen: &mut Screen) -> Result<(), CliError> {
    let filter = RunFilter { limit: Some(LOOKED_AT), ..RunFilter::default() };
    let mut due: Interval = tokio::time::interval(ASK);
    due.set_missed_tick_behavior(MissedTickBehavior::Delay);
    while !screen.reader_is_gone() {
        due.tick().await;
        let page = daemon.client.list(&filter).await.map_err(client_error)?;
        shown.show(&page.runs, screen);
    }
    Ok(())
}

/// A way to show runs.
trait Show {
    /// Shows the current state of the runs, which are sorted newest first.
    fn show(&mut self, runs: &[RunSummary], screen: &mut Screen);

    /// Restores the screen at the end.
    fn end(&mut self, _: &mut Screen) {}
}

/// Prints a line for each change of a run's state: queued, running, and the verdict.
#[derive(Default)]
struct Lines {
    known: BTreeMap<RunId, RunState>,
}

impl Show for Lines {
    fn show(&mut self, runs: &[RunSummary], screen: &mut Screen) {
        for run in runs.iter().rev().filter(|run| self.known.get(&run.id) != Some(&run.state)) {
            screen.out(&(runs::line(run).trim_end().to_owned() + "\n"));
        }
        self.known = runs.iter().map(|run| (run.id.clone(), run.state)).collect();
    }
}

/// A list on a terminal that is redrawn when it changes.
struct Table {
    all: MultiProgress,
    rows: Vec<ProgressBar>,
    lines: Vec<String>,
    is_colored: bool,
}

impl Table {
    fn new(is_colored: bool) -> Self {
        let all = MultiProgress::with_draw_target(ProgressDrawTarget::stdout());
        Self { all, rows: Vec::new(), lines: Vec::new(), is_colored }
    }

    /// Adjusts the number of rows to the number of lines.
    fn fit(&mut self, lines: usize) {
        while self.rows.len() < lines {
            self.rows.push(self.all.add(ProgressBar::new_spinner().with_style(style())));
        }
        for row in self.rows.drain(lines..) {
            row.finish_and_clear();
            self.all.remove(&row);
        }
    }
}

impl Show for Table {
    fn show(&mut self, runs: &[RunSummary], _: &mut Screen) {
        let lines = std::iter::once(runs::heading()).chain(runs.iter().take(room()).map(runs::line));
        self.lines = match runs.is_empty() {
            true => vec!["no run yet".to_owned()],
            false => lines.collect(),
        };
        self.fit(self.lines.len());
        for (row, line) in self.rows.iter().zip(&self.lines) {
            let plain = || anstream::adapter::strip_str(line).to_string();
            row.set_message(if self.is_colored { line.clone() } else { plain() });
            row.tick();
        }
    }

    fn end(&mut self, screen: &mut Screen) {
        self.rows.drain(..).for_each(|row| row.finish_and_clear());
        // Ignore the error: the terminal may be closed.
        let _ = self.all.clear();
        // Leave the final state on the screen.
        screen.out(&self.lines.iter().map(|line| line.trim_end().to_owned() + "\n").collect::<String>());
    }
}

/// Returns the number of runs that fit the terminal.
fn room() -> usize {
    let rows = rustix::termios::tcgetwinsize(std::io::stdout()).map_or(0, |size| usize::from(size.ws_row));
    if rows == 0 { SHOWN } else { rows.saturating_sub(FREE + 1).clamp(1, SHOWN) }
}

fn style() -> ProgressStyle {
    ProgressStyle::with_template("{wide_msg}").unwrap_or_else(|_| ProgressStyle::default_spinner())
}
