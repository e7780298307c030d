//! Parses locations in files: `path:line: …`, `path:line:column: …`, `path(line,column): …` and stack frames.

/// Maximum number of digits of a line number or column.
const MAX_DIGITS: usize = 7;
/// Maximum number of bytes of a path.
const MAX_PATH_BYTES: usize = 500;

/// A place in a file, as a tool prints it.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SourceLocation {
    /// The path, relative to an unknown directory or absolute.
    pub path: String,
    /// The line, counted from 1.
    pub line: u64,
    /// The column, counted from 1.
    pub column: Option<u64>,
}

/// Parses `path:line` or `path:line:column`, optionally followed by `:` and text. Returns the location and that text.
pub(super) fn parse_prefix(text: &str) -> Option<(SourceLocation, &str)> {
    parse_parentheses(text).or_else(|| {
        let (path, rest) = text.split_once(':')?;
        let digits = digit_count(rest);
        let line = parse_number(&rest[..digits]).filter(|_| is_file_name(path))?;
        let rest = &rest[digits..];
        if !rest.is_empty() && !rest.starts_with([':', ' ', ')']) {
            return None;
        }
        let column = rest.strip_prefix(':').map(|rest| &rest[..digit_count(rest)]);
        let column = column.filter(|digits| !digits.is_empty());
        let number = column.and_then(parse_number);
        let rest = column.map_or(rest, |digits| &rest[1 + digits.len()..]);
        Some((SourceLocation { path: path.to_owned(), line, column: number }, rest))
    })
}

/// Parses `path(line,column): text` and `path(line): text`.
fn parse_parentheses(text: &str) -> Option<(SourceLocation, &str)> {
    let (path, rest) = text.split_once('(')?;
    let (numbers, rest) = rest.split_once("):")?;
    let mut numbers = numbers.split(',').map(parse_number);
    let (line, column) = (numbers.next()??, numbers.next());
    if !is_file_name(path) || column == Some(None) || numbers.next().is_some() {
        return None;
    }
    Some((SourceLocation { path: path.to_owned(), line, column: column.flatten() }, rest))
}

/// Parses the location after an arrow: `  --> src/main.rs:4:20`.
pub(super) fn parse_arrow(line: &str) -> Option<SourceLocation> {
    parse_prefix(line.trim_start().strip_prefix("--> ")?.trim()).map(|(location, _)| location)
}

/// Parses a frame of a stack trace: `at f (src/a.js:1:2)`, `at src/a.js:1:2`, `❯ src/a.ts:1:2`,
/// `File "src/a.py", line 3`, or `/src/a.go:13 +0x18`.
pub(super) fn parse_frame(line: &str) -> Option<SourceLocation> {
    let line = line.trim_start();
    if let Some(rest) = line.strip_prefix("File \"") {
        let (path, rest) = rest.split_once("\", line ")?;
        let line = parse_number(&rest[..digit_count(rest)])?;
        return is_file_name(path).then(|| SourceLocation { path: path.to_owned(), line, column: None });
    }
    let place = match line.strip_prefix("at ").or_else(|| line.strip_prefix("❯ ")) {
        Some(rest) => rest.rsplit_once('(').map_or(rest, |(_, place)| place),
        None => line.starts_with('/').then_some(line)?,
    };
    parse_prefix(place.strip_prefix("file://").unwrap_or(place)).map(|(location, _)| location)
}

/// Returns whether a name contains a `.` or a `/` and no blank at its end, unlike a time of day or `key: 1: value`.
pub(super) fn is_file_name(name: &str) -> bool {
    name.contains(['.', '/'])
        && name.len() <= MAX_PATH_BYTES
        && name.chars().any(|c| c.is_ascii_alphabetic())
        && !name.contains("://")
        && !name.ends_with(' ')
        && name.matches(' ').count() <= 2
        && !name.starts_with("at ")
        && !name.starts_with("node:")
}

pub(super) fn is_number(text: &str) -> bool {
    parse_number(text).is_some()
}

fn parse_number(text: &str) -> Option<u64> {
    let is_number = !text.is_empty() && text.len() <= MAX_DIGITS && digit_count(text) == text.len();
    is_number.then(|| text.parse().ok()).flatten().filter(|number| *number > 0 || text == "0")
}

fn digit_count(text: &str) -> usize {
    text.bytes().take_while(u8::is_ascii_digit).count()
}
