//! Describes the content of a database as its engine reports it: tables, columns, keys. Lookups ignore the case of
//! ASCII letters in names, as both dialects do.

use std::borrow::Cow;

use proctor_core::sql::Dialect;

/// Returns a part of a name. A part that contains a dot or a quote is quoted.
pub(crate) fn quoted_part(part: &str) -> Cow<'_, str> {
    match part.contains(['.', '"']) {
        true => Cow::Owned(format!("\"{}\"", part.replace('"', "\"\""))),
        false => Cow::Borrowed(part),
    }
}

/// Joins a schema and a name to the name that the catalog has for a table outside of the default schema. A name with a
/// dot is quoted, so that it differs from all qualified names.
pub(crate) fn joined_name<T: AsRef<str>>(parts: &[T]) -> String {
    parts.iter().map(|part| quoted_part(part.as_ref())).collect::<Vec<_>>().join(".")
}

/// Splits a name at the dots outside of quotes, and removes the quotes.
pub(crate) fn split_name(name: &str, quotes: &[char]) -> Vec<String> {
    let (mut parts, mut rest) = (Vec::new(), name);
    loop {
        let quoted =
            rest.chars().next().filter(|first| quotes.contains(first)).and_then(|open| split_quoted(rest, open));
        let (part, after) = quoted.unwrap_or_else(|| match rest.find('.') {
            Some(dot) => (rest[..dot].to_owned(), &rest[dot..]),
            None => (rest.to_owned(), ""),
        });
        parts.push(part);
        match after.strip_prefix('.') {
            Some(next) => rest = next,
            None => return parts,
        }
    }
}

/// Returns the name of a table of the catalog without its schema and its quotes.
pub(crate) fn bare_name(name: &str, dialect: Dialect) -> String {
    match dialect {
        Dialect::Sqlite | Dialect::Mysql => name.to_owned(),
        Dialect::Duckdb | Dialect::Postgres => split_name(name, &['"']).pop().unwrap_or_default(),
    }
}

/// Splits a text that begins with a quoted part; `None` if the quotes do not end, or end within the part.
fn split_quoted(text: &str, open: char) -> Option<(String, &str)> {
    let close = if open == '[' { ']' } else { open };
    let (mut part, mut chars) = (String::new(), text.char_indices().skip(1).peekable());
    while let Some((at, sign)) = chars.next() {
        if sign != close {
            part.push(sign);
        } else if close != ']' && chars.next_if(|(_, next)| *next == close).is_some() {
            part.push(close);
        } else {
            let after = &text[at + 1..];
            return (after.is_empty() || after.starts_with('.')).then_some((part, after));
        }
    }
    None
}

/// A table or a view.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct CatalogTable {
    /// The name, as written at creation. In PostgreSQL and DuckDB, the name of a table outside of the default schema
    /// begins with the schema, and a part with a dot is quoted.
    pub name: String,
    /// True if this is a view, not a table.
    pub is_view: bool,
    /// The columns, in order.
    pub columns: Vec<CatalogColumn>,
    /// The foreign keys.
    pub foreign_keys: Vec<ForeignKey>,
}

/// A column of a table or a view.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct CatalogColumn {
    /// The name, as written at creation.
    pub name: String,
    /// The declared type; empty if none was declared.
    pub declared_type: String,
    /// True if the column is NOT NULL.
    pub is_not_null: bool,
    /// The position in the primary key, from 1; 0 if the column is not part of it.
    pub primary_key_position: u32,
    /// True if the engine computes the values of the column.
    pub is_generated: bool,
}

/// One column of a foreign key.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ForeignKey {
    /// The referencing column.
    pub column: String,
    /// The referenced table.
    pub referenced_table: String,
    /// The referenced column; `None` if it is the primary key of the table.
    pub referenced_column: Option<String>,
}

/// The comment of a table or of one of its columns.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SchemaComment {
    /// The table or view, named as in the catalog.
    pub table: String,
    /// The column; `None` for the comment of the table.
    pub column: Option<String>,
    /// The comment.
    pub text: String,
}

/// All tables and views of a database.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Catalog {
    /// The tables and views, in the order in which the engine lists them.
    pub tables: Vec<CatalogTable>,
    /// The enum types with names, if a statement of the dialect can read their values.
    pub enum_types: Vec<EnumType>,
}

/// An enum type with a name.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct EnumType {
    /// The name without its schema, as written at creation.
    pub name: String,
    /// The definition with all values, as in the declared types of columns.
    pub definition: String,
}

impl Catalog {
    /// Returns the table or view with this name.
    pub fn table(&self, name: &str) -> Option<&CatalogTable> {
        let exact = self.tables.iter().find(|table| table.name == name);
        exact.or_else(|| self.tables.iter().find(|table| table.name.eq_ignore_ascii_case(name)))
    }

    /// Inserts a table at its position in the order of names.
    pub(crate) fn insert_sorted(&mut self, table: CatalogTable) {
        let at = self.tables.partition_point(|other| other.name < table.name);
        self.tables.insert(at, table);
    }

    /// Returns the tables and views that have a column with this name.
    pub fn tables_with<'a>(&'a self, column: &'a str) -> impl Iterator<Item = &'a CatalogTable> {
        self.tables.iter().filter(move |table| table.column(column).is_some())
    }
}

impl CatalogTable {
    /// Returns the column with this name.
    pub fn column(&self, name: &str) -> Option<&CatalogColumn> {
        let exact = self.columns.iter().find(|column| column.name == name);
        exact.or_else(|| self.columns.iter().find(|column| column.name.eq_ignore_ascii_case(name)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn joined_names_split_into_their_parts() {
        for parts in [&["a"][..], &["a", "b"], &["a.b"], &["a", "b.c\"d"], &["\"", "."], &["", ""]] {
            assert_eq!(split_name(&joined_name(parts), &['"']), parts);
        }
        assert_eq!(split_name("a\"b.c", &['"']), ["a\"b", "c"]);
        assert_eq!(split_name("\"a.b", &['"']), ["\"a", "b"]);
        assert_eq!(split_name("[a.b].`c`", &['"', '`', '[']), ["a.b", "c"]);
    }
}
