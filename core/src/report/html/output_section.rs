//! Writes the output of a step, opened at its first error. The lines before and after it are folded.

use crate::record::evidence::{PREVIEW_BYTES, StepEvidence, StreamEvidence};
use crate::report::html::markup::Html;
use crate::report::html::page_text::{count, size};
use crate::text::first_error::first_error;
use crate::text::safe_text::strip_colours;

/// Number of lines that are shown before the error line.
const LINES_BEFORE_ERROR: usize = 3;
/// Number of lines that are shown from the error line on.
const LINES_FROM_ERROR: usize = 16;
/// Number of lines at the end of a stream that are shown if it has no known error line.
const LAST_LINES: usize = 20;
/// Replacement for an output that does not fit on the page.
const LEFT_OUT_NOTE: &str = "Omitted: the page would be too large. The evidence contains its beginning and its end.";
/// Up to this number of lines, the lines are not folded.
const MAX_UNFOLDED_LINES: usize = 4;

/// The initially visible part of an output.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum InitialExcerpt {
    /// The lines around the first error.
    AroundFirstError,
    /// All lines from the first one.
    Whole,
}

/// Writes both streams of a step, standard error first. If the page contains only the two ends of a stream, it
/// shows `command`, which prints the whole stream.
pub(super) fn write(html: &mut Html, step: &StepEvidence, excerpt: InitialExcerpt, command: Option<&str>) {
    for (name, stream) in [("stderr", &step.stderr), ("stdout", &step.stdout)] {
        if stream.bytes > 0 || !stream.complete {
            self::write_stream(html, name, stream, excerpt, command);
        }
    }
}

fn write_stream(html: &mut Html, name: &str, stream: &StreamEvidence, excerpt: InitialExcerpt, command: Option<&str>) {
    html.class("div", "stream", |html| {
        html.class("h4", "stream-name", |html| {
            html.text(name);
            html.text(" ");
            html.leaf("span", "soft", &size(stream.bytes));
        });
        let (head, tail) = stream_text(stream);
        if html.is_full() {
            html.leaf("p", "note", LEFT_OUT_NOTE);
        } else {
            write_excerpt(html, &head, &tail, stream, excerpt);
        }
        write_stream_notes(html, stream, command);
    });
}

/// Returns the text of a stream without colour sequences: in one piece if all of it is here, else its two ends.
fn stream_text(stream: &StreamEvidence) -> (String, String) {
    match is_completely_shown(stream) {
        true => (strip_colours(&format!("{}{}", stream.preview, stream.tail)), String::new()),
        false => (strip_colours(&stream.preview), strip_colours(&stream.tail)),
    }
}

fn is_completely_shown(stream: &StreamEvidence) -> bool {
    stream.bytes <= 2 * PREVIEW_BYTES as u64
}

fn write_excerpt(html: &mut Html, head: &str, tail: &str, stream: &StreamEvidence, excerpt: InitialExcerpt) {
    let gap = format!("… {} in total, the middle is omitted …", size(stream.bytes));
    let mut all: Vec<&str> = head.lines().collect();
    let gap_at = (!is_completely_shown(stream)).then_some(all.len());
    if gap_at.is_some() {
        all.push(&gap);
        all.extend(tail.lines());
    }
    let error = first_error(&all).filter(|_| excerpt == InitialExcerpt::AroundFirstError);
    let shown = match (excerpt, error) {
        (InitialExcerpt::Whole, _) => 0..all.len(),
        (_, Some(at)) => at.saturating_sub(LINES_BEFORE_ERROR)..(at + LINES_FROM_ERROR).min(all.len()),
        (_, None) => all.len().saturating_sub(LAST_LINES)..all.len(),
    };
    let start = if shown.start <= MAX_UNFOLDED_LINES { 0 } else { shown.start };
    let end = if all.len() - shown.end <= MAX_UNFOLDED_LINES { all.len() } else { shown.end };
    let block = |html: &mut Html, from: usize, to: usize| {
        write_lines(
            html,
            all.get(from..to).unwrap_or_default(),
            error.and_then(|at| at.checked_sub(from)),
            gap_at.and_then(|at| at.checked_sub(from)),
        );
    };
    write_folded(html, start, "before", |html| block(html, 0, start));
    block(html, start, end);
    write_folded(html, all.len() - end, "after", |html| block(html, end, all.len()));
}

fn write_folded(html: &mut Html, number: usize, side: &str, content: impl FnOnce(&mut Html)) {
    if number > 0 {
        html.class("details", "rest", |html| {
            html.text_element("summary", &format!("{} {side}", count(number, "line")));
            content(html);
        });
    }
}

/// Writes lines of output. The error line and the line for the gap are highlighted.
fn write_lines(html: &mut Html, lines: &[&str], error: Option<usize>, gap: Option<usize>) {
    html.class("pre", "log", |html| {
        // An HTML parser drops the first newline of a `pre` element, so add one to be dropped.
        html.verbatim("\n");
        for (at, line) in lines.iter().enumerate() {
            match at {
                _ if error == Some(at) => html.leaf("mark", "error-line", &format!("{line}\n")),
                _ if gap == Some(at) => html.leaf("em", "gap", &format!("{line}\n")),
                _ => html.text(&format!("{line}\n")),
            }
        }
    });
}

fn write_stream_notes(html: &mut Html, stream: &StreamEvidence, command: Option<&str>) {
    if let Some(command) = command.filter(|_| !is_completely_shown(stream)) {
        html.class("p", "note", |html| {
            html.text("All that is stored of it: ");
            html.leaf("code", "path", command);
        });
    }
    if !stream.complete {
        html.leaf("p", "note", "Cut: a process still held it open at the deadline.");
    }
    if stream.kept_bytes < stream.bytes {
        html.leaf(
            "p",
            "note",
            &format!("{} of it are stored; the hash covers the whole output.", size(stream.kept_bytes)),
        );
    }
    if stream.redacted > 0 {
        let places = usize::try_from(stream.redacted).unwrap_or(usize::MAX);
        html.leaf("p", "note", &format!("A secret of the caller was removed in {}.", count(places, "place")));
    }
}
