//! Handles statements for which DuckDB makes no plan: EXPLAIN, whose inner statement is examined instead; PRAGMA; and
//! PIVOT without values, for which DuckDB first looks the values up.

use std::ops::Range;

use proctor_core::sql::Dialect;

use crate::lexer::{self, SqlTokenKind};

/// The inner statement of an EXPLAIN.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct ExplainedStatement {
    /// The byte offset at which the inner statement begins.
    pub(super) offset: usize,
    /// True if the inner statement runs. Any option other than a format counts as one that runs it.
    pub(super) is_executed: bool,
}

/// Finds the statement after `EXPLAIN`. `is_statement` reports whether a text is a statement.
pub(super) fn explained_statement(sql: &str, is_statement: impl Fn(&str) -> bool) -> Option<ExplainedStatement> {
    /// The maximum number of tokens that are searched for options.
    const MAX_OPTION_TOKENS: usize = 16;
    let solid = significant_tokens(sql);
    let mut rest = solid.iter();
    rest.next().filter(|(_, range)| sql[range.clone()].eq_ignore_ascii_case("explain"))?;
    let mut options: Vec<&str> = Vec::new();
    for (_, range) in rest.take(MAX_OPTION_TOKENS) {
        let (head, statement) = sql.split_at(range.start);
        let is_first_word = options.last().is_none_or(|last| *last != "(");
        if is_first_word && is_statement(statement) {
            return Some(ExplainedStatement { offset: head.len(), is_executed: !is_format_only(&options) });
        }
        options.push(&sql[range.clone()]);
    }
    None
}

fn is_format_only(options: &[&str]) -> bool {
    match options {
        [] => true,
        ["(", format, _, ")"] => format.eq_ignore_ascii_case("format"),
        _ => false,
    }
}

/// Returns the name of a pragma.
pub(super) fn pragma_name(sql: &str) -> Option<&str> {
    let solid = significant_tokens(sql);
    let mut words = solid.iter().map(|(_, range)| &sql[range.clone()]);
    words.next().filter(|word| word.eq_ignore_ascii_case("pragma"))?;
    words.next()
}

/// Returns the first argument of a pragma, as a name.
pub(super) fn pragma_argument(sql: &str) -> Option<String> {
    let solid = significant_tokens(sql);
    let argument = solid.get(3).filter(|_| solid.get(2).is_some_and(|(_, range)| &sql[range.clone()] == "("))?;
    Some(lexer::unquote(&sql[argument.1.clone()]))
}

/// Returns the query of a statement that creates a view.
pub(super) fn view_query(sql: &str) -> Option<&str> {
    let solid = significant_tokens(sql);
    let at = find_outside_parentheses(&solid, sql, 0, |at| {
        solid
            .get(at)
            .is_some_and(|(piece, range)| *piece == SqlTokenKind::Word && sql[range.clone()].eq_ignore_ascii_case("as"))
    })?;
    solid.get(at + 1).map(|(_, range)| &sql[range.start..])
}

/// Reports whether a text has a parameter.
pub(super) fn has_parameters(sql: &str) -> bool {
    !parameter_ranges(sql).is_empty()
}

/// Returns the text with each parameter replaced by `value`; `None` if it has no parameters.
pub(super) fn replace_parameters(sql: &str, value: &str) -> Option<String> {
    let ranges = parameter_ranges(sql);
    let mut with = sql.to_owned();
    ranges.iter().rev().for_each(|place| with.replace_range(place.clone(), value));
    (!ranges.is_empty()).then_some(with)
}

/// Returns the ranges of parameters: `?`, `?1`, `$1`, `$name`.
fn parameter_ranges(sql: &str) -> Vec<Range<usize>> {
    let pieces = lexer::tokenize(sql, Dialect::Duckdb);
    let mut ranges = Vec::new();
    for (at, (piece, range)) in pieces.iter().enumerate() {
        let sign = &sql[range.clone()];
        if *piece != SqlTokenKind::Symbol || !matches!(sign, "?" | "$") {
            continue;
        }
        let next = pieces.get(at + 1).filter(|(piece, _)| match sign {
            "?" => *piece == SqlTokenKind::Number,
            _ => matches!(piece, SqlTokenKind::Number | SqlTokenKind::Word),
        });
        match next {
            Some((_, next)) => ranges.push(range.start..next.end),
            None if sign == "?" => ranges.push(range.clone()),
            None => {}
        }
    }
    ranges
}

/// The default value of a column that is added to a table.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct AddedColumn<'a> {
    /// The table, as written.
    pub(super) table: &'a str,
    /// The text from DEFAULT to the end of the statement.
    pub(super) default: &'a str,
}

/// Parses `ALTER TABLE … ADD COLUMN … DEFAULT …`.
pub(super) fn added_column(sql: &str) -> Option<AddedColumn<'_>> {
    let solid = significant_tokens(sql);
    let is =
        |at: usize, word: &str| solid.get(at).is_some_and(|(_, range)| sql[range.clone()].eq_ignore_ascii_case(word));
    let mut at = if is(0, "alter") && is(1, "table") { 2 } else { return None };
    if is(at, "if") && is(at + 1, "exists") {
        at += 2;
    }
    let add = find_outside_parentheses(&solid, sql, at, |at| is(at, "add"))?;
    let default = find_outside_parentheses(&solid, sql, add, |at| is(at, "default"))?;
    let table = solid.get(at)?.1.start..solid.get(add.checked_sub(1)?)?.1.end;
    let rest = solid.get(default + 1)?.1.start..solid.last()?.1.end;
    Some(AddedColumn { table: sql.get(table)?, default: &sql[rest] })
}

/// Returns the text with a value for each column that a PIVOT uses without values, so that all names stay in the text.
/// Returns `None` if the text has no such PIVOT.
pub(super) fn add_pivot_values(sql: &str) -> Option<String> {
    const END_KEYWORDS: &[&str] = &["using", "group", "order", "limit", "having", "union", "intersect", "except"];
    let solid = significant_tokens(sql);
    let word = |at: usize| solid.get(at).map_or("", |(_, range)| &sql[range.clone()]);
    let is = |at: usize, words: &[&str]| words.iter().any(|one| word(at).eq_ignore_ascii_case(one));
    let mut places: Vec<usize> = Vec::new();
    let mut pivots = (0..solid.len()).filter(|at| is(*at, &["pivot", "pivot_wider"])).peekable();
    pivots.peek()?;
    for pivot in pivots {
        let Some(on) = find_outside_parentheses(&solid, sql, pivot + 1, |at| is(at, &["on"])) else { continue };
        let mut has_values = false;
        let mut at = on + 1;
        let mut depth = 0_usize;
        while at < solid.len() {
            match word(at) {
                "(" | "[" | "{" => depth += 1,
                ")" | "]" | "}" if depth == 0 => break,
                ")" | "]" | "}" => depth -= 1,
                "," if depth == 0 => {
                    places.extend((!has_values).then(|| solid[at - 1].1.end));
                    has_values = false;
                }
                _ if depth == 0 && is(at, END_KEYWORDS) => break,
                _ if depth == 0 && is(at, &["in"]) => has_values = true,
                _ => {}
            }
            at += 1;
        }
        places.extend((!has_values).then(|| solid[at - 1].1.end));
    }
    places.sort_unstable();
    let mut with = sql.to_owned();
    places.iter().rev().for_each(|place| with.insert_str(*place, " IN ('x')"));
    (!places.is_empty()).then_some(with)
}

/// Returns the index of the first token from `offset` on that satisfies `fits` and is not in parentheses.
fn find_outside_parentheses(
    solid: &[(SqlTokenKind, Range<usize>)],
    sql: &str,
    from: usize,
    fits: impl Fn(usize) -> bool,
) -> Option<usize> {
    let mut depth = 0_usize;
    for (at, (_, range)) in solid.iter().enumerate().skip(from) {
        match &sql[range.clone()] {
            "(" => depth += 1,
            ")" if depth == 0 => return None,
            ")" => depth -= 1,
            _ if depth == 0 && fits(at) => return Some(at),
            _ => {}
        }
    }
    None
}

fn significant_tokens(sql: &str) -> Vec<(SqlTokenKind, Range<usize>)> {
    let mut pieces = lexer::tokenize(sql, Dialect::Duckdb);
    pieces.retain(|(piece, _)| {
        !matches!(piece, SqlTokenKind::Whitespace | SqlTokenKind::Comment | SqlTokenKind::Semicolon)
    });
    pieces
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn finds_explained_statement() {
        let is_statement = |text: &str| ["SELECT 1", "DELETE FROM t"].contains(&text);
        let cases = [
            ("EXPLAIN SELECT 1", Some((8, false))),
            ("explain /* x */ SELECT 1", Some((16, false))),
            ("EXPLAIN ANALYZE DELETE FROM t", Some((16, true))),
            ("EXPLAIN (FORMAT json) SELECT 1", Some((22, false))),
            ("EXPLAIN (ANALYZE, FORMAT json) SELECT 1", Some((31, true))),
            ("EXPLAIN (ANALYZE) DELETE FROM t", Some((18, true))),
            ("EXPLAIN VERBOSE SELECT 1", Some((16, true))),
            ("EXPLAIN nothing", None),
            ("SELECT 1", None),
        ];
        for (sql, expected) in cases {
            let found = explained_statement(sql, is_statement).map(|found| (found.offset, found.is_executed));
            assert_eq!(found, expected, "{sql}");
        }
    }

    #[test]
    fn adds_values_to_pivot() {
        let cases = [
            ("PIVOT t ON a USING sum(b)", Some("PIVOT t ON a IN ('x') USING sum(b)")),
            ("PIVOT t ON lower(a), b GROUP BY c", Some("PIVOT t ON lower(a) IN ('x'), b IN ('x') GROUP BY c")),
            ("PIVOT t ON a IN (1), b", Some("PIVOT t ON a IN (1), b IN ('x')")),
            (
                "PIVOT (SELECT * FROM x JOIN y ON x.a = y.a) ON a",
                Some("PIVOT (SELECT * FROM x JOIN y ON x.a = y.a) ON a IN ('x')"),
            ),
            ("WITH p AS (PIVOT t ON a) SELECT * FROM p", Some("WITH p AS (PIVOT t ON a IN ('x')) SELECT * FROM p")),
            ("PIVOT t ON a IN (1)", None),
            ("SELECT 1", None),
        ];
        for (sql, expected) in cases {
            assert_eq!(add_pivot_values(sql).as_deref(), expected, "{sql}");
        }
    }

    #[test]
    fn parses_added_column_with_default() {
        let added = |sql| added_column(sql).map(|AddedColumn { table, default }| (table, default));
        let sql = "ALTER TABLE old.\"t\" ADD COLUMN IF NOT EXISTS c VARCHAR DEFAULT (SELECT 'default') -- x";
        assert_eq!(added(sql), Some(("old.\"t\"", "(SELECT 'default')")));
        assert_eq!(added("alter table if exists t add c int default f(1) + 2"), Some(("t", "f(1) + 2")));
        assert_eq!(added("ALTER TABLE t ADD COLUMN c INT"), None);
        assert_eq!(added("ALTER TABLE t ALTER c SET DEFAULT 1"), None);
    }

    #[test]
    fn replaces_parameters_by_values() {
        let cases = [
            ("SELECT ?+1", Some("SELECT NULL+1")),
            ("SELECT $1, $name, ?2, '?', \"$1\" -- ?", Some("SELECT NULL, NULL, NULL, '?', \"$1\" -- ?")),
            ("SELECT $$ ? $$", None),
            ("SELECT 1", None),
        ];
        for (sql, expected) in cases {
            assert_eq!(replace_parameters(sql, "NULL").as_deref(), expected, "{sql}");
        }
    }

    #[test]
    fn finds_the_body_of_a_view() {
        let sql = "CREATE VIEW v(\"as\") AS WITH x AS (SELECT 1) SELECT * FROM x";
        assert_eq!(view_query(sql), Some("WITH x AS (SELECT 1) SELECT * FROM x"));
        assert_eq!(view_query("CREATE TABLE t (a INT)"), None);
    }

    #[test]
    fn parses_pragma_name() {
        assert_eq!(pragma_name("PRAGMA table_info('t')"), Some("table_info"));
        assert_eq!(pragma_name("pragma /* */ threads = 4"), Some("threads"));
        assert_eq!(pragma_name("SELECT 1"), None);
    }
}
