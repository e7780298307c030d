//! Replaces one member in the text of a JSON object, and keeps every other byte: the order of the keys, the numbers as
//! written, and the layout. The text was parsed before, so it is valid JSON without duplicate keys.

use std::ops::Range;

/// The layout of new parts.
pub(super) struct TextLayout<'a> {
    /// The indentation of one level; `None` for a file with a single line.
    pub(super) indent: Option<&'a str>,
}

/// Sets the member at a path of keys, whose intermediate values are objects. Creates missing objects at the end of
/// their parent. Returns `None` if a value on the path is not an object.
pub(super) fn set_member(text: &str, path: &[&str], layout: &TextLayout<'_>, value: &str) -> Option<String> {
    let mut object = find_object(text, skip_space(text, 0))?;
    for (level, key) in (1..).zip(path) {
        let rest = &path[level..];
        let Some(found) = object.members.iter().find(|member| member.key == *key) else {
            return Some(insert(text, &object, level, &layout.member(key, rest, level, value), layout));
        };
        if rest.is_empty() {
            let new = layout.at_level(value, level);
            return Some(format!("{}{new}{}", &text[..found.value.start], &text[found.value.end..]));
        }
        object = find_object(text, found.value.start)?;
    }
    None
}

/// Inserts a member at the end of an object.
fn insert(text: &str, object: &ObjectText, level: usize, member: &str, layout: &TextLayout<'_>) -> String {
    let after = object.members.last().map_or(object.start + 1, |last| last.value.end);
    let line_break = layout.line_break(level);
    match object.members.is_empty() {
        // An empty object has nothing between its braces that must be kept.
        true => {
            format!("{}{line_break}{member}{}{}", &text[..after], layout.line_break(level - 1), &text[object.end..])
        }
        false => format!("{},{line_break}{member}{}", &text[..after], &text[after..]),
    }
}

impl TextLayout<'_> {
    fn line_break(&self, level: usize) -> String {
        self.indent.map_or_else(String::new, |indent| format!("\n{}", indent.repeat(level)))
    }

    /// Indents all lines of a rendered value except the first one. Strings in JSON contain no line breaks.
    fn at_level(&self, value: &str, level: usize) -> String {
        value.replace('\n', &self.line_break(level))
    }

    /// Renders a member, with the objects that `rest` names around its value.
    fn member(&self, key: &str, rest: &[&str], level: usize, value: &str) -> String {
        let colon = if self.indent.is_some() { ": " } else { ":" };
        let value = match rest {
            [] => self.at_level(value, level),
            [next, rest @ ..] => {
                let inner = self.member(next, rest, level + 1, value);
                format!("{{{}{inner}{}}}", self.line_break(level + 1), self.line_break(level))
            }
        };
        format!("\"{key}\"{colon}{value}")
    }
}

/// The position of a member in the text.
struct MemberText {
    key: String,
    value: Range<usize>,
}

/// The position of an object in the text.
struct ObjectText {
    /// Offset of the opening brace.
    start: usize,
    /// Offset of the closing brace.
    end: usize,
    members: Vec<MemberText>,
}

/// Finds the members of the object at `start`.
fn find_object(text: &str, start: usize) -> Option<ObjectText> {
    let mut at = skip_space(text, after(text, start, b'{')?);
    let mut members = Vec::new();
    if let Some(end) = after(text, at, b'}') {
        return Some(ObjectText { start, end: end - 1, members });
    }
    loop {
        let end = skip_value(text, at)?;
        let key = serde_json::from_str(text.get(at..end)?).ok()?;
        let value = skip_space(text, after(text, skip_space(text, end), b':')?);
        let end = skip_value(text, value)?;
        members.push(MemberText { key, value: value..end });
        at = skip_space(text, end);
        if let Some(end) = after(text, at, b'}') {
            return Some(ObjectText { start, end: end - 1, members });
        }
        at = skip_space(text, after(text, at, b',')?);
    }
}

/// Returns the offset after the byte `wanted` at `at`.
fn after(text: &str, at: usize, wanted: u8) -> Option<usize> {
    (text.as_bytes().get(at) == Some(&wanted)).then_some(at + 1)
}

/// Returns the offset after the value at `start`.
fn skip_value(text: &str, start: usize) -> Option<usize> {
    let bytes = text.as_bytes();
    let (mut at, mut depth, mut in_string) = (start, 0_usize, false);
    loop {
        let byte = *bytes.get(at)?;
        match byte {
            b'\\' if in_string => at += 1,
            b'"' => in_string = !in_string,
            b'{' | b'[' if !in_string => depth += 1,
            b'}' | b']' if !in_string => depth = depth.checked_sub(1)?,
            _ => {}
        }
        at += 1;
        let is_scalar_end =
            matches!(bytes.get(at), None | Some(b',' | b'}' | b']' | b':' | b' ' | b'\n' | b'\r' | b'\t'));
        if depth == 0 && !in_string && (matches!(byte, b'}' | b']' | b'"') || is_scalar_end) {
            return Some(at);
        }
    }
}

fn skip_space(text: &str, at: usize) -> usize {
    let rest = text.get(at..).unwrap_or_default();
    at + rest.len() - rest.trim_start_matches([' ', '\t', '\n', '\r']).len()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn set(text: &str, indent: Option<&str>) -> String {
        let value = indent.map_or_else(|| "{\"x\":1}".to_owned(), |indent| format!("{{\n{indent}\"x\": 1\n}}"));
        set_member(text, &["v", "l"], &TextLayout { indent }, &value).expect("an object")
    }

    #[test]
    fn replaces_value_and_keeps_everything_else() {
        let old = "{ \"z\" : [1.10, \"}\\\"\"],\r\n  \"v\": {\"b\": {}, \"l\": \"old\" , \"a\":1e5}, \"a\": null }\n";
        assert_eq!(set(old, None), old.replace("\"old\"", "{\"x\":1}"));
    }

    #[test]
    fn inserts_missing_members_at_the_end() {
        assert_eq!(set("{\"b\":1}", None), "{\"b\":1,\"v\":{\"l\":{\"x\":1}}}");
        assert_eq!(set("{}", None), "{\"v\":{\"l\":{\"x\":1}}}");
        let old = "{\n  \"b\": 1,\n  \"v\": {\n    \"n\": 2\n  }\n}\n";
        let new = "{\n  \"b\": 1,\n  \"v\": {\n    \"n\": 2,\n    \"l\": {\n      \"x\": 1\n    }\n  }\n}\n";
        assert_eq!(set(old, Some("  ")), new);
        assert_eq!(set(new, Some("  ")), new);
        assert_eq!(set("{\n}\n", Some(" ")), "{\n \"v\": {\n  \"l\": {\n   \"x\": 1\n  }\n }\n}\n");
    }

    #[test]
    fn reads_escaped_keys() {
        assert_eq!(set("{\"\\u0076\":{\"l\":3}}", None), "{\"\\u0076\":{\"l\":{\"x\":1}}}");
    }

    #[test]
    fn rejects_other_values() {
        for text in ["[1]", "{\"v\":1}", "{\"v\":[]}"] {
            assert!(set_member(text, &["v", "l"], &TextLayout { indent: None }, "1").is_none(), "{text}");
        }
    }
}
