//! Tests the daemon's HTTP API with curl, an independent client. Each JSON response is validated against the
//! checked-in OpenAPI document. Malicious clients are tested elsewhere.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::LazyLock;

use jsonschema::Validator;
use serde_json::{Value, json};

use crate::environment::{
    CHANGESET, Repo, TestEnvironment, release, wait_for_attempt_after, wait_for_step, waiting_step,
};
use crate::needs::{Case, Needs, case, dry_case};
use crate::process::{Finished, Running};
use crate::spec::{Spec, Step};
use crate::{machine, schemas};

/// Requirements of cases without runs.
const NEEDS_CURL: &[Needs] = &[Needs::Program("curl")];
/// Requirements of cases with runs.
const NEEDS_RUNS: &[Needs] = &[Needs::Sandbox, Needs::Program("curl")];

pub(super) const CASES: &[Case] = &[
    case("http::a_run_is_asked_for_waited_for_read_and_cancelled", whole_way).needs(NEEDS_RUNS),
    case("http::as_an_ordinary_user", whole_way).needs(NEEDS_RUNS).unprivileged("http::as_an_ordinary_user"),
    case("http::events_go_on_behind_the_last_one_that_came", events).needs(NEEDS_RUNS),
    case("http::a_long_poll_is_answered_when_there_is_news", long_poll).needs(NEEDS_RUNS),
    case("http::a_long_output_is_read_whole_and_in_ranges", ranges).needs(NEEDS_RUNS),
    case("http::a_report_is_read_and_only_one_that_was_written", reports).needs(NEEDS_RUNS),
    case("http::the_same_key_is_the_same_run", idempotency).needs(NEEDS_RUNS),
    case("http::the_commands_of_the_readme_do_what_they_say", readme).needs(NEEDS_RUNS),
    case("http::runs_are_listed_page_by_page", pages).needs(NEEDS_RUNS),
    case("http::what_is_asked_without_a_run", questions).needs(NEEDS_RUNS),
    dry_case("http::every_error_is_a_problem", problems).needs(NEEDS_CURL),
    dry_case("http::root_is_no_user_of_another_users_daemon", stranger)
        .needs(&[Needs::Root, Needs::Program("curl")])
        .unprivileged("http::root_is_no_user_of_another_users_daemon"),
    dry_case("http::early_refusals_reach_a_client_that_sends_first", early_refusals)
        .needs(&[Needs::Program("python3")]),
    dry_case("http::head_and_options", head_and_options).needs(NEEDS_CURL),
    dry_case("http::the_document_is_the_one_that_is_checked_in", document).needs(NEEDS_CURL),
];

/// The OpenAPI document.
static DOCUMENT: LazyLock<Value> = LazyLock::new(|| {
    let path = schemas::project().join("schemas/openapi.json");
    serde_json::from_slice(&std::fs::read(&path).expect("`make schemas` writes it")).expect("JSON")
});

/// Asserts that a value is valid under the document's schema `name`.
#[track_caller]
pub(super) fn demand(name: &str, value: &Value) {
    static VALIDATORS: LazyLock<BTreeMap<String, Validator>> = LazyLock::new(|| {
        let names = DOCUMENT["components"]["schemas"].as_object().expect("schemas").keys();
        let compiled = |name: &String| {
            let reference = format!("#/components/schemas/{name}");
            let schema = json!({ "$ref": reference, "components": DOCUMENT["components"] });
            (name.clone(), jsonschema::draft202012::new(&schema).expect("a schema"))
        };
        names.map(compiled).collect()
    });
    let validator = VALIDATORS.get(name).unwrap_or_else(|| panic!("no schema {name}"));
    let errors: Vec<String> = validator.iter_errors(value).map(|e| format!("{}: {e}", e.instance_path())).collect();
    assert!(errors.is_empty(), "no {name}: {errors:#?}\n{value:#}");
}

/// A response to curl.
#[derive(Debug)]
pub(super) struct Reply {
    pub(super) code: u16,
    head: String,
    pub(super) body: String,
}

impl Reply {
    pub(super) fn header(&self, name: &str) -> Option<&str> {
        let lines = self.head.lines().filter_map(|line| line.split_once(": "));
        lines.filter(|(found, _)| found.eq_ignore_ascii_case(name)).map(|(_, value)| value).next()
    }

    #[track_caller]
    pub(super) fn json(&self) -> Value {
        serde_json::from_str(&self.body).unwrap_or_else(|error| panic!("{error}: {self:#?}"))
    }

    /// Asserts the status.
    #[track_caller]
    pub(super) fn is(self, code: u16) -> Self {
        assert_eq!(self.code, code, "{self:#?}");
        self
    }

    /// Asserts a problem document of this kind, with its status.
    #[track_caller]
    pub(super) fn refuses(self, code: u16, kind: &str) -> Self {
        let reply = self.is(code);
        assert_eq!(reply.header("content-type"), Some("application/problem+json"), "{reply:#?}");
        let problem = reply.json();
        demand("Problem", &problem);
        assert_eq!(problem["type"], format!("urn:proctor:problem:{kind}"), "{reply:#?}");
        assert_eq!(problem["status"], code, "{reply:#?}");
        reply
    }

    /// Asserts JSON that is valid under the schema `name`.
    #[track_caller]
    pub(super) fn of(self, name: &str) -> Value {
        assert_eq!(self.header("content-type"), Some("application/json"), "{self:#?}");
        let value = self.json();
        demand(name, &value);
        value
    }
}

/// Runs curl; the last argument is the path.
pub(super) fn curl(env: &TestEnvironment, arguments: &[&str]) -> Reply {
    let (path, options) = arguments.split_last().expect("a path");
    reply(&start_curl(env, options, path).wait().exits(0))
}

/// Parses the output of a finished curl.
pub(super) fn reply(finished: &Finished) -> Reply {
    let (head, body) = finished.stdout.split_once("\r\n\r\n").unwrap_or_else(|| panic!("no answer: {finished}"));
    let code = head.split(' ').nth(1).and_then(|code| code.parse().ok()).unwrap_or_else(|| panic!("{finished}"));
    Reply { code, head: head.to_owned(), body: body.to_owned() }
}

/// Starts curl.
pub(super) fn start_curl(env: &TestEnvironment, options: &[&str], path: &str) -> Running {
    let mut command = env.program_of_actor("curl");
    command.args(["-sSi", "--max-time", "110", "--path-as-is", "--globoff", "--unix-socket"]).arg(env.socket());
    command.args(options).arg(format!("http://localhost{path}"));
    Running::start(command)
}

/// Submits a run of `pr`; `more` is merged into the request.
#[track_caller]
pub(super) fn submit(env: &TestEnvironment, repo: &Repo<'_>, more: &Value) -> Reply {
    let body = submission(repo.path(), more).to_string();
    curl(env, &["--json", &body, "/v1/runs"])
}

pub(super) fn submission(repo: &Path, more: &Value) -> Value {
    let mut body = json!({ "repo": repo, "profile": "pr", "reuse": "never" });
    for (name, value) in more.as_object().expect("an object") {
        body[name] = value.clone();
    }
    body
}

/// Returns the id of the run in a response.
pub(super) fn id_of(submitted: &Value) -> String {
    submitted["run"]["id"].as_str().expect("the document says so").to_owned()
}

/// Submits a run, and waits for its end.
#[track_caller]
pub(super) fn finished(env: &TestEnvironment, repo: &Repo<'_>, more: &Value) -> Value {
    let id = id_of(&submit(env, repo, more).is(202).of("Submitted"));
    ended(env, &id)
}

#[track_caller]
pub(super) fn ended(env: &TestEnvironment, id: &str) -> Value {
    let run = curl(env, &[&format!("/v1/runs/{id}?wait=55s")]).is(200).of("Watched");
    assert_eq!(run["state"], "finished", "{run:#}");
    run
}

fn whole_way(env: &TestEnvironment) {
    let repo = env.repo(&Spec::of_steps([Step::sh("say", "echo hello; echo oops >&2"), waiting_step(env, "wait")]));
    let mut daemon = env.daemon();
    let submitted = submit(env, &repo, &json!({ "changeset_id": CHANGESET })).is(202);
    let id = id_of(&submitted.json());
    assert_eq!(submitted.header("location"), Some(format!("/v1/runs/{id}").as_str()));
    assert_eq!(submitted.of("Submitted")["how"], "queued");

    let step = wait_for_step(env, &mut daemon.running);
    let run = curl(env, &[&format!("/v1/runs/{id}")]).is(200).of("Watched");
    assert_eq!((&run["state"], &run["verdict"]), (&json!("running"), &Value::Null), "{run:#}");
    release(&step);
    let run = ended(env, &id);
    assert_eq!((&run["verdict"], &run["exit_code"]), (&json!("passed"), &json!(0)), "{run:#}");
    assert_eq!(repo.last_run()["run_id"], json!(id));
    let said = |path: &str| curl(env, &[&format!("/v1/runs/{id}/steps/0/{path}")]).is(200);
    assert_eq!((said("stdout").body.as_str(), said("stderr").body.as_str()), ("hello\n", "oops\n"));
    assert_eq!(said("stdout").header("content-type"), Some("text/plain; charset=utf-8"));

    let id = id_of(&submit(env, &repo, &json!({})).is(202).of("Submitted"));
    wait_for_attempt_after(env, &mut daemon.running, &step);
    let cancelled = curl(env, &["-X", "DELETE", &format!("/v1/runs/{id}")]);
    assert!(matches!(cancelled.code, 202), "{cancelled:#?}");
    cancelled.of("RunView");
    let run = ended(env, &id);
    assert_eq!((&run["verdict"], &run["exit_code"]), (&json!("inconclusive"), &json!(130)), "{run:#}");
    assert_eq!(
        curl(env, &["-X", "DELETE", &format!("/v1/runs/{id}")]).is(200).of("RunView")["verdict"],
        "inconclusive"
    );
    daemon.end().exits(0);
}

/// Parses the events of a stream with their numbers.
fn streamed(body: &str) -> Vec<(u64, Value)> {
    let frames = body.split("\n\n").filter(|frame| frame.starts_with("id: "));
    let event = |frame: &str| {
        let (id, data) = frame.strip_prefix("id: ")?.split_once("\ndata: ")?;
        Some((id.parse().ok()?, serde_json::from_str(data).ok()?))
    };
    frames.map(|frame| event(frame).unwrap_or_else(|| panic!("no event: {frame:?}"))).collect()
}

fn events(env: &TestEnvironment) {
    let repo = env.repo(&Spec::of_steps([waiting_step(env, "wait")]));
    let mut daemon = env.daemon();
    let id = id_of(&submit(env, &repo, &json!({})).is(202).of("Submitted"));
    let step = wait_for_step(env, &mut daemon.running);
    // One reader follows the run from the start.
    let path = format!("/v1/runs/{id}/events");
    let following = start_curl(env, &["-N"], &path);
    release(&step);
    let whole = following.wait().exits(0).stdout;
    assert!(whole.contains("content-type: text/event-stream"), "{whole}");
    let all = streamed(whole.split_once("\r\n\r\n").expect("a head").1);
    let numbers: Vec<u64> = all.iter().map(|(number, _)| *number).collect();
    assert_eq!(numbers, (1..=all.len() as u64).collect::<Vec<_>>());
    for (number, event) in &all {
        demand("LoggedEvent", event);
        assert_eq!(event["seq"], *number);
    }
    assert_eq!(all.last().expect("events").1["event"], "run_finished");
    // Another reader resumes after each event, in both ways; after the last event nothing follows.
    for last in 0..all.len() {
        let said = format!("Last-Event-ID: {last}");
        let rest = streamed(&curl(env, &["-H", &said, &format!("{path}?after=0")]).is(200).body);
        assert_eq!(rest, all[last..], "behind {last}");
    }
    let rest = streamed(&curl(env, &[&format!("{path}?after=2")]).is(200).body);
    assert_eq!(rest, all[2..]);
    assert_eq!(curl(env, &["-H", &format!("Last-Event-ID: {}", all.len()), &path]).is(204).body, "");
    curl(env, &["-H", "Last-Event-ID: x", &path]).refuses(400, "invalid-request");
    daemon.end().exits(0);
}

fn long_poll(env: &TestEnvironment) {
    let repo = env.repo(&Spec::of_steps([waiting_step(env, "wait")]));
    let mut daemon = env.daemon();
    let id = id_of(&submit(env, &repo, &json!({})).is(202).of("Submitted"));
    let step = wait_for_step(env, &mut daemon.running);
    let path = format!("/v1/runs/{id}");
    // The wait times out while the run continues.
    let run = curl(env, &[&format!("{path}?wait=50ms")]).is(200).of("Watched");
    assert_eq!((&run["state"], run.get("events")), (&json!("running"), None));
    let known = run["seq"].as_u64().expect("a number");
    // Earlier events are returned at once, without duplicates.
    let run = curl(env, &[&format!("{path}?wait=55s&after=1")]).is(200).of("Watched");
    let numbers: Vec<u64> = seqs(&run);
    assert_eq!(numbers, (2..=known).collect::<Vec<_>>());
    let waiting: Vec<Running> =
        (0..20).map(|_| start_curl(env, &[], &format!("{path}?wait=55s&after={known}"))).collect();
    let ends: Vec<Running> = (0..20).map(|_| start_curl(env, &[], &format!("{path}?wait=55s"))).collect();
    release(&step);
    for waiting in waiting {
        let told = waiting.wait().exits(0).stdout;
        let run: Value = serde_json::from_str(told.split_once("\r\n\r\n").expect("a head").1).expect("JSON");
        demand("Watched", &run);
        assert_eq!(seqs(&run)[0], known + 1, "{run:#}");
    }
    for end in ends {
        end.wait().exits(0).says(&["\"state\":\"finished\"", "\"verdict\":\"passed\""]);
    }
    daemon.end().exits(0);
}

fn seqs(watched: &Value) -> Vec<u64> {
    let events = watched["events"].as_array().unwrap_or_else(|| panic!("no events: {watched:#}"));
    events.iter().map(|event| event["seq"].as_u64().expect("a number")).collect()
}

/// Number of lines in the long output, of eight bytes each.
const LINES: usize = 200_000;

fn ranges(env: &TestEnvironment) {
    let script = format!("seq -f %07.0f {LINES}; printf 'a\\377b' >&2");
    let repo = env.repo(&Spec::of_script(&script));
    let daemon = env.daemon();
    let id = finished(env, &repo, &json!({}))["id"].as_str().expect("an id").to_owned();
    let whole: String = (1..=LINES).map(|line| format!("{line:07}\n")).collect();
    let path = format!("/v1/runs/{id}/steps/0/stdout");
    let all = curl(env, &[&path]).is(200);
    assert_eq!(all.header("content-length"), Some(whole.len().to_string().as_str()));
    assert!(all.body == whole, "the whole output");
    for (range, part) in
        [("0-6", 0..7), ("8-1000007", 8..1_000_008), ("1599992-", 1_599_992..1_600_000), ("-8", 1_599_992..1_600_000)]
    {
        let reply = curl(env, &["-r", range, &path]).is(206);
        let said = format!("bytes {}-{}/{}", part.start, part.end - 1, whole.len());
        assert_eq!(reply.header("content-range"), Some(said.as_str()));
        assert!(reply.body == whole[part], "{range}");
    }
    let reply = curl(env, &[&format!("{path}?offset=800000&limit=8")]).is(206);
    assert_eq!(
        (reply.body.as_str(), reply.header("content-range")),
        ("0100001\n", Some("bytes 800000-800007/1600000"))
    );
    let reply = curl(env, &[&format!("{path}?offset=1600000")]).is(200);
    assert_eq!((reply.body.as_str(), reply.header("content-range")), ("", Some("bytes */1600000")));
    let reply = curl(env, &["-r", "1600000-", &path]).refuses(416, "range-not-satisfiable");
    assert_eq!(reply.header("content-range"), Some("bytes */1600000"));
    // Several ranges are ignored, as RFC 9110 permits.
    assert_eq!(curl(env, &["-r", "0-1,4-5", "-I", &path]).is(200).header("content-length"), Some("1600000"));
    let bytes = curl(env, &[&format!("/v1/runs/{id}/steps/0/stderr")]).is(200);
    assert_eq!(bytes.header("content-type"), Some("application/octet-stream"));
    assert_eq!(bytes.header("content-length"), Some("3"));
    for bad in
        ["steps/1/stdout", "steps/x/stdout", "steps/-1/stdout", "checks/0/stdout", "steps/0/stdin", "jobs/0/stdout"]
    {
        curl(env, &[&format!("/v1/runs/{id}/{bad}")]).refuses(404, "not-found");
    }
    for bad in ["offset=-1", "limit=0", "offset=1x", "length=1"] {
        curl(env, &[&format!("{path}?{bad}")]).refuses(400, "invalid-request");
    }
    let reply = curl(env, &[&format!("{path}?offset=1600001")]).refuses(416, "range-not-satisfiable");
    assert_eq!(reply.header("content-range"), Some("bytes */1600000"));
    curl(env, &["-r", "0-1", &format!("{path}?offset=1")]).refuses(400, "invalid-request");
    curl(env, &["/v1/runs?repo=relative"]).refuses(400, "invalid-request");
    daemon.end().exits(0);
}

/// Sends bodies of 300 KB and 2 MB with Python's `http.client`, which reads the response only after it has sent
/// everything.
const SENDS_FIRST: &str = r#"
import http.client, socket, sys
def ask(path, size, status, **headers):
    connection = http.client.HTTPConnection("localhost", timeout=60)
    connection.sock = socket.socket(socket.AF_UNIX)
    connection.sock.connect(sys.argv[1])
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    connection.request("POST", path, b"x" * size, named)
    answer = connection.getresponse()
    assert (answer.status, b"urn:proctor:problem" in answer.read()) == (status, True), (path, answer.status)
json = "application/json"
for _ in range(20):
    ask("/v1/runs", 300_000, 400, Content_Type=json, Idempotency_Key="two words")
    ask("/v1/nothing", 300_000, 404, Content_Type=json)
    ask("/healthz", 300_000, 405, Content_Type=json)
    ask("/v1/runs", 300_000, 415, Content_Type="text/plain")
    ask("/v1/runs", 2_000_000, 413, Content_Type=json)
    ask("/v1/runs", 300_000, 431, **{f"x{n}": "y" for n in range(101)})
"#;

fn early_refusals(env: &TestEnvironment) {
    let daemon = env.daemon();
    let mut client = machine::command("python3");
    client.args(["-c", SENDS_FIRST]).arg(env.socket());
    Running::start(client).wait().exits(0);
    daemon.end().exits(0);
}

fn reports(env: &TestEnvironment) {
    let report = "reports: { junit: target/junit.xml, sarif: target/r.sarif }";
    let script = "mkdir -p target; printf '<testsuite/>' > target/junit.xml";
    let repo = env.repo(&Spec::of_steps([Step::sh("it", script).with(report), Step::sh("other", "true")]));
    let daemon = env.daemon();
    let run = finished(env, &repo, &json!({}));
    let path = format!("/v1/runs/{}/steps", run["id"].as_str().expect("an id"));
    let states: Vec<&str> = run["steps"][0]["found_reports"]
        .as_array()
        .expect("a list")
        .iter()
        .map(|report| report["state"].as_str().expect("a word"))
        .collect();
    assert_eq!((states, run["steps"][1].get("found_reports")), (vec!["read", "missing"], None));
    assert_eq!(curl(env, &[&format!("{path}/0/reports/junit")]).is(200).body, "<testsuite/>");
    assert_eq!(curl(env, &["-r", "1-4", &format!("{path}/0/reports/junit")]).is(206).body, "test");
    for bad in
        ["0/reports/sarif", "1/reports/junit", "2/reports/junit", "x/reports/junit", "0/reports/html", "0/reports"]
    {
        curl(env, &[&format!("{path}/{bad}")]).refuses(404, "not-found");
    }
    let told = curl(env, &[&format!("{path}/0/reports/sarif")]).body;
    assert!(told.contains("did not write its report `target/r.sarif`"), "{told}");
    daemon.end().exits(0);
}

fn idempotency(env: &TestEnvironment) {
    let repo = env.repo(&Spec::of_script("true"));
    let daemon = env.daemon();
    let ask = |key: &str, more: &Value| {
        let (body, key) = (submission(repo.path(), more).to_string(), format!("Idempotency-Key: {key}"));
        curl(env, &["-H", &key, "--json", &body, "/v1/runs"])
    };
    let first = id_of(&ask("one", &json!({})).is(202).of("Submitted"));
    ended(env, &first);
    let again = ask("one", &json!({})).is(200).of("Submitted");
    assert_eq!((id_of(&again), &again["how"]), (first.clone(), &json!("repeated")));
    let other = id_of(&ask("two", &json!({})).is(202).of("Submitted"));
    assert_ne!(other, first);
    ended(env, &other);
    ask("one", &json!({ "fail_fast": true })).refuses(409, "conflict");
    for bad in ["", "a b", &"x".repeat(256), "\u{e9}"] {
        let reply = ask(bad, &json!({}));
        // curl omits a header without a value.
        if !bad.is_empty() {
            reply.refuses(400, "invalid-request");
        }
    }
    daemon.end().exits(0);
    let daemon = env.daemon();
    assert_eq!(id_of(&ask("one", &json!({})).is(200).of("Submitted")), first, "a key outlives the daemon");
    daemon.end().exits(0);
}

fn pages(env: &TestEnvironment) {
    let repo = env.repo(&Spec::of_script("true"));
    let other = env.repo_at("other", &Spec::of_script("exit 1"));
    let daemon = env.daemon();
    let mut ids: Vec<String> = Vec::new();
    for _ in 0..5 {
        ids.push(finished(env, &repo, &json!({}))["id"].as_str().expect("an id").to_owned());
    }
    let failed = finished(env, &other, &json!({ "changeset_id": CHANGESET }))["id"].clone();
    ids.reverse();
    let filter = format!("repo={}&limit=2", repo.path().canonicalize().expect("there").display());
    let mut seen: Vec<String> = Vec::new();
    let mut cursor = String::new();
    for _ in 0..3 {
        let page = curl(env, &[&format!("/v1/runs?{filter}{cursor}")]).is(200).of("RunPage");
        seen.extend(
            page["runs"].as_array().expect("runs").iter().map(|run| run["id"].as_str().expect("an id").to_owned()),
        );
        let Some(next) = page["next_cursor"].as_str() else { break };
        cursor = format!("&cursor={next}");
    }
    assert_eq!(seen, ids);
    for filter in ["verdict=failed", &format!("changeset_id={CHANGESET}"), "state=finished&limit=1"] {
        let page = curl(env, &[&format!("/v1/runs?{filter}")]).is(200).of("RunPage");
        assert_eq!(page["runs"].as_array().map(Vec::len), Some(1), "{filter}: {page:#}");
        assert_eq!(page["runs"][0]["id"], failed, "{filter}");
    }
    let none = curl(env, &["/v1/runs?profile=other"]).is(200).of("RunPage");
    assert_eq!((none["runs"].as_array().map(Vec::len), &none["next_cursor"]), (Some(0), &Value::Null));
    for bad in [
        "limit=0",
        "limit=201",
        "limit=x",
        "state=done",
        "verdict=ok",
        "changeset_id=../x",
        "cursor=x",
        "page=2",
        "limit=1&limit=1",
    ] {
        curl(env, &[&format!("/v1/runs?{bad}")]).refuses(400, "invalid-request");
    }
    daemon.end().exits(0);
}

fn questions(env: &TestEnvironment) {
    let repo = env.repo(&Spec::of_script("true"));
    let daemon = env.daemon();
    let of_repo = json!({ "repo": repo.path() }).to_string();
    let asks = json!({ "repo": repo.path(), "profile": "pr" }).to_string();
    let plan = curl(env, &["--json", &of_repo, "/v1/plans"]).is(200).of("PlanAnswer");
    assert_eq!((&plan["profiles"], &plan["plan"]), (&json!(["pr"]), &Value::Null));
    let plan = curl(env, &["--json", &asks, "/v1/plans"]).is(200).of("PlanAnswer");
    assert_eq!(plan["plan"]["skills"][0]["name"], "verify.it", "{plan:#}");
    assert_eq!(curl(env, &["--json", &asks, "/v1/gate"]).is(200).of("GateAnswer")["pass"], false);
    assert_eq!(finished(env, &repo, &json!({}))["verdict"], "passed");
    assert_eq!(curl(env, &["--json", &asks, "/v1/gate"]).is(200).of("GateAnswer")["pass"], true);
    let verified = curl(env, &["--json", &asks, "/v1/runs"]).is(200).of("Submitted");
    assert_eq!(verified["how"], "verified", "the tree has been verified, and that is an answer");
    let doctor = curl(env, &[&format!("/v1/doctor?repo={}", repo.path().display())]).is(200).of("DoctorAnswer");
    assert_eq!(doctor["findings"], json!([]), "{doctor:#}");
    curl(env, &["/healthz"]).is(200).of("Health");
    let metrics = curl(env, &["/metrics"]).is(200);
    assert!(
        metrics.body.contains("proctor_http_requests_total{route=\"/v1/gate\",method=\"POST\",code=\"200\"} 2"),
        "{}",
        metrics.body
    );
    repo.write("spec/verification.yaml", "version: 1\nprofilse: {}\n");
    let problem = curl(env, &["--json", &of_repo, "/v1/plans"]).refuses(422, "invalid-spec").json();
    assert!(problem["spec"]["diagnostics"][0]["message"].is_string(), "{problem:#}");
    submit(env, &repo, &json!({})).refuses(422, "invalid-spec");
    let no_patch = "/v1/runs/20260101T000000Z-00000000/patch";
    curl(env, &[no_patch]).refuses(404, "not-found");
    daemon.end().exits(0);
}

fn readme(env: &TestEnvironment) {
    let text = std::fs::read_to_string(schemas::project().join("README.md")).expect("there");
    let block = text.split("```sh\n").find(|block| block.contains("--unix-socket")).expect("the commands of curl");
    let commands = block.split("```").next().and_then(|block| block.split_once("R=http")).expect("where runs are").1;
    let repo = env.repo(&Spec::of_script("echo hello"));
    let daemon = env.daemon();
    let mut shell = env.program_of_actor("sh");
    shell.current_dir(repo.path()).env("S", env.socket()).args(["-euc", &format!("R=http{commands}")]);
    let said = Running::start(shell).wait().exits(0).says(&["\"verdict\":\"passed\"", "}hello\n"]).stdout;
    assert_eq!(said.matches("\"state\":\"finished\"").count(), 2, "{said}");
    daemon.end().exits(0);
}

fn problems(env: &TestEnvironment) {
    let repo = env.repo(&Spec::of_script("true"));
    let daemon = env.daemon();
    let body = submission(repo.path(), &json!({})).to_string();
    for path in ["/", "/v1", "/v1/runs/", "/v2/runs", "/healthz/", "/v1/runs/x/y", "//healthz", "/v1/sql/ask"] {
        curl(env, &[path]).refuses(404, "not-found");
    }
    for (method, path) in
        [("PUT", "/v1/runs"), ("POST", "/healthz"), ("GET", "/v1/plans"), ("TRACE", "/v1/runs"), ("BREW", "/v1/gate")]
    {
        let reply = curl(env, &["-X", method, path]).refuses(405, "method-not-allowed");
        assert!(reply.header("allow").is_some_and(|methods| !methods.is_empty()), "{reply:#?}");
    }
    let sent =
        |kind: &str, body: &str| curl(env, &["-H", &format!("Content-Type: {kind}"), "--data-raw", body, "/v1/runs"]);
    for kind in
        ["application/x-www-form-urlencoded", "text/plain", "application/xml", "application/json; charset=latin1", ""]
    {
        sent(kind, &body).refuses(415, "unsupported-media-type");
    }
    let encoded = ["-H", "Content-Encoding: gzip", "--json", &body, "/v1/runs"];
    curl(env, &encoded).refuses(415, "unsupported-media-type");
    for bad in [
        "",
        "nul",
        "[]",
        "{}",
        "{\"repo\":\"/r\"}",
        "{\"repo\":1,\"profile\":\"pr\"}",
        "{\"repo\":\"/r\",\"profile\":\"\"}",
    ] {
        sent("application/json", bad).refuses(400, "invalid-request");
    }
    submit(env, &repo, &json!({ "unknown": 1 })).refuses(400, "invalid-request");
    submit(env, &repo, &json!({ "max_tier": 9 })).refuses(400, "invalid-request");
    submit(env, &repo, &json!({ "profile": "nightly" })).is(422);
    submit(env, &repo, &json!({ "repo": "relative" })).refuses(400, "invalid-request");
    submit(env, &repo, &json!({ "repo": "/nonexistent/repo" })).refuses(422, "unprocessable");
    submit(env, &repo, &json!({ "rev": "no-such-branch" })).refuses(422, "unprocessable");
    for path in ["/v1/runs/20260101T000000Z-00000000", "/v1/runs/x", "/v1/runs/x/events", "/v1/runs/x/steps/0/stdout"] {
        curl(env, &[path]).refuses(404, "not-found");
    }
    curl(env, &["-X", "DELETE", "/v1/runs/x"]).refuses(404, "not-found");
    for bad in ["wait=soon", "wait=-1s", "wait=", "after=-1", "after=x", "wiat=1s", "wait=1s&wait=2s"] {
        let path = format!("/v1/runs/20260101T000000Z-00000000?{bad}");
        curl(env, &[&path]).refuses(400, "invalid-request");
    }
    curl(env, &["/v1/doctor"]).refuses(400, "invalid-request");
    daemon.end().exits(0);
}

fn stranger(env: &TestEnvironment) {
    let daemon = env.daemon();
    curl(env, &["/healthz"]).is(200).of("Health");
    let mut command = machine::command("curl");
    command.args(["-sSi", "--max-time", "20", "--unix-socket"]).arg(env.socket()).arg("http://localhost/healthz");
    let refused = Running::start(command).wait().exits(0);
    let (head, body) = refused.stdout.split_once("\r\n\r\n").expect("an answer");
    assert!(head.starts_with("HTTP/1.1 403 ") && body.contains("urn:proctor:problem:forbidden"), "{refused}");
    daemon.end().exits(0);
}

fn head_and_options(env: &TestEnvironment) {
    let daemon = env.daemon();
    let head = curl(env, &["-I", "/openapi.json"]).is(200);
    let get = curl(env, &["/openapi.json"]).is(200);
    assert_eq!(head.header("content-length"), get.header("content-length"));
    assert_eq!(head.body, "");
    curl(env, &["-I", "/v1/runs/x"]).is(404);
    for (path, methods) in [("/v1/runs", "POST,GET,HEAD"), ("/v1/runs/x", "GET,HEAD,DELETE"), ("/v1/gate", "POST")] {
        let reply = curl(env, &["-X", "OPTIONS", path]).is(204);
        assert_eq!(reply.header("allow"), Some(methods), "{path}");
    }
    curl(env, &["-X", "OPTIONS", "--request-target", "*", "/"]).is(204);
    for header in ["x-content-type-options", "cache-control"] {
        assert!(get.header(header).is_some(), "{header}: {get:#?}");
    }
    daemon.end().exits(0);
}

fn document(env: &TestEnvironment) {
    let daemon = env.daemon();
    let served = curl(env, &["/openapi.json"]).is(200).json();
    assert!(served == *DOCUMENT, "run `make schemas`");
    daemon.end().exits(0);
}
