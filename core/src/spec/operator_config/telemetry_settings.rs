//! Parses `[telemetry]` of `proctord.toml`: the export of trace spans.

use std::collections::BTreeMap;
use std::fmt;
use std::num::NonZeroU64;
use std::time::Duration;

use schemars::JsonSchema;
use serde::Deserialize;

/// Settings of the export of trace spans. The standard OpenTelemetry environment variables override each of them.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct TelemetrySettings {
    /// Base URL of an OTLP/HTTP receiver; `None` to use the environment variable.
    pub endpoint: Option<String>,
    /// Headers of each request; they may contain secrets.
    pub headers: SecretHeaders,
    /// Name of the service; `None` for the name of the program.
    pub service_name: Option<String>,
    /// Additional resource attributes.
    pub resource_attributes: BTreeMap<String, String>,
    /// Timeout of a request; `None` for the default.
    pub timeout: Option<Duration>,
}

/// HTTP headers by name. `Debug` output does not contain the values.
#[derive(Clone, Default, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(transparent)]
pub struct SecretHeaders(pub BTreeMap<String, String>);

impl fmt::Debug for SecretHeaders {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names = self.0.keys().map(|name| (name, "[redacted]"));
        f.debug_map().entries(names).finish()
    }
}

/// The largest allowed timeout of a request, in milliseconds.
const MAX_TIMEOUT_MS: u64 = 60_000;

/// The table as written.
#[derive(Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct TelemetryFile {
    /// Base URL of an OTLP/HTTP receiver, such as `http://127.0.0.1:4318`; spans are posted to `/v1/traces` below it.
    /// Default: the value of `OTEL_EXPORTER_OTLP_ENDPOINT`; if that is not set either, nothing is exported.
    endpoint: Option<String>,
    /// Headers of each request, such as an API key for the receiver. Their values are never logged.
    headers: Option<SecretHeaders>,
    /// Name of the service (`service.name`). Default: the name of the program.
    service_name: Option<String>,
    /// Additional resource attributes, such as `deployment.environment.name`.
    resource_attributes: Option<BTreeMap<String, String>>,
    /// Timeout of a request in milliseconds, at most 60000. Default: 10000.
    timeout_ms: Option<NonZeroU64>,
}

impl TelemetrySettings {
    pub(super) fn from_file(file: &TelemetryFile) -> Self {
        Self {
            endpoint: file.endpoint.clone(),
            headers: file.headers.clone().unwrap_or_default(),
            service_name: file.service_name.clone(),
            resource_attributes: file.resource_attributes.clone().unwrap_or_default(),
            timeout: file.timeout_ms.map(|ms| Duration::from_millis(ms.get())),
        }
    }

    /// Returns a message for each invalid setting.
    pub(super) fn problems(&self) -> impl Iterator<Item = String> {
        let is_http = |text: &&str| !text.starts_with("http://") && !text.starts_with("https://");
        let endpoint = self.endpoint.as_deref().filter(is_http);
        let endpoint = endpoint
            .map(|text| format!("`telemetry.endpoint` {} is not an http or https address", super::super::quoted(text)));
        let timeout = self.timeout.filter(|timeout| timeout.as_millis() > u128::from(MAX_TIMEOUT_MS));
        let timeout = timeout.map(|_| format!("`telemetry.timeout_ms` is above {MAX_TIMEOUT_MS}"));
        endpoint.into_iter().chain(timeout)
    }
}

#[cfg(test)]
mod tests {
    use super::super::OperatorConfig;
    use super::*;

    #[test]
    fn parses_table_and_hides_header_values() {
        let text = "[telemetry]\nendpoint = 'https://collector:4318'\nservice_name = 'ci'\ntimeout_ms = 500\n\
            [telemetry.headers]\napi-key = 'hush-hush'\n[telemetry.resource_attributes]\n'a.b' = 'c'\n";
        let operator = OperatorConfig::parse(text).expect("reads");
        let telemetry = &operator.telemetry;
        assert_eq!(telemetry.endpoint.as_deref(), Some("https://collector:4318"));
        assert_eq!(telemetry.headers.0["api-key"], "hush-hush");
        assert_eq!(telemetry.timeout, Some(Duration::from_millis(500)));
        let shown = format!("{operator:?}");
        assert!(shown.contains("api-key") && !shown.contains("hush-hush"), "{shown}");
    }

    #[test]
    fn rejects_invalid_telemetry_settings() {
        for text in ["endpoint = 'collector:4318'", "timeout_ms = 0", "timeout_ms = 60001", "endpont = 'http://x'"] {
            OperatorConfig::parse(&format!("[telemetry]\n{text}\n")).expect_err(text);
        }
    }
}
