//! Compares two runs by their documents: outcomes, tier, inputs, enforcement and changes. For D0 skills, it also
//! compares every field of the stable part.

use std::collections::{BTreeMap, BTreeSet};

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::canonical::Json;
use crate::digest::Sha256Hex;
use crate::evidence::{self, SkillEvidence, StepEvidence, ToolchainEvidence};
use crate::names::RunId;
use crate::outcome::Outcome;
use crate::plan::Determinism;
use crate::status::LastRun;

/// Version of the format.
pub const VERSION: u32 = 1;
/// Maximum number of differences that a comparison lists; further ones are only counted.
pub const MAX_DIFFERENCES: usize = 500;
/// Durations vary from run to run. A difference of at most one fourth of the longer duration is noise.
const NOISE_SHARE: u64 = 4;
/// A difference of at most this number of milliseconds is noise as well.
const NOISE_MS: u64 = 250;
/// Maximum number of characters that are kept of a value.
const MAX_VALUE: usize = 200;

/// The documents of one run.
#[derive(Debug, Clone)]
pub struct RunDocuments {
    /// The run as described by its status file.
    pub last_run: LastRun,
    /// The toolchain checks, if there is a document for them.
    pub toolchain: Option<ToolchainEvidence>,
    /// The skills, ordered by name.
    pub skills: Vec<SkillEvidence>,
}

/// The differences between two runs: the output of `proctor compare --format json`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Comparison {
    /// Version of this document's format: [`VERSION`].
    #[schemars(extend("const" = VERSION))]
    pub version: u32,
    /// The first run.
    pub before: RunId,
    /// The second run.
    pub after: RunId,
    /// True if the runs are equal except for measured values.
    pub same: bool,
    /// The differences, in the order of the documents.
    pub differences: Vec<Difference>,
    /// The number of further differences.
    pub omitted: u64,
}

/// A difference.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Difference {
    /// The kind of the difference.
    pub kind: DifferenceKind,
    /// The location: empty for the run, otherwise a skill or `skill/step`.
    pub at: String,
    /// The field; empty if the kind determines it.
    pub field: String,
    /// The value in the first run; `null` if it is missing there.
    pub before: Option<String>,
    /// The value in the second run; `null` if it is missing there.
    pub after: Option<String>,
    /// True if the value is measured, so that equal inputs need not reproduce it.
    pub measured: bool,
}

/// The kind of a difference.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum DifferenceKind {
    /// The verdict of the run.
    Verdict,
    /// The effective tier.
    Tier,
    /// The profile.
    Profile,
    /// The tree.
    Tree,
    /// The spec.
    Spec,
    /// The plan.
    Plan,
    /// The version of a tool, as read by its check.
    Tool,
    /// A skill or step that is in only one of the runs.
    Presence,
    /// The outcome of a skill or step.
    Outcome,
    /// The changes that a step made.
    Drift,
    /// The controls that were enforced for a step.
    Enforcement,
    /// The hash of a step's output.
    Output,
    /// A field of the stable part of a D0 skill, which must not differ.
    Stable,
    /// The duration, if it differs by more than noise.
    Duration,
}

impl DifferenceKind {
    /// Returns the name for display.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Verdict => "verdict",
            Self::Tier => "tier",
            Self::Profile => "profile",
            Self::Tree => "tree",
            Self::Spec => "spec",
            Self::Plan => "plan",
            Self::Tool => "tool",
            Self::Presence => "presence",
            Self::Outcome => "outcome",
            Self::Drift => "drift",
            Self::Enforcement => "enforcement",
            Self::Output => "output",
            Self::Stable => "stable part",
            Self::Duration => "duration",
        }
    }
}

/// Compares two runs.
pub fn compare(before: &RunDocuments, after: &RunDocuments) -> Comparison {
    let mut found = Found::default();
    found.runs(&before.last_run, &after.last_run);
    found.plans(before, after);
    found.tools(before.toolchain.as_ref(), after.toolchain.as_ref());
    found.skills(&before.skills, &after.skills);
    let same = found.list.iter().all(|difference| difference.measured) && !found.omitted_counts;
    Comparison {
        version: VERSION,
        before: before.last_run.run_id.clone(),
        after: after.last_run.run_id.clone(),
        same,
        differences: found.list,
        omitted: found.omitted,
    }
}

/// Collects differences.
#[derive(Default)]
struct Found {
    list: Vec<Difference>,
    omitted: u64,
    /// True if an omitted difference is not in a measured value.
    omitted_counts: bool,
}

impl Found {
    fn push(&mut self, difference: Difference) {
        if self.list.len() >= MAX_DIFFERENCES {
            self.omitted += 1;
            self.omitted_counts |= !difference.measured;
            return;
        }
        self.list.push(difference);
    }

    /// Adds two values if they differ.
    fn pair(&mut self, kind: DifferenceKind, at: &str, field: &str, before: Option<String>, after: Option<String>) {
        if before != after {
            let (before, after) = (before.map(bounded), after.map(bounded));
            let measured = kind == DifferenceKind::Duration;
            self.push(Difference { kind, at: at.to_owned(), field: field.to_owned(), before, after, measured });
        }
    }

    fn both(
        &mut self,
        kind: DifferenceKind,
        at: &str,
        before: &(impl ToString + ?Sized),
        after: &(impl ToString + ?Sized),
    ) {
        self.pair(kind, at, "", Some(before.to_string()), Some(after.to_string()));
    }

    fn runs(&mut self, before: &LastRun, after: &LastRun) {
        self.both(DifferenceKind::Verdict, "", before.outcome.as_str(), after.outcome.as_str());
        self.both(DifferenceKind::Tier, "", &before.tier, &after.tier);
        self.both(DifferenceKind::Profile, "", &before.profile, &after.profile);
        self.both(DifferenceKind::Tree, "", &before.snapshot, &after.snapshot);
        self.both(DifferenceKind::Spec, "", &before.spec_sha256, &after.spec_sha256);
    }

    fn plans(&mut self, before: &RunDocuments, after: &RunDocuments) {
        let text = |plan: Option<&Sha256Hex>| plan.map(ToString::to_string);
        if let (Some(before), Some(after)) = (plan_of(before), plan_of(after)) {
            self.pair(DifferenceKind::Plan, "", "", text(Some(before)), text(Some(after)));
        }
    }

    fn tools(&mut self, before: Option<&ToolchainEvidence>, after: Option<&ToolchainEvidence>) {
        let said = |evidence: Option<&ToolchainEvidence>| -> BTreeMap<String, String> {
            let checks = evidence.into_iter().flat_map(|evidence| &evidence.checks);
            let one = |check: &evidence::CheckEvidence| {
                let version = check.version_read.clone().unwrap_or_else(|| "no version read".to_owned());
                let holds = if check.satisfied { "holds" } else { "does not hold" };
                let of = format!("{}/{}", check.toolchain, check.step.planned.name);
                (of, format!("{version}, output {}, {holds}", check.step.stdout.sha256))
            };
            checks.map(one).collect()
        };
        self.maps(DifferenceKind::Tool, "", &said(before), &said(after));
    }

    fn maps(
        &mut self,
        kind: DifferenceKind,
        at: &str,
        before: &BTreeMap<String, String>,
        after: &BTreeMap<String, String>,
    ) {
        for key in before.keys().chain(after.keys()).collect::<BTreeSet<_>>() {
            self.pair(kind, at, key, before.get(key).cloned(), after.get(key).cloned());
        }
    }

    fn skills(&mut self, before: &[SkillEvidence], after: &[SkillEvidence]) {
        let by_name = |skills: &[SkillEvidence]| -> BTreeMap<String, SkillEvidence> {
            skills.iter().map(|skill| (skill.skill.to_string(), skill.clone())).collect()
        };
        let (before, after) = (by_name(before), by_name(after));
        for name in before.keys().chain(after.keys()).collect::<BTreeSet<_>>() {
            match (before.get(name), after.get(name)) {
                (Some(before), Some(after)) => self.skill(name, before, after),
                (before, after) => self.presence(name, before.is_some(), after.is_some()),
            }
        }
    }

    fn presence(&mut self, at: &str, before: bool, after: bool) {
        let word = |is_there: bool| is_there.then(|| "there".to_owned());
        self.pair(DifferenceKind::Presence, at, "", word(before), word(after));
    }

    fn skill(&mut self, name: &str, before: &SkillEvidence, after: &SkillEvidence) {
        self.both(DifferenceKind::Outcome, name, before.summary.outcome.as_str(), after.summary.outcome.as_str());
        self.both(DifferenceKind::Tier, name, &before.tier, &after.tier);
        let steps = |skill: &SkillEvidence| -> BTreeMap<String, StepEvidence> {
            skill.steps.iter().map(|step| (step.planned.name.to_string(), step.clone())).collect()
        };
        let (old, new) = (steps(before), steps(after));
        for step in old.keys().chain(new.keys()).collect::<BTreeSet<_>>() {
            let at = format!("{name}/{step}");
            match (old.get(step), new.get(step)) {
                (Some(old), Some(new)) => self.step(&at, old, new),
                (old, new) => self.presence(&at, old.is_some(), new.is_some()),
            }
        }
        if before.determinism == Determinism::D0 && after.determinism == Determinism::D0 {
            let (before, after) = (evidence::stable_part(before), evidence::stable_part(after));
            self.stable(name, "", Some(&before), Some(&after));
        }
    }

    fn step(&mut self, at: &str, before: &StepEvidence, after: &StepEvidence) {
        self.both(DifferenceKind::Outcome, at, &said(before), &said(after));
        let drift = |step: &StepEvidence| -> BTreeMap<String, String> {
            let changes = &step.drift.found.changes;
            changes.iter().map(|change| (change.path.clone(), word(&change.kind))).collect()
        };
        self.maps(DifferenceKind::Drift, at, &drift(before), &drift(after));
        let held = |step: &StepEvidence| -> BTreeMap<String, String> {
            let controls = &step.enforcement.0;
            controls.iter().map(|(control, state)| (control.as_str().to_owned(), state_word(state))).collect()
        };
        self.maps(DifferenceKind::Enforcement, at, &held(before), &held(after));
        let hashes = [("stdout", &before.stdout, &after.stdout), ("stderr", &before.stderr, &after.stderr)];
        for (field, before, after) in hashes {
            let text = |sha256: &Sha256Hex| Some(sha256.to_string());
            self.pair(DifferenceKind::Output, at, field, text(&before.sha256), text(&after.sha256));
        }
        if is_beyond_noise(before.duration_ms, after.duration_ms) {
            let text = |ms: u64| format!("{ms} ms");
            self.both(DifferenceKind::Duration, at, &text(before.duration_ms), &text(after.duration_ms));
        }
    }

    /// Adds every leaf that differs between two stable parts, with its path.
    fn stable(&mut self, at: &str, path: &str, before: Option<&Json>, after: Option<&Json>) {
        if before == after {
            return;
        }
        let below = |key: &str| if path.is_empty() { key.to_owned() } else { format!("{path}.{key}") };
        match (before, after) {
            (Some(Json::Object(old)), Some(Json::Object(new))) => {
                for key in old.keys().chain(new.keys()).collect::<BTreeSet<_>>() {
                    self.stable(at, &below(key), old.get(key), new.get(key));
                }
            }
            (Some(Json::Array(old)), Some(Json::Array(new))) => {
                for index in 0..old.len().max(new.len()) {
                    self.stable(at, &format!("{path}[{index}]"), old.get(index), new.get(index));
                }
            }
            (old, new) => {
                let text = |json: &Json| String::from_utf8_lossy(&json.to_vec()).into_owned();
                self.pair(DifferenceKind::Stable, at, path, old.map(text), new.map(text));
            }
        }
    }
}

/// Returns the hash of the plan, which every document contains.
fn plan_of(run: &RunDocuments) -> Option<&Sha256Hex> {
    let of_skills = run.skills.first().map(|skill| &skill.plan_sha256);
    of_skills.or(run.toolchain.as_ref().map(|toolchain| &toolchain.plan_sha256))
}

fn said(step: &StepEvidence) -> String {
    let flaky = if step.flaky { ", flaky" } else { "" };
    match step.exit_code {
        Some(code) if step.outcome != Outcome::Passed => format!("{}, exit code {code}{flaky}", step.outcome.as_str()),
        _ => format!("{}{flaky}", step.outcome.as_str()),
    }
}

/// Returns whether two durations differ by more than noise.
fn is_beyond_noise(before: u64, after: u64) -> bool {
    let apart = before.abs_diff(after);
    apart > NOISE_MS && apart > before.max(after) / NOISE_SHARE
}

fn word<T: Serialize>(value: &T) -> String {
    match serde_json::to_value(value) {
        Ok(serde_json::Value::String(word)) => word,
        _ => String::new(),
    }
}

fn state_word(state: &crate::enforcement::ControlState) -> String {
    use crate::enforcement::ControlState;
    match state {
        ControlState::Enforced { .. } => "enforced",
        ControlState::NotEnforced { .. } => "not enforced",
        ControlState::NotRequested { .. } => "not asked for",
    }
    .to_owned()
}

fn bounded(text: String) -> String {
    match text.char_indices().nth(MAX_VALUE) {
        Some((at, _)) => format!("{}…", &text[..at]),
        None => text,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn small_and_relative_differences_of_time_are_noise() {
        let cases = [(0, 250, false), (100, 400, true), (10_000, 12_000, false), (10_000, 14_000, true), (5, 5, false)];
        for (before, after, expected) in cases {
            assert_eq!(is_beyond_noise(before, after), expected, "{before} {after}");
            assert_eq!(is_beyond_noise(after, before), expected, "{after} {before}");
        }
    }

    #[test]
    fn every_leaf_of_a_stable_part_is_named() {
        let json = |text: &str| Json::of(&serde_json::from_str::<serde_json::Value>(text).expect("JSON"));
        let (before, after) = (json(r#"{"a":1,"b":[{"c":1},2],"d":0}"#), json(r#"{"a":1,"b":[{"c":2}],"e":0}"#));
        let mut found = Found::default();
        found.stable("s", "", Some(&before), Some(&after));
        let fields: Vec<&str> = found.list.iter().map(|difference| difference.field.as_str()).collect();
        assert_eq!(fields, ["b[0].c", "b[1]", "d", "e"]);
        assert!(found.list.iter().all(|difference| !difference.measured));
    }

    #[test]
    fn what_is_beyond_the_bound_is_counted_and_still_counts() {
        let mut found = Found::default();
        for number in 0..=MAX_DIFFERENCES {
            found.both(DifferenceKind::Output, "s", &number, &(number + 1));
        }
        assert_eq!((found.list.len(), found.omitted, found.omitted_counts), (MAX_DIFFERENCES, 1, true));
    }
}
