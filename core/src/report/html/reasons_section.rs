//! Writes the reasons why the run did not pass; they come first on the page.

use crate::model::outcome_reason;
use crate::record::evidence::CheckEvidence;
use crate::report::html::markup::Html;
use crate::report::html::output_section::{self, InitialExcerpt};
use crate::report::html::page_view::RunPageView;
use crate::report::html::section::write_section;
use crate::report::html::{page_text, step_details};

/// Maximum number of reasons for an inconclusive verdict that are shown.
const MAX_INCONCLUSIVE_REASONS: usize = 50;
/// Number of steps that are initially open.
const OPEN_STEPS: usize = 10;

/// Writes the reasons, if there are any.
pub(super) fn write(html: &mut Html, view: &RunPageView<'_>) {
    let record = view.record;
    let unsatisfied: Vec<_> = record.checks.iter().filter(|check| !check.satisfied).collect();
    let steps = view.reason_steps();
    if unsatisfied.is_empty() && steps.is_empty() && record.doubts.is_empty() {
        return;
    }
    write_section(html, view, "why", "Why", |html| {
        for record in record.doubts.iter().take(MAX_INCONCLUSIVE_REASONS) {
            html.class("div", "doubt", |html| {
                html.leaf("b", "kind", &page_text::enum_value_text(&record.doubt));
                html.text(" ");
                html.text(&page_text::truncated_sentence(&record.message));
            });
        }
        if record.doubts.len() > MAX_INCONCLUSIVE_REASONS {
            html.leaf("p", "note", &format!("And {} more reasons.", record.doubts.len() - MAX_INCONCLUSIVE_REASONS));
        }
        unsatisfied.iter().take(OPEN_STEPS).for_each(|check| write_unsatisfied_check(html, check));
        for (at, shown) in steps.iter().enumerate() {
            step_details::write(html, shown, at < OPEN_STEPS);
        }
    });
}

fn write_unsatisfied_check(html: &mut Html, check: &CheckEvidence) {
    html.element("details", &[("class", "step unsatisfied"), ("open", "")], |html| {
        html.plain("summary", |html| {
            html.class("span", "sign inconclusive", |html| {
                html.element("span", &[("aria-hidden", "true")], |html| html.text("?"));
                html.text(" ");
                html.leaf("span", "word", "unsatisfied");
            });
            html.class("span", "what", |html| {
                html.leaf("span", "step-name", &page_text::truncated_name(&format!("toolchain {}", check.toolchain)));
                html.text(" ");
                html.leaf("span", "why", &page_text::truncated_sentence(&outcome_reason::check_reason(check)));
            });
        });
        html.class("div", "inside", |html| {
            html.class("pre", "command", |html| {
                html.text(&format!("$ {}", page_text::command_line(&check.step.planned)));
            });
            output_section::write(html, &check.step, InitialExcerpt::AroundErrors, None);
        });
    });
}
