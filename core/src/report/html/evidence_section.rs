//! Writes the list of the evidence with its hashes, and the command that checks them.

use crate::report::html::markup::Html;
use crate::report::html::page_text;
use crate::report::html::page_view::RunPageView;
use crate::report::html::section::write_section;

/// Maximum number of files that are listed.
const MAX_LISTED_FILES: usize = 1_000;

/// Writes the list; writes nothing if the run left no evidence.
pub(super) fn write(html: &mut Html, view: &RunPageView<'_>) {
    let record = view.record;
    let directory = record.finished.as_ref().and_then(|finished| finished.evidence_dir.as_deref());
    if record.evidence.is_empty() && directory.is_none() {
        return;
    }
    write_section(html, view, "evidence", "Evidence", |html| {
        html.leaf(
            "p",
            "note",
            "This page is only a summary; the following documents are authoritative, each with the sha256 of its bytes.",
        );
        if let Some(directory) = directory {
            html.class("p", "note", |html| {
                html.text("They are in ");
                html.leaf("code", "path", &page_text::truncated_name(directory));
                html.text(". There, the lines below as the input of ");
                html.leaf("code", "path", "sha256sum --check");
                html.text(" report whether they still have the content that the run wrote.");
            });
        }
        html.element("pre", &[("class", "log hashes"), ("tabindex", "0")], |html| {
            html.verbatim("\n");
            for (file, sha256) in record.evidence.iter().take(MAX_LISTED_FILES) {
                html.text(&format!("{sha256}  {}\n", page_text::truncated_name(file)));
            }
        });
        if record.evidence.len() > MAX_LISTED_FILES {
            html.leaf("p", "note", &format!("And {} more.", record.evidence.len() - MAX_LISTED_FILES));
        }
        write_gate_command(html, view);
    });
}

/// Writes the command that checks whether the current tree is verified.
fn write_gate_command(html: &mut Html, view: &RunPageView<'_>) {
    let Some(started) = &view.record.started else { return };
    html.class("p", "note", |html| {
        html.text("To check whether the current tree is verified, run ");
        let changeset = started.changeset_id.as_ref().map(|id| format!(" --changeset {}", id.as_str()));
        let command = format!("proctor gate --profile {}{}", started.profile.as_str(), changeset.unwrap_or_default());
        html.leaf("code", "path", &page_text::truncated_name(&command));
        html.text(".");
    });
}
