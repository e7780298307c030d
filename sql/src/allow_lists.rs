//! Compares names with the lists of tables and columns of a request.

use proctor_core::sql::SqlAllow;

use crate::catalog::{Catalog, CatalogTable};

/// Reports whether a request has a list of tables or of columns.
pub(crate) fn has_name_lists(allow: &SqlAllow) -> bool {
    !allow.tables.is_empty() || !allow.columns.is_empty()
}

/// Returns a name without the schema `main`. Any other schema is a part of the name: a list that allows `people` does
/// not allow `old.people`.
pub(crate) fn strip_main_schema(name: &str) -> &str {
    match name.split_once('.') {
        Some((schema, plain)) if schema.eq_ignore_ascii_case("main") => plain,
        _ => name,
    }
}

fn is_same_name(one: &str, other: &str) -> bool {
    strip_main_schema(one).eq_ignore_ascii_case(strip_main_schema(other))
}

/// Reports whether a list contains a name.
pub(crate) fn contains_name(names: &[String], name: &str) -> bool {
    names.iter().any(|allowed| is_same_name(allowed, name))
}

/// Reports whether a table or a view may be used. Without a list of tables, all may be used.
pub(crate) fn is_table_allowed(allow: &SqlAllow, table: &str) -> bool {
    allow.tables.is_empty() || contains_name(&allow.tables, table)
}

/// Returns the columns of a table that may be used; `None` if the list of columns does not mention the table.
pub(crate) fn allowed_columns<'a>(allow: &'a SqlAllow, table: &str) -> Option<Vec<&'a str>> {
    let entries = allow.columns.iter().filter_map(|entry| entry.rsplit_once('.'));
    let of_table = entries.filter(|(of, _)| strip_main_schema(of).eq_ignore_ascii_case(strip_main_schema(table)));
    let columns: Vec<&str> = of_table.map(|(_, column)| column).collect();
    (!columns.is_empty()).then_some(columns)
}

/// Reports whether a column of a table may be used.
pub(crate) fn is_column_allowed(allow: &SqlAllow, table: &str, column: &str) -> bool {
    allowed_columns(allow, table)
        .is_none_or(|columns| columns.iter().any(|allowed| allowed.eq_ignore_ascii_case(column)))
}

/// Reports whether a table of a schema may be used. If the schema has tables whose names differ only by case, or by the
/// beginning `main.` of a quoted name, the list must have the exact name.
pub(crate) fn is_table_of_schema_allowed(allow: &SqlAllow, catalog: &Catalog, table: &str) -> bool {
    let is_ambiguous = catalog.tables.iter().filter(|other| is_same_name(&other.name, table)).count() > 1;
    let is_exact = || allow.tables.is_empty() || allow.tables.iter().any(|entry| entry == table);
    is_table_allowed(allow, table) && (!is_ambiguous || is_exact())
}

/// Reports whether a list of columns contains a column. If the table has columns whose names differ only by case, the
/// list must have the exact name.
pub(crate) fn contains_column(listed: &[&str], table: Option<&CatalogTable>, column: &str) -> bool {
    let names = table.into_iter().flat_map(|table| &table.columns);
    let is_ambiguous = names.filter(|other| other.name.eq_ignore_ascii_case(column)).count() > 1;
    listed.iter().any(|allowed| if is_ambiguous { *allowed == column } else { allowed.eq_ignore_ascii_case(column) })
}
