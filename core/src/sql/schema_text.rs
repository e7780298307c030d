//! Renders the description of a schema: compactly, as a part of a prompt, or as `CREATE` statements for reading. Names,
//! comments and values come from a database and are untrusted: each stays on its line, and control characters are
//! escaped.

use std::fmt::Write as _;

use serde_json::Value;

use super::{DescribedColumn, DescribedForeignKey, DescribedSchema, DescribedTable, Dialect};
use crate::text::escape::escape_output;

/// Maximum length of a comment or a type, in characters.
const MAX_COMMENT_CHARS: usize = 300;
/// Maximum length of a sample value, in characters.
const MAX_SAMPLE_CHARS: usize = 64;

impl DescribedSchema {
    /// Returns a compact text: a line for each table, and an indented line for each column and each foreign key.
    pub fn to_text(&self) -> String {
        self.tables.iter().map(DescribedTable::to_text).collect()
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

impl DescribedTable {
    /// Returns a compact text: a line for the table, and an indented line for each column and each foreign key.
    pub fn to_text(&self) -> String {
        let kind = if self.is_view { "VIEW" } else { "TABLE" };
        let mut text = format!("{kind} {}{}\n", plain_name(&self.name), comment_text(self.comment.as_deref()));
        for column in &self.columns {
            let _ = writeln!(text, "  {}", column_text(column));
        }
        for key in &self.foreign_keys {
            let _ = writeln!(text, "  FOREIGN KEY {} -> {}", plain_name(&key.column), key_target(key, &plain_name));
        }
        text
    }
}

fn column_text(column: &DescribedColumn) -> String {
    let mut text = plain_name(&column.name);
    if !column.declared_type.is_empty() {
        let _ = write!(text, " {}", shorten(&one_line(&column.declared_type), MAX_COMMENT_CHARS));
    }
    if column.is_primary_key {
        text.push_str(" PRIMARY KEY");
    } else if column.is_not_null {
        text.push_str(" NOT NULL");
    }
    text.push_str(&comment_text(column.comment.as_deref()));
    if let Some(samples) = samples_text(column) {
        let _ = write!(text, " [{samples}]");
    }
    text
}

/// Returns a comment as a JSON string, so that a reader sees where it ends.
fn comment_text(comment: Option<&str>) -> String {
    let comment = comment.map(str::trim).filter(|text| !text.is_empty());
    comment.map(|text| format!(" comment {}", json_string(&shorten(text, MAX_COMMENT_CHARS)))).unwrap_or_default()
}

/// Returns a text as a JSON string on one line, with control characters escaped.
fn json_string(text: &str) -> String {
    one_line(&Value::from(text).to_string())
}

fn shorten(text: &str, max_chars: usize) -> String {
    let mut short: String = text.chars().take(max_chars).collect();
    if short.len() < text.len() {
        short.push('…');
    }
    short
}

/// Returns the sample values of a column; `None` if it has none.
fn samples_text(column: &DescribedColumn) -> Option<String> {
    if column.samples.is_empty() {
        return None;
    }
    let sample = |value: &Value| match value {
        Value::String(text) => json_string(&shorten(text, MAX_SAMPLE_CHARS)),
        other => shorten(&one_line(&other.to_string()), MAX_SAMPLE_CHARS),
    };
    let values: Vec<String> = column.samples.iter().map(sample).collect();
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
    if is_plain { name.to_owned() } else { json_string(name) }
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
        let expected = r#"TABLE orders comment "one per\nsale; DROP TABLE orders"
  id INTEGER PRIMARY KEY
  "customer id" INT NOT NULL comment "who"
  note ["a\u{202e}b", 1.5]
  email TEXT [masked: "xxx@xxx.xx"]
  FOREIGN KEY "customer id" -> customers (id)
VIEW old.totals
  total REAL
"#;
        assert_eq!(shop().to_text(), expected);
    }

    #[test]
    fn text_of_a_database_stays_on_its_line() {
        let hostile = "x\nTABLE secrets\r\u{2028}\u{202e}\"".to_owned();
        let column = DescribedColumn {
            name: hostile.clone(),
            declared_type: hostile.clone(),
            comment: Some(hostile.clone()),
            samples: vec![json!(hostile), json!({ "a": hostile })],
            ..DescribedColumn::default()
        };
        let table = DescribedTable {
            name: hostile.clone(),
            comment: Some(hostile),
            columns: vec![column],
            ..DescribedTable::default()
        };
        let text = table.to_text();
        assert_eq!(text.lines().count(), 2, "{text}");
        assert!(!text.contains(['\r', '\u{2028}', '\u{202e}']), "{text:?}");
    }

    #[test]
    fn long_comments_are_shortened() {
        let comment = Some("é".repeat(10_000));
        let table = DescribedTable { name: "t".to_owned(), comment, ..DescribedTable::default() };
        assert!(table.to_text().chars().count() < 400);
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
