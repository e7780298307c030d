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
use proctor_core::spec::Operator;
use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags, sendmsg};
use tempfile::TempDir;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::UnixStream;
use tokio::sync::watch;
use tokio::task::{JoinHandle, JoinSet};
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;

use super::connections::Connections;
use super::room::MAX_BODIES;
use super::{MAX_BODY, MAX_HEAD, answer, body};
use crate::metrics::{Metrics, Sampled, SqlCounts, TextFormat};
use crate::settings::{Admitted, Settings};

/// Timeout of each test, sufficient on a busy machine.
const WATCHDOG: Duration = Duration::from_secs(60);
/// Request timeout of the transport in these tests.
const PATIENCE: Duration = Duration::from_millis(300);

/// A running transport with routes that imitate handlers.
struct Transport {
    listeners: watch::Sender<Arc<UnixListener>>,
    place: TempDir,
    metrics: Metrics,
    stop: CancellationToken,
    task: JoinHandle<()>,
    _settings: watch::Sender<Arc<Settings>>,
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
        match body::json::<serde_json::Value>(&headers, body, MAX_BODY).await {
            Ok(value) => answer::content(answer::JSON, value.to_string()),
            Err(problem) => answer::problem(&problem),
        }
    }
    Router::new()
        .route("/", get(async || "here"))
        .route("/never", get(never))
        .route("/bug", get(bug))
        .route("/large", get(large))
        .route("/echo", post(echo))
}

impl Transport {
    fn start() -> Self {
        Self::with(|_| {})
    }

    fn with(change: impl FnOnce(&mut Settings)) -> Self {
        let own = rustix::process::geteuid().as_raw();
        let mut operator = Operator::default();
        operator.daemon.request_timeout = PATIENCE;
        let mut settings = Settings { operator, config: None, admitted: Admitted::new(own, []) };
        change(&mut settings);
        let place = tempfile::tempdir().expect("a directory");
        let listener = UnixListener::bind(place.path().join("socket")).expect("a socket");
        let (metrics, stop) = (Metrics::new(0), CancellationToken::new());
        let (sender, settings) = watch::channel(Arc::new(settings));
        let connections = Connections::new(routes(), settings, stop.clone(), metrics.clone());
        listener.set_nonblocking(true).expect("does not block");
        let (listeners, listener) = watch::channel(Arc::new(listener));
        let task = tokio::spawn(async move {
            connections.accept(listener).await.expect("a listener");
        });
        Self { place, metrics, stop, task, listeners, _settings: sender }
    }

    fn socket(&self) -> std::path::PathBuf {
        self.place.path().join("socket")
    }

    async fn connect(&self) -> UnixStream {
        UnixStream::connect(self.socket()).await.expect("connects")
    }

    /// Sends bytes, and reads until the transport closes the connection.
    async fn exchange(&self, said: impl AsRef<[u8]>) -> String {
        let mut stream = self.connect().await;
        let _ = stream.write_all(said.as_ref()).await;
        everything(&mut stream).await
    }

    async fn is_here(&self) {
        let answer = self.exchange("GET / HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n").await;
        assert!(answer.starts_with("HTTP/1.1 200 OK\r\n") && answer.ends_with("\r\n\r\nhere"), "{answer}");
    }

    async fn until_open(&self, count: u32) {
        let mut connections = self.metrics.connections();
        let reached = connections.wait_for(|connections| connections.open == count);
        timeout(WATCHDOG, reached).await.expect("in time").expect("the metrics are there");
    }
}

async fn everything(stream: &mut UnixStream) -> String {
    let mut bytes = Vec::new();
    // After a reset, the bytes received before it are still returned.
    let _ = timeout(WATCHDOG, stream.read_to_end(&mut bytes)).await.expect("it is closed in time");
    String::from_utf8_lossy(&bytes).into_owned()
}

/// Parses the problem in a response, and checks its content type and status.
fn problem(answer: &str) -> Problem {
    let (head, body) = answer.split_once("\r\n\r\n").unwrap_or_else(|| panic!("no answer: {answer:?}"));
    assert!(head.contains("content-type: application/problem+json"), "{head}");
    let problem: Problem = serde_json::from_str(body).unwrap_or_else(|error| panic!("{error}: {body}"));
    assert!(head.starts_with(&format!("HTTP/1.1 {} ", problem.status)), "{head}");
    problem
}

#[tokio::test]
async fn a_request_that_cannot_be_read_is_a_problem_and_the_connection_ends() {
    let transport = Transport::start();
    for said in [
        "BREW\r\n\r\n",
        "GET / HTTP/9.9\r\n\r\n",
        "GET / HTTP/1.1\r\nno colon\r\n\r\n",
        "GET /\x01 HTTP/1.1\r\n\r\n",
        "POST / HTTP/1.1\r\ncontent-length: -1\r\n\r\n",
        "POST / HTTP/1.1\r\ncontent-length: 1\r\ncontent-length: 2\r\n\r\n",
        "\x16\x03\x01\x02\x00\x01\x00\x01\r\n\r\n",
    ] {
        let answer = transport.exchange(said).await;
        assert_eq!(problem(&answer).kind, ProblemType::InvalidRequest, "{said:?}");
    }
    // The HTTP/2 preface gets no answer, because an HTTP/1.1 response would be invalid there.
    assert_eq!(transport.exchange("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n").await, "");
    // The preceding request is answered normally.
    let answer = transport.exchange("GET / HTTP/1.1\r\nhost: x\r\n\r\nBREW\r\n\r\n").await;
    assert!(answer.contains("\r\n\r\nhereHTTP/1.1 400 "), "{answer}");
    transport.until_open(0).await;
}

#[tokio::test]
async fn a_head_without_an_end_is_cut_and_one_that_stays_away_is_not_waited_for() {
    let transport = Transport::start();
    let large = format!("GET / HTTP/1.1\r\nx: {}", "y".repeat(2 * MAX_HEAD));
    assert_eq!(problem(&transport.exchange(large).await).kind, ProblemType::HeadTooLarge);
    let long = format!("GET /{} HTTP/1.1\r\n\r\n", "y".repeat(2 * MAX_HEAD));
    assert_eq!(problem(&transport.exchange(long).await).kind, ProblemType::HeadTooLarge);
    for said in ["", "G", "GET / HTTP/1.1\r\nhost: x\r\n"] {
        assert_eq!(transport.exchange(said).await, "", "{said:?}");
    }
    transport.until_open(0).await;
}

fn post_echo(head: &str, body: &str) -> String {
    format!("POST /echo HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\n{head}\r\n\r\n{body}")
}

#[tokio::test]
async fn a_body_has_a_size_a_framing_and_a_time() {
    let transport = Transport::start();
    let kind = async |said: String| problem(&transport.exchange(said).await).kind;
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
async fn the_bodies_of_one_caller_have_a_bound_together() {
    let transport = Transport::with(|settings| settings.operator.daemon.request_timeout = WATCHDOG);
    let head = post_echo(&format!("content-length: {MAX_BODY}\r\nconnection: close"), "");
    let mut senders = JoinSet::new();
    for _ in 0..=MAX_BODIES / MAX_BODY {
        let (mut stream, almost) = (transport.connect_saying(&head).await, vec![b' '; MAX_BODY - 1]);
        senders.spawn(async move {
            // The transport stops reading a refused body.
            let _ = stream.write_all(&almost).await;
            everything(&mut stream).await
        });
    }
    // All bodies but one fit; which one is refused is not defined.
    let refused = timeout(WATCHDOG, senders.join_next()).await.expect("in time").expect("one").expect("no panic");
    assert_eq!(problem(&refused).kind, ProblemType::TooManyRequests);
    // A request without a body needs no memory, and the aborted bodies have released theirs.
    transport.is_here().await;
    senders.shutdown().await;
    transport.until_open(0).await;
    let large = format!("{}{{}}", " ".repeat(MAX_BODY - 2));
    assert!(transport.exchange(format!("{head}{large}")).await.ends_with("\r\n\r\n{}"));
}

#[tokio::test]
async fn a_reader_that_does_not_read_is_left() {
    let transport = Transport::start();
    let mut streams = Vec::new();
    for _ in 0..8 {
        let mut stream = transport.connect().await;
        stream.write_all(b"GET /large HTTP/1.1\r\nhost: x\r\n\r\n").await.expect("writes");
        streams.push(stream);
    }
    transport.is_here().await;
    transport.until_open(0).await;
}

#[tokio::test]
async fn a_newcomer_is_answered_however_many_are_there() {
    let transport = Transport::with(|settings| {
        settings.operator.daemon.max_connections = 3;
        settings.operator.daemon.request_timeout = WATCHDOG;
    });
    let asking = transport.connect_saying("GET /never HTTP/1.1\r\nhost: x\r\n\r\n").await;
    let mut oldest = transport.connect_saying("GET / HT").await;
    let newer = transport.connect_saying("").await;
    transport.until_open(3).await;
    transport.is_here().await;
    // The oldest idle connection was closed, and no other.
    assert_eq!(everything(&mut oldest).await, "");
    transport.until_open(2).await;
    drop((asking, newer));

    // If all connections are being answered, the new one is still accepted.
    let mut asking = Vec::new();
    for _ in 0..3 {
        asking.push(transport.connect_saying("GET /never HTTP/1.1\r\nhost: x\r\n\r\n").await);
    }
    transport.until_open(3).await;
    transport.is_here().await;
    transport.until_open(2).await;
    assert!(transport.metrics_say("proctor_connections_refused_total{reason=\"evicted\"} 2"));
}

#[tokio::test]
async fn who_has_just_come_is_not_the_one_to_make_room() {
    let transport = Transport::with(|settings| {
        settings.operator.daemon.max_connections = 3;
        settings.operator.daemon.request_timeout = WATCHDOG;
    });
    let mut late = transport.connect_saying("").await;
    let mut idle = transport.connect_saying("GET / HT").await;
    let waiting = transport.connect_saying("GET / HT").await;
    transport.until_open(3).await;
    // Another connection, accepted before the first one has sent its request.
    let more = transport.connect_saying("GET / HT").await;
    for _ in 0..100 {
        tokio::task::yield_now().await;
    }
    late.write_all(b"GET / HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n").await.expect("it is still there");
    assert!(everything(&mut late).await.ends_with("\r\n\r\nhere"), "it was answered");
    transport.until_open(3).await;

    // They can be closed after the grace period.
    transport.is_here().await;
    assert_eq!(everything(&mut idle).await, "");
    drop((waiting, more));
}

impl Transport {
    async fn connect_saying(&self, said: &str) -> UnixStream {
        let mut stream = self.connect().await;
        stream.write_all(said.as_bytes()).await.expect("writes");
        stream
    }

    fn metrics_say(&self, line: &str) -> bool {
        let sampled = Sampled {
            status: proctor_core::api::HealthStatus::Ok,
            runs: proctor_core::api::RunCounts::default(),
            sql: SqlCounts::default(),
            is_ready: true,
            state_free_bytes: None,
        };
        let text = self.metrics.text(sampled, TextFormat::OpenMetrics);
        text.lines().any(|found| found == line)
    }
}

#[tokio::test]
async fn a_user_who_is_not_listed_is_told_so_before_a_byte_is_read() {
    let own = rustix::process::geteuid().as_raw();
    let transport = Transport::with(|settings| settings.admitted = Admitted::new(own + 1, [own + 2]));
    let mut stream = transport.connect().await;
    let answer = everything(&mut stream).await;
    assert_eq!(problem(&answer).kind, ProblemType::Forbidden);
    assert!(transport.metrics_say("proctor_connections_refused_total{reason=\"foreign\"} 1"));
}

#[tokio::test]
async fn a_panic_ends_its_request_and_nothing_else() {
    let transport = Transport::start();
    let answer = transport
        .exchange("GET /bug HTTP/1.1\r\nhost: x\r\n\r\nGET / HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n")
        .await;
    let (bug, rest) = answer.split_once("}HTTP/1.1 200 OK").unwrap_or_else(|| panic!("{answer}"));
    assert_eq!(problem(&format!("{bug}}}")).kind, ProblemType::Internal);
    assert!(rest.ends_with("here"), "{answer}");
}

#[tokio::test]
async fn the_end_waits_for_nobody_who_asks_for_nothing() {
    let transport = Transport::with(|settings| settings.operator.daemon.request_timeout = WATCHDOG);
    let mut idle = transport.connect_saying("GET / HTTP/1.1\r\nhost: x\r\n\r\n").await;
    let mut first = [0; 9];
    idle.read_exact(&mut first).await.expect("an answer");
    let half = transport.connect_saying("GET / HT").await;
    transport.until_open(2).await;
    transport.stop.cancel();
    timeout(WATCHDOG, transport.task).await.expect("in time").expect("it did not panic");
    assert!(everything(&mut idle).await.ends_with("here"));
    drop(half);
}

/// A descriptor received with a message is closed, which the other end of the pipe observes.
#[tokio::test(flavor = "multi_thread")]
async fn descriptors_that_come_along_are_dropped() {
    let transport = Transport::start();
    let (read, write) = std::io::pipe().expect("a pipe");
    send_with(&transport.socket(), &write);
    drop(write);
    let mut read = read;
    let ended = tokio::task::spawn_blocking(move || read.read_to_end(&mut Vec::new()));
    assert_eq!(timeout(WATCHDOG, ended).await.expect("in time").expect("no panic").expect("reads"), 0);
    transport.is_here().await;
}

fn send_with(socket: &Path, attached: &std::io::PipeWriter) {
    let stream = std::os::unix::net::UnixStream::connect(socket).expect("connects");
    let fds = [attached.as_fd()];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut ancillary = SendAncillaryBuffer::new(&mut space);
    assert!(ancillary.push(SendAncillaryMessage::ScmRights(&fds)));
    let said = b"GET / HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n";
    let sent = sendmsg(&stream, &[IoSlice::new(said)], &mut ancillary, SendFlags::empty()).expect("sends");
    assert_eq!(sent, said.len());
    let mut answer = String::new();
    (&stream).read_to_string(&mut answer).expect("an answer");
    assert!(answer.ends_with("here"), "{answer}");
}

#[tokio::test]
async fn accepts_from_a_new_listener_and_keeps_its_connections() {
    let transport = Transport::start();
    let mut before = transport.connect().await;
    transport.is_here().await;
    std::fs::remove_file(transport.socket()).expect("removed");
    let listener = UnixListener::bind(transport.socket()).expect("bound");
    listener.set_nonblocking(true).expect("does not block");
    transport.listeners.send_replace(Arc::new(listener));
    transport.is_here().await;
    before.write_all(b"GET / HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n").await.expect("sent");
    assert!(everything(&mut before).await.ends_with("\r\n\r\nhere"));
}

/// Some clients send the whole request before they read. The answer must not be lost with the rest of the body.
#[tokio::test]
async fn early_answers_reach_a_client_that_sends_its_body_first() {
    let transport = Transport::with(|settings| settings.operator.daemon.request_timeout = WATCHDOG);
    let body = vec![b'x'; 300 << 10];
    for (path, status) in [("/never-there", "404"), ("/", "405"), ("/here", "404")] {
        let mut stream = transport.connect().await;
        let head = format!("POST {path} HTTP/1.1\r\nhost: x\r\ncontent-length: {}\r\n\r\n", body.len());
        stream.write_all(head.as_bytes()).await.expect("sent");
        timeout(WATCHDOG, stream.write_all(&body)).await.expect("in time").expect("the whole body is taken");
        stream.write_all(b"GET / HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n").await.expect("sent");
        let answers = everything(&mut stream).await;
        assert!(answers.starts_with(&format!("HTTP/1.1 {status} ")), "{answers}");
        assert!(answers.ends_with("\r\n\r\nhere"), "the connection stays in use: {answers}");
    }
}

#[tokio::test]
async fn an_unreadable_head_is_answered_though_its_body_comes() {
    let transport = Transport::start();
    let mut stream = transport.connect().await;
    let fields = "x-y: z\r\n".repeat(101);
    let head = format!("POST / HTTP/1.1\r\nhost: x\r\n{fields}content-length: 307200\r\n\r\n");
    stream.write_all(head.as_bytes()).await.expect("sent");
    timeout(WATCHDOG, stream.write_all(&vec![b'x'; 300 << 10])).await.expect("in time").expect("taken");
    let problem = problem(&everything(&mut stream).await);
    assert!(problem.status == 431 && problem.detail.contains("100 fields"), "{problem:?}");
}

#[tokio::test]
async fn a_body_that_no_client_may_send_is_not_called_a_large_head() {
    let transport = Transport::start();
    let said = format!("POST / HTTP/1.1\r\nhost: x\r\ncontent-length: {}\r\n\r\n", u64::MAX);
    assert_eq!(problem(&transport.exchange(said).await).status, 413);
}

#[tokio::test]
async fn a_request_of_http_1_1_names_one_host() {
    let transport = Transport::start();
    for hosts in ["", "host: x\r\nHost: x\r\n"] {
        let said = format!("GET / HTTP/1.1\r\n{hosts}connection: close\r\n\r\n");
        assert_eq!(problem(&transport.exchange(said).await).status, 400, "{hosts:?}");
    }
    let old = transport.exchange("GET / HTTP/1.0\r\n\r\n").await;
    assert!(old.contains(" 200 OK"), "{old}");
}

#[tokio::test]
async fn a_head_has_a_bound_that_holds() {
    let transport = Transport::start();
    let said = format!("GET / HTTP/1.1\r\nhost: x\r\nconnection: close\r\nx: {}\r\n\r\n", "y".repeat(70 << 10));
    let problem = problem(&transport.exchange(said).await);
    assert!(problem.status == 431 && problem.detail.contains("65536 bytes"), "{problem:?}");
}
