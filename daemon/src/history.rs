//! Stores the logs of runs, and an index built from them.
//!
//! The log is the authoritative record of a run ([`RunLogWriter`]) and is durable before the end of the run is
//! reported. The index answers queries that would otherwise read all logs: lists and idempotency keys. It may be lost
//! at any time: after a failure it is updated from the logs before the next query.
//!
//! The engine stores outputs and evidence, and the service decides which caller may see which run.

mod error;
mod history_files;
mod listing;
mod log_lines;
mod recovery;
mod run_index;
mod run_log_reader;
mod run_log_writer;
mod shared_history;
#[cfg(test)]
mod tests;

use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, UNIX_EPOCH};

use proctor_core::api::{LoggedEvent, RecordedRequest, RunPage, RunView};
use proctor_core::model::event::RunEvent;
use proctor_core::model::names::{IdempotencyKey, RunId};
use proctor_core::spec::Retention;
use proctor_core::telemetry::TraceContext;
use proctor_core::text::digest::Sha256Hex;
use proctor_runner::Clock;

use history_files::HistoryFiles;
use log_lines::IdempotencyHashes;
use run_index::RunIndex;
use run_log_reader::{LogLine, RunLogReader};
use shared_history::{SharedHistory, log_read_error, sync_index};

pub use error::{HistoryError, OpenHistoryError};
pub use listing::RunFilter;
pub(crate) use recovery::inconclusive_event;
pub use run_log_writer::{RecordedEnd, RunLogWriter};

/// Maximum number of event bytes in one answer, except for a single larger event.
const MAX_EVENTS_BYTES: usize = 8 << 20;

/// Maximum number of runs that one call of [`History::remove_outdated`] removes. Removing them occupies the index for
/// some milliseconds.
const MAX_REMOVED_RUNS: usize = 64;

/// History of runs. Clones share it; calls block on the disk.
#[derive(Clone)]
pub struct History {
    shared: Arc<SharedHistory>,
}

/// A run to be recorded.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NewRun {
    /// Id of the run, from [`Clock::run_id`].
    pub id: RunId,
    /// The request.
    pub request: RecordedRequest,
    /// User who requested the run.
    pub uid: u32,
    /// Idempotency key of the request, if any.
    pub key: Option<KeyedRequest>,
    /// SHA-256 of the toolchains that the run finds and of the inputs that select them.
    pub toolchain_env: Sha256Hex,
    /// Trace context of the caller, if any.
    pub trace: Option<TraceContext>,
}

/// An `Idempotency-Key` and the request that it identifies.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KeyedRequest {
    /// The key. Only its hash is stored.
    pub key: IdempotencyKey,
    /// SHA-256 of the request, in a form that differs between different requests.
    pub request_sha256: Sha256Hex,
}

/// Result of [`History::open`].
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct RecoverySummary {
    /// Runs that the last daemon did not end; they are `inconclusive` now.
    pub interrupted: Vec<RunId>,
    /// New paths of damaged logs that were moved aside.
    pub quarantined: Vec<String>,
    /// Reason why the index was rebuilt; `None` if it was intact.
    pub rebuild_reason: Option<String>,
    /// Number of stored runs.
    pub runs: u64,
}

/// Result of [`History::remove_outdated`].
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct RetentionResult {
    /// Number of removed runs.
    pub removed: u64,
    /// Number of remaining runs.
    pub runs: u64,
    /// `true` if more runs are outdated; one call removes a bounded number.
    pub has_more: bool,
}

impl NewRun {
    /// Returns the first event of the run's log.
    pub(crate) fn into_queued_event(self, at: String) -> RunEvent {
        let Self { id, request, uid, key: _, toolchain_env, trace } = self;
        RunEvent::RunQueued { run_id: id, at, request, uid, toolchain_env_sha256: Some(toolchain_env), trace }
    }
}

impl History {
    /// Opens the history below `state_dir` for this process alone, and ends the unfinished runs of the last process.
    ///
    /// # Errors
    /// Another process has the history open, a directory cannot be used, or there is no space to end a run.
    pub fn open(state_dir: &Path, clock: Clock) -> Result<(Self, RecoverySummary), OpenHistoryError> {
        let open_error = |source: HistoryError| OpenHistoryError::Failed { path: state_dir.join("history"), source };
        let files = HistoryFiles::open(state_dir).map_err(|error| open_error(error.into()))?;
        let files = files.ok_or_else(|| OpenHistoryError::InUse(state_dir.to_path_buf()))?;
        let (mut index, rebuilt) = RunIndex::open(&files).map_err(open_error)?;
        let mut recovered = recover(&files, &mut index, clock).map_err(open_error)?;
        recovered.rebuild_reason = rebuilt;
        recovered.log_summary();
        Ok((Self { shared: Arc::new(SharedHistory::new(files, index, clock)) }, recovered))
    }

    /// Records a new run. Its log starts with [`RunEvent::RunQueued`].
    ///
    /// # Errors
    /// There is no space, or the idempotency key belongs to another run. Nothing is stored then.
    pub fn begin(&self, run: NewRun) -> Result<RunLogWriter, HistoryError> {
        let shared = &self.shared;
        shared.write_pending_ends()?;
        let key = run.key.as_ref().map(KeyedRequest::hashed);
        let at = shared.clock.now_text();
        let (uid, event) = (run.uid, run.into_queued_event(at.clone()));
        let first = LoggedEvent { seq: 1, logged_at: at, event };
        shared.with_index(|index| {
            let used = key.as_ref().map(|key| index.run_for_key(uid, &key.key_sha256)).transpose()?.flatten();
            if let Some((known, _)) = used {
                return Err(HistoryError::KeyUsed(known));
            }
            let mut log = RunLogWriter::begin(Arc::clone(shared), &first, key.as_ref())?;
            let summary = log.run().summary();
            index.put_with_key(&summary, log.bytes(), key.as_ref()).inspect_err(|_| log.discard())?;
            Ok(log)
        })
    }

    /// Assigns the key of `uid` to an existing run that answered the request. Returns the run of the key. This is a
    /// different run if a concurrent request with the same key was faster.
    ///
    /// The assignment is stored only in the index and is lost when the index is rebuilt.
    ///
    /// # Errors
    /// The run is not stored, the key belongs to another request, or the index cannot be written.
    pub fn assign_key(&self, uid: u32, key: &KeyedRequest, run: &RunId) -> Result<RunId, HistoryError> {
        let key = key.hashed();
        self.shared.with_index(|index| {
            if !index.contains(run)? {
                return Err(HistoryError::UnknownRun(run.clone()));
            }
            match index.run_for_key(uid, &key.key_sha256)? {
                Some((known, request)) if request == key.request_sha256 => return Ok(known),
                Some((known, _)) => return Err(HistoryError::KeyUsed(known)),
                None => index.put_key(uid, &key, run)?,
            }
            Ok(run.clone())
        })
    }

    /// Returns the run of an idempotency key of `uid`, and the SHA-256 of its request.
    ///
    /// # Errors
    /// The index cannot be read.
    pub fn run_for_key(&self, uid: u32, key: &IdempotencyKey) -> Result<Option<(RunId, Sha256Hex)>, HistoryError> {
        let key = Sha256Hex::digest(key.as_str().as_bytes());
        self.shared.with_index(|index| Ok(index.run_for_key(uid, &key)?))
    }

    /// Returns a run from its log, or `None` if it does not exist.
    ///
    /// # Errors
    /// The log cannot be read.
    pub fn view(&self, id: &RunId) -> Result<Option<RunView>, HistoryError> {
        if let Some(unended) = self.shared.pending_ends().get(id) {
            return Ok(Some(unended.run.view()));
        }
        Ok(self.shared.read_log(id)?.map(|settled| settled.run.view()))
    }

    /// Returns at most `limit` events after number `after`, and whether there are more. The number of bytes is
    /// limited too. Returns `None` if the run does not exist.
    ///
    /// # Errors
    /// The log cannot be read.
    pub fn events(
        &self,
        id: &RunId,
        after: u64,
        limit: usize,
    ) -> Result<Option<(Vec<LoggedEvent>, bool)>, HistoryError> {
        // Read before the log, because the end may be written to the log concurrently.
        let unended = self.shared.pending_ends().get(id).map(|unended| (unended.offset, unended.events.clone()));
        let (until, ends) = unended.unwrap_or((u64::MAX, Vec::new()));
        let Some(file) = self.shared.files.open_log(id)? else { return Ok(None) };
        let mut log = RunLogReader::new(file);
        let mut answer = EventBatch { events: Vec::new(), bytes: 0, limit };
        loop {
            match log.next_after(after).map_err(|source| log_read_error(id, source))? {
                // Events after this offset could not be truncated; they were never reported.
                LogLine::Event(_) if log.offset > until => break,
                LogLine::Damaged(_) if log.offset >= until => break,
                LogLine::Event(_) if answer.is_full() => return Ok(Some((answer.events, true))),
                LogLine::Event(event) => answer.add(*event, log.last_bytes()),
                LogLine::Damaged(reason) => return Err(HistoryError::Damaged { run: id.clone(), reason }),
                LogLine::End | LogLine::Torn => break,
            }
        }
        let last_seq = answer.events.last().map_or(after, |event| event.seq);
        let mut ends = ends.into_iter().filter(|event| event.seq > last_seq);
        while !answer.is_full()
            && let Some(event) = ends.next()
        {
            answer.add(event, 0);
        }
        Ok(Some((answer.events, ends.next().is_some())))
    }

    /// Lists runs, newest first: those of `uid`, or of all users.
    ///
    /// # Errors
    /// The cursor is invalid, or the index cannot be read.
    pub fn list(&self, filter: &RunFilter, uid: Option<u32>) -> Result<RunPage, HistoryError> {
        self.shared.with_index(|index| listing::query_page(index, filter, uid))
    }

    /// Stores the patch of a run.
    ///
    /// # Errors
    /// The patch cannot be written.
    pub fn store_patch(&self, id: &RunId, patch: &[u8]) -> Result<(), HistoryError> {
        Ok(self.shared.files.write_patch(id, patch)?)
    }

    /// Returns the patch of a run, or `None` if none is stored.
    ///
    /// # Errors
    /// The patch cannot be read.
    pub fn patch(&self, id: &RunId) -> Result<Option<Vec<u8>>, HistoryError> {
        Ok(self.shared.files.read_patch(id)?)
    }

    /// Removes a bounded number of the oldest runs: those older than `keep` allows, and those beyond its maximum
    /// number. Unfinished runs are never removed, and files in changesets are not touched.
    ///
    /// The engine applies the same settings to outputs, and to evidence of runs without a changeset, after every run.
    ///
    /// # Errors
    /// A file operation failed; runs removed before the failure stay removed.
    pub fn remove_outdated(&self, retention: &Retention) -> Result<RetentionResult, HistoryError> {
        let shared = &self.shared;
        shared.write_pending_ends()?;
        let before = retention.max_age.map(|age| time_before(shared.clock, age));
        let mut outdated = shared.with_index(|index| Ok(index.outdated(before.as_deref(), retention.max_runs)?))?;
        let more = outdated.len() > MAX_REMOVED_RUNS;
        outdated.truncate(MAX_REMOVED_RUNS);
        if !outdated.is_empty() {
            shared.with_index(|index| Ok(index.remove(outdated.iter().map(RunId::as_str))?))?;
        }
        for run in &outdated {
            shared.files.remove_run(run)?;
        }
        let runs = shared.with_index(|index| Ok(index.count()?))?;
        Ok(RetentionResult { removed: outdated.len() as u64, runs, has_more: more })
    }
}

/// Updates the index while no run is active, and ends unfinished runs.
fn recover(files: &HistoryFiles, index: &mut RunIndex, clock: Clock) -> Result<RecoverySummary, HistoryError> {
    let mut recovered = RecoverySummary::default();
    sync_index(files, index, |run| {
        let done = recovery::recover_log(files, run, clock)?;
        recovered.interrupted.extend(done.interrupted.then(|| run.clone()));
        recovered.quarantined.extend(done.quarantined);
        Ok(done.log)
    })?;
    files.remove_orphan_patches(|run| files.log_size(run).is_some())?;
    files.prune_damaged()?;
    recovered.runs = index.count()?;
    Ok(recovered)
}

/// Returns the time `age` ago in the format of logs.
fn time_before(clock: Clock, age: Duration) -> String {
    let since = Duration::from_millis(clock.now_ms()).saturating_sub(age);
    humantime::format_rfc3339_millis(UNIX_EPOCH + since).to_string()
}

/// Events collected for one answer.
struct EventBatch {
    events: Vec<LoggedEvent>,
    bytes: usize,
    limit: usize,
}

impl EventBatch {
    fn is_full(&self) -> bool {
        self.events.len() >= self.limit || (self.bytes >= MAX_EVENTS_BYTES && !self.events.is_empty())
    }

    fn add(&mut self, event: LoggedEvent, bytes: usize) {
        self.events.push(event);
        self.bytes += bytes;
    }
}

impl KeyedRequest {
    fn hashed(&self) -> IdempotencyHashes {
        IdempotencyHashes {
            key_sha256: Sha256Hex::digest(self.key.as_str().as_bytes()),
            request_sha256: self.request_sha256.clone(),
        }
    }
}

impl RecoverySummary {
    fn log_summary(&self) {
        // A rebuilt index is only worth a message if there were runs before.
        if let Some(reason) = self.rebuild_reason.as_ref().filter(|_| self.runs > 0) {
            tracing::info!(reason, runs = self.runs, "the index of runs was rebuilt from their logs");
        }
        for run in &self.interrupted {
            tracing::warn!(%run, "a run that had not ended was recorded as inconclusive");
        }
        for log in &self.quarantined {
            tracing::warn!(log, "a damaged log was moved to another directory");
        }
    }
}
