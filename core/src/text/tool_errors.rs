//! Finds the errors in the output of a step, by the usual formats of compilers, linters and test runners. The result
//! selects which lines are shown and which lines of files are annotated. It never affects an outcome.
//!
//! To support another tool, add its form to [`line_format`] if one line is enough to recognise an error, else to
//! [`test_sections`] or [`source_blocks`], and add its real output to `fixtures/tool_outputs`.

mod line_format;
mod location;
mod source_blocks;
mod test_sections;

use std::collections::BTreeSet;

use crate::text::safe_text::strip_colours;
pub use location::SourceLocation;

/// Maximum number of lines that are searched.
const MAX_LINES: usize = 200_000;
/// Maximum number of bytes of a line that are searched.
const MAX_LINE_BYTES: usize = 2_000;
/// Maximum number of errors that are returned.
const MAX_ERRORS: usize = 10_000;
/// Maximum number of locations of one error.
const MAX_LOCATIONS: usize = 8;

/// An error that a tool reports.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ToolError {
    /// The first line of the error, counted from 0.
    pub line: usize,
    /// Further lines without which the error is not clear, such as the name of a test and the failed assertion.
    pub detail_lines: Vec<usize>,
    /// How certain it is that the line is an error.
    pub kind: ErrorKind,
    /// Locations that the error names, the most probable cause first. Some are outside of the repository.
    pub locations: Vec<SourceLocation>,
    /// The message without its location, on one line.
    pub message: String,
}

/// The kinds of errors. If an output contains errors of one kind, those of a later kind add nothing.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum ErrorKind {
    /// The line has the format of a tool's error.
    Detail,
    /// The line reports that a part failed, whose errors usually precede it: `FAILED tests/a.py`, `make: *** …`.
    Summary,
    /// The line only contains a word such as `failed`.
    Keyword,
}

impl ToolError {
    /// Creates an error that consists of one line.
    fn new(line: usize, kind: ErrorKind, message: &str) -> Self {
        let (detail_lines, locations, message) = (Vec::new(), Vec::new(), message.trim().to_owned());
        Self { line, detail_lines, kind, locations, message }
    }

    fn at(mut self, locations: impl IntoIterator<Item = SourceLocation>) -> Self {
        self.locations.extend(locations.into_iter().take(MAX_LOCATIONS));
        self
    }

    fn with_details(mut self, lines: impl IntoIterator<Item = usize>) -> Self {
        self.detail_lines.extend(lines);
        self.detail_lines.retain(|line| *line != self.line);
        self
    }

    /// Returns all lines that an excerpt must contain.
    pub fn lines(&self) -> impl Iterator<Item = usize> {
        std::iter::once(self.line).chain(self.detail_lines.iter().copied())
    }
}

/// An error with the line at which the search continues.
struct ParsedBlock {
    error: Option<ToolError>,
    next_line: usize,
}

impl ParsedBlock {
    fn new(error: ToolError, next_line: usize) -> Self {
        Self { error: Some(error), next_line }
    }
}

/// Returns the errors in an output, all of the most certain kind that the output contains. Of keywords, only the first
/// line counts.
pub fn find_errors(lines: &[&str]) -> Vec<ToolError> {
    let lines: Vec<String> = lines.iter().take(MAX_LINES).map(|line| clean_line(line)).collect();
    let mut errors = Vec::new();
    let mut tests = test_sections::TestOutput::new(&lines);
    let mut at = 0;
    while at < lines.len() && errors.len() < MAX_ERRORS {
        let block = tests
            .parse(&lines, at, &mut errors)
            .or_else(|| source_blocks::parse(&lines, at))
            .unwrap_or_else(|| ParsedBlock { error: line_format::parse(&lines[at], at), next_line: at + 1 });
        errors.extend(block.error);
        at = block.next_line.max(at + 1);
    }
    select_most_certain(errors)
}

/// Returns the errors of the most certain kind, without repetitions.
fn select_most_certain(errors: Vec<ToolError>) -> Vec<ToolError> {
    let Some(kind) = errors.iter().map(|error| error.kind).min() else { return Vec::new() };
    let limit = if kind == ErrorKind::Keyword { 1 } else { MAX_ERRORS };
    let mut seen = BTreeSet::new();
    let mut is_new = |error: &ToolError| {
        seen.insert((error.message.clone(), error.locations.first().cloned())) || error.message.is_empty()
    };
    let of_kind = errors.into_iter().filter(|error| error.kind == kind);
    let mut kept: Vec<ToolError> = of_kind.filter(|error| is_new(error)).take(limit).collect();
    kept.sort_by_key(|error| error.line);
    kept
}

/// Removes colours, the end of a long line and trailing white space.
fn clean_line(line: &str) -> String {
    let mut end = line.len().min(MAX_LINE_BYTES);
    while !line.is_char_boundary(end) {
        end -= 1;
    }
    strip_colours(&line[..end]).trim_end().to_owned()
}

/// Returns the number of blanks at the start of a line.
fn indentation(line: &str) -> usize {
    line.len() - line.trim_start().len()
}

#[cfg(test)]
mod tests;
