//! Reasons against a pass. Each has a code, a message and a hint, and the text of each is in one place.

use std::collections::BTreeSet;
use std::time::Duration;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::code::error_code::{Coded as _, ErrorCode};
use crate::decision::gate::gate_facts::{ChangedPaths, GateRequirements, UnattestedPolicy};
use crate::decision::verdict::{EXIT_INCONCLUSIVE, EXIT_USAGE, Verdict};
use crate::model::cache::CacheTrust;
use crate::model::names::{ProfileName, RunId, SkillName};
use crate::model::plan::{Plan, ReadOnly, RelPath};
use crate::model::run_scope::RunScope;
use crate::model::tier::Tier;
use crate::record::status::LastRun;
use crate::record::unverified_inputs::{InputShown, UnverifiedInputs};
use crate::spec;
use crate::text::digest::SnapshotId;

/// Maximum number of findings in an answer; further findings are only counted.
pub const MAX_FINDINGS: usize = 50;
/// Maximum number of names that a message lists.
const MAX_NAMED_ITEMS: usize = 5;
/// Maximum number of paths that a finding lists.
const MAX_LISTED_PATHS: usize = 100;
/// Exit code if the record does not verify the current tree.
const EXIT_NOT_VERIFIED: u8 = 1;

/// The reason why a gate does not pass.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum GateCode {
    /// No run of this profile is recorded.
    NothingRecorded,
    /// A run of the changeset is in progress.
    RunUnderWay,
    /// The status file is unreadable, or Proctor did not write it.
    StatusUnreadable,
    /// A document has a format version that this program does not know.
    VersionUnknown,
    /// The run cites no evidence.
    CitesNothing,
    /// The run is of another profile.
    OtherProfile,
    /// The evidence is of another changeset.
    OtherChangeset,
    /// The spec has changed since the run.
    OtherSpec,
    /// The spec is unchanged but resolves to another plan today.
    OtherPlan,
    /// The tree has changed since the run.
    TreeChanged,
    /// A step of the run changed the tree during verification.
    ChangedByRun,
    /// Ignore rules outside of the tree have changed since the run.
    IgnoresChanged,
    /// There are ignore rules outside of the tree, and the run did not record them.
    IgnoresUnrecorded,
    /// The run failed.
    RunFailed,
    /// The run was inconclusive.
    RunInconclusive,
    /// The run left out skills of the profile.
    RunPartial,
    /// The run's effective tier is higher than accepted.
    TierTooHigh,
    /// A cache was filled from a wider scope than accepted.
    CacheTooWide,
    /// The steps of the run could see files that no snapshot covers.
    InputsUnverified,
    /// Other machines executed steps, and the requirements exclude them.
    OtherMachine,
    /// A control that the operator requires today was not enforced.
    ControlMissing,
    /// The run is older than accepted.
    Stale,
    /// The run's end time is in the future.
    FromTheFuture,
    /// The timestamp of the run cannot be parsed.
    TimeUnreadable,
    /// Required evidence is missing.
    EvidenceMissing,
    /// Evidence differs from what the status file cites.
    EvidenceEdited,
    /// Evidence is unreadable, or is not a Proctor document.
    EvidenceUnreadable,
    /// A document's `sha256` field does not match its stable part.
    EvidenceSealBroken,
    /// Evidence belongs to a different run from the one that cites it.
    EvidenceForeign,
    /// There is evidence that the run does not cite.
    EvidenceExtra,
    /// The evidence contradicts the status file.
    EvidenceContradicts,
    /// The run is not recorded in the state directory.
    Unattested,
    /// The state directory's record of the run differs from the status file.
    RecordDiffers,
    /// The state directory records a newer run of the same tree.
    Superseded,
    /// The state directory's record of the run is unreadable.
    RecordUnreadable,
}

impl GateCode {
    /// Returns the exit code for a gate with only this finding.
    fn exit_code(self) -> u8 {
        match self {
            Self::NothingRecorded => EXIT_USAGE,
            Self::RunUnderWay
            | Self::CitesNothing
            | Self::VersionUnknown
            | Self::RunInconclusive
            | Self::FromTheFuture => EXIT_INCONCLUSIVE,
            _ => EXIT_NOT_VERIFIED,
        }
    }
}

/// A reason against a pass.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct GateFinding {
    /// The code of the message, such as `P0310`.
    pub code: ErrorCode,
    /// The name of the reason.
    pub name: GateCode,
    /// The problem and its location.
    pub message: String,
    /// The suggested fix.
    pub hint: String,
    /// The affected paths, if the finding is about paths and they are known.
    pub paths: Vec<String>,
    /// The number of further paths.
    pub omitted: u64,
    /// True if the caller accepts this finding; an accepted finding does not block a pass.
    pub accepted: bool,
}

impl GateFinding {
    /// Creates a finding without paths that is not accepted.
    pub fn new(name: GateCode, message: String, hint: String) -> Self {
        Self { code: name.code(), name, message, hint, paths: Vec::new(), omitted: 0, accepted: false }
    }
}

/// An execution of an earlier run that the result of a step depends on.
#[derive(Debug, Clone)]
pub(super) struct EarlierExecution {
    /// The step, as `skill/step`.
    pub(super) step: String,
    /// The recorded end of the execution.
    pub(super) executed_at: String,
}

/// Collects findings; each code has a method with its message and hint.
pub(super) struct GateFindings {
    rerun_hint: String,
    unattested: UnattestedPolicy,
    findings: Vec<GateFinding>,
    omitted: u64,
    worst_exit_code: Option<u8>,
}

impl GateFindings {
    pub(super) fn new(requirements: &GateRequirements) -> Self {
        let changeset = requirements.changeset.as_ref().map(|id| format!(" --changeset {id}")).unwrap_or_default();
        let rerun_hint = format!("run `proctor run --profile {}{changeset}`", requirements.profile);
        Self {
            rerun_hint,
            unattested: requirements.unattested,
            findings: Vec::new(),
            omitted: 0,
            worst_exit_code: None,
        }
    }

    /// Returns the exit code, the findings, and the number of further findings. For the exit code, a wrong record
    /// outranks an inconclusive one, and that outranks a missing one.
    pub(super) fn into_result(self) -> (u8, Vec<GateFinding>, u64) {
        (self.worst_exit_code.unwrap_or(0), self.findings, self.omitted)
    }

    fn add_finding(&mut self, code: GateCode, message: String, hint: String) -> Option<&mut GateFinding> {
        self.push(GateFinding::new(code, message, hint))
    }

    /// Adds a finding that a new run fixes.
    fn add_with_rerun_hint(&mut self, code: GateCode, message: String) {
        let hint = self.rerun_hint.clone();
        self.add_finding(code, message, hint);
    }

    fn push(&mut self, finding: GateFinding) -> Option<&mut GateFinding> {
        if !finding.accepted {
            let rank =
                |code: u8| [EXIT_USAGE, EXIT_INCONCLUSIVE, EXIT_NOT_VERIFIED].iter().position(|one| *one == code);
            let code = finding.name.exit_code();
            self.worst_exit_code =
                Some(self.worst_exit_code.map_or(code, |worst| if rank(code) > rank(worst) { code } else { worst }));
        }
        if self.findings.len() >= MAX_FINDINGS {
            self.omitted += 1;
            return None;
        }
        self.findings.push(finding);
        self.findings.last_mut()
    }

    pub(super) fn nothing_recorded(&mut self) {
        self.add_with_rerun_hint(GateCode::NothingRecorded, "no run is recorded".to_owned());
    }

    pub(super) fn run_under_way(&mut self) {
        let message = "a run of this changeset is in progress".to_owned();
        self.add_finding(GateCode::RunUnderWay, message, "wait for it to end, then run the command again".to_owned());
    }

    pub(super) fn status_unreadable(&mut self, why: &str) {
        let hint = format!("fix `05-status.json` in an editor, then {}", self.rerun_hint);
        self.add_finding(GateCode::StatusUnreadable, format!("`05-status.json` cannot be used: {why}"), hint);
    }

    pub(super) fn version_unknown(&mut self, file: &str, version: &str) {
        let message = format!("`{file}` has format version {version}, which this program does not support");
        let hint = format!("use the newer Proctor that wrote it, or {}", self.rerun_hint);
        self.add_finding(GateCode::VersionUnknown, message, hint);
    }

    pub(super) fn cites_nothing(&mut self, outcome: Verdict) {
        let message = match outcome {
            Verdict::Inconclusive => {
                "the last run ended before its record was complete, or its pass was withdrawn; it cites no evidence"
                    .to_owned()
            }
            outcome => format!("the last run reports `{}` but cites no evidence", outcome.as_str()),
        };
        self.add_with_rerun_hint(GateCode::CitesNothing, message);
    }

    pub(super) fn other_profile(&mut self, found: &ProfileName) {
        let message = format!("the last run used the profile `{found}`");
        self.add_with_rerun_hint(GateCode::OtherProfile, message);
    }

    pub(super) fn other_changeset(&mut self, file: &str) {
        self.add_with_rerun_hint(GateCode::OtherChangeset, format!("`{file}` is evidence for another changeset"));
    }

    pub(super) fn other_spec(&mut self, path: &str) {
        self.add_with_rerun_hint(GateCode::OtherSpec, format!("`{path}` is not the spec that was verified"));
    }

    pub(super) fn other_plan(&mut self) {
        let message = "the spec resolves to a different plan than the one that ran: the operator's configuration or Proctor itself changed";
        self.add_with_rerun_hint(GateCode::OtherPlan, message.to_owned());
    }

    pub(super) fn tree_changed(&mut self, then: &SnapshotId, now: &SnapshotId, changed: &ChangedPaths) {
        let message = match changed.paths.len() as u64 + changed.omitted {
            0 => format!("the tree differs from the tree that was verified: it was {then}, now it is {now}"),
            1 => "the tree was changed since it was verified, at 1 path".to_owned(),
            count => format!("the tree was changed since it was verified, at {count} paths"),
        };
        self.add_with_changed_paths(GateCode::TreeChanged, message, changed);
    }

    /// Adds the finding that not every check saw the current tree. If the plan has a `read_only: off` step, the run
    /// changed the tree; otherwise the tree was edited during the run.
    pub(super) fn tree_not_constant(&mut self, plan: &Plan, changed: &ChangedPaths) {
        let steps = plan.skills.iter().flat_map(|skill| &skill.steps);
        match steps.map(|step| step.read_only).any(|mode| mode == ReadOnly::Off) {
            true => self.tree_changed_by_run(changed),
            false => self.tree_edited_during_run(changed),
        }
    }

    fn tree_changed_by_run(&mut self, changed: &ChangedPaths) {
        let message = "a `read_only: off` step of the run changed the tree, so not every check saw the current tree";
        self.add_with_changed_paths(GateCode::ChangedByRun, message.to_owned(), changed);
    }

    fn tree_edited_during_run(&mut self, changed: &ChangedPaths) {
        let message = "the tree was edited during the run, so not every check saw the current tree";
        self.add_with_changed_paths(GateCode::TreeChanged, message.to_owned(), changed);
    }

    /// Adds a finding; `files` are the paths of the ignore files.
    pub(super) fn ignores_changed(&mut self, files: Vec<String>) {
        let message =
            format!("ignore rules outside the tree were changed since it was verified{}", item_list(&quoted(&files)));
        let hint = format!(
            "undo the change, or check that the rules hide no file that belongs to the tree and {}",
            self.rerun_hint
        );
        self.add_with_files(GateCode::IgnoresChanged, message, hint, files);
    }

    /// Adds a finding; `files` are the paths of the ignore files.
    pub(super) fn ignores_unrecorded(&mut self, files: Vec<String>) {
        let message = format!(
            "there are ignore rules outside the tree, but the run did not record its own{}",
            item_list(&quoted(&files))
        );
        let hint = self.rerun_hint.clone();
        self.add_with_files(GateCode::IgnoresUnrecorded, message, hint, files);
    }

    fn add_with_files(&mut self, code: GateCode, message: String, hint: String, mut paths: Vec<String>) {
        let omitted = paths.len().saturating_sub(MAX_LISTED_PATHS) as u64;
        paths.truncate(MAX_LISTED_PATHS);
        self.push(GateFinding { paths, omitted, ..GateFinding::new(code, message, hint) });
    }

    fn add_with_changed_paths(&mut self, code: GateCode, message: String, changed: &ChangedPaths) {
        let hint = self.rerun_hint.clone();
        let ChangedPaths { paths, omitted } = changed.clone();
        self.push(GateFinding { paths, omitted, ..GateFinding::new(code, message, hint) });
    }

    pub(super) fn run_failed(&mut self, run: &RunId, steps: &[String]) {
        let what = item_list(steps);
        self.add_with_rerun_hint(GateCode::RunFailed, format!("the last run, {run}, failed{what}"));
    }

    pub(super) fn run_inconclusive(&mut self, run: &RunId) {
        self.add_with_rerun_hint(GateCode::RunInconclusive, format!("the last run, {run}, was inconclusive"));
    }

    pub(super) fn run_partial(&mut self, run: &RunId, left_out: &[SkillName]) {
        let names: Vec<String> = left_out.iter().map(|skill| format!("`{skill}`")).collect();
        let message = format!("the last run, {run}, left skills of the profile out{}", item_list(&names));
        self.add_with_rerun_hint(GateCode::RunPartial, message);
    }

    pub(super) fn run_restricted(&mut self, run: &RunId, scope: &RunScope) {
        let message = format!("the last run, {run}, did not cover the whole profile: {}", scope.phrase());
        self.add_with_rerun_hint(GateCode::RunPartial, message);
    }

    pub(super) fn tier_too_high(&mut self, tier: Tier, max_tier: Tier) {
        let message = format!("the run's effective tier is {tier}, but at most {max_tier} is accepted");
        let hint =
            format!("see `tier_reasons` in its evidence; `--max-tier {tier}` accepts it if the operator permits that");
        self.add_finding(GateCode::TierTooHigh, message, hint);
    }

    /// Adds the finding that a cache started with content of the scope `trust`, read from `base`.
    pub(super) fn cache_too_wide(
        &mut self,
        file: &str,
        (path, trust, base): (&RelPath, CacheTrust, Option<&str>),
        max_trust: CacheTrust,
    ) {
        let base = base.map_or_else(String::new, |base| format!(", from `{base}`"));
        let message = format!(
            "the cache `{path}` started with content of the scope `{trust}`{base}, but at most `{max_trust}` is accepted (`{file}`)"
        );
        let hint = format!("{} with `--no-caches`, or accept it with `--max-cache-trust {trust}`", self.rerun_hint);
        self.add_finding(GateCode::CacheTooWide, message, hint);
    }

    /// Adds the finding that the steps saw the worktree itself.
    pub(super) fn worktree_shared(&mut self, run: &RunId) {
        let message = format!(
            "the steps of the last run, {run}, saw the worktree itself, with ignored files and edits that the run does not record"
        );
        let hint = format!(
            "have the operator set `mode = \"private\"` in `[tree]` of `proctord.toml`, set `ignored: hidden` in `{}` and {}; or {}",
            spec::PATH,
            self.rerun_hint,
            self.verify_commit_hint()
        );
        self.add_finding(GateCode::InputsUnverified, message, hint);
    }

    /// Adds the finding that workers of clusters that the operator does not trust executed steps.
    pub(super) fn workers_untrusted(&mut self, run: &RunId, clusters: &BTreeSet<String>) {
        let clusters = clusters.iter().map(String::as_str).collect::<Vec<_>>().join(", ");
        let message = format!(
            "steps of the last run, {run}, ran on workers of {clusters}, which the operator's config does not trust"
        );
        let hint = format!(
            "name this cluster and its instance, and set `trust_workers` in `[remote_executor]` of `proctord.toml`, or {}",
            self.rerun_hint
        );
        self.add_finding(GateCode::OtherMachine, message, hint);
    }

    /// Adds the finding that steps have results of machines whose keys the operator does not trust. `problem` is the
    /// reason why no key can be read.
    pub(super) fn keys_untrusted(&mut self, run: &RunId, machines: &BTreeSet<String>, problem: Option<&str>) {
        let machines = machines.iter().take(MAX_LISTED_PATHS).map(String::as_str).collect::<Vec<_>>().join(", ");
        let reason = problem.map_or_else(String::new, |problem| format!(": {problem}"));
        let message = format!(
            "steps of the last run, {run}, have results of {machines}, which the operator's config does not trust{reason}"
        );
        let hint = format!(
            "add the key to `trusted_keys` in `[remote_cache]` of `proctord.toml`, or {}, which uses no result of this key",
            self.rerun_hint
        );
        self.add_finding(GateCode::OtherMachine, message, hint);
    }

    /// Adds the finding that other machines executed steps.
    pub(super) fn other_machines(&mut self, run: &RunId, machines: &BTreeSet<String>) {
        let machines = machines.iter().take(MAX_LISTED_PATHS).map(String::as_str).collect::<Vec<_>>().join(", ");
        let message = format!("other machines executed steps of the last run, {run}: {machines}");
        let hint = format!("{} without a remote executor and with `--no-cache`", self.rerun_hint);
        self.add_finding(GateCode::OtherMachine, message, hint);
    }

    /// Adds the finding that the steps saw ignored or prepared files, if there were any.
    pub(super) fn inputs_unverified(&mut self, run: &RunId, inputs: &UnverifiedInputs) {
        let mut paths: Vec<String> = inputs.visible().map(|input| input.path.clone()).collect();
        let omitted_visible = inputs.omitted_visible();
        let count = paths.len() as u64 + omitted_visible;
        if count == 0 {
            return;
        }
        let noun = if count == 1 { "ignored path" } else { "ignored paths" };
        let message = format!(
            "the steps of the last run, {run}, saw {count} {noun}, which the snapshot does not cover{}",
            item_list_with_omitted(&quoted(&paths), omitted_visible)
        );
        let hint = match inputs.visible().any(|input| input.shown == InputShown::Mounted) {
            true => format!("remove `needs_paths` from `{}` and {}", spec::PATH, self.rerun_hint),
            false => format!(
                "set `ignored: hidden` in `{}` and {}; or {}",
                spec::PATH,
                self.rerun_hint,
                self.verify_commit_hint()
            ),
        };
        let omitted = paths.len().saturating_sub(MAX_LISTED_PATHS) as u64 + omitted_visible;
        paths.truncate(MAX_LISTED_PATHS);
        self.push(GateFinding { paths, omitted, ..GateFinding::new(GateCode::InputsUnverified, message, hint) });
    }

    /// Returns the hint to verify the commit instead of the worktree.
    fn verify_commit_hint(&self) -> String {
        format!("{} with `--rev HEAD`", self.rerun_hint)
    }

    pub(super) fn control_missing(&mut self, file: &str, step: &str, control: &str) {
        let message = format!("`{step}` ran without the control `{control}`, which the operator requires (`{file}`)");
        let hint = format!("{}; `proctor doctor` shows what this machine enforces", self.rerun_hint);
        self.add_finding(GateCode::ControlMissing, message, hint);
    }

    pub(super) fn stale(&mut self, timestamp: &str, age: Duration, max_age: Duration) {
        let (age, most) = (format_age(age), format_age(max_age));
        let message = format!("the run ended {age} ago, at {timestamp}, but the maximum accepted age is {most}");
        let hint = format!("{}, or accept an older one with `--max-age`", self.rerun_hint);
        self.add_finding(GateCode::Stale, message, hint);
    }

    pub(super) fn stale_execution(&mut self, execution: &EarlierExecution, age: Duration, max_age: Duration) {
        let (age, most) = (format_age(age), format_age(max_age));
        let EarlierExecution { step, executed_at } = execution;
        let message = format!(
            "the run uses an earlier result of `{step}`, whose execution ended {age} ago, at {executed_at}, but the maximum \
             accepted age is {most}"
        );
        let hint = format!("{} with `--no-cache`, or accept an older one with `--max-age`", self.rerun_hint);
        self.add_finding(GateCode::Stale, message, hint);
    }

    pub(super) fn execution_time_unreadable(&mut self, execution: &EarlierExecution) {
        let EarlierExecution { step, executed_at } = execution;
        let message =
            format!("the time of the earlier execution of `{step}`, `{executed_at}`, is not a valid UTC time");
        self.add_with_rerun_hint(GateCode::TimeUnreadable, message);
    }

    pub(super) fn future_timestamp(&mut self, timestamp: &str) {
        let hint = format!("correct this machine's clock, then {}", self.rerun_hint);
        self.add_finding(GateCode::FromTheFuture, format!("the run ended in the future, at {timestamp}"), hint);
    }

    pub(super) fn time_unreadable(&mut self, timestamp: &str) {
        self.add_with_rerun_hint(
            GateCode::TimeUnreadable,
            format!("the end time of the run, `{timestamp}`, is not a valid UTC time"),
        );
    }

    pub(super) fn evidence_missing(&mut self, file: &str, why: &str) {
        self.add_with_rerun_hint(GateCode::EvidenceMissing, format!("`{file}` is missing{why}"));
    }

    pub(super) fn documents_missing(&mut self, run: &RunId) {
        let message = format!("the run {run} is recorded, but its documents no longer exist");
        self.add_with_rerun_hint(GateCode::EvidenceMissing, message);
    }

    pub(super) fn evidence_edited(&mut self, file: &str) {
        let message = format!("`{file}` differs from the hash in `05-status.json`: it was edited after the run");
        self.add_with_rerun_hint(GateCode::EvidenceEdited, message);
    }

    pub(super) fn evidence_unreadable(&mut self, file: &str, why: &str) {
        self.add_with_rerun_hint(GateCode::EvidenceUnreadable, format!("`{file}` is not Proctor evidence: {why}"));
    }

    pub(super) fn seal_broken(&mut self, file: &str) {
        let message = format!("the `sha256` in `{file}` does not match its stable part");
        self.add_with_rerun_hint(GateCode::EvidenceSealBroken, message);
    }

    pub(super) fn evidence_foreign(&mut self, file: &str, owner: &RunId) {
        self.add_with_rerun_hint(GateCode::EvidenceForeign, format!("`{file}` is evidence of another run, {owner}"));
    }

    pub(super) fn evidence_extra(&mut self, file: &str, why: &str) {
        let hint = format!("remove `{file}`, or {}", self.rerun_hint);
        self.add_finding(
            GateCode::EvidenceExtra,
            format!("`{file}` is not cited by `05-status.json`, and {why}"),
            hint,
        );
    }

    pub(super) fn evidence_contradicts(&mut self, file: &str, how: &str) {
        self.add_with_rerun_hint(
            GateCode::EvidenceContradicts,
            format!("`{file}` contradicts `05-status.json`: {how}"),
        );
    }

    pub(super) fn unattested(&mut self, run: &RunId) {
        let code = GateCode::Unattested;
        let message = format!("the state directory has no record of the run {run}: only its own files attest it");
        let hint = format!("{} here, or accept it with `--accept-unattested`", self.rerun_hint);
        let accepted = self.unattested == UnattestedPolicy::Accept;
        self.push(GateFinding { accepted, ..GateFinding::new(code, message, hint) });
    }

    pub(super) fn record_differs(&mut self, run: &RunId) {
        let message = format!("`05-status.json` no longer describes the run {run} as Proctor wrote it");
        self.add_with_rerun_hint(GateCode::RecordDiffers, message);
    }

    pub(super) fn superseded(&mut self, run: &RunId, newer: &LastRun) {
        let (id, outcome) = (&newer.run_id, newer.outcome.as_str());
        let message =
            format!("`05-status.json` describes the run {run}, but the last run of that tree was {id} ({outcome})");
        self.add_with_rerun_hint(GateCode::Superseded, message);
    }

    pub(super) fn record_unreadable(&mut self) {
        let message = "the state directory's record of the run is malformed".to_owned();
        self.add_with_rerun_hint(GateCode::RecordUnreadable, message);
    }
}

fn quoted(files: &[String]) -> Vec<String> {
    files.iter().map(|file| format!("`{file}`")).collect()
}

/// Lists steps, skills or files for a message.
fn item_list(steps: &[String]) -> String {
    item_list_with_omitted(steps, 0)
}

/// Lists the first names for a message; `beyond` counts the names that are missing from `steps`.
fn item_list_with_omitted(steps: &[String], omitted: u64) -> String {
    let named = steps.iter().take(MAX_NAMED_ITEMS).cloned().collect::<Vec<_>>().join(", ");
    match steps.len().saturating_sub(MAX_NAMED_ITEMS) as u64 + omitted {
        _ if steps.is_empty() => String::new(),
        0 => format!(": {named}"),
        more => format!(": {named} and {more} more"),
    }
}

/// Formats a duration in whole seconds, in the syntax of `--max-age`.
fn format_age(duration: Duration) -> String {
    humantime::format_duration(Duration::from_secs(duration.as_secs())).to_string()
}
