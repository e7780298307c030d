//! Clones git directories, tools and caches before their paths are covered, and attaches the clones.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;

use proctor_core::model::enforcement::Control;
use proctor_core::model::plan::RelPath;

use super::{CloneSource, HelperOpResult, NamespaceSetup};
use crate::helper::mounts::{self, NODEV, NOSUID, RDONLY};
use crate::helper::setup_failure::{SetupFailure, refuse, refused};
use crate::setup::{CloneKind, MountPointParent};

impl NamespaceSetup<'_> {
    pub(super) fn clone_source(&mut self, source: &Path, at: &Path, kind: CloneKind) -> HelperOpResult {
        let clone = match kind {
            CloneKind::Git { mapped } => Some(self.clone_git(source, mapped)?),
            CloneKind::Tool { rights } => self.clone_tool(source, rights)?,
            CloneKind::Store { rights } => {
                self.stores.insert(at.to_owned());
                self.clone_tool(source, rights)?
            }
            CloneKind::Cache => Some(self.clone_cache(source)?),
            CloneKind::Original { mapped } => Some(self.clone_original(source, mapped)?),
            CloneKind::Mask { rights } => self.clone_mask(source, rights)?,
        };
        let mapped = match kind {
            CloneKind::Git { mapped } => Some(mapped),
            CloneKind::Tool { .. } | CloneKind::Store { .. } => Some(false),
            // Masks show nothing of the host, and the files that a step writes are not part of a view.
            CloneKind::Cache | CloneKind::Original { .. } | CloneKind::Mask { .. } => None,
        };
        if let Some(mapped) = mapped {
            self.clone_sources.insert(at.to_owned(), CloneSource { host_path: source.to_owned(), mapped });
        }
        self.clones.extend(clone.map(|clone| (at.to_owned(), clone)));
        Ok(())
    }

    fn clone_git(&mut self, source: &Path, mapped: bool) -> Result<OwnedFd, SetupFailure> {
        let control = Control::GitReadOnly;
        let clone = mounts::clone_mount(source).map_err(|error| match error.raw_os_error() {
            Some(libc::ELOOP) => refused(
                control,
                format!(
                    "`{}` is a symbolic link or reached through one, and what that names could be written",
                    source.display()
                ),
                "use a `.git` file with `gitdir: …` instead (`git init --separate-git-dir`, then `git config core.worktree <repository>`)",
            ),
            _ => refuse(control, format_args!("clone the mount of {}", source.display()))(error),
        })?;
        // Must come before the flags are set: only a new clone can be mapped.
        if mapped {
            self.map_or_copy(&clone, source)?;
        }
        mounts::set_attributes(clone.as_fd(), RDONLY | NOSUID | NODEV)
            .map_err(refuse(control, format_args!("make {} read-only", source.display())))?;
        Ok(clone)
    }

    /// Attaches a clone. A path that was skipped when it was to be cloned is skipped here too.
    pub(super) fn attach(&mut self, at: &Path, inside: &MountPointParent) -> HelperOpResult {
        let Some(clone) = self.clones.remove(at) else { return Ok(()) };
        let is_git = self.is_git(at);
        let control = if is_git { Control::GitReadOnly } else { Control::HiddenPaths };
        let target = match inside {
            MountPointParent::Repo { path, .. } => {
                let tree =
                    self.repo_point.as_ref().ok_or_else(|| SetupFailure::internal("the overlay is not mounted"))?;
                point_in_repo(tree, &clone, path, control)?
            }
            MountPointParent::Root => self.mount_point_in_root(&clone, at, control)?,
        };
        mounts::attach(clone.as_fd(), target.as_fd())
            .map_err(refuse(control, format_args!("mount the opened directory at {}", at.display())))?;
        if is_git {
            self.record_git();
        }
        if *inside == MountPointParent::Root {
            let shown = if self.stores.contains(at) { self.stack_store(at, clone) } else { clone };
            self.shown_mounts.push((at.to_owned(), shown));
        }
        Ok(())
    }

    pub(super) fn is_git(&self, at: &Path) -> bool {
        self.request.frame.git.paths().any(|path| path == at)
    }

    pub(super) fn record_git(&mut self) {
        self.enforcement.record_enforced(Control::GitReadOnly, "read-only mounts above the overlay");
    }
}

/// Finds a mount point in the repository. The repository is untrusted: the path may have become a link or a file.
fn point_in_repo(tree: &OwnedFd, clone: &OwnedFd, path: &RelPath, control: Control) -> Result<OwnedFd, SetupFailure> {
    let find = || {
        let path = Path::new(path.as_str());
        if mounts::is_dir(clone.as_fd())? {
            let point = mounts::ensure_dir_beneath(tree.as_fd(), path, None)?;
            if mounts::is_dir(point.as_fd())? { Ok(point) } else { Err(io::Error::from_raw_os_error(libc::ENOTDIR)) }
        } else {
            mounts::open_beneath(tree.as_fd(), path)
        }
    };
    find().map_err(|error| match error.raw_os_error() {
        Some(libc::ELOOP | libc::ENOTDIR) => refused(
            control,
            format!(
                "`{path}` of the repository is a symbolic link or a file, but Proctor must mount a directory there"
            ),
            "make it a directory, or remove it from `caches`",
        ),
        _ => refuse(control, format_args!("find `{path}` in the repository"))(error),
    })
}
