//! Writes the reasons why the run did not pass; they come first on the page.

use crate::evidence::CheckEvidence;
use crate::reason;
use crate::report::html::log::{self, Opening};
use crate::report::html::markup::Html;
use crate::report::html::view::View;
use crate::report::html::{section, step, words};

/// Maximum number of reasons for an inconclusive verdict that are shown.
const DOUBTS: usize = 50;
/// Number of steps that are initially open.
const OPEN: usize = 10;

/// Writes the reasons, if there are any.
pub(super) fn write(html: &mut Html, view: &View<'_>) {
    let record = view.record;
    let unsatisfied: Vec<_> = record.checks.iter().filter(|check| !check.satisfied).collect();
    let steps = view.reasons();
    if unsatisfied.is_empty() && steps.is_empty() && record.doubts.is_empty() {
        return;
    }
    section(html, view, "why", "Why", |html| {
        for record in record.doubts.iter().take(DOUBTS) {
            html.class("div", "doubt", |html| {
                html.leaf("b", "kind", &words::word(&record.doubt));
                html.text(" ");
                html.text(&words::sentence(&record.message));
            });
        }
        if record.doubts.len() > DOUBTS {
            html.leaf("p", "note", &format!("And {} more reasons for doubt.", record.doubts.len() - DOUBTS));
        }
        unsatisfied.iter().take(OPEN).for_each(|check| unsatisfied_check(html, check));
        for (at, shown) in steps.iter().enumerate() {
            step::write(html, shown, at < OPEN);
        }
    });
}

fn unsatisfied_check(html: &mut Html, check: &CheckEvidence) {
    html.element("details", &[("class", "step unsatisfied"), ("open", "")], |html| {
        html.plain("summary", |html| {
            html.class("span", "sign inconclusive", |html| {
                html.element("span", &[("aria-hidden", "true")], |html| html.text("?"));
                html.text(" ");
                html.leaf("span", "word", "unsatisfied");
            });
            html.class("span", "what", |html| {
                html.leaf("span", "step-name", &words::name(&format!("toolchain {}", check.toolchain)));
                html.text(" ");
                html.leaf("span", "why", &words::sentence(&reason::of_check(check)));
            });
        });
        html.class("div", "inside", |html| {
            html.class("pre", "command", |html| html.text(&format!("$ {}", words::command(&check.step.planned))));
            log::write(html, &check.step, Opening::AtTheError, None);
        });
    });
}
