//! Names where a step was executed, if not simply on this machine.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::text::digest::Sha256Hex;

/// Where the last attempt of a step was executed. Absent if it was executed on this machine, as planned.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(tag = "kind", rename_all = "snake_case", deny_unknown_fields)]
pub enum StepExecutor {
    /// On a worker of a cluster.
    Remote(Box<RemoteExecution>),
    /// On this machine, because the cluster did not execute it.
    LocalFallback {
        /// The address of the cluster.
        endpoint: String,
        /// The reason why the cluster did not execute the step.
        reason: String,
    },
}

/// An execution on a worker of a cluster.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct RemoteExecution {
    /// The address of the cluster.
    pub endpoint: String,
    /// The name of the instance; absent if it has none.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub instance: String,
    /// The digest of the action: its sha256 and its size.
    pub action: String,
    /// The requested properties of the worker.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub platform: BTreeMap<String, String>,
    /// True if the operator trusts the reports of workers. The report of an untrusted worker proves no pass.
    pub trusted: bool,
    /// The path at which the step saw the tree.
    pub repo: String,
    /// The reason why the worker got no git objects; absent if it got those of HEAD, or if there is no commit.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub no_git_objects: Option<String>,
    /// The worker, as its agent reported it.
    pub worker: WorkerEvidence,
}

/// A worker.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct WorkerEvidence {
    /// The architecture, such as `x86_64`.
    pub architecture: String,
    /// The release of the kernel.
    pub kernel: String,
    /// The operating system, such as `debian 12`; empty if it is not known.
    pub os: String,
    /// The number of processors.
    pub processors: u32,
    /// The programs of the step and of its toolchain checks.
    pub programs: Vec<WorkerProgram>,
    /// The versions of the toolchains that were checked on the worker before the step, by toolchain; `null` if the output
    /// of the check had none.
    pub toolchains: BTreeMap<String, Option<String>>,
}

/// A program on a worker.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct WorkerProgram {
    /// The name in the command.
    pub name: String,
    /// The file of the program; `null` if there is none.
    pub path: Option<String>,
    /// The sha256 of the file; `null` if it cannot be read.
    pub sha256: Option<Sha256Hex>,
}

impl RemoteExecution {
    /// Returns the address of the cluster with its instance, for messages.
    pub fn cluster_name(&self) -> String {
        let instance = Some(&self.instance).filter(|instance| !instance.is_empty());
        let instance = instance.map(|instance| format!(" (instance `{instance}`)")).unwrap_or_default();
        format!("`{}`{instance}", self.endpoint)
    }
}

impl WorkerEvidence {
    /// Returns the first program whose content differs in one of `others` at the same path; `None` if no difference is
    /// known.
    pub fn first_changed_program<'a>(&'a self, others: &[WorkerProgram]) -> Option<&'a str> {
        let differs = |one: &WorkerProgram, other: &WorkerProgram| {
            one.path.is_some() && one.path == other.path && one.sha256 != other.sha256
        };
        let changed = self.programs.iter().find(|one| others.iter().any(|other| differs(one, other)));
        changed.map(|program| program.name.as_str())
    }
}

impl StepExecutor {
    /// Returns where the step was executed, as a phrase.
    pub fn note(&self) -> String {
        match self {
            Self::Remote(remote) => {
                let worker = &remote.worker;
                let system = [worker.os.as_str(), worker.architecture.as_str()];
                let system: Vec<&str> = system.into_iter().filter(|word| !word.is_empty()).collect();
                let missing = remote.no_git_objects.as_ref().map(|reason| format!("; it got no git objects: {reason}"));
                let missing = missing.unwrap_or_default();
                format!("executed on a worker of `{}` ({}){missing}", remote.endpoint, system.join(", "))
            }
            Self::LocalFallback { endpoint, reason } => {
                let cluster = if reason.contains(endpoint) { String::new() } else { format!(" `{endpoint}`") };
                format!("executed on this machine, because the cluster{cluster} did not execute it: {reason}")
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn remote() -> RemoteExecution {
        RemoteExecution {
            endpoint: "grpcs://cluster:1".to_owned(),
            instance: String::new(),
            action: "00/1".to_owned(),
            platform: BTreeMap::new(),
            trusted: true,
            repo: "/srv/r".to_owned(),
            no_git_objects: None,
            worker: WorkerEvidence {
                architecture: "aarch64".to_owned(),
                kernel: "6.8.0".to_owned(),
                os: "debian 12".to_owned(),
                processors: 8,
                programs: Vec::new(),
                toolchains: BTreeMap::new(),
            },
        }
    }

    #[test]
    fn note_names_worker_or_reason() {
        let note = StepExecutor::Remote(Box::new(remote())).note();
        assert_eq!(note, "executed on a worker of `grpcs://cluster:1` (debian 12, aarch64)");
        let without = RemoteExecution { no_git_objects: Some("too many".to_owned()), ..remote() };
        let note = StepExecutor::Remote(Box::new(without)).note();
        assert!(note.ends_with(" (debian 12, aarch64); it got no git objects: too many"), "{note}");
        let fallback =
            StepExecutor::LocalFallback { endpoint: "grpc://e".to_owned(), reason: "it is unavailable".to_owned() };
        assert_eq!(
            fallback.note(),
            "executed on this machine, because the cluster `grpc://e` did not execute it: it is unavailable"
        );
    }

    #[test]
    fn program_with_another_content_at_its_path_has_changed() {
        let program = |path: Option<&str>, content: Option<&str>| WorkerProgram {
            name: "cc".to_owned(),
            path: path.map(str::to_owned),
            sha256: content.map(|content| Sha256Hex::digest(content.as_bytes())),
        };
        let worker = |programs: &[WorkerProgram]| WorkerEvidence { programs: programs.to_vec(), ..remote().worker };
        let known = worker(&[program(Some("/bin/cc"), Some("1"))]);
        assert_eq!(known.first_changed_program(&[]), None);
        assert_eq!(known.first_changed_program(&[program(Some("/bin/cc"), Some("1"))]), None);
        assert_eq!(known.first_changed_program(&[program(Some("/opt/cc"), Some("2"))]), None);
        assert_eq!(known.first_changed_program(&[program(Some("/bin/cc"), Some("2"))]), Some("cc"));
        assert_eq!(known.first_changed_program(&[program(Some("/bin/cc"), None)]), Some("cc"), "it is unreadable now");
        assert_eq!(worker(&[program(None, None)]).first_changed_program(&[program(None, None)]), None);
    }

    #[test]
    fn survives_encoding() {
        for executor in [
            StepExecutor::Remote(Box::new(remote())),
            StepExecutor::LocalFallback { endpoint: "e".to_owned(), reason: "r".to_owned() },
        ] {
            let text = serde_json::to_string(&executor).expect("writes");
            assert_eq!(serde_json::from_str::<StepExecutor>(&text).expect("reads"), executor);
        }
    }
}
