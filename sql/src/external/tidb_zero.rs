//! Checks statements on an instance of TiDB Cloud Zero: a temporary database server that an HTTP API provides without
//! an account. Statements that were judged `ok` run there in a temporary database, with the schema of the request, so
//! that TiDB itself accepts or refuses them. A failure of the service is never a judgement.
//!
//! Source: <https://zero.tidbcloud.com/>.

use std::fs;
use std::io::{Read as _, Write as _};
use std::os::unix::fs::{MetadataExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use proctor_core::spec::TidbZeroSettings;
use proctor_core::sql::{
    Dialect, Judgement, SqlCode, SqlDiagnostic, SqlRequest, SqlVerdict, StageName, StageRecord, StageState,
};
use serde::{Deserialize, Serialize};
use ureq::Agent;
use ureq::http::Uri;
use ureq::tls::{RootCerts, TlsConfig};

use super::dsn::{self, Dsn, ServerAddress, TlsMode};
use super::{ExternalDatabase, ExternalError, ScratchOutcome, trusted_roots};
use crate::chain;
use crate::provisioner::{Provisioned, Provisioner};
use crate::server_files::ServerError;

/// The name of the check in judgements.
const NAME: &str = "tidb-zero";
/// The time for one call of the API.
const API_TIMEOUT: Duration = Duration::from_secs(60);
/// Maximum size of an answer of the API, in bytes.
const MAX_ANSWER_BYTES: u64 = 64 << 10;
/// An instance that expires within this time is not used.
const EXPIRY_MARGIN: Duration = Duration::from_secs(120);
/// Maximum length of a message of the API that is repeated, in characters.
const MAX_MESSAGE_CHARS: usize = 300;
/// The database that a connection has before it creates its own.
const FIRST_DATABASE: &str = "information_schema";

/// An instance of the service.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TidbInstance {
    dsn: Dsn,
    expires_at: SystemTime,
}

/// The answer of the API. It contains further fields.
#[derive(Debug, Deserialize)]
struct ApiAnswer {
    instance: ApiInstance,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
struct ApiInstance {
    connection: ApiConnection,
    expires_at: String,
}

/// The data to log in, which is also the format of the stored instance.
#[derive(Debug, Clone, Serialize, Deserialize)]
struct ApiConnection {
    host: String,
    port: u16,
    username: String,
    password: String,
}

/// The stored instance, which later processes use until it expires.
#[derive(Serialize, Deserialize)]
struct StoredInstance {
    /// The URL of the API that provided the instance.
    url: String,
    connection: ApiConnection,
    expires_at: String,
}

/// Requests instances of the service, and stores the last one in a file.
#[derive(Clone)]
pub struct TidbZero {
    settings: TidbZeroSettings,
    /// The file with the last instance.
    store: PathBuf,
    now: Now,
}

/// Returns the time of day.
pub type Now = fn() -> SystemTime;

/// A database that remains on an instance.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KeptDatabase {
    /// The URL of the database, with the password.
    pub url: String,
    /// The time at which the service deletes the instance, as RFC 3339.
    pub expires_at: String,
}

impl TidbZero {
    /// Creates a client of the service; sends no request yet. `store` is a file in a directory of the current user.
    pub fn new(settings: TidbZeroSettings, store: PathBuf, now: Now) -> Self {
        Self { settings, store, now }
    }

    /// Returns the stored instance, if it is one of this API.
    fn stored(&self) -> Option<TidbInstance> {
        let file = fs::File::open(&self.store).ok()?;
        let meta = file.metadata().ok()?;
        if !meta.is_file() || meta.uid() != rustix::process::geteuid().as_raw() || meta.mode() & 0o077 != 0 {
            return None;
        }
        let mut bytes = Vec::new();
        file.take(MAX_ANSWER_BYTES).read_to_end(&mut bytes).ok()?;
        let stored: StoredInstance = serde_json::from_slice(&bytes).ok()?;
        let is_ours = stored.url == self.settings.url;
        is_ours.then(|| self.instance(&stored.connection, &stored.expires_at).ok()).flatten()
    }

    /// Stores an instance. Without the file, the next process requests another one.
    fn store(&self, connection: ApiConnection, expires_at: String) {
        let stored = StoredInstance { url: self.settings.url.clone(), connection, expires_at };
        let Ok(bytes) = serde_json::to_vec(&stored) else { return };
        let new = self.store.with_extension("new");
        drop(fs::remove_file(&new));
        let created = fs::OpenOptions::new().write(true).create_new(true).mode(0o600).open(&new);
        let written = created.and_then(|mut file| file.write_all(&bytes)).and_then(|()| fs::rename(&new, &self.store));
        drop(written);
    }

    /// Removes the stored instance, which the service no longer has.
    fn forget(&self) {
        drop(fs::remove_file(&self.store));
    }

    fn instance(&self, connection: &ApiConnection, expires_at: &str) -> Result<TidbInstance, String> {
        let expires_at = humantime::parse_rfc3339(expires_at)
            .map_err(|error| format!("the time `expiresAt` in its answer is wrong: {error}"))?;
        let roots = self.settings.certificates.as_ref().map(PathBuf::from);
        let dsn = Dsn {
            dialect: Dialect::Mysql,
            address: ServerAddress::Tcp { host: connection.host.clone(), port: connection.port },
            user: connection.username.clone(),
            password: Some(connection.password.clone()),
            database: FIRST_DATABASE.to_owned(),
            // The service is always reached over TLS, whatever its address is.
            tls: TlsMode::Verified { roots },
        };
        Ok(TidbInstance { dsn, expires_at })
    }

    /// Requests an instance from the API.
    fn request(&self) -> Result<(ApiConnection, String), String> {
        let url = format!("{}/instances", self.settings.url.trim_end_matches('/'));
        let uri: Uri = url.parse().map_err(|_| format!("`{url}` is not a URL"))?;
        let host = uri.host().unwrap_or_default().trim_matches(['[', ']']);
        let is_loopback = dsn::is_loopback(host);
        if uri.scheme_str() != Some("https") && !is_loopback {
            return Err(format!("`{url}` does not begin with `https://`, and the answer contains a password"));
        }
        let certificates = self.settings.certificates.as_deref().map(Path::new);
        let pem = trusted_roots::roots_file(certificates).and_then(|file| trusted_roots::read_roots(&file));
        let pem = pem.map_err(|error| error.to_string())?;
        let roots: Vec<_> = ureq::tls::parse_pem(&pem)
            .filter_map(|item| match item {
                Ok(ureq::tls::PemItem::Certificate(certificate)) => Some(certificate),
                _ => None,
            })
            .collect();
        let tls = TlsConfig::builder()
            .root_certs(RootCerts::Specific(Arc::new(roots)))
            .unversioned_rustls_crypto_provider(Arc::new(rustls::crypto::ring::default_provider()))
            .build();
        let config = Agent::config_builder()
            .tls_config(tls)
            .max_redirects(0)
            .max_redirects_will_error(false)
            .http_status_as_error(false)
            .timeout_global(Some(API_TIMEOUT))
            .user_agent(concat!("proctor/", env!("CARGO_PKG_VERSION")));
        let config = if is_loopback { config.proxy(None) } else { config };
        let agent: Agent = config.build().into();
        let sent = agent.post(&url).content_type("application/json").send(&br#"{"tag":"proctor"}"#[..]);
        let mut answer = sent.map_err(|error| format!("`{url}` cannot be reached: {error}"))?;
        let status = answer.status().as_u16();
        let body = answer.body_mut().with_config().limit(MAX_ANSWER_BYTES).read_to_vec();
        let body = body.map_err(|error| format!("the answer of `{url}` cannot be read: {error}"))?;
        if !(200..300).contains(&status) {
            return Err(format!("`{url}` answers with status {status}{}", api_message(&body)));
        }
        let parsed: Result<ApiAnswer, _> = serde_json::from_slice(&body);
        // The message of a parser may quote the password.
        let instance = parsed.map_err(|_| format!("the answer of `{url}` describes no instance"))?.instance;
        Ok((instance.connection, instance.expires_at))
    }
}

impl Provisioner for TidbZero {
    type Server = TidbInstance;

    fn provision(&self) -> Result<TidbInstance, ServerError> {
        if let Some(stored) = self.stored().filter(|instance| self.is_usable(instance)) {
            return Ok(stored);
        }
        let failed = |message| ServerError::Failed { program: NAME, message };
        let (connection, expires_at) = self.request().map_err(failed)?;
        let instance = self.instance(&connection, &expires_at).map_err(failed)?;
        if !self.is_usable(&instance) {
            return Err(failed(format!("the instance expires at once, at {expires_at}")));
        }
        self.store(connection, expires_at);
        Ok(instance)
    }

    fn is_usable(&self, server: &TidbInstance) -> bool {
        (self.now)() + EXPIRY_MARGIN < server.expires_at
    }
}

/// A service that checks statements, with its current instance.
pub struct TidbChecker {
    zero: TidbZero,
    servers: Provisioned<TidbZero>,
    /// The path of `proctor-sql`.
    program: PathBuf,
}

impl TidbChecker {
    /// Creates a client of the service; sends no request yet. `store` is a file in a directory of the current user, and
    /// `program` the path of `proctor-sql`.
    pub fn new(settings: TidbZeroSettings, store: PathBuf, program: PathBuf, now: Now) -> Self {
        let zero = TidbZero::new(settings, store, now);
        Self { servers: Provisioned::new(zero.clone()), zero, program }
    }

    /// Returns a judgement with the record and the finding of TiDB, and the database if it is kept. A statement that was
    /// not judged `ok` is not sent.
    pub fn extend(
        &mut self,
        request: &SqlRequest,
        judgement: Judgement,
        keeps_database: bool,
    ) -> (Judgement, Option<KeptDatabase>) {
        let (state, reason, findings, kept) = match judgement.verdict {
            SqlVerdict::Ok => match self.check(request, keeps_database) {
                Ok((None, kept)) => (StageState::Passed, None, Vec::new(), kept),
                Ok((Some(found), kept)) => (StageState::Rejected, None, vec![*found], kept),
                Err(reason) => {
                    let message = format!("TiDB could not check the statement: {reason}");
                    let found = SqlDiagnostic::error(StageName::Custom, SqlCode::EngineFailed, message);
                    (StageState::Failed, Some(reason), vec![found], None)
                }
            },
            _ => (StageState::Skipped, Some("an earlier stage did not pass".to_owned()), Vec::new(), None),
        };
        let record = StageRecord::new(StageName::Custom, state, reason);
        let record = StageRecord { verifier: Some(NAME.to_owned()), ..record };
        (chain::with_verifier(request, judgement, StageName::Run, record, findings), kept)
    }

    /// Runs the statements of a request. Returns the finding about the one that TiDB refuses.
    fn check(
        &mut self,
        request: &SqlRequest,
        keeps_database: bool,
    ) -> Result<(Option<Box<SqlDiagnostic>>, Option<KeptDatabase>), String> {
        if request.dialect != Dialect::Mysql {
            return Err(format!("its dialect is not `{}`", request.dialect.as_str()));
        }
        let instance = self.servers.server().map_err(|error| error.to_string())?;
        let (instance, ran) = match self.run_on(&instance, request, keeps_database) {
            Err(ExternalError::Server { .. }) => {
                // The service may have deleted the instance early.
                self.zero.forget();
                self.servers = Provisioned::new(self.zero.clone());
                let instance = self.servers.server().map_err(|error| error.to_string())?;
                let ran = self.run_on(&instance, request, keeps_database);
                (instance, ran)
            }
            ran => (instance, ran),
        };
        let ScratchOutcome { finding, database } = ran.map_err(|error| error.to_string())?;
        let kept = database.map(|database| KeptDatabase {
            url: instance.dsn.url_with_password(&database),
            expires_at: humantime::format_rfc3339_seconds(instance.expires_at).to_string(),
        });
        let finding = finding.map(|mut found| {
            found.message = format!("TiDB: {}", found.message);
            found
        });
        Ok((finding, kept))
    }

    fn run_on(
        &self,
        instance: &TidbInstance,
        request: &SqlRequest,
        keeps_database: bool,
    ) -> Result<ScratchOutcome, ExternalError> {
        let database = ExternalDatabase::new(instance.dsn.clone(), self.program.clone());
        database.run_in_scratch_database(request.clone(), keeps_database)
    }
}

/// Returns the message in the answer of the API, preceded by a separator.
fn api_message(body: &[u8]) -> String {
    let Ok(value) = serde_json::from_slice::<serde_json::Value>(body) else { return String::new() };
    let Some(text) = value["message"].as_str().or_else(|| value["error"]["message"].as_str()) else {
        return String::new();
    };
    let text: String = text.chars().filter(|character| !character.is_control()).take(MAX_MESSAGE_CHARS).collect();
    format!(": {text}")
}

#[cfg(test)]
mod tests {
    use super::*;

    /// 2026-01-01.
    fn now() -> SystemTime {
        SystemTime::UNIX_EPOCH + Duration::from_secs(1_767_225_600)
    }

    fn zero(store: &Path) -> TidbZero {
        let settings = TidbZeroSettings { url: "https://zero.example.org/v1beta1".to_owned(), certificates: None };
        TidbZero::new(settings, store.join("tidb-zero.json"), now)
    }

    fn connection() -> ApiConnection {
        let text = |text: &str| text.to_owned();
        ApiConnection { host: text("gw.example.org"), port: 4000, username: text("x.root"), password: text("p@ss") }
    }

    #[test]
    fn stored_instance_is_used_until_it_expires() {
        let directory = tempfile::tempdir().expect("a directory");
        let zero = zero(directory.path());
        zero.store(connection(), "2999-01-01T00:00:00Z".to_owned());
        let stored = zero.stored().expect("an instance");
        assert_eq!(stored.dsn.to_string(), "mysql://x.root@gw.example.org:4000/information_schema");
        assert_eq!(stored.dsn.tls, TlsMode::Verified { roots: None });
        assert!(zero.is_usable(&stored));
        let soon = now() + EXPIRY_MARGIN / 2;
        zero.store(connection(), humantime::format_rfc3339(soon).to_string());
        assert!(!zero.is_usable(&zero.stored().expect("an instance")));
    }

    #[test]
    fn instance_of_another_service_or_readable_by_others_is_not_used() {
        let directory = tempfile::tempdir().expect("a directory");
        let zero = zero(directory.path());
        zero.store(connection(), "2999-01-01T00:00:00Z".to_owned());
        let settings = TidbZeroSettings { url: "https://other.example.org".to_owned(), certificates: None };
        assert_eq!(TidbZero::new(settings, zero.store.clone(), now).stored(), None);
        rustix::fs::chmod(&zero.store, rustix::fs::Mode::from_raw_mode(0o644)).expect("a mode");
        assert_eq!(zero.stored(), None);
    }

    #[test]
    fn password_is_not_sent_without_tls() {
        let directory = tempfile::tempdir().expect("a directory");
        let settings = TidbZeroSettings { url: "http://zero.example.org".to_owned(), certificates: None };
        let error = TidbZero::new(settings, directory.path().join("x"), now).request().expect_err("no TLS");
        assert!(error.contains("does not begin with `https://`"), "{error}");
    }
}
