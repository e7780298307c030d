//! The set-up operations of the helper itself: namespaces, what is taken of the host, the
//! overlay, what is hidden, and what appears where.

use std::collections::BTreeMap;
use std::fs;
use std::io::{self, Write};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};

use nix::sched::CloneFlags;
use proctor_core::enforcement::{Control, Enforcement};
use proctor_core::plan::{Limit, RelPath};
use rustix::fs::{Gid, Mode, StatVfsMountFlags, Uid};
use rustix::mount::{FsOpenFlags, MountAttrFlags, fsconfig_set_fd, fsconfig_set_flag, fsconfig_set_string};

use super::failure::{Failure, internal, refuse, refused};
use super::mounts::{self, Links, NODEV, NOSUID, Opt, Owner, Point, RDONLY};
use super::space::map_self;
use crate::setup::{Absent, CloneKind, Cover, DEVICES, HOSTNAME, Inside, SetupOp};
use crate::space::{UPPER, WORK};
use crate::sys::{self, Reach};
use crate::wire::AttemptRequest;

type Done = Result<(), Failure>;

/// What has been taken and not yet been put anywhere, and what holds so far.
pub(super) struct Outer<'a> {
    request: &'a AttemptRequest,
    /// The mount namespace that holds the layers.
    mount_ns: OwnedFd,
    /// The user namespace that owns it, or (root) the one that maps owners.
    users: OwnedFd,
    devices: Vec<(&'static str, OwnedFd)>,
    clones: BTreeMap<PathBuf, OwnedFd>,
    overlay: Option<OwnedFd>,
    layers_bytes: u64,
    /// The tmpfs that get read-only in the end, and where they are.
    hidden: Vec<(PathBuf, OwnedFd)>,
    /// Scratch directories, with their sizes as phrases.
    scratch: Vec<String>,
    enforcement: Enforcement,
}

impl<'a> Outer<'a> {
    pub(super) fn new(request: &'a AttemptRequest, fds: Vec<OwnedFd>) -> Result<Self, Failure> {
        let [mount_ns, users] = <[OwnedFd; 2]>::try_from(fds)
            .map_err(|fds| Failure::internal(format_args!("{} descriptors instead of 2 came along", fds.len())))?;
        Ok(Self {
            request,
            mount_ns,
            users,
            devices: Vec::new(),
            clones: BTreeMap::new(),
            overlay: None,
            layers_bytes: 0,
            hidden: Vec::new(),
            scratch: Vec::new(),
            enforcement: Enforcement::default(),
        })
    }

    /// What holds, and the size of the tmpfs of all layers.
    pub(super) fn finish(self) -> (Enforcement, u64) {
        (self.enforcement, self.layers_bytes)
    }

    pub(super) fn apply(&mut self, op: &SetupOp) -> Done {
        match op {
            SetupOp::JoinSpace { user } => self.join_space(*user),
            SetupOp::Unshare { user, network } => self.unshare(*user, *network),
            SetupOp::MapUser { uid, gid } => self.map_user(*uid, *gid),
            SetupOp::Hostname => rustix::system::sethostname(HOSTNAME.as_bytes())
                .map_err(refuse(Control::UtsNamespace, "set the host name")),
            SetupOp::MakePrivate => self.make_private(),
            SetupOp::RefuseSubmounts { repo } => refuse_submounts(repo),
            SetupOp::CloneDevices => self.clone_devices(),
            SetupOp::CloneAccounts { home } => self.clone_accounts(home),
            SetupOp::Clone { source, at, kind } => self.clone(source, at, *kind),
            SetupOp::Overlay { repo, mapped, scaffold } => self.make_overlay(repo, *mapped, scaffold),
            SetupOp::ReadOnlyRoot => self.read_only_root(),
            SetupOp::Cover { at, kind, bytes, absent } => self.cover(at, *kind, *bytes, *absent),
            SetupOp::Dev { shm } => self.dev(*shm),
            SetupOp::GitConfig { home } => self.git_config(home),
            SetupOp::AttachRepo { at } => self.attach_repo(at),
            SetupOp::Attach { at, inside } => self.attach(at, inside),
            SetupOp::SealCovers => self.seal_covers(),
            // Marks the place in the list; the fork itself follows the last operation of this stage.
            SetupOp::StartInit => Ok(()),
            other => Err(Failure::internal(format_args!("`{other}` does not belong into the helper"))),
        }
    }

    /// The user namespace first: it owns the mount namespace, and the other order is EPERM.
    fn join_space(&mut self, user: bool) -> Done {
        let join = |fd: &OwnedFd, kind| nix::sched::setns(fd, kind);
        if user {
            join(&self.users, CloneFlags::CLONE_NEWUSER)
                .map_err(refuse(Control::UserNamespace, "join the run's user namespace"))?;
        }
        join(&self.mount_ns, CloneFlags::CLONE_NEWNS)
            .map_err(refuse(Control::MountNamespace, "join the run's mount namespace"))
    }

    fn unshare(&mut self, user: bool, network: bool) -> Done {
        let mut flags = CloneFlags::CLONE_NEWNS
            | CloneFlags::CLONE_NEWPID
            | CloneFlags::CLONE_NEWIPC
            | CloneFlags::CLONE_NEWUTS
            | CloneFlags::CLONE_NEWCGROUP;
        flags.set(CloneFlags::CLONE_NEWUSER, user);
        flags.set(CloneFlags::CLONE_NEWNET, network);
        let control = if user { Control::UserNamespace } else { Control::MountNamespace };
        nix::sched::unshare(flags).map_err(refuse(control, "leave the host's namespaces"))?;
        for control in [Control::IpcNamespace, Control::UtsNamespace, Control::CgroupNamespace] {
            self.enforcement.enforced(control, "unshare");
        }
        if !network {
            self.enforcement.not_requested(Control::NetworkNamespace, "the plan allows the network");
        }
        Ok(())
    }

    fn map_user(&mut self, uid: u32, gid: u32) -> Done {
        map_self(uid, gid).map_err(refuse(Control::UserNamespace, "map the own user and group"))?;
        self.enforcement.enforced(Control::UserNamespace, format!("user {uid} and group {gid} alone are mapped"));
        Ok(())
    }

    fn make_private(&mut self) -> Done {
        mounts::make_all_private().map_err(refuse(Control::MountNamespace, "make all mounts private"))?;
        self.enforcement.enforced(Control::MountNamespace, "unshare, all mounts private");
        Ok(())
    }

    fn clone_devices(&mut self) -> Done {
        for name in DEVICES {
            let path = Path::new("/dev").join(name);
            let device = mounts::clone(&path, Links::Refuse)
                .map_err(refuse(Control::PrivateDev, format_args!("take {}", path.display())))?;
            self.devices.push((name, device));
        }
        Ok(())
    }

    /// Tools that ask who they are fail without an entry.
    fn clone_accounts(&mut self, home: &Path) -> Done {
        let (uid, gid) = (self.request.user.uid(), self.request.user.gid());
        let user = format!("step:x:{uid}:{gid}:step:");
        let nobody = "nobody:x:65534:65534:nobody:/nonexistent:/usr/sbin/nologin\n";
        let passwd = [user.as_bytes(), home.as_os_str().as_bytes(), b":/bin/sh\n", nobody.as_bytes()].concat();
        let group = format!("step:x:{gid}:\nnogroup:x:65534:\n");
        self.clone_account("passwd", &passwd)?;
        self.clone_account("group", group.as_bytes())
    }

    fn clone_account(&mut self, name: &str, content: &[u8]) -> Done {
        let at = Path::new("/etc").join(name);
        // A mount point cannot be made there, and without such a file nothing asks for one.
        if !at.exists() {
            return Ok(());
        }
        let write = || {
            let dir = mounts::open_readable_dir(&self.layer_dir(self.request.upper))?;
            mounts::make_file(dir.as_fd(), name.as_ref())?.write_all(content)?;
            let file = mounts::clone(&self.layer_dir(self.request.upper).join(name), Links::Refuse)?;
            mounts::set(file.as_fd(), RDONLY | NOSUID | NODEV)?;
            Ok::<_, io::Error>(file)
        };
        let file = write().map_err(internal(format_args!("write the step's {}", at.display())))?;
        self.clones.insert(at, file);
        Ok(())
    }

    fn clone(&mut self, source: &Path, at: &Path, kind: CloneKind) -> Done {
        let clone = match kind {
            CloneKind::Git { mapped } => Some(self.clone_git(source, mapped)?),
            CloneKind::Tool => clone_tool(source)?,
            CloneKind::Cache => Some(self.clone_cache(source)?),
            CloneKind::Mask => clone_mask(source)?,
        };
        self.clones.extend(clone.map(|clone| (at.to_owned(), clone)));
        Ok(())
    }

    fn clone_git(&self, source: &Path, mapped: bool) -> Result<OwnedFd, Failure> {
        let control = Control::GitReadOnly;
        let clone = mounts::clone(source, Links::Refuse).map_err(|error| match error.raw_os_error() {
            Some(libc::ELOOP) => refused(
                control,
                format!(
                    "`{}` is a symbolic link or reached through one, and what that names could be written",
                    source.display()
                ),
                "use a `.git` file with `gitdir: …` instead (`git init --separate-git-dir`, then `git config core.worktree <repository>`)",
            ),
            _ => refuse(control, format_args!("take {}", source.display()))(error),
        })?;
        // The mapping first: it is allowed on a fresh clone only.
        if mapped {
            self.map_owners(&clone, source)?;
        }
        mounts::set(clone.as_fd(), RDONLY | NOSUID | NODEV)
            .map_err(refuse(control, format_args!("make {} read-only", source.display())))?;
        Ok(clone)
    }

    fn map_owners(&self, clone: &OwnedFd, source: &Path) -> Done {
        mounts::map_owners(clone.as_fd(), self.users.as_fd()).map_err(|error| {
            let what = format_args!("show {} with other owners (idmapped mount)", source.display());
            match refuse(Control::UserNamespace, what)(error) {
                Failure::Refused { control, message, .. } => refused(
                    control,
                    message,
                    "a step never runs as root: give the repository to an ordinary user (`chown -R`), or keep it on a \
                     file system that can map owners (ext4, xfs, btrfs, tmpfs)",
                ),
                other => other,
            }
        })
    }

    /// A root daemon made the directory, as root; the step writes it.
    fn clone_cache(&self, source: &Path) -> Result<OwnedFd, Failure> {
        let take = || {
            let dir = mounts::open_readable_dir(source)?;
            if let (Some(owner), 0) = (self.stepping_down(), rustix::fs::fstat(&dir)?.st_uid) {
                rustix::fs::fchown(&dir, Some(Uid::from_raw(owner.uid)), Some(Gid::from_raw(owner.gid)))?;
            }
            let clone = mounts::clone(source, Links::Refuse)?;
            mounts::set(clone.as_fd(), NOSUID | NODEV)?;
            Ok::<_, io::Error>(clone)
        };
        take().map_err(internal(format_args!("take the cache directory `{}`", source.display())))
    }

    fn make_overlay(&mut self, repo: &Path, mapped: bool, scaffold: &[RelPath]) -> Done {
        let control = Control::Layer;
        let layers = self.lower_dirs(repo, mapped, scaffold)?;
        let dir = self.layer_dir(self.request.upper);
        let upper = mounts::open_dir(&dir.join(UPPER)).map_err(refuse(control, "open the layer"))?;
        let work = mounts::open_dir(&dir.join(WORK)).map_err(refuse(control, "open the layer's work directory"))?;
        let overlay = overlay(&layers, &upper, &work)
            .map_err(refuse(control, format_args!("make an overlay over {}", repo.display())))?;
        // Overlayfs turns read-only in silence where it cannot use its work directory.
        let state = rustix::fs::fstatvfs(&overlay).map_err(refuse(control, "look at the overlay"))?;
        if state.f_flag.contains(StatVfsMountFlags::RDONLY) {
            return Err(refused(
                control,
                "the kernel made the overlay read-only",
                "the kernel's log (`dmesg`) says why; keep the state directory on a disk of this machine",
            ));
        }
        let room = rustix::fs::fstatvfs(&upper).map_err(refuse(control, "look at the layer"))?;
        self.layers_bytes = room.f_blocks.saturating_mul(room.f_frsize);
        let over = if mapped { ", over an idmapped repository" } else { "" };
        self.enforcement.enforced(control, format!("overlayfs with userxattr on tmpfs{over}"));
        self.overlay = Some(overlay);
        Ok(())
    }

    /// Newest first, the repository, and below it the mount points that it may lack.
    fn lower_dirs(&self, repo: &Path, mapped: bool, scaffold: &[RelPath]) -> Result<Vec<OwnedFd>, Failure> {
        let control = Control::Layer;
        let mut layers = Vec::new();
        for id in &self.request.lowers {
            let dir = self.layer_dir(*id).join(UPPER);
            layers.push(mounts::open_dir(&dir).map_err(refuse(control, "open an earlier layer"))?);
        }
        layers.push(self.lower_repo(repo, mapped)?);
        if !scaffold.is_empty() {
            layers.push(self.scaffold(scaffold).map_err(refuse(control, "make mount points for caches"))?);
        }
        Ok(layers)
    }

    fn lower_repo(&self, repo: &Path, mapped: bool) -> Result<OwnedFd, Failure> {
        let what = format_args!("open the repository {}", repo.display());
        if !mapped {
            return mounts::open_plain(repo).map_err(refuse(Control::Layer, what));
        }
        let clone = mounts::clone(repo, Links::Refuse).map_err(refuse(Control::Layer, what))?;
        self.map_owners(&clone, repo)?;
        self.stage(&clone).map_err(refuse(Control::Layer, what))
    }

    /// Puts the mapped repository beside the layer, where the state directory's cover is going to
    /// hide it: kernels before 6.15 take no detached mount as a layer.
    fn stage(&self, clone: &OwnedFd) -> io::Result<OwnedFd> {
        let layer = mounts::open_dir(&self.layer_dir(self.request.upper))?;
        let stage = mounts::ensure_beneath(layer.as_fd(), Path::new("repo"), None)?;
        mounts::attach(clone.as_fd(), stage.as_fd())?;
        // Opened anew: the descriptor above names what lies below the mount.
        mounts::open_beneath(layer.as_fd(), Path::new("repo"))
    }

    fn scaffold(&self, paths: &[RelPath]) -> io::Result<OwnedFd> {
        let layer = mounts::open_dir(&self.layer_dir(self.request.upper))?;
        let dir = mounts::ensure_beneath(layer.as_fd(), Path::new("scaffold"), self.stepping_down())?;
        for path in paths {
            mounts::ensure_beneath(dir.as_fd(), Path::new(path.as_str()), self.stepping_down())?;
        }
        Ok(dir)
    }

    fn read_only_root(&mut self) -> Done {
        let control = Control::ReadOnlyRoot;
        let root = mounts::root().map_err(refuse(control, "open /"))?;
        mounts::set(root.as_fd(), RDONLY | NOSUID | NODEV).map_err(refuse(control, "make / read-only"))?;
        let state = rustix::fs::fstatvfs(&root).map_err(refuse(control, "look at /"))?;
        if !state.f_flag.contains(StatVfsMountFlags::RDONLY) {
            return Err(refused(control, "/ stays writable", "report this with the kernel's version"));
        }
        self.enforcement.enforced(control, "mount_setattr, recursive: read-only, nosuid, nodev");
        Ok(())
    }

    fn cover(&mut self, at: &Path, kind: Cover, bytes: Limit, absent: Absent) -> Done {
        let control = if kind == Cover::Hidden { Control::HiddenPaths } else { Control::PrivateTmp };
        let what = format_args!("mount an empty tmpfs on {}", at.display());
        let target = match absent {
            Absent::Make => mounts::ensure(at, Point::Directory, |path| self.home_owner(path)),
            Absent::PassOver => mounts::open_dir(at),
        };
        let target = match target {
            Err(error) if absent == Absent::PassOver && error.raw_os_error() == Some(libc::ENOENT) => return Ok(()),
            other => other.map_err(refuse(control, what))?,
        };
        let mount = match kind {
            Cover::Hidden => mounts::tmpfs(0o755, Some(COVER_BYTES), None),
            Cover::Scratch => mounts::tmpfs(0o1777, bound(bytes), None),
            Cover::Home => mounts::tmpfs(0o700, bound(bytes), Some(self.owner())),
        };
        let mount = mount.map_err(refuse(control, what))?;
        mounts::attach(mount.as_fd(), target.as_fd()).map_err(refuse(control, what))?;
        match kind {
            Cover::Hidden => self.hidden.push((at.to_owned(), mount)),
            Cover::Scratch | Cover::Home => self.scratch.push(at.display().to_string()),
        }
        Ok(())
    }

    fn dev(&mut self, shm: Limit) -> Done {
        let devices = std::mem::take(&mut self.devices);
        let mount = make_dev(&devices, bound(shm)).map_err(refuse(Control::PrivateDev, "mount a minimal /dev"))?;
        self.hidden.push(("/dev".into(), mount));
        self.scratch.push("/dev/shm".to_owned());
        self.enforcement.enforced(Control::PrivateDev, "tmpfs with six devices, devpts and shm of its own");
        let size = match bound(shm) {
            Some(bytes) => format!("of {bytes} bytes each"),
            None => "of the kernel's default size".to_owned(),
        };
        self.enforcement.enforced(Control::PrivateTmp, format!("tmpfs {size} on {}", self.scratch.join(", ")));
        Ok(())
    }

    fn git_config(&self, home: &Path) -> Done {
        let write = || {
            let mut file = mounts::make_file(mounts::open_readable_dir(home)?.as_fd(), ".gitconfig".as_ref())?;
            file.write_all(b"[core]\n\tcheckStat = minimal\n")?;
            let owner = self.owner();
            rustix::fs::fchown(&file, Some(Uid::from_raw(owner.uid)), Some(Gid::from_raw(owner.gid)))?;
            Ok::<_, io::Error>(())
        };
        write().map_err(internal("write the step's .gitconfig"))
    }

    fn attach_repo(&mut self, at: &Path) -> Done {
        let overlay = self.overlay.take().ok_or_else(|| Failure::internal("there is no overlay to mount"))?;
        mounts::ensure(at, Point::Directory, |path| self.home_owner(path))
            .and_then(|target| mounts::attach(overlay.as_fd(), target.as_fd()))
            .map_err(refuse(Control::Layer, format_args!("mount the overlay at {}", at.display())))
    }

    /// Passes over what was passed over when it was to be taken.
    fn attach(&mut self, at: &Path, inside: &Inside) -> Done {
        let Some(clone) = self.clones.remove(at) else { return Ok(()) };
        let git = [&self.request.policy.git.worktree_git, &self.request.policy.git.common];
        let is_git = git.into_iter().flatten().any(|path| path == at);
        let control = if is_git { Control::GitReadOnly } else { Control::HiddenPaths };
        let target = match inside {
            Inside::Repo { repo, path } => self.point_in_repo(&clone, repo, path, control)?,
            Inside::Root => self.point_in_root(&clone, at, control)?,
        };
        mounts::attach(clone.as_fd(), target.as_fd())
            .map_err(refuse(control, format_args!("mount what was taken at {}", at.display())))?;
        if is_git {
            self.enforcement.enforced(control, "read-only mounts above the overlay");
        }
        Ok(())
    }

    fn point_in_root(&self, clone: &OwnedFd, at: &Path, control: Control) -> Result<OwnedFd, Failure> {
        let point = match mounts::is_dir(clone.as_fd()) {
            Ok(true) => Point::Directory,
            Ok(false) => Point::File,
            Err(error) => return Err(internal(format_args!("look at {}", at.display()))(error)),
        };
        mounts::ensure(at, point, |path| self.home_owner(path))
            .map_err(refuse(control, format_args!("make the mount point {}", at.display())))
    }

    /// A mount point of the repository is hostile: it may have become a link or a file.
    fn point_in_repo(
        &self,
        clone: &OwnedFd,
        repo: &Path,
        path: &RelPath,
        control: Control,
    ) -> Result<OwnedFd, Failure> {
        let find = || {
            let tree = mounts::open_dir(repo)?;
            let path = Path::new(path.as_str());
            if mounts::is_dir(clone.as_fd())? {
                mounts::ensure_beneath(tree.as_fd(), path, None)
            } else {
                mounts::open_beneath(tree.as_fd(), path)
            }
        };
        find().map_err(|error| match error.raw_os_error() {
            Some(libc::ELOOP | libc::ENOTDIR) => refused(
                control,
                format!(
                    "`{path}` of the repository is a symbolic link or a file, and something is to be mounted there"
                ),
                "make it a directory, or take it off `caches`",
            ),
            _ => refuse(control, format_args!("find `{path}` in the repository"))(error),
        })
    }

    fn seal_covers(&mut self) -> Done {
        let control = Control::HiddenPaths;
        for (at, mount) in &self.hidden {
            // Alone: what is mounted in it keeps its own attributes.
            sys::mount_setattr(mount.as_fd(), Reach::One, RDONLY, false, None)
                .map_err(refuse(control, format_args!("make {} read-only", at.display())))?;
        }
        let hidden: Vec<&Path> =
            self.hidden.iter().map(|(at, _)| at.as_path()).filter(|at| *at != Path::new("/dev")).collect();
        self.enforcement.enforced(control, format!("empty tmpfs over {}", listed(&hidden)));
        if self.request.policy.git.worktree_git.is_none() && self.request.policy.git.common.is_none() {
            self.enforcement.not_requested(Control::GitReadOnly, "the tree is under no git");
        }
        Ok(())
    }

    fn layer_dir(&self, id: u32) -> PathBuf {
        self.request.space.join(id.to_string())
    }

    fn owner(&self) -> Owner {
        Owner { uid: self.request.user.uid(), gid: self.request.user.gid() }
    }

    /// The step's user where it is another than ours.
    fn stepping_down(&self) -> Option<Owner> {
        self.request.user.steps_down().then(|| self.owner())
    }

    /// Directories that we make in the step's home are the step's.
    fn home_owner(&self, path: &Path) -> Option<Owner> {
        self.stepping_down().filter(|_| path.starts_with(&self.request.policy.home))
    }
}

/// The paths as a phrase: a record names some and counts the others.
fn listed(paths: &[&Path]) -> String {
    const NAMED: usize = 8;
    let mut names: Vec<String> = paths.iter().take(NAMED).map(|path| path.display().to_string()).collect();
    if let Some(more) = paths.len().checked_sub(NAMED).filter(|more| *more > 0) {
        names.push(format!("{more} more"));
    }
    names.join(", ")
}

/// Room for mount points, and no more.
const COVER_BYTES: u64 = 1 << 20;

fn bound(limit: Limit) -> Option<u64> {
    match limit {
        Limit::Max(bytes) => Some(bytes),
        Limit::Unlimited => None,
    }
}

/// Overlay clones its lower mount without what is mounted below it: a step would see other files
/// than a person does.
fn refuse_submounts(repo: &Path) -> Done {
    let control = Control::Layer;
    let table = fs::read("/proc/self/mountinfo").map_err(refuse(control, "read the table of mounts"))?;
    let points = table.split(|byte| *byte == b'\n').filter_map(|line| line.split(|byte| *byte == b' ').nth(4));
    let below = points.map(unescape).find(|point| point != repo && point.starts_with(repo));
    match below {
        None => Ok(()),
        Some(point) => Err(refused(
            control,
            format!("another file system is mounted in the repository, at `{}`", point.display()),
            format!("unmount it (`umount {}`), or verify a clone of the repository", point.display()),
        )),
    }
}

/// A path of mountinfo, in which blanks and backslashes stand as three octal digits.
fn unescape(field: &[u8]) -> PathBuf {
    let mut bytes = Vec::with_capacity(field.len());
    let mut rest = field;
    while let [first, tail @ ..] = rest {
        let octal = || std::str::from_utf8(tail.get(..3)?).ok().and_then(|text| u8::from_str_radix(text, 8).ok());
        match (first, octal()) {
            (b'\\', Some(byte)) => {
                bytes.push(byte);
                rest = &tail[3..];
            }
            _ => {
                bytes.push(*first);
                rest = tail;
            }
        }
    }
    PathBuf::from(std::ffi::OsString::from_vec(bytes))
}

fn clone_tool(source: &Path) -> Result<Option<OwnedFd>, Failure> {
    let clone = match mounts::clone(source, Links::Follow) {
        // What we cannot reach the step cannot miss: it shows itself when the tool is needed.
        Err(error) if matches!(error.raw_os_error(), Some(libc::ENOENT | libc::ENOTDIR | libc::EACCES)) => {
            return Ok(None);
        }
        other => other.map_err(internal(format_args!("take the tool directory `{}`", source.display())))?,
    };
    mounts::set(clone.as_fd(), RDONLY | NOSUID | NODEV)
        .map_err(refuse(Control::ReadOnlyRoot, format_args!("make {} read-only", source.display())))?;
    Ok(Some(clone))
}

/// An empty file for what exists there.
fn clone_mask(source: &Path) -> Result<Option<OwnedFd>, Failure> {
    if fs::symlink_metadata(source).is_err() {
        return Ok(None);
    }
    let what = format_args!("mask {}", source.display());
    mounts::clone(Path::new("/dev/null"), Links::Refuse).map(Some).map_err(refuse(Control::HiddenPaths, what))
}

fn overlay(layers: &[OwnedFd], upper: &OwnedFd, work: &OwnedFd) -> io::Result<OwnedFd> {
    overlay_over(layers, upper, work, set_each_lower)
        // Kernels before 6.8 know one list only, and those before 6.5 say so no sooner than at the
        // end. Where that fails too, the first answer is the one that tells.
        .or_else(|first| overlay_over(layers, upper, work, set_lowers_in_one).map_err(|_| first))
}

fn overlay_over(
    layers: &[OwnedFd],
    upper: &OwnedFd,
    work: &OwnedFd,
    set_lowers: fn(&OwnedFd, &[OwnedFd]) -> io::Result<()>,
) -> io::Result<OwnedFd> {
    let fs = rustix::mount::fsopen("overlay", FsOpenFlags::FSOPEN_CLOEXEC)?;
    // Without privilege overlay cannot use its own attributes, and the layers of root must read
    // the same way as anybody's.
    fsconfig_set_flag(&fs, "userxattr").map_err(|errno| mounts::explained(&fs, errno))?;
    set_lowers(&fs, layers)?;
    set_layer(&fs, "upperdir", upper.as_fd())?;
    set_layer(&fs, "workdir", work.as_fd())?;
    mounts::create(&fs, MountAttrFlags::MOUNT_ATTR_NOSUID | MountAttrFlags::MOUNT_ATTR_NODEV)
}

fn set_each_lower(fs: &OwnedFd, layers: &[OwnedFd]) -> io::Result<()> {
    layers.iter().try_for_each(|layer| set_layer(fs, "lowerdir+", layer.as_fd()))
}

/// The kernel takes no value longer than 255 bytes: some 14 layers.
fn set_lowers_in_one(fs: &OwnedFd, layers: &[OwnedFd]) -> io::Result<()> {
    let paths: Vec<String> = layers.iter().map(|layer| path_of(layer.as_fd())).collect();
    fsconfig_set_string(fs, "lowerdir", paths.join(":")).map_err(|errno| mounts::explained(fs, errno))
}

fn path_of(dir: BorrowedFd<'_>) -> String {
    format!("/proc/self/fd/{}", dir.as_raw_fd())
}

/// By descriptor; by its path in /proc where the kernel (before 6.13) knows only paths. Neither
/// needs escaping.
fn set_layer(fs: &OwnedFd, key: &'static str, dir: BorrowedFd<'_>) -> io::Result<()> {
    if fsconfig_set_fd(fs, key, dir).is_ok() {
        return Ok(());
    }
    fsconfig_set_string(fs, key, path_of(dir)).map_err(|errno| mounts::explained(fs, errno))
}

/// The mount is attached when this returns, so that its files can be mount points.
fn make_dev(devices: &[(&'static str, OwnedFd)], shm: Option<u64>) -> io::Result<OwnedFd> {
    let mount = mounts::tmpfs(0o755, Some(COVER_BYTES), None)?;
    mounts::attach_at(mount.as_fd(), Path::new("/dev"))?;
    let dev = mounts::open_readable_dir(Path::new("/dev"))?;
    for (name, device) in devices {
        drop(mounts::make_file(dev.as_fd(), name.as_ref())?);
        mounts::attach(device.as_fd(), mounts::open_beneath(dev.as_fd(), Path::new(name))?.as_fd())?;
    }
    let links = [
        ("fd", "/proc/self/fd"),
        ("stdin", "/proc/self/fd/0"),
        ("stdout", "/proc/self/fd/1"),
        ("stderr", "/proc/self/fd/2"),
        ("ptmx", "pts/ptmx"),
    ];
    for (name, target) in links {
        rustix::fs::symlinkat(target, &dev, name)?;
    }
    for name in ["shm", "pts"] {
        rustix::fs::mkdirat(&dev, name, Mode::from_raw_mode(0o755))?;
    }
    mounts::attach_at(mounts::tmpfs(0o1777, shm, None)?.as_fd(), Path::new("/dev/shm"))?;
    // Without `gid=5`: that group is not mapped, and the kernel refuses it.
    let options = [Opt("ptmxmode", "0666".to_owned()), Opt("mode", "0620".to_owned())];
    let attributes = MountAttrFlags::MOUNT_ATTR_NOSUID | MountAttrFlags::MOUNT_ATTR_NOEXEC;
    let pts = mounts::new_fs("devpts", &options, attributes)?;
    mounts::attach_at(pts.as_fd(), Path::new("/dev/pts"))?;
    Ok(mount)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mount_points_with_blanks_are_read_as_they_are() {
        assert_eq!(unescape(b"/a\\040b\\134c"), Path::new("/a b\\c"));
        assert_eq!(unescape(b"/a\\"), Path::new("/a\\"));
    }
}
