//! Mounts the scratch tmpfs, and covers directories of the host with directories of this tmpfs.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;

use proctor_core::model::enforcement::Control;
use proctor_core::model::plan::Limit;

use super::{HelperOpResult, NamespaceSetup};
use crate::helper::mounts::{self, FileOwner, MountPointKind, RDONLY, TmpfsSize};
use crate::helper::setup_failure::{internal, refuse};
use crate::setup::{AbsentAction, CoverKind};
use crate::sys::{self, MountScope};

impl NamespaceSetup<'_> {
    /// Mounts the scratch tmpfs over the run space's path. The step never sees it there, since the state directory is
    /// hidden. It must be in the mount namespace, since kernels before 6.15 accept no detached mount as a layer.
    pub(super) fn make_scratch(&mut self) -> HelperOpResult {
        let control = Control::PrivateTmp;
        let make = || {
            let scratch = mounts::tmpfs(0o755, TmpfsSize::KernelDefault)?;
            // The server of a view may not reach the run space, and `/dev` will be covered by the step's own.
            let at = if self.has_view() { Path::new("/dev") } else { &self.request.space };
            mounts::attach_at(scratch.as_fd(), at)?;
            Ok::<_, io::Error>(scratch)
        };
        self.scratch = Some(make().map_err(refuse(control, "mount a tmpfs for scratch directories"))?);
        if self.has_view() {
            return self.attach_view_sources().map_err(refuse(Control::Layer, "mount the view of the tree"));
        }
        self.attach_mapped_repo()
    }

    pub(super) fn scratch(&self) -> io::Result<&OwnedFd> {
        self.scratch.as_ref().ok_or_else(|| io::Error::other("there is no tmpfs for scratch directories"))
    }

    /// Returns a directory of the scratch tmpfs, which it creates if necessary. An existing directory keeps its mode
    /// and owner.
    pub(super) fn scratch_dir(&self, name: &str, mode: u32, owner: Option<FileOwner>) -> io::Result<OwnedFd> {
        mounts::create_dir_in(self.scratch()?.as_fd(), name, mode, owner)
    }

    pub(super) fn cover(&mut self, at: &Path, kind: CoverKind, absent: AbsentAction) -> HelperOpResult {
        let control = if kind == CoverKind::Hidden { Control::HiddenPaths } else { Control::PrivateTmp };
        let what = format_args!("cover {} with an empty directory", at.display());
        let target = match absent {
            AbsentAction::Make => {
                mounts::ensure_mount_point(at, MountPointKind::Directory, |path| self.home_owner(path))
            }
            AbsentAction::PassOver => mounts::open_dir(at),
        };
        let target = match target {
            Err(error) if absent == AbsentAction::PassOver && error.raw_os_error() == Some(libc::ENOENT) => {
                return Ok(());
            }
            // A view shows nothing that the step's user cannot reach.
            Err(error)
                if absent == AbsentAction::PassOver
                    && self.has_view()
                    && error.raw_os_error() == Some(libc::EACCES) =>
            {
                return Ok(());
            }
            other => other.map_err(refuse(control, what))?,
        };
        let mount = self.empty_dir(kind, target.as_fd()).map_err(refuse(control, what))?;
        match kind {
            CoverKind::Hidden => self.hidden.push((at.to_owned(), mount)),
            CoverKind::Scratch | CoverKind::Home => self.scratch_dirs.push(at.display().to_string()),
        }
        Ok(())
    }

    fn empty_dir(&self, kind: CoverKind, target: BorrowedFd<'_>) -> io::Result<OwnedFd> {
        let name = format!("cover{}", self.hidden.len() + self.scratch_dirs.len());
        drop(match kind {
            CoverKind::Hidden => self.scratch_dir(&name, 0o755, None)?,
            CoverKind::Scratch => self.scratch_dir(&name, 0o1777, None)?,
            CoverKind::Home => self.scratch_dir(&name, 0o700, Some(self.step_owner()))?,
        });
        let mount = mounts::clone_beneath(self.scratch()?.as_fd(), &name)?;
        mounts::attach(mount.as_fd(), target)?;
        Ok(mount)
    }

    pub(super) fn limit_scratch(&mut self, bytes: Limit) -> HelperOpResult {
        let control = Control::PrivateTmp;
        let scratch = self.scratch().map_err(internal("limit the size of the scratch directories"))?;
        let size = match bytes {
            Limit::Max(bytes) => {
                mounts::resize(scratch.as_fd(), TmpfsSize::Bytes(bytes))
                    .map_err(refuse(control, "limit the size of the scratch directories"))?;
                format!("of {bytes} bytes")
            }
            Limit::Unlimited => "of the kernel's default size".to_owned(),
        };
        self.enforcement.record_enforced(control, format!("one tmpfs {size} for {}", self.scratch_dirs.join(", ")));
        Ok(())
    }

    pub(super) fn seal_covers(&mut self) -> HelperOpResult {
        let control = Control::HiddenPaths;
        for (at, mount) in &self.hidden {
            // Without the mounts inside it, which keep their own attributes.
            sys::mount_setattr(mount.as_fd(), MountScope::Single, RDONLY, false, None)
                .map_err(refuse(control, format_args!("make {} read-only", at.display())))?;
        }
        let hidden: Vec<&Path> =
            self.hidden.iter().map(|(at, _)| at.as_path()).filter(|at| *at != Path::new("/dev")).collect();
        let stores = self.read_only_stores_note();
        self.enforcement.record_enforced(control, format!("empty directories over {}{stores}", format_paths(&hidden)));
        if self.request.frame.git.worktree_git.is_none() && self.request.frame.git.common.is_none() {
            self.enforcement.record_not_requested(Control::GitReadOnly, "the tree is not in a git repository");
        }
        Ok(())
    }
}

/// Formats the paths as a phrase: the record names some and counts the others.
fn format_paths(paths: &[&Path]) -> String {
    const NAMED: usize = 8;
    let mut names: Vec<String> = paths.iter().take(NAMED).map(|path| path.display().to_string()).collect();
    if let Some(more) = paths.len().checked_sub(NAMED).filter(|more| *more > 0) {
        names.push(format!("{more} more"));
    }
    names.join(", ")
}
