//! Writes the log of one run.
//!
//! A log has one JSON object per line; the first is `run_queued` and the last is `run_finished`. Each event is
//! appended with one write. Before that, blocks are allocated for the event and for the events that may have to end
//! the run, so a full disk cannot prevent the end from being written. After a kill, the log has complete lines and at
//! most one incomplete line at the end.

use std::fs::File;
use std::os::unix::fs::FileExt as _;
use std::sync::Arc;

use proctor_core::api::{LoggedEvent, LoggedRun, RunSummary, RunView};
use proctor_core::decision::verdict::{EXIT_INCONCLUSIVE, EXIT_INTERRUPTED, InconclusiveReason, Verdict};
use proctor_core::model::event::RunEvent;
use proctor_core::model::names::RunId;
use proctor_runner::StoreError;
use rustix::fs::FallocateFlags;
use rustix::io::Errno;

use super::error::HistoryError;
use super::history_files::{self, LogFileIdentity};
use super::log_lines::{FirstLogLine, IdempotencyHashes, to_line, to_lines};
use super::recovery::{inconclusive_event, log_events};
use super::shared_history::{PendingEnd, SharedHistory, UNKNOWN_LOG_BYTES};

/// Number of bytes reserved for the end of a run: the reason and the final event.
const RESERVED_END_BYTES: u64 = 16 << 10;
/// Number of bytes allocated at a time; enough for the log of a small run.
const ALLOCATION_BYTES: u64 = 32 << 10;

/// Log of an unfinished run, with the run so far. Dropping it before the end records the run as
/// interrupted.
pub struct RunLogWriter {
    history: Arc<SharedHistory>,
    run: LoggedRun,
    /// Opened when the run starts, because many runs may be waiting.
    file: Option<File>,
    identity: LogFileIdentity,
    /// Size of the log in bytes.
    bytes: u64,
    /// Offset up to which blocks are allocated.
    allocated_until: u64,
    /// Row of the run in the index.
    indexed_summary: RunSummary,
    /// Error of the first event that could not be logged.
    first_error: Option<String>,
    ended: bool,
}

/// Recorded end of a run.
#[derive(Debug)]
pub struct RecordedEnd {
    /// The run.
    pub view: RunView,
    /// Events that end the run: the given one, or a reason and an inconclusive end if the given one could not be
    /// logged.
    pub events: Vec<Arc<LoggedEvent>>,
    /// Frees the reserved blocks on drop, when readers have been notified.
    _reserved: Option<ReservedBlocks>,
}

/// Blocks beyond the end of a complete log, which are freed on drop.
#[derive(Debug)]
struct ReservedBlocks {
    file: File,
    /// Size of the log in bytes.
    bytes: u64,
}

impl Drop for ReservedBlocks {
    fn drop(&mut self) {
        if let Err(error) = self.file.set_len(self.bytes) {
            tracing::debug!(%error, "the blocks that were reserved for a log cannot be freed");
        }
    }
}

impl RunLogWriter {
    /// Creates a log with its first event. The file is removed again on failure.
    pub(super) fn begin(
        shared: Arc<SharedHistory>,
        first: &LoggedEvent,
        key: Option<&IdempotencyHashes>,
    ) -> Result<Self, HistoryError> {
        let Some(run) = LoggedRun::from_log([first]) else { return Err(HistoryError::MisplacedEvent) };
        let line = to_line(&FirstLogLine { logged: first, idempotency: key })?;
        let file = shared.files.create_log(run.id())?;
        let identity = history_files::file_identity(&file).map_err(errno_error("examine", run.id()))?;
        let indexed = run.summary();
        let mut log = Self {
            history: shared,
            run,
            file: Some(file),
            identity,
            bytes: 0,
            allocated_until: 0,
            indexed_summary: indexed,
            first_error: None,
            ended: false,
        };
        match log.write_lines(&line) {
            Ok(()) => log.file = None,
            Err(error) => {
                log.discard();
                return Err(error);
            }
        }
        Ok(log)
    }

    /// Removes the log of a run that was not accepted.
    pub(super) fn discard(&mut self) {
        self.ended = true;
        if let Err(error) = self.history.files.remove_run(self.run.id()) {
            tracing::warn!(run = %self.run.id(), %error, "the log of a rejected run cannot be removed");
        }
    }

    /// Returns the run's id.
    pub fn id(&self) -> &RunId {
        self.run.id()
    }

    /// Returns the run so far.
    pub fn run(&self) -> &LoggedRun {
        &self.run
    }

    /// Returns the size of the log in bytes.
    pub(super) fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Appends an event. The first event is written by `begin`, and the last one by [`RunLogWriter::finish`].
    ///
    /// # Errors
    /// The event cannot be written. Then the log contains no part of it, and the run can no longer end as passed. The
    /// end can still be logged, because space is reserved for it.
    pub fn append(&mut self, event: RunEvent) -> Result<Arc<LoggedEvent>, HistoryError> {
        if self.ended || matches!(event, RunEvent::RunQueued { .. } | RunEvent::RunFinished { .. }) {
            return Err(HistoryError::MisplacedEvent);
        }
        let written = self.log_event(event, false);
        if let Err(error) = &written {
            self.first_error.get_or_insert_with(|| error.single_line_message());
        }
        written
    }

    /// Logs the end of the run, a [`RunEvent::RunFinished`], durably.
    ///
    /// If that fails, or if an earlier event could not be logged, the run ends as inconclusive. That end is kept in
    /// memory until it can be written. A run never passes without a record of the pass.
    pub fn finish(mut self, end: RunEvent) -> RecordedEnd {
        self.write_end(end)
    }

    fn write_end(&mut self, end: RunEvent) -> RecordedEnd {
        self.ended = true;
        let in_doubt = replacement_end(&self.run, &end);
        let mut events = Vec::new();
        let lost = self.first_error.take().or_else(|| match self.log_event(end, true) {
            Ok(logged) => {
                events.push(logged);
                None
            }
            Err(error) => Some(error.single_line_message()),
        });
        if let Some(reason) = lost {
            tracing::error!(run = %self.run.id(), reason, "the events of a run could not be logged");
            events = self.end_inconclusive(in_doubt, &reason);
        }
        self.update_index();
        // If the end is not recorded, the log is not complete either.
        let bytes = self.bytes;
        let reserved = self.file.take().filter(|_| bytes != UNKNOWN_LOG_BYTES);
        let reserved = reserved.map(|file| ReservedBlocks { file, bytes });
        RecordedEnd { view: self.run.view(), events, _reserved: reserved }
    }

    /// Ends a run with an incomplete log as inconclusive.
    fn end_inconclusive(&mut self, end: RunEvent, reason: &str) -> Vec<Arc<LoggedEvent>> {
        let message = format!("the events of the run could not be logged: {}", shorten(reason));
        let doubted = RunEvent::Doubted { doubt: InconclusiveReason::Internal, message };
        let events = log_events(&mut self.run, vec![doubted, end], self.history.clock);
        let bytes = self.bytes;
        let written = to_lines(&events).and_then(|lines| self.write_lines(&lines)).and_then(|()| self.sync());
        if let Err(error) = written {
            tracing::error!(run = %self.run.id(), %error, "the end of a run is not recorded yet");
            self.history.defer_end(PendingEnd { run: self.run.clone(), events: events.clone(), offset: bytes });
            // Makes the next daemon read the log, because the end is missing in it.
            self.bytes = UNKNOWN_LOG_BYTES;
        }
        events.into_iter().map(Arc::new).collect()
    }

    fn log_event(&mut self, event: RunEvent, is_last: bool) -> Result<Arc<LoggedEvent>, HistoryError> {
        let logged = LoggedEvent { seq: self.run.seq() + 1, logged_at: self.history.clock.now_text(), event };
        let before = self.bytes;
        self.write_lines(&to_line(&logged)?)?;
        if is_last && let Err(error) = self.sync() {
            self.truncate_to(before);
            return Err(error);
        }
        self.run.apply(&logged);
        if !is_last {
            self.update_index();
        }
        Ok(Arc::new(logged))
    }

    /// Appends complete lines, or nothing.
    fn write_lines(&mut self, lines: &[u8]) -> Result<(), HistoryError> {
        self.ensure_open()?;
        let Some(file) = &self.file else { return Ok(()) };
        let until = self.bytes + lines.len() as u64;
        if !self.ended && until + RESERVED_END_BYTES > self.allocated_until {
            let room = until + RESERVED_END_BYTES.max(ALLOCATION_BYTES);
            self.allocated_until =
                allocate_blocks(file, self.bytes, room).map_err(errno_error("allocate space for", self.run.id()))?;
        }
        if let Err(source) = file.write_all_at(lines, self.bytes) {
            self.truncate_to(self.bytes);
            return Err(io_error("write", self.run.id())(source).into());
        }
        self.bytes = until;
        Ok(())
    }

    /// Truncates the log to `bytes`. No partial line may precede the next line, and no end that may not be durable
    /// may precede another end.
    fn truncate_to(&mut self, bytes: u64) {
        (self.bytes, self.allocated_until) = (bytes, bytes);
        if let Some(Err(error)) = self.file.as_ref().map(|file| file.set_len(bytes)) {
            tracing::warn!(run = %self.run.id(), %error, "a log could not be truncated");
        }
    }

    /// Makes the log and its name durable. If the file system has one journal for both, the first call writes both, and
    /// the second one does not wait.
    fn sync(&mut self) -> Result<(), HistoryError> {
        let Some(file) = &self.file else { return Ok(()) };
        file.sync_data().map_err(io_error("sync", self.run.id()))?;
        Ok(self.history.files.sync_logs()?)
    }

    /// Reopens the log, and checks that it is still the same file.
    fn ensure_open(&mut self) -> Result<(), HistoryError> {
        if self.file.is_some() {
            return Ok(());
        }
        let file = self.history.files.open_log_for_writing(self.run.id())?;
        let identity = history_files::file_identity(&file).map_err(errno_error("examine", self.run.id()))?;
        if identity != self.identity {
            let reason = "another file is in its place".to_owned();
            return Err(HistoryError::Damaged { run: self.run.id().clone(), reason });
        }
        self.file = Some(file);
        Ok(())
    }

    /// Updates the run's row in the index if it changed.
    fn update_index(&mut self) {
        let summary = self.run.summary();
        if summary != self.indexed_summary && self.history.update_row(&summary, self.bytes) {
            self.indexed_summary = summary;
        }
    }
}

/// Ends a run whose task is gone as interrupted.
impl Drop for RunLogWriter {
    fn drop(&mut self) {
        if self.ended {
            return;
        }
        let message = "the daemon dropped the run before its end".to_owned();
        let doubted = self.append(RunEvent::Doubted { doubt: InconclusiveReason::Interrupted, message });
        if let Err(error) = doubted {
            tracing::error!(run = %self.run.id(), %error, "a run was dropped before its end");
        }
        let lasted = self.run.elapsed_ms(&self.history.clock.now_text());
        let end = inconclusive_event(&self.run, EXIT_INTERRUPTED, lasted);
        self.write_end(end);
    }
}

/// Returns the inconclusive end that replaces `end` when an event could not be logged.
fn replacement_end(run: &LoggedRun, end: &RunEvent) -> RunEvent {
    match end {
        RunEvent::RunFinished { tier, duration_ms, evidence_dir, reuse, .. } => RunEvent::RunFinished {
            verdict: Verdict::Inconclusive,
            tier: *tier,
            exit_code: EXIT_INCONCLUSIVE,
            duration_ms: *duration_ms,
            evidence_dir: evidence_dir.clone(),
            reuse: reuse.clone(),
        },
        _ => inconclusive_event(run, EXIT_INCONCLUSIVE, 0),
    }
}

/// Shortens a message to fit into the space reserved for the end.
fn shorten(message: &str) -> String {
    const MAX_CHARS: usize = 1_000;
    message.chars().take(MAX_CHARS).collect()
}

/// Allocates blocks of `file` up to `until`. Returns the offset up to which they are allocated.
fn allocate_blocks(file: &File, from: u64, until: u64) -> Result<u64, Errno> {
    match rustix::fs::fallocate(file, FallocateFlags::KEEP_SIZE, from, until - from) {
        Ok(()) => Ok(until),
        // The file system does not support allocation.
        Err(Errno::OPNOTSUPP | Errno::NOSYS) => Ok(u64::MAX),
        Err(errno) => Err(errno),
    }
}

fn io_error(action: &'static str, run: &RunId) -> impl FnOnce(std::io::Error) -> StoreError {
    let path = format!("the log of the run {run}");
    move |source| StoreError::Io { action, path, source }
}

fn errno_error(action: &'static str, run: &RunId) -> impl FnOnce(Errno) -> StoreError {
    let failed = io_error(action, run);
    move |errno| failed(errno.into())
}
