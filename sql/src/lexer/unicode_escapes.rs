//! Reads PostgreSQL's strings and names with Unicode escapes: `U&'d\0061t'`, `U&"d!0061t" UESCAPE '!'`.
//!
//! Source: <https://www.postgresql.org/docs/current/sql-syntax-lexical.html>.

use proctor_core::sql::Dialect;

use super::{SqlTokenKind, closed_token, next_token, quoted_length};

/// The character that begins an escape, unless `UESCAPE` names another one.
const DEFAULT_ESCAPE: char = '\\';

/// Reads a string or a name with Unicode escapes at the beginning of a text, with its `UESCAPE` clause.
pub(super) fn lex(rest: &str) -> Option<(SqlTokenKind, usize)> {
    let bytes = rest.as_bytes();
    let is_prefixed = matches!(bytes[0], b'u' | b'U') && bytes.get(1) == Some(&b'&');
    let (kind, quote) = match bytes.get(2) {
        Some(b'\'') if is_prefixed => (SqlTokenKind::String, '\''),
        Some(b'"') if is_prefixed => (SqlTokenKind::Quoted, '"'),
        _ => return None,
    };
    let end = quoted_length(rest, 2, quote).map(|end| end + escape_clause_length(&rest[end..]));
    Some(closed_token(kind, end))
}

/// Returns the length of a `UESCAPE` clause, with the white space before it; 0 if there is none.
fn escape_clause_length(rest: &str) -> usize {
    let mut at = 0;
    let mut has_word = false;
    while let Some(after) = rest.get(at..).filter(|after| !after.is_empty()) {
        let (kind, length) = next_token(after, Dialect::Postgres);
        let end = rest.ceil_char_boundary(at + length.max(1));
        match kind {
            SqlTokenKind::Whitespace | SqlTokenKind::Comment => {}
            SqlTokenKind::Word if !has_word && rest[at..end].eq_ignore_ascii_case("uescape") => has_word = true,
            SqlTokenKind::String if has_word => return end,
            _ => return 0,
        }
        at = end;
    }
    0
}

/// Returns the content of a token with Unicode escapes; `None` for another token.
pub(super) fn unescape(token: &str) -> Option<String> {
    let quoted = token.strip_prefix("U&").or_else(|| token.strip_prefix("u&"))?;
    let quote = quoted.chars().next().filter(|quote| matches!(quote, '\'' | '"'))?;
    let end = quoted_length(quoted, 0, quote)?;
    let content = quoted[1..end - 1].replace(&format!("{quote}{quote}"), &quote.to_string());
    // The clause ends with the escape character in quotes.
    let named = quoted[end..].trim_end().strip_suffix('\'').and_then(|clause| clause.chars().next_back());
    Some(replace_escapes(&content, named.unwrap_or(DEFAULT_ESCAPE)))
}

/// Replaces `\0041`, `\+000041` and `\\`. An invalid escape stays; the server refuses it.
fn replace_escapes(content: &str, escape: char) -> String {
    let mut units: Vec<u16> = Vec::new();
    let mut buffer = [0; 2];
    let mut rest = content;
    while let Some(first) = rest.chars().next() {
        let after = &rest[first.len_utf8()..];
        let (character, left) = match after.strip_prefix(escape) {
            _ if first != escape => (None, after),
            Some(left) => (Some(u32::from(escape)), left),
            None => hexadecimal(after).map_or((None, after), |(value, left)| (Some(value), left)),
        };
        match character {
            // The halves of a pair of surrogates are two escapes.
            Some(value) if u16::try_from(value).is_ok() => units.extend(u16::try_from(value)),
            Some(value) => {
                let character = char::from_u32(value).unwrap_or(char::REPLACEMENT_CHARACTER);
                units.extend_from_slice(character.encode_utf16(&mut buffer));
            }
            None => units.extend_from_slice(first.encode_utf16(&mut buffer)),
        }
        rest = left;
    }
    String::from_utf16_lossy(&units)
}

/// Reads the digits of an escape: four, or six after a plus sign.
fn hexadecimal(text: &str) -> Option<(u32, &str)> {
    let (digits, count) = text.strip_prefix('+').map_or((text, 4), |digits| (digits, 6));
    let number = digits.get(..count).filter(|number| number.bytes().all(|byte| byte.is_ascii_hexdigit()))?;
    Some((u32::from_str_radix(number, 16).ok()?, &digits[count..]))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_names_with_escapes() {
        let cases = [
            (r#"U&"\0073ecret""#, "secret"),
            (r#"u&"s!0065cret"  /* x */ UESCAPE '!'"#, "secret"),
            (r#"U&"\+000073\D83D\DE00""\\""#, "s\u{1f600}\"\\"),
            (r"U&'it''s \0061\zz'", "it's a\\zz"),
        ];
        for (token, expected) in cases {
            let text = format!("{token} x");
            assert_eq!(lex(&text).map(|(_, length)| &text[..length]), Some(token), "{text}");
            assert_eq!(unescape(token).as_deref(), Some(expected), "{token}");
        }
        assert_eq!(lex(r#"U&"a" uescaped '!'"#), Some((SqlTokenKind::Quoted, 5)));
        assert_eq!(lex("u & 'a'"), None);
        assert_eq!(unescape("\"u\""), None);
    }
}
