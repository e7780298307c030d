//! What the kernel shows of the host in `/proc` and `/sys`, and the sockets of the host's services:
//! empty files and directories over them, once the step's own `/proc` and `/sys` are mounted.
//!
//! Most of it a step could not open anyway, since it is neither root nor has a capability. The masks
//! hold where a kernel's check is missing, and for what everybody may read.

pub(crate) mod sockets;

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;

use rustix::fs::{Mode, OFlags, StatVfsMountFlags};
use rustix::io::Errno;
use rustix::mount::MountAttrFlags;

pub(super) use sockets::{Sockets, bound_sockets};

use super::mounts::{self, Opt};
use crate::sys::{self, Reach};

/// Files about the kernel itself, which only administration reads: its configuration, symbols,
/// memory, keys, log and scheduler, and the switch to halt the machine. They cannot be opened.
///
/// Not among them, since each costs a mount: what every kernel since 5.12 opens for root alone and
/// what shows less than these (`kpagecount` and its like, `pagetypeinfo`, `slabinfo`, `timer_list`,
/// `vmallocinfo`). A step is never root.
const CLOSED: [&str; 10] = [
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
/// Files that programs may read without expecting a refusal: they are empty. The words of the boot
/// loader can hold credentials; counts of interrupts tell when somebody types.
const EMPTY: [&str; 3] = ["cmdline", "interrupts", "softirqs"];
/// Directories about the host's hardware and file systems; [`STAGE`] is one more.
const HARDWARE: [&str; 6] = ["acpi", "asound", "bus", "fs", "irq", "scsi"];
/// Where the masks themselves lie: a directory that every kernel's `/proc` has, masked by that too.
const STAGE: &str = "/proc/driver";
/// Cannot be opened.
const CLOSED_FILE: &str = "/proc/driver/closed";
/// Reads as empty.
const EMPTY_FILE: &str = "/proc/driver/empty";
/// An empty directory.
const EMPTY_DIR: &str = "/proc/driver/none";

/// Directories of `/sys`: names and serial numbers of the machine, energy counters (which tell what
/// others compute), firmware tables, boot parameters, counts of interrupts.
const SYS_HARDWARE: [&str; 6] =
    ["devices/virtual/dmi", "devices/virtual/powercap", "firmware", "hypervisor", "kernel/boot_params", "kernel/irq"];
/// An address in physical memory.
const SYS_CLOSED: [&str; 1] = ["kernel/vmcoreinfo"];
/// What the host may have mounted in its own `/sys`; a fresh one has nothing there.
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

/// Whose `/sys` is seen.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum SysView {
    /// A new one, of the step's own network.
    Fresh,
    /// The host's, with everything that is mounted in it.
    Host,
}

/// Masks the fresh `/proc` of this process's namespaces, and makes its settings read-only. The files
/// that serve as masks for other places are there afterwards.
///
/// # Errors
/// A mount is refused, or `/proc/sys` stays writable.
pub(super) fn proc() -> io::Result<()> {
    stage()?;
    read_only(Path::new("/proc/sys"))?;
    lay(CLOSED_FILE, "/proc", &CLOSED)?;
    lay(EMPTY_FILE, "/proc", &EMPTY)?;
    lay(EMPTY_DIR, "/proc", &HARDWARE)
}

/// Masks `/sys`, after `/proc`. Where it is an empty directory nothing is done.
///
/// # Errors
/// A mount is refused.
pub(super) fn sys(view: SysView) -> io::Result<()> {
    lay(EMPTY_DIR, "/sys", &SYS_HARDWARE)?;
    lay(CLOSED_FILE, "/sys", &SYS_CLOSED)?;
    match view {
        SysView::Fresh => Ok(()),
        SysView::Host => lay(EMPTY_DIR, "/sys", &SYS_MOUNTED),
    }
}

/// Masks every socket of the list that can be reached by a file that `closed` makes, and says how
/// many. Afterwards nothing can be sent to them.
///
/// # Errors
/// A mount is refused, or there are too many of them.
pub(super) fn sockets(sockets: &Sockets<'_>, closed: impl Fn() -> io::Result<OwnedFd>) -> io::Result<usize> {
    let mut masked = 0;
    for socket in sockets.reachable()? {
        let socket = socket?;
        // The descriptor names the socket that was looked at, whatever its path names by now.
        mounts::attach(closed()?.as_fd(), socket.as_fd())?;
        masked += 1;
    }
    Ok(masked)
}

/// Makes the masks and puts them at their place: kernels before 6.15 clone nothing that is not
/// attached.
fn stage() -> io::Result<()> {
    let attributes =
        MountAttrFlags::MOUNT_ATTR_NOSUID | MountAttrFlags::MOUNT_ATTR_NODEV | MountAttrFlags::MOUNT_ATTR_NOEXEC;
    let mount = mounts::new_fs("tmpfs", &[Opt("mode", "555".to_owned())], attributes)?;
    make_file(mount.as_fd(), CLOSED_FILE, Mode::empty())?;
    make_file(mount.as_fd(), EMPTY_FILE, Mode::from_raw_mode(0o444))?;
    rustix::fs::mkdirat(&mount, name(EMPTY_DIR), Mode::from_raw_mode(0o555))?;
    // Or else their owner, who may be the step, could change their modes.
    sys::mount_setattr(mount.as_fd(), Reach::One, mounts::RDONLY, false, None)?;
    mounts::attach_at(mount.as_fd(), Path::new(STAGE))
}

/// Of a mask, on the file system that holds them all.
fn name(mask: &str) -> &Path {
    Path::new(mask.strip_prefix(STAGE).unwrap_or(mask).trim_start_matches('/'))
}

fn make_file(dir: BorrowedFd<'_>, mask: &str, mode: Mode) -> io::Result<()> {
    // Not open for writing: a mount with writers cannot be made read-only.
    let flags = OFlags::RDONLY | OFlags::CREATE | OFlags::EXCL | OFlags::CLOEXEC;
    rustix::fs::openat(dir, name(mask), flags, mode)?;
    Ok(())
}

/// Puts `mask` over each of the kernel's names below `root`: by path, in one call, since nobody but
/// the kernel makes names there. What is absent is passed over, and what we may not reach, since
/// then the step may not either.
fn lay(mask: &str, root: &str, names: &[&str]) -> io::Result<()> {
    for name in names {
        match rustix::mount::mount_bind(mask, Path::new(root).join(name)) {
            Err(Errno::NOENT | Errno::ACCESS) => {}
            other => other?,
        }
    }
    Ok(())
}

fn read_only(path: &Path) -> io::Result<()> {
    let clone = mounts::clone(path)?;
    mounts::set(clone.as_fd(), mounts::RDONLY)?;
    mounts::attach_at(clone.as_fd(), path)?;
    if rustix::fs::statvfs(path)?.f_flag.contains(StatVfsMountFlags::RDONLY) {
        return Ok(());
    }
    Err(io::Error::other(format!("{} stays writable", path.display())))
}
