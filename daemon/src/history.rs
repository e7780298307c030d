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
mod recovery;
mod run_index;
mod run_log_reader;
mod run_log_writer;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, UNIX_EPOCH};

use proctor_core::api::{Asked, LoggedEvent, RunPage, RunSummary, RunView};
use proctor_core::model::event::RunEvent;
use proctor_core::model::names::{IdempotencyKey, RunId};
use proctor_core::spec::Retention;
use proctor_core::telemetry::TraceContext;
use proctor_core::text::digest::Sha256Hex;
use proctor_runner::{Clock, StoreError};

use crate::service::{RunFilter, StartError};

use history_files::{HistoryFiles, OpenHistoryError};
use recovery::CompleteLog;
use run_index::RunIndex;
use run_log_reader::{IdempotencyHashes, LogLine, LogTail, RunLogReader};

pub use error::HistoryError;
pub(crate) use recovery::inconclusive_event;
pub use run_log_writer::{RecordedEnd, RunLogWriter};

/// Log size in the index that never matches a real log, so the next process that opens the history reads the log.
const UNKNOWN_LOG_BYTES: u64 = 0;
/// Maximum number of event bytes in one answer, except for a single larger event.
const MAX_EVENTS_BYTES: usize = 8 << 20;

/// Maximum number of runs that one call of [`History::remove_outdated`] removes. Removing them occupies the index for
/// some milliseconds.
const MAX_REMOVED_RUNS: usize = 64;

/// History of runs. Clones share it; calls block on the disk.
#[derive(Clone)]
pub struct History {
    shared: Arc<HistoryInner>,
}

struct HistoryInner {
    files: HistoryFiles,
    index: Mutex<IndexState>,
    /// Finished runs whose end could not be written to their logs yet. No run begins before they are written, so
    /// their number is bounded by the number of concurrent runs.
    pending_ends: Mutex<BTreeMap<RunId, PendingEnd>>,
    clock: Clock,
}

/// State of the index.
enum IndexState {
    /// The index is usable.
    Open(RunIndex),
    /// An operation failed, and the index may have missed an update.
    Closed,
    /// The database is damaged and must be rebuilt.
    Damaged,
}

/// End of a run that is missing in its log.
struct PendingEnd {
    view: RunView,
    events: Vec<LoggedEvent>,
    /// Offset in the log at which the events belong.
    offset: u64,
}

/// A run to be recorded.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NewRun {
    /// Id of the run, from [`Clock::run_id`].
    pub id: RunId,
    /// The request.
    pub request: Asked,
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
        let Self { id, request: asked, uid, key: _, toolchain_env, trace } = self;
        RunEvent::RunQueued { run_id: id, at, asked, uid, toolchain_env_sha256: Some(toolchain_env), trace }
    }
}

impl History {
    /// Opens the history below `state_dir` for this process alone, and ends the unfinished runs of the last process.
    ///
    /// # Errors
    /// Another process has the history open, a directory cannot be used, or there is no space to end a run.
    pub fn open(state_dir: &Path, clock: Clock) -> Result<(Self, RecoverySummary), StartError> {
        let open_error = |error: HistoryError| StartError::History {
            path: state_dir.join("history"),
            reason: error.message_with_hint(),
        };
        let files = HistoryFiles::open(state_dir).map_err(|error| match error {
            OpenHistoryError::InUse => StartError::StateInUse(state_dir.to_path_buf()),
            OpenHistoryError::Store(error) => open_error(error.into()),
        })?;
        let (mut index, rebuilt) = RunIndex::open(&files).map_err(open_error)?;
        let mut recovered = recover(&files, &mut index, clock).map_err(open_error)?;
        recovered.rebuild_reason = rebuilt;
        recovered.log_summary();
        let shared =
            HistoryInner { files, index: Mutex::new(IndexState::Open(index)), pending_ends: Mutex::default(), clock };
        Ok((Self { shared: Arc::new(shared) }, recovered))
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
            let summary = log.view().summary();
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
            return Ok(Some(unended.view.clone()));
        }
        Ok(self.shared.read_log(id)?.map(|settled| settled.view))
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

impl HistoryInner {
    /// Runs `work` on the index. After a failure, the index is first updated from the logs.
    fn with_index<T>(
        self: &Arc<Self>,
        work: impl FnOnce(&mut RunIndex) -> Result<T, HistoryError>,
    ) -> Result<T, HistoryError> {
        let mut slot = self.index_state();
        let index = match &mut *slot {
            IndexState::Open(index) => index,
            closed => {
                let damaged = matches!(closed, IndexState::Damaged);
                *closed = IndexState::Open(self.reopen_index(damaged)?);
                let IndexState::Open(index) = closed else { return Err(HistoryError::IndexUnavailable) };
                index
            }
        };
        let answer = work(index);
        if let Err(HistoryError::Index(error)) = &answer {
            *slot = state_after_error(error);
        }
        answer
    }

    fn reopen_index(&self, damaged: bool) -> Result<RunIndex, HistoryError> {
        let (mut index, rebuilt) = if damaged {
            (RunIndex::create_empty(&self.files)?, Some("it contained data that Proctor did not write".to_owned()))
        } else {
            RunIndex::open(&self.files)?
        };
        tracing::warn!(rebuilt = rebuilt.as_deref(), "the index of runs is brought up to their logs");
        sync_index(&self.files, &mut index, |run| match self.pending_ends().get(run) {
            Some(unended) => Ok(Some(CompleteLog { view: unended.view.clone(), bytes: UNKNOWN_LOG_BYTES, key: None })),
            None => self.read_log(run).or_else(|error| {
                tracing::warn!(%run, %error, "a log is not in the index");
                Ok(None)
            }),
        })?;
        Ok(index)
    }

    /// Stores a run's summary in the index. Returns `false` if that failed; the index is then updated from the log
    /// later.
    fn update_row(&self, run: &RunSummary, log_bytes: u64) -> bool {
        let mut slot = self.index_state();
        let IndexState::Open(index) = &mut *slot else { return false };
        match index.put(run, log_bytes) {
            Ok(()) => true,
            Err(error) => {
                tracing::warn!(run = %run.id, %error, "the index of runs is behind their logs");
                *slot = state_after_error(&error);
                false
            }
        }
    }

    /// Reads the current log of a run.
    fn read_log(&self, id: &RunId) -> Result<Option<CompleteLog>, HistoryError> {
        let Some(file) = self.files.open_log(id)? else { return Ok(None) };
        let folded = run_log_reader::fold_log(id, file).map_err(|source| log_read_error(id, source))?;
        match (folded.view, folded.tail) {
            (Some(view), LogTail::Empty | LogTail::Torn) => {
                Ok(Some(CompleteLog { view, bytes: folded.folded_bytes, key: folded.key }))
            }
            // The run is being recorded at this moment.
            (None, LogTail::Empty | LogTail::Torn) => Ok(None),
            (_, LogTail::Damaged(reason)) => Err(HistoryError::Damaged { run: id.clone(), reason }),
        }
    }

    fn defer_end(&self, unended: PendingEnd) {
        self.pending_ends().insert(unended.view.id.clone(), unended);
    }

    /// Writes the ends that could not be written before.
    fn write_pending_ends(&self) -> Result<(), HistoryError> {
        let mut all = self.pending_ends();
        while let Some(entry) = all.first_entry() {
            let unended = entry.get();
            recovery::replace_end(
                &self.files,
                &unended.view.id,
                unended.offset,
                &run_log_writer::to_lines(&unended.events)?,
            )?;
            entry.remove();
        }
        Ok(())
    }

    fn index_state(&self) -> MutexGuard<'_, IndexState> {
        self.index.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn pending_ends(&self) -> MutexGuard<'_, BTreeMap<RunId, PendingEnd>> {
        self.pending_ends.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Updates the index from the logs. `settle` reads each run that the index does not have as finished with the current
/// log size; it returns `None` if the file is not the log of a run.
fn sync_index(
    files: &HistoryFiles,
    index: &mut RunIndex,
    mut read_run: impl FnMut(&RunId) -> Result<Option<CompleteLog>, HistoryError>,
) -> Result<(), HistoryError> {
    let mut known = index.indexed_logs()?;
    index.db.execute_batch("BEGIN IMMEDIATE")?;
    for run in files.runs()? {
        let indexed = known.remove(run.as_str());
        if indexed.is_some_and(|indexed| indexed.is_finished && Some(indexed.log_bytes) == files.log_size(&run)) {
            continue;
        }
        match read_run(&run)? {
            Some(CompleteLog { view, bytes, key }) => index.put_in_transaction(&view.summary(), bytes, key.as_ref())?,
            None => index.remove_in_transaction(run.as_str())?,
        }
    }
    for gone in known.keys() {
        index.remove_in_transaction(gone)?;
    }
    Ok(index.db.execute_batch("COMMIT")?)
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

fn state_after_error(error: &rusqlite::Error) -> IndexState {
    if run_index::is_damage(error) { IndexState::Damaged } else { IndexState::Closed }
}

fn log_read_error(run: &RunId, source: std::io::Error) -> StoreError {
    StoreError::Io { action: "read", path: format!("the log of the run {run}"), source }
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
            tracing::warn!(%run, "a run that had not ended is inconclusive now");
        }
        for log in &self.quarantined {
            tracing::warn!(log, "a damaged log was set aside");
        }
    }
}
