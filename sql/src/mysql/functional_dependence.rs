//! Decides whether a grouped query may return a column that it is not grouped by. MySQL 8 accepts a column that the
//! grouped columns determine: a column of a table with a key among them. MariaDB does not know this rule.

use std::ops::Range;

use super::catalog_reader::{DatabaseContent, quote_identifier};
use super::statement_tokens::Tokens;
use crate::lexer;

/// The words that end the list of grouped columns.
const LIST_ENDS: &[&str] =
    &["except", "for", "having", "intersect", "into", "limit", "lock", "order", "procedure", "union", "window", "with"];

/// Returns the statement grouped by one more column, if the grouped columns determine it. `column` is the name that the
/// server reports: the table or its alias, and the column.
pub(super) fn grouped_by(sql: &str, column: &str, content: &DatabaseContent) -> Option<String> {
    let tokens = Tokens::new(sql);
    let list = tokens.grouped_list()?;
    let (qualifier, name) = column.rsplit_once('.')?;
    let table = content.table(&tokens.table_of(qualifier, content)?)?;
    let items = tokens.names_in(list.clone());
    let is_grouped = |key: &String| {
        let of_table = (Some(qualifier.to_owned()), key.clone());
        items.iter().any(|item| is_same(item, &of_table) || tokens.are_compared(item, &of_table))
    };
    let keys = content.keys.get(&table.name)?;
    if !keys.iter().any(|key| key.iter().all(is_grouped)) {
        return None;
    }
    let at = tokens.all[list.start].1.start;
    let added = format!("{}.{}, ", quote_identifier(qualifier), quote_identifier(name));
    Some(format!("{}{added}{}", &sql[..at], &sql[at..]))
}

/// A column as written: its qualifier and its name.
type ColumnName = (Option<String>, String);

/// Reports whether a written column may be the other column. A column without a qualifier may belong to any table.
fn is_same(written: &ColumnName, other: &ColumnName) -> bool {
    let is_qualified = written.0.as_deref().is_none_or(|of| Some(of) == other.0.as_deref());
    is_qualified && written.1.eq_ignore_ascii_case(&other.1)
}

impl Tokens<'_> {
    /// Returns the tokens of the grouped columns, if exactly one query of the statement is grouped by some.
    fn grouped_list(&self) -> Option<Range<usize>> {
        let mut starts = (0..self.all.len()).filter(|at| self.is_word(*at, "group") && self.is_word(at + 1, "by"));
        let start = starts.next().filter(|_| starts.next().is_none())? + 2;
        let mut depth = 0_usize;
        let mut end = start;
        while end < self.all.len() {
            match self.text(end) {
                "(" => depth += 1,
                ")" if depth == 0 => break,
                ")" => depth -= 1,
                _ if depth == 0 && LIST_ENDS.iter().any(|word| self.is_word(end, word)) => break,
                _ => {}
            }
            end += 1;
        }
        (start < end).then_some(start..end)
    }

    /// Returns the columns that are written in a range of tokens.
    fn names_in(&self, range: Range<usize>) -> Vec<ColumnName> {
        let last_parts = range.filter(|at| self.is_name(*at) && self.text(at + 1) != ".");
        last_parts.map(|at| self.column_ending_at(at)).collect()
    }

    fn column_ending_at(&self, at: usize) -> ColumnName {
        let qualifier = (at >= 2 && self.text(at - 1) == ".").then(|| lexer::unquote(self.text(at - 2)));
        (qualifier, lexer::unquote(self.text(at)))
    }

    /// Returns the table that a qualifier names: its own name, or an alias.
    fn table_of(&self, qualifier: &str, content: &DatabaseContent) -> Option<String> {
        let alias = (1..self.all.len()).find_map(|at| {
            let is_alias = self.is_name(at) && lexer::unquote(self.text(at)) == qualifier;
            let before = if self.is_word(at - 1, "as") { at.checked_sub(2)? } else { at - 1 };
            let table = lexer::unquote(self.text(before));
            (is_alias && self.is_name(before) && content.table(&table).is_some()).then_some(table)
        });
        alias.or_else(|| content.table(qualifier).map(|table| table.name.clone()))
    }

    /// Reports whether the statement compares two columns with `=`.
    fn are_compared(&self, one: &ColumnName, other: &ColumnName) -> bool {
        (1..self.all.len()).filter(|at| self.text(*at) == "=").any(|at| {
            let right_end = (at + 1..self.all.len()).find(|end| self.is_name(*end) && self.text(end + 1) != ".");
            let (Some(right_end), true) = (right_end, self.is_name(at - 1)) else { return false };
            let (left, right) = (self.column_ending_at(at - 1), self.column_ending_at(right_end));
            (is_same(one, &left) && is_same(&right, other)) || (is_same(one, &right) && is_same(&left, other))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::catalog::{CatalogColumn, CatalogTable};

    #[test]
    fn accepts_columns_that_keys_determine() {
        let column = |name: &str| CatalogColumn { name: name.to_owned(), ..CatalogColumn::default() };
        let table = |name: &str| CatalogTable {
            name: name.to_owned(),
            columns: ["id", "name", "customer_id"].map(column).to_vec(),
            ..CatalogTable::default()
        };
        let mut content = DatabaseContent::default();
        content.catalog.tables = vec![table("customers"), table("orders")];
        let key = || vec![vec!["id".to_owned()]];
        content.keys = [("customers".to_owned(), key()), ("orders".to_owned(), key())].into();
        let cases = [
            ("SELECT name FROM customers GROUP BY id", "customers.name", true),
            ("SELECT c.name FROM customers AS c GROUP BY c.`id` HAVING 1", "c.name", true),
            (
                "SELECT c.name FROM customers c JOIN orders o ON o.customer_id = c.id GROUP BY o.customer_id",
                "c.name",
                true,
            ),
            ("SELECT c.name FROM customers c JOIN orders o ON o.customer_id = c.id GROUP BY o.id", "c.name", false),
            ("SELECT name FROM customers GROUP BY customer_id", "customers.name", false),
            ("SELECT name FROM customers ORDER BY id", "customers.name", false),
        ];
        for (sql, column, is_accepted) in cases {
            assert_eq!(grouped_by(sql, column, &content).is_some(), is_accepted, "{sql}");
        }
        assert_eq!(
            grouped_by("SELECT name FROM customers GROUP BY id", "customers.name", &content).as_deref(),
            Some("SELECT name FROM customers GROUP BY `customers`.`name`, id")
        );
    }
}
