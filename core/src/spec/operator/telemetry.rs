//! `[telemetry]` of `proctord.toml`: where the spans of runs are sent.

use std::collections::BTreeMap;
use std::fmt;
use std::num::NonZeroU64;
use std::time::Duration;

use schemars::JsonSchema;
use serde::Deserialize;

/// Where the spans of runs are sent. The standard variables of OpenTelemetry override each of these.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct TelemetrySettings {
    /// The base address of an OTLP/HTTP receiver; `None` for the one that the environment names.
    pub endpoint: Option<String>,
    /// Headers of each request, which may be secret.
    pub headers: SecretHeaders,
    /// The name of the service; `None` for the name of the program.
    pub service_name: Option<String>,
    /// More attributes of the resource.
    pub resource_attributes: BTreeMap<String, String>,
    /// How long one request may take; `None` for the default.
    pub timeout: Option<Duration>,
}

/// Headers by name. Their values are not shown.
#[derive(Clone, Default, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(transparent)]
pub struct SecretHeaders(pub BTreeMap<String, String>);

impl fmt::Debug for SecretHeaders {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names = self.0.keys().map(|name| (name, "[redacted]"));
        f.debug_map().entries(names).finish()
    }
}

/// The longest that a request may take, in milliseconds.
const MAX_TIMEOUT_MS: u64 = 60_000;

/// The table as it is written.
#[derive(Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct TelemetryFile {
    /// The base address of a receiver of OTLP over HTTP, such as `http://127.0.0.1:4318`; spans are posted to
    /// `/v1/traces` below it. Default: what `OTEL_EXPORTER_OTLP_ENDPOINT` says; without that, nothing is exported.
    endpoint: Option<String>,
    /// Headers of each request, such as a key of the receiver. Their values are never logged.
    headers: Option<SecretHeaders>,
    /// The name of the service (`service.name`). Default: the name of the program.
    service_name: Option<String>,
    /// More attributes of the resource, such as `deployment.environment.name`.
    resource_attributes: Option<BTreeMap<String, String>>,
    /// How long one request may take, in milliseconds, up to 60000. Default: 10000.
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

    /// Returns what of it has no meaning, a sentence each.
    pub(super) fn contradictions(&self) -> impl Iterator<Item = String> {
        let is_http = |text: &&str| !text.starts_with("http://") && !text.starts_with("https://");
        let endpoint = self.endpoint.as_deref().filter(is_http);
        let endpoint = endpoint
            .map(|text| format!("`telemetry.endpoint` {} is no http or https address", super::super::quoted(text)));
        let timeout = self.timeout.filter(|timeout| timeout.as_millis() > u128::from(MAX_TIMEOUT_MS));
        let timeout = timeout.map(|_| format!("`telemetry.timeout_ms` is above {MAX_TIMEOUT_MS}"));
        endpoint.into_iter().chain(timeout)
    }
}

#[cfg(test)]
mod tests {
    use super::super::Operator;
    use super::*;

    #[test]
    fn reads_the_table_and_shows_no_header() {
        let text = "[telemetry]\nendpoint = 'https://collector:4318'\nservice_name = 'ci'\ntimeout_ms = 500\n\
            [telemetry.headers]\napi-key = 'hush-hush'\n[telemetry.resource_attributes]\n'a.b' = 'c'\n";
        let operator = Operator::parse(text).expect("reads");
        let telemetry = &operator.telemetry;
        assert_eq!(telemetry.endpoint.as_deref(), Some("https://collector:4318"));
        assert_eq!(telemetry.headers.0["api-key"], "hush-hush");
        assert_eq!(telemetry.timeout, Some(Duration::from_millis(500)));
        let shown = format!("{operator:?}");
        assert!(shown.contains("api-key") && !shown.contains("hush-hush"), "{shown}");
    }

    #[test]
    fn refuses_what_has_no_meaning() {
        for text in ["endpoint = 'collector:4318'", "timeout_ms = 0", "timeout_ms = 60001", "endpont = 'http://x'"] {
            Operator::parse(&format!("[telemetry]\n{text}\n")).expect_err(text);
        }
    }
}
