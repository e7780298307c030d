//! Tests runs exported as spans of a trace, with a receiver that uses a third-party decoder. A faulty receiver must
//! not affect a run.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use super::http::{curl, finished, submit};
use crate::daemon::{self, Daemon};
use crate::environment::{CHANGESET, Repo, TestEnvironment};
use crate::machine;
use crate::needs::{Case, NEEDS_OPENTELEMETRY, Needs, OPENTELEMETRY, case};
use crate::process::Running;
use crate::spec::{Skill, Spec, Step};

pub(super) const CASES: &[Case] = &[
    case("telemetry::a_run_continues_the_trace_of_its_caller", own_process).needs(NEEDS_OPENTELEMETRY),
    case("telemetry::a_daemon_exports_what_it_is_asked_for", daemon_exports).needs(NEEDS_OPENTELEMETRY),
    case("telemetry::promtool_finds_nothing_wrong_with_metrics", promtool).needs(&[
        Needs::Sandbox,
        Needs::Program("curl"),
        Needs::Program("promtool"),
    ]),
    case("telemetry::a_trace_is_no_input_of_a_run", no_input),
    case("telemetry::a_receiver_that_hangs_delays_no_run", hanging).needs(NEEDS_OPENTELEMETRY),
    case("telemetry::an_answer_that_is_none_is_counted", nonsense).needs(NEEDS_OPENTELEMETRY),
    case("telemetry::nothing_is_exported_unless_an_operator_says_so", off).needs(NEEDS_OPENTELEMETRY),
];

const TRACE: &str = "0af7651916cd43dd8448eb211c80319c";
const SPAN: &str = "b7ad6b7169203331";
const PARENT: &str = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";
/// Time limit for a command that must not be delayed: much longer than a run, and shorter than a request timeout.
const NO_DELAY: Duration = Duration::from_secs(8);

/// A receiver of spans.
struct Receiver {
    running: Running,
    endpoint: String,
}

impl Receiver {
    /// Starts a receiver with this kind of answers.
    fn start(env: &TestEnvironment, answers: &str) -> Self {
        let mut command = machine::client_command(OPENTELEMETRY);
        command.args(["-c", include_str!("../otlp_receiver.py"), answers]).env("HOME", env.home());
        let mut running = Running::start(command);
        running.wait_for_output("\n");
        let first: Value = serde_json::from_str(running.output().lines().next().expect("a line")).expect("JSON");
        Self { running, endpoint: format!("http://127.0.0.1:{}", first["port"]) }
    }

    /// Waits for a request that contains a run, or any request, and returns all requests so far.
    fn requests(&mut self, run: &str) -> Vec<Value> {
        self.running.wait_for_output(&format!("received {run}"));
        let text = self.running.output();
        text.lines().skip(1).filter_map(|line| serde_json::from_str(line).ok()).collect()
    }

    fn end(self) {
        self.running.signal(rustix::process::Signal::KILL);
        self.running.wait();
    }
}

/// Returns the spans of requests by name.
fn spans(requests: &[Value]) -> BTreeMap<String, Value> {
    let resources = requests.iter().flat_map(|request| request["resources"].as_array().expect("resources"));
    let spans = resources.flat_map(|resource| resource["spans"].as_array().expect("spans"));
    spans.map(|span| (span["name"].as_str().expect("a name").to_owned(), span.clone())).collect()
}

/// Returns a skill whose first step prints its trace context and whose second step fails.
fn spec() -> Spec {
    let asks = Step::sh("asks", "env | grep ^TRACE").with("env_allowlist: [TRACEPARENT, TRACESTATE]");
    let fails = Step::sh("fails", "env | grep ^TRACE; exit 3");
    Spec::new([Skill::new("verify.it", [asks, fails])])
}

#[track_caller]
fn is_within(span: &Value, parent: &Value) {
    assert_eq!(span["parent"], parent["id"]);
    assert_eq!(span["trace"], parent["trace"]);
    let ns = |value: &Value| value.as_u64().expect("a time");
    // Times have a resolution of milliseconds.
    let slack = 2_000_000;
    assert!(ns(&span["start"]) + slack >= ns(&parent["start"]) && ns(&span["end"]) <= ns(&parent["end"]) + slack);
    assert!(ns(&span["start"]) <= ns(&span["end"]));
}

/// Asserts the spans of a run of [`spec`] below the caller's span: their tree, their status, and the context that the
/// steps saw.
#[track_caller]
fn is_traced(repo: &Repo<'_>, step: &Value, spans: &BTreeMap<String, Value>) {
    let [run, skill, asks, fails] =
        ["proctor run", "skill verify.it", "step asks", "step fails"].map(|name| &spans[name]);
    assert_eq!((&run["trace"], &run["parent"]), (&TRACE.into(), &SPAN.into()));
    assert_eq!((&run["state"], &run["remote"]), (&"vendor=1".into(), &true.into()));
    is_within(skill, run);
    is_within(asks, skill);
    is_within(fails, skill);
    assert_eq!(run["attributes"]["proctor.verdict"], "failed");
    assert_eq!(run["attributes"]["proctor.exit_code"], 1);
    assert_eq!((&run["error"], &skill["error"], &asks["error"]), (&"failed".into(), &"failed".into(), &Value::Null));
    assert_eq!(
        (&fails["error"], &fails["attributes"]["process.exit.code"]),
        (&"failed: exited with code 3".into(), &3.into())
    );
    let expected = format!("TRACEPARENT=00-{TRACE}-{}-01\nTRACESTATE=vendor=1\n", asks["id"].as_str().expect("an id"));
    assert_eq!(step["stdout_preview"], expected.as_str(), "the step continues its own span");
    let all = Value::from_iter(spans.clone()).to_string();
    assert!(
        !all.contains("grep") && !all.contains(repo.path().to_str().expect("a path")),
        "neither commands nor paths: {all}"
    );
}

fn own_process(env: &TestEnvironment) {
    let mut receiver = Receiver::start(env, "ok");
    let repo = env.repo(&spec());
    env.caller_has("OTEL_EXPORTER_OTLP_ENDPOINT", &receiver.endpoint);
    env.caller_has("OTEL_EXPORTER_OTLP_HEADERS", "api-key=hush-hush-hush");
    env.caller_has("OTEL_RESOURCE_ATTRIBUTES", "service.name=ci,team=a%20b");
    env.caller_has("TRACEPARENT", PARENT);
    env.caller_has("TRACESTATE", "vendor=1");
    let run = repo.run().exits(1);
    assert!(!run.everything().contains("not exported") && !run.everything().contains("hush-hush"), "{run}");
    let requests = receiver.requests("");
    assert_eq!(
        (&requests[0]["path"], &requests[0]["headers"]["api-key"]),
        (&"/v1/traces".into(), &"hush-hush-hush".into())
    );
    let resource = &requests[0]["resources"][0]["resource"];
    assert_eq!((&resource["service.name"], &resource["team"]), (&"ci".into(), &"a b".into()));
    is_traced(&repo, &repo.step("asks"), &spans(&requests));
    assert!(repo.step("fails")["stdout_preview"] == "", "a step that does not ask for it has no trace");
    let names = repo.step("asks")["env_names"].to_string();
    assert!(!names.contains("TRACE"), "a record does not depend on whether its run is traced: {names}");
    receiver.end();
}

/// Submits a run over HTTP with these headers, and returns it after its end.
fn asked(daemon: &Daemon<'_>, env: &TestEnvironment, repo: &Repo<'_>, headers: &str) -> Value {
    let body = serde_json::json!({ "repo": repo.path(), "profile": "pr", "reuse": "never" });
    let answer = daemon::ask_with(&env.socket(), "POST", "/v1/runs", headers, Some(&body)).expect("an answer");
    assert_eq!(answer.code, 202, "{answer:?}");
    daemon.finished(answer.json()["run"]["id"].as_str().expect("an id"))
}

fn daemon_exports(env: &TestEnvironment) {
    let mut receiver = Receiver::start(env, "ok");
    env.configure(&format!("[telemetry]\nendpoint = '{}'\nheaders = {{ api-key = 'hush-hush' }}\n", receiver.endpoint));
    let repo = env.repo(&spec());
    let mut daemon = env.daemon();
    let run = asked(&daemon, env, &repo, &format!("traceparent: {PARENT}\r\ntracestate: vendor=1\r\n"));
    let path = format!("/v1/runs/{}/steps/0/stdout", run["id"].as_str().expect("an id"));
    let printed = serde_json::json!({ "stdout_preview": daemon.ask("GET", &path, None).body });
    let requests = receiver.requests(run["id"].as_str().expect("an id"));
    let found = spans(&requests);
    is_traced(&repo, &printed, &found);
    assert!(found["proctor run"]["attributes"]["proctor.run.queue_ms"].is_u64(), "{found:?}");
    assert_eq!(requests[0]["resources"][0]["resource"]["service.name"], "proctord");

    // An invalid context starts a new trace, and a context that is not sampled is not exported.
    let unsampled = asked(&daemon, env, &repo, &format!("traceparent: {}\r\n", PARENT.replace("-01", "-00")));
    let own = asked(&daemon, env, &repo, "traceparent: 00-nonsense-01\r\n");
    let requests = receiver.requests(own["id"].as_str().expect("an id"));
    let root = &spans(&requests)["proctor run"];
    assert!(root["parent"] == "" && root["trace"] != TRACE, "{root}");
    assert!(!Value::from(requests).to_string().contains(unsampled["id"].as_str().expect("an id")));

    // The command line forwards its caller's trace context.
    env.caller_has("TRACEPARENT", PARENT);
    env.caller_has("TRACESTATE", "vendor=1");
    let mut command = env.command(repo.path());
    command.args(["run", "--profile", "pr", "--changeset", CHANGESET, "--socket"]).arg(env.socket());
    env.finish(Running::start(command)).exits(1);
    let run = repo.last_run()["run_id"].as_str().expect("an id").to_owned();
    let requests = receiver.requests(&run);
    is_traced(&repo, &repo.step("asks"), &spans(&requests));
    assert_eq!(spans(&requests)["proctor run"]["attributes"]["proctor.run.id"], run.as_str());
    wait_for_count(env, &mut daemon, "exported", 12);
    let ended = daemon.end().exits(0);
    assert!(
        !ended.everything().contains("hush-hush") && ended.everything().contains("spans of runs are exported"),
        "{ended}"
    );
    receiver.end();
}

/// Returns the number of spans that a daemon counts with this result.
fn exported(env: &TestEnvironment, result: &str) -> Option<u64> {
    let metrics = daemon::ask(&env.socket(), "GET", "/metrics", None).expect("an answer").body;
    let name = format!("proctor_otlp_spans_total{{result=\"{result}\"}} ");
    metrics.lines().find_map(|line| line.strip_prefix(&name)?.parse().ok())
}

/// Waits until a daemon counts this number of spans with this result.
fn wait_for_count(env: &TestEnvironment, daemon: &mut Daemon<'_>, result: &str, count: u64) {
    daemon.running.wait_until(|| exported(env, result).is_some_and(|counted| counted >= count));
    assert_eq!(exported(env, result), Some(count));
}

/// The plan, the reuse key and the stable evidence do not depend on the trace.
fn no_input(env: &TestEnvironment) {
    let step = Step::sh("it", "true").with("env_allowlist: [TRACEPARENT]");
    let repo = env.repo(&Spec::of_steps([step]));
    let daemon = env.daemon();
    let run = |parent: &str| {
        let env = serde_json::json!({ "PATH": machine::PATH, "TRACEPARENT": parent });
        let body = serde_json::json!({ "repo": repo.path(), "profile": "pr", "env": env });
        let answer = daemon.ask("POST", "/v1/runs", Some(&body)).json();
        (answer["how"].clone(), daemon.finished(answer["run"]["id"].as_str().expect("an id")))
    };
    let (how, first) = run(PARENT);
    assert_eq!((&how, &first["verdict"]), (&"queued".into(), &"passed".into()));
    let (how, second) = run(&PARENT.replace(SPAN, "00f067aa0ba902b7"));
    assert_eq!((&how, &second["id"]), (&"verified".into(), &first["id"]), "another trace asks for the same");
    daemon.end().exits(0);
}

fn hanging(env: &TestEnvironment) {
    let receiver = Receiver::start(env, "hang");
    let repo = env.repo(&spec());
    env.caller_has("OTEL_EXPORTER_OTLP_ENDPOINT", &receiver.endpoint);
    let began = Instant::now();
    let run = repo.run().exits(1);
    assert!(began.elapsed() < NO_DELAY, "{:?}", began.elapsed());
    assert!(run.stderr.contains("the run was not exported"), "{run}");

    env.caller_has("OTEL_EXPORTER_OTLP_TIMEOUT", "100");
    let mut daemon = env.daemon();
    let began = Instant::now();
    for _ in 0..3 {
        assert_eq!(asked(&daemon, env, &repo, "")["verdict"], "failed");
    }
    assert!(began.elapsed() < NO_DELAY, "{:?}", began.elapsed());
    daemon.running.wait_for_message("spans of runs were not exported");
    daemon.running.wait_until(|| exported(env, "failed").is_some());
    let ended = daemon.end().exits(0);
    assert!(ended.everything().contains("no answer in time"), "{ended}");
    receiver.end();
}

fn nonsense(env: &TestEnvironment) {
    let repo = env.repo(&spec());
    for (answers, why) in [("nonsense", "no OTLP over HTTP"), ("redirect", "status 307")] {
        let receiver = Receiver::start(env, answers);
        env.caller_has("OTEL_EXPORTER_OTLP_ENDPOINT", &receiver.endpoint);
        let mut daemon = env.daemon();
        assert_eq!(asked(&daemon, env, &repo, "")["verdict"], "failed");
        wait_for_count(env, &mut daemon, "failed", 4);
        assert_eq!(exported(env, "exported"), None);
        let ended = daemon.end().exits(0);
        assert!(ended.everything().contains(why), "{ended}");
        receiver.end();
    }
    // No process listens on this port.
    env.caller_has("OTEL_EXPORTER_OTLP_ENDPOINT", "http://127.0.0.1:9");
    let run = repo.run().exits(1);
    assert!(run.stderr.contains("the run was not exported"), "{run}");
}

/// A repository cannot choose the receiver, and a disabled export sends nothing.
fn off(env: &TestEnvironment) {
    let mut receiver = Receiver::start(env, "ok");
    let endpoint = format!("env: {{ OTEL_EXPORTER_OTLP_ENDPOINT: '{}' }}", receiver.endpoint);
    let asks = Step::sh("it", "env | grep ^TRACE; true").with("env_allowlist: [TRACEPARENT]").with(&endpoint);
    let repo = env.repo(&Spec::of_steps([asks]));
    repo.run().exits(0);
    assert_eq!(repo.step("it")["stdout_preview"], "", "without a trace there is nothing to continue");
    env.caller_has("TRACEPARENT", PARENT);
    repo.run().exits(0);
    let own = format!("TRACEPARENT={PARENT}\n");
    assert_eq!(
        repo.step("it")["stdout_preview"],
        own.as_str(),
        "a run that is not exported passes its caller's trace on"
    );
    env.caller_has("OTEL_EXPORTER_OTLP_ENDPOINT", &receiver.endpoint);
    env.caller_has("OTEL_SDK_DISABLED", "true");
    repo.run().exits(0);
    env.caller_has("OTEL_SDK_DISABLED", "false");
    repo.run().exits(0);
    assert_eq!(receiver.requests("").len(), 1, "the last run alone is exported");
    receiver.end();
}

/// Checks the metrics with Prometheus's own tool, after a passed, a failed and a refused run.
fn promtool(env: &TestEnvironment) {
    let repo = env.repo(&Spec::of_script("grep -q good src/lib.rs"));
    let daemon = env.daemon();
    assert_eq!(finished(env, &repo, &json!({}))["verdict"], "failed");
    repo.write("src/lib.rs", "good\n");
    assert_eq!(finished(env, &repo, &json!({}))["verdict"], "passed");
    repo.write("spec/verification.yaml", "no spec\n");
    submit(env, &repo, &json!({})).refuses(422, "invalid-spec");
    let metrics = curl(env, &["/metrics"]).is(200).body;
    let file = env.root().join("metrics.txt");
    machine::write(&file, &metrics);
    let mut checker = env.program_of_actor("sh");
    checker.args(["-c", "promtool check metrics < \"$1\"", "sh"]).arg(&file);
    let checked = Running::start(checker).wait().exits(0);
    assert_eq!((checked.stdout.as_str(), checked.stderr.as_str()), ("", ""), "{metrics}");
    daemon.end().exits(0);
}
