//! Makes bounded unified diffs of two contents, escaped for terminals.

use proctor_core::model::drift::{Diff, MAX_FILE_DIFF, display_path};
use proctor_core::record::evidence::escape_output;
use similar::{Algorithm, DiffOp, DiffTag, capture_diff_slices, group_diff_ops};

/// The largest content that is compared line by line, in bytes.
pub(crate) const MAX_INPUT: u64 = 1 << 20;
/// Maximum number of differing lines, on both sides together, before they are shown as one replacement. The cost of
/// finding the shortest script grows with their product.
const MAX_LINES: usize = 10_000;
/// Number of context lines around a change.
const CONTEXT: usize = 3;
/// Number of bytes that are searched for a NUL byte, as in git.
const BINARY_PROBE: usize = 8_000;

/// Returns the diff between two contents of `path`; a missing side is `None`.
pub(crate) fn unified(path: &[u8], old: Option<&[u8]>, new: Option<&[u8]>) -> Diff {
    if [old, new].into_iter().flatten().any(is_binary) {
        return Diff::Binary;
    }
    let (a, b) = (lines(old.unwrap_or_default()), lines(new.unwrap_or_default()));
    let mut text = BoundedDiffText::default();
    let name = |side: &str, content: Option<&[u8]>| match content {
        Some(_) => escape_output(format!("{side}/{}", display_path(path)).as_bytes()),
        None => "/dev/null".to_owned(),
    };
    text.push(&format!("--- {}\n", name("a", old)));
    text.push(&format!("+++ {}\n", name("b", new)));
    for hunk in group_diff_ops(edit_script(&a, &b), CONTEXT) {
        push_hunk(&mut text, &hunk, &a, &b);
    }
    match text.omitted {
        0 => Diff::Whole { text: text.text },
        omitted_lines => Diff::Truncated { text: text.text, omitted_lines },
    }
}

fn is_binary(content: &[u8]) -> bool {
    content.iter().take(BINARY_PROBE).any(|b| *b == 0)
}

fn lines(content: &[u8]) -> Vec<&[u8]> {
    content.split_inclusive(|b| *b == b'\n').collect()
}

fn edit_script(a: &[&[u8]], b: &[&[u8]]) -> Vec<DiffOp> {
    let before = a.iter().zip(b).take_while(|(a, b)| a == b).count();
    let (rest_a, rest_b) = (&a[before..], &b[before..]);
    let after = rest_a.iter().rev().zip(rest_b.iter().rev()).take_while(|(a, b)| a == b).count();
    let (old_len, new_len) = (rest_a.len() - after, rest_b.len() - after);
    if old_len + new_len <= MAX_LINES {
        return capture_diff_slices(Algorithm::Myers, a, b);
    }
    vec![
        DiffOp::Equal { old_index: 0, new_index: 0, len: before },
        DiffOp::Replace { old_index: before, old_len, new_index: before, new_len },
        DiffOp::Equal { old_index: before + old_len, new_index: before + new_len, len: after },
    ]
}

fn push_hunk(text: &mut BoundedDiffText, hunk: &[DiffOp], a: &[&[u8]], b: &[&[u8]]) {
    let (Some(first), Some(last)) = (hunk.first(), hunk.last()) else { return };
    let old = first.old_range().start..last.old_range().end;
    let new = first.new_range().start..last.new_range().end;
    text.push(&format!("@@ -{} +{} @@\n", hunk_range(&old), hunk_range(&new)));
    for op in hunk {
        match op.tag() {
            DiffTag::Equal => push_lines(text, ' ', &a[op.old_range()]),
            _ => {
                push_lines(text, '-', &a[op.old_range()]);
                push_lines(text, '+', &b[op.new_range()]);
            }
        }
    }
}

/// Formats a range for a unified diff: lines count from one, and an empty range names the line before it.
fn hunk_range(range: &std::ops::Range<usize>) -> String {
    match range.len() {
        0 => format!("{},0", range.start),
        1 => (range.start + 1).to_string(),
        count => format!("{},{count}", range.start + 1),
    }
}

fn push_lines(text: &mut BoundedDiffText, sign: char, lines: &[&[u8]]) {
    for line in lines {
        let (body, end) = match line.strip_suffix(b"\n") {
            Some(body) => (body, "\n"),
            None => (*line, "\n\\ No newline at end of file\n"),
        };
        if text.omitted > 0 {
            text.omitted += 1;
        } else {
            text.push(&format!("{sign}{}{end}", escape_output(body)));
        }
    }
}

/// Collects whole lines up to the bound for one file, and counts the lines beyond it.
#[derive(Default)]
struct BoundedDiffText {
    text: String,
    omitted: u64,
}

impl BoundedDiffText {
    fn push(&mut self, line: &str) {
        if self.omitted > 0 || self.text.len() + line.len() > MAX_FILE_DIFF {
            self.omitted += 1;
        } else {
            self.text.push_str(line);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn whole_diff(old: Option<&[u8]>, new: Option<&[u8]>) -> String {
        match unified(b"p", old, new) {
            Diff::Whole { text } => text,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn formats_unified_diff() {
        let text = whole_diff(Some(b"1\n2\n3\n4\n5\n6\n"), Some(b"1\n2\n3\n4\nfive\n6"));
        let expected =
            "--- a/p\n+++ b/p\n@@ -2,5 +2,5 @@\n 2\n 3\n 4\n-5\n-6\n+five\n+6\n\\ No newline at end of file\n";
        assert_eq!(text, expected);
        assert_eq!(whole_diff(None, Some(b"x\n")), "--- /dev/null\n+++ b/p\n@@ -0,0 +1 @@\n+x\n");
        assert_eq!(whole_diff(Some(b"x\n"), None), "--- a/p\n+++ /dev/null\n@@ -1 +0,0 @@\n-x\n");
    }

    #[test]
    fn escapes_terminal_sequences() {
        let text = whole_diff(Some(b"a\n"), Some(b"\x1b[31m\xff\n"));
        assert!(text.ends_with("-a\n+\\x1b[31m\\xff\n"), "{text:?}");
        let Diff::Whole { text } = unified(b"x\n+++ b/y\xe2\x80\xae", None, Some(b"")) else { panic!("whole") };
        assert_eq!(text, "--- /dev/null\n+++ b/x\\x0a+++ b/y\\u{202e}\n");
    }

    #[test]
    fn reports_binary_content() {
        assert_eq!(unified(b"p", Some(b"a"), Some(b"a\0")), Diff::Binary);
    }

    #[test]
    fn counts_lines_beyond_bound() {
        let new: Vec<u8> = (0..20_000).flat_map(|n| format!("line {n}\n").into_bytes()).collect();
        let Diff::Truncated { text, omitted_lines } = unified(b"p", None, Some(&new)) else { panic!("truncated") };
        assert!(text.len() <= MAX_FILE_DIFF && text.ends_with('\n'));
        assert_eq!(text.lines().count() as u64 + omitted_lines, 20_003);
    }
}
