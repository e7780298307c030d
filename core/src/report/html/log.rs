//! Writes the output of a step, opened at its first error. The lines before and after it are folded.

use crate::evidence::{PREVIEW_BYTES, StepEvidence, StreamEvidence};
use crate::first_error::first_error;
use crate::report::html::markup::Html;
use crate::report::html::words::{count, size};
use crate::safe_text::without_colour;

/// Number of lines that are shown before the error line.
const BEFORE: usize = 3;
/// Number of lines that are shown from the error line on.
const AFTER: usize = 16;
/// Number of lines at the end of a stream that are shown if it has no known error line.
const LAST: usize = 20;
/// Replacement for an output that does not fit on the page.
const LEFT_OUT: &str = "Left out here: the page would be too large. The evidence has its beginning and its end.";
/// Up to this number of lines, the lines are not folded.
const FEW: usize = 4;

/// The initially visible part of an output.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Opening {
    /// The lines around the first error.
    AtTheError,
    /// All lines from the first one.
    Whole,
}

/// Writes both streams of a step, standard error first. If the page contains only the two ends of a stream, it
/// shows `command`, which prints the whole stream.
pub(super) fn write(html: &mut Html, step: &StepEvidence, opening: Opening, command: Option<&str>) {
    for (name, stream) in [("stderr", &step.stderr), ("stdout", &step.stdout)] {
        if stream.bytes > 0 || !stream.complete {
            self::stream(html, name, stream, opening, command);
        }
    }
}

fn stream(html: &mut Html, name: &str, stream: &StreamEvidence, opening: Opening, command: Option<&str>) {
    html.class("div", "stream", |html| {
        html.class("h4", "stream-name", |html| {
            html.text(name);
            html.text(" ");
            html.leaf("span", "soft", &size(stream.bytes));
        });
        let (head, tail) = parts(stream);
        if html.is_full() {
            html.leaf("p", "note", LEFT_OUT);
        } else {
            lines(html, &head, &tail, stream, opening);
        }
        notes(html, stream, command);
    });
}

/// Returns the text of a stream without colour sequences: in one piece if all of it is here, else its two ends.
fn parts(stream: &StreamEvidence) -> (String, String) {
    match is_whole(stream) {
        true => (without_colour(&format!("{}{}", stream.preview, stream.tail)), String::new()),
        false => (without_colour(&stream.preview), without_colour(&stream.tail)),
    }
}

fn is_whole(stream: &StreamEvidence) -> bool {
    stream.bytes <= 2 * PREVIEW_BYTES as u64
}

fn lines(html: &mut Html, head: &str, tail: &str, stream: &StreamEvidence, opening: Opening) {
    let gap = format!("… {} in all, the middle is not here …", size(stream.bytes));
    let mut all: Vec<&str> = head.lines().collect();
    let gap_at = (!is_whole(stream)).then_some(all.len());
    if gap_at.is_some() {
        all.push(&gap);
        all.extend(tail.lines());
    }
    let error = first_error(&all).filter(|_| opening == Opening::AtTheError);
    let shown = match (opening, error) {
        (Opening::Whole, _) => 0..all.len(),
        (_, Some(at)) => at.saturating_sub(BEFORE)..(at + AFTER).min(all.len()),
        (_, None) => all.len().saturating_sub(LAST)..all.len(),
    };
    let start = if shown.start <= FEW { 0 } else { shown.start };
    let end = if all.len() - shown.end <= FEW { all.len() } else { shown.end };
    let block = |html: &mut Html, from: usize, to: usize| {
        block(
            html,
            all.get(from..to).unwrap_or_default(),
            error.and_then(|at| at.checked_sub(from)),
            gap_at.and_then(|at| at.checked_sub(from)),
        );
    };
    folded(html, start, "before", |html| block(html, 0, start));
    block(html, start, end);
    folded(html, all.len() - end, "after", |html| block(html, end, all.len()));
}

fn folded(html: &mut Html, number: usize, side: &str, content: impl FnOnce(&mut Html)) {
    if number > 0 {
        html.class("details", "rest", |html| {
            html.say("summary", &format!("{} {side}", count(number, "line")));
            content(html);
        });
    }
}

/// Writes lines of output. The error line and the line for the gap are highlighted.
fn block(html: &mut Html, lines: &[&str], error: Option<usize>, gap: Option<usize>) {
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

fn notes(html: &mut Html, stream: &StreamEvidence, command: Option<&str>) {
    if let Some(command) = command.filter(|_| !is_whole(stream)) {
        html.class("p", "note", |html| {
            html.text("All that is kept of it: ");
            html.leaf("code", "path", command);
        });
    }
    if !stream.complete {
        html.leaf("p", "note", "Cut: something still held it open when its time was up.");
    }
    if stream.kept_bytes < stream.bytes {
        html.leaf("p", "note", &format!("{} of it are kept; the hash covers all of it.", size(stream.kept_bytes)));
    }
    if stream.redacted > 0 {
        let places = usize::try_from(stream.redacted).unwrap_or(usize::MAX);
        html.leaf("p", "note", &format!("A secret of the caller was taken out in {}.", count(places, "place")));
    }
}
