//! Provides a text with replaced parts that maps its positions to the original text.

use std::ops::Range;

/// A text with replaced parts.
#[derive(Debug, Clone)]
pub(super) struct EditedText {
    text: String,
    /// The replaced parts in order, each as its range in the current text and in the original.
    edits: Vec<(Range<usize>, Range<usize>)>,
}

impl EditedText {
    /// Returns a text without edits.
    pub(super) fn new(text: &str) -> Self {
        Self { text: text.to_owned(), edits: Vec::new() }
    }

    /// Returns the current text.
    pub(super) fn text(&self) -> &str {
        &self.text
    }

    /// Returns the text with `part` replaced by a text that is not empty; `None` if `part` starts or ends within an
    /// earlier edit.
    pub(super) fn with_replacement(&self, part: &Range<usize>, replacement: &str) -> Option<Self> {
        let original = self.original_bounds(part)?;
        let mut edits = Vec::new();
        let now = part.start..part.start + replacement.len();
        for (other_now, other_was) in &self.edits {
            if other_now.end <= part.start {
                edits.push((other_now.clone(), other_was.clone()));
            }
        }
        edits.push((now, original));
        for (other_now, other_was) in &self.edits {
            if other_now.start >= part.end {
                let moved = |at: usize| at - part.end + part.start + replacement.len();
                edits.push((moved(other_now.start)..moved(other_now.end), other_was.clone()));
            }
        }
        let mut text = self.text.clone();
        text.replace_range(part.clone(), replacement);
        Some(Self { text, edits })
    }

    /// Maps a range to the original text; `None` if it is within a replacement.
    pub(super) fn original_range(&self, part: &Range<usize>) -> Option<Range<usize>> {
        let is_replacement = self.edits.iter().any(|(now, _)| now.start <= part.start && part.end <= now.end);
        if is_replacement { None } else { self.original_bounds(part) }
    }

    fn original_bounds(&self, part: &Range<usize>) -> Option<Range<usize>> {
        Some(
            self.original_position(part.start, |range| range.start)?
                ..self.original_position(part.end, |range| range.end)?,
        )
    }

    /// Maps a position. At the border of an edit, returns the `border` of the replaced part.
    fn original_position(&self, at: usize, border: fn(&Range<usize>) -> usize) -> Option<usize> {
        let mut shift = 0_isize;
        for (now, was) in &self.edits {
            if border(now) == at {
                return Some(border(was));
            }
            if now.start < at && at < now.end {
                return None;
            }
            if now.end <= at {
                shift += was.len().cast_signed() - now.len().cast_signed();
            }
        }
        at.checked_add_signed(shift)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn maps_positions_to_original_text() {
        let text = "SELECT c.nmae FROM customer c";
        let once = EditedText::new(text).with_replacement(&(19..27), "customers").expect("no edit is cut");
        assert_eq!(once.text(), "SELECT c.nmae FROM customers c");
        assert_eq!(once.original_range(&(7..13)), Some(7..13));
        assert_eq!(once.original_range(&(29..30)), Some(28..29));
        assert_eq!(once.original_range(&(19..28)), None);
        assert_eq!(once.original_range(&(19..30)), Some(19..29));
        let twice = once.with_replacement(&(9..13), "name_of").expect("no edit is cut");
        assert_eq!(twice.text(), "SELECT c.name_of FROM customers c");
        assert_eq!(twice.original_range(&(32..33)), Some(28..29));
        assert_eq!(twice.original_range(&(7..16)), Some(7..13), "it holds an edit and more");
        assert!(twice.with_replacement(&(10..12), "x").is_none());
    }

    proptest! {
        /// Text outside of every edit maps to its original position.
        #[test]
        fn text_outside_edits_keeps_position(parts in prop::collection::vec((0..40_usize, 1..6_usize, 1..9_usize), 1..6)) {
            let original: String = (0..40).map(|at| char::from(b'A' + at as u8)).collect();
            let mut edited = EditedText::new(&original);
            for (start, length, new) in parts {
                let start = start.min(edited.text().len());
                let end = (start + length).min(edited.text().len());
                if start < end && let Some(next) = edited.with_replacement(&(start..end), &"-".repeat(new)) {
                    edited = next;
                }
            }
            for (at, letter) in edited.text().char_indices().filter(|(_, letter)| *letter != '-') {
                let place = edited.original_range(&(at..at + 1)).expect("it is in no edit");
                prop_assert_eq!(&original[place], letter.to_string());
            }
        }
    }
}
