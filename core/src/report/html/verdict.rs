//! Writes the head of the page: the verdict, and what was verified.

use std::collections::BTreeMap;

use crate::evidence::{GitIdentity, TreeKind, TreeSource};
use crate::outcome::Outcome;
use crate::record::{Finished, RunRecord, Started};
use crate::report::html::markup::Html;
use crate::report::html::view::{Shown, View};
use crate::report::html::words::{self, count, duration};
use crate::tier::{Tier, TierReason};
use crate::verdict::EXIT_USAGE;

/// Maximum number of steps that are named for a reason.
const NAMED: usize = 3;
/// Number of digits of a snapshot that are shown.
const SHORT_SNAPSHOT: usize = 16;
/// Number of digits of a commit id that are shown.
const SHORT_COMMIT: usize = 12;

/// Writes the head.
pub(super) fn write(html: &mut Html, view: &View<'_>) {
    html.class("header", "verdict", |html| {
        html.class("div", "wide", |html| {
            html.plain("h1", |html| {
                seal(html, view.verdict_word());
                if view.record.partial().is_some() {
                    html.text(" in a partial run");
                }
                if let Some(started) = &view.record.started {
                    html.text(" ");
                    html.leaf("span", "profile", &words::name(started.profile.as_str()));
                }
            });
            html.leaf("p", "meaning", &meaning(view.record));
            if let Some(sentence) = view.record.rerun_sentence() {
                html.leaf("p", "meaning", &words::sentence(&sentence));
            }
            html.leaf("p", "tally", &tally(view.record));
            html.class("dl", "facts", |html| facts(html, view));
            html.class("details", "rest", |html| {
                html.say("summary", "Identity of this run");
                html.class("dl", "facts identity", |html| identity(html, view.record));
            });
        });
    });
}

/// Writes a verdict as a sign and a word.
pub(super) fn seal(html: &mut Html, word: &str) {
    let sign = match word {
        "passed" => "✓",
        "failed" => "✕",
        _ => "?",
    };
    html.element("span", &[("class", "seal"), ("aria-hidden", "true")], |html| html.text(sign));
    html.leaf("span", "word", word);
}

fn meaning(record: &RunRecord) -> String {
    let interrupted = record.cancelled_by.as_ref().map(|by| format!(" It was interrupted by {}.", words::name(by)));
    let meaning = match &record.finished {
        Some(finished) if finished.exit_code == EXIT_USAGE => "Nothing ran, and nothing is no pass.",
        Some(finished) => words::meaning(finished.verdict),
        None => "The last event of this run never came: nothing here is a result.",
    };
    format!("{meaning}{}", interrupted.unwrap_or_default())
}

/// Counts the steps by outcome, the most severe first; steps that were never reached count as skipped.
fn tally(record: &RunRecord) -> String {
    const ORDER: [Outcome; 7] = [
        Outcome::Drifted,
        Outcome::TimedOut,
        Outcome::Failed,
        Outcome::Inconclusive,
        Outcome::Cancelled,
        Outcome::Passed,
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
        counted.map(|(number, outcome)| format!("{number} {}", words::outcome(Some(outcome)))).collect();
    let of = format!("{} in {}", count(total, "step"), count(record.skills.len(), "skill"));
    let spent = record.finished.as_ref().map(|finished| format!(", {}", duration(finished.duration_ms)));
    match counted.is_empty() {
        true => format!("no step ran of {of}{}", spent.unwrap_or_default()),
        false => format!("{} of {of}{}", counted.join(", "), spent.unwrap_or_default()),
    }
}

fn facts(html: &mut Html, view: &View<'_>) {
    let record = view.record;
    if let Some(finished) = &record.finished {
        fact(html, "Tier", |html| tier(html, view, finished));
    }
    let Some(started) = &record.started else { return };
    fact(html, "Tree", |html| tree(html, started));
    if let Some(changeset) = &started.changeset_id {
        fact(html, "Changeset", |html| html.text(changeset.as_str()));
    }
    fact(html, "Started", |html| html.element("time", &[("datetime", &started.at)], |html| html.text(&started.at)));
}

/// Writes the full identifiers of the run and of its inputs.
fn identity(html: &mut Html, record: &RunRecord) {
    if let Some(finished) = &record.finished {
        fact(html, "Exit code", |html| html.text(&finished.exit_code.to_string()));
    }
    let Some(started) = &record.started else { return };
    fact(html, "Sandbox", |html| html.text(&words::word(&started.sandbox)));
    let mut hash = |name: &str, text: &str| fact(html, name, |html| html.leaf("code", "hash", text));
    hash("Run", started.run_id.as_str());
    hash("Snapshot", started.snapshot.as_str());
    if let Some(tree) = started.git.as_ref().and_then(|git| git.tree.as_deref()) {
        hash("Tree of git", &words::name(tree));
    }
    hash("Spec, sha256", started.spec_sha256.as_str());
    hash("Plan, sha256", started.plan_sha256.as_str());
}

fn fact(html: &mut Html, name: &str, value: impl FnOnce(&mut Html)) {
    html.plain("div", |html| {
        html.say("dt", name);
        html.plain("dd", value);
    });
}

fn tree(html: &mut Html, started: &Started) {
    match &started.source {
        TreeSource::Worktree { tree: TreeKind::Shared } => html.text("the worktree as it was, "),
        TreeSource::Worktree { tree: TreeKind::Private } => html.text("a private copy of the worktree, "),
        TreeSource::Rev { commit, submodules, lfs_pointers } => {
            html.text("commit ");
            html.leaf("code", "hash", &words::name(commit));
            html.text(if *submodules { " with its submodules, " } else { ", " });
            if *lfs_pointers > 0 {
                html.text(&format!("{lfs_pointers} of its files as pointers of git-lfs, "));
            }
        }
    }
    html.leaf("code", "hash", short_snapshot(started.snapshot.as_str()));
    if let (TreeSource::Worktree { .. }, Some(git)) = (&started.source, &started.git) {
        html.class("span", "because", |html| head(html, git));
    }
}

/// Writes the branch, commit and dirty state of the worktree.
fn head(html: &mut Html, git: &GitIdentity) {
    if let Some(branch) = &git.branch {
        html.text(&format!("{} at ", words::name(branch)));
    }
    match &git.head_commit {
        Some(commit) => html.leaf("code", "hash", commit.get(..SHORT_COMMIT).unwrap_or(commit)),
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
    let digits = snapshot.find(':').map_or(0, |at| at + 1) + SHORT_SNAPSHOT;
    snapshot.get(..digits).unwrap_or(snapshot)
}

/// Writes the tier with its reasons. It derives the reasons from the same steps as the evidence does.
fn tier(html: &mut Html, view: &View<'_>, finished: &Finished) {
    html.leaf("b", "tier", &finished.tier.to_string());
    html.text(match u8::from(finished.tier) {
        1 => " anyone may run it",
        2 => " needs trust",
        _ => " people only",
    });
    let mut reasons: BTreeMap<TierReason, Vec<String>> = BTreeMap::new();
    for (path, reason) in view.steps.iter().flat_map(step_reasons).chain(check_reasons(view.record)) {
        reasons.entry(reason).or_default().push(path);
    }
    let bringing: Vec<_> = reasons.iter().filter(|(reason, _)| reason.floor() == finished.tier).collect();
    for (reason, paths) in &bringing {
        html.leaf("span", "because", &format!("{}: {}", reason_words(**reason), named(paths)));
    }
    if bringing.is_empty() && finished.tier > Tier::ONE {
        let declared = view.record.skills.iter().filter(|skill| skill.tier == Some(finished.tier));
        let names: Vec<String> = declared.map(|skill| words::name(skill.skill.as_str())).collect();
        html.leaf("span", "because", &format!("declared by {}", named(&names)));
    }
}

fn step_reasons(shown: &Shown<'_>) -> Vec<(String, TierReason)> {
    crate::evidence::tier_reasons([shown.step]).into_iter().map(|reason| (shown.path(), reason)).collect()
}

fn check_reasons(record: &RunRecord) -> impl Iterator<Item = (String, TierReason)> {
    record.checks.iter().flat_map(|check| {
        let path = words::name(&format!("toolchain {}", check.toolchain));
        crate::evidence::tier_reasons([&check.step]).into_iter().map(move |reason| (path.clone(), reason))
    })
}

fn reason_words(reason: TierReason) -> &'static str {
    match reason {
        TierReason::Drift => "changed what it must not",
        TierReason::NetworkAllowed => "may use the network",
        TierReason::Timeout => "ran out of time",
        TierReason::ControlNotEnforced => "a control of the sandbox did not hold",
    }
}

fn named(names: &[String]) -> String {
    let mut text = names.iter().take(NAMED).map(String::as_str).collect::<Vec<_>>().join(", ");
    if names.len() > NAMED {
        text.push_str(&format!(" and {} more", names.len() - NAMED));
    }
    text
}
