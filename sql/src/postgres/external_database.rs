//! Reads the schema of a database on an external server, and runs statements on it.
//!
//! The schema is read with `pg_dump`, which PostgreSQL's client package contains. Statements run with the settings that
//! the worker's server has too, so that they mean what was judged.

use std::io;
use std::path::PathBuf;
use std::process::{Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use proctor_core::sql::{Dialect, ResultRows, SqlRequest};
use tokio::io::{AsyncRead, AsyncReadExt as _};
use tokio_postgres::types::Type;

use super::catalog_reader::quote_identifier;
use super::server::PostgresPrograms;
use super::session::{MEANING_SETTINGS, RowCount, Session, SessionError};
use super::{postgres_errors, result_columns};
use crate::external::dsn::{Dsn, ServerAddress, TlsMode};
use crate::external::external_run::{self, JudgedStatement, RunFailure, TransactionEnd};
use crate::external::trusted_roots;
use crate::lexer::{self, SqlTokenKind};
use crate::row_buffer::RowBuffer;
use crate::server_files;

/// The options of `pg_dump`. Owners and privileges name roles that the worker's server does not have.
const DUMP_OPTIONS: &[&str] = &[
    "--schema-only",
    "--no-owner",
    "--no-privileges",
    "--no-publications",
    "--no-subscriptions",
    "--no-security-labels",
    "--no-tablespaces",
    "--quote-all-identifiers",
];
/// Maximum size of a schema, in bytes.
const MAX_SCHEMA_BYTES: u64 = 32 << 20;
/// The time for the end of a transaction after the deadline.
const END_TIMEOUT: Duration = Duration::from_secs(10);

/// Reads the statements that create the schema, and the path on which names are looked up.
pub(crate) fn read_schema(dsn: &Dsn, deadline: Instant) -> Result<Vec<String>, String> {
    let session = Session::connect_external(dsn, deadline).map_err(|error| connection_message(&error))?;
    let path = search_path(&session, deadline).map_err(|error| postgres_errors::describe(&error))?;
    drop(session);
    let dump = dump_schema(dsn, deadline)?;
    Ok(vec![portable_schema(&dump), set_search_path(&path)])
}

/// Runs statements in one transaction, and returns the rows of the last one.
pub(crate) fn run(
    dsn: &Dsn,
    request: &SqlRequest,
    statements: &[JudgedStatement<'_>],
    end: TransactionEnd,
    deadline: Instant,
) -> Result<ResultRows, RunFailure> {
    let connected = Session::connect_external(dsn, deadline);
    let mut session = connected.map_err(|error| RunFailure::Connection(connection_message(&error)))?;
    let ran = run_in(&mut session, request, statements, end, deadline);
    match (ran, end) {
        (Ok(result), TransactionEnd::Commit) => {
            // A caller that gets no answer in time must not find the effects later.
            if Instant::now() > deadline {
                return Err(RunFailure::Refused(postgres_errors::to_refusal(&SessionError::TimedOut, "")));
            }
            commit(&mut session)?;
            Ok(ResultRows { committed: true, ..result })
        }
        // The connection ends here, and with it the transaction.
        (ran, _) => ran,
    }
}

fn run_in(
    session: &mut Session,
    request: &SqlRequest,
    statements: &[JudgedStatement<'_>],
    end: TransactionEnd,
    deadline: Instant,
) -> Result<ResultRows, RunFailure> {
    let internal = |error: SessionError| RunFailure::Refused(postgres_errors::to_internal_refusal(&error));
    let path = search_path(session, deadline).map_err(internal)?;
    let begin = if end == TransactionEnd::ReadOnly { "BEGIN READ ONLY" } else { "BEGIN READ WRITE" };
    session.begin_with(begin, deadline).map_err(internal)?;
    session.execute_batch(&transaction_settings(&path, deadline), deadline).map_err(internal)?;
    let mut result = ResultRows { changed: Some(0), ..ResultRows::default() };
    for statement in statements {
        let refused = |error: SessionError| RunFailure::Refused(postgres_errors::to_refusal(&error, statement.sql));
        let prepared = session.prepare(statement.sql, deadline).map_err(refused)?;
        let types: Vec<Type> = prepared.columns().iter().map(|column| column.type_().clone()).collect();
        let mut rows = RowBuffer::new(&request.limits);
        let count = match statement.may_stop_early {
            true => RowCount::Unchanged,
            false if !statement.is_readonly && may_write_in_with(statement.sql) => RowCount::FromStatistics,
            false => RowCount::Reported,
        };
        let ran = session.run_into(statement.sql, &types, count, deadline, &mut rows).map_err(refused)?;
        // The server also counts the rows that a query returns.
        result.changed = external_run::add_changed(result.changed, &ran, statement.is_readonly);
        result.truncated = rows.is_truncated();
        result.rows = rows.into_rows();
        result.columns = result_columns(&prepared);
    }
    Ok(result)
}

/// Reports whether a common table expression may change rows: a word such as INSERT follows a bracket within brackets.
fn may_write_in_with(sql: &str) -> bool {
    const WRITES: [&str; 4] = ["insert", "update", "delete", "merge"];
    let (mut depth, mut is_after_bracket) = (0_usize, false);
    for (kind, range) in lexer::tokenize(sql, Dialect::Postgres) {
        let text = &sql[range];
        match (kind, text) {
            (SqlTokenKind::Whitespace | SqlTokenKind::Comment, _) => continue,
            (_, "(") => depth += 1,
            (_, ")") => depth = depth.saturating_sub(1),
            (SqlTokenKind::Word, word)
                if depth > 0 && is_after_bracket && WRITES.iter().any(|write| word.eq_ignore_ascii_case(write)) =>
            {
                return true;
            }
            _ => {}
        }
        is_after_bracket = matches!(text, "(" | ")");
    }
    false
}

fn commit(session: &mut Session) -> Result<(), RunFailure> {
    session.commit(Instant::now() + END_TIMEOUT).map_err(|error| match &error {
        // The server checks deferred constraints at the end, and undoes the transaction if one is violated.
        SessionError::Server(reported) if reported.as_db_error().is_some() => {
            RunFailure::Refused(postgres_errors::to_refusal(&error, ""))
        }
        _ => RunFailure::CommitUnknown(postgres_errors::describe(&error)),
    })
}

/// Returns the message of a connection that was not made.
fn connection_message(error: &SessionError) -> String {
    match error {
        SessionError::Server(error) if error.as_db_error().is_none() => external_run::message_with_causes(error),
        other => postgres_errors::describe(other),
    }
}

/// Returns the schemas in which the server looks up names, in order.
fn search_path(session: &Session, deadline: Instant) -> Result<Vec<String>, SessionError> {
    let query = "SELECT s::text FROM unnest(pg_catalog.current_schemas(false)) AS s";
    Ok(session.query_texts(query, deadline)?.into_iter().flatten().flatten().collect())
}

fn quoted_path(path: &[String]) -> String {
    match path {
        [] => "''".to_owned(),
        path => path.iter().map(|schema| quote_identifier(schema)).collect::<Vec<_>>().join(", "),
    }
}

fn transaction_settings(path: &[String], deadline: Instant) -> String {
    let milliseconds = deadline.saturating_duration_since(Instant::now()).as_millis().max(1);
    let fixed = MEANING_SETTINGS.iter().map(|(name, value)| format!("SET LOCAL {name} = '{value}'; "));
    let mut settings: String = fixed.collect();
    settings += &format!("SET LOCAL search_path = {}; ", quoted_path(path));
    settings += &format!("SET LOCAL statement_timeout = {milliseconds}; SET LOCAL lock_timeout = {milliseconds}");
    settings
}

/// Returns a statement that lets all later connections to the current database look up names on a path.
fn set_search_path(path: &[String]) -> String {
    let quoted = quoted_path(path).replace('\'', "''");
    format!(
        "DO $proctor$ BEGIN EXECUTE pg_catalog.format('ALTER DATABASE %I SET search_path = {}', \
         pg_catalog.current_database()); END $proctor$",
        quoted.replace('%', "%%")
    )
}

/// Runs `pg_dump` until the deadline, and returns its output.
fn dump_schema(dsn: &Dsn, deadline: Instant) -> Result<String, String> {
    let programs = PostgresPrograms::find().map_err(|error| error.to_string())?;
    let program = programs.program("pg_dump");
    if !program.is_file() {
        return Err(format!("`{}` is missing; install PostgreSQL's client programs", program.display()));
    }
    let mut command = server_files::server_command(&program);
    command.args(DUMP_OPTIONS);
    let (host, port): (PathBuf, Option<u16>) = match &dsn.address {
        ServerAddress::Tcp { host, port } => (host.into(), Some(*port)),
        ServerAddress::Socket(directory) => (directory.clone(), None),
    };
    command.env("PGHOST", host).env("PGUSER", &dsn.user).env("PGDATABASE", &dsn.database).env("PGAPPNAME", "proctor");
    if let Some(port) = port {
        command.env("PGPORT", port.to_string());
    }
    if let Some(password) = &dsn.password {
        command.env("PGPASSWORD", password);
    }
    match &dsn.tls {
        TlsMode::Off => command.env("PGSSLMODE", "disable"),
        TlsMode::Verified { roots } => {
            let file = trusted_roots::roots_file(roots.as_deref()).map_err(|error| error.to_string())?;
            command.env("PGSSLMODE", "verify-full").env("PGSSLROOTCERT", file)
        }
    };
    let wait = deadline.saturating_duration_since(Instant::now()).as_secs().max(2);
    command.env("PGCONNECT_TIMEOUT", wait.to_string());
    command.arg("--no-password");
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime = runtime.map_err(|error| format!("the runtime cannot be created: {error}"))?;
    let ended = runtime.block_on(async { tokio::time::timeout_at(deadline.into(), output_of(command)).await });
    let (status, output, errors) = ended
        .map_err(|_| "`pg_dump` did not end in time".to_owned())?
        .map_err(|error| format!("`pg_dump` cannot be run: {error}"))?;
    if output.len() as u64 > MAX_SCHEMA_BYTES {
        return Err(format!("it is larger than {} MiB", MAX_SCHEMA_BYTES >> 20));
    }
    if !status.success() {
        return Err(String::from_utf8_lossy(&errors).trim().replace('\n', "; "));
    }
    String::from_utf8(output).map_err(|_| "it is not UTF-8".to_owned())
}

/// Runs a program to its end, and returns the beginnings of its outputs. The program is killed if this is not awaited
/// to the end, or if an output is too large.
async fn output_of(command: Command) -> io::Result<(ExitStatus, Vec<u8>, Vec<u8>)> {
    let mut command = tokio::process::Command::from(command);
    let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).kill_on_drop(true).spawn()?;
    let (Some(output), Some(errors)) = (child.stdout.take(), child.stderr.take()) else {
        return Err(io::ErrorKind::BrokenPipe.into());
    };
    let read = async |stream: &mut (dyn AsyncRead + Unpin)| {
        let mut bytes = Vec::new();
        stream.take(MAX_SCHEMA_BYTES + 1).read_to_end(&mut bytes).await.map(|_| bytes)
    };
    // A program whose output is no longer read ends with an error.
    let (output, errors) = tokio::try_join!(
        async {
            let mut output = output;
            read(&mut output).await
        },
        async {
            let mut errors = errors;
            read(&mut errors).await
        }
    )?;
    Ok((child.wait().await?, output, errors))
}

/// Returns the statements of a dump that an unprivileged owner of an empty database can execute.
fn portable_schema(dump: &str) -> String {
    // Commands of `psql`, which protect it against the content of the dump.
    let lines = dump.lines().filter(|line| !line.starts_with("\\restrict ") && !line.starts_with("\\unrestrict "));
    let dump = lines.collect::<Vec<_>>().join("\n");
    let mut schema = String::new();
    for range in lexer::statement_ranges(&dump, Dialect::Postgres) {
        let statement = &dump[range];
        if !is_left_out(statement) {
            schema += &with_rows_of_views(statement);
            schema += ";\n";
        }
    }
    schema
}

/// Reports whether a statement has no effect on what other statements mean, or needs a role that the worker's server
/// does not have. Policies of rows only decide which rows of a table a role sees.
fn is_left_out(statement: &str) -> bool {
    let words: Vec<&str> = statement.split_whitespace().take(3).collect();
    let starts_with = |wanted: &[&str]| words.len() >= wanted.len() && words[..wanted.len()] == *wanted;
    starts_with(&["CREATE", "POLICY"])
        || starts_with(&["COMMENT", "ON", "POLICY"])
        || starts_with(&["CREATE", "EVENT", "TRIGGER"])
        || starts_with(&["ALTER", "EVENT", "TRIGGER"])
        || starts_with(&["COMMENT", "ON", "EXTENSION"])
        || starts_with(&["CREATE", "STATISTICS"])
        || (starts_with(&["ALTER", "TABLE"]) && statement.ends_with("ROW LEVEL SECURITY"))
}

/// Fills a materialized view, which could not be read otherwise.
fn with_rows_of_views(statement: &str) -> String {
    let is_materialized = statement.starts_with("CREATE MATERIALIZED VIEW");
    match statement.strip_suffix("WITH NO DATA").filter(|_| is_materialized) {
        Some(definition) => format!("{definition}WITH DATA"),
        None => statement.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dump_becomes_statements_of_an_ordinary_owner() {
        let dump = "\\restrict x\n-- a comment\nSET row_security = off;\nCREATE TABLE t (a int);\n\
            CREATE FUNCTION f() RETURNS text LANGUAGE sql AS $$ SELECT 'CREATE POLICY; x' $$;\n\
            CREATE MATERIALIZED VIEW m AS\n SELECT 1 AS a\n  WITH NO DATA;\n\
            ALTER TABLE t ENABLE ROW LEVEL SECURITY;\nCREATE POLICY p ON t TO app USING (true);\n\\unrestrict x\n";
        let expected = "SET row_security = off;\nCREATE TABLE t (a int);\n\
            CREATE FUNCTION f() RETURNS text LANGUAGE sql AS $$ SELECT 'CREATE POLICY; x' $$;\n\
            CREATE MATERIALIZED VIEW m AS\n SELECT 1 AS a\n  WITH DATA;\n";
        assert_eq!(portable_schema(dump), expected);
    }

    #[test]
    fn finds_writes_in_common_table_expressions() {
        for sql in [
            "WITH d AS (DELETE FROM t RETURNING *) SELECT 1",
            "WITH d AS MATERIALIZED ( /* x */ insert INTO t VALUES (1)) UPDATE t SET a = 1",
            "WITH d AS (WITH e AS (SELECT 1) UPDATE t SET a = 1) SELECT 1",
        ] {
            assert!(may_write_in_with(sql), "{sql}");
        }
        for sql in [
            "WITH d AS (SELECT 1) UPDATE t SET a = (SELECT 1 FROM t FOR UPDATE)",
            "INSERT INTO t (a) VALUES (1) ON CONFLICT (a) DO UPDATE SET a = 2",
            "DELETE FROM t WHERE a IN (SELECT '(DELETE')",
        ] {
            assert!(!may_write_in_with(sql), "{sql}");
        }
    }

    #[test]
    fn search_path_is_quoted_twice() {
        let path = ["a'b\"%".to_owned(), "public".to_owned()];
        assert_eq!(quoted_path(&path), "\"a'b\"\"%\", \"public\"");
        assert!(set_search_path(&path).contains("SET search_path = \"a''b\"\"%%\", \"public\"'"));
        assert_eq!(quoted_path(&[]), "''");
    }
}
