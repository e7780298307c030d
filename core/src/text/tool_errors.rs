//! Finds the errors in the output of a step, by the usual formats of compilers, linters and test runners. The result
//! selects which lines are shown and which lines of files are annotated. It never affects an outcome.
//!
//! To support another tool, add its form to `line_format` if one line is enough to recognise an error, else to
//! `test_sections` or `source_blocks`, and add its real output to `fixtures/tool_outputs`.

mod line_format;
mod location;
mod source_blocks;
mod test_sections;
mod tool_error;

use std::collections::BTreeSet;

use crate::text::safe_text::strip_colours;
pub use location::SourceLocation;
use tool_error::ParsedBlock;
pub use tool_error::{ErrorKind, ToolError};

/// Maximum number of lines that are searched.
const MAX_LINES: usize = 200_000;
/// Maximum number of bytes of a line that are searched.
const MAX_LINE_BYTES: usize = 2_000;
/// Maximum number of errors that are returned.
const MAX_ERRORS: usize = 10_000;

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

#[cfg(test)]
mod tests;
