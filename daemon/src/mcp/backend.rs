//! Interface between the tools and the program that runs checks: the service of this process, or a daemon behind its
//! socket. Independent of the protocol.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use proctor_core::api::{
    GateQuery, PlanAnswer, PlanRequest, Problem, RunPage, RunSubmission, RunView, RunWithEvents, SubmittedRun,
};
use proctor_core::decision::gate::GateAnswer;
use proctor_core::model::names::RunId;
use proctor_core::sql::{
    AskAnswer, AskRequest, Judgement, SchemaAnswer, SchemaRequest, SqlRequest, SqlRunAnswer, SqlRunRequest,
};
use proctor_core::telemetry::TraceContext;
use proctor_runner::StoredPart;
use tokio::sync::mpsc::UnboundedSender;

use crate::caller::Caller;
use crate::history::RunFilter;
use crate::service::{OutputId, Service};

/// Executes the requests of one caller. Each method corresponds to the method of [`Service`] with the same name.
pub trait Backend: Clone + Send + Sync + 'static {
    /// Starts a run, or returns one that answers the request. The run becomes part of `trace`, if given.
    fn submit(
        &self,
        submission: RunSubmission,
        trace: Option<TraceContext>,
    ) -> impl Future<Output = Result<SubmittedRun, Problem>> + Send;

    /// Waits until a run has new events or a new state, and returns them.
    fn watch(
        &self,
        id: &RunId,
        after: Option<u64>,
        wait: Duration,
    ) -> impl Future<Output = Result<RunWithEvents, Problem>> + Send;

    /// Lists runs, newest first.
    fn list(&self, filter: RunFilter) -> impl Future<Output = Result<RunPage, Problem>> + Send;

    /// Requests cancellation of a run.
    fn cancel(&self, id: &RunId, by: &str) -> impl Future<Output = Result<RunView, Problem>> + Send;

    /// Withdraws a request for a run. The run is cancelled if no other request is left.
    fn abandon(&self, id: &RunId, by: &str) -> impl Future<Output = Result<(), Problem>> + Send;

    /// Returns a part of an output and the total stored length.
    fn output(
        &self,
        id: &RunId,
        output: OutputId,
        offset: u64,
        limit: usize,
    ) -> impl Future<Output = Result<(StoredPart, u64), Problem>> + Send;

    /// Returns the last bytes of an output. For a running step, these are the last bytes so far.
    fn output_end(
        &self,
        id: &RunId,
        output: OutputId,
        max_bytes: usize,
    ) -> impl Future<Output = Result<Vec<u8>, Problem>> + Send;

    /// Returns a document of a run if its bytes match the recorded digest.
    fn evidence(&self, id: &RunId, file: &str) -> impl Future<Output = Result<Bytes, Problem>> + Send;

    /// Validates a spec and resolves one of its profiles.
    fn plan(&self, request: PlanRequest) -> impl Future<Output = Result<PlanAnswer, Problem>> + Send;

    /// Judges SQL. As for the other requests about SQL, its span becomes part of `trace`, if given.
    fn judge_sql(
        &self,
        request: SqlRequest,
        trace: Option<TraceContext>,
    ) -> impl Future<Output = Result<Judgement, Problem>> + Send;

    /// Answers a question to a database. `progress` receives the steps.
    fn ask_sql(
        &self,
        request: AskRequest,
        trace: Option<TraceContext>,
        progress: UnboundedSender<String>,
    ) -> impl Future<Output = Result<AskAnswer, Problem>> + Send;

    /// Judges SQL, and runs it if the verdict is `ok`.
    fn run_sql(
        &self,
        request: SqlRunRequest,
        trace: Option<TraceContext>,
    ) -> impl Future<Output = Result<SqlRunAnswer, Problem>> + Send;

    /// Describes the schema of a database.
    fn describe_sql(
        &self,
        request: SchemaRequest,
        trace: Option<TraceContext>,
    ) -> impl Future<Output = Result<SchemaAnswer, Problem>> + Send;

    /// Reports whether a tree is verified.
    fn gate(&self, request: GateQuery) -> impl Future<Output = Result<GateAnswer, Problem>> + Send;
}

impl Backend for (Arc<Service>, Caller) {
    async fn submit(&self, submission: RunSubmission, trace: Option<TraceContext>) -> Result<SubmittedRun, Problem> {
        self.0.submit_in_trace(self.1, submission, None, trace).await
    }

    async fn watch(&self, id: &RunId, after: Option<u64>, wait: Duration) -> Result<RunWithEvents, Problem> {
        self.0.watch(self.1, id, after, wait).await
    }

    async fn list(&self, filter: RunFilter) -> Result<RunPage, Problem> {
        self.0.list(self.1, filter).await
    }

    async fn cancel(&self, id: &RunId, by: &str) -> Result<RunView, Problem> {
        self.0.cancel(self.1, id, by).await.map(|shown| shown.view.clone())
    }

    async fn abandon(&self, id: &RunId, by: &str) -> Result<(), Problem> {
        self.0.abandon(self.1, id, by).await.map(drop)
    }

    async fn output(
        &self,
        id: &RunId,
        output: OutputId,
        offset: u64,
        limit: usize,
    ) -> Result<(StoredPart, u64), Problem> {
        self.0.output(self.1, id, output, offset, limit).await
    }

    async fn output_end(&self, id: &RunId, output: OutputId, max_bytes: usize) -> Result<Vec<u8>, Problem> {
        let source = self.0.output_source(self.1, id, output).await?;
        let (_, length) = self.0.output_part(&source, 0, 1).await?;
        let offset = length.saturating_sub(max_bytes as u64);
        self.0.output_part(&source, offset, max_bytes).await.map(|(part, _)| part.bytes)
    }

    async fn evidence(&self, id: &RunId, file: &str) -> Result<Bytes, Problem> {
        self.0.evidence(self.1, id, file).await
    }

    async fn plan(&self, request: PlanRequest) -> Result<PlanAnswer, Problem> {
        self.0.plan(self.1, request).await
    }

    async fn judge_sql(&self, request: SqlRequest, trace: Option<TraceContext>) -> Result<Judgement, Problem> {
        self.0.judge_sql(self.1, request, self.0.start_span(|| trace)).await
    }

    async fn ask_sql(
        &self,
        request: AskRequest,
        trace: Option<TraceContext>,
        progress: UnboundedSender<String>,
    ) -> Result<AskAnswer, Problem> {
        let span = self.0.start_span(|| trace);
        // The receiver ends with the call; then no caller reads the steps.
        self.0.ask_sql(self.1, request, span, move |step| drop(progress.send(step.to_string()))).await
    }

    async fn run_sql(&self, request: SqlRunRequest, trace: Option<TraceContext>) -> Result<SqlRunAnswer, Problem> {
        self.0.run_sql(self.1, request, self.0.start_span(|| trace)).await
    }

    async fn describe_sql(&self, request: SchemaRequest, trace: Option<TraceContext>) -> Result<SchemaAnswer, Problem> {
        self.0.describe_sql(self.1, request, self.0.start_span(|| trace)).await
    }

    async fn gate(&self, request: GateQuery) -> Result<GateAnswer, Problem> {
        self.0.gate(self.1, request).await
    }
}
