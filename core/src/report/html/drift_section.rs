//! Writes the forbidden changes of a step: the paths, and a diff of each change.

use crate::model::drift::{Change, Diff, DriftMethod};
use crate::record::evidence::DriftEvidence;
use crate::report::html::markup::Html;
use crate::report::html::page_text::{self, count};

/// Maximum number of changed paths of one step that are shown; the evidence lists more.
const MAX_SHOWN_CHANGES: usize = 200;
/// Number of diffs that are initially open.
const OPEN_DIFFS: usize = 3;
/// Maximum number of applied paths that are named.
const MAX_APPLIED_PATHS: usize = 50;

/// Writes the changes of a step; writes nothing if it made no changes.
pub(super) fn write(html: &mut Html, drift: &DriftEvidence) {
    let found = &drift.found;
    if !found.is_empty() {
        html.class("div", "drift", |html| {
            html.text_element("h4", "Unexpected changes");
            let mut shown = 0;
            for change in found.changes_for_display().take(MAX_SHOWN_CHANGES) {
                if html.is_full() {
                    break;
                }
                self::write_change(html, change, shown < OPEN_DIFFS);
                shown += 1;
            }
            let hidden = found.omitted.saturating_add((found.changes.len() - shown) as u64);
            if hidden > 0 {
                html.leaf(
                    "p",
                    "note",
                    &format!("And {hidden} more; the evidence contains the first {}.", found.changes.len()),
                );
            }
            if let Some(method) = drift.method {
                html.leaf("p", "note", method_sentence(method));
            }
        });
    }
    write_applied_changes(html, &drift.applied);
}

fn write_change(html: &mut Html, change: &Change, open: bool) {
    let closed = [("class", "change")];
    let opened = [("class", "change"), ("open", "")];
    html.element("details", if open { &opened } else { &closed }, |html| {
        html.plain("summary", |html| {
            html.leaf("span", "kind", &page_text::enum_value_text(&change.kind));
            html.text(" ");
            html.leaf("code", "path", &page_text::truncated_name(&change.path));
        });
        write_change_content(html, change);
    });
}

fn write_change_content(html: &mut Html, change: &Change) {
    match &change.diff {
        Diff::Whole { text } => write_diff(html, text, 0),
        Diff::Truncated { text, omitted_lines } => write_diff(html, text, *omitted_lines),
        Diff::Binary => html.leaf("p", "note", "One side is not text."),
        Diff::None => html.leaf("p", "note", "Only its mode or its type differs."),
        Diff::Omitted { reason } => {
            html.leaf("p", "note", &format!("No diff: {}", page_text::truncated_sentence(reason)));
        }
    }
}

fn write_diff(html: &mut Html, text: &str, omitted: u64) {
    if html.is_full() {
        html.leaf("p", "note", "The diff is omitted: the page would be too large. The evidence contains it.");
        return;
    }
    html.class("pre", "diff", |html| {
        html.verbatim("\n");
        text.lines().for_each(|line| write_diff_line(html, line));
    });
    if omitted > 0 {
        html.leaf("p", "note", &format!("{omitted} more lines are not stored."));
    }
}

fn write_diff_line(html: &mut Html, line: &str) {
    let text = format!("{line}\n");
    match line.as_bytes().first() {
        _ if line.starts_with("+++ ") || line.starts_with("--- ") => html.leaf("span", "file", &text),
        Some(b'+') => html.leaf("ins", "added", &text),
        Some(b'-') => html.leaf("del", "removed", &text),
        Some(b'@') => html.leaf("span", "hunk", &text),
        _ => html.text(&text),
    }
}

fn method_sentence(method: DriftMethod) -> &'static str {
    match method {
        DriftMethod::Layer => "Found in the step's layer, which the kernel wrote.",
        DriftMethod::Stat => "Found in the step's copy of the tree, by inode, size, mode and times, then by hash.",
        DriftMethod::Rehash => "Found in the step's copy of the tree, by hashing each file before and after.",
    }
}

/// Writes the changes of a `read_only: off` step that reached the worktree.
fn write_applied_changes(html: &mut Html, paths: &[String]) {
    if paths.is_empty() {
        return;
    }
    html.class("details", "rest", |html| {
        html.text_element(
            "summary",
            &format!("{} applied to the worktree (read_only: off)", count(paths.len(), "changed path")),
        );
        html.class("ul", "paths", |html| {
            for path in paths.iter().take(MAX_APPLIED_PATHS) {
                html.plain("li", |html| html.leaf("code", "path", &page_text::truncated_name(path)));
            }
        });
        if paths.len() > MAX_APPLIED_PATHS {
            html.leaf("p", "note", &format!("And {} more; the evidence lists them.", paths.len() - MAX_APPLIED_PATHS));
        }
    });
}
