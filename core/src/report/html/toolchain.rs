//! Writes the toolchain checks: required and found versions.

use crate::evidence::CheckEvidence;
use crate::plan::VersionDemand;
use crate::report::html::markup::Html;
use crate::report::html::view::View;
use crate::report::html::words::{self, duration};
use crate::report::html::{section, table};

/// Maximum number of checks that are listed.
const LISTED: usize = 500;

/// Writes the checks, if there are any.
pub(super) fn write(html: &mut Html, view: &View<'_>) {
    let checks = &view.record.checks;
    if checks.is_empty() {
        return;
    }
    section(html, view, "toolchain", "Toolchain", |html| {
        table(
            html,
            "Checks that gate every skill",
            &["Tool", "Check", "Demanded", "Found", "Result", "Time"],
            |html| {
                for check in checks.iter().take(LISTED) {
                    html.plain("tr", |html| row(html, check));
                }
            },
        );
        if checks.len() > LISTED {
            html.leaf("p", "note", &format!("And {} more; the evidence has them.", checks.len() - LISTED));
        }
    });
}

fn row(html: &mut Html, check: &CheckEvidence) {
    html.element("th", &[("scope", "row")], |html| html.text(&words::name(check.toolchain.as_str())));
    html.plain("td", |html| html.leaf("code", "path", &words::name(&check.step.planned.cmd.to_string())));
    html.plain("td", |html| match &check.demand {
        VersionDemand::Range { range } => html.text(&words::name(range)),
        VersionDemand::Any => html.text("to be there"),
    });
    html.say("td", &check.version_read.as_deref().map_or("–".to_owned(), words::name));
    let (class, word) =
        if check.satisfied { ("word passed", "satisfied") } else { ("word inconclusive", "unsatisfied") };
    html.plain("td", |html| html.leaf("span", class, word));
    html.leaf("td", "number", &duration(check.step.duration_ms));
}
