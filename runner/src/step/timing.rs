//! Reports the durations of the stages of an attempt to listeners of the target [`TARGET`], such as `make bench`.
//! Nothing else uses them.

use tokio::time::Instant;

/// Target of these events. Each event has two fields: `stage`, its name, and `us`, its duration in microseconds.
pub const TARGET: &str = "proctor::timing";

/// Consecutive stages without gaps.
pub(crate) struct StageTimer {
    last: Instant,
}

impl StageTimer {
    /// Starts the first stage.
    pub(crate) fn start() -> Self {
        Self { last: Instant::now() }
    }

    /// Reports the end of `stage`, and starts the next one.
    pub(crate) fn finish_stage(&mut self, stage: &'static str) {
        let now = Instant::now();
        let took = now - std::mem::replace(&mut self.last, now);
        let us = u64::try_from(took.as_micros()).unwrap_or(u64::MAX);
        tracing::trace!(target: TARGET, stage, us);
    }
}
