//! The index of the logs: a SQLite database with a row a run, as lists show it, and the keys that
//! requests came with. It is made from the logs, and made anew where it is not sound, so nothing
//! here has to survive but what is faster to look up.
//!
//! One process has it, behind the lock of `super::files`; SQLite's own lock is held all the time, so
//! that there is no shared memory beside it.

use std::collections::BTreeMap;

use proctor_core::api::RunSummary;
use proctor_core::digest::Sha256Hex;
use proctor_core::names::RunId;
use rusqlite::{Connection, ErrorCode, OpenFlags, OptionalExtension as _, Row, TransactionBehavior, params};
use rustix::fs::{self, AtFlags, Mode, OFlags};
use rustix::io::Errno;

use super::HistoryError;
use super::files::Files;
use super::reading::KeptKey;
use proctor_runner::StoreError;

const NAME: &str = "index.sqlite";
/// What SQLite puts beside it.
const BESIDE: [&str; 3] = ["index.sqlite-wal", "index.sqlite-shm", "index.sqlite-journal"];
/// What tells our databases from others: `Proc`.
const APPLICATION: i32 = 0x5072_6f63;
/// The version of the tables, and of what stands in `summary`. An index of another one is made anew.
const VERSION: i32 = 1;
/// How many keys are remembered; the oldest go.
const MAX_KEYS: i64 = 1 << 16;
/// How many runs one step of forgetting takes.
const BATCH: usize = 256;

/// A write-ahead log of 1 MiB, and no more memory than lists need.
const SETTINGS: &str = "
    PRAGMA locking_mode = EXCLUSIVE;
    PRAGMA journal_mode = WAL;
    PRAGMA synchronous = NORMAL;
    PRAGMA wal_autocheckpoint = 256;
    PRAGMA journal_size_limit = 1048576;
    PRAGMA cache_size = -1024;
    PRAGMA temp_store = MEMORY;
    PRAGMA foreign_keys = ON;
";

const TABLES: &str = "
    CREATE TABLE runs (
        id TEXT NOT NULL PRIMARY KEY,
        uid INTEGER NOT NULL,
        repo TEXT NOT NULL,
        changeset TEXT,
        profile TEXT NOT NULL,
        state TEXT NOT NULL,
        verdict TEXT,
        queued_at TEXT NOT NULL,
        finished_at TEXT,
        log_bytes INTEGER NOT NULL,
        summary TEXT NOT NULL
    ) STRICT;
    CREATE INDEX runs_by_age ON runs (queued_at, id);
    CREATE INDEX runs_of_user ON runs (uid, queued_at, id);
    CREATE INDEX runs_of_repo ON runs (repo, queued_at, id);
    CREATE TABLE keys (
        n INTEGER PRIMARY KEY,
        uid INTEGER NOT NULL,
        key_sha256 TEXT NOT NULL,
        request_sha256 TEXT NOT NULL,
        run TEXT NOT NULL REFERENCES runs (id) ON DELETE CASCADE,
        UNIQUE (uid, key_sha256)
    ) STRICT;
    CREATE INDEX keys_of_run ON keys (run);
";

const PUT: &str = "
    INSERT INTO runs (id, uid, repo, changeset, profile, state, verdict, queued_at, finished_at, log_bytes, summary)
    VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11)
    ON CONFLICT (id) DO UPDATE SET
        uid = ?2, repo = ?3, changeset = ?4, profile = ?5, state = ?6, verdict = ?7, queued_at = ?8,
        finished_at = ?9, log_bytes = ?10, summary = ?11
";

/// The index of the logs.
pub(super) struct Index {
    pub(super) db: Connection,
}

/// An index, and why it was made anew.
pub(super) type Opened = (Index, Option<String>);

/// What an index says of a log.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Indexed {
    /// Whether the run has ended.
    pub(super) finished: bool,
    /// How many bytes its log has.
    pub(super) log_bytes: u64,
}

impl Index {
    /// Opens the index, or makes it anew.
    pub(super) fn open(files: &Files) -> Result<Opened, HistoryError> {
        match Self::there(files)? {
            Ok(index) => Ok((index, None)),
            Err(reason) => Ok((Self::anew(files)?, Some(reason))),
        }
    }

    /// Makes the index anew, empty.
    pub(super) fn anew(files: &Files) -> Result<Self, HistoryError> {
        // What an old write-ahead log holds must not come into a new database.
        for name in BESIDE {
            files.root.remove(name)?;
        }
        files.root.remove(NAME)?;
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let made = fs::openat(&files.root, NAME, flags, Mode::RUSR | Mode::WUSR);
        drop(made.map_err(|errno| refused("create", files, errno))?);
        let index = Self::connect(files)?;
        index.db.execute_batch(TABLES)?;
        index.db.pragma_update(None, "application_id", APPLICATION)?;
        // Last: what was cut short before is of another version.
        index.db.pragma_update(None, "user_version", VERSION)?;
        Ok(index)
    }

    /// The index that is there, or why there is none that can be used.
    fn there(files: &Files) -> Result<Result<Self, String>, HistoryError> {
        for name in BESIDE.iter().chain([&NAME]) {
            if !is_ours_or_absent(files, name)? {
                let to = files.set_root_aside(name)?;
                return Ok(Err(format!("`{name}` is not a Proctor file; it was moved to `{to}`")));
            }
        }
        if files.root.written(NAME)?.is_none() {
            return Ok(Err("there is none".to_owned()));
        }
        match Self::connect(files).and_then(Self::sound) {
            Ok(found) => Ok(found),
            Err(error) if is_damage(&error) => {
                let to = files.set_root_aside(NAME)?;
                Ok(Err(format!("it is damaged ({error}); it was moved to `{to}`")))
            }
            Err(error) => Err(error.into()),
        }
    }

    fn connect(files: &Files) -> rusqlite::Result<Self> {
        let path = files.path().map_err(|error| rusqlite::Error::ToSqlConversionFailure(Box::new(error)))?;
        let flags =
            OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_NOFOLLOW | OpenFlags::SQLITE_OPEN_NO_MUTEX;
        let db = Connection::open_with_flags(path.join(NAME), flags)?;
        db.execute_batch(SETTINGS)?;
        Ok(Self { db })
    }

    fn sound(self) -> rusqlite::Result<Result<Self, String>> {
        let number = |name| self.db.pragma_query_value(None, name, |row| row.get::<_, i32>(0));
        let (application, version) = (number("application_id")?, number("user_version")?);
        if (application, version) != (APPLICATION, VERSION) {
            return Ok(Err(format!("it is of version {version}, and {VERSION} is wanted")));
        }
        let check: String = self.db.query_row("PRAGMA quick_check(1)", [], |row| row.get(0))?;
        match check.as_str() {
            "ok" => Ok(Ok(self)),
            _ => Err(rusqlite::Error::SqliteFailure(
                rusqlite::ffi::Error::new(rusqlite::ffi::SQLITE_CORRUPT),
                Some(check.lines().next().unwrap_or_default().to_owned()),
            )),
        }
    }

    /// What it says of each log.
    pub(super) fn all(&self) -> rusqlite::Result<BTreeMap<String, Indexed>> {
        let mut query = self.db.prepare("SELECT id, state = 'finished', log_bytes FROM runs")?;
        let row = |row: &Row<'_>| {
            let log_bytes = u64::try_from(row.get::<_, i64>(2)?).unwrap_or(0);
            Ok((row.get(0)?, Indexed { finished: row.get(1)?, log_bytes }))
        };
        query.query_map([], row)?.collect()
    }

    /// Puts a run as it is by now; its log has `log_bytes`.
    pub(super) fn put(&self, run: &RunSummary, log_bytes: u64) -> rusqlite::Result<()> {
        put(&self.db, run, log_bytes)
    }

    /// Puts a run and the key that its request came with.
    pub(super) fn put_with_key(
        &mut self,
        run: &RunSummary,
        log_bytes: u64,
        key: Option<&KeptKey>,
    ) -> rusqlite::Result<()> {
        let change = self.db.transaction_with_behavior(TransactionBehavior::Immediate)?;
        put_all(&change, run, log_bytes, key)?;
        change.commit()
    }

    /// The same as a part of a change that is under way.
    pub(super) fn put_as_part(&self, run: &RunSummary, log_bytes: u64, key: Option<&KeptKey>) -> rusqlite::Result<()> {
        put_all(&self.db, run, log_bytes, key)
    }

    /// Removes a run as a part of a change that is under way.
    pub(super) fn remove_as_part(&self, run: &str) -> rusqlite::Result<()> {
        remove(&self.db, run)
    }

    /// Puts a key for a run that is there.
    pub(super) fn put_key(&mut self, uid: u32, key: &KeptKey, run: &RunId) -> rusqlite::Result<()> {
        let change = self.db.transaction_with_behavior(TransactionBehavior::Immediate)?;
        put_key(&change, uid, key, run)?;
        change.commit()
    }

    /// The run that a key stands for, and the sha256 of its request.
    pub(super) fn key(&self, uid: u32, key_sha256: &Sha256Hex) -> rusqlite::Result<Option<(RunId, Sha256Hex)>> {
        let mut query =
            self.db.prepare_cached("SELECT run, request_sha256 FROM keys WHERE uid = ?1 AND key_sha256 = ?2")?;
        let found = query.query_row(params![uid, key_sha256.as_str()], |row| {
            Ok((parsed(row, 0, RunId::new)?, parsed(row, 1, Sha256Hex::try_from)?))
        });
        found.optional()
    }

    /// Whether there is such a run.
    pub(super) fn knows(&self, run: &RunId) -> rusqlite::Result<bool> {
        self.db.prepare_cached("SELECT 1 FROM runs WHERE id = ?1")?.exists([run.as_str()])
    }

    /// How many runs there are.
    pub(super) fn count(&self) -> rusqlite::Result<u64> {
        let count = self.db.query_row("SELECT count(*) FROM runs", [], |row| row.get::<_, i64>(0))?;
        Ok(u64::try_from(count).unwrap_or(0))
    }

    /// Removes runs, with their keys.
    pub(super) fn remove<'a>(&mut self, runs: impl IntoIterator<Item = &'a str>) -> rusqlite::Result<()> {
        let change = self.db.transaction_with_behavior(TransactionBehavior::Immediate)?;
        for run in runs {
            remove(&change, run)?;
        }
        change.commit()
    }

    /// The oldest runs that are to be forgotten, at most a batch of them: those that ended before
    /// `before`, and those beyond the newest `keep` of all that have ended.
    pub(super) fn outdated(&self, before: Option<&str>, keep: u64) -> rusqlite::Result<Vec<RunId>> {
        let mut query = self.db.prepare_cached(
            "SELECT id FROM runs WHERE state = 'finished' AND (finished_at < ?1 OR (queued_at, id) <= (
                SELECT queued_at, id FROM runs WHERE state = 'finished' ORDER BY queued_at DESC, id DESC LIMIT 1 OFFSET ?2
            )) ORDER BY queued_at, id LIMIT ?3",
        )?;
        let keep = i64::try_from(keep).unwrap_or(i64::MAX);
        query.query_map(params![before, keep, BATCH as i64], |row| parsed(row, 0, RunId::new))?.collect()
    }
}

fn put(db: &Connection, run: &RunSummary, log_bytes: u64) -> rusqlite::Result<()> {
    let summary = serde_json::to_string(run).map_err(|error| rusqlite::Error::ToSqlConversionFailure(error.into()))?;
    db.prepare_cached(PUT)?.execute(params![
        run.id.as_str(),
        run.uid,
        run.asked.repo,
        run.asked.changeset_id.as_ref().map(|id| id.as_str()),
        run.asked.profile.as_str(),
        run.state.as_str(),
        run.verdict.map(|verdict| verdict.as_str()),
        run.queued_at,
        run.finished_at,
        i64::try_from(log_bytes).unwrap_or(i64::MAX),
        summary,
    ])?;
    Ok(())
}

fn put_all(db: &Connection, run: &RunSummary, log_bytes: u64, key: Option<&KeptKey>) -> rusqlite::Result<()> {
    put(db, run, log_bytes)?;
    key.map_or(Ok(()), |key| put_key(db, run.uid, key, &run.id))
}

fn remove(db: &Connection, run: &str) -> rusqlite::Result<()> {
    db.prepare_cached("DELETE FROM runs WHERE id = ?1")?.execute([run])?;
    Ok(())
}

fn put_key(db: &Connection, uid: u32, key: &KeptKey, run: &RunId) -> rusqlite::Result<()> {
    let (of_key, of_request) = (key.key_sha256.as_str(), key.request_sha256.as_str());
    let added = db
        .prepare_cached("INSERT OR IGNORE INTO keys (uid, key_sha256, request_sha256, run) VALUES (?1, ?2, ?3, ?4)")?
        .execute(params![uid, of_key, of_request, run.as_str()])?;
    if added > 0 {
        db.prepare_cached("DELETE FROM keys WHERE n <= (SELECT max(n) FROM keys) - ?1")?.execute([MAX_KEYS])?;
    }
    Ok(())
}

/// A column as a value of ours.
pub(super) fn parsed<T, E>(row: &Row<'_>, column: usize, parse: impl Fn(String) -> Result<T, E>) -> rusqlite::Result<T>
where
    E: std::error::Error + Send + Sync + 'static,
{
    let not_ours =
        |error: E| rusqlite::Error::FromSqlConversionFailure(column, rusqlite::types::Type::Text, Box::new(error));
    parse(row.get(column)?).map_err(not_ours)
}

/// Whether the database itself is at fault, and a new one would not be.
pub(super) fn is_damage(error: &rusqlite::Error) -> bool {
    match error {
        rusqlite::Error::FromSqlConversionFailure(..)
        | rusqlite::Error::InvalidColumnType(..)
        | rusqlite::Error::IntegralValueOutOfRange(..) => true,
        error => matches!(
            error.sqlite_error_code(),
            Some(ErrorCode::DatabaseCorrupt | ErrorCode::NotADatabase | ErrorCode::TypeMismatch | ErrorCode::Unknown)
        ),
    }
}

/// A regular file with one name, or nothing.
fn is_ours_or_absent(files: &Files, name: &str) -> Result<bool, HistoryError> {
    match fs::statat(&files.root, name, AtFlags::SYMLINK_NOFOLLOW) {
        Ok(stat) => Ok(fs::FileType::from_raw_mode(stat.st_mode).is_file() && stat.st_nlink == 1),
        Err(Errno::NOENT) => Ok(true),
        Err(errno) => Err(refused("stat", files, errno)),
    }
}

fn refused(action: &'static str, files: &Files, errno: Errno) -> HistoryError {
    let path = format!("{}/{NAME}", files.root.name());
    StoreError::Io { action, path, source: errno.into() }.into()
}
