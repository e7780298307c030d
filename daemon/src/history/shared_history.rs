//! State that all handles of a history and all log writers share: the files, the index, and the ends of runs that are
//! not written yet.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use proctor_core::api::{LoggedEvent, LoggedRun, RunSummary};
use proctor_core::model::names::RunId;
use proctor_runner::{Clock, StoreError};

use super::error::HistoryError;
use super::history_files::HistoryFiles;
use super::log_lines::to_lines;
use super::recovery::{CompleteLog, replace_end};
use super::run_index::{RunIndex, is_damage};
use super::run_log_reader::{LogTail, fold_log};

/// Log size in the index that never matches a real log, so the next process that opens the history reads the log.
pub(super) const UNKNOWN_LOG_BYTES: u64 = 0;
/// The files, the index, and the ends of runs that are not written yet.
pub(super) struct SharedHistory {
    pub(super) files: HistoryFiles,
    index: Mutex<IndexState>,
    /// Finished runs whose end could not be written to their logs yet. No run begins before they are written, so
    /// their number is bounded by the number of concurrent runs.
    pending_ends: Mutex<BTreeMap<RunId, PendingEnd>>,
    pub(super) clock: Clock,
}

/// State of the index.
pub(super) enum IndexState {
    /// The index is usable.
    Open(RunIndex),
    /// An operation failed, and the index may have missed an update.
    Closed,
    /// The database is damaged and must be rebuilt.
    Damaged,
}

/// End of a run that is missing in its log.
pub(super) struct PendingEnd {
    pub(super) run: LoggedRun,
    pub(super) events: Vec<LoggedEvent>,
    /// Offset in the log at which the events belong.
    pub(super) offset: u64,
}

impl SharedHistory {
    /// Creates the shared state; no end is pending.
    pub(super) fn new(files: HistoryFiles, index: RunIndex, clock: Clock) -> Self {
        Self { files, index: Mutex::new(IndexState::Open(index)), pending_ends: Mutex::default(), clock }
    }

    /// Runs `work` on the index. After a failure, the index is first updated from the logs.
    pub(super) fn with_index<T>(
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
        tracing::warn!(rebuilt = rebuilt.as_deref(), "the index of runs is updated from their logs");
        sync_index(&self.files, &mut index, |run| match self.pending_ends().get(run) {
            Some(unended) => Ok(Some(CompleteLog { run: unended.run.clone(), bytes: UNKNOWN_LOG_BYTES, key: None })),
            None => self.read_log(run).or_else(|error| {
                tracing::warn!(%run, %error, "a log is not in the index");
                Ok(None)
            }),
        })?;
        Ok(index)
    }

    /// Stores a run's summary in the index. Returns `false` if that failed; the index is then updated from the log
    /// later.
    pub(super) fn update_row(&self, run: &RunSummary, log_bytes: u64) -> bool {
        let mut slot = self.index_state();
        let IndexState::Open(index) = &mut *slot else { return false };
        match index.put(run, log_bytes) {
            Ok(()) => true,
            Err(error) => {
                tracing::warn!(run = %run.id, %error, "the index of runs is older than their logs");
                *slot = state_after_error(&error);
                false
            }
        }
    }

    /// Reads the current log of a run.
    pub(super) fn read_log(&self, id: &RunId) -> Result<Option<CompleteLog>, HistoryError> {
        let Some(file) = self.files.open_log(id)? else { return Ok(None) };
        let folded = fold_log(id, file).map_err(|source| log_read_error(id, source))?;
        match (folded.run, folded.tail) {
            (Some(run), LogTail::Empty | LogTail::Torn) => {
                Ok(Some(CompleteLog { run, bytes: folded.folded_bytes, key: folded.key }))
            }
            // The run is being recorded at this moment.
            (None, LogTail::Empty | LogTail::Torn) => Ok(None),
            (_, LogTail::Damaged(reason)) => Err(HistoryError::Damaged { run: id.clone(), reason }),
        }
    }

    /// Keeps the end of a run until it can be written.
    pub(super) fn defer_end(&self, unended: PendingEnd) {
        self.pending_ends().insert(unended.run.id().clone(), unended);
    }

    /// Writes the ends that could not be written before.
    pub(super) fn write_pending_ends(&self) -> Result<(), HistoryError> {
        let mut all = self.pending_ends();
        while let Some(entry) = all.first_entry() {
            let unended = entry.get();
            replace_end(&self.files, unended.run.id(), unended.offset, &to_lines(&unended.events)?)?;
            entry.remove();
        }
        Ok(())
    }

    pub(super) fn index_state(&self) -> MutexGuard<'_, IndexState> {
        self.index.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Locks the list of run ends that are not written yet.
    pub(super) fn pending_ends(&self) -> MutexGuard<'_, BTreeMap<RunId, PendingEnd>> {
        self.pending_ends.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Updates the index from the logs. `read_run` reads each run that the index does not have as finished with the current
/// log size; it returns `None` if the file is not the log of a run.
pub(super) fn sync_index(
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
            Some(CompleteLog { run, bytes, key }) => index.put_in_transaction(&run.summary(), bytes, key.as_ref())?,
            None => index.remove_in_transaction(run.as_str())?,
        }
    }
    for gone in known.keys() {
        index.remove_in_transaction(gone)?;
    }
    Ok(index.db.execute_batch("COMMIT")?)
}

fn state_after_error(error: &rusqlite::Error) -> IndexState {
    if is_damage(error) { IndexState::Damaged } else { IndexState::Closed }
}

/// Returns the error for a log that cannot be read.
pub(super) fn log_read_error(run: &RunId, source: std::io::Error) -> StoreError {
    StoreError::Io { action: "read", path: format!("the log of the run {run}"), source }
}
