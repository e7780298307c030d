//! Fills the new namespaces of a step: `/proc`, `/sys` and the loopback interface.

use super::*;

pub(super) fn mount_proc(prepared: &mut InitState<'_>) -> InitOpResult {
    let control = Control::PrivateProc;
    let attributes = safe_attributes() | MountAttrFlags::MOUNT_ATTR_NOEXEC;
    mounts::new_filesystem("proc", &[], attributes)
        .and_then(|proc| mounts::attach_at(proc.as_fd(), Path::new("/proc")))
        .map_err(refuse(control, "mount a fresh /proc"))?;
    prepared.enforcement.record_enforced(control, "proc of the new PID namespace");
    Ok(())
}

/// Mounts a fresh `/sys`, since the host's `/sys` names the host's network devices. If the kernel refuses one,
/// because a container masks parts of it, an empty directory is mounted.
pub(super) fn mount_sys() -> InitOpResult {
    let attributes = safe_attributes() | MountAttrFlags::MOUNT_ATTR_NOEXEC | MountAttrFlags::MOUNT_ATTR_RDONLY;
    let nothing = || mounts::new_filesystem("tmpfs", &[], safe_attributes() | MountAttrFlags::MOUNT_ATTR_RDONLY);
    mounts::new_filesystem("sysfs", &[], attributes)
        .or_else(|_| nothing())
        .and_then(|sys| mounts::attach_at(sys.as_fd(), Path::new("/sys")))
        .map_err(refuse(Control::NetworkNamespace, "mount a fresh /sys"))
}

fn safe_attributes() -> MountAttrFlags {
    MountAttrFlags::MOUNT_ATTR_NOSUID | MountAttrFlags::MOUNT_ATTR_NODEV
}

pub(super) fn set_up_loopback(prepared: &mut InitState<'_>) -> InitOpResult {
    let control = Control::NetworkNamespace;
    sys::loopback_up().map_err(refuse(control, "bring the loopback device up"))?;
    prepared.enforcement.record_enforced(control, "unshare; only the loopback device exists, and it is up");
    prepared.enforcement.record_enforced(Control::AbstractSockets, "each network namespace has its own sockets");
    Ok(())
}
