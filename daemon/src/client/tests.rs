//! Tests of the client with sockets that do not belong to a daemon.

use std::path::Path;

use proctor_client::daemon_address::DaemonTrust;
use proctor_core::model::names::RunId;
use tempfile::TempDir;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::UnixListener;
use tokio::task::JoinHandle;
use tokio::time::timeout;

use super::*;

fn client(socket: &Path) -> Client {
    Client::new(DaemonAddress { socket: socket.to_owned(), trust: DaemonTrust::AnyUser })
}

/// Starts a server that answers each of the first connections with one of the given responses and closes it.
fn serve_responses(answers: impl IntoIterator<Item = String, IntoIter: Send + 'static>) -> (TempDir, Client) {
    let dir = tempfile::tempdir().expect("a directory");
    let socket = dir.path().join("s");
    serve_responses_at(&socket, answers);
    (dir, client(&socket))
}

/// Like [`serve_responses`], at a given path, replacing a socket there. The task ends after the last response.
pub(crate) fn serve_responses_at(
    socket: &Path,
    answers: impl IntoIterator<Item = String, IntoIter: Send + 'static>,
) -> JoinHandle<()> {
    let _ = std::fs::remove_file(socket);
    let listener = UnixListener::bind(socket).expect("a socket");
    let answers = answers.into_iter();
    tokio::spawn(async move {
        for answer in answers {
            let (mut stream, _) = listener.accept().await.expect("a connection");
            let mut request = [0; 4096];
            let _ = stream.read(&mut request).await.expect("a request");
            stream.write_all(answer.as_bytes()).await.expect("it is read");
        }
    })
}

pub(crate) fn ok_response(kind: &str, body: &str) -> String {
    format!("HTTP/1.1 200 OK\r\ncontent-type: {kind}\r\ncontent-length: {}\r\n\r\n{body}", body.len())
}

fn run() -> RunId {
    RunId::new("r1").expect("an id")
}

#[tokio::test]
async fn distinguishes_missing_listener_from_broken_connection() {
    let dir = tempfile::tempdir().expect("a directory");
    let absent = client(&dir.path().join("s")).health().await.expect_err("nothing there");
    assert!(matches!(absent, ClientError::NotListening { .. }), "{absent}");
    drop(std::os::unix::net::UnixListener::bind(dir.path().join("s")).expect("a socket"));
    let stale = client(&dir.path().join("s")).health().await.expect_err("stale");
    assert!(matches!(stale, ClientError::NotListening { .. }), "{stale}");
    let (_dir, client) = serve_responses(vec!["HTTP/1.1 200 OK\r\ncontent-length: 9\r\n\r\n{".into()]);
    let torn = client.health().await.expect_err("torn");
    assert!(matches!(torn, ClientError::ConnectionBroken { .. }), "{torn}");
    let (_dir, client) = serve_responses(vec![String::new()]);
    let closed = client.health().await.expect_err("closed");
    assert!(matches!(closed, ClientError::ConnectionBroken { .. }), "{closed}");
}

fn health() -> String {
    let runs = serde_json::to_string(&proctor_core::api::RunCounts::default()).expect("serializes");
    let body = format!(r#"{{"status":"ok","version":"1.0.0","pid":1,"uid":7,"uptime_ms":0,"runs":{runs}}}"#);
    ok_response("application/json", &body)
}

#[tokio::test]
async fn requests_share_a_connection() {
    let dir = tempfile::tempdir().expect("a directory");
    let listener = UnixListener::bind(dir.path().join("s")).expect("a socket");
    let server = tokio::spawn(async move {
        let (mut stream, _) = listener.accept().await.expect("a connection");
        let mut requests = Vec::new();
        for _ in 0..2 {
            let mut request = [0; 4096];
            let length = stream.read(&mut request).await.expect("a request");
            requests.push(String::from_utf8_lossy(&request[..length]).to_lowercase());
            stream.write_all(health().as_bytes()).await.expect("it is read");
        }
        requests
    });
    let client = client(&dir.path().join("s"));
    client.health().await.expect("healthy");
    client.clone().health().await.expect("healthy");
    let requests = server.await.expect("both requests arrived");
    assert!(requests.iter().all(|request| !request.contains("connection: close")), "{requests:?}");
}

#[tokio::test]
async fn request_after_the_end_of_a_connection_uses_another_one() {
    let (_dir, client) = serve_responses(vec![health(), health(), health()]);
    for _ in 0..3 {
        client.health().await.expect("healthy");
    }
}

#[tokio::test(start_paused = true)]
async fn silent_daemon_times_out() {
    let dir = tempfile::tempdir().expect("a directory");
    let socket = dir.path().join("s");
    let listener = UnixListener::bind(&socket).expect("a socket");
    let error = client(&socket).health().await.expect_err("silence");
    assert!(error.to_string().contains("within 10 s"), "{error}");
    assert!(matches!(error, ClientError::NoResponse { .. }), "it may answer yet: {error}");
    drop(listener);
}

#[tokio::test]
async fn rejects_invalid_responses() {
    for text in [
        ok_response("text/html", "{}"),
        ok_response("application/json", "{}"),
        "HTTP/1.1 500 Oh\r\ncontent-length: 0\r\n\r\n".into(),
    ] {
        let (_dir, client) = serve_responses(vec![text.clone()]);
        let error = client.health().await.expect_err("no health");
        assert!(matches!(error, ClientError::InvalidResponse { .. }), "{text}: {error}");
    }
}

#[tokio::test]
async fn rejects_daemon_of_another_user() {
    let dir = tempfile::tempdir().expect("a directory");
    let socket = dir.path().join("s");
    let listener = std::os::unix::net::UnixListener::bind(&socket).expect("a socket");
    // Closes the connection at once: root would otherwise wait for an answer until the time limit of the client.
    let server = std::thread::spawn(move || drop(listener.accept()));
    let own = rustix::process::geteuid().as_raw();
    // The user id differs from that of the server, which is therefore foreign; a server that runs as root is always
    // trusted.
    let address = DaemonAddress { socket, trust: DaemonTrust::OwnOrRoot(own + 1) };
    let error = Client::new(address).health().await.expect_err("nobody answers");
    assert_eq!(matches!(error, ClientError::UntrustedDaemon { .. }), own != 0, "{error}");
    server.join().expect("it does not panic");
}

fn event(seq: u64, last: bool) -> String {
    let body = if last {
        r#""event":"run_finished","verdict":"failed","tier":1,"exit_code":1,"duration_ms":5,"evidence_dir":null"#
    } else {
        r#""event":"cancelling","by":"x""#
    };
    format!("id: {seq}\ndata: {{\"seq\":{seq},\"logged_at\":\"t\",{body}}}\n\n")
}

fn stream(events: &[String]) -> String {
    format!("HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n\r\n{}", events.concat())
}

#[tokio::test]
async fn resumes_broken_stream_after_last_event() {
    let first = stream(&[event(1, false), event(2, false)]);
    let second = stream(&[event(2, false), ": here\n\n".into(), event(3, true)]);
    let (_dir, client) = serve_responses(vec![first, second]);
    let mut events = client.events(&run(), 0);
    let mut seen = Vec::new();
    while let Some(event) = events.next().await.expect("an event") {
        seen.push(event.seq);
    }
    assert_eq!(seen, [1, 2, 3]);
}

#[tokio::test]
async fn missing_event_is_an_error() {
    let (_dir, client) = serve_responses(vec![stream(&[event(1, false), event(3, true)])]);
    let mut events = client.events(&run(), 0);
    let error = loop {
        match events.next().await {
            Ok(event) => assert_eq!(event.map(|event| event.seq), Some(1)),
            Err(error) => break error,
        }
    };
    assert!(error.to_string().contains("event 3 follows event 1"), "{error}");
}

#[tokio::test(start_paused = true)]
async fn dead_daemon_is_an_error_after_reconnect_timeout() {
    let (_dir, client) = serve_responses(vec![stream(&[event(1, false)])]);
    let mut events = client.events(&run(), 0);
    assert!(events.next().await.expect("the first").is_some());
    let error = events.next().await.expect_err("it is dead");
    assert!(error.is_retryable(), "{error}");
}

/// A daemon that cannot read the log of the run starts every stream and ends it without an event.
#[tokio::test(start_paused = true)]
async fn stream_without_events_is_an_error_eventually() {
    let (_dir, client) = serve_responses(std::iter::repeat_with(|| stream(&[": here\n\n".into()])));
    let mut events = client.events(&run(), 0);
    let ended = timeout(Duration::from_secs(60), events.next()).await;
    assert!(ended.expect("it is given up").expect_err("no event").is_retryable());
}

#[test]
fn escapes_query_values() {
    let filter = RunFilter { repo: Some("/a b/ü&x=1".into()), limit: Some(3), ..RunFilter::default() };
    assert_eq!(query_string(&filter_pairs(&filter)), "?repo=/a%20b/%C3%BC%26x%3D1&limit=3");
    assert_eq!(query_string(&[]), "");
}

#[test]
fn reads_total_length_from_content_range() {
    let mut headers = HeaderMap::new();
    assert_eq!(total_length(&headers), None);
    headers.insert(CONTENT_RANGE, HeaderValue::from_static("bytes 0-9/120"));
    assert_eq!(total_length(&headers), Some(120));
    headers.insert(CONTENT_RANGE, HeaderValue::from_static("bytes 0-9/*"));
    assert_eq!(total_length(&headers), None);
}
