//! A connection to a server, for callers that block. Each operation ends at its deadline: the server then ends the
//! statement, or a second connection does.

use std::borrow::Cow;
use std::path::Path;
use std::time::{Duration, Instant};

use mysql_async::consts::ColumnType;
use mysql_async::prelude::Queryable as _;
use mysql_async::{Conn, Opts, OptsBuilder, Params, Row, SslOpts, Value};
use proctor_core::sql::{Dialect, SqlColumn};
use tokio::runtime::Runtime;

use super::row_values;
use super::server_flavor::ServerFlavor;
use crate::engine::{ExecutionBounds, StatementOutcome};
use crate::external::dsn::{Dsn, ServerAddress, TlsMode};
use crate::external::trusted_roots::{self, TrustError};
use crate::lexer::{self, SqlTokenKind};
use crate::row_buffer::RowBuffer;

/// The time in which a server ends a statement after it was asked to.
const CANCEL_TIMEOUT: Duration = Duration::from_secs(2);
/// The time after the deadline in which the server ends a statement by itself.
const SERVER_GRACE: Duration = Duration::from_millis(150);
/// The time in which a server of a worker accepts a connection.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);
/// The settings of the driver, which it would otherwise ask the server for. The size of a row is limited later.
const MAX_PACKET_BYTES: usize = 1 << 30;
const WAIT_TIMEOUT_SECONDS: usize = 28_800;

/// Returns a statement that the driver does not change: it takes `:name` for a parameter, which the server does not
/// have. A colon has no meaning before a space either.
fn for_driver(sql: &str) -> Cow<'_, str> {
    let is_name = |at: usize| matches!(sql.as_bytes().get(at), Some(b'a'..=b'z' | b'_'));
    let tokens = lexer::tokenize(sql, Dialect::Mysql).into_iter();
    let colons = tokens.filter(|(kind, range)| *kind == SqlTokenKind::Symbol && &sql[range.clone()] == ":");
    let ends: Vec<usize> = colons.map(|(_, range)| range.end).filter(|end| is_name(*end)).collect();
    if ends.is_empty() {
        return Cow::Borrowed(sql);
    }
    let mut spaced = sql.to_owned();
    ends.iter().rev().for_each(|end| spaced.insert(*end, ' '));
    Cow::Owned(spaced)
}

/// Removes the spaces that [`for_driver`] added to a statement which a message quotes.
pub(super) fn without_driver_spaces(quoted: &str) -> String {
    quoted.replace(": ", ":")
}

/// The reason why an operation failed.
#[derive(Debug, thiserror::Error)]
pub(super) enum SessionError {
    /// The server refused a statement.
    #[error("{}", .0.message)]
    Server(mysql_async::ServerError),
    /// The connection broke.
    #[error("the server does not answer: {0}")]
    Connection(#[source] mysql_async::Error),
    /// The deadline passed.
    #[error("the time limit was reached")]
    TimedOut,
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

impl From<mysql_async::Error> for SessionError {
    fn from(error: mysql_async::Error) -> Self {
        match error {
            mysql_async::Error::Server(reported) => Self::Server(reported),
            other => Self::Connection(other),
        }
    }
}

/// The strictness of the server.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum SqlMode {
    /// The rules of MySQL 8, in which a grouped query may not return other columns.
    Grouped,
    /// The same rules without the one about grouped queries.
    Strict,
    /// Values are adjusted to the type of their column.
    Lenient,
}

impl SqlMode {
    fn value(self) -> &'static str {
        match self {
            Self::Grouped => {
                "ONLY_FULL_GROUP_BY,STRICT_TRANS_TABLES,NO_ZERO_IN_DATE,NO_ZERO_DATE,ERROR_FOR_DIVISION_BY_ZERO,\
                 NO_ENGINE_SUBSTITUTION"
            }
            Self::Strict => {
                "STRICT_TRANS_TABLES,NO_ZERO_IN_DATE,NO_ZERO_DATE,ERROR_FOR_DIVISION_BY_ZERO,NO_ENGINE_SUBSTITUTION"
            }
            Self::Lenient => "NO_ENGINE_SUBSTITUTION",
        }
    }
}

/// A statement that the server has prepared.
#[derive(Debug)]
pub(super) struct Prepared {
    pub(super) columns: Vec<SqlColumn>,
    pub(super) parameters: usize,
}

/// The parameters of a connection.
#[derive(Debug, Clone, Copy)]
pub(super) struct SessionOptions<'a> {
    pub(super) socket: &'a Path,
    pub(super) user: &'a str,
    pub(super) database: Option<&'a str>,
}

/// A connection.
pub(super) struct Session {
    connection: Conn,
    runtime: Runtime,
    options: Opts,
    flavor: ServerFlavor,
    /// The settings that were made last.
    settings: Option<(SqlMode, Instant)>,
    is_cancelled: bool,
}

impl Session {
    /// Connects over a Unix socket.
    ///
    /// # Errors
    /// The server does not accept the connection.
    pub(super) fn connect(options: SessionOptions<'_>) -> Result<Self, SessionError> {
        let builder = OptsBuilder::default()
            .socket(Some(options.socket.to_string_lossy().into_owned()))
            .user(Some(options.user))
            .db_name(options.database)
            .max_allowed_packet(Some(MAX_PACKET_BYTES))
            .wait_timeout(Some(WAIT_TIMEOUT_SECONDS));
        let deadline = Instant::now() + CONNECT_TIMEOUT;
        Self::connect_with(builder, ServerFlavor::Mariadb, deadline)
    }

    /// Connects to a database of an external server.
    ///
    /// # Errors
    /// The server does not accept the connection until the deadline.
    pub(super) fn connect_external(dsn: &Dsn, deadline: Instant) -> Result<Self, SessionError> {
        let builder = OptsBuilder::default()
            .user(Some(&dsn.user))
            .pass(dsn.password.as_ref())
            .db_name(Some(&dsn.database))
            .ssl_opts(tls_options(&dsn.tls)?);
        let builder = match &dsn.address {
            ServerAddress::Tcp { host, port } => builder.ip_or_hostname(host).tcp_port(*port),
            ServerAddress::Socket(file) => builder.socket(Some(file.to_string_lossy().into_owned())),
        };
        let mut session = Self::connect_with(builder, ServerFlavor::Mysql, deadline)?;
        let version = session.query_texts("SELECT version()", deadline)?;
        session.flavor = ServerFlavor::from_version(&version.into_iter().flatten().flatten().collect::<String>());
        Ok(session)
    }

    fn connect_with(builder: OptsBuilder, flavor: ServerFlavor, deadline: Instant) -> Result<Self, SessionError> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        let runtime = runtime.map_err(SessionError::Runtime)?;
        // A cached statement would not be checked again.
        let options: Opts = builder.prefer_socket(false).stmt_cache_size(0).client_found_rows(true).into();
        let connected =
            runtime.block_on(async { tokio::time::timeout_at(deadline.into(), Conn::new(options.clone())).await });
        let connection = connected.map_err(|_| SessionError::TimedOut)??;
        Ok(Self { connection, runtime, options, flavor, settings: None, is_cancelled: false })
    }

    /// Returns the product of the server.
    pub(super) fn flavor(&self) -> ServerFlavor {
        self.flavor
    }

    /// Reports whether a statement was ended from outside. The connection must not be used again, since the request
    /// may also end the next statement.
    pub(super) fn is_cancelled(&self) -> bool {
        self.is_cancelled
    }

    /// Runs statements of Proctor, or the parts of a schema.
    pub(super) fn execute_batch(&mut self, sql: &str, deadline: Instant) -> Result<(), SessionError> {
        self.run_until(deadline, async |connection| Ok(connection.query_iter(sql).await?.drop_result().await?))
    }

    /// Prepares a statement. The server refuses a text with more than one.
    pub(super) fn prepare(&mut self, sql: &str, mode: SqlMode, deadline: Instant) -> Result<Prepared, SessionError> {
        self.apply_settings(mode, deadline)?;
        let sql = for_driver(sql);
        self.run_until(deadline, async |connection| {
            let statement = connection.prep(sql.as_ref()).await?;
            let columns = statement.columns().iter().map(result_column).collect();
            let parameters = usize::from(statement.num_params());
            connection.close(statement).await?;
            Ok(Prepared { columns, parameters })
        })
    }

    /// Runs a query of Proctor, and returns its values as texts.
    pub(super) fn query_texts(
        &mut self,
        sql: &str,
        deadline: Instant,
    ) -> Result<Vec<Vec<Option<String>>>, SessionError> {
        let rows: Vec<Row> = self.run_until(deadline, async |connection| Ok(connection.query(sql).await?))?;
        let text = |value| match value {
            Value::NULL => None,
            Value::Bytes(bytes) => Some(String::from_utf8_lossy(&bytes).into_owned()),
            other => Some(other.as_sql(true)),
        };
        Ok(rows.into_iter().map(|row| row.unwrap().into_iter().map(text).collect()).collect())
    }

    /// Runs a single statement with NULL for each parameter, and reads its result within the limits.
    pub(super) fn run(
        &mut self,
        sql: &str,
        mode: SqlMode,
        is_readonly: bool,
        on: ExecutionBounds<'_>,
    ) -> Result<StatementOutcome, SessionError> {
        let mut returned = 0;
        self.run_with_rows(sql, mode, on, |_| returned += 1).map(|mut outcome| {
            // The rows that a write returns do not count against the limit, since the write is complete.
            outcome.truncated &= is_readonly;
            if !is_readonly {
                // The server reports no changed rows for a write that returns them.
                outcome.changed = outcome.changed.max(returned);
            }
            outcome
        })
    }

    /// Runs a single statement without parameters, and stores its rows.
    pub(super) fn run_into(
        &mut self,
        sql: &str,
        mode: SqlMode,
        is_readonly: bool,
        deadline: Instant,
        stored: &mut RowBuffer,
    ) -> Result<StatementOutcome, SessionError> {
        self.apply_settings(mode, deadline)?;
        let sql = for_driver(sql);
        let done = self.run_until(deadline, async |connection| {
            let statement = connection.prep(sql.as_ref()).await?;
            let mut rows = connection.exec_iter(&statement, Params::Empty).await?;
            // Only the execution reports the columns of `INSERT … RETURNING`.
            let columns: Vec<SqlColumn> = rows.columns_ref().iter().map(result_column).collect();
            let mut returned = 0;
            while let Some(row) = rows.next().await? {
                returned += 1;
                if stored.is_full() {
                    stored.leave_out();
                } else {
                    stored.push(row_values::to_json(row));
                }
                // A write that returns rows is only complete with its last one.
                if stored.is_truncated() && is_readonly {
                    return Ok((StatementOutcome { truncated: true, columns, ..StatementOutcome::default() }, true));
                }
            }
            // The server reports no changed rows for a write that returns them.
            let changed = rows.affected_rows().max(if is_readonly { 0 } else { returned });
            rows.drop_result().await?;
            connection.close(statement).await?;
            let truncated = stored.is_truncated();
            Ok((StatementOutcome { truncated, changed, columns, ..StatementOutcome::default() }, false))
        });
        let (outcome, is_unread) = done?;
        // The rest of the result was not read.
        self.is_cancelled |= is_unread;
        Ok(outcome)
    }

    /// Runs a single statement and returns its first value as a number.
    pub(super) fn query_number(&mut self, sql: &str, on: ExecutionBounds<'_>) -> Result<Option<i64>, SessionError> {
        let mut first = None;
        self.run_with_rows(sql, SqlMode::Strict, on, |row| {
            first = first.or_else(|| match row.as_ref(0)? {
                Value::Int(number) => Some(*number),
                Value::UInt(number) => i64::try_from(*number).ok(),
                Value::Bytes(text) => std::str::from_utf8(text).ok()?.parse().ok(),
                _ => None,
            });
        })?;
        Ok(first)
    }

    fn run_with_rows(
        &mut self,
        sql: &str,
        mode: SqlMode,
        on: ExecutionBounds<'_>,
        mut each: impl FnMut(&Row),
    ) -> Result<StatementOutcome, SessionError> {
        self.apply_settings(mode, on.deadline)?;
        let sql = for_driver(sql);
        let done = self.run_until(on.deadline, async |connection| {
            let statement = connection.prep(sql.as_ref()).await?;
            let nulls = vec![Value::NULL; usize::from(statement.num_params())];
            let parameters = if nulls.is_empty() { Params::Empty } else { Params::Positional(nulls) };
            let mut rows = connection.exec_iter(&statement, parameters).await?;
            let (mut outcome, mut bytes) = (StatementOutcome::default(), 0_u64);
            while let Some(row) = rows.next().await? {
                each(&row);
                bytes = bytes.saturating_add(row_bytes(&row));
                if bytes > on.limits.result {
                    return Err(SessionError::ResultTooLarge(on.limits.result));
                }
                // The rest of a result must always be read.
                if outcome.rows < on.limits.rows {
                    outcome.rows += 1;
                } else {
                    outcome.truncated = true;
                }
            }
            outcome.changed = rows.affected_rows();
            rows.drop_result().await?;
            connection.close(statement).await?;
            Ok(outcome)
        });
        if matches!(done, Err(SessionError::ResultTooLarge(_))) {
            // The rest of the result was not read.
            self.is_cancelled = true;
        }
        done
    }

    /// Sets the strictness, and the time at which the server ends a statement, unless they are set already.
    fn apply_settings(&mut self, mode: SqlMode, deadline: Instant) -> Result<(), SessionError> {
        if self.settings == Some((mode, deadline)) {
            return Ok(());
        }
        let left = deadline.saturating_duration_since(Instant::now()).max(Duration::from_millis(1));
        let sql = format!("SET sql_mode = '{}', {}", mode.value(), self.flavor.time_setting(left));
        self.execute_batch(&sql, deadline)?;
        self.settings = Some((mode, deadline));
        Ok(())
    }

    /// Waits for an operation until a deadline, and then ends its statement.
    fn run_until<T>(
        &mut self,
        deadline: Instant,
        operation: impl AsyncFnOnce(&mut Conn) -> Result<T, SessionError>,
    ) -> Result<T, SessionError> {
        let (connection, options) = (&mut self.connection, self.options.clone());
        let number = connection.id();
        let (done, was_cancelled) = self.runtime.block_on(async {
            let mut operation = std::pin::pin!(operation(connection));
            if let Ok(done) = tokio::time::timeout_at((deadline + SERVER_GRACE).into(), &mut operation).await {
                return (done, false);
            }
            // If the request fails, the statement continues until the worker is killed.
            let _ = tokio::time::timeout(CANCEL_TIMEOUT, kill_query(options, number)).await;
            let _ = tokio::time::timeout(CANCEL_TIMEOUT, operation).await;
            (Err(SessionError::TimedOut), true)
        });
        self.is_cancelled |= was_cancelled;
        done
    }
}

fn tls_options(mode: &TlsMode) -> Result<Option<SslOpts>, SessionError> {
    let TlsMode::Verified { roots } = mode else { return Ok(None) };
    let file = trusted_roots::roots_file(roots.as_deref())?;
    let roots = trusted_roots::read_roots(&file)?;
    let options = SslOpts::default().with_root_certs(vec![roots.into()]).with_disable_built_in_roots(true);
    Ok(Some(options))
}

/// Ends the statement of another connection of the same user.
async fn kill_query(options: Opts, connection: u32) -> Result<(), mysql_async::Error> {
    let mut second = Conn::new(options).await?;
    second.query_drop(format!("KILL QUERY {connection}")).await?;
    second.disconnect().await
}

fn row_bytes(row: &Row) -> u64 {
    let value_bytes = |at: usize| match row.as_ref(at) {
        Some(Value::Bytes(bytes)) => bytes.len(),
        _ => size_of::<u64>(),
    };
    (0..row.len()).map(|at| value_bytes(at) as u64).sum()
}

fn result_column(column: &mysql_async::Column) -> SqlColumn {
    SqlColumn { name: column.name_str().into_owned(), kind: type_name(column.column_type()).map(str::to_owned) }
}

/// Returns the name of a type in SQL.
fn type_name(kind: ColumnType) -> Option<&'static str> {
    Some(match kind {
        ColumnType::MYSQL_TYPE_TINY => "tinyint",
        ColumnType::MYSQL_TYPE_SHORT => "smallint",
        ColumnType::MYSQL_TYPE_INT24 => "mediumint",
        ColumnType::MYSQL_TYPE_LONG => "int",
        ColumnType::MYSQL_TYPE_LONGLONG => "bigint",
        ColumnType::MYSQL_TYPE_FLOAT => "float",
        ColumnType::MYSQL_TYPE_DOUBLE => "double",
        ColumnType::MYSQL_TYPE_DECIMAL | ColumnType::MYSQL_TYPE_NEWDECIMAL => "decimal",
        ColumnType::MYSQL_TYPE_DATE | ColumnType::MYSQL_TYPE_NEWDATE => "date",
        ColumnType::MYSQL_TYPE_DATETIME | ColumnType::MYSQL_TYPE_DATETIME2 => "datetime",
        ColumnType::MYSQL_TYPE_TIMESTAMP | ColumnType::MYSQL_TYPE_TIMESTAMP2 => "timestamp",
        ColumnType::MYSQL_TYPE_TIME | ColumnType::MYSQL_TYPE_TIME2 => "time",
        ColumnType::MYSQL_TYPE_YEAR => "year",
        ColumnType::MYSQL_TYPE_BIT => "bit",
        ColumnType::MYSQL_TYPE_ENUM => "enum",
        ColumnType::MYSQL_TYPE_SET => "set",
        ColumnType::MYSQL_TYPE_JSON => "json",
        ColumnType::MYSQL_TYPE_VARCHAR | ColumnType::MYSQL_TYPE_VAR_STRING => "varchar",
        ColumnType::MYSQL_TYPE_STRING => "char",
        ColumnType::MYSQL_TYPE_BLOB
        | ColumnType::MYSQL_TYPE_TINY_BLOB
        | ColumnType::MYSQL_TYPE_MEDIUM_BLOB
        | ColumnType::MYSQL_TYPE_LONG_BLOB => "text",
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keeps_colons_from_the_driver() {
        assert_eq!(for_driver("SELECT a::date, ':x', @a:=1 -- :y"), "SELECT a:: date, ':x', @a:=1 -- :y");
        assert!(matches!(for_driver("SELECT ':x'"), Cow::Borrowed(_)));
        assert_eq!(without_driver_spaces(":: date"), "::date");
    }
}
