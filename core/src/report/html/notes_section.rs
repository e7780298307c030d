//! Writes notes that did not affect the verdict: steps that passed only after a retry or at a limit, applied
//! changes, left processes, and redacted secrets.

use crate::model::outcome::Outcome;
use crate::report::html::markup::Html;
use crate::report::html::page_text::{self, count};
use crate::report::html::page_view::{RunPageView, ShownStep};
use crate::report::html::section::write_section;

/// Maximum number of notes that are shown.
const MAX_NOTES: usize = 50;

/// Writes the notes, if there are any.
pub(super) fn write(html: &mut Html, view: &RunPageView<'_>) {
    let notes: Vec<(&ShownStep<'_>, String)> =
        view.steps.iter().flat_map(|shown| step_notes(shown).into_iter().map(move |note| (shown, note))).collect();
    if notes.is_empty() {
        return;
    }
    write_section(html, view, "notes", "Worth knowing", |html| {
        html.class("ul", "notes", |html| {
            for (shown, note) in notes.iter().take(MAX_NOTES) {
                html.plain("li", |html| {
                    html.link(&shown.id, &shown.display_name());
                    html.text(&format!(" {note}"));
                });
            }
        });
        if notes.len() > MAX_NOTES {
            html.leaf("p", "note", &format!("And {} more, shown at their steps.", notes.len() - MAX_NOTES));
        }
    });
}

fn step_notes(shown: &ShownStep<'_>) -> Vec<String> {
    let step = shown.step;
    let flaky = step.flaky.then(|| {
        let attempt = step.earlier_attempts.len() + 1;
        format!("passed only on attempt {attempt}; it is recorded as flaky")
    });
    let applied = (!step.drift.applied.is_empty()).then(|| {
        format!("{} applied to the worktree (read_only: off)", count(step.drift.applied.len(), "changed path"))
    });
    let redacted = usize::try_from(step.stdout.redacted.saturating_add(step.stderr.redacted)).unwrap_or(usize::MAX);
    let redacted = (redacted > 0)
        .then(|| format!("printed secrets of the caller; they were removed in {}", count(redacted, "place")));
    let leaked = step.leak_warning().map(|warning| page_text::truncated_sentence(&warning));
    [flaky, reached_limits_note(shown), leaked, applied, redacted].into_iter().flatten().collect()
}

/// Returns the note for a step that passed although it reached limits.
fn reached_limits_note(shown: &ShownStep<'_>) -> Option<String> {
    let step = shown.step;
    let met: Vec<String> =
        step.resources.limits_hit.iter().map(|limit| step.planned.limits.hit_phrase(*limit)).collect();
    (step.outcome == Outcome::Passed && !met.is_empty())
        .then(|| format!("passed although it reached its limit of {}", met.join(" and of ")))
}
