//! Metrics of this process from the kernel, under the names that Prometheus clients use.

use std::fs;
use std::sync::atomic::AtomicU64;

use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::{Registry, Unit};

/// Gauges that are updated whenever the metrics are read.
#[derive(Debug)]
pub(super) struct ProcessGauges {
    resident: Gauge,
    open_fds: Gauge,
    max_fds: Gauge,
    threads: Gauge,
}

impl ProcessGauges {
    pub(super) fn register(to: &mut Registry, started_ms: u64) -> Self {
        let gauges = Self {
            resident: Gauge::default(),
            open_fds: Gauge::default(),
            max_fds: Gauge::default(),
            threads: Gauge::default(),
        };
        let started = Gauge::<f64, AtomicU64>::default();
        started.set(std::time::Duration::from_millis(started_ms).as_secs_f64());
        to.register_with_unit("process_resident_memory", "Resident memory", Unit::Bytes, gauges.resident.clone());
        to.register("process_open_fds", "Open file descriptors", gauges.open_fds.clone());
        to.register("process_max_fds", "Maximum number of open file descriptors", gauges.max_fds.clone());
        to.register("process_threads", "Threads", gauges.threads.clone());
        to.register_with_unit(
            "process_start_time",
            "Start time of the process, in seconds since 1970",
            Unit::Seconds,
            started,
        );
        gauges
    }

    /// Updates the gauges. A gauge keeps its value if the new one cannot be read.
    pub(super) fn update(&self) {
        let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
        if let Some(kib) = field(&status, "VmRSS:") {
            self.resident.set(kib.saturating_mul(1024));
        }
        if let Some(threads) = field(&status, "Threads:") {
            self.threads.set(threads);
        }
        if let Ok(entries) = fs::read_dir("/proc/self/fd") {
            // One descriptor belongs to the directory being read.
            let open = entries.count().saturating_sub(1);
            self.open_fds.set(i64::try_from(open).unwrap_or(i64::MAX));
        }
        let limit = rustix::process::getrlimit(rustix::process::Resource::Nofile).current;
        self.max_fds.set(limit.and_then(|limit| i64::try_from(limit).ok()).unwrap_or(i64::MAX));
    }
}

fn field(status: &str, name: &str) -> Option<i64> {
    let line = status.lines().find_map(|line| line.strip_prefix(name))?;
    line.split_whitespace().next()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_metrics_of_own_process() {
        let gauges = ProcessGauges::register(&mut Registry::default(), 0);
        gauges.update();
        assert!(gauges.resident.get() > 0 && gauges.open_fds.get() > 2 && gauges.threads.get() > 0);
        assert!(gauges.max_fds.get() >= gauges.open_fds.get());
    }
}
