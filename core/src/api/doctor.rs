//! What a daemon's machine can enforce, as `GET /v1/doctor` answers it.

use std::collections::BTreeSet;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::enforcement::{Control, Enforcement, SandboxMode, Tolerated};

/// The answer of `GET /v1/doctor`: what a sandbox over the repository was made to enforce, found by
/// doing it once where the daemon runs.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct DoctorAnswer {
    /// Whether the set-up happens as root of the host.
    pub root: bool,
    /// Who a step over this repository is; `null` where there can be no step.
    pub user: Option<StepAccount>,
    /// Where control groups are made; `null` where there are none.
    pub control_groups: Option<String>,
    /// What the kernel was made to enforce with nothing demanded; empty where not even that was
    /// possible.
    pub enforcement: Enforcement,
    /// Why no step can run at all; empty where one can.
    pub findings: Vec<DoctorFinding>,
    /// Where the daemon keeps outputs, and evidence without a changeset.
    pub state_dir: String,
    /// The controls that its operator lets be missing.
    pub may_miss: BTreeSet<Control>,
    /// Whether its operator allows `sandbox: best_effort`.
    pub allows_best_effort: bool,
    /// The private copies of the repository, each compared with its record; `null` where `deep` was not asked for.
    #[serde(default)]
    pub copies: Option<Vec<CopyReport>>,
}

/// What a look at the machine includes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DoctorScope {
    /// What the machine can enforce.
    Machine,
    /// The private copies of the repository too. Damaged ones are removed.
    MachineAndCopies,
}

impl DoctorScope {
    /// Returns the scope for the option `deep`.
    pub fn from_deep(deep: bool) -> Self {
        if deep { Self::MachineAndCopies } else { Self::Machine }
    }
}

/// A private copy of a worktree, compared with its record.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct CopyReport {
    /// The copy's directory below the state directory.
    pub copy: String,
    /// What was found.
    pub state: CopyState,
    /// The damaged path and what is wrong with it, or why the copy could not be compared; `null` where it is sound or held.
    pub problem: Option<String>,
    /// Whether the copy was removed, so that the next run makes it anew.
    pub removed: bool,
}

/// The state of a private copy.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum CopyState {
    /// Each file is as it was copied.
    Sound,
    /// A run holds the copy, so it was not compared.
    Held,
    /// A file is not as it was copied.
    Damaged,
    /// The copy could not be compared.
    Unverified,
}

/// Who a step is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct StepAccount {
    /// The user.
    pub uid: u32,
    /// The group.
    pub gid: u32,
}

/// Something without which no step runs.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct DoctorFinding {
    /// The control that cannot be had, where it is one.
    pub control: Option<Control>,
    /// What was tried and what the system says.
    pub message: String,
    /// How to mend it; empty where that is not known.
    pub hint: String,
}

impl DoctorAnswer {
    /// What may be missing for a caller who asks for `mode`; `None` where it may not be asked for.
    pub fn tolerated(&self, mode: SandboxMode) -> Option<Tolerated> {
        match mode {
            SandboxMode::Strict => Some(self.may_miss.iter().copied().collect()),
            SandboxMode::BestEffort => self.allows_best_effort.then(Tolerated::everything),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_may_be_missing_is_the_operators_to_say() {
        let mut answer = DoctorAnswer {
            root: false,
            user: Some(StepAccount { uid: 7, gid: 7 }),
            control_groups: None,
            enforcement: Enforcement::default(),
            findings: Vec::new(),
            state_dir: "/s".into(),
            may_miss: [Control::Cgroup].into(),
            allows_best_effort: true,
            copies: None,
        };
        assert_eq!(answer.tolerated(SandboxMode::Strict), Some(Tolerated::default()));
        assert_eq!(answer.tolerated(SandboxMode::BestEffort), Some(Tolerated::everything()));
        answer.allows_best_effort = false;
        assert_eq!(answer.tolerated(SandboxMode::BestEffort), None);
        let text = serde_json::to_string(&answer).expect("writes");
        assert_eq!(serde_json::from_str::<DoctorAnswer>(&text).expect("reads"), answer);
    }
}
