//! Tests malicious and faulty clients of the daemon: each is refused or disconnected, while another client still gets
//! its responses. Responses to regular clients are tested elsewhere.

use std::io::{IoSlice, Read, Write};
use std::mem::MaybeUninit;
use std::net::Shutdown;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use rustix::fd::AsFd as _;
use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags, sendmsg};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use serde_json::{Value, json};

use super::http::{demand, id_of, submission};
use crate::daemon::{self, Daemon, LISTENS};
use crate::environment::{
    CHANGESET, Repo, TestEnvironment, release, wait_for_attempt_after, wait_for_step, waiting_step,
};
use crate::needs::{Case, Needs, case, dry_case};
use crate::process::Running;
use crate::spec::Spec;

/// Number of connections in the largest crowd.
const CROWD: usize = 10_000;
/// Time limit for an expected event on a busy machine.
const PATIENCE: Duration = Duration::from_secs(60);

pub(super) const CASES: &[Case] = &[
    dry_case("abuse::what_is_no_request_is_refused_or_cut", garbage),
    dry_case("abuse::a_request_that_ends_too_early_is_none", truncated),
    dry_case("abuse::a_body_of_a_gigabyte_is_refused_and_not_kept", gigabyte),
    dry_case("abuse::five_hundred_slow_senders_are_cut", slow_senders),
    case("abuse::readers_that_never_read_are_cut", no_readers),
    dry_case("abuse::ten_thousand_connections_keep_nobody_out", crowd).needs(&[Needs::OpenFiles(CROWD as u64 + 1_000)]),
    dry_case("abuse::without_descriptors_the_idle_make_room", few_descriptors).needs(&[Needs::Program("prlimit")]),
    dry_case("abuse::descriptors_that_come_along_are_not_kept", descriptors),
    dry_case("abuse::json_that_readers_differ_on_is_refused", json_tricks),
    dry_case("abuse::paths_and_ids_lead_nowhere_else", paths),
    case("abuse::a_log_that_nobody_reads_holds_nothing_up", unread_log),
    case("abuse::two_clients_take_turns_in_one_changeset", one_changeset),
    case("abuse::a_run_is_cancelled_in_every_state_and_ends_once", cancelled),
];

/// Runs `abuse` while another client repeatedly requests the daemon's health and must get a response each time.
pub(super) fn meanwhile<T>(env: &TestEnvironment, abuse: impl FnOnce() -> T) -> T {
    struct Over<'a>(&'a AtomicBool);
    impl Drop for Over<'_> {
        fn drop(&mut self) {
            self.0.store(true, Ordering::Relaxed);
        }
    }
    let (over, socket) = (AtomicBool::new(false), env.socket());
    std::thread::scope(|scope| {
        let witness = scope.spawn(|| {
            let mut slowest = Duration::ZERO;
            loop {
                let last = over.load(Ordering::Relaxed);
                let began = Instant::now();
                let answer = daemon::ask(&socket, "GET", "/healthz", None).expect("another client is answered");
                assert_eq!(answer.code, 200, "{answer:?}");
                demand("Health", &answer.json());
                slowest = slowest.max(began.elapsed());
                if last {
                    return slowest;
                }
            }
        });
        let done = {
            let _over = Over(&over);
            abuse()
        };
        let slowest = witness.join().expect("another client is answered");
        assert!(slowest < PATIENCE / 2, "another client waited for {slowest:?}");
        done
    })
}

fn connect(env: &TestEnvironment) -> UnixStream {
    let stream = UnixStream::connect(env.socket()).expect("connects");
    stream.set_read_timeout(Some(PATIENCE)).expect("a timeout");
    stream.set_write_timeout(Some(PATIENCE)).expect("a timeout");
    stream
}

pub(super) fn connect_saying(env: &TestEnvironment, said: &[u8]) -> UnixStream {
    let mut stream = connect(env);
    // Ignore the error: a client that is disconnected while it writes still reads the reason, if there is one.
    let _ = stream.write_all(said);
    stream
}

/// Reads until the other side closes.
pub(super) fn everything(stream: &mut UnixStream) -> String {
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

pub(super) fn exchange(env: &TestEnvironment, said: impl AsRef<[u8]>) -> String {
    everything(&mut connect_saying(env, said.as_ref()))
}

/// Parses the problem document in a response.
#[track_caller]
fn problem(answer: &str) -> Value {
    let (head, body) = answer.split_once("\r\n\r\n").unwrap_or_else(|| panic!("no answer: {answer:?}"));
    let problem: Value = serde_json::from_str(body).unwrap_or_else(|error| panic!("{error}: {answer}"));
    demand("Problem", &problem);
    assert!(head.starts_with(&format!("HTTP/1.1 {} ", problem["status"])), "{answer}");
    assert!(problem["status"].as_u64().is_some_and(|status| (400..500).contains(&status)), "{answer}");
    problem
}

fn kind(problem: &Value) -> &str {
    problem["type"].as_str().and_then(|kind| kind.rsplit(':').next()).unwrap_or_default()
}

fn post(path: &str, body: &str) -> String {
    let length = body.len();
    format!(
        "POST {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Type: application/json\r\n\
         Content-Length: {length}\r\n\r\n{body}"
    )
}

/// Returns the daemon's process id.
pub(super) fn pid(daemon: &Daemon<'_>) -> u64 {
    daemon.get("/healthz")["pid"].as_u64().expect("a number")
}

/// Returns the peak resident set of the daemon, in KiB.
pub(super) fn peak_kib(pid: u64) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).expect("the daemon is there");
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).expect("a peak");
    line.split_whitespace().next().and_then(|kib| kib.parse().ok()).expect("a number")
}

/// Returns the value of a metric from `/metrics`.
pub(super) fn metric(env: &TestEnvironment, name: &str) -> u64 {
    let text = daemon::ask(&env.socket(), "GET", "/metrics", None).expect("an answer").body;
    let value = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' ')?.parse().ok());
    value.unwrap_or(0)
}

fn garbage(env: &TestEnvironment) {
    let daemon = env.daemon();
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
    meanwhile(env, || {
        for said in fixed {
            assert_eq!(kind(&problem(&exchange(env, said))), "invalid-request", "{:?}", String::from_utf8_lossy(said));
        }
        let many = format!("GET / HTTP/1.1\r\n{}\r\n", "a: b\r\n".repeat(5_000));
        assert_eq!(kind(&problem(&exchange(env, many))), "head-too-large");
        // With two contradicting lengths, the request is refused.
        let twice = b"POST /v1/runs HTTP/1.1\r\nTransfer-Encoding: chunked\r\nContent-Length: 5\r\n\r\nx\r\n";
        problem(&exchange(env, twice));
        // Random bytes from a Lehmer generator.
        let mut state: u64 = 42;
        for _ in 0..200 {
            let mut said: Vec<u8> = (0..100)
                .map(|_| {
                    state = state * 48_271 % 0x7fff_ffff;
                    state.to_le_bytes()[1]
                })
                .collect();
            said.extend_from_slice(b"\r\n\r\n");
            let answer = exchange(env, said);
            assert!(answer.is_empty() || answer.starts_with("HTTP/1.1 4"), "{answer}");
        }
    });
    daemon.end().exits(0);
}

fn truncated(env: &TestEnvironment) {
    let daemon = env.daemon();
    let whole = post("/v1/plans", r#"{"repo":"/nonexistent"}"#);
    meanwhile(env, || {
        for end in 0..whole.len() {
            let mut stream = connect_saying(env, &whole.as_bytes()[..end]);
            stream.shutdown(Shutdown::Write).expect("our own");
            let answer = everything(&mut stream);
            assert!(answer.is_empty() || answer.starts_with("HTTP/1.1 4"), "after {end} bytes: {answer}");
        }
        assert_eq!(kind(&problem(&exchange(env, &whole))), "unprocessable");
    });
    daemon.end().exits(0);
}

fn gigabyte(env: &TestEnvironment) {
    let daemon = env.daemon();
    let (pid, part) = (pid(&daemon), vec![b' '; 64 << 10]);
    let before = peak_kib(pid);
    let heads = ["Content-Length: 1073741824", "Transfer-Encoding: chunked"];
    meanwhile(env, || {
        for head in heads {
            let said = format!("POST /v1/runs HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n{head}\r\n\r\n");
            let mut stream = connect_saying(env, said.as_bytes());
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
            assert_eq!(kind(&problem(&everything(&mut stream))), "too-large");
        }
    });
    assert!(peak_kib(pid) < before + (32 << 10), "from {before} to {} KiB", peak_kib(pid));
    daemon.end().exits(0);
}

fn slow_senders(env: &TestEnvironment) {
    env.configure("[daemon]\nrequest_timeout_ms = 1500\n");
    let daemon = env.daemon();
    let body = "Host: x\r\nContent-Type: application/json\r\n";
    let said = [
        (format!("POST /v1/runs HTTP/1.1\r\n{body}Content-Length: 100\r\n\r\n{{"), true),
        (format!("POST /v1/gate HTTP/1.1\r\n{body}Transfer-Encoding: chunked\r\n\r\n1\r\n{{\r\n"), true),
        (format!("POST /v1/plans HTTP/1.1\r\n{body}"), false),
        ("G".to_owned(), false),
        (String::new(), false),
    ];
    meanwhile(env, || {
        let senders: Vec<_> =
            (0..500).map(|n| (connect_saying(env, said[n % 5].0.as_bytes()), said[n % 5].1)).collect();
        for (mut sender, has_body) in senders {
            let answer = everything(&mut sender);
            match has_body {
                true => assert_eq!(kind(&problem(&answer)), "request-timeout"),
                false => assert_eq!(answer, ""),
            }
        }
    });
    daemon.end().exits(0);
}

fn no_readers(env: &TestEnvironment) {
    env.configure("[daemon]\nrequest_timeout_ms = 1500\n");
    let repo = env.repo(&Spec::of_script("seq -f %07.0f 500000"));
    let daemon = env.daemon();
    let (pid, id) = (pid(&daemon), daemon.submit(repo.path()));
    assert_eq!(daemon.finished(&id)["verdict"], "passed");
    let before = peak_kib(pid);
    let ask = format!("GET /v1/runs/{id}/steps/0/stdout HTTP/1.1\r\nHost: x\r\n\r\n").repeat(3);
    let listen = format!("GET /v1/runs/{id}/events HTTP/1.1\r\nHost: x\r\n\r\n").repeat(100);
    meanwhile(env, || {
        let readers: Vec<UnixStream> = (0..200)
            .map(|n| connect_saying(env, if n % 2 == 0 { ask.as_bytes() } else { listen.as_bytes() }))
            .collect();
        let began = Instant::now();
        // The remaining two connections are this client and the one that asks in the meantime.
        while metric(env, "proctor_connections") > 2 {
            assert!(began.elapsed() < PATIENCE, "readers that do not read are still there");
        }
        drop(readers);
    });
    assert!(peak_kib(pid) < before + (160 << 10), "from {before} to {} KiB", peak_kib(pid));
    daemon.end().exits(0);
}

fn crowd(env: &TestEnvironment) {
    let limit = getrlimit(Resource::Nofile);
    setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, maximum: limit.maximum }).expect("up to the maximum");
    env.configure("[daemon]\nrequest_timeout_ms = 120000\n");
    let daemon = env.daemon();
    let (pid, wait) = (pid(&daemon), b"GET /v1/runs/x/events HTTP/1.1\r\nHost:");
    let before = peak_kib(pid);
    meanwhile(env, || {
        let crowd: Vec<UnixStream> = (0..CROWD).map(|n| connect_saying(env, &wait[..n % wait.len()])).collect();
        assert!(metric(env, "proctor_connections") <= 4_096);
        assert!(metric(env, "proctor_connections_refused_total{reason=\"evicted\"}") > CROWD as u64 / 2);
        drop(crowd);
    });
    assert!(peak_kib(pid) < before + (256 << 10), "from {before} to {} KiB", peak_kib(pid));
    daemon.end().exits(0);
}

fn few_descriptors(env: &TestEnvironment) {
    env.configure("[daemon]\nrequest_timeout_ms = 60000\n");
    let limited = ["prlimit", "--nofile=48:48", "--"];
    let mut running = Running::start(env.daemon_through(&limited, &env.socket(), &env.state()));
    running.wait_for_message(LISTENS);
    let daemon = Daemon::of(env, running);
    meanwhile(env, || {
        let held: Vec<UnixStream> = (0..300).map(|_| connect_saying(env, b"GET / HT")).collect();
        // A new client comes after all of them.
        let refused = metric(env, "proctor_connections_refused_total{reason=\"evicted\"}");
        assert!(refused > 0, "nobody made room");
        drop(held);
    });
    daemon.end().exits(0);
}

fn descriptors(env: &TestEnvironment) {
    let daemon = env.daemon();
    let pid = pid(&daemon);
    let open = || std::fs::read_dir(format!("/proc/{pid}/fd")).expect("ours").count();
    let before = open();
    let null = std::fs::File::open("/dev/null").expect("there");
    meanwhile(env, || {
        let mut held: Vec<UnixStream> = Vec::new();
        for n in 0..100 {
            let stream = connect(env);
            let fds = [null.as_fd(); 16];
            let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(16))];
            let mut along = SendAncillaryBuffer::new(&mut space);
            assert!(along.push(SendAncillaryMessage::ScmRights(&fds)));
            // Half of them send a request, half an incomplete one.
            let said: &[u8] = if n % 2 == 0 { b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n" } else { b"GET /" };
            sendmsg(&stream, &[IoSlice::new(said)], &mut along, SendFlags::empty()).expect("sends");
            held.push(stream);
        }
        for stream in held.iter_mut().step_by(2) {
            let mut first = [0; 15];
            stream.read_exact(&mut first).expect("an answer");
            assert_eq!(&first, b"HTTP/1.1 200 OK");
        }
        // Allowed are the connections, the two clients, and the descriptors of a run, but not all 1,600.
        let now = open();
        assert!(now <= before + 110, "{before} descriptors before, {now} now");
    });
    daemon.end().exits(0);
}

fn unread_log(env: &TestEnvironment) {
    env.configure("[daemon.log]\nlevel = 'debug'\n");
    let repo = env.repo(&Spec::of_script("true"));
    let daemon = env.daemon();
    // Nothing reads the log until the end; a pipe holds 64 KiB, and the daemon's buffer a megabyte.
    meanwhile(env, || {
        for _ in 0..12_000 {
            assert_eq!(daemon.ask("OPTIONS", "/healthz", None).code, 204);
        }
    });
    let id = daemon.submit(repo.path());
    let run = meanwhile(env, || daemon.finished(&id));
    assert_eq!(run["verdict"], "passed", "{run:#}");
    daemon.end().exits(0);
}

fn json_tricks(env: &TestEnvironment) {
    let repo = env.repo(&Spec::of_script("true"));
    let daemon = env.daemon();
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
    meanwhile(env, || {
        for body in &refused {
            let shown: String = body.chars().take(80).collect();
            assert_eq!(kind(&problem(&exchange(env, post("/v1/runs", body)))), "invalid-request", "{shown}");
        }
        let bytes =
            [post("/v1/runs", "xxxxxxxxxxx").trim_end_matches('x').as_bytes(), b"{\"repo\":\"\xff\"}"[..11].as_ref()]
                .concat();
        assert_eq!(kind(&problem(&exchange(env, bytes))), "invalid-request");
    });
    assert_eq!(daemon.get("/v1/runs")["runs"], json!([]), "nothing of that was taken on");
    daemon.end().exits(0);
}

fn paths(env: &TestEnvironment) {
    let repo = env.repo(&Spec::of_script("true"));
    let fifo = repo.file("fifo");
    rustix::fs::mknodat(rustix::fs::CWD, &fifo, rustix::fs::FileType::Fifo, 0o600.into(), 0).expect("a FIFO");
    repo.link("link-to-etc", Path::new("/etc"));
    let daemon = env.daemon();
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
        json!({ "repo": env.socket() }),
        json!({ "repo": env.state() }),
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
    meanwhile(env, || {
        for target in targets {
            problem(&exchange(env, format!("GET {target} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")));
        }
        for body in &bodies {
            problem(&exchange(env, post("/v1/runs", &submission(repo.path(), body).to_string())));
        }
        for path in ["/v1/plans", "/v1/gate"] {
            for body in &bodies[..15] {
                let body = json!({ "repo": body["repo"], "profile": "pr" });
                problem(&exchange(env, post(path, &body.to_string())));
            }
        }
    });
    assert_eq!(daemon.get("/v1/runs")["runs"], json!([]), "nothing of that was taken on");
    daemon.end().exits(0);
}

/// Submits a run, and returns its id.
#[track_caller]
pub(super) fn submit(daemon: &Daemon<'_>, repo: &Repo<'_>, more: &Value) -> String {
    let answer = daemon.ask("POST", "/v1/runs", Some(&submission(repo.path(), more)));
    assert_eq!(answer.code, 202, "{answer:?}");
    id_of(&answer.json())
}

/// Returns the events of a run that has ended, and checks that it has one start, one end and no gap.
#[track_caller]
pub(super) fn log(daemon: &Daemon<'_>, id: &str) -> Vec<Value> {
    let events = daemon.get(&format!("/v1/runs/{id}?after=0"))["events"].as_array().expect("events").clone();
    let count = |kind: &str| events.iter().filter(|event| event["event"] == kind).count();
    assert_eq!((count("run_queued"), count("run_finished")), (1, 1), "{events:#?}");
    assert!(events.iter().enumerate().all(|(index, event)| event["seq"] == index + 1), "{events:#?}");
    assert_eq!(events[events.len() - 1]["event"], "run_finished");
    events
}

fn one_changeset(env: &TestEnvironment) {
    let repo = env.repo(&Spec::of_steps([waiting_step(env, "it")]));
    let mut daemon = env.daemon();
    let first = submit(&daemon, &repo, &json!({ "changeset_id": CHANGESET }));
    let step = wait_for_step(env, &mut daemon.running);
    // Another client submits a different run for the changeset.
    let second = submit(&daemon, &repo, &json!({ "changeset_id": CHANGESET, "fail_fast": true }));
    assert_ne!(first, second);
    let state = |id: &str| daemon.get(&format!("/v1/runs/{id}?wait=300ms"))["state"].clone();
    assert_eq!((state(&first), state(&second)), (json!("running"), json!("queued")));
    let one = meanwhile(env, || {
        release(&step);
        daemon.finished(&first)
    });
    release(&wait_for_attempt_after(env, &mut daemon.running, &step));
    let two = daemon.finished(&second);
    log(&daemon, &first);
    log(&daemon, &second);
    assert_eq!((&one["verdict"], &two["verdict"]), (&json!("passed"), &json!("passed")), "{one:#}\n{two:#}");
    assert!(one["finished_at"].as_str() <= two["started_at"].as_str(), "they took turns");
    assert_eq!(repo.last_run()["run_id"], two["id"], "the changeset has the evidence of the last one, whole");
    daemon.end().exits(0);
}

fn cancelled(env: &TestEnvironment) {
    env.configure("[daemon]\nmax_runs = 1\n");
    let repo = env.repo(&Spec::of_steps([waiting_step(env, "it")]));
    let other = env.repo_at("other", &Spec::of_script("true"));
    let mut daemon = env.daemon();
    let running = submit(&daemon, &repo, &json!({}));
    wait_for_step(env, &mut daemon.running);
    let queued = submit(&daemon, &other, &json!({}));
    let socket = env.socket();
    let cancel = |id: &str| daemon::ask(&socket, "DELETE", &format!("/v1/runs/{id}"), None).expect("an answer");

    // Cancelled while it is queued, the run never starts.
    let run = meanwhile(env, || {
        assert_eq!(cancel(&queued).code, 202);
        daemon.finished(&queued)
    });
    assert_eq!((&run["verdict"], &run["exit_code"]), (&json!("inconclusive"), &json!(130)), "{run:#}");
    assert!(log(&daemon, &queued).iter().all(|event| event["event"] != "run_started"));

    // Twenty clients cancel it while it runs.
    meanwhile(env, || {
        std::thread::scope(|scope| {
            let all: Vec<_> = (0..20).map(|_| scope.spawn(|| cancel(&running).code)).collect();
            for one in all {
                let code = one.join().expect("an answer");
                assert!(code == 202 || code == 200, "{code}");
            }
        });
    });
    let run = daemon.finished(&running);
    assert_eq!((&run["verdict"], &run["exit_code"]), (&json!("inconclusive"), &json!(130)), "{run:#}");
    assert!(run["cancelled_by"].is_string(), "{run:#}");
    log(&daemon, &running);

    // Cancelled after its end, the run is unchanged.
    assert_eq!(cancel(&running).code, 200);
    assert_eq!(daemon.get(&format!("/v1/runs/{running}")), run);

    // Cancelled after each of its events.
    meanwhile(env, || {
        for seen in 0..10 {
            let id = submit(&daemon, &other, &json!({}));
            daemon.get(&format!("/v1/runs/{id}?wait=10s&after={seen}"));
            let asked = cancel(&id);
            assert!(asked.code == 202 || asked.code == 200, "{asked:?}");
            let run = daemon.finished(&id);
            let verdict = run["verdict"].as_str().expect("a word");
            assert!(verdict == "passed" || run["exit_code"] == 130, "{run:#}");
            log(&daemon, &id);
        }
    });
    daemon.end().exits(0);
}
