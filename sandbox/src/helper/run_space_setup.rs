//! Makes the run space: a mount namespace with a tmpfs for the layers of a run, which this process returns as
//! descriptors before it ends. No process is needed to keep it alive.

use std::ffi::CString;
use std::io::{self, Read, Write};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;

use nix::sched::CloneFlags;
use proctor_core::model::enforcement::Control;
use rustix::fs::{CWD, Mode, OFlags, StatVfsMountFlags};
use rustix::mount::MountAttrFlags;
use rustix::process::{Pid, Signal, WaitOptions};

use super::mounts::{self, MountOption};
use super::overlay::create_overlay;
use super::setup_failure::{SetupFailure, internal, refuse};
use crate::host::{MAPPED_BASE, MAPPED_COUNT, pick_run_uid};
use crate::removal::remove_dir;
use crate::run_space::{UPPER, WORK};
use crate::sys::{self, ForkResult};
use crate::wire::{self, HelperMessage, NamespaceCheck, RunSpaceRequest};

pub(super) fn create_run_space(control: BorrowedFd<'_>, request: &RunSpaceRequest) -> Result<(), SetupFailure> {
    let (users, own) = match request.user {
        None => {
            enter_namespaces(CloneFlags::CLONE_NEWNS, Control::MountNamespace)?;
            let own = PickedRunUser::pick(&request.at);
            let owner = own.as_ref().map_or(MAPPED_BASE, |own| own.id);
            let users = create_owner_namespace(&repository_owner_map(owner));
            (users.map_err(refuse(Control::UserNamespace, "create the user namespace that maps owners"))?, own)
        }
        Some((uid, gid)) => {
            enter_namespaces(CloneFlags::CLONE_NEWUSER | CloneFlags::CLONE_NEWNS, Control::UserNamespace)?;
            map_own_ids(uid, gid).map_err(refuse(Control::UserNamespace, "map the caller's user and group"))?;
            (open_namespace("user").map_err(internal("open the user namespace"))?, None)
        }
    };
    if request.beforehand == NamespaceCheck::Namespaces {
        try_namespaces()?;
    }
    mounts::make_all_private().map_err(refuse(Control::MountNamespace, "make all mounts private"))?;
    let dir = mount_layers(request).map_err(refuse(Control::Layer, "mount a tmpfs for the layers"))?;
    let mount_ns = open_namespace("mnt").map_err(internal("open the mount namespace"))?;
    let mut fds = vec![dir.as_fd(), mount_ns.as_fd(), users.as_fd()];
    fds.extend(own.as_ref().map(|own| own.caches.as_fd()));
    let own_id = own.as_ref().map(|own| own.id);
    let no_cache_overlay = request.caches.as_deref().and_then(|dir| try_cache_overlay(dir).err());
    let no_cache_overlay = no_cache_overlay.map(|error| error.to_string());
    wire::send(control, &HelperMessage::Space { own_id, no_cache_overlay }, &fds)
        .map_err(internal("pass on the descriptor of the run space"))
}

/// The host user that only one run's steps over root's repository have.
struct PickedRunUser {
    id: u32,
    /// The user namespace that maps the on-disk owner of root's caches to this user.
    caches: OwnedFd,
}

impl PickedRunUser {
    /// Picks a user; `None` if the file system of the state directory, which stores the caches, cannot map owners.
    /// All runs then share one user.
    fn pick(state: &Path) -> Option<Self> {
        let id = pick_run_uid().ok()?;
        let caches = create_owner_namespace(&format!("{MAPPED_BASE} {id} 1")).ok()?;
        mounts::clone_mount(state).and_then(|clone| mounts::map_owners(clone.as_fd(), caches.as_fd())).ok()?;
        Some(Self { id, caches })
    }
}

/// Returns a map of root to `owner`, and of a repository's other owners to ids that no step has.
fn repository_owner_map(owner: u32) -> String {
    format!("0 {owner} 1\n1 {} {}", MAPPED_BASE + 1, MAPPED_COUNT - 1)
}

fn enter_namespaces(flags: CloneFlags, control: Control) -> Result<(), SetupFailure> {
    nix::sched::unshare(flags).map_err(refuse(control, "create a namespace for the run's layers"))
}

/// The other namespaces of an attempt, each with the control that depends on it.
const NAMESPACES: [(CloneFlags, Control); 4] = [
    (CloneFlags::CLONE_NEWPID, Control::PidNamespace),
    (CloneFlags::CLONE_NEWIPC, Control::IpcNamespace),
    (CloneFlags::CLONE_NEWUTS, Control::UtsNamespace),
    (CloneFlags::CLONE_NEWNET, Control::NetworkNamespace),
];

/// Tries to create one namespace of each kind in a child process, which then exits.
fn try_namespaces() -> Result<(), SetupFailure> {
    let tried = internal("try the namespaces of an attempt");
    let made = || {
        let (ours, theirs) = wire::socket_pair()?;
        match sys::fork()? {
            ForkResult::Child => {
                let answers =
                    NAMESPACES.map(|(flag, _)| nix::sched::unshare(flag).err().map_or(0, |errno| errno as i32));
                drop(std::fs::File::from(theirs).write_all(&answers.map(i32::to_ne_bytes).concat()));
                std::process::exit(0)
            }
            ForkResult::Parent(pid) => {
                drop(theirs);
                let mut answers = [0; 4 * NAMESPACES.len()];
                let read = std::fs::File::from(ours).read_exact(&mut answers);
                let pid = Pid::from_raw(pid).ok_or_else(|| io::Error::other("fork returned no process"))?;
                rustix::process::waitpid(Some(pid), WaitOptions::empty())?;
                read.map(|()| answers)
            }
        }
    };
    let answers = made().map_err(tried)?;
    for ((_, control), answer) in NAMESPACES.into_iter().zip(answers.as_chunks::<4>().0) {
        let errno = i32::from_ne_bytes(*answer);
        if errno != 0 {
            let error = io::Error::from_raw_os_error(errno);
            return Err(refuse(control, format_args!("create the {} of an attempt", control.as_str()))(error));
        }
    }
    Ok(())
}

fn mount_layers(request: &RunSpaceRequest) -> io::Result<OwnedFd> {
    let options = [
        MountOption("size", request.bytes.to_string()),
        MountOption("nr_inodes", request.inodes.to_string()),
        MountOption("mode", "700".to_owned()),
    ];
    // Reading a layer must not change access times.
    let attributes =
        MountAttrFlags::MOUNT_ATTR_NOSUID | MountAttrFlags::MOUNT_ATTR_NODEV | MountAttrFlags::MOUNT_ATTR_NOATIME;
    let layers = mounts::new_filesystem("tmpfs", &options, attributes)?;
    mounts::attach_at(layers.as_fd(), &request.at)?;
    mounts::open_readable_dir(&request.at)
}

/// Makes an overlay like that of a cache in `dir`, and removes it again.
fn try_cache_overlay(dir: &Path) -> io::Result<()> {
    let dir = mounts::open_readable_dir(dir)?;
    let name = format!("trial-{}", std::process::id());
    let made = try_overlay_in(&dir, &name);
    // An earlier process with the same id may have left it. A failure is ignored, since the next trial removes it.
    let _ = remove_dir(dir.as_fd(), &CString::new(name)?);
    made
}

fn try_overlay_in(dir: &OwnedFd, name: &str) -> io::Result<()> {
    let trial = mounts::create_dir_in(dir.as_fd(), name, 0o700, None)?;
    let [lower, upper, work] =
        ["lower", UPPER, WORK].map(|part| mounts::create_dir_in(trial.as_fd(), part, 0o700, None));
    let descriptors = mounts::open_dir(Path::new("/proc/self/fd"))?;
    let overlay = create_overlay(&descriptors, &[lower?.as_fd()], &upper?, &work?)?;
    match rustix::fs::fstatvfs(&overlay)?.f_flag.contains(StatVfsMountFlags::RDONLY) {
        true => Err(io::Error::other("the kernel makes it read-only")),
        false => Ok(()),
    }
}

/// Maps one user and one group to themselves. An unprivileged process must disable `setgroups` before it may map a
/// group.
pub(super) fn map_own_ids(uid: u32, gid: u32) -> io::Result<()> {
    map_ids((uid, gid), (uid, gid))
}

/// Maps one user and one group of the host to the ids `seen`.
pub(super) fn map_ids((uid, gid): (u32, u32), seen: (u32, u32)) -> io::Result<()> {
    write_proc("/proc/self/setgroups", "deny")?;
    write_proc("/proc/self/gid_map", &format!("{} {gid} 1", seen.1))?;
    write_proc("/proc/self/uid_map", &format!("{} {uid} 1", seen.0))
}

fn write_proc(path: &str, text: &str) -> io::Result<()> {
    std::fs::OpenOptions::new().write(true).open(path)?.write_all(text.as_bytes())
}

fn open_namespace(kind: &str) -> io::Result<OwnedFd> {
    let path = format!("/proc/self/ns/{kind}");
    Ok(rustix::fs::openat(CWD, Path::new(&path), OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty())?)
}

/// Returns a user namespace with this map of users and groups: a child creates it and waits while this process writes
/// the maps.
fn create_owner_namespace(map: &str) -> io::Result<OwnedFd> {
    let (ours, theirs) = wire::socket_pair()?;
    let pid = match sys::fork()? {
        ForkResult::Child => {
            drop(ours);
            hold_user_namespace(theirs)
        }
        ForkResult::Parent(pid) => pid,
    };
    drop(theirs);
    let opened = map_and_open_namespace(&ours, pid, map);
    let pid = Pid::from_raw(pid).ok_or_else(|| io::Error::other("fork returned no process"))?;
    // The process may already have ended, because the namespace was refused.
    let _ = rustix::process::kill_process(pid, Signal::KILL);
    rustix::process::waitpid(Some(pid), WaitOptions::empty())?;
    opened
}

fn hold_user_namespace(theirs: OwnedFd) -> ! {
    let entered = nix::sched::unshare(CloneFlags::CLONE_NEWUSER);
    let mut channel = std::fs::File::from(theirs);
    let errno = entered.err().map_or(0, |errno| errno as i32);
    // If the parent has ended, the read below returns at once.
    drop(channel.write_all(&errno.to_ne_bytes()));
    drop(channel.read(&mut [0]));
    std::process::exit(0)
}

fn map_and_open_namespace(ours: &OwnedFd, pid: i32, map: &str) -> io::Result<OwnedFd> {
    let mut errno = [0; 4];
    std::fs::File::from(ours.try_clone()?).read_exact(&mut errno)?;
    match i32::from_ne_bytes(errno) {
        0 => {}
        errno => return Err(io::Error::from_raw_os_error(errno)),
    }
    write_proc(&format!("/proc/{pid}/uid_map"), map)?;
    write_proc(&format!("/proc/{pid}/gid_map"), map)?;
    let path = format!("/proc/{pid}/ns/user");
    Ok(rustix::fs::openat(CWD, Path::new(&path), OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty())?)
}
