//! Sanitizes text for any output: no control characters, line breaks, bidirectional or invisible characters.

use std::borrow::Cow;
use std::fmt::Write as _;

/// Maximum length of a value in bytes; longer values are truncated.
const MAX_VALUE: usize = 8 << 10;
/// Marks a truncated value.
const TRUNCATION_MARK: &str = "…";

/// Truncates `text` to [`MAX_VALUE`] and escapes unsafe characters as in JSON, such as `\u001b`.
pub(super) fn sanitize(text: &str) -> Cow<'_, str> {
    let kept = truncate(text);
    if kept.len() == text.len() && !text.chars().any(is_unsafe) {
        return Cow::Borrowed(text);
    }
    let mut clean = String::with_capacity(kept.len());
    for char in kept.chars() {
        if is_unsafe(char) {
            // Unsafe characters have at most four hexadecimal digits. Writing to a string cannot fail.
            let _ = write!(clean, "\\u{:04x}", u32::from(char));
        } else {
            clean.push(char);
        }
    }
    if kept.len() < text.len() {
        clean.push_str(TRUNCATION_MARK);
    }
    Cow::Owned(clean)
}

fn truncate(text: &str) -> &str {
    &text[..text.floor_char_boundary(MAX_VALUE)]
}

/// Returns whether a character is a control (C0, DEL, C1), a line or paragraph separator, a bidirectional mark, or
/// has no width.
fn is_unsafe(char: char) -> bool {
    char.is_control()
        || matches!(char, '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2060}'..='\u{2069}' | '\u{feff}')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn escapes_only_unsafe_characters() {
        assert_eq!(sanitize("plain äöü ✓"), "plain äöü ✓");
        assert_eq!(sanitize("a\nb\r\x1b[31m\0\x7f"), "a\\u000ab\\u000d\\u001b[31m\\u0000\\u007f");
        assert_eq!(sanitize("\u{9b}31m\u{202e}x\u{2028}"), "\\u009b31m\\u202ex\\u2028");
    }

    #[test]
    fn truncates_long_values() {
        let long = "ä".repeat(MAX_VALUE);
        let cleaned = sanitize(&long);
        assert!(cleaned.len() <= MAX_VALUE + TRUNCATION_MARK.len() && cleaned.ends_with(TRUNCATION_MARK));
    }
}
