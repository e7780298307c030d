//! Tests the daemon's HTTP API with curl, an independent client. Each JSON response is validated against the
//! checked-in OpenAPI document. Malicious clients are tested elsewhere.

mod run_events;

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::LazyLock;

use jsonschema::Validator;
use serde_json::{Value, json};

use self::run_events::{event_stream_resumes, long_poll_returns_new_events};
use crate::environment::{
    CHANGESET, Repo, TestEnvironment, release_step, wait_for_attempt_after, wait_for_step, waiting_step,
};
use crate::needs::{CaseDefinition, Needs, case, dry_case};
use crate::process::{FinishedProcess, RunningProcess};
use crate::test_spec::{TestSpec, TestStep};
use crate::{machine, schemas};

/// Requirements of cases without runs.
const NEEDS_CURL: &[Needs] = &[Needs::Program("curl")];
/// Requirements of cases with runs.
const NEEDS_RUNS: &[Needs] = &[Needs::Sandbox, Needs::Program("curl")];

pub(super) const CASES: &[CaseDefinition] = &[
    case("http::run_is_submitted_awaited_read_and_cancelled", run_lifecycle).needs(NEEDS_RUNS),
    case("http::as_an_ordinary_user", run_lifecycle).needs(NEEDS_RUNS).unprivileged("http::as_an_ordinary_user"),
    case("http::event_stream_resumes_after_the_last_received_event", event_stream_resumes).needs(NEEDS_RUNS),
    case("http::long_poll_returns_when_there_are_new_events", long_poll_returns_new_events).needs(NEEDS_RUNS),
    case("http::long_output_is_served_completely_and_in_ranges", output_ranges).needs(NEEDS_RUNS),
    case("http::only_written_reports_are_served", written_reports_are_served).needs(NEEDS_RUNS),
    case("http::idempotency_key_returns_the_same_run", idempotency_key_repeats_run).needs(NEEDS_RUNS),
    case("http::commands_of_the_readme_work", readme_commands_work).needs(NEEDS_RUNS),
    case("http::runs_are_listed_in_pages", lists_runs_in_pages).needs(NEEDS_RUNS),
    case("http::queries_without_a_run_are_answered", queries_start_no_run).needs(NEEDS_RUNS),
    dry_case("http::every_error_is_a_problem_document", errors_are_problem_documents).needs(NEEDS_CURL),
    dry_case("http::root_cannot_use_another_users_daemon", root_is_refused_by_users_daemon)
        .needs(&[Needs::Root, Needs::Program("curl")])
        .unprivileged("http::root_cannot_use_another_users_daemon"),
    dry_case("http::early_refusals_reach_a_client_that_sends_first", early_refusals_reach_client)
        .needs(&[Needs::Program("python3")]),
    dry_case("http::head_and_options_are_supported", supports_head_and_options).needs(NEEDS_CURL),
    dry_case("http::served_openapi_document_matches_the_checked_in_one", serves_checked_in_document).needs(NEEDS_CURL),
];

/// The OpenAPI document.
static OPENAPI_DOCUMENT: LazyLock<Value> = LazyLock::new(|| {
    let path = schemas::workspace_root().join("schemas/openapi.json");
    serde_json::from_slice(&std::fs::read(&path).expect("`make schemas` writes it")).expect("JSON")
});

/// Asserts that a value is valid under the document's schema `name`.
#[track_caller]
pub(super) fn assert_matches_schema(name: &str, value: &Value) {
    static VALIDATORS: LazyLock<BTreeMap<String, Validator>> = LazyLock::new(|| {
        let names = OPENAPI_DOCUMENT["components"]["schemas"].as_object().expect("schemas").keys();
        let compiled = |name: &String| {
            let reference = format!("#/components/schemas/{name}");
            let schema = json!({ "$ref": reference, "components": OPENAPI_DOCUMENT["components"] });
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
pub(super) struct CurlResponse {
    pub(super) code: u16,
    head: String,
    pub(super) body: String,
}

impl CurlResponse {
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
    pub(super) fn assert_status(self, code: u16) -> Self {
        assert_eq!(self.code, code, "{self:#?}");
        self
    }

    /// Asserts a problem document of this kind, with its status.
    #[track_caller]
    pub(super) fn assert_problem(self, code: u16, kind: &str) -> Self {
        let reply = self.assert_status(code);
        assert_eq!(reply.header("content-type"), Some("application/problem+json"), "{reply:#?}");
        let problem = reply.json();
        assert_matches_schema("Problem", &problem);
        assert_eq!(problem["type"], format!("urn:proctor:problem:{kind}"), "{reply:#?}");
        assert_eq!(problem["status"], code, "{reply:#?}");
        reply
    }

    /// Asserts JSON that is valid under the schema `name`.
    #[track_caller]
    pub(super) fn json_of_schema(self, name: &str) -> Value {
        assert_eq!(self.header("content-type"), Some("application/json"), "{self:#?}");
        let value = self.json();
        assert_matches_schema(name, &value);
        value
    }
}

/// Runs curl; the last argument is the path.
pub(super) fn curl(env: &TestEnvironment, arguments: &[&str]) -> CurlResponse {
    let (path, options) = arguments.split_last().expect("a path");
    parse_response(&start_curl(env, options, path).wait().exits(0))
}

/// Parses the output of a finished curl.
pub(super) fn parse_response(finished: &FinishedProcess) -> CurlResponse {
    let (head, body) = finished.stdout.split_once("\r\n\r\n").unwrap_or_else(|| panic!("no answer: {finished}"));
    let code = head.split(' ').nth(1).and_then(|code| code.parse().ok()).unwrap_or_else(|| panic!("{finished}"));
    CurlResponse { code, head: head.to_owned(), body: body.to_owned() }
}

/// Starts curl.
pub(super) fn start_curl(env: &TestEnvironment, options: &[&str], path: &str) -> RunningProcess {
    let mut command = env.system_command_as_actor("curl");
    command.args(["-sSi", "--max-time", "110", "--path-as-is", "--globoff", "--unix-socket"]).arg(env.socket_path());
    command.args(options).arg(format!("http://localhost{path}"));
    RunningProcess::start(command)
}

/// Submits a run of `pr`; `more` is merged into the request.
#[track_caller]
pub(super) fn submit_run(env: &TestEnvironment, repo: &Repo<'_>, more: &Value) -> CurlResponse {
    let body = run_request(repo.path(), more).to_string();
    curl(env, &["--json", &body, "/v1/runs"])
}

pub(super) fn run_request(repo: &Path, more: &Value) -> Value {
    let mut body = json!({ "repo": repo, "profile": "pr", "reuse": "never" });
    for (name, value) in more.as_object().expect("an object") {
        body[name] = value.clone();
    }
    body
}

/// Returns the id of the run in a response.
pub(super) fn submitted_run_id(submitted: &Value) -> String {
    submitted["run"]["id"].as_str().expect("the document says so").to_owned()
}

/// Submits a run, and waits for its end.
#[track_caller]
pub(super) fn run_to_end(env: &TestEnvironment, repo: &Repo<'_>, more: &Value) -> Value {
    let id = submitted_run_id(&submit_run(env, repo, more).assert_status(202).json_of_schema("SubmittedRun"));
    wait_for_end(env, &id)
}

#[track_caller]
pub(super) fn wait_for_end(env: &TestEnvironment, id: &str) -> Value {
    let run = curl(env, &[&format!("/v1/runs/{id}?wait=55s")]).assert_status(200).json_of_schema("RunWithEvents");
    assert_eq!(run["state"], "finished", "{run:#}");
    run
}

fn run_lifecycle(env: &TestEnvironment) {
    let repo =
        env.repo(&TestSpec::from_steps([TestStep::sh("say", "echo hello; echo oops >&2"), waiting_step(env, "wait")]));
    let mut daemon = env.start_ready_daemon();
    let submitted = submit_run(env, &repo, &json!({ "changeset_id": CHANGESET })).assert_status(202);
    let id = submitted_run_id(&submitted.json());
    assert_eq!(submitted.header("location"), Some(format!("/v1/runs/{id}").as_str()));
    assert_eq!(submitted.json_of_schema("SubmittedRun")["how"], "queued");

    let step = wait_for_step(env, &mut daemon.process);
    let run = curl(env, &[&format!("/v1/runs/{id}")]).assert_status(200).json_of_schema("RunWithEvents");
    assert_eq!((&run["state"], &run["verdict"]), (&json!("running"), &Value::Null), "{run:#}");
    release_step(&step);
    let run = wait_for_end(env, &id);
    assert_eq!((&run["verdict"], &run["exit_code"]), (&json!("passed"), &json!(0)), "{run:#}");
    assert_eq!(repo.last_run()["run_id"], json!(id));
    let read_output = |path: &str| curl(env, &[&format!("/v1/runs/{id}/steps/0/{path}")]).assert_status(200);
    assert_eq!((read_output("stdout").body.as_str(), read_output("stderr").body.as_str()), ("hello\n", "oops\n"));
    assert_eq!(read_output("stdout").header("content-type"), Some("text/plain; charset=utf-8"));

    let id = submitted_run_id(&submit_run(env, &repo, &json!({})).assert_status(202).json_of_schema("SubmittedRun"));
    wait_for_attempt_after(env, &mut daemon.process, &step);
    let cancelled = curl(env, &["-X", "DELETE", &format!("/v1/runs/{id}")]);
    assert!(matches!(cancelled.code, 202), "{cancelled:#?}");
    cancelled.json_of_schema("RunView");
    let run = wait_for_end(env, &id);
    assert_eq!((&run["verdict"], &run["exit_code"]), (&json!("inconclusive"), &json!(130)), "{run:#}");
    assert_eq!(
        curl(env, &["-X", "DELETE", &format!("/v1/runs/{id}")]).assert_status(200).json_of_schema("RunView")["verdict"],
        "inconclusive"
    );
    daemon.stop().exits(0);
}

/// Number of lines in the long output, of eight bytes each.
const OUTPUT_LINES: usize = 200_000;

fn output_ranges(env: &TestEnvironment) {
    let script = format!("seq -f %07.0f {OUTPUT_LINES}; printf 'a\\377b' >&2");
    let repo = env.repo(&TestSpec::from_script(&script));
    let daemon = env.start_ready_daemon();
    let id = run_to_end(env, &repo, &json!({}))["id"].as_str().expect("an id").to_owned();
    let whole: String = (1..=OUTPUT_LINES).map(|line| format!("{line:07}\n")).collect();
    let path = format!("/v1/runs/{id}/steps/0/stdout");
    let all = curl(env, &[&path]).assert_status(200);
    assert_eq!(all.header("content-length"), Some(whole.len().to_string().as_str()));
    assert!(all.body == whole, "the whole output");
    for (range, part) in
        [("0-6", 0..7), ("8-1000007", 8..1_000_008), ("1599992-", 1_599_992..1_600_000), ("-8", 1_599_992..1_600_000)]
    {
        let reply = curl(env, &["-r", range, &path]).assert_status(206);
        let expected = format!("bytes {}-{}/{}", part.start, part.end - 1, whole.len());
        assert_eq!(reply.header("content-range"), Some(expected.as_str()));
        assert!(reply.body == whole[part], "{range}");
    }
    let reply = curl(env, &[&format!("{path}?offset=800000&limit=8")]).assert_status(206);
    assert_eq!(
        (reply.body.as_str(), reply.header("content-range")),
        ("0100001\n", Some("bytes 800000-800007/1600000"))
    );
    let reply = curl(env, &[&format!("{path}?offset=1600000")]).assert_status(200);
    assert_eq!((reply.body.as_str(), reply.header("content-range")), ("", Some("bytes */1600000")));
    let reply = curl(env, &["-r", "1600000-", &path]).assert_problem(416, "range-not-satisfiable");
    assert_eq!(reply.header("content-range"), Some("bytes */1600000"));
    // Several ranges are ignored, as RFC 9110 permits.
    assert_eq!(curl(env, &["-r", "0-1,4-5", "-I", &path]).assert_status(200).header("content-length"), Some("1600000"));
    let bytes = curl(env, &[&format!("/v1/runs/{id}/steps/0/stderr")]).assert_status(200);
    assert_eq!(bytes.header("content-type"), Some("application/octet-stream"));
    assert_eq!(bytes.header("content-length"), Some("3"));
    for bad_path in
        ["steps/1/stdout", "steps/x/stdout", "steps/-1/stdout", "checks/0/stdout", "steps/0/stdin", "jobs/0/stdout"]
    {
        curl(env, &[&format!("/v1/runs/{id}/{bad_path}")]).assert_problem(404, "not-found");
    }
    for bad_query in ["offset=-1", "limit=0", "offset=1x", "length=1"] {
        curl(env, &[&format!("{path}?{bad_query}")]).assert_problem(400, "invalid-request");
    }
    let reply = curl(env, &[&format!("{path}?offset=1600001")]).assert_problem(416, "range-not-satisfiable");
    assert_eq!(reply.header("content-range"), Some("bytes */1600000"));
    curl(env, &["-r", "0-1", &format!("{path}?offset=1")]).assert_problem(400, "invalid-request");
    curl(env, &["/v1/runs?repo=relative"]).assert_problem(400, "invalid-request");
    daemon.stop().exits(0);
}

/// Sends bodies of 300 KB and 2 MB with Python's `http.client`, which reads the response only after it has sent
/// everything.
const SENDS_FIRST_PROGRAM: &str = r#"
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

fn early_refusals_reach_client(env: &TestEnvironment) {
    let daemon = env.start_ready_daemon();
    let mut client = machine::command("python3");
    client.args(["-c", SENDS_FIRST_PROGRAM]).arg(env.socket_path());
    RunningProcess::start(client).wait().exits(0);
    daemon.stop().exits(0);
}

fn written_reports_are_served(env: &TestEnvironment) {
    let report = "reports: { junit: target/junit.xml, sarif: target/r.sarif }";
    let script = "mkdir -p target; printf '<testsuite/>' > target/junit.xml";
    let repo =
        env.repo(&TestSpec::from_steps([TestStep::sh("it", script).with_field(report), TestStep::sh("other", "true")]));
    let daemon = env.start_ready_daemon();
    let run = run_to_end(env, &repo, &json!({}));
    let path = format!("/v1/runs/{}/steps", run["id"].as_str().expect("an id"));
    let states: Vec<&str> = run["steps"][0]["found_reports"]
        .as_array()
        .expect("a list")
        .iter()
        .map(|report| report["state"].as_str().expect("a word"))
        .collect();
    assert_eq!((states, run["steps"][1].get("found_reports")), (vec!["read", "missing"], None));
    assert_eq!(curl(env, &[&format!("{path}/0/reports/junit")]).assert_status(200).body, "<testsuite/>");
    assert_eq!(curl(env, &["-r", "1-4", &format!("{path}/0/reports/junit")]).assert_status(206).body, "test");
    for bad_path in
        ["0/reports/sarif", "1/reports/junit", "2/reports/junit", "x/reports/junit", "0/reports/html", "0/reports"]
    {
        curl(env, &[&format!("{path}/{bad_path}")]).assert_problem(404, "not-found");
    }
    let problem = curl(env, &[&format!("{path}/0/reports/sarif")]).body;
    assert!(problem.contains("did not write its report `target/r.sarif`"), "{problem}");
    daemon.stop().exits(0);
}

fn idempotency_key_repeats_run(env: &TestEnvironment) {
    let repo = env.repo(&TestSpec::from_script("true"));
    let daemon = env.start_ready_daemon();
    let submit_with_key = |key: &str, more: &Value| {
        // curl sends a header without a value only if a semicolon follows the name.
        let key = if key.is_empty() { "Idempotency-Key;".to_owned() } else { format!("Idempotency-Key: {key}") };
        let body = run_request(repo.path(), more).to_string();
        curl(env, &["-H", &key, "--json", &body, "/v1/runs"])
    };
    let first = submitted_run_id(&submit_with_key("one", &json!({})).assert_status(202).json_of_schema("SubmittedRun"));
    wait_for_end(env, &first);
    let again = submit_with_key("one", &json!({})).assert_status(200).json_of_schema("SubmittedRun");
    assert_eq!((submitted_run_id(&again), &again["how"]), (first.clone(), &json!("repeated")));
    let other = submitted_run_id(&submit_with_key("two", &json!({})).assert_status(202).json_of_schema("SubmittedRun"));
    assert_ne!(other, first);
    wait_for_end(env, &other);
    submit_with_key("one", &json!({ "fail_fast": true })).assert_problem(409, "conflict");
    for bad_key in ["", "a b", &"x".repeat(256), "\u{e9}"] {
        submit_with_key(bad_key, &json!({})).assert_problem(400, "invalid-request");
    }
    let longest = submit_with_key(&"!".repeat(255), &json!({ "fail_fast": true }));
    wait_for_end(env, &submitted_run_id(&longest.assert_status(202).json_of_schema("SubmittedRun")));
    daemon.stop().exits(0);
    let daemon = env.start_ready_daemon();
    assert_eq!(
        submitted_run_id(&submit_with_key("one", &json!({})).assert_status(200).json_of_schema("SubmittedRun")),
        first,
        "a key outlives the daemon"
    );
    daemon.stop().exits(0);
}

fn lists_runs_in_pages(env: &TestEnvironment) {
    let repo = env.repo(&TestSpec::from_script("true"));
    let other = env.repo_at("other", &TestSpec::from_script("exit 1"));
    let daemon = env.start_ready_daemon();
    let mut ids: Vec<String> = Vec::new();
    for _ in 0..5 {
        ids.push(run_to_end(env, &repo, &json!({}))["id"].as_str().expect("an id").to_owned());
    }
    let failed = run_to_end(env, &other, &json!({ "changeset_id": CHANGESET }))["id"].clone();
    ids.reverse();
    let filter = format!("repo={}&limit=2", repo.path().canonicalize().expect("there").display());
    let mut seen: Vec<String> = Vec::new();
    let mut cursor = String::new();
    for _ in 0..3 {
        let page = curl(env, &[&format!("/v1/runs?{filter}{cursor}")]).assert_status(200).json_of_schema("RunPage");
        seen.extend(
            page["runs"].as_array().expect("runs").iter().map(|run| run["id"].as_str().expect("an id").to_owned()),
        );
        let Some(next) = page["next_cursor"].as_str() else { break };
        cursor = format!("&cursor={next}");
    }
    assert_eq!(seen, ids);
    for filter in ["verdict=failed", &format!("changeset_id={CHANGESET}"), "state=finished&limit=1"] {
        let page = curl(env, &[&format!("/v1/runs?{filter}")]).assert_status(200).json_of_schema("RunPage");
        assert_eq!(page["runs"].as_array().map(Vec::len), Some(1), "{filter}: {page:#}");
        assert_eq!(page["runs"][0]["id"], failed, "{filter}");
    }
    let none = curl(env, &["/v1/runs?profile=other"]).assert_status(200).json_of_schema("RunPage");
    assert_eq!((none["runs"].as_array().map(Vec::len), &none["next_cursor"]), (Some(0), &Value::Null));
    for bad_query in [
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
        curl(env, &[&format!("/v1/runs?{bad_query}")]).assert_problem(400, "invalid-request");
    }
    daemon.stop().exits(0);
}

fn queries_start_no_run(env: &TestEnvironment) {
    let repo = env.repo(&TestSpec::from_script("true"));
    let daemon = env.start_ready_daemon();
    let of_repo = json!({ "repo": repo.path() }).to_string();
    let query = json!({ "repo": repo.path(), "profile": "pr" }).to_string();
    let plan = curl(env, &["--json", &of_repo, "/v1/plans"]).assert_status(200).json_of_schema("PlanAnswer");
    assert_eq!((&plan["profiles"], &plan["plan"]), (&json!(["pr"]), &Value::Null));
    let plan = curl(env, &["--json", &query, "/v1/plans"]).assert_status(200).json_of_schema("PlanAnswer");
    assert_eq!(plan["plan"]["skills"][0]["name"], "verify.it", "{plan:#}");
    assert_eq!(
        curl(env, &["--json", &query, "/v1/gate"]).assert_status(200).json_of_schema("GateAnswer")["pass"],
        false
    );
    assert_eq!(run_to_end(env, &repo, &json!({}))["verdict"], "passed");
    assert_eq!(
        curl(env, &["--json", &query, "/v1/gate"]).assert_status(200).json_of_schema("GateAnswer")["pass"],
        true
    );
    let verified = curl(env, &["--json", &query, "/v1/runs"]).assert_status(200).json_of_schema("SubmittedRun");
    assert_eq!(verified["how"], "verified", "the tree has been verified, and that is an answer");
    let doctor = curl(env, &[&format!("/v1/doctor?repo={}", repo.path().display())])
        .assert_status(200)
        .json_of_schema("DoctorAnswer");
    assert_eq!(doctor["findings"], json!([]), "{doctor:#}");
    curl(env, &["/healthz"]).assert_status(200).json_of_schema("Health");
    let metrics = curl(env, &["/metrics"]).assert_status(200);
    assert!(
        metrics.body.contains("proctor_http_requests_total{route=\"/v1/gate\",method=\"POST\",code=\"200\"} 2"),
        "{}",
        metrics.body
    );
    repo.write("spec/verification.yaml", "version: 1\nprofilse: {}\n");
    let problem = curl(env, &["--json", &of_repo, "/v1/plans"]).assert_problem(422, "invalid-spec").json();
    assert!(problem["spec"]["diagnostics"][0]["message"].is_string(), "{problem:#}");
    submit_run(env, &repo, &json!({})).assert_problem(422, "invalid-spec");
    let no_patch = "/v1/runs/20260101T000000Z-00000000/patch";
    curl(env, &[no_patch]).assert_problem(404, "not-found");
    daemon.stop().exits(0);
}

fn readme_commands_work(env: &TestEnvironment) {
    let text = std::fs::read_to_string(schemas::workspace_root().join("README.md")).expect("there");
    let block = text.split("```sh\n").find(|block| block.contains("--unix-socket")).expect("the commands of curl");
    let commands = block.split("```").next().and_then(|block| block.split_once("R=http")).expect("where runs are").1;
    let repo = env.repo(&TestSpec::from_script("echo hello"));
    let daemon = env.start_ready_daemon();
    let mut shell = env.system_command_as_actor("sh");
    shell.current_dir(repo.path()).env("S", env.socket_path()).args(["-euc", &format!("R=http{commands}")]);
    let output = RunningProcess::start(shell).wait().exits(0).prints(&["\"verdict\":\"passed\"", "}hello\n"]).stdout;
    assert_eq!(output.matches("\"state\":\"finished\"").count(), 2, "{output}");
    daemon.stop().exits(0);
}

fn errors_are_problem_documents(env: &TestEnvironment) {
    let repo = env.repo(&TestSpec::from_script("true"));
    let daemon = env.start_ready_daemon();
    let body = run_request(repo.path(), &json!({})).to_string();
    for path in ["/", "/v1", "/v1/runs/", "/v2/runs", "/healthz/", "/v1/runs/x/y", "//healthz", "/v1/sql/asks"] {
        curl(env, &[path]).assert_problem(404, "not-found");
    }
    for (method, path) in
        [("PUT", "/v1/runs"), ("POST", "/healthz"), ("GET", "/v1/plans"), ("TRACE", "/v1/runs"), ("BREW", "/v1/gate")]
    {
        let reply = curl(env, &["-X", method, path]).assert_problem(405, "method-not-allowed");
        assert!(reply.header("allow").is_some_and(|methods| !methods.is_empty()), "{reply:#?}");
    }
    let post_body =
        |kind: &str, body: &str| curl(env, &["-H", &format!("Content-Type: {kind}"), "--data-raw", body, "/v1/runs"]);
    for kind in
        ["application/x-www-form-urlencoded", "text/plain", "application/xml", "application/json; charset=latin1", ""]
    {
        post_body(kind, &body).assert_problem(415, "unsupported-media-type");
    }
    let encoded = ["-H", "Content-Encoding: gzip", "--json", &body, "/v1/runs"];
    curl(env, &encoded).assert_problem(415, "unsupported-media-type");
    for bad_body in [
        "",
        "nul",
        "[]",
        "{}",
        "{\"repo\":\"/r\"}",
        "{\"repo\":1,\"profile\":\"pr\"}",
        "{\"repo\":\"/r\",\"profile\":\"\"}",
    ] {
        post_body("application/json", bad_body).assert_problem(400, "invalid-request");
    }
    submit_run(env, &repo, &json!({ "unknown": 1 })).assert_problem(400, "invalid-request");
    submit_run(env, &repo, &json!({ "max_tier": 9 })).assert_problem(400, "invalid-request");
    submit_run(env, &repo, &json!({ "profile": "nightly" })).assert_status(422);
    submit_run(env, &repo, &json!({ "repo": "relative" })).assert_problem(400, "invalid-request");
    submit_run(env, &repo, &json!({ "repo": "/nonexistent/repo" })).assert_problem(422, "unprocessable");
    submit_run(env, &repo, &json!({ "rev": "no-such-branch" })).assert_problem(422, "unprocessable");
    for path in ["/v1/runs/20260101T000000Z-00000000", "/v1/runs/x", "/v1/runs/x/events", "/v1/runs/x/steps/0/stdout"] {
        curl(env, &[path]).assert_problem(404, "not-found");
    }
    curl(env, &["-X", "DELETE", "/v1/runs/x"]).assert_problem(404, "not-found");
    for bad_query in ["wait=soon", "wait=-1s", "wait=", "after=-1", "after=x", "wiat=1s", "wait=1s&wait=2s"] {
        let path = format!("/v1/runs/20260101T000000Z-00000000?{bad_query}");
        curl(env, &[&path]).assert_problem(400, "invalid-request");
    }
    curl(env, &["/v1/doctor"]).assert_problem(400, "invalid-request");
    daemon.stop().exits(0);
}

fn root_is_refused_by_users_daemon(env: &TestEnvironment) {
    let daemon = env.start_ready_daemon();
    curl(env, &["/healthz"]).assert_status(200).json_of_schema("Health");
    let mut command = machine::command("curl");
    command.args(["-sSi", "--max-time", "20", "--unix-socket"]).arg(env.socket_path()).arg("http://localhost/healthz");
    let refused = RunningProcess::start(command).wait().exits(0);
    let (head, body) = refused.stdout.split_once("\r\n\r\n").expect("an answer");
    assert!(head.starts_with("HTTP/1.1 403 ") && body.contains("urn:proctor:problem:forbidden"), "{refused}");
    daemon.stop().exits(0);
}

fn supports_head_and_options(env: &TestEnvironment) {
    let daemon = env.start_ready_daemon();
    let head = curl(env, &["-I", "/openapi.json"]).assert_status(200);
    let get = curl(env, &["/openapi.json"]).assert_status(200);
    assert_eq!(head.header("content-length"), get.header("content-length"));
    assert_eq!(head.body, "");
    curl(env, &["-I", "/v1/runs/x"]).assert_status(404);
    for (path, methods) in [("/v1/runs", "POST,GET,HEAD"), ("/v1/runs/x", "GET,HEAD,DELETE"), ("/v1/gate", "POST")] {
        let reply = curl(env, &["-X", "OPTIONS", path]).assert_status(204);
        assert_eq!(reply.header("allow"), Some(methods), "{path}");
    }
    curl(env, &["-X", "OPTIONS", "--request-target", "*", "/"]).assert_status(204);
    for header in ["x-content-type-options", "cache-control"] {
        assert!(get.header(header).is_some(), "{header}: {get:#?}");
    }
    daemon.stop().exits(0);
}

fn serves_checked_in_document(env: &TestEnvironment) {
    let daemon = env.start_ready_daemon();
    let served = curl(env, &["/openapi.json"]).assert_status(200).json();
    assert!(served == *OPENAPI_DOCUMENT, "run `make schemas`");
    daemon.stop().exits(0);
}
