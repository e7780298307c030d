//! Represents errors that tools report.

use super::location::SourceLocation;

/// Maximum number of locations of one error.
pub(super) const MAX_LOCATIONS: usize = 8;

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
    pub(super) fn new(line: usize, kind: ErrorKind, message: &str) -> Self {
        let (detail_lines, locations, message) = (Vec::new(), Vec::new(), message.trim().to_owned());
        Self { line, detail_lines, kind, locations, message }
    }

    pub(super) fn at(mut self, locations: impl IntoIterator<Item = SourceLocation>) -> Self {
        self.locations.extend(locations.into_iter().take(MAX_LOCATIONS));
        self
    }

    pub(super) fn with_details(mut self, lines: impl IntoIterator<Item = usize>) -> Self {
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
pub(super) struct ParsedBlock {
    pub error: Option<ToolError>,
    pub next_line: usize,
}

impl ParsedBlock {
    pub(super) fn new(error: ToolError, next_line: usize) -> Self {
        Self { error: Some(error), next_line }
    }
}

/// Returns the number of blanks at the start of a line.
pub(super) fn indentation(line: &str) -> usize {
    line.len() - line.trim_start().len()
}
