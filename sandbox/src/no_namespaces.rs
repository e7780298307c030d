//! Implements the daemon's side of sandboxes without namespaces: for a kernel that refuses them and a caller who has
//! explicitly accepted fewer controls. Layers are stored in a private directory of the host, and each attempt runs in
//! a copy of the tree. The helper's side is in `helper/no_namespaces.rs`.
//!
//! The directory is locked (`flock`) as long as its owner lives. The kernel releases the lock however the owner ends,
//! so that the next run can recognise abandoned directories.

use std::ffi::{CStr, CString};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};

use proctor_core::model::enforcement::{Control, Tolerated};
use rustix::fs::{FlockOperation, Gid, Mode, OFlags};
use rustix::io::Errno;

use crate::error::SandboxError;
use crate::host::{Host, StepUser};
use crate::policy::{Frame, ToolKind};
use crate::removal::remove_dir;
use crate::setup::{HIDDEN_DIRS, hidden_resolv_conf};
use crate::wire::{CgroupEntry, HostDirSandboxRequest, LayerIds, SandboxRequest};

/// The controls that such a sandbox never enforces, on any kernel.
const NEVER_ENFORCED: [Control; 12] = [
    Control::UserNamespace,
    Control::MountNamespace,
    Control::PidNamespace,
    Control::NetworkNamespace,
    Control::IpcNamespace,
    Control::UtsNamespace,
    Control::CgroupNamespace,
    Control::PrivateProc,
    Control::PrivateTmp,
    Control::Layer,
    Control::DiskLimit,
    Control::KernelFiles,
];

/// Returns whether a run may do without all of these controls.
pub(crate) fn is_tolerated(tolerated: &Tolerated) -> bool {
    NEVER_ENFORCED.iter().all(|control| tolerated.contains(*control))
}

/// Directory name below the state directory, which no other user can enter.
const DIR_NAME: &str = "plain";
/// Directory for root. A step that runs as another user cannot access root's state directory.
const ROOT_BASE_DIR: &str = "/var/tmp/proctor-plain";
/// Number of names to try if another process creates or removes the directory concurrently.
const MAX_TRIES: usize = 16;

/// A host directory for the layers of one run. It is removed when this value is dropped.
#[derive(Debug)]
pub(crate) struct HostDirSpace {
    parent: OwnedFd,
    name: CString,
    path: PathBuf,
    /// The kernel's answer when namespaces were tried.
    refusal: String,
    /// How to make namespaces available.
    hint: String,
}

impl HostDirSpace {
    /// Creates the directory, and removes those whose owners have died.
    ///
    /// # Errors
    /// The directory cannot be created; or, under root, its parent belongs to another user.
    pub(crate) fn create(host: &Host, refusal: String, hint: String) -> Result<(Self, OwnedFd), SandboxError> {
        let base = if host.is_root() { PathBuf::from(ROOT_BASE_DIR) } else { host.state_dir.join(DIR_NAME) };
        let parent = open_base(&base, host)?;
        sweep(parent.as_fd());
        for _ in 0..MAX_TRIES {
            let (name, dir) = match create_locked(parent.as_fd(), host) {
                // Another run removed it as abandoned before it was locked.
                Err(Errno::NOENT | Errno::AGAIN | Errno::EXIST) => continue,
                other => other.map_err(SandboxError::system("cannot create a directory for the layers of a run"))?,
            };
            let path = base.join(name.to_string_lossy().as_ref());
            return Ok((Self { parent, name, path, refusal, hint }, dir));
        }
        Err(SandboxError::System {
            what: "cannot create a directory for the layers of a run",
            source: Errno::AGAIN.into(),
        })
    }

    /// Returns the path of the directory.
    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// Returns the request to the helper.
    pub(crate) fn build_request(
        &self,
        frame: Frame,
        host: &Host,
        user: StepUser,
        entry: CgroupEntry,
        layers: LayerIds,
    ) -> HostDirSandboxRequest {
        let own = [host.home.clone(), host.state_dir.clone()]
            .into_iter()
            .chain(host.homes.get(&user.ids_in_sandbox().0).cloned());
        let masked = frame.tools.iter().filter(|tool| tool.kind == ToolKind::Masked).map(|tool| tool.source.clone());
        let hidden = HIDDEN_DIRS.map(PathBuf::from).into_iter().chain(own).chain(frame.hide.clone()).chain(masked);
        let hidden = hidden.filter(|path| path.parent().is_some()).collect();
        let resolver = hidden_resolv_conf(&frame, host).map(Path::to_owned);
        let (ops, serves_on) = (Vec::new(), false);
        let sandbox =
            SandboxRequest { frame, user, maps_caches: false, space: self.path.clone(), entry, layers, ops, serves_on };
        let (refusal, hint) = (self.refusal.clone(), self.hint.clone());
        HostDirSandboxRequest { sandbox, refusal, hint, hidden, resolver }
    }
}

impl Drop for HostDirSpace {
    fn drop(&mut self) {
        // A directory that cannot be removed now counts as abandoned as soon as its lock is released, and the next
        // run tries again.
        let _ = remove_dir(self.parent.as_fd(), &self.name);
    }
}

/// Lets the step's user enter the directory of one attempt, and no other user.
pub(crate) fn grant_step_access(dir: &OwnedFd, user: StepUser) -> rustix::io::Result<()> {
    if !user.is_set_up_by_root() {
        return Ok(());
    }
    rustix::fs::fchown(dir, None, Some(Gid::from_raw(user.gid())))?;
    rustix::fs::fchmod(dir, Mode::RWXU | Mode::XGRP)
}

/// Opens the parent directory and checks its owner: in a world-writable directory, another user may have created it
/// first.
fn open_base(base: &Path, host: &Host) -> Result<OwnedFd, SandboxError> {
    let mode = directory_mode(host);
    let cannot = |errno: Errno| SandboxError::Path {
        what: "cannot create the directory for layers",
        path: base.to_owned(),
        source: errno.into(),
    };
    match rustix::fs::mkdir(base, Mode::RWXU) {
        Ok(()) | Err(Errno::EXIST) => {}
        Err(errno) => return Err(cannot(errno)),
    }
    let dir = rustix::fs::open(base, DIRECTORY, Mode::empty()).map_err(cannot)?;
    let owner = rustix::fs::fstat(&dir).map_err(cannot)?.st_uid;
    if owner != host.euid {
        return Err(SandboxError::policy(
            format!("`{}` belongs to user {owner}", base.display()),
            "remove it: proctor recreates it",
        ));
    }
    rustix::fs::fchmod(&dir, mode).map_err(cannot)?;
    Ok(dir)
}

/// Returns the mode of the directories. A step under root runs as another user and must be able to reach its own
/// directory.
fn directory_mode(host: &Host) -> Mode {
    if host.is_root() { Mode::RWXU | Mode::XGRP | Mode::XOTH } else { Mode::RWXU }
}

const DIRECTORY: OFlags = OFlags::RDONLY.union(OFlags::DIRECTORY).union(OFlags::NOFOLLOW).union(OFlags::CLOEXEC);

fn create_locked(parent: BorrowedFd<'_>, host: &Host) -> Result<(CString, OwnedFd), Errno> {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    let (own, next) = (std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed));
    let mut name = format!("{own}-{next}");
    if host.is_root() {
        // Other users can enter root's directory. An unguessable name keeps them from finding the files of a private
        // repository in it. In another user's directory, a name that does not change keeps the paths in outputs the
        // same, if the process has the same id, as on remote workers.
        let mut random = [0; 8];
        rustix::rand::getrandom(&mut random, rustix::rand::GetRandomFlags::empty())?;
        name.push_str(&format!("-{:016x}", u64::from_ne_bytes(random)));
    }
    let name = CString::new(name).map_err(|_| Errno::INVAL)?;
    rustix::fs::mkdirat(parent, &name, Mode::RWXU)?;
    let dir = rustix::fs::openat(parent, &name, DIRECTORY, Mode::empty())?;
    rustix::fs::flock(&dir, FlockOperation::NonBlockingLockExclusive)?;
    if rustix::fs::fstat(&dir)?.st_nlink == 0 {
        return Err(Errno::NOENT);
    }
    rustix::fs::fchmod(&dir, directory_mode(host))?;
    Ok((name, dir))
}

/// Removes the directories without an owner. One that cannot be removed is left for the next sweep.
fn sweep(parent: BorrowedFd<'_>) {
    let Ok(entries) = rustix::fs::Dir::read_from(parent) else { return };
    for entry in entries.flatten() {
        let name = entry.file_name();
        if !matches!(name.to_bytes(), b"." | b"..") && is_abandoned(parent, name) {
            let _ = remove_dir(parent, name);
        }
    }
}

fn is_abandoned(parent: BorrowedFd<'_>, name: &CStr) -> bool {
    let Ok(dir) = rustix::fs::openat(parent, name, DIRECTORY, Mode::empty()) else { return false };
    rustix::fs::flock(&dir, FlockOperation::NonBlockingLockExclusive).is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sweeps_abandoned_directories_only() {
        let dir = tempfile::tempdir().expect("a directory");
        let parent = rustix::fs::open(dir.path(), DIRECTORY, Mode::empty()).expect("opened");
        let names = [c"1-0", c"2-0"];
        for name in names {
            rustix::fs::mkdirat(&parent, name, Mode::RWXU).expect("made");
            let inner = rustix::fs::openat(&parent, name, DIRECTORY, Mode::empty()).expect("opened");
            rustix::fs::mkdirat(&inner, "0", Mode::empty()).expect("made");
        }
        let held = rustix::fs::openat(&parent, names[0], DIRECTORY, Mode::empty()).expect("opened");
        rustix::fs::flock(&held, FlockOperation::NonBlockingLockExclusive).expect("locked");
        sweep(parent.as_fd());
        let left: Vec<_> = dir.path().read_dir().expect("read").map(|entry| entry.expect("read").file_name()).collect();
        assert_eq!(left, ["1-0"]);
    }

    #[test]
    fn requires_tolerance_of_all_controls() {
        assert!(is_tolerated(&Tolerated::all()));
        assert!(!is_tolerated(&Tolerated::default()));
        assert!(!is_tolerated(&NEVER_ENFORCED.into_iter().skip(1).collect()));
    }
}
