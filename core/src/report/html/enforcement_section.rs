//! Writes which controls the kernel enforced, as a table of controls by step. Steps with equal states share a column.

use std::collections::{BTreeMap, BTreeSet};

use crate::model::enforcement::{Control, ControlState};
use crate::record::evidence::StepEvidence;
use crate::report::html::markup::Html;
use crate::report::html::page_text::{self, count};
use crate::report::html::page_view::RunPageView;
use crate::report::html::section::{write_section, write_table};

/// Maximum number of columns of a table; each is a group of steps.
const MAX_GROUPS: usize = 12;
/// Maximum number of members of a group that are named.
const MAX_NAMED_COMMANDS: usize = 3;
/// Maximum number of different mechanisms of one control that are named.
const MAX_MECHANISMS: usize = 4;
/// Maximum number of reasons of one control that are shown.
const MAX_REASONS: usize = 4;

/// The state of a control, without the mechanism.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum ControlCell {
    Enforced,
    NotEnforced,
    NotRequested,
    Unrecorded,
}

/// A command that ran, with its name.
struct RanCommand<'a> {
    name: String,
    step: &'a StepEvidence,
}

/// Writes the controls; writes nothing if no command ran.
pub(super) fn write(html: &mut Html, view: &RunPageView<'_>) {
    let ran = &ran_commands(view);
    if ran.is_empty() {
        return;
    }
    let all =
        |wanted: ControlCell| move |control: &Control| ran.iter().all(|ran| control_cell(ran.step, *control) == wanted);
    let enforced: Vec<Control> = Control::ALL.into_iter().filter(all(ControlCell::Enforced)).collect();
    let not_requested: Vec<Control> = Control::ALL.into_iter().filter(all(ControlCell::NotRequested)).collect();
    let is_uniform = |control: &Control| enforced.contains(control) || not_requested.contains(control);
    let differing: Vec<Control> = Control::ALL.into_iter().filter(|control| !is_uniform(control)).collect();
    write_section(html, view, "sandbox", "Enforcement", |html| {
        html.leaf("p", "note", &enforcement_summary(&enforced, &not_requested, &differing, ran.len()));
        if !differing.is_empty() {
            self::write_differing_controls(html, ran, &differing);
        }
        html.class("details", "rest", |html| {
            html.text_element("summary", "The mechanism of each control");
            html.class("dl", "facts small", |html| {
                enforced.iter().for_each(|control| write_mechanisms(html, ran, *control));
            });
        });
        if !not_requested.is_empty() {
            html.class("details", "rest", |html| {
                html.text_element(
                    "summary",
                    &format!("{} that no command requested", count(not_requested.len(), "control")),
                );
                html.class("dl", "facts small", |html| {
                    not_requested.iter().for_each(|control| write_not_requested(html, ran, *control));
                });
            });
        }
    });
}

fn write_not_requested(html: &mut Html, ran: &[RanCommand<'_>], control: Control) {
    html.plain("div", |html| {
        html.text_element("dt", &page_text::enum_value_text(&control));
        html.plain("dd", |html| write_reasons(html, ran, control));
    });
}

fn ran_commands<'a>(view: &RunPageView<'a>) -> Vec<RanCommand<'a>> {
    let checks = view.record.checks.iter().map(|check| RanCommand {
        name: page_text::truncated_name(&format!("toolchain {}", check.toolchain)),
        step: &check.step,
    });
    let steps = view.steps.iter().map(|shown| RanCommand { name: shown.display_name(), step: shown.step });
    checks.chain(steps).filter(|ran| ran.step.was_started()).collect()
}

fn control_cell(step: &StepEvidence, control: Control) -> ControlCell {
    match step.enforcement.0.get(&control) {
        Some(ControlState::Enforced { .. }) => ControlCell::Enforced,
        Some(ControlState::NotEnforced { .. }) => ControlCell::NotEnforced,
        Some(ControlState::NotRequested { .. }) => ControlCell::NotRequested,
        None => ControlCell::Unrecorded,
    }
}

fn enforcement_summary(
    enforced: &[Control],
    not_requested: &[Control],
    differing: &[Control],
    commands: usize,
) -> String {
    let commands = count(commands, "command");
    let mut text =
        format!("{} of {} controls were enforced for each of {commands}", enforced.len(), Control::ALL.len());
    if !not_requested.is_empty() {
        text.push_str(&format!(", {} not requested", not_requested.len()));
    }
    text.push_str(if differing.is_empty() {
        "."
    } else {
        ". Controls that differ between commands, or were not enforced:"
    });
    text
}

fn write_differing_controls(html: &mut Html, ran: &[RanCommand<'_>], controls: &[Control]) {
    let mut groups: BTreeMap<Vec<ControlCell>, Vec<&RanCommand<'_>>> = BTreeMap::new();
    for ran in ran {
        let cells = controls.iter().map(|control| control_cell(ran.step, *control)).collect();
        groups.entry(cells).or_default().push(ran);
    }
    let heads: Vec<String> = groups.values().take(MAX_GROUPS).map(|members| group_name(members, ran.len())).collect();
    let heads: Vec<&str> = ["Control"].into_iter().chain(heads.iter().map(String::as_str)).chain(["Details"]).collect();
    write_table(html, "Controls that differ between commands, or were not enforced", &heads, |html| {
        for (at, control) in controls.iter().enumerate() {
            html.plain("tr", |html| {
                html.element("th", &[("scope", "row")], |html| html.text(&page_text::enum_value_text(control)));
                for cells in groups.keys().take(MAX_GROUPS) {
                    let (class, word) = cells.get(at).copied().map_or(("", ""), cell_class_and_text);
                    html.plain("td", |html| html.leaf("span", class, word));
                }
                html.plain("td", |html| write_reasons(html, ran, *control));
            });
        }
    });
    if groups.len() > MAX_GROUPS {
        html.leaf(
            "p",
            "note",
            &format!("And {} more groups of steps; the evidence lists them all.", groups.len() - MAX_GROUPS),
        );
    }
}

fn group_name(members: &[&RanCommand<'_>], all: usize) -> String {
    if members.len() == all {
        return "every command".to_owned();
    }
    let names: Vec<&str> = members.iter().take(MAX_NAMED_COMMANDS).map(|ran| ran.name.as_str()).collect();
    match members.len().checked_sub(MAX_NAMED_COMMANDS) {
        None | Some(0) => names.join(", "),
        Some(more) => format!("{} and {more} more", names.join(", ")),
    }
}

fn cell_class_and_text(cell: ControlCell) -> (&'static str, &'static str) {
    match cell {
        ControlCell::Enforced => ("word passed", "enforced"),
        ControlCell::NotEnforced => ("word inconclusive", "not enforced"),
        ControlCell::NotRequested => ("soft", "not requested"),
        ControlCell::Unrecorded => ("word inconclusive", "not known"),
    }
}

fn write_reasons(html: &mut Html, ran: &[RanCommand<'_>], control: Control) {
    let states = ran.iter().filter_map(|ran| ran.step.enforcement.0.get(&control));
    let reasons: BTreeSet<(&str, Option<&str>)> = states
        .filter_map(|state| match state {
            ControlState::NotRequested { reason } => Some((reason.as_str(), None)),
            ControlState::NotEnforced { reason, hint } => Some((reason.as_str(), hint.as_deref())),
            ControlState::Enforced { .. } => None,
        })
        .collect();
    for (reason, hint) in reasons.into_iter().take(MAX_REASONS) {
        html.plain("div", |html| {
            html.text(&page_text::truncated_sentence(reason));
            if let Some(hint) = hint {
                html.leaf("span", "hint", &page_text::truncated_sentence(hint));
            }
        });
    }
}

fn write_mechanisms(html: &mut Html, ran: &[RanCommand<'_>], control: Control) {
    let states = ran.iter().filter_map(|ran| ran.step.enforcement.0.get(&control));
    let mechanisms: BTreeSet<&str> = states
        .filter_map(|state| match state {
            ControlState::Enforced { mechanism } => Some(mechanism.as_str()),
            _ => None,
        })
        .collect();
    html.plain("div", |html| {
        html.text_element("dt", &page_text::enum_value_text(&control));
        html.plain("dd", |html| {
            for way in mechanisms.iter().take(MAX_MECHANISMS) {
                html.text_element("div", &page_text::truncated_sentence(way));
            }
            if mechanisms.len() > MAX_MECHANISMS {
                html.text_element("div", &format!("and {} more ways", mechanisms.len() - MAX_MECHANISMS));
            }
        });
    });
}
