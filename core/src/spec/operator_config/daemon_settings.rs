//! Parses `[daemon]` of `proctord.toml`: socket, capacity and retention of the daemon.

use std::num::NonZeroU64;
use std::time::Duration;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Settings of the daemon: socket, capacity and retention.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DaemonSettings {
    /// Path of the socket; `None` for the default path of the user or the system.
    pub socket: Option<String>,
    /// Users that may connect in addition to the daemon's own user.
    pub allow_users: Vec<UserRef>,
    /// Maximum number of runs at once; `None` for one per CPU.
    pub max_runs: Option<u32>,
    /// Maximum number of runs of one caller at once; `None` for no limit per caller.
    pub max_runs_per_caller: Option<u32>,
    /// Maximum number of queued runs.
    pub max_queued: u32,
    /// Maximum number of queued runs of one caller.
    pub max_queued_per_caller: u32,
    /// Maximum number of open connections. Above it, the daemon closes the connections that have been idle longest.
    pub max_connections: u32,
    /// Timeout for receiving the head of a request, for receiving its body, and for each write of a response.
    pub request_timeout: Duration,
    /// Time that active runs have to finish after SIGTERM before the daemon cancels them.
    pub drain: Duration,
    /// Time without runs and connections after which the daemon exits; `None` for never.
    pub idle_exit: Option<Duration>,
    /// Requires a file `APPROVED` in a changeset for runs above tier 1.
    pub approve_tier2: bool,
    /// Settings of the log.
    pub log: LogSettings,
    /// Retention of ended runs.
    pub retention: Retention,
}

/// A user, as written by the operator.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(untagged)]
pub enum UserRef {
    /// A user ID.
    Uid(u32),
    /// An account name.
    Name(String),
}

/// Settings of the log.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LogSettings {
    /// Log level, in the filter syntax of `tracing-subscriber`.
    pub level: String,
    /// Output format.
    pub format: LogFormat,
}

/// Output format of the log.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum LogFormat {
    /// Journal fields if standard error is connected to the systemd journal, otherwise text.
    #[default]
    Auto,
    /// Human-readable lines.
    Text,
    /// One JSON object per line.
    Json,
    /// Journal fields.
    Journald,
}

/// Retention of ended runs. Evidence in changesets is never removed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Retention {
    /// Maximum age of logs and outputs; `None` for no maximum.
    pub max_age: Option<Duration>,
    /// Maximum number of stored runs.
    pub max_runs: u64,
    /// Maximum size of the stored outputs, in bytes on disk.
    pub max_output_bytes: u64,
    /// Maximum size of all private copies, in bytes on disk. The least recently used copies are removed first.
    pub max_copy_bytes: u64,
    /// Maximum size of all stored results of steps, in bytes on disk. The least recently used results are removed first.
    pub max_result_bytes: u64,
    /// Retention of skill caches.
    pub caches: CacheRetention,
}

/// Retention of skill caches. The least recently used caches are removed first.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CacheRetention {
    /// Maximum size of all caches, in bytes.
    pub max_bytes: u64,
    /// Maximum size of the caches of one repository, in bytes.
    pub max_bytes_per_repository: u64,
    /// Maximum number of bytes that one skill may write to one cache in one run. If it writes more, these writes are
    /// not kept.
    pub max_bytes_per_run: u64,
    /// Time after which an unused cache is removed.
    pub max_unused: Duration,
}

/// Settings without a config file: a daemon for one user on one machine.
impl Default for DaemonSettings {
    fn default() -> Self {
        Self::from_file(&DaemonFile::default())
    }
}

const MAX_QUEUED: u32 = 1_024;
const MAX_QUEUED_PER_CALLER: u32 = 256;
const MAX_CONNECTIONS: u32 = 4_096;
const REQUEST_TIMEOUT_MS: u64 = 10_000;
const DRAIN_MS: u64 = 30_000;
const DEFAULT_LOG_LEVEL: &str = "info";
const MAX_RUNS_KEPT: u64 = 10_000;
const MAX_OUTPUT_BYTES: u64 = 4 << 30;
const MAX_COPY_BYTES: u64 = 20 << 30;
const MAX_RESULT_BYTES: u64 = 256 << 20;
const MAX_CACHE_BYTES: u64 = 64 << 30;
const MAX_CACHE_BYTES_PER_REPOSITORY: u64 = 32 << 30;
const MAX_CACHE_BYTES_PER_RUN: u64 = 16 << 30;
const MAX_CACHE_UNUSED_DAYS: u64 = 30;

/// The table as written.
#[derive(Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct DaemonFile {
    /// Absolute path of the socket. Default: `$XDG_RUNTIME_DIR/proctor/proctord.sock`; for root,
    /// `/run/proctor/proctord.sock`.
    socket: Option<String>,
    /// Users that may connect in addition to the daemon's own user: account names or user IDs.
    allow_users: Option<Vec<UserRef>>,
    /// Maximum number of runs at once. Default: one per CPU.
    max_runs: Option<PositiveCount>,
    /// Maximum number of runs of one caller at once. Default: no limit per caller.
    max_runs_per_caller: Option<PositiveCount>,
    /// Maximum number of queued runs. Default: 1024.
    max_queued: Option<PositiveCount>,
    /// Maximum number of queued runs of one caller; at most `max_queued`. Default: 256, or `max_queued` if it is
    /// smaller.
    max_queued_per_caller: Option<PositiveCount>,
    /// Maximum number of open connections. Default: 4096.
    max_connections: Option<PositiveCount>,
    /// Timeout for receiving the head of a request, for receiving its body, and for each write of a response, in
    /// milliseconds. Default: 10000.
    request_timeout_ms: Option<NonZeroU64>,
    /// Time that active runs have to finish after SIGTERM before the daemon cancels them, in milliseconds. Default:
    /// 30000.
    drain_ms: Option<u64>,
    /// Time without runs and connections after which the daemon exits, in milliseconds. Default: never.
    idle_exit_ms: Option<NonZeroU64>,
    /// Requires a file `APPROVED` in a changeset for runs above tier 1. Default: false.
    approve_tier2: Option<bool>,
    /// Settings of the log.
    log: Option<LogFile>,
    /// Retention of ended runs.
    retention: Option<RetentionFile>,
}

/// A positive number.
type PositiveCount = std::num::NonZeroU32;

#[derive(Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct LogFile {
    /// Log level: `error`, `warn`, `info`, `debug`, `trace`, or a filter such as `info,proctor_runner=debug`. Default:
    /// `info`.
    level: Option<String>,
    /// Output format. Default: `auto`.
    format: Option<LogFormat>,
}

#[derive(Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct RetentionFile {
    /// Number of days for which logs and outputs of runs are kept. Default: no limit.
    max_age_days: Option<NonZeroU64>,
    /// Maximum number of stored runs. Default: 10000.
    max_runs: Option<NonZeroU64>,
    /// Maximum size of the stored outputs, in bytes on disk. Default: 4 GiB.
    max_output_bytes: Option<NonZeroU64>,
    /// Maximum size of all private copies of worktrees and commits, in bytes on disk; the least recently used copies are
    /// removed first. Default: 20 GiB.
    max_copy_bytes: Option<NonZeroU64>,
    /// Maximum size of all stored results of steps, in bytes on disk; the least recently used results are removed first.
    /// A result larger than an eighth of this size is not stored. Default: 256 MiB.
    max_result_bytes: Option<NonZeroU64>,
    /// Maximum size of all caches, in bytes; the least recently used caches are removed first. Default: 64 GiB.
    max_cache_bytes: Option<NonZeroU64>,
    /// Maximum size of the caches of one repository, in bytes. Default: 32 GiB.
    max_cache_bytes_per_repository: Option<NonZeroU64>,
    /// Maximum number of bytes that one skill may write to one cache in one run. If it writes more, these writes are
    /// not kept. Default: 16 GiB.
    max_cache_bytes_per_run: Option<NonZeroU64>,
    /// Number of days after which an unused cache is removed. Default: 30.
    max_cache_unused_days: Option<NonZeroU64>,
}

const SECONDS_PER_DAY: u64 = 24 * 60 * 60;

impl CacheRetention {
    fn from_file(file: Option<&RetentionFile>) -> Self {
        let or = |value: fn(&RetentionFile) -> Option<NonZeroU64>, default: u64| {
            file.and_then(value).map_or(default, NonZeroU64::get)
        };
        let days = or(|file| file.max_cache_unused_days, MAX_CACHE_UNUSED_DAYS);
        Self {
            max_bytes: or(|file| file.max_cache_bytes, MAX_CACHE_BYTES),
            max_bytes_per_repository: or(|file| file.max_cache_bytes_per_repository, MAX_CACHE_BYTES_PER_REPOSITORY),
            max_bytes_per_run: or(|file| file.max_cache_bytes_per_run, MAX_CACHE_BYTES_PER_RUN),
            max_unused: Duration::from_secs(days.saturating_mul(SECONDS_PER_DAY)),
        }
    }
}

impl DaemonSettings {
    pub(super) fn from_file(file: &DaemonFile) -> Self {
        let or = |count: Option<PositiveCount>, default: u32| count.map_or(default, PositiveCount::get);
        let log = file.log.as_ref();
        let retention = file.retention.as_ref();
        let max_queued = or(file.max_queued, MAX_QUEUED);
        Self {
            socket: file.socket.clone(),
            allow_users: file.allow_users.clone().unwrap_or_default(),
            max_runs: file.max_runs.map(PositiveCount::get),
            max_runs_per_caller: file.max_runs_per_caller.map(PositiveCount::get),
            max_queued,
            // One caller never has more than all, so a smaller maximum for all also lowers the default.
            max_queued_per_caller: or(file.max_queued_per_caller, MAX_QUEUED_PER_CALLER.min(max_queued)),
            max_connections: or(file.max_connections, MAX_CONNECTIONS),
            request_timeout: Duration::from_millis(file.request_timeout_ms.map_or(REQUEST_TIMEOUT_MS, NonZeroU64::get)),
            drain: Duration::from_millis(file.drain_ms.unwrap_or(DRAIN_MS)),
            idle_exit: file.idle_exit_ms.map(|ms| Duration::from_millis(ms.get())),
            approve_tier2: file.approve_tier2.unwrap_or(false),
            log: LogSettings {
                level: log.and_then(|log| log.level.clone()).unwrap_or_else(|| DEFAULT_LOG_LEVEL.to_owned()),
                format: log.and_then(|log| log.format).unwrap_or_default(),
            },
            retention: Retention {
                max_age: retention
                    .and_then(|kept| kept.max_age_days)
                    .map(|days| Duration::from_secs(days.get().saturating_mul(SECONDS_PER_DAY))),
                max_runs: retention.and_then(|kept| kept.max_runs).map_or(MAX_RUNS_KEPT, NonZeroU64::get),
                max_output_bytes: retention
                    .and_then(|kept| kept.max_output_bytes)
                    .map_or(MAX_OUTPUT_BYTES, NonZeroU64::get),
                max_copy_bytes: retention.and_then(|kept| kept.max_copy_bytes).map_or(MAX_COPY_BYTES, NonZeroU64::get),
                max_result_bytes: retention
                    .and_then(|kept| kept.max_result_bytes)
                    .map_or(MAX_RESULT_BYTES, NonZeroU64::get),
                caches: CacheRetention::from_file(retention),
            },
        }
    }

    /// Returns a message for each contradictory or invalid setting.
    pub(super) fn problems(&self) -> impl Iterator<Item = String> {
        let socket = self.socket.as_deref().filter(|path| !path.starts_with('/'));
        let socket = socket.map(|path| format!("`daemon.socket` {} is not absolute", super::super::quoted(path)));
        let runs = self.max_runs_per_caller.zip(self.max_runs).filter(|(one, all)| one > all);
        let runs = runs.map(|(one, all)| {
            format!(
                "`daemon.max_runs_per_caller` ({one}) is above `daemon.max_runs` ({all}): lower it, or raise \
                 `daemon.max_runs`"
            )
        });
        let (one, all) = (self.max_queued_per_caller, self.max_queued);
        let queued = (one > all).then(|| {
            format!(
                "`daemon.max_queued_per_caller` ({one}) is above `daemon.max_queued` ({all}): lower it, or raise \
                 `daemon.max_queued`"
            )
        });
        let nameless = self.allow_users.iter().any(|user| matches!(user, UserRef::Name(name) if name.is_empty()));
        let nameless = nameless.then(|| "a name in `daemon.allow_users` is empty".to_owned());
        [socket, runs, queued, nameless].into_iter().flatten()
    }
}

#[cfg(test)]
mod tests {
    use super::super::OperatorConfig;
    use super::*;

    #[test]
    fn parses_daemon_table() {
        let text = "[daemon]\nsocket = '/run/x.sock'\nallow_users = ['ci', 1001]\nmax_runs = 4\nidle_exit_ms = 500\n\
            [daemon.log]\nformat = 'json'\n[daemon.retention]\nmax_age_days = 2\nmax_cache_bytes = 7\n";
        let daemon = OperatorConfig::parse(text).expect("reads").daemon;
        assert_eq!(daemon.allow_users, [UserRef::Name("ci".into()), UserRef::Uid(1001)]);
        assert_eq!((daemon.max_runs, daemon.idle_exit), (Some(4), Some(Duration::from_millis(500))));
        assert_eq!((daemon.log.format, daemon.log.level.as_str()), (LogFormat::Json, "info"));
        assert_eq!(daemon.retention.max_age, Some(Duration::from_secs(2 * SECONDS_PER_DAY)));
        let caches = daemon.retention.caches;
        assert_eq!((caches.max_bytes, caches.max_bytes_per_run), (7, MAX_CACHE_BYTES_PER_RUN));
    }

    #[test]
    fn rejects_invalid_daemon_settings() {
        for text in [
            "socket = 'x.sock'",
            "max_runs = 0",
            "max_runs = 2\nmax_runs_per_caller = 3",
            "allow_users = ['']",
            "allow_users = [-1]",
            "sokcet = '/x'",
            "idle_exit_ms = 0",
        ] {
            OperatorConfig::parse(&format!("[daemon]\n{text}\n")).expect_err(text);
        }
    }

    #[test]
    fn rejects_more_queued_runs_per_caller_than_in_total() {
        for (text, numbers) in [
            ("max_queued = 100\nmax_queued_per_caller = 256", ["(256)", "(100)"]),
            ("max_queued = 100\nmax_queued_per_caller = 101", ["(101)", "(100)"]),
            ("max_queued_per_caller = 2000", ["(2000)", "(1024)"]),
        ] {
            let problems = OperatorConfig::parse(&format!("[daemon]\n{text}\n")).expect_err(text);
            let message = &problems[0].message;
            assert!(numbers.iter().all(|number| message.contains(number)), "{message}");
            assert!(message.ends_with("lower it, or raise `daemon.max_queued`"), "{message}");
        }
    }

    #[test]
    fn default_for_one_caller_never_exceeds_the_total() {
        let daemon = |text: &str| OperatorConfig::parse(&format!("[daemon]\n{text}\n")).expect("reads").daemon;
        assert_eq!(daemon("max_queued = 100").max_queued_per_caller, 100);
        assert_eq!(daemon("max_queued = 300").max_queued_per_caller, MAX_QUEUED_PER_CALLER);
        assert_eq!(daemon("max_queued = 256\nmax_queued_per_caller = 256").max_queued_per_caller, 256);
    }
}
