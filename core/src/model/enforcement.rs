//! Sandbox controls: which ones an attempt requires, and which ones were enforced.

use std::collections::{BTreeMap, BTreeSet};

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// One guarantee of the sandbox.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Control {
    /// The step has no capabilities over host resources and never runs as the host's user 0.
    UserNamespace,
    /// The step has a private mount table.
    MountNamespace,
    /// The step can only see and signal its own processes, and they all end with it.
    PidNamespace,
    /// The step has an isolated network. Not requested for `network: allow`.
    NetworkNamespace,
    /// The step has private System V IPC objects and message queues.
    IpcNamespace,
    /// The step has a private host name.
    UtsNamespace,
    /// The step's view of cgroups is rooted at its own cgroup.
    CgroupNamespace,
    /// The step cannot write outside the tree and its scratch directories.
    ReadOnlyRoot,
    /// Home directories, runtime sockets, other repositories and Proctor's state are hidden.
    HiddenPaths,
    /// The step has a new /proc.
    PrivateProc,
    /// The step has a minimal /dev.
    PrivateDev,
    /// The step has private /tmp, /var/tmp and /dev/shm of limited size.
    PrivateTmp,
    /// The step's writes to the tree go to a separate layer.
    Layer,
    /// The git directory is read-only.
    GitReadOnly,
    /// The environment is cleared and rebuilt by Proctor.
    CleanEnvironment,
    /// The step inherits no file descriptors of Proctor.
    CloseFds,
    /// The step cannot gain privileges by executing a file.
    NoNewPrivs,
    /// The step has no capabilities.
    NoCapabilities,
    /// The step runs in a new session without a controlling terminal.
    NewSession,
    /// The size of the step's layer and scratch directories is limited.
    DiskLimit,
    /// The number of processes and threads is limited.
    PidsLimit,
    /// Memory is limited. Requested only if the plan sets a limit.
    MemoryLimit,
    /// CPU time is limited. Requested only if the plan sets a limit.
    CpuLimit,
    /// The number of open files is limited.
    OpenFilesLimit,
    /// The step runs in a separate control group, through which the kernel accounts and limits all of its processes
    /// together.
    Cgroup,
    /// System calls that checks do not need are denied: unusual address families, io_uring, bpf, keyrings, mounts,
    /// namespaces, 32-bit system calls.
    SyscallFilter,
    /// Landlock restricts files, abstract sockets and signals as a second layer of defense.
    Landlock,
    /// Host information in /proc and /sys is masked, and kernel settings are read-only.
    KernelFiles,
    /// The host's keyrings are inaccessible.
    Keyring,
    /// The host's abstract sockets are inaccessible.
    AbstractSockets,
}

impl Control {
    /// All controls.
    pub const ALL: [Self; 30] = [
        Self::UserNamespace,
        Self::MountNamespace,
        Self::PidNamespace,
        Self::NetworkNamespace,
        Self::IpcNamespace,
        Self::UtsNamespace,
        Self::CgroupNamespace,
        Self::ReadOnlyRoot,
        Self::HiddenPaths,
        Self::PrivateProc,
        Self::PrivateDev,
        Self::PrivateTmp,
        Self::Layer,
        Self::GitReadOnly,
        Self::CleanEnvironment,
        Self::CloseFds,
        Self::NoNewPrivs,
        Self::NoCapabilities,
        Self::NewSession,
        Self::DiskLimit,
        Self::PidsLimit,
        Self::MemoryLimit,
        Self::CpuLimit,
        Self::OpenFilesLimit,
        Self::Cgroup,
        Self::SyscallFilter,
        Self::Landlock,
        Self::KernelFiles,
        Self::Keyring,
        Self::AbstractSockets,
    ];

    /// Returns whether a plan can make the control unnecessary, by allowing the network or by setting no such limit.
    pub fn is_optional(self) -> bool {
        matches!(
            self,
            Self::NetworkNamespace
                | Self::DiskLimit
                | Self::PidsLimit
                | Self::MemoryLimit
                | Self::CpuLimit
                | Self::OpenFilesLimit
        )
    }

    /// Returns the word for documents and human-readable output.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::UserNamespace => "user_namespace",
            Self::MountNamespace => "mount_namespace",
            Self::PidNamespace => "pid_namespace",
            Self::NetworkNamespace => "network_namespace",
            Self::IpcNamespace => "ipc_namespace",
            Self::UtsNamespace => "uts_namespace",
            Self::CgroupNamespace => "cgroup_namespace",
            Self::ReadOnlyRoot => "read_only_root",
            Self::HiddenPaths => "hidden_paths",
            Self::PrivateProc => "private_proc",
            Self::PrivateDev => "private_dev",
            Self::PrivateTmp => "private_tmp",
            Self::Layer => "layer",
            Self::GitReadOnly => "git_read_only",
            Self::CleanEnvironment => "clean_environment",
            Self::CloseFds => "close_fds",
            Self::NoNewPrivs => "no_new_privs",
            Self::NoCapabilities => "no_capabilities",
            Self::NewSession => "new_session",
            Self::DiskLimit => "disk_limit",
            Self::PidsLimit => "pids_limit",
            Self::MemoryLimit => "memory_limit",
            Self::CpuLimit => "cpu_limit",
            Self::OpenFilesLimit => "open_files_limit",
            Self::Cgroup => "cgroup",
            Self::SyscallFilter => "syscall_filter",
            Self::Landlock => "landlock",
            Self::KernelFiles => "kernel_files",
            Self::Keyring => "keyring",
            Self::AbstractSockets => "abstract_sockets",
        }
    }
}

/// The state of a control in one attempt.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(tag = "state", rename_all = "snake_case")]
pub enum ControlState {
    /// The policy did not request the control.
    NotRequested {
        /// A human-readable reason.
        reason: String,
    },
    /// The control was requested and enforced.
    Enforced {
        /// The mechanism, such as `overlayfs on tmpfs`.
        mechanism: String,
    },
    /// The control was requested but could not be enforced.
    NotEnforced {
        /// A human-readable reason that includes the kernel's error.
        reason: String,
        /// How to make the control available, if that is possible.
        hint: Option<String>,
    },
}

/// The states of all controls, recorded by the code that set them up, after it did so.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(transparent)]
#[schemars(extend("propertyNames" = Control::json_schema(&mut schemars::SchemaGenerator::default())))]
pub struct Enforcement(pub BTreeMap<Control, ControlState>);

impl Enforcement {
    /// Records that `control` is enforced by `mechanism`, unless a part of it is already recorded as missing.
    pub fn record_enforced(&mut self, control: Control, mechanism: impl Into<String>) {
        if !matches!(self.0.get(&control), Some(ControlState::NotEnforced { .. })) {
            self.0.insert(control, ControlState::Enforced { mechanism: mechanism.into() });
        }
    }

    /// Records that `control` was requested but is not enforced.
    pub fn record_not_enforced(&mut self, control: Control, reason: impl Into<String>) {
        self.0.insert(control, ControlState::NotEnforced { reason: reason.into(), hint: None });
    }

    /// Records that `control` was requested but is not enforced, with a hint on how to make it available.
    pub fn record_not_enforced_with_hint(
        &mut self,
        control: Control,
        reason: impl Into<String>,
        hint: impl Into<String>,
    ) {
        let hint = Some(hint.into()).filter(|hint| !hint.is_empty());
        self.0.insert(control, ControlState::NotEnforced { reason: reason.into(), hint });
    }

    /// Adds the results of a later stage of the set-up. A control with a missing part stays missing.
    pub fn merge(&mut self, later: Self) {
        for (control, state) in later.0 {
            match state {
                ControlState::Enforced { mechanism } => self.record_enforced(control, mechanism),
                other => drop(self.0.insert(control, other)),
            }
        }
    }

    /// Returns whether `control` is recorded as enforced.
    pub fn is_enforced(&self, control: Control) -> bool {
        matches!(self.0.get(&control), Some(ControlState::Enforced { .. }))
    }

    /// Records that `control` was not requested.
    pub fn record_not_requested(&mut self, control: Control, reason: impl Into<String>) {
        self.0.insert(control, ControlState::NotRequested { reason: reason.into() });
    }

    /// Returns the controls that are not known to be enforced. These are controls that were requested but are neither
    /// enforced nor `tolerated`, mandatory controls that were not requested, and controls without a record. A command
    /// that ran with such a gap was less isolated than promised.
    pub fn gaps<'a>(&'a self, tolerated: &'a Tolerated) -> impl Iterator<Item = Control> + 'a {
        Control::ALL.into_iter().filter(|control| match self.0.get(control) {
            Some(ControlState::Enforced { .. }) => false,
            Some(ControlState::NotRequested { .. }) => !control.is_optional(),
            Some(ControlState::NotEnforced { .. }) => !tolerated.contains(*control),
            None => true,
        })
    }

    /// Returns the controls that were requested but are not enforced, with the reasons.
    pub fn missing(&self) -> impl Iterator<Item = (Control, &str)> {
        self.0.iter().filter_map(|(control, state)| match state {
            ControlState::NotEnforced { reason, .. } => Some((*control, reason.as_str())),
            _ => None,
        })
    }

    /// Returns how to make a missing control available, if that is known.
    pub fn hint(&self, control: Control) -> Option<&str> {
        match self.0.get(&control) {
            Some(ControlState::NotEnforced { hint, .. }) => hint.as_deref(),
            _ => None,
        }
    }
}

/// How to handle missing controls, as chosen by the caller. A spec cannot set it.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum SandboxMode {
    /// Steps run only with all controls that the operator requires.
    #[default]
    Strict,
    /// Steps run with the controls that are available; the record and the tier show which ones are missing.
    BestEffort,
}

/// The controls that may be missing. A missing one is recorded and raises the tier, but the step still runs.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(transparent)]
pub struct Tolerated(BTreeSet<Control>);

/// The default if the operator sets none: all controls except the control group are required.
impl Default for Tolerated {
    fn default() -> Self {
        Self([Control::Cgroup].into())
    }
}

impl Tolerated {
    /// Tolerates any missing control: the caller's `--sandbox=best-effort`.
    pub fn all() -> Self {
        Self(Control::ALL.into())
    }

    /// Returns the controls that may be missing.
    pub fn controls(&self) -> impl Iterator<Item = Control> + '_ {
        self.0.iter().copied()
    }

    /// Returns whether `control` may be missing.
    pub fn contains(&self, control: Control) -> bool {
        self.0.contains(&control)
    }
}

impl FromIterator<Control> for Tolerated {
    fn from_iter<I: IntoIterator<Item = Control>>(controls: I) -> Self {
        Self(controls.into_iter().collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reports_hint_for_missing_control() {
        let mut enforcement = Enforcement::default();
        enforcement.record_not_enforced_with_hint(Control::Landlock, "no", "boot with it");
        enforcement.record_enforced(Control::Landlock, "what came before counts");
        enforcement.record_not_enforced(Control::Layer, "no");
        enforcement.record_not_enforced_with_hint(Control::Cgroup, "no", "");
        let hints = [Control::Landlock, Control::Layer, Control::Cgroup].map(|control| enforcement.hint(control));
        assert_eq!(hints, [Some("boot with it"), None, None]);
        assert_eq!(enforcement.missing().count(), 3);
    }

    #[test]
    fn merge_keeps_missing_controls_missing() {
        let (mut before, mut later) = (Enforcement::default(), Enforcement::default());
        before.record_not_enforced(Control::Layer, "no");
        before.record_enforced(Control::Landlock, "x");
        later.record_enforced(Control::Layer, "y");
        later.record_enforced(Control::PrivateTmp, "y");
        later.record_not_enforced(Control::Landlock, "gone");
        before.merge(later);
        let holds = [Control::Layer, Control::PrivateTmp, Control::Landlock].map(|control| before.is_enforced(control));
        assert_eq!(holds, [false, true, false]);
    }

    #[test]
    fn unrecorded_controls_are_gaps() {
        let strict = Tolerated::default();
        let mut enforcement = Enforcement::default();
        assert_eq!(enforcement.gaps(&strict).count(), Control::ALL.len());
        assert_eq!(enforcement.gaps(&Tolerated::all()).count(), Control::ALL.len());
        for control in Control::ALL {
            enforcement.record_enforced(control, "x");
        }
        assert_eq!(enforcement.gaps(&strict).count(), 0);
        enforcement.record_not_requested(Control::MemoryLimit, "the plan sets no limit");
        assert_eq!(enforcement.gaps(&strict).count(), 0);
        enforcement.record_not_requested(Control::PidNamespace, "x");
        enforcement.record_not_enforced(Control::Layer, "x");
        enforcement.record_not_enforced(Control::Cgroup, "x");
        assert_eq!(enforcement.gaps(&strict).collect::<Vec<_>>(), [Control::PidNamespace, Control::Layer]);
        let everything = Tolerated::all();
        assert_eq!(enforcement.gaps(&everything).collect::<Vec<_>>(), [Control::PidNamespace]);
    }
}
