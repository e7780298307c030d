//! Writes notes that did not affect the verdict: steps that passed only after a retry or at a limit, applied
//! changes, left processes, and redacted secrets.

use crate::outcome::Outcome;
use crate::report::html::markup::Html;
use crate::report::html::section;
use crate::report::html::view::{Shown, View};
use crate::report::html::words::{self, count};
use crate::words::limit_words;

/// Maximum number of notes that are shown.
const NOTES: usize = 50;

/// Writes the notes, if there are any.
pub(super) fn write(html: &mut Html, view: &View<'_>) {
    let notes: Vec<(&Shown<'_>, String)> =
        view.steps.iter().flat_map(|shown| of(shown).into_iter().map(move |note| (shown, note))).collect();
    if notes.is_empty() {
        return;
    }
    section(html, view, "notes", "Worth knowing", |html| {
        html.class("ul", "notes", |html| {
            for (shown, note) in notes.iter().take(NOTES) {
                html.plain("li", |html| {
                    html.link(&shown.id, &shown.path());
                    html.text(&format!(" {note}"));
                });
            }
        });
        if notes.len() > NOTES {
            html.leaf("p", "note", &format!("And {} more, at their steps.", notes.len() - NOTES));
        }
    });
}

fn of(shown: &Shown<'_>) -> Vec<String> {
    let step = shown.step;
    let flaky = step.flaky.then(|| {
        let attempt = step.earlier_attempts.len() + 1;
        format!("passed only on attempt {attempt}; it is recorded as flaky")
    });
    let applied = (!step.drift.applied.is_empty()).then(|| {
        format!("had {} applied to the worktree (read_only: off)", count(step.drift.applied.len(), "changed path"))
    });
    let redacted = usize::try_from(step.stdout.redacted.saturating_add(step.stderr.redacted)).unwrap_or(usize::MAX);
    let redacted = (redacted > 0)
        .then(|| format!("printed secrets of the caller; they were taken out in {}", count(redacted, "place")));
    let leaked = step.leak_warning().map(|warning| words::sentence(&warning));
    [flaky, limits_met(shown), leaked, applied, redacted].into_iter().flatten().collect()
}

/// Returns the note for a step that passed although it reached limits.
fn limits_met(shown: &Shown<'_>) -> Option<String> {
    let step = shown.step;
    let met: Vec<String> =
        step.resources.limits_hit.iter().map(|limit| limit_words(*limit, &step.planned.limits)).collect();
    (step.outcome == Outcome::Passed && !met.is_empty())
        .then(|| format!("passed although it ran into its limit of {}", met.join(" and of ")))
}
