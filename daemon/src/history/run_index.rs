//! SQLite index of the logs: one row per run for lists, and the idempotency keys of requests. It is built from the
//! logs and rebuilt when it is damaged, so its loss costs only time.
//!
//! One process owns the index, protected by the lock of `super::files`. SQLite holds its own lock permanently, which
//! avoids a shared-memory file.

use std::collections::BTreeMap;

use proctor_core::api::RunSummary;
use proctor_core::model::names::RunId;
use proctor_core::text::digest::Sha256Hex;
use rusqlite::{Connection, ErrorCode, OpenFlags, OptionalExtension as _, Row, TransactionBehavior, params};
use rustix::fs::{self, AtFlags, Mode, OFlags};
use rustix::io::Errno;

use super::HistoryError;
use super::history_files::HistoryFiles;
use super::log_lines::IdempotencyHashes;
use proctor_runner::StoreError;

const INDEX_FILE: &str = "index.sqlite";
/// Files that SQLite creates next to the database.
const SQLITE_SIDE_FILES: [&str; 3] = ["index.sqlite-wal", "index.sqlite-shm", "index.sqlite-journal"];
/// Application ID of our databases: `Proc`.
const APPLICATION_ID: i32 = 0x5072_6f63;
/// Version of the tables and of the JSON in `summary`. An index with a different version is rebuilt.
const SCHEMA_VERSION: i32 = 1;
/// Maximum number of stored keys; the oldest are removed.
const MAX_KEYS: i64 = 1 << 16;
/// Maximum number of outdated runs that one query returns.
const MAX_OUTDATED: usize = 256;

/// Settings of the connection: a write-ahead log of 1 MiB, and only as much memory as lists need.
const CONNECTION_PRAGMAS: &str = "
    PRAGMA locking_mode = EXCLUSIVE;
    PRAGMA journal_mode = WAL;
    PRAGMA synchronous = NORMAL;
    PRAGMA wal_autocheckpoint = 256;
    PRAGMA journal_size_limit = 1048576;
    PRAGMA cache_size = -1024;
    PRAGMA temp_store = MEMORY;
    PRAGMA foreign_keys = ON;
";

const CREATE_TABLES: &str = "
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

const UPSERT_RUN: &str = "
    INSERT INTO runs (id, uid, repo, changeset, profile, state, verdict, queued_at, finished_at, log_bytes, summary)
    VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11)
    ON CONFLICT (id) DO UPDATE SET
        uid = ?2, repo = ?3, changeset = ?4, profile = ?5, state = ?6, verdict = ?7, queued_at = ?8,
        finished_at = ?9, log_bytes = ?10, summary = ?11
";

/// Index of the logs.
pub(super) struct RunIndex {
    pub(super) db: Connection,
}

/// An opened index and, if it was rebuilt, the reason.
pub(super) type OpenedIndex = (RunIndex, Option<String>);

/// Indexed state of a log.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct IndexedLog {
    /// `true` if the run has ended.
    pub(super) is_finished: bool,
    /// Size of the log in bytes.
    pub(super) log_bytes: u64,
}

/// Reason why an existing index is replaced by an empty one.
#[derive(Debug, thiserror::Error)]
enum UnusableIndex {
    /// The name of the index, or of one of its side files, belongs to something else.
    #[error("`{name}` is not a Proctor file; it was moved to `{moved_to}`")]
    ForeignFile { name: &'static str, moved_to: String },
    /// There is no index yet.
    #[error("there is none")]
    Missing,
    /// SQLite cannot read the index.
    #[error("it is damaged ({source}); it was moved to `{moved_to}`")]
    Damaged { source: rusqlite::Error, moved_to: String },
    /// Another version of Proctor wrote the index.
    #[error("it has version {0}, but version {SCHEMA_VERSION} is expected")]
    OtherVersion(i32),
}

impl RunIndex {
    /// Opens the index, or rebuilds it empty.
    pub(super) fn open(files: &HistoryFiles) -> Result<OpenedIndex, HistoryError> {
        match Self::open_existing(files)? {
            Ok(index) => Ok((index, None)),
            Err(reason) => Ok((Self::create_empty(files)?, Some(reason.to_string()))),
        }
    }

    /// Creates an empty index, replacing any existing one.
    pub(super) fn create_empty(files: &HistoryFiles) -> Result<Self, HistoryError> {
        // SQLite would apply a leftover write-ahead log to the new database.
        for name in SQLITE_SIDE_FILES {
            files.root.remove(name)?;
        }
        files.root.remove(INDEX_FILE)?;
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let made = fs::openat(&files.root, INDEX_FILE, flags, Mode::RUSR | Mode::WUSR);
        drop(made.map_err(|errno| index_file_error("create", files, errno))?);
        let index = Self::connect(files)?;
        index.db.execute_batch(CREATE_TABLES)?;
        index.db.pragma_update(None, "application_id", APPLICATION_ID)?;
        // Set last, so that an interrupted creation leaves another version.
        index.db.pragma_update(None, "user_version", SCHEMA_VERSION)?;
        Ok(index)
    }

    /// Opens the existing index, or returns why it cannot be used.
    fn open_existing(files: &HistoryFiles) -> Result<Result<Self, UnusableIndex>, HistoryError> {
        for name in SQLITE_SIDE_FILES.iter().chain([&INDEX_FILE]) {
            if !is_single_file_or_absent(files, name)? {
                let to = files.quarantine_root_file(name)?;
                return Ok(Err(UnusableIndex::ForeignFile { name, moved_to: to }));
            }
        }
        if files.root.modified_at(INDEX_FILE)?.is_none() {
            return Ok(Err(UnusableIndex::Missing));
        }
        match Self::connect(files).and_then(Self::check_integrity) {
            Ok(found) => Ok(found),
            Err(error) if is_damage(&error) => {
                let to = files.quarantine_root_file(INDEX_FILE)?;
                Ok(Err(UnusableIndex::Damaged { source: error, moved_to: to }))
            }
            Err(error) => Err(error.into()),
        }
    }

    fn connect(files: &HistoryFiles) -> rusqlite::Result<Self> {
        let path = files.root_path().map_err(|error| rusqlite::Error::ToSqlConversionFailure(Box::new(error)))?;
        let flags =
            OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_NOFOLLOW | OpenFlags::SQLITE_OPEN_NO_MUTEX;
        let db = Connection::open_with_flags(path.join(INDEX_FILE), flags)?;
        db.execute_batch(CONNECTION_PRAGMAS)?;
        Ok(Self { db })
    }

    fn check_integrity(self) -> rusqlite::Result<Result<Self, UnusableIndex>> {
        let number = |name| self.db.pragma_query_value(None, name, |row| row.get::<_, i32>(0));
        let (application, version) = (number("application_id")?, number("user_version")?);
        if (application, version) != (APPLICATION_ID, SCHEMA_VERSION) {
            return Ok(Err(UnusableIndex::OtherVersion(version)));
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

    /// Returns the indexed state of each log.
    pub(super) fn indexed_logs(&self) -> rusqlite::Result<BTreeMap<String, IndexedLog>> {
        let mut query = self.db.prepare("SELECT id, state = 'finished', log_bytes FROM runs")?;
        let row = |row: &Row<'_>| {
            let log_bytes = u64::try_from(row.get::<_, i64>(2)?).unwrap_or(0);
            Ok((row.get(0)?, IndexedLog { is_finished: row.get(1)?, log_bytes }))
        };
        query.query_map([], row)?.collect()
    }

    /// Inserts or updates a run whose log has `log_bytes` bytes.
    pub(super) fn put(&self, run: &RunSummary, log_bytes: u64) -> rusqlite::Result<()> {
        put(&self.db, run, log_bytes)
    }

    /// Inserts or updates a run together with the idempotency key of its request.
    pub(super) fn put_with_key(
        &mut self,
        run: &RunSummary,
        log_bytes: u64,
        key: Option<&IdempotencyHashes>,
    ) -> rusqlite::Result<()> {
        let change = self.db.transaction_with_behavior(TransactionBehavior::Immediate)?;
        put_run_and_key(&change, run, log_bytes, key)?;
        change.commit()
    }

    /// Like [`Self::put_with_key`], within an open transaction.
    pub(super) fn put_in_transaction(
        &self,
        run: &RunSummary,
        log_bytes: u64,
        key: Option<&IdempotencyHashes>,
    ) -> rusqlite::Result<()> {
        put_run_and_key(&self.db, run, log_bytes, key)
    }

    /// Removes a run within an open transaction.
    pub(super) fn remove_in_transaction(&self, run: &str) -> rusqlite::Result<()> {
        remove(&self.db, run)
    }

    /// Stores a key for an existing run.
    pub(super) fn put_key(&mut self, uid: u32, key: &IdempotencyHashes, run: &RunId) -> rusqlite::Result<()> {
        let change = self.db.transaction_with_behavior(TransactionBehavior::Immediate)?;
        put_key(&change, uid, key, run)?;
        change.commit()
    }

    /// Returns the run of a key and the SHA-256 of its request.
    pub(super) fn run_for_key(&self, uid: u32, key_sha256: &Sha256Hex) -> rusqlite::Result<Option<(RunId, Sha256Hex)>> {
        let mut query =
            self.db.prepare_cached("SELECT run, request_sha256 FROM keys WHERE uid = ?1 AND key_sha256 = ?2")?;
        let found = query.query_row(params![uid, key_sha256.to_string()], |row| {
            Ok((parse_column(row, 0, RunId::new)?, parse_column(row, 1, Sha256Hex::try_from)?))
        });
        found.optional()
    }

    /// Returns whether the index contains the run.
    pub(super) fn contains(&self, run: &RunId) -> rusqlite::Result<bool> {
        self.db.prepare_cached("SELECT 1 FROM runs WHERE id = ?1")?.exists([run.as_str()])
    }

    /// Returns the number of runs.
    pub(super) fn count(&self) -> rusqlite::Result<u64> {
        let count = self.db.query_row("SELECT count(*) FROM runs", [], |row| row.get::<_, i64>(0))?;
        Ok(u64::try_from(count).unwrap_or(0))
    }

    /// Removes runs and their keys.
    pub(super) fn remove<'a>(&mut self, runs: impl IntoIterator<Item = &'a str>) -> rusqlite::Result<()> {
        let change = self.db.transaction_with_behavior(TransactionBehavior::Immediate)?;
        for run in runs {
            remove(&change, run)?;
        }
        change.commit()
    }

    /// Returns the oldest runs to remove, at most `MAX_OUTDATED`: runs that ended before `before`, and finished runs
    /// beyond the newest `keep`.
    pub(super) fn outdated(&self, before: Option<&str>, max_runs: u64) -> rusqlite::Result<Vec<RunId>> {
        let mut query = self.db.prepare_cached(
            "SELECT id FROM runs WHERE state = 'finished' AND (finished_at < ?1 OR (queued_at, id) <= (
                SELECT queued_at, id FROM runs WHERE state = 'finished' ORDER BY queued_at DESC, id DESC LIMIT 1 OFFSET ?2
            )) ORDER BY queued_at, id LIMIT ?3",
        )?;
        let keep = i64::try_from(max_runs).unwrap_or(i64::MAX);
        query.query_map(params![before, keep, MAX_OUTDATED as i64], |row| parse_column(row, 0, RunId::new))?.collect()
    }
}

fn put(db: &Connection, run: &RunSummary, log_bytes: u64) -> rusqlite::Result<()> {
    let summary = serde_json::to_string(run).map_err(|error| rusqlite::Error::ToSqlConversionFailure(error.into()))?;
    db.prepare_cached(UPSERT_RUN)?.execute(params![
        run.id.as_str(),
        run.uid,
        run.request.repo,
        run.request.changeset_id.as_ref().map(|id| id.as_str()),
        run.request.profile.as_str(),
        run.state.as_str(),
        run.verdict.map(|verdict| verdict.as_str()),
        run.queued_at,
        run.finished_at,
        i64::try_from(log_bytes).unwrap_or(i64::MAX),
        summary,
    ])?;
    Ok(())
}

fn put_run_and_key(
    db: &Connection,
    run: &RunSummary,
    log_bytes: u64,
    key: Option<&IdempotencyHashes>,
) -> rusqlite::Result<()> {
    put(db, run, log_bytes)?;
    key.map_or(Ok(()), |key| put_key(db, run.uid, key, &run.id))
}

fn remove(db: &Connection, run: &str) -> rusqlite::Result<()> {
    db.prepare_cached("DELETE FROM runs WHERE id = ?1")?.execute([run])?;
    Ok(())
}

fn put_key(db: &Connection, uid: u32, key: &IdempotencyHashes, run: &RunId) -> rusqlite::Result<()> {
    let (of_key, of_request) = (key.key_sha256.to_string(), key.request_sha256.to_string());
    let added = db
        .prepare_cached("INSERT OR IGNORE INTO keys (uid, key_sha256, request_sha256, run) VALUES (?1, ?2, ?3, ?4)")?
        .execute(params![uid, of_key, of_request, run.as_str()])?;
    if added > 0 {
        db.prepare_cached("DELETE FROM keys WHERE n <= (SELECT max(n) FROM keys) - ?1")?.execute([MAX_KEYS])?;
    }
    Ok(())
}

/// Parses a text column.
pub(super) fn parse_column<T, E>(
    row: &Row<'_>,
    column: usize,
    parse: impl Fn(String) -> Result<T, E>,
) -> rusqlite::Result<T>
where
    E: std::error::Error + Send + Sync + 'static,
{
    let conversion_error =
        |error: E| rusqlite::Error::FromSqlConversionFailure(column, rusqlite::types::Type::Text, Box::new(error));
    parse(row.get(column)?).map_err(conversion_error)
}

/// Returns whether the error means that the database is damaged, so a new one would work.
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

/// Returns whether the name is free or refers to a regular file without other hard links.
fn is_single_file_or_absent(files: &HistoryFiles, name: &str) -> Result<bool, HistoryError> {
    match fs::statat(&files.root, name, AtFlags::SYMLINK_NOFOLLOW) {
        Ok(stat) => Ok(fs::FileType::from_raw_mode(stat.st_mode).is_file() && stat.st_nlink == 1),
        Err(Errno::NOENT) => Ok(true),
        Err(errno) => Err(index_file_error("stat", files, errno)),
    }
}

fn index_file_error(action: &'static str, files: &HistoryFiles, errno: Errno) -> HistoryError {
    let path = format!("{}/{INDEX_FILE}", files.root.name());
    StoreError::Io { action, path, source: errno.into() }.into()
}
