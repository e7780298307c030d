//! Computes the position of this process in the cgroup trees from files of `/proc`, without side effects.

use std::ffi::OsString;
use std::fmt;
use std::os::unix::ffi::OsStringExt;
use std::path::{Path, PathBuf};

/// The interface version of a tree.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum CgroupVersion {
    /// One tree for each controller or group of controllers.
    V1,
    /// The one unified tree.
    V2,
}

/// The controllers of a tree that proctor uses.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct Controllers {
    /// True if the tree limits memory.
    pub(super) memory: bool,
    /// True if the tree limits processes.
    pub(super) pids: bool,
    /// True if the tree counts CPU time.
    pub(super) cpu: bool,
}

impl Controllers {
    /// Converts a list of the kernel's controller names.
    pub(super) fn from_names<'a>(names: impl IntoIterator<Item = &'a str>) -> Self {
        let mut holds = Self::default();
        for name in names {
            match name {
                "memory" => holds.memory = true,
                "pids" => holds.pids = true,
                "cpuacct" => holds.cpu = true,
                _ => {}
            }
        }
        holds
    }

    /// Returns the union of both sets.
    pub(super) fn union(self, other: Self) -> Self {
        Self { memory: self.memory || other.memory, pids: self.pids || other.pids, cpu: self.cpu || other.cpu }
    }
}

impl fmt::Display for Controllers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let words = [(self.memory, "memory"), (self.pids, "pids"), (self.cpu, "cpu")];
        let held: Vec<_> = words.iter().filter(|(held, _)| *held).map(|(_, word)| *word).collect();
        f.write_str(&held.join(", "))
    }
}

/// The group of this process in one tree.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct CgroupMembership {
    /// The interface of the tree.
    pub(super) version: CgroupVersion,
    /// The v1 controllers of the tree; for v2 only the group's own files list them.
    pub(super) controllers: Controllers,
    /// The group's directory.
    pub(super) dir: PathBuf,
    /// The mount point of the tree.
    pub(super) mount_point: PathBuf,
}

/// One line of `/proc/self/mountinfo` about a cgroup tree.
struct CgroupMount {
    root: PathBuf,
    mount_point: PathBuf,
    version: CgroupVersion,
    options: String,
}

/// Returns the positions of a process with this `/proc/<pid>/cgroup` and `/proc/<pid>/mountinfo`, in the order of the
/// former. Trees without a mount that shows the group are skipped.
pub(super) fn find_memberships(memberships: &str, mountinfo: &str) -> Vec<CgroupMembership> {
    let mounts: Vec<CgroupMount> = mountinfo.lines().filter_map(parse_mount).collect();
    memberships.lines().filter_map(|line| parse_membership(line, &mounts)).collect()
}

/// Parses a line `id:controllers:path`; for v2 `0::path`. cgroups(7).
fn parse_membership(line: &str, mounts: &[CgroupMount]) -> Option<CgroupMembership> {
    let mut fields = line.splitn(3, ':').skip(1);
    let (controllers, path) = (fields.next()?, Path::new(fields.next()?));
    let version = if controllers.is_empty() { CgroupVersion::V2 } else { CgroupVersion::V1 };
    let first = controllers.split(',').next()?;
    let same_tree = |mount: &&CgroupMount| {
        mount.version == version
            && (version == CgroupVersion::V2 || mount.options.split(',').any(|option| option == first))
    };
    let shown = |mount: &CgroupMount| {
        Some((mount.mount_point.join(path.strip_prefix(&mount.root).ok()?), mount.mount_point.clone()))
    };
    let (dir, top) = mounts.iter().filter(same_tree).find_map(shown)?;
    // `/..` denotes a group outside of this process's cgroup namespace.
    if path.starts_with("/..") {
        return None;
    }
    let holds = Controllers::from_names(controllers.split(','));
    Some(CgroupMembership { version, controllers: holds, dir, mount_point: top })
}

/// Parses a line of mountinfo. Fields 4 and 5 are the root and the mount point; type, source and options follow the
/// single `-`. proc_pid_mountinfo(5).
fn parse_mount(line: &str) -> Option<CgroupMount> {
    let (front, back) = line.split_once(" - ")?;
    let mut back = back.split(' ');
    let version = match back.next()? {
        "cgroup" => CgroupVersion::V1,
        "cgroup2" => CgroupVersion::V2,
        _ => return None,
    };
    let options = back.nth(1)?.to_owned();
    let mut front = front.split(' ').skip(3);
    Some(CgroupMount { root: unescape(front.next()?), mount_point: unescape(front.next()?), version, options })
}

/// Decodes a path in which blank, tab, newline and backslash are written as a backslash and three octal digits.
fn unescape(field: &str) -> PathBuf {
    let mut bytes = Vec::with_capacity(field.len());
    let mut rest = field.as_bytes();
    while let Some((&byte, tail)) = rest.split_first() {
        let octal = tail.get(..3).filter(|_| byte == b'\\').and_then(|digits| std::str::from_utf8(digits).ok());
        match octal.and_then(|digits| u8::from_str_radix(digits, 8).ok()) {
            Some(code) => {
                bytes.push(code);
                rest = &tail[3..];
            }
            None => {
                bytes.push(byte);
                rest = tail;
            }
        }
    }
    PathBuf::from(OsString::from_vec(bytes))
}

#[cfg(test)]
mod tests {
    use super::*;

    const UNIFIED: &str = "30 23 0:26 / /sys/fs/cgroup rw,nosuid shared:9 - cgroup2 cgroup2 rw,nsdelegate\n";
    const HYBRID: &str = "\
        22 1 0:21 / / rw - ext4 /dev/vda rw\n\
        33 31 0:30 / /sys/fs/cgroup/cpu,cpuacct rw,relatime - cgroup cgroup rw,cpu,cpuacct\n\
        35 31 0:32 / /sys/fs/cgroup/memory rw,relatime - cgroup cgroup rw,memory\n\
        40 31 0:37 / /sys/fs/cgroup/systemd rw,relatime - cgroup cgroup rw,name=systemd\n\
        41 31 0:38 / /sys/fs/cgroup/unified rw,relatime - cgroup2 cgroup2 rw\n";

    fn dirs(memberships: &str, mountinfo: &str) -> Vec<String> {
        find_memberships(memberships, mountinfo).iter().map(|place| place.dir.display().to_string()).collect()
    }

    #[test]
    fn finds_unified_tree() {
        let found = find_memberships("0::/user.slice/x.scope\n", UNIFIED);
        let place = found.first().expect("one place");
        assert_eq!((place.version, place.controllers), (CgroupVersion::V2, Controllers::default()));
        assert_eq!(place.dir, Path::new("/sys/fs/cgroup/user.slice/x.scope"));
        assert_eq!(place.mount_point, Path::new("/sys/fs/cgroup"));
    }

    #[test]
    fn finds_every_tree_of_hybrid_host() {
        let found = find_memberships("5:pids:/\n4:memory:/a\n2:cpu,cpuacct:/b\n1:name=systemd:/c\n0::/d\n", HYBRID);
        let seen: Vec<_> = found.iter().map(|place| (place.dir.display().to_string(), place.controllers)).collect();
        let holds = |names: &[&str]| Controllers::from_names(names.iter().copied());
        // `pids` has no mount, so it is unusable.
        let expected = [
            ("/sys/fs/cgroup/memory/a".to_owned(), holds(&["memory"])),
            ("/sys/fs/cgroup/cpu,cpuacct/b".to_owned(), holds(&["cpuacct"])),
            ("/sys/fs/cgroup/systemd/c".to_owned(), holds(&[])),
            ("/sys/fs/cgroup/unified/d".to_owned(), holds(&[])),
        ];
        assert_eq!(seen, expected);
    }

    #[test]
    fn strips_mount_root() {
        let inside = "30 23 0:26 /docker/abc /sys/fs/cgroup ro - cgroup2 cgroup rw\n";
        assert_eq!(dirs("0::/docker/abc/x\n", inside), ["/sys/fs/cgroup/x"]);
        assert_eq!(dirs("0::/docker/abc\n", inside), ["/sys/fs/cgroup/"]);
        assert_eq!(dirs("0::/docker/abcd\n", inside), [""; 0]);
    }

    #[test]
    fn ignores_groups_outside_namespace() {
        assert_eq!(dirs("0::/../other\n", UNIFIED), [""; 0]);
        assert_eq!(dirs("0::/x\n", ""), [""; 0]);
        assert_eq!(dirs("broken\n", UNIFIED), [""; 0]);
    }

    #[test]
    fn decodes_escaped_mount_points() {
        let odd = "30 23 0:26 / /my\\040groups\\134x rw - cgroup2 cgroup2 rw\n";
        assert_eq!(dirs("0::/a\n", odd), ["/my groups\\x/a"]);
        assert_eq!(unescape("/a\\04"), Path::new("/a\\04"));
    }

    #[test]
    fn displays_controllers() {
        assert_eq!(Controllers::from_names(["memory", "pids", "cpuacct", "io"]).to_string(), "memory, pids, cpu");
        assert_eq!(
            Controllers::from_names(["pids"]).union(Controllers::from_names(["memory"])).to_string(),
            "memory, pids"
        );
        assert_eq!(Controllers::default().to_string(), "");
    }
}
