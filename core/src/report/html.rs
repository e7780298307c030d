//! Writes a run as one self-contained page: it needs no network, no other files, and no script to be readable. The
//! page depends only on the record, so equal records give equal bytes.
//!
//! This file has the order of the parts, the content security policy, and the size limit. Each part is a file of
//! `html/`.

mod drift_section;
mod enforcement_section;
mod evidence_section;
mod markup;
mod multi_run_page;
mod notes_section;
mod output_section;
mod page_text;
mod page_view;
mod reasons_section;
mod resources_section;
pub(crate) mod section;
mod step_details;
mod step_list;
mod timeline_section;
mod tool_reports_section;
mod toolchain_section;
mod verdict_header;

use sha2::{Digest, Sha256};

use crate::decision::verdict::Verdict;
use crate::record::run_record::RunRecord;
use crate::report::report_input::ToolReport;
use markup::Html;
use page_view::RunPageView;

/// The style sheet of the page.
const STYLE: &str = include_str!("html/page.css");
/// The optional script of the page: search, and times when hovering over the timeline.
const SCRIPT: &str = include_str!("html/page.js");

/// Size of a page, in bytes, at which it starts to leave out output, changes and resource use of steps, with a
/// note. Steps that did not pass come first. The rest of the page is bounded by the list limits of each part.
const MAX_PAGE_BYTES: usize = 6 << 20;

/// One of the runs on a page of several.
#[derive(Debug, Clone, Copy)]
pub struct PageRun<'a> {
    /// The display name of the run, such as a commit and the first line of its message.
    pub name: &'a str,
    /// The record of the run, or the reason why it is missing.
    pub result: Result<&'a RunRecord, &'a str>,
    /// The reports of the steps' tools.
    pub tool_reports: &'a [ToolReport],
}

/// Returns the page for a run, with the reports of its steps' tools.
pub fn render_page(record: &RunRecord, files: &[ToolReport]) -> String {
    let view = RunPageView::new(record, files);
    render_document(view.verdict_word(), view.verdict(), &view.title(), |html| {
        verdict_header::write(html, &view);
        html.element("main", &[("id", "main")], |html| write_sections(html, &view));
    })
}

/// Returns the page for several runs; `verdict` is their combined verdict.
pub fn render_multi_run_page(verdict: Verdict, parts: &[PageRun<'_>]) -> String {
    let title = format!("{} · {} · Proctor", verdict.as_str(), page_text::count(parts.len(), "run"));
    render_document(verdict.as_str(), Some(verdict), &title, |html| multi_run_page::write(html, verdict, parts))
}

fn render_document(word: &str, verdict: Option<Verdict>, title: &str, content: impl FnOnce(&mut Html)) -> String {
    let mut html = Html::with_size_limit(MAX_PAGE_BYTES);
    html.element("html", &[("lang", "en"), ("data-verdict", word)], |html| {
        html.plain("head", |html| write_head(html, verdict, title));
        html.plain("body", |html| {
            html.element("a", &[("class", "skip"), ("href", "#main")], |html| html.text("Skip to the report"));
            content(html);
            html.plain("script", |html| html.verbatim(SCRIPT));
        });
    });
    html.finish()
}

fn write_head(html: &mut Html, verdict: Option<Verdict>, title: &str) {
    html.void("meta", &[("charset", "utf-8")]);
    html.void("meta", &[("http-equiv", "Content-Security-Policy"), ("content", &content_security_policy())]);
    html.void("meta", &[("name", "viewport"), ("content", "width=device-width, initial-scale=1")]);
    html.void("meta", &[("name", "color-scheme"), ("content", "light dark")]);
    html.void("meta", &[("name", "referrer"), ("content", "no-referrer")]);
    html.void("link", &[("rel", "icon"), ("href", favicon(verdict))]);
    html.text_element("title", title);
    html.plain("style", |html| html.verbatim(STYLE));
}

/// Writes everything except the head of a run, in the order in which a reader needs it.
fn write_sections(html: &mut Html, view: &RunPageView<'_>) {
    reasons_section::write(html, view);
    notes_section::write(html, view);
    timeline_section::write(html, view);
    step_list::write(html, view);
    resources_section::write(html, view);
    enforcement_section::write(html, view);
    toolchain_section::write(html, view);
    evidence_section::write(html, view);
}

/// Returns the content security policy: the page may load only its own style and script, identified by their
/// hashes, and its icon (CSP level 3, `hash-source`).
fn content_security_policy() -> String {
    let source = |text: &str| format!("'sha256-{}'", base64(&Sha256::digest(text.as_bytes())));
    format!(
        "default-src 'none'; style-src {}; script-src {}; img-src data:; base-uri 'none'; form-action 'none'",
        source(STYLE),
        source(SCRIPT)
    )
}

/// Encodes bytes as base64 with padding (RFC 4648, section 4).
fn base64(bytes: &[u8]) -> String {
    const DIGITS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let digit = |number: u32, place: u32| char::from(DIGITS[(number >> (6 * place) & 63) as usize]);
    let mut text = String::new();
    for chunk in bytes.chunks(3) {
        let number = (0..3).fold(0, |number, i| number << 8 | u32::from(chunk.get(i).copied().unwrap_or(0)));
        for place in (0..4).rev() {
            let is_padding = place as usize + chunk.len() < 3;
            text.push(if is_padding { '=' } else { digit(number, place) });
        }
    }
    text
}

/// Returns an icon, a disc in the verdict's colour, which distinguishes the runs in a row of browser tabs.
fn favicon(verdict: Option<Verdict>) -> &'static str {
    macro_rules! disc {
        ($colour:literal) => {
            concat!(
                "data:image/svg+xml,%3Csvg xmlns='http://www.w3.org/2000/svg' viewBox='0 0 16 16'%3E",
                "%3Ccircle cx='8' cy='8' r='7' fill='%23",
                $colour,
                "'/%3E%3C/svg%3E"
            )
        };
    }
    match verdict {
        Some(Verdict::Passed) => disc!("1a7f4b"),
        Some(Verdict::Failed) => disc!("c4302b"),
        Some(Verdict::Inconclusive) | None => disc!("a26a00"),
    }
}

#[cfg(test)]
mod tests;
