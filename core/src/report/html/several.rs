//! Writes several runs on one page, such as those of a range of commits: the combined verdict, one line for each
//! run, then each run in full.

use crate::report::html::markup::Html;
use crate::report::html::view::{MAX_STEPS, View};
use crate::report::html::words::{self, count};
use crate::report::html::{Part, parts_of, steps, verdict};
use crate::verdict::Verdict;

/// Maximum number of runs that are shown in full.
const SHOWN: usize = 100;

/// Writes the runs.
pub(super) fn write(html: &mut Html, verdict: Verdict, parts: &[Part<'_>]) {
    let views: Vec<Option<View<'_>>> = parts.iter().enumerate().map(|(at, part)| view(at, part, parts.len())).collect();
    html.class("header", "verdict", |html| {
        html.class("div", "wide", |html| {
            html.plain("h1", |html| {
                verdict::seal(html, verdict.as_str());
                html.leaf("span", "profile", &count(parts.len(), "run"));
            });
            html.leaf("p", "meaning", words::meaning_together(verdict));
            html.class("ol", "runs", |html| {
                for (at, (part, view)) in parts.iter().zip(&views).enumerate().take(SHOWN) {
                    line(html, at, part, view.as_ref());
                }
            });
            if parts.len() > SHOWN {
                html.leaf("p", "note", &format!("And {} more, which are not shown.", parts.len() - SHOWN));
            }
        });
    });
    html.element("main", &[("id", "main")], |html| {
        steps::filter(html);
        for (at, (part, view)) in parts.iter().zip(&views).enumerate().take(SHOWN) {
            run(html, at, part, view.as_ref());
        }
    });
}

/// Returns the view of a run; the runs share the maximum number of steps of a page.
fn view<'a>(at: usize, part: &Part<'a>, parts: usize) -> Option<View<'a>> {
    let steps = MAX_STEPS / parts.clamp(1, SHOWN);
    Some(View::beside(part.came_to.ok()?, part.files, format!("{}-", id(at)), steps))
}

fn id(at: usize) -> String {
    format!("run-{}", at + 1)
}

fn word(view: Option<&View<'_>>) -> &'static str {
    view.map_or("inconclusive", View::verdict_word)
}

fn line(html: &mut Html, at: usize, part: &Part<'_>, view: Option<&View<'_>>) {
    html.plain("li", |html| {
        html.leaf("span", &format!("word {}", word(view)), word(view));
        html.text(" ");
        html.link(&id(at), &words::name(part.name));
    });
}

fn run(html: &mut Html, at: usize, part: &Part<'_>, view: Option<&View<'_>>) {
    let attributes = [("class", "run"), ("id", &id(at)), ("data-verdict", word(view)), ("aria-label", part.name)];
    html.element("article", &attributes, |html| {
        html.leaf("p", "run-name", &words::name(part.name));
        match (view, part.came_to) {
            (Some(view), _) => {
                verdict::write(html, view);
                parts_of(html, view);
            }
            (None, Err(reason)) => html.leaf("div", "doubt", &words::sentence(reason)),
            (None, Ok(_)) => {}
        }
    });
}
