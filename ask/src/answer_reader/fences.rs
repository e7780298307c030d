//! Finds the fenced code blocks of Markdown.

/// A fenced block.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Fence<'a> {
    /// The first word after the opening fence; can be empty.
    pub(super) language: &'a str,
    /// The text between the fences.
    pub(super) body: &'a str,
}

/// Returns the complete blocks of a text in order, and whether a block at the end is not closed.
pub(super) fn read_fences(text: &str) -> (Vec<Fence<'_>>, bool) {
    let mut found = Vec::new();
    let mut open: Option<(char, usize, &str, usize)> = None;
    let mut at = 0;
    for line in text.split_inclusive('\n') {
        let start = at;
        at += line.len();
        let Some((mark, length, rest)) = fence_mark(line) else { continue };
        match open {
            None => open = Some((mark, length, language(rest), at)),
            Some((opening, least, language, body)) if mark == opening && length >= least && rest.is_empty() => {
                found.push(Fence { language, body: &text[body..start] });
                open = None;
            }
            Some(_) => {}
        }
    }
    (found, open.is_some())
}

/// Returns the character and length of the fence that a line starts with, and the rest of the line.
fn fence_mark(line: &str) -> Option<(char, usize, &str)> {
    let line = line.trim();
    let mark = line.chars().next().filter(|c| matches!(c, '`' | '~'))?;
    let rest = line.trim_start_matches(mark);
    let length = line.len() - rest.len();
    // An info string with a backtick is inline code.
    (length >= 3 && !(mark == '`' && rest.contains('`'))).then_some((mark, length, rest.trim()))
}

fn language(info: &str) -> &str {
    info.split(|c: char| c.is_whitespace() || c == '{' || c == ',').next().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bodies(text: &str) -> Vec<(&str, &str)> {
        read_fences(text).0.into_iter().map(|fence| (fence.language, fence.body)).collect()
    }

    #[test]
    fn finds_blocks_of_both_kinds() {
        assert_eq!(bodies("a\n```sql\nSELECT 1\n```\nb\n~~~\nx\n~~~"), [("sql", "SELECT 1\n"), ("", "x\n")]);
        assert_eq!(bodies("````sql title=x\n```\n````\n"), [("sql", "```\n")]);
        assert_eq!(bodies("  ```SQL\r\nSELECT 1\r\n  ```\r\n"), [("SQL", "SELECT 1\r\n")]);
        assert_eq!(bodies("``` `a` ```"), []);
    }

    #[test]
    fn reports_open_block() {
        assert!(read_fences("```sql\nSELECT").1);
        assert!(!read_fences("```sql\nSELECT\n```").1);
        assert!(read_fences("```sql\nSELECT 1\n```\n```\n").1);
    }
}
