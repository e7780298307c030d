//! Implements the operations: converts a request to a call of the service, and its result to a response.

use std::path::{Component, Path, PathBuf};
use std::sync::OnceLock;
use std::time::Duration;

use axum::body::Body;
use axum::response::Response;
use bytes::Bytes;
use http::StatusCode;
use http::header::{ACCEPT, HeaderName, HeaderValue, LOCATION};
use proctor_core::api::openapi;
use proctor_core::api::operation::Operation;
use proctor_core::api::{DoctorScope, MAX_PAGE, Problem, RunState, SubmissionOutcome};
use proctor_core::model::names::IdempotencyKey;
use proctor_core::spec::quoted;
use proctor_core::telemetry::TraceContext;
use serde::de::DeserializeOwned;
use serde::de::value::{Error as ValueError, StrDeserializer};

use super::app_state::AppState;
use super::limits::MAX_SQL_BODY;
use super::query_parameters::{invalid_request, parse_duration, parse_number};
use super::request_head::RequestHead;
use super::response::{HandlerResult, JSON_CONTENT_TYPE, bytes_response, json_response};
use super::{ask_response, event_stream, exec_response, output_response};
use crate::history::RunFilter;
use crate::metrics::{SampledValues, TextFormat};
use crate::runs::SerializedRun;
use crate::service::RunUpdate;

/// Header that identifies a repeated request.
const IDEMPOTENCY_KEY: HeaderName = HeaderName::from_static("idempotency-key");
/// Headers with the trace context of the caller (W3C Trace Context).
const TRACEPARENT: HeaderName = HeaderName::from_static("traceparent");
const TRACESTATE: HeaderName = HeaderName::from_static("tracestate");
/// Directory of evidence documents; their keys start with it.
const VERIFY_PREFIX: &str = "verify/";

/// Executes an operation.
///
/// # Errors
/// The operation fails or its target does not exist.
pub(super) async fn handle(app: &AppState, operation: Operation, head: &RequestHead, body: Body) -> HandlerResult {
    match operation {
        Operation::SubmitRun => submit_run(app, head, body).await,
        Operation::ListRuns => list_runs(app, head).await,
        Operation::GetRun => get_run(app, head).await,
        Operation::CancelRun => cancel_run(app, head).await,
        Operation::StreamEvents => event_stream::stream_events(app, head).await,
        Operation::ReadOutput => {
            output_response::read_output(app, head, output_response::output_from_path(head)?).await
        }
        Operation::ReadReport => {
            output_response::read_output(app, head, output_response::report_from_path(head)?).await
        }
        Operation::ReadPatch => patch(app, head).await,
        Operation::ReadEvidence => evidence(app, head).await,
        Operation::Exec => exec_response::start_exec(app, head, body).await,
        Operation::CancelExec => exec_response::cancel_exec(app, head),
        Operation::ResolvePlan => plan(app, head, body).await,
        Operation::AskGate => gate(app, head, body).await,
        Operation::VerifySql => judge_sql(app, head, body).await,
        Operation::RunSql => run_sql(app, head, body).await,
        Operation::DescribeSql => describe_sql(app, head, body).await,
        Operation::AskSql => ask_sql(app, head, body).await,
        Operation::AskDoctor => doctor(app, head).await,
        Operation::GetHealth => json_response(StatusCode::OK, &app.service.health()),
        Operation::GetReadiness => json_response(StatusCode::OK, &app.service.readiness().await?),
        Operation::GetMetrics => Ok(metrics(app, head).await),
        Operation::GetOpenApi => Ok(bytes_response(JSON_CONTENT_TYPE, openapi_document())),
    }
}

async fn submit_run(app: &AppState, head: &RequestHead, body: Body) -> HandlerResult {
    let key = idempotency_key(head)?;
    let submission = head.read_json(body).await?;
    let submitted = app.service.submit_in_trace(head.caller, submission, key, trace_context(head)).await?;
    let status = match submitted.how {
        SubmissionOutcome::Queued | SubmissionOutcome::Joined => StatusCode::ACCEPTED,
        SubmissionOutcome::Verified | SubmissionOutcome::Repeated => StatusCode::OK,
    };
    let mut response = json_response(status, &submitted)?;
    // A run id contains only characters that are valid in a header.
    if let Ok(place) = HeaderValue::try_from(format!("/v1/runs/{}", submitted.run.id)) {
        response.headers_mut().insert(LOCATION, place);
    }
    Ok(response)
}

/// Returns the trace context of the caller. An invalid or repeated one is ignored, which starts a new trace.
fn trace_context(head: &RequestHead) -> Option<TraceContext> {
    let traceparent = head.header(&TRACEPARENT).ok()??;
    let states: Option<Vec<&str>> = head.headers.get_all(&TRACESTATE).iter().map(|value| value.to_str().ok()).collect();
    TraceContext::parse(traceparent, states.map(|states| states.join(",")).as_deref())
}

fn idempotency_key(head: &RequestHead) -> Result<Option<IdempotencyKey>, Problem> {
    let Some(key) = head.header(&IDEMPOTENCY_KEY)? else { return Ok(None) };
    let detail = |_| format!("`Idempotency-Key` is {}: {}", quoted(key), IdempotencyKey::RULE);
    IdempotencyKey::new(key).map(Some).map_err(|bad| invalid_request(detail(bad)))
}

async fn list_runs(app: &AppState, head: &RequestHead) -> HandlerResult {
    let query = &head.query;
    let filter = RunFilter {
        repo: query.parse_with("repo", "an absolute path without `..`", normalize_repository)?,
        changeset: query.parse_value("changeset_id", "the id of a changeset")?,
        profile: query.parse_value("profile", "the name of a profile")?,
        state: query.parse_with("state", "`queued`, `running` or `finished`", parse_variant)?,
        verdict: query.parse_with("verdict", "`passed`, `failed` or `inconclusive`", parse_variant)?,
        cursor: query.text("cursor").map(str::to_owned),
        limit: query.parse_with("limit", &format!("a number from 1 to {MAX_PAGE}"), page_size)?,
    };
    json_response(StatusCode::OK, &app.service.list(head.caller, filter).await?)
}

/// Normalizes the path of a repository as in the records of runs: without `.`, and with single slashes. `..` is
/// refused, because its target depends on symbolic links.
fn normalize_repository(text: &str) -> Option<String> {
    let path = Path::new(text);
    let is_plain = path.is_absolute() && !path.components().any(|part| part == Component::ParentDir);
    is_plain.then(|| path.components().collect::<PathBuf>().to_str().map(str::to_owned)).flatten()
}

/// Parses a variant of an enumeration.
fn parse_variant<T: DeserializeOwned>(text: &str) -> Option<T> {
    T::deserialize(StrDeserializer::<ValueError>::new(text)).ok()
}

fn page_size(text: &str) -> Option<u32> {
    parse_number(text).and_then(|limit| u32::try_from(limit).ok()).filter(|limit| (1..=MAX_PAGE).contains(limit))
}

async fn get_run(app: &AppState, head: &RequestHead) -> HandlerResult {
    let id = head.run_id()?;
    let wait = head.query.parse_with("wait", "a time such as `45s`, `500ms`, `1m` or `30`", parse_duration)?;
    let after = head.query.parse_with("after", "the number of an event", parse_number)?;
    if wait.is_none() && after.is_none() {
        return app.service.run(head.caller, &id).await.map(|run| run_response(&run));
    }
    let update = |wait| app.service.watch_shared(head.caller, &id, after, wait);
    let run_update = tokio::select! {
        biased;
        seen = update(wait.unwrap_or_default()) => seen?,
        () = app.stop.cancelled() => update(Duration::ZERO).await?,
    };
    Ok(bytes_response(JSON_CONTENT_TYPE, update_json(&run_update)))
}

/// Serializes a run with its events like [`proctor_core::api::RunWithEvents`]. It appends the events to the JSON of the
/// run, which was serialized once for all callers.
fn update_json(update: &RunUpdate) -> Bytes {
    let run = update.run.json();
    let Some(events) = &update.events else { return run };
    let Some(members) = run.strip_suffix(b"}") else { return run };
    let mut json = [members, b",\"events\":[".as_slice()].concat();
    for (index, event) in events.iter().enumerate() {
        if index > 0 {
            json.push(b',');
        }
        // Serialization to memory cannot fail, and every event is serializable.
        let _ = serde_json::to_writer(&mut json, &**event);
    }
    json.extend_from_slice(if update.more_events { b"],\"more_events\":true}" } else { b"]}" });
    json.into()
}

fn run_response(run: &SerializedRun) -> Response {
    bytes_response(JSON_CONTENT_TYPE, run.json())
}

async fn cancel_run(app: &AppState, head: &RequestHead) -> HandlerResult {
    let by = format!("user {} by DELETE", head.caller.uid);
    let id = head.run_id()?;
    let run = match head.query.parse_with("abandon", "`true` or `false`", |text| text.parse::<bool>().ok())? {
        Some(true) => app.service.abandon(head.caller, &id, &by).await?,
        _ => app.service.cancel(head.caller, &id, &by).await?,
    };
    let mut response = run_response(&run);
    if run.view.state != RunState::Finished {
        *response.status_mut() = StatusCode::ACCEPTED;
    }
    Ok(response)
}

async fn evidence(app: &AppState, head: &RequestHead) -> HandlerResult {
    let name = head.segment("file");
    let file = if name.starts_with(VERIFY_PREFIX) { name.to_owned() } else { format!("{VERIFY_PREFIX}{name}") };
    let (id, permit) = (head.run_id()?, app.document_limit.reserve(head.caller)?);
    Ok(bytes_response(JSON_CONTENT_TYPE, permit.attach(app.service.evidence(head.caller, &id, &file).await?)))
}

async fn patch(app: &AppState, head: &RequestHead) -> HandlerResult {
    let (id, permit) = (head.run_id()?, app.document_limit.reserve(head.caller)?);
    let patch = permit.attach(app.service.patch(head.caller, &id).await?);
    Ok(bytes_response(HeaderValue::from_static("text/x-patch"), patch))
}

async fn plan(app: &AppState, head: &RequestHead, body: Body) -> HandlerResult {
    let request = head.read_json(body).await?;
    json_response(StatusCode::OK, &app.service.plan(head.caller, request).await?)
}

async fn gate(app: &AppState, head: &RequestHead, body: Body) -> HandlerResult {
    let request = head.read_json(body).await?;
    json_response(StatusCode::OK, &app.service.gate(head.caller, request).await?)
}

async fn judge_sql(app: &AppState, head: &RequestHead, body: Body) -> HandlerResult {
    let request = head.read_json_limited(body, MAX_SQL_BODY).await?;
    let span = app.service.start_span(|| trace_context(head));
    json_response(StatusCode::OK, &app.service.judge_sql(head.caller, request, span).await?)
}

async fn ask_sql(app: &AppState, head: &RequestHead, body: Body) -> HandlerResult {
    let with_progress = head.query.parse_with("progress", "`true` or `false`", |text| text.parse::<bool>().ok())?;
    let request = head.read_json_limited(body, MAX_SQL_BODY).await?;
    let span = app.service.start_span(|| trace_context(head));
    if with_progress == Some(true) {
        return ask_response::start_question(app, head.caller, request, span).await;
    }
    json_response(StatusCode::OK, &app.service.ask_sql(head.caller, request, span, |_| {}).await?)
}

async fn run_sql(app: &AppState, head: &RequestHead, body: Body) -> HandlerResult {
    let request = head.read_json_limited(body, MAX_SQL_BODY).await?;
    let span = app.service.start_span(|| trace_context(head));
    json_response(StatusCode::OK, &app.service.run_sql(head.caller, request, span).await?)
}

async fn describe_sql(app: &AppState, head: &RequestHead, body: Body) -> HandlerResult {
    let request = head.read_json_limited(body, MAX_SQL_BODY).await?;
    let span = app.service.start_span(|| trace_context(head));
    json_response(StatusCode::OK, &app.service.describe_sql(head.caller, request, span).await?)
}

async fn doctor(app: &AppState, head: &RequestHead) -> HandlerResult {
    let missing =
        || invalid_request("`repo` is missing".to_owned()).with_hint("`GET /v1/doctor?repo=/path/to/repository`");
    let repo = head.query.text("repo").ok_or_else(missing)?;
    let deep = head.query.parse_with("deep", "`true` or `false`", |text| text.parse::<bool>().ok())?;
    let scope = DoctorScope::from_deep(deep.unwrap_or(false));
    json_response(StatusCode::OK, &app.service.doctor(head.caller, repo, scope).await?)
}

async fn metrics(app: &AppState, head: &RequestHead) -> Response {
    let accepted = head.headers.get_all(ACCEPT).iter().filter_map(|value| value.to_str().ok());
    let format = TextFormat::from_accept_headers(accepted);
    let (health, readiness) = (app.service.health(), app.service.readiness().await);
    let sampled = SampledValues {
        status: health.status,
        runs: health.runs,
        sql: app.service.sql_counts(),
        is_ready: readiness.is_ok(),
        state_free_bytes: readiness.ok().and_then(|ready| ready.state_free_bytes),
    };
    bytes_response(HeaderValue::from_static(format.content_type()), app.metrics.encode(sampled, format))
}

/// Returns the OpenAPI document, generated once.
fn openapi_document() -> Bytes {
    static DESCRIPTION: OnceLock<Bytes> = OnceLock::new();
    DESCRIPTION.get_or_init(|| openapi::document().to_string().into()).clone()
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use proctor_core::api::{LoggedEvent, LoggedRun, RunWithEvents};
    use proctor_core::model::event::RunEvent;

    use super::*;

    #[test]
    fn joins_run_and_events_in_one_document() {
        let request = r#"{"repo":"/r","profile":"pr","changeset_id":null,"rev":null,"submodules":false,
            "max_tier":2,"sandbox":"strict","fail_fast":false,"changes":"applied"}"#;
        let request = serde_json::from_str(request).expect("reads");
        let run = LoggedRun::new_queued("r1".parse().expect("an id"), "t".into(), request, 7).view();
        let event = |seq| {
            let event = RunEvent::Cancelling { by: "x".into() };
            Arc::new(LoggedEvent { seq, logged_at: "t".into(), event })
        };
        let serialized = Arc::new(SerializedRun::new(run.clone()));
        for (events, more_events) in [(None, false), (Some(vec![]), false), (Some(vec![event(1), event(2)]), true)] {
            let update = RunUpdate { run: Arc::clone(&serialized), events: events.clone(), more_events };
            let parsed: RunWithEvents = serde_json::from_slice(&update_json(&update)).expect("reads");
            let events = events.map(|events| events.iter().map(|event| (**event).clone()).collect());
            assert_eq!(parsed, RunWithEvents { run: run.clone(), events, more_events });
        }
    }

    #[test]
    fn normalizes_repository_paths() {
        for text in ["/a/b", "/a/b/", "//a///b//", "/./a/./b/."] {
            assert_eq!(normalize_repository(text).as_deref(), Some("/a/b"), "{text}");
        }
        assert_eq!(normalize_repository("/").as_deref(), Some("/"));
        for text in ["", ".", "a", "./a", "~/a", "/a/../b", "/a/b/..", "file:///a"] {
            assert_eq!(normalize_repository(text), None, "{text}");
        }
    }

    #[test]
    fn parses_documented_enum_values() {
        assert_eq!(parse_variant::<RunState>("finished"), Some(RunState::Finished));
        assert_eq!(parse_variant::<RunState>("Finished"), None);
        assert_eq!(["1", "200", "0", "201", "", "1x"].map(page_size), [Some(1), Some(200), None, None, None, None]);
    }
}
