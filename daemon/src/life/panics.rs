//! Panics: each is said in the log and counted. The task that panicked ends; the daemon goes on.

use std::panic;

use tracing::error;

use crate::metrics::Metrics;

/// From now on every panic is a line of the log.
pub(super) fn log_all(metrics: Metrics) {
    panic::set_hook(Box::new(move |info| {
        let place = info.location().map(|at| format!("{}:{}", at.file(), at.line())).unwrap_or_default();
        let what = info.payload_as_str().unwrap_or("a panic without a message");
        metrics.panicked();
        error!(place, "internal error: {what}; this is a bug in proctor");
    }));
}
