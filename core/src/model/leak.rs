//! Describes the processes that a command leaves behind when it ends.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::text::escape::escape_output;

/// Maximum number of processes that a record names.
pub const MAX_NAMED: usize = 8;
/// The number at which the count of processes stops.
pub const MAX_COUNTED: u64 = 1_000;
/// Maximum number of bytes of a process name that are kept. The kernel keeps 15.
const MAX_NAME_BYTES: usize = 64;

/// The processes that were still alive a short time after the command had ended. The sandbox kills them.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct LeakedProcesses {
    /// Number of processes; at least 1. Zombies do not count.
    pub processes: u64,
    /// True if there may be more: the count stops at 1,000, and processes that cannot be listed count as one.
    pub at_least: bool,
    /// The processes with the lowest ids, at most 8.
    pub first: Vec<LeakedProcess>,
}

/// A process that was left behind.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema)]
pub struct LeakedProcess {
    /// The process id in `/proc` of the sandbox.
    pub pid: u32,
    /// The process name (`comm` of proc(5)), which the process chooses. Control characters are escaped.
    pub name: String,
}

impl LeakedProcesses {
    /// Creates the value for processes that cannot be listed.
    pub fn unlisted() -> Self {
        Self { processes: 1, at_least: true, first: Vec::new() }
    }

    /// Creates the value for `processes` living processes; `named` contains the first ones.
    pub fn new(processes: u64, mut named: Vec<LeakedProcess>) -> Self {
        if processes == 0 {
            return Self::unlisted();
        }
        named.sort();
        named.truncate(MAX_NAMED);
        Self { processes: processes.min(MAX_COUNTED), at_least: processes >= MAX_COUNTED, first: named }
    }

    /// Returns the number in words: `3 processes`, `at least 1000 processes`.
    pub fn count_phrase(&self) -> String {
        let least = if self.at_least { "at least " } else { "" };
        let plural = if self.processes == 1 { "" } else { "es" };
        format!("{least}{} process{plural}", self.processes)
    }

    /// Returns what the command did as a phrase with names and ids: ``left 1 process behind: `sleep` (pid 3)``.
    pub fn phrase(&self) -> String {
        self.phrase_with(|process| format!("`{}` (pid {})", process.name, process.pid))
    }

    /// Returns the same phrase without the process ids, which differ between runs.
    pub fn phrase_without_ids(&self) -> String {
        self.phrase_with(|process| format!("`{}`", process.name))
    }

    fn phrase_with(&self, describe: impl Fn(&LeakedProcess) -> String) -> String {
        let number = self.count_phrase();
        let named: Vec<String> = self.first.iter().map(describe).collect();
        if named.is_empty() {
            return format!("left {number} running, which could not be listed");
        }
        let more = match self.processes.saturating_sub(named.len() as u64) {
            0 => String::new(),
            unnamed => format!(" and {unnamed} more"),
        };
        format!("left {number} behind: {}{more}", named.join(", "))
    }
}

impl LeakedProcess {
    /// Creates the value from the bytes of the process name.
    pub fn new(pid: u32, comm: &[u8]) -> Self {
        let kept = &comm[..comm.len().min(MAX_NAME_BYTES)];
        let name = escape_output(kept).replace('\n', "\\x0a").replace('\t', "\\x09");
        Self { pid, name }
    }
}

/// The hint for the author of a spec about processes that a step leaves behind.
pub const LEAK_HINT: &str = "make the command stop the processes that it starts and wait for them; `leaks: warn` reports such processes and lets the step pass";

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::model::outcome::{Outcome, Termination};
    use crate::model::plan::Leaks;

    fn processes(number: u64) -> LeakedProcesses {
        let named = (0..number).map(|pid| LeakedProcess::new(u32::try_from(pid + 2).expect("small"), b"sleep"));
        LeakedProcesses::new(number, named.collect())
    }

    #[test]
    fn describes_number_and_names() {
        assert_eq!(processes(1).phrase(), "left 1 process behind: `sleep` (pid 2)");
        assert_eq!(processes(2).phrase_without_ids(), "left 2 processes behind: `sleep`, `sleep`");
        assert!(processes(10).phrase().ends_with("`sleep` (pid 9) and 2 more"), "{}", processes(10).phrase());
        assert!(processes(5_000).phrase().starts_with("left at least 1000 processes behind: "));
        let unlisted = LeakedProcesses::new(0, vec![]);
        assert_eq!(unlisted.phrase(), "left at least 1 process running, which could not be listed");
    }

    #[test]
    fn reports_forbidden_leak_only_for_expected_exit() {
        let log = include_str!("../../../fixtures/logs/passed.jsonl");
        let finished_step = |line: &str| match serde_json::from_str(line).expect("an event") {
            crate::model::event::RunEvent::StepFinished { step, .. } => Some(step),
            _ => None,
        };
        let mut step = log.lines().find_map(finished_step).expect("a step");
        assert_eq!((&step.leaked, step.planned.leaks), (&None, Leaks::Warn), "as in records of earlier versions");
        assert!(!serde_json::to_string(&step).expect("serialises").contains("leak"));
        step.leaked = Some(processes(1));
        assert_eq!(step.leak_warning().as_deref(), Some("passed and left 1 process behind: `sleep` (pid 2)"));
        (step.outcome, step.planned.leaks) = (Outcome::Failed, Leaks::Fail);
        assert_eq!((step.forbidden_leak(), step.leak_warning()), (Some(&processes(1)), None));
        step.termination = Termination::Exited { code: 7 };
        assert_eq!(step.forbidden_leak(), None);
    }

    #[test]
    fn escapes_process_names() {
        let name = |comm: &[u8]| LeakedProcess::new(2, comm).name;
        assert_eq!(name(b"a\n\x1b[31m\t\xff"), "a\\x0a\\x1b[31m\\x09\\xff");
        assert_eq!(name("\u{202e}x".as_bytes()), "\\u{202e}x");
    }

    proptest! {
        #[test]
        fn record_is_bounded_and_escaped(comms in proptest::collection::vec(any::<Vec<u8>>(), 0..40), number in 0..u64::MAX) {
            let named = comms.iter().zip(2..).map(|(comm, pid)| LeakedProcess::new(pid, comm)).collect();
            let leaked = LeakedProcesses::new(number, named);
            prop_assert!(leaked.first.len() <= MAX_NAMED && (1..=MAX_COUNTED).contains(&leaked.processes));
            prop_assert!(!leaked.phrase().contains(crate::text::safe_text::affects_display));
            let json = serde_json::to_string(&leaked).expect("serialises");
            prop_assert_eq!(serde_json::from_str::<LeakedProcesses>(&json).expect("deserialises"), leaked);
        }
    }
}
