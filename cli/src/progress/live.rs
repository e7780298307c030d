//! What runs, redrawn in place on a terminal.

use std::time::Duration;

use indicatif::{MultiProgress, ProgressBar, ProgressDrawTarget, ProgressStyle};

use super::Running;
use crate::text::bound;

const TICK: Duration = Duration::from_millis(100);
const REDRAWS_PER_SECOND: u8 = 15;

/// A line for each step that runs.
pub(super) struct Live {
    all: MultiProgress,
    bars: Vec<(String, ProgressBar)>,
}

impl Live {
    pub(super) fn new() -> Self {
        let target = ProgressDrawTarget::stderr_with_hz(REDRAWS_PER_SECOND);
        Self { all: MultiProgress::with_draw_target(target), bars: Vec::new() }
    }

    pub(super) fn start(&mut self, running: &Running) {
        self.end(&running.name);
        let bar = self.all.add(ProgressBar::new_spinner().with_style(style()));
        let of = running.timeout_ms.map(|timeout| format!("/ {}  ", bound(timeout))).unwrap_or_default();
        bar.set_message(format!("{of}{}", running.name));
        bar.enable_steady_tick(TICK);
        self.bars.push((running.name.clone(), bar));
    }

    pub(super) fn end(&mut self, name: &str) {
        let ended = self.bars.extract_if(.., |(other, _)| other == name);
        ended.for_each(|(_, bar)| bar.finish_and_clear());
    }

    /// Writes while nothing is drawn.
    pub(super) fn above(&self, write: impl FnOnce()) {
        self.all.suspend(write);
    }

    pub(super) fn clear(self) {
        self.bars.iter().for_each(|(_, bar)| bar.finish_and_clear());
        // The terminal may be gone; there is nobody to tell.
        let _ = self.all.clear();
    }
}

fn style() -> ProgressStyle {
    ProgressStyle::with_template("{spinner} {elapsed} {wide_msg}").unwrap_or_else(|_| ProgressStyle::default_spinner())
}
