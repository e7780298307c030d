//! Selects the lines of an output that a person needs first: the first lines of its errors, with as many lines around
//! them as fit, and its end.

use std::collections::BTreeSet;
use std::ops::Range;

use crate::text::tool_errors::{ErrorKind, ToolError, find_errors};

/// Number of lines at the end of an output that are always shown: test runners print their summary there.
const LAST_LINES: usize = 12;
/// Number of lines that are shown before an error and from it on, from the most to the fewest. The first pair applies
/// with which everything fits.
const CONTEXT: [(usize, usize); 7] = [(4, 15), (2, 10), (1, 6), (0, 4), (0, 2), (0, 1), (0, 0)];

/// The size of an excerpt.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ExcerptLimits {
    /// Maximum number of lines.
    pub lines: usize,
    /// Maximum number of bytes.
    pub bytes: usize,
}

impl ExcerptLimits {
    /// The limits for a screen.
    pub const SCREEN: Self = Self { lines: 60, bytes: 16 << 10 };
}

/// The lines of an output to show.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Excerpt {
    /// The ranges of lines, counted from 0, in order and separated by at least one line.
    pub segments: Vec<Range<usize>>,
    /// The first lines of errors among them.
    pub error_lines: BTreeSet<usize>,
    /// The number of errors whose first line is not shown.
    pub hidden_errors: usize,
    /// The number of lines in the output.
    pub total_lines: usize,
    /// The certainty of the errors; `None` if there are none.
    pub kind: Option<ErrorKind>,
}

/// A part of an excerpt, in order.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ExcerptPart<'a> {
    /// A line of the output.
    Line(&'a str),
    /// The first line of an error.
    ErrorLine(&'a str),
    /// The number of lines that are left out.
    Omitted(usize),
}

impl Excerpt {
    /// Selects all lines; marks no line as an error.
    pub fn whole(total_lines: usize) -> Self {
        let segments = if total_lines == 0 { Vec::new() } else { vec![Range { start: 0, end: total_lines }] };
        Self { segments, total_lines, ..Self::default() }
    }

    /// Selects lines within the limits. A short output is selected as a whole.
    pub fn select(lines: &[&str], limits: ExcerptLimits) -> Self {
        Self::select_around(lines, &find_errors(lines), limits)
    }

    /// Selects lines around these errors.
    pub fn select_around(lines: &[&str], errors: &[ToolError], limits: ExcerptLimits) -> Self {
        let kind = errors.first().map(|error| error.kind);
        let sizes: Vec<usize> = lines.iter().map(|line| line.len() + 1).collect();
        let fits = |shown: &BTreeSet<usize>| {
            shown.len() <= limits.lines
                && shown.iter().filter_map(|line| sizes.get(*line)).sum::<usize>() <= limits.bytes
        };
        let all: BTreeSet<usize> = (0..lines.len()).take(limits.lines.saturating_add(1)).collect();
        if fits(&all) {
            return Self::from_lines(&all, errors, lines.len(), kind);
        }
        let last_lines = limits.lines.min(LAST_LINES);
        let mut shown: BTreeSet<usize> = (lines.len().saturating_sub(last_lines)..lines.len()).collect();
        while !fits(&shown) && shown.len() > 1 {
            shown.pop_first();
        }
        let mut shown_errors = Vec::new();
        for error in errors {
            let with_error: BTreeSet<usize> = shown.iter().copied().chain(error.lines()).collect();
            if !fits(&with_error) {
                break;
            }
            shown = with_error;
            shown_errors.push(error.line);
        }
        let widest = CONTEXT.iter().map(|context| with_context(&shown, &shown_errors, *context, lines.len()));
        let shown = widest.into_iter().find(fits).unwrap_or(shown);
        Self::from_lines(&shown, errors, lines.len(), kind)
    }

    fn from_lines(shown: &BTreeSet<usize>, errors: &[ToolError], total_lines: usize, kind: Option<ErrorKind>) -> Self {
        let mut segments: Vec<Range<usize>> = Vec::new();
        for line in shown.iter().copied().filter(|line| *line < total_lines) {
            match segments.last_mut() {
                // A note about one line is as long as the line.
                Some(last) if line <= last.end + 1 => last.end = line + 1,
                None if line == 1 => segments.push(0..2),
                _ => segments.push(line..line + 1),
            }
        }
        let is_shown = |line: usize| segments.iter().any(|segment| segment.contains(&line));
        let certain = errors.iter().filter(|error| error.kind != ErrorKind::Keyword);
        let hidden_errors = certain.filter(|error| !is_shown(error.line)).count();
        let error_lines = errors.iter().map(|error| error.line).filter(|line| is_shown(*line)).collect();
        Self { segments, error_lines, hidden_errors, total_lines, kind }
    }

    /// Returns whether the output contains a line with the format of an error.
    pub fn has_error_format(&self) -> bool {
        self.kind.is_some_and(|kind| kind != ErrorKind::Keyword)
    }

    /// Returns whether the output contains an error itself, and not only lines that report that a part failed.
    pub fn has_error_detail(&self) -> bool {
        self.kind == Some(ErrorKind::Detail)
    }

    /// Returns the selected lines and the gaps between them.
    pub fn parts<'a>(&self, lines: &[&'a str]) -> Vec<ExcerptPart<'a>> {
        let mut parts = Vec::new();
        let mut end = 0;
        for segment in &self.segments {
            parts.extend(Some(ExcerptPart::Omitted(segment.start - end)).filter(|_| segment.start > end));
            for (at, line) in lines.iter().enumerate().take(segment.end).skip(segment.start) {
                let is_error = self.error_lines.contains(&at);
                parts.push(if is_error { ExcerptPart::ErrorLine(line) } else { ExcerptPart::Line(line) });
            }
            end = segment.end;
        }
        parts.extend(Some(ExcerptPart::Omitted(self.total_lines - end)).filter(|_| self.total_lines > end));
        parts
    }
}

/// Adds lines around errors. The context of an error ends before the next one.
fn with_context(
    shown: &BTreeSet<usize>,
    errors: &[usize],
    (before, after): (usize, usize),
    total: usize,
) -> BTreeSet<usize> {
    let mut all = shown.clone();
    for (index, line) in errors.iter().enumerate() {
        let next = errors.get(index + 1).copied().unwrap_or(total);
        all.extend(line.saturating_sub(before)..line.saturating_add(after + 1).min(next.max(line + 1)).min(total));
    }
    all
}

#[cfg(test)]
mod tests;
