//! What must hold for an attempt, and what the kernel was in fact made to enforce.

use std::collections::{BTreeMap, BTreeSet};

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// One guarantee of the sandbox.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Control {
    /// The step has no capability over anything of the host, and is never host uid 0.
    UserNamespace,
    /// Its mounts are its own.
    MountNamespace,
    /// It sees and reaches its own processes only, and they all end with it.
    PidNamespace,
    /// It sees its own network only. Not requested under `network: allow`.
    NetworkNamespace,
    /// Its System V IPC and message queues are its own.
    IpcNamespace,
    /// Its host name is its own.
    UtsNamespace,
    /// Its view of cgroups starts at its own.
    CgroupNamespace,
    /// Nothing outside the tree and its scratch directories can be written.
    ReadOnlyRoot,
    /// Homes, run-time sockets, other repositories and our own state cannot be seen.
    HiddenPaths,
    /// A fresh /proc.
    PrivateProc,
    /// A minimal /dev.
    PrivateDev,
    /// Its own /tmp, /var/tmp and /dev/shm, bounded.
    PrivateTmp,
    /// Its writes to the tree go to a layer of its own.
    Layer,
    /// The git directory is read-only.
    GitReadOnly,
    /// The environment was cleared and built by us.
    CleanEnvironment,
    /// No file of ours is open in it.
    CloseFds,
    /// It cannot gain privileges by executing a file.
    NoNewPrivs,
    /// It has no capabilities.
    NoCapabilities,
    /// A session of its own, without a controlling terminal.
    NewSession,
    /// Its layer and its scratch directories are bounded.
    DiskLimit,
    /// Processes and threads are bounded.
    PidsLimit,
    /// Memory is bounded. Requested only where the plan bounds it.
    MemoryLimit,
    /// CPU time is bounded. Requested only where the plan bounds it.
    CpuLimit,
    /// Open files are bounded.
    OpenFilesLimit,
    /// A group of processes of its own, by which the kernel counts and bounds it as a whole.
    Cgroup,
    /// System calls that no check needs are refused: other address families, io_uring, bpf,
    /// keyrings, mounts, namespaces, 32-bit entry.
    SyscallFilter,
    /// A second wall around files, abstract sockets and signals.
    Landlock,
    /// What the kernel shows of the host in /proc and /sys is masked, its settings read-only.
    KernelFiles,
    /// The host's keyrings cannot be reached.
    Keyring,
    /// Sockets of the host that have no path cannot be reached.
    AbstractSockets,
}

impl Control {
    /// Every control.
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

    /// Whether a plan may leave it out: it allows the network, or sets no such limit.
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

    /// The word of the documents and of the screen.
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

/// What became of one control.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(tag = "state", rename_all = "snake_case")]
pub enum ControlState {
    /// The policy did not ask for it.
    NotRequested {
        /// Why not, as a phrase for people.
        reason: String,
    },
    /// It was asked for, and done.
    Enforced {
        /// By what, such as `overlayfs on tmpfs`.
        mechanism: String,
    },
    /// It was asked for, and could not be had.
    NotEnforced {
        /// Why not, with the kernel's answer, as a phrase for people.
        reason: String,
        /// How to have it, where somebody can do something about it.
        hint: Option<String>,
    },
}

/// What the kernel was made to enforce, control by control: recorded by whoever did it, after
/// it was done.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(transparent)]
#[schemars(extend("propertyNames" = Control::json_schema(&mut schemars::SchemaGenerator::default())))]
pub struct Enforcement(pub BTreeMap<Control, ControlState>);

impl Enforcement {
    /// Records that `control` holds by `mechanism`, unless a part of it was missing before.
    pub fn enforced(&mut self, control: Control, mechanism: impl Into<String>) {
        if !matches!(self.0.get(&control), Some(ControlState::NotEnforced { .. })) {
            self.0.insert(control, ControlState::Enforced { mechanism: mechanism.into() });
        }
    }

    /// Records that `control` was asked for and does not hold.
    pub fn not_enforced(&mut self, control: Control, reason: impl Into<String>) {
        self.0.insert(control, ControlState::NotEnforced { reason: reason.into(), hint: None });
    }

    /// Records that `control` was asked for and does not hold, and how it could be had.
    pub fn not_enforced_unless(&mut self, control: Control, reason: impl Into<String>, hint: impl Into<String>) {
        let hint = Some(hint.into()).filter(|hint| !hint.is_empty());
        self.0.insert(control, ControlState::NotEnforced { reason: reason.into(), hint });
    }

    /// Takes in what holds by what was done later. A part that was missing before stays missing.
    pub fn add(&mut self, later: Self) {
        for (control, state) in later.0 {
            match state {
                ControlState::Enforced { mechanism } => self.enforced(control, mechanism),
                other => drop(self.0.insert(control, other)),
            }
        }
    }

    /// Whether `control` is known to hold.
    pub fn holds(&self, control: Control) -> bool {
        matches!(self.0.get(&control), Some(ControlState::Enforced { .. }))
    }

    /// Records that `control` was not asked for.
    pub fn not_requested(&mut self, control: Control, reason: impl Into<String>) {
        self.0.insert(control, ControlState::NotRequested { reason: reason.into() });
    }

    /// The controls of which it is not known that they hold: asked for, not had and not
    /// `tolerated`, left out although only a plan may leave them out, or not spoken of at all. A
    /// command that ran with one of these ran on less than was promised.
    pub fn gaps<'a>(&'a self, tolerated: &'a Tolerated) -> impl Iterator<Item = Control> + 'a {
        Control::ALL.into_iter().filter(|control| match self.0.get(control) {
            Some(ControlState::Enforced { .. }) => false,
            Some(ControlState::NotRequested { .. }) => !control.is_optional(),
            Some(ControlState::NotEnforced { .. }) => !tolerated.contains(*control),
            None => true,
        })
    }

    /// The controls that were asked for and do not hold, with the reason.
    pub fn missing(&self) -> impl Iterator<Item = (Control, &str)> {
        self.0.iter().filter_map(|(control, state)| match state {
            ControlState::NotEnforced { reason, .. } => Some((*control, reason.as_str())),
            _ => None,
        })
    }

    /// How a control that does not hold could be had, where that is known.
    pub fn hint(&self, control: Control) -> Option<&str> {
        match self.0.get(&control) {
            Some(ControlState::NotEnforced { hint, .. }) => hint.as_deref(),
            _ => None,
        }
    }
}

/// What a caller wants to be done where controls are missing. A spec cannot ask for it.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum SandboxMode {
    /// Nothing runs with less than the operator demands.
    #[default]
    Strict,
    /// What runs, runs with whatever can be had; the record and the tier say with how little.
    BestEffort,
}

/// The controls that may be missing. A missing one is recorded and raises the tier; it does not
/// refuse the step.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(transparent)]
pub struct Tolerated(BTreeSet<Control>);

/// What holds where the operator says nothing: everything but the control group is demanded.
impl Default for Tolerated {
    fn default() -> Self {
        Self([Control::Cgroup].into())
    }
}

impl Tolerated {
    /// Whatever can be had: the caller's `--sandbox=best-effort`.
    pub fn everything() -> Self {
        Self(Control::ALL.into())
    }

    /// The controls that may be missing.
    pub fn controls(&self) -> impl Iterator<Item = Control> + '_ {
        self.0.iter().copied()
    }

    /// Whether `control` may be missing.
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
    fn a_missing_control_says_how_it_could_be_had() {
        let mut enforcement = Enforcement::default();
        enforcement.not_enforced_unless(Control::Landlock, "no", "boot with it");
        enforcement.enforced(Control::Landlock, "what came before counts");
        enforcement.not_enforced(Control::Layer, "no");
        enforcement.not_enforced_unless(Control::Cgroup, "no", "");
        let hints = [Control::Landlock, Control::Layer, Control::Cgroup].map(|control| enforcement.hint(control));
        assert_eq!(hints, [Some("boot with it"), None, None]);
        assert_eq!(enforcement.missing().count(), 3);
    }

    #[test]
    fn what_comes_later_mends_nothing() {
        let (mut before, mut later) = (Enforcement::default(), Enforcement::default());
        before.not_enforced(Control::Layer, "no");
        before.enforced(Control::Landlock, "x");
        later.enforced(Control::Layer, "y");
        later.enforced(Control::PrivateTmp, "y");
        later.not_enforced(Control::Landlock, "gone");
        before.add(later);
        let holds = [Control::Layer, Control::PrivateTmp, Control::Landlock].map(|control| before.holds(control));
        assert_eq!(holds, [false, true, false]);
    }

    #[test]
    fn what_nobody_spoke_of_is_a_gap() {
        let strict = Tolerated::default();
        let mut enforcement = Enforcement::default();
        assert_eq!(enforcement.gaps(&strict).count(), Control::ALL.len());
        assert_eq!(enforcement.gaps(&Tolerated::everything()).count(), Control::ALL.len());
        for control in Control::ALL {
            enforcement.enforced(control, "x");
        }
        assert_eq!(enforcement.gaps(&strict).count(), 0);
        enforcement.not_requested(Control::MemoryLimit, "the plan sets no bound");
        assert_eq!(enforcement.gaps(&strict).count(), 0);
        enforcement.not_requested(Control::PidNamespace, "x");
        enforcement.not_enforced(Control::Layer, "x");
        enforcement.not_enforced(Control::Cgroup, "x");
        assert_eq!(enforcement.gaps(&strict).collect::<Vec<_>>(), [Control::PidNamespace, Control::Layer]);
        let everything = Tolerated::everything();
        assert_eq!(enforcement.gaps(&everything).collect::<Vec<_>>(), [Control::PidNamespace]);
    }
}
