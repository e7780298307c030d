//! Draws the running steps in place on a terminal.

use std::fmt::Write;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use indicatif::{MultiProgress, ProgressBar, ProgressDrawTarget, ProgressState, ProgressStyle};

use super::last_lines::LastLines;
use super::row_format::{self, RowSpace, StepProgressCounts};
use super::running_step::RunningStep;
use crate::screen::Glyphs;

const TICK_INTERVAL: Duration = Duration::from_millis(100);
const REDRAWS_PER_SECOND: u8 = 15;
/// Assumed width of a terminal that does not report one.
const DEFAULT_COLUMNS: usize = 80;
/// Columns before a row, for the spinner.
const SPINNER_COLUMNS: usize = 2;

/// A row for each running step, and one for the run.
pub(super) struct LiveRows {
    all: MultiProgress,
    step_rows: Vec<StepRow>,
    /// Progress of the whole run, below the steps.
    counter: Option<ProgressBar>,
    glyphs: Glyphs,
}

/// The row of a running step.
struct StepRow {
    name: String,
    bar: ProgressBar,
    /// Last line that the step has printed.
    last_line: Arc<Mutex<String>>,
}

impl LiveRows {
    pub(super) fn new(glyphs: Glyphs) -> Self {
        let target = ProgressDrawTarget::stderr_with_hz(REDRAWS_PER_SECOND);
        Self { all: MultiProgress::with_draw_target(target), step_rows: Vec::new(), counter: None, glyphs }
    }

    pub(super) fn start_step(&mut self, running: &RunningStep) {
        self.end_step(&running.name);
        let (glyphs, step) = (self.glyphs, running.clone());
        let printed = Arc::<Mutex<String>>::default();
        let last_line = Arc::clone(&printed);
        let row = move |state: &ProgressState, line: &mut dyn Write| {
            let last_line = last_line.lock().unwrap_or_else(PoisonError::into_inner);
            let step = row_format::StepRowContent { last_line: &last_line, ..step.to_row() };
            // Ignore the result: writing to a buffer cannot fail.
            let _ = line.write_str(&row_format::format_step(step, state.elapsed(), row_space(glyphs)));
        };
        let spins = match glyphs {
            Glyphs::Unicode => "⠁⠂⠄⡀⢀⠠⠐⠈ ",
            Glyphs::Ascii => "|/-\\ ",
        };
        let bar =
            ProgressBar::new_spinner().with_style(style("{spinner} {row}").tick_chars(spins).with_key("row", row));
        let bar = match &self.counter {
            Some(counter) => self.all.insert_before(counter, bar),
            None => self.all.add(bar),
        };
        bar.enable_steady_tick(TICK_INTERVAL);
        self.step_rows.push(StepRow { name: running.name.clone(), bar, last_line: printed });
    }

    /// Sets the last lines that steps have printed.
    pub(super) fn set_last_lines(&mut self, lines: &LastLines) {
        for bar in &self.step_rows {
            let line = lines.get(&bar.name).map(String::as_str).unwrap_or_default();
            line.clone_into(&mut bar.last_line.lock().unwrap_or_else(PoisonError::into_inner));
        }
    }

    pub(super) fn end_step(&mut self, name: &str) {
        let ended = self.step_rows.extract_if(.., |bar| bar.name == name);
        ended.for_each(|bar| bar.bar.finish_and_clear());
    }

    /// Shows the progress of the run, if it has more than one step.
    pub(super) fn update_counts(&mut self, steps: StepProgressCounts) {
        if steps.total < 2 {
            return;
        }
        let (all, glyphs) = (&self.all, self.glyphs);
        let bar = self.counter.get_or_insert_with(|| {
            let row = move |state: &ProgressState, line: &mut dyn Write| {
                let number = |of: u64| usize::try_from(of).unwrap_or(usize::MAX);
                let steps = StepProgressCounts { total: number(state.len().unwrap_or(0)), ended: number(state.pos()) };
                // Ignore the result: writing to a buffer cannot fail.
                let _ = line.write_str(&row_format::format_run(steps, state.elapsed(), row_space(glyphs)));
            };
            let bar = all.add(ProgressBar::new(0).with_style(style("  {row}").with_key("row", row)));
            bar.enable_steady_tick(TICK_INTERVAL);
            bar
        });
        bar.set_length(steps.total as u64);
        bar.set_position(steps.ended as u64);
    }

    /// Runs `write` while the rows are hidden.
    pub(super) fn suspend_rows(&self, write: impl FnOnce()) {
        self.all.suspend(write);
    }

    pub(super) fn clear(self) {
        self.step_rows.iter().map(|bar| &bar.bar).chain(&self.counter).for_each(ProgressBar::finish_and_clear);
        // Ignore the error: the terminal may be closed.
        let _ = self.all.clear();
    }
}

/// Returns the current space for a row on the terminal.
fn row_space(glyphs: Glyphs) -> RowSpace {
    let columns = rustix::termios::tcgetwinsize(std::io::stderr()).map_or(0, |size| usize::from(size.ws_col));
    let columns = if columns == 0 { DEFAULT_COLUMNS } else { columns };
    RowSpace { columns: columns.saturating_sub(SPINNER_COLUMNS), glyphs }
}

fn style(template: &str) -> ProgressStyle {
    ProgressStyle::with_template(template).unwrap_or_else(|_| ProgressStyle::default_spinner())
}
