//! Builds HTML. Tags and attribute names are compile-time constants; everything else is escaped on insertion. There
//! is no way to put a `String` into a page unescaped.

use crate::text::escape::escape_output;

/// An attribute: a constant name and an untrusted value.
pub(super) type HtmlAttribute<'a> = (&'static str, &'a str);

/// A page, or a part of one, under construction.
#[derive(Debug)]
pub(super) struct Html {
    markup: String,
    size_limit: usize,
}

impl Html {
    /// Creates an empty page that counts as full when it reaches `room` bytes.
    pub(super) fn with_size_limit(room: usize) -> Self {
        Self { markup: "<!doctype html>\n".to_owned(), size_limit: room }
    }

    /// Returns the finished markup.
    pub(super) fn finish(self) -> String {
        self.markup
    }

    /// Writes an element; `content` writes its content.
    pub(super) fn element(
        &mut self,
        tag: &'static str,
        attributes: &[HtmlAttribute<'_>],
        content: impl FnOnce(&mut Self),
    ) {
        self.void(tag, attributes);
        content(self);
        self.markup.push_str("</");
        self.markup.push_str(tag);
        self.markup.push('>');
        if is_block(tag) {
            self.markup.push('\n');
        }
    }

    /// Writes an element with a class.
    pub(super) fn class(&mut self, tag: &'static str, class: &str, content: impl FnOnce(&mut Self)) {
        self.element(tag, &[("class", class)], content);
    }

    /// Writes an element without attributes.
    pub(super) fn plain(&mut self, tag: &'static str, content: impl FnOnce(&mut Self)) {
        self.element(tag, &[], content);
    }

    /// Writes an element with a class that contains only text.
    pub(super) fn leaf(&mut self, tag: &'static str, class: &str, text: &str) {
        self.class(tag, class, |html| html.text(text));
    }

    /// Writes an element without attributes that contains only text.
    pub(super) fn text_element(&mut self, tag: &'static str, text: &str) {
        self.plain(tag, |html| html.text(text));
    }

    /// Writes a link to another element of the page.
    pub(super) fn link(&mut self, id: &str, text: &str) {
        self.element("a", &[("href", &format!("#{id}"))], |html| html.text(text));
    }

    /// Writes an element without content and without an end tag.
    pub(super) fn void(&mut self, tag: &'static str, attributes: &[HtmlAttribute<'_>]) {
        self.markup.push('<');
        self.markup.push_str(tag);
        for (name, value) in attributes {
            self.markup.push(' ');
            self.markup.push_str(name);
            self.markup.push_str("=\"");
            escape(&escape_one_line(value), &mut self.markup);
            self.markup.push('"');
        }
        self.markup.push('>');
    }

    /// Writes untrusted text. Escapes markup, and shows characters that could mislead a terminal or a reader as
    /// escape sequences.
    pub(super) fn text(&mut self, text: &str) {
        escape(&escape_output(text.as_bytes()), &mut self.markup);
    }

    /// Writes one of Proctor's style sheets or scripts. HTML does not support escapes in these elements.
    pub(super) fn verbatim(&mut self, text: &'static str) {
        self.markup.push_str(text);
    }

    /// Returns whether the page has reached its size limit, so optional content should be left out.
    pub(super) fn is_full(&self) -> bool {
        self.markup.len() >= self.size_limit
    }
}

/// Returns whether a newline follows the element, which keeps the source of the page readable.
fn is_block(tag: &str) -> bool {
    !matches!(
        tag,
        "a" | "b" | "code" | "em" | "span" | "mark" | "dt" | "td" | "th" | "rect" | "text" | "title" | "ins" | "del"
    )
}

/// Returns a text on one line, for an attribute.
fn escape_one_line(text: &str) -> String {
    escape_output(text.as_bytes()).replace('\n', "\\n").replace('\t', "\\t")
}

fn escape(text: &str, into: &mut String) {
    for c in text.chars() {
        match entity(c) {
            Some(entity) => into.push_str(entity),
            None => into.push(c),
        }
    }
}

/// Returns the entity for a character that could be markup in text or in a quoted attribute.
fn entity(c: char) -> Option<&'static str> {
    match c {
        '&' => Some("&amp;"),
        '<' => Some("&lt;"),
        '>' => Some("&gt;"),
        '"' => Some("&quot;"),
        '\'' => Some("&#39;"),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn render(write: impl FnOnce(&mut Html)) -> String {
        let mut html = Html { markup: String::new(), size_limit: 0 };
        write(&mut html);
        html.finish()
    }

    #[test]
    fn escapes_text_and_attributes() {
        let evil = "</pre><script>\"'&amp;\u{202e}\u{fffe}\u{1ffff}\r\0\n";
        assert_eq!(
            render(|html| html.leaf("span", "a", evil)),
            "<span class=\"a\">&lt;/pre&gt;&lt;script&gt;&quot;&#39;&amp;amp;\\u{202e}\\u{fffe}\\u{1ffff}\\x0d\\x00\n</span>"
        );
        assert_eq!(
            render(|html| html.void("input", &[("value", evil)])),
            "<input value=\"&lt;/pre&gt;&lt;script&gt;&quot;&#39;&amp;amp;\\u{202e}\\u{fffe}\\u{1ffff}\\x0d\\x00\\n\">"
        );
    }
}
