//! Reads the schema of a database on an external server that speaks MySQL's protocol, and runs statements on it.
//!
//! The server prints the definition of each object with `SHOW CREATE`. Translates the constructs that a worker's
//! MariaDB server does not accept: the owners of objects, the name of the database, and collations of MySQL 8.

use std::time::Instant;

use proctor_core::sql::{Dialect, ResultRows, SqlRequest};

use super::catalog_reader::quote_identifier;
use super::mysql_errors;
use super::session::{Session, SessionError, SqlMode};
use crate::engine::EngineRefusal;
use crate::external::dsn::Dsn;
use crate::external::external_run::{self, JudgedStatement, RunFailure, TransactionEnd};
use crate::lexer::{self, SqlTokenKind};
use crate::row_buffer::RowBuffer;

/// The engines whose changes a rollback undoes.
const TRANSACTIONAL_ENGINES: &str = "'InnoDB', 'ROCKSDB', 'TokuDB', 'ndbcluster'";
/// The error about a statement that cannot be prepared.
const NOT_PREPARABLE: u16 = 1295;
/// The column of the definition in the results of `SHOW CREATE`.
const TABLE_COLUMN: usize = 1;
const PROGRAM_COLUMN: usize = 2;

/// Reads the statements that create the schema.
pub(crate) fn read_schema(dsn: &Dsn, deadline: Instant) -> Result<Vec<String>, String> {
    let connected = Session::connect_external(dsn, deadline);
    let mut reader = SchemaReader { session: connected.map_err(|error| connection_message(&error))?, dsn, deadline };
    reader.read().map_err(|error| mysql_errors::describe(&error))
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
    let internal = |error| RunFailure::Refused(mysql_errors::to_internal_refusal(&error, &dsn.database));
    if end == TransactionEnd::Rollback {
        let lasting = tables_without_transactions(&mut session, deadline).map_err(internal)?;
        if !lasting.is_empty() {
            return Err(RunFailure::NotUndoable(lasting));
        }
    }
    let begin = session.flavor().begin(end == TransactionEnd::ReadOnly);
    session.execute_batch(begin, deadline).map_err(internal)?;
    let mut result = ResultRows { changed: Some(0), ..ResultRows::default() };
    let mut has_kept_definitions = false;
    for statement in statements {
        let refused = |error| {
            let refusal = mysql_errors::to_refusal(&error, statement.sql, &dsn.database);
            RunFailure::Refused(if has_kept_definitions { with_kept_definitions(refusal) } else { refusal })
        };
        let prepared = session.prepare(statement.sql, SqlMode::Strict, deadline).map_err(refused)?;
        let mut rows = RowBuffer::new(&request.limits);
        let ran = session
            .run_into(statement.sql, SqlMode::Strict, statement.may_stop_early, deadline, &mut rows)
            .map_err(refused)?;
        has_kept_definitions |= statement.is_definition;
        // The driver also counts the rows that a query returns.
        result.changed = external_run::add_changed(result.changed, &ran, statement.is_readonly);
        result.truncated = rows.is_truncated();
        result.rows = rows.into_rows();
        result.columns = if prepared.columns.is_empty() { ran.columns } else { prepared.columns };
    }
    if end != TransactionEnd::Commit {
        // The connection ends here, and with it the transaction.
        return Ok(result);
    }
    // A caller that gets no answer in time must not find the effects later.
    if Instant::now() > deadline {
        let refusal = mysql_errors::to_refusal(&SessionError::TimedOut, "", &dsn.database);
        return Err(RunFailure::Refused(if has_kept_definitions { with_kept_definitions(refusal) } else { refusal }));
    }
    session.execute_batch("COMMIT", Instant::now() + super::CLEANUP_TIMEOUT).map_err(|error| match &error {
        SessionError::Server(_) => RunFailure::Refused(mysql_errors::to_refusal(&error, "", &dsn.database)),
        _ => RunFailure::CommitUnknown(mysql_errors::describe(&error)),
    })?;
    Ok(ResultRows { committed: true, ..result })
}

/// Adds to a refusal that the server has committed the changes of the schema before it.
fn with_kept_definitions(refusal: EngineRefusal) -> EngineRefusal {
    let message = format!("{}; the changes of the schema before it were kept", refusal.message);
    EngineRefusal { message, ..refusal }
}

/// A new database on a server that exists only for checks.
pub(crate) struct ScratchDatabase {
    session: Session,
    name: String,
}

impl ScratchDatabase {
    /// Creates a database with a schema.
    pub(crate) fn create(dsn: &Dsn, schema: &[String], deadline: Instant) -> Result<Self, RunFailure> {
        let connected = Session::connect_external(dsn, deadline);
        let mut session = connected.map_err(|error| RunFailure::Connection(connection_message(&error)))?;
        let name = format!("proctor_{}", random_digits());
        let internal = |error| RunFailure::Refused(mysql_errors::to_internal_refusal(&error, &name));
        let quoted = quote_identifier(&name);
        session.execute_batch(&format!("CREATE DATABASE {quoted}"), deadline).map_err(internal)?;
        session.execute_batch(&format!("USE {quoted}"), deadline).map_err(internal)?;
        let mut database = Self { session, name };
        for part in schema {
            // The server may refuse several statements in one call.
            for range in lexer::statement_ranges(part, Dialect::Mysql) {
                if let Err(error) = database.session.execute_batch(&part[range], deadline) {
                    let refusal = mysql_errors::to_internal_refusal(&error, &database.name);
                    let message = format!("the schema cannot be set up: {}", refusal.message);
                    database.drop_database();
                    return Err(RunFailure::Refused(EngineRefusal { message, ..refusal }));
                }
            }
        }
        Ok(database)
    }

    /// Returns the name of the database.
    pub(crate) fn name(&self) -> &str {
        &self.name
    }

    /// Runs the statements of a request, and undoes their effects on rows. A failure has the start of its statement.
    pub(crate) fn run(&mut self, request: &SqlRequest) -> Result<(), (usize, RunFailure)> {
        let deadline = Instant::now() + request.limits.wall_time();
        let name = self.name.clone();
        let begun = self.session.execute_batch("START TRANSACTION", deadline);
        begun.map_err(|error| (0, RunFailure::Refused(mysql_errors::to_internal_refusal(&error, &name))))?;
        for range in lexer::statement_ranges(&request.sql, Dialect::Mysql) {
            let sql = &request.sql[range.clone()];
            let mut rows = RowBuffer::new(&request.limits);
            let ran = match self.session.run_into(sql, SqlMode::Grouped, false, deadline, &mut rows) {
                Err(SessionError::Server(error)) if error.code == NOT_PREPARABLE => {
                    self.session.execute_batch(sql, deadline)
                }
                ran => ran.map(drop),
            };
            ran.map_err(|error| (range.start, RunFailure::Refused(mysql_errors::to_refusal(&error, sql, &name))))?;
        }
        let undone = self.session.execute_batch("ROLLBACK", Instant::now() + super::CLEANUP_TIMEOUT);
        undone.map_err(|error| (0, RunFailure::Refused(mysql_errors::to_internal_refusal(&error, &name))))
    }

    /// Removes the database.
    pub(crate) fn drop_database(&mut self) {
        let sql = format!("DROP DATABASE IF EXISTS {}", quote_identifier(&self.name));
        // Remaining connections end with the server.
        let _ = self.session.execute_batch(&sql, Instant::now() + super::CLEANUP_TIMEOUT);
    }
}

/// Returns 16 random hexadecimal digits.
fn random_digits() -> String {
    let mut bytes = [0_u8; 8];
    // Without random numbers, the creation of the database fails if the name exists.
    let _ = rustix::rand::getrandom(&mut bytes, rustix::rand::GetRandomFlags::empty());
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Returns the message of a connection that was not made.
fn connection_message(error: &SessionError) -> String {
    match error {
        SessionError::Connection(error) => external_run::message_with_causes(error),
        SessionError::TimedOut => "the server does not answer in time".to_owned(),
        other => mysql_errors::describe(other),
    }
}

/// Returns the tables of the database whose changes a rollback does not undo.
fn tables_without_transactions(session: &mut Session, deadline: Instant) -> Result<Vec<String>, SessionError> {
    let query = format!(
        "SELECT TABLE_NAME FROM information_schema.TABLES WHERE TABLE_SCHEMA = database() \
         AND TABLE_TYPE = 'BASE TABLE' AND (ENGINE IS NULL OR ENGINE NOT IN ({TRANSACTIONAL_ENGINES})) LIMIT 5"
    );
    Ok(session.query_texts(&query, deadline)?.into_iter().flatten().flatten().collect())
}

/// Reads the definitions of a database.
struct SchemaReader<'a> {
    session: Session,
    dsn: &'a Dsn,
    deadline: Instant,
}

impl SchemaReader<'_> {
    fn read(&mut self) -> Result<Vec<String>, SessionError> {
        let names = "SELECT TABLE_NAME, TABLE_TYPE FROM information_schema.TABLES \
            WHERE TABLE_SCHEMA = database() ORDER BY TABLE_NAME";
        let (mut tables, mut views) = (Vec::new(), Vec::new());
        for row in self.session.query_texts(names, self.deadline)? {
            let mut fields = row.into_iter().map(Option::unwrap_or_default);
            let (Some(name), Some(kind)) = (fields.next(), fields.next()) else { continue };
            if kind.ends_with("VIEW") { views.push(name) } else { tables.push((name, kind)) }
        }
        // Tables may reference later ones, and routines and views may use each other.
        let mut statements = vec!["SET foreign_key_checks = 0".to_owned()];
        for (name, kind) in &tables {
            let object = if kind == "SEQUENCE" { "SEQUENCE" } else { "TABLE" };
            statements.extend(self.definition(object, name, TABLE_COLUMN)?);
        }
        let placeholders = views.iter().map(|name| self.placeholder(name)).collect::<Result<Vec<_>, _>>()?;
        statements.extend(placeholders);
        for kind in ["FUNCTION", "PROCEDURE"] {
            let query = format!(
                "SELECT ROUTINE_NAME FROM information_schema.ROUTINES \
                 WHERE ROUTINE_SCHEMA = database() AND ROUTINE_TYPE = '{kind}' ORDER BY ROUTINE_NAME"
            );
            for name in self.names(&query)? {
                statements.extend(self.definition(kind, &name, PROGRAM_COLUMN)?);
            }
        }
        for name in &views {
            let definition = self.definition("VIEW", name, TABLE_COLUMN)?;
            statements.extend(definition.map(|text| text.replacen("CREATE ", "CREATE OR REPLACE ", 1)));
        }
        let triggers = "SELECT TRIGGER_NAME FROM information_schema.TRIGGERS \
            WHERE TRIGGER_SCHEMA = database() ORDER BY EVENT_OBJECT_TABLE, ACTION_TIMING, EVENT_MANIPULATION, ACTION_ORDER";
        for name in self.names(triggers)? {
            statements.extend(self.definition("TRIGGER", &name, PROGRAM_COLUMN)?);
        }
        Ok(vec![statements.join(";\n")])
    }

    fn names(&mut self, query: &str) -> Result<Vec<String>, SessionError> {
        Ok(self.session.query_texts(query, self.deadline)?.into_iter().flatten().flatten().collect())
    }

    /// Returns the definition of an object; `None` if the user may not see it.
    fn definition(&mut self, kind: &str, name: &str, column: usize) -> Result<Option<String>, SessionError> {
        let query = format!("SHOW CREATE {kind} {}", quote_identifier(name));
        let rows = self.session.query_texts(&query, self.deadline)?;
        let text = rows.into_iter().next().and_then(|row| row.into_iter().nth(column).flatten());
        Ok(text.map(|text| portable_definition(&text, &self.dsn.database)))
    }

    /// Returns a view with the columns of another one, and without its content.
    fn placeholder(&mut self, view: &str) -> Result<String, SessionError> {
        let query = format!("SHOW COLUMNS FROM {}", quote_identifier(view));
        let columns = self.session.query_texts(&query, self.deadline)?;
        let columns: Vec<String> = columns
            .into_iter()
            .filter_map(|row| row.into_iter().next().flatten())
            .map(|column| format!("1 AS {}", quote_identifier(&column)))
            .collect();
        Ok(format!("CREATE VIEW {} AS SELECT {}", quote_identifier(view), columns.join(", ")))
    }
}

/// Returns a definition that the owner of a database with another name can execute on MariaDB.
fn portable_definition(definition: &str, database: &str) -> String {
    let tokens: Vec<(SqlTokenKind, &str)> = lexer::tokenize(definition, Dialect::Mysql)
        .into_iter()
        .map(|(kind, range)| (kind, &definition[range]))
        .collect();
    let mut portable = String::with_capacity(definition.len());
    let mut at = 0;
    // An owner is only named before the kind of the object.
    let mut is_head = true;
    while let Some((kind, text)) = tokens.get(at) {
        let length = match kind {
            SqlTokenKind::Word if is_head && text.eq_ignore_ascii_case("DEFINER") => definer_length(&tokens[at..]),
            SqlTokenKind::Word | SqlTokenKind::Quoted if is_qualifier(&tokens[at..], database) => 2,
            _ => 0,
        };
        at += length;
        // The name after a qualifier is kept, whatever it is.
        let Some((_, text)) = tokens.get(at) else { break };
        is_head &= !matches!(*text, "TABLE" | "VIEW" | "FUNCTION" | "PROCEDURE" | "TRIGGER" | "SEQUENCE");
        portable += known_collation(text).unwrap_or(text);
        at += 1;
    }
    portable
}

/// Returns the number of tokens of `DEFINER=user@host`; 0 if these are others.
fn definer_length(tokens: &[(SqlTokenKind, &str)]) -> usize {
    match tokens {
        [_, (_, "="), (_, _), (_, "@"), (_, _), ..] => 5,
        // The lexer of MySQL reads `@host` as one token.
        [_, (_, "="), (_, _), (_, host), ..] if host.starts_with('@') => 4,
        [_, (_, "="), (_, _), ..] => 3,
        _ => 0,
    }
}

/// Reports whether the tokens begin with the name of the database and a dot.
fn is_qualifier(tokens: &[(SqlTokenKind, &str)], database: &str) -> bool {
    matches!(tokens, [(_, name), (_, "."), ..] if lexer::unquote(name) == database)
}

/// Returns the most similar collation of MariaDB for one that only MySQL 8 has.
fn known_collation(word: &str) -> Option<&'static str> {
    match word.strip_prefix("utf8mb4_0900_")? {
        "bin" | "as_cs" => Some("utf8mb4_bin"),
        _ => Some("utf8mb4_unicode_ci"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn definitions_lose_owner_and_database() {
        let view = "CREATE ALGORITHM=UNDEFINED DEFINER=`root`@`localhost` SQL SECURITY DEFINER VIEW `v` AS select \
            `shop`.`t`.`a` AS `a`,'`shop`.`t`' AS `b` from `shop`.`t`";
        let expected = "CREATE ALGORITHM=UNDEFINED  SQL SECURITY DEFINER VIEW `v` AS select \
            `t`.`a` AS `a`,'`shop`.`t`' AS `b` from `t`";
        assert_eq!(portable_definition(view, "shop"), expected);
        let same_name = "CREATE VIEW `v` AS select `shop`.`shop`.`id` AS `id` from `shop`.`shop`";
        let expected = "CREATE VIEW `v` AS select `shop`.`id` AS `id` from `shop`";
        assert_eq!(portable_definition(same_name, "shop"), expected);
        let trigger = "CREATE DEFINER=`u`@`%` TRIGGER x BEFORE INSERT ON t FOR EACH ROW SET NEW.a = shop.f()";
        let expected = "CREATE  TRIGGER x BEFORE INSERT ON t FOR EACH ROW SET NEW.a = f()";
        assert_eq!(portable_definition(trigger, "shop"), expected);
    }

    #[test]
    fn collations_of_mysql_8_are_translated() {
        let table = "CREATE TABLE `t` (`a` varchar(9) COLLATE utf8mb4_0900_bin) COLLATE=utf8mb4_0900_ai_ci";
        let expected = "CREATE TABLE `t` (`a` varchar(9) COLLATE utf8mb4_bin) COLLATE=utf8mb4_unicode_ci";
        assert_eq!(portable_definition(table, "shop"), expected);
    }
}
