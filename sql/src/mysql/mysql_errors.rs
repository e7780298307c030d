//! Converts errors of the server to refusals. Errors have numbers; the server reports no positions.
//!
//! Source: <https://mariadb.com/kb/en/mariadb-error-code-reference/>.

use std::ops::Range;

use proctor_core::sql::{Dialect, SqlCode};

use super::database_users;
use super::session::{self, SessionError};
use crate::engine::{EngineRefusal, INCOMPLETE_STATEMENT, is_limit_code};
use crate::lexer::{self, SqlTokenKind};

/// The errors of a statement that needs a privilege.
pub(super) const TABLE_DENIED: u16 = 1142;
pub(super) const COLUMN_DENIED: u16 = 1143;
pub(super) const ROUTINE_DENIED: u16 = 1370;
/// Other errors of a statement that the owner of a database may not run.
const OTHER_DENIALS: &[u16] = &[1044, 1045, 1095, 1227, 1290, 1356, 1449, 1698];
/// The errors about privileges that a user does not have.
pub(super) const NO_SUCH_GRANT: &[u16] = &[1141, 1147, 1269, 1403];
/// The error about a view that uses something which its owner may not use. The server also reports this when it cannot
/// grant a column of a view.
pub(super) const INVALID_VIEW: u16 = 1356;
/// The error about a missing table.
pub(super) const UNKNOWN_TABLE: u16 = 1146;
/// The errors of a column that a grouped query may not return.
pub(super) const UNGROUPED_COLUMN: u16 = 1055;
pub(super) const MIXED_AGGREGATE: u16 = 1140;
/// A part of the message about a syntax error, before the text that follows the error.
const NEAR: &str = "right syntax to use near '";

/// Returns one sentence about an error.
pub(super) fn describe(error: &SessionError) -> String {
    first_sentence(&error.to_string())
}

/// Reports whether a statement needs a privilege that the owner of a database lacks.
pub(super) fn is_denial(error: &SessionError) -> bool {
    matches!(error, SessionError::Server(reported)
        if ([TABLE_DENIED, COLUMN_DENIED, ROUTINE_DENIED].contains(&reported.code)
            || OTHER_DENIALS.contains(&reported.code)) && !is_memory_limit(&reported.message))
}

/// Converts an error about a statement to a refusal. `database` is the name of the database, which messages do not show.
pub(super) fn to_refusal(error: &SessionError, sql: &str, database: &str) -> EngineRefusal {
    match error {
        SessionError::TimedOut => EngineRefusal::new(SqlCode::TimeLimit, "it did not end in time"),
        SessionError::ResultTooLarge(_) => EngineRefusal::new(SqlCode::ResultLimit, error.to_string()),
        SessionError::Runtime(_) | SessionError::Trust(_) => {
            EngineRefusal::new(SqlCode::EngineFailed, error.to_string())
        }
        SessionError::Connection(_) => EngineRefusal::new(SqlCode::EngineDied, error.to_string()),
        SessionError::Server(reported) => reported_refusal(reported.code, &reported.message, sql, database),
    }
}

/// Converts the error of an internal statement: a limit stays one, everything else is a failure of the engine.
pub(super) fn to_internal_refusal(error: &SessionError, database: &str) -> EngineRefusal {
    let refusal = to_refusal(error, "", database);
    if is_limit_code(refusal.code) { refusal } else { EngineRefusal { code: SqlCode::EngineFailed, ..refusal } }
}

fn reported_refusal(number: u16, message: &str, sql: &str, database: &str) -> EngineRefusal {
    let code = refusal_code(number, message);
    let plain = without_database(&first_sentence(message), database);
    let refusal = EngineRefusal { engine_code: Some(number.to_string()), ..EngineRefusal::new(code, plain) };
    match code {
        SqlCode::SyntaxError | SqlCode::UnterminatedToken => syntax_refusal(refusal, message, sql),
        SqlCode::UnknownTable
        | SqlCode::UnknownColumn
        | SqlCode::UnknownFunction
        | SqlCode::AmbiguousColumn
        | SqlCode::WrongArguments
        | SqlCode::UngroupedColumn => {
            let subject = subject(&refusal.message);
            let range = subject.as_deref().filter(|_| code == SqlCode::UngroupedColumn);
            EngineRefusal { range: range.and_then(|name| column_range(sql, name)), subject, ..refusal }
        }
        _ => refusal,
    }
}

/// Reports whether a message is about the memory that a connection may use.
fn is_memory_limit(message: &str) -> bool {
    message.contains("mem-used")
}

fn refusal_code(number: u16, message: &str) -> SqlCode {
    match number {
        1290 if is_memory_limit(message) => SqlCode::MemoryLimit,
        1064 | 1149 | 1065 | 1115 | 1221 | 1234 | 1248 | 1327 | 4161 => SqlCode::SyntaxError,
        1049 | 1051 | 1109 | UNKNOWN_TABLE | 4091 => SqlCode::UnknownTable,
        1054 | 1072 => SqlCode::UnknownColumn,
        1305 | 1128 | 1630 => SqlCode::UnknownFunction,
        1052 => SqlCode::AmbiguousColumn,
        UNGROUPED_COLUMN | MIXED_AGGREGATE => SqlCode::UngroupedColumn,
        1056 | 1111 | 1247 | 4015..=4020 | 4031 => SqlCode::MisusedFunction,
        1107 | 1318 | 1582 | 1583 => SqlCode::WrongArguments,
        1058 | 1136 | 1222 | 1241 | 4002 | 4099 => SqlCode::ColumnCount,
        1267 | 1270 | 1271 | 1292 | 1366 | 1525 | 4078 | 4079 | 4159 => SqlCode::WrongType,
        1050 | 1060 | 1061 | 1066 | 1304 | 1826 => SqlCode::AlreadyThere,
        1048 | 1062 | 1169 | 1216 | 1217 | 1364 | 1369 | 1451 | 1452 | 1557 | 1586 | 3819 | 4025 => {
            SqlCode::ConstraintBroken
        }
        1317 | 1969 | 3024 | 1205 => SqlCode::TimeLimit,
        1931 => SqlCode::EndlessRecursion,
        1021 | 1037 | 1038 | 1041 | 1114 | 1135 | 1301 | 5 | 28 => SqlCode::MemoryLimit,
        1153 => SqlCode::ResultLimit,
        1436 | 1119 => SqlCode::TooDeep,
        1053 | 1077 | 1079 | 1080 | 1152 | 1158..=1161 | 1927 => SqlCode::EngineFailed,
        1242 | 1264 | 1265 | 1365 | 1406 | 1411 | 1441 | 1644 | 1690 | 1213 => SqlCode::RunFailed,
        _ => SqlCode::BindError,
    }
}

fn first_sentence(message: &str) -> String {
    message.lines().next().unwrap_or_default().trim_end_matches('.').to_owned()
}

/// Removes the name of the database from a message: `Table 'judged_1.t' doesn't exist`.
fn without_database(message: &str, database: &str) -> String {
    if database.is_empty() {
        return message.to_owned();
    }
    let owner = format!("'{}'@'localhost'", database_users::owner_of(database));
    let message = message.replace(&format!("`{database}`."), "").replace(&format!("{database}."), "");
    without_temporary_name(&message.replace(&owner, "the owner"))
}

/// Replaces the name of the copy that the server makes of a table which it alters. The name differs each time.
fn without_temporary_name(message: &str) -> String {
    match message.split_once("`#sql") {
        Some((before, rest)) => {
            let after = rest.split_once('`').map_or("", |(_, after)| after);
            format!("{before}the altered table{after}")
        }
        None => message.to_owned(),
    }
}

/// Returns the name that a message is about: its first text in quotes, or the name of a function.
fn subject(message: &str) -> Option<String> {
    // `FUNCTION lenght does not exist`
    if let Some(rest) = message.strip_prefix("FUNCTION ").or_else(|| message.strip_prefix("PROCEDURE ")) {
        return rest.split_once(" does not exist").map(|(name, _)| name.to_owned());
    }
    let quoted = |quote: char| message.split(quote).nth(1).filter(|name| !name.is_empty()).map(str::to_owned);
    quoted('\'').or_else(|| quoted('`'))
}

/// Adds the position of a syntax error: the message quotes the text that follows it.
fn syntax_refusal(refusal: EngineRefusal, message: &str, sql: &str) -> EngineRefusal {
    let Some((_, rest)) = message.split_once(NEAR) else {
        let is_empty = refusal.engine_code.as_deref() == Some("1065");
        return if is_empty { EngineRefusal { message: INCOMPLETE_STATEMENT.to_owned(), ..refusal } } else { refusal };
    };
    let (near, line) = rest.rsplit_once("' at line ").unwrap_or((rest.trim_end_matches('\''), ""));
    let near = session::without_driver_spaces(near);
    if near.trim().is_empty() {
        return EngineRefusal { message: INCOMPLETE_STATEMENT.to_owned(), ..refusal };
    }
    let at = error_position(sql, &near, line.trim().parse().unwrap_or(1));
    let tokens = lexer::tokenize(sql, Dialect::Mysql);
    let solid = |kind: SqlTokenKind| !matches!(kind, SqlTokenKind::Whitespace | SqlTokenKind::Comment);
    let found = at.and_then(|at| tokens.into_iter().find(|(kind, range)| range.end > at && solid(*kind)));
    let Some((kind, range)) = found else { return EngineRefusal { message: "syntax error".to_owned(), ..refusal } };
    let token = &sql[range.clone()];
    let is_unterminated = kind == SqlTokenKind::Unterminated;
    EngineRefusal {
        code: if is_unterminated { SqlCode::UnterminatedToken } else { refusal.code },
        message: format!("syntax error near \"{}\"", shorten(token)),
        range: Some(range.clone()),
        subject: Some(token.to_owned()).filter(|_| kind == SqlTokenKind::Word),
        ..refusal
    }
}

/// Returns the position of the text that follows a syntax error. The server cuts off a long text.
fn error_position(sql: &str, near: &str, line: usize) -> Option<usize> {
    if sql.ends_with(near) && near.chars().count() < 80 {
        return Some(sql.len() - near.len());
    }
    let from = sql.match_indices('\n').nth(line.checked_sub(2)?).map_or(0, |(at, _)| at);
    sql[from..].find(near).map(|at| from + at).or_else(|| sql.find(near))
}

fn shorten(token: &str) -> &str {
    &token[..token.floor_char_boundary(60)]
}

/// Returns the position of a column: with its qualifier, or else without one.
fn column_range(sql: &str, name: &str) -> Option<Range<usize>> {
    let bare = name.rsplit('.').next().unwrap_or(name);
    let tokens = lexer::tokenize(sql, Dialect::Mysql);
    let is_name = |kind: SqlTokenKind| matches!(kind, SqlTokenKind::Word | SqlTokenKind::Quoted);
    let named: Vec<usize> = (0..tokens.len())
        .filter(|at| is_name(tokens[*at].0))
        .filter(|at| lexer::unquote(&sql[tokens[*at].1.clone()]).eq_ignore_ascii_case(bare))
        .collect();
    let qualifier = |at: usize| {
        let is_dotted = at >= 2 && &sql[tokens[at - 1].1.clone()] == ".";
        is_dotted.then(|| lexer::unquote(&sql[tokens[at - 2].1.clone()]))
    };
    let wanted = name.rsplit('.').nth(1);
    let has_qualifier = |at: &&usize| qualifier(**at).is_some_and(|of| Some(of.as_str()) == wanted);
    let found = named.iter().find(has_qualifier).or_else(|| named.iter().find(|at| qualifier(**at).is_none()));
    found.map(|at| tokens[*at].1.clone())
}

/// A privilege that a user lacks to run a statement.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum MissingPrivilege {
    /// Privileges on a table.
    Table { commands: Vec<String>, database: String, table: String },
    /// A privilege on a column of a table of the database.
    Column { command: String, column: String, table: String },
    /// The execution of a function or procedure.
    Routine(String),
}

/// Reads the missing privilege from an error; `None` if the error is about something else.
pub(super) fn missing_privilege(error: &SessionError) -> Option<MissingPrivilege> {
    let SessionError::Server(reported) = error else { return None };
    let message = &reported.message;
    let commands = || message.split_once(" command denied").map(|(commands, _)| commands);
    match reported.code {
        TABLE_DENIED => {
            let (_, name) = message.rsplit_once(" for table ")?;
            let (database, table) = qualified_name(name)?;
            let commands = commands()?.split(", ").map(str::to_owned).collect();
            Some(MissingPrivilege::Table { commands, database, table })
        }
        COLUMN_DENIED => {
            let (_, rest) = message.split_once(" for column '")?;
            let (column, table) = rest.strip_suffix('\'')?.rsplit_once("' in table '")?;
            let command = commands()?.to_owned();
            Some(MissingPrivilege::Column { command, column: column.to_owned(), table: table.to_owned() })
        }
        ROUTINE_DENIED => {
            let (_, name) = message.rsplit_once(" for routine '")?;
            Some(MissingPrivilege::Routine(name.strip_suffix('\'')?.to_owned()))
        }
        _ => None,
    }
}

/// Reads `` `shop`.`orders` ``.
fn qualified_name(name: &str) -> Option<(String, String)> {
    let tokens = lexer::tokenize(name, Dialect::Mysql);
    match tokens.as_slice() {
        [(SqlTokenKind::Quoted, database), (SqlTokenKind::Symbol, _), (SqlTokenKind::Quoted, table)] => {
            Some((lexer::unquote(&name[database.clone()]), lexer::unquote(&name[table.clone()])))
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SYNTAX: &str = "You have an error in your SQL syntax; check the manual that corresponds to your MariaDB server \
        version for the right syntax to use near ";

    fn refusal(number: u16, message: &str, sql: &str) -> EngineRefusal {
        reported_refusal(number, message, sql, "judged_0")
    }

    #[test]
    fn maps_numbers_to_codes() {
        let cases = [
            (1146, "Table 'judged_0.custommers' doesn't exist", SqlCode::UnknownTable, Some("custommers")),
            (1146, "Table 'archive.customers' doesn't exist", SqlCode::UnknownTable, Some("archive.customers")),
            (1054, "Unknown column 'c.nmae' in 'SELECT'", SqlCode::UnknownColumn, Some("c.nmae")),
            (1305, "FUNCTION judged_0.lenght does not exist", SqlCode::UnknownFunction, Some("lenght")),
            (1052, "Column 'id' in SELECT is ambiguous", SqlCode::AmbiguousColumn, Some("id")),
            (1055, "'judged_0.c.name' isn't in GROUP BY", SqlCode::UngroupedColumn, Some("c.name")),
            (1140, "Mixing of GROUP columns is illegal", SqlCode::UngroupedColumn, None),
            (1222, "The used SELECT statements have a different number of columns", SqlCode::ColumnCount, None),
            (1136, "Column count doesn't match value count at row 1", SqlCode::ColumnCount, None),
            (1111, "Invalid use of group function", SqlCode::MisusedFunction, None),
            (
                1582,
                "Incorrect parameter count in the call to native function 'abs'",
                SqlCode::WrongArguments,
                Some("abs"),
            ),
            (1062, "Duplicate entry '1' for key 'PRIMARY'", SqlCode::ConstraintBroken, None),
            (1366, "Incorrect integer value: 'abc' for column 'id' at row 1", SqlCode::WrongType, None),
            (1969, "Query execution was interrupted (max_statement_time exceeded)", SqlCode::TimeLimit, None),
            (1038, "Out of sort memory", SqlCode::MemoryLimit, None),
            (1053, "Server shutdown in progress", SqlCode::EngineFailed, None),
        ];
        for (number, message, code, subject) in cases {
            let found = refusal(number, message, "SELECT 1");
            assert_eq!((found.code, found.subject.as_deref()), (code, subject), "{message}");
            assert!(!found.message.contains("judged_0"), "{}", found.message);
        }
    }

    #[test]
    fn removes_names_of_the_server() {
        let message = "a constraint fails (`judged_0`.`#sql-alter-5-8`, CONSTRAINT `c`); 'owner_judged_0'@'localhost'";
        let expected = "a constraint fails (the altered table, CONSTRAINT `c`); the owner";
        assert_eq!(without_database(message, "judged_0"), expected);
    }

    #[test]
    fn finds_positions_of_syntax_errors() {
        let cases = [
            ("SELECT name FROM customers ORDER id", "id", Some("id")),
            ("SELECT a::date FROM t", ":: date FROM t", Some(":")),
            ("SELECT name FROM t WHERE (a = 'x'", "", None),
            ("SELECT id id id,\n id id FROM t", "id,\n id id FROM t", Some("id")),
        ];
        for (sql, near, place) in cases {
            let found = refusal(1064, &format!("{SYNTAX}'{near}' at line 1"), sql);
            assert_eq!(found.range.map(|range| &sql[range]), place, "{sql}");
            assert_eq!(found.message == INCOMPLETE_STATEMENT, place.is_none(), "{sql}");
        }
        let found = refusal(1064, &format!("{SYNTAX}''abc' at line 1"), "SELECT name FROM t WHERE name = 'abc");
        assert_eq!((found.code, found.range), (SqlCode::UnterminatedToken, Some(32..36)));
    }

    #[test]
    fn finds_ungrouped_columns() {
        let sql = "SELECT x.name, c.`name`, tier FROM customers c";
        assert_eq!(column_range(sql, "c.name").map(|range| &sql[range]), Some("`name`"));
        assert_eq!(column_range(sql, "customers.tier").map(|range| &sql[range]), Some("tier"));
        assert_eq!(column_range(sql, "customers.id"), None);
    }

    #[test]
    fn reads_missing_privileges() {
        let error = |code, message: &str| {
            SessionError::Server(mysql_async::ServerError { code, message: message.to_owned(), state: String::new() })
        };
        let table = "INSERT, DELETE command denied to user 'p'@'localhost' for table `j1`.`we``i'rd`";
        assert_eq!(
            missing_privilege(&error(TABLE_DENIED, table)),
            Some(MissingPrivilege::Table {
                commands: vec!["INSERT".to_owned(), "DELETE".to_owned()],
                database: "j1".to_owned(),
                table: "we`i'rd".to_owned()
            })
        );
        let column = "SELECT command denied to user 'p'@'localhost' for column 'c`d' in table 'we`i'rd'";
        assert_eq!(
            missing_privilege(&error(COLUMN_DENIED, column)),
            Some(MissingPrivilege::Column {
                command: "SELECT".to_owned(),
                column: "c`d".to_owned(),
                table: "we`i'rd".to_owned()
            })
        );
        let routine = "execute command denied to user 'p'@'localhost' for routine 'j1.f'";
        assert_eq!(
            missing_privilege(&error(ROUTINE_DENIED, routine)),
            Some(MissingPrivilege::Routine("j1.f".to_owned()))
        );
        assert_eq!(missing_privilege(&error(1064, "x")), None);
    }
}
