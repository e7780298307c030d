//! Has SQL judged for callers, by workers in sandboxes. The [`queue`] decides whose request is next.

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

/// The smallest number of workers: while one judges a slow request, the others serve other requests.
const MIN_WORKERS: usize = 4;
/// Requests that wait, of all callers.
const MAX_WAITING: usize = 512;
/// Requests of one caller that wait.
const MAX_WAITING_PER_CALLER: usize = 128;
/// The longest wait of a request for a worker. With the `time` limit it bounds the time until an answer.
const MAX_WAIT: Duration = Duration::from_secs(10);
/// For how long workers are kept when nobody asks.
const PATIENCE: Duration = Duration::from_secs(60);

/// The workers, and the queue in front of them.
pub(super) struct Judges {
    queue: Queue,
    most: usize,
    state: Arc<Mutex<Kept>>,
}

/// The workers as long as somebody asks.
#[derive(Default)]
struct Kept {
    workers: Option<Arc<Workers>>,
    last: Option<Instant>,
    is_watched: bool,
}

impl Judges {
    /// None is started yet.
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

    /// The workers; from now on they are let go when nobody has asked for a while.
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

/// Lets the workers go when nobody has asked for a while.
async fn let_go(state: Arc<Mutex<Kept>>) {
    loop {
        let last = state.lock().unwrap_or_else(PoisonError::into_inner).last;
        let until = last.unwrap_or_else(Instant::now) + PATIENCE;
        tokio::time::sleep_until(until).await;
        if let Some(workers) = unasked(&state) {
            // Their sandboxes end when the last request that has them is answered; that may block.
            let _ = tokio::task::spawn_blocking(move || drop(workers)).await;
            return;
        }
    }
}

/// The workers, where nobody has asked for a while.
fn unasked(state: &Mutex<Kept>) -> Option<Option<Arc<Workers>>> {
    let mut kept = state.lock().unwrap_or_else(PoisonError::into_inner);
    if kept.last.is_some_and(|last| last + PATIENCE > Instant::now()) {
        return None;
    }
    kept.is_watched = false;
    Some(kept.workers.take())
}

impl Service {
    /// Returns how many requests wait for a worker, and how many are judged.
    pub fn sql_counts(&self) -> SqlCounts {
        self.judges.queue.counts()
    }

    /// Judges a text. What cannot be judged is an answer too; its verdict is `error`.
    ///
    /// # Errors
    /// The caller names a database and is not the daemon's own user, there is no place for workers, too many requests
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
        // A task of its own: if the caller disconnects, the permit is held until the worker has answered.
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
