//! A running step, and its row.

use std::time::Duration;

use super::row_format::StepRowContent;
use crate::text::{duration, exact_duration};

/// A running step.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct RunningStep {
    /// `skill/step`.
    pub name: String,
    /// Time of the start, counted from the start of the run.
    pub since: Duration,
    /// Timeout in milliseconds, counted from the start of the step; `None` if it is not known.
    pub timeout_ms: Option<u64>,
    /// Duration of the last attempt that passed, in milliseconds; `None` if it is not known.
    pub expected_ms: Option<u64>,
}

impl RunningStep {
    /// Formats the row for a log: `skill/step 1m30s of 10 min, 50 s the last time`.
    pub(super) fn heartbeat_text(&self, now: Duration) -> String {
        let elapsed = u64::try_from(now.saturating_sub(self.since).as_millis()).unwrap_or(u64::MAX);
        let limit = self.timeout_ms.map(|timeout| format!(" of {}", exact_duration(timeout))).unwrap_or_default();
        let last = self.expected_ms.map(|last| format!(", {} the last time", duration(last))).unwrap_or_default();
        format!("{} {}{limit}{last}", self.name, duration(elapsed))
    }

    /// Returns the row for a terminal.
    pub(super) fn to_row(&self) -> StepRowContent<'_> {
        StepRowContent { name: &self.name, timeout_ms: self.timeout_ms, expected_ms: self.expected_ms, last_line: "" }
    }
}
