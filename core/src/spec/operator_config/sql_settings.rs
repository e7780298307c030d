//! Parses `[sql]` of `proctord.toml`: the verifiers of the operator, and the service that provides databases.

use std::collections::BTreeSet;
use std::num::NonZeroU64;
use std::time::Duration;

use schemars::JsonSchema;
use serde::Deserialize;

use super::super::quoted;
use super::command_settings::CommandSettings;
use crate::model::plan::Network;
use crate::sql::{Dialect, StageName};

/// Settings of SQL judgements.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct SqlSettings {
    /// The verifiers, in the order in which they run.
    pub verifiers: Vec<VerifierSettings>,
    /// The service that provides temporary databases of TiDB.
    pub tidb_zero: TidbZeroSettings,
}

/// The service that provides temporary databases of TiDB.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TidbZeroSettings {
    /// The URL of its API.
    pub url: String,
    /// The file with the trusted certificates; `None` stands for those of the system.
    pub certificates: Option<String>,
}

impl Default for TidbZeroSettings {
    fn default() -> Self {
        Self { url: TIDB_ZERO_URL.to_owned(), certificates: None }
    }
}

/// A verifier: a program that adds findings to a judgement.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct VerifierSettings {
    /// The name in judgements.
    pub name: String,
    /// The program.
    pub command: CommandSettings,
    /// The stage after which it runs.
    pub after: StageName,
    /// The dialects whose statements it reads.
    pub dialects: Vec<Dialect>,
    /// Maximum time of one call.
    pub timeout: Duration,
}

/// The address of TiDB Cloud Zero.
const TIDB_ZERO_URL: &str = "https://zero.tidbapi.com/v1beta1";
const DEFAULT_TIMEOUT_MS: u64 = 5_000;
/// The largest timeout, in milliseconds.
const MAX_TIMEOUT_MS: u64 = 60_000;
/// Maximum length of a name, in bytes.
const MAX_NAME_BYTES: usize = 64;
/// Maximum number of verifiers.
const MAX_VERIFIERS: usize = 16;

/// The table as written.
#[derive(Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct SqlFile {
    /// Verifiers of the operator, which run in this order. Each judgement of this machine's `proctor sql` and daemon
    /// includes them; a request cannot leave them out.
    #[serde(default)]
    verifiers: Vec<VerifierFile>,
    /// The service that `proctor sql verify --provisioner tidb-zero` uses.
    #[serde(default)]
    tidb_zero: TidbZeroFile,
}

#[derive(Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct TidbZeroFile {
    /// The URL of the API, without `/instances`. Default: `https://zero.tidbapi.com/v1beta1`.
    url: Option<String>,
    /// A file with the certificates that are trusted for the API and its databases, in PEM format. Default: those that
    /// the system trusts.
    certificates: Option<String>,
}

#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct VerifierFile {
    /// The name in judgements: letters, digits, `-`, `_` and `.`.
    name: String,
    /// The program, as an absolute path, and its arguments. It reads a JSON document on standard input and writes one to
    /// standard output.
    command: Vec<String>,
    /// The stage after which the verifier runs; it does not run if this stage or one before it found an error. Default:
    /// `semantic`.
    after: Option<StageName>,
    /// The dialects whose statements the verifier reads. Default: all.
    dialects: Option<Vec<Dialect>>,
    /// Maximum time of one call in milliseconds, at most 60000. Default: 5000.
    timeout_ms: Option<NonZeroU64>,
    /// The network that the program sees: `allow` or `deny`. Default: deny.
    network: Option<Network>,
    /// Paths that the program can read although sandboxes hide them, such as its directory below a home directory.
    #[serde(default)]
    mounts: Vec<String>,
}

impl SqlSettings {
    pub(super) fn from_file(file: &SqlFile) -> Self {
        Self {
            verifiers: file.verifiers.iter().map(VerifierFile::settings).collect(),
            tidb_zero: TidbZeroSettings {
                url: file.tidb_zero.url.clone().unwrap_or_else(|| TIDB_ZERO_URL.to_owned()),
                certificates: file.tidb_zero.certificates.clone(),
            },
        }
    }

    /// Returns a message for each invalid setting.
    pub(super) fn problems(&self) -> impl Iterator<Item = String> {
        let mut names = BTreeSet::new();
        let repeated: Vec<String> = self
            .verifiers
            .iter()
            .filter(|verifier| !names.insert(verifier.name.as_str()))
            .map(|verifier| format!("`sql.verifiers` has two entries with the name {}", quoted(&verifier.name)))
            .collect();
        let many = (self.verifiers.len() > MAX_VERIFIERS)
            .then(|| format!("`sql.verifiers` has more than {MAX_VERIFIERS} entries"));
        let own = self.verifiers.iter().filter_map(|verifier| {
            let problem = verifier.problem()?;
            Some(format!("`sql.verifiers` {}: {problem}", quoted(&verifier.name)))
        });
        own.chain(repeated).chain(many)
    }
}

impl VerifierFile {
    fn settings(&self) -> VerifierSettings {
        VerifierSettings {
            name: self.name.clone(),
            command: CommandSettings {
                argv: self.command.clone(),
                network: self.network.unwrap_or(Network::Deny),
                mounts: self.mounts.clone(),
            },
            after: self.after.unwrap_or(StageName::Semantic),
            dialects: self.dialects.clone().unwrap_or_else(|| Dialect::ALL.to_vec()),
            timeout: Duration::from_millis(self.timeout_ms.map_or(DEFAULT_TIMEOUT_MS, NonZeroU64::get)),
        }
    }
}

impl VerifierSettings {
    fn problem(&self) -> Option<String> {
        let is_name_byte = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_' | b'.');
        if self.name.is_empty() || self.name.len() > MAX_NAME_BYTES || !self.name.bytes().all(is_name_byte) {
            return Some(format!("`name` is not 1 to {MAX_NAME_BYTES} letters, digits, `-`, `_` or `.`"));
        }
        if self.after == StageName::Custom {
            return Some(
                "`after` is `custom`; name a built-in stage, since verifiers run in the order of the file".into(),
            );
        }
        if self.dialects.is_empty() {
            return Some("`dialects` is empty; leave it out for all dialects".to_owned());
        }
        if self.timeout > Duration::from_millis(MAX_TIMEOUT_MS) {
            return Some(format!("`timeout_ms` is above {MAX_TIMEOUT_MS}"));
        }
        self.command.problem()
    }
}

#[cfg(test)]
mod tests {
    use super::super::OperatorConfig;
    use super::*;

    #[test]
    fn parses_verifiers_with_defaults() {
        let config = OperatorConfig::parse("[[sql.verifiers]]\nname = 'pii'\ncommand = ['/bin/pii', '--strict']\n");
        let verifier = config.expect("reads").sql.verifiers.remove(0);
        assert_eq!(verifier.after, StageName::Semantic);
        assert_eq!(verifier.dialects, Dialect::ALL);
        assert_eq!(verifier.timeout, Duration::from_secs(5));
        assert_eq!(verifier.command.network, Network::Deny);
    }

    #[test]
    fn rejects_invalid_verifiers() {
        let entry = |rest: &str| format!("[[sql.verifiers]]\nname = 'a'\ncommand = ['/bin/a']\n{rest}\n");
        for text in [
            "[[sql.verifiers]]\nname = ''\ncommand = ['/bin/a']".to_owned(),
            "[[sql.verifiers]]\nname = 'a b'\ncommand = ['/bin/a']".to_owned(),
            "[[sql.verifiers]]\nname = 'a'\ncommand = ['a']".to_owned(),
            "[[sql.verifiers]]\nname = 'a'\ncommand = []".to_owned(),
            entry("after = 'custom'"),
            entry("after = 'later'"),
            entry("dialects = []"),
            entry("timeout_ms = 60001"),
            entry("mounts = ['x']"),
            entry("") + &entry(""),
        ] {
            assert!(OperatorConfig::parse(&text).is_err(), "{text}");
        }
        assert!(OperatorConfig::parse(&entry("after = 'bind'\nnetwork = 'allow'")).is_ok());
    }
}
