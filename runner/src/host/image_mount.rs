//! Identifies the mounts of file system images. The files of an image have the times that its author chose, so that the files
//! of another image at the same place can have the same stamps.

use std::io;
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;

use proctor_core::model::drift::is_image_file_system;
use rustix::fs::{AtFlags, CWD, StatxFlags};

/// `STATX_MNT_ID_UNIQUE` (since Linux 6.8): the id of a mount, which no other mount gets before the next boot.
const UNIQUE_MOUNT_ID: u32 = 0x4000;

/// Returns the identity of the mount that shows a file of an image; `None` if the file is not in an image. Follows links.
///
/// # Errors
/// The file cannot be examined, or the kernel does not identify the mount.
pub(crate) fn image_mount(path: &Path) -> io::Result<Option<String>> {
    let found = rustix::fs::statfs(path)?;
    if !u64::try_from(found.f_type).is_ok_and(is_image_file_system) {
        return Ok(None);
    }
    mount_identity(path).map(Some)
}

fn mount_identity(path: &Path) -> io::Result<String> {
    let stat = rustix::fs::statx(CWD, path, AtFlags::empty(), StatxFlags::from_bits_retain(UNIQUE_MOUNT_ID))?;
    if stat.stx_mask & UNIQUE_MOUNT_ID == 0 {
        return Err(io::Error::other("the kernel does not identify its mount"));
    }
    let boot = std::fs::read_to_string("/proc/sys/kernel/random/boot_id")?;
    Ok(format!("{} {}", boot.trim(), stat.stx_mnt_id))
}

/// Returns whether the file at a path is still on this device, in an image with this mount.
pub(crate) fn has_image_mount(path: &Path, device: u64, mount: &str) -> bool {
    let is_same_device = std::fs::metadata(path).is_ok_and(|file| file.dev() == device);
    is_same_device && image_mount(path).is_ok_and(|found| found.as_deref() == Some(mount))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_of_no_image_has_no_identity() {
        assert_eq!(image_mount(Path::new("/proc/self/stat")).expect("examined"), None);
        image_mount(Path::new("/proc/self/absent")).expect_err("absent");
    }

    #[test]
    fn a_mount_has_one_identity() {
        // Older kernels do not identify mounts.
        let identity = |path: &str| mount_identity(Path::new(path)).ok();
        assert_eq!(identity("/proc/self/stat"), identity("/proc/version"));
        assert!(identity("/").is_none() || identity("/") != identity("/proc/version"));
    }
}
