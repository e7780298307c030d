//! How a process ended, and the outcome of its step.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// How the process of an attempt ended. The outcome is computed from this, not from the exit code.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum Termination {
    /// The process exited.
    Exited {
        /// The exit status, 0–255.
        code: u8,
    },
    /// The process was killed by a signal that Proctor did not send.
    Signaled {
        /// The signal number.
        signal: u8,
    },
    /// Proctor ended the process at its deadline.
    TimedOut {
        /// 128 + the signal that killed the process, or the code with which it exited after SIGTERM.
        exit_code: u8,
    },
    /// The process was ended because of a limit, or it failed after hitting one.
    LimitHit {
        /// The limit.
        limit: LimitKind,
        /// The exit code as reported by a shell.
        exit_code: u8,
    },
    /// The run was cancelled while the process ran.
    Cancelled,
    /// The process did not start.
    NotStarted {
        /// A human-readable reason.
        reason: String,
        /// The cause.
        fault: StartFault,
    },
}

/// The reason why a command did not start.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum StartFault {
    /// An earlier event, such as a failed step, prevented the start; not an error of this command.
    NotReached,
    /// The tree, or the part of it that the run covers, has no file that the step checks.
    NoFiles,
    /// The program does not exist or is not executable.
    ProgramMissing,
    /// The sandbox could not be set up as the policy requires.
    Sandbox,
    /// The working directory does not exist.
    Workdir,
    /// A file that the step checks is not among its `inputs`.
    NotAnInput,
    /// The cluster did not execute the command, or its report is not valid.
    Remote,
    /// An internal error of Proctor.
    Internal,
}

/// A limit whose violation Proctor can detect. The limit of open files is not included, because the kernel does not
/// count failed opens.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum LimitKind {
    /// Memory.
    Memory,
    /// Number of processes and threads.
    Pids,
    /// Bytes written.
    Disk,
    /// Number of files written. The maximum is derived from the `disk` limit.
    Inodes,
    /// CPU time.
    CpuSeconds,
}

impl LimitKind {
    /// Returns a human-readable name of the limit.
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
    /// Returns the exit code as reported by a shell: the exit status, or 128 + signal. `None` if no process ran or the
    /// run was cancelled.
    pub fn exit_code(&self) -> Option<u8> {
        match self {
            Self::Exited { code } => Some(*code),
            Self::Signaled { signal } => Some(signal.saturating_add(128)),
            Self::TimedOut { exit_code } | Self::LimitHit { exit_code, .. } => Some(*exit_code),
            Self::Cancelled | Self::NotStarted { .. } => None,
        }
    }

    /// Describes the termination as a phrase that follows the name of the command. The phrase contains no text from the
    /// repository and not the reason for [`Termination::NotStarted`]; callers add the reason.
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

/// The outcome of a step or skill.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Outcome {
    /// The step ran to completion with the expected result.
    Passed,
    /// The step ran to completion with an unexpected result.
    Failed,
    /// The step exceeded its timeout.
    TimedOut,
    /// The step changed protected files.
    Drifted,
    /// The step was not started.
    Skipped,
    /// There is no file that the step checks.
    NoFiles,
    /// The run was cancelled.
    Cancelled,
    /// There is no reliable result.
    Inconclusive,
}

impl Outcome {
    /// Returns the word for documents and human-readable output.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Passed => "passed",
            Self::Failed => "failed",
            Self::TimedOut => "timed_out",
            Self::Drifted => "drifted",
            Self::Skipped => "skipped",
            Self::NoFiles => "no_files",
            Self::Cancelled => "cancelled",
            Self::Inconclusive => "inconclusive",
        }
    }

    /// Returns whether the check holds: it passed, or has nothing to check.
    pub fn holds(self) -> bool {
        matches!(self, Self::Passed | Self::NoFiles)
    }

    /// Returns whether the step was left out: it was not reached, or has nothing to check.
    pub fn is_left_out(self) -> bool {
        matches!(self, Self::Skipped | Self::NoFiles)
    }

    /// Returns whether this is a failed check: the step ran, and its result is evidence against the tree.
    pub fn is_failure(self) -> bool {
        matches!(self, Self::Failed | Self::TimedOut | Self::Drifted)
    }
}

/// Violations of the plan by an attempt, independent of its exit code.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Violations {
    /// The attempt made a change that `read_only` forbids.
    pub drifted: bool,
    /// The attempt left processes behind, and `leaks` is `fail`.
    pub leaked: bool,
}

/// Computes the outcome of a step from its last attempt. `expected` contains the exit codes that count as success.
pub fn judge_attempt(termination: &Termination, expected: &[u8], violations: Violations) -> Outcome {
    match termination {
        Termination::Cancelled => Outcome::Cancelled,
        Termination::NotStarted { fault: StartFault::NotReached, .. } => Outcome::Skipped,
        Termination::NotStarted { fault: StartFault::NoFiles, .. } => Outcome::NoFiles,
        Termination::NotStarted { .. } => Outcome::Inconclusive,
        _ if violations.drifted => Outcome::Drifted,
        Termination::TimedOut { .. } => Outcome::TimedOut,
        Termination::Exited { code } if expected.contains(code) && !violations.leaked => Outcome::Passed,
        Termination::Exited { .. } | Termination::Signaled { .. } | Termination::LimitHit { .. } => Outcome::Failed,
    }
}

/// Exit codes of shells for a command that cannot be executed, or that is missing.
const COMMAND_NOT_RUN_CODES: [u8; 2] = [126, 127];

/// Computes the outcome of a `fix` command from its attempt. Tools exit with a failure if problems remain after a fix, and
/// the check that follows reports these. Each exit code therefore counts as success, unless a shell reports that the
/// command did not run.
pub fn judge_fix(termination: &Termination, expected: &[u8], violations: Violations) -> Outcome {
    match termination {
        Termination::Exited { code } if !COMMAND_NOT_RUN_CODES.contains(code) => {
            judge_attempt(termination, &[*code], violations)
        }
        _ => judge_attempt(termination, expected, violations),
    }
}

/// Returns the exit codes with which a command passes, or a `fix` command.
pub fn passing_codes(expected: &[u8], is_fix: bool) -> Vec<u8> {
    let judge = if is_fix { judge_fix } else { judge_attempt };
    let passes = |code: &u8| judge(&Termination::Exited { code: *code }, expected, Violations::default());
    (0..=u8::MAX).filter(|code| passes(code) == Outcome::Passed).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const NONE: Violations = Violations { drifted: false, leaked: false };
    const DRIFT: Violations = Violations { drifted: true, leaked: false };
    const LEAK: Violations = Violations { drifted: false, leaked: true };

    #[test]
    fn codes_that_pass_depend_on_the_purpose() {
        assert_eq!(passing_codes(&[5, 0], false), [0, 5]);
        let fix = passing_codes(&[0, 127], true);
        assert_eq!((fix.len(), fix.contains(&1), fix.contains(&126), fix.contains(&127)), (255, true, false, true));
    }

    #[test]
    fn fix_passes_if_it_ended_by_itself() {
        let of = |termination| judge_fix(&termination, &[0], NONE);
        assert_eq!(of(Termination::Exited { code: 0 }), Outcome::Passed);
        assert_eq!(of(Termination::Exited { code: 1 }), Outcome::Passed);
        assert_eq!(of(Termination::Exited { code: 126 }), Outcome::Failed);
        assert_eq!(of(Termination::Exited { code: 127 }), Outcome::Failed);
        assert_eq!(judge_fix(&Termination::Exited { code: 127 }, &[127], NONE), Outcome::Passed);
        assert_eq!(of(Termination::Signaled { signal: 9 }), Outcome::Failed);
        assert_eq!(of(Termination::TimedOut { exit_code: 143 }), Outcome::TimedOut);
        assert_eq!(of(Termination::LimitHit { limit: LimitKind::Disk, exit_code: 1 }), Outcome::Failed);
        assert_eq!(judge_fix(&Termination::Exited { code: 1 }, &[0], LEAK), Outcome::Failed);
    }

    #[test]
    fn drift_outranks_timeout_and_failure() {
        assert_eq!(judge_attempt(&Termination::Exited { code: 0 }, &[0], DRIFT), Outcome::Drifted);
        assert_eq!(judge_attempt(&Termination::TimedOut { exit_code: 137 }, &[0], DRIFT), Outcome::Drifted);
        assert_eq!(judge_attempt(&Termination::TimedOut { exit_code: 0 }, &[0], NONE), Outcome::TimedOut);
    }

    #[test]
    fn forbidden_leak_only_turns_pass_into_failure() {
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
            let of = |leaked| judge_attempt(termination, &[0], Violations { drifted, leaked });
            let (with, without) = (of(true), of(false));
            assert_ne!(with, Outcome::Passed, "{termination:?}");
            assert!(with == without || (with, without) == (Outcome::Failed, Outcome::Passed), "{termination:?}");
        }
        assert_eq!(judge_attempt(&Termination::Exited { code: 0 }, &[0], LEAK), Outcome::Failed);
    }

    #[test]
    fn signal_fails_even_if_shell_code_is_expected() {
        assert_eq!(judge_attempt(&Termination::Signaled { signal: 9 }, &[137], NONE), Outcome::Failed);
        assert_eq!(Termination::Signaled { signal: 9 }.exit_code(), Some(137));
    }

    #[test]
    fn unstarted_command_is_inconclusive() {
        let missing = Termination::NotStarted { reason: "x".into(), fault: StartFault::ProgramMissing };
        assert_eq!(judge_attempt(&missing, &[0], NONE), Outcome::Inconclusive);
        assert_eq!(missing.exit_code(), None);
    }
}
