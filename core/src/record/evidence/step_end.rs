//! Derives facts about the end of a step from its evidence: forbidden processes, and the exit code of a fix.

use super::StepEvidence;
use crate::model::leak::LeakedProcesses;
use crate::model::outcome::{Outcome, Termination};
use crate::model::plan::Leaks;

impl StepEvidence {
    /// Returns the processes because of which the step failed although its exit code was expected.
    pub fn forbidden_leak(&self) -> Option<&LeakedProcesses> {
        let as_expected =
            matches!(&self.termination, Termination::Exited { code } if self.planned.expect_exit.contains(code));
        let is_reason = as_expected && self.outcome == Outcome::Failed && self.planned.leaks == Leaks::Fail;
        self.leaked.as_ref().filter(|_| is_reason)
    }

    /// Returns the exit code of a `fix` command that passed although it exited with a failure.
    pub fn failed_fix_code(&self) -> Option<u8> {
        let is_fix = self.planned.fixes.is_some() && self.outcome == Outcome::Passed;
        match self.termination {
            Termination::Exited { code } if is_fix && !self.planned.expect_exit.contains(&code) => Some(code),
            _ => None,
        }
    }

    /// Returns a warning if the step passed and left processes behind, as a phrase that follows its name.
    pub fn leak_warning(&self) -> Option<String> {
        let leaked = self.leaked.as_ref().filter(|_| self.outcome == Outcome::Passed)?;
        Some(format!("passed and {}", leaked.phrase()))
    }
}
