//! Completes logs of runs that were unfinished when their daemon ended. These runs become inconclusive.

use std::os::unix::fs::FileExt as _;
use std::time::SystemTime;

use proctor_core::api::{LoggedEvent, RunState, RunView};
use proctor_core::event::RunEvent;
use proctor_core::names::RunId;
use proctor_core::tier::Tier;
use proctor_core::verdict::{Doubt, EXIT_INCONCLUSIVE, EXIT_INTERRUPTED, Verdict};
use proctor_runner::{Clock, StoreError};
use rustix::io::Errno;

use super::HistoryError;
use super::files::Files;
use super::log;
use super::reading::{self, KeptKey, Rest, Told};

/// A run whose log is complete.
pub(super) struct Settled {
    pub(super) view: RunView,
    pub(super) bytes: u64,
    pub(super) key: Option<KeptKey>,
}

/// Result of the recovery of a log.
#[derive(Default)]
pub(super) struct Done {
    /// The run, if the file is the log of a run.
    pub(super) settled: Option<Settled>,
    /// `true` if recovery ended the run.
    pub(super) interrupted: bool,
    /// Path to which the damaged log, or a copy of it, was moved.
    pub(super) aside: Option<String>,
}

/// Reads the log of an inactive run, and ends the run if it is unfinished. The caller must have exclusive access to
/// the history, before any run starts.
pub(super) fn settle(files: &Files, run: &RunId, clock: Clock) -> Result<Done, HistoryError> {
    let told = files.read(run).and_then(|file| {
        let failed = |source| StoreError::Io { action: "read", path: run.to_string(), source };
        file.map(|file| reading::fold(run, file).map_err(failed)).transpose()
    });
    let told = match told {
        Ok(Some(told)) => told,
        Ok(None) => return Ok(Done::default()),
        Err(error) if of_the_moment(&error) => return Err(error.into()),
        Err(error) => {
            tracing::warn!(%run, %error, "a log cannot be read and is moved out of the way");
            return moved_aside(files, run);
        }
    };
    match told.view.is_some() {
        true => mended(files, run, told, clock),
        false if is_damaged(&told) => moved_aside(files, run),
        // The daemon was killed before the caller learned of the run.
        false => removed(files, run),
    }
}

/// Returns whether the process or the machine lacks a resource, so that the log may be intact.
fn of_the_moment(error: &StoreError) -> bool {
    let lacking = [Errno::MFILE, Errno::NFILE, Errno::NOMEM].map(Errno::raw_os_error);
    matches!(error, StoreError::Io { source, .. } if source.raw_os_error().is_some_and(|code| lacking.contains(&code)))
}

fn removed(files: &Files, run: &RunId) -> Result<Done, HistoryError> {
    files.forget(run)?;
    Ok(Done::default())
}

fn moved_aside(files: &Files, run: &RunId) -> Result<Done, HistoryError> {
    let aside = files.set_aside(run)?;
    Ok(Done { aside: Some(aside), ..Done::default() })
}

fn is_damaged(told: &Told) -> bool {
    matches!(told.rest, Rest::Damaged(_))
}

/// Truncates invalid bytes and ends the run if necessary.
fn mended(files: &Files, run: &RunId, mut told: Told, clock: Clock) -> Result<Done, HistoryError> {
    let aside = if is_damaged(&told) { Some(files.copy_aside(run)?) } else { None };
    let interrupted = !told.finished();
    let Some(view) = &mut told.view else { return Ok(Done::default()) };
    let end = if interrupted { ending(view, &told.rest, told.last_at.as_deref()) } else { Vec::new() };
    let lines = logged(view, end, clock);
    if told.rest != Rest::Nothing || !lines.is_empty() {
        let lines = log::lines(&lines)?;
        replace_end(files, run, told.bytes, &lines)?;
        told.bytes += lines.len() as u64;
    }
    let settled = told.view.map(|view| Settled { view, bytes: told.bytes, key: told.key });
    Ok(Done { settled, interrupted, aside })
}

/// Writes `lines` at `offset` and truncates the log after them. Truncation comes last because it frees the reserved
/// blocks, which guarantee that the end can be written.
pub(super) fn replace_end(files: &Files, run: &RunId, offset: u64, lines: &[u8]) -> Result<(), StoreError> {
    let file = files.reopen(run)?;
    let written = file.write_all_at(lines, offset);
    let written = written.and_then(|()| file.set_len(offset + lines.len() as u64)).and_then(|()| file.sync_data());
    written.map_err(|source| StoreError::Io { action: "write the end of", path: run.to_string(), source })?;
    files.sync()
}

/// Returns the events that end a run whose daemon was killed or whose log is damaged.
fn ending(view: &RunView, rest: &Rest, last_at: Option<&str>) -> Vec<RunEvent> {
    let (doubt, message, exit_code) = match (rest, view.state) {
        (Rest::Damaged(reason), _) => {
            (Doubt::Internal, format!("the log of the run is damaged: {reason}"), EXIT_INCONCLUSIVE)
        }
        (_, RunState::Queued) => {
            (Doubt::Interrupted, "the daemon ended before the run had begun".to_owned(), EXIT_INTERRUPTED)
        }
        _ => (Doubt::Interrupted, "the daemon ended while the run was under way".to_owned(), EXIT_INTERRUPTED),
    };
    let doubted = RunEvent::Doubted { doubt, message };
    vec![doubted, inconclusive(view, exit_code, since(view, last_at))]
}

/// Returns the final event of an inconclusive run.
pub(crate) fn inconclusive(view: &RunView, exit_code: u8, duration_ms: u64) -> RunEvent {
    // A started run may have executed anything that was allowed.
    let tier = if view.started_at.is_some() { view.asked.max_tier } else { Tier::ONE };
    RunEvent::RunFinished { verdict: Verdict::Inconclusive, tier, exit_code, duration_ms, evidence_dir: None }
}

/// Returns the milliseconds from the start of a run to `end`, or 0 if the run did not start.
pub(super) fn since(view: &RunView, end: Option<&str>) -> u64 {
    let time = |text: Option<&str>| -> Option<SystemTime> { humantime::parse_rfc3339(text?).ok() };
    let lasted =
        time(end).zip(time(view.started_at.as_deref())).and_then(|(end, began)| end.duration_since(began).ok());
    lasted.map_or(0, |lasted| u64::try_from(lasted.as_millis()).unwrap_or(u64::MAX))
}

/// Numbers events, adds their time, and applies them to the run.
pub(super) fn logged(view: &mut RunView, events: Vec<RunEvent>, clock: Clock) -> Vec<LoggedEvent> {
    let mut one = |event| {
        let logged = LoggedEvent { seq: view.seq + 1, logged_at: clock.now_text(), event };
        view.apply(&logged);
        logged
    };
    events.into_iter().map(&mut one).collect()
}
