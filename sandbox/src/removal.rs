//! Removes directories of a run.

use std::ffi::{CStr, CString};
use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};

use rustix::fs::{AtFlags, FileType, Mode, OFlags};

/// Removes a directory with all its contents, without following links and regardless of modes.
///
/// The step chose the depth of the tree, so neither the stack nor the number of open descriptors may grow with it.
/// Subdirectories are therefore moved up next to `name` and queued there.
///
/// # Errors
/// A file or directory cannot be removed.
pub fn remove_dir(parent: BorrowedFd<'_>, name: &CStr) -> rustix::io::Result<()> {
    let mut moved = 0_u64;
    let mut waiting = vec![name.to_owned()];
    while let Some(next) = waiting.pop() {
        let dir = open_writable(parent, &next)?;
        for entry in rustix::fs::Dir::read_from(&dir)? {
            let entry = entry?;
            match (entry.file_type(), entry.file_name().to_bytes()) {
                (_, b"." | b"..") => {}
                (FileType::Directory, _) => {
                    // A directory must be writable to be moved, since its `..` entry changes.
                    drop(open_writable(dir.as_fd(), entry.file_name())?);
                    let up = CString::new(format!("{}.{moved}", name.to_string_lossy())).unwrap_or_default();
                    moved += 1;
                    rustix::fs::renameat(&dir, entry.file_name(), parent, &up)?;
                    waiting.push(up);
                }
                _ => rustix::fs::unlinkat(&dir, entry.file_name(), AtFlags::empty())?,
            }
        }
        rustix::fs::unlinkat(parent, &next, AtFlags::REMOVEDIR)?;
    }
    Ok(())
}

/// Opens a directory after restoring the permissions that a step may have removed.
pub(crate) fn open_writable(parent: BorrowedFd<'_>, name: &CStr) -> rustix::io::Result<OwnedFd> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    rustix::fs::chmodat(parent, name, Mode::RWXU, AtFlags::empty())?;
    rustix::fs::openat(parent, name, flags, Mode::empty())
}
