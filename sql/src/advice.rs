//! Explains errors of engines and says how to fix them. `data/advice.json` has one row for each error; more specific
//! rows come first.

use std::sync::LazyLock;

use proctor_core::code::Coded as _;
use proctor_core::sql::{Dialect, SqlCode};
use serde::{Deserialize, Serialize};

use crate::stages::foreign_constructs;

const ADVICE_JSON: &str = include_str!("../data/advice.json");

/// One row of the data.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct AdviceRow {
    dialect: Dialect,
    /// A part of the engine's message.
    says: String,
    /// The codes of the error in lower case, if the engine reports one: SQLSTATEs, or numbers of MySQL.
    #[serde(default)]
    codes: Vec<String>,
    code: SqlCode,
    means: String,
    advice: String,
}

#[expect(clippy::expect_used, reason = "a test reads the data that is compiled in")]
static TABLE: LazyLock<Vec<AdviceRow>> =
    LazyLock::new(|| serde_json::from_str(ADVICE_JSON).expect("our own data reads"));

/// The explanation of an error.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Advice {
    /// The engine that reports the error.
    pub dialect: Dialect,
    /// The code of the finding.
    pub code: SqlCode,
    /// The meaning of the error.
    pub means: String,
    /// The recommended fix.
    pub advice: String,
    /// True if the error is known. The advice about an unknown error is generic.
    pub is_known: bool,
}

impl Advice {
    /// Returns the code with its name: `P0611 sql::unknown_table`.
    pub fn code_name(&self) -> String {
        let code = self.code.code();
        format!("{code} {}", code.name())
    }
}

/// Returns the advice about an error message of an engine.
pub fn advise(dialect: Dialect, error: &str) -> Advice {
    let lower = error.to_lowercase();
    let rows = || TABLE.iter().filter(|row| row.dialect == dialect);
    let says = |row: &&AdviceRow| lower.contains(&row.says.to_lowercase());
    let words = || lower.split(|c: char| !c.is_ascii_alphanumeric());
    let has_code = |row: &&AdviceRow| words().any(|word| row.codes.iter().any(|code| code == word));
    match rows().find(says).or_else(|| rows().find(has_code)) {
        Some(row) => {
            Advice { dialect, code: row.code, means: row.means.clone(), advice: row.advice.clone(), is_known: true }
        }
        None => Advice {
            dialect,
            code: SqlCode::BindError,
            means: format!("{} refuses the statement.", dialect.display_name()),
            advice: "Read the named item, change only that part, and try again.".to_owned(),
            is_known: false,
        },
    }
}

/// The reason why there is no advice about an error.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum AdviceError {
    /// The error belongs to an engine that Proctor does not support.
    #[error("this looks like an error of {0}, which Proctor does not support")]
    UnsupportedEngine(&'static str),
    /// No supported engine is known to report the error.
    #[error("no supported engine reports this error")]
    Unknown,
}

/// Returns the advice about an error of which only the message is known. If the error is caused by a construct of
/// another dialect, the advice names it. Without a `dialect`, the wording of the message selects the engine.
///
/// # Errors
/// The error is unknown, or belongs to an engine that Proctor does not support.
pub fn advise_without_statement(dialect: Option<Dialect>, error: &str) -> Result<Advice, AdviceError> {
    let dialects = match dialect {
        Some(dialect) => vec![dialect],
        None if has_duckdb_title(error) => vec![Dialect::Duckdb],
        None if is_mysql_error(error) => vec![Dialect::Mysql],
        None if is_postgres_error(error) => vec![Dialect::Postgres],
        None => Dialect::ALL.to_vec(),
    };
    if let Some(family) = unsupported_engine(error) {
        return Err(AdviceError::UnsupportedEngine(family));
    }
    let known = dialects.into_iter().map(|dialect| advise(dialect, error)).find(|advice| advice.is_known);
    let advice = known.ok_or(AdviceError::Unknown)?;
    Ok(match foreign_constructs::explain_error(error, advice.dialect) {
        Some(form) => Advice { advice: format!("{form} {}", advice.advice), ..advice },
        None => advice,
    })
}

/// Reports whether an error begins with a title of DuckDB, such as `Binder Error: …`.
fn has_duckdb_title(error: &str) -> bool {
    let Some((title, _)) = error.trim_start().split_once(" Error: ") else { return false };
    title.len() < 40
        && title.starts_with(|c: char| c.is_ascii_uppercase())
        && title.chars().all(|c| c.is_alphabetic() || c == ' ')
}

/// Reports whether an error has the wording or the codes of PostgreSQL.
fn is_postgres_error(error: &str) -> bool {
    let lower = error.trim().to_lowercase();
    lower.starts_with("error: ")
        || lower.starts_with("relation \"")
        || (lower.starts_with("column \"") && lower.ends_with("does not exist"))
        || lower.starts_with("syntax error at or near")
        || lower.contains("sqlstate")
        || is_sqlstate(code_of(&lower))
}

/// Reports whether an error has the wording or the numbers of MySQL and of the servers that are compatible with it.
fn is_mysql_error(error: &str) -> bool {
    /// Phrases that only servers of this family use.
    const PHRASES: &[&str] = &[
        "you have an error in your sql syntax",
        "the right syntax to use near",
        "unknown column '",
        "in 'field list'",
        "doesn't exist in engine",
        "no database selected",
        "multi-statement",
        "isn't in group by",
        "command denied to user",
        "mysql",
        "mariadb",
    ];
    let lower = error.trim().to_lowercase();
    let is_table = lower.contains("table '") && lower.ends_with("doesn't exist");
    is_table || PHRASES.iter().any(|phrase| lower.contains(phrase)) || is_mysql_number(&lower)
}

/// Reports whether an error, in lower case, begins with a number of a server of MySQL, MariaDB or TiDB.
fn is_mysql_number(lower: &str) -> bool {
    let token = code_of(lower);
    let is_server = matches!(token.parse::<u32>(), Ok(1_000..=1_999 | 3_000..=5_999 | 8_130));
    is_server && is_code_alone(lower, token)
}

/// Reports whether an error consists of a code, or is introduced as one.
fn is_code_alone(lower: &str, token: &str) -> bool {
    lower.ends_with(token) || lower.starts_with("error") || lower.starts_with("errno") || lower.starts_with('(')
}

/// Returns the code of an error that begins with one, in lower case: `error code 8130: …`, `42p01`.
fn code_of(lower: &str) -> &str {
    let bare = ["error code:", "error code", "error", "errno:", "errno", "code:", "code", "#"]
        .iter()
        .find_map(|head| lower.strip_prefix(head))
        .unwrap_or(lower);
    bare.trim_start_matches('(').trim().split([' ', ':', ',', '(']).next().unwrap_or_default()
}

/// Returns the unsupported family of engines that an error belongs to; `None` if it belongs to none of them.
fn unsupported_engine(error: &str) -> Option<&'static str> {
    /// Phrases that only this family of engines uses.
    const WORDS: &[(&str, &str)] = &[
        ("db::exception", "ClickHouse"),
        ("sql compilation error", "Snowflake"),
        ("incorrect syntax near", "SQL Server"),
        ("invalid column name '", "SQL Server"),
        ("invalid object name '", "SQL Server"),
    ];
    let lower = error.trim().to_lowercase();
    if let Some((_, family)) = WORDS.iter().find(|(words, _)| lower.contains(words)) {
        return Some(family);
    }
    if lower.starts_with("ora-") || lower.starts_with("pls-") {
        return Some("Oracle");
    }
    if lower.starts_with("msg ") && lower.contains("level ") {
        return Some("SQL Server");
    }
    let token = code_of(&lower);
    match token.parse::<u32>() {
        _ if !is_code_alone(&lower, token) => None,
        Ok(2_000..=2_999) => Some("a client of MySQL or MariaDB"),
        Ok(8_130) => None,
        Ok(8_000..=9_999) => Some("TiDB"),
        _ => None,
    }
}

/// Reports whether a word is an SQLSTATE code, such as `42p01` or `23505`.
fn is_sqlstate(word: &str) -> bool {
    word.len() == 5
        && word.bytes().all(|byte| byte.is_ascii_alphanumeric())
        && word.starts_with(|c: char| c.is_ascii_digit())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn advice_data_consists_of_sentences() {
        assert!(TABLE.len() > 50);
        for row in TABLE.iter() {
            for sentence in [&row.means, &row.advice] {
                assert!(sentence.ends_with('.') && sentence.starts_with(char::is_uppercase), "{sentence}");
            }
        }
    }

    #[test]
    fn recognizes_errors_of_each_engine() {
        let cases = [
            (Dialect::Sqlite, "SQLITE_ERROR: no such column: nmae", SqlCode::UnknownColumn),
            (Dialect::Sqlite, "UNIQUE constraint failed: t.a", SqlCode::ConstraintBroken),
            (Dialect::Sqlite, "near \"SELEC\": syntax error", SqlCode::SyntaxError),
            (
                Dialect::Duckdb,
                "Binder Error: Referenced column \"nmae\" not found in FROM clause!",
                SqlCode::UnknownColumn,
            ),
            (Dialect::Duckdb, "Catalog Error: Table with name x does not exist!", SqlCode::UnknownTable),
            (Dialect::Postgres, "ERROR: relation \"t\" does not exist", SqlCode::UnknownTable),
            (Dialect::Postgres, "column c.nmae does not exist", SqlCode::UnknownColumn),
            (Dialect::Postgres, "22P02", SqlCode::WrongType),
            (Dialect::Mysql, "1064", SqlCode::SyntaxError),
            (Dialect::Mysql, "ERROR 1046 (3D000): No database selected", SqlCode::UnknownTable),
            (Dialect::Mysql, "(1054, \"Unknown column 'nmae' in 'SELECT'\")", SqlCode::UnknownColumn),
            (Dialect::Mysql, "Table 'shop.customer' doesn't exist", SqlCode::UnknownTable),
            (Dialect::Mysql, "FUNCTION shop.lenght does not exist", SqlCode::UnknownFunction),
            (Dialect::Mysql, "8130", SqlCode::StackedStatements),
            (Dialect::Mysql, "1969", SqlCode::TimeLimit),
        ];
        for (dialect, error, code) in cases {
            let advice = advise(dialect, error);
            assert_eq!((advice.code, advice.is_known), (code, true), "{error}");
        }
        assert!(!advise(Dialect::Sqlite, "something else").is_known);
    }
    #[test]
    fn rejects_errors_of_unsupported_engines() {
        let cases = [
            ("8131", AdviceError::UnsupportedEngine("TiDB")),
            ("error code 2006", AdviceError::UnsupportedEngine("a client of MySQL or MariaDB")),
            ("1999", AdviceError::Unknown),
            ("ORA-00942: table or view does not exist", AdviceError::UnsupportedEngine("Oracle")),
            ("Msg 207, Level 16, State 1", AdviceError::UnsupportedEngine("SQL Server")),
            ("42Z99", AdviceError::Unknown),
            ("blah", AdviceError::Unknown),
            ("", AdviceError::Unknown),
            ("7", AdviceError::Unknown),
        ];
        for (error, expected) in cases {
            assert_eq!(advise_without_statement(None, error), Err(expected), "{error}");
        }
        assert_eq!(advise_without_statement(Some(Dialect::Sqlite), "1064"), Err(AdviceError::Unknown));
        assert_eq!(advise_without_statement(Some(Dialect::Sqlite), "blah"), Err(AdviceError::Unknown));
    }

    #[test]
    fn selects_engine_by_wording() {
        let cases = [
            ("no such column: nmae", Dialect::Sqlite),
            ("SQLITE_ERROR: near \"SELEC\": syntax error", Dialect::Sqlite),
            ("sqlite3.OperationalError: no such table: ordres", Dialect::Sqlite),
            ("Parser Error: syntax error at or near \"SELEC\"", Dialect::Duckdb),
            ("Catalog Error: Table with name x does not exist!", Dialect::Duckdb),
            ("ERROR:  syntax error at or near \"SELEC\"", Dialect::Postgres),
            ("relation \"t\" does not exist", Dialect::Postgres),
            ("42P01", Dialect::Postgres),
            ("1064", Dialect::Mysql),
            ("error code 8130", Dialect::Mysql),
            ("ERROR 1046 (3D000): No database selected", Dialect::Mysql),
            ("ERROR 1064 (42000): You have an error in your SQL syntax", Dialect::Mysql),
            ("Unknown column 'nmae' in 'field list'", Dialect::Mysql),
            ("(1213, 'Deadlock found when trying to get lock; try restarting transaction')", Dialect::Mysql),
            ("error code 23505", Dialect::Postgres),
            ("SQLSTATE[42703]: Undefined column: column \"nmae\" does not exist", Dialect::Postgres),
        ];
        for (error, dialect) in cases {
            assert_eq!(advise_without_statement(None, error).map(|advice| advice.dialect), Ok(dialect), "{error}");
        }
    }
}
