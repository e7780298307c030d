//! Finds the statement in a text that may contain prose: a statement that starts on its own line, in inline code, or
//! after a colon.

use super::unreadable_answer::UnreadableAnswer;

/// Words that start a statement, including kinds that every policy refuses: the judgement refuses them, not the reader.
const FIRST_WORDS: [&str; 48] = [
    "SELECT",
    "WITH",
    "INSERT",
    "UPDATE",
    "DELETE",
    "VALUES",
    "REPLACE",
    "MERGE",
    "CREATE",
    "ALTER",
    "DROP",
    "EXPLAIN",
    "TABLE",
    "FROM",
    "SHOW",
    "DESCRIBE",
    "PRAGMA",
    "TRUNCATE",
    "PIVOT",
    "SUMMARIZE",
    "GRANT",
    "RENAME",
    "REVOKE",
    "ATTACH",
    "DETACH",
    "COPY",
    "CALL",
    "SET",
    "RESET",
    "BEGIN",
    "START",
    "COMMIT",
    "ROLLBACK",
    "SAVEPOINT",
    "RELEASE",
    "END",
    "LOAD",
    "INSTALL",
    "VACUUM",
    "ANALYZE",
    "REINDEX",
    "LOCK",
    "PREPARE",
    "EXECUTE",
    "USE",
    "IMPORT",
    "EXPORT",
    "CHECKPOINT",
];
/// Words that also start English sentences. In lower or mixed case, they start a statement only if the text also
/// contains one of [`LATER_WORDS`].
const LATER_WORDS: [&str; 8] = ["from", "values", "set", "into", "as (", "as(", "select", "table"];

/// Returns the statement.
///
/// # Errors
/// The text contains no statement, or several.
pub(super) fn find_statement(text: &str) -> Result<String, UnreadableAnswer> {
    let mut found = statements_at_lines(text);
    if found.is_empty() {
        found = statements_in_inline_code(text);
    }
    if found.is_empty() {
        found = statements_after_colon(text);
    }
    found.dedup();
    match found.as_slice() {
        [] => Err(UnreadableAnswer::NoStatement),
        [only] => Ok((*only).to_owned()),
        _ => Err(UnreadableAnswer::Ambiguous),
    }
}

/// Returns whether a text starts like a statement.
pub(super) fn starts_with_statement(text: &str) -> bool {
    let text = skip_comments(text);
    let first = text.trim_start_matches(['(', ' ', '\t']);
    let word: &str = first.split(|c: char| !c.is_ascii_alphabetic()).next().unwrap_or_default();
    let Some(known) = FIRST_WORDS.iter().find(|known| known.eq_ignore_ascii_case(word)) else { return false };
    let rest = first.get(word.len()..).unwrap_or_default();
    if rest.starts_with(|c: char| c.is_alphanumeric() || matches!(c, '_' | ':' | '\'' | '-' | ',')) {
        return false;
    }
    if word == *known {
        return true;
    }
    let lower = rest.to_ascii_lowercase();
    word == known.to_ascii_lowercase() && (LATER_WORDS.iter().any(|later| lower.contains(later)) || rest.contains('*'))
        || word == known.to_ascii_lowercase() && lower.trim_start().starts_with(|c: char| c.is_ascii_digit())
}

/// Skips comments and empty lines.
fn skip_comments(mut text: &str) -> &str {
    loop {
        text = text.trim_start();
        if let Some(rest) = text.strip_prefix("--") {
            text = rest.split_once('\n').map_or("", |(_, after)| after);
        } else if let Some(rest) = text.strip_prefix("/*") {
            text = rest.split_once("*/").map_or("", |(_, after)| after);
        } else {
            return text;
        }
    }
}

/// Returns the statements that start at the start of a line. Each ends at a semicolon, at an empty line, or at the end.
fn statements_at_lines(text: &str) -> Vec<&str> {
    let mut found = Vec::new();
    let mut at = 0;
    while at < text.len() {
        let rest = &text[at..];
        let line_end = rest.find('\n').map_or(rest.len(), |end| end + 1);
        let paragraph = &rest[..paragraph_length(rest)];
        if starts_with_statement(paragraph) && !is_blank(&rest[..line_end]) {
            let length = statement_length(rest);
            found.push(rest[..length].trim());
            at += length.max(1);
            // A second statement may follow on the same line; prose may not.
            let line = text[at..].find('\n').map_or(text.len() - at, |end| end + 1);
            if !starts_with_statement(&text[at..at + line]) {
                at += line;
            }
        } else {
            at += line_end;
        }
    }
    found
}

/// Returns the length of the statement at the start of a text, with its semicolon. Quotes and comments may contain
/// semicolons and empty lines.
fn statement_length(text: &str) -> usize {
    let bytes = text.as_bytes();
    let mut at = 0;
    while at < bytes.len() {
        match bytes[at] {
            quote @ (b'\'' | b'"' | b'`') => match find_byte(bytes, at + 1, quote) {
                Some(end) => at = end + 1,
                None => return bytes.len(),
            },
            b'-' if bytes[at..].starts_with(b"--") => {
                at = find_byte(bytes, at, b'\n').unwrap_or(bytes.len());
            }
            b';' => return at + 1,
            b'\n' if is_blank(text[at + 1..].split('\n').next().unwrap_or_default()) => return at,
            _ => at += 1,
        }
    }
    bytes.len()
}

fn paragraph_length(text: &str) -> usize {
    let mut at = 0;
    for line in text.split_inclusive('\n') {
        if at > 0 && is_blank(line) {
            return at;
        }
        at += line.len();
    }
    at
}

fn find_byte(bytes: &[u8], from: usize, wanted: u8) -> Option<usize> {
    bytes.get(from..)?.iter().position(|byte| *byte == wanted).map(|at| from + at)
}

fn is_blank(line: &str) -> bool {
    line.trim().is_empty()
}

/// Returns the statements between single backticks.
fn statements_in_inline_code(text: &str) -> Vec<&str> {
    text.split('`').skip(1).step_by(2).map(str::trim).filter(|code| starts_with_statement(code)).collect()
}

/// Returns the statements in capitals that follow a colon on the same line.
fn statements_after_colon(text: &str) -> Vec<&str> {
    let mut found = Vec::new();
    let mut at = 0;
    while let Some(colon) = text[at..].find(": ") {
        let start = at + colon + 2;
        let rest = &text[start..];
        if starts_with_statement(rest) && rest.starts_with(|c: char| c.is_ascii_uppercase() || c == '(') {
            let length = statement_length(rest);
            found.push(rest[..length].trim());
            at = start + length;
        } else {
            at = start;
        }
    }
    found
}
