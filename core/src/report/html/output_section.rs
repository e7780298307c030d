//! Writes the output of a step, opened at its errors and its end. The lines between them are folded.

use std::collections::BTreeSet;
use std::ops::Range;

use crate::record::evidence::{StepEvidence, StreamEvidence};
use crate::report::html::markup::Html;
use crate::report::html::page_text::{count, size};
use crate::report::stream_texts::{StreamTexts, is_kept_whole, is_middle_note};
use crate::text::excerpt::{Excerpt, ExcerptLimits};
use crate::text::safe_text::strip_colours;

/// The lines that are visible without a click.
const VISIBLE: ExcerptLimits = ExcerptLimits { lines: 40, bytes: 16 << 10 };
/// Replacement for an output that does not fit on the page.
const LEFT_OUT_NOTE: &str = "Omitted: the page would be too large. The evidence contains its beginning and its end.";
/// Up to this number of lines, the lines are not folded.
const MAX_UNFOLDED_LINES: usize = 4;

/// The initially visible part of an output.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum InitialExcerpt {
    /// The lines around the errors.
    AroundErrors,
    /// All lines from the first one.
    Whole,
}

/// Writes both streams of a step, the one with errors first. If the page contains only the two ends of a stream, it
/// shows `command`, which prints the whole stream.
pub(super) fn write(html: &mut Html, step: &StepEvidence, excerpt: InitialExcerpt, command: Option<&str>) {
    for (name, stream) in StreamTexts::default().streams_by_errors(step) {
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
        if html.is_full() {
            html.leaf("p", "note", LEFT_OUT_NOTE);
        } else {
            write_excerpt(html, &strip_colours(&StreamTexts::default().text(stream)), excerpt, command);
        }
        write_stream_notes(html, stream, command);
    });
}

fn write_excerpt(html: &mut Html, text: &str, excerpt: InitialExcerpt, command: Option<&str>) {
    let lines: Vec<&str> = text.lines().collect();
    let chosen = match excerpt {
        InitialExcerpt::AroundErrors => Excerpt::select(&lines, VISIBLE),
        InitialExcerpt::Whole => Excerpt::whole(lines.len()),
    };
    let mut end = 0;
    for segment in &chosen.segments {
        write_gap(html, &lines, end..segment.start);
        write_lines(html, &lines, segment.clone(), &chosen.error_lines);
        end = segment.end;
    }
    write_gap(html, &lines, end..lines.len());
    if chosen.hidden_errors > 0 {
        write_hidden_errors(html, chosen.hidden_errors, command);
    }
}

/// Writes lines between two visible parts: a few as they are, more of them folded.
fn write_gap(html: &mut Html, lines: &[&str], range: Range<usize>) {
    match range.len() {
        0 => {}
        1..=MAX_UNFOLDED_LINES => write_lines(html, lines, range, &BTreeSet::new()),
        number => html.class("details", "rest", |html| {
            html.text_element("summary", &count(number, "line"));
            write_lines(html, lines, range, &BTreeSet::new());
        }),
    }
}

fn write_hidden_errors(html: &mut Html, number: usize, command: Option<&str>) {
    html.class("p", "note", |html| {
        html.text(&format!("{} in the folded lines", count(number, "more error")));
        if let Some(command) = command {
            html.text(": ");
            html.leaf("code", "path", command);
        }
    });
}

/// Writes lines of output. The first lines of errors are highlighted.
fn write_lines(html: &mut Html, lines: &[&str], range: Range<usize>, errors: &BTreeSet<usize>) {
    html.class("pre", "log", |html| {
        // An HTML parser drops the first newline of a `pre` element, so add one to be dropped.
        html.verbatim("\n");
        for (at, line) in lines.iter().enumerate().take(range.end).skip(range.start) {
            match at {
                _ if errors.contains(&at) => html.leaf("mark", "error-line", &format!("{line}\n")),
                _ if is_middle_note(line) => html.leaf("em", "gap", &format!("{line}\n")),
                _ => html.text(&format!("{line}\n")),
            }
        }
    });
}

fn write_stream_notes(html: &mut Html, stream: &StreamEvidence, command: Option<&str>) {
    if let Some(command) = command.filter(|_| !is_kept_whole(stream)) {
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
