//! Codes of the queue for SQL requests: why the daemon refuses to judge a request now.

use super::error_code::codes;

/// The reason why the daemon refuses an SQL request, as a closed list without the details.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum SqlQueueCode {
    /// The queue is full.
    Full,
    /// No worker became free in time.
    WaitExpired,
}

codes! { SqlQueueCode;
    Full, 680, "sql::queue_full",
        "The queue of SQL requests is full, for this user or in total.",
        "An unbounded queue would make every caller wait for an unknown time.",
        "Send the request again after the seconds in `Retry-After`, and send fewer requests at once.",
        "HTTP/1.1 429 Too Many Requests\nRetry-After: 12";
    WaitExpired, 681, "sql::queue_wait",
        "No SQL worker became free within the maximum wait, so the daemon did not judge the request.",
        "A caller needs an answer within a known time: the maximum wait plus the `time` limit.",
        "Send the request again after the seconds in `Retry-After`, or lower `limits.time_ms` of slow requests.",
        "HTTP/1.1 503 Service Unavailable\nRetry-After: 5";
}
