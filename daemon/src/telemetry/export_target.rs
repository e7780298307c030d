//! Determines the receiver of spans from the standard OpenTelemetry variables and the operator's config. A non-empty
//! variable overrides the config. Repositories have no influence.

use std::collections::BTreeMap;
use std::fmt;
use std::path::PathBuf;
use std::time::Duration;

use http::{HeaderName, HeaderValue, Uri};
use percent_encoding::percent_decode_str;
use proctor_core::spec::TelemetrySettings;

/// Receiver of the spans of runs, and the attributes to send.
#[derive(Clone, PartialEq, Eq)]
pub struct ExportTarget {
    /// URL for requests.
    pub(super) url: String,
    /// Headers of each request; they may be secret.
    pub(super) headers: Vec<(HeaderName, HeaderValue)>,
    /// Timeout of a request.
    pub(super) timeout: Duration,
    /// Attributes of the resource.
    pub(super) resource: BTreeMap<String, String>,
    /// File with the trusted certificate authorities; `None` uses those of the system.
    pub(super) certificates: Option<PathBuf>,
}

/// Invalid settings of the export. The message contains no value that may be secret.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ExportTargetError {
    /// The exporter is unknown.
    #[error("`OTEL_TRACES_EXPORTER` names an exporter that Proctor does not have; hint: set it to `otlp` or `none`")]
    UnknownExporter,
    /// The protocol is unknown.
    #[error(
        "`OTEL_EXPORTER_OTLP_PROTOCOL` names a protocol that Proctor does not speak; hint: set \
         `OTEL_EXPORTER_OTLP_TRACES_PROTOCOL=http/protobuf`, and the endpoint to the port of the receiver for HTTP \
         (4318 by default)"
    )]
    UnknownProtocol,
    /// The timeout is not a number, or out of range.
    #[error("`OTEL_EXPORTER_OTLP_TIMEOUT` is not a number of milliseconds from 1 to 60000; hint: set it to 10000")]
    InvalidTimeout,
    /// The endpoint is not a URL.
    #[error("`{setting}` is not an address; hint: {ENDPOINT_HINT}")]
    EndpointNotUrl {
        /// The variable or setting.
        setting: &'static str,
    },
    /// The scheme of the endpoint is not supported.
    #[error("`{setting}` is not an http or https address; hint: {ENDPOINT_HINT}")]
    EndpointNotHttp {
        /// The variable or setting.
        setting: &'static str,
    },
    /// The endpoint has no host.
    #[error("`{setting}` names no host; hint: {ENDPOINT_HINT}")]
    EndpointWithoutHost {
        /// The variable or setting.
        setting: &'static str,
    },
    /// The endpoint contains credentials.
    #[error("`{setting}` contains a user name or a password; hint: give credentials in `OTEL_EXPORTER_OTLP_HEADERS`")]
    EndpointWithCredentials {
        /// The variable or setting.
        setting: &'static str,
    },
    /// A list of pairs is malformed.
    #[error(
        "`{variable}` is not a list of names and values; hint: write it as `name=value,name=value`, and `%2C` for a \
         comma in a value"
    )]
    MalformedPairs {
        /// The variable.
        variable: &'static str,
    },
    /// The name of a header is invalid.
    #[error("a header of the export has no valid name; hint: {HEADERS_HINT}")]
    InvalidHeaderName,
    /// A header is reserved.
    #[error("the header `{name}` of the export is set by the protocol; hint: {HEADERS_HINT}")]
    ReservedHeader {
        /// The header.
        name: HeaderName,
    },
    /// The value of a header is invalid.
    #[error("the header `{name}` of the export has no valid value; hint: {HEADERS_HINT}")]
    InvalidHeaderValue {
        /// The header.
        name: HeaderName,
    },
}

const ENDPOINT_HINT: &str = "name the receiver as `http://127.0.0.1:4318`";
const HEADERS_HINT: &str = "give headers as `name=value,name=value`";

/// Default timeout of a request; `MAX_TIMEOUT` is the maximum.
const DEFAULT_TIMEOUT: Duration = Duration::from_secs(10);
const MAX_TIMEOUT: Duration = Duration::from_secs(60);
/// Path of traces below the base URL.
const TRACES_PATH: &str = "v1/traces";
/// Attribute with the name of the service.
const SERVICE_NAME: &str = "service.name";
/// Headers that the protocol reserves.
const RESERVED_HEADERS: [&str; 4] = ["content-type", "content-length", "host", "transfer-encoding"];

impl ExportTarget {
    /// Returns the target for spans of `program`, or `None` if the export is disabled.
    ///
    /// # Errors
    /// A variable or setting is invalid.
    pub fn resolve(
        settings: &TelemetrySettings,
        env: &BTreeMap<String, String>,
        program: &str,
    ) -> Result<Option<Self>, ExportTargetError> {
        let vars = OtelVariables(env);
        if vars.is_disabled()? {
            return Ok(None);
        }
        let Some(url) = vars.url(settings.endpoint.as_deref())? else { return Ok(None) };
        vars.check_protocol()?;
        Ok(Some(Self {
            url,
            headers: vars.headers(&settings.headers.0)?,
            timeout: vars.timeout(settings.timeout)?,
            resource: vars.resource(settings, program)?,
            certificates: vars.traces_setting("CERTIFICATE").map(PathBuf::from),
        }))
    }

    /// Returns the receiver for messages: the URL without path and query, which may contain a key.
    pub fn receiver(&self) -> String {
        let uri: Uri = self.url.parse().unwrap_or_default();
        format!("{}://{}", uri.scheme_str().unwrap_or("http"), uri.authority().map_or("", |host| host.as_str()))
    }

    /// Returns whether the receiver is on this machine, so no proxy is used.
    pub(super) fn is_local(&self) -> bool {
        let uri: Uri = self.url.parse().unwrap_or_default();
        let host = uri.host().unwrap_or_default().trim_matches(['[', ']']).to_owned();
        host == "localhost" || host.parse::<std::net::IpAddr>().is_ok_and(|ip| ip.is_loopback())
    }
}

impl fmt::Debug for ExportTarget {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Target").field("receiver", &self.receiver()).finish_non_exhaustive()
    }
}

/// The environment of the program.
struct OtelVariables<'a>(&'a BTreeMap<String, String>);

impl OtelVariables<'_> {
    /// Returns a variable if it is not empty.
    fn get(&self, name: &str) -> Option<&str> {
        self.0.get(name).map(|value| value.trim()).filter(|value| !value.is_empty())
    }

    /// Returns a setting of the exporter for traces, else the one for all signals.
    fn traces_setting(&self, name: &str) -> Option<&str> {
        let specific = self.get(&format!("OTEL_EXPORTER_OTLP_TRACES_{name}"));
        specific.or_else(|| self.get(&format!("OTEL_EXPORTER_OTLP_{name}")))
    }

    /// Returns whether the environment disables the export.
    fn is_disabled(&self) -> Result<bool, ExportTargetError> {
        if self.get("OTEL_SDK_DISABLED").is_some_and(|value| value.eq_ignore_ascii_case("true")) {
            return Ok(true);
        }
        match self.get("OTEL_TRACES_EXPORTER") {
            Some("none") => Ok(true),
            None | Some("otlp") => Ok(false),
            Some(_) => Err(ExportTargetError::UnknownExporter),
        }
    }

    fn url(&self, configured: Option<&str>) -> Result<Option<String>, ExportTargetError> {
        if let Some(url) = self.get("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT") {
            return parse_endpoint(url, "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT").map(|uri| Some(uri.to_string()));
        }
        let variable = self.get("OTEL_EXPORTER_OTLP_ENDPOINT").map(|base| (base, "OTEL_EXPORTER_OTLP_ENDPOINT"));
        let Some((base, name)) = variable.or(configured.map(|base| (base, "telemetry.endpoint"))) else {
            return Ok(None);
        };
        let uri = parse_endpoint(base, name)?;
        let path = format!("{}/{TRACES_PATH}", uri.path().trim_end_matches('/'));
        let query = uri.query().map(|query| format!("?{query}")).unwrap_or_default();
        let host = uri.authority().map_or("", |host| host.as_str());
        Ok(Some(format!("{}://{host}{path}{query}", uri.scheme_str().unwrap_or("http"))))
    }

    fn check_protocol(&self) -> Result<(), ExportTargetError> {
        match self.traces_setting("PROTOCOL") {
            None | Some("http/protobuf") => Ok(()),
            Some(_) => Err(ExportTargetError::UnknownProtocol),
        }
    }

    fn headers(
        &self,
        configured: &BTreeMap<String, String>,
    ) -> Result<Vec<(HeaderName, HeaderValue)>, ExportTargetError> {
        let pairs = match self.traces_setting("HEADERS") {
            Some(text) => parse_pairs(text, "OTEL_EXPORTER_OTLP_HEADERS")?,
            None => configured.clone().into_iter().collect(),
        };
        pairs.iter().map(|(name, value)| parse_header(name, value)).collect()
    }

    fn timeout(&self, configured: Option<Duration>) -> Result<Duration, ExportTargetError> {
        let Some(text) = self.traces_setting("TIMEOUT") else { return Ok(configured.unwrap_or(DEFAULT_TIMEOUT)) };
        let timeout = text.parse().ok().map(Duration::from_millis);
        timeout
            .filter(|timeout| (Duration::from_millis(1)..=MAX_TIMEOUT).contains(timeout))
            .ok_or(ExportTargetError::InvalidTimeout)
    }

    /// Returns the resource attributes from the config and the environment, with the name of the service.
    fn resource(
        &self,
        settings: &TelemetrySettings,
        program: &str,
    ) -> Result<BTreeMap<String, String>, ExportTargetError> {
        let mut resource = BTreeMap::from([
            (SERVICE_NAME.to_owned(), program.to_owned()),
            ("service.version".to_owned(), env!("CARGO_PKG_VERSION").to_owned()),
        ]);
        resource.extend(settings.resource_attributes.clone());
        let name = |name: &str| (SERVICE_NAME.to_owned(), name.to_owned());
        resource.extend(settings.service_name.as_deref().map(name));
        if let Some(text) = self.get("OTEL_RESOURCE_ATTRIBUTES") {
            resource.extend(parse_pairs(text, "OTEL_RESOURCE_ATTRIBUTES")?);
        }
        resource.extend(self.get("OTEL_SERVICE_NAME").map(name));
        Ok(resource)
    }
}

/// Parses a URL; it must have a host and no credentials.
fn parse_endpoint(text: &str, setting: &'static str) -> Result<Uri, ExportTargetError> {
    let uri: Uri = text.parse().map_err(|_| ExportTargetError::EndpointNotUrl { setting })?;
    if !matches!(uri.scheme_str(), Some("http" | "https")) {
        return Err(ExportTargetError::EndpointNotHttp { setting });
    }
    let authority = uri.authority().map(|authority| authority.as_str()).unwrap_or_default();
    if authority.contains('@') {
        return Err(ExportTargetError::EndpointWithCredentials { setting });
    }
    if uri.host().is_none_or(str::is_empty) {
        return Err(ExportTargetError::EndpointWithoutHost { setting });
    }
    Ok(uri)
}

/// Parses `name=value,name=value` with percent-encoded values.
fn parse_pairs(text: &str, variable: &'static str) -> Result<Vec<(String, String)>, ExportTargetError> {
    let malformed = || ExportTargetError::MalformedPairs { variable };
    let pair = |part: &str| {
        let (name, value) = part.split_once('=').ok_or_else(malformed)?;
        let value = percent_decode_str(value.trim()).decode_utf8().map_err(|_| malformed())?;
        Ok((name.trim().to_owned(), value.into_owned()))
    };
    text.split(',').filter(|part| !part.trim().is_empty()).map(pair).collect()
}

fn parse_header(name: &str, value: &str) -> Result<(HeaderName, HeaderValue), ExportTargetError> {
    let name = HeaderName::try_from(name).map_err(|_| ExportTargetError::InvalidHeaderName)?;
    if RESERVED_HEADERS.contains(&name.as_str()) {
        return Err(ExportTargetError::ReservedHeader { name });
    }
    match HeaderValue::try_from(value) {
        Ok(mut value) => {
            value.set_sensitive(true);
            Ok((name, value))
        }
        Err(_) => Err(ExportTargetError::InvalidHeaderValue { name }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proctor_core::spec::OperatorConfig;

    fn resolve(config: &str, env: &[(&str, &str)]) -> Result<Option<ExportTarget>, ExportTargetError> {
        let operator = OperatorConfig::parse(config).expect("a config");
        let env = env.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect();
        ExportTarget::resolve(&operator.telemetry, &env, "proctord")
    }

    fn url(config: &str, env: &[(&str, &str)]) -> Option<String> {
        resolve(config, env).expect("valid").map(|target| target.url)
    }

    const ENDPOINT_VARIABLE: &str = "OTEL_EXPORTER_OTLP_ENDPOINT";
    const TRACES_VARIABLE: &str = "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT";

    #[test]
    fn exports_only_where_an_endpoint_is_named() {
        let config = "[telemetry]\nendpoint = 'http://c:1'\n";
        assert_eq!(url("", &[]), None);
        assert_eq!(url("", &[(ENDPOINT_VARIABLE, "")]), None);
        assert_eq!(url(config, &[]).as_deref(), Some("http://c:1/v1/traces"));
        assert_eq!(url(config, &[(ENDPOINT_VARIABLE, "https://d/otlp/")]).as_deref(), Some("https://d/otlp/v1/traces"));
        assert_eq!(
            url(config, &[(ENDPOINT_VARIABLE, "http://d"), (TRACES_VARIABLE, "http://e/x?k=1")]).as_deref(),
            Some("http://e/x?k=1")
        );
        for off in [("OTEL_SDK_DISABLED", "TRUE"), ("OTEL_TRACES_EXPORTER", "none")] {
            assert_eq!(url(config, &[(ENDPOINT_VARIABLE, "http://d"), off]), None, "{off:?}");
        }
    }

    #[test]
    fn rejects_invalid_settings_without_showing_them() {
        let cases = [
            (ENDPOINT_VARIABLE, "collector:4318"),
            (ENDPOINT_VARIABLE, "ftp://c"),
            (ENDPOINT_VARIABLE, "http://user:hushhush@c:4318"),
            (TRACES_VARIABLE, "/v1/traces"),
            ("OTEL_EXPORTER_OTLP_PROTOCOL", "grpc"),
            ("OTEL_EXPORTER_OTLP_TRACES_HEADERS", "hushhush"),
            ("OTEL_EXPORTER_OTLP_HEADERS", "a b=hushhush"),
            ("OTEL_EXPORTER_OTLP_HEADERS", "key=%00hushhush"),
            ("OTEL_EXPORTER_OTLP_HEADERS", "host=hushhush"),
            ("OTEL_EXPORTER_OTLP_TIMEOUT", "0"),
            ("OTEL_RESOURCE_ATTRIBUTES", "hushhush"),
            ("OTEL_TRACES_EXPORTER", "jaeger"),
        ];
        for (name, value) in cases {
            let error = resolve("[telemetry]\nendpoint = 'http://c:1'\n", &[(name, value)]).expect_err(name);
            assert!(!error.to_string().contains("hushhush") && error.to_string().contains("hint"), "{error}");
        }
    }

    #[test]
    fn decodes_headers_and_hides_them() {
        let config = "[telemetry]\nendpoint = 'http://c:1/hush'\nheaders = { a = 'x' }\n";
        let target = resolve(config, &[("OTEL_EXPORTER_OTLP_HEADERS", "api-key=hush%2Chush, b = c")]).expect("valid");
        let target = target.expect("an endpoint");
        let names: Vec<_> = target.headers.iter().map(|(name, value)| (name.as_str(), value.as_bytes())).collect();
        assert_eq!(names, [("api-key", b"hush,hush".as_slice()), ("b", b"c")]);
        assert!(!format!("{target:?} {:?}", target.headers).contains("hush"));
    }

    #[test]
    fn resource_names_the_service() {
        let config =
            "[telemetry]\nendpoint = 'http://c:1'\nservice_name = 'one'\nresource_attributes = { a = 'x', b = 'y' }\n";
        let resource = |env: &[(&str, &str)]| resolve(config, env).expect("valid").expect("an endpoint").resource;
        assert_eq!(resource(&[])["service.name"], "one");
        let attributes = ("OTEL_RESOURCE_ATTRIBUTES", "service.name=two,b=z%20z");
        let from_env = resource(&[attributes]);
        assert_eq!(["service.name", "a", "b"].map(|name| from_env[name].as_str()), ["two", "x", "z z"]);
        assert_eq!(resource(&[attributes, ("OTEL_SERVICE_NAME", "three")])["service.name"], "three");
    }

    #[test]
    fn local_receiver_needs_no_proxy() {
        let is_local =
            |base: &str| resolve("", &[(ENDPOINT_VARIABLE, base)]).expect("valid").expect("an endpoint").is_local();
        assert!(["http://localhost:4318", "http://127.0.0.2", "http://[::1]:4318"].into_iter().all(is_local));
        assert!(!["http://collector", "http://192.168.0.1"].into_iter().any(is_local));
    }
}
