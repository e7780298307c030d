//! Makes overlays as detached mounts from descriptors of their layers.

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

use rustix::mount::{FsOpenFlags, MountAttrFlags, fsconfig_set_fd, fsconfig_set_flag, fsconfig_set_string};

use super::mounts;

/// Makes a detached overlay of `layers` (newest first) below `upper`. `descriptors` is `/proc/self/fd`: on kernels
/// that accept no descriptors, layers are named by paths relative to it.
///
/// # Errors
/// The kernel refuses the overlay.
pub(super) fn create_overlay(
    descriptors: &OwnedFd,
    layers: &[BorrowedFd<'_>],
    upper: &OwnedFd,
    work: &OwnedFd,
) -> io::Result<OwnedFd> {
    rustix::process::fchdir(descriptors)?;
    let overlay = create_with_fallback(layers, upper, work);
    rustix::process::chdir("/")?;
    overlay
}

fn create_with_fallback(layers: &[BorrowedFd<'_>], upper: &OwnedFd, work: &OwnedFd) -> io::Result<OwnedFd> {
    create_with(layers, upper, work, set_each_lower)
        // Kernels before 6.8 support only a single list, and those before 6.5 report that no sooner than at the end.
        // If the list fails too, the first error is the more informative one.
        .or_else(|first| create_with(layers, upper, work, set_lowers_as_list).map_err(|_| first))
}

fn create_with(
    layers: &[BorrowedFd<'_>],
    upper: &OwnedFd,
    work: &OwnedFd,
    set_lowers: fn(&OwnedFd, &[BorrowedFd<'_>]) -> io::Result<()>,
) -> io::Result<OwnedFd> {
    let fs = rustix::mount::fsopen("overlay", FsOpenFlags::FSOPEN_CLOEXEC)?;
    // Without privilege, overlayfs cannot use its own attributes, and layers must have the same format under root.
    fsconfig_set_flag(&fs, "userxattr").map_err(|errno| mounts::with_kernel_log(&fs, errno))?;
    set_lowers(&fs, layers)?;
    set_layer(&fs, "upperdir", upper.as_fd())?;
    set_layer(&fs, "workdir", work.as_fd())?;
    // Reading the tree must not change access times.
    let attributes =
        MountAttrFlags::MOUNT_ATTR_NOSUID | MountAttrFlags::MOUNT_ATTR_NODEV | MountAttrFlags::MOUNT_ATTR_NOATIME;
    mounts::create_mount(&fs, attributes)
}

fn set_each_lower(fs: &OwnedFd, layers: &[BorrowedFd<'_>]) -> io::Result<()> {
    layers.iter().try_for_each(|layer| set_layer(fs, "lowerdir+", *layer))
}

/// The kernel accepts no value longer than 255 bytes, which holds some 14 layers.
fn set_lowers_as_list(fs: &OwnedFd, layers: &[BorrowedFd<'_>]) -> io::Result<()> {
    let paths: Vec<String> = layers.iter().map(|layer| fd_path(*layer)).collect();
    fsconfig_set_string(fs, "lowerdir", paths.join(":")).map_err(|errno| mounts::with_kernel_log(fs, errno))
}

fn fd_path(dir: BorrowedFd<'_>) -> String {
    dir.as_raw_fd().to_string()
}

/// Sets a layer by its descriptor; by its path in /proc if the kernel (before 6.13) accepts only paths. Neither needs
/// escaping.
fn set_layer(fs: &OwnedFd, key: &'static str, dir: BorrowedFd<'_>) -> io::Result<()> {
    if fsconfig_set_fd(fs, key, dir).is_ok() {
        return Ok(());
    }
    fsconfig_set_string(fs, key, fd_path(dir)).map_err(|errno| mounts::with_kernel_log(fs, errno))
}
