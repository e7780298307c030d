//! Masks the files of `/proc` and `/sys` that expose the host, and the sockets of the host's services: mounts empty
//! files and directories over them, after the step's own `/proc` and `/sys` are mounted.
//!
//! A step could not open most of them anyway, since it is not root and has no capability. The masks matter for files
//! that every user may read, and if a kernel lacks a permission check.

pub(crate) mod sockets;

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;

use rustix::fs::{Mode, OFlags, StatVfsMountFlags};
use rustix::io::Errno;
use rustix::mount::MountAttrFlags;

pub(super) use sockets::{HostSockets, bound_sockets};

use super::mounts::{self, MountOption};
use crate::sys::{self, MountScope};

/// Files about the kernel itself, which only administrators need: its configuration, symbols, memory, keys, log and
/// scheduler, and the trigger that halts the machine. They cannot be opened.
///
/// Since each mask costs a mount, the list leaves out files that every kernel since 5.12 opens for root alone, and
/// files that expose less than these (`kpagecount` and similar ones, `pagetypeinfo`, `slabinfo`, `timer_list`,
/// `vmallocinfo`). A step is never root.
const CLOSED_PROC_FILES: [&str; 10] = [
    "config.gz",
    "kallsyms",
    "kcore",
    "key-users",
    "keys",
    "kmsg",
    "latency_stats",
    "sched_debug",
    "sysrq-trigger",
    "vmcore",
];
/// Files that programs expect to be readable: they are made empty. The kernel command line can contain credentials,
/// and interrupt counts reveal when a user types.
const EMPTY_PROC_FILES: [&str; 3] = ["cmdline", "interrupts", "softirqs"];
/// Directories about the host's hardware and file systems; [`MASK_DIR`] is another one.
const PROC_HARDWARE_DIRS: [&str; 6] = ["acpi", "asound", "bus", "fs", "irq", "scsi"];
/// The directory that holds the masks. Every kernel's `/proc` has it, and the masks' mount hides its content.
const MASK_DIR: &str = "/proc/driver";
/// A file that cannot be opened.
const CLOSED_FILE: &str = "/proc/driver/closed";
/// A file that reads as empty.
const EMPTY_FILE: &str = "/proc/driver/empty";
/// An empty directory.
const EMPTY_DIR: &str = "/proc/driver/none";

/// Directories of `/sys`: names and serial numbers of the machine, energy counters (which reveal the computations of
/// others), firmware tables, boot parameters, interrupt counts.
const SYS_HARDWARE: [&str; 6] =
    ["devices/virtual/dmi", "devices/virtual/powercap", "firmware", "hypervisor", "kernel/boot_params", "kernel/irq"];
/// A file that contains a physical memory address.
const SYS_CLOSED: [&str; 1] = ["kernel/vmcoreinfo"];
/// File systems that the host may have mounted in its `/sys`; a fresh `/sys` has none of them.
const SYS_MOUNTED: [&str; 8] = [
    "fs/bpf",
    "fs/cgroup",
    "fs/pstore",
    "fs/selinux",
    "kernel/config",
    "kernel/debug",
    "kernel/security",
    "kernel/tracing",
];

/// The `/sys` that the step sees.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum SysView {
    /// A fresh one, for the step's own network namespace.
    Fresh,
    /// The host's `/sys`, with everything mounted in it.
    Host,
}

/// Masks files of the fresh `/proc` of this process's namespaces, and makes its settings read-only. Also creates the
/// files that serve as masks for `/sys`.
///
/// # Errors
/// A mount is refused, or `/proc/sys` stays writable.
pub(super) fn mask_proc() -> io::Result<()> {
    mount_mask_dir()?;
    remount_read_only(Path::new("/proc/sys"))?;
    mount_mask(CLOSED_FILE, "/proc", &CLOSED_PROC_FILES)?;
    mount_mask(EMPTY_FILE, "/proc", &EMPTY_PROC_FILES)?;
    mount_mask(EMPTY_DIR, "/proc", &PROC_HARDWARE_DIRS)
}

/// Masks `/sys`, after `/proc`. Does nothing if `/sys` is an empty directory.
///
/// # Errors
/// A mount is refused.
pub(super) fn mask_sys(view: SysView) -> io::Result<()> {
    mount_mask(EMPTY_DIR, "/sys", &SYS_HARDWARE)?;
    mount_mask(CLOSED_FILE, "/sys", &SYS_CLOSED)?;
    match view {
        SysView::Fresh => Ok(()),
        SysView::Host => mount_mask(EMPTY_DIR, "/sys", &SYS_MOUNTED),
    }
}

/// Masks every reachable socket of the list with a file that `closed` makes, and returns their number. Afterwards no
/// process in the sandbox can connect to them.
///
/// # Errors
/// A mount is refused, or there are too many sockets.
pub(super) fn mask_sockets(sockets: &HostSockets<'_>, closed: impl Fn() -> io::Result<OwnedFd>) -> io::Result<usize> {
    let mut masked = 0;
    for socket in sockets.open_reachable()? {
        let socket = socket?;
        // The descriptor names the examined socket, even if its path has been replaced.
        mounts::attach(closed()?.as_fd(), socket.as_fd())?;
        masked += 1;
    }
    Ok(masked)
}

/// Creates the masks and attaches them: kernels before 6.15 cannot clone a detached mount.
fn mount_mask_dir() -> io::Result<()> {
    let attributes =
        MountAttrFlags::MOUNT_ATTR_NOSUID | MountAttrFlags::MOUNT_ATTR_NODEV | MountAttrFlags::MOUNT_ATTR_NOEXEC;
    let mount = mounts::new_filesystem("tmpfs", &[MountOption("mode", "555".to_owned())], attributes)?;
    create_mask_file(mount.as_fd(), CLOSED_FILE, Mode::empty())?;
    create_mask_file(mount.as_fd(), EMPTY_FILE, Mode::from_raw_mode(0o444))?;
    rustix::fs::mkdirat(&mount, mask_path(EMPTY_DIR), Mode::from_raw_mode(0o555))?;
    // Without this change, the owner of the masks, who may be the step, could change their modes.
    sys::mount_setattr(mount.as_fd(), MountScope::Single, mounts::RDONLY, false, None)?;
    mounts::attach_at(mount.as_fd(), Path::new(MASK_DIR))
}

/// Returns the path of a mask on the file system that holds all masks.
fn mask_path(mask: &str) -> &Path {
    Path::new(mask.strip_prefix(MASK_DIR).unwrap_or(mask).trim_start_matches('/'))
}

fn create_mask_file(dir: BorrowedFd<'_>, mask: &str, mode: Mode) -> io::Result<()> {
    // Opened for reading: a mount with open writers cannot be made read-only.
    let flags = OFlags::RDONLY | OFlags::CREATE | OFlags::EXCL | OFlags::CLOEXEC;
    rustix::fs::openat(dir, mask_path(mask), flags, mode)?;
    Ok(())
}

/// Mounts `mask` over each of the names below `root`. One call by path suffices for each, since only the kernel
/// creates names there. Skips a name that is absent or unreachable, since the step cannot reach it either.
fn mount_mask(mask: &str, root: &str, names: &[&str]) -> io::Result<()> {
    for name in names {
        match rustix::mount::mount_bind(mask, Path::new(root).join(name)) {
            Err(Errno::NOENT | Errno::ACCESS) => {}
            other => other?,
        }
    }
    Ok(())
}

fn remount_read_only(path: &Path) -> io::Result<()> {
    let clone = mounts::clone_mount(path)?;
    mounts::set_attributes(clone.as_fd(), mounts::RDONLY)?;
    mounts::attach_at(clone.as_fd(), path)?;
    if rustix::fs::statvfs(path)?.f_flag.contains(StatVfsMountFlags::RDONLY) {
        return Ok(());
    }
    Err(io::Error::other(format!("{} stays writable", path.display())))
}
