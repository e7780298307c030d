//! Writes every skill with its steps: one foldable line each. A step that the reasons show in full is only named
//! here.

use crate::record::run_record::SkillRecord;
use crate::report::html::markup::Html;
use crate::report::html::page_text::{self, count};
use crate::report::html::page_view::{MAX_STEPS, RunPageView, ShownStep};
use crate::report::html::section::write_section;
use crate::report::html::step_details;

/// Writes the skills.
pub(super) fn write(html: &mut Html, view: &RunPageView<'_>) {
    if view.record.skills.is_empty() {
        return;
    }
    write_section(html, view, "steps", "Skills and steps", |html| {
        if view.is_only_run() {
            write_search_form(html);
        }
        for (index, skill) in view.record.skills.iter().enumerate().take(MAX_STEPS) {
            self::write_skill(html, view, index, skill);
        }
        if view.left_out > 0 {
            html.leaf("p", "note", &format!("And {}; the evidence lists them.", count(view.left_out, "more step")));
        }
    });
}

/// Writes the search form. It is hidden until the script that implements it shows it.
pub(super) fn write_search_form(html: &mut Html) {
    html.element("form", &[("id", "filter"), ("role", "search"), ("hidden", "")], |html| {
        html.element("label", &[("for", "words")], |html| html.text("Search steps and their output"));
        html.void("input", &[("id", "words"), ("type", "search"), ("autocomplete", "off"), ("spellcheck", "false")]);
        html.element("label", &[("class", "only")], |html| {
            html.void("input", &[("id", "only"), ("type", "checkbox")]);
            html.text(" only steps that did not pass");
        });
        html.element("output", &[("id", "found"), ("for", "words only")], |_| {});
    });
}

fn write_skill(html: &mut Html, view: &RunPageView<'_>, index: usize, skill: &SkillRecord) {
    let id = view.skill_id(index);
    html.element("article", &[("class", "skill"), ("id", &id)], |html| {
        html.plain("header", |html| {
            html.plain("h3", |html| html.text(&page_text::truncated_name(skill.skill.as_str())));
            html.leaf(
                "span",
                &format!("word {}", skill.outcome.map_or("unfinished", |it| it.as_str())),
                &page_text::outcome_text(skill.outcome),
            );
            if let Some(tier) = skill.tier {
                html.leaf("span", "soft", &format!("tier {tier}"));
            }
            html.leaf("span", "spent", &skill.time_text());
        });
        if !skill.reason.is_empty() {
            html.leaf("p", "note", &page_text::truncated_sentence(&skill.reason));
        }
        for shown in view.steps.iter().filter(|shown| std::ptr::eq(shown.skill, skill)) {
            if shown.is_reason() { write_step_link(html, shown) } else { step_details::write(html, shown, false) }
        }
        let unseen: Vec<&str> =
            skill.planned.iter().skip(skill.steps.len()).take(50).map(|name| name.as_str()).collect();
        if !unseen.is_empty() {
            html.leaf("p", "note", &page_text::truncated_sentence(&format!("never reached: {}", unseen.join(", "))));
        }
    });
}

/// Writes the name of a step that is shown in full further up.
fn write_step_link(html: &mut Html, shown: &ShownStep<'_>) {
    html.element("p", &[("class", "step-above"), ("data-step", &shown.id)], |html| {
        step_details::write_outcome(html, shown.step.outcome);
        html.class("span", "what", |html| {
            html.link(&shown.id, &page_text::truncated_name(shown.step.planned.name.as_str()));
            html.text(" ");
            html.leaf("span", "soft", "shown in full above");
        });
        html.leaf("span", "spent", &shown.step.time_text());
    });
}
