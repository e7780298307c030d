//! Gets the credentials of requests: from a file, or from a program that follows the protocol of Bazel's credential
//! helpers.
//!
//! No error and no `Debug` text contains a credential.

use std::collections::BTreeMap;
use std::fmt;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::{Duration, Instant};

use http::{HeaderName, HeaderValue};
use serde::{Deserialize, Serialize};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::process::Command;

use super::endpoint::Endpoint;
use super::tls::read_file;
use crate::error::RemoteError;

/// Credentials are read again after this time, and after the server refused them.
const MAX_AGE: Duration = Duration::from_secs(5 * 60);
/// A helper that has not answered after this time is killed.
const HELPER_DEADLINE: Duration = Duration::from_secs(10);
/// Maximum size of a helper's answer, in bytes.
const MAX_ANSWER: u64 = 256 << 10;
/// Maximum number of headers that a helper may set.
const MAX_HEADERS: usize = 32;

/// The source of the credentials of requests.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub enum Credentials {
    /// No credentials, or only the client certificate.
    #[default]
    None,
    /// A file that contains a bearer token.
    TokenFile(PathBuf),
    /// A program. It is called with the argument `get` and `{"uri": …}` on its standard input, and prints
    /// `{"headers": {NAME: [VALUE, …]}}`.
    Helper(PathBuf),
}

/// The headers of a request that contain credentials.
#[derive(Clone, Default)]
pub(crate) struct RequestHeaders {
    headers: Vec<(HeaderName, HeaderValue)>,
}

impl fmt::Debug for RequestHeaders {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.headers.iter().map(|(name, _)| name)).finish()
    }
}

impl RequestHeaders {
    fn add(&mut self, name: &str, value: &str) -> Result<(), String> {
        let header = HeaderName::try_from(name).map_err(|_| "a name of a header is not valid".to_owned())?;
        let mut value =
            HeaderValue::try_from(value).map_err(|_| format!("the value of the header `{header}` is not valid"))?;
        value.set_sensitive(true);
        self.headers.push((header, value));
        Ok(())
    }

    /// Adds the headers to a request.
    pub(crate) fn apply(&self, map: &mut http::HeaderMap) {
        for (name, value) in &self.headers {
            map.append(name, value.clone());
        }
    }

    /// Returns the texts that must not appear in a message: each value, and each of its words.
    pub(crate) fn secrets(&self) -> Vec<String> {
        let values = self.headers.iter().filter_map(|(_, value)| value.to_str().ok());
        let is_secret = |word: &&str| word.len() >= 8;
        values
            .flat_map(|value| std::iter::once(value).chain(value.split_whitespace()).filter(is_secret))
            .map(str::to_owned)
            .collect()
    }
}

/// The credentials that were read last.
#[derive(Debug, Default)]
pub(crate) struct CredentialCache {
    known: Option<(Instant, RequestHeaders)>,
}

impl CredentialCache {
    /// Forgets the credentials, because the server refused them. Returns whether the next request can get other
    /// credentials.
    pub(crate) fn forget(&mut self) -> bool {
        self.known.take().is_some_and(|(_, headers)| !headers.headers.is_empty())
    }

    /// Returns the headers of a request.
    ///
    /// # Errors
    /// The credentials cannot be read, or the connection would show them to others.
    pub(crate) async fn get(
        &mut self,
        source: &Credentials,
        endpoint: &Endpoint,
    ) -> Result<RequestHeaders, RemoteError> {
        if let Some((read, headers)) = &self.known
            && read.elapsed() < MAX_AGE
        {
            return Ok(headers.clone());
        }
        let failed = |problem| RemoteError::Credentials { endpoint: endpoint.to_string(), problem };
        if *source != Credentials::None && endpoint.is_readable_on_the_way() {
            return Err(failed("they would be sent without encryption; use `grpcs://`".to_owned()));
        }
        let headers = match source {
            Credentials::None => RequestHeaders::default(),
            Credentials::TokenFile(file) => from_file(file, endpoint)?,
            Credentials::Helper(program) => from_helper(program, endpoint).await.map_err(failed)?,
        };
        self.known = Some((Instant::now(), headers.clone()));
        Ok(headers)
    }
}

fn from_file(file: &Path, endpoint: &Endpoint) -> Result<RequestHeaders, RemoteError> {
    let bytes = read_file(file, "the file of the bearer token")?;
    let problem = |problem: &str| RemoteError::Credentials {
        endpoint: endpoint.to_string(),
        problem: format!("`{}` {problem}", file.display()),
    };
    let token = std::str::from_utf8(&bytes).map_err(|_| problem("is not text"))?.trim();
    if token.is_empty() || token.contains(char::is_whitespace) {
        return Err(problem("does not contain exactly one token"));
    }
    let mut headers = RequestHeaders::default();
    headers
        .add("authorization", &format!("Bearer {token}"))
        .map_err(|_| problem("contains a token that is not valid"))?;
    Ok(headers)
}

#[derive(Serialize)]
struct HelperRequest {
    uri: String,
}

#[derive(Deserialize)]
struct HelperAnswer {
    #[serde(default)]
    headers: BTreeMap<String, Vec<String>>,
}

async fn from_helper(program: &Path, endpoint: &Endpoint) -> Result<RequestHeaders, String> {
    let shown = program.display();
    let answer = tokio::time::timeout(HELPER_DEADLINE, run_helper(program, endpoint)).await;
    let answer = answer.map_err(|_| {
        format!("the credential helper `{shown}` has not answered after {} s", HELPER_DEADLINE.as_secs())
    })??;
    // The error of the parser can contain parts of the answer.
    let answer: HelperAnswer = serde_json::from_slice(&answer)
        .map_err(|_| format!("the answer of the credential helper `{shown}` is not valid"))?;
    let mut headers = RequestHeaders::default();
    for (name, values) in &answer.headers {
        for value in values {
            headers
                .add(&name.to_ascii_lowercase(), value)
                .map_err(|problem| format!("the answer of the credential helper `{shown}` is not valid: {problem}"))?;
        }
    }
    if headers.headers.len() > MAX_HEADERS {
        return Err(format!("the credential helper `{shown}` set more than {MAX_HEADERS} headers"));
    }
    Ok(headers)
}

async fn run_helper(program: &Path, endpoint: &Endpoint) -> Result<Vec<u8>, String> {
    let failed = |error: std::io::Error| format!("the credential helper `{}` failed: {error}", program.display());
    let scheme = if endpoint.uses_tls() { "https" } else { "http" };
    let request = HelperRequest { uri: format!("{scheme}://{}", endpoint.authority()) };
    // Serializing this type cannot fail.
    let request = serde_json::to_vec(&request).unwrap_or_default();
    let mut child = Command::new(program)
        .arg("get")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .kill_on_drop(true)
        .spawn()
        .map_err(failed)?;
    if let Some(mut stdin) = child.stdin.take() {
        // A helper need not read its input.
        let _ = stdin.write_all(&request).await;
    }
    let mut answer = Vec::new();
    if let Some(stdout) = child.stdout.take() {
        stdout.take(MAX_ANSWER + 1).read_to_end(&mut answer).await.map_err(failed)?;
    }
    if answer.len() as u64 > MAX_ANSWER {
        return Err(format!("the credential helper `{}` printed more than {MAX_ANSWER} bytes", program.display()));
    }
    let status = child.wait().await.map_err(failed)?;
    if !status.success() {
        return Err(format!("the credential helper `{}` failed: {status}", program.display()));
    }
    Ok(answer)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;

    fn runtime() -> tokio::runtime::Runtime {
        tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime")
    }

    fn get(source: &Credentials, endpoint: &str) -> Result<RequestHeaders, RemoteError> {
        let endpoint = endpoint.parse().expect("an address");
        runtime().block_on(CredentialCache::default().get(source, &endpoint))
    }

    fn script(directory: &Path, text: &str) -> Credentials {
        let file = directory.join("helper");
        #[expect(clippy::disallowed_methods, reason = "a program of the test")]
        std::fs::write(&file, format!("#!/bin/sh\n{text}\n")).expect("written");
        std::fs::set_permissions(&file, std::fs::Permissions::from_mode(0o755)).expect("executable");
        Credentials::Helper(file)
    }

    #[test]
    fn helper_gets_the_address_and_sets_headers() {
        let directory = tempfile::tempdir().expect("a directory");
        let helper = script(
            directory.path(),
            r#"[ "$1" = get ] && uri=$(cat) && case $uri in *'"https://h:1"'*) echo '{"headers":{"Authorization":["Bearer token-12345"]},"expires":"2000-01-01T00:00:00Z"}';; esac"#,
        );
        let headers = get(&helper, "grpcs://h:1").expect("headers");
        let mut map = http::HeaderMap::new();
        headers.apply(&mut map);
        assert_eq!(map["authorization"], "Bearer token-12345");
        assert!(!format!("{headers:?} {map:?}").contains("token-12345"), "{headers:?}");
        assert_eq!(headers.secrets(), ["Bearer token-12345", "token-12345"]);
    }

    #[test]
    fn errors_of_a_helper_do_not_contain_its_output() {
        let directory = tempfile::tempdir().expect("a directory");
        for text in ["echo token-12345", "echo token-12345; exit 3", r#"echo '{"headers":{"a b":["token-12345"]}}'"#] {
            let error = get(&script(directory.path(), text), "grpcs://h:1").expect_err("refused").to_string();
            assert!(error.contains("helper") && !error.contains("12345"), "{error}");
        }
    }

    #[test]
    fn token_is_not_sent_without_encryption() {
        let directory = tempfile::tempdir().expect("a directory");
        let file = directory.path().join("token");
        #[expect(clippy::disallowed_methods, reason = "a file of the test")]
        std::fs::write(&file, "token-12345\n").expect("written");
        let source = Credentials::TokenFile(file);
        let error = get(&source, "grpc://cache:1").expect_err("refused").to_string();
        assert!(error.contains("grpcs://") && !error.contains("12345"), "{error}");
        assert_eq!(get(&source, "grpc://127.0.0.1:1").expect("a token").secrets().len(), 2);
    }
}
