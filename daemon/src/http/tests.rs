//! Tests of the transport over a real socket: slow clients, too many clients, and clients that do not speak HTTP/1.1.
//! Other tests cover the operations.

use std::io::{IoSlice, Read as _};
use std::mem::MaybeUninit;
use std::os::fd::AsFd as _;
use std::os::unix::net::UnixListener;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::routing::{get, post};
use http::HeaderMap;
use proctor_core::api::{Problem, ProblemType};
use proctor_core::spec::OperatorConfig;
use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags, sendmsg};
use tempfile::TempDir;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::UnixStream;
use tokio::sync::watch;
use tokio::task::{JoinHandle, JoinSet};
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;

use super::accept_loop::AcceptLoop;
use super::limits::{MAX_BODY, MAX_HEAD};
use super::memory_budget::MAX_BODIES;
use super::{request_body, response};
use crate::metrics::{Metrics, SampledValues, SqlCounts, TextFormat};
use crate::settings::{AllowedUsers, ResolvedSettings};

/// Timeout of each test, sufficient on a busy machine.
const TEST_TIMEOUT: Duration = Duration::from_secs(60);
/// Request timeout of the transport in these tests.
const REQUEST_TIMEOUT: Duration = Duration::from_millis(300);

/// A running transport with routes that imitate handlers.
struct TestTransport {
    listeners: watch::Sender<Arc<UnixListener>>,
    dir: TempDir,
    metrics: Metrics,
    stop: CancellationToken,
    task: JoinHandle<()>,
    _settings: watch::Sender<Arc<ResolvedSettings>>,
}

fn routes() -> Router {
    async fn never() {
        std::future::pending::<()>().await;
    }
    async fn bug() {
        panic!("a bug of a test");
    }
    async fn large() -> Vec<u8> {
        vec![b'x'; 64 << 20]
    }
    async fn echo(headers: HeaderMap, body: Body) -> axum::response::Response {
        match request_body::read_json::<serde_json::Value>(&headers, body, MAX_BODY).await {
            Ok(value) => response::bytes_response(response::JSON_CONTENT_TYPE, value.to_string()),
            Err(problem) => response::problem_response(&problem),
        }
    }
    Router::new()
        .route("/", get(async || "here"))
        .route("/never", get(never))
        .route("/bug", get(bug))
        .route("/large", get(large))
        .route("/echo", post(echo))
}

impl TestTransport {
    fn start() -> Self {
        Self::start_with(|_| {})
    }

    fn start_with(change: impl FnOnce(&mut ResolvedSettings)) -> Self {
        let own = rustix::process::geteuid().as_raw();
        let mut operator = OperatorConfig::default();
        operator.daemon.request_timeout = REQUEST_TIMEOUT;
        let mut settings = ResolvedSettings { operator, config: None, allowed_users: AllowedUsers::new(own, []) };
        change(&mut settings);
        let place = tempfile::tempdir().expect("a directory");
        let listener = UnixListener::bind(place.path().join("socket")).expect("a socket");
        let (metrics, stop) = (Metrics::new(0), CancellationToken::new());
        let (sender, settings) = watch::channel(Arc::new(settings));
        let connections = AcceptLoop::new(routes(), settings, stop.clone(), metrics.clone());
        listener.set_nonblocking(true).expect("does not block");
        let (listeners, listener) = watch::channel(Arc::new(listener));
        let task = tokio::spawn(async move {
            connections.run(listener).await.expect("a listener");
        });
        Self { dir: place, metrics, stop, task, listeners, _settings: sender }
    }

    fn socket(&self) -> std::path::PathBuf {
        self.dir.path().join("socket")
    }

    async fn connect(&self) -> UnixStream {
        UnixStream::connect(self.socket()).await.expect("connects")
    }

    /// Sends bytes, and reads until the transport closes the connection.
    async fn exchange(&self, request: impl AsRef<[u8]>) -> String {
        let mut stream = self.connect().await;
        let _ = stream.write_all(request.as_ref()).await;
        read_all(&mut stream).await
    }

    async fn assert_serves(&self) {
        let answer = self.exchange("GET / HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n").await;
        assert!(answer.starts_with("HTTP/1.1 200 OK\r\n") && answer.ends_with("\r\n\r\nhere"), "{answer}");
    }

    async fn wait_for_open(&self, count: u32) {
        let mut connections = self.metrics.subscribe_connections();
        let reached = connections.wait_for(|connections| connections.open == count);
        timeout(TEST_TIMEOUT, reached).await.expect("in time").expect("the metrics are there");
    }
}

async fn read_all(stream: &mut UnixStream) -> String {
    let mut bytes = Vec::new();
    // After a reset, the bytes received before it are still returned.
    let _ = timeout(TEST_TIMEOUT, stream.read_to_end(&mut bytes)).await.expect("it is closed in time");
    String::from_utf8_lossy(&bytes).into_owned()
}

/// Parses the problem in a response, and checks its content type and status.
fn parse_problem(answer: &str) -> Problem {
    let (head, body) = answer.split_once("\r\n\r\n").unwrap_or_else(|| panic!("no answer: {answer:?}"));
    assert!(head.contains("content-type: application/problem+json"), "{head}");
    let problem: Problem = serde_json::from_str(body).unwrap_or_else(|error| panic!("{error}: {body}"));
    assert!(head.starts_with(&format!("HTTP/1.1 {} ", problem.status)), "{head}");
    problem
}

#[tokio::test]
async fn invalid_request_gets_problem_and_closes_connection() {
    let transport = TestTransport::start();
    for request in [
        "BREW\r\n\r\n",
        "GET / HTTP/9.9\r\n\r\n",
        "GET / HTTP/1.1\r\nno colon\r\n\r\n",
        "GET /\x01 HTTP/1.1\r\n\r\n",
        "POST / HTTP/1.1\r\ncontent-length: -1\r\n\r\n",
        "POST / HTTP/1.1\r\ncontent-length: 1\r\ncontent-length: 2\r\n\r\n",
        "\x16\x03\x01\x02\x00\x01\x00\x01\r\n\r\n",
    ] {
        let answer = transport.exchange(request).await;
        assert_eq!(parse_problem(&answer).kind, ProblemType::InvalidRequest, "{request:?}");
    }
    // The HTTP/2 preface gets no answer, because an HTTP/1.1 response would be invalid there.
    assert_eq!(transport.exchange("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n").await, "");
    // The preceding request is answered normally.
    let answer = transport.exchange("GET / HTTP/1.1\r\nhost: x\r\n\r\nBREW\r\n\r\n").await;
    assert!(answer.contains("\r\n\r\nhereHTTP/1.1 400 "), "{answer}");
    transport.wait_for_open(0).await;
}

#[tokio::test]
async fn rejects_large_head_and_times_out_incomplete_head() {
    let transport = TestTransport::start();
    let large = format!("GET / HTTP/1.1\r\nx: {}", "y".repeat(2 * MAX_HEAD));
    assert_eq!(parse_problem(&transport.exchange(large).await).kind, ProblemType::HeadTooLarge);
    let long = format!("GET /{} HTTP/1.1\r\n\r\n", "y".repeat(2 * MAX_HEAD));
    assert_eq!(parse_problem(&transport.exchange(long).await).kind, ProblemType::HeadTooLarge);
    for request in ["", "G", "GET / HTTP/1.1\r\nhost: x\r\n"] {
        assert_eq!(transport.exchange(request).await, "", "{request:?}");
    }
    transport.wait_for_open(0).await;
}

fn post_echo(head: &str, body: &str) -> String {
    format!("POST /echo HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\n{head}\r\n\r\n{body}")
}

#[tokio::test]
async fn bounds_size_framing_and_time_of_body() {
    let transport = TestTransport::start();
    let kind = async |request: String| parse_problem(&transport.exchange(request).await).kind;
    let large = format!("content-length: {}", 1_u64 << 30);
    assert_eq!(kind(post_echo(&large, "")).await, ProblemType::TooLarge);
    let endless = format!("{:x}\r\n{}", MAX_BODY + 1, " ".repeat(MAX_BODY + 1));
    assert_eq!(kind(post_echo("transfer-encoding: chunked", &endless)).await, ProblemType::TooLarge);
    assert_eq!(kind(post_echo("transfer-encoding: chunked", "x\r\n")).await, ProblemType::InvalidRequest);
    assert_eq!(kind(post_echo("content-length: 9", "{}")).await, ProblemType::RequestTimeout);
    assert_eq!(kind(post_echo("transfer-encoding: chunked", "2\r\n{}")).await, ProblemType::RequestTimeout);
    let whole = transport.exchange(post_echo("content-length: 2\r\nconnection: close", "{}")).await;
    assert!(whole.ends_with("\r\n\r\n{}"), "{whole}");
}

#[tokio::test]
async fn bounds_total_body_bytes_of_caller() {
    let transport = TestTransport::start_with(|settings| settings.operator.daemon.request_timeout = TEST_TIMEOUT);
    let head = post_echo(&format!("content-length: {MAX_BODY}\r\nconnection: close"), "");
    let mut senders = JoinSet::new();
    for _ in 0..=MAX_BODIES / MAX_BODY {
        let (mut stream, almost) = (transport.connect_and_send(&head).await, vec![b' '; MAX_BODY - 1]);
        senders.spawn(async move {
            // The transport stops reading a refused body.
            let _ = stream.write_all(&almost).await;
            read_all(&mut stream).await
        });
    }
    // All bodies but one fit; which one is refused is not defined.
    let refused = timeout(TEST_TIMEOUT, senders.join_next()).await.expect("in time").expect("one").expect("no panic");
    assert_eq!(parse_problem(&refused).kind, ProblemType::TooManyRequests);
    // A request without a body needs no memory, and the aborted bodies have released theirs.
    transport.assert_serves().await;
    senders.shutdown().await;
    transport.wait_for_open(0).await;
    let large = format!("{}{{}}", " ".repeat(MAX_BODY - 2));
    assert!(transport.exchange(format!("{head}{large}")).await.ends_with("\r\n\r\n{}"));
}

#[tokio::test]
async fn drops_client_that_does_not_read() {
    let transport = TestTransport::start();
    let mut streams = Vec::new();
    for _ in 0..8 {
        let mut stream = transport.connect().await;
        stream.write_all(b"GET /large HTTP/1.1\r\nhost: x\r\n\r\n").await.expect("writes");
        streams.push(stream);
    }
    transport.assert_serves().await;
    transport.wait_for_open(0).await;
}

#[tokio::test]
async fn accepts_new_connection_at_the_limit() {
    let transport = TestTransport::start_with(|settings| {
        settings.operator.daemon.max_connections = 3;
        settings.operator.daemon.request_timeout = TEST_TIMEOUT;
    });
    let asking = transport.connect_and_send("GET /never HTTP/1.1\r\nhost: x\r\n\r\n").await;
    let mut oldest = transport.connect_and_send("GET / HT").await;
    let newer = transport.connect_and_send("").await;
    transport.wait_for_open(3).await;
    transport.assert_serves().await;
    // The oldest idle connection was closed, and no other.
    assert_eq!(read_all(&mut oldest).await, "");
    transport.wait_for_open(2).await;
    drop((asking, newer));

    // If all connections are being answered, the new one is still accepted.
    let mut asking = Vec::new();
    for _ in 0..3 {
        asking.push(transport.connect_and_send("GET /never HTTP/1.1\r\nhost: x\r\n\r\n").await);
    }
    transport.wait_for_open(3).await;
    transport.assert_serves().await;
    transport.wait_for_open(2).await;
    assert!(transport.has_metric("proctor_connections_refused_total{reason=\"evicted\"} 2"));
}

#[tokio::test]
async fn new_connection_is_not_evicted_before_idle_ones() {
    let transport = TestTransport::start_with(|settings| {
        settings.operator.daemon.max_connections = 3;
        settings.operator.daemon.request_timeout = TEST_TIMEOUT;
    });
    let mut late = transport.connect_and_send("").await;
    let mut idle = transport.connect_and_send("GET / HT").await;
    let waiting = transport.connect_and_send("GET / HT").await;
    transport.wait_for_open(3).await;
    // Another connection, accepted before the first one has sent its request.
    let more = transport.connect_and_send("GET / HT").await;
    for _ in 0..100 {
        tokio::task::yield_now().await;
    }
    late.write_all(b"GET / HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n").await.expect("it is still there");
    assert!(read_all(&mut late).await.ends_with("\r\n\r\nhere"), "it was answered");
    transport.wait_for_open(3).await;

    // The connections can be closed after the grace period.
    transport.assert_serves().await;
    assert_eq!(read_all(&mut idle).await, "");
    drop((waiting, more));
}

impl TestTransport {
    async fn connect_and_send(&self, request: &str) -> UnixStream {
        let mut stream = self.connect().await;
        stream.write_all(request.as_bytes()).await.expect("writes");
        stream
    }

    fn has_metric(&self, line: &str) -> bool {
        let sampled = SampledValues {
            status: proctor_core::api::HealthStatus::Ok,
            runs: proctor_core::api::RunCounts::default(),
            sql: SqlCounts::default(),
            is_ready: true,
            state_free_bytes: None,
        };
        let text = self.metrics.encode(sampled, TextFormat::OpenMetrics);
        text.lines().any(|found| found == line)
    }
}

#[tokio::test]
async fn refuses_unlisted_user_before_reading() {
    let own = rustix::process::geteuid().as_raw();
    let transport =
        TestTransport::start_with(|settings| settings.allowed_users = AllowedUsers::new(own + 1, [own + 2]));
    let mut stream = transport.connect().await;
    let answer = read_all(&mut stream).await;
    assert_eq!(parse_problem(&answer).kind, ProblemType::Forbidden);
    assert!(transport.has_metric("proctor_connections_refused_total{reason=\"foreign\"} 1"));
}

#[tokio::test]
async fn panic_ends_only_its_request() {
    let transport = TestTransport::start();
    let answer = transport
        .exchange("GET /bug HTTP/1.1\r\nhost: x\r\n\r\nGET / HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n")
        .await;
    let (bug, rest) = answer.split_once("}HTTP/1.1 200 OK").unwrap_or_else(|| panic!("{answer}"));
    assert_eq!(parse_problem(&format!("{bug}}}")).kind, ProblemType::Internal);
    assert!(rest.ends_with("here"), "{answer}");
}

#[tokio::test]
async fn stop_does_not_wait_for_idle_connections() {
    let transport = TestTransport::start_with(|settings| settings.operator.daemon.request_timeout = TEST_TIMEOUT);
    let mut idle = transport.connect_and_send("GET / HTTP/1.1\r\nhost: x\r\n\r\n").await;
    let mut first = [0; 9];
    idle.read_exact(&mut first).await.expect("an answer");
    let half = transport.connect_and_send("GET / HT").await;
    transport.wait_for_open(2).await;
    transport.stop.cancel();
    timeout(TEST_TIMEOUT, transport.task).await.expect("in time").expect("it did not panic");
    assert!(read_all(&mut idle).await.ends_with("here"));
    drop(half);
}

/// A descriptor received with a message is closed, which the other end of the pipe observes.
#[tokio::test(flavor = "multi_thread")]
async fn drops_received_descriptors() {
    let transport = TestTransport::start();
    let (read, write) = std::io::pipe().expect("a pipe");
    send_with_descriptor(&transport.socket(), &write);
    drop(write);
    let mut read = read;
    let ended = tokio::task::spawn_blocking(move || read.read_to_end(&mut Vec::new()));
    assert_eq!(timeout(TEST_TIMEOUT, ended).await.expect("in time").expect("no panic").expect("reads"), 0);
    transport.assert_serves().await;
}

fn send_with_descriptor(socket: &Path, attached: &std::io::PipeWriter) {
    let stream = std::os::unix::net::UnixStream::connect(socket).expect("connects");
    let fds = [attached.as_fd()];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut ancillary = SendAncillaryBuffer::new(&mut space);
    assert!(ancillary.push(SendAncillaryMessage::ScmRights(&fds)));
    let request = b"GET / HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n";
    let sent = sendmsg(&stream, &[IoSlice::new(request)], &mut ancillary, SendFlags::empty()).expect("sends");
    assert_eq!(sent, request.len());
    let mut answer = String::new();
    (&stream).read_to_string(&mut answer).expect("an answer");
    assert!(answer.ends_with("here"), "{answer}");
}

#[tokio::test]
async fn accepts_from_a_new_listener_and_keeps_its_connections() {
    let transport = TestTransport::start();
    let mut before = transport.connect().await;
    transport.assert_serves().await;
    std::fs::remove_file(transport.socket()).expect("removed");
    let listener = UnixListener::bind(transport.socket()).expect("bound");
    listener.set_nonblocking(true).expect("does not block");
    transport.listeners.send_replace(Arc::new(listener));
    transport.assert_serves().await;
    before.write_all(b"GET / HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n").await.expect("sent");
    assert!(read_all(&mut before).await.ends_with("\r\n\r\nhere"));
}

/// Some clients send the whole request before they read. The answer must not be lost with the rest of the body.
#[tokio::test]
async fn early_answers_reach_a_client_that_sends_its_body_first() {
    let transport = TestTransport::start_with(|settings| settings.operator.daemon.request_timeout = TEST_TIMEOUT);
    let body = vec![b'x'; 300 << 10];
    for (path, status) in [("/never-there", "404"), ("/", "405"), ("/here", "404")] {
        let mut stream = transport.connect().await;
        let head = format!("POST {path} HTTP/1.1\r\nhost: x\r\ncontent-length: {}\r\n\r\n", body.len());
        stream.write_all(head.as_bytes()).await.expect("sent");
        timeout(TEST_TIMEOUT, stream.write_all(&body)).await.expect("in time").expect("the whole body is taken");
        stream.write_all(b"GET / HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n").await.expect("sent");
        let answers = read_all(&mut stream).await;
        assert!(answers.starts_with(&format!("HTTP/1.1 {status} ")), "{answers}");
        assert!(answers.ends_with("\r\n\r\nhere"), "the connection stays in use: {answers}");
    }
}

#[tokio::test]
async fn answers_unreadable_head_while_its_body_arrives() {
    let transport = TestTransport::start();
    let mut stream = transport.connect().await;
    let fields = "x-y: z\r\n".repeat(101);
    let head = format!("POST / HTTP/1.1\r\nhost: x\r\n{fields}content-length: 307200\r\n\r\n");
    stream.write_all(head.as_bytes()).await.expect("sent");
    timeout(TEST_TIMEOUT, stream.write_all(&vec![b'x'; 300 << 10])).await.expect("in time").expect("taken");
    let problem = parse_problem(&read_all(&mut stream).await);
    assert!(problem.status == 431 && problem.detail.contains("100 fields"), "{problem:?}");
}

#[tokio::test]
async fn overflowing_content_length_is_not_reported_as_large_head() {
    let transport = TestTransport::start();
    let request = format!("POST / HTTP/1.1\r\nhost: x\r\ncontent-length: {}\r\n\r\n", u64::MAX);
    assert_eq!(parse_problem(&transport.exchange(request).await).status, 413);
}

#[tokio::test]
async fn http_1_1_request_needs_one_host() {
    let transport = TestTransport::start();
    for hosts in ["", "host: x\r\nHost: x\r\n"] {
        let request = format!("GET / HTTP/1.1\r\n{hosts}connection: close\r\n\r\n");
        assert_eq!(parse_problem(&transport.exchange(request).await).status, 400, "{hosts:?}");
    }
    let old = transport.exchange("GET / HTTP/1.0\r\n\r\n").await;
    assert!(old.contains(" 200 OK"), "{old}");
}

#[tokio::test]
async fn bounds_size_of_head() {
    let transport = TestTransport::start();
    let request = format!("GET / HTTP/1.1\r\nhost: x\r\nconnection: close\r\nx: {}\r\n\r\n", "y".repeat(70 << 10));
    let problem = parse_problem(&transport.exchange(request).await);
    assert!(problem.status == 431 && problem.detail.contains("65536 bytes"), "{problem:?}");
}
