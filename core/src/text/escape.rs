//! Makes untrusted text safe for messages.

/// Makes output of a step safe for terminals and JSON: valid UTF-8, with control characters except newline and tab as
/// `\xNN`, and bidirectional controls and noncharacters as `\u{NNNN}`.
pub fn escape_output(bytes: &[u8]) -> String {
    let mut text = String::with_capacity(bytes.len());
    for chunk in bytes.utf8_chunks() {
        for c in chunk.valid().chars() {
            match c {
                '\n' | '\t' => text.push(c),
                c if c.is_control() => text.push_str(&format!("\\x{:02x}", u32::from(c))),
                c if crate::text::safe_text::affects_display(c) => {
                    text.push_str(&format!("\\u{{{:04x}}}", u32::from(c)));
                }
                c => text.push(c),
            }
        }
        for byte in chunk.invalid() {
            text.push_str(&format!("\\x{byte:02x}"));
        }
    }
    text
}

/// Quotes untrusted text for a message: in backticks, with control characters escaped, cut after 80 characters.
pub fn quoted(text: &str) -> String {
    const MAX_QUOTED_CHARS: usize = 80;
    let shown: String = text.chars().take(MAX_QUOTED_CHARS).collect();
    let ellipsis = if shown.len() < text.len() { "…" } else { "" };
    let escaped = crate::text::escape::escape_output(shown.as_bytes()).replace('\n', "\\n").replace('\t', "\\t");
    format!("`{escaped}{ellipsis}`")
}

/// Formats a list of names for a message: quoted, at most ten.
pub(crate) fn list_names<'a>(names: impl IntoIterator<Item = &'a str>) -> String {
    const MAX_LISTED: usize = 10;
    let names: Vec<&str> = names.into_iter().collect();
    let mut text = names.iter().take(MAX_LISTED).map(|name| quoted(name)).collect::<Vec<_>>().join(", ");
    if names.len() > MAX_LISTED {
        text.push_str(&format!(" and {} more", names.len() - MAX_LISTED));
    }
    text
}
