//! Finds the comments in the definition of a table. SQLite stores the text of the definition.

use std::ops::Range;

use proctor_core::sql::Dialect;

use crate::catalog::SchemaComment;
use crate::lexer::{self, SqlTokenKind};

/// Words that begin a constraint of the table instead of a column.
const CONSTRAINT_WORDS: [&str; 5] = ["constraint", "primary", "unique", "check", "foreign"];

/// The parts of a definition.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Position {
    /// Before the list of columns.
    Head,
    /// In the column or constraint with this number.
    Column(usize),
    /// After the list of columns.
    Tail,
}

/// Returns the comments of a table and its columns. A comment on the line of a column belongs to this column; a comment
/// on a separate line belongs to the next column. Comments before and after the list of columns, and on the line of its
/// first bracket, belong to the table.
pub(super) fn find(table: &str, sql: &str) -> Vec<SchemaComment> {
    let mut reader =
        DefinitionReader { sql, position: Position::Head, depth: 0, columns: Vec::new(), notes: Vec::new() };
    let mut line_end = 0;
    for (kind, range) in lexer::tokenize(sql, Dialect::Sqlite) {
        match kind {
            SqlTokenKind::Whitespace => {}
            SqlTokenKind::Comment => {
                let is_on_line = !sql[line_end..range.start].contains('\n');
                reader.handle_comment(&range, is_on_line);
            }
            _ => {
                reader.handle_token(kind, &range);
                line_end = range.end;
            }
        }
    }
    reader.into_comments(table)
}

struct DefinitionReader<'a> {
    sql: &'a str,
    position: Position,
    depth: usize,
    /// The name of each column; `None` for a constraint.
    columns: Vec<Option<String>>,
    /// The comments: the index of their column or `None`, and their text.
    notes: Vec<(Option<usize>, String)>,
}

impl DefinitionReader<'_> {
    fn handle_token(&mut self, kind: SqlTokenKind, range: &Range<usize>) {
        let word = &self.sql[range.clone()];
        match (word, self.depth) {
            ("(", 0) if self.position == Position::Head => self.position = Position::Column(0),
            (")", 1) if matches!(self.position, Position::Column(_)) => self.position = Position::Tail,
            (",", 1) => {
                if let Position::Column(index) = self.position {
                    self.position = Position::Column(index + 1);
                }
            }
            (_, 1) => self.handle_name(kind, word),
            _ => {}
        }
        match word {
            "(" => self.depth += 1,
            ")" => self.depth = self.depth.saturating_sub(1),
            _ => {}
        }
    }

    /// Takes the first token of a column as its name.
    fn handle_name(&mut self, kind: SqlTokenKind, word: &str) {
        let Position::Column(index) = self.position else { return };
        if self.columns.len() == index {
            let is_constraint = kind == SqlTokenKind::Word && CONSTRAINT_WORDS.contains(&&*word.to_ascii_lowercase());
            self.columns.push((!is_constraint).then(|| lexer::unquote(word)));
        }
    }

    fn handle_comment(&mut self, range: &Range<usize>, is_on_line: bool) {
        let text = comment_text(&self.sql[range.clone()]);
        if text.is_empty() {
            return;
        }
        let column = match self.position {
            Position::Head | Position::Tail => None,
            // The line of the bracket, without a column.
            Position::Column(0) if is_on_line && self.columns.is_empty() => None,
            // The comma before the comment already began the next column.
            Position::Column(index) if is_on_line && self.columns.len() == index => index.checked_sub(1),
            Position::Column(index) => Some(index),
        };
        self.notes.push((column, text));
    }

    fn into_comments(self, table: &str) -> Vec<SchemaComment> {
        let mut comments: Vec<SchemaComment> = Vec::new();
        for (index, text) in self.notes {
            let column = match index.map(|index| self.columns.get(index)) {
                None => None,
                Some(Some(Some(name))) => Some(name.clone()),
                // A comment of a constraint.
                Some(_) => continue,
            };
            match comments.iter_mut().find(|comment| comment.column == column) {
                Some(comment) => comment.text = format!("{} {text}", comment.text),
                None => comments.push(SchemaComment { table: table.to_owned(), column, text }),
            }
        }
        comments
    }
}

/// Returns the text of a comment on one line.
fn comment_text(comment: &str) -> String {
    let inner = match comment.strip_prefix("/*") {
        Some(inner) => inner.strip_suffix("*/").unwrap_or(inner),
        None => comment.trim_start_matches('-'),
    };
    let words = inner.split_whitespace().filter(|word| !word.bytes().all(|byte| matches!(byte, b'*' | b'-' | b'=')));
    words.collect::<Vec<_>>().join(" ")
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn found(sql: &str) -> Vec<(Option<String>, String)> {
        find("t", sql).into_iter().map(|comment| (comment.column, comment.text)).collect()
    }

    #[test]
    fn assigns_comments_to_columns() {
        let sql = "CREATE TABLE t ( -- orders of customers
            id INTEGER PRIMARY KEY, -- the number
            /* net,
             * in cents */
            total INTEGER DEFAULT (1 + 2) -- without tax
            , \"customer id\" INT, --
            -- ignored key
            FOREIGN KEY (total) REFERENCES u (id), -- of the key
            kind TEXT CHECK (kind IN ('--', ',')) -- a or b
        ) STRICT /* end */";
        let of = |column: Option<&str>, text: &str| (column.map(str::to_owned), text.to_owned());
        let expected = [
            of(None, "orders of customers end"),
            of(Some("id"), "the number"),
            of(Some("total"), "net, in cents without tax"),
            of(Some("kind"), "a or b"),
        ];
        assert_eq!(found(sql), expected);
    }

    #[test]
    fn finds_nothing_in_definitions_without_comments() {
        assert!(found("CREATE TABLE t (a TEXT DEFAULT '-- no', b)").is_empty());
        assert!(found("CREATE TABLE t AS SELECT 1").is_empty());
    }

    proptest! {
        #[test]
        fn reads_any_definition(sql in "[a-c (),'\"\n/*-]{0,60}") {
            let _ = find("t", &sql);
        }
    }
}
