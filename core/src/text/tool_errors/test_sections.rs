//! Recognises the sections that test runners print for each failed test: pytest, unittest, libtest, jest, vitest,
//! mocha and go test.

use std::collections::BTreeSet;

use super::location::{SourceLocation, parse_frame, parse_prefix};
use super::tool_error::{ErrorKind, MAX_LOCATIONS, ParsedBlock, ToolError, indentation};
use super::{line_format, source_blocks};

/// Maximum number of lines of a section.
const MAX_SECTION_LINES: usize = 5_000;

/// Maximum number of lines of the name of a test.
const MAX_NAME_LINES: usize = 6;

/// The facts about the tests of an output, before and during the search.
pub(super) struct TestOutput {
    /// The first line after mocha's number of failed tests.
    mocha_failures: Option<usize>,
    /// The tests of Go that failed.
    failed_go_tests: BTreeSet<String>,
    /// The test of Go that prints.
    running_go_test: Option<String>,
    /// The tests of Go whose messages precede their result.
    reported_go_tests: BTreeSet<String>,
    /// The number of errors before the tests of the current package of Go.
    go_package_start: usize,
}

impl TestOutput {
    /// Searches for facts that lines before them depend on.
    pub(super) fn new(lines: &[String]) -> Self {
        let is_mocha =
            |line: &String| line.trim_start().strip_suffix(" failing").is_some_and(super::location::is_number);
        Self {
            mocha_failures: lines.iter().position(is_mocha).map(|at| at + 1),
            failed_go_tests: lines.iter().filter_map(|line| go_failure(line)).map(str::to_owned).collect(),
            running_go_test: None,
            reported_go_tests: BTreeSet::new(),
            go_package_start: 0,
        }
    }

    /// Returns the section that starts at a line, if a test runner's form matches.
    pub(super) fn parse(&mut self, lines: &[String], at: usize, errors: &mut [ToolError]) -> Option<ParsedBlock> {
        pytest_section(lines, at)
            .or_else(|| unittest_section(lines, at))
            .or_else(|| libtest_section(lines, at))
            .or_else(|| jest_section(lines, at))
            .or_else(|| tap_section(lines, at))
            .or_else(|| self.mocha_section(lines, at))
            .or_else(|| self.go_test(lines, at, errors))
    }

    /// Parses `  1) suite`, indented names down to one that ends with `:`, and the error.
    fn mocha_section(&self, lines: &[String], at: usize) -> Option<ParsedBlock> {
        let is_title = |line: &String| {
            line.strip_prefix("  ")
                .and_then(|line| line.split_once(") "))
                .is_some_and(|(n, _)| super::location::is_number(n))
        };
        let start = self.mocha_failures?;
        if !is_title(&lines[at]) {
            return None;
        }
        if at < start {
            // The list of all tests names the failed ones too.
            return Some(ParsedBlock { error: None, next_line: at + 1 });
        }
        let end = section_end(lines, at, |line| is_title(line));
        let name_end = (at..end).find(|at| lines[*at].ends_with(':'))?;
        let message = (name_end + 1..end).find(|at| !lines[*at].is_empty())?;
        let frames = (message..end).filter_map(|at| parse_frame(&lines[at]));
        let name: Vec<&str> = lines[at..=name_end].iter().take(MAX_NAME_LINES).map(|line| line.trim()).collect();
        let name = name.join(" ");
        let name = name.split_once(") ").map_or(name.as_str(), |(_, name)| name);
        let error = ToolError::new(message, ErrorKind::Detail, &format!("{name} {}", lines[message].trim())).at(frames);
        Some(ParsedBlock::new(error.with_details(at..=name_end.min(at + MAX_NAME_LINES - 1)), end))
    }

    /// Parses `=== RUN`, messages of failed tests, `--- FAIL` and the result of a package.
    fn go_test(&mut self, lines: &[String], at: usize, errors: &mut [ToolError]) -> Option<ParsedBlock> {
        let line = &lines[at];
        let skip = ParsedBlock { error: None, next_line: at + 1 };
        if let Some(name) = line.strip_prefix("=== RUN ").or_else(|| line.strip_prefix("=== CONT ")) {
            self.running_go_test = Some(name.trim().to_owned());
            return Some(skip);
        }
        if let Some(package) = line.strip_prefix("FAIL\t").and_then(|rest| rest.split(['\t', ' ']).next()) {
            errors.iter_mut().skip(self.go_package_start).for_each(|error| add_package(error, package));
            self.go_package_start = errors.len();
            return None;
        }
        if let Some(name) = go_failure(line) {
            self.running_go_test = None;
            return Some(self.go_result(lines, at, name));
        }
        let name = self.running_go_test.clone()?;
        let (location, message) = go_message(line)?;
        if !self.failed_go_tests.contains(&name) || !self.reported_go_tests.insert(name.clone()) {
            return Some(skip);
        }
        Some(ParsedBlock::new(ToolError::new(at, ErrorKind::Detail, message).at([location]), at + 1))
    }

    /// Parses `--- FAIL: name` and the messages below it.
    fn go_result(&self, lines: &[String], at: usize, name: &str) -> ParsedBlock {
        let depth = indentation(&lines[at]);
        let next = lines.get(at + 1);
        let is_group = next.is_some_and(|next| indentation(next) > depth && next.trim_start().starts_with("--- "));
        let panics = next.is_some_and(|next| next.starts_with("panic:"));
        if is_group || panics || self.reported_go_tests.contains(name) {
            return ParsedBlock { error: None, next_line: at + 1 };
        }
        let message = next.filter(|next| indentation(next) > depth).and_then(|next| go_message(next));
        let text = message.as_ref().map_or(lines[at].trim_start(), |(_, text)| text);
        let details = message.is_some().then_some(at + 1);
        let end =
            (at + 1..lines.len()).find(|at| indentation(&lines[*at]) <= depth || go_failure(&lines[*at]).is_some());
        let next_line = if details.is_some() { end.unwrap_or(lines.len()) } else { at + 1 };
        let error = ToolError::new(at, ErrorKind::Detail, text).with_details(details);
        ParsedBlock::new(error.at(message.map(|(location, _)| location)), next_line)
    }
}

/// Returns the name of a failed test of Go.
fn go_failure(line: &str) -> Option<&str> {
    line.trim_start().strip_prefix("--- FAIL: ").map(|rest| rest.split(' ').next().unwrap_or(rest))
}

/// Parses an indented `x_test.go:7: message`.
fn go_message(line: &str) -> Option<(SourceLocation, &str)> {
    let (location, rest) = parse_prefix(line.trim_start()).filter(|_| line.starts_with([' ', '\t']))?;
    location.path.ends_with(".go").then(|| (location, rest.trim_start_matches([':', ' '])))
}

/// Adds the locations that a bare file name may have in a package of Go. The path of the package starts with the path
/// of its module, which is unknown here.
fn add_package(error: &mut ToolError, package: &str) {
    let Some(bare) = error.locations.first().filter(|first| first.path.ends_with(".go")).cloned() else { return };
    if bare.path.contains('/') || error.locations.len() > 1 {
        return;
    }
    let parts: Vec<&str> = package.split('/').collect();
    let directories = (1..parts.len()).map(|at| parts[at..].join("/"));
    let below = directories.map(|dir| SourceLocation { path: format!("{dir}/{}", bare.path), ..bare.clone() });
    error.locations = below.chain([bare.clone()]).take(MAX_LOCATIONS).collect();
}

/// Returns the line at which a section ends: the next one for which `is_start` holds, or the end of the output.
fn section_end(lines: &[String], at: usize, is_start: impl Fn(&String) -> bool) -> usize {
    let last = lines.len().min(at.saturating_add(MAX_SECTION_LINES));
    (at + 1..last).find(|at| is_start(&lines[*at])).unwrap_or(last)
}

/// Returns the text between rows of a character: `____ test_a ____`.
fn banner(line: &str, row: &str) -> Option<String> {
    let rows = line.starts_with(&row.repeat(3)) && line.ends_with(row);
    let text = line.trim_matches(|c| row.starts_with(c) || c == ' ');
    (rows && !text.is_empty()).then(|| text.to_owned())
}

/// Parses pytest's section for a test: the banner, tracebacks, and lines that start with `E`. The last group of such
/// lines is the error that pytest reports; earlier ones are its causes.
fn pytest_section(lines: &[String], at: usize) -> Option<ParsedBlock> {
    let name = banner(&lines[at], "_")?;
    let end = section_end(lines, at, |line| banner(line, "_").is_some() || banner(line, "=").is_some());
    let is_error = |at: usize| lines[at] == "E" || lines[at].starts_with("E   ");
    let Some(first) = (at..end).rev().find(|at| is_error(*at) && !is_error(at - 1)) else {
        let native = (at..end).rev().find(|at| lines[*at].starts_with("Traceback (most recent call last):"));
        let block = native.map(|at| source_blocks::traceback(lines, at));
        let error = block.and_then(|block| block.error).filter(|error| error.line < end);
        let error = error.unwrap_or_else(|| ToolError::new(at, ErrorKind::Detail, &name));
        return Some(ParsedBlock::new(error.with_details([at]), end));
    };
    let frames = (at..end).rev().filter_map(|at| parse_prefix(&lines[at])).map(|(location, _)| location);
    let (inside, outside): (Vec<_>, Vec<_>) = frames.partition(|location| !location.path.starts_with('/'));
    let text = lines[first].trim_start_matches('E').trim_start();
    let error = ToolError::new(first, ErrorKind::Detail, &format!("{name}: {text}"));
    Some(ParsedBlock::new(error.at(inside.into_iter().chain(outside)).with_details([at]), end))
}

/// Parses unittest's section for a test: `FAIL: test_a (…)`, a row of dashes, and a traceback.
fn unittest_section(lines: &[String], at: usize) -> Option<ParsedBlock> {
    let name = lines[at].strip_prefix("FAIL: ").or_else(|| lines[at].strip_prefix("ERROR: "))?;
    let row = (at + 1..lines.len().min(at + 4)).find(|at| lines[*at].starts_with("-----"))?;
    lines.get(row + 1).filter(|line| line.starts_with("Traceback (most recent call last):"))?;
    let ParsedBlock { error, next_line } = source_blocks::traceback(lines, row + 1);
    let error = error.map(|error| ToolError { message: format!("{name}: {}", error.message), ..error });
    Some(ParsedBlock { error: error.map(|error| error.with_details([at])), next_line })
}

/// Parses the section of the Rust test harness for a test: `---- a::b stdout ----`, the output and a panic.
fn libtest_section(lines: &[String], at: usize) -> Option<ParsedBlock> {
    let is_title = |line: &String| line.starts_with("---- ") && line.ends_with(" ----");
    let name = Some(&lines[at]).filter(|line| is_title(line))?;
    let name = name.trim_matches(['-', ' ']).trim_end_matches(" stdout").trim_end_matches(" stderr");
    let end = section_end(lines, at, |line| is_title(line) || line == "failures:");
    let panic = (at..end).find(|at| line_format::is_panic(&lines[*at])).map(|at| source_blocks::panic(lines, at));
    let text = || (at + 1..end).find(|at| lines[*at].starts_with("Error: ")).or_else(|| first_text(lines, at, end));
    let error = panic.and_then(|block| block.error).unwrap_or_else(|| {
        let line = text().unwrap_or(at);
        ToolError::new(line, ErrorKind::Detail, &lines[line])
    });
    let error = ToolError { message: format!("{name}: {}", error.message), ..error };
    Some(ParsedBlock::new(error.with_details([at]), end))
}

/// Parses jest's section for a test: `  ● suite › test`, the message, and stack frames.
fn jest_section(lines: &[String], at: usize) -> Option<ParsedBlock> {
    let name = lines[at].strip_prefix("  ● ")?;
    let end = section_end(lines, at, |line| line.starts_with("  ● ") || !line.is_empty() && indentation(line) == 0);
    if name == "Console" {
        return Some(ParsedBlock { error: None, next_line: end });
    }
    let message = first_text(lines, at, end);
    let text = message.map_or(String::new(), |at| format!(": {}", lines[at].trim()));
    let frames = (at..end).filter_map(|at| parse_frame(&lines[at]));
    let error = ToolError::new(at, ErrorKind::Detail, &format!("{name}{text}")).at(frames).with_details(message);
    Some(ParsedBlock::new(error, end))
}

/// Parses a failed test of TAP with its YAML block: `not ok 1 - name`, `  ---`, `  error: …`, `  ...`.
fn tap_section(lines: &[String], at: usize) -> Option<ParsedBlock> {
    let name = lines[at].trim_start().strip_prefix("not ok ")?;
    let depth = indentation(&lines[at]);
    let yaml = |text: &str| lines.get(at + 1).is_some_and(|line| line.trim_start() == text);
    if !yaml("---") {
        return None;
    }
    let end = section_end(lines, at, |line| line.trim_start() == "..." && indentation(line) > depth);
    let field = |name: &str| (at..end).find(|at| lines[*at].trim_start().starts_with(name));
    let place = field("location: '").and_then(|at| lines[at].split('\'').nth(1));
    let location = place.and_then(parse_prefix).map(|(location, _)| location);
    let error = field("error: ");
    let text = error.map(|at| if lines[at].ends_with("|-") { at + 1 } else { at }).filter(|at| *at < end);
    let error = ToolError::new(at, ErrorKind::Detail, &format!("not ok {name}")).at(location).with_details(error);
    Some(ParsedBlock::new(error.with_details(text), end))
}

/// Returns the first line with text after `at`.
fn first_text(lines: &[String], at: usize, end: usize) -> Option<usize> {
    (at + 1..end).find(|at| !lines[*at].is_empty())
}
