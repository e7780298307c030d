//! Finds the tables that a text names in FROM, JOIN, INTO and UPDATE, with their aliases. It reads tokens, since a
//! statement that does not bind or has a syntax error may have no tree.

use std::ops::Range;

use proctor_core::sql::Dialect;

use crate::lexer::{self, SqlTokenKind};

/// A table as the text names it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct TableReference {
    /// The name without its schema and its quotes.
    pub(super) name: String,
    /// The range of the name with its schema.
    pub(super) name_range: Range<usize>,
    /// The alias, without quotes.
    pub(super) alias: Option<String>,
    /// The range of the name and the alias.
    pub(super) full_range: Range<usize>,
    /// True if the statement reads its rows; otherwise the table is the target of a write.
    pub(super) is_read: bool,
}

impl TableReference {
    /// Returns the name that qualifies columns of the table.
    pub(super) fn qualifier(&self) -> &str {
        self.alias.as_deref().unwrap_or(&self.name)
    }
}

/// Keywords that may follow a table and are not aliases.
const NON_ALIAS_KEYWORDS: &[&str] = &[
    "anti",
    "asof",
    "cross",
    "default",
    "except",
    "fetch",
    "for",
    "full",
    "group",
    "having",
    "indexed",
    "inner",
    "intersect",
    "join",
    "left",
    "limit",
    "natural",
    "not",
    "offset",
    "on",
    "order",
    "outer",
    "pivot",
    "positional",
    "qualify",
    "returning",
    "right",
    "select",
    "semi",
    "set",
    "tablesample",
    "union",
    "unpivot",
    "using",
    "values",
    "where",
    "window",
    "with",
];
/// Keywords that end a list of tables.
const LIST_END_KEYWORDS: &[&str] = &[
    "where",
    "group",
    "having",
    "order",
    "limit",
    "set",
    "values",
    "union",
    "except",
    "intersect",
    "window",
    "select",
];

/// Returns every table that a text names, in order.
pub(super) fn table_references(sql: &str, dialect: Dialect) -> Vec<TableReference> {
    let solid: Vec<(SqlTokenKind, Range<usize>)> = lexer::tokenize(sql, dialect)
        .into_iter()
        .filter(|(piece, _)| !matches!(piece, SqlTokenKind::Whitespace | SqlTokenKind::Comment))
        .collect();
    let word = |at: usize| match solid.get(at) {
        Some((SqlTokenKind::Word, range)) => Some(sql[range.clone()].to_ascii_lowercase()),
        _ => None,
    };
    let sign = |at: usize| solid.get(at).map_or("", |(_, range)| &sql[range.clone()]);
    let mut found = Vec::new();
    // Records for each open parenthesis whether a list of tables is open.
    let mut lists = vec![false];
    let mut at = 0;
    while at < solid.len() {
        let is_first = match word(at).as_deref() {
            Some("from" | "join") => {
                set_last(&mut lists, true);
                true
            }
            Some("into" | "update") => true,
            Some(word) if LIST_END_KEYWORDS.contains(&word) => {
                set_last(&mut lists, false);
                false
            }
            Some(_) => false,
            None => {
                match sign(at) {
                    "(" => lists.push(false),
                    ")" if lists.len() > 1 => drop(lists.pop()),
                    _ => {}
                }
                sign(at) == "," && lists.last() == Some(&true)
            }
        };
        let is_read = !matches!(word(at).as_deref(), Some("into" | "update"));
        at += 1;
        if !is_first {
            continue;
        }
        while matches!(word(at).as_deref(), Some("only" | "or" | "replace" | "ignore" | "lateral")) {
            at += 1;
        }
        if let Some((relation, next)) = read_table_reference(sql, &solid, at, is_read) {
            found.push(relation);
            at = next;
        }
    }
    found
}

fn set_last(lists: &mut [bool], value: bool) {
    if let Some(last) = lists.last_mut() {
        *last = value;
    }
}

/// Reads a table at a token. Returns it with the index of the next token.
fn read_table_reference(
    sql: &str,
    solid: &[(SqlTokenKind, Range<usize>)],
    at: usize,
    is_read: bool,
) -> Option<(TableReference, usize)> {
    let text_at = |at: usize| solid.get(at).map_or("", |(_, range)| &sql[range.clone()]);
    let is_name = |at: usize| matches!(solid.get(at), Some((SqlTokenKind::Word | SqlTokenKind::Quoted, _)));
    if !is_name(at) || text_at(at).eq_ignore_ascii_case("select") {
        return None;
    }
    let mut last = at;
    while text_at(last + 1) == "." && is_name(last + 2) {
        last += 2;
    }
    // A function that returns a table is not a table.
    if is_read && text_at(last + 1) == "(" {
        return None;
    }
    let place = solid[at].1.start..solid[last].1.end;
    let name = lexer::unquote(text_at(last));
    let has_as = text_at(last + 1).eq_ignore_ascii_case("as");
    let alias_at = last + 1 + usize::from(has_as);
    let is_alias = is_name(alias_at)
        && !(solid[alias_at].0 == SqlTokenKind::Word
            && NON_ALIAS_KEYWORDS.contains(&text_at(alias_at).to_ascii_lowercase().as_str()));
    let alias = is_alias.then(|| lexer::unquote(text_at(alias_at)));
    let next = if is_alias { alias_at + 1 } else { last + 1 };
    let whole = place.start..solid[next - 1].1.end;
    Some((TableReference { name, name_range: place, alias, full_range: whole, is_read }, next))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn finds_tables_with_aliases() {
        type ExpectedReference<'a> = (&'a str, Option<&'a str>, bool);
        let cases: &[(&str, &[ExpectedReference<'_>])] = &[
            ("SELECT a FROM t", &[("t", None, true)]),
            (
                "SELECT a, b FROM main.\"T x\" AS c, u d WHERE a IN (1, 2)",
                &[("T x", Some("c"), true), ("u", Some("d"), true)],
            ),
            (
                "SELECT 1 FROM a LEFT JOIN b USING (id) JOIN c x ON x.id = a.id",
                &[("a", None, true), ("b", None, true), ("c", Some("x"), true)],
            ),
            ("SELECT f(a, b) FROM (SELECT x, y FROM t u) v, w", &[("t", Some("u"), true), ("w", None, true)]),
            ("INSERT INTO t (a, b) SELECT a, b FROM u", &[("t", None, false), ("u", None, true)]),
            ("UPDATE t SET a = 1, b = 2 WHERE c", &[("t", None, false)]),
            ("SELECT * FROM json_each('[]') j, t", &[("t", None, true)]),
        ];
        for (sql, expected) in cases {
            let found = table_references(sql, Dialect::Sqlite);
            let found: Vec<_> = found.iter().map(|it| (it.name.as_str(), it.alias.as_deref(), it.is_read)).collect();
            assert_eq!(found, *expected, "{sql}");
        }
        let found = table_references("SELECT 1 FROM main.t AS c", Dialect::Sqlite);
        assert_eq!((found[0].name_range.clone(), found[0].full_range.clone()), (14..20, 14..25));
    }
}
