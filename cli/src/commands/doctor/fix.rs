//! Computes the fixes for `proctor doctor --fix`: commands, in order, for the user to read and copy. Nothing is
//! executed. This module is pure and receives the facts about the host as [`MachineFacts`]. If no fix is known, the
//! hint of the finding is shown instead.

use proctor_core::model::enforcement::Control;
use schemars::JsonSchema;
use serde::Serialize;

use super::FindingRecord;
use super::machine_facts::{DistroFamily, MachineFacts};
use crate::text::escape_line;

/// The fix for one cause.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, JsonSchema)]
pub(crate) struct FixRecord {
    /// The controls that are missing for this cause; empty if the cause affects no control.
    pub controls: Vec<Control>,
    /// The cause.
    pub cause: String,
    /// The commands, in order; empty if no command can fix the cause on this machine.
    pub steps: Vec<FixStep>,
    /// Further or alternative advice.
    pub advice: String,
}

/// A command.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, JsonSchema)]
pub(crate) struct FixStep {
    /// The effect of the command.
    pub does: String,
    /// The command line for a shell, with `sudo` if it needs root.
    pub command: String,
}

/// Paths quoted for a shell.
#[derive(Debug)]
pub(super) struct ShellPaths {
    /// The program `proctor`.
    pub proctor: String,
    /// The repository.
    pub repo: String,
}

/// Returns the fixes for the findings, each cause once, in the order in which they must be applied: a cause that
/// keeps every step from running comes first.
pub(super) fn fixes(findings: &[FindingRecord], machine: &MachineFacts, paths: &ShellPaths) -> Vec<FixRecord> {
    let mut fixes: Vec<FixRecord> = Vec::new();
    // Without namespaces, everything that is set up inside them is missing too.
    let base_finding = findings.iter().find(|finding| finding.control.is_some_and(is_base_namespace));
    for finding in findings {
        let is_dependent = finding.control.is_some_and(is_namespace_dependent);
        let cause =
            MissingControlCause::from_finding(base_finding.filter(|_| is_dependent).unwrap_or(finding), machine);
        let fix = cause.fix(finding, machine, paths);
        match fixes.iter_mut().find(|other| other.cause == fix.cause) {
            Some(same) => same.controls.extend(fix.controls),
            None => fixes.push(fix),
        }
    }
    fixes
}

/// The reason why a control is missing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum MissingControlCause {
    /// The container refuses the namespace.
    Container,
    /// A kernel setting allows no namespaces.
    NamespacesOff,
    /// A kernel setting of Debian and Arch reserves user namespaces for root.
    UserNamespacesOff,
    /// AppArmor denies user namespaces to programs without a profile.
    AppArmor,
    /// The repository belongs to root, on a file system that does not support idmapped mounts.
    UnmappableOwner,
    /// Landlock is not among the active security modules.
    LandlockOff,
    /// The kernel was built without Landlock.
    NoLandlock,
    /// The kernel module for overlays is not loaded.
    NoOverlay,
    /// cgroup v2 is not mounted.
    NoCgroupV2,
    /// The controllers are not delegated to the user's systemd manager.
    NoDelegation,
    /// The user's systemd manager cannot be reached, because there is no bus.
    NoBus,
    /// The cgroup of the shell contains other processes.
    NoScope,
    /// No known cause.
    Unknown,
}

impl MissingControlCause {
    fn from_finding(finding: &FindingRecord, machine: &MachineFacts) -> Self {
        let landlock =
            || !machine.security_modules.is_empty() && !machine.security_modules.iter().any(|name| name == "landlock");
        match finding.control {
            Some(Control::UserNamespace) if finding.message.contains("idmapped") => Self::UnmappableOwner,
            Some(control) if is_namespace(control) => Self::for_namespace(machine),
            Some(Control::Landlock) if machine.has_landlock == Some(false) => Self::NoLandlock,
            Some(Control::Landlock) if landlock() => Self::LandlockOff,
            Some(Control::Layer) if !machine.has_overlay && !machine.is_container => Self::NoOverlay,
            Some(Control::Cgroup) if !machine.is_container => Self::for_cgroup(machine),
            Some(control) if machine.is_container && is_denied_by_containers(control) => Self::Container,
            _ => Self::Unknown,
        }
    }

    fn for_namespace(machine: &MachineFacts) -> Self {
        match machine {
            _ if !machine.disabled_namespaces.is_empty() => Self::NamespacesOff,
            _ if machine.is_container => Self::Container,
            MachineFacts { is_root: false, userns_clone: Some(0), .. } => Self::UserNamespacesOff,
            MachineFacts { is_root: false, apparmor_restricts: Some(1), .. } => Self::AppArmor,
            _ => Self::Unknown,
        }
    }

    fn for_cgroup(machine: &MachineFacts) -> Self {
        match machine {
            _ if !machine.has_cgroup_v2 => Self::NoCgroupV2,
            _ if !machine.has_systemd => Self::Unknown,
            MachineFacts { is_root: false, has_delegation: Some(false), .. } => Self::NoDelegation,
            MachineFacts { is_root: false, has_bus: false, .. } => Self::NoBus,
            _ => Self::NoScope,
        }
    }

    fn fix(self, finding: &FindingRecord, machine: &MachineFacts, paths: &ShellPaths) -> FixRecord {
        FixRecord {
            controls: finding.control.into_iter().collect(),
            cause: self.description().unwrap_or(&finding.message).to_owned(),
            steps: self.steps(machine, paths),
            advice: self.advice(machine).unwrap_or(&finding.hint).to_owned(),
        }
    }

    /// Describes the cause; `None` if only the finding describes it.
    fn description(self) -> Option<&'static str> {
        Some(match self {
            Self::Container => "the container does not permit a sandbox inside it",
            Self::NamespacesOff => "a kernel setting forbids one kind of namespace",
            Self::UserNamespacesOff => "`kernel.unprivileged_userns_clone` restricts user namespaces to root",
            Self::AppArmor => "AppArmor denies user namespaces to programs without a profile",
            Self::UnmappableOwner => "root owns the repository, on a file system that cannot map owners",
            Self::LandlockOff => "Landlock is not among the active security modules of the kernel",
            Self::NoLandlock => "the kernel was built without Landlock",
            Self::NoOverlay => "the kernel's module for overlays is not loaded",
            Self::NoCgroupV2 => "cgroup v2 is not mounted at /sys/fs/cgroup",
            Self::NoDelegation => {
                "the controllers for memory and processes are not delegated to your systemd user manager"
            }
            Self::NoBus => "your systemd user manager has no bus, so it cannot create a control group",
            Self::NoScope => "the shell that proctor was started from shares its control group with others",
            Self::Unknown => return None,
        })
    }

    fn steps(self, machine: &MachineFacts, paths: &ShellPaths) -> Vec<FixStep> {
        let root = if machine.is_root { "" } else { "sudo " };
        match self {
            Self::NamespacesOff => {
                let pairs: Vec<String> =
                    machine.disabled_namespaces.iter().map(|name| format!("{name}=15000")).collect();
                sysctl(root, &pairs)
            }
            Self::UserNamespacesOff => sysctl(root, &["kernel.unprivileged_userns_clone=1".to_owned()]),
            Self::AppArmor => apparmor(root, paths),
            Self::UnmappableOwner => vec![fix_step(
                "gives the repository to an ordinary user; insert the name of that user",
                format!("{root}chown -R USER: {}", paths.repo),
            )],
            Self::LandlockOff => landlock(root, machine),
            Self::NoOverlay => vec![
                fix_step("loads the module until the next boot", format!("{root}modprobe overlay")),
                fix_step(
                    "loads it at each boot",
                    write_line_command(root, "overlay", "/etc/modules-load.d/proctor.conf"),
                ),
            ],
            Self::NoCgroupV2 if machine.has_systemd => Vec::new(),
            Self::NoCgroupV2 => {
                vec![fix_step("mounts it until the next boot", format!("{root}mount -t cgroup2 none /sys/fs/cgroup"))]
            }
            Self::NoDelegation => delegation(root, machine.uid),
            Self::NoBus => bus(root, machine),
            Self::NoScope => scope(machine, paths),
            Self::Container | Self::NoLandlock | Self::Unknown => Vec::new(),
        }
    }

    /// Returns advice about steps that no command can do; `None` if the hint of the finding is better.
    fn advice(self, machine: &MachineFacts) -> Option<&'static str> {
        Some(match self {
            Self::Container => {
                "outside, start the container with `--security-opt seccomp=unconfined --security-opt \
                 apparmor=unconfined --security-opt systempaths=unconfined`, or run proctor outside of it"
            }
            Self::LandlockOff if machine.family == DistroFamily::Other => {
                "add `lsm=landlock,…` to the kernel's command line, followed by the modules in /sys/kernel/security/lsm, and reboot"
            }
            Self::LandlockOff => "reboot the machine, then run `proctor doctor` again",
            Self::NoLandlock => "boot a kernel with CONFIG_SECURITY_LANDLOCK=y; distribution kernels have it",
            Self::NoCgroupV2 if machine.has_systemd => {
                "boot the machine with `systemd.unified_cgroup_hierarchy=1` on the kernel's command line"
            }
            Self::NoDelegation | Self::NoBus => "log out and in, then run `proctor doctor` again",
            Self::NamespacesOff
            | Self::UserNamespacesOff
            | Self::AppArmor
            | Self::UnmappableOwner
            | Self::NoOverlay
            | Self::NoCgroupV2
            | Self::NoScope => "run `proctor doctor` again",
            Self::Unknown => return None,
        })
    }
}

/// Checks for the namespaces inside which all other controls are set up.
fn is_base_namespace(control: Control) -> bool {
    matches!(control, Control::UserNamespace | Control::MountNamespace)
}

/// Checks for controls that are set up inside our own namespaces.
fn is_namespace_dependent(control: Control) -> bool {
    is_denied_by_containers(control) && control != Control::SyscallFilter
        || matches!(control, Control::GitReadOnly | Control::DiskLimit | Control::PidsLimit | Control::AbstractSockets)
}

fn is_namespace(control: Control) -> bool {
    matches!(
        control,
        Control::UserNamespace
            | Control::MountNamespace
            | Control::PidNamespace
            | Control::NetworkNamespace
            | Control::IpcNamespace
            | Control::UtsNamespace
            | Control::CgroupNamespace
    )
}

/// Checks whether containers commonly deny the operations that the control needs.
fn is_denied_by_containers(control: Control) -> bool {
    matches!(
        control,
        Control::ReadOnlyRoot
            | Control::HiddenPaths
            | Control::PrivateProc
            | Control::PrivateDev
            | Control::PrivateTmp
            | Control::Layer
            | Control::SyscallFilter
            | Control::KernelFiles
    )
}

fn fix_step(does: &str, command: String) -> FixStep {
    FixStep { does: does.to_owned(), command }
}

/// Returns the command that writes a line to a file owned by root.
fn write_line_command(root: &str, line: &str, file: &str) -> String {
    format!("printf '%s\\n' '{line}' | {root}tee {file} >/dev/null")
}

fn sysctl(root: &str, pairs: &[String]) -> Vec<FixStep> {
    let lines: Vec<String> = pairs.iter().map(|pair| format!("'{}'", pair.replace('=', " = "))).collect();
    vec![
        fix_step("allows them until the next boot", format!("{root}sysctl -w {}", pairs.join(" "))),
        fix_step(
            "allows them after each boot",
            format!("printf '%s\\n' {} | {root}tee /etc/sysctl.d/60-proctor.conf >/dev/null", lines.join(" ")),
        ),
    ]
}

fn apparmor(root: &str, paths: &ShellPaths) -> Vec<FixStep> {
    const PROFILE: &str = "/etc/apparmor.d/proctor-sandbox";
    vec![
        fix_step(
            "writes a profile that allows them only for Proctor's helper",
            format!("{} doctor --apparmor-profile | {root}tee {PROFILE} >/dev/null", paths.proctor),
        ),
        fix_step(
            "loads it; at each boot it is loaded with the other profiles",
            format!("{root}apparmor_parser -r {PROFILE}"),
        ),
    ]
}

fn landlock(root: &str, machine: &MachineFacts) -> Vec<FixStep> {
    let modules = machine.security_modules.iter().filter(|name| *name != "capability");
    let list: Vec<&str> = ["landlock"].into_iter().chain(modules.map(String::as_str)).collect();
    let word = format!("lsm={}", list.join(","));
    match machine.family {
        DistroFamily::Debian => vec![
            fix_step(
                "puts Landlock before the currently enabled modules on the kernel's command line",
                write_line_command(
                    root,
                    &format!("GRUB_CMDLINE_LINUX=\"$GRUB_CMDLINE_LINUX {word}\""),
                    "/etc/default/grub.d/proctor.cfg",
                ),
            ),
            fix_step("writes the boot loader's config", format!("{root}update-grub")),
        ],
        DistroFamily::Fedora => vec![fix_step(
            "puts Landlock before the currently enabled modules on the kernel's command line",
            format!("{root}grubby --update-kernel=ALL --args={word}"),
        )],
        DistroFamily::Arch | DistroFamily::Suse | DistroFamily::Other => Vec::new(),
    }
}

fn delegation(root: &str, uid: u32) -> Vec<FixStep> {
    const DIRECTORY: &str = "/etc/systemd/system/user@.service.d";
    vec![
        fix_step("creates the directory for the setting", format!("{root}mkdir -p {DIRECTORY}")),
        fix_step(
            "delegates the controllers to the user managers",
            format!(
                "printf '%s\\n' '[Service]' 'Delegate=cpu io memory pids' | {root}tee {DIRECTORY}/proctor.conf >/dev/null"
            ),
        ),
        fix_step("makes systemd read the setting", format!("{root}systemctl daemon-reload")),
        fix_step(
            "restarts your user manager; this ends all processes of your session",
            format!("{root}systemctl restart user@{uid}.service"),
        ),
    ]
}

fn bus(root: &str, machine: &MachineFacts) -> Vec<FixStep> {
    let package = match machine.family {
        DistroFamily::Debian => Some("apt-get install -y dbus-user-session"),
        DistroFamily::Fedora => Some("dnf install -y dbus-daemon"),
        DistroFamily::Arch | DistroFamily::Suse | DistroFamily::Other => None,
    };
    let install = package.map(|command| fix_step("installs the session bus", format!("{root}{command}")));
    let linger = fix_step(
        "starts your manager at boot, whether you are logged in or not",
        format!("{root}loginctl enable-linger {}", machine.uid),
    );
    install.into_iter().chain([linger]).collect()
}

fn scope(machine: &MachineFacts, paths: &ShellPaths) -> Vec<FixStep> {
    let user = if machine.is_root { "" } else { "--user " };
    let once = fix_step(
        "runs one command in its own control group",
        format!("systemd-run {user}--scope --quiet -p Delegate=yes {} run", paths.proctor),
    );
    let unit = fix_step(
        "starts your daemon in its own control group, for all commands",
        "systemctl --user enable --now proctord.socket".to_owned(),
    );
    [once].into_iter().chain(Some(unit).filter(|_| machine.has_user_unit && !machine.is_root)).collect()
}

/// Renders all fixes as a shell script, with everything but the commands as comments.
pub(super) fn render(fixes: &[FixRecord]) -> String {
    if fixes.is_empty() {
        return "# nothing is missing: there is nothing to fix\n".to_owned();
    }
    let blocks: Vec<String> = fixes.iter().map(fix_block).collect();
    format!(
        "# none of these commands was executed: read them, then copy those that you want to run\n\n{}",
        blocks.join("\n")
    )
}

fn fix_block(fix: &FixRecord) -> String {
    let controls: Vec<&str> = fix.controls.iter().map(|control| control.as_str()).collect();
    let head = if controls.is_empty() { String::new() } else { format!("{}: ", controls.join(", ")) };
    let mut text = format!("# {head}{}\n", escape_line(&fix.cause));
    for FixStep { does, command } in &fix.steps {
        text.push_str(&format!("# {does}\n{command}\n"));
    }
    if !fix.advice.is_empty() {
        let word = if fix.steps.is_empty() { "no command here fixes this: " } else { "then: " };
        text.push_str(&format!("# {word}{}\n", escape_line(&fix.advice)));
    }
    text
}

#[cfg(test)]
mod tests;
