//! Writes which controls the kernel enforced, as a table of controls by step. Steps with equal states share a column.

use std::collections::{BTreeMap, BTreeSet};

use crate::enforcement::{Control, ControlState};
use crate::evidence::StepEvidence;
use crate::report::html::markup::Html;
use crate::report::html::view::View;
use crate::report::html::words::{self, count};
use crate::report::html::{section, table};

/// Maximum number of columns of a table; each is a group of steps.
const GROUPS: usize = 12;
/// Maximum number of members of a group that are named.
const NAMED: usize = 3;
/// Maximum number of different mechanisms of one control that are named.
const MECHANISMS: usize = 4;
/// Maximum number of reasons of one control that are shown.
const REASONS: usize = 4;

/// The state of a control, without the mechanism.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Cell {
    Enforced,
    NotEnforced,
    NotRequested,
    Unspoken,
}

/// A command that ran, with its name.
struct Ran<'a> {
    name: String,
    step: &'a StepEvidence,
}

/// Writes the controls; writes nothing if no command ran.
pub(super) fn write(html: &mut Html, view: &View<'_>) {
    let ran = &commands(view);
    if ran.is_empty() {
        return;
    }
    let all = |wanted: Cell| move |control: &Control| ran.iter().all(|ran| cell(ran.step, *control) == wanted);
    let held: Vec<Control> = Control::ALL.into_iter().filter(all(Cell::Enforced)).collect();
    let unasked: Vec<Control> = Control::ALL.into_iter().filter(all(Cell::NotRequested)).collect();
    let is_told = |control: &Control| held.contains(control) || unasked.contains(control);
    let differing: Vec<Control> = Control::ALL.into_iter().filter(|control| !is_told(control)).collect();
    section(html, view, "sandbox", "Enforcement", |html| {
        html.leaf("p", "note", &summary(&held, &unasked, &differing, ran.len()));
        if !differing.is_empty() {
            self::differing(html, ran, &differing);
        }
        html.class("details", "rest", |html| {
            html.say("summary", "By which mechanism, control by control");
            html.class("dl", "facts small", |html| held.iter().for_each(|control| mechanisms(html, ran, *control)));
        });
        if !unasked.is_empty() {
            html.class("details", "rest", |html| {
                html.say("summary", &format!("{} that no command asked for", count(unasked.len(), "control")));
                html.class("dl", "facts small", |html| {
                    unasked.iter().for_each(|control| unasked_for(html, ran, *control));
                });
            });
        }
    });
}

fn unasked_for(html: &mut Html, ran: &[Ran<'_>], control: Control) {
    html.plain("div", |html| {
        html.say("dt", &words::word(&control));
        html.plain("dd", |html| reasons(html, ran, control));
    });
}

fn commands<'a>(view: &View<'a>) -> Vec<Ran<'a>> {
    let checks = view
        .record
        .checks
        .iter()
        .map(|check| Ran { name: words::name(&format!("toolchain {}", check.toolchain)), step: &check.step });
    let steps = view.steps.iter().map(|shown| Ran { name: shown.path(), step: shown.step });
    checks.chain(steps).filter(|ran| ran.step.was_started()).collect()
}

fn cell(step: &StepEvidence, control: Control) -> Cell {
    match step.enforcement.0.get(&control) {
        Some(ControlState::Enforced { .. }) => Cell::Enforced,
        Some(ControlState::NotEnforced { .. }) => Cell::NotEnforced,
        Some(ControlState::NotRequested { .. }) => Cell::NotRequested,
        None => Cell::Unspoken,
    }
}

fn summary(held: &[Control], unasked: &[Control], differing: &[Control], commands: usize) -> String {
    let commands = count(commands, "command");
    let mut text = format!("{} of {} controls held for each of {commands}", held.len(), Control::ALL.len());
    if !unasked.is_empty() {
        text.push_str(&format!(", {} not asked for", unasked.len()));
    }
    text.push_str(if differing.is_empty() {
        "."
    } else {
        ". Controls that differ between commands, or were not enforced:"
    });
    text
}

fn differing(html: &mut Html, ran: &[Ran<'_>], controls: &[Control]) {
    let mut groups: BTreeMap<Vec<Cell>, Vec<&Ran<'_>>> = BTreeMap::new();
    for ran in ran {
        let cells = controls.iter().map(|control| cell(ran.step, *control)).collect();
        groups.entry(cells).or_default().push(ran);
    }
    let heads: Vec<String> = groups.values().take(GROUPS).map(|members| group_name(members, ran.len())).collect();
    let heads: Vec<&str> =
        ["Control"].into_iter().chain(heads.iter().map(String::as_str)).chain(["What is said of it"]).collect();
    table(html, "Controls that are not the same for all, or did not hold", &heads, |html| {
        for (at, control) in controls.iter().enumerate() {
            html.plain("tr", |html| {
                html.element("th", &[("scope", "row")], |html| html.text(&words::word(control)));
                for cells in groups.keys().take(GROUPS) {
                    let (class, word) = cells.get(at).copied().map_or(("", ""), cell_words);
                    html.plain("td", |html| html.leaf("span", class, word));
                }
                html.plain("td", |html| reasons(html, ran, *control));
            });
        }
    });
    if groups.len() > GROUPS {
        html.leaf("p", "note", &format!("And {} more groups of steps; the evidence has each.", groups.len() - GROUPS));
    }
}

fn group_name(members: &[&Ran<'_>], all: usize) -> String {
    if members.len() == all {
        return "every command".to_owned();
    }
    let names: Vec<&str> = members.iter().take(NAMED).map(|ran| ran.name.as_str()).collect();
    match members.len().checked_sub(NAMED) {
        None | Some(0) => names.join(", "),
        Some(more) => format!("{} and {more} more", names.join(", ")),
    }
}

fn cell_words(cell: Cell) -> (&'static str, &'static str) {
    match cell {
        Cell::Enforced => ("word passed", "enforced"),
        Cell::NotEnforced => ("word inconclusive", "not enforced"),
        Cell::NotRequested => ("soft", "not asked for"),
        Cell::Unspoken => ("word inconclusive", "not known"),
    }
}

fn reasons(html: &mut Html, ran: &[Ran<'_>], control: Control) {
    let states = ran.iter().filter_map(|ran| ran.step.enforcement.0.get(&control));
    let said: BTreeSet<(&str, Option<&str>)> = states
        .filter_map(|state| match state {
            ControlState::NotRequested { reason } => Some((reason.as_str(), None)),
            ControlState::NotEnforced { reason, hint } => Some((reason.as_str(), hint.as_deref())),
            ControlState::Enforced { .. } => None,
        })
        .collect();
    for (reason, hint) in said.into_iter().take(REASONS) {
        html.plain("div", |html| {
            html.text(&words::sentence(reason));
            if let Some(hint) = hint {
                html.leaf("span", "hint", &words::sentence(hint));
            }
        });
    }
}

fn mechanisms(html: &mut Html, ran: &[Ran<'_>], control: Control) {
    let states = ran.iter().filter_map(|ran| ran.step.enforcement.0.get(&control));
    let ways: BTreeSet<&str> = states
        .filter_map(|state| match state {
            ControlState::Enforced { mechanism } => Some(mechanism.as_str()),
            _ => None,
        })
        .collect();
    html.plain("div", |html| {
        html.say("dt", &words::word(&control));
        html.plain("dd", |html| {
            for way in ways.iter().take(MECHANISMS) {
                html.say("div", &words::sentence(way));
            }
            if ways.len() > MECHANISMS {
                html.say("div", &format!("and {} more ways", ways.len() - MECHANISMS));
            }
        });
    });
}
