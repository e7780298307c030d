//! Makes text from repositories and steps safe to display: on a terminal, in the log of a CI system, in a document.

/// Returns whether a character can control a terminal, change the direction of text, break a line invisibly, or is no
/// character at all, so documents must not contain it. Newline and tab count as well; callers that allow them test for
/// them first.
pub fn affects_display(c: char) -> bool {
    c.is_control() || is_format_control(c)
}

/// Returns whether a character is a bidirectional control, a line or paragraph separator, a byte order mark, or one of
/// Unicode's noncharacters: U+FDD0 to U+FDEF, and the last two of each plane.
fn is_format_control(c: char) -> bool {
    matches!(
        c,
        '\u{061c}'
            | '\u{200e}'
            | '\u{200f}'
            | '\u{2028}'..='\u{202e}'
            | '\u{2066}'..='\u{206f}'
            | '\u{feff}'
            | '\u{fdd0}'..='\u{fdef}'
    ) || u32::from(c) & 0xfffe == 0xfffe
}

/// Replaces format controls by visible escapes (`\u{202e}`). Control characters are kept, so colour sequences survive.
pub fn escape_format_controls(text: &str) -> std::borrow::Cow<'_, str> {
    if !text.contains(is_format_control) {
        return text.into();
    }
    let mut safe = String::with_capacity(text.len() + 8);
    for c in text.chars() {
        match is_format_control(c) {
            true => safe.push_str(&format!("\\u{{{:04x}}}", u32::from(c))),
            false => safe.push(c),
        }
    }
    safe.into()
}

/// Returns JSON with the same value that neither a terminal nor the log of a CI system interprets. Characters that
/// [affect the display](affects_display) and the second of two `#` occur only in strings; they become JSON escapes.
pub fn escape_json_for_display(json: &str) -> String {
    let mut text = String::with_capacity(json.len());
    for c in json.replace("##", "#\\u0023").chars() {
        match c {
            // Outside of strings these are white space; in strings, the serializer has escaped them.
            '\n' | '\t' | '\r' => text.push(c),
            c if affects_display(c) => {
                let mut units = [0; 2];
                let escapes = c.encode_utf16(&mut units).iter().map(|unit| format!("\\u{unit:04x}"));
                text.extend(escapes);
            }
            c => text.push(c),
        }
    }
    text
}

/// Removes the sequences by which tools colour their output, in raw form (ESC `[31m`) and in escaped form (`\x1b[31m`):
/// colours, erase-to-end-of-line, cursor visibility, character set selection and hyperlinks. Other sequences stay.
pub fn strip_colours(line: &str) -> String {
    const ESCAPES: [&str; 2] = ["\x1b", "\\x1b"];
    let mut text = String::with_capacity(line.len());
    let mut rest = line;
    while let Some((at, escape)) = ESCAPES.iter().filter_map(|e| rest.find(e).map(|at| (at, *e))).min() {
        let behind = &rest[at + escape.len()..];
        text.push_str(&rest[..at]);
        match sequence_length(behind) {
            Some(length) => rest = &behind[length..],
            None => {
                text.push_str(escape);
                rest = behind;
            }
        }
    }
    text + rest
}

/// Returns the length of the removable sequence that `text`, which follows an escape character, starts with.
fn sequence_length(text: &str) -> Option<usize> {
    if let Some(parameters) = text.strip_prefix('[') {
        let digits = parameters.bytes().take_while(|byte| byte.is_ascii_digit() || b";:?".contains(byte)).count();
        let is_mode = parameters.starts_with('?');
        let is_removable = match parameters.as_bytes().get(digits) {
            Some(b'm' | b'K') => !is_mode,
            Some(b'h' | b'l') => &parameters[..digits] == "?25",
            _ => false,
        };
        return is_removable.then_some(1 + digits + 1);
    }
    if text.starts_with("(B") {
        return Some(2);
    }
    let link = text.strip_prefix("]8;")?;
    let ends = ["\x07", "\\x07", "\x1b\\", "\\x1b\\"];
    let (at, end) = ends.iter().filter_map(|end| link.find(end).map(|at| (at, *end))).min()?;
    Some(3 + at + end.len())
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn strips_only_colour_sequences() {
        let cases = [
            ("\x1b[1m\x1b[38;5;9merror\x1b[0m: x\x1b[K", "error: x"),
            ("\\x1b[1m\\x1b[91merror[E0308]\\x1b[0m: x", "error[E0308]: x"),
            ("\x1b[38:2::1:2:3mx\x1b(B\x1b[m", "x"),
            ("\\x1b[?25lspinner\\x1b[?25h", "spinner"),
            ("\\x1b]8;;https://example.org/a\\x1b\\name\\x1b]8;;\\x1b\\", "name"),
            ("\x1b]8;id=1;https://example.org\x07name\x1b]8;;\x07", "name"),
            ("\\x1b[2Jcleared", "\\x1b[2Jcleared"),
            ("\x1b[?1049h", "\x1b[?1049h"),
            ("\\x1b]0;title\\x07", "\\x1b]0;title\\x07"),
            ("cut\\x1b[3", "cut\\x1b[3"),
            ("cut\\x1b]8;;https://", "cut\\x1b]8;;https://"),
        ];
        for (text, expected) in cases {
            assert_eq!(strip_colours(text), expected);
        }
    }

    #[test]
    fn escapes_format_controls_and_keeps_colours() {
        assert_eq!(escape_format_controls("a\u{202e}b\u{61c}\x1b[1m"), "a\\u{202e}b\\u{061c}\x1b[1m");
        assert_eq!(
            escape_format_controls("\u{fffe}\u{fdef}\u{10ffff}\u{fffd}"),
            "\\u{fffe}\\u{fdef}\\u{10ffff}\u{fffd}"
        );
        assert!(matches!(escape_format_controls("plain"), std::borrow::Cow::Borrowed(_)));
    }

    #[test]
    fn escapes_noncharacters_in_json_as_surrogates() {
        let inert = escape_json_for_display("\"\u{ffff}\u{1fffe}\"");
        assert_eq!(inert, r#""\uffff\ud83f\udffe""#);
        assert_eq!(serde_json::from_str::<String>(&inert).expect("JSON"), "\u{ffff}\u{1fffe}");
    }

    proptest! {
        #[test]
        fn escaped_json_keeps_its_value(text in any::<String>()) {
            let json = serde_json::to_string(&text).expect("JSON");
            let inert = escape_json_for_display(&json);
            prop_assert_eq!(serde_json::from_str::<String>(&inert).expect("JSON"), text);
            prop_assert!(!inert.contains("##") && !inert.contains(affects_display));
        }

        #[test]
        fn stripping_colours_never_grows_text(text in "[\\x1b\\[\\]\\\\x1b07;?0-9mKhl(B8é]{0,60}") {
            prop_assert!(strip_colours(&text).len() <= text.len());
        }
    }
}
