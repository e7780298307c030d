//! Renders rows as a table. Names and values come from a database and are escaped.

use proctor_core::sql::ResultRows;
use serde_json::Value;

use crate::screen::TextLayout;
use crate::text::{count, display_width, escape_line, pad, truncate};

/// Maximum width of a column on a terminal, in columns.
const MAX_CELL_WIDTH: usize = 60;

/// Renders rows with a head and their number.
pub(super) fn render(result: &ResultRows, layout: TextLayout) -> String {
    let cut = |text: String| if layout.wraps { truncate(&text, MAX_CELL_WIDTH) } else { text };
    let head: Vec<String> = result.columns.iter().map(|column| cut(escape_line(&column.name))).collect();
    let rows: Vec<Vec<(String, bool)>> =
        result.rows.iter().map(|row| row.iter().map(|value| (cut(cell(value)), value.is_number())).collect()).collect();
    let width = |at: usize| {
        let cells = rows.iter().filter_map(|row| row.get(at)).map(|(text, _)| display_width(text));
        cells.chain(head.get(at).map(|name| display_width(name))).max().unwrap_or(0)
    };
    let widths: Vec<usize> = (0..head.len()).map(width).collect();
    let mut text = String::new();
    if !head.is_empty() {
        text += &line(head.iter().zip(&widths).map(|(name, width)| pad(name, *width)));
        text += &line(widths.iter().map(|width| "-".repeat(*width)));
    }
    for row in &rows {
        text += &line(row.iter().zip(&widths).map(|((cell, is_number), width)| match is_number {
            true => " ".repeat(width.saturating_sub(display_width(cell))) + cell,
            false => pad(cell, *width),
        }));
    }
    text + &summary(result)
}

fn line(cells: impl Iterator<Item = String>) -> String {
    cells.collect::<Vec<_>>().join("  ").trim_end().to_owned() + "\n"
}

fn cell(value: &Value) -> String {
    match value {
        Value::Null => "NULL".to_owned(),
        Value::String(text) => escape_line(text),
        other => escape_line(&other.to_string()),
    }
}

fn summary(result: &ResultRows) -> String {
    let rows = count(result.rows.len(), "row");
    let more = if result.truncated { "; the result has more rows" } else { "" };
    match result.changed {
        0 => format!("({rows}{more})\n"),
        changed => format!(
            "({rows}{more}; {} would change, rolled back)\n",
            count(usize::try_from(changed).unwrap_or(usize::MAX), "row")
        ),
    }
}

#[cfg(test)]
mod tests {
    use proctor_core::sql::SqlColumn;
    use serde_json::json;

    use super::*;

    fn result(columns: &[&str], rows: Vec<Vec<Value>>) -> ResultRows {
        let column = |name: &&str| SqlColumn { name: (*name).to_owned(), kind: None };
        ResultRows { columns: columns.iter().map(column).collect(), rows, ..ResultRows::default() }
    }

    #[test]
    fn aligns_columns() {
        let result = result(&["name", "n"], vec![vec![json!("Ada"), json!(5)], vec![json!(null), json!(10)]]);
        let expected = "name  n\n----  --\nAda    5\nNULL  10\n(2 rows)\n";
        assert_eq!(render(&result, TextLayout::LOG), expected);
    }

    #[test]
    fn values_cannot_control_the_screen() {
        let hostile = "a\u{1b}[2J\nb\tc\u{202e}d";
        let text = render(&result(&[hostile], vec![vec![json!(hostile)]]), TextLayout::LOG);
        assert_eq!(text.lines().count(), 4, "{text}");
        assert!(!text.contains(['\u{1b}', '\t', '\u{202e}']), "{text:?}");
    }

    #[test]
    fn reports_further_rows_and_changes() {
        let mut result = result(&[], Vec::new());
        (result.truncated, result.changed) = (true, 3);
        assert_eq!(
            render(&result, TextLayout::LOG),
            "(0 rows; the result has more rows; 3 rows would change, rolled back)\n"
        );
    }
}
