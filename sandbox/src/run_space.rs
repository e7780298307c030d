//! Stores the writes of a run's steps in the *run space*: a bounded tmpfs in a mount namespace that is kept alive by
//! descriptors alone, without a process. The kernel frees all of it when the descriptors close.

use std::ffi::CStr;
use std::marker::PhantomData;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::PathBuf;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, OnceLock};

use proctor_core::model::enforcement::Tolerated;
use rustix::fs::{Mode, OFlags};

use crate::error::SandboxError;
use crate::host::{RepoFacts, StepUser};
use crate::layer_slot::LayerSlot;
use crate::no_namespaces::{self, HostDirSpace};
use crate::policy::CacheSource;
use crate::resource_report::ExhaustedSpace;
use crate::sandbox_pool::SandboxPool;

/// The common bounds of all layers of one run, and the controls that may be missing.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RunSpaceConfig {
    /// The capacity in bytes.
    pub disk_bytes: u64,
    /// The capacity in files.
    pub inodes: u64,
    /// Controls that may be missing. If the kernel refuses namespaces and every control that depends on them may be
    /// missing, the layers are stored in a directory of the host and the bounds are not enforced.
    pub tolerated: Tolerated,
    /// The number of commands that one sandbox may serve.
    pub reuse: SandboxReuse,
    /// The directory in which caches are stored, if any command of the run has caches.
    pub caches: Option<PathBuf>,
}

/// The form in which the steps of a run see caches.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum CacheForm {
    /// As overlays of immutable layers and a directory that receives the writes.
    Layers,
    /// The layers are merged into one directory, which must hold a copy of them.
    Copy {
        /// The reason why the kernel makes no overlay.
        reason: String,
    },
    /// Not at all: each attempt gets an empty directory.
    Empty {
        /// The reason why caches are not available.
        reason: String,
    },
}

/// The number of commands that one sandbox may serve.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SandboxReuse {
    /// One command.
    Never,
    /// Several commands, one after another, as long as none leaves anything behind: see
    /// [`Launcher::return_to_pool`](crate::launcher::Launcher::return_to_pool).
    Allowed,
}

/// The layers of one run. Cheap to clone; dropping the last clone, including those held by layers, frees the run
/// space.
#[derive(Debug, Clone)]
pub struct RunSpace(Arc<RunSpaceInner>);

#[derive(Debug)]
struct RunSpaceInner {
    dir: Arc<OwnedFd>,
    storage: LayerStorage,
    next_layer_id: AtomicU32,
    pool: Arc<SandboxPool>,
    reuse: SandboxReuse,
    caches: CacheForm,
}

/// The location of the layers.
#[derive(Debug)]
enum LayerStorage {
    /// On a separate tmpfs in a mount namespace.
    Tmpfs {
        mounts: OwnedFd,
        /// Without privilege: the user namespace that owns the mount namespace. Under root: the user namespace that
        /// maps the owners of a repository of root's.
        users: OwnedFd,
        /// Under root: the host user that only the steps of this run have.
        run_user: Option<RunUser>,
    },
    /// In a directory of the host.
    HostDir(HostDirSpace),
}

/// The host user that only one run's steps over root's repository have.
#[derive(Debug)]
struct RunUser {
    id: u32,
    /// The user namespace that maps the on-disk owner of root's caches to this user.
    caches: OwnedFd,
}

/// State of a layer that its attempt may still write.
#[derive(Debug)]
pub struct Unsealed(());
/// State of a layer that no process writes any more.
#[derive(Debug)]
pub struct Sealed(());

/// The writes of one step: the upper directory of its overlay, in the format of overlayfs with `userxattr`.
#[derive(Debug)]
pub struct Layer<S> {
    space: RunSpace,
    slot: LayerSlot,
    state: PhantomData<S>,
}

impl RunSpace {
    /// Returns whether the layers are in memory, so the kernel frees them when this process ends.
    pub fn is_in_memory(&self) -> bool {
        matches!(self.0.storage, LayerStorage::Tmpfs { .. })
    }

    pub(crate) fn from_fds(
        mut fds: Vec<OwnedFd>,
        own_id: Option<u32>,
        pool: Arc<SandboxPool>,
        sandboxes: SandboxReuse,
        caches: CacheForm,
    ) -> Result<Self, SandboxError> {
        let cache_owners = fds.pop_if(|_| own_id.is_some());
        let own = own_id.zip(cache_owners).map(|(id, caches)| RunUser { id, caches });
        let [dir, mounts, users] = <[OwnedFd; 3]>::try_from(fds)
            .map_err(|fds| SandboxError::Protocol(format!("{} descriptors instead of 3", fds.len())))?;
        let kind = LayerStorage::Tmpfs { mounts, users, run_user: own };
        Ok(Self(Arc::new(RunSpaceInner {
            dir: Arc::new(dir),
            storage: kind,
            next_layer_id: AtomicU32::new(0),
            pool,
            reuse: sandboxes,
            caches,
        })))
    }

    pub(crate) fn in_host_dir(
        host: &crate::host::Host,
        refusal: String,
        hint: String,
        pool: Arc<SandboxPool>,
    ) -> Result<Self, SandboxError> {
        let (space, dir) = HostDirSpace::create(host, refusal, hint)?;
        let (dir, kind) = (Arc::new(dir), LayerStorage::HostDir(space));
        // Each copy of the tree serves one command.
        let sandboxes = SandboxReuse::Never;
        let caches = match host.is_root() {
            // The step runs as another user, who cannot access root's state directory.
            true => CacheForm::Empty { reason: "the step's user cannot reach root's state directory".to_owned() },
            false => CacheForm::Copy { reason: "there are no namespaces".to_owned() },
        };
        Ok(Self(Arc::new(RunSpaceInner {
            dir,
            storage: kind,
            next_layer_id: AtomicU32::new(0),
            pool,
            reuse: sandboxes,
            caches,
        })))
    }

    /// Makes an empty layer for a step of `user` over this repository.
    pub(crate) fn new_slot(&self, repo: &RepoFacts, user: StepUser) -> Result<LayerSlot, SandboxError> {
        let id = self.0.next_layer_id.fetch_add(1, Ordering::Relaxed);
        let upper = self.make_dirs(id, user, repo).map_err(|errno| SandboxError::Layer { source: errno.into() })?;
        Ok(LayerSlot { dir: Arc::clone(&self.0.dir), id, user, upper, helper_pidfd: OnceLock::new() })
    }

    /// Makes an empty layer without a sandbox, for a step over this repository that ran elsewhere.
    /// [`Layer::fill`](Layer::fill) creates its entries.
    ///
    /// # Errors
    /// Another user owns the repository, or there is no space for a layer.
    pub fn new_layer(&self, host: &crate::host::Host, repo: &RepoFacts) -> Result<Layer<Unsealed>, SandboxError> {
        let user = self.step_user(host, repo)?;
        Ok(self.open_layer(self.new_slot(repo, user)?))
    }

    /// Returns the layer of an attempt that starts.
    pub(crate) fn open_layer(&self, slot: LayerSlot) -> Layer<Unsealed> {
        Layer { space: self.clone(), slot, state: PhantomData }
    }

    /// Creates `<id>/upper` with the mode of the repository's root, since an overlay shows the mode of its upper
    /// directory, and `<id>/work` next to it. Both must be on one mount, and neither inside the other.
    fn make_dirs(&self, id: u32, user: StepUser, repo: &RepoFacts) -> rustix::io::Result<OwnedFd> {
        let private = Mode::RWXU;
        let (name, flags) = (id.to_string(), OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC);
        rustix::fs::mkdirat(&*self.0.dir, &name, private)?;
        let dir = rustix::fs::openat(&*self.0.dir, &name, flags, Mode::empty())?;
        rustix::fs::mkdirat(&dir, WORK, private)?;
        rustix::fs::mkdirat(&dir, UPPER, private)?;
        let upper = rustix::fs::openat(&dir, UPPER, flags, Mode::empty())?;
        if self.as_host_dir().is_some() {
            no_namespaces::grant_step_access(&dir, user)?;
        }
        if user.is_set_up_by_root() {
            let (uid, gid) = (rustix::fs::Uid::from_raw(user.uid()), rustix::fs::Gid::from_raw(user.gid()));
            rustix::fs::fchown(&upper, Some(uid), Some(gid))?;
        }
        // Must come after the change of owner, which clears set-id bits. The mode is set in a separate call from mkdir,
        // since the umask restricts the mode of mkdir.
        rustix::fs::fchmod(&upper, Mode::from_raw_mode(repo.mode))?;
        Ok(upper)
    }

    /// Returns the number of prepared sandboxes that wait for a command.
    pub fn ready_count(&self) -> usize {
        self.0.pool.ready_count()
    }

    /// Returns whether nothing remains of the run's commands: the only layers are those of waiting sandboxes. Returns
    /// `false` if the run space cannot be read.
    pub fn is_unused(&self) -> bool {
        let waiting: Vec<String> = self.0.pool.layer_ids().iter().map(ToString::to_string).collect();
        let is_known = |name: &CStr| {
            let name = name.to_bytes();
            matches!(name, b"." | b"..") || waiting.iter().any(|id| id.as_bytes() == name)
        };
        let entries = rustix::fs::Dir::read_from(&self.0.dir);
        entries.is_ok_and(|mut dir| dir.all(|entry| entry.is_ok_and(|entry| is_known(entry.file_name()))))
    }

    /// Returns whether no layer was ever made in this run space, so it is like a new one.
    pub fn is_pristine(&self) -> bool {
        self.0.next_layer_id.load(Ordering::Relaxed) == 0
    }

    /// Returns whether a sandbox can be reused for another command after a command that left nothing behind.
    pub fn allows_reuse(&self) -> bool {
        self.0.reuse == SandboxReuse::Allowed
    }

    /// Returns the form in which the steps of this run see caches.
    pub fn cache_form(&self) -> &CacheForm {
        &self.0.caches
    }

    /// Ends the prepared sandboxes that have a cache with this source, and waits until they have ended. Afterwards no
    /// sandbox of this run has it mounted.
    pub fn release_cache(&self, source: &CacheSource) {
        self.0.pool.release_cache(source);
    }

    pub(crate) fn pool(&self) -> &SandboxPool {
        &self.0.pool
    }

    pub(crate) fn is_same(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }

    /// Returns the mount namespace, the user namespace, and the one that maps the owner of caches if there is one.
    pub(crate) fn namespace_fds(&self) -> Vec<BorrowedFd<'_>> {
        match &self.0.storage {
            LayerStorage::Tmpfs { mounts, users, run_user: own } => {
                [mounts, users].into_iter().chain(own.as_ref().map(|own| &own.caches)).map(AsFd::as_fd).collect()
            }
            LayerStorage::HostDir(_) => Vec::new(),
        }
    }

    /// Returns the host user id that only this run's steps over root's repository have, if there is one.
    pub(crate) fn run_uid(&self) -> Option<u32> {
        match &self.0.storage {
            LayerStorage::Tmpfs { run_user: own, .. } => own.as_ref().map(|own| own.id),
            LayerStorage::HostDir(_) => None,
        }
    }

    /// Returns the user of this run's steps over this repository.
    ///
    /// # Errors
    /// Another user owns the repository, and the daemon is not root.
    pub fn step_user(&self, host: &crate::host::Host, repo: &RepoFacts) -> Result<StepUser, SandboxError> {
        Ok(StepUser::choose(host, repo)?.with_run_uid(self.run_uid()))
    }

    /// Returns the host directory that holds the layers, if there are no namespaces.
    pub(crate) fn as_host_dir(&self) -> Option<&HostDirSpace> {
        match &self.0.storage {
            LayerStorage::Tmpfs { .. } => None,
            LayerStorage::HostDir(space) => Some(space),
        }
    }
}

/// Name of the directory of a layer that receives the writes.
pub(crate) const UPPER: &str = "upper";
/// Name of the directory of a layer that overlayfs uses internally.
pub(crate) const WORK: &str = "work";
/// Name of the copy of the tree next to a layer, if there are no namespaces.
pub(crate) const TREE_COPY: &CStr = c"tree";

impl<S> Layer<S> {
    /// Returns the user who writes the layer.
    pub fn user(&self) -> StepUser {
        self.slot.user
    }

    pub(crate) fn id(&self) -> u32 {
        self.slot.id
    }

    /// Returns the path of the copy of the tree in which the attempt of this layer runs, if there are no namespaces.
    pub(crate) fn copy_path(&self) -> Option<PathBuf> {
        self.space
            .as_host_dir()
            .map(|space| space.path().join(self.id().to_string()).join(&*TREE_COPY.to_string_lossy()))
    }

    pub(crate) fn directory(&self) -> BorrowedFd<'_> {
        self.slot.upper.as_fd()
    }

    pub(crate) fn space(&self) -> &RunSpace {
        &self.space
    }
}

impl Layer<Unsealed> {
    /// Marks the layer as no longer written. Call it only after its attempt has ended, that is after
    /// [`EventPoll::Closed`](crate::EventPoll::Closed). Nothing is remounted.
    pub fn seal(self) -> Layer<Sealed> {
        let Self { space, slot, .. } = self;
        Layer { space, slot, state: PhantomData }
    }
}

impl Layer<Sealed> {
    /// Returns the upper directory for reading.
    pub fn upper(&self) -> BorrowedFd<'_> {
        self.slot.upper.as_fd()
    }

    /// Returns the exhausted resources of the tmpfs that all layers of the run share.
    pub fn exhausted_space(&self) -> ExhaustedSpace {
        // If the file system cannot be examined, no limit is reported.
        rustix::fs::fstatvfs(self.upper())
            .map_or_else(|_| ExhaustedSpace::default(), |room| ExhaustedSpace::from_statvfs(&room))
    }

    /// Returns whether the layer is empty. Returns `false` if it cannot be read.
    pub fn is_empty(&self) -> bool {
        let is_entry = |entry: &rustix::fs::DirEntry| !matches!(entry.file_name().to_bytes(), b"." | b"..");
        rustix::fs::Dir::read_from(self.upper())
            .is_ok_and(|mut dir| dir.find(|entry| entry.as_ref().map_or(true, is_entry)).is_none())
    }

    /// Returns the directories, for another command of the same sandbox.
    pub(crate) fn into_slot(self) -> LayerSlot {
        self.slot
    }

    /// Removes the writes of an attempt that is repeated, so that their space is free before the run ends.
    ///
    /// # Errors
    /// A file or directory cannot be removed.
    pub fn discard(self) -> Result<(), SandboxError> {
        self.slot.discard()
    }
}
