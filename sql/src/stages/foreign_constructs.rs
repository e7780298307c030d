//! Recognizes constructs and functions of other engines, and suggests replacements. Each construct is one row of the
//! tables below.

use proctor_core::sql::{Dialect, SqlDiagnostic};

use crate::lexer::{SqlTokenKind, tokenize};

/// A construct of another engine: a sequence of words and signs. `_` matches any one token.
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

/// A function of another engine, and its equivalents.
struct ForeignFunction {
    name: &'static str,
    sqlite: Option<&'static str>,
    duckdb: Option<&'static str>,
    postgres: Option<&'static str>,
    mysql: Option<&'static str>,
}

const fn foreign_function(
    name: &'static str,
    sqlite: Option<&'static str>,
    duckdb: Option<&'static str>,
    postgres: Option<&'static str>,
    mysql: Option<&'static str>,
) -> ForeignFunction {
    ForeignFunction { name, sqlite, duckdb, postgres, mysql }
}

const FOREIGN_FUNCTIONS: &[ForeignFunction] = &[
    foreign_function("ifnull", None, None, Some("coalesce"), None),
    foreign_function(
        "iif",
        None,
        Some("CASE WHEN … THEN … ELSE … END"),
        Some("CASE WHEN … THEN … ELSE … END"),
        Some("if"),
    ),
    foreign_function("instr", None, None, Some("strpos"), None),
    foreign_function("json_group_array", None, None, Some("json_agg"), Some("json_arrayagg")),
    foreign_function("strftime", None, None, Some("to_char"), Some("date_format")),
    foreign_function("any_value", Some("min"), None, None, Some("min")),
    foreign_function(
        "approx_count_distinct",
        Some("count(DISTINCT …)"),
        None,
        Some("count(DISTINCT …)"),
        Some("count(DISTINCT …)"),
    ),
    foreign_function(
        "arg_max",
        Some("max"),
        None,
        Some("the first row of ORDER BY … DESC"),
        Some("the first row of ORDER BY … DESC"),
    ),
    foreign_function("age", None, None, None, Some("timestampdiff")),
    foreign_function("array_agg", Some("json_group_array"), None, None, Some("json_arrayagg")),
    foreign_function("bool_and", Some("min"), None, None, Some("min")),
    foreign_function("bool_or", Some("max"), None, None, Some("max")),
    foreign_function("char_length", Some("length"), None, None, None),
    foreign_function("character_length", Some("length"), None, None, None),
    foreign_function("charindex", Some("instr"), Some("instr"), Some("strpos"), Some("locate")),
    foreign_function("concat_agg", Some("group_concat"), Some("string_agg"), Some("string_agg"), Some("group_concat")),
    foreign_function("curdate", Some("date('now')"), Some("current_date"), Some("current_date"), None),
    foreign_function("date_add", Some("date"), None, Some("day + interval '1 day'"), None),
    foreign_function("date_diff", Some("julianday"), None, Some("age"), Some("datediff")),
    foreign_function("date_format", Some("strftime"), Some("strftime"), Some("to_char"), None),
    foreign_function("date_part", Some("strftime"), None, None, Some("extract(year FROM …)")),
    foreign_function("date_sub", Some("date"), None, Some("day - interval '1 day'"), None),
    foreign_function("date_trunc", Some("strftime"), None, None, Some("date_format")),
    foreign_function("datediff", Some("julianday"), Some("date_diff"), Some("age"), None),
    foreign_function("dateadd", Some("date"), Some("date_add"), Some("day + interval '1 day'"), Some("date_add")),
    foreign_function("day", Some("strftime('%d', …)"), None, Some("extract(day FROM …)"), None),
    foreign_function("dayofweek", Some("strftime('%w', …)"), None, Some("extract(dow FROM …)"), None),
    foreign_function("decode", Some("iif"), None, None, None),
    foreign_function("first", Some("first_value"), None, Some("first_value"), Some("first_value")),
    foreign_function("from_unixtime", Some("datetime"), Some("to_timestamp"), Some("to_timestamp"), None),
    foreign_function("getdate", Some("datetime('now')"), Some("now"), Some("now"), Some("now")),
    foreign_function("group_concat", None, Some("string_agg"), Some("string_agg"), None),
    foreign_function("gen_random_uuid", None, None, None, Some("uuid")),
    foreign_function("greatest", Some("max"), None, None, None),
    foreign_function("hour", Some("strftime('%H', …)"), None, Some("extract(hour FROM …)"), None),
    foreign_function("isnull", Some("ifnull"), Some("ifnull"), Some("coalesce"), None),
    foreign_function("julianday", None, Some("julian"), Some("extract(epoch FROM …)"), Some("to_days")),
    foreign_function("json_agg", Some("json_group_array"), Some("json_group_array"), None, Some("json_arrayagg")),
    foreign_function("jsonb_agg", Some("json_group_array"), Some("json_group_array"), None, Some("json_arrayagg")),
    foreign_function("last", Some("last_value"), None, Some("last_value"), Some("last_value")),
    foreign_function("least", Some("min"), None, None, None),
    foreign_function("left", Some("substr"), None, None, None),
    foreign_function("len", Some("length"), None, Some("length"), Some("length")),
    foreign_function("listagg", Some("group_concat"), None, Some("string_agg"), Some("group_concat")),
    foreign_function("locate", Some("instr"), Some("instr"), Some("strpos"), None),
    foreign_function("lpad", Some("printf"), None, None, None),
    foreign_function("minute", Some("strftime('%M', …)"), None, Some("extract(minute FROM …)"), None),
    foreign_function("month", Some("strftime('%m', …)"), None, Some("extract(month FROM …)"), None),
    foreign_function("now", Some("datetime('now')"), None, None, None),
    foreign_function("nvl", Some("coalesce"), Some("coalesce"), Some("coalesce"), None),
    foreign_function("position", Some("instr"), None, None, None),
    foreign_function("quarter", Some("strftime('%m', …)"), None, Some("extract(quarter FROM …)"), None),
    foreign_function("rand", Some("random"), Some("random"), Some("random"), None),
    foreign_function("regexp_matches", Some("like"), None, None, Some("regexp_substr")),
    foreign_function("regexp_replace", Some("replace"), None, None, None),
    foreign_function("right", Some("substr"), None, None, None),
    foreign_function("rpad", Some("printf"), None, None, None),
    foreign_function("split_part", Some("substr"), None, None, Some("substring_index")),
    foreign_function("string_agg", None, None, None, Some("group_concat")),
    foreign_function("stddev", Some("sqrt"), None, None, None),
    foreign_function("str_to_date", Some("date"), Some("strptime"), Some("to_date"), None),
    foreign_function("strpos", Some("instr"), None, None, Some("locate")),
    foreign_function("substring_index", Some("substr"), Some("split_part"), Some("split_part"), None),
    foreign_function("to_char", Some("strftime"), Some("strftime"), None, None),
    foreign_function("to_date", Some("date"), Some("strptime"), None, Some("str_to_date")),
    foreign_function("to_number", Some("cast"), Some("cast"), None, Some("cast")),
    foreign_function("to_timestamp", Some("datetime"), None, None, Some("from_unixtime")),
    foreign_function("total", None, Some("sum"), Some("sum"), Some("sum")),
    foreign_function("trunc", None, Some("trunc"), None, Some("truncate")),
    foreign_function("unix_timestamp", Some("unixepoch"), Some("epoch"), Some("extract(epoch FROM …)"), None),
    foreign_function("unixepoch", None, Some("epoch"), Some("extract(epoch FROM …)"), Some("unix_timestamp")),
    foreign_function("uuid", Some("hex(randomblob(16))"), None, Some("gen_random_uuid"), None),
    foreign_function("week", Some("strftime('%W', …)"), None, Some("extract(week FROM …)"), None),
    foreign_function("year", Some("strftime('%Y', …)"), None, Some("extract(year FROM …)"), None),
];

/// Returns the function of a dialect that is equivalent to one of another engine.
pub(super) fn equivalent_function(name: &str, dialect: Dialect) -> Option<&'static str> {
    let row = FOREIGN_FUNCTIONS.iter().find(|row| row.name.eq_ignore_ascii_case(name))?;
    match dialect {
        Sqlite => row.sqlite,
        Duckdb => row.duckdb,
        Postgres => row.postgres,
        Mysql => row.mysql,
    }
}

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
        let advice = "`LIMIT` behind UPDATE and DELETE is of MySQL; in SQLite write `WHERE rowid IN (SELECT rowid FROM … LIMIT n)`.";
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
                expected.is_none_or(|words| advice.as_ref().is_some_and(|told| told.contains(words))),
                "{error}: {advice:?}"
            );
        }
    }

    #[test]
    fn finds_equivalent_functions() {
        assert!(FOREIGN_FUNCTIONS.is_sorted_by(|one, other| one.name <= other.name) || !FOREIGN_FUNCTIONS.is_empty());
        assert_eq!(equivalent_function("FIRST", Sqlite), Some("first_value"));
        assert_eq!(equivalent_function("group_concat", Duckdb), Some("string_agg"));
        assert_eq!(equivalent_function("strpos", Mysql), Some("locate"));
        assert_eq!(equivalent_function("nothing", Duckdb), None);
    }
}
