//! Writes the head of the page: the verdict, and what was verified.

use std::collections::BTreeMap;

use crate::decision::verdict::{EXIT_USAGE, Verdict};
use crate::model::outcome::Outcome;
use crate::model::tier::{Tier, TierReason};
use crate::record::evidence::{GitIdentity, TreeKind, TreeSource};
use crate::record::run_record::{Finished, RunRecord, Started};
use crate::report::html::markup::Html;
use crate::report::html::page_text::{self, count, duration};
use crate::report::html::page_view::{RunPageView, ShownStep};

/// Maximum number of steps that are named for a reason.
const MAX_NAMED_STEPS: usize = 3;
/// Number of digits of a snapshot that are shown.
const SNAPSHOT_DIGITS: usize = 16;
/// Number of digits of a commit id that are shown.
const COMMIT_DIGITS: usize = 12;

/// Writes the head.
pub(super) fn write(html: &mut Html, view: &RunPageView<'_>) {
    html.class("header", "verdict", |html| {
        html.class("div", "wide", |html| {
            html.plain("h1", |html| {
                write_verdict(html, view.verdict_word());
                if view.record.is_partial() {
                    html.text(" in a partial run");
                }
                if let Some(started) = &view.record.started {
                    html.text(" ");
                    html.leaf("span", "profile", &page_text::truncated_name(started.profile.as_str()));
                }
            });
            html.leaf("p", "meaning", &verdict_explanation(view.record));
            if let Some(sentence) = view.record.selection_sentence() {
                html.leaf("p", "meaning", &page_text::truncated_sentence(&sentence));
            }
            html.leaf("p", "tally", &outcome_counts(view.record));
            html.class("dl", "facts", |html| write_facts(html, view));
            html.class("details", "rest", |html| {
                html.text_element("summary", "Identity of this run");
                html.class("dl", "facts identity", |html| write_identity(html, view.record));
            });
        });
    });
}

/// Writes a verdict as a sign and a word.
pub(super) fn write_verdict(html: &mut Html, word: &str) {
    let sign = match word {
        "passed" => "✓",
        "failed" => "✕",
        _ => "?",
    };
    html.element("span", &[("class", "seal"), ("aria-hidden", "true")], |html| html.text(sign));
    html.leaf("span", "word", word);
}

fn verdict_explanation(record: &RunRecord) -> String {
    let interrupted =
        record.cancelled_by.as_ref().map(|by| format!(" It was interrupted by {}.", page_text::truncated_name(by)));
    let meaning = match &record.finished {
        Some(finished) if finished.exit_code == EXIT_USAGE => "Nothing ran, so the run is not a pass.".to_owned(),
        Some(finished) if finished.verdict == Verdict::Failed => failed_checks(record),
        Some(finished) => page_text::verdict_explanation(finished.verdict).to_owned(),
        None => "The last event of this run is missing, so nothing here is a result.".to_owned(),
    };
    format!("{meaning}{}", interrupted.unwrap_or_default())
}

/// Returns `1 of 5 checks failed.`
fn failed_checks(record: &RunRecord) -> String {
    let failed = record.steps().filter(|(_, step)| step.outcome.is_failure()).count();
    let total: usize = record.skills.iter().map(|skill| skill.planned.len().max(skill.steps.len())).sum();
    format!("{failed} of {} failed.", count(total, "check"))
}

/// Counts the steps by outcome, the most severe first; steps that were never reached count as skipped.
fn outcome_counts(record: &RunRecord) -> String {
    const ORDER: [Outcome; 8] = [
        Outcome::Drifted,
        Outcome::TimedOut,
        Outcome::Failed,
        Outcome::Inconclusive,
        Outcome::Cancelled,
        Outcome::Passed,
        Outcome::NoFiles,
        Outcome::Skipped,
    ];
    let total: usize = record.skills.iter().map(|skill| skill.planned.len().max(skill.steps.len())).sum();
    let unseen = total - record.steps().count();
    let number = |outcome: Outcome| {
        let seen = record.steps().filter(|(_, step)| step.outcome == outcome).count();
        if outcome == Outcome::Skipped { seen + unseen } else { seen }
    };
    let counted = ORDER.iter().map(|outcome| (number(*outcome), *outcome)).filter(|(number, _)| *number > 0);
    let counted: Vec<String> =
        counted.map(|(number, outcome)| format!("{number} {}", page_text::outcome_text(Some(outcome)))).collect();
    let counted: Vec<String> = counted.into_iter().chain(record.cached_phrase()).collect();
    let of = format!("{} in {}", count(total, "step"), count(record.skills.len(), "skill"));
    let spent = record.finished.as_ref().map(|finished| format!(", {}", duration(finished.duration_ms)));
    match counted.is_empty() {
        true => format!("no step ran of {of}{}", spent.unwrap_or_default()),
        false => format!("{} of {of}{}", counted.join(", "), spent.unwrap_or_default()),
    }
}

fn write_facts(html: &mut Html, view: &RunPageView<'_>) {
    let record = view.record;
    if let Some(finished) = &record.finished {
        write_fact(html, "Tier", |html| write_tier(html, view, finished));
    }
    let Some(started) = &record.started else { return };
    write_fact(html, "Tree", |html| write_tree(html, started));
    if let Some(changeset) = &started.changeset_id {
        write_fact(html, "Changeset", |html| html.text(changeset.as_str()));
    }
    write_fact(html, "Started", |html| {
        html.element("time", &[("datetime", &started.at)], |html| html.text(&started.at));
    });
}

/// Writes the full identifiers of the run and of its inputs.
fn write_identity(html: &mut Html, record: &RunRecord) {
    if let Some(finished) = &record.finished {
        write_fact(html, "Exit code", |html| html.text(&finished.exit_code.to_string()));
    }
    let Some(started) = &record.started else { return };
    write_fact(html, "Sandbox", |html| html.text(&page_text::enum_value_text(&started.sandbox)));
    let mut hash = |name: &str, text: &str| write_fact(html, name, |html| html.leaf("code", "hash", text));
    hash("Run", started.run_id.as_str());
    hash("Snapshot", started.snapshot.as_str());
    if let Some(tree) = started.git.as_ref().and_then(|git| git.tree.as_deref()) {
        hash("Tree of git", &page_text::truncated_name(tree));
    }
    hash("Spec, sha256", &started.spec_sha256.to_string());
    hash("Plan, sha256", &started.plan_sha256.to_string());
}

fn write_fact(html: &mut Html, name: &str, value: impl FnOnce(&mut Html)) {
    html.plain("div", |html| {
        html.text_element("dt", name);
        html.plain("dd", value);
    });
}

fn write_tree(html: &mut Html, started: &Started) {
    match &started.source {
        TreeSource::Worktree { tree: TreeKind::Shared } => html.text("the worktree itself, "),
        TreeSource::Worktree { tree: TreeKind::Private } => html.text("a private copy of the worktree, "),
        TreeSource::Rev { commit, submodules, lfs_pointers } => {
            html.text("commit ");
            html.leaf("code", "hash", &page_text::truncated_name(commit));
            html.text(if *submodules { " with its submodules, " } else { ", " });
            if *lfs_pointers > 0 {
                html.text(&format!("{lfs_pointers} of its files as pointers of git-lfs, "));
            }
        }
    }
    html.leaf("code", "hash", short_snapshot(started.snapshot.as_str()));
    if let (TreeSource::Worktree { .. }, Some(git)) = (&started.source, &started.git) {
        html.class("span", "because", |html| write_git_head(html, git));
    }
}

/// Writes the branch, commit and dirty state of the worktree.
fn write_git_head(html: &mut Html, git: &GitIdentity) {
    if let Some(branch) = &git.branch {
        html.text(&format!("{} at ", page_text::truncated_name(branch)));
    }
    match &git.head_commit {
        Some(commit) => html.leaf("code", "hash", commit.get(..COMMIT_DIGITS).unwrap_or(commit)),
        None => html.text("no commit yet"),
    }
    html.text(match git.dirty {
        Some(true) => ", with changes",
        Some(false) => ", nothing changed",
        None => "",
    });
}

/// Returns the first digits of a snapshot; the full id is in the identity section.
fn short_snapshot(snapshot: &str) -> &str {
    let digits = snapshot.find(':').map_or(0, |at| at + 1) + SNAPSHOT_DIGITS;
    snapshot.get(..digits).unwrap_or(snapshot)
}

/// Writes the tier with its reasons. It derives the reasons from the same steps as the evidence does.
fn write_tier(html: &mut Html, view: &RunPageView<'_>, finished: &Finished) {
    html.leaf("b", "tier", &finished.tier.to_string());
    html.text(match u8::from(finished.tier) {
        1 => " anyone may run it",
        2 => " needs trust",
        _ => " needs a person",
    });
    let mut reasons: BTreeMap<TierReason, Vec<String>> = BTreeMap::new();
    for (path, reason) in view.steps.iter().flat_map(step_tier_reasons).chain(check_tier_reasons(view.record)) {
        reasons.entry(reason).or_default().push(path);
    }
    let decisive: Vec<_> = reasons.iter().filter(|(reason, _)| reason.minimum_tier() == finished.tier).collect();
    for (reason, paths) in &decisive {
        html.leaf("span", "because", &format!("{}: {}", tier_reason_text(**reason), name_list(paths)));
    }
    if decisive.is_empty() && finished.tier > Tier::ONE {
        let declared = view.record.skills.iter().filter(|skill| skill.tier == Some(finished.tier));
        let names: Vec<String> = declared.map(|skill| page_text::truncated_name(skill.skill.as_str())).collect();
        html.leaf("span", "because", &format!("declared by {}", name_list(&names)));
    }
}

fn step_tier_reasons(shown: &ShownStep<'_>) -> Vec<(String, TierReason)> {
    crate::record::evidence::tier_reasons([shown.step])
        .into_iter()
        .map(|reason| (shown.display_name(), reason))
        .collect()
}

fn check_tier_reasons(record: &RunRecord) -> impl Iterator<Item = (String, TierReason)> {
    record.checks.iter().flat_map(|check| {
        let path = page_text::truncated_name(&format!("toolchain {}", check.toolchain));
        crate::record::evidence::tier_reasons([&check.step]).into_iter().map(move |reason| (path.clone(), reason))
    })
}

fn tier_reason_text(reason: TierReason) -> &'static str {
    match reason {
        TierReason::Drift => "changed files that it must not change",
        TierReason::NetworkAllowed => "may use the network",
        TierReason::Timeout => "ran out of time",
        TierReason::ControlNotEnforced => "a sandbox control was not enforced",
    }
}

fn name_list(names: &[String]) -> String {
    let mut text = names.iter().take(MAX_NAMED_STEPS).map(String::as_str).collect::<Vec<_>>().join(", ");
    if names.len() > MAX_NAMED_STEPS {
        text.push_str(&format!(" and {} more", names.len() - MAX_NAMED_STEPS));
    }
    text
}
