//! What is remembered of runs: their logs, and an index of them that is made from those.
//!
//! A log is the truth about its run ([`RunLog`]); it is durable before anybody is told of the end.
//! The index answers what would need all logs: lists, and the keys of requests. It may be lost at
//! any time: what it cannot do is noticed, and it is brought up to the logs before it is asked again.
//!
//! Not here: outputs and evidence, which are the engine's, and who may see which run.

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

/// What the index says of a log that whoever opens the history next must read: no log is that short.
const UNREAD: u64 = 0;
/// How many bytes of events one answer holds, but for one event that is larger.
const MAX_ANSWER: usize = 8 << 20;

/// How many runs one call of [`History::retain`] removes: removing them keeps the index for some milliseconds.
const MAX_FORGOTTEN: usize = 64;

/// What is remembered of runs. Clones share it; calls block on the disk.
#[derive(Clone)]
pub struct History {
    shared: Arc<Shared>,
}

struct Shared {
    files: Files,
    index: Mutex<Slot>,
    /// Runs that have ended, and whose logs could not be told so yet. No run begins before they
    /// are, so they are never more than there were runs at once.
    unended: Mutex<BTreeMap<RunId, Unended>>,
    clock: Clock,
}

/// The index, where it is at hand.
enum Slot {
    /// It is.
    Open(Index),
    /// It failed, and may have missed something.
    Closed,
    /// It is not to be read any more.
    Damaged,
}

/// The end of a run that is not in its log.
struct Unended {
    view: RunView,
    events: Vec<LoggedEvent>,
    /// Where in the log they belong.
    bytes: u64,
}

/// A run that is to be taken on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NewRun {
    /// Its id, from [`Clock::run_id`].
    pub id: RunId,
    /// What was asked for.
    pub asked: Asked,
    /// The user who asked.
    pub uid: u32,
    /// What the request was sent under, where it was.
    pub key: Option<Key>,
    /// What decides which toolchains it finds, as a sha256.
    pub toolchain_env: Sha256Hex,
    /// The span of the caller, where the caller named one.
    pub trace: Option<TraceContext>,
}

/// The `Idempotency-Key` of a request, and the request that it stands for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Key {
    /// The header's value. Only its hash is kept.
    pub text: String,
    /// The sha256 of the request, in whatever form tells two requests apart.
    pub request: Sha256Hex,
}

/// What [`History::open`] found and did.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Recovered {
    /// The runs that the last daemon did not end; they are `inconclusive` now.
    pub interrupted: Vec<RunId>,
    /// The logs that were damaged, as they are called where they were moved to.
    pub set_aside: Vec<String>,
    /// Why the index was made anew; `None` where it was there and sound.
    pub rebuilt: Option<String>,
    /// How many runs are remembered.
    pub runs: u64,
}

/// What [`History::retain`] removed.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Retained {
    /// How many runs were forgotten.
    pub forgotten: u64,
    /// How many are left.
    pub runs: u64,
    /// Whether more runs are to be removed; one call removes a bounded number.
    pub more: bool,
}

impl NewRun {
    /// What its log begins with.
    pub(crate) fn queued(self, at: String) -> RunEvent {
        let Self { id, asked, uid, key: _, toolchain_env, trace } = self;
        RunEvent::RunQueued { run_id: id, at, asked, uid, toolchain_env_sha256: Some(toolchain_env), trace }
    }
}

impl History {
    /// Opens what is remembered below `state_dir`, for this process alone, and ends every run that
    /// the last one left.
    ///
    /// # Errors
    /// Another process has it open; a directory cannot be used; there is no room to end a run.
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

    /// Takes a run on: its log begins with [`RunEvent::RunQueued`], of now.
    ///
    /// # Errors
    /// There is no room, or the key stands for another run. Nothing is remembered then.
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

    /// From now on the key of `uid` stands for a run that was there before: the request joined it,
    /// or was answered by it. Answers which run it stands for: another one where the same request,
    /// sent twice, was faster. (It stands in no log: where the index has to be made anew, it is
    /// forgotten.)
    ///
    /// # Errors
    /// The run is not remembered, the key stands for another request, or it cannot be written.
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

    /// The run that a key of `uid` stands for, and the sha256 of the request that it came with.
    ///
    /// # Errors
    /// The index cannot be read.
    pub fn idempotent(&self, uid: u32, key: &str) -> Result<Option<(RunId, Sha256Hex)>, HistoryError> {
        let key = Sha256Hex::of(key.as_bytes());
        self.shared.with_index(|index| Ok(index.key(uid, &key)?))
    }

    /// A run as its log tells it; `None` where there is none.
    ///
    /// # Errors
    /// The log cannot be read.
    pub fn view(&self, id: &RunId) -> Result<Option<RunView>, HistoryError> {
        if let Some(unended) = self.shared.unended().get(id) {
            return Ok(Some(unended.view.clone()));
        }
        Ok(self.shared.told(id)?.map(|settled| settled.view))
    }

    /// At most `limit` events of a run, those after number `after`, and whether there are more;
    /// fewer where they are large. `None` where there is no such run.
    ///
    /// # Errors
    /// The log cannot be read.
    pub fn events(
        &self,
        id: &RunId,
        after: u64,
        limit: usize,
    ) -> Result<Option<(Vec<LoggedEvent>, bool)>, HistoryError> {
        // Before the log: it may be written there meanwhile.
        let unended = self.shared.unended().get(id).map(|unended| (unended.bytes, unended.events.clone()));
        let (until, ends) = unended.unwrap_or((u64::MAX, Vec::new()));
        let Some(file) = self.shared.files.read(id)? else { return Ok(None) };
        let mut log = Reader::new(file);
        let mut answer = Answer { events: Vec::new(), bytes: 0, limit };
        loop {
            match log.next_after(after).map_err(|source| unreadable(id, source))? {
                // What could not be taken back is not what happened.
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

    /// Runs, newest first: those of `uid`, or of everybody.
    ///
    /// # Errors
    /// The cursor is none, or the index cannot be read.
    pub fn list(&self, filter: &RunFilter, uid: Option<u32>) -> Result<RunPage, HistoryError> {
        self.shared.with_index(|index| listing::page(index, filter, uid))
    }

    /// Keeps the patch of a run.
    ///
    /// # Errors
    /// It cannot be written.
    pub fn store_patch(&self, id: &RunId, patch: &[u8]) -> Result<(), HistoryError> {
        Ok(self.shared.files.write_patch(id, patch)?)
    }

    /// The patch of a run; `None` where none is kept.
    ///
    /// # Errors
    /// It cannot be read.
    pub fn patch(&self, id: &RunId) -> Result<Option<Vec<u8>>, HistoryError> {
        Ok(self.shared.files.read_patch(id)?)
    }

    /// Forgets a bounded number of the oldest runs beyond `keep`: those that ended too long ago, and those beyond the
    /// number. One that has not ended is never forgotten, and nothing in a changeset is removed.
    /// (Outputs, and evidence of runs without a changeset, are the engine's; it bounds them by the
    /// same settings after every run.)
    ///
    /// # Errors
    /// The system refuses; what is forgotten by then stays so.
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
    /// Asks the index; where it failed before, it is brought up to the logs first.
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

    /// Puts what a run came to; whether the index has it now. Where not, the log tells it later.
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

    /// What the log of a run tells so far.
    fn told(&self, id: &RunId) -> Result<Option<Settled>, HistoryError> {
        let Some(file) = self.files.read(id)? else { return Ok(None) };
        let told = reading::fold(id, file).map_err(|source| unreadable(id, source))?;
        match (told.view, told.rest) {
            (Some(view), Rest::Nothing | Rest::Torn) => Ok(Some(Settled { view, bytes: told.bytes, key: told.key })),
            // It is being begun at this moment.
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

/// Brings the index up to the logs. `settle` tells of a run that the index does not know as ended
/// with the log that is there; `None` where that is no run's.
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

/// The same, when nobody works on any run: those that have not ended are ended.
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

/// The time that was `age` ago, as logs have it.
fn time_before(clock: Clock, age: Duration) -> String {
    let since = Duration::from_millis(clock.now_ms()).saturating_sub(age);
    humantime::format_rfc3339_millis(UNIX_EPOCH + since).to_string()
}

/// Events on their way to a caller.
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
        // Where nothing was there before, nothing was lost.
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
