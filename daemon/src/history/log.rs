//! The log of one run while it is written.
//!
//! The bytes of a log: one JSON object a line, the first one `run_queued`, the last one
//! `run_finished`. An event is written in one piece at the end of the log; before that, blocks are
//! set aside behind it for the event and for the end that may have to follow, so that a full disk
//! never keeps an end from being written. A kill leaves whole lines, and at most one without its
//! end.

use std::fs::File;
use std::os::unix::fs::FileExt as _;
use std::sync::Arc;
use std::thread;

use proctor_core::api::{LoggedEvent, RunSummary, RunView};
use proctor_core::event::RunEvent;
use proctor_core::names::RunId;
use proctor_core::verdict::{Doubt, EXIT_INCONCLUSIVE, EXIT_INTERRUPTED, Verdict};
use proctor_runner::StoreError;
use rustix::fs::FallocateFlags;
use rustix::io::Errno;

use super::files::{self, Identity, MAX_EVENT};
use super::reading::{Beginning, KeptKey};
use super::recovery::{inconclusive, logged, since};
use super::{HistoryError, Shared, UNREAD, Unended};

/// How many bytes are set aside for the end of a run: a doubt, and the end itself.
const END: u64 = 16 << 10;
/// How many bytes are set aside at once: the log of a small run.
const AHEAD: u64 = 32 << 10;

/// The log of a run that has not ended, and the run as it tells it. Dropped before its end, it ends
/// the run as interrupted.
pub struct RunLog {
    shared: Arc<Shared>,
    view: RunView,
    /// Opened when the run begins: those that wait are many.
    file: Option<File>,
    identity: Identity,
    /// How many bytes the log has.
    bytes: u64,
    /// Up to where blocks are set aside.
    room: u64,
    /// What the index says of the run.
    indexed: RunSummary,
    /// The first event that could not be logged, and why.
    lost: Option<String>,
    ended: bool,
}

/// How a run ended on record.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Ended {
    /// The run.
    pub view: RunView,
    /// The events that its end came to: the one that was to be logged, or, where that could not be,
    /// a doubt and an end that is inconclusive.
    pub events: Vec<Arc<LoggedEvent>>,
}

impl RunLog {
    /// Begins a log. The file goes away again where that fails.
    pub(super) fn begin(shared: Arc<Shared>, first: &LoggedEvent, key: Option<&KeptKey>) -> Result<Self, HistoryError> {
        let Some(view) = RunView::fold([first]) else { return Err(HistoryError::Misplaced) };
        let line = line(&Beginning { logged: first, idempotency: key })?;
        let file = shared.files.create(&view.id)?;
        let identity = files::identity(&file).map_err(refused("look at", &view.id))?;
        let indexed = view.summary();
        let mut log =
            Self { shared, view, file: Some(file), identity, bytes: 0, room: 0, indexed, lost: None, ended: false };
        match log.write(&line) {
            Ok(()) => log.file = None,
            Err(error) => {
                log.revoke();
                return Err(error);
            }
        }
        Ok(log)
    }

    /// Takes back what was only begun.
    pub(super) fn revoke(&mut self) {
        self.ended = true;
        if let Err(error) = self.shared.files.forget(&self.view.id) {
            tracing::warn!(run = %self.view.id, %error, "the log of a run that was not taken on stays");
        }
    }

    /// The run.
    pub fn id(&self) -> &RunId {
        &self.view.id
    }

    /// The run so far.
    pub fn view(&self) -> &RunView {
        &self.view
    }

    /// How many bytes its log has.
    pub(super) fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Logs what happened; everything but the beginning, and the end, which is for
    /// [`RunLog::finish`].
    ///
    /// # Errors
    /// It cannot be written. Nothing of it stands in the log then, the run cannot end as passed any
    /// more, and its end can still be logged: room for that is set aside.
    pub fn append(&mut self, event: RunEvent) -> Result<Arc<LoggedEvent>, HistoryError> {
        if self.ended || matches!(event, RunEvent::RunQueued { .. } | RunEvent::RunFinished { .. }) {
            return Err(HistoryError::Misplaced);
        }
        let written = self.log(event, false);
        if let Err(error) = &written {
            self.lost.get_or_insert_with(|| error.on_a_line());
        }
        written
    }

    /// Logs the end, a [`RunEvent::RunFinished`], durably. Where that cannot be, or an event before
    /// it could not be logged, the run ends as inconclusive, on disk where possible and in memory
    /// until then: it never passes without that being on record.
    pub fn finish(mut self, end: RunEvent) -> Ended {
        self.end(end)
    }

    fn end(&mut self, end: RunEvent) -> Ended {
        self.ended = true;
        let in_doubt = in_doubt(&self.view, &end);
        let mut events = Vec::new();
        let lost = self.lost.take().or_else(|| match self.log(end, true) {
            Ok(logged) => {
                events.push(logged);
                None
            }
            Err(error) => Some(error.on_a_line()),
        });
        if let Some(reason) = lost {
            tracing::error!(run = %self.view.id, reason, "what happened in a run could not be logged");
            events = self.end_in_doubt(in_doubt, &reason);
        }
        self.put_row();
        self.file = None;
        Ended { view: self.view.clone(), events }
    }

    /// The end of a run of which something is not on record.
    fn end_in_doubt(&mut self, end: RunEvent, reason: &str) -> Vec<Arc<LoggedEvent>> {
        let message = format!("the events of the run could not be logged: {}", shortened(reason));
        let doubted = RunEvent::Doubted { doubt: Doubt::Internal, message };
        let events = logged(&mut self.view, vec![doubted, end], self.shared.clock);
        let bytes = self.bytes;
        let written = lines(&events).and_then(|lines| self.write(&lines)).and_then(|()| self.settle());
        if let Err(error) = written {
            tracing::error!(run = %self.view.id, %error, "the end of a run is not recorded yet");
            self.shared.keep_unended(Unended { view: self.view.clone(), events: events.clone(), bytes });
            // For the index: an end that is not in the log is no reason for the next daemon to pass that over.
            self.bytes = UNREAD;
        }
        events.into_iter().map(Arc::new).collect()
    }

    fn log(&mut self, event: RunEvent, last: bool) -> Result<Arc<LoggedEvent>, HistoryError> {
        let logged = LoggedEvent { seq: self.view.seq + 1, logged_at: self.shared.clock.now_text(), event };
        let before = self.bytes;
        self.write(&line(&logged)?)?;
        if last && let Err(error) = self.settle() {
            self.cut(before);
            return Err(error);
        }
        self.view.apply(&logged);
        if !last {
            self.put_row();
        }
        Ok(Arc::new(logged))
    }

    /// Writes whole lines at the end, or nothing.
    fn write(&mut self, lines: &[u8]) -> Result<(), HistoryError> {
        self.open()?;
        let Some(file) = &self.file else { return Ok(()) };
        let until = self.bytes + lines.len() as u64;
        if !self.ended && until + END > self.room {
            let room = until + END.max(AHEAD);
            self.room = set_aside(file, self.bytes, room).map_err(refused("make room in", &self.view.id))?;
        }
        if let Err(source) = file.write_all_at(lines, self.bytes) {
            self.cut(self.bytes);
            return Err(failed("write", &self.view.id)(source).into());
        }
        self.bytes = until;
        Ok(())
    }

    /// Takes back what stands behind `bytes`: a part of a line must not stand before the next, and
    /// an end that may not be durable not before another.
    fn cut(&mut self, bytes: u64) {
        (self.bytes, self.room) = (bytes, bytes);
        if let Some(Err(error)) = self.file.as_ref().map(|file| file.set_len(bytes)) {
            tracing::warn!(run = %self.view.id, %error, "a log could not be cut back");
        }
    }

    /// Makes the log durable, and gives back what was set aside.
    fn settle(&mut self) -> Result<(), HistoryError> {
        let Some(file) = &self.file else { return Ok(()) };
        file.set_len(self.bytes).map_err(failed("cut", &self.view.id))?;
        let (bytes, name) = thread::scope(|scope| {
            // Each waits for the disk, and neither for the other. What no thread can be had for is done here.
            let name = thread::Builder::new().spawn_scoped(scope, || self.shared.files.sync());
            let bytes = file.sync_data();
            let name = name.map_or_else(|_| self.shared.files.sync(), joined);
            (bytes, name)
        });
        bytes.map_err(failed("sync", &self.view.id))?;
        Ok(name?)
    }

    /// Opens the log again, if it is the one that was begun.
    fn open(&mut self) -> Result<(), HistoryError> {
        if self.file.is_some() {
            return Ok(());
        }
        let file = self.shared.files.reopen(&self.view.id)?;
        let identity = files::identity(&file).map_err(refused("look at", &self.view.id))?;
        if identity != self.identity {
            let reason = "another file is in its place".to_owned();
            return Err(HistoryError::Damaged { run: self.view.id.clone(), reason });
        }
        self.file = Some(file);
        Ok(())
    }

    /// Tells the index, where that has something new to it.
    fn put_row(&mut self) {
        let summary = self.view.summary();
        if summary != self.indexed && self.shared.put_row(&summary, self.bytes) {
            self.indexed = summary;
        }
    }
}

/// A run that is let go of without an end: what worked on it is gone.
impl Drop for RunLog {
    fn drop(&mut self) {
        if self.ended {
            return;
        }
        let message = "the daemon dropped the run before its end".to_owned();
        let doubted = self.append(RunEvent::Doubted { doubt: Doubt::Interrupted, message });
        if let Err(error) = doubted {
            tracing::error!(run = %self.view.id, %error, "a run was dropped before its end");
        }
        let lasted = since(&self.view, Some(&self.shared.clock.now_text()));
        let end = inconclusive(&self.view, EXIT_INTERRUPTED, lasted);
        self.end(end);
    }
}

fn joined<T>(thread: thread::ScopedJoinHandle<'_, T>) -> T {
    thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
}

/// What an end comes to where something before it, or the end itself, could not be logged.
fn in_doubt(view: &RunView, end: &RunEvent) -> RunEvent {
    match end {
        RunEvent::RunFinished { tier, duration_ms, evidence_dir, .. } => RunEvent::RunFinished {
            verdict: Verdict::Inconclusive,
            tier: *tier,
            exit_code: EXIT_INCONCLUSIVE,
            duration_ms: *duration_ms,
            evidence_dir: evidence_dir.clone(),
        },
        _ => inconclusive(view, EXIT_INCONCLUSIVE, 0),
    }
}

/// A message that fits into what is set aside for the end.
fn shortened(message: &str) -> String {
    const MOST: usize = 1_000;
    message.chars().take(MOST).collect()
}

/// Sets blocks aside for `file` up to `until`; answers up to where it has them.
fn set_aside(file: &File, from: u64, until: u64) -> Result<u64, Errno> {
    match rustix::fs::fallocate(file, FallocateFlags::KEEP_SIZE, from, until - from) {
        Ok(()) => Ok(until),
        // This file system has no way to do so.
        Err(Errno::OPNOTSUPP | Errno::NOSYS) => Ok(u64::MAX),
        Err(errno) => Err(errno),
    }
}

/// An event as it stands in a log.
fn line(event: &impl serde::Serialize) -> Result<Vec<u8>, HistoryError> {
    let mut line = serde_json::to_vec(event).map_err(HistoryError::Unwritable)?;
    line.push(b'\n');
    let limit = usize::try_from(MAX_EVENT).unwrap_or(usize::MAX);
    if line.len() > limit { Err(HistoryError::TooLarge { bytes: line.len(), limit }) } else { Ok(line) }
}

/// Events as they stand in a log.
pub(super) fn lines<'a>(events: impl IntoIterator<Item = &'a LoggedEvent>) -> Result<Vec<u8>, HistoryError> {
    let lines: Result<Vec<Vec<u8>>, HistoryError> = events.into_iter().map(line).collect();
    Ok(lines?.concat())
}

fn failed(action: &'static str, run: &RunId) -> impl FnOnce(std::io::Error) -> StoreError {
    let path = format!("the log of the run {run}");
    move |source| StoreError::Io { action, path, source }
}

fn refused(action: &'static str, run: &RunId) -> impl FnOnce(Errno) -> StoreError {
    let failed = failed(action, run);
    move |errno| failed(errno.into())
}
