//! Compares names with the lists of tables and columns of a request.

use proctor_core::sql::Allow;

/// Reports whether a request has a list of tables or of columns.
pub(crate) fn are_given(allow: &Allow) -> bool {
    !allow.tables.is_empty() || !allow.columns.is_empty()
}

/// Returns a name without the schema `main`. Any other schema is a part of the name: a list that allows `people` does
/// not allow `old.people`.
pub(crate) fn plain(name: &str) -> &str {
    match name.split_once('.') {
        Some((schema, plain)) if schema.eq_ignore_ascii_case("main") => plain,
        _ => name,
    }
}

/// Reports whether a list contains a name.
pub(crate) fn hold(names: &[String], name: &str) -> bool {
    names.iter().any(|allowed| plain(allowed).eq_ignore_ascii_case(plain(name)))
}

/// Reports whether a table or a view may be used. Without a list of tables, all may be used.
pub(crate) fn allow_table(allow: &Allow, table: &str) -> bool {
    allow.tables.is_empty() || hold(&allow.tables, table)
}

/// Returns the columns of a table that may be used; `None` if the list of columns does not mention the table.
pub(crate) fn columns_of<'a>(allow: &'a Allow, table: &str) -> Option<Vec<&'a str>> {
    let entries = allow.columns.iter().filter_map(|entry| entry.rsplit_once('.'));
    let of_table = entries.filter(|(of, _)| plain(of).eq_ignore_ascii_case(plain(table)));
    let columns: Vec<&str> = of_table.map(|(_, column)| column).collect();
    (!columns.is_empty()).then_some(columns)
}

/// Reports whether a column of a table may be used.
pub(crate) fn allow_column(allow: &Allow, table: &str, column: &str) -> bool {
    columns_of(allow, table).is_none_or(|columns| columns.iter().any(|allowed| allowed.eq_ignore_ascii_case(column)))
}
