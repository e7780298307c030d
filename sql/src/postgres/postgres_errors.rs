//! Converts errors of the server to refusals. The code of an error is its SQLSTATE.
//!
//! Source: <https://www.postgresql.org/docs/current/errcodes-appendix.html>.

use std::ops::Range;

use proctor_core::sql::{Dialect, SqlCode};
use tokio_postgres::error::{DbError, ErrorPosition};

use super::session::SessionError;
use crate::engine::{EngineRefusal, INCOMPLETE_STATEMENT, is_limit_code};
use crate::lexer::{self, SqlTokenKind};

/// The SQLSTATE of a cursor that does not exist.
const INVALID_CURSOR_NAME: &str = "34000";

/// The SQLSTATE of an error that a function raises, and the routine of PL/pgSQL that reports it.
const RAISED_EXCEPTION: &str = "P0001";
const RAISE_ROUTINE: &str = "exec_stmt_raise";

/// Returns one sentence about an error.
pub(super) fn describe(error: &SessionError) -> String {
    match error {
        SessionError::Server(error) => {
            error.as_db_error().map_or_else(|| error.to_string(), |reported| first_sentence(reported.message()))
        }
        other => other.to_string(),
    }
}

/// Converts an error about a statement to a refusal.
pub(super) fn to_refusal(error: &SessionError, sql: &str) -> EngineRefusal {
    match error {
        SessionError::TimedOut => EngineRefusal::new(SqlCode::TimeLimit, "it did not end in time"),
        SessionError::ResultTooLarge(_) => EngineRefusal::new(SqlCode::ResultLimit, error.to_string()),
        SessionError::NoCursor => EngineRefusal {
            engine_code: Some(INVALID_CURSOR_NAME.to_owned()),
            range: current_of_range(sql),
            ..EngineRefusal::new(SqlCode::BindError, error.to_string())
        },
        SessionError::Runtime(_) | SessionError::Trust(_) => {
            EngineRefusal::new(SqlCode::EngineFailed, error.to_string())
        }
        SessionError::Server(error) => match error.as_db_error() {
            Some(reported) => reported_refusal(reported, sql),
            None => EngineRefusal::new(SqlCode::EngineDied, format!("the server does not answer: {error}")),
        },
    }
}

/// Converts the error of an internal statement: a limit stays one, everything else is a failure of the engine.
pub(super) fn to_internal_refusal(error: &SessionError) -> EngineRefusal {
    let refusal = to_refusal(error, "");
    if is_limit_code(refusal.code) { refusal } else { EngineRefusal { code: SqlCode::EngineFailed, ..refusal } }
}

fn reported_refusal(reported: &DbError, sql: &str) -> EngineRefusal {
    let message = first_sentence(reported.message());
    let code = refusal_code(reported.code().code(), &message);
    let at = match reported.position() {
        Some(ErrorPosition::Original(number)) => character_offset(sql, *number),
        _ => None,
    };
    let subject = subject(&message).filter(|_| {
        use SqlCode::{AmbiguousColumn, UngroupedColumn, UnknownColumn, UnknownFunction, UnknownTable, WrongArguments};
        matches!(
            code,
            AmbiguousColumn | UngroupedColumn | UnknownColumn | UnknownFunction | UnknownTable | WrongArguments
        )
    });
    let message = if message == "syntax error at end of input" { INCOMPLETE_STATEMENT.to_owned() } else { message };
    EngineRefusal {
        code,
        message,
        engine_code: Some(engine_code(reported)),
        range: at.and_then(|at| name_range(sql, at)),
        subject,
        candidates: reported.hint().map(suggested_columns).unwrap_or_default(),
    }
}

/// Returns the SQLSTATE of an error. If `RAISE` reports an error with another SQLSTATE than its own, both are returned.
fn engine_code(reported: &DbError) -> String {
    let state = reported.code().code();
    match reported.routine() == Some(RAISE_ROUTINE) && state != RAISED_EXCEPTION {
        true => format!("{RAISED_EXCEPTION} ({state})"),
        false => state.to_owned(),
    }
}

fn refusal_code(state: &str, message: &str) -> SqlCode {
    match state {
        "42P01" | "3F000" => SqlCode::UnknownTable,
        "42703" => SqlCode::UnknownColumn,
        "42883" if message.starts_with("operator ") => SqlCode::WrongType,
        "42883" => SqlCode::UnknownFunction,
        "42702" => SqlCode::AmbiguousColumn,
        "42803" if message.contains("must appear in the GROUP BY") || message.contains("ungrouped column") => {
            SqlCode::UngroupedColumn
        }
        "42803" | "42P20" | "42809" => SqlCode::MisusedFunction,
        "42601" if message.starts_with("unterminated ") => SqlCode::UnterminatedToken,
        "42601" if message.contains("more expressions than") || message.contains("more target columns") => {
            SqlCode::ColumnCount
        }
        "42601" if message.contains("must have the same number of columns") || message.contains("must return only") => {
            SqlCode::ColumnCount
        }
        "42601" if message.starts_with("VALUES lists must all") => SqlCode::ColumnCount,
        "42601" => SqlCode::SyntaxError,
        "42804" | "42P18" | "22P02" | "22007" | "42846" | "42725" | "42P08" | "42704" => SqlCode::WrongType,
        "42P07" | "42701" | "42710" | "42P06" | "42P04" | "42723" => SqlCode::AlreadyThere,
        "54001" | "54000" if message.contains("stack depth") => SqlCode::TooDeep,
        "57014" => SqlCode::TimeLimit,
        "53100" | "53200" | "53400" | "54000" => SqlCode::MemoryLimit,
        "XX000" if message.contains("invalid memory alloc request size") => SqlCode::MemoryLimit,
        _ => match state.get(..2).unwrap_or_default() {
            "23" | "44" => SqlCode::ConstraintBroken,
            "21" | "22" | "2F" | "38" | "39" | "55" | "P0" => SqlCode::RunFailed,
            "08" | "57" | "58" | "XX" => SqlCode::EngineFailed,
            "53" | "54" => SqlCode::MemoryLimit,
            _ => SqlCode::BindError,
        },
    }
}

fn first_sentence(message: &str) -> String {
    message.lines().next().unwrap_or_default().trim_end_matches('.').to_owned()
}

/// Returns the name that a message is about.
fn subject(message: &str) -> Option<String> {
    if let Some(rest) = message.strip_prefix("function ") {
        return rest.split('(').next().map(|name| name.trim_matches('"').to_owned());
    }
    // `column c.nmae does not exist`
    if let Some(rest) = message.strip_prefix("column ").filter(|rest| !rest.contains('"')) {
        return rest.strip_suffix(" does not exist").map(str::to_owned);
    }
    message.split('"').nth(1).map(str::to_owned)
}

/// Returns the names of columns that a hint suggests: `Perhaps you meant to reference the column "customers.name".`
fn suggested_columns(hint: &str) -> Vec<String> {
    if !hint.starts_with("Perhaps you meant to reference the ") {
        return Vec::new();
    }
    let quoted = hint.split('"').skip(1).step_by(2);
    quoted.map(|name| name.rsplit_once('.').map_or(name, |(_, column)| column).to_owned()).collect()
}

/// Converts the number of a character, from 1, to a byte offset.
fn character_offset(text: &str, number: u32) -> Option<usize> {
    let index = usize::try_from(number).ok()?.checked_sub(1)?;
    text.char_indices().map(|(at, _)| at).chain([text.len()]).nth(index)
}

/// Returns the range of the name at a position: the last part of `table.column`, or the token at the position.
fn name_range(sql: &str, at: usize) -> Option<Range<usize>> {
    let mut tokens = lexer::tokenize(sql, Dialect::Postgres).into_iter().skip_while(|(_, range)| range.end <= at);
    let (_, mut last) = tokens.next()?;
    let mut is_dotted = false;
    for (kind, range) in tokens {
        let is_name = matches!(kind, SqlTokenKind::Word | SqlTokenKind::Quoted);
        match &sql[range.clone()] {
            "." if !is_dotted => is_dotted = true,
            _ if is_dotted && is_name => {
                last = range;
                is_dotted = false;
            }
            _ => break,
        }
    }
    Some(last)
}

/// Returns the range of the first `CURRENT OF c`.
fn current_of_range(sql: &str) -> Option<Range<usize>> {
    let mut tokens = lexer::tokenize(sql, Dialect::Postgres);
    tokens.retain(|(kind, _)| !matches!(kind, SqlTokenKind::Whitespace | SqlTokenKind::Comment));
    let is_word = |range: &Range<usize>, word: &str| sql[range.clone()].eq_ignore_ascii_case(word);
    let found = tokens.windows(3).find(|three| is_word(&three[0].1, "current") && is_word(&three[1].1, "of"))?;
    Some(found[0].1.start..found[2].1.end)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn maps_sqlstates_to_codes() {
        let cases = [
            ("42P01", "relation \"customer\" does not exist", SqlCode::UnknownTable, Some("customer")),
            ("42703", "column \"nmae\" does not exist", SqlCode::UnknownColumn, Some("nmae")),
            ("42703", "column o.cust_id does not exist", SqlCode::UnknownColumn, Some("o.cust_id")),
            ("42703", "column o.full name does not exist", SqlCode::UnknownColumn, Some("o.full name")),
            ("42883", "function lenght(text) does not exist", SqlCode::UnknownFunction, Some("lenght")),
            ("42883", "operator does not exist: text + numeric", SqlCode::WrongType, None),
            ("42702", "column reference \"id\" is ambiguous", SqlCode::AmbiguousColumn, Some("id")),
            ("42601", "INSERT has more expressions than target columns", SqlCode::ColumnCount, None),
            ("42601", "syntax error at or near \"SELEC\"", SqlCode::SyntaxError, Some("SELEC")),
            ("23505", "duplicate key value violates unique constraint \"t_pkey\"", SqlCode::ConstraintBroken, None),
            ("22012", "division by zero", SqlCode::RunFailed, None),
            ("57014", "canceling statement due to user request", SqlCode::TimeLimit, None),
            ("57P01", "terminating connection", SqlCode::EngineFailed, None),
        ];
        for (state, message, code, named) in cases {
            assert_eq!(refusal_code(state, message), code, "{message}");
            if let Some(named) = named {
                assert_eq!(subject(message).as_deref(), Some(named), "{message}");
            }
        }
    }

    #[test]
    fn finds_names_at_positions() {
        let sql = "SELECT é, o.\"x y\" , b FROM t";
        let at = |number| character_offset(sql, number).and_then(|at| name_range(sql, at)).map(|range| &sql[range]);
        assert_eq!([at(8), at(11), at(21), at(500)], [Some("é"), Some("\"x y\""), Some("b"), None]);
    }

    #[test]
    fn locates_positions_of_cursors() {
        let sql = "DELETE FROM t WHERE CURRENT /* x */ OF \"a b\" RETURNING *";
        let refusal = to_refusal(&SessionError::NoCursor, sql);
        assert_eq!(refusal.range.map(|range| &sql[range]), Some("CURRENT /* x */ OF \"a b\""));
        assert_eq!(refusal.code, SqlCode::BindError);
    }

    #[test]
    fn reads_suggestions_from_hints() {
        let hint = "Perhaps you meant to reference the column \"customers.name\" or the column \"c.nam\".";
        assert_eq!(suggested_columns(hint), ["name", "nam"]);
        assert!(suggested_columns("No operator matches the given name \"x\".").is_empty());
    }
}
