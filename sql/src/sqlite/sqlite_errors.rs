//! Converts error messages of SQLite to refusals. The messages are stable over many versions; an unknown one is passed
//! on unchanged.

use std::ops::Range;

use proctor_core::sql::{Dialect, SqlCode};
use rusqlite::{Error, ErrorCode, ffi};

use super::statement_observer::StatementInterrupt;
use crate::engine::{EngineRefusal, INCOMPLETE_STATEMENT};
use crate::lexer::{self, SqlTokenKind};

/// Returns a refusal for a failure of the engine that is unrelated to the statement.
pub(super) fn engine_failure(error: &Error) -> EngineRefusal {
    EngineRefusal::new(SqlCode::EngineFailed, format!("SQLite failed: {error}"))
}

/// Converts the error of an internal statement: a limit, if the statement was interrupted, or a failure of the engine.
pub(super) fn refusal_from_internal_error(error: &Error, interrupt: Option<StatementInterrupt>) -> EngineRefusal {
    interrupt.map_or_else(|| engine_failure(error), limit_refusal)
}

/// Returns the refusal of a statement that was interrupted.
pub(super) fn limit_refusal(interrupt: StatementInterrupt) -> EngineRefusal {
    match interrupt {
        StatementInterrupt::Time => EngineRefusal::new(SqlCode::TimeLimit, "it did not end within its time limit"),
        StatementInterrupt::Steps => {
            EngineRefusal::new(SqlCode::StepLimit, "it exceeded the maximum number of SQLite virtual machine steps")
        }
    }
}

/// Converts an error about `sql` to a refusal.
pub(super) fn refusal_from_error(error: &Error, sql: &str, interrupt: Option<StatementInterrupt>) -> EngineRefusal {
    if let Some(interrupt) = interrupt {
        return limit_refusal(interrupt);
    }
    match error {
        Error::SqlInputError { error, msg, offset, .. } => {
            refusal_from_message(msg, *error, usize::try_from(*offset).ok(), sql)
        }
        Error::SqliteFailure(error, message) => {
            refusal_from_message(message.as_deref().unwrap_or("SQLite failed"), *error, None, sql)
        }
        Error::MultipleStatement => EngineRefusal::new(SqlCode::StackedStatements, "there is more than one statement"),
        Error::NulError(_) => EngineRefusal::new(SqlCode::NulByte, "the text contains a NUL byte"),
        other => engine_failure(other),
    }
}

fn refusal_from_message(message: &str, error: rusqlite::ffi::Error, offset: Option<usize>, sql: &str) -> EngineRefusal {
    let mut refusal = parse_message(message, error);
    refusal.engine_code = Some(format!("{}: {message}", result_code_name(error)));
    refusal.range = subject_range(&refusal, offset, sql);
    refusal
}

/// Returns the name of a result code in `sqlite3.h`.
fn result_code_name(error: rusqlite::ffi::Error) -> &'static str {
    match error.code {
        ErrorCode::ConstraintViolation => "SQLITE_CONSTRAINT",
        ErrorCode::OutOfMemory => "SQLITE_NOMEM",
        ErrorCode::TooBig => "SQLITE_TOOBIG",
        ErrorCode::AuthorizationForStatementDenied => "SQLITE_AUTH",
        ErrorCode::OperationInterrupted => "SQLITE_INTERRUPT",
        ErrorCode::ReadOnly => "SQLITE_READONLY",
        ErrorCode::TypeMismatch => "SQLITE_MISMATCH",
        ErrorCode::DatabaseCorrupt => "SQLITE_CORRUPT",
        ErrorCode::NotADatabase => "SQLITE_NOTADB",
        ErrorCode::SchemaChanged => "SQLITE_SCHEMA",
        _ => "SQLITE_ERROR",
    }
}

fn parse_message(message: &str, error: rusqlite::ffi::Error) -> EngineRefusal {
    use SqlCode as Code;
    let of = |code, text: String| EngineRefusal::new(code, text);
    let about = |code, text: String, subject: &str| {
        let mut refusal = EngineRefusal::new(code, text);
        refusal.subject = Some(subject.to_owned());
        refusal
    };
    if error.extended_code == ffi::SQLITE_CONSTRAINT_TRIGGER {
        // The text of `RAISE`, which can resemble any message.
        return of(Code::ConstraintBroken, message.to_owned());
    }
    let after_prefix = |head: &str| message.strip_prefix(head);
    if let Some(rest) = after_prefix("no such column: ") {
        // `no such column: "x" - should this be a string literal in single-quotes?`
        let column = rest.split(" - should").next().unwrap_or(rest);
        let column = column.trim_matches('"');
        return about(Code::UnknownColumn, format!("there is no column `{column}`"), column);
    }
    if let Some(table) = after_prefix("no such table: ").or_else(|| after_prefix("no such view: ")) {
        return about(Code::UnknownTable, format!("there is no table `{table}`"), table);
    }
    if let Some(index) = after_prefix("no such index: ").or_else(|| after_prefix("no such trigger: ")) {
        return about(Code::UnknownTable, message.replace("no such", "there is no"), index);
    }
    if let Some(function) = after_prefix("no such function: ") {
        return about(Code::UnknownFunction, format!("SQLite has no function `{function}`"), function);
    }
    if let Some(column) = after_prefix("ambiguous column name: ") {
        return about(Code::AmbiguousColumn, format!("more than one table has a column `{column}`"), column);
    }
    if let Some(rest) = after_prefix("wrong number of arguments to function ") {
        let function = rest.trim_end_matches("()");
        return about(Code::WrongArguments, format!("`{function}` does not accept so many arguments"), function);
    }
    if let Some((table, column)) = after_prefix("table ").and_then(|rest| rest.split_once(" has no column named ")) {
        return about(Code::UnknownColumn, format!("the table `{table}` has no column `{column}`"), column);
    }
    if let Some(rest) = after_prefix("near \"").and_then(|rest| rest.strip_suffix("\": syntax error")) {
        return about(Code::SyntaxError, format!("syntax error near `{}`", first_line(rest)), first_line(rest));
    }
    if let Some(rest) = after_prefix("unrecognized token: \"") {
        let token = rest.trim_end_matches('"');
        let is_open = token.starts_with(['\'', '"', '`', '[']);
        let code = if is_open { Code::UnterminatedToken } else { Code::SyntaxError };
        return about(code, format!("`{}` is not a token of SQLite", first_line(token)), first_line(token));
    }
    let is_counted = message.contains("do not have the same number of result columns")
        || message.contains("values were supplied")
        || message.contains("values for")
        || message.contains("columns but")
        || message.contains("columns assigned")
        || message.contains("sub-select returns")
        || message.contains("row value misused");
    match message {
        "incomplete input" => of(Code::SyntaxError, INCOMPLETE_STATEMENT.to_owned()),
        "parser stack overflow" | "Recursion limit" => {
            of(Code::TooDeep, "the statement is nested deeper than SQLite's parser permits".to_owned())
        }
        _ if message.starts_with("Expression tree is too large") => {
            of(Code::TooDeep, "an expression is nested too deeply".to_owned())
        }
        _ if message.starts_with("misuse of ") => of(Code::MisusedFunction, message.to_owned()),
        _ if message.starts_with("not authorized") || error.code == ErrorCode::AuthorizationForStatementDenied => {
            of(Code::StatementRefused, "SQLite refused it under this policy".to_owned())
        }
        _ if is_counted => of(Code::ColumnCount, message.to_owned()),
        _ if message.contains("already exists") || message.contains("duplicate column name") => {
            of(Code::AlreadyThere, message.to_owned())
        }
        _ if message.ends_with("syntax error") => of(Code::SyntaxError, message.to_owned()),
        _ => match error.code {
            ErrorCode::ConstraintViolation => of(Code::ConstraintBroken, message.to_owned()),
            ErrorCode::OutOfMemory => of(Code::MemoryLimit, "it exceeded the memory limit".to_owned()),
            ErrorCode::TooBig => of(Code::ResultLimit, "a value exceeds the maximum size".to_owned()),
            ErrorCode::DatabaseCorrupt | ErrorCode::NotADatabase => of(Code::SchemaBroken, message.to_owned()),
            ErrorCode::ReadOnly => of(Code::StatementRefused, "the database is read-only".to_owned()),
            _ => of(Code::BindError, message.to_owned()),
        },
    }
}

fn first_line(text: &str) -> &str {
    text.lines().next().unwrap_or_default()
}

/// Returns the range of the name at the offset that SQLite reports, together with its qualifier. Without an offset,
/// returns the only token that spells the name.
fn subject_range(refusal: &EngineRefusal, offset: Option<usize>, sql: &str) -> Option<Range<usize>> {
    let solid: Vec<(SqlTokenKind, Range<usize>)> = lexer::tokenize(sql, Dialect::Sqlite)
        .into_iter()
        .filter(|(piece, _)| !matches!(piece, SqlTokenKind::Whitespace | SqlTokenKind::Comment))
        .collect();
    let Some(offset) = offset else {
        let subject = refusal.subject.as_deref()?.rsplit('.').next()?;
        let mut same =
            solid.iter().filter(|(_, range)| lexer::unquote(&sql[range.clone()]).eq_ignore_ascii_case(subject));
        let only = same.next()?.1.clone();
        return same.next().is_none().then_some(only);
    };
    let at = solid.iter().position(|(_, range)| range.contains(&offset))?;
    let (_, first) = &solid[at];
    let mut end = first.end;
    let mut next = at + 1;
    // `a.b` and `a.b.c` are one name.
    let is_name = |index: usize| {
        solid.get(index).is_some_and(|(piece, _)| matches!(piece, SqlTokenKind::Word | SqlTokenKind::Quoted))
    };
    let is_qualified = refusal.subject.as_deref().is_some_and(|subject| subject.contains('.'));
    while is_qualified && solid.get(next).is_some_and(|(_, range)| &sql[range.clone()] == ".") && is_name(next + 1) {
        end = solid[next + 1].1.end;
        next += 2;
    }
    Some(first.start..end)
}

/// Returns the message about a part of a schema that cannot be set up.
pub(super) fn schema_message(part: usize, reason: &str) -> String {
    let hint = match reason.ends_with(" may not be modified") {
        true => {
            "; dumps with virtual tables change the tables behind them: create the virtual table and insert the rows \
            into it, or judge against the database file"
        }
        false => "",
    };
    format!("the schema (part {part}) cannot be set up: {reason}{hint}")
}
