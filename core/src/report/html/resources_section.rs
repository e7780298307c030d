//! Writes the resource use of the run: the slowest steps, and those with the largest memory use.

use crate::report::html::markup::Html;
use crate::report::html::page_text::{duration, size};
use crate::report::html::page_view::{RunPageView, ShownStep};
use crate::report::html::section::{write_section, write_table};

/// Maximum number of steps that are listed.
const MAX_LISTED_STEPS: usize = 5;

/// Writes the figures; writes nothing if no step ran.
pub(super) fn write(html: &mut Html, view: &RunPageView<'_>) {
    let was_executed = |shown: &&ShownStep<'_>| shown.step.was_started() && !shown.step.is_cached();
    let mut ran: Vec<&ShownStep<'_>> = view.steps.iter().filter(was_executed).collect();
    if ran.is_empty() {
        return;
    }
    let sum = |of: fn(&ShownStep<'_>) -> u64| ran.iter().fold(0, |sum: u64, shown| sum.saturating_add(of(shown)));
    let user = sum(|shown| shown.step.resources.user_ms);
    let system = sum(|shown| shown.step.resources.system_ms);
    let spent = sum(|shown| shown.step.duration_ms);
    ran.sort_by_key(|shown| std::cmp::Reverse((shown.step.duration_ms, peak_memory_kib(shown))));
    write_section(html, view, "figures", "Resources", |html| {
        let (user, system) = (duration(user), duration(system));
        html.leaf("p", "note", &format!("All steps together: {} of wall-clock time, CPU {user} user and {system} system. These are measurements and vary between runs.", duration(spent)));
        write_table(html, "The slowest steps", &["Step", "Time", "CPU", "Memory"], |html| {
            for shown in ran.iter().take(MAX_LISTED_STEPS) {
                html.plain("tr", |html| write_step_row(html, shown));
            }
        });
    });
}

fn write_step_row(html: &mut Html, shown: &ShownStep<'_>) {
    let resources = &shown.step.resources;
    html.element("th", &[("scope", "row")], |html| html.link(&shown.id, &shown.display_name()));
    html.leaf("td", "number", &duration(shown.step.duration_ms));
    html.leaf("td", "number", &duration(resources.user_ms.saturating_add(resources.system_ms)));
    html.leaf("td", "number", &size(peak_memory_kib(shown).saturating_mul(1024)));
}

/// Returns the peak memory of all processes of the step together or, if that was not measured, of the largest one.
fn peak_memory_kib(shown: &ShownStep<'_>) -> u64 {
    shown.step.resources.memory_peak_kib.unwrap_or(shown.step.resources.max_rss_kib)
}
