//! Stores the logs of runs, and an index built from them.
//!
//! The log is the authoritative record of a run ([`RunLog`]) and is durable before the end of the run is reported.
//! The index answers queries that would otherwise read all logs: lists and idempotency keys. It may be lost at any
//! time: after a failure it is updated from the logs before the next query.
//!
//! The engine stores outputs and evidence, and the service decides which caller may see which run.

mod error;
mod files;
mod index;
mod listing;
mod log;
mod reading;
mod recovery;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, UNIX_EPOCH};

use proctor_core::api::{Asked, LoggedEvent, RunPage, RunSummary, RunView};
use proctor_core::digest::Sha256Hex;
use proctor_core::event::RunEvent;
use proctor_core::names::RunId;
use proctor_core::spec::Retention;
use proctor_core::telemetry::TraceContext;
use proctor_runner::{Clock, StoreError};

use crate::service::{RunFilter, StartError};

use files::{Files, Refused};
use index::Index;
use reading::{KeptKey, Next, Reader, Rest};
use recovery::Settled;

pub use error::HistoryError;
pub use log::{Ended, RunLog};
pub(crate) use recovery::inconclusive;

/// Log size in the index that never matches a real log, so the next process that opens the history reads the log.
const UNREAD: u64 = 0;
/// Maximum number of event bytes in one answer, except for a single larger event.
const MAX_ANSWER: usize = 8 << 20;

/// Maximum number of runs that one call of [`History::retain`] removes. Removing them occupies the index for some
/// milliseconds.
const MAX_FORGOTTEN: usize = 64;

/// History of runs. Clones share it; calls block on the disk.
#[derive(Clone)]
pub struct History {
    shared: Arc<Shared>,
}

struct Shared {
    files: Files,
    index: Mutex<Slot>,
    /// Finished runs whose end could not be written to their logs yet. No run begins before they are written, so
    /// their number is bounded by the number of concurrent runs.
    unended: Mutex<BTreeMap<RunId, Unended>>,
    clock: Clock,
}

/// State of the index.
enum Slot {
    /// The index is usable.
    Open(Index),
    /// An operation failed, and the index may have missed an update.
    Closed,
    /// The database is damaged and must be rebuilt.
    Damaged,
}

/// End of a run that is missing in its log.
struct Unended {
    view: RunView,
    events: Vec<LoggedEvent>,
    /// Offset in the log at which the events belong.
    bytes: u64,
}

/// A run to be recorded.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NewRun {
    /// Id of the run, from [`Clock::run_id`].
    pub id: RunId,
    /// The request.
    pub asked: Asked,
    /// User who requested the run.
    pub uid: u32,
    /// Idempotency key of the request, if any.
    pub key: Option<Key>,
    /// SHA-256 of the toolchains that the run finds and of the inputs that select them.
    pub toolchain_env: Sha256Hex,
    /// Trace context of the caller, if any.
    pub trace: Option<TraceContext>,
}

/// An `Idempotency-Key` and the request that it identifies.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Key {
    /// Value of the header. Only its hash is stored.
    pub text: String,
    /// SHA-256 of the request, in a form that differs between different requests.
    pub request: Sha256Hex,
}

/// Result of [`History::open`].
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Recovered {
    /// Runs that the last daemon did not end; they are `inconclusive` now.
    pub interrupted: Vec<RunId>,
    /// New paths of damaged logs that were moved aside.
    pub set_aside: Vec<String>,
    /// Reason why the index was rebuilt; `None` if it was intact.
    pub rebuilt: Option<String>,
    /// Number of stored runs.
    pub runs: u64,
}

/// Result of [`History::retain`].
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Retained {
    /// Number of removed runs.
    pub forgotten: u64,
    /// Number of remaining runs.
    pub runs: u64,
    /// `true` if more runs are outdated; one call removes a bounded number.
    pub more: bool,
}

impl NewRun {
    /// Returns the first event of the run's log.
    pub(crate) fn queued(self, at: String) -> RunEvent {
        let Self { id, asked, uid, key: _, toolchain_env, trace } = self;
        RunEvent::RunQueued { run_id: id, at, asked, uid, toolchain_env_sha256: Some(toolchain_env), trace }
    }
}

impl History {
    /// Opens the history below `state_dir` for this process alone, and ends the unfinished runs of the last process.
    ///
    /// # Errors
    /// Another process has the history open, a directory cannot be used, or there is no space to end a run.
    pub fn open(state_dir: &Path, clock: Clock) -> Result<(Self, Recovered), StartError> {
        let refused =
            |error: HistoryError| StartError::History { path: state_dir.join("history"), reason: error.with_hint() };
        let files = Files::open(state_dir).map_err(|error| match error {
            Refused::InUse => StartError::StateInUse(state_dir.to_path_buf()),
            Refused::Store(error) => refused(error.into()),
        })?;
        let (mut index, rebuilt) = Index::open(&files).map_err(refused)?;
        let mut recovered = recover(&files, &mut index, clock).map_err(refused)?;
        recovered.rebuilt = rebuilt;
        recovered.say();
        let shared = Shared { files, index: Mutex::new(Slot::Open(index)), unended: Mutex::default(), clock };
        Ok((Self { shared: Arc::new(shared) }, recovered))
    }

    /// Records a new run. Its log starts with [`RunEvent::RunQueued`].
    ///
    /// # Errors
    /// There is no space, or the idempotency key belongs to another run. Nothing is stored then.
    pub fn begin(&self, run: NewRun) -> Result<RunLog, HistoryError> {
        let shared = &self.shared;
        shared.log_ends()?;
        let key = run.key.as_ref().map(Key::kept);
        let at = shared.clock.now_text();
        let (uid, event) = (run.uid, run.queued(at.clone()));
        let first = LoggedEvent { seq: 1, logged_at: at, event };
        shared.with_index(|index| {
            let used = key.as_ref().map(|key| index.key(uid, &key.key_sha256)).transpose()?.flatten();
            if let Some((known, _)) = used {
                return Err(HistoryError::KeyUsed(known));
            }
            let mut log = RunLog::begin(Arc::clone(shared), &first, key.as_ref())?;
            let summary = log.view().summary();
            index.put_with_key(&summary, log.bytes(), key.as_ref()).inspect_err(|_| log.revoke())?;
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
    pub fn remember(&self, uid: u32, key: &Key, run: &RunId) -> Result<RunId, HistoryError> {
        let key = key.kept();
        self.shared.with_index(|index| {
            if !index.knows(run)? {
                return Err(HistoryError::NoRun(run.clone()));
            }
            match index.key(uid, &key.key_sha256)? {
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
    pub fn idempotent(&self, uid: u32, key: &str) -> Result<Option<(RunId, Sha256Hex)>, HistoryError> {
        let key = Sha256Hex::of(key.as_bytes());
        self.shared.with_index(|index| Ok(index.key(uid, &key)?))
    }

    /// Returns a run from its log, or `None` if it does not exist.
    ///
    /// # Errors
    /// The log cannot be read.
    pub fn view(&self, id: &RunId) -> Result<Option<RunView>, HistoryError> {
        if let Some(unended) = self.shared.unended().get(id) {
            return Ok(Some(unended.view.clone()));
        }
        Ok(self.shared.told(id)?.map(|settled| settled.view))
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
        let unended = self.shared.unended().get(id).map(|unended| (unended.bytes, unended.events.clone()));
        let (until, ends) = unended.unwrap_or((u64::MAX, Vec::new()));
        let Some(file) = self.shared.files.read(id)? else { return Ok(None) };
        let mut log = Reader::new(file);
        let mut answer = Answer { events: Vec::new(), bytes: 0, limit };
        loop {
            match log.next_after(after).map_err(|source| unreadable(id, source))? {
                // Events after this offset could not be truncated; they were never reported.
                Next::Event(_) if log.offset > until => break,
                Next::Damaged(_) if log.offset >= until => break,
                Next::Event(_) if answer.is_full() => return Ok(Some((answer.events, true))),
                Next::Event(event) => answer.add(*event, log.last_bytes()),
                Next::Damaged(reason) => return Err(HistoryError::Damaged { run: id.clone(), reason }),
                Next::End | Next::Torn => break,
            }
        }
        let seen = answer.events.last().map_or(after, |event| event.seq);
        let mut ends = ends.into_iter().filter(|event| event.seq > seen);
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
        self.shared.with_index(|index| listing::page(index, filter, uid))
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
    pub fn retain(&self, keep: &Retention) -> Result<Retained, HistoryError> {
        let shared = &self.shared;
        shared.log_ends()?;
        let before = keep.max_age.map(|age| time_before(shared.clock, age));
        let mut outdated = shared.with_index(|index| Ok(index.outdated(before.as_deref(), keep.max_runs)?))?;
        let more = outdated.len() > MAX_FORGOTTEN;
        outdated.truncate(MAX_FORGOTTEN);
        if !outdated.is_empty() {
            shared.with_index(|index| Ok(index.remove(outdated.iter().map(RunId::as_str))?))?;
        }
        for run in &outdated {
            shared.files.forget(run)?;
        }
        let runs = shared.with_index(|index| Ok(index.count()?))?;
        Ok(Retained { forgotten: outdated.len() as u64, runs, more })
    }
}

impl Shared {
    /// Runs `work` on the index. After a failure, the index is first updated from the logs.
    fn with_index<T>(
        self: &Arc<Self>,
        work: impl FnOnce(&mut Index) -> Result<T, HistoryError>,
    ) -> Result<T, HistoryError> {
        let mut slot = self.slot();
        let index = match &mut *slot {
            Slot::Open(index) => index,
            closed => {
                let damaged = matches!(closed, Slot::Damaged);
                *closed = Slot::Open(self.reopened(damaged)?);
                let Slot::Open(index) = closed else { return Err(HistoryError::NoIndex) };
                index
            }
        };
        let answer = work(index);
        if let Err(HistoryError::Index(error)) = &answer {
            *slot = after(error);
        }
        answer
    }

    fn reopened(&self, damaged: bool) -> Result<Index, HistoryError> {
        let (mut index, rebuilt) = if damaged {
            (Index::anew(&self.files)?, Some("it contained data that Proctor did not write".to_owned()))
        } else {
            Index::open(&self.files)?
        };
        tracing::warn!(rebuilt = rebuilt.as_deref(), "the index of runs is brought up to their logs");
        survey(&self.files, &mut index, |run| match self.unended().get(run) {
            Some(unended) => Ok(Some(Settled { view: unended.view.clone(), bytes: UNREAD, key: None })),
            None => self.told(run).or_else(|error| {
                tracing::warn!(%run, %error, "a log is not in the index");
                Ok(None)
            }),
        })?;
        Ok(index)
    }

    /// Stores a run's summary in the index. Returns `false` if that failed; the index is then updated from the log
    /// later.
    fn put_row(&self, run: &RunSummary, log_bytes: u64) -> bool {
        let mut slot = self.slot();
        let Slot::Open(index) = &mut *slot else { return false };
        match index.put(run, log_bytes) {
            Ok(()) => true,
            Err(error) => {
                tracing::warn!(run = %run.id, %error, "the index of runs is behind their logs");
                *slot = after(&error);
                false
            }
        }
    }

    /// Reads the current log of a run.
    fn told(&self, id: &RunId) -> Result<Option<Settled>, HistoryError> {
        let Some(file) = self.files.read(id)? else { return Ok(None) };
        let told = reading::fold(id, file).map_err(|source| unreadable(id, source))?;
        match (told.view, told.rest) {
            (Some(view), Rest::Nothing | Rest::Torn) => Ok(Some(Settled { view, bytes: told.bytes, key: told.key })),
            // The run is being recorded at this moment.
            (None, Rest::Nothing | Rest::Torn) => Ok(None),
            (_, Rest::Damaged(reason)) => Err(HistoryError::Damaged { run: id.clone(), reason }),
        }
    }

    fn keep_unended(&self, unended: Unended) {
        self.unended().insert(unended.view.id.clone(), unended);
    }

    /// Writes the ends that could not be written before.
    fn log_ends(&self) -> Result<(), HistoryError> {
        let mut all = self.unended();
        while let Some(entry) = all.first_entry() {
            let unended = entry.get();
            recovery::replace_end(&self.files, &unended.view.id, unended.bytes, &log::lines(&unended.events)?)?;
            entry.remove();
        }
        Ok(())
    }

    fn slot(&self) -> MutexGuard<'_, Slot> {
        self.index.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn unended(&self) -> MutexGuard<'_, BTreeMap<RunId, Unended>> {
        self.unended.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Updates the index from the logs. `settle` reads each run that the index does not have as finished with the current
/// log size; it returns `None` if the file is not the log of a run.
fn survey(
    files: &Files,
    index: &mut Index,
    mut settle: impl FnMut(&RunId) -> Result<Option<Settled>, HistoryError>,
) -> Result<(), HistoryError> {
    let mut known = index.all()?;
    index.db.execute_batch("BEGIN IMMEDIATE")?;
    for run in files.runs()? {
        let indexed = known.remove(run.as_str());
        if indexed.is_some_and(|indexed| indexed.finished && Some(indexed.log_bytes) == files.size(&run)) {
            continue;
        }
        match settle(&run)? {
            Some(Settled { view, bytes, key }) => index.put_as_part(&view.summary(), bytes, key.as_ref())?,
            None => index.remove_as_part(run.as_str())?,
        }
    }
    for gone in known.keys() {
        index.remove_as_part(gone)?;
    }
    Ok(index.db.execute_batch("COMMIT")?)
}

/// Updates the index while no run is active, and ends unfinished runs.
fn recover(files: &Files, index: &mut Index, clock: Clock) -> Result<Recovered, HistoryError> {
    let mut recovered = Recovered::default();
    survey(files, index, |run| {
        let done = recovery::settle(files, run, clock)?;
        recovered.interrupted.extend(done.interrupted.then(|| run.clone()));
        recovered.set_aside.extend(done.aside);
        Ok(done.settled)
    })?;
    files.forget_patches(|run| files.size(run).is_some())?;
    files.tidy()?;
    recovered.runs = index.count()?;
    Ok(recovered)
}

fn after(error: &rusqlite::Error) -> Slot {
    if index::is_damage(error) { Slot::Damaged } else { Slot::Closed }
}

fn unreadable(run: &RunId, source: std::io::Error) -> StoreError {
    StoreError::Io { action: "read", path: format!("the log of the run {run}"), source }
}

/// Returns the time `age` ago in the format of logs.
fn time_before(clock: Clock, age: Duration) -> String {
    let since = Duration::from_millis(clock.now_ms()).saturating_sub(age);
    humantime::format_rfc3339_millis(UNIX_EPOCH + since).to_string()
}

/// Events collected for one answer.
struct Answer {
    events: Vec<LoggedEvent>,
    bytes: usize,
    limit: usize,
}

impl Answer {
    fn is_full(&self) -> bool {
        self.events.len() >= self.limit || (self.bytes >= MAX_ANSWER && !self.events.is_empty())
    }

    fn add(&mut self, event: LoggedEvent, bytes: usize) {
        self.events.push(event);
        self.bytes += bytes;
    }
}

impl Key {
    fn kept(&self) -> KeptKey {
        KeptKey { key_sha256: Sha256Hex::of(self.text.as_bytes()), request_sha256: self.request.clone() }
    }
}

impl Recovered {
    fn say(&self) {
        // A rebuilt index is only worth a message if there were runs before.
        if let Some(reason) = self.rebuilt.as_ref().filter(|_| self.runs > 0) {
            tracing::info!(reason, runs = self.runs, "the index of runs was rebuilt from their logs");
        }
        for run in &self.interrupted {
            tracing::warn!(%run, "a run that had not ended is inconclusive now");
        }
        for log in &self.set_aside {
            tracing::warn!(log, "a damaged log was set aside");
        }
    }
}
