//! Requests about SQL: judgements, rows and schemas. All wait in one queue for a worker.

use std::sync::Arc;
use std::time::Duration;

use proctor_core::api::{Problem, ProblemType};
use proctor_core::sql::{
    Judgement, MAX_TIME_MS, SchemaAnswer, SchemaRequest, SqlRequest, SqlResourceLimits, SqlRunAnswer, SqlRunRequest,
    SqlVerdict,
};
use proctor_runner::WorkerPool;
use tokio::time::Instant;

use super::{Service, task_panicked};
use crate::caller::Caller;

impl Service {
    /// Judges SQL. Changes nothing.
    ///
    /// # Errors
    /// The caller names a database and is not the daemon's own user, the workers cannot be started, too many requests
    /// wait, or no worker becomes free in time.
    pub async fn judge_sql(&self, caller: Caller, request: SqlRequest) -> Result<Judgement, Problem> {
        self.check_sql(caller, request.database.as_deref(), &request.limits)?;
        let judge = async move |workers: Arc<WorkerPool>| workers.judge(&request).await;
        self.with_sql_worker(caller, judge, |judgement| Some(judgement.verdict)).await
    }

    /// Judges SQL, and runs it if the verdict is `ok`.
    ///
    /// # Errors
    /// As [`Service::judge_sql`].
    pub async fn run_sql(&self, caller: Caller, request: SqlRunRequest) -> Result<SqlRunAnswer, Problem> {
        self.check_sql(caller, request.request.database.as_deref(), &request.request.limits)?;
        let run = async move |workers: Arc<WorkerPool>| workers.run_statement(&request).await;
        self.with_sql_worker(caller, run, |answer| Some(answer.judgement.verdict)).await
    }

    /// Describes the schema of a database. Changes nothing.
    ///
    /// # Errors
    /// As [`Service::judge_sql`].
    pub async fn describe_sql(&self, caller: Caller, request: SchemaRequest) -> Result<SchemaAnswer, Problem> {
        self.check_sql(caller, request.database.as_deref(), &request.limits)?;
        let describe = async move |workers: Arc<WorkerPool>| workers.describe_schema(&request).await;
        self.with_sql_worker(caller, describe, |_| None).await
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

    /// Waits for a worker, and lets it answer a request. `verdict` returns the verdict of an answer, if it has one.
    async fn with_sql_worker<T: Send + 'static, F: Future<Output = T> + Send>(
        &self,
        caller: Caller,
        work: impl FnOnce(Arc<WorkerPool>) -> F + Send + 'static,
        verdict: fn(&T) -> Option<SqlVerdict>,
    ) -> Result<T, Problem> {
        let requested_at = Instant::now();
        let permit =
            self.sql.queue.enter(caller).await.inspect_err(|problem| self.metrics.count_refused_sql(problem))?;
        self.metrics.observe_sql_start(requested_at.elapsed());
        let workers = self.sql.workers(&self.engine)?;
        // A separate task holds the permit until the worker has answered, even if the caller disconnects.
        let metrics = self.metrics.clone();
        let working = tokio::spawn(async move {
            let began = Instant::now();
            let answer = work(workers).await;
            let took: Duration = began.elapsed();
            if let Some(verdict) = verdict(&answer) {
                metrics.observe_judgement(verdict, took);
            }
            drop(permit);
            answer
        });
        working.await.map_err(|error| task_panicked(&error))
    }
}
