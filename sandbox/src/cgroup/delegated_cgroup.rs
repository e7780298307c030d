//! Uses this process's cgroup of v2, if proctor may divide it: moves this process to a child group and enables the
//! controllers for child groups. Cgroups with other processes are not changed.

use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::time::Instant;

use super::control_files;
use super::membership::{CgroupMembership, CgroupVersion, Controllers};
use super::subtree::{self, Subtree};
use super::systemd_scope::{self, CgroupManager};
use crate::cgroup::control_files::{file_has_limit_controllers, has_limit_controllers};
use crate::cgroup::location_state::{DaemonCgroup, SUBTREE_CONTROL, SWEEP_TIMEOUT, UsedTree};
use crate::cgroup::unusable::CgroupUnusable;

/// Uses this process's cgroup of v2.
pub(super) fn use_own_cgroup(places: &[CgroupMembership], manager: CgroupManager) -> Result<UsedTree, CgroupUnusable> {
    let place = places.iter().find(|place| place.version == CgroupVersion::V2).ok_or(CgroupUnusable::NoV2Mount)?;
    let base = &place.dir;
    if !has_limit_controllers(base) {
        return Err(CgroupUnusable::MissingControllers(base.clone()));
    }
    // Only the root has no type; it may contain processes and enable controllers for its children.
    let kind = control_files::read(base, "cgroup.type");
    if let Some(kind) = &kind {
        check_exclusive(base, kind.trim(), manager)?;
    }
    subtree::sweep_around(base, &place.mount_point, Instant::now() + SWEEP_TIMEOUT);
    create_subtree(base, kind.is_some()).map_err(|error| CgroupUnusable::Refused { version: CgroupVersion::V2, error })
}

fn check_exclusive(base: &Path, kind: &str, manager: CgroupManager) -> Result<(), CgroupUnusable> {
    if kind != "domain" {
        return Err(CgroupUnusable::Threaded(base.to_owned()));
    }
    if !is_delegated(base, manager) {
        return Err(CgroupUnusable::NotDelegated(base.to_owned()));
    }
    let refused = |error| CgroupUnusable::Refused { version: CgroupVersion::V2, error };
    let processes = control_files::processes(base).map_err(refused)?;
    if !processes.contains(&std::process::id()) {
        return Err(CgroupUnusable::NotAMember(base.to_owned()));
    }
    match processes.len() - 1 {
        0 => Ok(()),
        others => Err(CgroupUnusable::Shared { dir: base.to_owned(), others }),
    }
}

/// Returns whether the manager of this machine's cgroups has delegated this one to proctor. systemd marks delegated
/// cgroups (`systemd.resource-control(5)`, `Delegate=`; its `CGROUP_DELEGATION` document describes the mark), and
/// makes the unit's user their owner.
fn is_delegated(base: &Path, manager: CgroupManager) -> bool {
    match manager {
        CgroupManager::Unmanaged => true,
        CgroupManager::Systemd => has_delegation_mark(base) || has_delegated_owner(base) || is_own_scope(base),
    }
}

fn has_delegation_mark(base: &Path) -> bool {
    ["trusted.delegate", "user.delegate"].iter().any(|name| {
        let mut value = [0; 8];
        rustix::fs::getxattr(base, *name, &mut value).is_ok_and(|length| value.starts_with(b"1") && length == 1)
    })
}

fn is_own_scope(base: &Path) -> bool {
    base.file_name().is_some_and(|name| name == systemd_scope::own_unit().as_str())
}

/// Returns whether the cgroup was handed over: an ordinary user owns a cgroup below another user's only in that case.
fn has_delegated_owner(base: &Path) -> bool {
    let owner = |path: &Path| std::fs::metadata(path).ok().map(|found| found.uid());
    let user = rustix::process::geteuid().as_raw();
    user != 0 && owner(base) == Some(user) && base.parent().is_some_and(|above| owner(above) != Some(user))
}

/// Creates proctor's directory, moves this process if necessary, and enables the controllers for child groups.
fn create_subtree(base: &Path, moving: bool) -> io::Result<UsedTree> {
    let subtree = Subtree::create(base)?;
    let mut home = if moving { Some(DaemonCgroup::enter(base, &subtree)?) } else { None };
    let enabled = enable_controllers(base)?;
    if let Some(home) = &mut home {
        home.enabled = enabled;
    }
    enable_controllers(subtree.dir())?;
    let holds = Controllers { memory: true, pids: true, cpu: subtree.dir().join("cpu.stat").exists() };
    Ok(UsedTree { version: CgroupVersion::V2, controllers: holds, _daemon_cgroup: home, subtree })
}

/// Enables the controllers; returns whether that changed anything.
fn enable_controllers(dir: &Path) -> io::Result<bool> {
    if file_has_limit_controllers(dir, SUBTREE_CONTROL) {
        return Ok(false);
    }
    control_files::write(dir, SUBTREE_CONTROL, "+memory +pids").map(|()| true)
}

#[cfg(test)]
#[expect(clippy::disallowed_methods, reason = "tests write plain files")]
mod tests {
    use super::*;

    /// Creates a directory of plain files that imitates a cgroup.
    fn fake_cgroup(files: &[(&str, &str)]) -> (tempfile::TempDir, Vec<CgroupMembership>) {
        let dir = tempfile::tempdir().expect("tempdir");
        for (name, text) in files {
            std::fs::write(dir.path().join(name), text).expect("write");
        }
        let (dir_path, top) = (dir.path().to_owned(), dir.path().to_owned());
        let place = CgroupMembership {
            version: CgroupVersion::V2,
            controllers: Controllers::default(),
            dir: dir_path,
            mount_point: top,
        };
        (dir, vec![place])
    }

    fn refusal(files: &[(&str, &str)], manager: CgroupManager) -> String {
        let (_dir, places) = fake_cgroup(files);
        use_own_cgroup(&places, manager).expect_err("unusable").to_string()
    }

    fn own_cgroup_files(kind: &str, others: &str) -> Vec<(&'static str, String)> {
        let processes = format!("{}\n{others}", std::process::id());
        vec![
            ("cgroup.controllers", "cpu memory pids\n".to_owned()),
            ("cgroup.type", format!("{kind}\n")),
            ("cgroup.procs", processes),
        ]
    }

    fn refusal_of_owned(files: &[(&str, String)], manager: CgroupManager) -> String {
        let files: Vec<_> = files.iter().map(|(name, text)| (*name, text.as_str())).collect();
        refusal(&files, manager)
    }

    #[test]
    fn requires_both_controllers() {
        for controllers in ["", "hugetlb\n", "memory\n", "pids cpu\n"] {
            let why = refusal(&[("cgroup.controllers", controllers)], CgroupManager::Unmanaged);
            assert!(why.contains("lacks the memory or the pids"), "{why}");
        }
        assert!(use_own_cgroup(&[], CgroupManager::Unmanaged).expect_err("none").to_string().contains("no mount"));
    }

    #[test]
    fn refuses_shared_and_threaded_cgroups() {
        let why = refusal_of_owned(&own_cgroup_files("domain", "1\n2\n"), CgroupManager::Unmanaged);
        assert!(why.contains("2 other processes"), "{why}");
        let why = refusal_of_owned(&own_cgroup_files("threaded", ""), CgroupManager::Unmanaged);
        assert!(why.contains("threaded"), "{why}");
        let mut strange = own_cgroup_files("domain", "");
        strange[2].1 = "1\n".to_owned();
        assert!(refusal_of_owned(&strange, CgroupManager::Unmanaged).contains("not in its list"));
    }

    #[test]
    fn requires_delegation_under_systemd() {
        let why = refusal_of_owned(&own_cgroup_files("domain", ""), CgroupManager::Systemd);
        // A cgroup owned by an ordinary user counts as delegated; the check then fails at a file that is absent here.
        let expected = if rustix::process::geteuid().is_root() { "not delegated" } else { "cgroup.procs" };
        assert!(why.contains(expected), "{why}");
    }

    #[test]
    fn leaves_no_directories_after_failed_setup() {
        let (dir, places) = fake_cgroup(&[("cgroup.controllers", "memory pids\n"), ("cgroup.subtree_control", "")]);
        let why =
            use_own_cgroup(&places, CgroupManager::Unmanaged).expect_err("a new directory has no control files here");
        assert!(matches!(why, CgroupUnusable::Refused { .. }), "{why}");
        let left: Vec<_> = std::fs::read_dir(dir.path()).expect("list").flatten().map(|e| e.path()).collect();
        assert!(left.iter().all(|path| path.is_file()), "{left:?}");
    }
}
