//! Writes the resource use of the run: the slowest steps, and those with the largest memory use.

use crate::report::html::markup::Html;
use crate::report::html::view::{Shown, View};
use crate::report::html::words::{duration, size};
use crate::report::html::{section, table};

/// Maximum number of steps that are listed.
const LISTED: usize = 5;

/// Writes the figures; writes nothing if no step ran.
pub(super) fn write(html: &mut Html, view: &View<'_>) {
    let mut ran: Vec<&Shown<'_>> = view.steps.iter().filter(|shown| shown.step.was_started()).collect();
    if ran.is_empty() {
        return;
    }
    let sum = |of: fn(&Shown<'_>) -> u64| ran.iter().fold(0, |sum: u64, shown| sum.saturating_add(of(shown)));
    let user = sum(|shown| shown.step.resources.user_ms);
    let system = sum(|shown| shown.step.resources.system_ms);
    let spent = sum(|shown| shown.step.duration_ms);
    ran.sort_by_key(|shown| std::cmp::Reverse((shown.step.duration_ms, memory_kib(shown))));
    section(html, view, "figures", "Resources", |html| {
        let (user, system) = (duration(user), duration(system));
        html.leaf("p", "note", &format!("All steps together: {} by the clock, CPU {user} user and {system} system. Measured, so another run differs.", duration(spent)));
        table(html, "The slowest steps", &["Step", "Time", "CPU", "Memory"], |html| {
            for shown in ran.iter().take(LISTED) {
                html.plain("tr", |html| row(html, shown));
            }
        });
    });
}

fn row(html: &mut Html, shown: &Shown<'_>) {
    let resources = &shown.step.resources;
    html.element("th", &[("scope", "row")], |html| html.link(&shown.id, &shown.path()));
    html.leaf("td", "number", &duration(shown.step.duration_ms));
    html.leaf("td", "number", &duration(resources.user_ms.saturating_add(resources.system_ms)));
    html.leaf("td", "number", &size(memory_kib(shown).saturating_mul(1024)));
}

/// Returns the peak memory of all processes of the step together or, if that was not measured, of the largest one.
fn memory_kib(shown: &Shown<'_>) -> u64 {
    shown.step.resources.memory_peak_kib.unwrap_or(shown.step.resources.max_rss_kib)
}
