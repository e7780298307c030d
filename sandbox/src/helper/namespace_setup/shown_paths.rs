//! Shows files and directories of the host although their parent directory is hidden, and masks some files inside
//! them. The paths may belong to another user, who can replace them at any time.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;

use proctor_core::model::enforcement::Control;

use super::NamespaceSetup;
use crate::helper::mounts::{self, MountPointKind, NODEV, NOSUID, RDONLY};
use crate::helper::setup_failure::{SetupFailure, internal, refuse};
use crate::helper::tree_copy::open_with_rights;
use crate::policy::AccessRights;

impl NamespaceSetup<'_> {
    pub(super) fn clone_tool(&self, source: &Path, rights: AccessRights) -> Result<Option<OwnedFd>, SetupFailure> {
        let found = match open_with_rights(source, rights, self.request.user) {
            // If the path cannot be reached, the tool is left out, and a step that needs it reports the failure.
            Err(error) if is_unreachable(&error) || error.raw_os_error() == Some(libc::ELOOP) => return Ok(None),
            other => other,
        };
        let clone = found
            .and_then(|found| mounts::clone_mount_at_fd(found.as_fd()))
            .map_err(internal(format_args!("clone the mount of the tool directory `{}`", source.display())))?;
        mounts::set_attributes(clone.as_fd(), RDONLY | NOSUID | NODEV)
            .map_err(refuse(Control::ReadOnlyRoot, format_args!("make {} read-only", source.display())))?;
        Ok(Some(clone))
    }

    /// Returns an empty file as a mask if the path exists. A path that has since become a symbolic link is refused,
    /// since the file to be masked is now at another path.
    pub(super) fn clone_mask(&self, source: &Path, rights: AccessRights) -> Result<Option<OwnedFd>, SetupFailure> {
        let mask = match open_with_rights(source, rights, self.request.user) {
            Err(error) if is_unreachable(&error) => return Ok(None),
            other => other.and_then(|_| mounts::clone_device(Path::new("/dev/null"))),
        };
        mask.map(Some).map_err(refuse(Control::HiddenPaths, format_args!("mask {}", source.display())))
    }

    pub(super) fn mount_point_in_root(
        &self,
        clone: &OwnedFd,
        at: &Path,
        control: Control,
    ) -> Result<OwnedFd, SetupFailure> {
        let point = match mounts::is_dir(clone.as_fd()) {
            Ok(true) => MountPointKind::Directory,
            Ok(false) => MountPointKind::File,
            Err(error) => return Err(internal(format_args!("examine {}", at.display()))(error)),
        };
        self.mount_point(at, point).map_err(refuse(control, format_args!("create the mount point {}", at.display())))
    }

    /// Returns the mount point at an absolute path. Below proctor's own covers, an absent mount point is created and
    /// the host's links are followed. Elsewhere neither happens, since the owner of a link could redirect the mount
    /// away from the path to cover.
    pub(super) fn mount_point(&self, at: &Path, point: MountPointKind) -> io::Result<OwnedFd> {
        if let Some((mount, below)) = self.shown_mount_above(at) {
            return mounts::open_beneath(mount.as_fd(), below);
        }
        let covers = self.hidden.iter().map(|(path, _)| path.as_path()).chain(self.scratch_dirs.iter().map(Path::new));
        match covers.into_iter().any(|cover| at.starts_with(cover)) {
            true => mounts::ensure_mount_point(at, point, |path| self.home_owner(path)),
            false => mounts::open_no_symlinks(at),
        }
    }

    /// Returns the innermost shown mount above `at`, and the rest of the path.
    fn shown_mount_above<'p>(&self, at: &'p Path) -> Option<(&OwnedFd, &'p Path)> {
        let above = self.shown_mounts.iter().filter_map(|(place, mount)| Some((mount, at.strip_prefix(place).ok()?)));
        above.filter(|(_, below)| !below.as_os_str().is_empty()).min_by_key(|(_, below)| below.components().count())
    }
}

fn is_unreachable(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::ENOENT | libc::ENOTDIR | libc::EACCES))
}
