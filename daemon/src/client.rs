//! Client of the daemon: calls the operations of [`Service`](crate::service::Service) from another process. Requests
//! that follow each other closely share a connection. Every wait has a deadline, and every response is bounded. The
//! caller interprets the response.

mod ask_client;
mod connection;
mod events;
mod exec_client;
mod live_output;
#[cfg(test)]
pub(crate) mod tests;

use std::time::Duration;

use bytes::Bytes;
use http::header::{CONTENT_RANGE, CONTENT_TYPE, HeaderValue, RANGE};
use http::{HeaderMap, Method, Response};
use proctor_client::blocking_connection::{MAX_JSON, QUICK_TIMEOUT};
use proctor_client::daemon_address::DaemonAddress;
use proctor_client::error::ClientError;
use proctor_core::api::{
    DoctorAnswer, DoctorScope, GateQuery, Health, PlanAnswer, PlanRequest, ProblemType, RunPage, RunState,
    RunSubmission, RunView, RunWithEvents, SubmittedRun,
};
use proctor_core::decision::gate::GateAnswer;
use proctor_core::model::names::RunId;
use proctor_core::sql::{Judgement, SchemaAnswer, SchemaRequest, SqlRunAnswer, SqlRunRequest};
use proctor_core::telemetry::TraceContext;
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::history::RunFilter;
use crate::service::{MAX_WAIT, OutputId, ReportId};
use connection::{HttpRequest, IdleConnection, ResponseBody, empty_request, send_request_over};

pub use events::{LiveOutputReader, RunEventReader};
pub use exec_client::RemoteExecution;
pub use live_output::FollowedOutput;

/// Timeout of requests that hash a tree or set up a sandbox: enough to read a large tree from a slow disk for the
/// first time.
const WORK_TIMEOUT: Duration = Duration::from_secs(600);
/// Maximum size of a patch in bytes: the limit of the engine plus a margin.
const MAX_PATCH: usize = 80 << 20;
/// Headers with the span of the caller (W3C Trace Context).
const TRACEPARENT: &str = "traceparent";
const TRACESTATE: &str = "tracestate";
/// Header that identifies a repeated request.
const IDEMPOTENCY_KEY: &str = "idempotency-key";

/// Client of a daemon that may or may not be running. Cheap to clone.
#[derive(Debug, Clone)]
pub struct Client {
    address: DaemonAddress,
    idle: IdleConnection,
    /// The span of the caller, sent with each request about SQL.
    trace: Option<TraceContext>,
}

/// Part of an output.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OutputPart {
    /// The bytes.
    pub bytes: Bytes,
    /// Total length of the output.
    pub length: u64,
}

impl Client {
    /// Creates a client of the daemon at `place`. Sends nothing yet.
    pub fn new(place: DaemonAddress) -> Self {
        Self { address: place, idle: IdleConnection::default(), trace: None }
    }

    /// Returns a client whose requests about SQL are a part of this trace.
    #[must_use]
    pub fn in_trace(&self, trace: Option<TraceContext>) -> Self {
        Self { trace, ..self.clone() }
    }

    /// Returns the location of the daemon.
    pub fn address(&self) -> &DaemonAddress {
        &self.address
    }

    /// Returns the health of the daemon. It responds immediately, whatever it is doing.
    ///
    /// # Errors
    /// The daemon is not running, does not respond, or does not serve this user.
    pub async fn health(&self) -> Result<Health, ClientError> {
        self.get("/healthz", QUICK_TIMEOUT).await
    }

    /// Requests a run. Two requests with the same `key` result in one run.
    ///
    /// # Errors
    /// As for every call: the daemon is not running, does not respond, or refuses the request (a `Problem`).
    pub async fn submit(&self, submission: &RunSubmission, key: Option<&str>) -> Result<SubmittedRun, ClientError> {
        let mut request = post_request("/v1/runs", submission)?;
        if let Some(key) = key {
            let value = HeaderValue::from_str(key)
                .map_err(|_| self.invalid_response("the idempotency key is not a valid header"))?;
            request.headers_mut().insert(IDEMPOTENCY_KEY, value);
        }
        self.json(request, WORK_TIMEOUT).await
    }

    /// Returns the current state of a run.
    ///
    /// # Errors
    /// As [`Client::submit`].
    pub async fn run(&self, id: &RunId) -> Result<RunView, ClientError> {
        let watched: RunWithEvents = self.get(&format!("/v1/runs/{id}"), QUICK_TIMEOUT).await?;
        Ok(watched.run)
    }

    /// Waits until a run has new events or a new state, like [`Service::watch`](crate::service::Service::watch).
    ///
    /// # Errors
    /// As [`Client::submit`].
    pub async fn watch(&self, id: &RunId, after: Option<u64>, wait: Duration) -> Result<RunWithEvents, ClientError> {
        let wait = wait.min(MAX_WAIT);
        let after = after.map(|after| format!("&after={after}")).unwrap_or_default();
        self.get(&format!("/v1/runs/{id}?wait={}ms{after}", wait.as_millis()), wait + QUICK_TIMEOUT).await
    }

    /// Returns the events of a run after `after`, including future ones. A lost connection is re-established after
    /// the last received event.
    pub fn events(&self, id: &RunId, after: u64) -> RunEventReader {
        RunEventReader::new((self.address.clone(), self.idle.clone()), id.clone(), after)
    }

    /// Returns the output of the steps of a run from now on, for display.
    ///
    /// # Errors
    /// As [`Client::submit`].
    pub async fn live_output(&self, id: &RunId) -> Result<LiveOutputReader, ClientError> {
        LiveOutputReader::open(&self.address, id).await
    }

    /// Lists runs, newest first.
    ///
    /// # Errors
    /// As [`Client::submit`].
    pub async fn list(&self, filter: &RunFilter) -> Result<RunPage, ClientError> {
        self.get(&format!("/v1/runs{}", query_string(&filter_pairs(filter))), QUICK_TIMEOUT).await
    }

    /// Requests cancellation of a run. Returns immediately; the end is reported as an event.
    ///
    /// # Errors
    /// As [`Client::submit`].
    pub async fn cancel(&self, id: &RunId) -> Result<RunView, ClientError> {
        self.json(empty_request(Method::DELETE, &format!("/v1/runs/{id}")), QUICK_TIMEOUT).await
    }

    /// Withdraws one request for a run. The run is cancelled if no other request is left.
    ///
    /// # Errors
    /// As [`Client::submit`].
    pub async fn abandon(&self, id: &RunId) -> Result<RunView, ClientError> {
        self.json(empty_request(Method::DELETE, &format!("/v1/runs/{id}?abandon=true")), QUICK_TIMEOUT).await
    }

    /// Returns a document of a run's evidence by its name below `verify/`.
    ///
    /// # Errors
    /// As [`Client::submit`]; also if the document does not exist or no longer matches the record.
    pub async fn evidence(&self, id: &RunId, file: &str) -> Result<Bytes, ClientError> {
        let request = empty_request(Method::GET, &format!("/v1/runs/{id}/evidence/{}", percent_encode(file)));
        Ok(self.exchange(request, QUICK_TIMEOUT, MAX_JSON).await?.1)
    }

    /// Returns at most `limit` bytes of an output from `offset` on.
    ///
    /// # Errors
    /// As [`Client::submit`]; also if the step has not started.
    pub async fn output(
        &self,
        id: &RunId,
        output: OutputId,
        offset: u64,
        limit: usize,
    ) -> Result<OutputPart, ClientError> {
        let path = format!("/v1/runs/{id}/{}?offset={offset}&limit={limit}", output.path());
        let (head, bytes) = self.exchange(empty_request(Method::GET, &path), QUICK_TIMEOUT, MAX_JSON).await?;
        let end = offset + bytes.len() as u64;
        let length = total_length(head.headers()).unwrap_or(end).max(end);
        Ok(OutputPart { bytes, length })
    }

    /// Returns the last bytes of an output, at most `most`. For a running step, these are the last bytes so far.
    ///
    /// # Errors
    /// As [`Client::submit`]; also if the step has not started.
    pub async fn output_end(&self, id: &RunId, output: OutputId, max_bytes: usize) -> Result<Bytes, ClientError> {
        let mut request = empty_request(Method::GET, &format!("/v1/runs/{id}/{}", output.path()));
        let range = HeaderValue::try_from(format!("bytes=-{max_bytes}"))
            .map_err(|error| self.invalid_response(&error.to_string()))?;
        request.headers_mut().insert(RANGE, range);
        match self.exchange(request, QUICK_TIMEOUT, MAX_JSON).await {
            Ok((_, bytes)) => Ok(bytes),
            Err(ClientError::Problem(problem)) if problem.kind == ProblemType::RangeNotSatisfiable => Ok(Bytes::new()),
            Err(error) => Err(error),
        }
    }

    /// Follows an output from `offset` on, until the running attempt ends.
    ///
    /// # Errors
    /// As [`Client::submit`]; also if the step does not start within [`MAX_WAIT`].
    pub async fn follow_output(
        &self,
        id: &RunId,
        output: OutputId,
        offset: u64,
    ) -> Result<FollowedOutput, ClientError> {
        FollowedOutput::open(&self.address, id, output, offset).await
    }

    /// Returns the stored part of a report of a step.
    ///
    /// # Errors
    /// As [`Client::submit`]; also if the step has not ended or wrote no such report.
    pub async fn report(&self, id: &RunId, report: ReportId) -> Result<Bytes, ClientError> {
        let request = empty_request(Method::GET, &format!("/v1/runs/{id}/{}", report.path()));
        Ok(self.exchange(request, QUICK_TIMEOUT, MAX_JSON).await?.1)
    }

    /// Returns the changes that the steps of a run made, if the request has `changes: patch`.
    ///
    /// # Errors
    /// As [`Client::submit`]; also if there is no patch.
    pub async fn patch(&self, id: &RunId) -> Result<Bytes, ClientError> {
        let request = empty_request(Method::GET, &format!("/v1/runs/{id}/patch"));
        Ok(self.exchange(request, QUICK_TIMEOUT, MAX_PATCH).await?.1)
    }

    /// Validates a spec and resolves one of its profiles.
    ///
    /// # Errors
    /// As [`Client::submit`].
    pub async fn plan(&self, request: &PlanRequest) -> Result<PlanAnswer, ClientError> {
        self.json(post_request("/v1/plans", request)?, WORK_TIMEOUT).await
    }

    /// Checks whether a tree is verified. Runs nothing.
    ///
    /// # Errors
    /// As [`Client::submit`].
    pub async fn gate(&self, request: &GateQuery) -> Result<GateAnswer, ClientError> {
        self.json(post_request("/v1/gate", request)?, WORK_TIMEOUT).await
    }

    /// Requests a judgement of SQL.
    ///
    /// # Errors
    /// As [`Client::submit`].
    pub async fn judge_sql(&self, request: &proctor_core::sql::SqlRequest) -> Result<Judgement, ClientError> {
        // `WORK_TIMEOUT` includes the wait for a worker.
        let within = WORK_TIMEOUT + Duration::from_millis(request.limits.time_ms);
        self.json(self.in_own_trace(post_request("/v1/sql/verify", request)?)?, within).await
    }

    /// Requests a judgement of SQL, and its rows if the verdict is `ok`.
    ///
    /// # Errors
    /// As [`Client::submit`].
    pub async fn run_sql(&self, request: &SqlRunRequest) -> Result<SqlRunAnswer, ClientError> {
        let within = WORK_TIMEOUT + Duration::from_millis(request.request.limits.time_ms);
        self.json(self.in_own_trace(post_request("/v1/sql/run", request)?)?, within).await
    }

    /// Requests the description of a schema.
    ///
    /// # Errors
    /// As [`Client::submit`].
    pub async fn describe_sql(&self, request: &SchemaRequest) -> Result<SchemaAnswer, ClientError> {
        let within = WORK_TIMEOUT + Duration::from_millis(request.limits.time_ms);
        self.json(self.in_own_trace(post_request("/v1/sql/schema", request)?)?, within).await
    }

    /// Reports the controls that a sandbox enforces for a repository on the daemon's machine.
    ///
    /// # Errors
    /// As [`Client::submit`].
    pub async fn doctor(&self, repo: &str, scope: DoctorScope) -> Result<DoctorAnswer, ClientError> {
        let mut pairs = vec![("repo", repo.to_owned())];
        if scope == DoctorScope::MachineAndCopies {
            pairs.push(("deep", true.to_string()));
        }
        self.get(&format!("/v1/doctor{}", query_string(&pairs)), WORK_TIMEOUT).await
    }

    /// Adds the headers of the client's trace to a request.
    fn in_own_trace(&self, mut request: HttpRequest) -> Result<HttpRequest, ClientError> {
        let Some(trace) = &self.trace else { return Ok(request) };
        let parent = Some((TRACEPARENT, trace.traceparent()));
        let state = trace.tracestate().map(|state| (TRACESTATE, state.to_owned()));
        for (name, value) in parent.into_iter().chain(state) {
            let value = HeaderValue::try_from(value)
                .map_err(|_| ClientError::UnserializableRequest(format!("`{name}` is not a valid header")))?;
            request.headers_mut().insert(name, value);
        }
        Ok(request)
    }

    async fn get<T: DeserializeOwned>(&self, path: &str, within: Duration) -> Result<T, ClientError> {
        self.json(empty_request(Method::GET, path), within).await
    }

    async fn json<T: DeserializeOwned>(&self, request: HttpRequest, within: Duration) -> Result<T, ClientError> {
        let (head, bytes) = self.exchange(request, within, MAX_JSON).await?;
        if !is_json(head.headers()) {
            return Err(self.invalid_response("its content type is not JSON"));
        }
        serde_json::from_slice(&bytes).map_err(|error| self.invalid_response(&error.to_string()))
    }

    /// Sends a request and reads the whole response. A response that is a problem is returned as an error.
    async fn exchange(
        &self,
        request: HttpRequest,
        within: Duration,
        max_bytes: usize,
    ) -> Result<(Response<()>, Bytes), ClientError> {
        let (response, connection) = send_request_over(&self.idle, &self.address, request, within).await?;
        let (head, body) = response.into_parts();
        let head = Response::from_parts(head, ());
        let bytes = ResponseBody::new(body, &self.address).read_all(max_bytes).await?;
        self.idle.keep(connection);
        if head.status().is_success() {
            return Ok((head, bytes));
        }
        Err(match serde_json::from_slice(&bytes) {
            Ok(problem) => ClientError::Problem(Box::new(problem)),
            Err(_) => self.invalid_response(&format!("it has the status {} without a problem document", head.status())),
        })
    }

    fn invalid_response(&self, reason: &str) -> ClientError {
        ClientError::InvalidResponse { socket: self.address.socket.clone(), reason: reason.to_owned() }
    }
}

fn post_request<T: Serialize>(path: &str, body: &T) -> Result<HttpRequest, ClientError> {
    let body = serde_json::to_vec(body).map_err(|error| ClientError::UnserializableRequest(error.to_string()))?;
    let mut request = empty_request(Method::POST, path);
    *request.body_mut() = body.into();
    request.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
    Ok(request)
}

fn is_json(headers: &HeaderMap) -> bool {
    let kind = headers.get(CONTENT_TYPE).and_then(|value| value.to_str().ok()).unwrap_or_default();
    let kind = kind.split(';').next().unwrap_or_default().trim();
    kind == "application/json" || kind.ends_with("+json")
}

/// Returns the total length of a partial response: the number after the `/` of `Content-Range`.
fn total_length(headers: &HeaderMap) -> Option<u64> {
    headers.get(CONTENT_RANGE)?.to_str().ok()?.rsplit_once('/')?.1.parse().ok()
}

fn filter_pairs(filter: &RunFilter) -> Vec<(&'static str, String)> {
    let pairs = [
        ("repo", filter.repo.clone()),
        ("changeset_id", filter.changeset.as_ref().map(ToString::to_string)),
        ("profile", filter.profile.as_ref().map(ToString::to_string)),
        ("state", filter.state.map(|state: RunState| state.as_str().to_owned())),
        ("verdict", filter.verdict.map(|verdict| verdict.as_str().to_owned())),
        ("cursor", filter.cursor.clone()),
        ("limit", filter.limit.map(|limit| limit.to_string())),
    ];
    pairs.into_iter().filter_map(|(name, value)| Some((name, value?))).collect()
}

/// Formats `?a=b&c=d`, or an empty string without pairs.
fn query_string(pairs: &[(&str, String)]) -> String {
    let pairs: Vec<String> = pairs.iter().map(|(name, value)| format!("{name}={}", percent_encode(value))).collect();
    if pairs.is_empty() { String::new() } else { format!("?{}", pairs.join("&")) }
}

/// Percent-encodes all bytes except the unreserved characters (RFC 3986) and `/`.
fn percent_encode(text: &str) -> String {
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-._~/".contains(&byte);
    text.bytes()
        .map(|byte| if is_plain(byte) { char::from(byte).to_string() } else { format!("%{byte:02X}") })
        .collect()
}
