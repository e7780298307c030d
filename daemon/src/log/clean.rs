//! Sanitizes text for any output: no control characters, line breaks, bidirectional or invisible characters.

use std::borrow::Cow;
use std::fmt::Write as _;

/// Maximum length of a value in bytes; longer values are truncated.
const MAX_VALUE: usize = 8 << 10;
/// Marks a truncated value.
const CUT: &str = "…";

/// Truncates `text` to [`MAX_VALUE`] and escapes unsafe characters as in JSON, such as `\u001b`.
pub(super) fn clean(text: &str) -> Cow<'_, str> {
    let kept = cut(text);
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
        clean.push_str(CUT);
    }
    Cow::Owned(clean)
}

fn cut(text: &str) -> &str {
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
    fn what_steers_is_escaped_and_the_rest_stays() {
        assert_eq!(clean("plain äöü ✓"), "plain äöü ✓");
        assert_eq!(clean("a\nb\r\x1b[31m\0\x7f"), "a\\u000ab\\u000d\\u001b[31m\\u0000\\u007f");
        assert_eq!(clean("\u{9b}31m\u{202e}x\u{2028}"), "\\u009b31m\\u202ex\\u2028");
    }

    #[test]
    fn a_value_has_an_end() {
        let long = "ä".repeat(MAX_VALUE);
        let cleaned = clean(&long);
        assert!(cleaned.len() <= MAX_VALUE + CUT.len() && cleaned.ends_with(CUT));
    }
}
