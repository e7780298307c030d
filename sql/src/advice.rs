//! What an engine's error means, and what an agent does about it. Data: `data/advice.json` has a row for each, the more
//! telling before the less.

use std::sync::LazyLock;

use proctor_core::code::Coded as _;
use proctor_core::sql::{Dialect, SqlCode};
use serde::{Deserialize, Serialize};

use crate::stages::dialects;

const ROWS: &str = include_str!("../data/advice.json");

/// One row of the data.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Row {
    dialect: Dialect,
    /// A part of what the engine says.
    says: String,
    code: SqlCode,
    means: String,
    advice: String,
}

#[expect(clippy::expect_used, reason = "a test reads the data that is compiled in")]
static TABLE: LazyLock<Vec<Row>> = LazyLock::new(|| serde_json::from_str(ROWS).expect("our own data reads"));

/// What an error means.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Advice {
    /// What kind of finding it is.
    pub code: SqlCode,
    /// What it means.
    pub means: String,
    /// What to do.
    pub advice: String,
    /// Whether the error is known; where it is not, what is said is general.
    pub is_known: bool,
}

impl Advice {
    /// Its code, with its name: `P0611 sql::unknown_table`.
    pub fn code_name(&self) -> String {
        let code = self.code.code();
        format!("{code} {}", code.name())
    }
}

/// What to do about an error, by what the engine says.
pub fn advise(dialect: Dialect, error: &str) -> Advice {
    let lower = error.to_lowercase();
    let of_dialect = |row: &&Row| row.dialect == dialect && lower.contains(&row.says.to_lowercase());
    match TABLE.iter().find(of_dialect) {
        Some(row) => Advice { code: row.code, means: row.means.clone(), advice: row.advice.clone(), is_known: true },
        None => Advice {
            code: SqlCode::BindError,
            means: format!("{} refuses the statement.", dialect.title()),
            advice: "Read what it names, change that part only, and try again.".to_owned(),
            is_known: false,
        },
    }
}

/// The same where the error is all that is known, with the form of another engine that it is due to.
pub fn advise_alone(dialect: Dialect, error: &str) -> Advice {
    let advice = advise(dialect, error);
    match dialects::of_error(error, dialect) {
        Some(form) => Advice { advice: format!("{form} {}", advice.advice), ..advice },
        None => advice,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_data_reads_and_says_whole_sentences() {
        assert!(TABLE.len() > 50);
        for row in TABLE.iter() {
            for sentence in [&row.means, &row.advice] {
                assert!(sentence.ends_with('.') && sentence.starts_with(char::is_uppercase), "{sentence}");
            }
        }
    }

    #[test]
    fn an_error_of_each_engine_is_known() {
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
        ];
        for (dialect, error, code) in cases {
            let advice = advise(dialect, error);
            assert_eq!((advice.code, advice.is_known), (code, true), "{error}");
        }
        assert!(!advise(Dialect::Sqlite, "something else").is_known);
    }
}
