//! Measures the CPU time of a step by its control group, which also counts processes that no parent has waited for.

use std::fs::File;
use std::os::fd::OwnedFd;
use std::os::unix::fs::FileExt;
use std::time::Duration;

use crate::wire::CgroupEntry;

/// The file of a control group that counts the CPU time of all its processes.
#[derive(Debug)]
pub(super) struct GroupCpuTime(File);

impl GroupCpuTime {
    /// Takes the file from the end of the descriptors of a request.
    pub(super) fn from_fds(entry: &CgroupEntry, fds: &mut Vec<OwnedFd>) -> Option<Self> {
        let CgroupEntry::Group { counts_cpu: true, .. } = entry else { return None };
        Some(Self(fds.pop()?.into()))
    }

    /// Returns the CPU time since the group was created.
    pub(super) fn read(&self) -> Option<Duration> {
        let mut text = [0; 256];
        let length = self.0.read_at(&mut text, 0).ok()?;
        parse_cpu_time(&String::from_utf8_lossy(&text[..length]))
    }
}

/// Parses the content of `cpu.stat` (version 2, microseconds after `usage_usec`) or `cpuacct.usage` (version 1,
/// nanoseconds).
fn parse_cpu_time(text: &str) -> Option<Duration> {
    match text.lines().find_map(|line| line.strip_prefix("usage_usec ")) {
        Some(microseconds) => microseconds.trim().parse().ok().map(Duration::from_micros),
        None => text.trim().parse().ok().map(Duration::from_nanos),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parses_both_versions() {
        assert_eq!(parse_cpu_time("usage_usec 5000\nuser_usec 1\n"), Some(Duration::from_millis(5)));
        assert_eq!(parse_cpu_time("5000999\n"), Some(Duration::from_nanos(5_000_999)));
        assert_eq!(parse_cpu_time(""), None);
    }
}
