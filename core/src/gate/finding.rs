//! Reasons against a pass. Each has a code, a message and a hint, and the text of each is in one place.

use std::time::Duration;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{ChangedPaths, Demands, Unattested};
use crate::cache::{CacheEvidence, CacheTrust};
use crate::code::{Code, Coded as _};
use crate::digest::SnapshotId;
use crate::names::{ProfileName, RunId, SkillName};
use crate::plan::{Plan, ReadOnly};
use crate::spec;
use crate::status::LastRun;
use crate::tier::Tier;
use crate::unverified::UnverifiedInputs;
use crate::verdict::{EXIT_INCONCLUSIVE, EXIT_USAGE, Verdict};

/// Maximum number of findings in an answer; further findings are only counted.
pub const MAX_FINDINGS: usize = 50;
/// Maximum number of names that a message lists.
const NAMED_STEPS: usize = 5;
/// Maximum number of paths that a finding lists.
const MAX_FILES: usize = 100;
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
    /// Evidence belongs to another run than the one that cites it.
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
    pub code: Code,
    /// The name of the reason.
    pub name: GateCode,
    /// The problem and its location.
    pub message: String,
    /// What to do.
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

/// Collects findings; each code has a method with its message and hint.
pub(super) struct Findings {
    again: String,
    unattested: Unattested,
    list: Vec<GateFinding>,
    omitted: u64,
    worst: Option<u8>,
}

impl Findings {
    pub(super) fn new(demands: &Demands) -> Self {
        let changeset = demands.changeset.as_ref().map(|id| format!(" --changeset {id}")).unwrap_or_default();
        let again = format!("run `proctor run --profile {}{changeset}`", demands.profile);
        Self { again, unattested: demands.unattested, list: Vec::new(), omitted: 0, worst: None }
    }

    /// Returns the exit code, the findings, and the number of further findings. For the exit code, a wrong record
    /// outranks an inconclusive one, and that outranks a missing one.
    pub(super) fn conclude(self) -> (u8, Vec<GateFinding>, u64) {
        (self.worst.unwrap_or(0), self.list, self.omitted)
    }

    fn add(&mut self, code: GateCode, message: String, hint: String) -> Option<&mut GateFinding> {
        self.push(GateFinding::new(code, message, hint))
    }

    /// Adds a finding that a new run fixes.
    fn rerun(&mut self, code: GateCode, message: String) {
        let hint = self.again.clone();
        self.add(code, message, hint);
    }

    fn push(&mut self, finding: GateFinding) -> Option<&mut GateFinding> {
        if !finding.accepted {
            let rank =
                |code: u8| [EXIT_USAGE, EXIT_INCONCLUSIVE, EXIT_NOT_VERIFIED].iter().position(|one| *one == code);
            let code = finding.name.exit_code();
            self.worst = Some(self.worst.map_or(code, |worst| if rank(code) > rank(worst) { code } else { worst }));
        }
        if self.list.len() >= MAX_FINDINGS {
            self.omitted += 1;
            return None;
        }
        self.list.push(finding);
        self.list.last_mut()
    }

    pub(super) fn nothing_recorded(&mut self) {
        self.rerun(GateCode::NothingRecorded, "no run is recorded".to_owned());
    }

    pub(super) fn run_under_way(&mut self) {
        let message = "a run of this changeset is under way".to_owned();
        self.add(GateCode::RunUnderWay, message, "wait for it to end, then ask again".to_owned());
    }

    pub(super) fn status_unreadable(&mut self, why: &str) {
        let hint = format!("fix `05-status.json` in an editor, then {}", self.again);
        self.add(GateCode::StatusUnreadable, format!("`05-status.json` cannot be used: {why}"), hint);
    }

    pub(super) fn version_unknown(&mut self, file: &str, version: &str) {
        let message = format!("`{file}` has format version {version}, which this program does not know");
        let hint = format!("use the newer Proctor that wrote it, or {}", self.again);
        self.add(GateCode::VersionUnknown, message, hint);
    }

    pub(super) fn cites_nothing(&mut self, outcome: Verdict) {
        let message = match outcome {
            Verdict::Inconclusive => {
                "the last run ended before its record was complete, or its pass was withdrawn; it cites no evidence"
                    .to_owned()
            }
            outcome => format!("the last run reports `{}` but cites no evidence", outcome.as_str()),
        };
        self.rerun(GateCode::CitesNothing, message);
    }

    pub(super) fn other_profile(&mut self, found: &ProfileName) {
        let message = format!("the last run used the profile `{found}`");
        self.rerun(GateCode::OtherProfile, message);
    }

    pub(super) fn other_changeset(&mut self, file: &str) {
        self.rerun(GateCode::OtherChangeset, format!("`{file}` is evidence for another changeset"));
    }

    pub(super) fn other_spec(&mut self, path: &str) {
        self.rerun(GateCode::OtherSpec, format!("`{path}` is not the spec that was verified"));
    }

    pub(super) fn other_plan(&mut self) {
        let message = "the spec resolves to a different plan than the one that ran: the operator's configuration or Proctor itself changed";
        self.rerun(GateCode::OtherPlan, message.to_owned());
    }

    pub(super) fn tree_changed(&mut self, then: &SnapshotId, now: &SnapshotId, changed: &ChangedPaths) {
        let message = match changed.paths.len() as u64 + changed.omitted {
            0 => format!("the tree differs from the tree that was verified: it was {then}, now it is {now}"),
            1 => "the tree was changed since it was verified, at 1 path".to_owned(),
            count => format!("the tree was changed since it was verified, at {count} paths"),
        };
        self.with_paths(GateCode::TreeChanged, message, changed);
    }

    /// Adds the finding that not every check saw the current tree. If the plan has a `read_only: off` step, the run
    /// changed the tree; otherwise the tree was edited during the run.
    pub(super) fn not_one_tree(&mut self, plan: &Plan, changed: &ChangedPaths) {
        let steps = plan.skills.iter().flat_map(|skill| &skill.steps);
        match steps.map(|step| step.read_only).any(|mode| mode == ReadOnly::Off) {
            true => self.changed_by_run(changed),
            false => self.edited_meanwhile(changed),
        }
    }

    fn changed_by_run(&mut self, changed: &ChangedPaths) {
        let message = "a `read_only: off` step of the run changed the tree, so not every check saw the current tree";
        self.with_paths(GateCode::ChangedByRun, message.to_owned(), changed);
    }

    fn edited_meanwhile(&mut self, changed: &ChangedPaths) {
        let message = "the tree was edited during the run, so not every check saw the current tree";
        self.with_paths(GateCode::TreeChanged, message.to_owned(), changed);
    }

    /// Adds a finding; `files` are the paths of the ignore files.
    pub(super) fn ignores_changed(&mut self, files: Vec<String>) {
        let message =
            format!("ignore rules outside the tree were changed since it was verified{}", said(&quoted(&files)));
        let hint = format!(
            "undo the change, or check that the rules hide no file that belongs to the tree and {}",
            self.again
        );
        self.about_files(GateCode::IgnoresChanged, message, hint, files);
    }

    /// Adds a finding; `files` are the paths of the ignore files.
    pub(super) fn ignores_unrecorded(&mut self, files: Vec<String>) {
        let message = format!(
            "there are ignore rules outside the tree, but the run did not record its own{}",
            said(&quoted(&files))
        );
        let hint = self.again.clone();
        self.about_files(GateCode::IgnoresUnrecorded, message, hint, files);
    }

    fn about_files(&mut self, code: GateCode, message: String, hint: String, mut paths: Vec<String>) {
        let omitted = paths.len().saturating_sub(MAX_FILES) as u64;
        paths.truncate(MAX_FILES);
        self.push(GateFinding { paths, omitted, ..GateFinding::new(code, message, hint) });
    }

    fn with_paths(&mut self, code: GateCode, message: String, changed: &ChangedPaths) {
        let hint = self.again.clone();
        let ChangedPaths { paths, omitted } = changed.clone();
        self.push(GateFinding { paths, omitted, ..GateFinding::new(code, message, hint) });
    }

    pub(super) fn run_failed(&mut self, run: &RunId, steps: &[String]) {
        let what = said(steps);
        self.rerun(GateCode::RunFailed, format!("the last run, {run}, failed{what}"));
    }

    pub(super) fn run_inconclusive(&mut self, run: &RunId) {
        self.rerun(GateCode::RunInconclusive, format!("the last run, {run}, was inconclusive"));
    }

    pub(super) fn run_partial(&mut self, run: &RunId, left_out: &[SkillName]) {
        let names: Vec<String> = left_out.iter().map(|skill| format!("`{skill}`")).collect();
        let message = format!("the last run, {run}, left skills of the profile out{}", said(&names));
        self.rerun(GateCode::RunPartial, message);
    }

    pub(super) fn tier_too_high(&mut self, tier: Tier, most: Tier) {
        let message = format!("the run's effective tier is {tier}, but at most {most} is accepted");
        let hint =
            format!("see `tier_reasons` in its evidence; `--max-tier {tier}` accepts it where the operator does");
        self.add(GateCode::TierTooHigh, message, hint);
    }

    pub(super) fn cache_too_wide(&mut self, file: &str, cache: &CacheEvidence, most: CacheTrust) {
        let base = cache.base.as_ref().map_or_else(String::new, |base| format!(", from `{}`", base.scope));
        let message = format!(
            "the cache `{}` started with content of the scope `{}`{base}, but at most `{most}` is accepted (`{file}`)",
            cache.path, cache.trust
        );
        let hint = format!("{} with `--no-caches`, or accept it with `--max-cache-trust {}`", self.again, cache.trust);
        self.add(GateCode::CacheTooWide, message, hint);
    }

    /// Adds the finding that the steps saw the worktree itself.
    pub(super) fn worktree_shared(&mut self, run: &RunId) {
        let message = format!(
            "the steps of the last run, {run}, saw the worktree itself, with ignored files and edits that the run does not record"
        );
        let hint = format!(
            "have the operator set `mode = \"private\"` in `[tree]` of `proctord.toml`, set `ignored: hidden` in `{}` and {}; or {}",
            spec::PATH,
            self.again,
            self.of_commit()
        );
        self.add(GateCode::InputsUnverified, message, hint);
    }

    /// Adds the finding that the steps saw copies of ignored files, if there were any.
    pub(super) fn inputs_unverified(&mut self, run: &RunId, inputs: &UnverifiedInputs) {
        let mut paths: Vec<String> = inputs.copied().map(|input| input.path.clone()).collect();
        let beyond = inputs.copied_beyond();
        let count = paths.len() as u64 + beyond;
        if count == 0 {
            return;
        }
        let noun = if count == 1 { "ignored path" } else { "ignored paths" };
        let message = format!(
            "the steps of the last run, {run}, saw {count} {noun}, which the snapshot does not cover{}",
            listed(&quoted(&paths), beyond)
        );
        let hint = format!("set `ignored: hidden` in `{}` and {}; or {}", spec::PATH, self.again, self.of_commit());
        let omitted = paths.len().saturating_sub(MAX_FILES) as u64 + beyond;
        paths.truncate(MAX_FILES);
        self.push(GateFinding { paths, omitted, ..GateFinding::new(GateCode::InputsUnverified, message, hint) });
    }

    /// Returns the hint to verify the commit instead of the worktree.
    fn of_commit(&self) -> String {
        format!("{} with `--rev HEAD`", self.again)
    }

    pub(super) fn control_missing(&mut self, file: &str, step: &str, control: &str) {
        let message = format!("`{step}` ran without the control `{control}`, which the operator requires (`{file}`)");
        let hint = format!("{}; `proctor doctor` shows what this machine enforces", self.again);
        self.add(GateCode::ControlMissing, message, hint);
    }

    pub(super) fn stale(&mut self, timestamp: &str, age: Duration, most: Duration) {
        let (age, most) = (span(age), span(most));
        let message = format!("the run ended {age} ago, at {timestamp}, but the maximum accepted age is {most}");
        let hint = format!("{}, or accept an older one with `--max-age`", self.again);
        self.add(GateCode::Stale, message, hint);
    }

    pub(super) fn future(&mut self, timestamp: &str) {
        let hint = format!("correct this machine's clock, then {}", self.again);
        self.add(GateCode::FromTheFuture, format!("the run ended in the future, at {timestamp}"), hint);
    }

    pub(super) fn time_unreadable(&mut self, timestamp: &str) {
        self.rerun(
            GateCode::TimeUnreadable,
            format!("the end time of the run, `{timestamp}`, is not a valid UTC time"),
        );
    }

    pub(super) fn evidence_missing(&mut self, file: &str, why: &str) {
        self.rerun(GateCode::EvidenceMissing, format!("`{file}` is missing{why}"));
    }

    pub(super) fn documents_gone(&mut self, run: &RunId) {
        let message = format!("the run {run} is recorded, but its documents no longer exist");
        self.rerun(GateCode::EvidenceMissing, message);
    }

    pub(super) fn evidence_edited(&mut self, file: &str) {
        let message = format!("`{file}` differs from what `05-status.json` cites: it was edited after the run");
        self.rerun(GateCode::EvidenceEdited, message);
    }

    pub(super) fn evidence_unreadable(&mut self, file: &str, why: &str) {
        self.rerun(GateCode::EvidenceUnreadable, format!("`{file}` is not Proctor evidence: {why}"));
    }

    pub(super) fn seal_broken(&mut self, file: &str) {
        let message = format!("the `sha256` in `{file}` does not match its stable part");
        self.rerun(GateCode::EvidenceSealBroken, message);
    }

    pub(super) fn foreign(&mut self, file: &str, of: &RunId) {
        self.rerun(GateCode::EvidenceForeign, format!("`{file}` is evidence of another run, {of}"));
    }

    pub(super) fn extra(&mut self, file: &str, why: &str) {
        let hint = format!("remove `{file}`, or {}", self.again);
        self.add(GateCode::EvidenceExtra, format!("`{file}` is not cited by `05-status.json`, and {why}"), hint);
    }

    pub(super) fn contradicts(&mut self, file: &str, how: &str) {
        self.rerun(GateCode::EvidenceContradicts, format!("`{file}` contradicts `05-status.json`: {how}"));
    }

    pub(super) fn unattested(&mut self, run: &RunId) {
        let code = GateCode::Unattested;
        let message = format!("the state directory has no record of the run {run}: only its own files attest it");
        let hint = format!("{} here, or accept it with `--accept-unattested`", self.again);
        let accepted = self.unattested == Unattested::Accept;
        self.push(GateFinding { accepted, ..GateFinding::new(code, message, hint) });
    }

    pub(super) fn record_differs(&mut self, run: &RunId) {
        let message = format!("`05-status.json` no longer describes the run {run} as it was written");
        self.rerun(GateCode::RecordDiffers, message);
    }

    pub(super) fn superseded(&mut self, run: &RunId, newer: &LastRun) {
        let (id, outcome) = (&newer.run_id, newer.outcome.as_str());
        let message =
            format!("`05-status.json` describes the run {run}, but the last run of that tree was {id} ({outcome})");
        self.rerun(GateCode::Superseded, message);
    }

    pub(super) fn record_unreadable(&mut self) {
        let message = "the state directory's record of the run is malformed".to_owned();
        self.rerun(GateCode::RecordUnreadable, message);
    }
}

fn quoted(files: &[String]) -> Vec<String> {
    files.iter().map(|file| format!("`{file}`")).collect()
}

/// Lists steps, skills or files for a message.
fn said(steps: &[String]) -> String {
    listed(steps, 0)
}

/// Lists the first names for a message; `beyond` counts the names that are missing from `steps`.
fn listed(steps: &[String], beyond: u64) -> String {
    let named = steps.iter().take(NAMED_STEPS).cloned().collect::<Vec<_>>().join(", ");
    match steps.len().saturating_sub(NAMED_STEPS) as u64 + beyond {
        _ if steps.is_empty() => String::new(),
        0 => format!(": {named}"),
        more => format!(": {named} and {more} more"),
    }
}

/// Formats a duration in whole seconds, in the syntax of `--max-age`.
fn span(duration: Duration) -> String {
    humantime::format_duration(Duration::from_secs(duration.as_secs())).to_string()
}
