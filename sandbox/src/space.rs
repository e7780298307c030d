//! Where the writes of a run's steps go: a bounded tmpfs in a mount namespace that descriptors
//! hold and no process does. The kernel frees all of it when the descriptors close.

use std::ffi::{CStr, CString};
use std::marker::PhantomData;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::PathBuf;
use std::process::Stdio;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use proctor_core::enforcement::Tolerated;
use proctor_core::outcome::LimitKind;
use rustix::fs::{AtFlags, FileType, Mode, OFlags, StatVfs};
use serde::{Deserialize, Serialize};

use crate::error::{SandboxError, or_with_less};
use crate::host::{RepoFacts, StepUser};
use crate::launcher::Launcher;
use crate::plain::{self, PlainSpace};
use crate::policy::CacheSource;
use crate::pool::Pool;
use crate::wait;
use crate::wire::{self, Beforehand, Message, Request, SpaceRequest};

/// How long the kernel may take to make the place for a run's layers.
const PATIENCE: Duration = Duration::from_secs(30);

/// What a bounded file system has no more of.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Spent {
    /// Room for bytes.
    pub bytes: bool,
    /// Room for files.
    pub files: bool,
}

impl Spent {
    /// As the kernel counts now. A file system without a bound tells of no number at all.
    pub(crate) fn of(room: &StatVfs) -> Self {
        let spent = |total: u64, free: u64| total > 0 && free == 0;
        Self { bytes: spent(room.f_blocks, room.f_bfree), files: spent(room.f_files, room.f_ffree) }
    }

    /// The limits that it has met.
    pub fn limits(self) -> impl Iterator<Item = LimitKind> {
        let kinds = [(self.bytes, LimitKind::Disk), (self.files, LimitKind::Inodes)];
        kinds.into_iter().filter_map(|(met, kind)| met.then_some(kind))
    }
}

/// The bounds of one run's layers, all of them together, and what may be missing.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RunSpaceConfig {
    /// How many bytes they hold.
    pub disk_bytes: u64,
    /// How many files they hold.
    pub inodes: u64,
    /// Which controls may be missing. Where the kernel refuses namespaces and all that goes with
    /// them may be missing, the layers lie in a directory of the host and bounds are not held.
    pub tolerated: Tolerated,
    /// How many commands one sandbox serves.
    pub sandboxes: Sandboxes,
    /// The directory in which caches are stored, where some command of the run has any.
    pub caches: Option<PathBuf>,
}

/// How caches can be shown to the steps of a run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum CacheForm {
    /// As overlays: layers that stay as they are, and a directory that takes the writes.
    Layers,
    /// As one directory, which has to hold a copy of the layers.
    Copy {
        /// Why the kernel makes no overlay.
        reason: String,
    },
    /// Not at all: each attempt gets an empty directory.
    Empty {
        /// Why.
        reason: String,
    },
}

/// How many commands one sandbox serves.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Sandboxes {
    /// One.
    ForOne,
    /// One after another, for as long as none leaves anything in it: [`Launcher::put_back`].
    ForSeveral,
}

/// The layers of one run. Cheap to clone; the last clone, layers included, frees it.
#[derive(Debug, Clone)]
pub struct RunSpace(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    dir: Arc<OwnedFd>,
    kind: Kind,
    next: AtomicU32,
    pool: Arc<Pool>,
    sandboxes: Sandboxes,
    caches: CacheForm,
}

/// Where the layers lie.
#[derive(Debug)]
enum Kind {
    /// On a tmpfs of their own.
    Namespaces {
        mounts: OwnedFd,
        /// Unprivileged: the owner of the mount namespace. Root: the namespace that maps the
        /// owners of a repository of root's.
        users: OwnedFd,
        /// Root: the user of the host that the steps of this run alone have.
        own: Option<OwnUser>,
    },
    /// In a directory of the host.
    Plain(PlainSpace),
}

/// The user of the host that steps over root's repository have in one run.
#[derive(Debug)]
struct OwnUser {
    id: u32,
    /// The user namespace that maps the owner of root's caches on disk to it.
    caches: OwnedFd,
}

/// A layer that its attempt may still write.
#[derive(Debug)]
pub struct Open(());
/// A layer that nobody writes any more.
#[derive(Debug)]
pub struct Sealed(());

/// The writes of one step: the upper directory of its overlay, in the format of overlayfs with
/// `userxattr`.
#[derive(Debug)]
pub struct Layer<S> {
    space: RunSpace,
    slot: Slot,
    state: PhantomData<S>,
}

/// The directories of a layer, apart from the space that they lie in: one that waits with a prepared
/// sandbox must not keep that.
#[derive(Debug)]
pub(crate) struct Slot {
    dir: Arc<OwnedFd>,
    id: u32,
    user: StepUser,
    upper: OwnedFd,
    /// The helper whose mounts hold what is in it, until that has ended.
    holder: OnceLock<OwnedFd>,
}

impl RunSpace {
    /// Makes the place; it costs one short-lived helper.
    ///
    /// # Errors
    /// The helper cannot be started, or the kernel refuses a namespace or the tmpfs and that is not
    /// tolerated.
    pub fn create(launcher: &Launcher, config: RunSpaceConfig) -> Result<Self, SandboxError> {
        let host = launcher.host().clone();
        let RunSpaceConfig { disk_bytes, inodes, tolerated, sandboxes, caches } = config;
        let request = Request::Space(SpaceRequest {
            at: host.space_dir(),
            bytes: disk_bytes,
            inodes,
            user: (!host.is_root()).then_some((host.euid, host.egid)),
            beforehand: if plain::is_tolerated(&tolerated) { Beforehand::Namespaces } else { Beforehand::Nothing },
            caches,
        });
        let (mut helper, control) = launcher.start_helper(&request, &[], Stdio::null(), Stdio::null())?;
        let answer = wait::readable(control.as_fd(), PATIENCE).and_then(|()| wire::recv(control.as_fd()));
        drop(control);
        // It has said all that it had to say.
        helper.end().map_err(|source| SandboxError::System { what: "cannot wait for the helper", source })?;
        let answer =
            answer.map_err(|source| SandboxError::System { what: "cannot hear the sandbox helper", source })?;
        match answer {
            Some((Message::Space { own_id, no_cache_overlay }, fds)) => {
                let caches = no_cache_overlay.map_or(CacheForm::Layers, |reason| CacheForm::Copy { reason });
                Self::from_fds(fds, own_id, launcher.add_pool(), sandboxes, caches)
            }
            Some((Message::Refused { message, hint, .. }, _)) if plain::is_tolerated(&tolerated) => {
                Self::plain(&host, message, hint, launcher.add_pool())
            }
            Some((Message::Refused { control, message, hint }, _)) => {
                Err(SandboxError::NoSpace { control, message, hint: or_with_less(&hint) })
            }
            other => Err(SandboxError::Protocol(format!("{other:?}"))),
        }
    }

    /// Whether it holds its layers in memory, and nothing of it is left when this process ends.
    pub fn is_in_memory(&self) -> bool {
        matches!(self.0.kind, Kind::Namespaces { .. })
    }

    fn from_fds(
        mut fds: Vec<OwnedFd>,
        own_id: Option<u32>,
        pool: Arc<Pool>,
        sandboxes: Sandboxes,
        caches: CacheForm,
    ) -> Result<Self, SandboxError> {
        let cache_owners = fds.pop_if(|_| own_id.is_some());
        let own = own_id.zip(cache_owners).map(|(id, caches)| OwnUser { id, caches });
        let [dir, mounts, users] = <[OwnedFd; 3]>::try_from(fds)
            .map_err(|fds| SandboxError::Protocol(format!("{} descriptors instead of 3", fds.len())))?;
        let kind = Kind::Namespaces { mounts, users, own };
        Ok(Self(Arc::new(Inner { dir: Arc::new(dir), kind, next: AtomicU32::new(0), pool, sandboxes, caches })))
    }

    fn plain(host: &crate::host::Host, refusal: String, hint: String, pool: Arc<Pool>) -> Result<Self, SandboxError> {
        let (space, dir) = PlainSpace::make(host, refusal, hint)?;
        let (dir, kind) = (Arc::new(dir), Kind::Plain(space));
        // A copy of the tree is made for one command.
        let sandboxes = Sandboxes::ForOne;
        let caches = match host.is_root() {
            // A step is somebody else there, who cannot reach root's state directory.
            true => CacheForm::Empty { reason: "the step's user cannot reach root's state directory".to_owned() },
            false => CacheForm::Copy { reason: "there are no namespaces".to_owned() },
        };
        Ok(Self(Arc::new(Inner { dir, kind, next: AtomicU32::new(0), pool, sandboxes, caches })))
    }

    /// Makes an empty layer for a step of `user` over this repository.
    pub(crate) fn slot(&self, repo: &RepoFacts, user: StepUser) -> Result<Slot, SandboxError> {
        let id = self.0.next.fetch_add(1, Ordering::Relaxed);
        let upper = self.make_dirs(id, user, repo).map_err(|errno| SandboxError::Layer { source: errno.into() })?;
        Ok(Slot { dir: Arc::clone(&self.0.dir), id, user, upper, holder: OnceLock::new() })
    }

    /// The layer of an attempt that begins.
    pub(crate) fn open(&self, slot: Slot) -> Layer<Open> {
        Layer { space: self.clone(), slot, state: PhantomData }
    }

    /// `<id>/upper` with the mode of the repository's root (overlay shows that of the upper
    /// directory) and `<id>/work` beside it: both must be on one mount, neither in the other.
    fn make_dirs(&self, id: u32, user: StepUser, repo: &RepoFacts) -> rustix::io::Result<OwnedFd> {
        let private = Mode::RWXU;
        let (name, flags) = (id.to_string(), OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC);
        rustix::fs::mkdirat(&*self.0.dir, &name, private)?;
        let dir = rustix::fs::openat(&*self.0.dir, &name, flags, Mode::empty())?;
        rustix::fs::mkdirat(&dir, WORK, private)?;
        rustix::fs::mkdirat(&dir, UPPER, private)?;
        let upper = rustix::fs::openat(&dir, UPPER, flags, Mode::empty())?;
        if self.as_plain().is_some() {
            plain::open_to(&dir, user)?;
        }
        if user.steps_down() {
            let (uid, gid) = (rustix::fs::Uid::from_raw(user.uid()), rustix::fs::Gid::from_raw(user.gid()));
            rustix::fs::fchown(&upper, Some(uid), Some(gid))?;
        }
        // After the change of owner, which takes set-id bits away; and apart from mkdir, whose
        // mode the umask cuts.
        rustix::fs::fchmod(&upper, Mode::from_raw_mode(repo.mode))?;
        Ok(upper)
    }

    /// How many prepared sandboxes wait for a command.
    pub fn ready(&self) -> usize {
        self.0.pool.ready()
    }

    /// Returns whether nothing is left of its commands: no layer but those of sandboxes that wait. A place that
    /// cannot be looked at may hold something.
    pub fn is_unused(&self) -> bool {
        let waiting: Vec<String> = self.0.pool.layers().iter().map(ToString::to_string).collect();
        let is_known = |name: &CStr| {
            let name = name.to_bytes();
            matches!(name, b"." | b"..") || waiting.iter().any(|id| id.as_bytes() == name)
        };
        let entries = rustix::fs::Dir::read_from(&self.0.dir);
        entries.is_ok_and(|mut dir| dir.all(|entry| entry.is_ok_and(|entry| is_known(entry.file_name()))))
    }

    /// Whether a sandbox serves another command behind one that has left nothing.
    pub fn serves_on(&self) -> bool {
        self.0.sandboxes == Sandboxes::ForSeveral
    }

    /// Returns how caches can be shown to the steps of this run.
    pub fn cache_form(&self) -> &CacheForm {
        &self.0.caches
    }

    /// Ends the prepared sandboxes that hold a cache with this source, and returns when they have ended. Afterwards
    /// nothing of this run has it mounted.
    pub fn release_cache(&self, source: &CacheSource) {
        self.0.pool.release_cache(source);
    }

    pub(crate) fn pool(&self) -> &Pool {
        &self.0.pool
    }

    pub(crate) fn is_same(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }

    /// Mount namespace, user namespace, and the one that maps the owner of caches, where there are any.
    pub(crate) fn fds(&self) -> Vec<BorrowedFd<'_>> {
        match &self.0.kind {
            Kind::Namespaces { mounts, users, own } => {
                [mounts, users].into_iter().chain(own.as_ref().map(|own| &own.caches)).map(AsFd::as_fd).collect()
            }
            Kind::Plain(_) => Vec::new(),
        }
    }

    /// Returns the user id of the host that steps over root's repository have in this run alone, where they have one.
    pub(crate) fn own_id(&self) -> Option<u32> {
        match &self.0.kind {
            Kind::Namespaces { own, .. } => own.as_ref().map(|own| own.id),
            Kind::Plain(_) => None,
        }
    }

    /// Returns who a step over this repository is in this run.
    ///
    /// # Errors
    /// The repository is somebody else's, and we are not root.
    pub fn user(&self, host: &crate::host::Host, repo: &RepoFacts) -> Result<StepUser, SandboxError> {
        Ok(StepUser::choose(host, repo)?.with_own_id(self.own_id()))
    }

    /// The directory of the host in which the layers lie, where there are no namespaces.
    pub(crate) fn as_plain(&self) -> Option<&PlainSpace> {
        match &self.0.kind {
            Kind::Namespaces { .. } => None,
            Kind::Plain(space) => Some(space),
        }
    }
}

/// The directory of a layer that takes the writes.
pub(crate) const UPPER: &str = "upper";
/// The directory that overlayfs needs for itself.
pub(crate) const WORK: &str = "work";

impl<S> Layer<S> {
    /// Who writes it.
    pub fn user(&self) -> StepUser {
        self.slot.user
    }

    pub(crate) fn id(&self) -> u32 {
        self.slot.id
    }

    pub(crate) fn space(&self) -> &RunSpace {
        &self.space
    }
}

impl Layer<Open> {
    /// Declares that nobody writes it any more. Only after its attempt is gone: after
    /// [`Received::Closed`](crate::Received::Closed). Nothing is remounted.
    pub fn seal(self) -> Layer<Sealed> {
        let Self { space, slot, .. } = self;
        Layer { space, slot, state: PhantomData }
    }
}

impl Slot {
    pub(crate) fn id(&self) -> u32 {
        self.id
    }

    /// Remembers the helper of its attempt.
    pub(crate) fn is_held_by(&self, holder: OwnedFd) {
        // A layer has one attempt.
        drop(self.holder.set(holder));
    }

    /// See [`Layer::discard`].
    pub(crate) fn discard(self) -> Result<(), SandboxError> {
        // The kernel keeps what was removed for as long as an overlay holds it. A helper that hangs
        // is killed by whoever buries it.
        if let Some(holder) = self.holder.get() {
            let _ = wait::readable(holder.as_fd(), wait::LAST_BREATH);
        }
        let name = CString::new(self.id.to_string()).unwrap_or_default();
        remove_dir(self.dir.as_fd(), &name).map_err(SandboxError::system("cannot discard a layer"))
    }
}

impl Layer<Sealed> {
    /// The upper directory, for reading.
    pub fn upper(&self) -> BorrowedFd<'_> {
        self.slot.upper.as_fd()
    }

    /// What is spent of the room that all layers of the run share.
    pub fn spent(&self) -> Spent {
        // One that cannot be looked at has met no limit that anybody knows of.
        rustix::fs::fstatvfs(self.upper()).map_or_else(|_| Spent::default(), |room| Spent::of(&room))
    }

    /// Whether nothing lies in it; what cannot be looked at may hold something.
    pub fn is_empty(&self) -> bool {
        let is_entry = |entry: &rustix::fs::DirEntry| !matches!(entry.file_name().to_bytes(), b"." | b"..");
        rustix::fs::Dir::read_from(self.upper())
            .is_ok_and(|mut dir| dir.find(|entry| entry.as_ref().map_or(true, is_entry)).is_none())
    }

    /// The directories, for another command of the same sandbox.
    pub(crate) fn into_slot(self) -> Slot {
        self.slot
    }

    /// Removes what was written, so that its room is free again before the run ends: for an
    /// attempt that is repeated.
    ///
    /// # Errors
    /// Something cannot be removed.
    pub fn discard(self) -> Result<(), SandboxError> {
        self.slot.discard()
    }
}

/// Removes a directory and all in it, without following a link and whatever its mode is.
///
/// How deep it is was the step's choice: neither the stack nor the descriptors may grow with
/// that. So what is found one level down is moved up beside `name`, and waits there.
///
/// # Errors
/// Something cannot be removed.
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
                    // To be moved it must be writable itself: its `..` changes.
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

/// A directory whose permissions a step may have taken away.
fn open_writable(parent: BorrowedFd<'_>, name: &CStr) -> rustix::io::Result<OwnedFd> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    rustix::fs::chmodat(parent, name, Mode::RWXU, AtFlags::empty())?;
    rustix::fs::openat(parent, name, flags, Mode::empty())
}
