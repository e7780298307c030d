//! Recognizes constructs and functions of other engines, and suggests replacements. Each construct is one row of the
//! tables below.

use proctor_core::sql::{Dialect, SqlDiagnostic};

use crate::lexer::{SqlTokenKind, tokenize};
use crate::stages::foreign_functions::equivalent_function;

/// A construct of another engine: a sequence of words and symbols. `_` matches any single token.
struct ForeignConstruct {
    tokens: &'static [&'static str],
    /// The engines that have the construct.
    engines: &'static str,
    /// The dialects that lack it, each with the replacement.
    replacements: &'static [(Dialect, &'static str)],
}

use Dialect::{Duckdb, Mysql, Postgres, Sqlite};

const FOREIGN_CONSTRUCTS: &[ForeignConstruct] = &[
    ForeignConstruct {
        tokens: &["LIMIT", "_", ",", "_"],
        engines: "MySQL and SQLite",
        replacements: &[
            (Postgres, "`LIMIT count OFFSET start`: the first number is the offset"),
            (Duckdb, "`LIMIT count OFFSET start`: the first number is the offset"),
        ],
    },
    ForeignConstruct {
        tokens: &["ILIKE"],
        engines: "PostgreSQL and DuckDB",
        replacements: &[
            (Mysql, "`LIKE`, which ignores the case in most collations"),
            (Sqlite, "`LIKE`, which ignores the case of ASCII letters"),
        ],
    },
    ForeignConstruct {
        tokens: &[":", ":"],
        engines: "PostgreSQL and DuckDB",
        replacements: &[(Mysql, "`CAST(value AS type)`"), (Sqlite, "`CAST(value AS type)`")],
    },
    ForeignConstruct {
        tokens: &["QUALIFY"],
        engines: "DuckDB, Snowflake and BigQuery",
        replacements: &[
            (Mysql, "a subquery with the window function, and WHERE around it"),
            (Postgres, "a subquery with the window function, and WHERE around it"),
            (Sqlite, "a subquery with the window function, and WHERE around it"),
        ],
    },
    ForeignConstruct {
        tokens: &["SELECT", "TOP"],
        engines: "SQL Server",
        replacements: &[
            (Mysql, "`LIMIT n` at the end"),
            (Postgres, "`LIMIT n` at the end"),
            (Sqlite, "`LIMIT n` at the end"),
            (Duckdb, "`LIMIT n` at the end"),
        ],
    },
    ForeignConstruct {
        tokens: &["FETCH", "FIRST"],
        engines: "standard SQL, PostgreSQL and Oracle",
        replacements: &[(Mysql, "`LIMIT n`"), (Sqlite, "`LIMIT n`")],
    },
    ForeignConstruct {
        tokens: &["FETCH", "NEXT"],
        engines: "standard SQL, PostgreSQL and Oracle",
        replacements: &[(Mysql, "`LIMIT n`"), (Sqlite, "`LIMIT n`")],
    },
    ForeignConstruct {
        tokens: &["DISTINCT", "ON"],
        engines: "PostgreSQL and DuckDB",
        replacements: &[
            (Mysql, "GROUP BY with MIN or MAX, or ROW_NUMBER() in a subquery"),
            (Sqlite, "GROUP BY with MIN or MAX, or ROW_NUMBER() in a subquery"),
        ],
    },
    ForeignConstruct {
        tokens: &["INTERVAL"],
        engines: "PostgreSQL, MySQL and DuckDB",
        replacements: &[(Sqlite, "a modifier of `date()`, such as `date(day, '-1 month')`")],
    },
    ForeignConstruct {
        tokens: &["EXTRACT", "("],
        engines: "standard SQL, PostgreSQL, MySQL and DuckDB",
        replacements: &[(Sqlite, "`strftime('%Y', day)`")],
    },
    ForeignConstruct {
        tokens: &["GROUP", "BY", "ALL"],
        engines: "DuckDB",
        replacements: &[
            (Mysql, "the columns by name in GROUP BY"),
            (Postgres, "the columns by name in GROUP BY"),
            (Sqlite, "the columns by name in GROUP BY"),
        ],
    },
    ForeignConstruct {
        tokens: &["ORDER", "BY", "ALL"],
        engines: "DuckDB",
        replacements: &[
            (Mysql, "the columns by name in ORDER BY"),
            (Postgres, "the columns by name in ORDER BY"),
            (Sqlite, "the columns by name in ORDER BY"),
        ],
    },
    ForeignConstruct {
        tokens: &["EXCLUDE", "("],
        engines: "DuckDB",
        replacements: &[
            (Mysql, "the columns that you want, by name"),
            (Postgres, "the columns that you want, by name"),
            (Sqlite, "the columns that you want, by name"),
        ],
    },
    ForeignConstruct {
        tokens: &["LATERAL"],
        engines: "PostgreSQL, MySQL and DuckDB",
        replacements: &[(Sqlite, "a correlated subquery, or a join on a window function")],
    },
    ForeignConstruct {
        tokens: &["TRUNCATE", "TABLE"],
        engines: "PostgreSQL, MySQL and SQL Server",
        replacements: &[(Sqlite, "`DELETE FROM table`, where the policy allows it")],
    },
    ForeignConstruct {
        tokens: &["ON", "DUPLICATE", "KEY"],
        engines: "MySQL",
        replacements: &[
            (Postgres, "`ON CONFLICT (key) DO UPDATE SET …`"),
            (Sqlite, "`ON CONFLICT (key) DO UPDATE SET …`"),
            (Duckdb, "`ON CONFLICT (key) DO UPDATE SET …`"),
        ],
    },
    ForeignConstruct {
        tokens: &["REPLACE", "INTO"],
        engines: "MySQL and SQLite",
        replacements: &[
            (Postgres, "`INSERT INTO … ON CONFLICT (key) DO UPDATE SET …`"),
            (Duckdb, "`INSERT OR REPLACE INTO`"),
        ],
    },
    ForeignConstruct {
        tokens: &["INSERT", "IGNORE"],
        engines: "MySQL",
        replacements: &[
            (Postgres, "`INSERT INTO … ON CONFLICT DO NOTHING`"),
            (Sqlite, "`INSERT OR IGNORE`"),
            (Duckdb, "`INSERT OR IGNORE`"),
        ],
    },
    ForeignConstruct {
        tokens: &["AUTO_INCREMENT"],
        engines: "MySQL",
        replacements: &[
            (Postgres, "`GENERATED BY DEFAULT AS IDENTITY`"),
            (Sqlite, "`INTEGER PRIMARY KEY`, which generates values"),
            (Duckdb, "a sequence, as `DEFAULT nextval('ids')`"),
        ],
    },
    ForeignConstruct {
        tokens: &["AUTOINCREMENT"],
        engines: "SQLite",
        replacements: &[
            (Mysql, "`AUTO_INCREMENT`"),
            (Postgres, "`GENERATED BY DEFAULT AS IDENTITY`"),
            (Duckdb, "a sequence, as `DEFAULT nextval('ids')`"),
        ],
    },
    ForeignConstruct {
        tokens: &["SERIAL"],
        engines: "PostgreSQL",
        replacements: &[(Duckdb, "a sequence, as `DEFAULT nextval('ids')`")],
    },
    ForeignConstruct {
        tokens: &["STRAIGHT_JOIN"],
        engines: "MySQL",
        replacements: &[(Postgres, "`JOIN`"), (Sqlite, "`CROSS JOIN`, which preserves the order"), (Duckdb, "`JOIN`")],
    },
    ForeignConstruct {
        tokens: &["DIV"],
        engines: "MySQL",
        replacements: &[(Postgres, "`/` on integers"), (Sqlite, "`/` on integers"), (Duckdb, "`//`")],
    },
    ForeignConstruct {
        tokens: &["RLIKE"],
        engines: "MySQL",
        replacements: &[(Postgres, "`~`"), (Sqlite, "`GLOB` or `LIKE`"), (Duckdb, "`regexp_matches(text, pattern)`")],
    },
    ForeignConstruct {
        tokens: &["REGEXP"],
        engines: "MySQL",
        replacements: &[(Postgres, "`~`"), (Duckdb, "`regexp_matches(text, pattern)`")],
    },
    ForeignConstruct {
        tokens: &["SIMILAR", "TO"],
        engines: "PostgreSQL and DuckDB",
        replacements: &[(Mysql, "`REGEXP`"), (Sqlite, "`GLOB` or `LIKE`")],
    },
    ForeignConstruct {
        tokens: &["GLOB"],
        engines: "SQLite and DuckDB",
        replacements: &[(Mysql, "`LIKE` or `REGEXP`"), (Postgres, "`LIKE` or `~`")],
    },
    ForeignConstruct {
        tokens: &["~"],
        engines: "PostgreSQL",
        replacements: &[(Mysql, "`REGEXP`"), (Sqlite, "`GLOB` or `LIKE`")],
    },
    ForeignConstruct {
        tokens: &["NVL", "("],
        engines: "Oracle",
        replacements: &[(Postgres, "`coalesce(a, b)`"), (Sqlite, "`coalesce(a, b)`"), (Duckdb, "`coalesce(a, b)`")],
    },
    ForeignConstruct {
        tokens: &["ROWNUM"],
        engines: "Oracle",
        replacements: &[(Mysql, "`LIMIT n`"), (Postgres, "`LIMIT n`"), (Sqlite, "`LIMIT n`"), (Duckdb, "`LIMIT n`")],
    },
    ForeignConstruct {
        tokens: &["MINUS"],
        engines: "Oracle",
        replacements: &[(Mysql, "`EXCEPT`"), (Postgres, "`EXCEPT`"), (Sqlite, "`EXCEPT`"), (Duckdb, "`EXCEPT`")],
    },
    ForeignConstruct {
        tokens: &["SHOW", "TABLES"],
        engines: "MySQL and DuckDB",
        replacements: &[
            (Postgres, "`SELECT tablename FROM pg_tables WHERE schemaname = 'public'`"),
            (Sqlite, "`SELECT name FROM sqlite_master WHERE type = 'table'`"),
        ],
    },
    ForeignConstruct {
        tokens: &["SHOW", "_"],
        engines: "MySQL and PostgreSQL",
        replacements: &[(Sqlite, "a pragma function, such as `pragma_table_info('t')`")],
    },
    ForeignConstruct {
        tokens: &["DESCRIBE"],
        engines: "MySQL and DuckDB",
        replacements: &[
            (Postgres, "`SELECT column_name, data_type FROM information_schema.columns WHERE table_name = 't'`"),
            (Sqlite, "`SELECT * FROM pragma_table_info('t')`"),
        ],
    },
    ForeignConstruct {
        tokens: &["SUMMARIZE"],
        engines: "DuckDB",
        replacements: &[
            (Mysql, "aggregates, by name"),
            (Postgres, "aggregates, by name"),
            (Sqlite, "aggregates, by name"),
        ],
    },
    ForeignConstruct {
        tokens: &["PIVOT"],
        engines: "DuckDB and SQL Server",
        replacements: &[
            (Mysql, "`SUM(CASE WHEN … THEN … END)` for each column"),
            (Postgres, "`SUM(CASE WHEN … THEN … END)` for each column"),
            (Sqlite, "`SUM(CASE WHEN … THEN … END)` for each column"),
        ],
    },
    ForeignConstruct {
        tokens: &["ASOF"],
        engines: "DuckDB",
        replacements: &[
            (Mysql, "a correlated subquery with ORDER BY … DESC LIMIT 1"),
            (Postgres, "a LATERAL subquery with ORDER BY … DESC LIMIT 1"),
            (Sqlite, "a correlated subquery with ORDER BY … DESC LIMIT 1"),
        ],
    },
    ForeignConstruct {
        tokens: &["WITH", "ROLLUP"],
        engines: "MySQL",
        replacements: &[
            (Postgres, "`GROUP BY ROLLUP (…)`"),
            (Sqlite, "UNION ALL of the levels"),
            (Duckdb, "`GROUP BY ROLLUP (…)`"),
        ],
    },
    ForeignConstruct {
        tokens: &["ROLLUP", "("],
        engines: "PostgreSQL and DuckDB",
        replacements: &[(Mysql, "`GROUP BY … WITH ROLLUP`"), (Sqlite, "UNION ALL of the levels")],
    },
    ForeignConstruct {
        tokens: &["GROUPING", "SETS"],
        engines: "PostgreSQL and DuckDB",
        replacements: &[(Mysql, "UNION ALL of the groups"), (Sqlite, "UNION ALL of the groups")],
    },
    ForeignConstruct {
        tokens: &["FOR", "UPDATE"],
        engines: "PostgreSQL and MySQL",
        replacements: &[
            (Sqlite, "nothing: a transaction locks the whole file"),
            (Duckdb, "nothing: writers are checked at COMMIT"),
        ],
    },
    ForeignConstruct {
        tokens: &["NOLOCK"],
        engines: "SQL Server",
        replacements: &[(Mysql, "nothing"), (Postgres, "nothing"), (Sqlite, "nothing"), (Duckdb, "nothing")],
    },
    ForeignConstruct {
        tokens: &["CONVERT", "("],
        engines: "SQL Server and MySQL",
        replacements: &[
            (Postgres, "`CAST(value AS type)`"),
            (Sqlite, "`CAST(value AS type)`"),
            (Duckdb, "`CAST(value AS type)`"),
        ],
    },
    ForeignConstruct {
        tokens: &["CAST", "(", "_", "AS", "UNSIGNED"],
        engines: "MySQL",
        replacements: &[
            (Postgres, "`CAST(value AS bigint)`"),
            (Sqlite, "`CAST(value AS INTEGER)`"),
            (Duckdb, "`CAST(value AS UBIGINT)`"),
        ],
    },
    ForeignConstruct {
        tokens: &["SEPARATOR"],
        engines: "MySQL",
        replacements: &[
            (Postgres, "`string_agg(value, ', ')`"),
            (Sqlite, "`group_concat(value, ', ')`"),
            (Duckdb, "`string_agg(value, ', ')`"),
        ],
    },
    ForeignConstruct {
        tokens: &["MATCH", "("],
        engines: "MySQL",
        replacements: &[
            (Postgres, "`to_tsvector(text) @@ plainto_tsquery('words')`"),
            (Sqlite, "an FTS5 table and `MATCH 'words'`"),
            (Duckdb, "`LIKE` or the extension fts"),
        ],
    },
    ForeignConstruct {
        tokens: &["COLLATE", "NOCASE"],
        engines: "SQLite",
        replacements: &[
            (Mysql, "nothing: most collations ignore the case"),
            (Postgres, "`ILIKE`, or `lower(…)` on both sides"),
        ],
    },
    ForeignConstruct {
        tokens: &["ON", "CONFLICT"],
        engines: "PostgreSQL, SQLite and DuckDB",
        replacements: &[(Mysql, "`ON DUPLICATE KEY UPDATE …`")],
    },
    ForeignConstruct {
        tokens: &["INSERT", "OR"],
        engines: "SQLite and DuckDB",
        replacements: &[(Mysql, "`INSERT IGNORE` or `REPLACE`")],
    },
    ForeignConstruct {
        tokens: &["FULL", "OUTER", "JOIN"],
        engines: "standard SQL, PostgreSQL, SQLite and DuckDB",
        replacements: &[(Mysql, "UNION of a LEFT JOIN and a RIGHT JOIN")],
    },
    ForeignConstruct {
        tokens: &["FULL", "JOIN"],
        engines: "standard SQL, PostgreSQL, SQLite and DuckDB",
        replacements: &[(Mysql, "UNION of a LEFT JOIN and a RIGHT JOIN")],
    },
    ForeignConstruct {
        tokens: &["NULLS", "_"],
        engines: "standard SQL, PostgreSQL, SQLite and DuckDB",
        replacements: &[(Mysql, "`ORDER BY value IS NULL, value`")],
    },
    ForeignConstruct {
        tokens: &["FILTER", "("],
        engines: "standard SQL, PostgreSQL, SQLite and DuckDB",
        replacements: &[(Mysql, "`SUM(CASE WHEN … THEN … END)`")],
    },
    ForeignConstruct {
        tokens: &["`"],
        engines: "MySQL and SQLite",
        replacements: &[(Postgres, "names in double quotes"), (Duckdb, "names in double quotes")],
    },
    ForeignConstruct {
        tokens: &["@", "_"],
        engines: "MySQL and SQL Server",
        replacements: &[(Duckdb, "a parameter, as `$name`")],
    },
];

/// Adds an explanation to a finding if the text contains a construct of another engine.
pub(super) fn explain_foreign_construct(found: SqlDiagnostic, text: &str, dialect: Dialect) -> SqlDiagnostic {
    let solid: Vec<&str> = tokenize(text, dialect)
        .into_iter()
        .filter(|(piece, _)| !matches!(piece, SqlTokenKind::Whitespace | SqlTokenKind::Comment | SqlTokenKind::String))
        .map(|(_, range)| &text[range])
        .collect();
    let Some(advice) = constructs_missing_in(dialect).find(|(form, _)| contains_sequence(&solid, form.tokens)) else {
        return found;
    };
    let advice = construct_advice(advice, dialect);
    let advice = match &found.advice {
        Some(first) => format!("{advice} {first}"),
        None => advice,
    };
    found.with_advice(advice)
}

/// Explains an error message for which the statement is not known: the word near the error, or the missing function,
/// belongs to another engine.
pub(crate) fn explain_error(error: &str, dialect: Dialect) -> Option<String> {
    if let Some(name) = missing_function(error)
        && let Some(instead) = equivalent_function(name, dialect)
    {
        return Some(format!("`{name}` belongs to another engine; in {} write `{instead}`.", dialect.display_name()));
    }
    let word = quoted_after(error, "near ")?;
    if word.eq_ignore_ascii_case("limit") && dialect == Sqlite {
        let advice = "`LIMIT` after UPDATE or DELETE is MySQL syntax; in SQLite write `WHERE rowid IN (SELECT rowid FROM … LIMIT n)`.";
        return Some(advice.to_owned());
    }
    let has = |form: &ForeignConstruct| form.tokens.iter().any(|piece| piece.eq_ignore_ascii_case(word));
    let mut forms = constructs_missing_in(dialect).filter(|(form, _)| has(form));
    // A word that several constructs contain does not identify one of them.
    let only = forms.next().filter(|_| word.len() > 2 && forms.next().is_none())?;
    Some(construct_advice(only, dialect))
}

/// Returns the missing function from an error message of SQLite or DuckDB.
fn missing_function(error: &str) -> Option<&str> {
    let behind = |head: &str| Some(error.split_once(head)?.1.split([' ', '(', '\n']).next()?.trim_matches(['"', '`']));
    behind("no such function: ").or_else(|| behind("Function with name "))
}

/// Returns the double-quoted text after `words`.
fn quoted_after<'e>(error: &'e str, words: &str) -> Option<&'e str> {
    error.split_once(words)?.1.strip_prefix('"')?.split('"').next()
}

/// Returns the constructs that a dialect lacks, each with its replacement.
fn constructs_missing_in(dialect: Dialect) -> impl Iterator<Item = (&'static ForeignConstruct, &'static str)> {
    FOREIGN_CONSTRUCTS.iter().filter_map(move |form| {
        let (_, instead) = form.replacements.iter().find(|(of, _)| *of == dialect)?;
        Some((form, *instead))
    })
}

fn construct_advice((form, instead): (&ForeignConstruct, &str), dialect: Dialect) -> String {
    let name = form.tokens.iter().map(|piece| if *piece == "_" { "…" } else { *piece }).collect::<Vec<_>>().join(" ");
    let name = name.replace(": :", "::").replace(" (", "(").replace(" ,", ",");
    format!("`{name}` belongs to {}; in {} write {instead}.", form.engines, dialect.display_name())
}

fn contains_sequence(solid: &[&str], form: &[&str]) -> bool {
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
    fn explains_foreign_constructs() {
        let cases = [
            ("SELECT a FROM t LIMIT 10, 20", Duckdb, "LIMIT count OFFSET start"),
            ("SELECT a FROM t WHERE a ILIKE 'x'", Sqlite, "LIKE"),
            ("SELECT a::date FROM t", Sqlite, "CAST(value AS type)"),
            ("SELECT TOP 5 a FROM t", Sqlite, "LIMIT n"),
            ("SELECT a FROM t ORDER BY a NULLS LAST", Mysql, "IS NULL, value"),
            ("SELECT a::date FROM t", Mysql, "CAST(value AS type)"),
            ("SELECT a FROM t QUALIFY row_number() OVER () = 1", Sqlite, "subquery"),
        ];
        for (text, dialect, expected) in cases {
            let found = SqlDiagnostic::error(StageName::Parse, SqlCode::SyntaxError, "syntax error");
            let advice = explain_foreign_construct(found, text, dialect).advice.unwrap_or_default();
            assert!(advice.contains(expected), "{text}: {advice}");
        }
        let plain = SqlDiagnostic::error(StageName::Parse, SqlCode::SyntaxError, "syntax error");
        assert_eq!(explain_foreign_construct(plain, "SELEC 'ILIKE' FROM t", Sqlite).advice, None);
    }

    #[test]
    fn explains_foreign_constructs_from_error() {
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
            let advice = explain_error(error, dialect);
            assert_eq!(advice.is_some(), expected.is_some(), "{error}: {advice:?}");
            assert!(
                expected.is_none_or(|words| advice.as_ref().is_some_and(|text| text.contains(words))),
                "{error}: {advice:?}"
            );
        }
    }
}
