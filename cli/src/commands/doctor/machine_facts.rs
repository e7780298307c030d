//! Collects the facts about this machine that the fixes depend on: distribution, kernel settings and running
//! services. They are read once, from world-readable files; nothing is started or changed. A fact that cannot be read
//! is unknown, and no command depends on it.

use std::io::Read as _;
use std::path::Path;

use crate::caller::Caller;

/// Maximum number of bytes read from one file.
const MAX_FILE_BYTES: u64 = 1 << 20;

/// The known facts about a machine.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(super) struct MachineFacts {
    /// The distribution family.
    pub family: DistroFamily,
    /// True if this process runs in a container.
    pub is_container: bool,
    /// True if systemd is the init system.
    pub has_systemd: bool,
    /// True if the caller is root.
    pub is_root: bool,
    /// The caller's user id.
    pub uid: u32,
    /// Value of `kernel.unprivileged_userns_clone`, if the kernel has this setting.
    pub userns_clone: Option<u64>,
    /// Value of `kernel.apparmor_restrict_unprivileged_userns`, if the kernel has this setting.
    pub apparmor_restricts: Option<u64>,
    /// Names of the settings `user.max_*_namespaces` that are 0.
    pub disabled_namespaces: Vec<String>,
    /// Active security modules in the kernel's order; empty if unknown.
    pub security_modules: Vec<String>,
    /// True if the kernel was built with Landlock; `None` if its config is not readable.
    pub has_landlock: Option<bool>,
    /// True if overlayfs is available now.
    pub has_overlay: bool,
    /// True if cgroup v2 is mounted at its usual path.
    pub has_cgroup_v2: bool,
    /// True if the memory and pids controllers are delegated to the user's systemd manager; `None` if unknown.
    pub has_delegation: Option<bool>,
    /// True if the caller's session has a bus.
    pub has_bus: bool,
    /// True if the systemd units for a user's own daemon are installed.
    pub has_user_unit: bool,
}

/// A family of distributions with the same administration commands.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) enum DistroFamily {
    /// Debian, Ubuntu and their derivatives.
    Debian,
    /// Fedora, RHEL and their derivatives.
    Fedora,
    /// Arch and its derivatives.
    Arch,
    /// openSUSE and SLES.
    Suse,
    /// Another family, or unknown.
    #[default]
    Other,
}

impl DistroFamily {
    /// Determines the family from the text of os-release(5).
    fn from_os_release(os_release: &str) -> Self {
        let value = |key: &str| {
            let line = os_release.lines().find_map(|line| line.strip_prefix(key)?.strip_prefix('='));
            line.unwrap_or_default().trim_matches(['"', '\'']).to_owned()
        };
        let (id, like) = (value("ID"), value("ID_LIKE"));
        let known = |word: &str| match word {
            "debian" | "ubuntu" => Some(Self::Debian),
            "fedora" | "rhel" | "centos" => Some(Self::Fedora),
            "arch" => Some(Self::Arch),
            "suse" | "opensuse" | "sles" => Some(Self::Suse),
            _ => None,
        };
        [id.as_str()].into_iter().chain(like.split_whitespace()).find_map(known).unwrap_or_default()
    }
}

impl MachineFacts {
    /// Collects the facts about this machine.
    pub(super) fn read(caller: &Caller) -> Self {
        let modules = read_text("/sys/kernel/security/lsm").unwrap_or_default();
        let release = read_text("/proc/sys/kernel/osrelease").unwrap_or_default();
        let config = read_text(&format!("/boot/config-{}", release.trim()));
        let manager = format!("/sys/fs/cgroup/user.slice/user-{0}.slice/user@{0}.service", caller.uid);
        let controllers = read_text(&format!("{manager}/cgroup.controllers"));
        let is_there = |path: &str| Path::new(path).exists();
        Self {
            family: DistroFamily::from_os_release(
                &read_text("/etc/os-release").or_else(|| read_text("/usr/lib/os-release")).unwrap_or_default(),
            ),
            is_container: is_there("/run/systemd/container")
                || is_there("/.dockerenv")
                || is_there("/run/.containerenv"),
            has_systemd: is_there("/run/systemd/system"),
            is_root: caller.is_root(),
            uid: caller.uid,
            userns_clone: kernel_setting("kernel/unprivileged_userns_clone"),
            apparmor_restricts: kernel_setting("kernel/apparmor_restrict_unprivileged_userns"),
            disabled_namespaces: disabled_namespaces(),
            security_modules: modules.trim().split(',').filter(|name| !name.is_empty()).map(str::to_owned).collect(),
            has_landlock: config.map(|text| text.lines().any(|line| line == "CONFIG_SECURITY_LANDLOCK=y")),
            has_overlay: read_text("/proc/filesystems")
                .unwrap_or_default()
                .lines()
                .any(|line| line.ends_with("\toverlay")),
            has_cgroup_v2: is_there("/sys/fs/cgroup/cgroup.controllers"),
            has_delegation: controllers
                .map(|text| ["memory", "pids"].iter().all(|word| text.split_whitespace().any(|given| given == *word))),
            has_bus: is_there(&format!("/run/user/{}/bus", caller.uid)),
            has_user_unit: is_there("/usr/lib/systemd/user/proctord.socket")
                || is_there("/etc/systemd/user/proctord.socket"),
        }
    }
}

/// Reads a numeric kernel setting.
fn kernel_setting(name: &str) -> Option<u64> {
    read_text(&format!("/proc/sys/{name}"))?.trim().parse().ok()
}

fn disabled_namespaces() -> Vec<String> {
    let kinds = ["user", "mnt", "pid", "net", "ipc", "uts", "cgroup"];
    let names = kinds.iter().map(|kind| format!("max_{kind}_namespaces"));
    names.filter(|name| kernel_setting(&format!("user/{name}")) == Some(0)).map(|name| format!("user.{name}")).collect()
}

/// Reads a small text file; returns `None` if it cannot be read.
fn read_text(path: &str) -> Option<String> {
    let mut text = String::new();
    std::fs::File::open(path).ok()?.take(MAX_FILE_BYTES).read_to_string(&mut text).ok()?;
    Some(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn recognizes_distributions_by_id_and_id_like() {
        let cases = [
            ("PRETTY_NAME=\"x\"\nID=debian\n", DistroFamily::Debian),
            ("ID=linuxmint\nID_LIKE=\"ubuntu debian\"\n", DistroFamily::Debian),
            ("ID=\"rocky\"\nID_LIKE=\"rhel centos fedora\"\n", DistroFamily::Fedora),
            ("ID=manjaro\nID_LIKE=arch\n", DistroFamily::Arch),
            ("ID=\"opensuse-leap\"\nID_LIKE=\"suse opensuse\"\n", DistroFamily::Suse),
            ("ID=void\n", DistroFamily::Other),
            ("", DistroFamily::Other),
        ];
        for (text, family) in cases {
            assert_eq!(DistroFamily::from_os_release(text), family, "{text}");
        }
    }

    #[test]
    fn missing_files_are_unknown() {
        assert_eq!((kernel_setting("kernel/absent"), read_text("/proc/absent")), (None, None));
    }
}
