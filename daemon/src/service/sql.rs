//! Judges SQL for callers, with workers in sandboxes. The [`queue`] decides which request is next.

mod queue;

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use proctor_core::api::{Problem, ProblemType};
use proctor_core::sql::{Judgement, MAX_TIME_MS, Request};
use proctor_runner::{Engine, Workers};
use tokio::time::Instant;

use self::queue::{Bounds, Queue};
use super::{Service, broken, cpus};
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
const PATIENCE: Duration = Duration::from_secs(60);

/// The workers and the queue in front of them.
pub(super) struct Judges {
    queue: Queue,
    most: usize,
    state: Arc<Mutex<Kept>>,
}

/// The workers, kept while requests arrive.
#[derive(Default)]
struct Kept {
    workers: Option<Arc<Workers>>,
    last: Option<Instant>,
    is_watched: bool,
}

impl Judges {
    /// Creates the queue; no worker is started yet.
    pub(super) fn new() -> Self {
        let most = cpus().max(MIN_WORKERS);
        let queue = Queue::new(Bounds {
            active: most,
            // One worker is left for other callers.
            active_per_caller: most - 1,
            waiting: MAX_WAITING,
            waiting_per_caller: MAX_WAITING_PER_CALLER,
            wait: MAX_WAIT,
        });
        Self { queue, most, state: Arc::default() }
    }

    /// Returns the workers, and starts the task that stops them after [`PATIENCE`] without requests.
    fn workers(&self, engine: &Engine) -> Result<Arc<Workers>, Problem> {
        let mut kept = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        kept.last = Some(Instant::now());
        let workers = match &kept.workers {
            Some(workers) => Arc::clone(workers),
            None => {
                let made = engine.sql_workers(self.most).map_err(|error| error.problem())?;
                Arc::clone(kept.workers.insert(Arc::new(made)))
            }
        };
        if !std::mem::replace(&mut kept.is_watched, true) {
            tokio::spawn(let_go(Arc::clone(&self.state)));
        }
        Ok(workers)
    }
}

/// Stops the workers after [`PATIENCE`] without requests.
async fn let_go(state: Arc<Mutex<Kept>>) {
    loop {
        let last = state.lock().unwrap_or_else(PoisonError::into_inner).last;
        let until = last.unwrap_or_else(Instant::now) + PATIENCE;
        tokio::time::sleep_until(until).await;
        if let Some(workers) = unasked(&state) {
            // The sandboxes end when the last request that uses them is answered, which may block.
            let _ = tokio::task::spawn_blocking(move || drop(workers)).await;
            return;
        }
    }
}

/// Takes the workers out if no request arrived within [`PATIENCE`]; otherwise returns `None`.
fn unasked(state: &Mutex<Kept>) -> Option<Option<Arc<Workers>>> {
    let mut kept = state.lock().unwrap_or_else(PoisonError::into_inner);
    if kept.last.is_some_and(|last| last + PATIENCE > Instant::now()) {
        return None;
    }
    kept.is_watched = false;
    Some(kept.workers.take())
}

impl Service {
    /// Returns the numbers of waiting and active requests.
    pub fn sql_counts(&self) -> SqlCounts {
        self.judges.queue.counts()
    }

    /// Judges a text. A text that cannot be judged gets the verdict `error`.
    ///
    /// # Errors
    /// The caller names a database and is not the daemon's own user, the workers cannot be started, too many requests
    /// wait, or no worker becomes free in time.
    pub async fn judge_sql(&self, caller: Caller, request: Request) -> Result<Judgement, Problem> {
        if !(1..=MAX_TIME_MS).contains(&request.limits.time_ms) {
            let detail = format!("`limits.time_ms` must be 1 to {MAX_TIME_MS}, not {}", request.limits.time_ms);
            return Err(Problem::new(ProblemType::InvalidRequest, detail));
        }
        if let Some(file) = &request.database {
            if caller.uid != self.household.own() {
                let detail = format!("the daemon does not open `{file}` for another user than its own");
                return Err(Problem::new(ProblemType::Forbidden, detail)
                    .with_hint("`proctor sql verify --db FILE` checks it as your user, without the daemon"));
            }
            if !file.starts_with('/') {
                let detail = format!("`database` must be an absolute path, but `{file}` is not");
                return Err(Problem::new(ProblemType::InvalidRequest, detail));
            }
        }
        let asked = Instant::now();
        let permit = self.judges.queue.enter(caller).await.inspect_err(|problem| self.metrics.sql_refused(problem))?;
        self.metrics.sql_started(asked.elapsed());
        let workers = self.judges.workers(&self.engine)?;
        // A separate task holds the permit until the worker has answered, even if the caller disconnects.
        let metrics = self.metrics.clone();
        let judging = tokio::spawn(async move {
            let began = Instant::now();
            let judgement = workers.judge(&request).await;
            metrics.sql_judged(judgement.verdict, began.elapsed());
            drop(permit);
            judgement
        });
        judging.await.map_err(|error| broken(&error))
    }
}
