//! Provides the time of day; no other code of the runner reads it. Durations use tokio's clock, which tests can
//! pause.

use std::time::SystemTime;

use proctor_core::model::names::RunId;

/// The time of day.
#[derive(Debug, Clone, Copy)]
pub struct Clock(fn() -> SystemTime);

impl Clock {
    /// Returns the system's clock.
    pub fn system() -> Self {
        #[expect(clippy::disallowed_methods, reason = "the only place that reads the system clock")]
        Self(SystemTime::now)
    }

    /// Returns a clock that a test controls.
    pub fn from_fn(now: fn() -> SystemTime) -> Self {
        Self(now)
    }

    /// Returns the current time.
    pub(crate) fn system_time(self) -> SystemTime {
        (self.0)()
    }

    /// Returns the current time in UTC, RFC 3339 with milliseconds.
    pub fn now_text(self) -> String {
        humantime::format_rfc3339_millis((self.0)()).to_string()
    }

    /// Returns the current time in milliseconds since 1970.
    pub fn now_ms(self) -> u64 {
        let since = (self.0)().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
    }

    /// Returns the current time in nanoseconds since 1970.
    pub fn now_ns(self) -> u64 {
        let since = (self.0)().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        u64::try_from(since.as_nanos()).unwrap_or(u64::MAX)
    }

    /// Returns a run id for the current time: it sorts by time, and `random` makes it unique.
    ///
    /// # Errors
    /// The clock is set beyond the year 9999, whose text is not a valid id.
    pub fn run_id(self, random: u32) -> Result<RunId, proctor_core::model::names::BadName> {
        let stamp: String = humantime::format_rfc3339_seconds((self.0)())
            .to_string()
            .chars()
            .filter(char::is_ascii_alphanumeric)
            .collect();
        RunId::new(format!("{stamp}-{random:08x}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    fn fixed() -> SystemTime {
        SystemTime::UNIX_EPOCH + Duration::from_millis(1_767_323_045_678)
    }

    #[test]
    fn formats_times_and_run_ids() {
        let clock = Clock::from_fn(fixed);
        assert_eq!(clock.now_text(), "2026-01-02T03:04:05.678Z");
        assert_eq!(clock.now_ms(), 1_767_323_045_678);
        assert_eq!(clock.now_ns(), 1_767_323_045_678_000_000);
        assert_eq!(clock.run_id(0xab).expect("an id").as_str(), "20260102T030405Z-000000ab");
    }
}
