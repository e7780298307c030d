//! Finds the columns that a statement reads although the server does not check the privileges on them when it prepares
//! the statement. MariaDB does not check
//!
//! - the common columns of `JOIN … USING` and `NATURAL JOIN`;
//! - the columns of a table whose rows `DELETE` with several tables removes, nor the order in which `DELETE` with one
//!   table removes rows;
//! - the new values of `UPDATE` with several tables;
//! - the values of `RETURNING`, and the new values after `ON DUPLICATE KEY UPDATE`, if the new rows come from a query.
//!
//! `UPDATE`, `DELETE` and `RETURNING` have an equivalent query, which the server checks. The other columns are found by
//! their names.

use std::ops::Range;

use super::catalog_reader::DatabaseContent;
use super::privilege_probe::{ColumnPrivilege, StatementNeeds};
use super::statement_tokens::Tokens;

/// Words before the tables of UPDATE or DELETE.
const MODIFIERS: &[&str] = &["low_priority", "quick", "ignore"];
/// Words that begin a query or another source of rows that defines its own columns.
const SOURCES: &[&str] = &["json_table", "select", "table", "values", "with"];

/// Returns a query that reads what a change of rows reads, if the server does not check the change itself.
pub(super) fn reading_equivalent(sql: &str) -> Option<String> {
    let tokens = Tokens::new(sql);
    let first = (1..tokens.all.len()).find(|at| !tokens.is_any(*at, MODIFIERS))?;
    if tokens.is_word(0, "delete") {
        tokens.equivalent_of_delete(first)
    } else if tokens.is_word(0, "update") {
        tokens.equivalent_of_update(first)
    } else if tokens.is_any(0, &["insert", "replace"]) {
        tokens.equivalent_of_returning()
    } else {
        None
    }
}

/// Adds the columns that the server does not check to the needs of a statement.
pub(super) fn add_to(needs: &mut StatementNeeds, sql: &str, content: &DatabaseContent) {
    let tokens = Tokens::new(sql);
    let mut wanted: Vec<(Option<String>, WantedColumn)> = tokens.joined_columns();
    wanted.extend(tokens.duplicate_columns());
    let is_natural = (0..tokens.all.len()).any(|at| tokens.is_word(at, "natural"));
    if wanted.is_empty() && !is_natural {
        return;
    }
    let used: Vec<(String, Vec<String>)> = needs
        .tables
        .keys()
        .filter_map(|name| content.table(name))
        .map(|table| (table.name.clone(), table.columns.iter().map(|column| column.name.clone()).collect()))
        .collect();
    for (table, columns) in &used {
        let is_read = |column: &String| {
            let is_named = wanted.iter().any(|(of, wanted)| {
                let is_of_table = of.as_ref().is_none_or(|of| of == table || !used.iter().any(|(name, _)| name == of));
                is_of_table && wanted.matches(column)
            });
            is_named || (is_natural && tokens.may_be_common(table, column, &used))
        };
        let read: Vec<String> = columns.iter().filter(|column| is_read(column)).cloned().collect();
        if read.is_empty() {
            continue;
        }
        let of_table = needs.tables.entry(table.clone()).or_default();
        of_table.columns.entry(ColumnPrivilege::Select).or_default().named.extend(read);
    }
}

/// A column that a statement names.
enum WantedColumn {
    /// The column with this name.
    Named(String),
    /// Any column: its name is unknown, or has letters outside of ASCII, which the server folds by special rules.
    Any,
}

impl WantedColumn {
    fn new(name: String) -> Self {
        if name.is_ascii() { Self::Named(name) } else { Self::Any }
    }

    fn matches(&self, column: &str) -> bool {
        match self {
            Self::Named(name) => name.eq_ignore_ascii_case(column),
            Self::Any => true,
        }
    }
}

impl Tokens<'_> {
    /// Returns the text of some tokens.
    fn text_of(&self, range: Range<usize>) -> &str {
        match (self.all.get(range.start), range.end.checked_sub(1).and_then(|last| self.all.get(last))) {
            (Some((_, first)), Some((_, last))) if first.start < last.end => &self.sql[first.start..last.end],
            _ => "",
        }
    }

    /// Returns the index of the first word of a list that is not in brackets, from a token on.
    fn find_outside(&self, from: usize, words: &[&str]) -> Option<usize> {
        let mut depth = 0_usize;
        (from..self.all.len()).find(|at| {
            match self.text(*at) {
                "(" => depth += 1,
                ")" => depth = depth.saturating_sub(1),
                _ => {}
            }
            depth == 0 && self.is_any(*at, words) && (*at == 0 || self.text(*at - 1) != ".")
        })
    }

    /// Returns the query of a DELETE whose tables begin at a token: of one with several tables, or with an order.
    fn equivalent_of_delete(&self, first: usize) -> Option<String> {
        let end = self.all.len();
        let from = self.find_outside(first, &["from"])?;
        let is_listed = |at: &usize| self.is_name(*at) || matches!(self.text(*at), "," | "." | "*");
        let using = (from + 1..end).take_while(is_listed).find(|at| self.is_word(*at, "using"));
        let tables = match using {
            Some(using) => using + 1,
            None if from > first => from + 1,
            // A DELETE with one table.
            None => {
                self.find_outside(first, &["order"])?;
                let end = self.find_outside(first, &["returning"]).unwrap_or(end);
                return Some(format!("SELECT 1 FROM {}", self.text_of(from + 1..end)));
            }
        };
        Some(format!("SELECT 1 FROM {}", self.text_of(tables..end)))
    }

    /// Returns the query of an UPDATE with several tables, which begin at a token: `a = b` becomes a comparison.
    fn equivalent_of_update(&self, first: usize) -> Option<String> {
        let set = self.find_outside(first, &["set"])?;
        let has_join =
            (first..set).any(|at| self.is_any(at, &["join", "straight_join"]) || matches!(self.text(at), "," | "("));
        if !has_join {
            return None;
        }
        let end = self.find_outside(set + 1, &["where", "order", "limit"]).unwrap_or(self.all.len());
        let value = |at: usize| {
            let is_default = self.is_word(at, "default") && self.text(at + 1) != "(";
            if is_default { "NULL" } else { self.text(at) }
        };
        let values: Vec<&str> = (set + 1..end).map(value).collect();
        let (tables, rest) = (self.text_of(first..set), self.text_of(end..self.all.len()));
        Some(format!("SELECT {} FROM {tables} {rest}", values.join(" ")))
    }

    /// Returns the query of the values that an INSERT returns whose new rows come from a query.
    fn equivalent_of_returning(&self) -> Option<String> {
        let returning = self.find_outside(1, &["returning"])?;
        if !self.has_query_before(returning) {
            return None;
        }
        Some(format!("SELECT {} FROM {}", self.text_of(returning + 1..self.all.len()), self.target()?.1))
    }

    /// Returns the name of the table to which an INSERT adds rows, and its text.
    fn target(&self) -> Option<(String, &str)> {
        let modifiers = [MODIFIERS, &["delayed", "high_priority", "into"]].concat();
        let first = (1..self.all.len()).find(|at| !self.is_any(*at, &modifiers))?;
        let (name, last) = self.dotted_name(first)?;
        Some((name, self.text_of(first..last + 1)))
    }

    /// Reports whether the new rows of an INSERT come from a query. `end` is the token after them.
    fn has_query_before(&self, end: usize) -> bool {
        (1..end).any(|at| self.is_any(at, SOURCES) && !self.is_any(at, &["values"]))
    }

    /// Returns the columns of each `USING (…)`.
    fn joined_columns(&self) -> Vec<(Option<String>, WantedColumn)> {
        let starts = (0..self.all.len()).filter(|at| self.is_word(*at, "using") && self.text(at + 1) == "(");
        let names = starts.flat_map(|at| {
            let list = (at + 2..self.all.len()).take_while(|at| self.text(*at) != ")");
            list.filter(|at| self.is_name(*at)).map(|at| (None, WantedColumn::new(self.name(at))))
        });
        names.collect()
    }

    /// Returns the columns that new values after `ON DUPLICATE KEY UPDATE` may read, each with its qualifier, if the new
    /// rows come from a query.
    fn duplicate_columns(&self) -> Vec<(Option<String>, WantedColumn)> {
        let Some(start) = (0..self.all.len())
            .find(|at| self.is_word(*at, "duplicate") && self.is_word(at + 1, "key") && self.is_word(at + 2, "update"))
        else {
            return Vec::new();
        };
        if !self.has_query_before(start) {
            return Vec::new();
        }
        let end = self.find_outside(start, &["returning"]).unwrap_or(self.all.len());
        if (start..end).any(|at| self.is_word(at, "select")) {
            return vec![(None, WantedColumn::Any)];
        }
        let target = self.target().map(|(name, _)| name);
        let named =
            (start + 3..end).filter(|at| self.is_name(*at) && !matches!(self.text(at + 1), "." | "(")).map(|at| {
                let before = |back: usize| at.checked_sub(back).map_or("", |before| self.text(before));
                // `VALUES(a)`, and the `a` of `a = 1`.
                let is_of_value = before(1) == "(" && at >= 2 && self.is_any(at - 2, &["value", "values"]);
                let is_assigned = self.text(at + 1) == "=" && (at == start + 3 || before(1) == ",");
                let qualifier = match before(1) {
                    "." => at.checked_sub(2).map(|qualifier| self.name(qualifier)),
                    _ if is_of_value || is_assigned => target.clone(),
                    _ => None,
                };
                (qualifier, WantedColumn::new(self.name(at)))
            });
        named.collect()
    }

    /// Reports whether a natural join may compare a column of a used table.
    fn may_be_common(&self, table: &str, column: &str, used: &[(String, Vec<String>)]) -> bool {
        let sources = (0..self.all.len()).filter(|at| self.is_any(*at, SOURCES)).count();
        // The first word of a query is in this list; the first word of any other statement is not.
        let has_unknown_columns = sources > usize::from(self.is_any(self.first_after_brackets(0), SOURCES));
        let is_elsewhere = |(other, columns): &(String, Vec<String>)| {
            other != table && columns.iter().any(|name| name.eq_ignore_ascii_case(column))
        };
        let is_table = |at: &usize| self.is_name(*at) && self.name(*at) == table && self.text(at + 1) != ".";
        has_unknown_columns || used.iter().any(is_elsewhere) || (0..self.all.len()).filter(is_table).count() > 1
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn finds_equivalent_queries() {
        let cases = [
            (
                "DELETE x FROM a AS x JOIN b ON x.i = b.i WHERE x.j = 1",
                "SELECT 1 FROM a AS x JOIN b ON x.i = b.i WHERE x.j = 1",
            ),
            ("DELETE LOW_PRIORITY a.*, b FROM a, b WHERE a.i = b.i", "SELECT 1 FROM a, b WHERE a.i = b.i"),
            ("DELETE FROM x USING a AS x JOIN b USING (i)", "SELECT 1 FROM a AS x JOIN b USING (i)"),
            (
                "DELETE FROM a WHERE i IN (SELECT 1 ORDER BY 1) ORDER BY j LIMIT 1 RETURNING i",
                "SELECT 1 FROM a WHERE i IN (SELECT 1 ORDER BY 1) ORDER BY j LIMIT 1",
            ),
            (
                "UPDATE IGNORE a AS x, b SET x.i = b.j, x.j = DEFAULT, x.k = DEFAULT(k) WHERE x.i = 1",
                "SELECT x . i = b . j , x . j = NULL , x . k = DEFAULT ( k ) FROM a AS x, b WHERE x.i = 1",
            ),
            ("REPLACE INTO `a` (i) SELECT 1 RETURNING i, (SELECT 1)", "SELECT i, (SELECT 1) FROM `a`"),
            ("INSERT a SELECT 1 FROM b RETURNING *", "SELECT * FROM a"),
            ("UPDATE a JOIN b USING (i) SET a.j = 'x y'", "SELECT a . j = 'x y' FROM a JOIN b USING (i) "),
        ];
        for (sql, expected) in cases {
            assert_eq!(reading_equivalent(sql).as_deref(), Some(expected), "{sql}");
        }
        for sql in [
            "DELETE FROM a WHERE i = (SELECT 1 FROM b ORDER BY 1 LIMIT 1)",
            "UPDATE a SET i = 1 WHERE j = 1",
            "SELECT 1 FROM a",
            "INSERT INTO a SELECT 1",
            "INSERT INTO a VALUES (1) RETURNING i",
        ] {
            assert_eq!(reading_equivalent(sql), None, "{sql}");
        }
    }

    #[test]
    fn finds_unchecked_columns() {
        let content = content();
        let found = |sql: &str| {
            let mut needs = StatementNeeds::default();
            for table in ["a", "b"] {
                needs.tables.entry(table.to_owned()).or_default();
            }
            add_to(&mut needs, sql, &content);
            let tables = needs.tables.into_iter();
            let named = tables.flat_map(|(table, needs)| {
                let columns = needs.columns.into_values().flat_map(|columns| columns.named);
                columns.map(move |column| format!("{table}.{column}")).collect::<Vec<_>>()
            });
            named.collect::<Vec<_>>().join(" ")
        };
        let cases = [
            ("SELECT 1 FROM a JOIN b USING (`ID`)", "a.id b.id"),
            ("SELECT 1 FROM (SELECT 1 AS ssn) AS d JOIN b USING (ssn)", "b.ssn"),
            ("SELECT 1 FROM a JOIN b USING (ıd)", "a.id a.name b.id b.ssn"),
            ("SELECT 1 FROM a NATURAL JOIN b WHERE a.id = 1", "a.id b.id"),
            ("SELECT 1 FROM b AS x NATURAL JOIN b", "a.id b.id b.ssn"),
            ("SELECT 1 FROM a NATURAL JOIN (SELECT 'ssn') AS d", "a.id a.name b.id b.ssn"),
            ("SELECT 1 FROM a JOIN b ON a.id = b.id", ""),
            ("INSERT INTO a (id) SELECT id FROM b AS x ON DUPLICATE KEY UPDATE name = x.ssn", "a.name b.ssn"),
            (
                "INSERT INTO a (id) SELECT id FROM b ON DUPLICATE KEY UPDATE id = VALUES(id) + length(b.ssn)",
                "a.id b.ssn",
            ),
            ("INSERT INTO a (id) SELECT 1 ON DUPLICATE KEY UPDATE id = (SELECT 1 FROM b)", "a.id a.name b.id b.ssn"),
            ("INSERT INTO a (id) SELECT 1 ON DUPLICATE KEY UPDATE id = 1 RETURNING name", "a.id"),
            ("INSERT INTO a (id) VALUES (1) ON DUPLICATE KEY UPDATE id = name", ""),
        ];
        for (sql, expected) in cases {
            assert_eq!(found(sql), expected, "{sql}");
        }
    }

    /// Returns a database with the tables `a (id, name)` and `b (id, ssn)`.
    fn content() -> DatabaseContent {
        use crate::catalog::{CatalogColumn, CatalogTable};
        let table = |name: &str, columns: [&str; 2]| CatalogTable {
            name: name.to_owned(),
            columns: columns
                .map(|name| CatalogColumn {
                    name: name.to_owned(),
                    declared_type: String::new(),
                    is_not_null: false,
                    primary_key_position: 0,
                    is_generated: false,
                })
                .into(),
            ..CatalogTable::default()
        };
        let mut content = DatabaseContent::default();
        content.catalog.tables = vec![table("a", ["id", "name"]), table("b", ["id", "ssn"])];
        content
    }
}
