//! Converts the tables of a PostgreSQL schema to SQLite: names, types and keys.

use proctor_core::sql::{Dialect, SqlRequest};
use proctor_sql::sqlite::Sqlite;
use sqlparser::ast::{ColumnOption, CreateTable, Statement, TableConstraint};
use sqlparser::dialect::PostgreSqlDialect;
use sqlparser::parser::Parser;

/// Returns the schema unchanged if SQLite accepts it, otherwise its converted tables.
pub(super) fn convert_to_sqlite(ddl: &str) -> String {
    let mut request = SqlRequest::new(Dialect::Sqlite, "SELECT 1");
    request.schema = vec![ddl.to_owned()];
    if Sqlite::open(&request).is_ok() {
        return ddl.to_owned();
    }
    ddl.split(';').filter_map(parse_table).map(|table| render_table(&table)).collect()
}

fn parse_table(text: &str) -> Option<CreateTable> {
    let begin = text.to_ascii_uppercase().find("CREATE TABLE")?;
    let statement = Parser::parse_sql(&PostgreSqlDialect {}, &text[begin..]).ok()?.into_iter().next()?;
    match statement {
        Statement::CreateTable(table) => Some(table),
        _ => None,
    }
}

fn render_table(table: &CreateTable) -> String {
    let name =
        table.name.0.last().and_then(|part| part.as_ident()).map(|ident| ident.value.clone()).unwrap_or_default();
    let mut lines: Vec<String> = table
        .columns
        .iter()
        .map(|column| {
            let is_key = column.options.iter().any(|option| matches!(option.option, ColumnOption::PrimaryKey(_)));
            let key = if is_key { " PRIMARY KEY" } else { "" };
            let kind = column.data_type.to_string().replace(" WITH TIME ZONE", "").replace(" WITHOUT TIME ZONE", "");
            format!("\"{}\" {kind}{key}", column.name.value)
        })
        .collect();
    for column in &table.columns {
        let to = column.options.iter().find_map(|option| match &option.option {
            ColumnOption::ForeignKey(key) => key.foreign_table.0.last().and_then(|part| part.as_ident()),
            _ => None,
        });
        lines.extend(to.map(|to| format!("FOREIGN KEY (\"{}\") REFERENCES \"{}\"", column.name.value, to.value)));
    }
    let has_key = lines.iter().any(|line| line.ends_with("PRIMARY KEY"));
    let keys = table.constraints.iter().filter(|constraint| match constraint {
        TableConstraint::PrimaryKey(_) => !has_key,
        TableConstraint::ForeignKey(_) => true,
        _ => false,
    });
    lines.extend(keys.map(|constraint| constraint.to_string().replace("public.", "")));
    format!("CREATE TABLE \"{name}\" ({});\n", lines.join(", "))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keeps_names_types_and_keys_of_tables() {
        let ddl = "CREATE TABLE public.a (id bigint NOT NULL PRIMARY KEY, at timestamp with time zone);
            CREATE TABLE public.b (a_id bigint REFERENCES public.a(id), x text DEFAULT 'y'::text);
            INSERT INTO public.b VALUES (1, now());";
        let expected = "CREATE TABLE \"a\" (\"id\" BIGINT PRIMARY KEY, \"at\" TIMESTAMP);\n\
            CREATE TABLE \"b\" (\"a_id\" BIGINT, \"x\" TEXT, FOREIGN KEY (\"a_id\") REFERENCES \"a\");\n";
        assert_eq!(convert_to_sqlite(ddl), expected);
        assert_eq!(convert_to_sqlite("CREATE TABLE a (b)"), "CREATE TABLE a (b)");
    }
}
