//! Compares names with the lists of tables and columns of a request.

use std::borrow::Cow;

use proctor_core::sql::{Dialect, SqlAllow};

use crate::catalog::{Catalog, CatalogTable, joined_name, quoted_part, split_name};

/// The lists of a request, as names of the catalog of its dialect.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NameLists {
    dialect: Dialect,
    /// The tables and views, as [`joined_name`] writes them.
    pub(crate) tables: Vec<String>,
    /// The columns, each with its table.
    pub(crate) columns: Vec<ListedColumn>,
}

/// An entry of a list of columns.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct ListedColumn {
    /// The table, as [`joined_name`] writes it; empty if the entry names none.
    table: String,
    /// The column, without quotes.
    pub(crate) column: String,
}

impl NameLists {
    /// Parses the lists of a request. A dot separates a schema, a table and a column, unless it is within quotes.
    pub fn new(allow: &SqlAllow, dialect: Dialect) -> Self {
        let table = |entry: &String| table_name(split_entry(entry, dialect), dialect);
        let column = |entry: &String| {
            let mut parts = split_entry(entry, dialect);
            let column = parts.pop().unwrap_or_default();
            ListedColumn { table: table_name(parts, dialect), column }
        };
        Self {
            dialect,
            tables: allow.tables.iter().map(table).collect(),
            columns: allow.columns.iter().map(column).collect(),
        }
    }

    /// Returns a name of the catalog as the lists have it. The names of SQLite and MySQL have no schema, so that a dot
    /// is a part of the name.
    fn listed_name<'n>(&self, name: &'n str) -> Cow<'n, str> {
        match self.dialect {
            Dialect::Sqlite | Dialect::Mysql => quoted_part(name),
            Dialect::Duckdb | Dialect::Postgres => Cow::Borrowed(name),
        }
    }

    fn is_same(&self, entry: &str, name: &str) -> bool {
        entry.eq_ignore_ascii_case(&self.listed_name(name))
    }
}

/// Splits a name as a user writes it at the dots outside of quotes.
fn split_entry(entry: &str, dialect: Dialect) -> Vec<String> {
    split_name(
        entry,
        match dialect {
            Dialect::Sqlite => &['"', '`', '['],
            Dialect::Mysql => &['"', '`'],
            Dialect::Duckdb | Dialect::Postgres => &['"'],
        },
    )
}

/// Joins the parts of the name of a table, without the default schema.
fn table_name(mut parts: Vec<String>, dialect: Dialect) -> String {
    let default_schema = match dialect {
        Dialect::Sqlite | Dialect::Duckdb => Some("main"),
        Dialect::Postgres => Some("public"),
        Dialect::Mysql => None,
    };
    if parts.len() > 1 && default_schema.is_some_and(|schema| parts[0].eq_ignore_ascii_case(schema)) {
        parts.remove(0);
    }
    joined_name(&parts)
}

/// Reports whether a name in a statement is that of a table of the catalog.
pub(crate) fn is_name_of_table(written: &str, table: &str, dialect: Dialect) -> bool {
    let lists = NameLists { dialect, tables: Vec::new(), columns: Vec::new() };
    lists.is_same(&table_name(split_entry(written, dialect), dialect), table)
}

/// Reports whether a request has a list of tables or of columns.
pub(crate) fn has_name_lists(allow: &NameLists) -> bool {
    !allow.tables.is_empty() || !allow.columns.is_empty()
}

/// Reports whether the list of tables contains an object of the engine, such as `information_schema.tables`.
pub(crate) fn contains_object(allow: &NameLists, name: &str) -> bool {
    let name = table_name(split_entry(name, allow.dialect), allow.dialect);
    allow.tables.iter().any(|entry| entry.eq_ignore_ascii_case(&name))
}

/// Reports whether a table or a view may be used. Without a list of tables, all may be used.
pub(crate) fn is_table_allowed(allow: &NameLists, table: &str) -> bool {
    allow.tables.is_empty() || allow.tables.iter().any(|entry| allow.is_same(entry, table))
}

/// Returns the columns of a table that may be used; `None` if the list of columns does not mention the table.
pub(crate) fn allowed_columns<'a>(allow: &'a NameLists, table: &str) -> Option<Vec<&'a str>> {
    let of_table = allow.columns.iter().filter(|entry| allow.is_same(&entry.table, table));
    let columns: Vec<&str> = of_table.map(|entry| entry.column.as_str()).collect();
    (!columns.is_empty()).then_some(columns)
}

/// Reports whether a column of a table may be used.
pub(crate) fn is_column_allowed(allow: &NameLists, table: &str, column: &str) -> bool {
    allowed_columns(allow, table)
        .is_none_or(|columns| columns.iter().any(|allowed| allowed.eq_ignore_ascii_case(column)))
}

/// Reports whether a table of a schema may be used. If the schema has tables whose names differ only by case, the list
/// must have the exact name.
pub(crate) fn is_table_of_schema_allowed(allow: &NameLists, catalog: &Catalog, table: &str) -> bool {
    let is_ambiguous = catalog.tables.iter().filter(|other| other.name.eq_ignore_ascii_case(table)).count() > 1;
    let is_exact = || allow.tables.is_empty() || allow.tables.iter().any(|entry| *entry == allow.listed_name(table));
    is_table_allowed(allow, table) && (!is_ambiguous || is_exact())
}

/// Reports whether a list of columns contains a column. If the table has columns whose names differ only by case, the
/// list must have the exact name.
pub(crate) fn contains_column(listed: &[&str], table: Option<&CatalogTable>, column: &str) -> bool {
    let names = table.into_iter().flat_map(|table| &table.columns);
    let is_ambiguous = names.filter(|other| other.name.eq_ignore_ascii_case(column)).count() > 1;
    listed.iter().any(|allowed| if is_ambiguous { *allowed == column } else { allowed.eq_ignore_ascii_case(column) })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lists(dialect: Dialect, tables: &[&str], columns: &[&str]) -> NameLists {
        let owned = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect();
        NameLists::new(&SqlAllow { tables: owned(tables), columns: owned(columns), ..SqlAllow::default() }, dialect)
    }

    #[test]
    fn qualified_names_differ_from_names_with_dots() {
        use Dialect::{Duckdb, Mysql, Postgres, Sqlite};
        for (dialect, entry, table, expected) in [
            (Postgres, "s.users", "s.users", true),
            (Postgres, "S.Users", "s.users", true),
            (Postgres, "\"s\".\"users\"", "s.users", true),
            (Postgres, "s.users", "\"s.users\"", false),
            (Postgres, "\"s.users\"", "\"s.users\"", true),
            (Postgres, "\"s.users\"", "s.users", false),
            (Postgres, "public.\"s.users\"", "\"s.users\"", true),
            (Postgres, "public.users", "users", true),
            (Postgres, "public.users", "\"public.users\"", false),
            (Postgres, "main.users", "users", false),
            (Postgres, "main.users", "main.users", true),
            (Postgres, "a.\"b.c\"", "\"a.b\".c", false),
            (Duckdb, "main.users", "users", true),
            (Duckdb, "users", "\"main.users\"", false),
            (Duckdb, "s.users", "\"s.users\"", false),
            (Sqlite, "main.users", "users", true),
            (Sqlite, "[users]", "users", true),
            (Sqlite, "users", "main.users", false),
            (Sqlite, "s.users", "s.users", false),
            (Sqlite, "`s.users`", "s.users", true),
            (Sqlite, "a\"b", "a\"b", true),
            (Mysql, "`s.users`", "s.users", true),
            (Mysql, "s.users", "s.users", false),
            (Mysql, "my table", "My Table", true),
        ] {
            let listed = lists(dialect, &[entry], &[]);
            assert_eq!(is_table_allowed(&listed, table), expected, "{dialect:?}: {entry} and {table}");
        }
    }

    #[test]
    fn columns_belong_to_one_table() {
        let listed = lists(Dialect::Postgres, &[], &["s.users.id", "\"s.users\".pin", "t.\"a.b\"", "nothing"]);
        assert_eq!(allowed_columns(&listed, "s.users"), Some(vec!["id"]));
        assert_eq!(allowed_columns(&listed, "\"s.users\""), Some(vec!["pin"]));
        assert_eq!(allowed_columns(&listed, "t"), Some(vec!["a.b"]));
        assert_eq!(allowed_columns(&listed, "t.a"), None);
        assert!(has_name_lists(&lists(Dialect::Postgres, &[], &["nothing"])));
    }
}
