//! Splits a text into words, strings, comments and signs, as the lexer of its engine does. The result serves to find
//! positions and the ends of statements. No verdict depends on a word that is found here.
//!
//! Sources: SQLite's `tokenize.c` and `complete.c`; DuckDB's `scan.l` (derived from PostgreSQL's), where block comments
//! nest and `$tag$ … $tag$` is a string.

use std::collections::BTreeSet;
use std::ops::Range;

use proctor_core::sql::Dialect;

/// The kind of a token.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Piece {
    /// Whitespace and line ends.
    Space,
    /// `-- …` or `/* … */`.
    Comment,
    /// A keyword or a name.
    Word,
    /// A number.
    Number,
    /// A string in single quotes, or between dollar signs.
    String,
    /// A name in double quotes, backticks or brackets.
    Quoted,
    /// `;`.
    End,
    /// Any other sign.
    Sign,
    /// An unterminated string, name or comment.
    Open,
}

/// Splits a text into tokens that follow each other without gaps.
pub(crate) fn pieces(text: &str, dialect: Dialect) -> Vec<(Piece, Range<usize>)> {
    let mut found = Vec::new();
    let mut at = 0;
    while at < text.len() {
        let (piece, length) = next(&text[at..], dialect);
        let end = text.ceil_char_boundary(at + length.max(1));
        found.push((piece, at..end));
        at = end;
    }
    found
}

/// Returns the byte ranges of the statements of a text, without whitespace and comments around them. Ranges with only
/// whitespace and comments do not count. Statements within the body of an SQLite `CREATE TRIGGER` belong to it.
pub(crate) fn statements(text: &str, dialect: Dialect) -> Vec<Range<usize>> {
    let mut found = Vec::new();
    let mut words = Words::default();
    let mut current: Option<Range<usize>> = None;
    for (piece, range) in pieces(text, dialect) {
        match piece {
            Piece::Space | Piece::Comment => {}
            Piece::End if dialect == Dialect::Sqlite && words.is_within_trigger() => words.semicolon(),
            Piece::End => {
                found.extend(current.take());
                words = Words::default();
            }
            _ => {
                if piece == Piece::Word {
                    words.word(&text[range.clone()]);
                } else {
                    words.other();
                }
                current = Some(current.map_or(range.start, |begun| begun.start)..range.end);
            }
        }
    }
    found.extend(current);
    found
}

/// Returns everything in a text that can be a name, in lower case: words, and the content of quotes of any kind.
pub(crate) fn names(text: &str, dialect: Dialect) -> BTreeSet<String> {
    let is_name = |piece: Piece| matches!(piece, Piece::Word | Piece::Quoted | Piece::String | Piece::Open);
    let names = pieces(text, dialect).into_iter().filter(|(piece, _)| is_name(*piece));
    names.map(|(_, range)| unquoted(&text[range]).to_ascii_lowercase()).collect()
}

/// The first words of a statement, and whether the position is within the body of a trigger. SQLite's
/// `sqlite3_complete` uses the same rules.
#[derive(Debug, Default)]
struct Words {
    first: Vec<String>,
    /// True if the last statement of a body has ended, so that END may follow.
    is_behind_semicolon: bool,
    is_ended: bool,
}

impl Words {
    fn word(&mut self, word: &str) {
        if self.first.len() < 4 {
            self.first.push(word.to_ascii_lowercase());
        }
        if self.is_within_trigger() && self.is_behind_semicolon && word.eq_ignore_ascii_case("end") {
            self.is_ended = true;
        }
        self.is_behind_semicolon = false;
    }

    fn other(&mut self) {
        self.is_behind_semicolon = false;
    }

    fn semicolon(&mut self) {
        self.is_behind_semicolon = true;
    }

    fn is_within_trigger(&self) -> bool {
        let mut words = self.first.iter().map(String::as_str).peekable();
        if words.peek() == Some(&"explain") {
            words.next();
        }
        let is_create = words.next() == Some("create");
        let third = words.next();
        let is_trigger = match third {
            Some("temp" | "temporary") => words.next() == Some("trigger"),
            other => other == Some("trigger"),
        };
        is_create && is_trigger && !self.is_ended
    }
}

fn next(rest: &str, dialect: Dialect) -> (Piece, usize) {
    let bytes = rest.as_bytes();
    let first = bytes[0];
    let second = bytes.get(1).copied();
    match first {
        b' ' | b'\t' | b'\n' | b'\r' | 0x0c => {
            (Piece::Space, bytes.iter().take_while(|byte| matches!(byte, b' ' | b'\t' | b'\n' | b'\r' | 0x0c)).count())
        }
        b'-' if second == Some(b'-') => (Piece::Comment, rest.find('\n').unwrap_or(rest.len())),
        b'/' if second == Some(b'*') => block_comment(rest, dialect),
        b';' => (Piece::End, 1),
        b'\'' => closed(Piece::String, quoted(rest, 0, '\'')),
        b'"' => closed(Piece::Quoted, quoted(rest, 0, '"')),
        b'`' if dialect == Dialect::Sqlite => closed(Piece::Quoted, quoted(rest, 0, '`')),
        b'[' if dialect == Dialect::Sqlite => match rest.find(']') {
            Some(end) => (Piece::Quoted, end + 1),
            None => (Piece::Open, rest.len()),
        },
        b'$' if dialect == Dialect::Duckdb => dollars(rest),
        b'x' | b'X' if second == Some(b'\'') => closed(Piece::String, quoted(rest, 1, '\'')),
        b'e' | b'E' if dialect == Dialect::Duckdb && second == Some(b'\'') => escaped(rest),
        b'0'..=b'9' => (Piece::Number, number(bytes)),
        b'.' if second.is_some_and(|byte| byte.is_ascii_digit()) => (Piece::Number, number(bytes)),
        _ if is_of_word(first) => (Piece::Word, bytes.iter().take_while(|byte| is_within_word(**byte)).count()),
        _ => (Piece::Sign, 1),
    }
}

fn closed(piece: Piece, end: Option<usize>) -> (Piece, usize) {
    match end {
        Some(end) => (piece, end),
        None => (Piece::Open, usize::MAX / 2),
    }
}

/// Returns the length of the text in quotes that starts at `from`. A doubled quote is one character of the text.
fn quoted(rest: &str, from: usize, quote: char) -> Option<usize> {
    let bytes = rest.as_bytes();
    let mut at = from + 1;
    loop {
        at += rest.get(at..)?.find(quote)?;
        if bytes.get(at + 1) != Some(&(quote as u8)) {
            return Some(at + 1);
        }
        at += 2;
    }
}

/// Reads DuckDB's `E'…'`, where a backslash escapes the next character.
fn escaped(rest: &str) -> (Piece, usize) {
    let bytes = rest.as_bytes();
    let mut at = 2;
    while let Some(byte) = bytes.get(at) {
        match byte {
            b'\\' => at += 2,
            b'\'' if bytes.get(at + 1) == Some(&b'\'') => at += 2,
            b'\'' => return (Piece::String, at + 1),
            _ => at += 1,
        }
    }
    (Piece::Open, rest.len())
}

/// Reads `$$ … $$` and `$tag$ … $tag$`; `$1` and `$name` are parameters.
fn dollars(rest: &str) -> (Piece, usize) {
    let Some(end) = rest[1..].find('$').map(|at| at + 2) else { return (Piece::Sign, 1) };
    let tag = &rest[..end];
    let is_tag = tag[1..end - 1].bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'_')
        && !tag[1..].starts_with(|c: char| c.is_ascii_digit());
    if !is_tag {
        return (Piece::Sign, 1);
    }
    match rest[end..].find(tag) {
        Some(at) => (Piece::String, end + at + tag.len()),
        None => (Piece::Open, rest.len()),
    }
}

fn block_comment(rest: &str, dialect: Dialect) -> (Piece, usize) {
    let bytes = rest.as_bytes();
    let (mut at, mut depth) = (2, 1_usize);
    while at < bytes.len() {
        match (bytes[at], bytes.get(at + 1)) {
            (b'*', Some(b'/')) => {
                depth -= 1;
                at += 2;
                if depth == 0 {
                    return (Piece::Comment, at);
                }
            }
            (b'/', Some(b'*')) if dialect == Dialect::Duckdb => {
                depth += 1;
                at += 2;
            }
            _ => at += 1,
        }
    }
    // SQLite accepts a comment that ends with the text instead of `*/`.
    if dialect == Dialect::Sqlite { (Piece::Comment, rest.len()) } else { (Piece::Open, rest.len()) }
}

fn number(bytes: &[u8]) -> usize {
    let mut at = 0;
    while let Some(byte) = bytes.get(at) {
        let is_exponent_sign = matches!(byte, b'+' | b'-') && matches!(bytes[at - 1], b'e' | b'E');
        let is_hexadecimal = bytes.len() > 1 && matches!(bytes[1], b'x' | b'X');
        if byte.is_ascii_alphanumeric() || matches!(byte, b'.' | b'_') || (is_exponent_sign && !is_hexadecimal) {
            at += 1;
        } else {
            break;
        }
        if at == bytes.len() {
            break;
        }
    }
    at.max(1)
}

fn is_of_word(byte: u8) -> bool {
    byte.is_ascii_alphabetic() || byte == b'_' || byte >= 0x80
}

fn is_within_word(byte: u8) -> bool {
    is_of_word(byte) || byte.is_ascii_digit() || byte == b'$'
}

/// Returns the content of a string or a quoted name, without its quotes.
pub(crate) fn unquoted(text: &str) -> String {
    let text = text.strip_prefix(['x', 'X', 'e', 'E']).filter(|rest| rest.starts_with('\'')).unwrap_or(text);
    let Some(quote) = text.chars().next().filter(|first| matches!(first, '\'' | '"' | '`' | '[')) else {
        return text.to_owned();
    };
    let inner = text.get(1..text.len().saturating_sub(1)).unwrap_or_default();
    if quote == '[' { inner.to_owned() } else { inner.replace(&format!("{quote}{quote}"), &quote.to_string()) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn cut(text: &str, dialect: Dialect) -> Vec<&str> {
        statements(text, dialect).into_iter().map(|range| &text[range]).collect()
    }

    #[test]
    fn a_text_falls_into_its_statements() {
        let cases: &[(&str, &[&str])] = &[
            ("", &[]),
            (" ;; -- only ; this\n ;", &[]),
            ("SELECT 1", &["SELECT 1"]),
            ("SELECT ';' ; SELECT \";\" -- ;\n; /* ; */ SELECT 3;", &["SELECT ';'", "SELECT \";\"", "SELECT 3"]),
            ("SELECT id FROM customers;;DELETE FROM customers", &["SELECT id FROM customers", "DELETE FROM customers"]),
            ("SELECT 'it''s;' AS a", &["SELECT 'it''s;' AS a"]),
            ("SELECT 1 -- x", &["SELECT 1"]),
        ];
        for (text, expected) in cases {
            for dialect in Dialect::ALL {
                assert_eq!(cut(text, dialect), *expected, "{text}");
            }
        }
        let trigger = "CREATE TEMP TRIGGER t AFTER INSERT ON a BEGIN UPDATE b SET x = 1; SELECT 'end'; END; SELECT 2";
        assert_eq!(cut(trigger, Dialect::Sqlite).len(), 2);
        assert_eq!(cut("SELECT $$ ; $$; SELECT $t$ ; $t$; SELECT /* /* ; */ ; */ 1", Dialect::Duckdb).len(), 3);
        assert_eq!(cut("SELECT [a;b], `c;d`; SELECT 1", Dialect::Sqlite).len(), 2);
        assert_eq!(cut(r"SELECT E'\';'; SELECT 2", Dialect::Duckdb).len(), 2);
    }

    #[test]
    fn what_does_not_end_is_open() {
        for (text, dialect) in [("'abc", Dialect::Sqlite), ("\"abc", Dialect::Duckdb), ("/* a", Dialect::Duckdb)] {
            assert_eq!(pieces(text, dialect), [(Piece::Open, 0..text.len())]);
        }
        assert_eq!(pieces("/* a", Dialect::Sqlite)[0].0, Piece::Comment);
    }

    #[test]
    fn quotes_are_taken_off() {
        let cases =
            [("'it''s'", "it's"), ("\"a\"\"b\"", "a\"b"), ("[a b]", "a b"), ("`a`", "a"), ("x'00'", "00"), ("a", "a")];
        for (text, expected) in cases {
            assert_eq!(unquoted(text), expected);
        }
    }

    proptest! {
        #[test]
        fn pieces_cover_any_text(text in "(?s)[ -~\n\u{e9}]{0,80}", is_duck in any::<bool>()) {
            let dialect = if is_duck { Dialect::Duckdb } else { Dialect::Sqlite };
            let mut at = 0;
            for (_, range) in pieces(&text, dialect) {
                prop_assert_eq!(range.start, at);
                prop_assert!(range.end > at);
                at = range.end;
            }
            prop_assert_eq!(at, text.len());
        }
    }
}
