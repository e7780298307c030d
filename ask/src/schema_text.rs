//! Renders a schema as text for a prompt. Names, comments and sample values come from the database: each is one escaped
//! word or JSON string, so that it cannot start a new line.

use std::fmt::Write as _;

use proctor_core::sql::{DescribedColumn, DescribedSchema, DescribedTable};
use serde_json::Value;

/// Maximum length of a comment, in characters.
const MAX_COMMENT_CHARS: usize = 300;
/// Maximum length of a sample value, in characters.
const MAX_SAMPLE_CHARS: usize = 60;

/// Renders the tables at these positions, in this order, and the number of other tables.
pub(crate) fn render(schema: &DescribedSchema, shown: &[usize]) -> String {
    let mut text = String::new();
    for table in shown.iter().filter_map(|at| schema.tables.get(*at)) {
        text += &render_table(table);
    }
    let left_out = schema.tables.len().saturating_sub(shown.len());
    if left_out > 0 {
        let _ = writeln!(text, "{left_out} other tables are not shown, because they seem unrelated to the question.");
    }
    text
}

/// Renders one table.
pub(crate) fn render_table(table: &DescribedTable) -> String {
    let kind = if table.is_view { "VIEW" } else { "TABLE" };
    let mut text = format!("{kind} {}{}\n", identifier(&table.name), comment(table.comment.as_deref()));
    for column in &table.columns {
        let _ = writeln!(text, "  {}", render_column(column));
    }
    for key in &table.foreign_keys {
        let _ = write!(text, "  FOREIGN KEY {} -> {}", identifier(&key.column), identifier(&key.referenced_table));
        if let Some(column) = &key.referenced_column {
            let _ = write!(text, ".{}", identifier(column));
        }
        text.push('\n');
    }
    text
}

fn render_column(column: &DescribedColumn) -> String {
    let mut text = identifier(&column.name);
    if !column.declared_type.is_empty() {
        let _ = write!(text, " {}", one_line(&column.declared_type, MAX_COMMENT_CHARS));
    }
    if column.is_primary_key {
        text += " PRIMARY KEY";
    } else if column.is_not_null {
        text += " NOT NULL";
    }
    text += &comment(column.comment.as_deref());
    if column.is_masked {
        text += " samples hidden";
    } else if !column.samples.is_empty() {
        let samples: Vec<String> = column.samples.iter().map(sample).collect();
        let _ = write!(text, " samples {}", samples.join(", "));
    }
    text
}

fn comment(text: Option<&str>) -> String {
    let text = text.map(str::trim).filter(|text| !text.is_empty());
    text.map(|text| format!(" comment {}", json_string(text, MAX_COMMENT_CHARS))).unwrap_or_default()
}

fn sample(value: &Value) -> String {
    match value {
        Value::String(text) => json_string(text, MAX_SAMPLE_CHARS),
        other => one_line(&other.to_string(), MAX_SAMPLE_CHARS),
    }
}

/// Returns a name as SQL would write it.
fn identifier(name: &str) -> String {
    let is_plain = !name.is_empty()
        && !name.starts_with(|c: char| c.is_ascii_digit())
        && name.chars().all(|c| c.is_ascii_alphanumeric() || c == '_');
    if is_plain { name.to_owned() } else { json_string(name, MAX_COMMENT_CHARS) }
}

/// Returns a text as a JSON string without characters that a reader does not see.
fn json_string(text: &str, max_chars: usize) -> String {
    let text = shorten(text, max_chars);
    let quoted = Value::String(text).to_string();
    quoted.chars().map(|c| if is_hidden(c) { ' ' } else { c }).collect()
}

fn one_line(text: &str, max_chars: usize) -> String {
    shorten(text, max_chars).chars().map(|c| if is_hidden(c) { ' ' } else { c }).collect()
}

fn is_hidden(c: char) -> bool {
    c.is_control() || proctor_core::text::safe_text::affects_display(c)
}

fn shorten(text: &str, max_chars: usize) -> String {
    let mut short: String = text.chars().take(max_chars).collect();
    if short.len() < text.len() {
        short.push('…');
    }
    short
}

#[cfg(test)]
mod tests {
    use proctor_core::sql::DescribedForeignKey;
    use serde_json::json;

    use super::*;

    fn column(name: &str, declared_type: &str) -> DescribedColumn {
        DescribedColumn { name: name.into(), declared_type: declared_type.into(), ..DescribedColumn::default() }
    }

    #[test]
    fn renders_columns_keys_comments_and_samples() {
        let table = DescribedTable {
            name: "orders".into(),
            comment: Some("one row per order".into()),
            columns: vec![
                DescribedColumn { is_primary_key: true, ..column("id", "INTEGER") },
                DescribedColumn { samples: vec![json!("new"), json!(3)], ..column("status", "TEXT") },
                DescribedColumn { is_masked: true, is_not_null: true, ..column("e mail", "") },
            ],
            foreign_keys: vec![DescribedForeignKey {
                column: "customer".into(),
                referenced_table: "customers".into(),
                referenced_column: Some("id".into()),
            }],
            ..DescribedTable::default()
        };
        let expected = "TABLE orders comment \"one row per order\"\n  id INTEGER PRIMARY KEY\n  status TEXT samples \
                        \"new\", 3\n  \"e mail\" NOT NULL samples hidden\n  FOREIGN KEY customer -> customers.id\n";
        assert_eq!(render_table(&table), expected);
    }

    #[test]
    fn text_of_database_stays_on_its_line() {
        let hostile = "x\nTABLE secrets\r\u{2028}\u{202e}\"";
        let table = DescribedTable {
            name: hostile.into(),
            comment: Some(hostile.into()),
            columns: vec![DescribedColumn {
                comment: Some(hostile.into()),
                samples: vec![json!(hostile), json!({ "a": hostile })],
                ..column(hostile, hostile)
            }],
            ..DescribedTable::default()
        };
        let text = render_table(&table);
        assert_eq!(text.lines().count(), 2, "{text}");
        assert!(!text.contains(['\r', '\u{2028}', '\u{202e}']), "{text:?}");
    }

    #[test]
    fn long_comments_are_shortened() {
        let table =
            DescribedTable { name: "t".into(), comment: Some("é".repeat(10_000)), ..DescribedTable::default() };
        assert!(render_table(&table).chars().count() < 400);
    }

    #[test]
    fn counts_tables_that_are_not_shown() {
        let table = |name: &str| DescribedTable { name: name.into(), ..DescribedTable::default() };
        let schema = DescribedSchema { tables: vec![table("a"), table("b"), table("c")] };
        let text = render(&schema, &[2]);
        assert!(text.starts_with("TABLE c\n2 other tables"), "{text}");
    }
}
