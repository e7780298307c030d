//! Renders the rows of a result as a table for people. Values come from a database: control characters and characters
//! that change the direction of text are escaped, and each value stays on one line.

use proctor_core::sql::ResultRows;
use serde_json::Value;

use crate::text::{count, display_width, escape_line, pad, truncate};

/// The maximum width of a column.
const MAX_COLUMN_WIDTH: usize = 60;

/// Renders a result; empty if it has no columns.
pub(super) fn render(result: &ResultRows) -> String {
    if result.columns.is_empty() {
        return String::new();
    }
    let cell = |text: &str| truncate(&escape_line(text), MAX_COLUMN_WIDTH);
    let header: Vec<String> = result.columns.iter().map(|column| cell(&column.name)).collect();
    let rows: Vec<Vec<String>> =
        result.rows.iter().map(|row| row.iter().map(|value| cell(&shown(value))).collect()).collect();
    let width = |at: usize| {
        let cells = rows.iter().filter_map(|row| row.get(at)).chain(header.get(at));
        cells.map(|cell| display_width(cell)).max().unwrap_or(0)
    };
    let widths: Vec<usize> = (0..header.len()).map(width).collect();
    let is_number = |at: usize| {
        let mut values = result.rows.iter().filter_map(|row| row.get(at)).filter(|value| !value.is_null()).peekable();
        values.peek().is_some() && values.all(Value::is_number)
    };
    let numeric: Vec<bool> = (0..header.len()).map(is_number).collect();
    let line = |cells: &[String]| {
        let aligned = cells.iter().enumerate().map(|(at, cell)| match numeric.get(at) {
            Some(true) => " ".repeat(widths[at].saturating_sub(display_width(cell))) + cell,
            _ => pad(cell, widths.get(at).copied().unwrap_or(0)),
        });
        aligned.collect::<Vec<_>>().join(" | ").trim_end().to_owned() + "\n"
    };
    let rule = widths.iter().map(|width| "-".repeat(*width)).collect::<Vec<_>>().join("-+-") + "\n";
    let body: String = rows.iter().map(|row| line(row)).collect();
    let more = if result.truncated { " and more" } else { "" };
    format!("{}{rule}{body}({}{more})\n", line(&header), count(rows.len(), "row"))
}

fn shown(value: &Value) -> String {
    match value {
        Value::Null => "NULL".to_owned(),
        Value::String(text) => text.clone(),
        other => other.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use proctor_core::sql::SqlColumn;
    use serde_json::json;

    use super::*;

    #[test]
    fn aligns_and_escapes_values() {
        let column = |name: &str| SqlColumn { name: name.to_owned(), kind: None };
        let result = ResultRows {
            columns: ["id", "name"].map(column).into(),
            rows: vec![
                vec![json!(7), json!("Ann\nB")],
                vec![json!(10), json!("\u{1b}[2J\u{202e}x")],
                vec![json!(null), json!("日本")],
            ],
            truncated: true,
            ..ResultRows::default()
        };
        let expected = "  id | name\n\
                        -----+-----------------\n   \
                        7 | Ann\\nB\n  \
                        10 | \\x1b[2J\\u{202e}x\n\
                        NULL | 日本\n\
                        (3 rows and more)\n";
        assert_eq!(render(&result), expected);
        assert_eq!(render(&ResultRows::default()), "");
    }
}
