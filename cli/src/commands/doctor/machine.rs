//! What this machine is, as far as mending it goes: its distribution, the settings of its kernel and
//! what runs on it. Read once, from files that every user can read; nothing is started and nothing
//! is changed. What cannot be read is not known, and no command is built on it.

use std::io::Read as _;
use std::path::Path;

use crate::caller::Caller;

/// The most that is read of one file.
const MAX: u64 = 1 << 20;

/// What is known of a machine.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(super) struct Machine {
    /// How its distribution is looked after.
    pub family: Family,
    /// Whether we are in a container.
    pub container: bool,
    /// Whether systemd runs it.
    pub systemd: bool,
    /// Whether the caller is root.
    pub root: bool,
    /// The caller's user id.
    pub uid: u32,
    /// `kernel.unprivileged_userns_clone`, where the kernel has it.
    pub userns_clone: Option<u64>,
    /// `kernel.apparmor_restrict_unprivileged_userns`, where the kernel has it.
    pub apparmor_restricts: Option<u64>,
    /// The settings `user.max_*_namespaces` that are 0, by their names.
    pub no_namespaces: Vec<String>,
    /// The security modules that are on, in the kernel's order; empty where that is not told.
    pub modules: Vec<String>,
    /// Whether the kernel was built with Landlock, where its config is there to be read.
    pub has_landlock: Option<bool>,
    /// Whether the kernel knows overlayfs now.
    pub has_overlay: bool,
    /// Whether cgroup v2 is mounted where everybody looks for it.
    pub has_unified: bool,
    /// Whether the manager of the caller's units was given the memory and pids controllers.
    pub delegated: Option<bool>,
    /// Whether the caller's session has a bus.
    pub has_bus: bool,
    /// Whether our units for a user's own daemon are installed.
    pub has_user_unit: bool,
}

/// How a distribution is looked after.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) enum Family {
    /// Debian, Ubuntu and what comes of them.
    Debian,
    /// Fedora, RHEL and what comes of them.
    Fedora,
    /// Arch and what comes of it.
    Arch,
    /// openSUSE and SLES.
    Suse,
    /// Another one, or none that says so.
    #[default]
    Other,
}

impl Family {
    /// From the text of os-release(5).
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
    /// Reads what is known.
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

/// A setting of the kernel that is a number.
fn setting(name: &str) -> Option<u64> {
    text(&format!("/proc/sys/{name}"))?.trim().parse().ok()
}

fn no_namespaces() -> Vec<String> {
    let kinds = ["user", "mnt", "pid", "net", "ipc", "uts", "cgroup"];
    let names = kinds.iter().map(|kind| format!("max_{kind}_namespaces"));
    names.filter(|name| setting(&format!("user/{name}")) == Some(0)).map(|name| format!("user.{name}")).collect()
}

/// The text of a small file; `None` where there is none to be read.
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
