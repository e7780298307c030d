//! Writes the toolchain checks: required and found versions.

use crate::model::plan::VersionDemand;
use crate::record::evidence::CheckEvidence;
use crate::report::html::markup::Html;
use crate::report::html::page_text::{self, duration};
use crate::report::html::page_view::RunPageView;
use crate::report::html::section::{write_section, write_table};

/// Maximum number of checks that are listed.
const MAX_LISTED_CHECKS: usize = 500;

/// Writes the checks, if there are any.
pub(super) fn write(html: &mut Html, view: &RunPageView<'_>) {
    let checks = &view.record.checks;
    if checks.is_empty() {
        return;
    }
    write_section(html, view, "toolchain", "Toolchain", |html| {
        write_table(
            html,
            "Checks before every skill",
            &["Tool", "Check", "Demanded", "Found", "Result", "Time"],
            |html| {
                for check in checks.iter().take(MAX_LISTED_CHECKS) {
                    html.plain("tr", |html| write_check_row(html, check));
                }
            },
        );
        if checks.len() > MAX_LISTED_CHECKS {
            html.leaf("p", "note", &format!("And {} more; the evidence lists them.", checks.len() - MAX_LISTED_CHECKS));
        }
    });
}

fn write_check_row(html: &mut Html, check: &CheckEvidence) {
    html.element("th", &[("scope", "row")], |html| html.text(&page_text::truncated_name(check.toolchain.as_str())));
    html.plain("td", |html| html.leaf("code", "path", &page_text::truncated_name(&check.step.planned.cmd.to_string())));
    html.plain("td", |html| match &check.demand {
        VersionDemand::Range { range } => html.text(&page_text::truncated_name(range)),
        VersionDemand::Any => html.text("to be installed"),
    });
    html.text_element("td", &check.version_read.as_deref().map_or("–".to_owned(), page_text::truncated_name));
    let (class, word) =
        if check.satisfied { ("word passed", "satisfied") } else { ("word inconclusive", "unsatisfied") };
    html.plain("td", |html| html.leaf("span", class, word));
    html.leaf("td", "number", &duration(check.step.duration_ms));
}
