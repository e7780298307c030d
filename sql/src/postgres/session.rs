//! A connection to a server, for callers that block. Each operation ends at its deadline: the statement is then
//! cancelled.

use std::future::Future;
use std::path::Path;
use std::time::{Duration, Instant};

use futures_util::StreamExt as _;
use tokio::runtime::Runtime;
use tokio_postgres::config::SslMode;
use tokio_postgres::types::private::BytesMut;
use tokio_postgres::types::{IsNull, ToSql, Type};
use tokio_postgres::{Client, Config, NoTls, SimpleQueryMessage, Statement};
use tokio_postgres_rustls::MakeRustlsConnect;

use super::row_values;
use crate::engine::{BoundStatement, ExecutionBounds, StatementOutcome};
use crate::external::dsn::{Dsn, ServerAddress, TlsMode};
use crate::external::trusted_roots::{self, TrustError};
use crate::row_buffer::RowBuffer;

/// The time in which a server ends a statement after it was asked to cancel it.
const CANCEL_TIMEOUT: Duration = Duration::from_secs(2);
/// The name of the savepoint of one operation.
const SAVEPOINT: &str = "proctor_operation";

/// The reason why an operation failed.
#[derive(Debug, thiserror::Error)]
pub(super) enum SessionError {
    /// The server refused a statement, or the connection broke.
    #[error(transparent)]
    Server(#[from] tokio_postgres::Error),
    /// The deadline passed.
    #[error("the time limit was reached")]
    TimedOut,
    /// The statement changes the row at the position of a cursor, but statements that open cursors are refused.
    #[error("the statement runs alone, so no cursor is open for `WHERE CURRENT OF`")]
    NoCursor,
    /// The result is larger than the limit in bytes.
    #[error("the result has more than {0} bytes")]
    ResultTooLarge(u64),
    /// The runtime of the connection cannot be created.
    #[error("the runtime cannot be created: {0}")]
    Runtime(#[source] std::io::Error),
    /// There are no certificates to verify the server with.
    #[error(transparent)]
    Trust(#[from] TrustError),
}

/// The handling of the effects of an operation that succeeds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Effects {
    /// They are undone.
    Undo,
    /// The settings remain until the end of the transaction.
    Keep,
}

/// The way to count the rows that a statement changes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum RowCount {
    /// The statement changes no rows, so its result may be left incomplete.
    Unchanged,
    /// The server reports the number at the end of the statement.
    Reported,
    /// The statistics of the transaction contain the number, unless triggers or foreign keys can change rows too. At the
    /// end of a statement, the server does not report the rows that its common table expressions change.
    FromStatistics,
}

impl RowCount {
    pub(super) fn of_statement(bound: &BoundStatement) -> Self {
        match (bound.is_readonly || bound.is_explain, bound.writes_in_with) {
            (true, _) => Self::Unchanged,
            (false, false) => Self::Reported,
            (false, true) => Self::FromStatistics,
        }
    }
}

/// The settings that decide what a statement means and how values are written, with the values of a new server.
pub(super) const MEANING_SETTINGS: &[(&str, &str)] = &[
    ("standard_conforming_strings", "on"),
    ("transform_null_equals", "off"),
    ("backslash_quote", "safe_encoding"),
    ("datestyle", "ISO, MDY"),
    ("intervalstyle", "postgres"),
    ("bytea_output", "hex"),
    ("extra_float_digits", "1"),
    ("xmlbinary", "base64"),
];
/// A connection.
pub(super) struct Session {
    runtime: Runtime,
    client: Client,
    /// The protection of the connection, which a request to cancel a statement needs too.
    tls: Option<MakeRustlsConnect>,
    is_in_transaction: bool,
}

/// A parameter without a value.
#[derive(Debug)]
struct Null;

impl ToSql for Null {
    fn to_sql(&self, _: &Type, _: &mut BytesMut) -> Result<IsNull, Box<dyn std::error::Error + Sync + Send>> {
        Ok(IsNull::Yes)
    }

    fn accepts(_: &Type) -> bool {
        true
    }

    tokio_postgres::types::to_sql_checked!();
}

/// The changed rows of a table, as the statistics of a session contain them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct TableChanges {
    /// The object id; 0 if the server keeps no statistics.
    table: u32,
    rows: u64,
    /// True if a statement that changes the table changes no other rows: the table has no triggers, no foreign keys that
    /// change rows, and no rules, and it is no partition, between which rows move by two changes.
    is_exact: bool,
}

/// Returns the number of rows that a statement changed; `None` if the statistics may contain more than these rows.
fn rows_changed_between(before: &[TableChanges], after: &[TableChanges]) -> Option<u64> {
    let rows_before = |of: u32| before.iter().find(|known| known.table == of).map_or(0, |known| known.rows);
    let is_known = after.iter().all(|one| one.table != 0);
    let grown = || after.iter().filter(|one| one.rows > rows_before(one.table));
    let is_exact = is_known && grown().all(|one| one.is_exact);
    is_exact.then(|| grown().map(|one| one.rows - rows_before(one.table)).sum())
}

impl Session {
    /// Connects to a database over the socket in `directory`.
    ///
    /// # Errors
    /// The server does not accept the connection.
    pub(super) fn connect(directory: &Path, user: &str, database: &str) -> Result<Self, SessionError> {
        let mut config = Config::new();
        config.host_path(directory).user(user).dbname(database);
        Self::connect_with(&config, None)
    }

    /// Connects to a database of an external server.
    ///
    /// # Errors
    /// The server does not accept the connection until the deadline.
    pub(super) fn connect_external(dsn: &Dsn, deadline: Instant) -> Result<Self, SessionError> {
        let mut config = Config::new();
        match &dsn.address {
            ServerAddress::Tcp { host, port } => config.host(host).port(*port),
            ServerAddress::Socket(directory) => config.host_path(directory),
        };
        config.user(&dsn.user).dbname(&dsn.database).application_name("proctor");
        if let Some(password) = &dsn.password {
            config.password(password);
        }
        config.connect_timeout(deadline.saturating_duration_since(Instant::now()));
        let tls = match &dsn.tls {
            TlsMode::Off => {
                config.ssl_mode(SslMode::Disable);
                None
            }
            TlsMode::Verified { roots } => {
                config.ssl_mode(SslMode::Require);
                Some(MakeRustlsConnect::new(trusted_roots::client_config(roots.as_deref())?))
            }
        };
        Self::connect_with(&config, tls)
    }

    fn connect_with(config: &Config, tls: Option<MakeRustlsConnect>) -> Result<Self, SessionError> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        let runtime = runtime.map_err(SessionError::Runtime)?;
        // The connection ends with the client; a caller gets its error from the client.
        let client = runtime.block_on(async {
            Ok::<_, tokio_postgres::Error>(match tls.clone() {
                Some(tls) => {
                    let (client, connection) = config.connect(tls).await?;
                    tokio::spawn(connection);
                    client
                }
                None => {
                    let (client, connection) = config.connect(NoTls).await?;
                    tokio::spawn(connection);
                    client
                }
            })
        })?;
        Ok(Self { runtime, client, tls, is_in_transaction: false })
    }

    pub(super) fn is_in_transaction(&self) -> bool {
        self.is_in_transaction
    }

    pub(super) fn begin(&mut self, deadline: Instant) -> Result<(), SessionError> {
        self.begin_with("BEGIN", deadline)
    }

    /// Begins a transaction with a separate statement.
    pub(super) fn begin_with(&mut self, begin: &str, deadline: Instant) -> Result<(), SessionError> {
        self.execute_batch(begin, deadline)?;
        self.is_in_transaction = true;
        Ok(())
    }

    pub(super) fn commit(&mut self, deadline: Instant) -> Result<(), SessionError> {
        self.is_in_transaction = false;
        self.execute_batch("COMMIT", deadline)
    }

    pub(super) fn rollback(&mut self, deadline: Instant) -> Result<(), SessionError> {
        self.is_in_transaction = false;
        self.execute_batch("ROLLBACK", deadline)
    }

    /// Runs statements of Proctor, or the parts of a schema.
    pub(super) fn execute_batch(&self, sql: &str, deadline: Instant) -> Result<(), SessionError> {
        self.run_until(deadline, async { Ok(self.client.batch_execute(sql).await?) })
    }

    /// Sets [`MEANING_SETTINGS`], which a schema may have changed for its database or its role.
    pub(super) fn reset_meaning(&self, deadline: Instant) -> Result<(), SessionError> {
        let settings = MEANING_SETTINGS.iter().map(|(name, value)| format!("SET {name} = '{value}'"));
        self.execute_batch(&settings.collect::<Vec<_>>().join("; "), deadline)
    }

    /// Prepares a statement. The server refuses a text with more than one.
    pub(super) fn prepare(&self, sql: &str, deadline: Instant) -> Result<Statement, SessionError> {
        self.run_until(deadline, async { Ok(self.client.prepare(sql).await?) })
    }

    /// Runs one statement of Proctor without a result.
    pub(super) fn execute(&self, sql: &str, deadline: Instant) -> Result<u64, SessionError> {
        self.run_until(deadline, async { Ok(self.client.execute(sql, &[]).await?) })
    }

    /// Runs a query of Proctor whose columns are of the type `text`.
    pub(super) fn query_texts(&self, sql: &str, deadline: Instant) -> Result<Vec<Vec<Option<String>>>, SessionError> {
        let rows = self.run_until(deadline, async { Ok(self.client.query(sql, &[]).await?) })?;
        let fields = |row: &tokio_postgres::Row| (0..row.len()).map(|at| Ok(row.try_get(at)?)).collect();
        rows.iter().map(fields).collect()
    }

    /// Runs a statement of a request with NULL for each parameter, and reads its result within the limits.
    pub(super) fn run(
        &self,
        statement: &Statement,
        count: RowCount,
        on: ExecutionBounds<'_>,
    ) -> Result<StatementOutcome, SessionError> {
        let is_readonly = count == RowCount::Unchanged;
        self.counted(count, on.deadline, async {
            let parameters = statement.params().iter().map(|_| &Null);
            let mut rows = std::pin::pin!(self.client.query_raw(statement, parameters).await?);
            let (mut outcome, mut bytes) = (StatementOutcome::default(), 0_u64);
            while let Some(row) = rows.next().await {
                bytes = bytes.saturating_add(row?.raw_size_bytes() as u64);
                if outcome.truncated {
                    continue;
                }
                if bytes > on.limits.result {
                    self.cancel().await;
                    // The statement has ended before the next one begins, so that the request cannot reach that one.
                    while rows.next().await.is_some() {}
                    return Err(SessionError::ResultTooLarge(on.limits.result));
                }
                outcome.rows += 1;
                // The remaining rows are read too: the rows of requests are few, and a write that returns rows is only
                // complete with its last one.
                if outcome.rows > on.limits.rows && is_readonly {
                    outcome.rows = on.limits.rows;
                    outcome.truncated = true;
                }
            }
            if !is_readonly {
                outcome.changed = rows.rows_affected().unwrap_or(0);
            }
            Ok(outcome)
        })
    }

    /// Runs a statement of a request without parameters, and stores its rows. The server sends the values as texts.
    /// The statement has been prepared, so it is a single one.
    pub(super) fn run_into(
        &self,
        sql: &str,
        columns: &[Type],
        count: RowCount,
        deadline: Instant,
        stored: &mut RowBuffer,
    ) -> Result<StatementOutcome, SessionError> {
        let is_readonly = count == RowCount::Unchanged;
        self.counted(count, deadline, async {
            let mut messages = std::pin::pin!(self.client.simple_query_raw(sql).await?);
            let mut outcome = StatementOutcome::default();
            while let Some(message) = messages.next().await {
                match message? {
                    SimpleQueryMessage::Row(row) if !stored.is_truncated() => {
                        if stored.is_full() {
                            stored.leave_out();
                        } else {
                            let value = |(at, kind)| Ok(row_values::to_json(row.try_get(at)?, kind));
                            let values: Result<_, SessionError> = columns.iter().enumerate().map(value).collect();
                            stored.push(values?);
                        }
                        if stored.is_truncated() && is_readonly {
                            self.cancel().await;
                            while messages.next().await.is_some() {}
                            break;
                        }
                    }
                    // A write that returns rows is only complete with its last one.
                    SimpleQueryMessage::CommandComplete(rows) if !is_readonly => outcome.changed = rows,
                    _ => {}
                }
            }
            outcome.truncated = stored.is_truncated();
            Ok(outcome)
        })
    }

    /// Runs a statement, and counts the rows that it changes as `count` says.
    fn counted(
        &self,
        count: RowCount,
        deadline: Instant,
        statement: impl Future<Output = Result<StatementOutcome, SessionError>>,
    ) -> Result<StatementOutcome, SessionError> {
        if count != RowCount::FromStatistics {
            return self.run_until(deadline, statement);
        }
        let before = self.table_changes(deadline)?;
        let outcome = self.run_until(deadline, statement)?;
        let changed = rows_changed_between(&before, &self.table_changes(deadline)?);
        Ok(StatementOutcome {
            changed: changed.unwrap_or_default(),
            is_change_count_unknown: changed.is_none(),
            ..outcome
        })
    }

    /// Returns the tables of which the statistics of the session contain changed rows.
    fn table_changes(&self, deadline: Instant) -> Result<Vec<TableChanges>, SessionError> {
        const QUERY: &str = "SELECT c.oid, s.n_tup_ins + s.n_tup_upd + s.n_tup_del,
                pg_catalog.current_setting('track_counts')::boolean AND NOT (
                    c.relispartition OR c.relhasrules OR EXISTS (
                        SELECT FROM pg_catalog.pg_trigger t JOIN pg_catalog.pg_proc p ON p.oid = t.tgfoid
                        WHERE t.tgrelid = c.oid
                            AND (NOT t.tgisinternal OR p.proname ~ '^RI_FKey_(cascade|setnull|setdefault)_')))
            FROM pg_catalog.pg_stat_xact_user_tables s JOIN pg_catalog.pg_class c ON c.oid = s.relid
            WHERE s.n_tup_ins + s.n_tup_upd + s.n_tup_del > 0
            UNION ALL SELECT 0::oid, 1, false WHERE NOT pg_catalog.current_setting('track_counts')::boolean";
        let rows = self.run_until(deadline, async { Ok(self.client.query(QUERY, &[]).await?) })?;
        let changes = rows.iter().map(|row| {
            let rows: i64 = row.try_get(1)?;
            Ok(TableChanges { table: row.try_get(0)?, rows: rows.unsigned_abs(), is_exact: row.try_get(2)? })
        });
        changes.collect()
    }

    /// Does some work in a savepoint; outside of a transaction, in a new one. Undoes the effects if the work fails or if
    /// `effects` says so.
    pub(super) fn isolated<T>(
        &mut self,
        effects: Effects,
        deadline: Instant,
        work: impl FnOnce(&mut Self) -> Result<T, SessionError>,
    ) -> Result<T, SessionError> {
        let is_alone = !self.is_in_transaction;
        if is_alone {
            self.begin(deadline)?;
        } else {
            self.execute_batch(&format!("SAVEPOINT {SAVEPOINT}"), deadline)?;
        }
        let done = work(self);
        // The effects must be undone even if the time limit was reached.
        let end = Instant::now().max(deadline) + CANCEL_TIMEOUT;
        let ended = match (is_alone, effects) {
            (true, _) => self.rollback(end),
            (false, Effects::Keep) if done.is_ok() => {
                self.execute_batch(&format!("RELEASE SAVEPOINT {SAVEPOINT}"), end)
            }
            (false, _) => {
                self.execute_batch(&format!("ROLLBACK TO SAVEPOINT {SAVEPOINT}; RELEASE SAVEPOINT {SAVEPOINT}"), end)
            }
        };
        done.and_then(|value| ended.map(|()| value))
    }

    /// Waits for an operation until a deadline, and then cancels its statement.
    fn run_until<T>(
        &self,
        deadline: Instant,
        operation: impl Future<Output = Result<T, SessionError>>,
    ) -> Result<T, SessionError> {
        self.runtime.block_on(async {
            let mut operation = std::pin::pin!(operation);
            if let Ok(done) = tokio::time::timeout_at(deadline.into(), &mut operation).await {
                return done;
            }
            self.cancel().await;
            // Later statements wait for the end of this one, so its result is awaited.
            let _ = tokio::time::timeout(CANCEL_TIMEOUT, operation).await;
            Err(SessionError::TimedOut)
        })
    }

    async fn cancel(&self) {
        // If the request fails, the statement continues until the worker is killed, or until the server ends it.
        let token = self.client.cancel_token();
        let _ = match self.tls.clone() {
            Some(tls) => token.cancel_query(tls).await,
            None => token.cancel_query(NoTls).await,
        };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_only_rows_that_the_statement_changed() {
        let of = |table, rows, is_exact| TableChanges { table, rows, is_exact };
        let before = [of(1, 2, true), of(2, 5, false)];
        assert_eq!(rows_changed_between(&before, &[of(1, 4, true), of(2, 5, false), of(3, 1, true)]), Some(3));
        assert_eq!(rows_changed_between(&before, &[of(1, 4, true), of(2, 6, false)]), None, "table 2 has triggers");
        assert_eq!(rows_changed_between(&before, &before), Some(0));
        assert_eq!(rows_changed_between(&[of(0, 1, false)], &[of(0, 1, false)]), None, "there are no statistics");
    }
}
