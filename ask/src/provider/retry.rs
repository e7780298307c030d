//! Decides when a failed request is sent again: exponential backoff with jitter, or the time that the server requests.
//! It reads no clock.

use std::time::{Duration, SystemTime};

/// Maximum number of requests for one answer.
pub(super) const MAX_TRIES: u32 = 6;
/// Upper bound of the first pause; it doubles with each try.
const FIRST_PAUSE: Duration = Duration::from_millis(500);
/// Maximum pause that Proctor chooses itself.
const MAX_PAUSE: Duration = Duration::from_secs(20);

/// Returns the pause after the failed try number `tries` (starting at 1). `random` spreads the requests of several
/// clients over the second half of the pause.
pub(super) fn backoff(tries: u32, random: u32) -> Duration {
    let doubled = FIRST_PAUSE.saturating_mul(1 << tries.saturating_sub(1).min(16)).min(MAX_PAUSE);
    let half = doubled / 2;
    half + half.mul_f64(f64::from(random) / f64::from(u32::MAX))
}

/// Parses the value of `Retry-After`: seconds, or a date of HTTP. Returns `None` if it is neither.
pub(super) fn parse_retry_after(value: &str, now: SystemTime) -> Option<Duration> {
    let value = value.trim();
    if !value.is_empty() && value.bytes().all(|byte| byte.is_ascii_digit()) {
        return Some(Duration::from_secs(value.parse().unwrap_or(u64::MAX)));
    }
    let date = httpdate::parse_http_date(value).ok()?;
    Some(date.duration_since(now).unwrap_or_default())
}

/// Returns a random number. It only spreads requests; without a random source all clients wait equally long.
pub(super) fn random() -> u32 {
    let mut bytes = [0; 4];
    let _ = rustix::rand::getrandom(&mut bytes, rustix::rand::GetRandomFlags::empty());
    u32::from_ne_bytes(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn backoff_doubles_and_is_bounded() {
        assert_eq!(backoff(1, 0), FIRST_PAUSE / 2);
        assert_eq!(backoff(1, u32::MAX), FIRST_PAUSE);
        assert_eq!(backoff(2, u32::MAX), FIRST_PAUSE * 2);
        assert_eq!(backoff(u32::MAX, u32::MAX), MAX_PAUSE);
        assert_eq!(backoff(0, 0), FIRST_PAUSE / 2);
    }

    #[test]
    fn reads_retry_after_as_seconds_and_date() {
        let now = SystemTime::UNIX_EPOCH + Duration::from_secs(784_111_777);
        let parse = |value| parse_retry_after(value, now);
        assert_eq!(parse("7"), Some(Duration::from_secs(7)));
        assert_eq!(parse(" 0 "), Some(Duration::ZERO));
        assert_eq!(parse("99999999999999999999999"), Some(Duration::from_secs(u64::MAX)));
        assert_eq!(parse("Sun, 06 Nov 1994 08:49:47 GMT"), Some(Duration::from_secs(10)));
        assert_eq!(parse("Sun, 06 Nov 1994 08:49:00 GMT"), Some(Duration::ZERO));
        for malformed in ["", "-1", "soon", "1.5"] {
            assert_eq!(parse(malformed), None, "{malformed}");
        }
    }
}
