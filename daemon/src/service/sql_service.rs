//! Requests about SQL: judgements, rows and schemas. All wait in one queue for a worker.

use std::sync::Arc;
use std::time::Duration;

use proctor_core::api::{Problem, ProblemType};
use proctor_core::sql::{
    Judgement, MAX_TIME_MS, SchemaAnswer, SchemaRequest, SqlRequest, SqlResourceLimits, SqlRunAnswer, SqlRunRequest,
};
use proctor_core::telemetry::{TraceContext, TracedAnswer};
use proctor_runner::WorkerPool;
use tokio::time::Instant;

use super::Service;
use super::continue_on_drop::ContinueOnDrop;
use super::judgement_count::JudgementCount;
use super::sql_queue::SqlPermit;
use crate::caller::Caller;
use crate::telemetry::RequestSpan;

impl Service {
    /// Judges SQL. Changes nothing.
    ///
    /// # Errors
    /// The caller names a database and is not the daemon's own user, the workers cannot be started, too many requests
    /// wait, or no worker becomes free in time.
    pub async fn judge_sql(
        &self,
        caller: Caller,
        request: SqlRequest,
        span: RequestSpan,
    ) -> Result<Judgement, Problem> {
        self.check_sql(caller, request.database.as_deref(), &request.limits)?;
        let judge = async move |workers: Arc<WorkerPool>| workers.judge(&request).await;
        self.with_sql_worker(caller, judge, span, JudgementCount::Once).await
    }

    /// Judges SQL, and runs it if the verdict is `ok`.
    ///
    /// # Errors
    /// As [`Service::judge_sql`].
    pub async fn run_sql(
        &self,
        caller: Caller,
        request: SqlRunRequest,
        span: RequestSpan,
    ) -> Result<SqlRunAnswer, Problem> {
        self.run_statement(caller, request, span, JudgementCount::Once).await
    }

    /// Judges SQL, and runs it if the verdict is `ok`. `count` states whether the judgement counts.
    ///
    /// # Errors
    /// As [`Service::judge_sql`].
    pub(super) async fn run_statement(
        &self,
        caller: Caller,
        request: SqlRunRequest,
        span: RequestSpan,
        count: JudgementCount,
    ) -> Result<SqlRunAnswer, Problem> {
        self.check_sql(caller, request.request.database.as_deref(), &request.request.limits)?;
        let run = async move |workers: Arc<WorkerPool>| workers.run_statement(&request).await;
        self.with_sql_worker(caller, run, span, count).await
    }

    /// Describes the schema of a database. Changes nothing.
    ///
    /// # Errors
    /// As [`Service::judge_sql`].
    pub async fn describe_sql(
        &self,
        caller: Caller,
        request: SchemaRequest,
        span: RequestSpan,
    ) -> Result<SchemaAnswer, Problem> {
        self.check_sql(caller, request.database.as_deref(), &request.limits)?;
        let describe = async move |workers: Arc<WorkerPool>| workers.describe_schema(&request).await;
        self.with_sql_worker(caller, describe, span, JudgementCount::Once).await
    }

    /// Starts the span of a request about SQL. `trace` returns the caller's span; it is called only if spans are
    /// exported.
    pub fn start_span(&self, trace: impl FnOnce() -> Option<TraceContext>) -> RequestSpan {
        self.telemetry.start_span(trace)
    }

    /// Checks the parts of a request that do not depend on an engine.
    ///
    /// # Errors
    /// The caller names a database and is not the daemon's own user, or the time limit is out of range.
    pub(super) fn check_sql(
        &self,
        caller: Caller,
        database: Option<&str>,
        limits: &SqlResourceLimits,
    ) -> Result<(), Problem> {
        if !(1..=MAX_TIME_MS).contains(&limits.time_ms) {
            let detail = format!("`limits.time_ms` must be 1 to {MAX_TIME_MS}, not {}", limits.time_ms);
            return Err(Problem::new(ProblemType::InvalidRequest, detail));
        }
        let Some(file) = database else { return Ok(()) };
        if caller.uid != self.caller_policy.daemon_uid() {
            let detail = format!("the daemon opens `{file}` only for its own user");
            return Err(Problem::new(ProblemType::Forbidden, detail)
                .with_hint("`proctor sql verify --db FILE` checks it as your user, without the daemon"));
        }
        if !file.starts_with('/') {
            let detail = format!("`database` must be an absolute path, but `{file}` is not");
            return Err(Problem::new(ProblemType::InvalidRequest, detail));
        }
        Ok(())
    }

    /// Waits for a worker, lets it answer a request, and observes the answer.
    async fn with_sql_worker<T: TracedAnswer + Send + 'static, F: Future<Output = T> + Send>(
        &self,
        caller: Caller,
        work: impl FnOnce(Arc<WorkerPool>) -> F + Send + 'static,
        mut span: RequestSpan,
        count: JudgementCount,
    ) -> Result<T, Problem> {
        let (permit, workers) = match self.sql_worker(caller).await {
            Ok(worker) => worker,
            Err(problem) => {
                span.refuse::<T>(&problem);
                return Err(problem);
            }
        };
        span.start_work();
        // If the caller disconnects, the work continues and holds the permit until the worker has answered.
        let metrics = self.metrics.clone();
        let working = ContinueOnDrop::new(async move {
            let began = Instant::now();
            let answer = work(workers).await;
            let took: Duration = began.elapsed();
            drop(permit);
            if let Some(judgement) = answer.judgement()
                && count == JudgementCount::Once
            {
                metrics.observe_judgement(judgement, took);
            }
            span.finish(&answer);
            answer
        });
        Ok(working.await)
    }

    /// Waits for a worker.
    async fn sql_worker(&self, caller: Caller) -> Result<(SqlPermit, Arc<WorkerPool>), Problem> {
        let requested_at = Instant::now();
        let permit =
            self.sql.queue.enter(caller).await.inspect_err(|problem| self.metrics.count_refused_sql(problem))?;
        self.metrics.observe_sql_start(requested_at.elapsed());
        let operator = Arc::clone(&self.operator.borrow());
        let workers = self.sql.workers(&self.engine, &operator)?;
        Ok((permit, workers.for_user(caller.uid)))
    }
}
