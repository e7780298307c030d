//! `[daemon]` of `proctord.toml`: how the daemon listens, how much it takes on, what it keeps.

use std::num::NonZeroU64;
use std::time::Duration;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// How the daemon listens, how much it takes on, and what it keeps.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DaemonSettings {
    /// Where the socket is; `None` for the place of the user or of the system.
    pub socket: Option<String>,
    /// Who may ask beside the daemon's own user.
    pub allow_users: Vec<UserRef>,
    /// How many runs are under way at once; `None` for one a CPU.
    pub max_runs: Option<u32>,
    /// How many of them are one caller's; `None` for as many as there are.
    pub max_runs_per_caller: Option<u32>,
    /// How many runs wait.
    pub max_queued: u32,
    /// How many of them are one caller's.
    pub max_queued_per_caller: u32,
    /// How many connections are open at once. Beyond that, those that have been idle for longest
    /// are closed.
    pub max_connections: u32,
    /// How long the head of a request, its body, and each write of an answer may take.
    pub request_timeout: Duration,
    /// How long runs that are under way may go on after SIGTERM before they are cancelled.
    pub drain: Duration,
    /// After how long without a run and a connection the daemon ends; `None` for never.
    pub idle_exit: Option<Duration>,
    /// Whether a changeset needs a file `APPROVED` before anything above tier 1 runs in it.
    pub approve_tier2: bool,
    /// What is written to the log.
    pub log: LogSettings,
    /// What is kept of runs that have ended.
    pub retention: Retention,
}

/// A user, as the operator names one.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(untagged)]
pub enum UserRef {
    /// By number.
    Uid(u32),
    /// By the name of an account.
    Name(String),
}

/// What is written to the log.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LogSettings {
    /// From which level on, in the syntax of `tracing-subscriber`'s filters.
    pub level: String,
    /// In which form.
    pub format: LogFormat,
}

/// The form of the log.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum LogFormat {
    /// Fields of the journal where standard error is one, else text.
    #[default]
    Auto,
    /// Lines for people.
    Text,
    /// A JSON object a line.
    Json,
    /// Fields of the journal.
    Journald,
}

/// What is kept of runs that have ended. Evidence in changesets is never removed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Retention {
    /// For how long their logs and outputs are kept; `None` for as long as there is room.
    pub max_age: Option<Duration>,
    /// How many runs are kept.
    pub max_runs: u64,
    /// How many bytes of outputs are kept, as they are stored.
    pub max_output_bytes: u64,
    /// What is kept of caches of skills.
    pub caches: CacheRetention,
}

/// What is kept of caches of skills. The least recently used go first.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CacheRetention {
    /// How many bytes in all.
    pub max_bytes: u64,
    /// How many bytes of them are one repository's.
    pub max_bytes_per_repository: u64,
    /// How many bytes one skill may write to one cache in one run; more is not kept.
    pub max_bytes_per_run: u64,
    /// For how long one is kept that no run uses.
    pub max_unused: Duration,
}

/// No file: one user's daemon on one machine.
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
const LEVEL: &str = "info";
const MAX_RUNS_KEPT: u64 = 10_000;
const MAX_OUTPUT_BYTES: u64 = 4 << 30;
const MAX_CACHE_BYTES: u64 = 64 << 30;
const MAX_CACHE_BYTES_PER_REPOSITORY: u64 = 32 << 30;
const MAX_CACHE_BYTES_PER_RUN: u64 = 16 << 30;
const MAX_CACHE_UNUSED_DAYS: u64 = 30;

/// The table as it is written.
#[derive(Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct DaemonFile {
    /// Where the socket is, as an absolute path. Default: `$XDG_RUNTIME_DIR/proctor/proctord.sock`;
    /// `/run/proctor/proctord.sock` for root.
    socket: Option<String>,
    /// Who may ask beside the daemon's own user: names of accounts, or numbers.
    allow_users: Option<Vec<UserRef>>,
    /// How many runs are under way at once. Default: one a CPU.
    max_runs: Option<Count>,
    /// How many of them are one caller's. Default: as many as there are.
    max_runs_per_caller: Option<Count>,
    /// How many runs wait. Default: 1024.
    max_queued: Option<Count>,
    /// How many of them are one caller's. Default: 256.
    max_queued_per_caller: Option<Count>,
    /// How many connections are open at once. Default: 4096.
    max_connections: Option<Count>,
    /// How long the head of a request, its body, and each write of an answer may take, in
    /// milliseconds. Default: 10000.
    request_timeout_ms: Option<NonZeroU64>,
    /// How long runs that are under way may go on after SIGTERM before they are cancelled, in
    /// milliseconds. Default: 30000.
    drain_ms: Option<u64>,
    /// After how many milliseconds without a run and a connection the daemon ends. Default: never.
    idle_exit_ms: Option<NonZeroU64>,
    /// Whether a changeset needs a file `APPROVED` before anything above tier 1 runs in it.
    /// Default: false.
    approve_tier2: Option<bool>,
    /// What is written to the log.
    log: Option<LogFile>,
    /// What is kept of runs that have ended.
    retention: Option<RetentionFile>,
}

/// A number of things, at least 1.
type Count = std::num::NonZeroU32;

#[derive(Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct LogFile {
    /// From which level on: `error`, `warn`, `info`, `debug`, `trace`, or a filter such as
    /// `info,proctor_runner=debug`. Default: `info`.
    level: Option<String>,
    /// In which form. Default: `auto`.
    format: Option<LogFormat>,
}

#[derive(Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct RetentionFile {
    /// For how many days logs and outputs of runs are kept. Default: as long as there is room.
    max_age_days: Option<NonZeroU64>,
    /// How many runs are kept. Default: 10000.
    max_runs: Option<NonZeroU64>,
    /// How many bytes of outputs are kept, as they are stored. Default: 4 GiB.
    max_output_bytes: Option<NonZeroU64>,
    /// How many bytes of caches are kept; the least recently used go first. Default: 64 GiB.
    max_cache_bytes: Option<NonZeroU64>,
    /// How many bytes of them are one repository's. Default: 32 GiB.
    max_cache_bytes_per_repository: Option<NonZeroU64>,
    /// How many bytes one skill may write to one cache in one run; more is not kept. Default: 16 GiB.
    max_cache_bytes_per_run: Option<NonZeroU64>,
    /// For how many days a cache is kept that no run uses. Default: 30.
    max_cache_unused_days: Option<NonZeroU64>,
}

const SECONDS_OF_A_DAY: u64 = 24 * 60 * 60;

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
            max_unused: Duration::from_secs(days.saturating_mul(SECONDS_OF_A_DAY)),
        }
    }
}

impl DaemonSettings {
    pub(super) fn from_file(file: &DaemonFile) -> Self {
        let or = |count: Option<Count>, default: u32| count.map_or(default, Count::get);
        let log = file.log.as_ref();
        let kept = file.retention.as_ref();
        Self {
            socket: file.socket.clone(),
            allow_users: file.allow_users.clone().unwrap_or_default(),
            max_runs: file.max_runs.map(Count::get),
            max_runs_per_caller: file.max_runs_per_caller.map(Count::get),
            max_queued: or(file.max_queued, MAX_QUEUED),
            max_queued_per_caller: or(file.max_queued_per_caller, MAX_QUEUED_PER_CALLER),
            max_connections: or(file.max_connections, MAX_CONNECTIONS),
            request_timeout: Duration::from_millis(file.request_timeout_ms.map_or(REQUEST_TIMEOUT_MS, NonZeroU64::get)),
            drain: Duration::from_millis(file.drain_ms.unwrap_or(DRAIN_MS)),
            idle_exit: file.idle_exit_ms.map(|ms| Duration::from_millis(ms.get())),
            approve_tier2: file.approve_tier2.unwrap_or(false),
            log: LogSettings {
                level: log.and_then(|log| log.level.clone()).unwrap_or_else(|| LEVEL.to_owned()),
                format: log.and_then(|log| log.format).unwrap_or_default(),
            },
            retention: Retention {
                max_age: kept
                    .and_then(|kept| kept.max_age_days)
                    .map(|days| Duration::from_secs(days.get().saturating_mul(SECONDS_OF_A_DAY))),
                max_runs: kept.and_then(|kept| kept.max_runs).map_or(MAX_RUNS_KEPT, NonZeroU64::get),
                max_output_bytes: kept.and_then(|kept| kept.max_output_bytes).map_or(MAX_OUTPUT_BYTES, NonZeroU64::get),
                caches: CacheRetention::from_file(kept),
            },
        }
    }

    /// What of it contradicts itself or means nothing, one sentence each.
    pub(super) fn contradictions(&self) -> impl Iterator<Item = String> {
        let socket = self.socket.as_deref().filter(|path| !path.starts_with('/'));
        let socket = socket.map(|path| format!("`daemon.socket` {} is not absolute", super::super::quoted(path)));
        let runs = self.max_runs_per_caller.zip(self.max_runs).filter(|(one, all)| one > all);
        let runs = runs.map(|_| "`daemon.max_runs_per_caller` is above `daemon.max_runs`".to_owned());
        let queued = (self.max_queued_per_caller > self.max_queued
            && self.max_queued_per_caller != MAX_QUEUED_PER_CALLER)
            .then(|| "`daemon.max_queued_per_caller` is above `daemon.max_queued`".to_owned());
        let nameless = self.allow_users.iter().any(|user| matches!(user, UserRef::Name(name) if name.is_empty()));
        let nameless = nameless.then(|| "a name in `daemon.allow_users` is empty".to_owned());
        [socket, runs, queued, nameless].into_iter().flatten()
    }
}

#[cfg(test)]
mod tests {
    use super::super::Operator;
    use super::*;

    #[test]
    fn the_table_is_read() {
        let text = "[daemon]\nsocket = '/run/x.sock'\nallow_users = ['ci', 1001]\nmax_runs = 4\nidle_exit_ms = 500\n\
            [daemon.log]\nformat = 'json'\n[daemon.retention]\nmax_age_days = 2\nmax_cache_bytes = 7\n";
        let daemon = Operator::parse(text).expect("reads").daemon;
        assert_eq!(daemon.allow_users, [UserRef::Name("ci".into()), UserRef::Uid(1001)]);
        assert_eq!((daemon.max_runs, daemon.idle_exit), (Some(4), Some(Duration::from_millis(500))));
        assert_eq!((daemon.log.format, daemon.log.level.as_str()), (LogFormat::Json, "info"));
        assert_eq!(daemon.retention.max_age, Some(Duration::from_secs(2 * SECONDS_OF_A_DAY)));
        let caches = daemon.retention.caches;
        assert_eq!((caches.max_bytes, caches.max_bytes_per_run), (7, MAX_CACHE_BYTES_PER_RUN));
    }

    #[test]
    fn what_means_nothing_is_refused() {
        for text in [
            "socket = 'x.sock'",
            "max_runs = 0",
            "max_runs = 2\nmax_runs_per_caller = 3",
            "allow_users = ['']",
            "allow_users = [-1]",
            "sokcet = '/x'",
            "idle_exit_ms = 0",
        ] {
            Operator::parse(&format!("[daemon]\n{text}\n")).expect_err(text);
        }
    }
}
