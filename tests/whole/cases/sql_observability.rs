//! Tests the metrics and the spans of requests about SQL: each judgement counts once, and no span contains SQL, rows,
//! prompts or keys.

use serde_json::{Value, json};

use super::ask::{MODEL_KEY, configure_model, start_model};
use super::http::curl;
use super::mcp::run_sdk;
use super::mcp_servers::daemon_stdio_server;
use super::telemetry::OtlpReceiver;
use crate::daemon;
use crate::environment::TestEnvironment;
use crate::needs::{CaseDefinition, MCP_SDK_PYTHON, Needs, OPENTELEMETRY_PYTHON, case};

const NEEDS_CURL: &[Needs] = &[Needs::Sandbox, Needs::Program("curl")];
const IMPORT_OTLP: &[&str] =
    &[OPENTELEMETRY_PYTHON, "-c", "import opentelemetry.proto.collector.trace.v1.trace_service_pb2"];
const NEEDS_RECEIVER: &[Needs] = &[Needs::Sandbox, Needs::Program("curl"), Needs::Client(IMPORT_OTLP)];
const NEEDS_RECEIVER_AND_SDK: &[Needs] =
    &[Needs::Sandbox, Needs::Client(IMPORT_OTLP), Needs::Client(&[MCP_SDK_PYTHON, "-c", "import mcp, httpx2"])];

pub(super) const CASES: &[CaseDefinition] = &[
    case("sql_observability::metrics_count_each_judgement_once", metrics_count_each_judgement_once).needs(NEEDS_CURL),
    case("sql_observability::disconnected_question_counts_as_cancelled", disconnected_question_is_cancelled)
        .needs(NEEDS_CURL),
    case("sql_observability::spans_continue_the_callers_trace", spans_continue_callers_trace).needs(NEEDS_RECEIVER),
    case("sql_observability::tools_and_commands_continue_a_trace", tools_and_commands_continue_trace)
        .needs(NEEDS_RECEIVER_AND_SDK),
];

const SCHEMA: &str = "CREATE TABLE clients (id INTEGER PRIMARY KEY, name TEXT NOT NULL, city TEXT);
INSERT INTO clients VALUES (1, 'Ada', 'London'), (2, 'Bob-the-row', 'Paris');";
const QUESTION: &str = "What is the name of each client in Paris?";
const RIGHT: &str = "SELECT name FROM clients WHERE city = 'Paris'";
const WRONG: &str = "SELECT nmae FROM clients";
const TRACE_ID: &str = "0af7651916cd43dd8448eb211c80319c";
const SPAN_ID: &str = "b7ad6b7169203331";
const TRACEPARENT: &str = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";

fn statement(sql: &str) -> Value {
    json!({ "sql": sql, "dialect": "sqlite", "schema": SCHEMA })
}

fn question() -> Value {
    json!({ "question": QUESTION, "dialect": "sqlite", "schema": SCHEMA })
}

fn post(env: &TestEnvironment, path: &str, body: &Value, headers: &[&str]) -> Value {
    let body = body.to_string();
    let headers = headers.iter().flat_map(|header| ["-H", *header]);
    let arguments: Vec<&str> = headers.chain(["--json", body.as_str(), path]).collect();
    let answer = curl(env, &arguments).assert_status(200);
    serde_json::from_str(&answer.body).unwrap_or_else(|error| panic!("{error}: {}", answer.body))
}

fn metrics(env: &TestEnvironment) -> String {
    daemon::send_request(&env.socket_path(), "GET", "/metrics", None).expect("an answer").body
}

fn metrics_count_each_judgement_once(env: &TestEnvironment) {
    let (url, _) = start_model(vec![WRONG.to_owned(), "I do not know.".to_owned(), RIGHT.to_owned()]);
    configure_model(env, &url);
    let daemon = env.start_ready_daemon();
    assert_eq!(post(env, "/v1/sql/verify", &statement(RIGHT), &[])["verdict"], "ok");
    assert_eq!(post(env, "/v1/sql/verify", &statement(WRONG), &[])["verdict"], "reject");
    for sql in [RIGHT, WRONG] {
        post(env, "/v1/sql/run", &json!({ "request": statement(sql) }), &[]);
    }
    post(env, "/v1/sql/schema", &json!({ "dialect": "sqlite", "schema": SCHEMA }), &[]);
    let answer = post(env, "/v1/sql/ask", &question(), &[]);
    assert_eq!((&answer["verdict"], answer["attempts"].as_array().map(Vec::len)), (&json!("answered"), Some(3)));
    let text = metrics(env);
    for line in [
        "proctor_sql_judgements_total{verdict=\"ok\",dialect=\"sqlite\"} 3",
        "proctor_sql_judgements_total{verdict=\"reject\",dialect=\"sqlite\"} 3",
        "proctor_sql_judgement_seconds_count{verdict=\"ok\"} 3",
        "proctor_sql_findings_total{code=\"P0612\",severity=\"error\"} 3",
        "proctor_sql_stage_seconds_count{stage=\"bind\"} 6",
        "proctor_sql_questions_total{verdict=\"answered\"} 1",
        "proctor_sql_attempts_total{outcome=\"rejected\"} 1",
        "proctor_sql_attempts_total{outcome=\"unreadable\"} 1",
        "proctor_sql_attempts_total{outcome=\"answered\"} 1",
        "proctor_sql_model_calls_total{provider=\"local\",outcome=\"answered\"} 3",
        "proctor_sql_model_call_seconds_count{provider=\"local\"} 3",
    ] {
        assert!(text.lines().any(|found| found == line), "no {line} in\n{text}");
    }
    let tokens = answer["tokens"]["output"].to_string();
    let line = format!("proctor_sql_model_tokens_total{{provider=\"local\",direction=\"output\"}} {tokens}");
    assert!(text.lines().any(|found| found == line), "no {line} in\n{text}");
    daemon.stop().exits(0);
}

fn disconnected_question_is_cancelled(env: &TestEnvironment) {
    // A model that accepts the request and never answers.
    let silent = std::net::TcpListener::bind("127.0.0.1:0").expect("binds");
    configure_model(env, &format!("http://{}/v1", silent.local_addr().expect("an address")));
    let mut daemon = env.start_ready_daemon();
    let body = question().to_string();
    let asking = super::http::start_curl(env, &["--no-buffer", "--json", &body], "/v1/sql/ask?progress=true");
    let (_connection, _) = silent.accept().expect("the daemon calls the model");
    asking.signal(rustix::process::Signal::KILL);
    asking.wait();
    let cancelled = "proctor_sql_questions_total{verdict=\"cancelled\"} 1";
    daemon.process.wait_until(|| metrics(env).contains(cancelled));
    let text = metrics(env);
    for line in [
        "proctor_sql_attempts_total{outcome=\"unfinished\"} 1",
        "proctor_sql_model_calls_total{provider=\"local\",outcome=\"cancelled\"} 1",
    ] {
        assert!(text.lines().any(|found| found == line), "no {line} in\n{text}");
    }
    daemon.stop().exits(0);
}

/// Returns the spans with a name.
fn named<'a>(spans: &'a [Value], name: &str) -> Vec<&'a Value> {
    spans.iter().filter(|span| span["name"] == name).collect()
}

fn only<'a>(spans: &'a [Value], name: &str, parent: &Value) -> &'a Value {
    let found: Vec<&Value> = named(spans, name).into_iter().filter(|span| span["parent"] == *parent).collect();
    let [one] = found.as_slice() else { panic!("{} spans `{name}` below {parent}: {spans:#?}", found.len()) };
    one
}

#[track_caller]
fn assert_attributes(span: &Value, expected: &Value) {
    for (name, value) in expected.as_object().expect("a map") {
        assert_eq!(&span["attributes"][name], value, "{name}: {span:#}");
    }
}

fn spans_continue_callers_trace(env: &TestEnvironment) {
    let mut receiver = OtlpReceiver::start(env, "ok");
    let (url, _) = start_model(vec![WRONG.to_owned(), RIGHT.to_owned()]);
    configure_model(env, &url);
    env.set_caller_var("OTEL_EXPORTER_OTLP_ENDPOINT", receiver.endpoint());
    let daemon = env.start_ready_daemon();
    let parent = format!("traceparent: {TRACEPARENT}");
    let unsampled = parent.replace("-01", "-00");
    // The first request is not sampled, and the second one begins a new trace.
    post(env, "/v1/sql/verify", &statement(RIGHT), &[&unsampled]);
    post(env, "/v1/sql/verify", &statement(RIGHT), &["traceparent: none"]);
    post(env, "/v1/sql/verify", &statement(WRONG), &[&parent, "tracestate: vendor=1"]);
    post(env, "/v1/sql/run", &json!({ "request": statement(RIGHT) }), &[&parent]);
    post(env, "/v1/sql/ask", &question(), &[&parent]);
    daemon.stop().exits(0);
    let requests = receiver.wait_for_span("sql question");
    let spans = super::telemetry::all_spans(&requests);
    let caller = json!(SPAN_ID);

    let judgement = only(&spans, "sql judgement", &caller);
    assert_attributes(
        judgement,
        &json!({ "proctor.sql.dialect": "sqlite", "proctor.sql.policy": "read", "proctor.sql.verdict": "reject",
            "proctor.sql.codes": ["P0612"] }),
    );
    assert_eq!(
        (&judgement["error"], &judgement["state"], &judgement["remote"], &judgement["events"]),
        (&json!("reject: P0612"), &json!("vendor=1"), &json!(true), &json!(["worker started"]))
    );
    let run = only(&spans, "sql run", &caller);
    assert_attributes(
        run,
        &json!({ "proctor.sql.verdict": "ok", "proctor.sql.rows": 1, "proctor.sql.committed": false }),
    );

    let question = only(&spans, "sql question", &caller);
    assert_attributes(
        question,
        &json!({ "proctor.sql.verdict": "answered", "proctor.sql.provider": "local", "gen_ai.request.model": "m",
            "proctor.sql.attempts": 2 }),
    );
    only(&spans, "sql schema", &question["id"]);
    let attempts: Vec<&Value> = named(&spans, "sql attempt");
    assert_eq!(attempts.len(), 2, "{spans:#?}");
    for (attempt, (number, outcome, verdict)) in attempts.iter().zip([(1, "rejected", "reject"), (2, "answered", "ok")])
    {
        assert_eq!((&attempt["parent"], &attempt["remote"]), (&question["id"], &json!(false)));
        assert_attributes(attempt, &json!({ "proctor.sql.attempt": number, "proctor.sql.outcome": outcome }));
        let call = only(&spans, "model call", &attempt["id"]);
        assert_attributes(call, &json!({ "proctor.sql.provider": "local", "proctor.sql.outcome": "answered" }));
        assert!(call["attributes"]["gen_ai.usage.input_tokens"].as_u64().is_some_and(|count| count > 0), "{call:#}");
        let judged = only(&spans, "sql judgement", &attempt["id"]);
        assert_attributes(judged, &json!({ "proctor.sql.verdict": verdict }));
        assert!(
            judged["start"].as_u64() >= attempt["start"].as_u64() && judged["end"].as_u64() <= attempt["end"].as_u64()
        );
    }
    only(&spans, "sql run", &attempts[1]["id"]);

    let own: Vec<&Value> = spans.iter().filter(|span| span["trace"] != TRACE_ID).collect();
    let [own] = own.as_slice() else { panic!("one span of a new trace: {own:#?}") };
    assert_eq!((&own["name"], &own["parent"]), (&json!("sql judgement"), &json!("")));
    let sent = Value::from(requests).to_string();
    for secret in ["SELECT", "clients", "nmae", "Paris", "Bob-the-row", MODEL_KEY, "name of each"] {
        assert!(!sent.contains(secret), "{secret} in {sent}");
    }
    receiver.stop();
}

fn tools_and_commands_continue_trace(env: &TestEnvironment) {
    let mut receiver = OtlpReceiver::start(env, "ok");
    env.write_operator_config(&format!("[telemetry]\nendpoint = '{}'\n", receiver.endpoint()));
    let daemon = env.start_ready_daemon();
    let call = json!(["call_in_trace", "sql_run", { "sql": RIGHT, "schema": SCHEMA }, TRACEPARENT]);
    let answers = run_sdk(env, &daemon_stdio_server(env), "auto", &json!([call])).answers;
    assert_eq!(answers[0]["structuredContent"]["verdict"], "ok", "{answers:?}");
    env.set_caller_var("TRACEPARENT", TRACEPARENT);
    crate::machine::write(&env.root().join("q.sql"), "SELECT 1");
    let socket = env.socket_path();
    let words = ["sql", "verify", "--daemon", "--socket", socket.to_str().expect("a path"), "q.sql"];
    env.proctor_in(env.root(), &words).exits(0);
    daemon.stop().exits(0);
    let spans = super::telemetry::all_spans(&receiver.wait_for_span("sql judgement"));
    for name in ["sql run", "sql judgement"] {
        assert_eq!(only(&spans, name, &json!(SPAN_ID))["trace"], TRACE_ID);
    }
    receiver.stop();
}
