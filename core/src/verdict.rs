//! What a run means: a pure fold over outcomes, with three answers.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::outcome::Outcome;

/// What the run means.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Verdict {
    /// Every step ran to its end on the tree that was recorded, and did what was expected.
    Passed,
    /// A check speaks against the tree.
    Failed,
    /// There is no honest answer. It never passes a gate.
    Inconclusive,
}

impl Verdict {
    /// The word of the documents and of the screen.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Passed => "passed",
            Self::Failed => "failed",
            Self::Inconclusive => "inconclusive",
        }
    }
}

/// What is known of a run when it has ended.
#[derive(Debug, Clone, Default)]
pub struct Facts {
    /// The outcome of every planned step, skipped ones too.
    pub outcomes: Vec<Outcome>,
    /// Why no honest answer is possible, where that is so: the tree was edited meanwhile, a
    /// toolchain check failed, the run was interrupted, evidence could not be written.
    pub doubts: Vec<Doubt>,
}

/// A reason why a run has no honest answer, whatever its steps say.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Doubt {
    /// A toolchain check failed.
    Toolchain,
    /// The tree was edited while the run was under way.
    TreeChanged,
    /// The run was interrupted.
    Interrupted,
    /// The sandbox could not be had as the operator demands it.
    Sandbox,
    /// A skill is above the tier that the caller may run.
    TierAboveLimit,
    /// Two skills that a third needs touched the same path.
    LayerConflict,
    /// A change of a `read_only: off` step could not be applied to the worktree.
    ApplyFailed,
    /// Something of ours failed.
    Internal,
}

impl Doubt {
    /// The word of the documents.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Toolchain => "toolchain",
            Self::TreeChanged => "tree_changed",
            Self::Interrupted => "interrupted",
            Self::Sandbox => "sandbox",
            Self::TierAboveLimit => "tier_above_limit",
            Self::LayerConflict => "layer_conflict",
            Self::ApplyFailed => "apply_failed",
            Self::Internal => "internal",
        }
    }
}

/// The process exit code where a check failed.
pub const EXIT_FAILED: u8 = 1;
/// The process exit code where a step changed what it must not.
pub const EXIT_DRIFT: u8 = 3;
/// The process exit code where a step ran out of time.
pub const EXIT_TIMEOUT: u8 = 4;
/// The process exit code of a run that ended by Ctrl-C or SIGTERM.
pub const EXIT_INTERRUPTED: u8 = 130;
/// The process exit code for usage errors, spec errors, and runs in which nothing ran.
pub const EXIT_USAGE: u8 = 2;
/// The process exit code where there is no honest answer.
pub const EXIT_INCONCLUSIVE: u8 = 5;
/// The process exit code where a daemon was demanded and none answers.
pub const EXIT_UNREACHABLE: u8 = 6;

/// The verdict: failed where any check failed, even beside doubts; passed only where every
/// step passed, at least one did, and nothing is in doubt.
pub fn fold(facts: &Facts) -> Verdict {
    if facts.outcomes.iter().any(|outcome| outcome.is_failure()) {
        Verdict::Failed
    } else if facts.doubts.is_empty()
        && !facts.outcomes.is_empty()
        && facts.outcomes.iter().all(|outcome| *outcome == Outcome::Passed)
    {
        Verdict::Passed
    } else {
        Verdict::Inconclusive
    }
}

/// The process exit code: drift before timeout before failure; inconclusive only where nothing
/// failed; an interrupted run says so whatever it had found.
pub fn exit_code(facts: &Facts) -> u8 {
    let any = |wanted: Outcome| facts.outcomes.contains(&wanted);
    if facts.doubts.contains(&Doubt::Interrupted) {
        EXIT_INTERRUPTED
    } else if any(Outcome::Drifted) {
        EXIT_DRIFT
    } else if any(Outcome::TimedOut) {
        EXIT_TIMEOUT
    } else if any(Outcome::Failed) {
        EXIT_FAILED
    } else {
        match fold(facts) {
            Verdict::Passed => 0,
            _ if nothing_ran(facts) => EXIT_USAGE,
            _ => EXIT_INCONCLUSIVE,
        }
    }
}

/// Zero is not a pass: no step selected, or every one skipped without a reason that makes the
/// run inconclusive.
fn nothing_ran(facts: &Facts) -> bool {
    facts.doubts.is_empty() && facts.outcomes.iter().all(|outcome| *outcome == Outcome::Skipped)
}

#[cfg(test)]
mod tests {
    use super::*;
    use Outcome::{Cancelled, Drifted, Failed, Inconclusive, Passed, Skipped, TimedOut};
    use proptest::prelude::*;

    fn facts(outcomes: &[Outcome], doubts: &[Doubt]) -> Facts {
        Facts { outcomes: outcomes.to_vec(), doubts: doubts.to_vec() }
    }

    #[test]
    fn each_case_has_its_answer_and_code() {
        let cases: &[(&[Outcome], &[Doubt], Verdict, u8)] = &[
            (&[Passed, Passed], &[], Verdict::Passed, 0),
            (&[Passed, Failed, Skipped], &[], Verdict::Failed, 1),
            (&[], &[], Verdict::Inconclusive, 2),
            (&[Skipped, Skipped], &[], Verdict::Inconclusive, 2),
            (&[Failed, Drifted, TimedOut], &[], Verdict::Failed, 3),
            (&[Failed, TimedOut], &[], Verdict::Failed, 4),
            (&[Passed, Skipped], &[], Verdict::Inconclusive, 5),
            (&[Passed, Inconclusive], &[], Verdict::Inconclusive, 5),
            (&[Passed], &[Doubt::TreeChanged], Verdict::Inconclusive, 5),
            (&[], &[Doubt::Toolchain], Verdict::Inconclusive, 5),
            (&[Skipped], &[Doubt::TierAboveLimit], Verdict::Inconclusive, 5),
            (&[Failed, Inconclusive], &[Doubt::TreeChanged], Verdict::Failed, 1),
            (&[Passed, Cancelled], &[Doubt::Interrupted], Verdict::Inconclusive, 130),
        ];
        for (outcomes, doubts, verdict, code) in cases {
            let facts = facts(outcomes, doubts);
            assert_eq!((fold(&facts), exit_code(&facts)), (*verdict, *code), "{outcomes:?} {doubts:?}");
        }
    }

    fn any_outcome() -> impl Strategy<Value = Outcome> {
        prop::sample::select(vec![Passed, Failed, TimedOut, Drifted, Skipped, Cancelled, Inconclusive])
    }

    proptest! {
        #[test]
        fn zero_means_passed_and_only_that(outcomes in prop::collection::vec(any_outcome(), 0..6), doubt in any::<bool>()) {
            let facts = facts(&outcomes, if doubt { &[Doubt::Internal] } else { &[] });
            let clean = !doubt && !outcomes.is_empty() && outcomes.iter().all(|o| *o == Passed);
            prop_assert_eq!(fold(&facts) == Verdict::Passed, clean);
            prop_assert_eq!(exit_code(&facts) == 0, clean);
        }
    }
}
