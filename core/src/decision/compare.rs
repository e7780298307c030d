//! Compares two runs by their documents: outcomes, tier, inputs, enforcement and changes. For D0 skills, it also
//! compares every field of the stable part.

use std::collections::{BTreeMap, BTreeSet};

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::model::drift::{ChangeKind, display_path, is_evidence_path};
use crate::model::names::RunId;
use crate::model::outcome::Outcome;
use crate::model::plan::Determinism;
use crate::record::evidence::{self, CACHED, SkillEvidence, StepEvidence, ToolchainEvidence, TreeSource};
use crate::record::status::LastRun;
use crate::text::canonical::Json;
use crate::text::digest::Sha256Hex;

/// Version of the format.
pub const VERSION: u32 = 1;
/// Maximum number of differences that a comparison lists; further ones are only counted.
pub const MAX_DIFFERENCES: usize = 500;
/// Durations vary from run to run. A difference of at most one fourth of the longer duration is noise.
const NOISE_DIVISOR: u64 = 4;
/// A difference of at most this number of milliseconds is noise as well.
const NOISE_MS: u64 = 250;
/// Maximum number of characters that are kept of a value.
const MAX_VALUE_CHARS: usize = 200;

/// Maximum number of paths that a comparison of trees lists; further ones are only counted.
pub const MAX_TREE_PATHS: usize = 20;

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
    /// The paths at which the trees differ; absent if the trees are the same.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tree: Option<TreeDifference>,
}

/// The paths at which two trees differ.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(tag = "state", rename_all = "snake_case")]
pub enum TreeDifference {
    /// The paths are known, from the commits of both runs.
    Known {
        /// The first paths, sorted.
        paths: Vec<ChangedPath>,
        /// The number of further paths.
        omitted: u64,
    },
    /// The paths are not known.
    Unknown {
        /// The reason.
        reason: UnknownTree,
    },
}

/// A path at which two trees differ.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct ChangedPath {
    /// The path, escaped for display.
    pub path: String,
    /// The change from the first to the second tree.
    pub kind: ChangeKind,
}

/// The reason why the paths at which two trees differ are not known.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum UnknownTree {
    /// A run was of the worktree. Its documents contain the hash of the tree, but no paths.
    Worktree,
    /// The repository does not have one of the commits.
    Commit,
}

impl UnknownTree {
    /// Returns the reason as a phrase.
    pub fn phrase(self) -> &'static str {
        match self {
            Self::Worktree => "a run of the worktree records only the hash of its tree",
            Self::Commit => "this repository does not have the commits of both runs, or cannot be read",
        }
    }
}

impl TreeDifference {
    /// Lists the changes between two trees. Evidence of runs is not a part of a tree.
    pub fn from_changes(changes: impl IntoIterator<Item = (Vec<u8>, ChangeKind)>) -> Self {
        let mut changes: Vec<_> = changes.into_iter().filter(|(path, _)| !is_evidence_path(path)).collect();
        changes.sort();
        let omitted = changes.len().saturating_sub(MAX_TREE_PATHS) as u64;
        changes.truncate(MAX_TREE_PATHS);
        let paths = changes.into_iter().map(|(path, kind)| ChangedPath { path: display_path(&path), kind });
        Self::Known { paths: paths.collect(), omitted }
    }
}

/// The commit of a run, and whether the run had its submodules.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ComparedCommit {
    /// The id.
    pub id: String,
    /// True if the trees of submodules were included.
    pub submodules: bool,
}

/// Returns the commits of two runs whose trees differ; `None` if the trees are the same.
///
/// # Errors
/// A run was not of a commit.
pub fn compared_commits(
    before: &RunDocuments,
    after: &RunDocuments,
) -> Result<Option<[ComparedCommit; 2]>, UnknownTree> {
    if before.last_run.snapshot == after.last_run.snapshot {
        return Ok(None);
    }
    let commit = |run: &RunDocuments| match &run.last_run.source {
        TreeSource::Rev { commit, submodules, .. } => {
            Ok(ComparedCommit { id: commit.clone(), submodules: *submodules })
        }
        TreeSource::Worktree { .. } => Err(UnknownTree::Worktree),
    };
    Ok(Some([commit(before)?, commit(after)?]))
}

/// A difference.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Difference {
    /// The kind of the difference.
    pub kind: DifferenceKind,
    /// The location: empty for the run, otherwise a skill or `skill/step`.
    pub at: String,
    /// The name of the field; empty if the kind determines the field.
    pub field: String,
    /// The value in the first run; `null` if it is missing there.
    pub before: Option<String>,
    /// The value in the second run; `null` if it is missing there.
    pub after: Option<String>,
    /// True if the value is measured, so equal inputs need not reproduce it.
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
    let mut found = RunDifferences::default();
    found.compare_runs(&before.last_run, &after.last_run);
    found.compare_plans(before, after);
    found.compare_tools(before.toolchain.as_ref(), after.toolchain.as_ref());
    found.compare_skills(&before.skills, &after.skills);
    let same = found.differences.iter().all(|difference| difference.measured) && !found.omitted_unmeasured;
    Comparison {
        version: VERSION,
        before: before.last_run.run_id.clone(),
        after: after.last_run.run_id.clone(),
        same,
        differences: found.differences,
        omitted: found.omitted,
        tree: None,
    }
}

/// Collects differences.
#[derive(Default)]
struct RunDifferences {
    differences: Vec<Difference>,
    omitted: u64,
    /// True if an omitted difference is not in a measured value.
    omitted_unmeasured: bool,
}

impl RunDifferences {
    fn push(&mut self, difference: Difference) {
        if self.differences.len() >= MAX_DIFFERENCES {
            self.omitted += 1;
            self.omitted_unmeasured |= !difference.measured;
            return;
        }
        self.differences.push(difference);
    }

    /// Adds two values if they differ.
    fn add_if_different(
        &mut self,
        kind: DifferenceKind,
        at: &str,
        field: &str,
        before: Option<String>,
        after: Option<String>,
    ) {
        if before != after {
            let (before, after) = (before.map(truncate_value), after.map(truncate_value));
            let measured = kind == DifferenceKind::Duration;
            self.push(Difference { kind, at: at.to_owned(), field: field.to_owned(), before, after, measured });
        }
    }

    fn compare_values(
        &mut self,
        kind: DifferenceKind,
        at: &str,
        before: &(impl ToString + ?Sized),
        after: &(impl ToString + ?Sized),
    ) {
        self.add_if_different(kind, at, "", Some(before.to_string()), Some(after.to_string()));
    }

    fn compare_runs(&mut self, before: &LastRun, after: &LastRun) {
        self.compare_values(DifferenceKind::Verdict, "", before.outcome.as_str(), after.outcome.as_str());
        self.compare_values(DifferenceKind::Tier, "", &before.tier, &after.tier);
        self.compare_values(DifferenceKind::Profile, "", &before.profile, &after.profile);
        self.compare_values(DifferenceKind::Tree, "", &before.snapshot, &after.snapshot);
        self.compare_values(DifferenceKind::Spec, "", &before.spec_sha256, &after.spec_sha256);
    }

    fn compare_plans(&mut self, before: &RunDocuments, after: &RunDocuments) {
        let text = |plan: Option<&Sha256Hex>| plan.map(ToString::to_string);
        if let (Some(before), Some(after)) = (plan_digest(before), plan_digest(after)) {
            self.add_if_different(DifferenceKind::Plan, "", "", text(Some(before)), text(Some(after)));
        }
    }

    fn compare_tools(&mut self, before: Option<&ToolchainEvidence>, after: Option<&ToolchainEvidence>) {
        let versions_by_check = |evidence: Option<&ToolchainEvidence>| -> BTreeMap<String, String> {
            let checks = evidence.into_iter().flat_map(|evidence| &evidence.checks);
            let one = |check: &evidence::CheckEvidence| {
                let version = check.version_read.clone().unwrap_or_else(|| "no version read".to_owned());
                let holds = if check.satisfied { "holds" } else { "does not hold" };
                let of = format!("{}/{}", check.toolchain, check.step.planned.name);
                (of, format!("{version}, output {}, {holds}", check.step.stdout.sha256))
            };
            checks.map(one).collect()
        };
        self.compare_maps(DifferenceKind::Tool, "", &versions_by_check(before), &versions_by_check(after));
    }

    fn compare_maps(
        &mut self,
        kind: DifferenceKind,
        at: &str,
        before: &BTreeMap<String, String>,
        after: &BTreeMap<String, String>,
    ) {
        for key in before.keys().chain(after.keys()).collect::<BTreeSet<_>>() {
            self.add_if_different(kind, at, key, before.get(key).cloned(), after.get(key).cloned());
        }
    }

    fn compare_skills(&mut self, before: &[SkillEvidence], after: &[SkillEvidence]) {
        let by_name = |skills: &[SkillEvidence]| -> BTreeMap<String, SkillEvidence> {
            skills.iter().map(|skill| (skill.skill.to_string(), skill.clone())).collect()
        };
        let (before, after) = (by_name(before), by_name(after));
        for name in before.keys().chain(after.keys()).collect::<BTreeSet<_>>() {
            match (before.get(name), after.get(name)) {
                (Some(before), Some(after)) => self.compare_skill(name, before, after),
                (before, after) => self.compare_presence(name, before.is_some(), after.is_some()),
            }
        }
    }

    fn compare_presence(&mut self, at: &str, before: bool, after: bool) {
        let word = |is_there: bool| is_there.then(|| "there".to_owned());
        self.add_if_different(DifferenceKind::Presence, at, "", word(before), word(after));
    }

    fn compare_skill(&mut self, name: &str, before: &SkillEvidence, after: &SkillEvidence) {
        self.compare_values(
            DifferenceKind::Outcome,
            name,
            before.summary.outcome.as_str(),
            after.summary.outcome.as_str(),
        );
        self.compare_values(DifferenceKind::Tier, name, &before.tier, &after.tier);
        let steps = |skill: &SkillEvidence| -> BTreeMap<String, StepEvidence> {
            skill.steps.iter().map(|step| (step.planned.name.to_string(), step.clone())).collect()
        };
        let (old, new) = (steps(before), steps(after));
        for step in old.keys().chain(new.keys()).collect::<BTreeSet<_>>() {
            let at = format!("{name}/{step}");
            match (old.get(step), new.get(step)) {
                (Some(old), Some(new)) => self.compare_step(&at, old, new),
                (old, new) => self.compare_presence(&at, old.is_some(), new.is_some()),
            }
        }
        if before.determinism == Determinism::D0 && after.determinism == Determinism::D0 {
            let (before, after) = (evidence::stable_part(before), evidence::stable_part(after));
            self.compare_stable_parts(name, "", Some(&before), Some(&after));
        }
    }

    fn compare_step(&mut self, at: &str, before: &StepEvidence, after: &StepEvidence) {
        self.compare_values(DifferenceKind::Outcome, at, &outcome_text(before), &outcome_text(after));
        let drift = |step: &StepEvidence| -> BTreeMap<String, String> {
            let changes = &step.drift.found.changes;
            changes.iter().map(|change| (change.path.clone(), serialized_name(&change.kind))).collect()
        };
        self.compare_maps(DifferenceKind::Drift, at, &drift(before), &drift(after));
        let controls_by_name = |step: &StepEvidence| -> BTreeMap<String, String> {
            let controls = &step.enforcement.0;
            controls.iter().map(|(control, state)| (control.as_str().to_owned(), control_state_text(state))).collect()
        };
        self.compare_maps(DifferenceKind::Enforcement, at, &controls_by_name(before), &controls_by_name(after));
        let hashes = [("stdout", &before.stdout, &after.stdout), ("stderr", &before.stderr, &after.stderr)];
        for (field, before, after) in hashes {
            let text = |sha256: &Sha256Hex| Some(sha256.to_string());
            self.add_if_different(DifferenceKind::Output, at, field, text(&before.sha256), text(&after.sha256));
        }
        if before.is_cached() != after.is_cached() || is_beyond_noise(before.duration_ms, after.duration_ms) {
            let text = |step: &StepEvidence| match step.is_cached() {
                true => CACHED.to_owned(),
                false => format!("{} ms", step.duration_ms),
            };
            self.compare_values(DifferenceKind::Duration, at, &text(before), &text(after));
        }
    }

    /// Adds every leaf that differs between two stable parts, with its path.
    fn compare_stable_parts(&mut self, at: &str, path: &str, before: Option<&Json>, after: Option<&Json>) {
        if before == after {
            return;
        }
        let below = |key: &str| if path.is_empty() { key.to_owned() } else { format!("{path}.{key}") };
        match (before, after) {
            (Some(Json::Object(old)), Some(Json::Object(new))) => {
                // `compare_step` lists the controls of a step.
                let is_step = path.starts_with("steps[") && !path.contains('.');
                let keys = old.keys().chain(new.keys()).filter(|key| !is_step || *key != "enforcement");
                for key in keys.collect::<BTreeSet<_>>() {
                    self.compare_stable_parts(at, &below(key), old.get(key), new.get(key));
                }
            }
            (Some(Json::Array(old)), Some(Json::Array(new))) => {
                for index in 0..old.len().max(new.len()) {
                    self.compare_stable_parts(at, &format!("{path}[{index}]"), old.get(index), new.get(index));
                }
            }
            (old, new) => {
                let text = |json: &Json| String::from_utf8_lossy(&json.to_vec()).into_owned();
                self.add_if_different(DifferenceKind::Stable, at, path, old.map(text), new.map(text));
            }
        }
    }
}

/// Returns the hash of the plan, which every document contains.
fn plan_digest(run: &RunDocuments) -> Option<&Sha256Hex> {
    let skill_digest = run.skills.first().map(|skill| &skill.plan_sha256);
    skill_digest.or(run.toolchain.as_ref().map(|toolchain| &toolchain.plan_sha256))
}

fn outcome_text(step: &StepEvidence) -> String {
    let flaky = if step.flaky { ", flaky" } else { "" };
    match step.exit_code {
        Some(code) if step.outcome != Outcome::Passed => format!("{}, exit code {code}{flaky}", step.outcome.as_str()),
        _ => format!("{}{flaky}", step.outcome.as_str()),
    }
}

/// Returns whether two durations differ by more than noise.
fn is_beyond_noise(before: u64, after: u64) -> bool {
    let apart = before.abs_diff(after);
    apart > NOISE_MS && apart > before.max(after) / NOISE_DIVISOR
}

fn serialized_name<T: Serialize>(value: &T) -> String {
    match serde_json::to_value(value) {
        Ok(serde_json::Value::String(word)) => word,
        _ => String::new(),
    }
}

fn control_state_text(state: &crate::model::enforcement::ControlState) -> String {
    use crate::model::enforcement::ControlState;
    match state {
        ControlState::Enforced { .. } => "enforced",
        ControlState::NotEnforced { .. } => "not enforced",
        ControlState::NotRequested { .. } => "not requested",
    }
    .to_owned()
}

fn truncate_value(text: String) -> String {
    match text.char_indices().nth(MAX_VALUE_CHARS) {
        Some((at, _)) => format!("{}…", &text[..at]),
        None => text,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ignores_small_absolute_and_relative_duration_differences() {
        let cases = [(0, 250, false), (100, 400, true), (10_000, 12_000, false), (10_000, 14_000, true), (5, 5, false)];
        for (before, after, expected) in cases {
            assert_eq!(is_beyond_noise(before, after), expected, "{before} {after}");
            assert_eq!(is_beyond_noise(after, before), expected, "{after} {before}");
        }
    }

    #[test]
    fn lists_few_changed_paths_without_evidence() {
        let files = (0..MAX_TREE_PATHS + 2).map(|number| (format!("f{number:02}").into_bytes(), ChangeKind::Created));
        let evidence = (b"changes/x/05-status.json".to_vec(), ChangeKind::Modified);
        let TreeDifference::Known { paths, omitted } = TreeDifference::from_changes(files.rev().chain([evidence]))
        else {
            panic!("unknown")
        };
        assert_eq!((paths.len(), omitted), (MAX_TREE_PATHS, 2));
        assert_eq!(paths[0], ChangedPath { path: "f00".to_owned(), kind: ChangeKind::Created });
    }

    #[test]
    fn lists_every_different_leaf_of_stable_part() {
        let json =
            |text: &str| Json::from_serializable(&serde_json::from_str::<serde_json::Value>(text).expect("JSON"));
        let (before, after) = (json(r#"{"a":1,"b":[{"c":1},2],"d":0}"#), json(r#"{"a":1,"b":[{"c":2}],"e":0}"#));
        let mut found = RunDifferences::default();
        found.compare_stable_parts("s", "", Some(&before), Some(&after));
        let fields: Vec<&str> = found.differences.iter().map(|difference| difference.field.as_str()).collect();
        assert_eq!(fields, ["b[0].c", "b[1]", "d", "e"]);
        assert!(found.differences.iter().all(|difference| !difference.measured));
    }

    #[test]
    fn lists_controls_of_a_step_once() {
        let json =
            |text: &str| Json::from_serializable(&serde_json::from_str::<serde_json::Value>(text).expect("JSON"));
        let part = |state: &str| {
            let controls = format!(r#"{{"cgroup":{{"state":"{state}"}}}}"#);
            json(&format!(
                r#"{{"steps":[{{"enforcement":{controls},"earlier_attempts":[{{"enforcement":{controls}}}]}}]}}"#
            ))
        };
        let mut found = RunDifferences::default();
        found.compare_stable_parts("s", "", Some(&part("enforced")), Some(&part("not_enforced")));
        let fields: Vec<&str> = found.differences.iter().map(|difference| difference.field.as_str()).collect();
        assert_eq!(fields, ["steps[0].earlier_attempts[0].enforcement.cgroup.state"]);
    }

    #[test]
    fn counts_differences_beyond_the_limit() {
        let mut found = RunDifferences::default();
        for number in 0..=MAX_DIFFERENCES {
            found.compare_values(DifferenceKind::Output, "s", &number, &(number + 1));
        }
        assert_eq!((found.differences.len(), found.omitted, found.omitted_unmeasured), (MAX_DIFFERENCES, 1, true));
    }
}
