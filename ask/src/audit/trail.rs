//! Appends to an audit trail and reads it. A trail is a directory with a database, the head and a lock.

use std::fs::{DirBuilder, OpenOptions};
use std::os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};

use proctor_core::spec::AuditRetention;
use proctor_core::text::digest::Sha256Hex;
use proctor_runner::Clock;
use rusqlite::{Connection, OpenFlags, OptionalExtension as _, TransactionBehavior, params};
use serde_json::{Value, json};

use super::audit_lock::{AuditLock, LOCK_TIMEOUT};
use super::record::{AuditKind, AuditRecord, Head, NewRecord, StoredRecord, VERSION};
use super::verification::{AuditProblem, AuditReport, ChainReader};
use super::{AuditError, head_file};

const DATABASE: &str = "audit.sqlite3";
const HEAD: &str = "audit-head.json";
const LOCK: &str = "audit.lock";
/// After a removal, the trail has at most this share of its maximum size, in percent.
const KEPT_PERCENT: u64 = 75;

const TABLE: &str = "
    CREATE TABLE IF NOT EXISTS records (
        seq INTEGER PRIMARY KEY,
        ask TEXT NOT NULL,
        at_ms INTEGER NOT NULL,
        record TEXT NOT NULL,
        hash TEXT NOT NULL
    ) STRICT;
    CREATE INDEX IF NOT EXISTS records_by_ask ON records (ask);
";

/// An audit trail.
pub struct AuditTrail {
    directory: PathBuf,
    connection: Connection,
    clock: Clock,
    retention: AuditRetention,
}

/// A question in the trail.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AskSummary {
    /// The id.
    pub id: String,
    /// The time of the first record of the question.
    pub at: String,
    /// The question; missing if its record was removed.
    pub question: Option<String>,
    /// The result; missing if the question did not end.
    pub verdict: Option<String>,
    /// The number of records of the question.
    pub records: u64,
}

impl AuditTrail {
    /// Opens the trail in a directory, and creates it if it does not exist.
    ///
    /// # Errors
    /// The directory or the database cannot be written.
    pub fn open(directory: &Path, retention: AuditRetention, clock: Clock) -> Result<Self, AuditError> {
        let io = |path: &Path| {
            let path = path.to_owned();
            move |source| AuditError::Io { path, source }
        };
        DirBuilder::new().recursive(true).mode(0o700).create(directory).map_err(io(directory))?;
        for name in [DATABASE, LOCK] {
            let file = directory.join(name);
            // SQLite creates its other files with the mode of the database.
            let created = OpenOptions::new().append(true).create(true).mode(0o600).open(&file);
            created.map_err(io(&file))?;
        }
        let _lock = AuditLock::acquire(&directory.join(LOCK))?;
        let connection = Connection::open(directory.join(DATABASE))?;
        connection.busy_timeout(LOCK_TIMEOUT)?;
        connection.execute_batch(TABLE)?;
        let trail = Self { directory: directory.to_owned(), connection, clock, retention };
        // A trail without records has a head from its start, so that a missing head is always a defect.
        if trail.last()?.count == 0 && matches!(head_file::read(&trail.path(HEAD)), Ok(None)) {
            trail.write_head(&Head::empty())?;
        }
        Ok(trail)
    }

    /// Opens an existing trail to read it.
    ///
    /// # Errors
    /// There is no trail, or it cannot be read.
    pub fn open_existing(directory: &Path) -> Result<Self, AuditError> {
        let database = directory.join(DATABASE);
        if !database.is_file() {
            return Err(AuditError::Missing(directory.to_owned()));
        }
        let connection = Connection::open_with_flags(&database, OpenFlags::SQLITE_OPEN_READ_ONLY)?;
        connection.busy_timeout(LOCK_TIMEOUT)?;
        let (clock, retention) = (Clock::system(), AuditRetention::default());
        Ok(Self { directory: directory.to_owned(), connection, clock, retention })
    }

    fn path(&self, name: &str) -> PathBuf {
        self.directory.join(name)
    }

    fn write_head(&self, head: &Head) -> Result<(), AuditError> {
        let path = self.path(HEAD);
        head_file::write(&path, head).map_err(|source| AuditError::Io { path, source })
    }

    /// Appends a record.
    ///
    /// # Errors
    /// The trail is damaged, or cannot be written.
    pub fn append(&mut self, ask: &str, kind: AuditKind, content: Value) -> Result<(), AuditError> {
        let _lock = AuditLock::acquire(&self.path(LOCK))?;
        let mut records = self.recovery_record()?;
        records.push(NewRecord { ask: ask.to_owned(), kind, content });
        let head = self.insert(records)?;
        // The head follows the records. If the process ends here, the next append records the difference.
        self.write_head(&head)
    }

    /// Compares the records with the head. If records follow the head, returns a record that states this.
    ///
    /// # Errors
    /// Records are missing or were changed.
    fn recovery_record(&self) -> Result<Vec<NewRecord>, AuditError> {
        let head = head_file::read(&self.path(HEAD)).ok().flatten();
        let head = head.ok_or(AuditError::Damaged(AuditProblem::NoHead))?;
        let last = self.last()?;
        if last == head {
            return Ok(Vec::new());
        }
        let missing_end = AuditProblem::MissingEnd { head: head.count, last: last.count };
        if self.hash_of(head.count)? != Some(head.hash) || last.count < head.count {
            return Err(AuditError::Damaged(missing_end));
        }
        let content = json!({ "head": head.count, "last": last.count });
        Ok(vec![NewRecord { ask: String::new(), kind: AuditKind::Recovered, content }])
    }

    /// Inserts records, and removes the oldest ones if the trail is too large or they are too old. Returns the new head.
    fn insert(&mut self, records: Vec<NewRecord>) -> Result<Head, AuditError> {
        let (at, at_ms) = (self.clock.now_text(), self.clock.now_ms());
        let mut head = self.last()?;
        let retention = self.retention;
        let transaction = self.connection.transaction_with_behavior(TransactionBehavior::Immediate)?;
        let checkpoint = remove_old(&transaction, retention, at_ms)?;
        for new in records.into_iter().chain(checkpoint) {
            let seq = head.count + 1;
            let record = AuditRecord {
                version: VERSION,
                seq,
                at: at.clone(),
                ask: new.ask,
                kind: new.kind,
                content: new.content,
                previous: head.hash,
            };
            let text = record.to_text();
            let hash = Sha256Hex::digest(text.as_bytes());
            transaction.execute(
                "INSERT INTO records (seq, ask, at_ms, record, hash) VALUES (?1, ?2, ?3, ?4, ?5)",
                params![to_integer(seq), record.ask, to_integer(at_ms), text, hash.to_string()],
            )?;
            head = Head::new(seq, hash);
        }
        transaction.commit()?;
        Ok(head)
    }

    /// Returns the number and hash of the last record.
    fn last(&self) -> Result<Head, AuditError> {
        let sql = "SELECT seq, hash FROM records ORDER BY seq DESC LIMIT 1";
        let row = self.connection.query_row(sql, [], |row| Ok((row.get::<_, i64>(0)?, row.get::<_, String>(1)?)));
        let Some((seq, hash)) = row.optional()? else { return Ok(Head::empty()) };
        let seq = u64::try_from(seq).unwrap_or_default();
        let hash = parse_hash(&hash).ok_or(AuditError::Damaged(AuditProblem::Malformed { seq }))?;
        Ok(Head::new(seq, hash))
    }

    /// Returns the hash of a record; that of the empty trail for number 0.
    fn hash_of(&self, seq: u64) -> Result<Option<Sha256Hex>, AuditError> {
        if seq == 0 {
            return Ok(Some(Head::empty().hash));
        }
        let sql = "SELECT hash FROM records WHERE seq = ?1";
        let hash: Option<String> = self.connection.query_row(sql, [to_integer(seq)], |row| row.get(0)).optional()?;
        Ok(hash.as_deref().and_then(parse_hash))
    }

    /// Verifies all records and the head.
    ///
    /// # Errors
    /// The trail cannot be read.
    pub fn verify(&self) -> Result<AuditReport, AuditError> {
        let _lock = AuditLock::acquire(&self.path(LOCK))?;
        // A malformed head counts as a missing one.
        let mut chain = ChainReader::new(head_file::read(&self.path(HEAD)).ok().flatten());
        self.for_each(None, |stored| chain.push(stored))?;
        Ok(chain.finish())
    }

    /// Calls `visit` for each record in order; only for those of one question, if `ask` is given.
    ///
    /// # Errors
    /// The trail cannot be read.
    pub fn for_each(&self, ask: Option<&str>, mut visit: impl FnMut(&StoredRecord)) -> Result<(), AuditError> {
        let sql = "SELECT seq, ask, record, hash FROM records WHERE ?1 IS NULL OR ask = ?1 ORDER BY seq";
        let mut statement = self.connection.prepare(sql)?;
        let mut rows = statement.query([ask])?;
        while let Some(row) = rows.next()? {
            visit(&StoredRecord {
                seq: u64::try_from(row.get::<_, i64>(0)?).unwrap_or_default(),
                ask: row.get(1)?,
                record: row.get(2)?,
                hash: row.get(3)?,
            });
        }
        Ok(())
    }

    /// Returns the latest questions, the latest one last.
    ///
    /// # Errors
    /// The trail cannot be read.
    pub fn latest(&self, count: usize) -> Result<Vec<AskSummary>, AuditError> {
        let sql = "SELECT ask FROM records WHERE ask <> '' GROUP BY ask ORDER BY max(seq) DESC LIMIT ?1";
        let mut statement = self.connection.prepare(sql)?;
        let ids = statement.query_map([to_integer(count as u64)], |row| row.get(0))?;
        let mut ids = ids.collect::<Result<Vec<String>, _>>()?;
        ids.reverse();
        ids.iter().map(|id| self.summary(id)).collect()
    }

    fn summary(&self, id: &str) -> Result<AskSummary, AuditError> {
        let mut summary =
            AskSummary { id: id.to_owned(), at: String::new(), question: None, verdict: None, records: 0 };
        self.for_each(Some(id), |stored| {
            summary.records += 1;
            let Some((kind, at, content)) = stored.parts() else { return };
            if summary.at.is_empty() {
                summary.at = at;
            }
            match kind {
                AuditKind::Question => summary.question = content["question"].as_str().map(str::to_owned),
                AuditKind::End => summary.verdict = content["verdict"].as_str().map(str::to_owned),
                _ => {}
            }
        })?;
        Ok(summary)
    }
}

/// Removes the oldest records if the trail is too large or they are too old. Returns the record that states this.
fn remove_old(
    connection: &Connection,
    retention: AuditRetention,
    now_ms: u64,
) -> Result<Option<NewRecord>, rusqlite::Error> {
    let too_old = retention.max_age.and_then(|age| now_ms.checked_sub(u64::try_from(age.as_millis()).ok()?));
    let by_age: i64 = match too_old {
        Some(time) => connection.query_row(
            "SELECT coalesce(max(seq), 0) FROM records WHERE at_ms < ?1",
            [to_integer(time)],
            |row| row.get(0),
        )?,
        None => 0,
    };
    let size: i64 = connection.query_row(
        "SELECT (page_count - freelist_count) * page_size
             FROM pragma_page_count, pragma_freelist_count, pragma_page_size",
        [],
        |row| row.get(0),
    )?;
    let size = u64::try_from(size).unwrap_or_default();
    let by_size: i64 = match size > retention.max_bytes {
        true => connection.query_row(
            "SELECT coalesce(max(seq), 0) FROM
                 (SELECT seq, sum(octet_length(record)) OVER (ORDER BY seq DESC) AS size FROM records) WHERE size > ?1",
            [to_integer(retention.max_bytes / 100 * KEPT_PERCENT)],
            |row| row.get(0),
        )?,
        false => 0,
    };
    // The last record stays, so that the trail never looks empty.
    let sql = "SELECT seq, hash FROM records WHERE seq <= ?1 AND seq < (SELECT max(seq) FROM records)
               ORDER BY seq DESC LIMIT 1";
    let row = |row: &rusqlite::Row<'_>| Ok((row.get::<_, i64>(0)?, row.get::<_, String>(1)?));
    let Some((through, hash)) = connection.query_row(sql, [by_age.max(by_size)], row).optional()? else {
        return Ok(None);
    };
    connection.execute("DELETE FROM records WHERE seq <= ?1", [through])?;
    let content = json!({ "through": through, "hash": hash });
    Ok(Some(NewRecord { ask: String::new(), kind: AuditKind::Checkpoint, content }))
}

fn to_integer(number: u64) -> i64 {
    i64::try_from(number).unwrap_or(i64::MAX)
}

fn parse_hash(text: &str) -> Option<Sha256Hex> {
    serde_json::from_value(Value::String(text.to_owned())).ok()
}

#[cfg(test)]
mod tests;
