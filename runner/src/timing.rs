//! How long the stages of an attempt take: told to whoever listens to the target
//! [`TARGET`], as `make bench` does, and to nobody otherwise. Nothing depends on it.

use std::time::Duration;

use tokio::time::Instant;

/// The target of these events. Each has two fields: `stage`, its name, and `us`, how long it
/// took in microseconds.
pub const TARGET: &str = "proctor::timing";

/// Stages that follow each other without a gap.
pub(crate) struct Laps {
    last: Instant,
}

impl Laps {
    /// The first stage begins now.
    pub(crate) fn start() -> Self {
        Self { last: Instant::now() }
    }

    /// `stage` has ended, and the next one begins.
    pub(crate) fn lap(&mut self, stage: &'static str) {
        tell(stage, self.next());
    }

    /// Two stages have ended, of which one measured itself.
    pub(crate) fn lap_apart(&mut self, measured: &'static str, took: Duration, rest: &'static str) {
        let both = self.next();
        tell(rest, both.saturating_sub(took));
        tell(measured, took);
    }

    fn next(&mut self) -> Duration {
        let now = Instant::now();
        now - std::mem::replace(&mut self.last, now)
    }
}

fn tell(stage: &'static str, took: Duration) {
    let us = u64::try_from(took.as_micros()).unwrap_or(u64::MAX);
    tracing::trace!(target: TARGET, stage, us);
}
