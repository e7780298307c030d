//! Logs and counts panics. A panic ends its task, and the daemon continues.

use std::panic;

use tracing::error;

use crate::metrics::Metrics;

/// Installs a panic hook that logs every panic.
pub(super) fn log_all(metrics: Metrics) {
    panic::set_hook(Box::new(move |info| {
        let place = info.location().map(|at| format!("{}:{}", at.file(), at.line())).unwrap_or_default();
        let what = info.payload_as_str().unwrap_or("a panic without a message");
        metrics.count_panic();
        error!(place, "internal error: {what}; this is a bug in proctor");
    }));
}
