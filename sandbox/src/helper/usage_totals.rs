//! Adds up the resource usage of processes.

use std::time::Duration;

use crate::sys;

/// The resource usage of reaped processes, including the processes that they have reaped.
#[derive(Debug, Default)]
pub(super) struct UsageTotals {
    pub(super) user: Duration,
    pub(super) system: Duration,
    pub(super) max_rss_kib: u64,
}

impl UsageTotals {
    /// Adds the usage of one process.
    pub(super) fn add(&mut self, usage: &sys::ProcessUsage) {
        self.user += usage.user;
        self.system += usage.system;
        self.max_rss_kib = self.max_rss_kib.max(usage.max_rss_kib);
    }
}
