//! Judges SQL for callers, with workers in sandboxes. The [`sql_queue`] decides which request is next.

mod sql_queue;

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use proctor_core::api::{Problem, ProblemType};
use proctor_core::sql::{Judgement, MAX_TIME_MS, SqlRequest};
use proctor_runner::{Engine, WorkerPool};
use tokio::time::Instant;

use self::sql_queue::{SqlQueue, SqlQueueLimits};
use super::{Service, cpu_count, task_panicked};
use crate::caller::Caller;
use crate::metrics::SqlCounts;

/// Minimum number of workers. While one judges a slow request, the others serve other requests.
const MIN_WORKERS: usize = 4;
/// Maximum number of waiting requests of all callers.
const MAX_WAITING: usize = 512;
/// Maximum number of waiting requests of one caller.
const MAX_WAITING_PER_CALLER: usize = 128;
/// Maximum time that a request waits for a worker. Together with the `time` limit it bounds the response time.
const MAX_WAIT: Duration = Duration::from_secs(10);
/// Time without requests after which the workers are stopped.
const WORKER_IDLE_TIMEOUT: Duration = Duration::from_secs(60);

/// The workers and the queue in front of them.
pub(super) struct SqlService {
    queue: SqlQueue,
    max_workers: usize,
    state: Arc<Mutex<SqlWorkerState>>,
}

/// The workers, kept while requests arrive.
#[derive(Default)]
struct SqlWorkerState {
    workers: Option<Arc<WorkerPool>>,
    last_request: Option<Instant>,
    has_idle_task: bool,
}

impl SqlService {
    /// Creates the queue; no worker is started yet.
    pub(super) fn new() -> Self {
        let most = cpu_count().max(MIN_WORKERS);
        let queue = SqlQueue::new(SqlQueueLimits {
            active: most,
            // One worker is left for other callers.
            active_per_caller: most - 1,
            waiting: MAX_WAITING,
            waiting_per_caller: MAX_WAITING_PER_CALLER,
            wait: MAX_WAIT,
        });
        Self { queue, max_workers: most, state: Arc::default() }
    }

    /// Returns the workers, and starts the task that stops them after [`WORKER_IDLE_TIMEOUT`] without requests.
    fn workers(&self, engine: &Engine) -> Result<Arc<WorkerPool>, Problem> {
        let mut worker_state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        worker_state.last_request = Some(Instant::now());
        let workers = match &worker_state.workers {
            Some(workers) => Arc::clone(workers),
            None => {
                let made = engine.sql_workers(self.max_workers).map_err(|error| error.problem())?;
                Arc::clone(worker_state.workers.insert(Arc::new(made)))
            }
        };
        if !std::mem::replace(&mut worker_state.has_idle_task, true) {
            tokio::spawn(stop_idle_workers(Arc::clone(&self.state)));
        }
        Ok(workers)
    }
}

/// Stops the workers after [`WORKER_IDLE_TIMEOUT`] without requests.
async fn stop_idle_workers(state: Arc<Mutex<SqlWorkerState>>) {
    loop {
        let last = state.lock().unwrap_or_else(PoisonError::into_inner).last_request;
        let until = last.unwrap_or_else(Instant::now) + WORKER_IDLE_TIMEOUT;
        tokio::time::sleep_until(until).await;
        if let Some(workers) = take_idle_workers(&state) {
            // The sandboxes end when the last request that uses them is answered, which may block.
            let _ = tokio::task::spawn_blocking(move || drop(workers)).await;
            return;
        }
    }
}

/// Takes the workers out if no request arrived within [`WORKER_IDLE_TIMEOUT`]; otherwise returns `None`.
fn take_idle_workers(state: &Mutex<SqlWorkerState>) -> Option<Option<Arc<WorkerPool>>> {
    let mut worker_state = state.lock().unwrap_or_else(PoisonError::into_inner);
    if worker_state.last_request.is_some_and(|last| last + WORKER_IDLE_TIMEOUT > Instant::now()) {
        return None;
    }
    worker_state.has_idle_task = false;
    Some(worker_state.workers.take())
}

impl Service {
    /// Returns the numbers of waiting and active requests.
    pub fn sql_counts(&self) -> SqlCounts {
        self.sql.queue.counts()
    }

    /// Judges a text. A text that cannot be judged gets the verdict `error`.
    ///
    /// # Errors
    /// The caller names a database and is not the daemon's own user, the workers cannot be started, too many requests
    /// wait, or no worker becomes free in time.
    pub async fn judge_sql(&self, caller: Caller, request: SqlRequest) -> Result<Judgement, Problem> {
        if !(1..=MAX_TIME_MS).contains(&request.limits.time_ms) {
            let detail = format!("`limits.time_ms` must be 1 to {MAX_TIME_MS}, not {}", request.limits.time_ms);
            return Err(Problem::new(ProblemType::InvalidRequest, detail));
        }
        if let Some(file) = &request.database {
            if caller.uid != self.caller_policy.daemon_uid() {
                let detail = format!("the daemon does not open `{file}` for another user than its own");
                return Err(Problem::new(ProblemType::Forbidden, detail)
                    .with_hint("`proctor sql verify --db FILE` checks it as your user, without the daemon"));
            }
            if !file.starts_with('/') {
                let detail = format!("`database` must be an absolute path, but `{file}` is not");
                return Err(Problem::new(ProblemType::InvalidRequest, detail));
            }
        }
        let requested_at = Instant::now();
        let permit =
            self.sql.queue.enter(caller).await.inspect_err(|problem| self.metrics.count_refused_sql(problem))?;
        self.metrics.observe_sql_start(requested_at.elapsed());
        let workers = self.sql.workers(&self.engine)?;
        // A separate task holds the permit until the worker has answered, even if the caller disconnects.
        let metrics = self.metrics.clone();
        let judging = tokio::spawn(async move {
            let began = Instant::now();
            let judgement = workers.judge(&request).await;
            metrics.observe_judgement(judgement.verdict, began.elapsed());
            drop(permit);
            judgement
        });
        judging.await.map_err(|error| task_panicked(&error))
    }
}
