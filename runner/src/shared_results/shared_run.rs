//! The exchange of results in one run: queries, counters and reports.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use proctor_core::record::run_reuse::RemoteReuse;
use proctor_core::reuse::{MachineFact, PathSet, SharedRecord};
use proctor_core::text::digest::Sha256Hex;
use proctor_remote::RemoteError;
use tokio::task::JoinSet;
use tokio::time::Instant;

use super::content_hashes::ContentHashes;
use super::exchange::{SharedDraft, SharedResults, Verified};

/// Maximum number of results that are stored at the same time.
const MAX_PENDING: usize = 64;
/// Maximum total wait of all steps of a run for the server, as a multiple of the maximum wait of one step.
const MAX_WAITS: u32 = 6;

/// The exchange of results in one run.
#[derive(Debug)]
pub(crate) struct SharedRun {
    results: Result<Arc<SharedResults>, String>,
    pub(crate) hashes: Arc<ContentHashes>,
    /// The identity of Proctor's programs: their content.
    pub(crate) identity: PortableIdentity,
    state: Arc<Mutex<RunState>>,
    pending: tokio::sync::Mutex<JoinSet<()>>,
}

/// The exchange so far.
#[derive(Debug)]
struct RunState {
    report: RemoteReuse,
    /// The time that steps have waited for answers.
    waited: Duration,
}

/// The parts of a step's identity that replace those that differ between machines.
#[derive(Debug, Clone)]
pub(crate) struct PortableIdentity {
    /// Version and content of Proctor's programs.
    pub(crate) programs: String,
    /// The facts of the machine that are ignored.
    pub(crate) ignored: Vec<MachineFact>,
}

impl SharedRun {
    pub(crate) fn new(
        endpoint: &str,
        results: Result<Arc<SharedResults>, String>,
        hashes: Arc<ContentHashes>,
        identity: PortableIdentity,
    ) -> Self {
        let state = RunState::new(endpoint, results.as_ref().err().cloned());
        Self { results, hashes, identity, state: Arc::new(Mutex::new(state)), pending: tokio::sync::Mutex::default() }
    }

    /// Returns the exchange so far.
    pub(crate) fn report(&self) -> RemoteReuse {
        self.update(|state| state.report.clone())
    }

    /// Returns the server, unless it failed in this run.
    pub(crate) fn server(&self) -> Option<Arc<SharedResults>> {
        let has_failed = self.update(|state| state.report.problem.is_some());
        self.results.as_ref().ok().filter(|_| !has_failed).cloned()
    }

    /// Returns whether results signed by this key count.
    pub(crate) fn trusts(&self, key: &Sha256Hex) -> bool {
        self.results.as_ref().is_ok_and(|results| results.trusted_keys().any(|trusted| trusted == key))
    }

    /// Returns whether results of this machine are stored on the server.
    pub(crate) fn writes(&self) -> bool {
        self.server().is_some_and(|results| results.signing_key().is_some())
    }

    /// Returns the time for which a step waits for the server.
    fn limit(results: &SharedResults) -> Duration {
        Duration::from_millis(results.settings.timeout_ms)
    }

    /// Returns the path sets of a step. Without a server, or if it fails, there are none.
    pub(crate) async fn path_sets(&self, weak: &Sha256Hex) -> Vec<PathSet> {
        let Some(results) = self.server() else { return Vec::new() };
        let limit = Self::limit(&results);
        let found = self.watch(limit, results.path_sets(weak)).await.unwrap_or_default();
        found.into_iter().filter_map(|set| self.accept(set)).collect()
    }

    /// Returns the record of an execution, and the id of the key that signed it.
    pub(crate) async fn record(
        &self,
        expected: &proctor_core::reuse::ExpectedRecord<'_>,
    ) -> Option<(SharedRecord, Sha256Hex)> {
        let results = self.server()?;
        let limit = Self::limit(&results);
        let found = self.watch(limit, results.record(expected)).await.flatten()?;
        self.accept(found)
    }

    /// Returns the records of executions of a step with `per_file`, each with the id of the key that signed it.
    pub(crate) async fn records(
        &self,
        expected: &proctor_core::reuse::ExpectedRecord<'_>,
    ) -> Vec<(SharedRecord, Sha256Hex)> {
        let Some(results) = self.server() else { return Vec::new() };
        let limit = Self::limit(&results);
        let found = self.watch(limit, results.records(expected)).await.unwrap_or_default();
        found.into_iter().filter_map(|record| self.accept(record)).collect()
    }

    /// Counts a result that is used.
    pub(crate) fn note_hit(&self) {
        self.update(|state| state.report.hits += 1);
    }

    /// Stores an execution in the background.
    pub(crate) async fn publish(&self, draft: SharedDraft) {
        let Some(results) = self.server() else { return };
        let mut pending = self.pending.lock().await;
        while pending.try_join_next().is_some() {}
        if pending.len() >= MAX_PENDING {
            tracing::debug!("a result is not stored on the server: too many others are being stored");
            return;
        }
        let state = Arc::clone(&self.state);
        pending.spawn(async move {
            let published = watch(&state, Self::limit(&results), results.publish(&draft)).await;
            if published == Some(true) {
                update(&state, |state| state.report.stored += 1);
            }
        });
    }

    /// Waits until everything is stored, for a limited time.
    pub(crate) async fn finish(&self) {
        let Ok(results) = &self.results else { return };
        let limit = Self::limit(results);
        let mut pending = std::mem::take(&mut *self.pending.lock().await);
        let all = async { while pending.join_next().await.is_some() {} };
        if tokio::time::timeout(limit, all).await.is_err() {
            self.note_problem(format!("results were not stored within {} ms", limit.as_millis()));
        }
    }

    fn accept<T>(&self, found: Verified<T>) -> Option<T> {
        found
            .inspect_err(|refusal| {
                tracing::debug!(%refusal, "refused");
                self.update(|state| {
                    state.report.refused += 1;
                    state.report.refusal.get_or_insert_with(|| refusal.clone());
                });
            })
            .ok()
    }

    /// Waits for an answer, and counts the time.
    async fn watch<T>(&self, limit: Duration, work: impl Future<Output = Result<T, RemoteError>>) -> Option<T> {
        watch_and_count(&self.state, limit, work).await
    }

    fn note_problem(&self, problem: String) {
        note_problem(&self.state, problem);
    }

    fn update<T>(&self, change: impl FnOnce(&mut RunState) -> T) -> T {
        update(&self.state, change)
    }
}

fn update<T>(state: &Mutex<RunState>, change: impl FnOnce(&mut RunState) -> T) -> T {
    change(&mut state.lock().unwrap_or_else(PoisonError::into_inner))
}

fn note_problem(state: &Mutex<RunState>, problem: String) {
    tracing::warn!(%problem, "the remote cache does not work");
    update(state, |state| state.report.problem.get_or_insert(problem).len());
}

/// Waits for the server up to a deadline. The first failure is the last request of the run.
async fn watch<T>(
    state: &Mutex<RunState>,
    limit: Duration,
    work: impl Future<Output = Result<T, RemoteError>>,
) -> Option<T> {
    let problem = match tokio::time::timeout(limit, work).await {
        Ok(Ok(found)) => return Some(found),
        Ok(Err(error)) => error.to_string(),
        Err(_) => {
            let endpoint = update(state, |state| state.report.endpoint.clone());
            format!("`{endpoint}` did not answer within {} ms", limit.as_millis())
        }
    };
    note_problem(state, problem);
    None
}

/// Waits for an answer that a step needs. If all steps together have waited for too long, the server is not asked again.
async fn watch_and_count<T>(
    state: &Mutex<RunState>,
    limit: Duration,
    work: impl Future<Output = Result<T, RemoteError>>,
) -> Option<T> {
    let began = Instant::now();
    let found = watch(state, limit, work).await;
    let (waited, endpoint) = update(state, |state| {
        state.waited += began.elapsed();
        (state.waited, state.report.endpoint.clone())
    });
    if waited > limit * MAX_WAITS {
        note_problem(
            state,
            format!("`{endpoint}` is too slow: steps have waited for it for {} ms", waited.as_millis()),
        );
    }
    found
}

impl RunState {
    fn new(endpoint: &str, problem: Option<String>) -> Self {
        let endpoint = endpoint.to_owned();
        let report = RemoteReuse { endpoint, hits: 0, stored: 0, refused: 0, refusal: None, problem };
        Self { report, waited: Duration::ZERO }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMIT: Duration = Duration::from_secs(1);

    async fn answer_after(state: &Mutex<RunState>, time: Duration) -> Option<u32> {
        let work = async {
            tokio::time::sleep(time).await;
            Ok(7)
        };
        watch_and_count(state, LIMIT, work).await
    }

    #[tokio::test(start_paused = true)]
    async fn silent_server_has_a_deadline() {
        let state = Mutex::new(RunState::new("unix:/s", None));
        assert_eq!(answer_after(&state, LIMIT / 2).await, Some(7));
        assert_eq!(answer_after(&state, LIMIT * 2).await, None);
        let problem = update(&state, |state| state.report.problem.clone());
        assert_eq!(problem.as_deref(), Some("`unix:/s` did not answer within 1000 ms"));
    }

    #[tokio::test(start_paused = true)]
    async fn limits_total_wait_for_slow_server() {
        let state = Mutex::new(RunState::new("unix:/s", None));
        let mut answers = 0;
        while update(&state, |state| state.report.problem.is_none()) {
            assert_eq!(answer_after(&state, LIMIT * 9 / 10).await, Some(7));
            answers += 1;
        }
        assert_eq!(answers, 7);
        let problem = update(&state, |state| state.report.problem.clone()).unwrap_or_default();
        assert!(problem.starts_with("`unix:/s` is too slow"), "{problem}");
    }
}
