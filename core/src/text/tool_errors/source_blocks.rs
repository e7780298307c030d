//! Recognises errors of compilers and linters that take several lines, and tracebacks of Python.

use super::line_format;
use super::location::{SourceLocation, is_file_name, is_number, parse_arrow, parse_frame};
use super::tool_error::{ErrorKind, ParsedBlock, ToolError, indentation};

/// Number of lines after the first line of an error that are searched for its location.
const MAX_LINES_TO_ARROW: usize = 5;
/// Maximum number of lines of a traceback.
const MAX_TRACEBACK_LINES: usize = 2_000;

/// Returns the error that starts at a line, if a form of several lines matches.
pub(super) fn parse(lines: &[String], at: usize) -> Option<ParsedBlock> {
    let line = &lines[at];
    arrow_block(lines, at)
        .or_else(|| prefixed_error(lines, at))
        .or_else(|| line.starts_with("Traceback (most recent call last):").then(|| traceback(lines, at)))
        .or_else(|| eslint_row(lines, at))
        .or_else(|| shellcheck_block(lines, at))
}

/// Matches a message that a line with an arrow and a location follows: rustc, ruff and others.
fn arrow_block(lines: &[String], at: usize) -> Option<ParsedBlock> {
    let message = lines[at].trim_start();
    let location = parse_arrow(lines.get(at + 1)?)?;
    let error = (!message.is_empty() && !line_format::is_note(message))
        .then(|| ToolError::new(at, ErrorKind::Detail, message).at([location]).with_details([at + 1]));
    Some(ParsedBlock { error, next_line: at + 2 })
}

/// Matches an error whose message takes several lines before the arrow, a panic, and repeated heads of one error.
fn prefixed_error(lines: &[String], at: usize) -> Option<ParsedBlock> {
    let line = lines[at].trim_start();
    if line_format::is_panic(line) {
        return Some(panic(lines, at));
    }
    if line.starts_with("panic:") {
        return Some(go_panic(lines, at));
    }
    let lower = line.to_ascii_lowercase();
    if lower.starts_with("npm err") {
        let end = (at..lines.len()).find(|at| !lines[*at].to_ascii_lowercase().starts_with("npm err"));
        let error = ToolError::new(at, ErrorKind::Detail, line);
        return Some(ParsedBlock::new(error, end.unwrap_or(lines.len())));
    }
    let arrow = (at + 1..lines.len().min(at + MAX_LINES_TO_ARROW))
        .take_while(|next| !line_format::has_error_prefix(&lines[*next]) && !lines[*next].is_empty())
        .find_map(|next| Some((next, parse_arrow(&lines[next])?)));
    let (next, location) = arrow.filter(|_| line_format::has_error_prefix(&lower))?;
    let error = ToolError::new(at, ErrorKind::Detail, line).at([location]).with_details([next]);
    Some(ParsedBlock::new(error, next + 1))
}

/// Parses `thread 'x' panicked at src/main.rs:2:5:` and the message on the next line.
pub(super) fn panic(lines: &[String], at: usize) -> ParsedBlock {
    let place = lines[at].rsplit_once("panicked at ").map_or("", |(_, place)| place);
    let location = super::location::parse_prefix(place).map(|(location, _)| location);
    let message = lines.get(at + 1).filter(|message| !message.is_empty());
    let error = ToolError::new(at, ErrorKind::Detail, message.map_or(lines[at].as_str(), String::as_str));
    let details = message.map(|_| at + 1);
    ParsedBlock::new(error.at(location).with_details(details), at + 1 + usize::from(details.is_some()))
}

/// Parses `panic: …` of Go with the frames of its stack trace, up to the end of the trace.
fn go_panic(lines: &[String], at: usize) -> ParsedBlock {
    let is_trace = |line: &String| {
        line.is_empty() || line.starts_with([' ', '\t', '[']) || line.starts_with("goroutine ") || line.contains('(')
    };
    let trace = lines.iter().skip(at + 1).take(MAX_TRACEBACK_LINES).take_while(|line| is_trace(line));
    let frames: Vec<SourceLocation> = trace.clone().filter_map(|line| parse_frame(line)).collect();
    let next_line = at + 1 + trace.count();
    let frames = frames.into_iter().filter(|frame| !frame.path.contains("/go/src/") && !frame.path.contains("/go-1."));
    ParsedBlock::new(ToolError::new(at, ErrorKind::Detail, &lines[at]).at(frames), next_line)
}

/// Parses a Python traceback. The frames are indented, and the error follows them. The output may end before that.
pub(super) fn traceback(lines: &[String], at: usize) -> ParsedBlock {
    let rest = lines.iter().enumerate().skip(at + 1).take(MAX_TRACEBACK_LINES);
    let error = rest.clone().find(|(_, line)| !line.is_empty() && !line.starts_with(char::is_whitespace));
    let end = error.map_or(lines.len(), |(end, _)| end);
    let mut frames: Vec<SourceLocation> =
        rest.take_while(|(index, _)| *index < end).filter_map(|(_, line)| parse_frame(line)).collect();
    frames.reverse();
    let line = error.map_or(at, |(index, _)| index);
    ParsedBlock::new(ToolError::new(line, ErrorKind::Detail, &lines[line]).at(frames), end + 1)
}

/// Matches `1:7  error  …` of eslint, which prints the file name on a separate line.
fn eslint_row(lines: &[String], at: usize) -> Option<ParsedBlock> {
    let row = lines[at].trim_start();
    let mut words = row.split_ascii_whitespace();
    let (line, column) = words.next()?.split_once(':')?;
    if !is_number(line) || !is_number(column) || words.next() != Some("error") {
        return None;
    }
    let file = lines[..at].iter().enumerate().rev().find(|(_, line)| indentation(line) == 0);
    let file = file.filter(|(_, line)| is_file_name(line));
    let place =
        file.and_then(|(_, path)| super::location::parse_prefix(&format!("{path}:{line}:{column}")).map(|(l, _)| l));
    let message = row.split_once("error").map_or(row, |(_, message)| message);
    let error = ToolError::new(at, ErrorKind::Detail, &message.split_whitespace().collect::<Vec<_>>().join(" "));
    Some(ParsedBlock::new(error.at(place).with_details(file.map(|(index, _)| index)), at + 1))
}

/// Matches `In build.sh line 3:` of shellcheck. The line of the file and the message follow it.
fn shellcheck_block(lines: &[String], at: usize) -> Option<ParsedBlock> {
    let (path, line) = lines[at].strip_prefix("In ")?.strip_suffix(':')?.rsplit_once(" line ")?;
    let (location, _) = super::location::parse_prefix(&format!("{path}:{line}"))?;
    let code = |line: &String| line.trim_start().starts_with('^') && line.contains(" SC");
    let message = lines.iter().enumerate().skip(at + 1).take(MAX_LINES_TO_ARROW).find(|(_, line)| code(line));
    let text = message.map_or(lines[at].as_str(), |(_, line)| line.trim_start().trim_start_matches(['^', '-', ' ']));
    let error = ToolError::new(at, ErrorKind::Detail, text).at([location]);
    Some(ParsedBlock::new(error.with_details(message.map(|(index, _)| index)), at + 1))
}
