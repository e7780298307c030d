//! Tests that providers are reached only over verified TLS. The authority and the certificate of the server are in
//! `tls/`; they are used for these tests alone.

use std::collections::BTreeMap;
use std::io::{Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use proctor_ask::provider::{Completion, Prompt, ProviderContext, ProviderError, open};
use proctor_core::model::enforcement::Tolerated;
use proctor_core::spec::{Endpoint, KeySource, ProviderApi, ProviderSettings};
use proctor_runner::Clock;
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::{ServerConfig, ServerConnection, StreamOwned};
use tokio::time::Instant;

const KEY: &str = "sk-very-secret";
const AUTHORITY: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/tls/authority.pem");

fn server_config() -> Arc<ServerConfig> {
    let certificate = CertificateDer::from_pem_slice(include_bytes!("tls/server.pem")).expect("a certificate");
    let key = PrivateKeyDer::from_pem_slice(include_bytes!("tls/server-key.pem")).expect("a key");
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config = ServerConfig::builder_with_provider(provider).with_safe_default_protocol_versions().expect("versions");
    Arc::new(config.with_no_client_auth().with_single_cert(vec![certificate], key).expect("a server"))
}

/// Starts a server that answers one request of each connection. Returns its port and the requests that it could read.
fn start_server() -> (u16, Arc<Mutex<Vec<String>>>) {
    let listener = TcpListener::bind("127.0.0.1:0").expect("binds");
    let port = listener.local_addr().expect("an address").port();
    let seen = Arc::new(Mutex::new(Vec::new()));
    let requests = Arc::clone(&seen);
    let config = server_config();
    std::thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            answer(stream, &config, &requests);
        }
    });
    (port, seen)
}

fn answer(stream: TcpStream, config: &Arc<ServerConfig>, requests: &Mutex<Vec<String>>) {
    let Ok(connection) = ServerConnection::new(Arc::clone(config)) else { return };
    let mut stream = StreamOwned::new(connection, stream);
    let mut request = [0; 8192];
    let Ok(length) = stream.read(&mut request) else { return };
    requests.lock().expect("not poisoned").push(String::from_utf8_lossy(&request[..length]).into_owned());
    let body = "{\"choices\":[{\"message\":{\"content\":\"SELECT 1\"},\"finish_reason\":\"stop\"}]}";
    let head = format!("HTTP/1.1 200 OK\r\ncontent-length: {}\r\nconnection: close\r\n\r\n", body.len());
    let _ = stream.write_all((head + body).as_bytes()).and_then(|()| stream.flush());
    stream.conn.send_close_notify();
    let _ = stream.flush();
}

async fn complete(url: String, certificates: Option<&str>) -> Result<Completion, ProviderError> {
    let context = ProviderContext {
        env: BTreeMap::from([("TEST_KEY".to_owned(), KEY.to_owned())]),
        launcher: None,
        tolerated: Tolerated::default(),
        allow_network: true,
        clock: Clock::system(),
    };
    let settings = ProviderSettings {
        api: ProviderApi::OpenAi(Endpoint { url, certificates: certificates.map(str::to_owned) }),
        model: Some("m".to_owned()),
        key: Some(KeySource::Variable("TEST_KEY".to_owned())),
        max_answer_tokens: 9,
    };
    let prompt = Prompt { system: String::new(), user: String::new() };
    let provider = open("test", &settings, &context)?;
    provider.provider.complete(&prompt, Instant::now() + Duration::from_secs(3)).await
}

#[tokio::test]
async fn trusted_authority_is_accepted() {
    let (port, requests) = start_server();
    let answer = complete(format!("https://localhost:{port}/v1"), Some(AUTHORITY)).await;
    assert_eq!(answer.expect("an answer").text, "SELECT 1");
    assert!(requests.lock().expect("not poisoned")[0].contains(KEY));
}

#[tokio::test]
async fn unknown_authority_is_refused_before_the_key_is_sent() {
    let (port, requests) = start_server();
    let error = complete(format!("https://localhost:{port}/v1"), None).await.expect_err("not trusted");
    assert!(error.to_string().contains("no secure connection"), "{error}");
    assert!(requests.lock().expect("not poisoned").is_empty());
}

#[tokio::test]
async fn certificate_of_another_host_is_refused() {
    let (port, requests) = start_server();
    let error = complete(format!("https://127.0.0.2:{port}/v1"), Some(AUTHORITY)).await.expect_err("another host");
    assert!(error.to_string().contains("127.0.0.2"), "{error}");
    assert!(requests.lock().expect("not poisoned").is_empty());
}

#[tokio::test]
async fn server_without_tls_never_sees_the_key() {
    let listener = TcpListener::bind("127.0.0.1:0").expect("binds");
    let port = listener.local_addr().expect("an address").port();
    let seen = Arc::new(Mutex::new(Vec::new()));
    let bytes = Arc::clone(&seen);
    std::thread::spawn(move || {
        for mut stream in listener.incoming().flatten() {
            let mut buffer = [0; 4096];
            let length = stream.read(&mut buffer).unwrap_or(0);
            bytes.lock().expect("not poisoned").extend_from_slice(&buffer[..length]);
            let _ = stream.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n{}");
        }
    });
    complete(format!("https://localhost:{port}/v1"), Some(AUTHORITY)).await.expect_err("no TLS");
    let seen = String::from_utf8_lossy(&seen.lock().expect("not poisoned")).into_owned();
    assert!(!seen.is_empty() && !seen.contains(KEY), "{seen}");
}

#[tokio::test]
async fn missing_or_empty_authority_file_is_an_error() {
    for file in ["/nonexistent.pem", "/dev/null"] {
        let error = complete("https://localhost:1/v1".to_owned(), Some(file)).await.expect_err(file);
        assert!(error.to_string().contains("certificates"), "{error}");
    }
}
