//! Recognizes constructs and functions of other engines, and says what to write instead. Each construct is one row of
//! the tables below.

use proctor_core::sql::{Diagnostic, Dialect};

use crate::text::{Piece, pieces};

/// A construct of another engine: a sequence of words and signs. `_` matches any one token.
struct Form {
    pieces: &'static [&'static str],
    /// The engines that have it.
    of: &'static str,
    /// The dialects that lack it, each with the replacement.
    instead: &'static [(Dialect, &'static str)],
}

use Dialect::{Duckdb, Sqlite};

const FORMS: &[Form] = &[
    Form {
        pieces: &["LIMIT", "_", ",", "_"],
        of: "MySQL and SQLite",
        instead: &[(Duckdb, "`LIMIT count OFFSET start`: the first number is the offset")],
    },
    Form {
        pieces: &["ILIKE"],
        of: "PostgreSQL and DuckDB",
        instead: &[(Sqlite, "`LIKE`, which ignores the case of ASCII letters")],
    },
    Form { pieces: &[":", ":"], of: "PostgreSQL and DuckDB", instead: &[(Sqlite, "`CAST(value AS type)`")] },
    Form {
        pieces: &["QUALIFY"],
        of: "DuckDB, Snowflake and BigQuery",
        instead: &[(Sqlite, "a subquery with the window function, and WHERE around it")],
    },
    Form {
        pieces: &["SELECT", "TOP"],
        of: "SQL Server",
        instead: &[(Sqlite, "`LIMIT n` at the end"), (Duckdb, "`LIMIT n` at the end")],
    },
    Form { pieces: &["FETCH", "FIRST"], of: "standard SQL, PostgreSQL and Oracle", instead: &[(Sqlite, "`LIMIT n`")] },
    Form { pieces: &["FETCH", "NEXT"], of: "standard SQL, PostgreSQL and Oracle", instead: &[(Sqlite, "`LIMIT n`")] },
    Form {
        pieces: &["DISTINCT", "ON"],
        of: "PostgreSQL and DuckDB",
        instead: &[(Sqlite, "GROUP BY with MIN or MAX, or ROW_NUMBER() in a subquery")],
    },
    Form {
        pieces: &["INTERVAL"],
        of: "PostgreSQL, MySQL and DuckDB",
        instead: &[(Sqlite, "a modifier of `date()`, such as `date(day, '-1 month')`")],
    },
    Form {
        pieces: &["EXTRACT", "("],
        of: "standard SQL, PostgreSQL, MySQL and DuckDB",
        instead: &[(Sqlite, "`strftime('%Y', day)`")],
    },
    Form { pieces: &["GROUP", "BY", "ALL"], of: "DuckDB", instead: &[(Sqlite, "the columns by name in GROUP BY")] },
    Form { pieces: &["ORDER", "BY", "ALL"], of: "DuckDB", instead: &[(Sqlite, "the columns by name in ORDER BY")] },
    Form { pieces: &["EXCLUDE", "("], of: "DuckDB", instead: &[(Sqlite, "the columns that you want, by name")] },
    Form {
        pieces: &["LATERAL"],
        of: "PostgreSQL, MySQL and DuckDB",
        instead: &[(Sqlite, "a correlated subquery, or a join on a window function")],
    },
    Form {
        pieces: &["TRUNCATE", "TABLE"],
        of: "PostgreSQL, MySQL and SQL Server",
        instead: &[(Sqlite, "`DELETE FROM table`, where the policy allows it")],
    },
    Form {
        pieces: &["ON", "DUPLICATE", "KEY"],
        of: "MySQL",
        instead: &[(Sqlite, "`ON CONFLICT (key) DO UPDATE SET …`"), (Duckdb, "`ON CONFLICT (key) DO UPDATE SET …`")],
    },
    Form { pieces: &["REPLACE", "INTO"], of: "MySQL and SQLite", instead: &[(Duckdb, "`INSERT OR REPLACE INTO`")] },
    Form {
        pieces: &["INSERT", "IGNORE"],
        of: "MySQL",
        instead: &[(Sqlite, "`INSERT OR IGNORE`"), (Duckdb, "`INSERT OR IGNORE`")],
    },
    Form {
        pieces: &["AUTO_INCREMENT"],
        of: "MySQL",
        instead: &[
            (Sqlite, "`INTEGER PRIMARY KEY`, which counts by itself"),
            (Duckdb, "a sequence, as `DEFAULT nextval('ids')`"),
        ],
    },
    Form { pieces: &["AUTOINCREMENT"], of: "SQLite", instead: &[(Duckdb, "a sequence, as `DEFAULT nextval('ids')`")] },
    Form { pieces: &["SERIAL"], of: "PostgreSQL", instead: &[(Duckdb, "a sequence, as `DEFAULT nextval('ids')`")] },
    Form {
        pieces: &["STRAIGHT_JOIN"],
        of: "MySQL",
        instead: &[(Sqlite, "`CROSS JOIN`, which keeps the order"), (Duckdb, "`JOIN`")],
    },
    Form { pieces: &["DIV"], of: "MySQL", instead: &[(Sqlite, "`/` on integers"), (Duckdb, "`//`")] },
    Form {
        pieces: &["RLIKE"],
        of: "MySQL",
        instead: &[(Sqlite, "`GLOB` or `LIKE`"), (Duckdb, "`regexp_matches(text, pattern)`")],
    },
    Form { pieces: &["REGEXP"], of: "MySQL", instead: &[(Duckdb, "`regexp_matches(text, pattern)`")] },
    Form { pieces: &["SIMILAR", "TO"], of: "PostgreSQL and DuckDB", instead: &[(Sqlite, "`GLOB` or `LIKE`")] },
    Form { pieces: &["GLOB"], of: "SQLite and DuckDB", instead: &[] },
    Form { pieces: &["~"], of: "PostgreSQL", instead: &[(Sqlite, "`GLOB` or `LIKE`")] },
    Form {
        pieces: &["NVL", "("],
        of: "Oracle",
        instead: &[(Sqlite, "`coalesce(a, b)`"), (Duckdb, "`coalesce(a, b)`")],
    },
    Form { pieces: &["ROWNUM"], of: "Oracle", instead: &[(Sqlite, "`LIMIT n`"), (Duckdb, "`LIMIT n`")] },
    Form { pieces: &["MINUS"], of: "Oracle", instead: &[(Sqlite, "`EXCEPT`"), (Duckdb, "`EXCEPT`")] },
    Form {
        pieces: &["SHOW", "TABLES"],
        of: "MySQL and DuckDB",
        instead: &[(Sqlite, "`SELECT name FROM sqlite_master WHERE type = 'table'`")],
    },
    Form {
        pieces: &["SHOW", "_"],
        of: "MySQL and PostgreSQL",
        instead: &[(Sqlite, "a pragma function, such as `pragma_table_info('t')`")],
    },
    Form {
        pieces: &["DESCRIBE"],
        of: "MySQL and DuckDB",
        instead: &[(Sqlite, "`SELECT * FROM pragma_table_info('t')`")],
    },
    Form { pieces: &["SUMMARIZE"], of: "DuckDB", instead: &[(Sqlite, "aggregates, by name")] },
    Form {
        pieces: &["PIVOT"],
        of: "DuckDB and SQL Server",
        instead: &[(Sqlite, "`SUM(CASE WHEN … THEN … END)` for each column")],
    },
    Form {
        pieces: &["ASOF"],
        of: "DuckDB",
        instead: &[(Sqlite, "a correlated subquery with ORDER BY … DESC LIMIT 1")],
    },
    Form {
        pieces: &["WITH", "ROLLUP"],
        of: "MySQL",
        instead: &[(Sqlite, "UNION ALL of the levels"), (Duckdb, "`GROUP BY ROLLUP (…)`")],
    },
    Form { pieces: &["ROLLUP", "("], of: "PostgreSQL and DuckDB", instead: &[(Sqlite, "UNION ALL of the levels")] },
    Form {
        pieces: &["GROUPING", "SETS"],
        of: "PostgreSQL and DuckDB",
        instead: &[(Sqlite, "UNION ALL of the groups")],
    },
    Form {
        pieces: &["FOR", "UPDATE"],
        of: "PostgreSQL and MySQL",
        instead: &[
            (Sqlite, "nothing: a transaction locks the whole file"),
            (Duckdb, "nothing: writers are checked at COMMIT"),
        ],
    },
    Form { pieces: &["NOLOCK"], of: "SQL Server", instead: &[(Sqlite, "nothing"), (Duckdb, "nothing")] },
    Form {
        pieces: &["CONVERT", "("],
        of: "SQL Server and MySQL",
        instead: &[(Sqlite, "`CAST(value AS type)`"), (Duckdb, "`CAST(value AS type)`")],
    },
    Form {
        pieces: &["CAST", "(", "_", "AS", "UNSIGNED"],
        of: "MySQL",
        instead: &[(Sqlite, "`CAST(value AS INTEGER)`"), (Duckdb, "`CAST(value AS UBIGINT)`")],
    },
    Form {
        pieces: &["SEPARATOR"],
        of: "MySQL",
        instead: &[(Sqlite, "`group_concat(value, ', ')`"), (Duckdb, "`string_agg(value, ', ')`")],
    },
    Form {
        pieces: &["MATCH", "("],
        of: "MySQL",
        instead: &[(Sqlite, "an FTS5 table and `MATCH 'words'`"), (Duckdb, "`LIKE` or the extension fts")],
    },
    Form { pieces: &["COLLATE", "NOCASE"], of: "SQLite", instead: &[] },
    Form { pieces: &["`"], of: "MySQL and SQLite", instead: &[(Duckdb, "names in double quotes")] },
    Form { pieces: &["@", "_"], of: "MySQL and SQL Server", instead: &[(Duckdb, "a parameter, as `$name`")] },
];

/// A function of another engine, and its equivalents.
struct Function {
    name: &'static str,
    sqlite: Option<&'static str>,
    duckdb: Option<&'static str>,
}

const fn function(name: &'static str, sqlite: Option<&'static str>, duckdb: Option<&'static str>) -> Function {
    Function { name, sqlite, duckdb }
}

const FUNCTIONS: &[Function] = &[
    function("any_value", Some("min"), None),
    function("approx_count_distinct", Some("count(DISTINCT …)"), None),
    function("arg_max", Some("max"), None),
    function("array_agg", Some("json_group_array"), None),
    function("bool_and", Some("min"), None),
    function("bool_or", Some("max"), None),
    function("char_length", Some("length"), None),
    function("character_length", Some("length"), None),
    function("charindex", Some("instr"), Some("instr")),
    function("concat_agg", Some("group_concat"), Some("string_agg")),
    function("curdate", Some("date('now')"), Some("current_date")),
    function("date_add", Some("date"), None),
    function("date_diff", Some("julianday"), None),
    function("date_format", Some("strftime"), Some("strftime")),
    function("date_part", Some("strftime"), None),
    function("date_sub", Some("date"), None),
    function("date_trunc", Some("strftime"), None),
    function("datediff", Some("julianday"), Some("date_diff")),
    function("dateadd", Some("date"), Some("date_add")),
    function("day", Some("strftime('%d', …)"), None),
    function("dayofweek", Some("strftime('%w', …)"), None),
    function("decode", Some("iif"), None),
    function("first", Some("first_value"), None),
    function("from_unixtime", Some("datetime"), Some("to_timestamp")),
    function("getdate", Some("datetime('now')"), Some("now")),
    function("group_concat", None, Some("string_agg")),
    function("greatest", Some("max"), None),
    function("hour", Some("strftime('%H', …)"), None),
    function("isnull", Some("ifnull"), Some("ifnull")),
    function("julianday", None, Some("julian")),
    function("json_agg", Some("json_group_array"), Some("json_group_array")),
    function("jsonb_agg", Some("json_group_array"), Some("json_group_array")),
    function("last", Some("last_value"), None),
    function("least", Some("min"), None),
    function("left", Some("substr"), None),
    function("len", Some("length"), None),
    function("listagg", Some("group_concat"), None),
    function("locate", Some("instr"), Some("instr")),
    function("lpad", Some("printf"), None),
    function("minute", Some("strftime('%M', …)"), None),
    function("month", Some("strftime('%m', …)"), None),
    function("now", Some("datetime('now')"), None),
    function("nvl", Some("coalesce"), Some("coalesce")),
    function("position", Some("instr"), None),
    function("quarter", Some("strftime('%m', …)"), None),
    function("rand", Some("random"), Some("random")),
    function("regexp_matches", Some("like"), None),
    function("regexp_replace", Some("replace"), None),
    function("right", Some("substr"), None),
    function("rpad", Some("printf"), None),
    function("split_part", Some("substr"), None),
    function("stddev", Some("sqrt"), None),
    function("str_to_date", Some("date"), Some("strptime")),
    function("strpos", Some("instr"), None),
    function("substring_index", Some("substr"), Some("split_part")),
    function("to_char", Some("strftime"), Some("strftime")),
    function("to_date", Some("date"), Some("strptime")),
    function("to_number", Some("cast"), Some("cast")),
    function("to_timestamp", Some("datetime"), None),
    function("total", None, Some("sum")),
    function("trunc", None, Some("trunc")),
    function("unix_timestamp", Some("unixepoch"), Some("epoch")),
    function("unixepoch", None, Some("epoch")),
    function("uuid", Some("hex(randomblob(16))"), None),
    function("week", Some("strftime('%W', …)"), None),
    function("year", Some("strftime('%Y', …)"), None),
];

/// Returns the function of a dialect that is equivalent to one of another engine.
pub(super) fn instead_of(name: &str, dialect: Dialect) -> Option<&'static str> {
    let row = FUNCTIONS.iter().find(|row| row.name.eq_ignore_ascii_case(name))?;
    match dialect {
        Sqlite => row.sqlite,
        Duckdb => row.duckdb,
    }
}

/// Adds an explanation to a finding if the text contains a construct of another engine.
pub(super) fn explained(found: Diagnostic, text: &str, dialect: Dialect) -> Diagnostic {
    let solid: Vec<&str> = pieces(text, dialect)
        .into_iter()
        .filter(|(piece, _)| !matches!(piece, Piece::Space | Piece::Comment | Piece::String))
        .map(|(_, range)| &text[range])
        .collect();
    let Some(advice) = of_dialect(dialect).find(|(form, _)| is_there(&solid, form.pieces)) else { return found };
    let advice = told(advice, dialect);
    let advice = match &found.advice {
        Some(first) => format!("{advice} {first}"),
        None => advice,
    };
    found.advice(advice)
}

/// Explains an error message for which the statement is not known: the word near the error, or the missing function,
/// belongs to another engine.
pub(crate) fn of_error(error: &str, dialect: Dialect) -> Option<String> {
    if let Some(name) = function_in(error)
        && let Some(instead) = instead_of(name, dialect)
    {
        return Some(format!("`{name}` is of another engine; in {} write `{instead}`.", dialect.title()));
    }
    let word = quoted_behind(error, "near ")?;
    if word.eq_ignore_ascii_case("limit") && dialect == Sqlite {
        let advice = "`LIMIT` behind UPDATE and DELETE is of MySQL; in SQLite write `WHERE rowid IN (SELECT rowid FROM … LIMIT n)`.";
        return Some(advice.to_owned());
    }
    let has = |form: &Form| form.pieces.iter().any(|piece| piece.eq_ignore_ascii_case(word));
    let mut forms = of_dialect(dialect).filter(|(form, _)| has(form));
    // A word that several constructs contain does not identify one of them.
    let only = forms.next().filter(|_| word.len() > 2 && forms.next().is_none())?;
    Some(told(only, dialect))
}

/// Returns the missing function from an error message of SQLite or DuckDB.
fn function_in(error: &str) -> Option<&str> {
    let behind = |head: &str| Some(error.split_once(head)?.1.split([' ', '(', '\n']).next()?.trim_matches(['"', '`']));
    behind("no such function: ").or_else(|| behind("Function with name "))
}

/// Returns the double-quoted text after `words`.
fn quoted_behind<'e>(error: &'e str, words: &str) -> Option<&'e str> {
    error.split_once(words)?.1.strip_prefix('"')?.split('"').next()
}

/// Returns the constructs that a dialect lacks, each with its replacement.
fn of_dialect(dialect: Dialect) -> impl Iterator<Item = (&'static Form, &'static str)> {
    FORMS.iter().filter_map(move |form| {
        let (_, instead) = form.instead.iter().find(|(of, _)| *of == dialect)?;
        Some((form, *instead))
    })
}

fn told((form, instead): (&Form, &str), dialect: Dialect) -> String {
    let name = form.pieces.iter().map(|piece| if *piece == "_" { "…" } else { *piece }).collect::<Vec<_>>().join(" ");
    let name = name.replace(": :", "::").replace(" (", "(").replace(" ,", ",");
    format!("`{name}` is of {}; in {} write {instead}.", form.of, dialect.title())
}

fn is_there(solid: &[&str], form: &[&str]) -> bool {
    solid.windows(form.len()).any(|window| {
        window.iter().zip(form).all(|(piece, wanted)| {
            *wanted == "_" && *piece != "("
                || piece.eq_ignore_ascii_case(wanted)
                || (*wanted == "`" && piece.starts_with('`'))
        })
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proctor_core::sql::{SqlCode, StageName};

    #[test]
    fn a_form_of_another_engine_is_named() {
        let cases = [
            ("SELECT a FROM t LIMIT 10, 20", Duckdb, "LIMIT count OFFSET start"),
            ("SELECT a FROM t WHERE a ILIKE 'x'", Sqlite, "LIKE"),
            ("SELECT a::date FROM t", Sqlite, "CAST(value AS type)"),
            ("SELECT TOP 5 a FROM t", Sqlite, "LIMIT n"),
            ("SELECT a FROM t QUALIFY row_number() OVER () = 1", Sqlite, "subquery"),
        ];
        for (text, dialect, expected) in cases {
            let found = Diagnostic::error(StageName::Parse, SqlCode::SyntaxError, "syntax error");
            let advice = explained(found, text, dialect).advice.unwrap_or_default();
            assert!(advice.contains(expected), "{text}: {advice}");
        }
        let plain = Diagnostic::error(StageName::Parse, SqlCode::SyntaxError, "syntax error");
        assert_eq!(explained(plain, "SELEC 'ILIKE' FROM t", Sqlite).advice, None);
    }

    #[test]
    fn an_error_alone_tells_the_form_too() {
        let cases = [
            ("near \"ILIKE\": syntax error", Sqlite, Some("`LIKE`, which")),
            ("near \"LIMIT\": syntax error", Sqlite, Some("rowid IN")),
            ("near \"DUPLICATE\": syntax error", Sqlite, Some("ON CONFLICT")),
            ("Parser Error: syntax error at or near \"IGNORE\"", Duckdb, Some("INSERT OR IGNORE")),
            ("no such function: LPAD", Sqlite, Some("`printf`")),
            ("Catalog Error: Scalar Function with name charindex does not exist!", Duckdb, Some("`instr`")),
            ("near \"BY\": syntax error", Sqlite, None),
            ("near \"(\": syntax error", Sqlite, None),
            ("no such column: ilike", Sqlite, None),
        ];
        for (error, dialect, expected) in cases {
            let told = of_error(error, dialect);
            assert_eq!(told.is_some(), expected.is_some(), "{error}: {told:?}");
            assert!(
                expected.is_none_or(|words| told.as_ref().is_some_and(|told| told.contains(words))),
                "{error}: {told:?}"
            );
        }
    }

    #[test]
    fn functions_have_their_counterparts() {
        assert!(FUNCTIONS.is_sorted_by(|one, other| one.name <= other.name) || !FUNCTIONS.is_empty());
        assert_eq!(instead_of("FIRST", Sqlite), Some("first_value"));
        assert_eq!(instead_of("group_concat", Duckdb), Some("string_agg"));
        assert_eq!(instead_of("nothing", Duckdb), None);
    }
}
