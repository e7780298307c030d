//! Cuts out the part of a source that a diagnostic shows: a few lines, long ones cut around the marked position,
//! control characters replaced. The cost depends on the size of the excerpt, not of the source.

use std::ops::Range;

use proctor_core::record::evidence::escape_output;

/// Length in bytes above which a line is cut.
const MAX_LINE_BYTES: usize = 240;
/// Bytes of a cut line that are kept before the marked position.
const BYTES_BEFORE_MARK: usize = 60;
/// Replaces text that was cut off.
const ELLIPSIS: &str = "…";

/// A source text and the offsets of its lines.
pub(super) struct ExcerptSource<'a> {
    source: &'a str,
    starts: Vec<usize>,
}

/// A few lines of a source in displayable form.
pub(super) struct Excerpt {
    /// The text.
    pub text: String,
    /// Number of the first line, counted from 0.
    pub first_line: usize,
    parts: Vec<ExcerptPart>,
}

/// A range of the source, and its offset in the excerpt.
struct ExcerptPart {
    source_range: Range<usize>,
    excerpt_offset: usize,
}

impl<'a> ExcerptSource<'a> {
    pub(super) fn new(source: &'a str) -> Self {
        let breaks = source.bytes().enumerate().filter(|(_, byte)| *byte == b'\n').map(|(at, _)| at + 1);
        Self { source, starts: std::iter::once(0).chain(breaks).collect() }
    }

    /// Returns the number of the line that contains `offset`, counted from 0.
    pub(super) fn line_number(&self, offset: usize) -> usize {
        self.starts.partition_point(|start| *start <= offset).saturating_sub(1)
    }

    /// Clamps a range to the source and to character boundaries.
    pub(super) fn clamp_range(&self, start: u32, end: u32) -> Range<usize> {
        let inside = |offset: u32| {
            let offset = usize::try_from(offset).unwrap_or(usize::MAX).min(self.source.len());
            self.source.floor_char_boundary(offset)
        };
        let start = inside(start);
        start..inside(end).max(start)
    }

    /// Returns the excerpt with `lines`, each cut around the first of the `marks` on that line.
    pub(super) fn excerpt(&self, lines: Range<usize>, marks: &[usize]) -> Excerpt {
        let mut excerpt = Excerpt { text: String::new(), first_line: lines.start, parts: Vec::new() };
        for line in lines {
            let Some(whole) = self.line_bytes(line) else { break };
            let mark = marks.iter().copied().filter(|mark| whole.start <= *mark && *mark <= whole.end).min();
            excerpt.push(self.source, &whole, self.shown_window(&whole, mark.unwrap_or(whole.start)));
        }
        excerpt
    }

    /// Returns the byte range of a line without its line break.
    fn line_bytes(&self, line: usize) -> Option<Range<usize>> {
        let start = *self.starts.get(line)?;
        let next = self.starts.get(line + 1).copied();
        Some(start..next.map_or(self.source.len(), |next| next - 1))
    }

    fn shown_window(&self, whole: &Range<usize>, mark: usize) -> Range<usize> {
        if whole.len() <= MAX_LINE_BYTES {
            return whole.clone();
        }
        let start = self.source.floor_char_boundary(mark.saturating_sub(BYTES_BEFORE_MARK).max(whole.start));
        start..self.source.floor_char_boundary((start + MAX_LINE_BYTES).min(whole.end))
    }
}

impl Excerpt {
    fn push(&mut self, source: &str, whole: &Range<usize>, shown: Range<usize>) {
        if shown.start > whole.start {
            self.text.push_str(ELLIPSIS);
        }
        self.parts.push(ExcerptPart { source_range: shown.clone(), excerpt_offset: self.text.len() });
        self.text.push_str(&replace_controls(&source[shown.clone()]));
        if shown.end < whole.end {
            self.text.push_str(ELLIPSIS);
        }
        self.text.push('\n');
    }

    /// Checks whether the beginning of any line was cut off.
    pub(super) fn is_cut_left(&self) -> bool {
        self.parts.iter().any(|piece| self.text[..piece.excerpt_offset].ends_with(ELLIPSIS))
    }

    /// Translates a range of the source to the excerpt; an end beyond the shown text is clamped. Returns `None` if
    /// the start is not shown.
    pub(super) fn translate_range(&self, range: &Range<usize>) -> Option<Range<usize>> {
        let part_with = |offset: usize| {
            self.parts.iter().find(|piece| piece.source_range.start <= offset && offset <= piece.source_range.end)
        };
        let piece = part_with(range.start)?;
        let start = piece.excerpt_offset + (range.start - piece.source_range.start);
        let end = match part_with(range.end) {
            Some(last) => last.excerpt_offset + (range.end - last.source_range.start),
            None => piece.excerpt_offset + piece.source_range.len(),
        };
        Some(start..end.max(start))
    }
}

/// Replaces each control or bidirectional character with a visible one of the same length in bytes, so that all
/// offsets stay valid.
fn replace_controls(text: &str) -> String {
    text.chars().map(replace_control).collect()
}

fn replace_control(c: char) -> char {
    let mut bytes = [0; 4];
    let encoded = c.encode_utf8(&mut bytes);
    match c {
        ' '..='~' | '\t' => c,
        c if !escape_output(encoded.as_bytes()).starts_with('\\') => c,
        c if c.len_utf8() == 1 => '?',
        c if c.len_utf8() == 2 => '¿',
        _ => '\u{fffd}',
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn replacing_controls_keeps_offsets() {
        let source = "a\x1b\u{9b}\u{202e}\u{feff}\tb\\é";
        assert_eq!(replace_controls(source).len(), source.len());
        assert_eq!(replace_controls(source), "a?¿\u{fffd}\u{fffd}\tb\\é");
    }

    #[test]
    fn long_line_is_cut_around_the_mark() {
        let source = format!("short\n{}x{}\nlast", "é".repeat(50_000), "b".repeat(100_000));
        let lines = ExcerptSource::new(&source);
        let mark = source.find('x').expect("there");
        let excerpt = lines.excerpt(0..3, &[mark]);
        assert!(excerpt.text.len() < 300, "{}", excerpt.text.len());
        let shown_range = excerpt.translate_range(&(mark..mark + 1)).expect("shown");
        assert_eq!(&excerpt.text[shown_range], "x");
        assert!(excerpt.text.starts_with("short\n…é") && excerpt.text.ends_with("b…\nlast\n"), "{}", excerpt.text);
    }

    #[test]
    fn range_outside_the_excerpt_has_no_translation() {
        let source = "a\nb\nc\n";
        let lines = ExcerptSource::new(source);
        let excerpt = lines.excerpt(1..2, &[2]);
        assert_eq!((excerpt.text.as_str(), excerpt.first_line), ("b\n", 1));
        assert_eq!(excerpt.translate_range(&(2..3)), Some(0..1));
        assert_eq!(excerpt.translate_range(&(0..1)), None);
        assert_eq!(excerpt.translate_range(&(2..6)), Some(0..1), "the end is cut to what is shown");
        assert_eq!((lines.line_number(0), lines.line_number(2), lines.line_number(99)), (0, 1, 3));
    }
}
