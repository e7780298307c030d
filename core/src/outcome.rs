//! How a process ended, and what that means for its step.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// How the process of an attempt ended. This, and not the exit code, is what counts.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum Termination {
    /// It ended by itself.
    Exited {
        /// Its exit status, 0–255.
        code: u8,
    },
    /// A signal that was not ours ended it.
    Signaled {
        /// The signal's number.
        signal: u8,
    },
    /// It was ended at its deadline.
    TimedOut {
        /// The signal that it died of, or the code with which it answered SIGTERM.
        exit_code: u8,
    },
    /// It was ended because it hit a limit.
    LimitHit {
        /// Which one.
        limit: LimitKind,
        /// The exit code in the manner of shells.
        exit_code: u8,
    },
    /// The run was cancelled while it ran.
    Cancelled,
    /// It never ran.
    NotStarted {
        /// Why, as a phrase for people.
        reason: String,
        /// Whose fault that is.
        fault: StartFault,
    },
}

/// Why a command could not be started.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum StartFault {
    /// Nobody's: it was not its turn, because of what happened before it.
    NotReached,
    /// The program is not there, or is no program.
    ProgramMissing,
    /// The sandbox could not be had as the policy demands it.
    Sandbox,
    /// The work directory is not there.
    Workdir,
    /// Our own mistake.
    Internal,
}

/// A limit that an attempt can be seen to hit. Of open files nothing tells that: the kernel counts no refusal.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum LimitKind {
    /// Memory.
    Memory,
    /// Processes and threads.
    Pids,
    /// Bytes written.
    Disk,
    /// Files written, of which there may be so many for so many bytes of `disk`.
    Inodes,
    /// CPU time.
    CpuSeconds,
}

impl LimitKind {
    /// The limit for people.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Memory => "memory",
            Self::Pids => "processes",
            Self::Disk => "disk",
            Self::Inodes => "files",
            Self::CpuSeconds => "CPU time",
        }
    }
}

impl Termination {
    /// The code as a shell has it: the exit status, or 128 + signal. `None` where no process
    /// ran or where it was cancelled.
    pub fn exit_code(&self) -> Option<u8> {
        match self {
            Self::Exited { code } => Some(*code),
            Self::Signaled { signal } => Some(signal.saturating_add(128)),
            Self::TimedOut { exit_code } | Self::LimitHit { exit_code, .. } => Some(*exit_code),
            Self::Cancelled | Self::NotStarted { .. } => None,
        }
    }

    /// How it ended, as a phrase that follows the name of what was run, in our own words alone. Why something did
    /// not start is left to who tells it.
    pub fn phrase(&self) -> String {
        match self {
            Self::Exited { code } => format!("exited with code {code}"),
            Self::Signaled { signal } => format!("was ended by signal {signal}"),
            Self::TimedOut { .. } => "ran out of time".to_owned(),
            Self::LimitHit { limit, .. } => format!("hit its limit of {}", limit.as_str()),
            Self::Cancelled => "was cancelled".to_owned(),
            Self::NotStarted { .. } => "did not run".to_owned(),
        }
    }
}

/// What one step means.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Outcome {
    /// It ran to its end and did what was expected.
    Passed,
    /// It ran to its end and did not.
    Failed,
    /// It ran out of time.
    TimedOut,
    /// It changed what it must not.
    Drifted,
    /// It was not to run.
    Skipped,
    /// The run was cancelled.
    Cancelled,
    /// There is no honest answer.
    Inconclusive,
}

impl Outcome {
    /// The word of the documents and of the screen.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Passed => "passed",
            Self::Failed => "failed",
            Self::TimedOut => "timed_out",
            Self::Drifted => "drifted",
            Self::Skipped => "skipped",
            Self::Cancelled => "cancelled",
            Self::Inconclusive => "inconclusive",
        }
    }

    /// Whether a check failed: the step ran, and its result speaks against the tree.
    pub fn is_failure(self) -> bool {
        matches!(self, Self::Failed | Self::TimedOut | Self::Drifted)
    }
}

/// What an attempt did that its plan does not allow, whatever its exit code is.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Violations {
    /// Its layer holds a change that `read_only` forbids.
    pub drifted: bool,
    /// It left processes behind, and `leaks` is `fail`.
    pub leaked: bool,
}

/// Folds one attempt into the outcome of its step. `expected` are the exit codes that count
/// as success.
pub fn judge(termination: &Termination, expected: &[u8], violations: Violations) -> Outcome {
    match termination {
        Termination::Cancelled => Outcome::Cancelled,
        Termination::NotStarted { fault: StartFault::NotReached, .. } => Outcome::Skipped,
        Termination::NotStarted { .. } => Outcome::Inconclusive,
        _ if violations.drifted => Outcome::Drifted,
        Termination::TimedOut { .. } => Outcome::TimedOut,
        Termination::Exited { code } if expected.contains(code) && !violations.leaked => Outcome::Passed,
        Termination::Exited { .. } | Termination::Signaled { .. } | Termination::LimitHit { .. } => Outcome::Failed,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NONE: Violations = Violations { drifted: false, leaked: false };
    const DRIFT: Violations = Violations { drifted: true, leaked: false };
    const LEAK: Violations = Violations { drifted: false, leaked: true };

    #[test]
    fn drift_stands_before_timeout_and_failure() {
        assert_eq!(judge(&Termination::Exited { code: 0 }, &[0], DRIFT), Outcome::Drifted);
        assert_eq!(judge(&Termination::TimedOut { exit_code: 137 }, &[0], DRIFT), Outcome::Drifted);
        assert_eq!(judge(&Termination::TimedOut { exit_code: 0 }, &[0], NONE), Outcome::TimedOut);
    }

    #[test]
    fn forbidden_leak_turns_a_pass_into_a_failure_and_changes_nothing_else() {
        let limit = LimitKind::Memory;
        let fault = StartFault::ProgramMissing;
        let all = [
            Termination::Exited { code: 0 },
            Termination::Exited { code: 1 },
            Termination::Signaled { signal: 9 },
            Termination::TimedOut { exit_code: 0 },
            Termination::LimitHit { limit, exit_code: 0 },
            Termination::Cancelled,
            Termination::NotStarted { reason: String::new(), fault },
        ];
        for (termination, drifted) in all.iter().flat_map(|end| [(end, false), (end, true)]) {
            let of = |leaked| judge(termination, &[0], Violations { drifted, leaked });
            let (with, without) = (of(true), of(false));
            assert_ne!(with, Outcome::Passed, "{termination:?}");
            assert!(with == without || (with, without) == (Outcome::Failed, Outcome::Passed), "{termination:?}");
        }
        assert_eq!(judge(&Termination::Exited { code: 0 }, &[0], LEAK), Outcome::Failed);
    }

    #[test]
    fn a_signal_never_passes_even_where_its_shell_code_is_expected() {
        assert_eq!(judge(&Termination::Signaled { signal: 9 }, &[137], NONE), Outcome::Failed);
        assert_eq!(Termination::Signaled { signal: 9 }.exit_code(), Some(137));
    }

    #[test]
    fn what_did_not_run_is_never_a_pass() {
        let missing = Termination::NotStarted { reason: "x".into(), fault: StartFault::ProgramMissing };
        assert_eq!(judge(&missing, &[0], NONE), Outcome::Inconclusive);
        assert_eq!(missing.exit_code(), None);
    }
}
