//! What the tools need of whoever runs things: the service of this process for one caller, or a
//! daemon behind its socket. No protocol here.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use proctor_core::api::{
    GateAsked, PlanAnswer, PlanAsked, Problem, RunPage, RunSubmission, RunView, Submitted, Watched,
};
use proctor_core::gate::GateAnswer;
use proctor_core::names::RunId;
use proctor_core::sql::{Judgement, Request};
use proctor_core::telemetry::TraceContext;
use proctor_runner::Part;

use crate::caller::Caller;
use crate::service::{OutputOf, RunFilter, Service};

/// Who runs what the tools ask for, for one caller. Each method means what the one of [`Service`]
/// with its name does.
pub trait Backend: Clone + Send + Sync + 'static {
    /// Takes a run on, or answers with one that does as well. The run is a part of `trace`, where there is one.
    fn submit(
        &self,
        submission: RunSubmission,
        trace: Option<TraceContext>,
    ) -> impl Future<Output = Result<Submitted, Problem>> + Send;

    /// A run as soon as there is news of it.
    fn watch(
        &self,
        id: &RunId,
        after: Option<u64>,
        wait: Duration,
    ) -> impl Future<Output = Result<Watched, Problem>> + Send;

    /// Runs, newest first.
    fn list(&self, filter: RunFilter) -> impl Future<Output = Result<RunPage, Problem>> + Send;

    /// Asks a run to end.
    fn cancel(&self, id: &RunId, by: &str) -> impl Future<Output = Result<RunView, Problem>> + Send;

    /// Says that the one who asked for a run wants it no longer. It is cancelled where nobody else
    /// has joined it.
    fn abandon(&self, id: &RunId, by: &str) -> impl Future<Output = Result<(), Problem>> + Send;

    /// A part of an output, and the whole kept length.
    fn output(
        &self,
        id: &RunId,
        of: OutputOf,
        offset: u64,
        limit: usize,
    ) -> impl Future<Output = Result<(Part, u64), Problem>> + Send;

    /// The last bytes of an output; of a step that runs, those that it has printed so far.
    fn output_end(
        &self,
        id: &RunId,
        of: OutputOf,
        most: usize,
    ) -> impl Future<Output = Result<Vec<u8>, Problem>> + Send;

    /// One of a run's documents, with the bytes that are on record.
    fn evidence(&self, id: &RunId, file: &str) -> impl Future<Output = Result<Bytes, Problem>> + Send;

    /// Validates a spec, and resolves a profile of it.
    fn plan(&self, asked: PlanAsked) -> impl Future<Output = Result<PlanAnswer, Problem>> + Send;

    /// Judges SQL.
    fn judge_sql(&self, request: Request) -> impl Future<Output = Result<Judgement, Problem>> + Send;

    /// Answers whether a tree is verified.
    fn gate(&self, asked: GateAsked) -> impl Future<Output = Result<GateAnswer, Problem>> + Send;
}

impl Backend for (Arc<Service>, Caller) {
    async fn submit(&self, submission: RunSubmission, trace: Option<TraceContext>) -> Result<Submitted, Problem> {
        self.0.submit_in_trace(self.1, submission, None, trace).await
    }

    async fn watch(&self, id: &RunId, after: Option<u64>, wait: Duration) -> Result<Watched, Problem> {
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

    async fn output(&self, id: &RunId, of: OutputOf, offset: u64, limit: usize) -> Result<(Part, u64), Problem> {
        self.0.output(self.1, id, of, offset, limit).await
    }

    async fn output_end(&self, id: &RunId, of: OutputOf, most: usize) -> Result<Vec<u8>, Problem> {
        let source = self.0.output_source(self.1, id, of).await?;
        let (_, length) = self.0.output_part(&source, 0, 1).await?;
        let offset = length.saturating_sub(most as u64);
        self.0.output_part(&source, offset, most).await.map(|(part, _)| part.bytes)
    }

    async fn evidence(&self, id: &RunId, file: &str) -> Result<Bytes, Problem> {
        self.0.evidence(self.1, id, file).await
    }

    async fn plan(&self, asked: PlanAsked) -> Result<PlanAnswer, Problem> {
        self.0.plan(self.1, asked).await
    }

    async fn judge_sql(&self, request: Request) -> Result<Judgement, Problem> {
        self.0.judge_sql(self.1, request).await
    }

    async fn gate(&self, asked: GateAsked) -> Result<GateAnswer, Problem> {
        self.0.gate(self.1, asked).await
    }
}
