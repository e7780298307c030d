//! Formats human-readable text: escapes untrusted text for the screen, and measures, cuts and wraps text.

use proctor_core::report::terminal_text::escape_for_terminal;

pub(crate) use proctor_core::text::humanize::{count, duration, exact_duration, size};

/// Escapes untrusted text for a terminal and for the log of a CI system: control and bidirectional characters, and
/// lines that a CI system would run as a command. Escaping is idempotent.
pub(crate) fn escape_text(text: &str) -> String {
    escape_bytes(text.as_bytes())
}

/// Escapes bytes as [`escape_text`] does; a byte that is not valid UTF-8 becomes an escape too.
pub(crate) fn escape_bytes(bytes: &[u8]) -> String {
    escape_for_terminal(bytes)
}

/// Escapes text as [`escape_text`] does, and puts it on one line.
pub(crate) fn escape_line(text: &str) -> String {
    escape_text(&text.replace('\n', "\\n").replace('\t', "\\t"))
}

/// Returns the width of a text in columns: wide characters take two, combining ones none. The text must not contain
/// control characters; see [`escape_text`].
pub(crate) fn display_width(text: &str) -> usize {
    unicode_width::UnicodeWidthStr::width(text)
}

/// Cuts a text without colour to `width` columns; a cut text ends with `…`.
pub(crate) fn truncate(text: &str, width: usize) -> String {
    if display_width(text) <= width {
        return text.to_owned();
    }
    let mut left = width.saturating_sub(1);
    let fits = |c: &char| {
        let remaining = left.checked_sub(unicode_width::UnicodeWidthChar::width(*c).unwrap_or(0));
        left = remaining.unwrap_or(0);
        remaining.is_some()
    };
    let kept: String = text.chars().take_while(fits).collect();
    kept + "…"
}

/// Pads a text without colour to `width` columns.
pub(crate) fn pad(text: &str, width: usize) -> String {
    format!("{text}{}", " ".repeat(width.saturating_sub(display_width(text))))
}

/// Wraps a sentence to lines of `width` columns; a longer word gets its own line.
pub(crate) fn wrap(text: &str, width: usize) -> Vec<String> {
    let mut lines: Vec<String> = Vec::new();
    for word in text.split(' ') {
        match lines.last_mut() {
            Some(line) if display_width(line) + 1 + display_width(word) <= width => {
                line.push(' ');
                line.push_str(word);
            }
            _ => lines.push(word.to_owned()),
        }
    }
    lines
}

/// Cuts a line into rows of `width` columns.
pub(crate) fn split_rows(line: &str, width: usize) -> Vec<String> {
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
pub(crate) fn strip_colours(text: &str) -> String {
    anstream::adapter::strip_str(text).to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn escapes_terminal_and_ci_commands() {
        let evil = "\x1b[2J\n  ::set-output name=a::b\nx ##[add-mask]a\n##vso[task]\n##teamcity[a]\n\u{202e}";
        let shown = escape_text(evil);
        assert_eq!(
            shown,
            "\\x1b[2J\n  :\\x3aset-output name=a::b\nx #\\x23[add-mask]a\n#\\x23vso[task]\n#\\x23teamcity[a]\n\\u{202e}"
        );
        assert_eq!(super::escape_text(&shown), shown, "twice is once");
        let arrow = "    ::: src/a.rs:7:8\n";
        assert_eq!(super::escape_text(arrow), arrow);
    }

    #[test]
    fn escaped_line_has_no_line_break() {
        assert_eq!(escape_line("a\nb\tc\r"), "a\\nb\\tc\\x0d");
    }

    #[test]
    fn measures_text_in_columns() {
        assert_eq!(["abc", "日本", "e\u{301}"].map(display_width), [3, 4, 1]);
        assert_eq!(truncate("日本語", 6), "日本語");
        assert_eq!(truncate("日本語", 5), "日本…");
        assert_eq!(truncate("日本語", 4), "日…");
        assert_eq!(truncate("abc", 1), "…");
        assert_eq!(pad("日", 4), "日  ");
        assert_eq!(wrap("one two three", 7), ["one two", "three"]);
        assert_eq!(wrap("a-very-long-word x", 4), ["a-very-long-word", "x"]);
    }
}
