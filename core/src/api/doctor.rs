//! The response to `GET /v1/doctor`: the sandbox controls that the daemon's machine can enforce.

use std::collections::BTreeSet;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::model::enforcement::{Control, Enforcement, SandboxMode, Tolerated};
use crate::spec::ExecutorMode;
use crate::text::digest::Sha256Hex;

/// The response to `GET /v1/doctor`: the sandbox controls for the repository, determined by setting up a sandbox once
/// on the daemon's machine.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct DoctorAnswer {
    /// True if the daemon sets up sandboxes as the host's root user.
    pub root: bool,
    /// The account of steps in this repository; `null` if no step can run.
    pub user: Option<StepAccount>,
    /// The parent of the control groups; `null` if control groups are not available.
    pub control_groups: Option<String>,
    /// The controls that were enforced in best-effort mode; empty if the set-up failed.
    pub enforcement: Enforcement,
    /// The reasons why no step can run; empty if steps can run.
    pub findings: Vec<DoctorFinding>,
    /// The directory with outputs, and with evidence of runs without a changeset.
    pub state_dir: String,
    /// The controls that the operator allows to be missing.
    pub may_miss: BTreeSet<Control>,
    /// True if the operator allows the sandbox mode `best_effort`.
    pub allows_best_effort: bool,
    /// The reason why no command can run on a view of the host, which records what the command reads; `null` if commands
    /// can.
    #[serde(default)]
    pub no_view: Option<String>,
    /// The private copies of the repository, each compared with its record; `null` unless `deep` was requested.
    #[serde(default)]
    pub copies: Option<Vec<CopyReport>>,
    /// The check of the remote cache; `null` if none is configured.
    #[serde(default)]
    pub remote_cache: Option<RemoteCacheCheck>,
    /// The check of the remote executor; `null` if none is configured.
    #[serde(default)]
    pub remote_executor: Option<RemoteExecutorCheck>,
}

/// The check of the cluster that executes steps.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct RemoteExecutorCheck {
    /// The server.
    pub endpoint: String,
    /// Where steps run.
    pub mode: ExecutorMode,
    /// True if a step can pass on the report of a worker.
    pub trust_workers: bool,
    /// The reason why the cluster executes no steps; `null` if it does.
    pub problem: Option<String>,
}

impl RemoteExecutorCheck {
    /// Returns the check as a phrase.
    pub fn phrase(&self) -> String {
        let mode = match self.mode {
            ExecutorMode::Local => "not used, because `mode` is `local`",
            ExecutorMode::Remote => "steps run on workers only",
            ExecutorMode::Hybrid => "steps run on workers, or here if that fails",
        };
        let trust =
            if self.trust_workers { "workers are trusted" } else { "workers are not trusted, so no step passes" };
        match &self.problem {
            Some(problem) => format!("{}; does not work: {problem}", self.endpoint),
            None if self.mode == ExecutorMode::Local => format!("{}; {mode}", self.endpoint),
            None => format!("{}; {mode}; {trust}", self.endpoint),
        }
    }
}

/// The check of the server through which machines share results.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct RemoteCacheCheck {
    /// The server.
    pub endpoint: String,
    /// The key that signs results of this machine; `null` if it stores none.
    pub signing_key: Option<Sha256Hex>,
    /// The keys whose results are used.
    pub trusted_keys: Vec<Sha256Hex>,
    /// The reason why results are not shared; `null` if they are.
    pub problem: Option<String>,
}

impl RemoteCacheCheck {
    /// Returns the check as a phrase.
    pub fn phrase(&self) -> String {
        if let Some(problem) = &self.problem {
            return format!("{}; not used: {problem}", self.endpoint);
        }
        let short = |key: &Sha256Hex| key.prefix(16);
        let trusted = self.trusted_keys.iter().map(short).collect::<Vec<_>>().join(", ");
        let trusted = if trusted.is_empty() { "no key is trusted".to_owned() } else { format!("trusts {trusted}") };
        let writes = match &self.signing_key {
            Some(key) => format!("writes with key {}", short(key)),
            None => "does not write".to_owned(),
        };
        format!("{}; {trusted}; {writes}", self.endpoint)
    }
}

/// The scope of a doctor request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DoctorScope {
    /// The sandbox controls of the machine.
    Machine,
    /// Also the private copies of the repository. Damaged copies are removed.
    MachineAndCopies,
}

impl DoctorScope {
    /// Returns the scope for the option `deep`.
    pub fn from_deep(deep: bool) -> Self {
        if deep { Self::MachineAndCopies } else { Self::Machine }
    }
}

/// A private copy of a worktree, and its comparison with its record.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct CopyReport {
    /// Path of the copy, relative to the state directory.
    pub copy: String,
    /// The result of the comparison.
    pub state: CopyState,
    /// The damaged path and the damage, or the reason why the copy could not be compared; `null` for a sound or held
    /// copy.
    pub problem: Option<String>,
    /// True if the copy was removed; the next run creates it again.
    pub removed: bool,
}

/// The state of a private copy.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum CopyState {
    /// All files match the record.
    Sound,
    /// A run uses the copy, so it was not compared.
    Held,
    /// A file does not match the record.
    Damaged,
    /// The copy could not be compared because of an error.
    Unverified,
}

/// The account of a step.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct StepAccount {
    /// User ID.
    pub uid: u32,
    /// Group ID.
    pub gid: u32,
}

/// A missing prerequisite for running steps.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct DoctorFinding {
    /// The affected control, if any.
    pub control: Option<Control>,
    /// The failed operation and the error of the system.
    pub message: String,
    /// How to fix the problem; empty if unknown.
    pub hint: String,
}

impl DoctorAnswer {
    /// Returns the controls that may be missing in sandbox mode `mode`; `None` if the operator does not allow the mode.
    pub fn tolerated_controls(&self, mode: SandboxMode) -> Option<Tolerated> {
        match mode {
            SandboxMode::Strict => Some(self.may_miss.iter().copied().collect()),
            SandboxMode::BestEffort => self.allows_best_effort.then(Tolerated::all),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tolerates_only_controls_that_operator_allows() {
        let mut answer = DoctorAnswer {
            root: false,
            user: Some(StepAccount { uid: 7, gid: 7 }),
            control_groups: None,
            enforcement: Enforcement::default(),
            findings: Vec::new(),
            state_dir: "/s".into(),
            may_miss: [Control::Cgroup].into(),
            allows_best_effort: true,
            no_view: Some("no device".into()),
            copies: None,
            remote_cache: None,
            remote_executor: None,
        };
        assert_eq!(answer.tolerated_controls(SandboxMode::Strict), Some(Tolerated::default()));
        assert_eq!(answer.tolerated_controls(SandboxMode::BestEffort), Some(Tolerated::all()));
        answer.allows_best_effort = false;
        assert_eq!(answer.tolerated_controls(SandboxMode::BestEffort), None);
        let text = serde_json::to_string(&answer).expect("writes");
        assert_eq!(serde_json::from_str::<DoctorAnswer>(&text).expect("reads"), answer);
    }

    #[test]
    fn phrase_of_the_remote_executor_names_mode_or_the_problem() {
        let check = RemoteExecutorCheck {
            endpoint: "grpcs://cluster:1".to_owned(),
            mode: ExecutorMode::Hybrid,
            trust_workers: true,
            problem: None,
        };
        let expected = "grpcs://cluster:1; steps run on workers, or here if that fails; workers are trusted";
        assert_eq!(check.phrase(), expected);
        let unavailable = RemoteExecutorCheck { problem: Some("it is unavailable".to_owned()), ..check.clone() };
        assert_eq!(unavailable.phrase(), "grpcs://cluster:1; does not work: it is unavailable");
        let untrusted = RemoteExecutorCheck { trust_workers: false, mode: ExecutorMode::Remote, ..check };
        assert!(untrusted.phrase().ends_with("workers are not trusted, so no step passes"), "{}", untrusted.phrase());
    }

    #[test]
    fn phrase_of_the_remote_cache_names_keys_or_the_problem() {
        let key = Sha256Hex::digest(b"");
        let check = RemoteCacheCheck {
            endpoint: "grpcs://cache:1".to_owned(),
            signing_key: None,
            trusted_keys: vec![key.clone()],
            problem: None,
        };
        assert_eq!(check.phrase(), "grpcs://cache:1; trusts e3b0c44298fc1c14; does not write");
        let writing = RemoteCacheCheck { signing_key: Some(key), trusted_keys: Vec::new(), ..check.clone() };
        assert_eq!(writing.phrase(), "grpcs://cache:1; no key is trusted; writes with key e3b0c44298fc1c14");
        let unavailable = RemoteCacheCheck { problem: Some("it is unavailable".to_owned()), ..check };
        assert_eq!(unavailable.phrase(), "grpcs://cache:1; not used: it is unavailable");
    }
}
