//! Represents how a command ended, and the space that it exhausted.

use proctor_core::model::outcome::LimitKind;
use rustix::fs::StatVfs;
use serde::{Deserialize, Serialize};

/// How a process ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum WaitStatus {
    /// The process exited with this status.
    Code(u8),
    /// The process was killed by this signal.
    Signal(u8),
}

/// The resources that a bounded file system has run out of.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ExhaustedSpace {
    /// True if there is no space for more bytes.
    pub bytes: bool,
    /// True if there are no inodes for more files.
    pub files: bool,
}

impl ExhaustedSpace {
    /// Reads the current values of the kernel. A file system without a bound reports a total of 0.
    pub(crate) fn from_statvfs(stats: &StatVfs) -> Self {
        let spent = |total: u64, free: u64| total > 0 && free == 0;
        Self { bytes: spent(stats.f_blocks, stats.f_bfree), files: spent(stats.f_files, stats.f_ffree) }
    }

    /// Returns the limits that have been reached.
    pub fn limits(self) -> impl Iterator<Item = LimitKind> {
        let kinds = [(self.bytes, LimitKind::Disk), (self.files, LimitKind::Inodes)];
        kinds.into_iter().filter_map(|(met, kind)| met.then_some(kind))
    }
}
