//! Derives the verdict of a run from the outcomes of its steps. There are three verdicts.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::model::outcome::Outcome;

/// The verdict of a run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Verdict {
    /// Every step ran to completion on the recorded tree and succeeded.
    Passed,
    /// A check failed.
    Failed,
    /// The run has no reliable result. It never passes a gate.
    Inconclusive,
}

impl Verdict {
    /// Returns the name in documents and on the screen.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Passed => "passed",
            Self::Failed => "failed",
            Self::Inconclusive => "inconclusive",
        }
    }
}

/// The facts that decide the verdict of a finished run.
#[derive(Debug, Clone, Default)]
pub struct VerdictInputs {
    /// The outcomes of all planned steps, including skipped ones.
    pub outcomes: Vec<Outcome>,
    /// The reasons why the run is inconclusive, for example: the tree was edited during the run, a toolchain check
    /// failed, the run was interrupted, or evidence could not be written.
    pub inconclusive_reasons: Vec<InconclusiveReason>,
    /// True if the run is restricted to some files. It then passes even if no step has a file to check.
    pub is_restricted: bool,
}

/// A reason why a run cannot pass, whatever the outcomes of its steps.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum InconclusiveReason {
    /// A toolchain check failed.
    Toolchain,
    /// The tree was edited during the run.
    TreeChanged,
    /// The run was interrupted.
    Interrupted,
    /// The sandbox that the operator requires is not available.
    Sandbox,
    /// A skill has a higher tier than the caller may run.
    TierAboveLimit,
    /// Two skills that a third one needs changed the same path.
    LayerConflict,
    /// A change of a `read_only: off` step could not be applied to the worktree.
    ApplyFailed,
    /// A `read_only: off` step changed files of a commit, and the run does not apply changes to commits.
    ChangedCommit,
    /// A path that a skill needs, and that no commit contains, is not available.
    NeededPath,
    /// A step passed on a worker whose reports the operator does not trust.
    RemoteExecution,
    /// An internal operation failed, for example a write of evidence.
    Internal,
}

/// A reason why a run is inconclusive, with a description of the event.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct InconclusiveDetail {
    /// The kind of the reason.
    pub doubt: InconclusiveReason,
    /// A description of the event, its location, and the remedy.
    pub message: String,
}

impl InconclusiveReason {
    /// Adds a description of the event to the reason.
    pub fn with_message(self, message: impl Into<String>) -> InconclusiveDetail {
        InconclusiveDetail { doubt: self, message: message.into() }
    }

    /// Returns the name in documents.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Toolchain => "toolchain",
            Self::TreeChanged => "tree_changed",
            Self::Interrupted => "interrupted",
            Self::Sandbox => "sandbox",
            Self::TierAboveLimit => "tier_above_limit",
            Self::LayerConflict => "layer_conflict",
            Self::ApplyFailed => "apply_failed",
            Self::ChangedCommit => "changed_commit",
            Self::NeededPath => "needed_path",
            Self::RemoteExecution => "remote_execution",
            Self::Internal => "internal",
        }
    }
}

/// Exit code if a check failed.
pub const EXIT_FAILED: u8 = 1;
/// Exit code if a step made forbidden changes.
pub const EXIT_DRIFT: u8 = 3;
/// Exit code if a step timed out.
pub const EXIT_TIMEOUT: u8 = 4;
/// Exit code if the run was ended by Ctrl-C or SIGTERM.
pub const EXIT_INTERRUPTED: u8 = 130;
/// Exit code for usage errors, spec errors, and runs in which no step ran.
pub const EXIT_USAGE: u8 = 2;
/// Exit code if the run is inconclusive.
pub const EXIT_INCONCLUSIVE: u8 = 5;
/// Exit code if a daemon is required and none answers.
pub const EXIT_UNREACHABLE: u8 = 6;

/// Returns the verdict: failed if any step failed, passed if every check holds without an [`InconclusiveReason`] and at
/// least one step ran, and inconclusive otherwise. If the run is restricted to some files, the run can pass without a
/// step that ran. A failure outranks an [`InconclusiveReason`].
pub fn derive_verdict(facts: &VerdictInputs) -> Verdict {
    if facts.outcomes.iter().any(|outcome| outcome.is_failure()) {
        Verdict::Failed
    } else if facts.inconclusive_reasons.is_empty()
        && !facts.outcomes.is_empty()
        && facts.outcomes.iter().all(|outcome| outcome.holds())
        && (facts.is_restricted || facts.outcomes.contains(&Outcome::Passed))
    {
        Verdict::Passed
    } else {
        Verdict::Inconclusive
    }
}

/// Returns the exit code. Drift outranks a timeout, a timeout outranks a failure, and a failure outranks an
/// inconclusive verdict. An interrupted run always has its own code.
pub fn exit_code(facts: &VerdictInputs) -> u8 {
    let any = |wanted: Outcome| facts.outcomes.contains(&wanted);
    if facts.inconclusive_reasons.contains(&InconclusiveReason::Interrupted) {
        EXIT_INTERRUPTED
    } else if any(Outcome::Drifted) {
        EXIT_DRIFT
    } else if any(Outcome::TimedOut) {
        EXIT_TIMEOUT
    } else if any(Outcome::Failed) {
        EXIT_FAILED
    } else {
        match derive_verdict(facts) {
            Verdict::Passed => 0,
            _ if nothing_ran(facts) => EXIT_USAGE,
            _ => EXIT_INCONCLUSIVE,
        }
    }
}

/// Returns whether no step ran: none was selected, or all were skipped or have no files, without a reason that makes
/// the run inconclusive. This does not count as a pass.
fn nothing_ran(facts: &VerdictInputs) -> bool {
    facts.inconclusive_reasons.is_empty() && facts.outcomes.iter().all(|outcome| outcome.is_left_out())
}

#[cfg(test)]
mod tests {
    use super::*;
    use Outcome::{Cancelled, Drifted, Failed, Inconclusive, NoFiles, Passed, Skipped, TimedOut};
    use proptest::prelude::*;

    fn verdict_inputs(outcomes: &[Outcome], doubts: &[InconclusiveReason]) -> VerdictInputs {
        VerdictInputs { outcomes: outcomes.to_vec(), inconclusive_reasons: doubts.to_vec(), ..VerdictInputs::default() }
    }

    #[test]
    fn derives_verdict_and_exit_code() {
        let cases: &[(&[Outcome], &[InconclusiveReason], Verdict, u8)] = &[
            (&[Passed, Passed], &[], Verdict::Passed, 0),
            (&[Passed, Failed, Skipped], &[], Verdict::Failed, 1),
            (&[], &[], Verdict::Inconclusive, 2),
            (&[Skipped, Skipped], &[], Verdict::Inconclusive, 2),
            (&[Passed, NoFiles], &[], Verdict::Passed, 0),
            (&[NoFiles, NoFiles], &[], Verdict::Inconclusive, 2),
            (&[NoFiles, Skipped], &[], Verdict::Inconclusive, 2),
            (&[NoFiles, Failed], &[], Verdict::Failed, 1),
            (&[Failed, Drifted, TimedOut], &[], Verdict::Failed, 3),
            (&[Failed, TimedOut], &[], Verdict::Failed, 4),
            (&[Passed, Skipped], &[], Verdict::Inconclusive, 5),
            (&[Passed, Inconclusive], &[], Verdict::Inconclusive, 5),
            (&[Passed], &[InconclusiveReason::TreeChanged], Verdict::Inconclusive, 5),
            (&[], &[InconclusiveReason::Toolchain], Verdict::Inconclusive, 5),
            (&[Skipped], &[InconclusiveReason::TierAboveLimit], Verdict::Inconclusive, 5),
            (&[Failed, Inconclusive], &[InconclusiveReason::TreeChanged], Verdict::Failed, 1),
            (&[Passed, Cancelled], &[InconclusiveReason::Interrupted], Verdict::Inconclusive, 130),
        ];
        for (outcomes, doubts, verdict, code) in cases {
            let facts = verdict_inputs(outcomes, doubts);
            assert_eq!((derive_verdict(&facts), exit_code(&facts)), (*verdict, *code), "{outcomes:?} {doubts:?}");
        }
    }

    #[test]
    fn restricted_run_passes_without_files() {
        let restricted = |outcomes: &[Outcome]| {
            derive_verdict(&VerdictInputs { is_restricted: true, ..verdict_inputs(outcomes, &[]) })
        };
        assert_eq!(restricted(&[NoFiles, NoFiles]), Verdict::Passed);
        assert_eq!(restricted(&[NoFiles, Skipped]), Verdict::Inconclusive);
        assert_eq!(restricted(&[]), Verdict::Inconclusive);
    }

    fn any_outcome() -> impl Strategy<Value = Outcome> {
        prop::sample::select(vec![Passed, Failed, TimedOut, Drifted, Skipped, NoFiles, Cancelled, Inconclusive])
    }

    proptest! {
        #[test]
        fn exit_code_is_zero_only_for_a_pass(outcomes in prop::collection::vec(any_outcome(), 0..6), doubt in any::<bool>()) {
            let facts = verdict_inputs(&outcomes, if doubt { &[InconclusiveReason::Internal] } else { &[] });
            let clean = !doubt && outcomes.contains(&Passed) && outcomes.iter().all(|o| matches!(o, Passed | NoFiles));
            prop_assert_eq!(derive_verdict(&facts) == Verdict::Passed, clean);
            prop_assert_eq!(exit_code(&facts) == 0, clean);
        }
    }
}
