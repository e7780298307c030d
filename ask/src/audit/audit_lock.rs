//! Serialises the writers of an audit trail and its head, across processes. The lock is a transaction on an empty SQLite
//! database, which waits for other holders with a deadline, and ends with its process.

use std::path::Path;
use std::time::Duration;

use rusqlite::Connection;

/// Maximum time that a writer waits for other writers.
pub(super) const LOCK_TIMEOUT: Duration = Duration::from_secs(10);

/// A held lock.
pub(super) struct AuditLock {
    _transaction: Connection,
}

impl AuditLock {
    /// Waits for the lock.
    ///
    /// # Errors
    /// Other writers held it too long, or the file cannot be written.
    pub(super) fn acquire(file: &Path) -> Result<Self, rusqlite::Error> {
        let connection = Connection::open(file)?;
        connection.busy_timeout(LOCK_TIMEOUT)?;
        connection.execute_batch("BEGIN EXCLUSIVE")?;
        Ok(Self { _transaction: connection })
    }
}
