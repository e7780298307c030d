//! Completes logs of runs that were unfinished when their daemon ended. These runs become inconclusive.

use std::os::unix::fs::FileExt as _;

use proctor_core::api::{LoggedEvent, LoggedRun, RunState};
use proctor_core::decision::verdict::{EXIT_INCONCLUSIVE, EXIT_INTERRUPTED, InconclusiveReason, Verdict};
use proctor_core::model::event::RunEvent;
use proctor_core::model::names::RunId;
use proctor_core::model::tier::Tier;
use proctor_runner::{Clock, StoreError};
use rustix::io::Errno;

use super::error::HistoryError;
use super::history_files::HistoryFiles;
use super::log_lines::{IdempotencyHashes, to_lines};
use super::run_log_reader::{self, FoldedLog, LogTail};

/// A run whose log is complete.
pub(super) struct CompleteLog {
    pub(super) run: LoggedRun,
    pub(super) bytes: u64,
    pub(super) key: Option<IdempotencyHashes>,
}

/// Result of the recovery of a log.
#[derive(Default)]
pub(super) struct LogRecovery {
    /// The run, if the file is the log of a run.
    pub(super) log: Option<CompleteLog>,
    /// `true` if recovery ended the run.
    pub(super) interrupted: bool,
    /// Path to which the damaged log, or a copy of it, was moved.
    pub(super) quarantined: Option<String>,
}

/// Reads the log of an inactive run, and ends the run if it is unfinished. The caller must have exclusive access to
/// the history, before any run starts.
pub(super) fn recover_log(files: &HistoryFiles, run: &RunId, clock: Clock) -> Result<LogRecovery, HistoryError> {
    let folded = files.open_log(run).and_then(|file| {
        let failed = |source| StoreError::Io { action: "read", path: run.to_string(), source };
        file.map(|file| run_log_reader::fold_log(run, file).map_err(failed)).transpose()
    });
    let folded = match folded {
        Ok(Some(folded)) => folded,
        Ok(None) => return Ok(LogRecovery::default()),
        Err(error) if is_transient(&error) => return Err(error.into()),
        Err(error) => {
            tracing::warn!(%run, %error, "a log cannot be read and is moved to another directory");
            return quarantine_log(files, run);
        }
    };
    match folded.run.is_some() {
        true => repair_log(files, run, folded, clock),
        false if is_damaged(&folded) => quarantine_log(files, run),
        // The daemon was killed before it reported the run to the caller.
        false => remove_log(files, run),
    }
}

/// Returns whether the process or the machine lacks a resource, so the log may be intact.
fn is_transient(error: &StoreError) -> bool {
    let lacking = [Errno::MFILE, Errno::NFILE, Errno::NOMEM].map(Errno::raw_os_error);
    matches!(error, StoreError::Io { source, .. } if source.raw_os_error().is_some_and(|code| lacking.contains(&code)))
}

fn remove_log(files: &HistoryFiles, run: &RunId) -> Result<LogRecovery, HistoryError> {
    files.remove_run(run)?;
    Ok(LogRecovery::default())
}

fn quarantine_log(files: &HistoryFiles, run: &RunId) -> Result<LogRecovery, HistoryError> {
    let aside = files.quarantine_log(run)?;
    Ok(LogRecovery { quarantined: Some(aside), ..LogRecovery::default() })
}

fn is_damaged(folded: &FoldedLog) -> bool {
    matches!(folded.tail, LogTail::Damaged(_))
}

/// Truncates invalid bytes and ends the run if necessary.
fn repair_log(
    files: &HistoryFiles,
    run: &RunId,
    mut folded: FoldedLog,
    clock: Clock,
) -> Result<LogRecovery, HistoryError> {
    let aside = if is_damaged(&folded) { Some(files.quarantine_copy(run)?) } else { None };
    let interrupted = !folded.is_finished();
    let Some(logged) = &mut folded.run else { return Ok(LogRecovery::default()) };
    let end = if interrupted { ending_events(logged, &folded.tail) } else { Vec::new() };
    let lines = log_events(&mut *logged, end, clock);
    if folded.tail != LogTail::Empty || !lines.is_empty() {
        let lines = to_lines(&lines)?;
        replace_end(files, run, folded.folded_bytes, &lines)?;
        folded.folded_bytes += lines.len() as u64;
    }
    let settled = folded.run.map(|run| CompleteLog { run, bytes: folded.folded_bytes, key: folded.key });
    Ok(LogRecovery { log: settled, interrupted, quarantined: aside })
}

/// Writes `lines` at `offset` and truncates the log after them. Truncation comes last because it frees the reserved
/// blocks, which guarantee that the end can be written.
pub(super) fn replace_end(files: &HistoryFiles, run: &RunId, offset: u64, lines: &[u8]) -> Result<(), StoreError> {
    let file = files.open_log_for_writing(run)?;
    let written = file.write_all_at(lines, offset);
    let written = written.and_then(|()| file.set_len(offset + lines.len() as u64)).and_then(|()| file.sync_data());
    written.map_err(|source| StoreError::Io { action: "write the end of", path: run.to_string(), source })?;
    files.sync_logs()
}

/// Returns the events that end a run whose daemon was killed or whose log is damaged.
fn ending_events(run: &LoggedRun, tail: &LogTail) -> Vec<RunEvent> {
    let (doubt, message, exit_code) = match (tail, run.state()) {
        (LogTail::Damaged(reason), _) => {
            (InconclusiveReason::Internal, format!("the log of the run is damaged: {reason}"), EXIT_INCONCLUSIVE)
        }
        (_, RunState::Queued) => (
            InconclusiveReason::Interrupted,
            "the daemon ended before the start of the run".to_owned(),
            EXIT_INTERRUPTED,
        ),
        _ => (InconclusiveReason::Interrupted, "the daemon ended during the run".to_owned(), EXIT_INTERRUPTED),
    };
    let doubted = RunEvent::Doubted { doubt, message };
    vec![doubted, inconclusive_event(run, exit_code, run.elapsed_ms(run.last_logged_at()))]
}

/// Returns the final event of an inconclusive run.
pub(crate) fn inconclusive_event(run: &LoggedRun, exit_code: u8, duration_ms: u64) -> RunEvent {
    // A started run may have executed anything that was allowed.
    let tier = if run.started_at().is_some() { run.request().max_tier } else { Tier::ONE };
    RunEvent::RunFinished {
        verdict: Verdict::Inconclusive,
        tier,
        exit_code,
        duration_ms,
        evidence_dir: None,
        reuse: None,
    }
}

/// Numbers events, adds their time, and applies them to the run.
pub(super) fn log_events(run: &mut LoggedRun, events: Vec<RunEvent>, clock: Clock) -> Vec<LoggedEvent> {
    let mut one = |event| {
        let logged = LoggedEvent { seq: run.seq() + 1, logged_at: clock.now_text(), event };
        run.apply(&logged);
        logged
    };
    events.into_iter().map(&mut one).collect()
}
