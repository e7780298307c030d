//! Parses `[ask]` of `proctord.toml`: the providers of language models, the bounds of a question, and the retention of
//! the audit trail.

use std::collections::BTreeMap;
use std::num::NonZeroU64;
use std::time::Duration;

use schemars::JsonSchema;
use serde::Deserialize;

use super::super::quoted;
use super::command_settings::CommandSettings;
use crate::model::plan::Network;
use crate::sql::{MAX_ASK_ATTEMPTS, MAX_ASK_TIME};

/// Settings of questions to databases.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AskSettings {
    /// The default provider.
    pub provider: Option<String>,
    /// The providers by name.
    pub providers: BTreeMap<String, ProviderSettings>,
    /// Maximum number of attempts.
    pub max_attempts: u32,
    /// Maximum number of tokens of a question.
    pub max_tokens: u64,
    /// Maximum time of a question.
    pub max_time: Duration,
    /// Maximum number of questions that a daemon answers at once.
    pub max_concurrent: usize,
    /// Retention of the audit trail.
    pub audit: AuditRetention,
}

/// Retention of the audit trail.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct AuditRetention {
    /// Maximum size of the database, in bytes.
    pub max_bytes: u64,
    /// Maximum age of a record; `None` for no limit.
    pub max_age: Option<Duration>,
}

impl Default for AuditRetention {
    fn default() -> Self {
        Self { max_bytes: DEFAULT_AUDIT_BYTES, max_age: None }
    }
}

/// A provider of a language model.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ProviderSettings {
    /// The way to reach the model.
    pub api: ProviderApi,
    /// The name of the model; a `command` may have none.
    pub model: Option<String>,
    /// The location of the key.
    pub key: Option<KeySource>,
    /// Maximum number of tokens of an answer.
    pub max_answer_tokens: u32,
}

/// The way to reach a model.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ProviderApi {
    /// Chat completions in OpenAI's format.
    OpenAi(Endpoint),
    /// Messages in Anthropic's format.
    Anthropic(Endpoint),
    /// A program that reads JSON on standard input and writes JSON to standard output, in a sandbox.
    Command(CommandSettings),
}

/// An HTTP endpoint.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Endpoint {
    /// The base URL, such as `https://api.openai.com/v1`.
    pub url: String,
    /// A file with the trusted certificate authorities; `None` uses those of the system.
    pub certificates: Option<String>,
}

/// The location of a key.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum KeySource {
    /// A file that only its owner can read.
    File(String),
    /// A systemd credential, by its name.
    Credential(String),
    /// A variable of the environment of Proctor.
    Variable(String),
}

/// Bounds without a config.
const DEFAULT_ATTEMPTS: u32 = 4;
const DEFAULT_TOKENS: u64 = 100_000;
const DEFAULT_SECONDS: u64 = 120;
const DEFAULT_CONCURRENT: usize = 4;
const DEFAULT_ANSWER_TOKENS: u32 = 2_048;
const DEFAULT_AUDIT_BYTES: u64 = 256 << 20;
/// The smallest bound of the audit trail, in bytes.
const MIN_AUDIT_BYTES: u64 = 1 << 20;
const SECONDS_PER_DAY: u64 = 24 * 60 * 60;

impl Default for AskSettings {
    fn default() -> Self {
        Self {
            provider: None,
            providers: BTreeMap::new(),
            max_attempts: DEFAULT_ATTEMPTS,
            max_tokens: DEFAULT_TOKENS,
            max_time: Duration::from_secs(DEFAULT_SECONDS),
            max_concurrent: DEFAULT_CONCURRENT,
            audit: AuditRetention::default(),
        }
    }
}

/// The table as written.
#[derive(Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct AskFile {
    /// The provider of a question that names none. Default: the only provider, if there is one.
    provider: Option<String>,
    /// Maximum number of answers of a model to one question, at most 20. Default: 4.
    max_attempts: Option<u32>,
    /// Maximum number of tokens of all prompts and answers of one question. Default: 100000.
    max_tokens: Option<NonZeroU64>,
    /// Maximum time of one question, in seconds, at most 3600. Default: 120.
    max_seconds: Option<NonZeroU64>,
    /// Maximum number of questions that a daemon answers at once. Default: 4.
    max_concurrent: Option<std::num::NonZeroU16>,
    /// The providers of language models, by name.
    #[serde(default)]
    providers: BTreeMap<String, ProviderFile>,
    /// Retention of the audit trail.
    audit: Option<AuditFile>,
}

/// The format in which a provider is called.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
enum ApiName {
    /// Chat completions in OpenAI's format, which many servers and programs accept.
    Openai,
    /// Messages in Anthropic's format.
    Anthropic,
    /// A program in a sandbox.
    Command,
}

#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct ProviderFile {
    /// The format: `openai`, `anthropic` or `command`.
    api: ApiName,
    /// The base URL, to which `/chat/completions` or `/messages` is added. Default: `https://api.openai.com/v1` or
    /// `https://api.anthropic.com/v1`.
    url: Option<String>,
    /// The name of the model. Required for `openai` and `anthropic`.
    model: Option<String>,
    /// The location of the key: `{ file = … }`, `{ credential = … }` or `{ variable = … }`.
    key: Option<KeySource>,
    /// A file with the trusted certificate authorities, in PEM format. Default: those of the system.
    certificates: Option<String>,
    /// Maximum number of tokens of an answer. Default: 2048.
    max_answer_tokens: Option<std::num::NonZeroU32>,
    /// The program and its arguments, for `command`.
    command: Option<Vec<String>>,
    /// The network that the program sees: `allow` or `deny`. Default: deny.
    network: Option<Network>,
    /// Paths that the program can read although sandboxes hide them, such as its directory below a home directory.
    mounts: Option<Vec<String>>,
}

#[derive(Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct AuditFile {
    /// Maximum size of the audit trail, in bytes, at least 1 MiB. Default: 256 MiB.
    max_bytes: Option<NonZeroU64>,
    /// Number of days for which records are kept. Default: no limit.
    max_age_days: Option<NonZeroU64>,
}

impl AskSettings {
    pub(super) fn from_file(file: &AskFile) -> Self {
        let audit = file.audit.as_ref();
        let max_age = audit.and_then(|audit| audit.max_age_days);
        Self {
            provider: file.provider.clone(),
            providers: file.providers.iter().map(|(name, file)| (name.clone(), file.settings())).collect(),
            max_attempts: file.max_attempts.unwrap_or(DEFAULT_ATTEMPTS),
            max_tokens: file.max_tokens.map_or(DEFAULT_TOKENS, NonZeroU64::get),
            max_time: Duration::from_secs(file.max_seconds.map_or(DEFAULT_SECONDS, NonZeroU64::get)),
            max_concurrent: file.max_concurrent.map_or(DEFAULT_CONCURRENT, |number| usize::from(number.get())),
            audit: AuditRetention {
                max_bytes: audit.and_then(|audit| audit.max_bytes).map_or(DEFAULT_AUDIT_BYTES, NonZeroU64::get),
                max_age: max_age.map(|days| Duration::from_secs(days.get().saturating_mul(SECONDS_PER_DAY))),
            },
        }
    }

    /// Returns a provider: the named one, else the default one, else the only one.
    pub fn provider<'a>(&'a self, named: Option<&'a str>) -> Option<(&'a str, &'a ProviderSettings)> {
        let wanted = named.or(self.provider.as_deref());
        match wanted {
            Some(name) => self.providers.get_key_value(name).map(|(name, settings)| (name.as_str(), settings)),
            None if self.providers.len() == 1 => {
                self.providers.first_key_value().map(|(name, settings)| (name.as_str(), settings))
            }
            None => None,
        }
    }

    /// Returns a message for each invalid setting.
    pub(super) fn problems(&self) -> impl Iterator<Item = String> {
        let unknown = self.provider.as_deref().filter(|name| !self.providers.contains_key(*name));
        let unknown = unknown.map(|name| format!("`ask.provider` {} is not a key of `ask.providers`", quoted(name)));
        let attempts = !(1..=MAX_ASK_ATTEMPTS).contains(&self.max_attempts);
        let attempts = attempts.then(|| format!("`ask.max_attempts` is not from 1 to {MAX_ASK_ATTEMPTS}"));
        let seconds =
            (self.max_time > MAX_ASK_TIME).then(|| format!("`ask.max_seconds` is above {}", MAX_ASK_TIME.as_secs()));
        let audit = (self.audit.max_bytes < MIN_AUDIT_BYTES).then(|| "`ask.audit.max_bytes` is below 1 MiB".to_owned());
        let providers = self.providers.iter().flat_map(|(name, provider)| {
            let place = format!("`ask.providers.{name}`");
            provider.problems().map(move |problem| format!("{place}: {problem}"))
        });
        [unknown, attempts, seconds, audit].into_iter().flatten().chain(providers)
    }
}

impl ProviderFile {
    fn settings(&self) -> ProviderSettings {
        let endpoint = |default: &str| Endpoint {
            url: self.url.clone().unwrap_or_else(|| default.to_owned()),
            certificates: self.certificates.clone(),
        };
        let api = match self.api {
            ApiName::Openai => ProviderApi::OpenAi(endpoint("https://api.openai.com/v1")),
            ApiName::Anthropic => ProviderApi::Anthropic(endpoint("https://api.anthropic.com/v1")),
            ApiName::Command => ProviderApi::Command(CommandSettings {
                argv: self.command.clone().unwrap_or_default(),
                network: self.network.unwrap_or(Network::Deny),
                mounts: self.mounts.clone().unwrap_or_default(),
            }),
        };
        ProviderSettings {
            api,
            model: self.model.clone(),
            key: self.key.clone(),
            max_answer_tokens: self.max_answer_tokens.map_or(DEFAULT_ANSWER_TOKENS, std::num::NonZeroU32::get),
        }
    }
}

impl ProviderSettings {
    fn problems(&self) -> impl Iterator<Item = String> {
        let api = match &self.api {
            ProviderApi::OpenAi(endpoint) | ProviderApi::Anthropic(endpoint) => self.endpoint_problem(endpoint),
            ProviderApi::Command(command) => command.problem(),
        };
        let key = self.key.as_ref().and_then(KeySource::problem);
        [api, key].into_iter().flatten()
    }

    fn endpoint_problem(&self, endpoint: &Endpoint) -> Option<String> {
        let url = &endpoint.url;
        let is_https = url.starts_with("https://");
        if !is_https && !url.starts_with("http://") {
            return Some(format!("`url` {} is not an http or https address", quoted(url)));
        }
        if authority(url).contains('@') {
            return Some("`url` contains a user name or a password; use `key`".to_owned());
        }
        if !is_https && self.key.is_some() && !is_loopback(authority(url)) {
            return Some("`url` is not https, so the key would be sent in plain text".to_owned());
        }
        self.model.is_none().then(|| "`model` is missing".to_owned())
    }
}

impl KeySource {
    fn problem(&self) -> Option<String> {
        match self {
            Self::File(path) if !path.starts_with('/') => Some("`key.file` is not an absolute path".to_owned()),
            Self::Credential(name) if name.is_empty() || name.contains('/') || name == ".." => {
                Some("`key.credential` is not the name of a credential".to_owned())
            }
            Self::Variable(name) if name.is_empty() || name.contains(['=', '\0']) => {
                Some("`key.variable` is not the name of a variable".to_owned())
            }
            Self::File(_) | Self::Credential(_) | Self::Variable(_) => None,
        }
    }
}

/// Returns the part of a URL between the scheme and the path.
fn authority(url: &str) -> &str {
    let rest = url.split_once("://").map_or(url, |(_, rest)| rest);
    rest.split(['/', '?', '#']).next().unwrap_or_default()
}

fn is_loopback(authority: &str) -> bool {
    let host = match authority.strip_prefix('[') {
        Some(rest) => rest.split(']').next().unwrap_or_default(),
        None => authority.split(':').next().unwrap_or_default(),
    };
    // The loopback network is 127.0.0.0/8. A host whose name only starts like such an address is another machine.
    let octets: Vec<Result<u8, _>> = host.split('.').map(str::parse).collect();
    let is_ipv4 = octets.len() == 4 && octets.iter().all(Result::is_ok);
    host == "localhost" || host == "::1" || is_ipv4 && octets.first() == Some(&Ok(127))
}

#[cfg(test)]
mod tests {
    use super::super::OperatorConfig;
    use super::*;

    fn parse(text: &str) -> AskSettings {
        OperatorConfig::parse(text).expect("reads").ask
    }

    #[test]
    fn parses_providers_with_defaults() {
        let ask = parse(
            "[ask.providers.local]\napi = 'openai'\nurl = 'http://127.0.0.1:11434/v1'\nmodel = 'm'\n\
             key = { file = '/etc/proctor/key' }\n",
        );
        let (name, provider) = ask.provider(None).expect("the only one");
        assert_eq!((name, provider.model.as_deref()), ("local", Some("m")));
        assert_eq!(provider.key, Some(KeySource::File("/etc/proctor/key".into())));
        assert_eq!(ask.max_attempts, 4);
        assert_eq!(ask.provider(Some("other")), None);
    }

    #[test]
    fn default_provider_is_the_named_one() {
        let two = "[ask.providers.a]\napi = 'anthropic'\nmodel = 'm'\n\
                   [ask.providers.b]\napi = 'command'\ncommand = ['/bin/b']\n";
        assert_eq!(parse(two).provider(None), None);
        let named = parse(&format!("[ask]\nprovider = 'b'\n{two}"));
        assert_eq!(named.provider(None).expect("b").0, "b");
        assert_eq!(named.provider(Some("a")).expect("a").0, "a");
    }

    #[test]
    fn rejects_invalid_settings() {
        for text in [
            "[ask]\nprovider = 'x'",
            "[ask]\nmax_attempts = 21",
            "[ask]\nmax_attempts = 0",
            "[ask]\nmax_seconds = 3601",
            "[ask.audit]\nmax_bytes = 10",
            "[ask.providers.a]\napi = 'openai'",
            "[ask.providers.a]\napi = 'openai'\nmodel = 'm'\nurl = 'ftp://x'",
            "[ask.providers.a]\napi = 'openai'\nmodel = 'm'\nurl = 'https://u:p@x'",
            "[ask.providers.a]\napi = 'openai'\nmodel = 'm'\nurl = 'http://x/v1'\nkey = { variable = 'K' }",
            "[ask.providers.a]\napi = 'openai'\nmodel = 'm'\nurl = 'http://127.0.0.1.x/v1'\nkey = { variable = 'K' }",
            "[ask.providers.a]\napi = 'openai'\nmodel = 'm'\nkey = { text = 'sk-secret' }",
            "[ask.providers.a]\napi = 'openai'\nmodel = 'm'\nkey = { file = 'relative' }",
            "[ask.providers.a]\napi = 'openai'\nmodel = 'm'\nkey = { credential = '../x' }",
            "[ask.providers.a]\napi = 'command'",
            "[ask.providers.a]\napi = 'command'\ncommand = ['model']",
        ] {
            OperatorConfig::parse(text).expect_err(text);
        }
    }

    #[test]
    fn key_may_be_sent_in_plain_text_on_this_machine() {
        for url in ["http://localhost:1/v1", "http://127.0.0.1/v1", "http://[::1]:8080/v1"] {
            parse(&format!(
                "[ask.providers.a]\napi = 'openai'\nmodel = 'm'\nurl = '{url}'\nkey = {{ variable = 'K' }}"
            ));
        }
    }
}
