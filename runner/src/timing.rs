//! How long the stages of an attempt take: told to whoever listens to the target
//! [`TARGET`], as `make bench` does, and to nobody otherwise. Nothing depends on it.

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
        let now = Instant::now();
        let took = now - std::mem::replace(&mut self.last, now);
        let us = u64::try_from(took.as_micros()).unwrap_or(u64::MAX);
        tracing::trace!(target: TARGET, stage, us);
    }
}
