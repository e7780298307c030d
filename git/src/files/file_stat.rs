//! Stat data of a file, and rules for when they reveal every change.

use std::time::Duration;

use rustix::fs::Stat;
use rustix::time::{ClockId, clock_gettime};
use serde::{Deserialize, Serialize};

/// A time of the clock that file systems use for timestamps: seconds and nanoseconds.
pub type FileTime = (i64, u32);

/// Time after its last change during which a file's content may still change without a change of its stat data.
/// This happens through a shared mapping, until the kernel writes the page to the disk.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RacyWindow(pub Duration);

/// The default is longer than the kernel keeps a page dirty: `vm.dirty_expire_centisecs` and
/// `vm.dirty_writeback_centisecs` are 30 s and 5 s.
impl Default for RacyWindow {
    fn default() -> Self {
        Self(Duration::from_secs(40))
    }
}

/// The stat data that differ after a file was changed, on a file system that maintains `st_ctime`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct FileStat {
    /// The device.
    pub dev: u64,
    /// The inode number.
    pub ino: u64,
    /// The length in bytes.
    pub size: u64,
    /// Time of the last content change.
    pub mtime: FileTime,
    /// Only the kernel sets this time (inode(7)).
    pub ctime: FileTime,
    /// The type and the permissions.
    pub mode: u32,
}

impl FileStat {
    /// Extracts the stamp from the result of a `stat` call.
    #[expect(clippy::useless_conversion, reason = "the types of these fields differ by architecture")]
    pub fn from_stat(stat: &Stat) -> Self {
        let moment = |seconds: i64, nanoseconds: i64| (seconds, u32::try_from(nanoseconds).unwrap_or(0));
        Self {
            dev: stat.st_dev.into(),
            ino: stat.st_ino.into(),
            size: u64::try_from(stat.st_size).unwrap_or(u64::MAX),
            mtime: moment(stat.st_mtime.into(), i64::try_from(stat.st_mtime_nsec).unwrap_or(0)),
            ctime: moment(stat.st_ctime.into(), i64::try_from(stat.st_ctime_nsec).unwrap_or(0)),
            mode: stat.st_mode.into(),
        }
    }

    /// Checks whether the file changed so shortly before `look` that its content may still change without a new
    /// stamp.
    pub fn is_in_racy_window(&self, scan_time: FileTime, RacyWindow(settling): RacyWindow) -> bool {
        let age = |(seconds, nanoseconds): FileTime| i128::from(seconds) * 1_000_000_000 + i128::from(nanoseconds);
        age(scan_time) - age(self.ctime) < i128::try_from(settling.as_nanos()).unwrap_or(i128::MAX)
    }

    /// Checks whether the file changed after `look`, and more than one clock tick later.
    pub fn is_after(&self, time: FileTime) -> bool {
        subtract_nanos(self.ctime, CLOCK_SLACK_NANOS) > time
    }

    /// Checks whether a change after `look` could leave this stamp unchanged, because the file changed so late that
    /// the next change may get the same timestamp.
    pub fn is_racy(&self, scan_time: FileTime) -> bool {
        self.ctime > subtract_nanos(scan_time, CLOCK_SLACK_NANOS)
            || (self.ctime.1 == 0 && self.ctime.0 + WHOLE_SECOND_GRANULARITY > scan_time.0)
    }
}

/// Minimum time between a change and the scan before a stamp is trusted, in nanoseconds; it is longer than any tick
/// of the clock.
const CLOCK_SLACK_NANOS: u32 = 20_000_000;
/// Upper bound of the timestamp granularity, in seconds, on file systems that store whole seconds only.
const WHOLE_SECOND_GRANULARITY: i64 = 3;

fn subtract_nanos(moment: FileTime, nanoseconds: u32) -> FileTime {
    match moment.1.checked_sub(nanoseconds) {
        Some(rest) => (moment.0, rest),
        None => (moment.0 - 1, moment.1 + 1_000_000_000 - nanoseconds),
    }
}

/// Returns the current time of the clock that file systems use. No later change gets an earlier timestamp.
pub fn now() -> FileTime {
    let now = clock_gettime(ClockId::RealtimeCoarse);
    (now.tv_sec, u32::try_from(now.tv_nsec).unwrap_or(0))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn recent_changes_are_racy() {
        let at = |seconds, nanoseconds| FileStat { ctime: (seconds, nanoseconds), ..FileStat::default() };
        let look = (100, 10_000_000);
        assert!(at(100, 10_000_000).is_racy(look) && at(99, 999_999_999).is_racy(look) && at(101, 5).is_racy(look));
        assert!(!at(99, 980_000_000).is_racy(look) && !at(50, 1).is_racy(look));
        let settling = |seconds, of| at(seconds, 0).is_in_racy_window(look, RacyWindow(Duration::from_secs(of)));
        assert!(settling(70, 40) && settling(100, 1) && settling(101, 1) && !settling(60, 40) && !settling(99, 0));
        // Timestamps in whole seconds are rounded down, on some file systems to even seconds.
        assert!(at(98, 0).is_racy(look) && !at(97, 0).is_racy(look));
    }
}
