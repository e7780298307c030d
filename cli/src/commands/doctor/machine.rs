//! Collects the facts about this machine that the fixes depend on: distribution, kernel settings and running
//! services. They are read once, from world-readable files; nothing is started or changed. A fact that cannot be read
//! is unknown, and no command depends on it.

use std::io::Read as _;
use std::path::Path;

use crate::caller::Caller;

/// Maximum number of bytes read from one file.
const MAX: u64 = 1 << 20;

/// The known facts about a machine.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(super) struct Machine {
    /// The distribution family.
    pub family: Family,
    /// True if this process runs in a container.
    pub container: bool,
    /// True if systemd is the init system.
    pub systemd: bool,
    /// True if the caller is root.
    pub root: bool,
    /// The caller's user id.
    pub uid: u32,
    /// Value of `kernel.unprivileged_userns_clone`, if the kernel has this setting.
    pub userns_clone: Option<u64>,
    /// Value of `kernel.apparmor_restrict_unprivileged_userns`, if the kernel has this setting.
    pub apparmor_restricts: Option<u64>,
    /// Names of the settings `user.max_*_namespaces` that are 0.
    pub no_namespaces: Vec<String>,
    /// Active security modules in the kernel's order; empty if unknown.
    pub modules: Vec<String>,
    /// True if the kernel was built with Landlock; `None` if its config is not readable.
    pub has_landlock: Option<bool>,
    /// True if overlayfs is available now.
    pub has_overlay: bool,
    /// True if cgroup v2 is mounted at its usual path.
    pub has_unified: bool,
    /// True if the memory and pids controllers are delegated to the user's systemd manager; `None` if unknown.
    pub delegated: Option<bool>,
    /// True if the caller's session has a bus.
    pub has_bus: bool,
    /// True if the systemd units for a user's own daemon are installed.
    pub has_user_unit: bool,
}

/// A family of distributions with the same administration commands.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) enum Family {
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

impl Family {
    /// Determines the family from the text of os-release(5).
    fn of(os_release: &str) -> Self {
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

impl Machine {
    /// Collects the facts about this machine.
    pub(super) fn read(caller: &Caller) -> Self {
        let modules = text("/sys/kernel/security/lsm").unwrap_or_default();
        let release = text("/proc/sys/kernel/osrelease").unwrap_or_default();
        let config = text(&format!("/boot/config-{}", release.trim()));
        let manager = format!("/sys/fs/cgroup/user.slice/user-{0}.slice/user@{0}.service", caller.uid);
        let controllers = text(&format!("{manager}/cgroup.controllers"));
        let is_there = |path: &str| Path::new(path).exists();
        Self {
            family: Family::of(&text("/etc/os-release").or_else(|| text("/usr/lib/os-release")).unwrap_or_default()),
            container: is_there("/run/systemd/container") || is_there("/.dockerenv") || is_there("/run/.containerenv"),
            systemd: is_there("/run/systemd/system"),
            root: caller.is_root(),
            uid: caller.uid,
            userns_clone: setting("kernel/unprivileged_userns_clone"),
            apparmor_restricts: setting("kernel/apparmor_restrict_unprivileged_userns"),
            no_namespaces: no_namespaces(),
            modules: modules.trim().split(',').filter(|name| !name.is_empty()).map(str::to_owned).collect(),
            has_landlock: config.map(|text| text.lines().any(|line| line == "CONFIG_SECURITY_LANDLOCK=y")),
            has_overlay: text("/proc/filesystems").unwrap_or_default().lines().any(|line| line.ends_with("\toverlay")),
            has_unified: is_there("/sys/fs/cgroup/cgroup.controllers"),
            delegated: controllers
                .map(|text| ["memory", "pids"].iter().all(|word| text.split_whitespace().any(|given| given == *word))),
            has_bus: is_there(&format!("/run/user/{}/bus", caller.uid)),
            has_user_unit: is_there("/usr/lib/systemd/user/proctord.socket")
                || is_there("/etc/systemd/user/proctord.socket"),
        }
    }
}

/// Reads a numeric kernel setting.
fn setting(name: &str) -> Option<u64> {
    text(&format!("/proc/sys/{name}"))?.trim().parse().ok()
}

fn no_namespaces() -> Vec<String> {
    let kinds = ["user", "mnt", "pid", "net", "ipc", "uts", "cgroup"];
    let names = kinds.iter().map(|kind| format!("max_{kind}_namespaces"));
    names.filter(|name| setting(&format!("user/{name}")) == Some(0)).map(|name| format!("user.{name}")).collect()
}

/// Reads a small text file; returns `None` if it cannot be read.
fn text(path: &str) -> Option<String> {
    let mut text = String::new();
    std::fs::File::open(path).ok()?.take(MAX).read_to_string(&mut text).ok()?;
    Some(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn distributions_are_known_by_their_own_word_or_by_their_kin() {
        let cases = [
            ("PRETTY_NAME=\"x\"\nID=debian\n", Family::Debian),
            ("ID=linuxmint\nID_LIKE=\"ubuntu debian\"\n", Family::Debian),
            ("ID=\"rocky\"\nID_LIKE=\"rhel centos fedora\"\n", Family::Fedora),
            ("ID=manjaro\nID_LIKE=arch\n", Family::Arch),
            ("ID=\"opensuse-leap\"\nID_LIKE=\"suse opensuse\"\n", Family::Suse),
            ("ID=void\n", Family::Other),
            ("", Family::Other),
        ];
        for (text, family) in cases {
            assert_eq!(Family::of(text), family, "{text}");
        }
    }

    #[test]
    fn what_is_not_there_is_not_known() {
        assert_eq!((setting("kernel/absent"), text("/proc/absent")), (None, None));
    }
}
