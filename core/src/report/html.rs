//! A run as one page that needs nothing else: no network, no file beside it, no script to be readable.
//! Written from the record alone, so the same record is the same page, byte for byte.
//!
//! Here: the order of its parts, what may be loaded by it, and its bounds. Each part is a file of `html/`.

mod drift;
mod enforcement;
mod evidence;
mod figures;
mod log;
mod markup;
mod notes;
mod reasons;
mod reports;
mod several;
mod step;
mod steps;
mod timeline;
mod toolchain;
mod verdict;
mod view;
mod words;

use sha2::{Digest, Sha256};

use crate::record::RunRecord;
use crate::report::ToolFile;
use crate::verdict::Verdict;
use markup::Html;
use view::View;

/// How the page looks.
const STYLE: &str = include_str!("html/page.css");
/// What the page can do beyond being read: search, and times at a bar of the timeline.
const SCRIPT: &str = include_str!("html/page.js");

/// From how many bytes on a page leaves out what a step said, changed and used; it says where it does. The steps that
/// speak against the tree come first. What is written all the same is bounded by how much of a list each part shows.
const ROOM: usize = 6 << 20;

/// One of the runs of a page on several.
#[derive(Debug, Clone, Copy)]
pub struct Part<'a> {
    /// What a reader knows it by, such as a commit and the first line of its message.
    pub name: &'a str,
    /// Its record, or why there is none.
    pub came_to: Result<&'a RunRecord, &'a str>,
    /// The reports of its steps' own tools.
    pub files: &'a [ToolFile],
}

/// The page on a run, with the reports of its steps' own tools.
pub fn page(record: &RunRecord, files: &[ToolFile]) -> String {
    let view = View::of(record, files);
    document(view.verdict_word(), view.verdict(), &view.title(), |html| {
        verdict::write(html, &view);
        html.element("main", &[("id", "main")], |html| parts_of(html, &view));
    })
}

/// The page on several runs, which mean `verdict` together.
pub fn pages(verdict: Verdict, parts: &[Part<'_>]) -> String {
    let title = format!("{} · {} · Proctor", verdict.as_str(), words::count(parts.len(), "run"));
    document(verdict.as_str(), Some(verdict), &title, |html| several::write(html, verdict, parts))
}

fn document(word: &str, verdict: Option<Verdict>, title: &str, content: impl FnOnce(&mut Html)) -> String {
    let mut html = Html::with_room(ROOM);
    html.element("html", &[("lang", "en"), ("data-verdict", word)], |html| {
        html.plain("head", |html| head(html, verdict, title));
        html.plain("body", |html| {
            html.element("a", &[("class", "skip"), ("href", "#main")], |html| html.text("Skip to the report"));
            content(html);
            html.plain("script", |html| html.verbatim(SCRIPT));
        });
    });
    html.finish()
}

fn head(html: &mut Html, verdict: Option<Verdict>, title: &str) {
    html.void("meta", &[("charset", "utf-8")]);
    html.void("meta", &[("http-equiv", "Content-Security-Policy"), ("content", &policy())]);
    html.void("meta", &[("name", "viewport"), ("content", "width=device-width, initial-scale=1")]);
    html.void("meta", &[("name", "color-scheme"), ("content", "light dark")]);
    html.void("meta", &[("name", "referrer"), ("content", "no-referrer")]);
    html.void("link", &[("rel", "icon"), ("href", icon(verdict))]);
    html.say("title", title);
    html.plain("style", |html| html.verbatim(STYLE));
}

/// Everything on a run but its head, in the order in which a reader needs it.
fn parts_of(html: &mut Html, view: &View<'_>) {
    reasons::write(html, view);
    notes::write(html, view);
    timeline::write(html, view);
    steps::write(html, view);
    figures::write(html, view);
    enforcement::write(html, view);
    toolchain::write(html, view);
    evidence::write(html, view);
}

/// A part of the page under its heading.
fn section(html: &mut Html, view: &View<'_>, id: &'static str, title: &str, content: impl FnOnce(&mut Html)) {
    let id = view.id(id);
    let heading = format!("{id}-title");
    html.element("section", &[("id", &id), ("aria-labelledby", &heading)], |html| {
        html.element("h2", &[("id", &heading)], |html| html.text(title));
        content(html);
    });
}

/// A table that can be scrolled by itself where it is wider than the screen.
fn table(html: &mut Html, caption: &str, heads: &[&str], rows: impl FnOnce(&mut Html)) {
    html.element(
        "div",
        &[("class", "scroll"), ("role", "region"), ("aria-label", caption), ("tabindex", "0")],
        |html| {
            html.plain("table", |html| {
                html.say("caption", caption);
                html.plain("thead", |html| {
                    html.plain("tr", |html| {
                        for head in heads {
                            html.element("th", &[("scope", "col")], |html| html.text(head));
                        }
                    });
                });
                html.plain("tbody", rows);
            });
        },
    );
}

/// What the page may load: its own style and script, known by their hashes, and its icon. Nothing else, from
/// nowhere. (CSP level 3, `hash-source`)
fn policy() -> String {
    let source = |text: &str| format!("'sha256-{}'", base64(&Sha256::digest(text.as_bytes())));
    format!(
        "default-src 'none'; style-src {}; script-src {}; img-src data:; base-uri 'none'; form-action 'none'",
        source(STYLE),
        source(SCRIPT)
    )
}

/// Base64 with padding. (RFC 4648, section 4)
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

/// A disc in the verdict's colour, so that a row of tabs tells the runs apart.
fn icon(verdict: Option<Verdict>) -> &'static str {
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
