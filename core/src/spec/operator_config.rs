//! Parses the operator's config (`proctord.toml`): ceilings for what a spec may request, and defaults for values that a
//! spec does not set.
//!
//! The callers locate and read the file.

mod ask_settings;
mod command_settings;
mod daemon_settings;
mod remote_cache_settings;
mod remote_executor_settings;
mod remote_server;
mod reuse_settings;
mod sql_settings;
mod telemetry_settings;
mod tree_settings;

use std::fmt;
use std::num::NonZeroU64;
use std::path::PathBuf;

use schemars::JsonSchema;
use serde::de::{self, Visitor};
use serde::{Deserialize, Deserializer};

use super::diagnostic::{Code, Diagnostic};
use super::span::Span;
use crate::model::enforcement::{Control, SandboxMode, Tolerated};
use crate::model::plan::{Limit, LimitDocument, LimitSettings, Limits, PerLimit, ReadOnly};
use crate::model::tier::Tier;
use crate::text::strict_deserialize;
use ask_settings::AskFile;
use daemon_settings::DaemonFile;
use remote_cache_settings::RemoteCacheFile;
use remote_executor_settings::RemoteExecutorFile;
use reuse_settings::ReuseFile;
use sql_settings::SqlFile;
use telemetry_settings::TelemetryFile;
use tree_settings::TreeFile;

pub use ask_settings::{AskSettings, AuditRetention, Endpoint, KeySource, ProviderApi, ProviderSettings};
pub use command_settings::CommandSettings;
pub use daemon_settings::{CacheRetention, DaemonSettings, LogFormat, LogSettings, Retention, UserRef};
pub use remote_cache_settings::RemoteCacheSettings;
pub use remote_executor_settings::{ExecutorMode, RemoteExecutorSettings};
pub use remote_server::RemoteServer;
pub use reuse_settings::ReuseSettings;
pub use sql_settings::{SqlSettings, TidbZeroSettings, VerifierSettings};
pub use telemetry_settings::{SecretHeaders, TelemetrySettings};
pub use tree_settings::TreeSettings;

/// The operator's ceilings and defaults.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OperatorConfig {
    /// Allows specs to request the host's network. A step that uses it raises the tier to 2.
    pub allow_network: bool,
    /// The weakest protection of the tree that a spec may request.
    pub least_read_only: ReadOnly,
    /// Maximum timeout, in milliseconds.
    pub max_timeout_ms: Limit,
    /// Maximum time between SIGTERM and SIGKILL, in milliseconds.
    pub max_grace_ms: Limit,
    /// Maximum number of retries.
    pub max_retries: Limit,
    /// Maximum number of skills that run at once.
    pub max_parallel: Limit,
    /// The highest tier that any caller may run. It limits the tier that callers choose; a spec with a higher tier is
    /// still valid.
    pub max_tier: Tier,
    /// Maximum limits that a step may request.
    pub ceiling: Limits,
    /// Defaults for values that a spec does not set.
    pub defaults: OperatorDefaults,
    /// Paths that steps can read, in addition to the tool directories that Proctor detects. Each path is absolute or
    /// starts with `~/`.
    pub tool_mounts: Vec<String>,
    /// Files and directories that steps see as empty, in addition to the known locations of credentials. Each path is
    /// absolute or starts with `~/`.
    pub tool_masks: Vec<String>,
    /// Sandbox controls that may be missing.
    pub may_miss: Tolerated,
    /// Allows callers to request best-effort mode, which accepts any missing control.
    pub allow_best_effort: bool,
    /// The directory that steps see in a run of a worktree.
    pub tree: TreeSettings,
    /// Reuse of the results of steps.
    pub reuse: ReuseSettings,
    /// The server through which machines share results; `None` if they do not.
    pub remote_cache: Option<RemoteCacheSettings>,
    /// The cluster that executes steps; `None` if they run on this machine.
    pub remote_executor: Option<RemoteExecutorSettings>,
    /// Settings of the daemon: socket, capacity and retention.
    pub daemon: DaemonSettings,
    /// Settings of the export of trace spans.
    pub telemetry: TelemetrySettings,
    /// Settings of questions to databases: providers, bounds and the audit trail.
    pub ask: AskSettings,
    /// Settings of SQL judgements: verifiers of the operator.
    pub sql: SqlSettings,
}

/// The operator's defaults for values that a spec does not set; `None` keeps the built-in value.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct OperatorDefaults {
    /// Timeout, in milliseconds.
    pub timeout_ms: Option<u64>,
    /// Time between SIGTERM and SIGKILL, in milliseconds.
    pub grace_ms: Option<u64>,
    /// Resource limits.
    pub limits: LimitSettings,
}

/// Maximum number of retries if the operator sets none: a step that always fails must end.
const MAX_RETRIES: Limit = Limit::Max(10);

/// Settings without a config file: a spec may request everything except unlimited retries, and the built-in values
/// apply.
impl Default for OperatorConfig {
    fn default() -> Self {
        Self {
            allow_network: true,
            least_read_only: ReadOnly::Off,
            max_timeout_ms: Limit::Unlimited,
            max_grace_ms: Limit::Unlimited,
            max_retries: MAX_RETRIES,
            max_parallel: Limit::Unlimited,
            max_tier: Tier::THREE,
            ceiling: Limits::UNLIMITED,
            defaults: OperatorDefaults::default(),
            tool_mounts: Vec::new(),
            tool_masks: Vec::new(),
            may_miss: Tolerated::default(),
            allow_best_effort: true,
            tree: TreeSettings::default(),
            reuse: ReuseSettings::default(),
            remote_cache: None,
            remote_executor: None,
            daemon: DaemonSettings::default(),
            telemetry: TelemetrySettings::default(),
            ask: AskSettings::default(),
            sql: SqlSettings::default(),
        }
    }
}

/// The config file as written.
#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct OperatorFile {
    /// Allows specs to request the host's network. Default: true.
    allow_network: Option<bool>,
    /// The weakest `read_only` that a spec may request. Default: off.
    least_read_only: Option<ReadOnly>,
    /// Maximum timeout, in milliseconds. Default: no limit.
    max_timeout_ms: Option<NonZeroU64>,
    /// Maximum time between SIGTERM and SIGKILL, in milliseconds. Default: no limit.
    max_grace_ms: Option<u64>,
    /// Maximum number of retries. Default: 10.
    max_retries: Option<u64>,
    /// Maximum number of skills that run at once. Default: no limit.
    max_parallel: Option<NonZeroU64>,
    /// The highest tier that a caller may run. Default: 3.
    max_tier: Option<Tier>,
    /// Maximum limits that a step may request. Default: no limits.
    ceiling: Option<LimitsFile>,
    /// Defaults for values that a spec does not set.
    defaults: Option<DefaultsFile>,
    /// Paths that steps can read: absolute, or starting with `~/`.
    tool_mounts: Option<Vec<String>>,
    /// Files and directories that steps see as empty: absolute, or starting with `~/`.
    tool_masks: Option<Vec<String>>,
    /// Sandbox controls that may be missing if the machine cannot enforce them. A run with a missing control is raised
    /// to tier 2. Default: cgroup only. With an empty list, all controls are required.
    may_miss: Option<Vec<Control>>,
    /// Allows callers to use `--sandbox=best-effort`. Default: true.
    allow_best_effort: Option<bool>,
    /// The directory that steps see in a run of a worktree.
    tree: Option<TreeFile>,
    /// Reuse of the results of steps.
    reuse: Option<ReuseFile>,
    /// Results of steps that machines share through a server.
    remote_cache: Option<RemoteCacheFile>,
    /// The cluster that executes steps.
    remote_executor: Option<RemoteExecutorFile>,
    /// Settings of the daemon: socket, capacity and retention.
    daemon: Option<DaemonFile>,
    /// Settings of the export of runs as OpenTelemetry spans.
    telemetry: Option<TelemetryFile>,
    /// Settings of questions to databases (`proctor sql ask`): providers, bounds and the audit trail.
    ask: Option<AskFile>,
    /// Settings of SQL judgements: verifiers of the operator.
    sql: Option<SqlFile>,
}

#[derive(Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct DefaultsFile {
    /// Timeout, in milliseconds.
    timeout_ms: Option<NonZeroU64>,
    /// Time between SIGTERM and SIGKILL, in milliseconds.
    grace_ms: Option<u64>,
    /// Resource limits.
    limits: Option<LimitsFile>,
}

/// Resource limits as written.
type LimitsFile = PerLimit<Option<LimitValue>>;

impl LimitDocument for LimitsFile {
    const NAME: &'static str = "LimitsFile";
    const DESCRIPTION: &'static str = "Resource limits.";
    const REQUIRED: bool = false;
}

/// A number, a size with a unit, or `unlimited`.
#[derive(Clone, Copy)]
struct LimitValue(Limit);

impl<'de> Deserialize<'de> for LimitValue {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct LimitValueVisitor;
        impl Visitor<'_> for LimitValueVisitor {
            type Value = LimitValue;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a number of at least 1, a size such as `512MiB`, or `unlimited`")
            }
            fn visit_i64<E: de::Error>(self, number: i64) -> Result<LimitValue, E> {
                match u64::try_from(number) {
                    Ok(number) if number > 0 => Ok(LimitValue(Limit::Max(number))),
                    _ => Err(E::invalid_value(de::Unexpected::Signed(number), &self)),
                }
            }
            fn visit_str<E: de::Error>(self, text: &str) -> Result<LimitValue, E> {
                text.parse().map(LimitValue).map_err(|_| E::invalid_value(de::Unexpected::Str(text), &self))
            }
        }
        deserializer.deserialize_any(LimitValueVisitor)
    }
}

impl JsonSchema for LimitValue {
    fn schema_name() -> std::borrow::Cow<'static, str> {
        "Bound".into()
    }
    fn json_schema(_: &mut schemars::SchemaGenerator) -> schemars::Schema {
        schemars::json_schema!({
            "description": "A number, a size such as 512MiB, or unlimited.",
            "anyOf": [{ "type": "integer", "minimum": 1 }, { "type": "string" }],
        })
    }
}

impl OperatorConfig {
    /// Parses the text of a `proctord.toml`.
    ///
    /// # Errors
    /// Returns the problems if the text is not TOML, has an unknown key or an invalid value, or contradicts itself.
    pub fn parse(text: &str) -> Result<Self, Vec<Diagnostic>> {
        let file: OperatorFile =
            strict_deserialize::from_toml(text).map_err(|error| vec![toml_diagnostic(text, &error)])?;
        let operator = Self::from_file(&file);
        let remote_cache = file.remote_cache.iter().flat_map(RemoteCacheSettings::problems);
        let remote_executor = file.remote_executor.iter().flat_map(RemoteExecutorSettings::problems);
        let remote = remote_cache.chain(remote_executor);
        let remote = remote.map(|message| Diagnostic::without_span(Code::BadConfig, message));
        let problems: Vec<Diagnostic> = operator.problems().chain(remote).collect();
        if problems.is_empty() { Ok(operator) } else { Err(problems) }
    }

    /// Returns the JSON Schema of the config file.
    pub(super) fn schema() -> schemars::Schema {
        schemars::schema_for!(OperatorFile)
    }

    fn from_file(file: &OperatorFile) -> Self {
        let bound = |number: Option<u64>| number.map_or(Limit::Unlimited, Limit::Max);
        let limits =
            |file: Option<LimitsFile>| file.unwrap_or_default().map_all(|_, written| written.map(|written| written.0));
        let defaults = file.defaults.as_ref();
        Self {
            allow_network: file.allow_network.unwrap_or(true),
            least_read_only: file.least_read_only.unwrap_or(ReadOnly::Off),
            max_timeout_ms: bound(file.max_timeout_ms.map(NonZeroU64::get)),
            max_grace_ms: bound(file.max_grace_ms),
            max_retries: file.max_retries.map_or(MAX_RETRIES, Limit::Max),
            max_parallel: bound(file.max_parallel.map(NonZeroU64::get)),
            max_tier: file.max_tier.unwrap_or(Tier::THREE),
            ceiling: limits(file.ceiling).map_all(|_, ceiling| ceiling.unwrap_or(Limit::Unlimited)),
            defaults: OperatorDefaults {
                timeout_ms: defaults.and_then(|d| d.timeout_ms).map(NonZeroU64::get),
                grace_ms: defaults.and_then(|d| d.grace_ms),
                limits: limits(defaults.and_then(|d| d.limits)),
            },
            tool_mounts: file.tool_mounts.clone().unwrap_or_default(),
            tool_masks: file.tool_masks.clone().unwrap_or_default(),
            may_miss: file.may_miss.as_ref().map(|list| list.iter().copied().collect()).unwrap_or_default(),
            allow_best_effort: file.allow_best_effort.unwrap_or(true),
            tree: file.tree.as_ref().map(TreeSettings::from_file).unwrap_or_default(),
            reuse: file.reuse.as_ref().map(ReuseSettings::from_file).unwrap_or_default(),
            remote_cache: file.remote_cache.as_ref().map(RemoteCacheSettings::from_file),
            remote_executor: file.remote_executor.as_ref().map(RemoteExecutorSettings::from_file),
            daemon: file.daemon.as_ref().map(DaemonSettings::from_file).unwrap_or_default(),
            telemetry: file.telemetry.as_ref().map(TelemetrySettings::from_file).unwrap_or_default(),
            ask: file.ask.as_ref().map(AskSettings::from_file).unwrap_or_default(),
            sql: file.sql.as_ref().map(SqlSettings::from_file).unwrap_or_default(),
        }
    }

    /// Returns the files that the config names and that contain secrets of this machine: private keys and tokens. No step
    /// may read them.
    pub fn secret_files(&self) -> impl Iterator<Item = PathBuf> {
        let cache = self.remote_cache.iter();
        let cache = cache.flat_map(|cache| cache.signing_key.iter().chain(cache.server.secret_files()));
        let executor = self.remote_executor.iter().flat_map(|executor| executor.server.secret_files());
        let of_provider = |provider: &ProviderSettings| match &provider.key {
            Some(KeySource::File(file)) => Some(PathBuf::from(file)),
            Some(KeySource::Credential(_) | KeySource::Variable(_)) | None => None,
        };
        cache.chain(executor).cloned().chain(self.ask.providers.values().filter_map(of_provider))
    }

    /// Returns the controls that may be missing in sandbox mode `mode`; `None` if the operator does not allow the mode.
    pub fn tolerated(&self, mode: SandboxMode) -> Option<Tolerated> {
        match mode {
            SandboxMode::Strict => Some(self.may_miss.clone()),
            SandboxMode::BestEffort => self.allow_best_effort.then(Tolerated::all),
        }
    }

    /// Returns problems: defaults above the operator's own ceilings, relative tool paths, and invalid settings
    /// of the daemon, the telemetry and questions.
    fn problems(&self) -> impl Iterator<Item = Diagnostic> {
        let to_limit = |number: Option<u64>| number.map(Limit::Max);
        let times = [
            ("timeout_ms".to_owned(), to_limit(self.defaults.timeout_ms), self.max_timeout_ms),
            ("grace_ms".to_owned(), to_limit(self.defaults.grace_ms), self.max_grace_ms),
        ];
        let limits = self.defaults.limits.zip(self.ceiling).entries();
        let limits = limits.map(|(limit, (default, ceiling))| (format!("limits.{}", limit.key), default, ceiling));
        let above = times.into_iter().chain(limits);
        let above = above.filter(|(_, default, ceiling)| default.is_some_and(|default| exceeds(default, *ceiling)));
        let above = above.map(|(name, ..)| {
            Diagnostic::without_span(
                Code::BadConfig,
                format!("`defaults.{name}` is above the ceiling of the same file"),
            )
        });
        let tools = self.tool_mounts.iter().chain(&self.tool_masks);
        let relative_paths = tools.filter(|path| !path.starts_with('/') && !path.starts_with("~/"));
        let daemon = self
            .daemon
            .problems()
            .chain(self.telemetry.problems())
            .chain(self.ask.problems())
            .chain(self.sql.problems())
            .map(|message| Diagnostic::without_span(Code::BadConfig, message));
        above.chain(daemon).chain(relative_paths.map(|path| {
            let path = crate::text::escape::quoted(path);
            Diagnostic::without_span(
                Code::BadConfig,
                format!("{path} of `tool_mounts` or `tool_masks` is neither absolute nor below `~/`"),
            )
        }))
    }
}

/// Returns whether `requested` exceeds `ceiling`.
pub(super) fn exceeds(limit: Limit, ceiling: Limit) -> bool {
    limit.get_or_max() > ceiling.get_or_max() || limit == Limit::Unlimited && ceiling != Limit::Unlimited
}

fn toml_diagnostic(text: &str, error: &toml::de::Error) -> Diagnostic {
    let message = error.message().lines().next().unwrap_or("no TOML").to_owned();
    let diagnostic = Diagnostic::without_span(Code::BadConfig, message);
    match error.span() {
        Some(range) => Diagnostic { span: Some(span_from_range(text, range)), ..diagnostic },
        None => diagnostic,
    }
}

fn span_from_range(text: &str, range: std::ops::Range<usize>) -> Span {
    let before = text.get(..range.start).unwrap_or(text);
    let line_start = before.rfind('\n').map_or(0, |at| at + 1);
    let count = |number: usize| u32::try_from(number).unwrap_or(u32::MAX);
    Span {
        start: count(range.start),
        end: count(range.end),
        line: count(before.matches('\n').count() + 1),
        column: count(before[line_start..].chars().count() + 1),
        file: 0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn empty_file_equals_defaults() {
        assert_eq!(OperatorConfig::parse(""), Ok(OperatorConfig::default()));
    }

    #[test]
    fn parses_settings() {
        let text = "allow_network = false\nmax_timeout_ms = 900000\nmax_tier = 1\ntool_mounts = ['~/.cargo', '/opt/x']\n\
            tool_masks = ['~/.cargo/x']\n[ceiling]\nmemory = '8GiB'\n[defaults.limits]\nmemory = '4GiB'\npids = 100\n";
        let operator = OperatorConfig::parse(text).expect("reads");
        assert!(!operator.allow_network);
        assert_eq!(operator.max_timeout_ms, Limit::Max(900_000));
        assert_eq!(operator.ceiling.memory, Limit::Max(8 << 30));
        assert_eq!(operator.defaults.limits.pids, Some(Limit::Max(100)));
        assert_eq!(operator.tool_mounts, ["~/.cargo", "/opt/x"]);
        assert_eq!(operator.tool_masks, ["~/.cargo/x"]);
    }

    #[test]
    fn rejects_invalid_values_with_position() {
        let problems = OperatorConfig::parse("allow_network = true\nallow_netwrk = false\n").expect_err("unknown key");
        assert_eq!(problems[0].span.map(|s| s.to_string()), Some("2:1".to_owned()));
        for text in [
            "max_timeout_ms = 0",
            "max_tier = 4",
            "[ceiling]\nmemory = 0",
            "[ceiling]\npids = -1",
            "[ceiling]\nmemory = 'x'",
        ] {
            assert!(OperatorConfig::parse(text).is_err(), "{text}");
        }
    }

    #[test]
    fn tolerates_only_configured_controls() {
        let strict = |text: &str| OperatorConfig::parse(text).expect("reads").tolerated(SandboxMode::Strict);
        assert_eq!(strict(""), Some(Tolerated::default()));
        assert_eq!(strict("may_miss = []"), Some(Tolerated::from_iter([])));
        let both = Tolerated::from_iter([Control::Cgroup, Control::Landlock]);
        assert_eq!(strict("may_miss = ['landlock', 'cgroup']"), Some(both));
        let best = |text: &str| OperatorConfig::parse(text).expect("reads").tolerated(SandboxMode::BestEffort);
        assert_eq!(best("may_miss = []"), Some(Tolerated::all()));
        assert_eq!(best("allow_best_effort = false"), None);
    }

    #[test]
    fn rejects_unknown_control_with_position() {
        let problems = OperatorConfig::parse("may_miss = ['cgroup', 'firewall']").expect_err("no such control");
        assert_eq!(problems[0].span.map(|s| s.to_string()), Some("1:23".to_owned()));
        let message = &problems[0].message;
        assert!(message.contains("firewall") && message.contains("landlock"), "{message}");
    }

    #[test]
    fn rejects_defaults_above_ceiling() {
        let text = "max_timeout_ms = 10\ntool_mounts = ['x']\ntool_masks = ['y']\n[ceiling]\nmemory = 5\npids = 9\n[defaults]\ntimeout_ms = 11\n\
            [defaults.limits]\nmemory = 'unlimited'\npids = 9\n";
        assert_eq!(OperatorConfig::parse(text).expect_err("contradicts itself").len(), 4);
    }
}
