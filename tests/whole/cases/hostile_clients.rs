//! Tests malicious and faulty clients of the daemon: each is refused or disconnected, while another client still gets
//! its responses. Responses to regular clients are tested elsewhere.

mod run_control;

use std::io::{IoSlice, Read, Write};
use std::mem::MaybeUninit;
use std::net::Shutdown;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::Thread;
use std::time::{Duration, Instant};

use rustix::fd::AsFd as _;
use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags, sendmsg};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use serde_json::{Value, json};

use self::run_control::{cancel_in_every_state, two_clients_one_changeset};
use super::http::{assert_matches_schema, run_request, submitted_run_id};
use crate::daemon::{self, READY_MESSAGE, TestDaemon};
use crate::environment::{Repo, TestEnvironment};
use crate::needs::{CaseDefinition, Needs, case, dry_case};
use crate::process::RunningProcess;
use crate::test_spec::TestSpec;

/// Number of connections in the largest crowd.
const CONNECTION_COUNT: usize = 10_000;
/// Time limit for an expected event on a busy machine.
const RESPONSE_TIMEOUT: Duration = Duration::from_secs(60);
/// Pause between two requests of the client that observes the daemon.
const PROBE_INTERVAL: Duration = Duration::from_millis(5);

pub(super) const CASES: &[CaseDefinition] = &[
    dry_case("hostile_clients::malformed_requests_are_refused_or_disconnected", malformed_requests),
    dry_case("hostile_clients::truncated_requests_are_rejected", truncated_requests),
    dry_case("hostile_clients::gigabyte_body_is_refused_and_not_buffered", gigabyte_body),
    dry_case("hostile_clients::five_hundred_slow_senders_are_disconnected", slow_senders),
    case("hostile_clients::clients_that_never_read_are_disconnected", clients_that_never_read),
    dry_case("hostile_clients::ten_thousand_connections_do_not_lock_out_another_client", ten_thousand_connections)
        .needs(&[Needs::OpenFiles(CONNECTION_COUNT as u64 + 1_000)])
        .long(),
    dry_case("hostile_clients::idle_connections_are_closed_when_descriptors_run_out", descriptor_exhaustion)
        .needs(&[Needs::Program("prlimit")]),
    dry_case("hostile_clients::passed_descriptors_are_not_kept", passed_descriptors),
    dry_case("hostile_clients::ambiguous_json_is_refused", ambiguous_json),
    dry_case("hostile_clients::path_traversal_and_invalid_ids_are_refused", path_traversal),
    case("hostile_clients::unread_log_does_not_block_the_daemon", unread_log),
    case("hostile_clients::two_clients_take_turns_in_one_changeset", two_clients_one_changeset),
    case("hostile_clients::run_can_be_cancelled_in_every_state_and_ends_once", cancel_in_every_state),
];

/// Runs `abuse` while another client repeatedly requests the daemon's health and must get a response each time.
pub(super) fn with_health_probe<T>(env: &TestEnvironment, abuse: impl FnOnce() -> T) -> T {
    struct StopProbeOnDrop<'a>(&'a AtomicBool, &'a Thread);
    impl Drop for StopProbeOnDrop<'_> {
        fn drop(&mut self) {
            self.0.store(true, Ordering::Relaxed);
            self.1.unpark();
        }
    }
    let (stop, socket) = (AtomicBool::new(false), env.socket_path());
    std::thread::scope(|scope| {
        let prober = scope.spawn(|| {
            let mut slowest = Duration::ZERO;
            loop {
                let last = stop.load(Ordering::Relaxed);
                let began = Instant::now();
                let answer =
                    daemon::send_request(&socket, "GET", "/healthz", None).expect("another client is answered");
                assert_eq!(answer.status, 200, "{answer:?}");
                assert_matches_schema("Health", &answer.parse_json_body());
                slowest = slowest.max(began.elapsed());
                if last {
                    return slowest;
                }
                // Without a pause, the probe itself takes most of the processor time of the abuse.
                std::thread::park_timeout(PROBE_INTERVAL);
            }
        });
        let result = {
            let _stop_on_drop = StopProbeOnDrop(&stop, prober.thread());
            abuse()
        };
        let slowest = prober.join().expect("another client is answered");
        assert!(slowest < RESPONSE_TIMEOUT / 2, "another client waited for {slowest:?}");
        result
    })
}

fn connect(env: &TestEnvironment) -> UnixStream {
    let stream = UnixStream::connect(env.socket_path()).expect("connects");
    stream.set_read_timeout(Some(RESPONSE_TIMEOUT)).expect("a timeout");
    stream.set_write_timeout(Some(RESPONSE_TIMEOUT)).expect("a timeout");
    stream
}

pub(super) fn connect_and_send(env: &TestEnvironment, request: &[u8]) -> UnixStream {
    let mut stream = connect(env);
    // Ignore the error: a client that is disconnected while it writes still reads the reason, if there is one.
    let _ = stream.write_all(request);
    stream
}

/// Reads until the other side closes.
pub(super) fn read_until_close(stream: &mut UnixStream) -> String {
    let mut bytes = Vec::new();
    let mut part = [0; 16 << 10];
    loop {
        match stream.read(&mut part) {
            Ok(0) => break,
            Ok(count) => bytes.extend_from_slice(&part[..count]),
            Err(error) if error.kind() == std::io::ErrorKind::ConnectionReset => break,
            Err(error) => panic!("the daemon did not close: {error}"),
        }
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

pub(super) fn send_and_read_all(env: &TestEnvironment, request: impl AsRef<[u8]>) -> String {
    read_until_close(&mut connect_and_send(env, request.as_ref()))
}

/// Parses the problem document in a response.
#[track_caller]
fn parse_problem(answer: &str) -> Value {
    let (head, body) = answer.split_once("\r\n\r\n").unwrap_or_else(|| panic!("no answer: {answer:?}"));
    let problem: Value = serde_json::from_str(body).unwrap_or_else(|error| panic!("{error}: {answer}"));
    assert_matches_schema("Problem", &problem);
    assert!(head.starts_with(&format!("HTTP/1.1 {} ", problem["status"])), "{answer}");
    assert!(problem["status"].as_u64().is_some_and(|status| (400..500).contains(&status)), "{answer}");
    problem
}

fn problem_kind(problem: &Value) -> &str {
    problem["type"].as_str().and_then(|kind| kind.rsplit(':').next()).unwrap_or_default()
}

fn post_request(path: &str, body: &str) -> String {
    let length = body.len();
    format!(
        "POST {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Type: application/json\r\n\
         Content-Length: {length}\r\n\r\n{body}"
    )
}

/// Returns the daemon's process id.
pub(super) fn daemon_pid(daemon: &TestDaemon<'_>) -> u64 {
    daemon.get("/healthz")["pid"].as_u64().expect("a number")
}

/// Returns the peak resident set of the daemon, in KiB.
pub(super) fn peak_rss_kib(pid: u64) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).expect("the daemon is there");
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).expect("a peak");
    line.split_whitespace().next().and_then(|kib| kib.parse().ok()).expect("a number")
}

/// Returns the value of a metric from `/metrics`.
pub(super) fn read_metric(env: &TestEnvironment, name: &str) -> u64 {
    let text = daemon::send_request(&env.socket_path(), "GET", "/metrics", None).expect("an answer").body;
    let value = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' ')?.parse().ok());
    value.unwrap_or(0)
}

fn malformed_requests(env: &TestEnvironment) {
    let daemon = env.start_ready_daemon();
    let fixed: [&[u8]; 11] = [
        b"\0\0\0\0\r\n\r\n",
        b"\r\n\r\n\r\n\r\nBREW / HTTP/1.1 x\r\n\r\n",
        b"GET\r\n\r\n",
        b"GET / HTTP/1.1\nHost\n\n",
        b"GET / HTTP/1.1\r\nA B: c\r\n\r\n",
        b"GET / HTTP/1.1\r\nA: b\0c\r\n\r\n",
        b"GET  /  HTTP/1.1\r\n\r\n",
        b"GET /\xff\xfe HTTP/0.9\r\n\r\n",
        b"POST /v1/runs HTTP/1.1\r\nContent-Length: 0x10\r\n\r\n",
        b"POST /v1/runs HTTP/1.1\r\nContent-Length: 99999999999999999999999\r\n\r\n",
        b"POST /v1/runs HTTP/1.1\r\nTransfer-Encoding: gzip\r\n\r\n",
    ];
    with_health_probe(env, || {
        for request in fixed {
            assert_eq!(
                problem_kind(&parse_problem(&send_and_read_all(env, request))),
                "invalid-request",
                "{:?}",
                String::from_utf8_lossy(request)
            );
        }
        let many_headers = format!("GET / HTTP/1.1\r\n{}\r\n", "a: b\r\n".repeat(5_000));
        assert_eq!(problem_kind(&parse_problem(&send_and_read_all(env, many_headers))), "head-too-large");
        // With two contradicting lengths, the request is refused.
        let two_lengths = b"POST /v1/runs HTTP/1.1\r\nTransfer-Encoding: chunked\r\nContent-Length: 5\r\n\r\nx\r\n";
        parse_problem(&send_and_read_all(env, two_lengths));
        // Random bytes from a Lehmer generator.
        let mut state: u64 = 42;
        for _ in 0..200 {
            let mut request: Vec<u8> = (0..100)
                .map(|_| {
                    state = state * 48_271 % 0x7fff_ffff;
                    state.to_le_bytes()[1]
                })
                .collect();
            request.extend_from_slice(b"\r\n\r\n");
            let answer = send_and_read_all(env, request);
            assert!(answer.is_empty() || answer.starts_with("HTTP/1.1 4"), "{answer}");
        }
    });
    daemon.stop().exits(0);
}

fn truncated_requests(env: &TestEnvironment) {
    let daemon = env.start_ready_daemon();
    let whole = post_request("/v1/plans", r#"{"repo":"/nonexistent"}"#);
    with_health_probe(env, || {
        for end in 0..whole.len() {
            let mut stream = connect_and_send(env, &whole.as_bytes()[..end]);
            stream.shutdown(Shutdown::Write).expect("our own");
            let answer = read_until_close(&mut stream);
            assert!(answer.is_empty() || answer.starts_with("HTTP/1.1 4"), "after {end} bytes: {answer}");
        }
        assert_eq!(problem_kind(&parse_problem(&send_and_read_all(env, &whole))), "unprocessable");
    });
    daemon.stop().exits(0);
}

fn gigabyte_body(env: &TestEnvironment) {
    let daemon = env.start_ready_daemon();
    let (pid, part) = (daemon_pid(&daemon), vec![b' '; 64 << 10]);
    let before = peak_rss_kib(pid);
    let heads = ["Content-Length: 1073741824", "Transfer-Encoding: chunked"];
    with_health_probe(env, || {
        for head in heads {
            let request =
                format!("POST /v1/runs HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n{head}\r\n\r\n");
            let mut stream = connect_and_send(env, request.as_bytes());
            let mut sent = 0_u64;
            while sent < 1 << 30 {
                let framed = if head.starts_with('T') { format!("{:x}\r\n", part.len()) } else { String::new() };
                let end: &[u8] = if framed.is_empty() { b"" } else { b"\r\n" };
                if [framed.as_bytes(), &part, end].iter().any(|bytes| stream.write_all(bytes).is_err()) {
                    break;
                }
                sent += part.len() as u64;
            }
            assert!(sent < 16 << 20, "{sent} bytes were taken");
            assert_eq!(problem_kind(&parse_problem(&read_until_close(&mut stream))), "too-large");
        }
    });
    assert!(peak_rss_kib(pid) < before + (32 << 10), "from {before} to {} KiB", peak_rss_kib(pid));
    daemon.stop().exits(0);
}

fn slow_senders(env: &TestEnvironment) {
    env.write_operator_config("[daemon]\nrequest_timeout_ms = 1500\n");
    let daemon = env.start_ready_daemon();
    let body = "Host: x\r\nContent-Type: application/json\r\n";
    let incomplete_requests = [
        (format!("POST /v1/runs HTTP/1.1\r\n{body}Content-Length: 100\r\n\r\n{{"), true),
        (format!("POST /v1/gate HTTP/1.1\r\n{body}Transfer-Encoding: chunked\r\n\r\n1\r\n{{\r\n"), true),
        (format!("POST /v1/plans HTTP/1.1\r\n{body}"), false),
        ("G".to_owned(), false),
        (String::new(), false),
    ];
    with_health_probe(env, || {
        let senders: Vec<_> = (0..500)
            .map(|n| (connect_and_send(env, incomplete_requests[n % 5].0.as_bytes()), incomplete_requests[n % 5].1))
            .collect();
        for (mut sender, has_body) in senders {
            let answer = read_until_close(&mut sender);
            match has_body {
                true => assert_eq!(problem_kind(&parse_problem(&answer)), "request-timeout"),
                false => assert_eq!(answer, ""),
            }
        }
    });
    daemon.stop().exits(0);
}

fn clients_that_never_read(env: &TestEnvironment) {
    env.write_operator_config("[daemon]\nrequest_timeout_ms = 1500\n");
    let repo = env.repo(&TestSpec::from_script("seq -f %07.0f 500000"));
    let daemon = env.start_ready_daemon();
    let (pid, id) = (daemon_pid(&daemon), daemon.submit(repo.path()));
    assert_eq!(daemon.wait_for_run(&id)["verdict"], "passed");
    let before = peak_rss_kib(pid);
    let output_requests = format!("GET /v1/runs/{id}/steps/0/stdout HTTP/1.1\r\nHost: x\r\n\r\n").repeat(3);
    let event_requests = format!("GET /v1/runs/{id}/events HTTP/1.1\r\nHost: x\r\n\r\n").repeat(100);
    with_health_probe(env, || {
        let readers: Vec<UnixStream> = (0..200)
            .map(|n| {
                connect_and_send(env, if n % 2 == 0 { output_requests.as_bytes() } else { event_requests.as_bytes() })
            })
            .collect();
        let began = Instant::now();
        // The remaining two connections belong to this client and to the client that sends requests in the meantime.
        while read_metric(env, "proctor_connections") > 2 {
            assert!(began.elapsed() < RESPONSE_TIMEOUT, "readers that do not read are still there");
        }
        drop(readers);
    });
    assert!(peak_rss_kib(pid) < before + (160 << 10), "from {before} to {} KiB", peak_rss_kib(pid));
    daemon.stop().exits(0);
}

fn ten_thousand_connections(env: &TestEnvironment) {
    let limit = getrlimit(Resource::Nofile);
    setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, maximum: limit.maximum }).expect("up to the maximum");
    env.write_operator_config("[daemon]\nrequest_timeout_ms = 120000\n");
    let daemon = env.start_ready_daemon();
    let (pid, wait) = (daemon_pid(&daemon), b"GET /v1/runs/x/events HTTP/1.1\r\nHost:");
    let before = peak_rss_kib(pid);
    with_health_probe(env, || {
        let connections: Vec<UnixStream> =
            (0..CONNECTION_COUNT).map(|n| connect_and_send(env, &wait[..n % wait.len()])).collect();
        assert!(read_metric(env, "proctor_connections") <= 4_096);
        assert!(
            read_metric(env, "proctor_connections_refused_total{reason=\"evicted\"}") > CONNECTION_COUNT as u64 / 2
        );
        drop(connections);
    });
    assert!(peak_rss_kib(pid) < before + (256 << 10), "from {before} to {} KiB", peak_rss_kib(pid));
    daemon.stop().exits(0);
}

fn descriptor_exhaustion(env: &TestEnvironment) {
    env.write_operator_config("[daemon]\nrequest_timeout_ms = 60000\n");
    let descriptor_limit = ["prlimit", "--nofile=48:48", "--"];
    let mut running =
        RunningProcess::start(env.daemon_command_through(&descriptor_limit, &env.socket_path(), &env.state_dir()));
    running.wait_for_stderr(READY_MESSAGE);
    let daemon = TestDaemon::from_process(env, running);
    with_health_probe(env, || {
        let connections: Vec<UnixStream> = (0..300).map(|_| connect_and_send(env, b"GET / HT")).collect();
        // A new client connects after all of them.
        let evicted = read_metric(env, "proctor_connections_refused_total{reason=\"evicted\"}");
        assert!(evicted > 0, "nobody made room");
        drop(connections);
    });
    daemon.stop().exits(0);
}

fn passed_descriptors(env: &TestEnvironment) {
    let daemon = env.start_ready_daemon();
    let pid = daemon_pid(&daemon);
    let count_descriptors = || std::fs::read_dir(format!("/proc/{pid}/fd")).expect("ours").count();
    let before = count_descriptors();
    let null = std::fs::File::open("/dev/null").expect("there");
    with_health_probe(env, || {
        let mut connections: Vec<UnixStream> = Vec::new();
        for n in 0..100 {
            let stream = connect(env);
            let fds = [null.as_fd(); 16];
            let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(16))];
            let mut ancillary = SendAncillaryBuffer::new(&mut space);
            assert!(ancillary.push(SendAncillaryMessage::ScmRights(&fds)));
            // Half of them send a request, half an incomplete one.
            let request: &[u8] = if n % 2 == 0 { b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n" } else { b"GET /" };
            sendmsg(&stream, &[IoSlice::new(request)], &mut ancillary, SendFlags::empty()).expect("sends");
            connections.push(stream);
        }
        for stream in connections.iter_mut().step_by(2) {
            let mut first = [0; 15];
            stream.read_exact(&mut first).expect("an answer");
            assert_eq!(&first, b"HTTP/1.1 200 OK");
        }
        // Allowed are the connections, the two clients, and the descriptors of a run, but not all 1,600.
        let now = count_descriptors();
        assert!(now <= before + 110, "{before} descriptors before, {now} now");
    });
    daemon.stop().exits(0);
}

fn unread_log(env: &TestEnvironment) {
    env.write_operator_config("[daemon.log]\nlevel = 'debug'\n");
    let repo = env.repo(&TestSpec::from_script("true"));
    let daemon = env.start_ready_daemon();
    // Nothing reads the log until the end; a pipe holds 64 KiB, and the daemon's buffer a megabyte. Each line of the log
    // contains the method.
    let long_method = "X".repeat(8_000);
    with_health_probe(env, || {
        for _ in 0..250 {
            assert_eq!(daemon.request(&long_method, "/healthz", None).status, 405);
        }
    });
    let id = daemon.submit(repo.path());
    let run = with_health_probe(env, || daemon.wait_for_run(&id));
    assert_eq!(run["verdict"], "passed", "{run:#}");
    daemon.stop().exits(0);
}

fn ambiguous_json(env: &TestEnvironment) {
    let repo = env.repo(&TestSpec::from_script("true"));
    let daemon = env.start_ready_daemon();
    let place = serde_json::to_string(repo.path()).expect("text");
    let refused = [
        format!(r#"{{"repo":{place},"repo":{place},"profile":"pr"}}"#),
        format!(r#"{{"repo":{place},"profile":"pr","r\u0065po":{place}}}"#),
        format!(r#"{{"repo":{place},"profile":"pr","env":{{"A":"1","A":"2"}}}}"#),
        format!(r#"{{"repo":{place},"profile":"pr","env":{}1{}}}"#, "{\"a\":".repeat(10_000), "}".repeat(10_000)),
        "[".repeat(10_000),
        format!("{{\"repo\":{}", "[".repeat(500_000)),
        format!(r#"{{"repo":{place},"profile":"pr"}} {{}}"#),
        format!(r#"{{"repo":{place},"profile":"p\u0000r"}}"#),
        format!(r#"{{"repo":{place},"profile":"pr","max_tier":1e0}}"#),
        format!(r#"{{"repo":{place},"profile":"pr","max_tier":2.0000000000000000000000001}}"#),
        format!(r#"{{"repo":{place},"profile":"pr","fail_fast":"true"}}"#),
        format!("\u{feff}{{\"repo\":{place},\"profile\":\"pr\"}}"),
        format!("// a comment\n{{\"repo\":{place},\"profile\":\"pr\"}}"),
        format!(r#"{{'repo':{place},"profile":"pr"}}"#),
        format!(r#"{{"repo":{place},"profile":"pr",}}"#),
        r#"{"repo":"\ud800","profile":"pr"}"#.to_owned(),
        "NaN".to_owned(),
    ];
    with_health_probe(env, || {
        for body in &refused {
            let body_start: String = body.chars().take(80).collect();
            assert_eq!(
                problem_kind(&parse_problem(&send_and_read_all(env, post_request("/v1/runs", body)))),
                "invalid-request",
                "{body_start}"
            );
        }
        let bytes = [
            post_request("/v1/runs", "xxxxxxxxxxx").trim_end_matches('x').as_bytes(),
            b"{\"repo\":\"\xff\"}"[..11].as_ref(),
        ]
        .concat();
        assert_eq!(problem_kind(&parse_problem(&send_and_read_all(env, bytes))), "invalid-request");
    });
    assert_eq!(daemon.get("/v1/runs")["runs"], json!([]), "nothing of that was taken on");
    daemon.stop().exits(0);
}

fn path_traversal(env: &TestEnvironment) {
    let repo = env.repo(&TestSpec::from_script("true"));
    let fifo = repo.file("fifo");
    rustix::fs::mknodat(rustix::fs::CWD, &fifo, rustix::fs::FileType::Fifo, 0o600.into(), 0).expect("a FIFO");
    repo.link("link-to-etc", Path::new("/etc"));
    let daemon = env.start_ready_daemon();
    let long = format!("/v1/runs/{}", "x".repeat(10_000));
    let targets = [
        "/v1/runs/..%2f..%2fetc%2fpasswd",
        "/v1/runs/%2e%2e/steps/0/stdout",
        "/v1/runs/../../etc/passwd",
        "/../healthz",
        "/v1/runs/%00",
        "/v1/runs/a%0d%0aX-Y:%20z",
        "/v1/runs/%ff%fe",
        "/v1/runs/%",
        "/v1/runs/%zz",
        "/v1/runs/a%2fpatch",
        "/v1/runs/x/steps/%2e%2e/stdout",
        "/v1/runs/x/steps/0/..%2fstdout",
        "/v1/runs/x/steps/99999999999999999999/stdout",
        "/v1/runs/-x",
        "/v1/runs/.",
        "/v1/runs//events",
        "/v1/runs?state=%00",
        "/v1/runs?changeset_id=..%2f..",
        "/v1/runs?cursor=%00",
        "/v1/doctor?repo=..",
        "/v1/doctor?repo=%2f%00",
        &long,
    ];
    let bodies = [
        json!({ "repo": "" }),
        json!({ "repo": "." }),
        json!({ "repo": "../" }),
        json!({ "repo": "/" }),
        json!({ "repo": "/a\u{0}b" }),
        json!({ "repo": "/a\nb" }),
        json!({ "repo": "/dev/null" }),
        json!({ "repo": "/proc/self/fd" }),
        json!({ "repo": fifo }),
        json!({ "repo": env.socket_path() }),
        json!({ "repo": env.state_dir() }),
        json!({ "repo": env.root() }),
        json!({ "repo": repo.file("link-to-etc") }),
        json!({ "repo": repo.file("src") }),
        json!({ "repo": "/".repeat(5_000) }),
        json!({ "changeset_id": ".." }),
        json!({ "changeset_id": "a/b" }),
        json!({ "changeset_id": "/etc" }),
        json!({ "changeset_id": "a\u{0}" }),
        json!({ "changeset_id": "a\n" }),
        json!({ "changeset_id": "" }),
        json!({ "rev": "--upload-pack=x" }),
        json!({ "rev": "HEAD\u{0}" }),
        json!({ "rev": "" }),
        json!({ "rev": "HEAD:README.md" }),
        json!({ "rev": "../../etc" }),
        json!({ "profile": "../x" }),
        json!({ "env": { "A=B": "c" } }),
        json!({ "env": { "A": "\u{0}" } }),
        json!({ "env": { "": "x" } }),
    ];
    with_health_probe(env, || {
        for target in targets {
            parse_problem(&send_and_read_all(
                env,
                format!("GET {target} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"),
            ));
        }
        for body in &bodies {
            parse_problem(&send_and_read_all(
                env,
                post_request("/v1/runs", &run_request(repo.path(), body).to_string()),
            ));
        }
        for path in ["/v1/plans", "/v1/gate"] {
            for body in &bodies[..15] {
                let body = json!({ "repo": body["repo"], "profile": "pr" });
                parse_problem(&send_and_read_all(env, post_request(path, &body.to_string())));
            }
        }
    });
    assert_eq!(daemon.get("/v1/runs")["runs"], json!([]), "nothing of that was taken on");
    daemon.stop().exits(0);
}

/// Submits a run, and returns its id.
#[track_caller]
pub(super) fn submit_run(daemon: &TestDaemon<'_>, repo: &Repo<'_>, more: &Value) -> String {
    let answer = daemon.request("POST", "/v1/runs", Some(&run_request(repo.path(), more)));
    assert_eq!(answer.status, 202, "{answer:?}");
    submitted_run_id(&answer.parse_json_body())
}

/// Returns the events of a run that has ended, and checks that it has one start, one end and no gap.
#[track_caller]
pub(super) fn complete_log(daemon: &TestDaemon<'_>, id: &str) -> Vec<Value> {
    let events = daemon.get(&format!("/v1/runs/{id}?after=0"))["events"].as_array().expect("events").clone();
    let count = |kind: &str| events.iter().filter(|event| event["event"] == kind).count();
    assert_eq!((count("run_queued"), count("run_finished")), (1, 1), "{events:#?}");
    assert!(events.iter().enumerate().all(|(index, event)| event["seq"] == index + 1), "{events:#?}");
    assert_eq!(events[events.len() - 1]["event"], "run_finished");
    events
}
