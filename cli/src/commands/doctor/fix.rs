//! Computes the fixes for `proctor doctor --fix`: commands, in order, for the user to read and copy. Nothing is
//! executed. This module is pure and receives the facts about the host as [`Machine`]. If no fix is known, the hint
//! of the finding is shown instead.

use proctor_core::enforcement::Control;
use schemars::JsonSchema;
use serde::Serialize;

use super::FindingRecord;
use super::machine::{Family, Machine};
use crate::text::shown_line;

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
pub(super) struct Places {
    /// The program `proctor`.
    pub proctor: String,
    /// The repository.
    pub repo: String,
}

/// Returns the fixes for the findings, each cause once, in the order in which they must be applied: a cause that
/// keeps every step from running comes first.
pub(super) fn fixes(findings: &[FindingRecord], machine: &Machine, places: &Places) -> Vec<FixRecord> {
    let mut fixes: Vec<FixRecord> = Vec::new();
    // Without namespaces, everything that is set up inside them is missing too.
    let root = findings.iter().find(|finding| finding.control.is_some_and(is_ground));
    for finding in findings {
        let follows = finding.control.is_some_and(is_made_in_namespaces);
        let cause = Cause::of(root.filter(|_| follows).unwrap_or(finding), machine);
        let fix = cause.fix(finding, machine, places);
        match fixes.iter_mut().find(|other| other.cause == fix.cause) {
            Some(same) => same.controls.extend(fix.controls),
            None => fixes.push(fix),
        }
    }
    fixes
}

/// The reason why a control is missing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Cause {
    /// The container refuses it.
    Container,
    /// A kernel setting allows no namespaces.
    NamespacesOff,
    /// A kernel setting of Debian and Arch reserves user namespaces for root.
    UsersOff,
    /// AppArmor denies user namespaces to programs without a profile.
    AppArmor,
    /// The repository belongs to root, on a file system that does not support idmapped mounts.
    Owners,
    /// Landlock is not among the active security modules.
    LandlockOff,
    /// The kernel was built without Landlock.
    NoLandlock,
    /// The kernel module for overlays is not loaded.
    NoOverlay,
    /// cgroup v2 is not mounted.
    NoUnified,
    /// The controllers are not delegated to the user's systemd manager.
    Undelegated,
    /// The user's systemd manager cannot be reached, because there is no bus.
    NoBus,
    /// The cgroup of the shell contains other processes.
    NoScope,
    /// No known cause.
    Unknown,
}

impl Cause {
    fn of(finding: &FindingRecord, machine: &Machine) -> Self {
        let landlock = || !machine.modules.is_empty() && !machine.modules.iter().any(|name| name == "landlock");
        match finding.control {
            Some(Control::UserNamespace) if finding.message.contains("idmapped") => Self::Owners,
            Some(control) if is_namespace(control) => Self::of_namespace(machine),
            Some(Control::Landlock) if machine.has_landlock == Some(false) => Self::NoLandlock,
            Some(Control::Landlock) if landlock() => Self::LandlockOff,
            Some(Control::Layer) if !machine.has_overlay && !machine.container => Self::NoOverlay,
            Some(Control::Cgroup) if !machine.container => Self::of_group(machine),
            Some(control) if machine.container && is_kept_by_containers(control) => Self::Container,
            _ => Self::Unknown,
        }
    }

    fn of_namespace(machine: &Machine) -> Self {
        match machine {
            _ if !machine.no_namespaces.is_empty() => Self::NamespacesOff,
            _ if machine.container => Self::Container,
            Machine { root: false, userns_clone: Some(0), .. } => Self::UsersOff,
            Machine { root: false, apparmor_restricts: Some(1), .. } => Self::AppArmor,
            _ => Self::Unknown,
        }
    }

    fn of_group(machine: &Machine) -> Self {
        match machine {
            _ if !machine.has_unified => Self::NoUnified,
            _ if !machine.systemd => Self::Unknown,
            Machine { root: false, delegated: Some(false), .. } => Self::Undelegated,
            Machine { root: false, has_bus: false, .. } => Self::NoBus,
            _ => Self::NoScope,
        }
    }

    fn fix(self, finding: &FindingRecord, machine: &Machine, places: &Places) -> FixRecord {
        FixRecord {
            controls: finding.control.into_iter().collect(),
            cause: self.words().unwrap_or(&finding.message).to_owned(),
            steps: self.steps(machine, places),
            advice: self.advice(machine).unwrap_or(&finding.hint).to_owned(),
        }
    }

    /// Describes the cause; `None` if only the finding describes it.
    fn words(self) -> Option<&'static str> {
        Some(match self {
            Self::Container => "the container lets no sandbox be made in it",
            Self::NamespacesOff => "a setting of the kernel allows no namespaces of a kind",
            Self::UsersOff => "`kernel.unprivileged_userns_clone` keeps user namespaces for root",
            Self::AppArmor => "AppArmor keeps user namespaces from programs without a profile",
            Self::Owners => "root owns the repository, on a file system that cannot map owners",
            Self::LandlockOff => "Landlock is not among the security modules that the kernel was started with",
            Self::NoLandlock => "the kernel was built without Landlock",
            Self::NoOverlay => "the kernel's module for overlays is not loaded",
            Self::NoUnified => "cgroup v2 is not mounted at /sys/fs/cgroup",
            Self::Undelegated => "the manager of your units was not given the controllers for memory and processes",
            Self::NoBus => "the manager of your units has no bus, so that it cannot be asked for a group",
            Self::NoScope => "the shell that proctor was started from shares its control group with others",
            Self::Unknown => return None,
        })
    }

    fn steps(self, machine: &Machine, places: &Places) -> Vec<FixStep> {
        let root = if machine.root { "" } else { "sudo " };
        match self {
            Self::NamespacesOff => {
                let pairs: Vec<String> = machine.no_namespaces.iter().map(|name| format!("{name}=15000")).collect();
                sysctl(root, &pairs)
            }
            Self::UsersOff => sysctl(root, &["kernel.unprivileged_userns_clone=1".to_owned()]),
            Self::AppArmor => apparmor(root, places),
            Self::Owners => vec![step(
                "gives the repository to an ordinary user; put in whose it shall be",
                format!("{root}chown -R USER: {}", places.repo),
            )],
            Self::LandlockOff => landlock(root, machine),
            Self::NoOverlay => vec![
                step("loads the module until the next boot", format!("{root}modprobe overlay")),
                step("loads it at each boot", written(root, "overlay", "/etc/modules-load.d/proctor.conf")),
            ],
            Self::NoUnified if machine.systemd => Vec::new(),
            Self::NoUnified => {
                vec![step("mounts it until the next boot", format!("{root}mount -t cgroup2 none /sys/fs/cgroup"))]
            }
            Self::Undelegated => delegation(root, machine.uid),
            Self::NoBus => bus(root, machine),
            Self::NoScope => scope(machine, places),
            Self::Container | Self::NoLandlock | Self::Unknown => Vec::new(),
        }
    }

    /// Returns advice about steps that no command can do; `None` if the hint of the finding is better.
    fn advice(self, machine: &Machine) -> Option<&'static str> {
        Some(match self {
            Self::Container => {
                "outside, start the container with `--security-opt seccomp=unconfined --security-opt \
                 apparmor=unconfined --security-opt systempaths=unconfined`, or run proctor outside of it"
            }
            Self::LandlockOff if machine.family == Family::Other => {
                "put `lsm=landlock,…`, the modules that /sys/kernel/security/lsm names behind it, on the \
                 kernel's command line, and boot"
            }
            Self::LandlockOff => "boot the machine, then ask `proctor doctor` again",
            Self::NoLandlock => "boot a kernel with CONFIG_SECURITY_LANDLOCK=y; those of distributions have it",
            Self::NoUnified if machine.systemd => {
                "boot the machine with `systemd.unified_cgroup_hierarchy=1` on the kernel's command line"
            }
            Self::Undelegated | Self::NoBus => "log out and in, then ask `proctor doctor` again",
            Self::NamespacesOff
            | Self::UsersOff
            | Self::AppArmor
            | Self::Owners
            | Self::NoOverlay
            | Self::NoUnified
            | Self::NoScope => "ask `proctor doctor` again",
            Self::Unknown => return None,
        })
    }
}

/// Checks for the namespaces inside which all other controls are set up.
fn is_ground(control: Control) -> bool {
    matches!(control, Control::UserNamespace | Control::MountNamespace)
}

/// Checks for controls that are set up inside our own namespaces.
fn is_made_in_namespaces(control: Control) -> bool {
    is_kept_by_containers(control) && control != Control::SyscallFilter
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
fn is_kept_by_containers(control: Control) -> bool {
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

fn step(does: &str, command: String) -> FixStep {
    FixStep { does: does.to_owned(), command }
}

/// Returns the command that writes a line to a file owned by root.
fn written(root: &str, line: &str, file: &str) -> String {
    format!("printf '%s\\n' '{line}' | {root}tee {file} >/dev/null")
}

fn sysctl(root: &str, pairs: &[String]) -> Vec<FixStep> {
    let lines: Vec<String> = pairs.iter().map(|pair| format!("'{}'", pair.replace('=', " = "))).collect();
    vec![
        step("allows them until the next boot", format!("{root}sysctl -w {}", pairs.join(" "))),
        step(
            "allows them after each boot",
            format!("printf '%s\\n' {} | {root}tee /etc/sysctl.d/60-proctor.conf >/dev/null", lines.join(" ")),
        ),
    ]
}

fn apparmor(root: &str, places: &Places) -> Vec<FixStep> {
    const PROFILE: &str = "/etc/apparmor.d/proctor-sandbox";
    vec![
        step(
            "writes a profile that allows them to proctor's helper, and to nothing else",
            format!("{} doctor --apparmor-profile | {root}tee {PROFILE} >/dev/null", places.proctor),
        ),
        step("loads it; at each boot it is loaded with the others", format!("{root}apparmor_parser -r {PROFILE}")),
    ]
}

fn landlock(root: &str, machine: &Machine) -> Vec<FixStep> {
    let modules = machine.modules.iter().filter(|name| *name != "capability");
    let list: Vec<&str> = ["landlock"].into_iter().chain(modules.map(String::as_str)).collect();
    let word = format!("lsm={}", list.join(","));
    match machine.family {
        Family::Debian => vec![
            step(
                "puts Landlock before the modules that are on now, on the kernel's command line",
                written(
                    root,
                    &format!("GRUB_CMDLINE_LINUX=\"$GRUB_CMDLINE_LINUX {word}\""),
                    "/etc/default/grub.d/proctor.cfg",
                ),
            ),
            step("writes the boot loader's config", format!("{root}update-grub")),
        ],
        Family::Fedora => vec![step(
            "puts Landlock before the modules that are on now, on the kernel's command line",
            format!("{root}grubby --update-kernel=ALL --args={word}"),
        )],
        Family::Arch | Family::Suse | Family::Other => Vec::new(),
    }
}

fn delegation(root: &str, uid: u32) -> Vec<FixStep> {
    const DIRECTORY: &str = "/etc/systemd/system/user@.service.d";
    vec![
        step("makes the directory for the setting", format!("{root}mkdir -p {DIRECTORY}")),
        step(
            "gives the controllers to the managers of users",
            format!(
                "printf '%s\\n' '[Service]' 'Delegate=cpu io memory pids' | {root}tee {DIRECTORY}/proctor.conf >/dev/null"
            ),
        ),
        step("has systemd read it", format!("{root}systemctl daemon-reload")),
        step(
            "starts your manager anew: this ends what runs in your session",
            format!("{root}systemctl restart user@{uid}.service"),
        ),
    ]
}

fn bus(root: &str, machine: &Machine) -> Vec<FixStep> {
    let package = match machine.family {
        Family::Debian => Some("apt-get install -y dbus-user-session"),
        Family::Fedora => Some("dnf install -y dbus-daemon"),
        Family::Arch | Family::Suse | Family::Other => None,
    };
    let install = package.map(|command| step("installs the bus of a session", format!("{root}{command}")));
    let linger = step(
        "starts your manager at boot, whether you are logged in or not",
        format!("{root}loginctl enable-linger {}", machine.uid),
    );
    install.into_iter().chain([linger]).collect()
}

fn scope(machine: &Machine, places: &Places) -> Vec<FixStep> {
    let user = if machine.root { "" } else { "--user " };
    let once = step(
        "runs one command in its own control group",
        format!("systemd-run {user}--scope --quiet -p Delegate=yes {} run", places.proctor),
    );
    let unit = step(
        "starts your daemon in its own control group, for all commands",
        "systemctl --user enable --now proctord.socket".to_owned(),
    );
    [once].into_iter().chain(Some(unit).filter(|_| machine.has_user_unit && !machine.root)).collect()
}

/// Renders all fixes as a shell script, with everything but the commands as comments.
pub(super) fn render(fixes: &[FixRecord]) -> String {
    if fixes.is_empty() {
        return "# nothing is missing: there is nothing to fix\n".to_owned();
    }
    let blocks: Vec<String> = fixes.iter().map(block).collect();
    format!("# nothing of this was executed: read it, then copy what you want done\n\n{}", blocks.join("\n"))
}

fn block(fix: &FixRecord) -> String {
    let controls: Vec<&str> = fix.controls.iter().map(|control| control.as_str()).collect();
    let head = if controls.is_empty() { String::new() } else { format!("{}: ", controls.join(", ")) };
    let mut text = format!("# {head}{}\n", shown_line(&fix.cause));
    for FixStep { does, command } in &fix.steps {
        text.push_str(&format!("# {does}\n{command}\n"));
    }
    if !fix.advice.is_empty() {
        let word = if fix.steps.is_empty() { "no command here fixes this: " } else { "then: " };
        text.push_str(&format!("# {word}{}\n", shown_line(&fix.advice)));
    }
    text
}

#[cfg(test)]
mod tests;
