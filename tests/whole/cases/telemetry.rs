//! Tests runs exported as spans of a trace, with a receiver that uses a third-party decoder. A faulty receiver must
//! not affect a run.

use std::collections::BTreeMap;
use std::net::{TcpListener, TcpStream};
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use super::http::{curl, run_to_end, submit_run};
use crate::daemon::{self, TestDaemon};
use crate::environment::{CHANGESET, Repo, TestEnvironment};
use crate::machine;
use crate::needs::{CaseDefinition, NEEDS_OPENTELEMETRY, NEEDS_ROTEL, Needs, OPENTELEMETRY_PYTHON, case};
use crate::process::RunningProcess;
use crate::test_spec::{TestSkill, TestSpec, TestStep};

pub(super) const CASES: &[CaseDefinition] = &[
    case("telemetry::run_continues_the_callers_trace", run_continues_callers_trace).needs(NEEDS_OPENTELEMETRY),
    case("telemetry::daemon_exports_requested_runs", daemon_exports_requested_runs).needs(NEEDS_OPENTELEMETRY),
    case("telemetry::collector_accepts_the_spans", collector_accepts_spans).needs(NEEDS_ROTEL),
    case("telemetry::promtool_accepts_the_metrics", promtool_accepts_metrics).needs(&[
        Needs::Sandbox,
        Needs::Program("curl"),
        Needs::Program("promtool"),
    ]),
    case("telemetry::trace_does_not_affect_reuse", trace_does_not_affect_reuse),
    case("telemetry::hanging_receiver_does_not_delay_a_run", hanging_receiver_does_not_delay_run)
        .needs(NEEDS_OPENTELEMETRY),
    case("telemetry::invalid_responses_are_counted_as_failed", invalid_responses_are_counted)
        .needs(NEEDS_OPENTELEMETRY),
    case("telemetry::spec_cannot_enable_export", spec_cannot_enable_export).needs(NEEDS_OPENTELEMETRY),
];

/// Replaces the interpreter by the program in the package of Rotel.
const START_ROTEL: &str = "import os, sys, rotel
agent = os.path.join(os.path.dirname(rotel.__file__), 'rotel-agent')
os.execv(agent, [agent, *sys.argv[1:]])";
const TRACE_ID: &str = "0af7651916cd43dd8448eb211c80319c";
const SPAN_ID: &str = "b7ad6b7169203331";
const TRACEPARENT: &str = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";
/// Time limit for a command that must not be delayed: much longer than a run, and shorter than a request timeout.
const MAX_UNDELAYED: Duration = Duration::from_secs(8);

/// A receiver of spans.
pub(super) struct OtlpReceiver {
    running: RunningProcess,
    endpoint: String,
}

impl OtlpReceiver {
    /// Starts a receiver with this kind of answers.
    pub(super) fn start(env: &TestEnvironment, response_kind: &str) -> Self {
        let mut command = machine::client_command(OPENTELEMETRY_PYTHON);
        command.args(["-c", include_str!("../otlp_receiver.py"), response_kind]).env("HOME", env.home_dir());
        let mut running = RunningProcess::start(command);
        running.wait_for_stdout("\n");
        let first: Value = serde_json::from_str(running.stdout_so_far().lines().next().expect("a line")).expect("JSON");
        Self { running, endpoint: format!("http://127.0.0.1:{}", first["port"]) }
    }

    /// Waits for a request that contains a run, or any request, and returns all requests so far.
    fn wait_for_requests(&mut self, run: &str) -> Vec<Value> {
        self.running.wait_for_stdout(&format!("received {run}"));
        let text = self.running.stdout_so_far();
        text.lines().skip(1).filter_map(|line| serde_json::from_str(line).ok()).collect()
    }

    /// Waits for a request that contains a span with this name, and returns all requests so far.
    pub(super) fn wait_for_span(&mut self, name: &str) -> Vec<Value> {
        self.wait_for_requests(&format!("span {name}\n"))
    }

    /// Returns the address for the exporter.
    pub(super) fn endpoint(&self) -> &str {
        &self.endpoint
    }

    pub(super) fn stop(self) {
        self.running.signal(rustix::process::Signal::KILL);
        self.running.wait();
    }
}

/// Returns the spans of requests.
pub(super) fn all_spans(requests: &[Value]) -> Vec<Value> {
    let resources = requests.iter().flat_map(|request| request["resources"].as_array().expect("resources"));
    resources.flat_map(|resource| resource["spans"].as_array().expect("spans")).cloned().collect()
}

/// Returns the spans of requests by name.
fn spans_by_name(requests: &[Value]) -> BTreeMap<String, Value> {
    let spans = all_spans(requests).into_iter();
    spans.map(|span| (span["name"].as_str().expect("a name").to_owned(), span)).collect()
}

/// Returns a skill whose first step prints its trace context and whose second step fails.
fn traced_spec() -> TestSpec {
    let asks = TestStep::sh("asks", "env | grep ^TRACE").with_field("env_allowlist: [TRACEPARENT, TRACESTATE]");
    let fails = TestStep::sh("fails", "env | grep ^TRACE; exit 3");
    // The trace context is not an input of a step, so a deterministic step would be reused with the context of another
    // run.
    TestSpec::new([TestSkill::new("verify.it", [asks, fails]).determinism("D2")])
}

#[track_caller]
fn assert_child_span(span: &Value, parent: &Value) {
    assert_eq!(span["parent"], parent["id"]);
    assert_eq!(span["trace"], parent["trace"]);
    let ns = |value: &Value| value.as_u64().expect("a time");
    // Times have a resolution of milliseconds.
    let slack = 2_000_000;
    assert!(ns(&span["start"]) + slack >= ns(&parent["start"]) && ns(&span["end"]) <= ns(&parent["end"]) + slack);
    assert!(ns(&span["start"]) <= ns(&span["end"]));
}

/// Asserts the spans of a run of [`traced_spec`] below the caller's span: their tree, their status, and the context
/// that the steps saw.
#[track_caller]
fn assert_traced(repo: &Repo<'_>, step: &Value, spans: &BTreeMap<String, Value>) {
    let [run, skill, asks, fails] =
        ["proctor run", "skill verify.it", "step asks", "step fails"].map(|name| &spans[name]);
    assert_eq!((&run["trace"], &run["parent"]), (&TRACE_ID.into(), &SPAN_ID.into()));
    assert_eq!((&run["state"], &run["remote"]), (&"vendor=1".into(), &true.into()));
    assert_child_span(skill, run);
    assert_child_span(asks, skill);
    assert_child_span(fails, skill);
    assert_eq!(run["attributes"]["proctor.verdict"], "failed");
    assert_eq!(run["attributes"]["proctor.exit_code"], 1);
    assert_eq!((&run["error"], &skill["error"], &asks["error"]), (&"failed".into(), &"failed".into(), &Value::Null));
    assert_eq!(
        (&fails["error"], &fails["attributes"]["process.exit.code"]),
        (&"failed: exited with code 3".into(), &3.into())
    );
    let expected =
        format!("TRACEPARENT=00-{TRACE_ID}-{}-01\nTRACESTATE=vendor=1\n", asks["id"].as_str().expect("an id"));
    assert_eq!(step["stdout_preview"], expected.as_str(), "the step continues its own span");
    let all = Value::from_iter(spans.clone()).to_string();
    assert!(
        !all.contains("grep") && !all.contains(repo.path().to_str().expect("a path")),
        "neither commands nor paths: {all}"
    );
}

fn run_continues_callers_trace(env: &TestEnvironment) {
    let mut receiver = OtlpReceiver::start(env, "ok");
    let repo = env.repo(&traced_spec());
    env.set_caller_var("OTEL_EXPORTER_OTLP_ENDPOINT", &receiver.endpoint);
    env.set_caller_var("OTEL_EXPORTER_OTLP_HEADERS", "api-key=hush-hush-hush");
    env.set_caller_var("OTEL_RESOURCE_ATTRIBUTES", "service.name=ci,team=a%20b");
    env.set_caller_var("TRACEPARENT", TRACEPARENT);
    env.set_caller_var("TRACESTATE", "vendor=1");
    let run = repo.run().exits(1);
    assert!(!run.all_output().contains("not exported") && !run.all_output().contains("hush-hush"), "{run}");
    let requests = receiver.wait_for_requests("");
    assert_eq!(
        (&requests[0]["path"], &requests[0]["headers"]["api-key"]),
        (&"/v1/traces".into(), &"hush-hush-hush".into())
    );
    let resource = &requests[0]["resources"][0]["resource"];
    assert_eq!((&resource["service.name"], &resource["team"]), (&"ci".into(), &"a b".into()));
    assert_traced(&repo, &repo.step("asks"), &spans_by_name(&requests));
    assert!(repo.step("fails")["stdout_preview"] == "", "a step that does not ask for it has no trace");
    let names = repo.step("asks")["env_names"].to_string();
    assert!(!names.contains("TRACE"), "a record does not depend on whether its run is traced: {names}");
    receiver.stop();
}

/// Starts Rotel, a collector, which prints the traces that it receives. Returns it with its address.
fn start_collector(env: &TestEnvironment) -> (RunningProcess, String) {
    // Rotel cannot choose a free port itself.
    let free_port = || TcpListener::bind("127.0.0.1:0").and_then(|free| free.local_addr()).expect("a free port");
    let (http, grpc) = (free_port(), free_port());
    let mut command = machine::client_command(OPENTELEMETRY_PYTHON);
    command.args(["-c", START_ROTEL, "start", "--exporter", "blackhole", "--debug-log", "traces"]);
    command.args(["--debug-log-verbosity", "detailed", "--otlp-http-endpoint", &http.to_string()]);
    command.args(["--otlp-grpc-endpoint", &grpc.to_string()]).env("HOME", env.home_dir());
    (RunningProcess::start(command), format!("http://{http}"))
}

/// A collector that decodes strictly shows the spans of a run as they were sent.
fn collector_accepts_spans(env: &TestEnvironment) {
    let (mut collector, endpoint) = start_collector(env);
    let address = endpoint.trim_start_matches("http://");
    collector.wait_until(|| TcpStream::connect(address).is_ok());
    let repo = env.repo(&traced_spec());
    env.set_caller_var("OTEL_EXPORTER_OTLP_ENDPOINT", &endpoint);
    env.set_caller_var("TRACEPARENT", TRACEPARENT);
    let run = repo.run().exits(1);
    assert!(!run.all_output().contains("not exported"), "{run}");
    collector.wait_for_stdout("-> error.type: Str(failed)");
    let shown = collector.stdout_so_far();
    for line in [
        format!("Trace ID       : {TRACE_ID}"),
        format!("Parent ID      : {SPAN_ID}"),
        "Name           : proctor run".to_owned(),
        "Name           : step fails".to_owned(),
        "-> proctor.verdict: Str(failed)".to_owned(),
        "-> process.exit.code: Int(3)".to_owned(),
    ] {
        assert!(shown.contains(&line), "{line:?} is missing:\n{shown}");
    }
    collector.signal(rustix::process::Signal::KILL);
    collector.wait();
}

/// Submits a run over HTTP with these headers, and returns it after its end.
fn run_with_headers(daemon: &TestDaemon<'_>, env: &TestEnvironment, repo: &Repo<'_>, headers: &str) -> Value {
    let body = serde_json::json!({ "repo": repo.path(), "profile": "pr", "reuse": "never" });
    let answer = daemon::send_request_with_headers(&env.socket_path(), "POST", "/v1/runs", headers, Some(&body))
        .expect("an answer");
    assert_eq!(answer.status, 202, "{answer:?}");
    daemon.wait_for_run(answer.parse_json_body()["run"]["id"].as_str().expect("an id"))
}

fn daemon_exports_requested_runs(env: &TestEnvironment) {
    let mut receiver = OtlpReceiver::start(env, "ok");
    env.write_operator_config(&format!(
        "[telemetry]\nendpoint = '{}'\nheaders = {{ api-key = 'hush-hush' }}\n",
        receiver.endpoint
    ));
    let repo = env.repo(&traced_spec());
    let mut daemon = env.start_ready_daemon();
    let run = run_with_headers(&daemon, env, &repo, &format!("traceparent: {TRACEPARENT}\r\ntracestate: vendor=1\r\n"));
    let path = format!("/v1/runs/{}/steps/0/stdout", run["id"].as_str().expect("an id"));
    let printed = serde_json::json!({ "stdout_preview": daemon.request("GET", &path, None).body });
    let requests = receiver.wait_for_requests(run["id"].as_str().expect("an id"));
    let found = spans_by_name(&requests);
    assert_traced(&repo, &printed, &found);
    assert!(found["proctor run"]["attributes"]["proctor.run.queue_ms"].is_u64(), "{found:?}");
    assert_eq!(requests[0]["resources"][0]["resource"]["service.name"], "proctord");

    // An invalid context starts a new trace, and a context that is not sampled is not exported.
    let unsampled =
        run_with_headers(&daemon, env, &repo, &format!("traceparent: {}\r\n", TRACEPARENT.replace("-01", "-00")));
    let own = run_with_headers(&daemon, env, &repo, "traceparent: 00-nonsense-01\r\n");
    let requests = receiver.wait_for_requests(own["id"].as_str().expect("an id"));
    let root = &spans_by_name(&requests)["proctor run"];
    assert!(root["parent"] == "" && root["trace"] != TRACE_ID, "{root}");
    assert!(!Value::from(requests).to_string().contains(unsampled["id"].as_str().expect("an id")));

    // The command line forwards its caller's trace context.
    env.set_caller_var("TRACEPARENT", TRACEPARENT);
    env.set_caller_var("TRACESTATE", "vendor=1");
    let mut command = env.command(repo.path());
    command.args(["run", "--profile", "pr", "--changeset", CHANGESET, "--socket"]).arg(env.socket_path());
    env.finish(RunningProcess::start(command)).exits(1);
    let run = repo.last_run()["run_id"].as_str().expect("an id").to_owned();
    let requests = receiver.wait_for_requests(&run);
    assert_traced(&repo, &repo.step("asks"), &spans_by_name(&requests));
    assert_eq!(spans_by_name(&requests)["proctor run"]["attributes"]["proctor.run.id"], run.as_str());
    wait_for_span_count(env, &mut daemon, "exported", 12);
    let ended = daemon.stop().exits(0);
    assert!(!ended.all_output().contains("hush-hush") && ended.all_output().contains("spans are exported"), "{ended}");
    receiver.stop();
}

/// Returns the number of spans that a daemon counts with this result.
fn exported_span_count(env: &TestEnvironment, result: &str) -> Option<u64> {
    let metrics = daemon::send_request(&env.socket_path(), "GET", "/metrics", None).expect("an answer").body;
    let name = format!("proctor_otlp_spans_total{{result=\"{result}\"}} ");
    metrics.lines().find_map(|line| line.strip_prefix(&name)?.parse().ok())
}

/// Waits until a daemon counts this number of spans with this result.
fn wait_for_span_count(env: &TestEnvironment, daemon: &mut TestDaemon<'_>, result: &str, count: u64) {
    daemon.process.wait_until(|| exported_span_count(env, result).is_some_and(|counted| counted >= count));
    assert_eq!(exported_span_count(env, result), Some(count));
}

/// The plan, the reuse key and the stable evidence do not depend on the trace.
fn trace_does_not_affect_reuse(env: &TestEnvironment) {
    let step = TestStep::sh("it", "true").with_field("env_allowlist: [TRACEPARENT]");
    let repo = env.repo(&TestSpec::from_steps([step]));
    let daemon = env.start_ready_daemon();
    let run = |parent: &str| {
        let env = serde_json::json!({ "PATH": machine::PATH, "TRACEPARENT": parent });
        let body = serde_json::json!({ "repo": repo.path(), "profile": "pr", "env": env });
        let answer = daemon.request("POST", "/v1/runs", Some(&body)).parse_json_body();
        (answer["how"].clone(), daemon.wait_for_run(answer["run"]["id"].as_str().expect("an id")))
    };
    let (how, first) = run(TRACEPARENT);
    assert_eq!((&how, &first["verdict"]), (&"queued".into(), &"passed".into()));
    let (how, second) = run(&TRACEPARENT.replace(SPAN_ID, "00f067aa0ba902b7"));
    assert_eq!((&how, &second["id"]), (&"verified".into(), &first["id"]), "another trace asks for the same");
    daemon.stop().exits(0);
}

fn hanging_receiver_does_not_delay_run(env: &TestEnvironment) {
    let receiver = OtlpReceiver::start(env, "hang");
    let repo = env.repo(&traced_spec());
    env.set_caller_var("OTEL_EXPORTER_OTLP_ENDPOINT", &receiver.endpoint);
    let began = Instant::now();
    let run = repo.run().exits(1);
    assert!(began.elapsed() < MAX_UNDELAYED, "{:?}", began.elapsed());
    assert!(run.stderr.contains("the run was not exported"), "{run}");

    env.set_caller_var("OTEL_EXPORTER_OTLP_TIMEOUT", "100");
    let mut daemon = env.start_ready_daemon();
    let began = Instant::now();
    for _ in 0..3 {
        assert_eq!(run_with_headers(&daemon, env, &repo, "")["verdict"], "failed");
    }
    assert!(began.elapsed() < MAX_UNDELAYED, "{:?}", began.elapsed());
    daemon.process.wait_for_stderr("spans were not exported");
    daemon.process.wait_until(|| exported_span_count(env, "failed").is_some());
    let ended = daemon.stop().exits(0);
    assert!(ended.all_output().contains("no answer in time"), "{ended}");
    receiver.stop();
}

fn invalid_responses_are_counted(env: &TestEnvironment) {
    let repo = env.repo(&traced_spec());
    for (answers, expected_error) in [("nonsense", "is not OTLP over HTTP"), ("redirect", "status 307")] {
        let receiver = OtlpReceiver::start(env, answers);
        env.set_caller_var("OTEL_EXPORTER_OTLP_ENDPOINT", &receiver.endpoint);
        let mut daemon = env.start_ready_daemon();
        assert_eq!(run_with_headers(&daemon, env, &repo, "")["verdict"], "failed");
        wait_for_span_count(env, &mut daemon, "failed", 4);
        assert_eq!(exported_span_count(env, "exported"), None);
        let ended = daemon.stop().exits(0);
        assert!(ended.all_output().contains(expected_error), "{ended}");
        receiver.stop();
    }
    // No process listens on this port.
    env.set_caller_var("OTEL_EXPORTER_OTLP_ENDPOINT", "http://127.0.0.1:9");
    let run = repo.run().exits(1);
    assert!(run.stderr.contains("the run was not exported"), "{run}");
}

/// A repository cannot choose the receiver, and a disabled export sends nothing.
fn spec_cannot_enable_export(env: &TestEnvironment) {
    let mut receiver = OtlpReceiver::start(env, "ok");
    let endpoint = format!("env: {{ OTEL_EXPORTER_OTLP_ENDPOINT: '{}' }}", receiver.endpoint);
    let asks =
        TestStep::sh("it", "env | grep ^TRACE; true").with_field("env_allowlist: [TRACEPARENT]").with_field(&endpoint);
    let repo = env.repo(&TestSpec::new([TestSkill::new("verify.it", [asks]).determinism("D2")]));
    repo.run().exits(0);
    assert_eq!(repo.step("it")["stdout_preview"], "", "without a trace there is nothing to continue");
    env.set_caller_var("TRACEPARENT", TRACEPARENT);
    repo.run().exits(0);
    let own = format!("TRACEPARENT={TRACEPARENT}\n");
    assert_eq!(
        repo.step("it")["stdout_preview"],
        own.as_str(),
        "a run that is not exported passes its caller's trace on"
    );
    env.set_caller_var("OTEL_EXPORTER_OTLP_ENDPOINT", &receiver.endpoint);
    env.set_caller_var("OTEL_SDK_DISABLED", "true");
    repo.run().exits(0);
    env.set_caller_var("OTEL_SDK_DISABLED", "false");
    repo.run().exits(0);
    assert_eq!(receiver.wait_for_requests("").len(), 1, "the last run alone is exported");
    receiver.stop();
}

/// Checks the metrics with Prometheus's own tool, after a passed, a failed and a refused run, and a rejected statement.
fn promtool_accepts_metrics(env: &TestEnvironment) {
    let repo = env.repo(&TestSpec::from_script("grep -q good src/lib.rs"));
    let daemon = env.start_ready_daemon();
    assert_eq!(run_to_end(env, &repo, &json!({}))["verdict"], "failed");
    repo.write("src/lib.rs", "good\n");
    assert_eq!(run_to_end(env, &repo, &json!({}))["verdict"], "passed");
    repo.write("spec/verification.yaml", "no spec\n");
    submit_run(env, &repo, &json!({})).assert_problem(422, "invalid-spec");
    let statement = json!({ "sql": "SELECT nmae FROM t", "dialect": "sqlite", "schema": "CREATE TABLE t (name)" });
    curl(env, &["--json", &statement.to_string(), "/v1/sql/verify"]).assert_status(200);
    let metrics = curl(env, &["/metrics"]).assert_status(200).body;
    let file = env.root().join("metrics.txt");
    machine::write(&file, &metrics);
    let mut checker = env.system_command_as_actor("sh");
    checker.args(["-c", "promtool check metrics < \"$1\"", "sh"]).arg(&file);
    let checked = RunningProcess::start(checker).wait().exits(0);
    assert_eq!((checked.stdout.as_str(), checked.stderr.as_str()), ("", ""), "{metrics}");
    daemon.stop().exits(0);
}
