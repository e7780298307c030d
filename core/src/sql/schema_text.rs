//! Renders the description of a schema: compactly, as a part of a prompt, or as `CREATE` statements for reading. Names,
//! comments and values come from a database and are untrusted: each stays on its line, and control characters are
//! escaped.

use std::fmt::Write as _;

use serde_json::Value;

use super::{DescribedColumn, DescribedForeignKey, DescribedSchema, DescribedTable, Dialect};
use crate::text::escape::escape_output;

impl DescribedSchema {
    /// Returns a compact text: a line for each table, and an indented line for each column and each foreign key.
    pub fn to_text(&self) -> String {
        self.tables.iter().map(table_text).collect::<Vec<_>>().join("\n")
    }

    /// Returns `CREATE TABLE` statements, with comments and sample values as comments. The description does not have
    /// the queries of views, so each view is a comment.
    pub fn to_ddl(&self, dialect: Dialect) -> String {
        let render = |table: &DescribedTable| match table.is_view {
            true => view_ddl(table, dialect),
            false => table_ddl(table, dialect),
        };
        self.tables.iter().map(render).collect::<Vec<_>>().join("\n")
    }
}

fn table_text(table: &DescribedTable) -> String {
    let kind = if table.is_view { "view" } else { "table" };
    let mut text = format!("{kind} {}", plain_name(&table.name));
    push_comment(&mut text, table.comment.as_deref());
    text.push('\n');
    for column in &table.columns {
        text.push_str(&column_text(column));
    }
    for key in &table.foreign_keys {
        let _ = writeln!(text, "  {} references {}", plain_name(&key.column), key_target(key, &plain_name));
    }
    text
}

fn column_text(column: &DescribedColumn) -> String {
    let mut text = format!("  {}", plain_name(&column.name));
    if !column.declared_type.is_empty() {
        let _ = write!(text, " {}", one_line(&column.declared_type));
    }
    if column.is_primary_key {
        text.push_str(" primary key");
    } else if column.is_not_null {
        text.push_str(" not null");
    }
    push_comment(&mut text, column.comment.as_deref());
    if let Some(samples) = samples_text(column) {
        let _ = write!(text, " [{samples}]");
    }
    text.push('\n');
    text
}

fn push_comment(text: &mut String, comment: Option<&str>) {
    if let Some(comment) = comment {
        let _ = write!(text, " -- {}", one_line(comment));
    }
}

/// Returns the sample values of a column; `None` if it has none.
fn samples_text(column: &DescribedColumn) -> Option<String> {
    if column.samples.is_empty() {
        return None;
    }
    let values: Vec<String> = column.samples.iter().map(|value| one_line(&Value::to_string(value))).collect();
    let kind = if column.is_masked { "masked: " } else { "" };
    Some(format!("{kind}{}", values.join(", ")))
}

fn key_target(key: &DescribedForeignKey, name: &dyn Fn(&str) -> String) -> String {
    let table = name(&key.referenced_table);
    key.referenced_column.as_ref().map_or_else(|| table.clone(), |column| format!("{table} ({})", name(column)))
}

fn table_ddl(table: &DescribedTable, dialect: Dialect) -> String {
    let quoted = |name: &str| quote(name, dialect);
    let keys: Vec<String> =
        table.columns.iter().filter(|column| column.is_primary_key).map(|column| quoted(&column.name)).collect();
    let mut parts: Vec<(String, String)> = Vec::new();
    for column in &table.columns {
        let mut part = quoted(&column.name);
        if !column.declared_type.is_empty() {
            let _ = write!(part, " {}", one_line(&column.declared_type));
        }
        if column.is_not_null {
            part.push_str(" NOT NULL");
        }
        if column.is_primary_key && keys.len() == 1 {
            part.push_str(" PRIMARY KEY");
        }
        parts.push((part, column_note(column)));
    }
    if keys.len() > 1 {
        parts.push((format!("PRIMARY KEY ({})", keys.join(", ")), String::new()));
    }
    for key in &table.foreign_keys {
        let part = format!("FOREIGN KEY ({}) REFERENCES {}", quoted(&key.column), key_target(key, &quoted));
        parts.push((part, String::new()));
    }
    let mut text = String::new();
    if let Some(comment) = &table.comment {
        let _ = writeln!(text, "-- {}", one_line(comment));
    }
    let _ = writeln!(text, "CREATE TABLE {} (", quoted_path(&table.name, dialect));
    let last = parts.len().saturating_sub(1);
    for (at, (part, note)) in parts.iter().enumerate() {
        let comma = if at == last { "" } else { "," };
        let note = if note.is_empty() { String::new() } else { format!(" -- {note}") };
        let _ = writeln!(text, "  {part}{comma}{note}");
    }
    text.push_str(");\n");
    text
}

fn view_ddl(view: &DescribedTable, dialect: Dialect) -> String {
    let mut text = format!("-- view {}", quoted_path(&view.name, dialect));
    if let Some(comment) = &view.comment {
        let _ = write!(text, ": {}", one_line(comment));
    }
    text.push('\n');
    for column in &view.columns {
        let _ = write!(text, "--   {} {}", quote(&column.name, dialect), one_line(&column.declared_type));
        let note = column_note(column);
        let _ = writeln!(text, "{}", if note.is_empty() { String::new() } else { format!(" -- {note}") });
    }
    text
}

/// Returns the comment of a column and its sample values.
fn column_note(column: &DescribedColumn) -> String {
    let comment = column.comment.as_deref().map(one_line);
    let samples = samples_text(column).map(|samples| format!("[{samples}]"));
    comment.into_iter().chain(samples).collect::<Vec<_>>().join(" ")
}

/// Returns a name as it is if it consists of letters, digits, `_` and `.`; otherwise as a JSON string.
fn plain_name(name: &str) -> String {
    let is_plain = !name.is_empty() && name.chars().all(|sign| sign.is_alphanumeric() || matches!(sign, '_' | '.'));
    if is_plain { name.to_owned() } else { one_line(&Value::from(name).to_string()) }
}

/// Quotes a name, and each part of a name with a schema.
fn quoted_path(name: &str, dialect: Dialect) -> String {
    match (dialect, name.split_once('.')) {
        (Dialect::Postgres | Dialect::Duckdb, Some((schema, table))) => {
            format!("{}.{}", quote(schema, dialect), quote(table, dialect))
        }
        _ => quote(name, dialect),
    }
}

fn quote(name: &str, dialect: Dialect) -> String {
    let name = one_line(name);
    match dialect {
        Dialect::Mysql => format!("`{}`", name.replace('`', "``")),
        Dialect::Sqlite | Dialect::Duckdb | Dialect::Postgres => format!("\"{}\"", name.replace('"', "\"\"")),
    }
}

/// Escapes a text for one line.
fn one_line(text: &str) -> String {
    escape_output(text.as_bytes()).replace('\n', "\\n").replace('\t', "\\t")
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn shop() -> DescribedSchema {
        let column = |name: &str, declared_type: &str| DescribedColumn {
            name: name.to_owned(),
            declared_type: declared_type.to_owned(),
            ..DescribedColumn::default()
        };
        let orders = DescribedTable {
            name: "orders".to_owned(),
            comment: Some("one per\nsale; DROP TABLE orders".to_owned()),
            columns: vec![
                DescribedColumn { is_primary_key: true, ..column("id", "INTEGER") },
                DescribedColumn { is_not_null: true, comment: Some("who".to_owned()), ..column("customer id", "INT") },
                DescribedColumn { samples: vec![json!("a\u{202e}b"), json!(1.5)], ..column("note", "") },
                DescribedColumn { samples: vec![json!("xxx@xxx.xx")], is_masked: true, ..column("email", "TEXT") },
            ],
            foreign_keys: vec![DescribedForeignKey {
                column: "customer id".to_owned(),
                referenced_table: "customers".to_owned(),
                referenced_column: Some("id".to_owned()),
            }],
            ..DescribedTable::default()
        };
        let view = DescribedTable {
            name: "old.totals".to_owned(),
            is_view: true,
            columns: vec![column("total", "REAL")],
            ..DescribedTable::default()
        };
        DescribedSchema { tables: vec![orders, view] }
    }

    #[test]
    fn renders_compact_text() {
        let expected = r#"table orders -- one per\nsale; DROP TABLE orders
  id INTEGER primary key
  "customer id" INT not null -- who
  note ["a\u{202e}b", 1.5]
  email TEXT [masked: "xxx@xxx.xx"]
  "customer id" references customers (id)

view old.totals
  total REAL
"#;
        assert_eq!(shop().to_text(), expected);
    }

    #[test]
    fn renders_statements() {
        let expected = r#"-- one per\nsale; DROP TABLE orders
CREATE TABLE "orders" (
  "id" INTEGER PRIMARY KEY,
  "customer id" INT NOT NULL, -- who
  "note", -- ["a\u{202e}b", 1.5]
  "email" TEXT, -- [masked: "xxx@xxx.xx"]
  FOREIGN KEY ("customer id") REFERENCES "customers" ("id")
);

-- view "old.totals"
--   "total" REAL
"#;
        assert_eq!(shop().to_ddl(Dialect::Sqlite), expected);
        let mysql = shop().to_ddl(Dialect::Mysql);
        assert!(mysql.contains("CREATE TABLE `orders` ("), "{mysql}");
        assert!(shop().to_ddl(Dialect::Postgres).contains("-- view \"old\".\"totals\""));
    }
}
