//! Parses `[remote_cache]` of `proctord.toml`: results of steps that machines share.

use std::num::NonZeroU64;
use std::path::PathBuf;

use schemars::JsonSchema;
use serde::Deserialize;

use super::remote_server::RemoteServer;
use crate::reuse::MachineFact;

/// The default time for which a step waits for the server, in milliseconds.
const TIMEOUT_MS: u64 = 5_000;

/// The server through which machines share results, and the keys that count.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RemoteCacheSettings {
    /// The server.
    pub server: RemoteServer,
    /// True if results of this machine are stored on the server.
    pub write: bool,
    /// The file of the private key that signs results of this machine.
    pub signing_key: Option<PathBuf>,
    /// The files of the public keys whose results count.
    pub trusted_keys: Vec<PathBuf>,
    /// The facts of the machine that do not change results.
    pub ignore_machine: Vec<MachineFact>,
    /// The time for which a step waits for the server, in milliseconds.
    pub timeout_ms: u64,
}

#[derive(Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct RemoteCacheFile {
    /// Address of a server of the Remote Execution API v2: `grpcs://HOST:PORT`, `grpc://HOST:PORT` or `unix:/PATH`.
    endpoint: String,
    /// Name of the instance. Default: empty.
    instance: Option<String>,
    /// If true, results of this machine are stored on the server. Default: false.
    write: Option<bool>,
    /// File of the private Ed25519 key (PKCS#8, PEM) that signs the results of this machine.
    signing_key: Option<PathBuf>,
    /// Files of the public Ed25519 keys (PEM) whose results are used.
    trusted_keys: Option<Vec<PathBuf>>,
    /// Facts of the machine that do not change results: results of machines that differ only in these facts are used,
    /// too. Default: none.
    ignore_machine: Option<Vec<MachineFact>>,
    /// File that contains a bearer token.
    token_file: Option<PathBuf>,
    /// Program that provides credentials, with the protocol of Bazel's credential helpers.
    credential_helper: Option<PathBuf>,
    /// File of the certificates (PEM) that the server's certificate is verified with. Default: those of the system.
    tls_roots: Option<PathBuf>,
    /// File of the client certificate (PEM), for servers that require one.
    tls_client_certificate: Option<PathBuf>,
    /// File of the key (PEM) of the client certificate.
    tls_client_key: Option<PathBuf>,
    /// Time for which a step waits for the server, in milliseconds. Default: 5000.
    timeout_ms: Option<NonZeroU64>,
}

impl RemoteCacheSettings {
    pub(super) fn from_file(file: &RemoteCacheFile) -> Self {
        Self {
            server: RemoteServer {
                endpoint: file.endpoint.clone(),
                instance: file.instance.clone().unwrap_or_default(),
                token_file: file.token_file.clone(),
                credential_helper: file.credential_helper.clone(),
                tls_roots: file.tls_roots.clone(),
                tls_client: file.tls_client_certificate.clone().zip(file.tls_client_key.clone()),
            },
            write: file.write.unwrap_or(false),
            signing_key: file.signing_key.clone(),
            trusted_keys: file.trusted_keys.clone().unwrap_or_default(),
            ignore_machine: file.ignore_machine.clone().unwrap_or_default(),
            timeout_ms: file.timeout_ms.map_or(TIMEOUT_MS, NonZeroU64::get),
        }
    }

    /// Returns the contradictions of the table.
    pub(super) fn problems(file: &RemoteCacheFile) -> Vec<String> {
        let settings = Self::from_file(file);
        let has_half_certificate = file.tls_client_certificate.is_some() != file.tls_client_key.is_some();
        let rules = [
            (settings.write && settings.signing_key.is_none(), "`remote_cache.write` needs `signing_key`"),
            (
                !settings.write && settings.trusted_keys.is_empty(),
                "`remote_cache` has no use: it neither writes results (`write`) nor trusts a key (`trusted_keys`)",
            ),
        ];
        let rules = rules.into_iter().filter(|(applies, _)| *applies).map(|(_, message)| message.to_owned());
        let keys = settings.signing_key.iter().chain(&settings.trusted_keys);
        settings.server.problems("remote_cache", has_half_certificate, keys).into_iter().chain(rules).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::super::OperatorConfig;
    use super::*;

    fn parse(rest: &str) -> Result<Option<RemoteCacheSettings>, String> {
        let text = format!("[remote_cache]\nendpoint = 'grpcs://cache:1'\n{rest}");
        OperatorConfig::parse(&text).map(|config| config.remote_cache).map_err(|problems| problems[0].message.clone())
    }

    #[test]
    fn parses_table_with_defaults() {
        assert_eq!(OperatorConfig::parse("").expect("reads").remote_cache, None);
        let settings = parse("trusted_keys = ['/k']\nignore_machine = ['kernel']").expect("reads").expect("settings");
        assert_eq!((settings.write, settings.timeout_ms, settings.server.instance.as_str()), (false, 5_000, ""));
        assert_eq!(settings.ignore_machine, [MachineFact::Kernel]);
        let client = parse("write = true\nsigning_key = '/s'\ntls_client_certificate = '/c'\ntls_client_key = '/d'");
        assert_eq!(client.expect("reads").expect("settings").server.tls_client, Some(("/c".into(), "/d".into())));
    }

    #[test]
    fn refuses_contradictions() {
        for (rest, expected) in [
            ("", "has no use"),
            ("write = true", "needs `signing_key`"),
            ("trusted_keys = ['k']", "not an absolute path"),
            ("trusted_keys = ['/k']\ntoken_file = '/t'\ncredential_helper = '/h'", "both"),
            ("trusted_keys = ['/k']\ntls_client_key = '/d'", "need each other"),
            ("trusted_keys = ['/k']\ntimeout_ms = 0", "nonzero"),
            ("trusted_keys = ['/k']\nunknown = 1", "unknown"),
        ] {
            let message = parse(rest).expect_err(rest);
            assert!(message.contains(expected), "{rest}: {message}");
        }
        let http = OperatorConfig::parse("[remote_cache]\nendpoint = 'http://x'\ntrusted_keys = ['/k']\n");
        assert!(http.expect_err("refused")[0].message.contains("`grpcs://`"));
    }
}
