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
use proctor_core::api::{DoctorScope, How, Problem, ProblemType, RunState};
use proctor_core::spec::quoted;
use proctor_core::telemetry::TraceContext;
use serde::de::DeserializeOwned;
use serde::de::value::{Error as ValueError, StrDeserializer};

use super::answer::{Answer, JSON, content, json};
use super::asked::Asked;
use super::query::{duration, invalid, number};
use super::routes::App;
use super::{MAX_SQL_BODY, events, exec, output};
use crate::metrics::{Sampled, TextFormat};
use crate::service::{MAX_PAGE, RunFilter, Seen, Shown};

/// Header that identifies a repeated request.
const IDEMPOTENCY_KEY: HeaderName = HeaderName::from_static("idempotency-key");
/// Headers with the trace context of the caller (W3C Trace Context).
const TRACEPARENT: HeaderName = HeaderName::from_static("traceparent");
const TRACESTATE: HeaderName = HeaderName::from_static("tracestate");
/// Maximum length of an `Idempotency-Key` in bytes.
const MAX_KEY: usize = 255;
/// Directory of evidence documents; their keys start with it.
const VERIFY: &str = "verify/";

/// Executes an operation.
///
/// # Errors
/// The operation fails or its target does not exist.
pub(super) async fn answer(app: &App, operation: Operation, asked: &Asked, body: Body) -> Answer {
    match operation {
        Operation::SubmitRun => submit(app, asked, body).await,
        Operation::ListRuns => list(app, asked).await,
        Operation::GetRun => run(app, asked).await,
        Operation::CancelRun => cancel(app, asked).await,
        Operation::StreamEvents => events::stream(app, asked).await,
        Operation::ReadOutput => output::read(app, asked, output::output_of(asked)?).await,
        Operation::ReadReport => output::read(app, asked, output::report_of(asked)?).await,
        Operation::ReadPatch => patch(app, asked).await,
        Operation::ReadEvidence => evidence(app, asked).await,
        Operation::Exec => exec::start(app, asked, body).await,
        Operation::CancelExec => exec::cancel(app, asked),
        Operation::ResolvePlan => plan(app, asked, body).await,
        Operation::AskGate => gate(app, asked, body).await,
        Operation::VerifySql => sql(app, asked, body).await,
        Operation::AskDoctor => doctor(app, asked).await,
        Operation::GetHealth => json(StatusCode::OK, &app.service.health()),
        Operation::GetReadiness => json(StatusCode::OK, &app.service.readiness().await?),
        Operation::GetMetrics => Ok(metrics(app, asked).await),
        Operation::GetOpenApi => Ok(content(JSON, description())),
    }
}

async fn submit(app: &App, asked: &Asked, body: Body) -> Answer {
    let key = idempotency_key(asked)?;
    let submission = asked.json(body).await?;
    let submitted = app.service.submit_in_trace(asked.caller, submission, key, trace(asked)).await?;
    let status = match submitted.how {
        How::Queued | How::Joined => StatusCode::ACCEPTED,
        How::Verified | How::Repeated => StatusCode::OK,
    };
    let mut response = json(status, &submitted)?;
    // A run id contains only characters that are valid in a header.
    if let Ok(place) = HeaderValue::try_from(format!("/v1/runs/{}", submitted.run.id)) {
        response.headers_mut().insert(LOCATION, place);
    }
    Ok(response)
}

/// Returns the trace context of the caller. An invalid or repeated one is ignored, which starts a new trace.
fn trace(asked: &Asked) -> Option<TraceContext> {
    let traceparent = asked.header(&TRACEPARENT).ok()??;
    let states: Option<Vec<&str>> =
        asked.headers.get_all(&TRACESTATE).iter().map(|value| value.to_str().ok()).collect();
    TraceContext::parse(traceparent, states.map(|states| states.join(",")).as_deref())
}

fn idempotency_key(asked: &Asked) -> Result<Option<String>, Problem> {
    let Some(key) = asked.header(&IDEMPOTENCY_KEY)? else { return Ok(None) };
    let is_key = (1..=MAX_KEY).contains(&key.len()) && key.bytes().all(|byte| byte.is_ascii_graphic());
    let detail = || format!("`Idempotency-Key` must be 1 to {MAX_KEY} visible characters, not {}", quoted(key));
    if is_key { Ok(Some(key.to_owned())) } else { Err(invalid(detail())) }
}

async fn list(app: &App, asked: &Asked) -> Answer {
    let query = &asked.query;
    let filter = RunFilter {
        repo: query.read("repo", "an absolute path without `..`", repository)?,
        changeset: query.value("changeset_id", "the id of a changeset")?,
        profile: query.value("profile", "the name of a profile")?,
        state: query.read("state", "`queued`, `running` or `finished`", word)?,
        verdict: query.read("verdict", "`passed`, `failed` or `inconclusive`", word)?,
        cursor: query.text("cursor").map(str::to_owned),
        limit: query.read("limit", &format!("a number from 1 to {MAX_PAGE}"), page_size)?,
    };
    json(StatusCode::OK, &app.service.list(asked.caller, filter).await?)
}

/// Normalizes the path of a repository as in the records of runs: without `.`, and with single slashes. `..` is
/// refused, because its target depends on symbolic links.
fn repository(text: &str) -> Option<String> {
    let path = Path::new(text);
    let is_plain = path.is_absolute() && !path.components().any(|part| part == Component::ParentDir);
    is_plain.then(|| path.components().collect::<PathBuf>().to_str().map(str::to_owned)).flatten()
}

/// Parses a variant of an enumeration.
fn word<T: DeserializeOwned>(text: &str) -> Option<T> {
    T::deserialize(StrDeserializer::<ValueError>::new(text)).ok()
}

fn page_size(text: &str) -> Option<u32> {
    number(text).and_then(|limit| u32::try_from(limit).ok()).filter(|limit| (1..=MAX_PAGE).contains(limit))
}

async fn run(app: &App, asked: &Asked) -> Answer {
    let id = asked.run()?;
    let wait = asked.query.read("wait", "a time such as `45s`, `500ms`, `1m` or `30`", duration)?;
    let after = asked.query.read("after", "the number of an event", number)?;
    if wait.is_none() && after.is_none() {
        return app.service.run(asked.caller, &id).await.map(|run| shown(&run));
    }
    let see = |wait| app.service.see(asked.caller, &id, after, wait);
    let seen = tokio::select! {
        biased;
        seen = see(wait.unwrap_or_default()) => seen?,
        () = app.stop.cancelled() => see(Duration::ZERO).await?,
    };
    Ok(content(JSON, seen_json(&seen)))
}

/// Serializes a run with its events like [`proctor_core::api::Watched`]. It appends the events to the JSON of the
/// run, which was serialized once for all callers.
fn seen_json(seen: &Seen) -> Bytes {
    let run = seen.shown.json();
    let Some(events) = &seen.events else { return run };
    let Some(members) = run.strip_suffix(b"}") else { return run };
    let mut json = [members, b",\"events\":[".as_slice()].concat();
    for (index, event) in events.iter().enumerate() {
        if index > 0 {
            json.push(b',');
        }
        // Serialization to memory cannot fail, and every event is serializable.
        let _ = serde_json::to_writer(&mut json, &**event);
    }
    json.extend_from_slice(if seen.more_events { b"],\"more_events\":true}" } else { b"]}" });
    json.into()
}

fn shown(run: &Shown) -> Response {
    content(JSON, run.json())
}

async fn cancel(app: &App, asked: &Asked) -> Answer {
    let by = format!("user {} by DELETE", asked.caller.uid);
    let id = asked.run()?;
    let run = match asked.query.read("abandon", "`true` or `false`", |text| text.parse::<bool>().ok())? {
        Some(true) => app.service.abandon(asked.caller, &id, &by).await?,
        _ => app.service.cancel(asked.caller, &id, &by).await?,
    };
    let mut response = shown(&run);
    if run.view.state != RunState::Finished {
        *response.status_mut() = StatusCode::ACCEPTED;
    }
    Ok(response)
}

async fn evidence(app: &App, asked: &Asked) -> Answer {
    let name = asked.segment("file");
    let file = if name.starts_with(VERIFY) { name.to_owned() } else { format!("{VERIFY}{name}") };
    let (id, place) = (asked.run()?, app.documents.place(asked.caller)?);
    Ok(content(JSON, place.holds(app.service.evidence(asked.caller, &id, &file).await?)))
}

async fn patch(app: &App, asked: &Asked) -> Answer {
    let (id, place) = (asked.run()?, app.documents.place(asked.caller)?);
    let patch = place.holds(app.service.patch(asked.caller, &id).await?);
    Ok(content(HeaderValue::from_static("text/x-patch"), patch))
}

async fn plan(app: &App, asked: &Asked, body: Body) -> Answer {
    let wanted = asked.json(body).await?;
    json(StatusCode::OK, &app.service.plan(asked.caller, wanted).await?)
}

async fn gate(app: &App, asked: &Asked, body: Body) -> Answer {
    let wanted = asked.json(body).await?;
    json(StatusCode::OK, &app.service.gate(asked.caller, wanted).await?)
}

async fn sql(app: &App, asked: &Asked, body: Body) -> Answer {
    let wanted = asked.json_within(body, MAX_SQL_BODY).await?;
    json(StatusCode::OK, &app.service.judge_sql(asked.caller, wanted).await?)
}

async fn doctor(app: &App, asked: &Asked) -> Answer {
    let missing = || invalid("`repo` is missing".to_owned()).with_hint("`GET /v1/doctor?repo=/path/to/repository`");
    let repo = asked.query.text("repo").ok_or_else(missing)?;
    let deep = asked.query.read("deep", "`true` or `false`", |text| text.parse::<bool>().ok())?;
    let scope = DoctorScope::from_deep(deep.unwrap_or(false));
    json(StatusCode::OK, &app.service.doctor(asked.caller, repo, scope).await?)
}

async fn metrics(app: &App, asked: &Asked) -> Response {
    let accepted = asked.headers.get_all(ACCEPT).iter().filter_map(|value| value.to_str().ok());
    let format = TextFormat::accepted_by(accepted);
    let (health, readiness) = (app.service.health(), app.service.readiness().await);
    let sampled = Sampled {
        status: health.status,
        runs: health.runs,
        sql: app.service.sql_counts(),
        is_ready: readiness.is_ok(),
        state_free_bytes: readiness.ok().and_then(|ready| ready.state_free_bytes),
    };
    content(HeaderValue::from_static(format.content_type()), app.metrics.text(sampled, format))
}

/// Returns the OpenAPI document, generated once.
fn description() -> Bytes {
    static DESCRIPTION: OnceLock<Bytes> = OnceLock::new();
    DESCRIPTION.get_or_init(|| openapi::document().to_string().into()).clone()
}

/// Returns the problem for a missing resource.
pub(super) fn nothing(detail: String) -> Problem {
    Problem::new(ProblemType::NotFound, detail)
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use proctor_core::api::{LoggedEvent, RunView, Watched};
    use proctor_core::event::RunEvent;

    use super::*;

    #[test]
    fn a_run_with_its_events_is_one_document() {
        let asked = r#"{"repo":"/r","profile":"pr","changeset_id":null,"rev":null,"submodules":false,
            "max_tier":2,"sandbox":"strict","fail_fast":false,"changes":"applied"}"#;
        let asked = serde_json::from_str(asked).expect("reads");
        let run = RunView::queued("r1".parse().expect("an id"), "t".into(), asked, 7);
        let event = |seq| {
            let event = RunEvent::Cancelling { by: "x".into() };
            Arc::new(LoggedEvent { seq, logged_at: "t".into(), event })
        };
        let shown = Arc::new(Shown::new(run.clone()));
        for (events, more_events) in [(None, false), (Some(vec![]), false), (Some(vec![event(1), event(2)]), true)] {
            let seen = Seen { shown: Arc::clone(&shown), events: events.clone(), more_events };
            let told: Watched = serde_json::from_slice(&seen_json(&seen)).expect("reads");
            let events = events.map(|events| events.iter().map(|event| (**event).clone()).collect());
            assert_eq!(told, Watched { run: run.clone(), events, more_events });
        }
    }

    #[test]
    fn a_repository_to_list_has_one_spelling() {
        for text in ["/a/b", "/a/b/", "//a///b//", "/./a/./b/."] {
            assert_eq!(repository(text).as_deref(), Some("/a/b"), "{text}");
        }
        assert_eq!(repository("/").as_deref(), Some("/"));
        for text in ["", ".", "a", "./a", "~/a", "/a/../b", "/a/b/..", "file:///a"] {
            assert_eq!(repository(text), None, "{text}");
        }
    }

    #[test]
    fn words_of_enumerations_are_those_of_the_documents() {
        assert_eq!(word::<RunState>("finished"), Some(RunState::Finished));
        assert_eq!(word::<RunState>("Finished"), None);
        assert_eq!(["1", "200", "0", "201", "", "1x"].map(page_size), [Some(1), Some(200), None, None, None, None]);
    }
}
