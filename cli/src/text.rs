//! Formats human-readable text: escapes untrusted text for the screen, and measures, cuts and wraps text.

use proctor_core::evidence::escape_output;

pub(crate) use proctor_core::words::{bound, count, duration, size};

/// Escapes untrusted text for a terminal and for the log of a CI system: control and bidirectional characters, and
/// lines that a CI system would run as a command. Escaping is idempotent.
pub(crate) fn shown(text: &str) -> String {
    shown_bytes(text.as_bytes())
}

/// Escapes bytes as [`shown`] does; a byte that is not valid UTF-8 becomes an escape too.
pub(crate) fn shown_bytes(bytes: &[u8]) -> String {
    let escaped = escape_output(bytes);
    escaped.split_inclusive('\n').map(without_ci_command).collect()
}

/// Escapes text as [`shown`] does, and puts it on one line.
pub(crate) fn shown_line(text: &str) -> String {
    shown(&text.replace('\n', "\\n").replace('\t', "\\t"))
}

/// Disables CI commands by escaping their second character. GitHub runs `::command` at the start of a line and
/// `##[command]` anywhere in it, Azure `##vso[`, TeamCity `##teamcity[`.
fn without_ci_command(line: &str) -> String {
    let trimmed = line.trim_start();
    let line = match trimmed.strip_prefix("::") {
        Some(rest) => format!("{}:\\x3a{rest}", &line[..line.len() - trimmed.len()]),
        None => line.to_owned(),
    };
    ["[", "vso[", "teamcity["]
        .iter()
        .fold(line, |line, word| line.replace(&format!("##{word}"), &format!("#\\x23{word}")))
}

/// Returns the width of a text in columns: wide characters take two, combining ones none. The text must not contain
/// control characters; see [`shown`].
pub(crate) fn columns(text: &str) -> usize {
    unicode_width::UnicodeWidthStr::width(text)
}

/// Cuts a text without colour to `width` columns; a cut text ends with `…`.
pub(crate) fn cut(text: &str, width: usize) -> String {
    if columns(text) <= width {
        return text.to_owned();
    }
    let mut left = width.saturating_sub(1);
    let fits = |c: &char| {
        let room = left.checked_sub(unicode_width::UnicodeWidthChar::width(*c).unwrap_or(0));
        left = room.unwrap_or(0);
        room.is_some()
    };
    let kept: String = text.chars().take_while(fits).collect();
    kept + "…"
}

/// Pads a text without colour to `width` columns.
pub(crate) fn padded(text: &str, width: usize) -> String {
    format!("{text}{}", " ".repeat(width.saturating_sub(columns(text))))
}

/// Wraps a sentence to lines of `width` columns; a longer word gets its own line.
pub(crate) fn wrapped(text: &str, width: usize) -> Vec<String> {
    let mut lines: Vec<String> = Vec::new();
    for word in text.split(' ') {
        match lines.last_mut() {
            Some(line) if columns(line) + 1 + columns(word) <= width => {
                line.push(' ');
                line.push_str(word);
            }
            _ => lines.push(word.to_owned()),
        }
    }
    lines
}

/// Cuts a line into rows of `width` columns.
pub(crate) fn chunks(line: &str, width: usize) -> Vec<String> {
    let mut rows = vec![String::new()];
    let mut taken = 0;
    for c in line.chars() {
        let needs = unicode_width::UnicodeWidthChar::width(c).unwrap_or(0);
        if taken + needs > width.max(2) {
            rows.push(String::new());
            taken = 0;
        }
        taken += needs;
        if let Some(row) = rows.last_mut() {
            row.push(c);
        }
    }
    rows
}

/// Removes the colours from a text.
#[cfg(test)]
pub(crate) fn plain(text: &str) -> String {
    anstream::adapter::strip_str(text).to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_step_cannot_speak_to_the_terminal_or_to_ci() {
        let evil = "\x1b[2J\n  ::set-output name=a::b\nx ##[add-mask]a\n##vso[task]\n##teamcity[a]\n\u{202e}";
        let shown = shown(evil);
        assert_eq!(
            shown,
            "\\x1b[2J\n  :\\x3aset-output name=a::b\nx #\\x23[add-mask]a\n#\\x23vso[task]\n#\\x23teamcity[a]\n\\u{202e}"
        );
        assert_eq!(super::shown(&shown), shown, "twice is once");
    }

    #[test]
    fn one_line_stays_one_line() {
        assert_eq!(shown_line("a\nb\tc\r"), "a\\nb\\tc\\x0d");
    }

    #[test]
    fn texts_are_measured_in_columns() {
        assert_eq!(["abc", "日本", "e\u{301}"].map(columns), [3, 4, 1]);
        assert_eq!(cut("日本語", 6), "日本語");
        assert_eq!(cut("日本語", 5), "日本…");
        assert_eq!(cut("日本語", 4), "日…");
        assert_eq!(cut("abc", 1), "…");
        assert_eq!(padded("日", 4), "日  ");
        assert_eq!(wrapped("one two three", 7), ["one two", "three"]);
        assert_eq!(wrapped("a-very-long-word x", 4), ["a-very-long-word", "x"]);
    }
}
