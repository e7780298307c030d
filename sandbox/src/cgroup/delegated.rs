//! Uses this process's cgroup of v2, if proctor may divide it: moves this process to a child group and enables the
//! controllers for child groups. Cgroups with other processes are not changed.

use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use super::control;
use super::place::{Holds, Place, Version};
use super::scope::{self, Manager};
use super::seat::{Branch, SWEEP, Unusable};
use super::subtree::{self, OWN, Subtree};

/// How long the daemon's group may stay busy after this process has left it.
const LEAVING: Duration = Duration::from_millis(100);

/// The group for this process while its siblings contain attempts: a cgroup that enables controllers for its children
/// may not contain processes (the kernel's cgroup-v2.rst, "No Internal Process Constraint"). Dropping it moves this
/// process back.
#[derive(Debug)]
pub(super) struct Home {
    base: PathBuf,
    subtree: PathBuf,
    /// `true` if proctor enabled the controllers of `base` for its children.
    enabled: bool,
}

/// Uses this process's cgroup of v2.
pub(super) fn take(places: &[Place], manager: Manager) -> Result<Branch, Unusable> {
    let place = places.iter().find(|place| place.version == Version::V2).ok_or(Unusable::NoUnified)?;
    let base = &place.dir;
    if !gives_limits(base) {
        return Err(Unusable::Controllers(base.clone()));
    }
    // Only the root has no type; it may contain processes and enable controllers for its children.
    let kind = control::read(base, "cgroup.type");
    if let Some(kind) = &kind {
        check_alone(base, kind.trim(), manager)?;
    }
    subtree::sweep_around(base, &place.top, Instant::now() + SWEEP);
    divide(base, kind.is_some()).map_err(|error| Unusable::Refused { version: Version::V2, error })
}

/// Returns whether the group may limit memory and processes.
pub(super) fn gives_limits(dir: &Path) -> bool {
    has_limits(dir, "cgroup.controllers")
}

fn has_limits(dir: &Path, file: &str) -> bool {
    let names = control::read(dir, file).unwrap_or_default();
    let holds = Holds::of(names.split_whitespace());
    holds.memory && holds.pids
}

fn check_alone(base: &Path, kind: &str, manager: Manager) -> Result<(), Unusable> {
    if kind != "domain" {
        return Err(Unusable::Threaded(base.to_owned()));
    }
    if !is_ours(base, manager) {
        return Err(Unusable::Undelegated(base.to_owned()));
    }
    let refused = |error| Unusable::Refused { version: Version::V2, error };
    let processes = control::processes(base).map_err(refused)?;
    if !processes.contains(&std::process::id()) {
        return Err(Unusable::Elsewhere(base.to_owned()));
    }
    match processes.len() - 1 {
        0 => Ok(()),
        others => Err(Unusable::Shared { dir: base.to_owned(), others }),
    }
}

/// Returns whether the manager of this machine's cgroups has delegated this one to proctor. systemd marks delegated
/// cgroups (`systemd.resource-control(5)`, `Delegate=`; its `CGROUP_DELEGATION` document describes the mark), and
/// makes the unit's user their owner.
fn is_ours(base: &Path, manager: Manager) -> bool {
    match manager {
        Manager::Nobody => true,
        Manager::Systemd => is_marked(base) || is_given(base) || is_our_scope(base),
    }
}

fn is_marked(base: &Path) -> bool {
    ["trusted.delegate", "user.delegate"].iter().any(|name| {
        let mut value = [0; 8];
        rustix::fs::getxattr(base, *name, &mut value).is_ok_and(|length| value.starts_with(b"1") && length == 1)
    })
}

fn is_our_scope(base: &Path) -> bool {
    base.file_name().is_some_and(|name| name == scope::own_unit().as_str())
}

/// Returns whether the cgroup was handed over: an ordinary user owns a cgroup below another user's only in that case.
fn is_given(base: &Path) -> bool {
    let owner = |path: &Path| std::fs::metadata(path).ok().map(|found| found.uid());
    let user = rustix::process::geteuid().as_raw();
    user != 0 && owner(base) == Some(user) && base.parent().is_some_and(|above| owner(above) != Some(user))
}

/// Creates proctor's directory, moves this process if necessary, and enables the controllers for child groups.
fn divide(base: &Path, moving: bool) -> io::Result<Branch> {
    let subtree = Subtree::create(base)?;
    let mut home = if moving { Some(Home::enter(base, &subtree)?) } else { None };
    let enabled = enable(base)?;
    if let Some(home) = &mut home {
        home.enabled = enabled;
    }
    enable(subtree.dir())?;
    let holds = Holds { memory: true, pids: true, cpu: subtree.dir().join("cpu.stat").exists() };
    Ok(Branch { version: Version::V2, holds, _home: home, subtree })
}

/// Enables the controllers; returns whether that changed anything.
fn enable(dir: &Path) -> io::Result<bool> {
    if has_limits(dir, SUBTREE) {
        return Ok(false);
    }
    control::write(dir, SUBTREE, "+memory +pids").map(|()| true)
}

const SUBTREE: &str = "cgroup.subtree_control";

impl Home {
    /// Moves this process with all its threads.
    fn enter(base: &Path, subtree: &Subtree) -> io::Result<Self> {
        let own = subtree.dir().join(OWN);
        subtree::make(&own)?;
        if let Err(error) = control::write(&own, "cgroup.procs", "0") {
            drop(std::fs::remove_dir(&own));
            return Err(error);
        }
        Ok(Self { base: base.to_owned(), subtree: subtree.dir().to_owned(), enabled: false })
    }
}

impl Drop for Home {
    /// Disables the controllers first: a cgroup that enables them for its children accepts no process. If an
    /// operation fails because other processes are in the cgroup, the rest stays, and the next owner sweeps it.
    fn drop(&mut self) {
        drop(control::write(&self.subtree, SUBTREE, "-memory -pids"));
        if self.enabled {
            drop(control::write(&self.base, SUBTREE, "-memory -pids"));
        }
        drop(control::write(&self.base, "cgroup.procs", "0"));
        drop(subtree::remove_until(&self.subtree.join(OWN), Instant::now() + LEAVING));
    }
}

#[cfg(test)]
#[expect(clippy::disallowed_methods, reason = "tests write plain files")]
mod tests {
    use super::*;

    /// Creates a directory of plain files that imitates a cgroup.
    fn plain(files: &[(&str, &str)]) -> (tempfile::TempDir, Vec<Place>) {
        let dir = tempfile::tempdir().expect("tempdir");
        for (name, text) in files {
            std::fs::write(dir.path().join(name), text).expect("write");
        }
        let (dir_path, top) = (dir.path().to_owned(), dir.path().to_owned());
        let place = Place { version: Version::V2, holds: Holds::default(), dir: dir_path, top };
        (dir, vec![place])
    }

    fn refusal(files: &[(&str, &str)], manager: Manager) -> String {
        let (_dir, places) = plain(files);
        take(&places, manager).expect_err("unusable").to_string()
    }

    fn own(kind: &str, others: &str) -> Vec<(&'static str, String)> {
        let processes = format!("{}\n{others}", std::process::id());
        vec![
            ("cgroup.controllers", "cpu memory pids\n".to_owned()),
            ("cgroup.type", format!("{kind}\n")),
            ("cgroup.procs", processes),
        ]
    }

    fn refused(files: &[(&str, String)], manager: Manager) -> String {
        let files: Vec<_> = files.iter().map(|(name, text)| (*name, text.as_str())).collect();
        refusal(&files, manager)
    }

    #[test]
    fn on_plain_files_both_controllers_are_wanted() {
        for controllers in ["", "hugetlb\n", "memory\n", "pids cpu\n"] {
            let why = refusal(&[("cgroup.controllers", controllers)], Manager::Nobody);
            assert!(why.contains("lacks the memory or the pids"), "{why}");
        }
        assert!(take(&[], Manager::Nobody).expect_err("none").to_string().contains("no mount"));
    }

    #[test]
    fn on_plain_files_others_are_left_alone() {
        let why = refused(&own("domain", "1\n2\n"), Manager::Nobody);
        assert!(why.contains("2 other processes"), "{why}");
        let why = refused(&own("threaded", ""), Manager::Nobody);
        assert!(why.contains("threaded"), "{why}");
        let mut strange = own("domain", "");
        strange[2].1 = "1\n".to_owned();
        assert!(refused(&strange, Manager::Nobody).contains("not in its list"));
    }

    #[test]
    fn on_plain_files_systemd_has_to_delegate() {
        let why = refused(&own("domain", ""), Manager::Systemd);
        // A cgroup owned by an ordinary user counts as delegated; the check then fails at a file that is absent here.
        let expected = if rustix::process::geteuid().is_root() { "not delegated" } else { "cgroup.procs" };
        assert!(why.contains(expected), "{why}");
    }

    #[test]
    fn on_plain_files_what_cannot_be_divided_is_left_clean() {
        let (dir, places) = plain(&[("cgroup.controllers", "memory pids\n"), ("cgroup.subtree_control", "")]);
        let why = take(&places, Manager::Nobody).expect_err("a new directory has no control files here");
        assert!(matches!(why, Unusable::Refused { .. }), "{why}");
        let left: Vec<_> = std::fs::read_dir(dir.path()).expect("list").flatten().map(|e| e.path()).collect();
        assert!(left.iter().all(|path| path.is_file()), "{left:?}");
    }
}
