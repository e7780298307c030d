//! Splits a text into words, strings, comments and signs, as the lexer of its engine does. The result serves to find
//! positions and the ends of statements. No verdict depends on a word that is found here.
//!
//! Sources: SQLite's `tokenize.c` and `complete.c`; PostgreSQL's `scan.l` (and DuckDB's, which is derived from it), where
//! block comments nest, a carriage return ends a comment, and `$tag$ … $tag$` is a string; MySQL's manual, where a
//! backslash escapes a character of a string, double quotes enclose strings, `#` begins a comment, and `--` does so only
//! before whitespace.

mod unicode_escapes;

use std::collections::BTreeSet;
use std::ops::Range;

use proctor_core::sql::Dialect;

/// The kind of a token.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum SqlTokenKind {
    /// Whitespace and line ends.
    Whitespace,
    /// `-- …`, `/* … */` or `# …`.
    Comment,
    /// A keyword or a name.
    Word,
    /// A number.
    Number,
    /// A string in single quotes, in double quotes (MySQL), or between dollar signs.
    String,
    /// A name in double quotes, backticks or brackets.
    Quoted,
    /// `;`.
    Semicolon,
    /// Any other sign.
    Symbol,
    /// An unterminated string, name or comment.
    Unterminated,
}

/// Splits a text into tokens that follow each other without gaps.
pub(crate) fn tokenize(text: &str, dialect: Dialect) -> Vec<(SqlTokenKind, Range<usize>)> {
    let mut found = Vec::new();
    let mut at = 0;
    while at < text.len() {
        let (piece, length) = next_token(&text[at..], dialect);
        let end = text.ceil_char_boundary(at + length.max(1));
        found.push((piece, at..end));
        at = end;
    }
    found
}

/// Returns the byte ranges of the statements of a text, without whitespace and comments around them. Ranges with only
/// whitespace and comments do not count. Statements within the body of an SQLite `CREATE TRIGGER` belong to it.
pub(crate) fn statement_ranges(text: &str, dialect: Dialect) -> Vec<Range<usize>> {
    let mut found = Vec::new();
    let mut words = TriggerTracker::default();
    let mut current: Option<Range<usize>> = None;
    for (piece, range) in tokenize(text, dialect) {
        match piece {
            SqlTokenKind::Whitespace | SqlTokenKind::Comment => {}
            SqlTokenKind::Semicolon if dialect == Dialect::Sqlite && words.is_within_trigger() => {
                words.push_semicolon();
            }
            SqlTokenKind::Semicolon => {
                found.extend(current.take());
                words = TriggerTracker::default();
            }
            _ => {
                if piece == SqlTokenKind::Word {
                    words.push_word(&text[range.clone()]);
                } else {
                    words.push_other();
                }
                current = Some(current.map_or(range.start, |begun| begun.start)..range.end);
            }
        }
    }
    found.extend(current);
    found
}

/// Returns everything in a text that can be a name, in lower case: words, and the content of quotes of any kind.
pub(crate) fn possible_names(text: &str, dialect: Dialect) -> BTreeSet<String> {
    let is_name = |piece: SqlTokenKind| {
        matches!(piece, SqlTokenKind::Word | SqlTokenKind::Quoted | SqlTokenKind::String | SqlTokenKind::Unterminated)
    };
    let names = tokenize(text, dialect).into_iter().filter(|(piece, _)| is_name(*piece));
    names.map(|(_, range)| unquote(&text[range]).to_ascii_lowercase()).collect()
}

/// The first words of a statement, and whether the position is within the body of a trigger. SQLite's
/// `sqlite3_complete` uses the same rules.
#[derive(Debug, Default)]
struct TriggerTracker {
    first: Vec<String>,
    /// True if the last statement of a body has ended, so END may follow.
    is_after_semicolon: bool,
    is_body_ended: bool,
}

impl TriggerTracker {
    fn push_word(&mut self, word: &str) {
        if self.first.len() < 4 {
            self.first.push(word.to_ascii_lowercase());
        }
        if self.is_within_trigger() && self.is_after_semicolon && word.eq_ignore_ascii_case("end") {
            self.is_body_ended = true;
        }
        self.is_after_semicolon = false;
    }

    fn push_other(&mut self) {
        self.is_after_semicolon = false;
    }

    fn push_semicolon(&mut self) {
        self.is_after_semicolon = true;
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
        is_create && is_trigger && !self.is_body_ended
    }
}

fn next_token(rest: &str, dialect: Dialect) -> (SqlTokenKind, usize) {
    let bytes = rest.as_bytes();
    let first = bytes[0];
    let second = bytes.get(1).copied();
    if dialect == Dialect::Mysql
        && let Some(token) = next_mysql_token(rest)
    {
        return token;
    }
    if dialect == Dialect::Postgres
        && let Some(token) = unicode_escapes::lex(rest)
    {
        return token;
    }
    match first {
        b' ' | b'\t' | b'\n' | b'\r' | 0x0c => (
            SqlTokenKind::Whitespace,
            bytes.iter().take_while(|byte| matches!(byte, b' ' | b'\t' | b'\n' | b'\r' | 0x0c)).count(),
        ),
        b'-' if second == Some(b'-') && has_postgres_strings(dialect) => {
            (SqlTokenKind::Comment, rest.find(['\n', '\r']).unwrap_or(rest.len()))
        }
        b'-' if second == Some(b'-') => (SqlTokenKind::Comment, rest.find('\n').unwrap_or(rest.len())),
        b'/' if second == Some(b'*') => lex_block_comment(rest, dialect),
        b';' => (SqlTokenKind::Semicolon, 1),
        b'\'' => closed_token(SqlTokenKind::String, quoted_length(rest, 0, '\'')),
        b'"' => closed_token(SqlTokenKind::Quoted, quoted_length(rest, 0, '"')),
        b'`' if dialect == Dialect::Sqlite => closed_token(SqlTokenKind::Quoted, quoted_length(rest, 0, '`')),
        b'[' if dialect == Dialect::Sqlite => match rest.find(']') {
            Some(end) => (SqlTokenKind::Quoted, end + 1),
            None => (SqlTokenKind::Unterminated, rest.len()),
        },
        b'$' if has_postgres_strings(dialect) => lex_dollar_quoted(rest),
        b'x' | b'X' if second == Some(b'\'') => closed_token(SqlTokenKind::String, quoted_length(rest, 1, '\'')),
        b'e' | b'E' if has_postgres_strings(dialect) && second == Some(b'\'') => lex_escape_string(rest),
        b'0'..=b'9' => (SqlTokenKind::Number, number_length(bytes)),
        b'.' if second.is_some_and(|byte| byte.is_ascii_digit()) => (SqlTokenKind::Number, number_length(bytes)),
        _ if is_word_start(first) => (SqlTokenKind::Word, word_length(bytes)),
        _ => (SqlTokenKind::Symbol, 1),
    }
}

/// Reads a token for which MySQL has special rules.
fn next_mysql_token(rest: &str) -> Option<(SqlTokenKind, usize)> {
    let bytes = rest.as_bytes();
    let second = bytes.get(1).copied();
    let is_string = |at: usize| matches!(bytes.get(at), Some(b'\'' | b'"'));
    match bytes[0] {
        0x0b => Some((SqlTokenKind::Whitespace, 1)),
        b'#' => Some((SqlTokenKind::Comment, rest.find('\n').unwrap_or(rest.len()))),
        // `5--3` is a subtraction.
        b'-' if second == Some(b'-') && bytes.get(2).is_some_and(|byte| *byte > b' ' && *byte != 0x7f) => {
            Some((SqlTokenKind::Symbol, 1))
        }
        b'\'' | b'"' => Some(lex_mysql_string(rest, 0)),
        b'n' | b'N' | b'b' | b'B' | b'x' | b'X' if is_string(1) => Some(lex_mysql_string(rest, 1)),
        b'`' => Some(closed_token(SqlTokenKind::Quoted, quoted_length(rest, 0, '`'))),
        b'0'..=b'9' => Some(lex_mysql_number(bytes)),
        b'.' if second.is_some_and(|byte| byte.is_ascii_digit()) => Some(lex_mysql_number(bytes)),
        b'$' => Some((SqlTokenKind::Word, word_length(bytes))),
        _ => None,
    }
}

/// Reads a number, or a name that begins with digits. A keyword may follow a number without a space: `1.for`.
fn lex_mysql_number(bytes: &[u8]) -> (SqlTokenKind, usize) {
    let digits = |from: usize| bytes[from..].iter().take_while(|byte| byte.is_ascii_digit()).count();
    let exponent = |from: usize| {
        let sign = usize::from(matches!(bytes.get(from + 1), Some(b'+' | b'-')));
        let is_exponent = matches!(bytes.get(from), Some(b'e' | b'E'));
        let length = bytes.get(from + 1 + sign).map_or(0, |_| digits(from + 1 + sign));
        if is_exponent && length > 0 { 1 + sign + length } else { 0 }
    };
    let whole = digits(0);
    if bytes.get(whole) == Some(&b'.') {
        let end = whole + 1 + digits(whole + 1);
        return (SqlTokenKind::Number, end + exponent(end));
    }
    if exponent(whole) > 0 {
        return (SqlTokenKind::Number, whole + exponent(whole));
    }
    let word = word_length(bytes);
    let is_prefixed = |prefix: &[u8], is_digit: fn(&u8) -> bool| {
        bytes.starts_with(prefix) && word > 2 && bytes[2..word].iter().all(is_digit)
    };
    let is_number = word == whole
        || is_prefixed(b"0x", u8::is_ascii_hexdigit)
        || is_prefixed(b"0b", |byte| matches!(byte, b'0' | b'1'));
    (if is_number { SqlTokenKind::Number } else { SqlTokenKind::Word }, word)
}

fn word_length(bytes: &[u8]) -> usize {
    bytes.iter().take_while(|byte| is_word_part(**byte)).count()
}

/// Reads a string whose first quote is at `from`. A backslash escapes the next character; a doubled quote is one
/// character.
fn lex_mysql_string(rest: &str, from: usize) -> (SqlTokenKind, usize) {
    let bytes = rest.as_bytes();
    let quote = bytes[from];
    let mut at = from + 1;
    while let Some(byte) = bytes.get(at) {
        match *byte {
            b'\\' => at += 2,
            byte if byte == quote && bytes.get(at + 1) == Some(&quote) => at += 2,
            byte if byte == quote => return (SqlTokenKind::String, at + 1),
            _ => at += 1,
        }
    }
    (SqlTokenKind::Unterminated, rest.len())
}

/// Reports whether a dialect has PostgreSQL's lexical rules: `E'…'`, `$tag$ … $tag$` and nested comments.
fn has_postgres_strings(dialect: Dialect) -> bool {
    matches!(dialect, Dialect::Duckdb | Dialect::Postgres)
}

fn closed_token(piece: SqlTokenKind, end: Option<usize>) -> (SqlTokenKind, usize) {
    match end {
        Some(end) => (piece, end),
        None => (SqlTokenKind::Unterminated, usize::MAX / 2),
    }
}

/// Returns the length of the text in quotes that starts at `from`. A doubled quote is one character of the text.
fn quoted_length(rest: &str, from: usize, quote: char) -> Option<usize> {
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

/// Reads `E'…'`, where a backslash escapes the next character.
fn lex_escape_string(rest: &str) -> (SqlTokenKind, usize) {
    let bytes = rest.as_bytes();
    let mut at = 2;
    while let Some(byte) = bytes.get(at) {
        match byte {
            b'\\' => at += 2,
            b'\'' if bytes.get(at + 1) == Some(&b'\'') => at += 2,
            b'\'' => return (SqlTokenKind::String, at + 1),
            _ => at += 1,
        }
    }
    (SqlTokenKind::Unterminated, rest.len())
}

/// Reads `$$ … $$` and `$tag$ … $tag$`; `$1` and `$name` are parameters.
fn lex_dollar_quoted(rest: &str) -> (SqlTokenKind, usize) {
    let Some(end) = rest[1..].find('$').map(|at| at + 2) else { return (SqlTokenKind::Symbol, 1) };
    let tag = &rest[..end];
    let is_tag = tag[1..end - 1].bytes().all(|byte| is_word_start(byte) || byte.is_ascii_digit())
        && !tag[1..].starts_with(|c: char| c.is_ascii_digit());
    if !is_tag {
        return (SqlTokenKind::Symbol, 1);
    }
    match rest[end..].find(tag) {
        Some(at) => (SqlTokenKind::String, end + at + tag.len()),
        None => (SqlTokenKind::Unterminated, rest.len()),
    }
}

fn lex_block_comment(rest: &str, dialect: Dialect) -> (SqlTokenKind, usize) {
    let bytes = rest.as_bytes();
    let (mut at, mut depth) = (2, 1_usize);
    while at < bytes.len() {
        match (bytes[at], bytes.get(at + 1)) {
            (b'*', Some(b'/')) => {
                depth -= 1;
                at += 2;
                if depth == 0 {
                    return (SqlTokenKind::Comment, at);
                }
            }
            (b'/', Some(b'*')) if has_postgres_strings(dialect) => {
                depth += 1;
                at += 2;
            }
            _ => at += 1,
        }
    }
    // SQLite accepts a comment that ends with the text instead of `*/`.
    if dialect == Dialect::Sqlite {
        (SqlTokenKind::Comment, rest.len())
    } else {
        (SqlTokenKind::Unterminated, rest.len())
    }
}

fn number_length(bytes: &[u8]) -> usize {
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

fn is_word_start(byte: u8) -> bool {
    byte.is_ascii_alphabetic() || byte == b'_' || byte >= 0x80
}

fn is_word_part(byte: u8) -> bool {
    is_word_start(byte) || byte.is_ascii_digit() || byte == b'$'
}

/// Returns the value of a string: its content, with MySQL's escapes replaced.
pub(crate) fn string_value(text: &str, dialect: Dialect) -> String {
    let value = unquote(text);
    if dialect != Dialect::Mysql || !value.contains('\\') {
        return value;
    }
    let mut chars = value.chars();
    let mut result = String::new();
    while let Some(c) = chars.next() {
        match c {
            '\\' => result.extend(chars.next().map(|escaped| match escaped {
                'n' => '\n',
                't' => '\t',
                'r' => '\r',
                '0' => '\0',
                other => other,
            })),
            other => result.push(other),
        }
    }
    result
}

/// Returns the content of a string or a quoted name, without its quotes.
pub(crate) fn unquote(text: &str) -> String {
    if let Some(content) = unicode_escapes::unescape(text) {
        return content;
    }
    let text = text
        .strip_prefix(['x', 'X', 'e', 'E', 'n', 'N', 'b', 'B'])
        .filter(|rest| rest.starts_with('\''))
        .unwrap_or(text);
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

    fn split_statements(text: &str, dialect: Dialect) -> Vec<&str> {
        statement_ranges(text, dialect).into_iter().map(|range| &text[range]).collect()
    }

    #[test]
    fn splits_text_into_statements() {
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
                assert_eq!(split_statements(text, dialect), *expected, "{text}");
            }
        }
        let mysql: &[(&str, &[&str])] = &[
            (r"SELECT '\';' ; SELECT 2", &[r"SELECT '\';'", "SELECT 2"]),
            (r#"SELECT "\";" ; SELECT 2"#, &[r#"SELECT "\";""#, "SELECT 2"]),
            (r"SELECT '\\'; SELECT 2", &[r"SELECT '\\'", "SELECT 2"]),
            ("SELECT `a;``b` # ; '\n, 2", &["SELECT `a;``b` # ; '\n, 2"]),
            ("SELECT 5--';'", &["SELECT 5--';'"]),
            ("SELECT 5 -- ;", &["SELECT 5"]),
            ("SELECT 5 --\n;SELECT 1 --", &["SELECT 5", "SELECT 1"]),
            ("SELECT /* /* ; */ 1; SELECT 2", &["SELECT /* /* ; */ 1", "SELECT 2"]),
        ];
        for (text, expected) in mysql {
            assert_eq!(split_statements(text, Dialect::Mysql), *expected, "{text}");
        }
        let trigger = "CREATE TEMP TRIGGER t AFTER INSERT ON a BEGIN UPDATE b SET x = 1; SELECT 'end'; END; SELECT 2";
        assert_eq!(split_statements(trigger, Dialect::Sqlite).len(), 2);
        assert_eq!(
            split_statements("SELECT $$ ; $$; SELECT $t$ ; $t$; SELECT /* /* ; */ ; */ 1", Dialect::Duckdb).len(),
            3
        );
        assert_eq!(split_statements("SELECT [a;b], `c;d`; SELECT 1", Dialect::Sqlite).len(), 2);
        assert_eq!(split_statements(r"SELECT E'\';'; SELECT 2", Dialect::Duckdb).len(), 2);
        for dialect in [Dialect::Duckdb, Dialect::Postgres] {
            assert_eq!(
                split_statements("SELECT 1 --\r; SELECT 2", dialect).len(),
                2,
                "a carriage return ends a comment"
            );
            assert_eq!(split_statements("SELECT $é$ ; $é$", dialect).len(), 1);
        }
        assert_eq!(split_statements("SELECT 1 --\r; SELECT 2", Dialect::Sqlite).len(), 1);
    }

    #[test]
    fn marks_unterminated_tokens() {
        for (text, dialect) in [("'abc", Dialect::Sqlite), ("\"abc", Dialect::Duckdb), ("/* a", Dialect::Duckdb)] {
            assert_eq!(tokenize(text, dialect), [(SqlTokenKind::Unterminated, 0..text.len())]);
        }
        assert_eq!(tokenize("/* a", Dialect::Sqlite)[0].0, SqlTokenKind::Comment);
        for text in [r"'abc\'", "\"abc", "`abc", "/* a", "n'a"] {
            assert_eq!(tokenize(text, Dialect::Mysql), [(SqlTokenKind::Unterminated, 0..text.len())], "{text}");
        }
    }

    #[test]
    fn separates_numbers_from_words_in_mysql() {
        let kinds = |text: &'static str| {
            let all = tokenize(text, Dialect::Mysql).into_iter().filter(|(kind, _)| *kind != SqlTokenKind::Whitespace);
            all.map(|(kind, range)| (kind, &text[range])).collect::<Vec<_>>()
        };
        let (number, word) = (SqlTokenKind::Number, SqlTokenKind::Word);
        assert_eq!(kinds("1.for .5into"), [(number, "1."), (word, "for"), (number, ".5"), (word, "into")]);
        assert_eq!(
            kinds("1e5for 1abc 0x1F 0xfor"),
            [(number, "1e5"), (word, "for"), (word, "1abc"), (number, "0x1F"), (word, "0xfor")]
        );
        assert_eq!(kinds("1e+2 2.5E-1x 7"), [(number, "1e+2"), (number, "2.5E-1"), (word, "x"), (number, "7")]);
    }

    #[test]
    fn replaces_escapes_of_mysql() {
        let cases = [(r"'O\'Brien'", "O'Brien"), (r#""a\nb""#, "a\nb"), (r"'50\%'", "50%"), ("'it''s'", "it's")];
        for (text, expected) in cases {
            assert_eq!(string_value(text, Dialect::Mysql), expected);
        }
        assert_eq!(string_value(r"'a\b'", Dialect::Sqlite), r"a\b");
    }

    #[test]
    fn removes_quotes() {
        let cases =
            [("'it''s'", "it's"), ("\"a\"\"b\"", "a\"b"), ("[a b]", "a b"), ("`a`", "a"), ("x'00'", "00"), ("a", "a")];
        for (text, expected) in cases {
            assert_eq!(unquote(text), expected);
        }
    }

    proptest! {
        #[test]
        fn tokens_cover_any_text(text in "(?s)[ -~\n\u{e9}]{0,80}", index in 0..Dialect::ALL.len()) {
            let dialect = Dialect::ALL[index];
            let mut at = 0;
            for (_, range) in tokenize(&text, dialect) {
                prop_assert_eq!(range.start, at);
                prop_assert!(range.end > at);
                at = range.end;
            }
            prop_assert_eq!(at, text.len());
        }
    }
}
