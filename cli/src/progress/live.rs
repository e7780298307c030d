//! What runs, redrawn in place on a terminal.

use std::time::Duration;

use indicatif::{MultiProgress, ProgressBar, ProgressDrawTarget, ProgressStyle};

use super::{Running, Steps};
use crate::text::bound;

const TICK: Duration = Duration::from_millis(100);
const REDRAWS_PER_SECOND: u8 = 15;

/// A line for each step that runs.
pub(super) struct Live {
    all: MultiProgress,
    bars: Vec<(String, ProgressBar)>,
    /// How many steps have ended, below those that run.
    counter: Option<ProgressBar>,
}

impl Live {
    pub(super) fn new() -> Self {
        let target = ProgressDrawTarget::stderr_with_hz(REDRAWS_PER_SECOND);
        Self { all: MultiProgress::with_draw_target(target), bars: Vec::new(), counter: None }
    }

    pub(super) fn start(&mut self, running: &Running) {
        self.end(&running.name);
        let bar = ProgressBar::new_spinner().with_style(style("{spinner} {elapsed} {wide_msg}"));
        let bar = match &self.counter {
            Some(counter) => self.all.insert_before(counter, bar),
            None => self.all.add(bar),
        };
        let of = running.timeout_ms.map(|timeout| format!("/ {}  ", bound(timeout))).unwrap_or_default();
        bar.set_message(format!("{of}{}", running.name));
        bar.enable_steady_tick(TICK);
        self.bars.push((running.name.clone(), bar));
    }

    pub(super) fn end(&mut self, name: &str) {
        let ended = self.bars.extract_if(.., |(other, _)| other == name);
        ended.for_each(|(_, bar)| bar.finish_and_clear());
    }

    /// Shows how far the run is, where it has more than one step.
    pub(super) fn count(&mut self, steps: Steps) {
        if steps.all < 2 {
            return;
        }
        let bar = self.counter.get_or_insert_with(|| {
            let bar = ProgressBar::new(0)
                .with_style(style("  {elapsed} [{bar:24}] {pos} of {len} steps").progress_chars("=> "));
            let bar = self.all.add(bar);
            bar.enable_steady_tick(TICK);
            bar
        });
        bar.set_length(steps.all as u64);
        bar.set_position(steps.ended as u64);
    }

    /// Writes while nothing is drawn.
    pub(super) fn above(&self, write: impl FnOnce()) {
        self.all.suspend(write);
    }

    pub(super) fn clear(self) {
        self.bars.iter().map(|(_, bar)| bar).chain(&self.counter).for_each(ProgressBar::finish_and_clear);
        // The terminal may be gone; there is nobody to tell.
        let _ = self.all.clear();
    }
}

fn style(template: &str) -> ProgressStyle {
    ProgressStyle::with_template(template).unwrap_or_else(|_| ProgressStyle::default_spinner())
}
