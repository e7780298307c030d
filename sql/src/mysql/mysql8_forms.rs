//! Replaces constructs of MySQL 8 that MariaDB refuses by equivalent ones:
//!
//! | MySQL 8 | MariaDB |
//! |---|---|
//! | `column->'$.a'`, `column->>'$.a'` | `JSON_EXTRACT(column, '$.a')`, in `JSON_UNQUOTE` |
//! | `REGEXP_LIKE(text, pattern)` | `((text) REGEXP (pattern))` |
//! | `ANY_VALUE(value)` | `MIN(value)` |
//! | an alias of an aggregate in an expression of ORDER BY | the aggregate |

use std::ops::Range;

use proctor_core::sql::Dialect;

use crate::lexer::{self, SqlTokenKind};

/// The words that end the list of ORDER BY.
const ORDER_ENDS: &[&str] = &["except", "for", "intersect", "into", "limit", "lock", "offset", "procedure", "union"];

/// Returns the statement without these constructs; `None` if it has none of them.
pub(super) fn equivalent(sql: &str) -> Option<String> {
    let mut all = lexer::tokenize(sql, Dialect::Mysql);
    all.retain(|(kind, _)| !matches!(kind, SqlTokenKind::Whitespace | SqlTokenKind::Comment));
    let statement = Statement { sql, all };
    let mut edits = statement.call_edits();
    edits.extend(statement.arrow_edits());
    edits.extend(statement.alias_edits());
    edits.sort_by_key(|(range, _)| range.start);
    let overlaps = edits.windows(2).any(|pair| pair[0].0.end > pair[1].0.start);
    if edits.is_empty() || overlaps {
        return None;
    }
    let mut text = sql.to_owned();
    edits.into_iter().rev().for_each(|(range, replacement)| text.replace_range(range, &replacement));
    Some(text)
}

/// A range of the statement and its replacement.
type Edit = (Range<usize>, String);

struct Statement<'s> {
    sql: &'s str,
    /// The words and signs, without comments.
    all: Vec<(SqlTokenKind, Range<usize>)>,
}

impl<'s> Statement<'s> {
    fn text(&self, at: usize) -> &'s str {
        self.all.get(at).map_or("", |(_, range)| &self.sql[range.clone()])
    }

    fn range(&self, at: usize) -> Range<usize> {
        self.all.get(at).map_or(self.sql.len()..self.sql.len(), |(_, range)| range.clone())
    }

    fn is_word(&self, at: usize, word: &str) -> bool {
        matches!(self.all.get(at), Some((SqlTokenKind::Word, _))) && self.text(at).eq_ignore_ascii_case(word)
    }

    fn is_name(&self, at: usize) -> bool {
        matches!(self.all.get(at), Some((SqlTokenKind::Word | SqlTokenKind::Quoted, _)))
    }

    /// Calls `visit` for each token from `from` that is in no bracket opened after it, until the bracket around it
    /// closes or `visit` returns false.
    fn for_each_outer(&self, from: usize, mut visit: impl FnMut(usize) -> bool) {
        let mut depth = 0_usize;
        for at in from..self.all.len() {
            match self.text(at) {
                ")" if depth == 0 => return,
                ")" => depth -= 1,
                _ if depth == 0 && !visit(at) => return,
                _ => {}
            }
            depth += usize::from(self.text(at) == "(");
        }
    }

    fn call_edits(&self) -> Vec<Edit> {
        let mut edits = Vec::new();
        for at in (0..self.all.len()).filter(|at| self.text(at + 1) == "(") {
            if self.is_word(at, "any_value") {
                edits.push((self.range(at), "MIN".to_owned()));
            }
            if !self.is_word(at, "regexp_like") {
                continue;
            }
            let (mut commas, mut last) = (Vec::new(), at + 1);
            self.for_each_outer(at + 2, |at| {
                last = at;
                commas.extend((self.text(at) == ",").then_some(at));
                true
            });
            let close =
                (last + 1..self.all.len()).find(|at| self.text(*at) == ")" && self.depth_between(last, *at) == 0);
            if let ([comma], Some(close)) = (commas.as_slice(), close) {
                edits.push((self.range(at).start..self.range(at + 1).end, "((".to_owned()));
                edits.push((self.range(*comma), ") REGEXP (".to_owned()));
                edits.push((self.range(close), "))".to_owned()));
            }
        }
        edits
    }

    /// Returns the number of brackets that are open between two tokens.
    fn depth_between(&self, from: usize, to: usize) -> usize {
        let count = |sign: &str| (from..to).filter(|at| self.text(*at) == sign).count();
        count("(").saturating_sub(count(")"))
    }

    fn arrow_edits(&self) -> Vec<Edit> {
        let mut edits = Vec::new();
        for at in 1..self.all.len() {
            let is_arrow = self.text(at) == "-" && self.text(at + 1) == ">" && self.is_name(at - 1);
            let unquotes = self.text(at + 2) == ">";
            let path = at + 2 + usize::from(unquotes);
            if !is_arrow || !matches!(self.all.get(path), Some((SqlTokenKind::String, _))) {
                continue;
            }
            let mut start = at - 1;
            while start >= 2 && self.text(start - 1) == "." && self.is_name(start - 2) {
                start -= 2;
            }
            let column = &self.sql[self.range(start).start..self.range(at - 1).end];
            let value = format!("JSON_EXTRACT({column}, {})", self.text(path));
            let value = if unquotes { format!("JSON_UNQUOTE({value})") } else { value };
            edits.push((self.range(start).start..self.range(path).end, value));
        }
        edits
    }

    fn alias_edits(&self) -> Vec<Edit> {
        let mut edits = Vec::new();
        for select in (0..self.all.len()).filter(|at| self.is_word(*at, "select")) {
            let aliases = self.aggregate_aliases(select);
            let mut order = None;
            self.for_each_outer(select + 1, |at| {
                if self.is_word(at, "order") && self.is_word(at + 1, "by") {
                    order = Some(at + 2);
                }
                order.is_none() && !self.is_word(at, "union")
            });
            let Some(order) = order else { continue };
            let mut end = order;
            self.for_each_outer(order, |at| {
                end = at + 1;
                !ORDER_ENDS.iter().any(|word| self.is_word(at, word))
            });
            for at in (order..end).filter(|at| self.is_name(*at)) {
                let is_part = self.text(at - 1) == "." || [".", "("].contains(&self.text(at + 1));
                let name = lexer::unquote(self.text(at));
                if let Some((_, value)) = aliases.iter().find(|(alias, _)| alias.eq_ignore_ascii_case(&name))
                    && !is_part
                {
                    edits.push((self.range(at), format!("({value})")));
                }
            }
        }
        edits
    }

    /// Returns the aliases of the columns of a query that contain calls, and their expressions.
    fn aggregate_aliases(&self, select: usize) -> Vec<(String, &'s str)> {
        let mut ends = Vec::new();
        let mut last = select;
        self.for_each_outer(select + 1, |at| {
            let is_end = self.is_word(at, "from");
            ends.extend((is_end || self.text(at) == ",").then_some(at));
            last = at;
            !is_end
        });
        let mut start = select + 1 + usize::from(self.is_word(select + 1, "distinct"));
        let mut aliases = Vec::new();
        for end in ends {
            let alias = end - 1;
            let value_end = alias - usize::from(self.is_word(alias - 1, "as"));
            let has_call = (start..value_end).any(|at| self.text(at) == "(");
            let is_alias = self.is_name(alias) && (self.is_word(alias - 1, "as") || self.text(alias - 1) == ")");
            if is_alias && has_call {
                let value = &self.sql[self.range(start).start..self.range(value_end - 1).end];
                aliases.push((lexer::unquote(self.text(alias)), value));
            }
            start = end + 1;
        }
        aliases
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn replaces_constructs_of_mysql_8() {
        let cases = [
            (
                "SELECT t.d->'$.a', d->>\"$.b\" FROM t",
                Some("SELECT JSON_EXTRACT(t.d, '$.a'), JSON_UNQUOTE(JSON_EXTRACT(d, \"$.b\")) FROM t"),
            ),
            ("SELECT REGEXP_LIKE(lower(a), '^x') FROM t", Some("SELECT ((lower(a)) REGEXP ( '^x')) FROM t")),
            ("SELECT a, ANY_VALUE(b) FROM t GROUP BY a", Some("SELECT a, MIN(b) FROM t GROUP BY a")),
            (
                "SELECT a, COUNT(*) AS n FROM t GROUP BY a ORDER BY CASE WHEN n IS NULL THEN 1 ELSE 0 END, t.n, n LIMIT 3",
                Some(
                    "SELECT a, COUNT(*) AS n FROM t GROUP BY a ORDER BY CASE WHEN (COUNT(*)) IS NULL THEN 1 ELSE 0 END, t.n, (COUNT(*)) LIMIT 3",
                ),
            ),
            ("SELECT a - b > 'x', 'd->\"$.a\"', REGEXP_LIKE(a, b, 'i') FROM t ORDER BY a", None),
        ];
        for (sql, expected) in cases {
            assert_eq!(equivalent(sql).as_deref(), expected, "{sql}");
        }
    }
}
