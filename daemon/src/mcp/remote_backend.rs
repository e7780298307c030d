//! Uses a daemon behind its socket as a backend. The answers of the daemon are passed on; a missing answer is reported
//! as a problem.

use std::collections::BTreeMap;
use std::time::Duration;

use bytes::Bytes;
use proctor_core::api::{GateQuery, PlanAnswer, PlanRequest, Problem, ProblemType, RunPage, RunSubmission, RunView};
use proctor_core::api::{RunWithEvents, SubmittedRun};
use proctor_core::decision::gate::GateAnswer;
use proctor_core::model::names::RunId;
use proctor_core::sql::{
    AskAnswer, AskRequest, Judgement, SchemaAnswer, SchemaRequest, SqlRequest, SqlRunAnswer, SqlRunRequest,
};
use proctor_core::telemetry::{TRACEPARENT, TRACESTATE, TraceContext};
use proctor_runner::StoredPart;
use tokio::sync::mpsc::UnboundedSender;

use super::backend::Backend;
use super::resource_uri::VERIFY_PREFIX;
use crate::client::Client;
use crate::history::RunFilter;
use crate::service::OutputId;
use proctor_client::error::ClientError;

/// A daemon that serves the user of this process.
#[derive(Debug, Clone)]
pub struct RemoteBackend {
    client: Client,
    /// Variables from which the `env_allowlist` of a spec selects: the environment of this process, not that of the
    /// daemon.
    env: BTreeMap<String, String>,
}

impl RemoteBackend {
    /// Creates a backend that uses `client`; `env` is sent with each request for a run.
    pub fn new(client: Client, env: BTreeMap<String, String>) -> Self {
        Self { client, env }
    }
}

impl Backend for RemoteBackend {
    async fn submit(&self, submission: RunSubmission, trace: Option<TraceContext>) -> Result<SubmittedRun, Problem> {
        let mut env = self.env.clone();
        if let Some(trace) = trace {
            env.remove(TRACESTATE);
            env.extend(trace.tracestate().map(|state| (TRACESTATE.to_owned(), state.to_owned())));
            env.insert(TRACEPARENT.to_owned(), trace.traceparent());
        }
        let submission = RunSubmission { env: Some(env), ..submission };
        self.client.submit(&submission, None).await.map_err(into_problem)
    }

    async fn watch(&self, id: &RunId, after: Option<u64>, wait: Duration) -> Result<RunWithEvents, Problem> {
        self.client.watch(id, after, wait).await.map_err(into_problem)
    }

    async fn list(&self, filter: RunFilter) -> Result<RunPage, Problem> {
        self.client.list(&filter).await.map_err(into_problem)
    }

    async fn cancel(&self, id: &RunId, _: &str) -> Result<RunView, Problem> {
        self.client.cancel(id).await.map_err(into_problem)
    }

    async fn abandon(&self, id: &RunId, _: &str) -> Result<(), Problem> {
        self.client.abandon(id).await.map(drop).map_err(into_problem)
    }

    async fn output(
        &self,
        id: &RunId,
        output: OutputId,
        offset: u64,
        limit: usize,
    ) -> Result<(StoredPart, u64), Problem> {
        let part = self.client.output(id, output, offset, limit).await.map_err(into_problem)?;
        if part.bytes.is_empty() && offset > 0 {
            // Each part includes the total length; this part is empty.
            let length = self.client.output(id, output, 0, 1).await.map_err(into_problem)?.length;
            return Ok((StoredPart { bytes: Vec::new(), has_more: false }, length));
        }
        let more = offset.saturating_add(part.bytes.len() as u64) < part.length;
        Ok((StoredPart { bytes: part.bytes.to_vec(), has_more: more }, part.length))
    }

    async fn output_end(&self, id: &RunId, output: OutputId, max_bytes: usize) -> Result<Vec<u8>, Problem> {
        self.client.output_end(id, output, max_bytes).await.map(|bytes| bytes.to_vec()).map_err(into_problem)
    }

    async fn evidence(&self, id: &RunId, file: &str) -> Result<Bytes, Problem> {
        let name = file.strip_prefix(VERIFY_PREFIX).unwrap_or(file);
        self.client.evidence(id, name).await.map_err(into_problem)
    }

    async fn plan(&self, request: PlanRequest) -> Result<PlanAnswer, Problem> {
        self.client.plan(&request).await.map_err(into_problem)
    }

    async fn judge_sql(&self, request: SqlRequest, trace: Option<TraceContext>) -> Result<Judgement, Problem> {
        self.client.in_trace(trace).judge_sql(&request).await.map_err(into_problem)
    }

    async fn ask_sql(
        &self,
        request: AskRequest,
        trace: Option<TraceContext>,
        progress: UnboundedSender<String>,
    ) -> Result<AskAnswer, Problem> {
        // The receiver ends with the call; then no caller reads the steps.
        let forward = move |step| drop(progress.send(step));
        self.client.in_trace(trace).ask_sql(&request, forward).await.map_err(into_problem)
    }

    async fn run_sql(&self, request: SqlRunRequest, trace: Option<TraceContext>) -> Result<SqlRunAnswer, Problem> {
        self.client.in_trace(trace).run_sql(&request).await.map_err(into_problem)
    }

    async fn describe_sql(&self, request: SchemaRequest, trace: Option<TraceContext>) -> Result<SchemaAnswer, Problem> {
        self.client.in_trace(trace).describe_sql(&request).await.map_err(into_problem)
    }

    async fn gate(&self, request: GateQuery) -> Result<GateAnswer, Problem> {
        self.client.gate(&request).await.map_err(into_problem)
    }
}

fn into_problem(error: ClientError) -> Problem {
    match error {
        ClientError::Problem(problem) => *problem,
        error => Problem::new(ProblemType::Unavailable, error.to_string())
            .with_hint("`proctor daemon status` reports the state of the daemon"),
    }
}
