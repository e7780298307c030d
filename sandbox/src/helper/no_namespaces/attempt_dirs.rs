//! Creates the directories of one attempt without namespaces: a copy of the tree, a copy of its git directory, a home
//! and a scratch directory, all of them next to the upper directory of its layer.
//!
//! ```text
//! <space>/<id>/tree      the copy: the repository and the layers below
//!              git       a copy of `.git`, which `tree/.git` names
//!              home      empty except for links to tools
//!              tmp       scratch
//!              upper     the changes in `tree`, after all processes have ended
//! ```

use std::collections::BTreeMap;
use std::ffi::CStr;
use std::io::{self, Write};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};

use proctor_core::model::enforcement::{Control, Enforcement};
use rustix::fs::{AtFlags, FileType, Mode, OFlags};

use crate::helper::mounts::{self, FileOwner};
use crate::helper::setup_failure::{SetupFailure, internal, refuse, refused};
use crate::helper::tree_copier::{self, TreeCopier};
use crate::helper::tree_copy::{
    CopySources, TrackedCopy, TreeCopy, as_repo_owner, copy_owner, dirs_to_leave_empty, has_git_in_tree,
    open_dir_beneath, open_with_rights, step_owner,
};
use crate::policy::{Frame, ToolKind, ToolMount};
use crate::removal::remove_dir;
use crate::run_space::{TREE_COPY, UPPER};
use crate::wire::{ClaimRequest, HelperMessage, HostDirSandboxRequest, SandboxRequest};

const GIT: &CStr = c"git";
const HOME: &CStr = c"home";
const TMP: &CStr = c"tmp";

/// The paths of one attempt.
#[derive(Debug)]
pub(super) struct AttemptPaths {
    pub(super) tree: PathBuf,
    pub(super) git: PathBuf,
    pub(super) home: PathBuf,
    pub(super) tmp: PathBuf,
    /// The caches: paths in the tree, and the directories to which the links at these paths lead.
    pub(super) caches: Vec<(PathBuf, PathBuf)>,
}

impl AttemptPaths {
    /// Returns the paths of the attempt whose layer has this number.
    pub(super) fn for_layer(request: &HostDirSandboxRequest, id: u32) -> Self {
        let dir = request.sandbox.space.join(id.to_string());
        let below = |name: &CStr| dir.join(name.to_string_lossy().as_ref());
        // Under root the step runs as another user, who cannot access root's state directory.
        let kept = !request.sandbox.user.is_set_up_by_root();
        let caches = request.sandbox.frame.caches.iter().enumerate().map(|(index, cache)| {
            let source = if kept { cache.source.upper() } else { dir.join(format!("cache{index}")) };
            (PathBuf::from(cache.at.as_str()), source)
        });
        Self { tree: below(TREE_COPY), git: below(GIT), home: below(HOME), tmp: below(TMP), caches: caches.collect() }
    }
}

/// The directories of one attempt, as its supervisor holds them.
#[derive(Debug)]
pub(super) struct AttemptDirs {
    paths: AttemptPaths,
    dir: OwnedFd,
    copied: TrackedCopy,
}

impl AttemptDirs {
    /// Creates them, and returns how far the `layer` control is enforced.
    ///
    /// # Errors
    /// The tree cannot be copied.
    pub(super) fn create(
        request: &HostDirSandboxRequest,
        claim: &ClaimRequest,
    ) -> Result<(Self, Enforcement), SetupFailure> {
        let control = Control::Layer;
        let paths = AttemptPaths::for_layer(request, claim.layers.upper);
        let user = request.sandbox.user;
        let owner = step_owner(user);
        let space = mounts::open_dir(&request.sandbox.space).map_err(refuse(control, "open the run space"))?;
        let dir = open_dir_beneath(space.as_fd(), Path::new(&claim.layers.upper.to_string()))
            .map_err(refuse(control, "open the layer"))?;
        let copy = copy_tree(request, claim, (&space, &dir), owner).map_err(refuse(control, "copy the tree"))?;
        make_scratch(&request.sandbox, &dir).map_err(internal("create the step's home directory"))?;
        link_git(request, &paths, &dir, &copy.tree, owner)?;
        link_caches(&paths, &dir, &copy.tree, owner)?;
        let copied = copy.record_baseline().map_err(refuse(control, "open the copy of the tree"))?;
        let mut enforcement = Enforcement::default();
        enforcement.record_not_enforced_with_hint(
            control,
            describe_copy(request, &paths, copied.skipped()),
            &request.hint,
        );
        Ok((Self { paths, dir, copied }, enforcement))
    }

    /// Changes the values of `HOME` and `TMPDIR` to the step's own directories.
    pub(super) fn redirect_env(&self, env: &mut BTreeMap<String, String>, frame: &Frame) {
        let places = [("HOME", frame.home.as_path(), &self.paths.home), ("TMPDIR", Path::new("/tmp"), &self.paths.tmp)];
        for (name, usual, own) in places {
            if let Some(value) = env.get_mut(name)
                && let Ok(below) = Path::new(value.as_str()).strip_prefix(usual)
            {
                *value = own.join(below).components().collect::<PathBuf>().display().to_string();
            }
        }
    }

    /// Stores the step's changes in its layer, removes the other directories, and returns the final report of the
    /// attempt.
    pub(super) fn finalize(self, message: HelperMessage) -> HelperMessage {
        let message = self.copied.finalize(message);
        // If a directory cannot be removed now, the end of the run removes it.
        for name in [TREE_COPY, GIT, HOME, TMP] {
            let _ = remove_dir(self.dir.as_fd(), name);
        }
        message
    }
}

fn describe_copy(request: &HostDirSandboxRequest, paths: &AttemptPaths, left_out: u64) -> String {
    let mut text = format!("the step runs in a copy, at `{}`", paths.tree.display());
    if left_out > 0 {
        text.push_str(&format!("; {left_out} entries that cannot be read or copied are not in it"));
    }
    if request.sandbox.user.is_set_up_by_root() && !paths.caches.is_empty() {
        text.push_str("; its caches are empty and are discarded");
    }
    format!("{text} ({})", request.refusal)
}

fn create_dir(dir: &OwnedFd, name: &CStr, owner: Option<FileOwner>) -> io::Result<OwnedFd> {
    rustix::fs::mkdirat(dir, name, Mode::RWXU)?;
    if let Some(FileOwner { uid, gid }) = owner {
        let (uid, gid) = (rustix::fs::Uid::from_raw(uid), rustix::fs::Gid::from_raw(gid));
        rustix::fs::chownat(dir, name, Some(uid), Some(gid), AtFlags::SYMLINK_NOFOLLOW)?;
    }
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    Ok(rustix::fs::openat(dir, name, flags, Mode::empty())?)
}

fn copy_tree(
    request: &HostDirSandboxRequest,
    claim: &ClaimRequest,
    (space, dir): (&OwnedFd, &OwnedFd),
    owner: Option<FileOwner>,
) -> io::Result<TreeCopy> {
    let frame = &request.sandbox.frame;
    let repo = tree_copier::reopen_readable(mounts::open_no_symlinks(frame.tree())?.as_fd())?;
    let layer = |id: &u32| open_dir_beneath(space.as_fd(), &Path::new(&id.to_string()).join(UPPER));
    let lowers: Vec<OwnedFd> = claim.layers.lowers.iter().map(layer).collect::<io::Result<_>>()?;
    TreeCopy::create(CopySources {
        repo: &repo,
        lowers: &lowers,
        tree: create_dir(dir, TREE_COPY, owner)?,
        upper: open_dir_beneath(dir.as_fd(), Path::new(UPPER))?,
        empty_dirs: dirs_to_leave_empty(frame),
        user: request.sandbox.user,
    })
}

/// Replaces the tree's git directory by a link to a copy outside of the tree. The copy can only be read, while a
/// Landlock rule that makes the tree writable applies to everything in it.
fn link_git(
    request: &HostDirSandboxRequest,
    paths: &AttemptPaths,
    dir: &OwnedFd,
    tree: &OwnedFd,
    owner: Option<FileOwner>,
) -> Result<(), SetupFailure> {
    let cannot = || refuse::<io::Error>(Control::GitReadOnly, "copy the git directory");
    let place = create_dir(dir, GIT, owner).map_err(internal("create a directory for git"))?;
    let is_dir = |stat: rustix::fs::Stat| FileType::from_raw_mode(stat.st_mode).is_dir();
    let hollow = rustix::fs::statat(tree, c".git", AtFlags::SYMLINK_NOFOLLOW).is_ok_and(is_dir);
    if !has_git_in_tree(&request.sandbox.frame) || !hollow {
        return Ok(());
    }
    let copy_git = || {
        let source = mounts::open_no_symlinks(&request.sandbox.frame.tree().join(".git"))?;
        let mut copier = TreeCopier { owner: copy_owner(request.sandbox.user), empty_dirs: [].into(), skipped: 0 };
        as_repo_owner(request.sandbox.user, || copier.copy_repository(source.as_fd(), place.as_fd()))?;
        tree_copier::remove_all(tree.as_fd(), b".git")?;
        create_link(&paths.git, tree.as_fd(), Path::new(".git"), owner)
    };
    copy_git().map_err(cannot())
}

fn create_link(target: &Path, dir: BorrowedFd<'_>, name: &Path, owner: Option<FileOwner>) -> io::Result<()> {
    rustix::fs::symlinkat(target, dir, name)?;
    if let Some(FileOwner { uid, gid }) = owner {
        let (uid, gid) = (rustix::fs::Uid::from_raw(uid), rustix::fs::Gid::from_raw(gid));
        rustix::fs::chownat(dir, name, Some(uid), Some(gid), AtFlags::SYMLINK_NOFOLLOW)?;
    }
    Ok(())
}

/// Replaces each cache directory of the tree by a link to the cache.
fn link_caches(
    paths: &AttemptPaths,
    dir: &OwnedFd,
    tree: &OwnedFd,
    owner: Option<FileOwner>,
) -> Result<(), SetupFailure> {
    for (at, source) in &paths.caches {
        if owner.is_some() {
            let name = std::ffi::CString::new(source.file_name().unwrap_or_default().as_encoded_bytes());
            let name =
                name.map_err(|error| SetupFailure::internal(format_args!("a name contains a NUL byte: {error}")))?;
            create_dir(dir, &name, owner).map_err(internal("create a directory for a cache"))?;
        }
        link_cache(at, source, tree, owner).map_err(|error| match error.raw_os_error() {
            Some(libc::ELOOP | libc::ENOTDIR) => refused(
                Control::HiddenPaths,
                format!(
                    "`{}` of the repository is a symbolic link or a file, but a cache needs a directory there",
                    at.display()
                ),
                "make it a directory, or remove it from `caches`",
            ),
            _ => internal(format_args!("link the cache `{}`", at.display()))(error),
        })?;
    }
    Ok(())
}

fn link_cache(at: &Path, source: &Path, tree: &OwnedFd, owner: Option<FileOwner>) -> io::Result<()> {
    let (parent, name) = (at.parent().unwrap_or(Path::new("")), at.file_name().unwrap_or_default());
    let parent = tree_copier::reopen_readable(mounts::ensure_dir_beneath(tree.as_fd(), parent, owner)?.as_fd())?;
    match rustix::fs::statat(&parent, name, AtFlags::SYMLINK_NOFOLLOW) {
        Err(rustix::io::Errno::NOENT) => {}
        Ok(stat) if FileType::from_raw_mode(stat.st_mode).is_dir() => {
            tree_copier::remove_all(parent.as_fd(), name.as_encoded_bytes())?;
        }
        Ok(_) => return Err(io::Error::from_raw_os_error(libc::ENOTDIR)),
        Err(errno) => return Err(errno.into()),
    }
    create_link(source, parent.as_fd(), Path::new(name), owner)
}

/// Creates a home with links to the tools that the caller's home shows, and a scratch directory.
fn make_scratch(request: &SandboxRequest, dir: &OwnedFd) -> io::Result<()> {
    let (frame, owner) = (&request.frame, step_owner(request.user));
    create_dir(dir, TMP, owner)?;
    let home = create_dir(dir, HOME, owner)?;
    let is_there = |tool: &&ToolMount| open_with_rights(&tool.source, tool.rights, request.user).is_ok();
    for tool in frame.tools.iter().filter(|tool| tool.kind != ToolKind::Masked).filter(is_there) {
        let Ok(below) = tool.at.strip_prefix(&frame.home) else { continue };
        let (Some(parent), Some(name)) = (below.parent(), below.file_name()) else { continue };
        let Ok(parent) = mounts::ensure_dir_beneath(home.as_fd(), parent, owner) else { continue };
        // A tool inside another tool's directory already exists.
        drop(create_link(&tool.source, parent.as_fd(), Path::new(name), owner));
    }
    // Git's index contains the metadata of the original files, which differs from the copy's.
    let mut config = mounts::make_file(home.as_fd(), ".gitconfig".as_ref())?;
    config.write_all(b"[core]\n\tcheckStat = minimal\n\ttrustctime = false\n")?;
    if let Some(FileOwner { uid, gid }) = owner {
        rustix::fs::fchown(&config, Some(rustix::fs::Uid::from_raw(uid)), Some(rustix::fs::Gid::from_raw(gid)))?;
    }
    Ok(())
}
