//! Workers in sandboxes that judge SQL. The [`SqlQueue`] decides which request is next.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use proctor_core::api::Problem;
use proctor_core::model::enforcement::SandboxMode;
use proctor_core::spec::OperatorConfig;
use proctor_runner::{Engine, WorkerPool};
use tokio::time::Instant;

use super::sql_queue::{SqlQueue, SqlQueueLimits};

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
pub(super) struct SqlWorkers {
    pub(super) queue: SqlQueue,
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

impl SqlWorkers {
    /// Creates the queue; no worker is started yet.
    pub(super) fn new(cpus: usize) -> Self {
        let most = cpus.max(MIN_WORKERS);
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
    pub(super) fn workers(&self, engine: &Engine, operator: &OperatorConfig) -> Result<Arc<WorkerPool>, Problem> {
        let mut worker_state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        worker_state.last_request = Some(Instant::now());
        // A pool keeps the settings with which it was created.
        let tolerated = operator.tolerated(SandboxMode::Strict);
        let is_current = |pool: &WorkerPool| pool.has_settings(&operator.sql.verifiers, tolerated.as_ref());
        let workers = match &worker_state.workers {
            Some(workers) if is_current(workers) => Arc::clone(workers),
            _ => {
                let made = engine.sql_workers(self.max_workers, operator).map_err(|error| error.problem())?;
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
